r"""Gradient flow :math:`\dot\theta=-\nabla\mathcal L(\theta)`, by an integrator with error control.

A network of ReLUs has a gradient that jumps where a unit switches. A flow that meets such a kink
either crosses it, which costs the integrator a few short steps, or *slides*: the velocities on both
sides push it back, and the true (Clarke) solution stays on the kink. An integrator with error
control then takes shorter and shorter steps. ``gradient_flow`` notices, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import DOP853, RK45
from torch import Tensor

from deqbook.dynamics.oracle import Diary, LeftRegion, Lost, Oracle
from deqbook.dynamics.trajectory import EVERYTHING, Record, Trajectory
from deqbook.models.base import EquilibriumModel, Method
from deqbook.runtime import progress
from deqbook.solvers import Solver

__all__ = ["flow_error", "gradient_flow"]

METHODS = {"DOP853": DOP853, "RK45": RK45}
SHORT = 1e-6  # of the whole time: a step that short is one that a kink has cut
PATIENCE = 60  # so many short steps in a row are a slide, not a crossing
RETRIES = 8  # so many times a step that leads out of the region is cut before the run is lost


def gradient_flow(
    model: EquilibriumModel,
    X: Tensor,
    y: Tensor,
    times: Sequence[float] | NDArray[Any],
    *,
    rtol: float = 1e-9,
    atol: float = 1e-11,
    method: str = "DOP853",
    record: Record = EVERYTHING,
    solver: Method | None = None,
    adjoint_solver: Solver | None = None,
    tol: float = 1e-12,
    throw: bool = True,
) -> Trajectory:
    r"""Integrate the flow from the model's weights and record it at ``times`` (from 0 on).

    Dormand and Prince's method, of order 8 ("DOP853") or 5 ("RK45"), chooses its own steps so that
    the error per step stays below ``atol + rtol·|θ|``; the equilibria are solved to ``tol``, which
    must be smaller. ``flow_error`` measures what was reached. A ReLU network that slides along a
    kink cannot be followed to 1e-9; loosen ``rtol`` and ``atol`` (1e-4 and "RK45", say) and look at
    ``flow_error`` again. ``model`` itself is not changed.
    """
    grid = np.asarray(times, dtype=float)
    ordered = grid.ndim == 1 and len(grid) > 1 and grid[0] == 0 and bool((np.diff(grid) > 0).all())
    if not ordered or not math.isfinite(grid[-1]):
        raise ValueError("times must start at 0 and increase, with at least two finite entries.")
    if any(p.dtype != torch.float64 for p in model.parameters()):
        raise TypeError("gradient_flow needs a float64 model; error control means nothing below.")
    if method not in METHODS:
        raise ValueError(f"method must be one of {sorted(METHODS)}, got {method!r}.")
    oracle = Oracle(model, X, y, solver, adjoint_solver, tol)
    diary = Diary(oracle, record)
    shapes = [p.shape for p in oracle.trained.values()]
    cuts = np.cumsum([p.numel() for p in oracle.trained.values()])[:-1]

    def place(theta: NDArray[Any]) -> None:
        with torch.no_grad():
            pieces = np.split(theta, cuts)
            for p, part, shape in zip(oracle.trained.values(), pieces, shapes):
                p.copy_(torch.from_numpy(part).reshape(shape))

    failed: list[Lost] = []  # of the step that is being tried

    def velocity(_: float, theta: NDArray[Any]) -> NDArray[Any]:
        if not np.isfinite(theta).all():
            return np.full_like(theta, np.nan)
        place(theta)
        try:
            found = oracle()
        except Lost as reason:
            # Not the flow but a trial step may have left the region: a NaN has it cut and retried.
            failed.append(reason)
            if len(failed) > RETRIES:
                raise
            return np.full_like(theta, np.nan)
        return -torch.cat([found.grads[k].flatten() for k in oracle.trained]).cpu().numpy()

    theta = np.concatenate([w.ravel() for w in oracle.weights().values()])
    stopped = ""
    try:
        diary.write(0.0, 0, oracle())
        flow = METHODS[method](velocity, 0.0, theta, grid[-1], rtol=rtol, atol=atol)
        pending, short = list(grid[1:]), 0
        while pending:
            problem = flow.step()
            if flow.status == "failed":
                raise failed[-1] if failed else Lost(f"the integrator gave up ({problem})")
            failed.clear()
            short = short + 1 if flow.step_size < SHORT * grid[-1] else 0
            if short == PATIENCE:
                raise Lost(
                    f"the steps have shrunk to {flow.step_size:.1e} at t = {flow.t:.4g}, so the "
                    "flow slides along a kink of the activation; loosen rtol and atol, use a "
                    "smooth activation, or start nearer to the labels"
                )
            curve = flow.dense_output() if pending[0] <= flow.t else None
            while curve is not None and pending and pending[0] <= flow.t:
                time = pending.pop(0)
                place(flow.y if time == flow.t else curve(time))
                diary.write(time, flow.nfev, oracle())
                progress(f"t = {time:.4g} of {grid[-1]:.4g}")
    except Lost as reason:
        reached = diary.rows["times"][-1] if diary.rows else 0.0
        stopped = f"after t = {reached:.4g}: {reason}."
    progress("")
    run = diary.trajectory("flow", stopped=stopped)
    if stopped and throw:
        raise LeftRegion(stopped, run)
    return run


def flow_error(
    model: EquilibriumModel,
    X: Tensor,
    y: Tensor,
    times: Sequence[float] | NDArray[Any],
    *,
    rtol: float = 1e-9,
    atol: float = 1e-11,
    tol: float = 1e-12,
    tighter: float = 100.0,
    **options: Any,
) -> float:
    """Return how far the predictions move when every tolerance is ``tighter`` times smaller."""
    quiet = Record(norms=False, flips=False)
    runs = [
        gradient_flow(
            model,
            X,
            y,
            times,
            rtol=max(rtol / k, 3e-14),
            atol=atol / k,
            tol=max(tol / k, 2e-15),
            record=quiet,
            **options,
        )
        for k in (1.0, tighter)
    ]
    return float(np.abs(runs[0].predictions - runs[1].predictions).max())
