"""What a page tells search engines, social media and a reader who is lost.

A page has a description, its first sentences; an address that is the true one and a card with a
picture, where the address of the site is known (``place.py``); and a foot with version, licence,
source and the way to report an error. A page that is not found is answered by one that leads home.
Nothing here is needed to read the book.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape as xml_escape

import numpy as np
from docutils import nodes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from place import Home, home, site_address
from sphinx.application import Sphinx
from sphinx.config import Config

from deqbook._version import __version__

#: Search engines show about so many characters of a description.
LENGTH = 160
#: Shorter paragraphs, and those with formulas, describe nothing.
SHORTEST = 40
LOST = "404"
LICENCE = "Text and figures CC BY 4.0, code BSD 3-clause."
#: The picture that a link to the book shows, and its size in pixels, which most networks ask for.
CARD, CARD_SIZE = "_static/card.png", (1200, 630)
CARD_TEXT = "Three networks of two units, and how many answers each has"


def describe(doctree: nodes.Node | None) -> str:
    """Return the first sentences of a page, as many as a search engine shows."""
    if doctree is None:
        return ""
    for paragraph in doctree.findall(nodes.paragraph):
        plain = not paragraph.next_node(nodes.math) and "deq-opening" not in paragraph["classes"]
        text = " ".join(paragraph.astext().split())
        if plain and len(text) >= SHORTEST and isinstance(paragraph.parent, nodes.section):
            return shorten(text)
    return ""


def shorten(text: str) -> str:
    """Cut a text after a sentence, or at least after a word.

    >>> shorten("One. " * 3)
    'One. One. One.'
    >>> len(shorten("word " * 100)) <= LENGTH
    True
    """
    text = text.strip()
    if len(text) <= LENGTH:
        return text
    cut = text[:LENGTH]
    sentence = cut.rfind(". ")
    return cut[: sentence + 1] if sentence >= SHORTEST else f"{cut[: cut.rfind(' ')]}…"


def tags(title: str, description: str, site: str, book: str, address: str) -> str:
    """Return the elements of the head that describe a page.

    An address is there only where that of the site is known.
    """
    found = [("og:type", "website"), ("og:site_name", book), ("og:title", title)]
    found += [("og:description", description)] if description else []
    if site:
        found += [("og:url", f"{site}{address}"), ("og:image", f"{site}{CARD}")]
        found += [("og:image:width", str(CARD_SIZE[0])), ("og:image:height", str(CARD_SIZE[1]))]
        found += [("og:image:alt", CARD_TEXT)]
    lines = [f'<meta name="description" content="{escape(description)}"/>'] if description else []
    lines += [f'<meta property="{name}" content="{escape(text)}"/>' for name, text in found]
    lines += ['<meta name="twitter:card" content="summary_large_image"/>'] if site else []
    return "\n".join(lines)


def foot(version: str, at: Home) -> str:
    """Return the last line of every page."""
    told = f"Version {escape(version)}. {LICENCE}"
    if not at.repository:
        return f"<p>{told} Found an error? Write to whoever gave you this copy.</p>"
    url = escape(f"{at.server}/{at.repository}")
    links = f'<a href="{url}">Source</a>. <a href="{url}/issues/new">Report an error</a>.'
    return f"<p>{told} {links}</p>"


def solutions(W: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Count the solutions of z = max(Wz + q, 0) for every q, shape (n, 2), of two units.

    Each of the four patterns of active units D leaves a linear equation (I − DW)z = Dq. Its
    solution counts if it has that pattern.

    >>> rotation = np.array([[0.0, 3.0], [-3.0, 0.0]])
    >>> solutions(rotation, np.array([[1.0, 1.0], [-1.0, 0.5]])).tolist()
    [1, 1]
    """
    found = np.zeros(len(q), dtype=int)
    for pattern in ((0, 0), (0, 1), (1, 0), (1, 1)):
        D = np.diag(pattern)
        z = np.linalg.solve(np.eye(2) - D @ W, (q @ D).T).T
        found += ((z @ W.T + q > 0) == np.array(pattern, dtype=bool)).all(axis=1)
    return found


def draw_card(title: str, target: Path) -> None:
    """Draw the picture that stands beside a link to the book: title, and three maps of q."""
    width, height = CARD_SIZE
    figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor="white")
    figure.text(0.5, 0.88, title, ha="center", va="center", fontsize=36, weight="bold")
    words = "Every theorem is executed, and every experiment can fail."
    figure.text(0.5, 0.77, words, ha="center", va="center", fontsize=24, color="#3d3d3d")
    axis = np.linspace(-2, 2, 240) + 1e-3  # off the boundaries, where solutions merge
    plane = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    shades = ListedColormap(["#3d3d3d", "#56b4e9", "#e69f00", "#cc79a7"])
    cells = {
        "a rotation: one answer": (3, -3),
        "inhibition: one or three": (-2, -2),
        "excitation: none or two": (2, 2),
    }
    for k, (name, (b, c)) in enumerate(cells.items()):
        ax = figure.add_axes((0.06 + 0.3 * k, 0.1, 0.28, 0.28 * width / height))
        count = solutions(np.array([[0.0, b], [c, 0.0]]), plane).reshape(len(axis), -1)
        ax.imshow(count, origin="lower", cmap=shades, vmin=-0.5, vmax=3.5)
        ax.set_axis_off()
        figure.text(0.2 + 0.3 * k, 0.055, name, ha="center", va="center", fontsize=19)
    figure.savefig(target, metadata={"Software": None})


def name_of(config: Config) -> str:
    """Return the title of the book: Jupyter Book sets that of the site, and no project."""
    return config.html_title or config.project


def plain(title: str) -> str:
    r"""Return a title without its tags and the signs of its formulas.

    >>> plain(r'3. The <em>edge</em> at <span class="math">\(2\sqrt m\)</span>')
    '3. The edge at 2√m'
    """
    text = re.sub(r"\\sqrt\s*", "√", re.sub(r"<[^>]+>", "", title))
    return re.sub(r"\\[()]|[\\{}]", "", text)


def add_to_head(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Describe a page in its head, and say the book's name once in its title."""
    if app.builder.name != "html":
        return
    book, title = name_of(app.config), plain(context.get("title", ""))
    if title in {book, plain(context.get("docstitle") or "")}:
        context["docstitle"] = ""
    site = site_address(os.environ)
    more = tags(title or book, describe(doctree), site, book, f"{pagename}.html")
    base = f'<base href="{escape(site)}"/>\n' if site and pagename == LOST else ""
    context["metatags"] = f"{base}{context.get('metatags', '')}\n{more}"


def lost_page(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Make the page that a server shows for an address that leads nowhere."""
    if app.builder.name != "html":
        return
    start = app.builder.get_relative_uri(LOST, app.config.root_doc)
    search = app.builder.get_relative_uri(LOST, "search")
    body = (
        "<h1>There is no such page</h1>"
        f'<p>The <a href="{start}">first page</a> lists all chapters, and the '
        f'<a href="{search}">search</a> finds words.</p>'
    )
    yield LOST, {"title": "There is no such page", "body": body}, "page.html"


def write_map(app: Sphinx, error: Exception | None) -> None:
    """List all pages for search engines and draw the card, where the address is known."""
    site = site_address(os.environ)
    if error or not site or app.builder.name != "html":
        return
    pages = sorted(app.env.found_docs)
    lines = "".join(f"<url><loc>{xml_escape(f'{site}{page}.html')}</loc></url>\n" for page in pages)
    text = (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{lines}</urlset>\n'
    )
    (Path(app.outdir) / "sitemap.xml").write_text(text, encoding="utf-8")
    draw_card(name_of(app.config), Path(app.outdir) / CARD)


def set_options(app: Sphinx, config: Config) -> None:
    """Tell Sphinx the address of the site, and the theme what stands at the foot of a page."""
    config.html_theme_options["extra_footer"] = foot(__version__, home(os.environ))
    # The link home has a name of its own: the theme would take the title, which home says once.
    config.html_theme_options["logo"] = {"text": name_of(config)}
    if site := site_address(os.environ):
        config.html_baseurl = config.html_baseurl or site  # makes the canonical address


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("config-inited", set_options)
    app.connect("html-page-context", add_to_head)
    app.connect("html-collect-pages", lost_page)
    app.connect("build-finished", write_map)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
