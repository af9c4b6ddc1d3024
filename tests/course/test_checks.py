"""What a student sees before handing in, in every assignment: checks that help and tell nothing."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import subprocess
import sys
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from course.class_of import ASSIGNMENTS, ROOT, Wrong, all_wrong, solved

from deqbook.course.checks import Checker, Fault, Place, array
from deqbook.course.grading.assignment import found, identity, load, names
from deqbook.course.instance import NOBODY

SHORT = [name.partition("_")[0] for name in names(ASSIGNMENTS)]
STUDENT = "student-01"
each = pytest.mark.parametrize("short", SHORT)


def module(short: str) -> ModuleType:
    """Return what students import."""
    return importlib.import_module(f"deqbook.course.{short}")


@cache
def run(short: str, changed: tuple[tuple[str, str], ...] = ()) -> tuple[str, dict[str, Any]]:
    """Run a solution, some of its cells replaced; return what the checks say, and the names."""
    changes, said, space = dict(changed), io.StringIO(), {}
    for cell in solved(load(ASSIGNMENTS, short), STUDENT).cells:
        if cell.cell_type == "code":
            with contextlib.redirect_stdout(said), contextlib.suppress(Exception):
                exec(changes.get(identity(cell), cell.source), space)
    return " ".join(said.getvalue().split()), space


def told(short: str, wrong: Wrong) -> str:
    """Return what the checks say of a wrong answer."""
    return run(short, tuple(sorted(wrong.cells.items())))[0]


@each
def test_the_checks_pass_a_solution(short: str) -> None:
    said, _ = run(short)
    assert "✗" not in said
    assert said.count("✓") == len(module(short).check.checks)


@each
def test_every_check_belongs_to_a_test_and_to_a_verifier(short: str) -> None:
    assignment = load(ASSIGNMENTS, short)
    asked = [
        task
        for cell in assignment.master.cells
        if identity(cell) in assignment.tests
        for task in re.findall(r'^check\("([\w-]+)"', cell.source, re.MULTILINE)
    ]
    assert sorted(asked) == sorted(module(short).check.checks)


@each
def test_a_released_notebook_says_what_is_not_written(short: str) -> None:
    """Checks of an untouched notebook raise a NameError at worst, and never pass."""
    stubs = tuple(
        (identity(cell), "pass")
        for cell in load(ASSIGNMENTS, short).master.cells
        if found(cell).get("solution")
    )
    assert "✓" not in run(short, stubs)[0]


@each
def test_a_check_points_to_the_book(short: str) -> None:
    """Not every fault has a section of its own, but some of each assignment do."""
    read = [said for one in all_wrong(short) if "Read “" in (said := told(short, one))]
    assert len(read) >= 2
    assert all("chapters/" in said for said in read)


@each
def test_checks_see_something(short: str) -> None:
    seen = [one for one in all_wrong(short) if "✗" in told(short, one)]
    assert len(seen) >= 3
    assert len(seen) < len(all_wrong(short))  # else they would know the answers


@each
def test_every_place_that_a_check_names_is_in_the_book(short: str) -> None:
    places = [value for value in vars(module(short)).values() if isinstance(value, Place)]
    assert len(places) >= 2
    for place in places:
        text = (ROOT / f"{place.page}.md").read_text(encoding="utf-8")
        assert f"({place.label})=" in text
        assert re.search(rf"^#+ {re.escape(place.title)}$", text, re.MULTILINE)


@each
def test_a_check_never_says_the_answer(short: str) -> None:
    """No number of the solution, to four digits, stands in what checks say of wrong answers."""
    _, space = run(short)
    answers = {
        f"{abs(value):.4g}"
        for name, value in space.items()
        if isinstance(value, float)
        and not name.startswith("_")
        and f"{value:.4g}" != f"{value:.2g}"
    }
    for wrong in all_wrong(short):
        said = set(re.findall(r"\d+\.\d+(?:e[-+]\d+)?", told(short, wrong)))
        own = run(short, tuple(sorted(wrong.cells.items())))[1]
        kept = {f"{abs(v):.4g}" for v in own.values() if isinstance(v, float)}
        assert not (said & answers) - kept


@each
def test_a_check_survives_any_answer(short: str, capsys: pytest.CaptureFixture[str]) -> None:
    mine = module(short).instance(STUDENT)
    check = module(short).check
    strange = [None, 3, "text", [], lambda *a: 1 / 0, np.full(3, np.nan), (1, 2)]
    for task in check.checks:
        for answer in strange:
            check(task, answer, mine)
    check("nonsense", 1, mine)
    said = capsys.readouterr().out
    assert "✓" not in said
    assert "There is no task 'nonsense'" in said


@each
def test_the_id_has_to_be_written(short: str) -> None:
    with pytest.raises(ValueError, match="write your own id"):
        module(short).instance(NOBODY)


@each
def test_no_two_students_have_the_same_numbers(short: str) -> None:
    drawn = {
        repr([np.asarray(v).tolist() for v in vars(module(short).instance(who, salt)).values()][1:])
        for who in ("student-01", "student-02", "zoë b")
        for salt in ("", "2026")
    }
    assert len(drawn) == 6


@each
def test_students_need_no_grading_tools(short: str) -> None:
    code = f"import sys, deqbook.course.{short}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"nbgrader", "nbformat", "jupytext", "zmq", "matplotlib"}


def test_a_fault_names_the_shape_seen() -> None:
    with pytest.raises(Fault, match=r"should have the shape \(2,\), and has \(3,\)"):
        array([1, 2, 3], (2,), "q")


def test_a_check_says_that_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    def empty(answer: object, mine: object) -> None:
        raise NotImplementedError

    Checker({"one": empty})("one", 1, None)
    assert "not written yet" in capsys.readouterr().out
