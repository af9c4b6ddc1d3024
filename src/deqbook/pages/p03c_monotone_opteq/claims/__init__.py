"""Claims of chapters/03c_monotone_opteq.md: ``monotone`` (nguyen2022) and ``opteq`` (xie2022)."""

from deqbook.claims import checks
from deqbook.pages.p03c_monotone_opteq.claims import monotone, opteq

__all__ = ["check"]

check = checks(monotone.claim, opteq.claim)
