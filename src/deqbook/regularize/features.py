r"""Feature regularisers R(z): what one may want an equilibrium to minimise (xie2022, Section 4).

Each has a value, a gradient and the Lipschitz constant of the gradient. Rows are samples. A value
is one number per sample, except for ``Decorrelation``, which looks at the whole batch and returns
a single number. ``convex`` says what the selection theorem needs to know; two of the regularisers
that are used in practice are not (:class:`InverseNorm`, :class:`Decorrelation`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

__all__ = [
    "Decorrelation",
    "HalfSquaredNorm",
    "InverseNorm",
    "RankOne",
    "Regulariser",
    "Zero",
    "positive_step",
]


class Regulariser(Protocol):
    """A differentiable function of states: Z is (n, m), one row a sample.

    >>> R: Regulariser = HalfSquaredNorm()
    >>> R.convex, R.smoothness, R.gradient(torch.ones(1, 2)).tolist()
    (True, 1.0, [[1.0, 1.0]])
    """

    @property
    def convex(self) -> bool:
        """Whether R is convex."""
        ...

    @property
    def smoothness(self) -> float:
        """Return L_R, a Lipschitz constant of the gradient (inf if there is none)."""
        ...

    def value(self, Z: Tensor) -> Tensor:
        """Return R, per sample or for the batch."""
        ...

    def gradient(self, Z: Tensor) -> Tensor:
        """Return ∇R, of the shape of Z."""
        ...


@dataclass(frozen=True)
class Zero:
    """R = 0: the iteration then minimises the norm, through its own decay term.

    Every positive number is a Lipschitz constant of the gradient 0; ``smoothness`` fixes the step.

    >>> Zero().value(torch.ones(3, 2)).tolist()
    [0.0, 0.0, 0.0]
    """

    smoothness: float = 1.0
    convex: ClassVar[bool] = True

    def value(self, Z: Tensor) -> Tensor:
        """Return 0 for every sample."""
        return torch.zeros_like(Z[..., 0])

    def gradient(self, Z: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros_like(Z)


@dataclass(frozen=True)
class HalfSquaredNorm:
    r""":math:`R(z)=\tfrac12\|z\|^2`.

    >>> Z, R = torch.tensor([[3.0, 4.0]]), HalfSquaredNorm()
    >>> R.value(Z).tolist(), R.prox(Z).tolist()
    ([12.5], [[1.5, 2.0]])
    """

    convex: ClassVar[bool] = True
    smoothness: ClassVar[float] = 1.0

    def value(self, Z: Tensor) -> Tensor:
        """Return ½‖z‖² for every sample."""
        return 0.5 * Z.square().sum(-1)

    def gradient(self, Z: Tensor) -> Tensor:
        """Return z."""
        return Z

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return z/(1 + step)."""
        return Z / (1 + positive_step(step))


@dataclass(frozen=True)
class RankOne:
    r""":math:`R(z)=\tfrac12(\langle w,z\rangle-\tau)^2`: convex, not strongly convex; w is (m,).

    >>> R = RankOne(torch.tensor([3.0, 4.0]))
    >>> R.smoothness, R.value(torch.tensor([[1.0, 0.0], [4.0, -3.0]])).tolist()
    (25.0, [4.5, 0.0])
    """

    w: Tensor
    tau: float = 0.0
    convex: ClassVar[bool] = True

    @property
    def smoothness(self) -> float:
        """Return ‖w‖²."""
        return float(self.w.square().sum())

    def value(self, Z: Tensor) -> Tensor:
        """Return ½(⟨w,z⟩-τ)² for every sample."""
        return 0.5 * (Z @ self.w - self.tau).square()

    def gradient(self, Z: Tensor) -> Tensor:
        """Return (⟨w,z⟩-τ)w."""
        return (Z @ self.w - self.tau)[..., None] * self.w

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return z - step (⟨w,z⟩-τ)/(1 + step‖w‖²) w."""
        step = positive_step(step)
        return Z - step / (1 + step * self.smoothness) * self.gradient(Z)


@dataclass(frozen=True)
class InverseNorm:
    r""":math:`R(z)=1/(\|z\|^2+\varepsilon)`, which prefers long states. It is **not convex**.

    The Hessian is :math:`-\tfrac2{q^2}I+\tfrac8{q^3}zz^\top` with :math:`q=\|z\|^2+\varepsilon`;
    at 0 it is :math:`-\tfrac2{\varepsilon^2}I`, and nowhere larger in norm. ``ValueError`` unless
    ε is positive.

    >>> R, Z = InverseNorm(eps=1.0), torch.tensor([[1.0], [0.0], [-1.0]])
    >>> R.value(Z).tolist(), R.smoothness  # largest in the middle
    ([0.5, 1.0, 0.5], 2.0)
    """

    eps: float
    convex: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ValueError(
                f"eps must be positive, got {self.eps!r}: at z = 0 the value is 1/eps."
            )

    @property
    def smoothness(self) -> float:
        """Return 2/ε², attained at 0."""
        return 2 / self.eps**2

    def value(self, Z: Tensor) -> Tensor:
        """Return 1/(‖z‖²+ε) for every sample."""
        return 1 / (Z.square().sum(-1) + self.eps)

    def gradient(self, Z: Tensor) -> Tensor:
        """Return -2z/(‖z‖²+ε)²."""
        return -2 * Z / (Z.square().sum(-1, keepdim=True) + self.eps).square()


@dataclass(frozen=True)
class Decorrelation:
    r""":math:`F_D=\tfrac12\|DZ^\top ZD-I\|_F^2`: the squared cosines of all pairs of features.

    Z is (n, m), rows are samples, so features are *columns*;
    :math:`D=\mathrm{diag}\big((\|z^{\cdot i}\|^2+\varepsilon^2)^{-1/2}\big)`. The guard ε keeps a
    feature that is 0 on the whole batch finite (its gradient is 0). For ε = 0,
    :math:`F_D=\sum_{i<j}\cos^2\angle(z^{\cdot i},z^{\cdot j})`.

    It depends on directions only, so it is **not convex**, and its gradient grows like the inverse
    of the length of a feature: no Lipschitz constant holds for all states. A schedule for it has
    to be chosen by hand. ``ValueError`` for a negative ε, or a Z that is not a batch.

    >>> Z = torch.tensor([[1.0, 1.0], [0.0, 1.0]])  # features at 45 degrees
    >>> round(float(Decorrelation().value(Z)), 4), round(float(Decorrelation().value(7 * Z)), 4)
    (0.5, 0.5)
    """

    eps: float = 1e-6
    convex: ClassVar[bool] = False
    smoothness: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        if not self.eps >= 0:
            raise ValueError(f"eps must not be negative, got {self.eps!r}.")

    def _directions(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features as rows, Y = DZᵀ, and the guarded lengths 1/D as a column."""
        if Z.ndim != 2:
            raise ValueError(
                "features are decorrelated over a batch: Z must be (samples, features), "
                f"got shape {tuple(Z.shape)}."
            )
        length = (Z.square().sum(0) + self.eps**2).sqrt()[:, None]
        return Z.mT / length, length

    def value(self, Z: Tensor) -> Tensor:
        """Return F_D of the batch, a scalar."""
        Y, _ = self._directions(Z)
        E = Y @ Y.mT - torch.eye(len(Y), dtype=Z.dtype, device=Z.device)
        return 0.5 * E.square().sum()

    def gradient(self, Z: Tensor) -> Tensor:
        r"""Return ∇F_D, with D differentiated as well.

        :math:`D(A-\mathrm{diag}(A\circ Y\mathbf 1)Y)`, transposed, with :math:`A=2EY`,
        :math:`E=YY^\top-I`. Holding D fixed would leave out the second term.
        """
        Y, length = self._directions(Z)
        A = 2 * (Y @ Y.mT - torch.eye(len(Y), dtype=Z.dtype, device=Z.device)) @ Y
        return ((A - (A * Y).sum(1, keepdim=True) * Y) / length).mT


def positive_step(step: float) -> float:
    """Return the step of a proximal map; ``ValueError`` unless it is positive and finite.

    >>> positive_step(0.5)
    0.5
    """
    if not 0 < step < math.inf:
        raise ValueError(f"a proximal step must be positive and finite, got {step!r}.")
    return step
