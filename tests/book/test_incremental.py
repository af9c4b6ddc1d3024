"""A build that goes on from the last one gives what a build from nothing gives."""

from __future__ import annotations

import argparse
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.environment.collectors.toctree import TocTreeCollector
from sphinx.util.docutils import docutils_namespace, patch_docutils

from deqbook.cli import build

pytestmark = pytest.mark.book

SOURCES = {
    "index.md": "# Toy\n\n```{toctree}\n:numbered:\none\ntwo\nthree\n```\n\n"
    "```{toctree}\nfour\nfive\nsix\n```\n",
    "one.md": """# The first

Some prose.

```{prf:theorem} Of one
:label: thm-one

It holds.
```

```{prf:theorem}
:label: thm-other

It holds as well.
```

(bare)=
A paragraph with a label.

## Its second half

$$x = 1$$ (eq-one)

```{exercise} Easy
:label: ex-one

Do it.
```

(a-place)=
### Deeper

```{figure} picture.svg
:name: fig-one

A picture.
```

```{glossary}
fixed point
  It stays.
```
""",
    "two.md": """# The second

See {prf:ref}`thm-one`, {eq}`eq-one`, {ref}`ex-one`, {numref}`fig-one`, {doc}`one`,
{ref}`a-place`, {numref}`a-place`, {ref}`there <bare>` and {term}`fixed point`.

```{prf:lemma}
:label: lem-two

It holds, too.
```
""",
    "three.md": "# The third\n\nAlone.\n",
    "four.md": "# The fourth\n\nText.\n",
    "five.md": "# The fifth\n\nText.\n",
    "six.md": "# The sixth\n\nText.\n",
    "picture.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>\n',
}
CONFIG = {
    "extensions": [
        "myst_nb",
        "sphinx_proof",
        "sphinx_exercise",
        "sphinxcontrib.bibtex",
        "numbering",
        "incremental",
    ],
    "myst_enable_extensions": ["dollarmath"],
    "bibtex_bibfiles": ["none.bib"],
    "numfig": True,
    "math_numfig": True,
    "html_theme": "basic",
    "exclude_patterns": ["_build"],
    "prf_realtyp_to_countertyp": {"lemma": "theorem"},
}
THEOREM = "```{prf:theorem}\n:label: thm-zero\n\nIt came later.\n```\n\nSome prose."


@dataclass(frozen=True)
class Book:
    """A toy book in a folder, to edit and to build."""

    root: Path

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def build(self, out: str = "out", fresh: bool = False) -> tuple[Sphinx, str]:
        """Return the application and what it warned of."""
        warnings = io.StringIO()
        with patch_docutils(), docutils_namespace():
            app = Sphinx(
                srcdir=self.root,
                confdir=None,
                outdir=self.root / "_build" / out,
                doctreedir=self.root / "_build" / f"{out}-doctrees",
                buildername="html",
                confoverrides=CONFIG,
                status=None,
                warning=warnings,
                freshenv=fresh,
            )
            app.build(force_all=fresh)
        return app, warnings.getvalue()

    def pages(self, out: str = "out") -> dict[str, str]:
        """Return the written pages, without the marks that Sphinx puts on styles it knows."""
        found = (self.root / "_build" / out).glob("*.html")
        return {path.name: re.sub(r"\?v=\w+", "", path.read_text()) for path in found}


@pytest.fixture
def book(tmp_path: Path) -> Book:
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "none.bib").write_text("")
    made = Book(tmp_path)
    _, warnings = made.build()
    assert warnings == ""
    assert "Theorem 0.1" in made.pages()["two.html"]
    return made


def touched(book: Book, before: dict[str, int]) -> set[str]:
    return {name for name, time in times(book).items() if before[name] != time}


def times(book: Book) -> dict[str, int]:
    folder = book.root / "_build" / "out"
    return {
        f"{page}.html": (folder / f"{page}.html").stat().st_mtime_ns
        for page in ("one", "two", "three")
    }


def test_prose_writes_its_page_alone(book: Book) -> None:
    before = times(book)
    book.edit("one.md", "Some prose.", "Better prose.")
    _, warnings = book.build()
    assert warnings == ""
    assert touched(book, before) == {"one.html"}
    assert "Better prose." in book.pages()["one.html"]


def test_nothing_changed_writes_nothing(book: Book) -> None:
    before = times(book)
    book.build()
    assert touched(book, before) == set()


EDITS = {
    "a theorem before another": ("one.md", "Some prose.", THEOREM),
    "a title": ("one.md", "# The first", "# The very first"),
    "a section before another": ("one.md", "## Its", "## New\n\nText.\n\n## Its"),
    "the title of a section": ("one.md", "### Deeper", "### Deeper still"),
    "a title with the same anchor": ("one.md", "### Deeper", "### Deeper!"),
    "two theorems exchanged": ("one.md", "thm-one\n\nIt holds.\n```\n\n```{prf:theorem}\n:label: "
    "thm-other", "thm-other\n\nIt holds.\n```\n\n```{prf:theorem}\n:label: thm-one"),
    "an equation before another": ("one.md", "$$x", "$$y$$ (eq-new)\n\n$$x"),
    "an exercise before another": (
        "one.md",
        "```{exercise} Easy",
        "```{exercise}\n:label: ex-new\n\nFirst this.\n```\n\n```{exercise} Easy",
    ),
    "a figure before another": (
        "one.md",
        "```{figure} picture.svg",
        "```{figure} picture.svg\n:name: fig-new\n\nNew.\n```\n\n```{figure} picture.svg",
    ),
    "pages in another order": ("index.md", "one\ntwo\nthree", "three\none\ntwo"),
    "pages without numbers in another order": ("index.md", "four\nfive\nsix", "five\nfour\nsix"),
    "prose": ("three.md", "Alone.", "Quite alone."),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_going_on_gives_what_a_build_from_nothing_gives(book: Book, name: str) -> None:
    book.edit(*EDITS[name])
    book.build()
    gone_on = book.pages()
    book.build(fresh=True)
    assert book.pages() == gone_on


def test_a_label_that_moves_to_another_page_is_followed(book: Book) -> None:
    book.edit("one.md", "(bare)=\nA paragraph", "A paragraph")
    book.edit("three.md", "Alone.", "(bare)=\nAlone.")
    book.build()
    assert 'href="three.html#bare"' in book.pages()["two.html"]


def test_a_label_that_another_page_needs_is_missed_at_once(book: Book) -> None:
    book.edit("one.md", ":label: thm-one", ":label: thm-uno")
    _, warnings = book.build()
    assert "thm-one" in warnings


def test_numbers_are_those_of_sphinx_but_for_the_zero(book: Book) -> None:
    book.edit("one.md", "Some prose.", THEOREM)
    app, _ = book.build()
    ours = app.env.toc_fignumbers
    TocTreeCollector.assign_figure_numbers(TocTreeCollector(), app.env)
    assert ours == app.env.toc_fignumbers
    assert ours["one"]["theorem"] == {"thm-zero": (0, 1), "thm-one": (0, 2), "thm-other": (0, 3)}
    assert ours["two"]["theorem"] == {"lem-two": (1, 1)}


def test_pictures_that_no_page_shows_are_removed(book: Book) -> None:
    picture = book.root / "_build" / "out" / "_images" / "picture.svg"
    assert picture.is_file()
    picture.with_name("old.svg").write_text("")
    book.build()
    assert picture.is_file()
    assert not picture.with_name("old.svg").exists()


# --- when `deqbook build` starts from nothing ------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder that looks like a book; Jupyter Book itself is not run."""
    for name in (
        *build.MARKERS,
        "book/_static/a.css",
        "book/references.bib",
        "_build/html/index.html",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in build.PLACE:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def fresh(root: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0, **options: bool) -> bool:
    """Run the command with a Jupyter Book that ends so, and say whether it began from nothing."""
    asked: list[bool] = []

    def book(root: Path, builder: str, verbose: bool, fresh: bool) -> int:
        asked.append(fresh)
        (root / "_build" / "html").mkdir(parents=True, exist_ok=True)
        (root / "_build" / "html" / "index.html").write_text("")
        return status

    monkeypatch.setattr(build, "run_jupyter_book", book)
    given = {"root": root, "builder": "html", "verbose": False, "fresh": False} | options
    assert build.run(argparse.Namespace(**given)) == status
    return asked[0]


def test_a_build_goes_on_after_one_that_succeeded(root: Path, monkeypatch) -> None:
    assert fresh(root, monkeypatch)
    assert not fresh(root, monkeypatch)
    assert fresh(root, monkeypatch, fresh=True)


def test_a_build_starts_from_nothing_after_one_that_failed(root: Path, monkeypatch) -> None:
    fresh(root, monkeypatch)
    assert not fresh(root, monkeypatch, status=1)
    assert fresh(root, monkeypatch)


@pytest.mark.parametrize(
    "name",
    [
        "_config.yml",
        "_toc.yml",
        "book/_ext/honest_cache.py",
        "book/_static/a.css",
        "book/references.bib",
    ],
)
def test_a_build_starts_from_nothing_when_what_shapes_pages_changed(
    root, monkeypatch, name
) -> None:
    fresh(root, monkeypatch)
    (root / name).write_text("other")
    assert fresh(root, monkeypatch)
    assert not fresh(root, monkeypatch)


def test_a_build_starts_from_nothing_for_another_place(root: Path, monkeypatch) -> None:
    fresh(root, monkeypatch)
    monkeypatch.setenv("GITHUB_REPOSITORY", "some/fork")
    assert fresh(root, monkeypatch)


def test_a_build_starts_from_nothing_without_a_site(root: Path, monkeypatch) -> None:
    fresh(root, monkeypatch)
    (root / "_build" / "html" / "index.html").unlink()
    assert fresh(root, monkeypatch)
