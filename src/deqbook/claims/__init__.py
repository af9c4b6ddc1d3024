"""The executed theorems: a claim is a measurement that must hold, with controls that must not.

``check("gao2022.lemma2.2")`` runs one on one seed and shows the evidence; ``deqbook verify`` runs
all of them. The claims of a chapter live in one module (``ch01`` for chapter 1). A page that calls
``check`` imports that module by name, so that the cache knows what the page depends on.
"""

from deqbook.claims.registry import (
    Claim,
    Evidence,
    Measurement,
    Trial,
    Verdict,
    at_least,
    at_most,
    check,
    claim,
    equal,
    find,
    uncheckable,
    verify,
    within,
)
from deqbook.claims.statements import Statement, statements

__all__ = [
    "Claim",
    "Evidence",
    "Measurement",
    "Statement",
    "Trial",
    "Verdict",
    "at_least",
    "at_most",
    "check",
    "claim",
    "equal",
    "find",
    "statements",
    "uncheckable",
    "verify",
    "within",
]
