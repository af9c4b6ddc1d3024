r"""Gradient flow as a path-kernel machine: what each sample contributed to each prediction.

Along :math:`\dot\theta=-\nabla\mathcal L` with :math:`\mathcal L=\tfrac12\|e\|^2` the output at
*any* input moves by :math:`\dot f_t(x)=-\sum_ie_i(t)\,k_t(x,x_i)`, with the tangent kernel
:math:`k_t(x,x')=\langle\partial_\theta f_t(x),\partial_\theta f_t(x')\rangle` of the moment. Hence
the exact identity (gao2023.pathkernel)

.. math:: f_T(x)-f_0(x)=\sum_ic_i(x),\qquad c_i(x)=-\int_0^Te_i(t)\,k_t(x,x_i)\,dt .

Domingos writes :math:`c_i(x)=a_i(x)\,\bar k(x,x_i)` with the path kernel
:math:`\bar k=\int_0^Tk_t\,dt` and :math:`a_i(x)=-\int e_ik_t/\int k_t`, a weighted average of
:math:`-e_i(t)`. That needs :math:`k_t(x,x_i)` of one sign, and the coefficient depends on x: it is
a kernel machine in the usual sense, one coefficient per sample, only when the kernel keeps its
shape.

The flow, the contributions and the path kernel are integrated together by the classical
Runge-Kutta method with fixed steps. Where no unit changes side the identity holds to
:math:`O(h^4)`; a unit that changes side inside a step costs :math:`O(h)` times the jump of the
kernel. ``PathKernel.defect`` says what was reached.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deqbook.dynamics.loss_gradient import LeftRegion, LossGradient, NoGradient
from deqbook.dynamics.trajectory import Trajectory
from deqbook.kernels import gram_of_tangents
from deqbook.models.base import EquilibriumModel
from deqbook.models.closed_form import (
    ClosedGradient,
    ClosedKernel,
    Tangents,
    adjoint_states,
)
from deqbook.solvers import NotConverged

# stage j is evaluated at θ + node_j·h·(velocity of stage j-1); the step is the weighted mean
TABLEAUX = {
    "rk4": ((0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
    "descent": ((0.0,), (1.0,)),
}


@dataclass(frozen=True, repr=False)
class PathKernel:
    r"""A run with its tangent kernels and the contribution of each sample to each point.

    Row j of every tensor belongs to ``times[j]``. ``predictions`` (T, n) and ``point_predictions``
    (T, p) are the outputs on the sample and at the points; ``H`` (T, n, n) and ``k`` (T, p, n) the
    tangent kernels on the sample and between points and sample. ``contributions`` (T, p, n) is
    :math:`-\int_0^te_i(s)\,k_s(x,x_i)\,ds` and ``path`` (T, p, n) is
    :math:`\int_0^tk_s(x,x_i)\,ds`; ``impulse`` (T, n) is :math:`\int_0^te_i(s)\,ds`. ``flips``
    counts the units (over the sample) on the other side than at the start; ``end`` are the trained
    weights at the last time.
    """

    times: Tensor
    y: Tensor
    predictions: Tensor
    point_predictions: Tensor
    H: Tensor
    k: Tensor
    contributions: Tensor
    path: Tensor
    impulse: Tensor
    flips: Tensor
    end: Mapping[str, Tensor]

    def __repr__(self) -> str:
        until, (_, p, n) = float(self.times[-1]), self.k.shape
        return f"PathKernel({n} samples, {p} points, to t = {until:.4g}, defect {self.defect:.2g})"

    @property
    def error(self) -> Tensor:
        r"""Return :math:`e=\hat y-y`, one row per time."""
        return self.predictions - self.y

    @property
    def defect(self) -> float:
        r"""Return :math:`\max|f_t(x)-f_0(x)-\sum_ic_i(x)|`: zero but for the discretisation."""
        moved = self.point_predictions - self.point_predictions[0]
        return float((moved - self.contributions.sum(dim=2)).abs().max())

    @property
    def coefficients(self) -> Tensor:
        r"""Return Domingos' :math:`a_i(x)=c_i(x)/\bar k(x,x_i)` at the end, (p, n).

        A weighted average of :math:`-e_i` over time, different at each point x. It is NaN where
        :math:`k_t(x,x_i)` took both signs among the recorded times, for then it is no average.
        """
        one_sign = (self.k > 0).all(dim=0) | (self.k < 0).all(dim=0)
        ratio = self.contributions[-1] / self.path[-1]
        return torch.where(one_sign, ratio, torch.full_like(ratio, torch.nan))

    @property
    def kernel_change(self) -> Tensor:
        r"""Return :math:`\|H(t)-H(0)\|`, one operator norm per time."""
        return torch.linalg.matrix_norm(self.H - self.H[0], 2)

    @torch.no_grad()
    def restore(self, model: EquilibriumModel) -> None:
        """Load the weights at the end of the run into a model."""
        for name, p in model.named_parameters():
            if name in self.end:
                p.copy_(self.end[name])


def path_kernel(
    model: EquilibriumModel,
    X: Tensor,
    y: Tensor,
    points: Tensor,
    times: Sequence[float] | NDArray[Any],
    *,
    substeps: int = 1,
    method: str = "rk4",
    tol: float = 1e-12,
) -> PathKernel:
    r"""Follow the flow through ``times`` (from 0 on) and split what it learns by sample.

    Each interval is divided into ``substeps`` Runge-Kutta steps. ``method="descent"`` takes steps
    of gradient descent instead, of length interval/substeps, and left sums for the integrals: the
    identity then holds up to :math:`O(\eta)`. Steps beyond
    :math:`2/\lambda_{\max}(H)` (descent) or :math:`2.78/\lambda_{\max}(H)` (Runge-Kutta) are
    unstable. The model needs a closed form of its kernel; it is not changed.
    """
    grid = np.asarray(times, dtype=float)
    ordered = grid.ndim == 1 and len(grid) > 1 and grid[0] == 0 and bool((np.diff(grid) > 0).all())
    if not ordered or not np.isfinite(grid[-1]):
        raise ValueError("times must start at 0 and increase, with at least two finite entries.")
    if substeps < 1:
        raise ValueError(f"substeps must be at least 1, got {substeps}.")
    if method not in TABLEAUX:
        raise ValueError(f"method must be one of {sorted(TABLEAUX)}, got {method!r}.")
    walk = _Walk(model, X, y, points, tol)
    try:
        walk.note(0.0)
        for a, b in itertools.pairwise(grid):
            for _ in range(substeps):
                walk.step((b - a) / substeps, *TABLEAUX[method])
            walk.note(float(b))
    except NoGradient as reason:
        reached = walk.rows["times"][-1] if walk.rows else 0.0
        stopped = f"after t = {reached:.4g}: {reason}. Take shorter steps, or a wider network."
        raise LeftRegion(stopped, walk.trajectory(stopped)) from None
    end = {name: p.detach().clone() for name, p in walk.source.trained.items()}
    return PathKernel(y=y, end=end, **{k: _stacked(v, y) for k, v in walk.rows.items()})


def _settle(f: Callable[[Tensor], Tensor], z: Tensor, tol: float) -> Tensor | None:
    """Iterate a contraction on all rows at once, and look at the residual every other time.

    A run asks for thousands of small solves, and the bookkeeping of ``fixed_point`` (per sample,
    per step) would cost ten times the products. None says that the iteration did not settle.
    """
    for _ in range(300):
        last = f(z)
        z = f(last)
        change = float((z - last).norm(dim=1).max())
        if change <= tol * max(1.0, float(z.norm(dim=1).min())):
            return z
        if not math.isfinite(change):
            return None
    return None


def _stacked(rows: list[Any], like: Tensor) -> Tensor:
    if isinstance(rows[0], Tensor):
        return torch.stack(rows)
    return torch.tensor(rows, dtype=like.dtype)


@dataclass(frozen=True)
class _Rates:
    """The velocity of everything that is integrated, and the kernels at the moment."""

    weights: dict[str, Tensor]
    error: Tensor
    contributions: Tensor
    k: Tensor
    H: Tensor
    predictions: Tensor
    point_predictions: Tensor
    on: Tensor


class _Walk:
    """The weights on their way, and what has been summed up so far."""

    def __init__(self, model: EquilibriumModel, X: Tensor, y: Tensor, points: Tensor, tol: float):
        if not (isinstance(model, ClosedGradient) and isinstance(model, ClosedKernel)):
            raise TypeError(
                f"no closed form of gradient and kernel for {type(model).__name__}; path_kernel "
                "needs both, as ReLUImplicit, VanillaDEQ and MonDEQ have them."
            )
        # checks the data, copies the model
        self.source = LossGradient(model, X, y, None, None, tol)
        self.rows_of = torch.cat([X, points])
        self.z: Tensor | None = None  # the last states, sample and points together: a warm start
        self.feedback: Tensor | None = None  # of the adjoint states, what is left without D ∘ a
        self.tol = tol
        self.now = self.rates()
        self.first = self.now.on
        self.contributions = torch.zeros_like(self.now.k)
        self.path = torch.zeros_like(self.now.k)
        self.impulse = torch.zeros_like(y)
        self.rows: dict[str, list[Any]] = {}
        self.start = self.source.weights()

    @torch.no_grad()
    def rates(self) -> _Rates:
        model, n = self.source.model, len(self.source.y)
        assert isinstance(model, ClosedGradient) and isinstance(model, ClosedKernel)  # noqa: PT018
        both = self._tangents()
        outputs = model.readout(both.z, both.q)
        e = outputs[:n] - self.source.y
        if not math.isfinite(float(e.square().sum())):
            raise NoGradient("the predictions have overflowed")
        sample = both.rows(slice(n))
        grads = model.gradients(sample, e)
        kernel = torch.stack(list(gram_of_tangents(model, both, sample).values())).sum(dim=0)
        return _Rates(
            weights={name: -grads[name] for name in self.source.trained},
            error=e,
            contributions=-kernel[n:] * e,
            k=kernel[n:],
            H=kernel[:n],
            predictions=outputs[:n],
            point_predictions=outputs[n:],
            on=sample.z > 0,
        )

    def _tangents(self) -> Tangents:
        """Solve for states and adjoint states of sample and points, in one batch."""
        model = self.source.model
        assert isinstance(model, ClosedGradient)
        shape, q = model.structure(), model.inject(self.rows_of)
        W, sigma, a = shape.W, shape.sigma, model.a
        z = None
        iterates = model.default_solver.any_map  # a cell that is split need not contract
        if iterates:
            near = q if self.z is None else self.z
            z = _settle(lambda z: sigma(torch.addmm(q, z, W.mT)), near, self.tol)
        try:
            if z is None:
                z = model.solve(self.rows_of, self.z, tol=self.tol).z
            slopes = sigma.slope(torch.addmm(q, z, W.mT))
            direct, v = slopes * a, None
            near = direct if self.feedback is None else direct + self.feedback
            if iterates:
                v = _settle(lambda v: slopes * torch.addmm(a, v, W), near, self.tol)
            if v is None:
                solver = model.adjoint_solver()
                v = adjoint_states(W, slopes, a, v0=near, solver=solver, tol=self.tol)
        except NotConverged as error:
            raise NoGradient(f"no equilibrium was found ({error})") from None
        self.z, self.feedback = z, v - direct
        return Tangents(self.rows_of, q, z, v)

    @torch.no_grad()
    def step(self, h: float, nodes: Sequence[float], shares: Sequence[float]) -> None:
        trained = self.source.trained
        before = {name: p.clone() for name, p in trained.items()}
        moved = {name: torch.zeros_like(p) for name, p in trained.items()}
        stage = self.now
        for node, share in zip(nodes, shares):
            if node > 0:
                for name, p in trained.items():
                    p.copy_(before[name] + node * h * stage.weights[name])
                stage = self.rates()
            for name, v in stage.weights.items():
                moved[name] += share * h * v
            self.contributions = self.contributions + share * h * stage.contributions
            self.path = self.path + share * h * stage.k
            self.impulse = self.impulse + share * h * stage.error
        for name, p in trained.items():
            p.copy_(before[name] + moved[name])
        self.now = self.rates()

    def note(self, time: float) -> None:
        now = self.now
        row = {
            "times": time,
            "predictions": now.predictions,
            "point_predictions": now.point_predictions,
            "H": now.H,
            "k": now.k,
            "contributions": self.contributions,
            "path": self.path,
            "impulse": self.impulse,
            "flips": float((now.on != self.first).sum()),
        }
        for key, value in row.items():
            self.rows.setdefault(key, []).append(value)

    def trajectory(self, stopped: str) -> Trajectory:
        """Return what came before a run was lost, for the error to carry."""
        rows = self.rows
        count = len(rows.get("times", []))
        seen = [p.numpy() for p in rows.get("predictions", [])]
        return Trajectory(
            "flow",
            np.asarray(rows.get("times", []), dtype=float),
            np.arange(count),
            np.asarray(seen).reshape(count, *self.source.y.shape),
            self.source.y.numpy(),
            start=self.start,
            stopped=stopped,
        )
