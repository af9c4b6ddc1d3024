r"""Infinite width: what the tangent kernel of an equilibrium model tends to at initialisation.

Every limit below has the same two parts. The states have a Gram matrix K that solves its own
fixed-point equation, because the pre-activations are Gaussian with covariance made of K. The
adjoint states :math:`v=D(\ldots a+W^\top v)` meet fresh randomness, so their Gram matrix P solves
:math:`P=\pi\,(1+sP)`, that is :math:`P=\pi/(1-s\pi)`, where :math:`\pi_{ij}` is the chance that a
unit is on for both inputs and s the variance that W brings.

The limits are derived here; the sources stop at the Gram matrix of the states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.kernels.arccos import cosines, feature_limit, kappa0, relu_moments
from deqbook.kernels.population import PopulationLimit, population_limit
from deqbook.runtime import generator, normal

__all__ = [
    "ReLUImplicitLimit",
    "diagonal_gap",
    "diagonal_limit",
    "implicit_only_limit",
    "relu_implicit_limit",
    "vanilla_limit",
]


def vanilla_limit(
    X: Tensor, X2: Tensor | None = None, *, variance: float, m: int
) -> dict[str, Tensor]:
    r"""Return the blocks W, U and a of the tangent kernel of a wide vanilla DEQ of width m.

    For the initialisation of ling2023 (Assumption 1), :math:`S=\tfrac1dXX_2^\top`, K and
    :math:`\cos\theta` of ``population_limit``:

    .. math:: P=\frac{\kappa_0(\cos\theta)}{1-2\sigma_w^2\kappa_0(\cos\theta)},\qquad
              H_W=m\,P\circ K,\quad H_U=d\,P\circ S,\quad H_a=m\,K.

    ``X`` is (n, d), ``X2`` (p, d) or None for X, each block (n, p); ``variance`` is
    :math:`\sigma_w^2`, in [0, 1), else ``ValueError``. The keys are those of ``gram_parts``; the
    kernel is their sum, and grows with m.

    >>> blocks = vanilla_limit(torch.ones(1, 1), variance=0.5, m=10)  # here K = 2 and P = 1
    >>> {name: round(block.item(), 3) for name, block in blocks.items()}
    {'W': 20.0, 'U': 1.0, 'a': 20.0}
    """
    other, d = X if X2 is None else X2, X.shape[1]
    K, cosine = _population(X / math.sqrt(d), other / math.sqrt(d), variance)
    P = _adjoints(kappa0(cosine), 2 * variance)
    return {"W": m * P * K, "U": P * (X @ other.mT), "a": m * K}


def implicit_only_limit(X: Tensor, X2: Tensor | None = None, *, gamma: float) -> Tensor:
    r"""Return :math:`H^\infty=\gamma^2P\circ K` of gao2023 with linear features, φ = identity.

    :math:`\rho=\gamma^2\kappa_1(\rho)+(1-\tfrac{\gamma^2}2)XX_2^\top`,
    :math:`K=\kappa_1(\rho)/(1-\tfrac{\gamma^2}2)` and
    :math:`P=\kappa_0(\rho)/(1-\gamma^2\kappa_0(\rho))` for unit inputs: the equation of the vanilla
    DEQ with :math:`\sigma_w^2=\gamma^2/2`, and half its K. Only W is trained. ``X`` is (n, d),
    ``X2`` (p, d) or None for X. ``ValueError`` where ``gamma`` is outside (0, √2) or the length of
    a row is not 1.

    >>> implicit_only_limit(torch.eye(2, dtype=torch.float64), gamma=1.0).round(decimals=3).tolist()
    [[1.0, 0.173], [0.173, 1.0]]
    """
    _check_gamma(gamma)
    K, cosine = _population(X, X if X2 is None else X2, gamma**2 / 2)
    return gamma**2 * _adjoints(kappa0(cosine), gamma**2) * K / 2


def diagonal_limit(X: Tensor, X2: Tensor | None = None, *, gamma: float) -> Tensor:
    r"""Return :math:`\gamma^2\kappa_0\circ\kappa_1`, the limit for a diagonal W(0), only W trained.

    The features are ReLU. With N(0, 1) on the diagonal, unit r solves its own equation,
    :math:`z_r=\phi_r/(1-\tilde\gamma w_r)`, and :math:`\tilde\gamma w_r\to0` as m grows: what
    is left is the kernel of a network with one hidden layer (gao2023.section5.2). ``X`` is (n, d),
    ``X2`` (p, d) or None for X; ``ValueError`` unless ``gamma`` is positive.

    >>> diagonal_limit(torch.eye(2, dtype=torch.float64), gamma=2.0).round(decimals=3).tolist()
    [[1.0, 0.159], [0.159, 1.0]]
    """
    if not gamma > 0:
        raise ValueError(f"gamma must be positive, got {gamma!r}.")
    other = X if X2 is None else X2
    angle = cosines(X @ other.mT, X.pow(2).sum(1), other.pow(2).sum(1))
    return gamma**2 * kappa0(angle) * feature_limit(X, other)


def diagonal_gap(n: int, m: int, *, gamma: float, delta: float) -> float:
    r"""Return a bound on :math:`\|H(0)-\gamma^2\kappa_0\circ\kappa_1\|_F` with probability 1-δ.

    For unit inputs and the start of ``diagonal_limit`` at width m. With N = n(n+1)/2 pairs,
    :math:`\Lambda=\log(6N/\delta)` and :math:`\epsilon_w=\gamma\sqrt{2\log(3m/\delta)/m}<1`: the
    share of common active units is within :math:`\epsilon_0=\sqrt{\Lambda/2m}` of
    :math:`\kappa_0` (Hoeffding), the mean product of features within
    :math:`\epsilon_1=\sqrt{3\Lambda/m}+2\Lambda/m` of :math:`\kappa_1` (Bernstein), and no
    :math:`(1-\tilde\gamma w_r)^{-2}` leaves
    :math:`[(1+\epsilon_w)^{-2},(1-\epsilon_w)^{-2}]`. Together

    .. math:: n\gamma^2\big[((1-\epsilon_w)^{-4}-1)(\tfrac12+\epsilon_0)(\tfrac12+\epsilon_1)
              +\tfrac12\epsilon_0+\tfrac12\epsilon_1+\epsilon_0\epsilon_1\big].

    ``ValueError`` where an argument is out of its range, or m so small that
    :math:`\epsilon_w\ge1`.

    >>> [round(diagonal_gap(5, m, gamma=0.5, delta=0.1), 2) for m in (10**4, 10**6)]
    [0.08, 0.01]
    """
    if n < 1 or m < 1 or not gamma > 0 or not 0 < delta < 1:
        raise ValueError(
            f"n and m must be at least 1, gamma positive and delta between 0 and 1; got {n}, {m}, "
            f"{gamma!r} and {delta!r}."
        )
    Lambda = math.log(3 * n * (n + 1) / delta)
    loops = gamma * math.sqrt(2 * math.log(3 * m / delta) / m)
    if loops >= 1:
        raise ValueError(
            f"at width {m} some unit may have γ̃w ≥ 1 and then no equilibrium; "
            f"γ√(2 log(3m/δ)/m) = {loops:.3g} must be below 1. Take a larger m."
        )
    counts = math.sqrt(Lambda / (2 * m))
    features = math.sqrt(3 * Lambda / m) + 2 * Lambda / m
    loop = ((1 - loops) ** -4 - 1) * (0.5 + counts) * (0.5 + features)
    return n * gamma**2 * (loop + 0.5 * counts + 0.5 * features + counts * features)


@dataclass(frozen=True)
class ReLUImplicitLimit:
    r"""The limits of the ReLU implicit network, found by simulation.

    ``K`` is :math:`\lim z_i^\top z_j`, ``M`` is :math:`\lim\frac1mv_i^\top v_j`; ``blocks`` has the
    keys of ``gram_parts``. ``error`` is the largest standard error of an entry of the simulated
    expectation that K solves. Made by ``relu_implicit_limit``.

    >>> limit = relu_implicit_limit(torch.eye(2, dtype=torch.float64), gamma=0.5, samples=1000)
    >>> limit.H.shape, sorted(limit.blocks)
    (torch.Size([2, 2]), ['U', 'W', 'a', 'c'])
    """

    K: Tensor
    M: Tensor
    blocks: Mapping[str, Tensor]
    error: float

    @property
    def H(self) -> Tensor:
        """Return the tangent kernel, the sum of the blocks."""
        return torch.stack(list(self.blocks.values())).sum(dim=0)


@torch.no_grad()
def relu_implicit_limit(
    X: Tensor, *, gamma: float, samples: int = 100_000, seed: int = 0
) -> ReLUImplicitLimit:
    r"""Return the limits of the network of gao2022, by a Monte-Carlo fixed point.

    With :math:`g\sim N(0,K)`, :math:`s\sim N(0,XX^\top)` independent and
    :math:`h=\gamma g+\sigma(s)`, no closed form is known for

    .. math:: K_{ij}=\mathbb E[\sigma(h_i)\sigma(h_j)],\quad\pi_{ij}=\mathbb P(h_i,h_j>0),\quad
              \tau_{ij}=\mathbb P(h_i,h_j,s_i,s_j>0).

    The same draws serve every iteration, so the sampled equation is itself a fixed-point equation
    and is solved to rounding. Then :math:`M=\pi/(1-\gamma^2\pi)`,
    :math:`H_W=\gamma^2M\circ K`, :math:`H_a=K`, :math:`H_c=G^\infty` and
    :math:`H_U=(\tau\circ(1+\gamma^2M)+\kappa_0)\circ XX^\top`, the two terms of :math:`H_U` being
    the two paths of the input weights. ``X`` is (n, d).
    ``ValueError`` where ``gamma`` is outside (0, √2) or ``samples`` below 2; ``RuntimeError`` where
    K has not settled in 1000 steps.

    >>> limit = relu_implicit_limit(torch.eye(2, dtype=torch.float64), gamma=0.01, samples=10_000)
    >>> bool((limit.K - limit.blocks["c"]).abs().max() < 5 * limit.error)  # small γ: features only
    True
    """
    _check_gamma(gamma)
    if samples < 2:
        raise ValueError(f"samples must be at least 2, got {samples}.")
    gram, lengths = X @ X.mT, X.pow(2).sum(1)
    draws = generator(seed)
    # g and -g together: the mean of g is then zero exactly
    half = normal((samples + 1) // 2, len(X), g=draws, dtype=X.dtype)
    g, s = torch.cat([half, -half]), normal(2 * len(half), len(X), g=draws, dtype=X.dtype)
    s = s @ _root(gram)
    phi, count = s.relu(), len(s)

    K = phi.mT @ phi / count
    for _ in range(1000):
        h = gamma * (g @ _root(K)) + phi
        z = h.relu()
        K, last = z.mT @ z / count, K
        if float((K - last).abs().max()) <= 1e-13 * float(K.diagonal().max()):
            break
    else:
        raise RuntimeError(
            f"the simulated K has not settled in 1000 steps with gamma = {gamma!r}: the iteration "
            "gains a factor γ²/2 a step. Lower gamma."
        )
    on, both = (h > 0).to(X.dtype), ((h > 0) & (s > 0)).to(X.dtype)
    M = _adjoints(on.mT @ on / count, gamma**2)
    tau = both.mT @ both / count
    direct = relu_moments(gram, lengths, lengths)[1]
    blocks = {
        "W": gamma**2 * M * K,
        "U": (tau * (1 + gamma**2 * M) + direct) * gram,
        "a": K,
        "c": feature_limit(X),
    }
    spread = (z.square().mT @ z.square() / count - K.square()).clamp(min=0)
    return ReLUImplicitLimit(K, M, blocks, float((spread.max() / len(half)).sqrt()))


def _population(X: Tensor, X2: Tensor, variance: float) -> PopulationLimit:
    diagonals = X.pow(2).sum(1), X2.pow(2).sum(1)
    return population_limit(X @ X2.mT, variance, S_diag=diagonals)


def _adjoints(pi: Tensor, gain: float) -> Tensor:
    r"""Solve :math:`P=\pi\,(1+\mathrm{gain}\cdot P)`."""
    return pi / (1 - gain * pi)


def _root(K: Tensor) -> Tensor:
    """Return the symmetric square root; rounding below zero is cut off."""
    values, vectors = torch.linalg.eigh(K)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def _check_gamma(gamma: float) -> None:
    if not 0 < gamma**2 < 2 or gamma < 0:
        raise ValueError(
            f"gamma must lie between 0 and √2, got {gamma!r}: beyond, the wide network has no "
            "equilibrium of finite size."
        )
