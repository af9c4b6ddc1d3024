"""The executed theorems: a claim is a measurement that must hold, with controls that must not.

``check("gao2022.lemma2.2")`` runs one on one seed and shows the evidence; ``deqbook verify`` runs
all of them. This package is the mechanism. The claims themselves stand with the page that states
them, in ``deqbook.pages``; a page imports ``check`` from its own claims, so that the cache knows
what the page depends on.
"""

from deqbook.claims.registry import (
    STANDINGS,
    Chapter,
    Claim,
    Evidence,
    Measurement,
    Trial,
    Verdict,
    at_least,
    at_most,
    chapter,
    check,
    checks,
    equal,
    find,
    given,
    headline,
    seen,
    verify,
    within,
)
from deqbook.claims.statements import Statement, statements

__all__ = [
    "STANDINGS",
    "Chapter",
    "Claim",
    "Evidence",
    "Measurement",
    "Statement",
    "Trial",
    "Verdict",
    "at_least",
    "at_most",
    "chapter",
    "check",
    "checks",
    "equal",
    "find",
    "given",
    "headline",
    "seen",
    "statements",
    "verify",
    "within",
]
