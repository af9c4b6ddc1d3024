"""The first code cell of every notebook that leaves the book, of a chapter or of an assignment.

It sets one thread and installs the package where that is missing, from the wheel on the book's
site. What it finds installed it leaves alone, be it older than the book's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["THREADS", "Wheel", "first_cell"]

#: What the arithmetic libraries read their number of threads from.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SETUP = """\
# One thread, as in the book: the same sums, and faster at this size.
import os

THREADS = [
{threads}
]
os.environ.update(dict.fromkeys(THREADS, "1"))

# The book's package, where it is missing. Nothing installed is replaced.
import importlib.util

WHEEL = "{address}"
SHA256 = "{sha256}"
NEEDS = [
{needs}
]


def install_deqbook():
    import importlib.metadata, pathlib, re, subprocess, sys

    def pip(*arguments):
        command = [sys.executable, "-m", "pip", "install", "--quiet"]
        subprocess.run([*command, *arguments], check=True)

    wheel = WHEEL
    if wheel and "://" not in wheel and pathlib.Path(wheel).is_file():
        wheel = pathlib.Path(wheel).resolve().as_uri()
    if "://" not in wheel:
        raise RuntimeError(
            "deqbook is not installed, and this notebook does not know"
            " where it is published: run `pip install .` in a checkout"
            " of the book, then restart the kernel."
        )
    have = {{
        re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        for one in importlib.metadata.distributions()
    }}
    for need in NEEDS:
        package = re.match(r"[\\w-]+", need)[0].lower()
        if package not in have:
            pip(need)
    pip("--no-deps", f"{{wheel}}#sha256={{SHA256}}")
    importlib.invalidate_caches()


if importlib.util.find_spec("deqbook") is None:
    install_deqbook()"""
SITE = """

# Where the checks of this notebook say that one can read.
os.environ.setdefault("DEQBOOK_SITE", "{site}")"""


@dataclass(frozen=True)
class Wheel:
    """The package as a file: where it lies, as an address or from the notebook; and its digest."""

    address: str
    sha256: str


def first_cell(needs: Iterable[str], wheel: Wheel | None, site: str = "") -> str:
    """Return the source of the cell; ``site`` is told to those who link to the book."""
    source = SETUP.format(
        threads=lines(THREADS),
        address=wheel.address if wheel else "",
        sha256=wheel.sha256 if wheel else "",
        needs=lines(needs),
    )
    return source + (SITE.format(site=site) if site else "")


def lines(names: Iterable[str]) -> str:
    """Return strings as the lines of a list in code."""
    return "\n".join(f'    "{name}",' for name in names)
