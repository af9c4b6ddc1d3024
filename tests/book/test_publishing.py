"""Launch buttons for any fork, and what a build says it did."""

from __future__ import annotations

from pathlib import Path

import launch
import pytest

from deqbook.cli import build


def test_no_repository_no_buttons() -> None:
    assert launch.theme_options({})["launch_buttons"] == {}


def test_buttons_point_to_the_repository_being_published() -> None:
    options = launch.theme_options({"GITHUB_REPOSITORY": "some/fork", "GITHUB_REF_NAME": "main"})
    assert options["repository_url"] == "https://github.com/some/fork"
    assert options["launch_buttons"]["binderhub_url"] == launch.BINDER


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
