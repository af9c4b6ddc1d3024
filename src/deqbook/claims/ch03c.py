"""Chapter 3c, gradient descent on the monotone DEQ: the thirteen claims of nguyen2022.

The theorems ask for well-conditioned features and labels that are near. Both are arranged here:
inputs along orthogonal directions, a read-out that starts at zero, and labels just below the size
at which a condition would fail. One descent is recorded, with its weights and states, and each
lemma of the proof is measured along it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
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
    matrix_perturbation,
    output_perturbation,
    printed_descent_conditions,
    readout_radius,
    scales,
    state_perturbation,
)
from deqbook.claims import opteq_training  # noqa: F401  (registers the page's claims of xie2022)
from deqbook.claims.registry import (
    Measurement,
    Trial,
    at_least,
    at_most,
    claim,
    equal,
    given,
    within,
)
from deqbook.dynamics import Record, Trajectory, gradient_descent, gradient_flow
from deqbook.kernels import empirical_ntk, gram_parts
from deqbook.linalg import operator_norm
from deqbook.models import MonDEQ
from deqbook.models.closed_form import gradient
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Newton

CHAPTER = "03c_monotone_opteq"
SAME = 1e-10  # two exact routes
STEPS = 150  # of descent
NAMES = ("A", "B", "U", "a")
CONDITIONS = {"flow": (flow_conditions, 4.0), "descent": (descent_conditions, 8.0)}


def _eye(m: int) -> Tensor:
    return torch.eye(m, dtype=torch.float64)


# --- networks that satisfy the conditions ------------------------------------------------------


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

    def conditions(self, kind: str) -> Conditions:
        """Return Condition 1 (``flow``) or Condition 2′ (``descent``)."""
        return CONDITIONS[kind][0](self.model, self.X, self.y, self.radii)


def _balls(model: MonDEQ, X: Tensor, y: Tensor, kind: str) -> Radii:
    """Choose R_A = R_B = 0.2, R_U = 0.1, and R_a one per cent above the least possible."""
    return Radii(0.2, 0.2, 0.1, 1.01 * readout_radius(model, X, y, 0.1, factor=CONDITIONS[kind][1]))


def near_labels(model: MonDEQ, X: Tensor, y: Tensor, kind: str, size: float = 0.95) -> Task:
    """Shrink the labels to ``size`` times the largest for which all conditions hold.

    For a(0) = 0 every need ÷ have is proportional to ‖y‖², except that of a, which is constant.
    """
    at = Task(model, X, y, _balls(model, X, y, kind)).conditions(kind)
    worst = max(c.ratio for c in at.conditions if c.name != "a stays")
    y = size / math.sqrt(worst) * y
    return Task(model, X, y, _balls(model, X, y, kind))


def orthogonal_network(seed: int, m: int = 4) -> tuple[MonDEQ, Tensor, Tensor]:
    """Return a MonDEQ whose features are nearly the identity: U aligned with three inputs.

    μ = 1, A and B are small and random, a = 0; X is orthogonal and y a random direction.
    """
    g = generator(seed)
    X = torch.linalg.qr(normal(3, 3, g=g))[0]
    A, B = (0.05 * normal(m, m, g=g) for _ in range(2))
    rows = torch.cat([_eye(3), torch.full((1, 3), 0.2, dtype=torch.float64)])[:m]
    U = (rows + 0.02 * normal(m, 3, g=g)) @ X
    y = normal(3, g=g)
    return MonDEQ(A, B, U, torch.zeros(m, dtype=torch.float64), 1.0), X, y / y.norm()


def satisfied(seed: int, kind: str, size: float = 0.95) -> Task:
    """Return the orthogonal network with labels near enough for Condition 1 or 2′."""
    return near_labels(*orthogonal_network(seed), kind, size)


def _random_network(seed: int, m: int = 16, n: int = 4) -> tuple[MonDEQ, Tensor, Tensor]:
    """Return a network of the package's random initialisation with a(0) = 0."""
    model = MonDEQ.init(m, 5, mu=0.5, seed=seed)
    with torch.no_grad():
        model.a.zero_()
    return model, sphere(n, 5, seed + 100), normal(n, g=generator(seed + 200))


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
    model = MonDEQ(A, B, _eye(2), torch.zeros(2, dtype=torch.float64), mu)
    return Task(model, _eye(2), 1e-4 * y / y.norm(), Radii(0.1, 0.1, 0.1, 0.02))


# --- perturbation of the equilibrium -----------------------------------------------------------


@torch.no_grad()
def _perturbation(
    now: MonDEQ, then: MonDEQ, X: Tensor, mu: float, label: Tensor | None = None
) -> tuple[float, float]:
    """Return ‖Z_k-Z_s‖_F and ‖ŷ_k-ŷ_s‖ (or ‖ŷ_k-y‖), each ÷ its bound with modulus ``mu``."""
    z, z0 = (model.solve(X, tol=1e-13).z for model in (now, then))
    x, U = float(X.norm()), operator_norm(then.U)
    dU, dW = operator_norm(now.U - then.U), operator_norm(now.W - then.W)
    states = state_perturbation(x, mu, dU=dU, dW=dW, U=U)
    da, a = float((now.a - then.a).norm()), float(now.a.norm())
    outputs = output_perturbation(x, mu, dU=dU, dW=dW, da=da, U=U, a=a)
    other = z0 @ then.a if label is None else label
    return float((z - z0).norm()) / states, float((z @ now.a - other).norm()) / outputs


def _moved(model: MonDEQ, size: float, g: torch.Generator) -> MonDEQ:
    """Return the model with all its weights moved at random."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(normal(*p.shape, g=g), alpha=size)
    return other


def _aligned(seed: int, push: float = 1e-3) -> tuple[MonDEQ, MonDEQ, Tensor]:
    """Return two networks for which both bounds are nearly equalities.

    All matrices are multiples of I, one positive input, a along it. From the second network to the
    first U, W and a all grow, by about ``push``.
    """
    g = generator(seed)
    mu, x = 0.4 + 0.4 * float(torch.rand(1, generator=g)), normal(1, 3, g=g).abs() + 0.1
    a, zero = x[0] / x.norm(), torch.zeros(3, 3, dtype=torch.float64)
    then = MonDEQ(math.sqrt(push) * _eye(3), zero, _eye(3), a, mu)
    now = MonDEQ(zero, zero, (1 + push) * _eye(3), (1 + push) * a, mu)
    return now, then, x


def _lemma_334(seed: int) -> Iterator[Measurement]:
    g, ratios = generator(seed), []
    for i, size in enumerate((1e-3, 1e-2, 0.1, 1.0)):
        model = MonDEQ.init(6, 4, mu=0.5, seed=10 * seed + i)
        ratios.append(_perturbation(_moved(model, size, g), model, normal(5, 4, g=g), 0.5))
    states, outputs = (max(column) for column in zip(*ratios))
    yield at_most("random: ‖Z_k-Z_s‖_F ÷ bound", states, 1.0)
    yield at_most("random: ‖ŷ_k-ŷ_s‖ ÷ bound", outputs, 1.0)


def _lemma_334_aligned(seed: int, factor: float = 1.0) -> Iterator[Measurement]:
    now, then, x = _aligned(seed)
    states, outputs = _perturbation(now, then, x, factor * now.mu)
    yield at_most("aligned: ‖Z_k-Z_s‖_F ÷ bound", states, 1.0)
    yield at_most("aligned: ‖ŷ_k-ŷ_s‖ ÷ bound", outputs, 1.0)


@claim(
    "nguyen2022.lemma3.3.4",
    title="Moving the weights moves the equilibria by at most ‖X‖(‖ΔU‖/μ + ‖ΔW‖‖U‖/μ²)",
    chapter=CHAPTER,
    ref="lem-mondeq-perturbation",
)
def perturbation(trial: Trial) -> Iterable[Measurement]:
    """Move random networks by 0.001 to 1, and one for which the bound is nearly attained."""
    yield from _lemma_334(trial.seed)
    yield from _lemma_334_aligned(trial.seed)


@perturbation.control("μ overstated by a factor 2")
def overstated_modulus(trial: Trial) -> Iterable[Measurement]:
    """The aligned pair moves twice as far as such a modulus allows."""
    return list(_lemma_334_aligned(trial.seed, factor=2.0))


@perturbation.control("labels in place of the second predictions, as printed")
def labels_for_predictions(trial: Trial) -> Iterable[Measurement]:
    """A small move of the weights does not bring the predictions to the labels."""
    g = generator(trial.seed)
    model = MonDEQ.init(6, 4, mu=0.5, seed=10 * trial.seed)
    X, y = normal(5, 4, g=g), normal(5, g=g)
    ratio = _perturbation(_moved(model, 1e-3, g), model, X, 0.5, label=y)[1]
    yield at_most("random: ‖ŷ_k-ŷ_s‖ ÷ bound", ratio, 1.0)


def _forward_backward(
    now: MonDEQ, then: MonDEQ, X: Tensor, alpha: float, mu: float, steps: int
) -> tuple[float, float, float]:
    """Run two forward-backward iterations beside the recursion of the proof.

    Returns the largest distance of the iterates ÷ its bound, the distance of the equilibria ÷ the
    limit of that bound, and the limit of the bound ÷ the lemma's. The contraction factors are
    L(T_α) = √(1-2αμ+α²L²) with L = ‖I-W‖.
    """
    with torch.no_grad():
        parts = [(model.W, model.inject(X)) for model in (now, then)]
        x, dW, dU = float(X.norm()), operator_norm(now.W - then.W), operator_norm(now.U - then.U)
        U = operator_norm(then.U)
        ends = [model.solve(X, tol=1e-13).z for model in (now, then)]
    factor, factor0 = (
        math.sqrt(1 - 2 * alpha * mu + (alpha * operator_norm(_eye(now.m) - W)) ** 2)
        for W, _ in parts
    )
    source = alpha * x * dU + alpha**2 * x * U * dW / (1 - factor0)
    states, bound, ratios = [torch.zeros_like(q) for _, q in parts], 0.0, []
    for _ in range(steps):
        states = [torch.relu(z - alpha * (z - z @ W.mT - q)) for z, (W, q) in zip(states, parts)]
        bound = factor * bound + source
        ratios.append((states[0] - states[1]).norm() / bound)
    limit, gap = source / (1 - factor), float((ends[0] - ends[1]).norm())
    lemma = state_perturbation(x, now.mu, dU=dU, dW=dW, U=U)
    return float(torch.stack(ratios).max()), gap / limit, limit / lemma


def _lemma_c06(
    pair: tuple[MonDEQ, MonDEQ, Tensor], name: str, overstated: float = 1.0
) -> Iterator[Measurement]:
    now, then, X = pair
    L = max(operator_norm(_eye(now.m) - model.W.detach()) for model in (now, then))
    mu, alpha = overstated * now.mu, now.mu / (4 * L**2)
    along, limit, _ = _forward_backward(now, then, X, alpha, mu, 200)
    tiny = _forward_backward(now, then, X, 1e-6 * alpha, mu, 1)[2]
    yield at_most(f"{name}: distance of the iterates ÷ bound, 200 steps", along, 1.0)
    yield at_most(f"{name}: distance of the equilibria ÷ limit of the bound", limit, 1.0)
    yield equal(f"{name}: limit of the bound ÷ the lemma's, step → 0", tiny, 1.0, 1e-4)


@claim(
    "nguyen2022.lemmaC.0.6",
    title="Forward-backward iterates stay near each other; step → 0 gives the perturbation bound",
    chapter=CHAPTER,
    ref="lem-mondeq-perturbation",
)
def perturbation_proof(trial: Trial) -> Iterable[Measurement]:
    """Follow the source's proof: unroll the splitting for both networks, then shrink its step."""
    g = generator(trial.seed)
    model = MonDEQ.init(6, 4, mu=0.5, seed=trial.seed)
    yield from _lemma_c06((_moved(model, 0.1, g), model, normal(5, 4, g=g)), "random")
    yield from _lemma_c06(_aligned(trial.seed), "aligned")


@perturbation_proof.control("μ overstated by a factor 2 in the contraction factors")
def overstated_factor(trial: Trial) -> Iterable[Measurement]:
    """The aligned iterates leave the recursion, and its limit is another number."""
    return list(_lemma_c06(_aligned(trial.seed), "aligned", overstated=2.0))


# --- perturbation of W -------------------------------------------------------------------------


def _difference(A: Tensor, dA: Tensor, dB: Tensor, *, quadratic: bool = True) -> Tensor:
    """Return -(AᵀΔA + ΔAᵀA + ΔAᵀΔA) + ΔB - ΔBᵀ."""
    square = dA.mT @ dA if quadratic else torch.zeros_like(A)
    return -(A.mT @ dA + dA.mT @ A + square) + dB - dB.mT


def _lemma_336(
    name: str,
    A: Tensor,
    dA: Tensor,
    dB: Tensor,
    *,
    quadratic: bool = True,
    twice: bool = True,
) -> Iterator[Measurement]:
    """Compare W(A+ΔA, B+ΔB) - W(A, B) with the formula and with the bound."""
    zero, m = torch.zeros_like(A), len(A)
    before, after = (
        MonDEQ(P, Q, zero, torch.zeros(m, dtype=torch.float64), 0.5).W.detach()
        for P, Q in ((A, zero), (A + dA, dB))
    )
    move = after - before
    formula = _difference(A, dA, dB, quadratic=quadratic)
    yield within(f"{name}: ΔW vs formula", float((move - formula).norm() / move.norm()), SAME)
    size, dA_, dB_ = (operator_norm(M) for M in (A, dA, dB))
    bound = matrix_perturbation(size, dA=dA_, dB=dB_ if twice else dB_ / 2)
    bound -= 0.0 if quadratic else dA_**2
    ratio = operator_norm(move) / bound
    if name == "random":
        yield at_most(f"{name}: ‖ΔW‖ ÷ bound", ratio, 1.0)
    else:
        yield equal(f"{name}: ‖ΔW‖ ÷ bound, attained", ratio, 1.0, SAME)


def _draws(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = generator(seed)
    A, dA, dB = (normal(5, 5, g=g) for _ in range(3))
    return A, dA, dB, torch.linalg.qr(normal(5, 5, g=g))[0]


@claim(
    "nguyen2022.lemma3.3.6",
    title="‖ΔW‖ ≤ 2‖A‖‖ΔA‖ + ‖ΔA‖² + 2‖ΔB‖",
    chapter=CHAPTER,
    ref="lem-mondeq-step",
)
def matrix_move(trial: Trial) -> Iterable[Measurement]:
    """Draw moves at random; then three for which the bound is an equality."""
    A, dA, dB, Q = _draws(trial.seed)
    yield from _lemma_336("random", A, dA, dB)
    yield from _lemma_336("ΔA parallel to A, ΔB = 0", Q, 0.5 * Q, 0 * Q)
    yield from _lemma_336("A = 0, ΔB = 0", 0 * Q, Q, 0 * Q)
    yield from _lemma_336("ΔA = 0, ΔB skew", A, 0 * A, dB - dB.mT)


@matrix_move.control("the quadratic term dropped")
def no_quadratic(trial: Trial) -> Iterable[Measurement]:
    """Both the formula and the bound need it."""
    Q = _draws(trial.seed)[3]
    return list(_lemma_336("ΔA parallel to A, ΔB = 0", Q, 0.5 * Q, 0 * Q, quadratic=False))


@matrix_move.control("‖ΔB‖ counted once")
def skew_once(trial: Trial) -> Iterable[Measurement]:
    """A skew ΔB enters W twice."""
    A, _, dB, _ = _draws(trial.seed)
    moves = list(_lemma_336("ΔA = 0, ΔB skew", A, 0 * A, dB - dB.mT, twice=False))
    return [m for m in moves if "bound" in m.name]


# --- one run of descent, with everything the proof looks at ------------------------------------


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


@cache
def admitted(seed: int) -> tuple[Task, Run]:
    """Return a task that satisfies Condition 2′ and its descent at the largest step admitted."""
    task = satisfied(seed, "descent")
    return task, descend(task, task.conditions("descent").step, STEPS)


@cache
def overstepping(seed: int) -> tuple[Task, Run]:
    """Return the same task and its descent at twice the stability limit 2/λ_max(H)."""
    task = satisfied(seed, "descent")
    eta = 4 / float(torch.linalg.eigvalsh(empirical_ntk(task.model, task.X))[-1])
    return task, descend(task, eta, 60, limit=1e9 * float(task.y.pow(2).sum()))


@cache
def unseparated(seed: int) -> tuple[Task, Run]:
    """Return the task with two inputs made equal and its descent; the scales are those before."""
    task, run = admitted(seed)
    return task, descend(equal_inputs(task), run.eta, STEPS)


def _hypotheses(task: Task, kind: str) -> Measurement:
    met = task.conditions(kind)
    least = min(c.have / c.need for c in met.conditions)
    return given(f"{met.source}: least have ÷ need", least, "≥", 1.0)


# --- one step of descent -----------------------------------------------------------------------


def _away(seed: int, mu: float = 1.0, size: float = 1e-3) -> Task:
    """Return a network whose read-out is not zero, with labels ``size`` away from its predictions.

    For small ``size`` the balls satisfy (3.16), but (3.18′) is far from true.
    """
    model, X, y = orthogonal_network(seed)
    g = generator(seed + 300)
    a = normal(model.m, g=g)
    model = MonDEQ(model.A.detach(), model.B.detach(), model.U.detach(), a / a.norm(), mu)
    with torch.no_grad():
        y = model(X) + size * y
    return Task(model, X, y, Radii(0.2, 0.2, 0.1, 0.1))


def _crossed(seed: int, label: float = 1e-5, size: float = 0.05) -> Task:
    """Return one input x = (1, 1)/√2 with a = (1, -1)/√2: the bounds on U and a are attained."""
    g = generator(seed)
    mu, up = 0.5 + float(torch.rand(1, generator=g)), 1.0 if seed % 2 else -1.0
    half, zero = math.sqrt(0.5), torch.zeros(2, 2, dtype=torch.float64)
    a = torch.tensor([half, -half], dtype=torch.float64)
    model = MonDEQ(size * _eye(2), zero, _eye(2), a, mu)
    X, y = a.abs()[None], torch.tensor([up * label], dtype=torch.float64)
    return Task(model, X, y, Radii(1e-3, 1e-3, 1e-3, 1e-3))


def _stays(task: Task) -> Measurement:
    """Measure (3.16), the part of Condition 2′ that the lemmas on one step use."""
    met = [c for c in task.conditions("descent").conditions if len(c.name) == len("A stays")]
    return given("(3.16): least have ÷ need", min(c.have / c.need for c in met), "≥", 1.0)


def _one_step(name: str, task: Task, run: Run, s: Scales) -> Iterator[Measurement]:
    for weight in (*NAMES, "W"):
        bounds = [s.steps(run.eta, float(e.norm()))[weight] for e in run.e[:-1]]
        ratios = run.steps(weight) / torch.tensor(bounds, dtype=torch.float64)
        yield at_most(f"{name}: step in {weight} ÷ bound", float(ratios.max()), 1.0)


@claim(
    "nguyen2022.lemma3.3.7",
    title="One step moves U, a, A, B, W by at most η‖X‖‖e‖ times a constant of the balls",
    chapter=CHAPTER,
    ref="lem-mondeq-step",
)
def one_step(trial: Trial) -> Iterable[Measurement]:
    """Measure all steps of a descent, and one from a network that nearly attains the bounds."""
    task, run = admitted(trial.seed)
    yield _stays(task)
    yield from _one_step("descent", task, run, task.scales)
    task = _crossed(trial.seed)
    yield from _one_step("crossed", task, descend(task, 0.1, 1), task.scales)


@one_step.control("μ overstated by a factor 2")
def step_modulus(trial: Trial) -> Iterable[Measurement]:
    """The steps of the crossed network are larger than such a modulus allows."""
    task = _crossed(trial.seed)
    s = replace(task.scales, mu=2 * task.model.mu)
    return list(_one_step("crossed", task, descend(task, 0.1, 1), s))


@one_step.control("(3.16) broken: labels so far that the quadratic term of ΔW leads")
def far_labels(trial: Trial) -> Iterable[Measurement]:
    """The bound on W replaced ‖ΔA‖² by something linear in ‖ΔA‖; that is no longer allowed."""
    task = _crossed(trial.seed, label=3e3, size=0.3)
    steps = list(_one_step("crossed", task, descend(task, 0.1, 1), task.scales))
    return [m for m in steps if "in W" in m.name]


# --- the induction: weights stay, features stay ------------------------------------------------


def _proposition5(task: Task, run: Run) -> Iterator[Measurement]:
    bounds = task.scales.displacements
    for name in (*NAMES, "W"):
        far = float(run.displacement(name).max())
        yield at_most(f"largest ‖{name}_k - {name}_0‖ ÷ bound", far / bounds[name], 1.0)


@claim(
    "nguyen2022.proposition5",
    title="While the loss falls at the promised rate, every weight stays in its ball",
    chapter=CHAPTER,
    ref="prop-mondeq-balls",
)
def weights_stay(trial: Trial) -> Iterable[Measurement]:
    """Sum the steps: a geometric series with total 8/λ₀²."""
    task, run = admitted(trial.seed)
    s = task.scales
    fall = run.loss / run.loss[0] * (1 - run.eta * s.lambda0**2 / 4) ** -torch.arange(STEPS + 1.0)
    yield _hypotheses(task, "descent")
    yield given("largest L_k ÷ (1-ηλ₀²/4)^k L_0", float(fall[1:].max()), "≤", 1.0)
    yield from _proposition5(task, run)
    for name in NAMES:
        bound = s.displacements[name] / getattr(task.radii, name)
        yield at_most(f"bound on ‖{name}_k - {name}_0‖ ÷ R", bound, 1.0)


@weights_stay.control("the loss does not fall: η = 4/λ_max(H)")
def weights_leave(trial: Trial) -> Iterable[Measurement]:
    """All five leave, and units die on the way."""
    return list(_proposition5(*overstepping(trial.seed)))


def _proposition6(task: Task, run: Run) -> Iterator[Measurement]:
    s = task.scales
    least = float(torch.linalg.svdvals(run.Z)[:, -1].min())
    yield at_least("least σ_min(Z_k) ÷ ½λ₀", least / (s.lambda0 / 2), 1.0)
    drift = float((run.Z - run.Z[0]).flatten(1).norm(dim=1).max())
    yield at_most("largest ‖Z_k - Z_0‖_F ÷ bound", drift / s.drift, 1.0)


@claim(
    "nguyen2022.proposition6",
    title="While the weights stay in their balls, σ_min(Z) ≥ ½λ₀",
    chapter=CHAPTER,
    ref="prop-mondeq-features",
)
def features_stay(trial: Trial) -> Iterable[Measurement]:
    """Bound the drift of the features by that of U and W; then Weyl's inequality."""
    task, run = admitted(trial.seed)
    s = task.scales
    yield _hypotheses(task, "descent")
    yield from _proposition6(task, run)
    yield at_most("bound on ‖Z_k - Z_0‖_F ÷ ½λ₀", s.drift / (s.lambda0 / 2), 1.0)


@features_stay.control("the loss does not fall: η = 4/λ_max(H)")
def features_leave(trial: Trial) -> Iterable[Measurement]:
    """Some sample loses all its units, and the features their rank."""
    return list(_proposition6(*overstepping(trial.seed)))


@features_stay.control("(3.17′) broken: labels 2000 times as large")
def features_far(trial: Trial) -> Iterable[Measurement]:
    """The bound on the drift no longer fits into ½λ₀."""
    task, _ = admitted(trial.seed)
    far = replace(task, y=2000 * task.y)
    s = replace(far.scales, a=task.scales.a)  # the balls are the same
    yield at_most("bound on ‖Z_k - Z_0‖_F ÷ ½λ₀", s.drift / (s.lambda0 / 2), 1.0)


# --- the three parts of one step ---------------------------------------------------------------


def _identity(run: Run) -> Measurement:
    gap = (run.loss[1:] - run.loss[:-1] - torch.stack(run.parts()).sum(0)) / run.loss[:-1]
    return within("L_{k+1} - L_k - (I₁+I₂+I₃), ÷ L_k", float(gap.abs().max()), 1e-12)


def _ratio(part: Tensor, run: Run, bound: float) -> float:
    """Return the largest |I| ÷ (bound·L_k)."""
    return float((part.abs() / (bound * run.loss[:-1])).max())


@claim(
    "nguyen2022.lemma3.3.8",
    title="I₁ = ½‖ŷ_{k+1}-ŷ_k‖² ≤ [η(C₁+C₂) + η²λ₀²C₁₂]² L_k",
    chapter=CHAPTER,
    ref="lem-mondeq-three-parts",
)
def quadratic_part(trial: Trial) -> Iterable[Measurement]:
    """Measure I₁ along a descent, and for one step from a read-out that is not zero."""
    task, run = admitted(trial.seed)
    yield _hypotheses(task, "descent")
    yield _identity(run)
    yield at_most("I₁ ÷ bound", _ratio(run.parts()[0], run, task.scales.quadratic(run.eta)), 1.0)
    task = _away(trial.seed)
    run = descend(task, 0.01, 1)
    bound = task.scales.quadratic(run.eta)
    yield at_most("a(0) ≠ 0: I₁ ÷ bound", _ratio(run.parts()[0], run, bound), 1.0)


@quadratic_part.control("powers of μ dropped, as printed; μ about 0.1")
def quadratic_without_powers(trial: Trial) -> Iterable[Measurement]:
    """One step at the size that Condition 2 as printed allows."""
    task = printed_instance(trial.seed)
    run = descend(task, printed_descent_conditions(task.model, task.X, task.y, task.radii).step, 1)
    bound = replace(task.scales, mu=1.0).quadratic(run.eta)
    yield at_most("I₁ ÷ bound", _ratio(run.parts()[0], run, bound), 1.0)


@quadratic_part.control("the read-out's share C₂ dropped")
def quadratic_without_readout(trial: Trial) -> Iterable[Measurement]:
    """With small labels nearly all of the curvature is the read-out's."""
    task, run = admitted(trial.seed)
    s = task.scales
    bound = (run.eta * s.C1 + run.eta**2 * s.lambda0**2 * s.C12) ** 2
    yield at_most("I₁ ÷ bound", _ratio(run.parts()[0], run, bound), 1.0)


def _hidden(task: Task) -> float:
    """Return eᵀ(H_A + H_B + H_U)e at the start."""
    with torch.no_grad():
        e = task.model(task.X) - task.y
        blocks = gram_parts(task.model, task.X)
        return float(e @ (blocks["A"] + blocks["B"] + blocks["U"]) @ e)


@claim(
    "nguyen2022.lemma3.3.9",
    title="I₂, the work of the hidden weights, is at most 2[ηC₁ + η²λ₀²C₁₂] L_k, and helps",
    chapter=CHAPTER,
    ref="lem-mondeq-three-parts",
)
def cross_part(trial: Trial) -> Iterable[Measurement]:
    """Measure |I₂| along a descent and for one step; compare with the hidden blocks of H."""
    task, run = admitted(trial.seed)
    yield _hypotheses(task, "descent")
    yield _identity(run)
    yield at_most("|I₂| ÷ bound", _ratio(run.parts()[1], run, task.scales.cross(run.eta)), 1.0)
    yield within("largest I₂ ÷ L_k, after the first step", _sign(run), 0.0)
    task = _away(trial.seed)
    yield _stays(task)
    run = descend(task, 1e-3, 1)
    second, bound = run.parts()[1], task.scales.cross(run.eta)
    yield at_most("a(0) ≠ 0: |I₂| ÷ bound", _ratio(second, run, bound), 1.0)
    first_order = -run.eta * _hidden(task)
    yield equal("a(0) ≠ 0: I₂ ÷ -ηeᵀ(H_A+H_B+H_U)e", float(second[0]) / first_order, 1, 0.05)


def _sign(run: Run) -> float:
    return float((run.parts()[1] / run.loss[:-1])[1:].max())


@cross_part.control("η² in place of 2η, as in the last display of the printed proof")
def cross_squared(trial: Trial) -> Iterable[Measurement]:
    """A first-order term cannot be bounded by a second-order one."""
    task = _away(trial.seed)
    run = descend(task, 1e-3, 1)
    bound = run.eta / 2 * task.scales.cross(run.eta)
    yield at_most("a(0) ≠ 0: |I₂| ÷ bound", _ratio(run.parts()[1], run, bound), 1.0)


@cross_part.control("powers of μ dropped, as printed; μ = 0.1")
def cross_without_powers(trial: Trial) -> Iterable[Measurement]:
    """The adjoint states are 1/μ times a, the features 1/μ times Ux."""
    task = _away(trial.seed, mu=0.1, size=1e-6)
    run = descend(task, 1e-5, 1)
    bound = replace(task.scales, mu=1.0).cross(run.eta)
    yield at_most("a(0) ≠ 0: |I₂| ÷ bound", _ratio(run.parts()[1], run, bound), 1.0)


@cross_part.control("ascent: the step has the wrong sign")
def uphill(trial: Trial) -> Iterable[Measurement]:
    """Then the hidden weights raise the loss."""
    task, run = admitted(trial.seed)
    run = descend(task, -run.eta, 50)
    yield within("largest I₂ ÷ L_k, after the first step", _sign(run), 0.0)


def _driving(run: Run, lambda0: float) -> Iterator[Measurement]:
    third, L = run.parts()[2], run.loss[:-1]
    yield at_least(
        "least -I₃ ÷ (½ηλ₀² L_k)", float((-third / (run.eta * lambda0**2 / 2 * L)).min()), 1.0
    )


@claim(
    "nguyen2022.lemma3.3.10",
    title="I₃ = -η eᵀZZᵀe ≤ -½ηλ₀² L_k: the read-out drives the loss down",
    chapter=CHAPTER,
    ref="lem-mondeq-three-parts",
)
def driving_part(trial: Trial) -> Iterable[Measurement]:
    """Measure I₃ along a descent."""
    task, run = admitted(trial.seed)
    yield _hypotheses(task, "descent")
    yield _identity(run)
    pull = (run.Z[:-1].mT @ run.e[:-1, :, None]).pow(2).sum((1, 2))  # eᵀZZᵀe
    gap = (run.parts()[2] / (-run.eta * pull) - 1).abs()
    yield within("I₃ vs -η eᵀZZᵀe, relative", float(gap.max()), SAME)
    yield from _driving(run, task.scales.lambda0)


@driving_part.control("two equal inputs with different labels")
def no_separation(trial: Trial) -> Iterable[Measurement]:
    """Nothing pulls the two predictions apart."""
    task, run = unseparated(trial.seed)
    return list(_driving(run, task.scales.lambda0))


@driving_part.control("width m = 2 for n = 3 samples; λ₀ the least of the m singular values")
def too_thin(trial: Trial) -> Iterable[Measurement]:
    """An error orthogonal to the features is not seen by the read-out."""
    task = thin(trial.seed, "descent")
    run = descend(task, 1e-3, 10)
    return list(_driving(run, float(torch.linalg.svdvals(run.Z[0])[-1])))


# --- the conditions ----------------------------------------------------------------------------


def _met(name: str, task: Task, kind: str) -> Iterator[Measurement]:
    for c in task.conditions(kind).conditions:
        yield at_least(f"{name}: {c.name}, have ÷ need", c.have / c.need, 1.0)


def _worst(name: str, task: Task, kind: str) -> Measurement:
    ratio = task.conditions(kind).worst.ratio
    return at_most(f"{name}: worst need ÷ have", ratio, 1.0)


def _growth(name: str, task: Task, kind: str) -> Measurement:
    """Measure by what factors the needs grow when the labels double and R_a with them."""
    twice = Task(task.model, task.X, 2 * task.y, _balls(task.model, task.X, 2 * task.y, kind))
    before, after = (t.conditions(kind).conditions for t in (task, twice))
    factors = torch.tensor(
        [b.need / a.need for a, b in zip(before, after) if a.name != "a stays"],
        dtype=torch.float64,
    )
    gap = float((factors - 4).abs().max())
    return within(f"{name}: labels doubled, |need ÷ need before - 4|", gap, 1e-6)


def _both(kind: str, seed: int) -> Iterator[Measurement]:
    for name, network in (
        ("orthogonal", orthogonal_network(seed)),
        ("random", _random_network(seed)),
    ):
        task = near_labels(*network, kind)
        yield from _met(name, task, kind)
        yield _worst(name, task, kind)
        yield _growth(name, task, kind)


def _above(kind: str, seed: int) -> list[Measurement]:
    return [
        _worst(name, near_labels(*network, kind, 1.05), kind)
        for name, network in (
            ("orthogonal", orthogonal_network(seed)),
            ("random", _random_network(seed)),
        )
    ]


def _degenerate(kind: str, seed: int) -> list[Measurement]:
    return list(_met("orthogonal", equal_inputs(satisfied(seed, kind)), kind))


@claim(
    "nguyen2022.condition1",
    title="Condition 1 can be met: with a(0) = 0 and λ₀ > 0 it holds for all small labels",
    chapter=CHAPTER,
    ref="prop-mondeq-small-labels",
)
def flow_condition(trial: Trial) -> Iterable[Measurement]:
    """Take labels at 95 % of the largest size, for an orthogonal and for a random network."""
    return _both("flow", trial.seed)


@flow_condition.control("labels 5 % above the largest size")
def flow_above(trial: Trial) -> Iterable[Measurement]:
    """The size is sharp for the condition (not for convergence)."""
    return _above("flow", trial.seed)


@flow_condition.control("two equal inputs: λ₀ = 0")
def flow_degenerate(trial: Trial) -> Iterable[Measurement]:
    """Nothing can be met."""
    return _degenerate("flow", trial.seed)


def _vacuous(tasks: Iterable[Task], *, powers: bool = True) -> Measurement:
    """Measure how far (3.18) is from holding, with its powers of μ or as printed."""
    ratios = []
    for task in tasks:
        s, n = task.scales, len(task.X)
        s = s if powers else replace(s, mu=1.0)
        ratios.append(20 * (s.C1 + s.C2) / s.lambda0**2 / (20 * n))
    return at_least("(3.18) with its powers of μ: need ÷ have ÷ 20n, least", min(ratios), 1.0)


def _still(seed: int) -> Task:
    """Return W = (1-μ)I with orthogonal features of one size: λ₀² is as large as it can be."""
    mu = 0.1 + float(torch.rand(1, generator=generator(seed)))
    zero = torch.zeros(4, 4, dtype=torch.float64)
    model = MonDEQ(zero, zero, _eye(4), zero[0], mu)
    tiny = 1e-6
    return Task(model, _eye(4), tiny * torch.ones(4, dtype=torch.float64), Radii(*[tiny] * 4))


@claim(
    "nguyen2022.condition2",
    title="Condition 2′ can be met by small labels; the printed one, powers of μ restored, never",
    chapter=CHAPTER,
    ref="prop-mondeq-small-labels",
)
def descent_condition(trial: Trial) -> Iterable[Measurement]:
    """As for the flow; and how far the printed (3.18) stays from holding."""
    yield from _both("descent", trial.seed)
    tasks = [satisfied(trial.seed, "descent"), _still(trial.seed)]
    tasks += [near_labels(*_random_network(100 * trial.seed + i), "descent") for i in range(5)]
    yield _vacuous(tasks)


@descent_condition.control("labels 5 % above the largest size")
def descent_above(trial: Trial) -> Iterable[Measurement]:
    """The size is sharp for the condition (not for convergence)."""
    return _above("descent", trial.seed)


@descent_condition.control("two equal inputs: λ₀ = 0")
def descent_degenerate(trial: Trial) -> Iterable[Measurement]:
    """Nothing can be met."""
    return _degenerate("descent", trial.seed)


@descent_condition.control("(3.18) as printed, without powers of μ, at μ about 0.1")
def printed_is_not_vacuous(trial: Trial) -> Iterable[Measurement]:
    """For tiny μ the printed condition can be met: that is where the theorem becomes false."""
    yield _vacuous([printed_instance(trial.seed)], powers=False)


# --- the two theorems --------------------------------------------------------------------------


def _flow(task: Task, until: float = 8.0) -> Trajectory:
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


def _promise(run: Trajectory, lambda0: float) -> Iterator[Measurement]:
    """Measure the loss and the features against the promise made for ``lambda0``."""
    rates = torch.tensor(run.loss[0] / run.loss[1:]).log() / torch.tensor(run.times[1:])
    yield at_least("least log(L(0)/L(t))/t ÷ ½λ₀²", float(rates.min()) / (lambda0**2 / 2), 1.0)
    features = torch.tensor(run.block_min["a"]).clamp(min=0).sqrt()  # the block of a is ZZᵀ
    yield at_least("least σ_min(Z(t)) ÷ ½λ₀", float(features.min()) / (lambda0 / 2), 1.0)


@claim(
    "nguyen2022.theorem3.3.1",
    title="Under Condition 1 gradient flow gives L(t) ≤ exp(-½λ₀²t) L(0)",
    chapter=CHAPTER,
    ref="thm-mondeq-flow",
)
def flow_rate(trial: Trial) -> Iterable[Measurement]:
    """Integrate the flow; look at the loss, the balls, the features and their drift."""
    task = satisfied(trial.seed, "flow")
    s, run = task.scales, _flow(task)
    yield _hypotheses(task, "flow")
    flips = math.nan if run.flips is None else float(run.flips.max())
    yield given("units that change side", flips, "≤", 0.0)
    yield from _promise(run, s.lambda0)
    for name in NAMES:
        bound = 4 / s.lambda0**2 * s.x * s.e0 * s.gradients[name]
        far = float(run.displacement[name].max())
        yield at_most(f"largest ‖{name}(t) - {name}(0)‖_F ÷ bound", far / bound, 1.0)
    end = copy.deepcopy(task.model)
    run.restore(end)
    drift = float((end.solve(task.X).z - task.model.solve(task.X).z).norm())
    yield at_most("‖Z(8) - Z(0)‖_F ÷ bound", drift / (4 * s.e0 * s.speed / s.lambda0**2), 1.0)
    twin = equal_inputs(task)
    floor = 0.25 * float(twin.y[0] - twin.y[1]) ** 2
    stall = float(_flow(twin, 12.0).loss[-1]) / floor
    yield equal("two equal inputs: L(12) ÷ ¼(y₁-y₂)²", stall, 1.0, 1e-6)


@flow_rate.control("two equal inputs with different labels; λ₀ that of the separate inputs")
def flow_unseparated(trial: Trial) -> Iterable[Measurement]:
    """The loss stalls."""
    task = satisfied(trial.seed, "flow")
    return list(_promise(_flow(equal_inputs(task), 4.0), task.scales.lambda0))


@flow_rate.control("width m = 2 for n = 3 samples; λ₀ the least of the m singular values")
def flow_thin(trial: Trial) -> Iterable[Measurement]:
    """A width of order n is not enough: the theorem needs m ≥ n."""
    task = thin(trial.seed, "flow")
    z = task.model.solve(task.X, tol=1e-12).z
    return list(_promise(_flow(task, 4.0), float(torch.linalg.svdvals(z)[-1])))


def _descent(task: Task, eta: float, lambda0: float, steps: int) -> Iterator[Measurement]:
    """Follow gradient descent, against the promise made for ``lambda0``."""
    run = gradient_descent(
        task.model,
        task.X,
        task.y,
        eta,
        steps,
        record=Record(norms=False, flips=False),
        solver=Newton(),
        adjoint_solver=Newton(),
    )
    L = torch.tensor(run.loss)
    least = ((L[:-1] - L[1:]) / (eta * lambda0**2 / 4 * L[:-1])).min()
    yield at_least("least (L_k - L_{k+1}) ÷ (¼ηλ₀² L_k)", float(least), 1.0)


@claim(
    "nguyen2022.theorem3.3.5",
    title="Under Condition 2′ and its step size, L_{k+1} ≤ (1 - ¼ηλ₀²) L_k at every step",
    chapter=CHAPTER,
    ref="thm-mondeq-descent",
)
def descent_rate(trial: Trial) -> Iterable[Measurement]:
    """Descend at the largest step admitted."""
    task = satisfied(trial.seed, "descent")
    met = task.conditions("descent")
    s = task.scales
    yield _hypotheses(task, "descent")
    yield at_most("largest step ÷ 1/(16n²λ₀²)", met.step * 16 * 9 * s.lambda0**2, 1.0)
    yield from _descent(task, met.step, s.lambda0, STEPS)


@descent_rate.control("η = 4/λ_max(H), twice the stability limit")
def overstep(trial: Trial) -> Iterable[Measurement]:
    """The loss grows."""
    task = satisfied(trial.seed, "descent")
    eta = 4 / float(torch.linalg.eigvalsh(empirical_ntk(task.model, task.X))[-1])
    return list(_descent(task, eta, task.scales.lambda0, 5))


@descent_rate.control("Condition 2 as printed, at a step it admits: μ about 0.1, η = 4/λ₀²")
def printed_condition(trial: Trial) -> Iterable[Measurement]:
    """All printed conditions hold, and the loss grows about ninefold per step."""
    task = printed_instance(trial.seed)
    printed = printed_descent_conditions(task.model, task.X, task.y, task.radii)
    if not printed.holds:
        raise AssertionError(f"the printed condition must hold here:\n{printed}")
    return list(_descent(task, printed.step, task.scales.lambda0, 5))


@descent_rate.control("two equal inputs with different labels; λ₀ that of the separate inputs")
def descent_unseparated(trial: Trial) -> Iterable[Measurement]:
    """The loss stalls."""
    task, run = admitted(trial.seed)
    return list(_descent(equal_inputs(task), run.eta, task.scales.lambda0, STEPS))
