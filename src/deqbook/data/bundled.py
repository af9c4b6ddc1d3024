"""The subsets that ship with the package: what they are, that they are intact, how to read them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from deqbook.data.dataset import DataError, Dataset, Norm, Pixels, assemble

__all__ = ["FOLDER", "Bundled", "load", "names", "path"]

FOLDER = Path(__file__).parent
"""The folder of the bundled files and of ``NOTICE.md``, which tells their origin and terms."""

SPLITS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Bundled:
    """One bundled file: its origin, the shapes in it, its classes (label, name), its checksum.

    >>> entry = names()["cifar10small"]
    >>> entry.origin, entry.train, entry.classes[0]
    ('CIFAR-10, colour, 16 x 16', (2000, 16, 16, 3), (0, 'airplane'))
    """

    origin: str
    train: tuple[int, ...]
    test: tuple[int, ...]
    classes: tuple[tuple[int, str], ...]
    sha256: str


_SMALL = (1000, 28, 28)
_CIFAR = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_DIGITS01 = ((0, "digit 0"), (1, "digit 1"))

_CATALOGUE = {
    "mnist01": Bundled(
        "MNIST",
        _SMALL,
        _SMALL,
        _DIGITS01,
        "82f01f4bbd93fb600e915927fb2204e331b98dfe51ae872fb3a2c46b00e1f8ad",
    ),
    "fashion01": Bundled(
        "Fashion-MNIST",
        _SMALL,
        _SMALL,
        ((0, "T-shirt/top"), (1, "trouser")),
        "75856720f9d75a9e3be20618801ef01d42b9ac694258c954ec086fcdcab7b912",
    ),
    "cifar01": Bundled(
        "CIFAR-10, gray, 28 x 28",
        _SMALL,
        _SMALL,
        ((0, "airplane"), (1, "automobile")),
        "ea6e9cec307b9a670e7a2b7da01c4cbc9bf691a34829ce86a81628f58e4da95b",
    ),
    "svhn01": Bundled(
        "SVHN, gray, 28 x 28",
        _SMALL,
        _SMALL,
        _DIGITS01,
        "fb9a31069b76bc670672a2b018ae9260ab384d9806c5c51964be9b12403f69ca",
    ),
    "mnist10": Bundled(
        "MNIST",
        (5000, 28, 28),
        _SMALL,
        tuple((k, f"digit {k}") for k in range(10)),
        "bd1f4e887e5feb6f784edaa47f64409af7e2feef6b8c1e636beaf9b184c2d0f0",
    ),
    "cifar10small": Bundled(
        "CIFAR-10, colour, 16 x 16",
        (2000, 16, 16, 3),
        (1000, 16, 16, 3),
        tuple(enumerate(_CIFAR)),
        "6fa92e29122b610fba1d2ed2c670e5f898104d758fa36ea0c01c273fc4e1e5e7",
    ),
}


def names() -> dict[str, Bundled]:
    """List what is bundled: name -> origin, shapes, classes, checksum.

    >>> list(names())
    ['mnist01', 'fashion01', 'cifar01', 'svhn01', 'mnist10', 'cifar10small']
    """
    return dict(_CATALOGUE)


def path(name: str) -> Path:
    """Return the file of a bundled set, for example to declare that a page depends on it.

    Raises ``ValueError`` for a name that :func:`names` does not list.

    >>> path("mnist01").name
    'mnist01.npz'
    """
    _entry(name)
    return FOLDER / f"{name}.npz"


def load(
    name: str,
    *,
    norm: Norm | None = "unit",
    n_train: int | None = None,
    n_test: int | None = None,
    part: int = 0,
    dtype: torch.dtype = torch.float64,
    flatten: bool = True,
    seed: int = 0,
) -> Dataset:
    r"""Read a bundled set, check its SHA-256 and scale it as a theorem assumes.

    Args:
        name: one of :func:`names`.
        norm: ``"unit"`` for :math:`\|x\|=1` (gao2022, gao2023), ``"sqrt_d"`` for
            :math:`\|x\|=\sqrt d` (ling2023), ``None`` for pixel/255.
        n_train: the first so many training samples (``None``: all). The files are shuffled once
            and for all, so a smaller set is part of a larger one with its classes mixed, though
            balanced only when whole: a prefix keeps the frequencies of the original, which matters
            for ``svhn01`` (152 of the first 200 are digit 1).
        n_test: likewise, of the test samples.
        part: which block of that many samples: part 1 of ``n_train=100`` holds samples 100 … 199,
            so that different parts have no sample in common.
        dtype: floating-point type of the samples, and of the labels of two classes.
        flatten: rows (n, d); else (n, channels, height, width).
        seed: of the noise that separates parallel samples. No bundled set has any, so today it
            changes nothing; ``Dataset.perturbed`` would list the rows.

    Raises:
        ValueError: an unknown name, a block that is not there, a wrong ``norm`` or ``dtype``.
        DataError: the file is missing or damaged.

    >>> data = load("mnist01", n_train=100, norm="sqrt_d")
    >>> data.x_train.shape, round(float(data.x_train[0].norm() ** 2), 6)
    (torch.Size([100, 784]), 784.0)
    >>> load("cifar10small", n_train=2, flatten=False).x_train.shape
    torch.Size([2, 3, 16, 16])

    """
    entry = _entry(name)
    arrays = _read(path(name), entry.sha256)
    x_train, y_train = _block(
        n_train, part, arrays["x_train"], arrays["y_train"], f"{name}: n_train"
    )
    x_test, y_test = _block(n_test, part, arrays["x_test"], arrays["y_test"], f"{name}: n_test")
    return assemble(
        name,
        (x_train, y_train),
        (x_test, y_test),
        entry.classes,
        norm=norm,
        dtype=dtype,
        flatten=flatten,
        seed=seed,
    )


def _entry(name: str) -> Bundled:
    if name not in _CATALOGUE:
        raise ValueError(
            f"no bundled data set is called {name!r}; there are {', '.join(_CATALOGUE)} "
            "(the complete sets come from load_full)"
        )
    return _CATALOGUE[name]


def _read(file: Path, expected: str) -> dict[str, Pixels]:
    """Read the four arrays of a file whose bytes are the ones we know."""
    remedy = "reinstall deqbook, or restore the file from the repository"
    if not file.is_file():
        raise DataError(f"{file} is missing (expected SHA-256 {expected}, found no file); {remedy}")
    stat = file.stat()
    found = _sha256(file, stat.st_size, stat.st_mtime_ns)
    if found != expected:
        raise DataError(f"{file} is damaged: expected SHA-256 {expected}, found {found}; {remedy}")
    with np.load(file) as archive:
        return {key: archive[key] for key in SPLITS}


@lru_cache(maxsize=64)
def _sha256(file: Path, size: int, mtime_ns: int) -> str:
    """Hash once per process; size and time are in the key, so a changed file is hashed anew."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _block(n: int | None, part: int, x: Pixels, y: Pixels, what: str) -> tuple[Pixels, Pixels]:
    """Return samples part·n … (part+1)·n - 1; without n there is one part, the whole."""
    n = len(x) if n is None else n
    if not 1 <= n <= len(x):
        raise ValueError(f"{what} = {n}, but between 1 and {len(x)} samples can be taken")
    parts = len(x) // n
    if not 0 <= part < parts:
        raise ValueError(f"part = {part}, but {what} = {n} leaves parts 0 to {parts - 1}")
    rows = slice(part * n, (part + 1) * n)
    return x[rows], y[rows]
