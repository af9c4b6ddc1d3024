"""Kernels of equilibrium models: on a sample at finite width, and their wide limits."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
