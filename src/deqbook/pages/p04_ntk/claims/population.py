r"""The population kernel of the vanilla DEQ: ten claims of ling2023.

The source gives most bounds up to a constant. The chapter proves them, and where its proof has a
constant, the claim has it too; Theorems 2 and 5 hide theirs, there and here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deqbook.bounds import vanilla
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
from deqbook.kernels import kappa0, population_limit
from deqbook.linalg import operator_norm
from deqbook.models import VanillaDEQ
from deqbook.pages.p04_ntk.lab import population as lab
from deqbook.pages.p04_ntk.lab.features import hermite_bound
from deqbook.pages.p04_ntk.lab.tangent import least
from deqbook.runtime import generator, normal

claim = chapter("04_ntk")

POSITIVE = 1e-6  # far above rounding, far below every bound on λ_* met here


# --- the dual activation -----------------------------------------------------------------------


def _dual_activation(trial, *, leak=0.0, scaled=True, half=0.5):
    x = torch.linspace(-0.99, 0.99, 67, dtype=torch.float64)
    one = torch.ones_like(x)
    gap = (lab.gaussian_moment(x, one, one, leak) - half * lab.dual(x)).abs().max()
    yield within("max |E[σ(s)σ(t)] - ½Q(x)| over x, by quadrature", float(gap), 1e-10)
    g, count = trial.g, 50_000
    at = torch.tensor([[-0.8], [-0.3], [0.3], [0.8]], dtype=torch.float64)
    s, other = normal(count, g=g), normal(count, g=g)
    t = at * s + (1 - at**2).sqrt() * other
    fire = [(1 - leak) * torch.relu(v) + leak * v for v in (s, t)]
    products = fire[0] * fire[1]
    away = (products.mean(1) - half * lab.dual(at[:, 0])).abs() / products.std(1) * math.sqrt(count)
    name = "random pairs: max |mean of σ(s)σ(t) - ½Q(x)|, in standard errors"
    yield within(name, float(away.max()), 5)
    v, w = 0.2 + 3 * torch.rand(2, 40, generator=g, dtype=torch.float64)
    c = (1.9 * torch.rand(40, generator=g, dtype=torch.float64) - 0.95) * (v * w).sqrt()
    size = (v * w).sqrt()
    said = half * lab.dual(c / size) * (size if scaled else 1)
    gap = (lab.gaussian_moment(c, v, w, leak) - said).abs().max()
    yield within("other variances: max |E[σ(s)σ(t)] - ½√(vw) Q(c/√(vw))|", float(gap), 1e-9)


@claim(
    "ling2023.equation11",
    "For unit normal s, t with correlation x, E[σ(s)σ(t)] = ½Q(x)",
    "lem-dual-activation",
)
def dual_activation(trial):
    yield from _dual_activation(trial)
    # the properties of Q that the proofs use
    ends = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    values = torch.tensor([1.0, 1 / math.pi, 0.0], dtype=torch.float64)
    gap = (lab.dual(ends) - values).abs().max()
    yield within("max |Q - (1, 1/π, 0)| at x = 1, 0, -1", float(gap), 1e-12)
    x, h = torch.linspace(-0.99, 0.99, 400, dtype=torch.float64), 1e-5
    slope = (lab.dual(x + h) - lab.dual(x - h)) / (2 * h)
    yield within("max |Q' - 2P(s > 0, t > 0)|", float((slope - 2 * kappa0(x)).abs().max()), 1e-7)
    yield at_most("max Q'", float(slope.max()), 1.0)
    yield at_least("min Q(x) - max(x, 0)", float((lab.dual(x) - x.clamp(min=0)).min()), 0.0)
    yield at_most("max Q(x) - xQ'(x) + Q'(x)", float((lab.dual(x) + (1 - x) * slope).max()), 1.0)


dual_activation.breaks("a leaky activation, 0.9σ(t) + 0.1t", part=_dual_activation, leak=0.1)
dual_activation.breaks("the factor ½ is left out", part=_dual_activation, half=1.0, shown={"½": ""})
dual_activation.breaks(
    "the variances are not 1, and the formula is used without its scale",
    "other",
    part=_dual_activation,
    scaled=False,
    shown={"½√(vw) Q": "½Q"},
)


# --- Definition 1 ------------------------------------------------------------------------------


@claim(
    "ling2023.definition1",
    "K^(ℓ) is the mean of zzᵀ/m in layer ℓ of a wide network with independent layers",
    "def-population-kernel",
    standing="definition",
)
def population_definition(trial, *, radius=1.0, gain=2.0, inject_once=False):
    depth, X = 4, lab.inputs(trial.seed, 3, radius=radius)
    S = lab.second_moments(lab.inputs(trial.seed, 3))  # the definition prints the diagonal 1
    kernels = lab.population_kernels(S, lab.VARIANCE, depth)
    K, off = torch.zeros_like(S), []
    for layer in range(depth):
        cov = lab.VARIANCE * K + (S if layer == 0 or not inject_once else 0)
        v = cov.diagonal()
        K = 2 * lab.gaussian_moment(cov, v[:, None].expand_as(cov), v.expand_as(cov))
        K.diagonal().copy_(v)  # 2E[σ(s)²] is the variance; there the quadrature has τ = 0
        off.append((K - kernels[layer]).abs().max())
    gap = torch.stack(off).max()
    yield within(f"max |K^(ℓ) - 2E[σ(s)σ(t)]| over ℓ ≤ {depth}, by quadrature", float(gap), 1e-10)
    m, draws, g = 150, 40, generator(trial.seed + 300)
    grams = torch.stack(
        [lab.layer_grams(lab.untied_layers(m, X, depth, g, gain=gain))[1:] for _ in range(draws)]
    )
    error = torch.stack(kernels) - grams.mean(0)
    scores = error.abs() / (grams.std(0) / math.sqrt(draws))
    name = "untied network: max |mean of G^(ℓ)/m - K^(ℓ)|, in standard errors"
    yield within(name, float(scores.max()), 5)
    # the diagonal is exact: E = s_ℓ, and the variance obeys v ← σ_w⁴v + 5(s² + σ_w⁴v)/m
    spread, s, scores = 0.0, 0.0, torch.zeros(depth, dtype=torch.float64)
    for layer in range(depth):
        s = lab.VARIANCE * s + 1
        carried = lab.VARIANCE**2 * spread
        spread = carried + 5 * (s**2 + carried) / m
        mean = grams[:, layer].diagonal(dim1=1, dim2=2).mean(0)
        scores[layer] = (mean - s).abs().max() / math.sqrt(spread / draws)
    name = "untied network: max |mean of ‖z^(ℓ)‖²/m - s_ℓ|, in exact standard errors"
    yield within(name, float(scores.max()), 5)


population_definition.breaks("variances σ_w²/m and 1/d, without the 2", "untied", gain=1.0)
population_definition.breaks(
    "inputs of length 1.5√d, where the printed diagonal 1 is for √d", "untied", radius=1.5
)
population_definition.breaks("the input enters the first layer only", "max |K", inject_once=True)


# --- Lemma 3 -----------------------------------------------------------------------------------


@claim(
    "ling2023.lemma3",
    "cosθ^(ℓ) = (1-1/s_ℓ)Q(cosθ^(ℓ-1)) + S/s_ℓ and K^(ℓ) = s_ℓQ(cosθ^(ℓ)) (corrected)",
    "lem-angle-recursion",
)
def angle_recursion(trial, *, previous=False, cross=False):
    S = lab.second_moments(lab.inputs(trial.seed, 6))
    cosine, before = S, torch.zeros_like(S)
    off: dict[str, list[Tensor]] = {"K": [], "cos": [], "diagonal": []}
    for layer, K in enumerate(lab.population_kernels(S, lab.VARIANCE, 30), start=1):
        s = lab.on_diagonal(layer)
        weight = lab.on_diagonal(layer - 1) if previous else s
        if layer > 1:
            cosine = (1 - 1 / weight) * lab.dual(cosine) + S / weight
        below = lab.VARIANCE * (before if cross else before.diagonal()) + 1
        off["cos"].append((cosine - (lab.VARIANCE * before + S) / below).abs().max())
        off["K"].append((K - s * lab.dual(cosine)).abs().max())
        off["diagonal"].append((K.diagonal() - s).abs().max())
        before = K
    worst = {name: float(torch.stack(gaps).max()) for name, gaps in off.items()}
    yield within("max |K^(ℓ) - s_ℓQ(cosθ^(ℓ))| over ℓ ≤ 30", worst["K"], 1e-13)
    yield within("max |cosθ^(ℓ) by recursion - by its definition|", worst["cos"], 1e-13)
    yield within("max |K_ii^(ℓ) - (1-σ_w^{2ℓ})/(1-σ_w²)|", worst["diagonal"], 1e-13)


angle_recursion.breaks(
    "s_{ℓ-1} in place of s_ℓ, as printed in (13): ling2023-L6", "max |K^", "max |cos", previous=True
)
angle_recursion.breaks(
    "K_ij below the line of cosθ, as printed: ling2023-L6", "max |cos", cross=True
)


# --- Theorem 3 ---------------------------------------------------------------------------------


def _to_the_limit(trial, *, variance=lab.VARIANCE, radius=1.0):
    n, depth = 6, 8
    S = lab.second_moments(lab.inputs(trial.seed, n, radius=radius))
    deep = lab.population_kernels(S, variance, 61)
    yield given("σ_w²", variance, "≤", 0.125)
    yield within("‖K^(61)-K^(60)‖_F", (deep[60] - deep[59]).norm(), 1e-12)
    K, kernels = deep[-1], torch.stack([torch.zeros_like(S), *deep[:depth]])
    decay = variance ** torch.arange(depth + 1, dtype=torch.float64)
    pairs = torch.triu_indices(n, n, 1)
    steps = ((kernels[1:] - kernels[:-1]) / decay[:-1, None, None])[:, pairs[0], pairs[1]]
    yield at_most("max over i ≠ j of (K^(ℓ+1)-K^(ℓ))_ij ÷ σ_w^{2ℓ}", float(steps.max()), 1.0)
    yield at_least("min over i ≠ j of (K^(ℓ+1)-K^(ℓ))_ij ÷ σ_w^{2ℓ}", float(steps.min()), 0.0)
    gaps = torch.linalg.matrix_norm(K - kernels)
    low, high = torch.tensor([lab.depth_gap(n, variance, ell) for ell in range(depth + 1)]).T
    yield headline(at_most("max ‖K-K^(ℓ)‖_F ÷ nσ_w^{2ℓ}/(1-σ_w²)", float((gaps / high).max()), 1.0))
    yield headline(
        at_least("min ‖K-K^(ℓ)‖_F ÷ √n σ_w^{2ℓ}/(1-σ_w²)", float((gaps / low).min()), 1.0)
    )
    c = S
    for _ in range(60):
        c = variance * lab.dual(c.clamp(-1, 1)) + (1 - variance) * S
    away = (K - lab.dual(c.clamp(-1, 1)) / (1 - variance)).abs().max()
    yield within("max |K - Q(cosθ)/(1-σ_w²)|, cosθ from (14)", float(away), 1e-12)


def _both_ends(trial, *, variance=0.12):
    # equal inputs lose the same in every entry; the antipodes have nothing to lose at first
    depth, one = 6, torch.ones(2, 2, dtype=torch.float64)
    for what, S, end in (("equal", one, 1), ("opposite", 2 * torch.eye(2).double() - one, 0)):
        K = population_limit(S, variance).K
        kernels = [torch.zeros_like(S), *lab.population_kernels(S, variance, depth)]
        for ell in (0, depth) if end else (0,):
            gap, bound = (K - kernels[ell]).norm(), lab.depth_gap(2, variance, ell)[end]
            share = float(gap) / bound
            yield equal(f"two {what} inputs, ℓ = {ell}: ‖K-K^(ℓ)‖_F ÷ bound", share, 1, 0.01)


def _positive(name: str, S: Tensor, variance: float) -> Measurement:
    limit = population_limit(S, variance)
    bound = max(hermite_bound(limit.cosine, variance), POSITIVE)
    return at_least(f"{name}: λ_* above its Hermite bound", least(limit.K), bound)


def _two_inputs(trial):
    S = lab.second_moments(
        lab.two_inputs(trial.seed, 0.3 + float(torch.rand((), generator=trial.g)))
    )
    limit = population_limit(S, lab.VARIANCE)
    share = least(limit.K) / hermite_bound(limit.cosine, lab.VARIANCE)
    yield equal("two inputs: λ_* ÷ its Hermite bound, attained", share, 1, 1e-3)


def _six_inputs(trial, *, twins=False):
    X = lab.inputs(trial.seed, 6)
    S = lab.second_moments(torch.cat([X[:5], X[:1]]) if twins else X)
    newton, picard = (
        population_limit(S, lab.VARIANCE, method=way).K for way in ("newton", "picard")
    )
    yield within("max |K by Newton - by Picard|", float((newton - picard).abs().max()), 1e-12)
    longer = population_limit(4 * S, lab.VARIANCE).K - 4 * newton
    yield within("max |K - 4K| for inputs twice as long", float(longer.abs().max()), 1e-11)
    yield _positive("six inputs", S, lab.VARIANCE)


@claim(
    "ling2023.theorem3",
    "K^(ℓ) converges to K, ‖K-K^(ℓ)‖_F ≤ nσ_w^{2ℓ}/(1-σ_w²), and λ_min(K) > 0",
    "thm-population-limit",
)
def infinite_depth(trial):
    yield from _to_the_limit(trial)
    yield from _both_ends(trial)
    yield from _two_inputs(trial)
    yield from _six_inputs(trial)


infinite_depth.breaks("σ_w² = 1.1", "hypothesis", "‖K^(61)", part=_to_the_limit, variance=1.1)
infinite_depth.breaks(
    "inputs of length 1.5√d", "max over", "max ‖K", "max |K - Q", part=_to_the_limit, radius=1.5
)
infinite_depth.breaks(
    "inputs of length ½√d", "min ‖K", "max |K - Q", part=_to_the_limit, radius=0.5
)
infinite_depth.breaks("two inputs coincide", "six inputs", part=_six_inputs, twins=True)


# --- Assumption 2 ------------------------------------------------------------------------------


def _spread_out(trial, *, brightness=None):
    X = lab.pictures(trial.seed)
    if brightness is not None:  # of a copy of the first picture, in the place of the last
        X = torch.cat([X[:-1], brightness * X[:1]])
    n, S = len(X), lab.second_moments(X)
    yield given("max |‖x_i‖/√d - 1|", lab.off_sphere(X), "≤", 1e-12)
    pairs = torch.triu_indices(n, n, 1)
    # the distance keeps its digits where the cosine is 1 up to rounding
    unit = X / X.norm(dim=1, keepdim=True)
    apart = (unit[pairs[0]] - unit[pairs[1]]).norm(dim=1).min()
    yield given("least distance of two directions", apart, "≥", 1e-3)
    yield _positive("pictures", S, lab.VARIANCE)
    K = population_limit(S, lab.VARIANCE).K
    off = (K.diagonal() - 1 / (1 - lab.VARIANCE)).abs().max()
    yield within("pictures: max |K_ii - 1/(1-σ_w²)|", float(off), 1e-12)


def _antipodal(trial, *, variance=lab.VARIANCE):
    # three antipodal pairs in the plane, their lines about 60° apart
    jitter = 0.4 * torch.rand(3, generator=generator(trial.seed + 400), dtype=torch.float64)
    angle = torch.arange(3, dtype=torch.float64) * math.pi / 3 + jitter
    half = math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], dim=1)
    S = lab.second_moments(torch.cat([half, -half]))
    yield _positive("three antipodal pairs in the plane", S, variance)
    cosine = float(population_limit(S, variance).cosine.min())
    # at S_ij = -1: c = σ_w²Q(c) - (1-σ_w²), and Q ≥ 0
    yield at_least(
        "three antipodal pairs: least (1 + cosθ_ij) ÷ σ_w²", (1 + cosine) / lab.VARIANCE, 1
    )


@claim(
    "ling2023.assumption2",
    "Inputs of one length, no two equal: this makes K positive definite (antipodes may stay)",
    "prop-no-twins",
)
def sphere_data(trial):
    yield from _spread_out(trial)
    yield from _antipodal(trial)
    yield from _two_inputs(trial)


sphere_data.breaks(
    "two pictures are equal", "hypothesis: least", "pictures: λ", part=_spread_out, brightness=1.0
)
# the network is positively homogeneous, so K is singular although the inputs differ
sphere_data.breaks(
    "one picture is twice as bright as another: parallel, not on the sphere",
    part=_spread_out,
    brightness=2.0,
)
# σ(t) - σ(-t) = t is linear, and three vectors in the plane are linearly dependent
sphere_data.breaks("antipodes in a single layer, σ_w = 0", part=_antipodal, variance=0.0)


# --- Theorem 4 ---------------------------------------------------------------------------------


def _truncation(trial, *, variance=lab.VARIANCE, fresh=False):
    m, depth, X = 200, 60, lab.inputs(trial.seed, 6)
    model = VanillaDEQ.init(m, 10, variance=variance, seed=trial.seed)
    tied = lab.tied_layers(model, X, 150)
    rate = operator_norm(model.W.detach())
    yield given("‖W‖", rate, "≤", 1.0)
    end, states = tied[-1], tied[: depth + 1]
    W, U = model.W.detach(), model.U.detach()
    residual = (end - torch.relu(end @ W.mT + X @ U.mT)).abs().max()
    yield within("max |Z - σ(WZ+UX)| after 150 layers", float(residual), 1e-10)
    if fresh:
        states = lab.untied_layers(m, X, depth, generator(trial.seed + 300))
    step = (states[-1] - states[-2]).norm() / states[1].norm()
    yield within(f"‖Z^({depth})-Z^({depth - 1})‖_F ÷ ‖Z^(1)‖_F", step, 1e-12)
    layer = torch.arange(1, depth + 1, dtype=torch.float64)
    gaps = torch.linalg.matrix_norm(lab.layer_grams(states[1:]) - lab.layer_grams(end))
    bounds = lab.truncation_bound(rate, layer, float(tied[1].norm()) ** 2) / m
    name = "max over ℓ of (1/m)‖G-G^(ℓ)‖_F ÷ 2‖W‖^ℓ‖Z^(1)‖_F²/(m(1-‖W‖)²)"
    yield at_most(name, float((gaps / bounds).max()), 1.0)
    away = torch.linalg.matrix_norm(states[2:12] - end)
    factor = (away[-1] / away[0]) ** (1 / 9)
    yield equal("factor per layer of ‖Z-Z^(ℓ)‖_F", factor, math.sqrt(variance), 0.04)


def _extremal(trial, *, norm=0.9):
    # W = q·uuᵀ and one input along u ≥ 0: every layer adds q times what the last one added
    u = torch.rand(8, generator=trial.g, dtype=torch.float64) + 0.1
    W = norm * torch.outer(u, u) / float(u @ u)
    model = VanillaDEQ(W, u[:, None], torch.zeros_like(u))
    states = lab.tied_layers(model, torch.ones(1, 1, dtype=torch.float64), 400)
    layer = torch.arange(1, 41, dtype=torch.float64)
    gaps = (lab.layer_grams(states[1:41]) - lab.layer_grams(states[-1])).abs().flatten()
    bound = lab.truncation_bound(operator_norm(W), layer, float(states[1].norm()) ** 2) / len(u)
    share = (gaps / bound)[[0, 39]]
    yield headline(at_most("W of rank 1: |G-G^(40)| ÷ its bound", float(share[1]), 1.0))
    for found, ell in zip(share.tolist(), (1, 40)):
        name = f"W of rank 1, ℓ = {ell}: |G-G^(ℓ)| ÷ its bound"
        yield equal(name, found, 1 - 0.5 * norm**ell, 1e-6)


def _truncation_tail(trial, *, scale=1.0):
    # With probability at least 1 - e^{-2mε²} - ne^{-mt²/4}: ‖W‖ ≤ q = 2√2σ_w(1+ε), every
    # ‖z_i^(1)‖ ≤ √m(1+t), and the gap is at most 2n(1+t)²q^ℓ/(1-q)².
    m, n, depth, draws, eps, t = 100, 4, 30, 20, 0.15, 0.5
    X, q, beyond = lab.inputs(trial.seed, n), lab.EDGE * (1 + eps), []
    layer = torch.arange(1, depth + 1, dtype=torch.float64)
    bounds = lab.truncation_bound(q, layer, n * (1 + t) ** 2)
    for k in range(draws):
        drawn = VanillaDEQ.init(m, 10, seed=1000 * trial.seed + k)
        model = VanillaDEQ(scale * drawn.W.detach(), drawn.U.detach(), drawn.a.detach())
        states = lab.tied_layers(model, X, 100)
        grams = lab.layer_grams(states)
        gaps = torch.linalg.matrix_norm(grams[1 : depth + 1] - grams[-1])
        long = states[1].norm(dim=1).max() / math.sqrt(m) > 1 + t
        steep = operator_norm(model.W.detach()) > q
        beyond.append([float(bool(b)) for b in ((gaps > bounds).any(), long or steep)])
    chance = math.exp(-2 * m * eps**2) + n * math.exp(-m * t**2 / 4)
    shares = torch.tensor(beyond).mean(0).tolist()
    name = "share of networks with (1/m)‖G-G^(ℓ)‖_F > 2n(1+t)²q^ℓ/(1-q)² for some ℓ"
    yield at_most(name, shares[0], chance)
    yield at_most("share of networks with ‖W‖ > q or ‖z_i^(1)‖ > √m(1+t)", shares[1], chance)


@claim(
    "ling2023.theorem4",
    "The states of layer ℓ are within O(n‖W‖^ℓ) of the equilibrium: (1/m)‖G-G^(ℓ)‖_F",
    "thm-depth-truncation",
)
def depth_truncation(trial):
    yield from _truncation(trial)
    yield from _extremal(trial)
    yield from _truncation_tail(trial)


depth_truncation.breaks(
    "new weights in every layer: each layer has the same law as before",
    "‖Z^",
    "max over",
    "factor",
    part=_truncation,
    fresh=True,
)
depth_truncation.breaks(
    "σ_w² = 1.2 instead of less than 1/8",
    "hypothesis",
    "max |Z",
    "‖Z^",
    part=_truncation,
    variance=1.2,
)
depth_truncation.breaks(
    "W four times as large as Assumption 1 has it", part=_truncation_tail, scale=4.0
)


# --- Lemma 4 -----------------------------------------------------------------------------------


def _identities(trial, *, printed=False):
    X, d, m = lab.inputs(trial.seed, 2, 7), 7, 200
    model = VanillaDEQ.init(m, d, seed=trial.seed)
    S = lab.second_moments(X)
    rebuilt, norms, columns = [], [], []
    for layer in range(1, 5):
        r = lab.reconstruct(model, X, layer, variance=lab.VARIANCE, printed=printed)
        now, after = (r.states[k] @ r.states[k].mT for k in (layer, layer + 1))
        value = torch.relu(r.M @ r.h) @ torch.relu(r.M @ r.other)
        rebuilt.append((value - after[0, 1]).abs() / after[0, 1])
        gram = torch.stack([r.h, r.other]) @ torch.stack([r.h, r.other]).mT
        norms.append((gram - lab.VARIANCE / m * now - S).abs().max())
        columns.append(abs(r.M.shape[1] - 2 * layer - d))
    gap = torch.stack(rebuilt).max()
    yield within("max |σ(Mh)·σ(Mh') - G_ij^(ℓ+1)| ÷ G_ij^(ℓ+1)", float(gap), 1e-11)
    gap = torch.stack(norms).max()
    yield within("max |Gram matrix of h, h' - (σ_w²G^(ℓ)/m + S)|", float(gap), 1e-12)
    yield within("columns of M, less 2ℓ+d", max(columns), 0)


def _law(trial, *, layer=1, printed=False, firing=False):
    m, d, draws = 100, 3, 40
    # 60° apart: p and q of the first layer then have the cosine Q(½) = 0.61
    X, rows = lab.orthogonal_inputs(trial.seed, d)[:2], []
    X = torch.stack([X[0], 0.5 * X[0] + math.sqrt(0.75) * X[1]])
    for k in range(draws):
        model = VanillaDEQ.init(m, d, seed=1000 * trial.seed + k)
        r = lab.reconstruct(model, X, layer, variance=lab.VARIANCE, printed=printed)
        rows.append(r.M[r.states[layer][0] > 0] if firing else r.M)
    M = torch.cat(rows)
    size = len(M)
    corr = torch.corrcoef(M.mT)
    corr.fill_diagonal_(0)
    scores = {
        "entries of M: largest mean of a column": M.mean(0).abs().max() / math.sqrt(2 / size),
        "entries of M: largest |variance of a column - 2|": (M.var(0) - 2).abs().max()
        / (2 * math.sqrt(2 / size)),
        "entries of M: |fourth moment - 12|": (M.pow(4).mean() - 12).abs()
        / math.sqrt(16 * 96 / M.numel()),
        "columns of M: largest correlation": corr.abs().max() * size**0.5,
    }
    for what, score in scores.items():
        yield within(f"ℓ = {layer}, {what}, in standard errors", float(score), 5)


@claim(
    "ling2023.lemma4",
    "G_ij^(ℓ+1) = σ(Mh)·σ(Mh') with i.i.d. N(0, 2) entries of M, 2ℓ+d columns (corrected)",
    "lem-fresh-randomness",
)
def fresh_randomness(trial, *, printed=False):
    yield from _identities(trial, printed=printed)
    for layer in (1, 2):
        yield from _law(trial, layer=layer, printed=printed)


fresh_randomness.breaks(
    "q in place of its part orthogonal to p, as printed: ling2023-L8",
    "max",
    "ℓ = 1, columns",
    printed=True,
)
# a unit that is on has seen a large entry of Wz: that column is not fresh
fresh_randomness.breaks(
    "given the previous layers, as printed: rows of units on in layer ℓ",
    "ℓ = 2, entries of M: largest mean",
    part=_law,
    layer=2,
    firing=True,
)


# --- Theorem 5 ---------------------------------------------------------------------------------


def _scores(draws: Tensor, mean: float | Tensor) -> float:
    """Return the largest |mean of the draws - mean| in standard errors."""
    error = (draws.std(0) / math.sqrt(len(draws))).clamp(min=1e-9)
    return float(((draws.mean(0) - mean).abs() / error).max())


def _size(errors: Tensor) -> Tensor:
    """Return the root of the mean square over the draws, by layer."""
    return torch.linalg.matrix_norm(errors).square().mean(0).sqrt()


def _beyond(trial, *, m=800, draws=12, layers=range(1, 6), radius=1.0):
    errors = lab.against_population(trial.seed, m, draws, max(layers), radius=radius)
    bounds = 4 * lab.EDGE ** torch.tensor([float(k) for k in layers], dtype=torch.float64)
    chosen = torch.linalg.matrix_norm(errors)[:, [k - 1 for k in layers]]
    yield headline(
        at_most("max ‖G^(ℓ)/m-K^(ℓ)‖_F ÷ n(2√2σ_w)^ℓ", float((chosen / bounds).max()), 1)
    )


def _carried(trial, *, angle=0.01, shorter=1.0):
    # the worst error is the same in all three entries, and a small angle has the least room
    x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    x[1] *= shorter
    h = 1e-7
    moved = lab.next_kernel(x @ x.mT + h) - lab.next_kernel(x @ x.mT)
    yield at_most(
        "error of layer ℓ+1 ÷ error of layer ℓ, worst case", float(moved.max()) / h, lab.CARRIED
    )


def _induction(trial, *, radius=1.0):
    # what the recursion makes of G^(ℓ)/m is as far from K^(ℓ+1) as the proof of the theorem says
    m, draws, depth = 50, 10, 5
    S = lab.second_moments(lab.inputs(trial.seed, 4))
    errors = lab.against_population(trial.seed, m, draws, depth, radius=radius)
    grams = lab.tied_grams(trial.seed, m, draws, depth, radius=radius)
    kernels = lab.population_kernels(S, lab.VARIANCE, depth)
    ratios = [
        (lab.next_kernel(lab.VARIANCE * grams[k, ell] + S) - kernels[ell + 1]).abs().max()
        / (lab.VARIANCE * errors[k, ell].abs().max())
        for k in range(draws)
        for ell in range(depth - 1)
    ]
    name = "max |2E[σσ] of Ĝ - K^(ℓ+1)| ÷ σ_w² max |G^(ℓ)/m - K^(ℓ)|"
    yield at_most(name, float(torch.stack(ratios).max()), lab.CARRIED)


@claim(
    "ling2023.theorem5",
    "Tied or untied, one limit: ‖G^(ℓ)/m-K^(ℓ)‖_F ≤ n(2√2σ_w)^ℓ while m(8σ_w²)^ℓ is large",
    "thm-tied-untied",
    standing="partly",
    reason="how large m(8σ_w²)^ℓ must be the proof does not say; one width and five depths are run",
)
def tied_and_untied(trial, *, radius=1.0, promised=1.0):
    yield given("m(8σ_w²)^ℓ ÷ ℓ² at m = 800, ℓ = 5", 800 * lab.EDGE**10 / 25, "≥", 1.0)
    yield from _beyond(trial, radius=radius)
    yield from _carried(trial)
    yield from _induction(trial)
    narrow, wide = (
        lab.against_population(trial.seed, m, draws, depth, radius=radius)
        for m, draws, depth in ((50, 200, 12), (400, 40, 6))
    )
    size = _size(narrow)
    power = math.log(_size(wide)[5] / size[5], 8)
    yield equal("exponent of m in the error at ℓ = 6", power, -0.5, 0.2)
    yield equal("error at ℓ = 12 ÷ error at ℓ = 3", float(size[11] / size[2]), promised, 0.1)
    name = "m = 400: max |mean of G^(6)/m - K^(6)|, in standard errors"
    yield within(name, _scores(wide[:, 5], 0), 5)
    # the later layers add little beside the error, but in one network both are seen
    name = "m = 400: |mean of what layers 2 to 6 add - what they add to K^(1)|, in standard errors"
    yield within(name, _scores((wide[:, 5] - wide[:, 0]).sum((1, 2)), 0), 5)


tied_and_untied.breaks(
    "too deep for the width: m = 50, ℓ = 20, m(8σ_w²)^ℓ < 0.01",
    part=_beyond,
    m=50,
    draws=10,
    layers=range(20, 21),
)
tied_and_untied.breaks(
    "inputs of length 1.5√d, the kernels those of length √d",
    "max ‖G",
    "exponent",
    "m = 400",
    radius=1.5,
)
tied_and_untied.breaks(
    "an error that falls exponentially in ℓ, as Section 4 can be read: ling2023-L9",
    "error at",
    promised=lab.EDGE**9,
)
tied_and_untied.breaks(
    "one input a tenth as long as the other: a layer can widen an error",
    part=_carried,
    angle=1.5,
    shorter=0.1,
)


# --- Theorem 2 ---------------------------------------------------------------------------------


@claim(
    "ling2023.theorem2",
    "λ_min(G(0)) ≥ mλ_*/2 with probability 1-t once m is of the order n²λ_*⁻²",
    "thm-initial-eigenvalue",
    standing="partly",
    reason="the proof has no explicit constant; the width run is one that second moments suggest",
)
def initial_eigenvalue(trial, *, m=None, repeated=False):
    n, draws, fail = 2, 12, 0.25
    X = lab.orthogonal_inputs(trial.seed, 3)[:n]
    K = population_limit(lab.second_moments(X), lab.VARIANCE).K
    star = least(K)
    # one unit, u ~ N(0, 2K_ii): E σ(u)⁴ = ½·3·(2K_ii)²
    fourth = 1.5 * (2 * float(K.diagonal().max())) ** 2
    yield equal("6/(1-σ_w²)² ÷ E σ(u)⁴ of a unit", lab.second_moment(1, 1) / fourth, 1, 1e-9)
    m = lab.second_moment_width(n, star, fail) if m is None else m
    if repeated:
        X = torch.cat([X[:1], X[:1]])
    drawn = [VanillaDEQ.init(m, 3, seed=1000 * trial.seed + k) for k in range(draws)]
    # σ_w^20 is 1e-11
    G = torch.stack([lab.layer_grams(lab.tied_layers(model, X, 20)[-1]) for model in drawn])
    lambdas, gaps = torch.linalg.eigvalsh(G)[:, 0], torch.linalg.matrix_norm(G - K)
    yield at_least("min (λ_0/m + ‖G/m-K‖_F) ÷ λ_*", float((lambdas + gaps).min()) / star, 1.0)
    quantile = float(lambdas.sort().values[math.floor(fail * draws)])
    yield headline(at_least("λ_0 ÷ (mλ_*/2), but for a share t", quantile / (star / 2), 1.0))
    far = float((gaps > star / 2).double().mean())
    yield at_most("share of networks with ‖G/m-K‖_F > λ_*/2", far, fail)
    # the width is made of this: for independent layers it is proved, and Markov does the rest
    markov = lab.second_moment(n, m) / (star / 2) ** 2
    yield at_most("6n²/(m(1-σ_w²)²) ÷ (λ_*/2)², the chance by Markov", markov, fail)
    name = "mean ‖G/m-K‖_F² ÷ 6n²/(m(1-σ_w²)²)"
    yield seen(name, float(gaps.square().mean()) / lab.second_moment(n, m), "≤", 1.0)
    yield within("max |mean of G/m - K|, in standard errors", _scores(G, K), 6)


initial_eigenvalue.breaks("as many units as inputs, m = n", "λ_0", "share", m=2)
initial_eigenvalue.breaks(
    "the second input equals the first, λ_* kept", "λ_0", "share", "max |mean", repeated=True
)


# --- Section 3.2 -------------------------------------------------------------------------------


def _condition(trial, *, n=4, readout=0.0, width=1.0, delta=None):
    # the read-out of Assumption 1 would be 1, that of the corrected statement is 0
    X = lab.orthogonal_inputs(trial.seed, n)
    star = lab.least_limit(X)
    need = lab.condition_width(n, n, star)
    sharp = lab.condition_need(need - 2, n, n, star, lab.LABEL)
    yield at_least(f"n = {n}: two units less, need ÷ have on the likely event", sharp, 1.0)
    m = math.ceil(width * need)
    model, X, y = lab.condition_instance(trial.seed, X, m, readout)
    asked = vanilla.condition_one(model, X, y, delta or lab.condition_radius(n, star))
    lambda0 = asked.constants["lambda0"]
    yield given(f"n = {n}: max |‖x_i‖/√d - 1|", lab.off_sphere(X), "≤", 1e-12)
    yield given(f"n = {n}: λ_0 ÷ (mλ_*/2)", lambda0 / (m * star / 2), "≥", 1.0)
    for name in ("(7)", "(8)", "(9')"):
        yield at_most(f"n = {n}: {name}, need ÷ have", asked[name].ratio, 1.0)


def _product(model: VanillaDEQ, X: Tensor, y: Tensor, delta: float) -> float:
    """Return r₇√r₉ ÷ (8‖U‖²‖X‖_F²‖e(0)‖/λ_0^{3/2}).

    r₇ and r₉ are need ÷ have of (7) and of the printed (9). Both at most 1 for some δ would make
    the denominator at most 1.
    """
    asked = vanilla.condition_one(model, X, y, delta, printed=True)
    known = asked.constants
    size = operator_norm(model.U.detach()) ** 2 * float(X.norm()) ** 2
    floor = 8 * size * known["error"] / known["lambda0"] ** 1.5
    return asked["(7)"].ratio * math.sqrt(asked["(9)"].ratio) / floor


def _whatever_delta(seed: int, readout: float) -> float:
    model, X, y = lab.condition_instance(seed, lab.orthogonal_inputs(seed, 3), 60, readout)
    deltas = torch.logspace(-3, -0.3, 12, dtype=torch.float64).tolist()
    return min(_product(model, X, y, delta) for delta in deltas)


def _dropped(trial, *, m=20, norm=0.5, delta=0.1):
    # what the proof of "not less" throws away is known, for a(0) = 0
    drawn, X, y = lab.condition_instance(trial.seed, lab.orthogonal_inputs(trial.seed, 3), m, 0.0)
    W, U = drawn.W.detach(), drawn.U.detach()
    model = VanillaDEQ(norm / operator_norm(W) * W, U, drawn.a.detach())
    u, left = operator_norm(U), 1 - norm - delta
    lost = (1 + delta / u) ** 2 * math.sqrt(1 + (left / (u + delta)) ** 2) / left**3
    share = _product(model, X, y, delta) / lost
    yield equal("‖W(0)‖ = ½, δ = 0.1: r₇√r₉ ÷ its bound and what is dropped", share, 1, 1e-6)


def _growth(trial, *, in_n=3.0, in_star=-3.0):
    of_n, of_star = lab.width_exponents(trial.seed)
    yield equal("exponent of n in the width that (7) needs, n = 3 and 9", of_n, in_n, 0.6)
    yield equal("exponent of λ_* in the width that (7) needs, two angles", of_star, in_star, 0.5)


@claim(
    "ling2023.section3.2",
    "Condition 1 takes a(0) = 0, δ ~ √(λ_*/n) and a width of order n³λ_*⁻³ (corrected)",
    "prop-condition-width",
)
def width_for_condition(trial):
    for n in (2, 4):
        yield from _condition(trial, n=n)
    for readout in (0.0, 1.0):
        ratio = at_least(
            f"‖a(0)‖ ≈ {readout:g}: least r₇√r₉ ÷ its bound over δ",
            _whatever_delta(trial.seed, readout),
            1.0,
        )
        yield ratio if readout else headline(ratio)
    yield from _dropped(trial)
    yield from _growth(trial)


width_for_condition.breaks(
    "the read-out of Assumption 1, a(0) ~ N(0, I/m)", "n = 4: (", part=_condition, readout=1.0
)
width_for_condition.breaks(
    "a radius δ that does not shrink with λ_*/n: δ = 0.3", "n = 4: (9')", part=_condition, delta=0.3
)
width_for_condition.breaks("a tenth of the width", "n = 4: (7)", part=_condition, width=0.1)
width_for_condition.breaks(
    "the printed width n²λ_*⁻²log(n/λ_*t): ling2023-L2", part=_growth, in_n=2.0, in_star=-2.0
)
