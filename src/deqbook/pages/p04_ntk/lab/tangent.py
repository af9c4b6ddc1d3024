r"""Closed forms of tangent kernels by dense matrices, and networks to compare them on.

The kernel :math:`H` of a network is a sum of Gram matrices, one per parameter. The forms here are
those of the sources; automatic differentiation and a short step of descent know nothing of them.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

from deqbook.kernels import empirical_ntk, gram_parts, jacobian_ntk
from deqbook.linalg import eye, kron
from deqbook.models import MonDEQ, ReLUImplicit, gradient
from deqbook.pages.p02_implicit_gradients.lab import chain_A, chain_B, exact_states
from deqbook.pages.p03a_linear_rates.lab import Ball, Network
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Newton

Model = TypeVar("Model", ReLUImplicit, MonDEQ)


def least(H: Tensor) -> float:
    """Return λ_min of a symmetric matrix."""
    return float(torch.linalg.eigvalsh(H)[0])


def outputs(model: ReLUImplicit | MonDEQ, X: Tensor) -> Tensor:
    """Return ŷ to rounding, without a graph."""
    with torch.no_grad():
        return model(X, tol=1e-14)


@dataclass(frozen=True)
class Reference(Generic[Model]):
    """A network with what a formula of its kernel is compared with, found without the formula.

    ``slope`` is (ŷ(θ-h∇𝓛)-ŷ)/h, with h so small that no unit changes side.
    """

    model: Model
    X: Tensor
    jacobian: Tensor
    parts: dict[str, Tensor]
    slope: Tensor
    error: Tensor


def _reference(model: Model, X: Tensor, y: Tensor, share: float) -> Reference[Model]:
    """Compare at ``share`` of the distance to the nearest kink."""
    pre = exact_states(model.structure().W, model.inject(X).detach())[1]
    h = share * float(pre.abs().min())
    found = gradient(model, X, y, solver=Newton(), adjoint_solver=Newton(), tol=1e-14)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, g in found.grads.items():
            getattr(moved, name).sub_(h * g)
    slope = (outputs(moved, X) - outputs(model, X)) / h
    H, blocks = jacobian_ntk(model, X, tol=1e-13), gram_parts(model, X, tol=1e-13)
    return Reference(model, X, H, blocks, slope, found.error)


@lru_cache(maxsize=8)
def relu_reference(seed: int) -> Reference[ReLUImplicit]:
    """Return a ReLU implicit network of width 24 on five unit inputs."""
    model = ReLUImplicit.init(24, 6, gamma=0.3, seed=seed)
    return _reference(model, sphere(5, 6, seed + 100), signs(5, g=generator(seed + 200)), 1e-3)


@lru_cache(maxsize=8)
def monotone_reference(seed: int) -> Reference[MonDEQ]:
    """Return a monotone DEQ of width 10 on four inputs."""
    g = generator(seed + 100)
    model, X, y = MonDEQ.init(10, 3, mu=0.5, seed=seed), normal(4, 3, g=g), normal(4, g=g)
    return _reference(model, X, y, 1e-4)


def relu_ntk(
    model: ReLUImplicit, X: Tensor, *, ones: bool = True, features: bool = True
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`H=(\gamma^2M+J_n)\circ ZZ^\top+Q\circ XX^\top+\Phi\Phi^\top` and Φ.

    M and Q by dense inverses, as the source defines them: with
    :math:`p_i=D_i(I-\tilde\gamma D_iW)^{-\top}a` they are :math:`\frac1m\langle p_i,p_j\rangle` and
    :math:`\frac1m\langle E_i(p_i+c),E_j(p_j+c)\rangle`. Not ``ones`` puts the identity for the
    all-ones matrix J_n; not ``features`` drops the direct path c from Q.
    """
    m, n, scale = model.m, len(X), model.scale
    W, U, a, c = (t.detach() for t in (model.W, model.U, model.a, model.c))
    Phi = model.inject(X).detach()
    Z, pre = exact_states(scale * W, Phi)
    D, E = (pre > 0).double(), (X @ U.mT > 0).double()
    P = D * torch.linalg.solve(eye(m) - scale * W.mT * D[:, None, :], a[:, None])[..., 0]
    paths = E * (P + (c if features else 0))
    J = torch.ones(n, n, dtype=X.dtype) if ones else eye(n)
    M, Q = P @ P.mT / m, paths @ paths.mT / m
    H = (model.gamma**2 * M + J) * (Z @ Z.mT) + Q * (X @ X.mT) + Phi @ Phi.mT
    return H, Phi


# --- the monotone DEQ --------------------------------------------------------------------------


def monotone_ntk(seed: int, n: int = 6) -> Tensor:
    """Return the tangent kernel of a monotone DEQ of width 16 on n inputs."""
    model = MonDEQ.init(16, 4, mu=0.5, seed=seed)
    return empirical_ntk(model, normal(n, 4, g=generator(seed + 100)), tol=1e-13)


def hadamard_blocks(
    model: MonDEQ, X: Tensor, Z: Tensor, V: Tensor, *, cross: float = 1.0, swap: float = -1.0
) -> dict[str, Tensor]:
    r"""Return the blocks of the kernel as entrywise products of n×n Gram matrices.

    With :math:`Q=A^\top A` they are :math:`K_A=VV^\top\circ ZQZ^\top+ZZ^\top\circ VQV^\top
    +VZ^\top\circ ZQV^\top+ZV^\top\circ VQZ^\top`,
    :math:`K_B=2(VV^\top\circ ZZ^\top-VZ^\top\circ ZV^\top)`, :math:`K_U=VV^\top\circ XX^\top` and
    :math:`K_a=ZZ^\top`. The factors ``cross`` and ``swap`` are those of the mixed products.
    """
    Q = model.A.detach().mT @ model.A.detach()
    VV, ZZ, VZ, ZV = V @ V.mT, Z @ Z.mT, V @ Z.mT, Z @ V.mT
    mixed = VZ * (Z @ Q @ V.mT) + ZV * (V @ Q @ Z.mT)
    return {
        "A": VV * (Z @ Q @ Z.mT) + ZZ * (V @ Q @ V.mT) + cross * mixed,
        "B": 2 * (VV * ZZ + swap * VZ * ZV),
        "U": VV * (X @ X.mT),
        "a": ZZ,
    }


def kronecker_blocks(
    model: MonDEQ, X: Tensor, Z: Tensor, D: Tensor, *, ordered: bool = True
) -> dict[str, Tensor]:
    r"""Return :math:`J_\bullet J_\bullet^\top` with the Jacobians of the proposition, dense.

    :math:`J_A=(I_n\otimes a^\top)Q^{-1}D(Z\otimes I)P_A` and so on,
    :math:`Q=I-D(I_n\otimes W)`; not ``ordered`` puts :math:`a^\top\otimes I_n` as printed.
    """
    n, m, W, a = len(X), model.m, model.W.detach(), model.a.detach()
    big = torch.diag(D.flatten())
    read = kron(eye(n), a[None]) if ordered else kron(a[None], eye(n))
    left = read @ torch.linalg.solve(eye(n * m) - big @ kron(eye(n), W), big)
    in_W, in_U = left @ kron(Z, eye(m)), left @ kron(X, eye(m))
    J = {"A": in_W @ chain_A(model.A.detach()), "B": in_W @ chain_B(m), "U": in_U, "a": Z}
    return {name: j @ j.mT for name, j in J.items()}


# --- the implicit layer alone, with half-normal weights ----------------------------------------


def half_normal(m: int, seed: int, *, gamma: float, shrunk: bool = True) -> ReLUImplicit:
    """Return a network with W_ij = |N(0,1)|/√m, only W trained; not ``shrunk`` drops the 1/√m."""
    drawn = ReLUImplicit.init_implicit_only(m, 10, gamma=gamma, seed=seed)
    W = (1 / math.sqrt(m) if shrunk else 1.0) * drawn.W.detach().abs()
    return ReLUImplicit(W, drawn.U, drawn.a, torch.zeros_like(drawn.a), gamma, train=("W",))


def all_active_state(model: ReLUImplicit, X: Tensor) -> Tensor:
    """Return (I-γ̃W)^{-1}φ, the equilibrium if all units are active."""
    Phi = model.inject(X).detach()
    return torch.linalg.solve(eye(model.m) - model.scale * model.W.detach(), Phi.mT).mT


def dead_share(seed: int, m: int = 3, draws: int = 3000) -> tuple[float, float]:
    """Return the share of networks of width m with H = 0 on one input, and its standard error."""
    g = generator(seed + 300)
    W, U, a = normal(draws, m, m, g=g), normal(draws, m, 4, g=g), signs(draws, m, g=g)
    x, gamma = sphere(1, 4, seed + 400)[0], 0.2 / math.sqrt(m)
    phi = torch.relu(U @ x) / math.sqrt(m)
    z, v = torch.zeros_like(phi), torch.zeros_like(phi)
    for _ in range(80):
        z = torch.relu(gamma * (W @ z[..., None])[..., 0] + phi)
    on = (gamma * (W @ z[..., None])[..., 0] + phi > 0).double()
    for _ in range(80):
        v = on * (a + gamma * (W.mT @ v[..., None])[..., 0])
    H = (v * v).sum(1) * (z * z).sum(1)
    chance = 2.0**-m
    return float((H == 0).double().mean()), math.sqrt(chance * (1 - chance) / draws)


# --- a ball of parameters ----------------------------------------------------------------------


def around(ball: Ball, g: torch.Generator, count: int = 8) -> list[Tensor]:
    """Return points of a ball, half of them on its surface."""
    centre = ball.network.start
    x = normal(count, len(centre), g=g)
    share = torch.rand(count, 1, generator=g, dtype=torch.float64)
    share[::2] = 1
    return list(centre + ball.radius * share * x / x.norm(dim=1, keepdim=True))


def downhill(net: Network, h: float = 1e-5) -> Tensor:
    """Return the unit direction in which λ_min(H) falls fastest, by differences."""
    at = least(net.kernel(net.start))
    moves = h * torch.eye(len(net.start), dtype=torch.float64)
    found = [least(net.kernel(net.start + e)) - at for e in moves]
    slope = torch.tensor(found, dtype=torch.float64)
    return -slope / slope.norm()
