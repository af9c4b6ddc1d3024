"""Assignment 1, *Does it have an equilibrium?*: the student's numbers and the public checks.

Chapter 1 of the book, pages 1a and 1b. Nothing here holds an answer: a check looks at the form of
an answer and at cases that can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from deqbook.course.checks import Checker, Fault, Place, array, between, number
from deqbook.course.instance import NOBODY, Draw, Instance

__all__ = ["Mine", "check", "instance"]

NAME = "a01"
PAGE_A, PAGE_B = "chapters/01a_contraction", "chapters/01b_monotone"
SPLITTING = Place(PAGE_B, "sec-splitting", "Computing it: splitting")
PROX = Place(PAGE_B, "sec-prox", "An activation is a proximal map")
COUNTING = Place(PAGE_A, "sec-zero-one-many", "Zero, one or many")
RADIUS = Place(PAGE_A, "sec-practice", "What practice shows beyond the guarantee")
CERTIFICATES = Place(PAGE_B, "sec-certificates", "Which certificate covers which model")
#: How near the estimated rate has to be, how wide its interval may be; bounds of tasks 4 and 5.
RATE_ERROR, RATE_WIDTH, LARGEST_Q, SMALLEST_ENTRY = 0.002, 0.02, 10.0, 0.1
#: Networks of task 2 on which pivoting visits six sets or more, and each rule for the next unit
#: goes a way of its own. They were chosen beforehand: a rule here would be the solution.
LONG = [5, 6, 10, 14, 16, 18, 21, 22, 24, 34, 35, 55, 61, 62, 64, 67, 78, 84, 86, 87, 91, 94, 96]
LONG += [97, 99, 117, 130, 131, 139, 142, 152, 156, 160, 173, 176, 178, 184, 189, 191, 196]


@dataclass(frozen=True)
class Mine:
    """The numbers of one student."""

    student: str
    W: np.ndarray  # task 1: a monotone network with soft thresholds
    q: np.ndarray
    lam: float
    alpha: float
    P: np.ndarray  # task 2: a ReLU network
    p: np.ndarray
    V: np.ndarray  # task 3: a tanh network
    v: np.ndarray
    C: np.ndarray  # task 4: units that inhibit each other
    trace: float  # task 5: what your matrix has to have
    norm: float


def instance(student: str, salt: str = "") -> Mine:
    """Return the numbers of a student.

    >>> instance("student-01").alpha == instance("Student-01 ").alpha
    True
    """
    if student == NOBODY:
        raise ValueError(f"STUDENT is still {NOBODY!r}; write your own id there, and run again.")
    mine = Instance(NAME, student, salt)
    first, second, third = mine.draw("splitting"), mine.draw("pivot"), mine.draw("rate")
    fourth, fifth = mine.draw("many"), mine.draw("free")
    P, p = long_way(second)
    return Mine(
        student,
        W=monotone_weights(first, 6),
        q=2 * first.normal(6),
        lam=first.uniform(0.4, 0.9, 2),
        alpha=first.uniform(0.25, 0.6, 2),
        P=P,
        p=p,
        V=turning_weights(third, 8),
        v=0.45 * third.normal(8),
        C=inhibiting_weights(fourth),
        trace=-fifth.uniform(3.0, 6.0, 2),
        norm=fifth.uniform(5.0, 8.0, 1),
    )


def monotone_weights(draw: Draw, m: int) -> np.ndarray:
    """Draw W with I - W ⪰ 0.3 I and a norm well above one."""
    A, B = 0.25 * draw.normal(m, m), 0.7 * draw.normal(m, m)
    return np.round(0.7 * np.eye(m) - A.T @ A + B - B.T, 4)


def long_way(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Draw a ReLU network on which pivoting takes a while, in units of the student's own.

    Units z ↦ Dz change W to DWD⁻¹ and q to Dq, and no set that pivoting visits.
    """
    base = Draw(f"{NAME}/long way/{draw.choice(LONG)}")
    W, q = monotone_weights(base, 5), base.normal(5)
    D = np.array([draw.uniform(0.5, 2.0, 2) for _ in range(5)])
    return np.round(D[:, None] * W / D, 4), np.round(D * q, 4)


def turning_weights(draw: Draw, m: int) -> np.ndarray:
    """Draw weights whose largest eigenvalues are a complex pair: Picard iteration spirals in."""
    B = draw.normal(m, m)
    K = B - B.T
    scale = draw.uniform(0.8, 0.9)
    noise = 0.15 * draw.normal(m, m) / np.sqrt(m)
    return np.round(scale * K / np.linalg.norm(K, 2) + noise, 4)


def inhibiting_weights(draw: Draw) -> np.ndarray:
    """Draw three units that inhibit each other, two of them strongly and unequally."""
    C = -np.array(
        [[0.0 if i == j else draw.uniform(0.1, 0.4, 2) for j in range(3)] for i in range(3)]
    )
    i, j = draw.choice([(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)])
    weak = draw.uniform(0.3, 0.65, 2)
    C[i, j], C[j, i] = -weak, -round(draw.uniform(1.3, 1.7) / weak, 2)
    return C


def soft(p: np.ndarray, threshold: float) -> np.ndarray:
    """Return the soft threshold of every entry: sign(p) max(|p| - threshold, 0)."""
    return np.sign(p) * np.maximum(np.abs(p) - threshold, 0)


def check_splitting(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 1: shape, start, a case by hand, and the limit on the student's own network."""
    u = np.array([1.0, -2.0])
    zero = np.zeros((2, 2))
    path = array(answer(zero, np.zeros(2), 0.0, 0.5, u, 3), (4, 2), "what douglas_rachford returns")
    if not np.allclose(path[0], u):
        raise Fault("the first row should be the start u itself.", SPLITTING)
    if not np.allclose(path[1], u / 1.5):
        raise Fault(
            "for W = 0, q = 0 and λ = 0 one step should take u to u/(1 + α). Is the new u the mean "
            "of the old one and of Peaceman–Rachford's?",
            SPLITTING,
        )
    path = array(
        answer(mine.W, mine.q, mine.lam, mine.alpha, np.zeros(6), 600), (601, 6), "the path"
    )
    if not np.allclose(path[-1], path[-2], atol=1e-9):
        raise Fault("on your own network the states have not settled after 600 steps.", SPLITTING)
    z = soft(path[-1], mine.alpha * mine.lam)
    if np.linalg.norm(z - soft(mine.W @ z + mine.q, mine.lam)) > 1e-7:
        raise Fault(
            "on your own network the states settle at something that is no equilibrium. Where does "
            "the step α enter?",
            PROX,
        )


def check_state(answer: object, mine: Mine) -> None:
    """Task 1, the state: form and residual."""
    z = array(answer, (6,), "z_own")
    residual = np.linalg.norm(z - soft(mine.W @ z + mine.q, mine.lam))
    if residual > 1e-8:
        raise Fault(
            f"z_own leaves a residual of {residual:.1e}; 1e-8 is asked for. If it does not fall "
            "with more steps: how does one get from u to z, and with which threshold?",
            SPLITTING,
        )


def check_pivot(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 2: a case by hand, and form and residual on the student's own network."""
    given = answer(np.array([[0.5]]), np.array([1.0]))
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise Fault("pivot should return a pair: the state, and the path.")
    z, path = given
    if [tuple(one) for one in path] != [(), (0,)]:
        raise Fault("for W = [[0.5]], q = [1] the path is (), then (0,).", COUNTING)
    if not np.allclose(array(z, (1,), "the state"), [2.0]):
        raise Fault("for W = [[0.5]], q = [1] the equilibrium is 2.", COUNTING)
    z, path = answer(mine.P, mine.p)
    z = array(z, (5,), "the state")
    residual = np.linalg.norm(z - np.maximum(mine.P @ z + mine.p, 0))
    if residual > 1e-9:
        raise Fault(f"on your own network the residual is {residual:.1e}.", COUNTING)
    if any(tuple(one) != tuple(sorted(one)) for one in path):
        raise Fault("the sets of the path should be sorted tuples.")
    if tuple(path[-1]) != tuple(np.flatnonzero(z > 0)):
        raise Fault("the last set of the path is not the set of active units.", COUNTING)
    if any(len(set(a) ^ set(b)) != 1 for a, b in pairwise(path)):
        raise Fault("from one set of the path to the next exactly one unit goes in or out.")


def check_rate(answer: object, mine: Mine) -> None:
    """Task 3: the form only; whether the number is right is the question."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (rate, rate_between).")
    rate = number(answer[0], "rate")
    if not 0 < rate < 1:
        raise Fault("a rate of convergence is between 0 and 1.", RADIUS)
    between(answer[1], rate, RATE_WIDTH, RADIUS)


def check_many(answer: object, mine: Mine) -> None:
    """Task 4: the form, and the sign that no counterexample can have."""
    q = array(answer, (3,), "q_many")
    if np.abs(q).max() > LARGEST_Q:
        raise Fault(f"the entries of q_many should lie between -{LARGEST_Q:g} and {LARGEST_Q:g}.")
    if (q <= 0).all():
        raise Fault("with q ≤ 0 and C ≤ 0 only z = 0 solves the equation. Why?", COUNTING)


def check_free(answer: object, mine: Mine) -> None:
    """Task 5: everything but the question itself, whether the equilibrium is always unique."""
    W = array(answer, (3, 3), "W_free")
    if np.abs(W).min() < SMALLEST_ENTRY:
        raise Fault(f"every entry should be at least {SMALLEST_ENTRY} in absolute value.")
    if abs(np.trace(W) - mine.trace) > 1e-9:
        raise Fault(f"the trace should be {mine.trace}, up to 1e-9; it is {np.trace(W):.12g}.")
    if np.linalg.norm(W, 2) < mine.norm:
        raise Fault(f"the norm should be at least {mine.norm}, and is {np.linalg.norm(W, 2):.4g}.")
    if np.linalg.eigvalsh((W + W.T) / 2).max() < 1:
        raise Fault("the monotone certificate covers W_free; none should.", CERTIFICATES)
    if np.abs(np.linalg.eigvals(np.abs(W))).max() < 1:
        raise Fault("the Perron–Frobenius certificate covers W_free; none should.", CERTIFICATES)


check = Checker(
    {
        "splitting": check_splitting,
        "state": check_state,
        "pivot": check_pivot,
        "rate": check_rate,
        "many": check_many,
        "free": check_free,
    }
)
