"""Assignment 2, *All its echoes*: the student's numbers and the public checks.

Chapter 2 of the book. Nothing here holds an answer: a check looks at the form of an answer and at
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

NAME = "a02"
PAGE = "chapters/02_implicit_gradients"
CHAIN = Place(PAGE, "sec-chain-rule", "What is the derivative of a solution?")
ADJOINT = Place(PAGE, "sec-adjoint", "The backward pass is another equilibrium")
COURT = Place(PAGE, "sec-court", "Exact or approximate: the gradient court")
DESCENT = Place(PAGE, "sec-descent", "When do approximate gradients still descend?")
SECOND = Place(PAGE, "sec-second", "Second derivatives")
#: Task 1: how many echoes are asked for.
ECHOES = 8
#: Task 3: errors that are allowed, and the width of the interval.
FOLD_ERROR, FOLD_WIDTH, POWER_ERROR, FACTOR_ERROR = 1e-5, 1e-4, 0.02, 0.01
#: Task 4: bounds on the entries.
SMALLEST_LINK, LARGEST_Y = 0.1, 100.0


@dataclass(frozen=True)
class Mine:
    """The numbers of one student."""

    student: str
    A: np.ndarray  # task 1: a graph, its weights, and what its nodes should say
    W: np.ndarray
    gamma: float
    Q: np.ndarray
    Y: np.ndarray
    F: np.ndarray  # task 3: a network with a fold
    q: np.ndarray
    b: np.ndarray
    a: np.ndarray
    c: np.ndarray  # task 4: what your cell has to have
    kappa: float
    trace: float
    terms: int


def instance(student: str, salt: str = "") -> Mine:
    """Return the numbers of a student.

    >>> instance("student-01").gamma == instance("Student-01 ").gamma
    True
    """
    if student == NOBODY:
        raise ValueError(f"STUDENT is still {NOBODY!r}; write your own id there, and run again.")
    mine = Instance(NAME, student, salt)
    first, third, fourth = mine.draw("graph"), mine.draw("fold"), mine.draw("climb")
    F, q, b = folding_network(third)
    return Mine(
        student,
        **graph_network(first, 7, 3),
        F=F,
        q=q,
        b=b,
        a=third.uniform(0.5, 3.0, 1) * np.array([third.uniform(0.5, 1.5, 1) for _ in range(3)]),
        c=np.array([fourth.uniform(1.2, 1.8, 2), -fourth.uniform(0.3, 0.7, 2)]),
        kappa=fourth.uniform(0.88, 0.94, 2),
        trace=fourth.uniform(0.3, 0.6, 4),
        terms=fourth.integer(4, 7),
    )


def graph_network(draw: Draw, n: int, m: int) -> dict[str, Any]:
    """Draw a directed graph, weights, injections and goals; the cell is a contraction."""
    A = np.zeros((n, n))
    for i in range(n):  # a ring, and one more edge into every node
        A[i, i - 1] = draw.uniform(0.5, 1.0, 2)
        A[i, (i + draw.integer(1, n - 2)) % n] += draw.uniform(0.1, 0.5, 2)
    signs = np.array([draw.choice([-1.0, 1.0]) for _ in range(m)])
    W = np.array([[draw.uniform(0.2, 1.2, 2) for _ in range(m)] for _ in range(m)])
    norms = float(np.linalg.norm(A, 2) * np.linalg.norm(W, 2))
    Q = np.array([[draw.uniform(0.01, 0.08, 3) for _ in range(m)] for _ in range(n)])
    Y = np.array([[draw.uniform(-1.5, 0.1, 2) for _ in range(m)] for _ in range(n)])
    gamma = round(draw.uniform(0.94, 0.97) / norms, 3)
    return {"A": A, "W": signs[:, None] * W * signs, "gamma": gamma, "Q": Q * signs, "Y": Y * signs}


def folding_network(draw: Draw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw three units that excite each other, so that two equilibria meet somewhere."""
    B = np.array([[draw.uniform(0.4, 1.0) for _ in range(3)] for _ in range(3)])
    F = draw.uniform(1.8, 2.2) * B / np.abs(np.linalg.eigvals(B)).max()
    q = np.array([draw.uniform(-0.1, 0.1) for _ in range(3)])
    return np.round(F, 3), q, np.array([draw.uniform(0.8, 1.2, 2) for _ in range(3)])


def check_pull(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 1: shapes, and two nodes with one number each, by hand."""
    A, one = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[1.0]])
    Z, V = np.array([[3.0], [5.0]]), np.array([[7.0], [11.0]])
    found = answer(A, 2 * one, 0.5, -A @ Z, Z, V)  # pre-activations: 0 and 0
    if not isinstance(found, (tuple, list)) or len(found) != 4:
        raise Fault("pull should return four things: in Z, in W, in γ, in Q.", ADJOINT)
    in_Z, in_W = array(found[0], (2, 1), "in Z"), array(found[1], (1, 1), "in W")
    in_gamma, in_Q = number(found[2], "in γ"), array(found[3], (2, 1), "in Q")
    where = "two nodes, node 1 hears node 2, pre-activations 0: "
    if not np.allclose(in_Q, V):
        raise Fault(
            where + "a push on Q moves the cell by as much. Where is the slope of tanh taken?",
            ADJOINT,
        )
    if not np.allclose(in_Z, [[0.0], [7.0]]):
        raise Fault(
            where + "what node 1 feels has to go back to node 2, and nothing to node 1.", ADJOINT
        )
    if not np.allclose(in_W, 17.5):
        raise Fault(where + "in W it is 0.5·7·5 = 17.5.", ADJOINT)
    if not np.allclose(in_gamma, 70.0):
        raise Fault(where + "in γ it is 7·5·2 = 70.", ADJOINT)
    found = answer(mine.A, mine.W, mine.gamma, mine.Q, mine.Y, mine.Y)
    for piece, shape in zip(found, ((7, 3), (3, 3), (), (7, 3))):
        array(piece, shape, "a piece, on your own graph,")


def check_echoes(answer: object, mine: Mine) -> None:
    """Task 1, the student's own graph: the form only."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (echoes_own, slope_own).")
    echoes, slope = array(answer[0], (ECHOES,), "echoes_own"), number(answer[1], "slope_own")
    if np.allclose(echoes.sum(), slope, rtol=1e-3):
        raise Fault("slope_own is the sum of eight echoes; all of them are asked for.", CHAIN)


def check_second(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 2: shapes, and a network without feedback at q = 0."""
    y, p = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.1, -0.2])
    found = answer(np.zeros((3, 3)), np.zeros(3), y, p)
    if not isinstance(found, (tuple, list)) or len(found) != 3:
        raise Fault("second should return three vectors: dz, dv and Hp.", SECOND)
    for one, what in zip(found, ("dz", "dv", "Hp")):
        if not np.allclose(array(one, (3,), what), p):
            raise Fault(f"for W = 0 and q = 0 {what} should be p itself.", SECOND)


def check_fold(answer: object, mine: Mine) -> None:
    """Task 3, where the branch ends: the form only."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (p_fold, p_between).")
    p, (low, high) = number(answer[0], "p_fold"), (number(one, "an end") for one in answer[1])
    if p >= 0:
        raise Fault("at p = 0 the branch is still there: p_fold should be negative.", CHAIN)
    if not low <= p <= high:
        raise Fault("the interval should contain your number.")
    if high - low > FOLD_WIDTH * (1 + 1e-9):
        raise Fault(f"the interval is {high - low:.1e} wide; {FOLD_WIDTH:g} is allowed.", CHAIN)


def check_blow(answer: object, mine: Mine) -> None:
    """Task 3, how the derivative grows: the form only."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (power, factor).")
    power, factor = number(answer[0], "power"), number(answer[1], "factor")
    if power <= 0 or factor <= 0:
        raise Fault("the derivative grows, and it is positive: so are power and factor.", CHAIN)
    if power >= 1:
        raise Fault("the output stays finite as p falls; can its derivative grow that fast?", CHAIN)


def check_climb(answer: object, mine: Mine) -> None:
    """Task 4: everything but the question itself, the signs."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (W_climb, y_climb).")
    W, y = array(answer[0], (2, 2), "W_climb"), array(answer[1], (2,), "y_climb")
    if abs(W[0, 1] - W[1, 0]) > 1e-12:
        raise Fault("W_climb should be symmetric.")
    if abs(W[0, 1]) < SMALLEST_LINK:
        raise Fault(f"the units should hear each other, with a weight of at least {SMALLEST_LINK}.")
    if abs(np.trace(W) - mine.trace) > 1e-9:
        raise Fault(f"the trace should be {mine.trace}, and is {np.trace(W):.4g}.")
    if np.linalg.norm(W, 2) > mine.kappa + 1e-9:
        raise Fault(
            f"the norm should be at most {mine.kappa}, and is {np.linalg.norm(W, 2):.4g}.", DESCENT
        )
    if not 0 < np.abs(y).max() <= LARGEST_Y:
        raise Fault(f"y_climb should not be zero, nor larger than {LARGEST_Y:g}.", DESCENT)


check = Checker(
    {
        "pull": check_pull,
        "echoes": check_echoes,
        "second": check_second,
        "fold": check_fold,
        "blow": check_blow,
        "climb": check_climb,
    }
)
