"""Grade a class of forty, once, by hand: ``python tests/course/forty.py [JOBS]``.

Twenty right notebooks, five empty ones, and fifteen that are hostile or broken, with the limits of
a real run. The program is killed without warning in the middle and run again. It prints how long
that took, and fails if a mark is not what it should be, if what was ready was done again, or if
something was written outside.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from course.class_of import ASSIGNMENTS, ROOT, Case, hostile, results, solved

from deqbook.course.grading.assignment import load
from deqbook.course.grading.release import released
from deqbook.course.instance import normalise

#: What the fifteen do; three more are made here: 200 MB, two files, a name with blank and accent.
BAD = ["endless", "forkbomb", "memory", "exit", "killed", "overwritten", "deleted", "patched"]
BAD += ["network", "writer", "json", "missing"]


def main(jobs: int) -> int:
    """Grade, kill, grade again, compare, and say how long it took."""
    assignment = load(ASSIGNMENTS, "a01")
    full = sum(assignment.tests.values())
    names = [f"student-{number:02d}" for number in range(25)]
    cases = [Case(name, solved(assignment, name), full) for name in names[:20]]
    cases += [Case(name, released(assignment), 0) for name in names[20:]]
    with tempfile.TemporaryDirectory() as scratch:
        submitted, out = Path(scratch, "submitted"), Path(scratch, "submitted-graded")
        seen = [submitted / "student-01", out, ASSIGNMENTS / "verify" / "a01.py"]
        cases += [case for case in hostile(assignment, seen, 9) if case.name in BAD]
        cases.append(Case("Zoë B", solved(assignment, "zoë b"), full))
        cases.append(Case("huge", b'{"cells": [' + b" " * 200_000_000, 0))
        twice = Case("twice", solved(assignment, "twice"), full)
        cases.append(twice)
        for case in cases:
            case.write(submitted, assignment.name)
        old = submitted / "twice" / "a01_draft.ipynb"
        old.write_bytes(b"{}")
        os.utime(old, (0, 0))
        assert len(cases) == 40
        before = state(ROOT), state(submitted)
        command = [sys.executable, "-m", "deqbook", "grade", str(submitted), "--assignment", "a01"]
        command += ["--root", str(ROOT), "--jobs", str(jobs), "--time", "120", "--cell-time", "20"]
        folder = out / "results" / assignment.name
        start = time.perf_counter()
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            while len(list(folder.glob("*.json"))) < 20:
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
        ready = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
        subprocess.run(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        whole = time.perf_counter() - start
        repeated = [
            name for name, then in ready.items() if (folder / name).stat().st_mtime_ns != then
        ]
        with next(out.glob("*-marks.csv")).open(encoding="utf-8", newline="") as table:
            marks = {
                normalise(row["student"]): float(row["automatic"]) for row in csv.DictReader(table)
            }
        outside = (state(ROOT), state(submitted)) != before
        taken = sorted(one["seconds"] for one in results(out, assignment.name).values())
    wrong = [case for case in cases if marks.get(normalise(case.name)) != case.points]
    for case in wrong:
        found = marks.get(normalise(case.name))
        print(f"{case.name}: {found} points in place of {case.points:g}")
    print(
        f"{len(cases)} submissions in {whole:.0f} s with {jobs} jobs, {whole / len(cases):.1f} s "
        f"each (median {taken[len(taken) // 2]:.1f} s, at most {taken[-1]:.1f} s); killed after "
        f"{len(ready)}, {len(repeated)} of these done again; {len(wrong)} marks wrong; "
        f"{'something' if outside else 'nothing'} written outside."
    )
    return len(wrong) + len(repeated) + outside


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file below a folder that is no cache."""
    skipped = {"__pycache__", ".git", "_build", ".venv", ".mypy_cache", ".ruff_cache"}
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not skipped & set(path.parts)
    }


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
