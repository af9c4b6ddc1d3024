"""The engine: order, budget, checkpoints, refusals; and that no fault loses or repeats a case."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_cases import Tiny, noted
from tiny_cluster import free_port, until
from tiny_experiment import COMMAND, TINY, go, jobs

from deqbook.experiments.declaration import NotRun, Statement, Verdict
from deqbook.experiments.engine import Unfinished, execute
from deqbook.experiments.places import Cluster, PlaceError, Processes
from deqbook.experiments.receipts import ReceiptError, provenance, read, versions
from deqbook.experiments.worker import Checkpoint, NoRoom, Setting, work


def reference() -> list[dict[str, object]]:
    """Return what an undisturbed run gives, computed without the engine."""
    found = []
    for group, case in jobs():
        total = 0.1
        for k in range(1, case.steps + 1):
            total += case.x * k
        stored = {"x": case.x, "steps": case.steps, "wait": 0.0}
        found.append({"group": group, "case": stored, "result": {"sum": total}})
    return found


def same(out: Path) -> None:
    """Check that the file is that of an undisturbed run, and that nothing that was kept ran again.

    A process that is killed may lose what it had not kept yet, an instant's work. So steps count:
    a step is noted after it was kept, and none may be noted twice.
    """
    runs = [dict(r) | {"case": dict(r["case"]) | {"wait": 0.0}} for r in read(out).runs]
    assert runs == reference()
    assert max(Counter(noted("step")).values()) == 1
    assert not out.with_name("r.json.cases").exists()


def whole(out: Path) -> None:
    """Check the same where no process was killed: every case ended once, every step was taken."""
    same(out)
    assert Counter(noted("end")) == Counter({f"end {x}": 1 for x in range(1, 7)})


# --- without faults -------------------------------------------------------------------------------


def test_an_undisturbed_run(out: Path) -> None:
    said: list[str] = []
    outcome = go(out, said=said.append)
    whole(out)
    assert (outcome.left, outcome.failures, outcome.ran) == (0, (), 6)
    assert "6 cases to run, in this process" in said[0]
    assert "about" in said[1]
    assert "left" in said[1]
    cost = outcome.results.cost
    assert len(cost.seconds) == 6
    assert outcome.results.receipt.made_by.code == provenance(TINY.code, (), []).code


def test_the_cheapest_first_then_the_dearest(out: Path) -> None:
    go(out)
    steps = {case.x: case.steps for _, case in jobs()}
    began = [steps[int(row.split()[1])] for row in noted("begin")]
    assert began[0] == min(began)
    assert began[1:] == sorted(began[1:], reverse=True)
    (out.with_name("log")).unlink()
    go(out.with_name("b.json"), cheapest_first=True)
    began = [steps[int(row.split()[1])] for row in noted("begin")]
    assert began == sorted(began)


def test_a_budget_stops_inside_a_case_and_the_next_run_goes_on(out: Path) -> None:
    def late(case: Tiny, checkpoint: Checkpoint) -> object:  # case 4 sees the end of the budget
        return TINY.run(case, replace(checkpoint, until=0.0) if case.x == 4 else checkpoint)

    outcome = execute(replace(TINY, run=late), jobs(), out, COMMAND)
    assert (outcome.left, outcome.ran, outcome.failures) == (1, 5, ())
    assert len(read(out).runs) == 5
    assert len(list(out.with_name("r.json.cases").glob("*.checkpoint"))) == 1
    assert go(out).ran == 1
    whole(out)


def test_without_time_nothing_begins(out: Path) -> None:
    outcome = go(out, budget=0.0)
    assert (outcome.results, outcome.left) == (None, 6)
    assert noted("begin") == []


def test_a_case_that_does_not_fit_is_not_begun_without_checkpoints(out: Path) -> None:
    plain = replace(TINY, checkpoints=False)
    wanted = [("short", Tiny(1, steps=1, wait=0.05)), ("long", Tiny(2, steps=10_000, wait=0.05))]
    outcome = execute(plain, wanted, out, COMMAND, budget=5.0)
    assert outcome.left == 1
    assert [r["group"] for r in outcome.results.runs] == ["short"]
    assert noted("begin") == ["begin 1"]


def test_a_folder_of_other_code_is_refused_and_damage_is_named(out: Path) -> None:
    go(out, budget=0.0)
    folder = out.with_name("r.json.cases")
    made_by = provenance(TINY.code, (), [])
    with pytest.raises(ReceiptError, match="another command, other versions or other code"):
        Unfinished(folder, "another", versions(), made_by).begin()
    with pytest.raises(ReceiptError, match="other code"):
        Unfinished(folder, COMMAND, versions(), replace(made_by, code="0")).begin()
    work(TINY.run, TINY.plain, "odd", Tiny(1, steps=3), Setting(folder))
    (done,) = (f for f in folder.glob("*.json") if f.name != "command.json")
    assert json.loads(done.read_text())["result"]["sum"] > 0
    for text in (done.read_text().replace('"x":1', '"x":2'), '{"group": "b"', "7", ""):
        done.write_text(text)
        with pytest.raises(ReceiptError, match=r"is damaged\. Delete it, and its case runs again"):
            go(out)


def test_a_finished_case_is_not_run_again_whoever_asks(out: Path) -> None:
    folder = out.with_name("f")
    folder.mkdir()
    first, second = (work(TINY.run, TINY.plain, "odd", Tiny(1), Setting(folder)) for _ in range(2))
    assert first == second
    assert noted("begin") == ["begin 1"]


def test_a_checkpoint_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    kept = Checkpoint(tmp_path / "c")
    kept.save(lambda file: file.write_text("one"))

    def fails(file: Path) -> None:
        file.write_text("half")
        raise OSError(28, "No space left on device")

    kept.save(fails)
    assert kept.load(Path.read_text) == "one"
    assert kept.missed == ["[Errno 28] No space left on device"]
    assert [f.name for f in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("held", "word"),
    [
        ((True, True), "reproduced"),
        ((True, False), "partly"),
        ((False, False), "not"),
        ((True, None), "partly"),
        ((None, None), "not run"),
    ],
)
def test_the_verdict_counts(out: Path, held: tuple[bool | None, ...], word: str) -> None:
    def look(value: bool | None):
        def answer(results):
            if value is None:
                raise NotRun("nothing there")
            return value, "seen"

        return answer

    statements = [Statement("p", "r", look(v)) for v in held]
    statements.append(Statement("ours", "r", look(False), counts=False))
    verdict = replace(TINY, statements=tuple(statements)).judge(go(out).results)
    assert isinstance(verdict, Verdict)
    assert verdict.word == word
    assert "(not counted)" in str(verdict)


# --- faults ---------------------------------------------------------------------------------------


def test_a_case_that_raises_stops_no_other(out: Path) -> None:
    (out.parent / "raise-3").touch()
    outcome = go(out)
    assert outcome.results is None
    (failure,) = outcome.failures
    assert failure.case["x"] == 3
    assert "case 3 was told to raise" in failure.text
    assert len(noted("end")) == 5
    assert not out.exists()
    (out.parent / "raise-3").unlink()
    assert go(out).ran == 1
    whole(out)


def test_a_full_disk_stops_before_a_case_begins(out: Path) -> None:
    (out.parent / "full-2").touch()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(NoRoom, match=r"no room for a result in .*r\.json\.cases"):
            go(out)
        assert "end 2" in noted("end")  # its room was set aside before
        assert 0 < len(noted("end")) < 6
        assert len(noted("begin")) == len(noted("end"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (out.parent / "full-2").unlink()
    go(out)
    whole(out)


def test_a_killed_process_of_the_pool(out: Path) -> None:
    (out.parent / "kill-4").touch()
    said: list[str] = []
    assert not go(out, Processes(2), said=said.append).failures
    assert not (out.parent / "kill-4").exists()
    assert any("was lost" in text for text in said)
    same(out)


def test_kill_9_of_the_command(out: Path) -> None:
    # Not as a script: its processes would import that script again.
    code = (
        "import pathlib, sys, tiny_experiment as t; from deqbook.experiments.places import *;"
        "t.go(pathlib.Path(sys.argv[1]), Processes(2), wait=0.1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(out)])
    until(lambda: len(noted("end")) >= 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: _quiet(out))  # its workers end with it
    assert 0 < len(noted("end")) < 6
    go(out, wait=0.1)
    same(out)


def _quiet(out: Path) -> bool:
    before = (out.parent / "log").read_text()
    time.sleep(0.4)
    return (out.parent / "log").read_text() == before


# --- a cluster ------------------------------------------------------------------------------------


def test_a_cluster_with_a_killed_worker_and_a_case_that_raises(out: Path, cluster) -> None:
    (out.parent / "kill-4").touch()
    (out.parent / "raise-3").touch()
    place = Cluster(cluster())
    outcome = go(out, place)
    assert [f.case["x"] for f in outcome.failures] == [3]
    assert not (out.parent / "kill-4").exists()
    (out.parent / "raise-3").unlink()
    assert go(out, place).ran == 1
    same(out)


def test_a_cluster_whose_scheduler_is_restarted(out: Path, cluster) -> None:
    address = cluster()
    found: list[object] = []
    said: list[str] = []
    thread = threading.Thread(
        target=lambda: found.append(go(out, Cluster(address), wait=0.15, said=said.append))
    )
    thread.start()
    until(lambda: len(noted("end")) >= 1)
    cluster()
    thread.join(60)
    assert len(found) == 1
    assert any("was lost" in text for text in said)
    same(out)


def test_no_scheduler_is_said(out: Path) -> None:
    with pytest.raises(PlaceError, match="no scheduler with a worker answered at tcp://127"):
        go(out, Cluster(f"tcp://127.0.0.1:{free_port()}", patience=0.5))
