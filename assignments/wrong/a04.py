"""Plausible wrong answers to assignment 4, and exactly the points that each must lose.

A verifier that lets one of them pass, or takes more than is listed, is a defect; a test runs them
all. Each replaces cells of the solution, named by their grade_id. `OWN` names the answers that are
about the student's own numbers, cell by cell: another student's must lose all points of the test.
"""

from __future__ import annotations

from deqbook.course.grading.verdict import Wrong

DUAL = """
def dual(rho, leak):
    rho = np.clip(rho, -1, 1)
    k0 = (np.pi - np.arccos(rho)) / (2 * np.pi)
    k1 = np.sqrt(1 - rho**2) / (2 * np.pi) + rho * k0
    return {value}, {slope}
"""
GOOD = {"value": "leak * rho + (1 - leak)**2 * k1", "slope": "leak + (1 - leak)**2 * k0"}
#: Right averages under another name, for those whose later tasks are right all the same.
INNER = DUAL.format(**GOOD).replace("def dual", "def pair")
LIMIT = (
    INNER
    + """
def limit_blocks(X, m, s_w, s_u, s_b, leak):
    d = X.shape[1]
    S = s_u**2 * X @ X.T / d + {bias}
    var = {lengths} / (1 - s_w**2 * {half})
    scale = np.sqrt(np.outer(var, var))
    c = S / scale
    for _ in range(200):
        c = s_w**2 * pair(c, leak)[0] + S / scale
    value, slope = pair(c, leak)
    K, P = scale * value, {adjoint}
    return {{"a": {states}, "W": m * K * P, "U": P * (X @ X.T), "b": P}}
"""
)
KEPT = {
    "bias": "s_b**2",
    "lengths": "np.diag(S)",
    "half": "(1 + leak**2) / 2",
    "adjoint": "slope / (1 - s_w**2 * slope)",
    "states": "m * K",
}
#: Tasks that use limit_blocks, done with a right one under another name.
AGAIN = LIMIT.format(**KEPT).replace("def limit_blocks", "def right_blocks")
NUMBERS = "mine.m, mine.s_w, mine.s_u, mine.s_b, mine.leak"
REST = {
    "own": AGAIN + f"scales = (mine.s_w, mine.s_u, mine.s_b, mine.leak)\n"
    f"H_own = sum(right_blocks(mine.X, {NUMBERS}).values())",
}
SMALL = """
def least(theta):
    pair = np.sqrt(5) * np.array([[1, 0, 0, 0, 0], [np.cos(theta), np.sin(theta), 0, 0, 0]])
    B = right_blocks(pair, mine.m, mine.s_w, mine.s_u, mine.s_b, mine.leak)
    return np.linalg.eigvalsh({kernel})[0]

angles = np.{angles}
values = np.array([least(t) for t in angles])
twin_power = np.polyfit(np.log(angles), np.log(values), 1)[0]
twin_constant = values[0] / angles[0] ** twin_power.round()
twin_between = ({low} * twin_constant, {high} * twin_constant)
"""
WHOLE = {"kernel": "sum(B.values())", "angles": "array([1e-4, 1e-3])", "low": 0.98, "high": 1.02}


def twins(**changes: object) -> dict[str, str]:
    """Return the cell of task 4, with other angles, another kernel or another interval."""
    return {"twins": AGAIN + SMALL.format(**{**WHOLE, **changes})}


REST |= twins()
FINITE = """
def finite_blocks(W, U, b, a, X, leak):
    Q = X @ U.T + b
    Z = 0 * Q
    for _ in range(2000):
        Z = np.where(Z @ W.T + Q > 0, 1, leak) * (Z @ W.T + Q)
    S = np.where(Z > 0, 1, {low})
    V = np.array([{adjoint} for s in S])
    G = V @ V.T
    return {{"a": Z @ Z.T, "W": G * (Z @ Z.T), "U": G * (X @ X.T), "b": {bias}}}
"""
RIGHT = {
    "low": "leak",
    "adjoint": "s * np.linalg.solve(np.eye(len(a)) - W.T @ np.diag(s), a)",
    "bias": "G",
}

OWN = {
    "own": ("H_own",),
    "twins": ("twin_power", "twin_constant", "twin_between"),
    "blind": ("X_blind",),
}
WRONG = (
    Wrong(
        "the mixed term counted once: it stands twice in the product",
        {
            "dual": DUAL.format(
                **{
                    **GOOD,
                    "value": "leak**2 * rho + leak * (1 - leak) * rho / 2 + (1-leak)**2 * k1",
                }
            ),
            "limit": LIMIT.format(**KEPT),
        },
        {"test-dual": 9},
    ),
    Wrong(
        "ReLU's averages, scaled to the variance of leaky ReLU",
        {
            "dual": DUAL.format(value="(1 + leak**2) * k1", slope="(1 + leak**2) * k0"),
            "limit": LIMIT.format(**KEPT),
        },
        {"test-dual": 15},
    ),
    Wrong(
        "the slopes mixed linearly, leak + (1 - leak) P(both on)",
        {
            "dual": DUAL.format(**{**GOOD, "slope": "leak + (1 - leak) * k0"}),
            "limit": LIMIT.format(**KEPT),
        },
        {"test-dual": 6},
    ),
    Wrong(
        "all inputs taken to have the length √d, as in the chapter",
        {
            "limit": LIMIT.format(**{**KEPT, "lengths": "(s_u**2 + s_b**2) * np.ones(len(X))"}),
            **REST,
        },
        {"test-limit": 12},
    ),
    Wrong(
        "the variance of ReLU's states: one half in place of (1 + leak²)/2",
        {"limit": LIMIT.format(**{**KEPT, "half": "0.5"}), **REST},
        {"test-limit": 12},
    ),
    Wrong(
        "the adjoint states without feedback",
        {"limit": LIMIT.format(**{**KEPT, "adjoint": "slope"}), **REST},
        {"test-limit": 7.2},
    ),
    Wrong(
        "the kernel of the states per unit, the width forgotten in one block",
        {"limit": LIMIT.format(**{**KEPT, "states": "K"}), **REST},
        {"test-limit": 4.8},
    ),
    Wrong(
        "the bias left out",
        {"limit": LIMIT.format(**{**KEPT, "bias": "0"}), **REST},
        {"test-limit": 12},
    ),
    Wrong(
        "one block left out of the sum",
        {
            "own": "scales = (mine.s_w, mine.s_u, mine.s_b, mine.leak)\n"
            "parts = limit_blocks(mine.X, mine.m, *scales)\n"
            "H_own = parts['a'] + parts['W'] + parts['U']"
        },
        {"test-own": 8},
    ),
    Wrong(
        "ReLU's slopes, 0 below the kink",
        {"finite": FINITE.format(**{**RIGHT, "low": "0"})},
        {"test-finite": 9},
    ),
    Wrong(
        "the adjoint with W in place of its transpose",
        {
            "finite": FINITE.format(
                **{**RIGHT, "adjoint": "s * np.linalg.solve(np.eye(len(a)) - W @ np.diag(s), a)"}
            )
        },
        {"test-finite": 9},
    ),
    Wrong(
        "ones as the block of the bias, as if it were a read-out",
        {"finite": FINITE.format(**{**RIGHT, "bias": "np.ones_like(G)"})},
        {"test-finite": 3},
    ),
    Wrong(
        "angles that one can see: the power is between one and two",
        twins(angles="linspace(0.1, 1, 10)"),
        {"test-twins": 20},
    ),
    Wrong(
        "the kernel of the states in place of the tangent kernel",
        twins(kernel="B['a']"),
        {"test-twins": 20},
    ),
    Wrong(
        "angles so small that only rounding is left",
        twins(angles="array([1e-10, 1e-9])"),
        {"test-twins": 20},
    ),
    Wrong(
        "power and constant right, with an interval that says nothing",
        twins(low=0.5, high=2),
        {"test-twins": 8},
    ),
    Wrong(
        "three antipodal pairs that do not lie in a plane",
        {
            "blind": "third = np.cross(mine.first, mine.second)\n"
            "half = np.array([mine.first, mine.second, third / np.linalg.norm(third)])\n"
            "X_blind = np.vstack([half, -half])"
        },
        {"test-blind": 10},
    ),
    Wrong(
        "dependent inputs without their antipodes",
        {
            "blind": "third = mine.first + mine.second\n"
            "X_blind = np.array([mine.first, mine.second, third / np.linalg.norm(third)])"
        },
        {"test-blind": 10},
    ),
)
