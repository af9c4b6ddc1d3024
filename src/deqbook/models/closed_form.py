r"""Gradients in closed form: one batched adjoint solve, then matrix products.

For a loss :math:`\mathcal L=\tfrac12\|e\|^2`, :math:`e=\hat y-y`, and a dense cell
:math:`z=\sigma(Wz+q)` the sources give the gradients with Kronecker products of size
:math:`nm\times nm`. Nothing of the kind is needed. Let :math:`D` hold the slopes
:math:`\sigma'(Wz_i+q_i)` in its rows. The adjoint states, rows of :math:`V`, solve

.. math:: V=D\circ(\mathbf 1a^\top+VW),\qquad v_i=D_i(I-W^\top D_i)^{-1}a ,

and every gradient is a product of :math:`V`, :math:`Z`, :math:`X` and :math:`e`.

From one training step to the next the direct part :math:`D\circ\mathbf 1a^\top` of :math:`V` moves
most, and it is known without solving anything. So a warm start renews it and carries over only the
rest, the **feedback** :math:`D\circ VW`; that saves the first product of the adjoint solve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from deqbook.activations import Activation
from deqbook.models.base import EquilibriumModel, Method
from deqbook.models.dense import MonDEQ, ReLUImplicit, VanillaDEQ
from deqbook.solvers import Anderson, NotConverged, Solver, fixed_point
from deqbook.wellposed import Affine

__all__ = ["Gradient", "adjoint_states", "gradient", "margin"]


@dataclass(frozen=True)
class Gradient:
    """The loss, its gradient by parameter name, and what warm-starts the next step.

    ``feedback`` is D ∘ VW, what remains of ``v`` without its direct part D ∘ a.
    """

    loss: float
    error: Tensor
    grads: Mapping[str, Tensor]
    z: Tensor
    v: Tensor
    feedback: Tensor | None = None


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
) -> Tensor:
    r"""Solve :math:`V=D\circ(\mathbf 1a^\top+VW)` for all samples at once.

    With 0/1 slopes ``solver=None`` first tries the iteration; where W is not a contraction, pass
    ``Newton()`` or ``Newton("gmres")``, which solve the linear system.
    """
    map_ = _AdjointCell(W, slopes, a)
    start = slopes * a if v0 is None else v0
    try:
        return fixed_point(
            map_, start, solver=Anderson() if solver is None else solver, tol=tol, max_steps=1000
        ).z
    except NotConverged as error:
        raise NotConverged(f"the adjoint states: {error}", error.solution) from None


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
    z0: Tensor | None = None,
    v0: Tensor | None = None,
    solver: Method | None = None,
    adjoint_solver: Solver | None = None,
    tol: float | None = None,
) -> Gradient:
    r"""Return :math:`\mathcal L=\tfrac12\|\hat y-y\|^2` and its gradient, by the closed forms.

    ``last``, the gradient of the step before, warm-starts both solves; ``z0`` and ``v0`` do so with
    states of your own. Only what the model trains is returned.
    """
    if y.shape != x.shape[:1]:
        raise ValueError(
            f"y must be ({x.shape[0]},), one label per row of x; got {tuple(y.shape)}."
        )
    shape = model.structure()
    if not isinstance(shape, Affine):
        raise _no_closed_form(model)
    if last is not None and z0 is None:
        z0 = last.z
    q = model._injected(x)
    found = model._find(q, z0, solver, tol, 2000, throw=True)
    if found.image is not None and shape.sigma.slope_at is not None:
        # One more application of the cell is already there, and it tells the slopes.
        z, slopes = found.image, shape.sigma.slope_at(found.image)
    else:
        z = found.z
        slopes = shape.sigma.slope(z @ shape.W.mT + q)
    e = model.readout(z, q) - y
    if adjoint_solver is None:
        adjoint_solver = getattr(model.default_adjoint, "solver", None)
    direct = slopes * model.a
    if v0 is None:
        v0 = direct if last is None or last.feedback is None else direct + last.feedback
    v = adjoint_states(shape.W, slopes, model.a, v0=v0, solver=adjoint_solver, tol=tol)
    grads = _assemble(model, x, z, q, v, e)
    wanted = {k: g for k, g in grads.items() if getattr(model, k).requires_grad}
    return Gradient(float(0.5 * e.pow(2).sum()), e, wanted, z, v, v - direct)


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
    through = (v + model.c).mul_((e / root)[:, None]).mul_(slopes)
    return {
        "W": (v * (model.scale * e)[:, None]).mT @ z,
        "U": through.mT @ x,
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
