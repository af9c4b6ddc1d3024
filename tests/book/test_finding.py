"""Pages are cut into places that can be found."""

from __future__ import annotations

from pathlib import Path

import finding
import pytest
from bs4 import BeautifulSoup

PAGE = r"""<html><body><article><section id="top"><h1>1.1. Contraction
<a class="headerlink">#</a></h1>
<p>Opening with <span class="math">\(\|W\|\)</span>.</p>
<section id="sec"><h2>1.1.1. Many</h2><p>About many.</p>
<div class="proof theorem admonition" id="thm-one"><p class="admonition-title">Theorem 1.3 (One)</p>
<p>There is <a href="x" id="y">one</a> if \(\lambda_{\max}&lt;1\).</p></div>
<div class="cell"><pre>import torch</pre><div class="cell_output">0.5 printed</div></div>
<section id="deep"><h3>Deeper</h3><p>Down there.</p></section></section></section>
<div class="math" id="equation-one">\[z=1\]</div>
<dl class="glossary"><dt id="term-prox">prox</dt><dd><p>A map.</p></dd></dl>
<dl class="py function"><dt class="sig" id="deqbook.linalg.vec">vec(M)</dt>
<dd><p>Stack.</p></dd></dl>
<table class="deq-ledger"><tbody><tr><td><a href="../chapters/1.html#thm-one">It holds</a>
<code class="deq-claim-id">gao2022.lemma1</code></td></tr></tbody></table>
</article></body></html>"""


def test_a_page_is_cut_into_its_places() -> None:
    found = {p.url: p for p in finding.places("book/1", PAGE)}
    assert found.pop("book/1.html#equation-one").preview == r"\[z=1\]"
    assert found["book/1.html#term-prox"].preview == "<p>A map.</p>"
    shown = found["book/1.html#thm-one"].preview
    assert shown.startswith('<p class="admonition-title">Theorem 1.3 (One)</p>')
    assert "href" not in shown
    assert {url: (p.kind, p.title, p.text) for url, p in found.items()} == {
        "book/1.html": ("page", "1.1. Contraction", "Opening with ‖W‖."),
        "book/1.html#sec": ("section", "1.1.1. Many", "About many."),
        "book/1.html#deep": ("section", "Deeper", "Down there."),
        "book/1.html#thm-one": ("theorem", "Theorem 1.3 (One)", "There is one if λ_max<1."),
        "book/1.html#term-prox": ("term", "prox", "A map."),
        "book/1.html#deqbook.linalg.vec": ("package", "linalg.vec", "Stack."),
        "chapters/1.html#thm-one": ("claim", "gao2022.lemma1: It holds", ""),
    }
    assert found["book/1.html#sec"].code == "import torch"


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"\tfrac12\|W\|^2", "1/2‖W‖^2"),
        (r"\operatorname{prox}_f", "prox_f"),
        (r"z^\star=f(z^\star,x)", "z^⋆=f(z^⋆,x)"),
    ],
)
def test_formulas_are_written_in_letters(tex: str, text: str) -> None:
    assert finding.readable(tex) == text


def test_a_place_becomes_a_page_of_its_own_without_markup() -> None:
    place = finding.Place("lemma", "A < B", "Page & more", "x.html#a", "<b>", "x = 1 < 2")
    soup = BeautifulSoup(finding.document(place), "html.parser")
    assert soup.h1.get_text() == "A < B"
    assert soup.select_one("[data-pagefind-meta=place]").get_text() == "x.html#a"
    assert [p.get_text() for p in soup.select("p")] == ["<b>", "x = 1 < 2"]


def test_pages_that_are_as_they_were_are_not_cut_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "book").mkdir()
    for name in ("a", "b"):
        (tmp_path / "book" / f"{name}.html").write_text(PAGE)
    kept, cut = tmp_path / "kept", []
    real = finding.places
    monkeypatch.setattr(finding, "places", lambda page, text: cut.append(page) or real(page, text))
    first = finding.collect(tmp_path, kept, ["book/a", "book/b"])
    (tmp_path / "book" / "b.html").write_text(PAGE.replace("About many", "About few"))
    second = finding.collect(tmp_path, kept, ["book/a", "book/b"])
    assert cut == ["book/a", "book/b", "book/b"]
    assert len(first) == len(second)
    assert first != second
