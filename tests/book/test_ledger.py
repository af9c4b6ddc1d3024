"""The ledger: which evidence is reused, what fails, and how it is set."""

from __future__ import annotations

import io
import json
from pathlib import Path

import ledger
import pytest
import yaml
from bs4 import BeautifulSoup, Tag
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import docutils_namespace, patch_docutils

from deqbook.typeset import formula

CLAIM = {
    "id": "gao2022.lemma2.2",
    "title": "A scaled matrix contracts",
    "source": "Gao et al. 2022, Lemma 2.2",
    "chapter": "01_first",
    "ref": "",
    "status": "holds",
    "standing": "holds",
    "reason": "",
    "slack": 1.5,
    "seconds": 0.25,
    "measurements": [],
    "controls": [{"broken": "the scaling", "breaks": True, "measurements": []}],
    "runs": [{"seed": 0, "measured": ["0x1.8p+0"]}],
}
CHANGE = "deqbook.pages.p01_first.claims:f: extreme: max(a['b']) → min(a['b']) (2)"
TEETH = {
    "computation": [3, 4, 1],
    "statement": [0, 0, 0],
    "survivors": [["computation", CHANGE, "the *least* is |below| it as well"]],
}
UNCHECKABLE = CLAIM | {"status": "uncheckable", "standing": "not checkable"}
#: A stand-in for the package: `deqbook verify` that counts its runs and says what it is told.
FAKE_MAIN = """
import importlib, json, pathlib, sys
log = pathlib.Path(__file__).with_name("runs.log.py")
chapters = [after for word, after in zip(sys.argv, sys.argv[1:]) if word == "--chapter"]
log.write_text((log.read_text() if log.exists() else "") + " ".join(["#", *chapters, "\\n"]))
claims, status = [], 0
for chapter in chapters:
    module = importlib.import_module(f"deqbook.pages.p{{chapter}}.claims")
    claim = json.loads({claim!r})
    claim |= {{"chapter": chapter, "status": module.STATUS, "reason": "3 > 2"}}
    claims.append(claim | getattr(module, "CLAIM", {{}}))
    status = status or getattr(module, "EXIT", module.STATUS != "holds")
print(json.dumps({{"version": "0", "seeds": 5, "seconds": 1.0, "claims": claims}}))
sys.exit(status)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "deqbook"
    (package / "pages").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(FAKE_MAIN.format(claim=json.dumps(CLAIM)))
    (package / "pages" / "__init__.py").write_text("")
    write_claims(tmp_path / "src", "01_first", "STATUS = 'holds'\n")
    return tmp_path / "src"


def write_claims(source: Path, chapter: str, text: str) -> Path:
    """Write what the stand-in says of a chapter's claim, and return the file."""
    room = source / "deqbook" / "pages" / f"p{chapter}"
    room.mkdir(exist_ok=True)
    (room / "__init__.py").write_text("")
    (room / "claims.py").write_text(text)
    return room / "claims.py"


def collect(source: Path, *more: str) -> dict[str, Path]:
    return ledger.collect(["01_first", *more], source, source.parent / "ledger", [])


def runs(source: Path) -> list[list[str]]:
    """Return, for every run, the chapters that it verified."""
    lines = (source / "deqbook" / "runs.log.py").read_text().splitlines()
    return [line.removeprefix("#").split() for line in lines]


def test_claims_modules_are_named_after_their_chapters() -> None:
    assert ledger.claims_module("03b_kernels") == "deqbook.pages.p03b_kernels.claims"


def test_chapters_without_claims_are_left_out(source: Path) -> None:
    assert ledger.chapters_with_claims(["01_first", "02_second"], source) == ["01_first"]


def test_claims_may_be_a_package(source: Path) -> None:
    room = source / "deqbook" / "pages" / "p02_second" / "claims"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text("")
    found = ledger.chapters_with_claims(["01_first", "02_second"], source)
    assert found == ["01_first", "02_second"]


def test_claims_without_a_chapter_are_refused(source: Path) -> None:
    with pytest.raises(ExtensionError, match=r"deqbook\.pages\.p01_first\.claims.*no chapter"):
        ledger.chapters_with_claims(["02_second"], source)


def test_evidence_is_reused_until_the_claims_change(source: Path) -> None:
    first = collect(source)
    assert collect(source) == first
    claims = source / "deqbook" / "pages" / "p01_first" / "claims.py"
    claims.write_text("# a note\n" + claims.read_text())
    assert collect(source) == first
    assert runs(source) == [["01_first"]]
    claims.write_text(claims.read_text() + "CHANGED = True\n")
    assert collect(source) != first
    assert runs(source) == [["01_first"]] * 2


def test_runs_are_not_kept(source: Path) -> None:
    (claim,) = json.loads(collect(source)["01_first"].read_text())["claims"]
    assert claim.keys() == CLAIM.keys() - {"runs"}


@pytest.mark.parametrize("status", ["fails", "unbroken"])
def test_a_claim_that_does_not_stand_stops_the_build_every_time(source: Path, status: str) -> None:
    write_claims(source, "01_first", f"STATUS = {status!r}\n")
    for _ in range(2):
        with pytest.raises(ExtensionError, match=rf"gao2022\.lemma2\.2.*{status}.*3 > 2"):
            collect(source)


def test_chapters_are_verified_in_one_run_and_kept_apart(source: Path) -> None:
    write_claims(source, "02_second", "STATUS = 'holds'\n")
    files = collect(source, "02_second")
    for chapter, file in files.items():
        assert [c["chapter"] for c in json.loads(file.read_text())["claims"]] == [chapter]
    write_claims(source, "02_second", "STATUS = 'uncheckable'\nEXIT = 0\n")
    collect(source, "02_second")
    assert runs(source) == [["01_first", "02_second"], ["02_second"]]


def test_a_chapter_that_stands_is_kept_when_another_does_not(source: Path) -> None:
    write_claims(source, "02_second", "STATUS = 'fails'\n")
    for _ in range(2):
        with pytest.raises(ExtensionError, match=r"02_second.*status 1:\n.*fails") as raised:
            collect(source, "02_second")
        assert str(raised.value).count("gao2022.lemma2.2") == 1  # of the second alone
    assert runs(source) == [["01_first", "02_second"], ["02_second"]]


def test_a_run_that_fails_without_a_reason_counts_for_nothing(source: Path) -> None:
    write_claims(source, "01_first", "STATUS = 'holds'\nEXIT = 3\n")
    for _ in range(2):
        with pytest.raises(ExtensionError, match="status 3, though every claim stands"):
            collect(source)


def test_a_chapter_that_the_run_says_nothing_of_is_an_error(source: Path) -> None:
    main = source / "deqbook" / "__main__.py"
    main.write_text(main.read_text().replace("in chapters:", "in chapters[1:]:"))
    with pytest.raises(ExtensionError, match="said nothing of 01_first"):
        collect(source)


def test_output_that_is_no_ledger_is_shown(source: Path) -> None:
    write_claims(source, "01_first", "raise OSError('disk full')\n")
    with pytest.raises(ExtensionError, match="disk full"):
        collect(source)


def test_summary_counts_claims_and_controls() -> None:
    hopeless = UNCHECKABLE | {"controls": [], "seconds": 0.0}
    table = CLAIM | {"standing": "not reproduced", "controls": [], "seconds": 0.0}
    assert ledger.summary([CLAIM, hopeless, table]) == (
        "3 claims: 1 holds, 1 is not reproduced at this size, 1 no finite experiment can check. "
        "1 of 1 controls break as they must. 0.2 s."
    )


def test_the_ledger_counts_planted_bugs() -> None:
    assert ledger.bitten([CLAIM], {}) == ""
    assert ledger.bitten([CLAIM, CLAIM], {CLAIM["id"]: TEETH}) == (
        " Of bugs planted on purpose, 6 of 8 bugs in what is computed (75%) and 0 of 0 bugs in "
        "what is stated are noticed."
    )


@pytest.mark.parametrize(
    ("slack", "text"), [(1.5, "1.5"), (None, "–"), (float("nan"), "–"), (float("inf"), "∞")]
)
def test_row_sets_the_slack(slack: float | None, text: str) -> None:
    cells = ledger.row(CLAIM | {"slack": slack}).split(" | ")
    assert cells[2:4] == [text, "the scaling"]


#: All that Markdown could take for its own, and what would end a cell or a link early.
AWKWARD = (
    r"‖W‖ < 1 | *a* _b_ __c__ `d` ``e`` [f](g) $h$ {i} {{j}} \\k \l \| "
    r"<b>m</b> &amp; ~~n~~ www.o.org #"
)
CONFIG = {
    "extensions": ["myst_nb", "sphinx_proof", "ledger"],
    "myst_enable_extensions": yaml.safe_load(
        Path(__file__).resolve().parents[2].joinpath("_config.yml").read_text(encoding="utf-8")
    )["parse"]["myst_enable_extensions"],
    "nb_execution_mode": "off",
    "honest_cache_libraries": [],
    "html_theme": "basic",
    "smartquotes": False,
    "exclude_patterns": ["_build"],
}
CHAPTER = """# First

```{prf:theorem}
:label: thm-one
A statement.
```

(fig-one)=
:::{figure} nothing.svg
:alt: nothing

A figure.
:::
"""


def build(source: Path, claim: dict[str, object]) -> tuple[Tag, str]:
    """Build a book of one chapter with one such claim; return the ledger and the warnings."""
    root = source.parent
    write_claims(source, "01_first", f"STATUS = 'holds'\nCLAIM = {claim!r}\n")
    (root / "chapters").mkdir()
    (root / "chapters" / "01_first.md").write_text(CHAPTER)
    (root / "chapters" / "nothing.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    (root / "book").mkdir()
    (root / "book" / "teeth.json").write_text(json.dumps({"claims": {CLAIM["id"]: TEETH}}))
    (root / "index.md").write_text(
        "# Book\n\n```{toctree}\nchapters/01_first\n```\n\n```{ledger}\n```\n"
    )
    warnings = io.StringIO()
    with patch_docutils(), docutils_namespace():
        out = root / "_build"
        app = Sphinx(
            root, None, out / "html", out / "doctrees", "html", CONFIG, None, warnings, True
        )
        app.build()
    page = BeautifulSoup((out / "html" / "index.html").read_text(), "html.parser")
    return page.select_one("div.body"), warnings.getvalue()


@pytest.mark.book
@pytest.mark.parametrize("ref", ["", "thm-one", "fig-one"])
def test_a_claim_is_set_as_it_is_written(source: Path, ref: str) -> None:
    control = {"broken": AWKWARD, "breaks": True, "measurements": []}
    claim = {"title": AWKWARD, "ref": ref, "source": AWKWARD, "controls": [control]}
    page, warnings = build(
        source, claim | {"status": "uncheckable", "standing": "not checkable", "reason": AWKWARD}
    )
    assert not warnings
    cells = page.select("table.deq-ledger tbody td")
    # What Markdown must leave alone is then set: its letters, and what is low and high among them.
    shown = BeautifulSoup(formula(AWKWARD), "html.parser").get_text()
    assert [cell.get_text().strip() for cell in cells] == [
        f"{shown} {CLAIM['id']}",
        AWKWARD,
        "1.5",
        shown,
        "3/4, –",
        "0.2",
        f"not checkable: {shown}",
    ]
    assert cells[6].select_one(".deq-reason").get_text() == shown
    assert cells[0].select_one("code.deq-claim-id").get_text() == CLAIM["id"]
    links = [link["href"] for link in page.select("td a")]
    assert links == ([f"chapters/01_first.html#{ref}"] if ref else [])
    assert cells[6].select_one(".deq-not-checkable").get_text() == "not checkable"


@pytest.mark.book
def test_the_table_has_its_heading_and_scrolls_from_the_keyboard(source: Path) -> None:
    page, warnings = build(source, {})
    assert not warnings
    assert page.select_one(".rubric a[href='chapters/01_first.html']").get_text() == "First"
    region = page.select_one("div.deq-scroll[tabindex='0'][role=region]")
    assert region["aria-label"] == "Claims of 01_first"
    assert [th.get_text() for th in region.select("table thead th")] == list(ledger.HEADINGS)
    assert region.select_one("tbody .deq-holds").get_text() == "✓ holds"
    sums = [p.get_text() for p in page.select("p") if "1 claim: 1 holds." in p.get_text()]
    assert len(sums) == 2  # of the book, of the chapter


@pytest.mark.book
def test_bugs_that_were_not_noticed_are_listed_with_their_reasons(source: Path) -> None:
    page, warnings = build(source, {})
    assert not warnings
    (folded,) = page.select("details.deq-unnoticed")
    assert folded.summary.get_text() == "1 planted bug not noticed, and why"
    (bug,) = folded.select("li")
    assert bug.get_text().strip() == (
        f"{CLAIM['id']} computed in p01_first.claims:f – max(a['b']) → min(a['b']) occurrence 2 – "
        "the *least* is |below| it as well."
    )


def test_where_every_bug_was_noticed_nothing_is_folded() -> None:
    assert ledger.unnoticed([CLAIM], {CLAIM["id"]: TEETH | {"survivors": []}}) == ""


@pytest.mark.book
@pytest.mark.parametrize("ref", ["thm-absent", "fig-absent"])
def test_a_label_that_no_page_defines_is_a_warning(source: Path, ref: str) -> None:
    _, warnings = build(source, {"ref": ref})
    assert ref in warnings
