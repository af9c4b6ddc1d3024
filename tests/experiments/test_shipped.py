"""The results that ship: whole, of the declared cases, and true when a case is repeated."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deqbook.experiments import cells, opteq_tables, ours, widths
from deqbook.experiments.cases import cell, descent, kernels
from deqbook.experiments.catalogue import EXPERIMENTS
from deqbook.experiments.declaration import Experiment
from deqbook.experiments.drawing import panels, plain_log
from deqbook.experiments.gallery import Shown, Table, facts, overview, rules, shown
from deqbook.experiments.receipts import Results, read
from deqbook.experiments.worker import Checkpoint, OutOfTime, key_of
from deqbook.pages.p03d_real_data.lab import DescentRun, edge
from deqbook.pages.p05c_opteq_images.lab.long_range import Scene

SHIPPED = [(name, profile) for name, one in EXPERIMENTS.items() for profile in one.shipped]


def results_of(name: str, profile: str) -> tuple[Experiment, Results]:
    one = EXPERIMENTS[name]
    return one, read(one.shipped[profile])


@pytest.mark.parametrize(("name", "profile"), SHIPPED)
def test_a_file_holds_declared_cases_and_is_small(name: str, profile: str) -> None:
    one, results = results_of(name, profile)
    wanted = [key_of(g, one.plain(c)) for g, c in one.cases[profile]()]
    found = [key_of(r["group"], r["case"]) for r in results.runs]
    assert found == [key for key in wanted if key in set(found)]
    assert one.shipped[profile].stat().st_size < 310_000
    assert results.receipt.command == one.command(profile)
    assert set(results.receipt.made_by.data) == set(one.data)
    assert len(results.cost.seconds) == len(results.runs)
    assert results.cost.hours > 0
    assert results.cost.hardware


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_an_experiment_says_everything(name: str) -> None:
    one = EXPERIMENTS[name]
    assert set(one.cases) == set(one.sizes)
    for statement in one.statements:
        assert statement.printed
        assert statement.rule
    assert any(s.counts for s in one.statements)
    assert one.reason
    for cases in one.cases.values():
        jobs = list(cases())
        keys = [key_of(g, one.plain(c)) for g, c in jobs]
        assert len(set(keys)) == len(keys)
        assert all(one.cost(c) > 0 for _, c in jobs)


@pytest.mark.parametrize(("name", "profile"), SHIPPED)
def test_results_are_judged_and_drawn(name: str, profile: str) -> None:
    one, results = results_of(name, profile)
    verdict = one.judge(results)
    assert verdict.word in ("reproduced", "partly", "not")
    assert all(f.measured for f in verdict.findings)
    drawn = one.draw(results)
    assert all(ax.has_data() for ax in drawn.axes)
    assert any(ax.get_title() for ax in drawn.axes) or drawn.axes[0].get_ylabel()
    if name == "gao2022-fig1":
        assert [ax.get_title() for ax in drawn.axes[:3]] == [c[1] for c in widths.THREE_COLUMNS]
        assert drawn.axes[-1].get_xlabel() == "epoch"


def test_a_part_of_the_results_is_judged_as_far_as_it_goes() -> None:
    one, results = results_of("ling2023-fig1", "paper")
    narrow = replace(results, runs=tuple(r for r in results.runs if r["case"]["m"] == 125))
    assert one.judge(narrow).word == "not run"
    assert Shown(one, "paper", narrow).left_out == "m = 250, 500, 1000"
    most = replace(results, runs=results.runs[1:])
    assert Shown(one, "paper", most).left_out == "1 of 24 cases"
    sphere = replace(results, runs=tuple(r for r in results.runs if "sphere" in r["group"]))
    assert one.judge(sphere).word == "partly"  # all that was run holds, but not all was run


def test_draws_that_agree_would_leave_the_effect_to_the_width() -> None:
    one, results = results_of("gao2022-draws", "paper")
    assert all(drawn > 0 for drawn, _ in widths.spreads(results, "loss").values())
    first = {r["group"]: r["result"] for r in reversed(results.runs)}
    alike = replace(results, runs=tuple({**r, "result": first[r["group"]]} for r in results.runs))
    assert one.judge(alike).word == "not"
    single = replace(results, runs=tuple(r for r in results.runs if r["case"]["seed"] == 0))
    assert one.judge(single).word == "not run"


def test_the_gallery_has_a_row_for_each() -> None:
    table = overview()
    assert len(table.rows) == len(EXPERIMENTS)
    assert all(len(row) == len(table.head) for row in table.rows)
    html = table._repr_html_()
    assert html.count("<tr>") == len(EXPERIMENTS) + 1
    told = facts("ling2023-fig1")._repr_html_()
    words = ["deqbook", "reproduce", "ling2023-fig1", "--profile", "paper"]
    glued = " ".join(f'<span class="deq-glue">{word}</span>' for word in words)
    assert f"<code>{glued}</code>" in told  # a line ends between words only
    assert "<thead>" not in told  # a column of facts needs no head
    assert shown("ling2023-fig1").word == "partly"
    assert shown("bound-n").word == "partly"  # ours: nothing is published to be smaller than
    assert "in miniature" in shown("nguyen2022-fig4.4").word
    assert shown("ling2023-fig1").left_out == ""
    assert rules("ling2023-fig1").summary.startswith("5 of 6 sentences came out")
    assert "5\u00a0%" in Table((), [["5 % at m = 3"]])._repr_html_()  # no line begins with a sign
    blocks = rules("ling2023-fig1")._repr_html_()
    assert "deq-stack" in blocks
    assert '<span class="deq-head" hidden>rule: </span>' in blocks
    assert "deq-head" not in told
    assert [row[3] for row in rules("ling2023-fig1").rows].count("no (not counted)") == 3


# --- one case again, drawn by the hash of the file ------------------------------------------------


def drawn(results: Results, cheap: Any) -> Any:
    """Return an entry, chosen by the file's own hash among those that are cheap to repeat."""
    few = [r for r in results.runs if cheap(r)]
    return random.Random(results.receipt.sha256).choice(few)


TRAINED = ("gao2022-fig1", "gao2022-draws", "gao2023-fig1", "ling2023-fig1")
WIDTHS = [s for s in SHIPPED if s[0] in TRAINED]


@pytest.mark.parametrize(("name", "profile"), WIDTHS)
def test_the_beginning_of_a_training_run_comes_out_again(
    name: str, profile: str, tmp_path: Path
) -> None:
    _, results = results_of(name, profile)
    least = min(r["case"]["m"] for r in results.runs)
    entry = drawn(results, lambda r: r["case"]["m"] == least)
    case = DescentRun(**entry["case"])
    again = descent.run(replace(case, epochs=case.every), Checkpoint(tmp_path / "c"))
    for key in ("loss", "norm"):
        # single precision: other processors round otherwise
        assert again[key] == pytest.approx(entry["result"][key][:2], rel=1e-3)
    other = descent.run(replace(case, epochs=case.every, seed=77), Checkpoint(tmp_path / "d"))
    assert other["loss"] != pytest.approx(entry["result"]["loss"][:2], rel=1e-3)


@pytest.mark.parametrize("profile", [s[1] for s in SHIPPED if s[0] == "nguyen2022-fig4.1-2"])
def test_a_path_comes_out_again(profile: str, tmp_path: Path) -> None:
    _, results = results_of("nguyen2022-fig4.1-2", profile)
    # Where the cell is chaotic, rounding decides; and twelve images make the plane.
    entry = drawn(results, lambda r: r["case"]["std2"] == 0.01)
    case = replace(cell.CellPath(**entry["case"]), n=cell.DRAWN)
    again = cell.follow(case, Checkpoint(tmp_path / "c"))
    assert again["ratio"] == pytest.approx(entry["result"]["ratio"], rel=1e-2)
    assert again["explained"] == pytest.approx(entry["result"]["explained"], rel=1e-2)
    other = cell.follow(replace(case, seed=77), Checkpoint(tmp_path / "c"))
    assert other["ratio"] != pytest.approx(entry["result"]["ratio"], rel=1e-2)


def of_first_epoch(case: cell.CellTraining, at: Path) -> dict[str, Any]:
    """Return what a training keeps until its first epoch is judged, with its own schedule."""
    for _ in range(2):  # a budget that is over ends a run at its next checkpoint: an epoch judged
        with pytest.raises(OutOfTime):
            cell.train(case, Checkpoint(at, until=0.0))
    return Checkpoint(at).load(partial(torch.load, weights_only=True))["kept"]


@pytest.mark.parametrize("profile", [s[1] for s in SHIPPED if s[0] == "nguyen2022-fig4.3"])
def test_the_first_epoch_of_a_cell_in_training_comes_out_again(
    profile: str, tmp_path: Path
) -> None:
    _, results = results_of("nguyen2022-fig4.3", profile)
    entry = drawn(results, lambda r: True)
    case, then = cell.CellTraining(**entry["case"]), entry["result"]
    again = of_first_epoch(case, tmp_path / "c")
    # Single precision: other processors round otherwise. Before the first step that is nothing.
    # After it, between two instruction sets: losses 4 %, steps 13 %, the separation 16 % apart.
    assert again["loss"][0] == pytest.approx(then["loss"][0], rel=1e-2)
    assert again["accuracy"][0] == pytest.approx(then["accuracy"][0], abs=0.02)
    assert again["loss"][1] == pytest.approx(then["loss"][1], rel=0.1)
    assert again["accuracy"][1] == pytest.approx(then["accuracy"][1], abs=0.25)
    for now, old, close in zip(again["looks"], then["looks"][:2], (1e-2, 0.3), strict=True):
        assert (now["epoch"], now["classes"]) == (old["epoch"], old["classes"])
        for key in ("steps", "ratio", "separation"):
            assert now[key] == pytest.approx(old[key], rel=close)
    # An epoch that taught nothing would be noticed: the path has changed by more than that.
    assert then["looks"][0]["ratio"] < 0.6 * then["looks"][1]["ratio"]
    if profile == "paper":  # the small run is enough of a control
        return
    other = of_first_epoch(replace(case, seed=77), tmp_path / "d")
    assert other["loss"] != pytest.approx(then["loss"][:2], rel=1e-2)
    assert other["looks"][0]["ratio"] != pytest.approx(then["looks"][0]["ratio"], rel=1e-2)


@pytest.mark.parametrize("group", list(opteq_tables.GROUPS))
def test_the_first_epoch_of_a_table_comes_out_again(group: str) -> None:
    _, results = results_of("opteq-tables", "book")
    entry = drawn(results, lambda r: r["group"] == group)
    case, then = opteq_tables.restore(group, entry["case"]), entry["result"]["loss"]
    # A scene keeps the loss of every update, a classifier that of every epoch.
    few = 4 if isinstance(case, Scene) else 1
    short = {"updates": few} if isinstance(case, Scene) else {"epochs": few}
    again = opteq_tables.run(replace(case, **short))
    close = 1e-6 if getattr(case, "double", False) else 1e-2
    assert list(again.loss) == pytest.approx(then[:few], rel=close)
    other = opteq_tables.run(replace(case, seed=77, **short))
    assert list(other.loss) != pytest.approx(then[:few], rel=close)


CHEAP = {
    "kernel-width": ("m", kernels.distance, kernels.KernelRun),
    "bound-n": ("n", kernels.bound, kernels.BoundRun),
}


@pytest.mark.parametrize(("name", "profile"), [s for s in SHIPPED if s[0] in CHEAP])
def test_a_kernel_and_a_bound_come_out_again(name: str, profile: str, tmp_path: Path) -> None:
    size, run, make = CHEAP[name]
    _, results = results_of(name, profile)
    least = min(r["case"][size] for r in results.runs)
    entry = drawn(results, lambda r: r["case"][size] == least)
    again = run(make(**entry["case"]), Checkpoint(tmp_path / "c"))
    assert again == pytest.approx(entry["result"], rel=1e-3)
    other = run(make(**(entry["case"] | {"seed": 77})), Checkpoint(tmp_path / "d"))
    assert other != pytest.approx(entry["result"], rel=1e-3)


# --- what a declaration rests on ------------------------------------------------------------------


def of_edge(case: DescentRun) -> float:
    return (case.step / case.m if case.rule == "1/m" else case.step) / edge(case)


def test_the_step_stays_below_its_edge() -> None:
    for one in (widths.GAO2022, widths.GAO2023, widths.LING2023):
        assert max(of_edge(case) for _, case in one.cases["book"]()) < 1
    # at the published size, the set with the largest eigenvalue
    (case,) = (c for g, c in widths.gao2022_cases((500,), 1000, 1, (0,)) if g == "svhn01")
    assert 0.5 < of_edge(case) <= 0.8


def test_an_interrupted_run_is_that_of_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descent, "PART", 10)
    case = DescentRun("mnist01", m=20, n=30, step=0.02, rule="fixed", epochs=35, every=5)
    whole = descent.run(case, Checkpoint(tmp_path / "a"))
    assert whole["epochs"] == list(range(0, 36, 5))
    assert whole["loss"][-1] < whole["loss"][0]
    stops = 0
    while True:
        try:
            again = descent.run(case, Checkpoint(tmp_path / "b", until=0.0))
            break
        except OutOfTime:
            stops += 1
    assert stops == 3
    assert again == whole


def test_a_cell_in_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    case = cell.CellTraining(0, n=60, pool=4, channels=4, inner=4, epochs=2, batch=30, looks=(0, 2))
    whole = cell.train(case, Checkpoint(tmp_path / "a"))
    for _ in range(2):
        with pytest.raises(OutOfTime):
            cell.train(case, Checkpoint(tmp_path / "b", until=0.0))
    assert cell.train(case, Checkpoint(tmp_path / "b")) == whole
    assert [one["epoch"] for one in whole["looks"]] == [0, 2]


def test_turning_counts_circles() -> None:
    t = torch.linspace(0, 4 * torch.pi, 60, dtype=torch.float64)
    spiral = torch.stack([t.cos(), t.sin()], dim=1) * (1 - t / t[-1])[:, None]
    assert cells._turning(spiral.numpy()) == pytest.approx(4 * torch.pi, rel=0.1)
    straight = torch.stack([t, 2 * t], dim=1)
    assert cells._turning(straight.numpy()) == pytest.approx(0.0, abs=1e-9)


def test_a_thinned_path_stays_near_the_whole_one() -> None:
    t = np.linspace(0, 4 * np.pi, 400)
    spiral = np.stack([t * np.cos(t), t * np.sin(t)], axis=1)
    few = cells.thinned(spiral, 0.3)
    assert len(few) < 300
    assert (few[[0, -1]] == spiral[[0, -1]]).all()
    apart = np.linalg.norm(spiral[:, None] - few, axis=2).min(axis=1)
    assert apart.max() <= 0.3
    assert len(cells.thinned(np.zeros((5, 2)), 0.3)) == 2


def test_a_slope_is_that_of_the_power() -> None:
    assert ours.slope({m: 3.0 * m**-0.5 for m in (10, 20, 80)}) == pytest.approx(-0.5)


@pytest.mark.parametrize("ends", [(0.3, 0.66), (0.05, 1.0), (0.01, 1.0), (1e-6, 1.0), (2.0, 2.4)])
def test_a_short_logarithmic_axis_has_few_labels(ends: tuple[float, float]) -> None:
    _, ((ax,),) = panels(1, 1, 1.75)
    ax.semilogy([0, 1], ends)
    plain_log(ax.yaxis)
    low, high = ax.get_ylim()
    ticks = [t for t in ax.yaxis.get_majorticklocs() if low <= t <= high]
    labels = ax.yaxis.get_major_formatter().format_ticks(ticks)
    assert 2 <= len(ticks) <= 7
    assert len(set(labels)) == len(labels)
