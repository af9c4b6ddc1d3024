r"""What a model may know by heart: its gradient and its tangent kernel, from states and adjoints.

For a loss :math:`\mathcal L=\tfrac12\|e\|^2`, :math:`e=\hat y-y`, and a dense cell
:math:`z=\sigma(Wz+q)` the sources give the gradients with Kronecker products of size
:math:`nm\times nm`. Nothing of the kind is needed. Let :math:`Z` hold the equilibria in its rows
and :math:`D` the slopes :math:`\sigma'(Wz_i+q_i)`. The adjoint states, rows of :math:`V`, solve

.. math:: V=D\circ(\mathbf 1a^\top+VW),\qquad v_i=D_i(I-W^\top D_i)^{-1}a ,

and every gradient is a product of :math:`V`, :math:`Z`, :math:`X` and :math:`e`.

A model that has such formulas says so by inheriting from ``ClosedGradient`` or ``ClosedKernel``.
Any other model is differentiated by :mod:`deqbook.implicit`, as exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deqbook.implicit import IFT
from deqbook.models.base import EquilibriumModel
from deqbook.solvers import DEFAULT, NotConverged, Solver, default_tol, fixed_point
from deqbook.wellposed import Affine

__all__ = [
    "AffineCell",
    "ClosedGradient",
    "ClosedKernel",
    "Tangents",
    "active",
    "adjoint_states",
    "margin",
    "one_application_short",
]


@dataclass(frozen=True)
class Tangents:
    """What gradient and kernel are made of, a row per sample: inputs, injections, states, adjoints.

    ``x`` is (n, d), ``z`` (n, m), ``q`` as the model injects, ``v`` (n, m). A model with k outputs
    has k adjoints per sample, outputs inside: ``v`` (nk, m).

    >>> at = Tangents(torch.ones(3, 2), torch.ones(3, 5), torch.ones(3, 5), torch.ones(3, 5))
    >>> at.rows(slice(0, 2)).z.shape
    torch.Size([2, 5])
    """

    x: Tensor
    q: Tensor
    z: Tensor
    v: Tensor

    def rows(self, index: slice) -> Tangents:
        """Return the same for some of the samples."""
        return Tangents(self.x[index], self.q[index], self.z[index], self.v[index])


class ClosedKernel(ABC):
    """A model whose tangent kernel has a closed form, and the adjoint states it is made of.

    >>> from deqbook.models import OptEq
    >>> model, x = OptEq.init(m=3, d=2, k=2, seed=0), torch.ones(4, 2, dtype=torch.float64)
    >>> z, q = model.solve(x).z, model.inject(x)
    >>> isinstance(model, ClosedKernel), model.adjoints(z, q).shape
    (True, torch.Size([8, 3]))
    """

    @abstractmethod
    def adjoints(self, z: Tensor, q: Tensor, *, tol: float | None = None) -> Tensor:
        """Return the adjoint states, (n, m) or (nk, m), at the equilibria z of the injections q."""

    @abstractmethod
    def gram_blocks(self, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
        r"""Return :math:`\partial_p\hat y(s)\,\partial_p\hat y(t)^\top` by parameter name p."""


class AffineCell(EquilibriumModel):
    r"""A model with the cell :math:`z=\sigma(Wz+q)` and a scalar output, :math:`a^\top z` and more.

    ``a`` (m,) is the derivative of the output in the state.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = VanillaDEQ(0.5 * one, one, one[0])  # z = relu(z/2 + 1) = 2
    >>> round(model.adjoints(2 * one, one).item(), 3)  # a / (1 - w)
    2.0
    """

    a: nn.Parameter

    @abstractmethod
    def structure(self) -> Affine:
        """Return the matrix that multiplies the state, and the activation."""

    def adjoints(self, z: Tensor, q: Tensor, *, tol: float | None = None) -> Tensor:
        r"""Return :math:`v_i=D_i(I-W^\top D_i)^{-1}a`, in rows."""
        shape = self.structure()
        return adjoint_states(
            shape.W, shape.slopes(z, q), self.a, solver=self.adjoint_solver(), tol=tol
        )

    def pull_to_weights(
        self, p: Tensor, z: Tensor, q: Tensor, weights: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        r"""Return the cotangents of ``weights()`` for the cotangent ``p`` of :math:`Wz+q`, (n, m).

        Here by recording the cell, which costs a product; where W is the weight itself it is
        :math:`p^\top z`, and a model says so.
        """
        slopes = self.structure().slopes(z, q)
        v = torch.where(slopes == 0, 0.0, p / slopes)  # the cell multiplies it by its slopes again
        with torch.enable_grad():
            given = tuple(w.detach().requires_grad_() for w in weights)
            image = self.f(z.detach(), q.detach(), *given)
        return torch.autograd.grad(image, given, v, materialize_grads=True)

    def adjoint_solver(self) -> Solver | None:
        """Return the solver of the model's own adjoint."""
        own = self.default_adjoint
        return own.solver if isinstance(own, IFT) else None


class ClosedGradient(AffineCell):
    """A dense model whose gradient is a product of states, adjoint states, inputs and errors.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = VanillaDEQ(0.5 * one, one, one[0])  # a u x/(1 - w): slopes 4, 2, 2 in w, u, a
    >>> grads = model.gradients(Tangents(x=one, q=one, z=2 * one, v=2 * one), e=one[0])
    >>> {name: g.item() for name, g in grads.items()}
    {'W': 4.0, 'U': 2.0, 'a': 2.0}
    """

    @abstractmethod
    def gradients(self, at: Tangents, e: Tensor) -> dict[str, Tensor]:
        r"""Return :math:`\nabla\tfrac12\|e\|^2` by parameter name; ``e`` (n,) is the error."""


@dataclass(frozen=True)
class _AdjointCell:
    """The map v ↦ D ∘ (a + vW), able to drop finished samples; ``a`` may have a row per sample."""

    W: Tensor
    slopes: Tensor
    a: Tensor

    def __call__(self, v: Tensor) -> Tensor:
        return torch.addmm(self.a, v, self.W).mul_(self.slopes)

    def rows(self, index: Tensor) -> _AdjointCell:
        a = self.a[index] if self.a.ndim == 2 else self.a
        return _AdjointCell(self.W, self.slopes[index], a)


@torch.no_grad()
def adjoint_states(
    W: Tensor,
    slopes: Tensor,
    a: Tensor,
    *,
    v0: Tensor | None = None,
    solver: Solver | None = None,
    tol: float | None = None,
    contraction: float | None = None,
    max_steps: int = 1000,
) -> Tensor:
    r"""Solve :math:`V=D\circ(\mathbf 1a^\top+VW)` for all samples at once.

    ``W`` is (m, m), ``slopes`` (n, m) are the rows of D, ``a`` is (m,) or (n, m). The equation is
    iterated by ``solver`` (``Adaptive()`` by default); where W is not a contraction, pass
    ``Newton()`` or ``Newton("gmres")``, which solve the linear system. ``contraction``, a bound of
    :math:`\max D\,\|W\|` below 1, saves the product that only verifies; ``ValueError`` outside
    (0, 1). ``NotConverged`` where the solve fails.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(adjoint_states(0.5 * one, slopes=one, a=one[0]).item(), 3)  # v = 1 + v/2
    2.0
    """
    map_ = _AdjointCell(W, slopes, a)
    start = slopes * a if v0 is None else v0
    solver = DEFAULT if solver is None else solver
    tol = one_application_short(tol, contraction, W.dtype)
    try:
        found = fixed_point(map_, start, solver=solver, tol=tol, max_steps=max_steps)
    except NotConverged as error:
        raise NotConverged(f"the adjoint states: {error}", error.solution) from None
    return found.z if contraction is None or found.image is None else found.image


def one_application_short(
    tol: float | None, contraction: float | None, dtype: torch.dtype
) -> float | None:
    """Return the tolerance from which one more application of the map leads to ``tol``.

    It is ``tol / contraction``, and at most 1/2; ``tol`` itself without a ``contraction``, which
    must lie in (0, 1), else ``ValueError``.

    >>> one_application_short(1e-8, 0.5, torch.float64)
    2e-08
    """
    if contraction is None:
        return tol
    if not 0 < contraction < 1:
        raise ValueError(
            f"contraction must be in (0, 1), got {contraction!r}; leave it out where ‖W‖ is not "
            "known to be below 1."
        )
    return min(0.5, (default_tol(dtype) if tol is None else tol) / contraction)


@torch.no_grad()
def margin(model: AffineCell, x: Tensor, z: Tensor) -> float:
    r"""Return :math:`\min|Wz+q|` over samples and units: how far the state is from a kink.

    ``x`` is (n, d), ``z`` (n, m), the equilibria as a rule.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> margin(VanillaDEQ(0.5 * one, one, one[0]), one, z=2 * one)  # z/2 + x
    2.0
    """
    return float(model.structure().preactivation(z, model.inject(x)).abs().min())


@torch.no_grad()
def active(model: AffineCell, x: Tensor, z: Tensor) -> Tensor:
    """Return which units are on at the state z: those with a positive pre-activation.

    ``x`` is (n, d), ``z`` and the result (n, m).

    >>> from deqbook.models import VanillaDEQ
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> active(VanillaDEQ(0 * eye, eye, eye[0]), x=torch.tensor([[1.0, -1.0]]).double(), z=eye[:1])
    tensor([[ True, False]])
    """
    return model.structure().preactivation(z, model.inject(x)) > 0
