"""The built site without a browser: links, alternative texts, weight, nothing from elsewhere."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup, Tag
from built_site import toc_pages

PAGES = toc_pages()
PAGE_BUDGET = 2_500_000
FIGURE_BUDGET = 150_000
#: Where a browser fetches from by itself, as opposed to links that a reader may follow.
FETCHED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "source": "srcset",
    "iframe": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
#: Relations of a <link> that only state something and fetch nothing.
STATED = {"canonical", "search", "index", "next", "prev", "author"}


@lru_cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@lru_cache
def anchors(path: Path) -> frozenset[str]:
    return frozenset(tag.get("id") or tag["name"] for tag in soup(path).select("[id], a[name]"))


def page_file(site: Path, page: str) -> Path:
    return site / f"{page}.html"


def is_local(address: str) -> bool:
    parts = urlsplit(address)
    return not parts.scheme and not parts.netloc


def fetched(page: BeautifulSoup) -> list[tuple[Tag, str]]:
    """Return what a browser loads on its own for this page, with the element that asks."""
    found = []
    for name, attribute in FETCHED.items():
        for tag in page.find_all(name):
            address = tag.get(attribute)
            if address and not (name == "link" and set(tag.get("rel") or []) & STATED):
                found.append((tag, address))
    return found


def link_fault(here: Path, link: str) -> str:
    """Say what is wrong with a link of the page `here`; nothing is, if the answer is empty."""
    parts = urlsplit(link)
    target = (here.parent / unquote(parts.path)).resolve() if parts.path else here
    if not target.is_file():
        return "no such file"
    if parts.fragment and target.suffix == ".html":
        return "" if unquote(parts.fragment) in anchors(target) else "no such anchor"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_page_was_built(site: Path, page: str) -> None:
    assert page_file(site, page).is_file(), f"{page} of _toc.yml is not in the built site"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_resolve(site: Path, page: str) -> None:
    here = page_file(site, page)
    links = {tag["href"] for tag in soup(here).select("a[href]") if is_local(tag["href"])}
    broken = {link: fault for link in sorted(links) if (fault := link_fault(here, link))}
    assert not broken, f"{page}: {broken}"


@pytest.mark.parametrize("page", PAGES)
def test_files_of_the_page_exist(site: Path, page: str) -> None:
    here = page_file(site, page)
    wanted = [address for _, address in fetched(soup(here)) if is_local(address)]
    missing = [
        address
        for address in wanted
        if not (here.parent / unquote(urlsplit(address).path)).is_file()
    ]
    assert not missing, f"{page} asks for files that were not built: {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_images_have_alternative_text(site: Path, page: str) -> None:
    images = soup(page_file(site, page)).find_all("img")
    silent = [str(i)[:120] for i in images if not (i.get("alt") or "").strip()]
    assert not silent, f"{page}: no alternative text for {silent}"
    # Without one of its own, a figure gets the address of its file as text.
    named = [i["alt"] for i in images if re.search(r"\.(svg|png|webp|jpe?g)$", i["alt"])]
    assert not named, f"{page}: a file's name is no alternative text: {named}; use `:alt:`"


@pytest.mark.parametrize("page", PAGES)
def test_figures_have_a_caption(site: Path, page: str) -> None:
    figures = soup(page_file(site, page)).select("article figure:not(.deq-explore)")
    bare = [str(f)[:120] for f in figures if f.find("figcaption") is None]
    assert not bare, f"{page}: no caption for {bare}"


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_loaded_from_another_host(site: Path, page: str) -> None:
    foreign = [
        address
        for _, address in fetched(soup(page_file(site, page)))
        if not is_local(address) and urlsplit(address).scheme != "data"
    ]
    assert not foreign, f"{page} loads {foreign}; the book has to work offline"


def test_styles_load_nothing_from_another_host(site: Path) -> None:
    foreign = {
        path.relative_to(site).as_posix(): found
        for path in site.rglob("*.css")
        if (
            found := re.findall(
                r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\"')]+", path.read_text()
            )
        )
    }
    assert not foreign


@pytest.mark.parametrize("page", PAGES)
def test_weight(site: Path, page: str) -> None:
    here = page_file(site, page)
    parsed = soup(here)
    images = {
        (here.parent / unquote(image["src"])).resolve()
        for image in parsed.find_all("img")
        if is_local(image["src"])
    }
    heavy = {i.name: i.stat().st_size for i in images if i.stat().st_size > FIGURE_BUDGET}
    assert not heavy, f"{page}: figures above {FIGURE_BUDGET} bytes: {heavy}"
    total = here.stat().st_size + sum(image.stat().st_size for image in images)
    assert total <= PAGE_BUDGET, f"{page} weighs {total} bytes, more than {PAGE_BUDGET}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("chapters/")])
def test_numbers_of_sections_and_theorems_begin_with_the_number_in_the_file_name(
    site: Path, page: str
) -> None:
    chapter = int(Path(page).name[:2])
    body = soup(page_file(site, page)).select_one("article")
    assert body is not None
    numbers = [tag.text for tag in body.select("h1 .section-number, h2 .section-number")]
    numbers += [tag.text.split()[1] for tag in body.select(".caption-number") if tag.text.strip()]
    firsts = {number.strip().split(".")[0] for number in numbers}
    assert firsts == {str(chapter)}, f"{page} is numbered {sorted(firsts)}"


@pytest.mark.parametrize("page", PAGES)
def test_ids_are_unique(site: Path, page: str) -> None:
    ids = [tag["id"] for tag in soup(page_file(site, page)).select("article [id]")]
    assert len(ids) == len(set(ids)), f"{page}: {sorted({i for i in ids if ids.count(i) > 1})}"


@pytest.mark.parametrize("page", PAGES)
def test_titles_of_boxes_have_no_brackets_in_brackets(site: Path, page: str) -> None:
    for title in soup(page_file(site, page)).select(".admonition-title"):
        words = title.get_text()
        assert not re.search(r"\([^()]*\((\w| )+\)\)", words), words
        for link in title.select("a"):
            assert link.get_text() == link.get_text().lstrip(), f"{words}: a space is underlined"


@pytest.mark.parametrize("page", PAGES)
def test_pasted_numbers_are_written_for_a_reader(site: Path, page: str) -> None:
    for number in soup(page_file(site, page)).select(".pasted-text"):
        assert not re.search(r"\de[+-]?\d|^-\d", number.get_text()), number


@pytest.mark.parametrize("page", PAGES)
def test_norms_keep_both_bars_in_tables(page: str) -> None:
    """In a row of a table \\| is one bar, also within a formula; a norm is \\lVert there."""
    source = Path(__file__).resolve().parents[2] / f"{page}.md"
    rows = [line for line in source.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    assert not [row for row in rows if re.search(r"\$[^$]*\\\|[^$]*\$", row)]
