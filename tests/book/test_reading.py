"""What a page tells its reader before and beside the mathematics: cost, words, marks, letters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import reading

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.md"))
PAGES = [*CHAPTERS, *sorted((ROOT / "book").glob("*.md"))]
LONGEST = 75
MARKS = ("easy", "medium", "hard", "open")

OPENING = re.compile(r"^```\{opening\}\n(.*?)^```$", re.S | re.M)
EXERCISE = re.compile(r"^`{3,}\{exercise\}[ \t]*(.*)$", re.M)
TERM = re.compile(r"\{term\}`(?:[^`<]*<([^`>]+)>|([^`<]+))`")
NAME = re.compile(r"^(?!:|#|\s)(.+)$", re.M)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def plain(term: str) -> str:
    return " ".join(term.lower().split())


def glossary(source: str) -> set[str]:
    """Return the terms of a ``glossary`` block: its lines that are not indented."""
    found = re.search(r"^:{3,}\{glossary\}\n(.*?)^:{3,}$", source, re.S | re.M)
    assert found, "no glossary"
    return {plain(name) for name in NAME.findall(found.group(1))}


def used(source: str) -> set[str]:
    """Return the terms that a page points to."""
    return {plain(target or shown) for target, shown in TERM.findall(source)}


def by_name(page: Path) -> str:
    return page.stem


# --- what the pages must have ------------------------------------------------------------------


@pytest.mark.parametrize("page", CHAPTERS, ids=by_name)
def test_a_page_opens_with_its_level_and_needs_under_its_title(page):
    source = text(page)
    found = OPENING.findall(source)
    assert len(found) == 1, f"{page.name} has {len(found)} openings"
    options = dict(re.findall(r"^:(\w+):[ \t]*(.+)$", found[0], re.M))
    assert set(options) == {"level", "needs"}
    assert re.search(r"^# .+\n\n```\{opening\}", source, re.M), "the opening follows the title"


@pytest.mark.parametrize("page", CHAPTERS, ids=by_name)
def test_no_page_takes_longer_than_a_reader_sits(page):
    minutes = reading.count(text(page)).minutes
    assert minutes <= LONGEST, f"{page.name} takes {minutes} minutes; split or fold"


@pytest.mark.parametrize("page", CHAPTERS, ids=by_name)
def test_every_exercise_says_how_hard_it_is(page):
    marks = tuple(f"({mark})" for mark in MARKS)
    bare = [title for title in EXERCISE.findall(text(page)) if not title.endswith(marks)]
    assert not bare, f"{page.name}: {bare}"


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_word_that_a_page_points_to_is_in_the_glossary(page):
    assert used(text(page)) <= glossary(text(ROOT / "book/glossary.md"))


def test_every_word_of_the_glossary_is_used():
    seen = set().union(*(used(text(page)) for page in PAGES))
    unused = glossary(text(ROOT / "book/glossary.md")) - seen
    assert not unused, ", ".join(sorted(unused))


def test_the_glossary_is_in_order():
    block = re.search(r"\{glossary\}\n(.*?)^:::", text(ROOT / "book/glossary.md"), re.S | re.M)
    assert block
    names = [plain(name) for name in NAME.findall(block.group(1))]
    assert names == sorted(set(names))


# --- the readers of this file see what is wrong ------------------------------------------------


def test_terms_are_found_with_and_without_their_own_text():
    source = "A {term}`kink`, a {term}`proximal\nmap <Proximal operator>`, `term` and {ref}`kink`."
    assert used(source) == {"kink", "proximal operator"}
    block = ":::{glossary}\nkink\n  A point.\n\nPL inequality\n  A bound.\n:::\n"
    assert glossary(block) == {"kink", "pl inequality"}


def test_an_exercise_without_a_mark_is_seen():
    titles = EXERCISE.findall("````{exercise} One (easy)\n````\n\n```{exercise} Two\n```\n")
    assert titles == ["One (easy)", "Two"]


# --- count -------------------------------------------------------------------------------------


def counted(source: str) -> dict[str, int]:
    found = reading.count(source)
    return {name: getattr(found, name) for name in reading.RATES if getattr(found, name)}


CELL = "```{{code-cell}} ipython3\n{}\n```\n"

CASES = {
    "words": ("Three plain words.\n", {"words": 3}),
    "a formula": ("Let $a+b=c$ be.\n", {"words": 2, "formulas": 1}),
    "a display": ("So\n\n$$\na=b\n$$ (eq-one)\n\nit is.\n", {"words": 3, "displays": 1}),
    "the head of a file": ("---\njupytext:\n  name: myst\n---\nOne.\n", {"words": 1}),
    "a label": ("(sec-one)=\n## Head\n", {"words": 1}),
    "a figure, not its alt text": (
        "```{glue:figure} fig\n:alt: for who cannot see\n\nCaption.\n```\n",
        {"figures": 1, "words": 2},
    ),
    "a cell": (CELL.format("a = 1\n\n# why\nb = 2"), {"code": 2}),
    "a hidden cell": (CELL.format(":tags: [hide-input]\na = 1"), {}),
    "a removed cell": (CELL.format(":tags: [remove-cell]\na = 1"), {}),
    "a panel": (CELL.format('check("x.y")'), {"panels": 1}),
    "a proof": ("````{prf:proof}\n:class: dropdown\nBy $a=b$. Done.\n````\n", {}),
    "a solution": ("````{solution} ex-one\n:class: dropdown\nFour plain words here.\n````\n", {}),
    "a theorem": ("````{prf:theorem} Name\n:label: thm-one\nTrue.\n````\n", {"words": 2}),
}


@pytest.mark.parametrize(("source", "expected"), CASES.values(), ids=CASES)
def test_a_reader_meets_what_stands_open_and_nothing_else(source, expected):
    assert counted(source) == expected


def test_proofs_are_counted_apart():
    source = "Two words.\n\n````{prf:proof}\n:class: dropdown\n$a$ and $b$ agree.\n````\n"
    assert counted(source) == {"words": 2}
    found = reading.proofs(source)
    assert (found.words, found.formulas) == (2, 2)


def test_minutes_are_the_rates_times_the_counts():
    source = "word " * 300 + "\n\n" + "$$\na\n$$\n\n" * 4 + "$x$ " * 20
    assert reading.count(source).minutes == 300 / 150 + 4 * 0.5 + 20 * 0.1
