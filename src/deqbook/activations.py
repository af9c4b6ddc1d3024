r"""Activations as proximal maps.

A scalar activation that is monotone and 1-Lipschitz is the proximal map of a convex function:
:math:`\sigma=\mathrm{prox}_f`. Splitting with a step :math:`\alpha` needs
:math:`\mathrm{prox}_{\alpha f}`, which equals :math:`\sigma` for ReLU (an indicator does not
feel its multiplier) and does **not** for tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ACTIVATIONS", "Activation", "activation", "identity", "relu", "tanh"]


@dataclass(frozen=True)
class Activation:
    r"""A scalar activation :math:`\sigma=\mathrm{prox}_f`, applied entry by entry.

    ``slope`` is :math:`\sigma'` (0 at a kink), ``lipschitz`` is :math:`L_\sigma`,
    ``prox(p, alpha)`` is :math:`\mathrm{prox}_{\alpha f}(p)`; ``bounded`` says whether the range
    is bounded, which alone gives existence of an equilibrium by Brouwer's theorem. ``slope_at(s)``,
    if known, is :math:`\sigma'` as a function of the value :math:`s=\sigma(t)`.

    >>> t = torch.tensor([-1.0, 0.0, 2.0])
    >>> relu(t).tolist(), relu.slope(t).tolist()
    ([0.0, 0.0, 2.0], [0.0, 0.0, 1.0])
    >>> torch.equal(relu.prox(t, 0.5), relu(t)), torch.allclose(tanh.prox(t, 0.5), tanh(t))
    (True, False)
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    prox: Callable[[Tensor, float], Tensor]
    lipschitz: float = 1.0
    bounded: bool = False
    slope_at: Callable[[Tensor], Tensor] | None = None  # σ' as a function of the value σ(t)

    def __call__(self, t: Tensor) -> Tensor:
        """Return σ(t)."""
        return self.value(t)


def _tanh_prox(p: Tensor, alpha: float) -> Tensor:
    r"""Solve :math:`z+\alpha(\operatorname{artanh}z-z)=p` by Newton's method in t = artanh z.

    In t the equation is :math:`(1-\alpha)\tanh t+\alpha t=p`, increasing and odd, with the root
    of a positive p in :math:`[0,\,p/\min(1,\alpha)]`; a bisection step guards every Newton step.
    """
    target = p.abs()
    low, high = torch.zeros_like(target), target / min(1.0, alpha)
    t = target.clamp(max=1.0)
    for _ in range(100):
        th = torch.tanh(t)
        value = (1 - alpha) * th + alpha * t - target
        low, high = torch.where(value < 0, t, low), torch.where(value > 0, t, high)
        newton = t - value / ((1 - alpha) * (1 - th**2) + alpha)
        inside = (newton >= low) & (newton <= high)
        step = torch.where(inside, newton, (low + high) / 2)
        if torch.equal(step, t) or float((step - t).abs().max()) <= 1e-16:
            break
        t = step
    return torch.tanh(t) * p.sign()


relu = Activation(
    "relu",
    torch.relu,
    lambda t: (t > 0).to(t.dtype),
    lambda p, _alpha: torch.relu(p),
    slope_at=torch.sign,  # the value is 0 or positive
)
"""max(t, 0), the proximal map of the indicator of t ≥ 0; every step α has the same one."""
tanh = Activation(
    "tanh",
    torch.tanh,
    lambda t: 1 - torch.tanh(t) ** 2,
    _tanh_prox,
    bounded=True,
    slope_at=lambda s: 1 - s**2,
)
"""tanh, bounded; its proximal map with a step α ≠ 1 is found by Newton's method."""
identity = Activation(
    "identity", lambda t: t, torch.ones_like, lambda p, _alpha: p, slope_at=torch.ones_like
)
"""t itself, the proximal map of 0: the linear cell."""

ACTIVATIONS = {a.name: a for a in (relu, tanh, identity)}
"""The activations that are known by name."""


def activation(which: str | Activation) -> Activation:
    """Return an activation by name, or the one given; ``ValueError`` for an unknown name.

    >>> activation("tanh") is tanh, activation(relu) is relu
    (True, True)
    """
    if isinstance(which, Activation):
        return which
    if which not in ACTIVATIONS:
        raise ValueError(
            f"unknown activation {which!r}; choose one of {sorted(ACTIVATIONS)} "
            "or pass an Activation with its prox."
        )
    return ACTIVATIONS[which]
