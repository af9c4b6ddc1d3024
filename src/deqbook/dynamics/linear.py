r"""Training with a frozen kernel, solved by eigenvectors: what every other run is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deqbook.dynamics.trajectory import Trajectory

__all__ = ["linearised_descent", "linearised_flow"]


def linearised_flow(
    K: ArrayLike,
    e0: ArrayLike,
    times: Sequence[float] | NDArray[Any],
    *,
    y: ArrayLike | None = None,
) -> Trajectory:
    r"""Solve :math:`\dot e=-Ke`: :math:`e(t)=e(0)+Q\,\mathrm{expm1}(-\Lambda t)\,Q^\top e(0)`.

    ``K``, (n, n), is the kernel at the start, ``e0``, (n,), the error there; ``y``, (n,), only
    shifts the predictions. ``expm1`` keeps the small changes of slow directions exact.
    ``ValueError`` if the shapes do not fit or K is not symmetric.

    >>> run = linearised_flow([[1.0, 0.0], [0.0, 2.0]], [1.0, 1.0], [0.0, np.log(2)])
    >>> run.error.round(6).tolist()
    [[1.0, 1.0], [0.5, 0.25]]
    """
    clock = np.asarray(times, dtype=float)
    return _solve(K, e0, clock, y, lambda values: np.expm1(-np.outer(clock, values)), 0.0)


def linearised_descent(
    K: ArrayLike, e0: ArrayLike, step: float, epochs: int, *, y: ArrayLike | None = None
) -> Trajectory:
    r"""Solve :math:`e_{k+1}=(I-\eta K)e_k`: :math:`e_k=Q(I-\eta\Lambda)^kQ^\top e_0`.

    ``K``, ``e0`` and ``y`` as for ``linearised_flow``; ``step`` is :math:`\eta`. ``ValueError``
    also if the step is not positive or ``epochs`` is negative.

    >>> run = linearised_descent([[1.0, 0.0], [0.0, 2.0]], [1.0, 1.0], step=0.5, epochs=2)
    >>> run.error.round(6).tolist()
    [[1.0, 1.0], [0.5, 0.0], [0.25, 0.0]]
    """
    if not step > 0 or epochs < 0:
        raise ValueError(f"step must be positive, epochs not negative; got {step!r}, {epochs}.")
    k = np.arange(epochs + 1)
    return _solve(
        K, e0, step * k, y, lambda values: (1 - step * values)[None, :] ** k[:, None] - 1, step
    )


def _solve(
    K: ArrayLike,
    e0: ArrayLike,
    clock: NDArray[Any],
    y: ArrayLike | None,
    change: Callable[[NDArray[Any]], NDArray[Any]],
    step: float,
) -> Trajectory:
    kernel, start = np.asarray(K, dtype=float), np.asarray(e0, dtype=float)
    if kernel.shape != (start.size, start.size) or start.ndim != 1:
        raise ValueError(
            f"K must be (n, n) for an error of length n; got {kernel.shape} and {start.shape}."
        )
    gap = float(np.abs(kernel - kernel.T).max())
    if not gap <= 1e-8 * float(np.abs(kernel).max()):  # a NaN as well
        raise ValueError(f"K must be symmetric; it differs from its transpose by {gap:.2e}.")
    values, vectors = np.linalg.eigh((kernel + kernel.T) / 2)
    moved = (change(values) * (vectors.T @ start)) @ vectors.T
    labels = np.zeros_like(start) if y is None else np.asarray(y, dtype=float)
    same = np.ones(len(clock))
    return Trajectory(
        "linearised descent" if step else "linearised flow",
        clock,
        np.arange(len(clock)) if step else np.zeros(len(clock), dtype=np.int64),
        labels + start + moved,
        labels,
        step=step,
        gram_min=values[0] * same,
        gram_max=values[-1] * same,
    )
