"""The constants and conditions of the convergence theorems: each side, and how far apart."""

from deqbook.bounds.conditions import Condition, Conditions

__all__ = ["Condition", "Conditions"]
