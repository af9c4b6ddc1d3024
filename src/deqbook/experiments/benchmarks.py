"""What the page of benchmarks shows: ratios and slopes from the receipts of ``make bench``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deqbook.experiments.drawing import flat, panels, plain_log
from deqbook.experiments.gallery import Table
from deqbook.experiments.receipts import Results, read
from deqbook.viz.style import FIGSIZE, look

__all__ = [
    "RACES",
    "Row",
    "circumstances",
    "draw_growth",
    "draw_race",
    "draw_solvers",
    "fastest",
    "growth",
    "large",
    "peers_ahead",
    "places",
    "places_table",
    "race",
    "race_table",
    "results",
    "slopes",
    "solvers",
    "solvers_table",
]

FOLDER = Path(__file__).parents[1] / "data" / "results"
RACES = ("full batch", "mini-batches")
CLOSED, WARM, PLAIN = (
    "deqbook closed form, Picard",
    "deqbook autograd, WarmStart",
    "deqbook autograd, plain",
)
PEERS = ("torchdeq", "optimistix", "unrolled")
SHOWN = ("Picard", "Anderson", "Adaptive", "Broyden", "Newton gmres")
WHAT = ("solve", "step", "kernel")
QUANTITIES = {
    "n": "samples n",
    "m": "width m",
    "digits": "digits of the tolerance",
    "edge": "1/(1 − c)",
}


def results(name: str) -> Results:
    """Return a receipt of ``make bench``, checked: ``growth``, ``places``, ``solvers``, …."""
    return read(FOLDER / f"bench_{name}.json")


def circumstances(name: str) -> Table:
    """Return how a benchmark was run: command, versions, machine, threads, load."""
    found = results(name)
    parts = {r["case"].get("part", ""): r["result"] for r in found.select("circumstances")}
    versions = ", ".join(f"{k} {v}" for k, v in found.receipt.versions.items())
    rows = [("command", found.receipt.command), ("versions", versions)]
    for part, where in parts.items():
        before, after = ("not noted" if load is None else load for load in where["load"])
        machine = f"{where['hardware']}; threads: {where['threads']}; {where['clock']}"
        rows += [(f"machine {part}".strip(), machine)]
        rows += [(f"load {part}".strip(), f"{before} before, {after} after")]
        rows += [(f"note {part}".strip(), where["note"])] if "note" in where else []
    return Table((), rows, "how it was measured")


# -- the race of a training step -------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One contestant: its time over that of the closed form with quartiles, and if it counts."""

    name: str
    ratio: tuple[float, float, float]
    milliseconds: float
    error: float
    counts: bool
    within: float | None  # share of the steps at which the gradient was exact; None: not counted
    products: float | None  # with a matrix as large as W, for the whole batch; None: not counted

    @property
    def middle(self) -> float:
        """The median of the ratio."""
        return self.ratio[1]


def race(which: str) -> dict[str, Row]:
    """Return the rows of a race by name."""
    rows = {}
    for run in results("training_step").select(which):
        r, name = run["result"], run["case"]["row"]
        low, middle, high = r["ratio"]
        rows[name] = Row(
            name,
            (low, middle, high),
            r["milliseconds"],
            r["error"],
            r["counts"],
            r.get("within"),
            r.get("products"),
        )
    return rows


def fastest(which: str, who: str) -> Row:
    """Return the fastest row of a peer that counts; ``KeyError`` if there is none."""
    rows = [row for name, row in race(which).items() if name.startswith(who) and row.counts]
    if not rows:
        raise KeyError(f"no row of {who!r} in the race by {which} counts.")
    return min(rows, key=lambda row: row.middle)


def _often(row: Row) -> str:
    """Say at how many steps the gradient was off, where that was counted."""
    return "" if row.within is None else f", at {100 * (1 - row.within):.0f} % of the steps"


def race_table(which: str) -> Table:
    """Return everyone, fastest first, beside the closed form and beside WarmStart."""
    rows = race(which)
    warm = rows[WARM].middle
    lines = [
        (
            row.name,
            f"{row.milliseconds:.0f}",
            f"{row.middle:.2f} ({row.ratio[0]:.2f} to {row.ratio[2]:.2f})",
            f"{row.middle / warm:.2f}",
            "" if row.products is None else f"{row.products:.1f}",
            f"{row.error:.0e}" + ("" if row.counts else f", does not count{_often(row)}"),
        )
        for row in sorted(rows.values(), key=lambda row: row.middle)
    ]
    head = (
        "",
        "ms",
        "÷ closed form (quartiles)",
        "÷ WarmStart",
        "products",
        "error of the gradient",
    )
    return Table(head, lines, f"{which}: everyone")


def draw_race() -> Figure:
    """Draw the ratios to the closed form: ours, and each peer at its fastest that is exact."""
    figure = Figure(figsize=(FIGSIZE[0], 4.6), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for axis, which in zip(axes, RACES):
        rows = race(which)
        shown = {"closed form": rows[CLOSED], "WarmStart": rows[WARM], "plain": rows[PLAIN]}
        shown |= {who: fastest(which, who) for who in PEERS}
        order = sorted(shown.items(), key=lambda item: -item[1].middle)
        for height, (name, row) in enumerate(order):
            style = look("ReLUImplicit") if name not in PEERS else look("control")
            axis.plot(
                row.ratio[::2], [height, height], color=style["color"], linewidth=2, marker="|"
            )
            axis.plot(row.middle, height, color=style["color"], marker=style["marker"])
            axis.annotate(
                f"{row.middle:.2f}",
                (row.ratio[2], height),
                (8, -4),
                textcoords="offset points",
                color=style["color"],
            )
        axis.set_yticks(range(len(order)), [name for name, _ in order])
        axis.set_title(which, loc="left")
        axis.set_xscale("log")
    axes[1].set_xlim(0.9, 6.5)
    axes[1].set_xlabel("time ÷ closed form")
    plain_log(axes[1].xaxis)
    return figure


# -- solvers ---------------------------------------------------------------------------------------


def solvers() -> dict[str, dict[str, tuple[float, float]]]:
    """Return by problem and solver of ours: time ÷ best, evaluations ÷ best."""
    table: dict[str, dict[str, tuple[float, float]]] = {}
    for run in results("solvers").runs:
        beside = run["result"].get("beside best")
        if beside:
            name = run["case"]["row"].removeprefix("deqbook ")
            table.setdefault(run["group"], {})[name] = (beside[0], beside[1])
    return table


def solvers_table() -> Table:
    """Return time ÷ best and evaluations ÷ best of each solver on each problem."""
    lines = [
        (
            title,
            *(
                f"{r[s][0]:.2f}\u00a0·\u00a0{r[s][1]:.2f}" if s in r else "not solved"
                for s in SHOWN
            ),
        )
        for title, r in solvers().items()
    ]
    head = ("problem", *SHOWN)
    return Table(head, lines, "every solver on every problem: time ÷ best · evaluations ÷ best")


def draw_solvers() -> Figure:
    """Draw time ÷ best: a line for each problem, a mark for each solver."""
    table = solvers()
    figure = Figure(figsize=(FIGSIZE[0], 4.4), layout="constrained")
    axis = figure.subplots()
    looks = {s: _look(s) for s in ("Picard", "Anderson", "Broyden", "Adaptive")}
    for name, style in looks.items():
        points = [(r[name][0], k) for k, r in enumerate(reversed(table.values())) if name in r]
        x, y = zip(*points)
        drawn = {**style, "linestyle": "none"}
        drawn.pop("markevery", None)
        axis.plot(x, y, label=name, **drawn)
    axis.axvline(1.2, **look("bound"))
    axis.set_yticks(range(len(table)), [str(k) for k in range(len(table), 0, -1)])
    axis.set_ylabel("problem")
    axis.set_xlabel("time ÷ the quickest solver in hindsight")
    axis.set_xscale("log")
    plain_log(axis.xaxis)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


# -- growth ----------------------------------------------------------------------------------------


def growth(kind: str, quantity: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return who, what and the numbers of a sweep, if it was run; ``kind`` is time or memory."""
    runs = [r for r in results("growth").runs if r["group"] == f"{kind} against {quantity}"]
    return [(r["case"]["who"], r["case"]["what"], r["result"]) for r in runs]


def slopes(kind: str, quantities: tuple[str, ...]) -> Table:
    """Return the slopes with their 95 % intervals, a row for each contestant."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for quantity in quantities:
        for who, what, r in growth(kind, quantity):
            low, middle, high = r["slope"]
            told = f"{middle:.2f} ({low:.2f} to {high:.2f})".replace(" ", "\u00a0")
            cells.setdefault((what, who), {})[quantity] = told
    lines = [
        (what, who, *(cells[what, who].get(q, "") for q in quantities))
        for what, who in sorted(cells, key=lambda key: WHAT.index(key[0]))
    ]
    head = ("", "", *(QUANTITIES[q] for q in quantities))
    return Table(head, lines, f"slopes of {kind}, with intervals")


def draw_growth(what: str = "step") -> Figure:
    """Draw the seconds of a training step against each of the four quantities."""
    figure, rows = panels(2, 2, 2.3)
    for axis, quantity in zip(flat(rows), QUANTITIES):
        for who, task, r in growth("time", quantity):
            if task == what:
                _curve(axis, who, r)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(QUANTITIES[quantity])
        plain_log(axis.xaxis)
        plain_log(axis.yaxis)
    for row in rows:
        row[0].set_ylabel("seconds")
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _curve(axis: Axes, who: str, r: Mapping[str, Any]) -> None:
    library, method = who.split(" ")
    style = _look(method) | ({} if library == "deqbook" else {"linestyle": ":"})
    style.pop("markevery", None)
    axis.plot(r["values"], r["seconds"], label=who, **style)


def _look(solver: str) -> dict[str, Any]:
    return {**look("measured"), "marker": "X"} if solver == "Adaptive" else {**look(solver)}


def large() -> Table:
    """Return time and memory at the large size: told beforehand, and measured."""
    lines = [
        (
            run["case"]["what"],
            f"{run['case']['n']}, {run['case']['m']}",
            f"{run['result']['told']:.0f}",
            f"{run['result']['megabytes']:.0f}",
            f"{run['result']['seconds']:.0f}",
        )
        for run in results("growth").select("large")
    ]
    return Table(("", "n, m", "MB told beforehand", "MB measured", "s"), lines)


# -- places ----------------------------------------------------------------------------------------


def places() -> dict[str, Mapping[str, Any]]:
    """Return by place: the wall time of the same cases, and what a start and a case cost."""
    return {r["case"]["place"]: r["result"] for r in results("places").select("places")}


def places_table() -> Table:
    """Return the time of all cases in each place, and what a case costs beside its work."""
    found = places()
    alone = next(iter(found.values()))["wall"]
    lines = [
        (
            name,
            f"{r['wall']:.1f}",
            f"{alone / r['wall']:.2f}",
            f"{max(r['start'], 0.0):.1f}",  # a cluster runs before: noise around 0
            f"{1000 * r['each']:.0f}",
        )
        for name, r in found.items()
    ]
    head = ("", "s for all cases", "times as fast", "s to start", "ms a case beside its work")
    return Table(head, lines)


# -- where a peer is better ------------------------------------------------------------------------


def peers_ahead() -> Table:
    """Return where a peer beats WarmStart, or the same method of ours, and its cost ÷ ours."""
    lines: list[tuple[str, str, str]] = []
    for which in RACES:
        rows = race(which)
        for row in rows.values():
            if row.name.startswith(PEERS) and row.middle < rows[WARM].middle:
                note = "" if row.counts else f" (gradient off by more than 1e-4{_often(row)})"
                what = f"training step, {which}, beside WarmStart"
                lines.append((what, row.name + note, f"{row.middle / rows[WARM].middle:.2f}"))
    for kind, unit, quantities in (
        ("time", "seconds", tuple(QUANTITIES)),
        ("memory", "megabytes", ("n", "m")),
    ):
        for quantity in quantities:
            lines += _wins(kind, unit, quantity)
    return Table(("what", "who", "÷ ours"), lines)


def _wins(kind: str, unit: str, quantity: str) -> list[tuple[str, str, str]]:
    """Return where torchdeq is ahead of the same method of ours in a sweep, a line for each row."""
    found = {(who, what): r for who, what, r in growth(kind, quantity)}
    lines = []
    for (who, what), r in found.items():
        if not who.startswith("torchdeq"):
            continue
        ours = found[who.replace("torchdeq", "deqbook"), what]
        shares = {v: a / b for v, a, b in zip(r["values"], r[unit], ours[unit])}
        won = {v: share for v, share in shares.items() if round(share, 2) < 1}
        if won:
            low, high = (f"{f(won.values()):.2f}" for f in (min, max))
            where = f"{QUANTITIES[quantity]} = {', '.join(f'{v:g}' for v in won)}"
            ratio = low if low == high else f"{low}\u00a0to\u00a0{high}"
            lines.append((f"{kind} of {what}, {where}", who, ratio))
    return lines
