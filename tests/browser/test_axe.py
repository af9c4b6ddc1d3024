"""Every page, light and dark, by axe-core: nothing that keeps a reader out.

Formulas are left as text, which saves minutes: MathJax sets them in the colour of the text, with a
copy for screen readers. Contrast is measured once for every way in which text is set on a page: two
pieces with the same colour, size and weight on the same grounds have the same contrast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from built_site import toc_pages
from chromium import skip_without_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
skip_without_browser()

PAGES = [*toc_pages(), "search", "404"]
GRAVE = {"serious", "critical"}
#: Markup that autodoc and sphinxcontrib-bibtex write: an entry without text, a link back in a list.
NOT_OURS = {"definition-list", "aria-required-children"}
#: A formula that is left as text may be wider than its box; set, it is not, or can be reached.
UNSET = '<div class="math'
#: What depends on colours: looked at twice, in the places that `WAYS` marks.
COLOURS = ["color-contrast", "link-in-text-block"]
MARKED = "[data-way]"

PREPARE = """() => {
    document.head.insertAdjacentHTML("beforeend",
        "<style>*, *::before, *::after { transition: none !important; }</style>");
    document.querySelectorAll("details").forEach(e => { e.open = true; });
    document.querySelectorAll(".toggle-hidden").forEach(e => e.classList.remove("toggle-hidden"));
}"""
#: Marks the first two elements of each way to set text: its own colour, size, weight and shadow,
#: the grounds it stands on, and the tag, on which axe's rules for links depend.
WAYS = """() => {
    const grounds = new Map([[null, ""]]), seen = new Map();
    const ground = e => {
        if (!grounds.has(e)) {
            const s = getComputedStyle(e);
            const own = [s.backgroundColor, s.backgroundImage, s.opacity, s.filter, s.position];
            grounds.set(e, [...new Set([ground(e.parentElement), own.join()])].join("|"));
        }
        return grounds.get(e);
    };
    document.querySelectorAll("[data-way]").forEach(e => e.removeAttribute("data-way"));
    for (const e of document.body.querySelectorAll("*")) {
        const words = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        if (!words && !e.matches("input, select, textarea")) continue;
        const s = getComputedStyle(e);
        const way = [e.tagName, s.color, s.fontSize, s.fontWeight, s.textShadow,
            s.textDecorationLine, s.visibility, ground(e)].join(";");
        const count = (seen.get(way) || 0) + 1;
        seen.set(way, count);
        if (count < 3) e.setAttribute("data-way", "");
    }
    return seen.size;
}"""


def faults(page: Page, *, colours: bool) -> list[str]:
    """Return what is gravely wrong with the colours of a page, or with all else, and where."""
    options: dict[str, object] = {"resultTypes": ["violations"]}
    context: dict[str, object] = {}
    if colours:
        assert page.evaluate(WAYS) > 1, "text was found nowhere"
        context = {"include": [MARKED]}
        options["runOnly"] = {"type": "rule", "values": COLOURS}
    else:
        options["rules"] = {rule: {"enabled": False} for rule in COLOURS}
    found = Axe().run(page, context=context or None, options=options).response["violations"]
    return [
        f"{one['id']}: {node['html'][:150]} {node['failureSummary'][-150:]}"
        for one in found
        if one["impact"] in GRAVE and one["id"] not in NOT_OURS
        for node in one["nodes"]
        if not (one["id"] == "scrollable-region-focusable" and node["html"].startswith(UNSET))
    ]


@pytest.mark.parametrize("path", PAGES)
def test_nothing_keeps_a_reader_out(browser: Browser, address: str, path: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.route("**/mathjax/**", lambda r: r.fulfill(body="", content_type="text/javascript"))
    try:
        page = context.new_page()
        page.goto(f"{address}/{path}.html", wait_until="load")
        page.evaluate(PREPARE)
        page.wait_for_timeout(300)
        assert not faults(page, colours=False), path
        assert not faults(page, colours=True), f"{path}, light"
        page.emulate_media(color_scheme="dark")
        page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
        assert not faults(page, colours=True), f"{path}, dark"
    finally:
        context.close()


PLANT = """() => {
    const all = [...document.querySelectorAll("article p")];
    all.at(-1).insertAdjacentHTML("beforeend", "<span style='color: #999'>pale</span>");
    all.at(-2).insertAdjacentHTML("afterend",
        "<div style='background: #777'><p>on a dark ground</p></div><button></button>");
    all.at(-3).insertAdjacentHTML("beforeend", "<i class='night'>pale by night</i>");
    document.head.insertAdjacentHTML("beforeend",
        "<style>html[data-theme=dark] .night { color: #555 !important; }</style>");
}"""


def test_a_planted_fault_is_found(browser: Browser, address: str) -> None:
    context = browser.new_context(color_scheme="light")
    try:
        page = context.new_page()
        page.goto(f"{address}/{PAGES[1]}.html", wait_until="load")
        page.evaluate(PREPARE)
        page.evaluate(PLANT)
        assert "button-name" in "\n".join(faults(page, colours=False))
        told = "\n".join(faults(page, colours=True))
        assert "color-contrast" in told
        assert "#777777" in told
        assert "#999999" in told
        assert "by night" not in told
        page.emulate_media(color_scheme="dark")
        page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
        assert "by night" in "\n".join(faults(page, colours=True))
    finally:
        context.close()
