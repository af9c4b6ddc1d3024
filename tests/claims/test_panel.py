"""The panel of a claim: what its line says, and what it shows when it is opened."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import ledger
import pytest
from bs4 import BeautifulSoup, Tag

from deqbook.claims.panel import VERDICTS, gauge, panel, verdict
from deqbook.claims.registry import (
    STANDINGS,
    ControlOutcome,
    Evidence,
    Measurement,
    at_least,
    at_most,
    equal,
    given,
    headline,
    within,
)

KEPT, LOST = at_most("‖e(t)‖² ÷ bound", 0.25, 1.0), at_most("‖e(t)‖² ÷ bound", 3.282e15, 1.0)
HOLDS = Evidence(
    "gao2022.lemma2.2",
    "One σ_w² for <all>",
    "Gao et al. 2022, Lemma 2.2",
    0,
    (given("γ̃‖W‖", 0.5, "≤", 1.0), KEPT, within("two routes", 1e-12, 1e-9)),
    (ControlOutcome("γ is 2", (LOST,)),),
    0.1,
)


def opened(e: Evidence) -> Tag:
    found = BeautifulSoup(panel(e), "html.parser").details
    assert found is not None
    return found


def line(e: Evidence) -> str:
    told = opened(e).summary
    assert told is not None
    return " ".join(told.get_text().replace("\N{WORD JOINER}", "").split())


def test_the_line_tells_verdict_title_headline_slack_and_controls() -> None:
    assert line(HOLDS) == "✓ holds One σw2 for <all> · 0.25 ≤ 1 · slack 4 · controls broken 1/1"
    assert not opened(HOLDS).has_attr("open")


def test_the_line_follows_status_and_standing() -> None:
    assert line(replace(HOLDS, standing="quoted")).startswith("✓ quoted, not proved here ")
    assert line(replace(HOLDS, controls=())).startswith("✗ control holds ")
    failed = replace(HOLDS, measurements=(LOST,), standing="partly")
    assert line(failed).startswith("✗ fails ")
    assert "3.3 × 10¹⁵ ≤ 1" in line(failed)
    unchecked = replace(
        HOLDS, measurements=(), controls=(), standing="not checkable", reason="why not"
    )
    assert line(unchecked) == "not checkable One σw2 for <all>"
    assert opened(unchecked).find("table") is None
    assert "why not" in panel(unchecked)


def test_the_edge_shows_that_less_than_the_statement_was_found() -> None:
    assert "deq-holds" in opened(HOLDS)["class"]
    assert "deq-partly" in opened(replace(HOLDS, standing="partly"))["class"]
    assert "deq-not-reproduced" in opened(replace(HOLDS, standing="not reproduced"))["class"]
    lost = replace(HOLDS, measurements=(LOST,), standing="partly")
    assert "deq-fails" in opened(lost)["class"]


def test_every_standing_has_its_words_and_the_ledger_says_the_same() -> None:
    assert set(VERDICTS) == {*STANDINGS, "fails", "unbroken"}
    assert ledger.STATUS == VERDICTS
    assert verdict("uncheckable", "not checkable") == "not checkable"


def test_the_worst_headline_is_shown() -> None:
    loose, sharp = headline(at_most("a", 0.001, 1.0)), headline(at_least("b", 1.25, 1.0))
    shown = replace(HOLDS, measurements=(KEPT, loose, sharp))
    assert "· 1.25 ≥ 1 · slack 1.25 ·" in line(shown)


def test_where_no_bound_is_the_theorems_no_slack_is_told() -> None:
    assert "slack" not in line(replace(HOLDS, measurements=(equal("z", 0.7391, 0.739, 1e-3),)))


def test_the_table_has_names_over_every_column_and_numbers_that_do_not_break() -> None:
    table = opened(HOLDS).table
    assert table is not None
    assert all(cell.get_text(strip=True) for cell in table.select("thead th"))
    rows = table.select("tbody tr:has(td)")
    assert len(rows) == 4
    for row in rows:
        cells = row.select("td")
        assert len(cells) == len(table.select("thead th"))
        for cell in cells[1:]:
            assert "nowrap" in str(cell["style"])
    assert rows[0].get_text().startswith("hypothesis: γ̃‖W‖")
    group = table.select_one("tbody th[scope=rowgroup]")
    assert group is not None
    assert group.get_text() == "control: γ is 2; it breaks, as it must"


def test_an_error_is_shown_as_it_is() -> None:
    broken = replace(HOLDS, measurements=(), error="Traceback\n  <x>")
    assert "<pre>Traceback\n  &lt;x&gt;</pre>" in panel(broken)


def mark(m: Measurement) -> tuple[str, float, str]:
    """Return the kind of mark that a gauge shows, where it stands, and what it says."""
    drawn = gauge(m)
    title = re.search("<title>(.*?)</title>", drawn)
    assert title
    if circle := re.search(r'circle cx="([\d.]+)"', drawn):
        return "disc", float(circle[1]), title[1]
    if arrow := re.search(r'd="M([\d.]+) 8.0l(-?7) -5v10z"', drawn):
        return "arrow", float(arrow[1]), title[1]
    cross = re.search(r'd="M([\d.]+) 4.0l8 8', drawn)
    assert cross
    return "cross", float(cross[1]) + 4, title[1]


@pytest.mark.parametrize(
    ("m", "kind", "side", "words"),
    [
        (at_most("x", 0.1, 1.0), "disc", -1, "within the bound by a factor 10"),
        (at_most("x", 20.0, 1.0), "cross", 1, "outside the bound by a factor 20"),
        (at_least("x", 10.0, 1.0), "disc", 1, "within the bound by a factor 10"),
        (at_least("x", 0.1, 1.0), "cross", -1, "outside the bound by a factor 10"),
        (at_most("x", 1e-9, 1.0), "arrow", -1, "within the bound by a factor 10⁹"),
        (at_most("x", math.nan, 1.0), "arrow", 1, "outside the bound"),
        (at_most("x", 0.0, 1.0), "arrow", -1, "within the bound"),
        (within("x", 1e-8, 1e-6), "disc", -1, "within the tolerance by a factor 100"),
        (equal("x", 1.01, 1.0, 0.1), "disc", -1, "within the tolerance by a factor 10"),
    ],
)
def test_a_gauge_shows_the_side_by_its_place_and_its_mark(
    m: Measurement, kind: str, side: int, words: str
) -> None:
    found, place, told = mark(m)
    assert found == kind
    assert (place - 60) * side > 0
    assert told == words


def test_a_decade_is_a_third_of_the_half_gauge() -> None:
    assert mark(at_most("x", 0.01, 1.0))[1] == pytest.approx(60 - 52 * 2 / 3, abs=0.1)
    assert mark(at_most("x", 1.0, 1.0))[1] == pytest.approx(60)


def test_what_fails_by_rounding_does_not_stand_on_the_good_side() -> None:
    assert mark(at_most("x", 1 + 1e-12, 1.0))[1] > 60
