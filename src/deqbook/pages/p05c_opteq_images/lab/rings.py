"""A ring around a disc: what a flow in the plane cannot separate and OptEq can."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from deqbook.activations import Activation, relu
from deqbook.models import OptEq
from deqbook.pages.p05c_opteq_images.lab.baselines import NeuralODE
from deqbook.runtime import generator

CIRCLE = 2000  # points
EDGE = 0.6  # a unit looks beyond this radius
# Some direction is within π/8 of every point of the circle, so one unit is at least this active.
LIFT = 0.3 * (math.cos(math.pi / 8) - EDGE)


def rings(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw n points of a disc of radius ½, label -1, and n of the ring from 1 to 1½, label +1."""
    u = torch.rand(4, n, generator=g, dtype=torch.float64)
    radius, angle = torch.cat([0.5 * u[0].sqrt(), 1 + 0.5 * u[1]]), 2 * math.pi * u[2:].flatten()
    y = torch.ones(2 * n, dtype=torch.float64)
    y[:n] = -1
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), y


@lru_cache(maxsize=16)
def trained_flow(seed: int, updates: int = 60) -> NeuralODE:
    """Return a planar flow, trained to put the ring above the disc."""
    flow = NeuralODE(None, 2, 16, 1, steps=5, seed=seed, dtype=torch.float64)
    x, y = rings(100, generator(seed))
    shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([*flow.parameters(), shift], lr=2e-2)
    for _ in range(updates):
        optimiser.zero_grad()
        F.softplus(-y * (flow(x)[:, 0] + shift)).mean().backward()
        optimiser.step()
    return flow


def lifted_flow(seed: int) -> NeuralODE:
    """Return a flow with one more dimension, into which it lifts what is outside radius 0.6."""
    flow = NeuralODE(None, 2, 8, 1, augmented=1, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for p in flow.parameters():
            p.zero_()
        flow.A[:, :2], flow.a[:], flow.B[2], flow.V[0, 2] = _directions(seed), -EDGE, 1.0, 1.0
    return flow


def ring_opteq(seed: int, sigma: Activation = relu) -> OptEq:
    """Return an OptEq with a state of width 1 that is 0 on the disc and positive on the ring.

    Eight units look in eight directions: σ(0.3 z + ⟨u_i, x⟩ - 0.6). Inside radius ½ all are silent.
    ‖W‖ = 0.3 √8 = 0.85, so there is one equilibrium.
    """
    W = torch.full((8, 1), 0.3, dtype=torch.float64)
    b = torch.full((8,), -EDGE, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    return OptEq(W, _directions(seed), b, one, sigma=sigma)


def _directions(seed: int) -> Tensor:
    """Return eight unit vectors, evenly spaced, the first one at random."""
    first = torch.rand((), generator=generator(seed), dtype=torch.float64)
    t = (torch.arange(8, dtype=torch.float64) + first) * (2 * math.pi / 8)
    return torch.stack([t.cos(), t.sin()], dim=1)


@torch.no_grad()
def above_circle(model: NeuralODE | OptEq, steps: int = 40) -> float:
    """Return the output at the centre minus the least output on the unit circle."""
    t = torch.arange(CIRCLE, dtype=torch.float64) * (2 * math.pi / CIRCLE)
    x = torch.cat([torch.zeros(1, 2, dtype=torch.float64), torch.stack([t.cos(), t.sin()], dim=1)])
    if isinstance(model, OptEq):
        y = model(x, tol=1e-12)[:, 0]
    else:
        y = (model.state(x, steps) @ model.V.mT)[:, 0]
    return float(y[0] - y[1:].min())


@torch.no_grad()
def winding(flow: NeuralODE, steps: int = 40) -> float:
    """Return how often the image of the unit circle winds around the image of its centre."""
    t = torch.arange(CIRCLE + 1, dtype=torch.float64) * (2 * math.pi / CIRCLE)
    x = torch.cat([torch.zeros(1, 2, dtype=torch.float64), torch.stack([t.cos(), t.sin()], dim=1)])
    z = flow.state(x, steps)[:, :2]
    arms = z[1:] - z[0]
    cross = arms[:-1, 0] * arms[1:, 1] - arms[:-1, 1] * arms[1:, 0]
    turns = torch.atan2(cross, (arms[:-1] * arms[1:]).sum(1))
    return float(turns.sum()) / (2 * math.pi)
