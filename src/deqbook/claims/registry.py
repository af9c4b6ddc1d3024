"""The registry of claims: how one is written, run, judged and shown."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import os
import pkgutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import torch

from deqbook.claims.panel import panel
from deqbook.claims.statements import source_of
from deqbook.runtime import generator

__all__ = [
    "STANDINGS",
    "Chapter",
    "Claim",
    "Control",
    "ControlOutcome",
    "Evidence",
    "Measurement",
    "Trial",
    "Verdict",
    "at_least",
    "at_most",
    "chapter",
    "check",
    "checks",
    "equal",
    "find",
    "given",
    "headline",
    "load_chapters",
    "seen",
    "verify",
    "within",
]


@dataclass(frozen=True)
class Measurement:
    """A quantity, a relation and a bound. ``tol`` is used by the relation "=" only.

    ``theorem`` says whether the bound is the statement's own; a tolerance of a solver is not, and
    does not count as slack. ``shown`` is the name to print, where a control measures another thing.
    ``headline`` marks the inequality that the statement is about; see :func:`headline`.

    >>> m = Measurement("norm of W", 0.5, "≤", 2.0)
    >>> print(m, m.holds, m.slack)
    norm of W: 0.5 ≤ 2 True 4.0
    >>> print(m.called({"W": "U"}))
    norm of U: 0.5 ≤ 2
    """

    name: str
    value: float
    relation: str
    bound: float
    tol: float = 0.0
    theorem: bool = True
    shown: str = ""
    headline: bool = False

    def called(self, words: Mapping[str, str]) -> Measurement:
        """Return the same measurement under a name in which these words are replaced."""
        shown = self.label
        for old, new in words.items():
            shown = shown.replace(old, new)
        return replace(self, shown=shown)

    @property
    def label(self) -> str:
        """The name to print."""
        return self.shown or self.name

    @property
    def holds(self) -> bool:
        """Whether the relation is true; NaN never holds."""
        if self.relation == "≤":
            return self.value <= self.bound
        if self.relation == "≥":
            return self.value >= self.bound
        return abs(self.value - self.bound) <= self.tol

    @property
    def slack(self) -> float:
        """How much room is left; above 1 it holds, below 1 it does not."""
        if self.relation == "=":
            gap, room = abs(self.value - self.bound), self.tol
        elif self.relation == "≤":
            gap, room = self.value, self.bound
        else:
            gap, room = self.bound, self.value
        if math.isnan(gap) or math.isnan(room):
            return 0.0
        if gap <= 0:
            # A ratio says nothing here: fall back to "holds" (infinite room) or not.
            return math.inf if self.holds else 0.0
        return max(room, 0.0) / gap

    def __str__(self) -> str:
        band = f" ± {self.tol:.2g}" if self.relation == "=" else ""
        return f"{self.label}: {self.value:.4g} {self.relation} {self.bound:.4g}{band}"


def at_most(name: str, value: float, bound: float) -> Measurement:
    """Measure ``value ≤ bound``.

    >>> print(at_most("residual", 3.0, 1.0))
    residual: 3 ≤ 1
    >>> at_most("residual", math.nan, 1.0).holds
    False
    """
    return Measurement(name, float(value), "≤", float(bound))


def at_least(name: str, value: float, bound: float) -> Measurement:
    """Measure ``value ≥ bound``.

    >>> at_least("least eigenvalue", 0.5, 0.25).slack
    2.0
    """
    return Measurement(name, float(value), "≥", float(bound))


def equal(name: str, value: float, target: float, tol: float) -> Measurement:
    """Measure ``value = target`` within ``tol``.

    >>> print(equal("z = cos z", 0.7391, 0.739085, tol=1e-4))
    z = cos z: 0.7391 = 0.7391 ± 0.0001
    """
    return Measurement(name, float(value), "=", float(target), float(tol), theorem=False)


def within(name: str, value: float, tol: float) -> Measurement:
    """Measure ``value ≤ tol``, a numerical tolerance, for something that should be 0.

    >>> m = within("two routes differ by", 1e-12, 1e-9)
    >>> m.holds, m.theorem
    (True, False)
    """
    return Measurement(name, float(value), "≤", float(tol), theorem=False)


def given(name: str, value: float, relation: str, bound: float) -> Measurement:
    """Measure a hypothesis; how amply it holds is no slack of the theorem.

    >>> print(given("γ₀ below 1", 0.5, "≤", 1.0))
    hypothesis: γ₀ below 1: 0.5 ≤ 1
    """
    return Measurement(f"hypothesis: {name}", float(value), relation, float(bound), theorem=False)


def seen(name: str, value: float, relation: str, bound: float) -> Measurement:
    """Measure what a figure or a table must show; its number is ours, no slack of a theorem.

    >>> seen("slope of the fitted line", -0.52, "≤", -0.4).theorem
    False
    """
    return Measurement(name, float(value), relation, float(bound), theorem=False)


def headline(measurement: Measurement) -> Measurement:
    """Mark what the statement is about: the ledger shows the slack of the headlines, no other.

    A claim with a single bound of the theorem need not say so; one with several must.

    >>> headline(at_most("‖e(t)‖² ÷ bound", 0.5, 1.0)).headline
    True
    """
    return replace(measurement, headline=True)


@dataclass(frozen=True)
class Trial:
    """What a claim is given: a ``seed`` and its generator ``g``, made when first asked for.

    >>> first, again = (torch.rand(2, generator=Trial(0).g) for _ in range(2))
    >>> torch.equal(first, again)
    True
    """

    seed: int

    @cached_property
    def g(self) -> torch.Generator:
        """The trial's own generator."""
        return generator(self.seed)


STANDINGS = {
    "holds": "the statement is checked, hypotheses and conclusion",
    "partly": "a part of the statement is checked, or a part of it does not come out",
    "not reproduced": "what is printed did not come out at the size run here",
    "quoted": "checked on instances; the proof is the source's and is not repeated in the book",
    "definition": "it names something; the check shows that the name is well given",
    "not checkable": "no finite experiment can decide it",
}
"""What a run in which every measurement holds and every control breaks says of a statement."""
UNEXPLAINED = frozenset({"holds", "definition"})

Body = Callable[..., Iterable[Measurement]]
"""A function of a trial, and of keywords whose defaults are the hypotheses of the statement."""


@dataclass(frozen=True)
class Control:
    """The experiment with one hypothesis broken; each measurement that it keeps must fail.

    :meth:`Claim.breaks` makes one.

    >>> control = Control("γ = 2", lambda trial: [at_most("factor", 2.0, 1.0)])
    >>> any(m.holds for m in control.body(Trial(0)))
    False
    """

    broken: str
    body: Callable[[Trial], Iterable[Measurement]]


@dataclass(frozen=True)
class Claim:
    """A statement of the literature, as something that runs.

    ``body`` makes the measurements (``None``: no finite experiment can, and ``reason`` says why),
    ``chapter`` and ``ref`` are the page and the label of the statement there. ``standing`` says
    what a run in which everything holds shows of the statement, one of ``STANDINGS``; if that
    is less than the statement, ``reason`` says what is missing. A page declares claims through
    :func:`chapter`.

    >>> def contracts(trial, gamma=0.5):
    ...     yield at_most("factor", gamma, 1.0)
    >>> claim = Claim("gao2022.lemma2.2", "Contracts", "01", "lem", contracts)
    >>> claim.breaks("γ is 2, not below 1", gamma=2.0)
    >>> claim.source, [m.holds for m in claim.controls[0].body(Trial(0))]
    ('Gao et al. 2022, Lemma 2.2', [False])
    """

    id: str
    title: str
    chapter: str
    ref: str
    body: Body | None
    reason: str = ""
    standing: str = "holds"
    controls: list[Control] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.standing not in STANDINGS:
            raise ValueError(
                f"the standing of {self.id} is {self.standing!r}; known: {sorted(STANDINGS)}."
            )
        if (self.standing in UNEXPLAINED) == bool(self.reason):
            raise ValueError(
                f"{self.id} stands as {self.standing!r} with the reason {self.reason!r}: a reason "
                f"goes with every standing but {', '.join(sorted(UNEXPLAINED))}."
            )

    @property
    def source(self) -> str:
        """Where the statement is printed."""
        return source_of(self.id)

    def breaks(
        self,
        broken: str,
        *names: str,
        part: Body | None = None,
        shown: Mapping[str, str] | None = None,
        **keywords: Any,
    ) -> None:
        """Declare a control: with these keywords each measurement named must fail.

        ``broken`` says which hypothesis is broken. ``names`` are the beginnings of the names of
        the measurements it is about (none: all). ``part`` is what runs in the place of the whole
        body: one of the generators that the body is made of, or one written for the control.
        ``shown`` replaces words in the names when what is broken is another thing than the name
        says, ``{"x²+3sin²x": "x⁴"}``. Raises ``TypeError`` for a keyword that the body does not
        take, and ``ValueError`` for a claim without a body.
        """
        body = self.body if part is None else part
        if body is None:
            raise ValueError(f"{self.id} is not checked, so it has no control.")
        known = inspect.signature(body).parameters
        unknown = sorted(set(keywords) - set(known))
        if unknown:
            raise TypeError(
                f"the control {broken!r} of {self.id} sets {unknown}, which {body.__name__} does "
                f"not take; it takes {sorted(set(known) - {'trial'})}."
            )

        def run(trial: Trial) -> Iterator[Measurement]:
            for m in body(trial, **keywords):
                if not names or m.name.startswith(names):
                    yield m if shown is None else m.called(shown)

        self.controls.append(Control(broken, run))


_REGISTRY: dict[str, Claim] = {}


def _register(one: Claim) -> Claim:
    if one.id in _REGISTRY:
        raise ValueError(f"the claim {one.id!r} is registered twice; ids are unique.")
    source_of(one.id)  # an unknown source is an error here, not on the ledger page
    _REGISTRY[one.id] = one
    return one


@dataclass(frozen=True)
class Chapter:
    """The claims of one page: called as a decorator, it declares one.

    ``ref`` is the label of the statement on the page. Registering raises ``ValueError`` for an id
    that is taken or whose source is unknown.

    >>> claim = Chapter("01a_contraction")
    >>> @claim("gao2022.example1", "Half the step contracts", ref="lem-example")
    ... def halves(trial, gamma=0.5):
    ...     yield at_most("factor", gamma, 1.0)
    >>> halves.breaks("γ is 2", gamma=2.0)
    >>> check("gao2022.example1").status
    'holds'
    >>> claim.uncheckable("gao2022.example2", "For all γ", reason="too many").reason
    'too many'
    """

    name: str
    claims: dict[str, Claim] = field(default_factory=dict)

    def __call__(
        self, claim_id: str, title: str, ref: str = "", *, standing: str = "holds", reason: str = ""
    ) -> Callable[[Body], Claim]:
        """Register a generator of measurements as the check of a claim."""
        return lambda body: self._add(
            Claim(claim_id, title, self.name, ref, body, reason, standing)
        )

    def uncheckable(self, claim_id: str, title: str, ref: str = "", *, reason: str) -> Claim:
        """Register a claim that no finite experiment can check, with the reason."""
        return self._add(Claim(claim_id, title, self.name, ref, None, reason, "not checkable"))

    def _add(self, one: Claim) -> Claim:
        self.claims[one.id] = _register(one)
        return one


def chapter(name: str) -> Chapter:
    """Return the declarer of a page's claims; ``name`` is the page's.

    >>> chapter("01a_contraction").claims
    {}
    """
    return Chapter(name)


def checks(*chapters: Chapter) -> Callable[..., Evidence]:
    """Return ``check`` for the claims of these declarations: what a page imports.

    A page that imports it imports the claims too, so its cache depends on them. Asked for a claim
    of another page it raises ``LookupError``.

    >>> checks(chapter("01a_contraction"))("gao2022.lemma2.2")
    Traceback (most recent call last):
        ...
    LookupError: 'gao2022.lemma2.2' is no claim of this page; ...
    """
    known = {claim_id for one in chapters for claim_id in one.claims}

    def check_here(claim_id: str, *, seed: int = 0) -> Evidence:
        """Run one claim of this page and its controls on one seed."""
        if claim_id not in known:
            raise LookupError(
                f"{claim_id!r} is no claim of this page; `from deqbook.claims import check` finds "
                "those of the whole book."
            )
        return check(claim_id, seed=seed)

    return check_here


def load_chapters() -> dict[str, Claim]:
    """Import every page's claims and return the registry: id -> claim.

    >>> "gao2022.lemma2.2" in load_chapters()
    True
    """
    pages = importlib.import_module("deqbook.pages")
    for page in pkgutil.iter_modules(pages.__path__):
        name = f"deqbook.pages.{page.name}.claims"
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    return dict(_REGISTRY)


def find(claim_id: str) -> Claim:
    """Return a claim by its id, loading the chapters if need be.

    Raises ``LookupError`` for an unknown id. While the book is built nothing is loaded: a page
    knows the claims that it imports.

    >>> find("gao2022.lemma2.2").chapter
    '01a_contraction'
    """
    if claim_id not in _REGISTRY:
        if os.environ.get("DEQBOOK_STATIC"):
            raise LookupError(
                f"no claim {claim_id!r} among the modules this page imports. Import check from the "
                "page's own claims (deqbook.pages) so that the cache depends on them."
            )
        load_chapters()
    if claim_id not in _REGISTRY:
        near = [i for i in _REGISTRY if i.split(".")[-1] == claim_id.split(".")[-1]]
        hint = f" Did you mean {near[0]!r}?" if near else " See deqbook verify --list."
        raise LookupError(f"there is no claim {claim_id!r}.{hint}")
    return _REGISTRY[claim_id]


@dataclass(frozen=True)
class ControlOutcome:
    """What a control measured, and whether it broke as it must.

    >>> ControlOutcome("γ = 2", (at_most("factor", 2.0, 1.0),)).breaks
    True
    """

    broken: str
    measurements: tuple[Measurement, ...]
    error: str = ""

    @property
    def breaks(self) -> bool:
        """Whether there is a measurement and every one fails."""
        return (
            not self.error
            and bool(self.measurements)
            and not any(m.holds for m in self.measurements)
        )


@dataclass(frozen=True, repr=False)
class Evidence:
    """One claim, run on one seed, with its controls; a notebook shows it as a panel.

    >>> kept, lost = at_most("factor", 0.5, 1.0), at_most("factor", 2.0, 1.0)
    >>> broken = (ControlOutcome("γ = 2", (lost,)),)
    >>> evidence = Evidence("gao2022.x", "One", "Gao", 0, (kept,), broken, 0.1)
    >>> evidence
    holds: One [Gao; gao2022.x, seed 0]
      ok  factor: 0.5 ≤ 1
      control, γ = 2: breaks
          factor: 2 ≤ 1
    >>> evidence.slack, replace(evidence, controls=()).status
    (2.0, 'unbroken')
    >>> loose = headline(at_most("factor²", 0.25, 1.0))
    >>> replace(evidence, measurements=(kept, loose)).slack
    4.0
    """

    id: str
    title: str
    source: str
    seed: int
    measurements: tuple[Measurement, ...]
    controls: tuple[ControlOutcome, ...]
    seconds: float
    reason: str = ""
    error: str = ""
    standing: str = "holds"

    @property
    def status(self) -> str:
        """One of holds, fails, unbroken (a control did not fail), uncheckable."""
        if self.standing == "not checkable":
            return "uncheckable"
        if self.error or not self.measurements or not all(m.holds for m in self.measurements):
            return "fails"
        if not self.controls or not all(c.breaks for c in self.controls):
            return "unbroken"
        return "holds"

    @property
    def headlines(self) -> tuple[Measurement, ...]:
        """What the statement is about; what is marked, else the theorem's bounds, else all."""
        marked = tuple(m for m in self.measurements if m.headline)
        return marked or tuple(m for m in self.measurements if m.theorem) or self.measurements

    @property
    def slack(self) -> float:
        """The least room among the headlines with a bound of the theorem; infinite if none has."""
        return min((m.slack for m in self.headlines if m.theorem), default=math.inf)

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.title} [{self.source}; {self.id}, seed {self.seed}]"]
        lines += [f"  {'ok ' if m.holds else 'NO '} {m}" for m in self.measurements]
        for c in self.controls:
            lines.append(f"  control, {c.broken}: {'breaks' if c.breaks else 'DOES NOT BREAK'}")
            lines += [f"      {m}" for m in c.measurements]
        lines += [f"  {text}" for text in (self.reason, self.error) if text]
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook without HTML shows; no timing, so runs are alike

    def _repr_html_(self) -> str:
        return panel(self)


def check(claim_id: str, *, seed: int = 0) -> Evidence:
    """Run one claim and its controls on one seed.

    Raises ``LookupError`` for an unknown id. An error in the claim is a failure with its traceback.

    >>> evidence = check("gao2022.lemma2.2", seed=1)
    >>> evidence.status, all(control.breaks for control in evidence.controls)
    ('holds', True)
    """
    one = find(claim_id)
    started = time.perf_counter()
    measured, error = ((), "") if one.body is None else _measure(one.body, seed)
    names = {m.name for m in measured}
    outcomes = []
    for control in one.controls:
        seen, problem = _measure(control.body, seed)
        strange = sorted({m.name for m in seen} - names)
        if strange and not error:
            problem = problem or f"a control must repeat the claim's measurements; new: {strange}"
        outcomes.append(ControlOutcome(control.broken, seen, problem))
    problems = [error] + [c.error for c in outcomes]
    return Evidence(
        one.id,
        one.title,
        one.source,
        seed,
        measured,
        tuple(outcomes),
        time.perf_counter() - started,
        one.reason,
        "\n".join(p for p in problems if p),
        one.standing,
    )


def _measure(body: Body, seed: int) -> tuple[tuple[Measurement, ...], str]:
    """Run one body; an exception is a failure with its traceback, not a crash of the ledger."""
    try:
        return tuple(body(Trial(seed))), ""
    except Exception:
        return (), traceback.format_exc(limit=-4)


@dataclass(frozen=True)
class Verdict:
    """One claim over all seeds: the worst of each measurement decides.

    >>> verdict = Verdict(find("gao2022.lemma2.2"), (check("gao2022.lemma2.2"),))
    >>> verdict.status, verdict.ok, verdict.slack > 0.999, verdict.as_json()["seed"]
    ('holds', True, True, 0)
    """

    claim: Claim
    evidence: tuple[Evidence, ...]

    @property
    def status(self) -> str:
        """The worst status over the seeds."""
        seen = {e.status for e in self.evidence}
        return next(s for s in ("fails", "unbroken", "uncheckable", "holds") if s in seen)

    @property
    def ok(self) -> bool:
        """Whether the ledger may stand."""
        return self.status in ("holds", "uncheckable")

    @property
    def slack(self) -> float:
        """The least room over the seeds."""
        return min(e.slack for e in self.evidence)

    @property
    def seconds(self) -> float:
        """Time over all seeds."""
        return sum(e.seconds for e in self.evidence)

    def as_json(self) -> dict[str, object]:
        """Return the ledger row."""
        worst = min(self.evidence, key=lambda e: (e.status == "holds", e.slack))
        return {
            "id": self.claim.id,
            "title": self.claim.title,
            "source": self.claim.source,
            "chapter": self.claim.chapter,
            "ref": self.claim.ref,
            "status": self.status,
            "standing": self.claim.standing,
            "reason": self.claim.reason or worst.error,
            "slack": _finite(self.slack),
            "seconds": round(self.seconds, 3),
            "seed": worst.seed,
            "measurements": [_measurement_json(m) for m in worst.measurements],
            "controls": [
                {
                    "broken": c.broken,
                    "breaks": all(e.controls[i].breaks for e in self.evidence),
                    "measurements": [_measurement_json(m) for m in c.measurements],
                }
                for i, c in enumerate(worst.controls)
            ],
            "runs": [_evidence_json(e) for e in self.evidence],
        }


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _measurement_json(m: Measurement) -> dict[str, object]:
    return {
        "name": m.name,
        "shown": m.label,
        "value": _finite(m.value),
        "relation": m.relation,
        "bound": _finite(m.bound),
        "tol": m.tol,
        "holds": m.holds,
        "headline": m.headline,
        "theorem": m.theorem,
        "hex": [m.value.hex(), m.bound.hex()],
    }


def _evidence_json(e: Evidence) -> dict[str, object]:
    return {
        "seed": e.seed,
        "status": e.status,
        "measurements": [_measurement_json(m) for m in e.measurements],
        "controls": [
            {"broken": c.broken, "measurements": [_measurement_json(m) for m in c.measurements]}
            for c in e.controls
        ],
    }


class Mapper(Protocol):
    """What maps a function over rows of arguments, in their order: any executor does."""

    def map(self, fn: Callable[..., Any], /, *arguments: Iterable[Any]) -> Iterator[Any]:
        """Yield ``fn(*row)`` for every row."""


def verify(
    ids: Sequence[str], *, seeds: int | Sequence[int] = 5, executor: Mapper | None = None
) -> Iterator[Verdict]:
    """Run claims over these seeds (a number: 0…seeds-1), yielding verdicts in order when ready.

    Any ``concurrent.futures`` executor will do; without one everything runs here. Raises
    ``LookupError`` for an unknown id.

    >>> [verdict.ok for verdict in verify(["gao2022.lemma2.2"], seeds=2)]
    [True]
    """
    claims = [find(i) for i in ids]
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    if executor is None:
        for one in claims:
            yield Verdict(one, tuple(check(one.id, seed=s) for s in chosen))
        return
    pairs = [(one.id, s) for one in claims for s in chosen]
    found = executor.map(_job, *zip(*pairs)) if pairs else iter(())
    for one in claims:
        yield Verdict(one, tuple(islice(found, len(chosen))))


def _job(claim_id: str, seed: int) -> Evidence:
    """Run one check in a worker, on one thread: the workers are the parallelism."""
    torch.set_num_threads(1)
    return check(claim_id, seed=seed)
