"""Results of earlier files: compared, and taken over where the code still gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_cases import Tiny, noted
from tiny_experiment import COMMAND, TINY, go, jobs

from deqbook.experiments.earlier import CLOSE, Earlier, differences, gap
from deqbook.experiments.engine import Outcome, execute
from deqbook.experiments.receipts import ReceiptError, Results, Taken, read, write
from deqbook.experiments.worker import Checkpoint

FEW = jobs()[:3]
"""x = 1, 2, 3; the cheapest is 3."""


def began() -> list[int]:
    return [int(row.split()[1]) for row in noted("begin")]


def older(out: Path, *, change: Mapping[int, float] | None = None, **receipt: Any) -> Path:
    """Write a file of three cases by other code; change some of its sums."""
    file = out.with_name("old.json")
    found = execute(TINY, FEW, file, COMMAND).results
    (out.parent / "log").unlink()
    runs = [json.loads(json.dumps(r)) for r in found.runs]
    for r in runs:
        r["result"]["sum"] += (change or {}).get(r["case"]["x"], 0.0)
    told = {"command": COMMAND, "versions": found.receipt.versions} | receipt
    made_by = replace(found.receipt.made_by, code="0" * 64, data=told.pop("data", {}))
    write(file, told["command"], told["versions"], runs, made_by=made_by, cost=found.cost)
    return file


def take(out: Path, file: Path, **options: Any) -> Outcome:
    return go(out, earlier=Earlier.of(file), **options)


def by_x(results: Results) -> dict[int, float]:
    return {r["case"]["x"]: r["result"]["sum"] for r in results.runs}


def test_cases_are_taken_and_the_cheapest_runs_again(out: Path) -> None:
    said: list[str] = []
    file = older(out)
    found = read(file)
    cost = replace(found.cost, hardware="an abacus")
    write(
        file, COMMAND, found.receipt.versions, found.runs, made_by=found.receipt.made_by, cost=cost
    )
    outcome = take(out, file, said=said.append)
    assert (outcome.ran, outcome.left, outcome.failures) == (4, 0, ())
    assert began()[0] == 3
    assert sorted(began()) == [3, 4, 5, 6]
    assert "3 cases of 6 are in" in said[0]
    assert "the cheapest runs again" in said[0]
    assert said[-1].startswith("4/4 ")
    found = read(out)
    whole = go(out.with_name("whole.json")).results
    assert found.runs == whole.runs
    assert found.receipt.made_by.code == whole.receipt.made_by.code
    assert found.receipt.made_by.taken == (Taken(read(file).receipt.sha256, "0" * 64, (0, 1)),)
    assert "taken     2 runs of" in str(found.receipt)
    assert len(found.cost.seconds) == 6
    assert found.cost.hardware.endswith("; what was taken: an abacus")
    assert whole.cost.hardware == found.cost.hardware.partition(";")[0]
    assert not out.with_name("r.json.cases").exists()


def test_who_made_a_run_is_bound_by_the_hash(out: Path) -> None:
    take(out, older(out))
    text = out.read_text()
    for old, new in (('"code":"0000', '"code":"1000'), ('"runs":[0,1]', '"runs":[0,2]')):
        assert old in text
        out.write_text(text.replace(old, new, 1))
        with pytest.raises(ReceiptError, match="does not match its receipt"):
            read(out)


def test_what_does_not_come_out_again_is_not_taken(out: Path) -> None:
    file = older(out, change={3: 1e-3})
    with pytest.raises(
        ReceiptError, match=r"does not come out again: a number differs by 0\.00011"
    ):
        take(out, file)
    assert began() == [3]
    assert not out.exists()
    assert go(out).ran == 5  # without --take the case that ran again counts, and the others run
    assert read(out).receipt.made_by.taken == ()


def test_rounding_is_no_difference(out: Path) -> None:
    file = older(out, change={1: 1e-9, 3: 1e-6})
    found = by_x(take(out, file).results)
    true = by_x(go(out.with_name("whole.json")).results)
    assert found[3] == true[3]  # the new number stands
    assert found[1] == true[1] + 1e-9  # this one was taken as it is
    assert 1e-6 / true[3] < CLOSE


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ({"command": "deqbook reproduce other"}, "its command is deqbook reproduce other"),
        ({"versions": {"torch": "1"}}, r"its versions is \{'torch': '1'\}"),
        ({"data": {"mnist01": "d"}}, r"its data is \{'mnist01': 'd'\}, here it is \{\}"),
    ],
)
def test_files_of_something_else_are_refused(out: Path, told: dict[str, Any], what: str) -> None:
    file = older(out, **told)
    with pytest.raises(ReceiptError, match=what):
        take(out, file)
    assert began() == []


def test_files_without_these_cases_or_without_a_maker_are_refused(out: Path) -> None:
    file = older(out)
    others = [("odd", Tiny(x, steps=2)) for x in (21, 23)]
    with pytest.raises(ReceiptError, match=r"old\.json has none of these cases"):
        execute(TINY, others, out, COMMAND, earlier=Earlier.of(file))
    found = read(file)
    write(file, COMMAND, found.receipt.versions, found.runs)
    with pytest.raises(ReceiptError, match="does not say what code made it"):
        Earlier.of(file)


def test_an_interrupted_run_takes_again_and_repeats_nothing(out: Path) -> None:
    def late(case: Tiny, checkpoint: Checkpoint) -> object:
        return TINY.run(case, replace(checkpoint, until=0.0) if case.x == 4 else checkpoint)

    earlier = Earlier.of(older(out))
    outcome = execute(replace(TINY, run=late), jobs(), out, COMMAND, earlier=earlier)
    assert (outcome.left, outcome.ran) == (1, 3)
    assert sorted(by_x(read(out))) == [1, 2, 3, 5, 6]
    assert read(out).receipt.made_by.taken[0].runs == (0, 1)
    outcome = go(out, earlier=earlier)
    assert (outcome.left, outcome.ran) == (0, 1)
    assert sorted(began()) == [3, 4, 4, 5, 6]
    assert read(out).runs == go(out.with_name("whole.json")).results.runs


def test_without_time_nothing_is_taken(out: Path) -> None:
    outcome = take(out, older(out), budget=0.0)
    assert (outcome.results, outcome.left, outcome.ran) == (None, 6, 0)
    assert began() == []


def test_a_case_that_raises_when_it_runs_again_stops_all(out: Path) -> None:
    file = older(out)
    (out.parent / "raise-3").touch()
    outcome = take(out, file)
    assert [f.case["x"] for f in outcome.failures] == [3]
    assert outcome.results is None
    assert began() == [3]


def test_what_was_taken_twice_keeps_its_maker(out: Path) -> None:
    first = older(out)
    second = out.with_name("second.json")
    execute(TINY, jobs()[:5], second, COMMAND, earlier=Earlier.of(first))
    third = go(out, earlier=Earlier.of(second)).results
    of = {taken.code: taken for taken in third.receipt.made_by.taken}
    assert of["0" * 64] == Taken(read(first).receipt.sha256, "0" * 64, (0, 1))
    own = read(second).receipt
    assert of[own.made_by.code] == Taken(own.sha256, own.made_by.code, (3, 4))
    assert len(of) == 2


def test_differences_are_measured(out: Path) -> None:
    before = go(out).results
    changed = [json.loads(json.dumps(r)) for r in before.runs]
    changed[0]["result"]["sum"] *= 1.5
    after = replace(before, runs=tuple(changed))
    assert differences(after, before)[1:] == ["  odd: 0.33", "  even: 0"]
    assert "  even: 0" in differences(before, before)
    assert gap({"a": [1.0]}, {"a": [1.0, 2.0]}) == float("inf")
