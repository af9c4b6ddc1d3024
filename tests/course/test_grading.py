"""A whole class, graded for real: right, wrong, copied, hostile and broken submissions.

All sandboxes of the tests run in this file, in one process, so that what is left behind is seen.
"""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from course.class_of import (
    ASSIGNMENTS,
    HOSTILE,
    ROOT,
    Case,
    all_wrong,
    copied,
    hostile,
    leftovers,
    need_sandbox,
    own_answers,
    packed,
    results,
    solved,
    together,
    tree,
    with_cells,
)

from deqbook.cli import main
from deqbook.course.grading import classroom, feedback, marks
from deqbook.course.grading.assignment import Assignment, load, names
from deqbook.course.grading.folder import Handed, find
from deqbook.course.grading.limits import Limits
from deqbook.course.grading.release import nbgrader_at_work, released
from deqbook.course.grading.submission import Result

SHORT = "a01"
FAIR = Limits(question=4)
#: Small, so that the hostile ones take no time. A busy machine does not matter: what a notebook
#: waits for a processor is not counted.
LIMITS = Limits(time=60, cell=2.5, question=4, memory=768 * 2**20, processes=48)


@dataclass(frozen=True)
class Graded:
    """What the class handed in, what came of it, and what was to stay untouched."""

    assignment: Assignment
    cases: dict[str, Case]
    course: classroom.Course
    handed: list[Handed]
    results: dict[str, Result]
    connections: list[object]
    before: dict[str, dict[str, tuple[int, int]]]
    after: dict[str, dict[str, tuple[int, int]]]


# --- is it fair? ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=names(ASSIGNMENTS))
def fair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Assignment, dict[str, Result]]:
    """Return an assignment, and the results of a solution, a release, a copy and wrong answers."""
    need_sandbox()
    assignment = load(ASSIGNMENTS, request.param)
    folder = tmp_path_factory.mktemp(assignment.short)
    cases = [
        Case("student-01", solved(assignment, "student-01"), 0),
        Case("student-02", copied(assignment, "student-01"), 0),
        Case("student-03", released(assignment), 0),
    ]
    for number, group in enumerate(packed(all_wrong(assignment.short))):
        name = f"wrong-{number}"
        cases.append(
            Case(name, with_cells(solved(assignment, name), **together(group, "cells")), 0)
        )
    for case in cases:
        case.write(folder / "submitted", assignment.name)
    handed, _ = find(folder / "submitted", assignment.name)
    course = classroom.Course(ASSIGNMENTS, folder / "graded", limits=FAIR)
    return assignment, classroom.grade(course, assignment, handed)


def lost(result: Result) -> dict[str, float]:
    return {
        test: round(mark.out_of - mark.points, 6)
        for test, mark in result.marks.items()
        if mark.points < mark.out_of
    }


def test_the_solution_gets_every_point(fair: tuple[Assignment, dict[str, Result]]) -> None:
    assert lost(fair[1]["student-01"]) == {}
    assert fair[1]["student-01"].notes == []


def test_the_release_gets_none(fair: tuple[Assignment, dict[str, Result]]) -> None:
    assignment, results_of = fair
    assert lost(results_of["student-03"]) == assignment.tests
    assert all(text.empty for text in results_of["student-03"].written.values())


def test_a_copied_answer_loses_what_is_the_students_own(
    fair: tuple[Assignment, dict[str, Result]],
) -> None:
    assignment, results_of = fair
    own = [f"test-{cell}" for cell in own_answers(assignment.short)]
    expected = {test: assignment.tests[test] for test in own}
    assert len(expected) >= 3
    assert lost(results_of["student-02"]) == expected
    assert "says STUDENT = 'student-01'" in results_of["student-02"].notes[0]


def test_each_wrong_answer_loses_exactly_what_is_listed(
    fair: tuple[Assignment, dict[str, Result]],
) -> None:
    assignment, results_of = fair
    for number, group in enumerate(packed(all_wrong(assignment.short))):
        assert lost(results_of[f"wrong-{number}"]) == together(group, "lost"), group


# --- does it hold? --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graded]:
    need_sandbox()
    folder = tmp_path_factory.mktemp("class")
    assignment = load(ASSIGNMENTS, SHORT)
    full = sum(assignment.tests.values())
    submitted = folder / "submitted"
    submitted.mkdir()
    victim = folder / "victim" / "diary.txt"
    victim.parent.mkdir()
    victim.write_text("private")
    server = socket.create_server(("127.0.0.1", 0))
    connections: list[object] = []
    threading.Thread(target=listen, args=(server, connections), daemon=True).start()
    unseen = [
        ASSIGNMENTS / "verify" / "a01.py",
        ASSIGNMENTS / "a01_wellposedness.md",
        submitted,
        victim,
    ]
    cases = [
        Case("student-01", solved(assignment, "student-01"), full),
        Case("student-03", released(assignment), 0, "does not say whose it is"),
        *hostile(assignment, unseen, server.getsockname()[1]),
    ]
    for case in cases:
        case.write(submitted, assignment.name)
    with (submitted / "huge_hand-in.ipynb").open("wb") as file:  # 200 MB, most of it a hole
        file.truncate(200 * 2**20)
    others = [
        Case("huge", b"", 0, "200 MB and was not opened"),
        Case("zoë müller-lüdenscheidt", solved(assignment, "Zoë Müller-Lüdenscheidt"), full),
        Case("twice", released(assignment), full, "2 files were handed in"),
    ]
    others[1].write(submitted, assignment.name)
    first = others[2].write(submitted, assignment.name)
    os.utime(first, (1, 1))
    nbformat.write(solved(assignment, "twice"), first.with_name("a01 (2).ipynb"))
    (submitted / "link").mkdir()
    (submitted / "link" / f"{assignment.name}.ipynb").symlink_to(first)
    handed, lost = find(submitted, assignment.name)
    assert not lost
    course = classroom.Course(ASSIGNMENTS, folder / "graded", limits=LIMITS)
    watched = {
        "victim": victim.parent,
        "submitted": submitted,
        "src": ROOT / "src",
        "masters": ASSIGNMENTS,
    }
    before = {name: tree(path) for name, path in watched.items()}
    found = classroom.grade(course, assignment, handed)
    after = {name: tree(path) for name, path in watched.items()}
    everything = {case.name: case for case in [*cases, *others]}
    yield Graded(assignment, everything, course, handed, found, connections, before, after)
    server.close()


def listen(server: socket.socket, connections: list[object]) -> None:
    while True:
        try:
            connections.append(server.accept())
        except OSError:
            return


def earned(result: Result) -> float:
    return sum(mark.points for mark in result.marks.values())


NAMES = ["student-01", "student-03", *HOSTILE, "huge", "zoë müller-lüdenscheidt", "twice"]


@pytest.mark.parametrize("name", NAMES)
def test_each_gets_its_mark_and_a_sentence(name: str, graded: Graded) -> None:
    case, result = graded.cases[name], graded.results[name]
    said = " ".join([*result.notes, *(mark.sentence for mark in result.marks.values())])
    assert earned(result) == pytest.approx(case.points), said
    assert re.search(case.says, said), said
    assert not case.never or case.never not in said


def test_all_of_them_were_graded_and_nobody_else(graded: Graded) -> None:
    assert set(graded.results) == set(graded.cases) == set(NAMES)


def test_nothing_outside_was_written_read_or_asked(graded: Graded) -> None:
    assert graded.before == graded.after
    assert not graded.connections


def test_no_process_and_no_temporary_folder_is_left(graded: Graded) -> None:
    assert not leftovers()
    assert not (graded.course.out / classroom.SCRATCH).exists()


def test_a_second_run_repeats_nothing(graded: Graded) -> None:
    before = tree(graded.course.out / "results")
    again = classroom.grade(graded.course, graded.assignment, graded.handed)
    assert again == graded.results
    assert tree(graded.course.out / "results") == before


@pytest.fixture(scope="module")
def totals(graded: Graded) -> list[marks.Total]:
    """Return the marks, with one text marked by hand, everything written."""
    students = {one.student.id: one.student for one in graded.handed}
    place = (graded.assignment.name, "student-01", "explain")
    entered = {place: marks.Row(*place, 20.0, 17.5, "=Good, but “why”?")}
    found = marks.merged(graded.assignment, graded.results, students, entered, {})
    marks.write_sheet(graded.course.out, found, entered)
    marks.write_tables(graded.course.out, graded.assignment, found)
    return found


#: Of these the gradebook and the pages are made: one of each kind, to save time.
SOME = (
    "student-01",
    "student-03",
    "syntax",
    "script",
    "json",
    "missing",
    "zoë müller-lüdenscheidt",
)


@pytest.fixture(scope="module")
def recorded(graded: Graded, totals: list[marks.Total]) -> list[marks.Total]:
    """Return some of the totals, entered in nbgrader's gradebook, with their pages written."""
    some = [total for total in totals if total.student.id in SOME]
    marks.record(graded.course, graded.assignment, some)
    assert feedback.write(graded.course, graded.assignment, some) == len(SOME)
    assert feedback.write(graded.course, graded.assignment, some) == 0
    return some


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_have_every_student(graded: Graded, totals: list[marks.Total]) -> None:
    out, name = graded.course.out, graded.assignment.name
    full = {row["student"]: row for row in rows(out / f"{name}-marks.csv")}
    assert set(full) == set(graded.cases)
    assert full["student-01"]["total"] == "97.5"
    assert full["student-03"]["total"] == "0"
    assert full["syntax"]["total"] == ""
    assert full["syntax"]["status"] == "to be marked"
    canvas = rows(out / f"{name}-canvas.csv")
    assert canvas[0]["Student"] == "Points Possible"
    assert canvas[0][name] == "100"
    assert {row["SIS Login ID"]: row[name] for row in canvas}["student-01"] == "97.5"
    moodle = {row["username"]: row for row in rows(out / f"{name}-moodle.csv")}
    assert moodle["student-01"][name] == "97.5"


def test_the_sheet_keeps_what_was_entered(graded: Graded, totals: list[marks.Total]) -> None:
    sheet = marks.read_sheet(graded.course.out / marks.SHEET)
    row = sheet[graded.assignment.name, "student-01", "explain"]
    assert (row.points, row.comment) == (17.5, "=Good, but “why”?")
    assert sheet[graded.assignment.name, "syntax", "explain"].points is None


def test_nbgrader_knows_the_same_marks(graded: Graded, recorded: list[marks.Total]) -> None:
    name = graded.assignment.name
    with nbgrader_at_work():
        from nbgrader.api import Gradebook

        with Gradebook(marks.database(graded.course.out)) as book:
            for total in recorded:
                submission = book.find_submission_notebook(name, name, total.student.key)
                assert submission.max_score == 100
                assert submission.score == pytest.approx(total.auto + (total.manual or 0))
                assert submission.needs_manual_grade == (total.points is None)


def test_what_nbgrader_would_read_from_the_notebook_is_the_verdict(graded: Graded) -> None:
    with nbgrader_at_work():
        from nbgrader.utils import determine_grade, is_grade

        for student, result in graded.results.items():
            (one,) = [h.student for h in graded.handed if h.student.id == student]
            notebook = nbformat.read(graded.course.graded(graded.assignment, one), as_version=4)
            nbformat.validate(notebook)
            cells = [c for c in notebook.cells if is_grade(c) and c.cell_type == "code"]
            read = {c.metadata.nbgrader.grade_id: determine_grade(c)[0] for c in cells}
            assert read == {test: mark.points for test, mark in result.marks.items()}


def test_feedback_is_a_page_that_loads_and_runs_nothing(
    graded: Graded, recorded: list[marks.Total]
) -> None:
    pages = {
        total.student.id: feedback.path_of(graded.course, graded.assignment, total).read_text(
            "utf-8"
        )
        for total in recorded
    }
    for page in pages.values():
        assert not re.search(r"<(?:script|link|iframe|object|embed|form|base)\b", page)
        assert not re.search(r"<[^>]*\son\w+\s*=", page)
        assert not re.search(r"<img[^>]*src=[\"'](?!data:)", page)
        assert "default-src 'none'" in page
    assert "The iterates are right" in pages["student-01"]
    assert "Not marked yet: explain" in pages["syntax"]
    assert "Not marked yet" not in pages["student-01"]
    assert "Good, but “why”?" in pages["student-01"]
    assert "There is no `pivot`" in pages["missing"]
    assert "no notebook that can be read" in pages["json"]


def test_points_entered_with_nbgrader_are_found(
    graded: Graded, recorded: list[marks.Total]
) -> None:
    name = graded.assignment.name
    students = {total.student.id: total.student for total in recorded}
    with nbgrader_at_work():
        from nbgrader.api import Gradebook

        with Gradebook(marks.database(graded.course.out)) as book:
            grade = book.find_grade("explain", name, name, "syntax")
            grade.manual_score = 12.0
            book.db.commit()
    found = marks.entered_in_nbgrader(graded.course.out, graded.assignment, students)
    assert found[name, "syntax", "explain"].points == 12
    merged = marks.merged(
        graded.assignment, {"syntax": graded.results["syntax"]}, students, {}, found
    )
    assert merged[0].points == graded.cases["syntax"].points + 12


@pytest.mark.skipif(sys.platform == "win32", reason="kernels are reached through Unix sockets")
def test_trusted_notebooks_run_without_a_sandbox(tmp_path: Path) -> None:
    assignment = load(ASSIGNMENTS, SHORT)
    Case("student-01", solved(assignment, "student-01"), 0).write(tmp_path / "in", assignment.name)
    course = classroom.Course(ASSIGNMENTS, tmp_path / "out", limits=FAIR, trust=True, jobs=1)
    handed, _ = find(tmp_path / "in", assignment.name)
    assert lost(classroom.grade(course, assignment, handed)["student-01"]) == {}


def test_killed_in_the_middle_it_loses_nothing_and_repeats_nothing(
    graded: Graded, tmp_path: Path
) -> None:
    """Kill the program without warning, look for remains, run it again."""
    submitted = tmp_path / "submitted"
    assignment = graded.assignment
    for name in ("student-01", "syntax", "endless", "student-03", "json", "deleted"):
        graded.cases[name].write(submitted, assignment.name)
    out = tmp_path / "submitted-graded"
    command = [sys.executable, "-m", "deqbook", "grade", str(submitted), "--assignment", SHORT]
    command += ["--root", str(ROOT), "--time", "60", "--cell-time", "2.5", "--memory", "768M"]
    folder = out / "results" / assignment.name
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        end = time.monotonic() + 300
        while len(list(folder.glob("*.json"))) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    done = tree(folder)
    kept = {name for name in done if name.endswith(".json")}
    assert 2 <= len(kept) < 6
    assert not leftovers()
    assert main(command[3:]) == 0
    assert {name: tree(folder)[name] for name in kept} == {name: done[name] for name in kept}
    for name, result in results(out, assignment.name).items():
        wanted = {test: mark.points for test, mark in graded.results[name].marks.items()}
        assert {test: mark["points"] for test, mark in result["marks"].items()} == wanted
    assert (out / f"{assignment.name}-report.html").is_file()
