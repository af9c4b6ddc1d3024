"""A release: one version everywhere, archives that are equal for equal sources, a full citation."""

from __future__ import annotations

import importlib.util
import re
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from deqbook import __version__

ROOT = Path(__file__).resolve().parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def dist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dist", ROOT / ".ci" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def releases() -> list[tuple[str, str]]:
    return re.findall(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", read("CHANGELOG.md"), re.MULTILINE)


def test_one_version_everywhere(dist: ModuleType) -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert dist.version() == __version__ == str(citation["version"]) == releases()[0][0]
    assert f"{{Version {__version__}}}" in read("book/index.md")


def test_one_date_everywhere() -> None:
    assert str(yaml.safe_load(read("CITATION.cff"))["date-released"]) == releases()[0][1]
    dates = [date for _, date in releases()]
    assert dates == sorted(dates, reverse=True)
    headings = re.findall(r"^## (.*)", read("CHANGELOG.md"), re.MULTILINE)
    assert len(headings) == len(releases()) + (headings[0] == "Not released")


def test_the_citation_has_what_a_citation_needs() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    wanted = "message title abstract type version date-released license authors keywords"
    assert {"cff-version", *wanted.split()} <= citation.keys()
    for work in citation["references"]:
        assert {"type", "title", "authors", "year"} <= work.keys(), work["title"]
    title = yaml.safe_load(read("_config.yml"))["title"]
    assert title == citation["title"]
    assert read("book/index.md").startswith(f"# {title}\n")
    assert f"title  = {{{title}}}" in read("book/index.md")


def test_notes_are_the_words_of_the_change_log(dist: ModuleType) -> None:
    newest = dist.notes(__version__)
    assert newest.startswith("### Added")
    assert "\n## " not in newest
    with pytest.raises(SystemExit, match=r"no section `## 9\.9"):
        dist.notes("9.9")


def test_a_tag_has_to_be_the_version(dist: ModuleType) -> None:
    dist.main(["tag", f"v{__version__}"])
    for tag in ("v9.9", __version__):
        with pytest.raises(SystemExit, match="the tag is"):
            dist.main(["tag", tag])


def test_the_source_archive_is_steady_and_complete(dist: ModuleType, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    for folder in (first, again):
        folder.mkdir()
        dist.build_sdist(ROOT, folder)
    (archive,) = first.iterdir()
    assert archive.name == f"deqbook-{__version__}.tar.gz"
    assert archive.read_bytes() == (again / archive.name).read_bytes()
    with tarfile.open(archive) as inside:
        names = {name.partition("/")[2] for name in inside.getnames()}
    package = ROOT / "src" / "deqbook"
    endings = ("py", "pyi", "npz", "csv", "json")
    files = {path.relative_to(ROOT).as_posix() for e in endings for path in package.rglob(f"*.{e}")}
    assert files | set(dist.SOURCES) <= names
    assert not [name for name in names if name.startswith(("tests", "_build", "book"))]


@pytest.mark.book
def test_the_wheel_works_away_from_the_checkout(dist: ModuleType, tmp_path: Path) -> None:
    """The borrowed environment must not lend the checkout itself."""
    wheel = tmp_path / dist.notebooks.build_wheel(ROOT, tmp_path).name
    dist.try_out(wheel)
    dist.TRY, kept = "import deqbook; raise SystemExit('not this')", dist.TRY
    try:
        with pytest.raises(SystemExit, match="not this"):
            dist.try_out(wheel)
    finally:
        dist.TRY = kept
