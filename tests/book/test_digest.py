"""What a digest covers, without a build."""

from __future__ import annotations

import ast
from pathlib import Path

import digest
import pytest


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / f"{name.replace('__', '/').replace('/init', '/__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("code", "package", "names"),
    [
        ("import a.b as c", "", {"a.b"}),
        ("from a import b, c", "", {"a", "a.b", "a.c"}),
        ("from . import x", "p.q", {"p.q", "p.q.x"}),
        ("from ..y import z", "p.q", {"p.y", "p.y.z"}),
        ("from a import *", "", {"a", "a.*"}),
        ("def f():\n    import late", "", {"late"}),
        ("import_module('a.b')", "", {"a.b"}),
        ("importlib.import_module('.b', __package__)", "p", {"p.b"}),
        ("import_module(name)", "", set()),
    ],
)
def test_imported_names(code: str, package: str, names: set[str]) -> None:
    assert digest.imported_names(ast.parse(code), package) == names


def test_closure_follows_packages_and_relative_imports(tmp_path: Path) -> None:
    write(
        tmp_path,
        p__init="",
        p__a="from .b import f\nimport numpy",
        p__b="import p.c",
        p__c="",
        p__unused="",
    )
    assert set(digest.closure(["p.a.g"], [tmp_path])) == {"p", "p.a", "p.b", "p.c"}


def test_closure_of_a_star_import_takes_the_whole_package(tmp_path: Path) -> None:
    write(tmp_path, p__init="", p__a="", p__b="")
    assert set(digest.closure(["p.*"], [tmp_path])) == {"p", "p.a", "p.b"}


def test_closure_ends_on_circular_imports(tmp_path: Path) -> None:
    write(tmp_path, a="import b", b="import a")
    assert set(digest.closure(["a"], [tmp_path])) == {"a", "b"}


def test_comments_layout_and_docstrings_do_not_count() -> None:
    bare = "def f(x):\n    return x + 1\n"
    dressed = '"""Module."""\n\n# why\ndef f( x ):\n    """Doc."""\n    return (x + 1)  # so\n'
    assert digest.normalised(bare) == digest.normalised(dressed)
    assert digest.normalised(bare) != digest.normalised(bare.replace("1", "2"))


def test_a_docstring_alone_is_a_body() -> None:
    assert digest.normalised('def f():\n    """Doc."""') == digest.normalised("def f():\n    pass")


def test_docstrings_count_where_a_module_reads_them(tmp_path: Path) -> None:
    write(tmp_path, a='"""One."""\nprint(__doc__)')
    modules = {"a": tmp_path / "a.py"}
    before = digest.digest_modules(modules)
    write(tmp_path, a='"""Two."""\nprint(__doc__)')
    assert digest.digest_modules(modules) != before


def test_cells_with_magics_still_give_their_imports() -> None:
    cell = "%matplotlib inline\n!ls\nimport a\nif True:\n    %time b()\na?"
    assert digest.imported_names(digest.parse_cell(cell)) == {"a"}
    assert digest.imported_names(digest.parse_cell("%%time\nimport a")) == {"a"}
    assert digest.imported_names(digest.parse_cell("%%bash\nimport a")) == set()


def test_a_cell_that_is_not_python_is_named() -> None:
    with pytest.raises(digest.DigestError, match=r"chapter one.*Correct the cell"):
        digest.parse_cell("def f(:", "chapter one")


def test_data_digest_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(digest.DigestError, match=r"absent\.npz"):
        digest.digest_files([tmp_path / "absent.npz"], tmp_path)


def test_environment_counts_minor_versions_and_settings() -> None:
    same = digest.digest_environment(["numpy", "no-such-library"], {"A": "1"})
    assert same == digest.digest_environment(["no-such-library", "numpy"], {"A": "1"})
    assert same != digest.digest_environment(["numpy"], {"A": "1"})
    assert same != digest.digest_environment(["numpy", "no-such-library"], {"A": "2"})
