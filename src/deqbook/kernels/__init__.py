"""Kernels of equilibrium models: on a sample at finite width, and their wide limits."""

from deqbook.kernels.arccos import cosines, feature_limit, kappa0, kappa1, relu_moments
from deqbook.kernels.hermite import feature_series, hermite, relu_coefficients
from deqbook.kernels.limits import (
    ReLUImplicitLimit,
    implicit_only_limit,
    relu_implicit_limit,
    vanilla_limit,
)
from deqbook.kernels.population import PopulationLimit, population_kernels, population_limit
from deqbook.kernels.regression import kernel_regression
from deqbook.kernels.tangent import (
    Tangents,
    empirical_ntk,
    gram_parts,
    jacobian_ntk,
    parts,
    tangents,
)

__all__ = [
    "PopulationLimit",
    "ReLUImplicitLimit",
    "Tangents",
    "cosines",
    "empirical_ntk",
    "feature_limit",
    "feature_series",
    "gram_parts",
    "hermite",
    "implicit_only_limit",
    "jacobian_ntk",
    "kappa0",
    "kappa1",
    "kernel_regression",
    "parts",
    "population_kernels",
    "population_limit",
    "relu_coefficients",
    "relu_implicit_limit",
    "relu_moments",
    "tangents",
    "vanilla_limit",
]
