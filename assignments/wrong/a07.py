"""Plausible wrong answers to assignment 7, and exactly the points that each must lose.

Each replaces cells of the solution, named by their grade_id. A wrong penalty comes with a training
run that does not use it, so that it is clear what is lost by what. `OWN` names the answers that are
about the student's own numbers, cell by cell: another student's must lose all points of the test.
"""

from __future__ import annotations

from deqbook.course.grading.verdict import Wrong

PENALTY = """
def penalty(W, Z, Q, E):
    n, m = Z.shape
    H = Z @ W.T + Q
    s, d = slope(H) * E, bend(H) * E
    u = s @ W
    {end}
"""
JVP = """
def penalty(W, Z, Q, E):
    n, m = Z.shape
    H = Z @ W.T + Q
    t = E @ W.T
    v = slope(H) * t
    G = (slope(H) * v).T @ E + (bend(H) * t * v).T @ Z
    return (v**2).sum() / (n * m), 2 / (n * m) * G
"""
HELD = """
def pull(w, Z, Q, E):
    H = Z @ w.T + Q
    u = (slope(H) * E) @ w
    return 2 / Z.size * ((slope(H) * E).T @ u + (bend(H) * E * (u @ w.T)).T @ Z)

def jacobians_at(w, X, count):
    Q = X @ w["U"].T + w["b"]
    Z = picard(w["W"], Q, count)
    return Z, slope(Z @ w["W"].T + Q)[:, :, None] * w["W"]

def run(lam):
    rng, w, memory = np.random.default_rng(1), dict(mine.start), {}
    for _ in range(200):
        Q = mine.X @ w["U"].T + w["b"]
        Z = picard(w["W"], Q, 30)
        _, g = loss_and_gradients(w, mine.X, mine.y, Z)
        g["W"] = g["W"] + lam * pull(w["W"], Z, Q, rng.choice([-1.0, 1.0], Z.shape))
        w = adam(w, g, memory, rate=0.03)
    return w

def good(w):
    Z, J = jacobians_at(w, mine.X_test, 100)
    Y, _ = jacobians_at(w, mine.X_test, 101)
    ok = (mine.y_test * (Z @ w["a"] + w["c"]) > 0).mean() > 0.92
    return ok and abs(Y - Z).max() < 1e-8 and (J**2).sum((1, 2)).mean() < 0.12

for lam in (2, 3, 4, 2.5, 3.5, 1.5, 5):
    weights_held = run(lam)
    if good(weights_held) and np.linalg.norm(weights_held["W"], 2) > 1.2:
        break
"""
RADIUS = """
Z, J = jacobians_at(weights_held, mine.X_test, 1000)
radii = {radii}
radius = (np.median(radii), {worst})
"""
FACTOR = """
def equilibrium(s):
    z = np.zeros(8)
    for _ in range(800):
        z = 0.6 * z + 0.4 * sigma(s * mine.R @ z + mine.r)
    return z

def rho(s):
    h = s * mine.R @ equilibrium(s) + mine.r
    return abs(np.linalg.eigvals(slope(h)[:, None] * s * mine.R)).max()
"""
BISECTED = """
low, high = 1.0, 3.0
for _ in range(30):
    s = (low + high) / 2
    low, high = (s, high) if {holds} else (low, s)
factor = low
"""
SETTLES = """
def settles(s):
    z = np.zeros(8)
    for _ in range(200):
        z, old = sigma(s * mine.R @ z + mine.r), z
    return np.linalg.norm(z - old) < 1e-6
"""
AROUND = "factor_between = (factor - 0.02, factor + 0.02)"

OWN = {
    "held": ("weights_held",),
    "radius": ("radius",),
    "capped": ("capped", "worse"),
    "factor": ("factor", "factor_between"),
    "two": ("q_two",),
}
WRONG = (
    Wrong(
        "the slopes held fixed: a gradient without σ''",
        {
            "penalty": PENALTY.format(end="return (u**2).mean(), 2 / (n * m) * s.T @ u"),
            "held": HELD,
        },
        {"test-penalty": 12},
    ),
    Wrong(
        "the mean over states only: a factor m too large",
        {
            "penalty": PENALTY.format(
                end="return (u**2).sum() / n, 2 / n * (s.T @ u + (d * (u @ W.T)).T @ Z)"
            ),
            "held": HELD,
        },
        {"test-penalty": 20},
    ),
    Wrong(
        "Jε in place of Jᵀε: as good on average, another number for these probes",
        {"penalty": JVP, "held": HELD},
        {"test-penalty": 20},
    ),
    Wrong(
        "weights that were never trained",
        {
            "held": HELD.replace("weights_held = run(lam)", "weights_held = dict(mine.start)"),
            "radius": RADIUS.format(
                radii="abs(np.linalg.eigvals(J)).max(axis=1)", worst="radii.max()"
            ),
        },
        {"test-held": 12, "test-radius": 8},
    ),
    Wrong(
        "W set to zero: nothing to solve, and nothing learnt about equilibria",
        {
            "held": HELD.replace(
                "        w = adam(", '        g["W"] = 0 * g["W"]\n        w = adam('
            )
            .replace("dict(mine.start)", '{**mine.start, "W": np.zeros((12, 12))}')
            .replace(' and np.linalg.norm(weights_held["W"], 2) > 1.2', "")
        },
        {"test-held": 12},
    ),
    Wrong(
        "the norm of J in place of its spectral radius",
        {"radius": RADIUS.format(radii="np.linalg.norm(J, 2, axis=(1, 2))", worst="radii.max()")},
        {"test-radius": 8},
    ),
    Wrong(
        "the mean Jacobian's radius in place of the worst input's",
        {
            "radius": RADIUS.format(
                radii="abs(np.linalg.eigvals(J)).max(axis=1)",
                worst="max(np.median(radii), abs(np.linalg.eigvals(J.mean(axis=0))).max())",
            )
        },
        {"test-radius": 4},
    ),
    Wrong(
        "a network that more steps do not hurt",
        {
            "capped": "w, memory = dict(mine.start), {}\n"
            "for _ in range(150):\n"
            "    _, g = loss_and_gradients(w, mine.X, mine.y, "
            'sigma(mine.X @ w["U"].T + w["b"]))\n'
            '    g["W"] = 0 * w["W"]\n'
            '    w["W"] = 0 * w["W"]\n'
            "    w = adam(w, g, memory, rate=0.03)\n"
            "capped, worse = w, 40"
        },
        {"test-capped": 10},
    ),
    Wrong(
        "one over the radius of today: the equilibrium moves, and its slopes with it",
        {"factor": FACTOR + "factor = 1 / rho(1.0)\n" + AROUND},
        {"test-factor": 20},
    ),
    Wrong(
        "stopped too early: just below the factor 200 steps do not settle",
        {"factor": SETTLES + BISECTED.format(holds="settles(s)") + AROUND},
        {"test-factor": 20},
    ),
    Wrong(
        "the slopes of today kept, the weights grown",
        {
            "factor": FACTOR
            + "d = slope(mine.R @ equilibrium(1.0) + mine.r)[:, None]\n"
            + BISECTED.format(holds="abs(np.linalg.eigvals(d * s * mine.R)).max() < 1")
            + AROUND
        },
        {"test-factor": 20},
    ),
    Wrong(
        "a right factor with an interval that says nothing",
        {"factor": FACTOR + BISECTED.format(holds="rho(s) < 1") + "factor_between = (1, 3)"},
        {"test-factor": 8},
    ),
    Wrong(
        "an injection so strong that the units have no choice",
        {"two": "q_two = np.array([3.5, 3.5, 3.5])"},
        {"test-two": 10},
    ),
)
