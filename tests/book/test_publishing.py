"""Launch buttons for any fork, MathJax from npm or not at all, and what a build says it did."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import launch
import pytest
import vendor

from deqbook.cli import build


def test_no_repository_no_buttons() -> None:
    assert launch.theme_options({})["launch_buttons"] == {}


def test_buttons_point_to_the_repository_being_published() -> None:
    options = launch.theme_options({"GITHUB_REPOSITORY": "some/fork", "GITHUB_REF_NAME": "main"})
    assert options["repository_url"] == "https://github.com/some/fork"
    assert options["launch_buttons"]["binderhub_url"] == launch.BINDER


def test_vendored_files_are_not_fetched_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tmp_path / vendor.ENTRY
    entry.parent.mkdir(parents=True)
    entry.write_text("")
    monkeypatch.setattr(vendor, "npm_command", lambda: pytest.fail("npm was called"))
    assert vendor.fetch(tmp_path) is False


def test_without_npm_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(vendor.VendorError, match="there is no npm"):
        vendor.fetch(tmp_path / "mathjax")


def test_a_failed_fetch_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor, "npm_command", lambda: ["false"])
    with pytest.raises(vendor.VendorError, match="npm pack"):
        vendor.fetch(tmp_path / "vendor" / "mathjax")
    assert list((tmp_path / "vendor").iterdir()) == []


def test_another_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "mathjax.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(vendor.VendorError, match="SHA-512"):
        vendor.check(archive)


def test_only_wanted_files_are_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "mathjax.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in (f"package/{vendor.ENTRY}", "package/es5/node-main.js", "package/LICENSE"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    vendor.extract(archive, tmp_path / "out")
    found = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")}
    assert found == {vendor.ENTRY}
    assert (tmp_path / "out" / "LICENSE").is_file()


def test_build_describes_what_was_executed() -> None:
    pages = {
        "chapters/02": {"executed": True, "seconds": 12.34},
        "chapters/01": {"executed": False, "seconds": 9.0},
        "chapters/03": {"executed": True, "seconds": None},
    }
    assert build.describe(pages) == [
        "  chapters/01: cached",
        "  chapters/02: executed in 12.3 s",
        "  chapters/03: failed",
        "2 of 3 notebooks executed.",
    ]


def test_build_finds_the_book_from_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(root / "book")
    assert build.find_root(None) == root


def test_build_refuses_a_folder_without_a_book(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match="no book at"):
        build.find_root(tmp_path)


def test_build_names_the_missing_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match=r"jupyter_book.*make book"):
        build.require_tools()
