r"""Parallel samples: the one thing the kernel theorems forbid in a training set.

gao2022 (Assumption 2) and ling2023 (Assumption 2) ask that no two inputs be parallel: then the
infinite-width Gram matrix is positive definite. Antipodal inputs count as parallel, so the measure
is :math:`|\cos|`. gao2022 adds Gaussian noise to one of two parallel samples; so do we.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["TOL", "Separated", "parallel_pairs", "separate_parallel"]

TOL = 1e-9
r"""Below this :math:`1-|\cos|` two samples are parallel.

Two different 8-bit pictures can hardly be closer than one gray level in one pixel, which is about
4e-8; two multiples of one picture are at about 1e-16. This lies in between.
"""


class Separated(NamedTuple):
    """Samples ``x`` of which no two are parallel, and which rows were ``changed`` to get there.

    >>> x, changed = separate_parallel(torch.eye(3))
    >>> torch.equal(x, torch.eye(3)), changed
    (True, ())
    """

    x: Tensor
    changed: tuple[int, ...]


def parallel_pairs(X: Tensor, tol: float = TOL, *, block: int = 512) -> Tensor:
    r"""Find the rows with :math:`|\cos(x_i,x_j)|>1-\mathrm{tol}`: pairs i < j, an integer (p, 2).

    Exact, yet far from n² in the usual case. For unit vectors and any unit :math:`g`,

    .. math:: \bigl||g^\top x|-|g^\top y|\bigr|\le\min\|x\mp y\|=\sqrt{2-2|\cos(x,y)|},

    so after sorting by :math:`|g^\top x|` only rows within :math:`\sqrt{2\,\mathrm{tol}}` of each
    other need a comparison; these are compared in blocks of ``block`` rows, and no n × n matrix is
    ever formed. ``X`` is (n, d) or (n, channels, height, width). Raises ``ValueError`` for a row
    that is zero or not finite, or ``tol`` outside (0, 1).

    >>> parallel_pairs(torch.tensor([[1.0, 0], [1, 1], [-3, 0]]))  # antipodal counts
    tensor([[0, 2]])
    """
    if not 0 < tol < 1:
        raise ValueError(f"tol must lie strictly between 0 and 1, got {tol}; try {TOL}")
    rows = _unit_rows(X)
    n = len(rows)
    if n < 2:
        return torch.empty(0, 2, dtype=torch.int64)
    probe = torch.randn(
        rows.shape[1], dtype=rows.dtype, generator=torch.Generator().manual_seed(0)
    ).to(rows.device)
    height, order = torch.sort((rows @ (probe / probe.norm())).abs())
    # The allowance covers rounding in the heights; a larger window costs time, never a pair.
    stop = torch.searchsorted(height, height + math.sqrt(2 * tol) + 1e-12, right=True)
    found = []
    for start in range(0, n, block):
        end = min(start + block, n)
        left = rows[order[start:end]]
        right = order[start : int(stop[end - 1])]
        hits = ((left @ rows[right].T).abs() > 1 - tol).nonzero()
        hits = hits[hits[:, 1] > hits[:, 0]]  # both ranges begin at `start`: each pair once
        found.append(torch.stack((order[start + hits[:, 0]], right[hits[:, 1]]), dim=1))
    pairs = torch.cat(found).sort(dim=1).values.cpu()
    return pairs[torch.argsort(pairs[:, 0] * n + pairs[:, 1])]


def separate_parallel(
    X: Tensor, *, tol: float = TOL, noise: float = 1e-3, seed: int = 0, rounds: int = 5
) -> Separated:
    r"""Add Gaussian noise to one sample of every parallel pair, then restore its norm (gao2022).

    The noise is :math:`N(0,(\mathrm{noise}\,\|x\|)^2/d)` per entry, so about ``noise`` of the
    sample's norm; it brings :math:`1-|\cos|` to about :math:`\mathrm{noise}^2/2`. Of a pair the
    later sample is changed. Rows that are in no pair are returned bit for bit. The bundled sets
    have no parallel pair and come back unchanged.

    Raises ``ValueError`` when ``noise`` is too small for ``tol``, or when pairs are left after so
    many ``rounds``.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    >>> x, changed = separate_parallel(X)
    >>> changed, len(parallel_pairs(x)), round(float(x[2].norm()), 6)
    ((2,), 0, 2.0)
    """
    if noise**2 / 2 <= tol:
        raise ValueError(
            f"noise {noise} opens 1 - |cos| by about {noise**2 / 2:.1e}, not more than tol {tol}; "
            f"use noise above {math.sqrt(2 * tol):.1e}"
        )
    generator = torch.Generator().manual_seed(seed)
    x, changed = X, set[int]()
    for _ in range(rounds):
        pairs = parallel_pairs(x, tol)
        if len(pairs) == 0:
            return Separated(x, tuple(sorted(changed)))
        later = pairs[:, 1].unique()
        x = _jitter(x, later, noise, generator)
        changed.update(later.tolist())
    left = parallel_pairs(x, tol)
    if len(left):
        raise ValueError(
            f"{len(left)} pairs of samples are still parallel after {rounds} rounds of noise "
            f"{noise}, first {tuple(left[0].tolist())}; input size d = {x[0].numel()} "
            "(in dimension 1 all samples are parallel); use larger noise"
        )
    return Separated(x, tuple(sorted(changed)))


def _jitter(x: Tensor, rows: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Noise on the given rows, each keeping its norm; the input is left alone."""
    old = x[rows].flatten(1)
    draw = torch.randn(old.shape, dtype=torch.float64, generator=generator).to(old)
    norm = old.norm(dim=1, keepdim=True)
    moved = old + draw * noise * norm / math.sqrt(old.shape[1])
    out = x.clone()
    out[rows] = (moved * norm / moved.norm(dim=1, keepdim=True)).view_as(x[rows])
    return out


def _unit_rows(X: Tensor) -> Tensor:
    """Rows of unit norm in double precision, or an error that names the zero rows."""
    if X.ndim < 2:
        raise ValueError(f"X must hold one sample per row, (n, d); got shape {tuple(X.shape)}")
    rows = X.detach().flatten(1).double()
    norm = rows.norm(dim=1, keepdim=True)
    bad = torch.nonzero(~(norm[:, 0] > 0) | ~norm[:, 0].isfinite())[:, 0].tolist()
    if bad:
        raise ValueError(
            f"rows {bad[:5]}{' …' if len(bad) > 5 else ''} of X have norm zero or not finite, "
            "so no direction; drop them first"
        )
    return rows / norm
