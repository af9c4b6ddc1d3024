r"""The networks that deep OptEq is compared with: explicit, flowing, monotone (xie2022, Table 1b).

Each has the same feature extractor :math:`x=\sigma(Ex_0+e)` as :class:`DenseOptEq` and a linear
read-out; what lies between differs. They are as small as a fair count of parameters wants them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deqbook.models.dense import MonDEQ
from deqbook.pages.p05c_opteq_images.lab.networks import conv
from deqbook.runtime import generator, normal


def _layer(h: int, d: int, g: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Draw weights of a ReLU layer, N(0, 2/d), and a bias 0."""
    return normal(h, d, g=g, dtype=dtype) * math.sqrt(2 / d), torch.zeros(h, dtype=dtype)


class Perceptron(nn.Module):
    """The explicit network: ReLU layers of the given widths, then a linear read-out."""

    def __init__(self, widths: Sequence[int], k: int, *, seed: int, dtype: torch.dtype):
        super().__init__()
        g = generator(seed)
        drawn = [_layer(h, d, g, dtype) for d, h in pairwise(widths)]
        self.Ws = nn.ParameterList([nn.Parameter(W) for W, _ in drawn])
        self.bs = nn.ParameterList([nn.Parameter(b) for _, b in drawn])
        self.V = nn.Parameter(normal(k, widths[-1], g=g, dtype=dtype) / math.sqrt(widths[-1]))

    def state(self, x: Tensor) -> Tensor:
        """Return the last hidden layer."""
        for W, b in zip(self.Ws, self.bs):
            x = torch.relu(x @ W.mT + b)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Return V times the last hidden layer."""
        return self.state(x) @ self.V.mT


class NeuralODE(nn.Module):
    r"""The flow :math:`\dot z=B\sigma(Az+a)+c` from the features to time 1, by Runge-Kutta.

    ``augmented`` zeros are appended to the features first. Without them the map from features to
    states is a homeomorphism, whatever the weights: it cannot undo a ring around a disc.
    """

    def __init__(
        self,
        pixels: int | None,
        features: int,
        hidden: int,
        k: int,
        *,
        augmented: int = 0,
        steps: int = 5,
        seed: int,
        dtype: torch.dtype,
    ):
        super().__init__()
        g = generator(seed)
        self.extractor = None
        if pixels is not None:
            self.extractor = nn.ParameterList(
                [nn.Parameter(t) for t in _layer(features, pixels, g, dtype)]
            )
        m = features + augmented
        self.augmented, self.steps = augmented, steps
        A, a = _layer(hidden, m, g, dtype)
        B = normal(m, hidden, g=g, dtype=dtype) / math.sqrt(hidden)
        self.A, self.a, self.B = nn.Parameter(A), nn.Parameter(a), nn.Parameter(B)
        self.c = nn.Parameter(torch.zeros(m, dtype=dtype))
        self.V = nn.Parameter(normal(k, m, g=g, dtype=dtype) / math.sqrt(m))

    def velocity(self, z: Tensor) -> Tensor:
        """Return dz/dt."""
        return torch.relu(z @ self.A.mT + self.a) @ self.B.mT + self.c

    def state(self, x: Tensor, steps: int | None = None) -> Tensor:
        """Return the state at time 1, by the classical method of order four."""
        if self.extractor is not None:
            E, e = self.extractor
            x = torch.relu(x @ E.mT + e)
        steps = self.steps if steps is None else steps
        z, dt = F.pad(x, (0, self.augmented)), 1 / steps
        for _ in range(steps):
            k1 = self.velocity(z)
            k2 = self.velocity(z + dt / 2 * k1)
            k3 = self.velocity(z + dt / 2 * k2)
            k4 = self.velocity(z + dt * k3)
            z = z + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Return V times the state at time 1."""
        return self.state(x) @ self.V.mT


class Monotone(nn.Module):
    """A monotone DEQ on trained features, solved by splitting and differentiated implicitly."""

    def __init__(
        self, pixels: int, features: int, m: int, k: int, *, seed: int, dtype: torch.dtype
    ):
        super().__init__()
        g = generator(seed)
        E, e = _layer(features, pixels, g, dtype)
        self.E, self.e = nn.Parameter(E), nn.Parameter(e)
        body = MonDEQ.init(m, features, mu=0.5, seed=seed, dtype=dtype)
        U = normal(m, features, g=g, dtype=dtype) / math.sqrt(features)
        self.body = MonDEQ(body.A.detach(), body.B.detach(), U, body.a.detach(), 0.5)
        self.body.a.requires_grad_(False)  # its read-out is one number; ours is V
        self.V = nn.Parameter(normal(k, m, g=g, dtype=dtype) / math.sqrt(m))

    def state(self, x: Tensor) -> Tensor:
        """Return the equilibrium."""
        return self.body.state(torch.relu(x @ self.E.mT + self.e), tol=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Return V times the equilibrium."""
        return self.state(x) @ self.V.mT


class FCN(nn.Module):
    """A fully convolutional network: 3 × 3 ReLU layers that keep the size, a read-out per pixel.

    With as many layers as ``channels`` has entries, a pixel sees no further than that many pixels.
    """

    def __init__(
        self, colours: int, channels: Sequence[int], k: int, *, seed: int, dtype: torch.dtype
    ):
        super().__init__()
        g = generator(seed)
        pairs = list(zip((colours, *channels), channels))
        self.Ws = nn.ParameterList(
            [
                nn.Parameter(normal(h, c, 3, 3, g=g, dtype=dtype) * math.sqrt(2 / (9 * c)))
                for c, h in pairs
            ]
        )
        self.bs = nn.ParameterList(
            [nn.Parameter(torch.zeros(h, 1, 1, dtype=dtype)) for h in channels]
        )
        last = channels[-1]
        self.V = nn.Parameter(normal(k, last, g=g, dtype=dtype) / math.sqrt(last))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of every pixel, (n, k, height, width)."""
        for W, b in zip(self.Ws, self.bs):
            x = torch.relu(conv(x, W) + b)
        return torch.einsum("km,nmij->nkij", self.V, x)
