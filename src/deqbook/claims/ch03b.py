"""Chapter 3, second page: convergence of three networks trained by gradient flow and descent.

The sources ask for widths that no experiment reaches. Their hypotheses, however, only involve the
initial error, the initial spectrum and the width; so here the labels are placed next to the initial
predictions, at the largest distance that the hypotheses admit, and every hypothesis is evaluated.
What holds with ordinary labels is measured separately, under a name that says so.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from deqbook.bounds import relu_implicit, vanilla
from deqbook.bounds.conditions import Conditions
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
from deqbook.kernels import Tangents, empirical_ntk, jacobian_ntk, parts, tangents
from deqbook.linalg import operator_norm
from deqbook.models import ReLUImplicit, VanillaDEQ
from deqbook.models.closed_form import Gradient, gradient
from deqbook.runtime import generator, normal, signs, sphere
from deqbook.solvers import Picard

CHAPTER = "03b_three_networks"
EXACT = 1e-14  # of the equilibria, where the errors themselves are tiny
SAME = 1e-8  # two exact routes
RATE = "max over t of ‖e(t)‖² ÷ e^{-λ₀t}‖e(0)‖²"
STEPS = "max over k of ‖e(k)‖² ÷ (1-ηλ₀/2)^k‖e(0)‖²"
PRACTICE = "ordinary labels, not implied: "

Dense = ReLUImplicit | VanillaDEQ
Ask = Callable[[Tensor], Conditions]


# --- tools -------------------------------------------------------------------------------------


def _beyond(name: str, value: float, relation: str, bound: float) -> Measurement:
    """Measure a conclusion where the theorem is silent."""
    return Measurement(PRACTICE + name, float(value), relation, bound, theorem=False)


def _asked(conditions: Conditions) -> Iterator[Measurement]:
    """Measure every hypothesis as the ratio of what is needed to what there is."""
    for c in conditions.conditions:
        yield given(f"{c.formula}, need ÷ have", c.ratio, "≤", 1.0)


def _orthonormal(n: int, d: int, seed: int) -> Tensor:
    """Return n orthonormal inputs, turned at random."""
    return torch.linalg.qr(normal(d, n, g=generator(seed)))[0].mT.contiguous()


def _outputs(model: Dense, X: Tensor) -> Tensor:
    with torch.no_grad():
        return model(X, tol=EXACT)


def _labels(model: Dense, X: Tensor, seed: int, ask: Ask, names: tuple[str, ...]) -> Tensor:
    """Return labels in a random direction, 0.9 times as far as the named conditions admit.

    The conditions named are those whose needs are proportional to ‖e(0)‖.
    """
    at, u = _outputs(model, X), normal(len(X), g=generator(seed))
    u = u / u.norm()
    unit = ask(at - u)
    return at - 0.9 / max(unit[name].ratio for name in names) * u


def _flow(
    model: Dense, X: Tensor, y: Tensor, until: float, *, rtol: float, atol: float
) -> Trajectory:
    times = np.linspace(0, until, 13)
    return gradient_flow(
        model,
        X,
        y,
        times,
        record=Record(gram=True),
        solver=Picard(),
        adjoint_solver=Picard(),
        rtol=rtol,
        atol=atol,
    )


def _descent(
    model: Dense, X: Tensor, y: Tensor, step: float, epochs: int, *, tol: float = EXACT
) -> Trajectory:
    return gradient_descent(
        model,
        X,
        y,
        step,
        epochs,
        record=Record(every=max(1, epochs // 50), gram=True),
        solver=Picard(),
        adjoint_solver=Picard(),
        tol=tol,
        throw=False,
    )


def _fine(model: Dense, X: Tensor, y: Tensor, until: float) -> Trajectory:
    """Follow the flow by 100 Euler steps: with units at their kinks a high order gains nothing."""
    return _descent(model, X, y, until / 100, 100, tol=1e-8)


def _over_rate(run: Trajectory, rate: float) -> float:
    """Return the largest ‖e(t)‖² ÷ e^{-rate·t}‖e(0)‖² after the start."""
    squares = run.error_norm**2 / run.error_norm[0] ** 2
    return float(np.max(squares[1:] / np.exp(-rate * run.times[1:])))


def _over_steps(run: Trajectory, rate: float) -> float:
    """Return the largest ‖e(k)‖² ÷ (1-η·rate)^k‖e(0)‖² after the start."""
    squares = run.error_norm**2 / run.error_norm[0] ** 2
    bounds = (1 - run.step * rate) ** run.gradients.astype(float)
    return float(np.max(squares[1:] / bounds[1:]))


def _largest(values: np.ndarray | None) -> float:
    """Return the largest of what a run recorded; NaN if it recorded nothing."""
    return math.nan if values is None else float(np.max(values))


def _smallest(values: np.ndarray | None) -> float:
    return math.nan if values is None else float(np.min(values))


def _edge(model: Dense, X: Tensor) -> float:
    """Return λ_max of the tangent kernel at the start."""
    return float(torch.linalg.eigvalsh(empirical_ntk(model, X))[-1])


def _twins(X: Tensor) -> Tensor:
    """Return the inputs with the second replaced by the first."""
    return torch.cat([X[:1], X[:1], X[2:]])


def _ordinary(seed: int, m: int = 50) -> tuple[ReLUImplicit, Tensor, Tensor]:
    """Return a network, six inputs and labels ±1."""
    model = ReLUImplicit.init(m, 10, gamma=0.1, seed=seed)
    return model, sphere(6, 10, seed + 100), signs(6, g=generator(seed + 200))


# --- gao2022: the features' Gram matrix is stable ----------------------------------------------


def _hadamard(bits: int) -> Tensor:
    """Return Sylvester's matrix of size 2^bits."""
    H = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(bits):
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)], 0)
    return H


def _bent(bits: int, g: torch.Generator) -> Tensor:
    """Return a random ±1 vector of length 4^bits with a flat Walsh spectrum (Maiorana-McFarland).

    It is (-1)^{x·π(y)+h(y)} for a random permutation π and random bits h.
    """
    size = 2**bits
    rows = _hadamard(bits)[torch.randperm(size, generator=g)]
    return (rows * signs(size, 1, g=g)).flatten()


def _masked_move(seed: int, norm: str) -> Iterator[Measurement]:
    """Move U by the radius so that the mask of ReLU makes the move √n times larger.

    X = I, U(0) = s[HS; -HS] with H of Sylvester and signs S such that HSv is flat for an
    alternating v. The move -t sign(U)∘(gvᵀ), g = sign(HSv), has norm t√(m/n), and changes each
    entry of σ(U)v by about t/2.
    """
    n, lambda0 = 256, 0.5 - 0.5 / math.pi  # λ_min(G^∞) for orthonormal inputs
    v = torch.ones(n, dtype=torch.float64) / math.sqrt(n)
    v[1::2] *= -1
    S = _bent(4, generator(seed)) * v * math.sqrt(n)
    size = 1.001 * math.sqrt(3 * lambda0)  # so that λ_min(G(0)) = s²/4 ≥ ¾λ₀
    U = size * torch.cat([_hadamard(8), -_hadamard(8)]) * S
    X, m = torch.eye(n, dtype=torch.float64), 2 * n
    none = torch.zeros(m, dtype=torch.float64)
    model = ReLUImplicit(torch.zeros(m, m, dtype=torch.float64), U, none, none, 0.1)
    G0 = relu_implicit.feature_gram(model, X)
    radius = relu_implicit.lemma34_radius(model, X, lambda0=lambda0, norm=norm)
    move = -torch.sign(U) * torch.outer(torch.sign(U @ v), v)
    move *= radius / operator_norm(move)
    yield given("masked move: λ_min(G(0)) ÷ ¾λ₀", _least(G0) / (0.75 * lambda0), "≥", 1.0)
    yield given("masked move: ‖U‖ ÷ 2‖U(0)‖", operator_norm(U + move) / (2 * size * m**0.5), "≤", 1)
    yield from _moved(model, X, G0, move, lambda0, "masked move")


def _least(G: Tensor) -> float:
    return float(torch.linalg.eigvalsh(G)[0])


def _moved(
    model: ReLUImplicit, X: Tensor, G0: Tensor, move: Tensor, lambda0: float, name: str
) -> Iterator[Measurement]:
    phi = torch.relu(X @ (model.U.detach() + move).mT) / math.sqrt(model.m)
    G = phi @ phi.mT
    yield at_most(f"{name}: ‖G-G(0)‖ ÷ (λ₀/4)", operator_norm(G - G0) / (lambda0 / 4), 1.0)
    yield at_least(f"{name}: λ_min(G) ÷ (λ₀/2)", _least(G) / (lambda0 / 2), 1.0)


@claim(
    "gao2022.lemma3.4",
    title="While U moves by at most √m λ₀/(12ω‖X‖_F²), λ_min(ΦΦᵀ) stays above λ₀/2",
    chapter=CHAPTER,
    ref="lem-feature-gram",
)
def feature_gram_is_stable(trial: Trial) -> Iterable[Measurement]:
    """Move U at random, in rank one and adversarially, by the radius exactly."""
    yield from _masked_move(trial.seed, "operator")
    model, X = ReLUImplicit.init(200, 5, gamma=0.1, seed=trial.seed), sphere(8, 5, trial.seed + 100)
    G0 = relu_implicit.feature_gram(model, X)
    lambda0, U, g = 4 / 3 * _least(G0), model.U.detach(), trial.g
    rows, columns = signs(200, 1, g=g), signs(1, 5, g=g)
    moves = {"random": normal(200, 5, g=g), "rank one": rows * columns, "aligned": U.sign() * rows}
    for norm in ("operator", "frobenius"):
        radius = relu_implicit.lemma34_radius(model, X, norm=norm)
        for name, move in moves.items():
            length = operator_norm(move) if norm == "operator" else float(move.norm())
            scaled = move * (radius / length)
            yield from _moved(model, X, G0, scaled, lambda0, f"{name}, {norm} norm")


@feature_gram_is_stable.control("the printed radius, with ‖X‖ and the constant 16: erratum E3")
def printed_radius(trial: Trial) -> Iterable[Measurement]:
    """ReLU is not 1-Lipschitz for the operator norm."""
    found = _masked_move(trial.seed, "printed")
    return [m for m in found if not m.name.startswith("hypothesis")]


# --- gao2022: gradient flow --------------------------------------------------------------------


@lru_cache(maxsize=16)
def near_flow(
    seed: int, twins: bool = False, gamma: float = 0.1, until: float = 6.0, train: str = "WUac"
) -> tuple[Conditions, relu_implicit.Start, Trajectory]:
    """Run the flow from labels at 0.9 of the admissible distance; two orthonormal inputs, m = 40.

    ``twins`` then makes the second input equal to the first, and ``train`` freezes the others; the
    constants remain those of the network that meets the conditions.
    """
    model = ReLUImplicit.init(40, 3, gamma=gamma, seed=seed)
    X = _orthonormal(2, 3, seed + 100)
    y = _labels(
        model, X, seed + 200, lambda y: relu_implicit.flow_conditions(model, X, y), ("width",)
    )
    conditions, s = relu_implicit.flow_conditions(model, X, y), relu_implicit.start(model, X, y)
    if twins:
        X = _twins(X)
        y = _outputs(model, X) - s.error * torch.tensor([1.0, -1.0]).double() / math.sqrt(2)
    W, U, a, c = (p.detach() for p in (model.W, model.U, model.a, model.c))
    model = ReLUImplicit(W, U, a, c, gamma, train=tuple(train))
    return conditions, s, _flow(model, X, y, until, rtol=1e-8, atol=1e-12)


def _invariants(
    s: relu_implicit.Start, run: Trajectory, way: dict[str, float], *, printed: bool
) -> Iterator[Measurement]:
    """Compare the norms along a run with their bounds; printed ones for a and c do not see m."""
    root, unit = math.sqrt(s.m), s.omega * math.sqrt(s.n) * s.error / s.lambda0
    readouts = {"a": 16 * unit, "c": 8 * unit} if printed else {"a": 2 * root, "c": 2 * root}
    least = run.block_min["c"].min() / (s.lambda0 / 2)
    yield at_least("min over t of λ_min(G(t)) ÷ (λ₀/2)", least, 1.0)
    for name, bound in (readouts | dict.fromkeys("UW", 2 * s.omega * root)).items():
        yield at_most(f"max ‖{name}(t)‖ ÷ bound", run.norms[name].max() / bound, 1.0)
    for name, bound in way.items():
        yield at_most(f"‖{name}(t)-{name}(0)‖ ÷ bound", run.displacement[name].max() / bound, 1.0)


@claim(
    "gao2022.lemma3.5",
    title="Under gradient flow the Gram matrix keeps half its eigenvalue and no weight goes far",
    chapter=CHAPTER,
    ref="thm-relu-flow",
)
def flow_invariants(trial: Trial) -> Iterable[Measurement]:
    """Follow the flow where all hypotheses hold; then where the width is too small by far."""
    conditions, s, run = near_flow(trial.seed)
    yield from _asked(conditions)
    yield from _invariants(s, run, s.flow_displacements, printed=False)
    model, X, y = _ordinary(trial.seed)
    wide = relu_implicit.flow_conditions(model, X, y)
    run = _fine(model, X, y, 6.0)
    yield _beyond("m needed ÷ m", wide.constants["m needed"] / model.m, "≥", 1e6)
    least = run.block_min["c"].min() / (wide.rate / 2)
    yield _beyond("min over t of λ_min(G(t)) ÷ (λ₀/2)", least, "≥", 1.0)
    for name in ("W", "U", "a", "c"):
        share = run.displacement[name].max() / wide.constants[f"way of {name}"]
        yield _beyond(f"‖{name}(t)-{name}(0)‖ ÷ bound", share, "≤", 1.0)


@flow_invariants.control("the printed bounds on ‖a(t)‖ and ‖c(t)‖, which do not see m: erratum E4")
def printed_norms(trial: Trial) -> Iterable[Measurement]:
    """They fail at t = 0 already, where the norms are √m."""
    _, s, run = near_flow(trial.seed)
    found = _invariants(s, run, {}, printed=True)
    return [m for m in found if m.name.startswith(("max ‖a", "max ‖c"))]


@flow_invariants.control("two equal inputs: λ_min(G(0)) ≥ ¾λ₀ fails, λ₀ kept")
def equal_inputs_gram(trial: Trial) -> Iterable[Measurement]:
    """The Gram matrix is singular."""
    _, s, run = near_flow(trial.seed, twins=True)
    return [m for m in _invariants(s, run, {}, printed=False) if m.name.startswith("min")]


@flow_invariants.control("only W is trained, at γ = 0.01: the read-outs do not drive the decay")
def slow_layer(trial: Trial) -> Iterable[Measurement]:
    """W must go further than the bound, for the error decays slowly."""
    _, s, run = near_flow(trial.seed, gamma=0.01, until=5e4, train="W")
    share = run.displacement["W"].max() / s.flow_displacements["W"]
    return [at_most("‖W(t)-W(0)‖ ÷ bound", share, 1.0)]


@claim(
    "gao2022.theorem3.1",
    title="Gradient flow on all weights of a ReLU implicit network: ‖e(t)‖² ≤ e^{-λ₀t}‖e(0)‖²",
    chapter=CHAPTER,
    ref="thm-relu-flow",
)
def flow_rate(trial: Trial) -> Iterable[Measurement]:
    """Follow the flow where all hypotheses hold; then where the width is too small by far."""
    conditions, s, run = near_flow(trial.seed)
    yield from _asked(conditions)
    yield at_most(RATE, _over_rate(run, s.lambda0), 1.0)
    model, X, y = _ordinary(trial.seed)
    wide = relu_implicit.flow_conditions(model, X, y)
    run = _fine(model, X, y, 6.0)
    yield _beyond("m needed ÷ m", wide.constants["m needed"] / model.m, "≥", 1e6)
    yield _beyond(RATE, _over_rate(run, wide.rate), "≤", 1.0)


@flow_rate.control("two equal inputs with different labels, λ₀ kept")
def equal_inputs_flow(trial: Trial) -> Iterable[Measurement]:
    """The difference of the labels cannot be learned."""
    _, s, run = near_flow(trial.seed, twins=True)
    return [at_most(RATE, _over_rate(run, s.lambda0), 1.0)]


@flow_rate.control("only W is trained: λ_min(ΦΦᵀ) no longer bounds the tangent kernel")
def frozen_readouts(trial: Trial) -> Iterable[Measurement]:
    """The implicit layer alone is slower than λ₀/2."""
    _, s, run = near_flow(trial.seed, train="W")
    return [at_most(RATE, _over_rate(run, s.lambda0), 1.0)]


# --- gao2022: gradient descent -----------------------------------------------------------------


def _near_network(seed: int) -> tuple[ReLUImplicit, Tensor, Tensor, Conditions]:
    """Return a network of width 20 and labels at 0.9 of the distance that descent admits."""
    model, X = ReLUImplicit.init(20, 3, gamma=0.1, seed=seed), _orthonormal(2, 3, seed + 100)
    names = ("width", "margin")
    y = _labels(
        model, X, seed + 200, lambda y: relu_implicit.descent_conditions(model, X, y), names
    )
    return model, X, y, relu_implicit.descent_conditions(model, X, y)


@lru_cache(maxsize=16)
def _near_descent(
    seed: int, epochs: int = 100, times_edge: float = 0.0, twins: bool = False
) -> tuple[Conditions, relu_implicit.Start, Trajectory]:
    """Run descent with the largest step admitted, or with ``times_edge`` ÷ λ_max(H(0))."""
    model, X, y, conditions = _near_network(seed)
    s = relu_implicit.start(model, X, y)
    step = times_edge / _edge(model, X) if times_edge else conditions.step
    if twins:
        X = _twins(X)
        y = _outputs(model, X) - s.error * torch.tensor([1.0, -1.0]).double() / math.sqrt(2)
    return conditions, s, _descent(model, X, y, step, epochs)


def _gradient(model: Dense, X: Tensor, y: Tensor, near: Gradient | None) -> Gradient:
    """Return the gradient, solved to rounding from the states nearby."""
    z0, v0 = (None, None) if near is None else (near.z, near.v)
    plain = Picard()
    return gradient(model, X, y, z0=z0, v0=v0, solver=plain, adjoint_solver=plain, tol=EXACT)


def _blocks(model: Dense, X: Tensor, found: Gradient) -> dict[str, Tensor]:
    rows = Tangents(X, model.inject(X).detach(), found.z, found.v)
    return parts(model, rows, rows)


def _kernel(model: Dense, X: Tensor, found: Gradient) -> Tensor:
    return torch.stack(list(_blocks(model, X, found).values())).sum(dim=0)


@torch.no_grad()
def _move(model: Dense, found: Gradient, step: float) -> None:
    for name, g in found.grads.items():
        getattr(model, name).sub_(g, alpha=step)


def _remainders(model: Dense, X: Tensor, y: Tensor, step: float, steps: int) -> Tensor:
    """Return ‖ŷ⁺-ŷ+ηHe‖, ‖e‖ and ‖I-ηH‖, a row each, at the first steps of descent."""
    model, rows = copy.deepcopy(model), []
    found = _gradient(model, X, y, None)
    for _ in range(steps):
        factor = torch.eye(len(X), dtype=torch.float64) - step * _kernel(model, X, found)
        _move(model, found, step)
        before, found = found.error, _gradient(model, X, y, found)
        rest = (found.error - factor @ before).norm()
        rows.append(torch.stack([rest, before.norm(), torch.linalg.matrix_norm(factor, 2)]))
    return torch.stack(rows, dim=1)


def _certificate(seed: int, times_edge: float) -> Measurement:
    """Certify every step from labels ±1, flips included: kernel and remainder leave room."""
    model, X, y = _ordinary(seed)
    step = times_edge / _edge(model, X)
    rest, error, factor = _remainders(model, X, y, step, 20)
    allowed = 1 - 3 / 8 * step * relu_implicit.start(model, X, y).lambda0
    worst = float((factor + rest / error).max()) / allowed
    name = "labels ±1, each step: (‖I-ηH‖ + ‖Δŷ+ηHe‖/‖e‖) ÷ (1-⅜ηλ₀)"
    return Measurement(name, worst, "≤", 1.0, theorem=False)


def _inner_term(seed: int, sign: float) -> Measurement:
    """Compare what W and U contribute to ⟨e, Δŷ⟩ with its first-order value -ηeᵀ(H_W+H_U)e."""
    model, X, y = _ordinary(seed, m=100)
    step, moved = 1e-4, copy.deepcopy(model)
    found = _gradient(model, X, y, None)
    H, e = _blocks(model, X, found), found.error
    _move(moved, found, step)
    with torch.no_grad():
        # the new read-outs on the old states: what remains of Δŷ is the work of W and U
        kept = found.z @ moved.a + model.inject(X) @ moved.c
        rest = (_outputs(moved, X) - kept) @ e / (step * e.pow(2).sum())
        target = e @ (H["W"] + H["U"]) @ e / e.pow(2).sum()
    off = abs(float(rest) + sign * float(target)) / float(target)
    return within("⟨e, change due to W and U⟩ ÷ η‖e‖² vs -eᵀ(H_W+H_U)e ÷ ‖e‖²", off, 0.02)


@claim(
    "gao2022.lemma3.6",
    title="Under gradient descent with a small step no weight goes far and no unit changes side",
    chapter=CHAPTER,
    ref="thm-relu-descent",
)
def descent_invariants(trial: Trial) -> Iterable[Measurement]:
    """Follow descent where all hypotheses hold, the margin to the kinks included."""
    conditions, s, run = _near_descent(trial.seed)
    yield from _asked(conditions)
    yield from _invariants(s, run, s.descent_displacements, printed=False)
    yield equal("units that changed side", _largest(run.flips), 0, 0)
    yield at_most("max λ_max(H) ÷ (20ω²+52)n", _largest(run.gram_max) / s.smoothness, 1.0)
    model, X, y, _ = _near_network(trial.seed)
    step = conditions.step
    rest, error, _ = _remainders(model, X, y, step, 10)
    yield at_most(
        "‖Δŷ+ηHe‖ ÷ kη²‖e‖²", float((rest / (s.remainder * (step * error) ** 2)).max()), 1.0
    )
    yield at_most(
        "‖Δŷ+ηHe‖ ÷ (ηλ₀/8)‖e‖", float((rest / (step * s.lambda0 / 8 * error)).max()), 1.0
    )
    yield _inner_term(trial.seed, 1.0)


@descent_invariants.control("the step is 3 ÷ λ_max(H(0)), beyond the edge 2 ÷ λ_max")
def too_large_a_step(trial: Trial) -> Iterable[Measurement]:
    """The error grows and takes the weights along."""
    _, s, run = _near_descent(trial.seed, epochs=40, times_edge=3.0)
    found = _invariants(s, run, s.descent_displacements, printed=False)
    return [m for m in found if "(0)‖" in m.name]


@descent_invariants.control("the printed (43): the contribution of W and U counted as a loss, E6")
def wrong_sign(trial: Trial) -> Iterable[Measurement]:
    """It is a gain of that very size."""
    return [_inner_term(trial.seed, -1.0)]


@claim(
    "gao2022.theorem3.2",
    title="Gradient descent on a ReLU implicit network: ‖e(k)‖² ≤ (1-ηλ₀/2)^k‖e(0)‖²",
    chapter=CHAPTER,
    ref="thm-relu-descent",
)
def descent_rate(trial: Trial) -> Iterable[Measurement]:
    """Follow descent where all hypotheses hold; then at a step near the edge, labels ±1."""
    conditions, s, run = _near_descent(trial.seed)
    yield from _asked(conditions)
    yield at_most(STEPS, _over_steps(run, s.lambda0 / 2), 1.0)
    model, X, y = _ordinary(trial.seed)
    wide = relu_implicit.descent_conditions(model, X, y)
    run = _descent(model, X, y, 1.0 / _edge(model, X), 60, tol=1e-8)
    yield _beyond("need ÷ have, worst hypothesis", wide.worst.ratio, "≥", 1e3)
    yield _beyond("η ÷ the step admitted", run.step / wide.step, "≥", 10)
    yield _beyond(STEPS, _over_steps(run, wide.rate), "≤", 1.0)
    yield _certificate(trial.seed, 1.0)


@descent_rate.control("the step is 3 ÷ λ_max(H(0)), beyond the edge 2 ÷ λ_max")
def beyond_the_edge(trial: Trial) -> Iterable[Measurement]:
    """The top eigendirection doubles at every step."""
    _, s, run = _near_descent(trial.seed, epochs=40, times_edge=3.0)
    return [at_most(STEPS, _over_steps(run, s.lambda0 / 2), 1.0), _certificate(trial.seed, 3.0)]


@descent_rate.control("two equal inputs with different labels, λ₀ kept")
def equal_inputs_descent(trial: Trial) -> Iterable[Measurement]:
    """The difference of the labels cannot be learned."""
    _, s, run = _near_descent(trial.seed, twins=True)
    return [at_most(STEPS, _over_steps(run, s.lambda0 / 2), 1.0)]


# --- gao2023: only the implicit layer ----------------------------------------------------------


def _implicit_gram(model: ReLUImplicit, X: Tensor, *, deep: bool = True) -> Tensor:
    """Return γ̃²(VVᵀ)∘(ZZᵀ); not ``deep`` takes Da, the adjoint of one layer, for V."""
    t = tangents(model, X, tol=EXACT)
    v = t.v if deep else (t.z > 0) * model.a.detach()
    return model.scale**2 * (v @ v.mT) * (t.z @ t.z.mT)


def _implicit_dynamics(seed: int, *, deep: bool = True) -> Iterator[Measurement]:
    model = ReLUImplicit.init_implicit_only(16, 6, gamma=0.4, seed=seed)
    X, y = sphere(4, 6, seed + 100), signs(4, g=generator(seed + 200))
    H = _implicit_gram(model, X, deep=deep)
    exact = jacobian_ntk(model, X, tol=1e-13)
    yield within("H vs Jacobian of autograd", float((H - exact).norm() / exact.norm()), SAME)
    found, h = _gradient(model, X, y, None), 1e-6
    moved = copy.deepcopy(model)
    _move(moved, found, h)
    slope, flow = (_outputs(moved, X) - found.error - y) / h, -H @ found.error
    yield within("dŷ/dt along -∇L vs -He", float((slope - flow).norm() / flow.norm()), 1e-4)


@claim(
    "gao2023.dynamics",
    title="Only W trained: dŷ/dt = -He with H = γ̃²(VVᵀ)∘(ZZᵀ), and λ_min(H) bounds the rate",
    chapter=CHAPTER,
    ref="prop-implicit-dynamics",
)
def implicit_dynamics(trial: Trial) -> Iterable[Measurement]:
    """Compare the kernel with autograd and with a tiny step; then the loss along a flow."""
    yield from _implicit_dynamics(trial.seed)
    _, model, run = _near_implicit(trial.seed)
    yield at_least(
        "λ_min(H(0))", _least(_implicit_gram(model, sphere(2, 8, trial.seed + 100))), 0.0
    )
    slowest = _smallest(run.gram_min)
    yield at_most("L(t) ÷ e^{-2λt}L(0), λ = min λ_min(H)", _over_rate(run, 2 * slowest), 1.0)


@implicit_dynamics.control("the adjoint state of one layer, Da, instead of D(I-γ̃WᵀD)⁻¹a")
def one_layer(trial: Trial) -> Iterable[Measurement]:
    """Without the inverse the kernel is that of one layer."""
    return list(_implicit_dynamics(trial.seed, deep=False))


@lru_cache(maxsize=16)
def _near_implicit(seed: int, twins: bool = False) -> tuple[Conditions, ReLUImplicit, Trajectory]:
    """Run the flow on W alone from labels at 0.9 of the admissible distance."""
    model = ReLUImplicit.init_implicit_only(40, 8, gamma=0.3, seed=seed)
    X, names = sphere(2, 8, seed + 100), ("ball", "spectrum", "margin")
    ask: Ask = lambda y: relu_implicit.implicit_only_conditions(model, X, y)  # noqa: E731
    y = _labels(model, X, seed + 200, ask, names)
    conditions = ask(y)
    if twins:
        twice = _twins(X)
        size = conditions.constants["error"] / math.sqrt(2)
        y = _outputs(model, twice) - size * torch.tensor([1.0, -1.0]).double()
        X = twice
    until = 3 / conditions.rate
    # The errors are of size 1e-5, and the rate is nearly attained: the flow has to be exact.
    return conditions, model, _flow(model, X, y, until, rtol=1e-11, atol=1e-13)


def _implicit_conclusions(conditions: Conditions, run: Trajectory) -> Iterator[Measurement]:
    known = conditions.constants
    least = _smallest(run.gram_min) / (conditions.rate / 2)
    yield at_least("min over t of λ_min(H(t)) ÷ (λ₀/2)", least, 1.0)
    yield at_most("‖W(t)-W(0)‖_F ÷ r", run.displacement["W"].max() / known["way of W"], 1.0)
    yield at_most("max γ̃‖W(t)‖ ÷ ρ", run.norms["cell"].max() / known["rho"], 1.0)
    yield at_most(RATE, _over_rate(run, conditions.rate), 1.0)
    yield equal("units that changed side", _largest(run.flips), 0, 0)


@claim(
    "gao2023.theorem3.1",
    title="Gradient flow on the implicit layer alone: ‖e(t)‖² ≤ e^{-λ₀t}‖e(0)‖², no unit flipping",
    chapter=CHAPTER,
    ref="thm-implicit-only",
)
def implicit_only_rate(trial: Trial) -> Iterable[Measurement]:
    """Follow the flow where all hypotheses hold; the initial error; then labels ±1."""
    conditions, model, run = _near_implicit(trial.seed)
    yield from _asked(conditions)
    yield from _implicit_conclusions(conditions, run)
    X = sphere(2, 8, trial.seed + 100)
    z = model.solve(X, tol=EXACT).z
    draws = z @ signs(model.m, 2000, g=trial.g)
    mean, rho0 = float(draws.pow(2).sum(0).mean()), conditions.constants["rho0"]
    bound = float(model.inject(X).detach().pow(2).sum()) / (1 - rho0) ** 2
    yield at_most("mean ‖ŷ(0)‖² over 2000 read-outs ÷ ‖Φ‖_F²/(1-ρ₀)²", mean / bound, 1.0)
    model = ReLUImplicit.init_implicit_only(50, 10, gamma=0.4, seed=trial.seed)
    X, y = sphere(4, 10, trial.seed + 100), signs(4, g=generator(trial.seed + 200))
    wide = relu_implicit.implicit_only_conditions(model, X, y)
    run = _fine(model, X, y, 3 / wide.rate)
    yield _beyond("need ÷ have, worst hypothesis", wide.worst.ratio, "≥", 10)
    yield _beyond("units that changed side", _largest(run.flips), "≥", 1)
    yield _beyond(RATE, _over_rate(run, wide.rate), "≤", 1.0)


@implicit_only_rate.control("two equal inputs with different labels, λ₀ kept")
def equal_inputs_implicit(trial: Trial) -> Iterable[Measurement]:
    """The kernel is singular and the difference of the labels stays."""
    conditions, _, run = _near_implicit(trial.seed, twins=True)
    names = ("min over t", RATE)
    return [m for m in _implicit_conclusions(conditions, run) if m.name.startswith(names)]


# --- ling2023: the vanilla DEQ -----------------------------------------------------------------


def _gradient_size(model: VanillaDEQ, X: Tensor, y: Tensor, names: str) -> float:
    """Return ‖∇L‖² over the named weights, by automatic differentiation."""
    weights = [getattr(model, name) for name in names]
    loss = 0.5 * (model(X, tol=1e-13) - y).pow(2).sum()
    return float(sum(g.pow(2).sum() for g in torch.autograd.grad(loss, weights)))


def _along(K: Tensor, model: VanillaDEQ, X: Tensor) -> Tensor:
    """Return labels for which the error is the eigenvector of the least eigenvalue of K."""
    return _outputs(model, X) - torch.linalg.eigh(K)[1][:, 0]


def _pl_kernel(seed: int, names: str = "WUa") -> Iterator[Measurement]:
    model, X = VanillaDEQ.init(30, 8, seed=seed), sphere(5, 8, seed + 100, radius=math.sqrt(8))
    H, y = empirical_ntk(model, X, tol=1e-13), normal(5, g=generator(seed + 200))
    e = _outputs(model, X) - y
    square = _gradient_size(model, X, y, names)
    yield within("‖∇L‖² vs eᵀHe", abs(square / float(e @ H @ e) - 1), SAME)
    tight = _gradient_size(model, X, _along(H, model, X), names) / _least(H)
    yield equal("e the least eigenvector: ‖∇L‖² ÷ 2λ_min(H)L", tight, 1.0, SAME)


@claim(
    "ling2023.equation4",
    title="Vanilla DEQ: ‖∇L‖² = eᵀHe ≥ 2λ_min(H)L, with equality for an eigenvector",
    chapter=CHAPTER,
    ref="prop-pl",
)
def pl_through_kernel(trial: Trial) -> Iterable[Measurement]:
    """Compare autograd's gradient with the kernel."""
    yield from _pl_kernel(trial.seed)
    model, X = (
        VanillaDEQ.init(30, 8, seed=trial.seed),
        sphere(5, 8, trial.seed + 100, radius=8**0.5),
    )
    H = empirical_ntk(model, X)
    for k in range(3):
        y = normal(5, g=generator(trial.seed + 300 + k))
        half = 0.5 * float((_outputs(model, X) - y).pow(2).sum())
        ratio = _gradient_size(model, X, y, "WUa") / (2 * _least(H) * half)
        yield at_least(f"labels {k}: ‖∇L‖² ÷ 2λ_min(H)L", ratio, 1.0)


@pl_through_kernel.control("the read-out is not trained, but counted in H")
def readout_frozen_kernel(trial: Trial) -> Iterable[Measurement]:
    """A block of H is missing from the gradient."""
    return list(_pl_kernel(trial.seed, "WU"))


def _pl_gram(seed: int, names: str = "WUa") -> Iterator[Measurement]:
    """Check (5) at three times of a training run, in the worst direction of the Gram matrix."""
    base = VanillaDEQ.init(30, 8, seed=seed)
    model = VanillaDEQ(base.W.detach(), base.U.detach(), 0.1 * base.a.detach())
    X, y = sphere(5, 8, seed + 100, radius=math.sqrt(8)), signs(5, g=generator(seed + 200))
    step = 1 / _edge(model, X)
    for k in (0, 2, 4):
        if k:
            _descent(model, X, y, step, 2).restore(model)
        z = model.solve(X, tol=1e-13).z
        G = z @ z.mT
        square = _gradient_size(model, X, _along(G, model, X), names)
        yield at_least(f"step {k}: ‖∇L‖² ÷ 2λ_min(G)L", square / _least(G), 1.0)


@claim(
    "ling2023.equation5",
    title="Vanilla DEQ: ‖∇L‖² ≥ 2λ_min(ZZᵀ)L, for H ⪰ ZZᵀ",
    chapter=CHAPTER,
    ref="prop-pl",
)
def pl_through_gram(trial: Trial) -> Iterable[Measurement]:
    """Look at the worst direction of the Gram matrix, at the start and in training."""
    yield from _pl_gram(trial.seed)
    model, X = (
        VanillaDEQ.init(30, 8, seed=trial.seed),
        sphere(5, 8, trial.seed + 100, radius=8**0.5),
    )
    z = model.solve(X).z
    yield at_least("λ_min(H) ÷ λ_min(G)", _least(empirical_ntk(model, X)) / _least(z @ z.mT), 1.0)


@pl_through_gram.control("the read-out is not trained")
def readout_frozen_gram(trial: Trial) -> Iterable[Measurement]:
    """The Gram matrix is the read-out's own block; with a small read-out the others are small."""
    return list(_pl_gram(trial.seed, "WU"))


DELTA = 0.05


def _small_readout(seed: int, readout: float = 0.0) -> tuple[VanillaDEQ, Tensor, Tensor]:
    """Return a network that meets Condition 1: a(0) = 0, small W, two orthogonal inputs.

    ``readout`` = 1 is the read-out of Assumption 1.
    """
    base = VanillaDEQ.init(100, 2, variance=1e-3, seed=seed)
    model = VanillaDEQ(base.W.detach(), base.U.detach(), readout * base.a.detach())
    y = torch.tensor([0.008, -0.008], dtype=torch.float64)
    return model, math.sqrt(2) * _orthonormal(2, 2, seed + 100), y


def _condition(seed: int, readout: float) -> Iterator[Measurement]:
    model, X, y = _small_readout(seed, readout)
    conditions = vanilla.condition_one(model, X, y, DELTA)
    for name in ("(7)", "(8)", "(9')"):
        yield at_most(f"{name}: need ÷ have", conditions[name].ratio, 1.0)
    printed = vanilla.condition_one(model, X, y, DELTA, printed=True)["(9)"]
    yield at_most("(9): need ÷ have", printed.ratio, 1.0)
    implied = vanilla.condition_nine_obstruction(model, X, DELTA).ratio
    yield at_most("4n(‖a(0)‖+δ)² ÷ (1-ρ̄_w)², implied by (9)", implied, 1.0)


@claim(
    "ling2023.condition1",
    title="Condition 1 can be met by a small read-out, and (9) forces 4n(‖a(0)‖+δ)² ≤ (1-ρ̄_w)²",
    chapter=CHAPTER,
    ref="prop-condition-nine",
)
def initial_condition(trial: Trial) -> Iterable[Measurement]:
    """Meet Condition 1 with a(0) = 0; then compare (9) with what it implies at three widths."""
    yield from _condition(trial.seed, 0.0)
    X = sphere(3, 6, trial.seed + 100, radius=math.sqrt(6))
    y = signs(3, g=generator(trial.seed + 200))
    for m in (25, 50, 100):
        model = VanillaDEQ.init(m, 6, variance=0.02, seed=trial.seed)
        printed = vanilla.condition_one(model, X, y, DELTA, printed=True)["(9)"]
        implied = vanilla.condition_nine_obstruction(model, X, DELTA).ratio
        yield at_least(f"m = {m}: ratio of (9) ÷ ratio implied", printed.ratio / implied, 1.0)


@initial_condition.control("the read-out of Assumption 1, a(0) ~ N(0, I/m): erratum L1")
def random_readout(trial: Trial) -> Iterable[Measurement]:
    """No width helps: ‖a(0)‖ ≈ 1."""
    return list(_condition(trial.seed, 1.0))


@lru_cache(maxsize=16)
def _near_vanilla(
    seed: int, times_edge: float = 0.0, twins: bool = False
) -> tuple[Conditions, vanilla.Start, Trajectory]:
    """Run descent on the network that meets Condition 1."""
    model, X, y = _small_readout(seed)
    conditions, s = vanilla.condition_one(model, X, y, DELTA), vanilla.start(model, X, y, DELTA)
    step = times_edge / _edge(model, X) if times_edge else 0.99 * conditions.step
    return conditions, s, _descent(model, _twins(X) if twins else X, y, step, 100)


def _vanilla_conclusions(s: vanilla.Start, run: Trajectory) -> Iterator[Measurement]:
    yield at_most("max ‖W(k)‖", run.norms["W"].max(), 1.0)
    least = float(run.block_min["a"].min()) / (s.lambda0 / 2)
    yield at_least("min over k of λ_min(G(k)) ÷ (λ₀/2)", least, 1.0)
    yield at_most(STEPS, _over_steps(run, s.lambda0 / 2), 1.0)
    for name, bound in s.gradients.items():
        way = 4 / s.lambda0 * bound * s.x * s.error
        share = run.displacement[name].max() / way
        yield at_most(f"‖{name}(k)-{name}(0)‖_F ÷ (4/λ₀)c‖X‖_F‖e(0)‖", share, 1.0)


def _proof_factor(s: vanilla.Start) -> Measurement:
    """Compare the factor that one step of the proof gives with the rate claimed."""
    gain = (1 - s.factor(s.step)) / (s.step * s.lambda0 / 2)
    return at_least("what a step of the proof gains ÷ (ηλ₀/2), at the largest step", gain, 1.0)


@claim(
    "ling2023.theorem1",
    title="Gradient descent on the vanilla DEQ under Condition 1: L(k) ≤ (1-ηλ₀/2)^k L(0)",
    chapter=CHAPTER,
    ref="thm-vanilla-descent",
)
def vanilla_rate(trial: Trial) -> Iterable[Measurement]:
    """Follow descent where Condition 1 holds with (9'); then the network of Assumption 1."""
    conditions, s, run = _near_vanilla(trial.seed)
    yield from _asked(conditions)
    yield from _vanilla_conclusions(s, run)
    yield _proof_factor(s)
    model, X = (
        VanillaDEQ.init(50, 10, seed=trial.seed),
        sphere(6, 10, trial.seed + 100, radius=10**0.5),
    )
    y = normal(6, g=generator(trial.seed + 200))
    wide = vanilla.condition_one(model, X, y, 0.05)
    run = _descent(model, X, y, 1 / _edge(model, X), 60, tol=1e-8)
    yield _beyond("need ÷ have, worst hypothesis", wide.worst.ratio, "≥", 1e3)
    yield _beyond("η ÷ the step admitted", run.step / wide.step, "≥", 100)
    yield _beyond("max ‖W(k)‖", run.norms["W"].max(), "≤", 1.0)
    least = float(run.block_min["a"].min()) / wide.rate
    yield _beyond("min over k of λ_min(G(k)) ÷ (λ₀/2)", least, "≥", 1.0)
    yield _beyond(STEPS, _over_steps(run, wide.rate), "≤", 1.0)


@vanilla_rate.control("the step is 3 ÷ λ_max(H(0)), beyond the edge 2 ÷ λ_max")
def vanilla_beyond_the_edge(trial: Trial) -> Iterable[Measurement]:
    """The error grows at first."""
    _, s, run = _near_vanilla(trial.seed, times_edge=3.0)
    return [m for m in _vanilla_conclusions(s, run) if m.name == STEPS]


@vanilla_rate.control("two equal inputs with different labels, λ₀ kept")
def equal_inputs_vanilla(trial: Trial) -> Iterable[Measurement]:
    """The Gram matrix is singular and the difference of the labels stays."""
    _, s, run = _near_vanilla(trial.seed, twins=True)
    names = (STEPS, "min over k")
    return [m for m in _vanilla_conclusions(s, run) if m.name.startswith(names)]


@vanilla_rate.control("the printed (9), with 4 for 8: erratum L13")
def printed_nine(trial: Trial) -> Iterable[Measurement]:
    """Widen the balls until (9) holds with room 0.9 and (9') fails: the proof gains too little."""
    model, X, y = _small_readout(trial.seed)
    low, high = 0.01, 0.5
    for _ in range(60):
        middle = 0.5 * (low + high)
        ratio = vanilla.condition_one(model, X, y, middle, printed=True)["(9)"].ratio
        low, high = (middle, high) if ratio < 0.9 else (low, middle)
    return [_proof_factor(vanilla.start(model, X, y, low))]
