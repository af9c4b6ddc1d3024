"""The built site in a real browser on a desk, light and dark; what keys and buttons do anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from built_site import require_site, toc_pages
from chromium import skip_without_browser
from visits import SIZES, overflow, settle_math, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
skip_without_browser()

PAGES = toc_pages()

#: What MathJax leaves where it fails; an unknown macro is set in red, without an error.
MATH_FAULTS = "mjx-merror, [data-mjx-error], mjx-mtext[style*='color: red']"


def wide_formulas(page: Page) -> list[str]:
    """Return the displayed formulas that are cut at reading width, also those in folded proofs."""
    return page.evaluate(
        """() => {
            document.querySelectorAll("details").forEach(e => { e.open = true; });
            document.querySelectorAll(".toggle-hidden")
                .forEach(e => e.classList.remove("toggle-hidden"));
            return [...document.querySelectorAll("article div.math")]
                .filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 2)
                .map(e => `${e.scrollWidth} > ${e.clientWidth}: ${e.textContent.slice(0, 60)}`);
        }"""
    )


@pytest.mark.parametrize("path", PAGES)
def test_page(browser: Browser, address: str, path: str) -> None:
    with visit(browser, address, f"{path}.html") as seen:
        page = seen.page
        settle_math(page)
        formulas = page.locator("article .math").count()
        assert page.locator("article mjx-container").count() >= formulas
        faults = page.locator(MATH_FAULTS).all_text_contents()
        assert not faults, f"{path}: MathJax cannot set {faults}"
        broken = page.evaluate(
            "() => [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        )
        assert not broken, f"{path}: broken images {broken}"
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
            assert not overflow(page), f"{path} is wider than a desk ({scheme})"
        assert not wide_formulas(page), f"{path}: break these displays over lines"
        assert not seen.errors, f"{path} reports {seen.errors}"
        assert not seen.foreign, f"{path} asks other hosts: {seen.foreign}"


@pytest.mark.parametrize("path", [page for page in PAGES if page.startswith("chapters/")])
def test_sliders_change_the_picture_by_keyboard(browser: Browser, address: str, path: str) -> None:
    with visit(browser, address, f"{path}.html", "phone") as seen:
        figures = seen.page.locator("figure.deq-explore")
        for number in range(figures.count()):
            figure = figures.nth(number)
            slider, image = figure.locator("input[type=range]"), figure.locator("img")
            name = slider.get_attribute("id")
            assert figure.locator(f'label[for="{name}"]').count() == 1, f"{path}: no label"
            before = (image.get_attribute("src"), figure.locator("output").text_content())
            at_end = slider.input_value() == slider.get_attribute("max")
            slider.focus()
            seen.page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
            after = (image.get_attribute("src"), figure.locator("output").text_content())
            assert before[0] != after[0], f"{path}: slider {number} does not change its picture"
            assert before[1] != after[1], f"{path}: slider {number} does not change its value"
            assert image.get_attribute("alt")
        assert not seen.errors


def test_the_book_has_a_slider(browser: Browser, address: str) -> None:
    for path in (page for page in PAGES if page.startswith("chapters/")):
        with visit(browser, address, f"{path}.html") as seen:
            if seen.page.locator("figure.deq-explore input[type=range]").count():
                return
    pytest.fail("no chapter has a slider; did its markup change?")


def test_front_address_leads_to_the_first_page(browser: Browser, address: str) -> None:
    with visit(browser, address, "index.html") as seen:
        seen.page.wait_for_url(f"**/{PAGES[0]}.html")
        assert not seen.foreign


def test_formulas_are_set_without_a_server(browser: Browser) -> None:
    path = next(page for page in PAGES if page.startswith("chapters/"))
    with visit(browser, require_site().as_uri(), f"{path}.html") as seen:
        settle_math(seen.page)
        seen.page.evaluate("() => document.fonts.ready")
        fonts = seen.page.evaluate(
            """() => [...document.fonts].filter(f => f.family.startsWith("MJX"))
                .map(f => f.status)"""
        )
        assert seen.page.locator("article mjx-container").count()
        assert "loaded" in fonts
        assert "error" not in fonts
        assert not seen.errors
        assert not seen.foreign


def test_search_finds_a_word(browser: Browser, address: str) -> None:
    with visit(browser, address, "search.html?q=equilibrium") as seen:
        seen.page.wait_for_selector("#search-results li a")
        found = seen.page.locator("#search-results li a").all_text_contents()
        assert found
        assert not seen.errors
        assert not seen.foreign


def test_proofs_open_by_keyboard(browser: Browser, address: str) -> None:
    path = next(page for page in PAGES if page.startswith("chapters/"))
    with visit(browser, address, f"{path}.html", "phone") as seen:
        proof = seen.page.locator("details.deq-proof").first
        assert proof.get_attribute("open") is None
        proof.locator("summary").focus()
        seen.page.keyboard.press("Enter")
        assert proof.get_attribute("open") is not None


@pytest.mark.parametrize("size", SIZES)
def test_a_chapter_is_downloaded_as_a_notebook(browser: Browser, address: str, size: str) -> None:
    path = next(page for page in PAGES if page.startswith("chapters/"))
    with visit(browser, address, f"{path}.html", size) as seen:
        page = seen.page
        for button in ("download-notebook", "download-student-notebook"):
            # A name that stays beside a button that was pressed must not cover the next one.
            page.locator(".dropdown-download-buttons > button").click()
            with page.expect_download() as download:
                page.locator(f"a.btn-{button}").click()
            file = download.value
            assert file.suggested_filename.endswith(".ipynb")
            assert json.loads(Path(file.path()).read_text(encoding="utf-8"))["cells"]
            page.keyboard.press("Escape")
        assert not seen.errors
        assert not seen.foreign
