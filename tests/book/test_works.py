"""References and the table of executions, as a reader knows works and pages."""

from __future__ import annotations

import re
from pathlib import Path

import works
from bs4 import BeautifulSoup
from built_site import ROOT, toc_pages
from pybtex.database import Entry, Person

SOURCES = {"Gao and Gao, 2023", "Gao et al., 2022", "Ling et al., 2023", "Nguyen, 2022"}


def parsed(site: Path, page: str) -> BeautifulSoup:
    return BeautifulSoup((site / f"{page}.html").read_text(encoding="utf-8"), "html.parser")


def entry(year: str, *names: str) -> Entry:
    return Entry("article", {"year": year}, {"author": [Person(name) for name in names]})


def test_a_label_is_what_the_text_says() -> None:
    entries = [entry("1965", "Anderson, D."), entry("2023", "Gao, T.", "Gao, H.")]
    entries += [entry("2022", "El Ghaoui, L.", "Gu, F.", "Tsai, A.")]
    labels = list(works.AuthorYear().format_labels(entries))
    assert labels == ["Anderson, 1965", "Gao and Gao, 2023", "El Ghaoui et al., 2022"]


def test_works_that_share_author_and_year_are_told_apart() -> None:
    twice = [entry("2021", "Bai, S."), entry("2021", "Bai, S."), entry("2020", "Bai, S.")]
    labels = list(works.AuthorYear().format_labels(twice))
    assert labels == ["Bai, 2021a", "Bai, 2021b", "Bai, 2020"]


def test_the_five_sources_come_first_and_every_label_has_its_year(site: Path) -> None:
    lists = [
        [
            " ".join(one.get_text().strip("[] \n").split())
            for one in section.select(".citation .label")
        ]
        for section in parsed(site, "book/references").select("article section section")
    ]
    sources, others = lists
    assert len(sources) == 5
    assert set(sources) > SOURCES
    written = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    assert len(sources) + len(others) == len(re.findall(r"^@", written, re.MULTILINE))
    assert all(re.search(r", \d{4}[a-h]?$", label) for label in [*sources, *others])


#: A thesis that is not on the net, proceedings of 1987, and an article of 1955 in Russian.
WITHOUT_ADDRESS = {"Nguyen, 2022", "Almeida, 1987", "Krasnosel'skii, 1955"}


def test_every_reference_leads_somewhere(site: Path) -> None:
    entries = parsed(site, "book/references").select("div.citation")
    links = {
        " ".join(one.select_one(".label").get_text().strip("[] \n").split()): [  # type: ignore[union-attr]
            a["href"] for a in one.select("a.reference.external")
        ]
        for one in entries
    }
    assert {label for label, found in links.items() if not found} == WITHOUT_ADDRESS
    assert all(str(a).startswith("https://") for found in links.values() for a in found)


def test_a_year_is_told_once(site: Path) -> None:
    for one in parsed(site, "book/references").select("div.citation p"):
        assert not re.search(r"\b((?:19|20)\d\d), \1\.", one.get_text()), one.get_text()


def test_what_the_text_cites_is_a_label_of_the_list(site: Path) -> None:
    labels = {
        " ".join(one.get_text().strip("[] \n").split())
        for one in parsed(site, "book/references").select(".citation .label")
    }
    for page in ("chapters/01b_monotone", "chapters/07b_in_use"):
        cited = parsed(site, page).select("article .bibtex-citation a")
        texts = {" ".join(a.get_text().replace(" ,", ",").split()) for a in cited}
        years = {text for text in texts if re.search(r", \d{4}$", text)}
        assert years
        assert years <= labels | {label[:-1] for label in labels}, years - labels


def test_the_table_of_executions_names_pages_by_title(site: Path) -> None:
    rows = parsed(site, "book/status").select("article table tbody tr")
    chapters = sum(page.startswith("chapters/") for page in toc_pages())
    assert len(rows) == chapters + 2  # the gallery, the benchmarks
    names = [row.td.get_text(strip=True) for row in rows]  # type: ignore[union-attr]
    numbered = [name for name in names if re.match(r"\d(\.\d)?\. [A-Z]", name)]
    assert len(numbered) == chapters, names
