"""Assignment 0, *How deep is deep enough?*: the student's numbers and the public checks.

Chapter 0 of the book. Nothing here holds an answer: a check looks at the form of an answer, at
cases that can be worked out by hand, and at residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deqbook.course.checks import Checker, Fault, Place, array, number
from deqbook.course.instance import NOBODY, Draw, Instance

__all__ = ["Mine", "check", "instance"]

NAME = "a00"
PAGE = "chapters/00_depth_to_equilibrium"
TIED = Place(PAGE, "sec-tied", "A deep network with one layer")
LIMIT = Place(PAGE, "sec-limit", "The limit is an equation")
SOLVE = Place(PAGE, "sec-solve", "Solve it")
GRADIENT = Place(PAGE, "sec-first-gradient", "Its gradient")
CARELESS = Place(PAGE, "sec-careless", "What goes wrong when one is careless")
TYING = Place(PAGE, "sec-tying", "Weight tying loses nothing")
#: Task 2: how near the output has to be, and the largest strength.
OUTPUT_ERROR, LARGEST_S = 1e-6, 2.0
#: Task 3: how far the second depth may be off, and how wide its interval may be.
LAYERS_ERROR, LAYERS_WIDTH = 5, 20
#: Task 4: bounds on the entries.
SMALLEST_ENTRY, LARGEST_ENTRY = 0.01, 100.0


@dataclass(frozen=True)
class Mine:
    """The numbers of one student."""

    student: str
    W: np.ndarray  # task 2: a network with an adjustable strength
    Q: np.ndarray
    a: np.ndarray
    target: float
    V: np.ndarray  # task 3: a ReLU network
    v: np.ndarray
    layers: int  # task 4: what your network has to do
    growth: float
    trace: float


def instance(student: str, salt: str = "") -> Mine:
    """Return the numbers of a student.

    >>> instance("student-01").target == instance("Student-01 ").target
    True
    """
    if student == NOBODY:
        raise ValueError(f"STUDENT is still {NOBODY!r}; write your own id there, and run again.")
    mine = Instance(NAME, student, salt)
    second, third, fourth = mine.draw("strength"), mine.draw("layers"), mine.draw("far")
    W, Q, a = weights_near_one(second, 5, 3)
    low, high = (output(W, Q, a, s) for s in (0.97, 1.08))
    V, v = late_network(third)
    return Mine(
        student,
        W=W,
        Q=Q,
        a=a,
        target=round(low + second.uniform(0.2, 0.8) * (high - low), 4),
        V=V,
        v=v,
        layers=fourth.integer(3, 4),
        growth=fourth.uniform(2.0, 4.0, 2),
        trace=fourth.uniform(1.62, 1.7, 4),
    )


def softsign(t: np.ndarray) -> np.ndarray:
    """Return t / (1 + |t|), entry by entry."""
    return t / (1 + np.abs(t))


def weights_near_one(draw: Draw, m: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a network that settles slowly once its strength is near one, and a read-out."""
    signs = np.array([draw.choice([-1.0, 1.0]) for _ in range(m)])
    B = np.array([[draw.uniform(0.2, 1.8) for _ in range(m)] for _ in range(m)])
    W = np.round(B / B.sum(axis=1, keepdims=True), 4)
    Q = np.array([[draw.uniform(0.001, 0.005, 4) for _ in range(m)] for _ in range(n)])
    a = np.array([draw.uniform(0.5, 1.5, 2) for _ in range(m)])
    return signs[:, None] * W * signs, Q * signs, a * signs


def output(W: np.ndarray, Q: np.ndarray, a: np.ndarray, s: float) -> float:
    """Return the mean output of the settled network of task 2."""
    Z = np.zeros_like(Q)
    for _ in range(5000):
        Z, last = softsign(s * Z @ W.T + Q), Z
        if np.abs(Z - last).max() < 1e-15:
            break
    return float((Z @ a).mean())


def late_network(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Draw a ReLU network of six units that is not done when it seems to be."""
    V = np.zeros((6, 6))
    B = np.array([[draw.uniform(0.5, 1.5) for _ in range(3)] for _ in range(3)])
    V[:3, :3] = draw.uniform(0.77, 0.82) * B / B.sum(axis=1).mean()
    V[3, :3] = [draw.uniform(0.2, 0.4) for _ in range(3)]
    V[3, 3], V[3, 4] = draw.uniform(0.93, 0.94), draw.uniform(0.001, 0.003)
    V[4, 3] = draw.uniform(6.0, 8.0)
    V[5, :3] = [-draw.uniform(0.3, 0.6) for _ in range(3)]
    V[5, 5] = -draw.uniform(1.4, 1.7)
    V[:3, 5] = [draw.uniform(-0.5, 0.5) for _ in range(3)]
    V[3:5, 5] = [-draw.uniform(0.1, 0.5) for _ in range(2)]
    V = np.round(V, 3)
    v = np.array([draw.uniform(0.5, 1.0) for _ in range(3)] + [0.0, 0.0, 0.0])
    v[4], v[5] = -draw.uniform(0.05, 0.15), draw.uniform(0.1, 0.3)
    rest = np.linalg.solve(np.eye(3) - V[:3, :3], v[:3])
    v[3] = round(-float(V[3, :3] @ rest) * (1 - draw.uniform(0.010, 0.014, 4)), 3)
    ranks = [draw.unit() for _ in range(6)]
    order = sorted(range(6), key=ranks.__getitem__)
    return V[np.ix_(order, order)], v[order]


def check_fold(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 1: shapes, and two blocks of one unit each, by hand."""
    column, row = np.array([[2.0], [5.0]]), np.array([[1.0, 3.0]])
    found = answer([row, 2 * row], [column, -column], [np.array([0.5]), np.array([-1.0])])
    if not isinstance(found, (tuple, list)) or len(found) != 4:
        raise Fault("fold should return four arrays: W, U, b and V.", TYING)
    W, U = array(found[0], (2, 2), "W"), array(found[1], (2, 2), "U")
    b, V = array(found[2], (2,), "b"), array(found[3], (2, 2), "V")
    if W[0].any() or W[1, 1]:
        raise Fault("block 1 sees no other block, and no block sees itself.", TYING)
    if not np.allclose(W[1, 0], 34.0):
        raise Fault(
            "two blocks of one unit, W₂ = (2, 6), V₁ = (2, 5)ᵀ: unit 2 hears unit 1 with weight "
            f"2·2 + 6·5 = 34, and yours is {W[1, 0]:g}.",
            TYING,
        )
    if not np.allclose(U, [[1.0, 3.0], [2.0, 6.0]]) or not np.allclose(b, [0.5, -1.0]):
        raise Fault("the injection U x + b of the two units is not right.", TIED)
    if not np.allclose(V, [[2.0, -2.0], [5.0, -5.0]]):
        raise Fault("V should add up what the blocks contribute to the output.", TYING)


def check_slope(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 2: shapes, no layer and one layer by hand, and the state of the student's network."""
    zero, Q = np.zeros((3, 5)), mine.Q
    for depth, state in ((0, zero), (1, softsign(Q))):
        found = answer(mine.W, Q, 0.7, depth)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise Fault("state_and_slope should return two arrays.", GRADIENT)
        Z, dZ = (array(one, (3, 5), what) for one, what in zip(found, ("the state", "the slope")))
        if not np.allclose(Z, state):
            raise Fault(f"the state after {depth} layers from Z = 0 is not right.", TIED)
        if not np.allclose(dZ, zero):
            raise Fault(f"after {depth} layers the state does not depend on s yet.", GRADIENT)
    one = np.array([[1.0]])
    Z, dZ = answer(one, one, 1.0, 2)
    if not np.allclose(array(dZ, (1, 1), "the slope"), 2 / 25):
        raise Fault("for W = 1, q = 1, s = 1 two layers have the slope 2/25 at s = 1.", GRADIENT)


def check_strength(answer: object, mine: Mine) -> None:
    """Task 2, the strength: form, and the output of the settled network."""
    s = number(answer, "s_own")
    if not 0 <= s <= LARGEST_S:
        raise Fault(f"s_own should lie between 0 and {LARGEST_S:g}.")
    off = abs(output(mine.W, mine.Q, mine.a, s) - mine.target)
    if off > OUTPUT_ERROR:
        raise Fault(
            f"with this strength the settled network misses the target by {off:.1e}. How many "
            "layers had yours?",
            CARELESS,
        )


def check_soon(answer: object, mine: Mine) -> None:
    """Task 3, first depth: the form, and whether the state still moves visibly."""
    layers = number(answer, "layers_3")
    if layers != round(layers) or layers < 1:
        raise Fault("layers_3 should be a number of layers: 1, 2, 3, …", LIMIT)
    z = np.zeros(6)
    for _ in range(int(min(layers, 10_000))):
        z = np.maximum(mine.V @ z + mine.v, 0)
    step = np.maximum(mine.V @ z + mine.v, 0) - z
    if np.linalg.norm(step) > 0.01 * np.linalg.norm(z):
        raise Fault("after so many layers the next one still moves the state by a per cent.", LIMIT)


def check_late(answer: object, mine: Mine) -> None:
    """Task 3, second depth: the form only."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (layers_50, layers_50_between).")
    layers = number(answer[0], "layers_50")
    low, high = (number(one, "an end") for one in answer[1])
    if not low <= layers <= high:
        raise Fault("the interval should contain your number.")
    if high - low > LAYERS_WIDTH:
        raise Fault(f"the interval is {high - low:g} wide; {LAYERS_WIDTH} is allowed.", SOLVE)


def check_far(answer: object, mine: Mine) -> None:
    """Task 4: everything but the question itself, where the state goes."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (W_far, q_far).")
    W, q = array(answer[0], (2, 2), "W_far"), array(answer[1], (2,), "q_far")
    if np.abs(W).min() < SMALLEST_ENTRY:
        raise Fault(f"every entry of W_far should be at least {SMALLEST_ENTRY} in absolute value.")
    if max(np.abs(W).max(), np.abs(q).max()) > LARGEST_ENTRY:
        raise Fault(f"no entry may be larger than {LARGEST_ENTRY:g} in absolute value.")
    if abs(np.trace(W) - mine.trace) > 1e-9:
        raise Fault(f"the trace should be {mine.trace}, and is {np.trace(W):.4g}.")
    if (q <= 0).all():
        raise Fault("with q ≤ 0 the network stays at z = 0 from the start.", SOLVE)


check = Checker(
    {
        "fold": check_fold,
        "slope": check_slope,
        "strength": check_strength,
        "soon": check_soon,
        "late": check_late,
        "far": check_far,
    }
)
