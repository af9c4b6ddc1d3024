"""Loss surfaces of tied networks and of equilibria: Figure 4.4 of nguyen2022, and page 07a."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from deqbook.data.bundled import FOLDER
from deqbook.experiments.declaration import Experiment, Job, NotRun, Statement
from deqbook.experiments.drawing import legend_below, panels
from deqbook.experiments.receipts import Results
from deqbook.experiments.worker import Checkpoint
from deqbook.pages.p07a_training_inside import lab
from deqbook.viz.style import graded

__all__ = ["SEEDS", "SURFACES", "SurfaceRun", "jobs", "run", "shipped"]

SEEDS = (0, 1, 2, 3, 4)
GROUP = "cifar10"


@dataclass(frozen=True)
class SurfaceRun:
    """A tied network of some depth, or (``None``) an equilibrium, and a seed."""

    depth: int | None
    seed: int


def jobs() -> list[Job]:
    """Return every run: four networks on five seeds."""
    return [(GROUP, SurfaceRun(depth, seed)) for seed in SEEDS for depth in lab.DEPTHS]


def run(case: SurfaceRun, checkpoint: Checkpoint) -> dict[str, Any]:
    """Train one network, and measure it by both protocols; too short for checkpoints."""
    depth, seed = case.depth, case.seed
    data, _ = lab.images("cifar10small", 100, 1)
    made = lab.fit(depth, seed)
    protocols = {"epochs": made[-1], "loss": lab.at_loss(made, lab.TARGET)}
    found = {k: asdict(lab.flatness(s, data, depth, seed)) for k, s in protocols.items()}
    return {"losses": [round(s.loss, 6) for s in made], **found}


def shipped() -> Path:
    """Return the file that ships with the package."""
    return FOLDER / "results" / "loss_surfaces.json"


def areas(results: Results, protocol: str) -> dict[str, float]:
    """Return by network the share of the surface that lies less than 1 over its centre."""
    found = {}
    for depth in lab.DEPTHS:
        runs = [r["result"] for r in results.select(GROUP) if r["case"]["depth"] == depth]
        if not runs:
            raise NotRun(f"no network of depth {depth}")
        found["DEQ" if depth is None else f"repeat-{depth}"] = fmean(
            r[protocol]["area"] for r in runs
        )
    return found


def _expands(results: Results) -> tuple[bool, str]:
    found = areas(results, "epochs")
    told = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    return all(b > a for a, b in pairwise(found.values())), f"shares of the plane: {told}"


def _expands_at_loss(results: Results) -> tuple[bool, str]:
    found = areas(results, "loss")
    told = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    return all(b > a for a, b in pairwise(found.values())), f"shares of the plane: {told}"


def _draw(results: Results) -> Figure:
    figure, rows = panels(1, 1, 3.0)
    ax = rows[0][0]
    titles = {"epochs": "after 24 epochs", "loss": f"at training loss {lab.TARGET}"}
    for k, (protocol, title) in enumerate(titles.items()):
        found = areas(results, protocol)
        places = np.arange(len(found)) + 0.36 * k - 0.18
        look = {"color": graded(2)[k]["color"], "hatch": ("", "//")[k], "edgecolor": "white"}
        ax.bar(places, list(found.values()), 0.34, label=title, **look)
    ax.set_xticks(range(len(found)), list(found))
    ax.set_ylabel("share of the plane")
    legend_below(figure, rows, 2)
    return figure


SURFACES = Experiment(
    name="nguyen2022-fig4.4",
    title="Figure 4.4 of nguyen2022: the loss around the minimiser, tied layers and equilibrium",
    source="nguyen2022",
    printed=(
        "Four contour plots of the loss on a plane of two filter-normalised directions: tied "
        "networks that repeat a cell 6, 11 and 18 times, and the equilibrium. The neighbourhood of "
        "small loss grows with the number of repetitions."
    ),
    published="CIFAR-10, 50 epochs, 51 × 51 points; one network of each kind",
    sizes={"book": "100 images of 8 × 8, 24 epochs, 7 × 7 points, 5 seeds"},
    cases={"book": jobs},
    run=run,
    cost=lambda case: 3.0 if case.depth is None else case.depth / 11,
    kept="losses while training; area, rise and sharpness by two protocols",
    statements=(
        Statement(
            "the neighbourhood of small loss grows with the number of repetitions",
            "the share of the plane below centre + 1 grows from each network to the next (means)",
            _expands,
        ),
        Statement(
            "the same among networks that were stopped at one training loss (ours)",
            "the share of the plane below centre + 1 grows from each network to the next (means)",
            _expands_at_loss,
            counts=False,
        ),
    ),
    reason=(
        "The order is all the source claims. These rules are younger than the runs, which page 07a "
        "had shown before."
    ),
    draw=_draw,
    code=("deqbook.experiments.loss_surfaces", "deqbook.pages.p07a_training_inside.lab"),
    differs=(
        "A miniature: a hundred small pictures. At the published size, all of CIFAR-10 and 50 "
        "epochs, an equilibrium takes days on two cores; it was not tried."
    ),
    data=("cifar10small",),
    shipped={"book": shipped()},
)
