"""Assignment 6, *What may be promised?*: the student's numbers and the public checks.

Chapter 6 of the book, pages 6a and 6b. Nothing here holds an answer: a check looks at the form of
an answer and at cases that can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deqbook.course.checks import Checker, Fault, Place, array, between, number
from deqbook.course.instance import NOBODY, Draw, Instance

__all__ = ["Mine", "check", "instance"]

NAME = "a06"
PAGE_A, PAGE_B = "chapters/06a_kernel_machine", "chapters/06b_bound_on_data"
BEAT = Place(PAGE_A, "sec-6a-question", "What a bound must beat")
BALL = Place(PAGE_A, "sec-6a-complexity", "Rademacher complexity: can the class fit coin flips?")
DEVIATION = Place(PAGE_A, "sec-6a-deviation", "From the sample to the distribution")
BOUND = Place(PAGE_B, "sec-6b-theorem", "The theorem, with its constants")
METER = Place(PAGE_B, "sec-6b-meter", "The vacuousness meter")
COVERS = Place(PAGE_B, "sec-6b-covers", "What the probability covers")
#: Tasks 3 and 4: how near an estimate has to be, how wide an interval may be.
POWER_ERROR, POWER_WIDTH, SHARE_ERROR, SHARE_WIDTH = 0.01, 0.03, 0.01, 0.03
#: Task 4: the width that the union bound gives. Task 5: the factor that is claimed to be enough.
FAIR_ERROR, CLAIMED = 1e-4, 1.15


@dataclass(frozen=True)
class Mine:
    """The numbers of one student."""

    student: str
    x: np.ndarray  # task 2: a sample, kernels fixed before it, the probability of failure
    y: np.ndarray
    kernels: list[tuple[float, float]]
    delta: float
    crowd: float  # task 3: how inputs crowd around 0, and what the labels do there
    rough: float
    kick: float
    pictures: int  # task 4: a test set, and how often it is used
    models: int
    K: np.ndarray  # task 5: a kernel matrix


def instance(student: str, salt: str = "") -> Mine:
    """Return the numbers of a student.

    >>> instance("student-01").crowd == instance("Student-01 ").crowd
    True
    """
    if student == NOBODY:
        raise ValueError(f"STUDENT is still {NOBODY!r}; write your own id there, and run again.")
    mine = Instance(NAME, student, salt)
    first, second, third = mine.draw("sample"), mine.draw("power"), mine.draw("reuse")
    x, y = sample(first, 300)
    return Mine(
        student,
        x=x,
        y=y,
        kernels=four_kernels(first),
        delta=0.05,
        crowd=second.uniform(1.1, 1.3, 2),
        rough=second.uniform(0.12, 0.2),
        kick=second.uniform(0.3, 0.45, 2),
        pictures=third.integer(150, 400),
        models=third.integer(40, 120),
        K=one_direction(mine.draw("union")),
    )


def sample(draw: Draw, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw n different inputs of [-1, 1], and labels that a smooth function gives them."""
    seen: dict[float, None] = {}
    while len(seen) < n:
        seen[draw.uniform(-1, 1, 5)] = None
    x = np.array(list(seen))
    speed, phase, size = draw.uniform(2.0, 4.0), draw.uniform(0.0, 3.0), draw.uniform(0.6, 0.9)
    return x, np.round(size * np.sin(speed * x + phase), 4)


def four_kernels(draw: Draw) -> list[tuple[float, float]]:
    """Draw four pairs, a height and a scale; no two heights are alike."""
    bins = [(0.3, 0.5), (0.7, 1.0), (1.2, 1.7), (2.1, 3.0)]
    heights = [draw.uniform(*bins.pop(draw.integer(0, len(bins) - 1))) for _ in range(4)]
    return [(v, s * draw.uniform(0.8, 1.2, 2)) for v, s in zip(heights, (0.25, 0.5, 1.0, 2.0))]


def one_direction(draw: Draw) -> np.ndarray:
    """Draw a 6×6 kernel matrix with unit diagonal that prefers one pattern of signs."""
    d, weight = np.ones(6), draw.uniform(0.32, 0.4, 2)
    d[draw.integer(0, 5)] = -1.0
    return np.round((1 - weight) * np.eye(6) + weight * np.outer(d, d), 2)


def check_norm(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 1: one and two samples by hand, and the order of the samples."""
    one = number(answer(np.array([0.3]), np.array([-2.0])), "what squared_norm returns")
    if abs(one - 4) > 1e-9:
        raise Fault("for one sample H = [1], so B² = y² = 4 for y = -2.", BOUND)
    x, y = np.array([0.0, np.log(2.0)]), np.array([1.0, 1.0])
    two = number(answer(x, y), "what squared_norm returns")
    if abs(two - 4 / 3) > 1e-9:
        raise Fault("for x = (0, log 2) and y = (1, 1), H has ½ beside 1, and B² = 4/3.", BOUND)
    x, y = np.array([0.0, 1.0, 2.0]), np.array([1.0, -1.0, 0.5])
    turn = [1, 2, 0]
    if abs(number(answer(x, y), "B²") - number(answer(x[turn], y[turn]), "B²")) > 1e-9:
        raise Fault("the same sample in another order gives another norm. Must it?", BOUND)


def check_certificate(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 2: form, one sample by hand, and what must not matter."""
    given = answer(np.array([0.0]), np.array([0.5]), [(1.0, 1.0)], 0.05)
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise Fault("certificate should return a pair: the bound, and the index of the kernel.")
    by_hand = 2 + 3 * np.sqrt(np.log(4 / 0.05) / 2)
    if abs(number(given[0], "the bound") - by_hand) > 1e-9:
        raise Fault(
            "for one sample y = 0.5 and one kernel (1, 1): B = 0.5, so j = 0 and the radius is 1. "
            "With tr H = 1 and δ = 0.05 the bound can be worked out by hand, and is another one.",
            BOUND,
        )
    x, y = np.array([0.0, 2 * np.log(2.0)]), np.array([1.0, 1.0])
    radius = 8.0  # H = 0.04 [[1, ½], [½, 1]], so B² = 100/3 and B = 5.77: j = 3
    by_hand = radius * np.sqrt(0.08) + 3 * np.sqrt(np.log(40 / 0.05) / 4)
    if abs(number(answer(x, y, [(0.04, 2.0)], 0.05)[0], "the bound") - by_hand) > 1e-9:
        raise Fault(
            "for x = (0, 2 log 2), y = (1, 1) and the one kernel (0.04, 2): H has 0.04 on its "
            "diagonal and 0.02 beside it, B = 5.77 and j = 3. Your bound is another one.",
            BOUND,
        )
    small = number(answer(mine.x, mine.y, mine.kernels[:1], 0.05)[0], "the bound")
    again = number(answer(mine.x, mine.y, mine.kernels[:1] * 2, 0.05)[0], "the bound")
    if not again > small:
        raise Fault("more kernels to choose from, and the choice costs nothing?", DEVIATION)


def check_own(answer: object, mine: Mine) -> None:
    """Task 2, the student's own sample: the form only."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Fault("hand over (own_bound, own_kernel).")
    bound, index = number(answer[0], "own_bound"), number(answer[1], "own_kernel")
    if index not in range(len(mine.kernels)):
        raise Fault("own_kernel should be the place of a kernel in mine.kernels: 0, 1, 2 or 3.")
    if bound <= 3 * np.sqrt(np.log(2 / mine.delta) / (2 * len(mine.x))):
        raise Fault("own_bound is smaller than what a single function costs.", DEVIATION)
    if bound >= 1:
        raise Fault("at 1 or more a bound says nothing; your sample allows a better one.", BOUND)


def check_power(answer: object, mine: Mine) -> None:
    """Task 3: the form only; whether the number is right is the question."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Fault("hand over (power, power_between).")
    power = number(answer[0], "power")
    if not -1 < power < 1:
        raise Fault("the complexity is a power of n between n^-1 and n^1; which one?", METER)
    between(answer[1], power, POWER_WIDTH, METER)


def check_reuse(answer: object, mine: Mine) -> None:
    """Task 4: the form, and that a choice makes an interval wider."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        raise Fault("hand over (coverage, coverage_between, width_fair).")
    coverage, width = number(answer[0], "coverage"), number(answer[2], "width_fair")
    if not 0 <= coverage <= 1:
        raise Fault("a coverage is a share of all test sets, between 0 and 1.", BEAT)
    between(answer[1], coverage, SHARE_WIDTH, COVERS)
    if width <= np.sqrt(np.log(1 / 0.05) / (2 * mine.pictures)):
        raise Fault("width_fair is not wider than the width for one fixed model.", COVERS)


def check_union(answer: object, mine: Mine) -> None:
    """Task 5: everything but the question itself, how large the complexity is."""
    K = array(answer, (6, 6), "K_two")
    if np.abs(K - K.T).max() > 1e-9:
        raise Fault("a kernel matrix is symmetric.", BALL)
    if np.abs(np.diag(K) - 1).max() > 1e-9:
        raise Fault("all diagonal entries of K_two should be 1.", BALL)
    if np.linalg.eigvalsh(K)[0] < -1e-9:
        raise Fault("a kernel matrix has no negative eigenvalue.", BALL)


check = Checker(
    {
        "norm": check_norm,
        "certificate": check_certificate,
        "own": check_own,
        "power": check_power,
        "reuse": check_reuse,
        "union": check_union,
    }
)
