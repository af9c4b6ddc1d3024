"""What the ledger tells of teeth: complete, good enough, of this code, the same when repeated."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from deqbook.claims.registry import load_chapters
from deqbook.teeth import survey

FILE = Path(__file__).parents[2] / "book" / "teeth.json"
AGAIN = "deqbook teeth --sample {sample} --receipt book/teeth.json plants them again"
OVER_THE_BOOK, EACH = 0.9, 0.75  # of the bugs in what is computed
OLD = 0.25  # so large a share of the claims may have changed since


@pytest.fixture(scope="module")
def receipt() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return kept


def noticed(row: dict[str, Any]) -> float:
    caught, planted, _ = row["computation"]
    return caught / planted if planted else 1.0


def test_every_claim_has_its_counts(receipt: dict[str, Any]) -> None:
    claims = {c.id for c in load_chapters().values() if c.body is not None}
    assert set(receipt["claims"]) == claims, AGAIN.format(**receipt)


def test_most_bugs_in_what_is_computed_are_noticed(receipt: dict[str, Any]) -> None:
    caught, planted, _ = survey.totals(receipt["claims"].values())["computation"]
    assert caught >= OVER_THE_BOOK * planted
    weak = {i: row["computation"] for i, row in receipt["claims"].items() if noticed(row) < EACH}
    assert not weak


def test_whoever_survives_has_a_reason(receipt: dict[str, Any]) -> None:
    bare = [
        f"{claim}: {key}"
        for claim, row in receipt["claims"].items()
        for _, key, reason in row["survivors"]
        if not reason
    ]
    assert not bare


def test_reasons_and_verdicts_are_those_that_are_written_down(receipt: dict[str, Any]) -> None:
    moved = [i for i, row in receipt["claims"].items() if survey.reread(i, row) != row]
    assert not moved, "deqbook teeth --reasons --receipt book/teeth.json enters them"


def test_the_counts_are_of_this_code(receipt: dict[str, Any]) -> None:
    old = [claim for claim, row in receipt["claims"].items() if survey.stale(row)]
    share = len(old) / len(receipt["claims"])
    assert share <= OLD, f"{len(old)} claims have changed since; {AGAIN.format(**receipt)}"


def test_a_claim_drawn_at_random_comes_out_the_same(receipt: dict[str, Any]) -> None:
    quick = [
        claim
        for claim, row in sorted(receipt["claims"].items())
        if 0.5 < row["seconds"] < 4 and row["computation"][1] and not survey.stale(row)
    ]
    (drawn,) = random.Random(receipt["sample"]).sample(quick, 1)
    (report,) = survey.survey(
        [drawn],
        sample=receipt["sample"],
        each=(receipt["each"]["computation"], receipt["each"]["statement"]),
        seed=receipt["seed"],
    )
    assert list(report.count("computation")) == receipt["claims"][drawn]["computation"], drawn
