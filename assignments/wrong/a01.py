"""Plausible wrong answers to assignment 1, and exactly the points that each must lose.

A verifier that lets one of them pass, or takes more than is listed, is a defect; a test runs them
all. Each replaces cells of the solution, named by their grade_id. `OWN` names the answers that are
about the student's own numbers, cell by cell: another student's must lose all points of the test.
"""

from __future__ import annotations

from deqbook.course.grading.verdict import Wrong

SPLITTING = """
def douglas_rachford(W, q, lam, alpha, u, steps):
    eye = np.eye(len(q))
    path = [np.asarray(u, dtype=float)]
    for _ in range(steps):
        u = path[-1]
        z = np.sign(u) * np.maximum(np.abs(u) - {threshold}, 0)
        v = 2 * z - u
        z2 = np.linalg.solve(eye + alpha * (eye - W), v + alpha * q)
        path.append({step})
    return np.array(path)
"""
PIVOT = """
def pivot(W, q):
    m = len(q)
    S, path = set(), []
    while {forever} or len(path) < 2**m:
        path.append(tuple(sorted(S)))
        I = sorted(S)
        z = np.zeros(m)
        z[I] = np.linalg.solve(np.eye(len(I)) - W[np.ix_(I, I)], q[I])
        pre = W @ z + q
        bad = [i for i in range(m) if (z[i] < 0 if i in S else pre[i] > 0)]
        if not bad:
            return z, path
        S ^= {{bad[{which}]}}
    return {end}, path
"""
PICARD = """
z = np.zeros(8)
for _ in range(3000):
    z = np.tanh(mine.V @ z + mine.v)
J = (1 - z**2)[:, None] * mine.V
"""

OWN = {
    "state": ("z_own",),
    "rate": ("rate", "rate_between"),
    "many": ("q_many",),
    "free": ("W_free",),
}
WRONG = (
    Wrong(
        "the step does not enter the prox: it settles quickly, at a wrong state",
        {"splitting": SPLITTING.format(threshold="lam", step="u + z2 - z")},
        {"test-splitting": 12, "test-state": 8},
    ),
    Wrong(
        "Peaceman–Rachford in place of Douglas–Rachford: the right limit, other iterates",
        {"splitting": SPLITTING.format(threshold="alpha * lam", step="2 * z2 - v")},
        {"test-splitting": 12},
    ),
    Wrong(
        "u in place of z",
        {
            "state": "numbers = mine.W, mine.q, mine.lam, mine.alpha\n"
            "z_own = douglas_rachford(*numbers, np.zeros(6), 900)[-1]"
        },
        {"test-state": 8},
    ),
    Wrong(
        "the last wrong index in place of the least: the same states by other paths",
        {"pivot": PIVOT.format(forever="False", which="-1", end="None")},
        {"test-pivot": 4},
    ),
    Wrong(
        "no end where there is no equilibrium",
        {"pivot": PIVOT.format(forever="True", which="0", end="None")},
        {"test-pivot": 4},
    ),
    Wrong(
        "the last state in place of None where there is no equilibrium",
        {"pivot": PIVOT.format(forever="False", which="0", end="z")},
        {"test-pivot": 4},
    ),
    Wrong(
        "the norm of the Jacobian in place of its spectral radius",
        {"rate": PICARD + "rate = np.linalg.norm(J, 2)\nrate_between = (rate - 0.01, rate + 0.01)"},
        {"test-rate": 20},
    ),
    Wrong(
        "the spectral radius of V: the slopes of tanh forgotten",
        {
            "rate": "rate = abs(np.linalg.eigvals(mine.V)).max()\n"
            "rate_between = (rate - 0.01, rate + 0.01)"
        },
        {"test-rate": 20},
    ),
    Wrong(
        "a right rate with an interval that says nothing",
        {"rate": PICARD + "rate = abs(np.linalg.eigvals(J)).max()\nrate_between = (0, 1)"},
        {"test-rate": 8},
    ),
    Wrong(
        "an injection that favours all units alike",
        {"many": "q_many = np.ones(3)"},
        {"test-many": 10},
    ),
    Wrong(
        "mutual excitation: the norm is there, the uniqueness is not",
        {
            "free": "W_free = np.full((3, 3), mine.norm)\n"
            "third = mine.trace / 3\n"
            "np.fill_diagonal(W_free, [third, third, mine.trace - 2 * third])"
        },
        {"test-free": 10},
    ),
)
