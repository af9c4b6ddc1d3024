"""Chapter 3c, training an unrolled OptEq: the eight claims of xie2022 about K steps and descent.

The network is the K-step iteration of chapter 2, run on a batch. Its bounds are computed from the
sizes of the parameters alone (``deqbook.bounds.opteq``) and compared with derivatives by automatic
differentiation. Two statements are false as printed; here their true versions run, and the printed
ones are the controls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deqbook.activations import Activation, relu
from deqbook.bounds.opteq import (
    Compact,
    Schedule,
    frozen_bound,
    pl_ball_conditions,
    printed_constants,
    printed_gradient_bound,
    printed_layer_bound,
)
from deqbook.claims.ch02 import SOFT, commutation, eye, kron, relative, vec
from deqbook.claims.instances import segment_instance
from deqbook.claims.registry import (
    Measurement,
    Trial,
    at_least,
    at_most,
    claim,
    equal,
    given,
    within,
)
from deqbook.linalg import operator_norm
from deqbook.runtime import generator, normal

CHAPTER = "03c_monotone_opteq"
SAME = 1e-10  # two exact routes

Theta = dict[str, Tensor]  # W1, U1, b1, …, V; and W0 where the features are trained
Pull = Callable[[Theta, Tensor], Tensor]  # ∇R, row by row

KAPPA, BEND = 0.3, 0.175  # least slope and largest |σ''| of the activation SOFT
LIFTED = Activation(  # SOFT without the shift that makes it vanish at 0
    "0.3t + 0.7 softplus, unshifted", lambda t: SOFT(t) + 0.7 * math.log(2.0), SOFT.slope, SOFT.prox
)


# --- the network -------------------------------------------------------------------------------


def no_pull(theta: Theta, Z: Tensor) -> Tensor:
    """Return ∇R for R = 0."""
    return torch.zeros_like(Z)


@dataclass(frozen=True)
class Unrolled:
    """What is not trained: the skip weight, the steps, the activation, the regulariser, Z⁽⁰⁾."""

    start: Tensor
    alpha: float
    betas: tuple[float, ...]
    decays: tuple[float, ...]
    gamma: float = 0.5
    sigma: Activation = SOFT
    pull: Pull = no_pull

    def selection(self, theta: Theta, Z: Tensor, k: int) -> Tensor:
        """Return s_k(Z) = (1-γλ_k)Z - γ∇R(Z); k counts from 0 here."""
        return (1 - self.gamma * self.decays[k]) * Z - self.gamma * self.pull(theta, Z)


def depth(theta: Theta) -> int:
    """Return the number of layers."""
    return sum(name.startswith("b") for name in theta)


def layer(theta: Theta, X: Tensor, net: Unrolled, Z: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """Return f_i(Z) and the pre-activations W_i Z + U_i X + b_i."""
    W = theta[f"W{i}"]
    pre = Z @ W.mT + X @ theta[f"U{i}"].mT + theta[f"b{i}"]
    return net.alpha * net.sigma(pre) @ W + (1 - net.alpha) * Z, pre


def states(theta: Theta, X: Tensor, net: Unrolled) -> list[list[Tensor]]:
    """Return, step by step, Z⁽ᵏ⁾ and the states after each layer; last, [Z⁽ᴷ⁾]."""
    Z, seen = net.start, []
    for k, beta in enumerate(net.betas):
        row = [Z]
        for i in range(1, depth(theta) + 1):
            row.append(layer(theta, X, net, row[-1], i)[0])
        seen.append(row)
        Z = beta * net.selection(theta, Z, k) + (1 - beta) * row[-1]
    return [*seen, [Z]]


def unrolled(theta: Theta, X: Tensor, net: Unrolled) -> Tensor:
    """Return Z⁽ᴷ⁾, the state after K steps of the modified averaging method."""
    return states(theta, X, net)[-1][0]


def outputs(theta: Theta, X: Tensor, net: Unrolled) -> Tensor:
    """Return the predictions VZ⁽ᴷ⁾, sample by sample."""
    return (unrolled(theta, X, net) @ theta["V"].mT).flatten()


def jacobians(function: Callable[[Theta], Tensor], theta: Theta) -> Theta:
    """Return the Jacobian in each parameter, one column per entry of its vec."""
    full = torch.func.jacrev(lambda t: function(t).flatten())(theta)
    return {k: vec(J) if J.ndim == 3 else J for k, J in full.items()}


def stacked(parts: Theta) -> Tensor:
    """Return the Jacobian in all parameters side by side."""
    return torch.cat([parts[k] for k in sorted(parts)], dim=1)


def unstacked(direction: Tensor, like: Theta) -> Theta:
    """Undo ``stacked`` for one row: return the matrices of a direction in parameter space."""
    names = sorted(like)
    pieces = direction.split([like[k].numel() for k in names])
    return {
        k: p.reshape(like[k].mT.shape).mT if like[k].ndim == 2 else p for k, p in zip(names, pieces)
    }


def moved(theta: Theta, direction: Theta, step: float) -> Theta:
    """Return θ + step·direction."""
    return {k: p + step * direction[k] for k, p in theta.items()}


def with_spectrum(rows: int, m: int, low: float, high: float, g: torch.Generator) -> Tensor:
    """Return a random rows×m matrix whose singular values run evenly from high to low."""
    size = min(rows, m)
    left = torch.linalg.qr(normal(rows, size, g=g))[0]
    right = torch.linalg.qr(normal(m, size, g=g))[0]
    return left * torch.linspace(high, low, size, dtype=torch.float64) @ right.mT


@dataclass(frozen=True)
class Instance:
    """A network, its parameters, its inputs, and the compact set that the bounds use."""

    net: Unrolled
    theta: Theta
    X: Tensor
    size: Compact


def instance(
    seed: int,
    *,
    norm: float = 0.9,
    assumed: float = 0.9,
    n: int = 3,
    d: int = 3,
    m: int = 4,
    widths: Sequence[int] = (3, 4),
    steps: int = 8,
    alpha: float = 0.5,
    sigma: Activation = SOFT,
    inputs: float = 1.0,
    pull: float = 1.0,
) -> Instance:
    """Draw a network with ‖W_l‖ = norm, ‖U_l‖ = ‖b_l‖ = inputs and R = ½‖z-a‖².

    The bounds are computed for ‖W_l‖ ≤ assumed: a control lets the two differ.
    """
    g, plan = generator(seed), Schedule()
    theta: Theta = {"V": normal(2, m, g=g) / math.sqrt(m)}
    for i, h in enumerate(widths, start=1):
        theta[f"W{i}"] = with_spectrum(h, m, 0.5 * norm, norm, g)
        U, b = normal(h, d, g=g), normal(h, g=g)
        theta[f"U{i}"], theta[f"b{i}"] = inputs * U / operator_norm(U), inputs * b / b.norm()
    X, start, centre = normal(n, d, g=g), normal(n, m, g=g), pull * normal(n, m, g=g)
    ks = range(1, steps + 1)
    betas = tuple(plan.beta(k) for k in ks)
    net = Unrolled(
        start,
        alpha,
        betas,
        tuple(plan.decay(k) for k in ks),
        gamma=plan.gamma,
        sigma=sigma,
        pull=lambda theta, Z: Z - centre,
    )
    size = Compact(
        n=n,
        widths=tuple(widths),
        alpha=alpha,
        betas=betas,
        norm=assumed,
        inputs=inputs,
        data=float(X.norm()),
        readout=operator_norm(theta["V"]),
        sigma0=float(sigma(torch.zeros(())).abs()),
        bend=BEND,
        start=float(start.norm()),
        gamma=plan.gamma,
        pull=float(centre.norm()),
    )
    return Instance(net, theta, X, size)


def from_zero(case: Instance) -> Instance:
    """Return the same network started at 0, so that its size is its own doing."""
    net = replace(case.net, start=torch.zeros_like(case.net.start))
    return replace(case, net=net, size=replace(case.size, start=0.0))


def _largest_norm(theta: Theta) -> Measurement:
    norms = [operator_norm(theta[f"W{i}"]) for i in range(1, depth(theta) + 1)]
    return given("largest ‖W_l‖", max(norms), "≤", 1.0)


def _worst(values: Iterable[float]) -> float:
    """Return the largest value; a NaN stays."""
    return float(torch.tensor(list(values), dtype=torch.float64).max())


# --- the iterates stay bounded -----------------------------------------------------------------


def _contracting_states(seed: int, norm: float) -> Iterator[Measurement]:
    case = from_zero(instance(seed, norm=norm, steps=100, sigma=LIFTED, pull=2.0))
    run = states(case.theta, case.X, case.net)
    yield _largest_norm(case.theta)
    yield at_most("largest ‖Z(k)‖ in 100 steps", _worst(r[0].norm() for r in run), case.size.state)
    between = _worst(z.norm() for r in run for z in r[1:])
    yield at_most("largest state between two layers", between, case.size.layer)


def _largest_iterate(
    T: Callable[[Tensor], Tensor], z: Tensor, centre: Tensor, weight: float, steps: int = 2000
) -> float:
    """Return max ‖z⁽ᵏ⁾‖ for R = ½·weight·‖z-centre‖²."""
    plan, largest = Schedule(), float(z.norm())
    for k in range(1, steps + 1):
        s = (1 - plan.gamma * plan.decay(k)) * z - plan.gamma * weight * (z - centre)
        z = plan.beta(k) * s + (1 - plan.beta(k)) * T(z)
        largest = _worst((largest, float(z.norm())))
    return largest


NOT_CONTRACTING = "T does not contract: largest ‖z(k)‖ in 2000 steps"


@claim(
    "xie2022.lemma12",
    title="The iterates of the unrolled network stay in a ball, whatever the number of steps",
    chapter=CHAPTER,
    ref="lem-opteq-states",
)
def states_bounded(trial: Trial) -> Iterable[Measurement]:
    """Run 100 steps of a contraction, and 2000 on the OptEq whose equilibria form a segment."""
    yield from _contracting_states(trial.seed, 0.9)
    model, low, high = segment_instance()
    W, b = model.W.detach(), model.bs[0].detach()

    def T(z: Tensor) -> Tensor:
        return torch.relu(z @ W.mT + b) @ W

    centre, start = 2 * normal(4, g=trial.g), 2 * normal(4, g=trial.g)
    # ⟨(1+λ)z - a, z - p⟩ ≤ 0 for every frozen fixed point z and every equilibrium p: z is in the
    # ball with diameter from p to a/(1+λ), so ‖z‖² ≤ ‖p‖² + ‖a‖²
    fixed = math.hypot(max(float(low.norm()), float(high.norm())), float(centre.norm()))
    origin, pull = float(T(torch.zeros_like(b)).norm()), float(centre.norm())
    bound = frozen_bound(
        Schedule(), fixed=fixed, start=float(start.norm()), origin=origin, pull=pull
    )
    yield at_most(NOT_CONTRACTING, _largest_iterate(T, start, centre, 1.0), bound)


@states_bounded.control("a weight of norm 2, the bound for norm 0.9")
def states_expand(trial: Trial) -> Iterable[Measurement]:
    """Layers that expand: the state grows without limit."""
    return list(_contracting_states(trial.seed, 2.0))


@states_bounded.control("no equilibrium: T(z) = σ(z+1); B₁ is that of the first step")
def states_drift(trial: Trial) -> Iterable[Measurement]:
    """The fixed points of the single steps run away, and the iterates follow."""
    plan, zero = Schedule(), torch.zeros(1, dtype=torch.float64)
    first = (1 - plan.beta(1)) / (plan.beta(1) * plan.gamma * plan.decay(1))
    bound = frozen_bound(plan, fixed=first, start=0.0, origin=1.0, pull=0.0)
    largest = _largest_iterate(lambda z: torch.relu(z + 1), zero, zero, 0.0)
    yield at_most(NOT_CONTRACTING, largest, bound)


# --- one layer, one step -----------------------------------------------------------------------


def _layer_matrices(case: Instance, row: Sequence[Tensor]) -> list[Tensor]:
    """Return the dense Jacobians J_1, …, J_L of the layers in the state, for the whole batch."""
    found = []
    for i, Z in enumerate(row[:-1], start=1):
        W, pre = case.theta[f"W{i}"], layer(case.theta, case.X, case.net, Z, i)[1]
        blocks = [W.mT @ (slope[:, None] * W) for slope in case.net.sigma.slope(pre)]
        found.append(
            case.net.alpha * torch.block_diag(*blocks) + (1 - case.net.alpha) * eye(Z.numel())
        )
    return found


def _step_matrices(case: Instance) -> list[tuple[Tensor, list[Tensor]]]:
    """Return for each step the matrix that carries derivatives, and J_L⋯J_l for each l."""
    found = []
    for k, row in enumerate(states(case.theta, case.X, case.net)[:-1]):
        J, tails = _layer_matrices(case, row), []
        product = eye(row[0].numel())
        for one in reversed(J):
            product = product @ one
            tails.append(product)
        beta, gamma = case.net.betas[k], case.net.gamma
        S = (1 - gamma * case.net.decays[k] - gamma) * eye(len(product))
        found.append((beta * S + (1 - beta) * product, tails))
    return found


def _products(case: Instance) -> Iterator[Measurement]:
    steps = _step_matrices(case)
    tails = _worst(operator_norm(A) for _, found in steps for A in found)
    yield at_most("‖J_L⋯J_l‖, worst step and layer", tails, 1.0)
    product = eye(len(steps[0][0]))
    for step, _ in steps:
        product = step @ product
    yield at_most("‖product of all steps‖", operator_norm(product), 1.0)


def _layer_ratios(case: Instance) -> dict[str, float]:
    """Return ‖∂f_l/∂p‖ ÷ α for p = W, U, b; the worst over steps and layers."""
    worst: dict[str, list[float]] = {"W": [], "U": [], "b": []}
    for row in states(case.theta, case.X, case.net)[:-1]:
        for i, Z in enumerate(row[:-1], start=1):

            def one(part: Theta, i: int = i, Z: Tensor = Z) -> Tensor:
                return layer({**case.theta, **part}, case.X, case.net, Z, i)[0]

            part = {f"{k}{i}": case.theta[f"{k}{i}"] for k in worst}
            for name, J in jacobians(one, part).items():
                worst[name[0]].append(operator_norm(J) / case.net.alpha)
    return {k: _worst(v) for k, v in worst.items()}


def _layer_bounds(case: Instance) -> Iterator[Measurement]:
    found, size = _layer_ratios(case), case.size
    yield at_most("‖∂f_l/∂W_l‖ ÷ α", found["W"], max(size.in_W(h) for h in size.widths))
    yield at_most("‖∂f_l/∂U_l‖ ÷ α", found["U"], operator_norm(case.X))
    yield at_most("‖∂f_l/∂b_l‖ ÷ α", found["b"], math.sqrt(size.n))


def _many_samples(seed: int, *, printed: bool = False) -> Measurement:
    """Measure ∂f/∂W for small weights, σ(0) > 0 and far more samples than units."""
    case = instance(
        seed, norm=0.01, assumed=0.01, n=400, d=2, m=2, widths=(2,), steps=1, sigma=LIFTED,
        inputs=0.01, pull=0.0,
    )  # fmt: skip
    case = from_zero(case)
    bound = printed_layer_bound(case.size, 2, 2) if printed else case.size.in_W(2)
    return at_most("σ(0) ≠ 0, 400 samples: ‖∂f/∂W‖ ÷ α", _layer_ratios(case)["W"], bound)


@claim(
    "xie2022.lemma14",
    title="Derivatives of one layer, and products of steps, have explicit bounds",
    chapter=CHAPTER,
    ref="lem-opteq-layer",
)
def layer_derivatives(trial: Trial) -> Iterable[Measurement]:
    """Differentiate every layer at every step by automatic differentiation."""
    case = instance(trial.seed)
    yield _largest_norm(case.theta)
    yield from _products(case)
    yield from _layer_bounds(case)
    yield _many_samples(trial.seed)


@layer_derivatives.control("a weight of norm 3, the bounds for norm 0.9")
def large_weights(trial: Trial) -> Iterable[Measurement]:
    """Products of steps grow, and so does each layer's derivative."""
    case = instance(trial.seed, norm=3.0)
    yield _largest_norm(case.theta)
    yield from _products(case)
    yield from _layer_bounds(case)


@layer_derivatives.control("the root of m·n_l in place of n·n_l, as printed")
def samples_forgotten(trial: Trial) -> Iterable[Measurement]:
    """The activation's value at 0 is met once per sample and unit."""
    yield _many_samples(trial.seed, printed=True)


# --- all steps ---------------------------------------------------------------------------------


def _parameter_bound(case: Instance, name: str) -> float:
    """Return α·(C_z, ‖X‖, √n): what one pass through layer l can add."""
    size = case.size
    width = size.widths[int(name[1]) - 1]
    one = {"W": size.in_W(width), "U": operator_norm(case.X), "b": math.sqrt(size.n)}
    return size.alpha * one[name[0]]


def _layered(theta: Theta) -> Theta:
    return {k: p for k, p in theta.items() if k != "V"}


def _iterate_bounds(case: Instance, y: Tensor) -> Iterator[Measurement]:
    V, passes = case.theta["V"], case.size.passes

    def run(part: Theta) -> list[list[Tensor]]:
        return states({**case.theta, **part}, case.X, case.net)

    last = jacobians(lambda p: run(p)[-1][0], _layered(case.theta))
    inner = jacobians(lambda p: run(p)[-2][1], _layered(case.theta))  # after layer 1, last step
    error = run({})[-1][0] @ V.mT - y
    slopes = torch.func.grad(lambda p: 0.5 * (run(p)[-1][0] @ V.mT - y).pow(2).sum())
    gradient = slopes(_layered(case.theta))
    before = passes - (1 - case.net.betas[-1])
    for kind in "WUb":
        names = [k for k in last if k.startswith(kind)]
        one = {k: _parameter_bound(case, k) for k in names}
        ratio = _worst(operator_norm(last[k]) / one[k] for k in names)
        yield at_most(f"‖∂Z(K)/∂{kind}_l‖ ÷ α(…), worst layer", ratio, passes)
        ratio = _worst(operator_norm(inner[k]) / (one[k] * (before + (k[1] == "1"))) for k in names)
        yield at_most(f"the same between layers, ÷ passes, {kind}", ratio, 1.0)
        ratio = _worst(float(gradient[k].norm()) / one[k] for k in names)
        bound = passes * operator_norm(V) * float(error.norm())
        yield at_most(f"‖∂𝓛/∂{kind}_l‖ ÷ α(…), worst layer", ratio, bound)


def _all_steps(seed: int, **options: float) -> Iterator[Measurement]:
    case = instance(seed, steps=int(options.get("steps", 8)), norm=options.get("norm", 0.9))
    yield _largest_norm(case.theta)
    yield from _iterate_bounds(case, normal(3, 2, g=generator(seed + 100)))


@claim(
    "xie2022.lemma15",
    title="Derivatives of the state and of the loss grow at most linearly with the steps",
    chapter=CHAPTER,
    ref="lem-opteq-iterates",
)
def iterate_derivatives(trial: Trial) -> Iterable[Measurement]:
    """Differentiate the whole network in every W_l, U_l and b_l."""
    return _all_steps(trial.seed)


@iterate_derivatives.control("a weight of norm 2 and 30 steps, the bounds for norm 0.9")
def exploding(trial: Trial) -> Iterable[Measurement]:
    """Derivatives grow exponentially with the steps."""
    return list(_all_steps(trial.seed, norm=2.0, steps=30))


def _feature_bounds(seed: int, norm: float = 0.9, steps: int = 8) -> Iterator[Measurement]:
    case = instance(seed, norm=norm, steps=steps)
    g = generator(seed + 100)
    raw, W0, y = normal(3, 5, g=g), normal(3, 5, g=g) / 3, normal(3, 2, g=g)
    size, V = case.size, case.theta["V"]

    def state(X: Tensor) -> Tensor:
        return unrolled(case.theta, X, case.net)

    J = torch.func.jacrev(lambda X: state(X).flatten())(raw @ W0.mT).flatten(1)
    bound = size.alpha * size.L * size.inputs * size.passes
    yield _largest_norm(case.theta)
    yield at_most("‖∂Z(K)/∂X‖", operator_norm(J), bound)

    def loss(W: Tensor) -> Tensor:
        return 0.5 * (state(raw @ W.mT) @ V.mT - y).pow(2).sum()

    error = float((state(raw @ W0.mT) @ V.mT - y).norm())
    bound = bound * operator_norm(raw) * operator_norm(V) * error
    yield at_most("‖∂𝓛/∂W₀‖, features X = X₀W₀ᵀ", float(torch.func.grad(loss)(W0).norm()), bound)


@claim(
    "xie2022.lemma17",
    title="The state depends on the features with constant at most αLB per pass",
    chapter=CHAPTER,
    ref="lem-opteq-features",
)
def feature_sensitivity(trial: Trial) -> Iterable[Measurement]:
    """Differentiate in the features, and in the weight of linear features."""
    return _feature_bounds(trial.seed)


@feature_sensitivity.control("a weight of norm 2 and 30 steps, the bounds for norm 0.9")
def features_explode(trial: Trial) -> Iterable[Measurement]:
    """The input is amplified at every step."""
    return list(_feature_bounds(trial.seed, norm=2.0, steps=30))


# --- a regulariser that contains the read-out --------------------------------------------------


def _readout_instance(seed: int, norm: float, steps: int) -> Instance:
    """Return the network with R(z) = ½‖Vz‖², so that V acts during the iteration."""
    case = instance(seed, norm=norm, steps=steps, pull=0.0)
    plan, V = Schedule(smoothness=operator_norm(case.theta["V"]) ** 2), case.theta["V"]
    ks = range(1, steps + 1)
    betas = tuple(plan.beta(k) for k in ks)
    net = replace(
        case.net,
        betas=betas,
        decays=tuple(plan.decay(k) for k in ks),
        gamma=plan.gamma,
        pull=lambda theta, Z: Z @ theta["V"].mT @ theta["V"],
    )
    size = replace(case.size, betas=betas, gamma=plan.gamma, readout=operator_norm(V))
    return replace(case, net=net, size=size)


def _readout_recursion(case: Instance, sign: float) -> Tensor:
    """Propagate ∂Z/∂V by the lemma; ``sign`` is that of the source term."""
    V, net = case.theta["V"], case.net
    n, m = net.start.shape
    total = torch.zeros(n * m, V.numel(), dtype=torch.float64)
    for k, row in enumerate(states(case.theta, case.X, net)[:-1]):
        Z, beta = row[0], net.betas[k]
        product = eye(n * m)
        for one in _layer_matrices(case, row):
            product = one @ product
        S = (1 - net.gamma * net.decays[k]) * eye(n * m) - net.gamma * kron(eye(n), V.mT @ V)
        source = kron(Z @ V.mT, eye(m)) @ commutation(*V.shape)
        source = source + kron(eye(n), V.mT) @ kron(Z, eye(len(V)))
        total = (beta * S + (1 - beta) * product) @ total + sign * net.gamma * beta * source
    return total


def _readout_bounds(
    seed: int, *, norm: float = 0.9, steps: int = 8, sign: float = -1.0
) -> Iterator[Measurement]:
    case = _readout_instance(seed, norm, steps)
    V, y, size = case.theta["V"], normal(3, 2, g=generator(seed + 100)), case.size

    def state(part: Theta) -> Tensor:
        return unrolled({**case.theta, **part}, case.X, case.net)

    J = jacobians(state, {"V": V})["V"]
    off = relative(_readout_recursion(case, sign), J)
    yield within("∂Z(K)/∂V: recursion vs autograd", off, SAME)
    yield _largest_norm(case.theta)
    yield at_most("‖∂Z(K)/∂V‖", operator_norm(J), size.in_V())
    error = state({}) @ V.mT - y

    def loss(V: Tensor) -> Tensor:
        return 0.5 * (state({"V": V}) @ V.mT - y).pow(2).sum()

    bound = (1 + sum(size.betas)) * size.state * float(error.norm())
    yield at_most("‖∂𝓛/∂V‖", float(torch.func.grad(loss)(V).norm()), bound)


@claim(
    "xie2022.lemma18",
    title="If the regulariser contains the read-out, the state feels it at most 2γB*‖V‖ per step",
    chapter=CHAPTER,
    ref="lem-opteq-readout",
)
def readout_sensitivity(trial: Trial) -> Iterable[Measurement]:
    """Compare the recursion with automatic differentiation, and both with the bound."""
    return _readout_bounds(trial.seed)


@readout_sensitivity.control("the source term with the sign as legible in print")
def readout_sign(trial: Trial) -> Iterable[Measurement]:
    """The regulariser pulls; a plus sign would make it push."""
    found = _readout_bounds(trial.seed, sign=1.0)
    return [m for m in found if "recursion" in m.name]


@readout_sensitivity.control("a weight of norm 2 and 30 steps, the bounds for norm 0.9")
def readout_explodes(trial: Trial) -> Iterable[Measurement]:
    """The iterates leave the ball, and the derivative follows."""
    found = _readout_bounds(trial.seed, norm=2.0, steps=30)
    return [m for m in found if "recursion" not in m.name]


# --- two parameters ----------------------------------------------------------------------------


def _with_features(seed: int, norm: float, steps: int) -> tuple[Instance, Tensor]:
    """Return a network whose parameters include W₀ with X = X₀W₀ᵀ (and not V), and X₀."""
    case = instance(seed, norm=norm, steps=steps, alpha=0.1)
    raw = 0.5 * normal(3, 5, g=generator(seed + 100))
    W0 = torch.linalg.lstsq(raw, case.X).solution.mT
    size = replace(
        case.size,
        norm=0.91,  # room for both ends of the segments drawn below
        inputs=1.01 * case.size.inputs,
        data=1.01 * case.size.data,
        features=operator_norm(raw),
    )
    return replace(case, theta={**_layered(case.theta), "W0": W0}, size=size), raw


def _differences(case: Instance, raw: Tensor, a: Theta, b: Theta) -> dict[str, float]:
    """Return the change of states, slopes, J_L⋯J_1 and ∂Z/∂θ from a to b, per unit of θ."""

    def state(theta: Theta) -> Tensor:
        return unrolled(theta, raw @ theta["W0"].mT, case.net)

    ends = [replace(case, theta=t, X=raw @ t["W0"].mT) for t in (a, b)]
    runs = [states(c.theta, c.X, c.net) for c in ends]
    change = [float((p - q).norm()) for r, s in zip(*runs) for p, q in zip(r, s)]
    slopes, products = [], []
    for rows in zip(*(run[:-1] for run in runs)):
        for i in range(1, case.size.L + 1):
            pre = [layer(c.theta, c.X, c.net, r[i - 1], i)[1] for c, r in zip(ends, rows)]
            D, other = (case.net.sigma.slope(p) for p in pre)
            slopes.append(float((D - other).abs().max()))
        A, B = (torch.linalg.multi_dot(_layer_matrices(c, r)[::-1]) for c, r in zip(ends, rows))
        products.append(operator_norm(A - B))
    J, other = (stacked(jacobians(state, t)) for t in (a, b))
    distance = math.sqrt(sum(float((a[k] - b[k]).pow(2).sum()) for k in a))
    found = {
        "states": _worst(change),
        "slopes D": _worst(slopes),
        "product J_L⋯J_1": _worst(products),
        "Jacobian ∂Z/∂θ": operator_norm(J - other),
    }
    return {k: v / distance for k, v in found.items()}


def _lipschitz(size: Compact, found: dict[str, float]) -> Iterator[Measurement]:
    bounds = {
        "states": size.state_lipschitz,
        "slopes D": size.pattern_lipschitz,
        "product J_L⋯J_1": size.product_lipschitz,
        "Jacobian ∂Z/∂θ": size.jacobian_lipschitz,
    }
    for name, value in found.items():
        yield at_most(f"{name}: change per unit of θ", value, bounds[name])


def _pairs(seed: int, *, norm: float = 0.9, steps: int = 8) -> Iterator[Measurement]:
    case, raw = _with_features(seed, norm, steps)
    theta, g = case.theta, generator(seed + 200)
    J = stacked(jacobians(lambda t: unrolled(t, raw @ t["W0"].mT, case.net), theta))
    # the direction in which the state moves most, and random ones
    directions = [torch.linalg.svd(J, full_matrices=False).Vh[0], *normal(3, J.shape[1], g=g)]
    found = []
    for one in directions:
        other = moved(theta, unstacked(one / one.norm(), theta), 0.005)
        found.append(_differences(case, raw, theta, other))
    yield _largest_norm(theta)
    yield from _lipschitz(case.size, {k: _worst(f[k] for f in found) for k in found[0]})


@claim(
    "xie2022.lemma19",
    title="States, slopes, products and Jacobians are Lipschitz in the parameters",
    chapter=CHAPTER,
    ref="lem-opteq-lipschitz",
)
def lipschitz_constants(trial: Trial) -> Iterable[Measurement]:
    """Compare pairs of parameters, one along the direction in which the state moves most."""
    return _pairs(trial.seed)


@lipschitz_constants.control("a weight of norm 3 and 30 steps, the bounds for norm 0.91")
def pairs_explode(trial: Trial) -> Iterable[Measurement]:
    """Two close parameters end far apart; slopes saturate, so they need not tell."""
    names = ("hypothesis", "states", "Jacobian")
    found = _pairs(trial.seed, norm=3.0, steps=30)
    return [m for m in found if m.name.startswith(names)]


@lipschitz_constants.control("ReLU, whose slope jumps; a unit is switched by 2e-6 of bias")
def kinked(trial: Trial) -> Iterable[Measurement]:
    """States stay Lipschitz; slopes, and all that contains them, do not."""
    case, raw = _with_features(trial.seed, 0.9, 8)
    case = replace(case, net=replace(case.net, sigma=relu))
    pre = layer(case.theta, case.X, case.net, case.net.start, 1)[1]
    ends = []
    for side in (-1e-6, 1e-6):
        bias = case.theta["b1"].clone()
        bias[0] += side - pre[0, 0]
        ends.append({**case.theta, "b1": bias})
    size = replace(case.size, inputs=max(case.size.inputs, float(ends[0]["b1"].norm())))
    found = _differences(case, raw, *ends)
    yield from _lipschitz(size, {k: v for k, v in found.items() if k != "states"})


# --- descent -----------------------------------------------------------------------------------

CAP = 0.05  # the largest ball for which the constants below are valid


@dataclass(frozen=True)
class Task:
    """An unrolled network to be trained in all its parameters, and what is printed about it."""

    net: Unrolled
    theta: Theta
    X: Tensor
    size: Compact
    sigma_m: float

    def outputs(self, theta: Theta) -> Tensor:
        """Return the predictions."""
        return outputs(theta, self.X, self.net)

    def jacobian(self, theta: Theta) -> Tensor:
        """Return J, one row per prediction."""
        return stacked(jacobians(self.outputs, theta))

    def printed(self) -> float:
        """Return the printed lower bound on ‖∇𝓛‖² ÷ ‖e‖²."""
        return printed_gradient_bound(
            K=self.size.K,
            L=self.size.L,
            alpha=self.size.alpha,
            kappa=KAPPA,
            sigma_m=self.sigma_m,
            n=self.size.n,
            sigma_v=float(self.theta["V"].norm()),
        )


def task(seed: int, *, gap: float | None = None, n: int = 4, d: int = 4, m: int = 5) -> Task:
    """Draw a two-layer network that meets the conditions of the printed Lemma 16.

    Singular values of W_l between 0.6 and 0.75, slopes at least 0.3, αKL = 1, ‖V‖ = 1. The
    inputs are in general position, their singular values between 1.5 and 2.5; with a ``gap``
    the second is moved to that distance from the first.
    """
    g, alpha, plan, widths = generator(seed), 0.1, Schedule(), (4, 4)
    V, X = normal(1, m, g=g), with_spectrum(n, d, 1.5, 2.5, g)
    if gap is not None:
        X[1] = X[0] + gap * X[1] / X[1].norm()
    theta: Theta = {"V": V / V.norm()}
    for i, h in enumerate(widths, start=1):
        theta[f"W{i}"] = with_spectrum(h, m, 0.6, 0.75, g)
        theta[f"U{i}"] = normal(h, d, g=g) / math.sqrt(d)
        theta[f"b{i}"] = torch.zeros(h, dtype=torch.float64)
    ks = range(1, 6)
    net = Unrolled(
        torch.zeros(n, m, dtype=torch.float64),
        alpha,
        tuple(plan.beta(k) for k in ks),
        tuple(plan.decay(k) for k in ks),
        gamma=plan.gamma,
        pull=lambda theta, Z: Z,
    )
    size = Compact(
        n=n,
        widths=widths,
        alpha=alpha,
        betas=net.betas,
        norm=0.75 + CAP,
        inputs=max(operator_norm(theta[f"U{i}"]) for i in (1, 2)) + CAP,
        data=float(X.norm()),
        readout=1 + CAP,
        sigma0=0.0,
        bend=BEND,
        gamma=net.gamma,
    )
    return Task(net, theta, X, size, sigma_m=0.6)


def _gradient_square(one: Task, error: Tensor) -> float:
    """Return ‖∇𝓛‖² by automatic differentiation, for labels that leave this error."""
    y = one.outputs(one.theta) - error
    found = torch.func.grad(lambda t: 0.5 * (one.outputs(t) - y).pow(2).sum())(one.theta)
    return sum(float(g.pow(2).sum()) for g in found.values())


def _rank(H: Tensor) -> Measurement:
    values = torch.linalg.eigvalsh(H)
    return given("least ÷ largest eigenvalue of H", float(values[0] / values[-1]), "≥", 1e-10)


LOWEST = "‖∇𝓛‖² ÷ ‖e‖², the error that moves least"


@claim(
    "xie2022.lemma16",
    title="‖∇𝓛‖² = eᵀHe ≥ 2λ_min(H)𝓛: the tangent kernel is the constant",
    chapter=CHAPTER,
    ref="lem-kernel-gradient",
)
def kernel_gradient(trial: Trial) -> Iterable[Measurement]:
    """Compare the gradient of the loss with H = JJᵀ, for a random error and for the worst one."""
    one = task(trial.seed)
    J = one.jacobian(one.theta)
    H = J @ J.mT
    yield _rank(H)
    values, vectors = torch.linalg.eigh(H)
    e = normal(len(H), g=trial.g)
    yield equal("‖∇𝓛‖² ÷ eᵀHe", _gradient_square(one, e) / float(e @ H @ e), 1, SAME)
    square = _gradient_square(one, e) / float(e @ e)
    yield at_least("‖∇𝓛‖² ÷ ‖e‖², a random error", square, float(values[0]))
    square = _gradient_square(one, vectors[:, 0])
    yield at_least(LOWEST, square, float(values[0]) * (1 - 1e-9))  # equality, up to rounding


@kernel_gradient.control("the printed constant, two equal inputs with different labels")
def equal_inputs_gradient(trial: Trial) -> Iterable[Measurement]:
    """Both samples have one prediction: errors (1, -1) leave every gradient 0."""
    one = task(trial.seed, gap=0.0)
    J = one.jacobian(one.theta)
    yield _rank(J @ J.mT)
    e = torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    yield at_least(LOWEST, _gradient_square(one, e) / 2, one.printed())


@kernel_gradient.control("the printed constant, inputs all different, two at distance 0.1")
def printed_gradient(trial: Trial) -> Iterable[Measurement]:
    """The printed constant does not see how close two inputs are; the kernel does."""
    one = task(trial.seed, gap=0.1)
    J = one.jacobian(one.theta)
    e = torch.linalg.eigh(J @ J.mT).eigenvectors[:, 0]
    yield at_least(LOWEST, _gradient_square(one, e), one.printed())


@dataclass(frozen=True)
class Descent:
    """What gradient descent did: losses, least eigenvalues of H, and the parameters (flat)."""

    loss: list[float]
    kernel_min: list[float]
    path: list[Tensor]


def descend(one: Task, y: Tensor, step: float, epochs: int) -> Descent:
    """Run θ ← θ - step·Jᵀe for so many epochs."""
    theta, found = one.theta, Descent([], [], [])
    for epoch in range(epochs + 1):
        J, e = one.jacobian(theta), one.outputs(theta) - y
        found.loss.append(0.5 * float(e @ e))
        found.kernel_min.append(float(torch.linalg.eigvalsh(J @ J.mT)[0]))
        found.path.append(torch.cat([theta[k].flatten() for k in sorted(theta)]))
        if epoch < epochs:
            theta = moved(theta, unstacked(e @ J, theta), -step)
    return found


FINAL = "final loss ÷ promised (1-ηλ₀/2)ᵗ𝓛₀"
TRAVEL = "largest distance from the start ÷ ρ"


def _linear_training(
    seed: int, *, along: int = 0, epochs: int = 60, factor: float | None = None
) -> Iterator[Measurement]:
    """Descend from an error along one eigenvector of H, as large as the theorem allows.

    ``factor`` replaces the theorem's step by factor ÷ λ_max(H).
    """
    one = task(seed)
    J = one.jacobian(one.theta)
    values, vectors = torch.linalg.eigh(J @ J.mT)
    low, high = float(values[0]), float(values[-1])
    C = one.size.output_lipschitz
    radius = 0.999 * (1 - 1 / math.sqrt(2)) * math.sqrt(low) / C
    loss = 0.999 * (radius * math.sqrt(low) / 4) ** 2
    y = one.outputs(one.theta) - math.sqrt(2 * loss) * vectors[:, along]
    asked = pl_ball_conditions(
        kernel_min=low, kernel_max=high, loss=loss, lipschitz=C, radius=radius
    )
    step = asked.step if factor is None else factor / high
    run = descend(one, y, step, epochs)
    yield _rank(J @ J.mT)
    yield given("ρ, where the constant C is proved up to 0.05", radius, "≤", CAP)
    for c in asked.conditions[1:]:
        yield given(f"{c.name}, need ÷ have", c.ratio, "≤", 1.0)
    yield given("step ÷ largest step allowed", step / asked.step, "≤", 1.0)
    yield at_most(FINAL, run.loss[-1] / loss / (1 - step * low / 2) ** epochs, 1.0)
    each = [b / a + step * lam for a, b, lam in zip(run.loss, run.loss[1:], run.kernel_min)]
    yield at_most("worst step: 𝓛ₜ₊₁ ÷ 𝓛ₜ + ηλₜ", _worst(each), 1.0)
    yield at_most(TRAVEL, _worst(float((t - run.path[0]).norm()) for t in run.path) / radius, 1.0)
    shrink = math.sqrt(max(1 - step * low / 2, 0.0))
    left = [float((t - run.path[-1]).norm()) / shrink**i for i, t in enumerate(run.path[:-1])]
    yield at_most("‖θₜ-θ_T‖ ÷ (1-ηλ₀/2)^(t/2), worst t", _worst(left), asked.constants["travel"])
    yield at_least("least λₜ ÷ λ₀", min(run.kernel_min) / low, 0.5)


@claim(
    "xie2022.theorem5",
    title="Descent fits the data if the first kernel is definite and the first loss small",
    chapter=CHAPTER,
    ref="thm-pl-ball",
)
def linear_training(trial: Trial) -> Iterable[Measurement]:
    """Train from the worst error of the largest size that the theorem admits."""
    return _linear_training(trial.seed)


@linear_training.control("two equal inputs with different labels; the printed rate Q₀")
def equal_inputs_training(trial: Trial) -> Iterable[Measurement]:
    """Everything printed holds, and the loss does not move."""
    one = task(trial.seed, gap=0.0)
    J = one.jacobian(one.theta)
    yield _rank(J @ J.mT)
    e = torch.tensor([0.1, -0.1, 0.0, 0.0], dtype=torch.float64)
    step, epochs = 1 / operator_norm(J) ** 2, 20
    run = descend(one, one.outputs(one.theta) - e, step, epochs)
    promised = (1 - step * one.printed() / 4) ** epochs
    yield at_most(FINAL, run.loss[-1] / run.loss[0] / promised, 1.0)


@linear_training.control("a step of 4 ÷ λ_max(H), the error along the top eigenvector")
def step_too_long(trial: Trial) -> Iterable[Measurement]:
    """Each step multiplies the error by about -3."""
    names = (FINAL, TRAVEL, "worst step", "hypothesis: step")
    found = _linear_training(trial.seed, along=-1, epochs=8, factor=4.0)
    return [m for m in found if m.name.startswith(names)]


def printed_step(seed: int) -> tuple[Task, float, float, float]:
    """Return a small task, its labels' offset, and Q₀, Q₁ as printed.

    One sample, one layer, two units, two steps, α = 10⁻³, Z⁽⁰⁾ = (1, 1), no regulariser: the
    read-out sees a state of norm √2, and every term of Q₁ carries a factor α.
    """
    g, one = generator(seed), torch.ones(1, 2, dtype=torch.float64)
    net = Unrolled(one, 1e-3, (0.0, 0.0), (0.0, 0.0))
    theta: Theta = {
        "W1": with_spectrum(2, 2, 0.7, 0.75, g),
        "U1": 0.1 * torch.tensor([[1.0], [0.0]], dtype=torch.float64),
        "b1": torch.zeros(2, dtype=torch.float64),
        "V": torch.tensor([[0.6, 0.8]], dtype=torch.float64),
    }
    X = torch.ones(1, 1, dtype=torch.float64)
    # B* = 3/2 bounds both states; the source's caps are 3/2 of the initial norms
    size = Compact(
        n=1, widths=(2,), alpha=1e-3, betas=net.betas, norm=1.0, inputs=0.15, data=1.5,
        readout=1.5, sigma0=0.0, bend=BEND, start=math.sqrt(2), features=1.0,
    )  # fmt: skip
    offset = 3e-10  # so small that each inequality the source derives from large n holds
    found = printed_constants(
        size, m=2, state=1.5, kappa=KAPPA, sigma_m=0.45, sigma_v=1.0, loss=offset**2 / 2
    )
    return Task(net, theta, X, size, 0.45), offset, found["Q0"], found["Q1"]


@linear_training.control("the printed step 1 ÷ Q₁, with the printed rate Q₀")
def printed_step_diverges(trial: Trial) -> Iterable[Measurement]:
    """Q₁ forgets the curvature ‖Z‖² of the read-out: the step is too long by orders."""
    one, offset, Q0, Q1 = printed_step(trial.seed)
    y = one.outputs(one.theta) - offset
    step = 0.99 * min(1 / Q0, 1 / Q1)
    run = descend(one, y, step, 2)
    yield at_most(FINAL, run.loss[-1] / run.loss[0] / (1 - step * Q0) ** 2, 1.0)
