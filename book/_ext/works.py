"""The list of references says of a work what the text says: Anderson, 1965, not And65."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.style.formatting.plain import Style as Plain
from pybtex.style.labels import BaseLabelStyle
from sphinx.application import Sphinx

STYLE = "deqbook"


def cited_as(entry: Entry) -> str:
    """Return authors and year, as a citation in the text has them.

    >>> from pybtex.database import Person
    >>> people = [Person("Bai, Shaojie"), Person("Kolter, J. Zico"), Person("Koltun, Vladlen")]
    >>> cited_as(Entry("article", {"year": "2019"}, {"author": people[:2]}))
    'Bai and Kolter, 2019'
    >>> cited_as(Entry("article", {"year": "2019"}, {"author": people}))
    'Bai et al., 2019'
    """
    names = [
        " ".join([*person.prelast_names, *person.last_names]).replace("{", "").replace("}", "")
        for person in entry.persons.get("author", entry.persons.get("editor", []))
    ]
    who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    return f"{who}, {entry.fields['year']}"


class AuthorYear(BaseLabelStyle):
    """Labels by author and year; two works that share them get letters."""

    def format_labels(self, sorted_entries: Sequence[Entry]) -> Iterator[str]:
        """Return a label for each entry, in order."""
        labels = [cited_as(entry) for entry in sorted_entries]
        often, seen = Counter(labels), Counter[str]()
        for label in labels:
            letter = "abcdefgh"[seen[label]] if often[label] > 1 else ""
            seen[label] += 1
            yield label + letter


class Works(Plain):
    """Sorted by author, which the label shows."""

    default_label_style = AuthorYear


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the style; `bibtex_default_style` names it."""
    register_plugin("pybtex.style.formatting", STYLE, Works)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
