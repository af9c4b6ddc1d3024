"""deqbook: the theory of deep equilibrium models, executed.

At a prompt, ``import deqbook`` offers the names that one asks for first, each imported when it is
first used: ``deqbook.fixed_point``, ``deqbook.certify``, ``deqbook.MonDEQ``. Everything else is in
its room, ``deqbook.solvers`` say.

Pages of the book import from the rooms (``from deqbook.solvers import fixed_point``), so that
their cache knows what they depend on; one that does ``import deqbook`` does not build.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
