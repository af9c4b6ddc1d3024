"""The constants and conditions of the convergence theorems: each side, and how far apart.

One module per network: ``relu_implicit`` (gao2022, gao2023), ``vanilla`` (ling2023), ``monotone``
(nguyen2022); and ``generalization``, for kernel machines.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
