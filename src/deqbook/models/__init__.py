"""The equilibrium models of the five sources, in the book's notation."""

from deqbook.models.base import EquilibriumModel
from deqbook.models.dense import MonDEQ, ReLUImplicit, VanillaDEQ, monotone_parameters
from deqbook.models.opteq import DeepOptEq, OptEq
from deqbook.models.residual import ResidualCell

__all__ = [
    "DeepOptEq",
    "EquilibriumModel",
    "MonDEQ",
    "OptEq",
    "ReLUImplicit",
    "ResidualCell",
    "VanillaDEQ",
    "monotone_parameters",
]
