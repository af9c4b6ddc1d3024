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


LAZY = "import lazy_loader as lazy\na, b, c = lazy.attach_stub(__name__, __file__)"


@pytest.fixture
def lazy(tmp_path: Path) -> Path:
    """Write a package that loads its names on demand, with a room in it that does so too."""
    write(
        tmp_path,
        p__init=LAZY,
        p__solvers="def fixed_point(): ...",
        p__rooms__init=LAZY,
        p__rooms__base="",
        p__rooms__dense="from p.rooms.base import Base",
        p__rooms__other="import p.elsewhere as e",
        p__elsewhere="",
        p__plain__init="",
        p__plain__module="",
    )
    (tmp_path / "p/__init__.pyi").write_text("from .solvers import fixed_point as fixed_point")
    (tmp_path / "p/rooms/__init__.pyi").write_text(
        "from . import other as other\nfrom .dense import Dense as Dense, Thin as Thin\n"
    )
    return tmp_path


def reached(root: Path, code: str) -> set[str]:
    """Return the files that code depends on, as a page with this cell would."""
    tree = ast.parse(code)
    digest.refuse_whole_lazy_packages(tree, [root])
    files = digest.closure(digest.imported_names(tree), [root]).values()
    return {path.relative_to(root).as_posix() for path in files}


TOP = {"p/__init__.py", "p/__init__.pyi"}
ROOM = TOP | {"p/rooms/__init__.py", "p/rooms/__init__.pyi"}
DENSE = ROOM | {"p/rooms/dense.py", "p/rooms/base.py"}


@pytest.mark.parametrize(
    ("code", "files"),
    [
        ("from p import fixed_point", TOP | {"p/solvers.py"}),
        ("from p.rooms import Thin", DENSE),
        ("from p.rooms import Dense as D, Thin", DENSE),
        ("from p.rooms import dense", DENSE),
        ("from p.rooms.dense import Dense", DENSE),
        ("import p.rooms.dense as d", DENSE),
        ("import_module('p.rooms.dense')", DENSE),
        ("from p.rooms import other", ROOM | {"p/rooms/other.py", "p/elsewhere.py"}),
        ("from p.rooms import unknown", ROOM),
        ("from p.plain import module", TOP | {"p/plain/__init__.py", "p/plain/module.py"}),
        ("from p import plain", TOP | {"p/plain/__init__.py"}),
    ],
)
def test_a_name_loaded_on_demand_leads_to_its_module(
    lazy: Path, code: str, files: set[str]
) -> None:
    assert reached(lazy, code) == files


@pytest.mark.parametrize(
    ("code", "handed_over", "instead"),
    [
        ("import p", "p", "p"),
        ("import p as q", "p", "p"),
        ("import p.rooms", "p and p.rooms", "p.rooms"),
        ("import p.rooms as r", "p.rooms", "p.rooms"),
        ("import p.rooms.dense", "p and p.rooms", "p.rooms.dense"),
        ("import p.plain.module", "p", "p.plain.module"),
        ("from p import *", "p", "p"),
        ("from p.rooms import *", "p.rooms", "p.rooms"),
        ("from p import rooms", "p.rooms", "p.rooms"),
        ("def f():\n    import p.rooms as r", "p.rooms", "p.rooms"),
        ("import_module('p.rooms')", "p.rooms", "p.rooms"),
        ("__import__('p.solvers')", "p", "p.solvers"),
    ],
)
def test_a_lazy_package_as_a_whole_is_refused(
    lazy: Path, code: str, handed_over: str, instead: str
) -> None:
    with pytest.raises(digest.DigestError) as raised:
        reached(lazy, code)
    statement = code.splitlines()[-1].strip()
    assert f"`{statement}` hands over {handed_over}, which loads" in str(raised.value)
    assert f"Write `from {instead} import NAME`" in str(raised.value)


@pytest.mark.parametrize("code", ["import p", "from . import rooms", "from .rooms import *"])
def test_a_module_that_takes_a_lazy_package_as_a_whole_is_named(lazy: Path, code: str) -> None:
    write(lazy, p__solvers=f"{code}\ndef fixed_point(): ...")
    with pytest.raises(digest.DigestError, match=r"p/solvers\.py: `.*` hands over p"):
        reached(lazy, "from p import fixed_point")


def test_a_stub_counts_where_it_is_read_and_its_comments_do_not(lazy: Path) -> None:
    def now(code: str) -> str:
        names = digest.imported_names(ast.parse(code))
        return digest.digest_modules(digest.closure(names, [lazy]))

    page, other = "from p.rooms import Thin", "from p import fixed_point"
    before = now(page), now(other)
    stub = lazy / "p/rooms/__init__.pyi"
    stub.write_text(stub.read_text() + "# a note\n")
    assert (now(page), now(other)) == before
    stub.write_text(stub.read_text().replace("Dense as Dense, ", ""))
    assert now(page) != before[0]
    assert now(other) == before[1]


def test_a_stub_may_lead_into_another_lazy_package(lazy: Path) -> None:
    (lazy / "p/__init__.pyi").write_text("from .rooms import Dense as Dense")
    assert reached(lazy, "from p import Dense") == DENSE


def test_a_name_may_be_that_of_its_module(lazy: Path) -> None:
    (lazy / "p/__init__.pyi").write_text("from .solvers import solvers as solvers")
    assert reached(lazy, "from p import solvers") == TOP | {"p/solvers.py"}


def test_a_missing_stub_is_named(lazy: Path) -> None:
    (lazy / "p/__init__.pyi").unlink()
    with pytest.raises(digest.DigestError, match=r"cannot read .*p/__init__\.pyi"):
        reached(lazy, "from p.solvers import fixed_point")


def test_a_stub_without_a_loader_means_nothing(tmp_path: Path) -> None:
    write(tmp_path, p__init="", p__a="")
    (tmp_path / "p/__init__.pyi").write_text("from .a import x as x")
    assert reached(tmp_path, "import p") == {"p/__init__.py"}
    assert reached(tmp_path, "from p import x") == {"p/__init__.py"}


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
