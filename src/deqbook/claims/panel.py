"""The panel that a notebook shows for a claim: a verdict in one line, the measurements on demand.

It is HTML that needs no style sheet and no script, so it reads the same on a page of the book, in
JupyterLab and on Colab. The book's style sheet adds to it (``book/_static/deqbook.css``).
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Protocol

from deqbook.typeset import LEFT, WHOLE, formula, number

__all__ = ["VERDICTS", "gauge", "panel", "verdict"]

VERDICTS = {
    "holds": "✓ holds",
    "partly": "partly",
    "not reproduced": "not reproduced at this size",
    "quoted": "✓ quoted, not proved here",
    "definition": "✓ definition",
    "not checkable": "not checkable",
    "fails": "✗ fails",
    "unbroken": "✗ control holds",
}
"""How a standing is told in a word or two; the last two are for claims that are not in order."""

COLUMNS = ("measured", "value", "bound", "on a log scale", "verdict")
HYPOTHESIS = "hypothesis: "
#: A gauge shows factors up to a thousand on either side of the bound.
DECADES = 3.0
WIDTH, HEIGHT, MARGIN = 120, 16, 8


class Measured(Protocol):
    """What a panel has to know of a measurement."""

    @property
    def label(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def relation(self) -> str: ...
    @property
    def bound(self) -> float: ...
    @property
    def tol(self) -> float: ...
    @property
    def theorem(self) -> bool: ...
    @property
    def holds(self) -> bool: ...
    @property
    def slack(self) -> float: ...


class Broken(Protocol):
    """What a panel has to know of a control."""

    @property
    def broken(self) -> str: ...
    @property
    def breaks(self) -> bool: ...
    @property
    def measurements(self) -> Sequence[Measured]: ...


class Shown(Protocol):
    """What a panel has to know of the evidence."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def standing(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def slack(self) -> float: ...
    @property
    def measurements(self) -> Sequence[Measured]: ...
    @property
    def headlines(self) -> Sequence[Measured]: ...
    @property
    def controls(self) -> Sequence[Broken]: ...


def verdict(status: str, standing: str) -> str:
    """Say what a run shows of a statement.

    >>> verdict("holds", "quoted"), verdict("fails", "quoted")
    ('✓ quoted, not proved here', '✗ fails')
    """
    return VERDICTS[standing if status in ("holds", "uncheckable") else status]


def panel(e: Shown) -> str:
    """Return the evidence as a line that opens: the verdict, then measurements and controls.

    >>> from deqbook.claims.registry import Evidence, at_most
    >>> kept = at_most("factor", 0.5, 1.0)
    >>> told = panel(Evidence("gao2022.x", "One", "Gao", 0, (kept,), (), 0.1))
    >>> told.startswith('<details class="deq-evidence deq-unbroken"><summary>')
    True
    """
    where = f"{html.escape(e.source)}; <code>{html.escape(e.id)}</code>, seed\u00a0{e.seed}"
    notes = "".join(f"<p>{formula(text)}</p>" for text in (e.reason,) if text)
    notes += "".join(f"<pre>{html.escape(text)}</pre>" for text in (e.error,) if text)
    table = _table(e) if e.measurements or e.controls else ""
    return (
        f'<details class="deq-evidence deq-{_edge(e)}"><summary>{_summary(e)}</summary>'
        f"<p>{where}</p>{notes}{table}</details>"
    )


def _edge(e: Shown) -> str:
    """Return what colours the edge: what a run shows of the statement if that is less than all."""
    less = e.status == "holds" and e.standing in ("partly", "not reproduced")
    return e.standing.replace(" ", "-") if less else e.status


def _summary(e: Shown) -> str:
    parts = []
    if e.headlines:
        m = min(e.headlines, key=lambda m: m.slack)
        parts.append(f"{number(m.value)} {_against(m)}")
    if math.isfinite(e.slack):
        parts.append(f"slack {number(float(f'{e.slack:.3g}'))}")
    if e.controls:
        broken = sum(c.breaks for c in e.controls)
        parts.append(f"controls broken {broken}/{len(e.controls)}")
    # A line may end after a dot, and never begins with one.
    dot = '<span class="deq-fact">&nbsp;·</span>'
    facts = "".join(f'{dot} <span {WHOLE} class="deq-fact">{part}</span>' for part in parts)
    told = f'<b class="deq-verdict">{verdict(e.status, e.standing)}</b>'
    return f"{told} {formula(e.title)}{facts}"


def _against(m: Measured) -> str:
    band = f" ± {number(m.tol)}" if m.relation == "=" else ""
    return f"{m.relation} {number(m.bound)}{band}"


def _table(e: Shown) -> str:
    head = "".join(f'<th scope="col" {WHOLE}>{name}</th>' for name in COLUMNS)
    groups = [f"<tbody>{''.join(map(_row, e.measurements))}</tbody>"]
    for c in e.controls:
        outcome = "breaks, as it must" if c.breaks else "does not break"
        told = f"control: {formula(c.broken)}; it {outcome}"
        groups.append(
            f'<tbody><tr><th scope="rowgroup" colspan="{len(COLUMNS)}" {LEFT}>{told}</th></tr>'
            f"{''.join(map(_row, c.measurements))}</tbody>"
        )
    title = html.escape(f"Measurements and controls of {e.id}")
    return f'<table aria-label="{title}"><thead><tr>{head}</tr></thead>{"".join(groups)}</table>'


def _row(m: Measured) -> str:
    label = m.label.removeprefix(HYPOTHESIS)
    kind = "<em>hypothesis</em>: " if label != m.label else ""
    return (
        f"<tr><td {LEFT}>{kind}{formula(label)}</td><td {WHOLE}>{number(m.value)}</td>"
        f"<td {WHOLE}>{_against(m)}</td><td {WHOLE}>{gauge(m)}</td>"
        f"<td {WHOLE}>{'✓ holds' if m.holds else '✗ fails'}</td></tr>"
    )


def gauge(m: Measured) -> str:
    """Draw where a value lies against its bound, on a scale of powers of ten.

    The upright stroke is the bound, and the thick line is where the relation holds. A value inside
    is a disc and one outside a cross; an arrow says that it lies off the scale. For an equation
    the value is the error and the bound the tolerance.

    >>> from deqbook.claims.registry import at_most
    >>> "<title>within the bound by a factor 2</title>" in gauge(at_most("factor", 0.5, 1.0))
    True
    """
    middle, half = WIDTH / 2, WIDTH / 2 - MARGIN
    side = 1 if m.relation == "≥" else -1
    # How far the value is on the good side: by powers of ten, and never beyond the scale.
    room = math.log10(m.slack) if 0 < m.slack < math.inf else math.copysign(math.inf, m.slack - 0.5)
    shown = min(max(room / DECADES, -1.0), 1.0)
    if not m.holds:  # by however little: it never stands on the stroke, or on the good side
        shown = min(shown, -0.1)
    x, y = middle + side * shown * half, HEIGHT / 2
    good = middle + side * half
    bad = middle - side * half
    if abs(room) > DECADES:
        point = 1 if x > middle else -1
        mark = f'<path d="M{x + 5 * point:.1f} {y}l{-7 * point} -5v10z" fill="currentColor"/>'
    elif m.holds:
        mark = f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="currentColor"/>'
    else:
        mark = f'<path d="M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8" stroke-width="2"/>'
    return (
        f'<svg class="deq-gauge" role="img" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" fill="none" stroke="currentColor">'
        f"<title>{_in_words(m, room)}</title>"
        f'<path d="M{bad} {y}H{middle}" stroke-dasharray="1 4"/>'
        f'<path d="M{middle} {y}H{good}" stroke-width="3" opacity="0.45"/>'
        f'<path d="M{middle} 1V{HEIGHT - 1}"/>{mark}</svg>'
    )


def _in_words(m: Measured, room: float) -> str:
    """Say what a gauge shows."""
    thing = "tolerance" if m.relation == "=" or not m.theorem else "bound"
    if not m.holds:
        by = f" by a factor {number(_digits(10**-room))}" if -math.inf < room < 0 else ""
        return f"outside the {thing}{by}"
    if math.isinf(room):
        return f"within the {thing}"
    return f"within the {thing} by a factor {number(_digits(10**room))}"


def _digits(x: float) -> float:
    return float(f"{x:.2g}")
