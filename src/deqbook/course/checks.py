"""What a student may ask before handing in: `check(task, answer, mine)`.

A check says ✓, or what is wrong and where to read. It never says the answer. It is no part of the
grading: marks are given for values, computed elsewhere with other numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: The address of the published book, if this is set; the setup cell of a notebook sets it.
SITE = "DEQBOOK_SITE"


@dataclass(frozen=True)
class Place:
    """A section of the book."""

    page: str
    label: str
    title: str

    def __str__(self) -> str:
        address = f"{self.page}.html#{self.label.lower()}"
        return f"“{self.title}”, {os.environ.get(SITE, '')}{address}"


#: What a check says that sees no fault: of a function, and of an answer that is the student's own.
FUNCTION = "nothing wrong here. It will be marked with other inputs."
VALUE = "the form is right. Whether the answer is, the marking will see; this does not look."


class Fault(Exception):
    """What is wrong with an answer, and where the book explains it."""

    def __init__(self, sentence: str, read: Place | None = None):
        super().__init__(sentence)
        self.sentence, self.read = sentence, read


#: A check takes an answer and the student's instance, and raises a fault if it sees one.
Check = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Checker:
    """The checks of one assignment; the notebook calls it ``check``."""

    checks: Mapping[str, Check]

    def __call__(self, task: str, answer: object, mine: object) -> None:
        """Print ✓, or what is wrong and where to read."""
        if task not in self.checks:
            print(f"✗ There is no task {task!r}; the tasks are {', '.join(self.checks)}.")
            return
        try:
            self.checks[task](answer, mine)
        except Fault as fault:
            print(f"✗ {task}: {fault.sentence}")
            if fault.read is not None:
                print(f"  Read {fault.read}")
        except NotImplementedError:
            print(f"✗ {task}: not written yet.")
        except Exception as error:  # the student's own function raised it
            print(f"✗ {task}: your code raised {type(error).__name__}: {error}")
        else:
            print(f"✓ {task}: {FUNCTION if callable(answer) else VALUE}")


def array(answer: object, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Return an answer as an array of finite numbers of a given shape, or say why it is none.

    >>> array([1, 2], (2,), "q")
    array([1., 2.])
    """
    try:
        found = np.asarray(answer, dtype=float)
    except (TypeError, ValueError):
        raise Fault(
            f"{what} should be an array of numbers, and is a {type(answer).__name__}."
        ) from None
    if found.shape != shape:
        raise Fault(f"{what} should have the shape {shape}, and has {found.shape}.")
    if not np.isfinite(found).all():
        raise Fault(f"{what} holds numbers that are infinite or undefined.")
    return found


def number(answer: object, what: str) -> float:
    """Return an answer as one finite number, or say why it is none."""
    return float(array(answer, (), what))


def between(
    answer: object, value: float, widest: float, read: Place | None = None
) -> tuple[float, float]:
    """Return an interval that holds a student's own estimate and is not too wide, or say why not.

    Ends that were computed as an estimate ± half the width are a rounding error apart from it.

    >>> between((0.82 - 0.01, 0.82 + 0.01), 0.82, 0.02)[0] < 0.82
    True
    """
    if isinstance(answer, (str, bytes)) or not hasattr(answer, "__len__"):
        raise Fault("the interval should be a pair, (low, high).", read)
    low, high = (float(end) for end in array(answer, (2,), "the interval"))
    if not low < value < high:
        raise Fault("the interval should have your own estimate in its inside.")
    if high - low > widest * (1 + 1e-9):
        raise Fault(f"the interval is {high - low:.3g} wide; {widest} is allowed.", read)
    return low, high
