"""Search that finds places: sections, theorems, exercises, terms, names of the package, claims.

When a build is done its pages are cut into places, each with its own anchor, and two things are
written for the search page. A list of all titles (``_static/titles.js``), which works from a file
too. And, by pagefind, an index of all words (``pagefind/``), which asks for a server. Where that
cannot be loaded, Sphinx's own search answers.

A third thing is for all pages: what statements, terms and numbered equations say
(``_static/previews.js``), which a link shows when it is pointed at.
"""

from __future__ import annotations

import hashlib
import html
import json
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, NavigableString, Tag
from docutils import nodes
from pylatexenc.latex2text import LatexNodes2Text
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging

logger = logging.getLogger(__name__)

TITLES, PREVIEWS = "_static/titles.js", "_static/previews.js"
INDEX, KEPT = "pagefind", "places.pickle"
#: Pages with nothing to find.
EMPTY = {"genindex", "search", "py-modindex", "prf-prf"}
#: What is no text of a place: anchors, buttons, output, drawings.
BULK = (
    "a.headerlink, script, style, svg, .cell_output, .deq-evidence, .deq-head, .deq-map, "
    ".deq-map-list, form"
)
STATEMENT = "div.proof.admonition, div.exercise.admonition"
TEX = re.compile(r"\\\((.*?)\\\)|\\\[(.*?)\\\]", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """Something that a reader may look for: its kind, title, page, address and words."""

    kind: str
    title: str
    page: str
    url: str
    text: str
    code: str = ""
    preview: str = ""


@cache
def readable(tex: str) -> str:
    r"""Write a formula in letters.

    >>> readable(r"\lambda_{\min}(W^\top)\le\tfrac12\|W\|")
    'λ_min(W^⊤)≤1/2‖W‖'
    """
    plain = re.sub(r"\\(?:tfrac|dfrac|frac)(\d)(\d)", r"\\frac{\1}{\2}", tex.replace(r"\|", "‖"))
    plain = re.sub(r"\\(?:tfrac|dfrac)", r"\\frac", plain).replace(r"\operatorname", "")
    text = LatexNodes2Text(math_mode="text", strict_latex_spaces=False).latex_to_text(plain)
    return " ".join(text.split())


def words(tag: Tag) -> str:
    """Return the text of an element, formulas in letters."""
    plain = tag.get_text(" ").replace("\N{WORD JOINER}", "")
    text = TEX.sub(lambda m: readable(m[1] or m[2]), plain)
    return re.sub(r"\s+([.,;:)])", r"\1", " ".join(text.split()))


def preview(tag: Tag) -> str:
    """Return the inside of an element as it may stand on another page: no links, no anchors."""
    copy = BeautifulSoup(str(tag), "html.parser").find()
    if not isinstance(copy, Tag):
        return ""
    for inner in copy.find_all(True):
        if inner.name == "a":
            inner.name = "span"
        inner.attrs = {k: v for k, v in inner.attrs.items() if k == "class"}
    return "".join(map(str, copy.contents)).strip()


def places(page: str, text: str) -> Iterator[Place]:
    """Cut a page into places; what belongs to one is left out of those around it."""
    soup = BeautifulSoup(text, "html.parser")
    article = soup.select_one("article")
    if article is None or article.h1 is None:
        return
    for junk in article.select(BULK):
        junk.decompose()
    name = words(article.h1)
    url = f"{page}.html"
    for row in article.select("table.deq-ledger tbody tr"):
        link, code = row.select_one("a[href]"), row.select_one("code.deq-claim-id")
        if link is not None and code is not None:
            address = str(Path(page).parent / str(link["href"]))
            # its formulas are letters already, low and high ones among them
            said = " ".join(link.get_text().split())
            yield Place("claim", f"{code.get_text()}: {said}", name, _normal(address), "")
    for table in article.select("table.deq-ledger"):
        table.decompose()
    for formula in article.select("div.math[id]"):
        yield Place("equation", "", name, f"{url}#{formula['id']}", "", "", preview(formula))
    for box in article.select(STATEMENT):
        title = box.select_one("p.admonition-title")
        if title is None or not box.get("id"):
            continue
        shown = preview(box)
        head = words(title.extract())
        kind = head.split(" ")[0].lower()
        yield Place(kind, head, name, f"{url}#{box['id']}", words(box), "", shown)
        box.decompose()
    for term in article.select("dl.glossary dt[id], dl.py dt.sig[id]"):
        meaning = term.find_next_sibling("dd")
        first = meaning.p if isinstance(meaning, Tag) else None
        kind = "term" if "sig" not in (term.get("class") or []) else "package"
        head = words(term) if kind == "term" else str(term["id"]).split(".", 1)[-1]
        yield Place(
            kind,
            head,
            name,
            f"{url}#{term['id']}",
            words(first) if first else "",
            "",
            preview(meaning) if kind == "term" and isinstance(meaning, Tag) else "",
        )
    for definition in article.select("dl.glossary, dl.py"):
        definition.decompose()
    # The deepest sections first, each taken out of the one around it.
    found = []
    for section in reversed(article.select("section[id]")):
        heading = section.find(re.compile("^h[1-6]$"), recursive=False)
        if not isinstance(heading, Tag):
            continue
        level = heading.name
        head = words(heading.extract())
        cells = " ".join(pre.extract().get_text(" ") for pre in section.select("pre"))
        kind = "page" if level == "h1" else "section"
        address = url if level == "h1" else f"{url}#{section['id']}"
        found.append(Place(kind, head, name, address, words(section), " ".join(cells.split())))
        section.replace_with(NavigableString(" "))
    yield from reversed(found)


def _normal(address: str) -> str:
    """Take the steps up out of an address."""
    parts: list[str] = []
    for part in address.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def collect(folder: Path, kept: Path, pages: list[str]) -> list[Place]:
    """Cut all pages into places; those that are as they were are not cut again."""
    before: dict[str, tuple[str, list[Place]]] = {}
    mark = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if kept.is_file():
        stamp, found = pickle.loads(kept.read_bytes())
        before = found if stamp == mark else {}
    now: dict[str, tuple[str, list[Place]]] = {}
    for page in sorted(pages):
        data = (folder / f"{page}.html").read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        known = before.get(page)
        if known is not None and known[0] == digest:
            now[page] = known
        else:
            now[page] = digest, list(places(page, data.decode("utf-8")))
    kept.write_bytes(pickle.dumps((mark, now)))
    return [place for _, found in now.values() for place in found]


def document(place: Place) -> str:
    """Write a place as a page for pagefind; words of code weigh little."""
    return (
        f'<html lang="en"><body><main data-pagefind-body><h1>{html.escape(place.title)}</h1>'
        f'<span data-pagefind-meta="kind" hidden>{place.kind}</span>'
        f'<span data-pagefind-meta="page" hidden>{html.escape(place.page)}</span>'
        f'<span data-pagefind-meta="place" hidden>{html.escape(place.url)}</span>'
        f"<p>{html.escape(place.text)}</p>"
        f'<p data-pagefind-weight="0.1">{html.escape(place.code)}</p></main></body></html>'
    )


def index(found: list[Place], folder: Path) -> None:
    """Have pagefind make its index; a place is a file for it."""
    with tempfile.TemporaryDirectory() as site:
        for number, place in enumerate(found):
            (Path(site) / f"{number}.html").write_text(document(place), encoding="utf-8")
        command = [sys.executable, "-m", "pagefind", "--site", site, "--force-language", "en"]
        done = subprocess.run(
            [*command, "--output-path", str(folder / INDEX)], capture_output=True, text=True
        )
    if done.returncode:
        raise ExtensionError(f"pagefind made no index:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    # Its own user interfaces, and a highlighter: the search page brings its own.
    for file in (folder / INDEX).glob("pagefind-*"):
        if file.suffix in {".js", ".css"} and not file.name.startswith("pagefind-worker"):
            file.unlink()


def _script(file: Path, name: str, value: Any) -> None:
    """Write a value as a script, which a page that was opened as a file can load too."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    file.write_text(f"window.{name}={text};\n", encoding="utf-8")


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the list of titles and the index of words, if any page changed."""
    if exception is not None or app.builder.name != "html":
        return
    folder, kept = Path(app.outdir), Path(app.outdir).parent / KEPT
    pages = [p for p in app.env.found_docs if p not in EMPTY and (folder / f"{p}.html").is_file()]
    everything = collect(folder, kept, pages)
    shown = {p.url: p.preview for p in everything if p.preview}
    _script(folder / PREVIEWS, "deqPreviews", shown)
    found = [p for p in everything if p.title]
    text = json.dumps([asdict(p) for p in found], ensure_ascii=False)
    stamp = folder / INDEX / "places.sha256"
    digest = hashlib.sha256(text.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest and (folder / TITLES).is_file():
        return
    _script(folder / TITLES, "deqTitles", [[p.kind, p.title, p.page, p.url] for p in found])
    index(found, folder)
    stamp.write_text(digest)
    logger.info("deqbook: %d places can be found", len(found))


def dress(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Give the search page its script."""
    if page == "search":
        app.add_css_file("finding.css")
        app.add_js_file("titles.js")
        app.add_js_file("finding.js")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("html-page-context", dress)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
