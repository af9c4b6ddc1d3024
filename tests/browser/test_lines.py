"""Where lines end on a phone: no comma, full stop or bracket begins one after a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from built_site import toc_pages
from chromium import skip_without_browser
from visits import settle, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
skip_without_browser()

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


@pytest.mark.parametrize("path", toc_pages())
def test_no_line_begins_with_a_mark(browser: Browser, address: str, path: str) -> None:
    with visit(browser, address, f"{path}.html", "phone") as seen:
        settle(seen.page)
        told = seen.page.evaluate(LOOSE)
        assert not told["found"], f"{path}: {len(told['found'])} of {told['count']}"


def test_the_count_notices_a_loose_mark(browser: Browser, address: str) -> None:
    """Without the spans that hold them together, marks do begin lines."""
    with visit(browser, address, "chapters/03b_three_networks.html", "phone") as seen:
        settle(seen.page)
        seen.page.add_style_tag(content=".deq-glue { white-space: normal !important; }")
        assert seen.page.evaluate(LOOSE)["found"]
