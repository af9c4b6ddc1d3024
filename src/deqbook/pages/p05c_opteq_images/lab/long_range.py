r"""A label that is far away: why an implicit backbone can segment better (xie2022, Table 2, small).

A picture has bands of three rows. In its first column each band carries a mark, +1 or -1;
everything else is blank, or noise. Every pixel is to be labelled with the mark of its row. A
convolutional network of three layers sees three pixels far, so beyond that it can only guess. Deep
OptEq applies its three layers again and again, and the mark travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deqbook.implicit import Unroll
from deqbook.pages.p05c_opteq_images.lab.baselines import FCN
from deqbook.pages.p05c_opteq_images.lab.networks import ConvOptEq
from deqbook.runtime import generator, normal, signs


@dataclass(frozen=True)
class Scene:
    """One run: the network, its size, the pictures, the training."""

    network: Literal["fcn", "opteq"] = "opteq"
    height: int = 12
    width: int = 12
    channels: tuple[int, ...] = (8, 10, 10)
    m: int = 10
    features: int = 6
    alpha: float = 0.8
    steps: int = 8
    noise: float = 0.0
    updates: int = 200
    batch: int = 16
    step: float = 5e-3
    seed: int = 0
    double: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the run."""
        return torch.float64 if self.double else torch.float32


@dataclass(frozen=True)
class Segmented:
    """What a run leaves: the loss of every update, and the test accuracy of every column."""

    loss: tuple[float, ...]
    columns: tuple[float, ...]
    parameters: int


def pictures(scene: Scene, n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw pictures (n, 1, height, width) and labels (n, height, width) in {0, 1}."""
    if scene.height % 3:
        raise ValueError(f"the height must be a multiple of three rows, got {scene.height}.")
    marks = signs(n, scene.height // 3, g=g, dtype=scene.dtype).repeat_interleave(3, dim=1)
    x = scene.noise * normal(n, 1, scene.height, scene.width, g=g, dtype=scene.dtype)
    x[:, 0, :, 0] = marks
    return x, (marks > 0).long()[:, :, None].expand(-1, -1, scene.width).contiguous()


def reach(scene: Scene) -> int:
    """Return how many columns away from a mark a pixel can be and still see it."""
    layers = len(scene.channels)
    if scene.network == "fcn":
        return layers
    # Extractor and injection see one pixel each. From the zero state the first layer adds one (its
    # adjoint), and every later layer two.
    return 2 + 1 + 2 * (layers * scene.steps - 1)


def build(scene: Scene) -> nn.Module:
    """Return the network at its initialisation, with an output for each of two labels per pixel."""
    if scene.network == "fcn":
        return FCN(1, scene.channels, 2, seed=scene.seed, dtype=scene.dtype)
    return ConvOptEq.init(
        scene.m,
        (scene.height, scene.width),
        channels=scene.channels,
        features=scene.features,
        colours=1,
        k=2,
        pool=0,
        alpha=scene.alpha,
        seed=scene.seed,
        dtype=scene.dtype,
    )


def outputs(scene: Scene, model: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs of every pixel; deep OptEq takes its unrolled steps from 0."""
    if isinstance(model, ConvOptEq):
        return model(x, adjoint=Unroll(scene.steps))
    return model(x)


def segment(scene: Scene, *, tests: int = 100) -> Segmented:
    """Train by Adam on fresh pictures, then test on new ones, column by column."""
    model, g = build(scene), generator(scene.seed + 30_000)
    optimiser = torch.optim.Adam(model.parameters(), lr=scene.step)
    loss = []
    for _ in range(scene.updates):
        x, y = pictures(scene, scene.batch, g)
        optimiser.zero_grad()
        value = F.cross_entropy(outputs(scene, model, x), y)
        value.backward()
        optimiser.step()
        loss.append(float(value.detach()))
    x, y = pictures(scene, tests, generator(scene.seed + 40_000))
    with torch.no_grad():
        right = (outputs(scene, model, x).argmax(1) == y).double()
    columns = right.mean(dim=(0, 1)).tolist()
    return Segmented(tuple(loss), tuple(columns), sum(p.numel() for p in model.parameters()))
