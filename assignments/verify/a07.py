"""The verifiers of assignment 7. They run outside of the sandbox, on values alone.

Trained weights differ between machines. So a network is judged by what it does on inputs drawn
here, and what a student measured is compared with the student's own weights.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from deqbook.course.a07 import (
    ENOUGH,
    FACTOR_ERROR,
    FACTOR_WIDTH,
    LARGEST_Q,
    LEAST_Q,
    MOST,
    NORM,
    SETTLED,
    SHAPES,
    UNITS,
    Mine,
    inputs,
    instance,
    sigma,
    slope,
)
from deqbook.course.grading.probe import Probe
from deqbook.course.grading.verdict import Parts, Verdict, right, wrong
from deqbook.course.instance import Draw

__all__ = ["capped", "factor", "held", "instance", "penalty", "radius", "two"]

#: What is asked on hidden inputs, a little less than on those that the student has.
RIGHT, STILL, SMALL, FALL = 0.85, 0.97, 0.25, 0.10
RADIUS_ERROR = 0.002
TINY = 1e-30


# --- task 1: derivatives by steps into the complex plane ------------------------------------


def value_of(W: np.ndarray, Z: np.ndarray, Q: np.ndarray, E: np.ndarray) -> Any:
    """Return the penalty of weights that may be complex, with the Jacobians written out."""
    total: Any = 0.0
    for z, q, eps in zip(Z, Q, E):
        J = np.diag(slope(W @ z + q)) @ W
        total = total + ((J.T @ eps) ** 2).sum()
    return total / Z.size


def gradient_of(W: np.ndarray, Z: np.ndarray, Q: np.ndarray, E: np.ndarray) -> np.ndarray:
    """Return the derivatives of the penalty, one entry after the other."""
    found = np.zeros(W.shape)
    for i, j in product(*map(range, W.shape)):
        moved = W.astype(complex)
        moved[i, j] += 1j * TINY
        found[i, j] = (value_of(moved, Z, Q, E) / TINY).imag
    return found


def near(given: Any, wanted: Any) -> bool:
    """Say whether values agree up to a ten-thousandth of the largest."""
    found = np.asarray(given, dtype=float)
    if found.shape != np.shape(wanted):
        return False
    return bool(np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max())


def penalty(probe: Probe, mine: Mine) -> Verdict:
    """Compare value and gradient on hidden states of several sizes."""
    values = gradients = True
    for n, m in [(1, 2), (3, 4), (5, 7)]:
        draw = Draw(f"hidden/a07/penalty/{mine.student}/{m}")
        W, Z, Q = draw.normal(m, m), 0.6 * draw.normal(n, m), draw.normal(n, m)
        E = np.array([[draw.choice([-1.0, 1.0]) for _ in range(m)] for _ in range(n)])
        value, gradient = probe.call("penalty", W, Z, Q, E)
        values &= near(value, value_of(W, Z, Q, E))
        gradients &= near(gradient, gradient_of(W, Z, Q, E))
    parts = Parts()
    if values:
        parts.add(0.4, True, "The value is right.")
    else:
        parts.add(0.4, False, "The value is not P.", "value")
    if gradients:
        parts.add(0.6, True, "So is the gradient." if values else "The gradient is that of P.")
    else:
        parts.add(0.6, False, "The gradient is not that of P at states off zero.", "gradient")
    return parts.verdict()


# --- tasks 2 and 3: networks ----------------------------------------------------------------


def as_network(value: Any) -> dict[str, np.ndarray] | None:
    """Return an answer as weights, or nothing."""
    if not isinstance(value, dict) or not SHAPES.keys() <= value.keys():
        return None
    try:
        found = {name: np.asarray(value[name], dtype=float) for name in SHAPES}
    except (TypeError, ValueError):
        return None
    if found["c"].size == 1:
        found["c"] = found["c"].reshape(())
    fit = all(found[name].shape == shape for name, shape in SHAPES.items())
    return found if fit and all(np.isfinite(one).all() for one in found.values()) else None


def iterated(w: dict[str, np.ndarray], X: np.ndarray, count: int) -> np.ndarray:
    """Return the pre-activations after so many steps: h ← Wσ(h) + q, an equilibrium of its own."""
    q = w["b"] + X @ w["U"].T
    h = q.copy()  # that of the state zero
    for _ in range(count):
        h = sigma(h) @ w["W"].T + q
    return h


def labelled(w: dict[str, np.ndarray], X: np.ndarray, y: np.ndarray, count: int) -> float:
    """Return the share of right labels after so many steps."""
    z = sigma(iterated(w, X, count - 1))
    return float(np.mean((z @ w["a"] + w["c"]) * y > 0))


def held(probe: Probe, mine: Mine) -> Verdict:
    """Look at the network on inputs that the student has not seen."""
    w = as_network(probe.value("weights_held"))
    if w is None:
        return wrong("weights_held is not a dictionary of weights like mine.start.", "form")
    X, y = inputs(mine.centres, Draw(f"hidden/a07/held/{mine.student}"), 300)
    share = labelled(w, X, y, ENOUGH)
    if share < RIGHT:
        return wrong(f"It is right on {share:.3f} of 300 new inputs.", "accuracy")
    before, after = iterated(w, X, ENOUGH - 1), iterated(w, X, ENOUGH)
    residuals = np.linalg.norm(sigma(after) - sigma(before), axis=1)
    size = float((slope(after) ** 2 @ (w["W"] ** 2).sum(axis=1)).mean())
    conditions = {
        "not settled": (residuals <= SETTLED).mean() >= STILL,
        "the Jacobian is large": size <= SMALL,
        "the norm of W is below one": np.linalg.norm(w["W"], 2) >= NORM,
    }
    for told, holds in conditions.items():
        if not holds:
            return wrong(f"On 300 new inputs: {told}.", told)
    return right("It is right, settles, and has a small Jacobian on new inputs too.")


def radius(probe: Probe, mine: Mine) -> Verdict:
    """Measure the radii at the student's own weights, at states polished by Newton's method."""
    w = as_network(probe.value("weights_held"))
    if w is None:
        return wrong("weights_held is not a dictionary of weights like mine.start.", "form")
    given = np.asarray(probe.value("radius"), dtype=float)
    if given.shape != (2,) or not np.isfinite(given).all():
        return wrong("radius is not a pair of numbers.", "form")
    if labelled(w, mine.X_test, mine.y_test, ENOUGH) < RIGHT:
        return wrong("weights_held has not learnt your data; there is nothing to measure.", "data")
    q, eye = mine.X_test @ w["U"].T + w["b"], np.eye(UNITS)
    z = sigma(iterated(w, mine.X_test, 3000))
    for _ in range(20):
        h = z @ w["W"].T + q
        step = np.linalg.solve(eye - slope(h)[:, :, None] * w["W"], (sigma(h) - z)[:, :, None])
        z = z + step[:, :, 0]
    h = z @ w["W"].T + q
    if np.linalg.norm(sigma(h) - z, axis=1).max() > 1e-8:
        return wrong("On some of your test inputs weights_held does not settle.", "not settled")
    largest = np.abs(np.linalg.eigvals(slope(h)[:, :, None] * w["W"])).max(axis=1)
    parts = Parts()
    for share, name, value, truth in (
        (0.5, "median", given[0], np.median(largest)),
        (0.5, "worst", given[1], largest.max()),
    ):
        if abs(value - truth) <= 1.2 * RADIUS_ERROR:
            parts.add(share, True, f"The {name} radius is right.")
        else:
            parts.add(share, False, f"The {name} radius is not that of your weights.", name)
    return parts.verdict()


def capped(probe: Probe, mine: Mine) -> Verdict:
    """Compare the labels at the cap and later, on inputs that the student has not seen."""
    w, count = as_network(probe.value("capped")), float(probe.value("worse"))
    if w is None:
        return wrong("capped is not a dictionary of weights like mine.start.", "form")
    if count != int(count) or not mine.cap < count <= MOST:
        return wrong(f"worse is not a number of steps from {mine.cap + 1} to {MOST}.", "form")
    X, y = inputs(mine.centres, Draw(f"hidden/a07/capped/{mine.student}"), 400)
    first, later = labelled(w, X, y, mine.cap), labelled(w, X, y, int(count))
    if first < RIGHT:
        return wrong(f"At the cap it is right on {first:.3f} of 400 new inputs.", "accuracy")
    if first - later < FALL:
        return wrong(
            f"At the cap it is right on {first:.3f}, later on {later:.3f}: more steps do not hurt.",
            "no counterexample",
        )
    return right(f"It is right on {first:.3f} of 400 new inputs at the cap, on {later:.3f} later.")


# --- task 4 ---------------------------------------------------------------------------------


def true_factor(mine: Mine) -> float:
    """Follow the equilibrium by Newton's method from s = 0 until an eigenvalue leaves the disc."""
    eye, z = np.eye(len(mine.r)), sigma(mine.r)

    def at(s: float, z: np.ndarray) -> tuple[np.ndarray, float]:
        W = s * mine.R
        for _ in range(40):
            h = W @ z + mine.r
            z = z + np.linalg.solve(eye - slope(h)[:, None] * W, sigma(h) - z)
        J = slope(W @ z + mine.r)[:, None] * W
        return z, float(np.abs(np.linalg.eigvals(J)).max())

    s, step = 0.0, 0.1
    while step > 1e-7:
        moved, largest = at(s + step, z)
        if largest < 1:
            s, z = s + step, moved
        else:
            step /= 2
    return s


def factor(probe: Probe, mine: Mine) -> Verdict:
    """Compare the estimate with the crossing, and look into the interval."""
    value = float(probe.value("factor"))
    low, high = (float(one) for one in probe.value("factor_between"))
    truth = true_factor(mine)
    close = abs(value - truth) <= FACTOR_ERROR
    narrow = 0 < high - low <= FACTOR_WIDTH * (1 + 1e-9)
    holds = narrow and low <= truth <= high
    parts = Parts()
    if close:
        parts.add(0.6, True, "The factor is right.")
    elif abs(value - truth) <= 0.15:
        parts.add(0.6, False, "The factor is near, but not within 0.01.", "factor not near enough")
    else:
        parts.add(0.6, False, "The factor is not that of your network.", "factor")
    if holds:
        parts.add(0.4, True, "The interval holds it.")
    else:
        told = "does not hold it" if narrow else "is empty or too wide"
        parts.add(0.4, False, f"The interval {told}.", "interval" if narrow else "width")
    return parts.verdict()


# --- task 5: exact arithmetic ---------------------------------------------------------------


def before_clipping(C: np.ndarray, q: np.ndarray, z: list[Fraction]) -> list[Fraction]:
    """Return Cz + q, exactly."""
    return [
        Fraction(float(q[i])) + sum(Fraction(float(C[i, j])) * z[j] for j in range(3))
        for i in range(3)
    ]


def saturated(C: np.ndarray, q: np.ndarray) -> list[list[Fraction]]:
    """Return all equilibria with three saturated units: at most eight, tried one by one."""
    corners = [[Fraction(one) for one in signs] for signs in product((-1, 1), repeat=3)]
    return [z for z in corners if all(s * h > 1 for s, h in zip(z, before_clipping(C, q, z)))]


def two(probe: Probe, mine: Mine) -> Verdict:
    """Count the saturated equilibria, and see where Picard iteration ends, in exact arithmetic."""
    q = np.asarray(probe.value("q_two"), dtype=float)
    if q.shape != (3,) or not np.isfinite(q).all():
        return wrong("q_two is not a vector of three numbers.", "form")
    if any(not LEAST_Q - 1e-12 <= abs(one) <= LARGEST_Q for one in q):
        return wrong("The entries of q_two are not between 0.2 and 4 in absolute value.", "form")
    corners, z = saturated(mine.C, q), [Fraction(0)] * 3
    for _ in range(50):
        z = [max(Fraction(-1), min(Fraction(1), h)) for h in before_clipping(mine.C, q, z)]
    if z not in corners:
        return wrong("Picard iteration does not end where all units are saturated.", "the end")
    if len(corners) < 2:
        return wrong("No other equilibrium has three saturated units.", "no counterexample")
    return right(f"Your network has {len(corners)} equilibria with J = 0 for this injection.")
