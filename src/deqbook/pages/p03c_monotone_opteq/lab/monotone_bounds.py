r"""The bounds inside the proofs of nguyen2022, chapter 3, and the condition as it is printed.

Each is made of the numbers of :class:`deqbook.bounds.monotone.Scales`; the conditions that the
proofs arrive at are in that module.
"""

from __future__ import annotations

import math

from torch import Tensor

from deqbook.bounds.conditions import Condition, Conditions
from deqbook.bounds.monotone import Radii, Scales, descent_conditions, scales
from deqbook.models import MonDEQ


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


def step_bounds(s: Scales, eta: float, error: float) -> dict[str, float]:
    r"""Bound one step of descent in A, B, U, a and W (nguyen2022.lemma3.3.7).

    :math:`\eta\|X\|_F\|e\|\beta`, and for W
    :math:`\eta\|X\|_F\|e\|\,\frac{4\bar\lambda_U\bar\lambda_a}{\mu^2}
    (\bar\lambda_A^2+1+\frac{\eta\sigma_Z^2\bar\lambda_A^2}{16})`. The last term replaces
    :math:`\|\Delta A\|^2` by means of the condition on A, with :math:`\|e\|\le\|e_0\|`.
    """
    unit = eta * s.x * error
    quadratic = eta * s.lambda0**2 * s.A**2 / 16
    bounds = {name: unit * beta for name, beta in s.gradients.items()}
    bounds["W"] = unit * 2 * s.gradients["B"] * (s.A**2 + 1 + quadratic)
    return bounds


def displacement_bounds(s: Scales) -> dict[str, float]:
    r"""Bound the whole way of A, B, U, a and W under descent (nguyen2022.proposition5).

    :math:`\frac8{\sigma_Z^2}\|X\|_F\|e_0\|\beta`, and for W
    :math:`\frac{16(3\bar\lambda_A^2+2)\bar\lambda_U\bar\lambda_a}{\sigma_Z^2\mu^2}
    \|X\|_F\|e_0\|`.
    """
    unit = 8 * s.x * s.e0 / s.lambda0**2 if s.lambda0 > 0 else math.inf
    bounds = {name: unit * beta for name, beta in s.gradients.items()}
    bounds["W"] = unit * s.gradients["B"] * (3 * s.A**2 + 2)
    return bounds


def flow_displacement_bounds(s: Scales) -> dict[str, float]:
    r"""Bound the whole way of A, B, U, a and of Z under the flow (nguyen2022.theorem3.3.1).

    :math:`\frac4{\sigma_Z^2}\|X\|_F\|e_0\|\beta`, and for Z
    :math:`\frac4{\sigma_Z^2}\|e_0\|` times the speed.
    """
    unit = 4 * s.e0 / s.lambda0**2 if s.lambda0 > 0 else math.inf
    bounds = {name: unit * s.x * beta for name, beta in s.gradients.items()}
    return {**bounds, "Z": unit * s.speed}


def drift_bound(s: Scales) -> float:
    r"""Bound :math:`\|Z_k-Z_0\|_F` under descent (nguyen2022.proposition6)."""
    far = displacement_bounds(s)
    return state_perturbation(s.x, s.mu, dU=far["U"], dW=far["W"], U=s.U0)


def quadratic_bound(s: Scales, eta: float, *, readout: bool = True) -> float:
    r"""Bound :math:`I_1/\mathcal L` (nguyen2022.lemma3.3.8).

    :math:`[\eta(C_1+C_2)+\eta^2\sigma_Z^2C_{12}]^2`; ``readout=False`` forgets :math:`C_2`.
    """
    C2 = s.C2 if readout else 0.0
    return (eta * (s.C1 + C2) + eta**2 * s.lambda0**2 * s.C12) ** 2


def cross_bound(s: Scales, eta: float) -> float:
    r"""Bound :math:`|I_2|/\mathcal L` (nguyen2022.lemma3.3.9).

    :math:`2[\eta C_1+\eta^2\sigma_Z^2C_{12}]`.
    """
    return 2 * (eta * s.C1 + eta**2 * s.lambda0**2 * s.C12)


def driving_bound(s: Scales, eta: float) -> float:
    r"""Bound :math:`I_3/\mathcal L` (nguyen2022.lemma3.3.10): :math:`-\eta\sigma_Z^2/2`."""
    return -eta * s.lambda0**2 / 2


def printed_descent_conditions(model: MonDEQ, X: Tensor, y: Tensor, radii: Radii) -> Conditions:
    r"""Condition 2 as printed, without the powers of μ; for comparison only.

    By nguyen2022.lemma3.3.3 (3.18) needs :math:`\mu^2\le1/(20n)`; where it does hold, the steps it
    admits may make the loss grow. See the errata.
    """
    s, right = scales(model, X, y, radii), descent_conditions(model, X, y, radii)
    total = s.a**2 + 4 * (s.U * s.a * s.A) ** 2 + 4 * (s.U * s.a) ** 2 + s.U**2
    features = Condition(
        "features stay",
        "σ_Z³ ≥ 8‖X‖_F²‖e₀‖λ̄_a(1 + 6λ̄_U²λ̄_A² + 4λ̄_U²)",
        s.lambda0**3,
        8 * s.x**2 * s.e0 * s.a * (1 + (6 * s.A**2 + 4) * s.U**2),
    )
    hidden = Condition(
        "hidden weights move little",
        "σ_Z² ≥ 20‖X‖_F²(λ̄_a² + 4λ̄_a²λ̄_U²λ̄_A² + 4λ̄_a²λ̄_U² + λ̄_U²)",
        s.lambda0**2,
        20 * s.x**2 * total,
    )
    curvatures = (  # the printed steps are their inverses
        s.lambda0**2 / 4,
        s.x**2 * total,
        2 * s.x * s.lambda0 * s.U * s.a * s.A,
        6 * (s.lambda0 * s.a * s.A) ** 2,
    )
    balls = right.conditions[:4]  # (3.16) is printed as it should be
    return Conditions(
        "nguyen2022, Condition 2 as printed",
        (*balls, features, hidden),
        rate=right.rate,
        step=1 / max(curvatures),
        constants=right.constants,
    )
