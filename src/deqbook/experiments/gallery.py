"""What the gallery of the book shows: the table of all experiments, and the rules of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from deqbook.experiments.catalogue import EXPERIMENTS
from deqbook.experiments.declaration import Experiment, Verdict
from deqbook.experiments.engine import span
from deqbook.experiments.receipts import Results, read

__all__ = ["Shown", "Table", "facts", "overview", "rules", "shown"]


@dataclass(frozen=True)
class Table:
    """A table for a page, HTML there and plain text elsewhere; it may have no head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def _repr_html_(self) -> str:
        top = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        head = f"<thead><tr>{top}</tr></thead>" if top else ""
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        return (
            '<div class="table-wrapper" role="region" tabindex="0" aria-label="table">'
            f'<table class="docutils">{head}<tbody>{body}</tbody></table></div>'
        )

    def __repr__(self) -> str:
        return "\n".join(" · ".join(row) for row in (self.head, *self.rows) if row)


def _cell(text: str) -> str:
    if text.startswith("deqbook "):
        return f"<td><code>{escape(text)}</code></td>"
    return f"<td>{escape(text)}</td>"


@dataclass(frozen=True)
class Shown:
    """An experiment with the results that ship, of one profile."""

    experiment: Experiment
    profile: str
    results: Results

    @property
    def verdict(self) -> Verdict:
        """What the rules say."""
        return self.experiment.judge(self.results)

    @property
    def word(self) -> str:
        """The verdict, and whether it is one about a smaller size than the published."""
        small = self.profile == "book" and self.experiment.published != "none"
        return self.verdict.word + (", in miniature" if small else "")

    @property
    def time(self) -> str:
        """How long the results took on one core, where it was noted."""
        cost = self.results.cost
        return "not noted" if cost is None else span(3600 * cost.hours)

    @property
    def cases(self) -> str:
        """How many cases there are, of how many."""
        wanted = len(self.experiment.cases[self.profile]())
        found = len(self.results.runs)
        return f"{found}" if found == wanted else f"{found} of {wanted}"


def shown(name: str) -> Shown:
    """Return an experiment with its shipped results; the published size if both sizes ship."""
    one = EXPERIMENTS[name]
    profile = "paper" if "paper" in one.shipped else "book"
    return Shown(one, profile, read(one.shipped[profile]))


def overview() -> Table:
    """Return a row for each experiment."""
    rows = []
    for name, one in EXPERIMENTS.items():
        figure, _, what = one.title.partition(": ")
        if one.shipped:
            s = shown(name)
            rows.append((figure, what, s.word, s.time))
        else:
            rows.append((figure, what, "not run", "–"))
    return Table(("figure", "what it shows", "verdict", "time"), rows)


def facts(name: str) -> Table:
    """Return what was run and what is published, and the command, one below the other."""
    one = EXPERIMENTS[name]
    if not one.shipped:
        rows = [("published", one.published), ("would run", one.sizes["paper"])]
        return Table((), [*rows, ("command", one.command("paper"))])
    s = shown(name)
    rows = [("verdict", s.word), ("run", one.sizes[s.profile]), ("published", one.published)]
    cost = f"{s.cases}, {s.time} on one core" if s.results.cost else s.cases
    return Table((), [*rows, ("cases", cost), ("command", one.command(s.profile))])


def rules(name: str) -> Table:
    """Return a row for each statement: what is printed, the rule, what was found."""
    marks = {True: "yes", False: "no", None: "not run"}
    rows = [
        (
            f.statement.printed,
            f.statement.rule,
            f.measured,
            marks[f.holds] + ("" if f.statement.counts else " (not counted)"),
        )
        for f in shown(name).verdict.findings
    ]
    return Table(("printed", "rule", "found", "holds"), rows)
