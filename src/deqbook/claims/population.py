r"""Chapter 4, the population kernel of the vanilla DEQ: ten claims of ling2023.

The network is :math:`z=\sigma(Wz+Ux)` with entries of variance :math:`2\sigma_w^2/m` and
:math:`2/d`, and :math:`G=ZZ^\top`. As it widens, :math:`\tfrac1mG` tends to a kernel K that the
inputs alone determine, through :math:`S=\tfrac1dXX^\top` and :math:`Q=2\kappa_1`. The source gives
most bounds up to a constant; here each has one, from a proof that the chapter gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from deqbook import data
from deqbook.bounds import vanilla
from deqbook.claims.instances import picard_states
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
from deqbook.kernels import (
    kappa0,
    kappa1,
    population_kernels,
    population_limit,
    relu_coefficients,
)
from deqbook.linalg import operator_norm
from deqbook.models import VanillaDEQ
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Injected

CHAPTER = "04_ntk"
VARIANCE = 0.08  # σ_w² of the source's experiments
SIGMA = math.sqrt(VARIANCE)
EDGE = 2 * math.sqrt(2) * SIGMA  # 2√2 σ_w, where ‖W‖ concentrates


# --- tools -------------------------------------------------------------------------------------


def _inputs(seed: int, n: int, d: int = 10, *, radius: float = 1.0) -> Tensor:
    """Return n inputs of length √d (times ``radius``), as Assumption 2 asks."""
    return sphere(n, d, seed + 100, radius=radius * math.sqrt(d))


def _orthogonal(seed: int, n: int) -> Tensor:
    """Return n orthogonal inputs of length √n in dimension n: there λ_* does not depend on n."""
    return math.sqrt(n) * torch.linalg.qr(normal(n, n, g=generator(seed + 100)))[0]


def _second_moments(X: Tensor) -> Tensor:
    """Return S = XXᵀ/d."""
    return X @ X.mT / X.shape[1]


def _dual(x: Tensor) -> Tensor:
    """Return Q(x) = 2κ₁(x)."""
    return 2 * kappa1(x)


def _on_diagonal(depth: int, variance: float) -> float:
    """Return s_ℓ = (1-σ_w^{2ℓ})/(1-σ_w²), the diagonal of K^(ℓ)."""
    return sum(variance**k for k in range(depth))


def _least(K: Tensor) -> float:
    return float(torch.linalg.eigvalsh(K)[0])


def _layers(model: VanillaDEQ, X: Tensor, depth: int) -> Tensor:
    """Return Z^(0) = 0, …, Z^(depth) of the tied network, stacked in front."""
    with torch.no_grad():
        q = model.inject(X)
        return picard_states(Injected(model.iteration(), q), torch.zeros_like(q), depth)


def _fresh_layers(
    m: int, X: Tensor, depth: int, g: torch.Generator, *, gain: float = 2.0
) -> Tensor:
    """Return Z^(0) = 0, …, Z^(depth) with new weights W, U in every layer.

    ``gain`` is the 2 in the variances 2σ_w²/m and 2/d.
    """
    d, states = X.shape[1], [torch.zeros(len(X), m, dtype=X.dtype)]
    for _ in range(depth):
        W = normal(m, m, g=g) * math.sqrt(gain * VARIANCE / m)
        U = normal(m, d, g=g) * math.sqrt(gain / d)
        states.append(torch.relu(states[-1] @ W.mT + X @ U.mT))
    return torch.stack(states)


def _grams(states: Tensor) -> Tensor:
    """Return ZZᵀ/m for every layer."""
    return states @ states.mT / states.shape[-1]


# --- the dual activation -----------------------------------------------------------------------


def _moment(cross: Tensor, var1: Tensor, var2: Tensor, leak: float = 0.0) -> Tensor:
    r"""Return :math:`\mathbb E[\sigma(s)\sigma(t)]` by quadrature, without any arccos.

    Given s, t is normal with mean :math:`\mu=cs/v_1` and variance
    :math:`\tau^2=v_2-c^2/v_1`, and :math:`\mathbb E[\sigma(t)|s]=\mu\Phi(\mu/\tau)+\tau\Phi'
    (\mu/\tau)`. The outer integral is Gauss-Legendre in :math:`r=\sqrt{|s|}`, on either side of the
    kink. With ``leak`` the activation is :math:`(1-\text{leak})\sigma(t)+\text{leak}\,t`.
    """
    nodes, weights = _legendre(160)
    top = math.sqrt(12.0)  # beyond 12 standard deviations nothing is left
    r, dr = top * (nodes + 1) / 2, top * weights / 2
    total = torch.zeros_like(cross)
    for side in (1.0, -1.0) if leak else (1.0,):
        t = side * r**2
        mean = (cross / var1.sqrt())[..., None] * t
        tau = (var2 - cross**2 / var1).clamp(min=1e-30).sqrt()[..., None]
        inner = (1 - leak) * (mean * _cdf(mean / tau) + tau * _density(mean / tau)) + leak * mean
        outer = var1.sqrt()[..., None] * t * (1.0 if side > 0 else leak)
        total = total + (outer * inner * _density(t) * 2 * r * dr).sum(-1)
    return total


def _legendre(count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of Gauss-Legendre quadrature, by Golub and Welsch."""
    k = torch.arange(1, count, dtype=torch.float64)
    side = k / (4 * k**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(side, 1) + torch.diag(side, -1))
    return nodes, 2 * vectors[0] ** 2


def _cdf(x: Tensor) -> Tensor:
    return torch.special.ndtr(x)


def _density(x: Tensor) -> Tensor:
    return torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _dual_activation(
    seed: int, *, leak: float = 0.0, scaled: bool = True, half: float = 0.5
) -> Iterator[Measurement]:
    """Compare ½Q with quadrature, with random pairs, and at other variances."""
    x = torch.linspace(-0.99, 0.99, 67, dtype=torch.float64)
    one = torch.ones_like(x)
    gap = (_moment(x, one, one, leak) - half * _dual(x)).abs().max()
    yield within("max |E[σ(s)σ(t)] - ½Q(x)| over x, by quadrature", float(gap), 1e-10)
    g, count = generator(seed), 50_000
    at = torch.tensor([[-0.8], [-0.3], [0.3], [0.8]], dtype=torch.float64)
    s, other = normal(count, g=g), normal(count, g=g)
    t = at * s + (1 - at**2).sqrt() * other
    fire = [(1 - leak) * torch.relu(v) + leak * v for v in (s, t)]
    products = fire[0] * fire[1]
    away = (products.mean(1) - half * _dual(at[:, 0])).abs() / products.std(1) * math.sqrt(count)
    yield within(
        "random pairs: max |mean of σ(s)σ(t) - ½Q(x)|, in standard errors", float(away.max()), 5
    )
    v, w = 0.2 + 3 * torch.rand(2, 40, generator=g, dtype=torch.float64)
    c = (1.9 * torch.rand(40, generator=g, dtype=torch.float64) - 0.95) * (v * w).sqrt()
    size = (v * w).sqrt()
    said = half * _dual(c / size) * (size if scaled else 1)
    gap = (_moment(c, v, w, leak) - said).abs().max()
    yield within("other variances: max |E[σ(s)σ(t)] - ½√(vw) Q(c/√(vw))|", float(gap), 1e-9)


@claim(
    "ling2023.equation11",
    title="For unit normal s, t with correlation x, E[σ(s)σ(t)] = ½Q(x)",
    chapter=CHAPTER,
    ref="lem-dual-activation",
)
def dual_activation(trial: Trial) -> Iterable[Measurement]:
    """Check the formula, then the properties of Q that the proofs use."""
    yield from _dual_activation(trial.seed)
    ends = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    values = torch.tensor([1.0, 1 / math.pi, 0.0], dtype=torch.float64)
    gap = (_dual(ends) - values).abs().max()
    yield within("max |Q - (1, 1/π, 0)| at x = 1, 0, -1", float(gap), 1e-15)
    x, h = torch.linspace(-0.99, 0.99, 400, dtype=torch.float64), 1e-5
    slope = (_dual(x + h) - _dual(x - h)) / (2 * h)
    yield within("max |Q' - 2P(s > 0, t > 0)|", float((slope - 2 * kappa0(x)).abs().max()), 1e-7)
    yield at_most("max Q'", float(slope.max()), 1.0)
    yield at_least("min Q(x) - max(x, 0)", float((_dual(x) - x.clamp(min=0)).min()), 0.0)
    yield at_most("max Q(x) - xQ'(x) + Q'(x)", float((_dual(x) + (1 - x) * slope).max()), 1.0)


@dual_activation.control("a leaky activation, 0.9σ(t) + 0.1t")
def leaky(trial: Trial) -> Iterable[Measurement]:
    """Another activation has another dual."""
    return _dual_activation(trial.seed, leak=0.1)


@dual_activation.control("the factor ½ is left out")
def no_half(trial: Trial) -> Iterable[Measurement]:
    """ReLU kills one half of the line."""
    return _dual_activation(trial.seed, half=1.0)


@dual_activation.control("the variances are not 1, and the formula is used without its scale")
def not_standard(trial: Trial) -> Iterable[Measurement]:
    """Homogeneity brings the factor √(vw)."""
    return named(_dual_activation(trial.seed, scaled=False), "other")


# --- Definition 1 ------------------------------------------------------------------------------


def _definition(
    seed: int,
    *,
    radius: float = 1.0,
    gain: float = 2.0,
    inject_once: bool = False,
    depth: int = 4,
) -> Iterator[Measurement]:
    """Compare the kernels with quadrature, then with networks whose layers are independent."""
    X = _inputs(seed, 3, radius=radius)
    S = _second_moments(_inputs(seed, 3))  # the definition prints the diagonal 1
    kernels = population_kernels(S, VARIANCE, depth)
    K, off = torch.zeros_like(S), []
    for layer in range(depth):
        cov = VARIANCE * K + (S if layer == 0 or not inject_once else 0)
        v = cov.diagonal()
        K = 2 * _moment(cov, v[:, None].expand_as(cov), v.expand_as(cov))
        K.diagonal().copy_(v)  # 2E[σ(s)²] is the variance; there the quadrature has τ = 0
        off.append((K - kernels[layer]).abs().max())
    gap = torch.stack(off).max()
    yield within(f"max |K^(ℓ) - 2E[σ(s)σ(t)]| over ℓ ≤ {depth}, by quadrature", float(gap), 1e-10)
    m, draws, g = 150, 40, generator(seed + 300)
    grams = torch.stack(
        [_grams(_fresh_layers(m, X, depth, g, gain=gain))[1:] for _ in range(draws)]
    )
    error = torch.stack(kernels) - grams.mean(0)
    scores = error.abs() / (grams.std(0) / math.sqrt(draws))
    yield within(
        "untied network: max |mean of G^(ℓ)/m - K^(ℓ)|, in standard errors", float(scores.max()), 5
    )
    # the diagonal is exact: E = s_ℓ, and the variance obeys v ← σ_w⁴v + 5(s² + σ_w⁴v)/m
    spread, s, scores = 0.0, 0.0, torch.zeros(depth, dtype=torch.float64)
    for layer in range(depth):
        s = VARIANCE * s + 1
        carried = VARIANCE**2 * spread
        spread = carried + 5 * (s**2 + carried) / m
        mean = grams[:, layer].diagonal(dim1=1, dim2=2).mean(0)
        scores[layer] = (mean - s).abs().max() / math.sqrt(spread / draws)
    name = "untied network: max |mean of ‖z^(ℓ)‖²/m - s_ℓ|, in exact standard errors"
    yield within(name, float(scores.max()), 5)


@claim(
    "ling2023.definition1",
    title="K^(ℓ) is the mean of zzᵀ/m in layer ℓ of a wide network with independent layers",
    chapter=CHAPTER,
    ref="def-population-kernel",
)
def population_definition(trial: Trial) -> Iterable[Measurement]:
    """Take three inputs and four layers."""
    return _definition(trial.seed)


@population_definition.control("variances σ_w²/m and 1/d, without the 2")
def no_gain(trial: Trial) -> Iterable[Measurement]:
    """ReLU halves the second moment of every layer, and nothing makes up for it."""
    return named(_definition(trial.seed, gain=1.0), "untied")


@population_definition.control("inputs of length 1.5√d, where the printed diagonal 1 is for √d")
def not_on_the_sphere(trial: Trial) -> Iterable[Measurement]:
    """The diagonal of S is 2.25."""
    return named(_definition(trial.seed, radius=1.5), "untied")


@population_definition.control("the input enters the first layer only")
def inject_once(trial: Trial) -> Iterable[Measurement]:
    """Without S in every layer the kernels shrink to 0 like σ_w^{2ℓ}."""
    return named(_definition(trial.seed, inject_once=True), "max |K")


# --- Lemma 3 -----------------------------------------------------------------------------------


def _angles(
    seed: int, *, previous: bool = False, cross: bool = False, radius: float = 1.0
) -> Iterator[Measurement]:
    """Run the recursion of the angles beside Definition 1, as corrected or as printed.

    ``previous`` takes s_{ℓ-1} for s_ℓ in (13), ``cross`` takes K_ij for K_ii below the line.
    """
    S = _second_moments(_inputs(seed, 6, radius=radius))
    kernels = population_kernels(S, VARIANCE, 30)
    cosine = S
    off: dict[str, list[Tensor]] = {"K": [], "cos": [], "diagonal": []}
    before = torch.zeros_like(S)
    for layer, K in enumerate(kernels, start=1):
        s = _on_diagonal(layer, VARIANCE)
        weight = _on_diagonal(layer - 1, VARIANCE) if previous else s
        if layer > 1:
            cosine = (1 - 1 / weight) * _dual(cosine) + S / weight
        below = VARIANCE * (before if cross else before.diagonal()) + 1
        off["cos"].append((cosine - (VARIANCE * before + S) / below).abs().max())
        off["K"].append((K - s * _dual(cosine)).abs().max())
        off["diagonal"].append((K.diagonal() - s).abs().max())
        before = K
    worst = {name: torch.stack(gaps).max() for name, gaps in off.items()}
    yield within("max |K^(ℓ) - s_ℓQ(cosθ^(ℓ))| over ℓ ≤ 30", float(worst["K"]), 1e-13)
    yield within("max |cosθ^(ℓ) by recursion - by its definition|", float(worst["cos"]), 1e-13)
    yield within("max |K_ii^(ℓ) - (1-σ_w^{2ℓ})/(1-σ_w²)|", float(worst["diagonal"]), 1e-13)


@claim(
    "ling2023.lemma3",
    title="cosθ^(ℓ) = (1-1/s_ℓ)Q(cosθ^(ℓ-1)) + S/s_ℓ and K^(ℓ) = s_ℓQ(cosθ^(ℓ)) (corrected)",
    chapter=CHAPTER,
    ref="lem-angle-recursion",
)
def angle_recursion(trial: Trial) -> Iterable[Measurement]:
    """Compare with Definition 1 over thirty layers."""
    return _angles(trial.seed)


@angle_recursion.control("s_{ℓ-1} in place of s_ℓ, as printed in (13): erratum L6")
def previous_layer(trial: Trial) -> Iterable[Measurement]:
    """At ℓ = 2 the printed weights are 0 and 1: the first layer is forgotten."""
    return named(_angles(trial.seed, previous=True), "max |K^", "max |cos")


@angle_recursion.control("K_ij below the line of cosθ, as printed: erratum L6")
def cross_entry_below(trial: Trial) -> Iterable[Measurement]:
    """The variance of a unit is a diagonal entry."""
    return named(_angles(trial.seed, cross=True), "max |cos")


# --- Theorem 3 ---------------------------------------------------------------------------------


def _hermite_bound(cosine: Tensor, variance: float, order: int = 400) -> float:
    r"""Return a lower bound on :math:`\lambda_{\min}(K)` that is positive if no |cosθ_ij| is 1.

    :math:`K=\frac1{1-\sigma_w^2}\sum_k2a_k^2C^{\circ k}` with :math:`C=\cos\theta\succeq0`. Every
    term is positive semidefinite, and Gershgorin's theorem gives
    :math:`\lambda_{\min}(C^{\circ k})\ge1-\max_i\sum_{j\ne i}|C_{ij}|^k`.
    """
    off = (cosine - torch.diag(cosine.diagonal())).abs()
    total = torch.zeros((), dtype=torch.float64)
    power = torch.ones_like(off)
    power.fill_diagonal_(0)
    for weight in relu_coefficients(order).tolist():
        total += 2 * weight**2 * (1 - power.sum(1).max()).clamp(min=0)
        power = power * off
    return float(total) / (1 - variance)


POSITIVE = 1e-6  # far above rounding, far below every bound met here


def _positive(name: str, S: Tensor, variance: float) -> Iterator[Measurement]:
    """Compare λ_* with its lower bound, which must itself be positive."""
    limit = population_limit(S, variance)
    bound = _hermite_bound(limit.cosine, variance)
    yield at_least(f"{name}: λ_* above its Hermite bound", _least(limit.K), max(bound, POSITIVE))


def _to_the_limit(
    seed: int, *, variance: float = VARIANCE, radius: float = 1.0
) -> Iterator[Measurement]:
    """Follow K^(ℓ) to its limit: every gap against σ_w^{2ℓ}, and the limit against (14)."""
    n, depth = 6, 8
    S = _second_moments(_inputs(seed, n, radius=radius))
    deep = population_kernels(S, variance, 61)
    yield given("σ_w²", variance, "≤", 0.125)
    yield within("‖K^(61)-K^(60)‖_F", (deep[60] - deep[59]).norm(), 1e-12)
    K, kernels = deep[-1], torch.stack([torch.zeros_like(S), *deep[:depth]])
    decay = variance ** torch.arange(depth + 1, dtype=torch.float64)
    pairs = torch.triu_indices(n, n, 1)
    steps = ((kernels[1:] - kernels[:-1]) / decay[:-1, None, None])[:, pairs[0], pairs[1]]
    yield at_most("max over i ≠ j of (K^(ℓ+1)-K^(ℓ))_ij ÷ σ_w^{2ℓ}", float(steps.max()), 1.0)
    yield at_least("min over i ≠ j of (K^(ℓ+1)-K^(ℓ))_ij ÷ σ_w^{2ℓ}", float(steps.min()), 0.0)
    gaps = torch.linalg.matrix_norm(K - kernels) * (1 - variance) / decay
    yield at_most("max ‖K-K^(ℓ)‖_F ÷ nσ_w^{2ℓ}/(1-σ_w²)", float(gaps.max()) / n, 1.0)
    yield at_least("min ‖K-K^(ℓ)‖_F ÷ √n σ_w^{2ℓ}/(1-σ_w²)", float(gaps.min()) / n**0.5, 1.0)
    c = S
    for _ in range(60):
        c = variance * _dual(c.clamp(-1, 1)) + (1 - variance) * S
    away = (K - _dual(c.clamp(-1, 1)) / (1 - variance)).abs().max()
    yield within("max |K - Q(cosθ)/(1-σ_w²)|, cosθ from (14)", float(away), 1e-12)


@claim(
    "ling2023.theorem3",
    title="K^(ℓ) converges to K, ‖K-K^(ℓ)‖_F ≤ nσ_w^{2ℓ}/(1-σ_w²), and λ_min(K) > 0",
    chapter=CHAPTER,
    ref="thm-population-limit",
)
def infinite_depth(trial: Trial) -> Iterable[Measurement]:
    """Follow six inputs through eight layers; then the spectrum of the limit."""
    yield from _to_the_limit(trial.seed)
    S = _second_moments(_inputs(trial.seed, 6))
    ways = [population_limit(S, VARIANCE, method=way).K for way in ("newton", "picard")]
    yield within("max |K by Newton - by Picard|", float((ways[0] - ways[1]).abs().max()), 1e-14)
    yield from _positive("six inputs", S, VARIANCE)


@infinite_depth.control("σ_w² = 1.1")
def no_limit(trial: Trial) -> Iterable[Measurement]:
    """The diagonal grows like σ_w^{2ℓ}."""
    return named(_to_the_limit(trial.seed, variance=1.1), "hypothesis", "‖K^(61)")


@infinite_depth.control("inputs of length 1.5√d")
def long_inputs(trial: Trial) -> Iterable[Measurement]:
    """All gaps are 2.25 times as large."""
    return named(_to_the_limit(trial.seed, radius=1.5), "max over", "max ‖K", "max |K - Q")


@infinite_depth.control("inputs of length ½√d")
def short_inputs(trial: Trial) -> Iterable[Measurement]:
    """The kernel is a quarter of what (14) says."""
    return named(_to_the_limit(trial.seed, radius=0.5), "min ‖K", "max |K - Q")


@infinite_depth.control("two inputs coincide")
def twins(trial: Trial) -> Iterable[Measurement]:
    """K has two equal rows."""
    X = _inputs(trial.seed, 6)
    return _positive("six inputs", _second_moments(torch.cat([X[:5], X[:1]])), VARIANCE)


# --- Assumption 2 ------------------------------------------------------------------------------


def _pictures(seed: int, n: int = 30) -> Tensor:
    """Return n pictures of digits, scaled to length √d; each seed has its own."""
    rows = data.load("mnist01", norm="sqrt_d", n_train=n * (seed + 1)).x_train
    return rows[n * seed :]


def _spread_out(X: Tensor, variance: float = VARIANCE) -> Iterator[Measurement]:
    """Measure the two parts of the assumption, and what they give."""
    n, d = X.shape
    S = _second_moments(X)
    yield given("max |‖x_i‖/√d - 1|", (X.norm(dim=1) / d**0.5 - 1).abs().max(), "≤", 1e-12)
    pairs = torch.triu_indices(n, n, 1)
    # the sine keeps its digits where the cosine is 1 up to rounding
    unit = X / X.norm(dim=1, keepdim=True)
    apart = (unit[pairs[0]] - unit[pairs[1]]).norm(dim=1).min()
    yield given("least distance of two directions", apart, "≥", 1e-3)
    yield from _positive("pictures", S, variance)
    K = population_limit(S, variance).K
    off = (K.diagonal() - 1 / (1 - variance)).abs().max()
    yield within("pictures: max |K_ii - 1/(1-σ_w²)|", float(off), 1e-12)


def _antipodal(seed: int, variance: float) -> Iterator[Measurement]:
    """Take three antipodal pairs in the plane, their lines about 60° apart."""
    jitter = 0.4 * torch.rand(3, generator=generator(seed + 400), dtype=torch.float64)
    angle = torch.arange(3, dtype=torch.float64) * math.pi / 3 + jitter
    half = math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], dim=1)
    S = _second_moments(torch.cat([half, -half]))
    yield from _positive("three antipodal pairs in the plane", S, variance)
    cosine = float(population_limit(S, variance).cosine.min())
    # at S_ij = -1: c = σ_w²Q(c) - (1-σ_w²), and Q ≥ 0
    yield at_least("three antipodal pairs: least (1 + cosθ_ij) ÷ σ_w²", (1 + cosine) / VARIANCE, 1)


@claim(
    "ling2023.assumption2",
    title="Inputs of one length, no two equal: this makes K positive definite (antipodes may stay)",
    chapter=CHAPTER,
    ref="prop-no-twins",
)
def sphere_data(trial: Trial) -> Iterable[Measurement]:
    """Check pictures of digits, then inputs of which each has its antipode."""
    yield from _spread_out(_pictures(trial.seed))
    yield from _antipodal(trial.seed, VARIANCE)


@sphere_data.control("two pictures are equal")
def equal_pictures(trial: Trial) -> Iterable[Measurement]:
    """No kernel tells them apart."""
    X = _pictures(trial.seed)
    names = ("hypothesis: least", "pictures: λ")
    return named(_spread_out(torch.cat([X[:-1], X[:1]])), *names)


@sphere_data.control("one picture is twice as bright as another: parallel, not on the sphere")
def brighter(trial: Trial) -> Iterable[Measurement]:
    """The network is positively homogeneous, so K is singular although the inputs differ."""
    X = _pictures(trial.seed)
    return list(_spread_out(torch.cat([X[:-1], 2 * X[:1]])))


@sphere_data.control("antipodes in a single layer, σ_w = 0")
def antipodes_one_layer(trial: Trial) -> Iterable[Measurement]:
    """σ(t) - σ(-t) = t is linear, and three vectors in the plane are linearly dependent."""
    return list(_antipodal(trial.seed, 0.0))


# --- Theorem 4 ---------------------------------------------------------------------------------


def _truncation(
    seed: int, *, variance: float = VARIANCE, fresh: bool = False
) -> Iterator[Measurement]:
    """Compare G^(ℓ) with G, given ‖W‖; ``fresh`` takes new weights in every layer."""
    m, depth, X = 200, 60, _inputs(seed, 6)
    model = VanillaDEQ.init(m, 10, variance=variance, seed=seed)
    tied = _layers(model, X, 150)
    rate = operator_norm(model.W.detach())
    yield given("‖W‖", rate, "≤", 1.0)
    end, states = tied[-1], tied[: depth + 1]
    if fresh:
        states = _fresh_layers(m, X, depth, generator(seed + 300))
    step = (states[-1] - states[-2]).norm() / states[1].norm()
    yield within(f"‖Z^({depth})-Z^({depth - 1})‖_F ÷ ‖Z^(1)‖_F", step, 1e-12)
    layer = torch.arange(1, depth + 1, dtype=torch.float64)
    gaps = torch.linalg.matrix_norm(_grams(states[1:]) - _grams(end))
    bounds = 2 * rate**layer / (1 - rate) ** 2 * end.new_tensor(float(tied[1].norm()) ** 2 / m)
    name = "max over ℓ of (1/m)‖G-G^(ℓ)‖_F ÷ 2‖W‖^ℓ‖Z^(1)‖_F²/(m(1-‖W‖)²)"
    yield at_most(name, float((gaps / bounds).max()), 1.0)
    away = torch.linalg.matrix_norm(states[2:12] - end)
    factor = (away[-1] / away[0]) ** (1 / 9)
    yield equal("factor per layer of ‖Z-Z^(ℓ)‖_F", factor, math.sqrt(variance), 0.04)


def _truncation_tail(seed: int, *, scale: float = 1.0) -> Measurement:
    """Count networks beyond the bound whose failure probability is known.

    With probability at least 1 - e^{-2mε²} - ne^{-mt²/4}: ‖W‖ ≤ q = 2√2σ_w(1+ε), every
    ‖z_i^(1)‖ ≤ √m(1+t), and the gap is at most 2n(1+t)²q^ℓ/(1-q)². ``scale`` multiplies W.
    """
    m, n, depth, draws, eps, t = 100, 4, 30, 20, 0.15, 0.5
    X, q, beyond = _inputs(seed, n), EDGE * (1 + eps), []
    layer = torch.arange(1, depth + 1, dtype=torch.float64)
    bounds = 2 * n * (1 + t) ** 2 * q**layer / (1 - q) ** 2
    for k in range(draws):
        drawn = VanillaDEQ.init(m, 10, seed=1000 * seed + k)
        model = VanillaDEQ(scale * drawn.W.detach(), drawn.U.detach(), drawn.a.detach())
        grams = _grams(_layers(model, X, 100))
        gaps = torch.linalg.matrix_norm(grams[1 : depth + 1] - grams[-1])
        beyond.append(float(not bool((gaps <= bounds).all())))
    chance = math.exp(-2 * m * eps**2) + n * math.exp(-m * t**2 / 4)
    name = "share of networks with (1/m)‖G-G^(ℓ)‖_F > 2n(1+t)²q^ℓ/(1-q)² for some ℓ"
    return at_most(name, sum(beyond) / draws, chance)


@claim(
    "ling2023.theorem4",
    title="The states of layer ℓ are within O(n‖W‖^ℓ) of the equilibrium: (1/m)‖G-G^(ℓ)‖_F",
    chapter=CHAPTER,
    ref="thm-depth-truncation",
)
def depth_truncation(trial: Trial) -> Iterable[Measurement]:
    """Given ‖W‖ the bound is deterministic; over draws it has an explicit failure probability."""
    yield from _truncation(trial.seed)
    yield _truncation_tail(trial.seed)


@depth_truncation.control("new weights in every layer: each layer has the same law as before")
def untied_layers(trial: Trial) -> Iterable[Measurement]:
    """The states do not settle."""
    names = ("‖Z^", "max over", "factor")
    return named(_truncation(trial.seed, fresh=True), *names)


@depth_truncation.control("σ_w² = 1.2 instead of less than 1/8")
def expanding(trial: Trial) -> Iterable[Measurement]:
    """The states grow, and there is no equilibrium to approach."""
    return named(_truncation(trial.seed, variance=1.2), "hypothesis", "‖Z^")


@depth_truncation.control("W four times as large as Assumption 1 has it")
def scaled_up(trial: Trial) -> Iterable[Measurement]:
    """σ_w is then 1.13."""
    yield _truncation_tail(trial.seed, scale=4.0)


# --- Lemma 4 -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reconstruction:
    """The matrix M and the vectors h, h' of one pair of inputs, and the layers they are for."""

    M: Tensor
    h: Tensor
    other: Tensor
    states: Tensor  # Z^(0), …, Z^(ℓ+1) of the pair


def _gram_schmidt(M: Tensor) -> Tensor:
    """Return the orthonormal columns of Gram and Schmidt: QR with a positive diagonal of R."""
    if M.shape[1] == 0:
        return M
    Q, R = torch.linalg.qr(M)
    return Q * R.diagonal().sign()


def reconstruct(
    model: VanillaDEQ, X: Tensor, layer: int, *, variance: float, printed: bool = False
) -> Reconstruction:
    r"""Return M, h, h' with :math:`G^{(\ell+1)}_{12}=\sigma(Mh)^	op\sigma(Mh')` for two inputs.

    V is an orthonormal basis of the layers before ℓ; p and q are what :math:`z_1^{(\ell)}` and
    :math:`z_2^{(\ell)}` add to it, and :math:`q_\perp` the part of q orthogonal to p. The source
    prints q where :math:`q_\perp` is meant (``printed``).
    """
    m, d = model.U.shape
    W, U = model.W.detach(), model.U.detach()
    states = _layers(model, X, layer + 1)
    before = states[1:layer].reshape(2 * (layer - 1), m)
    V = _gram_schmidt(before.mT)
    first, second = states[layer]
    p, q = first - V @ (V.mT @ first), second - V @ (V.mT @ second)
    last = q if printed else q - (p @ q) / (p @ p) * p
    basis = torch.cat([V, (p / p.norm())[:, None], (last / last.norm())[:, None]], dim=1)
    root, zero = math.sqrt(variance / m), torch.zeros((), dtype=W.dtype)
    M = torch.cat([W @ basis / root, math.sqrt(d) * U], dim=1)
    h, other = (
        torch.cat([root * torch.cat([V.mT @ z, torch.stack(tail)]), x / math.sqrt(d)])
        for z, tail, x in (
            (first, (p.norm(), zero), X[0]),
            (second, (p @ q / p.norm(), last.norm()), X[1]),
        )
    )
    return Reconstruction(M, h, other, states)


def _identities(seed: int, *, printed: bool = False) -> Iterator[Measurement]:
    """Check the three identities for ℓ = 1, …, 4."""
    X, d, m = _inputs(seed, 2, 7), 7, 200
    model = VanillaDEQ.init(m, d, seed=seed)
    S = _second_moments(X)
    rebuilt, norms, columns = [], [], []
    for layer in range(1, 5):
        r = reconstruct(model, X, layer, variance=VARIANCE, printed=printed)
        now, after = (r.states[k] @ r.states[k].mT for k in (layer, layer + 1))
        value = torch.relu(r.M @ r.h) @ torch.relu(r.M @ r.other)
        rebuilt.append((value - after[0, 1]).abs() / after[0, 1])
        gram = torch.stack([r.h, r.other]) @ torch.stack([r.h, r.other]).mT
        norms.append((gram - VARIANCE / m * now - S).abs().max())
        columns.append(abs(r.M.shape[1] - 2 * layer - d))
    gap = torch.stack(rebuilt).max()
    yield within("max |σ(Mh)·σ(Mh') - G_ij^(ℓ+1)| ÷ G_ij^(ℓ+1)", float(gap), 1e-11)
    gap = torch.stack(norms).max()
    yield within("max |Gram matrix of h, h' - (σ_w²G^(ℓ)/m + S)|", float(gap), 1e-12)
    yield within("columns of M, less 2ℓ+d", max(columns), 0)


def _law(
    seed: int, layer: int, *, printed: bool = False, given: bool = False
) -> Iterator[Measurement]:
    """Pool M over draws and compare with N(0, 2), in standard errors.

    ``given`` keeps the rows of the units that are on in layer ℓ: a look at the previous layers.
    """
    m, d, draws = 100, 3, 40
    # 60° apart: p and q of the first layer then have the cosine Q(½) = 0.61
    X, rows = _orthogonal(seed, d)[:2], []
    X = torch.stack([X[0], 0.5 * X[0] + math.sqrt(0.75) * X[1]])
    for k in range(draws):
        model = VanillaDEQ.init(m, d, seed=1000 * seed + k)
        r = reconstruct(model, X, layer, variance=VARIANCE, printed=printed)
        rows.append(r.M[r.states[layer][0] > 0] if given else r.M)
    M = torch.cat(rows)
    size = len(M)
    means = M.mean(0).abs().max() / math.sqrt(2 / size)
    yield within(
        f"ℓ = {layer}, entries of M: largest mean of a column, in standard errors", float(means), 5
    )
    variances = (M.var(0) - 2).abs().max() / (2 * math.sqrt(2 / size))
    yield within(
        f"ℓ = {layer}, entries of M: largest |variance of a column - 2|, in standard errors",
        float(variances),
        5,
    )
    fourth = (M.pow(4).mean() - 12).abs() / math.sqrt(16 * 96 / M.numel())
    yield within(
        f"ℓ = {layer}, entries of M: |fourth moment - 12|, in standard errors", float(fourth), 5
    )
    corr = torch.corrcoef(M.mT)
    corr.fill_diagonal_(0)
    yield within(
        f"ℓ = {layer}, columns of M: largest correlation, in standard errors",
        corr.abs().max() * size**0.5,
        5,
    )


@claim(
    "ling2023.lemma4",
    title="G_ij^(ℓ+1) = σ(Mh)·σ(Mh') with i.i.d. N(0, 2) entries of M, 2ℓ+d columns (corrected)",
    chapter=CHAPTER,
    ref="lem-fresh-randomness",
)
def fresh_randomness(trial: Trial) -> Iterable[Measurement]:
    """Check the identities for four layers, and the law of M over forty networks."""
    yield from _identities(trial.seed)
    for layer in (1, 2):
        yield from _law(trial.seed, layer)


@fresh_randomness.control("q in place of its part orthogonal to p, as printed: erratum L8")
def printed_q(trial: Trial) -> Iterable[Measurement]:
    """The direction of p is counted twice, and two columns of M are correlated."""
    yield from named(_identities(trial.seed, printed=True), "max")
    yield from named(_law(trial.seed, 1, printed=True), "ℓ = 1, columns")


@fresh_randomness.control("given the previous layers, as printed: rows of units on in layer ℓ")
def given_layers(trial: Trial) -> Iterable[Measurement]:
    """A unit that is on has seen a large entry of Wz: that column is not fresh."""
    return named(_law(trial.seed, 2, given=True), "ℓ = 2, entries of M: largest mean")


# --- Theorem 5 ---------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _against_population(
    seed: int, m: int, draws: int, depth: int, *, radius: float = 1.0
) -> Tensor:
    """Return ‖G^(ℓ)/m - K^(ℓ)‖_F of the tied network, by draw and layer 1, …, depth (n = 4)."""
    X = _inputs(seed, 4, radius=radius)
    kernels = torch.stack(population_kernels(_second_moments(_inputs(seed, 4)), VARIANCE, depth))
    found = []
    for k in range(draws):
        model = VanillaDEQ.init(m, 10, seed=1000 * seed + k)
        found.append(torch.linalg.matrix_norm(_grams(_layers(model, X, depth))[1:] - kernels))
    return torch.stack(found)


BEYOND = "share of networks with ‖G^(ℓ)/m-K^(ℓ)‖_F > n(2√2σ_w)^ℓ"


def _beyond(errors: Tensor, layers: range) -> Measurement:
    bounds = 4 * EDGE ** torch.tensor([float(k) for k in layers], dtype=torch.float64)
    chosen = errors[:, [k - 1 for k in layers]]
    return within(BEYOND, float((chosen > bounds).any(dim=1).double().mean()), 0.0)


def _width_and_depth(
    seed: int, *, radius: float = 1.0, promised: float = 1.0
) -> Iterator[Measurement]:
    """Compare two widths and two depths of the tied network."""
    narrow, wide = (
        _against_population(seed, m, draws, 12, radius=radius) for m, draws in ((50, 30), (800, 12))
    )
    yield _beyond(wide, range(1, 6))
    rms = [errors[:, 5].pow(2).mean().sqrt() for errors in (narrow, wide)]
    yield equal("exponent of m in the error at ℓ = 6", math.log(rms[1] / rms[0], 16), -0.5, 0.15)
    deep, shallow = (wide[:, k - 1].pow(2).mean().sqrt() for k in (12, 3))
    yield equal("error at ℓ = 12 ÷ error at ℓ = 3", float(deep / shallow), promised, 0.1)


@claim(
    "ling2023.theorem5",
    title="Tied or untied, one limit: ‖G^(ℓ)/m-K^(ℓ)‖_F ≤ n(2√2σ_w)^ℓ while m(8σ_w²)^ℓ is large",
    chapter=CHAPTER,
    ref="thm-tied-untied",
)
def tied_and_untied(trial: Trial) -> Iterable[Measurement]:
    """Check the bound where its probability is not empty, then what the error depends on."""
    yield given("m(8σ_w²)^ℓ ÷ ℓ² at m = 800, ℓ = 5", 800 * EDGE**10 / 25, "≥", 1.0)
    yield from _width_and_depth(trial.seed)


@tied_and_untied.control("too deep for the width: m = 50, ℓ = 20, m(8σ_w²)^ℓ < 0.01")
def too_deep(trial: Trial) -> Iterable[Measurement]:
    """The probability in the theorem is empty, and so is the bound."""
    yield _beyond(_against_population(trial.seed, 50, 10, 20), range(20, 21))


@tied_and_untied.control("inputs of length 1.5√d, the kernels those of length √d")
def wrong_length(trial: Trial) -> Iterable[Measurement]:
    """No width brings the two together."""
    return named(_width_and_depth(trial.seed, radius=1.5), BEYOND, "exponent")


@tied_and_untied.control(
    "an error that falls exponentially in ℓ, as worded in Section 4: erratum L9"
)
def falls_with_depth(trial: Trial) -> Iterable[Measurement]:
    """The bound falls with depth; the error does not."""
    return named(_width_and_depth(trial.seed, promised=EDGE**9), "error")


# --- Theorem 2 ---------------------------------------------------------------------------------


FAIL = 0.25  # the t of Theorem 2


def _enough(n: int, least: float) -> int:
    r"""Return :math:`m=24n^2/(t\lambda_*^2(1-\sigma_w^2)^2)`, rounded up.

    In a layer with weights of its own an entry of :math:`\tfrac1mG` is a mean of m independent
    products with second moment at most :math:`6/(1-\sigma_w^2)^2`, so the mean square of
    :math:`\|\tfrac1mG-K\|_F` is about :math:`6n^2/m(1-\sigma_w^2)^2` or less, and Markov's
    inequality gives :math:`\|\tfrac1mG-K\|_F\le\lambda_*/2` with probability 1-t. The source hides
    the constant, so this one is derived, not fitted. That shared weights change nothing is what
    the draws test.
    """
    return math.ceil(24 * n**2 / (FAIL * least**2 * (1 - VARIANCE) ** 2))


def _start(seed: int, *, m: int | None = None, repeated: bool = False) -> Iterator[Measurement]:
    """Draw networks and compare λ_0 with mλ_*/2, and G/m with K."""
    n, draws = 2, 12
    X = _orthogonal(seed, n)
    K = population_limit(_second_moments(X), VARIANCE).K
    least = _least(K)
    m = _enough(n, least) if m is None else m
    if repeated:
        X = torch.cat([X[:1], X[:1]])
    lambdas, gaps = [], []
    for k in range(draws):
        model = VanillaDEQ.init(m, n, seed=1000 * seed + k)
        G = _grams(_layers(model, X, 20)[-1])  # σ_w^20 is 1e-11
        lambdas.append(_least(G))
        gaps.append(float((G - K).norm()))
    weyl = min(v + g for v, g in zip(lambdas, gaps)) / least
    yield at_least("min (λ_0/m + ‖G/m-K‖_F) ÷ λ_*", weyl, 1.0)
    short = sum(not v >= least / 2 for v in lambdas) / draws
    yield at_most("share of networks with λ_0 < mλ_*/2", short, FAIL)
    far = sum(not g <= least / 2 for g in gaps) / draws
    yield at_most("share of networks with ‖G/m-K‖_F > λ_*/2", far, FAIL)


@claim(
    "ling2023.theorem2",
    title="λ_min(G(0)) ≥ mλ_*/2 with probability 1-t once m is of the order n²λ_*⁻²",
    chapter=CHAPTER,
    ref="thm-initial-eigenvalue",
)
def initial_eigenvalue(trial: Trial) -> Iterable[Measurement]:
    """Draw twelve networks on two orthogonal inputs, at the width that second moments give."""
    return _start(trial.seed)


@initial_eigenvalue.control("as many units as inputs, m = n")
def narrow(trial: Trial) -> Iterable[Measurement]:
    """Two units are no sample of the population."""
    return named(_start(trial.seed, m=2), "share")


@initial_eigenvalue.control("the second input equals the first, λ_* kept")
def repeated_input(trial: Trial) -> Iterable[Measurement]:
    """G is singular at every width."""
    return named(_start(trial.seed, repeated=True), "share")


# --- Section 3.2 -------------------------------------------------------------------------------

SMALL = 1e-3  # σ_w² here: small, so that 1-‖W‖ costs little
LABEL = 0.01  # |y_i|, the constant in |y_i| = O(1)


def _radius(n: int, least: float) -> float:
    """Return δ = √(λ_*/n)/10."""
    return 0.1 * math.sqrt(least / n)


def _needs(m: float, n: int, d: int, least: float) -> dict[str, float]:
    r"""Return need ÷ have of (7), (8), (9') for a(0) = 0, on an event of known probability.

    On it ‖W‖ ≤ 2√2σ_w(1+ε), ‖U‖ ≤ √(2/d)(√m+√d+s) and λ_0 ≥ mλ_*/2; it fails with probability at
    most e^{-2mε²} + e^{-s²/2} + t, here with ε = 0.3 and s = 3.
    """
    delta = _radius(n, least)
    left = 1 - 2 * math.sqrt(2 * SMALL) * 1.3 - delta
    u = math.sqrt(2 / d) * (math.sqrt(m) + math.sqrt(d) + 3) + delta
    lambda0, x, e = m * least / 2, math.sqrt(n * d), LABEL * math.sqrt(n)
    cw, cu, ca = u * delta / left**2, delta / left, u / left
    C = cw**2 + cu**2
    return {
        "(7)": 4 / delta * max(cw, cu, ca) * x * e / lambda0,
        "(8)": 4 * (2 + math.sqrt(2)) * C * x**2 * e / delta / lambda0**1.5,
        "(9')": 8 * C * x**2 / lambda0,
    }


def condition_width(n: int, d: int, least: float) -> int:
    """Return the least m from which on ``_needs`` are all at most 1; it grows like n³λ_*⁻³."""
    low, high = 1.0, 2.0
    while max(_needs(high, n, d, least).values()) > 1:
        low, high = high, 2 * high
    while high - low > 0.5:
        middle = 0.5 * (low + high)
        good = max(_needs(middle, n, d, least).values()) <= 1
        low, high = (low, middle) if good else (middle, high)
    return math.ceil(high)


def _condition_at(
    seed: int, n: int, *, readout: float = 0.0, width: float = 1.0, delta: float | None = None
) -> Iterator[Measurement]:
    """Measure Condition 1 at the width that was computed; 1 is the read-out of Assumption 1."""
    X, y = _orthogonal(seed, n), LABEL * signs(n, g=generator(seed + 200))
    least = _least(population_limit(_second_moments(X), SMALL).K)
    m = math.ceil(width * condition_width(n, n, least))
    drawn = VanillaDEQ.init(m, n, variance=SMALL, seed=seed)
    model = VanillaDEQ(drawn.W.detach(), drawn.U.detach(), readout * drawn.a.detach())
    asked = vanilla.condition_one(model, X, y, delta or _radius(n, least))
    lambda0 = asked.constants["lambda0"]
    yield given(f"n = {n}: λ_0 ÷ (mλ_*/2)", lambda0 / (m * least / 2), "≥", 1.0)
    for name in ("(7)", "(8)", "(9')"):
        yield at_most(f"n = {n}: {name}, need ÷ have", asked[name].ratio, 1.0)


def _whatever_delta(seed: int, n: int, readout: float) -> float:
    """Return the least of r₇√r₉ ÷ (8‖U‖²‖X‖_F²‖e(0)‖/λ_0^{3/2}) over δ.

    r₇ and r₉ are need ÷ have of (7) and of the printed (9). Both at most 1 for some δ would make
    the denominator at most 1.
    """
    X, y = _orthogonal(seed, n), LABEL * signs(n, g=generator(seed + 200))
    drawn = VanillaDEQ.init(60, n, variance=SMALL, seed=seed)
    model = VanillaDEQ(drawn.W.detach(), drawn.U.detach(), readout * drawn.a.detach())
    found = []
    for delta in torch.logspace(-3, -0.3, 12, dtype=torch.float64).tolist():
        asked = vanilla.condition_one(model, X, y, delta, printed=True)
        known = asked.constants
        size = operator_norm(model.U.detach()) ** 2 * float(X.norm()) ** 2
        floor = 8 * size * known["error"] / known["lambda0"] ** 1.5
        found.append(asked["(7)"].ratio * math.sqrt(asked["(9)"].ratio) / floor)
    return min(found)


GROWTH = "log₂ of the width for 2n inputs ÷ the width for n, at n = 1024"


@claim(
    "ling2023.section3.2",
    title="Condition 1 takes a(0) = 0, δ ~ √(λ_*/n) and a width of order n³λ_*⁻³ (corrected)",
    chapter=CHAPTER,
    ref="prop-condition-width",
)
def width_for_condition(trial: Trial) -> Iterable[Measurement]:
    """Compute a width from the norms alone, draw the network, and look at Condition 1."""
    for n in (2, 4):
        yield from _condition_at(trial.seed, n)
    for readout in (0.0, 1.0):
        ratio = _whatever_delta(trial.seed, 3, readout)
        yield at_least(f"‖a(0)‖ ≈ {readout:g}: least r₇√r₉ ÷ its bound over δ", ratio, 1.0)
    widths = [condition_width(n, n, 1 - 1 / math.pi) for n in (1024, 2048)]
    yield equal(GROWTH, math.log2(widths[1] / widths[0]), 3, 0.05)


@width_for_condition.control("the read-out of Assumption 1, a(0) ~ N(0, I/m)")
def ordinary_readout(trial: Trial) -> Iterable[Measurement]:
    """(9) then fails at every width: erratum L1."""
    return named(_condition_at(trial.seed, 4, readout=1.0), "n = 4: (")


@width_for_condition.control("a radius δ that does not shrink with λ_*/n: δ = 0.3")
def wide_balls(trial: Trial) -> Iterable[Measurement]:
    """(9') bounds δ from above whatever the width."""
    return named(_condition_at(trial.seed, 4, delta=0.3), "n = 4: (9')")


@width_for_condition.control("a tenth of the width")
def tenth_of_the_width(trial: Trial) -> Iterable[Measurement]:
    """(7) fails: its need ÷ have falls like m^{-1/2}."""
    return named(_condition_at(trial.seed, 4, width=0.1), "n = 4: (7)")


@width_for_condition.control("the printed width n²λ_*⁻²log(n/λ_*t): erratum L2")
def printed_width(trial: Trial) -> Iterable[Measurement]:
    """It grows by a factor of about 4 when n doubles."""
    sizes = [n**2 * math.log(10 * n) for n in (1024, 2048)]
    yield equal(GROWTH, math.log2(sizes[1] / sizes[0]), 3, 0.05)
