r"""Proximal operators, and layers that regularise by architecture (xie2022, Section 4.1).

:math:`\mathrm{prox}_{\gamma R}(z)=\arg\min_uR(u)+\tfrac1{2\gamma}\|u-z\|^2`. Each object has a
value per sample and its proximal map in closed form; the smooth ones have a gradient as well.
``append_prox`` and ``append_gradient`` put such a map behind a network T, :math:`z=T_R\circ T(z)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from deqbook.regularize.features import Regulariser

__all__ = [
    "L1",
    "Box",
    "Group",
    "Moreau",
    "Proximal",
    "SquaredDistance",
    "SquaredL2",
    "append_gradient",
    "append_prox",
    "moreau",
]

Map = Callable[[Tensor], Tensor]


class Proximal(Protocol):
    """A convex function with a proximal map in closed form."""

    def value(self, Z: Tensor) -> Tensor:
        """Return R for every sample."""
        ...

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return prox of step·R, row by row."""
        ...


@dataclass(frozen=True)
class L1:
    r""":math:`R(z)=\lambda\|z\|_1`. Its proximal map sets small entries to exactly 0."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        _weight(self.weight)

    def value(self, Z: Tensor) -> Tensor:
        """Return λ‖z‖₁ for every sample."""
        return self.weight * Z.abs().sum(-1)

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return z moved towards 0 by step·λ, entry by entry, and not beyond it."""
        return torch.sign(Z) * torch.relu(Z.abs() - _step(step) * self.weight)


@dataclass(frozen=True)
class SquaredL2:
    r""":math:`R(z)=\lambda\|z\|^2`."""

    weight: float = 1.0
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _weight(self.weight)

    @property
    def smoothness(self) -> float:
        """Return 2λ."""
        return 2 * self.weight

    def value(self, Z: Tensor) -> Tensor:
        """Return λ‖z‖² for every sample."""
        return self.weight * Z.square().sum(-1)

    def gradient(self, Z: Tensor) -> Tensor:
        """Return 2λz."""
        return 2 * self.weight * Z

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return z/(1 + 2λ·step)."""
        return Z / (1 + 2 * self.weight * _step(step))


@dataclass(frozen=True)
class SquaredDistance:
    r""":math:`R(z)=\tfrac\lambda2\|z-a\|^2`: stay near a (or near row i of a)."""

    a: Tensor
    weight: float = 1.0
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _weight(self.weight)

    @property
    def smoothness(self) -> float:
        """Return λ."""
        return self.weight

    def value(self, Z: Tensor) -> Tensor:
        """Return ½λ‖z-a‖² for every sample."""
        return 0.5 * self.weight * (Z - self.a).square().sum(-1)

    def gradient(self, Z: Tensor) -> Tensor:
        """Return λ(z - a)."""
        return self.weight * (Z - self.a)

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return (z + step·λ·a)/(1 + step·λ)."""
        pull = _step(step) * self.weight
        return (Z + pull * self.a) / (1 + pull)


@dataclass(frozen=True)
class Group:
    r""":math:`R(z)=\lambda\sum_g\|z_g\|` over consecutive groups of ``size`` features each.

    Whole groups become exactly 0.
    """

    size: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        _weight(self.weight)
        if self.size < 1:
            raise ValueError(f"a group has at least one feature, got size {self.size}.")

    def _groups(self, Z: Tensor) -> Tensor:
        if Z.shape[-1] % self.size:
            raise ValueError(
                f"{Z.shape[-1]} features do not split into groups of {self.size}; "
                "choose a size that divides the width."
            )
        return Z.unflatten(-1, (-1, self.size))

    def value(self, Z: Tensor) -> Tensor:
        """Return λΣ‖z_g‖ for every sample."""
        return self.weight * self._groups(Z).norm(dim=-1).sum(-1)

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return every group shortened by step·λ, or 0 if it is not longer than that."""
        groups, shrink = self._groups(Z), _step(step) * self.weight
        length = groups.norm(dim=-1, keepdim=True)
        tiny = torch.finfo(Z.dtype).tiny  # a group that is 0 stays 0, without 0/0
        return (groups * torch.relu(1 - shrink / length.clamp(min=tiny))).flatten(-2)


@dataclass(frozen=True)
class Box:
    r"""The indicator of :math:`[l,u]^m`: 0 inside, :math:`+\infty` outside."""

    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"the box [{self.low!r}, {self.high!r}] is empty.")

    def value(self, Z: Tensor) -> Tensor:
        """Return 0 for a sample in the box, else infinity."""
        inside = (Z.clamp(self.low, self.high) == Z).all(-1)
        return torch.where(inside, 0.0, math.inf).to(Z.dtype)

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return the nearest point of the box, whatever the step."""
        _step(step)
        return Z.clamp(self.low, self.high)


@dataclass(frozen=True)
class Moreau:
    r"""The Moreau envelope :math:`M_R^\gamma(z)=\min_uR(u)+\tfrac1{2\gamma}\|u-z\|^2`.

    Smooth with constant :math:`1/\gamma` even where R is not, with the same minimisers:
    :math:`\nabla M_R^\gamma(z)=\tfrac1\gamma(z-\mathrm{prox}_{\gamma R}(z))`.
    """

    reg: Proximal
    gamma: float
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.gamma < math.inf:
            raise ValueError(f"gamma must be positive and finite, got {self.gamma!r}.")

    @property
    def smoothness(self) -> float:
        """Return 1/γ."""
        return 1 / self.gamma

    def value(self, Z: Tensor) -> Tensor:
        """Return the envelope for every sample."""
        u = self.reg.prox(Z, self.gamma)
        return self.reg.value(u) + (u - Z).square().sum(-1) / (2 * self.gamma)

    def gradient(self, Z: Tensor) -> Tensor:
        """Return (z - prox(z))/γ."""
        return (Z - self.reg.prox(Z, self.gamma)) / self.gamma

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        r"""Return :math:`z+\tfrac t{t+\gamma}(\mathrm{prox}_{(t+\gamma)R}(z)-z)`, t the step."""
        total = _step(step) + self.gamma
        return Z + (step / total) * (self.reg.prox(Z, total) - Z)


def moreau(reg: Proximal, gamma: float) -> Moreau:
    """Return the Moreau envelope of ``reg`` with parameter γ."""
    return Moreau(reg, gamma)


def append_prox(T: Map, reg: Proximal, step: float = 1.0) -> Map:
    r"""Return :math:`\mathrm{prox}_{\gamma R}\circ T`, a network with one more layer.

    For :math:`T=\mathrm{prox}_\varphi` its fixed points minimise :math:`M^1_\varphi+\gamma R`
    (the envelope), not :math:`\varphi+\gamma R`.
    """
    _step(step)
    return lambda z: reg.prox(T(z), step)


def append_gradient(T: Map, reg: Regulariser, step: float, *, check: bool = True) -> Map:
    r"""Return :math:`(I-\gamma\nabla R)\circ T`.

    For a convex R and :math:`\gamma\le1/L_R` the new layer is itself a proximal map. Other
    regularisers and longer steps are refused unless ``check=False``.
    """
    _step(step)
    if check and not (reg.convex and step * reg.smoothness <= 1 + 1e-12):
        why = "is not convex" if not reg.convex else f"has L_R = {reg.smoothness:g}"
        raise ValueError(
            f"{type(reg).__name__} {why}: with step {step:g} the new layer need not be a proximal "
            "map (that takes a convex R and a step of at most 1/L_R). Shorten the step, or pass "
            "check=False to build it without that guarantee."
        )

    def composed(z: Tensor) -> Tensor:
        y = T(z)
        return y - step * reg.gradient(y)

    return composed


def _step(step: float) -> float:
    if not 0 < step < math.inf:
        raise ValueError(f"a proximal step must be positive and finite, got {step!r}.")
    return step


def _weight(weight: float) -> None:
    if not 0 <= weight < math.inf:
        raise ValueError(f"the weight must be finite and not negative, got {weight!r}.")
