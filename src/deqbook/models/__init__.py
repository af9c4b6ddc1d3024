"""The equilibrium models of the five sources, in the book's notation."""

from deqbook.models.base import EquilibriumModel
from deqbook.models.dense import MonDEQ, ReLUImplicit, VanillaDEQ, monotone_parameters
from deqbook.models.feedforward import (
    factor,
    feedforward_outputs,
    from_feedforward,
    unit_weights,
)
from deqbook.models.opteq import DeepOptEq, OptEq
from deqbook.models.opteq_images import ConvOptEq, DenseOptEq
from deqbook.models.residual import ResidualCell

__all__ = [
    "ConvOptEq",
    "DeepOptEq",
    "DenseOptEq",
    "EquilibriumModel",
    "MonDEQ",
    "OptEq",
    "ReLUImplicit",
    "ResidualCell",
    "VanillaDEQ",
    "factor",
    "feedforward_outputs",
    "from_feedforward",
    "monotone_parameters",
    "unit_weights",
]
