"""Links from the code cells of a page to the reference.

A name that a page imports from the package leads to its entry, wherever the page's cells use it:
``fixed_point``, ``MonDEQ.init``, the module in ``from deqbook.solvers import …``. A name that some
cell also binds, as a variable or an argument, may mean something else and gets no link. What is
linked is decided by the import statements alone; nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from digest import parse_cell
from docutils import nodes
from sphinx.application import Sphinx

#: By which MyST-NB tells the source of a code cell from other blocks.
CELL = "cell_code_source"
#: Kinds of entries that belong to a class; an import statement cannot name them.
MEMBERS = ("attribute", "classmethod", "method", "property", "staticmethod")
_BLOCK = re.compile(r'<div class="highlight-i?python3? .*?</pre>', re.DOTALL)
#: A module in an import; or a name, perhaps an attribute of it, that is itself neither an attribute
#: nor the keyword of an argument.
_MODULE = re.compile(r'<span class="nn">([\w.]+)</span>')
_NAME = re.compile(
    r'(?<!<span class="o">\.</span>)<span class="n">(\w+)</span>'
    r'(?:<span class="o">\.</span><span class="n">(\w+)</span>)?'
    r'(?!<span class="o">=</span>)'
)


def linked_names(cells: Iterable[str], documented: Iterable[str]) -> dict[str, str]:
    """Return which names of these cells stand for which documented ones.

    A room offers the names of its modules: ``deqbook.data.load`` is ``deqbook.data.bundled.load``.
    """
    known = sorted(documented)
    found: dict[str, str] = {}
    bound: set[str] = set()
    for cell in cells:
        for node in ast.walk(parse_cell(cell)):
            if isinstance(node, ast.ImportFrom):
                inside = re.escape(node.module or "")
                for one in node.names:
                    entry = re.compile(rf"{inside}\.(?:\w+\.)?{one.name}")
                    full = next(filter(entry.fullmatch, known), None)
                    if full is not None:
                        found[one.asname or one.name] = full
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.add(node.id)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound.add(node.name)
    return {name: full for name, full in found.items() if name not in bound}


def link_block(block: str, names: Mapping[str, str], address: Mapping[str, str]) -> str:
    """Put links into one highlighted block; ``address`` says where a documented name stands."""

    def anchor(full: str, text: str) -> str:
        return f'<a class="deq-code" href="{escape(address[full])}">{text}</a>'

    def module(match: re.Match[str]) -> str:
        return anchor(match[1], match[0]) if match[1] in address else match[0]

    def name(match: re.Match[str]) -> str:
        full = names.get(match[1])
        if full is None:
            return match[0]
        if match[2] is None or f"{full}.{match[2]}" in address:
            return anchor(full if match[2] is None else f"{full}.{match[2]}", match[0])
        head = f'<span class="n">{match[1]}</span>'
        return anchor(full, head) + match[0].removeprefix(head)

    return _NAME.sub(name, _MODULE.sub(module, block))


def link_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Link the code of one page, just before it is written."""
    if doctree is None or "body" not in context:
        return
    objects = app.env.domains["py"].objects
    blocks = doctree.findall(nodes.literal_block)
    cells = [block.astext() for block in blocks if block.parent.get("nb_element") == CELL]
    importable = [full for full, entry in objects.items() if entry.objtype not in MEMBERS]
    names = linked_names(cells, importable)
    if names:
        address = {
            full: f"{app.builder.get_relative_uri(pagename, entry.docname)}#{entry.node_id}"
            for full, entry in objects.items()
        }
        context["body"] = _BLOCK.sub(lambda m: link_block(m[0], names, address), context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen to the writing of pages."""
    app.connect("html-page-context", link_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
