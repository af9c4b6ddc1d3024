"""How the book looks: one plot style, figures drawn more than once, sliders, glued values.

``use_style()`` once per notebook, then ``ax.plot(x, y, **look("Anderson"))``. Three rooms:
``style`` draws, ``slider`` lets a reader move one parameter, ``gluing`` hands values to prose.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
