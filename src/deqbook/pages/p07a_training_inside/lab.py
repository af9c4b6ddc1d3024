"""Cells before and after training: data, training with a capped solver, what is watched."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from torch import Tensor
from torch.func import functional_call

from deqbook.data import load
from deqbook.implicit import IFT, JFB, Adjoint, Phantom, Unroll
from deqbook.kernels import empirical_ntk
from deqbook.landscape import (
    Lanczos,
    Weights,
    filter_direction,
    filter_norms,
    hessian_product,
    lanczos,
    loss_surface,
    path_ratio,
    record,
)
from deqbook.models import MonDEQ, ResidualCell
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Anderson, Map, NotConverged, Solution, Solver

SINGLE = torch.float32  # the cells are trained as in practice; what is proved runs in double
CELL = {"channels": 8, "inner": 8}


def mnist_patches(n: int) -> Tensor:
    """Return n MNIST test images pooled to 14×14, as (n, 1, 14, 14)."""
    images = load("mnist10", norm=None, flatten=False, n_test=n).x_test
    return F.avg_pool2d(images, 2)


def cell_trajectory(
    std: float | tuple[float, float], seed: int, *, n: int = 16, steps: int = 50
) -> tuple[Tensor, Tensor]:
    """Return the states of Anderson's iterations on a random cell, and their residuals."""
    model = ResidualCell.init(std=std, seed=seed)
    with torch.no_grad():
        q = model.inject(mnist_patches(n))
        states, found = record(model.map(q), model.start(q), solver=Anderson(memory=5), steps=steps)
    return states, found.trace


# --- data and training -------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """Images (n, colours, height, width) and their classes."""

    x: Tensor
    y: Tensor

    def first(self, n: int) -> Images:
        """Return the first n of them."""
        return Images(self.x[:n], self.y[:n])

    def double(self) -> Images:
        """Return the same in double precision."""
        return Images(self.x.double(), self.y)


def images(name: str, n_train: int, n_test: int, dtype: torch.dtype = SINGLE) -> tuple[Images, ...]:
    """Return training and test images of a bundled set, pixels averaged two by two."""
    data = load(name, norm=None, flatten=False, n_train=n_train, n_test=n_test, dtype=dtype)
    return tuple(
        Images(F.avg_pool2d(x, 2), y.long())
        for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))
    )


def cell(seed: int, *, colours: int = 1, dtype: torch.dtype = SINGLE) -> ResidualCell:
    """Draw a small residual cell at standard deviation 0.01."""
    return ResidualCell.init(std=0.01, colours=colours, **CELL, seed=seed, dtype=dtype)


@dataclass(frozen=True)
class Capped(Solver):
    """Anderson's method that stops at the cap and says nothing, as experiments with DEQs do."""

    def solve(self, f: Map, z0: Tensor, *, tol: float, max_steps: int, throw: bool) -> Solution:
        """Return the last iterate, converged or not."""
        return Anderson(memory=5).solve(f, z0, tol=tol, max_steps=max_steps, throw=False)


def options(
    depth: int | None, *, phantom: bool = False, tol: float = 1e-2, steps: int = 50
) -> dict[str, Any]:
    """Return what to call a cell with: tied layers, or (``None``) an equilibrium up to a cap."""
    if depth is not None:
        return {"adjoint": Unroll(depth)}
    adjoint: Adjoint = IFT(solver=Capped(), tol=tol, max_steps=steps)
    if phantom:
        adjoint = Phantom(5, damping=0.8)
    return {"solver": Capped(), "adjoint": adjoint, "tol": tol, "max_steps": steps}


@dataclass(frozen=True)
class Snapshot:
    """A network during training and its loss on the training images."""

    epoch: int
    model: ResidualCell
    loss: float


def mean_loss(model: ResidualCell, data: Images, depth: int | None) -> float:
    """Return the mean cross-entropy."""
    with torch.no_grad():
        return float(F.cross_entropy(model(data.x, **options(depth)), data.y))


def accuracy(model: ResidualCell, data: Images, depth: int | None = None) -> float:
    """Return the share of images whose class is found."""
    with torch.no_grad():
        return float((model(data.x, **options(depth)).argmax(dim=1) == data.y).double().mean())


def train(
    model: ResidualCell,
    data: Images,
    *,
    depth: int | None = None,
    epochs: int,
    seed: int,
    rate: float = 1e-2,
    batch: int = 50,
    frozen: tuple[str, ...] = (),
    phantom: bool = False,
) -> list[Snapshot]:
    """Train by Adam with a cosine schedule on the cross-entropy; keep the network of each epoch."""
    trained = [p for name, p in model.named_parameters() if name not in frozen]
    adam = torch.optim.Adam(trained, lr=rate)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, epochs * -(-len(data.y) // batch))
    g, kept = generator(seed), []
    for epoch in range(epochs + 1):
        kept.append(Snapshot(epoch, copy.deepcopy(model), mean_loss(model, data, depth)))
        if epoch == epochs:
            break
        for rows in torch.randperm(len(data.y), generator=g).split(batch):
            adam.zero_grad()
            out = model(data.x[rows], **options(depth, phantom=phantom))
            F.cross_entropy(out, data.y[rows]).backward()
            adam.step()
            cosine.step()
    return kept


# --- what is watched ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Watch:
    """The solver at work on some images: its states, steps, path ratio, and what it separates."""

    states: Tensor
    steps: float
    ratio: float
    separation: float


def separation(features: Tensor, y: Tensor) -> float:
    """Return the variance between the classes' means ÷ the variance inside the classes."""
    centre = features.mean(dim=0)
    groups = [features[y == k] for k in y.unique()]
    between = sum(len(f) * (f.mean(dim=0) - centre).pow(2).sum() for f in groups)
    inside = sum((f - f.mean(dim=0)).pow(2).sum() for f in groups)
    return float(between / inside)


def watch(model: ResidualCell, data: Images, *, tol: float = 1e-3, cap: int = 100) -> Watch:
    """Solve from 0 with Anderson's method and keep all states; features are the pooled states."""
    with torch.no_grad():
        q = model.inject(data.x)
        solver = Anderson(memory=5)
        states, found = record(model.map(q), model.start(q), solver=solver, steps=cap, tol=tol)
        pooled = F.adaptive_avg_pool2d(found.z, 2).flatten(1)
    steps = float(found.steps.double().mean())
    return Watch(states, steps, path_ratio(states), separation(pooled, data.y))


# --- loss surfaces -----------------------------------------------------------------------------

DEPTHS = (6, 11, 18, None)
"""The published comparison: three tied networks, and (``None``) the equilibrium."""

TARGET = 1.8  # training loss of the second protocol; chance is ln 10 = 2.30


def loss_of(
    model: ResidualCell, data: Images, call: dict[str, Any]
) -> Callable[[dict[str, Tensor]], Tensor]:
    """Return the mean cross-entropy as a function of the weights."""
    return lambda w: F.cross_entropy(functional_call(model, w, (data.x,), call), data.y)


def surface(
    model: ResidualCell, data: Images, depth: int | None, seed: int, grid: Sequence[float]
) -> Tensor:
    """Return the loss on a plane of two filter-normalised directions."""
    weights, g = dict(model.named_parameters()), generator(1000 + seed)
    axes = (filter_direction(weights, g), filter_direction(weights, g))
    return loss_surface(loss_of(model, data, options(depth)), weights, axes, grid, grid)


def area(S: Tensor, above: float = 1.0) -> float:
    """Return the share of a surface that lies less than ``above`` over its centre."""
    centre = S[S.shape[0] // 2, S.shape[1] // 2]
    return float((S - centre < above).double().mean())


def rise(S: Tensor) -> float:
    """Return the mean height of a surface over its centre."""
    return float((S - S[S.shape[0] // 2, S.shape[1] // 2]).mean())


def as_double(model: ResidualCell) -> ResidualCell:
    """Return a copy in double precision."""
    return copy.deepcopy(model).double()


def relative_scale(weights: Weights) -> dict[str, Tensor]:
    """Return D: for each entry the norm of its filter ÷ the root of the filter's size."""
    norms = filter_norms(weights)
    return {name: n / n[0].numel() ** 0.5 for name, n in norms.items()}


def settled(model: ResidualCell, data: Images, *, tol: float = 1e-6, cap: int = 300) -> Images:
    """Return the images whose equilibrium is found to that tolerance."""
    found = model.solve(data.x, solver=Anderson(memory=10), tol=tol, max_steps=cap, throw=False)
    return Images(data.x[found.converged], data.y[found.converged])


def sharpness(
    model: ResidualCell, data: Images, depth: int | None, *, steps: int = 6
) -> tuple[Lanczos, int]:
    """Return Ritz values of DHD in double precision, and on how many of the images."""
    model, data = as_double(model), data.double()
    call: dict[str, Any] = options(depth)
    if depth is None:
        data = settled(model, data)
        solver = Anderson(memory=10)
        call = {"solver": solver, "tol": 1e-6, "adjoint": IFT(solver=solver, tol=1e-6)}
    weights = dict(model.named_parameters())
    product, size = hessian_product(loss_of(model, data, call), weights, relative_scale(weights))
    return lanczos(product, normal(size, g=generator(0)), steps), len(data.y)


Operator = Callable[[Tensor], Tensor]


def small_hessian(seed: int, *, exact: bool = True) -> tuple[Operator, Operator, Tensor]:
    """Return u ↦ Hu of a small DEQ, the same by differences of exact gradients, and a vector.

    With ``exact=False`` H is the derivative of the gradient that JFB takes for the true one.
    """
    model = ResidualCell.init(std=0.1, channels=2, inner=2, k=3, groups=1, seed=seed)
    digits = images("mnist10", 3, 1, torch.float64)[0]
    data, solver = Images(F.avg_pool2d(digits.x, 2), digits.y % 3), Anderson(memory=10)
    call = {"solver": solver, "tol": 1e-9, "adjoint": IFT(solver=solver, tol=1e-9)}
    weights = dict(model.named_parameters())
    used = call if exact else call | {"adjoint": JFB()}
    product, size = hessian_product(loss_of(model, data, used), weights)
    slope = torch.func.grad(loss_of(model, data, call))

    def differences(u: Tensor, h: float = 1e-5) -> Tensor:
        pieces = u.split([w.numel() for w in weights.values()])
        sides = []
        for sign in (1, -1):
            moved = {
                k: w.detach() + sign * h * p.reshape(w.shape)
                for (k, w), p in zip(weights.items(), pieces)
            }
            sides.append(torch.cat([g.flatten() for g in slope(moved).values()]))
        return (sides[0] - sides[1]) / (2 * h)

    return product, differences, normal(size, g=generator(seed + 7))


@dataclass(frozen=True)
class Quadratic:
    """The Hessian ``H`` of a small network in all its weights, its loss, and the scales S."""

    weights: dict[str, Tensor]
    loss: float
    H: Tensor
    scale: Tensor

    def part(self, name: str) -> Tensor:
        """Return the places of one weight in the flat vector."""
        places, first = {}, 0
        for key, w in self.weights.items():
            places[key] = torch.arange(first, first + w.numel())
            first += w.numel()
        return places[name]

    def direction(self, g: torch.Generator) -> Tensor:
        """Draw a filter-normalised direction, as a flat vector."""
        drawn = filter_direction(self.weights, g)
        return torch.cat([drawn[name].flatten() for name in self.weights])

    def plain(self, g: torch.Generator) -> Tensor:
        """Draw a direction as long as all weights together, whatever the filters are."""
        flat = torch.cat([w.flatten() for w in self.weights.values()])
        u = normal(len(flat), g=g)
        return float(flat.norm()) * u / u.norm()


def small_quadratic(seed: int, factors: dict[str, float]) -> Quadratic:
    """Return the Hessian of a tied network of depth 3, some weights multiplied by a factor."""
    model = ResidualCell.init(std=(1.0, 0.3), channels=2, inner=2, k=3, groups=1, seed=seed)
    digits = images("mnist10", 4, 1, torch.float64)[0]
    data = Images(F.avg_pool2d(digits.x, 2), digits.y % 3)
    weights = {k: factors.get(k, 1.0) * w.detach() for k, w in model.named_parameters()}
    loss = loss_of(model, data, options(3))
    product, size = hessian_product(loss, weights)
    H = torch.func.vmap(product)(torch.eye(size, dtype=torch.float64))
    scale = relative_scale(weights)
    flat = torch.cat([scale[name].flatten() for name in weights])
    return Quadratic(weights, float(loss(weights)), H, flat)


@dataclass(frozen=True)
class Flatness:
    """How a network was trained, and how flat the loss is around it."""

    epoch: int
    loss: float
    area: float
    rise: float
    top: float | None
    error: float | None
    images: int


GRID = tuple(k / 3 for k in range(-3, 4))


def flatness(
    one: Snapshot, data: Images, depth: int | None, seed: int, *, images: int = 16
) -> Flatness:
    """Measure a snapshot: area and rise of one surface, top eigenvalue of DHD."""
    S = surface(one.model, data.first(64), depth, seed, GRID)
    value, error, used = None, None, 0
    try:
        top, used = sharpness(one.model, data.first(images), depth)
        value, error = float(top.values[0]), float(top.errors[0])
    except NotConverged:  # an adjoint that is not found: there is no derivative to measure
        pass
    return Flatness(one.epoch, one.loss, area(S), rise(S), value, error, used)


def at_loss(run: Sequence[Snapshot], target: float) -> Snapshot:
    """Return the first network of a run whose training loss is at most the target, or the last."""
    return next((s for s in run if s.loss <= target), run[-1])


@lru_cache(maxsize=8)  # the claim and its control look at one run
def fit(depth: int | None, seed: int, *, n: int = 100, epochs: int = 24) -> tuple[Snapshot, ...]:
    """Train a tied network or an equilibrium on CIFAR-10 pictures of 8×8 pixels."""
    data, _ = images("cifar10small", n, 1)
    model = cell(seed, colours=3)
    how = {"depth": depth, "epochs": epochs, "seed": seed, "batch": 25, "phantom": True}
    return tuple(train(model, data, **how))  # type: ignore[arg-type]


# --- training wide networks --------------------------------------------------------------------


@dataclass(frozen=True)
class Wide:
    """Full-batch descent: the loss at every step; step, and extremes of the kernel on the path."""

    loss: Tensor
    step: float
    least: float
    largest: float

    @property
    def bound(self) -> Tensor:
        """What the PL inequality with κ = least allows: (1-ηκ)ᵗ times the first loss."""
        clock = torch.arange(len(self.loss), dtype=torch.float64)
        return self.loss[0] * (1 - self.step * self.least) ** clock

    @property
    def floor(self) -> Tensor:
        """Below which gradient flow on the logistic loss cannot fall: 𝓛_0/(1+Λ𝓛_0t)."""
        time = self.step * torch.arange(len(self.loss), dtype=torch.float64)
        return self.loss[0] / (1 + self.largest * self.loss[0] * time)


def output_flow(
    n: int,
    g: torch.Generator,
    *,
    first: float | None = None,
    squares: bool = False,
    growing: bool = False,
) -> Wide:
    r"""Follow :math:`\dot{\hat y}=-H\,\partial\mathcal L` for n labels 1 and a fixed kernel H.

    ``first`` is the loss of each sample at the start (log 2, outputs 0, if none is given); with
    ``growing`` the kernel is :math:`(1+t)^2H` and Λ that of the start. ``squares`` is another loss.
    """
    root = normal(n, n, g=g)
    H = (root @ root.mT + torch.eye(n, dtype=torch.float64)).numpy()
    start = np.zeros(n) if first is None else np.full(n, -math.log(math.expm1(first)))
    largest = float(np.linalg.eigvalsh(H)[-1])

    def velocity(t: float, out: NDArray[np.float64]) -> NDArray[np.float64]:
        slope = out - 1 if squares else -1 / (1 + np.exp(out))
        return -(H @ slope) * ((1 + t) ** 2 if growing else 1.0)

    step, until = 2.0 / largest, 400 / largest
    times = np.arange(0, until, step)
    path = solve_ivp(velocity, (0, until), start, t_eval=times, rtol=1e-9, atol=1e-11).y
    terms = 0.5 * (path - 1) ** 2 if squares else np.logaddexp(0, -path)
    return Wide(torch.as_tensor(terms.sum(axis=0)), step, 0.0, largest)


def wide_run(
    seed: int, *, gap: float | None = None, logistic: bool = False, m: int = 48, steps: int = 150
) -> Wide:
    """Train a monotone DEQ on five random inputs with labels ±1, step ½/λ_max(H) of the start.

    With a ``gap`` the second input is moved to that distance from the first, and their labels
    differ.
    """
    X, y = sphere(5, 10, seed=seed + 50), signs(5, g=generator(seed + 60))
    if gap is not None:
        near = X[0] + gap * (X[1] - X[0]) / (X[1] - X[0]).norm()
        X, y = torch.cat([X[:1], near[None], X[2:]]), torch.cat([y[:1], -y[:1], y[2:]])
    model, solver = MonDEQ.init(m, 10, mu=1.0, seed=seed), Anderson()
    how = {"solver": solver, "tol": 1e-7, "adjoint": IFT(solver=solver, tol=1e-7)}
    weights, losses, edges = list(model.parameters()), [], []
    step = 0.5 / float(torch.linalg.eigvalsh(empirical_ntk(model, X))[-1])
    for k in range(steps + 1):
        out = model(X, **how)
        loss = F.softplus(-y * out).sum() if logistic else 0.5 * (out - y).pow(2).sum()
        losses.append(loss.detach())
        if k % 15 == 0:
            values = torch.linalg.eigvalsh(empirical_ntk(model, X))
            edges.append((float(values[0]), float(values[-1])))
        with torch.no_grad():
            for w, g in zip(weights, torch.autograd.grad(loss, weights)):
                w.sub_(g, alpha=step)
    least, largest = min(e[0] for e in edges), max(e[1] for e in edges)
    return Wide(torch.stack(losses), step, least, largest)


def straightness(loss: Tensor) -> tuple[float, float]:
    """Fit a line to the logarithm of the second half of a curve; return its slope and R²."""
    y = loss[len(loss) // 2 :].log()
    t = torch.arange(len(y), dtype=y.dtype)
    t = t - t.mean()
    slope = (t * y).sum() / t.pow(2).sum()
    left = y - y.mean() - slope * t
    return float(slope), 1 - float(left.pow(2).sum() / (y - y.mean()).pow(2).sum())
