"""From depth to equilibrium: one claim, that tying the weights loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from deqbook.claims import chapter, checks, equal, seen, within
from deqbook.linalg import operator_norm, relative
from deqbook.pages.p00_depth_to_equilibrium import lab
from deqbook.runtime import normal

claim = chapter("00_depth_to_equilibrium")

Map = Callable[[Tensor], Tensor]
SIZES = (3, 5, 7, 4, 2)  # of the input and of four layers, no two alike


def _blockwise(sigmas: list[Map], z: Tensor) -> Tensor:
    parts = z.split(list(SIZES[1:]), dim=1)
    return torch.cat([sigma(part) for sigma, part in zip(sigmas, parts)], dim=1)


@claim(
    "nguyen2022.theoremB.0.1",
    "A cell with tied weights computes every layer of an explicit network",
    "thm-tying",
)
def tying(trial, *, missing=0, feedback=0.0):
    layers = len(SIZES) - 1
    weights = [normal(a, b, g=trial.g) for b, a in pairwise(SIZES)]
    biases = [normal(a, g=trial.g) for a in SIZES[1:]]
    sigmas: list[Map] = [torch.tanh, torch.relu, torch.sigmoid, torch.nn.Identity()]
    x = normal(20, SIZES[0], g=trial.g)
    wanted = torch.cat(lab.run_layers(weights, biases, sigmas, x), dim=1)

    W, U, b = lab.stack(weights, biases)
    W[: SIZES[1], -SIZES[-1] :] += feedback
    z = 10 * normal(*wanted.shape, g=trial.g)  # any start
    for _ in range(layers - missing):
        z = _blockwise(sigmas, z @ W.mT + x @ U.mT + b)
    again = _blockwise(sigmas, z @ W.mT + x @ U.mT + b)
    yield within("‖state after L steps - all activations‖ ÷ ‖…‖", relative(z, wanted), 1e-9)
    yield within("residual ‖f(z) - z‖ ÷ ‖z‖ after L steps", relative(again, z), 1e-9)
    output, known = z[:, -SIZES[-1] :], wanted[:, -SIZES[-1] :]
    yield within("‖output - output of the network‖ ÷ ‖…‖", relative(output, known), 1e-9)
    # nilpotent: W^L = 0 although W itself is far from small
    power = operator_norm(torch.linalg.matrix_power(W, layers)) / operator_norm(W) ** layers
    yield equal("‖W^L‖ ÷ ‖W‖^L", power, 0, 1e-9)
    yield seen("‖W‖, which a contraction would need below 1", operator_norm(W), "≥", 1.0)


tying.breaks(
    "one iteration fewer than layers",
    "‖state after L steps",
    "residual",
    "‖output",
    missing=1,
)
tying.breaks(
    "the last layer feeds the first: the cell is no longer block triangular",
    "‖state after L steps",
    "residual",
    "‖output",
    "‖W^L‖",
    feedback=0.5,
)

check = checks(claim)
