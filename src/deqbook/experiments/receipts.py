r"""Results that took long, stored with a receipt: what made them, and proof that they are whole.

A result file is JSON with two parts. ``runs`` is a list of entries ``{group, case, result}``;
``receipt`` tells the command that made them, the versions it ran under, and the SHA-256 of the
command, the versions and the runs. No date and no place: the same run gives the same bytes.

While the command runs, every finished case is appended to a *journal* next to the file, one line
each, flushed at once. An interruption costs the case that was running and nothing else; the next
start reads the journal and goes on. At the end the file is written in one move, and the journal
removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

__all__ = ["Journal", "Receipt", "ReceiptError", "Results", "collect", "digest", "read", "versions"]

Entry = Mapping[str, Any]
KEYS = {"group", "case", "result"}


class ReceiptError(RuntimeError):
    """A result file is missing, damaged, or was made by another command."""


@dataclass(frozen=True)
class Receipt:
    """How a result came about, and the hash that binds the telling to the numbers."""

    command: str
    versions: Mapping[str, str]
    sha256: str

    def __str__(self) -> str:
        made = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"command   {self.command}\nversions  {made}\nSHA-256   {self.sha256}"


@dataclass(frozen=True)
class Results:
    """A result file that was read and whose hash was right."""

    receipt: Receipt
    runs: tuple[Entry, ...]

    def select(self, group: str, **wanted: Any) -> list[Entry]:
        """Return the entries of a group whose case has these values, in the order of the file."""
        found = [r for r in self.runs if r["group"] == group]
        if not found:
            known = ", ".join(dict.fromkeys(r["group"] for r in self.runs))
            raise KeyError(f"no runs of group {group!r}; there are {known}.")
        return [r for r in found if all(_same(r["case"][k], v) for k, v in wanted.items())]


def _same(stored: Any, wanted: Any) -> bool:
    return stored == (list(wanted) if isinstance(wanted, tuple) else wanted)


def versions() -> dict[str, str]:
    """Return what the numbers depend on beside the command: Python, torch, NumPy."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }


def digest(command: str, made: Mapping[str, str], runs: Sequence[Entry]) -> str:
    """Return the SHA-256 of the three in a canonical form: sorted keys, no spaces, ASCII."""
    whole = {"command": command, "versions": dict(made), "runs": [dict(r) for r in runs]}
    return hashlib.sha256(_line(whole, sort_keys=True).encode("ascii")).hexdigest()


def _line(value: Any, *, sort_keys: bool = False) -> str:
    # allow_nan=False: NaN is not JSON, and a number that is missing should say null.
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)


def write(file: Path, command: str, made: Mapping[str, str], runs: Sequence[Entry]) -> Receipt:
    """Write a result file in one move, one run a line, and return its receipt."""
    receipt = Receipt(command, dict(made), digest(command, made, runs))
    head = _line({"command": command, "versions": receipt.versions, "sha256": receipt.sha256})
    body = ",\n".join(_line(dict(r)) for r in runs)
    temporary = file.with_name(file.name + ".new")
    temporary.write_text(f'{{"receipt":{head},\n"runs":[\n{body}\n]}}\n', encoding="utf-8")
    os.replace(temporary, file)
    return receipt


def read(file: Path) -> Results:
    """Read a result file; refuse one whose numbers or receipt were touched."""
    if not file.is_file():
        raise ReceiptError(f"{file} is missing; restore it, or make it anew with its command.")
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        head, runs = whole["receipt"], tuple(whole["runs"])
        receipt = Receipt(head["command"], head["versions"], head["sha256"])
        found = digest(receipt.command, receipt.versions, runs)
    except (ValueError, KeyError, TypeError) as error:  # ValueError: neither JSON nor UTF-8, or NaN
        raise ReceiptError(f"{file} is not a result file with a receipt ({error!r}).") from None
    if found != receipt.sha256:
        raise ReceiptError(
            f"{file} does not match its receipt: SHA-256 {found}, the receipt says "
            f"{receipt.sha256}. Restore the file, or make it anew: {receipt.command}"
        )
    return Results(receipt, runs)


@dataclass(frozen=True)
class Journal:
    """The finished cases of a command that is still running, or was interrupted."""

    file: Path
    command: str
    versions: Mapping[str, str]

    @property
    def _head(self) -> str:
        return _line({"command": self.command, "versions": dict(self.versions)})

    def begin(self) -> list[Entry]:
        """Return the cases that are there already, and make the file ready for more.

        A last line that was cut off by an interruption is dropped: its case runs again.
        """
        if not self.file.is_file():
            self.file.write_text(self._head + "\n", encoding="utf-8")
            return []
        head, *lines = self.file.read_text(encoding="utf-8").split("\n")
        if head != self._head:
            raise ReceiptError(
                f"{self.file} was begun by another command or other versions:\n  {head}\n"
                f"now:\n  {self._head}\nMove it away, or give another --out."
            )
        # Every complete line ends with a line break, so what follows the last one was cut off.
        whole = lines[:-1]
        entries = [self._entry(number, line) for number, line in enumerate(whole, start=2)]
        # In one move: an interruption here must not cost the cases that are done.
        temporary = self.file.with_name(self.file.name + ".new")
        temporary.write_text("\n".join([head, *whole, ""]), encoding="utf-8")
        os.replace(temporary, self.file)
        return entries

    def _entry(self, number: int, line: str) -> Entry:
        """Return the finished case that a line holds; refuse a line that was damaged."""
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            entry = None
        if not isinstance(entry, dict) or set(entry) != KEYS:
            raise ReceiptError(
                f"line {number} of {self.file} is damaged: {line[:60]!r}. Delete the line, and its "
                "case runs again."
            )
        return entry

    def append(self, entry: Entry) -> None:
        """Add one finished case; it is on the disk when this returns."""
        with self.file.open("a", encoding="utf-8") as out:
            out.write(_line(dict(entry)) + "\n")
            out.flush()
            os.fsync(out.fileno())


def collect(
    file: Path,
    command: str,
    wanted: Iterable[tuple[str, Mapping[str, Any]]],
    run: Callable[[Sequence[tuple[str, Mapping[str, Any]]]], Iterator[tuple[int, Any]]],
    *,
    said: Callable[[str], None] = lambda text: None,
) -> Results:
    """Run every (group, case) that the journal lacks, write the file, and return what is in it.

    ``run`` gets the missing ones and yields (index, result) in any order, as they are ready.
    """
    todo = list(wanted)
    journal = Journal(file.with_name(file.name + ".part"), command, versions())
    done = {_key(e["group"], e["case"]): e for e in journal.begin()}
    missing = [(g, c) for g, c in todo if _key(g, c) not in done]
    if done:
        said(f"{len(todo) - len(missing)} of {len(todo)} cases are in {journal.file}; going on.")
    for index, result in run(missing):
        group, case = missing[index]
        entry = {"group": group, "case": case, "result": result}
        journal.append(entry)
        done[_key(group, case)] = entry
        said(f"{len(done)}/{len(todo)} {group}")
    runs = [json.loads(_line(dict(done[_key(g, c)]))) for g, c in todo]
    write(file, command, journal.versions, runs)
    journal.file.unlink(missing_ok=True)
    return read(file)


def _key(group: str, case: Mapping[str, Any]) -> str:
    return _line([group, case], sort_keys=True)
