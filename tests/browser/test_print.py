"""A page on paper: solutions and code stay folded, nothing is cut, and no page is half blank."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from chromium import skip_without_browser
from pypdf import PageObject, PdfReader
from visits import settle_math, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
skip_without_browser()

#: A page with many solutions, one with tall figures, one with wide tables.
PAGES = ["chapters/01a_contraction", "chapters/05c_opteq_images", "chapters/07b_in_use"]
#: Of the height of a sheet.
BLANK = 0.5
#: What A4 leaves between Chromium's margins, in CSS pixels.
PAPER = {"width": 718, "height": 1000}

OUTSIDE = """() => {
    const article = document.querySelector("article").getBoundingClientRect();
    return [...document.querySelectorAll(
            "article :is(pre, table, mjx-math, img, figcaption, .admonition)")]
        .filter(e => e.getBoundingClientRect().height && !e.closest(".deq-explore > div"))
        .filter(e => e.getBoundingClientRect().right > article.right + 2
            || (getComputedStyle(e).overflowX !== "visible" && e.scrollWidth > e.clientWidth + 2))
        .map(e => `${e.tagName}.${e.className}: ${e.textContent.slice(0, 60)}`);
}"""


def lowest(page: PageObject) -> float:
    """Return the height of the lowest text on a sheet, as a part of the sheet's height."""
    heights: list[float] = []

    def see(text: str, outer: list[float], inner: list[float], *_: object) -> None:
        if text.strip():
            heights.append(outer[5] + outer[3] * inner[5])

    page.extract_text(visitor_text=see)
    return min(heights, default=float(page.mediabox.height)) / float(page.mediabox.height)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_on_paper(browser: Browser, address: str, path: str) -> None:
    with visit(browser, address, f"{path}.html") as seen:
        settle_math(seen.page)
        assert seen.page.locator(".admonition.solution").count() > 3
        sheets = PdfReader(io.BytesIO(seen.page.pdf(format="A4"))).pages
    blank = {k: round(lowest(sheet), 2) for k, sheet in enumerate(sheets[:-1], 1)}
    assert max(blank.values()) < BLANK, f"{path}: blank below {blank}"
    text = " ".join(sheet.extract_text() for sheet in sheets)
    assert "Exercise" in text
    assert "Solution to" not in text
    assert "Show the code" not in text


@pytest.mark.parametrize("path", PAGES)
def test_paper_cuts_nothing(browser: Browser, address: str, path: str) -> None:
    with visit(browser, address, f"{path}.html") as seen:
        seen.page.set_viewport_size(PAPER)
        seen.page.emulate_media(media="print")
        settle_math(seen.page)
        seen.page.wait_for_timeout(500)
        outside = seen.page.evaluate(OUTSIDE)
    assert not outside, f"{path}: {outside}"
