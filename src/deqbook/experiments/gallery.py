"""What the gallery of the book shows: the table of all experiments, and the rules of one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from deqbook.experiments.catalogue import EXPERIMENTS
from deqbook.experiments.declaration import Experiment, Verdict
from deqbook.experiments.engine import span
from deqbook.experiments.receipts import Results, read

__all__ = ["Shown", "Table", "facts", "overview", "rules", "shown"]

WORDY = 75
"""Letters in a row that are more than a phone shows side by side."""


@dataclass(frozen=True)
class Table:
    """A table for a page, HTML there and plain text elsewhere; it may have no head.

    Where there is a ``summary`` it is seen, and the table behind it on demand.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    summary: str = ""

    @property
    def wordy(self) -> bool:
        """Whether a phone shows its rows as blocks, each cell with its heading."""
        letters = sum(len(cell) for row in self.rows for cell in row)
        return len(self.head) >= 3 and letters > WORDY * len(self.rows)

    def _repr_html_(self) -> str:
        top = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        head = f"<thead><tr>{top}</tr></thead>" if top else ""
        names = ("", *self.head[1:]) if self.wordy else ("",) * max(map(len, self.rows))
        body = "".join(f"<tr>{''.join(map(_cell, row, names))}</tr>" for row in self.rows)
        kind = "docutils deq-stack" if self.wordy else "docutils"
        table = (
            '<div class="deq-scroll" role="region" tabindex="0" aria-label="table">'
            f'<table class="{kind}">{head}<tbody>{body}</tbody></table></div>'
        )
        if not self.summary:
            return table
        return (
            f'<details class="deq-proof"><summary>{escape(self.summary)}</summary>{table}</details>'
        )

    def __repr__(self) -> str:
        top = [self.summary] if self.summary else []
        return "\n".join(top + [" · ".join(row) for row in (self.head, *self.rows) if row])


def _cell(text: str, name: str = "") -> str:
    if text.startswith(("deqbook reproduce ", "python benchmarks/")):
        words = (f'<span class="deq-glue">{escape(word)}</span>' for word in text.split(" "))
        return f"<td><code>{' '.join(words)}</code></td>"  # a line ends between words only
    whole = text.replace(" %", "\u00a0%").replace(" = ", "\u00a0=\u00a0")
    whole = whole.replace("/√", "/\u2060√")  # no line ends after this stroke
    whole = re.sub(r"(Figure|Figures|Table|Tables) (?=\d)", "\\1\u00a0", whole)
    # shown by the style of the site, on a phone
    head = f'<span class="deq-head" hidden>{escape(name)}: </span>' if name else ""
    return f"<td>{head}{escape(whole)}</td>"


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
        """The verdict, and whether it is one about less than what is published."""
        small = self.profile == "book" and self.experiment.published != "none"
        size = "in miniature" if small else self.experiment.smaller
        without = f"without {self.left_out}" if self.left_out else ""
        return ", ".join(filter(None, (self.verdict.word, size, without)))

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

    @property
    def left_out(self) -> str:
        """What tells the cases that were not run from those that were, e.g. ``m = 4000``."""
        one = self.experiment
        jobs = [(group, dict(one.plain(case))) for group, case in one.cases[self.profile]()]
        done = [(r["group"], r["case"]) for r in self.results.runs]
        missing = [job for job in jobs if job not in done]
        if not missing:
            return ""
        for name in missing[0][1]:
            known = [case[name] for _, case in done]
            values = sorted({case[name] for _, case in missing if case[name] not in known})
            if values and all(case[name] in values for _, case in missing):
                return f"{name} = {', '.join(map(str, values))}"
        return f"{len(missing)} of {len(jobs)} cases"


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
    ran = one.sizes[s.profile] + (f"; of these not: {s.left_out}" if s.left_out else "")
    rows = [("verdict", s.word), ("run", ran), ("published", one.published)]
    cost = f"{s.cases}, {s.time} on one core" if s.results.cost else s.cases
    rows.append(("cases", cost))
    return Table((), [*rows, ("command", one.command(s.profile))])


def rules(name: str) -> Table:
    """Return a row for each statement: what is printed, the rule, what was found; folded."""
    verdict = shown(name).verdict
    counted = [f.holds for f in verdict.findings if f.statement.counts]
    told = f"{counted.count(True)} of {len(counted)} sentences came out: the rules one by one"
    marks = {True: "yes", False: "no", None: "not run"}
    rows = [
        (
            f.statement.printed,
            f.statement.rule,
            f.measured,
            marks[f.holds] + ("" if f.statement.counts else " (not counted)"),
        )
        for f in verdict.findings
    ]
    return Table(("printed", "rule", "found", "holds"), rows, told)
