"""What a page says of itself: in its head, at its foot, and where there is no page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import accessible
import front
import numpy as np
import pytest
from bs4 import BeautifulSoup
from built_site import ROOT, toc_pages
from docutils import nodes
from PIL import Image
from place import Home

from deqbook import __version__

PAGES = toc_pages()
BOOK = "Deep equilibrium models, executed"
EXTENSIONS = ROOT / "book" / "_ext"


def parsed(site: Path, page: str) -> BeautifulSoup:
    return BeautifulSoup((site / f"{page}.html").read_text(encoding="utf-8"), "html.parser")


# --- the pieces ------------------------------------------------------------------------------


def test_an_address_is_told_only_where_it_is_known() -> None:
    known = front.tags("A", "What <it> is.", "https://x.org/b/", "Book", "book/a.html")
    assert '<meta property="og:url" content="https://x.org/b/book/a.html"/>' in known
    assert '<meta name="description" content="What &lt;it&gt; is."/>' in known
    unknown = front.tags("A", "What it is.", "", "Book", "book/a.html")
    assert "og:url" not in unknown
    assert "og:image" not in unknown


def test_the_foot_links_the_source_where_there_is_one() -> None:
    known = front.foot("1.2", Home("a/b"))
    assert 'href="https://github.com/a/b">Source</a>' in known
    assert 'href="https://github.com/a/b/issues/new">Report an error</a>' in known
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
    book = html.select_one('meta[property="og:site_name"]')
    assert book is not None
    assert book["content"] == BOOK
    logo = html.select_one(".navbar-brand.logo")
    assert logo is not None
    assert logo.get_text(strip=True) == BOOK
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


# --- a site that knows its address ------------------------------------------------------------


CONF = """
extensions = ["front"]
project, html_theme, root_doc = "A small book", "sphinx_book_theme", "first"
"""
WORDS = "A paragraph with enough words to describe what stands here."
PAGE = f"The first page\n==============\n\n{WORDS}\n"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a small book as a runner of GitHub would, which knows the repository."""
    source, target = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("site")
    (source / "conf.py").write_text(CONF, encoding="utf-8")
    (source / "first.rst").write_text(PAGE, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(source), str(target)]
    known = {"GITHUB_REPOSITORY": "Some/fork", "PYTHONPATH": str(EXTENSIONS)}
    unset = ("DEQBOOK_SITE", "GITHUB_SERVER_URL", "GITHUB_REF_NAME")
    rest = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(command, env={**rest, **known}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def test_a_published_page_says_its_address_and_shows_a_card(published: Path) -> None:
    html = parsed(published, "first")
    canonical = html.select_one('link[rel="canonical"]')
    assert canonical is not None
    assert canonical["href"] == "https://some.github.io/fork/first.html"
    told = {tag["property"]: tag["content"] for tag in html.select("meta[property]")}
    assert told["og:url"] == "https://some.github.io/fork/first.html"
    assert told["og:title"] == "The first page"
    assert told["og:description"] == WORDS
    assert told["og:image"] == f"https://some.github.io/fork/{front.CARD}"
    with Image.open(published / front.CARD) as card:
        assert card.size == front.CARD_SIZE
        pixels = np.asarray(card.convert("RGB")).astype(int)
    for shade in ((61, 61, 61), (86, 180, 233), (230, 159, 0), (204, 121, 167)):
        near = np.abs(pixels - shade).max(axis=2) <= 2
        assert 0.01 < near.mean() < 0.5, f"{shade} stands for a number of solutions"


def test_a_published_site_lists_its_pages(published: Path) -> None:
    tree = ElementTree.parse(published / "sitemap.xml")
    places = [one.text for one in tree.iter("{http://www.sitemaps.org/schemas/sitemap/0.9}loc")]
    assert places == ["https://some.github.io/fork/first.html"]


def test_a_reader_of_a_published_page_can_report_an_error(published: Path) -> None:
    links = {a["href"] for a in parsed(published, "first").select("footer a[href]")}
    assert "https://github.com/Some/fork" in links
    assert "https://github.com/Some/fork/issues/new" in links


def test_a_lost_reader_of_a_published_site_finds_home_from_any_depth(published: Path) -> None:
    base = parsed(published, front.LOST).select_one("head base")
    assert base is not None
    assert base["href"] == "https://some.github.io/fork/"


@pytest.mark.parametrize(
    ("b", "c", "counts"), [(3, -3, {1}), (-2, -2, {1, 3}), (2, 2, {0, 2}), (0.5, 0.5, {1})]
)
def test_the_card_counts_right(b: float, c: float, counts: set[int]) -> None:
    q = np.random.default_rng(0).uniform(-2, 2, (400, 2))
    W = np.array([[0.0, b], [c, 0.0]])
    assert set(front.solutions(W, q).tolist()) == counts
