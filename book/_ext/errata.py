"""The errata page as a tool: a table of its entries, made from them, and folded details.

An entry is a section with a label, ``### gao2022-E3. Title``, and a first line that says its kind,
the version read and the claims. ``{errata-table}`` counts the entries by kind and lists them with
their titles; a script of the page (``tables.js``) filters and sorts. What follows the part
"Survives" is folded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from ledger import literally
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from theorems import folded_proof

PAGE = "book/errata"
#: The most serious first; an entry with several items has the first that fits one of them.
KINDS = ("false", "wrong constant", "proof gap", "misprint", "legibility", "remark")
#: Source -> how its anchors call it, and in which version it was read.
SOURCES = {
    "gao2022": ("gao2022", "converted text"),
    "gao2023": ("gao2023", "manuscript"),
    "ling2023": ("ling2023", "review copy"),
    "nguyen2022": ("nguyen", "thesis"),
    "xie2022": ("xie", "preprint"),
}
#: One counter of an entry, in a label.
COUNTER = r"[EOL]\d+[ab]?"


@dataclass(frozen=True)
class Erratum:
    """One entry, as its first lines describe it."""

    anchor: str
    section: str
    label: str
    title: str
    kind: str
    read: str
    claims: tuple[str, ...]
    survives: str
    printed: str
    charitable: str
    right: str

    @property
    def source(self) -> str:
        """The source that it is about."""
        return self.label.partition("-")[0]


def errata(page: str) -> list[Erratum]:
    """Return all entries in the order of the page; an entry without all its parts is an error."""
    section, found = "", []
    for piece in re.split(r"^(?=\(errata-)", page, flags=re.MULTILINE):
        anchor = re.match(r"\((errata-[a-z0-9-]+)\)=\n", piece)
        if heading := re.search(r"^## (.*)$", piece, re.MULTILINE):
            section = heading[1]
        if anchor and "\n### " in piece:
            found.append(_erratum(anchor[1], section, piece))
    return found


def _erratum(anchor: str, section: str, piece: str) -> Erratum:
    title = re.search(rf"^### ([a-z]+\d+-{COUNTER})\. (.+)$", piece, re.MULTILINE)
    if not title:
        raise ExtensionError(f"{anchor}: the title must begin with a label such as gao2022-E1.")
    first, *parts = re.sub(r"(?<=\S)\n(?=\S)", " ", piece[title.end() :]).strip().split("\n\n")
    head = re.fullmatch(r"\*\*Kind:\*\* (.+) · \*\*Read in:\*\* (.+) · \*\*Claim:\*\* (.+)", first)
    if not head or head[1] not in KINDS:
        raise ExtensionError(
            f"{anchor}: expected '**Kind:** … · **Read in:** … · **Claim:** …' with one of "
            f"{', '.join(KINDS)}, got {first!r}."
        )

    def part(name: str) -> str:
        told = [one for one in parts if one.startswith(f"**{name}")]
        if len(told) != 1:
            raise ExtensionError(f"{anchor}: {len(told)} parts {name!r}, expected one.")
        return re.sub(r"^\*\*.*?\*\*\s*", "", told[0])

    return Erratum(
        anchor,
        section,
        title[1],
        title[2],
        kind=head[1],
        read=head[2],
        claims=tuple(re.findall(r"`([^`]+)`", head[3])),
        survives=part("Survives."),
        printed=part("Printed**"),
        charitable=part("Charitable reading."),
        right=part("Right."),
    )


def counts(entries: Sequence[Erratum]) -> str:
    """Return the table of the numbers of entries, kind by source."""
    number = Counter((one.kind, one.source) for one in entries)
    rows = [["kind", *SOURCES, "all"], ["---"] * (len(SOURCES) + 2)]
    for kind in KINDS:
        row = [number[kind, source] for source in SOURCES]
        rows.append([kind, *(str(n) if n else "–" for n in row), str(sum(row))])
    columns = [sum(number[kind, source] for kind in KINDS) for source in SOURCES]
    rows.append(["all", *map(str, columns), str(sum(columns))])
    return _table(rows)


def listed(entries: Sequence[Erratum]) -> str:
    """Return the table of all entries."""
    rows = [["entry", "kind", "what", "claims"], ["---"] * 4]
    for one in entries:
        claims = ", ".join(f"`{name}`" for name in one.claims)
        title = one.title if "$" in one.title else literally(one.title)
        rows.append([f"{{ref}}`{one.label} <{one.anchor}>`", one.kind, title, claims])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


class ErrataTable(SphinxDirective):
    """``{errata-table}``: how many entries of each kind, and all of them."""

    def run(self) -> list[nodes.Node]:
        """Make both tables from the page itself."""
        entries = errata(Path(self.env.doc2path(self.env.docname)).read_text(encoding="utf-8"))
        text = [
            counts(entries),
            '<div class="deq-scroll" tabindex="0" role="region" aria-label="All errata">',
            "{.deq-table .deq-errata}\n" + listed(entries),
            "</div>",
        ]
        return self.parse_text_to_nodes("\n\n".join(text))


class Fold(SphinxPostTransform):
    """Fold what an entry says after what survives."""

    default_priority = 890

    def run(self, **kwargs: Any) -> None:
        """Fold the entries of the page."""
        if self.env.docname != PAGE:
            return
        for section in self.document.findall(nodes.section):
            heads = [
                k
                for k, part in enumerate(section)
                if isinstance(part, nodes.paragraph) and part.astext().startswith("Survives.")
            ]
            if heads:
                rest = section.children[heads[0] + 1 :]
                for part in rest:
                    section.remove(part)
                section += folded_proof("", *rest, summary="What is printed, and what is right")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_directive("errata-table", ErrataTable)
    app.add_post_transform(Fold)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
