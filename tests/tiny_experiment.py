"""An experiment of a few milliseconds, with faults on demand, for the tests of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tiny_cases import Tiny, run

from deqbook.experiments.declaration import Experiment, Statement
from deqbook.experiments.engine import Outcome, execute
from deqbook.experiments.places import Place

COMMAND = "deqbook reproduce tiny"


def _positive(results: Any) -> tuple[bool, str]:
    return all(r["result"]["sum"] > 0 for r in results.runs), "looked at all"


TINY = Experiment(
    name="tiny",
    title="Sums",
    source="nobody",
    printed="nothing",
    published="none",
    sizes={"book": "six sums"},
    cases={"book": lambda: jobs()},
    run=run,
    cost=lambda case: float(case.steps),
    kept="the sum",
    statements=(Statement("sums are positive", "all are above 0", _positive),),
    reason="they are sums of positive numbers",
    draw=lambda results: Figure(),
    code=("deqbook.experiments.worker",),
    checkpoints=True,
)


def jobs(wait: float = 0.0) -> list[tuple[str, Tiny]]:
    return [("odd" if x % 2 else "even", Tiny(x, steps=2 + x % 3, wait=wait)) for x in range(1, 7)]


def go(out: Path, place: Place | None = None, *, wait: float = 0.0, **options: Any) -> Outcome:
    return execute(TINY, jobs(wait), out, COMMAND, place=place, **options)
