"""Unrolled OptEqs of xie2022, Appendix B: the network, its derivatives, and its descent.

The network is the K-step iteration of chapter 2, run on a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deqbook.activations import Activation, identity
from deqbook.linalg import commutation, eye, kron, operator_norm, vec
from deqbook.pages.p02_implicit_gradients.lab import SOFT
from deqbook.pages.p03c_monotone_opteq.lab.opteq_bounds import (
    Compact,
    pl_ball_conditions,
    printed_constants,
    printed_gradient_bound,
)
from deqbook.regularize.selection import Schedule
from deqbook.runtime import generator, normal

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

    @classmethod
    def scheduled(
        cls,
        start: Tensor,
        alpha: float,
        plan: Schedule,
        steps: int,
        *,
        sigma: Activation = SOFT,
        pull: Pull = no_pull,
    ) -> Unrolled:
        """Return so many steps with the weights β_k, λ_k and γ of a schedule."""
        betas = tuple(plan.beta(k) for k in range(1, steps + 1))
        decays = tuple(plan.decay(k) for k in range(1, steps + 1))
        return cls(start, alpha, betas, decays, plan.gamma, sigma, pull)

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
    net = Unrolled.scheduled(
        start, alpha, plan, steps, sigma=sigma, pull=lambda theta, Z: Z - centre
    )
    size = Compact(
        n=n,
        widths=tuple(widths),
        alpha=alpha,
        betas=net.betas,
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


def straight(
    seed: int,
    *,
    norm: float = 1.0,
    assumed: float | None = None,
    layers: int = 2,
    steps: int = 8,
    alpha: float = 0.5,
    start: float = 0.0,
    inputs: float | None = None,
    pull: float = 0.0,
    betas: Sequence[float] | None = None,
) -> Instance:
    """Return one sample and one unit per layer, σ the identity, all signs alike, R = -pull·z.

    Nothing cancels here: with norm 1 each layer is z ↦ z + α(UX + b), and what the lemmas bound
    they attain. B, X and V are drawn; the bounds are computed for ‖W_l‖ ≤ assumed (the norm).
    """
    B, x, V = (0.5 + torch.rand(3, generator=generator(seed), dtype=torch.float64)).tolist()
    B = B if inputs is None else inputs
    one = torch.ones(1, 1, dtype=torch.float64)
    theta: Theta = {"V": V * one}
    for i in range(1, layers + 1):
        theta |= {f"W{i}": norm * one, f"U{i}": B * one, f"b{i}": B * one[0]}
    plan = tuple(Schedule().beta(k) for k in range(1, steps + 1)) if betas is None else tuple(betas)
    net = Unrolled(
        start * one, alpha, plan, (0.0,) * len(plan), 0.5, identity, lambda theta, Z: -pull * one
    )
    size = Compact(
        n=1, widths=(1,) * layers, alpha=alpha, betas=plan,
        norm=norm if assumed is None else assumed, inputs=B, data=x, readout=V, sigma0=0.0,
        bend=0.0, start=start, gamma=0.5, pull=pull,
    )  # fmt: skip
    return Instance(net, theta, x * one, size)


def straight_readout(seed: int) -> Instance:
    """Return the same without injection and with R(z) = ½‖Vz‖²: T is the identity, β_k = 0.01."""
    case = straight(seed, start=1.0, inputs=0.0, betas=(0.01,) * 8)
    gamma = 0.5 / case.size.readout**2
    net = replace(case.net, gamma=gamma, pull=lambda theta, Z: Z @ theta["V"].mT @ theta["V"])
    return replace(case, net=net, size=replace(case.size, gamma=gamma))


def straight_features(seed: int, *, bent: bool = False) -> tuple[Instance, Tensor]:
    """Return the same with trained features X = X₀W₀, and X₀; W_l is 0.99, the bounds are for 1.

    ``bent``: the activation SOFT, a far start, and injections that put each pre-activation to 0,
    where |σ''| is largest; α is small, so that the state hardly moves.
    """
    if bent:
        case = straight(seed, norm=0.99, assumed=1.0, alpha=1e-4, start=100.0, inputs=1.0)
        x = float(case.X)
        B = 0.99 * 100.0 / (x + 1)
        theta = {k: -B * p if k[0] in "Ub" else p for k, p in case.theta.items()}
        net = replace(case.net, sigma=SOFT)
        case = replace(case, theta=theta, net=net, size=replace(case.size, inputs=B, bend=BEND))
    else:
        case = straight(seed, norm=0.99, assumed=1.0, alpha=0.05, start=50.0, betas=(0.0,) * 4)
    size, raw = case.size, case.X
    size = replace(size, inputs=1.01 * size.inputs, data=1.01 * size.data, features=float(raw))
    theta = {**layered(case.theta), "W0": torch.ones_like(raw)}
    return replace(case, theta=theta, size=size), raw


def steepest(function: Callable[[Theta], Tensor], theta: Theta) -> Tensor:
    """Return the unit direction in which the Jacobian of a number changes fastest, stacked."""
    flat = stacked({k: vec(p[None]) if p.ndim == 2 else p[None] for k, p in theta.items()})[0]
    H = torch.func.hessian(lambda t: function(unstacked(t, theta)).sum())(flat)
    values, vectors = torch.linalg.eigh(H)
    return vectors[:, int(values.abs().argmax())]


def worst(values: Iterable[float]) -> float:
    """Return the largest value; a NaN stays."""
    return float(torch.tensor(list(values), dtype=torch.float64).max())


def largest_iterate(
    T: Callable[[Tensor], Tensor], z: Tensor, centre: Tensor, weight: float, steps: int = 2000
) -> float:
    """Return max ‖z⁽ᵏ⁾‖ for R = ½·weight·‖z-centre‖²."""
    plan, largest = Schedule(), float(z.norm())
    for k in range(1, steps + 1):
        s = (1 - plan.gamma * plan.decay(k)) * z - plan.gamma * weight * (z - centre)
        z = plan.beta(k) * s + (1 - plan.beta(k)) * T(z)
        largest = worst((largest, float(z.norm())))
    return largest


def layered(theta: Theta) -> Theta:
    """Return the parameters of the layers, without the read-out."""
    return {k: p for k, p in theta.items() if k != "V"}


# --- derivatives -------------------------------------------------------------------------------


def layer_matrices(case: Instance, row: Sequence[Tensor]) -> list[Tensor]:
    """Return the dense Jacobians J_1, …, J_L of the layers in the state, for the whole batch."""
    found = []
    for i, Z in enumerate(row[:-1], start=1):
        W, pre = case.theta[f"W{i}"], layer(case.theta, case.X, case.net, Z, i)[1]
        blocks = [W.mT @ (slope[:, None] * W) for slope in case.net.sigma.slope(pre)]
        found.append(
            case.net.alpha * torch.block_diag(*blocks) + (1 - case.net.alpha) * eye(Z.numel())
        )
    return found


def step_matrices(case: Instance) -> list[tuple[Tensor, list[Tensor]]]:
    """Return for each step the matrix that carries derivatives, and J_L⋯J_l for each l."""
    found = []
    for k, row in enumerate(states(case.theta, case.X, case.net)[:-1]):
        J, tails = layer_matrices(case, row), []
        product = eye(row[0].numel())
        for one in reversed(J):
            product = product @ one
            tails.append(product)
        beta, gamma = case.net.betas[k], case.net.gamma
        S = (1 - gamma * case.net.decays[k] - gamma) * eye(len(product))
        found.append((beta * S + (1 - beta) * product, tails))
    return found


def layer_ratios(case: Instance) -> dict[str, float]:
    """Return ‖∂f_l/∂p‖ ÷ α for p = W, U, b; the worst over steps and layers."""
    found: dict[str, list[float]] = {"W": [], "U": [], "b": []}
    for row in states(case.theta, case.X, case.net)[:-1]:
        for i, Z in enumerate(row[:-1], start=1):

            def one(part: Theta, i: int = i, Z: Tensor = Z) -> Tensor:
                return layer({**case.theta, **part}, case.X, case.net, Z, i)[0]

            part = {f"{k}{i}": case.theta[f"{k}{i}"] for k in found}
            for name, J in jacobians(one, part).items():
                found[name[0]].append(operator_norm(J) / case.net.alpha)
    return {k: worst(v) for k, v in found.items()}


def readout_instance(seed: int, norm: float, steps: int) -> Instance:
    """Return the network with R(z) = ½‖Vz‖², so that V acts during the iteration."""
    case = instance(seed, norm=norm, steps=steps, pull=0.0)
    net = Unrolled.scheduled(
        case.net.start,
        case.net.alpha,
        Schedule(smoothness=case.size.readout**2),
        steps,
        pull=lambda theta, Z: Z @ theta["V"].mT @ theta["V"],
    )
    return replace(case, net=net, size=replace(case.size, betas=net.betas, gamma=net.gamma))


def readout_recursion(case: Instance, sign: float) -> Tensor:
    """Propagate ∂Z/∂V by the lemma; ``sign`` is that of the source term."""
    V, net = case.theta["V"], case.net
    n, m = net.start.shape
    total = torch.zeros(n * m, V.numel(), dtype=torch.float64)
    for k, row in enumerate(states(case.theta, case.X, net)[:-1]):
        Z, beta = row[0], net.betas[k]
        product = eye(n * m)
        for one in layer_matrices(case, row):
            product = one @ product
        S = (1 - net.gamma * net.decays[k]) * eye(n * m) - net.gamma * kron(eye(n), V.mT @ V)
        source = kron(Z @ V.mT, eye(m)) @ commutation(*V.shape)
        source = source + kron(eye(n), V.mT) @ kron(Z, eye(len(V)))
        total = (beta * S + (1 - beta) * product) @ total + sign * net.gamma * beta * source
    return total


def with_features(seed: int, norm: float, steps: int) -> tuple[Instance, Tensor]:
    """Return a network whose parameters include W₀ with X = X₀W₀ᵀ (and not V), and X₀."""
    case = instance(seed, norm=norm, steps=steps, alpha=0.1)
    raw = 0.5 * normal(3, 5, g=generator(seed + 100))
    W0 = torch.linalg.lstsq(raw, case.X).solution.mT
    size = replace(
        case.size,
        norm=0.91,  # room for a segment of length 0.005
        inputs=1.01 * case.size.inputs,
        data=1.01 * case.size.data,
        features=operator_norm(raw),
    )
    return replace(case, theta={**layered(case.theta), "W0": W0}, size=size), raw


def differences(case: Instance, raw: Tensor, a: Theta, b: Theta) -> dict[str, float]:
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
        A, B = (torch.linalg.multi_dot(layer_matrices(c, r)[::-1]) for c, r in zip(ends, rows))
        products.append(operator_norm(A - B))
    J, other = (stacked(jacobians(state, t)) for t in (a, b))
    distance = math.sqrt(sum(float((a[k] - b[k]).pow(2).sum()) for k in a))
    found = {
        "states": worst(change),
        "slopes D": worst(slopes),
        "product J_L⋯J_1": worst(products),
        "Jacobian ∂Z/∂θ": operator_norm(J - other),
    }
    return {k: v / distance for k, v in found.items()}


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
    g, alpha, widths = generator(seed), 0.1, (4, 4)
    V, X = normal(1, m, g=g), with_spectrum(n, d, 1.5, 2.5, g)
    if gap is not None:
        X[1] = X[0] + gap * X[1] / X[1].norm()
    theta: Theta = {"V": V / V.norm()}
    for i, h in enumerate(widths, start=1):
        theta[f"W{i}"] = with_spectrum(h, m, 0.6, 0.75, g)
        theta[f"U{i}"] = normal(h, d, g=g) / math.sqrt(d)
        theta[f"b{i}"] = torch.zeros(h, dtype=torch.float64)
    start = torch.zeros(n, m, dtype=torch.float64)
    net = Unrolled.scheduled(start, alpha, Schedule(), 5, pull=lambda theta, Z: Z)
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


def gradient_square(one: Task, error: Tensor) -> float:
    """Return ‖∇𝓛‖² by automatic differentiation, for labels that leave this error."""
    y = one.outputs(one.theta) - error
    found = torch.func.grad(lambda t: 0.5 * (one.outputs(t) - y).pow(2).sum())(one.theta)
    return sum(float(g.pow(2).sum()) for g in found.values())


def curvature(one: Task, rounds: int = 30) -> float:
    """Return the least Lipschitz constant that J can have near θ₀: its derivative there, maximised.

    For unit u, v, e the number Σ eᵢ∂²ŷᵢ[u, v] is maximised in turn over each; a lower estimate.
    """
    flat = torch.cat([vec(one.theta[k][None])[0] if one.theta[k].ndim == 2 else one.theta[k]
                      for k in sorted(one.theta)])  # fmt: skip
    T = torch.func.hessian(lambda t: one.outputs(unstacked(t, one.theta)))(flat)
    best = []
    for e in eye(len(T)):
        for _ in range(rounds):
            values, vectors = torch.linalg.eigh(torch.einsum("i,iab->ab", e, T))
            u = vectors[:, int(values.abs().argmax())]
            e = torch.linalg.svd(torch.einsum("iab,b->ia", T, u), full_matrices=False).U[:, 0]
        best.append(operator_norm(torch.einsum("iab,b->ia", T, u)))
    return worst(best)


@dataclass(frozen=True)
class Product:
    """Two weights and one sample, ŷ = uv: J = (v, u), so its Lipschitz constant is 1, exactly."""

    theta: Theta

    def outputs(self, theta: Theta) -> Tensor:
        """Return the prediction."""
        return theta["u"] * theta["v"]

    def jacobian(self, theta: Theta) -> Tensor:
        """Return J."""
        return stacked(jacobians(self.outputs, theta))


@dataclass(frozen=True)
class Descent:
    """What gradient descent did: losses, least eigenvalues of H, and the parameters (flat)."""

    loss: list[float]
    kernel_min: list[float]
    path: list[Tensor]


def descend(one: Task | Product, y: Tensor, step: float, epochs: int) -> Descent:
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


def edge(low: float, high: float, C: float, share: float = 0.999) -> tuple[float, float]:
    """Return the largest radius and first loss that the conditions of the theorem allow.

    Read off the conditions themselves: one is linear in the radius, the other in √𝓛₀.
    """
    unit = pl_ball_conditions(kernel_min=low, kernel_max=high, loss=1.0, lipschitz=C, radius=1.0)
    stays, room = unit["kernel stays"], unit["room to travel"]
    radius = share * stays.have / stays.need
    return radius, share * (radius / room.need) ** 2


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
