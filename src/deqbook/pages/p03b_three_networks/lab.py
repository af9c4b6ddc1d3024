"""Networks placed where three convergence theorems apply, and their training from there.

The sources ask for widths that no experiment reaches. Their hypotheses, however, only involve the
initial error, the initial spectrum and the width; so here the labels are placed next to the initial
predictions, at the largest distance that the hypotheses admit, and training goes on until the
theorem promises a thousandth of the squared error. Where a bound is attained there is a network
that attains it. Networks with ordinary labels stand beside them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deqbook.bounds import relu_implicit, vanilla
from deqbook.bounds.conditions import Condition, Conditions
from deqbook.dynamics import (
    Record,
    Trajectory,
    gradient_descent,
    gradient_flow,
    linearised_descent,
    linearised_flow,
)
from deqbook.kernels import empirical_ntk, gram_of_tangents, jacobian_ntk, tangents
from deqbook.linalg import operator_norm
from deqbook.models import Gradient, ReLUImplicit, Tangents, VanillaDEQ, gradient
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Picard

STATES = 1e-14  # tolerance of the equilibria, where the errors themselves are tiny
DELTA = 0.02  # radius of the balls of Condition 1
PROMISE = 1e-3  # runs go on until the theorem promises that much of ‖e(0)‖²

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
    return float(torch.linalg.eigvalsh(empirical_ntk(model, X, tol=STATES))[-1])


def near_labels(
    model: Dense,
    X: Tensor,
    seed: int,
    ask: Callable[[Tensor], Conditions],
    *names: str,
    share: float = 0.9,
) -> Tensor:
    """Return labels in a random direction, ``share`` times as far as the named conditions admit.

    The conditions named are those whose needs are proportional to ‖e(0)‖.
    """
    at, u = outputs(model, X), normal(len(X), g=generator(seed))
    u = u / u.norm()
    unit = ask(at - u)
    return at - share / max(unit[name].ratio for name in names) * u


def disjoint(m: int, n: int, g: torch.Generator) -> Tensor:
    """Return n unit vectors in the columns of an (m, n) matrix: not negative, disjoint supports."""
    size = 0.5 + torch.rand(m, generator=g, dtype=torch.float64)
    f = torch.zeros(m, n, dtype=torch.float64)
    for i in range(n):
        f[i::n, i] = size[i::n]
    return f / f.norm(dim=0)


def stretched(M: Tensor, norm: float) -> Tensor:
    """Return the multiple of a matrix that has this operator norm."""
    return M * (norm / operator_norm(M))


def steps_for(conditions: Conditions, step: float) -> int:
    """Return after how many steps the theorem promises ``PROMISE``."""
    return math.ceil(math.log(PROMISE) / math.log(1 - step * conditions.rate))


def frozen_gap(model: Dense, X: Tensor, run: Trajectory) -> float:
    """Return the largest ‖e - ē‖ ÷ ‖e(0)‖, with ē the errors if the kernel stood still.

    The kernel is that of automatic differentiation, so that the run and ē share no gradient.
    """
    K, first = jacobian_ntk(model, X, tol=1e-13).detach().numpy(), run.error[0]
    if run.step:
        steps = linearised_descent(K, first, run.step, int(run.gradients[-1]))
        still = steps.error[run.gradients]
    else:
        still = linearised_flow(K, first, run.times).error
    return float(np.linalg.norm(run.error - still, axis=1).max() / run.error_norm[0])


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
    """Follow the gradient flow; one that raises the loss is none, and stops at once."""
    plain = Picard()

    def flow(times: np.ndarray) -> Trajectory:
        return gradient_flow(
            model,
            X,
            y,
            times,
            record=Record(gram=True),
            solver=plain,
            adjoint_solver=plain,
            rtol=rtol,
            atol=atol,
        )

    first = flow(np.array([0.0, 1e-3 * until]))
    if first.loss[-1] > (1 + 1e-6) * first.loss[0]:
        return replace(first, stopped="the loss rises")
    return flow(np.linspace(0, until, 13))


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


class NearRun(NamedTuple):
    """Conditions and scales of a network, a run from it, and its ``frozen_gap``."""

    conditions: Conditions
    scales: relu_implicit.Scales
    run: Trajectory
    frozen: float


def near_flow(
    seed: int,
    *,
    twins: bool = False,
    gamma: float = 0.9,
    until: float | None = None,
    train: str = "WUac",
) -> NearRun:
    """Run the flow of ``near_network``: its labels are so near that no unit can change side.

    Until ``PROMISE``, unless a time is given. ``twins`` then makes the second input equal to the
    first, and ``train`` freezes the others; the constants remain those of the network that meets
    the conditions.
    """
    return _near_flow(seed, twins, gamma, until, train)


@lru_cache(maxsize=16)
def _near_flow(seed: int, twins: bool, gamma: float, until: float | None, train: str) -> NearRun:
    model, X, y, _ = near_network(seed, gamma)
    conditions, s = relu_implicit.flow_conditions(model, X, y), relu_implicit.scales(model, X, y)
    X, y = torn(model, X, s.error) if twins else (X, y)
    W, U, a, c = (p.detach() for p in (model.W, model.U, model.a, model.c))
    trained = ReLUImplicit(W, U, a, c, model.gamma, train=tuple(train))
    end = -math.log(PROMISE) / conditions.rate if until is None else until
    run = follow(trained, X, y, end, rtol=1e-10, atol=1e-13)  # the errors are of size 1e-4
    return NearRun(conditions, s, run, frozen_gap(trained, X, run))


def lone_network(seed: int, readout: float = 1.0) -> tuple[ReLUImplicit, Tensor]:
    """Return one input on which all units are on, and a network at the edge of the hypotheses.

    U(0) = ω√m f xᵀ with a positive unit vector f, a(0) = c(0) = readout·√m f, λ_G = ⁴⁄₃ω² just
    below 1, γ = 0.9/(4ω). With a read-out of 1 labels below the output switch every unit off.
    """
    g, m, omega = generator(seed), 20, 0.86
    f, x = disjoint(m, 1, g)[:, 0], orthonormal(1, 3, seed + 100)
    root = math.sqrt(m)
    W = stretched(normal(m, m, g=g), omega * root)
    a = readout * root * f
    return ReLUImplicit(W, omega * root * torch.outer(f, x[0]), a, a, 0.9 / (4 * omega)), x


@lru_cache(maxsize=16)
def lone_flow(seed: int, readout: float) -> NearRun:
    """Run the flow of the lone network from labels at 0.9 of the admissible distance."""
    model, x = lone_network(seed, readout)

    def ask(y: Tensor) -> Conditions:
        return relu_implicit.flow_conditions(model, x, y)

    y = near_labels(model, x, seed + 200, ask, "width")
    conditions, s = ask(y), relu_implicit.scales(model, x, y)
    end = -math.log(PROMISE) / conditions.rate
    run = follow(model, x, y, end, rtol=1e-8, atol=1e-12)
    return NearRun(conditions, s, run, frozen_gap(model, x, run))


@lru_cache(maxsize=16)
def far_flow(seed: int, share: float) -> NearRun:
    """Run the flow of the lone network to ``share`` times its first output; the width fails."""
    model, x = lone_network(seed)
    y = share * outputs(model, x)
    conditions, s = relu_implicit.flow_conditions(model, x, y), relu_implicit.scales(model, x, y)
    run = euler_flow(model, x, y, -math.log(PROMISE) / conditions.rate)
    return NearRun(conditions, s, run, frozen_gap(model, x, run))


class Corner(NamedTuple):
    """The scales of a network, and the network with all norms doubled, with inputs and labels."""

    scales: relu_implicit.Scales
    model: ReLUImplicit
    X: Tensor
    y: Tensor


def corner(seed: int, *, gamma: float = 1.0, length: float = 1.0, readout: float = 1.0) -> Corner:
    """Return the corner of the region in which the gradients are bounded: there they are attained.

    All weights are multiples of one positive unit vector f, W(0) = ω√m ffᵀ and so on; three equal
    inputs, errors 1. ``gamma`` multiplies 1/(4ω), ``length`` the inputs, ``readout`` √m f.
    """
    g, m, omega = generator(seed), 12, 0.8
    f, x = disjoint(m, 1, g)[:, 0], orthonormal(1, 3, seed + 100)
    root = math.sqrt(m)
    W, U = omega * root * torch.outer(f, f), omega * root * torch.outer(f, x[0])
    a, X = readout * root * f, length * x.repeat(3, 1)
    start, far = (ReLUImplicit(k * W, k * U, k * a, k * a, gamma / (4 * omega)) for k in (1.0, 2.0))
    y = outputs(far, X) - 1
    return Corner(relu_implicit.scales(start, X, y), far, X, y)


def near_network(seed: int, gamma: float = 0.9) -> tuple[ReLUImplicit, Tensor, Tensor, Conditions]:
    """Return a network of width 20 and labels at 0.9 of the distance that descent admits.

    Two orthonormal inputs, each with units of its own: λ_G is as large as ω admits. ``gamma``
    multiplies 1/(4ω).
    """
    g, m, omega = generator(seed), 20, 0.9
    f, X = disjoint(m, 2, g), orthonormal(2, 4, seed + 100)
    U = stretched((f - 0.05 * f.flip(1)) @ X, omega * math.sqrt(m))
    W = stretched(normal(m, m, g=g), omega * math.sqrt(m))
    model = ReLUImplicit(W, U, signs(m, g=g), signs(m, g=g), gamma / (4 * omega))

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
    X, y = torn(model, X, s.error) if twins else (X, y)
    run = descend(model, X, y, step, epochs)
    return NearRun(conditions, s, run, frozen_gap(model, X, run))


def lone_labels(seed: int, share: float) -> tuple[ReLUImplicit, Tensor, Tensor, Conditions]:
    """Return the lone network with labels ``share`` times as far as descent admits."""
    model, x = lone_network(seed)

    def ask(y: Tensor) -> Conditions:
        return relu_implicit.descent_conditions(model, x, y)

    y = near_labels(model, x, seed + 200, ask, "width", "margin", share=share)
    return model, x, y, ask(y)


@lru_cache(maxsize=16)
def long_descent(seed: int) -> NearRun:
    """Run descent of the lone network with the largest step admitted, until ``PROMISE``."""
    model, x, y, conditions = lone_labels(seed, 0.9)
    run = descend(model, x, y, conditions.step, steps_for(conditions, conditions.step), tol=1e-12)
    return NearRun(conditions, relu_implicit.scales(model, x, y), run, frozen_gap(model, x, run))


def pushed(seed: int, share: float) -> float:
    """Return what is left of the least pre-activation when W and U go their whole way against it.

    The lone network, with labels ``share`` times as far as descent admits; negative if the unit
    has changed side.
    """
    model, x, y, _ = lone_labels(seed, share)
    ways = relu_implicit.scales(model, x, y).descent_displacements

    def least_unit(model: ReLUImplicit) -> tuple[Tensor, Tensor]:
        z = model.solve(x, tol=1e-13, throw=False).z
        return z[0], model.structure().preactivation(z, model.inject(x).detach())[0]

    z, before = least_unit(model)
    j = int(before.abs().argmin())
    side = float(before[j].sign())
    with torch.no_grad():
        model.U[j] -= side * ways["U"] * x[0]
        model.W[j] -= side * ways["W"] * z / z.norm()
    return float(least_unit(model)[1][j] / before[j])


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


class ImplicitRun(NamedTuple):
    """Conditions, network, inputs, run and ``frozen_gap`` where W alone is trained."""

    conditions: Conditions
    model: ReLUImplicit
    X: Tensor
    run: Trajectory
    frozen: float


@lru_cache(maxsize=16)
def near_implicit(seed: int, twins: bool) -> ImplicitRun:
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
    run = follow(model, *data, -math.log(PROMISE) / conditions.rate, rtol=3e-12, atol=1e-15)
    return ImplicitRun(conditions, model, X, run, frozen_gap(model, data[0], run))


@lru_cache(maxsize=16)
def unreachable(seed: int) -> ImplicitRun:
    """Run the flow on W alone to negative labels that a ≥ 0 cannot reach: only nearness fails."""
    drawn, X = (
        ReLUImplicit.init_implicit_only(40, 8, gamma=0.3, seed=seed),
        sphere(2, 8, seed + 100),
    )
    W, U, a = (p.detach() for p in (drawn.W, drawn.U, drawn.a))
    model = ReLUImplicit(W, U, a.abs(), 0 * a, 0.3, train=("W",))
    y = -outputs(model, X)
    conditions = relu_implicit.implicit_only_conditions(model, X, y)
    run = euler_flow(model, X, y, -math.log(PROMISE) / conditions.rate)
    return ImplicitRun(conditions, model, X, run, frozen_gap(model, X, run))


class Unit(NamedTuple):
    """One unit: what it does when w moves, divided by the bounds of the theorem."""

    gradient: float
    spectrum: float
    margin: float


def one_unit(seed: int) -> Unit:
    """Return gradient, change of √H and of the pre-activation ÷ bounds, for a single unit.

    The gradient where γ̃w = q; the two changes when w has gone the way r, outwards.
    """
    g = generator(seed)
    u, w, a = (0.5 + torch.rand(3, generator=g, dtype=torch.float64)).tolist()
    one, gamma = torch.ones(1, 1, dtype=torch.float64), 0.3 / w

    def unit(weight: float) -> ReLUImplicit:
        return ReLUImplicit(weight * one, u * one, a * one[0], 0 * one[0], gamma, train=("W",))

    def ask(y: Tensor) -> Conditions:
        return relu_implicit.implicit_only_conditions(unit(w), one, y)

    y = near_labels(unit(w), one, seed + 200, ask, "ball", "spectrum", "margin")
    conditions = ask(y)
    known = conditions.constants
    far = solved_gradient(unit(known["rho"] / gamma), one, y)
    slope = float(far.grads["W"].norm() / far.error.norm())
    way = known["way of W"]
    before, after = (unit(weight) for weight in (w, w + way))
    roots = [math.sqrt(float(jacobian_ntk(k, one, tol=1e-13))) for k in (before, after)]
    pre = [
        float(k.structure().preactivation(k.solve(one, tol=1e-13).z, k.inject(one).detach()))
        for k in (before, after)
    ]
    return Unit(
        2 / conditions.rate * slope * known["error"] / way,
        (roots[1] - roots[0]) / conditions["spectrum"].need,
        (pre[1] - pre[0]) / conditions["margin"].need,
    )


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


def aligned(seed: int, n: int = 2, *, size: float = 3.0) -> tuple[VanillaDEQ, Tensor]:
    """Return orthonormal inputs and a network that attains ‖Z‖_F = c_a‖X‖_F up to 5 per cent.

    Each input has units of its own: Ux_i is along a vector f_i, up to 5 per cent, and
    Wf_i = 0.35f_i; on the complement W is random, of the same norm. ``size`` is ‖U(0)‖, and
    ‖a(0)‖ = 1.
    """
    g, m = generator(seed), 30
    f, X = disjoint(m, n, g), orthonormal(n, 4, seed + 100)
    others = f.sum(dim=1, keepdim=True) - f
    rest = torch.eye(m, dtype=torch.float64) - f @ f.mT
    W = 0.35 * f @ f.mT + stretched(rest @ normal(m, m, g=g) @ rest, 0.35)
    a = f @ (0.5 + torch.rand(n, generator=g, dtype=torch.float64))
    a = a + normal(m, g=g) / (2 * math.sqrt(m))  # else the gradient in W were symmetric
    U = stretched((f - 0.05 * others) @ X, size)
    return VanillaDEQ(W, U, a / a.norm()), X


def small_readout(
    seed: int, n: int = 2, *, printed: bool = False, labels: float = 0.9
) -> tuple[VanillaDEQ, Tensor, Tensor]:
    """Return a network that meets Condition 1: a read-out at 0.9 of (9'), near labels.

    ``printed`` takes (9) for (9'); ``labels`` is the share of (7) and (8).
    """
    base, X = aligned(seed, n)
    W, U, a = (p.detach() for p in (base.W, base.U, base.a))
    nine = vanilla.condition_one(base, X, outputs(base, X), DELTA, printed=printed).conditions[-1]
    radius = (1 + DELTA) * math.sqrt(0.9 / nine.ratio)  # (9') sees the square of ‖a(0)‖+δ
    model = VanillaDEQ(W, U, (radius - DELTA) * a)

    def ask(y: Tensor) -> Conditions:
        return vanilla.condition_one(model, X, y, DELTA)

    return model, X, near_labels(model, X, seed + 200, ask, "(7)", "(8)", share=labels)


def vanilla_corner(seed: int, *, norm: float = 0.0) -> dict[str, float]:
    """Return ‖∇L‖ ÷ c‖X‖_F‖e‖ by weight, where all weights are at the end of their balls.

    One unit vector f, W(0) = 0.6 ffᵀ and so on, three equal inputs, errors 1: the bounds are
    attained. ``norm`` is what W goes beyond its ball.
    """
    g, m = generator(seed), 12
    f, x = disjoint(m, 1, g)[:, 0], orthonormal(1, 3, seed + 100)

    def network(move: float, norm: float = 0.0) -> VanillaDEQ:
        W, U = (0.6 + move + norm) * torch.outer(f, f), (2 + move) * torch.outer(f, x[0])
        return VanillaDEQ(W, U, (0.3 + move) * f)

    far, X = network(0.1, norm), x.repeat(3, 1)
    y = outputs(far, X) - 1
    s = vanilla.scales(network(0.0), X, y, 0.1)
    found = solved_gradient(far, X, y)
    size = s.x * float(found.error.norm())
    return {k: float(g.norm()) / (s.gradients[k] * size) for k, g in found.grads.items()}


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


class VanillaRun(NamedTuple):
    """Conditions and scales of a network, a run from it, its ``frozen_gap``, ‖Z-Z(0)‖_F at the end.

    ``gradient`` is how far the first step is from that of automatic differentiation, relatively.
    """

    conditions: Conditions
    scales: vanilla.Scales
    run: Trajectory
    frozen: float
    moved: float
    gradient: float


@lru_cache(maxsize=16)
def near_vanilla(
    seed: int, n: int = 2, times_edge: float = 0.0, twins: bool = False, labels: float = 0.9
) -> VanillaRun:
    """Run descent on the network that meets Condition 1, at 0.99 of the step it admits.

    Until ``PROMISE``; or 40 steps ``times_edge`` ÷ λ_max(H(0)); or 40 steps from equal inputs, or
    from labels ``labels`` times as far as (7) and (8) admit.
    """
    model, X, y = small_readout(seed, n, labels=labels)
    conditions, s = vanilla.condition_one(model, X, y, DELTA), vanilla.scales(model, X, y, DELTA)
    step = times_edge / edge(model, X) if times_edge else 0.99 * conditions.step
    whole = not (times_edge or twins) and labels < 1
    X, y = torn(model, X, s.error) if twins else (X, y)
    run = descend(model, X, y, step, steps_for(conditions, step) if whole else 40, tol=1e-9)
    after = copy.deepcopy(model)
    before = model.solve(X, tol=1e-11).z
    run.restore(after)
    moved = float((after.solve(X, tol=1e-11, throw=False).z - before).norm())
    return VanillaRun(
        conditions, s, run, frozen_gap(model, X, run), moved, gradient_gap(model, X, y)
    )


def gradient_gap(model: Dense, X: Tensor, y: Tensor) -> float:
    """Return how far a step of descent is from the gradient of automatic differentiation."""
    first = descend(model, X, y, 1e-3, 1)
    loss = 0.5 * (model(X, tol=1e-13) - y).pow(2).sum()
    names = list(first.start)
    exact = torch.autograd.grad(loss, [getattr(model, name) for name in names])
    off, size = 0.0, 0.0
    for name, g in zip(names, exact):
        moved = torch.from_numpy(first.start[name] - first.end[name]) / first.step
        off, size = off + float((moved - g).pow(2).sum()), size + float(g.pow(2).sum())
    return math.sqrt(off / size)
