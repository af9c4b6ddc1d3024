"""What the benchmarks share: their options, one clock, the wording of a receipt.

A receipt is a file that a page of the book reads, so it has the form of the book's other results:
``deqbook.experiments.receipts``. The times themselves are the result here. They, the hardware, the
threads and the load of the machine stand in the runs and are bound by the hash.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from deqbook.experiments.receipts import hardware, read, write

Clock = Callable[[], float]

RECEIPTS = Path(__file__).parents[1] / "src" / "deqbook" / "data" / "results"
PACKAGES = ("torch", "numpy", "torchdeq", "jax", "jaxlib", "optimistix", "equinox", "lineax")


def installed(package: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def parser(what: str, *, threads: int = 1) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=what)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here as well")
    made.add_argument(
        "--threads", type=int, default=threads, help=f"threads for everybody ({threads})"
    )
    made.add_argument("--seed", type=int, default=0, help="seed of the data and the weights (0)")
    return made


def take_threads(threads: int) -> None:
    """Let torch, and XLA too, use so many processors."""
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):  # XLA sizes its pool by the processors it may use
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def clock_for(threads: int) -> Clock:
    """Return the clock: on one thread processor time is the same, and deaf to other programs."""
    return time.process_time if threads == 1 else time.perf_counter


def load() -> float | None:
    """Return how many programs wanted a processor in the last minute, where the system tells."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def circumstances(threads: int, before: float | None) -> dict[str, Any]:
    """Return where and how busily a benchmark ran; ``before`` is the load when it began."""
    return {
        "hardware": hardware(),
        "threads": threads,
        "clock": "processor time" if threads == 1 else "wall clock",
        "load": [before, load()],
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of everyone who takes part."""
    found = {"python": platform.python_version()}
    return found | {p: v for p in PACKAGES if (v := installed(p)) is not None}


def write_receipt(
    file: Path,
    command: str,
    where: dict[str, Any],
    runs: Sequence[dict[str, Any]],
    *,
    part: str = "",
) -> None:
    """Write a result file of the book: the circumstances first, then a line for each row.

    A benchmark in parts renews one of them; the others stay as the file has them.
    """
    mine = [{"group": "circumstances", "case": {}, "result": where}, *runs]
    for run in mine if part else []:
        run["case"] = {"part": part, **run["case"]}
    kept = (
        [r for r in read(file).runs if r["case"]["part"] != part] if part and file.exists() else []
    )
    write(file, command, versions(), [*kept, *mine])
    print(f"written: {file.name}")
