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
    """Run a solver and keep every state it evaluates: returns (states, n, D) and the solution.

    ``f`` and ``z0`` are those of :func:`deqbook.solvers.fixed_point`, ``steps`` its ``max_steps``;
    a failure does not raise. ``Newton`` evaluates a state again for its Jacobian. A splitting needs
    to know the map and is refused (``ValueError``).

    >>> from deqbook.solvers import Picard
    >>> states, found = record(lambda z: z / 2, torch.ones(1, 1).double(), solver=Picard(), steps=2)
    >>> states.flatten().tolist(), bool(found.converged)
    ([1.0, 0.5, 0.25], False)
    """
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
    plane holds; ``centre`` is (D,), the orthonormal ``axes`` are (2, D).

    >>> plane = principal_plane(torch.tensor([[[0.0, 0.0, 7.0]], [[3.0, 4.0, 7.0]]]))
    >>> back = plane.centre + plane.points @ plane.axes
    >>> [round(c, 3) for c in back[1, 0].tolist()]
    [3.0, 4.0, 7.0]
    """

    points: Tensor
    centre: Tensor
    axes: Tensor
    explained: float


def principal_plane(states: Tensor) -> Plane:
    """Project all states of all samples on their first two right singular vectors, centred.

    ``states`` is (states, n, D), as of ``record``; another shape is a ``ValueError``.

    >>> states = torch.tensor([[[0.0, 0.0, 7.0]], [[3.0, 4.0, 7.0]], [[6.0, 8.0, 7.0]]])
    >>> plane = principal_plane(states)
    >>> tuple(plane.points.shape), round(plane.explained, 3)
    ((3, 1, 2), 1.0)
    """
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

    ``points`` is (states, n, D) or the ``points`` of a ``Plane``. Near 0 the solver leaps once and
    stays; well above 1 it wanders. A first step of length 0 counts as infinite.

    >>> path_ratio(torch.tensor([0.0, 4.0, 5.0, 4.0]).reshape(4, 1, 1))
    0.5
    """
    hops = (points[1:] - points[:-1]).norm(dim=2)
    return float((hops[1:].sum(dim=0) / hops[0]).median())
