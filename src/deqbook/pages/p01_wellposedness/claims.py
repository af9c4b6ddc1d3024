"""Chapter 1, well-posedness: the twenty claims."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from deqbook.activations import Activation, relu, tanh
from deqbook.claims import Measurement, at_least, at_most, chapter, checks, equal, within
from deqbook.landscape import path_ratio, principal_plane
from deqbook.linalg import operator_norm, symmetric_part
from deqbook.models import (
    EquilibriumModel,
    MonDEQ,
    OptEq,
    ReLUImplicit,
    VanillaDEQ,
    monotone_parameters,
)
from deqbook.pages.p01_wellposedness import lab
from deqbook.runtime import generator, normal, signs, sphere
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

claim = chapter("01_wellposedness")

ROUNDING = 1e-9  # beside a bound that is attained
ZERO, ONE = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)

Entries = Callable[..., Tensor]
"""Draws a matrix, as ``normal(*shape, g=g)`` does."""


def _eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def _one_limit(f: Map, z0: Tensor, other: Tensor, tol: float, steps: int = 1000) -> Measurement:
    gap = lab.spread(f, z0, other, steps=steps)
    return within("distance of limits from two starts", gap, tol)


def _worst_stretch(model: EquilibriumModel, W: Tensor) -> float:
    # All units active and a difference along the top singular vector: the worst pair there is.
    top = torch.linalg.svd(W)[2][:1]
    up = model.map(torch.full_like(top, 100.0))
    return float((up(top) - up(0 * top)).norm())


# --- random matrices -------------------------------------------------------------------------


def _uncentred(*shape: int, g: torch.Generator) -> Tensor:
    return normal(*shape, g=g) + math.sqrt(2 / math.pi)


def _rare_giants(*shape: int, g: torch.Generator) -> Tensor:
    chosen = torch.rand(*shape, generator=g) < 1 / 4000
    return math.sqrt(4000) * chosen * signs(*shape, g=g)


def _student(*shape: int, g: torch.Generator) -> Tensor:
    # N/√(χ²/2) has 2 degrees of freedom and infinite variance
    chi = normal(*shape, g=g) ** 2 + normal(*shape, g=g) ** 2
    return normal(*shape, g=g) / (chi / 2).sqrt()


@claim(
    "gao2022.assumption1",
    "Gaussian weights and random signs: mean 0, variance 1, norm about 2√m",
    "asm-relu-init",
)
def relu_initialisation(trial, *, entries=None):
    m = 200
    model = ReLUImplicit.init(m, 50, gamma=0.1, seed=trial.seed).requires_grad_(False)
    W = model.W if entries is None else entries(m, m, g=trial.g)
    yield at_most("|mean of W| · m", abs(float(W.mean())) * m, 4.5)
    yield at_most("|variance of W - 1| · m", abs(float(W.var()) - 1) * m, 4.5 * math.sqrt(2))
    # P(‖W‖ > 2√m + t) ≤ exp(-t²/2); t = 4.5 leaves 4e-5
    yield at_most("‖W‖ / √m", operator_norm(W) / math.sqrt(m), 2 + 4.5 / math.sqrt(m))
    yield equal("‖a‖ / √m", float(model.a.norm()) / math.sqrt(m), 1.0, 1e-12)
    phi = model.inject(sphere(64, 50, trial.seed + 1))
    yield equal("mean ‖φ‖²", float(phi.pow(2).sum(1).mean()), 0.5, 0.06)


relu_initialisation.breaks(
    "entries not centred: mean √(2/π), as for |N(0, 1)|", "|mean", "‖W‖", entries=_uncentred
)
relu_initialisation.breaks(
    "entries not sub-Gaussian: ±√4000 with probability 1/4000, else 0", "‖W‖", entries=_rare_giants
)


def _norm_tail(trial, *, entries=normal):
    m = 60
    norms = torch.linalg.matrix_norm(entries(300, m, m, g=trial.g), 2)
    for t in (0.5, 1.0, 1.5):
        exceed = float((norms > 2 * math.sqrt(m) + t).double().mean())
        yield at_most(f"P(‖W‖ > 2√m + {t})", exceed, math.exp(-t * t / 2))
    edge = 2 - 0.760 * m ** (-2 / 3)  # Tracy-Widom
    yield equal("mean ‖W‖/√m at the edge", float(norms.mean()) / math.sqrt(m), edge, 1 / m)


@claim("gao2022.lemma2.1", "A random matrix has norm 2√m, with a Gaussian tail", "lem-norm")
def random_norm(trial):
    yield from _norm_tail(trial)
    rademacher = torch.linalg.matrix_norm(signs(150, 60, 60, g=trial.g), 2) / math.sqrt(60)
    yield at_most("mean ‖W‖/√m, entries ±1", float(rademacher.mean()), 2.0)


random_norm.breaks(
    "entries not sub-Gaussian: Student t with 2 degrees of freedom",
    part=_norm_tail,
    entries=_student,
)


def _below_threshold(trial, *, room=0.1):
    # The lemma promises 1 - exp(-2mε²) for room = ε = 0.1.
    m, variance = 200, 0.08
    threshold = 2 * math.sqrt(2 * variance) * (1 + room)
    scale = math.sqrt(2 * variance / m)
    norms = [torch.linalg.matrix_norm(normal(m, m, g=trial.g) * scale, 2) for _ in range(80)]
    share = float((torch.stack(norms) <= threshold).double().mean())
    yield at_least("P(‖W‖ ≤ threshold)", share, 1 - math.exp(-2 * m * 0.1**2))


@claim(
    "ling2023.lemma1", "‖W‖ ≤ 2√2 σ_w (1+ε) except with probability exp(-2mε²)", "lem-vanilla-norm"
)
def vanilla_norm(trial):
    yield from _below_threshold(trial)
    norms = [
        operator_norm(VanillaDEQ.init(200, 5, seed=1000 * trial.seed + k).W.detach())
        for k in range(20)
    ]
    yield at_most("largest ‖W‖, σ_w² = 0.08", max(norms), 1.0)


vanilla_norm.breaks("no room: the printed threshold, ε = 0", part=_below_threshold, room=0.0)


@claim(
    "ling2023.assumption1",
    "Gaussian initialisation with σ_w² < 1/8 starts as a contraction",
    "asm-vanilla-init",
)
def vanilla_initialisation(trial, *, variance=0.08):
    m, d = 300, 20
    model = VanillaDEQ.init(m, d, variance=variance, seed=trial.seed).requires_grad_(False)
    yield equal("m · var(W) / 2σ_w²", m * float(model.W.var()) / (2 * variance), 1.0, 0.03)
    yield equal("d · var(U) / 2", d * float(model.U.var()) / 2, 1.0, 0.1)
    yield equal("‖a‖", float(model.a.norm()), 1.0, 0.2)
    yield at_most("‖W‖", operator_norm(model.W), 1.0)
    x = sphere(20, d, trial.seed + 1, radius=math.sqrt(d))
    z = model.solve(x, throw=False).z
    size = float(z.pow(2).sum(1).mean()) / m
    yield equal("mean ‖z‖²/m ÷ 1/(1-σ_w²)", size * (1 - variance), 1.0, 0.25)


vanilla_initialisation.breaks("σ_w² = 1/2 instead of less than 1/8", "‖W‖", variance=0.5)


# --- contraction -----------------------------------------------------------------------------


@claim(
    "gao2022.lemma2.2",
    "The scaled network contracts: one equilibrium, bounded, reached at rate γ₀",
    "lem-scaled",
)
def scaled_network_contracts(trial, *, gamma=None):
    gamma0 = 0.9
    model = ReLUImplicit.init(200, 10, gamma=1.0, seed=trial.seed).requires_grad_(False)
    largest = gamma0 * math.sqrt(200) / operator_norm(model.W)  # that the lemma allows
    model.gamma = largest if gamma is None else gamma
    phi = model.inject(sphere(5, 10, trial.seed))
    f = model.map(phi)
    states = lab.picard_states(f, torch.zeros_like(phi), 120)
    size = phi.norm(dim=1)
    longest = float((states.norm(dim=2) / size).max())
    yield at_most("max ‖z^ℓ‖ (1-γ₀)/‖φ‖", longest * (1 - gamma0), 1.0)
    gaps = (states - states[-1]).norm(dim=2)[:60]
    powers = gamma0 ** torch.arange(60, dtype=torch.float64)[:, None]
    floor = 1e-13  # rounding
    ratio = (gaps - floor).clamp(min=0) / (powers * size / (1 - gamma0))
    yield at_most("max ‖z^ℓ - z‖ ÷ γ₀^ℓ‖φ‖/(1-γ₀)", float(ratio.max()), 1.0)
    seen = lab.expansion(f, phi, generator(trial.seed + 1))
    yield at_most("largest expansion ÷ γ₀", seen / gamma0, 1.0)
    other = 10 * normal(*phi.shape, g=generator(trial.seed + 2))
    yield _one_limit(f, 0 * phi, other, 1e-8, steps=400)
    stretch = _worst_stretch(model, model.W)
    yield at_most("worst pair: expansion ÷ γ₀", stretch / gamma0, 1 + ROUNDING)


scaled_network_contracts.breaks("γ = 2 instead of γ ≤ γ₀√m/‖W‖ ≈ 0.45", gamma=2.0)
scaled_network_contracts.breaks("γ = 0.5, a tenth above the lemma's limit", "worst pair", gamma=0.5)


@claim(
    "gao2023.lemmaA.5",
    "γ‖W‖ = γ₀ < 1: one equilibrium with ‖Z‖_F ≤ ‖Φ‖_F/(1-γ₀)",
    "lem-implicit-only",
)
def implicit_only_bounded(trial, *, half_normal=False):
    m, gamma0 = 64, 0.8
    model = ReLUImplicit.init_implicit_only(m, 20, gamma=1.0, seed=trial.seed)
    model.requires_grad_(False)
    model.gamma = gamma0 * math.sqrt(m) / operator_norm(model.W)
    if half_normal:  # the spectral radius of γ̃W is then 0.32√m > 1: no equilibrium at all
        model.W.abs_()
        model.gamma = 0.4
    phi = model.inject(sphere(8, model.d, trial.seed))
    f = model.map(phi)
    sizes = lab.picard_states(f, torch.zeros_like(phi), 150).flatten(1).norm(dim=1)
    yield at_most("max ‖Z^ℓ‖_F (1-γ₀)/‖Φ‖_F", float(sizes.max() / phi.norm()) * (1 - gamma0), 1)
    yield _one_limit(f, 0 * phi, phi.flip(0), 1e-8, steps=500)


implicit_only_bounded.breaks(
    "W = |N(0, 1)| at γ₀ = 0.4, as in the source's section 5.1", half_normal=True
)


@claim(
    "ling2023.wellposed",
    "‖W‖ < 1: one equilibrium, and I - DW is invertible with inverse at most 1/(1-‖W‖)",
    "thm-contraction",
)
def vanilla_wellposed(trial, *, variance=0.08):
    model = VanillaDEQ.init(200, 10, variance=variance, seed=trial.seed).requires_grad_(False)
    W, norm = model.W, operator_norm(model.W)
    x = sphere(6, 10, trial.seed, radius=math.sqrt(10))
    found = model.solve(x, solver=Picard(), tol=1e-10, max_steps=300, throw=False)
    yield within("residual after at most 300 steps", float(found.residual.max()), 1e-10)
    q = model.inject(x)
    DW = (found.z @ W.mT + q > 0).double()[:, :, None] * W
    least = torch.linalg.svdvals(_eye(200) - DW)[:, -1]
    yield at_least("min σ_min(I - DW) - (1-‖W‖)", float(least.min()) - (1 - norm), 0.0)
    full = torch.linalg.svdvals(_eye(200) - W)[-1]
    yield at_least("the same with every unit active", float(full) - (1 - norm), 0.0)
    yield at_most("hypothesis: ‖W‖", norm, 1.0)
    yield _one_limit(model.map(q), 0 * q, 5 * q, 1e-7, steps=300)


vanilla_wellposed.breaks("σ_w² = 1.5, so ‖W‖ = 3.5", "residual", "distance", variance=1.5)


def _norms(J: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(J, 2)


def _radii(J: Tensor) -> Tensor:
    return torch.linalg.eigvals(J).abs().amax(dim=1)


def _inverts(trial, *, J, size=_norms):
    least = torch.linalg.svdvals(_eye(J.shape[1]) - J)[:, -1]
    yield at_least("min σ_min(I-J) / (1-‖J‖)", float((least / (1 - size(J))).min()), 1 - ROUNDING)


@claim(
    "nguyen2022.definition2.3.1",
    "‖J‖ < 1 makes I - J invertible, with σ_min(I-J) ≥ 1-‖J‖",
    "def-contraction",
)
def contraction_inverts(trial):
    J = normal(500, 4, 4, g=trial.g)
    target = torch.rand(500, generator=trial.g, dtype=torch.float64) * 0.98 + 0.01
    J = J * (target / _norms(J))[:, None, None]
    radius = _radii(J)
    yield from _inverts(trial, J=J)
    yield at_most("max ρ(J)/‖J‖", float((radius / _norms(J)).max()), 1 + ROUNDING)
    det = torch.linalg.det(_eye(4) - J).abs()
    ratio = det / (1 - radius) ** 4
    yield at_least("min |det(I-J)| / (1-ρ)^d", float(ratio.min()), 1 - ROUNDING)
    W = normal(10, 10, g=trial.g)
    W = 0.9 * W / operator_norm(W)
    q = normal(4, 10, g=trial.g)
    yield _one_limit(lambda z: torch.tanh(z @ W.mT + q), 0 * q, 5 * q, 1e-8)


def _two_solutions(trial, *, tol):
    # Both 0, where the derivative is 0, and 1 solve z = σ(2z-1).
    yield _one_limit(lambda z: torch.relu(2 * z - 1), ZERO, ONE, tol)


contraction_inverts.breaks(
    "the spectral radius in place of the norm",  # of a matrix that is far from normal
    part=_inverts,
    shown={"‖J‖": "ρ(J)"},
    J=torch.tensor([[[0.5, 10.0], [0.0, 0.5]]], dtype=torch.float64),
    size=_radii,
)
contraction_inverts.breaks(
    "contraction at one fixed point only: z = σ(2z-1)", part=_two_solutions, tol=1e-8
)


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
    W = normal(8, 8, g=trial.g) + 6 * _eye(8)
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
    error = float(((1 - mu) * _eye(12) - A.mT @ A + B - B.mT - W).abs().max())
    yield within("error of the best reconstruction", error, 1e-12)


def _modulus_too_large(trial):
    W = normal(12, 12, g=trial.g)
    S = (1 - monotonicity(W) - 0.1) * _eye(12) - symmetric_part(W)
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
    u = lab.picard_states(f, torch.zeros_like(problem.q), 150)[-1]
    error = float((sigma.prox(u, 0.5) - z).norm())
    yield within("tanh: distance to the equilibrium", error, 1e-8)


def _against(factor: float, f: Map, end: Tensor, away: Tensor) -> Tensor:
    """Return the distances to ``end`` over 100 steps ÷ what the factor promises."""
    gap = (lab.picard_states(f, end + away, 100) - end).norm(dim=2)
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
    return operator_norm(_eye(len(M)) - alpha * M) / forward_backward_factor(alpha, mu, L)


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


# --- size of the equilibrium -------------------------------------------------------------------


def _size_ratio(model: MonDEQ, x: Tensor, mu: float) -> float:
    """Return ‖Z‖_F μ / (‖X‖_F ‖U‖)."""
    z = model.solve(x, tol=1e-11, max_steps=20000).z
    return float(z.norm() * mu / (x.norm() * operator_norm(model.U.detach())))


def _tight_model(mu: float = 0.5, m: int = 4) -> tuple[MonDEQ, Tensor]:
    """Return W = (1-μ)I, U = I, X = 1, for which the bound is an equality."""
    zero, one = torch.zeros(m, m, dtype=torch.float64), torch.ones(3, m, dtype=torch.float64)
    return MonDEQ(zero, zero, _eye(m), one[0], mu), one


def _tight_size(trial, *, overstated=1.0):
    model, x = _tight_model()
    ratio = _size_ratio(model, x, overstated * model.mu)
    yield at_most("the same where it is tight", ratio, 1 + ROUNDING)


@claim("nguyen2022.lemma3.3.3", "The equilibrium is bounded: ‖Z‖_F ≤ ‖X‖_F ‖U‖ / μ", "lem-size")
def equilibrium_size(trial):
    worst = 0.0
    for k, mu in enumerate((0.05, 0.3, 1.0, 3.0)):
        model = MonDEQ.init(15, 4, mu=mu, seed=10 * trial.seed + k)
        worst = max(worst, _size_ratio(model, normal(6, 4, g=trial.g), mu))
    yield at_most("max ‖Z‖_F μ / (‖X‖_F‖U‖)", worst, 1.0)
    yield from _tight_size(trial)


def _softplus(trial):
    model, x = _tight_model()
    W, x = model.W.detach(), 1e-3 * x  # a vanishing input still has a state
    z = fixed_point(lambda z: F.softplus(z @ W.mT + x), torch.zeros_like(x)).z
    ratio = float(z.norm() * model.mu / x.norm())
    yield at_most("the same where it is tight", ratio, 1 + ROUNDING)


equilibrium_size.breaks("μ overstated by a factor 2", part=_tight_size, overstated=2.0)
equilibrium_size.breaks("an activation with σ(0) ≠ 0: softplus", part=_softplus)


@claim(
    "nguyen2022.lemmaC.0.3",
    "The identity behind the bound: ⟨z,(I-W)z⟩ = ⟨z,Ux⟩ at a ReLU equilibrium",
    "lem-size",
)
def complementarity(trial, *, sigma=relu):
    model = MonDEQ.init(15, 4, mu=0.5, seed=trial.seed).requires_grad_(False)
    model.sigma = sigma
    x = normal(6, 4, g=trial.g)
    z, q = model.solve(x, tol=1e-12, max_steps=20000).z, x @ model.U.mT
    energy = (z * (z - z @ model.W.mT)).sum(1)
    yield within("max |⟨z,(I-W)z⟩ - ⟨z,Ux⟩|", float((energy - (z * q).sum(1)).abs().max()), 1e-8)
    yield at_most("max μ‖z‖² / ⟨z,(I-W)z⟩", float((0.5 * z.pow(2).sum(1) / energy).max()), 1.0)


complementarity.breaks("tanh instead of ReLU", "max |", sigma=tanh)


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
    seen = lab.expansion(model.map(q), model.start(q), trial.g)
    yield at_most("largest expansion ÷ ‖W‖²", seen / norm**2, 1)
    yield from _opteq_settles(trial, model=model, x=x)
    yield from _opteq_unique(trial, model=model, x=x)
    stretch = _worst_stretch(model, model.W)
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


# --- initialisation of a convolutional cell ----------------------------------------------------


def _settles(trial, *, name="median residual after 50 steps", std=0.01):
    _, trace = lab.cell_trajectory(std, trial.seed, n=8)
    yield within(name, float(trace[-1].median()), 1e-2)


@claim(
    "nguyen2022.figure4.1",
    "A cell initialised at standard deviation 0.01 settles in 50 steps; at 1 it does not",
    "fig-init-residual",
)
def initialisation_settles(trial):
    yield from _settles(trial)
    yield from _settles(trial, name="the same with W1 ~ N(0, 1)", std=(1.0, 0.01))


initialisation_settles.breaks("weights N(0, 1)", part=_settles, std=1.0)
initialisation_settles.breaks(
    "0.01 read as a variance: standard deviation 0.1", part=_settles, std=0.1
)


@claim(
    "nguyen2022.figure4.2",
    "In the principal plane a small cell leaps once and stops; a large one wanders",
    "fig-init-plane",
)
def initialisation_leaps(trial, *, std=0.01):
    states, _ = lab.cell_trajectory(std, trial.seed, n=8)
    ratio = path_ratio(principal_plane(states).points)
    yield at_most("path after the first step ÷ first step", ratio, 0.5)


initialisation_leaps.breaks("weights N(0, 1)", std=1.0)

check = checks(claim)
