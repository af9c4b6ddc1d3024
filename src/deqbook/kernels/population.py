r"""The population kernel of the vanilla DEQ: infinite width first, then infinite depth.

Let every layer of :math:`z^{(\ell)}=\sigma(W^{(\ell)}z^{(\ell-1)}+U^{(\ell)}x)`, :math:`z^{(0)}=0`,
draw its own weights, entries of variance :math:`2\sigma_w^2/m` and :math:`2/d`. As the width grows,
:math:`\tfrac1mz_i^{(\ell)}\cdot z_j^{(\ell)}\to K^{(\ell)}_{ij}` with (ling2023, Definition 1)

.. math:: \Lambda=\sigma_w^2K^{(\ell-1)}+S,\qquad
          K^{(\ell)}_{ij}=\sqrt{\Lambda_{ii}\Lambda_{jj}}\,Q(\cos\theta_{ij}),\qquad
          \cos\theta_{ij}=\frac{\Lambda_{ij}}{\sqrt{\Lambda_{ii}\Lambda_{jj}}},

:math:`K^{(0)}=0`, :math:`S=\tfrac1dXX^\top` and :math:`Q=2\kappa_1`. For :math:`\sigma_w^2<1` it
converges to the kernel of the equilibrium (Theorem 3). The diagonal goes its own way,
:math:`K^{(\ell)}_{ii}=S_{ii}(1-\sigma_w^{2\ell})/(1-\sigma_w^2)`, so a block between two samples
needs only the diagonals of S for both.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from deqbook.kernels.arccos import cosines, kappa0, kappa1

__all__ = ["PopulationLimit", "population_limit"]

Diagonals = tuple[Tensor, Tensor]


class PopulationLimit(NamedTuple):
    r"""The kernel K of infinite depth and the :math:`\cos\theta` that it is made of.

    Both have the shape of the S given to ``population_limit``.

    >>> K, cosine = population_limit(torch.ones(1, 1), variance=0.75)
    >>> float(K), float(cosine)  # S / (1 - σ_w²) on the diagonal
    (4.0, 1.0)
    """

    K: Tensor
    cosine: Tensor


def population_limit(
    S: Tensor,
    variance: float,
    *,
    S_diag: Diagonals | None = None,
    method: Literal["newton", "picard"] = "newton",
) -> PopulationLimit:
    r"""Return :math:`K=\lim K^{(\ell)}` and :math:`\cos\theta` (ling2023.theorem3).

    ``variance`` is :math:`\sigma_w^2`. For a block S (n, p) between two samples pass ``S_diag``,
    the diagonals of S for its rows (n,) and for its columns (p,); without it S is square and
    symmetric, and has them itself.

    Every entry on its own solves :math:`c=\sigma_w^2Q(c)+(1-\sigma_w^2)\hat S` with
    :math:`\hat S_{ij}=S_{ij}/\sqrt{S_{ii}S_{jj}}`; then
    :math:`K_{ij}=\sqrt{S_{ii}S_{jj}}\,Q(c)/(1-\sigma_w^2)`. Picard's iteration contracts by
    :math:`\sigma_w^2`. The residual is increasing and concave in c and negative at
    :math:`c=\hat S`, so Newton's method climbs from there to the root and cannot overshoot.

    ``ValueError`` where ``variance`` is outside [0, 1), ``method`` is unknown, or S is no Gram
    matrix and comes without ``S_diag``; ``RuntimeError`` where the iteration does not settle, as
    Picard's near :math:`\sigma_w^2=1`.

    >>> S = torch.eye(2, dtype=torch.float64)  # orthogonal inputs get correlated states
    >>> population_limit(S, variance=0.5).cosine.round(decimals=3).tolist()
    [[1.0, 0.217], [0.217, 1.0]]
    """
    if not 0 <= variance < 1:
        raise ValueError(
            f"variance is σ_w² and must lie in [0, 1), got {variance!r}: from 1 on the states "
            "grow with depth and there is no limit."
        )
    rows, columns = _diagonals(S, S_diag)
    start = cosines(S, rows, columns)
    c = _root(start, variance, newton=_is_newton(method))
    scale = (rows[:, None] * columns).sqrt()
    return PopulationLimit(scale * 2 * kappa1(c) / (1 - variance), c)


def _root(start: Tensor, variance: float, *, newton: bool) -> Tensor:
    """Solve c = σ_w² Q(c) + (1 - σ_w²) start in every entry, from c = start upwards."""
    c, tol = start, 8 * torch.finfo(start.dtype).eps
    residual = start
    for _ in range(100 if newton else 10_000):
        residual = 2 * variance * kappa1(c) + (1 - variance) * start - c
        step = residual / (1 - 2 * variance * kappa0(c)) if newton else residual
        c = (c + step).clamp(max=1)
        if not bool((residual.abs() > tol).any()):
            return c
    raise RuntimeError(
        f"the residual of cosθ is still {float(residual.abs().max()):.3g} with "
        f"σ_w² = {variance!r}; Picard's iteration gains a factor σ_w² a step, use method='newton'."
    )


def _is_newton(method: str) -> bool:
    if method not in ("newton", "picard"):
        raise ValueError(f"method must be 'newton' or 'picard', got {method!r}.")
    return method == "newton"


def _diagonals(S: Tensor, S_diag: Diagonals | None) -> Diagonals:
    if S_diag is not None:
        return S_diag
    if S.ndim != 2 or S.shape[0] != S.shape[1]:
        raise ValueError(
            f"S is {tuple(S.shape)}, a block between two samples: pass S_diag, the diagonals of S "
            "for the rows and for the columns."
        )
    gap = float((S - S.mT).abs().max())
    if gap > 1e-6 * float(S.abs().max()):
        raise ValueError(
            f"S differs from its transpose by {gap:.3g}, so it is not a Gram matrix; for a block "
            "between two samples pass S_diag."
        )
    return S.diagonal(), S.diagonal()
