"""The verifiers of assignment 1. They run outside of the sandbox, on values alone.

Each is called with a probe, which asks the student's kernel, and with the student's instance. Each
goes another way than the solution in the master does, where there is one.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from deqbook.course.a01 import (
    LARGEST_Q,
    RATE_ERROR,
    RATE_WIDTH,
    SMALLEST_ENTRY,
    Mine,
    instance,
    monotone_weights,
    soft,
)
from deqbook.course.grading.probe import Probe, ProbeError
from deqbook.course.grading.verdict import Parts, Verdict, right, wrong
from deqbook.course.instance import Draw

__all__ = ["free", "instance", "many", "pivot", "rate", "splitting", "state"]


def vector(value: Any, size: int) -> np.ndarray | None:
    """Return an answer as a finite vector, or nothing."""
    try:
        found = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return None
    return found if found.shape == (size,) and np.isfinite(found).all() else None


# --- task 1 ---------------------------------------------------------------------------------


def reflected_path(
    W: np.ndarray, q: np.ndarray, lam: float, alpha: float, u: np.ndarray, steps: int
) -> np.ndarray:
    """Return Douglas–Rachford's path as an average of reflections, with the inverse written out."""
    inverse = np.linalg.inv((1 + alpha) * np.eye(len(q)) - alpha * W)
    rows = [u]
    for _ in range(steps):
        mirrored = 2 * soft(rows[-1], alpha * lam) - rows[-1]
        rows.append((rows[-1] + 2 * inverse @ (mirrored + alpha * q) - mirrored) / 2)
    return np.array(rows)


def splitting(probe: Probe, mine: Mine) -> Verdict:
    """Compare the iterates on networks of other sizes, with other steps and starts."""
    for number, (m, steps) in enumerate([(3, 1), (5, 4), (9, 25)]):
        draw = Draw(f"hidden/a01/splitting/{mine.student}/{number}")
        W, q, u = monotone_weights(draw, m), draw.normal(m), draw.normal(m)
        lam, alpha = draw.uniform(0.2, 1.0), draw.uniform(0.3, 2.0)
        given = np.asarray(probe.call("douglas_rachford", W, q, lam, alpha, u, steps), dtype=float)
        wanted = reflected_path(W, q, lam, alpha, u, steps)
        if given.shape != wanted.shape:
            return wrong(
                f"For {m} units and {steps} steps the path should have the shape {wanted.shape}, "
                f"and has {given.shape}.",
                "shape of the path",
            )
        if not np.allclose(given, wanted, rtol=1e-7, atol=1e-9):
            at = int(np.argmax(np.abs(given - wanted).max(axis=1) > 1e-9))
            return wrong(
                f"For a network of {m} units the iterates differ from Douglas–Rachford's from step "
                f"{at} on.",
                "iterates differ",
            )
    return right("The iterates are right on networks of 3, 5 and 9 units.")


def state(probe: Probe, mine: Mine) -> Verdict:
    """Insert the state into the equation of the student's own network."""
    z = vector(probe.value("z_own"), 6)
    if z is None:
        return wrong("z_own is not a vector of six finite numbers.", "form")
    residual = float(np.linalg.norm(z - soft(mine.W @ z + mine.q, mine.lam)))
    if residual <= 1e-8:
        return right("z_own is the equilibrium of your network.")
    return wrong(
        f"z_own leaves a residual of {residual:.1e} in the equation of your network.", "residual"
    )


# --- task 2 ---------------------------------------------------------------------------------


def all_solutions(W: np.ndarray, q: np.ndarray) -> list[np.ndarray]:
    """Return every equilibrium of a small ReLU network, by trying all active sets."""
    m, found = len(q), []
    for size in range(m + 1):
        for chosen in combinations(range(m), size):
            S = list(chosen)
            z = np.zeros(m)
            if S:
                z[S] = np.linalg.solve(np.eye(size) - W[np.ix_(S, S)], q[S])
            pre = W @ z + q
            if (z[S] > 0).all() and all(pre[i] <= 0 for i in range(m) if i not in S):
                found.append(z)
    return found


def least_index_path(W: np.ndarray, q: np.ndarray) -> list[tuple[int, ...]]:
    """Return the sets of Murty's method, by dense solves of the whole system."""
    m, S, path = len(q), set(), []
    for _ in range(2**m):
        path.append(tuple(sorted(S)))
        on = np.array([i in S for i in range(m)], dtype=float)
        z = np.linalg.solve(np.eye(m) - on[:, None] * W, on * q)
        pre = W @ z + q
        bad = [i for i in range(m) if (z[i] < 0 if i in S else pre[i] > 0)]
        if not bad:
            return path
        S ^= {bad[0]}
    return path


def pivot(probe: Probe, mine: Mine) -> Verdict:
    """Compare states and paths on hidden networks, and try one without an equilibrium."""
    states = paths = True
    cases = [*hidden_networks(mine), (mine.P, mine.p)]
    for W, q in cases:
        z, path = probe.call("pivot", W, q)
        (wanted,) = all_solutions(W, q)
        given = vector(z, len(q))
        states &= given is not None and bool(np.allclose(given, wanted, rtol=1e-8, atol=1e-9))
        paths &= [tuple(int(i) for i in one) for one in path] == least_index_path(W, q)
    parts = Parts()
    parts.add(
        0.6,
        states,
        "The states are right." if states else "A state is not the equilibrium.",
        "state",
    )
    parts.add(
        0.2,
        paths,
        "So are the paths." if paths else "A path is not that of the least wrong index.",
        "path",
    )
    try:  # two units that drive each other, and no equilibrium
        z, _ = probe.call(
            "pivot", np.array([[0.0, 2.5], [1.5, 0.0]]), np.array([1.0, 0.5]), seconds=10
        )
        gives_up = z is None
    except ProbeError:
        gives_up = False
    parts.add(
        0.2,
        gives_up,
        "It says so when there is none."
        if gives_up
        else "On a network without an equilibrium it does not stop with None after 2^m sets.",
        "no end",
    )
    return parts.verdict()


def hidden_networks(mine: Mine) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw networks with one equilibrium for every injection; rows scaled, so not all monotone."""
    drawn = []
    for m in (2, 4, 6, 8):
        draw = Draw(f"hidden/a01/pivot/{mine.student}/{m}")
        M = np.eye(m) - monotone_weights(draw, m)
        scales = np.array([draw.uniform(0.3, 3.0) for _ in range(m)])
        drawn.append((np.eye(m) - scales[:, None] * M, draw.normal(m) + 0.3))
    return drawn


# --- task 3 ---------------------------------------------------------------------------------


def true_rate(mine: Mine) -> float:
    """Return the growth of a perturbation of the equilibrium: Newton's state, powers of J."""
    z = np.zeros(8)
    for _ in range(100):
        slopes = 1 - np.tanh(mine.V @ z + mine.v) ** 2
        residual = np.tanh(mine.V @ z + mine.v) - z
        z = z + np.linalg.solve(np.eye(8) - slopes[:, None] * mine.V, residual)
    J = (1 - z**2)[:, None] * mine.V
    power, scale = J, 0.0
    for _ in range(16):  # ‖J^(2^k)‖^(1/2^k) with k = 16: Gelfand's formula
        size = float(np.linalg.norm(power))
        power = power / size
        scale = 2 * (scale + np.log(size))
        power = power @ power
    return float(np.exp((scale + np.log(np.linalg.norm(power))) / 2**16))


def rate(probe: Probe, mine: Mine) -> Verdict:
    """Compare the estimate with the spectral radius, and look into the interval."""
    value, between = float(probe.value("rate")), probe.value("rate_between")
    low, high = (float(one) for one in between)
    truth = true_rate(mine)
    near = abs(value - truth) <= RATE_ERROR
    holds = low <= truth <= high and 0 < high - low <= RATE_WIDTH * (1 + 1e-9)
    parts = Parts()
    if near:
        parts.add(0.6, True, "The rate is right.")
    elif abs(value - truth) <= 0.02:
        parts.add(0.6, False, "The rate is near, but not within 0.002.", "rate not near enough")
    else:
        parts.add(0.6, False, "The rate is not that of your network.", "rate")
    if holds:
        parts.add(0.4, True, "The interval holds it.")
    elif not 0 < high - low <= RATE_WIDTH * (1 + 1e-9):
        parts.add(0.4, False, "The interval is empty or too wide.", "width of the interval")
    else:
        parts.add(0.4, False, "The interval does not hold it.", "interval")
    return parts.verdict()


# --- tasks 4 and 5: exact arithmetic --------------------------------------------------------


def exact(matrix: np.ndarray) -> list[list[Fraction]]:
    """Return a matrix of the fractions that its floating-point entries are."""
    return [[Fraction(float(entry)) for entry in row] for row in matrix]


def solve_exactly(A: list[list[Fraction]], b: list[Fraction]) -> list[Fraction] | None:
    """Solve a linear system by elimination; nothing if it is singular."""
    rows, size = [[*row, value] for row, value in zip(A, b)], len(b)
    for column in range(size):
        at = next((r for r in range(column, size) if rows[r][column] != 0), None)
        if at is None:
            return None
        rows[column], rows[at] = rows[at], rows[column]
        for r in range(size):
            if r != column:
                factor = rows[r][column] / rows[column][column]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[column])]
    return [rows[i][size] / rows[i][i] for i in range(size)]


def count_exactly(W: np.ndarray, q: np.ndarray) -> int:
    """Count the equilibria of z = relu(Wz + q) that have a regular system, in exact arithmetic."""
    w, b = exact(W), [Fraction(float(entry)) for entry in q]
    total, m = 0, len(b)
    for size in range(m + 1):
        for S in combinations(range(m), size):
            block = [[(i == j) - w[i][j] for j in S] for i in S]
            z = solve_exactly(block, [b[i] for i in S])
            if z is None:
                continue
            pre = [b[i] + sum(w[i][j] * one for j, one in zip(S, z)) for i in range(m)]
            total += all(one > 0 for one in z) and all(pre[i] <= 0 for i in range(m) if i not in S)
    return total


def determinant(A: list[list[Fraction]]) -> Fraction:
    """Return a determinant by its expansion along the first row."""
    if not A:
        return Fraction(1)
    return sum(
        (
            (-1) ** j * A[0][j] * determinant([row[:j] + row[j + 1 :] for row in A[1:]])
            for j in range(len(A))
        ),
        Fraction(0),
    )


def many(probe: Probe, mine: Mine) -> Verdict:
    """Count the equilibria of the student's own network for the student's injection."""
    q = vector(probe.value("q_many"), 3)
    if q is None or np.abs(q).max() > LARGEST_Q:
        return wrong("q_many is not a vector of three numbers between -10 and 10.", "form")
    count = count_exactly(mine.C, q)
    if count >= 2:
        return right(f"Your network has {count} equilibria for this injection.")
    told = "exactly one equilibrium" if count == 1 else "no equilibrium"
    return wrong(f"For this injection your network has {told}.", "no counterexample")


def free(probe: Probe, mine: Mine) -> Verdict:
    """Check the conditions, then all principal minors of I - W, exactly."""
    value = np.asarray(probe.value("W_free"), dtype=float)
    if value.shape != (3, 3) or not np.isfinite(value).all():
        return wrong("W_free is not a 3×3 matrix of finite numbers.", "form")
    conditions = {
        "an entry is too small": np.abs(value).min() >= SMALLEST_ENTRY,
        "the trace is not yours": abs(np.trace(value) - mine.trace) <= 1e-9,
        "the norm is too small": np.linalg.norm(value, 2) >= mine.norm - 1e-9,
        "the monotone certificate covers it": np.linalg.eigvalsh((value + value.T) / 2).max() >= 1,
        "the Perron–Frobenius certificate covers it": np.abs(np.linalg.eigvals(np.abs(value))).max()
        >= 1,
    }
    for told, holds in conditions.items():
        if not holds:
            return wrong(f"W_free does not fit: {told}.", told)
    M = exact(np.eye(3) - value)
    for size in (1, 2, 3):
        for S in combinations(range(3), size):
            if determinant([[M[i][j] for j in S] for i in S]) <= 0:
                return wrong(
                    "For some injection W_free has none or several equilibria.",
                    "a minor is not positive",
                )
    return right("W_free has exactly one equilibrium for every injection; no certificate sees it.")
