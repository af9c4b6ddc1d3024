"""Explicit monotone problems, tied networks at the edge, and convex functions of one variable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.activations import Activation, relu
from deqbook.linalg import eye
from deqbook.models import DeepOptEq, MonDEQ, OptEq
from deqbook.runtime import generator, normal
from deqbook.solvers import Injected, Map, Newton, fixed_point
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
    model = OptEq(W, torch.zeros(4, 1, dtype=torch.float64), b, eye(4))
    return model, (s0 - v) @ W, (s0 + 3 * v) @ W


def tied_layers(
    Ws: Sequence[Tensor], bs: Sequence[Tensor], alpha: float, sigma: Activation = relu
) -> Map:
    """Return the composition of the tied layers as a map of the state, without an input."""
    size = Ws[0].shape[1]
    none = [torch.zeros(len(W), 1, dtype=W.dtype) for W in Ws]
    model = DeepOptEq(Ws, none, bs, eye(size), alpha=alpha, sigma=sigma).requires_grad_(False)
    q = model.inject(torch.zeros(1, 1, dtype=torch.float64))
    return lambda z: model.map(q.expand(len(z), -1))(z)


def nearly_parallel(count: int, alpha: float, norm: float = 1.0) -> Map:
    """Return layers that average with projections on lines, each line turned by 0.01.

    One unit a layer, always active: W_l is a unit row, W_lᵀW_l the projection on its line.
    """
    turns = [0.01 * i for i in range(count)]
    Ws = [norm * torch.tensor([[math.cos(t), math.sin(t)]], dtype=torch.float64) for t in turns]
    return tied_layers(Ws, [torch.full((1,), 100.0, dtype=torch.float64)] * count, alpha)


def least_averaging(T: Map, size: int) -> float:
    """Return the least ζ for which T, affine near zero, is ζ-averaged: ‖T-(1-ζ)I‖ ≤ ζ."""
    matrix = (T(eye(size)) - T(torch.zeros(1, size, dtype=torch.float64))).mT
    low, high = 0.0, 1.0
    for _ in range(50):
        zeta = (low + high) / 2
        fits = float(torch.linalg.matrix_norm(matrix - (1 - zeta) * eye(size), 2)) <= zeta + 1e-13
        low, high = (low, zeta) if fits else (zeta, high)
    return high


@dataclass(frozen=True)
class Kinked:
    """f(x) = max_i (a_i x + b_i) for x ≥ ``start``, infinite below; or the minimum, not convex.

    ``closed`` says whether f is finite at ``start`` itself.
    """

    slopes: Tensor
    offsets: Tensor
    start: float
    closed: bool = True
    convex: bool = True

    def __call__(self, x: Tensor) -> Tensor:
        """Return f(x), (n,)."""
        values = self.slopes * x[:, None] + self.offsets
        best = values.amax(dim=1) if self.convex else values.amin(dim=1)
        inside = x >= self.start if self.closed else x > self.start
        return torch.where(inside, best, math.inf)

    def subdifferential(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends of the interval of slopes at each x; it is empty outside the domain."""
        values = self.slopes * x[:, None] + self.offsets
        best = values.amax(dim=1) if self.convex else values.amin(dim=1)
        active = (values - best[:, None]).abs() <= 1e-9
        low = torch.where(active, self.slopes, math.inf).amin(dim=1)
        high = torch.where(active, self.slopes, -math.inf).amax(dim=1)
        if self.closed:
            low = torch.where(x == self.start, -math.inf, low)
        else:
            low = torch.where(x == self.start, math.inf, low)
            high = torch.where(x == self.start, -math.inf, high)
        return low, high

    def points(self) -> Tensor:
        """Return the start, the kinks to its right, and a grid."""
        near = torch.eye(len(self.slopes), dtype=self.slopes.dtype)
        rise, run = self.offsets[:, None] - self.offsets, self.slopes - self.slopes[:, None]
        crossings = (rise / (run + near)).flatten()
        grid = self.start + torch.linspace(0, 8, 161, dtype=torch.float64)
        return torch.cat([grid, crossings[crossings > self.start]])

    def resolvent(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return x with p ∈ x + ∂f(x), by bisection, and how far p is from that set there."""
        low, high = torch.full_like(p, self.start), torch.full_like(p, 60.0)
        for _ in range(80):  # on x + (right slope), an increasing function
            mid = (low + high) / 2
            above = mid + self.subdifferential(mid)[1] >= p
            low, high = torch.where(above, low, mid), torch.where(above, mid, high)
        misses = []
        for x in (low, high):
            least, most = self.subdifferential(x)
            misses.append(torch.maximum(x + least - p, p - x - most).clamp(min=0))
        return torch.where(misses[0] <= misses[1], low, high), torch.minimum(*misses)


def kinked(seed: int, *, closed: bool = True, convex: bool = True) -> Kinked:
    """Draw six affine pieces and the end of the domain."""
    g = generator(seed)
    return Kinked(normal(6, g=g), normal(6, g=g), -1 - float(normal(1, g=g).abs()), closed, convex)
