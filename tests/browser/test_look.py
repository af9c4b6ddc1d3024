"""What a reader sees at a glance: room around formulas, lines that fit, lists that are no wall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from built_site import toc_pages
from chromium import skip_without_browser
from visits import settle_math, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
skip_without_browser()

CHAPTERS = [page for page in toc_pages() if page.startswith("chapters/")]
INDICES = ("genindex", "prf-prf", "py-modindex", "search")

#: Code and output that run off their box, the folded too.
OFF = """() => {
    document.querySelectorAll("article details").forEach(e => { e.open = true; });
    return [...document.querySelectorAll("article .cell pre")]
        .filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
        .map(e => `${e.scrollWidth} > ${e.clientWidth}: ${e.textContent.slice(0, 60)}`);
}"""

#: How much white stands above and below each displayed formula between two paragraphs.
ROOM = """() => [...document.querySelectorAll("article div.math")].flatMap(e => {
    const [before, after] = [e.previousElementSibling, e.nextElementSibling];
    const formula = e.querySelector("mjx-math")?.getBoundingClientRect();
    if (!formula?.height || !before?.matches("p") || !after?.matches("p")) return [];
    return [[formula.top - before.getBoundingClientRect().bottom,
        after.getBoundingClientRect().top - formula.bottom]];
})"""


@pytest.mark.parametrize("path", CHAPTERS)
def test_code_fits_its_box_on_a_desk(browser: Browser, address: str, path: str) -> None:
    with visit(browser, address, f"{path}.html") as seen:
        assert not seen.page.evaluate(OFF)


def test_a_formula_stands_in_the_middle_of_its_white(browser: Browser, address: str) -> None:
    with visit(browser, address, "chapters/04_ntk.html") as seen:
        settle_math(seen.page)
        rooms = seen.page.evaluate(ROOM)
        assert len(rooms) >= 4
        for above, below in rooms:
            assert abs(above - below) < 14, rooms
            assert min(above, below) > 8
            assert max(above, below) < 40


def test_folded_code_that_shows_nothing_is_a_line(browser: Browser, address: str) -> None:
    with visit(browser, address, "chapters/05b_selection.html") as seen:
        shadows = seen.page.evaluate(
            """() => [...document.querySelectorAll(
                ".cell:not(:has(.cell_output)) > details.above-input")]
                .map(e => getComputedStyle(e).boxShadow)"""
        )
        assert len(shadows) > 5
        assert set(shadows) == {"none"}


def test_an_entry_of_the_ledger_has_room_for_its_words(browser: Browser, address: str) -> None:
    with visit(browser, address, "book/ledger.html") as seen:
        page = seen.page
        assert not page.evaluate(
            """() => [...document.querySelectorAll(".deq-scroll")]
                .filter(e => e.scrollWidth > e.clientWidth + 1).length"""
        )
        narrow = page.evaluate(
            """() => [...document.querySelectorAll("table.deq-ledger tbody tr")]
                .flatMap(row => [row.cells[0], row.cells[3]])
                .filter(cell => cell.clientWidth < 250).length"""
        )
        assert narrow == 0
        # One that comes out in part says why, in a line of its own below the verdict.
        told = page.evaluate(
            """() => [...document.querySelectorAll("table.deq-ledger .deq-reason")].map(e => {
                const [at, verdict] = [e, e.parentElement.firstElementChild]
                    .map(one => one.getBoundingClientRect());
                return [at.width, at.top - verdict.bottom, verdict.width];
            })"""
        )
        assert len(told) > 10
        assert all(width > 250 and below > -4 for width, below, _ in told), told


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("path", INDICES)
def test_an_index_fits_the_screen(browser: Browser, address: str, path: str, size: str) -> None:
    with visit(browser, address, f"{path}.html", size) as seen:
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert seen.page.evaluate(wide) <= 1


def test_the_sign_of_the_search_field_is_not_on_its_words(browser: Browser, address: str) -> None:
    with visit(browser, address, "search.html") as seen:
        gap = seen.page.evaluate(
            """() => {
                const form = document.querySelector(".bd-search-container form.bd-search");
                const [sign, field] = [form.querySelector("svg"), form.querySelector("input")];
                return field.getBoundingClientRect().left
                    + parseFloat(getComputedStyle(field).paddingLeft)
                    - sign.getBoundingClientRect().right;
            }"""
        )
        assert gap > 2


def test_a_table_of_sentences_stands_upright_on_a_phone(browser: Browser, address: str) -> None:
    with visit(browser, address, "chapters/07b_in_use.html", "phone") as seen:
        page = seen.page
        settle_math(page)
        table = page.locator("table.deq-stack", has_text="NotConverged")
        assert table.count() == 1
        last = table.locator("tbody tr").first.locator("td").last
        place = last.bounding_box()
        assert place is not None
        assert 0 <= place["x"] < 60
        assert place["x"] + place["width"] <= 390
        assert last.locator(".deq-head").is_visible()
        page.set_viewport_size({"width": 1280, "height": 900})
        assert not last.locator(".deq-head").is_visible()


def test_the_way_to_the_next_page_is_not_cut_on_a_phone(browser: Browser, address: str) -> None:
    with visit(browser, address, "chapters/06a_kernel_machine.html", "phone") as seen:
        cut = seen.page.evaluate(
            """() => [...document.querySelectorAll(".prev-next-area *")]
                .filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth).length"""
        )
        assert cut == 0
        wide = seen.page.evaluate(
            """() => [...document.querySelectorAll(".prev-next-area .prev-next-info")]
                .map(e => e.clientWidth)"""
        )
        assert min(wide) > 140


@pytest.mark.parametrize("path", ["book/gallery", "book/benchmarks"])
def test_tables_of_a_run_lie_on_the_page_in_the_dark(
    browser: Browser, address: str, path: str
) -> None:
    with visit(browser, address, f"{path}.html") as seen:
        seen.page.emulate_media(color_scheme="dark")
        seen.page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
        sheets = seen.page.evaluate(
            """() => [...document.querySelectorAll(".text_html:has(table)")]
                .map(e => getComputedStyle(e).backgroundColor)"""
        )
        assert sheets
        assert set(sheets) == {"rgba(0, 0, 0, 0)"}


def test_on_a_phone_the_cells_of_a_rule_have_their_headings(browser: Browser, address: str) -> None:
    heads = """() => [...document.querySelectorAll("details .deq-stack .deq-head")].map(e => {
        e.closest("details").open = true;
        return e.getClientRects().length;
    })"""
    for size, shown in (("phone", 1), ("desktop", 0)):
        with visit(browser, address, "book/gallery.html", size) as seen:
            found = seen.page.evaluate(heads)
            assert len(found) > 30
            assert (min(found) > 0) == bool(shown)
