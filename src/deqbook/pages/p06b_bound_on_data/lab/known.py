r"""The bound where the distribution is known: the expected loss is a number, not an estimate.

Two distributions. In the *rare* one the first guess is right but for a share p of the inputs, and
the kernel is that of a memory, so that nothing is learnt about inputs that were not met: the
expected loss is p whatever the sample is, and :math:`B` depends on the sample alone. In the
*sphere* one a linear teacher is learnt by the infinitely wide network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from deqbook.kernels import empirical_ntk, implicit_only_limit
from deqbook.models import ReLUImplicit
from deqbook.pages.p06b_bound_on_data.lab.pictures import DELTA, KernelStart, cut
from deqbook.runtime import generator, signs, sphere

RARE = 1.5  # rare inputs that a sample meets on average


@dataclass(frozen=True)
class Known:
    """One sample: the radius B read off it, the two terms of its bound, and the expected loss."""

    B: float
    complexity: float
    confidence: float
    loss: float


def _measure(start: KernelStart, weights: Tensor) -> Known:
    f, B = start.interpolate()
    bound = start.bound(B)
    loss = float(weights @ cut(f, start.y_test))
    return Known(B, bound.complexity, bound.confidence, loss)


@lru_cache(maxsize=8)
def rare(seed: int, *, n: int = 200, count: int = 200) -> tuple[Known, ...]:
    r"""Draw samples in which ``RARE`` inputs on average are rare.

    :math:`k(x,x')=\nu^2\mathbf 1\{x=x'\}` with a small ν, inputs without atoms; :math:`f_0=y`,
    but 0 where the input is rare. The two test inputs stand for all others, common and rare, with
    their probabilities as weights.
    """
    g, p, nu = generator(seed + 700), RARE / n, 0.02
    start = KernelStart(
        H=nu**2 * torch.eye(n, dtype=torch.float64),
        k=torch.zeros(2, n, dtype=torch.float64),
        guess=torch.zeros(n, dtype=torch.float64),
        guess_test=torch.tensor([1.0, 0.0], dtype=torch.float64),
        y=torch.ones(n, dtype=torch.float64),
        y_test=torch.ones(2, dtype=torch.float64),
    )
    weights, found = torch.tensor([1 - p, p], dtype=torch.float64), []
    for _ in range(count):
        y = signs(n, g=g)
        met = torch.rand(n, generator=g, dtype=torch.float64) < p
        found.append(_measure(replace(start, y=y, guess=torch.where(met, 0 * y, y)), weights))
    return tuple(found)


def on_sphere(seed: int, *, n: int = 200, d: int = 3, tests: int = 400) -> Known:
    """Draw one sample of a linear teacher on the sphere, for the infinitely wide network."""
    X, other = sphere(n, d, 9000 + seed), sphere(tests, d, 9500 + seed)
    H, k = (implicit_only_limit(rows, X, gamma=0.4) for rows in (X, other))
    zero, zero_test = torch.zeros_like(X[:, 0]), torch.zeros_like(other[:, 0])
    start = KernelStart(H, k, zero, zero_test, X[:, 0], other[:, 0])
    return _measure(start, torch.full_like(zero_test, 1 / tests))


def used(samples: tuple[Known, ...], *, confident: bool = True) -> float:
    """Return the quotient loss ÷ bound that a share 1-δ of the samples does not exceed."""
    bounds = [one.complexity + confident * one.confidence for one in samples]
    ratios = torch.tensor([one.loss / bound for one, bound in zip(samples, bounds)])
    return float(torch.quantile(ratios.double(), 1 - DELTA, interpolation="higher"))


def off_the_limit(seed: int, *, gamma: float = 0.6, m: int = 150, count: int = 30) -> float:
    """Return how far the mean k(x, x) of networks of finite width is from the limit's.

    In standard errors over ``count`` networks with linear features and a dense W.
    """
    X = sphere(6, 10, 8000 + seed)
    means = []
    for k in range(count):
        net = ReLUImplicit.init_implicit_only(
            m, 10, gamma=gamma, seed=10_000 * (seed + 1) + k, phi="identity"
        )
        means.append(empirical_ntk(net, X, tol=1e-8).diagonal().mean())
    seen = torch.stack(means)
    limit = implicit_only_limit(X, gamma=gamma).diagonal().mean()
    return abs(float((seen.mean() - limit) / (seen.std() / math.sqrt(count))))
