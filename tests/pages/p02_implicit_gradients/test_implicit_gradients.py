"""The ten lines that chapter 2 shows, the letters it uses, and its panels that open on demand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jupytext
import pytest
import torch

from deqbook.claims import Evidence, at_most
from deqbook.claims.registry import ControlOutcome
from deqbook.implicit import IFT, equilibrium
from deqbook.models import VanillaDEQ, adjoint_states
from deqbook.pages.p02_implicit_gradients import claims
from deqbook.pages.p02_implicit_gradients.claims import claim, folded
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import fixed_point

PAGE = Path(__file__).resolve().parents[3] / "chapters" / "02_implicit_gradients.md"
CELLS = [c.source for c in jupytext.read(PAGE).cells if c.cell_type == "code"]
TEN_LINES = next(c for c in CELLS if "class Equilibrium" in c)


@pytest.fixture
def solution() -> Any:
    """The function that the page writes by hand, from the page's own text."""
    names: dict[str, Any] = {"torch": torch, "fixed_point": fixed_point}
    exec(TEN_LINES, names)
    return names["Equilibrium"].apply


def problem() -> tuple[Any, ...]:
    g = generator(0)
    W, U = 0.3 * normal(3, 3, g=g), normal(3, 2, g=g)
    x = normal(2, 2, g=g)

    def cell(z: torch.Tensor, W: torch.Tensor, U: torch.Tensor) -> torch.Tensor:
        return torch.tanh(z @ W.mT + x @ U.mT)

    return cell, torch.zeros(2, 3, dtype=W.dtype), W.requires_grad_(), U.requires_grad_()


def test_the_ten_lines_are_exact(solution: Any) -> None:
    cell, z0, W, U = problem()
    assert torch.autograd.gradcheck(lambda *theta: solution(cell, z0, *theta), (W, U))


def test_the_ten_lines_are_about_ten() -> None:
    heads = ("class", "@", "def forward", "def backward", "from", "return z")
    lines = [line.strip() for line in TEN_LINES.splitlines()]
    written = [line for line in lines if line and not line.startswith(heads)]
    assert len(written) <= 10, "\n".join(written)


def test_the_ten_lines_refuse_a_second_derivative(solution: Any) -> None:
    cell, z0, W, U = problem()
    value = solution(cell, z0, W, U).pow(2).sum()
    (first,) = torch.autograd.grad(value, W, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


def test_every_claim_of_the_chapter_is_shown() -> None:
    shown = set(re.findall(r'"((?:(?:gao|ling|nguyen|xie)\d{4}|book)\.[\w.-]+)"', "\n".join(CELLS)))
    assert shown == set(claim.claims)


def test_a_folded_panel_says_what_it_holds() -> None:
    shown = folded("nguyen2022.lemma3.3.2", "nguyen2022.lemmaC.0.5")
    page = shown._repr_html_()
    assert page.count("<details") == page.count("deq-evidence deq-holds") == 2
    assert "controls broken 3/3" in page
    assert "control" in repr(shown)


def test_a_claim_that_does_not_hold_is_not_folded_away(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = at_most("factor", 2.0, 1.0)
    failed = Evidence("x.y", "One", "X", 0, (lost,), (ControlOutcome("γ = 2", (lost,)),), 0.0)
    monkeypatch.setattr(claims, "check", lambda claim_id, *, seed: failed)
    with pytest.raises(AssertionError, match="fails: One"):
        folded("x.y")


def test_one_letter_for_the_adjoint() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for old in ("p_i", "r_i", r"\oplus", r"\tilde g", "dp_i", "P^\\top"):
        assert old not in re.sub(r"[a-z]+_[a-z]{2,}", "", text), old


def test_the_exercise_on_an_own_model_has_the_answer_of_its_solution() -> None:
    model, omega = VanillaDEQ.init(30, 4, seed=0), 0.7
    W, U, a = (p.detach().requires_grad_() for p in (model.W, model.U, model.a))
    x, y = sphere(6, 4, seed=1), normal(6, g=generator(2))

    def cell(z: torch.Tensor, W: torch.Tensor, U: torch.Tensor) -> torch.Tensor:
        return torch.relu(z @ W.mT + x @ U.mT)

    start = torch.zeros(6, 30, dtype=W.dtype)
    Z = equilibrium(cell, start, W, U, tol=1e-13, adjoint=IFT(tol=1e-13))
    e = Z @ a + omega / 2 * Z.pow(2).sum(1) - y
    auto = torch.autograd.grad(0.5 * e.pow(2).sum(), (W, U, a))

    with torch.no_grad():
        slopes = (Z @ W.mT + x @ U.mT > 0).double()
        V = e[:, None] * adjoint_states(W, slopes, a + omega * Z, tol=1e-13)
        told = V.mT @ Z, V.mT @ x, Z.mT @ e
    for mine, theirs in zip(told, auto):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-10)
