"""An experiment is one declaration: its cases, what one does, how it is judged and drawn.

The judgement is a list of ``Statement``: what the source says, and the rule that decides whether
our runs say the same. A rule belongs before the runs it judges, beside its reason, so that nobody
can fit it to what came out; the gallery says where it was not so. The verdict counts:
all statements hold (reproduced), some (partly), none (not).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deqbook.experiments.receipts import Results
from deqbook.experiments.worker import Checkpoint, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Experiment", "Finding", "Job", "NotRun", "Profile", "Statement", "Verdict"]

Profile = Literal["book", "paper"]
Job = tuple[str, Any]
"""A group and a frozen case."""


class NotRun(LookupError):
    """The cases that a statement needs are not among the results."""


@dataclass(frozen=True)
class Statement:
    """What the source says, the rule that judges it, and how to look.

    ``look(results)`` returns whether the rule holds and what was measured, in words; it raises
    ``NotRun`` where the cases are missing. With ``counts=False`` it is reported and not counted:
    it is ours, or a control.
    """

    printed: str
    rule: str
    look: Callable[[Results], tuple[bool, str]]
    counts: bool = True


@dataclass(frozen=True)
class Finding:
    """A statement, whether it came out (``None``: not run), and what was measured."""

    statement: Statement
    holds: bool | None
    measured: str


@dataclass(frozen=True)
class Verdict:
    """What the rules say about some results."""

    findings: tuple[Finding, ...]

    @property
    def word(self) -> str:
        """One of ``reproduced``, ``partly``, ``not``, and ``not run``."""
        held = [f.holds for f in self.findings if f.statement.counts and f.holds is not None]
        if not held:
            return "not run"
        if all(held):
            whole = all(f.holds is not None for f in self.findings if f.statement.counts)
            return "reproduced" if whole else "partly"
        return "partly" if any(held) else "not"

    def __str__(self) -> str:
        marks = {True: "yes", False: "no", None: "not run"}
        rows = [
            f"  {marks[f.holds]:8} {f.statement.printed}\n{'':11}rule: {f.statement.rule}"
            f"{'' if f.statement.counts else ' (not counted)'}\n{'':11}found: {f.measured}"
            for f in self.findings
        ]
        return "\n".join([f"verdict: {self.word}", *rows])


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a source, or one of ours.

    ``cases[profile]()`` lists the jobs; ``run(case, checkpoint)`` does one and returns what is
    kept, ready for JSON; it must be importable, and depend on the case alone. ``cost(case)`` is
    its relative length. ``code`` names the modules of the package that ``run`` uses beside the
    library, ``data`` the bundled sets. ``reason`` says why the rules are what they are.
    ``smaller`` says where the profile ``paper`` stays below what is published.
    ``ready(jobs, cpu)`` may say something before a run and refuse it (``False``).
    """

    name: str
    title: str
    source: str
    printed: str
    published: str
    sizes: Mapping[str, str]
    cases: Mapping[str, Callable[[], Sequence[Job]]]
    run: Callable[[Any, Checkpoint], Any]
    cost: Callable[[Any], float]
    kept: str
    statements: tuple[Statement, ...]
    reason: str
    draw: Callable[[Results], Figure]
    code: tuple[str, ...]
    differs: str = ""
    smaller: str = ""
    data: tuple[str, ...] = ()
    plain: Callable[[Any], dict[str, Any]] = plain
    shipped: Mapping[str, Path] = field(default_factory=dict)
    checkpoints: bool = False
    compare: Callable[[Results, Results], list[str]] | None = None
    ready: Callable[[Sequence[Job], bool], bool] | None = None

    def command(self, profile: str, only: str | None = None) -> str:
        """Return the command that makes the results, without what does not change them."""
        words = ["deqbook reproduce", self.name]
        words += ["--profile paper"] if profile == "paper" else []
        return " ".join(words + ([f"--only {only}"] if only else []))

    def judge(self, results: Results) -> Verdict:
        """Apply the rules."""
        return Verdict(tuple(_look(s, results) for s in self.statements))


def _look(statement: Statement, results: Results) -> Finding:
    try:
        holds, measured = statement.look(results)
    except NotRun as missing:
        return Finding(statement, None, str(missing.args[0]))
    return Finding(statement, holds, measured)
