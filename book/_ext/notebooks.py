"""Every chapter as a notebook that reads well anywhere: Colab, JupyterLab, a student's laptop.

A chapter's source is MyST: theorems, numbers and links mean nothing to a plain notebook. So the
build, which has just resolved them all, writes each page a second time. Numbers, titles and
addresses come from the built HTML, measured values from the run, and everything else is the source.

    notebooks/03a_linear_rates.ipynb           solutions folded
    notebooks/03a_linear_rates.student.ipynb   no solutions

The first code cell sets one thread and installs the package where it is missing, from the wheel
that the build puts beside the notebooks. It never replaces anything that is installed already.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath
from typing import Any

import digest
import jupytext
import nbformat
from bs4 import BeautifulSoup, NavigableString, Tag
from docutils.nodes import make_id
from finish import with_minus
from myst_nb.core.variables import format_plain_text
from packaging.requirements import Requirement
from place import site_address
from spacing import written
from sphinx.application import Sphinx
from sphinx.util import logging

from deqbook.course import first_cell as course

#: Pages of this folder become notebooks of that one; the wheel lies in the third.
CHAPTERS, NOTEBOOKS, WHEELS = "chapters", "notebooks", "wheels"
#: What goes into the wheel beside the sources; and where a build notes what it did.
PACKAGED, KEPT = ("pyproject.toml", "README.md", "LICENSE", "LICENSE-CONTENT"), "notebooks.pickle"
REFERENCES, GLOSSARY = "book/references", "book/glossary"
LICENCE = "Text and figures: CC BY 4.0. Code: BSD 3-clause."
#: 1 January 1980, the first day that a zip file knows: equal sources give equal wheels.
EPOCH = "315532800"
#: Between what is to become two cells.
BREAK = "\x1e"

_FENCE = re.compile(r"^(?P<fence>`{3,}|:{3,}|~{3,})(?:\{(?P<name>[\w:-]+)\})?(?P<argument>.*)$")
_OPTION = re.compile(r"^:([\w-]+):[ \t]*(.*)$")
_DISPLAY = re.compile(r"\$\$(.*?)\$\$(?:[ \t]*\(([\w:-]+)\))?", re.DOTALL)
_INLINE = re.compile(r"(?<![\\$])\$(?!\$)[^$]+\$")
_TARGET = re.compile(r"^\([\w:.-]+\)=[ \t]*\n?", re.MULTILINE)
_DEFINITION = re.compile(r"^(\S.*)\n:[ \t]+(.*)$", re.MULTILINE)
_HEADING = re.compile(r"^(?=#{2,3} )", re.MULTILINE)
_ROLE = re.compile(r"\{([a-zA-Z][\w:-]*)\}`([^`]+)`")
_TITLED = re.compile(r"(.*?)\s*<([^<>]+)>", re.DOTALL)
#: What a page's HTML holds that has no label in it, and takes long to parse.
_BULK = re.compile(r"<pre\b.*?</pre>|<svg\b.*?</svg>|<script\b.*?</script>", re.DOTALL)

logger = logging.getLogger(__name__)


class Unresolved(ValueError):
    """The source says something that no notebook can show; the message says what and where."""


@dataclass(frozen=True)
class Place:
    """Something that has a label: where it stands, and what the book calls it."""

    page: str
    anchor: str
    name: str = ""  # "Theorem 3.1", "Fig. 3.2", "(3.4)"
    title: str = ""  # of a section, a theorem, an exercise; a figure's caption

    @property
    def heading(self) -> str:
        """Return name and title as the book prints them."""
        return f"{self.name} ({self.title})" if self.title else self.name


@dataclass
class Index:
    """What the built pages say about labels, terms, citations and themselves."""

    places: dict[str, Place] = field(default_factory=dict)
    terms: dict[str, Place] = field(default_factory=dict)
    citations: dict[tuple[bool, tuple[str, ...]], str] = field(default_factory=dict)  # HTML
    titles: dict[str, Place] = field(default_factory=dict)
    openings: dict[str, str] = field(default_factory=dict)

    def add(self, other: Index) -> None:
        """Take in what another page says; a label with a name wins over a bare anchor."""
        for label, place in other.places.items():
            if place.name or place.title or label not in self.places:
                self.places[label] = place
        self.citations = other.citations | self.citations
        for mine, new in (
            (self.terms, other.terms),
            (self.titles, other.titles),
            (self.openings, other.openings),
        ):
            mine.update(new)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Context:
    """What it takes to resolve the text of one page."""

    page: str
    index: Index
    values: Mapping[str, Any]
    anchors: Mapping[str, str]  # of the works in the list of references, by their keys
    base: str
    solutions: bool = True
    book: str = "the book"

    def address(self, place: Place) -> str:
        """Return the address of a place, for a link."""
        return f"{self.base}{place.page}.html" + (f"#{place.anchor}" if place.anchor else "")

    def link(self, text: str, place: Place) -> str:
        """Return a Markdown link."""
        return f"[{text}]({self.address(place)})"


# --- what the built pages say ---------------------------------------------------------------


def markdown(node: Tag, page: str = "", base: str | None = None) -> str:
    """Return a piece of a page's HTML, within one line, as Markdown; links only with a base."""
    parts = []
    for child in node.children:
        if isinstance(child, NavigableString):
            parts.append(re.sub(r"([*_])", r"\\\1", re.sub(r"\s+", " ", str(child))))
        elif isinstance(child, Tag) and "headerlink" not in child.get_attribute_list("class"):
            inner = markdown(child, page, base)
            if "math" in child.get_attribute_list("class"):
                text = child.get_text().strip().removeprefix(r"\(").removesuffix(r"\)")
                parts.append(f"${text}$")
            elif child.name in ("em", "i"):
                parts.append(f"*{inner}*")
            elif child.name in ("strong", "b"):
                parts.append(f"**{inner}**")
            elif child.name == "code":
                parts.append(f"`{child.get_text()}`")
            elif child.name == "a" and base is not None:
                parts.append(f"[{inner}]({base}{target(page, str(child['href']))})")
            else:
                parts.append(inner)
    return "".join(parts)


def target(page: str, link: str) -> str:
    """Return where a page's link leads, from the root of the site."""
    path, mark, anchor = link.partition("#")
    full = os.path.normpath(PurePosixPath(page).parent / path) if path else f"{page}.html"
    return f"{full}{mark}{anchor}"


def read_page(page: str, html: str, index: Index) -> None:
    """Add what one built page says to the index."""
    soup = BeautifulSoup(_BULK.sub("", html), "html.parser")
    for tag in soup.select("article [id]"):
        anchor = str(tag["id"])
        index.places.setdefault(anchor, Place(page, anchor))
    for section in soup.select("article section[id]"):
        head = section.find(re.compile(r"^h[1-6]$"), recursive=False)
        if head is None:
            continue
        number = head.find(class_="section-number")
        name = number.extract().get_text().strip() if isinstance(number, Tag) else ""
        title = markdown(head).strip()
        own = [s["id"] for s in section.find_all("span", id=True, recursive=False)]
        for anchor in map(str, [section["id"], *own]):
            index.places[anchor] = Place(page, anchor, name, title)
        if head.name == "h1":
            index.titles[page] = Place(page, "", name, title)
    for box in soup.select("article div.proof[id], article div.exercise[id]"):
        head = box.find(class_="admonition-title")
        number = head.find(class_="caption-number") if isinstance(head, Tag) else None
        if isinstance(head, Tag) and isinstance(number, Tag):
            name = number.extract().get_text().strip()
            title = markdown(head).strip().removeprefix("(").removesuffix(")")
            index.places[str(box["id"])] = Place(page, str(box["id"]), name, title)
    for figure in soup.select("article figure[id]"):
        number, text = figure.find(class_="caption-number"), figure.find(class_="caption-text")
        if isinstance(number, Tag) and isinstance(text, Tag):
            anchor, name = str(figure["id"]), number.get_text().strip()
            index.places[anchor] = Place(page, anchor, name, markdown(text).strip())
    for equation in soup.select("article div.math[id]"):
        number, anchor = equation.find(class_="eqno"), str(equation["id"])
        if isinstance(number, Tag):
            found = Place(page, anchor, markdown(number).strip())
            index.places[anchor.removeprefix("equation-")] = found
    for term in soup.select("dt[id^=term-]"):
        index.terms[normal(markdown(term))] = Place(page, str(term["id"]))
    for cited in soup.select("span.bibtex-citation"):
        links = tuple(sorted(str(a["href"]).partition("#")[2] for a in cited.find_all("a")))
        for a in cited.find_all("a"):
            a["href"] = os.path.relpath(target(page, str(a["href"])), CHAPTERS)
        index.citations.setdefault((not cited.get_text().startswith("["), links), str(cited))
    if isinstance(line := soup.find(class_="deq-opening"), Tag) and isinstance(line.span, Tag):
        index.openings[page] = markdown(line.span)


def normal(term: str) -> str:
    """Return a term as the glossary is searched for it."""
    return re.sub(r"\s+", " ", term.replace("’", "'").replace("\\", "")).strip().lower()


# --- from MyST to Markdown ------------------------------------------------------------------


def role(name: str, text: str, at: Context) -> str:
    """Return what a role shows, with its link."""
    text = re.sub(r"\s+", " ", text).strip()
    titled = _TITLED.fullmatch(text)
    shown, wanted = (titled[1], titled[2]) if titled else ("", text)
    if name == "glue:text":
        key, _, form = text.partition(":")
        if key not in at.values:
            raise Unresolved(f"{at.page}: no value {key!r} was glued")
        value = format_plain_text(at.values[key]["data"]["text/plain"], form or "s")
        return with_minus(written(value))
    if name in ("cite", "cite:p", "cite:t"):
        keys = [key.strip() for key in text.split(",")]
        if unknown := [key for key in keys if key not in at.anchors]:
            raise Unresolved(f"{at.page}: not in the list of references: {', '.join(unknown)}")
        anchors = tuple(sorted(at.anchors[key] for key in keys))
        found = at.index.citations.get((name == "cite:t", anchors))
        if found is None:
            raise Unresolved(f"{at.page}: no built page cites {text!r} so")
        return markdown(BeautifulSoup(found, "html.parser"), f"{CHAPTERS}/page", at.base)
    if name == "term":
        place = at.index.terms.get(normal(wanted))
        if place is None:
            raise Unresolved(f"{at.page}: the glossary has no {wanted!r}")
        return at.link(shown or text, place)
    if name == "doc":
        page = os.path.normpath(PurePosixPath(at.page).parent / wanted).lstrip("/")
        if wanted.startswith("/"):
            page = wanted.lstrip("/")
        if page not in at.index.titles:
            raise Unresolved(f"{at.page}: no page {wanted!r}")
        return at.link(shown or at.index.titles[page].title, at.index.titles[page])
    if name in ("ref", "prf:ref", "numref", "eq"):
        place = at.index.places.get(make_id(wanted))
        if place is None:
            raise Unresolved(f"{at.page}: nothing is labelled {wanted!r}")
        number = place.name.split(" ")[-1]
        shown = shown.replace("%s", number).replace("{number}", number)
        usual = place.title if name == "ref" and not place.name[:1].isalpha() else place.name
        if not (shown or usual):
            raise Unresolved(f"{at.page}: {wanted!r} has neither number nor title to show")
        return at.link(shown or usual, place)
    raise Unresolved(f"{at.page}: no rule for the role {{{name}}}")


def prose(text: str, at: Context) -> str:
    """Resolve text without directives: equation numbers, labels, definitions, roles."""

    def display(match: re.Match[str]) -> str:
        if match[2] is None:
            return match[0]
        place = at.index.places.get(make_id(match[2]))
        if place is None or not place.name:
            raise Unresolved(f"{at.page}: the equation {match[2]!r} has no number")
        return f"$${match[1].rstrip()} \\tag{{{place.name.strip('()')}}}\n$$"

    text = _DISPLAY.sub(display, text)
    text = _TARGET.sub("", text)
    text = _DEFINITION.sub(r"- **\1**: \2", text)
    return _ROLE.sub(lambda match: role(match[1], match[2], at), text)


def quote(text: str) -> str:
    """Return a block quote. Formulas get one line: Jupyter would show the marks inside them."""
    for formula in (_DISPLAY, _INLINE):
        text = formula.sub(lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def fold(summary: str, text: str) -> str:
    """Return text that opens when a reader asks for it."""
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"


def lead(head: str, text: str) -> str:
    """Put a bold head before text, in its first paragraph unless that is a list or a formula."""
    apart = re.match(r"[-*] |\d+\. |\$\$|\||<|```", text) is not None
    return f"**{head}.**" + ("\n\n" if apart else " ") + text


def directive(name: str, argument: str, body: str, at: Context) -> str:
    """Return what a directive shows."""
    lines, options = body.split("\n"), {}
    while lines and (option := _OPTION.match(lines[0])):
        options[option[1]] = option[2].strip()
        lines.pop(0)
    text = resolve("\n".join(lines).strip("\n"), at)

    def labelled(label: str | None) -> Place:
        place = at.index.places.get(make_id(label or ""))
        if place is None or not place.name:
            raise Unresolved(f"{at.page}: {{{name}}} {argument} has no label or no number")
        return place

    if name == "opening":
        needs = {key: prose(options.get(key, ""), at) for key in ("level", "needs")}
        parts = [at.index.openings.get(at.page, ""), f"**Level** {needs['level']}"]
        return " · ".join([*filter(None, parts), f"**Needs** {needs['needs']}"])
    if name == "prf:proof":
        return fold(f"Proof ({argument})" if argument else "Proof", text)
    if name.startswith("prf:"):
        return quote(lead(labelled(options.get("label")).heading, text))
    if name == "exercise":
        return f"{BREAK}{lead(labelled(options.get('label')).heading, text)}\n"
    if name == "solution":
        if not at.solutions:
            return ""
        return fold(f"Solution to {labelled(argument).name}", text) + f"\n{BREAK}"
    if name == "glue:figure":
        caption, words = lead(labelled(options.get("name")).name, text), options.get("alt")
        # The picture is a cell's output, which has no place for its alternative text.
        return f"{caption}\n\n{fold('The figure in words', words)}" if words else caption
    raise Unresolved(f"{at.page}: no rule for the directive {{{name}}}")


def resolve(text: str, at: Context) -> str:
    """Return MyST as Markdown that needs nothing but a Markdown reader."""
    done: list[str] = []
    open_lines: list[str] = []
    lines = text.split("\n")

    def flush() -> None:
        if open_lines:
            done.append(_HEADING.sub(BREAK, prose("\n".join(open_lines), at)))
            open_lines.clear()

    at_line = 0
    while at_line < len(lines):
        fence = _FENCE.match(lines[at_line])
        if fence is None:
            open_lines.append(lines[at_line])
            at_line += 1
            continue
        flush()
        mark = fence["fence"]
        end = at_line + 1
        while end < len(lines) and lines[end].rstrip() != mark:
            end += 1
        if end == len(lines):
            raise Unresolved(f"{at.page}: a fence is not closed: {lines[at_line]}")
        inside = "\n".join(lines[at_line + 1 : end])
        if fence["name"]:
            done.append(directive(fence["name"], fence["argument"].strip(), inside, at))
        else:
            done.append(f"{lines[at_line]}\n{inside}\n{lines[end]}")
        at_line = end + 1
    flush()
    return "\n".join(done)


# --- notebooks ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wheel:
    """The package as a file of the site, and what it needs."""

    name: str
    sha256: str
    needs: tuple[str, ...]

    def at(self, base: str) -> course.Wheel:
        """Return where it is found, from a notebook or by its address."""
        return course.Wheel(f"{base}{WHEELS}/{self.name}", self.sha256)


def notebook_path(docname: str, student: bool = False) -> str:
    """Return where the notebook of a page lies, from the root of the site."""
    ending = ".student.ipynb" if student else ".ipynb"
    return f"{NOTEBOOKS}/{PurePosixPath(docname).name}{ending}"


def imported(cells: Iterable[str], distributions: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the installed packages that cells import directly, deqbook apart."""
    found: set[str] = set()
    for cell in cells:
        code = re.sub(r"^[ \t]*[%!].*$", "", cell, flags=re.MULTILINE)
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                found.update(one.name.partition(".")[0] for one in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    names = {distributions[name][0] for name in found if name in distributions}
    return sorted(names - {"deqbook"})


def needs_of(
    cells: Iterable[str], wheel: Wheel | None, distributions: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return what a page needs besides deqbook: the package's needs and its own imports."""
    needs = {Requirement(text).name.lower(): text for text in (wheel.needs if wheel else ())}
    for name in imported(cells, distributions):
        needs.setdefault(name.lower(), name)
    return sorted(needs.values(), key=str.lower)


def setup_source(needs: Iterable[str], wheel: Wheel | None, base: str) -> str:
    """Return the first code cell: one thread, and the package where it is missing."""
    return course.first_cell(needs, wheel.at(base) if wheel else None)


def head_source(at: Context) -> str:
    """Return the first cell: what this is, where it stands online, and its licence."""
    title = at.index.titles[at.page]
    name = f"{title.name} {title.title}".strip()
    about = "" if at.solutions else " This copy has no solutions."
    return (
        f"# {name}\n\nA chapter of *{at.book}*, as a notebook; "
        f"[the same page online]({at.address(title)}).{about} The numbers in the text are those of "
        f"the book's own run. {LICENCE}"
    )


def make(
    source: str,
    at: Context,
    wheel: Wheel | None = None,
    distributions: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Return the notebook of one page; ``distributions`` says which package brings which module."""
    read = jupytext.reads(source, fmt="md:myst")
    codes = [cell.source for cell in read.cells if cell.cell_type == "code"]
    setup_cell = setup_source(needs_of(codes, wheel, distributions or {}), wheel, at.base)
    cells = [
        nbformat.v4.new_markdown_cell(head_source(at)),
        nbformat.v4.new_code_cell(setup_cell, metadata={"jupyter": {"source_hidden": True}}),
    ]
    titled = False
    for cell in read.cells:
        if cell.cell_type == "code":
            tags = list(cell.metadata.get("tags", []))
            hidden = {"hide-input", "remove-input", "hide-cell", "remove-cell"}.intersection(tags)
            metadata: dict[str, Any] = {"tags": tags} if tags else {}
            if hidden:
                metadata["jupyter"] = {"source_hidden": True}
            cells.append(nbformat.v4.new_code_cell(cell.source, metadata=metadata))
            continue
        text = resolve(cell.source, at)
        if not titled:  # the first cell has the title already, with its number
            text, found = re.subn(r"\A\s*# .*\n?", "", text)
            titled = found > 0
        for part in text.split(BREAK):
            if tidy := re.sub(r"\n{3,}", "\n\n", part).strip("\n"):
                cells.append(nbformat.v4.new_markdown_cell(tidy))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number:03d}"
    notebook = nbformat.v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )
    nbformat.validate(notebook)
    return notebook


# --- the build ------------------------------------------------------------------------------


def build_wheel(root: Path, folder: Path) -> Wheel:
    """Build the package from a copy of its sources, without the network, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "package"
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")
        shutil.copytree(root / "src", copy / "src", ignore=unwanted)
        for name in PACKAGED:
            if (root / name).is_file():
                shutil.copy(root / name, copy / name)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        command += ["--disable-pip-version-check", "--no-build-isolation"]
        subprocess.run(
            [*command, "--wheel-dir", str(folder), str(copy)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        inside = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        stated = Parser().parsestr(archive.read(inside).decode()).get_all("Requires-Dist") or []
    needs = tuple(text for text in stated if "extra ==" not in text)
    return Wheel(path.name, sha256(path.read_bytes()), needs)


@dataclass
class Kept:
    """What a build leaves to the next one: what it read, and of what it made what it wrote."""

    pages: dict[str, tuple[str, Index]] = field(default_factory=dict)  # with a digest of the HTML
    wheel: tuple[str, Wheel | None] = ("", None)
    written: dict[str, str] = field(default_factory=dict)
    distributions: Mapping[str, Sequence[str]] = field(default_factory=packages_distributions)

    @classmethod
    def load(cls, path: Path) -> Kept:
        """Return what an earlier build left, unless other code wrote it."""
        try:
            code, kept = pickle.loads(path.read_bytes())
        except FileNotFoundError:
            return cls()
        return kept if code == own_code() else cls()

    def save(self, path: Path) -> None:
        """Leave it to the next build, or leave what was there."""
        path.with_suffix(".new").write_bytes(pickle.dumps((own_code(), self)))
        path.with_suffix(".new").replace(path)


def own_code() -> str:
    """Digest this module, and the one that writes the first cell."""
    return sha256("".join(Path(str(one)).read_text("utf-8") for one in (__file__, course.__file__)))


def sha256(content: bytes | str) -> str:
    """Return a digest in hexadecimal."""
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


def read_site(site: Path, pages: Iterable[str], kept: Kept) -> Index:
    """Return the index of a built site; pages that are as they were are not parsed again."""
    index, known = Index(), kept.pages
    kept.pages = {}
    for page in sorted(pages):
        path = site / f"{page}.html"
        if path.is_file():
            html = path.read_text(encoding="utf-8")
            mark, part = known.get(page, ("", Index()))
            if mark != sha256(html):
                part = Index()
                read_page(page, html, part)
            kept.pages[page] = sha256(html), part
            index.add(part)
    return index


def find_wheel(root: Path, folder: Path, kept: Kept) -> Wheel | None:
    """Return the wheel of the package, built again if a file of it changed."""
    mark = digest.outside(root / name for name in ("src", *PACKAGED))
    before, wheel = kept.wheel
    if mark != before or wheel is None or not (folder / wheel.name).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        try:
            wheel = build_wheel(root, folder)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", "") or error).strip().rpartition("\n")[2]
            logger.info("deqbook: no wheel, so the notebooks cannot install deqbook: %s", reason)
            wheel = None
        kept.wheel = mark, wheel
    return wheel


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the notebooks that changed, when the pages are written."""
    chapters = sorted(page for page in app.env.found_docs if page.startswith(f"{CHAPTERS}/"))
    if exception is not None or app.builder.name != "html" or not chapters:
        return
    site, root = Path(app.outdir), Path(app.srcdir)
    kept = Kept.load(site.parent / KEPT)
    wheel = find_wheel(root, site / WHEELS, kept)
    index = read_site(site, app.env.found_docs, kept)
    cited = app.env.domaindata.get("cite", {}).get("citations", [])
    anchors = {citation.key: citation.citation_id for citation in cited}
    base = site_address(os.environ) or "../"
    title = app.config.html_title
    common = repr((replace(index, openings={}), sorted(anchors.items()), base, wheel, title))
    (site / NOTEBOOKS).mkdir(exist_ok=True)
    made = 0
    for page in chapters:
        source = Path(app.env.doc2path(page)).read_text(encoding="utf-8")
        glued = site.parent / "jupyter_execute" / f"{page}.glue.json"
        values = glued.read_text(encoding="utf-8") if glued.is_file() else "{}"
        mark = sha256("\0".join([common, index.openings.get(page, ""), source, values]))
        paths = {student: site / notebook_path(page, student) for student in (False, True)}
        if kept.written.get(page) == mark and all(path.is_file() for path in paths.values()):
            continue
        for student, path in paths.items():
            given = (page, index, json.loads(values), anchors, base)
            at = Context(*given, solutions=not student, book=title)
            nbformat.write(make(source, at, wheel, kept.distributions), path)
        kept.written[page] = mark
        made += 1
    for path in (site / NOTEBOOKS).iterdir():
        if path.name.partition(".")[0] not in {PurePosixPath(page).name for page in chapters}:
            path.unlink()
    kept.save(site.parent / KEPT)
    logger.info(
        "deqbook: %d of %d notebooks written, with and without solutions", made, len(chapters)
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the notebooks at the end of a build."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
