"""Plausible wrong answers to assignment 0, and exactly the points that each must lose.

A verifier that lets one of them pass, or takes more than is listed, is a defect; a test runs them
all. Each replaces cells of the solution, named by their grade_id. `OWN` names the answers that are
about the student's own numbers, cell by cell: another student's must lose all points of the test.
"""

from __future__ import annotations

from deqbook.course.grading.verdict import Wrong

FOLD = """
def fold(weights, outs, biases):
    L = len(biases)
    sizes = [len(b) for b in biases]
    at = np.concatenate([[0], np.cumsum(sizes)])
    m, d = at[-1], outs[0].shape[0]
    W, U = np.zeros((m, m)), np.zeros((m, d))
    for i in range(L):
        if {sees_input}:
            U[at[i]:at[i + 1]] = weights[i]
        for j in range({first}, i):
            W[at[i]:at[i + 1], at[j]:at[j + 1]] = weights[i] @ outs[j]
    V = np.hstack(outs)
    {last}
    return W, U, np.concatenate(biases), V
"""
SLOPE = """
def state_and_slope(W, Q, s, depth):
    Z, dZ = 0 * Q, 0 * Q
    for _ in range(depth):
        p = s * Z @ {W} + Q
        dp = {dp}
        {before}
        Z = p / (1 + abs(p))
        dZ = dp * (1 - abs({at})) ** 2
    return Z, dZ
"""
TRAIN = """
s_own = 1.0
for _ in range(30):
    Z, dZ = state_and_slope(mine.W, mine.Q, s_own, {depth})
    s_own -= ((Z @ mine.a).{total}() - mine.target) / (dZ @ mine.a).{total}()
"""
PATH = """
z, walk = np.zeros(6), []
for _ in range(3000):
    walk.append(z)
    z = np.maximum(mine.V @ z + mine.v, 0)
norm = np.linalg.norm
residual = np.array([norm(b - a) / norm(b) for a, b in zip(walk, walk[1:])])
away = np.array([norm(a - walk[-1]) / norm(walk[-1]) for a in walk])
"""
INTERVAL = "\nlayers_50_between = (layers_50 - 9, layers_50 + 9)"

OWN = {
    "strength": ("s_own",),
    "soon": ("layers_3",),
    "late": ("layers_50", "layers_50_between"),
    "far": ("W_far", "q_far"),
}
WRONG = (
    Wrong(
        "a block hears the one before it alone: right for two blocks",
        {"fold": FOLD.format(sees_input="True", first="max(i - 1, 0)", last="pass")},
        {"test-fold": 10},
    ),
    Wrong(
        "the input enters the first block alone, as in an ordinary network",
        {"fold": FOLD.format(sees_input="i == 0", first="0", last="pass")},
        {"test-fold": 16},
    ),
    Wrong(
        "the output is read off the last block alone",
        {"fold": FOLD.format(sees_input="True", first="0", last="V[:, : at[-2]] = 0")},
        {"test-fold": 4},
    ),
    Wrong(
        "the derivative through the state is forgotten: s acts in the last layer alone",
        {
            "slope": SLOPE.format(W="W.T", dp="Z @ W.T", before="", at="Z"),
            "strength": "s_own = 1.0\nfor _ in range(300):\n"
            "    Z, dZ = state_and_slope(mine.W, mine.Q, s_own, 3000)\n"
            "    s_own -= 0.1 * ((Z @ mine.a).mean() - mine.target) / (dZ @ mine.a).mean()",
        },
        {"test-slope": 10.5},
    ),
    Wrong(
        "the slope of the layer is taken at the state that enters it",
        {"slope": SLOPE.format(W="W.T", dp="Z @ W.T + s * dZ @ W.T", before="old = Z", at="old")},
        {"test-slope": 10.5},
    ),
    Wrong(
        "rows multiplied by W instead of its transpose",
        {
            "slope": SLOPE.format(W="W", dp="Z @ W + s * dZ @ W", before="", at="Z"),
            "strength": TRAIN.format(depth=3000, total="mean"),
        },
        {"test-slope": 15, "test-strength": 10},
    ),
    Wrong(
        "trained with sixteen layers: another network than the one that is run",
        {"strength": TRAIN.format(depth=16, total="mean")},
        {"test-strength": 10},
    ),
    Wrong(
        "the sum over the samples in place of the mean",
        {"strength": TRAIN.format(depth=3000, total="sum")},
        {"test-strength": 10},
    ),
    Wrong(
        "the residual in place of the error",
        {
            "soon": PATH + "layers_3 = int(np.flatnonzero(residual > 1e-3)[-1]) + 1",
        },
        {"test-soon": 5},
    ),
    Wrong(
        "a state that is not the equilibrium yet, taken for it",
        {
            "soon": PATH + "rest = walk[100]\nlayers_3 = next(\n"
            "    k for k, z in enumerate(walk) if norm(z - rest) <= 1e-3 * norm(rest))",
        },
        {"test-soon": 5},
    ),
    Wrong(
        "the slope of the first layers, before the last unit has become active",
        {
            "late": PATH + "factor = (away[12] / away[4]) ** (1 / 8)\n"
            "layers_50 = np.log(1e-50) / np.log(factor)" + INTERVAL
        },
        {"test-late": 15},
    ),
    Wrong(
        "the spectral radius of V, silent units and all",
        {
            "late": PATH + "factor = abs(np.linalg.eigvals(mine.V)).max()\n"
            "layers_50 = abs(np.log(1e-50) / np.log(factor))" + INTERVAL
        },
        {"test-late": 15},
    ),
    Wrong(
        "the right factor, and the layers before it counts forgotten",
        {
            "late": PATH + "J = (walk[-1] > 0)[:, None] * mine.V\n"
            "factor = abs(np.linalg.eigvals(J)).max()\n"
            "layers_50 = np.log(1e-50) / np.log(factor)" + INTERVAL
        },
        {"test-late": 15},
    ),
    Wrong(
        "a right depth with an interval that says nothing",
        {
            "late": PATH + "factor = away[400] / away[399]\n"
            "layers_50 = 400 + np.log(1e-50 / away[400]) / np.log(factor)\n"
            "layers_50_between = (0, 10000)"
        },
        {"test-late": 6},
    ),
    Wrong(
        "a symmetric matrix: it settles, and every layer brings it nearer",
        {
            "far": "w = mine.trace / 2\nW_far = np.array([[w, 0.1], [0.1, w]])\n"
            "q_far = np.array([1.0, 1.0])"
        },
        {"test-far": 15},
    ),
    Wrong(
        "excitation in place of inhibition: the state grows to its equilibrium from below",
        {
            "far": "w = mine.trace / 2\nW_far = np.array([[w, 2.0], [0.01, w]])\n"
            "q_far = np.array([0.1, 1.0])"
        },
        {"test-far": 15},
    ),
)
