"""What keeps a place busy: nothing is lost when it breaks, and claims and bugs run on it too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_cases import Tiny, noted, once
from tiny_cluster import until
from tiny_experiment import TINY, go, jobs

from deqbook.cli import main, verify
from deqbook.experiments import engine, places, worker
from deqbook.experiments.engine import _Clock
from deqbook.experiments.places import Cluster, PlaceError, Processes
from deqbook.experiments.serving import GivenUp, Steady, serve
from deqbook.experiments.worker import Checkpoint, OutOfTime, Setting, replace_file, work

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
    def open(self) -> Iterator[tuple[Executor, Callable[[], int]]]:
        self.opened += 1
        try:
            yield Fragile(self.breaks), lambda: SLOTS
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
        def open(self) -> Iterator[tuple[Executor, Callable[[], int]]]:
            with ThreadPoolExecutor(SLOTS) as pool:
                yield pool, lambda: SLOTS

    kept: list[int] = []
    assert list(Steady(Threads(), kept=kept.append).map(work, range(4))) == [0, 1, 2, 3]
    assert sorted(kept) == [0, 1, 2, 3]
    assert kept[0] == 1  # what ends is kept before its turn comes


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
        def open(self) -> Iterator[tuple[Executor, Callable[[], int]]]:
            yield Slow([]), lambda: SLOTS

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
    short = _Clock(lambda case: float(case))
    short.learn(1, 0.0)  # times are kept to a tenth of a second
    assert "1 of 2 cases" in short.bar(1, 2, [4], [9.0])
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
    go(out, Processes(1), wait=0.4)  # most cases last longer than the second between two looks
    assert re.search(r"^█+░* \d of 6 cases, about \d+ s left$", "\n".join(shown), re.MULTILINE)
    assert shown[-1] == ""


# --- a cluster --------------------------------------------------------------------------------


def test_a_map_survives_a_restarted_scheduler(out: Path, cluster) -> None:
    address = cluster()
    said: list[str] = []
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.extend(Steady(Cluster(address), said.append).map(once, range(8)))
    )
    thread.start()
    until(lambda: len(noted("ran")) >= 3)
    cluster()
    thread.join(120)
    assert found == list(range(8))
    assert any("was lost" in text for text in said)
    assert len(noted("ran")) <= 8 + 2  # beside what was on its way, all ran once


def test_what_a_killed_worker_had_finished_does_not_run_again(out: Path, cluster) -> None:
    (out.parent / "kill-7").touch()
    assert list(Steady(Cluster(cluster())).map(once, range(10))) == list(range(10))
    twice = [row for row in noted("ran") if noted("ran").count(row) > 1]
    assert set(twice) <= {"ran 7"}
    assert not (out.parent / "kill-7").exists()


def test_a_case_without_the_folder_of_the_command_runs_all_the_same(out: Path) -> None:
    folder = out.with_name("nowhere") / "else"
    assert work(TINY.run, TINY.plain, *jobs()[0], Setting(folder))["group"] == "odd"


def test_the_time_of_a_case_is_not_worth_an_error(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, write: Any) -> None:
        if file.suffix == ".seconds":
            raise OSError(28, "No space left on device")
        replace_file(file, write)

    monkeypatch.setattr(worker, "replace_file", full)
    with pytest.raises(OutOfTime):
        work(TINY.run, TINY.plain, *jobs()[0], Setting(out.parent, until=0.0))
    assert {file.suffix for file in out.parent.iterdir()} == {"", ".checkpoint", ".lock"}


def test_the_time_up_to_a_checkpoint_counts_whatever_ended_the_process(out: Path) -> None:
    def slow(case: Tiny, checkpoint: Checkpoint) -> Any:
        if checkpoint.load(Path.read_text) is not None:
            return {}
        time.sleep(0.5)
        checkpoint.save(lambda new: new.write_text("half"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(slow, TINY.plain, *jobs()[0], Setting(out.parent))
    entry = work(slow, TINY.plain, *jobs()[0], Setting(out.parent))
    assert 0.4 < entry["seconds"] < 5


@pytest.mark.parametrize("address", ["localhost", "foo://localhost:1"])
def test_what_is_no_address_is_said(address: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(PlaceError, match=r"is no address of a scheduler .*; write tcp://HOST:PORT"):
        list(Steady(Cluster(address)).map(abs, range(2)))


def test_workers_that_come_are_used_and_those_that_go_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, answers = [0.0], [{"a": 1}, {"a": 1, "b": 2}, {}, asyncio.TimeoutError(), {}]

    class Client:
        def nthreads(self) -> dict[str, int]:
            answer = answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer

    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: now[0]))
    slots = places._Slots(Cluster("tcp://there:1", patience=10.0), Client())
    assert [slots(), slots()] == [1, 1]  # within a second nobody is asked again
    for moment, count in ((2.0, 3), (4.0, 1), (6.0, 1)):
        now[0] = moment
        assert slots() == count
    now[0] = 13.0
    with pytest.raises(PlaceError, match=r"at tcp://there:1 for 10 s \(all workers went away\)"):
        slots()


# --- claims and planted bugs ----------------------------------------------------------------------


CLAIMS = ["gao2022.lemma2.1", "gao2022.lemma2.2"]


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


def test_claims_that_are_done_are_told_when_the_place_breaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "chosen", lambda jobs, scheduler: Place("works", *["loses"] * 9))
    assert main(["verify", *CLAIMS, "--seeds", "1", "--jobs", "2"]) == 2
    told = capsys.readouterr()
    assert f"{CLAIMS[0]} " in told.out
    assert f"{CLAIMS[1]} " not in told.out
    assert f"On their way were: {CLAIMS[1]}. Do they need more memory?" in told.err
    assert "1 of 2 claims are done." in told.err


FEW = ["--computation", "2", "--statement", "1", "--quiet"]


def test_bugs_are_planted_on_a_cluster_too(
    out: Path, cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tomllib")
    kept = []
    for place in (["--jobs", "2"], ["--scheduler", cluster()]):
        log, receipt = (out.with_name(f"{place[0]}{end}") for end in (".jsonl", ".json"))
        command = ["teeth", *CLAIMS, *FEW, *place, "--log", str(log), "--receipt", str(receipt)]
        assert main(command) == 0
        counts = json.loads(receipt.read_text())["claims"]
        kept.append({i: {k: v for k, v in c.items() if k != "seconds"} for i, c in counts.items()})
        rows = log.read_text().splitlines()
    here, there = kept
    assert here == there
    assert list(there) == CLAIMS
    # what stands in the log is not done again
    assert main(command) == 0
    assert log.read_text().splitlines() == rows
    capsys.readouterr()


def test_bugs_that_were_planted_are_kept_when_the_place_breaks(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tomllib")
    monkeypatch.setattr(places, "Cluster", lambda address: Place("works", *["loses"] * 9))
    log, receipt = out.with_name("log.jsonl"), out.with_name("receipt.json")
    log.write_text('{"cut')  # an interruption cut the last line
    command = ["teeth", *CLAIMS, *FEW, "--scheduler", "somewhere"]
    assert main([*command, "--log", str(log), "--receipt", str(receipt)]) == 2
    assert f"What is done is in {log}: the same command goes on." in capsys.readouterr().err
    assert list(json.loads(receipt.read_text())["claims"]) == CLAIMS[:1]
    cut, *rows = log.read_text().splitlines()
    assert cut == '{"cut'
    assert {json.loads(row)["claim"] for row in rows} == {CLAIMS[0]}


def test_a_claim_without_a_report_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tomllib")
    from deqbook.teeth import apart, survey

    how = {"sample": "0", "each": (1, 1), "seed": 0}
    report, rows = apart.survey_apart("no.such.claim", (), **how)
    assert isinstance(report, str)
    assert "no.such.claim" in report
    assert rows == []
    row = survey.Found("some.claim", "k", "computation", "p", "c", 1, "", False, 0.1, "d")

    def killed(command: list[str], *, input: str, **options: Any) -> Any:
        survey.note([row], Path(json.loads(input)["log"]))
        return subprocess.CompletedProcess([sys.executable], -9, "", "")

    monkeypatch.setattr(apart.subprocess, "run", killed)
    report, rows = apart.survey_apart("some.claim", (), **how)
    assert report == "some.claim: the interpreter ended with status -9"
    assert rows == [row]  # what it had done is not lost
