"""What a student types leads to the right place, among the first three results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from built_site import require_site
from chromium import skip_without_browser

skip_without_browser()
if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.book, pytest.mark.browser]

#: What is typed, and the beginnings of addresses any of which is right.
QUERIES = {
    "NTK": ("chapters/04_ntk.html", "book/glossary.html#term-NTK"),
    "Anderson": ("chapters/01a_contraction.html#alg-anderson", "book/glossary.html#term-Anderson"),
    "vanilla DEQ": ("chapters/01a_contraction.html#asm-vanilla-init", "book/glossary.html#term-v"),
    "Theorem 3.12": ("chapters/03a_linear_rates.html#thm-pl-star",),
    "SAM": ("chapters/05b_selection.html", "book/glossary.html#term-SAM"),
    "prox": ("chapters/01b_monotone.html#", "book/glossary.html#term-prox"),
    "learning rate": ("chapters/00_depth_to_equilibrium.html#", "chapters/03"),
    "does not converge": ("chapters/07b_in_use.html#", "chapters/00_depth_to_equilibrium.html#"),
    "JFB": ("chapters/02_implicit_gradients.html#", "book/glossary.html#term-JFB"),
    "circular law": ("chapters/01a_contraction.html#", "book/glossary.html#term-circular-law"),
    "monotone DEQ": ("chapters/01b_monotone.html", "book/glossary.html#term-monotone"),
}


def first(browser: Browser, address: str, query: str, number: int = 3) -> list[str]:
    page = browser.new_page()
    page.goto(f"{address}/search.html?q={quote(query)}")
    page.wait_for_function("document.getElementById('search-results').hidden", timeout=20_000)
    found = page.eval_on_selector_all(
        ".deq-found > li > a", "all => all.map(a => a.pathname+a.hash)"
    )
    page.close()
    return [one.lstrip("/") for one in found[:number]]


@pytest.mark.parametrize("query", QUERIES)
def test_the_right_place_is_among_the_first_three(
    browser: Browser, address: str, query: str
) -> None:
    found = first(browser, address, query)
    assert any(one.startswith(QUERIES[query]) for one in found), found


def test_every_numbered_statement_is_found_by_its_number(browser: Browser, address: str) -> None:
    text = (require_site() / "_static" / "titles.js").read_text(encoding="utf-8")
    titles = json.loads(text.removeprefix("window.deqTitles=").rstrip().removesuffix(";"))
    theorems = [row for row in titles if row[0] in {"theorem", "lemma", "exercise"}]
    for _, title, _, url in theorems[::20]:
        number = " ".join(title.split()[:2])
        assert first(browser, address, number, 1) == [url]


def test_no_result_shows_tex(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/search.html?q=contraction")
    page.wait_for_function("document.getElementById('search-results').hidden", timeout=20_000)
    text = page.inner_text(".deq-found")
    page.close()
    assert "\\" not in text
    assert "$" not in text


def test_sphinx_answers_where_the_index_cannot_be_loaded(browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{(require_site() / 'search.html').as_uri()}?q=Anderson")
    page.wait_for_selector("#search-results li", timeout=20_000)
    assert page.is_visible("#search-results")
    assert "Anderson" in page.inner_text(".deq-found > li >> nth=0")
    page.close()
