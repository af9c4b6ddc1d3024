"""Plausible wrong answers to assignment 3, and exactly the points that each must lose.

A verifier that lets one of them pass, or takes more than is listed, is a defect; a test runs them
all. Each replaces cells of the solution, named by their grade_id. `OWN` names the answers that are
about the student's own numbers, cell by cell: another student's must lose all points of the test.
"""

from __future__ import annotations

from deqbook.course.grading.verdict import Wrong

DESCENT = """
def descent(W, U, a, X, y, eta, beta, steps):
    vW, vU, va = np.zeros_like(W), np.zeros_like(U), np.zeros_like(a)
    path = []
    for k in range(steps + 1):
        {ahead}
        M = np.linalg.inv(np.eye(len(a)) - W)
        Z = X @ U.T @ M.T
        v = {adjoint}
        e = (Z @ a - y){mean}
        gW, gU, ga = np.outer(v, Z.T @ e), np.outer(v, X.T @ e), Z.T @ e
        {back}
        M = np.linalg.inv(np.eye(len(a)) - W)
        path.append(X @ U.T @ M.T @ a)
        if k < steps:
            vW, vU, va = beta * vW - eta * gW, beta * vU - eta * gU, beta * va - eta * ga
            W, U, a = W + vW, U + vU, a + va
    return W, U, a, np.array(path)
"""
RIGHT = {"ahead": "pass", "back": "pass", "adjoint": "M.T @ a", "mean": ""}
NESTEROV = {
    "ahead": "W, U, a = W + beta * vW, U + beta * vU, a + beta * va",
    "back": "W, U, a = W - beta * vW, U - beta * vU, a - beta * va",
}
#: The other tasks of a student whose descent is wrong, done with another one that is right.
PLAIN = DESCENT.format(**RIGHT).replace("def descent", "def plain")
ONE_BY_ONE = """
def descent(W, U, a, X, y, eta, beta, steps):
    vW, vU, va = 0 * W, 0 * U, 0 * a
    def look():
        M = np.linalg.inv(np.eye(len(a)) - W)
        Z = X @ U.T @ M.T
        return M.T @ a, Z, Z @ a - y
    path = [look()[1] @ a]
    for _ in range(steps):
        v, Z, e = look()
        vW = beta * vW - eta * np.outer(v, Z.T @ e)
        W = W + vW
        v, Z, e = look()
        vU = beta * vU - eta * np.outer(v, X.T @ e)
        U = U + vU
        v, Z, e = look()
        va = beta * va - eta * Z.T @ e
        a = a + va
        path.append(look()[1] @ a)
    return W, U, a, np.array(path)
"""
KEPT = "def kept(W, U, a):\n    return U @ U.T - np.outer(a, a) + {term}"
DRIFT = """
own = (mine.W, mine.U, mine.a)
sizes = []
for N in {counts}:
    eta = mine.time / N
    W, U, a, _ = descent(*own, mine.X, mine.y, eta, 0.0, {steps})
    sizes.append(np.linalg.norm(kept(W, U, a) - kept(*own)) / eta**{power})
drift_order, drift = {power}, sizes[-1]
drift_between = ({low} * drift, {high} * drift)
"""
RATE = """
W, U, a, path = descent(mine.W, mine.U, mine.a, mine.X, mine.y, mine.eta, 0.0, {steps})
M = np.linalg.inv(np.eye(4) - W)
Z, v = mine.X @ U.T @ M.T, M.T @ a
H = (1 + v @ v) * Z @ Z.T + (v @ v) * mine.X @ mine.X.T
loss = ((path - mine.y) ** 2).sum(axis=1)
rate = {rate}
rate_between = ({low}, {high})
"""
AROUND = {"low": "rate - 0.004", "high": "rate + 0.004"}
SQUARED = "abs(1 - mine.eta * np.linalg.eigvalsh(H)).max() ** 2"

REST = {
    "drift": PLAIN
    + DRIFT.format(counts="(2000,)", steps="N", power="1", low="0.98", high="1.02").replace(
        "descent(", "plain("
    ),
    "rate": PLAIN + RATE.format(steps="2000", rate=SQUARED, **AROUND).replace("descent(", "plain("),
}

OWN = {
    "drift": ("drift_order", "drift", "drift_between"),
    "rate": ("rate", "rate_between"),
    "faster": ("eta_fast", "beta_fast"),
}
WRONG = (
    Wrong(
        "the adjoint state with W in place of its transpose",
        {"descent": DESCENT.format(**{**RIGHT, "adjoint": "M @ a"}), **REST},
        {"test-descent": 20},
    ),
    Wrong(
        "the mean over the samples in place of the sum: everything is slower by n",
        {"descent": DESCENT.format(**{**RIGHT, "mean": " / len(y)"}), **REST},
        {"test-descent": 20},
    ),
    Wrong(
        "the weights one after the other, each gradient at the new place",
        {"descent": ONE_BY_ONE, **REST},
        {"test-descent": 20},
    ),
    Wrong(
        "Nesterov's momentum, with the gradient taken ahead: plain descent is right",
        {"descent": DESCENT.format(**{**RIGHT, **NESTEROV})},
        {"test-descent": 8},
    ),
    Wrong(
        "the transposed sign: the columns of W counted as incoming",
        {"kept": KEPT.format(term="W.T @ W - W @ W.T")},
        {"test-kept": 15, "test-drift": 15},
    ),
    Wrong(
        "a symmetric matrix of W that is not kept",
        {"kept": KEPT.format(term="(W @ W + (W @ W).T) / 2")},
        {"test-kept": 15, "test-drift": 15},
    ),
    Wrong(
        "the change of one step, of order two, in place of that up to a fixed time",
        {"drift": DRIFT.format(counts="(2000,)", steps="1", power="2", low="0.98", high="1.02")},
        {"test-drift": 15},
    ),
    Wrong(
        "order and constant right, with an interval that says nothing",
        {"drift": DRIFT.format(counts="(2000,)", steps="N", power="1", low="0.5", high="2")},
        {"test-drift": 6},
    ),
    Wrong(
        "the kernel of the start",
        {"rate": RATE.format(steps="0", rate=SQUARED, **AROUND)},
        {"test-rate": 20},
    ),
    Wrong(
        "the factor of the error in place of that of the loss",
        {"rate": RATE.format(steps="2000", rate=SQUARED.replace(" ** 2", ""), **AROUND)},
        {"test-rate": 20},
    ),
    Wrong(
        "the mean factor of 6000 steps, most of them spent at rounding",
        {"rate": RATE.format(steps="6000", rate="(loss[-1] / loss[0]) ** (1 / 6000)", **AROUND)},
        {"test-rate": 20},
    ),
    Wrong(
        "a right rate with an interval that says nothing",
        {"rate": RATE.format(steps="2000", rate=SQUARED, low="0", high="1")},
        {"test-rate": 8},
    ),
    Wrong(
        "the textbook's momentum 0.9 with a step that it tolerates",
        {"faster": "eta_fast = 3 / np.linalg.eigvalsh(mine.Phi @ mine.Phi.T)[-1]\nbeta_fast = 0.9"},
        {"test-faster": 10},
    ),
    Wrong(
        "eigenvalues of Phi taken for those of G: the roots forgotten",
        {
            "faster": "s = np.linalg.eigvalsh(mine.Phi @ mine.Phi.T)\n"
            "eta_fast = 2.5 / s[-1]\n"
            "beta_fast = ((s[-1] - s[0]) / (s[-1] + s[0])) ** 2"
        },
        {"test-faster": 10},
    ),
)
