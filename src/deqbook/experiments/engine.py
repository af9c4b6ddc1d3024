"""Run the cases of an experiment anywhere, lose nothing, and run nothing twice.

What is unfinished is in the folder ``FILE.cases`` (see ``worker``). A command that was killed, by
whatever, goes on from there. The cheapest case runs first and calibrates the estimate of the time;
then the dearest come first, so that no long case is left for the end.
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deqbook.experiments.declaration import Experiment, Job
from deqbook.experiments.earlier import Earlier
from deqbook.experiments.places import Here, Place
from deqbook.experiments.receipts import (
    Cost,
    Provenance,
    ReceiptError,
    Results,
    hardware,
    provenance,
    read,
    versions,
    write,
)
from deqbook.experiments.worker import NoRoom, OutOfTime, Setting, key_of, line, replace_file, work

__all__ = ["Failure", "Outcome", "Unfinished", "execute", "span"]

KEYS = {"group", "case", "result", "seconds"}
TRIES = 3
"""How often a place may break in a row without finishing a case."""

GRACE = 20.0
"""Seconds after the end of the budget in which a case may reach its checkpoint."""


@dataclass(frozen=True)
class Failure:
    """A case that raised: which, and the traceback."""

    group: str
    case: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class Outcome:
    """What a command came to.

    ``results`` is ``None`` if a case failed or nothing is finished. ``left`` counts the cases that
    the budget did not reach.
    """

    results: Results | None
    failures: tuple[Failure, ...]
    left: int
    ran: int


@dataclass(frozen=True)
class Unfinished:
    """The folder of a command that is running, or was interrupted."""

    folder: Path
    command: str
    versions: Mapping[str, str]
    made_by: Provenance

    @property
    def _head(self) -> str:
        told = {"command": self.command, "versions": dict(self.versions)}
        return line(told | {"made_by": self.made_by.stored()}, sort_keys=True) + "\n"

    def begin(self) -> dict[str, dict[str, Any]]:
        """Return the finished cases by key, and make the folder ready for more.

        ``ReceiptError`` if other code began it, or if a file in it is damaged.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        head = self.folder / "command.json"
        if not head.is_file():
            replace_file(head, lambda new: new.write_text(self._head, encoding="utf-8"))
        found = head.read_text(encoding="utf-8")
        if found != self._head:
            raise ReceiptError(
                f"{self.folder} was begun by another command, other versions or other code:\n"
                f"  {found}now:\n  {self._head}Move it away, or give another --out."
            )
        files = [f for f in sorted(self.folder.glob("*.json")) if f != head]
        return {file.stem: self._entry(file) for file in files}

    def _entry(self, file: Path) -> dict[str, Any]:
        """Return the finished case that a file holds; refuse one that was damaged."""
        try:
            entry = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:  # neither JSON nor UTF-8
            entry = None
        whole = isinstance(entry, dict) and set(entry) == KEYS
        if not whole or key_of(entry["group"], entry["case"]) != file.stem:
            raise ReceiptError(f"{file} is damaged. Delete it, and its case runs again.")
        return entry

    def keep(self, entry: Mapping[str, Any]) -> None:
        """Write a case that a worker without this folder sent."""
        file = self.folder / f"{key_of(entry['group'], entry['case'])}.json"
        if not file.is_file():
            text = line(dict(entry)) + "\n"
            replace_file(file, lambda new: new.write_text(text, encoding="utf-8"))


def span(seconds: float) -> str:
    """Return a time in words: ``45 s``, ``12 min``, ``3.5 h``.

    >>> span(45), span(720), span(12600)
    ('45 s', '12 min', '3.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass
class _Clock:
    """Relative costs made into seconds by the cases that are done."""

    cost: Callable[[Any], float]
    spent: float = 0.0
    paid: float = 0.0

    def learn(self, case: Any, seconds: float) -> None:
        self.spent += seconds
        self.paid += self.cost(case)

    def expect(self, case: Any) -> float | None:
        return self.spent / self.paid * self.cost(case) if self.paid > 0 else None

    def total(self, cases: Sequence[Any], slots: int) -> float | None:
        each = [self.expect(case) for case in cases]
        known = [s for s in each if s is not None]
        # No schedule is shorter than its longest case.
        return max(sum(known) / slots, max(known, default=0.0)) if len(known) == len(each) else None


@dataclass
class _Run:
    """One command: what is waiting, what runs, what is done."""

    experiment: Experiment
    unfinished: Unfinished
    setting: Setting
    said: Callable[[str], None]
    total: int
    waiting: list[Job]
    cheapest_first: bool
    clock: _Clock
    done: dict[str, dict[str, Any]]
    failures: list[Failure] = field(default_factory=list)
    stopped: list[Job] = field(default_factory=list)
    no_room: NoRoom | None = None
    ran: int = 0

    def key(self, job: Job) -> str:
        return key_of(job[0], self.experiment.plain(job[1]))

    def at(self, place: Place) -> None:
        """Run everything that waits, opening the place again when it breaks."""
        broken = 0
        while self.waiting and not self.no_room:
            before = len(self.done)
            running: dict[Future[Any], Job] = {}
            try:
                with place.open() as (executor, slots):
                    self._drain(executor, slots, running)
            except place.lost as error:
                # Whatever was on its way waits again; a worker that still finishes leaves a file.
                self.waiting += running.values()
                broken = 1 if len(self.done) > before else broken + 1
                self.said(f"a worker or the scheduler was lost ({type(error).__name__}); again.")
                if broken >= TRIES:
                    told = f"lost {TRIES} times in a row, {place}: {error!r}"
                    self.failures += [self._failure(job, told) for job in running.values()]
                    return
                self._find_finished()
            else:
                return

    def _find_finished(self) -> None:
        """Take over what workers finished while nobody listened."""
        for key, entry in self.unfinished.begin().items():
            if key not in self.done:
                self.done[key] = entry
                self.ran += 1
        self.waiting = [job for job in self.waiting if self.key(job) not in self.done]

    def _drain(self, executor: Executor, slots: int, running: dict[Future[Any], Job]) -> None:
        while running or self._choose(peek=True) is not None:
            while len(running) < slots and (job := self._choose()) is not None:
                how = self.experiment
                future = executor.submit(work, how.run, how.plain, *job, self.setting)
                running[future] = job
            finished, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            if not finished and time.time() > self.setting.until + GRACE:
                self.stopped += running.values()  # leaving the place ends them
                running.clear()
                return
            for future in finished:
                self._take(future, running, slots)

    def _take(self, future: Future[Any], running: dict[Future[Any], Job], slots: int) -> None:
        job = running[future]
        try:
            entry = future.result()
        except OutOfTime:
            self.stopped.append(job)
        except NoRoom as full:
            self.no_room = full
        except Exception as error:
            if future.cancelled() or _is_lost(error):
                raise
            self.failures.append(self._failure(job, "".join(traceback.format_exception(error))))
            self.said(f"FAILED {job[0]} {job[1]}: {error!r}; the others go on.")
        else:
            self.unfinished.keep(entry)
            self.done[self.key(job)] = entry
            self.ran += 1
            self.clock.learn(job[1], entry["seconds"])
            self._tell(job, entry["seconds"], [j for f, j in running.items() if f != future], slots)
        del running[future]

    def _tell(self, job: Job, seconds: float, running: list[Job], slots: int) -> None:
        rest = [case for _, case in [*self.waiting, *running]]
        left = self.clock.total(rest, slots)
        words = f"; about {span(left)} left" if rest and left is not None else ""
        self.said(f"{len(self.done)}/{self.total} {job[0]}: {span(seconds)}{words}")

    def _choose(self, *, peek: bool = False) -> Job | None:
        """Return the case to begin next, or ``None`` if there is none or no time for one."""
        if self.no_room or not self.waiting or time.time() > self.setting.until:
            return None
        cost = self.experiment.cost
        order = sorted(self.waiting, key=lambda job: cost(job[1]), reverse=True)
        if self.clock.paid == 0 or self.cheapest_first:
            order = order[::-1]  # the cheapest calibrates the estimate
        left = self.setting.until - time.time()
        fits = [j for j in order if (self.clock.expect(j[1]) or 0.0) <= left]
        # A case that keeps checkpoints may begin even if the budget will not see its end.
        chosen = fits[0] if fits else (order[0] if self.experiment.checkpoints else None)
        if chosen is not None and not peek:
            self.waiting.remove(chosen)
        return chosen

    def _failure(self, job: Job, text: str) -> Failure:
        return Failure(job[0], self.experiment.plain(job[1]), text)


def _is_lost(error: BaseException) -> bool:
    """Tell whether the executor broke, and not the case."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"BrokenExecutor", "CancelledError", "CommClosedError"})


def execute(
    experiment: Experiment,
    jobs: Sequence[Job],
    file: Path,
    command: str,
    *,
    place: Place | None = None,
    budget: float = float("inf"),
    device: str | None = None,
    cheapest_first: bool = False,
    earlier: Earlier | None = None,
    said: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Run every job that is not finished, write the file, and say what it came to.

    The file is written when all jobs are done, or when the ``budget`` (seconds) ended: then it
    holds what is done and the folder stays, for the next start to go on. A case that raises does
    not stop the others, but no file is written. What an ``earlier`` file has is taken from there,
    if the cheapest of it comes out again. Raises ``NoRoom`` when the disk is full, ``ReceiptError``
    for a folder that other code began and a file that is not confirmed, ``PlaceError`` without a
    place.
    """
    place = Here() if place is None else place
    stored = [(group, experiment.plain(case)) for group, case in jobs]
    made_by = provenance(experiment.code, experiment.data, [case for _, case in stored])
    folder = file.with_name(file.name + ".cases")
    unfinished = Unfinished(folder, command, versions(), made_by)
    by_key = dict(zip((key_of(group, case) for group, case in stored), jobs))
    old = earlier.entries(list(by_key), command, unfinished.versions, made_by) if earlier else {}
    done = unfinished.begin()
    if done:
        said(f"{len(by_key.keys() & done)} of {len(jobs)} cases are in {folder}; going on.")
    clock = _Clock(experiment.cost)
    for key in by_key.keys() & done:
        clock.learn(by_key[key][1], done[key]["seconds"])
    setting = Setting(folder.absolute(), time.time() + budget, device)
    run = _Run(experiment, unfinished, setting, said, len(jobs), [], cheapest_first, clock, done)
    confirmed = earlier is None or _confirmed(run, place, earlier, old, by_key)
    taken = {k: e for k, e in old.items() if confirmed and k not in done}
    run.total -= len(taken)
    if not run.failures:
        run.waiting = [job for key, job in by_key.items() if key not in done | taken]
        if run.waiting:
            _announce(run, place)
        run.at(place)
    if run.no_room is not None:
        raise run.no_room
    whole = {key: (done | taken)[key] for key in by_key if key in done | taken}
    left = len(by_key) - len(whole) - len(run.failures)
    if run.failures or not whole:
        return Outcome(None, tuple(run.failures), left, run.ran)
    where = hardware(device)
    if earlier and taken:
        places = {key: at for at, key in enumerate(whole) if key in taken}
        made_by = replace(made_by, taken=earlier.taken(places))
        where = earlier.hardware(where)
    kept = ("group", "case", "result")
    entries = [json.loads(line({k: one[k] for k in kept})) for one in whole.values()]
    cost = Cost(where, tuple(one["seconds"] for one in whole.values()))
    write(file, command, unfinished.versions, entries, made_by=made_by, cost=cost)
    if not left:
        shutil.rmtree(folder)
    return Outcome(read(file), (), left, run.ran)


def _confirmed(
    run: _Run,
    place: Place,
    earlier: Earlier,
    old: Mapping[str, Mapping[str, Any]],
    by_key: Mapping[str, Job],
) -> bool:
    """Run the cheapest case of an earlier file again, and tell whether it was reached.

    ``ReceiptError`` if it does not come out again.
    """
    first = min(old, key=lambda key: run.experiment.cost(by_key[key][1]))
    if first not in run.done:
        told = f"{len(old)} cases of {len(by_key)} are in {earlier.file}; the cheapest"
        if len(old) == 1:
            told = f"1 case of {len(by_key)} is in {earlier.file}; it"
        run.said(f"{told} runs again.")
        run.waiting = [by_key[first]]
        run.at(place)
    if first in run.done:
        earlier.compare(run.done[first], old[first])
    return first in run.done


def _announce(run: _Run, place: Place) -> None:
    cases = [case for _, case in run.waiting]
    total = run.clock.total(cases, 1)
    words = "the cheapest first, to see how long the rest takes"
    if total is not None:
        words = f"about {span(total)} on one core, from those that are done"
    run.said(f"{len(cases)} cases to run, {place}; {words}.")
