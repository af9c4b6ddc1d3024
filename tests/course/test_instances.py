"""Every student's own numbers, and the checks that a student sees."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from course.class_of import ASSIGNMENTS, ROOT, all_wrong, solved

from deqbook.course import a01
from deqbook.course.checks import Checker, Fault, Place, array
from deqbook.course.grading.assignment import identity, load
from deqbook.course.instance import NOBODY, Draw, Instance, normalise

STUDENTS = [f"student-{number:02d}" for number in range(60)]


@pytest.mark.parametrize("spelling", ["ZOË B", " zoë  b ", unicodedata.normalize("NFD", "Zoë b")])
def test_all_spellings_of_an_id_are_one(spelling: str) -> None:
    assert normalise(spelling) == "zoë b"
    assert a01.instance(spelling).alpha == a01.instance("zoë b").alpha


def test_the_draws_are_the_same_everywhere() -> None:
    draw = Draw("a/b")
    assert [draw.integer(0, 99) for _ in range(4)] == [97, 60, 88, 44]
    assert np.array_equal(Draw("a/b").normal(3), [1.934, 0.269, 1.214])


def test_task_student_and_salt_each_matter() -> None:
    names = {
        Instance(assignment, student, salt).draw(task).name
        for assignment in ("a01", "a02")
        for student in ("x", "y")
        for salt in ("", "2026")
        for task in ("one", "two")
    }
    assert len(names) == 16


def test_no_two_students_have_the_same_numbers() -> None:
    drawn = [a01.instance(student) for student in STUDENTS]
    for one in ("W", "q", "P", "p", "V", "v", "C"):
        assert len({getattr(mine, one).tobytes() for mine in drawn}) == len(STUDENTS)
    salted = a01.instance("student-01", "2026")
    assert not np.array_equal(salted.W, a01.instance("student-01").W)


def test_every_students_numbers_pose_the_question() -> None:
    """A draw for which a task is trivial or impossible would be unfair."""
    verify = load(ASSIGNMENTS, "a01").module
    rates = []
    for mine in (a01.instance(student) for student in STUDENTS):
        symmetric = np.linalg.eigvalsh((mine.W + mine.W.T) / 2).max()
        assert symmetric <= 0.7 + 1e-3
        assert np.linalg.norm(mine.W, 2) > 1.2
        assert picard_fails(mine)
        assert len(verify.all_solutions(mine.P, mine.p)) == 1
        truth = verify.true_rate(mine)
        J = jacobian(mine)
        assert truth == pytest.approx(np.abs(np.linalg.eigvals(J)).max(), abs=1e-4)
        assert np.linalg.norm(J, 2) > truth + 0.012
        assert abs(np.abs(np.linalg.eigvals(mine.V)).max() - truth) > 0.012
        rates.append(truth)
        assert (mine.C <= 0).all()
        assert verify.count_exactly(mine.C, np.ones(3)) == 1
    assert min(rates) > 0.4
    assert max(rates) < 0.99


def picard_fails(mine: a01.Mine) -> bool:
    z = np.zeros(6)
    for _ in range(2000):
        z = a01.soft(mine.W @ z + mine.q, mine.lam)
        if np.abs(z).max() > 1e6:
            return True
    return bool(np.linalg.norm(z - a01.soft(mine.W @ z + mine.q, mine.lam)) > 1e-3)


def jacobian(mine: a01.Mine) -> np.ndarray:
    z = np.zeros(8)
    for _ in range(3000):
        z = np.tanh(mine.V @ z + mine.v)
    return (1 - z**2)[:, None] * mine.V


def test_the_id_has_to_be_written() -> None:
    with pytest.raises(ValueError, match="write your own id"):
        a01.instance(NOBODY)


def test_students_need_no_grading_tools() -> None:
    code = "import sys, deqbook.course.a01; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"nbgrader", "nbformat", "jupytext", "zmq", "torch", "matplotlib"}


def test_every_place_that_a_check_names_is_in_the_book() -> None:
    places = [value for value in vars(a01).values() if isinstance(value, Place)]
    assert len(places) >= 4
    for place in places:
        text = (ROOT / f"{place.page}.md").read_text(encoding="utf-8")
        assert f"({place.label})=" in text
        assert re.search(rf"^#+ {re.escape(place.title)}$", text, re.MULTILINE)


def answers(changes: dict[str, str]) -> tuple[dict[str, object], a01.Mine]:
    """Return what a solution defines, some of its cells replaced."""
    mine = a01.instance("student-01")
    space: dict[str, object] = {"np": np, "mine": mine}
    for cell in solved(load(ASSIGNMENTS, "a01"), "student-01").cells:
        if cell.metadata.get("nbgrader", {}).get("solution") and cell.cell_type == "code":
            exec(changes.get(identity(cell), cell.source), space)
    return space, mine


def checked(space: dict[str, object], mine: a01.Mine, capsys: pytest.CaptureFixture[str]) -> str:
    a01.check("splitting", space["douglas_rachford"], mine)
    a01.check("state", space["z_own"], mine)
    a01.check("pivot", space["pivot"], mine)
    a01.check("rate", (space["rate"], space["rate_between"]), mine)
    a01.check("many", space["q_many"], mine)
    a01.check("free", space["W_free"], mine)
    return capsys.readouterr().out


def test_checks_pass_a_solution(capsys: pytest.CaptureFixture[str]) -> None:
    said = checked(*answers({}), capsys)
    assert said.count("✓") == 6
    assert "✗" not in said


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (0, "no equilibrium"),
        (1, "the mean of the old one"),
        (2, "residual"),
        (8, "1.000 wide"),
    ],
)
def test_checks_say_what_is_wrong_and_where_to_read(
    number: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = checked(*answers(all_wrong("a01")[number].cells), capsys)
    assert "✗" in said
    assert says in " ".join(said.split())
    assert "chapters/01" in said


def test_a_check_never_says_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    space, _ = answers({})
    truth = f"{space['rate']:.3f}"
    for wrong in all_wrong("a01"):
        if not wrong.about.startswith("no end"):
            assert truth not in checked(*answers(wrong.cells), capsys)


def test_a_check_survives_any_answer(capsys: pytest.CaptureFixture[str]) -> None:
    mine = a01.instance("student-01")
    for task in a01.check.checks:
        for answer in (None, 3, "text", [], lambda *a: 1 / 0, np.full(3, np.nan), (1, 2)):
            a01.check(task, answer, mine)
    a01.check("nonsense", 1, mine)
    said = capsys.readouterr().out
    assert "✓" not in said
    assert "There is no task 'nonsense'" in said


def test_a_fault_names_the_shape_seen() -> None:
    with pytest.raises(Fault, match=r"should have the shape \(2,\), and has \(3,\)"):
        array([1, 2, 3], (2,), "q")


def test_a_check_says_that_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    def empty(answer: object, mine: object) -> None:
        raise NotImplementedError

    Checker({"one": empty})("one", 1, None)
    assert "not written yet" in capsys.readouterr().out
