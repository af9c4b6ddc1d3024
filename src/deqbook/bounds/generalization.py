r"""From training error to test error: Rademacher complexity of kernel balls, and what follows.

The class is a ball of functions :math:`\mathcal F_B=\{f:\|f\|_k\le B\}` of a kernel k. On a sample
with Gram matrix K its empirical Rademacher complexity is a mean over signs,

.. math:: \mathfrak R_S(\mathcal F_B)=\frac Bn\,\mathbb E_\epsilon\sqrt{\epsilon^\top K\epsilon}
          \ \le\ \frac Bn\sqrt{\operatorname{tr}K} ,

and with probability at least 1-δ, for every f of a class fixed in advance, the expectation of a
ρ-Lipschitz loss with values in [0, c] exceeds its mean over the sample by at most
:math:`2\rho\,\mathfrak R_S+3c\sqrt{\log(2/\delta)/2n}` (gao2023.theoremA.3, gao2023.theoremA.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.kernels.frozen import freeze
from deqbook.runtime import generator, signs

__all__ = [
    "ENUMERATE",
    "Complexity",
    "Deviation",
    "after_sample",
    "complexity_term",
    "confidence",
    "explicit_bound",
    "rademacher",
    "sign_norms",
    "trace_bound",
    "uniform_deviation",
]

ENUMERATE = 20
"""Up to so many samples ``rademacher`` tries all signs: 2^19 square roots."""

LARGEST = 26  # beyond, the values for all signs no longer fit comfortably in memory


@dataclass(frozen=True)
class Complexity:
    """A Rademacher complexity: its value, and the standard error (0 when all signs were tried).

    ``signs`` counts the choices of signs, ``exact`` says whether these are all.

    >>> print(Complexity(0.5, 0.01, 100, exact=False))
    0.5 ± 0.01 (100 draws)
    """

    value: float
    error: float
    signs: int
    exact: bool

    def __str__(self) -> str:
        if self.exact:
            return f"{self.value:.6g} (all {self.signs} signs)"
        return f"{self.value:.6g} ± {self.error:.2g} ({self.signs} draws)"


def _gram(K: Tensor) -> Tensor:
    if K.ndim != 2 or K.shape[0] != K.shape[1] or not len(K):
        raise ValueError(f"K must be a Gram matrix (n, n) with n ≥ 1, got {tuple(K.shape)}.")
    gap, size = float((K - K.mT).abs().max()), float(K.abs().max())
    if not gap <= 1e-6 * size:  # a NaN as well
        raise ValueError(f"K differs from its transpose by {gap:.3g}: it is not a Gram matrix.")
    if float(K.diagonal().min()) < 0:
        raise ValueError(
            f"K has the diagonal entry {float(K.diagonal().min()):.3g}; k(x, x) is a squared norm "
            "and cannot be negative."
        )
    return K.detach()


def _corners(n: int, like: Tensor) -> Tensor:
    """Return all 2^n rows of signs."""
    bits = torch.arange(2**n, device=like.device)[:, None] >> torch.arange(n, device=like.device)
    return 1 - 2 * (bits & 1).to(like.dtype)


def sign_norms(K: Tensor) -> Tensor:
    r"""Return :math:`\sqrt{\epsilon^\top K\epsilon}` for all signs, up to the common sign.

    ε and -ε give the same value, so the last sign is kept at +1 and :math:`2^{n-1}` values remain.
    The samples are split in two halves, :math:`\epsilon=(s,t)`, and
    :math:`\epsilon^\top K\epsilon=s^\top K_{11}s+2s^\top K_{12}t+t^\top K_{22}t` is one table over
    s and t: a matrix product in the place of a loop. ``ValueError`` if K, (n, n), is no Gram
    matrix, or n is above 26.

    >>> sign_norms(torch.ones(2, 2)).tolist()  # of (1, 1) and (-1, 1)
    [2.0, 0.0]
    """
    K = _gram(K)
    n = len(K)
    if n > LARGEST:
        raise ValueError(
            f"there are 2^{n - 1} choices of signs for n = {n}; all are tried up to n = {LARGEST}. "
            "Use rademacher(K, draws=…), which samples them."
        )
    half = n // 2
    s, t = _corners(half, K), _corners(n - half, K)
    t = t[: len(t) // 2]  # the highest bit is the last sign: keep it at +1
    first = ((s @ K[:half, :half]) * s).sum(dim=1)
    second = ((t @ K[half:, half:]) * t).sum(dim=1)
    table = 2 * (s @ K[:half, half:]) @ t.mT + first[:, None] + second
    return table.clamp_(min=0).sqrt_().flatten()


def rademacher(
    K: Tensor, radius: float = 1.0, *, draws: int | None = None, seed: int = 0
) -> Complexity:
    r"""Return :math:`\frac Bn\mathbb E_\epsilon\sqrt{\epsilon^\top K\epsilon}`.

    All signs are tried up to ``ENUMERATE`` samples; beyond, or when ``draws`` is given, so many
    signs are drawn (10 000 by default) and ``error`` is the standard error. K is (n, n), B the
    ``radius``. ``ValueError`` for what is no Gram matrix, a negative radius, fewer than 2 draws.

    >>> print(rademacher(torch.ones(2, 2)))  # |ε₁ + ε₂|/2 is 1 or 0
    0.5 (all 4 signs)
    """
    K = _gram(K)
    scale, n = _radius(radius) / len(K), len(K)
    if draws is None and n <= ENUMERATE:
        values = sign_norms(K)
        return Complexity(scale * float(values.mean()), 0.0, 2 * len(values), exact=True)
    count = 10_000 if draws is None else draws
    if count < 2:
        raise ValueError(f"draws must be at least 2 for a standard error, got {count}.")
    e = signs(count, n, g=generator(seed), dtype=K.dtype).to(K.device)
    values = ((e @ K) * e).sum(dim=1).clamp(min=0).sqrt()
    error = scale * float(values.std()) / math.sqrt(count)
    return Complexity(scale * float(values.mean()), error, count, exact=False)


def trace_bound(K: Tensor, radius: float = 1.0) -> float:
    r"""Return :math:`\frac Bn\sqrt{\operatorname{tr}K}\ge\mathfrak R_S` (gao2023.theoremA.3).

    Jensen's inequality and :math:`\mathbb E\,\epsilon^\top K\epsilon=\operatorname{tr}K`. Equality
    holds exactly for diagonal K. Arguments and errors are those of ``rademacher``.

    >>> trace_bound(torch.eye(4)), rademacher(torch.eye(4)).value
    (0.5, 0.5)
    >>> round(trace_bound(torch.ones(2, 2)), 3)
    0.707
    """
    K = _gram(K)
    return _radius(radius) * math.sqrt(float(K.trace())) / len(K)


def complexity_term(H: Tensor, residual: Tensor) -> float:
    r"""Return :math:`B^2=r^\top H^{-1}r` with :math:`r=y-\hat y(0)` (gao2023.lemma4.2).

    The squared norm of what gradient flow with the frozen kernel H adds to the start. H is (n, n),
    r (n,). ``ValueError`` if H is not symmetric, has a negative eigenvalue, or is singular.

    >>> round(complexity_term(torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 2.0])), 4)
    2.0
    """
    frozen = freeze(H, residual, torch.zeros_like(residual))
    return float(frozen.squared_norm(math.inf))


def confidence(n: int, delta: float, *, c: float = 1.0) -> float:
    r"""Return :math:`3c\sqrt{\log(2/\delta)/2n}`, the part of the bound that no class avoids.

    For a single function Hoeffding's inequality asks less than a third of it. ``ValueError`` if n
    is below 1, δ outside (0, 1) or c negative.

    >>> round(confidence(1000, 0.05), 3)
    0.129
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")
    _probability(delta)
    if not c >= 0:
        raise ValueError(f"c bounds the loss and cannot be negative, got {c!r}.")
    return 3 * c * math.sqrt(math.log(2 / delta) / (2 * n))


@dataclass(frozen=True)
class Deviation:
    r"""A bound on test minus training error, in its two parts, and the radius and δ it used.

    >>> print(Deviation(complexity=0.3, confidence=0.2, radius=4.0, delta=0.05))
    0.5 = 0.3 + 0.2
    """

    complexity: float
    confidence: float
    radius: float
    delta: float

    @property
    def total(self) -> float:
        """Return the bound."""
        return self.complexity + self.confidence

    def __str__(self) -> str:
        return f"{self.total:.4g} = {self.complexity:.4g} + {self.confidence:.4g}"


def uniform_deviation(
    complexity: float, n: int, *, delta: float, lipschitz: float = 1.0, c: float = 1.0
) -> tuple[float, float]:
    r"""Return :math:`2\rho\,\mathfrak R_S` and :math:`3c\sqrt{\log(2/\delta)/2n}`.

    Gao2023, Theorem A.4: with probability at least 1-δ no function of a class fixed in advance has
    an expected loss above its mean over the n samples by more than the sum of the two.
    ``complexity`` is :math:`\mathfrak R_S` of the class, or a bound on it; the loss is ρ-Lipschitz
    with values in [0, c]. ``ValueError`` if one of these is negative, or as ``confidence``.

    >>> [round(part, 3) for part in uniform_deviation(0.1, 1000, delta=0.05)]
    [0.2, 0.129]
    """
    if lipschitz < 0 or c < 0 or complexity < 0:
        raise ValueError(
            f"lipschitz, c and the complexity must not be negative, got {lipschitz!r}, {c!r} and "
            f"{complexity!r}."
        )
    return 2 * lipschitz * complexity, confidence(n, delta, c=c)


def after_sample(B: float, delta: float, *, ratio: float = 2.0) -> tuple[float, float]:
    r"""Return the least radius :math:`q^k\ge B` and the δ of its ball, for B read off the sample.

    A uniform deviation holds for a class fixed in advance; :math:`B^2=r^\top H^{-1}r` is not. So
    take the balls of radius :math:`q^k`, k = 0, 1, …, give ball k the share
    :math:`\delta_k=\delta/((k+1)(k+2))`, which sum to δ, and use the first ball that holds f:
    :math:`k=\lceil\log_q\max(B,1)\rceil`. The price is at most a factor q in the radius and
    :math:`\log((k+1)(k+2))` beside :math:`\log(2/\delta)`. ``ratio`` is q > 1, chosen before the
    sample is seen. ``ValueError`` for another ratio, a δ outside (0, 1), a negative or infinite B.

    >>> after_sample(3.0, 0.12)  # the ball of radius 2², with δ/(3·4)
    (4.0, 0.01)
    """
    _probability(delta)
    if not ratio > 1:
        raise ValueError(f"a grid of radii needs ratio > 1, got {ratio!r}.")
    k = max(0, math.ceil(math.log(max(_radius(B), 1.0)) / math.log(ratio)))
    while ratio**k < B:  # the logarithm may round down
        k += 1
    while k > 0 and ratio ** (k - 1) >= B:  # or up
        k -= 1
    return ratio**k, delta / ((k + 1) * (k + 2))


def explicit_bound(
    K: Tensor,
    B: float,
    *,
    delta: float,
    lipschitz: float = 1.0,
    c: float = 1.0,
    ratio: float = 2.0,
    fixed_in_advance: bool = False,
) -> Deviation:
    r"""Return :math:`\frac{2\rho B}n\sqrt{\operatorname{tr}K}+3c\sqrt{\log(2/\delta)/2n}`.

    Gao2023, Theorem 4.1 with explicit constants, for the frozen-kernel predictor and a ρ-Lipschitz
    loss with values in [0, c]; the network adds ρ times its distance (gao2023.lemma4.4). By
    default B is taken as read off the sample, and the bound pays for it by ``after_sample``;
    ``fixed_in_advance=True`` is for a radius chosen without looking at the labels. K is (n, n);
    ``ValueError`` if it is no Gram matrix, ρ (``lipschitz``) or c negative, or as ``after_sample``.

    >>> print(explicit_bound(torch.eye(1000), 3.0, delta=0.05))
    0.4197 = 0.253 + 0.1667
    >>> print(explicit_bound(torch.eye(1000), 3.0, delta=0.05, fixed_in_advance=True))
    0.3186 = 0.1897 + 0.1288
    """
    radius, share = (_radius(B), delta) if fixed_in_advance else after_sample(B, delta, ratio=ratio)
    terms = uniform_deviation(trace_bound(K, radius), len(K), delta=share, lipschitz=lipschitz, c=c)
    return Deviation(*terms, radius, share)


def _radius(B: float) -> float:
    if not 0 <= B < math.inf:
        raise ValueError(f"the radius must be a finite number that is not negative, got {B!r}.")
    return float(B)


def _probability(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta!r}.")
