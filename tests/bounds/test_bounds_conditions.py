"""Conditions of theorems: what holds, by how much, and how it is told."""

from __future__ import annotations

import math
import re

import pytest

from deqbook.bounds.conditions import Condition, Conditions

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("have", "need", "holds", "ratio"),
    [
        (2.0, 1.0, True, 0.5),
        (1.0, 1.0, True, 1.0),
        (1.0, 4.0, False, 4.0),
        (0.0, 1.0, False, INF),
        (-1.0, 1.0, False, INF),
        (-1.0, -2.0, True, 0.0),
        (0.0, 0.0, True, 0.0),
        (-2.0, -1.0, False, INF),
        (-1.0, 0.0, False, INF),
        (INF, 1.0, True, 0.0),
        (1.0, INF, False, INF),
        (INF, INF, True, 1.0),
        (NAN, 1.0, False, INF),
        (1.0, NAN, False, INF),
        (NAN, -1.0, False, INF),
        (NAN, NAN, False, INF),
    ],
)
def test_a_condition_and_its_ratio(have: float, need: float, holds: bool, ratio: float) -> None:
    c = Condition("width", "m ≥ n", have, need)
    assert c.holds is holds
    assert c.ratio == ratio
    assert (c.ratio <= 1) is holds


def test_a_condition_in_words() -> None:
    fails = Condition("width", "m ≥ n³", 100.0, 800.0)
    assert str(fails) == "width: 100 < 800 (need/have 8)"
    assert str(Condition("gap", "λ > 0", 4.0, 2.0)) == "gap: 4 ≥ 2 (need/have 0.5)"


def conditions(*pairs: tuple[str, float, float], **more: float) -> Conditions:
    rows = tuple(Condition(name, f"{name} > x & y", have, need) for name, have, need in pairs)
    return Conditions("gao2022, Theorem <3.1>", rows, 0.25, **more)


def test_all_conditions_are_needed_and_the_worst_is_found() -> None:
    good = conditions(("a", 2.0, 1.0), ("b", 4.0, 3.0), ("c", 9.0, 1.0))
    assert good.holds
    assert good.worst.name == "b"
    bad = conditions(("a", 2.0, 1.0), ("b", 1.0, 3.0), ("c", 1.0, 2.0))
    assert not bad.holds
    assert bad.worst.name == "b"
    assert bad["c"].need == 2.0
    with pytest.raises(KeyError, match=r"no condition 'd'; there are \['a', 'b', 'c'\]"):
        bad["d"]


@pytest.mark.parametrize("side", [(NAN, 1.0), (1.0, NAN)])
def test_a_nan_is_the_worst_wherever_it_stands(side: tuple[float, float]) -> None:
    for rows in ([("x", *side), ("b", 1.0, 3.0)], [("b", 1.0, 3.0), ("x", *side)]):
        found = conditions(*rows)
        assert not found.holds
        assert found.worst.name == "x"


def test_the_report_names_source_rate_and_step() -> None:
    flow = conditions(("a", 2.0, 1.0))
    assert repr(flow) == str(flow)
    first, row = str(flow).split("\n")
    assert first == "gao2022, Theorem <3.1>: all conditions hold; promised rate 0.25"
    assert row == "  a: 2 ≥ 1 (need/have 0.5)"
    descent = conditions(("a", 2.0, 4.0), step=0.125)
    assert str(descent).startswith(
        "gao2022, Theorem <3.1>: not satisfied; promised rate 0.25, step at most 0.125\n"
    )


def test_the_table_is_escaped_and_says_what_fails() -> None:
    page = conditions(("a", 2.0, 4.0), ("b", 3.0, 1.0), step=0.125)._repr_html_()
    page = re.sub(r"</?i>| style=.*?(?=>)", "", page).replace("\u00a0", " ")
    assert "gao2022, Theorem &lt;3.1&gt;" in page
    assert "<td>a &gt; x &amp; y</td><td>2</td><td>4</td><td>2</td><td>✗ fails</td>" in page
    assert "<td>3</td><td>1</td><td>0.3333</td><td>✓ holds</td>" in page
    assert "promised rate 0.25, step at most 0.125</p>" in page
    assert "step" not in conditions(("a", 2.0, 4.0))._repr_html_()


def test_constants_are_kept() -> None:
    assert conditions(("a", 1.0, 1.0), constants={"lambda_0": 0.5}).constants["lambda_0"] == 0.5
