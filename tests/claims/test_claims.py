"""The registry's rules, the completeness of chapter 1, and whether the claims have teeth."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deqbook.claims import registry
from deqbook.claims.registry import (
    Claim,
    Measurement,
    Trial,
    at_least,
    at_most,
    chapter,
    check,
    checks,
    equal,
    find,
    load_chapters,
    verify,
)
from deqbook.claims.statements import source_of, statements
from deqbook.models import MonDEQ, ReLUImplicit
from deqbook.pages.p01b_monotone import claims as monotone
from deqbook.solvers import Injected
from deqbook.splitting import ForwardBackward, PeacemanRachford

quick = settings(derandomize=True, deadline=None, max_examples=200)
CHAPTER = "01a_contraction"


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the chapters' claims aside; what a test registers is forgotten after it."""
    load_chapters()
    monkeypatch.setattr(registry, "_REGISTRY", {})


def register(body, *controls, claim_id: str = "gao2022.lemma2.2") -> Claim:
    one = chapter(CHAPTER)(claim_id, "A title", "lem")(body)
    for control in controls:
        one.breaks("a hypothesis", part=control)
    return one


def small(trial: Trial):
    yield at_most("size", 1.0, 2.0)


def large(trial: Trial):
    yield at_most("size", 3.0, 2.0)


# --- measurements ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "holds", "slack"),
    [
        (at_most("a", 2.0, 3.0), True, 1.5),
        (at_most("a", 3.0, 3.0), True, 1.0),
        (at_most("a", 6.0, 3.0), False, 0.5),
        (at_most("a", -1.0, 0.0), True, math.inf),
        (at_most("a", 1.0, -1.0), False, 0.0),
        (at_most("a", math.inf, 1.0), False, 0.0),
        (at_least("a", 3.0, 2.0), True, 1.5),
        (at_least("a", 1.0, 2.0), False, 0.5),
        (at_least("a", -1e-13, -1e-12), True, math.inf),
        (at_least("a", -1.0, 0.0), False, 0.0),
        (equal("a", 1.1, 1.0, 0.2), True, 2.0),
        (equal("a", 1.5, 1.0, 0.25), False, 0.5),
        (equal("a", 1.0, 1.0, 0.0), True, math.inf),
    ],
)
def test_holds_and_slack(m: Measurement, holds: bool, slack: float) -> None:
    assert m.holds is holds
    assert m.slack == pytest.approx(slack)


@quick
@given(
    st.sampled_from(["≤", "≥", "="]),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(0, 1e6),
)
def test_slack_of_one_is_the_border(relation: str, value: float, bound: float, tol: float) -> None:
    m = Measurement("a", value, relation, bound, tol)
    assert m.holds == (m.slack >= 1)


@pytest.mark.parametrize("make", [at_most, at_least])
def test_nan_never_holds(make) -> None:
    for value, bound in ((math.nan, 1.0), (1.0, math.nan)):
        assert not make("a", value, bound).holds
        assert make("a", value, bound).slack == 0
    assert not equal("a", math.nan, 0.0, 1.0).holds
    assert not equal("a", 0.0, 0.0, math.nan).holds


def test_measurements_take_tensors_and_print() -> None:
    m = equal("norm", torch.tensor(1.25).double(), 1, 0.5)
    assert isinstance(m.value, float)
    assert str(m) == "norm: 1.25 = 1 ± 0.5"
    assert str(at_most("x", 0.1, 0.2)) == "x: 0.1 ≤ 0.2"


# --- registering -----------------------------------------------------------------------------


@pytest.mark.usefixtures("empty")
def test_ids_are_unique_and_from_known_sources() -> None:
    register(small)
    with pytest.raises(ValueError, match=r"'gao2022.lemma2.2' is registered twice"):
        register(small)
    with pytest.raises(ValueError, match="unknown source 'bai2019'"):
        register(small, claim_id="bai2019.theorem1")
    with pytest.raises(ValueError, match="registered twice"):
        chapter(CHAPTER).uncheckable("gao2022.lemma2.2", "t", reason="why")


@pytest.mark.usefixtures("empty")
def test_an_unknown_claim_is_named_with_a_neighbour() -> None:
    register(small, claim_id="ling2023.lemma1")
    with pytest.raises(LookupError, match=r"no claim 'gao2022.lemma1'. Did you mean 'ling2023"):
        find("gao2022.lemma1")
    with pytest.raises(LookupError, match=r"deqbook verify --list"):
        find("gao2022.nothing")


@pytest.mark.usefixtures("empty")
def test_a_built_page_must_import_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEQBOOK_STATIC", "1")
    with pytest.raises(LookupError, match="Import check from the page"):
        find("gao2022.lemma2.2")


@pytest.mark.parametrize(
    ("claim_id", "citation"),
    [
        ("gao2022.lemma2.2", "Gao et al. 2022, Lemma 2.2"),
        ("nguyen2022.lemmaC.0.3", "Nguyen 2022, Lemma C.0.3"),
        ("ling2023.wellposed", "Ling et al. 2023, text (wellposed)"),
        ("nguyen2022.figure4.1", "Nguyen 2022, Figure 4.1"),
        ("gao2023.section5.1", "Gao & Gao 2023, Section 5.1"),
    ],
)
def test_citations(claim_id: str, citation: str) -> None:
    assert source_of(claim_id) == citation


# --- judging ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("empty")
def test_a_claim_holds_when_it_holds_and_its_control_breaks() -> None:
    register(small, large)
    evidence = check("gao2022.lemma2.2", seed=4)
    assert evidence.status == "holds"
    assert evidence.slack == 2.0
    assert evidence.seed == 4
    assert "control, a hypothesis: breaks" in str(evidence)
    assert "deq-holds" in evidence._repr_html_()


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(
    "controls", [(), (small,), (large, small), (lambda trial: [],)], ids=["none", "a", "b", "empty"]
)
def test_a_claim_whose_controls_do_not_break_is_unbroken(controls) -> None:
    register(small, *controls)
    assert check("gao2022.lemma2.2").status == "unbroken"


@pytest.mark.usefixtures("empty")
def test_one_measurement_of_a_control_that_holds_spoils_it() -> None:
    def both(trial: Trial):
        yield from small(trial)
        yield at_most("other", 1.0, 2.0)

    def half(trial: Trial):
        yield from large(trial)
        yield at_most("other", 1.0, 2.0)

    register(both, half)
    evidence = check("gao2022.lemma2.2")
    assert evidence.status == "unbroken"
    assert "DOES NOT BREAK" in str(evidence)
    assert "does not break" in evidence._repr_html_()


@pytest.mark.usefixtures("empty")
def test_a_control_must_repeat_the_measurement() -> None:
    register(small, lambda trial: [at_most("something else", 3.0, 2.0)])
    evidence = check("gao2022.lemma2.2")
    assert evidence.status == "fails"
    assert "must repeat the claim's measurements; new: ['something else']" in evidence.error


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(
    "body",
    [large, lambda trial: [], lambda trial: [at_most("size", math.nan, 2.0)]],
    ids=["false", "empty", "nan"],
)
def test_a_false_empty_or_nan_claim_fails(body) -> None:
    register(body, large)
    assert check("gao2022.lemma2.2").status == "fails"


@pytest.mark.usefixtures("empty")
def test_an_exception_is_a_failure_with_its_traceback() -> None:
    def broken(trial: Trial):
        yield at_most("size", 1.0, 2.0)
        raise ZeroDivisionError("a telling message")

    register(broken, large)
    evidence = check("gao2022.lemma2.2")
    assert evidence.status == "fails"
    for part in ("Traceback", "in broken", "ZeroDivisionError: a telling message"):
        assert part in evidence.error
    assert "a telling message" in str(evidence)
    register(small, broken, claim_id="gao2022.lemma2.1")
    assert check("gao2022.lemma2.1").status == "fails"


@pytest.mark.usefixtures("empty")
def test_an_uncheckable_claim_gives_its_reason() -> None:
    chapter(CHAPTER).uncheckable("gao2022.lemma2.1", "t", reason="it is about infinity")
    evidence = check("gao2022.lemma2.1")
    assert evidence.status == "uncheckable"
    assert "it is about infinity" in str(evidence)
    (verdict,) = verify(["gao2022.lemma2.1"], seeds=2)
    assert verdict.ok
    assert verdict.as_json()["reason"] == "it is about infinity"


@pytest.mark.usefixtures("empty")
def test_the_worst_seed_decides() -> None:
    def sometimes(trial: Trial):
        yield at_most("size", 3.0 if trial.seed == 2 else 1.0, 2.0)

    register(sometimes, large)
    (verdict,) = verify(["gao2022.lemma2.2"], seeds=4)
    assert (verdict.status, verdict.ok) == ("fails", False)
    assert verdict.slack == pytest.approx(2 / 3)
    row = verdict.as_json()
    assert (row["seed"], row["status"], row["measurements"][0]["value"]) == (2, "fails", 3.0)
    (fine,) = verify(["gao2022.lemma2.2"], seeds=2)
    assert fine.ok


@pytest.mark.usefixtures("empty")
def test_trials_are_seeded_and_executors_change_nothing() -> None:
    def draw(trial: Trial):
        yield at_most("draw", float(torch.rand(1, generator=trial.g)), 1.0)

    def over(trial: Trial):
        yield at_most("draw", 1 + float(torch.rand(1, generator=trial.g)), 1.0)

    register(draw, over)
    here = next(verify(["gao2022.lemma2.2"], seeds=3))
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(2) as pool:
        there = next(verify(["gao2022.lemma2.2"], seeds=3, executor=pool))
    torch.set_num_threads(threads)
    values = [[e.measurements for e in v.evidence] for v in (here, there)]
    assert values[0] == values[1]
    assert len({m[0].value for m in values[0]}) == 3


# --- controls ---------------------------------------------------------------------------------


def scaled(trial: Trial, *, size: float = 1.0):
    yield at_most("size of x²", size, 2.0)
    yield at_most("other", size, 5.0)


@pytest.mark.usefixtures("empty")
def test_a_control_flips_a_keyword_and_keeps_what_it_names() -> None:
    one = register(scaled)
    one.breaks("x is large", "size", size=3.0)
    (control,) = check(one.id).controls
    assert [(m.name, m.value) for m in control.measurements] == [("size of x²", 3.0)]
    assert control.breaks
    one.breaks("x is huge", size=9.0)
    assert [m.value for m in check(one.id).controls[1].measurements] == [9.0, 9.0]
    one.breaks("no measurement is named so", "sizes", size=9.0)
    assert check(one.id).status == "unbroken"


@pytest.mark.usefixtures("empty")
def test_a_control_cannot_set_what_the_body_does_not_take() -> None:
    one = register(scaled)
    with pytest.raises(TypeError, match=r"sets \['sise'\], which scaled does not take; .*'size'"):
        one.breaks("a misspelt keyword", sise=3.0)
    unchecked = chapter(CHAPTER).uncheckable("gao2022.lemma2.1", "t", reason="why")
    with pytest.raises(ValueError, match="is not checked, so it has no control"):
        unchecked.breaks("nothing to break")


@pytest.mark.usefixtures("empty")
def test_a_control_may_say_that_it_measures_another_thing() -> None:
    one = register(scaled)
    one.breaks("another function", "size", shown={"x²": "x⁴"}, size=3.0)
    evidence = check(one.id)
    assert evidence.status == "holds"
    assert evidence.controls[0].measurements[0].name == "size of x²"
    assert "size of x⁴" in str(evidence)
    assert "size of <i>x</i>\u2060<sup>4</sup>" in evidence._repr_html_()


@pytest.mark.usefixtures("empty")
def test_a_page_checks_its_own_claims_only() -> None:
    here, there = chapter(CHAPTER), chapter("02_other")
    here("gao2022.lemma2.2", "t")(small).breaks("x", part=large)
    there("gao2022.lemma2.1", "t")(small).breaks("x", part=large)
    own = checks(here)
    assert own("gao2022.lemma2.2", seed=3).seed == 3
    with pytest.raises(LookupError, match=r"'gao2022.lemma2.1' is no claim of this page"):
        own("gao2022.lemma2.1")
    assert checks(here, there)("gao2022.lemma2.1").status == "holds"


# --- the book's claims -----------------------------------------------------------------------


def test_every_statement_of_a_written_chapter_has_exactly_one_claim() -> None:
    claims = [one for one in load_chapters().values() if not one.id.startswith("book.")]
    assert CHAPTER in {one.chapter for one in claims}
    for number in {int(one.chapter[:2]) for one in claims}:  # a chapter may have several pages
        wanted = [s.id for s in statements() if s.chapter == number]
        assert Counter(wanted) == Counter(c.id for c in claims if int(c.chapter[:2]) == number)


def test_claims_and_statements_fit_together() -> None:
    chapters = {s.id: s.chapter for s in statements()}
    assert len(chapters) == len(statements()) == 149
    for one in load_chapters().values():
        if one.id.startswith("book."):
            assert one.id == f"book.{one.ref}"
        else:
            assert one.id in chapters, f"{one.id} is not in statements.csv"
            assert int(one.chapter[:2]) == chapters[one.id], one.id
        assert one.title
        assert one.ref
        assert (one.body is None) == (one.standing == "not checkable")
        if one.body is not None:
            assert one.controls, f"{one.id} has no control"
            assert all(c.broken for c in one.controls)


@pytest.mark.parametrize(
    "claim_id",
    [
        "gao2022.assumption1",
        "nguyen2022.lemma2.3.2",
        "nguyen2022.proposition1",
        "nguyen2022.proposition3",
        "nguyen2022.lemma3.3.3",
        "xie2022.lemma13",
    ],
)
def test_fast_claims_hold(claim_id: str) -> None:
    evidence = check(claim_id)
    assert evidence.status == "holds", str(evidence)


# --- teeth: a bug in the code makes a claim fail ----------------------------------------------


def failing(claim_id: str) -> set[str]:
    """Return the names of the measurements that fail on seed 0, without the controls."""
    body = find(claim_id).body
    assert body is not None
    return {m.name for m in body(Trial(0)) if not m.holds}


def test_a_wrong_sign_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """+AᵀA in place of -AᵀA loses the modulus of strong monotonicity."""
    assert failing("nguyen2022.proposition1") == set()

    def wrong(self: MonDEQ) -> torch.Tensor:
        eye = torch.eye(self.m, dtype=self.A.dtype)
        return (1 - self.mu) * eye + self.A.mT @ self.A + self.B - self.B.mT

    monkeypatch.setattr(MonDEQ, "W", property(wrong))
    modulus = {"random A: λ_min(I - sym W) ÷ μ", "singular A: λ_min(I - sym W)"}
    assert failing("nguyen2022.proposition1") == modulus | {"W of the model with these A, B"}
    assert check("nguyen2022.proposition1").status == "fails"


def test_a_missing_factor_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without 1/√m the features of the ReLU network grow with its width."""
    assert failing("gao2022.assumption1") == set()
    monkeypatch.setattr(ReLUImplicit, "inject", lambda self, x: self.phi(x @ self.U.mT))
    assert failing("gao2022.assumption1") == {"mean ‖φ‖²"}
    assert check("gao2022.assumption1").status == "fails"


def test_a_missing_factor_in_a_rate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor with αμ in place of 2αμ is still a bound, but it is attained nowhere."""
    assert failing("nguyen2022.proposition3") == set()
    monkeypatch.setattr(
        monotone,
        "forward_backward_factor",
        lambda alpha, mu, L: max(0.0, 1 - alpha * mu + alpha**2 * L**2) ** 0.5,
    )
    assert "rotation: ‖I-αM‖ ÷ bound" in failing("nguyen2022.proposition3")


def test_a_dropped_transpose_is_caught_in_forward_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert failing("nguyen2022.splitting") == set()

    def wrong(self: ForwardBackward, problem):
        alpha, M, prox = self.step_size(problem), problem.M, problem.sigma.prox
        return Injected(lambda z, q: prox(z - alpha * (z @ M - q), alpha), problem.q)

    monkeypatch.setattr(ForwardBackward, "iteration", wrong)
    assert "forward-backward: distance ÷ (factor^k · start)" in failing("nguyen2022.splitting")


def test_a_dropped_transpose_is_caught_in_peaceman_rachford(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: PeacemanRachford, problem):
        alpha, prox = self.step_size(problem), problem.sigma.prox
        eye = torch.eye(problem.W.shape[0], dtype=problem.W.dtype)
        resolvent = torch.linalg.inv(eye + alpha * problem.M)

        def update(u, q):
            z = prox(u, alpha)
            return u + 2 * self.relax * ((2 * z - u + alpha * q) @ resolvent - z)

        return Injected(update, problem.q)

    monkeypatch.setattr(PeacemanRachford, "iteration", wrong)
    assert "Peaceman-Rachford: distance ÷ (factor^k · start)" in failing("nguyen2022.splitting")
    assert check("nguyen2022.definition3.2.1").status == "fails"
