"""Assignments 3 and 4: every student's numbers pose the question."""

from __future__ import annotations

import numpy as np
import pytest
from course.class_of import ASSIGNMENTS

from deqbook.course import a03, a04
from deqbook.course.grading.assignment import load

STUDENTS = [f"student-{number:02d}" for number in range(40)]


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
