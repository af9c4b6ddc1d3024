"""The verifiers of assignment 3. They run outside of the sandbox, on values alone.

Each is called with a probe, which asks the student's kernel, and with the student's instance. Each
goes another way than the solution in the master does: gradients by complex steps, the drift as an
integral along the flow, the rate from the singular values of a Jacobian that is written out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deqbook.course.a03 import (
    DRIFT_ERROR,
    DRIFT_WIDTH,
    GAIN,
    LEAST_STEP,
    ORDER_ERROR,
    RATE_ERROR,
    RATE_WIDTH,
    Mine,
    instance,
)
from deqbook.course.grading.probe import Probe
from deqbook.course.grading.verdict import Parts, Verdict, right, wrong
from deqbook.course.instance import Draw

__all__ = ["descent", "drift", "faster", "instance", "kept", "rate"]

Pair = tuple[np.ndarray, np.ndarray]


# --- the network, with all weights in one vector --------------------------------------------


def packed(W: np.ndarray, U: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return all weights as one vector."""
    return np.concatenate([W.ravel(), U.ravel(), a])


def unpacked(theta: np.ndarray, m: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return W, U and a from the vector of all weights."""
    return (
        theta[: m * m].reshape(m, m),
        theta[m * m : m * (m + d)].reshape(m, d),
        theta[m * (m + d) :],
    )


def predictions(theta: np.ndarray, X: np.ndarray, m: int) -> np.ndarray:
    """Return the outputs; works for complex weights too."""
    W, U, a = unpacked(theta, m, X.shape[1])
    return np.linalg.solve(np.eye(m) - W, U @ X.T).T @ a


def jacobian(theta: np.ndarray, X: np.ndarray, m: int) -> np.ndarray:
    """Return the derivatives of the predictions, one complex step for every weight."""
    tiny = 1e-30
    columns = []
    for at in range(len(theta)):
        moved = theta.astype(complex)
        moved[at] += 1j * tiny
        columns.append(predictions(moved, X, m).imag / tiny)
    return np.array(columns).T


def slope(theta: np.ndarray, X: np.ndarray, y: np.ndarray, m: int) -> np.ndarray:
    """Return the gradient of the loss."""
    return jacobian(theta, X, m).T @ (predictions(theta, X, m) - y)


def hidden_network(draw: Draw, m: int, d: int, n: int) -> tuple[np.ndarray, ...]:
    """Draw a network with data; its feedback is weak, so that every step of the test is tame."""
    W = np.round(0.35 * draw.normal(m, m) / np.sqrt(m), 3)
    U, a = np.round(0.6 * draw.normal(m, d), 3), np.round(0.6 * draw.normal(m), 3)
    return W, U, a, draw.normal(n, d), draw.normal(n)


# --- task 1 ---------------------------------------------------------------------------------


def momentum_path(
    theta: np.ndarray, X: np.ndarray, y: np.ndarray, m: int, *, step: float, beta: float, steps: int
) -> Pair:
    """Return the last weights and the predictions of the two-term recursion, as it is printed."""
    before, now = theta, theta
    rows = [predictions(now, X, m)]
    for _ in range(steps):
        before, now = now, now - step * slope(now, X, y, m) + beta * (now - before)
        rows.append(predictions(now, X, m))
    return now, np.array(rows)


def same_run(probe: Probe, name: str, beta: float) -> str:
    """Compare descent on hidden networks; return what differs, or nothing."""
    for number, (m, d, n, steps) in enumerate([(1, 1, 2, 2), (3, 2, 4, 5), (5, 4, 3, 12)]):
        draw = Draw(f"{name}/{number}")
        W, U, a, X, y = hidden_network(draw, m, d, n)
        step = draw.uniform(0.01, 0.02)
        given = probe.call("descent", W, U, a, X, y, step, beta, steps)
        if not isinstance(given, (list, tuple)) or len(given) != 4:
            return "does not return the last W, U, a and the predictions"
        theta, rows = momentum_path(packed(W, U, a), X, y, m, step=step, beta=beta, steps=steps)
        wanted = (*unpacked(theta, m, d), rows)
        for what, one, true in zip(("W", "U", "a", "path of predictions"), given, wanted):
            found = np.asarray(one, dtype=float)
            if found.shape != true.shape:
                return f"gives a {what} of the shape {found.shape} in place of {true.shape}"
            if not np.allclose(found, true, rtol=1e-7, atol=1e-9):
                return f"gives a wrong {what} for {m} units, {n} samples and {steps} steps"
    return ""


def descent(probe: Probe, mine: Mine) -> Verdict:
    """Compare weights and predictions on hidden networks, without momentum and with it."""
    parts = Parts()
    for share, beta, what in ((0.6, 0.0, "without momentum"), (0.4, 0.7, "with momentum")):
        differs = same_run(probe, f"hidden/a03/descent/{mine.student}/{beta}", beta)
        if differs:
            parts.add(share, False, f"{what.capitalize()} it {differs}.", what)
        else:
            parts.add(share, True, f"Descent {what} is right.")
    return parts.verdict()


# --- task 2 ---------------------------------------------------------------------------------


def kept(probe: Probe, mine: Mine) -> Verdict:
    """Differentiate the student's matrix along the gradient of hidden losses: it must not move."""
    for number, (m, d, n) in enumerate([(2, 2, 2), (4, 3, 5), (5, 2, 3)]):
        draw = Draw(f"hidden/a03/kept/{mine.student}/{number}")
        W, U, a, X, y = hidden_network(draw, m, d, n)
        theta = packed(W, U, a)
        direction = slope(theta, X, y, m)
        direction = direction / np.linalg.norm(direction)

        def at(theta: np.ndarray, m: int = m, d: int = d) -> np.ndarray:
            return np.asarray(probe.call("kept", *unpacked(theta, m, d)), dtype=float)

        plain = at(packed(0 * W, U, a))
        if plain.shape != (m, m):
            return wrong(f"For {m} units kept should return a {m}×{m} matrix.", "shape")
        if not np.allclose(plain, U @ U.T - np.outer(a, a), atol=1e-9):
            return wrong("Without feedback it is not UUᵀ - aaᵀ.", "without feedback")
        width = 1e-3
        change = (at(theta + width * direction) - at(theta - width * direction)) / (2 * width)
        if not np.abs(change).max() <= 1e-6:
            return wrong("Gradient flow changes your matrix.", "not kept")
    return right("Gradient flow does not change your matrix, for three hidden networks.")


# --- task 3 ---------------------------------------------------------------------------------


def lost_per_time(theta: np.ndarray, mine: Mine) -> Pair:
    """Return the velocity of the flow, and what a step of descent does to B, divided by η²."""
    gradient = slope(theta, mine.X, mine.y, 4)
    W, U, a = unpacked(gradient, 4, 3)
    return -gradient, W @ W.T - W.T @ W + U @ U.T - np.outer(a, a)


def true_drift(mine: Mine, steps: int = 100) -> float:
    """Return the norm of ∫(…)dt along the flow, by a method of order four."""
    theta, total, h = packed(mine.W, mine.U, mine.a), np.zeros((4, 4)), mine.time / steps
    for _ in range(steps):
        k1, q1 = lost_per_time(theta, mine)
        k2, q2 = lost_per_time(theta + h / 2 * k1, mine)
        k3, q3 = lost_per_time(theta + h / 2 * k2, mine)
        k4, q4 = lost_per_time(theta + h * k3, mine)
        theta = theta + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        total = total + h / 6 * (q1 + 2 * q2 + 2 * q3 + q4)
    return float(np.linalg.norm(total))


def two(between: Any) -> tuple[float, float]:
    """Return the ends of an interval."""
    low, high = (float(one) for one in between)
    return low, high


def drift(probe: Probe, mine: Mine) -> Verdict:
    """Compare the order, the constant and the interval."""
    order, value = float(probe.value("drift_order")), float(probe.value("drift"))
    low, high = two(probe.value("drift_between"))
    truth = true_drift(mine)
    ordered = abs(order - 1) <= ORDER_ERROR
    parts = Parts()
    if ordered and abs(value / truth - 1) <= DRIFT_ERROR:
        parts.add(0.6, True, "Order and constant are right.")
    elif not ordered:
        parts.add(0.6, False, "The order is not right.", "order")
    elif abs(value / truth - 1) <= 0.15:
        parts.add(0.6, False, "The constant is near, but not within 2 per cent.", "not near enough")
    else:
        parts.add(0.6, False, "The constant is not that of your network.", "constant")
    if not 0 < low < high <= (1 + DRIFT_WIDTH) * low * (1 + 1e-9):
        parts.add(0.4, False, "The interval is empty or too wide.", "width of the interval")
    elif low <= truth <= high:
        parts.add(0.4, True, "The interval holds it.")
    else:
        parts.add(0.4, False, "The interval does not hold it.", "interval")
    return parts.verdict()


# --- task 4 ---------------------------------------------------------------------------------


def trained(mine: Mine, steps: int = 4000) -> tuple[np.ndarray, list[float]]:
    """Return the weights at which descent comes to rest, and the losses until rounding rules."""
    W, U, a, X, eta = mine.W, mine.U, mine.a, mine.X, mine.eta
    losses: list[float] = []
    for _ in range(steps):
        resolvent = np.linalg.inv(np.eye(4) - W)
        back, Z = a @ resolvent, (resolvent @ U @ X.T).T
        e = Z @ a - mine.y
        if losses and e @ e < 1e-22 * losses[0]:
            break
        losses.append(float(e @ e))
        pulled = e @ Z
        W = W - eta * back[:, None] * pulled
        U = U - eta * back[:, None] * (e @ X)
        a = a - eta * pulled
    return packed(W, U, a), losses


def true_rate(mine: Mine) -> float:
    """Return the factor of the loss from the singular values of the Jacobian at the limit."""
    singular = np.linalg.svd(jacobian(trained(mine)[0], mine.X, 4), compute_uv=False)
    return float(np.abs(1 - mine.eta * singular**2).max() ** 2)


def seen_rate(mine: Mine) -> float:
    """Return the last quotient of losses that rounding leaves alone.

    For one student in sixty the start has so little of the slowest direction that rounding ends the
    curve before it is seen. Who measured, and measured well, is right too.
    """
    losses = np.array(trained(mine)[1])
    last = int(np.flatnonzero(losses > 1e-20 * losses[0])[-1])
    return float(losses[last] / losses[last - 1])


def rate(probe: Probe, mine: Mine) -> Verdict:
    """Compare the estimate with the kernel at the limit, and look into the interval."""
    value, (low, high) = float(probe.value("rate")), two(probe.value("rate_between"))
    truths = np.array([true_rate(mine), seen_rate(mine)])
    truth = float(truths[np.argmin(np.abs(truths - value))])
    parts = Parts()
    if abs(value - truth) <= RATE_ERROR:
        parts.add(0.6, True, "The rate is right.")
    elif abs(value - np.sqrt(truth)) <= RATE_ERROR:
        parts.add(0.6, False, "This is not the factor of the loss.", "factor of the error")
    elif abs(value - truth) <= 0.01:
        parts.add(0.6, False, "The rate is near, but not within 0.002.", "rate not near enough")
    else:
        parts.add(0.6, False, "The rate is not that of your network in the end.", "rate")
    if not 0 < high - low <= RATE_WIDTH * (1 + 1e-9):
        parts.add(0.4, False, "The interval is empty or too wide.", "width of the interval")
    elif low <= truth <= high:
        parts.add(0.4, True, "The interval holds it.")
    else:
        parts.add(0.4, False, "The interval does not hold it.", "interval")
    return parts.verdict()


# --- task 5 ---------------------------------------------------------------------------------


def long_run(eta: float, beta: float, spectrum: np.ndarray) -> float:
    """Return the largest root of x² - (1 + β - ηλ)x + β in modulus, over the spectrum."""
    found = 0.0
    for value in spectrum:
        half = (1 + beta - eta * value) / 2
        under = half * half - beta
        largest = np.sqrt(beta) if under <= 0 else abs(half) + np.sqrt(under)
        found = max(found, float(largest))
    return found


def faster(probe: Probe, mine: Mine) -> Verdict:
    """Compute the spectral radius of the iteration with the student's step and momentum."""
    eta, beta = float(probe.value("eta_fast")), float(probe.value("beta_fast"))
    if not (np.isfinite(eta) and 0 <= beta < 1):
        return wrong("The step is not finite, or the momentum not in [0, 1).", "form")
    spectrum = np.linalg.svd(mine.Phi, compute_uv=False) ** 2
    if eta * spectrum[0] < LEAST_STEP * (1 - 1e-9):
        return wrong("The step is below 2.5/λ_max.", "step too small")
    found = long_run(eta, beta, spectrum)
    if found >= 1:
        return wrong("With this step and momentum some error does not fall.", "no convergence")
    if found > 1 - GAIN * np.sqrt(spectrum[-1] / spectrum[0]) + 1e-7:
        return wrong("The error falls, but not fast enough for every start.", "too slow")
    return right(f"Each step takes the error to {found:.3f} of it in the long run.")
