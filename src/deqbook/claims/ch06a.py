r"""Page 6a, a network and its kernel machine: complexity, path kernel, frozen kernel, coupling.

The network is that of gao2023: :math:`z=\sigma(\tilde\gamma Wz+\phi)`, :math:`f(x)=a^\top z`, only
W trained. Along gradient flow :math:`\dot f_t(x)=-k_t(x,X)\,e(t)` with the tangent kernel of the
moment; :math:`\hat f_t` is the same with the kernel of the start. All statements about the distance
of the two are checked with their explicit constants,

.. math:: \|f_t(X)-\hat f_t(X)\|\le\tfrac{2\Delta}{\lambda_0}\|e(0)\|
          \,(e^{-\lambda_0t/2}-e^{-\lambda_0t}),\qquad
          |f_t(x)-\hat f_t(x)|\le\tfrac{2\|e(0)\|}{\lambda_0}
          \Big(\Delta_x+\frac\Delta{\lambda_0}\|k_0(x,X)\|\Big),

where :math:`\Delta=\sup\|H(s)-H(0)\|` and :math:`\Delta_x=\sup\|k_s(x,X)-k_0(x,X)\|`.
The flows are followed by Runge-Kutta steps of fixed length; a unit that changes side inside a step
costs accuracy, and ``PathKernel.defect`` is asked for it.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from torch import Tensor

from deqbook.bounds.generalization import (
    complexity_term,
    confidence,
    rademacher,
    trace_bound,
)
from deqbook.claims.registry import (
    Measurement,
    Trial,
    at_most,
    claim,
    given,
    named,
    within,
)
from deqbook.dynamics.path_kernel import PathKernel, path_kernel
from deqbook.implicit import IFT
from deqbook.kernels import empirical_ntk
from deqbook.kernels.frozen import FrozenKernel, freeze
from deqbook.models import ReLUImplicit
from deqbook.models.closed_form import margin
from deqbook.runtime import generator, normal, signs, sphere

CHAPTER = "06a_kernel_machine"
ROUNDING = 1 + 1e-9  # room for rounding where a bound is attained exactly
SAME = 1e-9  # two exact routes
TOL = 1e-13  # of the equilibria

Signal = Callable[[float], float]


# --- the start of a network, and its run ---------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """A network at its start: sample, other points, kernels and outputs there."""

    model: ReLUImplicit
    X: Tensor
    points: Tensor
    H: Tensor
    k: Tensor
    start: Tensor
    point_start: Tensor
    values: Tensor
    vectors: Tensor

    @property
    def lambda0(self) -> float:
        """Return λ_min(H(0))."""
        return float(self.values[0])

    def frozen(self, y: Tensor) -> FrozenKernel:
        """Return the frozen-kernel predictor for these labels."""
        return freeze(self.H, y, self.start)

    def run(self, y: Tensor, until: float, *, tol: float = TOL) -> PathKernel:
        """Follow the flow to ``until``/λ₀ by Runge-Kutta steps, short ones first."""
        times = graded(float(self.values[-1]), until / self.lambda0)
        return path_kernel(self.model, self.X, y, self.points, times, tol=tol)


def graded(largest: float, until: float) -> NDArray[np.float64]:
    """Return times for Runge-Kutta: steps of ½/λ_max while much moves, then of 1.5/λ_max.

    Steps beyond 2.78/λ_max are unstable; the kernel may grow by half before that happens.
    """
    early = min(4 / largest, until)
    first = np.linspace(0, early, 9)
    rest = max(math.ceil((until - early) * largest / 1.5), 0)
    return np.concatenate([first, np.linspace(early, until, rest + 1)[1:]])


@torch.no_grad()
def begin(m: int, n: int, d: int, seed: int, *, data: int, points: int, tol: float = TOL) -> Begin:
    """Draw a network (by ``seed``) and inputs on the sphere (by ``data``), and freeze its start."""
    model = ReLUImplicit.init_implicit_only(m, d, gamma=0.4, seed=seed)
    X, other = sphere(n, d, data + 100), sphere(points, d, data + 300)
    both = torch.cat([X, other])
    kernel, outputs = empirical_ntk(model, both, X, tol=tol), model(both, tol=tol)
    H = (kernel[:n] + kernel[:n].mT) / 2
    values, vectors = torch.linalg.eigh(H)
    return Begin(model, X, other, H, kernel[n:], outputs[:n], outputs[n:], values, vectors)


# --- gradient flow is a path-kernel machine ------------------------------------------------------


@lru_cache(maxsize=8)
def _short_way(seed: int) -> PathKernel:
    """Follow a flow so near its labels that no unit changes side: the integrals are smooth.

    Of some draws of the inputs the one furthest from all kinks is taken.
    """

    def room(data: int) -> float:
        both = torch.cat([sphere(3, 6, data + 100), sphere(2, 6, data + 300)])
        return margin(model, both, model.solve(both, tol=1e-9).z)

    model = ReLUImplicit.init_implicit_only(20, 6, gamma=0.4, seed=seed)
    data = max(range(10 * seed, 10 * seed + 10), key=room)
    at = begin(20, 3, 6, seed, data=data, points=2)
    both = torch.cat([at.X, at.points])
    z = at.model.solve(both, tol=TOL).z
    # W moves by about ‖y-ŷ(0)‖/√λ₀, a pre-activation by γ̃‖z‖ times that: keep it below the margin
    move = at.model.scale * float(z.norm(dim=1).max()) / math.sqrt(at.lambda0)
    y = at.start + margin(at.model, both, z) / (3 * move) * signs(3, g=generator(seed + 200))
    times = np.linspace(0, 12 / float(at.values[-1]), 41)
    return path_kernel(at.model, at.X, y, both, times, tol=1e-14)


IDENTITY = "f_T(x)-f_0(x) vs Σᵢcᵢ(x), relative"


def _learnt(run: PathKernel, explained: Tensor) -> Measurement:
    moved = run.point_predictions[-1] - run.point_predictions[0]
    return within(IDENTITY, float((moved - explained).norm() / moved.norm()), 1e-7)


@claim(
    "gao2023.pathkernel",
    title="f_T(x) = f_0(x) - Σᵢ∫eᵢ(t)k_t(x,xᵢ)dt: gradient flow is a path-kernel machine",
    chapter=CHAPTER,
    ref="thm-path-kernel",
)
def path_machine(trial: Trial) -> Iterable[Measurement]:
    """Sum the contributions of the samples, at the samples and at other points."""
    run = _short_way(trial.seed)
    yield given("units that change side", float(run.flips.max()), "≤", 0)
    moved = float(run.kernel_change[-1] / torch.linalg.matrix_norm(run.H[0], 2))
    yield given("the kernel moves, relative", moved, "≥", 1e-5)
    yield _learnt(run, run.contributions[-1].sum(dim=1))
    low, high = (-run.error).amin(dim=0), (-run.error).amax(dim=0)
    a = run.coefficients
    beyond = torch.maximum(low - a, a - high)
    outside = float(beyond[~torch.isnan(a)].max())
    yield within("Domingos' aᵢ(x) beyond the range of -eᵢ(t)", max(outside, 0.0), 1e-12)
    yield given("pairs with a kernel of one sign", float((~torch.isnan(a)).sum()), "≥", 1)


@path_machine.control("the kernel of the start in the place of k_t")
def kernel_of_the_start(trial: Trial) -> Iterable[Measurement]:
    """-k_0(x,X)∫e dt leaves out what the kernel learns."""
    run = _short_way(trial.seed)
    yield _learnt(run, -(run.k[0] @ run.impulse[-1]))


@path_machine.control("the mean error outside the integral, times the path kernel")
def error_outside(trial: Trial) -> Iterable[Measurement]:
    """The average must be weighted by k_t."""
    run = _short_way(trial.seed)
    yield _learnt(run, -(run.path[-1] @ run.impulse[-1]) / float(run.times[-1]))


@path_machine.control("one coefficient per sample, that of another x")
def coefficients_of_another(trial: Trial) -> Iterable[Measurement]:
    """Domingos' coefficients depend on x; those of the first sample do not serve elsewhere."""
    run = _short_way(trial.seed)
    a = run.contributions[-1] / run.path[-1]
    yield _learnt(run, run.path[-1] @ a[0])


# --- lemma 4.2: the frozen-kernel predictor ------------------------------------------------------


@lru_cache(maxsize=8)
def _narrow(seed: int) -> tuple[Begin, Tensor]:
    """Return a small network and its Jacobian at sample and points, row by row from autodiff."""
    at = begin(12, 4, 6, seed, data=seed, points=3)
    rows = []
    for x in torch.cat([at.X, at.points]):
        out = at.model(x[None], tol=TOL, adjoint=IFT(tol=TOL))
        rows.append(torch.autograd.grad(out.sum(), at.model.W)[0].flatten())
    return at, torch.stack(rows)


def _weight_space(J: Tensor, r: Tensor, t: float) -> tuple[Tensor, float]:
    """Solve the flow of the linear model f_0 + J(θ-θ_0) in weight space, by a matrix exponential.

    The first rows of J belong to the sample. Returns how all outputs change, and the squared
    distance of the weights.
    """
    S, p = J[: len(r)], J.shape[1]
    system = torch.zeros(p + 1, p + 1, dtype=J.dtype)
    system[:p, :p], system[:p, p] = -S.mT @ S, S.mT @ r
    moved = torch.linalg.matrix_exp(system * t)[:p, p]
    return J @ moved, float(moved @ moved)


def _frozen(seed: int, *, root: bool = True, start: bool = True) -> Iterator[Measurement]:
    """Compare the closed form with weight space; not ``start`` leaves f_0 out of the predictor."""
    at, J = _narrow(seed)
    yield given("λ_min(H(0)) ÷ λ_max(H(0))", at.lambda0 / float(at.values[-1]), "≥", 1e-6)
    y = signs(4, g=generator(seed + 200))
    frozen, r = at.frozen(y), y - at.start
    base = torch.cat([at.start, at.point_start])
    kernel = torch.cat([at.H, at.k])
    shown = base if start else torch.zeros_like(base)
    gaps = []
    for t in (0.5 / float(at.values[-1]), 2 / at.lambda0):
        moved, _ = _weight_space(J, r, t)
        predicted = frozen.predict(kernel, shown, t)
        gaps.append(float((predicted - base - moved).abs().max()))
    yield within("f̂_t(x) vs the linear model in weight space", max(gaps), SAME)
    end = frozen.predict(kernel, shown, math.inf)[: len(y)]
    yield within("‖f̂_∞(X)-y‖", float((end - y).norm()), SAME)
    B2 = complexity_term(at.H, r)
    _, squared = _weight_space(J, r, 40 / at.lambda0)
    yield within("‖θ-θ_0‖² in weight space vs B², relative", abs(squared / B2 - 1), SAME)
    times = [0.1 / float(at.values[-1]) * 3**j for j in range(10)] + [math.inf]
    norms = frozen.squared_norm(times)
    yield at_most("αᵀHα ÷ B², largest over times", float(norms.max()) / B2, ROUNDING)
    B = math.sqrt(B2)
    bound = trace_bound(at.H, B) if root else B * float(at.H.trace()) / len(y)
    yield at_most("ℜ_S(𝓕_B) ÷ (B/n)√tr H", rademacher(at.H, B).value / bound, 1)


@claim(
    "gao2023.lemma4.2",
    title="The frozen-kernel predictor in closed form; f̂_∞ - f_0 lies in the ball of radius B",
    chapter=CHAPTER,
    ref="thm-frozen-kernel",
)
def frozen_predictor(trial: Trial) -> Iterable[Measurement]:
    """One route by eigenvectors of H, one by autodiff and a matrix exponential."""
    return _frozen(trial.seed)


@frozen_predictor.control("f̂_∞ taken as a member of the ball itself, without f_0")
def without_start(trial: Trial) -> Iterable[Measurement]:
    """k_0(X,X)α = y-ŷ(0), not y."""
    return named(_frozen(trial.seed, start=False), "f̂_t", "‖f̂_∞")


@frozen_predictor.control("the square root of the trace missing")
def lemma_without_root(trial: Trial) -> Iterable[Measurement]:
    """The trace of this kernel is below one, so the root matters."""
    return named(_frozen(trial.seed, root=False), "ℜ_S")


# --- lemma 4.3 and lemma 4.4: how far the frozen kernel is ---------------------------------------


def shrinking_labels(at: Begin, size: float) -> Tensor:
    """Return labels at this distance along the slowest direction, on the side where λ_min falls."""
    slow, least = at.vectors[:, 0], {}
    for side in (1.0, -1.0):
        y = at.start + side * size * slow
        least[side] = float(torch.linalg.eigvalsh(at.run(y, 4.0, tol=1e-8).H[-1])[0])
    return at.start + min(least, key=lambda side: least[side]) * size * slow


@lru_cache(maxsize=8)
def _slow_run(seed: int) -> tuple[Begin, Tensor, PathKernel]:
    at = begin(48, 4, 10, seed, data=seed, points=3)
    y = shrinking_labels(at, 0.1)
    return at, y, at.run(y, 16.0)


def _coupled(seed: int, *, printed: bool = False) -> Iterator[Measurement]:
    """Compare the gap on the sample with the bound; ``printed`` gives it the decay e^{-λ₀t}."""
    at, y, run = _slow_run(seed)
    least = torch.linalg.eigvalsh(run.H)[:, 0]
    yield given("λ_min(H(s)) ÷ λ₀, least on the way", float(least.min()) / at.lambda0, "≥", 0.5)
    yield given("kernel moves: Δ ÷ λ₀", float(run.kernel_change.max()) / at.lambda0, "≥", 1e-3)
    gap = (run.predictions - at.frozen(y).fitted(run.times)).norm(dim=1)
    t = at.lambda0 * run.times
    decay = torch.exp(-t) if printed else torch.exp(-t / 2) - torch.exp(-t)
    scale = 2 * float(run.kernel_change.max()) / at.lambda0 * float((y - at.start).norm())
    ratio = gap[1:] / (scale * decay[1:])
    yield at_most("‖f_t(X)-f̂_t(X)‖ ÷ bound, largest over times", float(ratio.max()), 1)


@claim(
    "gao2023.lemma4.3",
    title="On the sample: ‖f_t-f̂_t‖ ≤ (2Δ/λ₀)‖e(0)‖(e^{-λ₀t/2}-e^{-λ₀t})",
    chapter=CHAPTER,
    ref="thm-coupling",
)
def coupled_on_sample(trial: Trial) -> Iterable[Measurement]:
    """Follow a flow whose λ_min falls, to λ₀t = 16."""
    return _coupled(trial.seed)


@coupled_on_sample.control("the decay e^{-λ₀t}, as printed, with the same prefactor")
def printed_decay(trial: Trial) -> Iterable[Measurement]:
    """The true rate is λ_min(H(∞)), which is smaller than λ₀ here."""
    return named(_coupled(trial.seed, printed=True), "‖f_t")


WIDTHS, NEAR = (24, 192), 0.3
FALL = "gap at m = 192 ÷ gap at m = 24"
ELSEWHERE = "sup_t|f_t(x)-f̂_t(x)| ÷ bound, worst point"


@dataclass(frozen=True)
class _Away:
    """Off the sample: the largest gap over times for each point, its bound, and without f_0."""

    gap: Tensor
    bound: Tensor
    without: Tensor
    least: float


@lru_cache(maxsize=64)
def _away(m: int, seed: int, net: int, size: float) -> _Away:
    """Follow a network to λ₀t = 5, with labels at this distance from its first guess."""
    at = begin(m, 3, 10, 10 * seed + net, data=seed, points=3, tol=1e-9)
    y = at.start + size * signs(3, g=generator(seed + 200))
    run, frozen = at.run(y, 5.0, tol=1e-8), at.frozen(y)
    gap, without = (
        (run.point_predictions - frozen.predict(at.k, base, run.times)).abs().amax(dim=0)
        for base in (at.point_start, torch.zeros_like(at.point_start))
    )
    own = (run.k - run.k[0]).norm(dim=2).amax(dim=0)
    moved = float(run.kernel_change.max()) / at.lambda0
    bound = 2 * float((y - at.start).norm()) / at.lambda0 * (own + at.k.norm(dim=1) * moved)
    return _Away(gap, bound, without, float(torch.linalg.eigvalsh(run.H)[:, 0].min()) / at.lambda0)


def _fall(seed: int, size: float) -> Measurement:
    """Compare the gaps of a wide and a narrow network, ``size`` being the distance for the wide."""
    narrow, wide = (
        sum(float(_away(m, seed, net, far).gap.max()) for net in range(2))
        for m, far in zip(WIDTHS, (NEAR, size))
    )
    return at_most(FALL, wide / narrow, (WIDTHS[1] / WIDTHS[0]) ** -0.25)


@claim(
    "gao2023.lemma4.4",
    title="Off the sample: |f_t-f̂_t| ≤ (2‖e(0)‖/λ₀)(Δ_x+‖k₀‖Δ/λ₀); m = 24 to 192: below m^{-1/4}",
    chapter=CHAPTER,
    ref="thm-coupling",
)
def coupled_elsewhere(trial: Trial) -> Iterable[Measurement]:
    """Check the explicit bound on two wide flows; then compare with narrow ones.

    The labels lie at one distance from the first guess of each network. Two widths show no rate,
    only that the gap falls by more than the printed power does.
    """
    seen = [_away(WIDTHS[1], trial.seed, net, NEAR) for net in range(2)]
    least = min(one.least for one in seen)
    yield given("λ_min(H(s)) ÷ λ₀, least on the way", least, "≥", 0.5)
    yield at_most(ELSEWHERE, float(torch.cat([a.gap / a.bound for a in seen]).max()), 1)
    yield _fall(trial.seed, NEAR)


@coupled_elsewhere.control("labels whose distance grows like the width m")
def growing_labels(trial: Trial) -> Iterable[Measurement]:
    """Then the weights must travel further in a wide network, and the kernel moves with them."""
    yield _fall(trial.seed, NEAR * WIDTHS[1] / WIDTHS[0])


@coupled_elsewhere.control("the frozen predictor without f_0(x)")
def elsewhere_without_start(trial: Trial) -> Iterable[Measurement]:
    """The two would start apart."""
    seen = [_away(WIDTHS[1], trial.seed, net, NEAR) for net in range(2)]
    yield at_most(ELSEWHERE, float(torch.cat([a.without / a.bound for a in seen]).max()), 1)


# --- lemma A.1, Gronwall -------------------------------------------------------------------------


GRONWALL = "u(t) ÷ α(t)exp(∫β), largest over times"


def _gronwall(alpha: Signal, beta: Signal, total: Signal) -> float:
    """Return max u/(αe^{∫β}) for the largest u with u ≤ α + ∫βu: equality. ``total`` is ∫β."""

    def slope(t: float, w: list[float]) -> list[float]:
        return [beta(t) * (alpha(t) + w[0])]

    grid = np.linspace(0, 3, 61)
    integral = solve_ivp(slope, (0, 3), [0.0], t_eval=grid, rtol=1e-11, atol=1e-13).y[0]
    ratios = [
        (alpha(t) + w) / (alpha(t) * math.exp(total(t))) for t, w in zip(grid[1:], integral[1:])
    ]
    return float(np.max(ratios))


@claim(
    "gao2023.lemmaA.1",
    title="Gronwall: u ≤ α + ∫βu with α non-decreasing and β ≥ 0 gives u ≤ α exp(∫β)",
    chapter=CHAPTER,
    ref="lem-gronwall",
)
def gronwall(trial: Trial) -> Iterable[Measurement]:
    """Take equality in the hypothesis, the worst case; for constant α the bound is attained."""
    s = 1 + 0.3 * trial.seed
    beta, total = (lambda t: s * (1 + math.sin(t))), (lambda t: s * (t + 1 - math.cos(t)))
    yield given("β, least", min(beta(t) for t in np.linspace(0, 3, 61)), "≥", 0)
    yield at_most(GRONWALL, _gronwall(lambda t: 0.1 + s * t, beta, total), 1)
    constant = _gronwall(lambda t: 2.0, beta, total)
    yield within("constant α, u' = βu: |largest ratio - 1|", abs(constant - 1), 1e-7)


@gronwall.control("β < 0, as in the proof of Lemma 4.3")
def negative_rate(trial: Trial) -> Iterable[Measurement]:
    """α = 0.1 + t, β = -s: the claim would forget what α still adds."""
    s = 1 + 0.3 * trial.seed
    yield at_most(GRONWALL, _gronwall(lambda t: 0.1 + t, lambda t: -s, lambda t: -s * t), 1)


@gronwall.control("α decreasing")
def falling_alpha(trial: Trial) -> Iterable[Measurement]:
    """The integral remembers the larger values that α had."""
    s = 1 + 0.3 * trial.seed
    yield at_most(GRONWALL, _gronwall(lambda t: math.exp(-t), lambda t: s, lambda t: s * t), 1)


# --- lemma A.2, Weyl -----------------------------------------------------------------------------


WEYL = "max_k|σ_k(A)-σ_k(B)| ÷ ‖A-B‖"


@claim(
    "gao2023.lemmaA.2",
    title="Weyl: |σ_k(A)-σ_k(B)| ≤ ‖A-B‖ for all k",
    chapter=CHAPTER,
    ref="lem-weyl",
)
def weyl(trial: Trial) -> Iterable[Measurement]:
    """Random pairs; a perturbation along singular vectors, which attains the bound; two kernels."""
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
    at = begin(30, 4, 10, trial.seed, data=trial.seed, points=1, tol=1e-11)
    ratios = []
    for size in (0.01, 0.1, 1.0):
        moved = copy.deepcopy(at.model)
        with torch.no_grad():
            moved.W.add_(size * normal(30, 30, g=trial.g))
        H = empirical_ntk(moved, at.X, tol=1e-11)
        room = at.lambda0 - torch.linalg.eigvalsh(H)[0]
        ratios.append(room / torch.linalg.matrix_norm(H - at.H, 2))
    worst = float(torch.stack(ratios).max())
    yield at_most("λ₀-λ_min(H) ÷ ‖H-H(0)‖, weights moved", worst, ROUNDING)


@weyl.control("eigenvalues of a matrix that is not symmetric, in the place of singular values")
def jordan_block(trial: Trial) -> Iterable[Measurement]:
    """The eigenvalues of a Jordan block of size 6 move like the sixth root."""
    A = torch.diag(torch.ones(5, dtype=torch.float64), 1)
    E = torch.zeros_like(A)
    E[-1, 0] = 10.0 ** (-3 - trial.seed)
    before, after = (torch.linalg.eigvals(M).abs().sort().values for M in (A, A + E))
    moved = float((after - before).abs().max())
    yield at_most(WEYL, moved / float(torch.linalg.matrix_norm(E, 2)), ROUNDING)


# --- theorem A.3, the complexity of a kernel ball ------------------------------------------------


TRACE, LONGEST = "ℜ_S(𝓕_B) ÷ (B/n)√tr K", "ℜ_S(𝓕_B) ÷ Br/√n"


def _ball(seed: int, *, root: bool = True, stretch: float = 1.0) -> Iterator[Measurement]:
    """Enumerate the signs; ``stretch`` lengthens one input after r was read off the others."""
    at, B = begin(60, 8, 10, seed, data=seed, points=1, tol=1e-12), 3.0
    scale = torch.ones(8, dtype=torch.float64)
    scale[0] = stretch
    K = scale[:, None] * at.H * scale  # the network is homogeneous: k(sx,x') = s k(x,x')
    found = rademacher(K, B)
    F = torch.linalg.cholesky(K)
    each = [
        float((F.mT @ torch.tensor(e, dtype=K.dtype)).norm())
        for e in itertools.product((-1.0, 1.0), repeat=8)
    ]
    second = B / 8 * sum(each) / len(each)
    yield within("table of signs vs a loop over all 2⁸", abs(found.value / second - 1), 1e-12)
    drawn = rademacher(K, B, draws=4000, seed=seed)
    off = abs(drawn.value - found.value) / drawn.error
    yield within("4000 drawn signs: distance in standard errors", off, 4.5)
    bound = trace_bound(K, B) if root else B * float(K.trace()) / 8
    yield at_most(TRACE, found.value / bound, 1)
    r = math.sqrt(float(at.H.diagonal().max()))
    yield at_most(LONGEST, found.value / (B * r / math.sqrt(8)), 1)


@claim(
    "gao2023.theoremA.3",
    title="Rademacher complexity of a kernel ball: at most (B/n)√tr K, and at most Br/√n",
    chapter=CHAPTER,
    ref="thm-kernel-ball",
)
def kernel_ball(trial: Trial) -> Iterable[Measurement]:
    """All 256 signs for eight inputs and the tangent kernel of a network."""
    return _ball(trial.seed)


@kernel_ball.control("the square root missing")
def ball_without_root(trial: Trial) -> Iterable[Measurement]:
    """The trace is below one."""
    return named(_ball(trial.seed, root=False), TRACE)


@kernel_ball.control("one input ten times as long: k(x,x) ≤ r² fails")
def one_long_input(trial: Trial) -> Iterable[Measurement]:
    """Then r bounds nothing."""
    return named(_ball(trial.seed, stretch=10.0), LONGEST)


# --- theorem A.4, uniform deviation --------------------------------------------------------------


ATOMS, SAMPLES, DELTA = 20_000, 400, 0.05
RHO, RADIUS = 10.0, 0.64  # the ramp loss max(0, 1-ρyf), cut at 1, on a ball of this radius
MISS = "share of samples whose sup_f(Eℓ-mean ℓ) exceeds the bound"


def memory_deviation(counts: Tensor, radius: float, rho: float) -> tuple[float, Tensor]:
    r"""Return :math:`\sup_f(\mathbb E\ell-\tfrac1n\sum\ell)` over a ball of tables, and its f·y.

    The inputs are equally likely atoms, ``counts`` says how often the sample has met each. The
    kernel is 1 on equal atoms and 0 otherwise, so f is any table with :math:`\sum f^2\le B^2`. The
    loss :math:`\ell=\min(1,(1-\rho yf)_+)` falls by :math:`g=\rho yf` where that lies in [0, 1];
    with w the positive part of counts/n - 1/N the best table is :math:`g=\rho Bw/\|w\|`.
    """
    w = (counts / counts.sum() - 1 / len(counts)).clamp(min=0)
    table = radius * w / w.norm()
    return rho * radius * float(w.norm()), table


def memory_complexity(counts: Tensor, radius: float) -> float:
    r"""Bound :math:`\Re_S` of the ball of tables from below.

    :math:`Q=\epsilon^\top K\epsilon` has :math:`\mathbb EQ=n` and
    :math:`\mathbb EQ^2=n^2+2\sum_jc_j(c_j-1)`; by Hölder
    :math:`\mathbb E\sqrt Q\ge(\mathbb EQ)^{3/2}(\mathbb EQ^2)^{-1/2}`. Equality holds when no atom
    is met twice.
    """
    n = float(counts.sum())
    pairs = float((counts * (counts - 1)).sum())
    return radius / math.sqrt(n) / math.sqrt(1 + 2 * pairs / n**2)


@dataclass(frozen=True)
class _Repeats:
    """Samples drawn again and again: suprema, complexities, and two checks of the formula.

    ``largest`` is the largest fall of the loss, ``gap`` the distance between the formula and the
    loss of its table, ``other`` the best of random members over the supremum.
    """

    suprema: tuple[float, ...]
    complexities: tuple[float, ...]
    largest: float
    gap: float
    other: float


@lru_cache(maxsize=8)
def _deviations(seed: int, repeats: int = 200) -> _Repeats:
    g = generator(seed + 500)
    suprema, complexities, largest, gap, other = [], [], 0.0, 0.0, 0.0
    for k in range(repeats):
        drawn = torch.randint(0, ATOMS, (SAMPLES,), generator=g)
        counts = torch.bincount(drawn, minlength=ATOMS).double()
        value, table = memory_deviation(counts, RADIUS, RHO)
        suprema.append(value)
        complexities.append(memory_complexity(counts, RADIUS))
        largest = max(largest, RHO * float(table.max()))
        if k < 5:
            gap = max(gap, abs(_excess(table, counts) - value))
            noise = normal(ATOMS, g=g)
            for share in (0.1, 0.5, 1.0):
                member = (1 - share) * table / table.norm() + share * noise / noise.norm()
                member = RADIUS * member / member.norm()
                other = max(other, _excess(member, counts) / value)
    return _Repeats(tuple(suprema), tuple(complexities), largest, gap, other)


def _excess(table: Tensor, counts: Tensor) -> float:
    """Return expected minus mean loss of a member, from its values of yf."""
    loss = (1 - RHO * table).clamp(0, 1)
    return float(loss.mean() - (counts * loss).sum() / counts.sum())


def _uniform(
    seed: int, *, complexity: float = 1.0, deviation: float | None = None
) -> Iterator[Measurement]:
    """Count the misses; ``complexity`` scales 2ρℜ_S, ``deviation`` is that of another class."""
    seen = _deviations(seed)
    yield given("largest fall of the loss, ρyf", seen.largest, "≤", 1)
    yield within("loss of the best table vs the formula", seen.gap, 1e-12)
    yield at_most("random members ÷ supremum", seen.other, ROUNDING)
    extra = confidence(SAMPLES, DELTA)
    bounds = [2 * RHO * complexity * value + extra for value in seen.complexities]
    yield given("the bound says something: below c = 1", max(bounds), "≤", 1)
    gaps = seen.suprema if deviation is None else [deviation] * len(bounds)
    missed = sum(gap > bound for gap, bound in zip(gaps, bounds))
    yield at_most(MISS, missed / len(bounds), DELTA)


@claim(
    "gao2023.theoremA.4",
    title="Uniform deviation: Eℓ ≤ mean ℓ + 2ρℜ_S + 3c√(log(2/δ)/2n) for all f at once",
    chapter=CHAPTER,
    ref="thm-uniform-deviation",
)
def uniform_deviation(trial: Trial) -> Iterable[Measurement]:
    """Draw 200 samples; for this class the supremum over all f is known exactly."""
    return _uniform(trial.seed)


@uniform_deviation.control("the complexity term left out")
def no_complexity(trial: Trial) -> Iterable[Measurement]:
    """One function obeys the rest; a class of them does not."""
    return named(_uniform(trial.seed, complexity=0.0), MISS)


@uniform_deviation.control("the Lipschitz constant ρ = 10 left out, as printed")
def no_lipschitz(trial: Trial) -> Iterable[Measurement]:
    """A steep loss turns small functions into large differences."""
    return named(_uniform(trial.seed, complexity=1 / RHO), MISS)


@uniform_deviation.control("the class chosen after the sample: the one table that remembers it")
def after_the_sample(trial: Trial) -> Iterable[Measurement]:
    """A single function has complexity 0; this one is right on the sample and nowhere else."""
    remembered = 1 - SAMPLES / ATOMS  # at most SAMPLES atoms are known
    return named(_uniform(trial.seed, complexity=0.0, deviation=remembered), MISS)
