"""The convolutional cell of nguyen2022: the solver's path at random weights and in training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deqbook.data import load
from deqbook.experiments.worker import Checkpoint
from deqbook.landscape import path_ratio, principal_plane, record
from deqbook.models import ResidualCell
from deqbook.pages.p07a_training_inside.lab import Images, accuracy, mean_loss, options, watch
from deqbook.runtime import generator
from deqbook.solvers import Anderson

__all__ = ["CellPath", "CellTraining", "follow", "train"]

DRAWN = 12
"""Images whose path in the principal plane is kept."""


@dataclass(frozen=True)
class CellPath:
    """Anderson's iterations on a random cell, for MNIST test images.

    ``std1`` and ``std2`` are the standard deviations of W1 and W2; ``pool`` averages that many
    pixels each way (1: 28 × 28 as they are).
    """

    std1: float
    std2: float
    seed: int
    n: int = 100
    pool: int = 1
    channels: int = 16
    inner: int = 24
    steps: int = 50


@dataclass(frozen=True)
class CellTraining:
    """Training on MNIST: Adam with a cosine schedule, Anderson up to tolerance 1e-2 or 50 steps.

    ``looks`` are the epochs after which the solver is watched on ``watched`` training images, with
    tolerance 1e-3 and 100 steps.
    """

    seed: int
    n: int = 5000
    pool: int = 1
    channels: int = 8
    inner: int = 8
    epochs: int = 40
    rate: float = 1e-3
    batch: int = 100
    watched: int = 60
    looks: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 40)


def _digits(n_train: int, n_test: int, pool: int, dtype: torch.dtype) -> tuple[Images, Images]:
    data = load("mnist10", norm=None, flatten=False, n_train=n_train, n_test=n_test, dtype=dtype)
    sides = ((data.x_train, data.y_train), (data.x_test, data.y_test))
    train, test = (Images(F.avg_pool2d(x, pool), y.long()) for x, y in sides)
    return train, test


def _short(values: Tensor) -> Any:
    return [float(f"{v:.4g}") for v in values.tolist()]


def _drawn(points: Tensor) -> list[list[list[float]]]:
    """Return the first paths of a plane, image by image, with three digits."""
    return [[[float(f"{c:.3g}") for c in p] for p in path] for path in points.tolist()]


def follow(case: CellPath, checkpoint: Checkpoint) -> dict[str, Any]:
    r"""Return quantiles of :math:`\|f(z)-z\|/\|f(z)\|` over the images, and paths in the plane."""
    _, test = _digits(1, case.n, case.pool, torch.float64)
    model = ResidualCell.init(
        std=(case.std1, case.std2), channels=case.channels, inner=case.inner, seed=case.seed
    )
    with torch.no_grad():
        q = model.inject(test.x)
        states, found = record(
            model.map(q), model.start(q), solver=Anderson(memory=5), steps=case.steps
        )
    few = principal_plane(states[:, :DRAWN])
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    low, middle, high = torch.quantile(found.trace.double(), levels, dim=1)
    return {
        "low": _short(low),
        "median": _short(middle),
        "high": _short(high),
        "ratio": float(f"{path_ratio(few.points):.4g}"),
        "explained": float(f"{few.explained:.4g}"),
        "paths": _drawn(few.points.transpose(0, 1)),
    }


def train(case: CellTraining, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return loss and accuracy of every epoch, and what the solver does at the epochs looked at."""
    data, test = _digits(case.n, 500, case.pool, torch.float32)
    model = ResidualCell.init(
        std=0.01,
        channels=case.channels,
        inner=case.inner,
        seed=case.seed,
        dtype=torch.float32,
    )
    adam = torch.optim.Adam(model.parameters(), lr=case.rate)
    batches = -(-case.n // case.batch)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, case.epochs * batches)
    order, kept, begun = generator(case.seed), dict[str, Any](loss=[], accuracy=[], looks=[]), 0
    parts: dict[str, Any] = {"model": model, "adam": adam, "cosine": cosine}
    state = checkpoint.load(_read)
    if state is not None:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        order.set_state(state["order"])
        kept, begun = state["kept"], state["epoch"]
    for epoch in range(begun, case.epochs + 1):
        if epoch:
            for rows in torch.randperm(case.n, generator=order).split(case.batch):
                adam.zero_grad()
                out = model(data.x[rows], **options(None))
                F.cross_entropy(out, data.y[rows]).backward()
                adam.step()
                cosine.step()
        kept["loss"].append(float(f"{mean_loss(model, data.first(500), None):.5g}"))
        kept["accuracy"].append(accuracy(model, test))
        if epoch in case.looks:
            kept["looks"].append(_look(model, data.first(case.watched), epoch))
        if epoch < case.epochs:
            whole = {name: part.state_dict() for name, part in parts.items()}
            whole |= {"order": order.get_state(), "kept": kept, "epoch": epoch + 1}
            checkpoint.save(partial(torch.save, whole))
    return kept


def _read(file: Path) -> Any:
    return torch.load(file, weights_only=True)


def _look(model: ResidualCell, data: Images, epoch: int) -> dict[str, Any]:
    seen = watch(model, data)
    plane = principal_plane(seen.states[:, :DRAWN])
    return {
        "epoch": epoch,
        "steps": float(f"{seen.steps:.4g}"),
        "ratio": float(f"{seen.ratio:.4g}"),
        "separation": float(f"{seen.separation:.4g}"),
        "classes": data.y[:DRAWN].tolist(),
        "paths": _drawn(plane.points.transpose(0, 1)),
    }
