"""Every student's own numbers, drawn from the student's id.

The same id gives the same numbers on every machine and with every version of numpy: the draws come
from SHA-256, in exact arithmetic, and reals are rounded to a few decimals. The *salt* is a word
that the instructor chooses for one year. It stands in the released notebook, since the notebook has
to draw the numbers; its purpose is that last year's answers are answers to other questions.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np

T = TypeVar("T")
#: What the id cell of a released notebook says before the student has edited it.
NOBODY = "your-student-id"


def normalise(student: str) -> str:
    """Return an id in the one form that all spellings of it share.

    Accents may be stored composed or decomposed, depending on the system; capitals and stray blanks
    come from typing.

    >>> normalise("  Zoe\u0308  A ") == normalise("ZOË a")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", student).casefold().split())


@dataclass
class Draw:
    """A stream of numbers that one name determines.

    >>> Draw("a01/student-01/W").integer(1, 6), Draw("a01/student-02/W").integer(1, 6)
    (1, 6)
    """

    name: str
    taken: int = 0

    def unit(self) -> float:
        """Return the next number of [0, 1), a multiple of 2⁻⁵³."""
        block = hashlib.sha256(f"{self.name}#{self.taken}".encode()).digest()
        self.taken += 1
        return (int.from_bytes(block[:8], "big") >> 11) / 2**53

    def integer(self, low: int, high: int) -> int:
        """Return one of low, …, high, both included."""
        return low + int(self.unit() * (high - low + 1))

    def uniform(self, low: float, high: float, digits: int = 3) -> float:
        """Return a number between low and high, rounded."""
        return round(low + (high - low) * self.unit(), digits)

    def choice(self, options: list[T]) -> T:
        """Return one of the options."""
        return options[self.integer(0, len(options) - 1)]

    def normal(self, *shape: int, digits: int = 3) -> np.ndarray:
        """Return an array of independent standard normal numbers, rounded."""
        inverse = NormalDist().inv_cdf
        numbers = [round(inverse(self.unit() or 0.5), digits) for _ in range(int(np.prod(shape)))]
        return np.array(numbers, dtype=float).reshape(shape)


@dataclass(frozen=True)
class Instance:
    """Whose numbers these are, and of which assignment and year."""

    assignment: str
    student: str
    salt: str = ""

    def draw(self, task: str) -> Draw:
        """Return the stream of one task; other students, tasks and years have other streams."""
        return Draw("/".join([self.assignment, self.salt, normalise(self.student), task]))
