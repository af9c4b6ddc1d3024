"""``deqbook assignments``: notebooks for students and for the instructor, from the masters."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from deqbook.cli.build import BuildError, find_root

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "assignments",
        help="make the notebooks of the course",
        description="Make of every master in assignments/ a notebook for students, without "
        "solutions, and one for the instructor, with solutions and rubrics.",
    )
    parser.add_argument("names", nargs="*", help="which (a01, …; default: all)")
    parser.add_argument("--root", type=Path, help="root of the book (default: found)")
    parser.add_argument("--out", type=Path, help="where to (default: _build/assignments)")
    parser.add_argument(
        "--salt",
        default=os.environ.get("DEQBOOK_SALT", ""),
        help="a word for this year: other words draw other numbers; it stands in the notebooks "
        "(default: DEQBOOK_SALT)",
    )
    parser.add_argument(
        "--site",
        default=os.environ.get("DEQBOOK_SITE", ""),
        help="address of the published book; notebooks link to it and install the package from it",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    try:
        root = find_root(args.root)
    except BuildError as error:
        return _refuse(str(error))
    try:
        # Imported here: the other commands work without nbgrader.
        from deqbook.course.grading.assignment import AssignmentError, load, names
        from deqbook.course.grading.release import instructors, published, released, write
    except ImportError as error:
        return _refuse(missing(error))
    folder, out = root / "assignments", args.out or root / "_build" / "assignments"
    where = published(args.site, root / "_build" / "html")
    wanted = args.names or names(folder)
    try:
        for name in wanted:
            assignment = load(folder, name)
            kinds = {"release": released, "instructor": instructors}
            for kind, make in kinds.items():
                path = out / kind / f"{assignment.name}.ipynb"
                write(make(assignment, salt=args.salt, where=where), path)
                print(path)
    except AssignmentError as error:
        return _refuse(str(error))
    if not where.wheel:
        print(
            "The notebooks do not know where the package is published: students need it installed. "
            "Build the book and give its address with --site to let them install it."
        )
    return 0


def missing(error: ImportError) -> str:
    """Say what the course needs and where it comes from."""
    return (
        f"{error.name} is not installed in {sys.prefix}; "
        'run `make setup`, or `pip install -c constraints.txt -e ".[course]"`.'
    )


def _refuse(sentence: str) -> int:
    print(f"deqbook assignments: {sentence}", file=sys.stderr)
    return 2
