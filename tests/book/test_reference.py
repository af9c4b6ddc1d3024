"""The reference: every public name is documented, with an example that runs, and has its place."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from html import unescape
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from bs4 import BeautifulSoup
from built_site import ROOT, toc_pages
from sphinx.pycode import ModuleAnalyzer

PACKAGE = ROOT / "src" / "deqbook"
PAGES = sorted((ROOT / "book" / "reference").glob("*.md"))
#: Rooms that are no library: what a chapter, a command or a long run is made of.
OTHER_ROOMS = {"cli", "course", "experiments", "pages", "teeth"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: What may stand between the heading of a module and its entries.
SECTION = re.compile(
    r"Module `([\w.]+)`\. ((?:Taught in|Used) [^\n]*\.)\n\n"
    r"```\{eval-rst\}\n\.\. automodule:: ([\w.]+)\n```\n"
)
#: Doctests run by themselves: they declare claims and set the style of figures.
RUN_DOCTESTS = f"""
import doctest, importlib, sys
failed = attempted = 0
for name in sys.argv[1:]:
    result = doctest.testmod(importlib.import_module(name), optionflags={FLAGS})
    failed, attempted = failed + result.failed, attempted + result.attempted
print(f"{{attempted}} examples, {{failed}} failed")
sys.exit(failed > 0)
"""


def library_files() -> list[Path]:
    """Return the modules of the library's rooms, and the rooms themselves."""
    files = sorted(PACKAGE.rglob("*.py"))
    parts = {path: path.relative_to(PACKAGE).parts for path in files}
    others = OTHER_ROOMS | {"__main__.py", "_version.py"}
    return [path for path in files if parts[path][0] not in others]


def dotted(path: Path) -> str:
    """Return the name by which a file is imported."""
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def test_a_property_says_what_it_is_not_its_type() -> None:
    """Napoleon takes what stands before a colon in a property's first line for a type."""
    told = []
    for path in library_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            names = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            words = re.sub(r":\w+:`[^`]*`|`+[^`]*`+", "", first)
            if names & {"property", "cached_property"} and ":" in words:
                told.append(f"{dotted(path)}.{node.name}: {first}")
    assert not told, told


def test_an_example_can_be_pasted(site: Path) -> None:
    """A minus sign, which Python does not read, also costs the whole example its colours.

    Text that an example prints may have one: it stands between quotation marks.
    """
    for page in sorted((site / "book" / "reference").glob("*.html")):
        for block in re.findall(r"<pre[^>]*>(.*?)</pre>", page.read_text("utf-8"), re.DOTALL):
            code = [line for line in block.splitlines() if line.startswith(("&gt;", "<span"))]
            bare = re.sub(r"'[^'\n]*'", "", unescape("\n".join(code)))
            assert not re.search(r"(?<!\w)\N{MINUS SIGN}\d", bare), (page.name, block)


def test_the_sentence_of_a_constant_is_not_taken_for_a_type(site: Path) -> None:
    pages = sorted((site / "book" / "reference").glob("*.html"))
    assert "The five sources" in (site / "book" / "reference" / "claims.html").read_text("utf-8")
    assert not [p.name for p in pages if re.search(r">Type<span", p.read_text("utf-8"))]


def test_no_signature_shows_the_inside_of_numpy(site: Path) -> None:
    pages = sorted((site / "book" / "reference").glob("*.html"))
    assert pages
    assert not [page.name for page in pages if "_NestedSequence" in page.read_text("utf-8")]


def test_no_signature_shows_functions_or_the_constructor_of_somebody_else(site: Path) -> None:
    for page in sorted((site / "book" / "reference").glob("*.html")):
        heads = BeautifulSoup(page.read_text("utf-8"), "html.parser").select("dt.sig")
        told = [head.get_text() for head in heads]
        assert not [one for one in told if "<function" in one or "built-in" in one], page.name
        assert not [one for one in told if re.search(r"\(\s*\*args,\s*\*\*kwargs", one)], page.name


def test_the_rows_of_a_table_are_told_apart(site: Path) -> None:
    for page in sorted((site / "book" / "reference").glob("*.html")):
        for table in BeautifulSoup(page.read_text("utf-8"), "html.parser").select(
            "table.autosummary"
        ):
            rows = [row.select("td")[-1].get_text(" ", strip=True) for row in table.select("tr")]
            assert len(set(rows)) == len(rows), (page.name, rows)


ROOMS = [dotted(path) for path in library_files() if path.name == "__init__.py"]
MODULES = [dotted(path) for path in library_files() if path.name != "__init__.py"]
NAMES = [(module, name) for module in MODULES for name in importlib.import_module(module).__all__]


@lru_cache
def constants(module: str) -> dict[tuple[str, str], list[str]]:
    """Return the docstrings that stand below the assignments of a module."""
    return ModuleAnalyzer.for_module(module).find_attr_docs()


def public(module: str, name: str) -> Any:
    """Return what a name stands for; a function that keeps its results is a function."""
    return inspect.unwrap(getattr(importlib.import_module(module), name))


def docstring(module: str, name: str) -> str:
    """Return the name's own docstring; one that is inherited does not count."""
    thing = public(module, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        text = inspect.cleandoc(thing.__doc__ or "")
        return "" if text.startswith(f"{name}(") else text  # as made by dataclasses
    return "\n".join(constants(module).get(("", name), []))


def has_example(thing: Any) -> bool:
    """Tell whether the docstring, or that of a public method of the class, has an example."""
    methods = [v for k, v in vars(thing).items() if k[0] != "_"] if inspect.isclass(thing) else []
    kinds = (FunctionType, classmethod, staticmethod, property)  # a number's docstring has examples
    docs = [thing.__doc__, *(v.__doc__ for v in methods if isinstance(v, kinds))]
    return any(">>>" in (doc or "") for doc in docs)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring_and_an_example(module: str) -> None:
    held = importlib.import_module(module)
    assert held.__doc__, f"{module} does not say what it is"
    silent = [name for name in held.__all__ if not docstring(module, name)]
    assert not silent, f"{module}: no docstring for {silent}"
    things = {name: public(module, name) for name in held.__all__}
    bare = [
        name
        for name, thing in things.items()
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and not has_example(thing)
    ]
    assert not bare, f"{module}: no example for {bare}"


def test_every_public_name_is_counted_once() -> None:
    documented = {(module, name) for module, name in NAMES if docstring(module, name)}
    assert len(documented) == len(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_offers_only_what_is_documented(room: str) -> None:
    offered = set(importlib.import_module(room).__all__) - {"__version__"}
    inside = {name for module, name in NAMES if module.startswith(f"{room}.")}
    inside |= {module.removeprefix(f"{room}.").partition(".")[0] for module in MODULES}
    assert offered <= inside, f"{room} offers {sorted(offered - inside)}"


def test_the_examples_run() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "DEQBOOK_STATIC"}
    done = subprocess.run(
        [sys.executable, "-c", RUN_DOCTESTS, *ROOMS, *MODULES],
        env={**environment, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count = int(done.stdout.split()[-4])
    assert count > len(NAMES), done.stdout


def test_the_example_of_the_first_page_runs() -> None:
    text = (ROOT / "book" / "reference" / "index.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```pycon\n(.*?)```", text, re.DOTALL)
    test = doctest.DocTestParser().get_doctest(block, {}, "index.md", "index.md", 0)
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test)
    assert result.attempted >= 10
    assert not result.failed


def test_every_module_has_one_section_that_says_where_it_is_taught() -> None:
    found: Counter[str] = Counter()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for said, _, shown in SECTION.findall(text):
            assert said == shown, f"{page.name} announces {said} and shows {shown}"
            found[shown] += 1
        shown = re.findall(r"automodule:: ([\w.]+)\n(?!   :no-members:)", text)
        assert len(shown) == len(SECTION.findall(text)), f"{page.name}: a section without its words"
    assert found == Counter(MODULES)


def test_the_first_page_lists_every_page_and_every_room() -> None:
    text = (ROOT / "book" / "reference" / "index.md").read_text(encoding="utf-8")
    pages = {page.stem for page in PAGES} - {"index"}
    listed = re.findall(r"^\| \{doc\}`(\w+)`", text, re.MULTILINE)
    assert set(listed) == pages
    assert [f"book/reference/{name}" for name in ["index", *listed]] == [
        page for page in toc_pages() if page.startswith("book/reference/")
    ]
    rows = "\n".join(row for row in text.splitlines() if row.startswith("| {doc}"))
    rooms = {module.split(".")[1] for module in MODULES}
    assert set(re.findall(r"(?<!\})`(\w+)`", rows)) == rooms


def test_the_first_page_keeps_the_order_of_the_rooms() -> None:
    layers = (ROOT / ".importlinter").read_text(encoding="utf-8").split("layers =\n")[1]
    order = re.findall(r"\w+", layers.split("containers")[0])[::-1]
    text = (ROOT / "book" / "reference" / "index.md").read_text(encoding="utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| {doc}")]
    highest = [max(map(order.index, re.findall(r"(?<!\})`(\w+)`", row))) for row in rows]
    assert highest == sorted(highest)


def test_every_public_name_has_an_anchor(site: Path) -> None:
    ids: Counter[str] = Counter()
    for page in PAGES:
        text = (site / "book" / "reference" / f"{page.stem}.html").read_text(encoding="utf-8")
        ids.update(re.findall(r'<dt [^>]*id="(deqbook[\w.]+)"', text))
    missing = [f"{module}.{name}" for module, name in NAMES if not ids[f"{module}.{name}"]]
    assert not missing, f"not in the built reference: {missing}"
    twice = [name for name, count in ids.items() if count > 1]
    assert not twice, f"documented twice: {twice}"
    inherited = []
    for module, name in NAMES:
        thing = public(module, name)
        members = [i.rpartition(".") for i in ids if i.startswith(f"{module}.{name}.")]
        inherited += [f"{owner}.{own}" for owner, _, own in members if own not in vars(thing)]
    assert not inherited, f"documented where they are not defined: {inherited}"


def test_a_module_names_only_what_it_defines() -> None:
    for module in MODULES:
        path = Path(importlib.import_module(module).__file__ or "")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        foreign = imported & set(importlib.import_module(module).__all__)
        assert not foreign, f"{module} lists what another module defines: {foreign}"
