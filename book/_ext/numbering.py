"""Chapters count from zero, and pages are numbered without being read again.

Sphinx counts the entries of a numbered table of contents from one. This book begins with a
chapter 0, which a reader may skip. So one is taken off every first number, after the sections are
numbered and before figures, theorems and equations are numbered after them.

For that second step Sphinx would load every page of the book at every build. All it takes from a
page is an outline: its sections, what is counted in them, and the pages that hang below. That is
noted when a page is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector
from sphinx.util import url_re

Number = tuple[int, ...]


class Counted(NamedTuple):
    """A figure, a theorem, an exercise or a table: its kind and its anchor."""

    kind: str
    anchor: str


class Section(NamedTuple):
    """A section's anchor, and what stands in it, in order."""

    anchor: str
    parts: tuple[Any, ...]  # of Counted, Section, and str for a page that hangs here


def kind_of(node: nodes.Element, env: BuildEnvironment) -> str | None:
    """Say as what a node is counted, if at all; a figure without a caption is not."""
    for domain in env.domains.values():
        kind = domain.get_enumerable_node_type(node)
        if kind and (domain.name != "std" or domain.get_numfig_title(node)):  # type: ignore[attr-defined]
            return kind
    return None


def outline(node: nodes.Element, env: BuildEnvironment) -> Iterator[Any]:
    """Yield what of a page matters for numbers."""
    for child in node.children:
        if isinstance(child, nodes.section):
            yield Section(child["ids"][0], tuple(outline(child, env)))
        elif isinstance(child, addnodes.toctree):
            yield from (page for _, page in child["entries"] if not url_re.match(page))
        elif isinstance(child, nodes.Element):
            kind = kind_of(child, env)
            if kind and child["ids"]:
                yield Counted(kind, child["ids"][0])
            yield from outline(child, env)


def note(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the outline of a page that was just read."""
    _outlines(app.env)[app.env.docname] = tuple(outline(doctree, app.env))


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop the outline of a page that is removed or about to be read again."""
    _outlines(env).pop(docname, None)


def _outlines(env: BuildEnvironment) -> dict[str, tuple[Any, ...]]:
    if not hasattr(env, "deqbook_outlines"):
        env.deqbook_outlines = {}  # type: ignore[attr-defined]
    return env.deqbook_outlines  # type: ignore[attr-defined]


def number_counted(env: BuildEnvironment) -> dict[str, dict[str, dict[str, Number]]]:
    """Return the number of everything that is counted, by page, kind and anchor."""
    found: dict[str, dict[str, dict[str, Number]]] = {}
    counts: Counter[tuple[str, Number]] = Counter()
    visited: set[str] = set()
    depth = env.config.numfig_secnum_depth

    def walk(page: str, parts: tuple[Any, ...], number: Number) -> None:
        for part in parts:
            if isinstance(part, Section):
                numbers = env.toc_secnumbers.get(page, {})
                own = numbers.get(f"#{part.anchor}", numbers.get(""))
                walk(page, part.parts, own or number)
            elif isinstance(part, Counted):
                within = number[:depth]
                counts[part.kind, within] += 1
                kinds = found.setdefault(page, {}).setdefault(part.kind, {})
                kinds[part.anchor] = (*within, counts[part.kind, within])
            elif part in _outlines(env) and part not in visited:
                visited.add(part)
                walk(part, _outlines(env)[part], number)

    root = env.config.root_doc
    visited.add(root)
    walk(root, _outlines(env)[root], ())
    return found


def count_from_zero(env: BuildEnvironment) -> None:
    """Take one off each chapter's number."""
    for page, numbers in env.toc_secnumbers.items():
        env.toc_secnumbers[page] = {
            anchor: (number[0] - 1, *number[1:]) if number else number
            for anchor, number in numbers.items()
        }
        for node in [*env.tocs[page].findall(nodes.reference), env.titles[page]]:
            if number := node.get("secnumber"):
                node["secnumber"] = [number[0] - 1, *number[1:]]


def renumber(collector: TocTreeCollector, app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Number sections, then what is counted in them; name the pages whose numbers changed.

    The collectors that number sections cannot tell: they compare with what stood here at the end.
    """
    before: tuple[dict[str, Any], ...] = env.toc_secnumbers, env.toc_fignumbers
    collector.assign_section_numbers(env)
    count_from_zero(env)
    env.toc_fignumbers = number_counted(env) if env.config.numfig else {}
    after: tuple[dict[str, Any], ...] = env.toc_secnumbers, env.toc_fignumbers
    return sorted(
        page
        for page in env.found_docs
        if any(old.get(page) != new.get(page) for old, new in zip(before, after))
    )


def take_over(app: Sphinx) -> None:
    """Stand in for Sphinx's numbering, whichever extension extended it."""
    event = "env-get-updated"
    for place, listener in enumerate(app.events.listeners[event]):
        collector = getattr(listener.handler, "__self__", None)
        if isinstance(collector, TocTreeCollector):
            handler = partial(renumber, collector)
            app.events.listeners[event][place] = listener._replace(handler=handler)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", take_over)
    app.connect("doctree-read", note)
    app.connect("env-purge-doc", forget)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
