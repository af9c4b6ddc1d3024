"""Mutants are made, planted, judged and counted as they should be."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import signal
from pathlib import Path

import pytest

from deqbook.cli import main
from deqbook.teeth import bench, planting, survey
from deqbook.teeth.mutants import functions, mutants

FAST = "gao2022.lemma2.3"


def made(text: str) -> list[str]:
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    return [f"{s.mutant.kind}: {s.mutant.change}" for s in mutants("here", "f", function)]


@pytest.mark.parametrize(
    ("line", "slips"),
    [
        ("return a + b", ["sign: a + b → a - b", "drop: a + b → a"]),
        ("return a - b", ["sign: a - b → a + b", "drop: a - b → a"]),
        ("return 52 * a", ["factor: 52 * a → 52 * a * 2", "constant: 52 * a → a"]),
        ("return a / b", ["factor: a / b → a / b * 2", "drop: a / b → a"]),
        ("return a ** 2", ["power: a ** 2 → a"]),
        ("return -a", ["sign: -a → a"]),
        ("return a.mT", ["transpose: a.mT → a"]),
        ("return a <= b", ["relation: a <= b → a >= b"]),
        ("return math.sqrt(a)", ["power: math.sqrt(a) → a"]),
        ("return a.sqrt()", ["power: a.sqrt() → a"]),
        ("return max(a, b)", ["extreme: max(a, b) → min(a, b)"]),
        ("return a.sum()", ["extreme: a.sum() → a.mean()"]),
        ("return a[-1]", ["index: a[-1] → a[0]"]),
        ("return n", ["index: n → m"]),
        ("if a > b:\n        raise ValueError(a * b)", []),
        ("return 'a' + b", []),
        ("return a + 1e-12", []),
        ("return 1 + ROUNDING", []),
        ("return draw(trial.seed + 200)", []),
        ("return 0 * a", []),
        ("return 2 * normal(3)", []),
        (
            "return 2 + normal(3)",
            ["sign: 2 + normal(3) → 2 - normal(3)", "drop: 2 + normal(3) → 2"],
        ),
        ("return normal(2 * a)", []),
        ("return solve(a, tol=2 * b)", []),
        ("yield within('x', a, 2 * b)", []),
    ],
)
def test_the_slips_of_a_line(line: str, slips: list[str]) -> None:
    assert made(f"def f(a, b, n, m):\n    {line}") == slips


def test_the_same_slip_twice_has_two_keys() -> None:
    function = ast.parse("def f(a, b):\n    c = a + b\n    return c * (a + b)").body[0]
    keys = [s.mutant.key for s in mutants("here", "f", function)]  # type: ignore[arg-type]
    assert len(set(keys)) == len(keys)


def in_a_fork(work: object, seconds: float = 30) -> dict[str, object]:
    (outcome,) = bench.run([bench.Task("one", work, seconds)], jobs=1)  # type: ignore[arg-type]
    return outcome.result


def test_every_mutant_of_a_claim_can_be_planted_and_changes_nothing_here() -> None:
    ran = in_a_fork(lambda: bench.trace(FAST, 0))
    found = survey.candidates(ran)  # type: ignore[arg-type]
    sites = [s for by_name in found.values() for some in by_name.values() for s in some]
    assert len(sites) > 20
    for site in sites[:: len(sites) // 10]:

        def planted(site=site) -> dict[str, object]:
            source = planting.source(site.mutant.module)
            before = source.functions[site.mutant.function].__code__
            source.plant(site)
            return {"changed": before != source.functions[site.mutant.function].__code__}

        assert in_a_fork(planted) == {"changed": True}
    assert bench.judge(FAST, 0) == {"noticed": ""}


def test_an_edit_must_name_a_text_that_occurs_once() -> None:
    with pytest.raises(LookupError, match=r"occurs 0 times in deqbook\.linalg"):
        planting.edit("deqbook.linalg", "no such text", "")
    with pytest.raises(LookupError, match="in no function that can be reached"):
        planting.edit("deqbook.linalg", '"operator_norm"', '"operator_norms"')


def loop() -> dict[str, object]:
    while True:
        pass


def gorge() -> dict[str, object]:
    hoard = []
    while True:
        hoard.append(bytearray(2**28))


def crash() -> dict[str, object]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


@pytest.mark.parametrize(
    ("work", "seconds", "word"),
    [
        (loop, 1, "did not end in 1 s"),
        (gorge, 60, "ended without a word"),
        (crash, 1, "SIGSEGV"),
    ],
)
def test_a_mutant_that_loops_gorges_or_crashes_is_survived(
    work: object, seconds: float, word: str
) -> None:
    assert in_a_fork(work, seconds) == {"noticed": word, "error": True}


def test_a_run_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, receipt = tmp_path / "log.jsonl", tmp_path / "teeth.json"
    command = ["teeth", FAST, "--jobs", "1", "--computation", "3", "--statement", "2"]
    command += ["--log", str(log), "--receipt", str(receipt)]
    assert main(command) == 0
    first, kept = capsys.readouterr().out, json.loads(receipt.read_text())["claims"]
    rows = log.read_text().splitlines()
    assert 0 < len(rows) <= 5
    log.write_text("\n".join([*rows[1:], rows[0][:40]]) + "\n")  # one lost, one cut in the middle
    assert main(command) == 0
    again = capsys.readouterr().out
    assert len(log.read_text().splitlines()) == len(rows) + 1
    assert first.partition(", statement")[0] == again.partition(", statement")[0]
    assert survey.stale(kept[FAST]) == []
    kept[FAST]["functions"]["deqbook.linalg:operator_norm"] = "another"
    assert survey.stale(kept[FAST]) == ["deqbook.linalg:operator_norm"]


KEPT = {
    "computation": [5, 7, 1],
    "statement": [2, 2, 0],
    "seconds": 1.0,
    "survivors": [
        ["computation", "here:f: factor: a → a * 2", ""],
        ["computation", "here:g: drop: a + b → a (2)", "an old reason"],
    ],
    "equivalent": [["computation", "here:h: sign: -a → a", "not true any more"]],
}


def test_reasons_are_looked_up_again_without_planting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = (
        survey.Excuse("here:f", "equivalent", "another start", "a * 2"),
        survey.Excuse("here:g", "survives", "loose by 7", "a + b → a"),
    )
    monkeypatch.setattr(survey, "excuses", lambda: now)
    row = survey.reread("some.claim", KEPT)
    assert row["computation"] == [5, 7, 1]
    assert row["statement"] == [2, 2, 0]
    assert row["equivalent"] == [["computation", "here:f: factor: a → a * 2", "another start"]]
    assert row["survivors"] == [
        ["computation", "here:g: drop: a + b → a (2)", "loose by 7"],
        ["computation", "here:h: sign: -a → a", ""],
    ]


def test_reasons_need_a_receipt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["teeth", "--reasons", FAST]) == 2
    assert "--reasons needs --receipt FILE" in capsys.readouterr().err


def test_an_excuse_needs_a_verdict_and_a_reason() -> None:
    with pytest.raises(ValueError, match="has a reason"):
        survey.Excuse("deqbook.x:*", "equivalent", "")
    with pytest.raises(ValueError, match="'equivalent' or 'survives'"):
        survey.Excuse("deqbook.x:*", "ignored", "why")


def test_every_excuse_speaks_of_functions_that_are_there() -> None:
    places = [
        f"{survey.module_of(str(file.relative_to(bench.ROOT)))}:{name}"
        for file in bench.ROOT.rglob("*.py")
        for name, _ in functions(ast.parse(file.read_text(encoding="utf-8")))
    ]
    for excuse in survey.excuses():
        assert fnmatch.filter(places, excuse.place), f"no function fits {excuse.place}"
