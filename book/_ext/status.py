"""The table of executions names pages as the reader knows them, by number and title."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform

#: Signs that every font has, in place of pictures.
SIGNS = {"✅": "✓", "❌": "✗"}
#: How the columns are called here; a column that is not named, how a page came by its output, goes.
COLUMNS = {
    "Document": "page",
    "Modified": "executed",
    "Run Time (s)": "seconds",
    "Status": "in order",
}


def page_name(env: BuildEnvironment, page: str) -> str:
    """Return number and title of a page."""
    number = env.toc_secnumbers.get(page, {}).get("") or ()
    prefix = ".".join(map(str, number))
    title = env.titles[page].astext()
    return f"{prefix}. {title}" if prefix else title


class NamePages(SphinxPostTransform):
    """Write titles where myst-nb writes paths of files."""

    default_priority = 950  # after the links are made

    def run(self, **kwargs: Any) -> None:
        """Go through the tables of one page."""
        for table in self.document.findall(nodes.table):
            _rename(table)
            for text in list(table.findall(nodes.Text)):
                if text.astext() in SIGNS:
                    text.parent.replace(text, nodes.Text(SIGNS[text.astext()]))
                elif text.astext() in self.env.titles and isinstance(text.parent, nodes.inline):
                    text.parent.replace(text, nodes.Text(page_name(self.env, text.astext())))


def _rename(table: nodes.Element) -> None:
    """Give the table of executions columns that a reader understands."""
    heads = [head.astext() for row in table.findall(nodes.thead) for head in row[0]]
    if not set(COLUMNS) <= set(heads):
        return
    for row in table.findall(nodes.row):
        for name, cell in list(zip(heads, row, strict=True)):
            if name not in COLUMNS:
                row.remove(cell)
            elif cell.astext() == name:
                text = next(iter(cell.findall(nodes.Text)))
                text.parent.replace(text, nodes.Text(COLUMNS[name]))
            elif name == "Modified":  # day and hour on one line
                text = next(iter(cell.findall(nodes.Text)))
                whole = text.astext().replace(" ", "\N{NO-BREAK SPACE}")
                text.parent.replace(text, nodes.Text(whole))
    group = next(iter(table.findall(nodes.tgroup)))
    for name, column in list(zip(heads, group.findall(nodes.colspec), strict=True)):
        if name not in COLUMNS:
            group.remove(column)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_post_transform(NamePages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
