"""An assignment: its master in MyST, and the verifiers that judge it.

A writer marks cells with the few fields of nbgrader's metadata that matter; `complete` adds the
others. `release` and `grade` both start from here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jupytext
from nbformat import NotebookNode

from deqbook.course.grading.probe import Probe
from deqbook.course.grading.verdict import Verdict

#: A verifier asks a kernel and knows the student's instance.
Verifier = Callable[[Probe, Any], Verdict]
#: The cell that says whose notebook it is, and the one that installs the package.
WHO, INSTALL = "student", "install"
#: What the name of a graded code cell begins with; the rest is the name of its verifier.
TEST = "test-"


class AssignmentError(ValueError):
    """An assignment is not written as it should be; the message says what and where."""


def found(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what nbgrader knows about a cell; nothing, if a stranger wrote it badly."""
    marked = cell.get("metadata", {}).get("nbgrader", {})
    return marked if isinstance(marked, Mapping) else {}


def identity(cell: Mapping[str, Any]) -> str:
    """Return the name of a cell, empty if it has none."""
    return str(found(cell).get("grade_id", ""))


def is_test(cell: Mapping[str, Any]) -> bool:
    """Say whether a cell is graded by a verifier."""
    return bool(found(cell).get("grade")) and not found(cell).get("solution")


def is_manual(cell: Mapping[str, Any]) -> bool:
    """Say whether a cell is marked by a person."""
    return bool(found(cell).get("grade")) and bool(found(cell).get("solution"))


def is_fixed(cell: Mapping[str, Any]) -> bool:
    """Say whether a cell is the author's, to be run as the author wrote it."""
    return bool(found(cell).get("locked")) and not is_test(cell)


def complete(notebook: NotebookNode, where: str) -> NotebookNode:
    """Return a master with all fields of nbgrader's metadata, its names checked."""
    seen: set[str] = set()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
        given = found(cell)
        if not given:
            continue
        name = str(given.get("grade_id", ""))
        if not name or name in seen:
            raise AssignmentError(
                f"{where}: the grade_id {name!r} of cell {number} is empty or used twice."
            )
        seen.add(name)
        graded, solution = bool(given.get("grade")), bool(given.get("solution"))
        if graded and "points" not in given:
            raise AssignmentError(f"{where}: the graded cell {name!r} has no points.")
        if graded and not solution and not name.startswith(TEST):
            raise AssignmentError(
                f"{where}: the graded code cell {name!r} must be called {TEST}NAME, "
                "where NAME is its verifier."
            )
        cell.metadata["nbgrader"] = {
            "schema_version": 3,
            "cell_type": cell.cell_type,
            "grade_id": name,
            "grade": graded,
            "solution": solution,
            "locked": (graded and not solution) or bool(given.get("locked")),
            "task": False,
            **({"points": given["points"]} if graded else {}),
        }
    return notebook


@dataclass(frozen=True)
class Assignment:
    """One assignment, read from a folder ``assignments``."""

    name: str  # a01_wellposedness
    master: NotebookNode
    module: ModuleType  # of its verifiers
    digest: str  # of everything that decides about marks

    @property
    def short(self) -> str:
        """Return the short name, ``a01``."""
        return self.name.partition("_")[0]

    @property
    def tests(self) -> dict[str, float]:
        """Return the cells that verifiers judge, with their points."""
        return {identity(c): float(found(c)["points"]) for c in self.master.cells if is_test(c)}

    @property
    def manual(self) -> dict[str, float]:
        """Return the cells that people mark, with their points."""
        return {identity(c): float(found(c)["points"]) for c in self.master.cells if is_manual(c)}

    def verifier(self, test: str) -> Verifier:
        """Return the verifier of a graded cell."""
        return getattr(self.module, test.removeprefix(TEST).replace("-", "_"))

    def instance(self, student: str, salt: str) -> Any:
        """Return a student's own numbers."""
        return self.module.instance(student, salt)


def names(folder: Path) -> list[str]:
    """Return the names of the assignments in a folder."""
    return sorted(path.stem for path in folder.glob("a[0-9]*.md"))


def load(folder: Path, wanted: str) -> Assignment:
    """Read an assignment by its name or short name."""
    known = names(folder)
    fitting = [name for name in known if wanted in (name, name.partition("_")[0])]
    if len(fitting) != 1:
        raise AssignmentError(
            f"no assignment {wanted!r} in {folder}; there are {', '.join(known) or 'none'}."
        )
    name = fitting[0]
    master, code = folder / f"{name}.md", folder / "verify" / f"{name.partition('_')[0]}.py"
    if not code.is_file():
        raise AssignmentError(f"{master} has no verifiers; they belong into {code}.")
    module = read_module(code)
    notebook = read_master(master)
    made = Assignment(name, notebook, module, digest_of(master, code))
    missing = [
        test
        for test in made.tests
        if not hasattr(module, test.removeprefix(TEST).replace("-", "_"))
    ]
    if missing or not hasattr(module, "instance"):
        raise AssignmentError(f"{code} lacks {', '.join(missing) or 'the function instance'}.")
    return made


def read_master(path: Path) -> NotebookNode:
    """Read a master as a notebook with complete metadata."""
    with warnings.catch_warnings():  # jupytext tells of a language that it guessed
        warnings.simplefilter("ignore")
        notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="md:myst")
    notebook.metadata.pop("jupytext", None)
    return complete(notebook, str(path))


def read_module(path: Path) -> ModuleType:
    """Import a file by its path."""
    name = f"deqbook_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a path of a Python file has one
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digest_of(master: Path, code: Path) -> str:
    """Digest what decides about marks: the master, the verifiers, and who draws the instances."""
    digest = hashlib.sha256()
    own = Path(__file__).resolve().parents[1]
    for path in [master, code, *sorted(own.rglob("*.py"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
