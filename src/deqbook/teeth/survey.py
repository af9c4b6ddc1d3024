"""Draw mutants for a claim, judge them, and count what it noticed."""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import json
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomllib

from deqbook.teeth import bench
from deqbook.teeth.mutants import Site, functions, mutants
from deqbook.teeth.planting import source

__all__ = [
    "Excuse",
    "Found",
    "Report",
    "excuses",
    "module_of",
    "note",
    "noted",
    "reread",
    "stale",
    "survey",
    "totals",
]

KINDS = ("computation", "statement")
"""Bugs in what is computed, and errors in what the theorem says."""
#: What is left alone, and why.
LEFT_ALONE = {
    "deqbook.solvers": "returns what its residual certifies; a bug costs time or raises",
    "deqbook.runtime": "draws instances; a theorem holds for others too",
    "deqbook.data": "draws instances; a theorem holds for others too",
    "deqbook.viz": "draws pictures",
    "deqbook.claims": "judges",
    "deqbook.experiments": "keeps receipts",
}
#: A mutant may take this many times what the claim takes, and a little more.
PATIENCE, GRACE = 10, 5.0


@dataclass(frozen=True)
class Excuse:
    """Why a mutant that was not noticed is none (``equivalent``), or cannot be (``survives``).

    ``place`` and ``claims`` are patterns; ``change`` is a part of what the mutant changed.
    """

    place: str
    verdict: str
    reason: str
    change: str = ""
    claims: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        if self.verdict not in {"equivalent", "survives"} or not self.reason:
            raise ValueError(
                f"the excuse for {self.place} says {self.verdict!r} because {self.reason!r}; "
                "a verdict is 'equivalent' or 'survives', and has a reason."
            )

    def fits(self, claim_id: str, place: str, change: str) -> bool:
        """Whether it speaks of this mutant."""
        return (
            fnmatch.fnmatchcase(place, self.place)
            and self.change in change
            and any(fnmatch.fnmatchcase(claim_id, pattern) for pattern in self.claims)
        )


@cache
def excuses() -> tuple[Excuse, ...]:
    """Return all excuses, from the files beside this module."""
    found = []
    for file in sorted(files("deqbook.teeth").joinpath("excuses").iterdir(), key=lambda f: f.name):
        for row in tomllib.loads(file.read_text(encoding="utf-8")).get("excuse", []):
            row["claims"] = tuple(row.get("claims", ["*"]))
            found.append(Excuse(**row))
    return tuple(found)


@dataclass(frozen=True)
class Found:
    """What became of one mutant."""

    claim: str
    key: str
    kind: str
    place: str
    change: str
    line: int
    noticed: str
    error: bool
    seconds: float
    digest: str

    @property
    def excuse(self) -> Excuse | None:
        """Why it was not noticed, if somebody wrote it down."""
        if self.noticed:
            return None
        return next((e for e in excuses() if e.fits(self.claim, self.place, self.change)), None)

    @property
    def verdict(self) -> str:
        """Caught, survives or equivalent."""
        if self.noticed:
            return "caught"
        return self.excuse.verdict if self.excuse else "survives"


@dataclass(frozen=True)
class Report:
    """A claim's mutants."""

    claim: str
    found: tuple[Found, ...]
    seconds: float
    functions: dict[str, str] = field(default_factory=dict)

    def count(self, kind: str) -> tuple[int, int, int]:
        """Return how many mutants of a kind were caught, planted, and equivalent (not planted)."""
        verdicts = [f.verdict for f in self.found if f.kind == kind]
        equivalent = verdicts.count("equivalent")
        return verdicts.count("caught"), len(verdicts) - equivalent, equivalent

    @property
    def survivors(self) -> list[Found]:
        """The mutants that were not noticed and are not equivalent."""
        return [f for f in self.found if f.verdict == "survives"]

    def as_json(self) -> dict[str, Any]:
        """Return what is kept of it."""
        return {
            **{kind: self.count(kind) for kind in KINDS},
            "raised": sum(f.error for f in self.found),
            "seconds": round(self.seconds, 1),
            "functions": self.functions,
            "survivors": [
                [f.kind, f.key, f.excuse.reason if f.excuse else ""] for f in self.survivors
            ],
            "equivalent": [
                [f.kind, f.key, f.excuse.reason]
                for f in self.found
                if f.verdict == "equivalent" and f.excuse
            ],
        }


def kind_of(module: str, function: str = "") -> str:
    """Say whether a function computes, or says what a theorem says.

    What is stated stands in claims, and in what is named after bounds and constants.

    >>> kind_of("deqbook.models.dense"), kind_of("deqbook.bounds.vanilla")
    ('computation', 'statement')
    >>> kind_of("deqbook.pages.p05b_selection.lab", "Recursion.rate_constant")
    'statement'
    """
    states = module.startswith("deqbook.bounds") or ".claims" in module or "bounds" in module
    named = any(word in function for word in ("bound", "constant"))
    return "statement" if states or named else "computation"


def module_of(file: str) -> str:
    """Name the module in a file of the package.

    >>> module_of("models/__init__.py"), module_of("linalg.py")
    ('deqbook.models', 'deqbook.linalg')
    """
    parts = Path(file).with_suffix("").parts
    return ".".join(["deqbook", *(p for p in parts if p != "__init__")])


def digest(module: str, name: str) -> str:
    """Digest the source of one function, as it is parsed; "" if there is none."""
    found = _definitions(module).get(name)
    return "" if found is None else hashlib.sha256(ast.dump(found).encode()).hexdigest()[:12]


@cache
def _definitions(module: str) -> dict[str, ast.FunctionDef]:
    return dict(functions(source(module).tree))


@cache
def _mutants(module: str, name: str) -> tuple[Site, ...]:
    found = _definitions(module).get(name)
    if found is None or name not in source(module).functions:
        return ()
    return tuple(mutants(module, name, found))


def candidates(ran: dict[str, dict[str, list[int]]]) -> dict[str, dict[str, list[Site]]]:
    """Return, for each kind and function, the mutants in statements that ran."""
    found: dict[str, dict[str, list[Site]]] = {kind: {} for kind in KINDS}
    for file, by_function in sorted(ran.items()):
        module = module_of(file)
        if any(module == m or module.startswith(f"{m}.") for m in LEFT_ALONE):
            continue
        for name, lines in sorted(by_function.items()):
            sites = [s for s in _mutants(module, name) if not set(lines).isdisjoint(s.lines)]
            if sites:
                found[kind_of(module, name)][f"{module}:{name}"] = sites
    return found


def draw(sites: dict[str, list[Site]], number: int, rng: random.Random) -> list[Site]:
    """Draw mutants, function by function, so that long functions have no larger share."""
    piles = [rng.sample(found, len(found)) for found in sites.values()]
    rng.shuffle(piles)
    drawn: list[Site] = []
    while piles and len(drawn) < number:
        drawn += [pile.pop() for pile in piles]
        piles = [pile for pile in piles if pile]
    return drawn[:number]


def survey(
    ids: Sequence[str],
    *,
    sample: str,
    each: tuple[int, int] = (12, 8),
    seed: int = 0,
    jobs: int = 1,
    log: Path | None = None,
) -> Iterator[Report]:
    """Judge a sample of mutants of each claim; ``sample`` is the word it is drawn by.

    ``each`` says how many of what is computed and of what is stated. Results are appended to
    ``log``, and those that stand there for the same code are not computed again.
    """
    known = {(row.claim, row.key, row.digest): row for row in noted(log)}
    for claim_id in ids:
        yield _one(claim_id, sample, each, seed, jobs, log, known)


def noted(log: Path | None) -> list[Found]:
    """Return what stands in a log."""
    if log is None or not log.is_file():
        return []
    rows = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(Found(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            continue  # the line that an interruption cut
    return rows


def note(rows: Iterable[Found], log: Path | None) -> None:
    """Append what became of mutants to the log."""
    if log is None:
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab+") as file:
        if file.tell():  # an interruption may have cut the last line
            file.seek(-1, os.SEEK_END)
            file.write(b"" if file.read(1) == b"\n" else b"\n")
        for row in rows:
            file.write(json.dumps(asdict(row), ensure_ascii=False).encode() + b"\n")


def _one(
    claim_id: str,
    sample: str,
    each: tuple[int, int],
    seed: int,
    jobs: int,
    log: Path | None,
    known: dict[tuple[str, str, str], Found],
) -> Report:
    looks = [
        bench.Task("trace", lambda: bench.trace(claim_id, seed), 300),
        bench.Task("whole", lambda: bench.judge(claim_id, seed), 100),
    ]
    first = {outcome.name: outcome for outcome in bench.run(looks, jobs)}
    if first["whole"].result["noticed"] or "noticed" in first["trace"].result:
        raise ValueError(
            f"{claim_id} does not stand on seed {seed} as it is "
            f"({first['whole'].result.get('noticed') or first['trace'].result['noticed']}); "
            "there is nothing to plant bugs into."
        )
    ran = first["trace"].result
    whole = first["whole"].seconds
    own = {
        f"{module_of(file)}:{name}": digest(module_of(file), name)
        for file, names in ran.items()
        for name in names
        if ".pages." in module_of(file)
    }
    statement = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:12]
    rng = random.Random(f"{sample} {claim_id}")
    sites = candidates(ran)
    drawn = [(kind, s) for kind, k in zip(KINDS, each) for s in draw(sites[kind], k, rng)]
    marks = {
        s.mutant.key: f"{statement}-{digest(s.mutant.module, s.mutant.function)}-{seed}"
        for _, s in drawn
    }
    done = {
        s.mutant.key: replace(known[claim_id, s.mutant.key, marks[s.mutant.key]], kind=kind)
        for kind, s in drawn
        if (claim_id, s.mutant.key, marks[s.mutant.key]) in known
    }
    todo = {s.mutant.key: (kind, s) for kind, s in drawn if s.mutant.key not in done}
    limit = PATIENCE * whole + GRACE
    tasks = [
        bench.Task(key, _planted(site, claim_id, seed), limit) for key, (_, site) in todo.items()
    ]
    for outcome in bench.run(tasks, jobs):
        kind, site = todo[outcome.name]
        if outcome.result["noticed"].startswith("LookupError: nothing of"):
            continue  # a function that nobody reaches by name
        m = site.mutant
        row = Found(
            claim_id,
            m.key,
            kind,
            m.place,
            f"{m.kind}: {m.change}",
            m.line,
            outcome.result["noticed"],
            bool(outcome.result.get("error")),
            round(outcome.seconds, 2),
            marks[m.key],
        )
        done[m.key] = row
        note([row], log)
    found = tuple(done[s.mutant.key] for _, s in drawn if s.mutant.key in done)
    mutated = {f.place: digest(*f.place.split(":")) for f in found}
    return Report(claim_id, found, sum(f.seconds for f in found) + whole, own | mutated)


def _planted(site: Site, claim_id: str, seed: int) -> Any:
    def work() -> dict[str, Any]:
        try:
            source(site.mutant.module).plant(site)
        except (ValueError, LookupError) as error:
            return {"noticed": f"LookupError: nothing of it can be planted: {error}"}
        return bench.judge(claim_id, seed)

    return work


def reread(claim_id: str, kept: dict[str, Any]) -> dict[str, Any]:
    """Look up the excuses of a kept report again, as they stand now; nothing is planted."""
    listed = [*kept["survivors"], *kept["equivalent"]]
    found = []
    for kind, key, _ in listed:
        place, change = re.sub(r" \(\d+\)$", "", key).split(": ", 1)  # without which copy it is
        found.append(Found(claim_id, key, kind, place, change, 0, "", False, 0.0, ""))
    now = Report(claim_id, tuple(found), kept["seconds"]).as_json()
    counts = {}
    for kind in KINDS:
        caught, (_, survive, equivalent) = kept[kind][0], now[kind]
        counts[kind] = [caught, caught + survive, equivalent]
    return kept | counts | {part: now[part] for part in ("survivors", "equivalent")}


def stale(kept: dict[str, Any]) -> list[str]:
    """Name the functions of a kept report whose source has changed since."""
    changed = []
    for place, mark in kept["functions"].items():
        module, _, name = place.partition(":")
        try:
            now = digest(module, name)
        except ModuleNotFoundError:
            now = ""
        if now != mark:
            changed.append(place)
    return changed


def totals(reports: Iterable[dict[str, Any]]) -> dict[str, tuple[int, int, int]]:
    """Add up the counts of kept reports, by kind."""
    rows = list(reports)
    return {
        kind: (
            sum(r[kind][0] for r in rows),
            sum(r[kind][1] for r in rows),
            sum(r[kind][2] for r in rows),
        )
        for kind in KINDS
    }
