"""The book on paper: how the site becomes one page, and what the printed files hold.

The second half looks at the files of `make pdf`. Where there are none, or older ones than the site,
it is skipped, unless DEQBOOK_REQUIRE_PDF is set.
"""

from __future__ import annotations

import base64
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import paper
import pdf_offer
import printing
import pytest
import yaml
from bs4 import BeautifulSoup, Tag
from built_site import ROOT, require_site
from chromium import require_browser
from hypothesis import given
from hypothesis import strategies as st
from paper import Entry, Imprint, PaperError
from pypdf import PdfReader, PdfWriter

from deqbook.cli import main, pdf
from deqbook.cli.browser import FLAGS

STATIC = ROOT / "book" / "_static"
IMPRINT = Imprint("A book", "Its authors", "1.2", "3 May 2026", "Free.")
PAGES = frozenset({"book/index", "chapters/01_a", "book/notes"})


def parsed(html: str) -> Tag:
    tag = BeautifulSoup(html, "html.parser").find()
    assert isinstance(tag, Tag)
    return tag


# --- Order, anchors, links ----------------------------------------------------------------------


def test_pages_follow_the_table_of_contents() -> None:
    inner = [{"file": "b", "sections": [{"file": "c"}]}, {"file": "d"}]
    toc = {"root": "a", "parts": [{"caption": "One", "chapters": inner}]}
    assert paper.entries(toc) == [Entry("a", 0), Entry("b", 0, "One"), Entry("c", 1), Entry("d", 0)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("#lem-x", "#chapters/01_a:lem-x"),
        ("../book/notes.html", "#book/notes"),
        ("../book/notes.html#y", "#book/notes:y"),
        ("01_a.html#z", "#chapters/01_a:z"),
        ("https://example.org/x#y", "https://example.org/x#y"),
    ],
)
def test_links_lead_to_places_of_the_book(before: str, after: str) -> None:
    article = parsed(f'<div><a href="{before}">here</a></div>')
    paper.relink(article, "chapters/01_a", PAGES)
    assert article.a["href"] == after  # type: ignore[index]


@pytest.mark.parametrize("address", ["../genindex.html", "../notebooks/01_a.ipynb", "02_b.html"])
def test_a_link_to_what_is_not_in_the_book_becomes_text(address: str) -> None:
    article = parsed(f'<div>see <a href="{address}">there</a></div>')
    paper.relink(article, "chapters/01_a", PAGES)
    assert article.find("a") is None
    assert article.get_text() == "see there"


@pytest.mark.parametrize("address", ["file:///tmp/x.html", "mailto:a@b", "//host/x"])
def test_a_link_that_paper_cannot_follow_is_refused(address: str) -> None:
    with pytest.raises(PaperError, match="cannot follow"):
        paper.relink(parsed(f'<div><a href="{address}">x</a></div>'), "book/index", PAGES)


def test_headings_sink_and_keep_their_numbers() -> None:
    article = parsed("<div><h1><span>1.2. </span>A</h1><h2>1.2.1. B</h2></div>")
    paper.sink_headings(article, 1)
    assert [(t.name, t.get_text()) for t in article.find_all(["h1", "h2", "h3"])] == [
        ("h2", "1.2. A"),
        ("h3", "1.2.1. B"),
    ]


# --- What is folded, what moves -----------------------------------------------------------------


def test_folded_code_is_left_out_and_proofs_are_open() -> None:
    article = parsed(
        '<div><details class="hide above-input"><summary>Show</summary><pre>secret</pre></details>'
        '<details class="deq-proof"><summary>Proof</summary><p>Obvious.</p></details>'
        '<div class="cell"><div> </div></div><h1>T<a class="headerlink">#</a></h1></div>'
    )
    paper.unfold(article)
    assert article.get_text() == "ProofObvious.T"
    assert not article.find(["details", "summary"])
    assert not article.select(".cell")


def test_a_panel_is_the_line_of_its_verdict_but_the_one_explained_is_open() -> None:
    panel = (
        '<details class="deq-evidence"><summary>✓ holds</summary>'
        "<table><tr><td>0.5</td></tr></table></details>"
    )
    article = parsed(f'<div>{panel}<section id="{paper.EXPLAINED}">{panel}</section></div>')
    paper.unfold(article)
    first, second = article.select("div.deq-evidence")
    assert first.get_text() == "✓ holds"
    assert second.get_text() == "✓ holds0.5"


def test_the_section_that_explains_a_panel_is_where_paper_looks_for_it(site: Path) -> None:
    page = parsed((site / "chapters" / "01a_contraction.html").read_text(encoding="utf-8"))
    assert page.select(f"#{paper.EXPLAINED} details.deq-evidence")


def slider(count: int = 7, start: int = 3, width: int = 400) -> str:
    frames = [
        {"src": f"data:image/webp;base64,{k}", "alt": f"at {k}", "text": str(k)}
        for k in range(count)
    ]
    frames[start]["src"] = ""
    return (
        f'<figure class="deq-explore"><img src="data:image/webp;base64,{start}" width="{width}" '
        f'height="300"/><label>weight</label><input value="{start}"/>'
        f"<script>\n  const frames = {json.dumps(frames)};\n</script></figure>"
    )


def test_a_slider_shows_frames_and_says_what_it_does_on_the_site() -> None:
    figure = parsed(slider())
    paper.still(figure)
    images = figure.find_all("img")
    assert [i["alt"] for i in images] == ["at 0", "at 1", "at 3", "at 6"]
    assert images[2]["src"] == "data:image/webp;base64,3"
    assert "7 frames, weight: 0, 1, 2, 3, 4, 5, 6." in figure.get_text()
    assert not figure.find(["input", "label", "script"])


def test_wide_frames_are_fewer() -> None:
    figure = parsed(slider(width=900))
    paper.still(figure)
    assert len(figure.find_all("img")) == paper.FRAMES[True]
    assert "wide" in str(figure["class"])


def test_a_strange_slider_is_refused() -> None:
    with pytest.raises(PaperError, match="explore"):
        paper.still(parsed('<figure class="deq-explore"><img src="x"/></figure>'))


@given(st.data())
def test_frames_are_spread_and_hold_both_ends_and_the_start(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    start, limit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(3, 6))
    chosen = paper.spread(count, start, limit)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, limit)
    assert {0, start, count - 1} <= set(chosen)


EXERCISE = (
    '<div class="exercise" id="ex-a"><p class="admonition-title">Exercise 1.1</p><p>Why?</p></div>'
    '<div class="solution" id="sol-a"><p class="admonition-title">Solution to'
    '<a href="#ex-a"> Exercise 1.1</a></p><p>Because.</p></div>'
)


def test_solutions_leave_the_text_and_are_linked_both_ways() -> None:
    article = parsed(f"<div>{EXERCISE}</div>")
    (solution,) = paper.take_solutions(article, "p")
    assert "Because" not in article.get_text()
    forth, back = article.select_one("#ex-a a"), solution.select_one("a")
    assert forth is not None
    assert forth["href"] == "#sol-a"
    assert back is not None
    assert back["href"] == "#ex-a"
    assert solution.get_text().startswith("Solution to Exercise 1.1 ")
    assert [t["data-of"] for t in (*article.select(".page"), *solution.select(".page"))] == [
        "sol-a",
        "ex-a",
    ]


def test_a_solution_without_its_exercise_is_refused() -> None:
    with pytest.raises(PaperError, match="belongs to no exercise"):
        paper.take_solutions(parsed(f"<div>{EXERCISE.replace('ex-a', 'ex-b', 1)}</div>"), "p")


def test_page_numbers_are_filled_in_and_none_is_missing() -> None:
    html = paper.page_link("a:b", "there")
    assert paper.fill(html, {"a:b": 7}).endswith('data-of="a:b">7</span></a>')
    with pytest.raises(PaperError, match="no page number for a:b"):
        paper.fill(html, {"a:c": 7})


# --- A small book -------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Make a root with a built site of three pages."""
    toc = {
        "root": "book/index",
        "parts": [{"chapters": [{"file": "chapters/01_a"}, {"file": "book/notes"}]}],
    }
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump(toc))
    pages = {
        "book/index": '<h1>A book</h1><a href="../chapters/01_a.html#x">to x</a>'
        "<!-- deq-pdf --><!-- /deq-pdf -->",
        "chapters/01_a": '<h1>1. A</h1><section id="s"><h2>1.1. S</h2></section><p id="x">x</p>'
        f"{EXERCISE}{slider()}",
        "book/notes": '<h1>Notes</h1><p id="x">also x</p>',
    }
    menu = '<div class="dropdown dropdown-download-buttons">\n<ul><li>.md</li></ul></div>'
    for name, body in pages.items():
        file = tmp_path / "_build" / "html" / f"{name}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{menu}<article class="bd-article">{body}</article>')
    for name in pdf_offer.MAKERS:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path


def site_of(root: Path) -> Path:
    return root / "_build" / "html"


def test_the_book_is_one_page_with_solutions_at_its_end(small: Path) -> None:
    whole = paper.assemble(small, site_of(small), IMPRINT)
    sheets = whole.select(".sheet")
    names = [sheet.get("id") for sheet in sheets]
    assert names == [None, "contents", "book/index", "chapters/01_a", "book/notes", "solutions"]
    assert [h.get_text() for h in whole.find_all("h1")[1:]] == [
        "Preface",
        "1. A",
        "Notes",
        "Solutions of the exercises",
    ]
    assert ["Because" in sheet.get_text() for sheet in sheets] == [False] * 5 + [True]
    assert "Version 1.2, 3 May 2026" in sheets[0].get_text()
    assert [e.get_text() for e in whole.select(".entry")] == [
        "Preface",
        "1. A",
        "1.1. S",
        "Notes",
        "Solutions of the exercises",
        "1. A",
    ]
    style = whole.find("style")
    assert style is not None
    assert '@page on-chapters-01_a { @top-left { content: "1. A" } }' in style.get_text()


def test_a_link_that_leads_nowhere_stops_the_printing(small: Path) -> None:
    page = site_of(small) / "book" / "notes.html"
    page.write_text(page.read_text().replace("also x", '<a href="../chapters/01_a.html#no">x</a>'))
    with pytest.raises(PaperError, match="lead nowhere: chapters/01_a:no"):
        paper.assemble(small, site_of(small), IMPRINT)


def test_frames_become_files(small: Path, tmp_path: Path) -> None:
    code = base64.b64encode(b"picture").decode()
    html = BeautifulSoup(f'<img src="data:image/webp;base64,{code}"/>', "html.parser")
    paper.take_frames(html, tmp_path / "frames")
    assert html.img is not None
    assert html.img["src"] == "frames/000.webp"
    assert (tmp_path / "frames" / "000.webp").read_bytes() == b"picture"


# --- The style and the printer ------------------------------------------------------------------


def test_nothing_on_paper_scrolls_or_is_cut() -> None:
    css = (STATIC / "paper.css").read_text(encoding="utf-8")
    assert not re.findall(r"overflow(?:-[xy])?:\s*\w+|prefers-color-scheme", css)
    assert "color-scheme: light" in css
    assert "white-space: pre-wrap" in css


def test_all_papers_have_the_same_width_of_text() -> None:
    css = (STATIC / "paper.css").read_text(encoding="utf-8")
    (width,) = re.findall(r"body \{\n  width: ([\d.]+)mm", css)
    for size, total in {"a4": 210.0, "letter": 215.9}.items():
        side = float(printing.MARGINS[size].split()[1].removesuffix("mm"))
        assert total - 2 * side == pytest.approx(float(width))


def test_every_font_is_there(tmp_path: Path) -> None:
    rules = printing.font_faces(tmp_path / "fonts")
    assert (
        rules.count("@font-face")
        == len(printing.FONTS)
        == len(list((tmp_path / "fonts").iterdir()))
    )


def test_without_a_browser_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(PaperError, match=r"no browser found .*chromium.*DEQBOOK_BROWSER"):
        printing.find_browser({})
    with pytest.raises(PaperError, match="names nothing-here"):
        printing.find_browser({"DEQBOOK_BROWSER": "nothing-here"})


def test_a_named_browser_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/programs/{name}")
    assert printing.find_browser({"DEQBOOK_BROWSER": "mine"}) == "/programs/mine"
    assert printing.find_browser({}) == "/programs/chromium"


def test_bookmarks_get_the_titles_of_the_headings() -> None:
    writer = PdfWriter()
    writer.add_blank_page(width=100, height=100)
    first = writer.add_outline_item(title="1. 1. AA", page_number=0)
    writer.add_outline_item(title="Twice Twice", page_number=0, parent=first)
    writer.add_outline_item(title="C", page_number=0)
    html = BeautifulSoup(
        r"<h1>1. A</h1><h2>The edge at <span>\(2\sqrt m\)</span></h2><h1>C</h1>", "html.parser"
    )
    printing.name_bookmarks(writer, paper.headings(html))
    assert list(bookmarks(writer.outline)) == [(0, "1. A"), (1, "The edge at 2√m"), (0, "C")]
    with pytest.raises(PaperError, match="3 bookmarks for 2 headings"):
        printing.name_bookmarks(writer, ["A", "B"])


@pytest.mark.parametrize("fault", list(printing.FAULTS))
def test_what_does_not_fit_or_load_is_an_error(fault: str) -> None:
    clean: dict[str, Any] = {name: [] for name in printing.FAULTS}
    printing.complain(clean)
    with pytest.raises(PaperError, match=r"1 faults .*\n.*the thing"):
        printing.complain({**clean, fault: ["the thing"]})


def test_the_date_is_that_of_the_sources(tmp_path: Path) -> None:
    moment = printing.source_moment(tmp_path, {"SOURCE_DATE_EPOCH": "86400"})
    assert moment is not None
    assert printing.imprint_of(ROOT, moment).date == "2 January 1970"
    assert printing.source_moment(tmp_path, {}) is None
    assert printing.imprint_of(ROOT, None).date == ""


def test_without_pypdf_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["pdf"]) == 2
    assert "make pdf" in capsys.readouterr().err


def test_the_command_knows_every_paper() -> None:
    assert set(pdf.PAPERS["both"]) == set(printing.MARGINS) == set(pdf_offer.PAPERS)


# --- What the site offers -----------------------------------------------------------------------


def printed(root: Path, *sizes: str) -> Path:
    """Pretend that the site of `root` was printed."""
    work = root / "_build" / "pdf"
    work.mkdir(exist_ok=True)
    for size in sizes:
        pdf_offer.file(work, size).write_bytes(b"%PDF")
        pdf_offer.remember(work, size, pdf_offer.digest(root, site_of(root)))
    return work


def offers(root: Path) -> dict[str, list[str]]:
    found = {}
    for page in sorted(site_of(root).rglob("*.html")):
        links = BeautifulSoup(page.read_text(), "html.parser").select('a[href$=".pdf"]')
        assert all((page.parent / str(a["href"])).is_file() for a in links)
        found[page.relative_to(site_of(root)).as_posix()] = [str(a["href"]) for a in links]
    return found


def test_the_site_offers_what_was_printed_from_it_and_nothing_older(small: Path) -> None:
    before = {p: p.read_text() for p in site_of(small).rglob("*.html")}
    work = printed(small, "a4")
    for _ in range(2):  # once more changes nothing
        assert pdf_offer.offer(small, site_of(small), work) == ["a4"]
        assert offers(small) == {
            "book/index.html": ["../pdf/deqbook-a4.pdf"] * 2,
            "book/notes.html": ["../pdf/deqbook-a4.pdf"],
            "chapters/01_a.html": ["../pdf/deqbook-a4.pdf"],
        }
    page = site_of(small) / "chapters" / "01_a.html"
    page.write_text(page.read_text().replace("Why?", "Why not?"))
    assert pdf_offer.offer(small, site_of(small), work) == []
    assert not any(offers(small).values())
    assert not (site_of(small) / "pdf").exists()
    page.write_text(page.read_text().replace("Why not?", "Why?"))
    assert {p: p.read_text() for p in before} == before


@pytest.mark.parametrize("maker", pdf_offer.MAKERS)
def test_a_change_of_the_style_makes_a_file_old(small: Path, maker: str) -> None:
    work = printed(small, "letter")
    assert pdf_offer.offer(small, site_of(small), work) == ["letter"]
    file = small / maker
    file.write_text(file.read_text() + "\n# changed\n")
    assert pdf_offer.offer(small, site_of(small), work) == []


def test_the_home_page_has_a_place_for_the_offer() -> None:
    assert pdf_offer.PLACE.search((ROOT / "book" / "index.md").read_text(encoding="utf-8"))


def test_the_built_site_offers_no_other_file_than_it_has(site: Path) -> None:
    home = BeautifulSoup((site / "book" / "index.html").read_text("utf-8"), "html.parser")
    linked = {str(a["href"]).rpartition("/")[2] for a in home.select('a[href$=".pdf"]')}
    assert linked == {file.name for file in (site / "pdf").glob("*.pdf")}


# --- The printed files --------------------------------------------------------------------------

WORK = ROOT / "_build" / "pdf"
LARGEST = 25_000_000


def plain(text: str) -> str:
    """Return a text without spaces, whose places differ, and with each letter as itself."""
    return re.sub(r"\s", "", unicodedata.normalize("NFKC", text))


@lru_cache
def reader(path: Path) -> PdfReader:
    return PdfReader(path)


@lru_cache
def texts(path: Path) -> list[str]:
    """Return the text of each page as `plain` does."""
    return [plain(page.extract_text()) for page in reader(path).pages]


@lru_cache
def articles() -> dict[str, Tag]:
    """Return the pages of the site, in the order of the book."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    found = {}
    for entry in paper.entries(toc):
        html = (require_site() / f"{entry.name}.html").read_text(encoding="utf-8")
        article = paper.read_article(html)
        for link in article.select(".headerlink"):
            link.decompose()
        found[entry.name] = article
    return found


@pytest.fixture(scope="module", params=list(printing.MARGINS))
def book(request: pytest.FixtureRequest, site: Path) -> Path:
    """Return the printed book of the site; without one there is nothing to test here."""
    size = str(request.param)
    path = pdf_offer.file(WORK, size)
    if not pdf_offer.is_fresh(WORK, size, pdf_offer.digest(ROOT, site)):
        state = "older than the site" if path.is_file() else "not there"
        reason = f"{path.relative_to(ROOT)} is {state}; `make pdf` prints it"
        if os.environ.get("DEQBOOK_REQUIRE_PDF"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.mark.pdf
def test_size_and_format(book: Path) -> None:
    assert book.stat().st_size <= LARGEST
    sides = {"a4": (595, 842), "letter": (612, 792)}[book.stem.rpartition("-")[2]]
    boxes = {(round(p.mediabox.width), round(p.mediabox.height)) for p in reader(book).pages}
    assert boxes == {sides}


@pytest.mark.pdf
def test_type_has_its_size(book: Path) -> None:
    """A page with something too wide on it would make the browser shrink all of them."""
    sizes: Counter[float] = Counter()

    def visit(text: str, cm: list[float], tm: list[float], font: Any, size: float) -> None:
        sizes[round(abs(size * tm[0] * cm[0]), 1)] += len(text.strip())

    for page in reader(book).pages[8:40:4]:
        page.extract_text(visitor_text=visit)
    assert sizes.most_common(1)[0][0] == pytest.approx(10.5, abs=0.1)


@pytest.mark.pdf
def test_metadata(book: Path) -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    info = reader(book).metadata
    assert info is not None
    assert (info.title, info.author) == (config["title"], config["author"])
    assert reader(book).root_object["/Lang"] == "en"


def bookmarks(items: Any, depth: int = 0) -> Iterator[tuple[int, str]]:
    for item in items:
        if isinstance(item, list):
            yield from bookmarks(item, depth + 1)
        else:
            yield depth, str(item.title)


@pytest.mark.pdf
def test_bookmarks_are_the_sections_of_the_site_with_their_numbers(book: Path) -> None:
    found = list(bookmarks(reader(book).outline))
    wanted = [
        heading
        for article in articles().values()
        for heading in article.find_all(re.compile(r"^h[1-6]$"))
    ]
    groups = [name for name, article in articles().items() if article.select(".solution")]
    told = [plain(title) for _, title in found]
    assert told[:2] == ["Contents", "Preface"]
    assert len(told) == 1 + len(wanted) + 1 + len(groups)
    for title, heading in zip(told[2:], wanted[1:]):
        if not heading.select(".math"):
            assert title == plain(heading.get_text())
        else:
            words = re.split(r"\\\(.*?\\\)", heading.get_text())
            assert all(plain(word) in title for word in words)
            assert "\\" not in title


@pytest.mark.pdf
def test_every_number_of_the_site_is_printed(book: Path) -> None:
    whole = "".join(texts(book))
    numbers = [
        plain(tag.get_text())
        for article in articles().values()
        for tag in article.select(".caption-number, .section-number, .eqno")
    ]
    assert len(numbers) > 300
    assert [n for n in numbers if n not in whole] == []


@pytest.mark.pdf
def test_a_theorem_and_its_words_stand_together(book: Path) -> None:
    """Numbers are equal one by one, not only as a set: each box begins with its own title."""
    whole = "".join(texts(book))
    for article in articles().values():
        for title in article.select("div.proof > .admonition-title, .exercise > .admonition-title"):
            if not title.select(".math"):
                assert plain(title.get_text()) in whole


@pytest.mark.pdf
def test_links_stay_in_the_book_or_lead_to_the_web(book: Path) -> None:
    names = reader(book).named_destinations
    inside, outside = 0, set()
    for page in reader(book).pages:
        for annotation in page.get("/Annots") or []:
            link = annotation.get_object()
            action = link.get("/A", {})
            if "/URI" in action:
                outside.add(str(action["/URI"]))
            else:
                target = link.get("/Dest", action.get("/D"))
                assert target in names or not isinstance(target, str)
                inside += 1
    assert all(address.startswith(("http://", "https://")) for address in outside), outside
    wanted = sum(
        not str(link["href"]).startswith("http")
        for article in articles().values()
        for link in article.select("a[href]")
        if not link.find_parent("details", class_="above-input")
    )
    assert inside >= wanted


@pytest.mark.pdf
def test_no_path_of_the_machine_is_in_the_file(book: Path) -> None:
    raw = book.read_bytes()
    assert b"file://" not in raw
    assert str(ROOT).encode() not in raw


@pytest.mark.pdf
def test_solutions_stand_in_the_appendix_only_and_are_linked(book: Path) -> None:
    numbers = printing.page_numbers(reader(book))
    first = numbers[paper.SOLUTIONS]
    solutions = [
        (paper.anchor(name, str(s["id"])), paper.anchor(name, str(s.select_one("a")["href"])[1:]))  # type: ignore[index]
        for name, article in articles().items()
        for s in article.select(".solution")
    ]
    assert len(solutions) > 60
    assert all(numbers[solution] >= first > numbers[exercise] for solution, exercise in solutions)
    where = [
        k + 1 for k, text in enumerate(texts(book)) for _ in re.findall("SolutiontoExercise", text)
    ]
    assert len(where) == len(solutions)
    assert min(where) >= first


@pytest.mark.pdf
def test_the_contents_name_the_right_pages(book: Path) -> None:
    numbers = printing.page_numbers(reader(book))
    start, end = 2, numbers["book/index"]
    contents = "".join(texts(book)[start - 1 : end - 1])
    for name, article in list(articles().items())[1:]:
        title = plain(article.find("h1").get_text())  # type: ignore[union-attr]
        assert f"{title}{numbers[name]}" in contents
        assert title in texts(book)[numbers[name] - 1]


@pytest.mark.pdf
@pytest.mark.browser
def test_nothing_is_wider_than_the_text(book: Path) -> None:
    from playwright.sync_api import sync_playwright

    page_file = WORK / "work" / f"{book.stem.rpartition('-')[2]}.html"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=require_browser(), args=list(FLAGS))
        page = running.new_page(viewport={"width": 612, "height": 900})
        page.emulate_media(media="print")
        page.goto(page_file.as_uri())
        wide = page.evaluate(
            """() => [...document.body.querySelectorAll("*")]
            .filter((e) => e.getBoundingClientRect().right > 614
              || (getComputedStyle(e).overflowX !== "visible" && !e.closest("mjx-container")
                && e.scrollWidth > e.clientWidth + 1))
            .map((e) => e.outerHTML.slice(0, 200))"""
        )
        running.close()
    assert wide == []
