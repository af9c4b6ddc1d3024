"""Chapter 1, contractions and random weights: eight claims of the sources, two of the book."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

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
from deqbook.linalg import eye, operator_norm, relative, spectral_radius
from deqbook.models import ReLUImplicit, VanillaDEQ, active
from deqbook.pages.p01a_contraction import lab
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Map, Picard
from deqbook.wellposed import Affine

claim = chapter("01a_contraction")

ROUNDING = 1e-9  # beside a bound that is attained
ZERO, ONE = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)

Entries = Callable[..., Tensor]
"""Draws a matrix, as ``normal(*shape, g=g)`` does."""


def _one_limit(f: Map, z0: Tensor, other: Tensor, tol: float) -> Measurement:
    gap = lab.spread(f, z0, other)
    return within("distance of limits from two starts", gap, tol)


def _applied(W: Tensor, z: Tensor) -> Tensor:
    """Return the vectors Wz_i, in the letters of the statement and not in the package's layout."""
    return torch.einsum("rs,ns->nr", W, z)


# --- random matrices -------------------------------------------------------------------------


def _uncentred(*shape: int, g: torch.Generator) -> Tensor:
    return normal(*shape, g=g) + math.sqrt(2 / math.pi)


def _rare_giants(*shape: int, g: torch.Generator) -> Tensor:
    chosen = torch.rand(*shape, generator=g) < 1 / 4000
    return math.sqrt(4000) * chosen * signs(*shape, g=g)


def _student(*shape: int, g: torch.Generator) -> Tensor:
    # N/√(χ²/2) has 2 degrees of freedom and infinite variance
    chi = normal(*shape, g=g) ** 2 + normal(*shape, g=g) ** 2
    return normal(*shape, g=g) / (chi / 2).sqrt()


def _rows_alike(*shape: int, g: torch.Generator) -> Tensor:
    one = normal(*shape[:-2], 1, shape[-1], g=g)
    return one.expand(*shape)


@claim(
    "gao2022.assumption1",
    "Gaussian weights and random signs: mean 0, variance 1, norm about 2√m",
    "asm-relu-init",
    standing="definition",
)
def relu_initialisation(trial, *, entries=None):
    # each band is 4.5 standard deviations of what a draw as assumed would give
    m, d = 200, 50
    model = ReLUImplicit.init(m, d, gamma=0.1, seed=trial.seed).requires_grad_(False)
    W = model.W if entries is None else entries(m, m, g=trial.g)
    for name, M in (("W", W), ("U", model.U)):
        root = math.sqrt(M.numel())
        yield within(f"|mean of {name}|, in standard errors", abs(float(M.mean())) * root, 4.5)
        off = abs(float(M.var()) - 1) * root / math.sqrt(2)
        yield within(f"|variance of {name} - 1|, in standard errors", off, 4.5)
    # P(‖W‖ > 2√m + t) ≤ exp(-t²/2); t = 4.5 leaves 4e-5
    yield at_most("‖W‖ / √m", operator_norm(W) / math.sqrt(m), 2 + 4.5 / math.sqrt(m))
    signed = torch.stack([model.a, model.c])
    yield within("distance of a and c to ±1", float((signed.abs() - 1).abs().max()), 1e-12)
    tilt = float(signed.mean(dim=1).abs().max())
    yield within("|mean of a and of c|, in standard errors", tilt * math.sqrt(m), 4.5)
    yield equal("γ̃√m ÷ γ", model.scale * math.sqrt(m) / model.gamma, 1.0, 1e-12)
    phi = model.inject(sphere(64, d, trial.seed + 1))
    yield equal("mean ‖φ‖²", float(phi.pow(2).sum(1).mean()), 0.5, 0.06)


relu_initialisation.breaks(
    "entries not centred: mean √(2/π), as for |N(0, 1)|", "|mean of W", "‖W‖", entries=_uncentred
)
relu_initialisation.breaks(
    "entries not sub-Gaussian: ±√4000 with probability 1/4000, else 0", "‖W‖", entries=_rare_giants
)


def _norm_tail(trial, *, entries=normal):
    m = 60
    norms = torch.linalg.matrix_norm(entries(300, m, m, g=trial.g), 2)
    for t in (0.5, 1.0, 1.5):
        exceed = float((norms > 2 * math.sqrt(m) + t).double().mean())
        yield headline(at_most(f"P(‖W‖ > 2√m + {t})", exceed, math.exp(-t * t / 2)))
    # two-sided: a factor other than 2 is off by more than the standard error, 0.005
    edge = 2 - 0.760 * m ** (-2 / 3)  # Tracy-Widom
    yield equal("mean ‖W‖/√m at the edge", float(norms.mean()) / math.sqrt(m), edge, 1 / m)


@claim("gao2022.lemma2.1", "A random matrix has norm 2√m, with a Gaussian tail", "lem-norm")
def random_norm(trial):
    yield from _norm_tail(trial)
    rademacher = torch.linalg.matrix_norm(signs(150, 60, 60, g=trial.g), 2) / math.sqrt(60)
    yield seen("mean ‖W‖/√m, entries ±1", float(rademacher.mean()), "≤", 2.0)


random_norm.breaks(
    "entries not sub-Gaussian: Student t with 2 degrees of freedom",
    part=_norm_tail,
    entries=_student,
)
random_norm.breaks("entries not centred", part=_norm_tail, entries=_uncentred)
random_norm.breaks("entries not independent: all rows alike", part=_norm_tail, entries=_rows_alike)


@lru_cache(maxsize=4)
def _vanilla_norms(seed: int, variance: float) -> Tensor:
    drawn = (VanillaDEQ.init(200, 1, variance=variance, seed=100 * seed + k) for k in range(60))
    return torch.stack([torch.linalg.matrix_norm(one.W.detach(), 2) for one in drawn])


@claim(
    "ling2023.lemma1", "‖W‖ ≤ 2√2 σ_w (1+ε) except with probability exp(-2mε²)", "lem-vanilla-norm"
)
def vanilla_norm(trial, *, room=0.1, variance=0.08):
    # The lemma promises 1 - exp(-2mε²) for room = ε = 0.1.
    norms = _vanilla_norms(trial.seed, variance)
    edge = 2 * math.sqrt(2 * variance)
    share = float((norms <= edge * (1 + room)).double().mean())
    yield headline(at_least("P(‖W‖ ≤ threshold)", share, 1 - math.exp(-2 * 200 * 0.1**2)))
    where = 1 - 0.380 * 200 ** (-2 / 3)  # Tracy-Widom; the standard error is 0.001
    yield equal("mean ‖W‖ ÷ 2√2 σ_w", float(norms.mean()) / edge, where, 0.006)
    yield at_most("largest ‖W‖", float(norms.max()), 1.0)


vanilla_norm.breaks("no room: the printed threshold, ε = 0", "P(", room=0.0)
vanilla_norm.breaks("σ_w² = 0.15, above 1/8", "largest", variance=0.15)


@claim(
    "ling2023.assumption1",
    "Gaussian initialisation with σ_w² < 1/8 starts as a contraction",
    "asm-vanilla-init",
    standing="definition",
)
def vanilla_initialisation(trial, *, variance=0.08):
    m, d = 300, 20  # the bands are 4.5 standard deviations
    model = VanillaDEQ.init(m, d, variance=variance, seed=trial.seed).requires_grad_(False)
    yield equal("m · var(W) / 2σ_w²", m * float(model.W.var()) / (2 * variance), 1.0, 0.021)
    yield equal("d · var(U) / 2", d * float(model.U.var()) / 2, 1.0, 0.083)
    yield equal("‖a‖", float(model.a.norm()), 1.0, 0.185)
    yield at_most("‖W‖", operator_norm(model.W), 1.0)
    x = sphere(20, d, trial.seed + 1, radius=math.sqrt(d))
    z = model.solve(x, throw=False).z
    again = torch.relu(_applied(model.W, z) + _applied(model.U, x))
    yield within("‖σ(Wz + Ux) - z‖ ÷ ‖z‖", relative(again, z), 1e-7)
    size = float(z.pow(2).sum(1).mean()) / m
    yield equal("mean ‖z‖²/m ÷ 1/(1-σ_w²)", size * (1 - variance), 1.0, 0.15)


vanilla_initialisation.breaks("σ_w² = 1/2 instead of less than 1/8", "‖W‖", variance=0.5)


# --- contraction -----------------------------------------------------------------------------


def _along(model: ReLUImplicit, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return 150 states of plain iteration from zero, and ‖φ‖."""
    phi = model.inject(x)
    return lab.picard_states(model.map(phi), torch.zeros_like(phi), 150), phi.norm(dim=1)


@claim(
    "gao2022.lemma2.2",
    "The scaled network contracts: one equilibrium, bounded, reached at rate γ₀",
    "lem-scaled",
)
def scaled_network_contracts(trial, *, gamma=None):
    gamma0 = 0.9
    model = ReLUImplicit.init(200, 10, gamma=1.0, seed=trial.seed).requires_grad_(False)
    largest = gamma0 * math.sqrt(200) / operator_norm(model.W)  # that the lemma allows
    model.gamma = largest if gamma is None else gamma
    x = sphere(5, 10, trial.seed)
    aligned, one = lab.aligned(gamma0 / 2 if gamma is None else gamma)  # its c is 2
    powers = gamma0 ** torch.arange(60, dtype=torch.float64)[:, None]
    for name, net, inputs in (("aligned", aligned, one), ("random", model, x)):
        states, size = _along(net, inputs)
        longest = float((states.norm(dim=2) / size).max()) * (1 - gamma0)
        yield headline(at_most(f"{name}: max ‖z^ℓ‖ (1-γ₀)/‖φ‖", longest, 1 + ROUNDING))
        gaps = (states - states[-1]).norm(dim=2)[:60]
        gaps = (gaps - 1e-13).clamp(min=0)  # rounding
        ratios = gaps * (1 - gamma0) / (powers * size)
        top = float(ratios.max())
        yield headline(at_most(f"{name}: max ‖z^ℓ - z‖ ÷ γ₀^ℓ‖φ‖/(1-γ₀)", top, 1 + ROUNDING))
        if name == "aligned":
            yield equal("aligned: the same at ℓ = 40, attained", float(ratios[40]), 1.0, 1e-3)
            # 16 units, all of them 3/(4·0.1)
            yield equal("aligned: ‖z‖", float(states[-1].norm()), 30.0, 1e-4)
    other = lab.picard_states(model.map(model.inject(x)), 10 * normal(5, 200, g=trial.g), 150)
    gap = float((other[-1] - states[-1]).norm(dim=1).max())
    yield within("random: distance of limits from two starts", gap, 1e-6)
    stretch = lab.worst_stretch(model, model.W)
    yield at_most("worst pair: expansion ÷ γ₀", stretch / gamma0, 1 + ROUNDING)
    yield equal("worst pair: attained", stretch / gamma0, 1, ROUNDING)


scaled_network_contracts.breaks("γ = 2 instead of γ ≤ γ₀√m/‖W‖ ≈ 0.45", gamma=2.0)
scaled_network_contracts.breaks(
    "γ = 0.5, a tenth above the lemma's limit", "worst pair", "aligned", gamma=0.5
)


def _batch_sizes(model: ReLUImplicit, x: Tensor, gamma0: float) -> float:
    phi = model.inject(x)
    sizes = lab.picard_states(model.map(phi), torch.zeros_like(phi), 150).flatten(1).norm(dim=1)
    return float(sizes.max() / phi.norm()) * (1 - gamma0)


@claim(
    "gao2023.lemmaA.5",
    "γ̃‖W‖ = γ₀ < 1: one equilibrium with ‖Z‖_F ≤ ‖Φ‖_F/(1-γ₀)",
    "lem-implicit-only",
)
def implicit_only_bounded(trial, *, half_normal=False, excess=1.0):
    m, gamma0 = 64, 0.8
    model = ReLUImplicit.init_implicit_only(m, 20, gamma=1.0, seed=trial.seed)
    model.requires_grad_(False)
    model.gamma = excess * gamma0 * math.sqrt(m) / operator_norm(model.W)
    if half_normal:  # the spectral radius of γ̃W is then 0.32√m > 1: no equilibrium at all
        model.W.abs_()
        model.gamma = 0.4
    x = sphere(8, model.d, trial.seed)
    top = _batch_sizes(model, x, gamma0)
    yield headline(at_most("random: max ‖Z^ℓ‖_F (1-γ₀)/‖Φ‖_F", top, 1))
    aligned, one = lab.aligned(excess * gamma0 / 2)
    top = _batch_sizes(aligned, torch.cat([one, one / 2, one / 4]), gamma0)
    yield headline(at_most("aligned: max ‖Z^ℓ‖_F (1-γ₀)/‖Φ‖_F", top, 1 + ROUNDING))
    yield equal("aligned: attained", top, 1.0, 1e-6)
    phi = torch.relu(_applied(model.U, x)) / math.sqrt(m)
    ends = [lab.picard_states(model.map(phi), z, 200)[-1] for z in (0 * phi, 10 * phi.flip(0))]
    gap = float((ends[0] - ends[1]).norm())
    yield within("random: distance of limits from two starts", gap, 1e-6)
    again = torch.relu(model.gamma / math.sqrt(m) * _applied(model.W, ends[0]) + phi)
    yield within(
        "random: ‖σ(γ̃Wz + φ) - z‖ ÷ ‖z‖", relative(again, model.solve(x, throw=False).z), 1e-6
    )


implicit_only_bounded.breaks(
    "W = |N(0, 1)| at γ = 0.4, as in the source's section 5.1",
    "random",
    half_normal=True,
)
implicit_only_bounded.breaks("γ̃‖W‖ = 1.04 in the place of γ₀", "aligned", excess=1.3)


@claim(
    "ling2023.wellposed",
    "‖W‖ < 1: one equilibrium, and I - DW is invertible with inverse at most 1/(1-‖W‖)",
    "thm-contraction",
)
def vanilla_wellposed(trial, *, variance=0.08, overstated=1.0):
    model = VanillaDEQ.init(200, 10, variance=variance, seed=trial.seed).requires_grad_(False)
    W, norm = model.W, operator_norm(model.W)
    yield given("‖W‖", norm, "≤", 1.0)
    x = sphere(6, 10, trial.seed, radius=math.sqrt(10))
    found = model.solve(x, solver=Picard(), tol=1e-10, max_steps=300, throw=False)
    yield within("residual after at most 300 steps", float(found.residual.max()), 1e-9)
    D = torch.cat([active(model, x, found.z), torch.ones(1, 200, dtype=torch.bool)]).double()
    matrices = eye(200) - D[:, :, None] * W
    z = torch.linalg.solve(matrices[:-1], D[:-1] * _applied(model.U, x))
    yield within("z vs (I - DW)⁻¹D U x", relative(found.z, z), 1e-8)
    least = torch.linalg.svdvals(matrices)[:, -1]
    yield headline(at_least("min σ_min(I - DW) ÷ (1-‖W‖)", float(least.min()) / (1 - norm), 1.0))
    w = torch.nn.functional.normalize(normal(200, g=trial.g), dim=0)
    flat = overstated * 0.9 * torch.outer(w, w)  # symmetric, so its norm is an eigenvalue
    least = float(torch.linalg.svdvals(eye(200) - flat)[-1])
    yield equal("W = 0.9wwᵀ: σ_min(I - W) ÷ (1-0.9)", least / 0.1, 1.0, ROUNDING)
    other = lab.picard_states(model.map(model.inject(x)), 5 * normal(6, 200, g=trial.g), 150)[-1]
    yield within("distance of limits from two starts", relative(other, z), 1e-8)


vanilla_wellposed.breaks(
    "σ_w² = 1.5, so ‖W‖ = 3.5", "hypothesis", "residual", "distance", variance=1.5
)
vanilla_wellposed.breaks("‖W‖ = 0.945, not 0.9", "W = 0.9wwᵀ", overstated=1.05)


def _cell(shape: Affine, q: Tensor) -> Map:
    return lambda z: shape.sigma(shape.preactivation(z, q))


def _derivative(
    name: str, cell: Affine, q: Tensor, z: Tensor, formula: Tensor
) -> Iterator[Measurement]:
    """Compare (I - DW)⁻¹D1 with central differences of the equilibrium in q, along 1."""
    h = 1e-6
    up, down = (lab.picard_states(_cell(cell, q + s), z, 400)[-1] for s in (h, -h))
    off = relative((up - down) / (2 * h), formula)
    yield within(f"derivative, {name}: (I - DW)⁻¹D vs differences of z in q", off, 1e-6)


@claim(
    "book.thm-contraction",
    "L_σ‖W‖ = κ < 1: one equilibrium, Picard's rate from any start, stable",
    "thm-contraction",
)
def contraction_certificate(trial, *, slope=1.5, kappa=0.9):
    m, g = 30, trial.g
    w = torch.nn.functional.normalize(normal(m, g=g).abs(), dim=0)
    random = normal(m, m, g=g)
    random = 0.6 * random / operator_norm(random)  # 1.5 · 0.6 = 0.9
    for name, W in (("random", random), ("W = 0.6wwᵀ, w > 0", 0.6 * torch.outer(w, w))):
        cell = Affine(W, lab.steep(slope))
        modulus = cell.sigma.lipschitz * operator_norm(W)
        yield given(f"{name}: L_σ‖W‖", modulus, "≤", kappa + 1e-9)
        q = 2 * normal(2, m, g=g) if name == "random" else torch.stack([w, 3 * w])
        start = torch.stack([-w, w]) if name != "random" else 5 * normal(2, m, g=g)
        states = lab.picard_states(_cell(cell, q), start, 400)
        gap, first = (states - states[-1]).norm(dim=2)[:100], (states[1] - states[0]).norm(dim=1)
        powers = kappa ** torch.arange(100, dtype=torch.float64)[:, None]
        rate = float(((gap - 1e-10).clamp(min=0) * (1 - kappa) / (powers * first)).max())
        yield headline(at_most(f"{name}: max ‖z^ℓ - z‖ ÷ bound", rate, 1 + ROUNDING))
        again = cell.sigma(_applied(W, states[-1]) + q)
        yield within(f"equation, {name}: ‖σ(Wz + q) - z‖ ÷ ‖z‖", relative(again, states[-1]), 1e-9)
        moved = float((states[-1, 0] - states[-1, 1]).norm() / (q[0] - q[1]).norm())
        stable = moved * (1 - kappa) / 1.5
        yield headline(at_most(f"{name}: ‖z(q) - z(q')‖ ÷ bound", stable, 1 + ROUNDING))
        D = cell.slopes(states[-1], q)
        inverse = torch.linalg.inv(eye(m) - D[:, :, None] * W)
        yield from _derivative(name, cell, q, states[-1], (inverse * D[:, None, :]).sum(dim=2))
        size = float(torch.linalg.matrix_norm(inverse, 2).max()) * (1 - kappa)
        yield headline(at_most(f"{name}: ‖(I - DW)⁻¹‖ ÷ bound", size, 1 + ROUNDING))
    last = float((gap * (1 - kappa) / (powers * first))[60].max())
    yield equal("W = 0.6wwᵀ, w > 0: rate at ℓ = 60, attained", last, 1.0, 1e-6)
    yield equal("W = 0.6wwᵀ, w > 0: stability, attained", stable, 1.0, 1e-6)
    yield equal("W = 0.6wwᵀ, w > 0: inverse, attained", size, 1.0, 1e-6)


contraction_certificate.breaks("κ = ‖W‖ = 0.6, with L_σ forgotten", "W = 0.6wwᵀ", kappa=0.6)
contraction_certificate.breaks(
    "σ steeper than 1/‖W‖: L_σ‖W‖ = 1.02", "hypothesis", "W = 0.6wwᵀ", slope=1.7
)


def _counted(
    seed: int, radius: float, negative: bool = False, sign: float = 1.0
) -> tuple[Tensor, Tensor, list[Tensor]]:
    m, g = 5, generator(seed)
    W = torch.rand(m, m, generator=g, dtype=torch.float64)
    W = W * (radius / spectral_radius(W))
    if negative:
        W = -W  # of the same radius
    q = sign * (0.1 + torch.rand(20, m, generator=g, dtype=torch.float64))
    return W, q, lab.equilibria(W, q)


def _none(trial, *, negative=False, sign=1.0):
    W, q, found = _counted(trial.seed, 1.02, negative, sign)
    yield equal("ρ = 1.02: equilibria of 20 injections", sum(map(len, found)), 0, 0)
    q = torch.cat([q, sign * eye(5)])  # W > 0, so one positive entry is enough
    states = lab.picard_states(lambda z: torch.relu(z @ W.mT + q), 0 * q, 2000).norm(dim=2)
    grown = float((states[2000] / states[1000]).min())
    yield seen("ρ = 1.02: least growth of the state, steps 1000 to 2000", grown, "≥", 2.0)


def _one(trial, *, radius=0.98):
    W, q, found = _counted(trial.seed, radius)
    yield equal("ρ = 0.98: equilibria of 20 injections", sum(map(len, found)), 20, 0)
    z = lab.picard_states(lambda z: torch.relu(z @ W.mT + q), 0 * q, 2000)[-1]
    linear = torch.linalg.solve(eye(5) - W, q.mT).mT
    yield within("ρ = 0.98: z by iteration vs (I-W)⁻¹q", relative(z, linear), 1e-9)
    if len(listed := torch.cat(found)) == len(q):
        yield within("ρ = 0.98: z by active sets vs (I-W)⁻¹q", relative(listed, linear), 1e-9)


@claim(
    "book.prop-nonnegative",
    "W ≥ 0, q > 0, ReLU: an equilibrium exists exactly if ρ(W) < 1",
    "prop-nonnegative",
)
def nonnegative_weights(trial):
    yield from _none(trial)
    yield from _one(trial)


nonnegative_weights.breaks("W ≤ 0, of the same radius", part=_none, negative=True)
nonnegative_weights.breaks(
    "q < 0: zero is an equilibrium", "ρ = 1.02: equilibria", part=_none, sign=-1.0
)
nonnegative_weights.breaks("ρ = 1.02 in the place of 0.98", part=_one, radius=1.02)


def _norms(J: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(J, 2)


def _radii(J: Tensor) -> Tensor:
    return torch.linalg.eigvals(J).abs().amax(dim=1)


def _inverts(trial, *, J, size=_norms):
    least = torch.linalg.svdvals(eye(J.shape[1]) - J)[:, -1]
    yield at_least("min σ_min(I-J) / (1-‖J‖)", float((least / (1 - size(J))).min()), 1 - ROUNDING)


@claim(
    "nguyen2022.definition2.3.1",
    "‖J‖ < 1 makes I - J invertible, with σ_min(I-J) ≥ 1-‖J‖",
    "def-contraction",
)
def contraction_inverts(trial):
    J = normal(500, 4, 4, g=trial.g)
    target = torch.rand(500, generator=trial.g, dtype=torch.float64) * 0.98 + 0.01
    J = J * (target / _norms(J))[:, None, None]
    radius = _radii(J)
    yield headline(next(_inverts(trial, J=J)))
    Q = torch.linalg.qr(normal(500, 4, 4, g=trial.g))[0]
    values = torch.rand(500, 4, generator=trial.g, dtype=torch.float64) * 0.5
    values[:, 0] = 0.98  # symmetric, so that the largest eigenvalue is the norm
    tight = next(_inverts(trial, J=(Q * values[:, None, :]) @ Q.mT)).value
    yield equal("the same for symmetric J of norm 0.98: attained", tight, 1.0, ROUNDING)
    yield at_most("max ρ(J)/‖J‖", float((radius / _norms(J)).max()), 1 + ROUNDING)
    det = torch.linalg.det(eye(4) - J).abs()
    ratio = det / (1 - radius) ** 4
    yield at_least("min |det(I-J)| / (1-ρ)^d", float(ratio.min()), 1 - ROUNDING)
    W = normal(10, 10, g=trial.g)
    W = 0.9 * W / operator_norm(W)
    q = normal(4, 10, g=trial.g)
    yield _one_limit(lambda z: torch.tanh(z @ W.mT + q), 0 * q, 5 * q, 1e-8)


def _two_solutions(trial, *, tol):
    # Both 0, where the derivative is 0, and 1 solve z = σ(2z-1); the second sample starts twice
    # at 0, so that one sample of two is enough to fail.
    starts = torch.cat([ZERO, ZERO]), torch.cat([ONE, ZERO])
    yield _one_limit(lambda z: torch.relu(2 * z - 1), *starts, tol)


contraction_inverts.breaks(
    "the spectral radius in place of the norm",  # of a matrix that is far from normal
    part=_inverts,
    shown={"‖J‖": "ρ(J)"},
    J=torch.tensor([[[0.5, 10.0], [0.0, 0.5]]], dtype=torch.float64),
    size=_radii,
)
contraction_inverts.breaks(
    "contraction at one fixed point only: z = σ(2z-1)", part=_two_solutions, tol=1e-8
)

check = checks(claim)
