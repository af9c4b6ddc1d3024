"""Numbers and formulas as a reader sees them."""

from __future__ import annotations

import math
import re
import unicodedata

import pytest

from deqbook.claims.registry import load_chapters
from deqbook.typeset import HARD, JOINED, formula, number

#: What holds a line together, taken out.
LOOSE = str.maketrans({HARD: " ", JOINED: None})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.282e15, "3.3 × 10¹⁵"),
        (1.975e-10, "2 × 10⁻¹⁰"),
        (9.99e-4, "10⁻³"),
        (1e-3, "0.001"),
        (12345.6, "12346"),
        (99999.9, "100000"),
        (1e5, "10⁵"),
        (0.04988, "0.04988"),
        (-1.5, "−1.5"),
        (-math.inf, "−∞"),
        (math.nan, "not a number"),
    ],
)
def test_a_number_has_no_e_and_no_inf(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("σ_w²", "<i>σ</i><sub><i>w</i></sub><sup>2</sup>"),
        ("λ_min(ZZᵀ)", "<i>λ</i><sub>min</sub>(<i>ZZ</i><sup>⊤</sup>)"),
        ("L_{k+1}", "<i>L</i><sub><i>k</i>+1</sub>"),
        ("(I-γ̃W)⁻ᵀa", "(<i>I</i>−<i>γ̃</i><i>W</i>)<sup>−⊤</sup><i>a</i>"),
        ("(X^{*k})", "(<i>X</i><sup>*<i>k</i></sup>)"),
        ("G^(ℓ)", "<i>G</i><sup>(ℓ)</sup>"),
        ("a_kh_k", "<i>a</i><sub><i>k</i></sub><i>h</i><sub><i>k</i></sub>"),
        ("f_40", "<i>f</i><sub>40</sub>"),
        ("a·k^t₂", "<i>a</i>·<i>k</i><sup><i>t</i><sub>2</sub></sup>"),
        ("H vs gram_parts", "<i>H</i> vs <code>gram_parts</code>"),
        ("x < y & z", "<i>x</i> &lt; <i>y</i> &amp; <i>z</i>"),
    ],
)
def test_indices_and_letters(text: str, shown: str) -> None:
    assert formula(text).translate(LOOSE) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a duplicate", "a duplicate"),
        ("A random matrix", "A random matrix"),
        ("a Gaussian tail, a DEQ", "a Gaussian tail, a DEQ"),
        ("a stays", "<i>a</i> stays"),
        ("step in a ÷ bound", "step in <i>a</i> ÷ bound"),
        ("CIFAR-10, half-way, 1-Lipschitz", "CIFAR-10, half-way, 1-Lipschitz"),
        ("minimiser, L-BFGS-B", "minimiser, L-BFGS-B"),
        ("κ-PL, I-DW", "<i>κ</i>-PL, <i>I</i>−<i>DW</i>"),
        ("the root λ_pf(|W|)", "the root <i>λ</i><sub>pf</sub>(|<i>W</i>|)"),
        ("10⁶ ÷ -log(1-κ)", "10<sup>6</sup> ÷ −log(1−<i>κ</i>)"),
        ("f''", "<i>f</i>′′"),
        ("Domingos' law, the cell's", "Domingos’ law, the cell’s"),
    ],
)
def test_words_stay_words(text: str, shown: str) -> None:
    assert formula(text).translate(LOOSE) == shown


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("‖(I-WᵀD)⁻¹‖ ≤ 1/μ", ["‖(I−W⊤D)−1‖ ≤ 1/μ"]),
        ("slope (I-∂_z f)⁻¹∂_p f", ["slope", "(I−∂zf)−1∂pf"]),
        ("I - DW is invertible", ["I − DW", "is", "invertible"]),
        ("no q > 0, W ≥ 0, q ≠ 0", ["no", "q > 0,", "W ≥ 0,", "q ≠ 0"]),
        ("‖e(t)‖² ≤ e^{-λt}‖e(0)‖²", ["‖e(t)‖2 ≤", "e−λt‖e(0)‖2"]),
    ],
)
def test_a_line_ends_where_it_may(text: str, pieces: list[str]) -> None:
    """A line ends at a plain space, or before an index that nothing holds."""
    loose = re.sub(r"(?<!\u2060)<su[bp]>", " ", formula(text))
    shown = re.sub(r"<[^>]+>|\u2060", "", loose).replace("&gt;", ">")
    told = unicodedata.normalize("NFC", shown)
    assert [piece.replace("\u00a0", " ") for piece in told.split(" ")] == pieces


def test_no_title_of_the_book_keeps_a_raw_index() -> None:
    titles = [claim.title for claim in load_chapters().values()]
    broken = [control.broken for claim in load_chapters().values() for control in claim.controls]
    assert len(titles) > 100
    for text in titles + broken:
        told = re.sub(r"<code>.*?</code>|<[^>]+>", "", formula(text))
        assert not re.search(r"[_^{}²ᵀ₀]", told), text
