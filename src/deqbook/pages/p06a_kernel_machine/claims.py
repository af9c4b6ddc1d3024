r"""Page 6a, a network and its kernel machine: complexity, path kernel, frozen kernel, coupling.

The network is that of gao2023: :math:`z=\sigma(\tilde\gamma Wz+\phi)`, :math:`f(x)=a^\top z`, only
W trained. Along gradient flow :math:`\dot f_t(x)=-k_t(x,X)\,e(t)` with the tangent kernel of the
moment; :math:`\hat f_t` is the same with the kernel of the start. All statements about the distance
of the two are checked with their explicit constants,

.. math:: \|f_t(X)-\hat f_t(X)\|\le\tfrac{2\Delta}{\lambda_H}\|e(0)\|
          \,(e^{-\lambda_Ht/2}-e^{-\lambda_Ht}),\qquad
          |f_t(x)-\hat f_t(x)|\le\tfrac{2\|e(0)\|}{\lambda_H}
          \Big(\Delta_x+\frac\Delta{\lambda_H}\|k_0(x,X)\|\Big),

where :math:`\Delta=\sup\|H(s)-H(0)\|` and :math:`\Delta_x=\sup\|k_s(x,X)-k_0(x,X)\|`.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from deqbook.bounds.generalization import (
    complexity_term,
    rademacher,
    trace_bound,
    uniform_deviation,
)
from deqbook.claims import (
    Measurement,
    at_most,
    chapter,
    checks,
    equal,
    given,
    headline,
    seen,
    within,
)
from deqbook.kernels import empirical_ntk
from deqbook.pages.p06a_kernel_machine.lab.memory import (
    RHO,
    SAMPLES,
    free_deviation,
    free_repeats,
    memory_complexity,
    repeats,
    tried_deviation,
)
from deqbook.pages.p06a_kernel_machine.lab.path_kernel import PathKernel
from deqbook.pages.p06a_kernel_machine.lab.starts import (
    Coupling,
    NetworkStart,
    couple,
    draw_start,
    short_way,
    shrinking_labels,
    switching,
    weight_space,
)
from deqbook.runtime import generator, normal, signs

claim = chapter("06a_kernel_machine")

ROUNDING = 1 + 1e-9  # room for rounding where a bound is attained exactly
SAME = 1e-9  # two exact routes


# --- gradient flow is a path-kernel machine ------------------------------------------------------


def _sum_of_lessons(run: PathKernel) -> Tensor:
    return run.contributions[-1].sum(dim=1)


@claim(
    "gao2023.pathkernel",
    "f_T(x) = f_0(x) - Σᵢ∫eᵢ(t)k_t(x,xᵢ)dt: gradient flow is a path-kernel machine",
    "thm-path-kernel",
)
def path_machine(trial, *, explained=_sum_of_lessons):
    run = short_way(trial.seed)
    yield given("units that change side", float(run.flips.max()), "≤", 0)
    moved = float(run.kernel_change[-1] / torch.linalg.matrix_norm(run.H[0], 2))
    yield given("the kernel moves, relative", moved, "≥", 1e-5)
    learnt = run.point_predictions[-1] - run.point_predictions[0]
    gap = float((learnt - explained(run)).norm() / learnt.norm())
    yield within("f_T(x)-f_0(x) vs Σᵢcᵢ(x), relative", gap, 1e-7)
    low, high = (-run.error).amin(dim=0), (-run.error).amax(dim=0)
    a = run.coefficients
    beyond = torch.maximum(low - a, a - high)
    outside = float(beyond[~torch.isnan(a)].max())
    yield within("Domingos' aᵢ(x) beyond the range of -eᵢ(t)", max(outside, 0.0), 1e-12)
    yield given("pairs with a kernel of one sign", float((~torch.isnan(a)).sum()), "≥", 1)


path_machine.breaks(
    "the kernel of the start in the place of k_t",
    "f_T",
    explained=lambda run: -(run.k[0] @ run.impulse[-1]),
)
path_machine.breaks(
    "the mean error outside the integral, times the path kernel",
    "f_T",
    explained=lambda run: -(run.path[-1] @ run.impulse[-1]) / float(run.times[-1]),
)
# Domingos' coefficients depend on x; those of the first sample do not serve elsewhere.
path_machine.breaks(
    "one coefficient per sample, that of another x",
    "f_T",
    explained=lambda run: run.path[-1] @ (run.contributions[-1] / run.path[-1])[0],
)


# --- lemma 4.2: the frozen-kernel predictor ------------------------------------------------------


@lru_cache(maxsize=8)
def _narrow(seed: int) -> tuple[NetworkStart, Tensor]:
    at = draw_start(12, 4, 6, seed, data=seed, points=3)
    return at, at.jacobian()


@claim(
    "gao2023.lemma4.2",
    "The frozen-kernel predictor in closed form; f̂_∞ - f_0 lies in the ball of radius B",
    "thm-frozen-kernel",
)
def frozen_predictor(trial, *, root=True, from_guess=True):
    at, J = _narrow(trial.seed)
    yield given("λ_min(H(0)) ÷ λ_max(H(0))", at.lambda0 / float(at.values[-1]), "≥", 1e-6)
    y = signs(4, g=generator(trial.seed + 200))
    frozen, r = at.frozen(y), y - at.guess
    base = torch.cat([at.guess, at.point_guess])
    kernel = torch.cat([at.H, at.k])
    added = base if from_guess else torch.zeros_like(base)
    gaps = []
    for t in (0.5 / float(at.values[-1]), 2 / at.lambda0):
        moved, _ = weight_space(J, r, t)
        predicted = frozen.predict(kernel, added, t)
        gaps.append(float((predicted - base - moved).abs().max()))
    yield within("f̂_t(x) vs the linear model in weight space", max(gaps), SAME)
    end = frozen.predict(kernel, added, math.inf)[: len(y)]
    yield within("‖f̂_∞(X)-y‖", float((end - y).norm()), SAME)
    B2 = complexity_term(at.H, r)
    _, squared = weight_space(J, r, 40 / at.lambda0)
    yield within("‖θ-θ_0‖² in weight space vs B², relative", abs(squared / B2 - 1), SAME)
    times = [0.1 / float(at.values[-1]) * 3**j for j in range(10)] + [math.inf]
    norms = frozen.squared_norm(times)
    yield at_most("αᵀHα ÷ B², largest over times", float(norms.max()) / B2, ROUNDING)
    B = math.sqrt(B2)
    bound = trace_bound(at.H, B) if root else B * float(at.H.trace()) / len(y)
    yield at_most("ℜ_S(𝓕_B) ÷ (B/n)√tr H", rademacher(at.H, B).value / bound, 1)


frozen_predictor.breaks(
    "f̂_∞ taken as a member of the ball itself, without f_0", "f̂_t", "‖f̂_∞", from_guess=False
)
# The trace of this kernel is below one, so the root matters.
frozen_predictor.breaks(
    "the square root of the trace missing", "ℜ_S", shown={"√tr H": " tr H"}, root=False
)


# --- lemma 4.3 and lemma 4.4: how far the frozen kernel is ---------------------------------------


@lru_cache(maxsize=8)
def _slow_run(seed: int) -> tuple[NetworkStart, Coupling]:
    at = draw_start(48, 4, 10, seed, data=seed, points=3)
    y = shrinking_labels(at, 0.1)
    return at, couple(at, y, at.run(y, 16.0))


def _decays(trial, *, printed=False):
    at, found = _slow_run(trial.seed)
    change = float(found.run.kernel_change.max()) / at.lambda0
    yield given("λ_min(H(s)) ÷ λ_H, least on the way", found.least, "≥", 0.5)
    yield given("kernel moves: Δ ÷ λ_H", change, "≥", 1e-3)
    yield within("f_t(x)-f_0(x) vs its lessons, relative", _relative_defect(found), 0.05)
    bound = found.on_bound
    if printed:
        t = at.lambda0 * found.run.times
        bound = bound * torch.exp(-t) / (torch.exp(-t / 2) - torch.exp(-t)).clamp(min=1e-300)
    ratio = (found.on[1:] / bound[1:]).max()
    yield at_most("‖f_t(X)-f̂_t(X)‖ ÷ bound, largest over times", float(ratio), 1)


def _switching(trial, *, switched=9):
    """A kernel that jumps at once: an extremal case, up to one unit of the nineteen."""
    found = switching(trial.seed, switched)
    yield given("kernel that jumps: λ_min(H(s)) ÷ λ_H, least", found.least, "≥", 0.5)
    ratio = found.on[1:] / found.on_bound[1:]
    name = "kernel that jumps: ‖f_t(X)-f̂_t(X)‖ ÷ bound, "
    yield headline(at_most(name + "largest over times", float(ratio.max()), 1))
    yield at_most(name + "at λ_Ht = 12", float(ratio[-1]), 1)


def _relative_defect(found: Coupling) -> float:
    """Return what the lessons leave unexplained ÷ what was learnt, at the points."""
    moved = found.run.point_predictions - found.run.point_predictions[0]
    return found.run.defect / float(moved.abs().max())


@claim(
    "gao2023.lemma4.3",
    "On the sample: ‖f_t-f̂_t‖ ≤ (2Δ/λ_H)‖e(0)‖(e^{-λ_Ht/2}-e^{-λ_Ht})",
    "thm-coupling",
)
def coupled_on_sample(trial):
    yield from _decays(trial)
    yield from _switching(trial)


# The true rate is λ_min(H(∞)), which is smaller than λ_H here.
coupled_on_sample.breaks(
    "the decay e^{-λ_Ht}, as printed, with the same prefactor",
    "‖f_t",
    part=_decays,
    printed=True,
)
coupled_on_sample.breaks(
    "so many units switch off that λ_min(H) falls to λ_H/4", part=_switching, switched=30
)


NARROW, WIDE, NEAR = 24, 192, 0.3


@lru_cache(maxsize=64)
def _away(m: int, seed: int, net: int, size: float) -> Coupling:
    """Follow a network to λ_Ht = 5, with labels at this distance from its first guess."""
    at = draw_start(m, 3, 10, 10 * seed + net, data=seed, points=3, tol=1e-9)
    y = at.guess + size * signs(3, g=generator(seed + 200))
    return couple(at, y, at.run(y, 5.0, tol=1e-8))


def _networks(trial, *, from_guess=True, wide_labels=NEAR):
    wide = [_away(WIDE, trial.seed, net, NEAR) for net in range(2)]
    yield given("λ_min(H(s)) ÷ λ_H, least on the way", min(one.least for one in wide), "≥", 0.5)
    defect = max(map(_relative_defect, wide))
    yield within("f_t(x)-f_0(x) vs its lessons, relative", defect, 0.05)
    gaps = [one.off if from_guess else one.without for one in wide]
    worst = [gap.amax(dim=0) / one.off_bound for gap, one in zip(gaps, wide)]
    yield at_most("sup_t|f_t(x)-f̂_t(x)| ÷ bound, worst point", float(torch.cat(worst).max()), 1)
    # Two widths show no rate, only that the gap falls by more than the printed power does.
    narrow, broad = (
        sum(float(_away(m, trial.seed, net, size).off.max()) for net in range(2))
        for m, size in ((NARROW, NEAR), (WIDE, wide_labels))
    )
    power = (WIDE / NARROW) ** -0.25
    yield seen("gap at m = 192 ÷ gap at m = 24", broad / narrow, "≤", power)


def _switching_elsewhere(trial, *, own=True, sample=True, switched=9):
    """Both terms of the bound at once: the kernel jumps on the sample and at x."""
    found = switching(trial.seed, switched)
    yield given("kernel that jumps: λ_min(H(s)) ÷ λ_H, least", found.least, "≥", 0.5)
    parts = found.off_parts[0] * own + found.off_parts[1] * sample
    ratio = float((found.off.amax(dim=0) / parts).max())
    yield headline(at_most("kernel that jumps: sup_t|f_t(x)-f̂_t(x)| ÷ bound", ratio, 1))


@claim(
    "gao2023.lemma4.4",
    "Off the sample: |f_t-f̂_t| ≤ (2‖e(0)‖/λ_H)(Δ_x+‖k₀‖Δ/λ_H); m = 24 to 192: below m^{-1/4}",
    "thm-coupling",
)
def coupled_elsewhere(trial):
    yield from _networks(trial)
    yield from _switching_elsewhere(trial)


# Then the weights must travel further in a wide network, and the kernel moves with them.
coupled_elsewhere.breaks(
    "labels whose distance grows like the width m",
    "gap",
    part=_networks,
    wide_labels=NEAR * WIDE / NARROW,
)
coupled_elsewhere.breaks(
    "the frozen predictor without f_0(x)", "sup_t", part=_networks, from_guess=False
)
JUMP = "kernel that jumps: sup"
coupled_elsewhere.breaks(
    "the motion of k_t(x, X) left out", JUMP, part=_switching_elsewhere, own=False
)
coupled_elsewhere.breaks("the motion of H left out", JUMP, part=_switching_elsewhere, sample=False)
coupled_elsewhere.breaks(
    "so many units switch off that λ_min(H) falls to λ_H/4",
    part=_switching_elsewhere,
    switched=30,
)


# --- lemma A.1, Gronwall -------------------------------------------------------------------------

Signal = Callable[[float], float]


def _largest_ratio(alpha: Signal, beta: Signal, total: Signal) -> float:
    """Return max u/(αe^{∫β}) for the largest u with u ≤ α + ∫βu: equality. ``total`` is ∫β."""

    def slope(t: float, w: list[float]) -> list[float]:
        return [beta(t) * (alpha(t) + w[0])]

    grid = np.linspace(0, 3, 61)
    integral = solve_ivp(slope, (0, 3), [0.0], t_eval=grid, rtol=1e-11, atol=1e-13).y[0]
    ratios = [
        (alpha(t) + w) / (alpha(t) * math.exp(total(t))) for t, w in zip(grid[1:], integral[1:])
    ]
    return float(np.max(ratios))


def _growth(alpha: Signal, beta: Signal, total: Signal) -> Measurement:
    name = "u(t) ÷ α(t)exp(∫β), largest over times"
    return at_most(name, _largest_ratio(alpha, beta, total), 1)


@claim(
    "gao2023.lemmaA.1",
    "Gronwall: u ≤ α + ∫βu with α non-decreasing and β ≥ 0 gives u ≤ α exp(∫β)",
    "lem-gronwall",
)
def gronwall(trial):
    s = 1 + 0.3 * trial.seed
    beta, total = (lambda t: s * (1 + math.sin(t))), (lambda t: s * (t + 1 - math.cos(t)))
    yield given("β, least", min(beta(t) for t in np.linspace(0, 3, 61)), "≥", 0)
    yield _growth(lambda t: 0.1 + s * t, beta, total)
    constant = _largest_ratio(lambda t: 2.0, beta, total)  # then the bound is attained
    yield within("constant α, u' = βu: |largest ratio - 1|", abs(constant - 1), 1e-7)


def _negative_rate(trial):
    s = 1 + 0.3 * trial.seed  # the claim would forget what α still adds
    yield _growth(lambda t: 0.1 + t, lambda t: -s, lambda t: -s * t)


def _falling_alpha(trial):
    s = 1 + 0.3 * trial.seed  # the integral remembers the larger values that α had
    yield _growth(lambda t: math.exp(-t), lambda t: s, lambda t: s * t)


gronwall.breaks("β < 0, as in the proof of Lemma 4.3", part=_negative_rate)
gronwall.breaks("α decreasing", part=_falling_alpha)


# --- lemma A.2, Weyl -----------------------------------------------------------------------------

WEYL = "max_k|σ_k(A)-σ_k(B)| ÷ ‖A-B‖"


@claim("gao2023.lemmaA.2", "Weyl: |σ_k(A)-σ_k(B)| ≤ ‖A-B‖ for all k", "lem-weyl")
def weyl(trial):
    ratios = []
    for size in (1e-6, 1e-3, 1.0):
        A, E = normal(9, 6, g=trial.g), size * normal(9, 6, g=trial.g)
        moved = (torch.linalg.svdvals(A + E) - torch.linalg.svdvals(A)).abs().max()
        ratios.append(moved / torch.linalg.matrix_norm(E, 2))
    yield at_most(WEYL, float(torch.stack(ratios).max()), ROUNDING)
    left, _, right = torch.linalg.svd(A, full_matrices=False)
    E = 0.5 * left[:, :1] @ right[:1]
    moved = torch.linalg.svdvals(A + E)[0] - torch.linalg.svdvals(A)[0]
    yield within("along the top singular vectors: |ratio - 1|", abs(float(moved) / 0.5 - 1), 1e-12)
    at = draw_start(30, 4, 10, trial.seed, data=trial.seed, points=1, tol=1e-11)
    ratios = []
    for size in (0.01, 0.1, 1.0):
        other = copy.deepcopy(at.model)
        with torch.no_grad():
            other.W.add_(size * normal(30, 30, g=trial.g))
        H = empirical_ntk(other, at.X, tol=1e-11)
        room = at.lambda0 - torch.linalg.eigvalsh(H)[0]
        ratios.append(room / torch.linalg.matrix_norm(H - at.H, 2))
    worst = float(torch.stack(ratios).max())
    yield at_most("λ_H-λ_min(H) ÷ ‖H-H(0)‖, weights moved", worst, ROUNDING)


def _jordan_block(trial):
    # the eigenvalues of a Jordan block of size 6 move like the sixth root
    A = torch.diag(torch.ones(5, dtype=torch.float64), 1)
    E = torch.zeros_like(A)
    E[-1, 0] = 10.0 ** (-3 - trial.seed)
    before, after = (torch.linalg.eigvals(M).abs().sort().values for M in (A, A + E))
    moved = float((after - before).abs().max())
    yield at_most(WEYL, moved / float(torch.linalg.matrix_norm(E, 2)), ROUNDING)


weyl.breaks(
    "eigenvalues of a matrix that is not symmetric, in the place of singular values",
    part=_jordan_block,
    shown={"σ_k(A)-σ_k(B)": "|λ_k(A)|-|λ_k(B)|"},
)


# --- theorem A.3, the complexity of a kernel ball ------------------------------------------------


@claim(
    "gao2023.theoremA.3",
    "Rademacher complexity of a kernel ball: at most (B/n)√tr K, and at most Bν/√n",
    "thm-kernel-ball",
)
def kernel_ball(trial, *, root=True, stretch=1.0):
    at, B = draw_start(60, 8, 10, trial.seed, data=trial.seed, points=1, tol=1e-12), 3.0
    scale = torch.ones(8, dtype=torch.float64)
    scale[0] = stretch  # of one input, after r was read off the others
    K = scale[:, None] * at.H * scale  # the network is homogeneous: k(sx,x') = s k(x,x')
    found = rademacher(K, B)
    F = torch.linalg.cholesky(K)
    each = [
        float((F.mT @ torch.tensor(e, dtype=K.dtype)).norm())
        for e in itertools.product((-1.0, 1.0), repeat=8)
    ]
    second = B / 8 * sum(each) / len(each)
    yield within("table of signs vs a loop over all 2⁸", abs(found.value / second - 1), 1e-12)
    drawn = rademacher(K, B, draws=4000, seed=trial.seed)
    off = abs(drawn.value - found.value) / drawn.error
    yield within("4000 drawn signs: distance in standard errors", off, 4.5)
    bound = trace_bound(K, B) if root else B * float(K.trace()) / 8
    yield at_most("ℜ_S(𝓕_B) ÷ (B/n)√tr K", found.value / bound, 1)
    r = math.sqrt(float(at.H.diagonal().max()))
    yield at_most("ℜ_S(𝓕_B) ÷ Bν/√n", found.value / (B * r / math.sqrt(8)), 1)


kernel_ball.breaks(  # the trace is below one
    "the square root missing", "ℜ_S(𝓕_B) ÷ (B/n)", shown={"√tr K": " tr K"}, root=False
)
kernel_ball.breaks("one input ten times as long: k(x,x) ≤ ν² fails", "ℜ_S(𝓕_B) ÷ Bν", stretch=10.0)


# --- theorem A.4, uniform deviation --------------------------------------------------------------

DELTA = 0.05


def _used(suprema, complexities, *, lipschitz, price=True, paid=True, twice=True):
    """Return what share of samples 1-δ uses of the bound at most, the price, the largest bound."""
    terms = [
        uniform_deviation(value, SAMPLES, delta=DELTA, lipschitz=lipschitz)
        for value in complexities
    ]
    bounds = [price * (1 if twice else 0.5) * first + paid * second for first, second in terms]
    ratios = torch.tensor([gap / bound for gap, bound in zip(suprema, bounds)])
    used = float(torch.quantile(ratios.double(), 1 - DELTA, interpolation="higher"))
    return used, sum(first for first, _ in terms) / len(terms), max(bounds)


def _ball(trial, *, factor=RHO, price=True, after=False):
    found = repeats(trial.seed)
    yield given("ball of tables: largest fall of the loss, ρyf", found.largest, "≤", 1)
    yield within("ball of tables: loss of the best one vs the formula", found.gap, 1e-12)
    few = torch.randint(0, 5, (10,), generator=trial.g)  # atoms are met twice and more
    exact = rademacher((few[:, None] == few).double(), 2.0).value
    low = memory_complexity(torch.bincount(few, minlength=5).double(), 2.0)
    yield at_most("ball of tables: ℜ_S used ÷ ℜ_S by all signs, 5 atoms", low / exact, ROUNDING)
    used, _, largest = _used(
        found.remembered if after else found.suprema,
        found.complexities,
        lipschitz=factor,
        price=price,
    )
    yield given("ball of tables: the bound says something, below c", largest, "≤", 1)
    yield at_most("ball of tables: sup_f(Eℓ-mean ℓ) ÷ bound, 95 of 100 samples", used, 1)


def _free(trial, *, paid=True, twice=True):
    """Tables that are free on half of the atoms: here symmetrisation loses nothing."""
    few = torch.randint(0, 6, (5,), generator=trial.g)
    pairs = zip(free_deviation(few, 6, 3), tried_deviation(few, 6, 3))
    gap = max(abs(formula - tried) for formula, tried in pairs)
    yield within("free tables: formulas vs all tables and signs, 6 atoms", gap, 1e-12)
    suprema, complexities = free_repeats(trial.seed)
    used, mean, largest = _used(suprema, complexities, lipschitz=0.5, paid=paid, twice=twice)
    yield given("free tables: the bound says something, below c", largest, "≤", 1)
    attained = sum(suprema) / len(suprema) / mean
    yield equal("free tables: E sup_f(Eℓ-mean ℓ) ÷ 2ρEℜ_S, attained", attained, 1, 0.03)
    yield headline(at_most("free tables: sup_f(Eℓ-mean ℓ) ÷ bound, 95 of 100 samples", used, 1))


@claim(
    "gao2023.theoremA.4",
    "Uniform deviation: Eℓ ≤ mean ℓ + 2ρℜ_S + 3c√(log(2/δ)/2n) for all f at once",
    "thm-uniform-deviation",
)
def uniform_deviations(trial):
    yield from _ball(trial)
    yield from _free(trial)


BALL, TABLES = "ball of tables: sup", "free tables: sup"
uniform_deviations.breaks("the complexity term left out", BALL, part=_ball, price=False)
uniform_deviations.breaks(
    "the Lipschitz constant ρ = 10 left out, as printed", BALL, part=_ball, factor=1.0
)
# A single function has complexity 0; this one is right on the sample and nowhere else.
uniform_deviations.breaks(
    "the class chosen after the sample: the one table that remembers it",
    BALL,
    part=_ball,
    shown={"sup_f(Eℓ-mean ℓ)": "Eℓ-mean ℓ of that table"},
    price=False,
    after=True,
)
uniform_deviations.breaks(
    "the factor 2 of symmetrisation left out", TABLES, part=_free, twice=False
)
uniform_deviations.breaks("the confidence term left out", TABLES, part=_free, paid=False)

check = checks(claim)
