"""Regularisers of equilibria: what a network minimises, and how to make it minimise more.

``objective`` finds the function that a tied layer hides. ``proximal`` changes the architecture,
``selection`` chooses among many equilibria (SAM), ``features`` holds the functions to be small.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
