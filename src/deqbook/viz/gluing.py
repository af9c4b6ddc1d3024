"""Hand values and figures from code to prose, without the Sphinx stack.

myst-nb pastes an output wherever the prose names it; it recognises such an output by a
``scrapbook`` entry in its metadata. Writing that entry ourselves lets a chapter run in Colab or
a plain Jupyter, where myst-nb is not installed.
"""

from __future__ import annotations

import re
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from deqbook.viz.environment import is_static, shell

__all__ = ["glue", "scientific"]

# Outputs whose MIME types carry this prefix are stored in the notebook but shown nowhere.
_HIDDEN = "application/papermill.record/"


def glue(name: str, value: Any, *, display: bool | None = None) -> None:
    """Store ``value`` under ``name`` for ``{glue:text}`` and ``{glue:figure}`` in the prose.

    ``display`` also shows it below the cell; by default that happens wherever there is no prose
    to paste into, that is everywhere except in the book's build. There a number comes with its
    name, since it would say little alone. A figure is closed afterwards,
    so that the notebook does not show it a second time. In a plain script nothing else happens.
    Raises ``ValueError`` for a name that a role cannot hold.

    >>> glue("ch1-gap", 0.25)  # in prose: {glue:text}`ch1-gap:.2f`
    >>> glue("ch1:gap", 0.25)
    Traceback (most recent call last):
        ...
    ValueError: glue name 'ch1:gap' cannot be used in a role; ...
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(
            f"glue name {name!r} cannot be used in a role; "
            "use letters, digits, '.', '_' and '-' (a ':' would start a format)"
        )
    running = shell()
    if running is not None:
        shown = (not is_static()) if display is None else display
        data, metadata = running.display_formatter.format(_plain(value))
        if shown and not is_static() and data.keys() == {"text/plain"}:
            data = {"text/plain": f"{name} = {data['text/plain']}"}
        publish(name, data, metadata, prefix="" if shown else _HIDDEN)
    if isinstance(value, Figure):
        plt.close(value)


def scientific(value: float, digits: int = 0) -> str:
    """Return a number as prose writes it, with so many ``digits`` after the point.

    >>> scientific(4.2e-5), scientific(4.2e-5, 1), scientific(1e-8)
    ('4·10⁻⁵', '4.2·10⁻⁵', '10⁻⁸')
    """
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if mantissa == "1" else f"{mantissa}·10{raised}"


def publish(name: str, data: dict[str, Any], metadata: dict[str, Any], *, prefix: str) -> None:
    """Send one output with the metadata by which myst-nb finds it again."""
    from IPython.display import publish_display_data

    publish_display_data(
        {prefix + mime: content for mime, content in data.items()},
        {**metadata, "scrapbook": {"name": name, "mime_prefix": prefix}},
    )


def _plain(value: Any) -> Any:
    """Unwrap numpy and torch scalars: a role can format ``0.5`` but not ``np.float64(0.5)``."""
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value
