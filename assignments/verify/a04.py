"""The verifiers of assignment 4. They run outside of the sandbox, on values alone.

Each is called with a probe, which asks the student's kernel, and with the student's instance. Each
goes another way than the solution in the master does: averages by quadrature over the angle of a
Gaussian pair, the limit as a network of many layers, the finite kernel by complex steps, the twins
by a formula.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from deqbook.course.a04 import (
    BLOCKS,
    LEAST_ANGLE,
    MOST_ROWS,
    POWER_ERROR,
    SINGULAR,
    TWIN_ERROR,
    TWIN_WIDTH,
    Mine,
    instance,
    nearest,
)
from deqbook.course.grading.probe import Probe
from deqbook.course.grading.verdict import Parts, Verdict, right, wrong
from deqbook.course.instance import Draw

__all__ = ["blind", "dual", "finite", "instance", "limit", "own", "twins"]

#: The parts of a kernel, by name.
Blocks = dict[str, np.ndarray]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


def bend(t: np.ndarray, leak: float) -> np.ndarray:
    """Return leaky ReLU."""
    return np.where(t > 0, t, leak * t)


def averages(angle: np.ndarray, leak: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the averages of σσ and σ'σ' of two Gaussians, by integration over their direction.

    The pair is r(cos φ, cos(φ - angle)) with E r² = 2 and φ uniform. Between its kinks, at
    ±π/2 and angle ± π/2, the integrand is smooth and the quadrature exact to rounding.
    """
    right_angle = np.pi / 2
    shift = np.asarray(angle, dtype=float)
    flat = np.zeros_like(shift)
    kinks = [flat - right_angle, shift - right_angle, flat + right_angle, shift + right_angle]
    ends = np.stack([*kinks, flat + 3 * right_angle])
    value, slope = flat.copy(), flat.copy()
    for low, high in pairwise(ends):
        half = (high - low) / 2
        phi = (low + high)[..., None] / 2 + half[..., None] * NODES
        s, t = np.cos(phi), np.cos(phi - shift[..., None])
        value = value + half * (WEIGHTS * 2 * bend(s, leak) * bend(t, leak)).sum(-1)
        middle = (low + high) / 2
        signs = (np.cos(middle) > 0), (np.cos(middle - shift) > 0)
        both = np.where(signs[0], 1.0, leak) * np.where(signs[1], 1.0, leak)
        slope = slope + (high - low) * both
    return value / (2 * np.pi), slope / (2 * np.pi)


def numbers(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return an answer as an array of finite numbers of that shape, or nothing."""
    try:
        found = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return None
    return found if found.shape == shape and np.isfinite(found).all() else None


def close(given: np.ndarray | None, wanted: np.ndarray, precision: float) -> bool:
    """Return whether an array is right, relative to its largest entry."""
    return given is not None and bool(
        np.abs(given - wanted).max() <= precision * np.abs(wanted).max()
    )


# --- task 1 ---------------------------------------------------------------------------------


def dual(probe: Probe, mine: Mine) -> Verdict:
    """Compare the averages with quadrature, on angles between 0 and π."""
    good = [True, True]
    for number, shape in enumerate([(7,), (3, 4), (1,)]):
        draw = Draw(f"hidden/a04/dual/{mine.student}/{number}")
        angles = np.array([draw.uniform(0.02, 3.12) for _ in range(int(np.prod(shape)))])
        angles[0] = (0.0, np.pi, np.pi / 2)[number]
        angles = angles.reshape(shape)
        leak = draw.uniform(0.05, 0.9, 2)
        given = probe.call("dual", np.clip(np.cos(angles), -1, 1), leak)
        if not isinstance(given, (list, tuple, np.ndarray)) or len(given) != 2:
            return wrong("dual should return a pair of arrays.", "form")
        for at, wanted in enumerate(averages(angles, leak)):
            good[at] &= close(numbers(given[at], shape), wanted, 1e-7)
    parts = Parts()
    for at, what in enumerate(("σσ", "σ'σ'")):
        told = f"The average of {what} is {'right' if good[at] else 'wrong'}."
        parts.add((0.6, 0.4)[at], good[at], told, f"average of {what}")
    return parts.verdict()


# --- task 2 ---------------------------------------------------------------------------------


def deep(
    X: np.ndarray, m: int, s_w: float, s_u: float, s_b: float, leak: float, *, layers: int = 200
) -> Blocks:
    """Return the blocks of an infinitely wide network of many layers, layer after layer."""
    inputs = X @ X.T
    K, P = np.zeros_like(inputs), np.zeros_like(inputs)
    slope = K
    for _ in range(layers):
        covariance = s_w**2 * K + s_u**2 * inputs / X.shape[1] + s_b**2
        sizes = np.sqrt(np.diag(covariance))
        angle = np.arccos(np.clip(covariance / np.outer(sizes, sizes), -1, 1))
        np.fill_diagonal(angle, 0.0)
        value, slope = averages(angle, leak)
        K = np.outer(sizes, sizes) * value
    for _ in range(layers):
        P = slope * (1 + s_w**2 * P)
    return {"a": m * K, "W": m * K * P, "U": P * inputs, "b": P}


def compared(given: Any, wanted: Blocks, good: dict[str, bool], near: float) -> None:
    """Note which blocks of an answer are right."""
    for name in BLOCKS:
        found = numbers(given.get(name), wanted[name].shape) if isinstance(given, dict) else None
        good[name] &= close(found, wanted[name], near)


def blocks_verdict(good: dict[str, bool], shares: tuple[float, ...]) -> Verdict:
    """Return a verdict with a share for each block."""
    parts = Parts()
    for name, share in zip(BLOCKS, shares):
        told = f"The block of {name} is {'right' if good[name] else 'wrong'}."
        parts.add(share, good[name], told, f"block of {name}")
    return parts.verdict()


def limit(probe: Probe, mine: Mine) -> Verdict:
    """Compare the blocks on hidden inputs of several sizes, two of them on one line."""
    good = dict.fromkeys(BLOCKS, True)
    for number, (n, d) in enumerate([(2, 1), (4, 3), (5, 7)]):
        draw = Draw(f"hidden/a04/limit/{mine.student}/{number}")
        X = draw.normal(n, d)
        X[-1] = -2 * X[0] if number else np.array([1.5])
        s_w, s_u, s_b = draw.uniform(0.3, 0.9), draw.uniform(0.5, 2.0), draw.uniform(0.2, 1.0)
        leak, m = draw.uniform(0.05, 0.8, 2), draw.integer(20, 500)
        given = probe.call("limit_blocks", X, m, s_w, s_u, s_b, leak)
        compared(given, deep(X, m, s_w, s_u, s_b, leak), good, 1e-5)
    return blocks_verdict(good, (0.4, 0.2, 0.2, 0.2))


def own_limit(mine: Mine, X: np.ndarray) -> np.ndarray:
    """Return the limiting kernel of the student's network on some inputs."""
    return sum(
        deep(X, mine.m, mine.s_w, mine.s_u, mine.s_b, mine.leak).values(), np.zeros((len(X),) * 2)
    )


def own(probe: Probe, mine: Mine) -> Verdict:
    """Compare the kernel on the student's own inputs."""
    if close(numbers(probe.value("H_own"), (4, 4)), own_limit(mine, mine.X), 1e-5):
        return right("H_own is the kernel of your network.")
    return wrong("H_own is not the kernel of your network.", "kernel")


# --- task 3 ---------------------------------------------------------------------------------


def hidden_network(draw: Draw, m: int, d: int, n: int, leak: float) -> tuple[np.ndarray, ...]:
    """Draw a network with ‖W‖ = 0.8, and inputs for which no unit is near its kink."""
    W, U, b, a = draw.normal(m, m), draw.normal(m, d), draw.normal(m), draw.normal(m)
    W = np.round(0.8 * W / np.linalg.norm(W, 2), 4)
    inputs: list[np.ndarray] = []
    while len(inputs) < n:
        x = draw.normal(d)
        if np.abs(W @ state(W, U @ x + b, leak) + U @ x + b).min() > 0.02:
            inputs.append(x)
    return W, U, b, a, np.array(inputs)


def state(W: np.ndarray, inlet: np.ndarray, leak: float) -> np.ndarray:
    """Return the equilibrium, by Picard iteration with a modulus of 0.8."""
    z = np.zeros(len(inlet))
    for _ in range(180):
        z = bend(W @ z + inlet, leak)
    return z


def stepped(
    W: np.ndarray, U: np.ndarray, b: np.ndarray, a: np.ndarray, X: np.ndarray, leak: float
) -> Blocks:
    """Return the blocks from the Jacobian, one complex step for every weight, patterns kept."""
    weights = {"a": a, "W": W, "U": U, "b": b}
    tiny, made = 1e-30, {}
    slopes = [np.where(state(W, U @ x + b, leak) > 0, 1.0, leak) for x in X]
    for name, weight in weights.items():
        columns = []
        for at in range(weight.size):
            moved = weight.astype(complex)
            moved.flat[at] += 1j * tiny
            w = {**weights, name: moved}
            outputs = [
                w["a"] @ np.linalg.solve(np.eye(len(a)) - D[:, None] * w["W"], D * pre)
                for D, pre in zip(slopes, (w["U"] @ x + w["b"] for x in X))
            ]
            columns.append(np.imag(outputs) / tiny)
        J = np.array(columns).T
        made[name] = J @ J.T
    return made


def finite(probe: Probe, mine: Mine) -> Verdict:
    """Compare the blocks on hidden networks of several sizes."""
    good = dict.fromkeys(BLOCKS, True)
    for number, (m, d, n) in enumerate([(2, 1, 3), (5, 3, 4), (9, 4, 3)]):
        draw = Draw(f"hidden/a04/finite/{mine.student}/{number}")
        leak = draw.uniform(0.1, 0.6, 2)
        W, U, b, a, X = hidden_network(draw, m, d, n, leak)
        given = probe.call("finite_blocks", W, U, b, a, X, leak)
        compared(given, stepped(W, U, b, a, X, leak), good, 1e-6)
    return blocks_verdict(good, (0.4, 0.2, 0.2, 0.2))


# --- task 4 ---------------------------------------------------------------------------------


def true_constant(mine: Mine) -> float:
    """Return C of λ_min ≈ Cθ for inputs of length √5.

    The pre-activations have the angle θ√(s_u²/(s_u² + s_b²)). An angle φ lowers the average of
    σ'σ' by (1 - leak)²φ/2π, hence P by that over (1 - s_w² E)² with E the average of σ'². Each unit
    that P falls takes mK + |x|² + 1 from the entry beside the diagonal.
    """
    both, drive = (1 + mine.leak**2) / 2, mine.s_u**2 + mine.s_b**2
    gain = 1 - mine.s_w**2 * both
    angle = mine.s_u / np.sqrt(drive)
    weight = mine.m * both * drive / gain + 5 + 1
    return float(weight * (1 - mine.leak) ** 2 * angle / (2 * np.pi * gain**2))


def twins(probe: Probe, mine: Mine) -> Verdict:
    """Compare the power, the constant and the interval."""
    power, value = float(probe.value("twin_power")), float(probe.value("twin_constant"))
    low, high = (float(one) for one in probe.value("twin_between"))
    truth = true_constant(mine)
    parts = Parts()
    if not abs(power - 1) <= POWER_ERROR:
        parts.add(0.6, False, "The power is not that of small angles.", "power")
    elif abs(value / truth - 1) <= TWIN_ERROR:
        parts.add(0.6, True, "Power and constant are right.")
    elif abs(value / truth - 1) <= 0.15:
        parts.add(0.6, False, "The constant is near, but not within 2 per cent.", "not near enough")
    else:
        parts.add(0.6, False, "The constant is not that of your network.", "constant")
    if not 0 < low < high <= (1 + TWIN_WIDTH) * low * (1 + 1e-9):
        parts.add(0.4, False, "The interval is empty or too wide.", "width of the interval")
    elif low <= truth <= high:
        parts.add(0.4, True, "The interval holds it.")
    else:
        parts.add(0.4, False, "The interval does not hold it.", "interval")
    return parts.verdict()


# --- task 5 ---------------------------------------------------------------------------------


def blind(probe: Probe, mine: Mine) -> Verdict:
    """Check the conditions, then the eigenvalues of the two-layer kernel."""
    X = np.asarray(probe.value("X_blind"), dtype=float)
    if X.ndim != 2 or X.shape[1] != 3 or not 2 <= len(X) <= MOST_ROWS or not np.isfinite(X).all():
        return wrong("X_blind does not have 2 to 8 rows of three finite numbers.", "form")
    conditions = {
        "a row is not of length 1": np.abs(np.linalg.norm(X, axis=1) - 1).max() <= 1e-4,
        "mine.first is not among the rows": np.abs(X - mine.first).max(axis=1).min() <= 1e-5,
        "mine.second is not among the rows": np.abs(X - mine.second).max(axis=1).min() <= 1e-5,
        "two rows are less than 20 degrees apart": nearest(X) >= LEAST_ANGLE - 1e-6,
    }
    for told, holds in conditions.items():
        if not holds:
            return wrong(f"X_blind does not fit: {told}.", told)
    blocks = deep(X, mine.m, 0.0, mine.s_u, 0.0, mine.leak, layers=1)
    spectrum = np.linalg.eigvalsh(blocks["a"] + blocks["U"])
    if spectrum[0] <= SINGULAR * spectrum[-1]:
        return right("The kernel of both layers is singular on your inputs.")
    return wrong("On these inputs the kernel is positive definite.", "no counterexample")
