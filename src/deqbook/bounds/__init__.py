"""The constants and conditions of the convergence theorems: each side, and how far apart.

One module per network: ``relu_implicit`` (gao2022, gao2023), ``vanilla`` (ling2023), ``monotone``
(nguyen2022) and ``opteq`` (xie2022).
"""

from deqbook.bounds import monotone, opteq, relu_implicit, vanilla
from deqbook.bounds.conditions import Condition, Conditions

__all__ = ["Condition", "Conditions", "monotone", "opteq", "relu_implicit", "vanilla"]
