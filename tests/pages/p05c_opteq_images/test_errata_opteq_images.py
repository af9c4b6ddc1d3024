"""Errata of page 5c: every number computed again and looked up in its entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from errata_page import entry

from deqbook.experiments.opteq_tables import ALPHAS, SMALL_CONV, shipped
from deqbook.experiments.receipts import Results, read
from deqbook.pages.p05c_opteq_images.lab.training import PLAIN_SGD, ClassifierRun, train

#: Table 3 of xie2022: one row per route, one column per α.
TABLE3 = np.array(
    [
        [58.4, 56.8, 86.9, 87.4, 87.2],  # none
        [69.4, 61.9, 87.3, 87.3, 87.4],  # selection: half the squared norm
        [75.0, 63.2, 78.4, 87.3, 87.0],  # selection: inverse
        [72.7, 61.5, 86.5, 87.0, 87.7],  # selection: F_D
        [64.9, 64.7, 87.7, 87.5, 87.6],  # layer: inverse
        [72.6, 60.0, 88.0, 87.6, 87.5],  # layer: F_D
    ]
)
SAM = {"route": "sam", "regulariser": "half-square"}
TABLE1A_LAYER = (86.0, 87.6, 88.0)  # F_D, α = 0.4, 0.8, 1


def rate(epochs: int, drop: float, every: int) -> float:
    """Return the learning rate of the last epoch."""
    return 0.1 * drop ** ((epochs - 1) // every)


def test_xie_e16() -> None:
    text = entry("errata-xie-e16")
    assert ", ".join(f"{v:.1f}" for v in TABLE1A_LAYER) in text
    assert ", ".join(f"{v:.1f}" for v in TABLE3[5, 2:]) in text
    assert f"$86.0-60.6={86.0 - 60.6:.1f}$" in text
    plain = TABLE3[0, 4]
    assert f"$26.6={plain}-60.6$" in text
    assert plain - 60.6 == pytest.approx(26.6)
    below = TABLE3[1:] < TABLE3[0]
    assert f"In {below.sum()} of the {below.size} regularised cells" in text
    loss = TABLE3[0] - TABLE3[1:]
    assert np.unravel_index(loss.argmax(), loss.shape) == (1, 2)  # inverse by selection, 0.4
    assert f"by {loss.max():.1f} points" in text
    ahead = TABLE3[[2, 3]] > TABLE3[[4, 5]]
    assert f"In {ahead.sum()} of the {ahead.size} cells" in text
    for drop, every in ((0.5, 30), (0.6, 20)):
        assert f"${1e3 * rate(200, drop, every):.1f}\\cdot10^{{-3}}$" in text
    assert f"standard deviation of {100 * np.sqrt(0.875 * 0.125 / 10_000):.2f} points" in text
    late = TABLE3[:, 3:]
    assert f"the {late.size} cells lie between {late.min()} and {late.max()}" in text


@pytest.fixture(scope="module")
def results() -> Results:
    return read(shipped())


def ends(results: Results, group: str, **wanted: object) -> list[float]:
    """Return the norm at the end of every run."""
    return [r["result"]["norm"][-1] for r in results.select(group, **wanted)]


def test_xie_e17(results: Results) -> None:
    text = entry("errata-xie-e17")
    dense = ends(results, "table3", route="none")
    assert len(dense) == 3 * len(ALPHAS)
    assert f"between {min(dense):.2f} and {max(dense):.2f} after ten epochs" in text
    wild = ends(results, "conv", radius=None)
    assert f"between {min(wild):.1f} and {max(wild):.1f} after six" in text
    assert min(dense) > 1
    projected = [*results.select("ball", radius=1.0), *results.select("conv", radius=1.0)]
    assert max(max(r["result"]["norm"]) for r in projected) <= 1 + 1e-6
    plain = {"alpha": 0.8, "route": "none"}
    scores = {
        group: np.mean([r["result"]["accuracy"][-1] for r in results.select(group, **wanted)])
        for group, wanted in (("table3", plain), ("ball", plain | {"radius": 1.0}))
    }
    assert f"{100 * scores['ball']:.1f} % instead of {100 * scores['table3']:.1f} %" in text
    selected = [
        np.mean([r["result"]["residual"] for r in results.select("table3", alpha=a, **SAM)])
        for a in (0.4, 0.8, 1.0)
    ]
    assert ", ".join(f"{100 * v:.2f}" for v in selected) + " %" in text


def test_xie_e17_prediction() -> None:
    beta, decay, gamma = 0.5 * 20**-0.5, 0.5 * 20**-0.2, 0.5
    promised = beta / (1 - beta) * gamma * (1 + decay)
    assert f"={100 * promised:.1f}\\,\\%$" in entry("errata-xie-e17")


def test_xie_e17_quickly() -> None:
    case = ClassifierRun(
        m=16, features=16, widths=(8, 16), n_train=250, n_test=125, **PLAIN_SGD, epochs=80, drop=1.0
    )
    run = train(replace(case, steps=8))
    assert f"from {run.norm[0]:.2f} to {run.norm[-1]:.2f}" in entry("errata-xie-e17")
    assert f"{case.epochs * case.n_train // case.batch} updates on {case.n_train} pictures" in (
        entry("errata-xie-e17")
    )
    assert max(train(replace(case, steps=8, radius=1.0)).norm) <= 1 + 1e-12


def test_xie_e17_as_the_source_trains() -> None:
    text, runs = entry("errata-xie-e17"), []
    for seed in range(3):
        runs.append(train(ClassifierRun(epochs=20, seed=seed, **PLAIN_SGD)).norm)
    crossed = [next(i for i, norm in enumerate(run) if norm > 1) for run in runs]
    assert (
        f"starts at {runs[0][0]:.2f}, is above 1 from epoch {', '.join(map(str, crossed))}" in text
    )
    assert f"ends at {', '.join(f'{run[-1]:.2f}' for run in runs)} after twenty" in text


def test_xie_e17_convolutions_as_the_source_trains() -> None:
    run = train(replace(SMALL_CONV, **PLAIN_SGD, epochs=2))
    assert f"convolutional one is {run.norm[-1]:.2f} after two" in entry("errata-xie-e17")
