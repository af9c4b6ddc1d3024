"""Training against width: Figure 1 of gao2022, of gao2023 and of ling2023.

The sources state neither the step nor, two of them, the widths. The step is chosen by one rule for
all: one value for all widths of a panel, and at the published size no run above 0.8 of its own edge
2/λ_max(H(0)). The numbers below come from that rule; in miniature they are scaled and stay below
the edge. ``tests/experiments`` recomputes the edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deqbook.data.bundled import FOLDER
from deqbook.experiments.cases import descent
from deqbook.experiments.declaration import Experiment, Job, NotRun, Statement
from deqbook.experiments.drawing import flat, legend_below, panels, plain_log
from deqbook.experiments.receipts import Results, read
from deqbook.pages.p03d_real_data.lab import SETS, DescentRun
from deqbook.viz.style import band, graded

__all__ = ["DRAWS", "GAO2022", "GAO2023", "LING2023"]

CODE = ("deqbook.experiments.cases.descent", "deqbook.pages.p03d_real_data.lab")


# --- reading ------------------------------------------------------------------------------------


def widths(results: Results, group: str) -> list[int]:
    """Return the widths of a group, rising; ``NotRun`` if there are fewer than two."""
    found = sorted({r["case"]["m"] for r in results.runs if r["group"] == group})
    if len(found) < 2:
        raise NotRun(f"{group}: {len(found)} widths were run, two are needed")
    return found


def curves(results: Results, group: str, m: int, key: str) -> np.ndarray[Any, Any]:
    """Return one row per seed of what was recorded; a lost run ends with its last value."""
    rows = [r["result"][key] for r in results.select(group, m=m)]
    longest = max(len(row) for row in rows)
    return np.array([row + [row[-1]] * (longest - len(row)) for row in rows])


def last(results: Results, group: str, m: int, key: str) -> float:
    """Return the mean over seeds at the end."""
    return float(curves(results, group, m, key)[:, -1].mean())


def falls_with_width(key: str, group: str, results: Results) -> tuple[bool, str]:
    """Tell whether the last value falls with every step up in width."""
    found = {m: last(results, group, m, key) for m in widths(results, group)}
    values = list(found.values())
    told = ", ".join(f"{v:#.4g} at m = {m}" for m, v in found.items())
    return all(b < a for a, b in pairwise(values)), told


def _norm_stays(group: str, results: Results) -> tuple[bool, str]:
    rows = {m: curves(results, group, m, "norm") for m in widths(results, group)}
    moved = max(float(np.abs(c / c[:, :1] - 1).max()) for c in rows.values())
    first, *_, end = [float(c[:, 0].mean()) for c in rows.values()]
    told = f"moves by at most {100 * moved:.2g} %; {first:.4f} at the narrowest, {end:.4f}"
    return moved <= 0.01 and end > first, f"{told} at the widest"


def _below_one(group: str, results: Results) -> tuple[bool, str]:
    top = max(float(curves(results, group, m, "norm").max()) for m in widths(results, group))
    return top < 1, f"at most {top:.4f}"


# --- gao2022 ------------------------------------------------------------------------------------

STEPS_2022 = {"mnist01": 1.6e-3, "fashion01": 1.0e-3, "cifar01": 9e-4, "svhn01": 8e-4}
"""At n = 1000. λ_max(H(0)) is at most 913, 1483, 1716 and 1860 for m = 500 to 4000."""


def gao2022_cases(ms: Sequence[int], n: int, epochs: int, seeds: Sequence[int]) -> list[Job]:
    """Return the runs: four sets, the widths, the seeds. λ_max grows like n, so steps shrink."""
    return [
        (
            data,
            DescentRun(
                data,
                "gao2022",
                m=m,
                seed=seed,
                step=step * (1000 / n),
                rule="fixed",
                epochs=epochs,
                every=20,
                n=n,
            ),
        )
        for data, step in STEPS_2022.items()
        for m in ms
        for seed in seeds
    ]


def _cost(case: DescentRun) -> float:
    """Count multiplications of an epoch: a few products with W (m × m) and U (m × d)."""
    return case.epochs * case.n * case.m * (8 * case.m + 3 * 784) / 1e12


def draw_panels(
    results: Results, columns: Sequence[tuple[str, str, bool]], groups: Sequence[str]
) -> Figure:
    """Draw one panel for each group and quantity, one curve per width; sets stand in rows."""
    shown = [g for g in groups if any(r["group"] == g for r in results.runs)]
    cells = [(group, column) for group in shown for column in columns]
    across = len(columns) if len(shown) > 1 else 2
    figure, rows = panels(-(-len(cells) // across), across, 1.75)
    for k, (ax, (group, (key, title, logarithmic))) in enumerate(zip(flat(rows), cells)):
        _panel(ax, results, group, key, logarithmic=logarithmic)
        if len(shown) == 1 or k < across:
            ax.set_title(title)
        if k % across == 0:
            ax.set_ylabel(SETS.get(group, group))
        last = k >= len(cells) - across
        ax.set_xlabel("epoch" if last else "")
        ax.tick_params(labelbottom=last)
    legend_below(figure, rows, 3)
    return figure


def drawn_places(count: int) -> list[int]:
    """Return which records of a curve are drawn: all early ones, every third later one, the last.

    >>> drawn_places(18)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 17]
    """
    return [k for k in range(count) if k < 10 or k % 3 == 0 or k == count - 1]


def _panel(ax: Axes, results: Results, group: str, key: str, *, logarithmic: bool = True) -> None:
    ms = sorted({r["case"]["m"] for r in results.select(group)})
    for m, look in zip(ms, graded(len(ms))):
        epochs = max((r["result"]["epochs"] for r in results.select(group, m=m)), key=len)
        few = drawn_places(len(epochs))
        drawn = curves(results, group, m, key)[:, few]
        line = band(ax, np.array(epochs)[few], drawn, label=f"$m={m}$", ms=4, **look)
        line.set_markevery(0.25)  # panels are small
    if logarithmic:
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    ax.locator_params(axis="x", nbins=3)


THREE_COLUMNS = (
    ("loss", "training loss", True),
    ("test_loss", "test loss", True),
    ("norm", r"$\tilde\gamma\|W\|$", False),
)
FOUR_COLUMNS = (*THREE_COLUMNS[:2], ("error", "training error", False), THREE_COLUMNS[2])


def _gao2022_statements() -> tuple[Statement, ...]:
    found: list[Statement] = []
    for group, title in SETS.items():
        found += [
            Statement(
                f"{title}: wider networks converge faster",
                "the training loss after the last epoch falls with every step up in width",
                partial(falls_with_width, "loss", group),
            ),
            Statement(
                f"{title}: wider networks reach a lower test loss",
                "the test loss after the last epoch falls with every step up in width",
                partial(falls_with_width, "test_loss", group),
            ),
            Statement(
                f"{title}: the norm stays at its first value, slightly larger for larger m",
                "it moves by at most 1 %, and the widest starts above the narrowest",
                partial(_norm_stays, group),
            ),
        ]
    return tuple(found)


GAO2022 = Experiment(
    name="gao2022-fig1",
    title="Figure 1 of gao2022: width, on four sets of pictures",
    source="gao2022",
    printed=(
        "Twelve panels: training loss, test loss and the norm of γW/√m against 1000 epochs, on "
        "MNIST, Fashion-MNIST, CIFAR-10 and SVHN, for widths 500 to 4000. Wider curves fall faster "
        "and end lower, in training and in test; the norms are flat lines just below 0.2."
    ),
    published="n = 1000; m = 500 to 4000; 1000 epochs; 4 sets",
    sizes={
        "book": "n = 100; m = 50, 100, 200; 300 epochs; 4 sets; 2 seeds",
        "paper": "n = 1000; m = 500, 1000, 2000, 4000; 1000 epochs; 4 sets; 1 seed",
    },
    cases={
        "book": partial(gao2022_cases, (50, 100, 200), 100, 300, (0, 1)),
        "paper": partial(gao2022_cases, (500, 1000, 2000, 4000), 1000, 1000, (0,)),
    },
    run=descent.run,
    plain=descent.plain,
    cost=_cost,
    kept="losses per sample, 0-1 errors and the cell's norm, every 20 epochs",
    statements=_gao2022_statements(),
    reason=(
        "The source orders its curves by width and names no size of the effect, so only the order "
        "at the end is asked for; one seed cannot carry more. One per cent is ten times what the "
        "printed norms move."
    ),
    draw=lambda results: draw_panels(results, THREE_COLUMNS, list(SETS)),
    code=CODE,
    differs=(
        "Step and γ are not stated in the source: the step is 0.8 of the edge, γ = 0.1 is read off "
        "the printed norms. Single precision. The pictures are our own draw of 500 of each class."
    ),
    data=tuple(SETS),
    shipped={
        "book": FOLDER / "results" / "gao2022_fig1.json",
        "paper": FOLDER / "results" / "gao2022_fig1_paper.json",
    },
    checkpoints=True,
)


# --- how far apart draws end --------------------------------------------------------------------


def _spread(values: Sequence[float]) -> float:
    """Return by how much the largest exceeds the least."""
    return max(values) / min(values) - 1


FACTOR = 4
"""Draws are compared with widths up to so many times their own."""


def _beside(results: Results) -> Results:
    """Return the widths of Figure 1 that ship at the size of these draws, up to ``FACTOR``."""
    case = results.runs[0]["case"]
    other = read(GAO2022.shipped["paper" if case["n"] == 1000 else "book"])
    near = tuple(r for r in other.runs if r["case"]["m"] <= FACTOR * case["m"])
    return replace(other, runs=near)


def spreads(results: Results, key: str) -> dict[str, tuple[float, float]]:
    """Return by set: the spread over draws of one width, and over widths of one draw."""
    other, found = _beside(results), {}
    for group in dict.fromkeys(r["group"] for r in results.runs):
        ends = [r["result"][key][-1] for r in results.select(group)]
        beside = [r["result"][key][-1] for r in other.select(group, seed=0)]
        if len(ends) < 2:
            raise NotRun(f"{group}: {len(ends)} draws were run, two are needed")
        found[group] = _spread(ends), _spread(beside)
    return found


def _draws_matter(key: str, results: Results) -> tuple[bool, str]:
    found = spreads(results, key)
    told = ", ".join(
        f"{SETS[group]} {100 * draws:.1f} % and {100 * widths:.1f} %"
        for group, (draws, widths) in found.items()
    )
    return all(draws > 0.5 * widths for draws, widths in found.values()), told


def draw_ends(results: Results) -> Figure:
    """Draw where runs end, relative to the first: draws of one width, and widths of one draw."""
    other = _beside(results)
    figure, rows = panels(2, 1, 2.2)
    for ax, (key, title, _) in zip(flat(rows), THREE_COLUMNS):
        for place, group in enumerate(SETS):
            first = results.select(group, seed=0)[0]["result"][key][-1]
            kinds = (
                (-0.12, "o", "three draws of the narrowest", results.select(group)),
                (0.12, "^", "three widths of one draw", other.select(group, seed=0)),
            )
            for (shift, marker, label, runs), ink in zip(kinds, graded(2)):
                ends = [r["result"][key][-1] / first for r in runs]
                ax.plot(
                    [place + shift] * len(ends),
                    ends,
                    marker,
                    color=ink["color"],
                    label="" if place else label,
                )
        ax.set(title=title, ylabel="relative to the first")
        ax.set_xticks(range(len(SETS)), list(SETS.values()))
    legend_below(figure, rows, 2)
    return figure


DRAWS = Experiment(
    name="gao2022-draws",
    title="Ours: three draws of the narrowest network of Figure 1 of gao2022",
    source="gao2022",
    printed="No figure: the source shows one run for each width.",
    published="none",
    sizes={
        "book": "n = 100; m = 50; 300 epochs; 4 sets; 3 seeds",
        "paper": "n = 1000; m = 500; 1000 epochs; 4 sets; 3 seeds",
    },
    cases={
        "book": partial(gao2022_cases, (50,), 100, 300, (0, 1, 2)),
        "paper": partial(gao2022_cases, (500,), 1000, 1000, (0, 1, 2)),
    },
    run=descent.run,
    plain=descent.plain,
    cost=_cost,
    kept=GAO2022.kept,
    statements=tuple(
        Statement(
            f"another draw moves the {title} about as much as a factor of four in width",
            "on every set three draws of the narrowest width spread more than half as far as the "
            "three widths of one draw",
            partial(_draws_matter, key),
        )
        for key, title, _ in THREE_COLUMNS[:2]
    ),
    reason="A difference between widths says something where it is well above that between draws.",
    draw=draw_ends,
    code=CODE,
    differs=GAO2022.differs,
    data=tuple(SETS),
    shipped={"paper": FOLDER / "results" / "gao2022_draws_paper.json"},
    checkpoints=True,
)


# --- gao2023 ------------------------------------------------------------------------------------

STEP_2023 = 0.8
"""λ_max(H(0)) is at most 1.93 for m = 500 to 4000 at n = 1000."""


def gao2023_cases(ms: Sequence[int], n: int, epochs: int, seeds: Sequence[int]) -> list[Job]:
    """Return the runs on MNIST with the implicit layer alone trained."""
    base = DescentRun("mnist01", "gao2023", rule="fixed", epochs=epochs, every=20, n=n)
    step = STEP_2023 * (1000 / n)
    return [("mnist01", replace(base, m=m, seed=s, step=step)) for m in ms for s in seeds]


def _to_zero(results: Results) -> tuple[bool, str]:
    found = [
        (last(results, "mnist01", m, "loss"), last(results, "mnist01", m, "error"))
        for m in widths(results, "mnist01")
    ]
    loss, error = (max(values) for values in zip(*found))
    told = f"at most {loss:.3g} of loss and {100 * error:.2g} % of errors at any width"
    return loss <= 0.05 and error <= 0.005, told


def _test_reduced(results: Results) -> tuple[bool, str]:
    ms = widths(results, "mnist01")
    losses = [curves(results, "mnist01", m, "test_loss") for m in ms]
    worst = max(float((c[:, -1] / c[:, 0]).max()) for c in losses)
    error = max(last(results, "mnist01", m, "test_error") for m in ms)
    told = f"the loss ends at most at {worst:.2g} of where it began, {100 * error:.2g} % of errors"
    return worst <= 0.2 and error <= 0.01, told


def _stays_below_one(results: Results) -> tuple[bool, str]:
    return _below_one("mnist01", results)


GAO2023 = Experiment(
    name="gao2023-fig1",
    title="Figure 1 of gao2023: width, with the implicit layer alone trained",
    source="gao2023",
    printed=(
        "Training loss, test loss, 0-1 errors and the norm of the scaled matrix on MNIST, for "
        "several widths. Loss and error go to 0, faster for wider layers; so do those of the test, "
        "and wider is better there too."
    ),
    published="n = 1000 (MNIST, 500 of each of two classes); widths, step and epochs not stated",
    sizes={
        "book": "n = 100; m = 50, 100, 200; 300 epochs; 2 seeds",
        "paper": "n = 1000; m = 500, 1000, 2000; 1000 epochs; 1 seed",
    },
    cases={
        "book": partial(gao2023_cases, (50, 100, 200), 100, 300, (0, 1)),
        "paper": partial(gao2023_cases, (500, 1000, 2000), 1000, 1000, (0,)),
    },
    run=descent.run,
    plain=descent.plain,
    cost=_cost,
    kept="losses per sample, 0-1 errors and the cell's norm, every 20 epochs",
    statements=(
        Statement(
            "training loss and 0-1 error go to 0",
            "at every width a loss per sample of at most 0.05 and at most 0.5 % of errors",
            _to_zero,
        ),
        Statement(
            "wider layers converge faster",
            "the training loss after the last epoch falls with every step up in width",
            partial(falls_with_width, "loss", "mnist01"),
        ),
        Statement(
            "test loss and test error are reduced",
            "at every width the test loss ends at a fifth or less, with at most 1 % of errors",
            _test_reduced,
        ),
        Statement(
            "wider layers do better on the test",
            "the test loss after the last epoch falls with every step up in width",
            partial(falls_with_width, "test_loss", "mnist01"),
        ),
        Statement(
            "the norm of the scaled matrix stays below 1",
            "at every record of every run",
            _stays_below_one,
        ),
    ),
    reason=(
        "A finite run does not reach 0. A network that answers 0 has loss 0.5, so 0.05 is a tenth "
        "of that; the two digits are told apart by a linear map with under 1 % of errors."
    ),
    draw=lambda results: draw_panels(results, FOUR_COLUMNS, ["mnist01"]),
    code=CODE,
    differs="Step, epochs, widths and γ are ours: 0.8 of the edge, 1000, 500 to 2000, and 0.1.",
    data=("mnist01",),
    shipped={
        "book": FOLDER / "results" / "gao2023_fig1.json",
        "paper": FOLDER / "results" / "gao2023_fig1_paper.json",
    },
    checkpoints=True,
)


# --- ling2023 -----------------------------------------------------------------------------------

PANELS = {"sphere": "sphere", "mnist01": "MNIST", "cifar01": "CIFAR-10"}
FIXED = {"sphere": 3.4e-6, "mnist01": 1.7e-6, "cifar01": 9.6e-7}
"""At n = 1000: λ_max(H(0)) is 4.6e5, 9.2e5 and 1.63e6 at the widest, m = 1000."""
OVER_M = {"sphere": 3.1e-3, "mnist01": 8.0e-4, "cifar01": 3.6e-4}
"""At n = 1000: λ_max(H(0))/m is largest at m = 125, 515, 1979 and 4391 over three seeds."""


def ling2023_cases(
    ms: Sequence[int], n: int, epochs: int, seeds: Sequence[int], share: float = 1.0
) -> list[Job]:
    """Return the runs: three sets, a fixed step and one that shrinks like 1/m.

    λ_max grows like m, and like n on pictures; a fixed step has to suit the widest. Small networks
    scatter more, so they get a ``share`` of the step.
    """
    found: list[Job] = []
    for data in PANELS:
        for rule, step in (("fixed", FIXED[data] * (1000 / max(ms))), ("1/m", OVER_M[data])):
            base = DescentRun(
                data,
                "ling2023",
                step=share * step * (1000 / n),
                rule=rule,  # type: ignore[arg-type]
                epochs=epochs,
                every=5,
                n=n,
                test=False,
            )
            group = f"{data}, step {rule}"
            found += [(group, replace(base, m=m, seed=s)) for m in ms for s in seeds]
    return found


def _ling_statements() -> tuple[Statement, ...]:
    found: list[Statement] = []
    for data, title in PANELS.items():
        found += [
            Statement(
                f"{title}: with a fixed step, wider networks converge faster and end lower",
                "the training loss after the last epoch falls with every step up in width",
                partial(falls_with_width, "loss", f"{data}, step fixed"),
            ),
            Statement(
                f"{title}: ‖W‖ stays below 1",
                "at every record of every run",
                partial(_below_one, f"{data}, step fixed"),
            ),
            Statement(
                f"{title}: the same order with a step that shrinks like 1/m (ours)",
                "the training loss after the last epoch falls with every step up in width",
                partial(falls_with_width, "loss", f"{data}, step 1/m"),
                counts=False,
            ),
        ]
    return tuple(found)


def _draw_ling(results: Results) -> Figure:
    figure, rows = panels(len(PANELS), 2, 1.75)
    for row, (data, title) in zip(rows, PANELS.items()):
        for ax, rule in zip(row, ("fixed", "1/m")):
            if any(r["group"] == f"{data}, step {rule}" for r in results.runs):
                _panel(ax, results, f"{data}, step {rule}", "loss")
        row[0].set_ylabel(title)
    for ax, title in zip(rows[0], ("loss, fixed step", r"loss, step $\propto1/m$")):
        ax.set_title(title)
    for ax in rows[-1]:
        ax.set_xlabel("epoch")
    legend_below(figure, rows, 2)
    return figure


LING2023 = Experiment(
    name="ling2023-fig1",
    title="Figure 1 of ling2023: width, with a fixed step and with one that shrinks",
    source="ling2023",
    printed=(
        "Three panels, training loss against iterations for several widths: points on a sphere, "
        "MNIST, CIFAR-10. Wider curves fall faster and end lower. The text adds that ‖W‖ stays "
        "below 1, and takes the order for a sign that Gram matrices become more stable."
    ),
    published="n = 1000; d = 1000 (sphere) or 784; 3 sets; widths, step and epochs not stated",
    sizes={
        "book": "n = 100; m = 25, 50, 100; 60 epochs; 3 sets; 2 steps; 2 seeds",
        "paper": "n = 1000; m = 125, 250, 500, 1000; 100 epochs; 3 sets; 2 steps; 1 seed",
    },
    cases={
        "book": partial(ling2023_cases, (25, 50, 100), 100, 60, (0, 1), 0.15),
        "paper": partial(ling2023_cases, (125, 250, 500, 1000), 1000, 100, (0,)),
    },
    run=descent.run,
    plain=descent.plain,
    cost=_cost,
    kept="losses per sample, 0-1 errors and ‖W‖, every 5 epochs",
    statements=_ling_statements(),
    reason=(
        "The source orders its curves by width and names no size of the effect. The kernel of this "
        "network grows like m, so a fixed step favours wide ones whatever else they do; the second "
        "column takes that advantage away and is not counted, since the source does not show it."
    ),
    draw=_draw_ling,
    code=CODE,
    differs="Step, epochs and widths are ours. The source shows the fixed step only.",
    data=("mnist01", "cifar01"),
    shipped={"paper": FOLDER / "results" / "ling2023_fig1.json"},
    checkpoints=True,
)
