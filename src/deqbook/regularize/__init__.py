"""Regularisers of equilibria: what a network minimises, and how to make it minimise more.

``objective`` finds the function that a tied layer hides. ``proximal`` changes the architecture,
``sam`` selects among many equilibria, ``features`` holds the functions to be small.
"""

from deqbook.regularize.features import (
    Decorrelation,
    HalfSquaredNorm,
    InverseNorm,
    RankOne,
    Regulariser,
    Zero,
)
from deqbook.regularize.objective import (
    HiddenObjective,
    Minimum,
    NoMinimiser,
    Potential,
    block_minimiser,
    cyclic_shift,
    inclusion_residual,
    nonnegative_qp,
    potential,
)
from deqbook.regularize.proximal import (
    L1,
    Box,
    Group,
    Moreau,
    Proximal,
    SquaredDistance,
    SquaredL2,
    append_gradient,
    append_prox,
    moreau,
)
from deqbook.regularize.sam import Schedule, Selection, Viscosity, Weights, sam, select

__all__ = [
    "L1",
    "Box",
    "Decorrelation",
    "Group",
    "HalfSquaredNorm",
    "HiddenObjective",
    "InverseNorm",
    "Minimum",
    "Moreau",
    "NoMinimiser",
    "Potential",
    "Proximal",
    "RankOne",
    "Regulariser",
    "Schedule",
    "Selection",
    "SquaredDistance",
    "SquaredL2",
    "Viscosity",
    "Weights",
    "Zero",
    "append_gradient",
    "append_prox",
    "block_minimiser",
    "cyclic_shift",
    "inclusion_residual",
    "moreau",
    "nonnegative_qp",
    "potential",
    "sam",
    "select",
]
