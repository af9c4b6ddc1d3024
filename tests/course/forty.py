"""Grade a class of forty, once, by hand: ``python tests/course/forty.py [JOBS]``.

Thirty right notebooks, four empty ones, and six that go wrong, with the limits of a real run. It
prints how long it took, and fails if a mark is not what it should be.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from course.class_of import ASSIGNMENTS, Case, hostile, solved

from deqbook.course.grading import classroom
from deqbook.course.grading.assignment import load
from deqbook.course.grading.folder import find
from deqbook.course.grading.limits import Limits
from deqbook.course.grading.release import released

BAD = ("endless", "forkbomb", "memory", "killed", "json", "syntax")


def main(jobs: int) -> int:
    """Grade, compare, and say how long it took."""
    assignment = load(ASSIGNMENTS, "a01")
    full = sum(assignment.tests.values())
    names = [f"student-{number:02d}" for number in range(34)]
    cases = [Case(name, solved(assignment, name), full) for name in names[:30]]
    cases += [Case(name, released(assignment), 0) for name in names[30:]]
    cases += [case for case in hostile(assignment, [], 9) if case.name in BAD]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            case.write(Path(folder, "submitted"), assignment.name)
        handed, _ = find(Path(folder, "submitted"), assignment.name)
        limits = Limits(time=120, cell=20)
        course = classroom.Course(ASSIGNMENTS, Path(folder, "out"), limits=limits, jobs=jobs)
        start = time.perf_counter()
        results = classroom.grade(course, assignment, handed)
        whole = time.perf_counter() - start
    wrong = 0
    for case in cases:
        got = sum(mark.points for mark in results[case.name].marks.values())
        if got != case.points:
            wrong += 1
            print(f"{case.name}: {got:g} points in place of {case.points:g}")
    usual = sorted(results[name].seconds for name in names[:30])
    print(
        f"{len(cases)} submissions in {whole:.0f} s with {jobs} jobs, "
        f"{whole / len(cases):.1f} s each; a right one took {usual[0]:.1f} to {usual[-1]:.1f} s, "
        f"median {usual[len(usual) // 2]:.1f} s; {wrong} marks wrong."
    )
    return wrong


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
