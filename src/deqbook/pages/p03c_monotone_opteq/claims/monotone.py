"""Gradient descent on the monotone DEQ: the fifteen claims of nguyen2022."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from deqbook.activations import relu, tanh
from deqbook.bounds.monotone import Scales
from deqbook.claims import Measurement, at_least, at_most, chapter, equal, given, within
from deqbook.dynamics import Record, Trajectory, gradient_descent
from deqbook.kernels import gram_parts
from deqbook.linalg import eye, operator_norm
from deqbook.models import MonDEQ
from deqbook.pages.p03c_monotone_opteq.lab.monotone import (
    NAMES,
    STEPS,
    Run,
    Task,
    admitted,
    admitted_step,
    aligned,
    as_printed,
    ascending,
    away,
    balls,
    crossed,
    descend,
    equal_inputs,
    flowing,
    flowing_thin,
    flowing_unseparated,
    integrate,
    moved,
    near_labels,
    orthogonal_network,
    overstepping,
    printed_instance,
    printed_step,
    random_network,
    satisfied,
    still,
    too_long_step,
    too_thin,
    unseparated,
    zeros,
)
from deqbook.pages.p03c_monotone_opteq.lab.monotone_bounds import (
    cross_bound,
    displacement_bounds,
    drift_bound,
    driving_bound,
    matrix_perturbation,
    output_perturbation,
    quadratic_bound,
    state_perturbation,
    step_bounds,
)
from deqbook.runtime import generator, normal
from deqbook.solvers import Newton, fixed_point

claim = chapter("03c_monotone_opteq")

SAME = 1e-10  # two exact routes
ROUNDING = 1e-9  # beside a bound that is attained

Descent = Callable[[int], tuple[Task, Run]]
Flow = Callable[[int], tuple[Task, Trajectory]]
Setting = Callable[[int], tuple[Task, float]]


# --- size of the equilibrium -------------------------------------------------------------------


def _size_ratio(model: MonDEQ, x: Tensor, mu: float) -> float:
    """Return ‖Z‖_F μ / (‖X‖_F ‖U‖)."""
    z = model.solve(x, tol=1e-11, max_steps=20000).z
    return float(z.norm() * mu / (x.norm() * operator_norm(model.U.detach())))


def _tight_model(mu: float = 0.5, m: int = 4) -> tuple[MonDEQ, Tensor]:
    """Return W = (1-μ)I, U = I, X = 1, for which the bound is an equality."""
    zero, one = torch.zeros(m, m, dtype=torch.float64), torch.ones(3, m, dtype=torch.float64)
    return MonDEQ(zero, zero, eye(m), one[0], mu), one


def _tight_size(trial, *, overstated=1.0):
    model, x = _tight_model()
    ratio = _size_ratio(model, x, overstated * model.mu)
    yield at_most("the same where it is tight", ratio, 1 + ROUNDING)


@claim("nguyen2022.lemma3.3.3", "The equilibrium is bounded: ‖Z‖_F ≤ ‖X‖_F ‖U‖ / μ", "lem-size")
def equilibrium_size(trial):
    worst = 0.0
    for k, mu in enumerate((0.05, 0.3, 1.0, 3.0)):
        model = MonDEQ.init(15, 4, mu=mu, seed=10 * trial.seed + k)
        worst = max(worst, _size_ratio(model, normal(6, 4, g=trial.g), mu))
    yield at_most("max ‖Z‖_F μ / (‖X‖_F‖U‖)", worst, 1.0)
    yield from _tight_size(trial)


def _softplus(trial):
    model, x = _tight_model()
    W, x = model.W.detach(), 1e-3 * x  # a vanishing input still has a state
    z = fixed_point(lambda z: F.softplus(z @ W.mT + x), torch.zeros_like(x)).z
    ratio = float(z.norm() * model.mu / x.norm())
    yield at_most("the same where it is tight", ratio, 1 + ROUNDING)


equilibrium_size.breaks("μ overstated by a factor 2", part=_tight_size, overstated=2.0)
equilibrium_size.breaks("an activation with σ(0) ≠ 0: softplus", part=_softplus)


@claim(
    "nguyen2022.lemmaC.0.3",
    "The identity behind the bound: ⟨z,(I-W)z⟩ = ⟨z,Ux⟩ at a ReLU equilibrium",
    "lem-size",
)
def complementarity(trial, *, sigma=relu):
    model = MonDEQ.init(15, 4, mu=0.5, seed=trial.seed).requires_grad_(False)
    model.sigma = sigma
    x = normal(6, 4, g=trial.g)
    z, q = model.solve(x, tol=1e-12, max_steps=20000).z, x @ model.U.mT
    energy = (z * (z - z @ model.W.mT)).sum(1)
    yield within("max |⟨z,(I-W)z⟩ - ⟨z,Ux⟩|", float((energy - (z * q).sum(1)).abs().max()), 1e-8)
    yield at_most("max μ‖z‖² / ⟨z,(I-W)z⟩", float((0.5 * z.pow(2).sum(1) / energy).max()), 1.0)


complementarity.breaks("tanh instead of ReLU", "max |", sigma=tanh)


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


def _aligned_pair(trial, *, overstated=1.0):
    now, then, x = aligned(trial.seed)
    states, outputs = _perturbation(now, then, x, overstated * now.mu)
    yield at_most("aligned: ‖Z_k-Z_s‖_F ÷ bound", states, 1.0)
    yield at_most("aligned: ‖ŷ_k-ŷ_s‖ ÷ bound", outputs, 1.0)


def _labels_for_predictions(trial):
    model = MonDEQ.init(6, 4, mu=0.5, seed=10 * trial.seed)
    X, y = normal(5, 4, g=trial.g), normal(5, g=trial.g)
    ratio = _perturbation(moved(model, 1e-3, trial.g), model, X, 0.5, label=y)[1]
    yield at_most("random: ‖ŷ_k-ŷ_s‖ ÷ bound", ratio, 1.0)


@claim(
    "nguyen2022.lemma3.3.4",
    "Moving the weights moves the equilibria by at most ‖X‖(‖ΔU‖/μ + ‖ΔW‖‖U‖/μ²)",
    "lem-mondeq-perturbation",
)
def perturbation(trial):
    ratios = []
    for i, size in enumerate((1e-3, 1e-2, 0.1, 1.0)):
        model = MonDEQ.init(6, 4, mu=0.5, seed=10 * trial.seed + i)
        other = moved(model, size, trial.g)
        ratios.append(_perturbation(other, model, normal(5, 4, g=trial.g), 0.5))
    states, outputs = (max(column) for column in zip(*ratios))
    yield at_most("random: ‖Z_k-Z_s‖_F ÷ bound", states, 1.0)
    yield at_most("random: ‖ŷ_k-ŷ_s‖ ÷ bound", outputs, 1.0)
    yield from _aligned_pair(trial)


perturbation.breaks("μ overstated by a factor 2", part=_aligned_pair, overstated=2.0)
perturbation.breaks(
    "labels in place of the second predictions, as printed",
    part=_labels_for_predictions,
    shown={"ŷ_k-ŷ_s": "ŷ_k-y"},
)


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
        math.sqrt(1 - 2 * alpha * mu + (alpha * operator_norm(eye(now.m) - W)) ** 2)
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


def _iterates(
    name: str, now: MonDEQ, then: MonDEQ, X: Tensor, overstated: float = 1.0
) -> Iterator[Measurement]:
    L = max(operator_norm(eye(now.m) - model.W.detach()) for model in (now, then))
    mu, alpha = overstated * now.mu, now.mu / (4 * L**2)
    along, limit, _ = _forward_backward(now, then, X, alpha, mu, 200)
    tiny = _forward_backward(now, then, X, 1e-6 * alpha, mu, 1)[2]
    yield at_most(f"{name}: distance of the iterates ÷ bound, 200 steps", along, 1.0)
    yield at_most(f"{name}: distance of the equilibria ÷ limit of the bound", limit, 1.0)
    yield equal(f"{name}: limit of the bound ÷ the lemma's, step → 0", tiny, 1.0, 1e-4)


def _aligned_iterates(trial, *, overstated=1.0):
    yield from _iterates("aligned", *aligned(trial.seed), overstated)


@claim(
    "nguyen2022.lemmaC.0.6",
    "Forward-backward iterates stay near each other; step → 0 gives the perturbation bound",
    "lem-mondeq-perturbation",
)
def perturbation_proof(trial):
    model = MonDEQ.init(6, 4, mu=0.5, seed=trial.seed)
    yield from _iterates("random", moved(model, 0.1, trial.g), model, normal(5, 4, g=trial.g))
    yield from _aligned_iterates(trial)


perturbation_proof.breaks(
    "μ overstated by a factor 2 in the contraction factors", part=_aligned_iterates, overstated=2.0
)


# --- perturbation of W -------------------------------------------------------------------------

PARALLEL, SKEW = "ΔA parallel to A, ΔB = 0", "ΔA = 0, ΔB skew"


def _moves(seed: int) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Return A, ΔA and ΔB: at random, and three for which the bound is an equality."""
    g = generator(seed)
    A, dA, dB = (normal(5, 5, g=g) for _ in range(3))
    Q = torch.linalg.qr(normal(5, 5, g=g))[0]
    return {
        "random": (A, dA, dB),
        PARALLEL: (Q, 0.5 * Q, 0 * Q),
        "A = 0, ΔB = 0": (0 * Q, Q, 0 * Q),
        SKEW: (A, 0 * A, dB - dB.mT),
    }


def _difference(A: Tensor, dA: Tensor, dB: Tensor, *, quadratic: bool) -> Tensor:
    """Return -(AᵀΔA + ΔAᵀA + ΔAᵀΔA) + ΔB - ΔBᵀ."""
    square = dA.mT @ dA if quadratic else torch.zeros_like(A)
    return -(A.mT @ dA + dA.mT @ A + square) + dB - dB.mT


def _matrix_move(trial, *, case, quadratic=True, twice=True):
    A, dA, dB = _moves(trial.seed)[case]
    before, after = (
        MonDEQ(P, Q, zeros(5, 5), zeros(5), 0.5).W.detach()
        for P, Q in ((A, zeros(5, 5)), (A + dA, dB))
    )
    move = after - before
    formula = _difference(A, dA, dB, quadratic=quadratic)
    yield within(f"{case}: ΔW vs formula", float((move - formula).norm() / move.norm()), SAME)
    size, dA_, dB_ = (operator_norm(M) for M in (A, dA, dB))
    bound = matrix_perturbation(size, dA=dA_, dB=dB_ if twice else dB_ / 2)
    bound -= 0.0 if quadratic else dA_**2
    ratio = operator_norm(move) / bound
    if case == "random":
        yield at_most(f"{case}: ‖ΔW‖ ÷ bound", ratio, 1.0)
    else:
        yield equal(f"{case}: ‖ΔW‖ ÷ bound, attained", ratio, 1.0, SAME)


@claim("nguyen2022.lemma3.3.6", "‖ΔW‖ ≤ 2‖A‖‖ΔA‖ + ‖ΔA‖² + 2‖ΔB‖", "lem-mondeq-step")
def matrix_move(trial):
    for case in _moves(trial.seed):
        yield from _matrix_move(trial, case=case)


matrix_move.breaks("the quadratic term dropped", part=_matrix_move, case=PARALLEL, quadratic=False)
matrix_move.breaks(
    "‖ΔB‖ counted once", f"{SKEW}: ‖ΔW‖ ÷ bound", part=_matrix_move, case=SKEW, twice=False
)


# --- one step of descent -----------------------------------------------------------------------


def _hypotheses(task: Task, kind: str) -> Measurement:
    met = task.conditions(kind)
    least = min(c.have / c.need for c in met.conditions)
    return given(f"{met.source}: least have ÷ need", least, "≥", 1.0)


def _stays(task: Task) -> Measurement:
    """Measure (3.16), the part of Condition 2′ that the lemmas on one step use."""
    met = task.conditions("descent")
    least = min(met[f"{name} stays"].have / met[f"{name} stays"].need for name in NAMES)
    return given("(3.16): least have ÷ need", least, "≥", 1.0)


def _steps(name: str, run: Run, s: Scales) -> Iterator[Measurement]:
    for weight in (*NAMES, "W"):
        bounds = [step_bounds(s, run.eta, float(e.norm()))[weight] for e in run.e[:-1]]
        ratios = run.steps(weight) / torch.tensor(bounds, dtype=torch.float64)
        yield at_most(f"{name}: step in {weight} ÷ bound", float(ratios.max()), 1.0)


def _crossed_step(trial, *, overstated=1.0, label=1e-5, size=0.05):
    task = crossed(trial.seed, label, size)
    s = replace(task.scales, mu=overstated * task.model.mu)
    yield from _steps("crossed", descend(task, 0.1, 1), s)


@claim(
    "nguyen2022.lemma3.3.7",
    "One step moves U, a, A, B, W by at most η‖X‖‖e‖ times a constant of the balls",
    "lem-mondeq-step",
)
def one_step(trial):
    task, run = admitted(trial.seed)
    yield _stays(task)
    yield from _steps("descent", run, task.scales)
    yield from _crossed_step(trial)


one_step.breaks("μ overstated by a factor 2", part=_crossed_step, overstated=2.0)
one_step.breaks(  # the bound on W replaces ‖ΔA‖² by something linear in ‖ΔA‖
    "(3.16) broken: labels so far that the quadratic term of ΔW leads",
    "crossed: step in W",
    part=_crossed_step,
    label=3e3,
    size=0.3,
)


# --- the induction: weights stay, features stay ------------------------------------------------


def _displacements(trial, *, descent=admitted):
    task, run = descent(trial.seed)
    bounds = displacement_bounds(task.scales)
    for name in (*NAMES, "W"):
        far = float(run.displacement(name).max())
        yield at_most(f"largest ‖{name}_k - {name}_0‖ ÷ bound", far / bounds[name], 1.0)


@claim(
    "nguyen2022.proposition5",
    "While the loss falls at the promised rate, every weight stays in its ball",
    "prop-mondeq-balls",
)
def weights_stay(trial):
    task, run = admitted(trial.seed)
    s = task.scales
    fall = run.loss / run.loss[0] * (1 - run.eta * s.lambda0**2 / 4) ** -torch.arange(STEPS + 1.0)
    yield _hypotheses(task, "descent")
    yield given("largest L_k ÷ (1-ησ_Z²/4)^k L_0", float(fall[1:].max()), "≤", 1.0)
    yield from _displacements(trial)
    for name in NAMES:
        bound = displacement_bounds(s)[name] / getattr(task.radii, name)
        yield at_most(f"bound on ‖{name}_k - {name}_0‖ ÷ R", bound, 1.0)


weights_stay.breaks(
    "the loss does not fall: η = 4/λ_max(H)", part=_displacements, descent=overstepping
)


def _features(trial, *, descent=admitted):
    task, run = descent(trial.seed)
    s = task.scales
    least = float(torch.linalg.svdvals(run.Z)[:, -1].min())
    yield at_least("least σ_min(Z_k) ÷ ½σ_Z", least / (s.lambda0 / 2), 1.0)
    drift = float((run.Z - run.Z[0]).flatten(1).norm(dim=1).max())
    yield at_most("largest ‖Z_k - Z_0‖_F ÷ bound", drift / drift_bound(s), 1.0)


def _drift(trial, *, labels=1.0):
    task, _ = admitted(trial.seed)
    far = replace(task, y=labels * task.y)
    s = replace(far.scales, a=task.scales.a)  # the balls are the same
    yield at_most("bound on ‖Z_k - Z_0‖_F ÷ ½σ_Z", drift_bound(s) / (s.lambda0 / 2), 1.0)


@claim(
    "nguyen2022.proposition6",
    "While the weights stay in their balls, σ_min(Z) ≥ ½σ_Z",
    "prop-mondeq-features",
)
def features_stay(trial):
    yield _hypotheses(admitted(trial.seed)[0], "descent")
    yield from _features(trial)
    yield from _drift(trial)


features_stay.breaks("the loss does not fall: η = 4/λ_max(H)", part=_features, descent=overstepping)
features_stay.breaks("(3.17′) broken: labels 2000 times as large", part=_drift, labels=2000)


# --- the three parts of one step ---------------------------------------------------------------


def _identity(run: Run) -> Measurement:
    gap = (run.loss[1:] - run.loss[:-1] - torch.stack(run.parts()).sum(0)) / run.loss[:-1]
    return within("L_{k+1} - L_k - (I₁+I₂+I₃), ÷ L_k", float(gap.abs().max()), 1e-12)


def _largest(part: Tensor, run: Run, bound: float) -> float:
    """Return the largest |I| ÷ (bound·L_k)."""
    return float((part.abs() / (bound * run.loss[:-1])).max())


def _with_powers(s: Scales, powers: bool) -> Scales:
    """Return the scales, or those for which a bound is the printed one: no power of μ."""
    return s if powers else replace(s, mu=1.0)


def _square(trial, *, descent=admitted, powers=True, readout=True):
    task, run = descent(trial.seed)
    bound = quadratic_bound(_with_powers(task.scales, powers), run.eta, readout=readout)
    yield at_most("I₁ ÷ bound", _largest(run.parts()[0], run, bound), 1.0)


@claim(
    "nguyen2022.lemma3.3.8",
    "I₁ = ½‖ŷ_{k+1}-ŷ_k‖² ≤ [η(C₁+C₂) + η²σ_Z²C₁₂]² L_k",
    "lem-mondeq-three-parts",
)
def quadratic_part(trial):
    task, run = admitted(trial.seed)
    yield _hypotheses(task, "descent")
    yield _identity(run)
    yield from _square(trial)
    task = away(trial.seed)
    run = descend(task, 0.01, 1)
    bound = quadratic_bound(task.scales, run.eta)
    yield at_most("a(0) ≠ 0: I₁ ÷ bound", _largest(run.parts()[0], run, bound), 1.0)


quadratic_part.breaks(
    "powers of μ dropped, as printed; μ about 0.1", part=_square, descent=as_printed, powers=False
)
quadratic_part.breaks("the read-out's share C₂ dropped", part=_square, readout=False)


def _hidden(task: Task) -> float:
    """Return eᵀ(H_A + H_B + H_U)e at the start."""
    with torch.no_grad():
        e = task.model(task.X) - task.y
        blocks = gram_parts(task.model, task.X)
        return float(e @ (blocks["A"] + blocks["B"] + blocks["U"]) @ e)


def _sign(trial, *, descent=admitted):
    _, run = descent(trial.seed)
    largest = float((run.parts()[1] / run.loss[:-1])[1:].max())
    yield within("largest I₂ ÷ L_k, after the first step", largest, 0.0)


def _cross_away(trial, *, mu=1.0, size=1e-3, eta=1e-3, powers=True, squared=False):
    task = away(trial.seed, mu, size)
    yield _stays(task)
    run = descend(task, eta, 1)
    second, bound = run.parts()[1], cross_bound(_with_powers(task.scales, powers), eta)
    bound = eta / 2 * bound if squared else bound
    yield at_most("a(0) ≠ 0: |I₂| ÷ bound", _largest(second, run, bound), 1.0)
    first_order = -eta * _hidden(task)
    yield equal("a(0) ≠ 0: I₂ ÷ -ηeᵀ(H_A+H_B+H_U)e", float(second[0]) / first_order, 1, 0.05)


@claim(
    "nguyen2022.lemma3.3.9",
    "I₂, the work of the hidden weights, is at most 2[ηC₁ + η²σ_Z²C₁₂] L_k, and helps",
    "lem-mondeq-three-parts",
)
def cross_part(trial):
    task, run = admitted(trial.seed)
    yield _hypotheses(task, "descent")
    yield _identity(run)
    bound = cross_bound(task.scales, run.eta)
    yield at_most("|I₂| ÷ bound", _largest(run.parts()[1], run, bound), 1.0)
    yield from _sign(trial)
    yield from _cross_away(trial)


cross_part.breaks(
    "η² in place of 2η, as in the last display of the printed proof",
    "a(0) ≠ 0: |I₂|",
    part=_cross_away,
    squared=True,
)
cross_part.breaks(
    "powers of μ dropped, as printed; μ = 0.1",
    "a(0) ≠ 0: |I₂|",
    part=_cross_away,
    mu=0.1,
    size=1e-6,
    eta=1e-5,
    powers=False,
)
cross_part.breaks("ascent: the step has the wrong sign", part=_sign, descent=ascending)


def _driving(trial, *, descent=admitted):
    task, run = descent(trial.seed)
    s = task.scales
    if s.lambda0 == 0:  # more samples than units
        s = replace(s, lambda0=float(torch.linalg.svdvals(run.Z[0])[-1]))
    share = run.parts()[2] / (driving_bound(s, run.eta) * run.loss[:-1])
    yield at_least("least -I₃ ÷ (½ησ_Z² L_k)", float(share.min()), 1.0)


@claim(
    "nguyen2022.lemma3.3.10",
    "I₃ = -η eᵀZZᵀe ≤ -½ησ_Z² L_k: the read-out drives the loss down",
    "lem-mondeq-three-parts",
)
def driving_part(trial):
    task, run = admitted(trial.seed)
    yield _hypotheses(task, "descent")
    yield _identity(run)
    pull = (run.Z[:-1].mT @ run.e[:-1, :, None]).pow(2).sum((1, 2))  # eᵀZZᵀe
    gap = (run.parts()[2] / (-run.eta * pull) - 1).abs()
    yield within("I₃ vs -η eᵀZZᵀe, relative", float(gap.max()), SAME)
    yield from _driving(trial)


driving_part.breaks("two equal inputs with different labels", part=_driving, descent=unseparated)
driving_part.breaks(
    "width m = 2 for n = 3 samples; σ_Z the least of the m singular values",
    part=_driving,
    descent=too_thin,
)


# --- the conditions ----------------------------------------------------------------------------


def _met(name: str, task: Task, kind: str) -> Iterator[Measurement]:
    for c in task.conditions(kind).conditions:
        yield at_least(f"{name}: {c.name}, have ÷ need", c.have / c.need, 1.0)


def _growth(task: Task, kind: str) -> float:
    """Return how far from 4 the needs grow when the labels double and R_a with them."""
    twice = Task(task.model, task.X, 2 * task.y, balls(task.model, task.X, 2 * task.y, kind))
    before, after = (t.conditions(kind).conditions for t in (task, twice))
    factors = torch.tensor(
        [b.need / a.need for a, b in zip(before, after) if a.name != "a stays"],
        dtype=torch.float64,
    )
    return float((factors - 4).abs().max())


def _near(trial, *, kind, size=0.95):
    for name, network in (("orthogonal", orthogonal_network), ("random", random_network)):
        task = near_labels(*network(trial.seed), kind, size)
        yield from _met(name, task, kind)
        yield at_most(f"{name}: worst need ÷ have", task.conditions(kind).worst.ratio, 1.0)
        growth = _growth(task, kind)
        yield within(f"{name}: labels doubled, |need ÷ need before - 4|", growth, 1e-6)


def _unseparated(trial, *, kind):
    yield from _met("orthogonal", equal_inputs(satisfied(trial.seed, kind)), kind)


def _vacuous(trial, *, printed=False):
    """Measure how far (3.18) is from holding, with its powers of μ or as printed, at a tiny μ."""
    if printed:
        tasks = [printed_instance(trial.seed)]
    else:
        tasks = [satisfied(trial.seed, "descent"), still(trial.seed)]
        tasks += [near_labels(*random_network(100 * trial.seed + i), "descent") for i in range(5)]
    ratios = []
    for task in tasks:
        s, n = _with_powers(task.scales, not printed), len(task.X)
        ratios.append(20 * (s.C1 + s.C2) / s.lambda0**2 / (20 * n))
    yield at_least("(3.18) with its powers of μ: need ÷ have ÷ 20n, least", min(ratios), 1.0)


@claim(
    "nguyen2022.condition1",
    "Condition 1 can be met: with a(0) = 0 and σ_Z > 0 it holds for all small labels",
    "prop-mondeq-small-labels",
)
def flow_condition(trial):
    yield from _near(trial, kind="flow")


@claim(
    "nguyen2022.condition2",
    "Condition 2′ can be met by small labels; the printed one, powers of μ restored, never",
    "prop-mondeq-small-labels",
)
def descent_condition(trial):
    yield from _near(trial, kind="descent")
    yield from _vacuous(trial)


for condition, kind in ((flow_condition, "flow"), (descent_condition, "descent")):
    condition.breaks(  # the size is sharp for the condition, not for convergence
        "labels 5 % above the largest size",
        "orthogonal: worst",
        "random: worst",
        part=_near,
        kind=kind,
        size=1.05,
    )
    condition.breaks("two equal inputs: σ_Z = 0", part=_unseparated, kind=kind)
# for tiny μ the printed condition can be met: that is where the theorem becomes false
descent_condition.breaks(
    "(3.18) as printed, without powers of μ, at μ about 0.1",
    part=_vacuous,
    shown={"with its powers": "without powers"},
    printed=True,
)


# --- the two theorems --------------------------------------------------------------------------


def _promise(trial, *, flow=flowing):
    task, run = flow(trial.seed)
    lambda0 = task.sigma_min
    rates = torch.tensor(run.loss[0] / run.loss[1:]).log() / torch.tensor(run.times[1:])
    yield at_least("least log(L(0)/L(t))/t ÷ ½σ_Z²", float(rates.min()) / (lambda0**2 / 2), 1.0)
    features = torch.tensor(run.block_min["a"]).clamp(min=0).sqrt()  # the block of a is ZZᵀ
    yield at_least("least σ_min(Z(t)) ÷ ½σ_Z", float(features.min()) / (lambda0 / 2), 1.0)


@claim(
    "nguyen2022.theorem3.3.1",
    "Under Condition 1 gradient flow gives L(t) ≤ exp(-½σ_Z²t) L(0)",
    "thm-mondeq-flow",
)
def flow_rate(trial):
    task, run = flowing(trial.seed)
    s = task.scales
    yield _hypotheses(task, "flow")
    flips = math.nan if run.flips is None else float(run.flips.max())
    yield given("units that change side", flips, "≤", 0.0)
    yield from _promise(trial)
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
    stall = float(integrate(twin, 12.0).loss[-1]) / floor
    yield equal("two equal inputs: L(12) ÷ ¼(y₁-y₂)²", stall, 1.0, 1e-6)


flow_rate.breaks(
    "two equal inputs with different labels; σ_Z that of the separate inputs",
    part=_promise,
    flow=flowing_unseparated,
)
flow_rate.breaks(
    "width m = 2 for n = 3 samples; σ_Z the least of the m singular values",
    part=_promise,
    flow=flowing_thin,
)


def _decrease(trial, *, setting=admitted_step, twins=False, steps=STEPS):
    task, eta = setting(trial.seed)
    trained = equal_inputs(task) if twins else task
    run = gradient_descent(
        trained.model,
        trained.X,
        trained.y,
        eta,
        steps,
        record=Record(norms=False, flips=False),
        solver=Newton(),
        adjoint_solver=Newton(),
    )
    L = torch.tensor(run.loss)
    least = ((L[:-1] - L[1:]) / (eta * task.scales.lambda0**2 / 4 * L[:-1])).min()
    yield at_least("least (L_k - L_{k+1}) ÷ (¼ησ_Z² L_k)", float(least), 1.0)


@claim(
    "nguyen2022.theorem3.3.5",
    "Under Condition 2′ and its step size, L_{k+1} ≤ (1 - ¼ησ_Z²) L_k at every step",
    "thm-mondeq-descent",
)
def descent_rate(trial):
    task, step = admitted_step(trial.seed)
    yield _hypotheses(task, "descent")
    bound = step * 16 * 9 * task.scales.lambda0**2
    yield at_most("largest step ÷ 1/(16n²σ_Z²)", bound, 1.0)
    yield from _decrease(trial)


descent_rate.breaks(
    "η = 4/λ_max(H), twice the stability limit", part=_decrease, setting=too_long_step, steps=5
)
descent_rate.breaks(
    "Condition 2 as printed, at a step it admits: μ about 0.1, η = 4/σ_Z²",
    part=_decrease,
    setting=printed_step,
    steps=5,
)
descent_rate.breaks(
    "two equal inputs with different labels; σ_Z that of the separate inputs",
    part=_decrease,
    twins=True,
)
