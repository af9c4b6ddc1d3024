"""What one case of the tiny experiment does; light, so that a worker starts fast.

A case notes every step it takes in ``$TINY/log``. A file ``$TINY/raise-X`` makes case X raise,
``kill-X`` kills the process that runs it once, ``full-X`` leaves no room on the disk from then on.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deqbook.experiments.worker import Checkpoint

ROOM = 100_000


@dataclass(frozen=True)
class Tiny:
    x: int
    steps: int = 3
    wait: float = 0.0


def _folder() -> Path:
    return Path(os.environ["TINY"])


def note(text: str) -> None:
    with (_folder() / "log").open("a") as out:
        out.write(text + "\n")


def noted(kind: str) -> list[str]:
    file = _folder() / "log"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [row for row in lines if row.startswith(kind)]


def run(case: Tiny, checkpoint: Checkpoint) -> dict[str, Any]:
    """Sum x·1 + … + x·steps, one term at a time, each kept in the checkpoint."""
    note(f"begin {case.x}")
    state = checkpoint.load(lambda file: json.loads(file.read_text())) or {"done": 0, "sum": 0.1}
    while state["done"] < case.steps:
        time.sleep(case.wait)
        state = {"done": state["done"] + 1, "sum": state["sum"] + case.x * (state["done"] + 1)}
        text = json.dumps(state)
        checkpoint.save(lambda file, text=text: file.write_text(text))
        note(f"step {case.x} {state['done']}")  # after it is kept: noted twice means done twice
        _fault(case)
    note(f"end {case.x}")
    return {"sum": state["sum"]}


def once(x: int) -> int:
    """Note that it ran, with nothing that would tell a second time from the first."""
    note(f"ran {x}")
    time.sleep(0.3)
    _kill(x)
    return x


def _kill(x: int) -> None:
    kill = _folder() / f"kill-{x}"
    if kill.exists():
        kill.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _fault(case: Tiny) -> None:
    if (_folder() / f"raise-{case.x}").exists():
        raise ValueError(f"case {case.x} was told to raise")
    _kill(case.x)
    if (_folder() / f"full-{case.x}").exists():  # no file may grow beyond this any more
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
