"""Regression with a kernel: where gradient flow with a frozen kernel ends."""

from __future__ import annotations

import torch
from torch import Tensor

from deqbook.linalg import symmetric_part

__all__ = ["kernel_regression"]


def kernel_regression(K: Tensor, y: Tensor, K_test: Tensor, *, ridge: float = 0.0) -> Tensor:
    r"""Return :math:`K_{\mathrm{test}}(K+\mathrm{ridge}\,I)^{-1}y`, by the eigenvectors of K.

    ``K`` (n, n) is the kernel on the training inputs, ``K_test`` (p, n) the kernel between test and
    training inputs, ``y`` (n,) or (n, k). Without a ridge it is what gradient flow from the zero
    function tends to when the tangent kernel stays what it is (gao2023.lemma4.2).
    ``ValueError`` where the shapes do not agree, ``ridge`` is negative, K is not symmetric, or
    K with its ridge is singular to working precision.

    >>> K, y = torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([2.0, 4.0])
    >>> [kernel_regression(K, y, K, ridge=r).round(decimals=3).tolist() for r in (0.0, 1.0)]
    [[2.0, 4.0], [1.0, 3.0]]
    """
    n = len(y)
    if K.shape != (n, n) or K_test.ndim != 2 or K_test.shape[1] != n:
        raise ValueError(
            f"with {n} labels K must be ({n}, {n}) and K_test (p, {n}): test inputs in rows, "
            f"training inputs in columns; got {tuple(K.shape)} and {tuple(K_test.shape)}."
        )
    if ridge < 0:
        raise ValueError(f"ridge must be at least 0, got {ridge!r}.")
    gap, size = float((K - K.mT).abs().max()), float(K.abs().max())
    if not gap <= 1e-6 * size:
        raise ValueError(f"K differs from its transpose by {gap:.3g}: it is not a kernel.")
    values, vectors = torch.linalg.eigh(symmetric_part(K))
    values = values + ridge
    least, largest = float(values[0]), float(values[-1])
    if not least > n * torch.finfo(K.dtype).eps * largest:
        raise ValueError(
            f"K is singular to working precision: its eigenvalues run from {least:.3g} to "
            f"{largest:.3g}. Drop repeated (or parallel) inputs, or pass a ridge."
        )
    solved = (vectors / values) @ (vectors.mT @ y)
    return K_test @ solved
