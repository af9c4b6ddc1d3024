"""Assignment 3, *Flow and descent*: the student's numbers and the public checks.

Chapter 3 of the book, above all pages 3a and 3b. Nothing here holds an answer: a check looks at the
form of an answer and at cases that can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deqbook.course.checks import Checker, Fault, Place, array, number
from deqbook.course.instance import NOBODY, Draw, Instance

__all__ = ["Mine", "check", "instance"]

NAME = "a03"
PAGE_A, PAGE_B = "chapters/03a_linear_rates", "chapters/03b_three_networks"
REGRESSION = Place(PAGE_A, "sec-regression", "Linear regression, eigenvector by eigenvector")
PREDICTION = Place(PAGE_A, "sec-prediction", "The predictions move by a Gram matrix")
FLOW = Place(PAGE_A, "sec-flow-descent", "Flow against descent")
EXERCISES = Place(PAGE_A, "sec-3a-exercises", "Exercises")
KERNELS = Place(PAGE_B, "sec-three", "Three networks, three kernels")
GRADIENTS = Place(
    "chapters/02_implicit_gradients",
    "sec-closed-forms",
    "The closed forms of the models of this book",
)
#: How near an answer has to be, and how wide its interval may be; relative for the drift.
RATE_ERROR, RATE_WIDTH, DRIFT_ERROR, DRIFT_WIDTH, ORDER_ERROR = 0.002, 0.01, 0.02, 0.05, 0.1
#: Task 5: the step is at least this many times 1/λ_max; the factor is at most 1 - GAIN/√κ.
LEAST_STEP, GAIN = 2.5, 1.5


@dataclass(frozen=True)
class Mine:
    """The numbers of one student."""

    student: str
    W: np.ndarray  # tasks 2 to 4: a linear network with feedback, at the start of training
    U: np.ndarray
    a: np.ndarray
    X: np.ndarray  # its inputs, one in a row, and labels
    y: np.ndarray
    time: float  # task 3: up to which time
    eta: float  # task 4: the step
    Phi: np.ndarray  # task 5: features of a linear regression


def instance(student: str, salt: str = "") -> Mine:
    """Return the numbers of a student.

    >>> instance("student-01").eta == instance("Student-01 ").eta
    True
    """
    if student == NOBODY:
        raise ValueError(f"STUDENT is still {NOBODY!r}; write your own id there, and run again.")
    mine = Instance(NAME, student, salt)
    first, second = mine.draw("network"), mine.draw("regression")
    W, U, a, X, y = small_network(first)
    return Mine(
        student,
        W=W,
        U=U,
        a=a,
        X=X,
        y=y,
        time=first.uniform(1.6, 2.4, 1),
        eta=first.uniform(0.016, 0.022, 4),
        Phi=uneven_features(second),
    )


def small_network(draw: Draw) -> tuple[np.ndarray, ...]:
    """Draw four units, three inputs and labels; small weights, so that the kernel has to grow."""
    W = np.round(0.12 * draw.normal(4, 4), 3)
    U = np.round(0.5 * np.vstack([np.eye(3), np.full((1, 3), 0.4)]) + 0.1 * draw.normal(4, 3), 3)
    a = np.round(0.35 + 0.1 * draw.normal(4), 3)
    X = np.round(np.eye(3) + 0.12 * draw.normal(3, 3), 3)
    sizes = np.array([draw.uniform(0.8, 1.3, 2) for _ in range(3)])
    signs = np.array(draw.choice([(1, 1, -1), (1, -1, 1), (-1, 1, 1)]))
    return W, U, a, X, sizes * signs


def uneven_features(draw: Draw) -> np.ndarray:
    """Draw five samples of very different lengths: the Gram matrix is badly conditioned."""
    scale = draw.uniform(0.4, 2.5)
    lengths = np.array([draw.uniform(low, 1.1 * low) for low in (2.0, 1.3, 0.8, 0.5, 0.22)])
    rows = np.eye(5, 9) + 0.2 * draw.normal(5, 9)
    return np.round(scale * lengths[:, None] * rows, 4)


def check_descent(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 1: a step and a second one by hand, shapes, and that the inputs are left alone."""
    one = [np.array([[0.5]]), np.array([[1.0]]), np.array([1.0])]
    kept = [weight.copy() for weight in one]
    W, U, a, path = answer(*one, np.array([[1.0]]), np.array([1.0]), 0.1, 0.0, 1)
    if any(not np.array_equal(now, then) for now, then in zip(one, kept)):
        raise Fault("descent changes the arrays that it was given; work on copies.")
    path = array(path, (2, 1), "the path of the predictions, for one sample and one step,")
    if not np.isclose(path[0, 0], 2):
        raise Fault("for W = 0.5 and U = a = x = 1 the first prediction is 2.", GRADIENTS)
    slopes = {"W": 4.0, "U": 2.0, "a": 2.0}  # error 1, state 2, adjoint state 2
    for (name, slope), new, old in zip(slopes.items(), (W, U, a), kept):
        if not np.allclose(array(new, old.shape, f"the last {name}"), old - 0.1 * slope):
            raise Fault(
                f"for W = 0.5, U = a = x = y = 1 the derivative of the loss in {name} is "
                f"{slope:g}; one step of 0.1 does not give what you return.",
                GRADIENTS,
            )
    W = answer(*kept, np.ones((2, 1)), np.ones(2), 0.01, 0.0, 1)[0]
    if not np.allclose(array(W, (1, 1), "the last W"), 0.5 - 0.08):
        raise Fault("two equal samples should move W twice as far as one: the loss is a sum.")
    # From rest at W = U = 0, a = 1: U goes to 0.1, then to 0.1 + 0.09 + 0.05 with momentum ½.
    still = np.zeros((1, 1)), np.zeros((1, 1)), np.ones(1)
    U = answer(*still, np.array([[1.0]]), np.array([1.0]), 0.1, 0.5, 2)[1]
    if not np.allclose(array(U, (1, 1), "the last U"), 0.24):
        raise Fault(
            "for W = U = 0, a = x = y = 1, a step of 0.1 and a momentum of 0.5, U goes from 0 to "
            "0.1 and to 0.24."
        )
    W, U, a, path = answer(mine.W, mine.U, mine.a, mine.X, mine.y, mine.eta, 0.5, 40)
    path = array(path, (41, 3), "the path of the predictions")
    for name, new, old in (("W", W, mine.W), ("U", U, mine.U), ("a", a, mine.a)):
        array(new, old.shape, f"the last {name}")
    if np.linalg.norm(path[-1] - mine.y) > np.linalg.norm(path[0] - mine.y):
        raise Fault("on your own network the error grows. Is the sign right?", GRADIENTS)


def check_kept(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 2: the form, and the case without feedback."""
    B = array(answer(mine.W, mine.U, mine.a), (4, 4), "what kept returns")
    if not np.allclose(B, B.T):
        raise Fault("the matrix should be symmetric.")
    plain = array(answer(np.zeros((4, 4)), mine.U, mine.a), (4, 4), "what kept returns")
    if not np.allclose(plain, mine.U @ mine.U.T - np.outer(mine.a, mine.a)):
        raise Fault("for W = 0 it should be UUᵀ - aaᵀ.", EXERCISES)
    if np.allclose(B, plain):
        raise Fault("it does not depend on W at all. Watch it during training.", FLOW)


def check_drift(answer: object, mine: Mine) -> None:
    """Task 3: the form only; whether the numbers are right is the question."""
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise Fault("hand over (drift_order, drift, drift_between).")
    number(answer[0], "drift_order")
    drift, (low, high) = number(answer[1], "drift"), (number(one, "an end") for one in answer[2])
    if not 0 < low < drift < high:
        raise Fault("the interval should be positive and have your number in its inside.")
    if high > (1 + DRIFT_WIDTH) * low * (1 + 1e-12):
        raise Fault(f"the interval reaches from {low:.4g} to {high:.4g}; that is too wide.", FLOW)


def check_rate(answer: object, mine: Mine) -> None:
    """Task 4: the form only; whether the number is right is the question."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (rate, rate_between).")
    rate, (low, high) = number(answer[0], "rate"), (number(one, "an end") for one in answer[1])
    if not 0 < rate < 1:
        raise Fault("the loss falls, so its factor is between 0 and 1.", PREDICTION)
    if not low < rate < high:
        raise Fault("the interval should have your rate in its inside.")
    if high - low > RATE_WIDTH * (1 + 1e-9):
        raise Fault(f"the interval is {high - low:.3f} wide; {RATE_WIDTH} is allowed.", PREDICTION)


def check_faster(answer: object, mine: Mine) -> None:
    """Task 5: the form, and the step; not the factor."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (eta_fast, beta_fast).")
    eta, beta = number(answer[0], "eta_fast"), number(answer[1], "beta_fast")
    if not 0 <= beta < 1:
        raise Fault("the momentum should be at least 0 and less than 1.")
    top = np.linalg.eigvalsh(mine.Phi @ mine.Phi.T)[-1]
    if eta * top < LEAST_STEP * (1 - 1e-9):
        raise Fault(
            f"the step is {eta * top:.3g}/λ_max; at least {LEAST_STEP}/λ_max is asked for.",
            REGRESSION,
        )


check = Checker(
    {
        "descent": check_descent,
        "kept": check_kept,
        "drift": check_drift,
        "rate": check_rate,
        "faster": check_faster,
    }
)
