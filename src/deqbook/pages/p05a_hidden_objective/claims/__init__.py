"""Claims of chapters/05a_hidden_objective.md: the sections before Theorem 4 of xie2022."""

from deqbook.claims import checks
from deqbook.pages.p05a_hidden_objective.claims import feedforward, objective

__all__ = ["check"]

check = checks(feedforward.claim, objective.claim)
