"""Figures: letters that a phone can show, a larger view, sliders that stand where they were left.

The letters of a figure are outlines, so no font size can be asked for. But matplotlib writes every
text as glyphs scaled by its size: ``scale(0.12 -0.12)`` is 12 points, and the ``viewBox`` of the
drawing is in points, too. A slider's frames are pixels; the slider says how small its letters are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from built_site import require_site, toc_pages
from chromium import skip_without_browser
from visits import visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
skip_without_browser()

DRAWN = ("chapters/", "book/gallery", "book/benchmarks")
CHAPTERS = [p for p in toc_pages() if p.startswith(DRAWN)]
#: CSS pixels on a phone of 390.
SMALLEST = 11.0

_TEXT = re.compile(r"scale\((\d+\.\d+) -\1\)")
_WIDTH = re.compile(r'viewBox="0 0 ([\d.]+) ')

SHOWN = """() => [...document.querySelectorAll("article figure img")].map(image => {
    const slider = image.closest("figure.deq-explore");
    return {
        src: slider ? "" : image.src,
        number: image.closest("figure:not(.deq-explore)")
            ?.querySelector(".caption-number")?.textContent ?? "",
        width: image.getBoundingClientRect().width,
        usual: Number(image.getAttribute("width")),
        type: Number(slider?.dataset.type),
    };
})"""


def smallest_letters(svg: str) -> float:
    """Return the smallest size of a text in a drawing, as a part of the drawing's width."""
    width = _WIDTH.search(svg)
    sizes = [100 * float(size) for size in _TEXT.findall(svg)]
    assert width is not None
    return min(sizes, default=float("inf")) / float(width[1])


def drawing(address: str) -> str | None:
    """Return the file that an image shows, if it is a drawing."""
    path = Path(unquote(urlsplit(address).path).lstrip("/"))
    return (require_site() / path).read_text(encoding="utf-8") if path.suffix == ".svg" else None


def test_the_size_of_letters_is_read_off_a_drawing() -> None:
    text = '<g transform="translate(1 2) scale(0.12 -0.12)">'
    assert smallest_letters(f'<svg viewBox="0 0 400 200">{text}</svg>') == pytest.approx(0.03)
    assert smallest_letters('<svg viewBox="0 0 400 200"></svg>') == float("inf")


@pytest.mark.parametrize("path", CHAPTERS)
def test_letters_in_figures_are_large_enough_on_a_phone(
    browser: Browser, address: str, path: str
) -> None:
    with visit(browser, address, f"{path}.html", "phone") as seen:
        figures = seen.page.evaluate(SHOWN)
    assert figures
    small = {}
    for one in figures:
        if one["src"]:
            svg = drawing(one["src"])
            size = smallest_letters(svg) * one["width"] if svg else float("inf")
        else:
            size = one["type"] * one["width"] / one["usual"]
            assert size > 0, f"{path}: a slider does not say how small its letters are"
        if size < SMALLEST:
            small[one["number"]] = round(size, 1)
    assert not small, f"{path}: letters below {SMALLEST} px on a phone: {small}"


def first_figure(page: Page) -> str:
    """Give the first figure with a slider an id, and return it."""
    return page.evaluate(
        """() => {
            const figure = document.querySelector("figure:has(> .text_html > .deq-explore)");
            figure.id ||= "first-figure";
            return `#${figure.id}`;
        }"""
    )


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_a_figure_is_enlarged_and_put_back_by_keyboard(
    browser: Browser, address: str, size: str
) -> None:
    with visit(browser, address, "chapters/01a_contraction.html", size) as seen:
        page = seen.page
        figure = page.locator(first_figure(page))
        image = figure.locator("img")
        before = image.bounding_box()
        button = figure.locator("button.deq-enlarge")
        assert (button.get_attribute("aria-label") or "").startswith("Enlarge Fig")
        button.focus()
        page.keyboard.press("Enter")
        large = page.locator("dialog.deq-large[open] img")
        assert large.bounding_box()["width"] > 1.3 * before["width"]
        slider = page.locator("dialog.deq-large input[type=range]")
        old = large.get_attribute("src")
        slider.focus()
        page.keyboard.press("ArrowRight")
        assert large.get_attribute("src") != old
        page.keyboard.press("Escape")
        assert page.locator("dialog[open]").count() == 0
        assert figure.locator("img").bounding_box()["width"] == before["width"]
        assert button.evaluate("b => b === document.activeElement")
        assert not seen.errors


def test_every_numbered_figure_can_be_enlarged(browser: Browser, address: str) -> None:
    with visit(browser, address, "chapters/03d_real_data.html") as seen:
        figures = seen.page.locator("article figure:has(> figcaption .caption-number)")
        assert figures.count() > 3
        assert figures.count() == seen.page.locator("article button.deq-enlarge").count()


def test_a_slider_stands_where_it_was_left(browser: Browser, address: str) -> None:
    with visit(browser, address, "chapters/01a_contraction.html") as seen:
        page = seen.page
        slider = page.locator(".deq-explore input[type=range]").first
        start = slider.input_value()
        slider.focus()
        page.keyboard.press("ArrowRight")
        left = slider.input_value()
        told = page.locator(".deq-explore output").first.text_content()
        assert left != start
        page.goto(f"{address}/chapters/01b_monotone.html", wait_until="load")
        page.goto(f"{address}/chapters/01a_contraction.html", wait_until="load")
        assert page.locator(".deq-explore input[type=range]").first.input_value() == left
        assert page.locator(".deq-explore output").first.text_content() == told
