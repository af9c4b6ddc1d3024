r"""The class that can only remember: a ball of tables, whose largest deviation is known exactly.

The inputs are N equally likely atoms, each with its label ±1; the kernel is 1 on equal atoms and 0
otherwise, so f is any table with :math:`\sum f^2\le B^2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from deqbook.runtime import generator, normal

ATOMS, SAMPLES = 20_000, 400
RHO, RADIUS = 10.0, 0.64  # the ramp loss max(0, 1-ρyf), cut at 1, on a ball of this radius


def memory_deviation(counts: Tensor, radius: float, rho: float) -> tuple[float, Tensor]:
    r"""Return :math:`\sup_f(\mathbb E\ell-\tfrac1n\sum\ell)` over a ball of tables, and its f·y.

    ``counts`` says how often the sample has met each atom. The loss
    :math:`\ell=\min(1,(1-\rho yf)_+)` falls by :math:`g=\rho yf` where that lies in [0, 1];
    with w the positive part of counts/n - 1/N the best table is :math:`g=\rho Bw/\|w\|`.
    """
    w = (counts / counts.sum() - 1 / len(counts)).clamp(min=0)
    table = radius * w / w.norm()
    return rho * radius * float(w.norm()), table


def memory_complexity(counts: Tensor, radius: float) -> float:
    r"""Bound :math:`\Re_S` of the ball of tables from below.

    :math:`Q=\epsilon^\top K\epsilon` has :math:`\mathbb EQ=n` and
    :math:`\mathbb EQ^2=n^2+2\sum_jc_j(c_j-1)`; by Hölder
    :math:`\mathbb E\sqrt Q\ge(\mathbb EQ)^{3/2}(\mathbb EQ^2)^{-1/2}`. Equality holds when no atom
    is met twice.
    """
    n = float(counts.sum())
    pairs = float((counts * (counts - 1)).sum())
    return radius / math.sqrt(n) / math.sqrt(1 + 2 * pairs / n**2)


@dataclass(frozen=True)
class Repeats:
    """Samples drawn again and again: suprema, complexities, and two checks of the formula.

    ``largest`` is the largest fall of the loss, ``gap`` the distance between the formula and the
    loss of its table, ``other`` the best of random members over the supremum.
    """

    suprema: tuple[float, ...]
    complexities: tuple[float, ...]
    largest: float
    gap: float
    other: float


@lru_cache(maxsize=8)
def repeats(seed: int, count: int = 200) -> Repeats:
    """Draw so many samples; of the first five also compare the formula with members of the ball."""
    g = generator(seed + 500)
    suprema, complexities, largest, gap, other = [], [], 0.0, 0.0, 0.0
    for k in range(count):
        drawn = torch.randint(0, ATOMS, (SAMPLES,), generator=g)
        counts = torch.bincount(drawn, minlength=ATOMS).double()
        value, table = memory_deviation(counts, RADIUS, RHO)
        suprema.append(value)
        complexities.append(memory_complexity(counts, RADIUS))
        largest = max(largest, RHO * float(table.max()))
        if k < 5:
            gap = max(gap, abs(_excess(table, counts) - value))
            noise = normal(ATOMS, g=g)
            for share in (0.1, 0.5, 1.0):
                member = (1 - share) * table / table.norm() + share * noise / noise.norm()
                member = RADIUS * member / member.norm()
                other = max(other, _excess(member, counts) / value)
    return Repeats(tuple(suprema), tuple(complexities), largest, gap, other)


def _excess(table: Tensor, counts: Tensor) -> float:
    """Return expected minus mean loss of a member, from its values of yf."""
    loss = (1 - RHO * table).clamp(0, 1)
    return float(loss.mean() - (counts * loss).sum() / counts.sum())
