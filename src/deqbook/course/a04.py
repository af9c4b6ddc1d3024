"""Assignment 4, *The kernel of a leaky network*: the student's numbers and the public checks.

Chapter 4 of the book. Nothing here holds an answer: a check looks at the form of an answer and at
cases that can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deqbook.course.checks import Checker, Fault, Place, array, number
from deqbook.course.instance import NOBODY, Draw, Instance

__all__ = ["Mine", "check", "instance"]

NAME = "a04"
PAGE = "chapters/04_ntk"
CLOSED = Place(PAGE, "sec-closed-form", "The kernel in closed form, and why it is cheap")
WIDE = Place(PAGE, "sec-infinite-width", "Infinite width: one equation per pair of inputs")
DEFINITE = Place(PAGE, "sec-definite", "Positive definite, unless data are parallel")
LIMITS = Place(PAGE, "sec-limits", "The limit of the tangent kernel itself")
#: The parts of a kernel, by the weights they belong to.
BLOCKS = ("a", "W", "U", "b")
#: Task 4: errors allowed in the power and, relatively, in the constant; width of its interval.
POWER_ERROR, TWIN_ERROR, TWIN_WIDTH = 0.03, 0.02, 0.05
#: Task 5: how many rows, how far apart in degrees, how small λ_min/λ_max has to be.
MOST_ROWS, LEAST_ANGLE, SINGULAR = 8, 20.0, 1e-6


@dataclass(frozen=True)
class Mine:
    """The numbers of one student."""

    student: str
    leak: float  # slope of the activation below 0
    s_w: float  # scales of the random weights W, U and b
    s_u: float
    s_b: float
    m: int  # width
    X: np.ndarray  # four inputs, one in a row
    first: np.ndarray  # task 5: two of your inputs, unit vectors of space
    second: np.ndarray


def instance(student: str, salt: str = "") -> Mine:
    """Return the numbers of a student.

    >>> instance("student-01").leak == instance("Student-01 ").leak
    True
    """
    if student == NOBODY:
        raise ValueError(f"STUDENT is still {NOBODY!r}; write your own id there, and run again.")
    mine = Instance(NAME, student, salt)
    network, points = mine.draw("network"), mine.draw("points")
    first, second = two_directions(points)
    return Mine(
        student,
        leak=network.uniform(0.1, 0.4, 2),
        s_w=network.uniform(0.4, 0.47, 3),
        s_u=network.uniform(0.9, 1.3, 2),
        s_b=network.uniform(0.3, 0.6, 2),
        m=10 * network.integer(10, 40),
        X=network.normal(4, 5),
        first=first,
        second=second,
    )


def two_directions(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Draw two unit vectors of space at an angle between 55 and 80 degrees."""
    one, other = draw.normal(3), draw.normal(3)
    angle = np.radians(draw.uniform(55, 80))
    one = one / np.linalg.norm(one)
    other = other - (other @ one) * one
    other = other / np.linalg.norm(other)
    return np.round(one, 6), np.round(np.cos(angle) * one + np.sin(angle) * other, 6)


def blocks_of(answer: object, n: int, what: str) -> dict[str, np.ndarray]:
    """Return the four blocks of an answer, or say what is wrong with their form."""
    if not isinstance(answer, dict) or set(answer) != set(BLOCKS):
        raise Fault(f"{what} should return a dictionary with the keys 'a', 'W', 'U' and 'b'.")
    return {name: array(answer[name], (n, n), f"block {name!r}") for name in BLOCKS}


def check_dual(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 1: shapes, the ends, and the two leaks that are in the book or trivial."""
    rho = np.array([[-1.0, -0.3, 0.0], [0.2, 0.9, 1.0]])
    value, slope = (array(one, rho.shape, "an average") for one in answer(rho, 1.0))
    if not np.allclose(value, rho) or not np.allclose(slope, 1):
        raise Fault("with leak 1 the activation is t itself, and the averages are ρ and 1.", WIDE)
    value, slope = (array(one, rho.shape, "an average") for one in answer(rho, 0.0))
    if not np.allclose(value[1, 2], 0.5) or not np.allclose(slope[0, 2], 0.25):
        raise Fault("with leak 0 it is ReLU: κ₁(1) = 1/2 and κ₀(0) = 1/4.", WIDE)
    value, slope = (array(one, (1,), "an average") for one in answer(np.array([-1.0]), mine.leak))
    if not np.isclose(value[0], -mine.leak) or not np.isclose(slope[0], mine.leak):
        raise Fault(
            "at ρ = -1 the two numbers are t and -t, so the average of σ(t)σ(-t) is minus the "
            "leak, and that of the slopes is the leak.",
            WIDE,
        )


def check_limit(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 2: form, one linear network by hand, symmetry and finite numbers."""
    # Leak 1 and one input: a linear network; variance v = (4 + 1)/(1 - 1/4) and 1/(1 - 1/4).
    found = blocks_of(answer(np.array([[2.0]]), 3, 0.5, 1.0, 1.0, 1.0), 1, "limit_blocks")
    wanted = {"a": 20.0, "W": 80 / 3, "U": 16 / 3, "b": 4 / 3}
    for name, value in wanted.items():
        if not np.isclose(found[name].item(), value):
            raise Fault(
                f"for the linear network with leak 1, x = 2, m = 3, s_w = 1/2 and s_u = s_b = 1 "
                f"block {name!r} is {value:.6g}.",
                LIMITS,
            )
    own = answer(mine.X, mine.m, mine.s_w, mine.s_u, mine.s_b, mine.leak)
    for name, block in blocks_of(own, 4, "limit_blocks").items():
        if not np.allclose(block, block.T):
            raise Fault(f"block {name!r} of your own network is not symmetric.", LIMITS)


def check_own(answer: object, mine: Mine) -> None:
    """Task 2, the student's kernel: form only."""
    H = array(answer, (4, 4), "H_own")
    if not np.allclose(H, H.T) or np.linalg.eigvalsh(H).min() <= 0:
        raise Fault("a tangent kernel is symmetric, and here positive definite.", LIMITS)


def check_finite(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 3: form, one unit by hand on both sides of the kink."""
    half, one = np.array([[0.5]]), np.ones((1, 1))
    found = blocks_of(answer(half, one, np.ones(1), np.ones(1), one, 0.2), 1, "finite_blocks")
    for name, value in {"a": 16.0, "W": 64.0, "U": 4.0, "b": 4.0}.items():
        if not np.isclose(found[name].item(), value):
            raise Fault(
                f"for one unit, W = 1/2 and U = b = a = x = 1 the state is 4, and block {name!r} "
                f"is {value:g}.",
                CLOSED,
            )
    found = blocks_of(answer(half, one, np.ones(1), np.ones(1), -2 * one, 0.2), 1, "finite_blocks")
    if not np.isclose(found["a"].item(), (0.2 / 0.9) ** 2):
        raise Fault("for W = 1/2, U = b = a = 1, x = -2 and leak 0.2 the state is -2/9.", CLOSED)


def check_twins(answer: object, mine: Mine) -> None:
    """Task 4: the form only; whether the numbers are right is the question."""
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise Fault("hand over (twin_power, twin_constant, twin_between).")
    number(answer[0], "twin_power")
    value, (low, high) = (
        number(answer[1], "twin_constant"),
        (number(x, "an end") for x in answer[2]),
    )
    if not 0 < low < value < high:
        raise Fault("the interval should be positive and have your number in its inside.")
    if high > (1 + TWIN_WIDTH) * low * (1 + 1e-12):
        raise Fault(f"the interval reaches from {low:.4g} to {high:.4g}; that is too wide.")


def check_blind(answer: object, mine: Mine) -> None:
    """Task 5: everything but the question itself, whether the kernel is singular."""
    try:
        rows = np.asarray(answer, dtype=float)
    except (TypeError, ValueError):
        raise Fault("X_blind should be an array of numbers.") from None
    if rows.ndim != 2 or rows.shape[1] != 3 or not 2 <= len(rows) <= MOST_ROWS:
        raise Fault(f"X_blind should have 2 to {MOST_ROWS} rows of three numbers.")
    X = array(rows, rows.shape, "X_blind")
    if np.abs(np.linalg.norm(X, axis=1) - 1).max() > 1e-4:
        raise Fault("every row of X_blind should have length 1.")
    for name, one in (("first", mine.first), ("second", mine.second)):
        if np.abs(X - one).max(axis=1).min() > 1e-5:
            raise Fault(f"mine.{name} should be one of the rows.")
    if nearest(X) < LEAST_ANGLE - 1e-6:
        raise Fault(
            f"two rows are {nearest(X):.1f}° apart; at least {LEAST_ANGLE:g}° are asked for.",
            DEFINITE,
        )


def nearest(X: np.ndarray) -> float:
    """Return the least angle between two rows, in degrees."""
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    cosines = (rows @ rows.T)[np.triu_indices(len(X), 1)]
    return float(np.degrees(np.arccos(np.clip(cosines.max(), -1, 1))))


check = Checker(
    {
        "dual": check_dual,
        "limit": check_limit,
        "own": check_own,
        "finite": check_finite,
        "twins": check_twins,
        "blind": check_blind,
    }
)
