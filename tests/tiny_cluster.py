"""A Dask cluster of separate processes on this machine, for the tests of what runs on one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(what: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class TinyCluster:
    """A scheduler and two workers; calling it kills what runs and starts them all again."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        self.running: list[subprocess.Popen[bytes]] = []

    def __call__(self) -> str:
        self.stop()
        address = f"tcp://127.0.0.1:{self.port}"
        self._start("scheduler", "--host", "127.0.0.1", "--port", str(self.port))
        workers = ("--nworkers", "2", "--nthreads", "1", "--local-directory", str(self.folder))
        self._start("worker", address, *workers)
        return address

    def _start(self, name: str, *options: str) -> None:
        self.running.append(
            subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{name}", *options, "--no-dashboard"],
                env=os.environ | {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "3"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def stop(self) -> None:
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait()
        self.running.clear()
