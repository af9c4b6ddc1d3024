"""How cases share a machine: one process, a pool of processes, a Dask cluster.

``python benchmarks/places.py`` runs the same cases in each place: Figure 1 of gao2022 in miniature
(24 trainings), and cases that do nothing, a few and many, which tell what a start costs and what
each case costs beside its work. The clock is the wall's: a speed-up is about nothing else. A pool
starts on the clock, since a command makes its own; a cluster runs before. All places must give the
same numbers, to the last bit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared import circumstances, load, parser, write_receipt

from deqbook.experiments.catalogue import EXPERIMENTS
from deqbook.experiments.declaration import Experiment, Job
from deqbook.experiments.engine import execute
from deqbook.experiments.places import Cluster, Here, Place, Processes
from deqbook.experiments.worker import Checkpoint

COMMAND = "python benchmarks/places.py --json FILE"
REAL = EXPERIMENTS["gao2022-fig1"]


@dataclass(frozen=True)
class Empty:
    """A case without work."""

    x: int


def nothing(case: Empty, checkpoint: Checkpoint) -> dict[str, int]:
    """Do nothing."""
    return {"x": case.x}


EMPTY = replace(REAL, name="empty", run=nothing, cost=lambda case: 1.0, data=())


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[Place]:
    """Start a scheduler and its workers, processes of their own with one thread each."""
    python = [sys.executable, "-m"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / "scheduler.json"
        where = ["--scheduler-file", str(info), "--no-dashboard"]
        many = ["--nworkers", str(workers), "--nthreads", "1", "--local-directory", folder]
        commands = (
            [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"],
            [*python, "distributed.cli.dask_worker", *many],
        )
        running = [subprocess.Popen([*c, *where], **quiet) for c in commands]
        try:
            import distributed

            with distributed.Client(scheduler_file=str(info), set_as_default=False) as client:
                client.wait_for_workers(workers, timeout=120)
                yield Cluster(client.scheduler.address)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


@contextlib.contextmanager
def opened(place: Place) -> Iterator[Place]:
    """Need nothing before the clock starts."""
    yield place


PLACES: dict[str, tuple[int, Callable[[], contextlib.AbstractContextManager[Place]]]] = {
    "this process": (1, lambda: opened(Here())),
    "a pool of 1 process": (1, lambda: opened(Processes(1))),
    "a pool of 2 processes": (2, lambda: opened(Processes(2))),
    "Dask, 1 worker": (1, lambda: cluster(1)),
    "Dask, 2 workers": (2, lambda: cluster(2)),
}


def once(experiment: Experiment, jobs: Sequence[Job], place: Place) -> tuple[float, float, Any]:
    """Return the wall time of all jobs, the sum of the cases' own times, and the results."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        outcome = execute(experiment, jobs, Path(folder) / "r.json", COMMAND, place=place)
        wall = time.perf_counter() - start
    if outcome.results is None or outcome.results.cost is None:
        raise RuntimeError(f"{experiment.name} failed: {outcome.failures}")
    return wall, sum(outcome.results.cost.seconds), outcome.results.runs


def start_and_each(few: tuple[int, float], many: tuple[int, float], slots: int) -> dict[str, Any]:
    """Split two walls, of a few cases and of many, into what a start costs and what each case does.

    ``each`` is in seconds of one slot: two slots spend it side by side.
    """
    each = slots * (many[1] - few[1]) / (many[0] - few[0])
    return {"start": round(few[1] - few[0] * each / slots, 3), "each": round(each, 5)}


def measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each place; ``RuntimeError`` if two places differ in a number."""
    first, few = None, given.empty // 10
    real = REAL.cases["book"]()[: given.real]
    empty = [("empty", Empty(x)) for x in range(given.empty)]
    for name, (slots, opened_at) in PLACES.items():
        with opened_at() as place:
            once(EMPTY, empty[:few], place)  # workers that live on have their code by then
            once(REAL, real[:slots], place)
            wall, work, found = once(REAL, real, place)
            walls = [(n, once(EMPTY, empty[:n], place)[0]) for n in (few, given.empty)]
        if first is not None and found != first:
            raise RuntimeError(f"{name} gave other numbers than {next(iter(PLACES))}.")
        first = found
        result = {
            "cases": len(real),
            "slots": slots,
            "wall": round(wall, 3),
            "work": round(work, 1),
        }
        result |= {"empty": [[n, round(w, 3)] for n, w in walls]} | start_and_each(*walls, slots)
        print(
            f"{name:22} {wall:6.1f} s for {len(real)} trainings of {work:.1f} s; start "
            f"{result['start']:.2f} s, {1000 * result['each']:.1f} ms a case",
            flush=True,
        )
        yield {"group": "places", "case": {"place": name}, "result": result}


def main(arguments: list[str] | None = None) -> int:
    options = parser("How cases share a machine: processes and a Dask cluster.")
    options.add_argument("--real", type=int, default=24, help="trainings, 24 at the most (24)")
    options.add_argument("--empty", type=int, default=1000, help="cases without work (1000)")
    given = options.parse_args(arguments)
    if not 2 <= given.real <= 24 or given.empty < 20:
        options.error("--real must be 2 to 24, --empty at least 20")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # of everyone, workers too
        os.environ[name] = str(given.threads)
    before = load()
    rows = list(measured(given))
    if given.json:
        where = circumstances(given.threads, before) | {"clock": "wall clock"}
        write_receipt(given.json, COMMAND, where, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
