"""On a phone nothing is cut: what is wider than the screen scrolls, shows it, and takes keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from built_site import toc_pages
from chromium import skip_without_browser
from visits import settle, visit

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


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_cut_on_a_phone(browser: Browser, address: str, path: str) -> None:
    with visit(browser, address, f"{path}.html", "phone") as seen:
        settle(seen.page)
        told = seen.page.evaluate(CUT)
        assert not told["found"], f"{path}: {len(told['found'])} of {told['count']} are cut"
        assert not seen.errors


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
