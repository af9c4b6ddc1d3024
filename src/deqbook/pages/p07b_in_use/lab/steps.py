r"""Prefix parity on a line: networks that see three neighbours a step, trained on short strings.

The string is :math:`x\in\{\pm1\}^L`; the target at site i is the parity of the ones up to i. In
signs it is :math:`y_i=x_iy_{i-1}` up to a sign convention: one rule, applied site by site. States
are (n, L, C); a cell looks one site to the left and one to the right.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deqbook.models import EquilibriumModel
from deqbook.runtime import generator, normal
from deqbook.solvers import Picard
from deqbook.wellposed import Unstructured

How = Literal["random", "implicit", "fixed", "start only", "untied"]
LONGEST = 12  # of the training strings


def strings(n: int, length: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw n strings of fair signs, and the parity (0 or 1) of the ones up to each site."""
    bits = torch.randint(0, 2, (n, length), generator=g)
    return (2 * bits - 1).double(), (bits.cumsum(dim=1) % 2).double()


def parity_cell(x: Tensor, *, closed: bool = True) -> Callable[[Tensor], Tensor]:
    """Return z ↦ (-x_i z_{i-1})_i with z_0 = 1 fixed; else (``closed=False``) z_0 is the last z."""

    def step(z: Tensor) -> Tensor:
        first = torch.ones_like(z[:, :1]) if closed else z[:, -1:]
        return -x * torch.cat([first, z[:, :-1]], dim=1)

    return step


def neighbours(z: Tensor) -> Tensor:
    """Put the left neighbour, the site and the right one side by side; zero beyond the ends."""
    left, right = F.pad(z, (0, 0, 1, 0))[:, :-1], F.pad(z, (0, 0, 0, 1))[:, 1:]
    return torch.cat([left, z, right], dim=2)


class Line(EquilibriumModel):
    """z = tanh(M relu(W·neighbours(z) + b + q)), q = U·neighbours(x), one score a site."""

    default_solver = Picard()

    def __init__(self, channels: int, *, seed: int, layers: int = 1):
        super().__init__()
        g = generator(seed)

        def draw(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(normal(layers, rows, columns, g=g) / math.sqrt(rows))

        self.layers = layers
        self.U, self.V = draw(3, channels), draw(channels, 1)
        self.W, self.M = draw(3 * channels, channels), draw(channels, channels)
        self.b = nn.Parameter(torch.zeros(layers, channels, dtype=torch.float64))

    def inject(self, x: Tensor) -> Tensor:
        """Return what the string contributes to every step, (n, L, C)."""
        return neighbours(x[..., None]) @ self.U[0]

    def weights(self) -> tuple[Tensor, ...]:
        """Return W, M and b of the first layer: of a tied network there is no other."""
        return self.W[0], self.M[0], self.b[0]

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return one step."""
        W, M, b = weights
        return torch.tanh(torch.relu(neighbours(z) @ W + b + q) @ M)

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return a score for each site, (n, L); positive says odd."""
        return (z @ self.V[0])[..., 0]

    def structure(self) -> Unstructured:
        """Nothing is certified here."""
        return Unstructured("a cell on a line")

    def run(self, q: Tensor, steps: int, z: Tensor | None = None) -> Tensor:
        """Return the state after so many steps; an untied network uses layer k in step k."""
        z = torch.zeros_like(q) if z is None else z
        for k in range(steps):
            layer = k if self.layers > 1 else 0
            z = self.f(z, q, self.W[layer], self.M[layer], self.b[layer])
        return z


@dataclass(frozen=True)
class Learner:
    """A network after training: how, with what loss, and halfway there."""

    how: How
    model: Line
    loss: float  # running mean over the last batches
    batches: int
    halfway: Line  # when the running loss first fell below 0.3

    @property
    def learnt(self) -> bool:
        """Say whether the training loss reached its goal."""
        return self.loss < GOAL


GOAL = 0.02


def learn(
    how: How, *, seed: int, channels: int = 16, batches: int = 200, rate: float = 1e-2
) -> Learner:
    """Train on strings of length 4 … 12 until the running loss is below ``GOAL``.

    random      half the loss after L steps, half after a random number between L and 2L, of which
                a random number at the end is differentiated
    implicit    2L steps without record, then the implicit gradient (L terms of the Neumann series)
    fixed       12 steps, all differentiated
    start only  the same, but the string is the start and is not injected again
    untied      12 layers with weights of their own, narrow enough for as many parameters
    """
    width = 4 if how == "untied" else channels
    model = Line(width, seed=seed, layers=LONGEST if how == "untied" else 1)
    adam, g = torch.optim.Adam(model.parameters(), lr=rate), generator(100 + seed)
    running, halfway, used = 1.0, None, 0
    for batch in range(1, batches + 1):
        length = int(torch.randint(4, LONGEST + 1, (1,), generator=g))
        x, y = strings(32, length, g)
        loss = _loss(how, model, x, y, g)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        running, used = 0.9 * running + 0.1 * float(loss.detach()), batch
        if halfway is None and running < 0.3:
            halfway = copy.deepcopy(model)
        if running < GOAL:
            break
    return Learner(how, model, running, used, halfway or copy.deepcopy(model))


def _loss(how: How, model: Line, x: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    def error(z: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model.readout(z, q), y)

    q, length = model.inject(x), x.shape[1]
    if how == "random":
        total = int(torch.randint(length, 2 * length + 1, (1,), generator=g))
        last = int(torch.randint(1, length + 1, (1,), generator=g))
        with torch.no_grad():
            z = model.run(q, total - last)
        return (error(model.run(q, last, z)) + error(model.run(q, length))) / 2
    if how == "implicit":
        with torch.no_grad():
            z = model.run(q, 2 * length)
        return error(_attach(model, z, q, length))
    if how == "start only":
        return error(model.run(torch.zeros_like(q), LONGEST, q))
    return error(model.run(q, LONGEST))


class _Attach(torch.autograd.Function):
    """The identity, whose pull-back of g is the adjoint state v = g + Jᵀg + … + (Jᵀ)ᵏg."""

    @staticmethod
    def forward(ctx, image, pull, terms):  # type: ignore[no-untyped-def]
        ctx.pull, ctx.terms = pull, terms
        return image.view_as(image)

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        v = g
        for _ in range(ctx.terms):
            v = g + ctx.pull(v)
        return v, None, None


def _attach(model: Line, z: Tensor, q: Tensor, terms: int) -> Tensor:
    at = z.detach().requires_grad_()
    weights = tuple(w.detach() for w in model.weights())
    with torch.enable_grad():
        image = model.f(at, q.detach(), *weights)

    def pull(v: Tensor) -> Tensor:
        return torch.autograd.grad(image, at, v, retain_graph=True)[0]

    return _Attach.apply(model.f(z.detach(), q, *model.weights()), pull, terms)


@torch.no_grad()
def accuracy(learner: Learner, length: int, steps: list[int], n: int = 60) -> list[float]:
    """Return the share of sites answered right after each number of steps, on fresh strings."""
    model, (x, y) = learner.model, strings(n, length, generator(7))
    q = model.inject(x)
    drive = torch.zeros_like(q) if learner.how == "start only" else q
    z, done, found = (q if learner.how == "start only" else torch.zeros_like(q)), 0, []
    for k in steps:
        z = model.run(drive, k - done, z)
        done = k
        found.append(float(((model.readout(z, q) > 0) == (y > 0.5)).double().mean()))
    return found


def light_cone(steps: int, length: int) -> float:
    """Return the best expected accuracy after so many steps: 1 in the cone, ½ beyond it."""
    seen = min(steps + 1, length)
    return (seen + (length - seen) / 2) / length


@dataclass(frozen=True)
class Starts:
    """Per string: how well the states from several starts agree, and how many sites are right."""

    alignment: Tensor  # least cosine with the state from zero
    correct: Tensor  # share of sites answered right from zero
    worst: Tensor  # the same from the worst start
    residual: Tensor  # ‖f(z) - z‖ / max(1, ‖f(z)‖) from zero


@torch.no_grad()
def compare_starts(model: Line, length: int, *, n: int = 60, seed: int = 0) -> Starts:
    """Run 4L steps from zero, from random states, and from the state of another string."""
    g = generator(500 + seed)
    x, y = strings(n, length, g)
    q = model.inject(x)
    zero = model.run(q, 4 * length)
    others = [torch.tanh(normal(*q.shape, g=g)), zero.roll(1, dims=0)]
    ends = [zero, *(model.run(q, 4 * length, start) for start in others)]
    cosines = [F.cosine_similarity(zero.flatten(1), z.flatten(1), dim=1) for z in ends]
    right = [((model.readout(z, q) > 0) == (y > 0.5)).double().mean(dim=1) for z in ends]
    image = model.run(q, 1, zero).flatten(1)
    gap = (image - zero.flatten(1)).norm(dim=1) / image.norm(dim=1).clamp(min=1)
    return Starts(torch.stack(cosines).amin(dim=0), right[0], torch.stack(right).amin(dim=0), gap)
