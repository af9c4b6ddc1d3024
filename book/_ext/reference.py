"""What the reference pages add to autodoc: a table of names for each module, and less noise.

A module's section begins with a table of what its ``__all__`` names, and its entries follow in the
order of the source, as the table does. Left out is what tells a reader nothing: the fields of a
named tuple, which its signature shows; the arguments of ``torch.nn.Module``; values of constants
that are no plain numbers or words.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import digest
from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc import DataDocumenter, Documenter, ModuleDocumenter
from sphinx.util.inspect import object_description
from sphinx.util.typing import stringify_annotation

#: Where these pages lie.
PAGES = "book/reference/"
#: Fewer names than these are seen at a glance.
WORTH_A_TABLE = 3
#: How the standard library documents a field that its author did not.
FIELD = "Alias for field number"
#: Where the text of a constant waits while Napoleon is at work.
CONSTANT = "deqbook:constant"
#: What a class without a constructor of its own inherits, from torch or from a protocol.
INHERITED = re.compile(r"\(\*args(: ~?[\w.]+)?, \*\*kwargs(: ~?[\w.]+)?\)")
#: What autodoc writes for "anything that NumPy makes an array of", which has a name.
ARRAY = stringify_annotation(ArrayLike, "smart")


class SourceOrder(ModuleDocumenter):
    """Lists a module's names as the source does; autodoc would follow ``__all__``, the alphabet."""

    def sort_members(
        self, documenters: list[tuple[Documenter, bool]], order: str
    ) -> list[tuple[Documenter, bool]]:
        """Sort by the place in the source."""
        return Documenter.sort_members(self, documenters, order)


class PlainValue(DataDocumenter):
    """Shows the value of a constant only where it is short and the same on every machine."""

    def should_suppress_value_header(self) -> bool:
        """Tell whether to hide the value."""
        plain = isinstance(self.object, int | float | str | tuple)
        return not plain or super().should_suppress_value_header()


def add_table(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Append a table of its public names to the docstring of a module."""
    if not isinstance(obj, ModuleType) or hasattr(obj, "__path__"):
        return
    place = {name: k for k, name in enumerate(vars(obj))}
    names = sorted(obj.__all__, key=place.__getitem__)
    if len(names) >= WORTH_A_TABLE:
        lines += ["", ".. autosummary::", "   :nosignatures:", "", *(f"   {n}" for n in names), ""]


def keep_constant(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Remember what is said of a constant: Napoleon takes "a: b" for a type and a text."""
    if what == "data":
        app.env.temp_data[CONSTANT] = list(lines)


def whole_constant(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Say of a constant what its source says."""
    if what == "data":
        lines[:] = app.env.temp_data.pop(CONSTANT)


def skip_field(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool:
    """Leave out the fields of a named tuple."""
    return skip or (getattr(obj, "__doc__", None) or "").startswith(FIELD)


def tidy_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Show no inherited constructor; call activations and kinds of arrays by their names."""
    if not signature:
        return None
    short = signature.replace("<factory>", "...").replace(ARRAY, "ArrayLike")
    for one in dataclasses.fields(obj) if dataclasses.is_dataclass(obj) else ():
        if hasattr(one.default, "name"):  # an activation, whose parts are functions
            short = short.replace(object_description(one.default), one.default.name)
    return "" if INHERITED.fullmatch(signature) else short, returns


def outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Name the pages made from docstrings when the library changed.

    Autodoc remembers the modules of the names on a page; what those show may come from others.
    """
    package = Path(app.srcdir) / "src" / "deqbook"
    rooms = sorted(path for path in package.iterdir() if path.name != "pages")
    before, now = getattr(env, "deqbook_library", None), digest.outside(rooms)
    env.deqbook_library = now  # type: ignore[attr-defined]
    pages = {page for page in env.found_docs if page.startswith(PAGES)}
    return sorted(pages - added) if before != now else []


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen to autodoc."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_autodocumenter(SourceOrder, override=True)
    app.add_autodocumenter(PlainValue, override=True)
    app.connect("env-get-outdated", outdated)
    app.connect("autodoc-process-docstring", add_table)
    app.connect("autodoc-process-docstring", keep_constant, priority=400)  # before Napoleon's
    app.connect("autodoc-process-docstring", whole_constant, priority=600)  # and after
    app.connect("autodoc-skip-member", skip_field)
    app.connect("autodoc-process-signature", tidy_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
