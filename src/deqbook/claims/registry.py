"""The registry of claims: how one is written, run, judged and shown."""

from __future__ import annotations

import html
import importlib
import math
import os
import pkgutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property

import torch

from deqbook.claims.statements import source_of
from deqbook.runtime import generator

__all__ = [
    "Claim",
    "Control",
    "Evidence",
    "Measurement",
    "Trial",
    "Verdict",
    "at_least",
    "at_most",
    "check",
    "claim",
    "equal",
    "find",
    "given",
    "load_chapters",
    "named",
    "uncheckable",
    "verify",
    "within",
]


@dataclass(frozen=True)
class Measurement:
    """A quantity, a relation and a bound. ``tol`` is used by the relation "=" only.

    ``theorem`` says whether the bound is the statement's own; a tolerance of a solver is not, and
    does not count as slack.
    """

    name: str
    value: float
    relation: str
    bound: float
    tol: float = 0.0
    theorem: bool = True

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
        """How much room is left: above 1 it holds, below 1 it does not."""
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
        return f"{self.name}: {self.value:.4g} {self.relation} {self.bound:.4g}{band}"


def at_most(name: str, value: float, bound: float) -> Measurement:
    """Measure ``value ≤ bound``."""
    return Measurement(name, float(value), "≤", float(bound))


def at_least(name: str, value: float, bound: float) -> Measurement:
    """Measure ``value ≥ bound``."""
    return Measurement(name, float(value), "≥", float(bound))


def equal(name: str, value: float, target: float, tol: float) -> Measurement:
    """Measure ``value = target`` within ``tol``."""
    return Measurement(name, float(value), "=", float(target), float(tol), theorem=False)


def within(name: str, value: float, tol: float) -> Measurement:
    """Measure ``value ≤ tol``, a numerical tolerance, for something that should be 0."""
    return Measurement(name, float(value), "≤", float(tol), theorem=False)


def given(name: str, value: float, relation: str, bound: float) -> Measurement:
    """Measure a hypothesis; how amply it holds is no slack of the theorem."""
    return Measurement(f"hypothesis: {name}", float(value), relation, float(bound), theorem=False)


def named(found: Iterable[Measurement], *starts: str) -> list[Measurement]:
    """Keep the measurements whose names start so: those a control is about."""
    return [m for m in found if m.name.startswith(starts)]


@dataclass(frozen=True)
class Trial:
    """What a claim is given: a seed and its generator."""

    seed: int

    @cached_property
    def g(self) -> torch.Generator:
        """The trial's own generator."""
        return generator(self.seed)


Body = Callable[[Trial], Iterable[Measurement]]


@dataclass(frozen=True)
class Control:
    """An experiment with one hypothesis broken; each measurement it yields must fail."""

    name: str
    broken: str
    body: Body


@dataclass(frozen=True)
class Claim:
    """A statement of the literature, as something that runs."""

    id: str
    title: str
    chapter: str
    ref: str
    body: Body | None
    reason: str = ""
    controls: list[Control] = field(default_factory=list)

    @property
    def source(self) -> str:
        """Where the statement is printed."""
        return source_of(self.id)

    def control(self, broken: str) -> Callable[[Body], Body]:
        """Register a control; ``broken`` names the hypothesis that it breaks."""

        def register(body: Body) -> Body:
            self.controls.append(Control(body.__name__, broken, body))
            return body

        return register


_REGISTRY: dict[str, Claim] = {}


def _register(one: Claim) -> Claim:
    if one.id in _REGISTRY:
        raise ValueError(f"the claim {one.id!r} is registered twice; ids are unique.")
    source_of(one.id)  # an unknown source is an error here, not on the ledger page
    _REGISTRY[one.id] = one
    return one


def claim(claim_id: str, *, title: str, chapter: str, ref: str = "") -> Callable[[Body], Claim]:
    """Register a generator of measurements as the check of a claim."""
    return lambda body: _register(Claim(claim_id, title, chapter, ref, body))


def uncheckable(claim_id: str, *, title: str, chapter: str, reason: str, ref: str = "") -> Claim:
    """Register a claim that no finite experiment can check, with the reason."""
    return _register(Claim(claim_id, title, chapter, ref, None, reason))


def load_chapters() -> dict[str, Claim]:
    """Import every chapter's claims and return the registry."""
    import deqbook.claims as package

    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("ch"):
            importlib.import_module(f"deqbook.claims.{module.name}")
    return dict(_REGISTRY)


def find(claim_id: str) -> Claim:
    """Return a claim by its id, loading the chapters if need be."""
    if claim_id not in _REGISTRY:
        if os.environ.get("DEQBOOK_STATIC"):
            raise LookupError(
                f"no claim {claim_id!r} among the modules this page imports. Import the chapter's "
                "claims (from deqbook.claims import ch01) so that the cache depends on them."
            )
        load_chapters()
    if claim_id not in _REGISTRY:
        near = [i for i in _REGISTRY if i.split(".")[-1] == claim_id.split(".")[-1]]
        hint = f" Did you mean {near[0]!r}?" if near else " See deqbook verify --list."
        raise LookupError(f"there is no claim {claim_id!r}.{hint}")
    return _REGISTRY[claim_id]


@dataclass(frozen=True)
class ControlOutcome:
    """What a control measured, and whether it broke as it must."""

    name: str
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
    """One claim, run on one seed, with its controls."""

    id: str
    title: str
    source: str
    seed: int
    measurements: tuple[Measurement, ...]
    controls: tuple[ControlOutcome, ...]
    seconds: float
    reason: str = ""
    error: str = ""

    @property
    def status(self) -> str:
        """One of holds, fails, unbroken (a control did not fail), uncheckable."""
        if self.reason:
            return "uncheckable"
        if self.error or not self.measurements or not all(m.holds for m in self.measurements):
            return "fails"
        if not self.controls or not all(c.breaks for c in self.controls):
            return "unbroken"
        return "holds"

    @property
    def slack(self) -> float:
        """The least room among the theorem's own bounds; infinite if it states none."""
        return min((m.slack for m in self.measurements if m.theorem), default=math.inf)

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
        rows = [_row(m, "holds" if m.holds else "fails") for m in self.measurements]
        for c in self.controls:
            verdict = "breaks, as it must" if c.breaks else "does not break"
            rows.append(
                f'<tr><th colspan="3">control: {html.escape(c.broken)}</th><td>{verdict}</td></tr>'
            )
            rows += [_row(m, "holds" if m.holds else "fails") for m in c.measurements]
        note = (
            f"<p>{html.escape(self.reason or self.error)}</p>" if self.reason or self.error else ""
        )
        return (
            f'<div class="deq-evidence deq-{self.status}"><p><b>{html.escape(self.title)}</b> '
            f"({html.escape(self.source)}; <code>{self.id}</code>, seed {self.seed})</p>{note}"
            "<table><thead><tr><th>measured</th><th>value</th><th>bound</th><th></th></tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )


def _row(m: Measurement, verdict: str) -> str:
    band = f" ± {m.tol:.2g}" if m.relation == "=" else ""
    return (
        f"<tr><td>{html.escape(m.name)}</td><td>{m.value:.4g}</td>"
        f"<td>{m.relation} {m.bound:.4g}{band}</td><td>{verdict}</td></tr>"
    )


def check(claim_id: str, *, seed: int = 0) -> Evidence:
    """Run one claim and its controls on one seed."""
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
        outcomes.append(ControlOutcome(control.name, control.broken, seen, problem))
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
    )


def _measure(body: Body, seed: int) -> tuple[tuple[Measurement, ...], str]:
    """Run one body; an exception is a failure with its traceback, not a crash of the ledger."""
    try:
        return tuple(body(Trial(seed))), ""
    except Exception:
        return (), traceback.format_exc(limit=-4)


@dataclass(frozen=True)
class Verdict:
    """One claim over all seeds: the worst of each measurement decides."""

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
            "reason": self.claim.reason or worst.error,
            "slack": _finite(self.slack),
            "seconds": round(self.seconds, 3),
            "seed": worst.seed,
            "measurements": [_measurement_json(m) for m in worst.measurements],
            "controls": [
                {
                    "name": c.name,
                    "broken": c.broken,
                    "breaks": all(e.controls[i].breaks for e in self.evidence),
                    "measurements": [_measurement_json(m) for m in c.measurements],
                }
                for i, c in enumerate(worst.controls)
            ],
        }


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _measurement_json(m: Measurement) -> dict[str, object]:
    return {
        "name": m.name,
        "value": _finite(m.value),
        "relation": m.relation,
        "bound": _finite(m.bound),
        "tol": m.tol,
        "holds": m.holds,
    }


def verify(
    ids: Sequence[str], *, seeds: int = 5, executor: Executor | None = None
) -> Iterator[Verdict]:
    """Run claims over seeds 0…seeds-1, yielding verdicts in order as they are ready.

    Any ``concurrent.futures`` executor will do; without one everything runs here.
    """
    claims = [find(i) for i in ids]
    if executor is None:
        for one in claims:
            yield Verdict(one, tuple(check(one.id, seed=s) for s in range(seeds)))
        return
    jobs = {one.id: [executor.submit(_job, one.id, s) for s in range(seeds)] for one in claims}
    for one in claims:
        yield Verdict(one, tuple(job.result() for job in jobs[one.id]))


def _job(claim_id: str, seed: int) -> Evidence:
    """Run one check in a worker, on one thread: the workers are the parallelism."""
    torch.set_num_threads(1)
    return check(claim_id, seed=seed)
