r"""When training a monotone DEQ converges linearly (nguyen2022, chapter 3).

All weights of :math:`z=\sigma(Wz+Ux)`, :math:`\hat y=a^\top z`,
:math:`W=(1-\mu)I-A^\top A+B-B^\top` are trained. Around each initial parameter lies a ball of
radius :math:`R`, and :math:`\bar\lambda=\|\cdot(0)\|+R` bounds the norm inside. With
:math:`\sigma_Z=\sigma_{\min}(Z(0))` and :math:`\|e_0\|=\|\hat y(0)-y\|` the conditions say: the
features are so well conditioned, and the labels so near, that training ends inside the balls.

Condition 1 (flow) is the source's. Condition 2 (descent) is vacuous or wrong as printed; here it is
repaired, as Condition 2′.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.bounds.conditions import Condition, Conditions
from deqbook.linalg import operator_norm
from deqbook.models import MonDEQ

__all__ = [
    "Radii",
    "Scales",
    "descent_conditions",
    "flow_conditions",
    "readout_radius",
    "scales",
]

ROUNDING = 1e-12  # relative; a radius that is just enough must not fail by it


@dataclass(frozen=True)
class Radii:
    """The radii of the balls around A(0), B(0), U(0) and a(0); a negative one is a ``ValueError``.

    >>> Radii(A=0.1, B=0.1, U=0.2, a=0.3).U
    0.2
    """

    A: float
    B: float
    U: float
    a: float

    def __post_init__(self) -> None:
        if not all(r >= 0 for r in (self.A, self.B, self.U, self.a)):
            raise ValueError(f"radii must be non-negative numbers, got {self}.")


@dataclass(frozen=True)
class Scales:
    r"""The numbers that every bound of the chapter is made of.

    ``x`` is :math:`\|X\|_F`; ``A``, ``U``, ``a`` are the :math:`\bar\lambda`; ``lambda0`` is
    :math:`\sigma_Z=\sigma_{\min}(Z(0))`, zero if there are more samples than units; ``e0`` is
    :math:`\|e_0\|`; ``U0`` is :math:`\|U(0)\|`.

    >>> s = Scales(x=1.0, mu=0.5, A=1.0, U=2.0, a=1.0, U0=1.5, lambda0=1.0, e0=0.1)
    >>> s.gradients
    {'A': 16.0, 'B': 16.0, 'U': 2.0, 'a': 4.0}
    >>> s.speed, s.C1, s.C2, s.C12
    (516.0, 516.0, 16.0, 16.0)
    """

    x: float
    mu: float
    A: float
    U: float
    a: float
    U0: float
    lambda0: float
    e0: float

    @property
    def gradients(self) -> dict[str, float]:
        r"""Return :math:`\beta` with :math:`\|\nabla\mathcal L\|_F\le\|X\|_F\beta\|e\|`.

        :math:`2\bar\lambda_U\bar\lambda_a\bar\lambda_A/\mu^2`,
        :math:`2\bar\lambda_U\bar\lambda_a/\mu^2`, :math:`\bar\lambda_a/\mu`,
        :math:`\bar\lambda_U/\mu` for A, B, U and a, inside the balls.
        """
        twice = 2 * self.U * self.a / self.mu**2
        return {"A": twice * self.A, "B": twice, "U": self.a / self.mu, "a": self.U / self.mu}

    @property
    def speed(self) -> float:
        r"""Return s with :math:`\|\dot Z\|_F\le s\|e\|` under the flow (nguyen2022.theorem3.3.1).

        :math:`s=\frac{\|X\|_F^2\bar\lambda_a}{\mu^2}
        \big(1+\frac{4(\bar\lambda_A^2+1)\bar\lambda_U^2}{\mu^2}\big)`.
        """
        inner = 4 * (self.A**2 + 1) * self.U**2 / self.mu**2
        return self.x**2 * self.a / self.mu**2 * (1 + inner)

    @property
    def C1(self) -> float:
        r"""Return the share of the hidden weights in the curvature.

        :math:`\|X\|_F^2\big(\frac{\bar\lambda_a^2}{\mu^2}
        +\frac{4\bar\lambda_U^2\bar\lambda_a^2(1+\bar\lambda_A^2)}{\mu^4}\big)`.
        """
        hidden = 4 * (self.U * self.a) ** 2 * (1 + self.A**2) / self.mu**4
        return self.x**2 * (self.a**2 / self.mu**2 + hidden)

    @property
    def C2(self) -> float:
        r"""Return the share of the read-out, :math:`\|X\|_F^2\bar\lambda_U^2/\mu^2`."""
        return (self.x * self.U / self.mu) ** 2

    @property
    def C12(self) -> float:
        r"""Return :math:`\|X\|_F^2\bar\lambda_U^2\bar\lambda_a^2\bar\lambda_A^2/(4\mu^4)`."""
        return (self.x * self.U * self.a * self.A / self.mu**2) ** 2 / 4


def _over(a: float, b: float) -> float:
    """Return a/b, infinite for b = 0: features without full rank, a ball without radius."""
    return a / b if b > 0 else math.inf


@torch.no_grad()
def scales(model: MonDEQ, X: Tensor, y: Tensor, radii: Radii) -> Scales:
    """Measure a network without bias and its data: ``X`` is (n, d), ``y`` (n,).

    ``ValueError`` if the network has a bias, which the theorems do not know.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = MonDEQ(0 * one, 0 * one, one, one[0], mu=1.0)  # W = 0, so z = relu(x)
    >>> s = scales(model, one, 3 * one[0], Radii(0.1, 0.1, 0.1, 0.1))
    >>> round(s.U, 6), round(s.lambda0, 6), round(s.e0, 6)
    (1.1, 1.0, 2.0)
    """
    model.refuse_bias()
    z = model.solve(X, tol=1e-12).z
    values = torch.linalg.svdvals(z)
    U = operator_norm(model.U)
    return Scales(
        x=float(X.norm()),
        mu=model.mu,
        A=operator_norm(model.A) + radii.A,
        U=U + radii.U,
        a=float(model.a.norm()) + radii.a,
        U0=U,
        lambda0=float(values[-1]) if len(X) <= model.m else 0.0,
        e0=float((z @ model.a - y).norm()),
    )


@torch.no_grad()
def readout_radius(
    model: MonDEQ, X: Tensor, y: Tensor, R_U: float, *, factor: float = 8.0
) -> float:
    r"""Return the least R_a that keeps the read-out in its ball.

    :math:`\mathtt{factor}\cdot\|X\|_F\|e_0\|\bar\lambda_U/(\mu\sigma_Z^2)`; the factor is 4 in
    Condition 1 and 8 in Condition 2′. It is proportional to :math:`\|e_0\|`, which is why small
    labels make the conditions true when :math:`a(0)=0`. Infinite if :math:`\sigma_Z=0`.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = MonDEQ(0 * one, 0 * one, one, 0 * one[0], mu=1.0)  # z = relu(x), output 0
    >>> round(readout_radius(model, one, 0.01 * one[0], R_U=0.1), 6)
    0.088
    """
    s = scales(model, X, y, Radii(0.0, 0.0, R_U, 0.0))
    return _over(factor * s.x * s.e0 * s.gradients["a"], s.lambda0**2)


def _balls(s: Scales, radii: Radii, factor: int) -> tuple[Condition, ...]:
    """Ask that each parameter stays in its ball: (3.8) with factor 4, (3.16) with factor 8."""
    formulas = {
        "A": f"σ_Z² ≥ {factor}‖X‖_F‖e₀‖ · 2λ̄_Uλ̄_aλ̄_A/(μ²R_A)",
        "B": f"σ_Z² ≥ {factor}‖X‖_F‖e₀‖ · 2λ̄_Uλ̄_a/(μ²R_B)",
        "U": f"σ_Z² ≥ {factor}‖X‖_F‖e₀‖ · λ̄_a/(μR_U)",
        "a": f"σ_Z² ≥ {factor}‖X‖_F‖e₀‖ · λ̄_U/(μR_a)",
    }
    return tuple(
        _enough(
            f"{name} stays",
            formula,
            s.lambda0**2,
            _over(factor * s.x * s.e0 * s.gradients[name], getattr(radii, name)),
        )
        for name, formula in formulas.items()
    )


def _enough(name: str, formula: str, have: float, need: float) -> Condition:
    """Return the condition; a need that is larger by rounding alone counts as what there is."""
    return Condition(name, formula, have, have if have < need <= have * (1 + ROUNDING) else need)


def _constants(s: Scales) -> dict[str, float]:
    norms = {"x": s.x, "mu": s.mu, "A": s.A, "U": s.U, "a": s.a}
    return {**norms, "lambda0": s.lambda0, "error": s.e0, "C1": s.C1, "C2": s.C2, "C12": s.C12}


def flow_conditions(model: MonDEQ, X: Tensor, y: Tensor, radii: Radii) -> Conditions:
    r"""Condition 1, for the flow: :math:`\mathcal L(t)\le e^{-\sigma_Z^2t/2}\mathcal L(0)`.

    nguyen2022.condition1 and nguyen2022.theorem3.3.1: (3.8) in four parts, and (3.9)
    :math:`\sigma_Z^3\ge\frac{8\|X\|_F^2\|e_0\|\bar\lambda_a}{\mu^2}
    \big(1+\frac{4(\bar\lambda_A^2+1)\bar\lambda_U^2}{\mu^2}\big)`.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = MonDEQ(0 * one, 0 * one, one, 0 * one[0], mu=1.0)  # z = relu(x), output 0
    >>> balls = Radii(0.1, 0.1, 0.1, 0.1)
    >>> [flow_conditions(model, one, y * one[0], balls).holds for y in (0.01, 1.0)]
    [True, False]
    """
    s = scales(model, X, y, radii)
    features = Condition(
        "features stay",
        "σ_Z³ ≥ (8‖X‖_F²‖e₀‖λ̄_a/μ²)(1 + 4(λ̄_A²+1)λ̄_U²/μ²)",
        s.lambda0**3,
        8 * s.e0 * s.speed,
    )
    return Conditions(
        "nguyen2022, Condition 1",
        (*_balls(s, radii, 4), features),
        rate=s.lambda0**2 / 2,
        constants=_constants(s),
    )


def descent_conditions(model: MonDEQ, X: Tensor, y: Tensor, radii: Radii) -> Conditions:
    r"""Condition 2′: :math:`\mathcal L_{k+1}\le(1-\tfrac{\eta\sigma_Z^2}4)\mathcal L_k` for all k.

    nguyen2022.condition2 and nguyen2022.theorem3.3.5, repaired: (3.16) in four parts, (3.17′)
    :math:`\sigma_Z^3\ge\frac{16\|X\|_F^2\|e_0\|\bar\lambda_a}{\mu^2}
    \big(1+\frac{(6\bar\lambda_A^2+4)\bar\lambda_U^2}{\mu^2}\big)`, (3.18′)
    :math:`\sigma_Z^2\ge16C_1`; steps up to
    :math:`\sigma_Z^2/(16(C_1+C_2+\sigma_Z^2/32)^2)`. ``ValueError`` if X is zero, or every
    gradient in the balls, as that step would be 0/0.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = MonDEQ(0 * one, 0 * one, one, 0 * one[0], mu=1.0)  # z = relu(x), output 0
    >>> found = descent_conditions(model, one, 0.01 * one[0], Radii(0.1, 0.1, 0.1, 0.1))
    >>> found.holds, round(found.step, 4)
    (True, 0.037)
    """
    s = scales(model, X, y, radii)
    if s.x == 0:
        raise ValueError(
            "X is zero (‖X‖_F = 0): every state and every gradient vanishes, and the largest "
            "admissible step would be 0/0. Pass inputs that are not all zero."
        )
    curvature = s.C1 + s.C2 + s.lambda0**2 / 32
    if curvature**2 == 0:
        raise ValueError(
            f"every gradient vanishes in the balls: ‖X‖_F = {s.x:g}, ‖U(0)‖ + R_U = {s.U:g} and "
            f"‖a(0)‖ + R_a = {s.a:g}; the largest admissible step would be 0/0. Pass larger inputs "
            "and weights, or positive radii R_U and R_a."
        )
    features = Condition(
        "features stay",
        "σ_Z³ ≥ (16‖X‖_F²‖e₀‖λ̄_a/μ²)(1 + (6λ̄_A²+4)λ̄_U²/μ²)",
        s.lambda0**3,
        16 * s.x**2 * s.e0 * s.a / s.mu**2 * (1 + (6 * s.A**2 + 4) * s.U**2 / s.mu**2),
    )
    hidden = Condition("hidden weights move little", "σ_Z² ≥ 16C₁", s.lambda0**2, 16 * s.C1)
    return Conditions(
        "nguyen2022, Condition 2′",
        (*_balls(s, radii, 8), features, hidden),
        rate=s.lambda0**2 / 4,
        step=s.lambda0**2 / (16 * curvature**2),
        constants=_constants(s),
    )
