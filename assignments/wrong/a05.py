"""Plausible wrong answers to assignment 5, and exactly the points that each must lose.

A verifier that lets one of them pass, or takes more than is listed, is a defect; a test runs them
all. Each replaces cells of the solution, named by their grade_id. `OWN` names the answers that are
about the student's own numbers, cell by cell: another student's must lose all points of the test.
"""

from __future__ import annotations

from deqbook.course.grading.verdict import Wrong

HIDDEN = """
def hidden(W, q, tau, a, z):
    s = {code}
    {guard}
    neg = np.minimum(s, 0)
    conj = np.where(s >= 0, s**2 / 2, {negative})
    t = np.where(s >= 0, s, np.log(1 + neg / a))
    return (conj.sum() - q @ s) / tau - z @ z / 2, np.linalg.inv(W) @ (t - q) - z
"""
GUARD = "if (s < -a).any(): return np.inf, None"
CODE = "tau * np.linalg.inv(W).T @ z"
NEGATIVE = "(neg + a) * np.log(1 + neg / a) - neg"
PULLS = """
def T(z):
    p = mine.W @ z + mine.q
    return mine.W.T @ np.where(p >= 0, p, mine.a * (np.exp(np.minimum(p, 0)) - 1)) / mine.tau
z = np.zeros(5)
y = np.zeros(5)
for _ in range(800):
    z = {behind}
    y = {inside}
z_behind, z_sum = z, {last}
"""
RIGHT_BEHIND = "(T(z) + mine.mu * mine.g) / (1 + mine.mu)"
RIGHT_INSIDE = "T((1 - mine.mu) * y + mine.mu * mine.g)"
PATH = """
def prox_sam(W, b, step, rho, c, z, steps):
    path = [np.array(z, dtype=float)]
    for k in range({first}, steps + {first}):
        z = path[-1]
        beta, lam = 0.5 * {count} ** -rho, 0.5 * {count} ** -c
        s = np.sign(z) * np.maximum(np.abs(z) - step, 0)
        path.append(beta * (1 - lam) * s + (1 - beta) * (W.T @ np.maximum(W @ {state} + b, 0)))
    return np.array(path)
"""
LEAST = """
ts = np.linspace(*mine.ends, 20001)
t_least = ts[np.argmin(np.abs(mine.point + ts[:, None] * mine.along).sum(axis=1))]
"""
RUN = """
z = prox_sam(mine.A, mine.b, mine.step, 0.3, 0.3, np.zeros(5), 10000)[-1]
t_limit = mine.along @ (z - mine.point)
"""
ROUND = """
c = np.linalg.solve(mine.S, np.array([1.0, {second}, {second}]) - mine.c)
t = {turn} * np.sign(mine.S[0, 1]) * 2 * np.pi * np.arange({corners}) / {corners}
polygon = c + np.stack([np.cos(t), np.sin(t), 0 * t], axis=1)
"""

OWN = {
    "pulls": ("z_behind", "z_sum"),
    "limit": ("t_limit", "t_between", "t_least"),
    "polygon": ("polygon",),
}
WRONG = (
    Wrong(
        "the divisor forgotten in the code: right for τ = 1 only",
        {"hidden": HIDDEN.format(code="np.linalg.inv(W).T @ z", guard=GUARD, negative=NEGATIVE)},
        {"test-hidden": 16},
    ),
    Wrong(
        "the inverse where its transpose is due",
        {
            "hidden": HIDDEN.format(
                code="tau * np.linalg.inv(W) @ z", guard=GUARD, negative=NEGATIVE
            )
        },
        {"test-hidden": 16},
    ),
    Wrong(
        "a conjugate that lost a constant below zero: right gradients, wrong values",
        {"hidden": HIDDEN.format(code=CODE, guard=GUARD, negative=NEGATIVE + " - a")},
        {"test-hidden": 9},
    ),
    Wrong(
        "a logarithm of a negative number where the value is infinite",
        {"hidden": HIDDEN.format(code=CODE, guard="pass", negative=NEGATIVE)},
        {"test-hidden": 4},
    ),
    Wrong(
        "the state before the new layer for the minimiser of the sum",
        {"pulls": PULLS.format(behind=RIGHT_BEHIND, inside=RIGHT_INSIDE, last="T(z)")},
        {"test-pulls": 8},
    ),
    Wrong(
        "a gradient step behind the network, taken for the proximal one",
        {
            "pulls": PULLS.format(
                behind="T(z) - mine.mu * (T(z) - mine.g)", inside=RIGHT_INSIDE, last="y"
            )
        },
        {"test-pulls": 8},
    ),
    Wrong(
        "one equilibrium for both questions",
        {"pulls": PULLS.format(behind="T(z)", inside="T(y)", last="y")},
        {"test-pulls": 16},
    ),
    Wrong(
        "the count of the steps begins one too late",
        {"path": PATH.format(first="1", count="(k + 1)", state="z")},
        {"test-path": 12},
    ),
    Wrong(
        "one after the other: the network sees the state that was thresholded",
        {"path": PATH.format(first="1", count="k", state="s")},
        {"test-path": 12},
    ),
    Wrong(
        "the iteration read off after ten thousand steps",
        {"limit": RUN + "t_between = (t_limit - 0.01, t_limit + 0.01)" + LEAST},
        {"test-limit": 12},
    ),
    Wrong(
        "the least 1-norm taken for the limit",
        {"limit": LEAST + "t_limit = t_least\nt_between = (t_limit - 0.005, t_limit + 0.005)"},
        {"test-limit": 12},
    ),
    Wrong(
        "a regular triangle: too few corners",
        {"polygon": ROUND.format(second="-1.0", turn="-1", corners="3")},
        {"test-polygon": 12},
    ),
    Wrong(
        "the right polygon, walked the wrong way round",
        {"polygon": ROUND.format(second="-1.0", turn="1", corners="64")},
        {"test-polygon": 12},
    ),
    Wrong(
        "a polygon where all units are on and the Jacobian is symmetric",
        {"polygon": ROUND.format(second="1.0", turn="-1", corners="64")},
        {"test-polygon": 12},
    ),
)
