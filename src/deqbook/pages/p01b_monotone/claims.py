"""Chapter 1, monotone operators and tied weights: eight claims."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deqbook.activations import Activation, relu, tanh
from deqbook.claims import Measurement, at_least, at_most, chapter, checks, equal, within
from deqbook.linalg import eye, operator_norm, symmetric_part
from deqbook.models import MonDEQ, OptEq, monotone_parameters
from deqbook.pages.p01a_contraction.lab import expansion, picard_states, spread, worst_stretch
from deqbook.pages.p01b_monotone import lab
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Map, Newton, Picard, fixed_point
from deqbook.splitting import (
    ForwardBackward,
    MonotoneProblem,
    PeacemanRachford,
    forward_backward_factor,
    peaceman_rachford_factor,
    split,
)
from deqbook.wellposed import monotonicity

claim = chapter("01b_monotone")

ROUNDING = 1e-9  # beside a bound that is attained
ZERO, ONE = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)


def _one_limit(f: Map, z0: Tensor, other: Tensor, tol: float) -> Measurement:
    return within("distance of limits from two starts", spread(f, z0, other), tol)


def _two_solutions(trial, *, tol):
    # Both 0, where the derivative is 0, and 1 solve z = σ(2z-1).
    yield _one_limit(lambda z: torch.relu(2 * z - 1), ZERO, ONE, tol)


# --- monotone operators ----------------------------------------------------------------------


def _affine_pieces(trial):
    g = generator(trial.seed)
    return normal(6, g=g), normal(6, g=g)


def _subdifferential(slopes: Tensor, offsets: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the interval ∂f(x) of f = max_i (a_i x + b_i)."""
    values = slopes * x[:, None] + offsets
    active = values >= values.amax(dim=1, keepdim=True) - 1e-9
    low = torch.where(active, slopes, math.inf).amin(dim=1)
    high = torch.where(active, slopes, -math.inf).amax(dim=1)
    return low, high


def _increases(trial, *, convex=True):
    slopes, offsets = _affine_pieces(trial)
    x = torch.linspace(-4, 4, 161, dtype=torch.float64)
    if convex:
        kinks = (offsets[:, None] - offsets) / (slopes - slopes[:, None] + torch.eye(6))
        x = torch.cat([x, kinks.flatten()])
    sign = 1 if convex else -1  # min_i (a_i x + b_i) = -max_i (-a_i x - b_i)
    low, high = _subdifferential(sign * slopes, sign * offsets, x)
    ends = (sign * low, sign * high)
    products = [((u[:, None] - v) * (x[:, None] - x)).min() for u in ends for v in ends]
    yield at_least("least (u-v)(x-y)", float(min(products)), -1e-9)
    yield at_least("points of the grid on a kink", float((high > low).sum()), 1)


def _affine_gap(trial, p):
    slopes, offsets = _affine_pieces(trial)
    low, high = torch.full_like(p, -40.0), torch.full_like(p, 40.0)
    for _ in range(80):  # bisection on x + (right slope), an increasing function
        mid = (low + high) / 2
        above = mid + _subdifferential(slopes, offsets, mid)[1] >= p
        low, high = torch.where(above, low, mid), torch.where(above, mid, high)
    left = low + _subdifferential(slopes, offsets, low)[0]
    right = high + _subdifferential(slopes, offsets, high)[1]
    return torch.maximum(left - p, p - right).clamp(min=0)


def _root_gap(trial, p):
    root = torch.ones_like(p)
    for _ in range(200):  # solve x - 1/(2√x) = p in s = log x
        value = root - 0.5 * root.rsqrt() - p
        root = (root.log() - value / (root + 0.25 * root.rsqrt())).exp()
    return (root - 0.5 * root.rsqrt() - p).abs()


def _minty(trial, *, name="f(x)", gap=_affine_gap):
    p = torch.linspace(-10, 10, 101, dtype=torch.float64)
    yield within(f"distance of p to x + ∂{name}", float(gap(trial, p).max()), 1e-8)


@claim(
    "nguyen2022.lemma2.3.1",
    "The subdifferential of a closed convex function is maximal monotone",
    "lem-subdifferential",
)
def subdifferential_maximal(trial):
    yield from _increases(trial)
    yield from _minty(trial)
    # The converse fails: -√x with the value 5 at 0 is not closed, yet its ∂ passes Minty's test.
    yield from _minty(trial, name="g(x), g = -√x", gap=_root_gap)


subdifferential_maximal.breaks(
    "f not convex: a minimum of affine functions", "least", part=_increases, convex=False
)
subdifferential_maximal.breaks(
    "f not closed: zero on the open half-line x > 0",
    part=_minty,
    gap=lambda _trial, p: (-p).clamp(min=0),
)


@claim(
    "nguyen2022.lemma2.3.2",
    "x ↦ Wx is μ-strongly monotone exactly when W + Wᵀ ⪰ 2μI",
    "lem-linear-monotone",
)
def linear_monotone(trial, *, factor=2):
    W = normal(8, 8, g=trial.g) + 6 * eye(8)
    mu = float(torch.linalg.eigvalsh(W + W.mT)[0]) / factor
    v = torch.cat([normal(500, 8, g=trial.g), torch.linalg.eigh(W + W.mT)[1].mT])
    least = float(((v @ W.mT * v).sum(1) / v.pow(2).sum(1)).min())
    yield at_least("least ⟨Wv,v⟩/‖v‖² - μ", least - mu, -1e-10)
    yield within("the same: attained", least - mu, 1e-10)


linear_monotone.breaks("the factor 2 dropped: μ = λ_min(W + Wᵀ)", "least", factor=1)


@claim(
    "nguyen2022.proposition1",
    "I - W ⪰ μI exactly when W = (1-μ)I - AᵀA + B - Bᵀ",
    "prop-parametrisation",
)
def parametrisation(trial):
    model = MonDEQ.init(12, 3, mu=0.3, seed=trial.seed)
    yield at_least("λ_min(I - sym W) - μ", monotonicity(model.W.detach()) - 0.3, -1e-12)
    W = normal(12, 12, g=trial.g)
    mu = monotonicity(W) - 0.1
    A, B = monotone_parameters(W, mu)
    error = float(((1 - mu) * eye(12) - A.mT @ A + B - B.mT - W).abs().max())
    yield within("error of the best reconstruction", error, 1e-12)


def _modulus_too_large(trial):
    W = normal(12, 12, g=trial.g)
    S = (1 - monotonicity(W) - 0.1) * eye(12) - symmetric_part(W)
    values, vectors = torch.linalg.eigh(S)
    best = (vectors * values.clamp(min=0)) @ vectors.mT  # AᵀA can only be the positive part of S
    yield within("error of the best reconstruction", float((best - S).abs().max()), 1e-12)


parametrisation.breaks("μ above λ_min(I - sym W)", part=_modulus_too_large)


def _splits(trial, *, W, q, steps=20000):
    problem = MonotoneProblem(W, q)
    ends = [
        split(problem, PeacemanRachford(), z0=z0, tol=1e-10, max_steps=steps, throw=False).z
        for z0 in (torch.zeros_like(q), 5 * normal(*q.shape, g=trial.g))
    ]
    moved = max(float((torch.relu(z @ W.mT + q) - z).norm(dim=1).max()) for z in ends)
    yield within("‖f(z) - z‖ at the end", moved, 1e-8)
    gap = float((ends[0] - ends[1]).norm(dim=1).max())
    yield within("distance of limits from two starts", gap, 1e-7)


@claim(
    "nguyen2022.definition3.2.1",
    "A monotone DEQ has one equilibrium, however large A and B are",
    "def-mondeq",
)
def monotone_wellposed(trial):
    model = MonDEQ.init(30, 5, mu=0.5, seed=trial.seed).requires_grad_(False)
    model.B.mul_(6)  # ‖W‖ is then far above 1
    W, q = model.W, sphere(6, 5, trial.seed) @ model.U.mT
    yield from _splits(trial, W=W, q=q)
    yield at_least("hypothesis: μ", monotonicity(W), 0.5)
    yield at_least("‖W‖, no contraction", operator_norm(W), 3.0)
    exact = fixed_point(model.map(q), torch.zeros_like(q), solver=Newton(), tol=1e-12, throw=False)
    other = split(MonotoneProblem(W, q), tol=1e-11, max_steps=20000)
    yield within("splitting against Newton", float((exact.z - other.z).abs().max()), 1e-8)


monotone_wellposed.breaks("μ = -1: z = σ(2z-1) has two solutions", part=_two_solutions, tol=1e-7)
monotone_wellposed.breaks(
    "μ = 0: z = σ(z+1) has none", "‖f(z)", part=_splits, W=ONE, q=ONE, steps=500
)


def _rotation(trial, *, multiple=1.98):
    problem, _ = lab.rotation_problem()
    # Inside the interval the bound is the factor itself to the power 400: the instance is sharp.
    inside = forward_backward_factor(1.98 * problem.mu / problem.L**2, problem.mu, problem.L)
    yield at_most(
        "rotation: distance after 400 steps ÷ start",
        lab.rotation_shrinks(multiple),
        inside**400 * (1 + 1e-6),
    )


def _tanh(trial, *, sigma=tanh):
    problem, z = lab.random_problem(trial.seed, tanh)  # z by Newton's method
    f = PeacemanRachford(0.5).iteration(MonotoneProblem(problem.W, problem.q, sigma))
    u = picard_states(f, torch.zeros_like(problem.q), 150)[-1]
    error = float((sigma.prox(u, 0.5) - z).norm())
    yield within("tanh: distance to the equilibrium", error, 1e-8)


def _against(factor: float, f: Map, end: Tensor, away: Tensor) -> Tensor:
    """Return the distances to ``end`` over 100 steps ÷ what the factor promises."""
    gap = (picard_states(f, end + away, 100) - end).norm(dim=2)
    powers = torch.arange(1, 101, dtype=torch.float64)[:, None]
    return (gap[1:] - 1e-11).clamp(min=0) / (factor**powers * gap[0])  # 1e-11: rounding


@claim(
    "nguyen2022.splitting",
    "Forward-backward converges for 0 < α < 2μ/L², Peaceman-Rachford for every α > 0",
    "thm-splitting",
)
def splitting_ranges(trial):
    problem, z = lab.random_problem(trial.seed)
    mu, L = problem.mu, problem.L
    away = 1 + normal(*z.shape, g=trial.g).abs()  # start off the equilibrium, in every sample
    ratios = []
    for alpha in (c * mu / L**2 for c in (0.5, 1.0, 1.9)):
        f = ForwardBackward(alpha).iteration(problem)
        ratios.append(_against(forward_backward_factor(alpha, mu, L), f, z, away))
    # the largest; a NaN stays a NaN, and fails
    worst = float(torch.stack(ratios).max())
    yield at_most("forward-backward: distance ÷ (factor^k · start)", worst, 1.0)
    ratios = []
    for alpha in (c / L for c in (0.1, 1.0, 10.0)):
        f = PeacemanRachford(alpha).iteration(problem)
        u = z - alpha * (z @ problem.M.mT - problem.q)  # the fixed point: u - z ∈ α∂f(z)
        ratios.append(_against(peaceman_rachford_factor(alpha, mu, L), f, u, away))
    worst = float(torch.stack(ratios).max())
    yield at_most("Peaceman-Rachford: distance ÷ (factor^k · start)", worst, 1.0)
    yield from _rotation(trial)
    yield from _tanh(trial)


splitting_ranges.breaks("α = 2μ/L², the closed end of the interval", part=_rotation, multiple=2.0)
splitting_ranges.breaks(
    "tanh itself in place of prox_{αf}",  # only for ReLU does the prox not depend on α
    part=_tanh,
    sigma=Activation("tanh", tanh.value, tanh.slope, lambda p, _alpha: torch.tanh(p)),
)


def _step_norm(M: Tensor, mu: float, L: float, c: float) -> float:
    """Return ‖I - αM‖ ÷ √(1 - 2αμ + α²L²) at α = cμ/L²."""
    alpha = c * mu / L**2
    return operator_norm(eye(len(M)) - alpha * M) / forward_backward_factor(alpha, mu, L)


def _sharp_step(trial, *, overstated=1.0):
    problem, _ = lab.rotation_problem()
    tight = _step_norm(problem.M, overstated * problem.mu, problem.L, 1.0)
    yield equal("rotation: ‖I-αM‖ ÷ bound", tight, 1.0, ROUNDING)


@claim(
    "nguyen2022.proposition3",
    "The forward step I - αM has norm at most √(1 - 2αμ + α²L²)",
    "prop-forward-step",
)
def forward_step(trial):
    problem, _ = lab.random_problem(trial.seed)
    worst = max(_step_norm(problem.M, problem.mu, problem.L, c) for c in (0.1, 0.5, 1.0, 1.9))
    yield at_most("max ‖I-αM‖ ÷ bound", worst, 1 + ROUNDING)
    yield from _sharp_step(trial)


forward_step.breaks("M only μ/2-strongly monotone", part=_sharp_step, overstated=2.0)


# --- optimisation-induced equilibria ---------------------------------------------------------


def _opteq_settles(trial, *, model, x):
    found = model.solve(x, solver=Picard(), tol=1e-9, max_steps=1000, throw=False)
    moved = (model.cell(found.z, x).detach() - found.z).norm(dim=1)
    yield within("‖f(z) - z‖ at the end", float(moved.max()), 1e-7)


def _opteq_unique(trial, *, model, x):
    q = model.inject(x).detach()
    f = model.map(q)
    start = model.start(q)
    other = 2 * normal(*start.shape, g=trial.g)
    yield _one_limit(lambda z: f(z).detach(), start, other, 1e-7)


def _segment(trial):
    model, low, high = lab.segment_instance()
    model.requires_grad_(False)
    t = torch.linspace(0, 1, 11, dtype=torch.float64)[:, None]
    points = low + t * (high - low)
    moved = model.cell(points, torch.zeros(11, 1, dtype=torch.float64)) - points
    yield within("residual along the segment, ‖W‖ = 1", float(moved.norm(dim=1).max()), 1e-12)
    starts = 2 * normal(2, 4, g=trial.g)
    zero = torch.zeros(2, 1, dtype=torch.float64)
    ends = model.solve(zero, starts, solver=Picard(), tol=1e-12, max_steps=20000).z
    middle = ends.mean(dim=0, keepdim=True)
    moved = model.cell(middle, ZERO) - middle
    yield within("residual half-way between two limits", float(moved.norm()), 1e-9)


@claim(
    "xie2022.wellposed",
    "OptEq: one equilibrium when ‖W‖ < 1; at ‖W‖ = 1 a closed convex set, maybe empty",
    "thm-opteq",
)
def opteq_wellposed(trial):
    norm = 0.95
    model = OptEq.init(12, 4, norm=norm, seed=trial.seed).requires_grad_(False)
    x = normal(5, 4, g=trial.g)
    q = model.inject(x)
    seen = expansion(model.map(q), model.start(q), trial.g)
    yield at_most("largest expansion ÷ ‖W‖²", seen / norm**2, 1)
    yield from _opteq_settles(trial, model=model, x=x)
    yield from _opteq_unique(trial, model=model, x=x)
    stretch = worst_stretch(model, model.W)
    yield at_most("worst pair: expansion ÷ ‖W‖²", stretch / norm**2, 1 + ROUNDING)
    yield from _segment(trial)


opteq_wellposed.breaks(
    "‖W‖ = 1 and b = 1 in one dimension: no equilibrium",
    part=_opteq_settles,
    model=OptEq(ONE, ONE, ZERO[0], ONE),
    x=ONE,
)
opteq_wellposed.breaks(
    "‖W‖ = 1 with a segment of equilibria: no uniqueness",
    part=_opteq_unique,
    model=lab.segment_instance()[0],
    x=ZERO,
)


def _layers(sigma: Activation, alpha: float, count: int, g: torch.Generator) -> Map:
    """Return the composition of tied layers with ‖W_l‖ = 1."""
    weights = [torch.linalg.qr(normal(6, 6, g=g))[0] for _ in range(count)]
    shrink = [torch.cat([torch.ones(1), torch.rand(5, generator=g)]).double() for _ in weights]
    Ws = [Q * s[:, None] for Q, s in zip(weights, shrink)] if sigma is relu else weights
    bs = [normal(6, g=g) for _ in Ws]

    def T(z: Tensor) -> Tensor:
        for W, b in zip(Ws, bs):
            z = alpha * sigma(z @ W.mT + b) @ W + (1 - alpha) * z
        return z

    return T


def _averaged(trial, *, name, alpha, L, sigma=relu):
    # ‖Tx-Ty‖² + (1-ζ)/ζ ‖(x-Tx)-(y-Ty)‖² ≤ ‖x-y‖² with ζ of the composition; α/2 for L = 1
    zeta = L * alpha / (2 - alpha + L * alpha)
    T = _layers(sigma, alpha, L, trial.g)
    x, y = normal(400, 6, g=trial.g), normal(400, 6, g=trial.g)
    tx, ty = T(x), T(y)
    square = (x - y).pow(2).sum(1)
    excess = (tx - ty).pow(2).sum(1) - square
    excess = excess + (1 - zeta) / zeta * ((x - tx) - (y - ty)).pow(2).sum(1)
    yield within(f"{name}: worst excess ÷ ‖x-y‖²", float((excess / square).max()), 1e-12)


@claim(
    "xie2022.lemma13",
    "OptEq layers are α/2-averaged, their composition Lα/(2-α+Lα)-averaged",
    "lem-averaged",
)
def layers_averaged(trial):
    yield from _averaged(trial, name="averaged", alpha=0.5, L=3)
    yield from _averaged(trial, name="one layer", alpha=0.5, L=1)
    yield from _averaged(trial, name="no skip, α = 1", alpha=1.0, L=3)


layers_averaged.breaks(
    "σ(t) = -t: 1-Lipschitz but not monotone",  # three reflections are a reflection
    part=_averaged,
    name="no skip, α = 1",
    alpha=1.0,
    L=3,
    sigma=Activation("minus", torch.neg, lambda t: -torch.ones_like(t), lambda p, _alpha: -p),
)

check = checks(claim)
