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
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import zip_longest
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
from deqbook.experiments.serving import Done, GivenUp, lost, serve
from deqbook.experiments.worker import NoRoom, OutOfTime, Setting, key_of, line, replace_file, work
from deqbook.runtime import progress

__all__ = ["Failure", "Outcome", "Unfinished", "execute", "span"]

KEYS = {"group", "case", "result", "seconds"}
GRACE = 20.0
"""Seconds after the end of the budget in which a case may reach its checkpoint."""

INSTANT = 0.05
"""Seconds that a case counts for at least: times are kept to a tenth."""

BAR = 30
"""Letters of the bar that a terminal shows."""


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
        self.spent += max(seconds, INSTANT)
        self.paid += self.cost(case)

    def expect(self, case: Any, gone: float = 0.0) -> float:
        """Return the seconds left of a case that has run for ``gone``; 0 if nobody knows yet."""
        return max(self.spent / self.paid * self.cost(case) - gone, 0.0) if self.paid > 0 else 0.0

    def left(self, rest: Sequence[Any], slots: int, gone: Sequence[float] = ()) -> float | None:
        """Return the seconds left, where the first of the ``rest`` have run for so long."""
        if self.paid == 0:
            return None
        each = [self.expect(*one) for one in zip_longest(rest, gone, fillvalue=0.0)]
        return max(sum(each) / slots, max(each, default=0.0))  # none ends before its longest case

    def bar(self, done: int, total: int, rest: Sequence[Any], gone: Sequence[float]) -> str:
        """Return a bar and the time left, where the first of the ``rest`` run."""
        told = f"{done} of {total} cases"
        left = self.left(rest, len(gone), gone)
        if left is None:
            return told
        ahead = sum(self.expect(*one) for one in zip_longest(rest, gone, fillvalue=0.0))
        share = round(BAR * (1 - ahead / (self.spent + sum(map(self.expect, rest)))))
        return f"{'█' * share}{'░' * (BAR - share)} {told}, about {span(left)} left"


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
    since: dict[str, float] = field(default_factory=dict)
    no_room: NoRoom | None = None
    ran: int = 0

    def key(self, job: Job) -> str:
        return key_of(job[0], self.experiment.plain(job[1]))

    def at(self, place: Place) -> None:
        """Run everything that waits, opening the place again when it breaks."""
        try:
            with closing(
                serve(place, self._choose, self._submit, self._again, meanwhile=self._meanwhile)
            ) as served:
                for done in served:
                    progress("")
                    self._take(done)
        except GivenUp as error:
            left = [job for job in error.jobs if job in self.waiting]
            self.failures += [self._failure(job, str(error)) for job in left]
        finally:
            progress("")

    def _submit(self, executor: Executor, job: Job) -> Future[Any]:
        how = self.experiment
        self.since[self.key(job)] = time.time()
        return executor.submit(work, how.run, how.plain, *job, self.setting)

    def _again(self, jobs: Sequence[Job], error: BaseException) -> None:
        """Let what was on its way wait again; a worker that still finishes leaves a file."""
        self.waiting += jobs
        progress("")
        self.said(lost(error))
        self._find_finished()

    def _meanwhile(self, running: Sequence[Job]) -> bool:
        """Show how far it is; tell whether the budget ended so long ago that all is kept."""
        now = time.time()
        gone = [now - self.since[self.key(job)] for job in running]
        cases = [case for _, case in [*running, *self.waiting]]
        progress(self.clock.bar(len(self.done), self.total, cases, gone))
        return now > self.setting.until + GRACE

    def _find_finished(self) -> None:
        """Take over what workers finished while nobody listened."""
        for key, entry in self.unfinished.begin().items():
            if key not in self.done:
                self.done[key] = entry
                self.ran += 1
        self.waiting = [job for job in self.waiting if self.key(job) not in self.done]

    def _take(self, done: Done[Job]) -> None:
        job = done.job
        try:
            entry = done.future.result()
        except OutOfTime:
            return  # its checkpoint waits for the next start
        except NoRoom as full:
            self.no_room = full
        except Exception as error:
            self.failures.append(self._failure(job, "".join(traceback.format_exception(error))))
            self.said(f"FAILED {job[0]} {job[1]}: {error!r}; the others go on.")
        else:
            self.unfinished.keep(entry)
            self.done[self.key(job)] = entry
            self.ran += 1
            self.clock.learn(job[1], entry["seconds"])
            self._tell(job, entry["seconds"], done.running, done.slots)

    def _tell(self, job: Job, seconds: float, running: Sequence[Job], slots: int) -> None:
        rest = [case for _, case in [*self.waiting, *running]]
        left = self.clock.left(rest, slots)
        words = f"; about {span(left)} left" if rest and left is not None else ""
        self.said(f"{len(self.done)}/{self.total} {job[0]}: {span(seconds)}{words}")

    def _choose(self) -> Job | None:
        """Return the case to begin next, or ``None`` if there is none or no time for one."""
        if self.no_room or not self.waiting or time.time() > self.setting.until:
            return None
        cost = self.experiment.cost
        order = sorted(self.waiting, key=lambda job: cost(job[1]), reverse=True)
        if self.clock.paid == 0 or self.cheapest_first:
            order = order[::-1]  # the cheapest calibrates the estimate
        left = self.setting.until - time.time()
        fits = [j for j in order if self.clock.expect(j[1]) <= left]
        # A case that keeps checkpoints may begin even if the budget will not see its end.
        chosen = fits[0] if fits else (order[0] if self.experiment.checkpoints else None)
        if chosen is not None:
            self.waiting.remove(chosen)
        return chosen

    def _failure(self, job: Job, text: str) -> Failure:
        return Failure(job[0], self.experiment.plain(job[1]), text)


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
    total = run.clock.left(cases, 1)
    words = "the cheapest first, to see how long the rest takes"
    if total is not None:
        words = f"about {span(total)} on one core, from those that are done"
    run.said(f"{len(cases)} cases to run, {place}; {words}.")
