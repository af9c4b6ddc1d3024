"""Assignments 5 and 6: every student's numbers pose the question."""

from __future__ import annotations

import math

import numpy as np
import pytest
from course.class_of import ASSIGNMENTS

from deqbook.course import a05, a06
from deqbook.course.grading.assignment import load

STUDENTS = [f"student-{number:02d}" for number in range(40)]


def test_every_network_of_chapter_5_poses_the_question() -> None:
    verify = load(ASSIGNMENTS, "a05").module
    places = set()
    for mine in (a05.instance(student) for student in STUDENTS):
        assert 1 < np.linalg.norm(mine.W, 2) < math.sqrt(mine.tau)
        behind, whole = (
            verify.newton(mine, 1.0, 1 / (1 + mine.mu)),
            verify.newton(mine, 1 - mine.mu, 1.0),
        )
        assert np.linalg.norm(behind - whole) > 0.05
        for t in np.linspace(*mine.ends, 7):
            z = mine.point + t * mine.along
            assert np.abs(mine.A.T @ np.maximum(mine.A @ z + mine.b, 0) - z).max() < 1e-12
        limit, least = verify.selected(mine)
        assert abs(limit - least) > 0.2
        assert min(mine.ends[1] - limit, limit - mine.ends[0]) > 0.3
        z = np.zeros(5)
        path = verify.clipped_path(mine.A, mine.b, mine.step, 0.3, 0.3, z, 3000)
        assert abs(mine.along @ (path[-1] - mine.point) - limit) > 0.05  # not settled yet
        low, *_, high = np.linalg.eigvalsh(mine.S)
        assert 0.05 < low < high < 0.95
        places.add((round(limit, 2), round(least, 2)))
    assert len(places) == len(STUDENTS)


def test_the_limit_of_the_selection_is_where_the_verifier_says() -> None:
    """Follow the iteration: what is left falls like the decay, towards nothing."""
    verify = load(ASSIGNMENTS, "a05").module
    mine = a05.instance("student-01")
    z, far = mine.point.copy(), []
    for k in range(1, 200_001):
        pre = np.maximum(mine.A @ z + mine.b, 0)
        weight, decay = 0.5 * k**-0.3, 0.5 * k**-0.34
        soft = z - np.clip(z, -mine.step, mine.step)
        z = weight * (1 - decay) * soft + (1 - weight) * (mine.A.T @ pre)
        if k in (20_000, 200_000):
            far.append(abs(mine.along @ (z - mine.point) - verify.selected(mine)[0]))
    assert far[1] < 0.06
    assert math.log10(far[0] / far[1]) == pytest.approx(0.34, abs=0.05)


def test_every_sample_of_chapter_6_poses_the_question() -> None:
    verify = load(ASSIGNMENTS, "a06").module
    for mine in (a06.instance(student) for student in STUDENTS):
        assert len(set(mine.x)) == 300
        bounds = verify.all_bounds(mine.x, mine.y, mine.kernels, mine.delta)
        assert min(bounds) < 1
        assert len(verify.least(bounds)) == 1
        assert verify.by_matrix(mine.x, mine.y) == pytest.approx(verify.by_energy(mine.x, mine.y))
        assert 0.3 < verify.true_coverage(mine) < 0.8
        assert verify.excess(mine.K, np.eye(6)) < a06.CLAIMED - 0.05
        assert verify.excess(mine.K, np.ones((6, 6))) < a06.CLAIMED - 0.01


def test_the_power_is_reached_by_large_samples_only() -> None:
    verify = load(ASSIGNMENTS, "a06").module
    for mine in (a06.instance(student) for student in STUDENTS[:5]):
        logs = {}
        for n in (100, 800, 400_000, 1_600_000):
            u = (2 * np.arange(n) + 1 - n) / n
            x = np.sign(u) * np.abs(u) ** mine.crowd
            y = np.sin(3 * x) + mine.kick * np.sign(x) * np.abs(x) ** mine.rough
            logs[n] = 0.5 * math.log(verify.by_energy(x, y) / n)
        small = (logs[800] - logs[100]) / math.log(8)
        large = (logs[1_600_000] - logs[400_000]) / math.log(4)
        assert abs(small - verify.true_power(mine)) > 0.05
        assert large == pytest.approx(verify.true_power(mine), abs=0.005)
