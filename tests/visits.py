"""A page of the built site in a browser: opened, set, and cut off from all other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


UNFOLD = """() => {
    document.querySelectorAll("article details").forEach(e => { e.open = true; });
    document.querySelectorAll("article .toggle-hidden")
        .forEach(e => e.classList.remove("toggle-hidden"));
}"""

#: Until the page has looked the same for most of a second.
STILL = """async () => {
    const look = () => [document.querySelector("article").offsetHeight,
        document.querySelectorAll(".deq-wide").length,
        document.querySelectorAll("[data-deq-size]").length].join();
    for (let before = "", same = 0; same < 4;) {
        await new Promise(done => requestAnimationFrame(() => setTimeout(done, 150)));
        same = look() === before ? same + 1 : 0;
        before = look();
    }
}"""


@dataclass
class Visit:
    """A page, and everything that went wrong while it was open."""

    page: Page
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


@contextmanager
def visit(browser: Browser, address: str, path: str, size: str = "desktop") -> Iterator[Visit]:
    """Open a page, letting nothing through to another host."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="light",
        has_touch=size == "phone",
        is_mobile=size == "phone",
    )
    seen = Visit(context.new_page())
    page = seen.page
    page.on("console", lambda m: seen.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on(
        "response",
        lambda r: seen.errors.append(f"{r.status} {r.url}") if r.status >= 400 else None,
    )

    def local_only(route: Route) -> None:
        if route.request.url.startswith((f"{address}/", "data:", "blob:")):
            route.continue_()
        else:
            seen.foreign.append(route.request.url)
            route.abort()

    context.route("**/*", local_only)
    page.goto(f"{address}/{path}", wait_until="load")
    try:
        yield seen
    finally:
        context.close()


def settle_math(page: Page) -> None:
    """Wait until MathJax has set the page, on pages that have formulas."""
    page.wait_for_function(
        """() => !document.querySelector(".math")
        || (window.MathJax?.startup?.promise && document.querySelector("mjx-container"))"""
    )
    page.evaluate("() => window.MathJax?.startup?.promise")


def settle(page: Page) -> None:
    """Wait until nothing moves any more: formulas set, things unfolded, boxes marked."""
    settle_math(page)
    page.evaluate("() => document.fonts.ready")
    page.evaluate(UNFOLD)
    page.evaluate(STILL)


def overflow(page: Page) -> list[str]:
    """Return the elements that make the page wider than the screen, if it is."""
    return page.evaluate(
        """() => {
            const width = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= width) return [];
            return [...document.querySelectorAll("article *")]
                .filter(e => e.getBoundingClientRect().right > width + 1)
                .slice(0, 5).map(e => e.outerHTML.slice(0, 120)).concat("the page scrolls");
        }"""
    )
