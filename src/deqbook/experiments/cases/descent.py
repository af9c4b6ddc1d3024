r"""Training runs of gao2022, gao2023 and ling2023 at any size, in parts that survive interruption.

The equilibrium of an epoch starts from that of the epoch before. A run that was interrupted would
have to start its first solve anew and differ in the last digits. So *every* run starts the solves
anew after each ``PART`` epochs: with or without interruption the numbers are the same.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from deqbook.dynamics import Record, Trajectory, gradient_descent
from deqbook.experiments.worker import Checkpoint
from deqbook.pages.p03d_real_data.lab import DescentRun, build, samples, step_of
from deqbook.solvers import Picard

__all__ = ["PART", "plain", "run"]

PART = 100
"""Epochs between two checkpoints."""


def plain(case: DescentRun) -> dict[str, Any]:
    """Return the case as a result file stores it."""
    return asdict(case)


def run(case: DescentRun, checkpoint: Checkpoint) -> dict[str, Any]:
    r"""Train; return the losses per sample :math:`\frac1{2n}\|e\|^2`, the errors, the cell's norm.

    ``epochs`` are those that were recorded; ``stopped`` says why a run ended early.
    """
    s, step, where = samples(case), step_of(case), checkpoint.device or "cpu"
    X, y, test = s.x_train.to(where), s.y_train.to(where), None
    if case.test and s.n_test:
        test = (s.x_test.to(where), s.y_test.to(where))
    so_far: Trajectory | None = checkpoint.load(Trajectory.load)
    while so_far is None or (so_far.gradients[-1] < case.epochs and not so_far.stopped):
        done = 0 if so_far is None else int(so_far.gradients[-1])
        so_far = gradient_descent(
            build(case).to(where),
            X,
            y,
            step,
            min(PART, case.epochs - done),
            record=Record(every=case.every, flips=False, norms=case.norms, test=test),
            solver=Picard(),
            adjoint_solver=Picard(),
            tol=1e-6 if case.double else 1e-5,  # far below what a step changes
            resume=so_far,
            throw=False,
        )
        if so_far.gradients[-1] < case.epochs:
            checkpoint.save(so_far.save)
    return _kept(so_far, step)


def _kept(run: Trajectory, step: float) -> dict[str, Any]:
    n = len(run.y)
    kept: dict[str, Any] = {
        "step": step,
        "epochs": run.gradients.tolist(),
        "loss": _short(run.loss / n),
        "error": _short((np.sign(run.predictions) != np.sign(run.y)).mean(axis=1)),
        "stopped": run.stopped,
    }
    if run.norms:
        kept["norm"] = [float(f"{v:.8g}") for v in run.norms["cell"]]
    if run.y_test is not None:
        kept["test_loss"] = _short(run.test_loss / len(run.y_test))
        kept["test_error"] = _short(run.test_error)
    return kept


def _short(values: Any) -> list[float]:
    return [float(f"{v:.6g}") for v in values]
