"""The gradient at the current weights, warm-started, and the diary of a run."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deqbook.dynamics.trajectory import Record, Trajectory
from deqbook.implicit import IFT
from deqbook.kernels import Tangents, jacobian_ntk, parts
from deqbook.linalg import operator_norm
from deqbook.models import ReLUImplicit
from deqbook.models.base import EquilibriumModel, Method
from deqbook.models.closed_form import Gradient, gradient
from deqbook.solvers import NotConverged, Solver
from deqbook.wellposed import Affine, Tied

__all__ = ["Diary", "LeftRegion", "Oracle"]

LARGE = 300  # from this width on, one norm is cheaper by Lanczos than by SVD


class LeftRegion(RuntimeError):
    """The run left the region where the model is well posed; ``trajectory`` is what came before."""

    def __init__(self, message: str, trajectory: Trajectory):
        super().__init__(message)
        self.trajectory = trajectory

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from both arguments, so that a process pool can hand the error on."""
        return type(self), (str(self), self.trajectory)


class Lost(Exception):
    """Internal: why the gradient could not be computed."""


class Oracle:
    """The loss and its gradient on a copy of the model, each solve started from the last."""

    def __init__(
        self,
        model: EquilibriumModel,
        X: Tensor,
        y: Tensor,
        solver: Method | None,
        adjoint_solver: Solver | None,
        tol: float | None,
    ):
        if X.ndim != 2 or y.shape[:1] != X.shape[:1]:
            raise ValueError(
                f"X must be (n, d) and y must have n rows; got {tuple(X.shape)} and "
                f"{tuple(y.shape)}."
            )
        for name, t in (("X", X), ("y", y)):
            if not bool(torch.isfinite(t).all()):
                raise ValueError(f"{name} has NaN or infinite entries; check the data.")
        self.model = copy.deepcopy(model)
        self.X, self.y, self.tol = X, y, tol
        self.solver, self.adjoint_solver = solver, adjoint_solver
        self.trained = {k: p for k, p in self.model.named_parameters() if p.requires_grad}
        if not self.trained:
            raise ValueError("the model has nothing to train: no parameter requires a gradient.")
        self.closed = isinstance(self.model.structure(), Affine) and hasattr(self.model, "a")
        self.last: Gradient | None = None

    def __call__(self) -> Gradient:
        """Return the loss, the error and the gradient; raise Lost when there is no equilibrium."""
        bad = [k for k, p in self.trained.items() if not bool(torch.isfinite(p).all())]
        if bad:
            raise Lost(f"the weights {bad} have overflowed")
        try:
            found = self._closed_form() if self.closed else self._autograd()
        except NotConverged as error:
            raise Lost(f"no equilibrium was found ({error})") from None
        except torch.linalg.LinAlgError as error:  # of a matrix that has overflowed, say
            raise Lost(f"a decomposition of the weights failed ({error})") from None
        except ValueError as error:
            if "NaN or infinite" not in str(error):
                raise
            raise Lost("the states have overflowed") from None
        if not math.isfinite(found.loss):
            raise Lost(f"the loss is {found.loss}")
        self.last = found
        return found

    def _closed_form(self) -> Gradient:
        return gradient(
            self.model,  # type: ignore[arg-type]  # self.closed says that it is one of these
            self.X,
            self.y,
            last=self.last,
            solver=self.solver,
            adjoint_solver=self.adjoint_solver,
            tol=self.tol,
        )

    def _autograd(self) -> Gradient:
        q = self.model.inject(self.X)
        adjoint = self.model.default_adjoint
        if isinstance(adjoint, IFT):
            way = adjoint.solver if self.adjoint_solver is None else self.adjoint_solver
            adjoint = replace(adjoint, solver=way, tol=self.tol)
        z0 = None if self.last is None else self.last.z
        z = self.model.state(self.X, z0, solver=self.solver, adjoint=adjoint, tol=self.tol)
        e = self.model.readout(z, q).reshape(self.y.shape) - self.y
        loss = 0.5 * e.pow(2).sum()
        grads = torch.autograd.grad(loss, list(self.trained.values()))
        z, e = z.detach(), e.detach()
        return Gradient(loss.item(), e, dict(zip(self.trained, grads)), z, z)

    def cell_norm(self) -> float:
        """Return the norm of the matrix that multiplies the state (of tied layers, the largest)."""
        shape = self.model.structure()
        if isinstance(shape, Affine):
            return _norm(shape.W)
        return max(_norm(W) for W in shape.Ws) if isinstance(shape, Tied) else math.nan

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the trained weights."""
        return {k: p.detach().cpu().numpy().copy() for k, p in self.trained.items()}


class Diary:
    """Collects what a Record asks for, and makes the Trajectory of it."""

    def __init__(self, oracle: Oracle, record: Record, start: dict[str, Any] | None = None):
        self.oracle, self.record = oracle, record
        self.start = oracle.weights() if start is None else start
        self.end = oracle.weights()
        self.rows: dict[str, list[Any]] = {}
        self.z_test: Tensor | None = None
        self.counts = record.flips and oracle.closed  # of other models z shows no single units
        self.pattern = self._first_pattern() if self.counts and start is not None else None

    @torch.no_grad()
    def write(self, time: float, gradients: int, found: Gradient) -> None:
        """Write one row."""
        oracle, model = self.oracle, self.oracle.model
        row: dict[str, Any] = {"times": time, "gradients": gradients}
        row["predictions"] = _numpy(found.error + oracle.y)
        for name, p in oracle.trained.items():
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
                solved = model.solve(X, self.z_test, solver=oracle.solver, tol=oracle.tol)
            except NotConverged as error:
                raise Lost(f"no equilibrium was found on the test data ({error})") from None
            self.z_test = solved.z
            seen = model.readout(solved.z, model.inject(X))
            row["test_predictions"] = _numpy(seen.reshape(y.shape))
        for key, value in row.items():
            self.rows.setdefault(key, []).append(value)
        self.end = oracle.weights()

    def _pattern(self, z: Tensor) -> Tensor:
        """Return which units are on: those of the state, and of the features where they are σ."""
        model = self.oracle.model
        if isinstance(model, ReLUImplicit):
            return torch.cat([z > 0, model.inject(self.oracle.X) > 0], dim=1)
        return z > 0

    @torch.no_grad()
    def _first_pattern(self) -> Tensor:
        """Return the pattern at the start of a run that is resumed from other weights."""
        oracle = self.oracle
        now = {k: p.clone() for k, p in oracle.trained.items()}
        for name, p in oracle.trained.items():
            p.copy_(torch.as_tensor(self.start[name]))
        found = oracle.model.solve(oracle.X, solver=oracle.solver, tol=oracle.tol)
        pattern = self._pattern(found.z if found.image is None else found.image)
        for name, p in oracle.trained.items():
            p.copy_(now[name])
        return pattern

    def _norms(self) -> dict[str, float]:
        model = self.oracle.model
        sizes = {k: _norm(p.detach()) for k, p in self.oracle.trained.items()}
        if isinstance(model, ReLUImplicit) and "W" in sizes:  # no second decomposition
            return sizes | {"cell": model.scale * sizes["W"]}
        return sizes | {"cell": self.oracle.cell_norm()}

    def _gram(self, found: Gradient) -> dict[str, float]:
        oracle = self.oracle
        if oracle.closed:
            q = oracle.model.inject(oracle.X)
            rows = Tangents(oracle.X, q, found.z, found.v)
            blocks = parts(oracle.model, rows, rows)
            H = torch.stack(list(blocks.values())).sum(dim=0)
        else:
            blocks, H = {}, jacobian_ntk(oracle.model, oracle.X, tol=oracle.tol)
        values = torch.linalg.eigvalsh(H)
        least = {f"block_min/{k}": float(torch.linalg.eigvalsh(K)[0]) for k, K in blocks.items()}
        return least | {"gram_min": float(values[0]), "gram_max": float(values[-1])}

    def trajectory(self, kind: str, *, step: float = 0.0, stopped: str = "") -> Trajectory:
        """Return everything written so far."""
        flat = {k: np.asarray(v) for k, v in self.rows.items()}
        nothing = np.zeros(0)
        blank = Trajectory(
            kind,
            nothing,
            nothing.astype(np.int64),
            np.zeros((0, *self.oracle.y.shape)),
            _numpy(self.oracle.y),
            step=step,
            y_test=None if self.record.test is None else _numpy(self.record.test[1]),
            start=self.start,
            end=self.end,
            stopped=stopped,
        )
        return blank._with(flat)


def _norm(p: Tensor) -> float:
    """Return the operator norm of a matrix, the length of a vector."""
    if p.ndim < 2:
        return float(p.norm())
    matrix = p.flatten(1)
    if not bool(torch.isfinite(matrix).all()):  # a product of finite weights can overflow
        return math.inf
    return operator_norm(matrix, method="lanczos" if min(matrix.shape) >= LARGE else "svd")


def _numpy(t: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return t.detach().cpu().double().numpy()
