"""Marks: the sheet for people to fill in, the tables for Canvas and Moodle, nbgrader's gradebook.

All of it is made anew from the results at every run. Only one file is somebody's work: the sheet
``manual.csv``, in which a person enters points and comments. Nothing entered there is ever lost.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path

import nbformat

from deqbook.course.grading.assignment import Assignment, found, identity
from deqbook.course.grading.classroom import Course
from deqbook.course.grading.files import replace
from deqbook.course.grading.folder import Student
from deqbook.course.grading.release import nbgrader_at_work
from deqbook.course.grading.submission import Result

SHEET, READING = "manual.csv", "manual.md"
TITLES = ("assignment", "student", "cell", "points", "out_of", "comment", "changed", "digest")
#: The comment on a text that nobody wrote; its zero is ours, not a person's.
NOTHING = "Nothing was written."
#: What a table program would take for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


class MarksError(ValueError):
    """A sheet was not filled in as it should be; the message says where."""


@dataclass(frozen=True)
class Row:
    """One paragraph that a person marks."""

    assignment: str
    student: str
    cell: str
    out_of: float
    points: float | None = None
    comment: str = ""
    digest: str = ""
    changed: str = ""


@dataclass(frozen=True)
class Total:
    """What one student has for one assignment."""

    student: Student
    result: Result
    written: Mapping[str, Row] = field(default_factory=dict)

    @property
    def auto(self) -> float:
        """Return the points that the verifiers gave."""
        return round(sum(mark.points for mark in self.result.marks.values()), 4)

    @property
    def out_of(self) -> float:
        """Return all points there are."""
        marked = sum(mark.out_of for mark in self.result.marks.values())
        return marked + sum(text.out_of for text in self.result.written.values())

    @property
    def manual(self) -> float | None:
        """Return the points that people gave, or nothing if something is still to be marked."""
        given = [row.points for row in self.written.values()]
        return None if None in given else sum(one for one in given if one is not None)

    @property
    def points(self) -> float | None:
        """Return the whole mark, or nothing if something is still to be marked."""
        return None if self.manual is None else round(self.auto + self.manual, 4)


def read_sheet(path: Path) -> dict[tuple[str, str, str], Row]:
    """Read what was entered; a line that cannot be read is an error that names it."""
    if not path.is_file():
        return {}
    rows = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, line in enumerate(csv.DictReader(file), start=2):
            try:
                row = read_row(line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise MarksError(f"{path}, line {number}: {error}") from None
            rows[row.assignment, row.student, row.cell] = row
    return rows


def read_row(line: Mapping[str, str]) -> Row:
    """Read one line of the sheet."""
    out_of, text = float(line["out_of"]), line["points"].strip().replace(",", ".")
    points = float(text) if text else None
    if points is not None and not 0 <= points <= out_of:
        raise ValueError(
            f"{points:g} points for {line['student']}, where 0 to {out_of:g} are possible."
        )
    return Row(
        line["assignment"],
        unguarded(line["student"]),
        line["cell"],
        out_of,
        points,
        unguarded(line["comment"].strip()),
        line["digest"],
        line["changed"],
    )


def guarded(text: str) -> str:
    """Return a text that no table program takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def unguarded(text: str) -> str:
    """Undo `guarded`."""
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text


def table(lines: Iterable[Sequence[object]]) -> str:
    """Return lines as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for line in lines:
        writer.writerow([guarded(one) if isinstance(one, str) else number(one) for one in line])
    return file.getvalue()


def number(value: object) -> str:
    """Return a number as tables have it; nothing for what is not known yet."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def merged(
    assignment: Assignment,
    results: Mapping[str, Result],
    students: Mapping[str, Student],
    entered: Mapping[tuple[str, str, str], Row],
    elsewhere: Mapping[tuple[str, str, str], Row],
) -> list[Total]:
    """Put the marks of verifiers and people together.

    What was entered in the sheet counts before what was entered in nbgrader (``elsewhere``). A
    paragraph that nobody wrote has no points.
    """
    totals = []
    for student, result in sorted(results.items()):
        rows = {}
        for cell, written in result.written.items():
            place = (assignment.name, student, cell)
            row = Row(*place, written.out_of, digest=written.digest)
            if written.empty:
                row = changed(row, points=0.0, comment=NOTHING)
            for old in (elsewhere.get(place), entered.get(place)):
                if old is None or old.comment == NOTHING:
                    continue
                if old.points is not None or old.comment:
                    points = old.points if old.points is not None else row.points
                    late = bool(old.digest) and old.digest != written.digest
                    told = "the text changed after it was marked" if late else ""
                    row = changed(
                        row, points=points, comment=old.comment or row.comment, changed=told
                    )
                    if late:
                        row = changed(row, digest=old.digest)
            rows[cell] = row
        totals.append(Total(students[student], result, rows))
    return totals


def write_sheet(
    out: Path, totals: Sequence[Total], entered: Mapping[tuple[str, str, str], Row]
) -> None:
    """Write the sheet: what is asked for now, and whatever was entered for anything else."""
    rows = {
        (r.assignment, r.student, r.cell): r for total in totals for r in total.written.values()
    }
    rows = {**entered, **rows}
    lines = [
        (r.assignment, r.student, r.cell, r.points, r.out_of, r.comment, r.changed, r.digest)
        for _, r in sorted(rows.items())
    ]
    replace(out / SHEET, table([TITLES, *lines]))


def write_reading(out: Path, assignment: Assignment, totals: Sequence[Total]) -> None:
    """Write the paragraphs to read, under their rubrics."""
    parts = [f"# {assignment.name}: to be marked\n\nEnter points and comments in `{SHEET}`.\n"]
    for cell in assignment.master.cells:
        name = identity(cell)
        if name not in assignment.manual:
            continue
        parts.append(f"## {name} ({found(cell)['points']} points)\n\n{cell.source}\n")
        for total in totals:
            written = total.result.written.get(name)
            if written is not None and not written.empty:
                quoted = "\n".join(f"> {line}" for line in written.text.splitlines())
                parts.append(f"### {total.student.id}\n\n{quoted}\n")
    replace(out / f"{assignment.name}-{READING}", "\n".join(parts))


def write_tables(out: Path, assignment: Assignment, totals: Sequence[Total]) -> None:
    """Write the marks: a full table, one for Canvas, one for Moodle."""
    cells = [*assignment.tests, *assignment.manual]
    full: list[Sequence[object]] = [
        ("student", "name", "email", *cells, "automatic", "total", "out_of", "status", "notes")
    ]
    title = assignment.name
    canvas: list[Sequence[object]] = [
        ("Student", "ID", "SIS User ID", "SIS Login ID", "Section", title),
        ("Points Possible", "", "", "", "", totals[0].out_of if totals else None),
    ]
    moodle: list[Sequence[object]] = [
        ("username", "idnumber", "email", "fullname", title, "feedback")
    ]
    for total in totals:
        known, name = total.student.known, total.student.id
        points = [m.points for m in total.result.marks.values()] + [
            row.points for row in total.written.values()
        ]
        status = "complete" if total.points is not None else "to be marked"
        notes = " ".join(total.result.notes)
        shown, email = known.get("name", ""), known.get("email", "")
        full.append(
            (name, shown, email, *points, total.auto, total.points, total.out_of, status, notes)
        )
        login = known.get("login") or known.get("username") or total.student.shown
        canvas.append(
            (
                shown or name,
                known.get("canvas_id", ""),
                known.get("sis_id", ""),
                login,
                known.get("section", ""),
                total.points,
            )
        )
        moodle.append(
            (
                known.get("username") or total.student.shown,
                known.get("moodle_id", ""),
                email,
                shown,
                total.points,
                notes,
            )
        )
    for kind, lines in (("marks", full), ("canvas", canvas), ("moodle", moodle)):
        replace(out / f"{assignment.name}-{kind}.csv", table(lines))


# --- nbgrader's gradebook -------------------------------------------------------------------


def database(out: Path) -> str:
    """Return the address of the gradebook."""
    return f"sqlite:///{(out / 'gradebook.db').resolve()}"


def entered_in_nbgrader(
    out: Path, assignment: Assignment, students: Mapping[str, Student]
) -> dict[tuple[str, str, str], Row]:
    """Return the points and comments that people entered with nbgrader's own tools."""
    if not (out / "gradebook.db").is_file():
        return {}
    rows = {}
    with nbgrader_at_work():
        from nbgrader.api import Gradebook, MissingEntry

        with Gradebook(database(out)) as book:
            for student in students.values():
                for cell, points in assignment.manual.items():
                    place = (cell, assignment.name, assignment.name, student.key)
                    try:
                        grade, comment = book.find_grade(*place), book.find_comment(*place)
                    except MissingEntry:
                        continue
                    row = Row(assignment.name, student.id, cell, points, grade.manual_score)
                    rows[assignment.name, student.id, cell] = changed(
                        row, comment=comment.manual_comment or ""
                    )
    return rows


def record(course: Course, assignment: Assignment, totals: Sequence[Total]) -> None:
    """Enter everything in nbgrader's gradebook, so that its tools can go on from here."""
    url, name = database(course.out), assignment.name
    with nbgrader_at_work():
        from nbgrader.api import Gradebook
        from nbgrader.preprocessors import SaveAutoGrades, SaveCells

        blank = nbformat.read(course.blank(assignment), as_version=4)
        common = {"db_url": url, "assignment": name, "notebook": name}
        with Gradebook(url) as book:
            book.update_or_create_assignment(name)
        try:
            SaveCells().preprocess(blank, {"nbgrader": dict(common)})
        except RuntimeError:  # the master has other cells than when the gradebook was made
            (course.out / "gradebook.db").replace(course.out / "gradebook.old.db")
            with Gradebook(url) as book:
                book.update_or_create_assignment(name)
            SaveCells().preprocess(blank, {"nbgrader": dict(common)})
        for total in totals:
            key = total.student.key
            with Gradebook(url) as book:
                known = {k: v for k, v in {"email": total.student.known.get("email")}.items() if v}
                book.update_or_create_student(key, last_name=total.student.id, **known)
                book.update_or_create_submission(name, key)
            notebook = nbformat.read(course.graded(assignment, total.student), as_version=4)
            SaveAutoGrades().preprocess(notebook, {"nbgrader": {**common, "student": key}})
            with Gradebook(url) as book:
                for cell, row in total.written.items():
                    grade = book.find_grade(cell, name, name, key)
                    grade.manual_score, grade.needs_manual_grade = row.points, row.points is None
                    book.find_comment(cell, name, name, key).manual_comment = row.comment or None
                book.db.commit()
