r"""Arc-cosine kernels: the two Gaussian moments of ReLU that every wide limit is made of.

For standard normal :math:`s,t` with correlation :math:`\rho`

.. math:: \kappa_0(\rho)=\mathbb P(s>0,\,t>0)=\frac{\pi-\arccos\rho}{2\pi},\qquad
          \kappa_1(\rho)=\mathbb E[\sigma(s)\sigma(t)]
          =\frac{\sqrt{1-\rho^2}+\rho\,(\pi-\arccos\rho)}{2\pi},

and :math:`\kappa_1'=\kappa_0`. Other variances enter by homogeneity of ReLU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["cosines", "feature_limit", "kappa0", "kappa1", "relu_moments"]


def kappa0(rho: Tensor) -> Tensor:
    r"""Return :math:`\kappa_0(\rho)=(\pi-\arccos\rho)/2\pi`, the chance that both units are on.

    ``rho`` has any shape. ``ValueError`` where an entry leaves [-1, 1] by more than rounding.

    >>> kappa0(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)).round(decimals=3).tolist()
    [0.25, 0.333, 0.5]
    """
    return (math.pi - torch.arccos(_clipped(rho))) / (2 * math.pi)


def kappa1(rho: Tensor) -> Tensor:
    r"""Return :math:`\kappa_1(\rho)=(\sqrt{1-\rho^2}+\rho(\pi-\arccos\rho))/2\pi`.

    It is :math:`\mathbb E[\sigma(s)\sigma(t)]`, and :math:`\kappa_1'=\kappa_0`. ``rho`` has any
    shape. ``ValueError`` where an entry leaves [-1, 1] by more than rounding.

    >>> rho = torch.tensor([0.0, 1.0], dtype=torch.float64)
    >>> kappa1(rho).round(decimals=4).tolist()  # 1/2π and 1/2
    [0.1592, 0.5]
    """
    rho = _clipped(rho)
    # (1 - ρ)(1 + ρ) keeps the digits that 1 - ρ² would cancel near ±1
    root = ((1 - rho) * (1 + rho)).sqrt()
    return (root + rho * (math.pi - torch.arccos(rho))) / (2 * math.pi)


def _clipped(rho: Tensor) -> Tensor:
    """Clip what rounding has pushed out of [-1, 1]; refuse what rounding cannot explain."""
    excess = float((rho.detach().abs() - 1).amax()) if rho.numel() else 0.0
    if excess > math.sqrt(torch.finfo(rho.dtype).eps):
        raise ValueError(
            f"a correlation lies in [-1, 1], got one of modulus {1 + excess:.6g}: "
            "divide the covariance by both standard deviations."
        )
    return rho.clamp(-1, 1)


def cosines(cross: Tensor, var1: Tensor, var2: Tensor) -> Tensor:
    r"""Return :math:`\rho_{ij}=C_{ij}/\sqrt{v_iw_j}`, and 0 where a variance vanishes.

    ``cross`` is C (n, k), ``var1`` is v (n,) and ``var2`` is w (k,), or all three are 0-d.
    ``ValueError`` for other shapes and for a negative variance.

    What is within a few units of rounding of ±1 becomes ±1. A Gram matrix cannot tell such points
    from parallel ones, and :math:`\kappa_0`, which leaves 1 like a square root, would turn the
    rounding of a diagonal into an error of 1e-8.

    >>> cosines(torch.tensor([[6.0, 0.0]]), torch.tensor([4.0]), torch.tensor([9.0, 0.0])).tolist()
    [[1.0, 0.0]]
    """
    scale = _scale(cross, var1, var2)
    rho = torch.where(scale > 0, cross / scale.clamp(min=torch.finfo(scale.dtype).tiny), 0.0)
    parallel = rho.abs() >= 1 - 16 * torch.finfo(rho.dtype).eps
    return torch.where(parallel & (rho.abs() < 1 + 1e-6), rho.sign(), rho)


def relu_moments(cross: Tensor, var1: Tensor, var2: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\mathbb E[\sigma(s_i)\sigma(t_j)]` and :math:`\mathbb P(s_i>0,\,t_j>0)`.

    ``cross`` (n, k) holds :math:`\mathbb E[s_it_j]`, ``var1`` (n,) and ``var2`` (k,) the variances;
    three numbers (0-d tensors) are one pair. With
    :math:`\rho=C_{ij}/\sqrt{v_iw_j}` they are :math:`\sqrt{v_iw_j}\,\kappa_1(\rho)` and
    :math:`\kappa_0(\rho)`; a variable without variance is 0, so its unit is never on.
    ``ValueError`` as for ``cosines``.

    >>> product, both = relu_moments(*torch.tensor([4.0, 4.0, 4.0]))  # s = t of variance 4
    >>> float(product), float(both)
    (2.0, 0.5)
    """
    scale, rho = _scale(cross, var1, var2), cosines(cross, var1, var2)
    return scale * kappa1(rho), torch.where(scale > 0, kappa0(rho), 0.0)


def _scale(cross: Tensor, var1: Tensor, var2: Tensor) -> Tensor:
    """Return the product of the two standard deviations for every entry of ``cross``."""
    if cross.shape != (*var1.shape, *var2.shape):
        raise ValueError(
            f"cross must have a row per entry of var1 and a column per entry of var2: expected "
            f"{(*var1.shape, *var2.shape)}, got {tuple(cross.shape)}."
        )
    least = min(float(v.detach().min()) if v.numel() else 0.0 for v in (var1, var2))
    if not least >= 0:
        raise ValueError(f"variances must be at least 0, got {least:.6g}.")
    # √(v·v) is v to the last digit, √v·√v is not
    return (var1[:, None] * var2 if cross.ndim == 2 else var1 * var2).sqrt()


def feature_limit(X: Tensor, X2: Tensor | None = None) -> Tensor:
    r"""Return :math:`G^\infty_{ij}=\|x_i\|\|x_j\|\,\kappa_1(\cos\angle(x_i,x_j))`.

    ``X`` is (n, d), ``X2`` (p, d) or None for X; the result is (n, p). It is the limit of
    :math:`\phi_i^\top\phi_j` for :math:`\phi=\sigma(Ux)/\sqrt m` with standard normal U
    (gao2022.lemma3.3); the diagonal is :math:`\tfrac12\|x_i\|^2`.

    >>> feature_limit(torch.tensor([[3.0, 0.0], [0.0, 1.0]])).diagonal().tolist()
    [4.5, 0.5]
    """
    other = X if X2 is None else X2
    return relu_moments(X @ other.mT, X.pow(2).sum(1), other.pow(2).sum(1))[0]
