"""Chapter 3, real data: what Figure 1 of gao2022 and Figure 1 of ling2023 must show.

A figure is reproduced when its message is, at a size that runs here. Only what shows on every seed
is asserted; what does not is on the page. A seed draws other weights and takes other pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from deqbook.claims.real_data import SETS, Case, edge, train
from deqbook.claims.registry import Measurement, Trial, claim
from deqbook.dynamics import Trajectory

CHAPTER = "03d_real_data"
SIZE = 60  # samples of a run

_run = lru_cache(maxsize=64)(train)  # a control shares the runs that it does not change


def _seen(name: str, value: float, relation: str, bound: float) -> Measurement:
    """Measure what a figure must show; its number is ours, so it is no slack of a theorem."""
    return Measurement(name, float(value), relation, float(bound), theorem=False)


def _fall(run: Trajectory) -> float:
    """Return the last loss ÷ the first; infinite if the run was lost before."""
    return math.inf if run.stopped else run.loss[-1] / run.loss[0]


def _rise(run: Trajectory) -> float:
    """Return the largest rise of the loss from one record to the next ÷ the first loss."""
    return math.inf if run.stopped else float(np.diff(run.loss).max()) / run.loss[0]


def _drift(run: Trajectory) -> float:
    """Return how much ‖W‖ has changed at the end ÷ its start; infinite if the run was lost."""
    before, after = (np.linalg.norm(weights["W"], 2) for weights in (run.start, run.end))
    return math.inf if run.stopped else float(abs(after - before) / before)


def _ratio(wide: Trajectory, narrow: Trajectory) -> float:
    """Return the last loss of the wide network ÷ that of the narrow one."""
    return math.nan if wide.stopped or narrow.stopped else wide.loss[-1] / narrow.loss[-1]


# --- gao2022: all layers trained, four data sets ------------------------------------------------


def _on_each_set(seed: int, fraction: float, epochs: int) -> Iterator[tuple[str, Trajectory]]:
    """Train width 100 on each set, with a step that is a fraction of the edge."""
    base = Case(m=100, seed=seed, part=seed, n=SIZE, step=fraction, epochs=epochs, every=1)
    base = replace(base, double=True, test=False, norms=False)
    for name, title in SETS.items():
        yield title, _run(replace(base, data=name))


def _steady(seed: int, fraction: float = 0.5, epochs: int = 60) -> Iterator[Measurement]:
    """Follow the loss from epoch to epoch, and the norm."""
    for title, run in _on_each_set(seed, fraction, epochs):
        yield _seen(f"{title}: largest rise of the loss in one epoch ÷ start", _rise(run), "≤", 0)
        yield _seen(f"{title}: change of ‖W‖ ÷ start", _drift(run), "≤", 1e-3)


def _learnt(seed: int, fraction: float = 0.5) -> Iterator[Measurement]:
    """Compare the loss after 60 epochs with that at the start."""
    for title, run in _on_each_set(seed, fraction, 60):
        yield _seen(f"{title}: loss after 60 epochs ÷ start", _fall(run), "≤", 0.9)


def _late_phase(seed: int, wide: int = 120, narrow: int = 15) -> Iterator[Measurement]:
    """Train two widths on MNIST with one step, until the small eigenvalues rule."""
    base = Case(seed=seed, part=seed, n=SIZE, rule="fixed", epochs=150, every=50)
    base = replace(base, double=True, test=False, norms=False)
    cases = [replace(base, m=m) for m in (wide, narrow)]
    step = 0.7 * min(edge(case) for case in cases)
    runs = [_run(replace(case, step=step)) for case in cases]
    yield _seen("MNIST, 150 epochs: loss of the wide network ÷ width 15", _ratio(*runs), "≤", 1)


def _near_one_fifth(seed: int, gamma: float = 0.1) -> Iterator[Measurement]:
    """Follow γ̃‖W‖: with γ = 0.1 it starts near 2γ = 0.2, where Gaussian weights put it."""
    case = Case(m=100, seed=seed, part=seed, n=SIZE, step=0.5, epochs=40, every=10)
    run = _run(replace(case, gamma=gamma, double=True, test=False))
    worst = math.inf if run.stopped else float(run.norms["cell"].max())
    yield _seen("MNIST: largest γ̃‖W‖", worst, "≤", 0.21)


@claim(
    "gao2022.figure1",
    title="All layers trained: the loss falls on four data sets and the norm does not move",
    chapter=CHAPTER,
    ref="fig-3d-gao2022",
)
def four_data_sets(trial: Trial) -> Iterator[Measurement]:
    """See the loss fall, late faster with width, and the norm of the cell stay near 0.2."""
    yield from _steady(trial.seed)
    yield from _learnt(trial.seed)
    yield from _late_phase(trial.seed)
    yield from _near_one_fifth(trial.seed)


@four_data_sets.control("the step is 8 times the edge 2/λ_max(H(0))")
def beyond_the_edge(trial: Trial) -> Iterator[Measurement]:
    """Take a step with which the linearised training diverges; the true one is thrown far off."""
    yield from _steady(trial.seed, fraction=8.0, epochs=4)


@four_data_sets.control("the step is 1/10000 of the edge, near what the theorem proves")
def too_careful(trial: Trial) -> Iterator[Measurement]:
    """Take a step so small that 60 epochs change nothing."""
    yield from _learnt(trial.seed, fraction=1e-4)


@four_data_sets.control("the wide network has width 3")
def not_wide(trial: Trial) -> Iterator[Measurement]:
    """Take the width away."""
    yield from _late_phase(trial.seed, wide=3)


@four_data_sets.control("γ = 0.6 instead of 0.1: the cell does not contract")
def scale_too_large(trial: Trial) -> Iterator[Measurement]:
    """Start outside the region that the theorem lives in."""
    yield from _near_one_fifth(trial.seed, gamma=0.6)


# --- ling2023: faster with width at one step ----------------------------------------------------

THREE = {"sphere": "sphere", "mnist01": "MNIST", "cifar01": "CIFAR-10"}
NARROW, WIDE = 20, 100


def _widths(
    seed: int, sets: tuple[str, ...] = tuple(THREE), *, shared: bool = True
) -> Iterator[Measurement]:
    """Compare two widths with one step (``shared``), or with steps in proportion to 1/m."""
    base = Case(network="ling2023", m=WIDE, seed=seed, part=seed, n=SIZE, rule="fixed")
    base = replace(base, epochs=150, every=150, double=True, test=False, norms=False)
    for name in sets:
        wide = replace(base, data=name)
        wide = replace(wide, step=0.3 * edge(wide))
        times = 1.0 if shared else WIDE / NARROW
        narrow = replace(wide, m=NARROW, step=times * wide.step)
        yield _seen(
            f"{THREE[name]}: loss at width {WIDE} ÷ width {NARROW}",
            _ratio(_run(wide), _run(narrow)),
            "≤",
            1,
        )


def _norm_stays(seed: int, fraction: float = 0.3, epochs: int = 30) -> Iterator[Measurement]:
    """Follow ‖W‖, which starts near √(8σ_w²) = 0.8."""
    base = Case(network="ling2023", m=WIDE, seed=seed, part=seed, n=SIZE, step=fraction)
    for name, title in THREE.items():
        run = _run(replace(base, data=name, epochs=epochs, every=5, double=True, test=False))
        worst = math.inf if run.stopped else float(run.norms["cell"].max())
        yield _seen(f"{title}: largest ‖W‖", worst, "≤", 0.99)


@claim(
    "ling2023.figure1",
    title="With one step for all widths, a wider network trains faster and ‖W‖ stays below 1",
    chapter=CHAPTER,
    ref="fig-3d-ling2023",
)
def faster_with_width(trial: Trial) -> Iterator[Measurement]:
    """See a smaller loss at the larger width on three data sets, and the norm below 1."""
    yield from _widths(trial.seed)
    yield from _norm_stays(trial.seed)


@faster_with_width.control("steps in proportion to 1/m instead of one step: the order is reversed")
def scaled_step(trial: Trial) -> Iterator[Measurement]:
    """Take the growth of the kernel out. CIFAR-10 is left out: there a seed shows no order."""
    yield from _widths(trial.seed, ("sphere", "mnist01"), shared=False)


@faster_with_width.control("the step is 8 times the edge 2/λ_max(H(0))")
def beyond_the_edge_again(trial: Trial) -> Iterator[Measurement]:
    """Take a step that throws the weights out of the region where the model is defined."""
    yield from _norm_stays(trial.seed, fraction=8.0, epochs=5)
