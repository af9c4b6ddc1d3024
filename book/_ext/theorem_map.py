"""The map of the theorems: which statement of the book rests on which.

``{theorem-map}`` draws every labelled statement as a box that links to its place, and a line to
each statement that it, or the proof that follows it, refers to. Nothing of it is written by hand:
what a page refers to is noted when the page is read. Colours come from the ledger. A script lights
up all that a chosen statement rests on; without it the lines and the list below them say the same.
The index of the statements (sphinx-proof calls it the proof index) is made here, too: by kind, with
numbers, titles and pages, where it would list labels and files.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from ledger import STATUS, standing
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx_proof.domain import ProofDomain, ProofIndex
from sphinx_proof.nodes import proof_node

CHAPTERS = "chapters/"
SHORT = {
    "theorem": "Thm",
    "lemma": "Lem",
    "proposition": "Prop",
    "definition": "Def",
    "corollary": "Cor",
    "assumption": "Asm",
    "observation": "Obs",
}
NO_CLAIM = "proved on its page, no row in the ledger"
#: Pixels of the drawing.
WIDTH, BOX, HEIGHT, GAP, LEFT, BAND = 690, 77, 26, 8, 86, 34
PER_LINE = (WIDTH - LEFT) // (BOX + GAP)


@dataclass(frozen=True)
class Statement:
    """A labelled statement, and the labels that it and its proof refer to."""

    label: str
    kind: str
    title: str
    needs: tuple[str, ...]


class theorem_map(nodes.General, nodes.Element):
    """Stands for the map until all pages are read."""


def statements(doctree: nodes.document) -> list[Statement]:
    """Return the statements of a page, in order, each with what it and its proof refer to."""
    found: list[Statement] = []
    for node in doctree.findall(nodes.Element):
        if isinstance(node, proof_node) and found and _follows_statement(node):
            last = found[-1]
            needs = dict.fromkeys([*last.needs, *_targets(node)])
            found[-1] = Statement(last.label, last.kind, last.title, tuple(needs))
        elif node.get("realtype") in SHORT and node.get("label"):
            needs = dict.fromkeys(_targets(node))
            title = node[0].astext().strip().removeprefix("(").removesuffix(")")
            found.append(Statement(node["label"], node["realtype"], title, tuple(needs)))
    return [
        Statement(s.label, s.kind, s.title, tuple(n for n in s.needs if n != s.label))
        for s in found
    ]


def _follows_statement(proof: nodes.Element) -> bool:
    """Tell whether a proof stands right behind a statement, a proof of it, or a comment."""
    before = proof.parent.children[: proof.parent.index(proof)]
    for node in reversed(before):
        if isinstance(node, nodes.Element) and node.get("realtype") in SHORT:
            return True
        if not isinstance(node, proof_node | nodes.comment | nodes.target):
            return False
    return False


def _targets(node: nodes.Element) -> Iterable[str]:
    for link in node.findall(pending_xref):
        yield link["reftarget"]


def titles(doctree: nodes.document) -> dict[str, str]:
    """Return label -> title of every numbered box of a page, algorithms too."""
    return {
        node["label"]: node[0].astext().strip().removeprefix("(").removesuffix(")")
        for node in doctree.findall(nodes.Element)
        if node.get("realtype") and node.get("label") and isinstance(node[0], nodes.title)
    }


def note(app: Sphinx, doctree: nodes.document) -> None:
    """Keep what a page that was just read says."""
    if app.env.docname.startswith(CHAPTERS):
        _kept(app.env)[app.env.docname] = statements(doctree)
    _titles(app.env)[app.env.docname] = titles(doctree)


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what a page said that is removed or about to be read again."""
    _kept(env).pop(docname, None)
    _titles(env).pop(docname, None)


def _titles(env: BuildEnvironment) -> dict[str, dict[str, str]]:
    if not hasattr(env, "deqbook_titles"):
        env.deqbook_titles = {}  # type: ignore[attr-defined]
    return env.deqbook_titles  # type: ignore[attr-defined]


def _kept(env: BuildEnvironment) -> dict[str, list[Statement]]:
    if not hasattr(env, "deqbook_statements"):
        env.deqbook_statements = {}  # type: ignore[attr-defined]
    return env.deqbook_statements  # type: ignore[attr-defined]


def redraw(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Name the pages with a map if what it shows has changed."""
    shown = (sorted(_kept(env).items()), sorted(_standings(env).items()))
    before = getattr(env, "deqbook_map_shown", None)
    env.deqbook_map_shown = shown  # type: ignore[attr-defined]
    pages: set[str] = getattr(env, "deqbook_map_pages", set()) & env.found_docs
    return sorted(pages) if shown != before else []


def _standings(env: BuildEnvironment) -> dict[str, str]:
    """Return label -> standing, the least of its claims; the ledger has read them already."""
    found: dict[str, str] = {}
    order = list(STATUS)
    for file in getattr(env, "deqbook_ledger", {}).values():
        for claim in json.loads(Path(file).read_text(encoding="utf-8"))["claims"]:
            name = standing(claim)
            known = found.get(claim["ref"])
            if known is None or order.index(name) > order.index(known):
                found[claim["ref"]] = name
    return found


@dataclass(frozen=True)
class Box:
    """A statement with its number, its address, its colour and its place in the drawing."""

    statement: Statement
    number: str
    address: str
    standing: str
    x: int
    y: int

    @property
    def name(self) -> str:
        """Its short name, ``Thm 3.4``."""
        return f"{SHORT[self.statement.kind]} {self.number}"


def layout(
    pages: Mapping[str, list[Statement]],
    numbers: Mapping[str, str],
    addresses: Mapping[str, str],
    standings: Mapping[str, str],
) -> tuple[dict[str, Box], dict[str, int], int]:
    """Give every statement its place, page by page; return the boxes, the bands, the height."""
    boxes: dict[str, Box] = {}
    bands: dict[str, int] = {}
    top = BAND // 2
    for page, found in pages.items():
        if not found:
            continue
        bands[page] = top
        for k, one in enumerate(found):
            line, column = divmod(k, PER_LINE)
            boxes[one.label] = Box(
                one,
                numbers[one.label],
                addresses[one.label],
                standings.get(one.label, ""),
                LEFT + column * (BOX + GAP),
                top + line * (HEIGHT + GAP),
            )
        top += (1 + (len(found) - 1) // PER_LINE) * (HEIGHT + GAP) + BAND
    return boxes, bands, top


def draw(
    boxes: Mapping[str, Box], bands: Mapping[str, int], titles: Mapping[str, str], height: int
) -> str:
    """Draw the map."""
    order = [*STATUS, ""]
    used = sorted({b.standing for b in boxes.values()}, key=order.index)
    parts = [_key(used), _choice(boxes)]
    parts.append(
        '<div class="deq-scroll deq-map" tabindex="0" role="region" '
        'aria-label="Map of the theorems">'
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="group" aria-label="Statements of the book, page by page; lines lead to what a '
        'statement rests on">'
    )
    for page, y in bands.items():
        parts.append(
            f'<text class="deq-map-page" x="0" y="{y + 16}">{html.escape(titles[page])}</text>'
        )
    for one in boxes.values():
        for need in one.statement.needs:
            if need in boxes:
                parts.append(_line(one, boxes[need]))
    parts += [_box(one, boxes) for one in boxes.values()]
    parts.append("</svg></div>")
    parts.append(_list(boxes))
    return "\n".join(parts)


def _line(one: Box, need: Box) -> str:
    x, y = one.x + BOX / 2, float(one.y)
    u, v = need.x + BOX / 2, float(need.y + HEIGHT)
    if need.y == one.y:  # side by side: an arch above both
        v = float(need.y)
        bend = f"C {x:.0f} {y - 20:.0f} {u:.0f} {v - 20:.0f}"
    else:
        lift = (y - v) / 2
        bend = f"C {x:.0f} {y - lift:.0f} {u:.0f} {v + lift:.0f}"
    names = f'data-from="{one.statement.label}" data-to="{need.statement.label}"'
    return f'<path {names} d="M {x:.0f} {y:.0f} {bend} {u:.0f} {v:.0f}"/>'


def _box(one: Box, boxes: Mapping[str, Box]) -> str:
    kind = one.standing.replace(" ", "-") or "none"
    needs = " ".join(n for n in one.statement.needs if n in boxes)
    told = f"{one.name}, {one.statement.title}: {STATUS.get(one.standing, NO_CLAIM)}"
    return (
        f'<a id="map-{one.statement.label}" href="{html.escape(one.address)}" '
        f'class="deq-map-box deq-{kind}" data-needs="{needs}" aria-label="{html.escape(told)}">'
        f"<title>{html.escape(told)}</title>"
        f'<rect x="{one.x}" y="{one.y}" width="{BOX}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{one.x + BOX // 2}" y="{one.y + 16}">{one.name}</text></a>'
    )


def _key(used: Iterable[str]) -> str:
    """Explain the colours."""
    items = "".join(
        f'<li><span class="deq-map-sample deq-{s.replace(" ", "-") or "none"}"></span>'
        f"{STATUS.get(s, NO_CLAIM)}</li>"
        for s in used
    )
    return f'<ul class="deq-map-key">{items}</ul>'


def _choice(boxes: Mapping[str, Box]) -> str:
    """Write the choice of a statement; a script shows it and what it lights up."""
    options = "".join(
        f'<option value="{label}">{html.escape(f"{b.name} {b.statement.title}")}</option>'
        for label, b in boxes.items()
    )
    return (
        '<p class="deq-map-choice" hidden><label for="deq-map-choice">Show what rests under '
        '</label><select id="deq-map-choice"><option value="">(choose a statement)</option>'
        f'{options}</select></p><div class="deq-map-path" aria-live="polite"></div>'
    )


def _list(boxes: Mapping[str, Box]) -> str:
    """Write the map as a list, for those who read it."""
    users: dict[str, list[str]] = {label: [] for label in boxes}
    for label, b in boxes.items():
        for need in b.statement.needs:
            if need in users:
                users[need].append(label)
    rows = []
    for label, b in boxes.items():
        parts = [
            f"{word} {', '.join(_link(boxes[n]) for n in names)}"
            for word, names in (
                ("rests on", [n for n in b.statement.needs if n in boxes]),
                ("is used by", users[label]),
            )
            if names
        ]
        if parts:
            rows.append(
                f"<li>{_link(b)} ({html.escape(b.statement.title)}) {'; '.join(parts)}.</li>"
            )
    return (
        '<details class="deq-map-list"><summary>The map as a list</summary><ul>'
        f"{''.join(rows)}</ul></details>"
    )


def _link(b: Box) -> str:
    return f'<a href="{html.escape(b.address)}">{b.name}</a>'


def fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the drawing into a page that asks for it."""
    for place in list(doctree.findall(theorem_map)):
        if app.builder.format != "html":
            place.replace_self([])
            continue
        env = app.env
        kept = {p: _kept(env)[p] for p in sorted(_kept(env))}
        numbers, addresses = {}, {}
        for page, found in kept.items():
            for one in found:
                numbers[one.label] = ".".join(map(str, _number(env, one.label)))
                addresses[one.label] = f"{app.builder.get_relative_uri(docname, page)}#{one.label}"
        boxes, bands, height = layout(kept, numbers, addresses, _standings(env))
        titles = {p: _page_name(env, p) for p in kept}
        place.replace_self(nodes.raw("", draw(boxes, bands, titles, height), format="html"))


def _number(env: BuildEnvironment, label: str) -> tuple[int, ...]:
    """Return the number of a box, ``(3, 12)``."""
    known = env.proof_list[label]  # type: ignore[attr-defined]
    counted = env.toc_fignumbers.get(known["docname"], {})
    number: tuple[int, ...] = counted.get(known["countertype"], {}).get(label, ())
    return number


class StatementIndex(ProofIndex):
    """All statements and algorithms by kind, in the order of their numbers."""

    name = "prf"
    localname = "Index of statements"
    shortname = "statements"

    def generate(
        self, docnames: Iterable[str] | None = None
    ) -> tuple[list[tuple[str, list[tuple[Any, ...]]]], bool]:
        """Return for each kind its entries, as Sphinx wants them, and that they do not fold."""
        env = self.domain.env
        named = {label: title for page in _titles(env).values() for label, title in page.items()}
        kinds: dict[str, list[tuple[tuple[int, ...], str, str, str]]] = {}
        for label, known in getattr(env, "proof_list", {}).items():
            if label in named and (docnames is None or known["docname"] in docnames):
                kind = known["realtype"].capitalize()
                place = (_number(env, label), label, named[label], known["docname"])
                kinds.setdefault(kind, []).append(place)
        content: list[tuple[str, list[tuple[Any, ...]]]] = []
        for kind in sorted(kinds):
            entries: list[tuple[Any, ...]] = []
            for number, label, title, page in sorted(kinds[kind]):
                name = f"{kind} {'.'.join(map(str, number))}" + (f" ({title})" if title else "")
                where = _page_name(env, page)
                entries.append((name, 0, page, label, "", "", where))
            content.append((kind, entries))
        return content, False


def _page_name(env: BuildEnvironment, page: str) -> str:
    """Name a page by its number, ``3.2``."""
    number = ".".join(map(str, env.toc_secnumbers.get(page, {}).get("", ())))
    return f"{'Page' if '.' in number else 'Chapter'} {number}" if number else page


def dress(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Give a page with a map its style and its script, and no other page."""
    if page in getattr(app.env, "deqbook_map_pages", ()):
        app.add_css_file("theorem_map.css")
        app.add_js_file("theorem_map.js")


class TheoremMap(SphinxDirective):
    """``{theorem-map}``: the map."""

    def run(self) -> list[nodes.Node]:
        """Mark the place."""
        if not hasattr(self.env, "deqbook_map_pages"):
            self.env.deqbook_map_pages = set()  # type: ignore[attr-defined]
        self.env.deqbook_map_pages.add(self.env.docname)  # type: ignore[attr-defined]
        return [theorem_map()]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_node(theorem_map)
    ProofDomain.indices = {StatementIndex}
    app.add_directive("theorem-map", TheoremMap)
    app.connect("doctree-read", note)
    app.connect("env-purge-doc", forget)
    app.connect("env-updated", redraw)
    app.connect("doctree-resolved", fill)
    app.connect("html-page-context", dress)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
