"""Many equilibria: regularisation by architecture and the selection theorem of xie2022.

The architecture claim compares a network with two convex problems solved by scipy. The selection
claims run on networks whose equilibria form a segment that is known exactly, so "the equilibrium
with the least R" is a formula and not another iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from deqbook.claims import (
    Measurement,
    at_least,
    at_most,
    chapter,
    checks,
    given,
    within,
)
from deqbook.linalg import operator_norm
from deqbook.pages.p05b_selection import lab
from deqbook.regularize import (
    L1,
    HiddenObjective,
    RankOne,
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
    "the minimiser of φ + R itself, as one would expect (erratum E8)",
    part=_proximal_layer,
    shown={"the envelope plus R": "φ + R"},
    minimiser=lab.sum_minimiser,
)
architecture_adds.breaks(
    "R added to the last block that is already there (erratum E8)",
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
        a = replace(case, t1=t1_run or case.t1).after(STEPS)
        yield at_most(f"{name}: a after {STEPS} steps", a, case.bound(STEPS))
        if case.t1 < 1:
            scaled = a * STEPS**case.t2
            yield at_most(f"{name}: a·k^t₂ after {STEPS} steps", scaled, case.rate_constant())
    share = cases[1].bound(STEPS, sign=sign) / max(cases[1].start, cases[1].r2)
    yield within("the proof's bound there, over max(a₁, r₂)", share, 0.1)


recursion_decays.breaks(
    "t₁ = 1.6: the weights are summable; the bound is the one for t₁ ≤ 1",
    "t₁",
    shown={f"t₁ = {t1:g}, ": "t₁ = 1.6, " for t1, _ in EXPONENTS},
    t1_run=1.6,
)
recursion_decays.breaks(
    "the sign of the exponent as printed (erratum E10)", "the proof's bound", sign=1.0
)


# --- Lemma 9: the regularised step contracts ---------------------------------------------------

LOWER, UPPER = "least ‖s(x)-s(y)‖ / ‖x-y‖", "largest ‖s(x)-s(y)‖ / ‖x-y‖"


@claim(
    "xie2022.lemma9",
    "The regularised step shrinks all distances, by a factor between 1/4 and 1 - γλ",
    "lem-regularised-step",
)
def step_contracts(trial, *, convex=True, bent=True, step=0.5, most=0.5):
    # γ = step/L_R, λ ≤ most·L_R; R is a quadratic, singular, plus log cosh if it is bent.
    R = lab.quadratic(trial.g)
    share = float(torch.rand(1, generator=trial.g, dtype=torch.float64))
    decay = 0.5 * R.smoothness * (0.5 + 0.5 * share)
    R = R if bent else replace(R, bend=0.0)
    L = R.smoothness
    gamma, decay = step / L, min(decay, most * L)
    yield given("λ / L_R", decay / L, "≤", 0.5)
    yield given("least eigenvalue of the Hessian", torch.linalg.eigvalsh(R.H)[0], "≥", -1e-12)
    R = R if convex else replace(R, H=-R.H)

    def s(z: Tensor) -> Tensor:
        return (1 - gamma * decay) * z - gamma * R.gradient(z)

    x, y = lab.pairs_of_states(R.H, trial.g)
    ratios = (s(x) - s(y)).norm(dim=1) / (x - y).norm(dim=1)
    yield at_least(LOWER, float(ratios.min()), 0.25)
    yield at_most(UPPER, float(ratios.max()), 1 - decay / (2 * L))


step_contracts.breaks("R is not convex: its quadratic part is turned round", UPPER, convex=False)
# Without log cosh the steepest curvature is attained everywhere.
step_contracts.breaks("a step of 1/L_R, twice as long", LOWER, bent=False, step=1.0, most=0.2)
step_contracts.breaks("a step of 2.5/L_R", UPPER, bent=False, step=2.5)


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


# --- Theorem 4: SAM selects ---------------------------------------------------------------------

PLAN = Schedule(rho=0.32, c=0.32)
CHECKPOINTS = (1, 3, 10, 30, 100, 300, 1000)
LONG = 2000
FAR = 10**12  # no run gets here, but the frozen fixed point of this step is computed directly
NEAR = 0.3  # where SAM must be after LONG steps; plain iteration misses by far more
AFTER = f"distance to the selected equilibrium after {LONG} steps, "
MOVED = f"distance between the states after {LONG // 4} and {LONG} steps"
LEAST_NORM = f"{AFTER}R = 0 (least norm)"


@claim("xie2022.theorem4", "SAM finds the equilibrium with the least R, from any start", "thm-sam")
def sam_selects(trial):
    one = lab.task(trial.seed)
    case, z0 = one.case, one.z0
    yield given("ρ + 2c", PLAN.rho + 2 * PLAN.c, "≤", 1 - 1e-9)
    yield given("‖W‖", case.norm, "≤", 1 + 1e-12)
    other = torch.stack([lab.tikhonov(case, a) for a in one.R.a])
    yield given("nearest equilibria, formula against NNLS", _distance(other, one.goal), "≤", 1e-4)
    missed = (case.plain(z0) - one.goal).norm(dim=1).min()
    yield given("distance at which plain iteration stops, least", missed, "≥", 3 * NEAR)
    yield from _tracking(one)
    yield from _limit(trial)
    yield from _run(trial)
    aim = case.nearest(one.R.a[0])
    w = case.q + 0.5 * (one.R.a[0] - aim)
    line = RankOne(w, float(aim @ w))  # its minimiser on the segment is aim
    plan = replace(PLAN, smoothness=line.smoothness)
    found = sam(case.T, z0, line, plan, LONG)
    yield within(f"{AFTER}R = ½(⟨w,z⟩-τ)²", _distance(found, aim), NEAR)
    least = case.nearest(torch.zeros_like(case.p))
    yield within(LEAST_NORM, _distance(sam(case.T, z0, Zero(), PLAN, LONG), least), NEAR)


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
    yield given("largest frozen fixed point", _worst(sizes), "≤", fixed)
    yield at_most(
        "‖z(k) - frozen fixed point‖ over its bound, worst of k = 1 … 1000", _worst(ratios), 1.0
    )
    yield at_most(
        "R + ½λ‖·‖² at the frozen fixed points minus at the selected one, worst", _worst(below), 0.0
    )


def _limit(trial, *, plan=PLAN):
    one = lab.task(trial.seed)
    far = lab.frozen_point(one.case.T, one.R, plan, FAR, one.goal)
    yield within(
        "distance of the frozen fixed point of step 10¹² to the selected equilibrium",
        _distance(far, one.goal),
        1e-3,
    )


def _run(trial, *, plan=PLAN, check=True):
    one = lab.task(trial.seed)
    run = select(one.case.T, one.z0, one.R, plan, LONG, record=[LONG // 4], check=check)
    yield within(f"{AFTER}R = ½‖z-a‖²", _distance(run.z, one.goal), NEAR)
    yield within(MOVED, _distance(run.z, run.trace[0]), NEAR)


def _summable_decay(trial):
    case = lab.random_segment(trial.seed)
    goal = case.nearest(torch.zeros_like(case.p))
    ends = case.point(torch.tensor([case.low, case.high], dtype=torch.float64))
    z = sam(case.T, ends, Zero(), Schedule(rho=0.6, c=1.0), LONG, check=False)
    yield within(LEAST_NORM, _distance(z, goal), NEAR)


def _no_minimiser(trial):
    start = torch.rand(1, 1, generator=trial.g, dtype=torch.float64)
    plan = replace(PLAN, smoothness=0.25)
    run = select(torch.relu, start, lab.Softplus(), plan, LONG, record=[LONG // 4])
    yield within(MOVED, _distance(run.z, run.trace[0]), NEAR)


sam_selects.breaks(
    "β is constant (ρ = 0): R never lets go, and the limit is no equilibrium",
    part=_limit,
    plan=replace(PLAN, rho=0.0),
)
sam_selects.breaks(
    "β is summable (ρ = 2): the pull is exhausted before the goal is reached",
    AFTER,
    part=_run,
    plan=replace(PLAN, rho=2.0),
    check=False,
)
sam_selects.breaks(
    "R = 0 with a summable decay (ρ + c = 1.6): nothing selects", part=_summable_decay
)
sam_selects.breaks(
    "R has no minimiser among the equilibria [0, ∞) of T(z) = σ(z)", part=_no_minimiser
)

check = checks(claim)
