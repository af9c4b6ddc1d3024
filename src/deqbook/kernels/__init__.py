"""Kernels of equilibrium models: the tangent kernel on a sample."""

from deqbook.kernels.tangent import (
    Tangents,
    empirical_ntk,
    gram_parts,
    jacobian_ntk,
    parts,
    tangents,
)

__all__ = ["Tangents", "empirical_ntk", "gram_parts", "jacobian_ntk", "parts", "tangents"]
