"""What chapter 0 stands on: shifts, stacked layers, the progress display."""

from __future__ import annotations

from itertools import pairwise

import torch

from deqbook.pages.p00_depth_to_equilibrium.lab import (
    Progress,
    run_layers,
    shift,
    stack,
)
from deqbook.runtime import generator, normal


def test_a_shift_moves_each_image_by_at_most_a_pixel_and_each_its_own_way() -> None:
    image = torch.zeros(28, 28)
    image[10, 20] = 1
    moved = shift(image.flatten().expand(200, 784), generator(0)).view(200, 28, 28)
    spots = torch.stack(moved.nonzero(as_tuple=True), dim=1)
    assert torch.equal(spots[:, 0], torch.arange(200))  # one pixel each, none lost
    by = spots[:, 1:] - torch.tensor([10, 20])
    assert set(map(tuple, by.tolist())) == {(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)}


def test_stacked_layers_settle_at_all_activations() -> None:
    g = generator(0)
    sizes = (3, 4, 2, 5)
    weights = [normal(b, a, g=g) for a, b in pairwise(sizes)]
    biases = [normal(b, g=g) for b in sizes[1:]]
    x = normal(6, 3, g=g)
    wanted = torch.cat(run_layers(weights, biases, [torch.tanh] * 3, x), dim=1)
    W, U, b = stack(weights, biases)
    z = normal(*wanted.shape, g=g)
    for step in range(1, 4):
        z = torch.tanh(z @ W.mT + x @ U.mT + b)
        done = sum(sizes[1 : step + 1])  # one more layer is right after each step
        torch.testing.assert_close(z[:, :done], wanted[:, :done])
        assert not torch.allclose(z[:, done:], wanted[:, done:]) or done == len(W)


def test_the_progress_display_escapes_and_counts() -> None:
    bar = Progress(3)
    bar.update("loss < 1")
    assert "1 of 3 epochs" in bar.bar("loss < 1")
    assert "loss &lt; 1" in bar.bar("loss < 1")
