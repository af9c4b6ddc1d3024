"""How much time, memory, output and how many processes a submission may use."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Limits:
    """The limits of one submission; seconds, as `Clock` counts them, and bytes."""

    time: float = 600.0  # all cells together, and again for all questions of the judge
    cell: float = 120.0
    question: float = 30.0  # one call of a student's function by the judge
    memory: int = 2 * 2**30
    processes: int = 64  # threads count, and a kernel has a dozen
    scratch: int = 256 * 2**20  # what it may write, in files of its own
    output: int = 8 * 2**20  # what one cell may print
    file: int = 50 * 2**20  # the notebook itself


def size(text: str) -> int:
    """Return a number of bytes from ``2G``, ``500M`` or ``1000``.

    >>> size("2G"), size("1.5M")
    (2147483648, 1572864)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is no size; write 2G, 500M or a number of bytes.")
    return int(float(found[1]) * UNITS[found[2].upper()])
