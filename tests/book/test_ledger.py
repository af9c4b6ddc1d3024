"""The ledger: which evidence is reused, what fails, and how it is set."""

from __future__ import annotations

import json
from pathlib import Path

import ledger
import pytest
from sphinx.errors import ExtensionError

CLAIM = {
    "id": "gao2022.lemma2.2",
    "title": "A scaled matrix contracts",
    "source": "Gao et al. 2022, Lemma 2.2",
    "chapter": "01_first",
    "ref": "",
    "status": "holds",
    "reason": "",
    "slack": 1.5,
    "seconds": 0.25,
    "measurements": [],
    "controls": [{"name": "c", "broken": "the scaling", "breaks": True, "measurements": []}],
}
#: A stand-in for the package: `deqbook verify` that counts its runs and says what it is told.
FAKE_MAIN = """
import importlib, json, pathlib, sys
log = pathlib.Path(__file__).with_name("runs.log.py")
chapters = [after for word, after in zip(sys.argv, sys.argv[1:]) if word == "--chapter"]
log.write_text((log.read_text() if log.exists() else "") + " ".join(["#", *chapters, "\\n"]))
claims, status = [], 0
for chapter in chapters:
    module = importlib.import_module("deqbook.claims.ch" + chapter[:2])
    claim = json.loads({claim!r})
    claims.append(claim | {{"chapter": chapter, "status": module.STATUS, "reason": "3 > 2"}})
    status = status or getattr(module, "EXIT", module.STATUS != "holds")
print(json.dumps({{"version": "0", "seeds": 5, "seconds": 1.0, "claims": claims}}))
sys.exit(status)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "deqbook"
    (package / "claims").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(FAKE_MAIN.format(claim=json.dumps(CLAIM)))
    (package / "claims" / "__init__.py").write_text("")
    (package / "claims" / "ch01.py").write_text("STATUS = 'holds'\n")
    return tmp_path / "src"


def collect(source: Path, *more: str) -> dict[str, Path]:
    return ledger.collect(["01_first", *more], source, source.parent / "ledger", [])


def runs(source: Path) -> list[list[str]]:
    """Return, for every run, the chapters that it verified."""
    lines = (source / "deqbook" / "runs.log.py").read_text().splitlines()
    return [line.removeprefix("#").split() for line in lines]


def test_claims_modules_are_named_after_their_chapters() -> None:
    assert ledger.claims_module("01_wellposedness") == "deqbook.claims.ch01"
    assert ledger.claims_module("03b_kernels") == "deqbook.claims.ch03b"


def test_chapters_without_claims_are_left_out(source: Path) -> None:
    assert ledger.chapters_with_claims(["01_first", "02_second"], source) == ["01_first"]


def test_claims_without_a_chapter_are_refused(source: Path) -> None:
    with pytest.raises(ExtensionError, match=r"deqbook\.claims\.ch01.*no chapter"):
        ledger.chapters_with_claims(["02_second"], source)


def test_evidence_is_reused_until_the_claims_change(source: Path) -> None:
    first = collect(source)
    assert collect(source) == first
    claims = source / "deqbook" / "claims" / "ch01.py"
    claims.write_text("# a note\n" + claims.read_text())
    assert collect(source) == first
    assert runs(source) == [["01_first"]]
    claims.write_text(claims.read_text() + "CHANGED = True\n")
    assert collect(source) != first
    assert runs(source) == [["01_first"]] * 2


@pytest.mark.parametrize("status", ["fails", "unbroken"])
def test_a_claim_that_does_not_stand_stops_the_build_every_time(source: Path, status: str) -> None:
    (source / "deqbook" / "claims" / "ch01.py").write_text(f"STATUS = {status!r}\n")
    for _ in range(2):
        with pytest.raises(ExtensionError, match=rf"gao2022\.lemma2\.2.*{status}.*3 > 2"):
            collect(source)


def test_chapters_are_verified_in_one_run_and_kept_apart(source: Path) -> None:
    (source / "deqbook" / "claims" / "ch02.py").write_text("STATUS = 'holds'\n")
    files = collect(source, "02_second")
    for chapter, file in files.items():
        assert [c["chapter"] for c in json.loads(file.read_text())["claims"]] == [chapter]
    (source / "deqbook" / "claims" / "ch02.py").write_text("STATUS = 'uncheckable'\nEXIT = 0\n")
    collect(source, "02_second")
    assert runs(source) == [["01_first", "02_second"], ["02_second"]]


def test_a_chapter_that_stands_is_kept_when_another_does_not(source: Path) -> None:
    (source / "deqbook" / "claims" / "ch02.py").write_text("STATUS = 'fails'\n")
    for _ in range(2):
        with pytest.raises(ExtensionError, match=r"02_second.*status 1:\n.*fails") as raised:
            collect(source, "02_second")
        assert str(raised.value).count("gao2022.lemma2.2") == 1  # of the second alone
    assert runs(source) == [["01_first", "02_second"], ["02_second"]]


def test_a_run_that_fails_without_a_reason_counts_for_nothing(source: Path) -> None:
    (source / "deqbook" / "claims" / "ch01.py").write_text("STATUS = 'holds'\nEXIT = 3\n")
    for _ in range(2):
        with pytest.raises(ExtensionError, match="status 3, though every claim stands"):
            collect(source)


def test_a_chapter_that_the_run_says_nothing_of_is_an_error(source: Path) -> None:
    main = source / "deqbook" / "__main__.py"
    main.write_text(main.read_text().replace("in chapters:", "in chapters[1:]:"))
    with pytest.raises(ExtensionError, match="said nothing of 01_first"):
        collect(source)


def test_output_that_is_no_ledger_is_shown(source: Path) -> None:
    (source / "deqbook" / "claims" / "ch01.py").write_text("raise OSError('disk full')\n")
    with pytest.raises(ExtensionError, match="disk full"):
        collect(source)


def test_summary_counts_claims_and_controls() -> None:
    hopeless = CLAIM | {"status": "uncheckable", "controls": [], "seconds": 0.0}
    assert ledger.summary([CLAIM, hopeless]) == (
        "2 claims: 1 hold, 1 no finite experiment can check. "
        "1 of 1 controls break as they must. 0.2 s."
    )


@pytest.mark.parametrize(
    ("slack", "text"), [(1.5, "1.5"), (None, "–"), (float("nan"), "–"), (float("inf"), "∞")]
)
def test_row_sets_the_slack(slack: float | None, text: str) -> None:
    cells = [cell.astext() for cell in ledger.row(CLAIM | {"slack": slack})]
    assert cells[2] == text
    assert cells[3] == "the scaling"
    assert cells[5] == "✓ holds"
