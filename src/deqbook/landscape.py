"""Trajectories of solvers in the plane of their two principal components."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.solvers import Map, Solution, Solver, fixed_point

__all__ = ["Plane", "path_ratio", "principal_plane", "record"]


def record(
    f: Map, z0: Tensor, *, solver: Solver, steps: int, tol: float = 1e-12
) -> tuple[Tensor, Solution]:
    """Run a solver and keep every state it evaluates: returns (states, n, D) and the solution."""
    states: list[Tensor] = []

    def watched(z: Tensor) -> Tensor:
        states.append(z.reshape(z.shape[0], -1).clone())
        return f(z)

    found = fixed_point(watched, z0, solver=solver, tol=tol, max_steps=steps, throw=False)
    return torch.stack(states), found


@dataclass(frozen=True)
class Plane:
    """The first two principal components of a cloud of states.

    ``points`` are the coordinates (states, n, 2), ``explained`` the share of the variance that the
    plane holds.
    """

    points: Tensor
    centre: Tensor
    axes: Tensor
    explained: float


def principal_plane(states: Tensor) -> Plane:
    """Project all states of all samples on their first two right singular vectors, centred."""
    if states.ndim != 3:
        raise ValueError(f"states must be (states, n, D), got shape {tuple(states.shape)}.")
    cloud = states.reshape(-1, states.shape[2])
    centre = cloud.mean(dim=0)
    _, values, axes = torch.linalg.svd(cloud - centre, full_matrices=False)
    points = (states - centre) @ axes[:2].mT
    explained = float((values[:2] ** 2).sum() / (values**2).sum())
    return Plane(points, centre, axes[:2], explained)


def path_ratio(points: Tensor) -> float:
    """Return the path length after the first step ÷ the first step, median over samples.

    Near 0 the solver leaps once and stays; well above 1 it wanders.
    """
    hops = (points[1:] - points[:-1]).norm(dim=2)
    return float((hops[1:].sum(dim=0) / hops[0]).median())
