"""Plausible wrong answers to assignment 2, and exactly the points that each must lose.

A verifier that lets one of them pass, or takes more than is listed, is a defect; a test runs them
all. Each replaces cells of the solution, named by their grade_id. `OWN` names the answers that are
about the student's own numbers, cell by cell: another student's must lose all points of the test.
"""

from __future__ import annotations

from deqbook.course.grading.verdict import Wrong

PULL = """
def pull(A, W, gamma, Q, Z, V):
    D = {slopes}
    S = D * V
    in_W = gamma * S.T @ (A @ Z)
    return gamma * {back} @ S @ W, {in_W}, {factor}(S * (A @ Z @ W.T)).sum(), S
"""
AT_PRE = "1 - np.tanh(gamma * A @ Z @ W.T + Q) ** 2"
ECHOES = """
Z = np.zeros((7, 3))
for _ in range({settle}):
    Z = np.tanh(mine.gamma * mine.A @ Z @ mine.W.T + mine.Q)
V, found = Z - mine.Y, []
for _ in range({count}):
    V, _, t, _ = pull(mine.A, mine.W, mine.gamma, mine.Q, Z, V)
    found.append(t)
echoes_own, slope_own = np.array(found[:8]), sum(found)
"""
SECOND = """
def second(W, q, y, p):
    z = np.zeros(len(q))
    for _ in range(2000):
        z = np.tanh(W @ z + q)
    D, I = np.diag(1 - z**2), np.eye(len(q))
    v = np.linalg.solve(I - W.T @ D, z - y)
    dz = np.linalg.solve(I - D @ W, D @ p)
    dD = np.diag(-2 * z * {moves})
    dv = np.linalg.solve(I - {back} @ D, {dv})
    return dz, dv, {Hp}
"""
UPPER = """
def upper(p):
    z = np.ones(3)
    for _ in range(300):
        t = np.tanh(mine.F @ z + mine.q + p * mine.b)
        J = np.diag(1 - t**2) @ mine.F
        if min(z) < 0 or max(abs(np.linalg.eigvals(J))) > 1:
            return None
        z = z + np.linalg.solve(np.eye(3) - J, t - z)
    return z
"""
BISECT = """
low, high = -2.0, 0.0
while high - low > 1e-11:
    p = (low + high) / 2
    if {there}:
        high = p
    else:
        low = p
p_fold = high
p_between = (p_fold - {half}, p_fold + {half})
"""
PICARD = """
def looks_settled(p):
    z = np.ones(3)
    for _ in range(100000):
        new = np.tanh(mine.F @ z + mine.q + p * mine.b)
        if np.linalg.norm(new - z) < 1e-3:
            return min(new) > 0
        z = new
    return False
"""
SLOPES = """
def dy(p):
    z = upper(p)
    D = np.diag(1 - z**2)
    return mine.a @ np.linalg.solve(np.eye(3) - D @ mine.F, D @ mine.b)
"""
CLIMB = """
values = np.array([mine.trace - mine.kappa + 0.001, mine.kappa - 0.001])
vectors = np.array([[0.8, -0.6], [0.6, 0.8]])
W_climb = vectors @ np.diag(values) @ vectors.T
W_climb[0, 1] = W_climb[1, 0]
W_climb[1, 1] = mine.trace - W_climb[0, 0]
y_climb = -vectors @ (np.array([1.0, {second}]) / (vectors.T @ mine.c))
"""

OWN = {
    "echoes": ("echoes_own", "slope_own"),
    "fold": ("p_fold", "p_between"),
    "blow": ("power", "factor"),
    "climb": ("W_climb", "y_climb"),
}
WRONG = (
    Wrong(
        "a cotangent sent along the edges, not against them",
        {"pull": PULL.format(slopes=AT_PRE, back="A", in_W="in_W", factor="")},
        {"test-pull": 3, "test-echoes": 13},
    ),
    Wrong(
        "the slopes 1 - Z², right at an equilibrium and nowhere else",
        {"pull": PULL.format(slopes="1 - Z**2", back="A.T", in_W="in_W", factor="")},
        {"test-pull": 12},
    ),
    Wrong(
        "the gradient in W transposed",
        {"pull": PULL.format(slopes=AT_PRE, back="A.T", in_W="in_W.T", factor="")},
        {"test-pull": 3},
    ),
    Wrong(
        "the factor γ in the derivative in γ",
        {"pull": PULL.format(slopes=AT_PRE, back="A.T", in_W="in_W", factor="gamma * ")},
        {"test-pull": 3, "test-echoes": 13},
    ),
    Wrong(
        "twelve echoes taken for all of them",
        {"echoes": ECHOES.format(settle=500, count=12)},
        {"test-echoes": 7},
    ),
    Wrong(
        "a state that has not settled",
        {"echoes": ECHOES.format(settle=5, count=500)},
        {"test-echoes": 13},
    ),
    Wrong(
        "the slopes held fixed, as for the ReLU: Gauss and Newton, not the Hessian",
        {"second": SECOND.format(moves="dz", back="W.T", dv="dz", Hp="D @ dv")},
        {"test-second": 14},
    ),
    Wrong(
        "the slopes move in the gradient, and not in the adjoint equation",
        {"second": SECOND.format(moves="dz", back="W.T", dv="dz", Hp="dD @ v + D @ dv")},
        {"test-second": 14},
    ),
    Wrong(
        "the slopes move with p instead of dz",
        {
            "second": SECOND.format(
                moves="p", back="W.T", dv="W.T @ dD @ v + dz", Hp="dD @ v + D @ dv"
            )
        },
        {"test-second": 14},
    ),
    Wrong(
        "W where its transpose belongs, in the second system",
        {
            "second": SECOND.format(
                moves="dz", back="W", dv="W.T @ dD @ v + dz", Hp="dD @ v + D @ dv"
            )
        },
        {"test-second": 14},
    ),
    Wrong(
        "Picard iteration that looks settled below the fold",
        {"fold": UPPER + PICARD + BISECT.format(there="looks_settled(p)", half="4e-5")},
        {"test-fold": 12, "test-blow": 8},
    ),
    Wrong(
        "the right place with an interval that is too wide",
        {"fold": UPPER + BISECT.format(there="upper(p) is not None", half="1e-3")},
        {"test-fold": 4},
    ),
    Wrong(
        "power and factor from a straight line, fitted too far away",
        {
            "blow": SLOPES + "far = np.geomspace(0.01, 0.1, 20)\n"
            "fit = np.polyfit(np.log(far), [np.log(dy(p_fold + d)) for d in far], 1)\n"
            "power, factor = -fit[0], np.exp(fit[1])"
        },
        {"test-blow": 8},
    ),
    Wrong(
        "the right power, the factor from one point that is not near enough",
        {"blow": SLOPES + "power, factor = 0.5, dy(p_fold + 0.01) * 0.1"},
        {"test-blow": 8},
    ),
    Wrong(
        "JFB climbs, and with two terms it is over",
        {"climb": CLIMB.format(second="-0.8")},
        {"test-climb": 15},
    ),
    Wrong(
        "the chapter's rotation, which is not symmetric",
        {
            "climb": "W_climb = np.array([[mine.trace / 2, 0.8], [-0.8, mine.trace / 2]])\n"
            "y_climb = np.array([-1.0, -2.0])"
        },
        {"test-climb": 15},
    ),
    Wrong(
        "both directions pull the same way: short, but never uphill",
        {"climb": CLIMB.format(second="0.5")},
        {"test-climb": 15},
    ),
)
