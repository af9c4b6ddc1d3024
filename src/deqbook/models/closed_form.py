r"""Gradients in closed form: two batched solves, then matrix products.

For a loss :math:`\mathcal L=\tfrac12\|e\|^2`, :math:`e=\hat y-y`, and a dense cell
:math:`z=\sigma(Wz+q)` the sources give the gradients with Kronecker products of size
:math:`nm\times nm`. Nothing of the kind is needed. Let :math:`Z` hold the equilibria in its rows
and :math:`D` the slopes :math:`\sigma'(Wz_i+q_i)`. The adjoint states, rows of :math:`V`, solve

.. math:: V=D\circ(\mathbf 1a^\top+VW),\qquad v_i=D_i(I-W^\top D_i)^{-1}a ,

and every gradient is a product of :math:`V`, :math:`Z`, :math:`X` and :math:`e`.

**Warm starts.** Each of the two equations has a direct part, :math:`Q` and
:math:`D\circ\mathbf 1a^\top`, known without solving anything, and a **feedback**, :math:`H=ZW^\top`
and :math:`F=D\circ VW`. From one training step to the next the direct parts move most. So a step
renews them and takes over the feedback alone, or, where training goes on as it did,
:math:`2H_t-H_{t-1}` and :math:`2F_t-F_{t-1}`. The forward equation is solved for its feedback,
:math:`H=\sigma(Q+H)W^\top`. Since σ is 1-Lipschitz, the residual of H bounds that of
:math:`Z=\sigma(Q+H)`.

**The product that only verifies.** A solver has :math:`f(z)` at hand when it sees that
:math:`\|f(z)-z\|` is small. If f contracts by L, the residual of :math:`f(z)` itself is at most L
times that, so :math:`\|f(z)-z\|\le\mathrm{tol}/L` is enough, and what meets ``tol`` is
:math:`f(z)`. Both equations contract by :math:`\|W\|`; ``NormBound`` follows it along a path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from deqbook.activations import Activation
from deqbook.linalg import operator_norm
from deqbook.models.base import EquilibriumModel, Method
from deqbook.models.dense import MonDEQ, ReLUImplicit, VanillaDEQ
from deqbook.solvers import Anderson, NotConverged, Solver, default_tol, fixed_point
from deqbook.splitting import ForwardBackward, PeacemanRachford
from deqbook.wellposed import Affine

__all__ = ["Feedback", "Gradient", "NormBound", "adjoint_states", "gradient", "margin"]


@dataclass(frozen=True)
class Feedback:
    """What a training step hands to the next: ZWᵀ of the state and D ∘ VW of the adjoint state."""

    state: Tensor
    adjoint: Tensor

    def ahead(self, before: Feedback) -> Feedback:
        """Go on in a straight line: twice this one less the one before."""
        return Feedback(
            torch.lerp(before.state, self.state, 2.0), torch.lerp(before.adjoint, self.adjoint, 2.0)
        )


@dataclass(frozen=True)
class Gradient:
    """The loss, its gradient by parameter name, and what warm-starts the next step."""

    loss: float
    error: Tensor
    grads: Mapping[str, Tensor]
    z: Tensor
    v: Tensor
    feedback: Feedback | None = None


@dataclass(frozen=True)
class NormBound:
    r"""A bound of :math:`\|W\|` along a path, from one decomposition at its start.

    :math:`\|W\|\le\|W_0\|+\|W-W_0\|_F`, which training moves by little.
    """

    start: Tensor
    norm: float

    @classmethod
    def at(cls, W: Tensor) -> NormBound:
        """Start here."""
        return cls(W.detach().clone(), operator_norm(W.detach()))

    def __call__(self, W: Tensor) -> float:
        """Return the bound at W."""
        return self.norm + float(torch.dist(W.detach(), self.start))


@dataclass(frozen=True)
class _StateFeedback:
    """The map h ↦ σ(q + h)Wᵀ, able to drop finished samples."""

    W: Tensor
    q: Tensor
    sigma: Activation

    def __call__(self, h: Tensor) -> Tensor:
        return self.sigma(self.q + h) @ self.W.mT

    def rows(self, index: Tensor) -> _StateFeedback:
        return _StateFeedback(self.W, self.q[index], self.sigma)


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


def adjoint_states(
    W: Tensor,
    slopes: Tensor,
    a: Tensor,
    *,
    v0: Tensor | None = None,
    solver: Solver | None = None,
    tol: float | None = None,
    contraction: float | None = None,
) -> Tensor:
    r"""Solve :math:`V=D\circ(\mathbf 1a^\top+VW)` for all samples at once.

    With 0/1 slopes ``solver=None`` first tries the iteration; where W is not a contraction, pass
    ``Newton()`` or ``Newton("gmres")``, which solve the linear system. ``contraction``, a bound of
    :math:`\max D\,\|W\|` below 1, saves the product that only verifies.
    """
    map_ = _AdjointCell(W, slopes, a)
    start = slopes * a if v0 is None else v0
    solver = Anderson() if solver is None else solver
    tol = _one_application_short(tol, contraction, W.dtype)
    try:
        found = fixed_point(map_, start, solver=solver, tol=tol, max_steps=1000)
    except NotConverged as error:
        raise NotConverged(f"the adjoint states: {error}", error.solution) from None
    return found.z if contraction is None or found.image is None else found.image


def _one_application_short(
    tol: float | None, contraction: float | None, dtype: torch.dtype
) -> float | None:
    """Return the tolerance from which one more application of the map leads to ``tol``."""
    if contraction is None:
        return tol
    if not 0 < contraction < 1:
        raise ValueError(
            f"contraction must be in (0, 1), got {contraction!r}; leave it out where ‖W‖ is not "
            "known to be below 1."
        )
    return min(0.5, (default_tol(dtype) if tol is None else tol) / contraction)


def margin(model: ReLUImplicit | VanillaDEQ | MonDEQ, x: Tensor, z: Tensor) -> float:
    """Return the smallest |pre-activation|: how far the equilibrium is from the nearest kink."""
    with torch.no_grad():
        return float(_preactivation(model, x, z)[0].abs().min())


def _preactivation(
    model: ReLUImplicit | VanillaDEQ | MonDEQ, x: Tensor, z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Activation]:
    """Return Wz + q, the matrix that multiplies z, the injection and the activation."""
    shape = model.structure()
    if not isinstance(shape, Affine):
        raise _no_closed_form(model)
    q = model.inject(x)
    return z @ shape.W.mT + q, shape.W, q, shape.sigma


@torch.no_grad()
def gradient(
    model: ReLUImplicit | VanillaDEQ | MonDEQ,
    x: Tensor,
    y: Tensor,
    *,
    last: Gradient | None = None,
    before: Gradient | None = None,
    z0: Tensor | None = None,
    v0: Tensor | None = None,
    solver: Method | None = None,
    adjoint_solver: Solver | None = None,
    tol: float | None = None,
    contraction: float | None = None,
) -> Gradient:
    r"""Return :math:`\mathcal L=\tfrac12\|\hat y-y\|^2` and its gradient, by the closed forms.

    ``last``, the gradient of the step before, warm-starts both solves; with ``before``, the one
    before that, they start where a straight line leads: give it where training goes on as it did,
    with steps of one length. ``z0`` and ``v0`` start the solves from states of your own.
    ``contraction``, a bound of :math:`L_\sigma\|W\|` below 1, spares both solves the product that
    only verifies. All these change the work, and the gradient within ``tol`` only. What the model
    trains is returned.
    """
    if y.shape != x.shape[:1]:
        raise ValueError(
            f"y must be ({x.shape[0]},), one label per row of x; got {tuple(y.shape)}."
        )
    shape = model.structure()
    if not isinstance(shape, Affine):
        raise _no_closed_form(model)
    start = None if last is None else last.feedback
    if start is not None and before is not None and before.feedback is not None:
        start = start.ahead(before.feedback)
    q = model._injected(x)
    short = _one_application_short(tol, contraction, q.dtype)
    h = _state_feedback(model, shape, q, z0, start, solver, short)
    z = shape.sigma(q + h)
    slope_at = shape.sigma.slope_at
    slopes = shape.sigma.slope(q + h) if slope_at is None else slope_at(z)
    e = model.readout(z, q) - y
    if adjoint_solver is None:
        adjoint_solver = getattr(model.default_adjoint, "solver", None)
    if v0 is None and start is not None:
        v0 = torch.addcmul(start.adjoint, slopes, model.a)
    v = adjoint_states(
        shape.W, slopes, model.a, v0=v0, solver=adjoint_solver, tol=tol, contraction=contraction
    )
    grads = _assemble(model, x, z, q, v, e)
    wanted = {k: g for k, g in grads.items() if getattr(model, k).requires_grad}
    handed_on = Feedback(h, torch.addcmul(v, slopes, model.a, value=-1))
    return Gradient(float(0.5 * e.pow(2).sum()), e, wanted, z, v, handed_on)


def _state_feedback(
    model: EquilibriumModel,
    shape: Affine,
    q: Tensor,
    z0: Tensor | None,
    start: Feedback | None,
    solver: Method | None,
    tol: float | None,
) -> Tensor:
    """Return ZWᵀ: its own equation is solved, except where a splitting finds Z."""
    solver = model.default_solver if solver is None else solver
    if isinstance(solver, ForwardBackward | PeacemanRachford):
        if z0 is None and start is not None:
            z0 = shape.sigma(q + start.state)
        return model._find(q, z0, solver, tol, 2000, throw=True).z @ shape.W.mT
    if z0 is not None:
        h0 = z0 @ shape.W.mT
    else:
        h0 = torch.zeros_like(q) if start is None else start.state
    map_ = _StateFeedback(shape.W, q, shape.sigma)
    found = fixed_point(map_, h0, solver=solver, tol=tol, max_steps=2000)
    assert found.image is not None  # what was just verified, one application further
    return found.image


@singledispatch
def _assemble(
    model: EquilibriumModel, x: Tensor, z: Tensor, q: Tensor, v: Tensor, e: Tensor
) -> dict[str, Tensor]:
    raise _no_closed_form(model)


def _no_closed_form(model: EquilibriumModel) -> TypeError:
    return TypeError(
        f"no closed form for {type(model).__name__}; use loss.backward(), which is exact too."
    )


@_assemble.register
def _(
    model: ReLUImplicit, x: Tensor, z: Tensor, q: Tensor, v: Tensor, e: Tensor
) -> dict[str, Tensor]:
    r"""Gao et al. 2022, Lemma 2.3: the input weights act along two paths, the state and φ."""
    root = math.sqrt(model.m)
    slope_at = model.phi.slope_at
    slopes = model.phi.slope(x @ model.U.mT) if slope_at is None else slope_at(root * q)
    weighted = e[:, None] * v
    through = torch.addr(weighted, e, model.c).mul_(slopes)  # e ∘ (v + c) ∘ φ'
    return {
        "W": (weighted.mT @ z).mul_(model.scale),
        "U": (through.mT @ x).div_(root),
        "a": e @ z,
        "c": e @ q,
    }


@_assemble.register
def _(
    model: VanillaDEQ, x: Tensor, z: Tensor, q: Tensor, v: Tensor, e: Tensor
) -> dict[str, Tensor]:
    """Ling et al. 2023, Lemma 2, in the order that is right."""
    weighted = e[:, None] * v
    return {"W": weighted.mT @ z, "U": weighted.mT @ x, "a": e @ z}


@_assemble.register
def _(model: MonDEQ, x: Tensor, z: Tensor, q: Tensor, v: Tensor, e: Tensor) -> dict[str, Tensor]:
    r"""Nguyen 2022, Lemma 3.2.3: with Γ the gradient in W, A gets -A(Γ+Γᵀ) and B gets Γ-Γᵀ."""
    weighted = e[:, None] * v
    gamma = weighted.mT @ z
    return {
        "A": -model.A @ (gamma + gamma.mT),
        "B": gamma - gamma.mT,
        "U": weighted.mT @ x,
        "a": e @ z,
    }
