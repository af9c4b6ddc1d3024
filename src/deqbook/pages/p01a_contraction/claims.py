"""Chapter 1, contractions and random weights: eight claims."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deqbook.claims import Measurement, at_least, at_most, chapter, checks, equal, within
from deqbook.linalg import eye, operator_norm
from deqbook.models import ReLUImplicit, VanillaDEQ
from deqbook.pages.p01a_contraction import lab
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Map, Picard

claim = chapter("01a_contraction")

ROUNDING = 1e-9  # beside a bound that is attained
ZERO, ONE = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)

Entries = Callable[..., Tensor]
"""Draws a matrix, as ``normal(*shape, g=g)`` does."""


def _one_limit(f: Map, z0: Tensor, other: Tensor, tol: float, steps: int = 1000) -> Measurement:
    gap = lab.spread(f, z0, other, steps=steps)
    return within("distance of limits from two starts", gap, tol)


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


@claim(
    "gao2022.assumption1",
    "Gaussian weights and random signs: mean 0, variance 1, norm about 2√m",
    "asm-relu-init",
)
def relu_initialisation(trial, *, entries=None):
    m = 200
    model = ReLUImplicit.init(m, 50, gamma=0.1, seed=trial.seed).requires_grad_(False)
    W = model.W if entries is None else entries(m, m, g=trial.g)
    yield at_most("|mean of W| · m", abs(float(W.mean())) * m, 4.5)
    yield at_most("|variance of W - 1| · m", abs(float(W.var()) - 1) * m, 4.5 * math.sqrt(2))
    # P(‖W‖ > 2√m + t) ≤ exp(-t²/2); t = 4.5 leaves 4e-5
    yield at_most("‖W‖ / √m", operator_norm(W) / math.sqrt(m), 2 + 4.5 / math.sqrt(m))
    yield equal("‖a‖ / √m", float(model.a.norm()) / math.sqrt(m), 1.0, 1e-12)
    phi = model.inject(sphere(64, 50, trial.seed + 1))
    yield equal("mean ‖φ‖²", float(phi.pow(2).sum(1).mean()), 0.5, 0.06)


relu_initialisation.breaks(
    "entries not centred: mean √(2/π), as for |N(0, 1)|", "|mean", "‖W‖", entries=_uncentred
)
relu_initialisation.breaks(
    "entries not sub-Gaussian: ±√4000 with probability 1/4000, else 0", "‖W‖", entries=_rare_giants
)


def _norm_tail(trial, *, entries=normal):
    m = 60
    norms = torch.linalg.matrix_norm(entries(300, m, m, g=trial.g), 2)
    for t in (0.5, 1.0, 1.5):
        exceed = float((norms > 2 * math.sqrt(m) + t).double().mean())
        yield at_most(f"P(‖W‖ > 2√m + {t})", exceed, math.exp(-t * t / 2))
    edge = 2 - 0.760 * m ** (-2 / 3)  # Tracy-Widom
    yield equal("mean ‖W‖/√m at the edge", float(norms.mean()) / math.sqrt(m), edge, 1 / m)


@claim("gao2022.lemma2.1", "A random matrix has norm 2√m, with a Gaussian tail", "lem-norm")
def random_norm(trial):
    yield from _norm_tail(trial)
    rademacher = torch.linalg.matrix_norm(signs(150, 60, 60, g=trial.g), 2) / math.sqrt(60)
    yield at_most("mean ‖W‖/√m, entries ±1", float(rademacher.mean()), 2.0)


random_norm.breaks(
    "entries not sub-Gaussian: Student t with 2 degrees of freedom",
    part=_norm_tail,
    entries=_student,
)


def _below_threshold(trial, *, room=0.1):
    # The lemma promises 1 - exp(-2mε²) for room = ε = 0.1.
    m, variance = 200, 0.08
    threshold = 2 * math.sqrt(2 * variance) * (1 + room)
    scale = math.sqrt(2 * variance / m)
    norms = [torch.linalg.matrix_norm(normal(m, m, g=trial.g) * scale, 2) for _ in range(80)]
    share = float((torch.stack(norms) <= threshold).double().mean())
    yield at_least("P(‖W‖ ≤ threshold)", share, 1 - math.exp(-2 * m * 0.1**2))


@claim(
    "ling2023.lemma1", "‖W‖ ≤ 2√2 σ_w (1+ε) except with probability exp(-2mε²)", "lem-vanilla-norm"
)
def vanilla_norm(trial):
    yield from _below_threshold(trial)
    norms = [
        operator_norm(VanillaDEQ.init(200, 5, seed=1000 * trial.seed + k).W.detach())
        for k in range(20)
    ]
    yield at_most("largest ‖W‖, σ_w² = 0.08", max(norms), 1.0)


vanilla_norm.breaks("no room: the printed threshold, ε = 0", part=_below_threshold, room=0.0)


@claim(
    "ling2023.assumption1",
    "Gaussian initialisation with σ_w² < 1/8 starts as a contraction",
    "asm-vanilla-init",
)
def vanilla_initialisation(trial, *, variance=0.08):
    m, d = 300, 20
    model = VanillaDEQ.init(m, d, variance=variance, seed=trial.seed).requires_grad_(False)
    yield equal("m · var(W) / 2σ_w²", m * float(model.W.var()) / (2 * variance), 1.0, 0.03)
    yield equal("d · var(U) / 2", d * float(model.U.var()) / 2, 1.0, 0.1)
    yield equal("‖a‖", float(model.a.norm()), 1.0, 0.2)
    yield at_most("‖W‖", operator_norm(model.W), 1.0)
    x = sphere(20, d, trial.seed + 1, radius=math.sqrt(d))
    z = model.solve(x, throw=False).z
    size = float(z.pow(2).sum(1).mean()) / m
    yield equal("mean ‖z‖²/m ÷ 1/(1-σ_w²)", size * (1 - variance), 1.0, 0.25)


vanilla_initialisation.breaks("σ_w² = 1/2 instead of less than 1/8", "‖W‖", variance=0.5)


# --- contraction -----------------------------------------------------------------------------


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
    phi = model.inject(sphere(5, 10, trial.seed))
    f = model.map(phi)
    states = lab.picard_states(f, torch.zeros_like(phi), 120)
    size = phi.norm(dim=1)
    longest = float((states.norm(dim=2) / size).max())
    yield at_most("max ‖z^ℓ‖ (1-γ₀)/‖φ‖", longest * (1 - gamma0), 1.0)
    gaps = (states - states[-1]).norm(dim=2)[:60]
    powers = gamma0 ** torch.arange(60, dtype=torch.float64)[:, None]
    floor = 1e-13  # rounding
    ratio = (gaps - floor).clamp(min=0) / (powers * size / (1 - gamma0))
    yield at_most("max ‖z^ℓ - z‖ ÷ γ₀^ℓ‖φ‖/(1-γ₀)", float(ratio.max()), 1.0)
    seen = lab.expansion(f, phi, generator(trial.seed + 1))
    yield at_most("largest expansion ÷ γ₀", seen / gamma0, 1.0)
    other = 10 * normal(*phi.shape, g=generator(trial.seed + 2))
    yield _one_limit(f, 0 * phi, other, 1e-8, steps=400)
    stretch = lab.worst_stretch(model, model.W)
    yield at_most("worst pair: expansion ÷ γ₀", stretch / gamma0, 1 + ROUNDING)


scaled_network_contracts.breaks("γ = 2 instead of γ ≤ γ₀√m/‖W‖ ≈ 0.45", gamma=2.0)
scaled_network_contracts.breaks("γ = 0.5, a tenth above the lemma's limit", "worst pair", gamma=0.5)


@claim(
    "gao2023.lemmaA.5",
    "γ̃‖W‖ = γ₀ < 1: one equilibrium with ‖Z‖_F ≤ ‖Φ‖_F/(1-γ₀)",
    "lem-implicit-only",
)
def implicit_only_bounded(trial, *, half_normal=False):
    m, gamma0 = 64, 0.8
    model = ReLUImplicit.init_implicit_only(m, 20, gamma=1.0, seed=trial.seed)
    model.requires_grad_(False)
    model.gamma = gamma0 * math.sqrt(m) / operator_norm(model.W)
    if half_normal:  # the spectral radius of γ̃W is then 0.32√m > 1: no equilibrium at all
        model.W.abs_()
        model.gamma = 0.4
    phi = model.inject(sphere(8, model.d, trial.seed))
    f = model.map(phi)
    sizes = lab.picard_states(f, torch.zeros_like(phi), 150).flatten(1).norm(dim=1)
    yield at_most("max ‖Z^ℓ‖_F (1-γ₀)/‖Φ‖_F", float(sizes.max() / phi.norm()) * (1 - gamma0), 1)
    yield _one_limit(f, 0 * phi, phi.flip(0), 1e-8, steps=500)


implicit_only_bounded.breaks(
    "W = |N(0, 1)| at γ = 0.4, as in the source's section 5.1", half_normal=True
)


@claim(
    "ling2023.wellposed",
    "‖W‖ < 1: one equilibrium, and I - DW is invertible with inverse at most 1/(1-‖W‖)",
    "thm-contraction",
)
def vanilla_wellposed(trial, *, variance=0.08):
    model = VanillaDEQ.init(200, 10, variance=variance, seed=trial.seed).requires_grad_(False)
    W, norm = model.W, operator_norm(model.W)
    x = sphere(6, 10, trial.seed, radius=math.sqrt(10))
    found = model.solve(x, solver=Picard(), tol=1e-10, max_steps=300, throw=False)
    yield within("residual after at most 300 steps", float(found.residual.max()), 1e-10)
    q = model.inject(x)
    DW = (found.z @ W.mT + q > 0).double()[:, :, None] * W
    least = torch.linalg.svdvals(eye(200) - DW)[:, -1]
    yield at_least("min σ_min(I - DW) - (1-‖W‖)", float(least.min()) - (1 - norm), 0.0)
    full = torch.linalg.svdvals(eye(200) - W)[-1]
    yield at_least("the same with every unit active", float(full) - (1 - norm), 0.0)
    yield at_most("hypothesis: ‖W‖", norm, 1.0)
    yield _one_limit(model.map(q), 0 * q, 5 * q, 1e-7, steps=300)


vanilla_wellposed.breaks("σ_w² = 1.5, so ‖W‖ = 3.5", "residual", "distance", variance=1.5)


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
    yield from _inverts(trial, J=J)
    yield at_most("max ρ(J)/‖J‖", float((radius / _norms(J)).max()), 1 + ROUNDING)
    det = torch.linalg.det(eye(4) - J).abs()
    ratio = det / (1 - radius) ** 4
    yield at_least("min |det(I-J)| / (1-ρ)^d", float(ratio.min()), 1 - ROUNDING)
    W = normal(10, 10, g=trial.g)
    W = 0.9 * W / operator_norm(W)
    q = normal(4, 10, g=trial.g)
    yield _one_limit(lambda z: torch.tanh(z @ W.mT + q), 0 * q, 5 * q, 1e-8)


def _two_solutions(trial, *, tol):
    # Both 0, where the derivative is 0, and 1 solve z = σ(2z-1).
    yield _one_limit(lambda z: torch.relu(2 * z - 1), ZERO, ONE, tol)


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
