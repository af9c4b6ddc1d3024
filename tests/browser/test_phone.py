"""Every page on a phone, set and unfolded: nothing is cut, and lines begin with words.

What is wider than the screen scrolls, shows it, and takes keys. No comma, full stop or bracket
begins a line after a formula. A page is opened once for all of this, which saves minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from built_site import toc_pages
from chromium import skip_without_browser
from visits import Visit, overflow, settle, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
skip_without_browser()

PAGES = toc_pages()

#: For every formula, table, picture and piece of code or output: the boxes that cut it.
CUT = """() => {
    // Its edge fades where there is more, and the keyboard reaches it by a name.
    const tells = (box) => box.tabIndex >= 0
        && getComputedStyle(box).maskImage.includes("gradient")
        && (box.matches("mjx-container") || box.getAttribute("aria-label"))
        && (box.classList.contains("deq-more-right") || box.classList.contains("deq-more-left"));
    // For screen readers alone; a table whose rows stand as blocks has its headings in the cells.
    const HIDDEN = ".sr-only, .visually-hidden, .deq-stack thead";
    const width = document.documentElement.clientWidth;
    const found = [];
    const things = "mjx-math, table, pre, img, svg, .deq-evidence > summary, .admonition-title";
    let count = 0, scrolled = 0;
    for (const thing of document.querySelectorAll(`article :is(${things})`)) {
        const shown = thing.getBoundingClientRect();
        if (!shown.width || !shown.height || thing.closest(HIDDEN)) continue;
        count += 1;
        let [left, right] = [shown.left, shown.right];
        if (thing.scrollWidth > thing.clientWidth + 1 && thing.matches("pre")) {
            right = Math.max(right, shown.left + thing.scrollWidth);
        }
        for (let box = thing; box !== document.body; box = box.parentElement) {
            const style = getComputedStyle(box);
            if (style.overflowX === "visible" || style.display === "inline") continue;
            const edge = box.getBoundingClientRect();
            if (right > edge.right + 1.5 || left < edge.left - 1.5) {
                const scrolls = ["auto", "scroll"].includes(style.overflowX);
                if (scrolls && tells(box)) scrolled += 1;
                else found.push(`${box.tagName}.${box.className} cuts ${thing.tagName} by `
                    + `${Math.round(right - edge.right)}: ${thing.textContent.slice(0, 60)}`);
            }
            [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
        }
        if (right > width + 1.5) found.push(`the screen cuts ${thing.outerHTML.slice(0, 100)}`);
    }
    return {count, scrolled, found};
}"""


#: For every formula and every piece of code on a line: what touches it and stands on another line.
LOOSE = r"""() => {
    const first = (node, end) => {  // the letter beside it, and where that stands
        if (node.nodeType !== Node.TEXT_NODE || !node.data.length) return null;
        const at = end ? node.data.length - 1 : 0;
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        return [node.data[at], range.getBoundingClientRect()];
    };
    const beside = (thing, way) => {  // also where the formula ends a link or bold words
        while (!thing[way] && thing.parentElement.matches("strong, em, a, span")) {
            thing = thing.parentElement;
        }
        return thing[way] && first(thing[way], way === "previousSibling");
    };
    const found = [];
    let count = 0;
    for (const thing of document.querySelectorAll("article :is(span.math, code.literal)")) {
        const box = (thing.querySelector("mjx-container") ?? thing).getClientRects();
        if (!box.length) continue;
        count += 1;
        const [start, end] = [box[0], box[box.length - 1]];
        const named = thing.textContent.slice(0, 40);
        const next = beside(thing, "nextSibling");
        if (next && ",.;:!?)]’”".includes(next[0]) && next[1].width && next[1].top > end.bottom - 2)
            found.push(`${next[0]} begins a line after ${named}`);
        const last = beside(thing, "previousSibling");
        if (last && "([“".includes(last[0]) && last[1].width && last[1].bottom < start.top + 2)
            found.push(`${last[0]} ends a line before ${named}`);
    }
    return {count, found};
}"""


@pytest.fixture(scope="module", params=PAGES)
def settled(request: pytest.FixtureRequest, browser: Browser, address: str) -> Iterator[Visit]:
    """Open a page and unfold it, for all tests that only look."""
    with visit(browser, address, f"{request.param}.html", "phone") as seen:
        settle(seen.page)
        yield seen


def test_nothing_is_cut_on_a_phone(settled: Visit) -> None:
    told = settled.page.evaluate(CUT)
    assert not told["found"], f"{len(told['found'])} of {told['count']} are cut"


def test_no_line_begins_with_a_mark(settled: Visit) -> None:
    told = settled.page.evaluate(LOOSE)
    assert not told["found"], f"{len(told['found'])} of {told['count']}"


def test_no_page_is_wider_than_a_phone(settled: Visit) -> None:
    for scheme in ("dark", "light"):
        settled.page.emulate_media(color_scheme=scheme)
        settled.page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        assert not overflow(settled.page), scheme


def test_a_phone_meets_no_error_and_asks_no_other_host(settled: Visit) -> None:
    assert not settled.errors
    assert not settled.foreign


def test_the_count_notices_a_loose_mark(browser: Browser, address: str) -> None:
    """Without the spans that hold them together, marks do begin lines."""
    with visit(browser, address, "chapters/03b_three_networks.html", "phone") as seen:
        settle(seen.page)
        seen.page.add_style_tag(content=".deq-glue { white-space: normal !important; }")
        assert seen.page.evaluate(LOOSE)["found"]


def longest_formula(page: Page) -> str:
    """Give the widest displayed formula an id, and return it."""
    return page.evaluate(
        """() => {
            const boxes = [...document.querySelectorAll("article mjx-container.deq-wide")];
            boxes.sort((a, b) => b.scrollWidth - a.scrollWidth);
            boxes[0].id = "longest";
            return "#longest";
        }"""
    )


def test_a_long_formula_is_scrolled_by_keys_to_its_end(browser: Browser, address: str) -> None:
    with visit(browser, address, "chapters/03c_monotone_opteq.html", "phone") as seen:
        page = seen.page
        settle(page)
        box = page.locator(longest_formula(page))
        assert "deq-more-right" in str(box.get_attribute("class"))
        assert "deq-more-left" not in str(box.get_attribute("class"))
        box.focus()
        for _ in range(60):
            page.keyboard.press("ArrowRight")
        page.wait_for_function(
            """() => {
                const names = document.querySelector("#longest").classList;
                return names.contains("deq-more-left") && !names.contains("deq-more-right");
            }"""
        )


def test_where_there_is_room_nothing_is_marked(browser: Browser, address: str) -> None:
    with visit(browser, address, "chapters/03c_monotone_opteq.html", "phone") as seen:
        page = seen.page
        settle(page)
        assert page.locator("article div.math .deq-wide").count()
        assert page.locator("[data-deq-size]").count()
        page.set_viewport_size({"width": 1280, "height": 900})
        page.wait_for_function("() => !document.querySelector('article div.math .deq-wide')")
        page.wait_for_function("() => !document.querySelector('article div.math [data-deq-size]')")
