"""Many runs at once, by whatever executor there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TypeVar

import torch

__all__ = ["sweep"]

Case = TypeVar("Case")
Result = TypeVar("Result")


def sweep(
    run: Callable[[Case], Result], cases: Iterable[Case], *, executor: Executor | None = None
) -> dict[Case, Result]:
    """Return ``{case: run(case)}`` for every case, in order.

    Any ``concurrent.futures`` executor will do: a process pool on this machine, or
    ``Client.get_executor()`` of a Dask cluster. ``run`` and the cases must then be importable and
    picklable. Each run uses one thread, here and there, so that the numbers are the same. Cases are
    keys, so they must be hashable; what a run raises is raised.

    >>> sweep(lambda m: m**2, [2, 3])
    {2: 4, 3: 9}
    """
    wanted, threads = list(cases), torch.get_num_threads()
    try:
        if executor is None:
            return {case: _alone(run, case) for case in wanted}
        jobs = {case: executor.submit(_alone, run, case) for case in wanted}
        return {case: job.result() for case, job in jobs.items()}
    finally:  # an executor of threads sets them here too
        torch.set_num_threads(threads)


def _alone(run: Callable[[Case], Result], case: Case) -> Result:
    torch.set_num_threads(1)
    return run(case)
