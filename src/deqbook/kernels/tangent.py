r"""The tangent kernel of an equilibrium model on a sample: one Gram matrix per parameter.

For a scalar output :math:`\hat y_i` the kernel is
:math:`H_{ij}=\langle\partial_\theta\hat y_i,\partial_\theta\hat y_j\rangle`. Where the model has a
closed form (``ClosedKernel``) the Jacobian, with as many columns as the model has weights, is never
formed: with the equilibria :math:`Z` and the adjoint states :math:`V` in hand, every block is an
entrywise product of small Gram matrices. For any other model the Jacobian is formed, by implicit
differentiation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deqbook.models.base import EquilibriumModel
from deqbook.models.closed_form import ClosedKernel, Tangents

__all__ = ["empirical_ntk", "gram_of_tangents", "gram_parts", "jacobian_ntk", "tangents"]


@torch.no_grad()
def tangents(
    model: EquilibriumModel,
    X: Tensor,
    *,
    z: Tensor | None = None,
    v: Tensor | None = None,
    tol: float | None = None,
) -> Tangents:
    r"""Return the equilibria and the adjoint states that a closed form is made of.

    For a dense cell :math:`v_i=D_i(I-W^\top D_i)^{-1}a`; for OptEq they solve
    :math:`v=J^\top v+V_o` for every output o, J the Jacobian of the cell. ``X`` is (n, d).
    States that are already known (``z`` and ``v`` together) are taken as they are; ``z`` alone is
    a warm start. ``TypeError`` where the model is no ``ClosedKernel``.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> at = tangents(VanillaDEQ(0.5 * one, one, one[0]), one)  # z = relu(z/2 + 1), v = 1 + v/2
    >>> round(at.z.item(), 3), round(at.v.item(), 3)
    (2.0, 2.0)
    """
    if not isinstance(model, ClosedKernel):
        raise TypeError(
            f"{type(model).__name__} has no closed form of its kernel, so no adjoint state for "
            "each sample; empirical_ntk and gram_parts form the Jacobian."
        )
    q = model.injected(X)
    if v is not None:
        if z is None:
            raise ValueError("v belongs to states: give z as well.")
        return Tangents(X, q, z, v)
    z = model.solve(X, z, tol=tol).z
    return Tangents(X, q, z, model.adjoints(z, q, tol=tol))


def gram_parts(
    model: EquilibriumModel, X: Tensor, X2: Tensor | None = None, *, tol: float | None = None
) -> dict[str, Tensor]:
    r"""Return the blocks :math:`\partial_p\hat y(X)\,\partial_p\hat y(X_2)^\top` by parameter name.

    ``X`` is (n, d), ``X2`` (p, d) or None for X; a block is (n, p), with k outputs (nk, pk),
    outputs inside. Only what the model trains is listed; ``ValueError`` if that is nothing.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = VanillaDEQ(0.5 * one, one, one[0])  # a u x/(1 - w): slopes 4, 2, 2 in w, u, a
    >>> {name: round(block.item(), 3) for name, block in gram_parts(model, one).items()}
    {'W': 16.0, 'U': 4.0, 'a': 4.0}
    """
    if isinstance(model, ClosedKernel):
        rows = tangents(model, X, tol=tol)
        return gram_of_tangents(model, rows, rows if X2 is None else tangents(model, X2, tol=tol))
    J = _jacobian(model, X, tol)
    K = J if X2 is None else _jacobian(model, X2, tol)
    return {name: J[name] @ K[name].mT for name in J}


def empirical_ntk(
    model: EquilibriumModel, X: Tensor, X2: Tensor | None = None, *, tol: float | None = None
) -> Tensor:
    r"""Return the tangent kernel :math:`H`, the sum of its ``gram_parts``.

    The arguments are those of ``gram_parts``. ``ValueError`` where nothing is trained.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(empirical_ntk(VanillaDEQ(0.5 * one, one, one[0]), one).item(), 3)  # 16 + 4 + 4
    24.0
    """
    return torch.stack(list(gram_parts(model, X, X2, tol=tol).values())).sum(dim=0)


@torch.no_grad()
def gram_of_tangents(model: ClosedKernel, s: Tangents, t: Tangents) -> dict[str, Tensor]:
    """Return the blocks of the kernel between the samples of ``s`` and those of ``t``.

    ``gram_parts`` for those who have the ``tangents`` already; what is not trained is left out.

    >>> from deqbook.models import ReLUImplicit
    >>> model = ReLUImplicit.init_implicit_only(m=20, d=3, gamma=0.3, seed=0)
    >>> at = tangents(model, torch.eye(3, dtype=torch.float64))
    >>> {name: tuple(K.shape) for name, K in gram_of_tangents(model, at, at.rows(slice(2))).items()}
    {'W': (3, 2)}
    """
    assert isinstance(model, EquilibriumModel)  # what inherits from ClosedKernel is a model
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise _nothing_trained()
    return {name: K for name, K in model.gram_blocks(s, t).items() if name in trained}


def jacobian_ntk(
    model: EquilibriumModel, X: Tensor, X2: Tensor | None = None, *, tol: float | None = None
) -> Tensor:
    """Return the kernel of any model by forming the Jacobian: the reference, for small sizes.

    ``X`` is (n, d), ``X2`` (p, d) or None for X. With k outputs per sample the kernel is (nk, pk),
    samples outside and outputs inside. ``ValueError`` where the model has nothing to train.

    >>> from deqbook.models import VanillaDEQ
    >>> model, X = VanillaDEQ.init(m=8, d=3, seed=0), torch.eye(3, dtype=torch.float64)
    >>> torch.allclose(jacobian_ntk(model, X), empirical_ntk(model, X), rtol=1e-4)
    True
    """
    J = _whole(model, X, tol)
    return J @ (J if X2 is None else _whole(model, X2, tol)).mT


def _whole(model: EquilibriumModel, X: Tensor, tol: float | None) -> Tensor:
    return torch.cat(list(_jacobian(model, X, tol).values()), dim=1)


def _jacobian(model: EquilibriumModel, X: Tensor, tol: float | None) -> dict[str, Tensor]:
    """Return ∂ŷ/∂p by parameter name, rows for outputs, columns for the entries of p."""
    weights = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}
    if not weights:
        raise _nothing_trained()

    def outputs(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, (X,), {"tol": tol}).flatten()

    return {name: J.flatten(1) for name, J in torch.func.jacrev(outputs)(weights).items()}


def _nothing_trained() -> ValueError:
    return ValueError("the model has nothing to train: no parameter requires a gradient.")
