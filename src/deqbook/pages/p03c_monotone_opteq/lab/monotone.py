"""Monotone DEQs that satisfy the conditions of nguyen2022 or break them, and their descents.

The theorems ask for well-conditioned features and labels that are near. Both are arranged here:
inputs along orthogonal directions, and labels at one per cent below the distance at which a
condition would fail. The read-out does not start at zero, so that all weights move, and μ = 0.3,
so that every power of it counts. A descent is recorded with its weights and states, so that each
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
from deqbook.linalg import eye, relative
from deqbook.models import MonDEQ, gradient
from deqbook.pages.p03c_monotone_opteq.lab.monotone_bounds import printed_descent_conditions
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Newton

MU = 0.3  # far from 1: a lost power of μ is a factor 3.3
STEPS = 150  # of descent
PROMISE = 1e-3  # to what share of the first loss a theorem must promise to bring it
FLOOR = 1e-12  # of the first loss: below it rounding takes over
SHARE = 0.99  # of the largest distance of the labels
NAMES = ("A", "B", "U", "a")
HIDDEN = "hidden weights move little"  # the name of (3.18′)
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


def orthogonal_network(
    seed: int, m: int = 4, *, mu: float = MU, readout: float = 0.0
) -> tuple[MonDEQ, Tensor, Tensor]:
    """Return a MonDEQ whose features are nearly a multiple of I: U aligned with three inputs.

    A and B are small and random, a is a random direction times ``readout``; X is orthogonal and y
    a random direction.
    """
    g = generator(seed)
    X = torch.linalg.qr(normal(3, 3, g=g))[0]
    A, B = (0.05 * mu * normal(m, m, g=g) for _ in range(2))
    rows = torch.cat([eye(3), torch.full((1, 3), 0.2, dtype=torch.float64)])[:m]
    U = (rows + 0.02 * normal(m, 3, g=g)) @ X
    y, a = normal(3, g=g), normal(m, g=g)
    return MonDEQ(A, B, U, readout * a / a.norm(), mu), X, y / y.norm()


def random_network(seed: int, m: int = 16, n: int = 4) -> tuple[MonDEQ, Tensor, Tensor]:
    """Return a network of the package's random initialisation with a(0) = 0."""
    model = MonDEQ.init(m, 5, mu=0.5, seed=seed)
    with torch.no_grad():
        model.a.zero_()
    return model, sphere(n, 5, seed + 100), normal(n, g=generator(seed + 200))


def labelled(model: MonDEQ, X: Tensor, error: Tensor, radii: Radii) -> Task:
    """Return the task whose labels leave this first error."""
    with torch.no_grad():
        return Task(model, X, model.solve(X, tol=1e-13).z @ model.a - error, radii)


def at_edge(
    model: MonDEQ, X: Tensor, direction: Tensor, radii: Radii, kind: str, share: float = SHARE
) -> Task:
    """Put the labels at ``share`` of the largest distance; every need but that of C₁ is ∝ ‖e₀‖."""
    tiny = 1e-4
    asked = labelled(model, X, tiny * direction, radii).conditions(kind).conditions
    worst = max(c.ratio for c in asked if c.name != HIDDEN)
    return labelled(model, X, share * tiny / worst * direction, radii)


def quiet(model: MonDEQ, X: Tensor, radii: Radii) -> tuple[MonDEQ, Radii]:
    """Scale the read-out to 99 % of the largest that (3.18′) allows, with R_a a tenth of it."""
    radii = replace(radii, a=0.1 * float(model.a.detach().norm()))
    hidden = labelled(model, X, zeros(len(X)), radii).conditions("descent")[HIDDEN]
    factor = math.sqrt(SHARE / hidden.ratio)
    return with_readout(model, factor * model.a.detach()), replace(radii, a=factor * radii.a)


def with_readout(model: MonDEQ, a: Tensor) -> MonDEQ:
    """Return the network with another read-out."""
    return MonDEQ(model.A.detach(), model.B.detach(), model.U.detach(), a, model.mu)


def satisfied(seed: int, kind: str) -> Task:
    """Return the orthogonal network at the edge of Condition 1 or 2′; a(0) is not zero.

    Condition 1 admits a read-out of norm 0.3, with which the hidden weights do a good part of the
    work; Condition 2′ only a small one.
    """
    model, X, direction = orthogonal_network(seed, readout=0.3)
    radii = Radii(0.2, 0.2, 0.1, 0.1)
    if kind == "descent":
        model, radii = quiet(model, X, radii)
    return at_edge(model, X, direction, radii, kind)


def lively(seed: int) -> Task:
    """Return the orthogonal network with a read-out of norm 0.3: all of Condition 2′ but (3.18′).

    The lemmas on one step and the propositions do not need (3.18′).
    """
    model, X, direction = orthogonal_network(seed, readout=0.3)
    return at_edge(model, X, direction, Radii(0.2, 0.2, 0.1, 0.1), "descent")


def equal_inputs(task: Task) -> Task:
    """Make the second input equal to the first, and their labels differ; ‖e₀‖ stays."""
    X = task.X.clone()
    X[1] = X[0]
    error = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    return labelled(task.model, X, error * (task.scales.e0 / error.norm()), task.radii)


def thin(seed: int, kind: str) -> Task:
    """Return a network of width 2 for three samples, with an error its features cannot reach."""
    model, X, _ = orthogonal_network(seed, m=2)
    z = model.solve(X, tol=1e-12).z
    unreached = torch.linalg.svd(z)[0][:, 2]  # orthogonal to every feature
    radii = Radii(0.2, 0.2, 0.1, 0.1)
    return labelled(model, X, satisfied(seed, kind).scales.e0 * unreached, radii)


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


def one_sample(
    seed: int,
    *,
    U: float = 1.0,
    A: float = 0.05,
    a: float = 1.0,
    error: float = 1e-6,
    room: float = 1e-3,
    along: bool = False,
) -> Task:
    """Return one input x ∝ (1, 1) of norm 1.5, U and A multiples of I, a orthogonal to x or along.

    μ is between 0.25 and 0.35, the radii are ``room`` times the norms, the error is ``error``. The
    bounds on the steps in U and a are attained, along x that in A too.
    """
    mu = 0.25 + 0.1 * float(torch.rand(1, generator=generator(seed)))
    up, half = 1.0 if seed % 2 else -1.0, math.sqrt(0.5)
    direction = torch.tensor([half, half if along else -half], dtype=torch.float64)
    model = MonDEQ(A * eye(2), zeros(2, 2), U * eye(2), a * direction, mu)
    off = torch.tensor([up * error], dtype=torch.float64)
    X = 1.5 * direction.abs()[None]  # not a unit vector, so that a lost power of ‖X‖ counts
    return labelled(model, X, off, Radii(room * A, room, room * U, room * a))


def single(seed: int) -> Task:
    """Return one sample at the edge of Condition 2′; its largest step is as long as it can be."""
    task = one_sample(seed, room=0.01)
    model, radii = quiet(task.model, task.X, replace(task.radii, A=0.05, B=0.05))
    direction = torch.full((1,), 1.0 if seed % 2 else -1.0, dtype=torch.float64)
    return at_edge(model, task.X, direction, radii, "descent")


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


def descend(
    task: Task, eta: float, steps: int, *, limit: float = math.inf, floor: float = 0.0
) -> Run:
    """Run gradient descent and keep everything; stop once the loss exceeds ``limit``.

    And stop once it is below ``floor`` times the first loss, where rounding takes over.
    """
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
        if not floor * 0.5 * float(errors[0].pow(2).sum()) <= found.loss <= limit:
            break
        with torch.no_grad():
            for name, slope in found.grads.items():
                getattr(model, name).sub_(slope, alpha=eta)
    weights = {name: torch.stack(kept) for name, kept in rows.items()}
    return Run(weights, torch.stack(states), torch.stack(errors), eta)


def automatic(model: MonDEQ, X: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the gradient by automatic differentiation through the equilibrium."""
    loss = 0.5 * (model(X, tol=1e-13) - y).pow(2).sum()
    return dict(zip(NAMES, torch.autograd.grad(loss, [getattr(model, k) for k in NAMES])))


def _off(moves: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest relative difference of two moves, weight by weight."""
    return max(relative(moves[k], expected[k]) for k in NAMES)


def off_gradient(task: Task, run: Run, steps: tuple[int, ...] = (0, 3)) -> float:
    """Return how far these steps of a run are from -η∇𝓛 by automatic differentiation."""
    model, found = copy.deepcopy(task.model), []
    for k in steps:
        with torch.no_grad():
            for name in NAMES:
                getattr(model, name).copy_(run.weights[name][k])
        slopes = automatic(model, task.X, task.y)
        moves = {name: run.weights[name][k + 1] - run.weights[name][k] for name in NAMES}
        found.append(_off(moves, {name: -run.eta * slope for name, slope in slopes.items()}))
    return float(torch.tensor(found).max())


def off_step(task: Task, run: Trajectory) -> float:
    """Return how far the only step of a run is from -η∇𝓛 by automatic differentiation."""
    slopes = automatic(copy.deepcopy(task.model), task.X, task.y)
    moves = {k: torch.as_tensor(run.end[k] - run.start[k]) for k in NAMES}
    return _off(moves, {k: -run.step * slope for k, slope in slopes.items()})


def top(task: Task) -> float:
    """Return λ_max(H) at the start."""
    return float(torch.linalg.eigvalsh(empirical_ntk(task.model, task.X))[-1])


def steps_to_promise(eta: float, sigma: float) -> int:
    """Return the k for which (1-¼ησ_Z²)ᵏ is 10⁻³."""
    return math.ceil(math.log(PROMISE) / math.log1p(-eta * sigma**2 / 4))


# Tasks with a step: the largest admitted, one that is too long, and the printed one.


def admitted_step(seed: int) -> tuple[Task, float]:
    """Return the orthogonal task at the edge of Condition 2′ and the largest step admitted."""
    task = satisfied(seed, "descent")
    return task, task.conditions("descent").step


def single_step(seed: int) -> tuple[Task, float]:
    """Return one sample at the edge of Condition 2′ and the largest step admitted."""
    task = single(seed)
    return task, task.conditions("descent").step


def too_long_step(seed: int) -> tuple[Task, float]:
    """Return the same task and twice the stability limit 2/λ_max(H)."""
    task = single(seed)
    return task, 4 / top(task)


def twin_step(seed: int) -> tuple[Task, float]:
    """Return the orthogonal task with two of its inputs made equal, and the step of before."""
    task, eta = admitted_step(seed)
    return equal_inputs(task), eta


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
def working(seed: int) -> tuple[Task, Run]:
    """Return the lively task and its descent at η = ½/λ_max(H), until 10⁻³ is promised.

    Or until the loss is 10⁻¹² of the first, whichever comes first.
    """
    task = lively(seed)
    eta = 0.5 / top(task)
    steps = steps_to_promise(eta, task.scales.lambda0)
    return task, descend(task, eta, steps, floor=FLOOR)


@cache
def overstepping(seed: int) -> tuple[Task, Run]:
    """Return the lively task and its descent at four times the stability limit 2/λ_max(H)."""
    task = lively(seed)
    return task, descend(task, 8 / top(task), 60, limit=1e9 * task.scales.e0**2)


@cache
def fitted(seed: int, along: bool = False) -> tuple[Task, Run]:
    """Return one sample with a small read-out and its descent to the end at η = ½/λ_max(H).

    Features and slopes hardly move, so the whole way of each weight is known.
    """
    task = one_sample(seed, a=0.03, error=1e-6, along=along)
    return task, descend(task, 0.5 / top(task), 40)


def ascending(seed: int) -> tuple[Task, Run]:
    """Return the lively task and a run whose step has the wrong sign."""
    task, run = working(seed)
    return task, descend(task, -run.eta, 5)


def unseparated(seed: int) -> tuple[Task, Run]:
    """Return the lively task, and the descent after two of its inputs are made equal."""
    task, run = working(seed)
    return task, descend(equal_inputs(task), run.eta, 60)


def too_thin(seed: int) -> tuple[Task, Run]:
    """Return the network of width 2 and a short descent."""
    task = thin(seed, "descent")
    return task, descend(task, 1e-3, 10)


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
        atol=1e-13,
        record=Record(gram=True),
        solver=Newton(),
        adjoint_solver=Newton(),
    )


def off_flow(task: Task) -> float:
    """Return how far a short flow is from one Runge-Kutta step with automatic differentiation."""
    until, model = 0.1 / top(task), copy.deepcopy(task.model)
    run = gradient_flow(task.model, task.X, task.y, [0.0, until], solver=Newton())
    slopes: list[dict[str, Tensor]] = []
    for part in (0.0, 0.5, 0.5, 1.0):
        with torch.no_grad():
            for k in NAMES:
                move = slopes[-1][k] if slopes else torch.zeros_like(getattr(model, k))
                getattr(model, k).copy_(getattr(task.model, k) - part * until * move)
        slopes.append(automatic(model, task.X, task.y))
    one, two, three, four = slopes
    expected = {k: -until / 6 * (one[k] + 2 * two[k] + 2 * three[k] + four[k]) for k in NAMES}
    return _off({k: torch.as_tensor(run.end[k] - run.start[k]) for k in NAMES}, expected)


def until_promise(task: Task) -> float:
    """Return the time at which exp(-½σ_Z²t) is 10⁻³."""
    return -2 * math.log(PROMISE) / task.sigma_min**2


@cache
def flowing(seed: int) -> tuple[Task, Trajectory]:
    """Return a task at the edge of Condition 1 and its flow, until 10⁻³ is promised."""
    task = satisfied(seed, "flow")
    return task, integrate(task, until_promise(task))


@cache
def flowing_alone(seed: int) -> tuple[Task, Trajectory]:
    """Return one sample with a small read-out and its flow to the end."""
    task = one_sample(seed, a=0.03, error=1e-6)
    return task, integrate(task, until_promise(task))


@cache
def flowing_unseparated(seed: int) -> tuple[Task, Trajectory]:
    """Return the task of ``flowing``, and the flow after two of its inputs are made equal."""
    task = satisfied(seed, "flow")
    return task, integrate(equal_inputs(task), until_promise(task))


def flowing_thin(seed: int) -> tuple[Task, Trajectory]:
    """Return the network of width 2 and its flow."""
    task = thin(seed, "flow")
    return task, integrate(task, until_promise(task) / 4)
