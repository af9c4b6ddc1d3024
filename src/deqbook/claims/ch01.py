"""Chapter 1, well-posedness: the twenty claims.

Each measurement is a function of the hypothesis it needs, so that a control can break the
hypothesis and repeat *the same* measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from deqbook.activations import Activation, relu, tanh
from deqbook.claims.instances import (
    cell_trajectory,
    expansion,
    picard_states,
    random_problem,
    rotation_problem,
    segment_instance,
    spread,
)
from deqbook.claims.registry import Measurement, Trial, at_least, at_most, claim, equal, within
from deqbook.landscape import path_ratio, principal_plane
from deqbook.linalg import operator_norm, spectral_radius, symmetric_part
from deqbook.models import MonDEQ, OptEq, ReLUImplicit, VanillaDEQ
from deqbook.models.dense import monotone_parameters
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Injected, Map, Newton, Picard, fixed_point
from deqbook.splitting import (
    ForwardBackward,
    MonotoneProblem,
    PeacemanRachford,
    forward_backward_factor,
    peaceman_rachford_factor,
    split,
)
from deqbook.wellposed import monotonicity

CHAPTER = "01_wellposedness"


# --- random matrices -------------------------------------------------------------------------


def _initial_matrix(W: Tensor) -> Iterable[Measurement]:
    m = W.shape[0]
    yield at_most("|mean of W| · m", abs(float(W.mean())) * m, 4.5)
    yield at_most("|variance of W - 1| · m", abs(float(W.var()) - 1) * m, 4.5 * math.sqrt(2))
    # P(‖W‖ > 2√m + t) ≤ exp(-t²/2); t = 4.5 leaves 4e-5
    yield at_most("‖W‖ / √m", operator_norm(W) / math.sqrt(m), 2 + 4.5 / math.sqrt(m))


@claim(
    "gao2022.assumption1",
    title="Gaussian weights and random signs: mean 0, variance 1, norm about 2√m",
    chapter=CHAPTER,
    ref="asm-relu-init",
)
def relu_initialisation(trial: Trial) -> Iterable[Measurement]:
    """Check the seeded initialiser of the ReLU implicit network."""
    model = ReLUImplicit.init(200, 50, gamma=0.1, seed=trial.seed)
    yield from _initial_matrix(model.W.detach())
    yield equal("‖a‖ / √m", float(model.a.detach().norm()) / math.sqrt(200), 1.0, 1e-12)
    x = sphere(64, 50, trial.seed + 1)
    yield equal("mean ‖φ‖²", float(model.inject(x).detach().pow(2).sum(1).mean()), 0.5, 0.06)


@relu_initialisation.control("entries not centred: mean √(2/π), as for |N(0, 1)|")
def not_centred(trial: Trial) -> Iterable[Measurement]:
    """The variance is still 1, but the norm is now 0.8·m."""
    W = normal(200, 200, g=trial.g) + math.sqrt(2 / math.pi)
    return [m for m in _initial_matrix(W) if "variance" not in m.name]


@relu_initialisation.control("entries not sub-Gaussian: ±√4000 with probability 1/4000, else 0")
def rare_giants(trial: Trial) -> Iterable[Measurement]:
    """Mean 0 and variance 1, but a single entry is as large as 63."""
    chosen = torch.rand(200, 200, generator=trial.g) < 1 / 4000
    W = math.sqrt(4000) * chosen * signs(200, 200, g=trial.g)
    return [m for m in _initial_matrix(W) if m.name.startswith("‖W‖")]


def _norm_tail(draws: Tensor) -> Iterable[Measurement]:
    m = draws.shape[1]
    norms = torch.linalg.matrix_norm(draws, 2)
    for t in (0.5, 1.0, 1.5):
        exceed = float((norms > 2 * math.sqrt(m) + t).double().mean())
        yield at_most(f"P(‖W‖ > 2√m + {t})", exceed, math.exp(-t * t / 2))
    edge = 2 - 0.760 * m ** (-2 / 3)
    yield equal("mean ‖W‖/√m at the edge", float(norms.mean()) / math.sqrt(m), edge, 1 / m)


@claim(
    "gao2022.lemma2.1",
    title="A random matrix has norm 2√m, with a Gaussian tail",
    chapter=CHAPTER,
    ref="lem-norm",
)
def random_norm(trial: Trial) -> Iterable[Measurement]:
    """Compare frequencies with exp(-t²/2) and the mean with the Tracy-Widom edge."""
    yield from _norm_tail(normal(300, 60, 60, g=trial.g))
    rademacher = torch.linalg.matrix_norm(signs(150, 60, 60, g=trial.g), 2) / math.sqrt(60)
    yield at_most("mean ‖W‖/√m, entries ±1", float(rademacher.mean()), 2.0)


@random_norm.control("entries not sub-Gaussian: Student t with 2 degrees of freedom")
def heavy_tail(trial: Trial) -> Iterable[Measurement]:
    """A t₂ variable N/√(χ²/2) has infinite variance."""
    chi = sum(normal(300, 60, 60, g=trial.g) ** 2 for _ in range(2))
    assert isinstance(chi, Tensor)
    return list(_norm_tail(normal(300, 60, 60, g=trial.g) / (chi / 2).sqrt()))


def _edge_frequency(
    seed: int, room: float, epsilon: float = 0.1, m: int = 200, draws: int = 80
) -> Measurement:
    """Count draws below (1 + room)·edge; the lemma promises 1 - exp(-2mε²) for room = ε."""
    g = generator(seed)
    variance = 0.08
    edge = 2 * math.sqrt(2 * variance)
    norms = torch.stack(
        [
            torch.linalg.matrix_norm(normal(m, m, g=g) * math.sqrt(2 * variance / m), 2)
            for _ in range(draws)
        ]
    )
    share = float((norms <= edge * (1 + room)).double().mean())
    return at_least("P(‖W‖ ≤ threshold)", share, 1 - math.exp(-2 * m * epsilon**2))


@claim(
    "ling2023.lemma1",
    title="‖W‖ ≤ 2√2 σ_w (1+ε) except with probability exp(-2mε²)",
    chapter=CHAPTER,
    ref="lem-vanilla-norm",
)
def vanilla_norm(trial: Trial) -> Iterable[Measurement]:
    """With ε = 0.1 and m = 200 the bound is 0.98; every draw obeys it."""
    yield _edge_frequency(trial.seed, room=0.1)
    norms = [
        operator_norm(VanillaDEQ.init(200, 5, seed=1000 * trial.seed + k).W.detach())
        for k in range(20)
    ]
    yield at_most("largest ‖W‖, σ_w² = 0.08", max(norms), 1.0)


@vanilla_norm.control("no room: the printed threshold, ε = 0")
def at_the_edge(trial: Trial) -> Iterable[Measurement]:
    """The edge itself is exceeded in about one draw out of six."""
    yield _edge_frequency(trial.seed, room=0.0)


def _vanilla_scales(seed: int, variance: float) -> Iterable[Measurement]:
    m, d = 300, 20
    model = VanillaDEQ.init(m, d, variance=variance, seed=seed)
    W, U, a = (p.detach() for p in (model.W, model.U, model.a))
    yield equal("m · var(W) / 2σ_w²", m * float(W.var()) / (2 * variance), 1.0, 0.03)
    yield equal("d · var(U) / 2", d * float(U.var()) / 2, 1.0, 0.1)
    yield equal("‖a‖", float(a.norm()), 1.0, 0.2)
    yield at_most("‖W‖", operator_norm(W), 1.0)
    x = sphere(20, d, seed + 1, radius=math.sqrt(d))
    z = model.solve(x, throw=False).z
    size = float(z.pow(2).sum(1).mean()) / m
    yield equal("mean ‖z‖²/m ÷ 1/(1-σ_w²)", size * (1 - variance), 1.0, 0.25)


@claim(
    "ling2023.assumption1",
    title="Gaussian initialisation with σ_w² < 1/8 starts as a contraction",
    chapter=CHAPTER,
    ref="asm-vanilla-init",
)
def vanilla_initialisation(trial: Trial) -> Iterable[Measurement]:
    """Check the seeded initialiser of the vanilla DEQ and the scale of its state."""
    return _vanilla_scales(trial.seed, variance=0.08)


@vanilla_initialisation.control("σ_w² = 1/2 instead of less than 1/8")
def large_variance(trial: Trial) -> Iterable[Measurement]:
    """The norm is 2: no contraction at the start."""
    return [m for m in _vanilla_scales(trial.seed, variance=0.5) if m.name == "‖W‖"]


# --- contraction -----------------------------------------------------------------------------


def _scaled_contraction(seed: int, gamma0: float, gamma: float | None) -> Iterable[Measurement]:
    """Measure the lemma's conclusions for γ₀, at γ = γ₀√m/‖W‖ or at a γ that ignores it."""
    model = ReLUImplicit.init(200, 10, gamma=1.0, seed=seed)
    model.gamma = (
        gamma0 * math.sqrt(200) / operator_norm(model.W.detach()) if gamma is None else gamma
    )
    x = sphere(5, 10, seed)
    phi = model.inject(x).detach()
    f = Injected(model.update, phi)
    with torch.no_grad():
        states = picard_states(f, torch.zeros_like(phi), 120)
        size = phi.norm(dim=1)
        yield at_most(
            "max ‖z^ℓ‖ (1-γ₀)/‖φ‖", float((states.norm(dim=2) / size).max()) * (1 - gamma0), 1.0
        )
        gaps = (states - states[-1]).norm(dim=2)[:60]
        powers = gamma0 ** torch.arange(60, dtype=torch.float64)[:, None]
        floor = 1e-13  # rounding
        ratio = (gaps - floor).clamp(min=0) / (powers * size / (1 - gamma0))
        yield at_most("max ‖z^ℓ - z‖ ÷ γ₀^ℓ‖φ‖/(1-γ₀)", float(ratio.max()), 1.0)
        yield at_most(
            "largest expansion ÷ γ₀", expansion(f, phi, generator(seed + 1)) / gamma0, 1.0
        )
        other = 10 * normal(*phi.shape, g=generator(seed + 2))
        yield within(
            "distance of limits from two starts", spread(f, 0 * phi, other, steps=400), 1e-8
        )
        # All units active and a difference along the top singular vector: the worst pair there is.
        top = torch.linalg.svd(model.W)[2][:1]
        up = Injected(model.update, torch.full_like(top, 100.0))
        stretch = float((up(top) - up(0 * top)).norm())
        yield at_most("worst pair: expansion ÷ γ₀", stretch / gamma0, 1 + 1e-9)


@claim(
    "gao2022.lemma2.2",
    title="The scaled network contracts: one equilibrium, bounded, reached at rate γ₀",
    chapter=CHAPTER,
    ref="lem-scaled",
)
def scaled_network_contracts(trial: Trial) -> Iterable[Measurement]:
    """Take γ as large as the lemma allows for γ₀ = 0.9."""
    return _scaled_contraction(trial.seed, 0.9, None)


@scaled_network_contracts.control("γ = 2 instead of γ ≤ γ₀√m/‖W‖ ≈ 0.45")
def unscaled(trial: Trial) -> Iterable[Measurement]:
    """Beyond √2 the iterates grow without bound."""
    return list(_scaled_contraction(trial.seed, 0.9, 2.0))


@scaled_network_contracts.control("γ = 0.5, a tenth above the lemma's limit")
def just_beyond(trial: Trial) -> Iterable[Measurement]:
    """Typical states still contract; the worst pair does not."""
    found = _scaled_contraction(trial.seed, 0.9, 0.5)
    return [m for m in found if m.name.startswith("worst pair")]


def _implicit_only(model: ReLUImplicit, seed: int, gamma0: float) -> Iterable[Measurement]:
    phi = model.inject(sphere(8, model.d, seed)).detach()
    f = Injected(model.update, phi)
    with torch.no_grad():
        states = picard_states(f, torch.zeros_like(phi), 150)
        sizes = states.flatten(1).norm(dim=1)
        yield at_most("max ‖Z^ℓ‖_F (1-γ₀)/‖Φ‖_F", float(sizes.max() / phi.norm()) * (1 - gamma0), 1)
        yield within(
            "distance of limits from two starts", spread(f, 0 * phi, phi.flip(0), steps=500), 1e-8
        )


@claim(
    "gao2023.lemmaA.5",
    title="γ‖W‖ = γ₀ < 1: one equilibrium with ‖Z‖_F ≤ ‖Φ‖_F/(1-γ₀)",
    chapter=CHAPTER,
    ref="lem-implicit-only",
)
def implicit_only_bounded(trial: Trial) -> Iterable[Measurement]:
    """Take the network of which only the implicit layer is trained, scaled to γ₀ = 0.8."""
    model = ReLUImplicit.init_implicit_only(64, 20, gamma=1.0, seed=trial.seed)
    model.gamma = 0.8 * math.sqrt(64) / operator_norm(model.W.detach())
    return _implicit_only(model, trial.seed, 0.8)


@implicit_only_bounded.control("W = |N(0, 1)| at γ₀ = 0.4, as in the source's section 5.1")
def half_normal_weights(trial: Trial) -> Iterable[Measurement]:
    """The spectral radius of γ̃W is 0.32√m > 1: there is no equilibrium at all."""
    drawn = ReLUImplicit.init_implicit_only(64, 20, gamma=0.4, seed=trial.seed)
    U, a, c = (p.detach() for p in (drawn.U, drawn.a, drawn.c))
    return list(_implicit_only(ReLUImplicit(drawn.W.detach().abs(), U, a, c, 0.4), trial.seed, 0.8))


def _vanilla_wellposed(seed: int, variance: float) -> Iterable[Measurement]:
    model = VanillaDEQ.init(200, 10, variance=variance, seed=seed)
    W = model.W.detach()
    norm = operator_norm(W)
    x = sphere(6, 10, seed, radius=math.sqrt(10))
    found = model.solve(x, solver=Picard(), tol=1e-10, max_steps=300, throw=False)
    yield within("residual after at most 300 steps", float(found.residual.max()), 1e-10)
    pattern = (found.z @ W.mT + model.inject(x).detach() > 0).double()
    J = pattern[:, :, None] * W
    least = torch.linalg.svdvals(torch.eye(200, dtype=torch.float64) - J)[:, -1]
    yield at_least("min σ_min(I - DW) - (1-‖W‖)", float(least.min()) - (1 - norm), 0.0)
    full = torch.linalg.svdvals(torch.eye(200, dtype=torch.float64) - W)[-1]
    yield at_least("the same with every unit active", float(full) - (1 - norm), 0.0)
    yield at_most("hypothesis: ‖W‖", norm, 1.0)
    q = model.inject(x).detach()
    f = Injected(model.iteration(), q)
    yield within("distance of limits from two starts", spread(f, 0 * q, 5 * q, steps=300), 1e-7)


@claim(
    "ling2023.wellposed",
    title="‖W‖ < 1: one equilibrium, and I - DW is invertible with inverse at most 1/(1-‖W‖)",
    chapter=CHAPTER,
    ref="thm-contraction",
)
def vanilla_wellposed(trial: Trial) -> Iterable[Measurement]:
    """Take the initialisation of Assumption 1."""
    return _vanilla_wellposed(trial.seed, 0.08)


@vanilla_wellposed.control("σ_w² = 1.5, so ‖W‖ = 3.5")
def expanding(trial: Trial) -> Iterable[Measurement]:
    """Beyond σ_w = 1 the state runs away."""
    kept = ("residual", "distance")
    return [m for m in _vanilla_wellposed(trial.seed, 1.5) if m.name.startswith(kept)]


def _invertibility(J: Tensor, size: Tensor) -> Iterable[Measurement]:
    """Compare σ_min(I-J) with 1 - size, where size should be the operator norm."""
    eye = torch.eye(J.shape[1], dtype=torch.float64)
    least = torch.linalg.svdvals(eye - J)[:, -1]
    yield at_least("min σ_min(I-J) / (1-‖J‖)", float((least / (1 - size)).min()), 1 - 1e-9)


@claim(
    "nguyen2022.definition2.3.1",
    title="‖J‖ < 1 makes I - J invertible, with σ_min(I-J) ≥ 1-‖J‖",
    chapter=CHAPTER,
    ref="def-contraction",
)
def contraction_inverts(trial: Trial) -> Iterable[Measurement]:
    """Draw 500 Jacobians with norms spread over (0, 1)."""
    J = normal(500, 4, 4, g=trial.g)
    target = torch.rand(500, generator=trial.g, dtype=torch.float64) * 0.98 + 0.01
    J = J * (target / torch.linalg.matrix_norm(J, 2))[:, None, None]
    norm = torch.linalg.matrix_norm(J, 2)
    radius = torch.linalg.eigvals(J).abs().amax(dim=1)
    yield from _invertibility(J, norm)
    yield at_most("max ρ(J)/‖J‖", float((radius / norm).max()), 1 + 1e-9)
    det = torch.linalg.det(torch.eye(4, dtype=torch.float64) - J).abs()
    yield at_least("min |det(I-J)| / (1-ρ)^d", float((det / (1 - radius) ** 4).min()), 1 - 1e-9)
    W = normal(10, 10, g=trial.g)
    W = 0.9 * W / operator_norm(W)
    q = normal(4, 10, g=trial.g)

    def f(z: Tensor) -> Tensor:
        return torch.tanh(z @ W.mT + q)

    yield within("distance of limits from two starts", spread(f, 0 * q, 5 * q), 1e-8)


@contraction_inverts.control("the spectral radius in place of the norm")
def radius_for_norm(trial: Trial) -> Iterable[Measurement]:
    """A non-normal matrix: ρ = 0.5, ‖J‖ = 10, σ_min(I-J) = 0.025."""
    J = torch.tensor([[[0.5, 10.0], [0.0, 0.5]]], dtype=torch.float64)
    return _invertibility(J, torch.tensor([spectral_radius(J[0])]))


@contraction_inverts.control("contraction at one fixed point only: z = σ(2z-1)")
def local_only(trial: Trial) -> Iterable[Measurement]:
    """Near 0 the derivative is 0, yet 1 is a second fixed point."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    yield within(
        "distance of limits from two starts",
        spread(lambda z: torch.relu(2 * z - 1), zero, zero + 1),
        1e-8,
    )


# --- monotone operators ----------------------------------------------------------------------


def _subdifferential(slopes: Tensor, offsets: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the interval ∂f(x) of f = max_i (a_i x + b_i)."""
    values = slopes * x[:, None] + offsets
    active = values >= values.amax(dim=1, keepdim=True) - 1e-9
    low = torch.where(active, slopes, math.inf).amin(dim=1)
    high = torch.where(active, slopes, -math.inf).amax(dim=1)
    return low, high


def _least_product(x: Tensor, low: Tensor, high: Tensor) -> float:
    """Return the least (u-v)(x-y) over pairs of points and extreme subgradients."""
    worst = math.inf
    for u in (low, high):
        for v in (low, high):
            worst = min(worst, float(((u[:, None] - v) * (x[:, None] - x)).min()))
    return worst


@claim(
    "nguyen2022.lemma2.3.1",
    title="The subdifferential of a closed convex function is maximal monotone",
    chapter=CHAPTER,
    ref="lem-subdifferential",
)
def subdifferential_maximal(trial: Trial) -> Iterable[Measurement]:
    """Test monotonicity on a grid, and Minty's criterion: x + ∂f(x) ∋ p is always solvable."""
    slopes = normal(6, g=trial.g)
    offsets = normal(6, g=trial.g)
    crossings = (offsets[:, None] - offsets) / (slopes - slopes[:, None] + torch.eye(6))
    x = torch.cat([torch.linspace(-4, 4, 161, dtype=torch.float64), crossings.flatten()])
    low, high = _subdifferential(slopes, offsets, x)
    yield at_least("least (u-v)(x-y)", _least_product(x, low, high), -1e-9)
    yield at_least("points of the grid on a kink", float((high > low).sum()), 1)
    p = torch.linspace(-10, 10, 101, dtype=torch.float64)
    low, high = torch.full_like(p, -40.0), torch.full_like(p, 40.0)
    for _ in range(80):  # bisection on x + (right slope), an increasing function
        mid = (low + high) / 2
        above = mid + _subdifferential(slopes, offsets, mid)[1] >= p
        low, high = torch.where(above, low, mid), torch.where(above, mid, high)
    left = low + _subdifferential(slopes, offsets, low)[0]
    right = high + _subdifferential(slopes, offsets, high)[1]
    gap = torch.maximum(left - p, p - right).clamp(min=0)
    yield within("distance of p to x + ∂f(x)", float(gap.max()), 1e-8)
    # The converse fails: -√x with the value 5 at 0 is not closed, yet its ∂ passes Minty's test.
    root = torch.full((101,), 1.0, dtype=torch.float64)
    for _ in range(200):  # solve x - 1/(2√x) = p in s = log x
        s = root.log()
        value = root - 0.5 * root.rsqrt() - p
        root = (s - value / (root + 0.25 * root.rsqrt())).exp()
    gap = (root - 0.5 * root.rsqrt() - p).abs()
    yield within("distance of p to x + ∂g(x), g = -√x", float(gap.max()), 1e-8)


@subdifferential_maximal.control("f not convex: a minimum of affine functions")
def concave(trial: Trial) -> Iterable[Measurement]:
    """Its derivative decreases."""
    slopes, offsets = normal(6, g=trial.g), normal(6, g=trial.g)
    x = torch.linspace(-4, 4, 161, dtype=torch.float64)
    low, high = _subdifferential(-slopes, -offsets, x)
    yield at_least("least (u-v)(x-y)", _least_product(x, -high, -low), -1e-9)


@subdifferential_maximal.control("f not closed: zero on the open half-line x > 0")
def not_closed(trial: Trial) -> Iterable[Measurement]:
    """Here x + ∂f(x) = x covers only p > 0."""
    p = torch.linspace(-10, 10, 101, dtype=torch.float64)
    yield within("distance of p to x + ∂f(x)", float((-p).clamp(min=0).max()), 1e-8)


def _quotients(W: Tensor, g: torch.Generator) -> float:
    """Return the least ⟨Wv, v⟩/‖v‖² over random v and over the eigenvectors of W + Wᵀ."""
    v = torch.cat([normal(500, W.shape[0], g=g), torch.linalg.eigh(W + W.mT)[1].mT])
    return float(((v @ W.mT * v).sum(1) / v.pow(2).sum(1)).min())


@claim(
    "nguyen2022.lemma2.3.2",
    title="x ↦ Wx is μ-strongly monotone exactly when W + Wᵀ ⪰ 2μI",
    chapter=CHAPTER,
    ref="lem-linear-monotone",
)
def linear_monotone(trial: Trial) -> Iterable[Measurement]:
    """Take μ = ½λ_min(W + Wᵀ); it is a lower bound, and attained."""
    W = normal(8, 8, g=trial.g) + 6 * torch.eye(8, dtype=torch.float64)
    mu = float(torch.linalg.eigvalsh(W + W.mT)[0]) / 2
    least = _quotients(W, trial.g)
    yield at_least("least ⟨Wv,v⟩/‖v‖² - μ", least - mu, -1e-10)
    yield within("the same: attained", least - mu, 1e-10)


@linear_monotone.control("the factor 2 dropped: μ = λ_min(W + Wᵀ)")
def factor_two(trial: Trial) -> Iterable[Measurement]:
    """The modulus is overstated by a factor of two."""
    W = normal(8, 8, g=trial.g) + 6 * torch.eye(8, dtype=torch.float64)
    mu = float(torch.linalg.eigvalsh(W + W.mT)[0])
    yield at_least("least ⟨Wv,v⟩/‖v‖² - μ", _quotients(W, trial.g) - mu, -1e-10)


@claim(
    "nguyen2022.proposition1",
    title="I - W ⪰ μI exactly when W = (1-μ)I - AᵀA + B - Bᵀ",
    chapter=CHAPTER,
    ref="prop-parametrisation",
)
def parametrisation(trial: Trial) -> Iterable[Measurement]:
    """Go both ways on random matrices."""
    model = MonDEQ.init(12, 3, mu=0.3, seed=trial.seed)
    yield at_least("λ_min(I - sym W) - μ", monotonicity(model.W.detach()) - 0.3, -1e-12)
    W = normal(12, 12, g=trial.g)
    mu = monotonicity(W) - 0.1
    A, B = monotone_parameters(W, mu)
    eye = torch.eye(12, dtype=torch.float64)
    error = float(((1 - mu) * eye - A.mT @ A + B - B.mT - W).abs().max())
    yield within("error of the best reconstruction", error, 1e-12)


@parametrisation.control("μ above λ_min(I - sym W)")
def modulus_too_large(trial: Trial) -> Iterable[Measurement]:
    """AᵀA can only be the positive part of S, and that misses W."""
    W = normal(12, 12, g=trial.g)
    S = (1 - monotonicity(W) - 0.1) * torch.eye(12, dtype=torch.float64) - symmetric_part(W)
    values, vectors = torch.linalg.eigh(S)
    best = (vectors * values.clamp(min=0)) @ vectors.mT
    yield within("error of the best reconstruction", float((best - S).abs().max()), 1e-12)


def _two_sided(
    W: Tensor, q: Tensor, g: torch.Generator, steps: int = 20000
) -> Iterable[Measurement]:
    """Solve z = σ(Wz + q) by splitting from two starts."""
    problem = MonotoneProblem(W, q)
    starts = (torch.zeros_like(q), 5 * normal(*q.shape, g=g))
    ends = [
        split(problem, PeacemanRachford(), z0=s, tol=1e-10, max_steps=steps, throw=False)
        for s in starts
    ]
    moved = max(float((torch.relu(e.z @ W.mT + q) - e.z).norm(dim=1).max()) for e in ends)
    yield within("‖f(z) - z‖ at the end", moved, 1e-8)
    gap = float((ends[0].z - ends[1].z).norm(dim=1).max())
    yield within("distance of limits from two starts", gap, 1e-7)


@claim(
    "nguyen2022.definition3.2.1",
    title="A monotone DEQ has one equilibrium, however large A and B are",
    chapter=CHAPTER,
    ref="def-mondeq",
)
def monotone_wellposed(trial: Trial) -> Iterable[Measurement]:
    """Enlarge the skew part until ‖W‖ is far above 1; splitting still finds the one solution."""
    drawn = MonDEQ.init(30, 5, mu=0.5, seed=trial.seed)
    A, B, U, a = (p.detach() for p in (drawn.A, drawn.B, drawn.U, drawn.a))
    model = MonDEQ(A, 6 * B, U, a, 0.5)
    q = sphere(6, 5, trial.seed) @ U.mT
    yield from _two_sided(model.W.detach(), q, trial.g)
    yield at_least("hypothesis: μ", monotonicity(model.W.detach()), 0.5)
    yield at_least("‖W‖, no contraction", operator_norm(model.W.detach()), 3.0)
    exact = fixed_point(
        Injected(model.iteration(), q), torch.zeros_like(q), solver=Newton(), tol=1e-12, throw=False
    )
    other = split(MonotoneProblem(model.W.detach(), q), tol=1e-11, max_steps=20000)
    yield within("splitting against Newton", float((exact.z - other.z).abs().max()), 1e-8)


@monotone_wellposed.control("μ = -1: z = σ(2z-1) has two solutions")
def two_solutions(trial: Trial) -> Iterable[Measurement]:
    """Both 0 and 1 solve it."""
    one = torch.ones(1, 1, dtype=torch.float64)
    gap = spread(Injected(lambda z, q: torch.relu(2 * z + q), -one), 0 * one, one)
    yield within("distance of limits from two starts", gap, 1e-7)


@monotone_wellposed.control("μ = 0: z = σ(z+1) has none")
def no_solution(trial: Trial) -> Iterable[Measurement]:
    """The residual is 1 everywhere on z ≥ 0."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return [m for m in _two_sided(one, one, trial.g, 500) if m.name.startswith("‖f(z)")]


def rotation_shrinks(factor: float) -> Measurement:
    """Run 400 forward-backward steps at α = factor·μ/L² from distance ½."""
    problem, z = rotation_problem()
    f = ForwardBackward(factor * problem.mu / problem.L**2).iteration(problem)
    start = z + torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    end = picard_states(f, start, 400)[-1]
    # Inside the interval the bound is the factor itself to the power 400: the instance is sharp.
    inside = forward_backward_factor(1.98 * problem.mu / problem.L**2, problem.mu, problem.L)
    shrunk = float((end - z).norm()) / 0.5
    return at_most("rotation: distance after 400 steps ÷ start", shrunk, inside**400 * (1 + 1e-6))


def _tanh_splitting(seed: int, sigma: Activation) -> Measurement:
    """Compare Peaceman-Rachford at α = ½ with Newton for a tanh cell."""
    problem, z = random_problem(seed, tanh)
    used = MonotoneProblem(problem.W, problem.q, sigma)
    f = PeacemanRachford(0.5).iteration(used)
    u = picard_states(f, torch.zeros_like(problem.q), 150)[-1]
    return within("tanh: distance to the equilibrium", float((sigma.prox(u, 0.5) - z).norm()), 1e-8)


def _largest(ratios: list[Tensor]) -> float:
    """Return the largest ratio; a NaN stays a NaN, and fails."""
    return float(torch.stack(ratios).max())


@claim(
    "nguyen2022.splitting",
    title="Forward-backward converges for 0 < α < 2μ/L², Peaceman-Rachford for every α > 0",
    chapter=CHAPTER,
    ref="thm-splitting",
)
def splitting_ranges(trial: Trial) -> Iterable[Measurement]:
    """Follow the distance to the equilibrium and compare with the factors, step by step."""
    problem, z = random_problem(trial.seed)
    mu, L = problem.mu, problem.L
    steps, rounding = 100, 1e-11
    powers = torch.arange(1, steps + 1, dtype=torch.float64)[:, None]
    away = 1 + normal(*z.shape, g=trial.g).abs()  # start off the equilibrium, in every sample
    ratios = []
    for c in (0.5, 1.0, 1.9):
        alpha = c * mu / L**2
        f = ForwardBackward(alpha).iteration(problem)
        gap = (picard_states(f, z + away, steps) - z).norm(dim=2)
        promised = forward_backward_factor(alpha, mu, L) ** powers * gap[0]
        ratios.append((gap[1:] - rounding).clamp(min=0) / promised)
    yield at_most("forward-backward: distance ÷ (factor^k · start)", _largest(ratios), 1.0)
    ratios = []
    for c in (0.1, 1.0, 10.0):
        alpha = c / L
        f = PeacemanRachford(alpha).iteration(problem)
        u = z - alpha * (z @ problem.M.mT - problem.q)  # the fixed point: u - z ∈ α∂f(z)
        gap = (picard_states(f, u + away, steps) - u).norm(dim=2)
        promised = peaceman_rachford_factor(alpha, mu, L) ** powers * gap[0]
        ratios.append((gap[1:] - rounding).clamp(min=0) / promised)
    yield at_most("Peaceman-Rachford: distance ÷ (factor^k · start)", _largest(ratios), 1.0)
    yield rotation_shrinks(1.98)
    yield _tanh_splitting(trial.seed, tanh)


@splitting_ranges.control("α = 2μ/L², the closed end of the interval")
def closed_end(trial: Trial) -> Iterable[Measurement]:
    """At the end point the step is a pure rotation."""
    yield rotation_shrinks(2.0)


@splitting_ranges.control("tanh itself in place of prox_{αf}")
def wrong_prox(trial: Trial) -> Iterable[Measurement]:
    """Only for ReLU does the prox not depend on α."""
    pretend = Activation("tanh", tanh.value, tanh.slope, lambda p, _alpha: torch.tanh(p))
    yield _tanh_splitting(trial.seed, pretend)


def _step_norm(M: Tensor, mu: float, L: float, c: float) -> float:
    """Return ‖I - αM‖ ÷ √(1 - 2αμ + α²L²) at α = cμ/L²."""
    alpha = c * mu / L**2
    eye = torch.eye(M.shape[0], dtype=torch.float64)
    return operator_norm(eye - alpha * M) / forward_backward_factor(alpha, mu, L)


@claim(
    "nguyen2022.proposition3",
    title="The forward step I - αM has norm at most √(1 - 2αμ + α²L²)",
    chapter=CHAPTER,
    ref="prop-forward-step",
)
def forward_step(trial: Trial) -> Iterable[Measurement]:
    """Try several steps on a random M, and a rotation for which the bound is an equality."""
    problem, _ = random_problem(trial.seed)
    worst = max(_step_norm(problem.M, problem.mu, problem.L, c) for c in (0.1, 0.5, 1.0, 1.9))
    yield at_most("max ‖I-αM‖ ÷ bound", worst, 1 + 1e-9)
    rotation, _ = rotation_problem()
    tight = _step_norm(rotation.M, rotation.mu, rotation.L, 1.0)
    yield equal("rotation: ‖I-αM‖ ÷ bound", tight, 1.0, 1e-9)


@forward_step.control("M only μ/2-strongly monotone")
def modulus_overstated(trial: Trial) -> Iterable[Measurement]:
    """State μ twice too large on the rotation."""
    problem, _ = rotation_problem()
    yield equal(
        "rotation: ‖I-αM‖ ÷ bound", _step_norm(problem.M, 2 * problem.mu, problem.L, 1.0), 1.0, 1e-9
    )


# --- size of the equilibrium -------------------------------------------------------------------


def _size_ratio(model: MonDEQ, x: Tensor, mu: float) -> float:
    """Return ‖Z‖_F μ / (‖X‖_F ‖U‖)."""
    z = model.solve(x, tol=1e-11, max_steps=20000).z
    return float(z.norm() * mu / (x.norm() * operator_norm(model.U.detach())))


def _tight_model(mu: float = 0.5, m: int = 4) -> tuple[MonDEQ, Tensor]:
    """Return W = (1-μ)I, U = I, X = 1, for which the bound is an equality."""
    zero, eye = torch.zeros(m, m, dtype=torch.float64), torch.eye(m, dtype=torch.float64)
    one = torch.ones(m, dtype=torch.float64)
    return MonDEQ(zero, zero, eye, one, mu), torch.ones(3, m, dtype=torch.float64)


@claim(
    "nguyen2022.lemma3.3.3",
    title="The equilibrium is bounded: ‖Z‖_F ≤ ‖X‖_F ‖U‖ / μ",
    chapter=CHAPTER,
    ref="lem-size",
)
def equilibrium_size(trial: Trial) -> Iterable[Measurement]:
    """Vary μ over two decades on random models; one model attains the bound."""
    worst = 0.0
    for k, mu in enumerate((0.05, 0.3, 1.0, 3.0)):
        model = MonDEQ.init(15, 4, mu=mu, seed=10 * trial.seed + k)
        worst = max(worst, _size_ratio(model, normal(6, 4, g=trial.g), mu))
    yield at_most("max ‖Z‖_F μ / (‖X‖_F‖U‖)", worst, 1.0)
    model, x = _tight_model()
    yield at_most("the same where it is tight", _size_ratio(model, x, model.mu), 1 + 1e-9)


@equilibrium_size.control("μ overstated by a factor 2")
def size_modulus(trial: Trial) -> Iterable[Measurement]:
    """The tight model then violates the bound."""
    model, x = _tight_model()
    yield at_most("the same where it is tight", _size_ratio(model, x, 2 * model.mu), 1 + 1e-9)


@equilibrium_size.control("an activation with σ(0) ≠ 0: softplus")
def softplus(trial: Trial) -> Iterable[Measurement]:
    """A vanishing input still has a state."""
    model, x = _tight_model()
    x = 1e-3 * x

    def f(z: Tensor) -> Tensor:
        return F.softplus(z @ model.W.detach().mT + x)

    z = fixed_point(f, torch.zeros_like(x)).z
    yield at_most("the same where it is tight", float(z.norm() * model.mu / x.norm()), 1 + 1e-9)


def _complementarity(sigma: Activation, seed: int) -> Iterable[Measurement]:
    drawn = MonDEQ.init(15, 4, mu=0.5, seed=seed)
    A, B, U, a = (p.detach() for p in (drawn.A, drawn.B, drawn.U, drawn.a))
    model = MonDEQ(A, B, U, a, 0.5, sigma=sigma)
    x = normal(6, 4, g=generator(seed))
    z, q = model.solve(x, tol=1e-12, max_steps=20000).z, x @ U.mT
    energy = (z * (z - z @ model.W.detach().mT)).sum(1)
    yield within("max |⟨z,(I-W)z⟩ - ⟨z,Ux⟩|", float((energy - (z * q).sum(1)).abs().max()), 1e-8)
    yield at_most("max μ‖z‖² / ⟨z,(I-W)z⟩", float((0.5 * z.pow(2).sum(1) / energy).max()), 1.0)


@claim(
    "nguyen2022.lemmaC.0.3",
    title="The identity behind the bound: ⟨z,(I-W)z⟩ = ⟨z,Ux⟩ at a ReLU equilibrium",
    chapter=CHAPTER,
    ref="lem-size",
)
def complementarity(trial: Trial) -> Iterable[Measurement]:
    """Each unit is either off or exact, so the product vanishes unit by unit."""
    return _complementarity(relu, trial.seed)


@complementarity.control("tanh instead of ReLU")
def tanh_state(trial: Trial) -> Iterable[Measurement]:
    """For tanh the identity is only an inequality."""
    return [m for m in _complementarity(tanh, trial.seed) if m.name.startswith("max |")]


# --- optimisation-induced equilibria ---------------------------------------------------------


def _opteq_unique(model: OptEq, x: Tensor, g: torch.Generator) -> Measurement:
    q = model.inject(x).detach()
    f = Injected(model.iteration(), q)
    start = model.start(q)
    other = 2 * normal(*start.shape, g=g)
    gap = spread(lambda z: f(z).detach(), start, other)
    return within("distance of limits from two starts", gap, 1e-7)


def _opteq_residual(model: OptEq, x: Tensor) -> Measurement:
    found = model.solve(x, solver=Picard(), tol=1e-9, max_steps=1000, throw=False)
    worst = float((model.cell(found.z, x).detach() - found.z).norm(dim=1).max())
    return within("‖f(z) - z‖ at the end", worst, 1e-7)


@claim(
    "xie2022.wellposed",
    title="OptEq: one equilibrium when ‖W‖ < 1; at ‖W‖ = 1 a closed convex set, maybe empty",
    chapter=CHAPTER,
    ref="thm-opteq",
)
def opteq_wellposed(trial: Trial) -> Iterable[Measurement]:
    """Contract with factor ‖W‖² inside the ball; on its boundary look at a segment of solutions."""
    model = OptEq.init(12, 4, norm=0.95, seed=trial.seed)
    x = normal(5, 4, g=trial.g)
    q = model.inject(x).detach()
    f = Injected(model.iteration(), q)
    with torch.no_grad():
        yield at_most(
            "largest expansion ÷ ‖W‖²", expansion(f, model.start(q), trial.g) / 0.95**2, 1
        )
    yield _opteq_residual(model, x)
    yield _opteq_unique(model, x, trial.g)
    with torch.no_grad():
        top = torch.linalg.svd(model.W)[2][:1]
        up = Injected(model.iteration(), torch.full((1, 12), 100.0, dtype=torch.float64))
        stretch = float((up(top) - up(0 * top)).norm())
    yield at_most("worst pair: expansion ÷ ‖W‖²", stretch / 0.95**2, 1 + 1e-9)
    boundary, low, high = segment_instance()
    t = torch.linspace(0, 1, 11, dtype=torch.float64)[:, None]
    points = low + t * (high - low)
    moved = boundary.cell(points, torch.zeros(11, 1, dtype=torch.float64)).detach() - points
    yield within("residual along the segment, ‖W‖ = 1", float(moved.norm(dim=1).max()), 1e-12)
    starts = 2 * normal(2, 4, g=trial.g)
    zero = torch.zeros(2, 1, dtype=torch.float64)
    ends = boundary.solve(zero, starts, solver=Picard(), tol=1e-12, max_steps=20000).z
    middle = ends.mean(dim=0, keepdim=True)
    moved = boundary.cell(middle, zero[:1]).detach() - middle
    yield within("residual half-way between two limits", float(moved.norm()), 1e-9)


@opteq_wellposed.control("‖W‖ = 1 and b = 1 in one dimension: no equilibrium")
def empty_set(trial: Trial) -> Iterable[Measurement]:
    """The map z ↦ σ(z+1) moves every z ≥ 0 by one."""
    one = torch.ones(1, 1, dtype=torch.float64)
    yield _opteq_residual(OptEq(one, one, 0 * one[0], one), one)


@opteq_wellposed.control("‖W‖ = 1 with a segment of equilibria: no uniqueness")
def segment(trial: Trial) -> Iterable[Measurement]:
    """Two starts reach two points of the segment."""
    model, *_ = segment_instance()
    yield _opteq_unique(model, torch.zeros(1, 1, dtype=torch.float64), trial.g)


def _averaged_excess(f: Map, m: int, zeta: float, g: torch.Generator) -> Measurement:
    r"""Measure ‖Tx-Ty‖² + (1-ζ)/ζ ‖(x-Tx)-(y-Ty)‖² - ‖x-y‖² ≤ 0, relative to ‖x-y‖²."""
    x, y = normal(400, m, g=g), normal(400, m, g=g)
    tx, ty = f(x), f(y)
    square = (x - y).pow(2).sum(1)
    excess = (tx - ty).pow(2).sum(1) - square
    excess = excess + (1 - zeta) / zeta * ((x - tx) - (y - ty)).pow(2).sum(1)
    return within("averaged: worst excess ÷ ‖x-y‖²", float((excess / square).max()), 1e-12)


def _layers(sigma: Activation, alpha: float, count: int, g: torch.Generator) -> Map:
    """Return the composition of tied layers with ‖W_l‖ = 1."""
    weights = [torch.linalg.qr(normal(6, 6, g=g))[0] for _ in range(count)]
    shrink = [torch.cat([torch.ones(1), torch.rand(5, generator=g)]).double() for _ in weights]
    Ws = [Q * s[:, None] for Q, s in zip(weights, shrink)] if sigma is relu else weights
    bs = [normal(6, g=g) for _ in Ws]

    def T(z: Tensor) -> Tensor:
        for W, b in zip(Ws, bs):
            z = alpha * sigma(z @ W.mT + b) @ W + (1 - alpha) * z
        return z

    return T


@claim(
    "xie2022.lemma13",
    title="OptEq layers are α/2-averaged, their composition Lα/(2-α+Lα)-averaged",
    chapter=CHAPTER,
    ref="lem-averaged",
)
def layers_averaged(trial: Trial) -> Iterable[Measurement]:
    """Test the defining inequality on random pairs for three layers of norm one."""
    alpha, L = 0.5, 3
    zeta = L * alpha / (2 - alpha + L * alpha)
    yield _averaged_excess(_layers(relu, alpha, L, trial.g), 6, zeta, trial.g)
    layer = _averaged_excess(_layers(relu, alpha, 1, trial.g), 6, alpha / 2, trial.g)
    yield within("one layer: worst excess ÷ ‖x-y‖²", layer.value, 1e-12)
    plain = _averaged_excess(_layers(relu, 1.0, L, trial.g), 6, L / (1 + L), trial.g)
    yield within("no skip, α = 1: worst excess ÷ ‖x-y‖²", plain.value, 1e-12)


@layers_averaged.control("σ(t) = -t: 1-Lipschitz but not monotone")
def reflection(trial: Trial) -> Iterable[Measurement]:
    """Three reflections are a reflection: nonexpansive, never averaged."""
    minus = Activation("minus", torch.neg, lambda t: -torch.ones_like(t), lambda p, _alpha: -p)
    broken = _averaged_excess(_layers(minus, 1.0, 3, trial.g), 6, 3 / (1 + 3), trial.g)
    yield within("no skip, α = 1: worst excess ÷ ‖x-y‖²", broken.value, 1e-12)


# --- initialisation of a convolutional cell ----------------------------------------------------


def _settles(std: float | tuple[float, float], seed: int) -> Measurement:
    _, trace = cell_trajectory(std, seed, n=8)
    return within("median residual after 50 steps", float(trace[-1].median()), 1e-2)


@claim(
    "nguyen2022.figure4.1",
    title="A cell initialised at standard deviation 0.01 settles in 50 steps; at 1 it does not",
    chapter=CHAPTER,
    ref="fig-init-residual",
)
def initialisation_settles(trial: Trial) -> Iterable[Measurement]:
    """Follow the residual on real MNIST images; only the second convolution matters."""
    yield _settles(0.01, trial.seed)
    mixed = _settles((1.0, 0.01), trial.seed)
    yield within("the same with W1 ~ N(0, 1)", mixed.value, 1e-2)


@initialisation_settles.control("weights N(0, 1)")
def unit_weights(trial: Trial) -> Iterable[Measurement]:
    """The residual branch drowns the input."""
    yield _settles(1.0, trial.seed)


@initialisation_settles.control("0.01 read as a variance: standard deviation 0.1")
def variance_reading(trial: Trial) -> Iterable[Measurement]:
    """The residual stalls at several per cent."""
    yield _settles(0.1, trial.seed)


def _wanders(std: float, seed: int) -> Measurement:
    states, _ = cell_trajectory(std, seed, n=8)
    ratio = path_ratio(principal_plane(states).points)
    return at_most("path after the first step ÷ first step", ratio, 0.5)


@claim(
    "nguyen2022.figure4.2",
    title="In the principal plane a small cell leaps once and stops; a large one wanders",
    chapter=CHAPTER,
    ref="fig-init-plane",
)
def initialisation_leaps(trial: Trial) -> Iterable[Measurement]:
    """Measure the path in the plane of the first two principal components."""
    yield _wanders(0.01, trial.seed)


@initialisation_leaps.control("weights N(0, 1)")
def wandering(trial: Trial) -> Iterable[Measurement]:
    """The path is several times longer than its first step."""
    yield _wanders(1.0, trial.seed)
