"""The verifiers of assignment 2. They run outside of the sandbox, on values alone.

Each goes another way than the solution in the master does: Kronecker products and dense Jacobians,
derivatives by a complex step, a branch followed along its state, fractions.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from deqbook.course.a02 import (
    ECHOES,
    FACTOR_ERROR,
    FOLD_ERROR,
    FOLD_WIDTH,
    LARGEST_Y,
    POWER_ERROR,
    SMALLEST_LINK,
    Mine,
    instance,
)
from deqbook.course.grading.probe import Probe
from deqbook.course.grading.verdict import Parts, Verdict, right, wrong
from deqbook.course.instance import Draw

__all__ = ["blow", "climb", "echoes", "fold", "instance", "pull", "second"]


def shaped(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return an answer as an array of finite numbers of a shape, or nothing."""
    try:
        found = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return None
    return found if found.shape == shape and np.isfinite(found).all() else None


def near(given: np.ndarray, wanted: np.ndarray, error: float) -> bool:
    """Say whether two arrays agree, relative to the largest entry of the wanted one."""
    return bool(np.abs(given - wanted).max() <= error * max(1e-3, np.abs(wanted).max()))


# --- task 1 ---------------------------------------------------------------------------------


def dense(
    A: np.ndarray, W: np.ndarray, gamma: float, Q: np.ndarray, Z: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the cell's derivatives as matrices: in Z, in W, in γ, and the slopes.

    Matrices are stacked row by row, so that A Z Wᵀ is (A ⊗ W) times the stack of Z.
    """
    n, m = Z.shape
    pre = gamma * np.kron(A, W) @ Z.ravel() + Q.ravel()
    slopes = 1 / np.cosh(pre) ** 2
    in_W = np.zeros((n * m, m * m))
    for entry in range(m * m):
        unit = np.zeros(m * m)
        unit[entry] = 1.0
        in_W[:, entry] = gamma * np.kron(A, unit.reshape(m, m)) @ Z.ravel()
    in_gamma = np.kron(A, W) @ Z.ravel()
    return (
        slopes[:, None] * gamma * np.kron(A, W),
        slopes[:, None] * in_W,
        slopes * in_gamma,
        slopes,
    )


def pull(probe: Probe, mine: Mine) -> Verdict:
    """Compare the four products with dense Jacobians, at states that are no equilibria."""
    holds = dict.fromkeys(("Z", "W", "γ", "Q"), True)
    for number, (n, m) in enumerate([(4, 2), (3, 5), (6, 1)]):
        draw = Draw(f"hidden/a02/pull/{mine.student}/{number}")
        A, W, gamma = draw.normal(n, n), draw.normal(m, m), draw.uniform(0.2, 0.6)
        Q, Z, V = draw.normal(n, m), draw.normal(n, m), draw.normal(n, m)
        given = probe.call("pull", A, W, gamma, Q, Z, V)
        if not isinstance(given, (list, tuple)) or len(given) != 4:
            return wrong("pull does not return four things.", "form")
        in_Z, in_W, in_gamma, slopes = dense(A, W, gamma, Q, Z)
        v = V.ravel()
        wanted = {
            "Z": (in_Z.T @ v).reshape(n, m),
            "W": (in_W.T @ v).reshape(m, m),
            "γ": np.asarray(in_gamma @ v),
            "Q": (slopes * v).reshape(n, m),
        }
        for one, (name, value) in zip(given, wanted.items()):
            found = shaped(one, value.shape)
            if found is None:
                return wrong(
                    f"For {n} nodes with {m} numbers each the derivative in {name} should have the "
                    f"shape {value.shape}.",
                    f"shape in {name}",
                )
            holds[name] &= near(found, value, 1e-6)
    parts = Parts()
    for name, fine in holds.items():
        parts.add(0.25, fine, f"In {name} {'right' if fine else 'wrong'}.", f"in {name}")
    return parts.verdict()


def true_echoes(mine: Mine) -> tuple[np.ndarray, float]:
    """Return the first echoes and their whole sum, with the dense Jacobian."""
    Z = np.zeros_like(mine.Q)
    for _ in range(60):  # Newton's method
        off = np.tanh(mine.gamma * mine.A @ Z @ mine.W.T + mine.Q) - Z
        J = dense(mine.A, mine.W, mine.gamma, mine.Q, Z)[0]
        Z = Z + np.linalg.solve(np.eye(Z.size) - J, off.ravel()).reshape(Z.shape)
    J, _, in_gamma, _ = dense(mine.A, mine.W, mine.gamma, mine.Q, Z)
    moves, first = in_gamma, []
    g = (Z - mine.Y).ravel()
    for _ in range(ECHOES):
        first.append(g @ moves)  # forward: J^j times the direct effect
        moves = J @ moves
    return np.array(first), float(g @ np.linalg.solve(np.eye(Z.size) - J, in_gamma))


def echoes(probe: Probe, mine: Mine) -> Verdict:
    """Compare the echoes and their sum on the student's own graph."""
    first = shaped(probe.value("echoes_own"), (ECHOES,))
    slope = shaped(probe.value("slope_own"), ())
    if first is None or slope is None:
        return wrong(f"echoes_own should be {ECHOES} numbers, slope_own one.", "form")
    wanted, total = true_echoes(mine)
    parts = Parts()
    fine = near(first, wanted, 1e-5)
    parts.add(
        6 / 13,
        fine,
        "The echoes are right." if fine else "The echoes are not those of your graph.",
        "echoes",
    )
    fine = abs(float(slope) - total) <= 1e-5 * abs(total)
    parts.add(
        7 / 13,
        fine,
        "So is the derivative." if fine else "slope_own is not the derivative of your loss in γ.",
        "derivative",
    )
    return parts.verdict()


# --- task 2 ---------------------------------------------------------------------------------


def analytic(W: np.ndarray, q: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return state, adjoint solution and gradient for a complex q: no absolute values anywhere."""
    z = np.zeros_like(q)
    for _ in range(400):
        z = np.tanh(W @ z + q)
    eye = np.eye(len(q))
    for _ in range(8):
        t = np.tanh(W @ z + q)
        z = z + np.linalg.solve(eye - (1 - t * t)[:, None] * W, t - z)
    slopes = 1 - z * z
    v = np.linalg.solve(eye - W.T * slopes, z - y)
    return [z, v, slopes * v]


def second(probe: Probe, mine: Mine) -> Verdict:
    """Compare with derivatives by a complex step, which need no second formula."""
    holds = [True, True, True]
    for number, m in enumerate((2, 4, 7)):
        draw = Draw(f"hidden/a02/second/{mine.student}/{number}")
        W = draw.normal(m, m)
        W = 0.9 * W / np.linalg.norm(W, 2)
        q, y, p = draw.normal(m), draw.normal(m), draw.normal(m)
        given = probe.call("second", W, q, y, p)
        if not isinstance(given, (list, tuple)) or len(given) != 3:
            return wrong("second does not return three vectors.", "form")
        h = 1e-20
        wanted = [one.imag / h for one in analytic(W, q + 1j * h * p, y)]
        for k, (one, value) in enumerate(zip(given, wanted)):
            found = shaped(one, (m,))
            if found is None:
                return wrong(f"For {m} units all three should be vectors of length {m}.", "shapes")
            holds[k] &= near(found, value, 1e-5)
    parts = Parts()
    for share, name, fine in zip((0.3, 0.3, 0.4), ("dz", "dv", "Hp"), holds):
        parts.add(share, fine, f"{name} is {'right' if fine else 'wrong'}.", name)
    return parts.verdict()


# --- task 3 ---------------------------------------------------------------------------------


def on_branch(mine: Mine, first: float, start: np.ndarray) -> tuple[np.ndarray, float]:
    """Return (z₂, z₃, p) of the equilibrium whose first entry is given, and dp/dz₁ there."""
    free = start.copy()
    for _ in range(60):
        z = np.array([first, free[0], free[1]])
        t = np.tanh(mine.F @ z + mine.q + free[2] * mine.b)
        slopes = 1 - t * t
        whole = np.eye(3) - slopes[:, None] * mine.F
        system = np.column_stack([whole[:, 1:], -slopes * mine.b])
        step = np.linalg.solve(system, t - z)
        free = free + step
        if np.abs(step).max() < 1e-15:
            break
    return free, float(np.linalg.solve(system, -whole[:, 0])[2])


def true_fold(mine: Mine) -> tuple[float, float]:
    """Return where the branch ends, and the factor of the square root: follow the state, not p."""
    z = np.ones(3)
    for _ in range(500):
        z = np.tanh(mine.F @ z + mine.q)
    high, free = float(z[0]), np.array([z[1], z[2], 0.0])
    low = high
    while True:  # go down along z₁ until p rises again
        low -= 0.01
        after, rising = on_branch(mine, low, free)
        if rising < 0:
            break
        high, free = low, after
    for _ in range(60):
        middle = (low + high) / 2
        after, rising = on_branch(mine, middle, free)
        low, high = (middle, high) if rising < 0 else (low, middle)
        free = after
    z, p = np.array([high, free[0], free[1]]), float(free[2])
    slopes = 1 - z * z
    left, _, right_ = np.linalg.svd(np.eye(3) - slopes[:, None] * mine.F)
    row, column = left[:, -1], right_[-1]
    bend = -2 * z * slopes * (mine.F @ column) ** 2  # second derivative of the cell, twice `column`
    squared = -2 * (row @ (slopes * mine.b)) / (row @ bend)
    return p, abs(float(mine.a @ column)) * np.sqrt(squared) / 2


def fold(probe: Probe, mine: Mine) -> Verdict:
    """Compare the end of the branch, and look into the interval."""
    p, ends = shaped(probe.value("p_fold"), ()), shaped(probe.value("p_between"), (2,))
    if p is None or ends is None:
        return wrong("p_fold is not a number, or p_between not a pair.", "form")
    truth, _ = true_fold(mine)
    fine = bool(abs(p - truth) <= FOLD_ERROR)
    parts = Parts()
    if fine:
        parts.add(2 / 3, True, "p_fold is right.")
    elif abs(p - truth) <= 0.01:
        side = "below the end of the branch" if p < truth else "above the end of the branch"
        parts.add(2 / 3, False, f"p_fold is near, but lies {side}.", f"p_fold {side}")
    else:
        parts.add(2 / 3, False, "p_fold is not where your branch ends.", "p_fold")
    low, high = ends
    if not 0 <= high - low <= FOLD_WIDTH * (1 + 1e-6):
        parts.add(1 / 3, False, "The interval is empty or too wide.", "width of the interval")
    else:
        fine = bool(low <= truth <= high)
        parts.add(
            1 / 3, fine, f"The interval {'holds' if fine else 'does not hold'} it.", "interval"
        )
    return parts.verdict()


def blow(probe: Probe, mine: Mine) -> Verdict:
    """Compare power and factor with those of the normal form."""
    power, factor = (shaped(probe.value(name), ()) for name in ("power", "factor"))
    if power is None or factor is None:
        return wrong("power and factor are not both numbers.", "form")
    _, truth = true_fold(mine)
    if abs(power - 0.5) > POWER_ERROR:
        return wrong("The power is not the one with which the derivative grows.", "power")
    if abs(factor - truth) > FACTOR_ERROR * truth:
        return wrong("The power is right, the factor is not.", "factor")
    return right("The derivative grows as you say.")


# --- task 4 ---------------------------------------------------------------------------------


def signed(
    W: np.ndarray, c: np.ndarray, y: np.ndarray, terms: int
) -> tuple[Fraction, list[Fraction]]:
    """Return the true gradient at θ = 0 and the truncated ones, as fractions."""
    (a, b), (_, d) = ((Fraction(float(one)) for one in row) for row in W)
    c1, c2 = (Fraction(float(one)) for one in c)
    x1, x2 = (-Fraction(float(one)) for one in y)  # the cotangent, and then its echoes
    determinant = (1 - a) * (1 - d) - b * b
    true = (c1 * ((1 - d) * x1 + b * x2) + c2 * (b * x1 + (1 - a) * x2)) / determinant
    total, cut = Fraction(0), []
    for _ in range(terms):
        total += c1 * x1 + c2 * x2
        cut.append(total)
        x1, x2 = a * x1 + b * x2, b * x1 + d * x2
    return true, cut


def climb(probe: Probe, mine: Mine) -> Verdict:
    """Check the conditions, then the signs, exactly."""
    W, y = shaped(probe.value("W_climb"), (2, 2)), shaped(probe.value("y_climb"), (2,))
    if W is None or y is None:
        return wrong("W_climb is not a 2×2 matrix, or y_climb not a vector, of numbers.", "form")
    conditions = {
        "it is not symmetric": abs(W[0, 1] - W[1, 0]) <= 1e-12,
        "the units hardly hear each other": abs(W[0, 1]) >= SMALLEST_LINK * (1 - 1e-9),
        "the trace is not yours": abs(np.trace(W) - mine.trace) <= 1e-9,
        "the norm is too large": np.linalg.norm(W, 2) <= mine.kappa + 1e-9,
    }
    for told, holds in conditions.items():
        if not holds:
            return wrong(f"W_climb does not fit: {told}.", told)
    if not 0 < np.abs(y).max() <= LARGEST_Y * (1 + 1e-9):
        return wrong("y_climb is zero or too large.", "size of y")
    true, cut = signed(W, mine.c, y, mine.terms)
    if true == 0:
        return wrong("The true gradient is zero: there is nothing to descend.", "zero gradient")
    climbing = [one * true < 0 for one in cut]
    if all(climbing):
        return right(f"With 1 to {mine.terms} terms the gradient points uphill.")
    if climbing[0]:
        at = climbing.index(False) + 1
        return wrong(
            f"JFB climbs, but the gradient with {at} terms does not.", "too few terms climb"
        )
    return wrong("JFB does not climb.", "JFB descends")
