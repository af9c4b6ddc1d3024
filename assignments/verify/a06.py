"""The verifiers of assignment 6. They run outside of the sandbox, on values alone.

Each is called with a probe, which asks the student's kernel, and with the student's instance. Each
goes another way than the solution in the master does.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np

from deqbook.course.a06 import (
    CLAIMED,
    FAIR_ERROR,
    POWER_ERROR,
    POWER_WIDTH,
    SHARE_ERROR,
    SHARE_WIDTH,
    Mine,
    instance,
)
from deqbook.course.grading.probe import Probe, ProbeError
from deqbook.course.grading.verdict import Parts, Verdict, right, wrong
from deqbook.course.instance import Draw

__all__ = ["certificate", "instance", "norm", "own", "power", "reuse", "union"]


def scalar(value: Any) -> float:
    """Return an answer as a number; not a number where it is none."""
    try:
        found = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return float("nan")
    return float(found.reshape(())) if found.size == 1 else float("nan")


def near(given: float, wanted: float, error: float = 1e-6) -> bool:
    """Return whether a number is right up to a relative error."""
    return bool(abs(given - wanted) <= error * abs(wanted))


def holds(value: Any, truth: float, width: float) -> tuple[bool, str]:
    """Return whether an interval is narrow enough and holds the truth, and a sentence."""
    try:
        low, high = (float(one) for one in np.asarray(value, dtype=float).reshape(-1))
    except (TypeError, ValueError):
        return False, "The interval is not a pair of numbers."
    if not 0 < high - low <= width * (1 + 1e-9):
        return False, "The interval is empty or too wide."
    if low <= truth <= high:
        return True, "The interval holds it."
    return False, "The interval does not hold it."


# --- task 1 ---------------------------------------------------------------------------------


def by_energy(x: np.ndarray, y: np.ndarray) -> float:
    """Return the squared norm in its symmetric form: ends, slopes and heights, all positive."""
    order = np.argsort(x)
    x, y = x[order], y[order]
    h = np.diff(x)
    slopes = (y[1:] - y[:-1]) ** 2 / (2 * np.sinh(h))
    heights = (y[1:] ** 2 + y[:-1] ** 2) * np.tanh(h / 2) / 2
    return float((y[0] ** 2 + y[-1] ** 2) / 2 + np.sum(slopes + heights))


def by_matrix(x: np.ndarray, y: np.ndarray) -> float:
    """Return the squared norm with the matrix, for small samples."""
    return float(y @ np.linalg.solve(np.exp(-np.abs(x[:, None] - x[None])), y))


def spread_out(n: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Return many different inputs in no order, and labels."""
    x = (np.arange(n) * 0.6180339887498949 + shift) % 1.0 * 4 - 2
    return x, np.cos(5 * x + shift)


def norm(probe: Probe, mine: Mine) -> Verdict:
    """Compare with the matrix on small samples, then ask for near inputs and for many."""
    small = True
    for n in (1, 2, 5, 40):
        draw = Draw(f"hidden/a06/norm/{mine.student}/{n}")
        x = np.cumsum([draw.uniform(0.02, 0.6) for _ in range(n)])  # different for certain
        x, y = (x - x.mean())[np.argsort(draw.normal(n), kind="stable")], draw.normal(n)
        small &= near(scalar(probe.call("squared_norm", x, y)), by_matrix(x, y))
    parts = Parts()
    parts.add(
        0.6,
        small,
        "The norms are those of the matrix." if small else "A norm is not that of the matrix.",
        "norm",
    )
    x, y = np.array([0.7, 0.0, -0.4, 1e-17]), np.array([0.5, 1.0, 0.2, -1.0])
    parts.add(*asked(probe, 0.2, x, y, "inputs at a distance of 1e-17", "near inputs"))
    x, y = spread_out(50_000, 0.01 * (len(mine.student) % 50))
    parts.add(*asked(probe, 0.2, x, y, "50 000 samples", "many samples"))
    return parts.verdict()


def asked(
    probe: Probe, share: float, x: np.ndarray, y: np.ndarray, case: str, fault: str
) -> tuple[float, bool, str, str]:
    """Ask for one norm, and return a part of a verdict."""
    try:
        good = near(scalar(probe.call("squared_norm", x, y)), by_energy(x, y))
        told = f"It is right for {case}." if good else f"It is not right for {case}."
    except ProbeError as error:
        good, told = False, f"For {case}: {error.sentence}"
    return share, good, told, fault


# --- task 2 ---------------------------------------------------------------------------------


def all_bounds(
    x: np.ndarray, y: np.ndarray, kernels: list[tuple[float, float]], delta: float
) -> list[float]:
    """Return the bound for each kernel; the radius is doubled until it is large enough."""
    n, found = len(x), []
    for v, s in kernels:
        B2, j = by_energy(x / s, y) / v, 0
        while 4**j < B2:
            j += 1
        inside = 2 * len(kernels) * (j + 1) * (j + 2) / delta
        found.append(2 ** (j + 1) * math.sqrt(v / n) + 3 * math.sqrt(math.log(inside) / (2 * n)))
    return found


def least(bounds: list[float]) -> list[int]:
    """Return the places of the least bound; several if they tie."""
    return [i for i, one in enumerate(bounds) if one <= min(bounds) + 1e-9]


def hidden_sample(name: str, n: int, p: int) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Draw a sample and kernels; no norm lies at the edge of a radius, no two bounds tie."""
    draw = Draw(name)
    while True:
        x, y = spread_out(n, draw.uniform(0.0, 1.0))
        y = draw.uniform(0.5, 3.0) * y
        kernels = [(draw.uniform(0.2, 4.0), draw.uniform(0.2, 3.0)) for _ in range(p)]
        norms = [math.log2(by_energy(x / s, y) / v) / 2 for v, s in kernels]
        bounds = sorted(all_bounds(x, y, kernels, 0.1))
        apart = min([b - a for a, b in pairwise(bounds)], default=1.0)
        if min(abs(one - round(one)) for one in norms) > 1e-3 and apart > 1e-3:
            return x, y, kernels


def certificate(probe: Probe, mine: Mine) -> Verdict:
    """Compare bounds and choices on hidden samples, then on a large one."""
    bounds = choices = True
    for n, p in ((4, 1), (60, 3), (400, 5)):
        name = f"hidden/a06/certificate/{mine.student}/{n}"
        x, y, kernels = hidden_sample(name, n, p)
        delta = Draw(name + "/delta").uniform(0.01, 0.2)
        wanted = all_bounds(x, y, kernels, delta)
        given = probe.call("certificate", x, y, kernels, delta)
        if not (isinstance(given, (tuple, list)) and len(given) == 2):
            return wrong("certificate does not return a pair, bound and index.", "form")
        bounds &= near(scalar(given[0]), min(wanted))
        choices &= scalar(given[1]) in least(wanted)
    parts = Parts()
    parts.add(0.6, bounds, "The bounds are right." if bounds else "A bound is not right.", "bound")
    if bounds:
        told = "So are the kernels." if choices else "A kernel is not that of the least bound."
        parts.add(0.2, choices, told, "kernel")
    x, y, kernels = hidden_sample(f"hidden/a06/large/{mine.student}", 30_000, 2)
    try:
        given = probe.call("certificate", x, y, kernels, 0.05)
        first = given[0] if isinstance(given, (tuple, list)) and len(given) else given
        good = near(scalar(first), min(all_bounds(x, y, kernels, 0.05)))
        told = "It works" if good else "It is not right"
        told += " for 30 000 samples."
    except ProbeError as error:
        good, told = False, f"For 30 000 samples: {error.sentence}"
    parts.add(0.2, good, told, "many samples")
    return parts.verdict()


def own(probe: Probe, mine: Mine) -> Verdict:
    """Compare with the bounds of the student's own sample."""
    wanted = all_bounds(mine.x, mine.y, mine.kernels, mine.delta)
    bound, index = scalar(probe.value("own_bound")), scalar(probe.value("own_kernel"))
    if not abs(bound - min(wanted)) <= 1e-5:
        return wrong("Your bound is not right.", "bound")
    if index not in least(wanted):
        return wrong("The bound is right, but not the index of its kernel.", "kernel", 0.75)
    return right("Bound and kernel are right.")


# --- task 3 ---------------------------------------------------------------------------------


def true_power(mine: Mine) -> float:
    """Return the exponent in closed form.

    Near 0 neighbours are n^-ω apart and labels differ by n^-ωh: together they add n^ω(1-2h) to the
    squared norm, and everything else is bounded. The complexity is 2B/√n.
    """
    return (mine.crowd * (1 - 2 * mine.rough) - 1) / 2


def power(probe: Probe, mine: Mine) -> Verdict:
    """Compare the estimate with the closed form, and look into the interval."""
    truth, value = true_power(mine), scalar(probe.value("power"))
    parts = Parts()
    far = abs(value - truth)
    if far <= POWER_ERROR:
        parts.add(0.6, True, "The power is right.")
    elif far <= 0.04:
        parts.add(0.6, False, "The power is near, but not within 0.01.", "power not near enough")
    else:
        parts.add(0.6, False, "The power is not that of large samples.", "power")
    good, told = holds(probe.value("power_between"), truth, POWER_WIDTH)
    parts.add(0.4, good, told, "interval")
    return parts.verdict()


# --- task 4 ---------------------------------------------------------------------------------


def true_coverage(mine: Mine) -> float:
    """Return how often the least of all counts is large enough, in exact fractions."""
    n = mine.pictures
    edge = n / 2 - math.sqrt(n * math.log(20) / 2)
    fewer = sum(math.comb(n, k) for k in range(n + 1) if k < edge)
    return float((1 - Fraction(fewer, 2**n)) ** mine.models)


def reuse(probe: Probe, mine: Mine) -> Verdict:
    """Compare coverage and width, and look into the interval."""
    truth, value = true_coverage(mine), scalar(probe.value("coverage"))
    parts = Parts()
    good = bool(abs(value - truth) <= SHARE_ERROR)
    parts.add(0.5, good, f"The coverage is {'' if good else 'not '}right.", "coverage")
    good, told = holds(probe.value("coverage_between"), truth, SHARE_WIDTH)
    parts.add(0.25, good, told, "interval")
    try:
        width = scalar(probe.value("width_fair"))
    except ProbeError:
        width = float("nan")
    fair = math.sqrt((math.log(mine.models) + math.log(20)) / (2 * mine.pictures))
    good = bool(abs(width - fair) <= FAIR_ERROR)
    parts.add(0.25, good, f"The fair width is {'' if good else 'not '}right.", "fair width")
    return parts.verdict()


# --- task 5 ---------------------------------------------------------------------------------


def excess(one: np.ndarray, two: np.ndarray) -> float:
    """Return the complexity of the union of two balls, in units of B/√n, over all signs."""
    n, total = len(one), 0.0
    for signs in product((-1.0, 1.0), repeat=n):
        e = np.array(signs)
        total += math.sqrt(max(float(e @ one @ e), float(e @ two @ e), 0.0))
    return total / 2**n / math.sqrt(n)


def union(probe: Probe, mine: Mine) -> Verdict:
    """Check that the matrix is a kernel's, then try all signs."""
    K = np.asarray(probe.value("K_two"), dtype=float)
    if K.shape != (6, 6) or not np.isfinite(K).all():
        return wrong("K_two is not a 6×6 matrix of finite numbers.", "form")
    conditions = {
        "it is not symmetric": np.abs(K - K.T).max() <= 1e-8,
        "its diagonal is not one": np.abs(np.diag(K) - 1).max() <= 1e-8,
        "it has a negative eigenvalue": np.linalg.eigvalsh((K + K.T) / 2)[0] >= -1e-8,
    }
    for told, fits in conditions.items():
        if not fits:
            return wrong(f"K_two does not fit: {told}.", told)
    found = excess(mine.K, K)
    if found > CLAIMED:
        return right(f"The union has {found:.3f} times the complexity that was granted to one.")
    if found > 1:
        return wrong("The choice costs something here, but not 15 per cent.", "too little")
    return wrong("With this K_two the choice costs nothing.", "no counterexample")
