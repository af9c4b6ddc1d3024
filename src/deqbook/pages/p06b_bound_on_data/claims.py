"""Chapter 6, the bound on pictures: Theorem 4.1, its remarks, Section 5.2 and Figure 1 of gao2023.

The theorem is about a kernel and a first guess that are fixed before the sample is drawn. Every
control takes one of these words away. A seed draws other weights and other pictures.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from deqbook.claims import (
    at_most,
    chapter,
    checks,
    equal,
    given,
    seen,
    within,
)
from deqbook.dynamics import Trajectory
from deqbook.kernels import empirical_ntk
from deqbook.kernels.limits import diagonal_gap, diagonal_limit
from deqbook.pages.p03d_real_data.lab import SETS, DescentRun, edge
from deqbook.pages.p06b_bound_on_data.lab import pictures as lab
from deqbook.runtime import generator, normal, sphere

claim = chapter("06b_bound_on_data")

EASY = ("mnist01", "fashion01")  # the sets on which a bound can be brought below 1


# --- Theorem 4.1: the bound ---------------------------------------------------------------------


@lru_cache(maxsize=8)
def _network(name: str, seed: int) -> lab.KernelStart:
    return lab.network_start(name, 100, m=80, seed=seed, tests=100)


@lru_cache(maxsize=8)
def _limit(name: str, seed: int) -> lab.KernelStart:
    """Return the limit with 400 test pictures; of the photographs only the kernel is used."""
    return lab.limit_start(name, 400, seed=seed, tests=400 if name in EASY else 2)


def _on_pictures(trial):
    for name, title in SETS.items():
        start = _network(name, trial.seed)
        values = torch.linalg.eigvalsh(start.H)
        yield given(f"{title}: λ_min(H(0)) ÷ λ_max", float(values[0] / values[-1]), "≥", 1e-9)
        for p in (0.0, 0.5, 1.0):
            drawn = start.labelled(lab.noisy_labels(start.y, p, generator(2000 + trial.seed)))
            f, B = drawn.interpolate()
            error = float(lab.noisy(lab.cut, f, start.y_test, p).mean())
            yield at_most(f"{title}, noise {p:.0%}: test error", error, drawn.bound(B).total)


def _informative(trial, *, one_class=False):
    start = _limit("mnist01", trial.seed)
    if one_class:  # nothing is easier to fit
        start = start.only(torch.nonzero(start.y > 0)[:, 0])
    f, B = start.interpolate()
    bound = start.sharper(B).total
    yield at_most(
        "MNIST, infinite width: test error", float(lab.cut(f, start.y_test).mean()), bound
    )
    share = float(lab.wrong(f, start.y_test).mean())
    yield at_most("MNIST, infinite width: share of wrong signs", share, bound)


def _stopped(trial):
    for name in EASY:
        start = _limit(name, trial.seed)
        stop = lab.best_stop(start, start.frozen())
        yield given(f"{SETS[name]}, stopped: bound", stop.bound, "≤", 1)
        yield at_most(f"{SETS[name]}, stopped: test ramp loss", stop.ramp, stop.bound)


def _coins(trial, *, learnt=False):
    start = _limit("mnist01", trial.seed)
    start = start.labelled(lab.noisy_labels(start.y, 1.0, generator(3000 + trial.seed)))
    f, B = start.interpolate()
    if learnt:  # k + c·g(x)g(x'), g the predictor just found: it fits y with norm 1/√c
        c = 100 * float(start.H.diagonal().max())
        H, k = start.H + c * torch.outer(start.y, start.y), start.k + c * torch.outer(f, start.y)
        start = replace(start, H=H, k=k)
        f, B = start.interpolate()
    error = float(lab.noisy(lab.cut, f, start.y_test, 1.0).mean())
    yield at_most("coins for labels: test error", error, start.bound(B).total)


@lru_cache(maxsize=2)
def _zero_labels(seed: int, n: int = 400) -> lab.KernelStart:
    """Return a network on as many points of the sphere as dimensions, with labels 0."""
    points, tests = sphere(n, n, 6000 + seed), sphere(300, n, 7000 + seed)
    network = lab.DiagonalNetwork.init(2 * n, n, gamma=0.4, seed=seed)
    return network.start(points, 0 * points[:, 0], tests, 0 * tests[:, 0])


def _first_guess(trial, *, counted=True):
    # the labels are 0: only the first guess makes an error, and only it makes B
    start = _zero_labels(trial.seed)
    f, B = start.interpolate()
    bound = start.bound(B if counted else 0.0).total
    error = float(lab.cut(f, start.y_test).mean())
    yield at_most("labels 0, first guess kept: test error", error, bound)


def _growth(name: str, seed: int, p: float) -> float:
    """Return how 2B√(tr H)/n, in root mean square over the noise p, goes from n = 50 to 400."""
    terms = []
    for n in (50, 400):
        start = _limit(name, seed).first(n)
        square = lab.mean_squared_radius(start.H, start.y, p)
        terms.append(2 * math.sqrt(square * float(start.H.trace())) / n)
    return terms[1] / terms[0]


def _with_more_samples(trial, *, exchanged=False):
    coins, true = (0.0, 1.0) if exchanged else (1.0, 0.0)
    for name in EASY if exchanged else SETS:
        ratio = _growth(name, trial.seed, coins)
        yield seen(f"{SETS[name]}, coins: complexity at n = 400 ÷ n = 50", ratio, "≥", 1)
    for name in EASY:
        ratio = _growth(name, trial.seed, true)
        yield seen(f"{SETS[name]}, true labels: complexity at n = 400 ÷ n = 50", ratio, "≤", 1)


@claim(
    "gao2023.theorem4.1",
    "Test error of the frozen-kernel predictor, bounded by how far the labels are from it",
    "thm-6b-bound",
)
def bound_on_data(trial):
    yield from _on_pictures(trial)
    yield from _informative(trial)
    yield from _stopped(trial)
    yield from _coins(trial)
    yield from _first_guess(trial)
    yield from _with_more_samples(trial)


bound_on_data.breaks(
    "the first guess is left out of B, as after Section 5.2 of the source",
    part=_first_guess,
    counted=False,
)
bound_on_data.breaks(
    "the kernel is chosen after the labels have been seen", part=_coins, learnt=True
)
bound_on_data.breaks(
    "the sample is not drawn from the distribution of the test: one class only",
    part=_informative,
    one_class=True,
)
bound_on_data.breaks("true labels and coins are exchanged", part=_with_more_samples, exchanged=True)


# --- the spectral remarks after Theorem 4.1 -----------------------------------------------------


def _spectrum(trial):
    """Return H of a network on MNIST, its eigenvalues and eigenvectors, and r = y - f_0(X)."""
    start = _network("mnist01", trial.seed)
    return start.H, *torch.linalg.eigh(start.H), start.y - start.guess


def _mean_radius(trial, *, power=0.5):
    H, values, vectors, r = _spectrum(trial)
    n, along = len(r), vectors.mT @ r
    direct = float(r @ torch.linalg.solve(H, r) / n) ** 0.5
    by_modes = float((along / values**power).square().sum() / n) ** 0.5
    yield within("√(B²/n) by modes ÷ by a linear solve - 1", abs(by_modes / direct - 1), 1e-8)


def _chain(trial):
    _, values, vectors, r = _spectrum(trial)
    n, along = len(r), (vectors.mT @ r).abs()
    root = float((along.square() / values).sum() / n) ** 0.5
    middle = float((along / values.sqrt()).sum()) / math.sqrt(n)
    last = float((1 / values.sqrt()).sum() * r.norm()) / math.sqrt(n)
    yield at_most("√(B²/n) against the sum of |q·r|/√λ", root, middle)
    yield at_most("that sum against ‖r‖ times the sum of 1/√λ", middle, last)


def _direction(trial, *, turned=False):
    _, values, vectors, r = _spectrum(trial)
    size = float(r.norm())
    for name, k, opposite in (("first", -1, 0), ("last", 0, -1)):
        label = size * vectors[:, opposite if turned else k]
        squared = float(((vectors.mT @ label).square() / values).sum())
        extreme = size**2 / float(values[k])
        yield equal(f"B² ÷ (‖r‖²/λ), r along the {name} direction", squared / extreme, 1, 1e-8)


def _sum_of_eigenvalues(trial, *, frobenius=False):
    H, values, _, _ = _spectrum(trial)
    other = H.norm() if frobenius else H.trace()
    yield equal("sum of the eigenvalues ÷ trace", float(values.sum() / other), 1, 1e-10)


def _flat_spectrum(trial, *, flat=True):
    _, values, vectors, r = _spectrum(trial)
    if flat:
        values = torch.full_like(values, float(values.mean()))
    n, squared = len(r), float(((vectors.mT @ r).square() / values).sum())
    term = 2 * math.sqrt(squared * float(values.sum())) / n
    yield equal(
        "equal eigenvalues: complexity ÷ (2‖r‖/√n)", term / float(2 * r.norm() / n**0.5), 1, 1e-10
    )


@claim(
    "gao2023.spectral",
    "B² weighs each direction of the labels by one over its eigenvalue",
    "prop-6b-spectrum",
)
def spectral_remarks(trial):
    yield given("λ_min(H(0))", float(_spectrum(trial)[1][0]), "≥", 1e-12)
    yield from _mean_radius(trial)
    yield from _chain(trial)
    yield from _direction(trial)
    yield from _sum_of_eigenvalues(trial)
    yield from _flat_spectrum(trial)


spectral_remarks.breaks("λ⁻² in the place of λ⁻¹, as printed", part=_mean_radius, power=1.0)
spectral_remarks.breaks(
    "the Frobenius norm in the place of the trace, as printed",
    part=_sum_of_eigenvalues,
    shown={"trace": "Frobenius norm"},
    frobenius=True,
)
spectral_remarks.breaks(
    "the labels point along the wrong end of the spectrum", part=_direction, turned=True
)
spectral_remarks.breaks(
    "the eigenvalues are not equal",
    part=_flat_spectrum,
    shown={"equal eigenvalues": "eigenvalues of the pictures"},
    flat=False,
)


# --- Section 5.2: a diagonal start --------------------------------------------------------------


def _closed_form(trial, *, dense=False):
    X = sphere(8, 20, 8000 + trial.seed)
    network = lab.DiagonalNetwork.init(120, 20, gamma=0.4, seed=trial.seed)
    model = network.model()
    if dense:  # the units are coupled again
        model.W.data += normal(120, 120, g=generator(trial.seed)).fill_diagonal_(0)
    Z = network.states(X)[0]
    solved = model.solve(X, tol=1e-13).z
    yield within("states: closed form against solver", float((Z - solved).abs().max()), 1e-11)
    H = empirical_ntk(model, X, tol=1e-13)
    gap = float((network.kernel(X) - H).norm() / H.norm())
    yield within("kernel: closed form against solver, relative", gap, 1e-10)


WIDE = 20_000


def _wide_diagonal(trial, mean=0.0):
    return lab.DiagonalNetwork.init(WIDE, 20, gamma=0.4, seed=trial.seed, mean=mean)


def _to_the_limit(trial, *, mean=0.0):
    X, network = sphere(8, 20, 8000 + trial.seed), _wide_diagonal(trial, mean)
    gap = float((network.kernel(X) - diagonal_limit(X, gamma=0.4)).norm())
    proved = diagonal_gap(8, WIDE, gamma=0.4, delta=lab.DELTA)
    yield at_most("‖H(0) - γ²κ₀∘κ₁‖_F", gap, proved)
    phi = (X @ network.U.mT).relu() / math.sqrt(WIDE)
    moved = float((network.states(X)[0] - phi).norm() / phi.norm())
    yield seen("what the loop adds to the state, relative", moved, "≤", 0.8 / math.sqrt(WIDE))


@claim(
    "gao2023.section5.2",
    "A diagonal start tends to the kernel of one hidden layer, at the rate one over √m",
    "thm-6b-diagonal",
)
def diagonal_start(trial):
    yield given("largest γ̃w", float(_wide_diagonal(trial).loop.max()), "≤", 1)
    yield from _closed_form(trial)
    yield from _to_the_limit(trial)
    yield from _first_guess(trial)


diagonal_start.breaks("W(0) is dense", part=_closed_form, dense=True)
# Then the loop keeps its strength.
diagonal_start.breaks(
    "the diagonal has the mean √m/2 instead of 0", part=_to_the_limit, mean=math.sqrt(WIDE) / 2
)
diagonal_start.breaks(
    "the first guess is left out, as printed: yᵀ(H^∞)⁻¹y", part=_first_guess, counted=False
)


# --- Figure 1: only W trained -------------------------------------------------------------------

NARROW, BROAD, EPOCHS, TESTS = 12, 100, 20, 200
_run = lru_cache(maxsize=64)(lab.only_W)


@lru_cache(maxsize=64)
def _case(
    seed: int, m: int, fraction: float = 0.5, epochs: int = EPOCHS, gamma: float = 0.1
) -> DescentRun:
    """Return a run on 50 pictures with one step for all widths, a fraction of the least edge."""
    base = DescentRun(network="gao2023", seed=seed, part=seed % 20, n=50, rule="fixed", double=True)
    base = replace(base, gamma=gamma)
    least = min(edge(replace(base, m=width)) for width in (BROAD, NARROW))
    return replace(base, m=m, step=fraction * least, epochs=epochs, every=5 if epochs > 5 else 1)


def _path(run: lab.WidthRun) -> Trajectory:
    return _run(run, tests=TESTS)


def _steady(trial, *, fraction=0.5, epochs=EPOCHS):
    path = _path(lab.WidthRun(_case(trial.seed, BROAD, fraction, epochs)))
    rise = math.inf if path.stopped else float(np.diff(path.loss).max() / path.loss[0])
    yield seen("largest rise of the training loss ÷ start", rise, "≤", 0)


def _contracts(trial, *, gamma=0.1, epochs=EPOCHS):
    path = _path(lab.WidthRun(_case(trial.seed, BROAD, gamma=gamma, epochs=epochs)))
    yield seen("largest γ̃‖W‖", float(path.norms["cell"].max()), "≤", 1)


def _learnt(trial, *, fraction=0.5, coins=False):
    path = _path(lab.WidthRun(_case(trial.seed, BROAD, fraction), coins=coins))
    missed = float((np.sign(path.predictions[-1]) != np.sign(path.y)).mean())
    fall, fall_test = (loss[-1] / loss[0] for loss in (path.loss, path.test_loss))
    yield seen("training loss at the end ÷ start", fall, "≤", 0.2)
    yield seen("share of wrong signs on the training data", missed, "≤", 0.05)
    yield seen("test loss at the end ÷ start", fall_test, "≤", 0.3)
    yield seen("share of wrong signs on the test data", path.test_error[-1], "≤", 0.15)


def _width_helps(trial, *, broad=BROAD):
    losses, errors = [], []
    for m in (broad, NARROW):
        kept, removed = (lab.WidthRun(_case(trial.seed, m), centred) for centred in (False, True))
        losses.append(_path(kept).loss[-1])
        path = _path(removed)
        f, y = lab.tested_values(path, removed)[-1], torch.as_tensor(path.y_test)
        errors.append(float(lab.cut(f, y).mean()))
    yield seen(f"training loss ÷ that of width {NARROW}", losses[0] / losses[1], "≤", 1)
    name = f"first guess removed: test error ÷ that of width {NARROW}"
    yield seen(name, errors[0] / errors[1], "≤", 1)


@claim(
    "gao2023.figure1",
    "Only W trained: training and test error fall, and width helps both (guess removed)",
    "fig-6b-widths",
)
def only_the_implicit_layer(trial):
    yield from _steady(trial)
    yield from _contracts(trial)
    yield from _learnt(trial)
    yield from _width_helps(trial)


only_the_implicit_layer.breaks(
    "the step is 8 times the edge 2/λ_max(H(0))", part=_steady, fraction=8.0, epochs=1
)
only_the_implicit_layer.breaks(
    "γ = 0.6 instead of 0.1: the cell does not contract", part=_contracts, gamma=0.6, epochs=0
)
only_the_implicit_layer.breaks("the step is 1/10000 of the edge", part=_learnt, fraction=1e-4)
# Coins can be learnt by heart; what they cannot do is help on the test data.
only_the_implicit_layer.breaks(
    "coins for training labels: nothing to learn for the test",
    "test loss",
    "share of wrong signs on the test",
    part=_learnt,
    coins=True,
)
only_the_implicit_layer.breaks("the wide network has width 2", part=_width_helps, broad=2)

check = checks(claim)
