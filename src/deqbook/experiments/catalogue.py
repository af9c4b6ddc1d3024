"""All experiments by name, in the order of the gallery."""

from __future__ import annotations

from deqbook.experiments.cells import INITIALISATION, TRAINING
from deqbook.experiments.declaration import Experiment
from deqbook.experiments.loss_surfaces import SURFACES
from deqbook.experiments.ours import BOUND, KERNEL
from deqbook.experiments.tables import TABLES
from deqbook.experiments.widths import DRAWS, GAO2022, GAO2023, LING2023

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        GAO2022,
        GAO2023,
        LING2023,
        INITIALISATION,
        TRAINING,
        SURFACES,
        TABLES,
        KERNEL,
        BOUND,
        DRAWS,
    )
}
