"""What keeps a place busy: nothing is lost when it breaks, and claims and bugs run on it too."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tiny_cases import noted
from tiny_cluster import until
from tiny_experiment import TINY, go, jobs

from deqbook.cli import main, verify
from deqbook.experiments import engine
from deqbook.experiments.engine import _Clock
from deqbook.experiments.places import Cluster, Processes
from deqbook.experiments.serving import GivenUp, Steady, serve
from deqbook.experiments.worker import Setting, work
from deqbook.teeth.apart import survey_apart

SLOTS = 2


class Fragile(Executor):
    """Runs a job when it is submitted, and breaks as often as it is told to."""

    def __init__(self, breaks: list[str]):
        self.breaks = breaks

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        how = self.breaks.pop(0) if self.breaks else "works"
        if how == "refuses":
            raise BrokenExecutor("it broke before the job was taken")
        if how == "cancels":
            future.cancel()
            future.set_running_or_notify_cancel()
        elif how == "loses":
            future.set_exception(BrokenExecutor("it broke with the job"))
        else:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
        return future


class Place:
    """A place of ``Fragile`` executors; it counts how often it was opened and left."""

    lost = Processes(1).lost

    def __init__(self, *breaks: str):
        self.breaks, self.opened, self.left = list(breaks), 0, 0

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[Executor, int]]:
        self.opened += 1
        try:
            yield Fragile(self.breaks), SLOTS
        finally:
            self.left += 1

    def __str__(self) -> str:
        return "in a fragile place"


@pytest.mark.parametrize("how", ["refuses", "loses", "cancels"])
def test_what_was_on_its_way_is_given_again_in_order(how: str) -> None:
    said: list[str] = []
    place = Place("works", how, "works", "works", how)
    ran: list[int] = []
    assert list(Steady(place, said.append).map(lambda x: ran.append(x) or x**2, range(6))) == [
        x**2 for x in range(6)
    ]
    assert sorted(ran) == list(range(6))  # what ended in the round of a loss is not done again
    assert (place.opened, place.left) == (3, 3)
    assert said == [
        f"a worker or the scheduler was lost ({error}); again." for error in _named(how)
    ]


def _named(how: str) -> list[str]:
    return [{"cancels": "CancelledError"}.get(how, "BrokenExecutor")] * 2


def test_a_place_that_only_breaks_is_given_up() -> None:
    place = Place(*["loses"] * 9)
    with pytest.raises(GivenUp, match="lost 3 times in a row, in a fragile place") as given:
        list(Steady(place).map(abs, range(3)))
    assert place.opened == 3
    assert given.value.jobs
    # a job that ends in between starts the count again, in the round of a loss or in one of its own
    for steps in (
        "refuses refuses works refuses refuses",
        "loses loses loses loses works works loses loses",
    ):
        assert list(Steady(Place(*steps.split())).map(abs, range(4))) == [0, 1, 2, 3]
    with pytest.raises(GivenUp):
        list(Steady(Place("works", *["loses"] * 8)).map(abs, range(3)))


def test_no_place_is_opened_for_nothing() -> None:
    place = Place()
    assert list(Steady(place).map(abs, ())) == []
    assert place.opened == 0


def test_the_order_is_that_of_the_arguments_whoever_ends_first() -> None:
    first = threading.Event()

    def work(x: int) -> int:
        if x == 0:
            first.wait(30)
        else:
            first.set()
        return x

    class Threads(Place):
        @contextlib.contextmanager
        def open(self) -> Iterator[tuple[Executor, int]]:
            with ThreadPoolExecutor(SLOTS) as pool:
                yield pool, SLOTS

    assert list(Steady(Threads()).map(work, range(4))) == [0, 1, 2, 3]


def test_what_a_job_raises_ends_the_map_and_the_place_is_left() -> None:
    place = Place()
    found = Steady(place).map(lambda x: 1 // x, (1, 0, 1))
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        list(found)
    assert place.left == place.opened == 1
    half = Steady(place).map(abs, range(9))
    assert next(half) == 0
    half.close()
    assert place.left == place.opened == 2


def test_meanwhile_sees_what_runs_and_may_end_it() -> None:
    seen: list[tuple[int, ...]] = []

    class Slow(Fragile):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            return Future()  # never done

    class Nowhere(Place):
        @contextlib.contextmanager
        def open(self) -> Iterator[tuple[Executor, int]]:
            yield Slow([]), SLOTS

    waiting = [1, 2, 3]
    served = serve(
        Nowhere(),
        lambda: waiting.pop(0) if waiting else None,
        lambda executor, job: executor.submit(abs, job),
        lambda jobs, error: None,
        meanwhile=lambda running: bool(seen.append(running)) or len(seen) == 2,
    )
    assert list(served) == []
    assert seen == [(1, 2), (1, 2)]
    assert waiting == [3]


# --- the bar of a terminal ------------------------------------------------------------------------


def test_the_bar_knows_what_is_left() -> None:
    clock = _Clock(lambda case: float(case))
    assert clock.bar(0, 3, [2, 1], [0.0]) == "0 of 3 cases"
    clock.learn(1, 10.0)  # ten seconds a unit
    assert clock.left([2, 4], 1) == 60
    assert clock.left([2, 4], 2) == 40  # none ends before its longest case
    assert clock.left([2, 4], 2, [5.0, 15.0]) == 25
    assert clock.left([2, 4], 1, [30.0]) == 40  # longer than thought: nothing left of it
    full, empty = "█", "░"
    text = clock.bar(1, 3, [2, 2], [10.0])  # 10 of 50 seconds are done, and 10 of a case
    assert text == f"{full * 12}{empty * 18} 1 of 3 cases, about 30 s left"


def test_a_run_shows_the_bar_and_clears_it(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(engine, "progress", shown.append)
    go(out, Processes(2), wait=0.4)  # most cases last longer than the second between two looks
    assert re.search(r"^█+░* \d of 6 cases, about \d+ s left$", "\n".join(shown), re.MULTILINE)
    assert shown[-1] == ""


# --- claims and planted bugs ----------------------------------------------------------------------


def test_a_map_survives_a_restarted_scheduler(out: Path, cluster) -> None:
    address = cluster()
    said: list[str] = []
    found: list[Any] = []
    folder = out.with_name("folder")
    folder.mkdir()
    cases = [case for _, case in jobs(wait=0.15)]

    def run() -> None:
        place = Steady(Cluster(address), said.append)
        case_of = partial(work, TINY.run, TINY.plain, "group", setting=Setting(folder))
        found.extend(place.map(case_of, cases))

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: len(noted("end")) >= 1)
    cluster()
    thread.join(60)
    assert [entry["case"]["x"] for entry in found] == [1, 2, 3, 4, 5, 6]
    assert any("was lost" in text for text in said)


def test_claims_run_on_a_cluster_too(cluster, capsys: pytest.CaptureFixture[str]) -> None:
    here = ["verify", "gao2022.lemma2.2", "--seeds", "2", "--json", "--jobs", "1"]
    rows = []
    for more in ([], ["--jobs", "2"], ["--scheduler", cluster()]):
        assert main(here + more) == 0
        rows.append(json.loads(capsys.readouterr().out)["claims"])
    alone, *others = rows
    for together in others:
        assert verify.differences(alone, together) == []
        assert [run["seed"] for run in together[0]["runs"]] == [0, 1]


def test_bugs_are_planted_on_a_cluster_too(
    out: Path, cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = ["gao2022.lemma2.1", "gao2022.lemma2.2"]
    few = ["--computation", "2", "--statement", "1", "--quiet"]
    kept = []
    for place in (["--jobs", "2"], ["--scheduler", cluster()]):
        files = [out.with_name(f"{place[0]}{end}") for end in (".jsonl", ".json")]
        command = ["teeth", *claims, *few, *place, "--log", str(files[0]), "--receipt"]
        assert main([*command, str(files[1])]) == 0
        counts = json.loads(files[1].read_text())["claims"]
        kept.append({i: {k: v for k, v in c.items() if k != "seconds"} for i, c in counts.items()})
        rows = files[0].read_text().splitlines()
    here, there = kept
    assert here == there
    assert list(there) == claims
    # what stands in the log is not done again
    assert main([*command, str(files[1])]) == 0
    assert files[0].read_text().splitlines() == rows
    capsys.readouterr()


def test_a_claim_without_a_report_says_why() -> None:
    how = {"sample": "0", "each": (1, 1), "seed": 0}
    report, rows = survey_apart("no.such.claim", (), **how)
    assert isinstance(report, str)
    assert "no.such.claim" in report
    assert rows == []
