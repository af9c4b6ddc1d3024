r"""The miniature tables: which runs they consist of, at our size and at that of xie2022.

``GROUPS`` names the parts; ``miniature()`` lists what made the result file that ships with the
package, ``full()`` the published experiment. Both are lists of (group, case).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from deqbook.data.bundled import FOLDER
from deqbook.pages.p05c_opteq_images.lab.long_range import Scene, Segmented, segment
from deqbook.pages.p05c_opteq_images.lab.training import CHANNELS, ClassifierRun, Trained, train

__all__ = ["ALPHAS", "GROUPS", "ROUTES", "full", "miniature", "restore", "run", "shipped"]

ALPHAS = (0.01, 0.1, 0.4, 0.8, 1.0)
SEEDS = (0, 1, 2)
ROUTES: dict[str, dict[str, Any]] = {
    "none": {},
    "SAM, ½‖z‖²": {"route": "sam", "regulariser": "half-square"},
    "SAM, 1/(‖z‖²+ε)": {"route": "sam", "regulariser": "inverse"},
    "SAM, F_D": {"route": "sam", "regulariser": "decorrelation"},
    "layer, 1/(‖z‖²+ε)": {"route": "architecture", "regulariser": "inverse", "strength": 0.05},
    "layer, F_D": {"route": "architecture", "regulariser": "decorrelation", "strength": 0.05},
}
"""The six columns of Table 3: without, by selection (SAM), by one more layer."""

GROUPS = {
    "table3": "CIFAR-10, the α grid with six routes (Tables 1a and 3)",
    "mnist": "MNIST, the α grid with three of the routes",
    "strength": "one more proximal layer, λ grows (Table 1a, lower part)",
    "depth": "fewer unrolled steps than K = 20",
    "ball": "the layers projected to the unit ball, and implicit gradients",
    "table1b": "explicit, flowing and monotone networks of the same size (Table 1b)",
    "table2": "labels that are far away (Table 2)",
    "conv": "the convolutional network, an eighth of the published channels",
}

SMALL_CONV = ClassifierRun(
    network="conv",
    block=1,
    m=8,
    features=8,
    widths=CHANNELS,
    divisor=8,
    stride=2,
    epochs=6,
    double=False,
)
"""Channels 2-4-8-16-16 on an 8 × 8 state."""

LIKE_XIE = ClassifierRun(
    network="conv",
    data="cifar10",
    block=1,
    n_train=None,
    n_test=None,
    m=30,
    features=30,
    widths=CHANNELS,
    epochs=200,
    batch=128,
    momentum=0.0,
    drop=0.6,
    every=20,
    double=False,
)
"""The published size. The paper does not tell the channels of the state; 30 give its 199k."""


def miniature() -> list[tuple[str, ClassifierRun | Scene]]:
    """Return every run of the result file that ships."""
    found: list[tuple[str, ClassifierRun | Scene]] = []

    def add(group: str, *cases: ClassifierRun | Scene) -> None:
        found.extend((group, replace(c, seed=s)) for c in cases for s in SEEDS)

    for alpha in ALPHAS:
        add("table3", *(ClassifierRun(alpha=alpha, **route) for route in ROUTES.values()))
    for alpha in ALPHAS:
        three = ("none", "SAM, F_D", "layer, F_D")
        add("mnist", *(ClassifierRun(alpha=alpha, data="mnist10", **ROUTES[r]) for r in three))
    for name, strengths in {"l1": (0.01, 0.05, 0.15, 0.5), "square": (0.01, 0.1, 1, 10)}.items():
        layer = ClassifierRun(route="architecture", regulariser=name)  # type: ignore[arg-type]
        add("strength", *(replace(layer, strength=float(w)) for w in strengths))
    add("depth", *(ClassifierRun(steps=k) for k in (1, 5)))
    add("ball", *(ClassifierRun(alpha=a, radius=1.0) for a in (0.8, 1.0)))
    add("ball", ClassifierRun(implicit=True, radius=0.95))
    add(
        "table1b",
        ClassifierRun(network="perceptron", widths=(46, 46, 32)),
        ClassifierRun(network="ode", widths=(79,)),
        ClassifierRun(network="augmented", m=48, widths=(52,)),
        ClassifierRun(network="monotone", m=43),
    )
    explicit, implicit = Scene("fcn", channels=(14, 16, 16)), Scene("opteq")
    scenes = (explicit, implicit, replace(implicit, steps=4), replace(implicit, steps=1))
    add("table2", *scenes, *(replace(scene, noise=0.1) for scene in scenes[:3]))
    add("conv", SMALL_CONV, replace(SMALL_CONV, radius=1.0))
    add("conv", replace(SMALL_CONV, implicit=True, radius=0.95))
    return found


def full() -> list[tuple[str, ClassifierRun | Scene]]:
    """Return the α grid of Tables 1a and 3 at the published size, one seed, a group for each α."""
    return [
        (f"alpha-{alpha:g}", replace(LIKE_XIE, alpha=alpha, **route))
        for alpha in ALPHAS
        for route in ROUTES.values()
    ]


def run(case: ClassifierRun | Scene) -> Trained | Segmented:
    """Run one case of either kind."""
    return segment(case) if isinstance(case, Scene) else train(case)


def restore(group: str, stored: Mapping[str, Any]) -> ClassifierRun | Scene:
    """Return the case that a result file stores; its lists were tuples."""
    fields: dict[str, Any]
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
    return Scene(**fields) if group == "table2" else ClassifierRun(**fields)


def plain(case: ClassifierRun | Scene | Trained | Segmented) -> dict[str, Any]:
    """Return a case or a result as a result file stores it."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(case).items()}


def shipped() -> Path:
    """Return the file with the results of ``deqbook reproduce opteq-tables``."""
    return FOLDER / "results" / "opteq_tables.json"
