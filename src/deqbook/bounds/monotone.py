r"""When training a monotone DEQ converges linearly (nguyen2022, chapter 3).

All weights of :math:`z=\sigma(Wz+Ux)`, :math:`\hat y=a^\top z`,
:math:`W=(1-\mu)I-A^\top A+B-B^\top` are trained. Around each initial parameter lies a ball of
radius :math:`R`, and :math:`\bar\lambda=\|\cdot(0)\|+R` bounds the norm inside. With
:math:`\lambda_0=\sigma_{\min}(Z(0))` and :math:`\|e_0\|=\|\hat y(0)-y\|` the conditions say: the
features are so well conditioned, and the labels so near, that training ends inside the balls.

Condition 1 (flow) is the source's. Condition 2 (descent) as printed is vacuous or wrong; beside it
stands the repaired version, Condition 2′.
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
    "matrix_perturbation",
    "output_perturbation",
    "printed_descent_conditions",
    "readout_radius",
    "scales",
    "state_perturbation",
]


@dataclass(frozen=True)
class Radii:
    """The radii of the balls around A(0), B(0), U(0) and a(0)."""

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
    :math:`\lambda_0=\sigma_{\min}(Z(0))`, zero if there are more samples than units; ``e0`` is
    :math:`\|e_0\|`; ``U0`` is :math:`\|U(0)\|`.
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

    def steps(self, eta: float, error: float) -> dict[str, float]:
        r"""Bound one step of descent in A, B, U, a and W (nguyen2022.lemma3.3.7).

        :math:`\eta\|X\|_F\|e\|\beta`, and for W
        :math:`\eta\|X\|_F\|e\|\,\frac{4\bar\lambda_U\bar\lambda_a}{\mu^2}
        (\bar\lambda_A^2+1+\frac{\eta\lambda_0^2\bar\lambda_A^2}{16})`. The last term replaces
        :math:`\|\Delta A\|^2` by means of the condition on A, with :math:`\|e\|\le\|e_0\|`.
        """
        unit = eta * self.x * error
        quadratic = eta * self.lambda0**2 * self.A**2 / 16
        bounds = {name: unit * beta for name, beta in self.gradients.items()}
        bounds["W"] = unit * 2 * self.gradients["B"] * (self.A**2 + 1 + quadratic)
        return bounds

    @property
    def displacements(self) -> dict[str, float]:
        r"""Bound the whole way of A, B, U, a and W under descent (nguyen2022.proposition5).

        :math:`\frac8{\lambda_0^2}\|X\|_F\|e_0\|\beta`, and for W
        :math:`\frac{16(3\bar\lambda_A^2+2)\bar\lambda_U\bar\lambda_a}{\lambda_0^2\mu^2}
        \|X\|_F\|e_0\|`.
        """
        unit = _over(8 * self.x * self.e0, self.lambda0**2)
        bounds = {name: unit * beta for name, beta in self.gradients.items()}
        bounds["W"] = unit * self.gradients["B"] * (3 * self.A**2 + 2)
        return bounds

    @property
    def drift(self) -> float:
        r"""Bound :math:`\|Z_k-Z_0\|_F` under descent (nguyen2022.proposition6)."""
        far = self.displacements
        return state_perturbation(self.x, self.mu, dU=far["U"], dW=far["W"], U=self.U0)

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

    def quadratic(self, eta: float) -> float:
        r"""Bound :math:`I_1/\mathcal L` (nguyen2022.lemma3.3.8).

        :math:`[\eta(C_1+C_2)+\eta^2\lambda_0^2C_{12}]^2`.
        """
        return (eta * (self.C1 + self.C2) + eta**2 * self.lambda0**2 * self.C12) ** 2

    def cross(self, eta: float) -> float:
        r"""Bound :math:`|I_2|/\mathcal L` (nguyen2022.lemma3.3.9).

        :math:`2[\eta C_1+\eta^2\lambda_0^2C_{12}]`.
        """
        return 2 * (eta * self.C1 + eta**2 * self.lambda0**2 * self.C12)

    def driving(self, eta: float) -> float:
        r"""Bound :math:`I_3/\mathcal L` (nguyen2022.lemma3.3.10): :math:`-\eta\lambda_0^2/2`."""
        return -eta * self.lambda0**2 / 2


def _over(a: float, b: float) -> float:
    """Return a/b, infinite for b = 0: features without full rank, a ball without radius."""
    return a / b if b > 0 else math.inf


def state_perturbation(x: float, mu: float, *, dU: float, dW: float, U: float) -> float:
    r"""Bound :math:`\|Z_k-Z_s\|_F` of two networks with one μ (nguyen2022.lemma3.3.4).

    :math:`\|X\|_F\big(\frac{\|U_k-U_s\|}\mu+\frac{\|W_k-W_s\|\|U_s\|}{\mu^2}\big)`.
    """
    return x * (dU / mu + dW * U / mu**2)


def output_perturbation(
    x: float, mu: float, *, dU: float, dW: float, da: float, U: float, a: float
) -> float:
    r"""Bound :math:`\|\hat y_k-\hat y_s\|` of two networks with one μ (nguyen2022.lemma3.3.4).

    :math:`\|a_k\|` times the bound on the states, plus
    :math:`\|X\|_F\frac{\|U_s\|}\mu\|a_k-a_s\|`.
    """
    return a * state_perturbation(x, mu, dU=dU, dW=dW, U=U) + x * U / mu * da


def matrix_perturbation(A: float, *, dA: float, dB: float) -> float:
    r"""Bound :math:`\|\Delta W\|\le2\|A\|\|\Delta A\|+\|\Delta A\|^2+2\|\Delta B\|`.

    This is nguyen2022.lemma3.3.6, with norms as arguments.
    """
    return 2 * A * dA + dA**2 + 2 * dB


@torch.no_grad()
def scales(model: MonDEQ, X: Tensor, y: Tensor, radii: Radii) -> Scales:
    """Measure a network and its data."""
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

    :math:`\mathtt{factor}\cdot\|X\|_F\|e_0\|\bar\lambda_U/(\mu\lambda_0^2)`; the factor is 4 in
    Condition 1 and 8 in Condition 2′. It is proportional to :math:`\|e_0\|`, which is why small
    labels make the conditions true when :math:`a(0)=0`.
    """
    s = scales(model, X, y, Radii(0.0, 0.0, R_U, 0.0))
    return _over(factor * s.x * s.e0 * s.gradients["a"], s.lambda0**2)


def _balls(s: Scales, radii: Radii, factor: int) -> tuple[Condition, ...]:
    """Ask that each parameter stays in its ball: (3.8) with factor 4, (3.16) with factor 8."""
    formulas = {
        "A": f"λ₀² ≥ {factor}‖X‖_F‖e₀‖ · 2λ̄_Uλ̄_aλ̄_A/(μ²R_A)",
        "B": f"λ₀² ≥ {factor}‖X‖_F‖e₀‖ · 2λ̄_Uλ̄_a/(μ²R_B)",
        "U": f"λ₀² ≥ {factor}‖X‖_F‖e₀‖ · λ̄_a/(μR_U)",
        "a": f"λ₀² ≥ {factor}‖X‖_F‖e₀‖ · λ̄_U/(μR_a)",
    }
    return tuple(
        Condition(
            f"{name} stays",
            formula,
            s.lambda0**2,
            _over(factor * s.x * s.e0 * s.gradients[name], getattr(radii, name)),
        )
        for name, formula in formulas.items()
    )


def _constants(s: Scales) -> dict[str, float]:
    names = {"‖X‖_F": s.x, "μ": s.mu, "λ̄_A": s.A, "λ̄_U": s.U, "λ̄_a": s.a}
    return {**names, "λ₀": s.lambda0, "‖e₀‖": s.e0, "C₁": s.C1, "C₂": s.C2, "C₁₂": s.C12}


def flow_conditions(model: MonDEQ, X: Tensor, y: Tensor, radii: Radii) -> Conditions:
    r"""Condition 1, for the flow: :math:`\mathcal L(t)\le e^{-\lambda_0^2t/2}\mathcal L(0)`.

    nguyen2022.condition1 and nguyen2022.theorem3.3.1: (3.8) in four parts, and (3.9)
    :math:`\lambda_0^3\ge\frac{8\|X\|_F^2\|e_0\|\bar\lambda_a}{\mu^2}
    \big(1+\frac{4(\bar\lambda_A^2+1)\bar\lambda_U^2}{\mu^2}\big)`.
    """
    s = scales(model, X, y, radii)
    features = Condition(
        "features stay",
        "λ₀³ ≥ (8‖X‖_F²‖e₀‖λ̄_a/μ²)(1 + 4(λ̄_A²+1)λ̄_U²/μ²)",
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
    r"""Condition 2′: :math:`\mathcal L_{k+1}\le(1-\tfrac{\eta\lambda_0^2}4)\mathcal L_k` for all k.

    nguyen2022.condition2 and nguyen2022.theorem3.3.5, repaired: (3.16) in four parts, (3.17′)
    :math:`\lambda_0^3\ge\frac{16\|X\|_F^2\|e_0\|\bar\lambda_a}{\mu^2}
    \big(1+\frac{(6\bar\lambda_A^2+4)\bar\lambda_U^2}{\mu^2}\big)`, (3.18′)
    :math:`\lambda_0^2\ge16C_1`; steps up to
    :math:`\lambda_0^2/(16(C_1+C_2+\lambda_0^2/32)^2)`.
    """
    s = scales(model, X, y, radii)
    if s.x == 0:
        raise ValueError(
            "X is zero: every state and every gradient vanishes, and the largest admissible step "
            "would be 0/0. Pass inputs that are not all zero."
        )
    features = Condition(
        "features stay",
        "λ₀³ ≥ (16‖X‖_F²‖e₀‖λ̄_a/μ²)(1 + (6λ̄_A²+4)λ̄_U²/μ²)",
        s.lambda0**3,
        16 * s.x**2 * s.e0 * s.a / s.mu**2 * (1 + (6 * s.A**2 + 4) * s.U**2 / s.mu**2),
    )
    hidden = Condition("hidden weights move little", "λ₀² ≥ 16C₁", s.lambda0**2, 16 * s.C1)
    return Conditions(
        "nguyen2022, Condition 2′",
        (*_balls(s, radii, 8), features, hidden),
        rate=s.lambda0**2 / 4,
        step=s.lambda0**2 / (16 * (s.C1 + s.C2 + s.lambda0**2 / 32) ** 2),
        constants=_constants(s),
    )


def printed_descent_conditions(model: MonDEQ, X: Tensor, y: Tensor, radii: Radii) -> Conditions:
    r"""Condition 2 as printed, without the powers of μ; for comparison only.

    By nguyen2022.lemma3.3.3 (3.18) needs :math:`\mu^2\le1/(20n)`; where it does hold, the steps it
    admits may make the loss grow. See the errata.
    """
    s = scales(model, X, y, radii)
    total = s.a**2 + 4 * (s.U * s.a * s.A) ** 2 + 4 * (s.U * s.a) ** 2 + s.U**2
    features = Condition(
        "features stay",
        "λ₀³ ≥ 8‖X‖_F²‖e₀‖λ̄_a(1 + 6λ̄_U²λ̄_A² + 4λ̄_U²)",
        s.lambda0**3,
        8 * s.x**2 * s.e0 * s.a * (1 + (6 * s.A**2 + 4) * s.U**2),
    )
    hidden = Condition(
        "hidden weights move little",
        "λ₀² ≥ 20‖X‖_F²(λ̄_a² + 4λ̄_a²λ̄_U²λ̄_A² + 4λ̄_a²λ̄_U² + λ̄_U²)",
        s.lambda0**2,
        20 * s.x**2 * total,
    )
    steps = (
        _over(4, s.lambda0**2),
        _over(1, s.x**2 * total),
        _over(1, 2 * s.x * s.lambda0 * s.U * s.a * s.A),
        _over(1, 6 * (s.lambda0 * s.a * s.A) ** 2),
    )
    return Conditions(
        "nguyen2022, Condition 2 as printed",
        (*_balls(s, radii, 8), features, hidden),
        rate=s.lambda0**2 / 4,
        step=min(steps),
        constants=_constants(s),
    )
