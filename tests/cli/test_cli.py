"""The command ``deqbook verify``, run in process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deqbook import __version__
from deqbook.claims import registry
from deqbook.claims.registry import Trial, at_most, chapter, load_chapters
from deqbook.cli import main

FAST = "nguyen2022.proposition1"
CHAPTER = "01b_monotone"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a claim that fails, for the time of a test."""
    monkeypatch.setattr(registry, "_REGISTRY", load_chapters())

    @chapter("99_nowhere")("gao2022.lemma99", "One is at most zero", "lem-no")
    def wrong(trial: Trial, *, one: float = 1.0):
        yield at_most("one", one, 0.0)

    wrong.breaks("nothing", one=2.0)
    return "gao2022.lemma99"


def test_list_names_every_claim_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    claims = load_chapters()
    assert [line.split()[0] for line in lines] == list(claims)
    assert all(claims[line.split()[0]].title in line for line in lines)


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--list", "--json", FAST]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "id": FAST,
        "title": load_chapters()[FAST].title,
        "source": "Nguyen 2022, Proposition 1",
        "chapter": CHAPTER,
        "ref": "prop-parametrisation",
    }


def test_list_of_a_chapter(capsys: pytest.CaptureFixture[str], fake: str) -> None:
    assert main(["verify", "--list", "--chapter", "99_nowhere"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [fake]
    assert main(["verify", "--list", "--chapter", CHAPTER, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["chapter"] for row in rows} == {CHAPTER}
    assert fake not in {row["id"] for row in rows}


def test_list_of_two_chapters(capsys: pytest.CaptureFixture[str], fake: str) -> None:
    assert main(["verify", "--list", "--chapter", "99_nowhere", "--chapter", CHAPTER]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [
        c.id for c in load_chapters().values() if c.chapter in ("99_nowhere", CHAPTER)
    ]
    assert fake in listed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gao2022.lemma0"], "no such claim: gao2022.lemma0. See deqbook verify --list."),
        (["--chapter", "42_none"], "no chapter '42_none' has claims; known: "),
        ([FAST, "--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_wrong_use_is_a_sentence_and_status_two(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("deqbook verify: ")
    assert captured.out == ""


@pytest.mark.parametrize("text", ["0", "four", "3-1", "2,2", "-1"])
def test_seeds_that_name_nothing_are_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit):
        main(["verify", FAST, f"--seeds={text}"])
    assert f"{text!r} names no seeds, or one twice" in capsys.readouterr().err


def test_a_claim_outside_the_chapter_named(capsys: pytest.CaptureFixture[str], fake: str) -> None:
    assert main(["verify", FAST, "--chapter", "99_nowhere"]) == 2
    assert "no claim is both named and in that chapter" in capsys.readouterr().err


def test_a_good_claim_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", FAST, "--seeds", "2", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert f"{FAST}  holds" in out
    assert "controls broken 2/2" in out
    assert "1 of 1 claims stand on 2 seeds" in out


def test_a_failing_claim_fails_the_command(capsys: pytest.CaptureFixture[str], fake: str) -> None:
    assert main(["verify", FAST, fake, "--seeds", "2", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert f"{fake}          fails" in out
    assert "NO  one: 1 ≤ 0" in out
    assert "1 of 2 claims stand on 2 seeds" in out


def test_an_unbroken_control_fails_the_command(
    capsys: pytest.CaptureFixture[str], fake: str
) -> None:
    @chapter("99_nowhere")("gao2022.lemma98", "No control")
    def bare(trial: Trial):
        yield at_most("one", 1.0, 2.0)

    assert main(["verify", "gao2022.lemma98", "--seeds", "1", "--jobs", "1"]) == 1
    assert "unbroken" in capsys.readouterr().out


def test_the_ledger_as_json(capsys: pytest.CaptureFixture[str], fake: str) -> None:
    assert main(["verify", FAST, fake, "--seeds", "1", "--jobs", "1", "--json"]) == 1
    ledger = json.loads(capsys.readouterr().out)
    assert set(ledger) == {"version", "seeds", "seconds", "claims"}
    assert (ledger["version"], ledger["seeds"]) == (__version__, [0])
    good, bad = ledger["claims"]
    keys = {"id", "title", "source", "chapter", "ref", "status", "slack", "seconds"}
    keys |= {"standing", "reason"}
    assert set(good) == keys | {"seed", "measurements", "controls", "runs"}
    assert (good["id"], good["status"], bad["status"]) == (FAST, "holds", "fails")
    keys = {"name", "shown", "value", "relation", "bound", "tol", "holds", "hex"}
    keys |= {"headline", "theorem"}
    assert set(good["measurements"][0]) == keys
    assert set(good["controls"][0]) == {"broken", "breaks", "measurements"}
    assert [c["breaks"] for c in good["controls"]] == [True]
    (one,) = bad["measurements"]
    assert (one["name"], one["value"], one["relation"], one["bound"]) == ("one", 1.0, "≤", 0.0)
    assert (one["holds"], one["hex"]) == (False, ["0x1.0000000000000p+0", "0x0.0p+0"])
    (run,) = bad["runs"]
    assert (run["seed"], run["status"], run["measurements"]) == (0, "fails", [one])


def test_a_run_is_compared_with_an_earlier_one_bit_by_bit(
    capsys: pytest.CaptureFixture[str], fake: str, tmp_path: Path
) -> None:
    command = ["verify", FAST, fake, "--seeds", "2", "--jobs", "1"]
    main([*command, "--json"])
    earlier = tmp_path / "earlier.json"
    earlier.write_text(capsys.readouterr().out)
    assert main([*command, "--against", str(earlier)]) == 0
    assert "0 differences from earlier.json." in capsys.readouterr().out
    document = json.loads(earlier.read_text())
    one, another = (claim["runs"][1] for claim in document["claims"])
    one["controls"][0]["measurements"][0]["hex"][0] = (0.5).hex()
    another["status"], another["measurements"][0]["name"] = "holds", "two"
    earlier.write_text(json.dumps(document))
    assert main([*command, "--against", str(earlier)]) == 1
    out = capsys.readouterr().out
    assert "3 differences" in out
    assert f"{FAST}, seed 1, control " in out
    assert "gao2022.lemma99, seed 1: holds → fails" in out
    assert "gao2022.lemma99, seed 1: other measurements" in out


def test_two_processes_give_the_same_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for jobs in ("1", "2"):
        assert main(["verify", FAST, "--seeds", "2", "--jobs", jobs, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["claims"]
        rows.append({k: v for k, v in row.items() if k != "seconds"})
    assert rows[0] == rows[1]


def test_version_and_missing_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"deqbook {__version__}"
    with pytest.raises(SystemExit, match="2"):
        main([])
