"""Assignment 7, *Inside a network of your own*: the student's numbers and the public checks.

Chapter 7 of the book, pages 7a and 7b. The cell here is z = σ(Wz + q) with σ(h) = h/√(1 + h²), so
that all derivatives can be written down. What a training loop needs and no task asks for is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deqbook.course.checks import Checker, Fault, Place, array, number
from deqbook.course.instance import NOBODY, Draw, Instance

__all__ = [
    "Mine",
    "adam",
    "bend",
    "check",
    "instance",
    "loss_and_gradients",
    "picard",
    "sigma",
    "slope",
    "unrolled_gradients",
]

NAME = "a07"
PAGE_B = "chapters/07b_in_use"
JACOBIAN = Place(PAGE_B, "sec-inuse-jacobian", "Watch the Jacobian while you train")
STEPS = Place(PAGE_B, "sec-inuse-steps", "More steps at test time")
SYMPTOMS = Place(PAGE_B, "sec-inuse-check", "What to check when your model does not converge")
#: Units, inputs, clusters; how far centres lie from each other at least, and points from them.
UNITS, SIZE, CLUSTERS, APART, SPREAD = 12, 5, 16, 1.4, 0.25
#: What the networks of tasks 2 and 3 have to do on the test inputs.
ACCURACY, HELD, SETTLED, NORM, DROP = 0.9, 0.15, 1e-6, 1.0, 0.15
#: Steps of Picard iteration: in training, until a network has to settle, and the most of task 3.
CAP, ENOUGH, MOST = 30, 100, 40
#: How near the critical factor has to be, how wide its interval may be; the entries of task 5.
FACTOR_ERROR, FACTOR_WIDTH, LEAST_Q, LARGEST_Q = 0.01, 0.05, 0.2, 4.0

#: What a network consists of.
SHAPES: dict[str, tuple[int, ...]] = {
    "W": (UNITS, UNITS),
    "U": (UNITS, SIZE),
    "b": (UNITS,),
    "a": (UNITS,),
    "c": (),
}
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Mine:
    """The numbers of one student."""

    student: str
    centres: np.ndarray  # tasks 2 and 3: of the clusters; every other one has the label +1
    X: np.ndarray  # training inputs and labels
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    start: Weights
    cap: int  # task 3
    R: np.ndarray  # task 4: weights and an injection
    r: np.ndarray
    C: np.ndarray  # task 5: three units


def instance(student: str, salt: str = "") -> Mine:
    """Return the numbers of a student.

    >>> instance("student-01").cap == instance("Student-01 ").cap
    True
    """
    if student == NOBODY:
        raise ValueError(f"STUDENT is still {NOBODY!r}; write your own id there, and run again.")
    mine = Instance(NAME, student, salt)
    data, start = mine.draw("data"), mine.draw("start")
    fourth, fifth = mine.draw("factor"), mine.draw("two")
    centres = apart(data)
    X, y = inputs(centres, data, 160)
    X_test, y_test = inputs(centres, data, 200)
    return Mine(
        student,
        centres,
        X,
        y,
        X_test,
        y_test,
        start={
            "W": np.round(0.5 * start.normal(UNITS, UNITS) / np.sqrt(UNITS), 3),
            "U": np.round(start.normal(UNITS, SIZE) / np.sqrt(SIZE), 3),
            "b": 0.3 * start.normal(UNITS),
            "a": np.round(start.normal(UNITS) / np.sqrt(UNITS), 3),
            "c": np.array(0.0),
        },
        cap=mine.draw("cap").integer(2, 3),
        R=turning_weights(fourth),
        r=np.array([fourth.choice([-1, 1]) * fourth.uniform(0.85, 1.15) for _ in range(8)]),
        C=three_units(fifth),
    )


def apart(draw: Draw) -> np.ndarray:
    """Draw centres of clusters, none of them near another."""
    centres: list[np.ndarray] = []
    while len(centres) < CLUSTERS:
        one = draw.normal(SIZE)
        if all(((one - other) ** 2).sum() > APART**2 for other in centres):
            centres.append(one)
    return np.array(centres)


def inputs(centres: np.ndarray, draw: Draw, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs near the centres, and their labels: +1 for every other cluster, else -1."""
    which = np.array([draw.integer(0, len(centres) - 1) for _ in range(n)])
    X = np.round(centres[which] + SPREAD * draw.normal(n, centres.shape[1]), 3)
    return X, np.where(which % 2 == 0, 1.0, -1.0)


def turning_weights(draw: Draw) -> np.ndarray:
    """Draw weights that turn every state by nearly a right angle and shorten it by nearly 0.6."""
    basis: list[np.ndarray] = []
    for row in draw.normal(8, 8):
        for _ in range(2):  # twice, because of rounding
            for other in basis:
                row = row - (row @ other) * other
        basis.append(row / np.sqrt(row @ row))
    turn = sum(np.outer(u, v) - np.outer(v, u) for u, v in zip(basis[::2], basis[1::2]))
    return np.round(0.6 * turn + 0.03 * draw.normal(8, 8) / np.sqrt(8), 3)


def three_units(draw: Draw) -> np.ndarray:
    """Draw three units: two hold each other, up or down, and drive the third."""
    i, j, k = draw.choice([(0, 1, 2), (0, 2, 1), (1, 2, 0), (1, 0, 2), (2, 0, 1), (2, 1, 0)])
    kind = draw.choice([-1, 1])
    C = np.zeros((3, 3))
    C[i, j], C[j, i] = kind * draw.uniform(1.6, 1.9, 2), kind * draw.uniform(1.6, 1.9, 2)
    C[i, k], C[j, k] = (draw.choice([-1, 1]) * draw.uniform(0.1, 0.2, 2) for _ in range(2))
    C[k, i], C[k, j] = (draw.choice([-1, 1]) * draw.uniform(0.4, 1.2, 2) for _ in range(2))
    return C


# --- what the tasks give --------------------------------------------------------------------


def sigma(h: Any) -> Any:
    """Return σ(h) = h/√(1 + h²), entry by entry.

    >>> float(sigma(0.75))
    0.6
    """
    return h / np.sqrt(1 + h * h)


def slope(h: Any) -> Any:
    """Return σ'(h)."""
    return (1 + h * h) ** -1.5


def bend(h: Any) -> Any:
    """Return σ''(h)."""
    return -3 * h * (1 + h * h) ** -2.5


def picard(W: np.ndarray, Q: np.ndarray, steps: int) -> np.ndarray:
    """Return the states after so many steps of Picard iteration from zero; one row an input."""
    Z = np.zeros_like(Q)
    for _ in range(steps):
        Z = sigma(Z @ W.T + Q)
    return Z


def loss_and_gradients(
    weights: Mapping[str, np.ndarray], X: np.ndarray, y: np.ndarray, Z: np.ndarray
) -> tuple[float, Weights]:
    """Return the mean logistic loss at the states Z, and its gradients in all weights.

    The gradients are implicit: those of the loss at the equilibria, if Z are the equilibria.
    """
    W, a = weights["W"], weights["a"]
    D = slope(Z @ W.T + X @ weights["U"].T + weights["b"])
    margins = y * (Z @ a + weights["c"])
    g = -y / (1 + np.exp(np.clip(margins, -500, 500))) / len(y)
    adjoint = np.linalg.solve(np.eye(len(a)) - W.T * D[:, None, :], (g[:, None] * a)[:, :, None])[
        :, :, 0
    ]
    back = D * adjoint
    gradients = {"W": back.T @ Z, "U": back.T @ X, "b": back.sum(axis=0)}
    loss = float(np.logaddexp(0, -margins).mean())
    return loss, {**gradients, "a": Z.T @ g, "c": g.sum()}


def unrolled_gradients(
    weights: Mapping[str, np.ndarray], X: np.ndarray, y: np.ndarray, steps: int
) -> tuple[float, Weights]:
    """Return the mean logistic loss after so many steps from zero, and its own gradients.

    This is the network of that depth with tied weights; no equilibrium is involved.
    """
    W, Q = weights["W"], X @ weights["U"].T + weights["b"]
    path = [picard(W, Q, k) for k in range(steps + 1)]
    margins = y * (path[-1] @ weights["a"] + weights["c"])
    g = -y / (1 + np.exp(np.clip(margins, -500, 500))) / len(y)
    gradients = {name: np.zeros_like(value) for name, value in weights.items()}
    gradients["a"], gradients["c"] = path[-1].T @ g, g.sum()
    back = g[:, None] * weights["a"]
    for Z in path[-2::-1]:
        back = slope(Z @ W.T + Q) * back
        gradients["W"] += back.T @ Z
        gradients["U"] += back.T @ X
        gradients["b"] += back.sum(axis=0)
        back = back @ W
    return float(np.logaddexp(0, -margins).mean()), gradients


def adam(
    weights: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
    memory: dict[str, Any],
    rate: float,
) -> Weights:
    """Return the weights after one step of Adam; ``memory`` is a dictionary, empty at first."""
    t = memory["t"] = memory.get("t", 0) + 1
    new = {}
    for name, g in gradients.items():
        first, second = memory.get(name, (0.0, 0.0))
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        memory[name] = first, second
        step = first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        new[name] = weights[name] - rate * step
    return new


# --- the checks -----------------------------------------------------------------------------


def as_weights(answer: object, what: str) -> Weights:
    """Return an answer as the weights of a network, or say why it is none."""
    if not isinstance(answer, Mapping):
        raise Fault(f"{what} should be a dictionary with W, U, b, a and c, as mine.start is.")
    missing = [name for name in SHAPES if name not in answer]
    if missing:
        raise Fault(f"{what} has no {missing[0]!r}; mine.start shows what belongs into it.")
    return {name: array(answer[name], shape, f"{what}[{name!r}]") for name, shape in SHAPES.items()}


def accuracy(weights: Weights, X: np.ndarray, y: np.ndarray, steps: int) -> float:
    """Return the share of right labels after so many steps from zero."""
    Z = picard(weights["W"], X @ weights["U"].T + weights["b"], steps)
    return float((y * (Z @ weights["a"] + weights["c"]) > 0).mean())


def check_penalty(answer: Callable[..., Any], mine: Mine) -> None:
    """Task 1: one unit by hand, and the mean over all probes of two units."""
    value, gradient = answer(*(np.array([[x]]) for x in (2.0, 0.0, 0.0, -1.0)))
    if not np.isclose(number(value, "the value"), 4.0):
        raise Fault("for one unit with W = [[2]], z = 0, q = 0 the value is 2² = 4.", JACOBIAN)
    if not np.isclose(array(gradient, (1, 1), "the gradient")[0, 0], 4.0):
        raise Fault("for one unit with W = [[2]], z = 0, q = 0 the gradient is 2·2 = 4.", JACOBIAN)
    W = np.array([[1.0, 2.0], [0.0, -1.0]])
    probes = [np.array([[s, t]]) for s in (-1.0, 1.0) for t in (-1.0, 1.0)]
    values = [number(answer(W, np.zeros((1, 2)), np.zeros((1, 2)), E)[0], "it") for E in probes]
    if not np.isclose(np.mean(values), 3.0):
        raise Fault(
            "for W = [[1, 2], [0, -1]] and z = q = 0 the mean over all four probes should be "
            f"‖W‖²_F/2 = 3, and is {np.mean(values):.4g}. Which factor is missing?",
            JACOBIAN,
        )


def check_held(answer: object, mine: Mine) -> None:
    """Task 2: the conditions, on the test inputs that the student has."""
    weights = as_weights(answer, "weights_held")
    W, Q = weights["W"], mine.X_test @ weights["U"].T + weights["b"]
    right = accuracy(weights, mine.X_test, mine.y_test, ENOUGH)
    if right < ACCURACY:
        raise Fault(f"it is right on {right:.3f} of the test inputs; {ACCURACY} is asked for.")
    Z = picard(W, Q, ENOUGH)
    far = int((np.linalg.norm(sigma(Z @ W.T + Q) - Z, axis=1) > SETTLED).sum())
    if far:
        raise Fault(
            f"on {far} of 200 test inputs Picard iteration has not settled after {ENOUGH} steps.",
            SYMPTOMS,
        )
    size = float(((slope(Z @ W.T + Q)[:, :, None] * W) ** 2).sum(axis=(1, 2)).mean())
    if size > HELD:
        raise Fault(f"the mean of ‖J‖²_F is {size:.3g}; at most {HELD} is asked for.", JACOBIAN)
    if np.linalg.norm(W, 2) < NORM:
        raise Fault(
            f"the norm of W is {np.linalg.norm(W, 2):.3g}: this is hardly an equilibrium model any "
            "more. Was the penalty too strong?",
            JACOBIAN,
        )


def check_radius(answer: object, mine: Mine) -> None:
    """Task 2, what was measured: the form only."""
    median, worst = array(answer, (2,), "radius")
    if not 0 <= median <= worst:
        raise Fault("radius is the pair (median, worst), and the worst is the largest.", JACOBIAN)
    if worst >= 1:
        raise Fault("with such a radius Picard iteration would not have settled.", JACOBIAN)


def check_capped(answer: object, mine: Mine) -> None:
    """Task 3: the conditions, on the test inputs that the student has."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (capped, worse).")
    weights, worse = as_weights(answer[0], "capped"), number(answer[1], "worse")
    if worse != int(worse) or not mine.cap < worse <= MOST:
        raise Fault(f"worse should be a number of steps between {mine.cap + 1} and {MOST}.")
    first = accuracy(weights, mine.X_test, mine.y_test, mine.cap)
    later = accuracy(weights, mine.X_test, mine.y_test, int(worse))
    if first < ACCURACY:
        raise Fault(
            f"after {mine.cap} steps it is right on {first:.3f} of the test inputs; {ACCURACY} is "
            "asked for."
        )
    if first - later < DROP:
        raise Fault(
            f"after {int(worse)} steps it is right on {later:.3f}, after {mine.cap} on "
            f"{first:.3f}; the difference should be at least {DROP}.",
            STEPS,
        )


def check_factor(answer: object, mine: Mine) -> None:
    """Task 4: the form only; whether the number is right is the question."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Fault("hand over (factor, factor_between).")
    factor = number(answer[0], "factor")
    low, high = array(answer[1], (2,), "factor_between")
    if factor <= 1:
        raise Fault("for s = 1 Picard iteration converges, so the factor is above one.", JACOBIAN)
    if not low < factor < high:
        raise Fault("the interval should have your factor in its inside.")
    if high - low > FACTOR_WIDTH:
        raise Fault(f"the interval is {high - low:.3f} wide; {FACTOR_WIDTH} is allowed.")


def clipped(h: np.ndarray) -> np.ndarray:
    """Return the activation of task 5."""
    return np.clip(h, -1, 1)


def check_two(answer: object, mine: Mine) -> None:
    """Task 5: all but the question itself, whether there is a second equilibrium."""
    q = array(answer, (3,), "q_two")
    if np.abs(q).max() > LARGEST_Q or np.abs(q).min() < LEAST_Q - 1e-12:
        raise Fault(f"the entries should be between {LEAST_Q} and {LARGEST_Q:g} in absolute value.")
    z = np.zeros(3)
    for _ in range(50):
        z = clipped(mine.C @ z + q)
    if np.linalg.norm(clipped(mine.C @ z + q) - z) > 1e-9:
        raise Fault("from z = 0 Picard iteration does not settle.", SYMPTOMS)
    if np.abs(mine.C @ z + q).min() <= 1:
        raise Fault(
            "where Picard iteration ends, a unit is not saturated, so J is not 0.", SYMPTOMS
        )


check = Checker(
    {
        "penalty": check_penalty,
        "held": check_held,
        "radius": check_radius,
        "capped": check_capped,
        "factor": check_factor,
        "two": check_two,
    }
)
