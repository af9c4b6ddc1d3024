"""How the book looks: one plot style, figures drawn more than once, sliders, glued values.

``use_style()`` once per notebook, then ``ax.plot(x, y, **look("Anderson"))``. Three rooms:
``style`` draws, ``slider`` lets a reader move one parameter, ``gluing`` hands values to prose.
"""

from deqbook.viz.gluing import glue, scientific
from deqbook.viz.slider import StaticSlider, explore
from deqbook.viz.style import (
    FIGSIZE,
    band,
    known_looks,
    label_curve,
    look,
    reference_slope,
    residual_plot,
    use_style,
)

__all__ = [
    "FIGSIZE",
    "StaticSlider",
    "band",
    "explore",
    "glue",
    "known_looks",
    "label_curve",
    "look",
    "reference_slope",
    "residual_plot",
    "scientific",
    "use_style",
]
