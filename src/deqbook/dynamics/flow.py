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

from deqbook.dynamics.loss_gradient import LeftRegion, LossGradient, NoGradient
from deqbook.dynamics.recorder import Recorder
from deqbook.dynamics.trajectory import EVERYTHING, Record, Trajectory
from deqbook.models.base import EquilibriumModel
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
    solver: Solver | None = None,
    adjoint_solver: Solver | None = None,
    tol: float = 1e-12,
    throw: bool = True,
) -> Trajectory:
    r"""Integrate the flow from the model's weights and record it at ``times`` (from 0 on).

    Dormand and Prince's method, of order 8 ("DOP853") or 5 ("RK45"), chooses its own steps so that
    the error per step stays below ``atol + rtol·|θ|``; the equilibria are solved to ``tol``, which
    must be smaller. ``flow_error`` measures what was reached. A ReLU network that slides along a
    kink cannot be followed to 1e-9; loosen ``rtol`` and ``atol`` (1e-4 and "RK45", say) and look at
    ``flow_error`` again. ``X`` is (n, d), ``y`` has the shape of the output; ``record``,
    ``solver``, ``adjoint_solver`` and ``throw`` are those of ``gradient_descent``. ``model``
    itself is not changed.

    Raises ``LeftRegion`` when an equilibrium is lost or the flow slides, ``ValueError`` for times
    that do not increase from 0 or an unknown method, ``TypeError`` for a model that is not float64.

    >>> from deqbook.models import ReLUImplicit
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = ReLUImplicit(one, one, one[0], 0 * one[0], 0.5, train=("a",))  # z = 2, so H = 4
    >>> run = gradient_flow(model, one, 3 * one[0], [0.0, math.log(2) / 4])  # half of e is left
    >>> run.predictions.round(6).tolist()
    [[2.0], [2.5]]
    """
    grid = np.asarray(times, dtype=float)
    ordered = grid.ndim == 1 and len(grid) > 1 and grid[0] == 0 and bool((np.diff(grid) > 0).all())
    if not ordered or not math.isfinite(grid[-1]):
        raise ValueError("times must start at 0 and increase, with at least two finite entries.")
    if any(p.dtype != torch.float64 for p in model.parameters()):
        raise TypeError("gradient_flow needs a float64 model; error control means nothing below.")
    if method not in METHODS:
        raise ValueError(f"method must be one of {sorted(METHODS)}, got {method!r}.")
    source = LossGradient(model, X, y, solver, adjoint_solver, tol)
    recorder = Recorder(source, record)
    shapes = [p.shape for p in source.trained.values()]
    cuts = np.cumsum([p.numel() for p in source.trained.values()])[:-1]

    def place(theta: NDArray[Any]) -> None:
        with torch.no_grad():
            pieces = np.split(theta, cuts)
            for p, part, shape in zip(source.trained.values(), pieces, shapes):
                p.copy_(torch.from_numpy(part).reshape(shape))

    failed: list[NoGradient] = []  # of the step that is being tried

    def velocity(_: float, theta: NDArray[Any]) -> NDArray[Any]:
        if not np.isfinite(theta).all():
            return np.full_like(theta, np.nan)
        place(theta)
        try:
            found = source()
        except NoGradient as reason:
            # Not the flow but a trial step may have left the region: a NaN has it cut and retried.
            failed.append(reason)
            if len(failed) > RETRIES:
                raise
            return np.full_like(theta, np.nan)
        return -torch.cat([found.grads[k].flatten() for k in source.trained]).cpu().numpy()

    theta = np.concatenate([w.ravel() for w in source.weights().values()])
    stopped = ""
    try:
        recorder.write(0.0, 0, source())
        flow = METHODS[method](velocity, 0.0, theta, grid[-1], rtol=rtol, atol=atol)
        pending, short = list(grid[1:]), 0
        while pending:
            problem = flow.step()
            if flow.status == "failed":
                raise failed[-1] if failed else NoGradient(f"the integrator gave up ({problem})")
            failed.clear()
            short = short + 1 if flow.step_size < SHORT * grid[-1] else 0
            if short == PATIENCE:
                raise NoGradient(
                    f"the steps have shrunk to {flow.step_size:.1e} at t = {flow.t:.4g}, so the "
                    "flow slides along a kink of the activation; loosen rtol and atol, use a "
                    "smooth activation, or start nearer to the labels"
                )
            curve = flow.dense_output() if pending[0] <= flow.t else None
            while curve is not None and pending and pending[0] <= flow.t:
                time = pending.pop(0)
                place(flow.y if time == flow.t else curve(time))
                recorder.write(time, flow.nfev, source())
                progress(f"t = {time:.4g} of {grid[-1]:.4g}")
    except NoGradient as reason:
        reached = recorder.rows["times"][-1] if recorder.rows else 0.0
        stopped = f"after t = {reached:.4g}: {reason}."
    progress("")
    run = recorder.trajectory("flow", stopped=stopped)
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
    """Return how far the predictions move when every tolerance is ``tighter`` times smaller.

    The largest change of an entry at any of ``times``, over two runs of ``gradient_flow``, which
    takes ``options``.

    >>> from deqbook.models import ReLUImplicit
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = ReLUImplicit(one, one, one[0], 0 * one[0], 0.5, train=("a",))
    >>> flow_error(model, one, 3 * one[0], [0.0, 0.5]) < 1e-7
    True
    """
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
