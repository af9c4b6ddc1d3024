r"""The tangent kernel of a DEQ: the kernels, and why the feature kernel is definite.

Three threads. The kernel :math:`H` of a network is a sum of Gram matrices, one per parameter, and
each closed form is compared with automatic differentiation. One of these Gram matrices, of the
injected features, has a limit :math:`G^\infty` for wide layers; its Hermite series shows that
non-parallel inputs make it definite. And a definite kernel makes the square loss PL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from scipy.integrate import quad
from torch import Tensor

from deqbook.claims import (
    Measurement,
    at_least,
    at_most,
    chapter,
    equal,
    given,
    headline,
    seen,
    within,
)
from deqbook.kernels import empirical_ntk, feature_limit, freeze, jacobian_ntk, tangents
from deqbook.linalg import eye, operator_norm, relative, spectral_radius
from deqbook.models import ReLUImplicit
from deqbook.pages.p02_implicit_gradients.lab import exact_states
from deqbook.pages.p03a_linear_rates.lab import (
    Ball,
    Network,
    descent,
    monotone_network,
    vanilla_ball,
)
from deqbook.pages.p04_ntk.lab import wide
from deqbook.pages.p04_ntk.lab.features import (
    ENTRY,
    Bernstein,
    coherence,
    definite_bound,
    diagonal_tail,
    feature_grams,
    feature_width,
    khatri_rao,
    pair_limit,
    relu_moment,
    some_images,
    union_level,
    unit_rows,
)
from deqbook.pages.p04_ntk.lab.hermite import (
    Expansion,
    Hinge,
    cube,
    density,
    gauss,
    hermite,
    invisible,
    relu_coefficients,
    square_integral,
    uniform,
    wave,
)
from deqbook.pages.p04_ntk.lab.tangent import (
    all_active_state,
    around,
    dead_share,
    downhill,
    hadamard_blocks,
    half_normal,
    kronecker_blocks,
    least,
    monotone_ntk,
    monotone_reference,
    outputs,
    relu_ntk,
    relu_reference,
)
from deqbook.runtime import generator, normal, signs, sphere

claim = chapter("04_ntk")

ROUNDING = 1 + 1e-9  # room for rounding where a bound is attained exactly
TWO_ROUTES = 1e-9  # between two exact routes to one thing
ORDER = 2000  # of the expansions of hinges

Function = Callable[[Tensor], Tensor]
Scalar = Callable[[float], float]
Inputs = Callable[[int], Tensor]


def _share(bad: Tensor) -> float:
    return float(bad.double().mean())


# --- gao2022: the kernel of the ReLU implicit network ------------------------------------------


@claim(
    "gao2022.lemma3.1",
    "ŷ' = -He with H = (γ²VVᵀ/m+J_n)∘ZZᵀ + (RRᵀ/m)∘XXᵀ + ΦΦᵀ, and J_n is the matrix of ones",
    "thm-relu-ntk",
)
def relu_kernel(trial, *, ones=True, features=True):
    known = relu_reference(trial.seed)
    model, e, slope = known.model, known.error, known.slope
    H, Phi = relu_ntk(model, known.X, ones=ones, features=features)
    yield given("γ̃‖W‖", model.scale * operator_norm(model.W.detach()), "≤", 1)
    yield within("H vs Jacobian of autograd", relative(H, known.jacobian), TWO_ROUTES)
    package = torch.stack(list(known.parts.values())).sum(0)
    yield within("H vs gram_parts", relative(H, package), TWO_ROUTES)
    yield within("dŷ/dt along -∇𝓛 vs -He", relative(slope, -H @ e), 1e-3)
    yield at_least("λ_min(H) ÷ λ_min(ΦΦᵀ)", least(H) / least(Phi @ Phi.mT), 1)
    rate = float(e @ slope) / (-2 * least(H) * 0.5 * float(e @ e))
    yield at_least("-d𝓛/dt ÷ 2λ_min(H)𝓛", rate, 1)


relu_kernel.breaks(
    "the identity I_n in the place of J_n = 11ᵀ: gao2022-E1", "H vs", "dŷ/dt", ones=False
)
relu_kernel.breaks(
    "the direct path of the features dropped from Q", "H vs", "dŷ/dt", features=False
)


# --- data: unit, not parallel ------------------------------------------------------------------


def _nonparallel(what: str, X: Tensor) -> Iterator[Measurement]:
    yield given(f"{what}: max |⟨x_i,x_j⟩|", coherence(X), "≤", 1 - 1e-9)
    yield Measurement(f"{what}: λ_min(G^∞)", least(feature_limit(X)), "≥", 1e-10, theorem=False)


def _as_drawn(X: Tensor) -> Tensor:
    return X


def _one_twice(X: Tensor) -> Tensor:
    return torch.cat([X[:-1], X[:1]])


def _one_twice_darker(X: Tensor) -> Tensor:
    return unit_rows(torch.cat([X[:-1], 0.5 * X[:1]]))


@claim(
    "gao2022.assumption2",
    "Unit inputs, no two parallel: true of the bundled images, and noise restores it",
    "def-nonparallel",
    standing="definition",
)
def nonparallel_data(trial, *, sample=_as_drawn, noisy=True, phi="relu"):
    X = sample(some_images(40, trial.g))
    yield within("max |‖x_i‖-1|", float((X.norm(dim=1) - 1).abs().max()), 1e-12)
    yield from _nonparallel("40 images", X)
    eleven = torch.cat([X[:10], X[:1]])
    if noisy:
        eleven[10] += 0.1 * normal(X.shape[1], g=trial.g) / math.sqrt(X.shape[1])
        eleven = unit_rows(eleven)
    yield from _nonparallel("a duplicate with noise", eleven)
    pair = eleven[[0, 10]]
    cosine = min(float(pair[0] @ pair[1]), 1 - 1e-12)
    apart = least(feature_limit(pair)) / (0.5 - pair_limit(cosine))
    yield equal("the two alone: λ_min(G^∞) ÷ (½-κ₁) by quadrature", apart, 1, 1e-3)
    drawn = ReLUImplicit.init(30, 6, gamma=0.3, seed=trial.seed)
    model = ReLUImplicit(drawn.W, drawn.U, drawn.a, drawn.c, 0.3, phi=phi)
    x, s = sphere(5, 6, trial.seed + 100), 0.5 + torch.arange(1, 6).double()
    scaled = relative(outputs(model, s[:, None] * x), s * outputs(model, x))
    yield within("ŷ(sx) vs sŷ(x), s > 0", scaled, TWO_ROUTES)


nonparallel_data.breaks(
    "an image appears twice",
    "hypothesis",
    "40 images",
    "a duplicate",
    sample=_one_twice,
    noisy=False,
    shown={"a duplicate with noise": "a duplicate"},
)
nonparallel_data.breaks(
    "an image appears twice with different brightness, before normalisation",
    "hypothesis: 40 images",
    "40 images",
    sample=_one_twice_darker,
)
nonparallel_data.breaks(
    "injected features tanh(Ux), not homogeneous: scale does matter", "ŷ(sx)", phi="tanh"
)


# --- the limit of the feature kernel -----------------------------------------------------------


def _six_inputs(seed: int) -> Tensor:
    return sphere(6, 4, seed)


def _five_and_a_copy(seed: int) -> Tensor:
    X = sphere(5, 4, seed)
    return torch.cat([X, X[:1]])


def _three_antipodal_pairs(seed: int) -> Tensor:
    t = 0.3 * seed + math.pi * torch.arange(3).double() / 3
    half = torch.stack([torch.cos(t), torch.sin(t)], dim=1)
    return torch.cat([half, -half])


def _pair(angle: float) -> Tensor:
    return torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)


def _coherence_of_others(X: Tensor) -> float:
    return coherence(X[:-1])


def _definite(trial, *, inputs=_six_inputs, kernel=feature_limit, delta=coherence):
    X = inputs(trial.seed)
    value = least(kernel(X)) / definite_bound(delta(X), len(X))
    yield headline(at_least("λ_min(G^∞) ÷ Σ_k a_k²(1-(n-1)δ^k)₊", value, 1))


@claim(
    "gao2022.lemma3.2",
    "Unit inputs, no two parallel: λ_min(G^∞) > 0, with a lower bound from the angles",
    "thm-feature-kernel-definite",
)
def definite_limit(trial):
    X = _six_inputs(trial.seed)
    G = feature_limit(X)
    yield given("max |⟨x_i,x_j⟩|", coherence(X), "≤", 1 - 1e-9)
    yield from _definite(trial)
    gaps = [abs(float(G[0, j]) - pair_limit(float(X[0] @ X[j]))) for j in range(1, 6)]
    yield within("closed form of G^∞ vs quadrature", max(gaps), 1e-10)
    small, large = uniform(0.01, 0.05, trial.g), uniform(0.3, 1.5, trial.g)
    near, far = (least(feature_limit(_pair(angle))) for angle in (small, large))
    exact = 0.5 - pair_limit(math.cos(large))
    yield within("two inputs at angle θ: |λ_min - (½-κ₁(cos θ))|", abs(far - exact), 1e-10)
    yield equal("small angle θ: λ_min ÷ ¼θ²", near / (small**2 / 4), 1, small)
    attained = far / definite_bound(math.cos(large), 2)
    yield equal("two inputs: λ_min(G^∞) ÷ Σ_k a_k²(1-δ^k), attained", attained, 1, 1e-4)
    opposite = least(feature_limit(torch.cat([X[:1], -X[:1]])))
    yield equal("one antipodal pair alone: λ_min", opposite, 0.5, 1e-12)


# σ(t)-σ(-t) = t turns the d+1 differences into vectors of dimension d
definite_limit.breaks(
    "x_i ≠ x_j only, as legible in our copy: d+1 antipodal pairs",
    part=_definite,
    inputs=_three_antipodal_pairs,
    delta=partial(coherence, signed=True),
)
definite_limit.breaks(
    "a linear activation: G^∞ = XXᵀ has rank d < n", part=_definite, kernel=lambda X: X @ X.mT
)
definite_limit.breaks(
    "an input appears twice, δ read off the other pairs",
    part=_definite,
    inputs=_five_and_a_copy,
    delta=_coherence_of_others,
)


# --- concentration of the initial Gram matrix --------------------------------------------------


def _concentration(trial, *, width=None, mean=True):
    n, delta, draws = 2, 0.1, 100
    # a right angle, in coordinates of the plane: the law of Ux is the same in every dimension
    X = torch.linalg.qr(sphere(n, n, trial.seed + 100))[0]
    limit = feature_limit(X)
    lambda0 = least(limit)
    need = feature_width(lambda0, n, delta)
    m = need if width is None else width
    yield given("52n²λ_G⁻²log(n(n+1)/δ) ÷ m", need / m, "≤", 1)
    entry = ENTRY.deviation(m, union_level(n, delta))
    yield at_most("n(√(3t/m)+2t/m) ÷ λ_G/4, t = log(n(n+1)/δ)", n * entry / (lambda0 / 4), 1)
    G = feature_grams(X, m, draws, generator(trial.seed + 200), mean=mean)
    away = torch.linalg.matrix_norm(G - limit, 2).sort().values
    quantile = float(away[draws - 1 - math.floor(delta * draws)])
    yield headline(at_most("‖G(0)-G^∞‖ ÷ λ_G/4, but for a share δ", quantile / (lambda0 / 4), 1))
    smallest = torch.linalg.eigvalsh(G)[:, 0]
    short = _share(smallest < 0.75 * lambda0)
    yield at_most("share of draws with λ_min(G(0)) < ¾λ_G", short, delta)


def _entries(trial, *, bernstein=ENTRY):
    # the constants 3 and 2 of √(3t/m)+2t/m are those of the moments; q = 2 attains the first
    ratios = [relu_moment(q) / bernstein.moment(q) for q in range(2, 13)]
    yield at_most("E σ(s)^{2q} ÷ (q!/2)(3/2)2^{q-2}, 2 ≤ q ≤ 12", max(ratios), ROUNDING)
    yield equal("the first of them, attained: E σ(s)⁴ ÷ 3/2", ratios[0], 1, 1e-6)
    tails = [
        diagonal_tail(m, bernstein.deviation(m, t)) / (2 * math.exp(-t))
        for m in (1, 30, 2000)
        for t in (0.1, 1.0, 5.0, 30.0)
    ]
    yield at_most("P(|G_ii-½| > √(3t/m)+2t/m) ÷ 2e^{-t}, exactly", max(tails), 1)
    n, delta = 5, 0.1
    chance = n * (n + 1) / 2 * 2 * math.exp(-union_level(n, delta))
    yield equal("entries × 2e^{-t} ÷ δ", chance / delta, 1, 1e-9)


def _moment(trial, *, printed=False):
    # E exp(λ²s²) has a pole at 1/√2, the end of the printed range; the curves cross near 0.63
    top = uniform(0.65, 0.7, trial.g) if printed else math.sqrt(math.log(math.sqrt(2)))
    lam = torch.linspace(0.1, top, 50, dtype=torch.float64)
    ratio = (1 - 2 * lam**2).pow(-0.5) / torch.exp(2 * lam**2)
    yield at_most("E exp(λ²s²) ÷ exp(2λ²)", float(ratio.max()), ROUNDING)


@claim(
    "gao2022.lemma3.3",
    "m ≥ 52n²λ_G⁻²log(n(n+1)/δ): with probability 1-δ, ‖G(0)-G^∞‖ ≤ λ_G/4",
    "thm-feature-kernel-concentrates",
)
def feature_concentration(trial):
    yield from _concentration(trial)
    yield from _entries(trial)
    X, g = sphere(6, 6, trial.seed + 500), generator(trial.seed + 600)
    widths, limit = (100, 400, 1600, 6400), feature_limit(X)
    errors = [
        float(torch.linalg.matrix_norm(feature_grams(X, m, 40, g) - limit, 2).mean())
        for m in widths
    ]
    order = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    yield equal("exponent of m in the mean of ‖G(0)-G^∞‖", float(order), -0.5, 0.1)
    yield from _moment(trial)


feature_concentration.breaks("too narrow: m = n² + n", part=_concentration, width=6)
feature_concentration.breaks(
    "the factor 1/m dropped from the sum, as legible in our copy",
    "‖G(0)",
    part=_concentration,
    mean=False,
)
feature_concentration.breaks(
    "a lighter tail, t/m for 2t/m: products of Gaussians have heavier ones",
    "E σ",
    "P(",
    part=_entries,
    bernstein=Bernstein(ENTRY.variance, 1.0),
    shown={"2^{q-2}": "1^{q-2}", "2t/m": "t/m"},
)
feature_concentration.breaks(
    "the inequality claimed for all |λ| ≤ 1/√2: λ up to 0.7", part=_moment, printed=True
)


# --- Hermite expansions ------------------------------------------------------------------------


def _leaky(g: torch.Generator) -> Scalar:
    slope = uniform(0, 0.9, g)
    return lambda x: x if x > 0 else slope * x


def _steep(g: torch.Generator) -> Scalar:
    size = uniform(0.9, 1.1, g)
    return lambda x: size * math.exp(x**2 / 4)


def _integrable(trial, *, sigma=_leaky):
    f = sigma(trial.g)
    far, farther = (square_integral(f, size) for size in (15, 30))
    yield at_most("∫_{-30}^{30} σ² dP ÷ E s²", farther, 1)
    yield within("what [-30, 30] adds to [-15, 15]", abs(farther - far), 1e-10)


def _relu_norm(trial, *, sigma=lambda x: max(x, 0.0)):
    yield equal("‖σ‖² of ReLU", square_integral(sigma, 30), 0.5, 1e-10)


@claim(
    "gao2022.lemmaA.1",
    "|σ(s)| ≤ |s| makes σ square integrable: ‖σ‖² ≤ 1, and ½ for ReLU",
    "lem-hermite-basis",
)
def square_integrable(trial):
    yield from _integrable(trial)
    yield from _relu_norm(trial)
    sample = torch.relu(normal(20000, g=trial.g)).pow(2)
    gap = abs(float(sample.mean()) - 0.5) / (float(sample.std()) / math.sqrt(len(sample)))
    yield within("20000 draws: |mean σ(s)² - ½| ÷ standard error", gap, 5)


square_integrable.breaks("|σ(s)| ≤ |s| broken: σ(s) = exp(s²/4)", part=_integrable, sigma=_steep)
square_integrable.breaks(
    "‖σ‖² of the identity instead of ReLU",
    part=_relu_norm,
    sigma=lambda x: x,
    shown={"ReLU": "the identity"},
)


def _polynomials(trial, *, normalised=True, spread=1.0):
    roots = torch.lgamma(torch.arange(1, 14, dtype=torch.float64)).div(2).exp()[:, None]

    def h(x: Tensor) -> Tensor:
        return hermite(12, x) if normalised else roots * hermite(12, x)

    def bell(t: Tensor) -> Tensor:
        return torch.exp(-(t**2) / 2)

    nodes, w = gauss(40)
    values = h(spread * nodes)
    gram = (values * w) @ values.mT
    yield within("Gram matrix of h_0, …, h_12 vs I", float((gram - eye(13)).abs().max()), 1e-10)
    x = torch.linspace(-2, 2, 9, dtype=torch.float64) + uniform(0, 0.4, trial.g)
    f, worst = bell, []
    for k in range(6):
        formula = (-1) ** k * f(x) / bell(x) / math.sqrt(math.factorial(k))
        worst.append((formula - h(x)[k]).abs().max())
        f = torch.func.grad(lambda t, f=f: f(t).sum())  # type: ignore[misc]
    name = "h_0, …, h_5 vs (-1)^k e^{x²/2}D^k e^{-x²/2}/√k!"
    yield within(name, float(torch.stack(worst).max()), 1e-9)


def _complete(trial, *, without=None):
    f, c = wave(trial.g, 40)
    if without is not None:
        c[without] = 0
    x, w = gauss(60)
    rest = f(x) - c @ hermite(40, x)
    yield within("‖cos(wx+s) - Σ_{k≤40}a_kh_k‖²", float(rest.pow(2) @ w), 1e-18)


@claim(
    "gao2022.lemmaA.2",
    "The normalised Hermite polynomials are an orthonormal basis of L²(N(0,1))",
    "lem-hermite-basis",
)
def hermite_basis(trial):
    yield from _polynomials(trial)
    yield from _complete(trial)


hermite_basis.breaks(
    "the weight e^{-x²} of the physicists, N(0,½)", "Gram", part=_polynomials, spread=math.sqrt(0.5)
)
hermite_basis.breaks(
    "not normalised: He_k without 1/√k!", part=_polynomials, normalised=False, shown={"h_": "He_"}
)
hermite_basis.breaks(
    "h_1 left out: orthonormal still, a basis no longer", part=_complete, without=1
)


def _hinge(g: torch.Generator) -> Expansion:
    return Hinge(uniform(-1, 1, g)).expansion(ORDER)


def _hinge_without_slope(g: torch.Generator) -> Expansion:
    f = _hinge(g)
    f.coefficients[1] = 0
    return f


def _invisible(g: torch.Generator) -> Expansion:
    return Expansion(*invisible(uniform(1, 2, g)), Hinge(0.0).tail(ORDER))


def _parseval(trial, *, function=_hinge):
    f = function(trial.g)
    total = float(f.coefficients.pow(2).sum())
    yield at_most("Σ_{k≤K}a_k² ÷ ‖f‖²", total / f.square, ROUNDING)
    rest = (f.square - total) / f.tail
    yield at_most("(‖f‖² - Σ_{k≤K}a_k²) ÷ bound of the tail", rest, ROUNDING)


def _from_coefficients(trial, *, decay=1.0):
    k = torch.arange(41, dtype=torch.float64)
    c = signs(41, g=trial.g) * (k + 1) ** -decay
    x, w = gauss(60)
    h = hermite(40, x)
    gap = (c[21:] @ h[21:]).pow(2) @ w
    yield equal("‖f_40-f_20‖² ÷ Σ_{20<k≤40}a_k²", float(gap / c[21:].pow(2).sum()), 1, 1e-10)
    yield at_most("‖f_40-f_20‖² ÷ (1/21-1/41)", float(gap) / (1 / 21 - 1 / 41), 1)


@claim(
    "gao2022.lemmaA.3",
    "f ∈ L² has Σa_k² = ‖f‖², and every square-summable sequence belongs to one f ∈ L²",
    "lem-hermite-basis",
)
def parseval(trial):
    yield from _parseval(trial)
    yield from _from_coefficients(trial)


parseval.breaks(
    "one polynomial left out: h_1", "(‖f‖²", part=_parseval, function=_hinge_without_slope
)
parseval.breaks(
    "f not in L², though all its a_k exist: fp = e^{-x^{1/4}} sin x^{1/4}, x > 0",
    "(‖f‖²",
    part=_parseval,
    function=_invisible,
)
parseval.breaks(
    "coefficients that are not square summable: a_k = ±(k+1)^{-1/4}",
    "‖f_40-f_20‖² ÷ (1/21",
    part=_from_coefficients,
    decay=0.25,
)


def _continuity(f: Tensor, g: Tensor, fN: Tensor, gN: Tensor, *, printed: bool) -> Tensor:
    """Return |⟨f,g⟩-⟨f_N,g_N⟩| ÷ its bound, functions given by their coefficients."""
    rest = (g - gN).norm()
    first = f.norm() * rest if printed else (f - fN).norm() * g.norm()
    return (f @ g - fN @ gN).abs() / (first + fN.norm() * rest)


@claim(
    "gao2022.lemmaA.4",
    "The inner product is continuous: f_N → f and g_N → g give ⟨f_N,g_N⟩ → ⟨f,g⟩",
    "lem-hermite-basis",
)
def inner_continuous(trial, *, printed=False, weak=False):
    f, g = Hinge(uniform(-1, 0, trial.g)), Hinge(uniform(0, 1, trial.g))
    a, b, whole = f.coefficients(ORDER), g.coefficients(ORDER), f.inner(g)
    first = torch.arange(ORDER + 1)
    cuts = [(a * (first <= k), b * (first <= k)) for k in (2, 5, 20, 100)]
    # f_N = g_N = 0.9f attains it for f = g
    cases = [(a, b, c, d) for c, d in cuts] + [(a, b, c, b) for c, _ in cuts]
    cases.append((a, a, 0.9 * a, 0.9 * a))
    ratios = [_continuity(*case, printed=printed) for case in cases]
    name = "|⟨f,g⟩-⟨f_N,g_N⟩| ÷ (‖f-f_N‖‖g‖ + ‖f_N‖‖g-g_N‖)"
    yield headline(at_most(name, float(torch.stack(ratios).max()), ROUNDING))
    yield equal("f = g, f_N = g_N = 0.9f: the same quotient", float(ratios[-1]), 1, 1e-9)
    # weakly f+h_N → f and g+h_N → g as well
    found = whole + float(a[-1] + b[-1]) + 1 if weak else float(a @ b)
    tails = math.sqrt(f.tail(ORDER) * g.tail(ORDER))
    yield at_most("|⟨f,g⟩-⟨f_N,g_N⟩| ÷ bound of the tails", abs(whole - found) / tails, 1)


inner_continuous.breaks(
    "‖f‖‖g-g_N‖ for the first term of the bound, as printed: f_N → f unused",
    "|⟨f,g⟩-⟨f_N,g_N⟩| ÷ (",
    printed=True,
    shown={"‖f-f_N‖‖g‖": "‖f‖‖g-g_N‖"},
)
inner_continuous.breaks(
    "weak convergence only: f_N = f+h_N and g_N = g+h_N", "|⟨f,g⟩-⟨f_N,g_N⟩| ÷ bound", weak=True
)


@claim(
    "gao2022.lemmaA.5",
    "Generating function: e^{xt-t²/2} = Σ t^k h_k(x)/√k!, pointwise and in L²",
    "lem-hermite-correlation",
)
def generating_function(trial, *, f=lambda x, t: torch.exp(x * t - t**2 / 2)):
    t = uniform(0.5, 1.2, trial.g)
    k = torch.arange(61, dtype=torch.float64)
    c = torch.exp(k * math.log(t) - torch.lgamma(k + 1) / 2)
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)
    gap = (f(x, t) - c @ hermite(60, x)).abs().max()
    yield within("max |e^{xt-t²/2} - Σ_{k≤60}t^kh_k(x)/√k!| on [-3, 3]", float(gap), 1e-10)
    nodes, w = gauss(80)
    h, value = hermite(60, nodes), f(nodes, t)
    gap = ((h[:20] * w) @ value - c[:20]).abs().max()
    yield within("⟨e^{xt-t²/2}, h_k⟩ vs t^k/√k!, k < 20", float(gap), 1e-10)
    yield equal("‖e^{xt-t²/2}‖² ÷ e^{t²}", float(value.pow(2) @ w) / math.exp(t**2), 1, 1e-10)
    rest = float((value - c[:6] @ h[:6]).pow(2) @ w) / float(c[6:] @ c[6:])
    yield equal("rest after k = 5, squared ÷ Σ_{k>5}t^{2k}/k!", rest, 1, 1e-8)


generating_function.breaks(
    "the factor e^{-t²/2} left out",
    f=lambda x, t: torch.exp(x * t),
    shown={"e^{xt-t²/2}": "e^{xt}"},
)
generating_function.breaks(
    "e^{2xt-t²}, the function of the physicists' polynomials",
    f=lambda x, t: torch.exp(2 * x * t - t**2),
    shown={"e^{xt-t²/2}": "e^{2xt-t²}"},
)


@claim(
    "gao2022.lemmaA.6",
    "E[h_j(⟨u,w⟩)h_k(⟨v,w⟩)] = δ_jk⟨u,v⟩^k for unit vectors and Gaussian w",
    "lem-hermite-correlation",
)
def hermite_correlation(trial, *, length=1.0, law="normal"):
    u, v = sphere(2, 3, trial.seed)
    w, weights = cube(law)
    left, right = hermite(6, w @ (length * u)), hermite(6, w @ (length * v))
    found = (left * weights) @ right.mT
    target = torch.diag((length**2 * u @ v) ** torch.arange(7))
    off = ~torch.eye(7, dtype=torch.bool)
    yield within("max |E h_jh_k|, j ≠ k", float(found[off].abs().max()), 1e-10)
    gap = (found - target).diagonal().abs().max()
    yield within("max |E h_kh_k - ⟨u,v⟩^k|", float(gap), 1e-10)


# both are long: one long vector would spoil only one side of j ≠ k
hermite_correlation.breaks("‖u‖ = ‖v‖ = 1.2, not unit vectors", length=1.2)
hermite_correlation.breaks("w uniform on a cube, with the same mean and covariance", law="uniform")


def _series(trial, *, length=1.0, power=2):
    order, X = 16, length * sphere(6, 4, trial.seed)
    a, gram, G = relu_coefficients(order), X @ X.mT, feature_limit(X)
    partial_sum = torch.stack([float(c) ** power * gram**k for k, c in enumerate(a)]).sum(0)
    rest = 0.5 - float(a @ a)
    off = ~torch.eye(len(X), dtype=torch.bool)
    bound = coherence(X) ** (order + 1) * rest
    away = float((G - partial_sum)[off].abs().max())
    yield at_most("max |G^∞-S_16| off the diagonal ÷ δ^{17}Σ_{k>16}a_k²", away / bound, 1)
    gap = float((G - partial_sum).diagonal()[0])
    yield equal("(½-S_16) on the diagonal ÷ Σ_{k>16}a_k²", gap / rest, 1, 1e-9)


@claim(
    "gao2022.lemmaA.7",
    "G^∞ = Σ a_k²(XXᵀ)^{∘k} for unit rows, and (XXᵀ)^{∘k} = X^{*k}(X^{*k})ᵀ",
    "prop-feature-series",
)
def feature_expansion(trial):
    yield from _series(trial)
    X = sphere(6, 4, trial.seed)
    gram = X @ X.mT
    gaps = [relative(khatri_rao(X, k) @ khatri_rao(X, k).mT, gram**k) for k in (1, 2, 3, 4)]
    yield within("X^{*k}(X^{*k})ᵀ vs (XXᵀ)^{∘k}, k ≤ 4", max(gaps), TWO_ROUTES)

    def term(x: float, k: int) -> float:
        return x * float(hermite(k, torch.tensor(x, dtype=torch.float64))[k]) * density(x)

    exact = relu_coefficients(10)
    worst = max(
        abs(quad(term, 0, 12, args=(k,), epsabs=1e-12)[0] - float(exact[k]))
        for k in (0, 1, 2, 3, 4, 6, 10)
    )
    yield within("a_k = E[σ(s)h_k(s)] vs its closed form", worst, 1e-10)


feature_expansion.breaks("rows of length 1.1", part=_series, length=1.1)
feature_expansion.breaks("a_k in the place of a_k²", part=_series, power=1)


def gaussian(x: Tensor) -> Tensor:
    """Return the density of N(0, 1)."""
    return torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _hinge_coefficients(g: torch.Generator) -> Tensor:
    return Hinge(uniform(0, 1, g)).coefficients(120)


def _square_coefficients(g: torch.Generator) -> Tensor:
    a = torch.zeros(121, dtype=torch.float64)
    a[0], a[2] = 1, math.sqrt(2)
    return a


def _linear_coefficients(g: torch.Generator) -> Tensor:
    a = torch.zeros(121, dtype=torch.float64)
    a[1] = uniform(0.5, 1, g)
    return a


def _exponential_coefficients(g: torch.Generator) -> Tensor:
    w, k = uniform(0.5, 1, g), torch.arange(121, dtype=torch.float64)
    return -torch.exp(k * math.log(w) - torch.lgamma(k + 1) / 2 + w**2 / 2)


def _both_signs(trial, *, coefficients=_hinge_coefficients):
    a = coefficients(trial.g)
    for low, high in ((2, 20), (20, 60), (60, 120)):
        window = a[low + 1 : high + 1]
        yield at_least(f"positive a_k, {low} < k ≤ {high}", float((window > 0).sum()), 1)
        yield at_least(f"negative a_k, {low} < k ≤ {high}", float((window < 0).sum()), 1)


@claim(
    "gao2022.lemmaA.8",
    "σ nonlinear with |σ(s)| ≤ |s|: infinitely many a_k are positive, and as many negative",
    "lem-relu-coefficients",
)
def many_coefficients(trial):
    yield from _both_signs(trial)
    a = relu_coefficients(400)
    even = a[2::2]
    yield at_most("ReLU: share of even k in [2, 400] with a_k = 0", _share(even == 0), 0)
    flips = _share(even[1:].sign() == -even[:-1].sign())
    yield equal("ReLU: share of even k at which the sign changes", flips, 1, 0)
    # the smoothed function, whose growth is the reason, for ReLU and for a hinge
    s = torch.linspace(-4, 4, 41, dtype=torch.float64)
    powers = torch.stack([s**j * math.exp(-math.lgamma(j + 1) / 2) for j in range(121)])
    hinge = Hinge(uniform(0.2, 1, trial.g))
    for what, b, c in (("ReLU", 0.0, a[:121]), ("hinge", hinge.b, hinge.coefficients(120))):
        smooth = (s - b) * torch.special.ndtr(s - b) + gaussian(s - b)
        gap = float((c @ powers - smooth).abs().max())
        yield within(f"{what}: E σ(t+s) vs Σ a_k t^k/√k!", gap, 1e-9)
        above = float((smooth / (s.abs() + math.sqrt(2 / math.pi))).max())
        yield at_most(f"{what}: E σ(t+s) ÷ (|t| + E|s|)", above, 1)


many_coefficients.breaks(
    "growth beyond |s|: σ(s) = s², a polynomial",
    part=_both_signs,
    coefficients=_square_coefficients,
)
many_coefficients.breaks("linear: σ(s) = ws", part=_both_signs, coefficients=_linear_coefficients)
# not a polynomial, so infinitely many a_k ≠ 0: for the positive sign, growth matters
many_coefficients.breaks(
    "growth beyond |s|: σ(s) = -e^{ws}, all a_k negative",
    "positive",
    part=_both_signs,
    coefficients=_exponential_coefficients,
)


def _eight_rows(seed: int) -> Tensor:
    return sphere(8, 5, seed)


def _seven_and_a_copy(seed: int, sign: float = 1.0) -> Tensor:
    X = sphere(7, 5, seed)
    return torch.cat([X, sign * X[:1]])


def _powers(trial, *, inputs=_eight_rows, delta=coherence):
    X = inputs(trial.seed)
    n, d, gram = len(X), delta(X), X @ X.mT
    first = math.floor(math.log(n) / math.log(1 / d)) + 1
    orders = range(first, first + 12)
    worst = min(least(gram**k) / (1 - (n - 1) * d**k) for k in orders)
    name = "λ_min((XXᵀ)^{∘k}) ÷ (1-(n-1)δ^k), k > log n/log(1/δ)"
    yield headline(at_least(name, worst, 1))
    yield at_least(f"1-(n-1)δ^k at the first such k, n = {n}", 1 - (n - 1) * d**first, 0)


@claim(
    "gao2022.lemmaA.9",
    "No two rows parallel: λ_min((XXᵀ)^{∘k}) ≥ 1-(n-1)δ^k > 0 once k > log n/log(1/δ)",
    "lem-hadamard-powers",
)
def hadamard_powers(trial):
    yield given("δ = max |⟨x_i,x_j⟩|", coherence(_eight_rows(trial.seed)), "≤", 1 - 1e-9)
    yield from _powers(trial)
    # three vectors with all cosines -δ attain the bound at odd k
    delta = uniform(0.2, 0.5, trial.g)
    gram = (1 + delta) * eye(3) - delta
    shares = [least(gram**k) / (1 - 2 * delta**k) for k in (3, 5)]
    yield equal("n = 3, all cosines -δ: λ_min ÷ (1-2δ^k), k = 3", shares[0], 1, 1e-9)
    yield equal("n = 3, all cosines -δ: λ_min ÷ (1-2δ^k), k = 5", shares[1], 1, 1e-9)


hadamard_powers.breaks(
    "a row appears twice, δ read off the other pairs",
    "λ_min",
    part=_powers,
    inputs=_seven_and_a_copy,
    delta=_coherence_of_others,
)
# (-1)^k has modulus 1: every power is singular, whatever its parity
hadamard_powers.breaks(
    "x_i ≠ x_j only: an antipodal pair, δ without the modulus",
    "λ_min((XXᵀ)",
    part=_powers,
    inputs=partial(_seven_and_a_copy, sign=-1.0),
    delta=partial(coherence, signed=True),
)


# --- gao2023, Section 5.1: a lower bound on the kernel of the implicit layer -------------------


GAMMA = 0.4


def _samples(Z: Tensor) -> Tensor:
    return Z @ Z.mT


def _units(Z: Tensor) -> Tensor:
    return Z.mT @ Z


def _schur(trial, *, m=60, n=5, gamma=GAMMA, gram=_samples):
    model = ReLUImplicit.init_implicit_only(m, 10, gamma=gamma, seed=trial.seed)
    X = sphere(n, 10, trial.seed + 100)
    yield given("γ̃‖W‖", model.scale * operator_norm(model.W.detach()), "≤", 1)
    t = tangents(model, X, tol=1e-13)
    alive = (t.v.pow(2).sum(1) > 0) & (t.z.pow(2).sum(1) > 0)
    H = empirical_ntk(model, X[alive], tol=1e-13)
    formed = jacobian_ntk(model, X[alive], tol=1e-13)
    yield within("H vs Jacobian of autograd", relative(H, formed), TWO_ROUTES)
    smallest = float(t.v[alive].pow(2).sum(1).min())
    bound = model.scale**2 * smallest * least(gram(t.z[alive]))
    yield headline(at_least("λ_min(H) ÷ γ̃² min‖v_i‖² λ_min(ZZᵀ)", least(H) / bound, 1))


def _all_active(trial, *, shrunk=True):
    X = sphere(4, 10, trial.seed + 100)
    model = half_normal(200, trial.seed, gamma=GAMMA, shrunk=shrunk)
    yield given("ρ(γ̃W)", spectral_radius(model.scale * model.W.detach()), "≤", 1)
    Z = all_active_state(model, X)
    yield at_least("least entry of (I-γ̃W)⁻¹φ", float(Z.min()), 0)
    residual = model.f(Z, model.inject(X), model.W).detach() - Z
    yield within("(I-γ̃W)⁻¹φ: residual as an equilibrium", float(residual.abs().max()), 1e-10)


def _all_active_kernel(trial):
    X = sphere(4, 10, trial.seed + 100)
    model = half_normal(200, trial.seed, gamma=GAMMA)
    Z, a = all_active_state(model, X), model.a.detach()
    M = eye(200) - model.scale * model.W.detach()
    v, H = torch.linalg.solve(M.mT, a), empirical_ntk(model, X, tol=1e-14)
    closed = model.scale**2 * float(v @ v) * Z @ Z.mT
    yield within("all active: H vs γ̃²‖(I-γ̃W)⁻ᵀa‖²ZZᵀ", relative(H, closed), 1e-8)
    Phi = model.inject(X).detach()
    bound = GAMMA**2 * least(Phi @ Phi.mT) / operator_norm(M) ** 4
    name = "all active: λ_min(H) ÷ γ²λ_min(ΦΦᵀ)/‖I-γ̃W‖⁴"
    yield headline(at_least(name, least(H) / bound, 1))


def _free_of_width(trial, *, shrunk=True):
    # weights that are not shrunk have an equilibrium as well if γ̃ is γ/m
    X, means = sphere(4, 10, trial.seed + 100), []
    for m in (30, 240):
        gamma = GAMMA if shrunk else GAMMA / math.sqrt(m)
        nets = [half_normal(m, 100 * trial.seed + k, gamma=gamma, shrunk=shrunk) for k in range(8)]
        means.append(sum(least(empirical_ntk(net, X, tol=1e-13)) for net in nets))
    yield seen("mean λ_min(H), m = 240 ÷ m = 30", means[1] / means[0], "≥", 0.4)


def _dead(trial, *, chance=2.0**-3):
    share, error = dead_share(trial.seed, 3)
    yield equal("one input, m = 3: share of draws with H(0) = 0", share, chance, 4 * error)


@claim(
    "gao2023.section5.1",
    "λ_min(H) ≥ γ̃² min‖v_i‖² λ_min(ZZᵀ); half-normal weights work if shrunk by 1/√m",
    "prop-schur-bound",
)
def schur_bound(trial):
    yield from _schur(trial)
    yield from _all_active(trial)
    yield from _all_active_kernel(trial)
    yield from _free_of_width(trial)
    yield from _dead(trial)


# the mean √(2/π) makes ρ(γ̃W) grow like √m
schur_bound.breaks(
    "half-normal weights of unit variance, as printed: no equilibrium",
    part=_all_active,
    shrunk=False,
)
schur_bound.breaks(
    "the same weights with γ̃ = γ/m: an equilibrium, but H of order 1/m",
    part=_free_of_width,
    shrunk=False,
)
# H has rank at most m², so it is singular; ZᵀZ is not
schur_bound.breaks(
    "λ_min(ZᵀZ) for λ_min(ZZᵀ), with n > m² samples",
    "λ_min(H)",
    part=_schur,
    m=3,
    n=30,
    gamma=0.2,
    gram=_units,
    shown={"ZZᵀ": "ZᵀZ"},
)
# with probability 2^{-m} no unit fires on the input
schur_bound.breaks("λ_min(H(0)) > 0 with probability one, as assumed", part=_dead, chance=0.0)


# --- nguyen2022: spectra, conditioning and PL --------------------------------------------------


def _kernel(trial):
    return monotone_ntk(trial.seed)


def _rotated(trial):
    H, B = monotone_ntk(trial.seed), normal(6, 6, g=trial.g)
    return H + float(H.norm()) * (B - B.mT)


def _triangular(trial):
    return torch.diag(torch.arange(1.0, 7.0).double()) + torch.triu(normal(6, 6, g=trial.g), 1)


def _spectral(trial, *, matrix=_kernel):
    S, e = matrix(trial), normal(6, g=trial.g)
    values, Q = torch.linalg.eig(S)  # for general matrices: it does not assume symmetry
    size, n = float(S.norm()), len(S)
    yield within("max |Im λ_i|", float(values.imag.abs().max()), 1e-12 * size)
    gram = Q.conj().mT @ Q
    yield within("eigenvectors: ‖QᵀQ-I‖", float((gram - torch.eye(n)).norm()), 1e-8)
    t = 2 / float(values.abs().max())
    left = torch.linalg.matrix_exp(-t * S) @ e
    right = Q @ (torch.exp(-t * values) * (Q.conj().mT @ e.to(Q.dtype)))
    gap = float((left - right).norm() / e.norm())
    yield within("e^{-tS}e vs Σe^{-tλ_i}⟨v_i,e⟩v_i", gap, 1e-8)


def _modes(trial, *, error=1e-5):
    net, e = monotone_network(trial.seed), normal(4, g=trial.g)
    start, first = net.start, net.predict(net.start)
    net = Network(net.model, net.X, first - error * e / e.norm())
    values, Q = torch.linalg.eigh(net.kernel(start))
    eta, steps = 0.5 / float(values[-1]), 12
    end = net.predict(descent(net, start, eta, steps).theta[-1]) - net.y
    promised = (1 - eta * values) ** steps * (Q.mT @ (first - net.y))
    gap = float((Q.mT @ end - promised).norm()) / error
    yield within("12 steps of a network: ⟨v_i,e⟩ vs (1-ηλ_i)^{12}⟨v_i,e(0)⟩", gap, 1e-3)


@claim(
    "nguyen2022.theorem2.6.1",
    "A symmetric matrix is S = QΛQᵀ, Q orthogonal and Λ real; so error modes decouple",
    "thm-spectral",
    standing="quoted",
    reason="the proof is in every book on linear algebra; what is checked is that modes decouple",
)
def spectral_theorem(trial):
    yield from _spectral(trial)
    yield from _modes(trial)
    net, times = monotone_network(trial.seed), (0.01, 0.1, 1.0)
    H, start = net.kernel(net.start), net.predict(net.start)
    fitted = freeze(H, net.y, start).fitted(times)
    exact = [net.y + torch.linalg.matrix_exp(-t * H) @ (start - net.y) for t in times]
    yield within("FrozenKernel vs y + e^{-tH}e(0)", relative(fitted, torch.stack(exact)), 1e-10)


spectral_theorem.breaks(
    "not symmetric: a rotation added to the kernel", part=_spectral, matrix=_rotated
)
spectral_theorem.breaks(
    "not symmetric: a triangular matrix, whose eigenvalues are all real",
    "eigenvectors",
    "e^{-tS}",
    part=_spectral,
    matrix=_triangular,
)
spectral_theorem.breaks(
    "the kernel moves: errors of size 3, not of size 1e-5", part=_modes, error=3.0
)


Points = Callable[[Ball, torch.Generator], list[Tensor]]
CONDITIONED = "min λ_min(H(θ)) ÷ κ over the set"


def _conditioning(ball: Ball, points: list[Tensor]) -> float:
    return min(least(ball.network.kernel(t)) for t in points) / ball.kappa


def _around_and_downhill(ball: Ball, g: torch.Generator) -> list[Tensor]:
    return [*around(ball, g), ball.network.start + ball.radius * downhill(ball.network)]


def _centre(ball: Ball, g: torch.Generator) -> list[Tensor]:
    return [ball.network.start]


def _switched_off(ball: Ball, g: torch.Generator) -> list[Tensor]:
    theta = ball.network.start.clone()
    theta[ball.network.model.W.numel() :] = 0
    return [theta]


@claim(
    "nguyen2022.definition2.6.2",
    "Uniform conditioning, λ_min(H(θ)) ≥ κ on a set: certified on a ball around θ(0)",
    "def-uniform-conditioning",
    standing="definition",
)
def uniform_conditioning(trial, *, points=_around_and_downhill, twins=False):
    ball = vanilla_ball(trial.seed, twins=twins)
    net, chosen = ball.network, points(ball, trial.g)
    yield at_least(CONDITIONED, _conditioning(ball, chosen), 1)
    first = net.kernel(net.start)
    for what, theta in (("a random point", chosen[0]), ("the steepest point", chosen[-1])):
        H = net.kernel(theta)
        J = net.jacobian(theta)
        yield within(f"{what}: H in closed form vs autograd", relative(H, J @ J.mT), 1e-9)
        weyl = least(first) - operator_norm(H - first)
        yield at_least(f"{what}: λ_min(H) - (λ_min(H_0) - ‖H-H_0‖)", least(H) - weyl, 0)


uniform_conditioning.breaks(
    "outside the ball: U and a moved to 0, where the kernel vanishes",
    CONDITIONED,
    points=_switched_off,
)
uniform_conditioning.breaks("two inputs coincide", CONDITIONED, points=_centre, twins=True)


def _square_loss(net: Network, theta: Tensor) -> tuple[Tensor, Tensor]:
    return net.gradient(theta), net.value(theta)


def _quartic_loss(net: Network, theta: Tensor) -> tuple[Tensor, Tensor]:
    e = net.predict(theta) - net.y
    return net.jacobian(theta).mT @ e**3, 0.25 * e.pow(4).sum()


def _ball_pl(trial, *, points=around, twins=False, loss=_square_loss):
    ball = vanilla_ball(trial.seed, twins=twins)
    chosen = points(ball, trial.g)
    yield given(CONDITIONED, _conditioning(ball, chosen), "≥", 1)
    found = [loss(ball.network, theta) for theta in chosen]
    ratio = [slope.pow(2).sum() / (2 * ball.kappa * value) for slope, value in found]
    yield at_least("ball: min ‖∇𝓛‖² ÷ 2κ𝓛", float(torch.stack(ratio).min()), 1)


@claim(
    "nguyen2022.theorem2.6.4",
    "λ_min(H) ≥ κ on a set makes ½‖ŷ-y‖² κ-PL* there, since ‖∇𝓛‖² = eᵀHe; and κ is sharp",
    "thm-conditioning-pl",
)
def conditioning_gives_pl(trial):
    yield from _ball_pl(trial)
    inside = vanilla_ball(trial.seed).network
    J = inside.jacobian(inside.start)
    off = relative(inside.kernel(inside.start), J @ J.mT)
    yield within("ball: H in closed form vs autograd", off, TWO_ROUTES)
    net = monotone_network(trial.seed)
    theta = net.start
    H, J, e = net.kernel(theta), net.jacobian(theta), net.predict(theta) - net.y
    values, vectors = torch.linalg.eigh(H)
    path = descent(net, theta, 0.5 / float(torch.linalg.eigvalsh(H)[-1]), 20)
    kappa = min(least(net.kernel(t)) for t in path.theta)
    ratio = float((path.slope**2 / (2 * kappa * path.value)).min())
    yield at_least("points of a descent: min ‖∇𝓛‖² ÷ 2κ𝓛", ratio, 1)
    value = float((J.mT @ e).pow(2).sum()) / float(e @ H @ e)
    yield equal("‖∇𝓛‖² by autograd ÷ eᵀHe", value, 1, TWO_ROUTES)
    off = relative(net.gradient(theta), J.mT @ e)
    yield within("∇𝓛 by adjoints vs autograd", off, TWO_ROUTES)
    sharp = Network(net.model, net.X, net.predict(theta) - vectors[:, 0])
    ratio = float(sharp.gradient(theta).pow(2).sum() / (2 * values[0] * sharp.value(theta)))
    yield equal("e along the last eigenvector: ‖∇𝓛‖² ÷ 2λ_min(H)𝓛", ratio, 1, 1e-6)


conditioning_gives_pl.breaks(
    "two inputs coincide while their labels differ: κ = 0",
    "ball",
    part=_ball_pl,
    points=_centre,
    twins=True,
)
conditioning_gives_pl.breaks(
    "another loss, ¼Σe_i⁴, flat at its minimum",
    "ball",
    part=_ball_pl,
    points=_centre,
    loss=_quartic_loss,
)


# --- nguyen2022: the kernel of the monotone DEQ ------------------------------------------------


@claim(
    "nguyen2022.proposition4",
    "ŷ' = -Ke for the monotone DEQ, K = K_A+K_B+K_U+ZZᵀ in entrywise products, n×n",
    "prop-monotone-ntk",
)
def monotone_kernel(trial, *, ordered=True, cross=1.0, swap=-1.0):
    known = monotone_reference(trial.seed)
    model, X, e = known.model, known.X, known.error
    W, a = model.W.detach(), model.a.detach()
    Z, pre = exact_states(W, model.inject(X).detach())
    D = (pre > 0).double()
    V = D * torch.linalg.solve(eye(10) - W.mT * D[:, None, :], a[:, None])[..., 0]
    blocks = hadamard_blocks(model, X, Z, V, cross=cross, swap=swap)
    dense = kronecker_blocks(model, X, Z, D, ordered=ordered)
    for name, block in blocks.items():
        kron = relative(block, dense[name])
        yield within(f"K_{name}: Hadamard vs Kronecker form", kron, TWO_ROUTES)
        package = relative(block, known.parts[name])
        yield within(f"K_{name}: Hadamard form vs gram_parts", package, TWO_ROUTES)
    K = torch.stack(list(blocks.values())).sum(0)
    yield within("K vs Jacobian of autograd", relative(K, known.jacobian), TWO_ROUTES)
    yield within("dŷ/dt along -∇𝓛 vs -Ke", relative(known.slope, -K @ e), 1e-3)
    yield at_least("λ_min(K) ÷ σ_min(Z)²", least(K) / least(Z @ Z.mT), 1)


monotone_kernel.breaks(
    "aᵀ⊗I_n in the place of I_n⊗aᵀ, as printed",
    *(f"K_{name}: Hadamard vs Kron" for name in "ABU"),
    ordered=False,
)
monotone_kernel.breaks("the mixed products of K_A left out", "K_A", "K vs", "dŷ", cross=0.0)
monotone_kernel.breaks(
    "W = B+Bᵀ in K_B: a plus for the minus of the swapped product", "K_B", "K vs", "dŷ", swap=1.0
)


# --- the book: wide limits of tangent kernels --------------------------------------------------


def _same(W: Tensor) -> Tensor:
    return W


@claim(
    "book.obs-limits",
    "Wide tangent kernels: P = p/(1-sp) for the adjoint states, three networks, block by block",
    "obs-limits",
    standing="partly",
    reason="the limits are derived with fresh randomness taken for granted, not proved",
)
def wide_limits(trial, *, weights=_same, draws=24):
    for network, pair in wide.PAIRS.items():
        blocks = wide.scores(*pair(trial.seed, 300, draws, weights))
        for name, score in blocks.items():
            yield within(f"{network}, block {name}: |mean - limit| in standard errors", score, 5.5)


wide_limits.breaks(
    "W skew: on the way back the adjoints meet what the states have seen",
    *(f"{network}, block W" for network in wide.PAIRS),
    weights=wide.skew,
    draws=8,
)
