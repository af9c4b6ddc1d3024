"""The picture of the home page counts right, moves, and stays without a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from chromium import skip_without_browser

skip_without_browser()
if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.book, pytest.mark.browser]


def brute(b: float, c: float, p: float, q: float) -> int:
    """Count the solutions of z = relu(Wz + q) as corners of z₁ = relu(b relu(cz₁ + q) + p)."""
    z = np.linspace(-1e-9, 60, 2_000_001)
    gap = np.maximum(b * np.maximum(c * z + q, 0) + p, 0) - z
    return int(np.sum(np.diff(np.sign(gap)) != 0))


def test_the_picture_counts_as_brute_force_does(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/book/index.html")
    rng = np.random.default_rng(0)
    for b, c, p, q in rng.uniform(-3, 3, (40, 4)):
        told = page.evaluate(f"deqCount({b}, {c}, {p}, {q})")
        assert told == brute(b, c, p, q), (b, c, p, q)
    page.close()


def test_the_buttons_show_what_the_caption_says(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/book/index.html")
    page.wait_for_selector(".deq-home canvas")
    seen = {}
    for button in page.locator(".deq-home button").all():
        button.click()
        words = page.inner_text(".deq-home-told").replace("%", "").split()
        seen[button.inner_text()] = {word for word in words if word.isalpha()}
    assert seen == {
        "a rotation": {"one"},
        "inhibition": {"one", "three"},
        "excitation": {"none", "two"},
        "a contraction": {"one"},
    }
    page.close()


def test_without_scripts_the_picture_is_still_there(browser: Browser, address: str) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(f"{address}/book/index.html")
    assert page.locator("img[src*='readme-figure']").count() == 1
    page.close()
