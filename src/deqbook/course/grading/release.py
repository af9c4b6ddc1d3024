"""Release notebooks: what students get, and what the instructor keeps.

nbgrader's own preprocessors remove solutions, lock cells and enter checksums, so its tools
understand the result. We add a first cell that installs the package where it is missing.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from traitlets.config import Config

from deqbook.course.first_cell import Wheel, first_cell
from deqbook.course.grading.assignment import (
    INSTALL,
    WHO,
    Assignment,
    AssignmentError,
    found,
    identity,
)
from deqbook.course.grading.files import replace
from deqbook.course.instance import NOBODY

#: Whose numbers the instructor's notebook shows.
EXAMPLE = "student-01"
#: What stands in place of a solution.
CODE_STUB = "# Your code here.\nraise NotImplementedError()"
TEXT_STUB = "*Your answer here. Double-click to edit.*"


@dataclass(frozen=True)
class Published:
    """Where the book and its wheel are published; empty where that is not known."""

    site: str = ""
    wheel: Wheel | None = None


def published(site: str, folder: Path | None, base: str = "") -> Published:
    """Return what a notebook has to know: the site, and the wheel that lies on it.

    ``folder`` is a built site; the wheel's name and checksum are read from it. Where the site's
    address is not known, ``base`` says how a notebook gets from its own folder to the site's.
    """
    if site and not site.endswith("/"):
        site += "/"
    wheels = sorted((folder / "wheels").glob("*.whl")) if folder is not None else []
    if not (site or base) or not wheels:
        return Published(site)
    digest = hashlib.sha256(wheels[-1].read_bytes()).hexdigest()
    return Published(site, Wheel(f"{site or base}wheels/{wheels[-1].name}", digest))


@contextmanager
def nbgrader_at_work() -> Iterator[None]:
    """Use nbgrader: hide warnings that nobody here can mend, and let it find its own tools.

    SQLAlchemy 2.1 warns of relationships in nbgrader's tables; jupyter_client and traitlets of
    names that nbgrader still uses. nbgrader calls the program ``alembic`` by name, and it stands
    beside this Python, which need not be on the search path.
    """
    before, tools = os.environ.get("PATH", ""), str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([tools, before])
    try:
        yield from _without_warnings()
    finally:
        os.environ["PATH"] = before


def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        try:
            from sqlalchemy.exc import SAWarning

            warnings.filterwarnings("ignore", category=SAWarning)
        except ImportError:
            pass
        yield


def needs() -> list[str]:
    """Return what the package needs, as its metadata say."""
    stated = metadata.requires("deqbook") or []
    return sorted(re.sub(r"\s+", "", text) for text in stated if "extra ==" not in text)


def filled(notebook: NotebookNode, salt: str, student: str = NOBODY) -> NotebookNode:
    """Return a copy whose id cell has a student and the salt of this year."""
    made = copy.deepcopy(notebook)
    for cell in made.cells:
        if identity(cell) == WHO:
            cell["source"] = (
                f"STUDENT = {json.dumps(student)}  # ← your id, as your course knows you\n"
                f"SALT = {json.dumps(salt)}  # the same for all of this year; leave it"
            )
            return made
    raise AssignmentError(f"the master has no cell with the grade_id {WHO!r}.")


def released(
    assignment: Assignment, *, salt: str = "", where: Published | None = None
) -> NotebookNode:
    """Return the notebook for students: no solutions, locked cells, checksums."""
    with nbgrader_at_work():
        from nbgrader import preprocessors as steps

        notebook = with_setup(filled(assignment.master, salt), where or Published())
        config = Config()
        config.ClearSolutions.code_stub = {"python": CODE_STUB}
        config.ClearSolutions.text_stub = TEXT_STUB
        resources: dict[str, object] = {}
        for step in (
            steps.LockCells,
            steps.ClearSolutions,
            steps.ClearOutput,
            steps.CheckCellMetadata,
            steps.ComputeChecksums,
            steps.ClearHiddenTests,
            steps.ClearMarkScheme,
            steps.ComputeChecksums,
        ):
            notebook, resources = step(config=config).preprocess(notebook, resources)
    nbformat.validate(notebook)
    return notebook


def instructors(
    assignment: Assignment, *, salt: str = "", where: Published | None = None
) -> NotebookNode:
    """Return the notebook for the instructor: solutions and rubrics included."""
    notebook = with_setup(filled(assignment.master, salt, EXAMPLE), where or Published())
    nbformat.validate(notebook)
    return notebook


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook, whole or not at all."""
    replace(path, nbformat.writes(notebook) + "\n")


def with_setup(notebook: NotebookNode, where: Published) -> NotebookNode:
    """Return a notebook whose first code cell installs the package where it is missing."""
    source = first_cell(needs(), where.wheel, where.site)
    cell = nbformat.v4.new_code_cell(source, id="install")
    cell.metadata["nbgrader"] = {
        "schema_version": 3,
        "cell_type": "code",
        "grade_id": INSTALL,
        "grade": False,
        "solution": False,
        "locked": True,
        "task": False,
    }
    cell.metadata["jupyter"] = {"source_hidden": True}
    at = next((n for n, one in enumerate(notebook.cells) if one.cell_type == "code"), 0)
    notebook.cells.insert(at, cell)
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def secrets_of(assignment: Assignment, verifiers: str) -> list[str]:
    """Return the lines that must be in nothing that is released: solutions, rubrics, verifiers.

    Lines that also stand in the open, in the task's own text or in a signature, are no secret, nor
    are imports and the heads of loops.
    """
    hidden: list[str] = []
    for cell in assignment.master.cells:
        if found(cell).get("solution"):
            inside = False
            for line in cell.source.splitlines():
                if "BEGIN SOLUTION" in line or "END SOLUTION" in line:
                    inside = "BEGIN SOLUTION" in line
                elif inside:
                    hidden.append(line.strip())
    hidden += [line.strip() for line in verifiers.splitlines()]
    open_text = "\n".join(cell.source for cell in released(assignment).cells)
    common = ("from ", "import ", "def ", "class ", "except ", "for ", "@", ") ->")
    return sorted(
        line
        for line in set(hidden)
        if len(line) >= 24 and not line.startswith(common) and line not in open_text
    )
