"""The last hand on a page: minus signs, titles of exercises, tables that a phone can show.

A number that a page quotes from its run comes as Python writes it, ``-0.45``, and gets the minus
sign of the formulas around it. An exercise says its mark behind a comma, not in brackets within
brackets. A table whose rows are sentences is marked, and each of its cells carries the heading of
its column: where a row has no room the cells stand below each other (``tables.css``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from theorems import is_box

MINUS = "\N{MINUS SIGN}"
#: A hyphen before a number that nothing precedes which it could join.
NEGATIVE = re.compile(r"(?<![\w.)\]’'*/-])-(?=\d)")
#: Where a hyphen is what was written.
VERBATIM = (
    nodes.literal,
    nodes.literal_block,
    nodes.doctest_block,
    nodes.math,
    nodes.math_block,
    nodes.raw,
    addnodes.desc_signature,
)
#: An exercise's mark; the bracket that closes the title may be a text of its own.
MARK = re.compile(r" \((easy|medium|hard|open)\)(\)?)$")
EXERCISES = "sphinx_exercise"
#: So many letters a row, and so many columns, are more than a phone shows side by side.
LETTERS, COLUMNS = 75, 3
STACK, HEAD = "deq-stack", "deq-head"


def with_minus(text: str) -> str:
    """Write negative numbers with a minus sign.

    >>> with_minus("from -0.45 to 1 (-2), 3-4, gao2022-E1, 1-Lipschitz")
    'from −0.45 to 1 (−2), 3-4, gao2022-E1, 1-Lipschitz'
    """
    return NEGATIVE.sub(MINUS, text)


def with_comma(title: str) -> str:
    """Write an exercise's mark behind a comma; behind a question mark a comma would be odd.

    >>> with_comma("(Near twins (medium))"), with_comma("(Any bijection? (easy))")
    ('(Near twins, medium)', '(Any bijection? Easy)')
    """
    return MARK.sub(_mark, title)


def _mark(found: re.Match[str]) -> str:
    ends = re.search(r"[?!.…]$", found.string[: found.start()])
    return f" {found[1].capitalize()}{found[2]}" if ends else f", {found[1]}{found[2]}"


def is_wordy(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether a table of these texts needs more room than a phone has.

    >>> is_wordy([["Picard", "a sentence of some length", "and what follows from it, " * 2]])
    True
    >>> is_wordy([["Picard", "0.9", "54 steps"]])
    False
    """
    if not rows or max(map(len, rows)) < COLUMNS:
        return False
    return sum(len(cell) for row in rows for cell in row) > LETTERS * len(rows)


class Finish(SphinxPostTransform):
    """Go over a page when all of its parts are in place."""

    default_priority = 895

    def run(self, **kwargs: Any) -> None:
        """Finish one page."""
        for text in list(self.document.findall(nodes.Text)):
            if NEGATIVE.search(text) and not _within(text, VERBATIM):
                text.parent.replace(text, nodes.Text(with_minus(text)))
        for box in self.document.findall(is_box):
            title = box.next_node(nodes.title)
            ours = type(box).__module__.startswith(EXERCISES)
            if ours and title is not None and title.parent is box:
                _retitle(title)
        for table in self.document.findall(nodes.table):
            _stack(table)


def _within(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    above = node.parent
    while above is not None and not isinstance(above, kinds):
        above = above.parent
    return above is not None


def _retitle(title: nodes.Element) -> None:
    """Set the mark behind a comma, and no space within the link to an exercise."""
    for text in list(title.findall(nodes.Text)):
        text.parent.replace(text, nodes.Text(with_comma(text)))
    for link in list(title.findall(nodes.reference)):
        first = next(iter(link.findall(nodes.Text)), None)
        if first is not None and first.startswith(" "):
            first.parent.replace(first, nodes.Text(first.lstrip(" ")))
            link.parent.insert(link.parent.index(link), nodes.Text(" "))


def _stack(table: nodes.Element) -> None:
    """Mark a table of sentences, and give its cells the headings of their columns."""
    rows = [row for body in table.findall(nodes.tbody) for row in body.findall(nodes.row)]
    heads = [list(row) for head in table.findall(nodes.thead) for row in head.findall(nodes.row)]
    own = any(name.startswith("deq-") for name in table["classes"])
    if own or len(heads) != 1 or not is_wordy([[c.astext() for c in row] for row in rows]):
        return
    table["classes"].append(STACK)
    for row in rows:
        for name, cell in list(zip(heads[0], row, strict=True))[1:]:
            place = cell.next_node(nodes.paragraph)
            if place is not None and name.astext().strip():
                words = [one.deepcopy() for part in name for one in part.children]
                mark = " " if name.astext().endswith("?") else ": "
                place.insert(0, nodes.inline("", "", *words, nodes.Text(mark), classes=[HEAD]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_post_transform(Finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
