"""What the figures of the gallery share: their width, plain numbers on axes, one legend below."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from deqbook.viz.style import FIGSIZE

__all__ = ["flat", "legend_below", "panels", "plain_log"]


def panels(down: int, across: int, height: float) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure as wide as the others of the book, and its panels in rows.

    ``height`` is that of a row, in inches; half an inch is added for a legend.
    """
    figure = Figure(figsize=(FIGSIZE[0], height * down + 0.5), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    return figure, [list(row) for row in axes]


def plain_log(axis: Axis) -> None:
    """Label a logarithmic axis in plain numbers, few enough to be read; call it when all is drawn.

    Powers of ten where there are two of them, 1, 2, 5 between them otherwise, and four round
    numbers where the axis is too short for those.
    """
    low, high = sorted(axis.get_view_interval())
    subs = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)
    short = high / low < 5
    axis.set_major_locator(MaxNLocator(4) if short else LogLocator(subs=subs, numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def legend_below(figure: Figure, rows: list[list[Axes]], most: int) -> None:
    """Explain the curves of the first panel below all panels, at most so many in a line."""
    handles, labels = rows[0][0].get_legend_handles_labels()
    lines = -(-len(labels) // most)
    figure.legend(handles, labels, loc="outside lower center", ncols=-(-len(labels) // lines))


def flat(rows: list[list[Axes]]) -> Iterator[Axes]:
    """Yield the panels, row by row."""
    for row in rows:
        yield from row
