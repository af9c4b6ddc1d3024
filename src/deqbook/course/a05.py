"""Assignment 5, *What does it minimise?*: the student's numbers and the public checks.

Chapter 5 of the book, pages 5a and 5b. Nothing here holds an answer: a check looks at the form of
an answer and at cases that can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deqbook.course.checks import Checker, Fault, Place, array, number
from deqbook.course.instance import NOBODY, Draw, Instance

__all__ = ["Mine", "check", "instance"]

NAME = "a05"
PAGE_A, PAGE_B = "chapters/05a_hidden_objective", "chapters/05b_selection"
PROXIMAL = Place(PAGE_A, "sec-5a-activation", "An activation is a proximal map")
WHICH = Place(PAGE_A, "sec-5a-which", "Which maps are proximal?")
HIDDEN = Place(PAGE_A, "sec-5a-unit", "A layer hides a function")
BEHIND = Place(PAGE_B, "sec-5b-architecture", "Change the problem by changing the architecture")
SEGMENT = Place(PAGE_B, "sec-5b-many", "A network with a segment of equilibria")
RATE = Place(PAGE_B, "sec-5b-rate", "How fast? Two biases and a transient")
#: Task 2: how near. Task 4: how near, how wide. Task 5: corners, their size, the least sum.
NEAR, T_ERROR, T_WIDTH, CORNERS, LARGEST, LEAST_SUM = 1e-5, 0.01, 0.02, 64, 100.0, 0.001


#: Networks of task 3 on which the choice of an equilibrium is a question, see `base`.
# fmt: off
BASES = (
    1, 2, 12, 76, 86, 95, 138, 149, 203, 207, 253, 265, 281, 285, 298,
    323, 340, 344, 358, 380, 476, 552, 565, 573, 595, 661, 677, 681, 686, 688,
    693, 708, 710, 771, 774, 829, 830, 866, 904, 1104, 1105, 1113, 1116, 1175, 1203,
    1206, 1224, 1228, 1261, 1281, 1313, 1327, 1328, 1421, 1429, 1446, 1449, 1452, 1481, 1509,
)
# fmt: on


@dataclass(frozen=True)
class Mine:
    """The numbers of one student."""

    student: str
    W: np.ndarray  # tasks 1 and 2: a tied layer, its activation, a regulariser
    q: np.ndarray
    tau: float
    a: float
    mu: float
    g: np.ndarray
    A: np.ndarray  # tasks 3 and 4: a network with a segment of equilibria
    b: np.ndarray
    point: np.ndarray
    along: np.ndarray
    ends: tuple[float, float]
    step: float
    S: np.ndarray  # task 5: a network with symmetric weights
    c: np.ndarray


def instance(student: str, salt: str = "") -> Mine:
    """Return the numbers of a student.

    >>> instance("student-01").tau == instance("Student-01 ").tau
    True
    """
    if student == NOBODY:
        raise ValueError(f"STUDENT is still {NOBODY!r}; write your own id there, and run again.")
    mine = Instance(NAME, student, salt)
    first, second, third = mine.draw("hidden"), mine.draw("segment"), mine.draw("polygon")
    W = tied_weights(first, 5)
    A, b, point, along, ends, step = segment(second)
    return Mine(
        student,
        W=W,
        q=np.round(0.8 * first.normal(5), 3),
        tau=round(1.2 * float(np.linalg.norm(W, 2)) ** 2, 2),
        a=first.uniform(0.3, 0.8, 2),
        mu=first.uniform(0.4, 0.8, 2),
        g=first.normal(5),
        A=A,
        b=b,
        point=point,
        along=along,
        ends=ends,
        step=step,
        S=symmetric_weights(third),
        c=third.normal(3),
    )


def tied_weights(draw: Draw, m: int) -> np.ndarray:
    """Draw square weights with a norm above one and a harmless inverse."""
    signs = [draw.choice([-1, 1]) * draw.uniform(0.8, 1.2) for _ in range(m)]
    return np.round(np.diag(signs) + 0.22 * draw.normal(m, m), 3)


def mirror(draw: Draw) -> np.ndarray:
    """Draw a reflection whose entries are eighths or quarters, so that nothing is rounded."""
    left = list(draw.choice([(1, 1, 1, 2, 3), (2, 1, 1, 1, 1)]))
    normal = []
    while left:
        normal.append(left.pop(draw.integer(0, len(left) - 1)) * draw.choice([-1, 1]))
    n = np.array(normal, dtype=float)
    return np.eye(5) - 2 * np.outer(n, n) / (n @ n)


def base(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Return weights of norm one, their first left vector, a code and a step, all exact.

    All entries are multiples of a small power of two, and so are all products: nothing is rounded,
    the norm is exactly one.
    """
    draw = Draw(f"a05/base/{number}")
    left, right = mirror(draw) @ mirror(draw), mirror(draw) @ mirror(draw)
    sizes = np.array([1.0, *(draw.integer(4, 12) / 16 for _ in range(4))])
    code = np.array([draw.integer(4, 24) / 8 for _ in range(5)])
    return left * sizes @ right.T, left[:, 0], code, draw.integer(4, 10) / 8


def segment(
    draw: Draw,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[float, float], float]:
    """Draw a network with a segment of equilibria: a base, turned, enlarged and measured anew."""
    A, v, code, step = base(draw.choice(list(BASES)))
    places, left = [], list(range(5))
    while left:
        places.append(left.pop(draw.integer(0, len(left) - 1)))
    A = A[:, places] * np.array([draw.choice([-1.0, 1.0]) for _ in range(5)])
    v = draw.choice([-1.0, 1.0]) * v
    size = draw.integer(8, 14) / 8
    low, high = (
        max(float(-x / y) for x, y in zip(code, v) if y > 0),
        min(float(-x / y) for x, y in zip(code, v) if y < 0),
    )
    shift = np.floor(64 * (low + (high - low) * (0.25 + draw.unit() / 2))) / 64
    code = size * (code + shift * v)
    ends = (size * (low - float(shift)), size * (high - float(shift)))
    return A, code - A @ (A.T @ code), A.T @ code, A.T @ v, ends, size * step


def symmetric_weights(draw: Draw) -> np.ndarray:
    """Draw three symmetric rows; by Gershgorin all eigenvalues lie between 0.1 and 0.9."""
    S = 0.5 * np.eye(3)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        S[i, j] = S[j, i] = draw.choice([-1, 1]) * draw.uniform(0.12, 0.2)
    return S


def slopes_of(answer: Callable[..., Any], mine: Mine, z: np.ndarray) -> np.ndarray:
    """Return difference quotients of the student's own value."""
    numbers = (mine.W, mine.q, mine.tau, mine.a)
    ahead = [number(answer(*numbers, z + h)[0], "the value") for h in 1e-5 * np.eye(5)]
    back = [number(answer(*numbers, z - h)[0], "the value") for h in 1e-5 * np.eye(5)]
    return (np.array(ahead) - np.array(back)) / 2e-5


def check_hidden(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 1: two cases by hand, and whether value and gradient agree."""
    one = np.ones(1)
    for W, q, a, z, value, slope in (
        (0.5, 1.0, 0.5, 1.0, -0.5, 1.0),
        (1.0, 0.0, 1.0, -0.5, 0.375 - 0.5 * np.log(2), 0.5 - np.log(2)),
    ):
        given = answer(W * np.eye(1), q * one, 1.0, a, z * one)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise Fault("hidden should return a pair: the value and the gradient.")
        case = f"for W = [[{W}]], q = [{q}], τ = 1, a = {a} and z = [{z}]"
        if abs(number(given[0], "the value") - value) > 1e-9:
            raise Fault(f"{case} the value is not right. Work it out by hand.", PROXIMAL)
        if abs(array(given[1], (1,), "the gradient")[0] - slope) > 1e-9:
            raise Fault(f"{case} the gradient is not right. Work it out by hand.", HIDDEN)
    state = mine.W.T @ (0.5 + np.arange(5) / 4) / mine.tau
    gradient = answer(mine.W, mine.q, mine.tau, mine.a, state)[1]
    gradient = array(gradient, (5,), "the gradient")
    if not np.allclose(gradient, slopes_of(answer, mine, state), rtol=1e-4, atol=1e-4):
        raise Fault(
            "on your own network the gradient is not the derivative of the value. Which matrix "
            "takes z to its code s?",
            HIDDEN,
        )


def check_pulls(answer: object, mine: Mine) -> None:
    """Task 2: the form, and that the two questions have been kept apart."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Fault("hand over (z_behind, z_sum).")
    behind, whole = array(answer[0], (5,), "z_behind"), array(answer[1], (5,), "z_sum")
    if np.linalg.norm(behind - whole) < 1e-3:
        raise Fault("z_behind and z_sum are the same state; they answer two questions.", BEHIND)


def check_path(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 3: shape, start, and one step by hand."""
    z = np.array([2.0, -1.0])
    given = answer(np.zeros((3, 2)), np.ones(3), 0.5, 0.3, 0.3, z, 4)
    path = array(given, (5, 2), "what prox_sam returns")
    if not np.allclose(path[0], z):
        raise Fault("the first row should be the start z itself.", SEGMENT)
    if not np.allclose(path[1], [0.375, -0.125]):
        raise Fault(
            "for W = 0, step 0.5 and z = (2, -1) the first step gives (0.375, -0.125): all weights "
            "are ½ at k = 1, and T(z) = 0.",
            SEGMENT,
        )
    given = answer(mine.A, mine.b, mine.step, 0.3, 0.3, mine.point, 1000)
    path = array(given, (1001, 5), "the path")
    if np.linalg.norm(path[-1] - path[-2]) > 0.01:
        raise Fault("on your own network the states do not settle.", SEGMENT)


def check_limit(answer: object, mine: Mine) -> None:
    """Task 4: the form only; which equilibrium it is, is the question."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        raise Fault("hand over (t_limit, t_between, t_least).")
    limit, least = number(answer[0], "t_limit"), number(answer[2], "t_least")
    low, high = array(answer[1], (2,), "t_between")
    for t in (limit, least):
        if not mine.ends[0] <= t <= mine.ends[1]:
            raise Fault(f"t = {t:.3f} is not on your segment: there is no equilibrium.", SEGMENT)
    if not low < limit < high:
        raise Fault("the interval should have your t_limit in its inside.")
    if high - low > T_WIDTH * (1 + 1e-9):
        raise Fault(f"the interval is {high - low:.3f} wide; {T_WIDTH} is allowed.", RATE)


def check_polygon(answer: object, mine: Mine) -> None:
    """Task 5: the form, and the region in which no polygon can help."""
    try:
        rows = np.asarray(answer, dtype=float)
    except (TypeError, ValueError):
        raise Fault("polygon should be an array of numbers, one corner in each row.") from None
    if rows.ndim != 2 or rows.shape[1] != 3 or not 3 <= len(rows) <= CORNERS:
        raise Fault(
            f"polygon should have three columns and 3 to {CORNERS} rows; its shape is {rows.shape}."
        )
    corners = array(rows, rows.shape, "polygon")
    if np.abs(corners).max() > LARGEST:
        raise Fault(f"the entries of polygon should lie between -{LARGEST:g} and {LARGEST:g}.")
    on = corners @ mine.S + mine.c > 0
    if on.all() or not on.any():
        raise Fault(
            "at all corners all units are on, or all are off. What is the Jacobian of f there?",
            WHICH,
        )


check = Checker(
    {
        "hidden": check_hidden,
        "pulls": check_pulls,
        "path": check_path,
        "limit": check_limit,
        "polygon": check_polygon,
    }
)
