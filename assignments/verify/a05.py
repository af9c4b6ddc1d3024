"""The verifiers of assignment 5. They run outside of the sandbox, on values alone.

Each is called with a probe, which asks the student's kernel, and with the student's instance. Each
goes another way than the solution in the master does.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from deqbook.course.a05 import (
    CORNERS,
    LARGEST,
    LEAST_SUM,
    NEAR,
    T_ERROR,
    T_WIDTH,
    Mine,
    instance,
    tied_weights,
)
from deqbook.course.grading.probe import Probe, ProbeError
from deqbook.course.grading.verdict import Parts, Verdict, right, wrong
from deqbook.course.instance import Draw

__all__ = ["hidden", "instance", "limit", "path", "polygon", "pulls"]


def vector(value: Any, size: int) -> np.ndarray | None:
    """Return an answer as a finite vector, or nothing."""
    try:
        found = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return None
    found = found.reshape(-1) if found.size == size else found
    return found if found.shape == (size,) and np.isfinite(found).all() else None


def scalar(value: Any) -> float:
    """Return an answer as a number; not a number where it is none."""
    try:
        found = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return float("nan")
    return float(found.reshape(())) if found.size == 1 else float("nan")


# --- task 1 ---------------------------------------------------------------------------------


def elu(t: np.ndarray, a: float) -> np.ndarray:
    """Return the activation of the task."""
    return np.array([x if x >= 0 else a * np.expm1(x) for x in t])


def integral(t: np.ndarray, a: float) -> float:
    """Return the sum of the integrals of the activation from 0 to the entries."""
    return float(sum(x * x / 2 if x >= 0 else a * (np.expm1(x) - x) for x in t))


def conjugate_pair(
    W: np.ndarray, q: np.ndarray, tau: float, a: float, w: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray]:
    """Return z = f(w), φ(z) and its gradient, without a conjugate: Fenchel and Young, at w."""
    z = W.T @ elu(W @ w + q, a) / tau
    psi = integral(W @ w + q, a) / tau
    return z, float(w @ z) - psi - float(z @ z) / 2, w - z


def hidden(probe: Probe, mine: Mine) -> Verdict:
    """Compare values and gradients at states that the layer reaches, then ask outside."""
    values = gradients = True
    for m, count in ((1, 3), (2, 3), (4, 3), (7, 2)):
        draw = Draw(f"hidden/a05/hidden/{mine.student}/{m}")
        W, q = tied_weights(draw, m), draw.normal(m)
        tau = (1.0 + draw.uniform(0.05, 1.0)) * float(np.linalg.norm(W, 2)) ** 2
        a = draw.uniform(0.2, 1.0)
        for number in range(count):
            w = (1.0, 2.0, 0.3)[number] * draw.normal(m)
            z, value, gradient = conjugate_pair(W, q, tau, a, w)
            given = probe.call("hidden", W, q, tau, a, z)
            if not (isinstance(given, (tuple, list)) and len(given) == 2):
                return wrong("hidden does not return a pair, value and gradient.", "form")
            slope = vector(given[1], m)
            values &= bool(abs(scalar(given[0]) - value) <= 1e-7 * (1 + abs(value)))
            gradients &= slope is not None and bool(
                np.allclose(slope, gradient, rtol=1e-6, atol=1e-7)
            )
    parts = Parts()
    parts.add(
        0.45,
        values,
        "The values are right." if values else "A value is not that of the hidden objective.",
        "value",
    )
    parts.add(
        0.35,
        gradients,
        "The gradients are right." if gradients else "A gradient is not right.",
        "gradient",
    )
    told = outside(probe, mine)
    parts.add(0.2, not told, told or "The domain is right.", "domain")
    return parts.verdict()


def outside(probe: Probe, mine: Mine) -> str:
    """Ask at states that no layer reaches; W is diagonal, so that only the domain matters."""
    draw = Draw(f"hidden/a05/domain/{mine.student}")
    for m in (1, 3):
        for at in range(m):
            W = np.diag([draw.uniform(0.7, 1.0) for _ in range(m)])
            code = np.array([draw.uniform(0.1, 1.0) for _ in range(m)])
            code[at] = -20.0
            try:
                given = probe.call("hidden", W, np.zeros(m), 1.0, 0.5, W @ code)
            except ProbeError as error:
                return f"Outside of the domain: {error.sentence}"
            first = given[0] if isinstance(given, (tuple, list)) and len(given) else given
            if scalar(first) != float("inf"):
                return "At a state outside of the domain the value is not infinity."
    return ""


# --- task 2 ---------------------------------------------------------------------------------


def newton(mine: Mine, inner: float, outer: float) -> np.ndarray:
    """Solve z = outer·T(inner·z + …) + … for the preactivations, by Newton's method.

    With (inner, outer) = (1, 1/(1 + μ)) this is the layer behind the network, with (1 - μ, 1) the
    minimiser of the sum.
    """
    G = mine.W @ mine.W.T / mine.tau
    shift = (1 - outer) if outer < 1 else (1 - inner)
    constant = mine.q + shift * mine.W @ mine.g
    t = constant.copy()
    for _ in range(200):
        slopes = np.array([1.0 if x >= 0 else mine.a * np.exp(x) for x in t])
        rest = t - inner * outer * G @ elu(t, mine.a) - constant
        t = t - np.linalg.solve(np.eye(5) - inner * outer * G * slopes, rest)
    assert np.abs(t - inner * outer * G @ elu(t, mine.a) - constant).max() < 1e-10
    after = mine.W.T @ elu(t, mine.a) / mine.tau
    return outer * after + (1 - outer) * mine.g


def pulls(probe: Probe, mine: Mine) -> Verdict:
    """Compare the two states with those of Newton's method."""
    parts = Parts()
    for name, truth, told in (
        ("z_behind", newton(mine, 1.0, 1 / (1 + mine.mu)), "the equilibrium with the new layer"),
        ("z_sum", newton(mine, 1 - mine.mu, 1.0), "the minimiser of φ + R"),
    ):
        try:
            given = vector(probe.value(name), 5)
        except ProbeError as error:
            parts.add(0.5, False, error.sentence, f"{name} is missing")
            continue
        near = given is not None and float(np.linalg.norm(given - truth)) <= NEAR
        parts.add(0.5, near, f"{name} is {'' if near else 'not '}{told}.", name)
    return parts.verdict()


# --- task 3 ---------------------------------------------------------------------------------


def clipped_path(
    W: np.ndarray, b: np.ndarray, step: float, rho: float, c: float, z: np.ndarray, steps: int
) -> np.ndarray:
    """Return the path by the other form of the soft threshold, z minus its clipped part."""
    rows = [z]
    for k in np.arange(steps) + 1.0:
        z = rows[-1]
        pre = W @ z + b
        on = W[pre > 0]
        T = on.T @ pre[pre > 0]
        S = z - np.clip(z, -step, step)
        beta, lam = np.exp(-rho * np.log(k)) / 2, np.exp(-c * np.log(k)) / 2
        rows.append(T + beta * (S - T) - beta * lam * S)
    return np.array(rows)


def path(probe: Probe, mine: Mine) -> Verdict:
    """Compare the iterates on networks of other sizes, with other steps and exponents."""
    for number, (h, m, steps) in enumerate([(2, 2, 1), (6, 4, 3), (3, 7, 40)]):
        draw = Draw(f"hidden/a05/path/{mine.student}/{number}")
        W, b, z = draw.normal(h, m), draw.normal(h), 2 * draw.normal(m)
        W = W / np.linalg.norm(W, 2)
        step, rho, c = draw.uniform(0.2, 0.8), draw.uniform(0.2, 0.6), draw.uniform(0.05, 0.2)
        given = np.asarray(probe.call("prox_sam", W, b, step, rho, c, z, steps), dtype=float)
        wanted = clipped_path(W, b, step, rho, c, z, steps)
        if given.shape != wanted.shape:
            return wrong(
                f"For {m} states and {steps} steps the path should have the shape {wanted.shape}, "
                f"and has {given.shape}.",
                "shape of the path",
            )
        if not np.allclose(given, wanted, rtol=1e-7, atol=1e-9):
            at = int(np.argmax(np.abs(given - wanted).max(axis=1) > 1e-9))
            return wrong(
                f"For a network with {h} units and {m} states the iterates differ from step "
                f"{at} on.",
                "iterates differ",
            )
    return right("The iterates are right on networks of three sizes.")


# --- task 4: exact arithmetic ---------------------------------------------------------------


def fractions(values: Any) -> list[Fraction]:
    """Return the fractions that floating-point numbers are."""
    return [Fraction(float(one)) for one in values]


def selected(mine: Mine) -> tuple[float, float]:
    """Return t of the least envelope of the 1-norm and of the least 1-norm, on the segment.

    Along the segment the first has a slope that is piecewise linear: find the piece where it
    changes sign. The second has its minimum at a kink or at an end.
    """
    p, d, step = fractions(mine.point), fractions(mine.along), Fraction(mine.step)
    low, high = fractions(mine.ends)

    def slope(t: Fraction) -> Fraction:
        return sum((y * max(-step, min(step, x + t * y)) for x, y in zip(p, d)), Fraction(0))

    def size(t: Fraction) -> Fraction:
        return sum((abs(x + t * y) for x, y in zip(p, d)), Fraction(0))

    corners = {(sign * step - x) / y for x, y in zip(p, d) if y for sign in (-1, 1)}
    cuts = sorted({low, high, *(t for t in corners if low < t < high)})
    smooth = low if slope(low) >= 0 else high
    for left, right_ in pairwise(cuts):
        if slope(left) < 0 <= slope(right_):
            rise = slope(right_) - slope(left)
            smooth = left - slope(left) * (right_ - left) / rise
    kinks = [-x / y for x, y in zip(p, d) if y and low < -x / y < high]
    return float(smooth), float(min([low, high, *kinks], key=size))


def limit(probe: Probe, mine: Mine) -> Verdict:
    """Compare both places, and look into the interval."""
    truth, least = selected(mine)
    value, low_high = scalar(probe.value("t_limit")), vector(probe.value("t_between"), 2)
    parts = Parts()
    far = abs(value - truth)
    if far <= T_ERROR:
        parts.add(0.4, True, "The limit is right.")
    elif abs(value - least) <= T_ERROR:
        parts.add(0.4, False, "The iteration does not select the least 1-norm.", "least 1-norm")
    else:
        told = "The iteration goes on from there." if far < 0.5 else "The limit is not there."
        parts.add(0.4, False, told, "limit")
    if low_high is None or not 0 < low_high[1] - low_high[0] <= T_WIDTH * (1 + 1e-9):
        parts.add(0.2, False, "The interval is empty or too wide.", "width of the interval")
    else:
        holds = bool(low_high[0] <= truth <= low_high[1])
        told = "The interval holds it." if holds else "The interval does not hold the limit."
        parts.add(0.2, holds, told, "interval")
    try:
        given = scalar(probe.value("t_least"))
        told = "t_least is not the equilibrium with the least 1-norm."
    except ProbeError as error:
        given, told = float("nan"), error.sentence
    near = abs(given - least) <= T_ERROR
    parts.add(0.4, near, "The least 1-norm is right." if near else told, "t_least")
    return parts.verdict()


# --- task 5: exact arithmetic ---------------------------------------------------------------


def around(mine: Mine, corners: np.ndarray) -> Fraction:
    """Return the cyclic sum of a polygon for the student's own layer, exactly."""
    S, c = [fractions(row) for row in mine.S], fractions(mine.c)
    w = [fractions(row) for row in corners]
    total = Fraction(0)
    for here, there in zip(w, w[1:] + w[:1]):
        for i in range(3):
            pre = c[i] + sum((S[i][j] * here[j] for j in range(3)), Fraction(0))
            total += (there[i] - here[i]) * max(pre, Fraction(0))
    return total


def polygon(probe: Probe, mine: Mine) -> Verdict:
    """Walk around the student's polygon."""
    corners = np.asarray(probe.value("polygon"), dtype=float)
    if corners.ndim != 2 or corners.shape[1] != 3 or not 3 <= len(corners) <= CORNERS:
        return wrong(f"polygon does not have 3 to {CORNERS} rows of three numbers.", "form")
    if not np.isfinite(corners).all() or np.abs(corners).max() > LARGEST:
        return wrong("polygon has entries that are not between -100 and 100.", "form")
    total = around(mine, corners)
    if total >= Fraction(LEAST_SUM):
        return right("The sum is positive: your layer is no proximal map.")
    if total > 0:
        return wrong("The sum is positive, but smaller than was asked for.", "sum too small")
    return wrong("Around this polygon the sum is not positive.", "no counterexample")
