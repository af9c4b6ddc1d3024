"""Plain iteration, and how far a map spreads limits and pairs of states."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deqbook.models import EquilibriumModel
from deqbook.runtime import normal
from deqbook.solvers import Map, fixed_point


def spread(f: Map, z0: Tensor, other: Tensor, *, steps: int = 1000) -> float:
    """Return the largest distance between the limits reached from two starts (inf if none)."""
    ends = [fixed_point(f, z, tol=1e-10, max_steps=steps, throw=False) for z in (z0, other)]
    if not all(bool(e.converged.all()) for e in ends):
        return math.inf
    return float((ends[0].z - ends[1].z).norm(dim=1).max())


def picard_states(f: Map, z0: Tensor, steps: int) -> Tensor:
    """Return z⁰ … z^steps of plain iteration."""
    states = [z0]
    for _ in range(steps):
        states.append(f(states[-1]))
    return torch.stack(states)


def expansion(f: Map, like: Tensor, g: torch.Generator, pairs: int = 20) -> float:
    """Return the largest ‖f(x)-f(y)‖/‖x-y‖ over random pairs of states."""
    worst = 0.0
    for _ in range(pairs):
        x, y = (normal(*like.shape, g=g) for _ in range(2))
        ratio = (f(x) - f(y)).norm(dim=1) / (x - y).norm(dim=1)
        worst = max(worst, float(ratio.max()))
    return worst


def worst_stretch(model: EquilibriumModel, W: Tensor) -> float:
    """Return by how much the cell moves the worst pair of states there is apart.

    All units are active, and the pair differs along the top singular vector of ``W``.
    """
    top = torch.linalg.svd(W)[2][:1]
    up = model.map(torch.full_like(top, 100.0))
    return float((up(top) - up(0 * top)).norm())
