"""Names for what the theme leaves nameless to a screen reader.

The arrows of the side bar, which open the pages below a page, are named after it. The first corner
of a table is often empty; a header that says nothing is told as what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

#: What Bootstrap hides from the eye only.
HIDDEN = "visually-hidden"
CORNER = "row"


def name_arrows(sidebar: BeautifulSoup) -> BeautifulSoup:
    """Name each arrow of the side bar after the page whose children it shows."""
    for summary in sidebar.select("li.has-children > details > summary"):
        above = summary.find_parent("li")
        link = above.find("a", recursive=False) if above else None
        if link is not None and not summary.get_text(strip=True):
            summary["aria-label"] = f"Pages of {' '.join(link.get_text().split())}"
    return sidebar


class NameCorners(SphinxPostTransform):
    """Say something in a header of a table that is empty."""

    default_priority = 900

    def run(self, **kwargs: Any) -> None:
        """Fill the empty headers of one page, for readers who listen."""
        for head in self.document.findall(nodes.thead):
            for entry in head.findall(nodes.entry):
                if not entry.astext().strip() and not entry.next_node(nodes.image):
                    entry += nodes.paragraph("", "", nodes.inline("", CORNER, classes=[HIDDEN]))


def wrap_sidebar(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Let the theme make its side bar, and name its arrows."""
    make: Callable[..., Any] | None = context.get("generate_toctree_html")
    if make is not None:
        context["generate_toctree_html"] = lambda *args, **kwargs: _named(make(*args, **kwargs))


def _named(sidebar: Any) -> Any:
    return name_arrows(sidebar) if isinstance(sidebar, BeautifulSoup) else sidebar


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_post_transform(NameCorners)
    # After the theme, which puts the function there.
    app.connect("html-page-context", wrap_sidebar, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
