"""Plausible wrong answers to assignment 6, and exactly the points that each must lose.

A verifier that lets one of them pass, or takes more than is listed, is a defect; a test runs them
all. Each replaces cells of the solution, named by their grade_id. `OWN` names the answers that are
about the student's own numbers, cell by cell: another student's must lose all points of the test.
"""

from __future__ import annotations

from deqbook.course.grading.verdict import Wrong

NORM = """
def squared_norm(x, y):
    {sort}
    r = np.exp(-np.diff(x))
    return y[0] ** 2 + ((y[1:] - r * y[:-1]) ** 2 / (1 - r**2)).sum()
"""
SORT = "o = np.argsort(x); x = x[o]; y = y[o]"
DENSE = """
def squared_norm(x, y):
    H = np.exp(-np.abs(x[:, None] - x[None, :]))
    return y @ np.linalg.solve(H, y)
"""
CERTIFICATE = """
def certificate(x, y, kernels, delta):
    n, p = len(x), len(kernels)
    out = []
    for v, s in kernels:
        B = np.sqrt(squared_norm(x / s, y) / v)
        j = max(0, int(np.ceil(np.log2(B))))
        out.append(2 * {radius} * {trace} / n + 3 * np.sqrt(np.log({inside}) / (2 * n)))
    return min(out), int(np.argmin(out))
"""
RADIUS, TRACE, INSIDE = "2**j", "np.sqrt(n * v)", "2 * p * (j + 1) * (j + 2) / delta"
FIT = """
def C(n):
    u = (2 * np.arange(n) + 1 - n) / n
    x = np.sign(u) * np.abs(u) ** mine.crowd
    y = np.sin(3 * x) + mine.kick * np.sign(x) * np.abs(x) ** mine.rough
    return 2 * np.sqrt(squared_norm(x, y) / n){more}
ns = {sizes}
power = np.polyfit(np.log(ns), np.log([C(n) for n in ns]), 1)[0]
power_between = (power - {half}, power + {half})
"""
REUSE = """
w = np.sqrt(np.log(20) / (2 * mine.pictures))
rng = np.random.default_rng(1)
E = rng.binomial(mine.pictures, 0.5, (40000, mine.models)).min(axis=1) / mine.pictures
coverage = {coverage}
coverage_between = (coverage - 0.014, coverage + 0.014)
width_fair = {fair}
"""
TRUE_SHARE = "np.mean(0.5 <= E + w)"
FAIR = "np.sqrt(np.log(mine.models / 0.05) / (2 * mine.pictures))"

OWN = {
    "own": ("own_bound", "own_kernel"),
    "power": ("power", "power_between"),
    "reuse": ("coverage", "coverage_between", "width_fair"),
}
WRONG = (
    Wrong(
        "one minus a square: nothing is left of near inputs",
        {"norm": NORM.format(sort=SORT)},
        {"test-norm": 2.4},
    ),
    Wrong(
        "the matrix after all: neither near inputs nor many, and no power of large samples",
        {"norm": DENSE},
        {"test-norm": 4.8, "test-certificate": 2.4, "test-power": 20},
    ),
    Wrong(
        "the inputs sorted, the labels left where they were",
        {"norm": NORM.format(sort="x = np.sort(x)")},
        {"test-norm": 12, "test-certificate": 12, "test-own": 8},
    ),
    Wrong(
        "the norm itself for the radius: it was read off the sample",
        {"certificate": CERTIFICATE.format(radius="B", trace=TRACE, inside=INSIDE)},
        {"test-certificate": 12, "test-own": 8},
    ),
    Wrong(
        "the choice of the kernel is not paid for",
        {
            "certificate": CERTIFICATE.format(
                radius=RADIUS, trace=TRACE, inside=INSIDE.replace("p * ", "")
            )
        },
        {"test-certificate": 12, "test-own": 8},
    ),
    Wrong(
        "the trace without its root",
        {"certificate": CERTIFICATE.format(radius=RADIUS, trace="n * v", inside=INSIDE)},
        {"test-certificate": 12, "test-own": 8},
    ),
    Wrong(
        "a power fitted to small samples",
        {"power": FIT.format(more="", sizes="[50, 100, 200, 400, 800]", half=0.015)},
        {"test-power": 20},
    ),
    Wrong(
        "the power of the norm, not of the complexity",
        {"power": FIT.format(more=" * np.sqrt(n)", sizes="[10**5, 3 * 10**5]", half=0.015)},
        {"test-power": 20},
    ),
    Wrong(
        "a right power with an interval that says nothing",
        {"power": FIT.format(more="", sizes="[10**5, 3 * 10**5]", half=0.2)},
        {"test-power": 8},
    ),
    Wrong(
        "Hoeffding's inequality taken for an equation",
        {"reuse": REUSE.format(coverage="0.95 ** mine.models", fair=FAIR)},
        {"test-reuse": 10.5},
    ),
    Wrong(
        "counted by simulation, but the probability divided on the wrong side of the logarithm",
        {
            "reuse": REUSE.format(
                coverage=TRUE_SHARE,
                fair="np.sqrt(np.log(1 / 0.05) * mine.models / (2 * mine.pictures))",
            )
        },
        {"test-reuse": 3.5},
    ),
    Wrong(
        "the kernel that remembers and does not compare",
        {"union": "K_two = np.eye(6)"},
        {"test-union": 14},
    ),
    Wrong(
        "the most similar kernel: it likes nearly the signs that the first one likes",
        {"union": "K_two = np.ones((6, 6))"},
        {"test-union": 14},
    ),
)
