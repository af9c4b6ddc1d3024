r"""Chapter 3a, linear rates: thirteen claims on smoothness, PL, regression and prediction dynamics.

Two constants run through the page. A loss is β-smooth if its gradient is β-Lipschitz. It is κ-PL if
:math:`\|\nabla\mathcal L\|^2\ge2\kappa(\mathcal L-\mathcal L^*)`; with the factor 2 every
κ-strongly convex function is κ-PL. The source leaves it out, so its constant is our 2κ. Every
function below has its constants in closed form: no bound is compared with a fitted constant.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from deqbook.claims.registry import (
    Measurement,
    Trial,
    at_least,
    at_most,
    claim,
    equal,
    given,
    named,
    within,
)
from deqbook.implicit import IFT
from deqbook.kernels import Tangents, parts
from deqbook.linalg import operator_norm
from deqbook.models import MonDEQ, VanillaDEQ
from deqbook.models.closed_form import gradient
from deqbook.runtime import generator, normal, signs
from deqbook.solvers import Newton

CHAPTER = "03a_linear_rates"
ROUNDING = 1 + 1e-9  # room for rounding where a bound is attained exactly
TANH_CURVATURE = 4 / (3 * math.sqrt(3))  # max |tanh''|
SINE_KAPPA = 0.1755  # of x² + 3 sin²x: the least value of f'²/2f is 0.17553, at |x| = 2.2017

Function = Callable[[Tensor], Tensor]


# --- functions with known constants ------------------------------------------------------------


class Objective(Protocol):
    """What descent and flow need: a value and a gradient."""

    def value(self, theta: Tensor) -> Tensor:
        """Return 𝓛(θ)."""

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ∇𝓛(θ)."""


@dataclass(frozen=True)
class Loss:
    """A function of the last axis with its smoothness β, its PL constant κ and its minimum."""

    function: Function
    beta: float = math.nan
    kappa: float = math.nan
    least: float = 0.0
    derivative: Function | None = None

    def value(self, theta: Tensor) -> Tensor:
        """Return f(θ), one number per row."""
        return self.function(theta)

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ∇f, by automatic differentiation unless it is given."""
        if self.derivative is not None:
            return self.derivative(theta)
        return torch.func.grad(lambda t: self.function(t).sum())(theta)

    def hessian(self, theta: Tensor) -> Tensor:
        """Return ∇²f, one matrix per row."""
        return torch.func.vmap(torch.func.hessian(self.function))(theta)

    def gap(self, theta: Tensor) -> Tensor:
        """Return f(θ) - min f."""
        return self.value(theta) - self.least


def _frame(p: int, g: torch.Generator) -> Tensor:
    """Return a random orthogonal matrix."""
    return torch.linalg.qr(normal(p, p, g=g))[0]


def _log_cosh(t: Tensor) -> Tensor:
    return torch.logaddexp(t, -t) - math.log(2.0)


def waves(seed: int, p: int = 4) -> tuple[Loss, Tensor]:
    r"""Return :math:`\sum_jc_j\cos\langle q_j,\theta\rangle` with β = max|c_j|; and q_top."""
    g = generator(seed)
    Q, c = _frame(p, g), signs(p, g=g) * (0.5 + torch.rand(p, generator=g, dtype=torch.float64))
    top = int(c.abs().argmax())
    loss = Loss(
        lambda t: (c * torch.cos(t @ Q)).sum(-1), float(c.abs()[top]), least=-float(c.abs().sum())
    )
    return loss, Q[:, top]


def bowl(seed: int, *, strong: bool = True, p: int = 4) -> tuple[Loss, Tensor]:
    r"""Return :math:`\sum_j\tfrac12s_jt_j^2+c_j\log\cosh t_j`, :math:`t=Q^\top\theta`; and q_1.

    Convex with minimum 0 at 0, κ = min s_j = s_1 and β = max(s_j + c_j). Along q_1 it is the
    quadratic ½κt². Without the quadratic part (``strong=False``) it is convex, still β-smooth, and
    not strongly convex; κ then keeps the value that no longer holds.
    """
    g = generator(seed)
    Q, s = _frame(p, g), 0.3 + torch.linspace(0, 1, p, dtype=torch.float64)
    c = 0.2 + torch.rand(p, generator=g, dtype=torch.float64)
    kappa, beta = float(s[0]), float((s + c)[1:].max())
    if strong:
        c[0] = 0
    else:
        s = torch.zeros_like(s)

    def function(theta: Tensor) -> Tensor:
        t = theta @ Q
        return (0.5 * s * t**2 + c * _log_cosh(t)).sum(-1)

    return Loss(function, beta, kappa), Q[:, 0]


def sines(seed: int, p: int = 3) -> Loss:
    r"""Return :math:`\sum_jt_j^2+3\sin^2t_j`, t = Qᵀθ: PL and 8-smooth, not convex (f'' ≥ -4)."""
    Q = _frame(p, generator(seed))
    return Loss(
        lambda t: ((t @ Q) ** 2 + 3 * torch.sin(t @ Q) ** 2).sum(-1),
        8.0,
        SINE_KAPPA,
        derivative=lambda t: (2 * t @ Q + 3 * torch.sin(2 * t @ Q)) @ Q.mT,
    )


def quartic(g: torch.Generator) -> tuple[Loss, Tensor]:
    """Return x⁴ on [-1, 1] with β = 12, and a start x_0 near 1; κ = 8x_0² holds there only."""
    start = 1 - 0.05 * torch.rand(1, generator=g, dtype=torch.float64)
    return Loss(lambda t: t.pow(4).sum(-1), 12.0, 8 * float(start) ** 2), start


@dataclass(frozen=True)
class Regression:
    """The sum loss ½‖Φw - y‖² with more features than samples: PL with κ = λ_min(ΦΦᵀ)."""

    Phi: Tensor
    y: Tensor

    @cached_property
    def gram(self) -> Tensor:
        """Return G = ΦΦᵀ."""
        return self.Phi @ self.Phi.mT

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Return eigenvalues of G, ascending, and eigenvectors in columns."""
        values, vectors = torch.linalg.eigh(self.gram)
        return values, vectors

    @property
    def interpolant(self) -> Tensor:
        """Return Φ⁺y, the interpolant of least norm."""
        return self.Phi.mT @ torch.linalg.solve(self.gram, self.y)

    def labelled(self, y: Tensor) -> Regression:
        """Return the same features with other labels."""
        return Regression(self.Phi, y)

    def loss(self) -> Loss:
        """Return the loss with β = λ_max(G) and κ = λ_min(G)."""
        values = self.spectrum[0]
        return Loss(
            lambda w: 0.5 * (w @ self.Phi.mT - self.y).pow(2).sum(-1),
            float(values[-1]),
            float(values[0]),
            derivative=lambda w: (w @ self.Phi.mT - self.y) @ self.Phi,
        )


def regression(seed: int, n: int = 6, p: int = 10) -> Regression:
    """Return Gaussian features and labels."""
    g = generator(seed + 300)
    return Regression(normal(n, p, g=g), normal(n, g=g))


@dataclass(frozen=True)
class Saturating:
    r"""The loss ½‖tanh(Φθ) - y‖²: PL on balls around 0 only, with both constants certified.

    Rows of Φ have norm at most 1, so on :math:`\|\theta\|\le R` the slopes of tanh are at least
    :math:`\operatorname{sech}^2R` and :math:`\kappa=\sigma_{\min}(\Phi)^2\operatorname{sech}^4R`.
    The Hessian is :math:`J^\top J+\sum_ie_i\nabla^2F_i`, hence
    :math:`\beta=\|\Phi\|^2(1+\tfrac4{3\sqrt3}\max|e_i|)` with :math:`|e_i|\le\tanh R+|y_i|`.
    """

    Phi: Tensor
    y: Tensor
    radius: float

    def loss(self) -> Loss:
        """Return the loss with β and κ of the ball."""
        svals = torch.linalg.svdvals(self.Phi)
        kappa = float(svals[-1]) ** 2 / math.cosh(self.radius) ** 4
        error = math.tanh(self.radius) + float(self.y.abs().max())
        beta = float(svals[0]) ** 2 * (1 + TANH_CURVATURE * error)
        return Loss(
            lambda t: 0.5 * (torch.tanh(t @ self.Phi.mT) - self.y).pow(2).sum(-1), beta, kappa
        )


def saturating(seed: int, *, n: int = 3, p: int = 8, radius: float = 0.5) -> Saturating:
    """Return an instance whose labels are so small that the ball of Theorem 2.6.3 has that radius.

    From θ = 0 the loss is ½‖y‖², and the ball needs 2√(2𝓛₀/κ) = 2‖y‖/√κ.
    """
    g = generator(seed + 400)
    Phi, u = normal(n, p, g=g), normal(n, g=g)
    Phi = Phi / Phi.norm(dim=1).max()
    kappa = Saturating(Phi, torch.zeros(n, dtype=torch.float64), radius).loss().kappa
    return Saturating(Phi, u * (0.5 * radius * math.sqrt(kappa) / u.norm()), radius)


# --- paths -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """Points of a descent or a flow; values, gradient norms and path lengths at them."""

    theta: Tensor
    value: Tensor
    slope: Tensor
    length: Tensor


def descent(loss: Objective, start: Tensor, step: float, steps: int) -> Path:
    """Run θ ← θ - η∇𝓛(θ); ``start`` may hold several starts in rows."""
    thetas, slopes = [start], []
    for _ in range(steps):
        g = loss.gradient(thetas[-1])
        slopes.append(g.norm(dim=-1))
        thetas.append(thetas[-1] - step * g)
    theta = torch.stack(thetas)
    moved = torch.cumsum(step * torch.stack(slopes), dim=0)
    length = torch.cat([torch.zeros_like(moved[:1]), moved])
    value = torch.stack([loss.value(t) for t in thetas])
    slopes.append(loss.gradient(thetas[-1]).norm(dim=-1))
    return Path(theta, value, torch.stack(slopes), length)


def flow(loss: Objective, start: Tensor, times: Tensor, *, rtol: float = 1e-9) -> Path:
    """Integrate θ' = -∇𝓛(θ) together with the length of the path, ℓ' = ‖∇𝓛(θ)‖."""

    def field(_: float, s: np.ndarray) -> np.ndarray:
        g = loss.gradient(torch.from_numpy(s[:-1]))
        return np.append(-g.numpy(), float(g.norm()))

    first = np.append(start.numpy(), 0.0)
    span = (0.0, float(times[-1]))
    found = solve_ivp(field, span, first, "DOP853", times.numpy(), rtol=rtol, atol=1e-3 * rtol)
    states = torch.from_numpy(found.y.T.copy())
    theta = states[:, :-1]
    value = torch.stack([loss.value(t) for t in theta])
    slope = torch.stack([loss.gradient(t).norm() for t in theta])
    return Path(theta, value, slope, states[:, -1])


def steps_for(rate: float, factor: float, most: int = 2000) -> int:
    """Return how many steps of that rate give that factor."""
    return min(most, math.ceil(math.log(factor) / math.log(rate)))


# --- Lipschitz maps ----------------------------------------------------------------------------


def _lipschitz(f: Function, constant: float, x: Tensor, y: Tensor) -> Iterator[Measurement]:
    """Compare difference quotients and Jacobians with a constant."""
    quotient = (f(x) - f(y)).norm(dim=1) / (x - y).norm(dim=1)
    yield at_most("max ‖f(x)-f(y)‖ ÷ L_f‖x-y‖ over pairs", quotient.max() / constant, ROUNDING)
    J = torch.func.vmap(torch.func.jacrev(lambda t: f(t[None])[0]))(torch.cat([x, y]))
    norms = torch.linalg.matrix_norm(J, 2)
    yield at_most("max ‖Df(x)‖ ÷ L_f over points", norms.max() / constant, ROUNDING)


@claim(
    "nguyen2022.definition2.5.1",
    title="f is L_f-Lipschitz on a convex set if and only if ‖Df‖ ≤ L_f there",
    chapter=CHAPTER,
    ref="def-lipschitz",
)
def lipschitz_maps(trial: Trial) -> Iterable[Measurement]:
    """Take tanh(Mθ), whose constant is ‖M‖, attained at 0 along the top singular vector."""
    M, x, y = (normal(*shape, g=trial.g) for shape in ((5, 4), (200, 4), (200, 4)))
    constant = operator_norm(M)

    def f(t: Tensor) -> Tensor:
        return torch.tanh(t @ M.mT)

    yield from _lipschitz(f, constant, x, y)
    top = torch.linalg.svd(M).Vh[:1]
    tiny = f(1e-4 * top).norm() / 1e-4
    yield equal("largest quotient ÷ sup ‖Df‖ as x, y → 0", tiny / constant, 1, 1e-6)


@lipschitz_maps.control("the domain is not convex: the angle on a slit plane, where ‖Df‖ ≤ 1")
def slit_plane(trial: Trial) -> Iterable[Measurement]:
    """Two points on the two sides of the slit are near, their angles 2π apart."""
    r = 1 + torch.rand(50, generator=trial.g, dtype=torch.float64)
    x, y = (torch.stack([-r, side * 0.1 * r], dim=1) for side in (1, -1))
    found = _lipschitz(lambda t: torch.atan2(t[:, 1], t[:, 0])[:, None], 1.0, x, y)
    return named(found, "max ‖f(x)-f(y)‖")


@lipschitz_maps.control("a strongly convex loss, L_f read off on the unit ball: no L_f serves ℝᵖ")
def loss_is_not_lipschitz(trial: Trial) -> Iterable[Measurement]:
    """The gradient of a strongly convex loss grows without bound."""
    loss, _ = bowl(trial.seed)
    x, y = normal(50, 4, g=trial.g), normal(50, 4, g=trial.g)
    inside = loss.gradient(x / x.norm(dim=1, keepdim=True)).norm(dim=1).max()
    return list(_lipschitz(lambda t: loss.value(t)[:, None], float(inside), 100 * x, 100 * y))


# --- smoothness --------------------------------------------------------------------------------


def _forms(loss: Loss, x: Tensor, y: Tensor) -> dict[str, Tensor]:
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


def _smooth(loss: Loss, x: Tensor, y: Tensor) -> Iterator[Measurement]:
    for form, values in _forms(loss, x, y).items():
        yield at_most(f"max {form}", float(values.max()), ROUNDING)


def _cocoercive(loss: Loss, x: Tensor, y: Tensor, *, printed: bool = False) -> Measurement:
    """Compare ⟨∇f(x)-∇f(y), x-y⟩ with ‖∇f(x)-∇f(y)‖²/β: one is said to be larger."""
    change = loss.gradient(x) - loss.gradient(y)
    inner, square = (change * (x - y)).sum(1), change.pow(2).sum(1) / loss.beta
    ratio = square / inner if printed else inner / square
    name = "third form: min (side said to be larger) ÷ (other side)"
    return at_least(name, float(ratio.min()), 1 / ROUNDING)


@claim(
    "nguyen2022.definition2.5.2",
    title="Four forms of β-smoothness have one constant; convexity adds a fifth",
    chapter=CHAPTER,
    ref="def-smooth",
)
def smoothness(trial: Trial) -> Iterable[Measurement]:
    """Take a nonconvex sum of cosines with known β, then a convex function."""
    loss, top = waves(trial.seed)
    x, y = 3 * normal(200, 4, g=trial.g), 3 * normal(200, 4, g=trial.g)
    yield from _smooth(loss, x, y)
    # around 0 the curvature along q_top is ±β, so every form needs the whole of β
    sharp = torch.stack([1e-2 * top, 1e-3 * top])
    for form, values in _forms(loss, sharp, -sharp).items():
        yield equal(f"{form} where it is attained", float(values.max()), 1, 1e-4)
    yield _cocoercive(bowl(trial.seed)[0], x, y)


@smoothness.control("third form as printed, with ≤: ⟨∇f(x)-∇f(y), x-y⟩ ≤ ‖∇f(x)-∇f(y)‖²/β")
def reversed_form(trial: Trial) -> Iterable[Measurement]:
    """On a convex smooth function the inequality points the other way."""
    x, y = normal(200, 4, g=trial.g), normal(200, 4, g=trial.g)
    yield _cocoercive(bowl(trial.seed)[0], x, y, printed=True)


@smoothness.control("third form with ≥, but f is not convex")
def nonconvex_form(trial: Trial) -> Iterable[Measurement]:
    """The inner product is negative where f is concave."""
    x, y = normal(200, 4, g=trial.g), normal(200, 4, g=trial.g)
    yield _cocoercive(waves(trial.seed)[0], x, y)


@smoothness.control("the Hessian bounded from above only, ∇²f ⪯ βI, as printed")
def one_sided(trial: Trial) -> Iterable[Measurement]:
    """A concave quadratic satisfies it with any β > 0."""
    x, y = normal(200, 4, g=trial.g), normal(200, 4, g=trial.g)
    return list(_smooth(Loss(lambda t: -10 * t.pow(2).sum(-1), beta=1.0), x, y))


# --- descent and critical points ---------------------------------------------------------------


def _progress(loss: Loss, path: Path, step: float) -> tuple[float, float]:
    """Return the least decrease of a step ÷ (η/2)‖∇‖², and ÷ (η - ½βη²)‖∇‖²."""
    square = path.slope[:-1].pow(2)
    seen = square > 1e-6 * square.max()  # where rounding does not decide
    decrease = ((path.value[:-1] - path.value[1:]) / square)[seen]
    least = float(decrease.min())
    return least / (step / 2), least / (step - 0.5 * loss.beta * step**2)


HALF = "min (𝓛_t - 𝓛_{t+1}) ÷ ½η‖∇𝓛_t‖²"
EXACT = "min (𝓛_t - 𝓛_{t+1}) ÷ (η-½βη²)‖∇𝓛_t‖²"


@claim(
    "nguyen2022.proposition2",
    title="A step η ≤ 1/β lowers the loss by at least ½η‖∇𝓛‖²",
    chapter=CHAPTER,
    ref="prop-descent",
)
def descent_property(trial: Trial) -> Iterable[Measurement]:
    """Descend on nonconvex functions with steps up to 2/β, then where the bound is attained."""
    loss, _ = waves(trial.seed)
    start = 3 * normal(20, 4, g=trial.g)
    for part in (0.1, 0.5, 1.0):
        step = part / loss.beta
        half, exact = _progress(loss, descent(loss, start, step, 30), step)
        yield at_least(f"{HALF}, η = {part:g}/β", half, 1 / ROUNDING)
        yield at_least(f"{EXACT}, η = {part:g}/β", exact, 1 / ROUNDING)
    step = 1.5 / loss.beta
    exact = _progress(loss, descent(loss, start, step, 30), step)[1]
    yield at_least(f"{EXACT}, η = 1.5/β", exact, 1 / ROUNDING)
    square = Loss(lambda t: t.pow(2).sum(-1), beta=2.0)
    half = _progress(square, descent(square, start, 0.5, 1), 0.5)[0]
    yield equal("the same on β‖θ‖²/2 with η = 1/β", half, 1, 1e-12)


def _along_top(seed: int, part: float) -> tuple[float, float]:
    """Return the progress on ½β‖θ‖², the function with the most curvature allowed."""
    loss = Loss(lambda t: t.pow(2).sum(-1), beta=2.0)
    start = normal(5, 4, g=generator(seed))
    return _progress(loss, descent(loss, start, part / 2, 5), part / 2)


@descent_property.control("η = 1.5/β: the loss falls, but by less than half")
def step_above(trial: Trial) -> Iterable[Measurement]:
    """On β‖θ‖²/2 the decrease is a quarter of η‖∇𝓛‖²."""
    yield at_least(f"{HALF}, η = 1/β", _along_top(trial.seed, 1.5)[0], 1 / ROUNDING)


@descent_property.control("η = 3/β: the loss rises")
def step_far_above(trial: Trial) -> Iterable[Measurement]:
    """Beyond 2/β nothing is promised, and β‖θ‖²/2 shows why."""
    yield at_least(f"{HALF}, η = 1/β", _along_top(trial.seed, 3.0)[0], 1 / ROUNDING)


def huber(width: float) -> Loss:
    """Return ½t² for |t| ≤ width and a straight line beyond, summed: 1-smooth, minimum 0."""

    def function(t: Tensor) -> Tensor:
        size = t.abs()
        return torch.where(size <= width, 0.5 * t**2, width * (size - width / 2)).sum(-1)

    return Loss(function, beta=1.0)


def _critical(
    name: str, loss: Loss, start: Tensor, eps: float, *, part: float = 1.0
) -> Iterator[Measurement]:
    """Count the steps to ‖∇𝓛‖ ≤ ε, against 2β(𝓛_0 - 𝓛*)/ε², for the worst of the starts."""
    path = descent(loss, start, part / loss.beta, 200)
    bound = 2 * loss.beta * loss.gap(start)
    hit = path.slope <= eps
    first = torch.where(hit.any(0), hit.double().argmax(0).double(), math.inf)
    worst = float((first / bound * eps**2).max())
    yield at_most(f"{name}: steps to ‖∇𝓛‖ ≤ ε ÷ 2β(𝓛_0-𝓛*)/ε²", worst, 1)
    total = path.slope.pow(2).sum(0)
    yield at_most(f"{name}: Σ‖∇𝓛_t‖² ÷ 2β(𝓛_0-𝓛*)", float((total / bound).max()), ROUNDING)


def _slope_start(seed: int) -> tuple[Loss, Tensor, float]:
    """Return a function that keeps its slope for a hundred steps, and ε just below the slope."""
    width = 0.5 + 0.1 * seed
    start = torch.tensor([[100 * width]], dtype=torch.float64)
    return huber(width), start, 0.99 * width


@claim(
    "nguyen2022.theorem2.5.1",
    title="Step 1/β finds ‖∇𝓛‖ ≤ ε within 2β(𝓛_0-𝓛*)/ε² steps",
    chapter=CHAPTER,
    ref="thm-critical",
)
def critical_points(trial: Trial) -> Iterable[Measurement]:
    """Count steps on sums of cosines, on a long slope (half the bound), and sum the squares."""
    loss, _ = waves(trial.seed)
    start = 3 * normal(20, 4, g=trial.g)
    yield from _critical("waves", loss, start, 0.05)
    loss, start, eps = _slope_start(trial.seed)
    yield from _critical("slope", loss, start, eps)
    square = Loss(lambda t: t.pow(2).sum(-1), beta=2.0)
    path = descent(square, start, 0.5, 3)
    total = float(path.slope.pow(2).sum() / (2 * square.beta * square.value(start)).sum())
    yield equal("Σ‖∇𝓛_t‖² ÷ 2β(𝓛_0-𝓛*) on β‖θ‖²/2", total, 1, 1e-12)


@critical_points.control("step 2.5/β instead of 1/β")
def never_critical(trial: Trial) -> Iterable[Measurement]:
    """The iteration overshoots for ever and no point is critical."""
    loss, _ = waves(trial.seed)
    return list(_critical("waves", loss, 3 * normal(20, 4, g=trial.g), 0.05, part=2.5))


@critical_points.control("the minimiser θ* subtracted in place of the minimum 𝓛*, as printed")
def minimiser_subtracted(trial: Trial) -> Iterable[Measurement]:
    """Move the minimum along the axis: the descent is the same, the printed number shrinks."""
    loss, start, eps = _slope_start(trial.seed)
    shift = 0.8 * float(loss.value(start))
    moved = Loss(lambda t: loss.function(t - shift), loss.beta, least=shift)
    return list(_critical("slope", moved, start + shift, eps))


# --- strong convexity --------------------------------------------------------------------------


def _points(g: torch.Generator, p: int = 4) -> Tensor:
    """Return points at distances from 0.01 to 100."""
    x = normal(200, p, g=g)
    radius = torch.logspace(-2, 2, 200, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True) * radius[:, None]


def _sandwich(loss: Loss, x: Tensor) -> Iterator[Measurement]:
    """Compare f - f* with both sides of the lemma; the minimiser is 0."""
    upper = loss.gradient(x).pow(2).sum(1) / (2 * loss.kappa)
    lower = 0.5 * loss.kappa * x.pow(2).sum(1)
    gap = loss.gap(x)
    yield at_least("min ‖∇f‖²/2κ ÷ (f-f*)", float((upper / gap).min()), 1 / ROUNDING)
    yield at_least("min (f-f*) ÷ ½κ‖θ-θ*‖²", float((gap / lower).min()), 1 / ROUNDING)


@claim(
    "nguyen2022.lemma2.5.2",
    title="Strong convexity: ‖∇f‖²/2κ ≥ f-f* ≥ ½κ‖θ-θ*‖²",
    chapter=CHAPTER,
    ref="lem-strong-convexity",
)
def strong_convexity(trial: Trial) -> Iterable[Measurement]:
    """Take ½Σs_jt_j² + Σc_j log cosh t_j, which is not quadratic; κ = min s_j."""
    loss, bottom = bowl(trial.seed)
    x = torch.cat([_points(trial.g), bottom[None]])
    yield from _sandwich(loss, x)
    ratio = float(loss.gap(bottom)) / (0.5 * loss.kappa)
    yield equal("(f-f*) ÷ ½κ‖θ-θ*‖² along q_1", ratio, 1, 1e-9)


@strong_convexity.control("convex, but not strongly: the quadratic part removed")
def merely_convex(trial: Trial) -> Iterable[Measurement]:
    """Far out the function grows like ‖θ‖, its gradient not at all."""
    return list(_sandwich(bowl(trial.seed, strong=False)[0], _points(trial.g)))


@strong_convexity.control("κ overstated by a tenth")
def overstated(trial: Trial) -> Iterable[Measurement]:
    """Along q_1 both inequalities are equalities, so there is no room."""
    loss, bottom = bowl(trial.seed)
    stated = Loss(loss.function, loss.beta, 1.1 * loss.kappa)
    return list(_sandwich(stated, bottom[None]))


def _rate(
    name: str, loss: Loss, start: Tensor, *, claimed: float, part: float = 1.0
) -> Iterator[Measurement]:
    """Compare 𝓛_t - 𝓛* under the step part/β with the claimed factor per step."""
    steps = steps_for(claimed, 1e-10)
    path = descent(loss, start, part / loss.beta, steps)
    gap = path.value - loss.least
    clock = torch.arange(1, steps + 1, dtype=torch.float64).reshape(-1, *[1] * (gap.ndim - 1))
    worst = float((gap[1:] / gap[0] / claimed**clock).max())
    yield at_most(f"{name}: max (𝓛_t-𝓛*) ÷ (1-κ/β)ᵗ(𝓛_0-𝓛*)", worst, ROUNDING)
    done = gap <= 1e-6 * gap[0]
    first = torch.where(done.any(0), done.double().argmax(0).double(), math.inf).max()
    count = math.log(1e6) / -math.log(claimed)
    name = f"{name}: steps to 10⁻⁶(𝓛_0-𝓛*) ÷ ⌈log 10⁶ ÷ -log(1-κ/β)⌉"
    yield at_most(name, float(first) / math.ceil(count), 1)


@claim(
    "nguyen2022.theorem2.5.3",
    title="κ-strongly convex, step 1/β: 𝓛_t-𝓛* ≤ (1-κ/β)ᵗ(𝓛_0-𝓛*)",
    chapter=CHAPTER,
    ref="thm-strong-rate",
)
def strong_rate(trial: Trial) -> Iterable[Measurement]:
    """Descend on a strongly convex function that is not quadratic, from twenty starts."""
    loss, bottom = bowl(trial.seed)
    start = torch.cat([5 * normal(20, 4, g=trial.g), bottom[None]])
    yield from _rate("bowl", loss, start, claimed=1 - loss.kappa / loss.beta)
    # the quadratic direction of least curvature: the best possible rate is the square
    step = descent(loss, bottom, 1 / loss.beta, 5).value
    ratio = float(step[5] / step[4]) / (1 - loss.kappa / loss.beta) ** 2
    yield equal("𝓛_{t+1} ÷ 𝓛_t along q_1, over (1-κ/β)²", ratio, 1, 1e-9)


@strong_rate.control("convex, but not strongly: the quadratic part removed")
def convex_rate(trial: Trial) -> Iterable[Measurement]:
    """Far out the gradient is bounded, and the way to the minimum is long."""
    loss, _ = bowl(trial.seed, strong=False)
    start = 100 * normal(3, 4, g=trial.g)
    return list(_rate("bowl", loss, start, claimed=1 - loss.kappa / loss.beta))


@strong_rate.control("step 3/β instead of 1/β")
def long_step(trial: Trial) -> Iterable[Measurement]:
    """The directions of large curvature oscillate."""
    loss, _ = bowl(trial.seed)
    start = 5 * normal(20, 4, g=trial.g)
    return list(_rate("bowl", loss, start, claimed=1 - loss.kappa / loss.beta, part=3.0))


# --- the Polyak-Łojasiewicz condition ----------------------------------------------------------


def _pl(name: str, loss: Loss, x: Tensor) -> Measurement:
    """Return the least ‖∇𝓛‖² ÷ 2κ(𝓛-𝓛*) over points."""
    ratio = loss.gradient(x).pow(2).sum(-1) / (2 * loss.kappa * loss.gap(x))
    return at_least(f"{name}: min ‖∇𝓛‖² ÷ 2κ(𝓛-𝓛*)", float(ratio.min()), 1 / ROUNDING)


def _stationary(loss: Loss) -> Measurement:
    """Count the sign changes of f' of a function of one variable on [-20, 20]."""
    x = torch.linspace(-20, 20, 40_000, dtype=torch.float64)[:, None]
    sign = torch.sign(loss.gradient(x)[:, 0])
    return equal("one variable: zeros of f'", float((sign[1:] != sign[:-1]).sum()), 1, 0)


def one_sine(amplitude: float = 3.0) -> Loss:
    """Return x² + c sin²x; for c = 3 it is PL, for c = 10 it has local minima."""
    return Loss(
        lambda t: (t**2 + amplitude * torch.sin(t) ** 2).sum(-1), 2 + 2 * amplitude, SINE_KAPPA
    )


@claim(
    "nguyen2022.definition2.5.3",
    title="PL: ‖∇𝓛‖² ≥ 2κ(𝓛-𝓛*), without convexity and without a unique minimiser",
    chapter=CHAPTER,
    ref="def-pl",
)
def polyak_lojasiewicz(trial: Trial) -> Iterable[Measurement]:
    """Check x² + 3sin²x and least squares with n < p; both are PL, neither strongly convex."""
    one, x = one_sine(), torch.linspace(-20, 20, 40_000, dtype=torch.float64)[:, None]
    yield _pl("x² + 3sin²x", one, x)
    yield _stationary(one)
    yield equal("x² + 3sin²x: min f''", float(one.hessian(x).min()), -4, 1e-4)
    yield _pl("three variables", sines(trial.seed), _points(trial.g, 3))
    task = regression(trial.seed)
    loss, w = task.loss(), 3 * normal(200, 10, g=trial.g)
    yield _pl("regression", loss, w)
    bottom = task.interpolant + task.Phi.mT @ task.spectrum[1][:, 0]
    ratio = float(loss.gradient(bottom).pow(2).sum() / (2 * loss.kappa * loss.value(bottom)))
    yield equal("regression, error along v_1: ‖∇𝓛‖² ÷ 2κ𝓛", ratio, 1, 1e-9)
    # PL implies quadratic growth away from the *set* of minimisers, here Φ⁺y + ker Φ
    distance = (torch.linalg.pinv(task.Phi) @ (w @ task.Phi.mT - task.y).mT).norm(dim=0)
    growth = loss.value(w) / (0.5 * loss.kappa * distance**2)
    yield at_least("regression: min 𝓛 ÷ ½κ dist(w, argmin)²", growth.min(), 1 / ROUNDING)


@polyak_lojasiewicz.control("x² + 10sin²x: local minima, where the gradient vanishes and 𝓛 > 𝓛*")
def local_minima(trial: Trial) -> Iterable[Measurement]:
    """PL excludes every stationary point that is not a global minimum."""
    one = one_sine(10.0)
    x = torch.linspace(-20, 20, 40_000, dtype=torch.float64)[:, None]
    yield _pl("x² + 3sin²x", one, x)
    yield _stationary(one)


@polyak_lojasiewicz.control("more samples than features: the infimum is not 0")
def no_interpolation(trial: Trial) -> Iterable[Measurement]:
    """Without interpolation 𝓛* > 0, and the form with 𝓛 in place of 𝓛 - 𝓛* fails."""
    g = generator(trial.seed + 300)
    task = Regression(normal(10, 6, g=g), normal(10, g=g))
    best = torch.linalg.lstsq(task.Phi, task.y[:, None]).solution[:, 0]
    kappa = float(torch.linalg.svdvals(task.Phi)[-1]) ** 2
    yield _pl(
        "regression", Loss(task.loss().function, kappa=kappa), best + 0.1 * normal(50, 6, g=g)
    )


def _pl_rates(seed: int, claimed: Callable[[Loss], float]) -> Iterator[Measurement]:
    """Run two examples under step 1/β with a claimed factor per step."""
    task = regression(seed)
    along = task.labelled(task.spectrum[1][:, 0]).loss()
    zero = torch.zeros(10, dtype=torch.float64)
    plane = Loss(lambda t: 0.5 * (t[..., 0] ** 2 + 0.2 * t[..., 1] ** 2), 1.0, 0.2)
    start = torch.tensor([0.0, 1.0], dtype=torch.float64)
    yield from _rate("½(x²+0.2y²)", plane, start, claimed=claimed(plane))
    yield from _rate("regression, y = v_1", along, zero, claimed=claimed(along))


@claim(
    "nguyen2022.theorem2.5.4",
    title="κ-PL, step 1/β: 𝓛_t-𝓛* ≤ (1-κ/β)ᵗ(𝓛_0-𝓛*)",
    chapter=CHAPTER,
    ref="thm-pl-rate",
)
def pl_rate(trial: Trial) -> Iterable[Measurement]:
    """Descend on x² + 3sin²x in three rotated variables, and where the printed rate is broken."""
    loss = sines(trial.seed)
    start = 3 * normal(20, 3, g=trial.g)
    yield from _rate("x² + 3sin²x", loss, start, claimed=1 - loss.kappa / loss.beta)
    yield from _pl_rates(trial.seed, lambda f: 1 - f.kappa / f.beta)


@pl_rate.control("the factor as printed: μ/β with ‖∇𝓛‖² ≥ μ𝓛, that is 1-2κ/β")
def printed_rate(trial: Trial) -> Iterable[Measurement]:
    """In the direction of least curvature the factor is (1-κ/β)² = 1-2κ/β+(κ/β)²."""
    return list(_pl_rates(trial.seed, lambda f: 1 - 2 * f.kappa / f.beta))


@pl_rate.control("PL at the start only: x⁴, where f'²/2f = 8x² tends to 0")
def flat_bottom(trial: Trial) -> Iterable[Measurement]:
    """Towards the minimum the gradient dies faster than the loss; the rate is no longer linear."""
    loss, start = quartic(trial.g)
    return list(_rate("x² + 3sin²x", loss, start, claimed=1 - loss.kappa / loss.beta))


# --- linear regression -------------------------------------------------------------------------


@dataclass(frozen=True)
class Formula:
    """What the error after k steps is said to be: -Σ(1-ηsλ_i)ᵏ⟨v_i,y⟩v_i with a factor s."""

    scale: float = 1.0
    with_step: bool = True


def _dynamics(
    seed: int, *, mean: bool = False, formula: Formula | None = None
) -> Iterator[Measurement]:
    """Compare descent from 0 on the sum loss (or the mean loss) with the closed form."""
    task = regression(seed)
    formula = formula or Formula(1 / len(task.y) if mean else 1.0)
    values, vectors = task.spectrum
    weight = 1 / len(task.y) if mean else 1.0
    step = 0.5 / float(values[-1]) / weight
    loss = Loss(lambda w: weight * task.loss().function(w))
    path = descent(loss, torch.zeros(10, dtype=torch.float64), step, 60)
    error = path.theta @ task.Phi.mT - task.y
    k = torch.arange(61, dtype=torch.float64)[:, None]
    factor = (1 - (step if formula.with_step else 1.0) * formula.scale * values) ** k
    weights = factor * (vectors.mT @ task.y)
    kind = "mean loss" if mean else "sum loss"
    size = task.y.norm()
    yield within(
        f"{kind}: max_k ‖(ŷ_k-y) + Σ(1-ηλ_i)ᵏ⟨v_i,y⟩v_i‖ ÷ ‖y‖",
        (error + weights @ vectors.mT).norm(dim=1).max() / size,
        1e-12,
    )
    yield within(
        f"{kind}: max_k |‖ŷ_k-y‖ - √Σ(1-ηλ_i)²ᵏ⟨v_i,y⟩²| ÷ ‖y‖",
        (error.norm(dim=1) - weights.norm(dim=1)).abs().max() / size,
        1e-12,
    )


def _limit(task: Regression, start: Tensor, part: float = 0.5) -> Tensor:
    """Return where descent with step part/λ_max ends, after (1-ηλ_min)ᵏ has reached 10⁻¹⁴."""
    values = task.spectrum[0]
    step = part / float(values[-1])
    Phi, y, w = task.Phi.numpy(), task.y.numpy(), start.numpy()
    for _ in range(steps_for(1 - 0.5 * float(values[0] / values[-1]), 1e-14, most=50_000)):
        w = w - step * ((Phi @ w - y) @ Phi)
    return torch.from_numpy(w)


MINIMUM_NORM = "‖w_∞ - Φ⁺y‖ ÷ ‖Φ⁺y‖"


def _least_norm(task: Regression, start: Tensor, part: float = 0.5) -> Measurement:
    away = (_limit(task, start, part) - task.interpolant).norm() / task.interpolant.norm()
    return within(MINIMUM_NORM, away, 1e-9)


def _steps(task: Regression, index: int) -> Measurement:
    """Count the steps to ‖ŷ_k-y‖ ≤ 10⁻³‖y‖ when the label is one eigenvector."""
    values, vectors = task.spectrum
    step = 0.5 / float(values[-1])
    predicted = math.ceil(math.log(1e-3) / math.log(1 - step * float(values[index])))
    loss, zero = task.labelled(vectors[:, index]).loss(), torch.zeros(10, dtype=torch.float64)
    path = descent(loss, zero, step, predicted + 5)
    count = int((path.value <= 0.5e-6).double().argmax())
    which = "v_min" if index == 0 else "v_max"
    return equal(
        f"y = {which}: steps to ‖ŷ-y‖ ≤ 10⁻³‖y‖, minus ⌈predicted⌉", count - predicted, 0, 0
    )


@claim(
    "nguyen2022.section2.6",
    title="Least squares from w = 0: ŷ_k - y = -Σ(1-ηλ_i)ᵏ⟨v_i,y⟩v_i, limit of least norm",
    chapter=CHAPTER,
    ref="thm-regression",
)
def regression_dynamics(trial: Trial) -> Iterable[Measurement]:
    """Run descent with six samples and ten features; G = ΦΦᵀ has eigenpairs (λ_i, v_i)."""
    yield from _dynamics(trial.seed)
    yield from _dynamics(trial.seed, mean=True)
    task, zero = regression(trial.seed), torch.zeros(10, dtype=torch.float64)
    yield _least_norm(task, zero)
    start = normal(10, g=trial.g)
    kernel = start - torch.linalg.pinv(task.Phi) @ (task.Phi @ start)
    away = (_limit(task, start) - task.interpolant).norm()
    yield equal("w_0 ≠ 0: ‖w_∞ - Φ⁺y‖ ÷ ‖P_ker w_0‖", away / kernel.norm(), 1, 1e-9)
    yield _steps(task, 0)
    yield _steps(task, -1)


@regression_dynamics.control("the mean loss, but the update without 1/n, as printed")
def without_mean(trial: Trial) -> Iterable[Measurement]:
    """The printed closed form then runs n times too fast."""
    return list(_dynamics(trial.seed, mean=True, formula=Formula(1.0)))


@regression_dynamics.control("(I - G)ᵏ, without the step η, as printed in one line")
def without_step(trial: Trial) -> Iterable[Measurement]:
    """Eigenvalues above 2 make it explode."""
    return list(_dynamics(trial.seed, formula=Formula(with_step=False)))


@regression_dynamics.control("w_0 ≠ 0: the part of w_0 in ker Φ never moves")
def other_start(trial: Trial) -> Iterable[Measurement]:
    """Descent moves in the row space of Φ only."""
    yield _least_norm(regression(trial.seed), normal(10, g=trial.g))


@regression_dynamics.control("η = 2.1/λ_max")
def too_fast(trial: Trial) -> Iterable[Measurement]:
    """The top direction grows by 1.1 each step."""
    yield _least_norm(regression(trial.seed), torch.zeros(10, dtype=torch.float64), 2.1)


# --- networks ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A small equilibrium model with tanh on a sample, as a function of one parameter vector.

    The states are found here by Newton's method on dense matrices: the flow asks for thousands of
    them, exact to rounding. What the package computes is compared with this at single points.
    """

    model: MonDEQ | VanillaDEQ
    X: Tensor
    y: Tensor

    @property
    def start(self) -> Tensor:
        """Return the parameters as drawn."""
        return parameters_to_vector(self.model.parameters()).detach().clone()

    def at(self, theta: Tensor) -> MonDEQ | VanillaDEQ:
        """Return the model with other parameters."""
        other = copy.deepcopy(self.model)
        vector_to_parameters(theta.clone(), other.parameters())
        return other

    def solve(self, model: MonDEQ | VanillaDEQ) -> Tangents:
        """Return the equilibria z = tanh(Wz+Ux) and the adjoints v = D(I-WᵀD)⁻¹a, in rows."""
        with torch.no_grad():
            W, q = model.matrix(), model.inject(self.X)
            eye, z = torch.eye(model.m, dtype=W.dtype), torch.zeros_like(q)
            for _ in range(60):
                s = torch.tanh(z @ W.mT + q)
                D = (1 - s**2)[:, :, None]
                gap = s - z
                if float(gap.abs().max()) < 1e-14:
                    v = D * torch.linalg.solve(eye - W.mT * D.mT, model.a[:, None])
                    return Tangents(self.X, q, z, v[..., 0])
                z = z + torch.linalg.solve(eye - D * W, gap[..., None])[..., 0]
        raise RuntimeError("Newton's method did not settle in 60 steps.")

    def predict(self, theta: Tensor) -> Tensor:
        """Return ŷ."""
        model = self.at(theta)
        found = self.solve(model)
        return model.readout(found.z, found.q).detach()

    def value(self, theta: Tensor) -> Tensor:
        """Return 𝓛 = ½‖ŷ-y‖²."""
        return 0.5 * (self.predict(theta) - self.y).pow(2).sum()

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ∇𝓛, the derivative of Σe_i(⟨v_i, Wz_i+Ux_i⟩+⟨a, z_i⟩) with e, v, z held."""
        model = self.at(theta)
        now = self.solve(model)
        e = (model.readout(now.z, now.q) - self.y).detach()
        pre = now.z @ model.matrix().mT + model.inject(self.X)
        held = (e[:, None] * now.v * pre).sum() + (e * (now.z @ model.a)).sum()
        grads = torch.autograd.grad(held, list(model.parameters()))
        return torch.cat([g.flatten() for g in grads])

    def jacobian(self, theta: Tensor) -> Tensor:
        """Return ∂ŷ/∂θ by automatic differentiation through the package, one row per sample."""
        model = self.at(theta)
        weights = list(model.parameters())
        adjoint = IFT(solver=Newton(), tol=1e-13)
        output = model(self.X, solver=Newton(), adjoint=adjoint, tol=1e-13)
        rows = [torch.autograd.grad(o, weights, retain_graph=True) for o in output]
        return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])

    def kernel(self, theta: Tensor) -> Tensor:
        """Return the tangent kernel H = (∂ŷ/∂θ)(∂ŷ/∂θ)ᵀ in the closed form of the package."""
        model = self.at(theta)
        now = self.solve(model)
        return torch.stack(list(parts(model, now, now).values())).sum(dim=0)


def monotone_network(seed: int) -> Network:
    """Return a smooth monotone DEQ (tanh) of width 8 on four samples."""
    drawn, g = MonDEQ.init(8, 3, mu=0.5, seed=seed), generator(seed + 500)
    model = MonDEQ(drawn.A, drawn.B, drawn.U, drawn.a, 0.5, sigma="tanh")
    return Network(model, normal(4, 3, g=g), normal(4, g=g))


@dataclass(frozen=True)
class Ball:
    r"""A ball around the initial parameters of a vanilla DEQ on which PL is certified.

    In the ball :math:`\|Z-Z_0\|\le\frac{\|[Z_0\,X]\|R}{1-\|W_0\|-R}` if σ is 1-Lipschitz.
    The kernel contains :math:`ZZ^\top`, so :math:`\lambda_{\min}(H)\ge\kappa` with
    :math:`\sqrt\kappa=\sigma_{\min}(Z_0)-\frac{\|[Z_0\,X]\|R}{1-\|W_0\|-R}`.
    """

    network: Network
    radius: float
    kappa: float


def vanilla_ball(seed: int, *, twins: bool = False) -> Ball:
    """Return a tanh DEQ with labels so near its predictions that training stays in the ball.

    The radius spends half of σ_min(Z_0), and 2‖e_0‖ = 0.9 R√κ. With ``twins`` the first two inputs
    coincide and the error separates them, with the same R, κ and ‖e_0‖ as before.
    """
    drawn, g = VanillaDEQ.init(12, 6, variance=0.02, seed=seed), generator(seed + 600)
    model = VanillaDEQ(drawn.W, drawn.U, drawn.a, sigma="tanh")
    X, u = normal(3, 6, g=g), normal(3, g=g)
    Z = model.solve(X, solver=Newton(), tol=1e-13).z
    norm, reach = operator_norm(model.W.detach()), operator_norm(torch.cat([Z, X], dim=1))
    half = float(torch.linalg.svdvals(Z)[-1]) / 2
    radius = half * (1 - norm) / (reach + half)
    error = 0.45 * radius * half * u / u.norm()
    if twins:
        X = torch.cat([X[:1], X[:1], X[2:]])
        error = 0.45 * radius * half * torch.tensor([1.0, -1.0, 0.0]).double() / math.sqrt(2)
    network = Network(model, X, error)
    y = network.predict(network.start) - error
    return Ball(Network(model, X, y), radius, half**2)


def _evolution(
    seed: int, *, weight: float = 1.0, claimed: float = 1.0, moving: bool = True
) -> Iterator[Measurement]:
    """Follow θ' = -w∇𝓛 and ask whether ŷ' = -cH(ŷ-y), for one short step and for a whole path."""
    net = monotone_network(seed)
    theta, n = net.start, len(net.y)
    H, e, g = net.kernel(theta), net.predict(theta) - net.y, net.gradient(theta)
    J = net.jacobian(theta)
    yield within("H: closed form vs autograd", (H - J @ J.mT).norm() / H.norm(), 1e-9)
    yield within("∇𝓛: adjoint form vs autograd", (g - J.mT @ e).norm() / g.norm(), 1e-9)
    target, top = -claimed * H @ e, float(torch.linalg.eigvalsh(H)[-1])
    size = []
    for h in (1e-3 / top / 2**k for k in range(4)):
        slope = (net.predict(theta - h * weight * g) - net.y - e) / h
        size.append(float((slope - target).norm() / target.norm()))
    order = math.log2(size[0] / size[-1]) / 3
    yield equal("order in η of ‖(ŷ(θ-η∇𝓛)-ŷ)/η + H(ŷ-y)‖", order, 1, 0.05)
    first, end = net.predict(theta).numpy(), 1.0 / top

    def field(_: float, s: np.ndarray) -> np.ndarray:
        now = torch.from_numpy(s[n:])
        K = net.kernel(now) if moving else H
        moves = -claimed * (K.numpy() @ (s[:n] - net.y.numpy()))
        return np.append(moves, -weight * net.gradient(now).numpy())

    state = np.append(first, theta.numpy())
    found = solve_ivp(field, (0.0, end), state, "DOP853", rtol=1e-8, atol=1e-10).y[:, -1]
    away = net.predict(torch.from_numpy(found[n:])) - torch.from_numpy(found[:n])
    moved = np.linalg.norm(found[:n] - first)
    yield within("flow: ‖ŷ(t) - solution of ŷ' = -H(t)(ŷ-y)‖ ÷ path", away.norm() / moved, 1e-6)


@claim(
    "nguyen2022.lemma2.6.2",
    title="Under the flow of ½‖ŷ-y‖² the predictions obey ŷ' = -H(t)(ŷ-y)",
    chapter=CHAPTER,
    ref="lem-prediction-dynamics",
)
def prediction_dynamics(trial: Trial) -> Iterable[Measurement]:
    """Follow a monotone DEQ: kernel and gradient in closed form, Jacobian by autograd."""
    return _evolution(trial.seed)


@prediction_dynamics.control("the mean loss, but no factor 1/n in ŷ', as printed")
def missing_mean(trial: Trial) -> Iterable[Measurement]:
    """With n = 4 samples the predictions move four times more slowly than said."""
    return named(_evolution(trial.seed, weight=0.25), "order", "flow")


@prediction_dynamics.control("the sign of the flow: θ' = +∇𝓛, as printed before the lemma")
def wrong_sign(trial: Trial) -> Iterable[Measurement]:
    """The predictions then run away from the labels."""
    return named(_evolution(trial.seed, weight=-1.0), "order", "flow")


@prediction_dynamics.control("the kernel frozen at its initial value")
def frozen_kernel(trial: Trial) -> Iterable[Measurement]:
    """At this width the kernel moves, and a linear equation for ŷ is not enough."""
    return named(_evolution(trial.seed, moving=False), "flow")


# --- PL* ---------------------------------------------------------------------------------------


def _in_ball(centre: Tensor, radius: float, count: int, g: torch.Generator) -> Tensor:
    """Return points on and in a sphere: half of them on the surface."""
    x = normal(count, len(centre), g=g)
    share = torch.rand(count, 1, generator=g, dtype=torch.float64)
    share[::2] = 1
    return centre + radius * share * x / x.norm(dim=1, keepdim=True)


NETWORK_PL = "DEQ: min ‖∇𝓛‖² ÷ 2κ𝓛 on the ball"


def _network_pl(ball: Ball, points: Tensor) -> Measurement:
    net = ball.network
    ratio = [net.gradient(t).pow(2).sum() / (2 * ball.kappa * net.value(t)) for t in points]
    return at_least(NETWORK_PL, float(torch.stack(ratio).min()), 1)


@claim(
    "nguyen2022.definition2.6.1",
    title="PL*: ‖∇𝓛‖² ≥ 2κ𝓛 on a ball; for networks κ = min λ_min(H) serves",
    chapter=CHAPTER,
    ref="def-pl-star",
)
def pl_star(trial: Trial) -> Iterable[Measurement]:
    """Sample a ball where κ is certified: a saturating regression, and a DEQ."""
    task = saturating(trial.seed)
    zero = torch.zeros(8, dtype=torch.float64)
    yield _pl("tanh(Φθ)", task.loss(), _in_ball(zero, task.radius, 400, trial.g))
    ball = vanilla_ball(trial.seed)
    net, points = ball.network, _in_ball(ball.network.start, ball.radius, 8, trial.g)
    yield _network_pl(ball, points)
    least = min(float(torch.linalg.eigvalsh(net.kernel(t))[0]) for t in points)
    yield at_least("DEQ: min λ_min(H) ÷ κ on the ball", least / ball.kappa, 1)
    theta = points[0]
    e = net.predict(theta) - net.y
    found = gradient(
        net.at(theta), net.X, net.y, solver=Newton(), adjoint_solver=Newton(), tol=1e-13
    )
    square = sum(float(g.pow(2).sum()) for g in found.grads.values())
    yield equal("DEQ: ‖∇𝓛‖² ÷ eᵀHe", square / float(e @ net.kernel(theta) @ e), 1, 1e-9)


@pl_star.control("outside the ball: tanh is saturated, gradients vanish and the loss does not")
def outside(trial: Trial) -> Iterable[Measurement]:
    """A condition on a ball says nothing beyond it."""
    task = saturating(trial.seed)
    zero = torch.zeros(8, dtype=torch.float64)
    yield _pl("tanh(Φθ)", task.loss(), _in_ball(zero, 40 * task.radius, 400, trial.g)[::2])


@pl_star.control("two inputs coincide while their labels differ: H is singular")
def twin_inputs(trial: Trial) -> Iterable[Measurement]:
    """The error (1, -1, 0) lies in the kernel of H."""
    ball = vanilla_ball(trial.seed, twins=True)
    yield _network_pl(ball, ball.network.start[None])


# --- PL* in a ball suffices --------------------------------------------------------------------


def _descent_in_ball(name: str, loss: Loss, path: Path, step: float) -> Iterator[Measurement]:
    """Check rate and length of a descent against κ and η of the ball."""
    steps = len(path.value) - 1
    clock = torch.arange(1, steps + 1, dtype=torch.float64)
    factor = 1 - loss.kappa * step
    ratio = float((path.value[1:] / path.value[0] / factor**clock).max())
    yield at_most(f"{name}: max 𝓛_t ÷ (1-κη)ᵗ𝓛_0", ratio, ROUNDING)
    reach = 2 * math.sqrt(2 * float(path.value[0]) / loss.kappa)
    yield at_most(f"{name}: path length ÷ 2√(2𝓛_0/κ)", float(path.length[-1]) / reach, 1)


def _saturating_descent(task: Saturating, certified: Loss) -> Iterator[Measurement]:
    """Run descent from 0 with step 1/β, long enough for 10⁻⁶ at the certified rate."""
    step = 1 / certified.beta
    start = torch.zeros(task.Phi.shape[1], dtype=torch.float64)
    steps = steps_for(1 - certified.kappa * step, 1e-6)
    path = descent(task.loss(), start, step, steps)
    yield from _descent_in_ball("tanh(Φθ), descent", certified, path, step)


def _network_flow(ball: Ball) -> Iterator[Measurement]:
    """Run the flow of a DEQ until the certified rate has given a factor 10."""
    net, kappa = ball.network, ball.kappa
    times = torch.linspace(0, math.log(10) / (2 * kappa), 15, dtype=torch.float64)
    path = flow(net, net.start, times, rtol=1e-7)
    ratio = float((path.value[1:] / path.value[0] * torch.exp(2 * kappa * times[1:])).max())
    yield at_most("DEQ, flow: max 𝓛(t) ÷ e^{-2κt}𝓛_0", ratio, 1)
    reach = math.sqrt(2 * float(path.value[0]) / kappa)
    yield at_most("DEQ, flow: path length ÷ √(2𝓛_0/κ)", float(path.length[-1]) / reach, 1)


@claim(
    "nguyen2022.theorem2.6.3",
    title="PL* on a ball of radius c√𝓛_0 suffices: descent and flow stay in it, at a linear rate",
    chapter=CHAPTER,
    ref="thm-pl-star",
)
def pl_star_suffices(trial: Trial) -> Iterable[Measurement]:
    """Certify κ on the ball first, then run: descent on tanh(Φθ), flow and descent on a DEQ."""
    task = saturating(trial.seed)
    loss = task.loss()
    need = 2 * float(task.y.norm()) / math.sqrt(loss.kappa)
    yield given("2√(2𝓛_0/κ) ÷ radius on which κ holds, tanh(Φθ)", need / task.radius, "≤", ROUNDING)
    yield from _saturating_descent(task, loss)
    ball = vanilla_ball(trial.seed)
    net = ball.network
    first = float(net.value(net.start))
    need = math.sqrt(2 * first / ball.kappa)
    yield given("2√(2𝓛_0/κ) ÷ radius on which κ holds, DEQ", 2 * need / ball.radius, "≤", 1)
    yield from _network_flow(ball)
    step = 0.5 / float(torch.linalg.eigvalsh(net.kernel(net.start))[-1])
    path = descent(net, net.start, step, 60)
    half = float(((path.value[:-1] - path.value[1:]) / path.slope[:-1].pow(2)).min()) / (step / 2)
    yield given("DEQ, descent: min (𝓛_t-𝓛_{t+1}) ÷ ½η‖∇𝓛_t‖²", half, "≥", 1)
    clock = torch.arange(1, 61, dtype=torch.float64)
    ratio = float((path.value[1:] / first / (1 - ball.kappa * step) ** clock).max())
    yield at_most("DEQ, descent: max 𝓛_t ÷ (1-κη)ᵗ𝓛_0", ratio, 1)
    yield at_most("DEQ, descent: path length ÷ 2√(2𝓛_0/κ)", float(path.length[-1]) / (2 * need), 1)


@pl_star_suffices.control("labels of size 3: PL fails long before the loss does")
def out_of_reach(trial: Trial) -> Iterable[Measurement]:
    """No θ reaches them; the parameters leave the ball and the loss stays."""
    task = saturating(trial.seed)
    far = Saturating(task.Phi, 3 * torch.sign(task.y), task.radius)
    certified = task.loss()
    honest = Loss(certified.function, far.loss().beta, certified.kappa)
    return [m for m in _saturating_descent(far, honest) if "length" not in m.name]


@pl_star_suffices.control("two inputs coincide while their labels differ: no κ > 0")
def twins_never_learn(trial: Trial) -> Iterable[Measurement]:
    """The loss cannot fall at all: e_0 is in the kernel of H."""
    found = _network_flow(vanilla_ball(trial.seed, twins=True))
    return [m for m in found if "length" not in m.name]


# --- path lengths ------------------------------------------------------------------------------


FLOW_LENGTH = "length of the flow ÷ √(2(𝓛_0-𝓛*)/κ)"


def _flow_length(loss: Loss, start: Tensor, end: float) -> float:
    path = flow(loss, start, torch.linspace(0, end, 5, dtype=torch.float64))
    return float(path.length[-1]) / math.sqrt(2 * float(loss.gap(start)) / loss.kappa)


def _descent_length(loss: Loss, start: Tensor, part: float, steps: int = 400) -> float:
    """Return the largest length ÷ √(2(𝓛_0-𝓛*)/κ) over the starts."""
    path = descent(loss, start, part / loss.beta, steps)
    return float((path.length[-1] / (2 * loss.gap(start) / loss.kappa).sqrt()).max())


@claim(
    "nguyen2022.trajectory",
    title="Under PL the flow is no longer than √(2𝓛_0/κ), descent than 1/(1-½βη) times that",
    chapter=CHAPTER,
    ref="thm-path-length",
)
def path_lengths(trial: Trial) -> Iterable[Measurement]:
    """Measure paths on PL functions, where the bounds are attained, and on a DEQ."""
    loss = sines(trial.seed)
    start = 3 * normal(10, 3, g=trial.g)
    yield at_most(f"x² + 3sin²x: {FLOW_LENGTH}", _flow_length(loss, start[0], 6.0), ROUNDING)
    for part in (0.1, 1.0, 1.9):
        length = _descent_length(loss, start, part)
        name = f"x² + 3sin²x: length of descent ÷ √(2(𝓛_0-𝓛*)/κ), η = {part:g}/β"
        yield at_most(name, length, 1 / (1 - part / 2))
    task = regression(trial.seed)
    zero = torch.zeros(10, dtype=torch.float64)
    along = task.labelled(task.spectrum[1][:, 0]).loss()
    value = _flow_length(along, zero, 15 / along.kappa)
    yield equal(f"regression, y = v_1: {FLOW_LENGTH}", value, 1, 1e-6)
    name = "regression: length of descent ÷ √(2(𝓛_0-𝓛*)/κ), η = 1/β"
    starts = normal(20, 10, g=trial.g)
    yield at_most(name, _descent_length(task.loss(), starts, 1.0, 1000), ROUNDING)
    square = Loss(lambda t: t.pow(2).sum(-1), 2.0, 2.0)
    length = _descent_length(square, start, 1.9)
    yield at_most("β‖θ‖²/2, η = 1.9/β: length of descent ÷ √(2𝓛_0/κ)", length, 20)
    ball = vanilla_ball(trial.seed)
    yield from named(_network_flow(ball), "DEQ, flow: path length")


@path_lengths.control("PL at the start only: x⁴, where f'²/2f = 8x² tends to 0")
def quartic_length(trial: Trial) -> Iterable[Measurement]:
    """The path goes nearly all the way, almost twice as far as √(2𝓛_0/κ)."""
    loss, start = quartic(trial.g)
    yield at_most(f"x² + 3sin²x: {FLOW_LENGTH}", _flow_length(loss, start, 50.0), ROUNDING)


@path_lengths.control("the factor 1 of the flow claimed for descent with η = 1.9/β")
def zigzag(trial: Trial) -> Iterable[Measurement]:
    """Overshooting from side to side makes the path 19 times as long as its chord."""
    square = Loss(lambda t: t.pow(2).sum(-1), 2.0, 2.0)
    length = _descent_length(square, normal(5, 3, g=trial.g), 1.9)
    yield at_most("β‖θ‖²/2, η = 1.9/β: length of descent ÷ √(2𝓛_0/κ)", length, ROUNDING)


@path_lengths.control("least squares with the step 1.9/β: the factor 1 needs η ≤ 1/β")
def long_regression(trial: Trial) -> Iterable[Measurement]:
    """Along the top eigenvector of an isotropic G the path is 19 chords long."""
    Q = _frame(10, trial.g)[:6]
    loss = Regression(Q, Q.sum(1)).loss()
    name = "regression: length of descent ÷ √(2(𝓛_0-𝓛*)/κ), η = 1/β"
    yield at_most(name, _descent_length(loss, torch.zeros(10, dtype=torch.float64), 1.9), ROUNDING)
