"""Chapter 5b, many equilibria: regularisation by architecture and the selection theorem of xie2022.

The architecture claim compares a network with two convex problems solved by scipy. The selection
claims run on networks whose equilibria form a segment that is known exactly
(``selection_instances``), so "the equilibrium with the least R" is a formula and not another
iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from deqbook.claims.registry import (
    Measurement,
    Trial,
    at_least,
    at_most,
    claim,
    given,
    within,
)
from deqbook.claims.selection_instances import Segment, random_segment, starts
from deqbook.linalg import operator_norm
from deqbook.regularize import (
    L1,
    RankOne,
    Regulariser,
    Schedule,
    SquaredDistance,
    SquaredL2,
    Zero,
    append_gradient,
    append_prox,
    sam,
    select,
)
from deqbook.regularize.objective import HiddenObjective
from deqbook.runtime import generator, normal
from deqbook.solvers import Newton, fixed_point

CHAPTER = "05b_selection"
EXACT = 1e-9  # two exact routes
SOLVER = 1e-6  # a general solver of scipy against an equilibrium

Map = Callable[[Tensor], Tensor]


def _worst(values: Iterable[float | Tensor]) -> float:
    """Return the largest value; a NaN stays."""
    return float(torch.tensor([float(v) for v in values], dtype=torch.float64).max())


# --- convex functions to test with -------------------------------------------------------------


@dataclass(frozen=True)
class Quadratic:
    """R(z) = ½⟨z, Hz⟩ - ⟨h, z⟩ plus ``bend`` times Σ log cosh z_i."""

    H: Tensor
    h: Tensor
    bend: float = 0.0

    @property
    def convex(self) -> bool:
        """Whether H has no negative eigenvalue."""
        return bool(torch.linalg.eigvalsh(self.H)[0] >= -1e-12)

    @property
    def smoothness(self) -> float:
        """Return ‖H‖ + bend."""
        return operator_norm(self.H) + self.bend

    def value(self, Z: Tensor) -> Tensor:
        """Return R for every row."""
        quadratic = 0.5 * (Z @ self.H * Z).sum(-1) - Z @ self.h
        return quadratic + self.bend * torch.log(torch.cosh(Z)).sum(-1)

    def gradient(self, Z: Tensor) -> Tensor:
        """Return Hz - h + bend·tanh z."""
        return Z @ self.H - self.h + self.bend * torch.tanh(Z)


def quadratic(g: torch.Generator, m: int = 5, *, rank: int = 4, bend: float = 0.5) -> Quadratic:
    """Draw a convex function whose quadratic part is singular, plus log cosh."""
    B = normal(rank, m, g=g)
    return Quadratic(B.mT @ B, normal(m, g=g), bend)


def pairs_of_states(H: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random pairs of states, and short pairs along the eigenvectors of H, at 0 and far."""
    m = len(H)
    axes = torch.linalg.eigh(H).eigenvectors.mT
    near = torch.cat([torch.zeros_like(axes), 10 * normal(m, m, g=g)])
    x = torch.cat([normal(60, m, g=g), near])
    return x, torch.cat([normal(60, m, g=g), near + 1e-3 * torch.cat([axes, axes])])


# --- Section 4.1: regularisation by architecture -----------------------------------------------


def hidden(seed: int, m: int = 6, norm: float = 0.9) -> HiddenObjective:
    """Draw a tied ReLU layer T = prox_φ with ‖W‖ = norm and a positive injection.

    If no entry of the injection were positive, the equilibrium would be 0 with every R.
    """
    g = generator(seed)
    W = normal(m, m, g=g)
    return HiddenObjective(W * (norm / operator_norm(W)), 2 * normal(m, g=g).abs())


def equilibrium_of(f: Map, m: int) -> Tensor:
    """Return the fixed point of a contraction of one state."""
    return fixed_point(f, torch.zeros(1, m, dtype=torch.float64), tol=1e-13).z[0]


def envelope_minimiser(phi: HiddenObjective, R: L1 | SquaredL2) -> Tensor:
    r"""Return :math:`\arg\min M^1_\varphi+R` by L-BFGS-B; the network is not run.

    The envelope comes from a quadratic problem. For the 1-norm, z = u - v with u, v ≥ 0.
    """
    envelope, m = phi.envelope(1.0), phi.W.shape[1]

    def parts(z: np.ndarray) -> tuple[float, np.ndarray]:
        row = torch.as_tensor(z)[None]
        return float(envelope.value(row)), envelope.gradient(row)[0].numpy()

    def split(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = parts(x[:m] - x[m:])
        return value + R.weight * x.sum(), np.append(slope + R.weight, R.weight - slope)

    def smooth(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = parts(z)
        return value + R.weight * z @ z, slope + 2 * R.weight * z

    sparse = isinstance(R, L1)
    found = scipy.optimize.minimize(
        split if sparse else smooth,
        np.zeros(2 * m if sparse else m),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * (2 * m) if sparse else None,
        options={"ftol": 1e-16, "gtol": 1e-11, "maxiter": 2000, "maxfun": 5000},
    ).x
    return torch.as_tensor(found[:m] - found[m:] if sparse else found)


def sum_minimiser(phi: HiddenObjective, R: L1 | SquaredL2) -> Tensor:
    r"""Return :math:`\arg\min\varphi+R`, by quadratic programming in the code s ≥ 0, z = Wᵀs.

    For the 1-norm with one more variable per feature, :math:`e\ge|W^\top s|`, and SLSQP; for the
    square by nonnegative least squares.
    """
    W, q, weight = phi.W.numpy(), phi.q.numpy(), R.weight
    h, m = W.shape
    H = np.eye(h) - W @ W.T
    if isinstance(R, SquaredL2):
        root = np.linalg.cholesky(H + 2 * weight * W @ W.T).T
        s = scipy.optimize.nnls(root, np.linalg.solve(root.T, q))[0]
        return torch.as_tensor(W.T @ s)
    rows = np.block([[-W.T, np.eye(m)], [W.T, np.eye(m)]])
    found = scipy.optimize.minimize(
        lambda x: 0.5 * x[:h] @ H @ x[:h] - q @ x[:h] + weight * x[h:].sum(),
        np.zeros(h + m),
        jac=lambda x: np.append(H @ x[:h] - q, np.full(m, weight)),
        method="SLSQP",
        bounds=[(0.0, None)] * (h + m),
        constraints={"type": "ineq", "fun": lambda x: rows @ x, "jac": lambda x: rows},
        options={"ftol": 1e-14, "maxiter": 500},
    ).x
    return torch.as_tensor(W.T @ found[:h])


def firm_excess(layer: Map, H: Tensor, g: torch.Generator) -> float:
    """Return the largest ‖f(x)-f(y)‖² - ⟨f(x)-f(y), x-y⟩, over ‖x-y‖²: at most 0 for a prox."""
    x, y = pairs_of_states(H, g)
    u, v = layer(x) - layer(y), x - y
    return float(((u.square().sum(1) - (u * v).sum(1)) / v.square().sum(1)).max())


ARCHITECTURE = (L1(0.2), SquaredL2(0.5))
TO_MINIMISER = "distance of z = prox_R(T(z)) to the minimiser of the envelope plus R, {}"
INCLUSION = "L = 2: residual of the block inclusion with R on a block of its own"
FIRM = "I - γ∇R: largest ‖f(x)-f(y)‖² - ⟨f(x)-f(y), x-y⟩, over ‖x-y‖²"


def _deep(seed: int, alpha: float = 0.6) -> tuple[list[HiddenObjective], list[Tensor]]:
    """Return two layers and the states z₁, z₂, z₃ of the deep network with prox_R behind it."""
    layers, R = [hidden(seed), hidden(seed + 1000)], ARCHITECTURE[1]
    skip = [lambda z, f=f: alpha * f.layer(z) + (1 - alpha) * z for f in layers]
    last = equilibrium_of(append_prox(lambda z: skip[1](skip[0](z)), R), 6)
    first = skip[0](last)
    return layers, [first, skip[1](first), last]


def _envelope_slope(phi: HiddenObjective, z: Tensor, alpha: float = 0.6) -> Tensor:
    return alpha * phi.envelope(1 - alpha).gradient(z[None])[0]


@claim(
    "xie2022.section4.1",
    title="A proximal layer behind the network adds R to the envelope, not to the objective",
    chapter=CHAPTER,
    ref="prop-architecture",
)
def architecture_adds(trial: Trial) -> Iterable[Measurement]:
    """Compare prox_R∘T with the two convex problems; and the deep network, block by block."""
    phi = hidden(trial.seed)
    yield given("‖W‖", operator_norm(phi.W), "≤", 1.0)
    for R in ARCHITECTURE:
        z = equilibrium_of(append_prox(phi.layer, R), 6)
        distance = (z - envelope_minimiser(phi, R)).norm()
        yield within(TO_MINIMISER.format(type(R).__name__), distance, SOLVER)
    layers, (z1, z2, z3) = _deep(trial.seed)
    rows = [
        _envelope_slope(layers[0], z1) + z1 - z3,
        _envelope_slope(layers[1], z2) + z2 - z1,
        ARCHITECTURE[1].gradient(z3) + z3 - z2,
    ]
    yield within(INCLUSION, torch.stack(rows).norm(), EXACT)
    smooth = quadratic(trial.g)
    layer = append_gradient(lambda z: z, smooth, 1 / smooth.smoothness)
    yield at_most(FIRM, firm_excess(layer, smooth.H, trial.g), 0.0)


@architecture_adds.control("the minimiser of φ + R itself, as one would expect (erratum E8)")
def sum_instead(trial: Trial) -> Iterable[Measurement]:
    """Add R to the objective: another point."""
    phi = hidden(trial.seed)
    for R in ARCHITECTURE:
        z = equilibrium_of(append_prox(phi.layer, R), 6)
        distance = (z - sum_minimiser(phi, R)).norm()
        yield within(TO_MINIMISER.format(type(R).__name__), distance, SOLVER)


@architecture_adds.control("R added to the last block that is already there (erratum E8)")
def no_new_block(trial: Trial) -> Iterable[Measurement]:
    """Two blocks instead of three: the inclusion has a residual."""
    layers, (z1, _, last) = _deep(trial.seed)
    rows = [
        _envelope_slope(layers[0], z1) + z1 - last,
        _envelope_slope(layers[1], last) + ARCHITECTURE[1].gradient(last) + last - z1,
    ]
    yield within(INCLUSION, torch.stack(rows).norm(), EXACT)


@architecture_adds.control("a gradient step of 1.5/L_R: nonexpansive, but no proximal map")
def long_step(trial: Trial) -> Iterable[Measurement]:
    """The layer overshoots and reverses directions."""
    smooth = quadratic(trial.g)
    layer = append_gradient(lambda z: z, smooth, 1.5 / smooth.smoothness, check=False)
    yield at_most(FIRM, firm_excess(layer, smooth.H, trial.g), 0.0)


# --- Lemma 8: a decaying recursion -------------------------------------------------------------


def recursion(r1: float, r2: float, t1: float, t2: float, start: float, steps: int) -> float:
    """Return a after ``steps`` steps, every inequality of the recursion taken as equality."""
    a = start
    for k in range(1, steps):
        p = r1 / (k + 1) ** t1
        a = (1 - p) * a + p * r2 / k**t2
    return a


def recursion_bound(
    r1: float, r2: float, t1: float, t2: float, start: float, steps: int, *, sign: float = -1.0
) -> float:
    r"""Return :math:`\min_je^{-\sum_{i=j+1}^Kp_i}\max(a_1,r_2)+r_2j^{-t_2}`, a bound on a_K.

    Here :math:`p_i=r_1i^{-t_1}`; ``sign=+1`` is the exponential as printed.
    """
    i = np.arange(1, steps + 1)
    p = r1 / i**t1
    left = p.sum() - np.cumsum(p)  # Σ over j < i ≤ K, for j = 1, …, K
    with np.errstate(over="ignore"):
        bounds = np.exp(sign * left) * max(start, r2) + r2 / i**t2
    return float(bounds.min())


def rate_constant(r1: float, r2: float, t1: float, t2: float, start: float) -> float:
    r"""Return C with :math:`a_k\le Ck^{-t_2}` for all k: the second half of the proof, t₁ < 1.

    From :math:`k_0` on, where :math:`t_2/k\le\tfrac12p_{k+1}`, the bound passes from k to k+1 if
    :math:`C\ge2r_2`; up to there :math:`a_k\le\max(a_1,r_2)`.
    """
    k = 1
    while t2 / k > 0.5 * r1 / (k + 1) ** t1:  # k/(k+1)^t₁ grows: once it holds, it stays
        k += 1
    return max(2 * r2, max(start, r2) * k**t2)


RECURSIONS = ((0.6, 0.4), (0.9, 0.5), (1.0, 0.7))  # (t₁, t₂)
STEPS = 30_000
DECAYED = "t₁ = {:g}, t₂ = {:g}: a after 30000 steps"
POWER = "t₁ = {:g}, t₂ = {:g}: a·k^t₂ after 30000 steps"
BOUND = "the proof's bound there, over max(a₁, r₂)"


def _recursion_constants(trial: Trial) -> tuple[float, float, float]:
    r1, r2, start = (0.5 + 0.4 * torch.rand(3, generator=trial.g, dtype=torch.float64)).tolist()
    return r1, 4 * r2, 10 * start


@claim(
    "xie2022.lemma8",
    title="A recursion that forgets its past slowly, with errors that vanish, tends to 0",
    chapter=CHAPTER,
    ref="lem-decaying-recursion",
)
def recursion_decays(trial: Trial) -> Iterable[Measurement]:
    """Run the recursion with equality against the bound of the proof."""
    r1, r2, start = _recursion_constants(trial)
    for t1, t2 in RECURSIONS:
        a = recursion(r1, r2, t1, t2, start, STEPS)
        bound = recursion_bound(r1, r2, t1, t2, start, STEPS)
        yield at_most(DECAYED.format(t1, t2), a, bound)
        if t1 < 1:
            constant = rate_constant(r1, r2, t1, t2, start)
            yield at_most(POWER.format(t1, t2), a * STEPS**t2, constant)
    t1, t2 = RECURSIONS[1]
    share = recursion_bound(r1, r2, t1, t2, start, STEPS) / max(start, r2)
    yield within(BOUND, share, 0.1)


@recursion_decays.control("t₁ = 1.6: the weights are summable; the bound is the one for t₁ ≤ 1")
def recursion_stalls(trial: Trial) -> Iterable[Measurement]:
    """The past is never forgotten."""
    r1, r2, start = _recursion_constants(trial)
    for t1, t2 in RECURSIONS:
        a = recursion(r1, r2, 1.6, t2, start, STEPS)
        yield at_most(DECAYED.format(t1, t2), a, recursion_bound(r1, r2, t1, t2, start, STEPS))
        if t1 < 1:
            constant = rate_constant(r1, r2, t1, t2, start)
            yield at_most(POWER.format(t1, t2), a * STEPS**t2, constant)


@recursion_decays.control("the sign of the exponent as printed (erratum E10)")
def wrong_sign(trial: Trial) -> Iterable[Measurement]:
    """With exp(+Σ) the bound says nothing."""
    r1, r2, start = _recursion_constants(trial)
    t1, t2 = RECURSIONS[1]
    bound = recursion_bound(r1, r2, t1, t2, start, STEPS, sign=1.0)
    yield within(BOUND, bound / max(start, r2), 0.1)


# --- Lemma 9: the regularised step contracts ---------------------------------------------------


def step_ratios(R: Quadratic, gamma: float, decay: float, g: torch.Generator) -> Tensor:
    """Return ‖s(x)-s(y)‖/‖x-y‖ for s(z) = (1-γλ)z - γ∇R(z)."""
    x, y = pairs_of_states(R.H, g)

    def s(z: Tensor) -> Tensor:
        return (1 - gamma * decay) * z - gamma * R.gradient(z)

    return (s(x) - s(y)).norm(dim=1) / (x - y).norm(dim=1)


LOWER, UPPER = "least ‖s(x)-s(y)‖ / ‖x-y‖", "largest ‖s(x)-s(y)‖ / ‖x-y‖"


def _step_case(trial: Trial) -> tuple[Quadratic, float]:
    R = quadratic(trial.g)
    share = float(torch.rand(1, generator=trial.g, dtype=torch.float64))
    return R, 0.5 * R.smoothness * (0.5 + 0.5 * share)


@claim(
    "xie2022.lemma9",
    title="The regularised step shrinks all distances, by a factor between 1/4 and 1 - γλ",
    chapter=CHAPTER,
    ref="lem-regularised-step",
)
def step_contracts(trial: Trial) -> Iterable[Measurement]:
    """Measure the step on random pairs and along eigenvectors."""
    R, decay = _step_case(trial)
    gamma = 0.5 / R.smoothness
    yield given("λ / L_R", decay / R.smoothness, "≤", 0.5)
    yield given("least eigenvalue of the Hessian", torch.linalg.eigvalsh(R.H)[0], "≥", -1e-12)
    ratios = step_ratios(R, gamma, decay, trial.g)
    yield at_least(LOWER, float(ratios.min()), 0.25)
    yield at_most(UPPER, float(ratios.max()), 1 - gamma * decay)


@step_contracts.control("R is not convex: its quadratic part is turned round")
def concave(trial: Trial) -> Iterable[Measurement]:
    """Along an eigenvector with negative curvature the step expands."""
    R, decay = _step_case(trial)
    turned = Quadratic(-R.H, R.h, R.bend)
    gamma = 0.5 / R.smoothness
    ratios = step_ratios(turned, gamma, decay, trial.g)
    yield at_most(UPPER, float(ratios.max()), 1 - gamma * decay)


@step_contracts.control("a step of 1/L_R, twice as long")
def double_step(trial: Trial) -> Iterable[Measurement]:
    """Along the steepest direction distances shrink to γλ, less than a quarter."""
    R, decay = _step_case(trial)
    plain = Quadratic(R.H, R.h)  # without log cosh the steepest curvature is attained everywhere
    decay = min(decay, 0.2 * plain.smoothness)
    ratios = step_ratios(plain, 1 / plain.smoothness, decay, trial.g)
    yield at_least(LOWER, float(ratios.min()), 0.25)


@step_contracts.control("a step of 2.5/L_R")
def far_too_long(trial: Trial) -> Iterable[Measurement]:
    """The step overshoots and expands."""
    R, decay = _step_case(trial)
    plain = Quadratic(R.H, R.h)
    decay = min(decay, 0.5 * plain.smoothness)  # as the lemma allows: only the step is wrong
    ratios = step_ratios(plain, 2.5 / plain.smoothness, decay, trial.g)
    yield at_most(UPPER, float(ratios.max()), 1 - decay / (2 * plain.smoothness))


# --- Lemma 10: fixed points of a nonexpansive map ----------------------------------------------

HULL = "residual of mixtures of fixed points, worst"
MONOTONE = "least ⟨(I-T)x - (I-T)y, x-y⟩ / ‖x-y‖²"
ROUND = -1e-12  # rounding in a quantity that is at least 0


def _mixtures(T: Map, fixed: Tensor, g: torch.Generator, n: int = 50) -> float:
    weights = torch.rand(n, len(fixed), generator=g, dtype=torch.float64)
    z = weights / weights.sum(1, keepdim=True) @ fixed
    return float((T(z) - z).norm(dim=1).max())


def _monotone(T: Map, x: Tensor, y: Tensor) -> float:
    gap = x - y
    product = ((gap - (T(x) - T(y))) * gap).sum(1) / gap.square().sum(1)
    return float(product.min())


@claim(
    "xie2022.lemma10",
    title="The fixed points of a nonexpansive map form a convex set",
    chapter=CHAPTER,
    ref="lem-fixed-set-convex",
)
def fixed_set_convex(trial: Trial) -> Iterable[Measurement]:
    """Find fixed points by plain iteration from many starts, mix them, and test I - T."""
    case, g = random_segment(trial.seed, m=5), trial.g
    yield given("‖W‖", case.norm, "≤", 1 + 1e-12)
    found = case.plain(starts(case, 8, g), steps=3000)
    apart = (found[:, None] - found[None]).norm(dim=-1).max()
    yield given("residual of the points found", (case.T(found) - found).norm(), "≤", 1e-11)
    yield given("largest distance between them", apart, "≥", 0.1)
    yield within(HULL, _mixtures(case.T, found, g), EXACT)
    x, y = (2 * normal(500, 5, g=g) for _ in range(2))
    yield at_least(MONOTONE, _monotone(case.T, x, y), ROUND)


@fixed_set_convex.control("T(z) = σ(2z - 1) expands: its fixed points are 0 and 1")
def two_points(trial: Trial) -> Iterable[Measurement]:
    """The midpoint is no fixed point, and I - T is not monotone."""

    def T(z: Tensor) -> Tensor:
        return torch.relu(2 * z - 1)

    fixed = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert torch.equal(T(fixed), fixed)
    yield within(HULL, _mixtures(T, fixed, trial.g), EXACT)
    x, y = (0.5 + torch.rand(500, 1, generator=trial.g, dtype=torch.float64) for _ in range(2))
    yield at_least(MONOTONE, _monotone(T, x, y), ROUND)


# --- Theorem 4: SAM selects ---------------------------------------------------------------------


def frozen_point(T: Map, R: Regulariser, schedule: Schedule, k: int, like: Tensor) -> Tensor:
    """Return the fixed point of step k with its weights held fixed, by Newton's method."""
    beta, decay, gamma = schedule.beta(k), schedule.decay(k), schedule.gamma

    def step(z: Tensor) -> Tensor:
        s = (1 - gamma * decay) * z - gamma * R.gradient(z)
        return beta * s + (1 - beta) * T(z)

    return fixed_point(step, like, solver=Newton(), tol=1e-13).z


def tracking_bounds(
    schedule: Schedule, first: float, *, fixed: float, origin: float, pull: float, steps: int
) -> np.ndarray:
    r"""Return bounds on ‖z⁽ᵏ⁾ - z̄_k‖, k = 1 … steps: the recursion of the proof, computed.

    :math:`a_k=(1-p_k)(a_{k-1}+\delta_k)` with :math:`p_k=\gamma\beta_k\lambda_k` and the drift of
    the frozen points :math:`\delta_k=(|\beta_k-\beta_{k-1}|M+\gamma|\beta_k\lambda_k-
    \beta_{k-1}\lambda_{k-1}|B_1)/p_k`, :math:`M=2B_1+\gamma\|\nabla R(0)\|+\|T(0)\|`.
    ``first`` is ‖z⁽⁰⁾ - z̄₁‖, ``fixed`` B₁, ``origin`` ‖T(0)‖, ``pull`` ‖∇R(0)‖.
    """
    gamma = schedule.gamma
    M = 2 * fixed + gamma * pull + origin
    beta = np.array([schedule.beta(k) for k in range(1, steps + 1)])
    product = beta * [schedule.decay(k) for k in range(1, steps + 1)]
    p = gamma * product
    bounds = [(1 - p[0]) * first]
    for k in range(1, steps):
        drift = abs(beta[k] - beta[k - 1]) * M + gamma * abs(product[k] - product[k - 1]) * fixed
        bounds.append((1 - p[k]) * (bounds[-1] + drift / p[k]))
    return np.array(bounds)


def tikhonov(case: Segment, a: Tensor, weight: float = 1e-7) -> Tensor:
    r"""Return :math:`\arg\min\varphi+\tfrac\epsilon2\|z-a\|^2` for a small ε, by NNLS in the code.

    As ε → 0 it tends to the equilibrium nearest to a. No segment, no iteration: a second route.
    """
    W, b = case.W.numpy(), case.b.numpy()
    H = np.eye(len(b)) - (1 - weight) * W @ W.T
    root = np.linalg.cholesky(H).T
    s = scipy.optimize.nnls(root, np.linalg.solve(root.T, b + weight * W @ a.numpy()))[0]
    return torch.as_tensor(W.T @ s)


CHECKPOINTS = (1, 3, 10, 30, 100, 300, 1000)
LONG = 2000
FAR = 10**12  # no run gets here, but the frozen fixed point of this step is computed directly
TRACK = "‖z(k) - frozen fixed point‖ over its bound, worst of k = 1 … 1000"
BELOW = "R + ½λ‖·‖² at the frozen fixed points minus at the selected one, worst"
AFTER = f"distance to the selected equilibrium after {LONG} steps, {{}}"
LIMIT = "distance of the frozen fixed point of step 10¹² to the selected equilibrium"
MOVED = f"distance between the states after {LONG // 4} and {LONG} steps"
NEAR = 0.3  # where SAM must be after LONG steps; plain iteration misses by far more
POINT, LINE, NORM = "R = ½‖z-a‖²", "R = ½(⟨w,z⟩-τ)²", "R = 0 (least norm)"
PLAN = Schedule(rho=0.32, c=0.32)


@dataclass(frozen=True)
class Task:
    """A segment of equilibria, targets, and starts from which plain iteration goes elsewhere."""

    case: Segment
    R: SquaredDistance
    z0: Tensor


def task(seed: int, n: int = 3) -> Task:
    """Draw targets whose nearest equilibria are inside, and starts that plain iteration leaves far.

    Row i starts on the other side of the segment.
    """
    case, g = random_segment(seed), generator(seed + 500)
    length = case.high - case.low
    share = 0.2 + 0.1 * torch.rand(n, generator=g, dtype=torch.float64)
    side = torch.tensor([0.0, 1.0] * n, dtype=torch.float64)[:n]  # near low, near high, …
    t = case.low + length * (side + (1 - 2 * side) * share)
    other = case.low + length * (1 - side - (1 - 2 * side) * share)

    def off(scale: float) -> Tensor:
        noise = scale * normal(n, len(case.p), g=g)
        return noise - (noise @ case.q)[:, None] * case.q

    return Task(case, SquaredDistance(case.point(t) + off(0.5)), case.point(other) + off(0.2))


def _line(one: Task) -> tuple[RankOne, Tensor]:
    """Return a rank-one R whose minimiser on the segment is the first row's nearest point."""
    w = one.case.q + 0.5 * (one.R.a[0] - one.case.nearest(one.R.a[0]))
    return RankOne(w, float(one.case.nearest(one.R.a[0]) @ w)), one.case.nearest(one.R.a[0])


def _distance(z: Tensor, target: Tensor) -> float:
    return float((z - target).norm(dim=-1).max())


@claim(
    "xie2022.theorem4",
    title="SAM finds the equilibrium with the least R, from any start",
    chapter=CHAPTER,
    ref="thm-sam",
)
def sam_selects(trial: Trial) -> Iterable[Measurement]:
    """Three regularisers on a segment of equilibria, and both halves of the proof, measured."""
    one = task(trial.seed)
    case, R, z0 = one.case, one.R, one.z0
    goal = case.nearest(R.a)
    yield given("ρ + 2c", PLAN.rho + 2 * PLAN.c, "≤", 1 - 1e-9)
    yield given("‖W‖", case.norm, "≤", 1 + 1e-12)
    other = torch.stack([tikhonov(case, a) for a in R.a])
    yield given("nearest equilibria, formula against NNLS", _distance(other, goal), "≤", 1e-4)
    missed = (case.plain(z0) - goal).norm(dim=1).min()
    yield given("distance at which plain iteration stops, least", missed, "≥", 3 * NEAR)
    yield from _proof(one, PLAN)
    run = select(case.T, z0, R, PLAN, LONG, record=[LONG // 4])
    yield within(AFTER.format(POINT), _distance(run.z, goal), NEAR)
    yield within(MOVED, _distance(run.z, run.trace[0]), NEAR)
    line, aim = _line(one)
    plan = Schedule(smoothness=line.smoothness, rho=PLAN.rho, c=PLAN.c)
    yield within(AFTER.format(LINE), _distance(sam(case.T, z0, line, plan, LONG), aim), NEAR)
    least = case.nearest(torch.zeros_like(case.p))
    yield within(AFTER.format(NORM), _distance(sam(case.T, z0, Zero(), PLAN, LONG), least), NEAR)


def _proof(one: Task, plan: Schedule) -> Iterator[Measurement]:
    """Measure both halves of the proof on the first row: tracking, and where the target goes."""
    case, R, z = one.case, SquaredDistance(one.R.a[:1]), one.z0[:1]
    goal = case.nearest(R.a)
    ends = case.point(torch.tensor([case.low, case.high], dtype=torch.float64))
    # ⟨(1+λ)z - a, z - p⟩ ≤ 0 for every frozen fixed point z and every equilibrium p: z is in the
    # ball with diameter from p to a/(1+λ), so ‖z‖² ≤ ‖p‖² + ‖a‖²
    fixed = math.hypot(float(ends.norm(dim=1).min()), float(R.a.norm()))
    first = frozen_point(case.T, R, plan, 1, z)
    bounds = tracking_bounds(
        plan,
        float((z - first).norm()),
        fixed=fixed,
        origin=float(case.T(torch.zeros_like(z)).norm()),
        pull=float(R.a.norm()),
        steps=CHECKPOINTS[-1],
    )
    run = select(case.T, z, R, plan, CHECKPOINTS[-1], record=CHECKPOINTS)
    ratios, below, sizes = [], [], []
    for k, state in zip(run.recorded, run.trace):
        frozen = frozen_point(case.T, R, plan, k, state)
        values = [R.value(x) + 0.5 * plan.decay(k) * x.square().sum(-1) for x in (frozen, goal)]
        ratios.append((state - frozen).norm() / bounds[k - 1])
        below.append(values[0] - values[1])
        sizes.append(frozen.norm())
    yield given("largest frozen fixed point", _worst(sizes), "≤", fixed)
    yield at_most(TRACK, _worst(ratios), 1.0)
    yield at_most(BELOW, _worst(below), 0.0)
    yield from _limit(one, plan)


def _limit(one: Task, plan: Schedule) -> Iterator[Measurement]:
    far = frozen_point(one.case.T, one.R, plan, FAR, one.case.nearest(one.R.a))
    yield within(LIMIT, _distance(far, one.case.nearest(one.R.a)), 1e-3)


def _after(one: Task, plan: Schedule) -> Iterator[Measurement]:
    found = sam(one.case.T, one.z0, one.R, plan, LONG, check=False)
    yield within(AFTER.format(POINT), _distance(found, one.case.nearest(one.R.a)), NEAR)


@sam_selects.control("β is constant (ρ = 0): R never lets go, and the limit is no equilibrium")
def constant_weight(trial: Trial) -> Iterable[Measurement]:
    """The iteration converges, to a compromise between R and T."""
    return _limit(task(trial.seed), Schedule(rho=0.0, c=PLAN.c))


@sam_selects.control("β is summable (ρ = 2): the pull is exhausted before the goal is reached")
def summable_weight(trial: Trial) -> Iterable[Measurement]:
    """The iteration stops on the way."""
    return _after(task(trial.seed), Schedule(rho=2.0, c=PLAN.c))


@sam_selects.control("R = 0 with a summable decay (ρ + c = 1.6): nothing selects")
def summable_decay(trial: Trial) -> Iterable[Measurement]:
    """Without a strongly convex R the decay must do the work."""
    case = random_segment(trial.seed)
    goal = case.nearest(torch.zeros_like(case.p))
    ends = case.point(torch.tensor([case.low, case.high], dtype=torch.float64))
    z = sam(case.T, ends, Zero(), Schedule(rho=0.6, c=1.0), LONG, check=False)
    yield within(AFTER.format(NORM), _distance(z, goal), NEAR)


@dataclass(frozen=True)
class Softplus:
    """R(z) = Σ log(1 + exp(-z_i)): convex and smooth, with no minimiser on [0, ∞)."""

    convex: bool = True
    smoothness: float = 0.25

    def value(self, Z: Tensor) -> Tensor:
        """Return R for every row."""
        return torch.nn.functional.softplus(-Z).sum(-1)

    def gradient(self, Z: Tensor) -> Tensor:
        """Return -1/(1 + exp(z))."""
        return -torch.sigmoid(-Z)


@sam_selects.control("R has no minimiser among the equilibria [0, ∞) of T(z) = σ(z)")
def no_minimiser(trial: Trial) -> Iterable[Measurement]:
    """The iterates do not settle: they drift to infinity."""
    plan = Schedule(smoothness=0.25, rho=PLAN.rho, c=PLAN.c)
    start = torch.rand(1, 1, generator=trial.g, dtype=torch.float64)
    run = select(torch.relu, start, Softplus(), plan, LONG, record=[LONG // 4])
    yield within(MOVED, _distance(run.z, run.trace[0]), NEAR)
