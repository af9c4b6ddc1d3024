r"""Hermite polynomials and the series of the feature kernel (gao2022, Appendix A).

The polynomials :math:`h_k=\mathrm{He}_k/\sqrt{k!}` are orthonormal for the Gaussian weight, and for
unit vectors :math:`\mathbb E[h_j(\langle w,x\rangle)h_k(\langle w,x'\rangle)]
=\delta_{jk}\langle x,x'\rangle^k`. An expansion of :math:`\sigma` in them is therefore an expansion
of its kernel in entrywise powers of :math:`XX^\top`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["feature_series", "hermite", "relu_coefficients"]


def hermite(k: int, x: Tensor) -> Tensor:
    r"""Return :math:`h_0(x),\dots,h_k(x)`, stacked in front: shape ``(k + 1, *x.shape)``.

    The recursion is :math:`\sqrt{j+1}\,h_{j+1}=x\,h_j-\sqrt j\,h_{j-1}`.
    """
    h = [torch.ones_like(x), x][: _order(k) + 1]
    for j in range(1, k):
        h.append((x * h[j] - math.sqrt(j) * h[j - 1]) / math.sqrt(j + 1))
    return torch.stack(h)


def relu_coefficients(k: int) -> Tensor:
    r"""Return :math:`a_0,\dots,a_k` with :math:`a_j=\mathbb E[\sigma(t)h_j(t)]`.

    :math:`a_0=1/\sqrt{2\pi}`, :math:`a_1=\tfrac12`, no odd one after that, and for even
    :math:`j\ge2` :math:`a_j=(-1)^{j/2-1}(j-3)!!/\sqrt{2\pi j!}` (gao2022.lemmaA.7). From one even
    coefficient to the next the factor is :math:`-(j-1)/\sqrt{(j+1)(j+2)}`.
    """
    a = torch.zeros(_order(k) + 1, dtype=torch.float64)
    a[0] = 1 / math.sqrt(2 * math.pi)
    if k >= 1:
        a[1] = 0.5
    for j in range(0, k - 1, 2):
        a[j + 2] = -a[j] * (j - 1) / math.sqrt((j + 1) * (j + 2))
    return a


def feature_series(X: Tensor, k: int) -> Tensor:
    r"""Return :math:`\sum_{j\le k}a_j^2(XX^\top)^{\circ j}`, for unit rows (gao2022.lemmaA.7).

    It tends to ``feature_limit(X)``: geometrically off the diagonal, like :math:`k^{-3/2}` on it.
    """
    off = float((X.norm(dim=1) - 1).abs().max())
    if not off <= math.sqrt(torch.finfo(X.dtype).eps):
        raise ValueError(
            f"the series is for unit vectors, and a norm differs from 1 by {off:.3g}: "
            "divide every row by its norm."
        )
    gram = X @ X.mT
    total = torch.zeros_like(gram)
    for weight in relu_coefficients(k).flip(0).tolist():  # Horner's rule, in every entry
        total = total * gram + weight**2
    return total


def _order(k: int) -> int:
    if k < 0:
        raise ValueError(f"the order must be at least 0, got {k}.")
    return k
