"""Real image data, scaled as the theorems assume.

Six small subsets are bundled and read with :func:`~deqbook.data.bundled.load`; the complete sets
are fetched, checked and cut by the same rule with :func:`~deqbook.data.full.load_full`. Every file
is compared with a known checksum before it is used. Where the pictures come from, and on
what terms, is told in ``NOTICE.md``.

>>> from deqbook.data import load
>>> load("mnist01")
Dataset('mnist01', 1000 train + 1000 test, d = 784, norm 'unit', labels -1 digit 0, +1 digit 1)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
