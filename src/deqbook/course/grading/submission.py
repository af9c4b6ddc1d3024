"""One submission: read with suspicion, run, judged, and written as nbgrader wants it."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from deqbook.course.grading.assignment import (
    INSTALL,
    TEST,
    WHO,
    Assignment,
    found,
    identity,
    is_fixed,
    is_test,
)
from deqbook.course.grading.kernel import Lost, Ran
from deqbook.course.grading.limits import Limits
from deqbook.course.grading.probe import Probe, ProbeError
from deqbook.course.grading.session import Cell, Session
from deqbook.course.grading.verdict import Verdict
from deqbook.course.instance import NOBODY, normalise

#: Longest source of a cell that is read, and most cells.
LONGEST, MOST = 200_000, 500


class Unreadable(ValueError):
    """The file is no notebook that can be graded; the message is a sentence for the student."""


@dataclass
class Mark:
    """The points of one graded cell, and why."""

    points: float
    out_of: float
    sentence: str
    fault: str = ""


@dataclass
class Written:
    """An answer that a person marks."""

    out_of: float
    text: str
    empty: bool

    @property
    def digest(self) -> str:
        """Return a short digest of the text, which tells if it changed after it was marked."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


@dataclass
class Result:
    """What grading one submission gave."""

    student: str
    assignment: str
    notes: list[str] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)
    written: dict[str, Written] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)  # digests of solutions, to find copies
    seconds: float = 0.0

    @classmethod
    def load(cls, text: str) -> Result:
        """Read what `text` wrote."""
        said = json.loads(text)
        said["marks"] = {name: Mark(**one) for name, one in said["marks"].items()}
        said["written"] = {name: Written(**one) for name, one in said["written"].items()}
        return cls(**said)

    def text(self) -> str:
        """Return the result as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)


def read(path: Path, largest: int) -> NotebookNode:
    """Read a notebook that anybody may have written."""
    size = path.stat().st_size
    if size > largest:
        raise Unreadable(
            f"The file has {size / 2**20:.0f} MB and was not opened; at most {largest / 2**20:.0f} "
            "MB are read. Clear the outputs and hand it in again."
        )
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        cells = [cell for cell in notebook.cells if isinstance(cell.source, str)]
        types = {cell.cell_type for cell in cells}
    except (
        ValueError,
        AttributeError,
        KeyError,
        TypeError,
        RecursionError,
        nbformat.ValidationError,
    ):
        raise Unreadable(
            "The file is no notebook that can be read. Download it again as .ipynb and hand it in."
        ) from None
    except Exception as error:  # nbformat has many ways to refuse
        raise Unreadable(
            f"The file is no notebook that can be read ({type(error).__name__})."
        ) from None
    if len(cells) > MOST or any(len(cell.source) > LONGEST for cell in cells):
        raise Unreadable(
            f"The notebook has more than {MOST} cells, or one of {LONGEST} characters."
        )
    if not types <= {"code", "markdown", "raw"}:
        raise Unreadable(f"The notebook has cells of an unknown kind: {sorted(map(str, types))}.")
    notebook.cells = cells
    return notebook


def by_name(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """Return the cells that have a name; of several with one name, the last."""
    return {identity(cell): cell for cell in notebook.cells if identity(cell)}


def stated(cell: Mapping[str, Any] | None, name: str) -> str:
    """Return the text that a cell assigns to a name, without running it."""
    try:
        tree = ast.parse(str(cell["source"])) if cell is not None else ast.Module([], [])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and [getattr(one, "id", "") for one in node.targets] == [name]
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            return node.value.value
    return ""


def who_source(student: str, salt: str) -> str:
    """Return the cell that says whose notebook it is."""
    return f"STUDENT = {student!r}\nSALT = {salt!r}"


def to_run(submitted: NotebookNode, master: NotebookNode, student: str, salt: str) -> list[Cell]:
    """Return the cells to run: the author's as the author wrote them, the student's as submitted.

    The author's opening cells come first, whatever the student did to them; graded cells are never
    run, since the judge asks for values instead.
    """
    fixed = {
        identity(cell): cell.source
        for cell in master.cells
        if cell.cell_type == "code" and is_fixed(cell)
    }
    fixed[WHO] = who_source(student, salt)
    present = {identity(cell) for cell in submitted.cells}
    first: list[str] = []
    for cell in master.cells:  # all before the first answer
        if identity(cell) in fixed:
            first.append(identity(cell))
        elif identity(cell):
            break
    first += [name for name in fixed if name not in first and name not in present]
    cells = [Cell(name, fixed[name]) for name in first]
    done, tests = {*first, INSTALL}, {identity(cell) for cell in master.cells if is_test(cell)}
    for number, cell in enumerate(submitted.cells, start=1):
        name = identity(cell)
        if cell.cell_type != "code" or name in done or name in tests:
            continue
        if name in fixed:
            done.add(name)
        cells.append(Cell(name or f"number {number}", fixed.get(name, cell.source)))
    return cells


def digest_of_code(source: str) -> str:
    """Digest code up to comments, blanks and the names it gives; empty for what does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = known.setdefault(node.id, f"n{len(known)}")
        elif isinstance(node, ast.arg):
            node.arg = known.setdefault(node.arg, f"n{len(known)}")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""  # a docstring
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def judge(
    assignment: Assignment,
    submitted: NotebookNode,
    blank: NotebookNode,
    student: str,
    *,
    salt: str,
    limits: Limits,
    trust: bool = False,
) -> tuple[Result, NotebookNode]:
    """Run a submission, ask it, and return the result and the graded notebook.

    ``blank`` is the notebook as it was released.
    """
    result = Result(student, assignment.name)
    mine = by_name(submitted)
    result.notes += whose(mine.get(WHO), student, salt)
    empty = by_name(blank)
    cells = to_run(submitted, assignment.master, student, salt)
    instance = assignment.instance(student, salt)
    started = time.monotonic()
    with Session(cells, limits, trust) as session:
        try:
            session.run()
        except Lost as lost:
            result.notes.append(f"The notebook could not be run to its end: {lost}.")
        result.notes += troubles(cells, session.ran)
        probe = Probe(session.ask)
        for test, points in assignment.tests.items():
            verdict = ask(assignment, test, probe, instance)
            earned = round(points * verdict.fraction, 4)
            result.marks[test] = Mark(earned, points, verdict.sentence, verdict.fault)
    for name, points in assignment.manual.items():
        text = str(mine[name].source) if name in mine else ""
        unchanged = text.strip() in ("", str(empty[name].source).strip())
        result.written[name] = Written(points, text, unchanged)
    for name, cell in mine.items():
        answers = name in empty and found(empty[name]).get("solution")
        if answers and cell.cell_type == "code" and cell.source != empty[name].source:
            result.code[name] = digest_of_code(cell.source)
    result.seconds = round(time.monotonic() - started, 2)
    return result, graded(blank, submitted, cells, session.ran, result)


def ask(assignment: Assignment, test: str, probe: Probe, instance: Any) -> Verdict:
    """Return the verdict of one verifier; a value that it cannot use is a wrong one."""
    try:
        return assignment.verifier(test)(probe, instance)
    except ProbeError as error:
        return Verdict(0.0, error.sentence, error.fault)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        return Verdict(
            0.0, f"The answer has not the form that the task asks for ({error}).", "wrong form"
        )


def whose(cell: Mapping[str, Any] | None, student: str, salt: str) -> list[str]:
    """Say if the notebook names somebody else, or another year."""
    notes, named = [], stated(cell, "STUDENT")
    if named in ("", NOBODY):
        notes.append(f"The notebook does not say whose it is; it was graded as {student}'s.")
    elif normalise(named) != normalise(student):
        notes.append(
            f"The notebook says STUDENT = {named!r}; it was handed in by {student} and graded with "
            f"the numbers of {student}."
        )
    if cell is not None and stated(cell, "SALT") != salt:
        notes.append("The notebook was drawn with another SALT than the course's.")
    return notes


def troubles(cells: list[Cell], ran: Mapping[int, Ran]) -> list[str]:
    """Say which cells failed, and how; at most ten of them."""
    notes = []
    for number, cell in enumerate(cells):
        one = ran.get(number)
        if one is None:
            continue
        errors = [output for output in one.outputs if output["output_type"] == "error"]
        if one.trouble:
            notes.append(f"Cell {cell.name}: {one.trouble}.")
        elif errors and errors[-1]["ename"] != "NotImplementedError":
            told = " ".join(errors[-1]["evalue"].split())[:200]
            notes.append(f"Cell {cell.name} raised {errors[-1]['ename']}: {told}")
    return notes if len(notes) <= 10 else [*notes[:10], f"{len(notes) - 10} more cells failed."]


def graded(
    blank: NotebookNode,
    submitted: NotebookNode | None,
    cells: list[Cell],
    ran: Mapping[int, Ran],
    result: Result,
) -> NotebookNode:
    """Return the notebook that nbgrader records: every graded cell is there, with its verdict.

    It is the released notebook, with the student's answers and outputs filled in, and the student's
    own further cells behind the cell that they followed. Test cells hold the verdict's sentence,
    and the points as the value that nbgrader reads.
    """
    outputs = {cells[number].name: one.outputs for number, one in ran.items()}
    mine = by_name(submitted) if submitted is not None else {}
    notebook = copy.deepcopy(blank)
    kept: list[NotebookNode] = [notice(result)]
    extra = strangers(submitted) if submitted is not None else {}
    kept += extra.pop("", [])
    for cell in notebook.cells:
        name = identity(cell)
        if name == INSTALL:
            continue
        if is_test(cell):
            mark = result.marks[name]
            cell["outputs"] = [
                nbformat.v4.new_output("stream", name="stdout", text=mark.sentence + "\n"),
                nbformat.v4.new_output(
                    "execute_result", data={"text/plain": f"{mark.points:g}"}, execution_count=None
                ),
            ]
        elif name in mine and not is_fixed(cell):
            cell["source"] = mine[name].source
        if cell.cell_type == "code" and name in outputs and not is_test(cell):
            cell["outputs"] = [nbformat.from_dict(one) for one in outputs[name]]
        kept += [cell, *extra.pop(name, [])] if name else [cell]
    for number, cell in enumerate(kept):
        cell["id"] = f"cell-{number:03d}"
    notebook.cells = kept
    return notebook


def notice(result: Result) -> NotebookNode:
    """Return the first cell of a graded notebook: what has to be said before anything else."""
    lines = [f"# {result.assignment}: {result.student}", ""]
    lines += [f"- {escaped(note)}" for note in result.notes]
    lines += ["", "| task | points | |", "| --- | --- | --- |"]
    for test, mark in result.marks.items():
        sentence = escaped(" ".join(mark.sentence.split()))
        name = test.removeprefix(TEST)
        lines.append(f"| {name} | {mark.points:g} of {mark.out_of:g} | {sentence} |")
    return nbformat.v4.new_markdown_cell("\n".join(lines))


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|$" else c for c in text)


def strangers(submitted: NotebookNode) -> dict[str, list[NotebookNode]]:
    """Return the student's own code cells, by the named cell that they follow."""
    groups: dict[str, list[NotebookNode]] = {}
    last = ""
    for cell in submitted.cells:
        if identity(cell):
            last = identity(cell)
        elif cell.cell_type == "code" and cell.source.strip():
            groups.setdefault(last, []).append(nbformat.v4.new_code_cell(cell.source))
    return groups


def refused(
    assignment: Assignment, blank: NotebookNode, student: str, sentence: str
) -> tuple[Result, NotebookNode]:
    """Return the result of a submission that could not be graded at all: nothing, and why."""
    result = Result(student, assignment.name, [sentence])
    for test, points in assignment.tests.items():
        result.marks[test] = Mark(0.0, points, sentence, "not readable")
    for name, points in assignment.manual.items():
        result.written[name] = Written(points, "", True)
    return result, graded(blank, None, [], {}, result)
