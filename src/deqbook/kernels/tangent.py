r"""The tangent kernel of an equilibrium model on a sample: one Gram matrix per parameter.

For a scalar output :math:`\hat y_i` the kernel is
:math:`H_{ij}=\langle\partial_\theta\hat y_i,\partial_\theta\hat y_j\rangle`. The Jacobian has as
many columns as the model has weights and is never formed: with the equilibria :math:`Z` and the
adjoint states :math:`V` in hand, every block is an entrywise product of small Gram matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor

from deqbook.implicit import IFT
from deqbook.models import DeepOptEq, MonDEQ, ReLUImplicit, VanillaDEQ
from deqbook.models.base import EquilibriumModel
from deqbook.models.closed_form import adjoint_states
from deqbook.solvers import fixed_point
from deqbook.wellposed import Affine

__all__ = ["Tangents", "empirical_ntk", "gram_parts", "jacobian_ntk", "parts", "tangents"]


@dataclass(frozen=True)
class Tangents:
    """What the kernel is made of, one row per sample: inputs, injections, states, adjoints.

    A model with k outputs has k adjoints per sample, outputs inside.
    """

    x: Tensor
    q: Tensor
    z: Tensor
    v: Tensor


@torch.no_grad()
def tangents(
    model: EquilibriumModel,
    X: Tensor,
    *,
    z: Tensor | None = None,
    v: Tensor | None = None,
    tol: float | None = None,
) -> Tangents:
    r"""Return the equilibria and the adjoint states :math:`v_i=D_i(I-W^\top D_i)^{-1}a`.

    For OptEq they solve :math:`v=J^\top v+V_o` for every output o, J the Jacobian of the cell.
    States that are already known (``z`` and ``v`` together) are taken as they are.
    """
    q = model.inject(X)
    if z is not None and v is not None:
        return Tangents(X, q, z, v)
    if isinstance(model, DeepOptEq):
        z = model.solve(X, z, tol=tol).z
        return Tangents(X, q, z, _tied_adjoints(model, z, q, tol))
    shape = model.structure()
    if not isinstance(shape, Affine) or not isinstance(model, ReLUImplicit | VanillaDEQ | MonDEQ):
        raise _no_closed_form(model)
    z = model.solve(X, z, tol=tol).z
    slopes = shape.sigma.slope(z @ shape.W.mT + q)
    solver = getattr(model.default_adjoint, "solver", None)
    return Tangents(X, q, z, adjoint_states(shape.W, slopes, model.a, solver=solver, tol=tol))


def gram_parts(
    model: EquilibriumModel, X: Tensor, X2: Tensor | None = None, *, tol: float | None = None
) -> dict[str, Tensor]:
    r"""Return the blocks :math:`\partial_p\hat y(X)\,\partial_p\hat y(X_2)^\top` by parameter name.

    Only what the model trains is listed; ``X2=None`` means X itself.
    """
    rows = tangents(model, X, tol=tol)
    return parts(model, rows, rows if X2 is None else tangents(model, X2, tol=tol))


def empirical_ntk(
    model: EquilibriumModel, X: Tensor, X2: Tensor | None = None, *, tol: float | None = None
) -> Tensor:
    r"""Return the tangent kernel, the sum of its ``gram_parts``."""
    blocks = gram_parts(model, X, X2, tol=tol)
    if not blocks:
        raise _nothing_trained()
    return torch.stack(list(blocks.values())).sum(dim=0)


@torch.no_grad()
def parts(model: EquilibriumModel, s: Tangents, t: Tangents) -> dict[str, Tensor]:
    """Return the blocks of the kernel between the samples of ``s`` and those of ``t``."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    return {name: K for name, K in _blocks(model, s, t).items() if name in trained}


@singledispatch
def _blocks(model: EquilibriumModel, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
    raise _no_closed_form(model)


def _no_closed_form(model: EquilibriumModel) -> TypeError:
    return TypeError(
        f"no closed form of the kernel for {type(model).__name__}; use jacobian_ntk, which forms "
        "the Jacobian."
    )


def _nothing_trained() -> ValueError:
    return ValueError("the model has nothing to train: no parameter requires a gradient.")


@_blocks.register
def _(model: ReLUImplicit, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
    r"""Gao et al. 2022, Lemma 3.1: the input weights act along two paths, the state and φ."""
    root = math.sqrt(model.m)
    p, r = ((k.v + model.c) * model.phi.slope(k.x @ model.U.mT) / root for k in (s, t))
    states = s.z @ t.z.mT
    return {
        "W": model.scale**2 * (s.v @ t.v.mT) * states,
        "U": (p @ r.mT) * (s.x @ t.x.mT),
        "a": states,
        "c": s.q @ t.q.mT,
    }


@_blocks.register
def _(model: VanillaDEQ, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
    """Ling et al. 2023, Section 3: H₂, H₃ and H₁ = G."""
    adjoints, states = s.v @ t.v.mT, s.z @ t.z.mT
    return {"W": adjoints * states, "U": adjoints * (s.x @ t.x.mT), "a": states}


@_blocks.register
def _(model: MonDEQ, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
    r"""Nguyen 2022, Proposition 4, with the Kronecker products multiplied out."""
    vv, zz, vz, zv = s.v @ t.v.mT, s.z @ t.z.mT, s.v @ t.z.mT, s.z @ t.v.mT
    Av, Az, Bv, Bz = s.v @ model.A.mT, s.z @ model.A.mT, t.v @ model.A.mT, t.z @ model.A.mT
    return {
        "A": vv * (Az @ Bz.mT) + zz * (Av @ Bv.mT) + vz * (Az @ Bv.mT) + zv * (Av @ Bz.mT),
        "B": 2 * (vv * zz - vz * zv),
        "U": vv * (s.x @ t.x.mT),
        "a": zz,
    }


@dataclass(frozen=True)
class _Layer:
    """One tied layer at the equilibrium: its weights, input, activations and slopes."""

    W: Tensor
    z: Tensor
    h: Tensor
    slopes: Tensor


def _layers(model: DeepOptEq, z: Tensor, q: Tensor, outputs: int) -> list[_Layer]:
    """Walk through the layers once; rows are repeated, one per output of a sample."""
    found, z = [], z.repeat_interleave(outputs, dim=0)
    widths = [W.shape[0] for W in model.Ws]
    for W, part in zip(model.Ws, q.repeat_interleave(outputs, dim=0).split(widths, dim=1)):
        pre = z @ W.mT + part
        h = model.sigma(pre)
        found.append(_Layer(W, z, h, model.sigma.slope(pre)))
        z = model.alpha * h @ W + (1 - model.alpha) * z
    return found


def _tied_adjoints(model: DeepOptEq, z: Tensor, q: Tensor, tol: float | None) -> Tensor:
    r"""Solve :math:`v=J_1\cdots J_Lv+V_o`, each :math:`J_l=\alpha W_l^\top D_lW_l+(1-\alpha)I`."""
    outputs, alpha = model.V.shape[0], model.alpha
    layers = _layers(model, z, q, outputs)
    source = model.V.detach().repeat(len(z), 1)

    def back(v: Tensor) -> Tensor:
        for layer in reversed(layers):
            v = alpha * (layer.slopes * (v @ layer.W.mT)) @ layer.W + (1 - alpha) * v
        return source + v

    solver = getattr(model.default_adjoint, "solver", None)
    return fixed_point(back, source, solver=solver, tol=tol, max_steps=2000).z


@_blocks.register
def _(model: DeepOptEq, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
    r"""Tied layers use W twice: :math:`\partial\hat y/\partial W_l=\alpha hq^\top+pz^\top`."""
    outputs = model.V.shape[0]
    rows = [_pulled(model, k, outputs) for k in (s, t)]
    x, y = (k.x.repeat_interleave(outputs, dim=0) for k in (s, t))
    same = torch.eye(outputs, dtype=s.z.dtype, device=s.z.device)
    blocks = {"V": torch.kron(s.z @ t.z.mT, same)}
    for i, ((a, q, p), (b, r, o)) in enumerate(zip(*rows)):
        both, alpha = p @ o.mT, model.alpha
        blocks[f"Ws.{i}"] = (
            alpha**2 * (a.h @ b.h.mT) * (q @ r.mT)
            + alpha * (a.h @ o.mT) * (q @ b.z.mT)
            + alpha * (p @ b.h.mT) * (a.z @ r.mT)
            + both * (a.z @ b.z.mT)
        )
        blocks[f"Us.{i}"] = both * (x @ y.mT)
        blocks[f"bs.{i}"] = both
    return blocks


def _pulled(model: DeepOptEq, t: Tangents, outputs: int) -> list[tuple[_Layer, Tensor, Tensor]]:
    """Return, for every layer, the cotangents of its output and of its pre-activation."""
    found, q = [], t.v
    for layer in reversed(_layers(model, t.z, t.q, outputs)):
        p = model.alpha * layer.slopes * (q @ layer.W.mT)
        found.append((layer, q, p))
        q = p @ layer.W + (1 - model.alpha) * q
    return found[::-1]


def jacobian_ntk(
    model: EquilibriumModel, X: Tensor, X2: Tensor | None = None, *, tol: float | None = None
) -> Tensor:
    """Return the kernel of any model by forming the Jacobian: the reference, for small sizes.

    With k outputs per sample the kernel is (nk, nk), samples outside and outputs inside.
    """
    J = _jacobian(model, X, tol)
    return J @ (J if X2 is None else _jacobian(model, X2, tol)).mT


def _jacobian(model: EquilibriumModel, X: Tensor, tol: float | None) -> Tensor:
    weights = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}
    if not weights:
        raise _nothing_trained()
    exact = model.default_adjoint
    options = {"tol": tol, "adjoint": replace(exact, tol=tol) if isinstance(exact, IFT) else exact}

    def outputs(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, (X,), options).flatten()

    by_name = torch.func.jacrev(outputs)(weights)
    return torch.cat([J.flatten(1) for J in by_name.values()], dim=1)
