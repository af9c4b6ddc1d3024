"""What earlier result files say: compare with them, and take over the cases they hold.

Code goes on, and a receipt binds numbers to the code that made them. Whoever adds a width to a
figure of many hours need not repeat the other widths: ``Earlier`` takes them from a file. Not on
trust: the cheapest of them runs again first, and if today's code, processor or versions give
something else, none is taken. The new receipt says which runs were taken, and who made them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deqbook.experiments.receipts import Provenance, ReceiptError, Results, Taken, read
from deqbook.experiments.worker import key_of

__all__ = ["CLOSE", "Earlier", "differences", "gap"]

CLOSE = 1e-5
"""By how much a number of the repeated case may differ: results are kept to six digits."""


@dataclass(frozen=True)
class Earlier:
    """A result file whose cases are to be taken over; ``Earlier.of(file)`` reads it."""

    file: Path
    results: Results

    @classmethod
    def of(cls, file: Path) -> Earlier:
        """Read the file; ``ReceiptError`` if it is damaged, or does not say what made it."""
        results = read(file)
        if results.receipt.made_by is None or results.cost is None:
            raise ReceiptError(
                f"{file} does not say what code made it or how long it took, so nothing can be "
                "taken from it. Leave --take out."
            )
        return cls(file, results)

    def entries(
        self, keys: Sequence[str], command: str, versions: Mapping[str, str], made_by: Provenance
    ) -> dict[str, dict[str, Any]]:
        """Return by key what the file has of these cases, each with its seconds.

        ``ReceiptError`` if another command, other versions or other data made it.
        """
        receipt, cost = self.results.receipt, self.results.cost
        assert receipt.made_by is not None
        assert cost is not None
        pairs = (
            ("command", receipt.command, command),
            ("versions", dict(receipt.versions), dict(versions)),
            ("data", dict(receipt.made_by.data), dict(made_by.data)),
        )
        for name, there, here in pairs:
            if there != here:
                raise ReceiptError(
                    f"nothing can be taken from {self.file}: its {name} is {there}, here it is "
                    f"{here}. Leave --take out."
                )
        found = {
            key_of(run["group"], run["case"]): dict(run) | {"seconds": seconds}
            for run, seconds in zip(self.results.runs, cost.seconds, strict=True)
        }
        if not found.keys() & set(keys):
            raise ReceiptError(f"{self.file} has none of these cases. Leave --take out.")
        return {key: found[key] for key in keys if key in found}

    def compare(self, again: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Raise ``ReceiptError`` unless a case that ran again gave what the file has."""
        differs = gap(again["result"], before["result"])
        if differs > CLOSE:
            raise ReceiptError(
                f"the case {again['group']} {again['case']} of {self.file} does not come out "
                f"again: a number differs by {differs:.2g}, and {CLOSE:g} is allowed. Other code "
                "or another processor made it. Leave --take out, and all cases run."
            )

    def taken(self, places: Mapping[str, int]) -> tuple[Taken, ...]:
        """Return who made the runs of these keys; ``places`` says where each stands in a new file.

        What the file had itself taken keeps the hash and the code it had there.
        """
        receipt = self.results.receipt
        assert receipt.made_by is not None
        makers = {at: (t.sha256, t.code) for t in receipt.made_by.taken for at in t.runs}
        own = (receipt.sha256, receipt.made_by.code)
        found: dict[tuple[str, str], list[int]] = {}
        for at, run in enumerate(self.results.runs):
            key = key_of(run["group"], run["case"])
            if key in places:
                found.setdefault(makers.get(at, own), []).append(places[key])
        return tuple(Taken(*maker, tuple(sorted(runs))) for maker, runs in found.items())

    def hardware(self, here: str) -> str:
        """Return where the runs of a new file were made: here, and where this file was."""
        assert self.results.cost is not None
        there = self.results.cost.hardware
        return here if there == here else f"{here}; what was taken: {there}"


def differences(results: Results, before: Results) -> list[str]:
    """Say, group by group, by how much the numbers of two result files differ."""
    known = {key_of(r["group"], r["case"]): r["result"] for r in before.runs}
    worst: dict[str, float] = {}
    strange = 0
    for r in results.runs:
        old = known.get(key_of(r["group"], r["case"]))
        if old is None:
            strange += 1
            continue
        worst[r["group"]] = max(gap(r["result"], old), worst.get(r["group"], 0.0))
    lines = ["Largest relative difference of a number from the shipped file:"]
    lines += [f"  {group}: {most:.2g}" for group, most in worst.items()]
    if strange:
        lines.append(f"  {strange} cases are not in the shipped file.")
    return lines


def gap(a: Any, b: Any) -> float:
    """Return the largest relative difference of a number; infinite where texts or shapes differ.

    >>> gap({"loss": [1.0, 2.0]}, {"loss": [1.0, 2.5]})
    0.2
    >>> gap({"stopped": "lost"}, {"stopped": ""})
    inf
    """
    return max((_apart(x, y) for x, y in _pairs(a, b)), default=0.0)


def _pairs(a: Any, b: Any) -> list[tuple[Any, Any]]:
    """Return the leaves of two results, side by side; what has another shape is a leaf."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [pair for key in a for pair in _pairs(a[key], b[key])]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [pair for x, y in zip(a, b) for pair in _pairs(x, y)]
    return [(a, b)]


def _apart(a: Any, b: Any) -> float:
    if a == b:
        return 0.0
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return float("inf")
    return abs(a - b) / max(abs(a), abs(b))
