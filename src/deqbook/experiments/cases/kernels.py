"""Our own two: the tangent kernel against its wide limit, and the bound of gao2023 against n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deqbook.experiments.worker import Checkpoint
from deqbook.pages.p04_ntk.lab.wide import PAIRS
from deqbook.pages.p06b_bound_on_data.lab.pictures import cut, network_start, wrong

__all__ = ["BoundRun", "KernelRun", "bound", "distance"]


@dataclass(frozen=True)
class KernelRun:
    """Networks of one kind and width, ``draws`` of them, on three inputs."""

    network: str
    m: int
    draws: int = 10
    seed: int = 0


def distance(case: KernelRun, checkpoint: Checkpoint) -> dict[str, Any]:
    r"""Return by block the mean of :math:`\|K_m-K\|_F/\|K\|_F` over the networks."""
    found, limit = PAIRS[case.network](case.seed, case.m, case.draws, _as_drawn)
    far = {
        name: torch.stack([(one[name] - goal).norm() / goal.norm() for one in found])
        for name, goal in limit.items()
    }
    return {name: float(f"{values.mean():.6g}") for name, values in far.items()}


def _as_drawn(W: Tensor) -> Tensor:
    return W


@dataclass(frozen=True)
class BoundRun:
    """The network of gao2023 of width m at its start, and n independent pictures."""

    data: str
    n: int
    m: int
    seed: int = 0
    gamma: float = 0.4


def bound(case: BoundRun, checkpoint: Checkpoint) -> dict[str, Any]:
    r"""Return the radius B, the two terms of the bound (95 %), the losses on 1000 test pictures.

    The predictor is where gradient flow with the frozen kernel ends; its training loss is 0.
    """
    start = network_start(case.data, case.n, m=case.m, seed=case.seed, gamma=case.gamma)
    f, B = start.interpolate()
    terms = start.bound(B)
    return {
        "B": float(f"{B:.6g}"),
        "complexity": float(f"{terms.complexity:.6g}"),
        "confidence": float(f"{terms.confidence:.6g}"),
        "loss": float(f"{float(cut(f, start.y_test).mean()):.6g}"),
        "error": float(f"{float(wrong(f, start.y_test).mean()):.6g}"),
    }
