"""Plain iteration, how far a map spreads limits and pairs of states, and all its equilibria."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deqbook.activations import Activation
from deqbook.linalg import eye
from deqbook.models import EquilibriumModel, ReLUImplicit
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


def worst_stretch(model: EquilibriumModel, W: Tensor) -> float:
    """Return by how much the cell moves the worst pair of states there is apart.

    All units are active, and the pair differs along the top singular vector of ``W``.
    """
    top = torch.linalg.svd(W)[2][:1]
    up = model.map(torch.full_like(top, 100.0))
    return float((up(top) - up(0 * top)).norm())


def aligned(gamma: float, m: int = 16) -> tuple[ReLUImplicit, Tensor]:
    """Return the network that attains the bounds of the scaled network, and an input for it.

    W is 2√m times the projection on the mean, so ‖W‖ = 2√m, and the features are constant, 3/√m.
    """
    one = torch.ones(m, m, dtype=torch.float64)
    model = ReLUImplicit(2 / math.sqrt(m) * one, one[:, :1], one[0], one[0], gamma)
    return model.requires_grad_(False), 3 * one[:1, :1]


def equilibria(W: Tensor, q: Tensor) -> list[Tensor]:
    """Return all solutions of z = relu(Wz + q), for every row of q, by trying all active sets.

    ``W`` is (m, m) with no I - DW singular, D a diagonal of zeros and ones.

    >>> W, q = torch.tensor([[0.0, -2.0], [-2.0, 0.0]]), torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    >>> [len(one) for one in equilibria(W.double(), q.double())]
    [3, 1]
    """
    m = len(W)
    sets = torch.cartesian_prod(*[torch.tensor([False, True])] * m).reshape(-1, m)
    on = sets.double()
    states = torch.linalg.solve(eye(m) - on[:, :, None] * W, on[:, :, None] * q.mT).mT
    fits = ((states @ W.mT + q > 0) == sets[:, None, :]).all(dim=2)
    return [states[fits[:, i], i] for i in range(len(q))]


def steep(slope: float) -> Activation:
    """Return max(st, st/4), whose Lipschitz constant is s."""

    def value(t: Tensor) -> Tensor:
        return torch.maximum(slope * t, slope * t / 4)

    def slopes(t: Tensor) -> Tensor:
        return torch.where(t > 0, slope, slope / 4)

    return Activation("steep", value, slopes, _no_prox, lipschitz=slope)


def _no_prox(p: Tensor, alpha: float) -> Tensor:
    raise NotImplementedError("an activation steeper than 1 is no proximal map.")
