"""The verifiers of assignment 0. They run outside of the sandbox, on values alone.

Each goes another way than the solution in the master does: the network block by block, products of
Jacobians, Newton's method, arithmetic with eighty digits.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np

from deqbook.course.a00 import (
    LARGEST_ENTRY,
    LARGEST_S,
    LAYERS_ERROR,
    LAYERS_WIDTH,
    OUTPUT_ERROR,
    SMALLEST_ENTRY,
    Mine,
    instance,
    softsign,
)
from deqbook.course.grading.probe import Probe
from deqbook.course.grading.verdict import Parts, Verdict, right, wrong
from deqbook.course.instance import Draw

__all__ = ["far", "fold", "instance", "late", "slope", "soon", "strength"]


def shaped(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return an answer as an array of finite numbers of a shape, or nothing."""
    try:
        found = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return None
    return found if found.shape == shape and np.isfinite(found).all() else None


# --- task 1 ---------------------------------------------------------------------------------

Blocks = tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]


def residual_network(blocks: Blocks, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Run the network block by block; return all activations in a row, and the output."""
    h, heard = x, []
    for W, V, b in zip(*blocks):
        heard.append(np.maximum(W @ h + b, 0))
        h = h + V @ heard[-1]
    return np.concatenate(heard), h


def hidden_blocks(mine: Mine, d: int, widths: tuple[int, ...]) -> tuple[Blocks, list[np.ndarray]]:
    """Draw a residual network and twelve inputs."""
    draw = Draw(f"hidden/a00/fold/{mine.student}/{d}/{widths}")
    W = [draw.normal(width, d) for width in widths]
    V = [0.7 * draw.normal(d, width) for width in widths]
    b = [0.5 + np.abs(draw.normal(width)) for width in widths]  # so that no block is always silent
    return (W, V, b), [draw.uniform(0.2, 1.5) * draw.normal(d) for _ in range(12)]


def fold(probe: Probe, mine: Mine) -> Verdict:
    """Solve the folded equation from far away and compare with the network, block by block."""
    cases = [(3, (4, 5)), (2, (3, 2, 4)), (4, (2, 5, 3, 3, 2))]
    states, outputs = [], []
    for d, widths in cases:
        blocks, inputs = hidden_blocks(mine, d, widths)
        given = probe.call("fold", *blocks)
        m = sum(widths)
        if not isinstance(given, (list, tuple)) or len(given) != 4:
            return wrong("fold does not return four arrays.", "form")
        shapes = ((m, m), (m, d), (m,), (d, m))
        W, U, b, V = (shaped(one, shape) for one, shape in zip(given, shapes))
        if W is None or U is None or b is None:
            return wrong(
                f"For blocks of {widths} units and an input of {d} numbers W, U and b should have "
                f"the shapes {shapes[:3]}.",
                "shapes",
            )
        states.append(True)
        outputs.append(V is not None)
        for x in inputs:
            wanted, answer = residual_network(blocks, x)
            z = 5 * np.cos(np.arange(m) + x[0])
            for _ in widths:
                z = np.maximum(W @ z + U @ x + b, 0)
            scale = 1 + np.abs(wanted).max()
            states[-1] &= bool(np.abs(z - wanted).max() <= 1e-7 * scale)
            if V is not None:
                outputs[-1] &= bool(np.abs(x + V @ wanted - answer).max() <= 1e-7 * scale)
    parts = Parts()
    parts.add(
        0.3,
        states[0],
        "Two blocks settle at their activations."
        if states[0]
        else "Two blocks do not settle at their activations in two steps.",
        "two blocks",
    )
    parts.add(
        0.5,
        all(states[1:]),
        "So do more."
        if all(states[1:])
        else "Three and five blocks do not settle at theirs in as many steps.",
        "more blocks",
    )
    parts.add(
        0.2,
        all(outputs),
        "The output is read off rightly."
        if all(outputs)
        else "x + V z is not the output of the network.",
        "output",
    )
    return parts.verdict()


# --- task 2 ---------------------------------------------------------------------------------


def by_products(W: np.ndarray, Q: np.ndarray, s: float, depth: int) -> list[np.ndarray]:
    """Return state and slope sample by sample, as a sum over the layers in which s acts."""
    m, states, slopes = W.shape[0], [], []
    for q in Q:
        path, steps = [np.zeros(m)], []
        for _ in range(depth):
            pre = s * W @ path[-1] + q
            steps.append(1 / (1 + np.abs(pre)) ** 2)
            path.append(pre / (1 + np.abs(pre)))
        total, after = np.zeros(m), np.eye(m)
        for k in reversed(range(depth)):
            through = after * steps[k]  # what comes after, times the diagonal of layer k
            total = total + through @ (W @ path[k])
            after = s * through @ W
        states.append(path[-1])
        slopes.append(total)
    return [np.array(states), np.array(slopes)]


def slope(probe: Probe, mine: Mine) -> Verdict:
    """Compare state and slope with products of Jacobians, for several sizes and depths."""
    states = slopes = True
    for number, (n, m, depth) in enumerate([(1, 3, 2), (4, 2, 3), (2, 6, 12), (3, 4, 1)]):
        draw = Draw(f"hidden/a00/slope/{mine.student}/{number}")
        W, Q, s = draw.normal(m, m) / np.sqrt(m), draw.normal(n, m), draw.uniform(0.5, 1.6)
        given = probe.call("state_and_slope", W, Q, s, depth)
        if not isinstance(given, (list, tuple)) or len(given) != 2:
            return wrong("state_and_slope does not return two arrays.", "form")
        Z, dZ = (shaped(one, (n, m)) for one in given)
        if Z is None or dZ is None:
            return wrong(
                f"For {n} samples and {m} units state and slope should have the shape {(n, m)}.",
                "shapes",
            )
        state, wanted = by_products(W, Q, s, depth)
        states &= bool(np.abs(Z - state).max() <= 1e-7)
        slopes &= bool(np.abs(dZ - wanted).max() <= 1e-5 * (1 + np.abs(wanted).max()))
    parts = Parts()
    parts.add(
        0.3,
        states,
        "The states are right." if states else "A state is not that of the tied network.",
        "state",
    )
    parts.add(
        0.7,
        slopes,
        "The slopes are right." if slopes else "A slope is not the derivative of the state in s.",
        "slope",
    )
    return parts.verdict()


def settled_output(mine: Mine, s: float) -> float:
    """Return the mean output at the equilibrium that the network settles at, by Newton's method."""
    total = 0.0
    for q in mine.Q:
        z = np.zeros(len(q))
        for _ in range(300):
            z = softsign(s * mine.W @ z + q)
        for _ in range(30):
            pre = s * mine.W @ z + q
            J = s * mine.W / (1 + np.abs(pre))[:, None] ** 2
            z = z + np.linalg.solve(np.eye(len(q)) - J, softsign(pre) - z)
        total += float(z @ mine.a)
    return total / len(mine.Q)


def strength(probe: Probe, mine: Mine) -> Verdict:
    """Put the strength into the student's own network."""
    s = shaped(probe.value("s_own"), ())
    if s is None or not 0 <= s <= LARGEST_S:
        return wrong(f"s_own is not a number between 0 and {LARGEST_S:g}.", "form")
    off = abs(settled_output(mine, float(s)) - mine.target)
    if off <= OUTPUT_ERROR * 1.01:
        return right("With this strength your network meets its target.")
    return wrong(
        f"With this strength the settled network misses the target by {off:.1e}.", "target missed"
    )


# --- task 3 ---------------------------------------------------------------------------------

DIGITS, MOST = 80, 5000


def true_layers(mine: Mine) -> tuple[int, int]:
    """Return both depths, by running the network with eighty digits."""
    with localcontext(Context(prec=DIGITS)):
        V = [[(j, Decimal(repr(w))) for j, w in enumerate(row) if w] for row in mine.V.tolist()]
        v = [Decimal(repr(one)) for one in mine.v.tolist()]
        z = [Decimal(0)] * len(v)
        path = [z]
        for _ in range(MOST):
            z = [max(q + sum(w * z[j] for j, w in row), Decimal(0)) for q, row in zip(v, V)]
            path.append(z)
        size = sum(one * one for one in z)
        squares = [sum((x - y) ** 2 for x, y in zip(one, z)) for one in path]
        reached = []
        for power in (3, 50):
            last = max(
                k for k, off in enumerate(squares) if off > size * Decimal(10) ** (-2 * power)
            )
            reached.append(last + 1)
    return reached[0], reached[1]


def soon(probe: Probe, mine: Mine) -> Verdict:
    """Compare the first depth."""
    given = shaped(probe.value("layers_3"), ())
    if given is None:
        return wrong("layers_3 is not a number.", "form")
    truth, _ = true_layers(mine)
    if given == truth:
        return right("layers_3 is right.")
    if abs(given - truth) <= 2:
        return wrong("layers_3 is off by one or two layers.", "layers_3 nearly right")
    side = "too small" if given < truth else "too large"
    return wrong(f"layers_3 is {side}.", f"layers_3 {side}")


def late(probe: Probe, mine: Mine) -> Verdict:
    """Compare the second depth, and look into its interval."""
    given, between = shaped(probe.value("layers_50"), ()), probe.value("layers_50_between")
    ends = shaped(between, (2,))
    if given is None or ends is None:
        return wrong("layers_50 is not a number, or layers_50_between not a pair.", "form")
    (low, high), (_, truth) = ends, true_layers(mine)
    near = abs(float(given) - truth) <= LAYERS_ERROR
    fits = 0 <= high - low <= LAYERS_WIDTH
    parts = Parts()
    parts.add(
        0.6,
        near,
        "layers_50 is right." if near else "layers_50 is not the depth of your network.",
        "layers_50",
    )
    if not fits:
        parts.add(0.4, False, "The interval is empty or too wide.", "width of the interval")
    else:
        holds = bool(low <= truth <= high)
        parts.add(
            0.4,
            holds,
            "The interval holds the depth." if holds else "The interval does not hold the depth.",
            "interval",
        )
    return parts.verdict()


# --- task 4 ---------------------------------------------------------------------------------


def far(probe: Probe, mine: Mine) -> Verdict:
    """Run the student's network, and measure distances to where it settles."""
    W, q = shaped(probe.value("W_far"), (2, 2)), shaped(probe.value("q_far"), (2,))
    if W is None or q is None:
        return wrong("W_far is not a 2×2 matrix, or q_far not a vector, of finite numbers.", "form")
    if np.abs(W).min() < SMALLEST_ENTRY or max(np.abs(W).max(), np.abs(q).max()) > LARGEST_ENTRY:
        return wrong("An entry is too small or too large.", "size of the entries")
    if abs(W[0, 0] + W[1, 1] - mine.trace) > 1e-9:
        return wrong("The trace of W_far is not yours.", "trace")
    path = [np.zeros(2)]
    for _ in range(4000):
        path.append(np.maximum(W @ path[-1] + q, 0))
        if np.abs(path[-1]).max() > 1e12:
            return wrong("Your network explodes.", "does not settle")
    rest, states = path[-1], np.array(path)
    size = float(np.linalg.norm(rest))
    errors = np.linalg.norm(states - rest, axis=1)
    if size == 0 or errors[1000:].max() > 1e-9 * size:
        return wrong(
            "Your network has not settled after 1000 layers, or settles at 0.", "unsettled"
        )
    first = errors[: mine.layers + 1] / size
    if not (np.diff(first) > 1e-9).all():
        return wrong(
            f"In one of the first {mine.layers} layers the state does not move away.",
            "comes nearer",
        )
    if first[-1] < mine.growth * (1 - 1e-9):
        return wrong(
            f"After {mine.layers} layers the error is {first[-1]:.2f} times that of no layer; "
            f"{mine.growth} is asked for.",
            "growth too small",
        )
    return right(f"It settles, after an error {first[-1]:.1f} times that of no layer at all.")
