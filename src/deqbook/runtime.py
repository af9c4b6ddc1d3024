"""Where numbers come from and where they are computed: seeds and the device.

Everything random in the book is drawn on the CPU from an explicit generator, so that a figure
is the same with and without a GPU.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

__all__ = ["device", "generator", "normal", "progress", "signs", "sphere"]


def device() -> torch.device:
    """Return the GPU when there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def generator(seed: int) -> torch.Generator:
    """Return a CPU generator seeded with ``seed``; the book has no unseeded randomness."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, g: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw i.i.d. N(0, 1) entries (in float64, then cast: one draw, whatever the precision)."""
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)


def signs(*shape: int, g: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw i.i.d. entries ±1 with probability one half each."""
    return (2 * torch.randint(0, 2, shape, generator=g) - 1).to(dtype)


def sphere(
    n: int, d: int, seed: int, *, radius: float = 1.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Draw ``n`` points uniformly on the sphere of the given radius in R^d, as rows."""
    x = normal(n, d, g=generator(seed), dtype=dtype)
    return radius * x / x.norm(dim=1, keepdim=True)


def progress(text: str) -> None:
    """Show a transient line on a terminal (an empty one clears it); say nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
