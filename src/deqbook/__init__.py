"""deqbook: the theory of deep equilibrium models, executed.

Import from the submodules (``from deqbook.solvers import fixed_point``). This file stays empty
of imports on purpose: whatever it imported, every chapter's cache would depend on.
"""

__version__ = "0.1.0"
