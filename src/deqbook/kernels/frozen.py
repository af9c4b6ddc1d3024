r"""Gradient flow with the kernel of the start: the frozen-kernel predictor, in closed form.

Along gradient flow :math:`\dot{\hat y}=-H(t)(\hat y-y)` on the sample and
:math:`\dot f_t(x)=-k_t(x,X)(\hat y-y)` elsewhere. Freeze :math:`k_t=k_0`, :math:`H=H(0)`, and both
are linear equations:

.. math:: y-\hat y(t)=e^{-Ht}r,\qquad \hat f_t(x)=f_0(x)+k_0(x,X)\,\alpha_t,\qquad
          \alpha_t=H^{-1}(I-e^{-Ht})\,r,\qquad r=y-\hat y(0).

All of it is one eigendecomposition of H; ``expm1`` keeps the slow directions exact, and for finite
times H may even be singular.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.linalg import symmetric_part

__all__ = ["FrozenKernel", "freeze"]

Times = float | Sequence[float] | Tensor


@dataclass(frozen=True, repr=False)
class FrozenKernel:
    r"""A network whose tangent kernel stands still; made by ``freeze``.

    ``values`` (n,) and ``vectors`` (n, n) are the eigenvalues (rising) and eigenvectors of H, ``y``
    (n,) the labels, ``start`` (n,) the predictions :math:`\hat y(0)` on the sample. One time gives
    a vector, several times give one row each. A time may be ``math.inf`` if H is invertible;
    ``ValueError`` if it is not, or if a time is negative.

    >>> frozen = freeze(torch.tensor([[2.0]]), y=torch.tensor([1.0]), start=torch.tensor([0.0]))
    >>> round(frozen.fitted(1.0).item(), 3)  # 1 - exp(-2t)
    0.865
    >>> frozen.coefficients(float("inf")).tolist(), frozen.squared_norm(float("inf")).item()
    ([0.5], 0.5)
    """

    values: Tensor
    vectors: Tensor
    y: Tensor
    start: Tensor

    def __repr__(self) -> str:
        low, high = float(self.values[0]), float(self.values[-1])
        return f"FrozenKernel(n={len(self.y)}, eigenvalues {low:.4g} to {high:.4g})"

    @property
    def residual(self) -> Tensor:
        r"""Return :math:`r=y-\hat y(0)`, what is left to learn."""
        return self.y - self.start

    @property
    def singular(self) -> bool:
        """Whether the least eigenvalue is zero to working precision."""
        floor = len(self.y) * torch.finfo(self.values.dtype).eps * float(self.values[-1])
        return not float(self.values[0]) > floor

    def coefficients(self, t: Times) -> Tensor:
        r"""Return :math:`\alpha_t=H^{-1}(I-e^{-Ht})r`, one number per sample."""
        return (self._gain(t) * (self.vectors.mT @ self.residual)) @ self.vectors.mT

    def fitted(self, t: Times) -> Tensor:
        r"""Return :math:`\hat y(t)=y-e^{-Ht}r` on the sample.

        For large t the distance to y is computed, not the distance to the start: nothing cancels.
        """
        clock = _clock(t, self.values)
        if bool(torch.isinf(clock).any()):
            self._invertible("the limit t = ∞")
        left = torch.exp(-_exponent(clock, self.values)) * (self.vectors.mT @ self.residual)
        return self.y - left @ self.vectors.mT

    def predict(self, k: Tensor, start: Tensor, t: Times) -> Tensor:
        r"""Return :math:`\hat f_t(x)=f_0(x)+k_0(x,X)\alpha_t` at other inputs.

        ``k`` (p, n) is :math:`k_0(x,X)`: other inputs in rows, the sample in columns; ``start``
        (p,) is :math:`f_0(x)`. ``ValueError`` for other shapes.
        """
        n = len(self.y)
        if k.ndim != 2 or k.shape[1] != n or start.shape != k.shape[:1]:
            raise ValueError(
                f"k must be (p, {n}), other inputs in rows and the sample in columns, and start "
                f"(p,); got {tuple(k.shape)} and {tuple(start.shape)}."
            )
        return start + self.coefficients(t) @ k.mT

    def squared_norm(self, t: Times) -> Tensor:
        r"""Return :math:`\alpha_t^\top H\alpha_t`, the squared norm of :math:`\hat f_t-f_0`.

        It grows with t from 0 to :math:`B^2=r^\top H^{-1}r`, the value at ``math.inf``.
        """
        modes = self._gain(t) * (self.vectors.mT @ self.residual)
        return (self.values * modes.square()).sum(dim=-1)

    def _gain(self, t: Times) -> Tensor:
        r"""Return :math:`(1-e^{-\lambda t})/\lambda` by eigenvalue, which is t at λ = 0."""
        clock, lam = _clock(t, self.values), self.values
        if bool(torch.isinf(clock).any()):
            self._invertible("the limit t = ∞")
        safe = torch.where(lam > 0, lam, torch.ones_like(lam))
        return torch.where(lam > 0, -torch.expm1(-_exponent(clock, safe)) / safe, clock[..., None])

    def _invertible(self, what: str) -> None:
        if self.singular:
            low, high = float(self.values[0]), float(self.values[-1])
            raise ValueError(
                f"{what} needs an invertible kernel, but this one is singular to working "
                f"precision: its eigenvalues run from {low:.3g} to {high:.3g}. Drop repeated (or "
                "parallel) inputs, or take a finite time."
            )


def freeze(H: Tensor, y: Tensor, start: Tensor) -> FrozenKernel:
    r"""Freeze the kernel H (n, n) of the start; ``start`` (n,) are the predictions there.

    gao2023.lemma4.2. ``H`` is ``empirical_ntk(model, X)``, ``start`` is ``model(X)``, ``y`` (n,).
    ``ValueError`` where the shapes do not agree, or H is not symmetric or has a negative
    eigenvalue.

    >>> freeze(torch.diag(torch.tensor([1.0, 3.0])), torch.ones(2), torch.zeros(2))
    FrozenKernel(n=2, eigenvalues 1 to 3)
    """
    n = len(y)
    if y.shape != (n,) or H.shape != (n, n) or start.shape != (n,):
        raise ValueError(
            f"with {n} labels H must be ({n}, {n}) and y, start ({n},); got {tuple(H.shape)}, "
            f"{tuple(y.shape)} and {tuple(start.shape)}."
        )
    H, y, start = H.detach(), y.detach(), start.detach()
    gap, size = float((H - H.mT).abs().max()), float(H.abs().max())
    if not gap <= 1e-6 * size:  # a NaN as well
        raise ValueError(f"H differs from its transpose by {gap:.3g}: it is not a kernel.")
    values, vectors = torch.linalg.eigh(symmetric_part(H))
    if float(values[0]) < -1e-8 * float(values[-1]):
        raise ValueError(
            f"H has the eigenvalue {float(values[0]):.3g}; a tangent kernel is positive "
            "semidefinite. Check that H belongs to one model and one set of inputs."
        )
    return FrozenKernel(values.clamp(min=0), vectors, y, start)


def _clock(t: Times, like: Tensor) -> Tensor:
    clock = torch.as_tensor(t, dtype=like.dtype, device=like.device)
    if clock.ndim > 1 or not bool((clock >= 0).all()):
        raise ValueError(f"times must be at least 0, one or a list of them; got {t!r}.")
    return clock


def _exponent(clock: Tensor, lam: Tensor) -> Tensor:
    """Return λt for every time and eigenvalue, with 0·∞ = 0: a direction that does not move."""
    both = clock[..., None] * lam
    return torch.where(lam > 0, both, torch.zeros_like(both))
