"""``deqbook grade``: grade a folder of submissions, each in a sandbox."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from deqbook.cli.assignments import missing
from deqbook.cli.build import BuildError, find_root

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "grade",
        help="grade a folder of submissions",
        description="Grade submissions without a network, each in a sandbox. Interrupted and run "
        "again, it goes on where it was. Then it writes the marks (a table, and one each for "
        "Canvas and Moodle), a page for every student, a report on the class, and manual.csv, in "
        "which you enter the points of the texts that people mark: they count from the next run "
        "on.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the submissions")
    parser.add_argument("--assignment", help="which (a01, …); needed if there are several")
    parser.add_argument("--out", type=Path, help="where to (default: FOLDER-graded)")
    parser.add_argument(
        "--students", type=Path, metavar="CSV", help="the roster: a column id, others"
    )
    parser.add_argument(
        "--salt",
        default=os.environ.get("DEQBOOK_SALT", ""),
        help="the word of the year, as given to `assignments` (default: DEQBOOK_SALT)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--time", type=float, default=600.0, help="seconds for one notebook")
    parser.add_argument("--cell-time", type=float, default=120.0, help="seconds for one cell")
    parser.add_argument("--memory", default="2G", help="memory of one notebook (default: 2G)")
    parser.add_argument(
        "--manual",
        action="store_true",
        help="run nothing: take what was entered in manual.csv into the marks",
    )
    parser.add_argument("--trust", action="store_true", help="no sandbox: run it with your rights")
    parser.add_argument("--root", type=Path, help="root of the book (default: found)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    try:
        root = find_root(args.root)
        # Imported here: the other commands work without nbgrader.
        from deqbook.course.grading import classroom, feedback, marks, report
        from deqbook.course.grading.assignment import AssignmentError, load, names
        from deqbook.course.grading.folder import FolderError, find, read_roster
        from deqbook.course.grading.limits import Limits, size
        from deqbook.course.grading.sandbox import NoSandbox
    except BuildError as error:
        return _refuse(str(error))
    except ImportError as error:
        return _refuse(missing(error))
    started = time.perf_counter()
    try:
        if args.jobs < 1:
            return _refuse(f"--jobs must be at least 1, not {args.jobs}.")
        limits = Limits(
            time=args.time, cell=min(args.cell_time, args.time), memory=size(args.memory)
        )
        folder = root / "assignments"
        known = names(folder)
        if args.assignment is None and len(known) != 1:
            return _refuse(f"which assignment? --assignment is one of {', '.join(known)}.")
        assignment = load(folder, args.assignment or known[0])
        roster = read_roster(args.students) if args.students else []
        handed, lost = find(args.folder, assignment.name, roster)
        if not handed:
            return _refuse(f"no submission in {args.folder}: no notebooks there, or nobody's.")
        out = args.out or args.folder.resolve().with_name(f"{args.folder.resolve().name}-graded")
        course = classroom.Course(folder, out, args.salt, limits, args.trust, args.jobs)
        entered = marks.read_sheet(out / marks.SHEET)
        students = {one.student.id: one.student for one in handed}
        elsewhere = marks.entered_in_nbgrader(out, assignment, students)
        if args.manual:
            results = classroom.stored(course, assignment, handed)
        else:
            results = classroom.grade(course, assignment, handed, Bar(sys.stderr.isatty()))
    except (AssignmentError, FolderError, NoSandbox, marks.MarksError, ValueError) as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        print("\nInterrupted. What is graded is kept; the same command goes on.", file=sys.stderr)
        return 130
    totals = marks.merged(assignment, results, students, entered, elsewhere)
    marks.write_sheet(out, totals, entered)
    marks.write_reading(out, assignment, totals)
    marks.write_tables(out, assignment, totals)
    marks.record(course, assignment, totals)
    pages = feedback.write(course, assignment, totals)
    path = report.write(out, assignment, totals, lost)
    waiting = sum(total.points is None for total in totals)
    seconds = time.perf_counter() - started
    print(f"{len(totals)} students in {seconds:.0f} s; {pages} pages of feedback written.")
    print(f"Marks: {out / f'{assignment.name}-marks.csv'}\nReport: {path}")
    if waiting:
        print(
            f"{waiting} texts are to be marked: read {out / f'{assignment.name}-{marks.READING}'}, "
            f"enter points in {out / marks.SHEET}, and run this again with --manual."
        )
    for one in lost:
        print(f"Not placed: {one}.")
    return 0


class Bar:
    """A line that shows how far it is; where nobody watches, a line for each submission."""

    def __init__(self, live: bool):
        self.live, self.started = live, time.perf_counter()

    def __call__(self, done: int, total: int, text: str) -> None:
        """Show the progress."""
        seconds = time.perf_counter() - self.started
        full = 30 * done // max(total, 1)
        line = f"[{'#' * full}{'.' * (30 - full)}] {done}/{total}  {seconds:.0f} s  {text}"
        if self.live:
            print(
                f"\r{line[:100]:100}",
                end="\n" if done == total else "",
                file=sys.stderr,
                flush=True,
            )
        else:
            print(line, file=sys.stderr, flush=True)


def _refuse(sentence: str) -> int:
    print(f"deqbook grade: {sentence}", file=sys.stderr)
    return 2
