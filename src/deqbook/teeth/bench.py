"""Judge claims in processes of their own, which may loop, crash and take what memory they like."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import deqbook
from deqbook.claims import Trial, find

__all__ = ["Outcome", "Task", "judge", "run", "trace"]

ROOT = Path(deqbook.__file__).parent
MEMORY = 3 * 2**30  # beyond what the process has when it starts
WALL = 40  # a processor may be shared: this many times the limit by the clock on the wall


@dataclass(frozen=True)
class Task:
    """What to do in a process of its own, and how many seconds of a processor it may take."""

    name: str
    work: Callable[[], dict[str, Any]]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What came of a task: what it returned, or how it ended, and the seconds it took."""

    name: str
    result: dict[str, Any]
    seconds: float


def judge(claim_id: str, seed: int) -> dict[str, Any]:
    """Run a claim until something is wrong; say what, ``""`` if nothing is.

    A measurement that fails, an error, or a control that does not break counts.
    """
    claim = find(claim_id)
    if claim.body is None:
        return {"noticed": ""}
    try:
        for m in claim.body(Trial(seed)):
            if not m.holds:
                return {"noticed": str(m)}
        for control in claim.controls:
            found = list(control.body(Trial(seed)))
            if not found or any(m.holds for m in found):
                return {"noticed": f"control: {control.broken}"}
    except Exception as error:
        return {"noticed": f"{type(error).__name__}: {error}"[:200], "error": True}
    return {"noticed": ""}


def trace(claim_id: str, seed: int) -> dict[str, Any]:
    """Run a claim's body; say which lines of the package ran, by file and function."""
    lines: dict[str, dict[str, set[int]]] = {}
    root = str(ROOT)

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(root):
            return None
        name = code.co_qualname.partition(".<locals>")[0]
        seen = lines.setdefault(code.co_filename, {}).setdefault(name, set())

        def inside(frame: FrameType, event: str, arg: Any) -> Any:
            seen.add(frame.f_lineno)
            return inside

        return inside

    claim = find(claim_id)
    sys.settrace(look)
    try:
        list(claim.body(Trial(seed)) if claim.body is not None else ())
    finally:
        sys.settrace(None)
    return {
        str(Path(file).relative_to(ROOT)): {name: sorted(ran) for name, ran in found.items()}
        for file, found in lines.items()
    }


@cache
def _load() -> None:
    """Let torch load what it loads at its first derivative of a map: a second for every fork."""
    torch.func.jacrev(torch.sin)(torch.ones(1))


def run(tasks: Iterable[Task], jobs: int) -> Iterator[Outcome]:
    """Run tasks, ``jobs`` at a time, each in a fork of this process; yield what comes of them."""
    _load()
    waiting = iter(tasks)
    running: dict[int, tuple[Task, int, float, bytearray]] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                while len(running) < jobs and (task := next(waiting, None)) is not None:
                    end, pid = _start(task)
                    running[end] = (task, pid, time.monotonic(), bytearray())
                    selector.register(end, selectors.EVENT_READ)
                if not running:
                    return
                for key, _ in selector.select(timeout=1.0):
                    chunk = os.read(key.fd, 1 << 16)
                    if chunk:
                        running[key.fd][3].extend(chunk)
                        continue
                    selector.unregister(key.fd)
                    task, pid, started, text = running.pop(key.fd)
                    os.close(key.fd)
                    yield _outcome(task, pid, bytes(text))
                for task, pid, started, _ in running.values():
                    if time.monotonic() - started > WALL * task.seconds:
                        os.kill(pid, signal.SIGKILL)
        finally:
            for _, pid, _, _ in running.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _start(task: Task) -> tuple[int, int]:
    """Fork; return the end of a pipe that will tell the result, and the process."""
    end, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return end, pid
    status = 1
    try:
        os.close(end)
        faulthandler.disable()  # a crash is expected here, and told in a word
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        limit = max(1, int(task.seconds + 0.999))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        text = json.dumps(task.work()).encode()
        while text:
            text = text[os.write(into, text) :]
        status = 0
    finally:
        os._exit(status)


def _outcome(task: Task, pid: int, text: bytes) -> Outcome:
    _, status, used = os.wait4(pid, 0)
    seconds = used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        loops = number in (signal.SIGXCPU, signal.SIGKILL)
        how = f"did not end in {task.seconds:.0f} s" if loops else signal.Signals(number).name
        return Outcome(task.name, {"noticed": how, "error": True}, seconds)
    if os.WEXITSTATUS(status) or not text:
        return Outcome(task.name, {"noticed": "ended without a word", "error": True}, seconds)
    return Outcome(task.name, json.loads(text), seconds)
