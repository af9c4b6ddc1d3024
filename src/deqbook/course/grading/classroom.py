"""Grade a class: all submissions, on several cores, so that an interruption loses nothing.

What is done is known by a digest of everything that decides: the file, the assignment, the salt,
the limits, the version. A submission whose digest has a result is not run again. So the second run
of the same command does what is left, and a run after a change does what the change concerns.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

import nbformat

from deqbook import __version__
from deqbook.course.grading.assignment import Assignment
from deqbook.course.grading.files import replace
from deqbook.course.grading.folder import Handed, Student
from deqbook.course.grading.limits import Limits
from deqbook.course.grading.release import released
from deqbook.course.grading.sandbox import PATIENCE, remove, require
from deqbook.course.grading.submission import Result, refused
from deqbook.course.grading.worker import Job, line

#: What a run leaves in its folder: results, and the names of temporary folders to be removed.
RESULTS, SCRATCH = "results", "scratch.txt"


@dataclass(frozen=True)
class Course:
    """What a run of grading is about."""

    assignments: Path  # the folder of masters
    out: Path
    salt: str = ""
    limits: Limits = field(default_factory=Limits)
    trust: bool = False
    jobs: int = 2

    def result(self, assignment: Assignment, student: Student) -> Path:
        """Return where a result is."""
        return self.out / RESULTS / assignment.name / f"{student.key}.json"

    def graded(self, assignment: Assignment, student: Student) -> Path:
        """Return where a graded notebook is; the layout is nbgrader's."""
        return self.out / "autograded" / student.key / assignment.name / f"{assignment.name}.ipynb"

    def blank(self, assignment: Assignment) -> Path:
        """Return where the released notebook is."""
        return self.out / "release" / assignment.name / f"{assignment.name}.ipynb"


def fingerprint(course: Course, assignment: Assignment, handed: Handed) -> str:
    """Digest all that decides about a submission's result."""
    digest = hashlib.sha256(assignment.digest.encode())
    said = [
        __version__,
        course.salt,
        handed.student.id,
        asdict(course.limits),
        handed.notes,
        course.trust,
    ]
    digest.update(json.dumps(said).encode())
    if handed.path is not None:
        with handed.path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def known(path: Path, mark: str) -> Result | None:
    """Return a result that is there already and was made of the same things."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said.get("mark") == mark:
            return Result.load(said["result"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def grade(
    course: Course,
    assignment: Assignment,
    handed: Sequence[Handed],
    said: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> dict[str, Result]:
    """Return the result of every student; ``said`` hears of the progress."""
    if not course.trust:
        require()
    blank = released(assignment, salt=course.salt)
    replace(course.blank(assignment), nbformat.writes(blank))
    sweep(course.out)
    results: dict[str, Result] = {}
    waiting: list[tuple[Handed, str]] = []
    for one in handed:
        mark = fingerprint(course, assignment, one)
        found = known(course.result(assignment, one.student), mark)
        if found is not None:
            results[one.student.id] = found
        else:
            waiting.append((one, mark))
    said(len(results), len(handed), f"{len(results)} of {len(handed)} were graded before")
    scratch = tempfile.mkdtemp(prefix="deqbook-grade-")
    os.chmod(scratch, 0o711)  # a sandbox of root has another user
    replace(course.out / SCRATCH, scratch)
    try:
        with Crew(course, assignment, blank, Path(scratch)) as crew:
            for student, result in crew.all(waiting):
                results[student] = result
                said(len(results), len(handed), student)
    finally:
        sweep(course.out)
    return results


def stored(course: Course, assignment: Assignment, handed: Sequence[Handed]) -> dict[str, Result]:
    """Return the results that are there, without running anything."""
    results = {}
    for one in handed:
        mark = fingerprint(course, assignment, one)
        found = known(course.result(assignment, one.student), mark)
        if found is None:
            raise ValueError(
                f"{one.student.id} is not graded yet, or was graded with other settings; run this "
                "without --manual first."
            )
        results[one.student.id] = found
    return results


def sweep(out: Path) -> None:
    """Remove what a run that was interrupted left in the system's temporary folder."""
    note = out / SCRATCH
    if note.is_file():
        folder = Path(note.read_text(encoding="utf-8").strip())
        if folder.name.startswith("deqbook-grade-") and folder.is_dir() and not folder.is_symlink():
            remove(folder)
        note.unlink()


class Crew:
    """Processes that grade, one for each job at a time; a context manager, which ends them."""

    def __init__(
        self, course: Course, assignment: Assignment, blank: nbformat.NotebookNode, scratch: Path
    ):
        self.course, self.assignment, self.blank, self.scratch = course, assignment, blank, scratch
        self.workers: list[subprocess.Popen[str]] = []
        self.local = threading.local()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            end(worker)

    def all(self, waiting: Sequence[tuple[Handed, str]]) -> Iterator[tuple[str, Result]]:
        """Grade all that waits; yield the results as they are ready."""
        with ThreadPoolExecutor(self.course.jobs) as pool:
            jobs = {pool.submit(self.one, handed, mark): handed for handed, mark in waiting}
            try:
                for job in as_completed(jobs):
                    yield jobs[job].student.id, job.result()
            except BaseException:  # an interruption: what runs is ended, what waits is dropped
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in self.workers:
                    end(worker)
                raise

    def one(self, handed: Handed, mark: str) -> Result:
        """Grade one submission; whatever happens, there is a result."""
        student = handed.student
        path = self.course.result(self.assignment, student)
        graded = self.course.graded(self.assignment, student)
        fresh = path.with_suffix(".fresh")
        fresh.unlink(missing_ok=True)
        trouble = "Nothing was handed in." if handed.path is None else ""
        if handed.path is not None:
            trouble = self.run(
                Job(
                    str(self.course.assignments.resolve()),
                    self.assignment.name,
                    str(handed.path.resolve()),
                    student.id,
                    self.course.salt,
                    str(self.course.blank(self.assignment).resolve()),
                    str(fresh.resolve()),
                    str(graded.resolve()),
                    asdict(self.course.limits),
                    self.course.trust,
                    list(handed.notes),
                )
            )
        if trouble:
            result, notebook = refused(self.assignment, self.blank, student.id, trouble)
            replace(graded, nbformat.writes(notebook))
        else:
            result = Result.load(fresh.read_text(encoding="utf-8"))
        replace(path, json.dumps({"mark": mark, "result": result.text()}, ensure_ascii=False))
        fresh.unlink(missing_ok=True)
        return result

    def run(self, job: Job) -> str:
        """Have a process do a job; return what went wrong, if something did."""
        worker = getattr(self.local, "worker", None)
        if worker is None or worker.poll() is not None:
            worker = self.local.worker = self.start()
        assert worker.stdin is not None  # both were asked for in `start`
        assert worker.stdout is not None
        limits = self.course.limits
        patience = PATIENCE * (2 * limits.time + 20 * limits.question) + 120
        try:
            worker.stdin.write(line(job))
            worker.stdin.flush()
            ready, _, _ = select.select([worker.stdout], [], [], patience)
            answer = worker.stdout.readline() if ready else ""
        except OSError:
            answer = ""
        if not answer:
            end(worker)
            return "The submission could not be graded: grading it failed. Tell your instructor."
        said = json.loads(answer)
        return "" if said["done"] else f"The submission could not be graded ({said['error']})."

    def start(self) -> subprocess.Popen[str]:
        """Start a process that grades."""
        environment = {**os.environ, "TMPDIR": str(self.scratch)}
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = "1"
        worker = subprocess.Popen(
            [sys.executable, "-m", "deqbook.course.grading.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        self.workers.append(worker)
        return worker


def end(worker: subprocess.Popen[str]) -> None:
    """End a process that grades, and the sandbox with it."""
    for stream in (worker.stdin, worker.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        worker.wait(5)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
