"""What touches a formula stays with it, and pasted numbers are written for a reader."""

from __future__ import annotations

import pytest
from docutils import nodes
from spacing import BOX, GLUE, HARD, PROSE, Spacing, held, words, written


def pieces(*children: nodes.Node) -> list[str]:
    """Return the pieces of a line, those that are held together in brackets."""
    return [
        f"<{node.astext()}>"
        if GLUE in getattr(node, "attributes", {}).get("classes", [])
        else node.astext()
        for node in held(list(children))
    ]


def test_a_mark_stays_with_its_formula() -> None:
    x = nodes.math("", "x")
    told = pieces(
        nodes.Text("for ("), x, nodes.Text("), and "), nodes.literal("", "f"), nodes.Text(".")
    )
    assert told == ["for ", "<(x),>", " and ", "<f.>"]


def test_words_stay_with_a_short_formula_only() -> None:
    short, long = nodes.math("", "n"), nodes.math("", "n" * 40)
    assert pieces(short, nodes.Text("-averaged, so")) == ["<n-averaged,>", " so"]
    assert pieces(long, nodes.Text("-averaged, so")) == ["n" * 40, "-averaged, so"]
    assert pieces(long, nodes.Text(", so")) == ["<" + "n" * 40 + ",>", " so"]


def test_what_a_space_parts_is_left_alone() -> None:
    assert pieces(nodes.Text("let "), nodes.math("", "x"), nodes.Text(" be")) == [
        "let ",
        "x",
        " be",
    ]


def test_the_box_of_a_proof_is_not_alone_on_a_line() -> None:
    box, short, long = nodes.math("", BOX), nodes.math("", "n"), nodes.math("", "n" * 40)
    assert pieces(nodes.Text("so it is. "), box) == ["so it ", f"<is.{HARD}{BOX}>"]
    assert pieces(nodes.Text("so\n"), box) == [f"<so{HARD}{BOX}>"]
    assert pieces(short, nodes.Text(". "), box) == [f"<n.{HARD}{BOX}>"]
    assert pieces(long, nodes.Text(". "), box) == ["<" + "n" * 40 + ".>", f"<{HARD}{BOX}>"]
    assert pieces(nodes.Text("by (1)."), box) == ["by (1).", BOX]


@pytest.mark.parametrize(
    ("python", "prose"),
    [("-0.2664", "−0.2664"), ("1e-10", "10⁻¹⁰"), ("6e+23", "6·10²³"), ("12", "12"), ("a-b", "a-b")],
)
def test_numbers(python: str, prose: str) -> None:
    assert written(python) == prose


def entry(*children: nodes.Node) -> nodes.entry:
    return nodes.entry("", nodes.paragraph("", "", *children))


def test_a_column_of_sentences_is_marked() -> None:
    told = entry(nodes.Text("a sentence of several words"))
    formula = entry(nodes.math("", r"\sigma(\tilde\gamma Wz+\phi)+\text{more}"))
    row = nodes.row("", entry(nodes.Text("x")), formula, told)
    group = nodes.tgroup("", nodes.tbody("", row), cols=3)
    Spacing.widen(group)
    assert [PROSE in cell["classes"] for cell in row.children] == [False, False, True]
    assert words(formula) == 0
    two = nodes.row("", entry(nodes.Text("x")), entry(nodes.Text("a sentence of several words")))
    Spacing.widen(nodes.tgroup("", nodes.tbody("", two), cols=2))
    assert not any(cell["classes"] for cell in two.children)
