"""Show of a cell what a reader reads: imports, checks and glued numbers go out of sight.

What remains is the experiment. The whole cell, as it runs, stands folded below it, one click away,
and is what the copy button there copies. Cells that a page hides itself are left as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from theorems import folded_proof

#: Calls that keep the books: numbers for the prose, settings of a page.
BOOKKEEPING = {"glue", "use_style", "set_default_dtype", "set_num_threads"}
HIDDEN = {"tag_hide-input", "tag_hide-cell", "tag_remove-input"}


def kept_books(statement: ast.stmt) -> bool:
    """Tell whether a statement is an import, a check or bookkeeping."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert):
        return True
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    called = statement.value.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in BOOKKEEPING


def bookkeeping(body: list[ast.stmt], outermost: bool = True) -> Iterator[ast.stmt]:
    """Yield the statements of a block that keep the books, and loops that do nothing else.

    An import within a function says what the function needs, and stays.
    """
    for statement in body:
        imports = isinstance(statement, ast.Import | ast.ImportFrom)
        if kept_books(statement) and (outermost or not imports):
            yield statement
            continue
        inner: list[ast.stmt] = getattr(statement, "body", [])
        found = list(bookkeeping(inner, outermost=False))
        if inner and all(any(s is f for f in found) for s in inner):
            if isinstance(statement, ast.For | ast.If | ast.With) and not _else(statement):
                yield statement
        else:
            yield from found
            yield from bookkeeping(_else(statement), outermost=False)


def _else(statement: ast.stmt) -> list[ast.stmt]:
    return getattr(statement, "orelse", [])


def quiet(code: str) -> str | None:
    r"""Return a cell without its bookkeeping; None if there is none, or it cannot be parsed.

    >>> quiet("import torch\nz = 1\nassert z\nglue('z', z)")
    'z = 1'
    >>> quiet("for z in range(3):\n    print(z)\n    assert z < 3")
    'for z in range(3):\n    print(z)'
    >>> quiet("z = 1") is None
    True
    """
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    away = list(bookkeeping(tree.body))
    if not away:
        return None
    gone = {line for s in away for line in range(s.lineno, (s.end_lineno or s.lineno) + 1)}
    lines = [text for k, text in enumerate(code.splitlines(), 1) if k not in gone]
    shown: list[str] = []
    for text in lines:
        if text.strip() or (shown and shown[-1].strip()):  # no gaps where something was
            shown.append(text)
    return "\n".join(shown).strip("\n")


class Quiet(SphinxPostTransform):
    """Split the code of cells, just before a page is written."""

    default_priority = 870
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Go through the cells of a page."""
        for cell in self.document.findall(nodes.container):
            if "cell" not in cell["classes"] or HIDDEN.intersection(cell["classes"]):
                continue
            for part in cell.children:
                if isinstance(part, nodes.container) and "cell_input" in part["classes"]:
                    split(part)


def split(part: nodes.container) -> None:
    """Show the quiet code of one cell and fold the whole."""
    block = next(iter(part.findall(nodes.literal_block)), None)
    if block is None:
        return
    shown = quiet(block.astext())
    if shown is None:
        return
    more = len(block.astext().splitlines()) - len(shown.splitlines())
    lines = f"{more} line{'s' * (more != 1)} of imports and checks"
    summary = f"The whole cell, with {lines}" if shown else f"Code: {lines}"
    whole = folded_proof("", block.deepcopy(), summary=summary, kind="deq-whole")
    whole["nb_element"] = part.get("nb_element")  # by which code_links knows a cell
    if shown:
        short = nodes.literal_block(shown, shown, **block.attributes)
        part.children[:] = []
        part += [short, whole]
    else:
        part.children[:] = []
        part += whole


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("theorems")
    app.add_post_transform(Quiet)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
