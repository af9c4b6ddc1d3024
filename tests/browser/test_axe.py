"""Every page, light and dark, by axe-core: nothing that keeps a reader out.

Formulas are left as text, which saves minutes: MathJax sets them in the colour of the text, with a
copy for screen readers. Of the highlighted code the first pieces keep their colours, for the same
reason; the colours are those of every page.
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
#: What depends on colours, and so has to be looked at twice.
COLOURS = ["color-contrast", "link-in-text-block"]

PREPARE = """() => {
    document.head.insertAdjacentHTML("beforeend",
        "<style>*, *::before, *::after { transition: none !important; }</style>");
    document.querySelectorAll("details").forEach(e => { e.open = true; });
    document.querySelectorAll(".toggle-hidden").forEach(e => e.classList.remove("toggle-hidden"));
    [...document.querySelectorAll(".highlight pre")].slice(4)
        .forEach(e => { e.textContent = e.textContent; });
}"""


def faults(page: Page, rules: list[str] | None = None) -> list[str]:
    """Return what is gravely wrong with a page, and where."""
    options: dict[str, object] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    found = Axe().run(page, options=options).response["violations"]
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
        assert not faults(page), f"{path}, light"
        page.emulate_media(color_scheme="dark")
        page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
        assert not faults(page, COLOURS), f"{path}, dark"
    finally:
        context.close()


def test_a_planted_fault_is_found(browser: Browser, address: str) -> None:
    page = browser.new_page()
    try:
        page.goto(f"{address}/{PAGES[0]}.html", wait_until="load")
        page.evaluate(
            """() => document.querySelector("article").insertAdjacentHTML("beforeend",
                "<p style='color: #999; background: #fff'>pale</p><button></button>")"""
        )
        told = "\n".join(faults(page))
        assert "color-contrast" in told
        assert "button-name" in told
    finally:
        page.close()
