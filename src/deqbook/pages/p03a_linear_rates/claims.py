r"""Linear rates: thirteen claims on smoothness, PL, regression and prediction dynamics.

Two constants run through the page. A loss is β-smooth if its gradient is β-Lipschitz. It is κ-PL if
:math:`\|\nabla\mathcal L\|^2\ge2\kappa(\mathcal L-\mathcal L^*)`; with the factor 2 every
κ-strongly convex function is κ-PL. The source leaves it out, so its constant is our 2κ. Every
function below has its constants in closed form: no bound is compared with a fitted constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

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
    within,
)
from deqbook.dynamics import linearised_descent
from deqbook.linalg import operator_norm
from deqbook.models import gradient
from deqbook.pages.p03a_linear_rates import lab
from deqbook.runtime import generator, normal
from deqbook.solvers import Newton

claim = chapter("03a_linear_rates")
ROUNDING = 1 + 1e-9  # room for rounding where a bound is attained exactly


# --- Lipschitz maps ----------------------------------------------------------------------------


def _lipschitz(f: lab.Function, constant: float, x: Tensor, y: Tensor) -> Iterator[Measurement]:
    quotient = (f(x) - f(y)).norm(dim=1) / (x - y).norm(dim=1)
    name = "max ‖f(x)-f(y)‖ ÷ L_f‖x-y‖ over pairs"
    yield headline(at_most(name, quotient.max() / constant, ROUNDING))
    J = torch.func.vmap(torch.func.jacrev(lambda t: f(t[None])[0]))(torch.cat([x, y]))
    norms = torch.linalg.matrix_norm(J, 2)
    yield at_most("max ‖Df(x)‖ ÷ L_f over points", norms.max() / constant, ROUNDING)


@claim(
    "nguyen2022.definition2.5.1",
    "f is L_f-Lipschitz on a convex set if and only if ‖Df‖ ≤ L_f there",
    "def-lipschitz",
)
def lipschitz_maps(trial):
    M, x, y = (normal(*shape, g=trial.g) for shape in ((5, 4), (200, 4), (200, 4)))
    constant = operator_norm(M)

    def f(t: Tensor) -> Tensor:
        return torch.tanh(t @ M.mT)

    yield from _lipschitz(f, constant, x, y)
    # ‖M‖ is attained at 0 along the top singular vector
    top = torch.linalg.svd(M).Vh[:1]
    tiny = f(1e-4 * top).norm() / 1e-4
    yield equal("largest quotient ÷ sup ‖Df‖ as x, y → 0", tiny / constant, 1, 1e-6)


def _slit_plane(trial):
    # two points on the two sides of the slit are near, their angles 2π apart
    r = 1 + torch.rand(50, generator=trial.g, dtype=torch.float64)
    x, y = (torch.stack([-r, side * 0.1 * r], dim=1) for side in (1, -1))
    yield from _lipschitz(lambda t: torch.atan2(t[:, 1], t[:, 0])[:, None], 1.0, x, y)


def _far_out_on_a_bowl(trial):
    loss, _ = lab.bowl(trial.seed)
    x, y = normal(50, 4, g=trial.g), normal(50, 4, g=trial.g)
    inside = loss.gradient(x / x.norm(dim=1, keepdim=True)).norm(dim=1).max()
    yield from _lipschitz(lambda t: loss.value(t)[:, None], float(inside), 100 * x, 100 * y)


lipschitz_maps.breaks(
    "the domain is not convex: the angle on a slit plane, where ‖Df‖ ≤ 1",
    "max ‖f(x)-f(y)‖",
    part=_slit_plane,
)
lipschitz_maps.breaks(
    "a strongly convex loss, L_f read off on the unit ball: no L_f serves ℝᵖ",
    part=_far_out_on_a_bowl,
)


# --- smoothness --------------------------------------------------------------------------------


def _forms(loss: lab.Loss, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return, for each form of smoothness, the least constant that serves these pairs, ÷ β."""
    gx, gy, move = loss.gradient(x), loss.gradient(y), x - y
    square = move.pow(2).sum(1)
    bend = loss.value(y) - loss.value(x) + (gx * move).sum(1)
    return {
        "‖∇f(x)-∇f(y)‖ ÷ β‖x-y‖": (gx - gy).norm(dim=1) / move.norm(dim=1) / loss.beta,
        "|f(y)-f(x)-⟨∇f(x),y-x⟩| ÷ ½β‖x-y‖²": 2 * bend.abs() / square / loss.beta,
        "|⟨∇f(x)-∇f(y),x-y⟩| ÷ β‖x-y‖²": ((gx - gy) * move).sum(1).abs() / square / loss.beta,
        "‖∇²f(x)‖ ÷ β": torch.linalg.matrix_norm(loss.hessian(x), 2) / loss.beta,
    }


def _cocoercive(loss: lab.Loss, x: Tensor, y: Tensor, *, printed: bool) -> Measurement:
    """Compare ⟨∇f(x)-∇f(y), x-y⟩ with ‖∇f(x)-∇f(y)‖²/β: one is said to be larger."""
    change = loss.gradient(x) - loss.gradient(y)
    inner, square = (change * (x - y)).sum(1), change.pow(2).sum(1) / loss.beta
    ratio = square / inner if printed else inner / square
    name = "third form: min (side said to be larger) ÷ (other side)"
    return at_least(name, float(ratio.min()), 1 / ROUNDING)


@claim(
    "nguyen2022.definition2.5.2",
    "Four forms of β-smoothness have one constant; convexity adds a fifth",
    "def-smooth",
)
def smoothness(trial, *, size=3.0, two_sided=True, convex=True, printed=False):
    loss, top = lab.waves(trial.seed)
    if not two_sided:  # -10‖θ‖² satisfies ∇²f ⪯ βI with any β > 0
        loss = lab.Loss(lambda t: -10 * t.pow(2).sum(-1), beta=1.0)
    x, y = size * normal(200, 4, g=trial.g), size * normal(200, 4, g=trial.g)
    for form, values in _forms(loss, x, y).items():
        yield headline(at_most(f"max {form}", float(values.max()), ROUNDING))
    # around 0 the curvature along q_top is ±β, so every form needs the whole of β
    sharp = torch.stack([1e-2 * top, 1e-3 * top])
    for form, values in _forms(loss, sharp, -sharp).items():
        yield equal(f"{form} where it is attained", float(values.max()), 1, 1e-4)
    yield _cocoercive(lab.bowl(trial.seed)[0] if convex else loss, x, y, printed=printed)


smoothness.breaks(
    "third form as printed, with ≤: ⟨∇f(x)-∇f(y), x-y⟩ ≤ ‖∇f(x)-∇f(y)‖²/β",
    "third form",
    size=1.0,
    printed=True,
)
smoothness.breaks("third form with ≥, but f is not convex", "third form", size=1.0, convex=False)
smoothness.breaks(
    "the Hessian bounded from above only, ∇²f ⪯ βI, as printed", "max", size=1.0, two_sided=False
)


# --- descent and critical points ---------------------------------------------------------------

HALF = "min (𝓛_t - 𝓛_{t+1}) ÷ ½η‖∇𝓛_t‖²"
SHARP = "min (𝓛_t - 𝓛_{t+1}) ÷ (η-½βη²)‖∇𝓛_t‖²"


def _progress(loss: lab.Loss, start: Tensor, times: float, steps: int) -> tuple[float, float]:
    """Return the least decrease of a step η = times/β, ÷ (η/2)‖∇‖² and ÷ (η - ½βη²)‖∇‖²."""
    step = times / loss.beta
    path = lab.descent(loss, start, step, steps)
    square = path.slope[:-1].pow(2)
    seen = square > 1e-6 * square.max()  # where rounding does not decide
    least = float(((path.value[:-1] - path.value[1:]) / square)[seen].min())
    return least / (step / 2), least / (step - 0.5 * loss.beta * step**2)


@claim(
    "nguyen2022.proposition2", "A step η ≤ 1/β lowers the loss by at least ½η‖∇𝓛‖²", "prop-descent"
)
def descent_property(trial):
    loss, _ = lab.waves(trial.seed)
    start = 3 * normal(20, 4, g=trial.g)
    for times in (0.1, 0.5, 1.0):
        half, sharp = _progress(loss, start, times, 30)
        yield headline(at_least(f"{HALF}, η = {times:g}/β", half, 1 / ROUNDING))
        yield at_least(f"{SHARP}, η = {times:g}/β", sharp, 1 / ROUNDING)
    yield at_least(f"{SHARP}, η = 1.5/β", _progress(loss, start, 1.5, 30)[1], 1 / ROUNDING)
    yield equal(
        "the same on β‖θ‖²/2 with η = 1/β", _progress(lab.SQUARE, start, 1.0, 1)[0], 1, 1e-12
    )


def _most_curved(trial, *, times):
    half, _ = _progress(lab.SQUARE, normal(5, 4, g=trial.g), times, 5)
    yield at_least(f"{HALF}, η = 1/β", half, 1 / ROUNDING)


descent_property.breaks(
    "η = 1.5/β: the loss falls, but by less than half",
    part=_most_curved,
    shown={"η = 1/β": "η = 1.5/β"},
    times=1.5,
)
descent_property.breaks(
    "η = 3/β: the loss rises", part=_most_curved, shown={"η = 1/β": "η = 3/β"}, times=3.0
)


def _critical(
    name: str, loss: lab.Loss, start: Tensor, eps: float, *, times: float = 1.0
) -> Iterator[Measurement]:
    """Count the steps to ‖∇𝓛‖ ≤ ε, against 2β(𝓛_0 - 𝓛*)/ε², for the worst of the starts."""
    path = lab.descent(loss, start, times / loss.beta, 200)
    bound = 2 * loss.beta * loss.gap(start)
    hit = path.slope <= eps
    first = torch.where(hit.any(0), hit.double().argmax(0).double(), math.inf)
    worst = float((first / bound * eps**2).max())
    yield headline(at_most(f"{name}: steps to ‖∇𝓛‖ ≤ ε ÷ 2β(𝓛_0-𝓛*)/ε²", worst, 1))
    total = path.slope.pow(2).sum(0)
    yield at_most(f"{name}: Σ‖∇𝓛_t‖² ÷ 2β(𝓛_0-𝓛*)", float((total / bound).max()), ROUNDING)


def _critical_on_waves(trial, *, times=1.0):
    loss, _ = lab.waves(trial.seed)
    yield from _critical("waves", loss, 3 * normal(20, 4, g=trial.g), 0.05, times=times)


def _critical_on_a_slope(trial, *, minimum=True):
    loss, start, eps = lab.long_slope(trial.seed)
    if minimum:
        yield from _critical("slope", loss, start, eps)
        return
    # move the minimiser along the axis: the descent is the same, the printed number shrinks
    minimiser = 0.8 * float(loss.value(start))
    moved = lab.Loss(lambda t: loss.function(t - minimiser), loss.beta, least=minimiser)
    yield from _critical("slope", moved, start + minimiser, eps)


@claim(
    "nguyen2022.theorem2.5.1", "Step 1/β finds ‖∇𝓛‖ ≤ ε within 2β(𝓛_0-𝓛*)/ε² steps", "thm-critical"
)
def critical_points(trial):
    yield from _critical_on_waves(trial)
    yield from _critical_on_a_slope(trial)
    slope, start, eps = lab.long_slope(trial.seed)
    joint = eps / 0.99 * torch.tensor([[1 - 1e-9], [1 + 1e-9]], dtype=torch.float64)
    inside, outside = slope.value(joint).tolist()
    yield within("slope: jump of 𝓛 where its pieces meet, ÷ 𝓛", abs(outside / inside - 1), 1e-6)
    path = lab.descent(lab.SQUARE, start, 0.5, 3)
    total = float(path.slope.pow(2).sum() / (2 * lab.SQUARE.beta * lab.SQUARE.value(start)).sum())
    yield equal("Σ‖∇𝓛_t‖² ÷ 2β(𝓛_0-𝓛*) on β‖θ‖²/2", total, 1, 1e-12)


critical_points.breaks("step 2.5/β instead of 1/β", part=_critical_on_waves, times=2.5)
critical_points.breaks(
    "the minimiser θ* subtracted in place of the minimum 𝓛*, as printed",
    part=_critical_on_a_slope,
    shown={"𝓛*": "θ*"},
    minimum=False,
)


# --- strong convexity --------------------------------------------------------------------------


def _sandwich(loss: lab.Loss, x: Tensor) -> Iterator[Measurement]:
    upper = loss.gradient(x).pow(2).sum(1) / (2 * loss.kappa)
    lower = 0.5 * loss.kappa * x.pow(2).sum(1)
    gap = loss.gap(x)
    yield at_least("min ‖∇f‖²/2κ ÷ (f-f*)", float((upper / gap).min()), 1 / ROUNDING)
    yield at_least("min (f-f*) ÷ ½κ‖θ-θ*‖²", float((gap / lower).min()), 1 / ROUNDING)


@claim(
    "nguyen2022.lemma2.5.2", "Strong convexity: ‖∇f‖²/2κ ≥ f-f* ≥ ½κ‖θ-θ*‖²", "lem-strong-convexity"
)
def strong_convexity(trial, *, strong=True):
    drawn, bottom = lab.bowl(trial.seed, strong=strong)
    loss = replace(drawn, function=lambda t: drawn.function(t) - 1, least=-1.0)
    yield from _sandwich(loss, torch.cat([lab.scattered(trial.g), bottom[None]]))
    ratio = float(loss.gap(bottom)) / (0.5 * loss.kappa)
    yield equal("(f-f*) ÷ ½κ‖θ-θ*‖² along q_1", ratio, 1, 1e-9)


def _overstated(trial):
    loss, bottom = lab.bowl(trial.seed)  # along q_1 both inequalities are equalities
    yield from _sandwich(replace(loss, kappa=1.1 * loss.kappa), bottom[None])


strong_convexity.breaks("convex, but not strongly: the quadratic part removed", "min", strong=False)
strong_convexity.breaks("κ overstated by a tenth", part=_overstated)


def _rate(
    name: str, loss: lab.Loss, start: Tensor, *, kappas: float = 1.0, times: float = 1.0
) -> Iterator[Measurement]:
    """Compare 𝓛_t - 𝓛* under the step times/β with the factor 1 - kappas·κ/β per step."""
    claimed = 1 - kappas * loss.kappa / loss.beta
    steps = lab.steps_for(claimed, 1e-10)
    path = lab.descent(loss, start, times / loss.beta, steps)
    gap = path.value - loss.least
    clock = torch.arange(1, steps + 1, dtype=torch.float64).reshape(-1, *[1] * (gap.ndim - 1))
    worst = float((gap[1:] / gap[0] / claimed**clock).max())
    yield headline(at_most(f"{name}: max (𝓛_t-𝓛*) ÷ (1-κ/β)ᵗ(𝓛_0-𝓛*)", worst, ROUNDING))
    done = gap <= 1e-6 * gap[0]
    first = torch.where(done.any(0), done.double().argmax(0).double(), math.inf).max()
    count = math.log(1e6) / -math.log(claimed)
    name = f"{name}: steps to 10⁻⁶(𝓛_0-𝓛*) ÷ ⌈log 10⁶ ÷ -log(1-κ/β)⌉"
    yield at_most(name, float(first) / math.ceil(count), 1)


def _bowl_rate(trial, *, strong=True, times=1.0, size=5.0, starts=20, slowest=True):
    loss, bottom = lab.bowl(trial.seed, strong=strong)
    start = size * normal(starts, 4, g=trial.g)
    if slowest:
        start = torch.cat([start, bottom[None]])
    yield from _rate("bowl", loss, start, times=times)


@claim(
    "nguyen2022.theorem2.5.3",
    "κ-strongly convex, step 1/β: 𝓛_t-𝓛* ≤ (1-κ/β)ᵗ(𝓛_0-𝓛*)",
    "thm-strong-rate",
)
def strong_rate(trial):
    yield from _bowl_rate(trial)
    # the quadratic direction of least curvature: the best possible rate is the square
    loss, bottom = lab.bowl(trial.seed)
    step = lab.descent(loss, bottom, 1 / loss.beta, 5).value
    ratio = float(step[5] / step[4]) / (1 - loss.kappa / loss.beta) ** 2
    yield equal("𝓛_{t+1} ÷ 𝓛_t along q_1, over (1-κ/β)²", ratio, 1, 1e-9)
    curved = operator_norm(loss.hessian(torch.zeros(1, 4, dtype=torch.float64))[0])
    yield equal("‖∇²f(0)‖ ÷ β, attained", curved / loss.beta, 1, 1e-9)


strong_rate.breaks(
    "convex, but not strongly: the quadratic part removed",
    part=_bowl_rate,
    strong=False,
    size=100.0,
    starts=3,
)
strong_rate.breaks("step 3/β instead of 1/β", part=_bowl_rate, times=3.0, slowest=False)


# --- the Polyak-Łojasiewicz condition ----------------------------------------------------------


def _pl(name: str, loss: lab.Loss, x: Tensor) -> Measurement:
    ratio = loss.gradient(x).pow(2).sum(-1) / (2 * loss.kappa * loss.gap(x))
    return at_least(f"{name}: min ‖∇𝓛‖² ÷ 2κ(𝓛-𝓛*)", float(ratio.min()), 1 / ROUNDING)


def _one_variable(trial, *, amplitude=3.0):
    one, x = lab.one_sine(amplitude), torch.linspace(-20, 20, 40_000, dtype=torch.float64)[:, None]
    yield _pl("x² + 3sin²x", one, x)
    sign = torch.sign(one.gradient(x)[:, 0])
    yield equal("one variable: zeros of f'", float((sign[1:] != sign[:-1]).sum()), 1, 0)
    yield equal("x² + 3sin²x: min f''", float(one.hessian(x).min()), -4, 1e-4)


@claim(
    "nguyen2022.definition2.5.3",
    "PL: ‖∇𝓛‖² ≥ 2κ(𝓛-𝓛*), without convexity and without a unique minimiser",
    "def-pl",
)
def polyak_lojasiewicz(trial):
    yield from _one_variable(trial)
    sines = lab.sines(trial.seed)
    yield _pl("three variables", sines, lab.scattered(trial.g, 3))
    # along each of the three orthogonal directions κ is attained where it is for one variable
    tight = 2.2017 * lab.frame(3, generator(trial.seed)).mT
    shares = sines.gradient(tight).pow(2).sum(1) / (2 * sines.kappa * sines.gap(tight))
    off = float((shares - 1).abs().max())
    yield within("three variables: |‖∇𝓛‖² ÷ 2κ(𝓛-𝓛*) - 1| where κ is attained", off, 1e-3)
    task = lab.regression(trial.seed)
    loss, w = task.loss(), 3 * normal(200, 10, g=trial.g)
    yield _pl("regression", loss, w)
    bottom = task.interpolant + task.Phi.mT @ task.spectrum[1][:, 0]
    ratio = float(loss.gradient(bottom).pow(2).sum() / (2 * loss.kappa * loss.value(bottom)))
    yield equal("regression, error along v_1: ‖∇𝓛‖² ÷ 2κ𝓛", ratio, 1, 1e-9)
    # PL implies quadratic growth away from the *set* of minimisers, here Φ⁺y + ker Φ
    distance = (torch.linalg.pinv(task.Phi) @ (w @ task.Phi.mT - task.y).mT).norm(dim=0)
    growth = loss.value(w) / (0.5 * loss.kappa * distance**2)
    yield at_least("regression: min 𝓛 ÷ ½κ dist(w, argmin)²", growth.min(), 1 / ROUNDING)
    yield from _no_interpolation(trial)


def _no_interpolation(trial, *, least=True):
    """Measure PL for more samples than features; not ``least`` takes the minimum to be 0."""
    g = generator(trial.seed + 300)
    task = lab.Regression(normal(10, 6, g=g), normal(10, g=g))
    best = torch.linalg.lstsq(task.Phi, task.y[:, None]).solution[:, 0]
    kappa, function = float(torch.linalg.svdvals(task.Phi)[-1]) ** 2, task.loss().function
    loss = lab.Loss(function, kappa=kappa, least=float(function(best)) if least else 0.0)
    yield _pl("more samples than features", loss, best + 0.1 * normal(50, 6, g=g))


polyak_lojasiewicz.breaks(
    "x² + 10sin²x: local minima, where the gradient vanishes and 𝓛 > 𝓛*",
    "x² + 3sin²x: min ‖∇𝓛‖²",
    "one variable",
    part=_one_variable,
    shown={"3sin²x": "10sin²x"},
    amplitude=10.0,
)
polyak_lojasiewicz.breaks(
    "the minimum taken to be 0 where it is not",
    part=_no_interpolation,
    shown={"(𝓛-𝓛*)": "𝓛"},
    least=False,
)


def _own_derivative(loss: lab.Loss, x: Tensor) -> Measurement:
    """Compare the derivative that is given beside a function with automatic differentiation."""
    gap = (loss.gradient(x) - replace(loss, derivative=None).gradient(x)).norm()
    return within("x² + 3sin²x: ∇f vs autograd", gap / loss.gradient(x).norm(), 1e-10)


def _quadratic_rates(trial, *, kappas=1.0):
    plane = lab.Loss(lambda t: 0.5 * (t[..., 0] ** 2 + 0.2 * t[..., 1] ** 2), 1.0, 0.2)
    start = torch.tensor([0.0, 1.0], dtype=torch.float64)
    yield from _rate("½(x²+0.2y²)", plane, start, kappas=kappas)
    task, zero = lab.regression(trial.seed), torch.zeros(10, dtype=torch.float64)
    along = task.labelled(task.spectrum[1][:, 0]).loss()
    yield from _rate("regression, y = v_1", along, zero, kappas=kappas)


@claim("nguyen2022.theorem2.5.4", "κ-PL, step 1/β: 𝓛_t-𝓛* ≤ (1-κ/β)ᵗ(𝓛_0-𝓛*)", "thm-pl-rate")
def pl_rate(trial):
    yield _own_derivative(lab.sines(trial.seed), 3 * normal(20, 3, g=generator(trial.seed + 710)))
    yield from _rate("x² + 3sin²x", lab.sines(trial.seed), 3 * normal(20, 3, g=trial.g))
    yield from _quadratic_rates(trial)
    yield from _flow_rate(trial)


def _flow_rate(trial, *, kappas=1.0):
    """Compare the flow with e^{-2κt}: an equality for an error along v_1."""
    loss = lab.sines(trial.seed)
    cases = {"x² + 3sin²x": (loss, 3 * normal(3, g=generator(trial.seed + 700)))}
    task = lab.regression(trial.seed)
    along = task.labelled(task.spectrum[1][:, 0]).loss()
    cases["regression, y = v_1"] = along, torch.zeros(10, dtype=torch.float64)
    for name, (f, start) in cases.items():
        times = torch.linspace(0, math.log(1e3) / (2 * f.kappa), 9, dtype=torch.float64)
        gap = lab.flow(f, start, times, rtol=1e-11).value - f.least  # an equality is met to 1e-6
        share = gap[1:] / gap[0] * torch.exp(2 * kappas * f.kappa * times[1:])
        yield at_most(
            f"{name}, flow: max (𝓛(t)-𝓛*) ÷ e^{{-2κt}}(𝓛_0-𝓛*)", float(share.max()), 1 + 1e-6
        )


def _quartic_rate(trial):
    yield from _rate("x² + 3sin²x", *lab.quartic(trial.g))


# in the direction of least curvature the factor is (1-κ/β)² = 1-2κ/β+(κ/β)²
pl_rate.breaks(
    "the factor as printed: μ/β with ‖∇𝓛‖² ≥ μ𝓛, that is 1-2κ/β",
    part=_quadratic_rates,
    shown={"κ/β": "2κ/β"},
    kappas=2,
)
pl_rate.breaks(
    "κ overstated by a tenth",
    "regression, y = v_1, flow",
    part=_flow_rate,
    shown={"κ": "1.1κ"},
    kappas=1.1,
)
pl_rate.breaks(
    "PL at the start only: x⁴, where f'²/2f = 8x² tends to 0",
    part=_quartic_rate,
    shown={"x² + 3sin²x": "x⁴"},
)


# --- linear regression -------------------------------------------------------------------------


def _closed_form(trial, *, mean=False, weighted=True, stepped=True):
    """Compare descent from 0 on the sum loss (or the mean loss) with -Σ(1-ηwλ_i)ᵏ⟨v_i,y⟩v_i.

    The weight w is 1 (or 1/n). Not ``weighted`` leaves it out of the formula, not ``stepped`` η.
    """
    task = lab.regression(trial.seed)
    values, vectors = task.spectrum
    weight = 1 / len(task.y) if mean else 1.0
    step = 0.5 / float(values[-1]) / weight
    loss = lab.Loss(lambda w: weight * task.loss().function(w))
    path = lab.descent(loss, torch.zeros(10, dtype=torch.float64), step, 60)
    error = path.theta @ task.Phi.mT - task.y
    said = (weight if weighted else 1.0) * task.gram
    solved = linearised_descent(said, -task.y, step if stepped else 1.0, 60)
    weights = -torch.from_numpy(solved.error) @ vectors
    kind, rate = ("mean loss", "ηλ_i/n") if mean else ("sum loss", "ηλ_i")
    size = task.y.norm()
    yield within(
        f"{kind}: max_k ‖(ŷ_k-y) + Σ(1-{rate})ᵏ⟨v_i,y⟩v_i‖ ÷ ‖y‖",
        (error + weights @ vectors.mT).norm(dim=1).max() / size,
        1e-12,
    )
    yield within(
        f"{kind}: max_k |‖ŷ_k-y‖ - √Σ(1-{rate})²ᵏ⟨v_i,y⟩²| ÷ ‖y‖",
        (error.norm(dim=1) - weights.norm(dim=1)).abs().max() / size,
        1e-12,
    )


def _least_norm(trial, *, zero=True, times=0.5):
    task = lab.regression(trial.seed)
    start = torch.zeros(10, dtype=torch.float64) if zero else normal(10, g=trial.g)
    away = lab.regression_limit(task, start, times) - task.interpolant
    yield within("‖w_∞ - Φ⁺y‖ ÷ ‖Φ⁺y‖", away.norm() / task.interpolant.norm(), 1e-9)


def _steps(task: lab.Regression, index: int, which: str) -> Measurement:
    """Count the steps to ‖ŷ_k-y‖ ≤ 10⁻³‖y‖ when the label is one eigenvector."""
    values, vectors = task.spectrum
    step = 0.5 / float(values[-1])
    predicted = math.ceil(math.log(1e-3) / math.log(1 - step * float(values[index])))
    loss, zero = task.labelled(vectors[:, index]).loss(), torch.zeros(10, dtype=torch.float64)
    path = lab.descent(loss, zero, step, predicted + 5)
    count = int((path.value <= 0.5e-6).double().argmax())
    name = f"y = {which}: steps to ‖ŷ-y‖ ≤ 10⁻³‖y‖, minus ⌈predicted⌉"
    return equal(name, count - predicted, 0, 0)


@claim(
    "nguyen2022.section2.6",
    "Least squares from w = 0: ŷ_k - y = -Σ(1-ηλ_i)ᵏ⟨v_i,y⟩v_i, limit of least norm",
    "thm-regression",
)
def regression_dynamics(trial):
    yield from _closed_form(trial)
    yield from _closed_form(trial, mean=True)
    yield from _least_norm(trial)
    task, start = lab.regression(trial.seed), normal(10, g=trial.g)
    kernel = start - torch.linalg.pinv(task.Phi) @ (task.Phi @ start)
    away = (lab.regression_limit(task, start) - task.interpolant).norm()
    yield equal("w_0 ≠ 0: ‖w_∞ - Φ⁺y‖ ÷ ‖P_ker w_0‖", away / kernel.norm(), 1, 1e-9)
    yield _steps(task, 0, "v_min")
    yield _steps(task, -1, "v_max")


regression_dynamics.breaks(
    "the mean loss, but the update without 1/n, as printed",
    part=_closed_form,
    shown={"ηλ_i/n": "ηλ_i"},
    mean=True,
    weighted=False,
)
regression_dynamics.breaks(
    "(I - G)ᵏ, without the step η, as printed in one line",
    part=_closed_form,
    shown={"ηλ_i": "λ_i"},
    stepped=False,
)
regression_dynamics.breaks(
    "w_0 ≠ 0: the part of w_0 in ker Φ never moves", part=_least_norm, zero=False
)
regression_dynamics.breaks("η = 2.1/λ_max", part=_least_norm, times=2.1)


# --- networks ----------------------------------------------------------------------------------


@claim(
    "nguyen2022.lemma2.6.2",
    "Under the flow of ½‖ŷ-y‖² the predictions obey ŷ' = -H(t)(ŷ-y)",
    "lem-prediction-dynamics",
)
def prediction_dynamics(trial, *, weight=1.0, moving=True):
    net = lab.monotone_network(trial.seed)
    theta = net.start
    H, e, g = net.kernel(theta), net.predict(theta) - net.y, net.gradient(theta)
    J = net.jacobian(theta)
    yield within("H: closed form vs autograd", (H - J @ J.mT).norm() / H.norm(), 1e-9)
    yield within("∇𝓛: adjoint form vs autograd", (g - J.mT @ e).norm() / g.norm(), 1e-9)
    order = lab.step_order(net, weight)
    yield equal("order in η of ‖(ŷ(θ-η∇𝓛)-ŷ)/η + H(ŷ-y)‖", order, 1, 0.05)
    away = lab.prediction_gap(net, weight, moving=moving)
    yield within("flow: ‖ŷ(t) - solution of ŷ' = -H(t)(ŷ-y)‖ ÷ path", away, 1e-6)


prediction_dynamics.breaks(
    "the mean loss, but no factor 1/n in ŷ', as printed", "order", "flow", weight=0.25
)
prediction_dynamics.breaks(
    "the sign of the flow: θ' = +∇𝓛, as printed before the lemma",
    "order",
    "flow",
    shown={"θ-η": "θ+η"},
    weight=-1.0,
)
prediction_dynamics.breaks(
    "the kernel frozen at its initial value", "flow", shown={"H(t)": "H(0)"}, moving=False
)


# --- PL* ---------------------------------------------------------------------------------------


def _saturating_pl(trial, *, times=1.0):
    task, zero = lab.saturating(trial.seed), torch.zeros(8, dtype=torch.float64)
    points = lab.in_ball(zero, times * task.radius, 400, trial.g)
    yield _pl("tanh(Φθ)", task.loss(), points if times == 1 else points[::2])  # on the sphere


def _network_pl(ball: lab.Ball, points: Tensor) -> Measurement:
    net = ball.network
    ratio = [net.gradient(t).pow(2).sum() / (2 * ball.kappa * net.value(t)) for t in points]
    return at_least("DEQ: min ‖∇𝓛‖² ÷ 2κ𝓛 on the ball", float(torch.stack(ratio).min()), 1)


@claim(
    "nguyen2022.definition2.6.1",
    "PL*: ‖∇𝓛‖² ≥ 2κ𝓛 on a ball; for networks κ = min λ_min(H) serves",
    "def-pl-star",
)
def pl_star(trial):
    yield from _saturating_pl(trial)
    ball = lab.vanilla_ball(trial.seed)
    net, points = ball.network, lab.in_ball(ball.network.start, ball.radius, 8, trial.g)
    yield _network_pl(ball, points)
    least = min(float(torch.linalg.eigvalsh(net.kernel(t))[0]) for t in points)
    yield at_least("DEQ: min λ_min(H) ÷ κ on the ball", least / ball.kappa, 1)
    theta, exact = points[0], Newton()
    e = net.predict(theta) - net.y
    found = gradient(net.at(theta), net.X, net.y, solver=exact, adjoint_solver=exact, tol=1e-13)
    square = sum(float(g.pow(2).sum()) for g in found.grads.values())
    yield equal("DEQ: ‖∇𝓛‖² ÷ eᵀHe", square / float(e @ net.kernel(theta) @ e), 1, 1e-9)
    twice = float(net.gradient(theta).pow(2).sum())
    yield equal("DEQ: ‖∇𝓛‖², adjoint form ÷ closed form", twice / square, 1, 1e-9)


def _twins_at_the_start(trial):
    ball = lab.vanilla_ball(trial.seed, twins=True)  # the error (1, -1, 0) lies in the kernel of H
    yield _network_pl(ball, ball.network.start[None])


pl_star.breaks(
    "outside the ball: tanh is saturated, gradients vanish and the loss does not",
    part=_saturating_pl,
    times=40,
)
pl_star.breaks(
    "two inputs coincide while their labels differ: H is singular", part=_twins_at_the_start
)


# --- PL* in a ball suffices --------------------------------------------------------------------


def _descent_in_ball(
    name: str, path: lab.Path, kappa: float, step: float, *, room: float
) -> Iterator[Measurement]:
    clock = torch.arange(1, len(path.value), dtype=torch.float64)
    ratio = float((path.value[1:] / path.value[0] / (1 - kappa * step) ** clock).max())
    yield headline(at_most(f"{name}: max 𝓛_t ÷ (1-κη)ᵗ𝓛_0", ratio, room))
    reach = 2 * math.sqrt(2 * float(path.value[0]) / kappa)
    yield at_most(f"{name}: path length ÷ 2√(2𝓛_0/κ)", float(path.length[-1]) / reach, 1)


def _saturating_descent(trial, *, near=True):
    task = lab.saturating(trial.seed)
    kappa = task.loss().kappa
    need = 2 * float(task.y.norm()) / math.sqrt(kappa)
    yield given("2√(2𝓛_0/κ) ÷ radius on which κ holds, tanh(Φθ)", need / task.radius, "≤", ROUNDING)
    if not near:  # no θ reaches labels of size 3
        task = replace(task, y=3 * torch.sign(task.y))
    loss, start = task.loss(), torch.zeros(task.Phi.shape[1], dtype=torch.float64)
    step = 1 / loss.beta
    path = lab.descent(loss, start, step, lab.steps_for(1 - kappa * step, 1e-6))
    yield from _descent_in_ball("tanh(Φθ), descent", path, kappa, step, room=ROUNDING)


def _by_autograd(net: lab.Network) -> Measurement:
    """Compare the gradient that the runs follow with automatic differentiation, at the start."""
    J, e = net.jacobian(net.start), net.predict(net.start) - net.y
    g = net.gradient(net.start)
    return within("DEQ: ∇𝓛 by adjoints vs autograd", (g - J.mT @ e).norm() / g.norm(), 1e-9)


def _network_length(ball: lab.Ball, path: lab.Path) -> Measurement:
    reach = math.sqrt(2 * float(path.value[0]) / ball.kappa)
    return at_most("DEQ, flow: path length ÷ √(2𝓛_0/κ)", float(path.length[-1]) / reach, 1)


def _network_flow(trial, *, twins=False):
    ball = lab.vanilla_ball(trial.seed, twins=twins)
    times, path = lab.ball_flow(ball)
    decay = torch.exp(2 * ball.kappa * times[1:])
    ratio = float((path.value[1:] / path.value[0] * decay).max())
    yield headline(at_most("DEQ, flow: max 𝓛(t) ÷ e^{-2κt}𝓛_0", ratio, 1))
    yield _network_length(ball, path)


@claim(
    "nguyen2022.theorem2.6.3",
    "PL* on a ball of radius c√𝓛_0 suffices: descent and flow stay in it, at a linear rate",
    "thm-pl-star",
)
def pl_star_suffices(trial):
    yield from _saturating_descent(trial)
    ball = lab.vanilla_ball(trial.seed)
    net = ball.network
    need = math.sqrt(2 * float(net.value(net.start)) / ball.kappa)
    yield given("2√(2𝓛_0/κ) ÷ radius on which κ holds, DEQ", 2 * need / ball.radius, "≤", 1)
    yield _by_autograd(net)
    yield from _network_flow(trial)
    step = 0.5 / float(torch.linalg.eigvalsh(net.kernel(net.start))[-1])
    path = lab.descent(net, net.start, step, lab.steps_for(1 - ball.kappa * step, 1e-3))
    square = path.slope[:-1].pow(2)
    gains = (path.value[:-1] - path.value[1:]) / square
    half = float(gains[square > 1e-9 * square.max()].min()) / (step / 2)  # above rounding
    yield given("DEQ, descent: min (𝓛_t-𝓛_{t+1}) ÷ ½η‖∇𝓛_t‖²", half, "≥", 1)
    yield from _descent_in_ball("DEQ, descent", path, ball.kappa, step, room=1)


pl_star_suffices.breaks(
    "labels of size 3: PL fails long before the loss does",
    "tanh(Φθ), descent: max",
    part=_saturating_descent,
    near=False,
)
pl_star_suffices.breaks(
    "two inputs coincide while their labels differ: no κ > 0",
    "DEQ, flow: max",
    part=_network_flow,
    twins=True,
)


# --- path lengths ------------------------------------------------------------------------------

FLOW = "x² + 3sin²x: length of the flow ÷ √(2(𝓛_0-𝓛*)/κ)"
REGRESSION = "regression: length of descent ÷ √(2(𝓛_0-𝓛*)/κ), η = 1/β"
ROUND = "β‖θ‖²/2, η = 1.9/β: length of descent ÷ √(2𝓛_0/κ)"


def _flow_length(loss: lab.Loss, start: Tensor, end: float) -> float:
    path = lab.flow(loss, start, torch.linspace(0, end, 5, dtype=torch.float64))
    return float(path.length[-1]) / math.sqrt(2 * float(loss.gap(start)) / loss.kappa)


def _descent_length(loss: lab.Loss, start: Tensor, times: float, steps: int = 400) -> float:
    """Return the largest length ÷ √(2(𝓛_0-𝓛*)/κ) over the starts."""
    path = lab.descent(loss, start, times / loss.beta, steps)
    return float((path.length[-1] / (2 * loss.gap(start) / loss.kappa).sqrt()).max())


@claim(
    "nguyen2022.trajectory",
    "Under PL the flow is no longer than √(2𝓛_0/κ), descent than 1/(1-½βη) times that",
    "thm-path-length",
)
def path_lengths(trial):
    drawn = lab.sines(trial.seed)
    loss = replace(drawn, function=lambda t: drawn.function(t) - 100, least=-100.0)
    start = 3 * normal(10, 3, g=trial.g)
    yield _own_derivative(drawn, start)
    yield at_most(FLOW, _flow_length(loss, start[0], 6.0), ROUNDING)
    for times in (0.1, 1.0, 1.9):
        name = f"x² + 3sin²x: length of descent ÷ √(2(𝓛_0-𝓛*)/κ), η = {times:g}/β"
        yield at_most(name, _descent_length(loss, start, times), 1 / (1 - times / 2))
    task = lab.regression(trial.seed)
    along = task.labelled(task.spectrum[1][:, 0]).loss()
    value = _flow_length(along, torch.zeros(10, dtype=torch.float64), 15 / along.kappa)
    name = "regression, y = v_1: length of the flow ÷ √(2(𝓛_0-𝓛*)/κ)"
    yield equal(name, value, 1, 1e-6)
    starts = normal(20, 10, g=trial.g)
    yield at_most(REGRESSION, _descent_length(task.loss(), starts, 1.0, 1000), ROUNDING)
    # each step leaves 0.9 of the way: 1.9·(1 + 0.9 + 0.9² + …) = 19
    zigzag = _descent_length(lab.SQUARE, start, 1.9)
    yield at_most(ROUND, zigzag, 20)
    yield equal("the same, exactly", zigzag, 19, 1e-6)
    ball = lab.vanilla_ball(trial.seed)
    yield _network_length(ball, lab.ball_flow(ball)[1])
    yield _by_autograd(ball.network)


def _quartic_length(trial):
    yield at_most(FLOW, _flow_length(*lab.quartic(trial.g), 50.0), ROUNDING)


def _zigzag(trial):
    yield at_most(ROUND, _descent_length(lab.SQUARE, normal(5, 3, g=trial.g), 1.9), ROUNDING)


def _isotropic_regression(trial):
    Q = lab.frame(10, trial.g)[:6]
    loss, zero = lab.Regression(Q, Q.sum(1)).loss(), torch.zeros(10, dtype=torch.float64)
    yield at_most(REGRESSION, _descent_length(loss, zero, 1.9), ROUNDING)


path_lengths.breaks(
    "PL at the start only: x⁴, where f'²/2f = 8x² tends to 0",
    part=_quartic_length,
    shown={"x² + 3sin²x": "x⁴"},
)
path_lengths.breaks("the factor 1 of the flow claimed for descent with η = 1.9/β", part=_zigzag)
path_lengths.breaks(
    "least squares with the step 1.9/β: the factor 1 needs η ≤ 1/β",
    part=_isotropic_regression,
    shown={"η = 1/β": "η = 1.9/β"},
)

check = checks(claim)
