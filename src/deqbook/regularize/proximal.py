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

from deqbook.regularize.features import Regulariser, positive_step

__all__ = [
    "L1",
    "Moreau",
    "Proximal",
    "SquaredDistance",
    "SquaredL2",
    "append_gradient",
    "append_prox",
]

Map = Callable[[Tensor], Tensor]


class Proximal(Protocol):
    """A convex function with a proximal map in closed form.

    >>> R: Proximal = L1(0.5)
    >>> R.prox(torch.tensor([[3.0, -0.2]]), step=2.0).abs().tolist()
    [[2.0, 0.0]]
    """

    def value(self, Z: Tensor) -> Tensor:
        """Return R for every sample."""
        ...

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return prox of step·R, row by row."""
        ...


@dataclass(frozen=True)
class L1:
    r""":math:`R(z)=\lambda\|z\|_1`. Its proximal map sets small entries to exactly 0.

    ``weight`` is λ, finite and not negative, here and below; ``prox`` takes a positive, finite
    step. Else ``ValueError``.

    >>> Z = torch.tensor([[3.0, 0.5]])
    >>> L1().value(Z).tolist(), L1().prox(Z).tolist()
    ([3.5], [[2.0, 0.0]])
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        _weight(self.weight)

    def value(self, Z: Tensor) -> Tensor:
        """Return λ‖z‖₁ for every sample."""
        return self.weight * Z.abs().sum(-1)

    def prox(self, Z: Tensor, step: float = 1.0) -> Tensor:
        """Return z moved towards 0 by step·λ, entry by entry, and not beyond it."""
        return torch.sign(Z) * torch.relu(Z.abs() - positive_step(step) * self.weight)


@dataclass(frozen=True)
class SquaredL2:
    r""":math:`R(z)=\lambda\|z\|^2`.

    >>> Z = torch.tensor([[3.0, 6.0]])
    >>> SquaredL2().value(Z).tolist(), SquaredL2().prox(Z).tolist(), SquaredL2().smoothness
    ([45.0], [[1.0, 2.0]], 2.0)
    """

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
        return Z / (1 + 2 * self.weight * positive_step(step))


@dataclass(frozen=True)
class SquaredDistance:
    r""":math:`R(z)=\tfrac\lambda2\|z-a\|^2`: stay near a (or near row i of a).

    ``a`` is (m,) or (n, m).

    >>> R = SquaredDistance(torch.tensor([1.0, 1.0]))
    >>> R.prox(torch.tensor([[3.0, 5.0]])).tolist()  # half the way
    [[2.0, 3.0]]
    """

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
        pull = positive_step(step) * self.weight
        return (Z + pull * self.a) / (1 + pull)


@dataclass(frozen=True)
class Moreau:
    r"""The Moreau envelope :math:`M_R^\gamma(z)=\min_uR(u)+\tfrac1{2\gamma}\|u-z\|^2`.

    Smooth with constant :math:`1/\gamma` even where R is not, with the same minimisers:
    :math:`\nabla M_R^\gamma(z)=\tfrac1\gamma(z-\mathrm{prox}_{\gamma R}(z))`. ``ValueError`` if
    γ is not positive and finite.

    >>> huber, Z = Moreau(L1(), gamma=1.0), torch.tensor([[3.0], [0.5]])
    >>> huber.value(Z).tolist(), huber.gradient(Z).tolist()  # |z| - ½ far from 0, z²/2 near it
    ([2.5, 0.125], [[1.0], [0.5]])
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
        total = positive_step(step) + self.gamma
        return Z + (step / total) * (self.reg.prox(Z, total) - Z)


def append_prox(T: Map, reg: Proximal, step: float = 1.0) -> Map:
    r"""Return :math:`\mathrm{prox}_{\gamma R}\circ T`, a network with one more layer.

    For :math:`T=\mathrm{prox}_\varphi` its fixed points minimise :math:`M^1_\varphi+\gamma R`
    (the envelope), not :math:`\varphi+\gamma R`. γ is the ``step``; ``ValueError`` unless it is
    positive and finite.

    >>> layer = append_prox(lambda z: z + 3, SquaredL2(0.5))  # z = (z + 3)/2 at z = 3
    >>> layer(torch.tensor([3.0])).tolist()
    [3.0]
    """
    positive_step(step)
    return lambda z: reg.prox(T(z), step)


def append_gradient(T: Map, reg: Regulariser, step: float, *, check: bool = True) -> Map:
    r"""Return :math:`(I-\gamma\nabla R)\circ T`.

    For a convex R and :math:`\gamma\le1/L_R` the new layer is itself a proximal map. Other
    regularisers and longer steps are refused (``ValueError``) unless ``check=False``.

    >>> layer = append_gradient(lambda z: z + 3, SquaredL2(0.5), step=0.5)  # the same fixed point
    >>> layer(torch.tensor([3.0])).tolist()
    [3.0]
    """
    positive_step(step)
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


def _weight(weight: float) -> None:
    if not 0 <= weight < math.inf:
        raise ValueError(f"the weight must be finite and not negative, got {weight!r}.")
