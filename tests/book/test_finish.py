"""The last hand on a page: minus signs, marks of exercises, tables for a phone, an index."""

from __future__ import annotations

import re
from pathlib import Path

import finish
import ledger
import pytest
from bs4 import BeautifulSoup
from built_site import toc_pages
from docutils import nodes

#: Where a hyphen before a digit is code, a label or an address.
WRITTEN = "pre, code, script, style, svg, .math, .cell_output, a.headerlink, a.external"
CHAPTERS = [page for page in toc_pages() if page.startswith("chapters/")]


def parsed(site: Path, page: str) -> BeautifulSoup:
    return BeautifulSoup((site / f"{page}.html").read_text(encoding="utf-8"), "html.parser")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-0.45, implicit layer only -0.50", "−0.45, implicit layer only −0.50"),
        ("from -1.01 to (-0.54)", "from −1.01 to (−0.54)"),
        ("pages 3-43, gao2022-E1, 1-Lipschitz, e-3", "pages 3-43, gao2022-E1, 1-Lipschitz, e-3"),
        ("--profile, 16-32-64, CIFAR-10", "--profile, 16-32-64, CIFAR-10"),
        ("a - 3", "a - 3"),
    ],
)
def test_a_negative_number_has_a_minus_sign(text: str, shown: str) -> None:
    assert finish.with_minus(text) == shown


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        (" (Near twins (medium))", " (Near twins, medium)"),
        ("(Which average? (hard))", "(Which average? Hard)"),
        (" Exercise 4.1 (R = 0 selects (open))", " Exercise 4.1 (R = 0 selects, open)"),
        ("Probes by hand (easy)", "Probes by hand, easy"),
        ("Exercise 4.4 (The kernel (ReLU))", "Exercise 4.4 (The kernel (ReLU))"),
    ],
)
def test_a_mark_stands_behind_a_comma(title: str, shown: str) -> None:
    assert finish.with_comma(title) == shown


def test_only_rows_of_sentences_are_stacked() -> None:
    sentence = "the iterate runs away and the quotient hides it"
    assert finish.is_wordy([["residual", sentence, sentence]])
    assert not finish.is_wordy([["residual", sentence]])  # two columns fit
    assert not finish.is_wordy([["0.5", "0.1", "1.0", "MNIST"]])
    assert not finish.is_wordy([])


def test_a_formula_becomes_nodes() -> None:
    found = ledger.formula_nodes("<i>L</i><sub><i>k</i>+1</sub> &lt; <code>gram_parts</code>")
    kinds = [nodes.emphasis, nodes.subscript, nodes.Text, nodes.literal]
    assert [type(one) for one in found] == kinds
    assert [one.astext() for one in found] == ["L", "k+1", " < ", "gram_parts"]


@pytest.mark.book
@pytest.mark.parametrize("page", CHAPTERS)
def test_no_number_on_a_page_has_a_hyphen_for_a_minus(site: Path, page: str) -> None:
    article = parsed(site, page).select_one("article")
    assert article is not None
    for junk in article.select(WRITTEN):
        junk.decompose()
    found = re.findall(r"[^\n]{0,30}(?<![\w.)\]’'*/-])-\d[^\n]{0,10}", article.get_text())
    assert not found, found


@pytest.mark.book
@pytest.mark.parametrize("page", CHAPTERS)
def test_titles_of_exercises_have_no_brackets_in_brackets(site: Path, page: str) -> None:
    boxes = parsed(site, page).select(":is(.exercise, .solution) > p.admonition-title")
    assert boxes
    for title in boxes:
        assert not re.search(r"\((easy|medium|hard|open)\)\)", title.get_text()), title.get_text()
    # The line below a link does not begin under a space.
    assert not [a for title in boxes for a in title.select("a") if a.get_text().startswith(" ")]


@pytest.mark.book
def test_the_ledger_sets_its_formulas(site: Path) -> None:
    page = parsed(site, "book/ledger")
    cells = page.select("table.deq-ledger tbody td:is(:nth-child(1), :nth-child(4), :nth-child(7))")
    assert len(cells) > 400
    assert sum(bool(cell.select("sub")) for cell in cells) > 50
    for cell in cells:
        for code in cell.select("code"):
            code.decompose()
    raw = [cell.get_text() for cell in cells if re.search(r"\w_\w|\^[\w{(]", cell.get_text())]
    assert not raw, raw


@pytest.mark.book
def test_a_claim_of_an_erratum_leads_to_its_row(site: Path) -> None:
    rows = {str(code["id"]) for code in parsed(site, "book/ledger").select("code.deq-claim-id")}
    names = parsed(site, "book/errata").select("table.deq-errata td:nth-child(4) code")
    links = [code.parent["href"] for code in names if code.parent and code.parent.name == "a"]
    assert len(links) == len(names) > 80
    assert {str(link).partition("#")[0] for link in links} == {"ledger.html"}
    assert {str(link).partition("#")[2] for link in links} <= rows


@pytest.mark.book
def test_the_index_of_statements_can_be_read(site: Path) -> None:
    page = parsed(site, "prf-prf")
    entries = [row.get_text(" ", strip=True) for row in page.select("table.indextable tr:has(a)")]
    assert len(entries) > 150
    kind = r"(Algorithm|Assumption|Corollary|Definition|Lemma|Observation|Proposition|Theorem)"
    for entry in entries:
        assert re.match(rf"{kind} \d\.\d+ \(.+\) (Page \d\.\d|Chapter \d)$", entry), entry
    assert not re.search(r"\b(thm|lem|prop|def)-|chapters/", page.select_one("article").get_text())  # type: ignore[union-attr]
    assert parsed(site, "book/map").select("article a[href$='prf-prf.html']")
