"""Monotone DEQs that satisfy the conditions of nguyen2022 or break them, and their descents.

The theorems ask for well-conditioned features and labels that are near. Both are arranged here:
inputs along orthogonal directions, a read-out that starts at zero, and labels just below the size
at which a condition would fail. A descent is recorded with its weights and states, so that each
lemma of the proof can be measured along it.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from deqbook.bounds.conditions import Conditions
from deqbook.bounds.monotone import (
    Radii,
    Scales,
    descent_conditions,
    flow_conditions,
    readout_radius,
    scales,
)
from deqbook.dynamics import Record, Trajectory, gradient_flow
from deqbook.kernels import empirical_ntk
from deqbook.linalg import eye
from deqbook.models import MonDEQ, gradient
from deqbook.pages.p03c_monotone_opteq.lab.monotone_bounds import printed_descent_conditions
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Newton

STEPS = 150  # of descent
NAMES = ("A", "B", "U", "a")
CONDITIONS = {"flow": (flow_conditions, 4.0), "descent": (descent_conditions, 8.0)}


def zeros(*shape: int) -> Tensor:
    """Return zeros in double precision."""
    return torch.zeros(*shape, dtype=torch.float64)


# --- networks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A network, its data and the balls around its weights."""

    model: MonDEQ
    X: Tensor
    y: Tensor
    radii: Radii

    @property
    def scales(self) -> Scales:
        """The numbers the bounds are made of."""
        return scales(self.model, self.X, self.y, self.radii)

    @property
    def sigma_min(self) -> float:
        """The least of the min(m, n) singular values of Z(0): σ_Z, if the width allows it."""
        with torch.no_grad():
            return float(torch.linalg.svdvals(self.model.solve(self.X, tol=1e-12).z)[-1])

    def conditions(self, kind: str) -> Conditions:
        """Return Condition 1 (``flow``) or Condition 2′ (``descent``)."""
        return CONDITIONS[kind][0](self.model, self.X, self.y, self.radii)


def balls(model: MonDEQ, X: Tensor, y: Tensor, kind: str) -> Radii:
    """Choose R_A = R_B = 0.2, R_U = 0.1, and R_a one per cent above the least possible."""
    return Radii(0.2, 0.2, 0.1, 1.01 * readout_radius(model, X, y, 0.1, factor=CONDITIONS[kind][1]))


def near_labels(model: MonDEQ, X: Tensor, y: Tensor, kind: str, size: float = 0.95) -> Task:
    """Shrink the labels to ``size`` times the largest for which all conditions hold.

    For a(0) = 0 every need ÷ have is proportional to ‖y‖², except that of a, which is constant.
    """
    at = Task(model, X, y, balls(model, X, y, kind)).conditions(kind)
    worst = max(c.ratio for c in at.conditions if c.name != "a stays")
    y = size / math.sqrt(worst) * y
    return Task(model, X, y, balls(model, X, y, kind))


def orthogonal_network(seed: int, m: int = 4) -> tuple[MonDEQ, Tensor, Tensor]:
    """Return a MonDEQ whose features are nearly the identity: U aligned with three inputs.

    μ = 1, A and B are small and random, a = 0; X is orthogonal and y a random direction.
    """
    g = generator(seed)
    X = torch.linalg.qr(normal(3, 3, g=g))[0]
    A, B = (0.05 * normal(m, m, g=g) for _ in range(2))
    rows = torch.cat([eye(3), torch.full((1, 3), 0.2, dtype=torch.float64)])[:m]
    U = (rows + 0.02 * normal(m, 3, g=g)) @ X
    y = normal(3, g=g)
    return MonDEQ(A, B, U, zeros(m), 1.0), X, y / y.norm()


def random_network(seed: int, m: int = 16, n: int = 4) -> tuple[MonDEQ, Tensor, Tensor]:
    """Return a network of the package's random initialisation with a(0) = 0."""
    model = MonDEQ.init(m, 5, mu=0.5, seed=seed)
    with torch.no_grad():
        model.a.zero_()
    return model, sphere(n, 5, seed + 100), normal(n, g=generator(seed + 200))


def satisfied(seed: int, kind: str) -> Task:
    """Return the orthogonal network with labels near enough for Condition 1 or 2′."""
    return near_labels(*orthogonal_network(seed), kind)


def equal_inputs(task: Task) -> Task:
    """Make the second input equal to the first, and their labels opposite."""
    X = task.X.clone()
    X[1] = X[0]
    y = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    return replace(task, X=X, y=y * (task.y.norm() / y.norm()))


def thin(seed: int, kind: str) -> Task:
    """Return a network of width 2 for three samples, with labels its features cannot reach."""
    model, X, _ = orthogonal_network(seed, m=2)
    z = model.solve(X, tol=1e-12).z
    y = torch.linalg.svd(z)[0][:, 2]  # orthogonal to every feature
    size = float(satisfied(seed, kind).y.norm())
    return Task(model, X, size * y, Radii(0.2, 0.2, 0.1, 0.1))


def printed_instance(seed: int) -> Task:
    """Return a network with tiny μ, on which Condition 2 as printed holds."""
    g = generator(seed)
    mu = 0.09 + 0.01 * float(torch.rand(1, generator=g))
    A, B = (0.001 * normal(2, 2, g=g) for _ in range(2))
    y = normal(2, g=g)
    model = MonDEQ(A, B, eye(2), zeros(2), mu)
    return Task(model, eye(2), 1e-4 * y / y.norm(), Radii(0.1, 0.1, 0.1, 0.02))


def still(seed: int) -> Task:
    """Return W = (1-μ)I with orthogonal features of one size: σ_Z² is as large as it can be."""
    mu = 0.1 + float(torch.rand(1, generator=generator(seed)))
    model, tiny = MonDEQ(zeros(4, 4), zeros(4, 4), eye(4), zeros(4), mu), 1e-6
    return Task(model, eye(4), tiny * torch.ones(4, dtype=torch.float64), Radii(*[tiny] * 4))


def away(seed: int, mu: float = 1.0, size: float = 1e-3) -> Task:
    """Return a network whose read-out is not zero, with labels ``size`` away from its predictions.

    For small ``size`` the balls satisfy (3.16), but (3.18′) is far from true.
    """
    model, X, y = orthogonal_network(seed)
    a = normal(model.m, g=generator(seed + 300))
    model = MonDEQ(model.A.detach(), model.B.detach(), model.U.detach(), a / a.norm(), mu)
    with torch.no_grad():
        y = model(X) + size * y
    return Task(model, X, y, Radii(0.2, 0.2, 0.1, 0.1))


def crossed(seed: int, label: float = 1e-5, size: float = 0.05) -> Task:
    """Return one input x = (1, 1)/√2 with a = (1, -1)/√2: the bounds on U and a are attained."""
    mu = 0.5 + float(torch.rand(1, generator=generator(seed)))
    up, half = 1.0 if seed % 2 else -1.0, math.sqrt(0.5)
    a = torch.tensor([half, -half], dtype=torch.float64)
    model = MonDEQ(size * eye(2), zeros(2, 2), eye(2), a, mu)
    X, y = a.abs()[None], torch.tensor([up * label], dtype=torch.float64)
    return Task(model, X, y, Radii(1e-3, 1e-3, 1e-3, 1e-3))


# --- pairs of networks --------------------------------------------------------------------------


def moved(model: MonDEQ, size: float, g: torch.Generator) -> MonDEQ:
    """Return the model with all its weights moved at random."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(normal(*p.shape, g=g), alpha=size)
    return other


def aligned(seed: int, push: float = 1e-3) -> tuple[MonDEQ, MonDEQ, Tensor]:
    """Return two networks for which both bounds on their distance are nearly equalities.

    All matrices are multiples of I, one positive input, a along it. From the second network to the
    first U, W and a all grow, by about ``push``.
    """
    g = generator(seed)
    mu, x = 0.4 + 0.4 * float(torch.rand(1, generator=g)), normal(1, 3, g=g).abs() + 0.1
    a, zero = x[0] / x.norm(), zeros(3, 3)
    then = MonDEQ(math.sqrt(push) * eye(3), zero, eye(3), a, mu)
    now = MonDEQ(zero, zero, (1 + push) * eye(3), (1 + push) * a, mu)
    return now, then, x


# --- descent, with everything the proof looks at -------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Weights, assembled W, states and errors at every step of a descent, and its step."""

    weights: dict[str, Tensor]
    Z: Tensor
    e: Tensor
    eta: float

    @property
    def loss(self) -> Tensor:
        """The losses."""
        return 0.5 * self.e.pow(2).sum(1)

    def steps(self, name: str) -> Tensor:
        """Return the norms of the steps: Frobenius, for W the operator norm."""
        return _size(name, self.weights[name][1:] - self.weights[name][:-1])

    def displacement(self, name: str) -> Tensor:
        """Return the distances from the start, in the same norms."""
        return _size(name, self.weights[name][1:] - self.weights[name][0])

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return I₁, I₂ and I₃ of every step, from their definitions."""
        a, Z, e = self.weights["a"][..., None], self.Z, self.e[:-1]
        hidden = ((Z[1:] - Z[:-1]) @ a[1:])[..., 0]  # ŷ_{k+1} - Z_k a_{k+1}
        readout = (Z[:-1] @ (a[1:] - a[:-1]))[..., 0]  # Z_k a_{k+1} - ŷ_k
        first = 0.5 * (hidden + readout).pow(2).sum(1)
        return first, (hidden * e).sum(1), (readout * e).sum(1)


def _size(name: str, moves: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(moves, 2) if name == "W" else moves.flatten(1).norm(dim=1)


def descend(task: Task, eta: float, steps: int, *, limit: float = math.inf) -> Run:
    """Run gradient descent and keep everything; stop once the loss exceeds ``limit``."""
    model = copy.deepcopy(task.model)
    rows: dict[str, list[Tensor]] = {name: [] for name in (*NAMES, "W")}
    states, errors, found = [], [], None
    for _ in range(steps + 1):
        found = gradient(
            model,
            task.X,
            task.y,
            z0=None if found is None else found.z,
            solver=Newton(),
            adjoint_solver=Newton(),
            tol=1e-11,
        )
        for name, kept in rows.items():
            kept.append(getattr(model, name).detach().clone())
        states.append(found.z)
        errors.append(found.error)
        if not found.loss <= limit:
            break
        with torch.no_grad():
            for name, slope in found.grads.items():
                getattr(model, name).sub_(slope, alpha=eta)
    weights = {name: torch.stack(kept) for name, kept in rows.items()}
    return Run(weights, torch.stack(states), torch.stack(errors), eta)


# Tasks with a step: the largest admitted, one that is too long, and the printed one.


def admitted_step(seed: int) -> tuple[Task, float]:
    """Return a task that satisfies Condition 2′ and the largest step admitted."""
    task = satisfied(seed, "descent")
    return task, task.conditions("descent").step


def too_long_step(seed: int) -> tuple[Task, float]:
    """Return the same task and twice the stability limit 2/λ_max(H)."""
    task = satisfied(seed, "descent")
    return task, 4 / float(torch.linalg.eigvalsh(empirical_ntk(task.model, task.X))[-1])


def printed_step(seed: int) -> tuple[Task, float]:
    """Return a task on which Condition 2 as printed holds, and the step it admits."""
    task = printed_instance(seed)
    printed = printed_descent_conditions(task.model, task.X, task.y, task.radii)
    if not printed.holds:
        raise AssertionError(f"the printed condition must hold here:\n{printed}")
    return task, printed.step


# Tasks with their descent.


@cache
def admitted(seed: int) -> tuple[Task, Run]:
    """Return a task that satisfies Condition 2′ and its descent at the largest step admitted."""
    task, eta = admitted_step(seed)
    return task, descend(task, eta, STEPS)


@cache
def overstepping(seed: int) -> tuple[Task, Run]:
    """Return the same task and its descent at twice the stability limit 2/λ_max(H)."""
    task, eta = too_long_step(seed)
    return task, descend(task, eta, 60, limit=1e9 * float(task.y.pow(2).sum()))


def ascending(seed: int) -> tuple[Task, Run]:
    """Return the same task and a run whose step has the wrong sign."""
    task, run = admitted(seed)
    return task, descend(task, -run.eta, 50)


def unseparated(seed: int) -> tuple[Task, Run]:
    """Return the same task, and the descent after two of its inputs are made equal."""
    task, run = admitted(seed)
    return task, descend(equal_inputs(task), run.eta, STEPS)


def too_thin(seed: int) -> tuple[Task, Run]:
    """Return the network of width 2 and a short descent."""
    task = thin(seed, "descent")
    return task, descend(task, 1e-3, 10)


def as_printed(seed: int) -> tuple[Task, Run]:
    """Return the task of ``printed_step`` and one step."""
    task, eta = printed_step(seed)
    return task, descend(task, eta, 1)


# Tasks with their flow.


def integrate(task: Task, until: float) -> Trajectory:
    """Integrate the gradient flow, recording sixteen times."""
    times = [until * k / 16 for k in range(17)]
    return gradient_flow(
        task.model,
        task.X,
        task.y,
        times,
        rtol=1e-8,
        atol=1e-10,
        record=Record(gram=True),
        solver=Newton(),
        adjoint_solver=Newton(),
    )


@cache
def flowing(seed: int) -> tuple[Task, Trajectory]:
    """Return a task that satisfies Condition 1 and its flow until t = 8."""
    task = satisfied(seed, "flow")
    return task, integrate(task, 8.0)


def flowing_unseparated(seed: int) -> tuple[Task, Trajectory]:
    """Return the same task, and the flow after two of its inputs are made equal."""
    task = satisfied(seed, "flow")
    return task, integrate(equal_inputs(task), 4.0)


def flowing_thin(seed: int) -> tuple[Task, Trajectory]:
    """Return the network of width 2 and its flow."""
    task = thin(seed, "flow")
    return task, integrate(task, 4.0)
