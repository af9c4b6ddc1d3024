"""Put a changed function into the running package."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from deqbook.claims import Claim
from deqbook.teeth.mutants import Site

__all__ = ["Source", "edit", "source"]


class Source:
    """A module, its source as a tree, and the functions that its names stand for."""

    def __init__(self, name: str):
        self.module = importlib.import_module(name)
        self.text = inspect.getsource(self.module)
        self.tree = ast.parse(self.text)
        self.functions = dict(_functions(self.module))

    def plant(self, site: Site) -> None:
        """Exchange the code of one function for that of the mutant; there is no way back."""
        old = site.swap(site.new)
        try:
            self._take(self.tree, only=site.mutant.function)
        finally:
            site.swap(old)

    def _take(self, tree: ast.Module, *, only: str | None = None) -> None:
        codes = dict(_codes(compile(tree, self.module.__file__ or "", "exec", dont_inherit=True)))
        taken = 0
        for name, function in self.functions.items():
            code = codes.get(name)
            if code is None or (only is not None and name != only) or code == function.__code__:
                continue
            function.__code__ = code
            taken += 1
        if not taken:
            raise LookupError(
                f"nothing of {self.module.__name__} was changed: the edit is in no function "
                f"that can be reached{'' if only is None else f' under the name {only}'}."
            )

    def edit(self, old: str, new: str) -> None:
        """Exchange a text that occurs once in the source."""
        count = self.text.count(old)
        if count != 1:
            raise LookupError(f"{old!r} occurs {count} times in {self.module.__name__}, not once.")
        self._take(ast.parse(self.text.replace(old, new)))


@functools.cache
def source(name: str) -> Source:
    """Return a module's source, read once."""
    return Source(name)


def edit(module: str, old: str, new: str) -> None:
    """Exchange a text that occurs once in a module of the running package.

    Raises ``LookupError`` if it does not occur once, or in no function.
    """
    source(module).edit(old, new)


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions and methods a module defines, by their names in its source."""
    for value in list(vars(module).values()):
        inside = vars(value).values() if inspect.isclass(value) else [value]
        for thing in list(inside):
            function = _bare(thing)
            if function is not None and function.__module__ == module.__name__:
                yield function.__qualname__, function


def _bare(thing: Any) -> FunctionType | None:
    """Take off what was put around a function: a claim, a cache, a property."""
    for _ in range(8):
        if isinstance(thing, FunctionType):
            inner = getattr(thing, "__wrapped__", None)
            if inner is None:
                return thing
            thing = inner
        elif isinstance(thing, Claim):
            thing = thing.body
        elif isinstance(thing, property):
            thing = thing.fget
        elif isinstance(thing, functools.cached_property):
            thing = thing.func
        elif isinstance(thing, staticmethod | classmethod):
            thing = thing.__func__
        else:
            thing = getattr(thing, "__wrapped__", None)
    return None


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Yield the code of every function of a module and of its classes."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            if "." not in constant.co_qualname:
                yield from _codes(constant)
