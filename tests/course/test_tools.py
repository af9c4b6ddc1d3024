"""The parts of grading that need no sandbox: values, folders, marks, the report."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from course.class_of import ASSIGNMENTS, ROOT

from deqbook.cli import main
from deqbook.course.grading import codec, launcher, marks, report, sandbox
from deqbook.course.grading.assignment import load
from deqbook.course.grading.folder import (
    FolderError,
    Student,
    find,
    natural,
    read_roster,
)
from deqbook.course.grading.kernel import TEXT, Ran, cut, keep
from deqbook.course.grading.limits import Limits, size
from deqbook.course.grading.probe import Probe, ProbeError
from deqbook.course.grading.submission import (
    Mark,
    Result,
    Written,
    digest_of_code,
    escaped,
    stated,
    whose,
)
from deqbook.course.grading.verdict import Verdict

MODULES = sorted((ROOT / "src" / "deqbook" / "course").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_examples_run(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


# --- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2.5,
        float("inf"),
        np.float64("-inf"),
        "é",
        1 + 2j,
        [1, [2.0, "x"]],
        (1, (2,)),
        {"a": 1, 2: [3]},
        frozenset({1, 2}),
    ],
)
def test_values_survive(value: object) -> None:
    assert codec.loads(codec.dumps(value)) == value


@pytest.mark.parametrize("value", [Fraction(1, 4), Decimal("0.25")])
def test_other_kinds_of_numbers_are_sent_as_floats(value: object) -> None:
    assert codec.loads(codec.dumps(value)) == 0.25
    assert codec.loads(codec.dumps(np.int64(3))) == 3


@pytest.mark.parametrize("dtype", [float, int, bool, complex, np.float32, ">i4"])
def test_arrays_survive(dtype: Any) -> None:
    value = np.arange(6).reshape(2, 3).astype(dtype)[:, ::2]
    found = codec.loads(codec.dumps(value))
    assert found.dtype == value.dtype
    assert np.array_equal(found, value)


def test_tensors_leave_and_arrive() -> None:
    tensor = torch.arange(3.0, requires_grad=True)
    assert np.array_equal(codec.loads(codec.dumps(tensor)), [0, 1, 2])
    found = codec.decode(codec.encode(codec.Tensor(np.eye(2))), callables=True)
    assert torch.equal(found, torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "is not a number"),
        (np.array([object()]), "not numbers"),
        (np.zeros(10**7), "bytes, more than"),
        (10**400, "digits"),
        ([0] * 200_000, "entries, more than"),
        (print, "is not a number"),
    ],
)
def test_what_cannot_be_sent_is_said(value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        codec.encode(value)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        '{"t": "code", "v": "1+1", "names": {}}',
        '{"t": "tensor", "v": {"t": "plain", "v": 1}}',
        '{"t": "array", "dtype": "O", "shape": [1], "v": "AAAAAAAAAAA="}',
        '{"t": "array", "dtype": "<f8", "shape": [1000000000000], "v": "AAAAAAAAAAA="}',
        '{"t": "array", "dtype": "<f8", "shape": [-1], "v": "AAAAAAAAAAA="}',
        '{"t": "array", "dtype": "nonsense", "shape": [1], "v": "AAAAAAAAAAA="}',
        '{"t": "float", "v": "1e400"}',
        '{"t": "dict", "v": [[]]}',
        '{"t": "dict", "v": [[{"t": "list", "v": []}, {"t": "plain", "v": 1}]]}',
        '{"t": "list", "v": [' * 50 + "]}" * 50,
        "[" * 100_000,
    ],
)
def test_a_forged_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  json has its own sentences
        codec.loads(text)


def test_a_question_carries_a_new_word_and_an_answer_without_it_is_none() -> None:
    kinds = []

    def run(code: str, seconds: float | None, kind: str) -> Ran:
        kinds.append(kind)
        return Ran(private={"text": json.dumps({"value": codec.encode(3.0)})})

    probe = Probe(run)
    assert probe.value("x") == probe.call("f", np.eye(2)) == 3.0
    assert len(set(kinds)) == 2
    with pytest.raises(ProbeError, match="gave no answer"):
        Probe(lambda *_: Ran()).value("x")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"missing": "x"}, "There is no `x`"),
        ({"empty": True}, "not written yet"),
        ({"raised": "ValueError", "told": "no"}, "raised ValueError: no"),
        ({"unreadable": "a list"}, "cannot be marked: a list"),
        ({"value": {"t": "code"}}, "cannot be read"),
        (7, "cannot be read"),
    ],
)
def test_why_there_is_no_value_is_said(answer: object, says: str) -> None:
    with pytest.raises(ProbeError, match=re.escape(says)):
        Probe(lambda *_: Ran(private={"text": json.dumps(answer)})).value("x")


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("stream", {}),
        ("error", {"traceback": 3}),
        ("display_data", {"data": 7}),
        ("stream", {"text": 1}),
    ],
)
def test_outputs_against_the_protocol_are_dropped(kind: str, content: dict[str, Any]) -> None:
    ran = Ran()
    keep(kind, content, ran, "")
    assert not ran.outputs


def test_outputs_are_cut_and_active_ones_dropped() -> None:
    ran = Ran()
    keep("stream", {"name": "stdout", "text": "x" * 10**6}, ran, "")
    keep("stream", {"name": "stdout", "text": "y" * 10**6}, ran, "")
    data = {"text/html": "<script>", "text/plain": "shown", "image/svg+xml": "<svg onload=…>"}
    keep("display_data", {"data": data}, ran, "")
    assert [list(one.get("data", {})) for one in ran.outputs] == [[], ["text/plain"]]
    assert len(ran.outputs[0]["text"]) < TEXT + 20
    assert cut("short") == "short"


# --- folders --------------------------------------------------------------------------------


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def whom(folder: Path, roster: list[Student] | None = None) -> dict[str, str | None]:
    handed, _ = find(folder, "a01_wellposedness", roster or [])
    return {h.student.id: h.path and h.path.relative_to(folder).as_posix() for h in handed}


def test_three_ways_to_hand_in(tmp_path: Path) -> None:
    put(tmp_path, "student-01/a01_wellposedness.ipynb", "student-02/a01_wellposedness/x.ipynb")
    put(tmp_path, "Jane Doe_123_assignsubmission_file_/hand in.ipynb", "student-03_final.ipynb")
    put(tmp_path, "student-01/.ipynb_checkpoints/a01_wellposedness.ipynb", "student-04/notes.txt")
    assert whom(tmp_path) == {
        "jane doe": "Jane Doe_123_assignsubmission_file_/hand in.ipynb",
        "student-01": "student-01/a01_wellposedness.ipynb",
        "student-02": "student-02/a01_wellposedness/x.ipynb",
        "student-03": "student-03_final.ipynb",
    }


def test_a_roster_says_who_is_who(tmp_path: Path) -> None:
    roster = tmp_path / "roster.csv"
    roster.write_text(
        "\ufeffID,Name,Canvas_ID,email\nstudent-01,Zoë B,4711,z@example.org\n"
        "student_02,Second One,12,\nstudent-03,Third,13,\n",
        encoding="utf-8",
    )
    folder = tmp_path / "in"
    put(folder, "Zoë B_99_assignsubmission_file_/x.ipynb", "student_02_a01.ipynb")
    put(folder, "nobody_x.ipynb", "zoëb_4711_88_a01.ipynb")
    os.utime(folder / "zoëb_4711_88_a01.ipynb", (1, 1))
    handed, lost = find(folder, "a01_wellposedness", read_roster(roster))
    found = {h.student.id: h for h in handed}
    assert found["student-01"].path == folder / "Zoë B_99_assignsubmission_file_/x.ipynb"
    assert "2 files were handed in" in found["student-01"].notes[0]
    assert found["student_02"].path == folder / "student_02_a01.ipynb"
    assert found["student-03"].path is None
    assert lost == ["nobody_x.ipynb: nobody of the roster"]


def test_a_bad_roster_is_refused(tmp_path: Path) -> None:
    roster = tmp_path / "roster.csv"
    for text, says in (("name\nx\n", "a column “id”"), ("id\nA\na \n", "has twice: a"), ("", "id")):
        roster.write_text(text, encoding="utf-8")
        with pytest.raises(FolderError, match=says):
            read_roster(roster)
    with pytest.raises(FolderError, match="cannot be read"):
        read_roster(tmp_path / "none.csv")


def test_the_newest_of_two_is_taken_and_other_assignments_are_not(tmp_path: Path) -> None:
    put(tmp_path, "s/a01_v2.ipynb", "s/a01_v10.ipynb", "s/a02.ipynb", "t/a02/x.ipynb")
    for path in tmp_path.rglob("*.ipynb"):
        os.utime(path, (5, 5))
    assert whom(tmp_path) == {"s": "s/a01_v10.ipynb"}
    os.utime(tmp_path / "s/a01_v2.ipynb", (6, 6))
    assert whom(tmp_path) == {"s": "s/a01_v2.ipynb"}
    assert natural(Path("x2")) < natural(Path("x10"))


def test_links_are_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "away/x.ipynb")
    folder = tmp_path / "in"
    (folder / "s").mkdir(parents=True)
    (folder / "s" / "a01.ipynb").symlink_to(tmp_path / "away" / "x.ipynb")
    (folder / "t").symlink_to(tmp_path / "away")
    (folder / "u_x.ipynb").symlink_to(tmp_path / "away" / "x.ipynb")
    assert whom(folder) == {}


def test_keys_are_names_of_files_and_differ() -> None:
    ids = ["a b", "a/b", "a_b", "../../x", "…", "é", "e", "-", "student-01"]
    keys = {Student(one).key for one in ids}
    assert len(keys) == len(ids)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", key) for key in keys)


# --- what a notebook says -------------------------------------------------------------------


def test_an_id_is_read_without_running_it() -> None:
    assert stated({"source": 'x = 1\nSTUDENT = "me"'}, "STUDENT") == "me"
    for source in ("STUDENT = open('x')", "STUDENT = (", "", "STUDENT = 3", "(" * 10_000):
        assert stated({"source": source}, "STUDENT") == ""
    assert stated(None, "STUDENT") == ""


def test_another_name_or_salt_is_told() -> None:
    assert whose({"source": 'STUDENT = " ME"\nSALT = "x"'}, "me", "x") == []
    told = whose({"source": 'STUDENT = "you"\nSALT = "y"'}, "me", "x")
    assert "graded with the numbers of me" in told[0]
    assert "another SALT" in told[1]


def test_the_same_code_is_recognised() -> None:
    one = "def f(a):\n    'about'\n    # why\n    return a + 1"
    two = "def f(b): return   b + 1"
    assert digest_of_code(one) != digest_of_code("def f(a):\n    return a + 2")
    assert digest_of_code("x = a + 1") == digest_of_code("y  =  b + 1  # other names")
    assert digest_of_code("x = (") == ""
    assert digest_of_code(two)


def test_text_is_shown_as_it_is() -> None:
    assert escaped("<b>*x*") == r"\<b\>\*x\*"


# --- marks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def assignment() -> Any:
    return load(ASSIGNMENTS, "a01")


def result(
    assignment: Any, student: str, share: float, text: str = "words", fault: str = ""
) -> Result:
    made = Result(student, assignment.name, [f"A note on {student}."])
    for test, points in assignment.tests.items():
        made.marks[test] = Mark(points * share, points, "said", fault)
    made.written["explain"] = Written(20.0, text, not text)
    made.code = {"splitting": "1", "pivot": "2", "rate": "3"} if share == 1 else {}
    return made


def merged(assignment: Any, tmp_path: Path, **texts: str) -> list[marks.Total]:
    results = {name: result(assignment, name, 1.0, text) for name, text in texts.items()}
    students = {name: Student(name) for name in texts}
    entered = marks.read_sheet(tmp_path / marks.SHEET)
    totals = marks.merged(assignment, results, students, entered, {})
    marks.write_sheet(tmp_path, totals, entered)
    return totals


def enter(tmp_path: Path, student: str, points: str) -> None:
    sheet = tmp_path / marks.SHEET
    text = re.sub(rf"({student},explain),[^,]*,", rf"\1,{points},", sheet.read_text("utf-8"))
    sheet.write_text(text, encoding="utf-8")


def test_entered_points_count_and_are_kept(assignment: Any, tmp_path: Path) -> None:
    first = merged(assignment, tmp_path, s="words", t="words", u="")
    assert [total.points for total in first] == [None, None, 80]
    enter(tmp_path, "s", "12.5")
    second = merged(assignment, tmp_path, s="words", t="words", u="")
    assert [total.points for total in second] == [92.5, None, 80]
    third = merged(assignment, tmp_path, t="words")  # s is not in this run
    assert [total.points for total in third] == [None]
    assert [t.points for t in merged(assignment, tmp_path, s="words", t="words")] == [92.5, None]


def test_a_text_that_changed_after_marking_is_told(assignment: Any, tmp_path: Path) -> None:
    merged(assignment, tmp_path, s="words")
    enter(tmp_path, "s", "10")
    for _ in range(2):
        (total,) = merged(assignment, tmp_path, s="other words")
        assert total.points == 90
        assert "changed after" in total.written["explain"].changed
        assert "changed after" in (tmp_path / marks.SHEET).read_text("utf-8")


def test_a_text_handed_in_late_is_not_zero_for_ever(assignment: Any, tmp_path: Path) -> None:
    (total,) = merged(assignment, tmp_path, s="")
    assert total.points == 80
    (total,) = merged(assignment, tmp_path, s="words")
    assert total.points is None


@pytest.mark.parametrize("points", ["21", "-1", "many", "nan"])
def test_impossible_points_are_refused_with_their_line(
    assignment: Any, tmp_path: Path, points: str
) -> None:
    merged(assignment, tmp_path, s="words")
    enter(tmp_path, "s", points)
    with pytest.raises(marks.MarksError, match=r"manual\.csv, line 2"):
        marks.read_sheet(tmp_path / marks.SHEET)


def test_no_cell_of_a_table_is_a_formula() -> None:
    assert marks.table([["=1+1", "@x", "-x", "plain", -1.5, None]]) == "'=1+1,'@x,'-x,plain,-1.5,\n"
    assert marks.unguarded(marks.guarded("=x")) == "=x"


def test_the_report_counts_and_names(assignment: Any) -> None:
    totals = [
        marks.Total(Student(f"s{n}"), result(assignment, f"s{n}", share, fault=fault))
        for n, (share, fault) in enumerate(
            [(1.0, ""), (1.0, ""), (0.5, "<iterates>"), (0.0, "<iterates>; form")]
        )
    ]
    page = report.text(assignment, totals, ["x.ipynb: nobody"])
    assert page.count("&lt;iterates&gt;") == len(assignment.tests)
    assert '<td class="n">2</td><td>&lt;iterates&gt;</td>' in page
    assert "s0, s1: 3 answers" in page
    assert "x.ipynb: nobody" in page
    assert "0–10 %: 1, 50–60 %: 1, 90–100 %: 2" in page
    assert not re.search(r"<(script|link|img)", page)


def test_the_paragraphs_can_be_read_with_their_rubric(assignment: Any, tmp_path: Path) -> None:
    totals = merged(assignment, tmp_path, s="My words.", t="")
    marks.write_reading(tmp_path, assignment, totals)
    text = (tmp_path / f"{assignment.name}-manual.md").read_text("utf-8")
    assert "Rubric" in text
    assert "> My words." in text
    assert "### t" not in text


# --- limits, sandbox, command ---------------------------------------------------------------


@pytest.mark.parametrize(("text", "bytes_"), [("2G", 2**31), ("512 MB", 2**29), ("1000", 1000)])
def test_sizes(text: str, bytes_: int) -> None:
    assert size(text) == bytes_


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'much' is no size"):
        size("much")


def test_a_verdict_is_a_fraction() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, not 1\.5"):
        Verdict(1.5, "")


def test_without_a_sandbox_it_refuses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    put(tmp_path / "in", "s/a01.ipynb")
    command = ["grade", str(tmp_path / "in"), "--root", str(ROOT), "--assignment", "a01"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "bubblewrap" in said
    assert "--trust" in said


def test_a_sandbox_that_does_not_work_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: str(broken))
    with pytest.raises(sandbox.NoSandbox, match="does not work: no namespaces"):
        sandbox.require()


def test_the_sandbox_holds_neither_masters_nor_the_checkout() -> None:
    folders = [*sandbox.python_folders(), sandbox.package_folder()]
    for folder in folders:
        assert not (folder / "assignments").exists()
        assert not ASSIGNMENTS.is_relative_to(folder)
    command = sandbox.command("bwrap", Path("/tmp/x"), Limits(), {})
    bound = [command[n + 1] for n, word in enumerate(command) if word in ("--ro-bind", "--bind")]
    assert not [path for path in bound if ASSIGNMENTS.is_relative_to(path)]
    assert "--unshare-net" in command
    assert "--clearenv" in command


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--memory", "x"], "no size"),
        (["--assignment", "a99"], "no assignment 'a99'"),
        ([], "no submission in"),
    ],
)
def test_the_command_says_what_is_wrong(
    more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["grade", str(tmp_path), "--root", str(ROOT), "--assignment", "a01", *more]
    assert main(command) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("passed", "used", "waited", "counts"),
    [
        (10, 1, 0, 10),  # it sleeps
        (10, 1, 8, 2),  # the machine is busy
        (10, 1, 9.9, 2),  # very busy: a fifth of the clock
        (10, 1, 90, 2),  # many threads wait
        (10, 20, 400, 20),  # a swarm keeps both processors
    ],
)
def test_what_a_notebook_waits_for_a_processor_is_not_its_time(
    passed: float, used: float, waited: float, counts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, scheduled = [50.0], [(3.0, 7.0)]
    monkeypatch.setattr(sandbox.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sandbox, "scheduled", lambda pid: scheduled[0])
    box = sandbox.Sandbox(SimpleNamespace(pid=1), Path(), {}, Limits())  # type: ignore[arg-type]
    clock = sandbox.Clock(box)
    now[0], scheduled[0] = 50 + passed, (3 + used, 7 + waited)
    assert clock() == pytest.approx(counts)
    scheduled[0] = (0.0, 0.0)  # the processes are gone
    assert clock() == pytest.approx(counts)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_processor_time_is_read() -> None:
    before = sandbox.scheduled(os.getpid())
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = sandbox.scheduled(os.getpid())
    assert after[0] >= before[0] + 0.2
    assert after[1] >= before[1]


def test_a_kernel_notices_that_nobody_waits_for_it() -> None:
    theirs, ours = os.pipe()
    assert not launcher.alone(os.dup(theirs))
    os.close(ours)
    assert launcher.alone(theirs)
