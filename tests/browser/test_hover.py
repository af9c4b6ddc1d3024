"""A link to a statement shows the statement, with its formulas, from the mouse and the keyboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from built_site import require_site
from chromium import skip_without_browser

skip_without_browser()
if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.book, pytest.mark.browser]

PAGE = "chapters/03b_three_networks.html"
TARGET = "thm-feature-kernel-concentrates"


@pytest.mark.parametrize("from_file", [False, True], ids=["server", "file"])
@pytest.mark.parametrize("way", ["mouse", "keyboard"])
def test_a_statement_is_shown(browser: Browser, address: str, way: str, from_file: bool) -> None:
    page = browser.new_page()
    page.goto((require_site() / PAGE).as_uri() if from_file else f"{address}/{PAGE}")
    link = page.locator(f"article a.reference.internal[href$='#{TARGET}']").first
    link.scroll_into_view_if_needed()
    if way == "mouse":
        link.hover()
    else:
        link.focus()
    page.wait_for_selector(".deq-hover mjx-container, .deq-hover .MathJax", timeout=20_000)
    text = page.inner_text(".deq-hover")
    assert text.startswith(("Theorem 4.", "Proposition 4."))
    assert "\\(" not in text
    assert link.get_attribute("aria-describedby")
    page.keyboard.press("Escape")
    assert page.locator(".deq-hover").count() == 0
    page.close()


def test_a_link_to_a_section_shows_nothing(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/{PAGE}")
    page.locator("article a.reference.internal[href$='#sec-adjoint']").first.focus()
    page.wait_for_timeout(1000)
    assert page.locator(".deq-hover").count() == 0
    page.close()
