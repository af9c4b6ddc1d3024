r"""Networks with a continuum of equilibria, known exactly, and the equilibrium to be selected.

Take a unit vector v with entries of both signs, a square W with :math:`\|W\|=1` whose first left
singular vector is v and whose other singular values are below 1, some :math:`s_0>0`, and
:math:`b=(I-WW^\top)s_0`. The equilibria of :math:`T(z)=W^\top\sigma(Wz+b)` with ReLU are exactly

.. math:: \{W^\top(s_0+tv):\ s_0+tv\ge0\}=\{p+tq:\ t_{\min}\le t\le t_{\max}\},\quad
          p=W^\top s_0,\ q=W^\top v,\ \|q\|=1.

The minimiser of a convex R over this segment is a clipped number t.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.linalg import operator_norm
from deqbook.regularize import RankOne, SquaredDistance
from deqbook.runtime import generator, normal

__all__ = ["Segment", "random_segment", "segment", "starts"]


@dataclass(frozen=True)
class Segment:
    """The tied layer T and its segment of equilibria p + tq, low ≤ t ≤ high."""

    W: Tensor
    b: Tensor
    p: Tensor
    q: Tensor
    low: float
    high: float

    def T(self, z: Tensor) -> Tensor:
        """Return Wᵀσ(Wz + b), row by row."""
        return torch.relu(z @ self.W.mT + self.b) @ self.W

    def point(self, t: float | Tensor) -> Tensor:
        """Return p + tq, a row for every t."""
        return self.p + torch.as_tensor(t, dtype=self.p.dtype)[..., None] * self.q

    def coordinate(self, z: Tensor) -> Tensor:
        """Return t, the coordinate of z along the segment."""
        return (z - self.p) @ self.q

    def nearest(self, a: Tensor) -> Tensor:
        """Return the equilibrium with the least ½‖z-a‖², row by row."""
        return self.point(self.coordinate(a).clamp(self.low, self.high))

    def selected(self, R: SquaredDistance | RankOne) -> Tensor:
        """Return the equilibrium with the least R."""
        if isinstance(R, SquaredDistance):
            return self.nearest(R.a)
        t = (R.tau - self.p @ R.w) / (self.q @ R.w)
        return self.point(t.clamp(self.low, self.high))

    def plain(self, z: Tensor, steps: int = 1000) -> Tensor:
        """Return T applied ``steps`` times."""
        for _ in range(steps):
            z = self.T(z)
        return z

    @property
    def norm(self) -> float:
        """Return ‖W‖, which is 1."""
        return operator_norm(self.W)


def segment(s0: Tensor, v: Tensor, singular: Tensor, g: torch.Generator) -> Segment:
    """Build the instance; the free singular vectors of W are drawn from g."""
    if not ((s0 > 0).all() and (v < 0).any() and (v > 0).any()):
        raise ValueError("need s0 > 0 and a v with entries of both signs; else no segment is left.")
    if not (singular[0] == 1 and (singular[1:] < 1).all()):
        raise ValueError(f"singular values must be 1 and then below 1, got {singular.tolist()}.")
    m, v = len(s0), v / v.norm()
    left = torch.linalg.qr(torch.cat([v[:, None], normal(m, m - 1, g=g)], dim=1))[0]
    left[:, 0] = v  # the factorisation is free to flip its sign
    right = torch.linalg.qr(normal(m, m, g=g))[0]
    W = left * singular @ right.mT
    b = s0 - W @ (W.mT @ s0)
    low, high = -(s0 / v)[v > 0].min(), -(s0 / v)[v < 0].max()
    return Segment(W, b, s0 @ W, v @ W, float(low), float(high))


def random_segment(seed: int, m: int = 4) -> Segment:
    """Draw v with mixed signs, s₀ in (0.5, 2) and the singular values 1, 0.85 … 0.3."""
    g = generator(seed)
    v = normal(m, g=g).abs() + 0.3  # no entry near 0: the segment is not overly long
    v[1::2] *= -1
    s0 = 0.5 + 1.5 * torch.rand(m, generator=g, dtype=torch.float64)
    below = torch.linspace(0.85, 0.3, m - 1, dtype=torch.float64)
    singular = torch.cat([torch.ones(1, dtype=torch.float64), below])
    return segment(s0, v, singular, g)


def starts(case: Segment, n: int, g: torch.Generator, radius: float = 3.0) -> Tensor:
    """Draw n starts around the middle of the segment."""
    middle = case.point((case.low + case.high) / 2)
    return middle + radius * normal(n, len(case.p), g=g)
