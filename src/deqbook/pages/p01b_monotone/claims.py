"""Chapter 1, monotone operators and tied weights: eight claims of the sources, six of the book."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deqbook.activations import Activation, identity, relu, tanh
from deqbook.claims import (
    Measurement,
    at_least,
    at_most,
    chapter,
    checks,
    equal,
    given,
    headline,
    seen,
    within,
)
from deqbook.linalg import eye, operator_norm, perron_root, relative, symmetric_part
from deqbook.models import MonDEQ, OptEq, ReLUImplicit, monotone_parameters
from deqbook.pages.p01a_contraction.lab import (
    equilibria,
    picard_states,
    spread,
    steep,
    worst_stretch,
)
from deqbook.pages.p01b_monotone import lab
from deqbook.runtime import normal, sphere
from deqbook.solvers import Map, Newton, Picard, fixed_point
from deqbook.splitting import (
    ForwardBackward,
    MonotoneProblem,
    PeacemanRachford,
    forward_backward_factor,
    peaceman_rachford_factor,
    split,
)
from deqbook.wellposed import Affine, certificates, monotonicity

claim = chapter("01b_monotone")

ROUNDING = 1e-9  # beside a bound that is attained
ZERO, ONE = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)


def _one_limit(f: Map, z0: Tensor, other: Tensor, tol: float) -> Measurement:
    return within("distance of limits from two starts", spread(f, z0, other), tol)


def _two_solutions(trial, *, tol):
    # Both 0, where the derivative is 0, and 1 solve z = σ(2z-1).
    yield _one_limit(lambda z: torch.relu(2 * z - 1), ZERO, ONE, tol)


# --- proximal maps ---------------------------------------------------------------------------

GRID = torch.linspace(-6, 6, 2401, dtype=torch.float64)
STEP = 0.005  # of the grid


def _searched(f: Tensor, p: Tensor, grid: Tensor = GRID) -> Tensor:
    """Return the points of the grid that minimise f(u) + (u - p)²/2, for each p."""
    return grid[(f + (grid - p[:, None]) ** 2 / 2).argmin(dim=1)]


def _conjugate(f: Tensor, slopes: Tensor, grid: Tensor = GRID) -> Tensor:
    """Return sup_z uz - f(z) over the grid, for each u."""
    return (slopes[:, None] * grid - f).amax(dim=1)


def _bowl(trial) -> Tensor:
    slopes, offsets = normal(5, g=trial.g), normal(5, g=trial.g)
    return (GRID[:, None] * slopes + offsets).amax(dim=1) + 0.05 * GRID**2


def _moreau(trial, *, f=_bowl):
    f = f(trial)
    p = torch.linspace(-2, 2, 81, dtype=torch.float64)
    dual = _conjugate(f, GRID)
    parts = _searched(f, p) + _searched(dual, p)
    off = float((parts - p).abs().max())
    yield within("largest |prox_f(p) + prox_f*(p) - p|, in steps of the grid", off / STEP, 3)
    # the slopes between neighbours belong to ∂f at both: Fenchel's inequality is an equality
    rises = (f[1:] - f[:-1]) / (GRID[1:] - GRID[:-1])
    gap = f[1:] + _conjugate(f, rises) - rises * GRID[1:]
    middle = (GRID[1:].abs() < 2) & (rises.abs() < 6)
    yield within("largest f(z) + f*(u) - uz for u ∈ ∂f(z)", float(gap[middle].max()), 1e-9)


@claim(
    "book.lem-moreau",
    "prox_f + prox_{f*} is the identity, and conjugates exchange points and slopes",
    "lem-moreau",
)
def moreau(trial):
    yield from _moreau(trial)


moreau.breaks(
    "f not convex: the distance to two points", part=_moreau, f=lambda _: (GRID.abs() - 1).abs()
)


def _soft_threshold(p: Tensor, alpha: float) -> Tensor:
    return p.sign() * (p.abs() - alpha).relu()


SOFT_THRESHOLD = Activation(
    "soft threshold",
    lambda t: _soft_threshold(t, 1.0),
    lambda t: (t.abs() > 1).to(t.dtype),
    _soft_threshold,
)


def _behind_tanh(u: Tensor) -> Tensor:
    value = u * torch.atanh(u) + (torch.log(1 - u**2) - u**2) / 2
    return torch.where(u.abs() < 1, value, math.inf)


BEHIND: dict[Activation, Callable[[Tensor], Tensor]] = {
    relu: lambda u: torch.where(u >= 0, 0.0, math.inf),
    tanh: _behind_tanh,
    identity: torch.zeros_like,
    SOFT_THRESHOLD: torch.abs,
}


def _slopes_increase(trial, *, sigma):
    p = torch.cat([torch.linspace(-4, 4, 161, dtype=torch.float64), 3 * normal(200, g=trial.g)])
    z = sigma(p)
    rest = p - z  # a slope of f at z
    least = ((rest[:, None] - rest) * (z[:, None] - z)).min()
    yield at_least("least (u-u')(z-z'), u = p - σ(p) and z = σ(p)", float(least), -1e-12)


@claim(
    "book.prop-scalar-prox",
    "σ is a proximal map exactly if it is nondecreasing and 1-Lipschitz",
    "prop-scalar-prox",
)
def scalar_prox(trial):
    t = 2 * normal(60, g=trial.g)
    for sigma, f in BEHIND.items():
        (least,) = _slopes_increase(trial, sigma=sigma)
        yield least.called({"least": f"{sigma.name}: least"})
        errors, searched = [], []
        for alpha in (0.3, 1.0, 2.5):
            # z = σ(t) has the slope t - z of f, so z is the proximal point of z + α(t - z)
            z = sigma(t)
            p = z + alpha * (t - z)
            errors.append((sigma.prox(p, alpha) - z).abs().max())
            fine = torch.linspace(-1, 1, 2001, dtype=torch.float64) if sigma is tanh else GRID
            p = torch.linspace(-2.5, 2.5, 21, dtype=torch.float64)
            off = _searched(alpha * f(fine), p, fine) - sigma.prox(p, alpha)
            searched.append(off.abs().max() / (fine[1] - fine[0]))
        worst = float(torch.stack(errors).max())
        yield within(f"{sigma.name}: |prox_αf(z + α(t - z)) - z|, z = σ(t)", worst, 1e-9)
        worst = float(torch.stack(searched).max())
        yield within(f"{sigma.name}: prox_αf vs search, in steps of the grid", worst, 1)


scalar_prox.breaks("σ(t) = max(2t, t/2): not 1-Lipschitz", part=_slopes_increase, sigma=steep(2.0))
scalar_prox.breaks("σ(t) = -t: not nondecreasing", part=_slopes_increase, sigma=torch.neg)


# --- monotone operators ----------------------------------------------------------------------


def _increases(trial, *, convex=True):
    f = lab.kinked(trial.seed, convex=convex)
    x = f.points()
    x = x[x > f.start]
    low, high = f.subdifferential(x)
    products = [
        ((u[:, None] - v) * (x[:, None] - x)).min() for u in (low, high) for v in (low, high)
    ]
    yield at_least("least (u-v)(x-y)", float(min(products)), -1e-9)
    yield seen("points on a kink", float((high > low).sum()), "≥", 1)


def _minty(trial, *, closed=True):
    f = lab.kinked(trial.seed, closed=closed)
    p = torch.linspace(-10, 10, 101, dtype=torch.float64)
    x, gap = f.resolvent(p)
    yield within("distance of p to x + ∂f(x)", float(gap.max()), 1e-8)
    grid = f.start + torch.linspace(0, 20, 4001, dtype=torch.float64)
    off = float((_searched(f(grid), p, grid) - x).abs().max())
    yield within("x vs the minimiser of f(u) + (u-p)²/2, in steps of the grid", off / 0.005, 1)
    dx, dp = x[:, None] - x, p[:, None] - p
    yield within("largest ‖x-x'‖² - ⟨x-x', p-p'⟩", float((dx * dx - dx * dp).max()), 1e-9)


def _root_gap(p: Tensor) -> Tensor:
    root = torch.ones_like(p)
    for _ in range(200):  # solve x - 1/(2√x) = p in s = log x
        value = root - 0.5 * root.rsqrt() - p
        root = (root.log() - value / (root + 0.25 * root.rsqrt())).exp()
    return (root - 0.5 * root.rsqrt() - p).abs()


@claim(
    "nguyen2022.lemma2.3.1",
    "The subdifferential of a closed convex function is maximal monotone",
    "lem-subdifferential",
)
def subdifferential_maximal(trial):
    yield from _increases(trial)
    yield from _minty(trial)
    # The converse fails: -√x with the value 5 at 0 is not closed, yet its ∂ passes Minty's test.
    gap = _root_gap(torch.linspace(-10, 10, 101, dtype=torch.float64))
    yield within("distance of p to x + ∂g(x), g = -√x", float(gap.max()), 1e-8)


subdifferential_maximal.breaks(
    "f not convex: a minimum of affine functions", "least", part=_increases, convex=False
)
subdifferential_maximal.breaks(
    "f not closed: the end of its domain left out", "distance", part=_minty, closed=False
)


def _least_quotient(M: Tensor, g: torch.Generator) -> float:
    """Return min ⟨Mv,v⟩/‖v‖² by the power method on c - (M + Mᵀ)/2, without eigenvalues."""
    power = operator_norm(M) * eye(len(M)) - (M + M.mT) / 2
    for _ in range(40):  # the 2^40th power
        power = power @ power
        power = power / power.norm()
    v = power @ normal(len(M), 1, g=g)
    return float((v.mT @ M @ v) / v.pow(2).sum())


@claim(
    "nguyen2022.lemma2.3.2",
    "x ↦ Wx is μ-strongly monotone exactly when W + Wᵀ ⪰ 2μI",
    "lem-linear-monotone",
)
def linear_monotone(trial, *, factor=1, modulus=monotonicity):
    W = normal(8, 8, g=trial.g) + 8 * eye(8)
    mu = factor * modulus(eye(8) - W)  # of I - (I - W)
    v = normal(2000, 8, g=trial.g)
    least = float((torch.einsum("nr,rs,ns->n", v, W, v) / v.pow(2).sum(1)).min())
    yield at_least("least ⟨Wv,v⟩/‖v‖² ÷ μ, 2000 random v", least / mu, 1.0)
    attained = _least_quotient(W, trial.g) / mu
    yield headline(at_least("least ⟨Wv,v⟩/‖v‖² ÷ μ, the worst v", attained, 1 - ROUNDING))
    yield equal("the same: attained", attained, 1.0, 1e-6)


linear_monotone.breaks(
    "the factor 2 dropped: μ = λ_min(W + Wᵀ)", "least ⟨Wv,v⟩/‖v‖² ÷ μ, the worst", factor=2
)
linear_monotone.breaks(
    "the spectrum of W in the place of W + Wᵀ",
    "least ⟨Wv,v⟩/‖v‖² ÷ μ, the worst",
    "the same",
    modulus=lambda W: 1 - float(torch.linalg.eigvals(W).real.max()),
)


@claim(
    "nguyen2022.proposition1",
    "I - W ⪰ μI exactly when W = (1-μ)I - AᵀA + B - Bᵀ",
    "prop-parametrisation",
)
def parametrisation(trial):
    model = MonDEQ.init(12, 3, mu=0.3, seed=trial.seed).requires_grad_(False)
    yield headline(at_least("random A: λ_min(I - sym W) ÷ μ", monotonicity(model.W) / 0.3, 1.0))
    model.A[:, 0] = 0  # AᵀA is singular: the modulus is attained
    yield equal("singular A: λ_min(I - sym W)", monotonicity(model.W), 0.3, ROUNDING)
    W = 0.1 * normal(12, 12, g=trial.g)
    mu = monotonicity(W) - 0.1
    A, B = monotone_parameters(W, mu)
    again = (1 - mu) * eye(12) - torch.einsum("sr,st->rt", A, A) + B - B.mT
    yield within("error of the best reconstruction", float((again - W).abs().max()), 1e-9)
    built = MonDEQ(A, B, model.U, model.a, mu).W.detach()
    yield within("W of the model with these A, B", float((built - W).abs().max()), 1e-9)


def _modulus_too_large(trial):
    W = normal(12, 12, g=trial.g)
    S = (1 - monotonicity(W) - 0.1) * eye(12) - symmetric_part(W)
    values, vectors = torch.linalg.eigh(S)
    best = (vectors * values.clamp(min=0)) @ vectors.mT  # AᵀA can only be the positive part of S
    yield within("error of the best reconstruction", float((best - S).abs().max()), 1e-9)


parametrisation.breaks("μ above λ_min(I - sym W)", part=_modulus_too_large)


def _skewed(seed: int, m: int, mu: float) -> Tensor:
    """Return a monotone matrix whose skew part is six times as large as drawn."""
    model = MonDEQ.init(m, 1, mu=mu, seed=seed).requires_grad_(False)
    model.B.mul_(6)
    return model.W


def _stable(W: Tensor, q: Tensor, mu: float) -> float:
    """Return the largest ‖z(q) - z(q')‖ μ/‖q - q'‖ over pairs of rows of q."""
    z = torch.cat([found[:1] for found in equilibria(W, q)])
    if len(z) < len(q):
        return math.nan
    apart = torch.cdist(q, q) + eye(len(q))
    return float((torch.cdist(z, z) / apart).max()) * mu


def _exactly_one(trial, *, W=None, slope=1.0):
    W = _skewed(trial.seed, 5, 0.3) if W is None else W
    mu = monotonicity(W)
    q = normal(40, len(W), g=trial.g)
    if slope == 1.0:
        yield given("μ", mu, "≥", 1e-3)
    counts = torch.tensor([len(z) for z in equilibria(slope * W, slope * q)])  # sσ(t) = σ(st)
    yield equal("injections of 40 with exactly one equilibrium", int((counts == 1).sum()), 40, 0)
    if slope == 1.0:
        top = _stable(W, q, mu)
        yield headline(at_most("random: ‖z(q) - z(q')‖ μ/‖q - q'‖", top, 1 + ROUNDING))


@claim(
    "book.thm-monotone",
    "I - W ⪰ μI and σ a proximal map: one equilibrium, 1/μ-Lipschitz in q",
    "thm-monotone",
)
def monotone_certificate(trial, *, overstated=1.0):
    yield from _exactly_one(trial)
    norm = operator_norm(_skewed(trial.seed, 5, 0.3))
    yield seen("‖W‖, no contraction", norm, "≥", 2.0)
    q = 0.1 + torch.rand(10, 5, generator=trial.g, dtype=torch.float64)
    still = 0.7 * eye(5)
    top = _stable(still, q, overstated * monotonicity(still))
    yield headline(at_most("W = 0.7I, q > 0: the same", top, 1 + ROUNDING))
    yield equal("W = 0.7I, q > 0: attained", top, 1.0, ROUNDING)


monotone_certificate.breaks(
    "μ = -1: two units that suppress each other",
    "hypothesis",
    "injections",
    part=_exactly_one,
    W=torch.tensor([[0.0, -2.0], [-2.0, 0.0]], dtype=torch.float64),
)
monotone_certificate.breaks(
    "σ = 2ReLU, no proximal map, with W = 0.75", part=_exactly_one, W=0.75 * ONE, slope=2.0
)
monotone_certificate.breaks("μ overstated by a tenth", "W = 0.7I", overstated=1.1)


def _splits(trial, *, W, q, steps=20000):
    problem = MonotoneProblem(W, q)
    ends = [
        split(problem, PeacemanRachford(), z0=z0, tol=1e-10, max_steps=steps, throw=False).z
        for z0 in (torch.zeros_like(q), 5 * normal(*q.shape, g=trial.g))
    ]
    again = [torch.relu(torch.einsum("rs,ns->nr", W, z) + q) for z in ends]
    moved = torch.stack([(a - z).norm(dim=1) for a, z in zip(again, ends)])
    yield within("‖f(z) - z‖ at the end", float(moved.max()), 1e-8)
    gap = float((ends[0] - ends[1]).norm(dim=1).max())
    yield within("distance of limits from two starts", gap, 1e-7)


@claim(
    "nguyen2022.definition3.2.1",
    "A monotone DEQ has one equilibrium, however large A and B are",
    "def-mondeq",
)
def monotone_wellposed(trial):
    model = MonDEQ.init(20, 5, mu=0.5, seed=trial.seed).requires_grad_(False)
    model.B.mul_(6)  # ‖W‖ is then far above 1
    model.A[:, 0] = 0  # AᵀA is singular: μ is attained
    W, x = model.W, sphere(6, 5, trial.seed)
    q = torch.einsum("rs,ns->nr", model.U, x)
    yield equal("λ_min(I - sym W)", monotonicity(W), 0.5, ROUNDING)
    yield given("‖W‖, no contraction", operator_norm(W), "≥", 3.0)
    yield from _splits(trial, W=W, q=q)
    exact = fixed_point(model.map(q), torch.zeros_like(q), solver=Newton(), tol=1e-12, throw=False)
    other = model.solve(x, tol=1e-11, max_steps=20000)
    yield within("splitting against Newton", float((exact.z - other.z).abs().max()), 1e-8)


monotone_wellposed.breaks("μ = -1: z = σ(2z-1) has two solutions", part=_two_solutions, tol=1e-7)
monotone_wellposed.breaks(
    "μ = 0: z = σ(z+1) has none", "‖f(z)", part=_splits, W=ONE, q=ONE, steps=500
)


def _shifted(*shape: int, g: torch.Generator) -> Tensor:
    return normal(*shape, g=g) + 0.5


def _mirrored(*shape: int, g: torch.Generator) -> Tensor:
    return math.sqrt(2) * symmetric_part(normal(*shape, g=g))


def _top_eigenvalue(trial, *, entries=normal):
    m = 60
    tops = torch.linalg.eigvalsh(symmetric_part(entries(300, m, m, g=trial.g)))[:, -1]
    for t in (0.5, 1.0, 1.5):
        exceed = float((tops > math.sqrt(2 * m) + t).double().mean())
        yield headline(at_most(f"P(λ_max > √(2m) + {t})", exceed, math.exp(-t * t / 2)))
    # two-sided: Tracy-Widom again, with a standard error of 0.003
    edge = math.sqrt(2) * (1 - 0.603 * m ** (-2 / 3))
    yield equal("mean λ_max/√m at the edge", float(tops.mean()) / math.sqrt(m), edge, 1 / m)


@claim(
    "book.prop-random-monotone",
    "Gaussian weights at scale γ are monotone with μ near 1 - √2 γ",
    "prop-random-monotone",
)
def random_monotone(trial):
    yield from _top_eigenvalue(trial)
    model = ReLUImplicit.init(200, 1, gamma=0.6, seed=trial.seed).requires_grad_(False)
    mu, room = monotonicity(model.scale * model.W), 4.5 / math.sqrt(200)
    yield at_least("μ at γ = 0.6, t = 4.5", mu, 1 - 0.6 * (math.sqrt(2) + room))
    edge = 1 - 0.6 * math.sqrt(2) * (1 - 0.603 * 200 ** (-2 / 3))
    yield equal("μ at γ = 0.6", mu, edge, 0.04)


random_monotone.breaks("entries not centred", part=_top_eigenvalue, entries=_shifted)
random_monotone.breaks(
    "entries not independent: W symmetric", part=_top_eigenvalue, entries=_mirrored
)


def _rotation(trial, *, multiple=1.98):
    problem, _ = lab.rotation_problem()
    # For this matrix the bound of the forward step is an equality.
    inside = forward_backward_factor(1.98 * problem.mu / problem.L**2, problem.mu, problem.L)
    left = lab.rotation_shrinks(multiple) / inside**400
    yield equal("rotation: distance after 400 steps ÷ factor^400", left, 1.0, 1e-6)


def _tanh(trial, *, sigma=tanh):
    problem, z = lab.random_problem(trial.seed, tanh)  # z by Newton's method
    # not α = 1/2, which would not tell α from 1 - α
    f = PeacemanRachford(0.4).iteration(MonotoneProblem(problem.W, problem.q, sigma))
    u = picard_states(f, torch.zeros_like(problem.q), 150)[-1]
    error = float((sigma.prox(u, 0.4) - z).norm())
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
    own = ForwardBackward().step_size(problem)
    yield equal("forward-backward: its own α ÷ μ/L²", own * L**2 / mu, 1.0, ROUNDING)
    ratios = []
    for alpha in (None, *(c * mu / L**2 for c in (0.5, 1.9))):
        step = ForwardBackward(alpha).step_size(problem)
        f = ForwardBackward(alpha).iteration(problem)
        ratios.append(_against(forward_backward_factor(step, mu, L), f, z, away))
    # the largest; a NaN stays a NaN, and fails
    worst = float(torch.stack(ratios).max())
    yield headline(at_most("forward-backward: distance ÷ (factor^k · start)", worst, 1.0))
    ratios = []
    for alpha in (0.1 / L, 1 / L, 10 / L):
        f = PeacemanRachford(alpha).iteration(problem)
        u = z - alpha * (z @ problem.M.mT - problem.q)  # the fixed point: u - z ∈ α∂f(z)
        ratios.append(_against(peaceman_rachford_factor(alpha, mu, L), f, u, away))
    worst = float(torch.stack(ratios).max())
    yield headline(at_most("Peaceman-Rachford: distance ÷ (factor^k · start)", worst, 1.0))
    # M = I/2 with all units active attains the second factor, at every step
    still = MonotoneProblem(0.5 * eye(2), torch.full((1, 2), 2.5, dtype=torch.float64))
    five = torch.full((1, 2), 5.0, dtype=torch.float64)
    for alpha in (0.2, 8.0):
        method = PeacemanRachford(alpha)
        u = method.encode(still, five)
        moved = picard_states(method.iteration(still), u + 0.1, 20)[-1] - u
        left = float(moved.norm() / (0.1 * math.sqrt(2)))
        left = left / peaceman_rachford_factor(alpha, 0.5, 0.5) ** 20
        yield equal(f"M = I/2, α = {alpha}: distance after 20 steps ÷ factor^20", left, 1.0, 1e-3)
    yield from _rotation(trial)
    yield from _tanh(trial)


splitting_ranges.breaks("α = 2μ/L², the closed end of the interval", part=_rotation, multiple=2.0)
splitting_ranges.breaks(
    "tanh itself in place of prox_{αf}",  # only for ReLU does the prox not depend on α
    part=_tanh,
    sigma=Activation("tanh", tanh.value, tanh.slope, lambda p, _alpha: torch.tanh(p)),
)


def _step_norm(problem: MonotoneProblem, mu: float, c: float) -> float:
    """Return ‖I - αM‖ ÷ √(1 - 2αμ + α²L²) at α = cμ/L²."""
    alpha = c * mu / problem.L**2
    step = operator_norm(eye(len(problem.W)) - alpha * problem.M)
    return step / forward_backward_factor(alpha, mu, problem.L)


def _sharp_step(trial, *, overstated=1.0):
    problem, _ = lab.rotation_problem()
    ratios = [_step_norm(problem, overstated * problem.mu, c) for c in (0.5, 1.0, 1.5)]
    worst = max(ratios, key=lambda r: abs(r - 1))
    yield equal("rotation: ‖I-αM‖ ÷ bound", worst, 1.0, ROUNDING)


@claim(
    "nguyen2022.proposition3",
    "The forward step I - αM has norm at most √(1 - 2αμ + α²L²)",
    "prop-forward-step",
)
def forward_step(trial):
    M = normal(8, 8, g=trial.g) + 8 * eye(8)
    problem = MonotoneProblem(eye(8) - M, normal(1, 8, g=trial.g))
    mu, L = problem.mu, problem.L
    yield equal("μ vs the least ⟨Mv,v⟩/‖v‖²", _least_quotient(M, trial.g) / mu, 1.0, 1e-6)
    largest = -_least_quotient(-M.mT @ M, trial.g)
    yield equal("L² vs the largest ‖Mv‖²/‖v‖²", largest / L**2, 1.0, 1e-6)
    worst = max(_step_norm(problem, mu, c) for c in (0.1, 0.5, 1.0, 1.9))
    yield headline(at_most("max ‖I-αM‖ ÷ bound", worst, 1 + ROUNDING))
    yield from _sharp_step(trial)
    end = forward_backward_factor(2 * mu / L**2, mu, L)
    yield equal("bound at α = 2μ/L²", end, 1.0, ROUNDING)
    grid = [c / 100 for c in range(1, 200)]
    best = min(grid, key=lambda c: forward_backward_factor(c * mu / L**2, mu, L))
    yield equal("α of the least bound ÷ μ/L²", best, 1.0, 0.02)


forward_step.breaks("M only μ/2-strongly monotone", part=_sharp_step, overstated=2.0)


# --- optimisation-induced equilibria ---------------------------------------------------------


def _km(trial, *, T, zeta, start, fixed, name="tied, ‖W‖ = 1"):
    states = picard_states(T, start, 3000)
    steps = (states[1:] - states[:-1]).norm(dim=2)
    yield within(f"{name}: residual after 3000 steps", float(steps[-1].max()), 1e-8)
    far = torch.cdist(states.movedim(0, 1), fixed.expand(len(start), -1, -1))
    grown = (far[:, 1:] / far[:, :-1].clamp(min=1e-6)).max()
    yield at_most(f"{name}: growth of the distance to a fixed point", float(grown), 1 + ROUNDING)
    total = steps.pow(2).sum(dim=0)[:, None] / far[:, 0].pow(2) * (1 - zeta) / zeta
    yield headline(at_most(f"{name}: Σ‖z-Tz‖² ÷ its bound", float(total.max()), 1 + ROUNDING))


@claim(
    "book.thm-km",
    "An averaged map with a fixed point: Picard iteration converges to one",
    "thm-km",
)
def krasnoselskii_mann(trial):
    model, low, high = lab.segment_instance()
    q = model.inject(torch.zeros(3, 1, dtype=torch.float64)).detach()
    fixed = torch.cat([low[None], high[None], (low + high)[None] / 2]).reshape(3, 4)
    cell = model.requires_grad_(False).map(q)
    yield given("‖Tw - w‖ at three points w", float((cell(fixed) - fixed).norm()), "≤", 1e-9)
    yield from _km(trial, T=cell, zeta=0.5, start=2 * normal(3, 4, g=trial.g), fixed=fixed)
    start = normal(3, 2, g=trial.g)
    (*_, total) = _km(trial, T=lambda z: -0.4 * z, zeta=0.7, start=start, fixed=0 * start[:1])
    name = "T = -0.4I, 0.7-averaged: Σ‖z-Tz‖² ÷ its bound"
    yield headline(at_most(name, total.value, 1 + ROUNDING))
    yield equal(f"{name}, attained", total.value, 1.0, ROUNDING)


krasnoselskii_mann.breaks(
    "nonexpansive, not averaged: T = -I",
    "tied, ‖W‖ = 1: residual",
    "tied, ‖W‖ = 1: Σ",
    part=_km,
    shown={"tied, ‖W‖ = 1": "T = -I"},
    T=torch.neg,
    zeta=0.5,
    start=torch.ones(1, 2, dtype=torch.float64),
    fixed=torch.zeros(1, 2, dtype=torch.float64),
)
krasnoselskii_mann.breaks(
    "no fixed point: Tz = z + 1",
    part=_km,
    shown={"tied, ‖W‖ = 1": "Tz = z + 1", "a fixed point": "zero"},
    T=lambda z: z + 1,
    zeta=0.5,
    start=torch.ones(1, 2, dtype=torch.float64),
    fixed=torch.zeros(1, 2, dtype=torch.float64),
)


def _opteq_settles(trial, *, model, x):
    found = model.solve(x, solver=Picard(), tol=1e-9, max_steps=1000, throw=False)
    (W,), (U,), (b,) = model.Ws, model.Us, model.bs
    pre = torch.einsum("hm,nm->nh", W, found.z) + torch.einsum("hd,nd->nh", U, x) + b
    moved = torch.einsum("hm,nh->nm", W, model.sigma(pre)) - found.z
    yield within("‖f(z) - z‖ at the end", float(moved.detach().norm(dim=1).max()), 1e-7)


def _opteq_unique(trial, *, model, x):
    q = model.inject(x).detach()
    f = model.map(q)
    start = model.start(q)
    other = 2 * normal(*start.shape, g=trial.g)
    other[1:2] = start[1:2]  # of two samples one that starts twice at one place agrees anyway
    yield _one_limit(lambda z: f(z).detach(), start, other, 1e-7)


def _segment(trial):
    model, low, high = lab.segment_instance()
    model.requires_grad_(False)
    t = torch.linspace(0, 1, 11, dtype=torch.float64)[:, None]
    points = low + t * (high - low)
    moved = model.cell(points, torch.zeros(11, 1, dtype=torch.float64)) - points
    yield within("residual along the segment, ‖W‖ = 1", float(moved.norm(dim=1).max()), 1e-9)
    yield equal("length of the segment", float((high - low).norm()), 4.0, 1e-9)
    starts = 2 * normal(2, 4, g=trial.g)
    zero = torch.zeros(2, 1, dtype=torch.float64)
    ends = model.solve(zero, starts, solver=Picard(), tol=1e-12, max_steps=20000).z
    middle = ends.mean(dim=0, keepdim=True)
    moved = model.cell(middle, ZERO) - middle
    yield within("residual half-way between two limits", float(moved.norm()), 1e-9)


def _bounded(trial, *, sigma=tanh):
    model = OptEq.init(12, 4, norm=3.0, sigma=sigma, seed=trial.seed).requires_grad_(False)
    q = model.inject(0.1 + normal(5, 4, g=trial.g).abs())
    ends = picard_states(model.map(q), model.start(q), 2000)
    off = (ends[-1] - ends[-2]).norm(dim=1) / ends[-1].norm(dim=1)
    yield within("‖W‖ = 3, bounded σ: last step ÷ state", float(off.max()), 1e-6)


@claim(
    "xie2022.wellposed",
    "OptEq: one equilibrium when ‖W‖ < 1; at ‖W‖ = 1 a closed convex set, maybe empty",
    "thm-opteq",
)
def opteq_wellposed(trial):
    norm = 0.95
    model = OptEq.init(12, 4, norm=norm, seed=trial.seed).requires_grad_(False)
    x = normal(5, 4, g=trial.g)
    yield from _opteq_settles(trial, model=model, x=x)
    yield from _opteq_unique(trial, model=model, x=x)
    stretch = worst_stretch(model, model.W) / norm**2
    yield headline(at_most("worst pair: expansion ÷ ‖W‖²", stretch, 1 + ROUNDING))
    yield equal("worst pair: attained", stretch, 1, ROUNDING)
    yield from _segment(trial)
    yield from _bounded(trial)


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
    x=torch.cat([ZERO, ZERO]),
)
opteq_wellposed.breaks(
    "σ not bounded, ‖W‖ = 3", part=_bounded, shown={"bounded σ": "ReLU"}, sigma=relu
)


def _averaged(trial, *, name, alpha, L, sigma=relu):
    # ‖Tx-Ty‖² + (1-ζ)/ζ ‖(x-Tx)-(y-Ty)‖² ≤ ‖x-y‖² with ζ of the composition; α/2 for L = 1
    zeta = L * alpha / (2 - alpha + L * alpha)
    g = trial.g
    Qs = [torch.linalg.qr(normal(6, 6, g=g))[0] for _ in range(L)]
    if sigma is relu:
        Qs = [Q * torch.rand(6, 1, generator=g, dtype=torch.float64) for Q in Qs]
    T = lab.tied_layers(Qs, [normal(6, g=g) for _ in Qs], alpha, sigma)
    x, y = normal(400, 6, g=g), normal(400, 6, g=g)
    tx, ty = T(x), T(y)
    square = (x - y).pow(2).sum(1)
    excess = (tx - ty).pow(2).sum(1) - square
    excess = excess + (1 - zeta) / zeta * ((x - tx) - (y - ty)).pow(2).sum(1)
    yield within(f"{name}: worst excess ÷ ‖x-y‖²", float((excess / square).max()), 1e-9)


def _least_zeta(trial, *, norm=1.0):
    for alpha, L in ((0.5, 1), (0.5, 3), (1.0, 3)):
        zeta = L * alpha / (2 - alpha + L * alpha)
        share = lab.least_averaging(lab.nearly_parallel(L, alpha, norm), 2) / zeta
        name = f"nearly parallel lines, α = {alpha}, L = {L}: least ζ that fits ÷ ζ"
        yield headline(at_most(name, share, 1 + ROUNDING))
        yield equal(f"{name}, attained", share, 1.0, 1e-3)


@claim(
    "xie2022.lemma13",
    "OptEq layers are α/2-averaged, their composition Lα/(2-α+Lα)-averaged",
    "lem-averaged",
)
def layers_averaged(trial):
    yield from _averaged(trial, name="averaged", alpha=0.5, L=3)
    yield from _averaged(trial, name="one layer", alpha=0.5, L=1)
    yield from _averaged(trial, name="no skip, α = 1", alpha=1.0, L=3)
    yield from _least_zeta(trial)


layers_averaged.breaks(
    "σ(t) = -t: 1-Lipschitz but not monotone",  # three reflections are a reflection
    part=_averaged,
    name="no skip, α = 1",
    alpha=1.0,
    L=3,
    sigma=Activation("minus", torch.neg, lambda t: -torch.ones_like(t), lambda p, _alpha: -p),
)
layers_averaged.breaks("‖W_l‖ = 1.1", part=_least_zeta, norm=1.1)


# --- other norms -----------------------------------------------------------------------------


def _signed(g: torch.Generator, root: float) -> tuple[Tensor, Tensor]:
    """Return a matrix with λ_pf(|W|) = root and large norms, and its modulus."""
    size = 5
    W = torch.rand(size, size, generator=g, dtype=torch.float64)
    scales = torch.exp(1.5 * normal(size, g=g))
    W = scales[:, None] * W / scales
    W = W * (root / perron_root(W))
    return W * torch.where(normal(size, size, g=g) > 0, 1.0, -1.0), W


def _sup_norms(trial, *, slope=1.5, root=0.95):
    g = trial.g
    W, positive = _signed(g, root / 1.5)
    given_root = slope * float((torch.linalg.matrix_power(W.abs(), 200).sum()) ** (1 / 200))
    yield given("L_σ λ_pf(|W|), by powers", given_root, "≤", 0.99)
    found = {c.kind: c for c in certificates(Affine(positive, steep(slope)))}
    one = found["Perron-Frobenius"]
    yield equal("certificate: constant", one.constant, root, 1e-6)
    # in the weighted sup norm, both for random pairs and for the pair that attains it
    w = torch.linalg.solve(eye(5) - slope * W.abs(), torch.ones(5, dtype=torch.float64))
    factor = 1 - 1 / w.max()
    z, other = normal(2, 200, 5, g=g)
    q = normal(1, 5, g=g)

    def cell(M: Tensor, z: Tensor, q: Tensor) -> Tensor:
        return steep(slope)(torch.einsum("rs,ns->nr", M, z) + q)

    def size(v: Tensor) -> Tensor:
        return (v.abs() / w).amax(dim=1)

    shrunk = size(cell(W, z, q) - cell(W, other, q)) / size(z - other) / factor
    yield headline(
        at_most("signed: contraction ÷ (1 - 1/max w)", float(shrunk.max()), 1 + ROUNDING)
    )
    start = torch.ones(1, 5, dtype=torch.float64)
    pair = cell(positive, start + w, start) - cell(positive, start, start)
    attained = float(size(pair) / factor)
    yield equal("W ≥ 0: contraction along w, attained", attained, 1.0, ROUNDING)
    # one equilibrium, and Picard iteration finds it from far away
    q = 1 + normal(20, 5, g=g).abs()
    ends = [picard_states(lambda z: cell(W, z, q), s * q, 1500)[-1] for s in (0.0, 50.0)]
    yield within("signed: two limits of Picard iteration differ by", relative(*ends), 1e-9)
    top = torch.linalg.svd(eye(5) - slope * positive)[0][:, -1].abs()  # most amplified
    pair = torch.cat([start, start + top])
    far = picard_states(lambda z: cell(positive, z, pair), 0 * pair, 1500)[-1]
    moved = float((far[1] - far[0]).norm()) / one.lipschitz
    yield equal("W ≥ 0: ‖z(q) - z(q')‖ ÷ the certificate's bound, attained", moved, 1.0, 1e-6)


def _counted(trial, *, W=None, around=0.0):
    W = _signed(trial.g, 0.95)[0] if W is None else W
    q = around + normal(40, len(W), g=trial.g)
    counts = torch.tensor([len(z) for z in equilibria(W, q)])
    yield equal(
        "ReLU: injections of 40 with exactly one equilibrium", int((counts == 1).sum()), 40, 0
    )
    yield given("λ_pf(|W|)", perron_root(W), "≤", 0.99)


@claim(
    "book.prop-perron",
    "L_σ λ_pf(|W|) < 1: the cell contracts in a weighted sup norm",
    "prop-perron",
)
def sup_norm_certificates(trial):
    yield from _sup_norms(trial)
    yield from _counted(trial)
    W = _signed(trial.g, 0.95)[0]
    W = W / W.abs().sum(dim=1).max() * 0.9
    up = W[W.abs().sum(dim=1).argmax()].sign()
    moved = torch.relu(W @ up + 9) - torch.relu(0 * up + 9)
    yield equal("‖W‖_∞ = 0.9: expansion of the worst pair", float(moved.abs().max()), 0.9, ROUNDING)
    found = {c.kind: c for c in certificates(Affine(W, relu))}
    yield equal("certificate: ‖W‖_∞", found["infinity-norm"].constant, 0.9, ROUNDING)
    bound = math.sqrt(5) / (1 - 0.9)  # one norm against the other, and the geometric series
    yield equal("certificate: its constant", found["infinity-norm"].lipschitz, bound, 1e-6)
    least = _least_quotient(eye(5) - W, trial.g)
    yield equal("certificate: μ", found["monotone"].constant, least, 1e-6)
    largest = math.sqrt(-_least_quotient(-W.mT @ W, trial.g))
    yield equal("certificate: ‖W‖", found["contraction"].constant, largest, 1e-6)


sup_norm_certificates.breaks(
    "ρ(W) = 0 in the place of λ_pf(|W|), which is 4",
    part=_counted,
    W=torch.tensor([[2.0, -4.0], [1.0, -2.0]], dtype=torch.float64),
    around=torch.tensor([-5.0, -50.0], dtype=torch.float64),
)
sup_norm_certificates.breaks(
    "L_σ = 1.7 and λ_pf(|W|) = 0.63: the slope forgotten",
    "hypothesis",
    "certificate",
    "W ≥ 0",
    part=_sup_norms,
    slope=1.7,
)

check = checks(claim)
