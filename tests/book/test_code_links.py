"""Which names of a page's code lead to the reference, and which must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from built_site import toc_pages
from code_links import link_block, linked_names
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

DOCUMENTED = [
    "deqbook.data.bundled.load",
    "deqbook.solvers.fixed_point",
    "deqbook.models.dense.MonDEQ",
]
ADDRESS = {
    name: f"#{name}"
    for name in (*DOCUMENTED, "deqbook.solvers", "deqbook.models.dense.MonDEQ.init")
}


def links(*cells: str) -> list[tuple[str, str]]:
    """Return where the last of these cells leads: (address, text) of each link."""
    names = linked_names(cells, DOCUMENTED)
    block = highlight(cells[-1], get_lexer_by_name("ipython3"), HtmlFormatter())
    linked = link_block(block, names, ADDRESS)
    assert re.sub("<[^>]*>", "", linked) == re.sub("<[^>]*>", "", block), "the code itself changed"
    found = re.findall(r'<a class="deq-code" href="#([^"]*)">(.*?)</a>', linked)
    return [(address, re.sub("<[^>]*>", "", text)) for address, text in found]


def test_an_import_leads_to_module_and_entry() -> None:
    assert links("from deqbook.solvers import fixed_point") == [
        ("deqbook.solvers", "deqbook.solvers"),
        ("deqbook.solvers.fixed_point", "fixed_point"),
    ]


def test_a_later_cell_uses_what_an_earlier_one_imported() -> None:
    assert links(
        "from deqbook.solvers import fixed_point as fp", "%matplotlib inline\nz = fp(f)"
    ) == [("deqbook.solvers.fixed_point", "fp")]


def test_a_room_offers_the_names_of_its_modules() -> None:
    assert links("from deqbook.data import load", 'load("mnist01").d') == [
        ("deqbook.data.bundled.load", "load")
    ]


def test_a_method_leads_to_its_own_entry_if_it_has_one() -> None:
    first = "from deqbook.models import MonDEQ"
    assert links(first, "MonDEQ.init(m=3)") == [("deqbook.models.dense.MonDEQ.init", "MonDEQ.init")]
    assert links(first, "MonDEQ.other") == [("deqbook.models.dense.MonDEQ", "MonDEQ")]


@pytest.mark.parametrize(
    "cell",
    [
        "torch.load(file)",  # an attribute of something else
        "draw(load=2)",  # the name of an argument
        "load = 3\nload",  # a variable
        "def draw(load):\n    return load",
        "def load():\n    pass",
        "for load in range(3):\n    load",
    ],
)
def test_what_may_mean_something_else_gets_no_link(cell: str) -> None:
    assert links("from deqbook.data import load", cell) == []


def test_an_undocumented_name_gets_no_link() -> None:
    assert (
        links("from deqbook.pages.p01a_contraction.lab import fixed_point", "fixed_point()") == []
    )


@pytest.mark.parametrize("page", [page for page in toc_pages() if page.startswith("chapters/")])
def test_every_chapter_leads_to_the_reference(site: Path, page: str) -> None:
    text = (site / f"{page}.html").read_text(encoding="utf-8")
    assert text.count('<a class="deq-code" href="../book/reference/') > 20
