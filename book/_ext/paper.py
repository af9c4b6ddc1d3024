"""The whole book as one page for paper, put together from the built site.

Numbers are those of the site because they are the site's: theorems, equations, figures, sections
and exercises are read from its pages, not counted again. What is done here is what paper asks for.
Pages follow each other in the order of ``_toc.yml``; anchors get the name of their page, and links
lead to them; code that is folded on the site is left out; proofs are open; panels are their
verdicts; a slider becomes some of its frames; solutions move to an appendix.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag

#: Where the page lies, seen from the folder that holds the site.
SITE, WORK = "html", "pdf"
SOLUTIONS, CONTENTS = "solutions", "contents"
#: The site's first page has the title of the book; on paper that has a page of its own.
PREFACE = "Preface"
#: Sections that every chapter has; the contents leave them out.
EVERYWHERE = {"Summary", "Exercises", "Notes and sources"}
#: A frame this many times as wide as high gets the width of the page, others half of it.
WIDE = 1.7
#: How many frames of a slider are shown: wide ones under each other, others in two columns.
FRAMES = {True: 3, False: 4}
#: Characters that only a colour font has, and what a text font has for them.
PLAIN = {"✅": "✓", "❌": "✗"}
#: What of highlighted code is told apart on paper: words of the language, comments, text, names
#: that are defined, prompts and output. All other marks would only make the file larger.
COLOURED = {"k", "kn", "kc", "ow", "c1", "sd", "s1", "s2", "nf", "nc", "nd", "gp", "go", "gt", "gr"}
#: The section that explains how to read a panel.
EXPLAINED = "how-to-read-a-panel"
ON_SCREEN = (
    ".headerlink, script, style, details.above-input, details.deq-whole, .deq-head, "
    ".toctree-wrapper, progress"
)
FRAME_LIST = re.compile(r"const frames = (\[.*?\]);\n", re.DOTALL)
MATHJAX = re.compile(r"<script>window\.MathJax = (\{.*?\})</script>")
PARSER = "html.parser"


class PaperError(RuntimeError):
    """The site cannot become one page; the message says where and why."""


@dataclass(frozen=True)
class Entry:
    """A page of the book: its name, how deep it stands, and the part that it opens, if any."""

    name: str
    depth: int
    part: str = ""


@dataclass(frozen=True)
class Imprint:
    """What the title page says."""

    title: str
    author: str
    version: str
    date: str
    licence: str


def entries(toc: Mapping[str, Any]) -> list[Entry]:
    """Return the pages of ``_toc.yml`` in order."""
    found = [Entry(toc["root"], 0)]
    for part in toc.get("parts", [toc]):
        caption = part.get("caption", "")
        for chapter in part.get("chapters", []):
            found += _below(chapter, 0, caption)
            caption = ""
    return found


def _below(entry: Mapping[str, Any], depth: int, part: str = "") -> Iterator[Entry]:
    yield Entry(entry["file"], depth, part)
    for child in entry.get("sections", []):
        yield from _below(child, depth + 1)


def anchor(page: str, name: str = "") -> str:
    """Name an anchor of a page in the book as a whole; without a name, the page's beginning."""
    return f"{page}:{name}" if name else page


def read_article(html: str) -> Tag:
    """Return the article of a page of the site."""
    article = BeautifulSoup(html, PARSER).select_one("article")
    if article is None:
        raise PaperError("the page has no <article>; was the site built?")
    return article


def own_anchors(article: Tag, page: str) -> None:
    """Give the page's anchors names that no other page has."""
    for tag in article.select("[id]"):
        tag["id"] = anchor(page, str(tag["id"]))
    for name in ("for", "aria-labelledby", "aria-describedby"):
        for tag in article.select(f"[{name}]"):
            del tag[name]


def relink(article: Tag, page: str, pages: frozenset[str]) -> None:
    """Let links lead to places in the book; what is a file of the site alone loses its link."""
    folder = posixpath.dirname(page)
    for link in article.select("a[href]"):
        parts = urlsplit(str(link["href"]))
        if parts.scheme in {"http", "https"}:
            continue
        if parts.scheme or parts.netloc:
            raise PaperError(f"{page}: a link leads to {link['href']}, which paper cannot follow")
        path = posixpath.normpath(posixpath.join(folder, unquote(parts.path)))
        target = page if not parts.path else path.removesuffix(".html")
        if target in pages and (not parts.path or path.endswith(".html")):
            link["href"] = "#" + anchor(target, unquote(parts.fragment))
        else:
            link.unwrap()
    for image in article.select("img[src]"):
        if not str(image["src"]).startswith("data:"):
            place = posixpath.normpath(posixpath.join(folder, str(image["src"])))
            image["src"] = f"../../{SITE}/{place}"


def sink_headings(article: Tag, depth: int) -> None:
    """Lower the headings of a page that stands below another, so that bookmarks nest."""
    for heading in article.find_all(re.compile(r"^h[1-6]$")):
        level = int(heading.name[1])
        heading["class"] = f"level-{level}"
        heading.name = f"h{min(level + depth, 6)}"


def unfold(article: Tag) -> None:
    """Leave out what only a screen uses, and open what is folded."""
    for tag in article.select(ON_SCREEN):
        tag.decompose()
    for mark in article.select("pre span, code span, dt.sig span.pre, dt.sig span.w"):
        if not COLOURED.intersection(map(str, mark.get_attribute_list("class"))):
            mark.unwrap()
    for panel in article.select("details.deq-evidence"):
        told = panel.find("summary")
        # Paper has room for the verdict; one panel stands open, that which the text explains.
        if isinstance(told, Tag) and not panel.find_parent(id=EXPLAINED):
            for child in [child for child in panel.children if child is not told]:
                child.extract()
    for details in article.select("details"):
        details.name = "div"
        if summary := details.find("summary"):
            summary.name = "p"
            summary["class"] = "summary"
    for box in article.select(".deq-scroll"):
        for name in ("tabindex", "role", "aria-label"):
            del box[name]
    for cell in reversed(article.select("div.cell")):
        if not cell.get_text(strip=True) and not cell.find("img"):
            cell.decompose()
    for text in article.find_all(string=re.compile("|".join(PLAIN))):
        text.replace_with("".join(PLAIN.get(letter, letter) for letter in text))


def spread(count: int, start: int, limit: int) -> list[int]:
    """Choose which of ``count`` frames to show: first, last, the one it starts with, and between.

    >>> spread(7, 3, 4)
    [0, 1, 3, 6]
    >>> spread(3, 0, 4)
    [0, 1, 2]
    """
    if count <= limit:
        return list(range(count))
    chosen = {0, start, count - 1}
    while len(chosen) < limit:
        left = [k for k in range(count) if k not in chosen]
        chosen.add(max(left, key=lambda k: (min(abs(k - c) for c in chosen), -k)))
    return sorted(chosen)


def still(slider: Tag) -> None:
    """Turn a slider into some of its frames, with a note of what it does on the site."""
    script, image, knob = slider.find("script"), slider.find("img"), slider.find("input")
    label = slider.find("label")
    found = FRAME_LIST.search(script.get_text()) if isinstance(script, Tag) else None
    if not (found and isinstance(image, Tag) and isinstance(knob, Tag) and isinstance(label, Tag)):
        raise PaperError("a slider is not as `deqbook.viz.explore` writes it")
    frames, start = json.loads(found[1]), int(str(knob["value"]))
    frames[start]["src"] = image["src"]
    wide = float(str(image["width"])) >= WIDE * float(str(image["height"]))
    chosen = spread(len(frames), start, FRAMES[wide])
    name = escape(label.get_text(strip=True))
    shown = "".join(
        f'<div class="frame"><img src="{frames[k]["src"]}" alt="{escape(frames[k]["alt"])}"/>'
        f"<p>{name}: {escape(frames[k]['text'])}</p></div>"
        for k in chosen
    )
    values = escape(", ".join(frame["text"] for frame in frames))
    note = f"On the site a slider moves through {len(frames)} frames, {name}: {values}."
    slider.clear()
    slider["class"] = f"still {'wide' if wide else 'narrow'}"
    del slider["style"]
    content = f'<div class="frames">{shown}</div><p class="on-site">{note}</p>'
    slider.append(BeautifulSoup(content, PARSER))


def take_solutions(article: Tag, page: str) -> list[Tag]:
    """Take the solutions out of a page, and link each with its exercise, both ways."""
    taken = []
    for solution in article.select("div.solution"):
        back = solution.select_one(".admonition-title a[href]")
        exercise = back and article.find(id=str(back["href"]).removeprefix("#"))
        if not isinstance(back, Tag) or not isinstance(exercise, Tag):
            raise PaperError(f"{page}: the solution {solution.get('id')} belongs to no exercise")
        forth = f'<p class="to-solution">{page_link(str(solution["id"]), "Solution")}</p>'
        exercise.append(BeautifulSoup(forth, PARSER))
        back.string = back.get_text().strip()
        back.insert_before(" ")
        back.insert_after(BeautifulSoup(f" {page_number(str(exercise['id']))}", PARSER))
        taken.append(solution.extract())
    return taken


def page_number(target: str) -> str:
    """Write a place for the number of the page that an anchor stands on; see `fill`."""
    return f'<span class="page" data-of="{escape(target)}"></span>'


def page_link(target: str, text: str) -> str:
    """Write a link with the number of its page."""
    return f'<a href="#{escape(target)}">{text} {page_number(target)}</a>'


def fill(html: str, numbers: Mapping[str, int]) -> str:
    """Write the numbers of pages into their places; an anchor without one is an error."""

    def number(match: re.Match[str]) -> str:
        target = match[1].replace("&amp;", "&")
        if target not in numbers:
            raise PaperError(f"no page number for {target}: nothing there, or nothing leads there")
        return f"{match[0]}{numbers[target]}"

    return re.sub(r'<span class="page" data-of="([^"]*)">', number, html)


def title_of(article: Tag) -> str:
    """Return the title of a page as HTML."""
    heading = article.find("h1")
    if not isinstance(heading, Tag):
        raise PaperError("a page has no title")
    return heading.decode_contents().strip()


def prepare(
    html: str, entry: Entry, pages: frozenset[str], title: str = ""
) -> tuple[Tag, str, list[Tag]]:
    """Make a page of the site ready for paper; return it, its title and its solutions.

    A title, if given, takes the place of the page's own.
    """
    article = read_article(html)
    if title and (heading := article.find("h1")):
        heading.string = title
    for slider in article.select("figure.deq-explore"):
        still(slider)
    unfold(article)
    own_anchors(article, entry.name)
    relink(article, entry.name, pages)
    title = title_of(article)
    solutions = take_solutions(article, entry.name)
    sink_headings(article, entry.depth)
    article.name = "div"
    article["class"] = f"sheet depth-{entry.depth}"
    article["id"] = entry.name
    article["style"] = f"page: {page_name(entry.name)}"
    return article, title, solutions


def page_name(name: str) -> str:
    """Name the kind of paper page that a page of the book is printed on.

    >>> page_name("chapters/01a_contraction")
    'on-chapters-01a_contraction'
    """
    return "on-" + re.sub(r"\W+", "-", name)


def running_head(name: str, title: str) -> str:
    """Return the style that puts a title over every paper page of a page of the book."""
    text = BeautifulSoup(title, PARSER).get_text()
    text = re.sub(r"[\\\"\n]", " ", text)
    return f'@page {page_name(name)} {{ @top-left {{ content: "{text}" }} }}\n'


def appendix(groups: Sequence[tuple[str, str, list[Tag]]]) -> str:
    """Set the solutions, under the title of the page that their exercises stand on."""
    parts = [
        f'<div class="sheet depth-0 appendix" id="{SOLUTIONS}" '
        f'style="page: {page_name(SOLUTIONS)}"><h1 class="level-1">Solutions of the exercises</h1>'
    ]
    for name, title, solutions in groups:
        if solutions:
            place = anchor(name, SOLUTIONS)
            parts.append(f'<section id="{place}"><h2 class="level-2">{title}</h2>')
            parts += [*map(str, solutions), "</section>"]
    return "\n".join([*parts, "</div>"])


def contents(
    book: Iterable[tuple[Entry, str, Tag]], groups: Iterable[tuple[str, str, list[Tag]]]
) -> str:
    """Write the table of contents: parts, pages, and the numbered sections of pages."""
    lines = []
    for entry, title, article in book:
        if entry.part:
            lines.append(f'<p class="part">{escape(entry.part)}</p>')
        lines.append(_line(entry.depth, entry.name, title))
        if entry.name.startswith("chapters/"):
            for heading in article.select(".level-2"):
                section = heading.parent
                if section and heading.get_text().lstrip("0123456789. ") not in EVERYWHERE:
                    lines.append(_line(2, str(section["id"]), heading.decode_contents()))
    lines.append(_line(0, SOLUTIONS, "Solutions of the exercises"))
    lines += [
        _line(1, anchor(name, SOLUTIONS), title) for name, title, solutions in groups if solutions
    ]
    return f'<div class="sheet contents" id="{CONTENTS}"><h1>Contents</h1>{"".join(lines)}</div>'


def _line(depth: int, target: str, title: str) -> str:
    return (
        f'<p class="entry depth-{depth}"><a href="#{escape(target)}">'
        f'<span class="what">{title}</span>{page_number(target)}</a></p>'
    )


def title_page(imprint: Imprint) -> str:
    """Write the first page."""
    version = f"Version {escape(imprint.version)}" + (f", {imprint.date}" if imprint.date else "")
    return (
        '<div class="sheet title-page">'
        f'<p class="title">{escape(imprint.title)}</p>'
        f'<p class="author">{escape(imprint.author)}</p>'
        f'<p class="version">{version}</p>'
        "<p>This is the site on paper: the same text, figures and numbers. Proofs are open, "
        "solutions stand at the end, and a panel is the line of its verdict. A slider shows some "
        "of its frames. Code that the site folds, most of it for drawing, is left out; it stands "
        "in the pages’ notebooks.</p>"
        f'<p class="licence">{escape(imprint.licence)}</p></div>'
    )


def headings(whole: BeautifulSoup) -> list[str]:
    """Return the text of every heading of the book, in order, for its bookmark."""
    found = whole.find_all(re.compile(r"^h[1-6]$"))
    return [without_tex(" ".join(heading.get_text().split())) for heading in found]


def without_tex(text: str) -> str:
    r"""Write the short formulas of a heading as plain text.

    >>> without_tex(r"The edge at \(2\sqrt m\)")
    'The edge at 2√m'
    """
    return re.sub(r"\\[()]|[\\{}]", "", re.sub(r"\\sqrt\s*", "√", text))


def missing_targets(html: BeautifulSoup) -> list[str]:
    """Return the links within the book that lead nowhere."""
    ids = {str(tag["id"]) for tag in html.select("[id]")}
    wanted = {str(link["href"])[1:] for link in html.select('a[href^="#"]')}
    return sorted(wanted - ids)


def take_frames(html: BeautifulSoup, folder: Path) -> None:
    """Write images that stand in the page itself to files, so that the page stays small."""
    folder.mkdir(parents=True, exist_ok=True)
    for k, image in enumerate(html.select('img[src^="data:"]')):
        head, _, data = str(image["src"]).partition(";base64,")
        file = folder / f"{k:03}.{head.rpartition('/')[2]}"
        file.write_bytes(base64.b64decode(data))
        image["src"] = f"{folder.name}/{file.name}"


def assemble(root: Path, site: Path, imprint: Imprint) -> BeautifulSoup:
    """Put the whole book together; refuse a site in which a link leads nowhere."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    order = entries(toc)
    pages = frozenset(entry.name for entry in order)
    book: list[tuple[Entry, str, Tag]] = []
    groups: list[tuple[str, str, list[Tag]]] = []
    mathjax = "{}"
    for entry in order:
        html = (site / f"{entry.name}.html").read_text(encoding="utf-8")
        if found := MATHJAX.search(html):
            mathjax = found[1]
        article, title, solutions = prepare(html, entry, pages, "" if book else PREFACE)
        book.append((entry, title, article))
        groups.append((entry.name, title, solutions))
    heads = [running_head(entry.name, title) for entry, title, _ in book]
    heads.append(running_head(SOLUTIONS, "Solutions of the exercises"))
    body = [
        title_page(imprint),
        contents(book, groups),
        *(str(article) for _, _, article in book),
        appendix(groups),
    ]
    static = f"../../{SITE}/_static"
    whole = BeautifulSoup(
        "<!DOCTYPE html>\n"
        f'<html lang="en"><head><meta charset="utf-8"/><title>{escape(imprint.title)}</title>'
        f'<meta name="author" content="{escape(imprint.author)}"/>'
        f'<link rel="stylesheet" href="{static}/pygments.css"/>'
        f'<link rel="stylesheet" href="{static}/paper.css"/>'
        f"<style>{''.join(heads)}</style>"
        f'<script id="settings" type="application/json">{mathjax}</script>'
        f'<script src="{static}/paper.js"></script>'
        f'<script defer="" src="{static}/mathjax/tex-chtml.js"></script></head>'
        f"<body>{''.join(body)}</body></html>",
        PARSER,
    )
    if lost := missing_targets(whole):
        raise PaperError(f"links lead nowhere: {', '.join(lost)}")
    ids = [str(tag["id"]) for tag in whole.select("[id]")]
    if len(ids) != len(set(ids)):
        raise PaperError(f"anchors twice: {sorted({i for i in ids if ids.count(i) > 1})}")
    return whole
