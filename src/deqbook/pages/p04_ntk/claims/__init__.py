"""Claims of chapters/04_ntk.md: tangent kernels, and the population kernel."""

from deqbook.claims import checks
from deqbook.pages.p04_ntk.claims import population, tangent

__all__ = ["check"]

check = checks(population.claim, tangent.claim)
