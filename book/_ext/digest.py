"""What a chapter's outputs depend on, as one short hexadecimal string.

A notebook's own code is not all that its outputs depend on: an edit in a module that it imports
changes them too. This module finds the local modules that a piece of code imports, directly or
through others, and digests what in them can change a result: their code, not their comments,
layout or docstrings. It reads source text only, imports nothing that it digests, and knows nothing
of Sphinx.

A package may load its names on demand (``lazy_loader.attach_stub``). Which module a name then comes
from stands in the package's stub, and ``from package import name`` is followed there. Code that
takes hold of such a package as a whole could reach any of its names, and is refused.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path

#: Lines that IPython reads but Python does not: magics, shell escapes and help.
_MAGIC = re.compile(r"^(\s*)(?:[%!?]|.*\?\s*$).*$")
#: A module that looks at docstrings makes them part of the code.
_READS_DOCSTRINGS = re.compile(r"__doc__|\bgetdoc\b")


class DigestError(ValueError):
    """Something that a digest was asked to cover cannot be read."""


def parse_cell(source: str, where: str = "a code cell") -> ast.Module:
    """Parse a notebook cell, with the lines that only IPython understands blanked out."""
    lines = source.splitlines()
    if lines and lines[0].startswith("%%") and not re.match(r"%%(time|timeit|capture)\b", lines[0]):
        return ast.Module(body=[], type_ignores=[])  # another language: it imports no Python
    try:
        return ast.parse(source)
    except SyntaxError:
        plain = "\n".join(_MAGIC.sub(r"\1pass", line) for line in lines)
    try:
        return ast.parse(plain)
    except SyntaxError as error:
        raise DigestError(
            f"{where} is not Python: {error.msg} at its line {error.lineno}: {error.text!r}. "
            "Correct the cell; its imports cannot be found otherwise."
        ) from error


@lru_cache(maxsize=1024)
def imported_names(tree: ast.AST, package: str = "") -> frozenset[str]:
    """Return the dotted names that a syntax tree may import, anywhere in it.

    ``from a.b import c`` gives ``a.b`` and ``a.b.c``, since ``c`` may be a module; ``from a import
    *`` gives ``a.*``. Relative imports are resolved against `package`. Imports by a literal string
    (``import_module("a.b")``) count; imports by a computed name cannot be seen here.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            names.update(_imported_by_call(node, package))
    return frozenset(names - {""})


def _absolute(module: str, level: int, package: str) -> str:
    """Turn the ``..x`` of an import statement into a name that starts at the top."""
    if level == 0:
        return module
    parents = package.split(".") if package else []
    kept = parents[: len(parents) - (level - 1)]
    return ".".join([*kept, *([module] if module else [])])


def _called(call: ast.Call) -> str:
    """Return the last name of what is called: ``c`` for ``a.b.c()``."""
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def _imported_by_call(call: ast.Call, package: str) -> set[str]:
    """Return the name in ``import_module("name")`` or ``__import__("name")``, if literal."""
    if _called(call) not in {"import_module", "__import__"} or not call.args:
        return set()
    first = call.args[0]
    if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
        return set()
    dots = len(first.value) - len(first.value.lstrip("."))
    return {_absolute(first.value[dots:], dots, package)}


def module_files(name: str, roots: Sequence[Path]) -> dict[str, Path]:
    """Return the local files that importing `name` runs: its packages and the module itself.

    Names that no root holds (the standard library, installed packages, a function inside a
    module) contribute the part of them that is local, often nothing. A name that a lazy package
    loads on demand leads to the module that its stub names, and the stub counts too.
    """
    for root in roots:
        found = _files_below(root, "", name.split("."))
        if found:
            return found
    return {}


def _files_below(folder: Path, package: str, parts: Sequence[str]) -> dict[str, Path]:
    """Follow the parts of a dotted name down from the folder with the modules of `package`."""
    if not parts:
        return {}
    if parts[0] == "*":  # __all__ may name any of the package's own modules
        return {
            f"{package}.{path.stem}": path
            for path in sorted(folder.glob("*.py"))
            if path.stem != "__init__"
        }
    first, rest = parts[0], parts[1:]
    name, inner = f"{package}.{first}".lstrip("."), folder / first
    init, module = inner / "__init__.py", folder / f"{first}.py"
    if not init.is_file():
        if module.is_file():
            return {name: module}
        return _files_below(inner, name, rest) if inner.is_dir() else {}
    found = {name: init}
    provided = lazily_provided(init)
    if provided is not None:
        found[f"{name}.__init__.pyi"] = init.with_suffix(".pyi")
        if rest and rest[0] in provided:
            found |= _files_below(inner, name, [*provided[rest[0]], *rest])
    return found | _files_below(inner, name, rest)


def lazily_provided(init: Path) -> dict[str, list[str]] | None:
    """Return what a package loads on demand, each name with the way to its module.

    A package is lazy if its ``__init__.py`` calls ``lazy_loader.attach_stub``; the names are then
    those of the import statements in ``__init__.pyi``. For any other package there is None.
    """
    if not _calls_attach_stub(_tree(init)):
        return None
    return _stub_names(_tree(init.with_suffix(".pyi")))


@lru_cache(maxsize=1024)
def _calls_attach_stub(tree: ast.Module) -> bool:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return "attach_stub" in map(_called, calls)


@lru_cache(maxsize=1024)
def _stub_names(tree: ast.Module) -> dict[str, list[str]]:
    return {
        alias.name: node.module.split(".") if node.module else []
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }


def refuse_whole_lazy_packages(
    tree: ast.AST, roots: Sequence[Path], package: str = "", where: str = ""
) -> None:
    """Raise `DigestError` if code gets hold of a lazy package itself.

    What it then takes from the package as an attribute is loaded behind the digest's back.
    """
    for node, name, packages in _handed_over(tree, package):
        lazy = [p for p in packages if _is_lazy(p, roots)]
        if lazy:
            raise DigestError(
                f"{where}`{ast.unparse(node)}` hands over {' and '.join(lazy)}, which loads its "
                "names on demand, so that no digest sees which modules are used. "
                f"Write `from {name} import NAME` for each name that you use."
            )


@lru_cache(maxsize=1024)
def _handed_over(tree: ast.AST, package: str) -> list[tuple[ast.AST, str, list[str]]]:
    """Return each import, the name that it imports, and what may be a package and is at hand."""
    found: list[tuple[ast.AST, str, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                at_hand = [alias.name] if alias.asname else _on_the_way(alias.name)
                found.append((node, alias.name, at_hand))
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            names = [base if a.name == "*" else f"{base}.{a.name}" for a in node.names]
            found += [(node, name, [name]) for name in names]
        elif isinstance(node, ast.Call):
            for name in _imported_by_call(node, package):
                alone = _called(node) == "import_module"
                found.append((node, name, [name] if alone else _on_the_way(name)))
    return found


def _on_the_way(name: str) -> list[str]:
    """Return ``a``, ``a.b`` and ``a.b.c`` for ``a.b.c``: ``import a.b.c`` gives access to all."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _is_lazy(name: str, roots: Sequence[Path]) -> bool:
    init = module_files(name, roots).get(name)
    return init is not None and init.name == "__init__.py" and lazily_provided(init) is not None


def closure(names: Iterable[str], roots: Sequence[Path]) -> dict[str, Path]:
    """Return every local module that the imports `names` reach, with its file."""
    reached: dict[str, Path] = {}
    waiting, asked = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in asked:
            continue
        asked.add(name)
        for module, path in module_files(name, roots).items():
            if module in reached:
                continue
            reached[module] = path
            if path.suffix == ".py":  # a stub imports nothing
                package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                tree = _tree(path)
                refuse_whole_lazy_packages(tree, roots, package, f"{path}: ")
                waiting.extend(imported_names(tree, package))
    return reached


@lru_cache(maxsize=1024)
def normalised(source: str, keep_docstrings: bool = False) -> str:
    """Return what of a module's source can change a result, in one canonical spelling."""
    tree = ast.parse(source)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree) if not keep_docstrings else ():
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def digest_modules(modules: Mapping[str, Path]) -> str:
    """Digest the code of modules; their docstrings too where one of them reads docstrings."""
    texts = {name: _text(path) for name, path in sorted(modules.items())}
    keep = any(map(_READS_DOCSTRINGS.search, texts.values()))
    return _combine(f"{name}\n{normalised(text, keep)}" for name, text in texts.items())


def digest_files(files: Iterable[Path], base: Path) -> str:
    """Digest the bytes of data files, named relative to `base` so that clones agree."""
    return _combine(
        f"{path.relative_to(base).as_posix()}\n{hashlib.sha256(_bytes(path)).hexdigest()}"
        for path in sorted(set(files))
    )


def outside(paths: Iterable[Path]) -> str:
    """Digest files and folders from the outside: when each file was last changed, and its size."""
    found: list[str] = []
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = (file for file in inside if file.suffix != ".pyc")
        found += (f"{file} {_state(file) if file.is_file() else 'no file'}" for file in files)
    return _combine(found)


def digest_environment(libraries: Iterable[str], settings: Mapping[str, str]) -> str:
    """Digest what numbers depend on beside the code: Python, libraries (x.y), kernel settings."""
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    versions = [f"{name} {_major_minor(name)}" for name in sorted(libraries)]
    return _combine([python, *versions, *(f"{k}={v}" for k, v in sorted(settings.items()))])


def combine(*digests: str) -> str:
    """Join digests into one."""
    return _combine(digests)


def _combine(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _major_minor(library: str) -> str:
    """Return ``x.y`` of an installed library: a patch release does not re-run the book."""
    try:
        return ".".join(metadata.version(library).split("+")[0].split(".")[:2])
    except metadata.PackageNotFoundError:
        return "absent"


def _text(path: Path) -> str:
    return _decoded(path, *_state(path))


def _bytes(path: Path) -> bytes:
    return _content(path, *_state(path))


@lru_cache(maxsize=4096)
def _decoded(path: Path, time: int, size: int) -> str:
    return _content(path, time, size).decode("utf-8")


@lru_cache(maxsize=4096)
def _content(path: Path, time: int, size: int) -> bytes:
    """Remember a file as it was then: a build asks for the same ones for every page."""
    return path.read_bytes()


def _state(path: Path) -> tuple[int, int]:
    """Return when a file was last changed, and its size."""
    try:
        found = path.stat()
    except OSError as error:
        raise DigestError(
            f"cannot read {path} ({error.strerror}), which a page declares or imports; "
            "create the file or correct the page's front matter."
        ) from error
    return found.st_mtime_ns, found.st_size


def _tree(path: Path) -> ast.Module:
    try:
        return _parsed(_text(path))
    except SyntaxError as error:
        raise DigestError(
            f"{path}:{error.lineno}: {error.msg}. A page imports this module; correct it."
        ) from error


@lru_cache(maxsize=1024)
def _parsed(source: str) -> ast.Module:
    """Remember the syntax tree: many chapters share a module, and a build asks for each."""
    return ast.parse(source)
