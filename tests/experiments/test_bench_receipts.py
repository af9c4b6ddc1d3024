"""The receipts of the benchmarks and what the page makes of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deqbook.experiments import benchmarks
from deqbook.experiments.receipts import ReceiptError, write

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The scripts as modules; torchdeq and jax need not be there."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    found = {}
    for name in ("shared", "growth", "places", "training_step", "solvers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        found[name] = __import__(name)
    return found


@pytest.mark.parametrize("name", ["training_step", "solvers", "growth", "places"])
def test_a_receipt_is_whole_and_small(name: str) -> None:
    found = benchmarks.results(name)
    where = found.select("circumstances")
    assert all({"hardware", "threads", "clock", "load"} <= set(w["result"]) for w in where)
    assert {"python", "torch"} <= set(found.receipt.versions)
    assert ("torchdeq" in found.receipt.versions) or name == "places"  # which has no peer
    assert found.receipt.command.startswith(f"python benchmarks/{name}.py")
    assert (benchmarks.FOLDER / f"bench_{name}.json").stat().st_size < 100_000
    assert str(benchmarks.circumstances(name)).count("load") == len(where)


def row(group: str, name: str, middle: float, counts: bool = True) -> dict[str, Any]:
    result = {
        "ratio": [middle - 0.1, middle, middle + 0.1],
        "milliseconds": 10 * middle,
        "error": 1e-7 if counts else 1e-2,
        "counts": counts,
    }
    return {"group": group, "case": {"row": name}, "result": result}


def sweep(group: str, who: str, unit: str, *costs: float) -> dict[str, Any]:
    result = {"values": [1, 2], unit: list(costs), "slope": [0.9, 1.0, 1.1]}
    return {"group": group, "case": {"who": who, "what": "step"}, "result": result}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Receipts in which a peer wins one race, one point of a sweep and one of memory."""
    runs = [
        row(which, name, middle, counts)
        for which in benchmarks.RACES
        for name, middle, counts in (
            (benchmarks.CLOSED, 1.0, True),
            (benchmarks.WARM, 1.2, True),
            (benchmarks.PLAIN, 4.0, True),
            ("torchdeq quick", 0.7, False),
            ("torchdeq a", 2.4 if which == "full batch" else 0.9, True),
            ("torchdeq b", 3.0, True),
            ("optimistix", 3.5, True),
            ("unrolled", 2.0, True),
        )
    ]
    write(tmp_path / "bench_training_step.json", "c", {}, runs)
    grown = [
        sweep(f"time against {q}", who, "seconds", *costs)
        for q in benchmarks.QUANTITIES
        for who, costs in (
            ("deqbook Picard", (1.0, 2.0)),
            ("torchdeq Picard", (0.9, 1.5) if q == "m" else (2.0, 4.0)),
        )
    ]
    grown += [
        sweep(f"memory against {q}", who, "megabytes", *costs)
        for q in ("n", "m")
        for who, costs in (
            ("deqbook Picard", (10.0, 20.0)),
            ("torchdeq Picard", (5.0 if q == "n" else 11.0, 30.0)),
        )
    ]
    write(tmp_path / "bench_growth.json", "c", {}, grown)
    monkeypatch.setattr(benchmarks, "FOLDER", tmp_path)
    return tmp_path


def test_every_win_of_a_peer_is_listed(made: Path) -> None:
    wins = [tuple(line) for line in benchmarks.peers_ahead().rows]
    off = "torchdeq quick (gradient off by more than 1e-4)"
    assert wins == [
        ("training step, full batch, beside WarmStart", off, "0.58"),
        ("training step, mini-batches, beside WarmStart", off, "0.58"),
        ("training step, mini-batches, beside WarmStart", "torchdeq a", "0.75"),
        ("time of step, width m = 1, 2", "torchdeq Picard", "0.75\u00a0to\u00a00.90"),
        ("memory of step, samples n = 1", "torchdeq Picard", "0.50"),
    ]


def test_who_is_not_exact_is_never_the_fastest(made: Path) -> None:
    assert benchmarks.fastest("full batch", "torchdeq").name == "torchdeq a"
    with pytest.raises(KeyError, match="no row of 'nobody' in the race by full batch counts"):
        benchmarks.fastest("full batch", "nobody")
    assert "1e-02, does not count" in str(benchmarks.race_table("full batch"))


def test_a_touched_receipt_is_refused(made: Path) -> None:
    file = made / "bench_growth.json"
    file.write_text(file.read_text().replace("2.0", "1.0", 1))
    with pytest.raises(ReceiptError, match="does not match its receipt"):
        benchmarks.growth("time", "n")


def test_a_part_is_renewed_and_the_others_stay(
    scripts: dict[str, ModuleType], tmp_path: Path
) -> None:
    file, renew = tmp_path / "r.json", scripts["shared"].write_receipt
    for part, value in (("a", 1), ("b", 2), ("a", 3)):
        renew(file, "c", {"w": value}, [{"group": "g", "case": {}, "result": value}], part=part)
    runs = json.loads(file.read_text())["runs"]
    assert [(r["case"]["part"], r["group"]) for r in runs] == [
        ("b", "circumstances"),
        ("b", "g"),
        ("a", "circumstances"),
        ("a", "g"),
    ]
    assert [r["result"] for r in runs if r["group"] == "g"] == [2, 3]


def test_slopes_and_their_intervals(scripts: dict[str, ModuleType]) -> None:
    growth = scripts["growth"]
    assert growth.slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2.0)
    assert growth.slope([1, 10], [5, 5]) == pytest.approx(0.0)
    low, middle, high = growth.interval([0.9, 1.0, 1.1, 1.0])
    # Student's t with three degrees of freedom: 3.182 standard errors.
    assert (low, middle, high) == pytest.approx((0.8701, 1.0, 1.1299), abs=1e-3)


def test_what_is_paid_once_and_for_each_case(scripts: dict[str, ModuleType]) -> None:
    split = scripts["places"].start_and_each
    # 3 s to start and 0.1 s a case: alone, and two side by side
    assert split((20, 5.0), (220, 25.0), 1) == {"start": 3.0, "each": 0.1}
    assert split((20, 4.0), (220, 14.0), 2) == {"start": 3.0, "each": 0.1}


def test_every_place_runs_the_same_cases() -> None:
    found = benchmarks.places()
    assert len({row["cases"] for row in found.values()}) == 1
    table = benchmarks.places_table()
    assert [line[0] for line in table.rows] == list(found)
    assert table.rows[0][2] == "1.00"
    for row in found.values():  # nobody does two cases' work at a time
        assert row["work"] < 1.05 * row["slots"] * row["wall"]


def test_solvers_stand_beside_the_best(scripts: dict[str, ModuleType]) -> None:
    runs = {
        "deqbook A": [{"seconds": 1.0, "evaluations": 30}, {"seconds": 3.0, "evaluations": 30}],
        "deqbook B": [{"seconds": 4.0, "evaluations": 10}, {"seconds": 4.0, "evaluations": 20}],
        "deqbook C": [{"seconds": 0.1, "evaluations": None}, {"seconds": 1.0, "evaluations": 1}],
        "torchdeq": [{"seconds": 0.1, "evaluations": 1}],
    }
    (found,) = scripts["solvers"].beside_best({"p": runs}).values()
    assert found == {"deqbook A": (1.0, 2.0), "deqbook B": (2.0, 1.0)}
