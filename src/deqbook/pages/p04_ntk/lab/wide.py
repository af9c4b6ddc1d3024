"""Finite networks beside the wide limits of their tangent kernels, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deqbook.kernels import gram_parts, implicit_only_limit, relu_implicit_limit, vanilla_limit
from deqbook.models import ReLUImplicit, VanillaDEQ
from deqbook.runtime import sphere

D = 6  # dimension of the inputs
VARIANCE = 0.4  # σ_w² of the vanilla DEQ
GAMMA = 0.9  # of the other two; the variance that W brings is γ², here 2σ_w²

Blocks = dict[str, Tensor]
Weights = Callable[[Tensor], Tensor]


def skew(W: Tensor) -> Tensor:
    """Return (W-Wᵀ)/√2: entries of the same variance, but Wᵀ is -W."""
    return (W - W.mT) / math.sqrt(2)


def vanilla_pair(seed: int, m: int, draws: int, weights: Weights) -> tuple[list[Blocks], Blocks]:
    """Return the blocks of vanilla DEQs on three inputs, and their limit at this width."""
    X, found = sphere(3, D, seed + 700, radius=math.sqrt(D)), []
    for k in range(draws):
        drawn = VanillaDEQ.init(m, D, variance=VARIANCE, seed=1000 * seed + k)
        model = VanillaDEQ(weights(drawn.W.detach()), drawn.U.detach(), drawn.a.detach())
        found.append(gram_parts(model, X, tol=1e-5))
    return found, vanilla_limit(X, variance=VARIANCE, m=m)


def implicit_pair(seed: int, m: int, draws: int, weights: Weights) -> tuple[list[Blocks], Blocks]:
    """Return the kernel of networks that train W alone, with linear features, and its limit."""
    X, found = sphere(3, D, seed + 700), []
    for k in range(draws):
        model = ReLUImplicit.init_implicit_only(
            m, D, gamma=GAMMA, seed=1000 * seed + k, phi="identity"
        )
        with torch.no_grad():
            model.W.copy_(weights(model.W))
        found.append(gram_parts(model, X, tol=1e-5))
    return found, {"W": implicit_only_limit(X, gamma=GAMMA)}


def relu_pair(seed: int, m: int, draws: int, weights: Weights) -> tuple[list[Blocks], Blocks]:
    """Return the blocks of ReLU implicit networks on three inputs, and their limit."""
    X, found = sphere(3, D, seed + 700), []
    for k in range(draws):
        model = ReLUImplicit.init(m, D, gamma=GAMMA, seed=1000 * seed + k)
        with torch.no_grad():
            model.W.copy_(weights(model.W))
        found.append(gram_parts(model, X, tol=1e-5))
    limit = relu_implicit_limit(X, gamma=GAMMA, samples=100_000, seed=seed)
    return found, dict(limit.blocks)


PAIRS = {"vanilla": vanilla_pair, "implicit layer only": implicit_pair, "all weights": relu_pair}


def scores(found: list[Blocks], limit: Blocks) -> dict[str, float]:
    """Return by block how far the mean of the networks is from the limit, in standard errors.

    Where W and a are trained, the quotient of their blocks is the Gram matrix of the adjoint
    states up to a factor; it is listed too, since it varies less than the blocks themselves.
    """
    result = {}
    for name, (drawn, goal) in _compared(found, limit).items():
        error = drawn.std(0) / math.sqrt(len(drawn))
        result[name] = float(((drawn.mean(0) - goal).abs() / error).max())
    return result


def _compared(found: list[Blocks], limit: Blocks) -> dict[str, tuple[Tensor, Tensor]]:
    pairs = {name: (torch.stack([one[name] for one in found]), limit[name]) for name in limit}
    if {"W", "a"} <= pairs.keys():
        (W, goal), (a, base) = pairs["W"], pairs["a"]
        pairs["W ÷ a"] = W / a, goal / base
    return pairs
