"""``explore``: one parameter a reader can move, in a live notebook and on a static page alike."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from deqbook.viz.environment import has_live_widgets

if TYPE_CHECKING:
    from ipywidgets import VBox

__all__ = ["BUDGET", "StaticSlider", "explore"]

T = TypeVar("T")

BUDGET = 600_000
"""Bytes one slider may add to a page (a page has 2.5 MB in all)."""

# The start frame is read back from the <img> rather than
# sent twice. show() runs once at load because browsers restore a moved slider on reload. Key
# strokes stay inside the slider, or JupyterLab would take the arrows for cell navigation.
_SCRIPT = """(() => {
  const figure = document.currentScript?.closest("figure") ?? document.getElementById("%(id)s");
  const [image, slider, output] =
    ["img", "input", "output"].map((tag) => figure.querySelector(tag));
  const frames = %(frames)s;
  frames[Number(slider.defaultValue)].src = image.src;
  const show = () => {
    const frame = frames[Number(slider.value)];
    image.src = frame.src;
    image.alt = frame.alt;
    output.value = frame.text;
    slider.setAttribute("aria-valuetext", frame.text);
  };
  slider.addEventListener("input", show);
  slider.addEventListener("keydown", (event) => event.stopPropagation());
  show();
})();"""


@dataclass(frozen=True)
class Frame:
    """One position of the slider: a WebP picture, its size on the page in CSS pixels, its words.

    ``type`` is the height of its smallest letters, in CSS pixels at that size.
    """

    webp: bytes
    size: tuple[int, int]
    type: float
    alt: str
    text: str

    @property
    def src(self) -> str:
        """The picture as a data URI, so that a page needs no second file."""
        return "data:image/webp;base64," + base64.b64encode(self.webp).decode("ascii")


@dataclass(frozen=True)
class StaticSlider:
    """A slider that needs neither kernel nor network; a notebook shows it as HTML.

    :func:`explore` makes one: a picture, a range input and a few lines of script in ``html``, and
    ``description``, which a plain prompt shows.

    >>> StaticSlider("<figure>…</figure>", "gamma = 0.5: a spiral inwards")
    gamma = 0.5: a spiral inwards
    """

    html: str
    description: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.description


def explore(
    draw: Callable[[T], Figure],
    values: Sequence[T],
    *,
    label: str,
    alt: str | Callable[[T], str],
    start: int = 0,
    fmt: str = "{}",
    width: int = 960,
    quality: int = 80,
) -> StaticSlider | VBox:
    """Let the reader move one parameter through ``values`` and see ``draw(value)``.

    With a kernel and ipywidgets the figure is drawn on demand; on a static page (or in a plain
    script) every frame is drawn now and flipped by a few lines of JavaScript.

    Args:
        draw: returns a new figure for a value; same figure size for all values. It is closed.
        values: the positions of the slider, in order.
        label: what the slider moves, in words.
        alt: what the picture shows, for those who do not see it: a callable of the value, or a
            text in which ``{value}`` stands for the formatted value.
        start: index of the value shown first (and in print).
        fmt: how a value is written, as in ``"{:.2f}"``.
        width: pixels of a frame. On the page it is as wide as the figure is (96 CSS pixels an
            inch), so the default leaves 1.5 pixels per CSS pixel for sharp screens.
        quality: of the WebP frames, 0 to 100.

    Raises:
        ValueError: no values, no words (``label``, ``alt``), a ``start`` that is no index, frames
            of different size, or more than ``BUDGET`` bytes.

    >>> def draw(gamma):
    ...     figure, ax = plt.subplots(figsize=(1, 1))
    ...     _ = ax.plot([1, gamma, gamma**2])
    ...     return figure
    >>> explore(draw, [0.5, 1.5], label="gamma", alt="powers of {value}", width=96)
    gamma = 0.5: powers of 0.5

    """
    if not len(values):
        raise ValueError("explore() got no values; pass the positions of the slider")
    if not 0 <= start < len(values):
        raise ValueError(f"start={start} is no index into {len(values)} values; count from 0")
    if not label.strip():
        raise ValueError("label is empty; say in words what the slider moves")

    def frame(value: T) -> Frame:
        text = fmt.format(value)
        words = alt(value) if callable(alt) else alt.replace("{value}", text)
        if not words.strip():
            raise ValueError(f"alt text for value {text} is empty; say what the figure shows")
        figure = draw(value)
        webp, size = _webp(figure, width=width, quality=quality)
        return Frame(webp, size, _smallest_type(figure), words, text)

    if has_live_widgets():
        return _live_slider(frame, values, label, start, [fmt.format(value) for value in values])
    return _static_slider([frame(value) for value in values], label, start)


def _webp(figure: Figure, *, width: int, quality: int) -> tuple[bytes, tuple[int, int]]:
    """Draw a figure ``width`` pixels wide and close it."""
    try:
        # The Agg canvas directly: neither the notebook's backend nor a tight crop can then make
        # two frames of different size.
        figure.set_dpi(width / figure.get_figwidth())
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    finally:
        plt.close(figure)
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=quality, method=6)
    w, h = figure.get_size_inches()
    return file.getvalue(), (round(96 * w), round(96 * h))


def _smallest_type(figure: Figure) -> float:
    """Return the size of the smallest text of a figure, in CSS pixels (a point is 4/3 of one)."""
    texts = (t for t in figure.findobj(Text) if isinstance(t, Text))
    sizes = [t.get_fontsize() for t in texts if t.get_visible() and t.get_text().strip()]
    return round(float(min(sizes, default=0.0)) * 4 / 3, 2)


def _static_slider(frames: Sequence[Frame], label: str, start: int) -> StaticSlider:
    """Write the HTML fragment: picture, label, range input, output, script."""
    sizes = sorted({frame.size for frame in frames})
    if len(sizes) > 1:
        raise ValueError(
            f"frames of explore({label!r}) differ in size: {sizes} CSS pixels; "
            "let draw() use the same figsize for every value"
        )
    first, (w, h) = frames[start], sizes[0]
    smallest = min(frame.type for frame in frames)  # what a test of the page measures
    # Equal content gives an equal id, on every machine and in every build.
    digest = hashlib.sha256(label.encode())
    for frame in frames:
        digest.update(f"\0{frame.alt}\0{frame.text}\0".encode() + frame.webp)
    ident = f"deq-explore-{digest.hexdigest()[:12]}"
    listed = [
        {"src": "" if k == start else frame.src, "alt": frame.alt, "text": frame.text}
        for k, frame in enumerate(frames)
    ]
    # "<" escaped, so that no text can close the script element.
    script = _SCRIPT % {"id": ident, "frames": json.dumps(listed).replace("<", "\\u003c")}
    fragment = f"""<figure class="deq-explore" id="{ident}" data-type="{smallest:g}" \
style="margin:1em 0">
<img src="{first.src}" alt="{html.escape(first.alt)}" width="{w}" height="{h}" \
style="max-width:100%;height:auto;background:#fff">
<div style="display:flex;flex-wrap:wrap;align-items:center;gap:.3em .8em;padding:.4em 0">
<label for="{ident}-value">{html.escape(label)}</label>
<input type="range" id="{ident}-value" min="0" max="{len(frames) - 1}" step="1" value="{start}" \
aria-valuetext="{html.escape(first.text)}" style="flex:1 1 12em;min-height:2em">
<output for="{ident}-value">{html.escape(first.text)}</output>
</div>
<script>{script}</script>
</figure>"""
    size = len(fragment.encode())
    if size > BUDGET:
        raise ValueError(
            f"explore({label!r}) makes {size / 1000:.0f} KB of HTML from {len(frames)} frames, "
            f"over the budget of {BUDGET / 1000:.0f} KB; "
            "use fewer values, a smaller width or a lower quality"
        )
    return StaticSlider(fragment, f"{label} = {first.text}: {first.alt}")


def _live_slider(
    frame: Callable[[T], Frame], values: Sequence[T], label: str, start: int, texts: Sequence[str]
) -> VBox:
    """Build the control that asks the kernel for one frame at a time."""
    import ipywidgets

    def picture(k: int) -> str:
        made = frame(values[k])
        w, h = made.size
        return (
            f'<img src="{made.src}" alt="{html.escape(made.alt)}" width="{w}" height="{h}" '
            'style="max-width:100%;height:auto;background:#fff">'
        )

    slider = ipywidgets.SelectionSlider(
        # Positions are told apart by index: two values may be written alike.
        options=[(text, k) for k, text in enumerate(texts)],
        value=start,
        description=label,
        continuous_update=False,
        style={"description_width": "initial"},
        layout={"width": "100%"},
    )
    shown = ipywidgets.HTML(picture(start))

    def update(change: dict[str, Any]) -> None:
        shown.value = picture(change["new"])

    slider.observe(update, names="value")
    return ipywidgets.VBox([shown, slider])
