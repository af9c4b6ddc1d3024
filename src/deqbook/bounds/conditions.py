"""What a theorem asks for, with both sides in numbers."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from deqbook.typeset import LEFT, WHOLE, formula, number

__all__ = ["Condition", "Conditions"]


@dataclass(frozen=True)
class Condition:
    """An inequality ``have ≥ need`` that a theorem asks for at the start of training.

    ``formula`` is how the book writes it, for tables and messages.

    >>> width = Condition("width", "m ≥ n³", have=100.0, need=800.0)
    >>> print(width)
    width: 100 < 800 (need/have 8)
    >>> width.holds, width.ratio
    (False, 8.0)
    """

    name: str
    formula: str
    have: float
    need: float

    @property
    def holds(self) -> bool:
        """Whether there is enough; NaN never is."""
        return self.have >= self.need

    @property
    def ratio(self) -> float:
        """How many times more is needed than there is; at most 1 when the condition holds."""
        if self.holds and self.need <= 0:
            return 0.0
        if not (self.need > 0 and self.have > 0):  # nothing to divide by, or a NaN
            return math.inf
        return 1.0 if self.have == self.need else self.need / self.have

    def __str__(self) -> str:
        sign = "≥" if self.holds else "<"
        return f"{self.name}: {self.have:.4g} {sign} {self.need:.4g} (need/have {self.ratio:.3g})"


@dataclass(frozen=True, repr=False)
class Conditions:
    """All the conditions of one theorem on one network and data set, and what it promises.

    ``rate`` is the promised rate of the loss: per unit of time for a flow, per unit of
    step·iterations for descent; ``step`` the largest step the theorem admits (infinite for a
    flow). ``constants`` are the numbers they are made of. ``found[name]`` is the condition of that
    name, a ``KeyError`` if there is none.

    >>> width = Condition("width", "m ≥ n³", have=100.0, need=800.0)
    >>> found = Conditions("a theorem", (width, Condition("gap", "λ ≥ 2", 4.0, 2.0)), rate=0.5)
    >>> found
    a theorem: not satisfied; promised rate 0.5
      width: 100 < 800 (need/have 8)
      gap: 4 ≥ 2 (need/have 0.5)
    >>> found.worst.name, found["gap"].holds
    ('width', True)
    """

    source: str
    conditions: tuple[Condition, ...]
    rate: float
    step: float = math.inf
    constants: Mapping[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every condition holds."""
        return all(c.holds for c in self.conditions)

    @property
    def worst(self) -> Condition:
        """The condition with the largest ratio, the furthest from holding."""
        return max(self.conditions, key=lambda c: c.ratio)

    def __getitem__(self, name: str) -> Condition:
        for c in self.conditions:
            if c.name == name:
                return c
        raise KeyError(f"no condition {name!r}; there are {[c.name for c in self.conditions]}.")

    def __str__(self) -> str:
        head = f"{self.source}: {'all conditions hold' if self.holds else 'not satisfied'}"
        step = "" if math.isinf(self.step) else f", step at most {self.step:.4g}"
        lines = [f"{head}; promised rate {self.rate:.4g}{step}"]
        return "\n".join(lines + [f"  {c}" for c in self.conditions])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td {LEFT}>{formula(c.name)}</td><td {LEFT}>{formula(c.formula)}</td>"
            f"<td {WHOLE}>{number(c.have)}</td><td {WHOLE}>{number(c.need)}</td>"
            f"<td {WHOLE}>{number(c.ratio)}</td>"
            f"<td {WHOLE}>{'✓ holds' if c.holds else '✗ fails'}</td></tr>"
            for c in self.conditions
        )
        step = "" if math.isinf(self.step) else f", step at most {number(self.step)}"
        names = ("condition", "formula", "have", "need", "need ÷ have", "verdict")
        head = "".join(f'<th scope="col" {WHOLE}>{name}</th>' for name in names)
        return (
            f'<div class="deq-evidence"><p><b>{html.escape(self.source)}</b>: promised rate '
            f"{number(self.rate)}{step}</p><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table></div>"
        )
