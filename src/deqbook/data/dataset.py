"""The Dataset value, and how raw 8-bit pictures become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deqbook.data.parallel import separate_parallel

__all__ = ["DataError", "Dataset", "Norm", "Pixels", "assemble", "normalise"]

Norm = Literal["unit", "sqrt_d"]
r"""'unit': :math:`\|x\|=1` (gao2022, gao2023); 'sqrt_d': :math:`\|x\|=\sqrt d` (ling2023)."""

Pixels = NDArray[np.uint8]
"""Pictures (n, h, w) or (n, h, w, 3), or labels (n,), in bytes as the files hold them."""


class DataError(RuntimeError):
    """A data file is missing, damaged, out of reach or not what it claims to be.

    >>> from deqbook.data import parse_cifar
    >>> parse_cifar(b"cut short")
    Traceback (most recent call last):
        ...
    deqbook.data.dataset.DataError: a CIFAR-10 batch is a multiple of 3073 bytes, found 9; ...
    """


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """Training and test samples as tensors, one sample per row.

    ``classes`` names the labels in increasing order. Two classes are labelled -1 and +1, in the
    floating-point type of x, as the square loss of the theorems wants; more classes keep their
    integers. ``perturbed`` lists the training rows that got noise because they were parallel to
    another one (empty for every bundled set).

    >>> from deqbook.data import load
    >>> data = load("mnist01", n_train=200)
    >>> data.n, data.n_test, data.d, data.y_train.unique().tolist()
    (200, 1000, 784, [-1.0, 1.0])
    >>> data.to(torch.device("cpu")).x_train.shape
    torch.Size([200, 784])
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    norm: Norm | None
    perturbed: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """Number of training samples."""
        return len(self.x_train)

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return len(self.x_test)

    @property
    def d(self) -> int:
        """Input size, the entries of one sample, flattened or not."""
        return math.prod(self.x_train.shape[1:])

    def to(self, device: torch.device) -> Dataset:
        """Return the same samples on another device."""
        return replace(
            self,
            x_train=self.x_train.to(device),
            y_train=self.y_train.to(device),
            x_test=self.x_test.to(device),
            y_test=self.y_test.to(device),
        )

    def __repr__(self) -> str:
        if len(self.classes) == 2:
            labels = f"labels -1 {self.classes[0]}, +1 {self.classes[1]}"
        else:
            labels = f"{len(self.classes)} classes"
        noisy = f", noise on {len(self.perturbed)} parallel samples" if self.perturbed else ""
        return (
            f"Dataset({self.name!r}, {self.n} train + {self.n_test} test, d = {self.d}, "
            f"norm {self.norm!r}, {labels}{noisy})"
        )


def normalise(X: Tensor, norm: Norm | None, *, what: str = "X") -> Tensor:
    r"""Scale every sample to :math:`\|x\|=1` ('unit') or :math:`\sqrt d` ('sqrt_d').

    ``X`` holds one sample a row, (n, d) or (n, channels, height, width); ``what`` names it in
    errors; ``norm=None`` leaves it as it is. Raises ``ValueError`` for another ``norm`` or when a
    sample is all zero.

    >>> normalise(torch.tensor([[3.0, 4.0]]), "unit")
    tensor([[0.6000, 0.8000]])
    >>> normalise(torch.tensor([[5.0, 0.0, 0.0, 0.0]]), "sqrt_d")
    tensor([[2., 0., 0., 0.]])
    """
    if norm is None:
        return X
    if norm not in get_args(Norm):
        raise ValueError(f"norm must be one of {get_args(Norm)} or None, got {norm!r}")
    rows = X.flatten(1)
    length = rows.norm(dim=1, keepdim=True)
    zero = torch.nonzero(length[:, 0] == 0)[:, 0].tolist()
    if zero:
        raise ValueError(
            f"{len(zero)} of {len(rows)} samples in {what} are all zero and cannot be normalised: "
            f"indices {', '.join(map(str, zero[:10]))}{' …' if len(zero) > 10 else ''}; "
            "drop them, or ask for norm=None"
        )
    radius = 1.0 if norm == "unit" else math.sqrt(rows.shape[1])
    return (rows * (radius / length)).view_as(X)


def assemble(
    name: str,
    train: tuple[Pixels, Pixels],
    test: tuple[Pixels, Pixels],
    classes: Sequence[tuple[int, str]],
    *,
    norm: Norm | None,
    dtype: torch.dtype,
    flatten: bool,
    seed: int,
) -> Dataset:
    """Pictures and labels as stored -> Dataset: scale, separate parallel samples, code labels.

    ``train`` and ``test`` are (pictures, labels), ``classes`` the pairs (label, name). All
    arithmetic is in double precision; the cast to ``dtype`` comes last. With ``norm=None`` the
    pixels are pixel/255 and nothing else is done to them, also not to parallel ones.

    Raises ``ValueError`` for a ``dtype`` that is not floating-point or a picture that cannot be
    normalised, and :class:`DataError` for a label that is not among the classes.

    >>> images = np.array([[[3, 4]], [[4, 3]]], dtype=np.uint8)  # 1 x 2 pixels
    >>> split = (images, np.array([7, 1], dtype=np.uint8))
    >>> data = assemble("toy", split, split, [(1, "one"), (7, "seven")],
    ...                 norm="unit", dtype=torch.float64, flatten=True, seed=0)
    >>> data.x_train.tolist(), data.y_train.tolist()
    ([[0.6, 0.8], [0.8, 0.6]], [1.0, -1.0])
    """
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, got {dtype}; try torch.float64")
    x_train = normalise(_to_tensor(train[0]), norm, what=f"the training split of {name}")
    x_test = normalise(_to_tensor(test[0]), norm, what=f"the test split of {name}")
    perturbed: tuple[int, ...] = ()
    if norm is not None:
        x_train, perturbed = separate_parallel(x_train, seed=seed)
    codes = [code for code, _ in classes]
    return Dataset(
        name=name,
        x_train=(x_train.flatten(1) if flatten else x_train).to(dtype),
        y_train=_code_labels(train[1], codes, dtype),
        x_test=(x_test.flatten(1) if flatten else x_test).to(dtype),
        y_test=_code_labels(test[1], codes, dtype),
        classes=tuple(label for _, label in classes),
        norm=norm,
        perturbed=perturbed,
    )


def _to_tensor(pixels: Pixels) -> Tensor:
    """(n, h, w) or (n, h, w, 3) bytes -> (n, channels, h, w) in [0, 1], as torch wants images."""
    x = torch.from_numpy(pixels).to(torch.float64) / 255
    return x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def _code_labels(labels: Pixels, codes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Two classes: first -> -1, second -> +1. Otherwise the integers as they are."""
    y = torch.from_numpy(labels.astype(np.int64))
    stray = sorted(set(y.unique().tolist()) - set(codes))
    if stray:
        raise DataError(f"labels {stray} are not among the classes {list(codes)}")
    if len(codes) != 2:
        return y
    return torch.where(y == codes[1], 1.0, -1.0).to(dtype)
