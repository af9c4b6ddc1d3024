"""Keep a place busy, and begin again what was on its way when the place broke.

``deqbook reproduce``, ``verify`` and ``teeth`` all run on this: ``serve`` is the loop, ``Steady``
the ``map`` of an executor that survives the loss of its workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from deqbook.experiments.places import Place, PlaceError

__all__ = ["Done", "GivenUp", "Steady", "serve"]

Job = TypeVar("Job")
TRIES = 3
"""How often a place may break in a row without finishing a job."""


class GivenUp(PlaceError):
    """A place broke again and again; ``jobs`` were on their way the last time."""

    def __init__(self, message: str, jobs: Sequence[Any]):
        super().__init__(message)
        self.jobs = tuple(jobs)


@dataclass(frozen=True)
class Done(Generic[Job]):
    """A job that ended, its future, the jobs that still run, and how many may run at a time."""

    job: Job
    future: Future[Any]
    running: tuple[Job, ...]
    slots: int


def serve(
    place: Place,
    choose: Callable[[], Job | None],
    submit: Callable[[Executor, Job], Future[Any]],
    again: Callable[[Sequence[Job], BaseException], None],
    *,
    meanwhile: Callable[[Sequence[Job]], bool] = lambda running: False,
) -> Generator[Done[Job], None, None]:
    """Run what ``choose`` gives until it gives nothing and nothing runs; yield what ends.

    A job that raises ends, too: its future tells. When the place breaks, what was on its way is
    handed to ``again``, which lets ``choose`` give it once more, and the place is opened anew;
    ``GivenUp`` after ``TRIES`` times in a row. While nothing ends, ``meanwhile`` is called every
    second with what runs; if it says so, the place is left with that. Close the iterator
    (``contextlib.closing``) where its consumer may raise: that leaves the place, which ends the
    processes of a pool; on a cluster a job that runs goes on to its end.
    """
    broken = 0
    while (job := choose()) is not None:  # a place is not opened for nothing
        running: dict[Future[Any], Job] = {}
        begun = [job]  # chosen, and not yet among those that run
        try:
            with place.open() as (executor, slots):
                while begun or running:
                    if begun:
                        running[submit(executor, begun[0])] = begun[0]
                        begun = []
                    else:
                        ended, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                        if not ended and meanwhile(tuple(running.values())):
                            return
                        for future in ended:
                            if (loss := _loss(future, place)) is not None:
                                raise loss
                            broken = 0
                            job = running.pop(future)
                            yield Done(job, future, tuple(running.values()), slots())
                    if len(running) < slots() and (job := choose()) is not None:
                        begun = [job]
            return
        except place.lost as error:
            for future in [f for f in running if f.done() and _loss(f, place) is None]:
                broken = 0  # it ended before the place broke
                job = running.pop(future)
                yield Done(job, future, tuple(running.values()), len(running) + 1)
            jobs, broken = [*running.values(), *begun], broken + 1
            again(jobs, error)
            if broken == TRIES:
                told = f"lost {TRIES} times in a row, {place}: {error!r}"
                raise GivenUp(told, jobs) from error


def _loss(future: Future[Any], place: Place) -> BaseException | None:
    """Return what a future says of its place; what it says of its job is its own affair."""
    if future.cancelled():
        return CancelledError()
    error = future.exception()
    return error if isinstance(error, place.lost) else None


@dataclass(frozen=True)
class Steady:
    """The ``map`` of an executor, in a place that may lose its workers or its scheduler.

    ``said`` is told of losses; ``kept`` is given every result at once, before its turn comes.
    """

    place: Place
    said: Callable[[str], None] = lambda text: None
    kept: Callable[[Any], object] = lambda result: None

    def map(self, work: Callable[..., Any], /, *arguments: Iterable[Any]) -> Iterator[Any]:
        """Yield ``work(*row)`` for the rows of the arguments, in their order, or raise in its turn.

        >>> from deqbook.experiments.places import Here
        >>> list(Steady(Here()).map(pow, (2, 3), (5, 2)))
        [32, 9]
        """
        waiting = deque(enumerate(zip(*arguments)))
        ready: dict[int, Future[Any]] = {}
        given = 0

        def choose() -> tuple[int, tuple[Any, ...]] | None:
            return waiting.popleft() if waiting else None

        def submit(executor: Executor, job: tuple[int, tuple[Any, ...]]) -> Future[Any]:
            return executor.submit(work, *job[1])

        def again(jobs: Sequence[tuple[int, tuple[Any, ...]]], error: BaseException) -> None:
            waiting.extendleft(sorted(jobs, reverse=True, key=lambda job: job[0]))
            self.said(lost(error))

        try:
            with closing(serve(self.place, choose, submit, again)) as served:
                for done in served:
                    ready[done.job[0]] = done.future
                    if done.future.exception() is None:
                        self.kept(done.future.result())
                    while given in ready:
                        yield ready.pop(given).result()
                        given += 1
        except GivenUp as error:
            rows = tuple(row for _, row in error.jobs)
            told = ", ".join(str(row[0]) for row in rows)
            remedy = "Do they need more memory? Try fewer at a time."
            raise GivenUp(f"{error}. On their way were: {told}. {remedy}", rows) from None


def lost(error: BaseException) -> str:
    """Say that a place broke."""
    return f"a worker or the scheduler was lost ({type(error).__name__}); again."
