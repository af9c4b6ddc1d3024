"""What a page says of itself: in its head, at its foot, and where there is no page."""

from __future__ import annotations

import re
from pathlib import Path

import accessible
import front
import pytest
from bs4 import BeautifulSoup
from built_site import toc_pages
from docutils import nodes
from place import Home

from deqbook import __version__

PAGES = toc_pages()


def parsed(site: Path, page: str) -> BeautifulSoup:
    return BeautifulSoup((site / f"{page}.html").read_text(encoding="utf-8"), "html.parser")


# --- the pieces ------------------------------------------------------------------------------


def test_an_address_is_told_only_where_it_is_known() -> None:
    known = front.tags("A", "What <it> is.", "https://x.org/b/", "Book", "book/a.html")
    assert '<meta property="og:url" content="https://x.org/b/book/a.html"/>' in known
    assert '<meta name="description" content="What &lt;it&gt; is."/>' in known
    assert "og:url" not in front.tags("A", "What it is.", "", "Book", "book/a.html")


def test_the_foot_links_the_source_where_there_is_one() -> None:
    assert 'href="https://github.com/a/b">Source</a>' in front.foot("1.2", Home("a/b"))
    assert "Version 1.2. Text and figures CC BY 4.0" in front.foot("1.2", Home())
    assert "href" not in front.foot("1.2", Home())


def section(*paragraphs: nodes.Node) -> nodes.document:
    document = nodes.document(None, None)  # type: ignore[arg-type]
    document += nodes.section("", *paragraphs)
    return document


def test_a_page_is_described_by_its_first_paragraph_without_formulas() -> None:
    words = "This paragraph has words alone, and enough of them."
    formula = nodes.paragraph("", "", nodes.Text("x" * 60), nodes.math("", "x^2"))
    assert front.describe(section(formula, nodes.paragraph("", words))) == words
    assert front.describe(section(nodes.paragraph("", "Short."))) == ""
    assert front.describe(None) == ""


def test_a_long_description_ends_with_a_sentence_or_a_word() -> None:
    assert front.shorten("A sentence of exactly some forty characters. " * 9).endswith(
        "characters."
    )
    assert re.search(r"word…$", front.shorten("word " * 99))


def test_the_arrows_of_the_side_bar_are_named_after_their_page() -> None:
    bar = BeautifulSoup(
        '<li class="has-children"><a href="x"> 3.  Flow </a>'
        "<details><summary><span></span></summary></details></li>",
        "html.parser",
    )
    assert 'summary aria-label="Pages of 3. Flow"' in str(accessible.name_arrows(bar))


# --- the built site --------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_its_head_and_foot(site: Path, page: str) -> None:
    html = parsed(site, page)
    title = html.title.get_text()  # type: ignore[union-attr]
    parts = title.split(" — ")
    assert len(set(parts)) == len(parts), title
    assert html.select_one('link[rel~="icon"]')
    assert html.select_one('meta[property="og:title"]')
    foot = html.select_one("footer .extra_footer")
    assert foot is not None
    assert f"Version {__version__}" in foot.get_text()


def test_most_pages_are_described(site: Path) -> None:
    texts = {
        page: tag["content"]
        for page in PAGES
        if (tag := parsed(site, page).select_one('meta[name="description"]'))
    }
    assert len(texts) > 0.7 * len(PAGES)
    assert len(set(texts.values())) == len(texts)
    assert all(front.SHORTEST <= len(text) <= front.LENGTH for text in texts.values())


def test_there_is_a_page_for_what_is_not_there(site: Path) -> None:
    page = parsed(site, "404")
    links = {a["href"] for a in page.select("article a[href]") if not a["href"].startswith("#")}
    assert links == {f"{PAGES[0]}.html", "search.html"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("chapters/")])
def test_every_box_with_an_anchor_links_to_itself(site: Path, page: str) -> None:
    boxes = parsed(site, page).select("div.admonition[id]:is(.proof, .exercise)")
    assert boxes
    for box in boxes:
        link = box.select_one(".admonition-title > a.headerlink")
        assert link is not None, box["id"]
        assert link["href"] == f"#{box['id']}"
