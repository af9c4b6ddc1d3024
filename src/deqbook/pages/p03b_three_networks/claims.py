"""Three networks: convergence under gradient flow and descent, every hypothesis evaluated.

What holds with ordinary labels, where the theorems are silent, is measured separately, under a name
that says so.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from deqbook.bounds import relu_implicit, vanilla
from deqbook.bounds.conditions import Conditions
from deqbook.claims import (
    Measurement,
    at_least,
    at_most,
    chapter,
    checks,
    equal,
    given,
    headline,
    seen,
    within,
)
from deqbook.dynamics import Trajectory
from deqbook.kernels import empirical_ntk, jacobian_ntk
from deqbook.linalg import operator_norm, relative
from deqbook.models import ReLUImplicit, VanillaDEQ
from deqbook.pages.p03b_three_networks import lab
from deqbook.runtime import generator, normal, signs, sphere

claim = chapter("03b_three_networks")
TWO_ROUTES = 1e-8  # between two exact routes to one number
RATE = "max over t of ‖e(t)‖² ÷ e^{-λ_Gt}‖e(0)‖²"
STEPS = "max over k of ‖e(k)‖² ÷ (1-ηλ_G/2)^k‖e(0)‖²"
IMPLICIT_RATE = RATE.replace("λ_G", "λ_H")  # networks two and three have their own eigenvalue
VANILLA_STEPS = STEPS.replace("λ_G", "λ_Z")
FROZEN = "‖e - ē‖ ÷ ‖e(0)‖, ē by the first kernel of autograd"
EXPONENT = "exponent of ‖e‖² over the whole run ÷ the promised one"


def _beyond(name: str, value: float, relation: str, bound: float) -> Measurement:
    """Measure a conclusion where the theorem is silent."""
    return seen(f"ordinary labels, not implied: {name}", value, relation, bound)


def _whole_flow(run: Trajectory) -> Measurement:
    """Measure that the Euler steps from ordinary labels are those of a flow up to time 6."""
    steps = int(run.gradients[-1])
    return equal("ordinary labels: time after all steps", steps * run.step, 6.0, 1e-9)


def _asked(conditions: Conditions) -> Iterator[Measurement]:
    for c in conditions.conditions:
        yield given(f"{c.formula}, need ÷ have", c.ratio, "≤", 1.0)


def _over_rate(run: Trajectory, rate: float) -> float:
    """Return the largest ‖e(t)‖² ÷ e^{-rate·t}‖e(0)‖² after the start."""
    if run.stopped:
        return math.inf
    squares = run.error_norm**2 / run.error_norm[0] ** 2
    return float(np.max(squares[1:] / np.exp(-rate * run.times[1:])))


def _over_steps(run: Trajectory, rate: float) -> float:
    """Return the largest ‖e(k)‖² ÷ (1-η·rate)^k‖e(0)‖² after the start."""
    if run.stopped:
        return math.inf
    squares = run.error_norm**2 / run.error_norm[0] ** 2
    bounds = (1 - run.step * rate) ** run.gradients.astype(float)
    return float(np.max(squares[1:] / bounds[1:]))


def _exponent(run: Trajectory, promised: float) -> Iterator[Measurement]:
    """Compare -log of the fall of ‖e‖² over a whole run with the promise, of 10⁻³ at least."""
    fall = -2 * math.log(run.error_norm[-1] / run.error_norm[0])
    yield given("the factor promised at the end", math.exp(-promised), "≤", 1.01 * lab.PROMISE)
    yield headline(at_least(EXPONENT, -math.inf if run.stopped else fall / promised, 1.0))


def _largest(values: np.ndarray | None) -> float:
    """Return the largest of what a run recorded; NaN if it recorded nothing."""
    return math.nan if values is None else float(np.max(values))


def _smallest(values: np.ndarray | None) -> float:
    return math.nan if values is None else float(np.min(values))


# --- gao2022: the features' Gram matrix is stable ----------------------------------------------


def _moved(
    name: str, model: ReLUImplicit, X: Tensor, move: Tensor, lambda0: float
) -> Iterator[Measurement]:
    """Compare G after a move of U with the lemma."""
    G0 = relu_implicit.feature_gram(model, X)
    phi = torch.relu(X @ (model.U.detach() + move).mT) / math.sqrt(model.m)
    G = phi @ phi.mT
    yield at_most(f"{name}: ‖G-G(0)‖ ÷ (λ_G/4)", operator_norm(G - G0) / (lambda0 / 4), 1.0)
    yield at_least(f"{name}: λ_min(G) ÷ (λ_G/2)", lab.least(G) / (lambda0 / 2), 1.0)


def _masked_move(trial, *, norm="operator"):
    in_the_limit = 0.5 - 0.5 / math.pi  # λ_min(G^∞) for orthonormal inputs
    size = 1.001 * math.sqrt(3 * in_the_limit)  # so that λ_min(G(0)) = s²/4 ≥ ¾λ_min(G^∞)
    model, X, move = lab.masked_network(trial.seed, size)
    move *= lab.lemma34_radius(model, X, lambda0=in_the_limit, norm=norm) / operator_norm(move)
    G0 = relu_implicit.feature_gram(model, X)
    yield given("masked move: λ_min(G(0)) ÷ ¾λ_G", lab.least(G0) / (0.75 * in_the_limit), "≥", 1.0)
    longer = operator_norm(model.U.detach() + move) / (2 * size * model.m**0.5)
    yield given("masked move: ‖U‖ ÷ 2‖U(0)‖", longer, "≤", 1)
    yield from _moved("masked move", model, X, move, in_the_limit)


def _shrunk(trial, *, times=1.0, share=1.0):
    """Shrink and stretch U, for one input with all units on: the radius is nearly used up."""
    model, x = lab.lone_network(trial.seed)
    lambda0 = share * 4 / 3 * lab.least(relu_implicit.feature_gram(model, x))
    U = model.U.detach()
    radius = times * lab.lemma34_radius(model, x, lambda0=lambda0)
    for name, side in (("shrunk", -1), ("stretched", 1)):
        for m in _moved(name, model, x, side * lab.stretched(U, radius), lambda0):
            tight = m.name in ("shrunk: λ_min(G) ÷ (λ_G/2)", "stretched: ‖G-G(0)‖ ÷ (λ_G/4)")
            yield headline(m) if tight else m


@claim(
    "gao2022.lemma3.4",
    "While U moves by at most √m λ_G/(12ω‖X‖_F²), λ_min(ΦΦᵀ) stays above λ_G/2",
    "lem-feature-gram",
)
def feature_gram_is_stable(trial):
    yield from _shrunk(trial)
    yield from _masked_move(trial)
    model, X = ReLUImplicit.init(200, 5, gamma=0.1, seed=trial.seed), sphere(8, 5, trial.seed + 100)
    at_the_start = 4 / 3 * lab.least(relu_implicit.feature_gram(model, X))
    U, g = model.U.detach(), trial.g
    rows, columns = signs(200, 1, g=g), signs(1, 5, g=g)
    moves = {"random": normal(200, 5, g=g), "rank one": rows * columns, "aligned": U.sign() * rows}
    for norm in ("operator", "frobenius"):
        radius = lab.lemma34_radius(model, X, norm=norm)
        for name, move in moves.items():
            length = operator_norm(move) if norm == "operator" else float(move.norm())
            scaled = move * (radius / length)
            yield from _moved(f"{name}, {norm} norm", model, X, scaled, at_the_start)


# ReLU is not 1-Lipschitz for the operator norm
feature_gram_is_stable.breaks(
    "the printed radius, with ‖X‖ and the constant 16: erratum gao2022-E3",
    "masked move",
    part=_masked_move,
    norm="printed",
)


feature_gram_is_stable.breaks(
    "U moves by twice the radius",
    "shrunk: λ_min",
    "stretched: ‖G",
    part=_shrunk,
    times=2.0,
)
feature_gram_is_stable.breaks(
    "λ_min(G(0)) ≥ ¾λ_G fails: λ_G = 2λ_min(G(0))", "shrunk: λ_min", part=_shrunk, share=1.5
)


# --- gao2022: gradient flow --------------------------------------------------------------------


def _kept(
    s: relu_implicit.Scales, run: Trajectory, *, printed: bool = False
) -> Iterator[Measurement]:
    """Compare spectrum and norms with their bounds; printed ones for a and c do not see m."""
    root, unit = math.sqrt(s.m), s.omega * math.sqrt(s.n) * s.error / s.lambda0
    readouts = {"a": 16 * unit, "c": 8 * unit} if printed else {"a": 2 * root, "c": 2 * root}
    floor = run.block_min["c"].min() / (s.lambda0 / 2)
    yield at_least("min over t of λ_min(G(t)) ÷ (λ_G/2)", floor, 1.0)
    for name, bound in (readouts | dict.fromkeys("UW", 2 * s.omega * root)).items():
        yield at_most(f"max ‖{name}(t)‖ ÷ bound", run.norms[name].max() / bound, 1.0)


def _ways(run: Trajectory, bounds: Mapping[str, float]) -> Iterator[Measurement]:
    for name, way in run.displacement.items():
        yield at_most(f"‖{name}(t)-{name}(0)‖ ÷ bound", way.max() / bounds[name], 1.0)


def _flow_kept(trial, *, printed=False, twins=False):
    near = lab.near_flow(trial.seed, twins=twins)
    yield from _kept(near.scales, near.run, printed=printed)


def _flow_ways(trial, *, gamma=0.9, until=None, train="WUac"):
    near = lab.near_flow(trial.seed, gamma=gamma, until=until, train=train)
    yield from _ways(near.run, near.scales.flow_displacements)


def _lone_ways(trial):
    """Measure the ways where the bounds are least loose: one input, all units on."""
    for readout, names in ((0.1, "ac"), (1.0, "WU")):
        lone = lab.lone_flow(trial.seed, readout)
        for name in names:
            share = lone.run.displacement[name].max() / lone.scales.flow_displacements[name]
            yield headline(at_most(f"one input: ‖{name}(t)-{name}(0)‖ ÷ bound", share, 1.0))


def _corner(trial, *, gamma=1.0, length=1.0, readout=1.0):
    """Compare gradients with their bounds where these are attained."""
    s, model, X, y = lab.corner(trial.seed, gamma=gamma, length=length, readout=readout)
    found = lab.solved_gradient(model, X, y)
    for name, grad in found.grads.items():
        share = float(grad.norm() / found.error.norm()) / s.gradients[name]
        yield equal(f"all norms doubled: ‖∇_{name}L‖ ÷ bound", share, 1.0, TWO_ROUTES)


def _far_labels(trial, *, share):
    far = lab.far_flow(trial.seed, share)
    yield from _kept(far.scales, far.run)
    yield at_most(RATE, _over_rate(far.run, far.scales.lambda0), 1.0)


@claim(
    "gao2022.lemma3.5",
    "Under gradient flow the Gram matrix keeps half its eigenvalue and no weight goes far",
    "thm-relu-flow",
)
def flow_invariants(trial):
    near = lab.near_flow(trial.seed)
    yield from _asked(near.conditions)
    yield given("the factor promised at the end", _promised(near), "≤", 1.01 * lab.PROMISE)
    yield from _flow_kept(trial)
    yield from _flow_ways(trial)
    yield from _lone_ways(trial)
    yield from _corner(trial)
    yield from _standing_still(trial)
    wide, short, run = lab.ordinary_flow(trial.seed)
    yield _beyond("m needed ÷ m", short, "≥", 1e6)
    yield _whole_flow(run)
    floor = run.block_min["c"].min() / (wide.rate / 2)
    yield _beyond("min over t of λ_min(G(t)) ÷ (λ_G/2)", floor, "≥", 1.0)
    for name, way in run.displacement.items():
        share = way.max() / wide.constants[f"way of {name}"]
        yield _beyond(f"‖{name}(t)-{name}(0)‖ ÷ bound", share, "≤", 1.0)


def _standing_still(trial):
    """Compare the flow with the one of the first kernel."""
    yield within(f"one input: {FROZEN}", lab.lone_flow(trial.seed, 1.0).frozen, 0.01)
    yield within(f"two inputs: {FROZEN}", lab.near_flow(trial.seed).frozen, 1e-3)


def _promised(near: lab.NearRun) -> float:
    """Return what the flow theorem promises of ‖e‖² at the end of a run."""
    return math.exp(-near.conditions.rate * float(near.run.times[-1]))


flow_invariants.breaks(
    "the printed bounds on ‖a(t)‖ and ‖c(t)‖, which do not see m: erratum gao2022-E4",
    "max ‖a",
    "max ‖c",
    part=_flow_kept,
    printed=True,
)
flow_invariants.breaks(
    "two equal inputs: λ_min(G(0)) ≥ ¾λ_G fails, λ_G kept", "min", part=_flow_kept, twins=True
)
flow_invariants.breaks(
    "only W is trained, at γ = 0.01/ω: the read-outs do not drive the decay",
    part=_flow_ways,
    gamma=0.04,
    until=5e4,
    train="W",
)
flow_invariants.breaks(
    "the width is missed by a factor below 100 in √m: labels at 0.7 of the output",
    "min over t",
    part=_far_labels,
    share=0.7,
)
flow_invariants.breaks(
    "γ = 1.5/(4ω)",
    *(f"all norms doubled: ‖∇_{k}" for k in "WUa"),  # c does not see the cell
    part=_corner,
    gamma=1.5,
)
flow_invariants.breaks("inputs of length 1.5", part=_corner, length=1.5)
flow_invariants.breaks(
    "‖a(0)‖ = ‖c(0)‖ = 1.5√m",
    *(f"all norms doubled: ‖∇_{k}" for k in "WU"),  # a and c do not see the read-outs
    part=_corner,
    readout=1.5,
)


def _by_definition(trial) -> Measurement:
    """Compare the outputs with 200 steps of z ← σ((γ/√m)Wz + φ), φ = σ(Ux)/√m, and a·z + c·φ."""
    model, X, _, _ = lab.near_network(trial.seed, 0.9)
    W, U, a, c = (p.detach() for p in (model.W, model.U, model.a, model.c))
    root = math.sqrt(len(W))
    phi = torch.relu(torch.einsum("md,nd->nm", U, X)) / root
    z = torch.zeros_like(phi)
    for _ in range(200):
        z = torch.relu(model.gamma / root * torch.einsum("rs,ns->nr", W, z) + phi)
    off = relative(lab.outputs(model, X), z @ a + phi @ c)
    return within("outputs vs the definition of the network", off, TWO_ROUTES)


def _flow_decay(trial, *, twins=False, train="WUac"):
    near = lab.near_flow(trial.seed, twins=twins, train=train)
    yield at_most(RATE, _over_rate(near.run, near.scales.lambda0), 1.0)


@claim(
    "gao2022.theorem3.1",
    "Gradient flow on all weights of a ReLU implicit network: ‖e(t)‖² ≤ e^{-λ_Gt}‖e(0)‖²",
    "thm-relu-flow",
)
def flow_rate(trial):
    near, lone = lab.near_flow(trial.seed), lab.lone_flow(trial.seed, 0.1)
    yield from _asked(near.conditions)
    yield _by_definition(trial)
    yield from _flow_decay(trial)
    yield from _standing_still(trial)
    # one input and a small read-out: nothing else helps the two blocks that the proof counts
    yield from _exponent(lone.run, lone.conditions.rate * float(lone.run.times[-1]))
    wide, short, run = lab.ordinary_flow(trial.seed)
    yield _beyond("m needed ÷ m", short, "≥", 1e6)
    yield _whole_flow(run)
    yield _beyond(RATE, _over_rate(run, wide.rate), "≤", 1.0)


flow_rate.breaks("two equal inputs with different labels, λ_G kept", part=_flow_decay, twins=True)
flow_rate.breaks(
    "only W is trained: λ_min(ΦΦᵀ) no longer bounds the tangent kernel", part=_flow_decay, train="W"
)
flow_rate.breaks(
    "the width is missed: labels at minus the output switch all units off",
    RATE,
    part=_far_labels,
    share=-1.0,
)


# --- gao2022: gradient descent -----------------------------------------------------------------


def _descent_ways(trial, *, times_edge=0.0):
    near = lab.near_descent(trial.seed, times_edge, False)
    yield from _ways(near.run, near.scales.descent_displacements)


def _descent_corner(trial, *, length=1.0):
    """Compare kernel and remainder with their bounds where these are attained."""
    s, model, X, y = lab.corner(trial.seed, length=length)
    top = lab.edge(model, X) / s.smoothness
    yield equal("all norms doubled: λ_max(H) ÷ (20ω²+52)n", top, 1.0, TWO_ROUTES)
    step = 1e-6
    rest, error, _ = lab.remainders(model, X, y, step, 1)
    share = float(rest[0] / (s.remainder * (step * error[0]) ** 2))
    yield equal("all norms doubled: ‖Δŷ+ηHe‖ ÷ kη²‖e‖²", share, 1.0, 0.01)


def _at_the_kink(trial, *, share=0.9):
    left = lab.pushed(trial.seed, share)
    yield at_least("W and U gone their way against a unit: what is left of it", left, 0.0)


def _inner_term(trial, *, sign=1.0):
    model, X, y = lab.ordinary(trial.seed, m=100)
    step, moved = 1e-4, copy.deepcopy(model)
    found = lab.solved_gradient(model, X, y)
    H, e = lab.blocks(model, X, found), found.error
    lab.move_along(moved, found, step)
    with torch.no_grad():
        # the new read-outs on the old states: what remains of Δŷ is the work of W and U
        kept = found.z @ moved.a + model.inject(X) @ moved.c
        rest = (lab.outputs(moved, X) - kept) @ e / (step * e.pow(2).sum())
        target = e @ (H["W"] + H["U"]) @ e / e.pow(2).sum()
    off = abs(float(rest) + sign * float(target)) / float(target)
    yield within("⟨e, change due to W and U⟩ ÷ η‖e‖² vs -eᵀ(H_W+H_U)e ÷ ‖e‖²", off, 0.02)


@claim(
    "gao2022.lemma3.6",
    "Under gradient descent with a small step no weight goes far and no unit changes side",
    "thm-relu-descent",
)
def descent_invariants(trial):
    conditions, s, run, frozen = lab.near_descent(trial.seed, 0.0, False)
    yield from _asked(conditions)
    yield from _kept(s, run)
    yield from _descent_ways(trial)
    yield within(FROZEN, frozen, 1e-3)
    yield equal("units that changed side", _largest(run.flips), 0, 0)
    yield from _descent_corner(trial)
    yield from _at_the_kink(trial)
    # labels at 0.9 of the width: then U may go 0.9 of the way to the radius of Lemma 3.4
    lone = lab.lone_flow(trial.seed, 1.0).scales
    radius = lab.lemma34_radius(*lab.lone_network(trial.seed))
    share = lone.descent_displacements["U"] / radius
    yield headline(at_most("what the width admits for U ÷ the radius of Lemma 3.4", share, 1.0))
    model, X, y, _ = lab.near_network(trial.seed)
    step = conditions.step
    rest, error, _ = lab.remainders(model, X, y, step, 10)
    second_order = float((rest / (s.remainder * (step * error) ** 2)).max())
    yield at_most("‖Δŷ+ηHe‖ ÷ kη²‖e‖²", second_order, 1.0)
    allowed = float((rest / (step * s.lambda0 / 8 * error)).max())
    yield at_most("‖Δŷ+ηHe‖ ÷ (ηλ_G/8)‖e‖", allowed, 1.0)
    yield from _inner_term(trial)


descent_invariants.breaks(
    "the step is 3 ÷ λ_max(H(0)), beyond the edge 2 ÷ λ_max", part=_descent_ways, times_edge=3.0
)
descent_invariants.breaks(
    "the printed (43): the contribution of W and U counted as a loss, gao2022-E6",
    part=_inner_term,
    shown={"vs -eᵀ": "vs +eᵀ"},
    sign=-1.0,
)
descent_invariants.breaks(
    "the margin is missed: labels 4 times too far", part=_at_the_kink, share=4.0
)
descent_invariants.breaks("inputs of length 1.5", part=_descent_corner, length=1.5)


def _descent_decay(trial, *, times_edge=0.0, twins=False):
    near = lab.near_descent(trial.seed, times_edge, twins)
    yield at_most(STEPS, _over_steps(near.run, near.scales.lambda0 / 2), 1.0)


def _certificate(trial, *, times_edge=1.0):
    """Certify every step from labels ±1, flips included: kernel and remainder leave room."""
    model, X, y = lab.ordinary(trial.seed)
    step = times_edge / lab.edge(model, X)
    rest, error, factor = lab.remainders(model, X, y, step, 20)
    allowed = 1 - 3 / 8 * step * relu_implicit.scales(model, X, y).lambda0
    worst = float((factor + rest / error).max()) / allowed
    name = "labels ±1, each step: (‖I-ηH‖ + ‖Δŷ+ηHe‖/‖e‖) ÷ (1-⅜ηλ_G)"
    yield Measurement(name, worst, "≤", 1.0, theorem=False)


@claim(
    "gao2022.theorem3.2",
    "Gradient descent on a ReLU implicit network: ‖e(k)‖² ≤ (1-ηλ_G/2)^k‖e(0)‖²",
    "thm-relu-descent",
)
def descent_rate(trial):
    near, lone = lab.near_descent(trial.seed, 0.0, False), lab.long_descent(trial.seed)
    yield from _asked(near.conditions)
    yield _by_definition(trial)
    yield from _descent_decay(trial)
    yield within(FROZEN, near.frozen, 1e-3)
    steps, rate = int(lone.run.gradients[-1]), lone.run.step * lone.conditions.rate
    yield from _exponent(lone.run, -steps * math.log1p(-rate))
    model, X, y = lab.ordinary(trial.seed)
    wide = relu_implicit.descent_conditions(model, X, y)
    run = lab.descend(model, X, y, 1.0 / lab.edge(model, X), 60, tol=1e-8)
    yield _beyond("need ÷ have, worst hypothesis", wide.worst.ratio, "≥", 1e3)
    yield _beyond("η ÷ the step admitted", run.step / wide.step, "≥", 10)
    yield _beyond(STEPS, _over_steps(run, wide.rate), "≤", 1.0)
    yield from _certificate(trial)


def _beyond_the_edge(trial):
    yield from _descent_decay(trial, times_edge=3.0)
    yield from _certificate(trial, times_edge=3.0)


descent_rate.breaks("the step is 3 ÷ λ_max(H(0)), beyond the edge 2 ÷ λ_max", part=_beyond_the_edge)
descent_rate.breaks(
    "two equal inputs with different labels, λ_G kept", part=_descent_decay, twins=True
)


# --- gao2023: only the implicit layer ----------------------------------------------------------


def _implicit_kernel(trial, *, deep=True):
    model = ReLUImplicit.init_implicit_only(16, 6, gamma=0.4, seed=trial.seed)
    X, y = sphere(4, 6, trial.seed + 100), signs(4, g=generator(trial.seed + 200))
    H = lab.implicit_gram(model, X, deep=deep)
    exact = jacobian_ntk(model, X, tol=1e-13)
    yield within("H vs Jacobian of autograd", float((H - exact).norm() / exact.norm()), TWO_ROUTES)
    found, h = lab.solved_gradient(model, X, y), 1e-6
    moved = copy.deepcopy(model)
    lab.move_along(moved, found, h)
    slope, flow = (lab.outputs(moved, X) - found.error - y) / h, -H @ found.error
    yield within("dŷ/dt along -∇L vs -He", float((slope - flow).norm() / flow.norm()), 1e-4)


@claim(
    "gao2023.dynamics",
    "Only W trained: dŷ/dt = -He with H = γ̃²(VVᵀ)∘(ZZᵀ), and λ_min(H) bounds the rate",
    "prop-implicit-dynamics",
)
def implicit_dynamics(trial):
    yield from _implicit_kernel(trial)
    yield from _least_eigenvalue(trial)


def _least_eigenvalue(trial, *, least=True):
    near = lab.near_implicit(trial.seed, False)
    slowest = _smallest(near.run.gram_min if least else near.run.gram_max)
    name = "L(t) ÷ e^{-2λt}L(0), λ = min λ_min(H)"
    yield at_most(name, _over_rate(near.run, 2 * slowest), 1.01)  # room for the integrator
    # the exponent between the last two records, where the slowest direction is left alone
    error, times = near.run.error_norm, near.run.times
    pace = math.log(error[-2] / error[-1]) / float(times[-1] - times[-2])
    yield equal("-d log‖e‖/dt at the end ÷ λ", pace / slowest, 1.0, 0.1)


implicit_dynamics.breaks(
    "the adjoint state of one layer, Da, instead of D(I-γ̃WᵀD)⁻¹a", part=_implicit_kernel, deep=False
)
implicit_dynamics.breaks(
    "λ is larger than λ_min(H): the largest eigenvalue",
    part=_least_eigenvalue,
    shown={"λ_min": "λ_max"},
    least=False,
)


def _implicit_conclusions(trial, *, twins=False, far=False):
    near = lab.unreachable(trial.seed) if far else lab.near_implicit(trial.seed, twins)
    conditions, run = near.conditions, near.run
    known = conditions.constants
    floor = _smallest(run.gram_min) / (conditions.rate / 2)
    yield at_least("min over t of λ_min(H(t)) ÷ (λ_H/2)", floor, 1.0)
    yield at_most("‖W(t)-W(0)‖_F ÷ r", run.displacement["W"].max() / known["way of W"], 1.0)
    yield at_most("max γ̃‖W(t)‖ ÷ q", run.norms["cell"].max() / known["rho"], 1.0)
    yield at_most(IMPLICIT_RATE, _over_rate(run, conditions.rate), 1.0)
    yield equal("units that changed side", _largest(run.flips), 0, 0)


@claim(
    "gao2023.theorem3.1",
    "Gradient flow on the implicit layer alone: ‖e(t)‖² ≤ e^{-λ_Ht}‖e(0)‖², no unit flipping",
    "thm-implicit-only",
)
def implicit_only_rate(trial):
    conditions, model, X, run, frozen = lab.near_implicit(trial.seed, False)
    yield from _asked(conditions)
    H = empirical_ntk(model, X, tol=1e-13)
    yield within("H(0) vs autograd", relative(H, jacobian_ntk(model, X, tol=1e-13)), TWO_ROUTES)
    yield from _implicit_conclusions(trial)
    yield from _exponent(run, conditions.rate * float(run.times[-1]))
    yield within(FROZEN, frozen, 1e-3)
    unit = lab.one_unit(trial.seed)
    yield equal("one unit at γ̃w = q: (2/λ_H)‖∇_WL‖‖e(0)‖/‖e‖ ÷ r", unit.gradient, 1, TWO_ROUTES)
    yield at_most("one unit, w + r: change of √H ÷ bound", unit.spectrum, 1.0)
    yield at_most("one unit, w + r: change of the pre-activation ÷ bound", unit.margin, 1.0)
    draws = model.solve(X, tol=lab.STATES).z @ signs(model.m, 2000, g=trial.g)
    mean, rho0 = float(draws.pow(2).sum(0).mean()), conditions.constants["rho0"]
    bound = float(model.inject(X).detach().pow(2).sum()) / (1 - rho0) ** 2
    yield at_most("mean ‖ŷ(0)‖² over 2000 read-outs ÷ ‖Φ‖_F²/(1-q₀)²", mean / bound, 1.0)
    model = ReLUImplicit.init_implicit_only(50, 10, gamma=0.4, seed=trial.seed)
    X, y = sphere(4, 10, trial.seed + 100), signs(4, g=generator(trial.seed + 200))
    wide = relu_implicit.implicit_only_conditions(model, X, y)
    run = lab.euler_flow(model, X, y, 3 / wide.rate)
    yield _beyond("need ÷ have, worst hypothesis", wide.worst.ratio, "≥", 10)
    yield _beyond("units that changed side", _largest(run.flips), "≥", 1)
    yield _beyond(IMPLICIT_RATE, _over_rate(run, wide.rate), "≤", 1.0)


implicit_only_rate.breaks(
    "two equal inputs with different labels, λ_H kept",
    "min over t",
    IMPLICIT_RATE,
    part=_implicit_conclusions,
    twins=True,
)
implicit_only_rate.breaks(
    "the labels are not near: negative ones, which a ≥ 0 cannot reach",
    "min over t",
    "max γ̃‖W(t)‖",
    IMPLICIT_RATE,
    "units",
    part=_implicit_conclusions,
    far=True,
)


# --- ling2023: the vanilla DEQ -----------------------------------------------------------------


def _pl_kernel(trial, *, trained="WUa"):
    model, X = lab.vanilla_network(trial.seed)
    H, y = empirical_ntk(model, X, tol=1e-13), normal(5, g=generator(trial.seed + 200))
    e = lab.outputs(model, X) - y
    square = lab.gradient_size(model, X, y, trained)
    yield within("‖∇L‖² vs eᵀHe", abs(square / float(e @ H @ e) - 1), TWO_ROUTES)
    tight = lab.gradient_size(model, X, lab.labels_along(H, model, X), trained) / lab.least(H)
    yield equal("e the least eigenvector: ‖∇L‖² ÷ 2λ_min(H)L", tight, 1.0, TWO_ROUTES)


@claim(
    "ling2023.equation4",
    "Vanilla DEQ: ‖∇L‖² = eᵀHe ≥ 2λ_min(H)L, with equality for an eigenvector",
    "prop-pl",
)
def pl_through_kernel(trial):
    yield from _pl_kernel(trial)
    model, X = lab.vanilla_network(trial.seed)
    floor = lab.least(empirical_ntk(model, X))
    for k in range(3):
        y = normal(5, g=generator(trial.seed + 300 + k))
        half = 0.5 * float((lab.outputs(model, X) - y).pow(2).sum())
        ratio = lab.gradient_size(model, X, y, "WUa") / (2 * floor * half)
        yield at_least(f"labels {k}: ‖∇L‖² ÷ 2λ_min(H)L", ratio, 1.0)


pl_through_kernel.breaks(
    "the read-out is not trained, but counted in H", part=_pl_kernel, trained="WU"
)


def _pl_gram(trial, *, trained="WUa"):
    """Check (5) at three times of a training run, in the worst direction of the Gram matrix."""
    base, X = lab.vanilla_network(trial.seed)
    # with a small read-out the blocks of W and U are small
    model = VanillaDEQ(base.W.detach(), base.U.detach(), 0.1 * base.a.detach())
    y = signs(5, g=generator(trial.seed + 200))
    step = 1 / lab.edge(model, X)
    for k in (0, 2, 4):
        if k:
            lab.descend(model, X, y, step, 2).restore(model)
        z = model.solve(X, tol=1e-13).z
        G = z @ z.mT
        y_least = lab.labels_along(G, model, X)
        square = lab.gradient_size(model, X, y_least, trained)
        yield at_least(f"step {k}: ‖∇L‖² ÷ 2λ_min(G)L", square / lab.least(G), 1.0)
        H, e = empirical_ntk(model, X, tol=1e-13), lab.outputs(model, X) - y_least
        yield equal(f"step {k}: ‖∇L‖² ÷ eᵀHe", square / float(e @ H @ e), 1.0, TWO_ROUTES)


@claim("ling2023.equation5", "Vanilla DEQ: ‖∇L‖² ≥ 2λ_min(ZZᵀ)L, for H ⪰ ZZᵀ", "prop-pl")
def pl_through_gram(trial):
    yield from _pl_gram(trial)
    model, X = lab.vanilla_network(trial.seed)
    off = lab.gradient_gap(model, X, signs(5, g=generator(trial.seed + 200)))
    yield within("a step of training vs the gradient of autograd", off, 1e-6)
    z = model.solve(X).z
    yield at_least(
        "λ_min(H) ÷ λ_min(G)", lab.least(empirical_ntk(model, X)) / lab.least(z @ z.mT), 1.0
    )


pl_through_gram.breaks("the read-out is not trained", part=_pl_gram, trained="WU")


def _condition_one(trial, *, small=True):
    model, X, y = lab.small_readout(trial.seed)
    if not small:
        model = lab.aligned(trial.seed)[0]
        y = lab.outputs(model, X) + 0.01
    conditions = vanilla.condition_one(model, X, y, lab.DELTA)
    for name in ("(7)", "(8)", "(9')"):
        yield at_most(f"{name}: need ÷ have", conditions[name].ratio, 1.0)
    printed = vanilla.condition_one(model, X, y, lab.DELTA, printed=True)["(9)"]
    yield at_most("(9): need ÷ have", printed.ratio, 1.0)
    implied = lab.condition_nine_obstruction(model, X, lab.DELTA).ratio
    yield at_most("4n(‖a(0)‖+δ)² ÷ (1-ρ̄_w)², implied by (9)", implied, 1.0)


@claim(
    "ling2023.condition1",
    "Condition 1 can be met by a small read-out, and (9) forces 4n(‖a(0)‖+δ)² ≤ (1-ρ̄_w)²",
    "prop-condition-nine",
)
def initial_condition(trial):
    yield from _condition_one(trial)
    model, X = lab.aligned(trial.seed, 1, size=30.0)
    y = lab.outputs(model, X)
    printed = vanilla.condition_one(model, X, y, 1e-3, printed=True)["(9)"]
    implied = lab.condition_nine_obstruction(model, X, 1e-3).ratio
    name = "one long input: ratio of (9) ÷ ratio implied"
    yield headline(at_least(name, printed.ratio / implied, 1.0))
    X = sphere(3, 6, trial.seed + 100, radius=math.sqrt(6))
    y = signs(3, g=generator(trial.seed + 200))
    for m in (25, 50, 100):
        model = VanillaDEQ.init(m, 6, variance=0.02, seed=trial.seed)
        printed = vanilla.condition_one(model, X, y, lab.DELTA, printed=True)["(9)"]
        implied = lab.condition_nine_obstruction(model, X, lab.DELTA).ratio
        yield at_least(f"m = {m}: ratio of (9) ÷ ratio implied", printed.ratio / implied, 1.0)


# no width helps: ‖a(0)‖ ≈ 1
initial_condition.breaks(
    "a read-out of length 1, as in Assumption 1: ling2023-L1",
    "(9",
    "4n",
    part=_condition_one,
    small=False,
)


def _vanilla_conclusions(trial, *, times_edge=0.0, twins=False, labels=0.9):
    near = lab.near_vanilla(trial.seed, 2, times_edge, twins, labels)
    s, run = near.scales, near.run
    yield at_most("max ‖W(k)‖ ÷ (‖W(0)‖+δ)", run.norms["W"].max() / s.w, 1.0)
    floor = float(run.block_min["a"].min()) / (s.lambda0 / 2)
    yield at_least("min over k of λ_min(G(k)) ÷ (λ_Z/2)", floor, 1.0)
    yield at_most(VANILLA_STEPS, _over_steps(run, s.lambda0 / 2), 1.0)
    far = max(float(way.max()) for way in run.displacement.values())
    yield at_most("the longest way of a weight ÷ δ", far / s.delta, 1.0)
    share = near.moved / ((1 - math.sqrt(0.5)) * math.sqrt(s.lambda0))
    yield at_most("‖Z(k)-Z(0)‖_F at the end ÷ (1-1/√2)√λ_Z", share, 1.0)


def _vanilla_ways(near: lab.VanillaRun, kind: str) -> Iterator[Measurement]:
    s = near.scales
    for name, bound in s.gradients.items():
        share = near.run.displacement[name].max() / (4 / s.lambda0 * bound * s.x * s.error)
        yield at_most(f"{kind}: ‖{name}(k)-{name}(0)‖_F ÷ (4/λ_Z)c‖X‖_F‖e(0)‖", share, 1.0)


def _vanilla_corner(trial, *, norm=0.0):
    for name, share in lab.vanilla_corner(trial.seed, norm=norm).items():
        what = f"at the end of the balls: ‖∇_{name}L‖_F ÷ c_{name.lower()}‖X‖_F‖e‖"
        yield equal(what, share, 1.0, TWO_ROUTES)


def _proof_gain(trial, *, printed=False):
    """Compare the factor that one step of the proof gives with the rate claimed, at 0.9 of (9')."""
    model, X, y = lab.small_readout(trial.seed, printed=printed)
    s = vanilla.scales(model, X, y, lab.DELTA)
    gain = (1 - s.factor(s.step)) / (s.step * s.lambda0 / 2)
    name = "what a step of the proof gains ÷ (ηλ_Z/2), at the largest step"
    yield headline(at_least(name, gain, 1.0))


@claim(
    "ling2023.theorem1",
    "Gradient descent on the vanilla DEQ under Condition 1: L(k) ≤ (1-ηλ_Z/2)^k L(0)",
    "thm-vanilla-descent",
)
def vanilla_rate(trial):
    near, lone = lab.near_vanilla(trial.seed), lab.near_vanilla(trial.seed, 1)
    yield from _asked(near.conditions)
    yield from _vanilla_conclusions(trial)
    yield from _vanilla_ways(near, "two inputs")
    yield within("two inputs: a step vs the gradient of autograd", near.gradient, 1e-6)
    yield from _vanilla_ways(lone, "one input")
    yield within(f"one input: {FROZEN}", lone.frozen, 0.01)
    steps, rate = int(near.run.gradients[-1]), near.run.step * near.conditions.rate
    yield from _exponent(near.run, -steps * math.log1p(-rate))
    yield from _vanilla_corner(trial)
    yield from _proof_gain(trial)
    model = VanillaDEQ.init(50, 10, seed=trial.seed)
    X = sphere(6, 10, trial.seed + 100, radius=math.sqrt(10))
    y = normal(6, g=generator(trial.seed + 200))
    wide = vanilla.condition_one(model, X, y, lab.DELTA)
    run = lab.descend(model, X, y, 1 / lab.edge(model, X), 60, tol=1e-8)
    yield _beyond("need ÷ have, worst hypothesis", wide.worst.ratio, "≥", 1e3)
    yield _beyond("η ÷ the step admitted", run.step / wide.step, "≥", 100)
    yield _beyond("max ‖W(k)‖", run.norms["W"].max(), "≤", 1.0)
    floor = float(run.block_min["a"].min()) / wide.rate
    yield _beyond("min over k of λ_min(G(k)) ÷ (λ_Z/2)", floor, "≥", 1.0)
    yield _beyond(VANILLA_STEPS, _over_steps(run, wide.rate), "≤", 1.0)


vanilla_rate.breaks(
    "the step is 3 ÷ λ_max(H(0)), beyond the edge 2 ÷ λ_max",
    VANILLA_STEPS,
    part=_vanilla_conclusions,
    times_edge=3.0,
)
vanilla_rate.breaks(
    "two equal inputs with different labels, λ_Z kept",
    VANILLA_STEPS,
    "min over k",
    part=_vanilla_conclusions,
    twins=True,
)
vanilla_rate.breaks("the printed (9), with 4 for 8: ling2023-L13", part=_proof_gain, printed=True)
vanilla_rate.breaks(
    "(7) fails: labels 30 times too far", "the longest way", part=_vanilla_conclusions, labels=30.0
)
vanilla_rate.breaks("W is 0.1 outside its ball", part=_vanilla_corner, norm=0.1)

check = checks(claim)
