"""Two experiments of our own: kernels against their wide limits, and a bound against n."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from deqbook.data.bundled import FOLDER
from deqbook.experiments.cases.kernels import BoundRun, KernelRun, bound, distance
from deqbook.experiments.declaration import Experiment, Job, NotRun, Statement
from deqbook.experiments.drawing import flat, legend_below, panels, plain_log
from deqbook.experiments.receipts import Results
from deqbook.pages.p03d_real_data.lab import SETS
from deqbook.pages.p04_ntk.lab.wide import PAIRS
from deqbook.pages.p06b_bound_on_data.lab.pictures import error_bar
from deqbook.viz.style import reference_slope

__all__ = ["BOUND", "KERNEL"]


# --- the kernel in width ------------------------------------------------------------------------


def kernel_cases(ms: Sequence[int], draws: int, seeds: Sequence[int]) -> list[Job]:
    """Return the runs: three networks, the widths, the seeds."""
    return [(net, KernelRun(net, m, draws, s)) for net in PAIRS for m in ms for s in seeds]


def distances(results: Results, network: str) -> dict[str, dict[int, float]]:
    """Return by block and width the distance from the limit, a mean over seeds."""
    runs = [r for r in results.runs if r["group"] == network]
    ms = sorted({r["case"]["m"] for r in runs})
    if len(ms) < 3:
        raise NotRun(f"{network}: {len(ms)} widths were run, three are needed for a slope")
    by_width = {m: [r["result"] for r in runs if r["case"]["m"] == m] for m in ms}
    return {
        block: {m: fmean(one[block] for one in by_width[m]) for m in ms}
        for block in runs[0]["result"]
    }


def slope(values: dict[int, float]) -> float:
    """Fit a line on logarithmic axes and return its slope.

    >>> round(slope({1: 8.0, 4: 4.0, 16: 2.0}), 6)
    -0.5
    """
    return float(np.polyfit(np.log(list(values)), np.log(list(values.values())), 1)[0])


def _square_root(network: str, results: Results) -> tuple[bool, str]:
    slopes = {block: slope(v) for block, v in distances(results, network).items()}
    told = ", ".join(f"{v:.2f} ({block})".replace("-", "−") for block, v in slopes.items())
    return all(-0.65 <= v <= -0.35 for v in slopes.values()), f"exponents {told}"


def _draw_kernel(results: Results) -> Figure:
    figure, rows = panels(len(PAIRS), 1, 2.2)
    for ax, network in zip(flat(rows), PAIRS):
        for marker, (block, values) in zip("osD^", distances(results, network).items()):
            ax.loglog(list(values), list(values.values()), f"{marker}-", label=f"${block}$")
        first, last = min(values), max(values)
        below = 0.6 * min(v[first] for v in distances(results, network).values())
        reference_slope(ax, through=(first, below), until=last, exponent=-0.5, text="$m^{-1/2}$")
        ax.set(title=f"{network}: distance from the limit", xlim=(0.9 * first, 1.7 * last))
        ax.set_ylim(bottom=0.5 * below * (first / last) ** 0.5)
        ax.set_xticks(list(values), [str(m) for m in values])
        ax.xaxis.set_minor_locator(NullLocator())
        plain_log(ax.yaxis)
        ax.legend(loc="upper right", ncols=2)
    rows[-1][0].set_xlabel("width $m$")
    return figure


KERNEL = Experiment(
    name="kernel-width",
    title="Ours: the tangent kernels of three networks approach their wide limits",
    source="gao2022, gao2023, ling2023",
    printed="No figure: the sources prove closeness at large width, without an experiment.",
    published="none",
    sizes={
        "book": "m = 100, 200, 400; three networks; 10 draws; 1 seed",
        "paper": "m = 100 to 3200; three networks; 10 draws; 2 sets of inputs",
    },
    cases={
        "book": partial(kernel_cases, (100, 200, 400), 10, (0,)),
        "paper": partial(kernel_cases, (100, 200, 400, 800, 1600, 3200), 10, (0, 1)),
    },
    run=distance,
    cost=lambda case: case.draws * (case.m**2 + 3e4) / 1e6,
    kept="by block, the mean of the relative distance in the Frobenius norm",
    statements=tuple(
        Statement(
            f"{network}: the distance falls like 1/√m",
            "the fitted exponent of every block lies between −0.65 and −0.35",
            partial(_square_root, network),
        )
        for network in PAIRS
    ),
    reason=(
        "Sums over m units deviate like 1/√m. Ten draws leave the mean of a distance uncertain by "
        "a sixth or so, which moves a fitted exponent by less than 0.15."
    ),
    draw=_draw_kernel,
    code=("deqbook.experiments.cases.kernels", "deqbook.pages.p04_ntk.lab.wide"),
    differs="Nothing is printed to differ from.",
    shipped={
        "book": FOLDER / "results" / "kernel_width.json",
        "paper": FOLDER / "results" / "kernel_width_paper.json",
    },
)


# --- the bound against n ------------------------------------------------------------------------


def bound_cases(ns: Sequence[int], m: int, seeds: Sequence[int]) -> list[Job]:
    """Return the runs: four sets, the sample sizes, the seeds."""
    return [(data, BoundRun(data, n, m, s)) for data in SETS for n in ns for s in seeds]


def _means(results: Results, data: str, key: str) -> dict[int, float]:
    runs = [r for r in results.runs if r["group"] == data]
    ns = sorted({r["case"]["n"] for r in runs})
    if len(ns) < 2:
        raise NotRun(f"{data}: {len(ns)} sample sizes were run, two are needed")
    return {n: fmean(_value(r["result"], key) for r in runs if r["case"]["n"] == n) for n in ns}


def _value(result: dict[str, float], key: str) -> float:
    return result["complexity"] + result["confidence"] if key == "bound" else result[key]


def _true(data: str, results: Results) -> tuple[bool, str]:
    _means(results, data, "loss")
    runs = [r["result"] for r in results.runs if r["group"] == data]
    least = min(_value(r, "bound") - r["loss"] for r in runs)
    return least >= -error_bar(1000), f"bound minus test loss is at least {least:.2f}"


def _shrinks(data: str, results: Results) -> tuple[bool, str]:
    values = _means(results, data, "bound")
    told = ", ".join(f"{v:.2f} at n = {n}" for n, v in values.items())
    return all(b < a for a, b in pairwise(values.values())), told


def _says_something(data: str, results: Results) -> tuple[bool, str]:
    values = _means(results, data, "bound")
    n = max(values)
    return values[n] < 1, f"{values[n]:.2f} at n = {n}"


def _draw_bound(results: Results) -> Figure:
    shown = [d for d in SETS if any(r["group"] == d for r in results.runs)]
    figure, rows = panels(-(-len(shown) // 2), 2, 2.2)
    for ax, data in zip(flat(rows), shown):
        for key, style in (("bound", "s--"), ("loss", "o-"), ("error", "^-")):
            values = _means(results, data, key)
            ax.loglog(list(values), list(values.values()), style, label=_NAMES[key])
        ax.axhline(1, color="0.6", lw=0.8, ls=":")
        ax.set(title=SETS[data], ylim=(4e-4, 100))
        ax.set_xticks(list(values), [str(n) for n in values])
        ax.xaxis.set_minor_locator(NullLocator())
        plain_log(ax.yaxis)
    for ax in rows[-1]:
        ax.set_xlabel("sample size $n$")
    legend_below(figure, rows, 3)
    return figure


_NAMES = {"bound": "bound", "loss": "test loss", "error": "test error"}


def _bound_statements() -> tuple[Statement, ...]:
    found: list[Statement] = []
    for data, title in SETS.items():
        found += [
            Statement(
                f"{title}: the bound is true",
                "in no run is the test loss above it by more than the error of 1000 pictures",
                partial(_true, data),
            ),
            Statement(
                f"{title}: it shrinks as n grows",
                "its mean over seeds falls with every step up in n",
                partial(_shrinks, data),
            ),
            Statement(
                f"{title}: it says something at the largest n",
                "its mean is below 1, which any loss in [0,\u00a01] is",
                partial(_says_something, data),
                counts=False,
            ),
        ]
    return tuple(found)


BOUND = Experiment(
    name="bound-n",
    title="Ours: the generalization bound of gao2023 against the size of the sample",
    source="gao2023",
    printed="No figure: Theorem 4.1 is not computed on data in the source.",
    published="none",
    sizes={
        "book": "n = 50, 100, 200; m = 100; 4 sets; 1 seed",
        "paper": "n = 50 to 800; m = 500; 4 sets; 3 seeds",
    },
    cases={
        "book": partial(bound_cases, (50, 100, 200), 100, (0,)),
        "paper": partial(bound_cases, (50, 100, 200, 400, 800), 500, (0, 1, 2)),
    },
    run=bound,
    cost=lambda case: (case.n + 1000) * case.m**2 * (1 + case.n / 300) / 1e9,
    kept="the radius, the two terms of the bound, test loss and test error",
    statements=_bound_statements(),
    reason=(
        "A bound that holds with 95 % may fail once in twenty runs; the pictures of the test add "
        f"their own error, {error_bar(1000):.2f}. That it shrinks is what the theorem is for."
    ),
    draw=_draw_bound,
    code=(
        "deqbook.experiments.cases.kernels",
        "deqbook.pages.p06b_bound_on_data.lab",
        "deqbook.pages.p03d_real_data.lab",
    ),
    differs="Nothing is printed to differ from.",
    data=tuple(SETS),
    shipped={
        "book": FOLDER / "results" / "bound_n.json",
        "paper": FOLDER / "results" / "bound_n_paper.json",
    },
)
