r"""The loss and its gradient, warm-started from step to step: what training calls.

**Any model** is differentiated by the implicit function theorem. A model with a closed form takes
the fast path below.

**Warm starts.** Each of the two equations of a dense cell has a direct part, :math:`Q` and
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

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deqbook.activations import Activation
from deqbook.implicit import IFT
from deqbook.linalg import operator_norm
from deqbook.models.base import EquilibriumModel
from deqbook.models.closed_form import (
    ClosedGradient,
    Tangents,
    adjoint_states,
    one_application_short,
)
from deqbook.runtime import tensor
from deqbook.solvers import Solver, fixed_point
from deqbook.wellposed import Affine

__all__ = ["Feedback", "Gradient", "NormBound", "gradient"]


@dataclass(frozen=True)
class Feedback:
    """What a training step hands to the next: ZWᵀ of the state and D ∘ VW of the adjoint state.

    Both are (n, m).

    >>> before, now = (Feedback(t * torch.ones(1, 1), torch.zeros(1, 1)) for t in (1.0, 3.0))
    >>> now.ahead(before).state.item()
    5.0
    """

    state: Tensor
    adjoint: Tensor

    def ahead(self, before: Feedback) -> Feedback:
        """Go on in a straight line: twice this one less the one before."""
        return Feedback(
            torch.lerp(before.state, self.state, 2.0), torch.lerp(before.adjoint, self.adjoint, 2.0)
        )


@dataclass(frozen=True)
class Gradient:
    r"""The loss, its gradient by parameter name, and what warm-starts the next step.

    ``v`` holds the adjoint states where the model has a closed form; the implicit function
    theorem needs them for all outputs together only, and keeps none. ``error`` is
    :math:`e=\hat y-y`, shaped as y; ``z`` and ``v`` are (n, m). Made by ``gradient``.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> at = gradient(VanillaDEQ(0.5 * one, one, one[0]), one, one[0])  # z = relu(z/2 + 1), y = 1
    >>> round(at.loss, 3), round(at.error.item(), 3), round(at.z.item(), 3), round(at.v.item(), 3)
    (0.5, 1.0, 2.0, 2.0)
    """

    loss: float
    error: Tensor
    grads: Mapping[str, Tensor]
    z: Tensor
    v: Tensor | None = None
    feedback: Feedback | None = None


@dataclass(frozen=True)
class NormBound:
    r"""A bound of :math:`\|W\|` along a path, from one decomposition at its start.

    :math:`\|W\|\le\|W_0\|+\|W-W_0\|_F`, which training moves by little.

    >>> bound = NormBound.at(torch.diag(torch.tensor([0.5, 0.0])))
    >>> round(bound(torch.diag(torch.tensor([0.5, 0.1]))), 3)  # the norm itself is still 0.5
    0.6
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


def gradient(
    model: EquilibriumModel,
    x: Tensor,
    y: Tensor,
    *,
    last: Gradient | None = None,
    before: Gradient | None = None,
    z0: Tensor | None = None,
    v0: Tensor | None = None,
    solver: Solver | None = None,
    adjoint_solver: Solver | None = None,
    tol: float | None = None,
    contraction: float | None = None,
) -> Gradient:
    r"""Return :math:`\mathcal L=\tfrac12\|\hat y-y\|^2` and its gradient in what the model trains.

    By the closed forms where the model has them, else by the implicit function theorem: both are
    exact. ``last``, the gradient of the step before, warm-starts the solves. For a closed form
    there is more: with ``before``, the gradient before that, they start where a straight line
    leads (give it where training goes on as it did, with steps of one length); ``v0`` starts the
    adjoint states; and ``contraction``, a bound of :math:`L_\sigma\|W\|` below 1, spares both
    solves the product that only verifies. All these change the work, and the gradient within
    ``tol`` only.

    ``x`` is (n, d); ``y`` is (n,), or shaped as the outputs where there is no closed form.
    ``ValueError`` for other labels, ``v0`` or ``contraction`` without a closed form, and
    ``contraction`` outside (0, 1); ``TypeError`` for what is not a floating-point tensor;
    ``NotConverged`` where a solve fails.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = VanillaDEQ(0.5 * one, one, one[0])  # a u x/(1 - w): slopes 4, 2, 2 in w, u, a
    >>> {name: round(g.item(), 3) for name, g in gradient(model, one, y=one[0]).grads.items()}
    {'W': 4.0, 'U': 2.0, 'a': 2.0}
    """
    tensor("x", x), tensor("y", y)
    if y.shape[:1] != x.shape[:1]:
        raise ValueError(
            f"y must be ({x.shape[0]},), one label per row of x; got {tuple(y.shape)}."
        )
    if isinstance(model, ClosedGradient):
        if y.ndim != 1:
            raise ValueError(
                f"y must be ({x.shape[0]},), one label per row of x; got {tuple(y.shape)}."
            )
        start = None if last is None else last.feedback
        if start is not None and before is not None and before.feedback is not None:
            start = start.ahead(before.feedback)
        return _closed(model, x, y, start, z0, v0, solver, adjoint_solver, tol, contraction)
    if any(option is not None for option in (before, v0, contraction)):
        raise ValueError(
            f"before, v0 and contraction serve closed forms, and {type(model).__name__} has none; "
            "leave them out."
        )
    return _implicit(
        model, x, y, last.z if z0 is None and last else z0, solver, adjoint_solver, tol
    )


def _implicit(
    model: EquilibriumModel,
    x: Tensor,
    y: Tensor,
    z0: Tensor | None,
    solver: Solver | None,
    adjoint_solver: Solver | None,
    tol: float | None,
) -> Gradient:
    adjoint = model.adjoint(tol=tol)
    if isinstance(adjoint, IFT) and adjoint_solver is not None:
        adjoint = replace(adjoint, solver=adjoint_solver)
    trained = {k: p for k, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        q = model.injected(x)
        z = model.state(x, z0, solver=solver, adjoint=adjoint, tol=tol)
        e = model.readout(z, q).reshape(y.shape) - y
        loss = 0.5 * e.pow(2).sum()
        grads = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
    return Gradient(loss.item(), e.detach(), dict(zip(trained, grads)), z.detach())


@torch.no_grad()
def _closed(
    model: ClosedGradient,
    x: Tensor,
    y: Tensor,
    start: Feedback | None,
    z0: Tensor | None,
    v0: Tensor | None,
    solver: Solver | None,
    adjoint_solver: Solver | None,
    tol: float | None,
    contraction: float | None,
) -> Gradient:
    shape, q = model.structure(), model.injected(x)
    short = one_application_short(tol, contraction, q.dtype)
    h = _state_feedback(model, shape, q, z0, start, solver, short)
    z = shape.sigma(q + h)
    slope_at = shape.sigma.slope_at
    slopes = shape.sigma.slope(q + h) if slope_at is None else slope_at(z)
    e = model.readout(z, q) - y
    if v0 is None and start is not None:
        v0 = torch.addcmul(start.adjoint, slopes, model.a)
    v = adjoint_states(
        shape.W,
        slopes,
        model.a,
        v0=v0,
        solver=model.adjoint_solver() if adjoint_solver is None else adjoint_solver,
        tol=tol,
        contraction=contraction,
    )
    grads = model.gradients(Tangents(x, q, z, v), e)
    wanted = {k: g for k, g in grads.items() if getattr(model, k).requires_grad}
    handed_on = Feedback(h, torch.addcmul(v, slopes, model.a, value=-1))
    return Gradient(float(0.5 * e.pow(2).sum()), e, wanted, z, v, handed_on)


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


def _state_feedback(
    model: ClosedGradient,
    shape: Affine,
    q: Tensor,
    z0: Tensor | None,
    start: Feedback | None,
    solver: Solver | None,
    tol: float | None,
) -> Tensor:
    """Return ZWᵀ: its own equation is solved, except where a splitting finds Z."""
    solver = model.default_solver if solver is None else solver
    if not solver.any_map:
        if z0 is None and start is not None:
            z0 = shape.sigma(q + start.state)
        return model.solve_injected(q, z0, solver=solver, tol=tol).z @ shape.W.mT
    if z0 is not None:
        h0 = z0 @ shape.W.mT
    else:
        h0 = torch.zeros_like(q) if start is None else start.state
    map_ = _StateFeedback(shape.W, q, shape.sigma)
    found = fixed_point(map_, h0, solver=solver, tol=tol, max_steps=2000)
    assert found.image is not None  # what was just verified, one application further
    return found.image
