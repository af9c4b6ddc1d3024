"""Assignments 5 and 6: every student's numbers pose the question, and checks tell no answer."""

from __future__ import annotations

import math
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from course.class_of import ASSIGNMENTS, ROOT, all_wrong, solved

from deqbook.course import a05, a06
from deqbook.course.checks import Place
from deqbook.course.grading.assignment import identity, load

STUDENTS = [f"student-{number:02d}" for number in range(40)]
HANDED: dict[str, dict[str, tuple[str, ...]]] = {
    "a05": {
        "hidden": ("hidden",),
        "pulls": ("z_behind", "z_sum"),
        "path": ("prox_sam",),
        "limit": ("t_limit", "t_between", "t_least"),
        "polygon": ("polygon",),
    },
    "a06": {
        "norm": ("squared_norm",),
        "certificate": ("certificate",),
        "own": ("own_bound", "own_kernel"),
        "power": ("power", "power_between"),
        "reuse": ("coverage", "coverage_between", "width_fair"),
        "union": ("K_two",),
    },
}
both = pytest.mark.parametrize(("short", "module"), [("a05", a05), ("a06", a06)])


def answers(short: str, module: ModuleType, changes: dict[str, str]) -> tuple[dict[str, Any], Any]:
    """Return what a solution defines, some of its cells replaced."""
    mine = module.instance("student-01")
    space: dict[str, Any] = {"np": np, "mine": mine}
    for cell in solved(load(ASSIGNMENTS, short), "student-01").cells:
        if cell.metadata.get("nbgrader", {}).get("solution") and cell.cell_type == "code":
            exec(changes.get(identity(cell), cell.source), space)
    return space, mine


def said(
    short: str, module: ModuleType, changes: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> str:
    """Return what all checks say about a solution with some cells replaced."""
    space, mine = answers(short, module, changes)
    for task, names in HANDED[short].items():
        values = tuple(space[name] for name in names)
        module.check(task, values if len(values) > 1 else values[0], mine)
    return " ".join(capsys.readouterr().out.split())


@both
def test_checks_pass_a_solution(
    short: str, module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(HANDED[short]) == set(module.check.checks)
    told = said(short, module, {}, capsys)
    assert told.count("✓") == len(HANDED[short])
    assert "✗" not in told


@both
def test_every_place_that_a_check_names_is_in_the_book(short: str, module: ModuleType) -> None:
    places = [value for value in vars(module).values() if isinstance(value, Place)]
    assert len(places) >= 4
    for place in places:
        text = (ROOT / f"{place.page}.md").read_text(encoding="utf-8")
        assert f"({place.label})=" in text
        assert re.search(rf"^#+ {re.escape(place.title)}$", text, re.MULTILINE)


@both
def test_a_check_survives_any_answer(
    short: str, module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = module.instance("student-01")
    for task in module.check.checks:
        for answer in (
            None,
            3,
            "text",
            [],
            lambda *a: 1 / 0,
            np.full(3, np.nan),
            (1, 2),
            (1, 2, 3),
        ):
            module.check(task, answer, mine)
    assert "✓" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("short", "module", "about", "says"),
    [
        ("a05", a05, "the inverse where", "Which matrix takes z to its code"),
        ("a05", a05, "one equilibrium for both", "two questions"),
        ("a05", a05, "the count of the steps", "all weights are ½ at k = 1"),
        ("a05", a05, "a polygon where all", "What is the Jacobian"),
        ("a06", a06, "the inputs sorted", "another order"),
        ("a06", a06, "the norm itself", "the radius is 1"),
        ("a06", a06, "the choice of the kernel", "costs nothing?"),
        ("a06", a06, "a right power", "0.400 wide"),
    ],
)
def test_checks_say_what_is_wrong(
    short: str, module: ModuleType, about: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (wrong,) = [one for one in all_wrong(short) if one.about.startswith(about)]
    told = said(short, module, wrong.cells, capsys)
    assert "✗" in told
    assert says in told
    assert f"chapters/0{short[-1]}" in told


@pytest.mark.parametrize(
    ("short", "module", "names"),
    [("a05", a05, ("t_limit", "t_least")), ("a06", a06, ("power", "coverage", "width_fair"))],
)
def test_a_check_never_says_the_answer(
    short: str, module: ModuleType, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    space, _ = answers(short, module, {})
    truths = [f"{space[name]:.3f}" for name in names]
    for wrong in all_wrong(short):
        if not wrong.about.startswith("the matrix after all"):
            told = said(short, module, wrong.cells, capsys)
            assert not [truth for truth in truths if truth in told]


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
