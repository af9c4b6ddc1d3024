"""What chapter 0 needs beside its own cells: shifts, a progress display, stacks."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import torch
from IPython.display import HTML, display
from torch import Tensor

__all__ = ["Progress", "run_layers", "shift", "stack"]


def shift(x: Tensor, g: torch.Generator, most: int = 1) -> Tensor:
    """Move each 28 × 28 image, a row of ``x``, by up to ``most`` pixels in each direction.

    What leaves on one side enters on the other, where digits have nothing but white.

    >>> images = torch.arange(784.0).expand(3, 784)
    >>> torch.equal(shift(images, torch.Generator().manual_seed(0)).sort(1).values, images)
    True
    """
    by = torch.randint(-most, most + 1, (2, len(x), 1), generator=g)
    rows, columns = (torch.arange(28) + by) % 28
    return x.gather(1, (28 * rows[:, :, None] + columns[:, None, :]).flatten(1))


class Progress:
    """A bar with a line of words; each update replaces the last, so a page keeps the final one."""

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.screen: Any = display(HTML(self.bar("starts")), display_id=True)

    def bar(self, words: str) -> str:
        """Return the bar as HTML."""
        return (
            f'<progress value="{self.done}" max="{self.total}"></progress> '
            f"{self.done} of {self.total} epochs · {html.escape(words)}"
        )

    def update(self, words: str) -> None:
        """Count one more and say how it stands."""
        self.done += 1
        if self.screen is not None:  # None in a plain script
            self.screen.update(HTML(self.bar(words)))


def run_layers(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    sigmas: Sequence[Callable[[Tensor], Tensor]],
    x: Tensor,
) -> list[Tensor]:
    r"""Return all activations, :math:`z^{[i]}=\sigma_i(W^{[i]}z^{[i-1]}+b^{[i]})`."""
    states = [x]
    for W, b, sigma in zip(weights, biases, sigmas):
        states.append(sigma(states[-1] @ W.mT + b))
    return states[1:]


def stack(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return W, U, b of the one cell that holds all layers: the stacked state is every activation.

    W has the weights of layers 2, 3, … on its block sub-diagonal, U those of layer 1 on top.

    >>> W, U, b = stack([torch.ones(1, 2), 2 * torch.ones(1, 1)], [torch.zeros(1), torch.ones(1)])
    >>> W.tolist(), U.tolist(), b.tolist()
    ([[0.0, 0.0], [2.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]], [0.0, 1.0])
    """
    ends = torch.tensor([0, *(len(w) for w in weights)]).cumsum(0).tolist()
    W = weights[0].new_zeros(ends[-1], ends[-1])
    U = weights[0].new_zeros(ends[-1], weights[0].shape[1])
    U[: ends[1]] = weights[0]
    for i, w in enumerate(weights[1:], start=1):
        W[ends[i] : ends[i + 1], ends[i - 1] : ends[i]] = w
    return W, U, torch.cat(list(biases))
