"""Assignments 3 and 4: every student's numbers pose the question, and the checks are of use."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from course.class_of import ASSIGNMENTS, ROOT, all_wrong, solved

from deqbook.course import a03, a04
from deqbook.course.checks import Place
from deqbook.course.grading.assignment import identity, load

STUDENTS = [f"student-{number:02d}" for number in range(40)]
MODULES = pytest.mark.parametrize("module", [a03, a04], ids=["a03", "a04"])
#: What each check is given, by the names of the notebook.
GIVEN = {
    "a03": {
        "descent": "descent",
        "kept": "kept",
        "drift": "(drift_order, drift, drift_between)",
        "rate": "(rate, rate_between)",
        "faster": "(eta_fast, beta_fast)",
    },
    "a04": {
        "dual": "dual",
        "limit": "limit_blocks",
        "own": "H_own",
        "finite": "finite_blocks",
        "twins": "(twin_power, twin_constant, twin_between)",
        "blind": "X_blind",
    },
}


def said(module: ModuleType, changes: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what all checks say to a solution with some cells replaced."""
    mine = module.instance("student-01")
    space: dict[str, Any] = {"np": np, "mine": mine}
    for cell in solved(load(ASSIGNMENTS, module.NAME), "student-01").cells:
        if cell.metadata.get("nbgrader", {}).get("solution") and cell.cell_type == "code":
            exec(changes.get(identity(cell), cell.source), space)
    for task, answer in GIVEN[module.NAME].items():
        module.check(task, eval(answer, space), mine)
    return capsys.readouterr().out


@MODULES
def test_checks_pass_a_solution(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(module, {}, capsys)
    assert told.count("✓") == len(module.check.checks)
    assert "✗" not in told


@pytest.mark.parametrize(
    ("module", "number", "says"),
    [
        (a03, 1, "twice as far"),
        (a03, 3, "0.24"),
        (a03, 7, "too wide"),
        (a04, 1, "the averages are ρ and 1"),
        (a04, 3, "block 'a' is 20"),
    ],
)
def test_checks_say_what_is_wrong(
    module: ModuleType, number: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in said(module, all_wrong(module.NAME)[number].cells, capsys)


@pytest.mark.parametrize(("module", "number"), [(a03, 0), (a04, 10)])
def test_some_mistakes_only_the_marking_sees(
    module: ModuleType, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A transpose: the checks do one unit by hand, where there is none."""
    assert "✗" not in said(module, all_wrong(module.NAME)[number].cells, capsys)


@MODULES
def test_a_check_survives_any_answer(
    module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = module.instance("student-01")
    for task in module.check.checks:
        for answer in (None, 3, "text", [], lambda *a: 1 / 0, np.full(3, np.nan), (1, 2, 3)):
            module.check(task, answer, mine)
    assert "✓" not in capsys.readouterr().out


@MODULES
def test_every_place_that_a_check_names_is_in_the_book(module: ModuleType) -> None:
    places = [value for value in vars(module).values() if isinstance(value, Place)]
    assert len(places) >= 4
    for place in places:
        text = (ROOT / f"{place.page}.md").read_text(encoding="utf-8")
        assert f"({place.label})=" in text
        assert re.search(rf"^#+ {re.escape(place.title)}$", text, re.MULTILINE)


def test_every_linear_network_poses_the_question() -> None:
    """The kernel grows, descent comes to rest below the edge, and no other number is the rate."""
    verify = load(ASSIGNMENTS, "a03").module
    for mine in (a03.instance(student) for student in STUDENTS):
        first = verify.jacobian(verify.packed(mine.W, mine.U, mine.a), mine.X, 4)
        last = verify.jacobian(verify.trained(mine)[0], mine.X, 4)
        before, after = (np.linalg.eigvalsh(J @ J.T) for J in (first, last))
        assert before[0] > 0.05
        assert mine.eta * after[-1] < 1.7
        truth = verify.true_rate(mine)
        assert 0.4 < truth < 0.98
        assert abs((1 - mine.eta * before[0]) ** 2 - truth) > 0.012
        assert np.sqrt(truth) - truth > 0.01
        values = np.linalg.svd(mine.Phi, compute_uv=False) ** 2
        assert 25 < values[0] / values[-1] < 2000


def test_the_leaky_formulas_agree_by_two_ways() -> None:
    verify = load(ASSIGNMENTS, "a04").module
    for mine in (a04.instance(student) for student in STUDENTS):
        theta = 1e-4
        pair = np.sqrt(5) * np.array([np.eye(5)[0], np.cos(theta) * np.eye(5)[0]])
        pair[1, 1] = np.sqrt(5) * np.sin(theta)
        H = verify.own_limit(mine, pair)
        assert (H[0, 0] - H[0, 1]) / theta == pytest.approx(verify.true_constant(mine), rel=5e-3)
        assert 54 < a04.nearest(np.array([mine.first, mine.second])) < 81
