"""What a verifier says about one graded cell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A share of the points, a sentence for the student, and a name for the class report.

    ``fault`` groups equal mistakes in the report. It is the same for all students, so it holds none
    of their numbers; empty means that nothing is wrong.
    """

    fraction: float
    sentence: str
    fault: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"a fraction of the points is between 0 and 1, not {self.fraction}.")


def right(sentence: str = "Right.") -> Verdict:
    """Return full points."""
    return Verdict(1.0, sentence)


def wrong(sentence: str, fault: str, fraction: float = 0.0) -> Verdict:
    """Return no points, or a part of them, with what is wrong."""
    return Verdict(fraction, sentence, fault)


@dataclass
class Parts:
    """A verdict put together from parts that are judged one by one.

    >>> parts = Parts()
    >>> parts.add(0.6, True, "The states are right.")
    >>> parts.add(0.4, False, "The path is not.", "path")
    >>> parts.verdict()
    Verdict(fraction=0.6, sentence='The states are right. The path is not.', fault='path')
    """

    fraction: float = 0.0
    sentences: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def add(self, share: float, holds: bool, sentence: str, fault: str = "") -> None:
        """Take in one part: its share of the points, whether it holds, and a sentence."""
        self.fraction += share * holds
        self.sentences += (sentence,)
        if not holds:
            self.faults += (fault or sentence,)

    def verdict(self) -> Verdict:
        """Return the verdict on all parts."""
        fraction = min(1.0, round(self.fraction, 10))
        return Verdict(fraction, " ".join(self.sentences), "; ".join(self.faults))


@dataclass(frozen=True)
class Wrong:
    """A plausible wrong answer: cells in place of the solution's, and the points they must lose."""

    about: str
    cells: dict[str, str]
    lost: dict[str, float]
