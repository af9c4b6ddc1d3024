"""What happens where a case runs: the room for its result, its checkpoint, its lock.

Everything about an unfinished command is in one folder, with a few files for each case:

- ``KEY.json`` the finished case, written in one move; its being there means that the case is done;
- ``KEY.checkpoint`` how far an unfinished one got;
- ``KEY.seconds`` how long that took;
- ``KEY.room`` space that was set aside for the result before the case began;
- ``KEY.lock`` held while the case runs, and let go by the system however the process ends.

So a case that two processes were given runs once: the second waits for the lock, finds the file
and returns what is in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

if sys.platform != "win32":
    import fcntl

__all__ = [
    "Checkpoint",
    "NoRoom",
    "OutOfTime",
    "Setting",
    "key_of",
    "line",
    "plain",
    "replace_file",
    "work",
]

ROOM = 1 << 18
"""Bytes set aside for one result. A larger one is written all the same if the disk has space."""


class NoRoom(RuntimeError):
    """The disk has no space for a result, so the case was not begun."""


class OutOfTime(RuntimeError):
    """The budget ended inside a case; its checkpoint holds what was done."""


@dataclass(frozen=True)
class Setting:
    """Where and until when a case may run; nothing here changes its numbers.

    ``folder`` holds what is unfinished. ``until`` is the end of the budget in seconds since the
    epoch. ``device`` is for torch; ``None`` leaves the choice to the case.
    """

    folder: Path
    until: float = float("inf")
    device: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """What a long case calls now and then, so that an interruption costs little.

    ``load(read)`` returns ``read(file)`` of the last state, or ``None``; ``save(write)`` calls
    ``write(file)`` and puts the file in its place in one move; ``kept`` is told. A state that
    cannot be written because the disk is full is not worth losing the case for: it is said, and the
    case goes on. After the end of the budget ``save`` raises ``OutOfTime``.
    """

    file: Path
    until: float = float("inf")
    device: str | None = None
    kept: Callable[[], object] = lambda: None
    missed: list[str] = field(default_factory=list, compare=False)

    def load(self, read: Callable[[Path], Any]) -> Any | None:
        """Return the last state that was saved, or ``None``."""
        return read(self.file) if self.file.is_file() else None

    def save(self, write: Callable[[Path], object]) -> None:
        """Save a state in one move; then stop if the time is over."""
        try:
            replace_file(self.file, write)
        except OSError as error:
            self.missed.append(str(error))
            print(f"no checkpoint was written: {error}", file=sys.stderr, flush=True)
            return  # without a checkpoint there is nothing to come back to: go on, over time too
        self.kept()
        if time.time() > self.until:
            raise OutOfTime(f"the budget ended; the state is in {self.file.name}")


def line(value: Any, *, sort_keys: bool = False) -> str:
    """Return JSON on one line, without spaces; a number that is missing must say null, not NaN."""
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)


def plain(case: Any) -> dict[str, Any]:
    """Return a frozen case or result as JSON stores it: tuples become lists."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(case).items()}


def key_of(group: str, case: Mapping[str, Any]) -> str:
    """Return the name of a case's files: the beginning of the SHA-256 of what it says."""
    return hashlib.sha256(line([group, case], sort_keys=True).encode("ascii")).hexdigest()[:20]


def replace_file(file: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, to the disk, and move it there; or leave the old one."""
    new = file.with_name(file.name + ".new")
    try:
        write(new)
        with new.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(new, file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def work(
    run: Callable[[Any, Checkpoint], Any],
    plain: Callable[[Any], Mapping[str, Any]],
    group: str,
    case: Any,
    setting: Setting,
) -> dict[str, Any]:
    """Run one case unless it is done, and return its entry ``{group, case, result, seconds}``.

    On one thread: the number of threads changes last digits. ``run`` and ``case`` have to be
    importable, because they are sent to other processes.
    """
    stored = dict(plain(case))
    setting.folder.mkdir(parents=True, exist_ok=True)  # another machine may not see the command's
    file = setting.folder / f"{key_of(group, stored)}.json"
    with _locked(file.with_suffix(".lock")):
        if file.is_file():
            return json.loads(file.read_text(encoding="utf-8"))
        room = file.with_suffix(".room")
        _set_aside(room)
        _one_thread()
        clock = _Timer(file.with_suffix(".seconds"))
        state = Checkpoint(
            file.with_suffix(".checkpoint"), setting.until, setting.device, clock.keep
        )
        try:
            result = run(case, state)
        except BaseException:
            room.unlink(missing_ok=True)
            raise
        seconds = round(clock.read(), 1)
        entry = {"group": group, "case": stored, "result": result, "seconds": seconds}
        _fill(room, line(entry) + "\n")
        os.replace(room, file)
        for rest in (".checkpoint", ".seconds"):
            file.with_suffix(rest).unlink(missing_ok=True)
    return json.loads(line(entry))


def _one_thread() -> None:
    """Compute on one thread; a case that uses torch has imported it by now."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


class _Timer:
    """Seconds of work that count: those up to a checkpoint, whatever ended the process after it."""

    def __init__(self, file: Path):
        self.file, self.started = file, time.perf_counter()
        self.before = float(file.read_text()) if file.is_file() else 0.0

    def read(self) -> float:
        return self.before + time.perf_counter() - self.started

    def keep(self) -> None:
        """Write them beside the checkpoint; on a full disk they are not worth an error."""
        so_far = f"{self.read():.1f}"
        with contextlib.suppress(OSError):
            replace_file(self.file, lambda new: new.write_text(so_far))


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, however that ends."""
    with file.open("a") as held:
        if sys.platform != "win32":
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _set_aside(room: Path) -> None:
    """Fill a file with zeros that the result is written over later."""
    try:
        with room.open("wb") as out:
            out.write(bytes(ROOM))
            _to_disk(out)
    except OSError as error:
        room.unlink(missing_ok=True)
        raise NoRoom(
            f"no room for a result in {room.parent} ({error.strerror}); "
            f"{ROOM // 1024} KiB are needed for each case that runs."
        ) from None


def _fill(room: Path, text: str) -> None:
    """Write over the zeros, and cut the rest off: this needs no new space."""
    with room.open("rb+" if room.is_file() else "wb") as out:
        out.write(text.encode("utf-8"))
        out.truncate()
        _to_disk(out)


def _to_disk(out: IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())
