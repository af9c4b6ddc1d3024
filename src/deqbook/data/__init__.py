"""Real image data, scaled as the theorems assume.

Six small subsets are bundled and read with :func:`load`; the complete sets are fetched, checked
and cut by the same rule with :func:`load_full`. Every file is compared with a known checksum
before it is used. Where the pictures come from, and on what terms, is told in ``NOTICE.md``.

>>> from deqbook.data import load
>>> load("mnist01")
Dataset('mnist01', 1000 train + 1000 test, d = 784, norm 'unit', labels -1 digit 0, +1 digit 1)
"""

from deqbook.data.bundled import Bundled, load, names, path
from deqbook.data.dataset import DataError, Dataset, Norm, normalise
from deqbook.data.formats import downsample, gray28, parse_cifar, parse_idx, parse_svhn, select
from deqbook.data.full import load_full
from deqbook.data.parallel import Separated, parallel_pairs, separate_parallel

__all__ = [
    "Bundled",
    "DataError",
    "Dataset",
    "Norm",
    "Separated",
    "downsample",
    "gray28",
    "load",
    "load_full",
    "names",
    "normalise",
    "parallel_pairs",
    "parse_cifar",
    "parse_idx",
    "parse_svhn",
    "path",
    "select",
    "separate_parallel",
]
