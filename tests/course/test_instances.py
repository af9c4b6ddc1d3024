"""Every student's own numbers: how they are drawn, and that those of assignment 1 are fair."""

from __future__ import annotations

import unicodedata
from itertools import combinations

import numpy as np
import pytest
from course.class_of import ASSIGNMENTS

from deqbook.course import a01
from deqbook.course.grading.assignment import load
from deqbook.course.instance import Draw, Instance, normalise

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


def test_pivoting_takes_a_while_and_the_rule_matters() -> None:
    """Else a check on the student's own network would see no difference."""
    verify = load(ASSIGNMENTS, "a01").module
    for mine in (a01.instance(student) for student in STUDENTS):
        path = verify.least_index_path(mine.P, mine.p)
        assert len(path) >= 6
        assert all_principal_minors(np.eye(5) - mine.P) > 0
        turned = verify.least_index_path(mine.P[::-1, ::-1], mine.p[::-1])  # the largest index
        assert [tuple(sorted(4 - i for i in one)) for one in turned] != path


def all_principal_minors(M: np.ndarray) -> float:
    sets = [S for size in range(1, 6) for S in combinations(range(5), size)]
    return min(float(np.linalg.det(M[np.ix_(S, S)])) for S in sets)
