r"""Less lost: the bound of gao2023, Theorem 4.1, with a finer grid of radii and smaller constants.

A radius B that is read off the sample costs a union bound over a grid of radii fixed in advance
(``generalization.after_sample``, by default the powers of 2). A finer grid rounds B up by less and
pays in a logarithm. And a kernel with a known bound :math:`k(x,x)\le r^2` needs no estimate of its
complexity from the sample: one application of the bounded-difference inequality is enough, in the
place of two and a symmetrisation of the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from deqbook.bounds.generalization import Deviation, after_sample, explicit_bound

FINE = 2.0 ** (1 / 32)  # 32 radii between one power of 2 and the next
RADII = tuple(4.0 * 2 ** (j / 8) for j in range(41))  # a finite list, from 4 to 128


def fine_bound(K: Tensor, B: float, *, delta: float, ratio: float = FINE) -> Deviation:
    r"""Return :math:`\frac{2R_j}n\sqrt{\operatorname{tr}K}+3\sqrt{\log(2/\delta_j)/2n}`.

    Gao2023, Theorem 4.1, for a 1-Lipschitz loss with values in [0, 1] and a radius B read off the
    sample: the explicit bound with a finer grid of radii.
    """
    return explicit_bound(K, B, delta=delta, ratio=ratio)


def from_list(B: float, delta: float, radii: Sequence[float] = RADII) -> tuple[float, float]:
    """Return the least radius of a list that is at least B, and its equal share of δ.

    The list is fixed before the sample. Beyond it the radius is infinite: the bound says nothing,
    which is always true. A short list costs less than ``generalization.after_sample``, which keeps
    a share for every power up to infinity.
    """
    reached = [R for R in radii if R >= B]
    return min(reached, default=math.inf), delta / len(radii)


def listed_bound(K: Tensor, B: float, *, delta: float, radii: Sequence[float] = RADII) -> Deviation:
    r"""Return the bound of ``fine_bound`` with a finite list of radii, which share δ equally."""
    radius, share = from_list(B, delta, radii)
    if math.isinf(radius):
        return Deviation(radius, 0.0, radius, share)
    return explicit_bound(K, radius, delta=share, fixed_in_advance=True)


def bounded_kernel_bound(
    n: int, B: float, *, r: float, delta: float, ratio: float = FINE
) -> Deviation:
    r"""Return :math:`\frac{2R_jr}{\sqrt n}+\sqrt{\log(1/\delta_j)/2n}` for :math:`k(x,x)\le r^2`.

    The expected complexity of the ball of radius R is at most :math:`Rr/\sqrt n`, whatever the
    sample; the largest deviation changes by at most 1/n with one sample, so it exceeds its mean by
    more than :math:`\sqrt{\log(1/\delta)/2n}` with probability at most δ.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")
    if not r > 0:
        raise ValueError(f"r must be positive, a bound on √k(x, x); got {r!r}.")
    radius, share = after_sample(B, delta, ratio=ratio)
    paid = math.sqrt(math.log(1 / share) / (2 * n))
    return Deviation(2 * radius * r / math.sqrt(n), paid, radius, share)


def held_out(errors: float, p: int, *, delta: float) -> float:
    r"""Return :math:`\text{errors}+\sqrt{\log(1/\delta)/2p}`, what p unused samples certify.

    ``errors`` is the mean of a loss in [0, 1] over samples that training has not seen (Hoeffding).
    """
    if p < 1:
        raise ValueError(f"p must be at least 1, got {p}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta!r}.")
    return errors + math.sqrt(math.log(1 / delta) / (2 * p))
