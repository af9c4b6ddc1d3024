"""A report on the class: how each task went, what went wrong most, and what to look at."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from deqbook.course.grading.assignment import TEST, Assignment
from deqbook.course.grading.files import replace
from deqbook.course.grading.marks import Total

BINS = 10
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; }
td, th { padding: .2em .8em .2em 0; text-align: left; vertical-align: top; }
td.n { text-align: right; } svg { display: block; margin: .5em 0; } h2 { margin-top: 2em; }
"""


def histogram(shares: Sequence[float], label: str) -> str:
    """Return a histogram of shares of the points, as SVG that needs nothing else."""
    counts = [0] * BINS
    for share in shares:
        counts[min(BINS - 1, int(share * BINS + 1e-9))] += 1
    top, width, height = max([*counts, 1]), 44, 90
    told = ", ".join(
        f"{10 * n}–{10 * n + 10} %: {count}" for n, count in enumerate(counts) if count
    )
    bars = []
    for n, count in enumerate(counts):
        tall = height * count / top
        bars.append(
            f'<rect x="{n * width + 2}" y="{height + 16 - tall:.1f}" width="{width - 4}" '
            f'height="{tall:.1f}" fill="#0072B2"/>'
        )
        if count:
            bars.append(
                f'<text x="{n * width + width / 2}" y="{height + 12 - tall:.1f}" '
                f'text-anchor="middle" font-size="12">{count}</text>'
            )
        bars.append(
            f'<text x="{n * width + width / 2}" y="{height + 32}" text-anchor="middle" '
            f'font-size="11">{10 * n}–{10 * n + 10}</text>'
        )
    return (
        f'<svg role="img" aria-label="{html.escape(label)}: {html.escape(told)}" '
        f'width="{BINS * width}" height="{height + 40}">{"".join(bars)}</svg>'
    )


def faults(totals: Sequence[Total], test: str) -> list[tuple[str, int]]:
    """Return what went wrong with a task, the most frequent first."""
    counted: Counter[str] = Counter()
    for total in totals:
        fault = total.result.marks[test].fault
        counted.update(part for part in fault.split("; ") if part)
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))


def alike(totals: Sequence[Total], fewest: int = 3) -> list[tuple[list[str], int]]:
    """Return groups of students of whom several answers are the same code, names apart."""
    groups: dict[frozenset[str], set[str]] = {}
    by_code: dict[tuple[str, str], list[str]] = {}
    for total in totals:
        for cell, digest in total.result.code.items():
            if digest:
                by_code.setdefault((cell, digest), []).append(total.student.id)
    for (cell, _), students in by_code.items():
        if len(students) > 1:
            groups.setdefault(frozenset(students), set()).add(cell)
    found = [(sorted(who), len(cells)) for who, cells in groups.items() if len(cells) >= fewest]
    return sorted(found)


def text(assignment: Assignment, totals: Sequence[Total], lost: Sequence[str] = ()) -> str:
    """Return the report as a page that needs no other file."""
    say = html.escape
    parts = [f"<h1>{say(assignment.name)}</h1>"]
    complete = [total for total in totals if total.points is not None]
    parts.append(
        f"<p>{len(totals)} students; {len(complete)} have their whole mark, "
        f"{len(totals) - len(complete)} wait for a person to mark their text.</p>"
    )
    if totals:
        automatic = [
            t.auto / max(sum(m.out_of for m in t.result.marks.values()), 1e-9) for t in totals
        ]
        parts.append("<h2>Automatic marks</h2>" + histogram(automatic, "Automatic marks, per cent"))
    for test, points in assignment.tests.items():
        name = test.removeprefix(TEST)
        shares = [t.result.marks[test].points / points for t in totals]
        mean = 100 * sum(shares) / len(shares) if shares else 0
        parts.append(f"<h2>{say(name)} ({points:g} points)</h2><p>On average {mean:.0f} %.</p>")
        parts.append(histogram(shares, name))
        rows = "".join(
            f'<tr><td class="n">{count}</td><td>{say(fault)}</td></tr>'
            for fault, count in faults(totals, test)[:8]
        )
        if rows:
            parts.append(f"<table><tr><th>students</th><th>what went wrong</th></tr>{rows}</table>")
    noted = [t for t in totals if t.result.notes]
    if noted:
        parts.append("<h2>What to look at</h2><table>")
        for total in noted:
            notes = say(" ".join(total.result.notes))
            parts.append(f"<tr><td>{say(total.student.id)}</td><td>{notes}</td></tr>")
        parts.append("</table>")
    same = alike(totals)
    if same:
        parts.append(
            "<h2>The same code</h2><p>Names of variables and comments apart. This is no "
            "proof.</p><ul>"
        )
        parts += [f"<li>{say(', '.join(who))}: {cells} answers</li>" for who, cells in same]
        parts.append("</ul>")
    if lost:
        items = "".join(f"<li>{say(one)}</li>" for one in lost)
        parts.append(f"<h2>Not placed</h2><ul>{items}</ul>")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width"><meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{say(assignment.name)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def write(out: Path, assignment: Assignment, totals: Sequence[Total], lost: Sequence[str]) -> Path:
    """Write the report and return where."""
    path = out / f"{assignment.name}-report.html"
    replace(path, text(assignment, totals, lost))
    return path
