"""Networks placed where three convergence theorems apply, and their training from there.

The sources ask for widths that no experiment reaches. Their hypotheses, however, only involve the
initial error, the initial spectrum and the width; so here the labels are placed next to the initial
predictions, at the largest distance that the hypotheses admit. Networks with ordinary labels stand
beside them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from deqbook.bounds import relu_implicit, vanilla
from deqbook.bounds.conditions import Condition, Conditions
from deqbook.dynamics import Record, Trajectory, gradient_descent, gradient_flow
from deqbook.kernels import empirical_ntk, gram_of_tangents, tangents
from deqbook.linalg import operator_norm
from deqbook.models import Gradient, ReLUImplicit, Tangents, VanillaDEQ, gradient
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Picard

STATES = 1e-14  # tolerance of the equilibria, where the errors themselves are tiny
DELTA = 0.05  # radius of the balls of Condition 1

Dense = ReLUImplicit | VanillaDEQ


# --- inputs, labels, runs ----------------------------------------------------------------------


def orthonormal(n: int, d: int, seed: int) -> Tensor:
    """Return n orthonormal inputs, turned at random."""
    return torch.linalg.qr(normal(d, n, g=generator(seed)))[0].mT.contiguous()


def outputs(model: Dense, X: Tensor) -> Tensor:
    """Return the predictions, to rounding."""
    with torch.no_grad():
        return model(X, tol=STATES)


def least(G: Tensor) -> float:
    """Return λ_min of a symmetric matrix."""
    return float(torch.linalg.eigvalsh(G)[0])


def edge(model: Dense, X: Tensor) -> float:
    """Return λ_max of the tangent kernel at the start."""
    return float(torch.linalg.eigvalsh(empirical_ntk(model, X))[-1])


def near_labels(
    model: Dense, X: Tensor, seed: int, ask: Callable[[Tensor], Conditions], *names: str
) -> Tensor:
    """Return labels in a random direction, 0.9 times as far as the named conditions admit.

    The conditions named are those whose needs are proportional to ‖e(0)‖.
    """
    at, u = outputs(model, X), normal(len(X), g=generator(seed))
    u = u / u.norm()
    unit = ask(at - u)
    return at - 0.9 / max(unit[name].ratio for name in names) * u


def equal_inputs(X: Tensor) -> Tensor:
    """Return the inputs with the second replaced by the first."""
    return torch.cat([X[:1], X[:1], X[2:]])


def torn(model: Dense, X: Tensor, error: float) -> tuple[Tensor, Tensor]:
    """Return two equal inputs, and labels that pull them apart: e(0) = error·(1, -1)/√2."""
    twice = equal_inputs(X)
    return twice, outputs(model, twice) - error * torch.tensor([1.0, -1.0]).double() / math.sqrt(2)


def follow(
    model: Dense, X: Tensor, y: Tensor, until: float, *, rtol: float, atol: float
) -> Trajectory:
    """Follow the gradient flow."""
    plain = Picard()
    return gradient_flow(
        model,
        X,
        y,
        np.linspace(0, until, 13),
        record=Record(gram=True),
        solver=plain,
        adjoint_solver=plain,
        rtol=rtol,
        atol=atol,
    )


def descend(
    model: Dense, X: Tensor, y: Tensor, step: float, epochs: int, *, tol: float = STATES
) -> Trajectory:
    """Run gradient descent."""
    plain = Picard()
    return gradient_descent(
        model,
        X,
        y,
        step,
        epochs,
        record=Record(every=max(1, epochs // 50), gram=True),
        solver=plain,
        adjoint_solver=plain,
        tol=tol,
        throw=False,
    )


def euler_flow(model: Dense, X: Tensor, y: Tensor, until: float) -> Trajectory:
    """Follow the flow by 100 Euler steps: with units at their kinks a high order gains nothing."""
    return descend(model, X, y, until / 100, 100, tol=1e-8)


# --- gao2022: the features' Gram matrix --------------------------------------------------------


def lemma34_radius(
    model: ReLUImplicit, X: Tensor, *, lambda0: float | None = None, norm: str = "operator"
) -> float:
    r"""Return how far U may move while :math:`\|G-G(0)\|\le\lambda_G/4` (gao2022.lemma3.4).

    ``norm`` says how the move is measured: ``"operator"``
    :math:`\frac{\sqrt m\lambda_G}{12\,\omega\|X\|_F^2}`, ``"frobenius"``
    :math:`\frac{\sqrt m\lambda_G}{12\,\omega\|X\|_F\|X\|}`; ``"printed"`` is the source's
    :math:`\frac{\sqrt m\lambda_G}{16\,\omega\|X\|^2}` for the operator norm, with which the lemma
    is false. Here :math:`\omega\sqrt m=\|U(0)\|`, and :math:`\lambda_G` is
    :math:`\frac43\lambda_{\min}(G(0))` unless it is given.
    """
    if lambda0 is None:
        lambda0 = 4 / 3 * least(relu_implicit.feature_gram(model, X))
    full, x = float(X.norm()), operator_norm(X)
    sizes = {"operator": 12 * full**2, "frobenius": 12 * full * x, "printed": 16 * x**2}
    if norm not in sizes:
        raise ValueError(f"norm must be one of {sorted(sizes)}, got {norm!r}.")
    omega = operator_norm(model.U.detach()) / math.sqrt(model.m)
    if omega * sizes[norm] == 0:
        what = "U(0) is zero: draw it, as ReLUImplicit.init does" if omega == 0 else "X is zero"
        raise ValueError(f"{what}; the features vanish, and no radius can be given for them.")
    return math.sqrt(model.m) * lambda0 / (omega * sizes[norm])


def hadamard(bits: int) -> Tensor:
    """Return Sylvester's matrix of size 2^bits."""
    H = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(bits):
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)], 0)
    return H


def bent(bits: int, g: torch.Generator) -> Tensor:
    """Return a random ±1 vector of length 4^bits with a flat Walsh spectrum (Maiorana-McFarland).

    It is (-1)^{x·π(y)+h(y)} for a random permutation π and random bits h.
    """
    size = 2**bits
    rows = hadamard(bits)[torch.randperm(size, generator=g)]
    return (rows * signs(size, 1, g=g)).flatten()


def masked_network(seed: int, size: float) -> tuple[ReLUImplicit, Tensor, Tensor]:
    """Return a network, its inputs X = I, and a move that the mask of ReLU makes √n times larger.

    U(0) = s[HS; -HS] with H of Sylvester, s the ``size``, and signs S such that HSv is flat for an
    alternating v. The move -sign(U)∘(gvᵀ), g = sign(HSv), has norm √(m/n), and t times it changes
    each entry of σ(U)v by about t/2.
    """
    n = 256
    v = torch.ones(n, dtype=torch.float64) / math.sqrt(n)
    v[1::2] *= -1
    S = bent(4, generator(seed)) * v * math.sqrt(n)
    U = size * torch.cat([hadamard(8), -hadamard(8)]) * S
    m = 2 * n
    none = torch.zeros(m, dtype=torch.float64)
    model = ReLUImplicit(torch.zeros(m, m, dtype=torch.float64), U, none, none, 0.1)
    move = -torch.sign(U) * torch.outer(torch.sign(U @ v), v)
    return model, torch.eye(n, dtype=torch.float64), move


# --- gao2022: gradient flow and descent --------------------------------------------------------


def ordinary(seed: int, m: int = 50) -> tuple[ReLUImplicit, Tensor, Tensor]:
    """Return a network, six inputs and labels ±1."""
    model = ReLUImplicit.init(m, 10, gamma=0.1, seed=seed)
    return model, sphere(6, 10, seed + 100), signs(6, g=generator(seed + 200))


@lru_cache(maxsize=16)
def ordinary_flow(seed: int) -> tuple[Conditions, float, Trajectory]:
    """Follow the flow from labels ±1; return the width needed ÷ the width, too."""
    model, X, y = ordinary(seed)
    wide = relu_implicit.flow_conditions(model, X, y)
    return wide, wide.constants["m needed"] / model.m, euler_flow(model, X, y, 6.0)


NearRun = tuple[Conditions, relu_implicit.Scales, Trajectory]


def near_flow(
    seed: int,
    *,
    twins: bool = False,
    gamma: float = 0.1,
    until: float = 6.0,
    train: str = "WUac",
) -> NearRun:
    """Run the flow from labels at 0.9 of the admissible distance; two orthonormal inputs, m = 40.

    ``twins`` then makes the second input equal to the first, and ``train`` freezes the others; the
    constants remain those of the network that meets the conditions.
    """
    return _near_flow(seed, twins, gamma, until, train)


@lru_cache(maxsize=16)
def _near_flow(seed: int, twins: bool, gamma: float, until: float, train: str) -> NearRun:
    model, X = ReLUImplicit.init(40, 3, gamma=gamma, seed=seed), orthonormal(2, 3, seed + 100)

    def ask(y: Tensor) -> Conditions:
        return relu_implicit.flow_conditions(model, X, y)

    y = near_labels(model, X, seed + 200, ask, "width")
    conditions, s = ask(y), relu_implicit.scales(model, X, y)
    data = torn(model, X, s.error) if twins else (X, y)
    W, U, a, c = (p.detach() for p in (model.W, model.U, model.a, model.c))
    trained = ReLUImplicit(W, U, a, c, gamma, train=tuple(train))
    return conditions, s, follow(trained, *data, until, rtol=1e-8, atol=1e-12)


def near_network(seed: int) -> tuple[ReLUImplicit, Tensor, Tensor, Conditions]:
    """Return a network of width 20 and labels at 0.9 of the distance that descent admits."""
    model, X = ReLUImplicit.init(20, 3, gamma=0.1, seed=seed), orthonormal(2, 3, seed + 100)

    def ask(y: Tensor) -> Conditions:
        return relu_implicit.descent_conditions(model, X, y)

    y = near_labels(model, X, seed + 200, ask, "width", "margin")
    return model, X, y, ask(y)


@lru_cache(maxsize=16)
def near_descent(seed: int, times_edge: float, twins: bool) -> NearRun:
    """Run 100 steps, the largest admitted, or 40 steps ``times_edge`` ÷ λ_max(H(0))."""
    model, X, y, conditions = near_network(seed)
    s = relu_implicit.scales(model, X, y)
    step, epochs = (times_edge / edge(model, X), 40) if times_edge else (conditions.step, 100)
    data = torn(model, X, s.error) if twins else (X, y)
    return conditions, s, descend(model, *data, step, epochs)


def solved_gradient(model: Dense, X: Tensor, y: Tensor, near: Gradient | None = None) -> Gradient:
    """Return the gradient, solved to rounding from the states nearby."""
    z0, v0 = (None, None) if near is None else (near.z, near.v)
    plain = Picard()
    return gradient(model, X, y, z0=z0, v0=v0, solver=plain, adjoint_solver=plain, tol=STATES)


def blocks(model: Dense, X: Tensor, found: Gradient) -> dict[str, Tensor]:
    """Return the tangent kernel by parameter, at the states of a gradient."""
    assert found.v is not None  # these networks have closed forms
    rows = Tangents(X, model.inject(X).detach(), found.z, found.v)
    return gram_of_tangents(model, rows, rows)


@torch.no_grad()
def move_along(model: Dense, found: Gradient, step: float) -> None:
    """Take one step of descent, in place."""
    for name, g in found.grads.items():
        getattr(model, name).sub_(g, alpha=step)


def remainders(model: Dense, X: Tensor, y: Tensor, step: float, steps: int) -> Tensor:
    """Return ‖ŷ⁺-ŷ+ηHe‖, ‖e‖ and ‖I-ηH‖, a row each, at the first steps of descent."""
    model, rows = copy.deepcopy(model), []
    found = solved_gradient(model, X, y)
    for _ in range(steps):
        H = torch.stack(list(blocks(model, X, found).values())).sum(dim=0)
        factor = torch.eye(len(X), dtype=torch.float64) - step * H
        move_along(model, found, step)
        before, found = found.error, solved_gradient(model, X, y, found)
        rest = (found.error - factor @ before).norm()
        rows.append(torch.stack([rest, before.norm(), torch.linalg.matrix_norm(factor, 2)]))
    return torch.stack(rows, dim=1)


# --- gao2023: only the implicit layer ----------------------------------------------------------


def implicit_gram(model: ReLUImplicit, X: Tensor, *, deep: bool = True) -> Tensor:
    """Return γ̃²(VVᵀ)∘(ZZᵀ); not ``deep`` takes Da, the adjoint of one layer, for V."""
    t = tangents(model, X, tol=STATES)
    v = t.v if deep else (t.z > 0) * model.a.detach()
    return model.scale**2 * (v @ v.mT) * (t.z @ t.z.mT)


@lru_cache(maxsize=16)
def near_implicit(seed: int, twins: bool) -> tuple[Conditions, ReLUImplicit, Tensor, Trajectory]:
    """Run the flow on W alone from labels at 0.9 of the admissible distance."""
    model, X = (
        ReLUImplicit.init_implicit_only(40, 8, gamma=0.3, seed=seed),
        sphere(2, 8, seed + 100),
    )

    def ask(y: Tensor) -> Conditions:
        return relu_implicit.implicit_only_conditions(model, X, y)

    y = near_labels(model, X, seed + 200, ask, "ball", "spectrum", "margin")
    conditions = ask(y)
    data = torn(model, X, conditions.constants["error"]) if twins else (X, y)
    # The errors are of size 1e-5, and the rate is nearly attained: the flow has to be exact.
    run = follow(model, *data, 3 / conditions.rate, rtol=1e-11, atol=1e-13)
    return conditions, model, X, run


# --- ling2023: the vanilla DEQ -----------------------------------------------------------------


def vanilla_network(seed: int) -> tuple[VanillaDEQ, Tensor]:
    """Return a network of width 30 and five inputs of length √8."""
    return VanillaDEQ.init(30, 8, seed=seed), sphere(5, 8, seed + 100, radius=math.sqrt(8))


def gradient_size(model: VanillaDEQ, X: Tensor, y: Tensor, names: str) -> float:
    """Return ‖∇L‖² over the named weights, by automatic differentiation."""
    weights = [getattr(model, name) for name in names]
    loss = 0.5 * (model(X, tol=1e-13) - y).pow(2).sum()
    return float(sum(g.pow(2).sum() for g in torch.autograd.grad(loss, weights)))


def labels_along(K: Tensor, model: VanillaDEQ, X: Tensor) -> Tensor:
    """Return labels for which the error is the eigenvector of the least eigenvalue of K."""
    return outputs(model, X) - torch.linalg.eigh(K)[1][:, 0]


def small_readout(seed: int, readout: float = 0.0) -> tuple[VanillaDEQ, Tensor, Tensor]:
    """Return a network that meets Condition 1: a(0) = 0, small W, two orthogonal inputs.

    ``readout`` = 1 is the read-out of Assumption 1.
    """
    base = VanillaDEQ.init(100, 2, variance=1e-3, seed=seed)
    model = VanillaDEQ(base.W.detach(), base.U.detach(), readout * base.a.detach())
    y = torch.tensor([0.008, -0.008], dtype=torch.float64)
    return model, math.sqrt(2) * orthonormal(2, 2, seed + 100), y


def condition_nine_obstruction(model: VanillaDEQ, X: Tensor, delta: float) -> Condition:
    r"""Return what the printed (9) implies: :math:`(1-\bar\rho_w)^2\ge4n(\|a(0)\|+\delta)^2`.

    Indeed :math:`\lambda_{\min}(G)\le\frac1n\operatorname{tr}G\le
    \frac{\|U\|^2\|X\|_F^2}{n(1-\|W\|)^2}`, while (9) asks for
    :math:`\lambda_{\min}(G)\ge4c_w^2\|X\|_F^2\ge\frac{4\bar\rho_a^2}{(1-\bar\rho_w)^2}\cdot
    \frac{\|U\|^2\|X\|_F^2}{(1-\|W\|)^2}`. The width does not enter.
    """
    left = 1 - operator_norm(model.W.detach()) - delta
    readout = float(model.a.detach().norm()) + delta
    need = 4 * X.shape[0] * readout**2
    return Condition("obstruction", "(1-ρ̄_w)² ≥ 4n(‖a(0)‖+δ)²", left**2 if left > 0 else 0.0, need)


def widest_ball(model: VanillaDEQ, X: Tensor, y: Tensor) -> float:
    """Return the radius δ at which the printed (9) holds with need ÷ have = 0.9."""
    low, high = 0.01, 0.5
    for _ in range(60):
        middle = 0.5 * (low + high)
        ratio = vanilla.condition_one(model, X, y, middle, printed=True)["(9)"].ratio
        low, high = (middle, high) if ratio < 0.9 else (low, middle)
    return low


@lru_cache(maxsize=16)
def near_vanilla(
    seed: int, times_edge: float, twins: bool
) -> tuple[Conditions, vanilla.Scales, Trajectory]:
    """Run descent on the network that meets Condition 1, at 0.99 of the step it admits.

    Or with steps ``times_edge`` ÷ λ_max(H(0)); or from equal inputs.
    """
    model, X, y = small_readout(seed)
    conditions, s = vanilla.condition_one(model, X, y, DELTA), vanilla.scales(model, X, y, DELTA)
    step = times_edge / edge(model, X) if times_edge else 0.99 * conditions.step
    return conditions, s, descend(model, equal_inputs(X) if twins else X, y, step, 100)
