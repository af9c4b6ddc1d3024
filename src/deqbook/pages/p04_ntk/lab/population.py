r"""The population kernel of the vanilla DEQ layer by layer, and finite networks beside it.

The network is :math:`z=\sigma(Wz+Ux)` with entries of variance :math:`2\sigma_w^2/m` and
:math:`2/d`, and :math:`G=ZZ^\top`. As it widens, :math:`\tfrac1mG` tends to a kernel K that the
inputs alone determine, through :math:`S=\tfrac1dXX^\top` and :math:`Q=2\kappa_1`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from deqbook.bounds import vanilla
from deqbook.data import load
from deqbook.kernels import kappa1, population_limit, relu_moments
from deqbook.models import VanillaDEQ
from deqbook.pages.p01a_contraction.lab import picard_states
from deqbook.runtime import generator, normal, signs, sphere

VARIANCE = 0.08  # σ_w² of the source's experiments
EDGE = 2 * math.sqrt(2) * math.sqrt(VARIANCE)  # 2√2 σ_w, where ‖W‖ concentrates
SMALL = 1e-3  # σ_w² where Condition 1 is met: small, so that 1-‖W‖ costs little
LABEL = 0.01  # |y_i| there; labels of size 1 take widths of half a million and more
CARRIED = 1 + 1 / (4 * math.pi)  # times σ_w²: what one layer makes of the error of the one before


# --- inputs ------------------------------------------------------------------------------------


def inputs(seed: int, n: int, d: int = 10, *, radius: float = 1.0) -> Tensor:
    """Return n inputs of length √d (times ``radius``), as Assumption 2 asks."""
    return sphere(n, d, seed + 100, radius=radius * math.sqrt(d))


def orthogonal_inputs(seed: int, n: int) -> Tensor:
    """Return n orthogonal inputs of length √n in dimension n: there λ_* does not depend on n."""
    return math.sqrt(n) * torch.linalg.qr(normal(n, n, g=generator(seed + 100)))[0]


def pictures(seed: int, n: int = 30) -> Tensor:
    """Return n pictures of digits, drawn at random and scaled to length √d."""
    X = load("mnist01", norm="sqrt_d").x_train
    return X[torch.randperm(len(X), generator=generator(seed + 500))[:n]]


def off_sphere(X: Tensor) -> float:
    """Return max |‖x_i‖/√d - 1|."""
    return float((X.norm(dim=1) / math.sqrt(X.shape[1]) - 1).abs().max())


def second_moments(X: Tensor) -> Tensor:
    """Return S = XXᵀ/d."""
    return X @ X.mT / X.shape[1]


# --- the kernels -------------------------------------------------------------------------------


def dual(x: Tensor) -> Tensor:
    """Return Q(x) = 2κ₁(x)."""
    return 2 * kappa1(x)


def on_diagonal(depth: int) -> float:
    """Return s_ℓ = (1-σ_w^{2ℓ})/(1-σ_w²), the diagonal of K^(ℓ)."""
    return sum(VARIANCE**k for k in range(depth))


def depth_gap(n: int, variance: float, depth: int) -> tuple[float, float]:
    """Return both bounds on ‖K-K^(ℓ)‖_F, √n and n times σ_w^{2ℓ}/(1-σ_w²)."""
    entry = variance**depth / (1 - variance)
    return math.sqrt(n) * entry, n * entry


def next_kernel(covariance: Tensor) -> Tensor:
    """Return 2E[σ(u_i)σ(u_j)] for Gaussian u with this covariance."""
    v = covariance.diagonal()
    return 2 * relu_moments(covariance, v, v)[0]


def population_kernels(S: Tensor, variance: float, depth: int) -> list[Tensor]:
    r"""Return :math:`K^{(1)},\dots,K^{(\mathrm{depth})}`; ``variance`` is :math:`\sigma_w^2`.

    Let every layer of :math:`z^{(\ell)}=\sigma(W^{(\ell)}z^{(\ell-1)}+U^{(\ell)}x)`,
    :math:`z^{(0)}=0`, draw its own weights. As the width grows,
    :math:`\tfrac1mz_i^{(\ell)}\cdot z_j^{(\ell)}\to K^{(\ell)}_{ij}` with (ling2023, Definition 1)

    .. math:: \Lambda=\sigma_w^2K^{(\ell-1)}+S,\qquad
              K^{(\ell)}_{ij}=\sqrt{\Lambda_{ii}\Lambda_{jj}}\,Q(\cos\theta_{ij}),\qquad
              \cos\theta_{ij}=\frac{\Lambda_{ij}}{\sqrt{\Lambda_{ii}\Lambda_{jj}}}

    and :math:`K^{(0)}=0`. For :math:`\sigma_w^2<1` they converge to ``population_limit``.
    """
    K, var, kernels = torch.zeros_like(S), torch.zeros_like(S.diagonal()), []
    for _ in range(depth):
        var = variance * var + S.diagonal()  # Λ_ii, and K_ii of this layer as well: Q(1) = 1
        K = 2 * relu_moments(variance * K + S, var, var)[0]
        kernels.append(K)
    return kernels


def gaussian_moment(cross: Tensor, var1: Tensor, var2: Tensor, leak: float = 0.0) -> Tensor:
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
        u = mean / tau
        inner = (1 - leak) * (mean * torch.special.ndtr(u) + tau * _density(u)) + leak * mean
        outer = var1.sqrt()[..., None] * t * (1.0 if side > 0 else leak)
        total = total + (outer * inner * _density(t) * 2 * r * dr).sum(-1)
    return total


def _legendre(count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of Gauss-Legendre quadrature, by Golub and Welsch."""
    k = torch.arange(1, count, dtype=torch.float64)
    side = k / (4 * k**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(side, 1) + torch.diag(side, -1))
    return nodes, 2 * vectors[0] ** 2


def _density(x: Tensor) -> Tensor:
    return torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


# --- finite networks ---------------------------------------------------------------------------


def tied_layers(model: VanillaDEQ, X: Tensor, depth: int) -> Tensor:
    """Return Z^(0) = 0, …, Z^(depth) of the tied network, stacked in front."""
    with torch.no_grad():
        q = model.inject(X)
        return picard_states(model.map(q), torch.zeros_like(q), depth)


def untied_layers(
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


def layer_grams(states: Tensor) -> Tensor:
    """Return ZZᵀ/m for every layer."""
    return states @ states.mT / states.shape[-1]


def truncation_bound(rate: float, depth: Tensor, first: float) -> Tensor:
    """Bound ‖G-G^(ℓ)‖_F by 2q^ℓ‖Z^(1)‖_F²/(1-q)²; ``rate`` is q ≥ ‖W‖, ``first`` ‖Z^(1)‖_F²."""
    return 2 * rate**depth / (1 - rate) ** 2 * first


@lru_cache(maxsize=8)
def tied_grams(seed: int, m: int, draws: int, depth: int, *, radius: float = 1.0) -> Tensor:
    """Return G^(1)/m, …, G^(depth)/m of tied networks on four inputs, by draw and layer."""
    X = inputs(seed, 4, radius=radius)
    models = (VanillaDEQ.init(m, 10, seed=1000 * seed + k) for k in range(draws))
    return torch.stack([layer_grams(tied_layers(model, X, depth))[1:] for model in models])


def against_population(seed: int, m: int, draws: int, depth: int, *, radius: float = 1.0) -> Tensor:
    """Return G^(ℓ)/m - K^(ℓ) of the tied networks, K^(ℓ) for inputs of length √d."""
    kernels = population_kernels(second_moments(inputs(seed, 4)), VARIANCE, depth)
    return tied_grams(seed, m, draws, depth, radius=radius) - torch.stack(kernels)


def second_moment(n: int, m: int) -> float:
    r"""Return :math:`6n^2/(m(1-\sigma_w^2)^2)`: about the mean of :math:`\|\tfrac1mG-K\|_F^2`.

    In a layer with weights of its own an entry of :math:`\tfrac1mG` is a mean of m independent
    products with second moment at most :math:`6/(1-\sigma_w^2)^2`. That shared weights change
    nothing is what draws test.
    """
    return 6 * n**2 / (m * (1 - VARIANCE) ** 2)


def second_moment_width(n: int, least: float, fail: float) -> int:
    r"""Return the m at which ``second_moment`` is :math:`t\lambda_*^2/4`; ``fail`` is t.

    Markov's inequality then gives :math:`\|\tfrac1mG-K\|_F\le\lambda_*/2` with probability 1-t.
    The source hides the constant, so this one is derived, not fitted.
    """
    return math.ceil(second_moment(n, 1) / (fail * least**2 / 4))


# --- fresh randomness --------------------------------------------------------------------------


@dataclass(frozen=True)
class Reconstruction:
    """The matrix M and the vectors h, h' of one pair of inputs, and the layers they are for."""

    M: Tensor
    h: Tensor
    other: Tensor
    states: Tensor  # Z^(0), …, Z^(ℓ+1) of the pair


def reconstruct(
    model: VanillaDEQ, X: Tensor, layer: int, *, variance: float, printed: bool = False
) -> Reconstruction:
    r"""Return M, h, h' with :math:`G^{(\ell+1)}_{12}=\sigma(Mh)^\top\sigma(Mh')` for two inputs.

    V is an orthonormal basis of the layers before ℓ; p and q are what :math:`z_1^{(\ell)}` and
    :math:`z_2^{(\ell)}` add to it, and :math:`q_\perp` the part of q orthogonal to p. The source
    prints q where :math:`q_\perp` is meant (``printed``).

    M is W on the basis :math:`(V,\,p/\|p\|,\,q_\perp/\|q_\perp\|)`, and h, h' are coordinates in
    it. Where p or :math:`q_\perp` vanishes (a dead input, a repeated one) any unit vector
    orthogonal to the others takes its place: the layers determine it, so W meets it for the first
    time, and the coordinate along it is that of p or :math:`q_\perp`, 0.
    """
    m, d = model.U.shape
    if 2 * layer > m:
        raise ValueError(f"two inputs span up to {2 * layer} directions by layer {layer}, m = {m}.")
    states = tied_layers(model, X, layer + 1)
    V = _gram_schmidt(states[1:layer].reshape(2 * (layer - 1), m).mT)
    first, second = states[layer]
    rounding = 1e-13 * float(states[layer].norm())
    p, along_p = _or_fresh(first - V @ (V.mT @ first), V, rounding)
    basis = torch.cat([V, (p / p.norm())[:, None]], dim=1)
    q = second - V @ (V.mT @ second)
    last, along_last = _or_fresh(q if printed else q - (p @ q) / (p @ p) * p, basis, rounding)
    basis = torch.cat([basis, (last / last.norm())[:, None]], dim=1)
    root, zero = math.sqrt(variance / m), torch.zeros_like(along_p)
    M = torch.cat([model.W.detach() @ basis / root, math.sqrt(d) * model.U.detach()], dim=1)
    h, other = (
        torch.cat([root * torch.cat([V.mT @ z, torch.stack(tail)]), x / math.sqrt(d)])
        for z, tail, x in (
            (first, (along_p, zero), X[0]),
            (second, (p @ q / p.norm(), along_last), X[1]),
        )
    )
    return Reconstruction(M, h, other, states)


def _gram_schmidt(M: Tensor) -> Tensor:
    """Return the orthonormal columns of Gram and Schmidt: QR with no negative diagonal of R."""
    if M.shape[1] == 0:
        return M
    Q, R = torch.linalg.qr(M)
    return torch.where(R.diagonal() < 0, -Q, Q)


def _or_fresh(v: Tensor, basis: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
    """Return v and ‖v‖; for v = 0 a unit vector orthogonal to the basis, and 0."""
    if float(v.norm()) > rounding:
        return v, v.norm()
    whole = torch.linalg.qr(basis, mode="complete")[0]
    return whole[:, basis.shape[1]], torch.zeros((), dtype=v.dtype)


# --- Condition 1 -------------------------------------------------------------------------------


def condition_radius(n: int, least: float) -> float:
    """Return δ = √(λ_*/n)/10."""
    return 0.1 * math.sqrt(least / n)


def two_inputs(seed: int, angle: float) -> Tensor:
    """Return two inputs of length √2 in the plane at this angle."""
    frame = torch.linalg.qr(normal(2, 2, g=generator(seed + 100)))[0]
    turn = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    return math.sqrt(2) * turn @ frame


def condition_instance(
    seed: int, X: Tensor, m: int, readout: float
) -> tuple[VanillaDEQ, Tensor, Tensor]:
    """Return a network with a(0) scaled by ``readout``, the inputs, and small labels."""
    n, d = X.shape
    drawn = VanillaDEQ.init(m, d, variance=SMALL, seed=seed)
    model = VanillaDEQ(drawn.W.detach(), drawn.U.detach(), readout * drawn.a.detach())
    return model, X, LABEL * signs(n, g=generator(seed + 200))


def least_limit(X: Tensor) -> float:
    """Return λ_* of these inputs at σ_w² = ``SMALL``."""
    return float(torch.linalg.eigvalsh(population_limit(second_moments(X), SMALL).K)[0])


def critical_width(seed: int, X: Tensor, m: int, draws: int) -> float:
    """Return the width at which networks like those of width m would just meet (7).

    What (7) needs falls like m^{-1/2} against what there is; measured on ``draws`` networks with
    a(0) = 0, and δ as ``condition_radius`` has it.
    """
    delta, found = condition_radius(len(X), least_limit(X)), []
    for k in range(draws):
        model, X, y = condition_instance(1000 * seed + k, X, m, 0.0)
        found.append(m * vanilla.condition_one(model, X, y, delta)["(7)"].ratio ** 2)
    return sum(found) / draws


@lru_cache(maxsize=8)
def width_exponents(seed: int) -> tuple[float, float]:
    """Return the powers of n and of λ_* in the critical width, measured.

    Three and nine orthogonal inputs have one λ_*, two inputs at two angles have one n.
    """
    few, many = (orthogonal_inputs(seed, n) for n in (3, 9))
    of_n = math.log(critical_width(seed, many, 540, 3) / critical_width(seed, few, 180, 8), 3)
    wide, near = (two_inputs(seed, angle) for angle in (1.5, 0.75))
    growth = critical_width(seed, near, 400, 3) / critical_width(seed, wide, 400, 3)
    return of_n, math.log(growth) / math.log(least_limit(near) / least_limit(wide))


def condition_need(m: float, n: int, d: int, least: float, label: float) -> float:
    r"""Return the largest need ÷ have of (7), (8), (9') for a(0) = 0, on a likely event.

    On it ‖W‖ ≤ 2√2σ_w(1+ε), ‖U‖ ≤ √(2/d)(√m+√d+s) and λ_0 ≥ mλ_*/2; it fails with probability at
    most e^{-2mε²} + e^{-s²/2} + t, here with ε = 0.3 and s = 3.
    """
    delta = condition_radius(n, least)
    left = 1 - 2 * math.sqrt(2 * SMALL) * 1.3 - delta
    u = math.sqrt(2 / d) * (math.sqrt(m) + math.sqrt(d) + 3) + delta
    lambda0, x, e = m * least / 2, math.sqrt(n * d), label * math.sqrt(n)
    cw, cu, ca = u * delta / left**2, delta / left, u / left
    C = cw**2 + cu**2
    seven = 4 / delta * max(cw, cu, ca) * x * e / lambda0
    eight = 4 * (2 + math.sqrt(2)) * C * x**2 * e / delta / lambda0**1.5
    nine = 8 * C * x**2 / lambda0
    return max(seven, eight, nine)


def condition_width(n: int, d: int, least: float, label: float = LABEL) -> int:
    """Return the least m that meets Condition 1 on a likely event, for |y_i| = ``label``."""
    low, high = 1.0, 2.0
    while condition_need(high, n, d, least, label) > 1:
        low, high = high, 2 * high
    while high - low > 0.5:
        middle = 0.5 * (low + high)
        good = condition_need(middle, n, d, least, label) <= 1
        low, high = (low, middle) if good else (middle, high)
    return math.ceil(high)
