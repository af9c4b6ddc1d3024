"""Where a line may end, and how a pasted number is written.

A browser may end a line after any formula and after any piece of code, so that a comma or a full
stop begins the next one. What touches a formula or a piece of code is held on its line.

A number that a cell hands to the prose arrives as Python writes it. A reader sees a minus sign for
a hyphen and a power of ten for ``1e-10``.

And a column of words in a table keeps its width on a phone, where the table scrolls.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

GLUE, PROSE, PASTED = "deq-glue", "deq-prose", "pasted-text"
#: What may stand before and behind a formula on its line; letters only where it is short.
BEFORE = re.compile(r"[(\[“‘/]+$")
BEHIND = re.compile(r"^(?:[-–’][\w-]*|th)?[,.;:!?)\]’”…%]*")
MARKS = re.compile(r"^[,.;:!?)\]’”…%]*")
SHORT = 24
#: What stands as it is typed.
CODE = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw)
#: The box at the end of a proof, and a space at which no line ends.
BOX, HARD = r"\square", "\N{NO-BREAK SPACE}"
#: Columns of a table from which one is wide, and words in a cell from which it is prose.
MANY, LONG = 3, 20

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
POWER = re.compile(r"([-−]?)(\d+(?:\.\d+)?)e([+-]?)0*(\d+)")


def written(number: str) -> str:
    """Write a number of Python as prose does; what is no number stays as it is.

    >>> [written(text) for text in ("-0.67", "1e-10", "3e+05", "−2.5e+23", "a-1", "0.5")]
    ['−0.67', '10⁻¹⁰', '3·10⁵', '−2.5·10²³', 'a-1', '0.5']
    """
    power = POWER.fullmatch(number)
    if power:
        sign, mantissa, below, exponent = power.groups()
        ten = f"10{below.replace('+', '')}{exponent}"
        ten = ten[:2] + ten[2:].translate(RAISED)
        head = "" if mantissa == "1" else f"{mantissa}·"
        return f"{sign.replace('-', '−')}{head}{ten}"
    return re.sub(r"^-(?=\d)", "−", number)


def is_atom(node: nodes.Node) -> bool:
    """Tell whether a browser treats this as one letter: a formula, or code on a line."""
    return isinstance(node, nodes.math | nodes.literal)


def held(children: list[nodes.Node]) -> list[nodes.Node]:
    """Return the children of an element, each formula in one piece with what touches it."""
    told: list[nodes.Node] = []
    rest = list(children)
    while rest:
        node = rest.pop(0)
        if not is_atom(node):
            told.append(node)
            continue
        group = [node]
        before = told[-1] if told else None
        if node.astext() == BOX:
            group[:0] = _last_word(told)
        elif isinstance(before, nodes.Text) and (open_ := BEFORE.search(before)):
            told[-1:] = [nodes.Text(before[: open_.start()])] if open_.start() else []
            group.insert(0, nodes.Text(open_[0]))
        pattern = BEHIND if len(node.astext()) <= SHORT else MARKS
        behind = rest[0] if rest else None
        close = pattern.match(behind) if isinstance(behind, nodes.Text) else None
        if behind is not None and close is not None and close[0]:
            group.append(nodes.Text(close[0]))
            rest[:1] = [nodes.Text(behind[close.end() :])] if close.end() < len(behind) else []
        told.append(node if len(group) == 1 else nodes.inline("", "", *group, classes=[GLUE]))
    return told


def _last_word(told: list[nodes.Node]) -> list[nodes.Node]:
    """Take from the end what the box that ends a proof stands beside; a long formula stays."""
    if not told or not isinstance(told[-1], nodes.Text):
        return []
    whole = re.fullmatch(r"(.*?)(\S*)\s+", told[-1], re.DOTALL)
    if whole is None:
        return []
    told.pop()
    rest, word = whole.groups()
    if rest:
        told.append(nodes.Text(rest))
    if rest or word:
        return [nodes.Text(word + HARD)]
    short = told and len(told[-1].astext()) <= SHORT and not isinstance(told[-1], nodes.Text)
    return [*([told.pop()] if short else []), nodes.Text(HARD)]


def words(entry: nodes.Element) -> int:
    """Count the letters of a cell that are no formula and no code."""
    texts = entry.findall(nodes.Text)
    return sum(len(text) for text in texts if not is_atom(text.parent))


class Spacing(SphinxPostTransform):
    """Hold lines together and write numbers, just before a page is written."""

    default_priority = 910
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Go through one page."""
        for parent in {
            id(atom.parent): atom.parent for atom in self.document.findall(is_atom)
        }.values():
            kept = held(parent.children)
            parent.children = []
            parent.extend(kept)
        for span in self.document.findall(nodes.inline):
            if PASTED in span["classes"]:
                for text in list(span.findall(nodes.Text)):
                    text.parent.replace(text, nodes.Text(written(text)))
        for text in list(self.document.findall(nodes.Text)):
            if " %" in text and not isinstance(text.parent, CODE):
                text.parent.replace(text, nodes.Text(text.replace(" %", HARD + "%")))
        for group in self.document.findall(nodes.tgroup):
            self.widen(group)

    @staticmethod
    def widen(group: nodes.tgroup) -> None:
        """Mark the cells of columns that hold sentences, in a table of several columns."""
        rows = [row.children for row in group.findall(nodes.row)]
        if not rows or min(map(len, rows)) < MANY:
            return
        for column in zip(*rows, strict=False):
            if max(map(words, column)) >= LONG:
                for entry in column:
                    entry["classes"].append(PROSE)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_post_transform(Spacing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
