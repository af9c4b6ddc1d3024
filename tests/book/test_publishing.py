"""Buttons for any fork, the branch that they lead to, and what a build says it did."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import branch
import built_site
import launch
import place
import pytest
import yaml
from bs4 import BeautifulSoup

from deqbook.cli import build

ROOT = built_site.ROOT
PAGES = built_site.toc_pages()
CHAPTERS = [page for page in PAGES if page.startswith("chapters/")]
FORK = {"GITHUB_REPOSITORY": "Some/fork.name", "GITHUB_REF_NAME": "main"}
HERE = place.home(os.environ)
every = pytest.mark.parametrize("page", PAGES)


# --- where a book is published --------------------------------------------------------------


def test_nothing_is_known_without_an_environment() -> None:
    assert place.home({}).repository == place.home({}).public == ""
    assert place.home({}).address("README.md") == ""
    assert place.site_address({}) == place.site_address({"DEQBOOK_SITE": ""}) == ""


def test_address_of_the_site() -> None:
    own = {"GITHUB_REPOSITORY": "Some/some.github.io"}
    assert place.site_address(FORK) == "https://some.github.io/fork.name/"
    assert place.site_address(own) == "https://some.github.io/"
    given = {**FORK, "DEQBOOK_SITE": "https://deq.example.org/book"}
    assert place.site_address(given) == "https://deq.example.org/book/"


def test_a_company_server_has_sources_but_neither_colab_nor_binder() -> None:
    at = place.home({**FORK, "GITHUB_SERVER_URL": "https://git.example.org"})
    assert at.address("a b.md") == "https://git.example.org/Some/fork.name/blob/main/a%20b.md"
    assert not launch.launch_buttons(CHAPTERS[0], at)
    assert not place.site_address({**FORK, "GITHUB_SERVER_URL": "https://git.example.org"})


@pytest.mark.parametrize("name", ["fork", "a/b/c", "a b/c", 'a/b"', "/", "a/"])
def test_what_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="owner/name"):
        place.home({"GITHUB_REPOSITORY": name})


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="it has to be an address"):
        place.site_address({"DEQBOOK_SITE": "deq.example.org"})


# --- buttons --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the branch of notebooks, written from the built site."""
    folder = tmp_path_factory.mktemp("branch") / "tree"
    address = place.site_address(FORK)
    branch.write_tree(ROOT, built_site.require_site(), folder, "A book", address)
    return folder


def pathto(page: str) -> Callable[[str, int], str]:
    return lambda path, resource: os.path.relpath(path, Path(page).parent)


@pytest.mark.book
@every
def test_buttons_of_a_fork_lead_to_files(page: str, tree: Path) -> None:
    at = place.home(FORK)
    launches = [button["url"] for button in launch.launch_buttons(page, at)]
    downloads = [button["url"] for button in launch.download_buttons(page, pathto(page))]
    assert bool(launches) == bool(downloads) == (page in CHAPTERS)
    if launches:
        colab, binder = launches
        start = "https://colab.research.google.com/github/Some/fork.name/blob/notebooks/"
        assert (tree / colab.removeprefix(start)).is_file()
        start = "https://mybinder.org/v2/gh/Some/fork.name/notebooks?urlpath=lab/tree/"
        assert (tree / binder.removeprefix(start)).is_file()
    for url in downloads:
        assert (built_site.require_site() / page).parent.joinpath(url).is_file()
    (source,) = launch.source_button(ROOT, page, at)
    kind, _, rest = source["url"].removeprefix("https://github.com/Some/fork.name/").partition("/")
    target = ROOT / rest.removeprefix("main/").removesuffix("?plain=1")
    assert target.is_dir() if kind == "tree" else target.is_file()


@every
def test_without_a_repository_only_files_of_the_site_are_offered(page: str) -> None:
    at = place.home({})
    assert launch.launch_buttons(page, at) == launch.source_button(ROOT, page, at) == []
    assert len(launch.download_buttons(page, pathto(page))) == (2 if page in CHAPTERS else 0)


@pytest.mark.parametrize(
    ("page", "source"),
    [
        ("chapters/04_ntk", "chapters/04_ntk.md"),
        ("book/glossary", "book/glossary.md"),
        ("book/reference/index", "book/reference/index.md"),
        ("book/reference/solvers", "src/deqbook/solvers.py"),
        ("book/reference/models", "src/deqbook/models"),
        ("book/reference/foundations", "src/deqbook"),
        ("search", ""),
        ("genindex", ""),
    ],
)
def test_source_of_a_page(page: str, source: str) -> None:
    assert launch.source_of(ROOT, page) == source
    if not source:
        assert not launch.source_button(ROOT, page, place.home(FORK))


@pytest.mark.book
@pytest.mark.parametrize("page", [*PAGES, "search", "genindex"])
def test_buttons_of_the_built_page(page: str) -> None:
    """The site may have been built by a workflow, which knows the place, or at home."""
    path = built_site.require_site() / f"{page}.html"
    header = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").select_one(
        ".article-header-buttons"
    )
    assert header is not None
    kinds = ("launch-colab", "launch-binder", "view-source", "download-notebook")
    found = [str(tag["href"]) for kind in kinds for tag in header.select(f"a.btn-{kind}")]
    wanted = launch.launch_buttons(page, HERE)
    wanted += launch.source_button(ROOT, page, HERE)
    wanted += launch.download_buttons(page, pathto(page))[:1]
    assert sorted(found) == sorted(button["url"] for button in wanted)
    for tag in header.select("a, button"):
        name = tag.get_text().strip() or tag.get("title") or tag.get("aria-label")
        assert name, f"{page}: a button without a name: {tag}"


# --- the branch of notebooks ----------------------------------------------------------------


@pytest.mark.book
def test_the_branch_holds_all_that_binder_needs(tree: Path) -> None:
    given = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    taken = yaml.safe_load((tree / "environment.yml").read_text(encoding="utf-8"))
    assert given["dependencies"][:-1] == taken["dependencies"][:-1]
    (wheel,) = taken["dependencies"][-1]["pip"]
    assert wheel.startswith("./wheels/")
    assert (tree / wheel).is_file()
    assert os.access(tree / "start", os.X_OK)
    assert not (tree / "binder").exists()
    assert not (tree / ".binder").exists()


@pytest.mark.book
def test_the_branch_lists_its_notebooks(tree: Path) -> None:
    text = (tree / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)]+\.ipynb)\)", text)
    there = [path.relative_to(tree).as_posix() for path in tree.rglob("*.ipynb")]
    assert sorted(linked) == sorted(there)
    assert len([path for path in linked if "/" not in path]) == 2 * len(CHAPTERS)
    assert "https://some.github.io/fork.name/" in text
    assert "| 4. The neural tangent kernel of a DEQ |" in text


def test_an_environment_without_the_checkout_is_refused() -> None:
    with pytest.raises(ValueError, match="0 lines"):
        branch.environment("dependencies: [pip]", "a.whl")


def git(*arguments: str | Path, at: Path) -> str:
    names = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    command = ["git", *names, *map(str, arguments)]
    return subprocess.run(command, cwd=at, check=True, capture_output=True, text=True).stdout


def test_the_branch_is_one_commit_and_pushed_only_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{variable}_NAME", "A")
        monkeypatch.setenv(f"GIT_{variable}_EMAIL", "a@example.org")
    hub, work, folder = tmp_path / "hub", tmp_path / "work", tmp_path / "tree"
    git("init", "--quiet", "--bare", hub, at=tmp_path)
    git("clone", "--quiet", hub, work, at=tmp_path)
    (work / ".gitignore").write_text("*.whl\n", encoding="utf-8")
    git("add", ".", at=work)
    git("commit", "--quiet", "-m", "One", at=work)
    (folder / "wheels").mkdir(parents=True)
    for name in ("start", "a.ipynb", "wheels/a.whl"):
        (folder / name).write_text(name, encoding="utf-8")

    def push() -> str:
        script = ROOT / ".ci" / "push-notebooks"
        return subprocess.run(
            [script, folder], cwd=work, check=True, capture_output=True, text=True
        ).stdout

    assert push() == "Pushed 3 files to notebooks.\n"
    first = git("rev-parse", "notebooks", at=hub)
    assert push() == "The branch notebooks is up to date.\n"
    assert git("rev-parse", "notebooks", at=hub) == first
    (folder / "a.ipynb").unlink()
    assert push() == "Pushed 2 files to notebooks.\n"
    assert git("rev-list", "--count", "notebooks", at=hub) == "1\n"
    listed = git("ls-tree", "-r", "notebooks", at=hub)
    assert re.findall(r"^(\d+) .*\t(.+)$", listed, re.MULTILINE) == [
        ("100755", "start"),
        ("100644", "wheels/a.whl"),
    ]
    assert git("status", "--short", at=work) == ""


# --- what a build says ----------------------------------------------------------------------


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
