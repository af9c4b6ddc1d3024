r"""Chapter 4, the tangent kernel of a DEQ: the kernels, and why the feature kernel is definite.

Three threads. The kernel :math:`H` of a network is a sum of Gram matrices, one per parameter, and
each closed form is compared with automatic differentiation. One of these Gram matrices, of the
injected features, has a limit :math:`G^\infty` for wide layers; its Hermite series shows that
non-parallel inputs make it definite. And a definite kernel makes the square loss PL.

Coefficients in the Hermite basis are written :math:`a_k` as in the source; the read-out vector,
also :math:`a`, never meets them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import ndtr
from torch import Tensor

from deqbook import data
from deqbook.claims import population  # noqa: F401  (registers the page's claims of ling2023)
from deqbook.claims.ch02 import chain_A, chain_B, exact_states, eye, kron, relative
from deqbook.claims.ch03a import Network, descent, monotone_network, vanilla_ball
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
    empirical_ntk,
    feature_limit,
    gram_parts,
    hermite,
    jacobian_ntk,
    kappa1,
    relu_coefficients,
    tangents,
)
from deqbook.linalg import operator_norm, spectral_radius
from deqbook.models import MonDEQ, ReLUImplicit
from deqbook.models.closed_form import gradient
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Newton

CHAPTER = "04_ntk"
ROUNDING = 1 + 1e-9  # room for rounding where a bound is attained exactly
SAME = 1e-9  # two exact routes
CRAMER = 1.0864350  # |h_k(x)| ≤ 1.0864… e^{x²/4} for all k and x (Cramér)
TERMS = 3000  # of the Hermite series of ReLU, where a bound sums it

Function = Callable[[Tensor], Tensor]


def _least(H: Tensor) -> float:
    """Return λ_min of a symmetric matrix."""
    return float(torch.linalg.eigvalsh(H)[0])


# --- gao2022: the kernel of the ReLU implicit network ------------------------------------------


def _relu_kernel(
    model: ReLUImplicit, X: Tensor, *, ones: bool = True, features: bool = True
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`H=(\gamma^2M+J_n)\circ ZZ^\top+Q\circ XX^\top+\Phi\Phi^\top` and Φ.

    M and Q by dense inverses, as the source defines them: with
    :math:`p_i=D_i(I-\tilde\gamma D_iW)^{-\top}a` they are :math:`\frac1m\langle p_i,p_j\rangle` and
    :math:`\frac1m\langle E_i(p_i+c),E_j(p_j+c)\rangle`. Not ``ones`` puts the identity for the
    all-ones matrix J_n; not ``features`` drops the direct path c from Q.
    """
    m, n, scale = model.m, len(X), model.scale
    W, U, a, c = (t.detach() for t in (model.W, model.U, model.a, model.c))
    Phi = model.inject(X).detach()
    Z, pre = exact_states(scale * W, Phi)
    D, E = (pre > 0).double(), (X @ U.mT > 0).double()
    P = D * torch.linalg.solve(eye(m) - scale * W.mT * D[:, None, :], a[:, None])[..., 0]
    paths = E * (P + (c if features else 0))
    J = torch.ones(n, n, dtype=X.dtype) if ones else eye(n)
    M, Q = P @ P.mT / m, paths @ paths.mT / m
    H = (model.gamma**2 * M + J) * (Z @ Z.mT) + Q * (X @ X.mT) + Phi @ Phi.mT
    return H, Phi


def _outputs(model: ReLUImplicit | MonDEQ, X: Tensor) -> Tensor:
    with torch.no_grad():
        return model(X, tol=1e-14)


def _slope(model: ReLUImplicit | MonDEQ, X: Tensor, y: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """Return (ŷ(θ-h∇𝓛)-ŷ)/h and the error e."""
    found = gradient(model, X, y, solver=Newton(), adjoint_solver=Newton(), tol=1e-14)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, g in found.grads.items():
            getattr(moved, name).sub_(h * g)
    return (_outputs(moved, X) - _outputs(model, X)) / h, found.error


@dataclass(frozen=True)
class _Reference:
    """A network with what a formula of its kernel is compared with, found without the formula.

    ``slope`` is (ŷ(θ-h∇𝓛)-ŷ)/h, with h so small that no unit changes side.
    """

    model: ReLUImplicit | MonDEQ
    X: Tensor
    jacobian: Tensor
    parts: dict[str, Tensor]
    slope: Tensor
    error: Tensor


def _reference(model: ReLUImplicit | MonDEQ, X: Tensor, y: Tensor, h: float) -> _Reference:
    pre = exact_states(model.structure().W, model.inject(X).detach())[1]
    slope, e = _slope(model, X, y, h * float(pre.abs().min()))
    H, blocks = jacobian_ntk(model, X, tol=1e-13), gram_parts(model, X, tol=1e-13)
    return _Reference(model, X, H, blocks, slope, e)


@lru_cache(maxsize=8)
def _relu_reference(seed: int) -> _Reference:
    model = ReLUImplicit.init(24, 6, gamma=0.3, seed=seed)
    return _reference(model, sphere(5, 6, seed + 100), signs(5, g=generator(seed + 200)), 1e-3)


def _relu_dynamics(seed: int, *, ones: bool = True, features: bool = True) -> Iterator[Measurement]:
    """Compare the kernel of the lemma with the Jacobian, and with a short step of descent."""
    known = _relu_reference(seed)
    model, e, slope = known.model, known.error, known.slope
    assert isinstance(model, ReLUImplicit)
    H, Phi = _relu_kernel(model, known.X, ones=ones, features=features)
    yield given("γ̃‖W‖", model.scale * operator_norm(model.W.detach()), "≤", 1)
    yield within("H vs Jacobian of autograd", relative(H, known.jacobian), SAME)
    package = torch.stack(list(known.parts.values())).sum(0)
    yield within("H vs gram_parts", relative(H, package), SAME)
    yield within("dŷ/dt along -∇𝓛 vs -He", relative(slope, -H @ e), 1e-3)
    yield at_least("λ_min(H) ÷ λ_min(ΦΦᵀ)", _least(H) / _least(Phi @ Phi.mT), 1)
    rate = float(e @ slope) / (-2 * _least(H) * 0.5 * float(e @ e))
    yield at_least("-d𝓛/dt ÷ 2λ_min(H)𝓛", rate, 1)


@claim(
    "gao2022.lemma3.1",
    title="ŷ' = -He with H = (γ²M+J_n)∘ZZᵀ + Q∘XXᵀ + ΦΦᵀ, and J_n is the matrix of ones",
    chapter=CHAPTER,
    ref="thm-relu-ntk",
)
def relu_kernel(trial: Trial) -> Iterable[Measurement]:
    """Build M and Q from dense inverses; Jacobian and descent know nothing of them."""
    return _relu_dynamics(trial.seed)


@relu_kernel.control("the identity I_n in the place of J_n = 11ᵀ, as printed")
def identity_for_ones(trial: Trial) -> Iterable[Measurement]:
    """The read-out contributes ZZᵀ, not its diagonal."""
    return named(_relu_dynamics(trial.seed, ones=False), "H vs", "dŷ/dt")


@relu_kernel.control("the direct path of the features dropped from Q")
def one_path(trial: Trial) -> Iterable[Measurement]:
    """U acts through the state and through φ."""
    return named(_relu_dynamics(trial.seed, features=False), "H vs", "dŷ/dt")


# --- data: unit, not parallel ------------------------------------------------------------------


@cache
def _weights() -> Tensor:
    """Return a_0², …, the squared Hermite coefficients of ReLU."""
    return relu_coefficients(TERMS) ** 2


def _coherence(X: Tensor, *, signed: bool = False) -> float:
    """Return δ = max |⟨x_i,x_j⟩| over pairs; ``signed`` forgets the modulus."""
    gram = X @ X.mT
    off = gram[~torch.eye(len(X), dtype=torch.bool)]
    return float((off if signed else off.abs()).max())


def definite_bound(delta: float, n: int) -> float:
    r"""Return :math:`\sum_ka_k^2(1-(n-1)\delta^k)_+`, a lower bound of :math:`\lambda_{\min}`.

    Term k of the series of :math:`G^\infty` has unit diagonal and other entries of modulus at most
    :math:`\delta^k`: Gershgorin (gao2022.lemmaA.9). The sum is cut, which only lowers it.
    """
    powers = torch.pow(torch.tensor(delta, dtype=torch.float64), torch.arange(TERMS + 1))
    return float((_weights() * (1 - (n - 1) * powers).clamp(min=0)).sum())


def _unit(X: Tensor) -> Tensor:
    return X / X.norm(dim=1, keepdim=True)


def _images(name: str, count: int, g: torch.Generator) -> Tensor:
    """Return some of the first 200 training images of a bundled set, at random."""
    X = data.load(name, n_train=200, n_test=1).x_train
    return X[torch.randperm(len(X), generator=g)[:count]]


def _nonparallel(what: str, X: Tensor) -> Iterator[Measurement]:
    yield given(f"{what}: max |⟨x_i,x_j⟩|", _coherence(X), "≤", 1 - 1e-9)
    least = _least(feature_limit(X))
    yield Measurement(f"{what}: λ_min(G^∞)", least, "≥", 1e-10, theorem=False)


def _homogeneous(seed: int, phi: str = "relu") -> Iterator[Measurement]:
    """Scale the inputs one by one: the outputs must scale along."""
    drawn = ReLUImplicit.init(30, 6, gamma=0.3, seed=seed)
    model = ReLUImplicit(drawn.W, drawn.U, drawn.a, drawn.c, 0.3, phi=phi)
    X, s = sphere(5, 6, seed + 100), 0.5 + torch.arange(1, 6).double()
    scaled = _outputs(model, s[:, None] * X)
    yield within("ŷ(sx) vs sŷ(x), s > 0", relative(scaled, s * _outputs(model, X)), SAME)


@claim(
    "gao2022.assumption2",
    title="Unit inputs, no two parallel: true of the bundled images, and noise restores it",
    chapter=CHAPTER,
    ref="def-nonparallel",
)
def nonparallel_data(trial: Trial) -> Iterable[Measurement]:
    """Look at images and at a repaired duplicate; scaling inputs scales outputs, no more."""
    X = _images("mnist01", 40, trial.g)
    yield within("max |‖x_i‖-1|", float((X.norm(dim=1) - 1).abs().max()), 1e-12)
    yield from _nonparallel("40 images", X)
    noise = 0.1 * normal(X.shape[1], g=trial.g) / math.sqrt(X.shape[1])
    yield from _nonparallel("a duplicate with noise", _unit(torch.cat([X[:10], X[:1] + noise])))
    yield from _homogeneous(trial.seed)


@nonparallel_data.control("an image appears twice")
def duplicate_image(trial: Trial) -> Iterable[Measurement]:
    """Two equal rows have cosine 1, and G^∞ two equal rows."""
    X = _images("mnist01", 39, trial.g)
    yield from _nonparallel("40 images", torch.cat([X, X[:1]]))
    yield from _nonparallel("a duplicate with noise", torch.cat([X[:10], X[:1]]))


@nonparallel_data.control("an image appears twice with different brightness, before normalisation")
def brighter_image(trial: Trial) -> Iterable[Measurement]:
    """x_i ≠ x_j, but on the sphere they coincide."""
    X = _images("mnist01", 39, trial.g)
    yield from _nonparallel("40 images", _unit(torch.cat([X, 0.5 * X[:1]])))


@nonparallel_data.control("injected features tanh(Ux), not homogeneous: scale does matter")
def saturating_features(trial: Trial) -> Iterable[Measurement]:
    """Normalising the inputs would then change the task, and not just its units."""
    return _homogeneous(trial.seed, "tanh")


DEFINITE = "λ_min(G^∞) ÷ Σ_k a_k²(1-(n-1)δ^k)₊"


def _definite(X: Tensor, G: Tensor, *, signed: bool = False) -> Measurement:
    return at_least(DEFINITE, _least(G) / definite_bound(_coherence(X, signed=signed), len(X)), 1)


def _pair_limit(rho: float) -> float:
    """Return E[σ(s)σ(t)] at correlation ρ by quadrature, the inner integral being known."""
    tau = math.sqrt(1 - rho**2)

    def inner(s: float) -> float:
        u = rho * s / tau  # E σ(ρs + τw) = τ(uΦ(u) + φ(u))
        return s * tau * (u * ndtr(u) + _density(u)) * _density(s)

    return float(quad(inner, 0, 12, epsabs=1e-13, epsrel=1e-13)[0])


def _density(x: float) -> float:
    return math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


@claim(
    "gao2022.lemma3.2",
    title="Unit inputs, no two parallel: λ_min(G^∞) > 0, with a lower bound from the angles",
    chapter=CHAPTER,
    ref="thm-feature-kernel-definite",
)
def definite_limit(trial: Trial) -> Iterable[Measurement]:
    """Compare λ_min with the bound of the Hermite series; then two inputs at a small angle."""
    X = sphere(6, 4, trial.seed)
    G = feature_limit(X)
    yield given("max |⟨x_i,x_j⟩|", _coherence(X), "≤", 1 - 1e-9)
    yield _definite(X, G)
    gaps = [abs(float(G[0, j]) - _pair_limit(float(X[0] @ X[j]))) for j in range(1, 6)]
    yield within("closed form of G^∞ vs quadrature", max(gaps), 1e-10)
    angle = 0.01 * (1 + trial.seed)
    cosine = torch.tensor(math.cos(angle), dtype=torch.float64)
    pair = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    near = _least(feature_limit(pair))
    exact = 0.5 - float(kappa1(cosine))
    yield within("angle θ: |λ_min - (½-κ₁(cos θ))|", abs(near - exact), 1e-12)
    yield equal("small angle θ: λ_min ÷ ¼θ²", near / (angle**2 / 4), 1, angle)
    opposite = _least(feature_limit(torch.cat([X[:1], -X[:1]])))
    yield equal("one antipodal pair alone: λ_min", opposite, 0.5, 1e-12)


@definite_limit.control("x_i ≠ x_j only, as legible in our copy: d+1 antipodal pairs")
def antipodal_pairs(trial: Trial) -> Iterable[Measurement]:
    """σ(t)-σ(-t) = t turns the d+1 differences into vectors of dimension d."""
    start = 0.3 * trial.seed
    t = start + math.pi * torch.arange(3).double() / 3
    half = torch.stack([torch.cos(t), torch.sin(t)], dim=1)
    X = torch.cat([half, -half])
    yield _definite(X, feature_limit(X), signed=True)


@definite_limit.control("a linear activation: G^∞ = XXᵀ has rank d < n")
def linear_activation(trial: Trial) -> Iterable[Measurement]:
    """All coefficients beyond the first vanish."""
    X = sphere(6, 4, trial.seed)
    yield _definite(X, X @ X.mT)


@definite_limit.control("an input appears twice, δ read off the other pairs")
def duplicate_input(trial: Trial) -> Iterable[Measurement]:
    """Two equal rows make G^∞ singular."""
    X = sphere(5, 4, trial.seed)
    twice = torch.cat([X, X[:1]])
    value = _least(feature_limit(twice)) / definite_bound(_coherence(X), 6)
    yield at_least(DEFINITE, value, 1)


# --- concentration of the initial Gram matrix --------------------------------------------------


def feature_width(lambda0: float, n: int, delta: float) -> int:
    r"""Return :math:`m=\lceil52\,n^2\lambda_0^{-2}\log(n(n+1)/\delta)\rceil` (gao2022.lemma3.3).

    Bernstein with :math:`\mathbb E(\sigma\sigma')^q\le\frac{q!}2\cdot\frac32\cdot2^{q-2}` bounds
    each of the n(n+1)/2 entries by :math:`\sqrt{3t/m}+2t/m`, t = log(n(n+1)/δ).
    """
    return math.ceil(52 * n**2 / lambda0**2 * math.log(n * (n + 1) / delta))


def _grams(X: Tensor, m: int, draws: int, g: torch.Generator, *, mean: bool = True) -> Tensor:
    """Return ``draws`` Gram matrices of σ(Ux)/√m; not ``mean`` leaves the factor 1/m out."""
    found = []
    for _ in range(draws):
        features = torch.relu(X @ normal(X.shape[1], m, g=g))
        found.append(features @ features.mT / (m if mean else 1))
    return torch.stack(found)


def _share(bad: Tensor) -> float:
    return float(bad.double().mean())


def _concentration(
    seed: int, *, width: int | None = None, mean: bool = True
) -> Iterator[Measurement]:
    """Count the draws that miss, at the explicit width or at another."""
    n, delta, draws = 3, 0.1, 20
    # In coordinates of their own span: the law of Ux does not change, and U has three columns.
    X = torch.linalg.qr(sphere(n, 12, seed + 100).mT)[1].mT
    g = generator(seed + 200)
    limit = feature_limit(X)
    lambda0 = _least(limit)
    need = feature_width(lambda0, n, delta)
    m = need if width is None else width
    yield given("52n²λ₀⁻²log(n(n+1)/δ) ÷ m", need / m, "≤", 1)
    G = _grams(X, m, draws, g, mean=mean)
    away = torch.linalg.matrix_norm(G - limit, 2)
    yield at_most("share of draws with ‖G(0)-G^∞‖ > λ₀/4", _share(away > lambda0 / 4), delta)
    least = torch.linalg.eigvalsh(G)[:, 0]
    yield at_most("share of draws with λ_min(G(0)) < ¾λ₀", _share(least < 0.75 * lambda0), delta)


def _entries(seed: int, *, mean: bool = True) -> Measurement:
    """Count the draws in which an entry leaves Bernstein's interval, at a small width."""
    n, m, delta = 5, 60, 0.1
    X, g = sphere(n, 6, seed + 300), generator(seed + 400)
    t = math.log(n * (n + 1) / delta)
    gap = (_grams(X, m, 200, g, mean=mean) - feature_limit(X)).abs().amax(dim=(1, 2))
    name = "m = 60: share of draws with an entry off by √(3t/m)+2t/m"
    return at_most(name, _share(gap > math.sqrt(3 * t / m) + 2 * t / m), delta)


def _moment(size: float) -> Measurement:
    """Compare E exp(λ²s²) = (1-2λ²)^{-1/2} with exp(2λ²), over |λ| up to a size."""
    lam = torch.linspace(0.1, size, 50, dtype=torch.float64)
    ratio = (1 - 2 * lam**2).pow(-0.5) / torch.exp(2 * lam**2)
    return at_most("E exp(λ²s²) ÷ exp(2λ²)", float(ratio.max()), ROUNDING)


@claim(
    "gao2022.lemma3.3",
    title="m ≥ 52n²λ₀⁻²log(n(n+1)/δ): with probability 1-δ, ‖G(0)-G^∞‖ ≤ λ₀/4",
    chapter=CHAPTER,
    ref="thm-feature-kernel-concentrates",
)
def feature_concentration(trial: Trial) -> Iterable[Measurement]:
    """Count failures at the width of the lemma, with its constant worked out."""
    yield from _concentration(trial.seed)
    yield _entries(trial.seed)
    X, g = sphere(6, 6, trial.seed + 500), generator(trial.seed + 600)
    widths = (100, 400, 1600, 6400)
    limit = feature_limit(X)
    errors = [
        float(torch.linalg.matrix_norm(_grams(X, m, 40, g) - limit, 2).mean()) for m in widths
    ]
    order = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    yield equal("exponent of m in the mean of ‖G(0)-G^∞‖", float(order), -0.5, 0.05)
    yield _moment(math.sqrt(math.log(math.sqrt(2))))


@feature_concentration.control("too narrow: m = n² + n")
def too_narrow(trial: Trial) -> Iterable[Measurement]:
    """At twelve units the Gram matrix is far from its mean."""
    return list(_concentration(trial.seed, width=12))


@feature_concentration.control("the factor 1/m dropped from the sum, as legible in our copy")
def no_mean(trial: Trial) -> Iterable[Measurement]:
    """The sum grows with m, and what concentrates is the mean."""
    return [
        *named(_concentration(trial.seed, mean=False), "share of draws with ‖"),
        _entries(trial.seed, mean=False),
    ]


@feature_concentration.control("the inequality claimed for all |λ| ≤ 1/√2: λ up to 0.7")
def printed_range(trial: Trial) -> Iterable[Measurement]:
    """The left side has a pole at 1/√2; the two curves cross near 0.63."""
    yield _moment(0.65 + 0.01 * trial.seed)


# --- Hermite expansions ------------------------------------------------------------------------


@cache
def _gauss(nodes: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of Gauss quadrature for the standard normal law."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.from_numpy(x), torch.from_numpy(w / w.sum())


def _uniform(low: float, high: float, g: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=g, dtype=torch.float64))


def _square_integral(f: Callable[[float], float], size: float) -> float:
    """Return ∫ f² dP over [-size, size], split at the kink 0."""
    halves = [
        quad(lambda x: f(x) ** 2 * _density(x), low, high, epsabs=1e-13, limit=200)[0]
        for low, high in ((-size, 0.0), (0.0, size))
    ]
    return float(sum(halves))


def _integrable(f: Callable[[float], float]) -> Iterator[Measurement]:
    far, farther = (_square_integral(f, size) for size in (15, 30))
    yield at_most("∫_{-30}^{30} σ² dP ÷ E s²", farther, 1)
    yield within("what [-30, 30] adds to [-15, 15]", abs(farther - far), 1e-10)


@claim(
    "gao2022.lemmaA.1",
    title="|σ(s)| ≤ |s| makes σ square integrable: ‖σ‖² ≤ 1, and ½ for ReLU",
    chapter=CHAPTER,
    ref="lem-hermite-basis",
)
def square_integrable(trial: Trial) -> Iterable[Measurement]:
    """Integrate a leaky ReLU of random slope; ReLU itself against its exact norm and a sample."""
    slope = _uniform(0, 0.9, trial.g)
    yield from _integrable(lambda x: x if x > 0 else slope * x)
    yield equal("‖σ‖² of ReLU", _square_integral(lambda x: max(x, 0.0), 30), 0.5, 1e-10)
    sample = torch.relu(normal(20000, g=trial.g)).pow(2)
    gap = abs(float(sample.mean()) - 0.5) / (float(sample.std()) / math.sqrt(len(sample)))
    yield within("20000 draws: |mean σ(s)² - ½| ÷ standard error", gap, 5)


@square_integrable.control("|σ(s)| ≤ |s| broken: σ(s) = exp(s²/4)")
def too_steep(trial: Trial) -> Iterable[Measurement]:
    """The density cancels, and the integral grows with the interval."""
    size = _uniform(0.9, 1.1, trial.g)
    return _integrable(lambda x: size * math.exp(x**2 / 4))


@square_integrable.control("‖σ‖² of the identity instead of ReLU")
def both_halves(trial: Trial) -> Iterable[Measurement]:
    """Half of the mass of s² lies on each side."""
    yield equal("‖σ‖² of ReLU", _square_integral(lambda x: x, 30), 0.5, 1e-10)


def _orthonormal(h: Function, spread: float = 1.0) -> Measurement:
    """Compare the Gram matrix of h_0, …, h_12 under N(0, spread²) with the identity."""
    x, w = _gauss(40)
    values = h(spread * x)
    gram = (values * w) @ values.mT
    return within("Gram matrix of h_0, …, h_12 vs I", float((gram - eye(13)).abs().max()), 1e-10)


def _rodrigues(h: Function, g: torch.Generator) -> Measurement:
    """Compare with (-1)^k e^{x²/2} D^k e^{-x²/2} ÷ √k!, differentiating k times."""
    x = torch.linspace(-2, 2, 9, dtype=torch.float64) + _uniform(0, 0.4, g)

    def bell(t: Tensor) -> Tensor:
        return torch.exp(-(t**2) / 2)

    f, worst = bell, []
    for k in range(6):
        formula = (-1) ** k * f(x) / bell(x) / math.sqrt(math.factorial(k))
        worst.append((formula - h(x)[k]).abs().max())
        f = torch.func.grad(lambda t, f=f: f(t).sum())  # type: ignore[misc]
    name = "h_0, …, h_5 vs (-1)^k e^{x²/2}D^k e^{-x²/2}/√k!"
    return within(name, float(torch.stack(worst).max()), 1e-9)


def _wave(g: torch.Generator, order: int) -> tuple[Function, Tensor]:
    """Return cos(wx+s) and its coefficients Re(i^k e^{is}) w^k e^{-w²/2}/√k!."""
    w, s = _uniform(0.6, 1.4, g), _uniform(0.5, 1.0, g)
    k = torch.arange(order + 1, dtype=torch.float64)
    size = torch.exp(k * math.log(w) - torch.lgamma(k + 1) / 2 - w**2 / 2)
    return lambda x: torch.cos(w * x + s), size * torch.cos(k * math.pi / 2 + s)


def _complete(g: torch.Generator, *, without: int | None = None) -> Measurement:
    """Expand cos(wx+s) to order 40, perhaps without one polynomial."""
    f, c = _wave(g, 40)
    if without is not None:
        c[without] = 0
    x, w = _gauss(60)
    rest = f(x) - c @ hermite(40, x)
    return within("‖cos(wx+s) - Σ_{k≤40}a_kh_k‖²", float(rest.pow(2) @ w), 1e-18)


@claim(
    "gao2022.lemmaA.2",
    title="The normalised Hermite polynomials are an orthonormal basis of L²(N(0,1))",
    chapter=CHAPTER,
    ref="lem-hermite-basis",
)
def hermite_basis(trial: Trial) -> Iterable[Measurement]:
    """Gram matrix by Gauss quadrature, exact here; the definition; one function expanded."""

    def h(x: Tensor) -> Tensor:
        return hermite(12, x)

    yield _orthonormal(h)
    yield _rodrigues(h, trial.g)
    yield _complete(trial.g)


@hermite_basis.control("the weight e^{-x²} of the physicists, N(0,½)")
def other_weight(trial: Trial) -> Iterable[Measurement]:
    """Each family is orthogonal for its own weight."""
    yield _orthonormal(lambda x: hermite(12, x), math.sqrt(0.5))


@hermite_basis.control("not normalised: He_k without 1/√k!")
def unnormalised(trial: Trial) -> Iterable[Measurement]:
    """The norm of He_k is √k!."""
    root = torch.lgamma(torch.arange(1, 14, dtype=torch.float64)).div(2).exp()[:, None]
    yield _orthonormal(lambda x: root * hermite(12, x))
    yield _rodrigues(lambda x: root * hermite(12, x), trial.g)


@hermite_basis.control("h_1 left out: orthonormal still, a basis no longer")
def incomplete(trial: Trial) -> Iterable[Measurement]:
    """What is missing cannot be made up by the others."""
    yield _complete(trial.g, without=1)


@dataclass(frozen=True)
class _Hinge:
    r"""The function :math:`(x-b)_+`: norm, coefficients and their tail in closed form.

    :math:`a_k=\varphi(b)h_{k-2}(b)/\sqrt{k(k-1)}` for :math:`k\ge2`, by parts; with Cramér's bound
    on :math:`h_k` the squares beyond K add up to at most
    :math:`1.0864^2\varphi(b)^2e^{b^2/2}/K`.
    """

    b: float

    def coefficients(self, order: int) -> Tensor:
        """Return a_0, …, a_order."""
        k = torch.arange(2, order + 1, dtype=torch.float64)
        h = hermite(order - 2, torch.tensor(self.b, dtype=torch.float64))
        beyond, mass = float(ndtr(-self.b)), _density(self.b)
        first = torch.tensor([mass - self.b * beyond, beyond], dtype=torch.float64)
        return torch.cat([first, mass * h / (k * (k - 1)).sqrt()])

    def inner(self, other: _Hinge) -> float:
        """Return ⟨f,g⟩ = (B-b-b')φ(B) + (1+bb')Φ(-B), B the larger of the two."""
        top = max(self.b, other.b)
        return (top - self.b - other.b) * _density(top) + (1 + self.b * other.b) * float(ndtr(-top))

    def tail(self, order: int) -> float:
        """Bound the squares of the coefficients beyond ``order``."""
        return CRAMER**2 * _density(self.b) ** 2 * math.exp(self.b**2 / 2) / order


ORDER = 2000  # of the expansions of hinges


def _parseval(square: float, coefficients: Tensor, tail: float) -> Iterator[Measurement]:
    total = float(coefficients.pow(2).sum())
    yield at_most("Σ_{k≤K}a_k² ÷ ‖f‖²", total / square, ROUNDING)
    yield at_most("(‖f‖² - Σ_{k≤K}a_k²) ÷ bound of the tail", (square - total) / tail, ROUNDING)


def _from_coefficients(g: torch.Generator, *, decay: float = 1.0) -> Iterator[Measurement]:
    """Take partial sums with random coefficients ±(k+1)^{-decay}; measure their distances."""
    k = torch.arange(41, dtype=torch.float64)
    c = signs(41, g=g) * (k + 1) ** -decay
    x, w = _gauss(60)
    h = hermite(40, x)
    gap = (c[21:] @ h[21:]).pow(2) @ w
    yield equal("‖f_40-f_20‖² ÷ Σ_{20<k≤40}a_k²", float(gap / c[21:].pow(2).sum()), 1, 1e-10)
    yield at_most("‖f_40-f_20‖² ÷ (1/21-1/41)", float(gap) / (1 / 21 - 1 / 41), 1)


@claim(
    "gao2022.lemmaA.3",
    title="f ∈ L² has Σa_k² = ‖f‖², and every square-summable sequence belongs to one f ∈ L²",
    chapter=CHAPTER,
    ref="lem-hermite-basis",
)
def parseval(trial: Trial) -> Iterable[Measurement]:
    """Sum the squares for a hinge (x-b)_+; then go back from coefficients to a function."""
    hinge = _Hinge(_uniform(-1, 1, trial.g))
    yield from _parseval(hinge.inner(hinge), hinge.coefficients(ORDER), hinge.tail(ORDER))
    yield from _from_coefficients(trial.g)


@parseval.control("one polynomial left out: h_1")
def without_slope(trial: Trial) -> Iterable[Measurement]:
    """Then Σa_k² misses a_1², which is far more than the tail."""
    hinge = _Hinge(_uniform(-1, 1, trial.g))
    a = hinge.coefficients(ORDER)
    a[1] = 0
    return named(_parseval(hinge.inner(hinge), a, hinge.tail(ORDER)), "(‖f‖²")


@parseval.control("f not in L², though all its a_k exist: fp = e^{-x^{1/4}} sin x^{1/4}, x > 0")
def invisible(trial: Trial) -> Iterable[Measurement]:
    r"""Its moments 4 Im (4j+3)!(1-i)^{-4j-4} vanish, so every a_k does; ∫f² dP is infinite."""
    size = _uniform(1, 2, trial.g)
    powers = [(1 - 1j) ** (4 * j + 4) for j in range(6)]  # exact: Gaussian integers
    moments = [-4 * math.factorial(4 * j + 3) * p.imag / abs(p) for j, p in enumerate(powers)]
    # He_k as a polynomial, times the moments
    rows = [np.polynomial.hermite_e.herme2poly([0] * k + [1]) for k in range(6)]
    a = size * torch.tensor([float(r @ moments[: len(r)]) for r in rows], dtype=torch.float64)

    def square(x: float) -> float:
        return (size * math.exp(-(x**0.25)) * math.sin(x**0.25)) ** 2 / _density(x)

    found = _parseval(float(quad(square, 0, 8)[0]), a, _Hinge(0.0).tail(ORDER))
    return named(found, "(‖f‖²")


@parseval.control("coefficients that are not square summable: a_k = ±(k+1)^{-1/4}")
def not_summable(trial: Trial) -> Iterable[Measurement]:
    """The partial sums are no Cauchy sequence, so no f ∈ L² has them."""
    return named(_from_coefficients(trial.g, decay=0.25), "‖f_40-f_20‖² ÷ (1/21")


def _continuity(f: _Hinge, g: _Hinge, *, printed: bool = False) -> Measurement:
    r"""Compare :math:`|\langle f,g\rangle-\langle f_N,g_N\rangle|` with its bound, for truncations.

    The bound is ‖f-f_N‖‖g‖ + ‖f_N‖‖g-g_N‖; ``printed`` has ‖f‖‖g-g_N‖ for its first term.
    """
    a, b, whole = f.coefficients(ORDER), g.coefficients(ORDER), f.inner(g)
    norms = torch.tensor([f.inner(f), g.inner(g)], dtype=torch.float64).sqrt()
    ratios = []
    for order in (2, 5, 20, 100):
        c, d = a[: order + 1], b[: order + 1]
        rest = (norms**2 - torch.stack([c @ c, d @ d])).clamp(min=0).sqrt()
        for cut in (False, True):  # whether g is cut too, or only f
            first = norms[0] * rest[1] * cut if printed else rest[0] * norms[1]
            bound = first + c.norm() * rest[1] * cut
            ratios.append(abs(float(c @ d) - whole) / bound)  # ⟨f_N,g⟩ = ⟨f_N,g_N⟩
    return at_most("|⟨f,g⟩-⟨f_N,g_N⟩| ÷ (‖f-f_N‖‖g‖ + ‖f_N‖‖g-g_N‖)", max(ratios), 1)


def _limit(f: _Hinge, g: _Hinge, *, weak: bool = False) -> Measurement:
    """Measure the distance at N = 2000; ``weak`` takes f+h_N and g+h_N for f_N and g_N."""
    a, b, whole = f.coefficients(ORDER), g.coefficients(ORDER), f.inner(g)
    found = whole + float(a[-1] + b[-1]) + 1 if weak else float(a @ b)
    bound = math.sqrt(f.tail(ORDER) * g.tail(ORDER))
    return at_most("|⟨f,g⟩-⟨f_N,g_N⟩| ÷ bound of the tails", abs(whole - found) / bound, 1)


def _hinges(g: torch.Generator) -> tuple[_Hinge, _Hinge]:
    return _Hinge(_uniform(-1, 0, g)), _Hinge(_uniform(0, 1, g))


@claim(
    "gao2022.lemmaA.4",
    title="The inner product is continuous: f_N → f and g_N → g give ⟨f_N,g_N⟩ → ⟨f,g⟩",
    chapter=CHAPTER,
    ref="lem-hermite-basis",
)
def inner_continuous(trial: Trial) -> Iterable[Measurement]:
    """Truncate the expansions of two hinges whose inner product is known."""
    f, g = _hinges(trial.g)
    yield _continuity(f, g)
    yield _limit(f, g)


@inner_continuous.control("‖f‖‖g-g_N‖ for the first term of the bound, as printed: f_N → f unused")
def printed_bound(trial: Trial) -> Iterable[Measurement]:
    """With g_N = g the right side is 0, the left is not."""
    yield _continuity(*_hinges(trial.g), printed=True)


@inner_continuous.control("weak convergence only: f_N = f+h_N and g_N = g+h_N")
def weak_only(trial: Trial) -> Iterable[Measurement]:
    """Both tend weakly to f and g, the inner product to ⟨f,g⟩+1."""
    yield _limit(*_hinges(trial.g), weak=True)


def _generating(f: Callable[[Tensor, float], Tensor], g: torch.Generator) -> Iterator[Measurement]:
    """Expand a function of x with the coefficients t^k/√k!."""
    t = _uniform(0.5, 1.2, g)
    k = torch.arange(61, dtype=torch.float64)
    c = torch.exp(k * math.log(t) - torch.lgamma(k + 1) / 2)
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)
    gap = (f(x, t) - c @ hermite(60, x)).abs().max()
    yield within("max |e^{xt-t²/2} - Σ_{k≤60}t^kh_k(x)/√k!| on [-3, 3]", float(gap), 1e-10)
    nodes, w = _gauss(80)
    h, value = hermite(60, nodes), f(nodes, t)
    found = (h[:20] * w) @ value
    yield within(
        "⟨e^{xt-t²/2}, h_k⟩ vs t^k/√k!, k < 20", float((found - c[:20]).abs().max()), 1e-10
    )
    yield equal("‖e^{xt-t²/2}‖² ÷ e^{t²}", float(value.pow(2) @ w) / math.exp(t**2), 1, 1e-10)
    rest = float((value - c[:6] @ h[:6]).pow(2) @ w)
    yield equal(
        "rest after k = 5, squared ÷ Σ_{k>5}t^{2k}/k!", rest / float(c[6:] @ c[6:]), 1, 1e-8
    )


@claim(
    "gao2022.lemmaA.5",
    title="Generating function: e^{xt-t²/2} = Σ t^k h_k(x)/√k!, pointwise and in L²",
    chapter=CHAPTER,
    ref="lem-hermite-correlation",
)
def generating_function(trial: Trial) -> Iterable[Measurement]:
    """Compare values, coefficients, norm and remainder."""
    return _generating(lambda x, t: torch.exp(x * t - t**2 / 2), trial.g)


@generating_function.control("the factor e^{-t²/2} left out")
def no_damping(trial: Trial) -> Iterable[Measurement]:
    """Every coefficient is then too large by e^{t²/2}."""
    return list(_generating(lambda x, t: torch.exp(x * t), trial.g))


@generating_function.control("e^{2xt-t²}, the function of the physicists' polynomials")
def physicists(trial: Trial) -> Iterable[Measurement]:
    """It belongs to the weight e^{-x²}."""
    return list(_generating(lambda x, t: torch.exp(2 * x * t - t**2), trial.g))


@cache
def _cube(law: str) -> tuple[Tensor, Tensor]:
    """Return nodes (N, 3) and weights of a product law with mean 0 and variance 1."""
    x, w = _gauss(10)
    if law == "uniform":
        nodes, weights = np.polynomial.legendre.leggauss(10)
        x, w = torch.from_numpy(math.sqrt(3) * nodes), torch.from_numpy(weights / 2)
    grid = torch.cartesian_prod(x, x, x)
    return grid, torch.cartesian_prod(w, w, w).prod(dim=1)


def _correlation(seed: int, *, length: float = 1.0, law: str = "normal") -> Iterator[Measurement]:
    """Compare E[h_j(⟨u,w⟩)h_k(⟨v,w⟩)] for j, k ≤ 6 with δ_jk⟨u,v⟩^k; exact quadrature."""
    u, v = sphere(2, 3, seed)
    w, weights = _cube(law)
    left, right = hermite(6, w @ (length * u)), hermite(6, w @ (length * v))
    found = (left * weights) @ right.mT
    target = torch.diag((length**2 * u @ v) ** torch.arange(7))
    off = ~torch.eye(7, dtype=torch.bool)
    yield within("max |E h_jh_k|, j ≠ k", float(found[off].abs().max()), 1e-10)
    gap = (found - target).diagonal().abs().max()
    yield within("max |E h_kh_k - ⟨u,v⟩^k|", float(gap), 1e-10)


@claim(
    "gao2022.lemmaA.6",
    title="E[h_j(⟨u,w⟩)h_k(⟨v,w⟩)] = δ_jk⟨u,v⟩^k for unit vectors and Gaussian w",
    chapter=CHAPTER,
    ref="lem-hermite-correlation",
)
def hermite_correlation(trial: Trial) -> Iterable[Measurement]:
    """Integrate in three dimensions with nodes that are exact for these degrees."""
    return _correlation(trial.seed)


@hermite_correlation.control("‖u‖ = ‖v‖ = 1.2, not unit vectors")
def long_vectors(trial: Trial) -> Iterable[Measurement]:
    """⟨u,w⟩ is no longer standard normal; one long vector would spoil only one side of j ≠ k."""
    return _correlation(trial.seed, length=1.2)


@hermite_correlation.control("w uniform on a cube, with the same mean and covariance")
def uniform_weights(trial: Trial) -> Iterable[Measurement]:
    """The identity is about the Gaussian law, not about second moments."""
    return _correlation(trial.seed, law="uniform")


def _khatri_rao(X: Tensor, k: int) -> Tensor:
    """Return X^{*k}: row i is x_i ⊗ … ⊗ x_i."""
    power = X
    for _ in range(k - 1):
        power = (power[:, :, None] * X[:, None, :]).flatten(1)
    return power


def _series(X: Tensor, *, length: float = 1.0, power: int = 2) -> Iterator[Measurement]:
    """Compare G^∞ with Σ_{k≤16}a_k²(XXᵀ)^{∘k}; rows may get a length, a_k another power."""
    order, X = 16, length * X
    a, gram, G = relu_coefficients(order), X @ X.mT, feature_limit(X)
    partial = torch.stack([float(c) ** power * gram**k for k, c in enumerate(a)]).sum(0)
    rest = 0.5 - float(a @ a)
    off = ~torch.eye(len(X), dtype=torch.bool)
    bound = _coherence(X) ** (order + 1) * rest
    away = float((G - partial)[off].abs().max())
    yield at_most("max |G^∞-S_16| off the diagonal ÷ δ^{17}Σ_{k>16}a_k²", away / bound, 1)
    gap = float((G - partial).diagonal()[0])
    yield equal("(½-S_16) on the diagonal ÷ Σ_{k>16}a_k²", gap / rest, 1, 1e-9)


@claim(
    "gao2022.lemmaA.7",
    title="G^∞ = Σ a_k²(XXᵀ)^{∘k} for unit rows, and (XXᵀ)^{∘k} = X^{*k}(X^{*k})ᵀ",
    chapter=CHAPTER,
    ref="prop-feature-series",
)
def feature_expansion(trial: Trial) -> Iterable[Measurement]:
    """Compare the closed form with sixteen terms; coefficients by quadrature; Khatri-Rao powers."""
    X = sphere(6, 4, trial.seed)
    yield from _series(X)
    gram = X @ X.mT
    gaps = [relative(_khatri_rao(X, k) @ _khatri_rao(X, k).mT, gram**k) for k in (1, 2, 3, 4)]
    yield within("X^{*k}(X^{*k})ᵀ vs (XXᵀ)^{∘k}, k ≤ 4", max(gaps), SAME)
    exact = relu_coefficients(10)

    def term(x: float, k: int) -> float:
        return x * float(hermite(k, torch.tensor(x, dtype=torch.float64))[k]) * _density(x)

    found = [quad(term, 0, 12, args=(k,), epsabs=1e-12)[0] for k in (0, 1, 2, 3, 4, 6, 10)]
    worst = max(abs(f - float(exact[k])) for f, k in zip(found, (0, 1, 2, 3, 4, 6, 10)))
    yield within("a_k = E[σ(s)h_k(s)] vs its closed form", worst, 1e-10)


@feature_expansion.control("rows of length 1.1")
def longer_rows(trial: Trial) -> Iterable[Measurement]:
    """ReLU scales with the length, the powers of XXᵀ do not."""
    return list(_series(sphere(6, 4, trial.seed), length=1.1))


@feature_expansion.control("a_k in the place of a_k²")
def not_squared(trial: Trial) -> Iterable[Measurement]:
    """Both factors σ are expanded, so each coefficient enters twice."""
    return list(_series(sphere(6, 4, trial.seed), power=1))


WINDOWS = ((2, 20), (20, 60), (60, 120))


def _both_signs(a: Tensor) -> Iterator[Measurement]:
    for low, high in WINDOWS:
        part = a[low + 1 : high + 1]
        yield at_least(f"positive a_k, {low} < k ≤ {high}", float((part > 0).sum()), 1)
        yield at_least(f"negative a_k, {low} < k ≤ {high}", float((part < 0).sum()), 1)


@claim(
    "gao2022.lemmaA.8",
    title="σ nonlinear with |σ(s)| ≤ |s|: infinitely many a_k are positive, and as many negative",
    chapter=CHAPTER,
    ref="lem-relu-coefficients",
)
def many_coefficients(trial: Trial) -> Iterable[Measurement]:
    """Look for both signs far out, and at the smoothed σ whose growth is the reason."""
    yield from _both_signs(_Hinge(_uniform(0, 1, trial.g)).coefficients(120))
    a = relu_coefficients(400)
    even = a[2::2]
    yield at_most("ReLU: share of even k in [2, 400] with a_k = 0", _share(even == 0), 0)
    flips = _share(even[1:].sign() == -even[:-1].sign())
    yield equal("ReLU: share of even k at which the sign changes", flips, 1, 0)
    t = torch.linspace(-4, 4, 41, dtype=torch.float64)
    powers = torch.stack([t**j * math.exp(-math.lgamma(j + 1) / 2) for j in range(121)])
    smooth = t * torch.special.ndtr(t) + torch.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    gap = (a[:121] @ powers - smooth).abs().max()
    yield within("E σ(t+s) vs Σ a_k t^k/√k!", float(gap), 1e-9)
    above = float((smooth / (t.abs() + math.sqrt(2 / math.pi))).max())
    yield at_most("E σ(t+s) ÷ (|t| + E|s|)", above, 1)


@many_coefficients.control("growth beyond |s|: σ(s) = s², a polynomial")
def square(trial: Trial) -> Iterable[Measurement]:
    """s² = h_0 + √2 h_2, and nothing else."""
    a = torch.zeros(121, dtype=torch.float64)
    a[0], a[2] = 1, math.sqrt(2)
    return list(_both_signs(a))


@many_coefficients.control("linear: σ(s) = ws")
def linear(trial: Trial) -> Iterable[Measurement]:
    """One coefficient only."""
    a = torch.zeros(121, dtype=torch.float64)
    a[1] = _uniform(0.5, 1, trial.g)
    return list(_both_signs(a))


@many_coefficients.control("growth beyond |s|: σ(s) = -e^{ws}, all a_k negative")
def exponential(trial: Trial) -> Iterable[Measurement]:
    """Not a polynomial, so infinitely many a_k ≠ 0: for the positive sign, growth matters."""
    w, k = _uniform(0.5, 1, trial.g), torch.arange(121, dtype=torch.float64)
    a = -torch.exp(k * math.log(w) - torch.lgamma(k + 1) / 2 + w**2 / 2)
    return named(_both_signs(a), "positive")


def _powers(X: Tensor, delta: float, *, series: bool = True) -> Iterator[Measurement]:
    """Compare λ_min((XXᵀ)^{∘k}) with 1-nδ^k for twelve k from the threshold on."""
    n, gram = len(X), X @ X.mT
    first = math.floor(math.log(n) / math.log(1 / delta)) + 1
    orders = range(first, first + 12)
    worst = min(_least(gram**k) / (1 - n * delta**k) for k in orders)
    yield at_least("λ_min((XXᵀ)^{∘k}) ÷ (1-nδ^k), k > log n/log(1/δ)", worst, 1)
    if series:
        best = max(float(_weights()[k]) * (1 - n * delta**k) for k in orders)
        yield at_least("λ_min(G^∞) ÷ a_k²(1-nδ^k)", _least(feature_limit(X)) / best, 1)


@claim(
    "gao2022.lemmaA.9",
    title="No two rows parallel: λ_min((XXᵀ)^{∘k}) ≥ 1-nδ^k > 0 once k > log n/log(1/δ)",
    chapter=CHAPTER,
    ref="lem-hadamard-powers",
)
def hadamard_powers(trial: Trial) -> Iterable[Measurement]:
    """Take the powers just beyond the threshold, where the bound is barely positive."""
    X = sphere(8, 5, trial.seed)
    yield given("δ = max |⟨x_i,x_j⟩|", _coherence(X), "≤", 1 - 1e-9)
    yield from _powers(X, _coherence(X))


@hadamard_powers.control("a row appears twice, δ read off the other pairs")
def repeated_row(trial: Trial) -> Iterable[Measurement]:
    """Every power has two equal rows."""
    X = sphere(7, 5, trial.seed)
    return _powers(torch.cat([X, X[:1]]), _coherence(X))


@hadamard_powers.control("x_i ≠ x_j only: an antipodal pair, δ without the modulus")
def antipodal_rows(trial: Trial) -> Iterable[Measurement]:
    """(-1)^k has modulus 1: every power is singular, whatever its parity."""
    X = sphere(7, 5, trial.seed)
    X = torch.cat([X, -X[:1]])
    return _powers(X, _coherence(X, signed=True), series=False)


# --- gao2023, Section 5.1: a lower bound on the kernel of the implicit layer -------------------


SCHUR = "λ_min(H) ÷ γ̃² min‖v_i‖² λ_min(ZZᵀ)"


def _schur(seed: int) -> Iterator[Measurement]:
    """Evaluate both sides for Gaussian weights."""
    model = ReLUImplicit.init_implicit_only(60, 10, gamma=0.4, seed=seed)
    X = sphere(5, 10, seed + 100)
    yield given("γ̃‖W‖", model.scale * operator_norm(model.W.detach()), "≤", 1)
    t = tangents(model, X, tol=1e-13)
    H, G = empirical_ntk(model, X, tol=1e-13), t.z @ t.z.mT
    least = float(t.v.pow(2).sum(1).min())
    yield at_least(SCHUR, _least(H) / (model.scale**2 * least * _least(G)), 1)


def _half_normal(m: int, seed: int, *, size: float, gamma: float) -> ReLUImplicit:
    """Return a network with W_ij = size·|N(0,1)|, everything else as in the source."""
    drawn = ReLUImplicit.init_implicit_only(m, 10, gamma=gamma, seed=seed)
    W = size * drawn.W.detach().abs()
    return ReLUImplicit(W, drawn.U, drawn.a, torch.zeros_like(drawn.a), gamma, train=("W",))


def _candidate(model: ReLUImplicit, X: Tensor) -> Tensor:
    """Return (I-γ̃W)^{-1}φ, the equilibrium if all units are active."""
    Phi = model.inject(X).detach()
    return torch.linalg.solve(eye(model.m) - model.scale * model.W.detach(), Phi.mT).mT


def _all_active(model: ReLUImplicit, X: Tensor) -> Iterator[Measurement]:
    yield given("ρ(γ̃W)", spectral_radius(model.scale * model.W.detach()), "≤", 1)
    Z = _candidate(model, X)
    yield at_least("least entry of (I-γ̃W)⁻¹φ", float(Z.min()), 0)
    residual = model.f(Z, model.inject(X), model.W).detach() - Z
    yield within("(I-γ̃W)⁻¹φ: residual as an equilibrium", float(residual.abs().max()), 1e-10)


def _constant(m: int, seed: int, *, size: float, scale: float, gamma: float) -> Measurement:
    r"""Compare λ_min(H) with :math:`\tfrac12\gamma^2\lambda_0/(1+\gamma)^4`, free of the width."""
    X = sphere(4, 10, seed + 100)
    model = _half_normal(m, seed, size=size, gamma=scale)
    bound = 0.5 * gamma**2 * _least(feature_limit(X)) / (1 + gamma) ** 4
    value = _least(empirical_ntk(model, X, tol=1e-13))
    return at_least(f"m = {m}: λ_min(H) ÷ ½γ²λ_min(G^∞)/(1+γ)⁴", value / bound, 1)


def _dead(seed: int, m: int = 3, draws: int = 3000) -> tuple[float, float]:
    """Return the share of networks of width m with H = 0 on one input, and its standard error."""
    g = generator(seed + 300)
    W, U, a = normal(draws, m, m, g=g), normal(draws, m, 4, g=g), signs(draws, m, g=g)
    x, gamma = sphere(1, 4, seed + 400)[0], 0.2 / math.sqrt(m)
    phi = torch.relu(U @ x) / math.sqrt(m)
    z, v = torch.zeros_like(phi), torch.zeros_like(phi)
    for _ in range(80):
        z = torch.relu(gamma * (W @ z[..., None])[..., 0] + phi)
    on = (gamma * (W @ z[..., None])[..., 0] + phi > 0).double()
    for _ in range(80):
        v = on * (a + gamma * (W.mT @ v[..., None])[..., 0])
    H = (v * v).sum(1) * (z * z).sum(1)
    chance = 2.0**-m
    return _share(H == 0), math.sqrt(chance * (1 - chance) / draws)


DEAD = "one input, m = 3: share of draws with H(0) = 0"


@claim(
    "gao2023.section5.1",
    title="λ_min(H) ≥ γ̃² min‖v_i‖² λ_min(ZZᵀ); half-normal weights work if shrunk by 1/√m",
    chapter=CHAPTER,
    ref="prop-schur-bound",
)
def schur_bound(trial: Trial) -> Iterable[Measurement]:
    """Check the Schur bound, the rescued example at three widths, and how often H(0) = 0."""
    yield from _schur(trial.seed)
    gamma, X = 0.4, sphere(4, 10, trial.seed + 100)
    model = _half_normal(200, trial.seed, size=1 / math.sqrt(200), gamma=gamma)
    yield from _all_active(model, X)
    Z, a = _candidate(model, X), model.a.detach()
    M = eye(200) - model.scale * model.W.detach()
    v, H = torch.linalg.solve(M.mT, a), empirical_ntk(model, X, tol=1e-14)
    closed = model.scale**2 * float(v @ v) * Z @ Z.mT
    yield within("all active: H vs γ̃²‖(I-γ̃W)⁻ᵀa‖²ZZᵀ", relative(H, closed), 1e-8)
    G = model.inject(X).detach() @ model.inject(X).detach().mT
    bound = gamma**2 * _least(G) / operator_norm(M) ** 4
    yield at_least("all active: λ_min(H) ÷ γ²λ_min(ΦΦᵀ)/‖I-γ̃W‖⁴", _least(H) / bound, 1)
    for m in (100, 200, 400):
        yield _constant(m, trial.seed, size=1 / math.sqrt(m), scale=gamma, gamma=gamma)
    share, error = _dead(trial.seed)
    yield equal(DEAD, share, 2.0**-3, 4 * error)


@schur_bound.control("half-normal weights of unit variance, as printed: no equilibrium")
def no_equilibrium(trial: Trial) -> Iterable[Measurement]:
    """The mean √(2/π) makes ρ(γ̃W) grow like √m."""
    X = sphere(4, 10, trial.seed + 100)
    return list(_all_active(_half_normal(200, trial.seed, size=1.0, gamma=0.4), X))


@schur_bound.control("the same weights with γ̃ = γ/m: an equilibrium, but H of order 1/m")
def vanishing_kernel(trial: Trial) -> Iterable[Measurement]:
    """The bound on λ_min(H) is then no constant, as the convergence theorem needs."""
    for m in (100, 200, 400):
        yield _constant(m, trial.seed, size=1.0, scale=0.4 / math.sqrt(m), gamma=0.4)


@schur_bound.control("λ_min(ZᵀZ) for λ_min(ZZᵀ), with n > m² samples")
def wrong_gram(trial: Trial) -> Iterable[Measurement]:
    """H has rank at most m², so it is singular; ZᵀZ is not."""
    model = ReLUImplicit.init_implicit_only(3, 10, gamma=0.2, seed=trial.seed)
    X = sphere(30, 10, trial.seed + 100)
    t = tangents(model, X, tol=1e-13)
    alive = (t.v.pow(2).sum(1) > 0) & (t.z.pow(2).sum(1) > 0)
    t_v, H = t.v[alive], empirical_ntk(model, X[alive], tol=1e-13)
    least = float(t_v.pow(2).sum(1).min())
    bound = model.scale**2 * least * _least(t.z[alive].mT @ t.z[alive])
    yield at_least(SCHUR, _least(H) / bound, 1)


@schur_bound.control("λ_min(H(0)) > 0 with probability one, as assumed")
def surely(trial: Trial) -> Iterable[Measurement]:
    """With probability 2^{-m} no unit fires on the input."""
    share, error = _dead(trial.seed)
    yield equal(DEAD, share, 0.0, 4 * error)


# --- nguyen2022: spectra, conditioning and PL --------------------------------------------------


def _spectral(S: Tensor, e: Tensor) -> Iterator[Measurement]:
    """Decompose by the method for general matrices, which does not assume symmetry."""
    values, Q = torch.linalg.eig(S)
    size, n = float(S.norm()), len(S)
    yield within("max |Im λ_i|", float(values.imag.abs().max()), 1e-12 * size)
    gram = Q.conj().mT @ Q
    yield within("eigenvectors: ‖QᵀQ-I‖", float((gram - torch.eye(n)).norm()), 1e-8)
    rebuilt = (Q * values) @ Q.conj().mT
    yield within("‖S-QΛQᵀ‖ ÷ ‖S‖", float((rebuilt - S).norm()) / size, 1e-8)
    eta = 1 / float(values.abs().max())
    left = torch.linalg.matrix_power(eye(n) - eta * S, 5) @ e
    right = Q @ ((1 - eta * values) ** 5 * (Q.conj().mT @ e.to(Q.dtype)))
    gap = float((left - right).norm() / e.norm())
    yield within("(I-ηS)⁵e vs Σ(1-ηλ_i)⁵⟨v_i,e⟩v_i", gap, 1e-8)


def _monotone_kernel(seed: int, n: int = 6) -> Tensor:
    model = MonDEQ.init(16, 4, mu=0.5, seed=seed)
    return empirical_ntk(model, normal(n, 4, g=generator(seed + 100)), tol=1e-13)


@claim(
    "nguyen2022.theorem2.6.1",
    title="A symmetric matrix is S = QΛQᵀ, Q orthogonal and Λ real; so error modes decouple",
    chapter=CHAPTER,
    ref="thm-spectral",
)
def spectral_theorem(trial: Trial) -> Iterable[Measurement]:
    """Decompose the kernel of a monotone DEQ, and a matrix with a triple eigenvalue."""
    H = _monotone_kernel(trial.seed)
    yield from _spectral(H, normal(6, g=trial.g))
    frame = torch.linalg.qr(normal(6, 6, g=trial.g))[0]
    S = (frame * torch.tensor([1.0, 1, 1, 2, 3, 4]).double()) @ frame.mT
    values, Q = torch.linalg.eigh((S + S.mT) / 2)
    yield within("triple eigenvalue: ‖QᵀQ-I‖", float((Q.mT @ Q - eye(6)).norm()), 1e-12)
    gap = float(((Q * values) @ Q.mT - S).norm())
    yield within("triple eigenvalue: ‖S-QΛQᵀ‖", gap, 1e-12)


@spectral_theorem.control("not symmetric: a rotation added to the kernel")
def rotated(trial: Trial) -> Iterable[Measurement]:
    """Eigenvalues leave the real line, eigenvectors are no longer orthogonal."""
    H, B = _monotone_kernel(trial.seed), normal(6, 6, g=trial.g)
    return list(_spectral(H + float(H.norm()) * (B - B.mT), normal(6, g=trial.g)))


@spectral_theorem.control("not symmetric: a triangular matrix, whose eigenvalues are all real")
def triangular(trial: Trial) -> Iterable[Measurement]:
    """Real eigenvalues are not enough: the eigenvectors are not orthogonal."""
    S = torch.diag(torch.arange(1.0, 7.0).double()) + torch.triu(normal(6, 6, g=trial.g), 1)
    found = _spectral(S, normal(6, g=trial.g))
    return named(found, "eigenvectors", "‖S-", "(I-ηS)")


def _around(centre: Tensor, radius: float, count: int, g: torch.Generator) -> Tensor:
    """Return points in a ball, half of them on its surface."""
    x = normal(count, len(centre), g=g)
    share = torch.rand(count, 1, generator=g, dtype=torch.float64)
    share[::2] = 1
    return centre + radius * share * x / x.norm(dim=1, keepdim=True)


def _downhill(net: Network, h: float = 1e-5) -> Tensor:
    """Return the unit direction in which λ_min(H) falls fastest, by differences."""
    at = _least(net.kernel(net.start))
    moves = h * torch.eye(len(net.start), dtype=torch.float64)
    found = [_least(net.kernel(net.start + e)) - at for e in moves]
    slope = torch.tensor(found, dtype=torch.float64)
    return -slope / slope.norm()


CONDITIONED = "min λ_min(H(θ)) ÷ κ over the set"


def _conditioned(net: Network, kappa: float, points: Iterable[Tensor]) -> Measurement:
    return at_least(CONDITIONED, min(_least(net.kernel(t)) for t in points) / kappa, 1)


@claim(
    "nguyen2022.definition2.6.2",
    title="Uniform conditioning, λ_min(H(θ)) ≥ κ on a set: certified on a ball around θ(0)",
    chapter=CHAPTER,
    ref="def-uniform-conditioning",
)
def uniform_conditioning(trial: Trial) -> Iterable[Measurement]:
    """Certify κ from σ_min(Z) at the centre; look at random points and at the steepest one."""
    ball = vanilla_ball(trial.seed)
    net = ball.network
    points = _around(net.start, ball.radius, 8, trial.g)
    worst = net.start + ball.radius * _downhill(net)
    yield _conditioned(net, ball.kappa, [*points, worst])
    first = net.kernel(net.start)
    for what, theta in (("a random point", points[0]), ("the steepest point", worst)):
        H = net.kernel(theta)
        weyl = _least(first) - operator_norm(H - first)
        yield at_least(f"{what}: λ_min(H) - (λ_min(H_0) - ‖H-H_0‖)", _least(H) - weyl, 0)


@uniform_conditioning.control("outside the ball: U and a moved to 0, where the kernel vanishes")
def switched_off(trial: Trial) -> Iterable[Measurement]:
    """Without input and read-out all derivatives are 0."""
    ball = vanilla_ball(trial.seed)
    theta = ball.network.start.clone()
    theta[ball.network.model.W.numel() :] = 0
    yield _conditioned(ball.network, ball.kappa, [theta])


@uniform_conditioning.control("two inputs coincide")
def twin_inputs(trial: Trial) -> Iterable[Measurement]:
    """H is singular at every θ."""
    ball = vanilla_ball(trial.seed, twins=True)
    yield _conditioned(ball.network, ball.kappa, [ball.network.start])


BALL_PL = "ball: min ‖∇𝓛‖² ÷ 2κ𝓛"


def _square_loss(net: Network, kappa: float, points: Iterable[Tensor]) -> Measurement:
    ratio = [net.gradient(t).pow(2).sum() / (2 * kappa * net.value(t)) for t in points]
    return at_least(BALL_PL, float(torch.stack(ratio).min()), 1)


@claim(
    "nguyen2022.theorem2.6.4",
    title="λ_min(H) ≥ κ on a set makes ½‖ŷ-y‖² κ-PL* there, since ‖∇𝓛‖² = eᵀHe; and κ is sharp",
    chapter=CHAPTER,
    ref="thm-conditioning-pl",
)
def conditioning_gives_pl(trial: Trial) -> Iterable[Measurement]:
    """Check a certified ball, then the points of a descent; then labels along the last mode."""
    ball = vanilla_ball(trial.seed)
    net, points = ball.network, _around(ball.network.start, ball.radius, 8, trial.g)
    yield given(CONDITIONED, _conditioned(net, ball.kappa, points).value, "≥", 1)
    yield _square_loss(net, ball.kappa, points)
    path_net = monotone_network(trial.seed)
    step = 0.5 / float(torch.linalg.eigvalsh(path_net.kernel(path_net.start))[-1])
    path = descent(path_net, path_net.start, step, 20)
    kappa = min(_least(path_net.kernel(t)) for t in path.theta)
    ratio = float((path.slope**2 / (2 * kappa * path.value)).min())
    yield at_least("points of a descent: min ‖∇𝓛‖² ÷ 2κ𝓛", ratio, 1)
    theta = path_net.start
    H, J = path_net.kernel(theta), path_net.jacobian(theta)
    e = path_net.predict(theta) - path_net.y
    value = float((J.mT @ e).pow(2).sum()) / float(e @ H @ e)
    yield equal("‖∇𝓛‖² by autograd ÷ eᵀHe", value, 1, SAME)
    values, vectors = torch.linalg.eigh(H)
    sharp = Network(path_net.model, path_net.X, path_net.predict(theta) - vectors[:, 0])
    ratio = float(sharp.gradient(theta).pow(2).sum() / (2 * values[0] * sharp.value(theta)))
    yield equal("e along the last eigenvector: ‖∇𝓛‖² ÷ 2λ_min(H)𝓛", ratio, 1, 1e-6)


@conditioning_gives_pl.control("two inputs coincide while their labels differ: κ = 0")
def indistinct(trial: Trial) -> Iterable[Measurement]:
    """The error lies in the kernel of H."""
    ball = vanilla_ball(trial.seed, twins=True)
    yield _square_loss(ball.network, ball.kappa, [ball.network.start])


@conditioning_gives_pl.control("another loss, ¼Σe_i⁴, flat at its minimum")
def quartic_loss(trial: Trial) -> Iterable[Measurement]:
    """Its gradient is Jᵀe³, and e³ is small against e² near the labels."""
    ball = vanilla_ball(trial.seed)
    net = ball.network
    e = net.predict(net.start) - net.y
    slope = net.jacobian(net.start).mT @ e**3
    value = 0.25 * e.pow(4).sum()
    yield at_least(BALL_PL, float(slope.pow(2).sum() / (2 * ball.kappa * value)), 1)


# --- nguyen2022: the kernel of the monotone DEQ ------------------------------------------------


def _hadamard(
    model: MonDEQ, X: Tensor, Z: Tensor, V: Tensor, *, cross: float = 1.0, swap: float = -1.0
) -> dict[str, Tensor]:
    r"""Return the blocks of the kernel as entrywise products of n×n Gram matrices.

    With :math:`Q=A^\top A` they are :math:`K_A=VV^\top\circ ZQZ^\top+ZZ^\top\circ VQV^\top
    +VZ^\top\circ ZQV^\top+ZV^\top\circ VQZ^\top`,
    :math:`K_B=2(VV^\top\circ ZZ^\top-VZ^\top\circ ZV^\top)`, :math:`K_U=VV^\top\circ XX^\top` and
    :math:`K_a=ZZ^\top`. The factors ``cross`` and ``swap`` are those of the mixed products.
    """
    Q = model.A.detach().mT @ model.A.detach()
    VV, ZZ, VZ, ZV = V @ V.mT, Z @ Z.mT, V @ Z.mT, Z @ V.mT
    mixed = VZ * (Z @ Q @ V.mT) + ZV * (V @ Q @ Z.mT)
    return {
        "A": VV * (Z @ Q @ Z.mT) + ZZ * (V @ Q @ V.mT) + cross * mixed,
        "B": 2 * (VV * ZZ + swap * VZ * ZV),
        "U": VV * (X @ X.mT),
        "a": ZZ,
    }


def _kronecker(
    model: MonDEQ, X: Tensor, Z: Tensor, D: Tensor, *, ordered: bool = True
) -> dict[str, Tensor]:
    r"""Return :math:`J_\bullet J_\bullet^\top` with the Jacobians of the proposition, dense.

    :math:`J_A=(I_n\otimes a^\top)Q^{-1}D(Z\otimes I)P_A` and so on,
    :math:`Q=I-D(I_n\otimes W)`; not ``ordered`` puts :math:`a^\top\otimes I_n` as printed.
    """
    n, m, W, a = len(X), model.m, model.W.detach(), model.a.detach()
    big = torch.diag(D.flatten())
    read = kron(eye(n), a[None]) if ordered else kron(a[None], eye(n))
    left = read @ torch.linalg.solve(eye(n * m) - big @ kron(eye(n), W), big)
    in_W, in_U = left @ kron(Z, eye(m)), left @ kron(X, eye(m))
    J = {"A": in_W @ chain_A(model.A.detach()), "B": in_W @ chain_B(m), "U": in_U, "a": Z}
    return {name: j @ j.mT for name, j in J.items()}


@lru_cache(maxsize=8)
def _monotone_reference(seed: int) -> _Reference:
    g = generator(seed + 100)
    model, X, y = MonDEQ.init(10, 3, mu=0.5, seed=seed), normal(4, 3, g=g), normal(4, g=g)
    return _reference(model, X, y, 1e-4)


def _monotone_ntk(
    seed: int, *, ordered: bool = True, cross: float = 1.0, swap: float = -1.0
) -> Iterator[Measurement]:
    known = _monotone_reference(seed)
    model, X, e = known.model, known.X, known.error
    assert isinstance(model, MonDEQ)
    W, a = model.W.detach(), model.a.detach()
    Z, pre = exact_states(W, model.inject(X).detach())
    D = (pre > 0).double()
    V = D * torch.linalg.solve(eye(10) - W.mT * D[:, None, :], a[:, None])[..., 0]
    blocks = _hadamard(model, X, Z, V, cross=cross, swap=swap)
    dense = _kronecker(model, X, Z, D, ordered=ordered)
    for name, block in blocks.items():
        yield within(f"K_{name}: Hadamard vs Kronecker form", relative(block, dense[name]), SAME)
        package = relative(block, known.parts[name])
        yield within(f"K_{name}: Hadamard form vs gram_parts", package, SAME)
    K = torch.stack(list(blocks.values())).sum(0)
    yield within("K vs Jacobian of autograd", relative(K, known.jacobian), SAME)
    yield within("dŷ/dt along -∇𝓛 vs -Ke", relative(known.slope, -K @ e), 1e-3)
    yield at_least("λ_min(K) ÷ σ_min(Z)²", _least(K) / _least(Z @ Z.mT), 1)


@claim(
    "nguyen2022.proposition4",
    title="ŷ' = -Ke for the monotone DEQ, K = K_A+K_B+K_U+ZZᵀ in entrywise products, n×n",
    chapter=CHAPTER,
    ref="prop-monotone-ntk",
)
def monotone_kernel(trial: Trial) -> Iterable[Measurement]:
    """Compare Hadamard products, Kronecker Jacobians, autograd and a short step."""
    return _monotone_ntk(trial.seed)


@monotone_kernel.control("aᵀ⊗I_n in the place of I_n⊗aᵀ, as printed")
def printed_readout(trial: Trial) -> Iterable[Measurement]:
    """It mixes the samples."""
    names = tuple(f"K_{p}: Hadamard vs Kron" for p in "ABU")
    return named(_monotone_ntk(trial.seed, ordered=False), *names)


@monotone_kernel.control("the mixed products of K_A left out")
def no_cross_terms(trial: Trial) -> Iterable[Measurement]:
    """A enters W twice, as Aᵀ and as A."""
    return named(_monotone_ntk(trial.seed, cross=0.0), "K_A", "K vs", "dŷ")


@monotone_kernel.control("W = B+Bᵀ in K_B: a plus for the minus of the swapped product")
def symmetric_part_instead(trial: Trial) -> Iterable[Measurement]:
    """B enters through its skew part."""
    return named(_monotone_ntk(trial.seed, swap=1.0), "K_B", "K vs", "dŷ")
