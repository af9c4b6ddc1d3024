"""The notebook cache, with real builds of a toy book: what re-executes what."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from jupyter_cache import get_cache
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import docutils_namespace, patch_docutils

pytestmark = pytest.mark.book

PAGE = """---
file_format: mystnb
kernelspec:
  name: python3
{front}---

# {title}

Some prose.

```{{code-cell}} ipython3
{code}
```
"""

SOURCES = {
    "index.md": "# Toy\n\n```{toctree}\none\ntwo\n```\n",
    "one.md": PAGE.format(
        title="One", front="", code="from toy.alpha import alpha\nprint('alpha', alpha())"
    ),
    "two.md": PAGE.format(
        title="Two",
        front="deqbook:\n  data: [src/toy/table.txt]\n",
        code="import toy.beta\nprint('beta', toy.beta.beta())",
    ),
    "src/toy/__init__.py": "",
    "src/toy/alpha.py": "from .base import base\n\n\ndef alpha():\n    return base() + 1\n",
    "src/toy/base.py": "def base():\n    return 10\n",
    "src/toy/beta.py": (
        "from pathlib import Path\n\n\ndef beta():\n"
        "    return Path(__file__).with_name('table.txt').read_text().strip()\n"
    ),
    "src/toy/table.txt": "seven\n",
}
CONFIG = {
    "extensions": ["myst_nb", "honest_cache"],
    "nb_execution_mode": "cache",
    "nb_execution_raise_on_error": True,
    "honest_cache_libraries": [],
    "html_theme": "basic",
    "exclude_patterns": ["_build"],
}


@dataclass(frozen=True)
class Build:
    """What one build executed, read and warned of."""

    executed: set[str]
    read: set[str]
    warnings: str


@dataclass(frozen=True)
class Book:
    """A toy book in a folder, to edit and to build."""

    root: Path

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert old in text, f"{name} does not hold {old!r}"
        path.write_text(text.replace(old, new))

    def build(self, fresh: bool = False) -> Build:
        out = self.root / "_build"
        warnings = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, patch_docutils(), docutils_namespace():
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # kernels leave bytecode behind
            app = Sphinx(
                srcdir=self.root,
                confdir=None,
                outdir=out / "html",
                doctreedir=out / "doctrees",
                buildername="html",
                confoverrides=CONFIG,
                status=None,
                warning=warnings,
                freshenv=fresh,
            )
            app.build()
        pages = json.loads((out / "execution.json").read_text())
        executed = {name for name, page in pages.items() if page["executed"]}
        read = {name for name, page in pages.items() if page["read"]}
        return Build(executed, read, warnings.getvalue())

    def shows(self, page: str, text: str) -> bool:
        html = (self.root / "_build" / "html" / f"{page}.html").read_text()
        return text in re.sub(r"<[^>]+>", "", html)


@pytest.fixture(scope="module")
def executed_book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """Write the toy book and build it once, from nothing."""
    root = tmp_path_factory.mktemp("toy")
    for name, text in SOURCES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    book = Book(root)
    build = book.build()
    assert build == Build({"one", "two"}, {"one", "two"}, "")
    assert book.shows("one", "alpha 11")
    assert book.shows("two", "beta seven")
    return book


@pytest.fixture
def book(executed_book: Book, tmp_path: Path) -> Book:
    """Return a copy of the built book at another path, after a build there.

    That build executes nothing: the cache does not depend on the place of the clone.
    """
    root = tmp_path / "clone of it"
    shutil.copytree(executed_book.root, root)
    book = Book(root)
    assert book.build() == Build(set(), {"one", "two"}, "")
    return book


def test_a_second_build_reads_and_executes_nothing(book: Book) -> None:
    assert book.build() == Build(set(), set(), "")


def test_reading_all_pages_again_executes_nothing(book: Book) -> None:
    assert book.build(fresh=True) == Build(set(), {"one", "two"}, "")


def test_prose_executes_nothing_and_is_shown(book: Book) -> None:
    book.edit("one.md", "Some prose.", "Better prose.")
    assert book.build() == Build(set(), {"one"}, "")
    assert book.shows("one", "Better prose.")


def test_code_of_a_page_executes_that_page(book: Book) -> None:
    book.edit("one.md", "'alpha'", "'ALPHA'")
    assert book.build().executed == {"one"}


def test_comments_and_docstrings_of_a_module_execute_nothing(book: Book) -> None:
    book.edit("src/toy/alpha.py", "def alpha():\n", "# a note\ndef alpha():\n    '''Doc.'''\n")
    assert book.build(fresh=True).executed == set()


def test_a_module_executes_the_page_that_imports_it(book: Book) -> None:
    book.edit("src/toy/alpha.py", "+ 1", "+ 2")
    assert book.build() == Build({"one"}, {"one"}, "")
    assert book.shows("one", "alpha 12")


def test_an_indirectly_imported_module_executes_the_page_and_reverting_it_nothing(
    book: Book,
) -> None:
    book.edit("src/toy/base.py", "10", "20")
    assert book.build() == Build({"one"}, {"one"}, "")
    assert book.shows("one", "alpha 21")
    book.edit("src/toy/base.py", "20", "10")
    assert book.build() == Build(set(), {"one"}, "")
    assert book.shows("one", "alpha 11")


def test_a_data_file_executes_the_page_that_declares_it(book: Book) -> None:
    book.edit("src/toy/table.txt", "seven", "eight")
    assert book.build() == Build({"two"}, {"two"}, "")
    assert book.shows("two", "beta eight")


def test_the_package_itself_executes_every_page_that_imports_from_it(book: Book) -> None:
    book.edit("src/toy/__init__.py", "", "VERSION = 2\n")
    assert book.build().executed == {"one", "two"}


def test_a_module_that_nobody_imports_executes_nothing(book: Book) -> None:
    (book.root / "src/toy/gamma.py").write_text("x = 1\n")
    assert book.build() == Build(set(), set(), "")


def test_undeclared_data_is_refused_until_declared(book: Book) -> None:
    book.edit("two.md", "deqbook:\n  data: [src/toy/table.txt]\n", "")
    for _ in range(2):  # the refused execution must not be in the cache
        build = book.build(fresh=True)
        assert build.executed == {"two"}
        assert "read src/toy/table.txt, which its cache key does not cover" in build.warnings
    book.edit("two.md", "\nkernelspec:", "\ndeqbook:\n  data: [src/toy/table.txt]\nkernelspec:")
    assert book.build() == Build(set(), {"two"}, "")


def test_a_module_imported_by_a_computed_name_is_refused_until_declared(book: Book) -> None:
    book.edit("one.md", "print('alpha'", "__import__('toy.' + 'gamma')\nprint('alpha'")
    (book.root / "src/toy/gamma.py").write_text("x = 1\n")
    assert "read src/toy/gamma.py" in book.build().warnings
    book.edit("one.md", "\nkernelspec:", "\ndeqbook:\n  modules: [toy.gamma]\nkernelspec:")
    assert book.build() == Build({"one"}, {"one"}, "")
    (book.root / "src/toy/gamma.py").write_text("x = 2\n")
    assert book.build().executed == {"one"}


def test_a_module_read_as_bytecode_is_seen(book: Book) -> None:
    (book.root / "src/toy/gamma.py").write_text("x = 1\n")
    book.edit("one.md", "print('alpha'", "__import__('toy.' + 'gamma')\nprint('alpha'")
    for _ in range(2):
        assert "read src/toy/gamma.py," in book.build(fresh=True).warnings
        assert list((book.root / "src/toy/__pycache__").glob("gamma.*.pyc"))


LAZY = """\
import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
"""


@pytest.fixture
def lazy_book(book: Book) -> Book:
    """Return the book with a package that loads its names on demand; page one imports so."""
    (book.root / "src/toy/__init__.py").write_text(LAZY)
    (book.root / "src/toy/__init__.pyi").write_text(
        "from .alpha import alpha as alpha\nfrom .beta import beta as beta\n"
    )
    book.edit("one.md", "from toy.alpha import", "from toy import")
    book.edit(
        "two.md",
        "import toy.beta\nprint('beta', toy.beta.beta",
        "from toy import beta\nprint('beta', beta",
    )
    assert book.build() == Build({"one", "two"}, {"one", "two"}, "")
    assert book.shows("one", "alpha 11")
    assert book.shows("two", "beta seven")
    return book


def test_a_module_loaded_on_demand_executes_the_page_that_takes_a_name_from_it(
    lazy_book: Book,
) -> None:
    lazy_book.edit("src/toy/base.py", "10", "20")
    assert lazy_book.build() == Build({"one"}, {"one"}, "")
    assert lazy_book.shows("one", "alpha 21")
    lazy_book.edit("src/toy/__init__.pyi", "from .alpha", "from .other")
    (lazy_book.root / "src/toy/other.py").write_text("def alpha():\n    return 5\n")
    assert lazy_book.build() == Build({"one", "two"}, {"one", "two"}, "")
    assert lazy_book.shows("one", "alpha 5")


@pytest.mark.parametrize("code", ["import toy", "import toy as t", "from toy import *"])
def test_a_page_that_takes_a_lazy_package_as_a_whole_fails(lazy_book: Book, code: str) -> None:
    lazy_book.edit("one.md", "from toy import alpha", code)
    with pytest.raises(ExtensionError, match=rf"one: `{re.escape(code)}` hands over toy"):
        lazy_book.build()


def test_a_misspelt_declaration_is_an_error(book: Book) -> None:
    book.edit("two.md", "  data:", "  date:")
    with pytest.raises(ExtensionError, match=r"unknown key.*date"):
        book.build()


#: A page that ends only if the other one runs at the same time: each waits for the other's sign.
MEET = """\
import pathlib, time
signs = pathlib.Path(r'{folder}')
(signs / '{mine}').open('a').write('.')
begun = time.monotonic()
while not (signs / '{other}').exists() and time.monotonic() < begun + 30:
    time.sleep(0.05)
print('met' if (signs / '{other}').exists() else 'alone')
"""


def test_pages_execute_side_by_side(book: Book, tmp_path: Path) -> None:
    book.edit("one.md", "print(", MEET.format(folder=tmp_path, mine="1", other="2") + "print(")
    book.edit("two.md", "print(", MEET.format(folder=tmp_path, mine="2", other="1") + "print(")
    assert book.build() == Build({"one", "two"}, {"one", "two"}, "")
    assert book.shows("one", "met")
    assert book.shows("two", "met")
    assert (tmp_path / "1").read_text() == (tmp_path / "2").read_text() == "."  # each of them once
    assert book.shows("one", "alpha 11")
    assert book.build(fresh=True) == Build(set(), {"one", "two"}, "")


def test_side_by_side_a_page_that_reads_undeclared_data_is_refused_all_the_same(book: Book) -> None:
    book.edit("one.md", "'alpha'", "'ALPHA'")
    book.edit("two.md", "deqbook:\n  data: [src/toy/table.txt]\n", "")
    build = book.build()
    assert build.executed == {"one", "two"}
    assert "read src/toy/table.txt, which its cache key does not cover" in build.warnings
    assert book.shows("one", "ALPHA 11")
    again = book.build(fresh=True)
    assert again.executed == {"two"}
    assert again.warnings == build.warnings


def test_side_by_side_a_failing_page_fails_the_build_and_spares_the_other(book: Book) -> None:
    book.edit("one.md", "print('alpha', alpha())", "assert alpha() == 0")
    book.edit("two.md", "'beta'", "'BETA'")
    with pytest.raises(ExtensionError, match="one did not execute to its end"):
        book.build()
    book.edit("one.md", "assert alpha() == 0", "print('alpha', alpha())")
    assert book.build().executed == set()  # the other is in the cache, and this one is as before
    assert book.shows("two", "BETA seven")


def test_a_failing_page_is_named_and_not_cached(book: Book) -> None:
    book.edit("one.md", "print('alpha', alpha())", "assert alpha() == 0")
    for _ in range(2):
        with pytest.raises(ExtensionError, match="one did not execute to its end"):
            book.build()
        report = json.loads((book.root / "_build" / "execution.json").read_text())
        assert report["one"] == {"executed": True, "seconds": None, "read": True}


WRITE_MANY = """
import sys
import honest_cache
from jupyter_cache import get_cache
from jupyter_cache.cache.main import CacheBundleIn
from nbformat.v4 import new_code_cell, new_notebook

honest_cache._install()
cache = get_cache(sys.argv[1])
for i in range(40):
    cell = new_code_cell(f"{sys.argv[2]}, {i}", execution_count=1)
    kernel = {"name": "python3", "display_name": "python3"}
    notebook = new_notebook(cells=[cell], metadata={"kernelspec": kernel})
    cache.cache_notebook_bundle(CacheBundleIn(notebook, f"{sys.argv[2]}-{i}.ipynb"), overwrite=True)
"""


def test_two_processes_may_write_into_the_cache_at_once(tmp_path: Path) -> None:
    get_cache(tmp_path)  # makes the database
    extensions = str(Path(__file__).resolve().parents[2] / "book" / "_ext")
    environment = os.environ | {"PYTHONPATH": extensions}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE_MANY, str(tmp_path), name], env=environment)
        for name in ("one", "two", "three")
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(get_cache(tmp_path).list_cache_records()) == 120
