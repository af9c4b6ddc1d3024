"""What a chapter's outputs depend on, as one short hexadecimal string.

A notebook's own code is not all that its outputs depend on: an edit in a module that it imports
changes them too. This module finds the local modules that a piece of code imports, directly or
through others, and digests what in them can change a result: their code, not their comments,
layout or docstrings. It reads source text only, imports nothing that it digests, and knows nothing
of Sphinx.
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


def imported_names(tree: ast.AST, package: str = "") -> set[str]:
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
    names.discard("")
    return names


def _absolute(module: str, level: int, package: str) -> str:
    """Turn the ``..x`` of an import statement into a name that starts at the top."""
    if level == 0:
        return module
    parents = package.split(".") if package else []
    kept = parents[: len(parents) - (level - 1)]
    return ".".join([*kept, *([module] if module else [])])


def _imported_by_call(call: ast.Call, package: str) -> set[str]:
    """Return the name in ``import_module("name")`` or ``__import__("name")``, if literal."""
    called = (
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    )
    if called not in {"import_module", "__import__"} or not call.args:
        return set()
    first = call.args[0]
    if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
        return set()
    dots = len(first.value) - len(first.value.lstrip("."))
    return {_absolute(first.value[dots:], dots, package)}


def module_files(name: str, roots: Sequence[Path]) -> dict[str, Path]:
    """Return the local files that importing `name` runs: its packages and the module itself.

    Names that no root holds (the standard library, installed packages, a function inside a
    module) contribute the part of them that is local, often nothing.
    """
    star = name.endswith(".*")
    parts = name.removesuffix(".*").split(".")
    for root in roots:
        found: dict[str, Path] = {}
        folder = root
        for depth, part in enumerate(parts, start=1):
            dotted = ".".join(parts[:depth])
            package, module = folder / part / "__init__.py", folder / f"{part}.py"
            if package.is_file():
                found[dotted] = package
            elif module.is_file():
                found[dotted] = module
                break
            elif not (folder / part).is_dir():
                break
            folder = folder / part
        else:
            if star:  # __all__ may name any of the package's own modules
                found |= {
                    f"{'.'.join(parts)}.{path.stem}": path
                    for path in sorted(folder.glob("*.py"))
                    if path.stem != "__init__"
                }
        if found:
            return found
    return {}


def closure(names: Iterable[str], roots: Sequence[Path]) -> dict[str, Path]:
    """Return every local module that the imports `names` reach, with its file."""
    reached: dict[str, Path] = {}
    waiting = list(names)
    while waiting:
        for module, path in module_files(waiting.pop(), roots).items():
            if module not in reached:
                reached[module] = path
                package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                waiting.extend(imported_names(_tree(path), package))
    return reached


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
    keep = any(_READS_DOCSTRINGS.search(_text(path)) for path in modules.values())
    return _combine(
        f"{name}\n{_normalised_file(path, path.stat().st_mtime_ns, keep)}"
        for name, path in sorted(modules.items())
    )


def digest_files(files: Iterable[Path], base: Path) -> str:
    """Digest the bytes of data files, named relative to `base` so that clones agree."""
    return _combine(
        f"{path.relative_to(base).as_posix()}\n{hashlib.sha256(_bytes(path)).hexdigest()}"
        for path in sorted(set(files))
    )


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
    return _bytes(path).decode("utf-8")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DigestError(
            f"cannot read {path} ({error.strerror}), which a page declares or imports; "
            "create the file or correct the page's front matter."
        ) from error


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(_text(path))
    except SyntaxError as error:
        raise DigestError(
            f"{path}:{error.lineno}: {error.msg}. A page imports this module; correct it."
        ) from error


@lru_cache(maxsize=1024)
def _normalised_file(path: Path, _mtime_ns: int, keep_docstrings: bool) -> str:
    """Remember the canonical form: many chapters share a module, and a build asks for each."""
    return normalised(_text(path), keep_docstrings)
