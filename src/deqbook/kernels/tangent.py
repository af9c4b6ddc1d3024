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
from deqbook.models import MonDEQ, ReLUImplicit, VanillaDEQ
from deqbook.models.base import EquilibriumModel
from deqbook.models.closed_form import adjoint_states
from deqbook.wellposed import Affine

__all__ = ["Tangents", "empirical_ntk", "gram_parts", "jacobian_ntk", "parts", "tangents"]


@dataclass(frozen=True)
class Tangents:
    """What the kernel is made of, one row per sample: inputs, injections, states, adjoints."""

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

    States that are already known (``z`` and ``v`` together) are taken as they are.
    """
    q = model.inject(X)
    if z is not None and v is not None:
        return Tangents(X, q, z, v)
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
    blocks = _blocks(model, s, t)
    return {name: K for name, K in blocks.items() if getattr(model, name).requires_grad}


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
