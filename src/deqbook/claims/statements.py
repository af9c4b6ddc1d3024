"""The list of every numbered statement of the five sources, and what it is called there."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["SOURCES", "Statement", "source_of", "statements"]

SOURCES = {
    "gao2022": "Gao et al. 2022",
    "gao2023": "Gao & Gao 2023",
    "xie2022": "Xie et al. 2022",
    "nguyen2022": "Nguyen 2022",
    "ling2023": "Ling et al. 2023",
}
"""The five sources: key of an id -> citation."""
OWN = "book"
"""The key of statements that are the book's own, ``book.prop-perron`` say."""
KINDS = (
    "assumption|lemma|theorem|definition|proposition|corollary|condition|conjecture|"
    "equation|section|appendix|figure|table"
)


@dataclass(frozen=True)
class Statement:
    """One numbered statement: its id, the chapter it lives in, and what it says in brief.

    >>> Statement("gao2022.lemma2.1", 1, "norm of a random matrix").chapter
    1
    """

    id: str
    chapter: int
    what: str


@cache
def statements() -> tuple[Statement, ...]:
    """Return all statements in the order of the sources.

    >>> statements()[0]
    Statement(id='gao2022.assumption1', chapter=1, what='random initialisation')
    >>> {one.id.partition(".")[0] for one in statements()} <= set(SOURCES)
    True
    """
    text = files("deqbook.claims").joinpath("statements.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(Statement(row["id"], int(row["chapter"]), row["what"]) for row in rows)


def source_of(claim_id: str) -> str:
    """Return the citation of an id; ``ValueError`` if its source is none of :data:`SOURCES`.

    >>> source_of("gao2022.lemma2.2"), source_of("book.prop-perron")
    ('Gao et al. 2022, Lemma 2.2', 'this book')
    """
    key, _, name = claim_id.partition(".")
    if key == OWN:
        return "this book"
    if key not in SOURCES:
        raise ValueError(
            f"unknown source {key!r} in {claim_id!r}; known: {sorted([*SOURCES, OWN])}."
        )
    match = re.fullmatch(rf"({KINDS})(.*)", name)
    if match:
        return f"{SOURCES[key]}, {match[1].capitalize()} {match[2]}".strip()
    return f"{SOURCES[key]}, text ({name})"
