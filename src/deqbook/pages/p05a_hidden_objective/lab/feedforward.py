r"""Feed-forward networks as deep OptEqs (xie2022, Lemmas 1 and 4, corrected, and Lemma 2).

A tied layer multiplies by W before the activation and by :math:`W^\top` after it. Between two
activations stands :math:`W_lW_{l-1}^\top`, so a given matrix has to be factored that way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deqbook.activations import Activation, activation, relu
from deqbook.linalg import operator_norm
from deqbook.models.opteq import DeepOptEq
from deqbook.runtime import generator, normal


def factor(M: Tensor, A: Tensor, *, full_rank: bool = True) -> Tensor:
    r"""Return B with :math:`M=AB^\top`; of full row rank unless ``full_rank`` is False.

    A (p, k) must have rank p, M is (p, r) and B (r, k). The largest rank that B can have is
    :math:`\min(r,\mathrm{rank}M+k-p)`, so rank r takes :math:`k\ge p+r-\mathrm{rank}M`: the
    corrected Lemma 4. With :math:`A=P\,[\Sigma\ 0]\,R^\top`,

    .. math:: B^\top=R\begin{pmatrix}\Sigma^{-1}P^\top M\\ N\end{pmatrix},

    where the rows of N, as many as there is room for, are an orthonormal basis of the kernel of M.
    """
    if M.ndim != 2 or A.ndim != 2 or M.shape[0] != A.shape[0]:
        raise ValueError(
            f"M (p, r) and A (p, k) need the same p, got {tuple(M.shape)} and {tuple(A.shape)}."
        )
    (p, k), r = A.shape, M.shape[1]
    seen = int(torch.linalg.matrix_rank(A))
    if seen < p:
        raise ValueError(
            f"A is ({p}, {k}) but has rank {seen}; its rows must be linearly independent, or some "
            "M have no factor B at all."
        )
    rank = int(torch.linalg.matrix_rank(M))
    if full_rank and k < p + r - rank:
        raise ValueError(
            f"no B of rank {r}: M ({p}, {r}) has rank {rank} and A has {k} columns, so the rank of "
            f"B is at most {rank + k - p}. Use at least {p + r - rank} columns (a wider state)."
        )
    P, sigma, Rt = torch.linalg.svd(A)
    top = (P.mT @ M) / sigma[:, None]
    kernel = torch.linalg.svd(M)[2][rank:]  # (r - rank, r)
    below = M.new_zeros(k - p, r)
    rows = min(k - p, r - rank)
    below[:rows] = kernel[:rows]
    return torch.cat([top, below]).mT @ Rt


def unit_width(Ms: Sequence[Tensor]) -> int:
    """Return max (p + r - rank) over the matrices: the least width with full-rank factors."""
    return max(sum(M.shape) - int(torch.linalg.matrix_rank(M)) for M in Ms)


def unit_weights(Ms: Sequence[Tensor], first: Tensor) -> list[Tensor]:
    r"""Return full-rank factors of a chain of matrices: the corrected Lemma 1.

    :math:`\tilde W_0=` ``first`` and :math:`M_k=\tilde W_k\tilde W_{k-1}^\top`.
    """
    found = [first]
    for M in Ms:
        found.append(factor(M.mT, found[-1]))
    return found


def feedforward_outputs(
    x: Tensor, As: Sequence[Tensor], bs: Sequence[Tensor], *, sigma: str | Activation = relu
) -> Tensor:
    """Return A_{p+1} σ(A_p … σ(A_1 x + b_1) … + b_p) for rows x; the last matrix has no bias."""
    act = activation(sigma)
    for A, b in zip(As[:-1], bs):
        x = act(x @ A.mT + b)
    return x @ As[-1].mT


def from_feedforward(
    As: Sequence[Tensor],
    bs: Sequence[Tensor],
    *,
    m: int | None = None,
    sigma: str | Activation = relu,
    unit_ball: bool = False,
    seed: int = 0,
) -> DeepOptEq:
    r"""Rebuild a feed-forward network as a deep OptEq with the same outputs (Lemma 2).

    Its first layer has :math:`W_1=0`: it erases the state, so the cell is constant and every start
    arrives in one step. The second injects the input, :math:`U_2=A_1`. From then on
    :math:`W_lW_{l-1}^\top=A_{l-1}`, and the read-out is the last factor. ``m`` defaults to the
    least width for which all these :math:`W_l` have full rank.

    In general :math:`\|W_l\|>1`. With ``unit_ball=True`` the network is first rescaled layer by
    layer, which ReLU allows because :math:`\sigma(ct)=c\,\sigma(t)` for c > 0, so that
    :math:`\|W_l\|\le1` for all l; the read-out pays for it.
    """
    act = activation(sigma)
    if len(As) < 2 or len(bs) != len(As) - 1:
        raise ValueError(
            f"p hidden layers (p ≥ 1) are p + 1 matrices and p biases, got {len(As)} and {len(bs)}."
        )
    if unit_ball and act.name != "relu":
        raise ValueError(f"unit_ball needs σ(ct) = c σ(t), which {act.name} does not satisfy.")
    least = max(len(As[0]), unit_width(As[1:-1]) if len(As) > 2 else 0)
    m = least if m is None else m
    if m < least:
        raise ValueError(f"the state width m = {m} is too small; these weights need {least}.")
    kind = As[0].dtype
    rows = torch.linalg.qr(normal(m, m, g=generator(seed), dtype=kind))[0][: len(As[0])]
    Ws, Us, biases, scale = [rows], [As[0]], [bs[0]], 1.0
    for A, b in zip(As[1:-1], bs[1:]):
        shrink = 1.0
        if unit_ball:  # N is orthonormal and orthogonal to the rest: it adds singular values 1
            shrink = max(1.0, operator_norm(factor(A.mT, Ws[-1])))
        scale *= shrink
        Ws.append(factor(A.mT / shrink, Ws[-1]))
        Us.append(A.new_zeros(len(A), As[0].shape[1]))
        biases.append(b / scale)
    V = scale * factor(As[-1].mT, Ws[-1], full_rank=False)
    eraser = rows.new_zeros(1, m)
    return DeepOptEq(
        [eraser, *Ws],
        [rows.new_zeros(1, As[0].shape[1]), *Us],
        [rows.new_zeros(1), *biases],
        V,
        sigma=act,
    )
