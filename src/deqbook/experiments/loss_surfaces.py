"""Loss surfaces of tied networks and of equilibria: the runs behind the table of page 07a.

``python -m deqbook.experiments.loss_surfaces [file]`` makes the result file anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from deqbook.data.bundled import FOLDER
from deqbook.experiments.receipts import Results, collect
from deqbook.pages.p07a_training_inside import lab

__all__ = ["COMMAND", "SEEDS", "cases", "make", "run", "shipped"]

COMMAND = "python -m deqbook.experiments.loss_surfaces"
SEEDS = (0, 1, 2, 3, 4)


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Return every run: four networks on five seeds."""
    return [("cifar10", {"depth": d, "seed": s}) for s in SEEDS for d in lab.DEPTHS]


def run(case: Mapping[str, Any]) -> dict[str, Any]:
    """Train one network, and measure it by both protocols."""
    depth, seed = case["depth"], case["seed"]
    data, _ = lab.images("cifar10small", 100, 1)
    made = lab.fit(depth, seed)
    protocols = {"epochs": made[-1], "loss": lab.at_loss(made, lab.TARGET)}
    found = {k: asdict(lab.flatness(s, data, depth, seed)) for k, s in protocols.items()}
    return {"losses": [round(s.loss, 6) for s in made], **found}


def shipped() -> Path:
    """Return the file that ships with the package."""
    return FOLDER / "results" / "loss_surfaces.json"


def make(file: Path) -> Results:
    """Run what is missing and write the file; the number of threads would change last digits."""
    torch.set_num_threads(1)

    def each(missing: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[int, Any]]:
        for index, (_, case) in enumerate(missing):
            yield index, run(case)

    return collect(file, COMMAND, cases(), each, said=print)


if __name__ == "__main__":
    print(make(Path(sys.argv[1]) if sys.argv[1:] else shipped()).receipt)
