r"""Full-batch gradient descent, recorded: :math:`\theta_{k+1}=\theta_k-\eta\nabla\mathcal L`."""

from __future__ import annotations

import torch
from torch import Tensor

from deqbook.dynamics.loss_gradient import LeftRegion, LossGradient, NoGradient
from deqbook.dynamics.recorder import Recorder
from deqbook.dynamics.trajectory import EVERYTHING, Record, Trajectory
from deqbook.models.base import EquilibriumModel
from deqbook.runtime import progress
from deqbook.solvers import Solver

__all__ = ["gradient_descent"]


def gradient_descent(
    model: EquilibriumModel,
    X: Tensor,
    y: Tensor,
    step: float,
    epochs: int,
    *,
    record: Record = EVERYTHING,
    solver: Solver | None = None,
    adjoint_solver: Solver | None = None,
    tol: float | None = None,
    certified: bool = False,
    resume: Trajectory | None = None,
    throw: bool = True,
) -> Trajectory:
    r"""Train a copy of the model by full-batch descent on :math:`\tfrac12\|\hat y-y\|^2`.

    ``X`` is (n, d), ``y`` has the shape of the output, ``step`` is :math:`\eta`. Both solves of an
    epoch start from those of the epoch before; ``solver`` and ``adjoint_solver`` replace the
    model's own, and ``tol`` bounds the relative residual of both. ``model`` itself is not changed:
    ``trajectory.restore(model)`` loads the result. ``resume`` continues an earlier run by
    ``epochs`` more.

    When the equilibrium is lost the run raises ``LeftRegion``, which carries the trajectory so
    far, or, with ``throw=False``, returns it with ``stopped`` set; ``certified=True`` also stops as
    soon as a recorded ``norms["cell"]`` reaches 1. ``ValueError`` for a step that is not positive,
    negative ``epochs``, unfit data, or a ``resume`` that is empty or has other labels.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = VanillaDEQ(one / 2, one, one[0])  # z = relu(z/2 + x): 2 for x = 1
    >>> run = gradient_descent(model, one, 3 * one[0], step=0.01, epochs=100)
    >>> run.restore(model)
    >>> round(model(one).item(), 6)
    3.0
    """
    if not step > 0:
        raise ValueError(f"step must be positive, got {step!r}.")
    if epochs < 0:
        raise ValueError(f"epochs must not be negative, got {epochs}.")
    if certified and not record.norms:
        raise ValueError("certified=True looks at norms['cell']; record them (norms=True).")
    source = LossGradient(model, X, y, solver, adjoint_solver, tol)
    begun, clock = 0, 0.0
    if resume is not None:
        if not len(resume):
            raise ValueError("there is nothing to resume: the trajectory is empty.")
        resume.restore(source.model)
        begun, clock = int(resume.gradients[-1]), float(resume.times[-1])
    recorder = Recorder(source, record, None if resume is None else dict(resume.start))
    stopped = ""
    for k in range(epochs + 1):
        try:
            found = source()
            if (begun + k) % record.every == 0 or k in (0, epochs):
                recorder.write(clock + k * step, begun + k, found)
                progress(f"epoch {begun + k}/{begun + epochs}: loss {found.loss:.3e}")
                if certified and not recorder.rows["norms/cell"][-1] < 1:
                    raise NoGradient("the cell no longer contracts, so its certificate is lost")
        except NoGradient as reason:
            stopped = f"epoch {begun + k}: {reason}; {_state(source)}."
            break
        if k < epochs:
            with torch.no_grad():
                for name, g in found.grads.items():
                    source.trained[name].sub_(g, alpha=step)
    progress("")
    run = recorder.trajectory("descent", step=step, stopped=stopped)
    run = run if resume is None else resume.continued(run)
    if stopped and throw:
        raise LeftRegion(stopped, run)
    return run


def _state(source: LossGradient) -> str:
    """Say where the weights are, in terms of the quantity that well-posedness looks at."""
    if not all(bool(torch.isfinite(p).all()) for p in source.trained.values()):
        return "the step is too large"
    return f"the norm of the cell is {source.cell_norm():.4g} (below 1 it contracts)"
