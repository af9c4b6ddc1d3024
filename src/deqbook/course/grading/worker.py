"""One process that grades submissions, one after the other, as the class's process tells it.

A line of JSON on its standard input is a job, a line on its standard output says that it is done.
When its input ends, because the other process ended in whatever way, this one ends at once, and
with it the sandbox. Results are written to a name of their own and then renamed: they are whole, or
not there.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from deqbook.course.grading.assignment import load
from deqbook.course.grading.files import replace
from deqbook.course.grading.limits import Limits
from deqbook.course.grading.submission import Unreadable, judge, read, refused


@dataclass(frozen=True)
class Job:
    """All that it takes to grade one submission."""

    assignments: str
    name: str
    path: str
    student: str
    salt: str
    blank: str  # the released notebook
    result: str  # where to write; the graded notebook goes beside it
    graded: str
    limits: dict[str, Any]
    trust: bool = False
    notes: list[str] = field(default_factory=list)


def grade(job: Job) -> None:
    """Grade one submission and write what came of it."""
    assignment = load(Path(job.assignments), job.name)
    blank = nbformat.read(job.blank, as_version=4)
    limits = Limits(**job.limits)
    try:
        submitted = read(Path(job.path), limits.file)
    except Unreadable as error:
        result, notebook = refused(assignment, blank, job.student, str(error))
    else:
        result, notebook = judge(
            assignment, submitted, blank, job.student, salt=job.salt, limits=limits, trust=job.trust
        )
    result.notes[:0] = job.notes
    replace(Path(job.graded), nbformat.writes(notebook))
    replace(Path(job.result), result.text())


def line(job: Job) -> str:
    """Return a job as a line."""
    return json.dumps(asdict(job)) + "\n"


def main() -> None:
    """Grade what is asked for, until the input ends."""
    jobs: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for text in sys.stdin:
            jobs.put(text)
        os._exit(0)  # nobody is left to tell

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints must not look like an answer
    threading.Thread(target=listen, daemon=True).start()
    while True:
        job = Job(**json.loads(jobs.get()))
        try:
            grade(job)
            said: dict[str, Any] = {"done": True}
        except Exception as error:  # told to the instructor; the next job is not concerned
            said = {"done": False, "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
