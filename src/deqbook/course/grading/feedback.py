"""A page for each student: the notebook as it ran, the points, and a sentence for every task.

nbgrader's exporter makes the page. What it holds of a student's making is text and pictures only,
and the page is told to load and run nothing: it opens without a network, on any machine, safely.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from bs4 import BeautifulSoup
from nbformat import NotebookNode

from deqbook.course.grading.assignment import Assignment, identity
from deqbook.course.grading.classroom import Course
from deqbook.course.grading.files import replace
from deqbook.course.grading.marks import Total, database
from deqbook.course.grading.release import nbgrader_at_work

#: Nothing is loaded and nothing runs; styles and pictures are in the page itself.
POLICY = (
    '<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:\">"
    "<style>td, th { padding: .1em 1em .1em 0; }</style>"
)
#: What a page could run or load something with, and what a link may lead to.
ACTIVE = ["script", "link", "iframe", "object", "embed", "form", "base", "meta", "svg", "video"]
LINKS = ("#", "https://", "http://", "mailto:")


def path_of(course: Course, assignment: Assignment, total: Total) -> Path:
    """Return where the page of a student is."""
    return course.out / "feedback" / total.student.key / assignment.name / f"{assignment.name}.html"


def write(course: Course, assignment: Assignment, totals: Sequence[Total]) -> int:
    """Write the pages that are not there or not up to date; return how many these were."""
    made = 0
    exporter = None
    for total in totals:
        path, source = path_of(course, assignment, total), course.graded(assignment, total.student)
        rows = [f"{row.points} {row.comment}" for row in total.written.values()]
        mark = hashlib.sha256(
            "\0".join([source.read_text(encoding="utf-8"), *rows]).encode()
        ).hexdigest()
        if path.is_file() and f"<!-- {mark} -->" in path.read_text(encoding="utf-8"):
            continue
        exporter = exporter or make_exporter()
        replace(path, page(exporter, course, assignment, total, mark))
        made += 1
    return made


def make_exporter() -> Any:
    """Return nbconvert's exporter with nbgrader's template, as nbgrader sets it up."""
    with nbgrader_at_work():
        import nbgrader
        from nbconvert.exporters import HTMLExporter
        from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
        from nbgrader.preprocessors import GetGrades
        from traitlets.config import Config

        folder = Path(nbgrader.__file__).parent / "server_extensions" / "formgrader"
        config = Config()
        config.HTMLExporter.template_name = "feedback"
        config.HTMLExporter.extra_template_basedirs = [str(folder / "templates")]
        config.HTMLExporter.extra_template_paths = [
            str(folder / "static" / "node_modules" / "bootstrap" / "dist" / "css")
        ]
        config.HTMLExporter.sanitize_html = True
        config.HTMLExporter.mathjax_url = config.HTMLExporter.require_js_url = ""
        exporter = HTMLExporter(config=config)
        for step in (GetGrades, CSSHTMLHeaderPreprocessor):
            exporter.register_preprocessor(step, enabled=True)
        return exporter


def page(exporter: Any, course: Course, assignment: Assignment, total: Total, mark: str) -> str:
    """Return the page of one student."""
    notebook = short(nbformat.read(course.graded(assignment, total.student), as_version=4))
    unmarked = [cell for cell, row in total.written.items() if row.points is None]
    if unmarked:
        notebook.cells[0].source += f"\n\nNot marked yet: {', '.join(unmarked)}."
    name = assignment.name
    resources = {
        "nbgrader": {
            "db_url": database(course.out),
            "assignment": name,
            "notebook": name,
            "student": total.student.key,
        }
    }
    with nbgrader_at_work():
        html, _ = exporter.from_notebook_node(notebook, resources=resources)
    return closed(html).replace("<head>", f"<head>\n<!-- {mark} -->", 1)


def short(notebook: NotebookNode) -> NotebookNode:
    """Return a graded notebook with no more of the tasks' own text than their titles.

    The student has the tasks. And a page that runs nothing cannot set their formulas.
    """
    for cell in notebook.cells[1:]:
        if cell.cell_type == "markdown" and not identity(cell):
            titles = [line for line in cell.source.splitlines() if line.startswith("#")]
            cell.source = "\n\n".join(titles)
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip()]
    return notebook


def closed(html: str) -> str:
    """Return a page that asks no other host for anything and runs nothing."""
    soup = BeautifulSoup(html, "html.parser")
    for tag in soup.find_all(ACTIVE):
        tag.decompose()
    for tag in soup.find_all(True):
        for name in list(tag.attrs):
            value = "".join(str(tag.attrs[name]).split()).lower()
            loads = name in ("src", "srcset", "data", "poster", "background")
            if (
                name.startswith("on")
                or (loads and not value.startswith("data:image/"))
                or (name in ("href", "action", "formaction") and not value.startswith(LINKS))
            ):
                del tag.attrs[name]
    return str(soup).replace("<head>", f"<head>\n{POLICY}", 1)
