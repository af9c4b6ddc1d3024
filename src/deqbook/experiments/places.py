"""Where cases run: here, in processes of this machine, or on a Dask cluster.

Each place opens a ``concurrent.futures`` executor. ``lost`` names the exceptions that mean that the
executor is gone, not that a case failed: then the engine opens another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import wait
from typing import Any, Protocol

__all__ = ["Cluster", "Here", "Place", "PlaceError", "Processes", "chosen"]


class PlaceError(RuntimeError):
    """There is no such place: no scheduler at the address, or the package for it is missing."""


class Place(Protocol):
    """Something that runs cases: ``open`` it, and submit ``slots()`` cases at a time."""

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """What a future raises when the executor is gone."""

    def open(self) -> contextlib.AbstractContextManager[tuple[Executor, Callable[[], int]]]:
        """Return the executor, and what tells how many cases it runs at a time now."""

    def __str__(self) -> str: ...


class _Inline(Executor):
    """Runs a case when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # KeyboardInterrupt goes on to the command
            future.set_exception(error)
        return future


@dataclass(frozen=True)
class Here:
    """The process of the command, one case after the other."""

    lost: tuple[type[BaseException], ...] = ()

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[Executor, Callable[[], int]]]:
        """Open an executor that runs a case at once."""
        yield _Inline(), lambda: 1

    def __str__(self) -> str:
        return "in this process"


@dataclass(frozen=True)
class Processes:
    """Processes of this machine; they end with the command, however that ends."""

    jobs: int
    lost: tuple[type[BaseException], ...] = (BrokenExecutor, CancelledError)

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[Executor, Callable[[], int]]]:
        """Open a pool; what still runs when it is left is ended."""
        # "spawn": a forked child of a process that has used torch's threads can hang.
        context = multiprocessing.get_context("spawn")
        before = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(self.jobs, mp_context=context, initializer=_end_with_parent)
        try:
            yield pool, lambda: self.jobs
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            ours = set(multiprocessing.active_children()) - before
            for child in ours:
                child.terminate()
            for child in ours:
                child.join()

    def __str__(self) -> str:
        return f"on {self.jobs} processes"


def _end_with_parent() -> None:
    """Watch the parent: a worker whose command was killed must not go on alone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class _Dask(Executor):
    """Futures of a Dask client as those of ``concurrent.futures``.

    The executor that Dask brings leaves a future open for ever when the scheduler goes away while
    a result is on its way. Here it gets the exception.
    """

    def __init__(self, client: Any):
        self.client = client
        # Dask forgets a task whose future nobody holds. One that is done is let go: else what a
        # worker had finished would run again when the worker ends.
        self.kept: dict[int, Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def done(remote: Any) -> None:
            try:
                result = remote.result()
            except _distributed().scheduler.KilledWorker as error:
                future.set_exception(PlaceError(f"{error} Does it need more memory?"))
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            self.kept.pop(id(remote), None)

        remote = self.client.submit(fn, *args, pure=False, **kwargs)
        self.kept[id(remote)] = remote
        remote.add_done_callback(done)
        return future


@dataclass(frozen=True)
class Cluster:
    """A Dask cluster: the address of its scheduler.

    ``patience`` is for how many seconds a scheduler that went away may come back. The folder of
    the unfinished cases should be on a disk that all workers see: there they find checkpoints.
    """

    address: str
    patience: float = 120.0

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """The scheduler went away: futures are cancelled, connections closed."""
        # FutureCancelledError is a CancelledError of its own kind.
        client = _distributed().client
        return (CancelledError, client.FutureCancelledError, _distributed().comm.CommClosedError)

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[Executor, Callable[[], int]]]:
        """Connect, and wait for a worker; ``PlaceError`` if nobody answers, or all workers go."""
        client = self._connect()
        try:
            yield _Dask(client), _Slots(self, client)
        finally:
            with contextlib.suppress(Exception):  # a scheduler that is gone cannot be told goodbye
                client.close(timeout=5)

    def _connect(self) -> Any:
        distributed, end = _distributed(), time.monotonic() + self.patience
        try:
            import_module("distributed.comm").get_address_host_port(self.address, strict=True)
        except ValueError as error:
            raise PlaceError(
                f"{self.address!r} is no address of a scheduler ({error}); write tcp://HOST:PORT, "
                "as `dask scheduler` prints it."
            ) from None
        while True:
            left = end - time.monotonic()
            try:
                client = distributed.Client(
                    self.address, timeout=max(1.0, min(left, 10.0)), set_as_default=False
                )
                try:
                    client.wait_for_workers(1, timeout=max(1.0, end - time.monotonic()))
                except BaseException:
                    client.close(timeout=1)
                    raise
                return client
            except (OSError, TimeoutError, asyncio.TimeoutError) as error:
                if time.monotonic() > end:
                    raise self.nobody(str(error)) from None
                time.sleep(0.2)

    def nobody(self, why: str) -> PlaceError:
        """Return what to say when there is no worker for so long."""
        return PlaceError(
            f"no scheduler with a worker answered at {self.address} for {self.patience:.0f} s "
            f"({why}). Start `dask scheduler` and `dask worker`, or leave --scheduler out."
        )

    def __str__(self) -> str:
        return f"on the cluster at {self.address}"


class _Slots:
    """How many cases a cluster runs at a time; workers may come and go, so it is asked again."""

    def __init__(self, cluster: Cluster, client: Any):
        self.cluster, self.client = cluster, client
        self.found, self.asked, self.seen = 0, float("-inf"), time.monotonic()

    def __call__(self) -> int:
        now = time.monotonic()
        if now - self.asked > 1.0:
            self.asked = now
            with contextlib.suppress(OSError, TimeoutError, asyncio.TimeoutError):
                self.found = sum(self.client.nthreads().values())
            if self.found:
                self.seen = now
            elif now - self.seen > self.cluster.patience:
                raise self.cluster.nobody("all workers went away")
        return max(self.found, 1)


def chosen(jobs: int, scheduler: str | None) -> Place:
    """Return the place that the options ``--jobs`` and ``--scheduler`` ask for.

    >>> str(chosen(1, None)), str(chosen(2, None)), str(chosen(1, "tcp://10.0.0.1:8786"))
    ('in this process', 'on 2 processes', 'on the cluster at tcp://10.0.0.1:8786')
    """
    if scheduler is not None:
        return Cluster(scheduler)
    return Here() if jobs == 1 else Processes(jobs)


def _distributed() -> Any:
    """Return the package, which is an extra: nothing else in the project needs it."""
    try:
        return import_module("distributed")
    except ImportError:
        raise PlaceError(
            "--scheduler needs Dask distributed; install it: pip install 'deqbook[cluster]'."
        ) from None
