"""Training as a dynamical system: gradient descent, gradient flow, and the linear picture."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
