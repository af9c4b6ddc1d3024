"""How long a page takes to read, and the line at its head that says so.

The estimate counts what a reader meets when nothing is unfolded: words, formulas, visible code,
figures and panels of evidence. Proofs are counted apart; hidden code and solutions not at all. The
rates are those of somebody who follows mathematics with a pencil.

    ```{opening}
    :level: first year of graduate study
    :needs: linear algebra, {doc}`/chapters/01a_contraction`
    ```

For those who plan a course, one table has the minutes and the exercises of all chapters:

    ```{page-times}
    ```
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from quiet_code import quiet
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

#: Minutes that one of each takes.
RATES = {
    "words": 1 / 150,
    "formulas": 6 / 60,
    "displays": 30 / 60,
    "code": 3 / 60,
    "figures": 1.0,
    "panels": 45 / 60,
}
FENCE = r"^(?P<fence>`{{3,}}|:{{3,}})\{{({names})\}}.*?^(?P=fence)[ \t]*$"
DISPLAY = r"\$\$.*?\$\$(?:\s*\([\w-]+\))?"
INLINE = r"\$[^$]+\$"


@dataclass(frozen=True)
class Reading:
    """What a page holds for a reader who unfolds nothing, and the minutes it takes."""

    words: int
    formulas: int
    displays: int
    code: int
    figures: int
    panels: int

    @property
    def minutes(self) -> int:
        """Return the estimate, Σ rate · count, to the minute."""
        return round(sum(rate * getattr(self, name) for name, rate in RATES.items()))


def count(source: str) -> Reading:
    """Count what stands open in a page's source."""
    text = re.sub(r"\A---\n.*?\n---\n", "", source, flags=re.S)
    text = _without(text, "prf:proof|solution|solution-start|bibliography")
    cells = [m[0] for m in _blocks(text, "code-cell")]
    seen = [c for c in cells if not re.search(r"^:tags:.*(hide-input|remove-)", c, flags=re.M)]
    lines = [line for c in seen for line in _shown(c) if line.strip() and line[0] not in "#:"]
    panels = sum(len(re.findall(r"^check\(", c, flags=re.M)) for c in seen)
    text = _without(text, "code-cell")
    figures = len(_blocks(text, "glue:figure|figure"))
    displays, text = len(re.findall(DISPLAY, text, re.S)), re.sub(DISPLAY, " ", text, flags=re.S)
    formulas, text = len(re.findall(INLINE, text)), re.sub(INLINE, " ", text)
    text = re.sub(r"^:[\w-]+:.*$|^\([\w-]+\)=$|\{[\w:-]+\}", " ", text, flags=re.M)
    words = len(re.findall(r"[^\W\d_][\w'’-]*", text))
    return Reading(words, formulas, displays, len(lines) - panels, figures, panels)


def _shown(cell: str) -> list[str]:
    """Return the lines of a cell that a page shows."""
    inside = cell.splitlines()[1:-1]
    code = "\n".join(line for line in inside if not re.match(r":\w+:", line))
    shown = quiet(code)
    return (code if shown is None else shown).splitlines()


def proofs(source: str) -> Reading:
    """Count what the folded proofs of a page hold."""
    return count("\n".join(m[0].split("\n", 1)[1] for m in _blocks(source, "prf:proof")))


def exercises(source: str) -> int:
    """Count the exercises of a page."""
    return len(_blocks(source, "exercise|exercise-start"))


def _blocks(text: str, names: str) -> list[re.Match[str]]:
    return list(re.finditer(FENCE.format(names=names), text, flags=re.S | re.M))


def _without(text: str, names: str) -> str:
    return re.sub(FENCE.format(names=names), "", text, flags=re.S | re.M)


class Opening(SphinxDirective):
    """The line at a page's head: minutes, level, and what one has to know."""

    option_spec: ClassVar = {
        "level": directives.unchanged_required,
        "needs": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Make the line."""
        missing = [name for name in ("level", "needs") if not self.options.get(name)]
        if missing:
            raise self.error(f"an opening says its level and needs; missing: {', '.join(missing)}")
        source = Path(self.env.doc2path(self.env.docname)).read_text(encoding="utf-8")
        minutes, extra = count(source).minutes, proofs(source).minutes
        told = f"{minutes} minutes" + (f", {extra} more with the proofs" if extra else "")
        items = [("Reading", [nodes.Text(told)])]
        for name in ("level", "needs"):
            children, _ = self.state.inline_text(self.options[name], self.lineno)
            items.append((name.capitalize(), children))
        line = nodes.paragraph(classes=["deq-opening"])
        for head, children in items:
            line += nodes.inline("", "", nodes.strong("", head), nodes.Text(" "), *children)
        return [line]


class Times(SphinxDirective):
    """A table of all chapters' pages: minutes, minutes with the proofs, exercises."""

    HEAD: ClassVar = ("page", "minutes", "with proofs", "exercises")

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        root, rows, sums = Path(self.env.srcdir), [], [0, 0, 0]
        for path in sorted((root / "chapters").glob("*.md")):
            self.env.note_dependency(str(path))
            source = path.read_text(encoding="utf-8")
            minutes = count(source).minutes
            numbers = [minutes, minutes + proofs(source).minutes, exercises(source)]
            sums = [a + b for a, b in zip(sums, numbers, strict=True)]
            title, _ = self.state.inline_text(f"{{doc}}`/chapters/{path.stem}`", self.lineno)
            rows.append(self.row([title, *([nodes.Text(str(n))] for n in numbers)]))
        total = [[nodes.Text("all")], *([nodes.Text(str(n))] for n in sums)]
        rows.append(self.row(total))
        group = nodes.tgroup(cols=len(self.HEAD))
        group += [nodes.colspec(colwidth=width) for width in (64, 12, 12, 12)]
        group += nodes.thead("", self.row([[nodes.Text(word)] for word in self.HEAD]))
        group += nodes.tbody("", *rows)
        return [nodes.table("", group, classes=["deq-times"])]

    @staticmethod
    def row(cells: list[list[nodes.Node]]) -> nodes.row:
        """Return a row of the table."""
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def duration(minutes: int) -> str:
    """Write a time.

    >>> duration(55), duration(134)
    ('55 min', '2 h 14 min')
    """
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"


class Route(SphinxRole):
    """``{route}`00 01 2```: how long it takes to read the pages that begin so, without proofs."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Add up the minutes."""
        total = 0
        for start in self.text.split():
            pages = sorted((Path(self.env.srcdir) / "chapters").glob(f"{start}*.md"))
            if not pages:
                message = self.inliner.reporter.error(
                    f"route: no page of chapters/ begins with {start!r}", line=self.lineno
                )
                return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
            for path in pages:
                self.env.note_dependency(str(path))
                total += count(path.read_text(encoding="utf-8")).minutes
        return [nodes.Text(duration(total))], []


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and the role."""
    app.add_role("route", Route())
    app.add_directive("opening", Opening)
    app.add_directive("page-times", Times)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
