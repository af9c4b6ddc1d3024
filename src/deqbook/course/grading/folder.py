"""Find the submissions in a folder, and say whose they are.

Three ways of handing in are understood: nbgrader's, a folder for each student; Moodle's, a folder
``Name_123_assignsubmission_file_``; and flat, as Canvas gives them, ``student_anything.ipynb``. A
roster says which name, address or number belongs to which id. Links are not followed.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deqbook.course.instance import normalise

#: How Moodle names the folder of a submission.
MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_file_?$")
#: Columns of a roster that may name a student, the id first.
COLUMNS = (
    "id",
    "student",
    "username",
    "login",
    "email",
    "name",
    "canvas_id",
    "sis_id",
    "moodle_id",
)


class FolderError(ValueError):
    """The folder or the roster cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Student:
    """One student: the id that the numbers are drawn from, and what else the roster says."""

    id: str
    known: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """Return the id as it was written, for tables of others."""
        return self.known.get("id") or self.known.get("student") or self.id

    @property
    def key(self) -> str:
        """Return the id as the name of a file: letters, digits, dots and dashes.

        >>> Student("student-01").key, Student("zoë b").key
        ('student-01', 'zo-b-0f9b6e')
        """
        plain = re.sub(r"[^A-Za-z0-9.-]+", "-", self.id).strip("-.")
        if plain == self.id:
            return plain
        mark = hashlib.sha256(self.id.encode()).hexdigest()[:6]
        return f"{plain[:40].strip('-.') or 'student'}-{mark}"


@dataclass(frozen=True)
class Handed:
    """What one student handed in: the file that is graded, and what has to be said about it."""

    student: Student
    path: Path | None  # nothing, if the roster has the student and the folder has not
    notes: tuple[str, ...] = ()


def read_roster(path: Path) -> list[Student]:
    """Read a roster: a CSV with a column ``id``, and others that may name a student."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FolderError(f"the roster {path} cannot be read: {error}.") from None
    rows = list(csv.DictReader(text.splitlines()))
    if not rows or not {"id", "student"} & {str(name).strip().lower() for name in rows[0]}:
        raise FolderError(
            f"the roster {path} needs a line of titles with a column “id”, and students."
        )
    students = []
    for row in rows:
        said = {
            str(k).strip().lower(): (v or "").strip() for k, v in row.items() if isinstance(v, str)
        }
        name = normalise(said.get("id") or said.get("student") or "")
        if name:
            students.append(Student(name, said))
    doubled = {one.id for one in students if [two.id for two in students].count(one.id) > 1}
    if doubled:
        raise FolderError(f"the roster {path} has twice: {', '.join(sorted(doubled))}.")
    return students


def squashed(text: str) -> str:
    """Return a name without blanks, accents apart, as file names of Canvas have it."""
    return re.sub(r"[\W_]+", "", normalise(text))


def index(roster: Sequence[Student]) -> dict[str, Student]:
    """Return who is meant by each word of a roster; a word of two students means neither."""
    meant: dict[str, Student | None] = {}
    for student in roster:
        for word in {student.id, *(student.known.get(column, "") for column in COLUMNS)}:
            for form in {normalise(word), squashed(word)} - {""}:
                meant[form] = student if meant.get(form, student) is student else None
    return {word: student for word, student in meant.items() if student is not None}


def owner(label: str, roster: Mapping[str, Student], flat: bool) -> Student | None:
    """Return whose submission has this label: a folder's name, or a file's."""
    moodle = MOODLE.match(label)
    words = [moodle["name"], moodle["number"]] if moodle else [label]
    if flat and not moodle:
        parts = label.split("_")
        words += ["_".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)] + parts[1:]
    for word in words:
        for form in (normalise(word), squashed(word)):
            if form in roster:
                return roster[form]
    if roster:
        return None
    name = moodle["name"] if moodle else label.partition("_")[0] if flat else label
    return Student(normalise(name), {"id": name.strip()}) if normalise(name) else None


def natural(path: Path) -> tuple[object, ...]:
    """Return a key that sorts x2 before x10."""
    parts = re.split(r"(\d+)", path.as_posix())
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts if part)


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Return files by their time, the last first; those of one time by name."""
    return sorted(paths, key=lambda one: (one.lstat().st_mtime_ns, natural(one)), reverse=True)


def notebooks(folder: Path) -> list[Path]:
    """Return the notebooks below a folder, without links, hidden folders and checkpoints."""
    found = []
    for path, names, files in os.walk(folder):
        names[:] = [n for n in names if not n.startswith(".") and not Path(path, n).is_symlink()]
        for name in files:
            file = Path(path, name)
            if name.endswith(".ipynb") and not name.startswith(".") and not file.is_symlink():
                found.append(file)
    return found


def fitting(paths: Sequence[Path], folder: Path, assignment: str) -> list[Path]:
    """Return the files of one assignment, if some are named after it; else all.

    >>> fitting([Path("f/a01.ipynb"), Path("f/a02.ipynb")], Path("f"), "a01_wellposedness")
    [PosixPath('f/a01.ipynb')]
    """
    short = assignment.partition("_")[0]
    other = re.compile(r"(?:^|[/_ -])(a\d\d)(?=[_./ -]|$)", re.IGNORECASE)
    kept = []
    for path in paths:
        named = {one.lower() for one in other.findall(path.relative_to(folder).as_posix())}
        if not named or short in named:
            kept.append(path)
    return kept


def find(
    folder: Path, assignment: str, roster: Sequence[Student] = ()
) -> tuple[list[Handed], list[str]]:
    """Return what was handed in, one for each student, and what could not be placed."""
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}.")
    known = index(roster)
    groups: dict[str, tuple[Student, list[Path]]] = {}
    lost = []
    entries = [
        (p, notebooks(p), False)
        for p in sorted(folder.iterdir())
        if p.is_dir() and not p.is_symlink()
    ]
    entries += [
        (p, [p], True) for p in sorted(folder.iterdir()) if p.is_file() and p.suffix == ".ipynb"
    ]
    for entry, paths, flat in entries:
        if entry.name.startswith(".") or entry.is_symlink():
            continue
        student = owner(entry.stem if flat else entry.name, known, flat)
        if student is None:
            lost.append(f"{entry.name}: nobody of the roster")
        else:
            groups.setdefault(student.id, (student, []))[1].extend(
                fitting(paths, folder, assignment)
            )
    for student in roster:
        groups.setdefault(student.id, (student, []))
    handed = []
    for _, (student, paths) in sorted(groups.items()):
        if not paths and not known:
            continue  # a folder without a notebook of this assignment
        ordered = newest_first(paths)
        notes: tuple[str, ...] = ()
        if len(ordered) > 1:
            others = ", ".join(path.name for path in ordered[1:4])
            notes = (
                f"{len(ordered)} files were handed in; {ordered[0].name}, the newest, was graded, "
                f"not {others}.",
            )
        handed.append(Handed(student, ordered[0] if ordered else None, notes))
    return handed, lost
