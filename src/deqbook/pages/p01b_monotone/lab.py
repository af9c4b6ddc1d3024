"""Explicit monotone problems, and a tied network with a segment of equilibria."""

from __future__ import annotations

import torch
from torch import Tensor

from deqbook.activations import Activation, relu
from deqbook.models import MonDEQ, OptEq
from deqbook.runtime import generator, normal
from deqbook.solvers import Injected, Newton, fixed_point
from deqbook.splitting import ForwardBackward, MonotoneProblem


def rotation_problem(mu: float = 0.5, b: float = 1.0) -> tuple[MonotoneProblem, Tensor]:
    """Return the sharp instance M = [[μ, -b], [b, μ]] with equilibrium (5, 5), all units active."""
    M = torch.tensor([[mu, -b], [b, mu]], dtype=torch.float64)
    z = torch.full((1, 2), 5.0, dtype=torch.float64)
    return MonotoneProblem(torch.eye(2, dtype=torch.float64) - M, z @ M.mT), z


def rotation_shrinks(multiple: float) -> float:
    """Return what 400 forward-backward steps at α = multiple·μ/L² leave of a distance, as a ratio.

    They run on the rotation of :func:`rotation_problem`.
    """
    problem, z = rotation_problem()
    f = ForwardBackward(multiple * problem.mu / problem.L**2).iteration(problem)
    start = z + torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    end = start
    for _ in range(400):
        end = f(end)
    return float((end - z).norm()) / 0.5


def random_problem(seed: int, sigma: Activation = relu) -> tuple[MonotoneProblem, Tensor]:
    """Return a random monotone problem of width 6 and its equilibrium, by Newton's method."""
    g = generator(seed)
    model = MonDEQ.init(6, 6, mu=0.5, seed=seed)
    W, q = model.W.detach(), 2 * normal(4, 6, g=g)
    update = Injected(lambda z, q: sigma(z @ W.mT + q), q)
    z = fixed_point(update, torch.zeros_like(q), solver=Newton(), tol=1e-13).z
    return MonotoneProblem(W, q, sigma), z


def segment_instance() -> tuple[OptEq, Tensor, Tensor]:
    r"""Return an OptEq with ‖W‖ = 1 whose equilibria form a segment, and its two end points.

    Take a unit v with mixed signs, W with first left singular vector v and singular values
    1, 0.8, 0.6, 0.3, some s₀ > 0 and b = (I-WWᵀ)s₀. Then every Wᵀ(s₀ + tv) with s₀ + tv ≥ 0 is
    an equilibrium: here t ∈ [-1, 3].
    """
    v = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64) / 2
    s0 = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
    g = generator(0)
    Q = torch.linalg.qr(torch.cat([v[:, None], normal(4, 3, g=g)], dim=1))[0]
    R = torch.linalg.qr(normal(4, 4, g=g))[0]
    W = Q @ torch.diag(torch.tensor([1.0, 0.8, 0.6, 0.3], dtype=torch.float64)) @ R.mT
    v = Q[:, 0] * torch.sign(Q[0, 0])
    b = s0 - W @ (W.mT @ s0)
    eye = torch.eye(4, dtype=torch.float64)
    model = OptEq(W, torch.zeros(4, 1, dtype=torch.float64), b, eye)
    return model, (s0 - v) @ W, (s0 + 3 * v) @ W
