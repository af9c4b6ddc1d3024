"""The course on the site: notebooks of the assignments, the list of them, the teaching guide."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

import branch
import built_site
import coursework
import nbformat
import place
import pytest
from bs4 import BeautifulSoup, Tag
from sphinx.errors import ExtensionError

from deqbook.course.grading import assignment as course
from deqbook.course.grading.release import published, released

ROOT = built_site.ROOT
LISTED = coursework.read_all(ROOT)
GUIDE = (ROOT / "book" / "teaching.md").read_text(encoding="utf-8")
CHAPTERS = [page for page in built_site.toc_pages() if page.startswith("chapters/")]
FORK = {"GITHUB_REPOSITORY": "Some/fork.name"}
each = pytest.mark.parametrize("one", LISTED, ids=lambda one: one.short)


def section(title: str) -> str:
    """Return a section of the guide, by the beginning of its title."""
    (found,) = re.findall(rf"^## {title}.*?$(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    return found


# --- what a master says at its head ---------------------------------------------------------

HEAD = "# Assignment 3: x and y\n\n| task | kind | points |\n| --- | --- | --- |\n"


def test_the_head_of_a_master_is_read() -> None:
    rows = "| 1 One | implement | 60 |\n| 2 The $x$ of y? | explain | 40 |\n"
    body = "\n## Task 1. One (60 points)\n\n## Task 2. The $x$ of y? (40 points)\n"
    found = coursework.listed("a03_x", HEAD + rows + body)
    assert (found.number, found.title, found.short) == (3, "x and y", "a03")
    assert found.tasks[1] == coursework.Task(2, "The $x$ of y?", "explain", 40)
    assert found.notebook == "assignments/a03_x.ipynb"


@pytest.mark.parametrize("text", ["no title", HEAD + "\n## Task 1. Not in the table (9 points)\n"])
def test_a_master_with_a_bad_head_is_refused(text: str) -> None:
    with pytest.raises(ExtensionError, match=r"assignments/a03_x\.md has to begin with"):
        coursework.listed("a03_x", text)


def test_every_chapter_has_its_assignment() -> None:
    chapters = sorted({int(Path(page).name[:2]) for page in CHAPTERS})
    assert [one.number for one in LISTED] == chapters
    assert [one.short for one in LISTED] == [f"a{number:02d}" for number in chapters]


# --- the notebooks and the list -------------------------------------------------------------


@pytest.mark.book
@each
def test_the_notebook_on_the_site_is_the_released_one(one: coursework.Listed) -> None:
    site = built_site.require_site()
    found = nbformat.read(site / one.notebook, as_version=4)
    where = published(place.site_address(os.environ), site, "../")
    wanted = released(
        course.load(ROOT / "assignments", one.name), salt=place.salt(os.environ), where=where
    )
    assert found == wanted
    assert where.wheel is not None
    name = where.wheel.address.rpartition("/")[2]
    assert (site / "wheels" / name).is_file()
    assert f"wheels/{name}" in found.cells[1].source


@pytest.mark.book
def test_nothing_else_is_in_the_folder() -> None:
    folder = built_site.require_site() / coursework.FOLDER
    assert sorted(path.name for path in folder.iterdir()) == [f"{one.name}.ipynb" for one in LISTED]


@pytest.mark.book
@each
def test_the_list_leads_to_the_notebook_and_to_the_chapter(one: coursework.Listed) -> None:
    site = built_site.require_site()
    page = site / "book" / "assignments.html"
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    head = soup.find(id=f"assignment-{one.number}")
    assert isinstance(head, Tag)
    about, tasks, ways = head.find_next_siblings(limit=3)
    read = [str(a["href"]) for a in about.find_all("a")]
    assert [Path(path).stem for path in read] == [
        Path(page).name for page in CHAPTERS if int(Path(page).name[:2]) == one.number
    ]
    assert len(tasks.find_all("li")) == len(one.tasks)
    assert all(f"{task.kind}, {task.points} points" in tasks.get_text() for task in one.tasks)
    assert (page.parent / unquote(str(ways.find("a")["href"]))).resolve() == site / one.notebook


@pytest.mark.book
@each
def test_links_of_a_fork_lead_to_files_of_its_branch(
    one: coursework.Listed, tmp_path: Path
) -> None:
    site = built_site.require_site()
    branch.write_tree(ROOT, site, tmp_path / "tree", "A book", place.site_address(FORK))
    (_, download), (_, colab), (_, binder) = coursework.links(
        one, "book/assignments", place.home(FORK)
    )
    start = "https://colab.research.google.com/github/Some/fork.name/blob/notebooks/"
    assert (tmp_path / "tree" / colab.removeprefix(start)).is_file()
    start = "https://mybinder.org/v2/gh/Some/fork.name/notebooks?urlpath=lab/tree/"
    assert (tmp_path / "tree" / binder.removeprefix(start)).is_file()
    assert (site / "book" / download).resolve().is_file()
    readme = (tmp_path / "tree" / "README.md").read_text(encoding="utf-8")
    assert f"({one.notebook})" in readme
    assert [text for text, _ in coursework.links(one, "x", place.home({}))] == ["download"]


def test_the_word_of_the_year_comes_from_the_environment() -> None:
    assert place.salt({}) == ""
    assert place.salt({"DEQBOOK_SALT": "2027"}) == "2027"


# --- the guide ------------------------------------------------------------------------------


def test_the_ten_weeks_have_every_page_and_every_assignment() -> None:
    plan = section("Ten weeks")
    weeks = re.findall(r"^- \*\*Week (\d+)\.\*\*", plan, re.MULTILINE)
    assert [int(week) for week in weeks] == list(range(1, 11))
    assert sorted(re.findall(r"\{doc\}`/(chapters/[^`]+)`", plan)) == sorted(CHAPTERS)
    due = [int(number) for number in re.findall(r"Due: assignment (\d)", plan)]
    assert due == [one.number for one in LISTED]
    # Nothing is due before its chapter has been read.
    lines = [line for line in plan.splitlines() if line.startswith("- ")]
    for one in LISTED:
        at = next(n for n, line in enumerate(lines) if f"Due: assignment {one.number}" in line)
        pages = "\n".join(lines[: at + 1])
        if one.number != 5:  # its last page is a project, which no task needs
            assert all(
                f"`/{page}`" in pages for page in CHAPTERS if Path(page).name[:2] == one.short[1:]
            )


@each
def test_every_task_belongs_to_a_goal(one: coursework.Listed) -> None:
    goals = section("Goals")
    (part,) = re.findall(
        rf"^\*\*Chapter {one.number}\*\*(.*?)(?=^\*\*Chapter |\Z)", goals, re.MULTILINE | re.DOTALL
    )
    told = {
        int(number)
        for one in re.findall(r"\(tasks? ([\d, and]+)\)", part)
        for number in re.findall(r"\d", one)
    }
    assert told == {task.number for task in one.tasks}
    for line in re.findall(r"^- .*(?:\n  .*)*", part, re.MULTILINE):
        assert re.search(r"\(tasks? ", line), f"which task tests it? {line}"


@pytest.mark.book
def test_the_times_are_those_at_the_pages_heads() -> None:
    site = built_site.require_site()
    soup = BeautifulSoup((site / "book" / "teaching.html").read_text("utf-8"), "html.parser")
    rows = [
        [cell.get_text().strip() for cell in row.find_all("td")]
        for row in soup.select("table.deq-times tbody tr")
    ]
    assert len(rows) == len(CHAPTERS) + 1
    for page, (_, minutes, longer, exercises) in zip(CHAPTERS, rows, strict=False):
        html = BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser")
        told = [int(n) for n in re.findall(r"\d+", html.select_one(".deq-opening span").get_text())]
        assert told[0] == int(minutes)
        assert sum(told) == int(longer)
        assert len(html.select("div.exercise.admonition")) == int(exercises)
    sums = [sum(int(row[n]) for row in rows[:-1]) for n in (1, 2, 3)]
    assert [int(cell) for cell in rows[-1][1:]] == sums
