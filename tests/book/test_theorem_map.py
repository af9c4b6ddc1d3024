"""The map of the theorems says what the pages say."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import theorem_map
from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

ONE = """# One

```{prf:definition} Averaged
:label: def-averaged
A map is averaged if so.
```

```{prf:lemma} Averaged maps converge
:label: lem-converge
See {prf:ref}`def-averaged`.
```

```{prf:proof}
Trivial.
```

Text in between, with {prf:ref}`thm-last`.

```{prf:proof}
Not of the lemma: {prf:ref}`thm-last`.
```
"""
TWO = """# Two

```{prf:theorem} The last
:label: thm-last
A statement.
```

```{prf:proof}
:class: dropdown
By {prf:ref}`lem-converge`, and {prf:ref}`thm-last` is this.
```
"""
CONFIG = {
    "extensions": ["myst_nb", "sphinx_proof", "theorem_map"],
    "nb_execution_mode": "off",
    "html_theme": "basic",
    "exclude_patterns": ["_build"],
}


def build(root: Path) -> tuple[BeautifulSoup, Sphinx]:
    with docutils_namespace():
        app = Sphinx(
            root, None, root / "_build/html", root / "_build/trees", "html", CONFIG, None,
            io.StringIO(), True,
        )  # fmt: skip
        app.build()
    page = (root / "_build/html/index.html").read_text(encoding="utf-8")
    return BeautifulSoup(page, "html.parser"), app


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters" / "1.md").write_text(ONE)
    (tmp_path / "chapters" / "2.md").write_text(TWO)
    (tmp_path / "index.md").write_text(
        "# Map\n\n```{toctree}\nchapters/1\nchapters/2\n```\n\n```{theorem-map}\n```\n"
    )
    return tmp_path


def lines(page: BeautifulSoup) -> set[tuple[str, str]]:
    return {(p["data-from"], p["data-to"]) for p in page.select(".deq-map path")}


@pytest.mark.book
def test_a_line_leads_to_what_a_statement_or_its_proof_refers_to(book: Path) -> None:
    page, _ = build(book)
    assert lines(page) == {("lem-converge", "def-averaged"), ("thm-last", "lem-converge")}
    links = {a["id"]: a["href"] for a in page.select("a.deq-map-box")}
    assert links == {
        "map-def-averaged": "chapters/1.html#def-averaged",
        "map-lem-converge": "chapters/1.html#lem-converge",
        "map-thm-last": "chapters/2.html#thm-last",
    }
    listed = page.select_one(".deq-map-list").get_text()
    assert "(The last) rests on Lem" in listed
    assert "(Averaged) is used by Lem" in listed


@pytest.mark.book
def test_the_map_is_drawn_again_when_a_page_refers_to_something_else(book: Path) -> None:
    build(book)
    (book / "chapters" / "2.md").write_text(TWO.replace("{prf:ref}`lem-converge`", "magic"))
    page, _ = build(book)
    assert lines(page) == {("lem-converge", "def-averaged")}


def test_statements_of_a_line_do_not_overlap() -> None:
    found = [theorem_map.Statement(str(k), "lemma", "", ()) for k in range(40)]
    names = {s.label: s.label for s in found}
    boxes, _, height = theorem_map.layout({"p": found}, names, names, {})
    places = [(b.x, b.y) for b in boxes.values()]
    assert len(set(places)) == 40
    assert max(x for x, _ in places) + theorem_map.BOX <= theorem_map.WIDTH
    assert max(y for _, y in places) + theorem_map.HEIGHT < height


def test_the_least_standing_of_a_statement_s_claims_colours_it(tmp_path: Path) -> None:
    rows = [{"ref": "thm", "status": "holds", "standing": s} for s in ("partly", "holds")]
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps({"claims": rows}))
    env = type("Env", (), {"deqbook_ledger": {"01": file}})()
    assert theorem_map._standings(env) == {"thm": "partly"}
