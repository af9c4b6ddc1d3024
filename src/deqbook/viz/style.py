"""One plot style, one look per model and per method, and the figures drawn more than once."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from deqbook.viz.environment import shell

__all__ = [
    "FIGSIZE",
    "band",
    "graded",
    "known_looks",
    "label_curve",
    "look",
    "reference_slope",
    "use_style",
]

FIGSIZE = (5.6, 3.6)
"""In inches; a phone of 390 px shrinks such a figure to 0.7, and 12 pt are still 11 px."""

# Chosen by search over published colour-blind safe palettes: inside a family every two colours
# stay 24 or more CIELAB units apart, for normal, protanopic and deuteranopic vision alike.
_MODELS = {
    "ReLUImplicit": ("#0077BB", "o"),
    "VanillaDEQ": ("#B8860B", "s"),
    "MonDEQ": ("#01665E", "^"),
    "OptEq": ("#44AA99", "D"),
    "DeepOptEq": ("#08306B", "v"),
    "ResidualCell": ("#7B3F00", "P"),
}
_SOLVERS = {
    "Picard": ("#332288", "o"),
    "Anderson": ("#EE7733", "s"),
    "Broyden": ("#AA4499", "^"),
    "Newton": ("#B2182B", "D"),
    "ForwardBackward": ("#56B4E9", "v"),
    "PeacemanRachford": ("#882255", "P"),
    "DouglasRachford": ("#EE6677", "X"),
}
_ROLES: dict[str, dict[str, Any]] = {
    "measured": {"color": "#1A1A1A", "linestyle": "-"},
    "bound": {"color": "#6E6E6E", "linestyle": "--"},
    "control": {"color": "#D62F00", "linestyle": ":", "marker": "x"},
}
# For series in an order, such as widths. Each is lighter than the one before, with another hue and
# marker; the last still has a contrast of 3 to white.
_GRADES = (
    ("#1A1A1A", "o"),
    ("#3B2A8C", "s"),
    ("#8E2A8B", "^"),
    ("#C8443F", "D"),
    ("#CF7A1F", "v"),
)

_RC: dict[str, Any] = {
    "figure.figsize": FIGSIZE,
    "figure.dpi": 100,
    # Room for labels is made inside the figure, so every figure of one figsize has one width and
    # hence one font size on the page; a "tight" box would scale each figure differently.
    "figure.constrained_layout.use": True,
    "savefig.bbox": None,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same outlines on every machine
    "mathtext.fontset": "dejavusans",
    "font.size": 13,
    "axes.titlesize": 13,
    "axes.labelsize": 13,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "legend.fontsize": 12,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=[colour for colour, _ in _MODELS.values()]),
    "lines.linewidth": 2.0,
    "lines.markersize": 6.5,
    # Outlines instead of <text>: the reader's fonts cannot change the picture. Each glyph is
    # stored once per file, so a figure stays near 20 KB.
    "svg.fonttype": "path",
    "svg.hashsalt": "deqbook",  # element ids no longer random: the same figure, the same bytes
}


def use_style() -> None:
    """Set the book's matplotlib style, and SVG output when in a notebook. Call it once.

    >>> use_style()
    >>> tuple(mpl.rcParams["figure.figsize"]) == FIGSIZE
    True
    """
    mpl.rcdefaults()  # a reader's own matplotlibrc must not change the book's figures
    mpl.rcParams.update(_RC)  # type: ignore[arg-type]
    if shell() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        # No date in the file, and the whole figure rather than a tight crop (see _RC).
        set_matplotlib_formats("svg", bbox_inches=None, metadata={"Date": None})


def known_looks() -> tuple[str, ...]:
    """Return all names :func:`look` knows: the models, the solvers and the three roles.

    >>> known_looks()[-3:]
    ('measured', 'bound', 'control')
    """
    return (*_MODELS, *_SOLVERS, *_ROLES)


def look(name: str, *, bound: bool = False) -> dict[str, Any]:
    """Return the line properties of a model, solver or role: ``ax.plot(x, y, **look(name))``.

    Models and solvers are solid with a marker of their own (filled for models, hollow for
    solvers). ``bound=True`` gives the theory's line for the same name: its colour, dashed, bare.
    Raises ``KeyError`` for a name that :func:`known_looks` does not list.

    >>> look("Anderson")["marker"], look("Anderson", bound=True)
    ('s', {'color': '#EE7733', 'linestyle': '--'})
    """
    if name in _ROLES:
        style = dict(_ROLES[name])
    elif name in _MODELS or name in _SOLVERS:
        colour, marker = (_MODELS | _SOLVERS)[name]
        face = colour if name in _MODELS else "white"
        style = {
            "color": colour,
            "linestyle": "-",
            "marker": marker,
            "markerfacecolor": face,
            "markeredgecolor": colour,
        }
    else:
        raise KeyError(
            f"no look named {name!r}; known names: {', '.join(known_looks())}. "
            "Add a colour and a marker in deqbook/viz/style.py when the book gains a model."
        )
    if bound:
        return {"color": style["color"], "linestyle": "--"}
    if "marker" in style:
        style["markevery"] = 0.1  # of the axes diagonal: evenly spaced on linear and log axes
    return style


def graded(n: int) -> list[dict[str, Any]]:
    """Return the looks of ``n`` series in an order: lighter step by step, each with its marker.

    Raises ``ValueError`` for more series than can be told apart, five.

    >>> [style["marker"] for style in graded(3)]
    ['o', '^', 'v']
    """
    if not 1 <= n <= len(_GRADES):
        raise ValueError(
            f"graded({n}): between 1 and {len(_GRADES)} series can be told apart in one figure; "
            "show fewer, or use two panels"
        )
    last = len(_GRADES) - 1
    picked = [_GRADES[round(k * last / max(1, n - 1))] for k in range(n)]
    return [
        {"color": colour, "linestyle": "-", "marker": marker, "markevery": 0.1}
        for colour, marker in picked
    ]


def label_curve(
    ax: Axes, line: Line2D, text: str, *, at: float = 0.7, offset: tuple[float, float] = (6, 3)
) -> None:
    """Write ``text`` beside a curve, in its colour, where a fraction ``at`` of its points is done.

    ``offset`` is in points; its signs say on which side of the point the text stands, so the
    default suits a falling curve and ``(-6, 3)`` a rising one. Raises ``ValueError`` when ``at``
    is outside [0, 1] or the curve has no finite point.

    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> (line,) = ax.plot([0, 1, 2], [4, 2, 1])
    >>> label_curve(ax, line, "halved", at=0.5)
    >>> ax.texts[0].get_text(), tuple(map(float, ax.texts[0].xy))
    ('halved', (1.0, 2.0))
    >>> plt.close()
    """
    if not 0.0 <= at <= 1.0:
        raise ValueError(f"at={at!r} is not a fraction of the curve; pass a number in [0, 1]")
    x, y = (np.asarray(line.get_data()[k], dtype=float) for k in (0, 1))
    drawn = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if drawn.size == 0:
        raise ValueError(f"the curve for label {text!r} has no finite point; nothing to label")
    k = drawn[round(at * (drawn.size - 1))]
    ax.annotate(
        text,
        (x[k], y[k]),
        xytext=offset,
        textcoords="offset points",
        ha={1: "left", 0: "center", -1: "right"}[int(np.sign(offset[0]))],
        va="bottom" if offset[1] >= 0 else "top",
        color=line.get_color(),
        # A white patch keeps the words readable where they cross another curve (a white rim
        # around each letter would double the size of the file).
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
    )


def reference_slope(
    ax: Axes,
    *,
    through: tuple[float, float],
    until: float,
    exponent: float | None = None,
    factor: float | None = None,
    text: str = "",
) -> Line2D:
    r"""Draw a dashed guide from the point ``through`` to the abscissa ``until``.

    ``exponent=p`` is the power law :math:`y\sim x^p` (both axes logarithmic); ``factor=r`` is the
    geometric rate :math:`y\sim r^x` (only y logarithmic). Either way the guide is a straight line,
    labelled with ``text`` if there is any. Raises ``ValueError`` unless exactly one of the two is
    given and the scales of ``ax`` fit it.

    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> ax.set_yscale("log")
    >>> line = reference_slope(ax, through=(0, 1.0), until=3, factor=0.5)
    >>> line.get_ydata().tolist()
    [1.0, 0.125]
    >>> plt.close()
    """
    if (exponent is None) == (factor is None):
        raise ValueError(
            f"got exponent={exponent!r} and factor={factor!r}; give exactly one of them"
        )
    scales = (ax.get_xscale(), ax.get_yscale())
    wanted = ("log", "log") if factor is None else ("linear", "log")
    if scales != wanted:
        raise ValueError(
            f"the axes are {scales}, but this guide is straight only on {wanted}; "
            "set the scales before drawing it"
        )
    x0, y0 = through
    x = np.array([x0, until])
    if exponent is not None:
        y = y0 * (x / x0) ** exponent
    else:
        assert factor is not None
        y = y0 * factor ** (x - x0)
    (line,) = ax.plot(x, y, linewidth=1.2, **look("bound"))
    if text:
        label_curve(ax, line, text, at=1.0, offset=(4, -2))
    return line


def band(ax: Axes, x: ArrayLike, Y: ArrayLike, **style: Any) -> Line2D:
    """Plot the median over seeds (rows of ``Y``) with a band from minimum to maximum.

    ``x`` is (p,), ``Y`` (seeds, p); ``style`` goes to ``ax.plot``. Raises ``ValueError`` when the
    shapes do not fit.

    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> line = band(ax, [0, 1], [[1, 4], [2, 5], [9, 6]], **look("OptEq"))
    >>> line.get_ydata().tolist()
    [2.0, 5.0]
    >>> plt.close()
    """
    x, Y = np.asarray(x, dtype=float), np.asarray(Y, dtype=float)
    if Y.ndim != 2 or x.ndim != 1 or Y.shape[1] != x.size:
        raise ValueError(
            f"x has shape {x.shape} and Y has shape {Y.shape}; Y needs one row per seed and one "
            "column per entry of x (transpose it?)"
        )
    (line,) = ax.plot(x, np.median(Y, axis=0), **style)
    if len(Y) > 1:  # the band of one seed is empty
        low, high = Y.min(axis=0), Y.max(axis=0)
        ax.fill_between(x, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
    return line
