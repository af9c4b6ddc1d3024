"""Chapter 6, the bound on pictures: Theorem 4.1, its remarks, Section 5.2 and Figure 1 of gao2023.

The theorem is about a kernel and a first guess that are fixed before the sample is drawn. Every
control takes one of these words away. A seed draws other weights and other pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deqbook.claims.picture_bounds import (
    DELTA,
    DiagonalNetwork,
    Start,
    WidthRun,
    best_stop,
    cut,
    limit_start,
    mean_squared_radius,
    network_start,
    noisy,
    noisy_labels,
    only_W,
    tested_values,
    wrong,
)
from deqbook.claims.real_data import SETS, Case, edge
from deqbook.claims.registry import (
    Measurement,
    Trial,
    at_most,
    claim,
    equal,
    given,
    within,
)
from deqbook.kernels import empirical_ntk
from deqbook.kernels.limits import diagonal_gap, diagonal_limit
from deqbook.runtime import generator, normal, sphere

CHAPTER = "06b_bound_on_data"
NOISE = (0.0, 0.5, 1.0)
EASY = ("mnist01", "fashion01")  # the sets on which a bound can be brought below 1


def _seen(name: str, value: float, relation: str, bound: float) -> Measurement:
    """Measure what a figure must show; its number is ours, so it is no slack of a theorem."""
    return Measurement(name, float(value), relation, float(bound), theorem=False)


# --- Theorem 4.1: the bound ---------------------------------------------------------------------


@lru_cache(maxsize=8)
def _network(name: str, seed: int) -> Start:
    return network_start(name, 100, m=80, seed=seed, tests=100)


@lru_cache(maxsize=8)
def _limit(name: str, seed: int) -> Start:
    """Return the limit with 400 test pictures; of the photographs only the kernel is used."""
    return limit_start(name, 400, seed=seed, tests=400 if name in EASY else 2)


def _on_pictures(seed: int) -> Iterator[Measurement]:
    """Compare bound and error for a network that keeps its first guess: four sets, three noises."""
    for name, title in SETS.items():
        start = _network(name, seed)
        values = torch.linalg.eigvalsh(start.H)
        yield given(f"{title}: λ_min(H(0)) ÷ λ_max", float(values[0] / values[-1]), "≥", 1e-9)
        for p in NOISE:
            drawn = start.labelled(noisy_labels(start.y, p, generator(2000 + seed)))
            f, B = drawn.interpolate()
            error = float(noisy(cut, f, start.y_test, p).mean())
            yield at_most(f"{title}, noise {p:.0%}: test error", error, drawn.bound(B).total)


def _informative(start: Start, *, kept: Tensor | None = None) -> Iterator[Measurement]:
    """Compare where the bound is below 1: MNIST, infinite width; ``kept`` selects samples."""
    if kept is not None:
        start = replace(
            start,
            H=start.H[kept][:, kept],
            k=start.k[:, kept],
            y=start.y[kept],
            guess=start.guess[kept],
        )
    f, B = start.interpolate()
    bound = start.sharper(B).total
    yield at_most("MNIST, infinite width: test error", float(cut(f, start.y_test).mean()), bound)
    share = float(wrong(f, start.y_test).mean())
    yield at_most("MNIST, infinite width: share of wrong signs", share, bound)


def _stopped(seed: int) -> Iterator[Measurement]:
    """Stop where the bound is least, on the sets where it then says something."""
    for name in EASY:
        start = _limit(name, seed)
        stop = best_stop(start, start.frozen())
        yield given(f"{SETS[name]}, stopped: bound", stop.bound, "≤", 1)
        yield at_most(f"{SETS[name]}, stopped: test ramp loss", stop.ramp, stop.bound)


def _coins(seed: int, *, learnt: bool = False) -> Iterator[Measurement]:
    """Put coins on the sample; ``learnt`` adds to the kernel a feature made from these labels."""
    start = _limit("mnist01", seed)
    start = start.labelled(noisy_labels(start.y, 1.0, generator(3000 + seed)))
    f, B = start.interpolate()
    if learnt:  # k + c·g(x)g(x'), g the predictor just found: it fits y with norm 1/√c
        c = 100 * float(start.H.diagonal().max())
        H, k = start.H + c * torch.outer(start.y, start.y), start.k + c * torch.outer(f, start.y)
        start = replace(start, H=H, k=k)
        f, B = start.interpolate()
    error = float(noisy(cut, f, start.y_test, 1.0).mean())
    yield at_most("coins for labels: test error", error, start.bound(B).total)


@lru_cache(maxsize=2)
def _zero_labels(seed: int, n: int = 400) -> Start:
    """Return a network on as many points of the sphere as dimensions, with labels 0."""
    points, tests = sphere(n, n, 6000 + seed), sphere(300, n, 7000 + seed)
    network = DiagonalNetwork.init(2 * n, n, gamma=0.4, seed=seed)
    return network.start(points, 0 * points[:, 0], tests, 0 * tests[:, 0])


def _first_guess(seed: int, *, counted: bool = True) -> Iterator[Measurement]:
    """Learn the zero function: only the first guess makes an error, and only it makes B."""
    start = _zero_labels(seed)
    f, B = start.interpolate()
    bound = start.bound(B if counted else 0.0).total
    error = float(cut(f, start.y_test).mean())
    yield at_most("labels 0, first guess kept: test error", error, bound)


def _trend(
    seed: int, n: tuple[int, int] = (50, 400), *, coins: bool, sets: tuple[str, ...] = tuple(SETS)
) -> Iterator[tuple[str, float]]:
    """Return, by set, how 2B√(tr H)/n changes from few samples to many."""
    for name in sets:
        start = _limit(name, seed)
        few, many = (_term(start.first(k), 1.0 if coins else 0.0) for k in n)
        yield SETS[name], many / few


def _term(start: Start, p: float) -> float:
    """Return 2B√(tr H)/n with B² averaged over the coins of noise p."""
    square = mean_squared_radius(start.H, start.y, p)
    return 2 * math.sqrt(square * float(start.H.trace())) / len(start.y)


def _with_more_samples(seed: int, *, swapped: bool = False) -> Iterator[Measurement]:
    """Follow the complexity from 50 to 400 samples; ``swapped`` exchanges the kinds of labels."""
    for title, ratio in _trend(seed, coins=not swapped, sets=EASY if swapped else tuple(SETS)):
        yield _seen(f"{title}, coins: complexity at n = 400 ÷ n = 50", ratio, "≥", 1)
    for title, ratio in _trend(seed, coins=swapped, sets=EASY):
        yield _seen(f"{title}, true labels: complexity at n = 400 ÷ n = 50", ratio, "≤", 1)


@claim(
    "gao2023.theorem4.1",
    title="Test error of the frozen-kernel predictor, bounded by how far the labels are from it",
    chapter=CHAPTER,
    ref="thm-6b-bound",
)
def bound_on_data(trial: Trial) -> Iterator[Measurement]:
    """See the bound above the error on four sets, and which way it goes with n."""
    yield from _on_pictures(trial.seed)
    yield from _informative(_limit("mnist01", trial.seed))
    yield from _stopped(trial.seed)
    yield from _coins(trial.seed)
    yield from _first_guess(trial.seed)
    yield from _with_more_samples(trial.seed)


@bound_on_data.control("the first guess is left out of B, as after Section 5.2 of the source")
def without_first_guess(trial: Trial) -> Iterator[Measurement]:
    """Compute B from the labels alone while the predictor starts from its first guess."""
    yield from _first_guess(trial.seed, counted=False)


@bound_on_data.control("the kernel is chosen after the labels have been seen")
def kernel_after_labels(trial: Trial) -> Iterator[Measurement]:
    """Add one feature that was made from the labels: B becomes tiny, the error stays."""
    yield from _coins(trial.seed, learnt=True)


@bound_on_data.control("the sample is not drawn from the distribution of the test: one class only")
def one_class(trial: Trial) -> Iterator[Measurement]:
    """Keep the samples with label +1: nothing is easier to fit."""
    start = _limit("mnist01", trial.seed)
    yield from _informative(start, kept=torch.nonzero(start.y > 0)[:, 0])


@bound_on_data.control("true labels and coins are exchanged")
def exchanged(trial: Trial) -> Iterator[Measurement]:
    """Call the coins true and the true labels coins."""
    yield from _with_more_samples(trial.seed, swapped=True)


# --- the spectral remarks after Theorem 4.1 -----------------------------------------------------


def _spectrum(seed: int) -> tuple[Start, Tensor, Tensor, Tensor]:
    """Return a network on MNIST, eigenvalues, eigenvectors and what is left to learn."""
    start = _network("mnist01", seed)
    values, vectors = torch.linalg.eigh(start.H)
    return start, values, vectors, start.y - start.guess


def _mean_radius(seed: int, power: float = 0.5) -> Iterator[Measurement]:
    """Compare √(B²/n) from a linear solve with the sum over eigen-directions."""
    start, values, vectors, r = _spectrum(seed)
    n, along = len(r), vectors.mT @ r
    direct = float(r @ torch.linalg.solve(start.H, r) / n) ** 0.5
    by_modes = float((along / values**power).square().sum() / n) ** 0.5
    yield within("√(B²/n) by modes ÷ by a linear solve - 1", abs(by_modes / direct - 1), 1e-8)


def _chain(seed: int) -> Iterator[Measurement]:
    """Follow the two steps of the source, with the right powers."""
    _, values, vectors, r = _spectrum(seed)
    n, along = len(r), (vectors.mT @ r).abs()
    root = float((along.square() / values).sum() / n) ** 0.5
    middle = float((along / values.sqrt()).sum()) / math.sqrt(n)
    last = float((1 / values.sqrt()).sum() * r.norm()) / math.sqrt(n)
    yield at_most("√(B²/n) against the sum of |q·r|/√λ", root, middle)
    yield at_most("that sum against ‖r‖ times the sum of 1/√λ", middle, last)


def _direction(seed: int, *, turned: bool = False) -> Iterator[Measurement]:
    """Point r along the first eigenvector, then along the last; ``turned`` mixes them up."""
    _, values, vectors, r = _spectrum(seed)
    size = float(r.norm())
    first, last = (size * vectors[:, k] for k in ((0, -1) if turned else (-1, 0)))
    for name, label in (("first", first), ("last", last)):
        squared = float(((vectors.mT @ label).square() / values).sum())
        value = float(values[-1] if name == "first" else values[0])
        extreme = size**2 / value
        yield equal(f"B² ÷ (‖r‖²/λ), r along the {name} direction", squared / extreme, 1, 1e-8)


def _sum_of_eigenvalues(seed: int, *, frobenius: bool = False) -> Iterator[Measurement]:
    """Compare the sum of the eigenvalues with the trace, or with what is printed."""
    start, values, _, _ = _spectrum(seed)
    other = start.H.norm() if frobenius else start.H.trace()
    yield equal("sum of the eigenvalues ÷ trace", float(values.sum() / other), 1, 1e-10)


def _flat_spectrum(seed: int, *, flat: bool = True) -> Iterator[Measurement]:
    """Give H equal eigenvalues: 2B√(tr H)/n is then 2‖r‖/√n, whatever the labels."""
    _, values, vectors, r = _spectrum(seed)
    if flat:
        values = torch.full_like(values, float(values.mean()))
    n, squared = len(r), float(((vectors.mT @ r).square() / values).sum())
    term = 2 * math.sqrt(squared * float(values.sum())) / n
    yield equal(
        "equal eigenvalues: complexity ÷ (2‖r‖/√n)", term / float(2 * r.norm() / n**0.5), 1, 1e-10
    )


@claim(
    "gao2023.spectral",
    title="B² weighs each direction of the labels by one over its eigenvalue",
    chapter=CHAPTER,
    ref="prop-6b-spectrum",
)
def spectral_remarks(trial: Trial) -> Iterator[Measurement]:
    """Check the chain of inequalities, both extremes, the trace and the flat spectrum."""
    yield given("λ_min(H(0))", float(_spectrum(trial.seed)[1][0]), "≥", 1e-12)
    yield from _mean_radius(trial.seed)
    yield from _chain(trial.seed)
    yield from _direction(trial.seed)
    yield from _sum_of_eigenvalues(trial.seed)
    yield from _flat_spectrum(trial.seed)


@spectral_remarks.control("λ⁻² in the place of λ⁻¹, as printed")
def printed_power(trial: Trial) -> Iterator[Measurement]:
    """Use the printed powers of the eigenvalues."""
    yield from _mean_radius(trial.seed, power=1.0)


@spectral_remarks.control("the Frobenius norm in the place of the trace, as printed")
def printed_norm(trial: Trial) -> Iterator[Measurement]:
    """Call the Frobenius norm the sum of the eigenvalues."""
    yield from _sum_of_eigenvalues(trial.seed, frobenius=True)


@spectral_remarks.control("the labels point along the wrong end of the spectrum")
def turned_labels(trial: Trial) -> Iterator[Measurement]:
    """Exchange the first and the last eigenvector."""
    yield from _direction(trial.seed, turned=True)


@spectral_remarks.control("the eigenvalues are not equal")
def true_spectrum(trial: Trial) -> Iterator[Measurement]:
    """Keep the spectrum of the pictures."""
    yield from _flat_spectrum(trial.seed, flat=False)


# --- Section 5.2: a diagonal start --------------------------------------------------------------


def _closed_form(seed: int, *, dense: bool = False) -> Iterator[Measurement]:
    """Compare the closed form with the solver; ``dense`` fills the rest of W as well."""
    X, network = sphere(8, 20, 8000 + seed), DiagonalNetwork.init(120, 20, gamma=0.4, seed=seed)
    model = network.model()
    if dense:
        model.W.data += normal(120, 120, g=generator(seed)).fill_diagonal_(0)
    Z = network.states(X)[0]
    solved = model.solve(X, tol=1e-13).z
    yield within("states: closed form against solver", float((Z - solved).abs().max()), 1e-11)
    H = empirical_ntk(model, X, tol=1e-13)
    gap = float((network.kernel(X) - H).norm() / H.norm())
    yield within("kernel: closed form against solver, relative", gap, 1e-10)


WIDE = 20_000


def _wide_diagonal(seed: int, mean: float = 0.0) -> DiagonalNetwork:
    return DiagonalNetwork.init(WIDE, 20, gamma=0.4, seed=seed, mean=mean)


def _to_the_limit(seed: int, *, mean: float = 0.0) -> Iterator[Measurement]:
    """Compare the kernel at a large width with γ²κ₀∘κ₁, and the state with its features."""
    X, network = sphere(8, 20, 8000 + seed), _wide_diagonal(seed, mean)
    gap = float((network.kernel(X) - diagonal_limit(X, gamma=0.4)).norm())
    proved = diagonal_gap(8, WIDE, gamma=0.4, delta=DELTA)
    yield at_most("‖H(0) - γ²κ₀∘κ₁‖_F", gap, proved)
    phi = (X @ network.U.mT).relu() / math.sqrt(WIDE)
    moved = float((network.states(X)[0] - phi).norm() / phi.norm())
    yield _seen("what the loop adds to the state, relative", moved, "≤", 0.8 / math.sqrt(WIDE))


@claim(
    "gao2023.section5.2",
    title="A diagonal start tends to the kernel of one hidden layer, at the rate one over √m",
    chapter=CHAPTER,
    ref="thm-6b-diagonal",
)
def diagonal_start(trial: Trial) -> Iterator[Measurement]:
    """Check closed form, limit and bound, and that the first guess must be counted."""
    yield given("largest γ̃w", float(_wide_diagonal(trial.seed).loop.max()), "≤", 1)
    yield from _closed_form(trial.seed)
    yield from _to_the_limit(trial.seed)
    yield from _first_guess(trial.seed)


@diagonal_start.control("W(0) is dense")
def dense_start(trial: Trial) -> Iterator[Measurement]:
    """Fill the rest of W(0) too: the units are coupled again."""
    yield from _closed_form(trial.seed, dense=True)


@diagonal_start.control("the diagonal has the mean √m/2 instead of 0")
def large_diagonal(trial: Trial) -> Iterator[Measurement]:
    """Let the loop keep its strength: one hidden layer is not the limit."""
    yield from _to_the_limit(trial.seed, mean=math.sqrt(WIDE) / 2)


@diagonal_start.control("the first guess is left out, as printed: yᵀ(H^∞)⁻¹y")
def printed_radius(trial: Trial) -> Iterator[Measurement]:
    """Compute B from the labels alone; they are 0, and the error is not."""
    yield from _first_guess(trial.seed, counted=False)


# --- Figure 1: only W trained -------------------------------------------------------------------

NARROW, BROAD, EPOCHS, TESTS = 12, 100, 20, 200
_run = lru_cache(maxsize=64)(only_W)


@lru_cache(maxsize=64)
def _case(
    seed: int, m: int, fraction: float = 0.5, epochs: int = EPOCHS, gamma: float = 0.1
) -> Case:
    """Return a run on 50 pictures with one step for all widths, a fraction of the least edge."""
    base = Case(network="gao2023", seed=seed, part=seed % 20, n=50, rule="fixed", double=True)
    base = replace(base, gamma=gamma)
    least = min(edge(replace(base, m=width)) for width in (BROAD, NARROW))
    return replace(base, m=m, step=fraction * least, epochs=epochs, every=5 if epochs > 5 else 1)


def _steady(seed: int, **changes: Any) -> Iterator[Measurement]:
    """Follow the training loss of a wide network."""
    path = _run(WidthRun(_case(seed, BROAD, **changes)), tests=TESTS)
    rise = math.inf if path.stopped else float(np.diff(path.loss).max() / path.loss[0])
    yield _seen("largest rise of the training loss ÷ start", rise, "≤", 0)


def _contracts(seed: int, **changes: Any) -> Iterator[Measurement]:
    """Follow the norm of the cell."""
    path = _run(WidthRun(_case(seed, BROAD, **changes)), tests=TESTS)
    yield _seen("largest γ̃‖W‖", float(path.norms["cell"].max()), "≤", 1)


def _learnt(seed: int, *, coins: bool = False, **changes: Any) -> Iterator[Measurement]:
    """Look at the end of the run: training and test data."""
    path = _run(WidthRun(_case(seed, BROAD, **changes), coins=coins), tests=TESTS)
    missed = float((np.sign(path.predictions[-1]) != np.sign(path.y)).mean())
    fall, fall_test = (loss[-1] / loss[0] for loss in (path.loss, path.test_loss))
    if not coins:  # coins can be learnt by heart; what they cannot do is help on the test data
        yield _seen("training loss at the end ÷ start", fall, "≤", 0.2)
        yield _seen("share of wrong signs on the training data", missed, "≤", 0.05)
    yield _seen("test loss at the end ÷ start", fall_test, "≤", 0.3)
    yield _seen("share of wrong signs on the test data", path.test_error[-1], "≤", 0.15)


def _width_helps(seed: int, broad: int = BROAD) -> Iterator[Measurement]:
    """Compare two widths with one step; on the test data, without the first guess."""
    losses, errors = [], []
    for m in (broad, NARROW):
        kept, removed = (WidthRun(_case(seed, m), centred) for centred in (False, True))
        losses.append(_run(kept, tests=TESTS).loss[-1])
        path = _run(removed, tests=TESTS)
        f, y = tested_values(path, removed)[-1], torch.as_tensor(path.y_test)
        errors.append(float(cut(f, y).mean()))
    yield _seen(f"training loss ÷ that of width {NARROW}", losses[0] / losses[1], "≤", 1)
    name = f"first guess removed: test error ÷ that of width {NARROW}"
    yield _seen(name, errors[0] / errors[1], "≤", 1)


@claim(
    "gao2023.figure1",
    title="Only W trained: training and test error fall, and width helps both (guess removed)",
    chapter=CHAPTER,
    ref="fig-6b-widths",
)
def only_the_implicit_layer(trial: Trial) -> Iterator[Measurement]:
    """See what the figure of the source shows, and what width does once the guess is removed."""
    yield from _steady(trial.seed)
    yield from _contracts(trial.seed)
    yield from _learnt(trial.seed)
    yield from _width_helps(trial.seed)


@only_the_implicit_layer.control("the step is 8 times the edge 2/λ_max(H(0))")
def beyond_the_edge(trial: Trial) -> Iterator[Measurement]:
    """Take a step with which the linearised training diverges."""
    yield from _steady(trial.seed, fraction=8.0, epochs=1)


@only_the_implicit_layer.control("γ = 0.6 instead of 0.1: the cell does not contract")
def scale_too_large(trial: Trial) -> Iterator[Measurement]:
    """Start outside the region that the theorem lives in."""
    yield from _contracts(trial.seed, gamma=0.6, epochs=0)


@only_the_implicit_layer.control("the step is 1/10000 of the edge")
def too_careful(trial: Trial) -> Iterator[Measurement]:
    """Take a step so small that the epochs change nothing."""
    yield from _learnt(trial.seed, fraction=1e-4)


@only_the_implicit_layer.control("coins for training labels: nothing to learn for the test")
def coins_for_labels(trial: Trial) -> Iterator[Measurement]:
    """Train on labels that say nothing."""
    yield from _learnt(trial.seed, coins=True)


@only_the_implicit_layer.control("the wide network has width 2")
def not_wide(trial: Trial) -> Iterator[Measurement]:
    """Take the width away."""
    yield from _width_helps(trial.seed, broad=2)
