"""File formats of the original sets, the selection rule and the conversion: pure functions."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Sequence

import numpy as np
import scipy.io
from numpy.typing import NDArray
from PIL import Image

from deqbook.data.dataset import DataError, Pixels

__all__ = ["downsample", "gray28", "parse_cifar", "parse_idx", "parse_svhn", "select"]

_CIFAR_RECORD = 1 + 3 * 32 * 32


def parse_idx(raw: bytes) -> Pixels:
    """Read IDX, as MNIST and Fashion-MNIST use it: 0 0 type rank, big-endian sizes, the bytes.

    Raises :class:`~deqbook.data.dataset.DataError` for another type than unsigned bytes, a header
    cut short, or sizes that do not fit the length.

    >>> parse_idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 5, 6, 7])).tolist()
    [[5, 6, 7]]
    """
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise DataError(
            f"not an IDX file: it starts with {raw[:4]!r}, expected two zero bytes, a type and a "
            "rank; if it is still compressed, decompress it first"
        )
    kind, rank = raw[2], raw[3]
    if kind != 0x08:
        raise DataError(f"IDX type 0x{kind:02x} is not read here, only unsigned bytes (0x08)")
    start = 4 + 4 * rank
    if len(raw) < start:
        raise DataError(f"IDX header cut short: rank {rank} needs {start} bytes, found {len(raw)}")
    shape = struct.unpack(f">{rank}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise DataError(
            f"IDX sizes {shape} announce {math.prod(shape)} bytes of data, "
            f"found {len(raw) - start}; the file is incomplete or has trailing bytes"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


def parse_cifar(raw: bytes) -> tuple[Pixels, Pixels]:
    """One CIFAR-10 binary batch -> pictures (n, 32, 32, 3) and labels (n,).

    A record is one label byte, then 1024 red, 1024 green and 1024 blue bytes, row by row. Raises
    :class:`~deqbook.data.dataset.DataError` for another length or a label above 9.

    >>> green = bytes(1024) + bytes([255] * 1024) + bytes(1024)
    >>> images, labels = parse_cifar(bytes([3]) + green)
    >>> images.shape, images[0, 0, 0].tolist(), labels.tolist()  # a green cat
    ((1, 32, 32, 3), [0, 255, 0], [3])
    """
    if len(raw) == 0 or len(raw) % _CIFAR_RECORD:
        raise DataError(
            f"a CIFAR-10 batch is a multiple of {_CIFAR_RECORD} bytes, found {len(raw)}; "
            "the file is incomplete or not in the binary version's format"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, _CIFAR_RECORD)
    labels = records[:, 0].copy()
    if labels.max() > 9:
        raise DataError(f"CIFAR-10 labels are 0 to 9, found {labels.max()}; not a CIFAR-10 batch")
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(), labels


def parse_svhn(raw: bytes) -> tuple[Pixels, Pixels]:
    """One cropped SVHN .mat file -> pictures (n, 32, 32, 3) and labels (n,).

    The file stacks pictures along the last axis, X (32, 32, 3, n), and codes digit 0 as 10.
    Raises :class:`~deqbook.data.dataset.DataError` for anything else.

    >>> file = io.BytesIO()
    >>> X = np.zeros((32, 32, 3, 2), np.uint8)
    >>> scipy.io.savemat(file, {"X": X, "y": [[10], [4]]})
    >>> images, labels = parse_svhn(file.getvalue())
    >>> images.shape, labels.tolist()
    ((2, 32, 32, 3), [0, 4])
    """
    try:
        content = scipy.io.loadmat(io.BytesIO(raw))
    except Exception as error:  # loadmat raises a different type for each way a file can be broken
        raise DataError(f"not a readable MATLAB file: {error}") from error
    missing = [key for key in ("X", "y") if key not in content]
    if missing:
        raise DataError(f"the MATLAB file has no variable {missing}; SVHN files hold X and y")
    x, y = content["X"], content["y"].reshape(-1)
    if x.shape != (32, 32, 3, len(y)) or x.dtype != np.uint8:
        raise DataError(
            f"SVHN X must be uint8 of shape (32, 32, 3, {len(y)}) to fit y, "
            f"found {x.dtype} {x.shape}"
        )
    if len(y) and not (y.min() >= 1 and y.max() <= 10):
        raise DataError(f"SVHN labels are 1 to 10 (10 for digit 0), found {y.min()} to {y.max()}")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), (y % 10).astype(np.uint8)


def gray28(images: Pixels) -> Pixels:
    """(n, h, w, 3) -> (n, 28, 28): luminance 0.299 R + 0.587 G + 0.114 B, then bilinear resize.

    Both steps are Pillow's; its resize is antialiased when it shrinks, and each step rounds to
    8 bits. This is how the bundled CIFAR-10 and SVHN subsets were made. Raises ``ValueError`` for
    anything but bytes of that shape.

    >>> red = np.zeros((1, 32, 32, 3), np.uint8)
    >>> red[..., 0] = 255
    >>> gray28(red).shape, int(gray28(red)[0, 0, 0])  # 0.299 * 255 = 76.2
    ((1, 28, 28), 76)
    """
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
        raise ValueError(
            f"expected uint8 pictures (n, height, width, 3), got {images.dtype} {images.shape}"
        )
    out = np.empty((len(images), 28, 28), np.uint8)
    for k, image in enumerate(images):
        gray = Image.fromarray(image).convert("L")
        out[k] = np.asarray(gray.resize((28, 28), Image.Resampling.BILINEAR))
    return out


def downsample(images: Pixels, block: int) -> Pixels:
    """(n, h, w, …) -> (n, h/block, w/block, …): the mean over block x block squares, rounded.

    Integer arithmetic, a half rounds up: the same bytes everywhere. With block = 2 this is how
    ``cifar10small`` was made from the 32 x 32 originals; ``load_full(…, block=2)`` does the same.
    Raises ``ValueError`` for anything but bytes, or a block that does not divide h and w.

    >>> downsample(np.array([[[0, 1, 8, 8], [0, 1, 8, 9]]], np.uint8), 2).tolist()
    [[[1, 8]]]
    """
    if images.ndim not in (3, 4) or images.dtype != np.uint8:
        raise ValueError(
            f"expected uint8 pictures (n, height, width) or (n, height, width, 3), "
            f"got {images.dtype} {images.shape}"
        )
    n, height, width, *colours = images.shape
    if block < 1 or height % block or width % block:
        raise ValueError(
            f"block = {block} does not divide the picture size {height} x {width}; "
            "choose a common divisor"
        )
    squares = images.reshape(n, height // block, block, width // block, block, *colours)
    total = squares.sum(axis=(2, 4), dtype=np.uint32)
    return ((total + block**2 // 2) // block**2).astype(np.uint8)


def select(y: NDArray[np.integer], classes: Sequence[int], n: int | None) -> NDArray[np.int64]:
    """Choose indices of an official split by the rule of the bundled files.

    Permute the split with a fresh generator of seed 0; of each class keep the first n in that
    order (None: all); leave all of them in that order, so that the classes are mixed. ``y`` (n,)
    holds the labels. Raises ``ValueError`` for a class with fewer samples than asked for.

    >>> y = np.array([0, 1, 2, 0, 1, 2])
    >>> y[select(y, (0, 2), 1)].tolist() in ([0, 2], [2, 0])
    True
    """
    order = np.random.default_rng(0).permutation(len(y))
    keep = []
    for c in classes:
        places = np.flatnonzero(y[order] == c)
        if len(places) == 0 or (n is not None and not 1 <= n <= len(places)):
            raise ValueError(
                f"class {c} has {len(places)} samples, asked for {'all' if n is None else n}; "
                f"classes present: {np.unique(y).tolist()}"
            )
        keep.append(places[:n])
    return order[np.sort(np.concatenate(keep))]
