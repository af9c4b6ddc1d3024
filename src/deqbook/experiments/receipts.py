r"""Results that took long, stored with a receipt: what made them, and proof that they are whole.

A result file is JSON with three parts. ``runs`` is a list of entries ``{group, case, result}``.
``receipt`` tells the command that made them, the versions it ran under, the SHA-256 of the code and
of the data, the seeds, which runs came from an earlier file, and the SHA-256 of all that and of the
runs. No date and no place: the same run gives the same hash. ``cost`` tells the hardware and the
seconds of each case; two runs never share it, so it stands outside the hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch

from deqbook.data.bundled import names
from deqbook.experiments.worker import line, replace_file

__all__ = [
    "Cost",
    "Provenance",
    "Receipt",
    "ReceiptError",
    "Results",
    "Taken",
    "code_hash",
    "digest",
    "hardware",
    "provenance",
    "read",
    "versions",
    "write",
]

Entry = Mapping[str, Any]
KEYS = {"group", "case", "result"}
LIBRARY = (
    *("activations", "bounds", "data", "dynamics", "implicit", "kernels", "landscape", "linalg"),
    *("models", "regularize", "runtime", "solvers", "splitting", "wellposed"),
)
"""The rooms that any case may use: their sources are part of every code hash."""


class ReceiptError(RuntimeError):
    """A result file is missing, damaged, or was made by another command."""


@dataclass(frozen=True)
class Taken:
    """Runs of an earlier file: its hash, the code that made them, their places in ``runs``."""

    sha256: str
    code: str
    runs: tuple[int, ...]


@dataclass(frozen=True)
class Provenance:
    """What the numbers depend on beside the command and the versions.

    ``code`` made all runs but those that were ``taken`` from earlier files.
    """

    code: str
    data: Mapping[str, str]
    seeds: tuple[int, ...]
    taken: tuple[Taken, ...] = ()

    def stored(self) -> dict[str, Any]:
        """Return it as a result file has it; without ``taken`` where nothing was."""
        whole = asdict(self)
        return whole if self.taken else {k: v for k, v in whole.items() if k != "taken"}


@dataclass(frozen=True)
class Receipt:
    """How a result came about, and the hash that binds the telling to the numbers."""

    command: str
    versions: Mapping[str, str]
    sha256: str
    made_by: Provenance | None = None

    def __str__(self) -> str:
        made = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        lines = [f"command   {self.command}", f"versions  {made}"]
        if self.made_by is not None:
            used = ", ".join(f"{k} {v[:12]}…" for k, v in self.made_by.data.items()) or "none"
            lines += [f"code      {self.made_by.code[:12]}…", f"data      {used}"]
            lines += [f"seeds     {', '.join(map(str, self.made_by.seeds)) or 'none'}"]
            lines += [
                f"taken     {len(t.runs)} runs of {t.sha256[:12]}…, code {t.code[:12]}…"
                for t in self.made_by.taken
            ]
        return "\n".join([*lines, f"SHA-256   {self.sha256}"])


@dataclass(frozen=True)
class Cost:
    """What a result took: where, and the seconds of each case in the order of the runs."""

    hardware: str
    seconds: tuple[float, ...]

    @property
    def hours(self) -> float:
        """All cases together, in hours on one core."""
        return sum(self.seconds) / 3600


@dataclass(frozen=True)
class Results:
    """A result file that was read and whose hash was right."""

    receipt: Receipt
    runs: tuple[Entry, ...]
    cost: Cost | None = field(default=None, compare=False)

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


def code_hash(modules: Iterable[str]) -> str:
    """Return the SHA-256 of the sources of the library and of these modules of the package."""
    root = Path(__file__).parents[1]
    files: set[Path] = set()
    for name in [*(f"deqbook.{room}" for room in LIBRARY), *modules]:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ReceiptError(f"the code of {name} is not found, so it has no hash.")
        origin = Path(spec.origin)
        files |= set(origin.parent.rglob("*.py")) if spec.submodule_search_locations else {origin}
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()


def provenance(modules: Iterable[str], data: Iterable[str], cases: Iterable[Any]) -> Provenance:
    """Return the hashes of code and bundled data as they are now, and the seeds of the cases."""
    known = names()
    seeds = sorted({c["seed"] for c in cases if "seed" in c})
    return Provenance(code_hash(modules), {n: known[n].sha256 for n in data}, tuple(seeds))


def hardware(device: str | None = None) -> str:
    """Return what processor this is, in words."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        named = [row for row in info.read_text().splitlines() if row.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else model
    graphics = ""
    if device not in (None, "cpu") and torch.cuda.is_available():
        graphics = f", {torch.cuda.get_device_name(device)}"
    return f"{model}, {os.cpu_count()} cores{graphics}"


def digest(
    command: str,
    made: Mapping[str, str],
    runs: Sequence[Entry],
    made_by: Provenance | None = None,
) -> str:
    """Return the SHA-256 of these in a canonical form: sorted keys, no spaces, ASCII."""
    whole = {"command": command, "versions": dict(made), "runs": [dict(r) for r in runs]}
    if made_by is not None:  # the first result files had none, and their hashes stay what they are
        whole["made_by"] = made_by.stored()
    return hashlib.sha256(line(whole, sort_keys=True).encode("ascii")).hexdigest()


def write(
    file: Path,
    command: str,
    made: Mapping[str, str],
    runs: Sequence[Entry],
    *,
    made_by: Provenance | None = None,
    cost: Cost | None = None,
) -> Receipt:
    """Write a result file in one move, one run a line, and return its receipt."""
    receipt = Receipt(command, dict(made), digest(command, made, runs, made_by), made_by)
    head: dict[str, Any] = {"command": command, "versions": receipt.versions}
    head |= {"made_by": made_by.stored()} if made_by is not None else {}
    head["sha256"] = receipt.sha256
    parts = [f'{{"receipt":{line(head)},']
    parts += [f'"cost":{line(asdict(cost))},'] if cost is not None else []
    parts += ['"runs":[', ",\n".join(line(dict(r)) for r in runs), "]}", ""]
    text = "\n".join(parts)
    replace_file(file, lambda new: new.write_text(text, encoding="utf-8"))
    return receipt


def read(file: Path) -> Results:
    """Read a result file; refuse one whose numbers or receipt were touched."""
    if not file.is_file():
        raise ReceiptError(f"{file} is missing; restore it, or make it anew with its command.")
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        head, runs = whole["receipt"], tuple(whole["runs"])
        made_by = _provenance(head["made_by"]) if "made_by" in head else None
        receipt = Receipt(head["command"], head["versions"], head["sha256"], made_by)
        cost = whole.get("cost")
        took = None if cost is None else Cost(cost["hardware"], tuple(cost["seconds"]))
        found = digest(receipt.command, receipt.versions, runs, made_by)
    except (ValueError, KeyError, TypeError) as error:  # ValueError: neither JSON nor UTF-8, or NaN
        raise ReceiptError(f"{file} is not a result file with a receipt ({error!r}).") from None
    if found != receipt.sha256:
        raise ReceiptError(
            f"{file} does not match its receipt: SHA-256 {found}, the receipt says "
            f"{receipt.sha256}. Restore the file, or make it anew: {receipt.command}"
        )
    return Results(receipt, runs, took)


def _provenance(stored: Mapping[str, Any]) -> Provenance:
    taken = tuple(Taken(t["sha256"], t["code"], tuple(t["runs"])) for t in stored.get("taken", ()))
    return Provenance(stored["code"], stored["data"], tuple(stored["seeds"]), taken)
