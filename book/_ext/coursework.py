"""The assignments on the site: their notebooks for students, and the list that leads to them.

The build writes what ``deqbook assignments`` writes, without the instructor's part:

    assignments/a01_wellposedness.ipynb        no solutions, nothing of the verifiers

with the salt that the environment gives (``place.py``). A page lists them with

    ```{assignments}
    ```

in the words of the masters: titles, tasks, kinds and points are read, never written twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import digest
from docutils import nodes
from launch import elsewhere
from notebooks import CHAPTERS
from place import Home, home, salt, site_address
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

#: Where masters lie in the checkout, and notebooks on the site; where a build notes what it wrote.
FOLDER, KEPT = "assignments", "assignments.txt"
#: The code that makes a notebook from a master.
MAKERS = ("src/deqbook/course", "book/_ext/coursework.py")
_TITLE = re.compile(r"^# Assignment (\d+): (.+)$", re.MULTILINE)
_TASK = re.compile(r"^\| (\d) (.+?) \| (\w+) \| (\d+) \|$", re.MULTILINE)
_HEADING = re.compile(r"^## Task \d\.", re.MULTILINE)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A task as the table at the head of a master announces it."""

    number: int
    title: str
    kind: str
    points: int


@dataclass(frozen=True)
class Listed:
    """An assignment as its master announces it."""

    name: str  # a01_wellposedness
    number: int
    title: str
    tasks: tuple[Task, ...]

    @property
    def notebook(self) -> str:
        """Return where its notebook lies, from the root of the site or of the branch."""
        return f"{FOLDER}/{self.name}.ipynb"

    @property
    def short(self) -> str:
        """Return the short name, ``a01``."""
        return self.name.partition("_")[0]


def listed(name: str, master: str) -> Listed:
    """Read the head of a master."""
    title = _TITLE.search(master)
    tasks = tuple(Task(int(n), text, kind, int(p)) for n, text, kind, p in _TASK.findall(master))
    if title is None or len(tasks) != len(_HEADING.findall(master)):
        raise ExtensionError(
            f"{FOLDER}/{name}.md has to begin with `# Assignment N: title` and a table with a row "
            f"`| 1 title | kind | points |` for each task; {len(tasks)} such rows were found."
        )
    return Listed(name, int(title[1]), title[2], tasks)


def masters(root: Path) -> list[Path]:
    """Return the masters of the checkout, in order."""
    return sorted((root / FOLDER).glob("a[0-9]*.md"))


def read_all(root: Path) -> list[Listed]:
    """Return all assignments of the checkout."""
    return [listed(path.stem, path.read_text(encoding="utf-8")) for path in masters(root)]


# --- the list -------------------------------------------------------------------------------


def links(one: Listed, page: str, at: Home) -> list[tuple[str, str]]:
    """Return text and address of the links to a notebook, from a page of the site."""
    up = "../" * page.count("/")
    return [("download", up + quote(one.notebook)), *elsewhere(one.notebook, at).items()]


class Assignments(SphinxDirective):
    """The list of the assignments, with their tasks and with links to their notebooks."""

    def run(self) -> list[nodes.Node]:
        """Make the list."""
        root = Path(self.env.srcdir)
        for path in [root / FOLDER, *masters(root)]:  # the folder changes with what is in it
            self.env.note_dependency(str(path))
        return [node for one in read_all(root) for node in self.entry(one, root)]

    def entry(self, one: Listed, root: Path) -> list[nodes.Node]:
        """Return one assignment: a title with an anchor, its pages, its tasks, its links."""
        head = nodes.paragraph(classes=["deq-assignment"], ids=[f"assignment-{one.number}"])
        children, _ = self.state.inline_text(f"{one.title}", self.lineno)
        head += nodes.strong("", "", nodes.Text(f"Assignment {one.number}: "), *children)
        pages = sorted((root / CHAPTERS).glob(f"{one.number:02d}*.md"))
        about = nodes.paragraph()
        about += nodes.Text("Read first: ")
        for number, path in enumerate(pages):
            found, _ = self.state.inline_text(f"{{doc}}`/{CHAPTERS}/{path.stem}`", self.lineno)
            about += [nodes.Text(", " if number else ""), *found]
        about += nodes.Text(".")
        tasks = nodes.bullet_list(bullet="-")
        for task in one.tasks:
            text, _ = self.state.inline_text(task.title, self.lineno)
            points = nodes.Text(f" ({task.kind}, {task.points} points)")
            line = nodes.paragraph("", "", nodes.Text(f"Task {task.number}: "), *text, points)
            tasks += nodes.list_item("", line)
        ways = nodes.paragraph()
        ways += nodes.Text("Notebook: ")
        for number, (text, address) in enumerate(links(one, self.env.docname, home(os.environ))):
            ways += nodes.Text(", " if number else "")
            ways += nodes.reference("", text, refuri=address)
        ways += nodes.Text(".")
        return [head, about, tasks, ways]


# --- the notebooks --------------------------------------------------------------------------


def write_notebooks(root: Path, site: Path, names: Iterable[str], word: str, address: str) -> None:
    """Write the notebooks for students into a built site."""
    try:
        # Imported here: it takes seconds, and most builds have nothing to write.
        from deqbook.course.grading.assignment import load
        from deqbook.course.grading.release import published, released, write
    except ImportError as error:
        raise ExtensionError(
            f"the notebooks of the assignments need {error.name}; run `make setup`, or "
            '`pip install -c constraints.txt -e ".[course]"`.'
        ) from error
    where = published(address, site, "../")
    for name in names:
        write(
            released(load(root / FOLDER, name), salt=word, where=where),
            site / FOLDER / f"{name}.ipynb",
        )


def write_changed(app: Sphinx, exception: Exception | None) -> None:
    """Write the notebooks, if anything changed that they are made from."""
    if exception is not None or app.builder.name != "html":
        return
    root, site = Path(app.srcdir), Path(app.outdir)
    names = [path.stem for path in masters(root)]
    if not names:
        return
    word, address = salt(os.environ), site_address(os.environ)
    sources = [*masters(root), *(root / one for one in MAKERS), *(site / "wheels").glob("*.whl")]
    mark = "\n".join([digest.outside(sources), word, address])
    kept, folder = site.parent / KEPT, site / FOLDER
    there = {path.stem for path in folder.glob("*.ipynb")}
    if there == set(names) and kept.is_file() and kept.read_text(encoding="utf-8") == mark:
        return
    for name in there - set(names):
        (folder / f"{name}.ipynb").unlink()
    write_notebooks(root, site, names, word, address)
    kept.write_text(mark, encoding="utf-8")
    logger.info("deqbook: %d assignments written, without solutions", len(names))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the list; write the notebooks when the wheel is there, before the branch is made."""
    app.add_directive("assignments", Assignments)
    app.connect("build-finished", write_changed, priority=800)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
