"""The complete MNIST, Fashion-MNIST, CIFAR-10 and SVHN: fetched once, checked, then parsed."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pooch
import torch

from deqbook.data.dataset import DataError, Dataset, Norm, Pixels, assemble
from deqbook.data.formats import downsample, gray28, parse_cifar, parse_idx, parse_svhn, select

__all__ = ["FullName", "load_full"]

FullName = Literal["mnist", "fashion", "cifar10", "svhn"]
"""The complete sets that :func:`load_full` can fetch."""

Split = tuple[Pixels, Pixels]
Parser = Callable[[Mapping[str, bytes]], tuple[Split, Split]]


@dataclass(frozen=True)
class Source:
    """Where a complete set is published: servers to try in turn, files with MD5, parser."""

    servers: tuple[str, ...]
    md5: Mapping[str, str]
    classes: tuple[str, ...]
    parse: Parser


def _parse_idx_set(files: Mapping[str, bytes]) -> tuple[Split, Split]:
    def split(stem: str) -> Split:
        images = parse_idx(gzip.decompress(files[f"{stem}-images-idx3-ubyte.gz"]))
        labels = parse_idx(gzip.decompress(files[f"{stem}-labels-idx1-ubyte.gz"]))
        if len(images) != len(labels):
            raise DataError(f"{stem}: {len(images)} pictures but {len(labels)} labels")
        return images, labels

    return split("train"), split("t10k")


def _parse_cifar_set(files: Mapping[str, bytes]) -> tuple[Split, Split]:
    with tarfile.open(fileobj=io.BytesIO(files["cifar-10-binary.tar.gz"])) as archive:
        names = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
        batches = []
        for name in names:
            # Members are read in memory; nothing is unpacked onto the disk.
            member = archive.extractfile(f"cifar-10-batches-bin/{name}.bin")
            if member is None:
                raise DataError(f"{name}.bin in the CIFAR-10 archive is not a regular file")
            batches.append(parse_cifar(member.read()))
    images, labels = zip(*batches[:5])
    return (np.concatenate(images), np.concatenate(labels)), batches[5]


def _parse_svhn_set(files: Mapping[str, bytes]) -> tuple[Split, Split]:
    return parse_svhn(files["train_32x32.mat"]), parse_svhn(files["test_32x32.mat"])


_DIGITS = tuple(f"digit {k}" for k in range(10))

_SOURCES: dict[str, Source] = {
    "mnist": Source(
        servers=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        md5={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        classes=_DIGITS,
        parse=_parse_idx_set,
    ),
    "fashion": Source(
        servers=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        md5={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        classes=(
            "T-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        parse=_parse_idx_set,
    ),
    "cifar10": Source(
        servers=("https://www.cs.toronto.edu/~kriz/",),
        md5={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        classes=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        parse=_parse_cifar_set,
    ),
    "svhn": Source(
        servers=("http://ufldl.stanford.edu/housenumbers/",),
        md5={
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
        classes=_DIGITS,
        parse=_parse_svhn_set,
    ),
}


def load_full(
    name: FullName,
    *,
    classes: Sequence[int] | None = None,
    per_class: int | tuple[int, int] | None = None,
    gray: bool = True,
    block: int = 1,
    norm: Norm | None = "unit",
    dtype: torch.dtype = torch.float64,
    flatten: bool = True,
    seed: int = 0,
    folder: Path | None = None,
) -> Dataset:
    """Fetch a complete set (once), check it, and return all of it or a part.

    All of MNIST in double precision takes 0.4 GB and about three times that while it is scaled.

    Args:
        name: which set.
        classes: original labels to keep, in increasing order (``None``: all ten). Two classes are
            labelled -1 and +1.
        per_class: how many of each class, or (train, test); ``None``: all. When ``classes`` or
            ``per_class`` is given, samples follow the rule of
            :func:`~deqbook.data.formats.select`, otherwise the order of the file.
        gray: turn colour pictures into 28 x 28 gray ones, as gao2022 does; ``False`` keeps
            32 x 32 x 3. MNIST and Fashion-MNIST are gray already.
        block: average over block x block squares first, see
            :func:`~deqbook.data.formats.downsample`; 1: do not.
        norm: as in :func:`~deqbook.data.bundled.load`.
        dtype: as there.
        flatten: as there.
        seed: as there.
        folder: where downloads are kept (default: the user's cache folder).

    Raises:
        ValueError: an unknown name, or classes that are not increasing labels from 0 to 9.
        DataError: no server delivered a file with the right checksum.

    The bundled sets are parts of these: ``load_full("mnist", classes=(0, 1), per_class=500)`` is
    ``mnist01``, and ``load_full("mnist", per_class=(500, 100))`` is ``mnist10``; likewise
    ``fashion01`` and ``cifar01``, and ``load_full("cifar10", per_class=(200, 100), gray=False,
    block=2)`` is ``cifar10small``. ``svhn01`` was rebuilt from larger pictures and may differ from
    the original by one gray level in single pixels (see ``NOTICE.md``).

    >>> from typing import get_args
    >>> get_args(FullName)
    ('mnist', 'fashion', 'cifar10', 'svhn')
    >>> load_full("mnist", classes=(1, 0))  # refused before anything is fetched
    Traceback (most recent call last):
        ...
    ValueError: classes must be different labels from 0 to 9 in increasing order, got (1, 0)

    """
    source = _source(name)
    chosen = _check_classes(classes)
    n_train, n_test = per_class if isinstance(per_class, tuple) else (per_class, per_class)
    train, test = source.parse(_fetch(name, source, folder or Path(pooch.os_cache("deqbook"))))
    if classes is not None or per_class is not None:
        train = _take(train, select(train[1], chosen, n_train))
        test = _take(test, select(test[1], chosen, n_test))
    if block != 1:
        train, test = (downsample(train[0], block), train[1]), (downsample(test[0], block), test[1])
    if gray:
        train, test = _as_gray(train), _as_gray(test)
    return assemble(
        name,
        train,
        test,
        [(k, source.classes[k]) for k in chosen],
        norm=norm,
        dtype=dtype,
        flatten=flatten,
        seed=seed,
    )


def _source(name: str) -> Source:
    if name not in _SOURCES:
        raise ValueError(
            f"no complete data set is called {name!r}; there are {', '.join(_SOURCES)}"
        )
    return _SOURCES[name]


def _check_classes(classes: Sequence[int] | None) -> tuple[int, ...]:
    if classes is None:
        return tuple(range(10))
    chosen = tuple(classes)
    if not chosen or list(chosen) != sorted(set(chosen)) or not 0 <= chosen[0] <= chosen[-1] <= 9:
        raise ValueError(
            f"classes must be different labels from 0 to 9 in increasing order, got {chosen}"
        )
    return chosen


def _take(split: Split, keep: np.ndarray) -> Split:
    return split[0][keep], split[1][keep]


def _as_gray(split: Split) -> Split:
    return (gray28(split[0]) if split[0].ndim == 4 else split[0]), split[1]


def _fetch(name: str, source: Source, folder: Path) -> dict[str, bytes]:
    """Bytes of every file of a set, each with the right checksum."""
    home = folder / name  # MNIST and Fashion-MNIST use the same file names
    return {
        file: _fetch_one(source.servers, file, md5, home).read_bytes()
        for file, md5 in source.md5.items()
    }


def _fetch_one(servers: Sequence[str], file: str, md5: str, home: Path) -> Path:
    """One file from the first server that delivers it intact, or one error that tells it all."""
    failures = []
    for server in servers:
        url = server + file
        try:
            return Path(pooch.retrieve(url, known_hash=f"md5:{md5}", fname=file, path=home))
        except (OSError, ValueError) as error:
            # requests raises OSErrors when the network fails, pooch a ValueError on a bad checksum
            kind = "wrong checksum" if isinstance(error, ValueError) else "no download"
            failures.append(f"  {url}: {kind} ({error})")
    target = home / file
    if target.is_file():
        seen = pooch.file_hash(str(target), alg="md5")
        failures.append(f"  {target}: there is a file, but its MD5 is {seen}")
    raise DataError(
        f"could not get {file} with MD5 {md5}:\n"
        + "\n".join(failures)
        + f"\nWithout a network, download it elsewhere and put it at {target}; "
        "the bundled subsets (deqbook.data.names()) need no download"
    )
