"""The errata page: what every entry has, its tables, and how other pages refer to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from errata_page import COUNTER, KINDS, PAGE, SOURCES, Erratum, errata
from sphinx.errors import ExtensionError

from deqbook.claims import find, statements

ROOT = PAGE.parent.parent
ENTRIES = errata(PAGE.read_text(encoding="utf-8"))
LABELS = {one.anchor: one.label for one in ENTRIES}
PROSE = sorted([*ROOT.glob("chapters/*.md"), *ROOT.glob("book/*.md"), *ROOT.glob("*.md")])
CODE = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("assignments/**/*.*")])
#: A reference to an erratum, with what it shows.
REFERENCE = re.compile(r"\{ref\}`([^`<]*?)\s*<(errata-(?:[a-z0-9]+)-[eol]\d+[ab]?)>`")


@pytest.mark.parametrize("one", ENTRIES, ids=lambda one: one.label)
def test_an_entry_has_its_parts(one: Erratum) -> None:
    short, version = SOURCES[one.source]
    assert one.anchor == f"errata-{short}-{one.label.partition('-')[2].lower()}"
    assert one.kind in KINDS
    assert one.read == version
    assert one.section == ("Remarks" if one.kind == "remark" else one.source)
    for part in (one.survives, one.printed, one.charitable, one.right):
        assert len(part.split()) > 0
    known = {statement.id for statement in statements()}
    assert one.claims
    assert [name for name in one.claims if name not in known and not _own(name)] == []


def _own(name: str) -> bool:
    """Whether this is a claim about a statement of the book itself."""
    return name.startswith("book.") and find(name).id == name


def test_labels_are_unique_and_every_heading_is_an_entry() -> None:
    headings = re.findall(r"^### (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [f"{one.label}. {one.title}" for one in ENTRIES]
    assert len({one.label for one in ENTRIES}) == len(ENTRIES)


def test_every_source_says_what_was_read() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for source, (_, version) in SOURCES.items():
        assert page.count(f"\n| {source} | {version} | ") == 1


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_references_show_the_label_with_its_source(page: Path) -> None:
    for shown, anchor in REFERENCE.findall(page.read_text(encoding="utf-8")):
        assert anchor in LABELS, f"{page.name}: no entry {anchor}"
        assert shown == LABELS[anchor], f"{page.name}: {shown!r} for {LABELS[anchor]}"


@pytest.mark.parametrize("page", [*PROSE, *CODE], ids=lambda page: page.stem)
def test_no_label_is_named_without_its_source(page: Path) -> None:
    text = page.read_text(encoding="utf-8", errors="replace")
    assert re.findall(rf"\berrat(?:um|a),?\s+{COUNTER}\b", text) == []
    named = re.findall(rf"\b((?:{'|'.join(SOURCES)})-{COUNTER})\b", text)
    assert set(named) <= set(LABELS.values())


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("**Kind:** false · ", "**Kind:** false, ", "Kind"),
        ("**Survives.**", "**Stays.**", "Survives"),
        ("**Charitable reading.**", "**Reading.**", "Charitable"),
        (" · **Claim:** `", " · `", "Claim"),
        ("### gao2022-E2.", "### E2.", "label"),
    ],
)
def test_an_entry_without_a_part_is_noticed(old: str, new: str, complaint: str) -> None:
    broken = PAGE.read_text(encoding="utf-8").replace(old, new, 1)
    with pytest.raises(ExtensionError, match=complaint):
        errata(broken)
