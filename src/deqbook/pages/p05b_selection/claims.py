"""Many equilibria: regularisation by architecture and the selection theorem of xie2022.

The architecture claim compares a network with two convex problems solved by scipy. The selection
claims run on networks whose equilibria form a segment that is known exactly, so "the equilibrium
with the least R" is a formula and not another iteration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

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
from deqbook.linalg import operator_norm, relative
from deqbook.pages.p05b_selection import lab
from deqbook.regularize import (
    L1,
    HiddenObjective,
    InverseNorm,
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
from deqbook.runtime import normal

claim = chapter("05b_selection")
EXACT = 1e-9  # two exact routes
SOLVER = 1e-6  # a general solver of scipy against an equilibrium
ROUND = -1e-12  # rounding in a quantity that is at least 0


def _worst(values: Iterable[float | Tensor]) -> float:
    """Return the largest value; a NaN stays."""
    return float(torch.tensor([float(v) for v in values], dtype=torch.float64).max())


def _distance(z: Tensor, target: Tensor) -> float:
    return float((z - target).norm(dim=-1).max())


# --- Section 4.1: regularisation by architecture -----------------------------------------------

ABSOLUTE, SQUARE = L1(0.2), SquaredL2(0.5)
Minimiser = Callable[[HiddenObjective, L1 | SquaredL2], Tensor]


def _proximal_layer(trial, *, minimiser=lab.envelope_minimiser):
    phi = lab.hidden(trial.seed)
    for R in (ABSOLUTE, SQUARE):
        z = lab.equilibrium_of(append_prox(phi.layer, R), 6)
        yield within(
            "distance of z = prox_R(T(z)) to the minimiser of the envelope plus R, "
            f"{type(R).__name__}",
            (z - minimiser(phi, R)).norm(),
            SOLVER,
        )


def _block_inclusion(trial, *, own=True, alpha=0.6):
    layers = [lab.hidden(trial.seed), lab.hidden(trial.seed + 1000)]
    f1, f2 = (lambda z, f=f: alpha * f.layer(z) + (1 - alpha) * z for f in layers)
    last = lab.equilibrium_of(append_prox(lambda z: f2(f1(z)), SQUARE), 6)
    first = f1(last)
    second = f2(first) if own else last
    slopes = [
        alpha * f.envelope(1 - alpha).gradient(z[None])[0] for f, z in zip(layers, (first, second))
    ]
    rows = [slopes[0] + first - last]
    if own:
        rows += [slopes[1] + second - first, SQUARE.gradient(last) + last - second]
    else:
        rows += [slopes[1] + SQUARE.gradient(last) + last - first]
    residual = torch.stack(rows).norm()
    yield within(
        "L = 2: residual of the block inclusion with R on a block of its own", residual, EXACT
    )


def _gradient_layer(trial, *, step=1.0):
    R = lab.quadratic(trial.g)
    layer = append_gradient(lambda z: z, R, step / R.smoothness, check=step <= 1)
    excess = lab.firm_excess(layer, R.H, trial.g)
    yield at_most("I - γ∇R: largest ‖f(x)-f(y)‖² - ⟨f(x)-f(y), x-y⟩, over ‖x-y‖²", excess, 0.0)


@claim(
    "xie2022.section4.1",
    "A proximal layer behind the network adds R to the envelope, not to the objective",
    "prop-architecture",
)
def architecture_adds(trial):
    yield given("‖W‖", operator_norm(lab.hidden(trial.seed).W), "≤", 1.0)
    yield from _proximal_layer(trial)
    yield from _block_inclusion(trial)
    yield from _gradient_layer(trial)


architecture_adds.breaks(
    "the minimiser of φ + R itself, as one would expect (erratum xie2022-E8)",
    part=_proximal_layer,
    shown={"the envelope plus R": "φ + R"},
    minimiser=lab.sum_minimiser,
)
architecture_adds.breaks(
    "R added to the last block that is already there (erratum xie2022-E8)",
    part=_block_inclusion,
    shown={"a block of its own": "the last block"},
    own=False,
)
architecture_adds.breaks(
    "a gradient step of 1.5/L_R: nonexpansive, but no proximal map", part=_gradient_layer, step=1.5
)


# --- Lemma 8: a decaying recursion -------------------------------------------------------------

EXPONENTS = ((0.6, 0.4), (0.9, 0.5), (1.0, 0.7))  # (t₁, t₂)
STEPS = 30_000
# Small weights and almost no errors: the bound of the lemma is nearly attained.
FORGETS = lab.Recursion(0.05, 1e-12, 1.0, 0.6, 0.4)
# Large weights: the constant of the rate is 2r₂, and more than r₂ is needed.
FOLLOWS = lab.Recursion(0.9, 1.0, 1.0, 0.3, 0.4)


def _nearly_attained():
    a = FORGETS.path(300)
    ratios = [a[k - 1] / FORGETS.bound(k) for k in (2, 10, 300)]
    yield at_most("no errors: a ÷ bound after 2, 10, 300 steps", max(ratios), 1.0)
    yield seen("no errors: the same from below", min(ratios), "≥", 0.99)
    p = FORGETS.r1 / np.arange(2, 301) ** FORGETS.t1
    yield equal("no errors: a ÷ a₁∏(1 - p_i)", a[-1] / float(np.prod(1 - p)), 1.0, EXACT)
    scaled = FOLLOWS.path(3000) * np.arange(1, 3001) ** FOLLOWS.t2
    yield at_most("large weights: a·k^t₂, all steps", scaled.max(), FOLLOWS.rate_constant())
    yield seen("large weights: a·k^t₂ ÷ r₂, largest", scaled.max() / FOLLOWS.r2, "≥", 1.05)


@claim(
    "xie2022.lemma8",
    "A recursion that forgets its past slowly, with errors that vanish, tends to 0",
    "lem-decaying-recursion",
)
def recursion_decays(trial, *, t1_run=None, sign=-1.0):
    r1, r2, start = (0.5 + 0.4 * torch.rand(3, generator=trial.g, dtype=torch.float64)).tolist()
    cases = [lab.Recursion(r1, 4 * r2, 10 * start, t1, t2) for t1, t2 in EXPONENTS]
    for case in cases:
        name = f"t₁ = {case.t1:g}, t₂ = {case.t2:g}"
        a = replace(case, t1=t1_run or case.t1).path(STEPS)
        yield headline(at_most(f"{name}: a after {STEPS} steps", a[-1], case.bound(STEPS)))
        if case.t1 < 1:
            scaled = float((a * np.arange(1, STEPS + 1) ** case.t2).max())
            yield at_most(f"{name}: a·k^t₂, all steps", scaled, case.rate_constant())
    yield from _nearly_attained()
    share = cases[1].bound(STEPS, sign=sign) / max(cases[1].start, cases[1].r2)
    yield within("the proof's bound there, over max(a₁, r₂)", share, 0.1)


recursion_decays.breaks(
    "t₁ = 1.6: the weights are summable; the bound is the one for t₁ ≤ 1",
    "t₁",
    shown={f"t₁ = {t1:g}, ": "t₁ = 1.6, " for t1, _ in EXPONENTS},
    t1_run=1.6,
)
recursion_decays.breaks(
    "the sign of the exponent as printed (erratum xie2022-E10)", "the proof's bound", sign=1.0
)


# --- Lemma 9: the regularised step contracts ---------------------------------------------------

LOWER, UPPER = "least ‖s(x)-s(y)‖ / ‖x-y‖", "largest ‖s(x)-s(y)‖ / ‖x-y‖"


def _step(trial, *, name="bent", convex=True, step=0.5, most=0.5):
    # γ = step/L_R, λ = most·L_R; R is a quadratic, singular, plus log cosh if it is bent.
    R = lab.quadratic(trial.g)
    R = R if name == "bent" else replace(R, bend=0.0)
    L = R.smoothness
    gamma, decay = step / L, most * L
    yield given(f"{name}: λ / L_R", decay / L, "≤", 0.5 + EXACT)
    yield given(f"{name}: least curvature", torch.linalg.eigvalsh(R.H)[0], "≥", -1e-12)
    R = R if convex else replace(R, H=-R.H)
    weights = lab.Frozen(gamma, 1.0, decay)  # β = 1: the step s and nothing of T

    def s(z: Tensor) -> Tensor:
        return sam(torch.zeros_like, z, R, weights, 1)

    x, y = lab.pairs_of_states(R.H, trial.g)
    ratios = (s(x) - s(y)).norm(dim=1) / (x - y).norm(dim=1)
    yield headline(at_least(f"{name}: {LOWER}", float(ratios.min()), 0.25 - EXACT))
    yield equal(f"{name}: the same, attained", float(ratios.min()), 0.25, 1e-4)
    most_allowed = 1 - decay / (2 * L) + EXACT  # attained: no bound at the level of rounding
    yield headline(at_most(f"{name}: {UPPER}", float(ratios.max()), most_allowed))


@claim(
    "xie2022.lemma9",
    "The regularised step shrinks all distances, by a factor between 1/4 and 1 - γλ",
    "lem-regularised-step",
)
def step_contracts(trial):
    yield from _step(trial)
    yield from _step(trial, name="quadratic")


step_contracts.breaks(
    "R is not convex: its quadratic part is turned round",
    f"bent: {UPPER}",
    part=_step,
    convex=False,
)
# Without log cosh the steepest curvature is attained everywhere.
step_contracts.breaks(
    "a step of 1/L_R, twice as long",
    f"quadratic: {LOWER}",
    part=_step,
    name="quadratic",
    step=1.0,
    most=0.2,
)
step_contracts.breaks(
    "a step of 2.5/L_R", f"quadratic: {UPPER}", part=_step, name="quadratic", step=2.5
)
step_contracts.breaks(
    "λ = 0.9 L_R, above L_R/2",
    f"quadratic: {LOWER}",
    part=_step,
    name="quadratic",
    most=0.9,
)


# --- Lemma 10: fixed points of a nonexpansive map ----------------------------------------------


def _mixtures(trial, T, fixed):
    weights = torch.rand(50, len(fixed), generator=trial.g, dtype=torch.float64)
    z = weights / weights.sum(1, keepdim=True) @ fixed
    yield within("residual of mixtures of fixed points, worst", _distance(T(z), z), EXACT)


def _monotone(T: lab.Map, x: Tensor, y: Tensor) -> Iterator[Measurement]:
    gap = x - y
    product = ((gap - (T(x) - T(y))) * gap).sum(1) / gap.square().sum(1)
    yield at_least("least ⟨(I-T)x - (I-T)y, x-y⟩ / ‖x-y‖²", float(product.min()), ROUND)


@claim(
    "xie2022.lemma10",
    "The fixed points of a nonexpansive map form a convex set",
    "lem-fixed-set-convex",
)
def fixed_set_convex(trial):
    case, g = lab.random_segment(trial.seed, m=5), trial.g
    yield given("‖W‖", case.norm, "≤", 1 + 1e-12)
    found = case.plain(lab.starts(case, 8, g), steps=3000)
    apart = (found[:, None] - found[None]).norm(dim=-1).max()
    yield given("residual of the points found", (case.T(found) - found).norm(), "≤", 1e-11)
    yield given("largest distance between them", apart, "≥", 0.1)
    yield from _mixtures(trial, case.T, found)
    x, y = (2 * normal(500, 5, g=g) for _ in range(2))
    yield from _monotone(case.T, x, y)


def _two_points(trial):
    def T(z: Tensor) -> Tensor:
        return torch.relu(2 * z - 1)

    fixed = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert torch.equal(T(fixed), fixed)
    yield from _mixtures(trial, T, fixed)
    x, y = (0.5 + torch.rand(500, 1, generator=trial.g, dtype=torch.float64) for _ in range(2))
    yield from _monotone(T, x, y)


fixed_set_convex.breaks("T(z) = σ(2z - 1) expands: its fixed points are 0 and 1", part=_two_points)


# --- A segment of equilibria --------------------------------------------------------------------


@claim("book.prop-segment", "A tied layer of norm 1 with a segment of equilibria", "prop-segment")
def segment_of_equilibria(trial, *, second=None, shift=0.0):
    drawn, g = lab.random_segment(trial.seed), trial.g
    left, singular, right = torch.linalg.svd(drawn.W)
    if second is not None:
        singular[1] = second
    W = left * singular @ right
    v = drawn.W @ drawn.q  # W q = W Wᵀ v = v
    s0 = torch.linalg.solve(drawn.W.mT, drawn.p)  # p = Wᵀ s₀
    case = replace(drawn, W=W, b=s0 - W @ (W.mT @ s0) + shift * v, p=s0 @ W)
    yield given("‖W‖ - 1", abs(case.norm - 1), "≤", 1e-12)
    yield given("least entry of s₀", float(s0.min()), "≥", 0.5 - EXACT)
    yield given(
        "entries of v on the smaller side", min(int((v > 0).sum()), int((v < 0).sum())), "≥", 1
    )
    yield equal("‖q‖", case.q.norm(), 1.0, EXACT)
    inside = case.point(torch.linspace(case.low, case.high, 9, dtype=torch.float64))
    yield within("residual on the segment, worst", _distance(case.T(inside), inside), EXACT)
    reach = torch.tensor([case.low, case.high], dtype=torch.float64)
    codes = (s0 + reach[:, None] * v).amin(dim=1)
    yield within("least entry of s₀ + tv at the ends", float(codes.abs().max()), EXACT)
    found = case.plain(lab.starts(case, 8, g), steps=600)
    yield within("other equilibria: residual", _distance(case.T(found), found), EXACT)
    yield within(
        "other equilibria: distance to the segment", _distance(case.nearest(found), found), SOLVER
    )


segment_of_equilibria.breaks(
    "a second singular value is 1", "other equilibria: distance", second=1.0
)
segment_of_equilibria.breaks(
    "b is not (I - WWᵀ)s₀ but has a part along v", "residual on", shift=0.1
)


# --- Theorem 4: SAM selects ---------------------------------------------------------------------

PLAN = Schedule(rho=0.32, c=0.32)
CHECKPOINTS = (1, 3, 10, 30, 100, 300, 1000)
LONG = 1000
LATE, FAR = 10**6, 10**12  # no run gets there; the frozen fixed points are computed directly
POINT, LINE = "R = ½‖z-a‖²", "R = ½(⟨w,z⟩-τ)²"
LAG = f"distance to the frozen point after {LONG} steps ÷ its distance to the goal"
LIMIT = "distance of the frozen point of step 10¹² to the goal"
AGREE = "distance between runs from both ends of the segment"
LEAST_NORM = "R = 0: distance to the least equilibrium, SAM ÷ plain iteration"


@claim("xie2022.theorem4", "SAM finds the equilibrium with the least R, from any start", "thm-sam")
def sam_selects(trial):
    one = lab.task(trial.seed)
    case = one.case
    yield given("ρ + 2c", PLAN.rho + 2 * PLAN.c, "≤", 1 - 1e-9)
    yield given("‖W‖", case.norm, "≤", 1 + 1e-12)
    other = torch.stack([lab.tikhonov(case, a) for a in one.R.a])
    yield within("nearest equilibria, formula against NNLS", _distance(other, one.goal), 1e-4)
    # A start keeps its place along the segment: 40 to 60 per cent of its length from the goal.
    missed = (case.plain(one.z0) - one.goal).norm(dim=1).min() / (case.high - case.low)
    yield seen("plain iteration: distance to the goal ÷ length, least", missed, "≥", 0.2)
    yield from _tracking(one)
    for name, R in _regularisers(one):
        yield from _formula(one, name, R)
        yield from _run(trial, name)
    yield from _limit(trial)
    yield from _agree(trial)
    yield from _least_norm(trial)


def _regularisers(one: lab.Task) -> Iterator[tuple[str, RankOne | SquaredDistance]]:
    """Return two functions with the same minimiser among the equilibria, the goal of row 0."""
    a, aim = one.R.a[0], one.goal[0]
    w = 0.5 * one.case.q + 0.25 * (a - aim)  # L_R below 1: another first weight
    yield POINT, SquaredDistance(a)
    yield LINE, RankOne(w, float(aim @ w))


def _plan(R: Regulariser, plan: Schedule = PLAN) -> Schedule:
    return replace(plan, smoothness=R.smoothness)


def _tracking(one: lab.Task) -> Iterator[Measurement]:
    # Both halves of the proof, on the first row.
    case, R, z, goal = one.case, SquaredDistance(one.R.a[:1]), one.z0[:1], one.goal[:1]
    ends = case.point(torch.tensor([case.low, case.high], dtype=torch.float64))
    # ⟨(1+λ)z - a, z - p⟩ ≤ 0 for every frozen fixed point z and every equilibrium p: z is in the
    # ball with diameter from p to a/(1+λ), so ‖z‖² ≤ ‖p‖² + ‖a‖²
    fixed = math.hypot(float(ends.norm(dim=1).min()), float(R.a.norm()))
    bounds = lab.tracking_bounds(
        PLAN,
        float((z - lab.frozen_point(case.T, R, PLAN, 1, z)).norm()),
        fixed=fixed,
        origin=float(case.T(torch.zeros_like(z)).norm()),
        pull=float(R.a.norm()),
        steps=CHECKPOINTS[-1],
    )
    run = select(case.T, z, R, PLAN, CHECKPOINTS[-1], record=CHECKPOINTS)
    ratios, below, sizes = [], [], []
    for k, state in zip(run.recorded, run.trace):
        frozen = lab.frozen_point(case.T, R, PLAN, k, state)
        values = [R.value(x) + 0.5 * PLAN.decay(k) * x.square().sum(-1) for x in (frozen, goal)]
        ratios.append((state - frozen).norm() / bounds[k - 1])
        below.append(values[0] - values[1])
        sizes.append(frozen.norm())
    yield given("(A4): largest frozen fixed point", _worst(sizes), "≤", fixed)
    yield at_most("‖z(1) - frozen fixed point‖ over its bound", ratios[0], 1.0)
    yield headline(at_most("‖z(k) - frozen fixed point‖ over its bound, k = 1000", ratios[-1], 1.0))
    yield at_most(
        "R + ½λ‖·‖² at the frozen fixed points minus at the selected one, worst", _worst(below), 0.0
    )


def _formula(one: lab.Task, name: str, R: RankOne | SquaredDistance) -> Iterator[Measurement]:
    """Compare a late frozen point with a linear equation, in the weights that are printed."""
    case, aim = one.case, one.goal[0]
    found = lab.frozen_point(case.T, R, _plan(R), LATE, aim[None])[0]
    on = float((case.W @ found + case.b).min())
    yield given(f"{name}: all units are on, least", on, "≥", 1e-6)
    z = (aim + 1).requires_grad_()
    (slope,) = torch.autograd.grad(R.value(z), z)
    yield within(f"{name}: ∇R against autograd", (slope - R.gradient(z.detach())).norm(), EXACT)
    smoothness = operator_norm(lab.curvature(R, aim))
    weights = lab.theorem_weights(smoothness, PLAN.rho, PLAN.c, LATE)
    bias = lab.frozen_bias(case.W.mT @ case.W, R, weights, aim)
    yield within(
        f"{name}: frozen point of step 10⁶ against a linear equation, relative",
        (found - aim - bias).norm() / bias.norm(),
        SOLVER,
    )


def _run(trial, name=POINT, *, plan=PLAN):
    one = lab.task(trial.seed)
    R, aim = dict(_regularisers(one))[name], one.goal[:1]
    plan = _plan(R, plan)
    z = sam(one.case.T, one.z0, R, plan, LONG, check=False)
    frozen = lab.frozen_point(one.case.T, R, plan, LONG, aim)
    yield seen(f"{name}: {LAG}", _distance(z, frozen) / _distance(frozen, aim), "≤", 0.1)


def _limit(trial, *, plan=PLAN):
    one = lab.task(trial.seed)
    far = lab.frozen_point(one.case.T, one.R, plan, FAR, one.goal)
    yield within(LIMIT, _distance(far, one.goal), 1e-3)


def _agree(trial, *, R=None):
    one = lab.task(trial.seed)
    R = SquaredDistance(one.R.a[0]) if R is None else R
    ends = one.case.point(torch.tensor([one.case.low, one.case.high], dtype=torch.float64))
    z = sam(one.case.T, ends, R, _plan(R), LONG, check=False)
    yield within(AGREE, (z[0] - z[1]).norm(), EXACT)


def _least_norm(trial, *, plan=PLAN):
    # Not covered by the theorem, whose minimiser is unique; the decay alone selects.
    case, z0 = (one := lab.task(trial.seed)).case, one.z0
    least = case.nearest(torch.zeros_like(case.p))
    z = sam(case.T, z0, Zero(), plan, LONG, check=False)
    ratio = _distance(z, least) / _distance(case.plain(z0), least)
    yield seen(LEAST_NORM, ratio, "≤", 0.1)


def _no_minimiser(trial):
    # The frozen points of step k, far out: with a minimiser they would stay.
    start = torch.rand(1, 1, generator=trial.g, dtype=torch.float64)
    plan = _plan(lab.Softplus())
    late, far = (lab.frozen_point(torch.relu, lab.Softplus(), plan, k, start) for k in (LATE, FAR))
    yield within(LIMIT, _distance(late, far), 1e-3)


sam_selects.breaks(
    "β is constant (ρ = 0): R never lets go, and the limit is no equilibrium",
    part=_limit,
    plan=replace(PLAN, rho=0.0),
)
sam_selects.breaks(
    "λ is constant (c = 0): the pull towards 0 stays", part=_limit, plan=replace(PLAN, c=0.0)
)
sam_selects.breaks(
    "β is summable (ρ = 2): the pull is exhausted before the goal is reached",
    part=_run,
    plan=replace(PLAN, rho=2.0),
)
sam_selects.breaks(
    "R = 0 with a summable decay (c = 1.3): nothing selects",
    part=_least_norm,
    plan=replace(PLAN, c=1.3),
)
sam_selects.breaks("R = 1/(‖z‖²+1) is not convex", part=_agree, R=InverseNorm(1.0))
sam_selects.breaks(
    "R has no minimiser among the equilibria [0, ∞) of T(z) = σ(z)",
    part=_no_minimiser,
    shown={"to the goal": "to that of step 10⁶"},
)


# --- (A4), and the bias -------------------------------------------------------------------------

SHARES = (0.5, 1e-2, 1e-4)
STILL = "frozen points from λ = 10⁻⁶ to 10⁻⁸: largest move"


def _frozen_points(T, R, like, *, lams=(0.5, 1e-3, 1e-6)):
    """Return the frozen points for weights β of SHARES and decays λ ≤ L_R/2."""
    gamma, half = 0.5 / R.smoothness, min(0.5, R.smoothness / 2)
    return [
        lab.frozen_point(T, R, lab.Frozen(gamma, beta, 2 * half * lam), 1, like)[0]
        for beta in SHARES
        for lam in lams
    ]


def _stays(T, R, like):
    pairs = (_frozen_points(T, R, like, lams=(lam,)) for lam in (1e-6, 1e-8))
    yield within(STILL, _worst((x - y).norm() for x, y in zip(*pairs)), 1e-2)


@claim(
    "book.prop-frozen-bounded",
    "Frozen points stay bounded: two sufficient conditions for (A4)",
    "prop-frozen-bounded",
)
def frozen_bounded(trial):
    one = lab.task(trial.seed)
    case, aim = one.case, one.goal[:1]
    ends = case.point(torch.tensor([case.low, case.high], dtype=torch.float64))
    point, line = (R for _, R in _regularisers(one))
    assert isinstance(line, RankOne)
    yield given("the goal is an equilibrium: residual", _distance(case.T(aim), aim), "≤", EXACT)
    yield given("R = ½(⟨w,z⟩-τ)² vanishes at the goal", float(line.value(aim)), "≤", EXACT)
    # (1) the sublevel sets of R are bounded: R(z) ≤ R(u) + ¼L_R‖u‖²
    level = float((point.value(ends) + 0.25 * ends.square().sum(1)).min())
    found = _frozen_points(case.T, point, aim)
    yield at_most(
        "R at the frozen points ÷ its bound", _worst(map(point.value, found)) / level, 1.0
    )
    yield from _stays(case.T, point, aim)
    # a frozen point balances (1-β)(T(z)-z) and βγ((z-a)+λz); here L_R = 1, so γ = ½
    balance = []
    for z, (beta, lam) in zip(found, itertools.product(SHARES, (0.5, 1e-3, 1e-6))):
        pull = 0.5 * beta * (z - one.R.a[0] + lam * z)
        balance.append(((1 - beta) * (case.T(z[None])[0] - z) - pull).norm() / beta)
    yield within("balance at the frozen points", _worst(balance), 1e-6)
    # (2) T = prox_φ with a bounded set of minimisers, R bounded below by 0
    envelope, gamma = HiddenObjective(case.W, case.b).envelope(1.0), 0.5 / line.smoothness
    floor = float(envelope.value(aim))
    worst = []
    for z in _frozen_points(case.T, line, aim):
        rise = float(envelope.value(z[None])) - floor
        worst.append(
            rise / (gamma * float(line.value(aim) + 0.25 * line.smoothness * aim.square().sum()))
        )
    yield at_most("rise of the envelope at the frozen points ÷ its bound", _worst(worst), 1.0)
    z, h = found[0], 1e-4
    slopes = [
        (envelope.value((z + h * e)[None]) - envelope.value((z - h * e)[None])) / (2 * h)
        for e in torch.eye(len(z), dtype=z.dtype)
    ]
    off = relative(torch.cat(slopes), z - case.T(z[None])[0])
    yield within("slope of the envelope vs z - T(z)", off, 1e-5)
    for name, R, value in (
        ("½‖z-a‖²", point, 0.5 * (z - one.R.a[0]).square().sum()),
        ("½(⟨w,z⟩-τ)²", line, 0.5 * (line.w @ z - line.tau).square()),
    ):
        yield equal(f"R ÷ {name} at a frozen point", float(R.value(z[None]) / value), 1.0, 1e-9)
    yield from _stays(case.T, line, aim)


def _unbounded(trial):
    # The equilibria [0, ∞) are not bounded, nor are the sublevel sets of R.
    start = torch.rand(1, 1, generator=trial.g, dtype=torch.float64)
    yield from _stays(torch.relu, lab.Softplus(), start)


frozen_bounded.breaks(
    "neither: T(z) = σ(z) on the line, R = log(1 + e⁻ᶻ) falls for ever", part=_unbounded
)


@claim("book.prop-sam-bias", "SAM is late by a bias: λ along, β across", "prop-sam-bias")
def sam_bias(trial, *, beyond=False):
    one = lab.task(trial.seed)
    case, a, aim = one.case, one.R.a[0], one.goal[0]
    if beyond:  # a target whose nearest equilibrium is an end of the segment
        a = a + 2 * (case.low - case.coordinate(a)) * case.q
        aim = case.nearest(a)
    R, along = SquaredDistance(a), 0.0
    for k in (10**5, LATE):
        weights = lab.theorem_weights(1.0, PLAN.rho, PLAN.c, k)
        move = lab.frozen_point(case.T, R, PLAN, k, aim[None])[0] - aim
        bias = lab.frozen_bias(case.W.mT @ case.W, R, weights, aim)
        gap = (move - bias).norm() / bias.norm()
        yield within(f"k = {k:.0e}: frozen point against N, relative", gap, SOLVER)
        along = -weights.lam / (1 + weights.lam) * float(aim @ case.q)
        gap = abs(float(move @ case.q) - along) / weights.lam
        yield within(
            f"k = {k:.0e}: bias along the segment against its formula, over λ", gap, SOLVER
        )
    if not beyond:
        run = select(case.T, one.z0[:1], R, PLAN, 4 * LONG, record=[LONG // 2, 4 * LONG])
        lag = [
            float((z - lab.frozen_point(case.T, R, PLAN, k, aim[None])).norm())
            for k, z in zip(run.recorded, run.trace)
        ]
        order = math.log(lag[1] / lag[0]) / math.log(8)
        promised = -(1 - PLAN.rho) - min(PLAN.rho, PLAN.c)
        yield seen("fitted order of the lag", order, "≤", promised + 0.15)


sam_bias.breaks(
    "the point nearest to a is an end of the segment, not the nearest of the whole line",
    "k = ",
    beyond=True,
)

check = checks(claim)
