"""Where numbers come from and where they are computed: seeds and the device.

Everything random in the book is drawn on the CPU from an explicit generator, so that a figure
is the same with and without a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings

import torch
from torch import Tensor

__all__ = ["device", "generator", "normal", "progress", "signs", "sphere", "tensor"]

# Forward-mode differentiation makes torch load this module of its own, which uses torch.jit.script
# and so warns that it is deprecated. No reader can mend that: it is loaded here, quietly.
with warnings.catch_warnings(), contextlib.suppress(ImportError):
    warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated")
    importlib.import_module("torch._decomp.decompositions_for_jvp")


def device() -> torch.device:
    """Return the GPU when there is one, else the CPU.

    >>> device().type in ("cpu", "cuda")
    True
    """
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def generator(seed: int) -> torch.Generator:
    """Return a CPU generator seeded with ``seed``; the book has no unseeded randomness.

    >>> torch.equal(normal(3, g=generator(0)), normal(3, g=generator(0)))
    True
    """
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, g: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw independent N(0, 1) entries (in float64, then cast: one draw, whatever the precision).

    >>> single = normal(2, 3, g=generator(0), dtype=torch.float32)
    >>> torch.equal(single, normal(2, 3, g=generator(0)).float())
    True
    """
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)


def signs(*shape: int, g: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw independent entries ±1 with probability one half each.

    >>> signs(100, g=generator(0)).unique().tolist()
    [-1.0, 1.0]
    """
    return (2 * torch.randint(0, 2, shape, generator=g) - 1).to(dtype)


def sphere(
    n: int, d: int, seed: int, *, radius: float = 1.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Draw ``n`` points uniformly on the sphere of the given radius in R^d, as rows (n, d).

    >>> sphere(2, 3, seed=0, radius=5.0).norm(dim=1).round(decimals=3).tolist()
    [5.0, 5.0]
    """
    x = normal(n, d, g=generator(seed), dtype=dtype)
    return radius * x / x.norm(dim=1, keepdim=True)


def progress(text: str) -> None:
    """Show a transient line on a terminal (an empty one clears it); say nothing elsewhere.

    >>> progress("")
    """
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def tensor(name: str, value: object) -> Tensor:
    """Return ``value`` if it is a real floating-point tensor; refuse a list or an array.

    The refusal is a ``TypeError`` that calls the value by its ``name``.

    >>> tensor("W", torch.ones(2)).tolist()
    [1.0, 1.0]
    >>> try:
    ...     tensor("W", [1.0])
    ... except TypeError as error:
    ...     print(str(error).split(";")[0])
    W must be a floating-point tensor, got list
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    seen = f"dtype {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
    raise TypeError(
        f"{name} must be a floating-point tensor, got {seen}; write "
        f"torch.as_tensor({name}, dtype=torch.float64)."
    )
