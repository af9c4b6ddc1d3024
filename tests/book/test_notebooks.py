"""Every chapter as a notebook: nothing unresolved, the numbers of the pages, links that lead."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import zipfile
from collections import Counter
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import built_site
import nbformat
import notebooks
import pytest
from anywhere import CODE, leftovers
from bs4 import BeautifulSoup, NavigableString, Tag

ROOT = built_site.ROOT
CHAPTERS = [page for page in built_site.toc_pages() if page.startswith("chapters/")]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
BASE = notebooks.site_address(os.environ) or "../"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
SOLUTION = re.compile(r"<details>\n<summary>Solution to .*?</details>", re.DOTALL)

PAGE = """
<article><section id="a-page"><span id="chap-a"></span>
<h1><span class="section-number">3.1. </span>A page<a class="headerlink" href="#">#</a></h1>
<p class="deq-opening"><span><strong>Reading</strong> 5 minutes</span><span>x</span></p>
<section id="kinks"><span id="sec-kinks"></span><h2><span class="section-number">3.1.1. </span>
On <span class="math">\\(x\\)</span> and PL*</h2></section>
<div class="proof proposition admonition" id="prop-one"><p class="admonition-title">
<span class="caption-number">Proposition 3.2 </span> (One)</p></div>
<div class="exercise admonition" id="ex-one"><p class="admonition-title">
<span class="caption-number">Exercise 3.1 </span> (Try (easy))</p></div>
<div class="math" id="equation-eq-one"><span class="eqno">(3.4)<a class="headerlink">#</a></span>
</div>
<figure id="fig-one"><figcaption><p><span class="caption-number">Fig. 3.7 </span>
<span class="caption-text">Curves.</span></p></figcaption></figure>
<p><span class="bibtex-citation" id="id1">Bai <em>et al.</em>
[<a href="../book/references.html#id7">2019</a>]</span></p>
<dl><dt id="term-Anderson-s-method">Anderson’s method</dt></dl></section></article>
"""


@pytest.fixture
def at() -> notebooks.Context:
    index = notebooks.Index()
    notebooks.read_page("chapters/03a_page", PAGE, index)
    values = {"gap": {"data": {"text/plain": "0.2512"}}}
    return notebooks.Context("chapters/03a_page", index, values, {"bai2019": "id7"}, "../")


# --- the functions --------------------------------------------------------------------------


HERE = "../chapters/03a_page.html"


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{prf:ref}`prop-one`", f"[Proposition 3.2]({HERE}#prop-one)"),
        ("{prf:ref}`this <prop-one>`", f"[this]({HERE}#prop-one)"),
        ("{ref}`sec-kinks`", rf"[On $x$ and PL\*]({HERE}#sec-kinks)"),
        ("{ref}`the\nkinks <sec-kinks>`", f"[the kinks]({HERE}#sec-kinks)"),
        ("{ref}`ex-one`", f"[Exercise 3.1]({HERE}#ex-one)"),
        ("{numref}`fig-one`", f"[Fig. 3.7]({HERE}#fig-one)"),
        ("{numref}`Figure %s <fig-one>`", f"[Figure 3.7]({HERE}#fig-one)"),
        ("{eq}`eq-one`", f"[(3.4)]({HERE}#equation-eq-one)"),
        ("{doc}`/chapters/03a_page`", f"[A page]({HERE})"),
        ("{doc}`there <03a_page>`", f"[there]({HERE})"),
        ("{term}`Anderson's method`", f"[Anderson's method]({HERE}#term-Anderson-s-method)"),
        ("{cite:t}`bai2019`", "Bai *et al.* [[2019](../book/references.html#id7)]"),
        ("{glue:text}`gap:.2f`", "0.25"),
        ("{glue:text}`gap`", "0.2512"),
        ("(sec-x)=\n## Head", "\x1e## Head"),
        ("$$\na\n$$ (eq-one)", "$$\na \\tag{3.4}\n$$"),
        ("$$\na\n$$\nand $$b$$ (eq-one)", "$$\na\n$$\nand $$b \\tag{3.4}\n$$"),
        ("name\n: its meaning", "- **name**: its meaning"),
        ("```python\n{ref}`x`\n```", "```python\n{ref}`x`\n```"),
        (
            "````{prf:proposition} One\n:label: prop-one\n"
            "Let\n\n$$\nx\n=y\n$$\n\nand $a\n<b$.\n````",
            "> **Proposition 3.2 (One).** Let\n>\n> $$ x =y $$\n>\n> and $a <b$.",
        ),
        (
            "````{prf:algorithm} One\n:label: prop-one\n1. Step.\n````",
            "> **Proposition 3.2 (One).**\n>\n> 1. Step.",
        ),
        (
            "````{prf:proof}\n:class: dropdown\nBy {eq}`eq-one`.\n````",
            "<details>\n<summary>Proof</summary>\n\n"
            f"By [(3.4)]({HERE}#equation-eq-one).\n\n</details>",
        ),
        (
            "````{exercise} Try (easy)\n:label: ex-one\nDo.\n````",
            "\x1e**Exercise 3.1 (Try (easy)).** Do.\n",
        ),
        (
            "````{solution} ex-one\n:class: dropdown\nDone.\n````",
            "<details>\n<summary>Solution to Exercise 3.1</summary>\n\nDone.\n\n</details>\n\x1e",
        ),
        (
            "```{glue:figure} fig\n:name: fig-one\n:alt: None.\n\n"
            "Curves of {glue:text}`gap:.1f`.\n```",
            "**Fig. 3.7.** Curves of 0.3.\n\n<details>\n<summary>The figure in words</summary>\n\n"
            "None.\n\n</details>",
        ),
        (
            "```{glue:figure} fig\n:name: fig-one\n\nMove the slider.\n```",
            "**Fig. 3.7.** Move the slider.",
        ),
        (
            "```{opening}\n:level: first\n:needs: {eq}`eq-one`\n```",
            f"**Reading** 5 minutes · **Level** first · **Needs** [(3.4)]({HERE}#equation-eq-one)",
        ),
    ],
)
def test_myst_becomes_markdown(source: str, shown: str, at: notebooks.Context) -> None:
    assert notebooks.resolve(source, at) == shown


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{ref}`sec-nowhere`", "nothing is labelled"),
        ("{term}`nonsense`", "the glossary has no"),
        ("{doc}`/chapters/99`", "no page"),
        ("{cite:t}`nobody`", "not in the list"),
        ("{cite:p}`bai2019`", "no built page cites"),
        ("{glue:text}`none`", "no value 'none'"),
        ("{strange}`x`", "no rule for the role"),
        ("```{strange}\n```", "no rule for the directive"),
        ("````{prf:lemma} No label\nText.\n````", "has no label"),
        ("$$\na\n$$ (eq-none)", "has no number"),
        ("````{prf:proof}\nNo end.", "not closed"),
    ],
)
def test_what_cannot_be_shown_stops_the_build(source, fault, at) -> None:
    with pytest.raises(notebooks.Unresolved, match=fault):
        notebooks.resolve(source, at)


def test_path_of_a_notebook() -> None:
    assert notebooks.notebook_path("chapters/04_ntk") == "notebooks/04_ntk.ipynb"
    assert notebooks.notebook_path("chapters/04_ntk", True) == "notebooks/04_ntk.student.ipynb"


def test_a_page_needs_what_it_imports() -> None:
    names = {"sklearn": ["scikit-learn"], "torch": ["torch"], "deqbook": ["deqbook"]}
    cells = ["import os, torch.nn as nn\nfrom deqbook.data import load", "from sklearn import svm"]
    assert notebooks.imported(cells, names) == ["scikit-learn", "torch"]


SOURCE = """---
kernelspec:
  display_name: Python 3
  name: python3
---

# A page

Text.

```{code-cell} ipython3
:tags: [remove-cell]
x = 1
```

````{exercise} Try (easy)
:label: ex-one
Do.
````

````{solution} ex-one
Done.
````

## End
"""


def test_a_notebook_is_the_same_each_time_and_its_student_lacks_the_solutions(at) -> None:
    first, again = notebooks.make(SOURCE, at), notebooks.make(SOURCE, at)
    assert first == again
    assert [cell.source for cell in first.cells[2:]] == [
        "Text.",
        "x = 1",
        "**Exercise 3.1 (Try (easy)).** Do.\n\n<details>\n<summary>Solution to Exercise 3.1"
        "</summary>\n\nDone.\n\n</details>",
        "## End",
    ]
    assert first.cells[0].source.startswith("# 3.1. A page\n")
    assert first.cells[3].metadata == {
        "tags": ["remove-cell"],
        "jupyter": {"source_hidden": True},
    }
    student = notebooks.Context(**{**vars(at), "solutions": False})
    assert "Done" not in str(notebooks.make(SOURCE, student))


def run_first_cell(source: str, monkeypatch: pytest.MonkeyPatch, have: list[str]) -> list[str]:
    """Run a setup cell where deqbook is missing; return what it gave to pip, one line a call."""
    calls: list[str] = []
    found = [SimpleNamespace(metadata={"Name": name}) for name in have]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    monkeypatch.setattr(subprocess, "run", lambda line, check: calls.append(" ".join(line[5:])))
    for name in THREADS:
        monkeypatch.setenv(name, "7")
    exec(compile(source, "setup", "exec"), {})
    assert [os.environ[name] for name in THREADS] == ["1"] * 3
    return calls


WHEEL = notebooks.Wheel("deqbook-1.whl", "f00", ("torch>=2.4", "lazy-loader>=0.4", "pooch>=1.8"))


def test_the_first_cell_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = notebooks.setup_source(WHEEL.needs, WHEEL, "https://a.github.io/b/")
    end = "--no-deps https://a.github.io/b/wheels/deqbook-1.whl#sha256=f00"
    assert run_first_cell(source, monkeypatch, ["Torch", "lazy_loader"]) == ["pooch>=1.8", end]
    calls = run_first_cell(source, monkeypatch, ["pooch", "lazy-loader"])
    assert calls == ["torch>=2.4", end]


def test_the_first_cell_says_when_it_has_nothing_to_install(monkeypatch) -> None:
    for wheel in (WHEEL, None):
        source = notebooks.setup_source(WHEEL.needs, wheel, "nowhere/")
        with pytest.raises(RuntimeError, match="deqbook is not installed"):
            run_first_cell(source, monkeypatch, [])


# --- the notebooks of the built site --------------------------------------------------------


@lru_cache
def article(page: str) -> Tag:
    html = (built_site.require_site() / f"{page}.html").read_text(encoding="utf-8")
    found = BeautifulSoup(html, "html.parser").find("article")
    assert isinstance(found, Tag)
    for bulk in found.select("pre, script, .cell_output, .headerlink"):
        bulk.decompose()
    return found


@lru_cache
def anchors(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\bid="([^"]+)"', path.read_text(encoding="utf-8")))


@lru_cache
def built(page: str, student: bool = False) -> Any:
    path = built_site.require_site() / notebooks.notebook_path(page, student)
    return json.loads(path.read_text(encoding="utf-8"))


def sources(page: str, kind: str, student: bool = False) -> list[str]:
    cells = built(page, student)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def text_of(page: str, student: bool = False) -> str:
    """Return the prose of a notebook without its own first cell and without blocks of code."""
    return CODE.sub("", "\n\n".join(sources(page, "markdown", student)[1:]))


def texts(found: list[Tag]) -> list[str]:
    return [tag.get_text().strip() for tag in found]


both = pytest.mark.parametrize("student", [False, True], ids=["full", "student"])
every = pytest.mark.parametrize("page", CHAPTERS)


@pytest.mark.book
@every
@both
def test_nothing_is_left_to_resolve(page: str, student: bool) -> None:
    assert not leftovers(sources(page, "markdown", student))


@pytest.mark.book
@every
@both
def test_notebook_is_valid(page: str, student: bool) -> None:
    notebook = built(page, student)
    nbformat.validate(nbformat.from_dict(notebook))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert ids == [f"cell-{number:03d}" for number in range(len(ids))]
    assert not [cell for cell in notebook["cells"] if not "".join(cell["source"]).strip()]


@pytest.mark.book
@every
def test_numbers_are_those_of_the_page(page: str) -> None:
    text = text_of(page)
    boxes = article(page).select("div.proof > .admonition-title > .caption-number")
    tasks = article(page).select("div.exercise > .admonition-title > .caption-number")
    figures = article(page).select("figcaption .caption-number")
    equations = article(page).select(".eqno")
    assert re.findall(r"^> \*\*([A-Z][a-z]+ [\d.]+\d)\b", text, re.MULTILINE) == texts(boxes)
    assert re.findall(r"^\*\*(Exercise [\d.]+\d)\b", text, re.MULTILINE) == texts(tasks)
    assert re.findall(r"^\*\*(Fig\. [\d.]+\d)\.", text, re.MULTILINE) == texts(figures)
    assert re.findall(r"\\tag\{(.*?)\}", text) == [e.strip("()") for e in texts(equations)]
    assert boxes or tasks


@pytest.mark.book
@every
def test_titles_are_those_of_the_page(page: str) -> None:
    def words(title: str) -> str:
        return re.sub(r"\W", "", re.sub(r"\$(.*?)\$", r"\1", title))

    kinds = "div.proof > .admonition-title, div.exercise > .admonition-title"
    titles = [words(t) for t in texts(article(page).select(kinds)) if re.search(r"\d", t)]
    heads = re.findall(r"^(?:> )?\*\*([A-Z][a-z]+ \d.*?)\.\*\*", text_of(page), re.MULTILINE)
    assert [words(head) for head in heads] == titles


@pytest.mark.book
@every
def test_measured_values_are_those_of_the_page(page: str) -> None:
    def plain(text: str) -> str:
        return re.sub(r"[\s‘’“”'\"*_\\>]+|--|[–—…]|\.\.\.", "", text)

    text, checked = plain(text_of(page)), 0
    for value in article(page).select(".pasted-text"):
        before, after = value.previous_sibling, value.next_sibling
        start = plain(before)[-15:] if isinstance(before, NavigableString) else ""
        end = plain(after)[:15] if isinstance(after, NavigableString) else ""
        assert start + plain(value.get_text()) + end in text
        checked += bool(start or end)
    assert checked


@pytest.mark.book
@every
def test_links_show_and_lead_where_those_of_the_page_do(page: str) -> None:
    def plain(text: str) -> str:
        return re.sub(r"[\s‘’'\"“”*\\$()`]+", "", text)

    wanted: Counter[tuple[str, str]] = Counter()
    for link in article(page).select("a.reference.internal"):
        if link.find_parent(class_=["admonition-title", "toctree-wrapper"]) is None:
            shown = plain(link.get_text())
            wanted[shown, notebooks.target(page, str(link["href"]))] += 1
    found = Counter(
        (plain(shown), address.removeprefix(BASE))
        for shown, address in LINK.findall(text_of(page))
        if address.startswith(BASE)
    )
    assert found == wanted


@pytest.mark.book
@every
@both
def test_links_lead_to_files_and_anchors(page: str, student: bool) -> None:
    site = built_site.require_site()
    links = LINK.findall("\n".join(sources(page, "markdown", student)))
    assert links
    for shown, address in links:
        if not address.startswith(BASE):
            assert address.startswith("https://"), f"[{shown}]({address})"
            continue
        path, _, anchor = address.removeprefix(BASE).partition("#")
        assert (site / path).is_file(), f"[{shown}]({address}): no such file"
        if anchor:
            assert unquote(anchor) in anchors(site / path), f"[{shown}]({address}): no such anchor"


@pytest.mark.book
@every
def test_solutions_are_folded_or_absent(page: str) -> None:
    full, student = text_of(page), text_of(page, student=True)
    solutions = SOLUTION.findall(full)
    assert len(solutions) == len(article(page).select("div.solution"))
    assert "Solution to" not in student
    assert SOLUTION.sub("", full).split() == student.split()
    proofs = len(article(page).select("details.deq-proof, div.proof.proof-type-proof"))
    assert full.count("<summary>Proof") == student.count("<summary>Proof") >= proofs
    assert full.count("<details>") == full.count("</details>")


@pytest.mark.book
@every
@both
def test_all_code_of_the_page_is_there_in_order(page: str, student: bool) -> None:
    source = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```\{code-cell\}.*?\n(.*?)\n?^```$", source, re.DOTALL | re.MULTILINE)
    tags = [re.match(r":tags: \[(.*)\]\n", cell) for cell in cells]
    bare = [re.sub(r"\A(:.*\n)+", "", cell).strip("\n") for cell in cells]
    assert sources(page, "code", student)[1:] == bare
    code = [cell for cell in built(page, student)["cells"] if cell["cell_type"] == "code"][1:]
    for cell, tag in zip(code, tags):
        assert cell["metadata"].get("tags", []) == (tag[1].split(", ") if tag else [])
        assert ("jupyter" in cell["metadata"]) == (tag is not None)
        assert not cell["outputs"]


@pytest.mark.book
@every
@both
def test_the_notebook_begins_with_its_origin_and_the_setup(page, student, monkeypatch) -> None:
    site = built_site.require_site()
    head, setup = built(page, student)["cells"][:2]
    assert f"({BASE}{page}.html)" in "".join(head["source"])
    assert notebooks.LICENCE in "".join(head["source"])
    title = article(page).find("h1")
    assert isinstance(title, Tag)
    first = "".join(head["source"]).partition("\n")[0].removeprefix("# ")
    assert re.sub(r"[\\$]", "", first) == title.get_text().strip().replace("’", "'")
    assert setup["cell_type"] == "code"
    for name in THREADS:
        monkeypatch.setenv(name, "7")
    names: dict[str, Any] = {}
    exec("".join(setup["source"]).split("\ndef ")[0], {}, names)
    assert [os.environ[name] for name in THREADS] == ["1"] * 3
    wheel = site / names["WHEEL"].removeprefix(BASE)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == names["SHA256"]
    assert {"torch", "numpy"} <= {re.match(r"[\w-]+", need)[0] for need in names["NEEDS"]}


@pytest.mark.book
def test_the_wheel_is_complete() -> None:
    (wheel,) = (built_site.require_site() / notebooks.WHEELS).glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "deqbook"
    wanted = {
        f"deqbook/{path.relative_to(package).as_posix()}"
        for ending in ("py", "pyi", "npz", "csv", "json")
        for path in package.rglob(f"*.{ending}")
    }
    assert wanted <= inside
