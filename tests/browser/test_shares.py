"""What a page is made of: folded evidence takes little of it, and what is loaded is not heavy."""

from __future__ import annotations

import gzip
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from built_site import require_site, toc_pages
from chromium import skip_without_browser
from visits import settle_math, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
skip_without_browser()

PAGES = toc_pages()
CHAPTERS = [page for page in PAGES if page.startswith("chapters/")]
#: Of the height of a chapter, folded, at 390 pixels.
EVIDENCE = 0.05
#: Bytes that a visit transfers where the server compresses: home, and any page.
HOME_BUDGET, BUDGET = 1_000_000, 2_500_000
#: A server sends these as they are.
PACKED = {".woff", ".woff2", ".webp", ".png", ".jpg"}

HEIGHTS = """() => {
    const tall = (selector) => [...document.querySelectorAll(`article ${selector}`)]
        .reduce((sum, e) => sum + e.getBoundingClientRect().height, 0);
    return {
        whole: document.querySelector("article").getBoundingClientRect().height,
        evidence: tall("details.deq-evidence"),
        panels: document.querySelectorAll("details.deq-evidence").length,
    };
}"""


@pytest.mark.parametrize("path", CHAPTERS)
def test_folded_evidence_takes_little_of_a_page(browser: Browser, address: str, path: str) -> None:
    with visit(browser, address, f"{path}.html", "phone") as seen:
        settle_math(seen.page)
        told = seen.page.evaluate(HEIGHTS)
    share = told["evidence"] / told["whole"]
    assert share <= EVIDENCE, f"{path}: {100 * share:.1f} % of the page is evidence"


def test_the_chapters_have_evidence(browser: Browser, address: str) -> None:
    with visit(browser, address, "chapters/02_implicit_gradients.html", "phone") as seen:
        assert seen.page.evaluate(HEIGHTS)["panels"] > 10


@lru_cache
def transferred(path: str) -> int:
    """Return what a server that compresses sends for one file."""
    file = require_site() / path
    content = file.read_bytes() if file.is_file() else b""
    return len(content) if Path(path).suffix in PACKED else len(gzip.compress(content, 6))


@pytest.mark.parametrize("path", PAGES)
def test_a_visit_is_light(browser: Browser, address: str, path: str) -> None:
    loaded: set[str] = set()
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.on("response", lambda answer: loaded.add(unquote(urlsplit(answer.url).path)))
        page.goto(f"{address}/{path}.html", wait_until="load")
        settle_math(page)
        page.evaluate("() => document.fonts.ready")
        formulas = page.locator(".math").count()
        # A page of links to others: what they show when pointed at has formulas.
        contents = page.locator("article :is(.toctree-wrapper, .tableofcontents-wrapper)").count()
    finally:
        context.close()
    weights = {file: transferred(file.lstrip("/")) for file in loaded}
    total, allowed = sum(weights.values()), HOME_BUDGET if path == PAGES[0] else BUDGET
    heaviest = sorted(weights.items(), key=lambda one: -one[1])[:5]
    assert total <= allowed, f"{path} loads {total} bytes, above {allowed}; heaviest: {heaviest}"
    asks = any("mathjax" in file for file in loaded)
    if not contents:
        assert asks == bool(formulas), f"{path} has {formulas} formulas, MathJax loaded: {asks}"
