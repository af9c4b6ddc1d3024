r"""The kernel of the injected features: why it is definite, and how fast wide layers reach it.

:math:`G^\infty=\sum_ka_k^2(XX^\top)^{\circ k}` with the Hermite coefficients of ReLU. Every term is
positive semidefinite, and Gershgorin's theorem makes the late ones definite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.special import ndtr
from torch import Tensor

from deqbook.data import load
from deqbook.pages.p04_ntk.lab.hermite import density, relu_coefficients, square_integral
from deqbook.runtime import normal

TERMS = 3000  # of the Hermite series of ReLU, where a bound sums it


def unit_rows(X: Tensor) -> Tensor:
    """Divide every row by its norm."""
    return X / X.norm(dim=1, keepdim=True)


def some_images(count: int, g: torch.Generator) -> Tensor:
    """Return some of the first 200 training images of mnist01, at random."""
    X = load("mnist01", n_train=200, n_test=1).x_train
    return X[torch.randperm(len(X), generator=g)[:count]]


def coherence(X: Tensor, *, signed: bool = False) -> float:
    """Return δ = max |⟨x_i,x_j⟩| over pairs; ``signed`` forgets the modulus."""
    gram = X @ X.mT
    off = gram[~torch.eye(len(X), dtype=torch.bool)]
    return float((off if signed else off.abs()).max())


@cache
def squared_coefficients() -> Tensor:
    """Return a_0², …, the squared Hermite coefficients of ReLU."""
    return relu_coefficients(TERMS) ** 2


def definite_bound(delta: float, n: int) -> float:
    r"""Return :math:`\sum_ka_k^2(1-(n-1)\delta^k)_+`, a lower bound of :math:`\lambda_{\min}`.

    Term k of the series of :math:`G^\infty` has unit diagonal and other entries of modulus at most
    :math:`\delta^k`: Gershgorin (gao2022.lemmaA.9). The sum is cut, which only lowers it.
    """
    powers = torch.pow(torch.tensor(delta, dtype=torch.float64), torch.arange(TERMS + 1))
    return float((squared_coefficients() * (1 - (n - 1) * powers).clamp(min=0)).sum())


def hermite_bound(cosine: Tensor, variance: float, order: int = 400) -> float:
    r"""Return a lower bound on :math:`\lambda_{\min}(K)` that is positive if no |cosθ_ij| is 1.

    The population kernel is :math:`K=\frac1{1-\sigma_w^2}\sum_k2a_k^2C^{\circ k}` with
    :math:`C=\cos\theta\succeq0`. Every term is positive semidefinite, and Gershgorin's theorem
    gives :math:`\lambda_{\min}(C^{\circ k})\ge1-\max_i\sum_{j\ne i}|C_{ij}|^k`.
    """
    off = (cosine - torch.diag(cosine.diagonal())).abs()
    total = torch.zeros((), dtype=torch.float64)
    power = torch.ones_like(off)
    power.fill_diagonal_(0)
    for weight in relu_coefficients(order).tolist():
        total += 2 * weight**2 * (1 - power.sum(1).max()).clamp(min=0)
        power = power * off
    return float(total) / (1 - variance)


def khatri_rao(X: Tensor, k: int) -> Tensor:
    """Return X^{*k}: row i is x_i ⊗ … ⊗ x_i."""
    power = X
    for _ in range(k - 1):
        power = (power[:, :, None] * X[:, None, :]).flatten(1)
    return power


def pair_limit(rho: float) -> float:
    """Return E[σ(s)σ(t)] at correlation ρ by quadrature, the inner integral being known."""
    tau = math.sqrt(1 - rho**2)

    def inner(s: float) -> float:
        u = rho * s / tau  # E σ(ρs + τw) = τ(uΦ(u) + φ(u))
        return s * tau * (u * ndtr(u) + density(u)) * density(s)

    return float(quad(inner, 0, 12, epsabs=1e-13, epsrel=1e-13)[0])


@dataclass(frozen=True)
class Bernstein:
    r"""Bernstein's inequality: :math:`\mathbb E|x|^q\le\frac{q!}2vc^{q-2}` for q ≥ 2.

    A mean of m independent copies is then off by more than :math:`\sqrt{2vt/m}+ct/m` with
    probability at most :math:`2e^{-t}`.
    """

    variance: float
    scale: float

    def moment(self, q: int) -> float:
        """Return the bound on the moment of order q."""
        return math.factorial(q) / 2 * self.variance * self.scale ** (q - 2)

    def deviation(self, m: int, t: float) -> float:
        """Return how far off a mean of m copies is, but for a probability 2e^{-t}."""
        return math.sqrt(2 * self.variance * t / m) + self.scale * t / m


def relu_moment(q: int) -> float:
    """Return E σ(s)^{2q} by quadrature."""
    return square_integral(lambda x: max(x, 0.0) ** q, 40)


ENTRY = Bernstein(variance=1.5, scale=2.0)  # of σ(s)σ(s'), by Cauchy and Schwarz


def union_level(n: int, delta: float) -> float:
    """Return t = log(n(n+1)/δ): the n(n+1)/2 entries share δ at 2e^{-t} each."""
    return math.log(n * (n + 1) / delta)


def feature_width(lambda0: float, n: int, delta: float) -> int:
    r"""Return :math:`m=\lceil52\,n^2\lambda_G^{-2}\log(n(n+1)/\delta)\rceil` (gao2022.lemma3.3).

    At this width n times the deviation of an entry is at most :math:`\frac14\lambda_G`.
    """
    return math.ceil(52 * n**2 / lambda0**2 * union_level(n, delta))


def diagonal_tail(m: int, away: float) -> float:
    r"""Return :math:`\mathbb P(|\tfrac1m\sum_r\sigma(s_r)^2-\tfrac12|>\mathrm{away})`, exactly.

    Of m units B are on, a binomial number, and the sum has the law :math:`\chi^2_B`.
    """
    k = np.arange(1, m + 1)
    weight, low = stats.binom.pmf(k, m, 0.5), m * (0.5 - away)
    beyond = weight @ stats.chi2.sf(m * (0.5 + away), k)
    if low > 0:
        beyond += weight @ stats.chi2.cdf(low, k) + 0.5**m
    return float(beyond)


def feature_grams(
    X: Tensor, m: int, draws: int, g: torch.Generator, *, mean: bool = True
) -> Tensor:
    """Return ``draws`` Gram matrices of σ(Ux)/√m; not ``mean`` leaves the factor 1/m out."""
    found = []
    for _ in range(draws):
        features = torch.relu(X @ normal(X.shape[1], m, g=g))
        found.append(features @ features.mT / (m if mean else 1))
    return torch.stack(found)
