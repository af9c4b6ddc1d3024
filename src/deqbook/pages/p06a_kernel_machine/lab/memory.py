r"""The class that can only remember: a ball of tables, whose largest deviation is known exactly.

The inputs are N equally likely atoms, each with its label ±1; the kernel is 1 on equal atoms and 0
otherwise, so f is any table with :math:`\sum f^2\le B^2`.

A second class is the one for which the factor 2 of symmetrisation is attained: tables whose entries
±1 are free on a part of the atoms and equal to the label elsewhere.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from deqbook.runtime import generator

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
    """Samples drawn again and again: suprema, complexities, and a check of the formula.

    ``largest`` is the largest fall of the loss, ``gap`` the distance between the formula and the
    loss of its table. ``remembered`` are the deviations of the one table that is right on the
    sample and nowhere else.
    """

    suprema: tuple[float, ...]
    complexities: tuple[float, ...]
    largest: float
    gap: float
    remembered: tuple[float, ...]


@lru_cache(maxsize=8)
def repeats(seed: int, count: int = 200) -> Repeats:
    """Draw so many samples; of the first five also compare the formula with members of the ball."""
    g = generator(seed + 500)
    suprema, complexities, remembered, largest, gap = [], [], [], 0.0, 0.0
    for k in range(count):
        drawn = torch.randint(0, ATOMS, (SAMPLES,), generator=g)
        counts = torch.bincount(drawn, minlength=ATOMS).double()
        value, table = memory_deviation(counts, RADIUS, RHO)
        suprema.append(value)
        complexities.append(memory_complexity(counts, RADIUS))
        remembered.append(_excess((counts > 0).double() / RHO, counts))
        largest = max(largest, RHO * float(table.max()))
        if k < 5:
            gap = max(gap, abs(_excess(table, counts) - value))
    return Repeats(tuple(suprema), tuple(complexities), largest, gap, tuple(remembered))


def _excess(table: Tensor, counts: Tensor) -> float:
    """Return expected minus mean loss of a member, from its values of yf."""
    loss = (1 - RHO * table).clamp(0, 1)
    return float(loss.mean() - (counts * loss).sum() / counts.sum())


# --- the class that attains the factor 2 --------------------------------------------------------

MANY, FREE = 200_000, 0.5  # atoms, and the share of them on which a table is free


def free_deviation(drawn: Tensor, atoms: int, free: int) -> tuple[float, float]:
    r"""Return :math:`\sup_f(R-R_S)` and :math:`\mathfrak R_S` for tables free on ``free`` atoms.

    f is ±1 on the first ``free`` atoms and the label elsewhere; the loss is
    :math:`\tfrac12(1-yf)`, so :math:`\rho=\tfrac12` and c = 1. The worst table is right on the
    atoms that the sample (``drawn``) has met and wrong on the other free ones. An atom met c times
    adds the mean modulus of a sum of c signs, :math:`c\binom{c-1}{\lfloor(c-1)/2\rfloor}2^{1-c}`,
    to :math:`n\,\mathfrak R_S`.
    """
    counts = torch.unique(drawn[drawn < free], return_counts=True)[1].tolist()
    moduli = [c * math.comb(c - 1, (c - 1) // 2) / 2 ** (c - 1) for c in counts]
    return (free - len(counts)) / atoms, sum(moduli) / len(drawn)


def tried_deviation(drawn: Tensor, atoms: int, free: int) -> tuple[float, float]:
    """Return the same two numbers by trying all tables and all signs: for a handful of atoms."""
    met = drawn.tolist()
    tables = [t + (1,) * (atoms - free) for t in itertools.product((1, -1), repeat=free)]
    wrong = [[(1 - f) / 2 for f in t] for t in tables]  # the labels are 1
    worst = max(sum(w) / atoms - sum(w[x] for x in met) / len(met) for w in wrong)
    tosses = list(itertools.product((1, -1), repeat=len(met)))
    fits = [max(sum(e * t[x] for e, x in zip(toss, met)) for t in tables) for toss in tosses]
    return worst, sum(fits) / len(tosses) / len(met)


@lru_cache(maxsize=8)
def free_repeats(seed: int, count: int = 200) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Draw so many samples of SAMPLES atoms; return suprema and complexities."""
    g, free = generator(seed + 600), round(FREE * MANY)
    drawn = torch.randint(0, MANY, (count, SAMPLES), generator=g)
    suprema, complexities = zip(*(free_deviation(one, MANY, free) for one in drawn))
    return suprema, complexities
