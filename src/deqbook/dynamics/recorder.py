"""What is written down while a model trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from deqbook.dynamics.loss_gradient import LossGradient, NoGradient, weight_norm
from deqbook.dynamics.trajectory import Record, Trajectory
from deqbook.kernels.tangent import gram_of_tangents, jacobian_ntk
from deqbook.models.closed_form import ClosedGradient, ClosedKernel, Tangents
from deqbook.models.dense import ReLUImplicit
from deqbook.models.gradients import Gradient
from deqbook.solvers import NotConverged

__all__ = ["Recorder"]


class Recorder:
    """Collects what a ``Record`` asks for, and makes the ``Trajectory`` of it.

    ``source`` holds the model as it trains. Displacements and flips count from the weights
    ``start``, by default those of now.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = VanillaDEQ(one / 2, one, one[0])
    >>> recorder = Recorder(source := LossGradient(model, one, one[0], None, None, None), Record())
    >>> recorder.write(0.0, 0, source())
    >>> recorder.trajectory("descent")
    Trajectory(descent, 1 records to t = 0, loss 0.5 → 0.5)
    """

    def __init__(self, source: LossGradient, record: Record, start: dict[str, Any] | None = None):
        self.source, self.record = source, record
        self.start = source.weights() if start is None else start
        self.end = source.weights()
        self.rows: dict[str, list[Any]] = {}
        self.z_test: Tensor | None = None
        self.counts = record.flips and isinstance(
            source.model, ClosedGradient
        )  # of other models z shows no single units
        self.pattern = self._first_pattern() if self.counts and start is not None else None

    @torch.no_grad()
    def write(self, time: float, gradients: int, found: Gradient) -> None:
        """Write one row: the time, the gradients so far, and what ``found`` tells of the weights.

        Raises ``NoGradient`` if the test data have no equilibrium.
        """
        source, model = self.source, self.source.model
        row: dict[str, Any] = {"times": time, "gradients": gradients}
        row["predictions"] = _numpy(found.error + source.y)
        for name, p in source.trained.items():
            moved = p.detach() - torch.as_tensor(self.start[name], device=p.device)
            row[f"displacement/{name}"] = float(moved.norm())
        if self.record.norms:
            row |= {f"norms/{k}": v for k, v in self._norms().items()}
        if self.counts:
            pattern = self._pattern(found.z)
            self.pattern = pattern if self.pattern is None else self.pattern
            row["flips"] = float((pattern != self.pattern).sum())
        if self.record.gram:
            row |= self._gram(found)
        if self.record.test is not None:
            X, y = self.record.test
            try:
                solved = model.solve(X, self.z_test, solver=source.solver, tol=source.tol)
            except NotConverged as error:
                raise NoGradient(f"no equilibrium was found on the test data ({error})") from None
            self.z_test = solved.z
            seen = model.readout(solved.z, model.inject(X))
            row["test_predictions"] = _numpy(seen.reshape(y.shape))
        for key, value in row.items():
            self.rows.setdefault(key, []).append(value)
        self.end = source.weights()

    def _pattern(self, z: Tensor) -> Tensor:
        """Return which units are on: those of the state, and of the features where they are σ."""
        model = self.source.model
        if isinstance(model, ReLUImplicit):
            return torch.cat([z > 0, model.inject(self.source.X) > 0], dim=1)
        return z > 0

    @torch.no_grad()
    def _first_pattern(self) -> Tensor:
        """Return the pattern at the start of a run that is resumed from other weights."""
        source = self.source
        now = {k: p.clone() for k, p in source.trained.items()}
        for name, p in source.trained.items():
            p.copy_(torch.as_tensor(self.start[name]))
        found = source.model.solve(source.X, solver=source.solver, tol=source.tol)
        pattern = self._pattern(found.z if found.image is None else found.image)
        for name, p in source.trained.items():
            p.copy_(now[name])
        return pattern

    def _norms(self) -> dict[str, float]:
        model = self.source.model
        sizes = {k: weight_norm(p.detach()) for k, p in self.source.trained.items()}
        if isinstance(model, ReLUImplicit) and "W" in sizes:  # no second decomposition
            return sizes | {"cell": model.scale * sizes["W"]}
        return sizes | {"cell": self.source.cell_norm()}

    def _gram(self, found: Gradient) -> dict[str, float]:
        source = self.source
        model = source.model
        if isinstance(model, ClosedKernel) and found.v is not None:
            rows = Tangents(source.X, model.inject(source.X), found.z, found.v)
            blocks = gram_of_tangents(model, rows, rows)
            H = torch.stack(list(blocks.values())).sum(dim=0)
        else:
            blocks, H = {}, jacobian_ntk(source.model, source.X, tol=source.tol)
        values = torch.linalg.eigvalsh(H)
        least = {f"block_min/{k}": float(torch.linalg.eigvalsh(K)[0]) for k, K in blocks.items()}
        return least | {"gram_min": float(values[0]), "gram_max": float(values[-1])}

    def trajectory(self, kind: str, *, step: float = 0.0, stopped: str = "") -> Trajectory:
        """Return everything written so far, with the weights of the last row as its ``end``."""
        flat = {k: np.asarray(v) for k, v in self.rows.items()}
        nothing = np.zeros(0)
        blank = Trajectory(
            kind,
            nothing,
            nothing.astype(np.int64),
            np.zeros((0, *self.source.y.shape)),
            _numpy(self.source.y),
            step=step,
            y_test=None if self.record.test is None else _numpy(self.record.test[1]),
            start=self.start,
            end=self.end,
            stopped=stopped,
        )
        return blank.with_rows(flat)


def _numpy(t: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return t.detach().cpu().double().numpy()
