"""Errata of page 5b, selection: every number computed again and looked up in its entry."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from errata_page import entry, iterate
from scipy.optimize import minimize_scalar


def sci(value: float, digits: int = 1) -> str:
    """Write a number as TeX does: 3.8\\cdot10^{2}."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}\\cdot10^{{{int(exponent)}}}"


def hessian(f: Callable[[np.ndarray], float], z: np.ndarray, h: float) -> np.ndarray:
    """Return second differences of f at z."""
    steps = h * np.eye(len(z))
    return np.array(
        [
            [
                (f(z + a + b) - f(z + a - b) - f(z - a + b) + f(z - a - b)) / (4 * h * h)
                for b in steps
            ]
            for a in steps
        ]
    )


def test_xie_e8() -> None:
    text, w, b, lam = entry("errata-xie-e8"), 0.5, 1.0, 0.5

    def T(z: float) -> float:
        return w * max(w * z + b, 0.0)

    def phi(z: float) -> float:  # the code of z ≥ 0 is z/w
        return (z / w) ** 2 / 2 - b * z / w - z**2 / 2

    def envelope(z: float) -> float:
        inner = minimize_scalar(
            lambda u: phi(u) + (u - z) ** 2 / 2, bounds=(0, 10), options={"xatol": 1e-12}
        )
        return float(inner.fun)

    network = iterate(lambda z: T(z) / (1 + 2 * lam), 0.0, 200)
    assert network == pytest.approx(2 / 7, abs=1e-12)

    def least(f: Callable[[float], float]) -> float:
        found = minimize_scalar(f, bounds=(0, 10), options={"xatol": 1e-10})
        return float(found.x)

    smoothed = least(lambda z: envelope(z) + lam * z**2)
    added = least(lambda z: phi(z) + lam * z**2)
    assert smoothed == pytest.approx(network, abs=1e-5)
    assert f"the equilibrium ${network:.4f}$" in text
    assert f"minimiser of $M_\\varphi^1+R$ is ${smoothed:.4f}$, that of $\\varphi+R$" in text
    assert f"of $\\varphi+R$ is ${added:.4f}$" in text


def test_xie_e9_inverse_norm() -> None:
    text, eps = entry("errata-xie-e9"), 0.01

    def R(z: np.ndarray) -> float:
        return 1 / (z @ z + eps)

    found = np.linalg.eigvalsh(hessian(R, np.array([1.0, 0.0, 0.0]), 1e-4))
    low, middle, high = (f"${value:.2f}$" for value in found)
    assert f"are {low}, {middle} and {high}" in text
    at_zero = np.linalg.eigvalsh(hessian(R, np.zeros(3), 1e-4))
    assert at_zero == pytest.approx([-2 / eps**2] * 3, rel=1e-3)
    assert "at 0 all are $-20000$" in text


def decorrelation(features: np.ndarray) -> float:
    """Return ½‖YYᵀ-I‖² for features in rows, each divided by its length."""
    Y = features / np.linalg.norm(features, axis=1, keepdims=True)
    return float(0.5 * ((Y @ Y.T - np.eye(len(Y))) ** 2).sum())


def test_xie_e9_decorrelation() -> None:
    text = entry("errata-xie-e9")
    one = np.eye(2)
    other = one[::-1]
    values = [decorrelation(Z) for Z in (one, other, (one + other) / 2)]
    assert values == pytest.approx([0.0, 0.0, 1.0])
    assert "it is 0 for the features $(1,0),(0,1)$, 0 for $(0,1),(1,0)$, and 1 halfway" in text
    norms = []
    for scale in (1.0, 1e-4):
        Z, h = scale * np.array([[1.0, 0.0], [1.0, 1.0]]), 1e-6 * scale
        moves = [h * e.reshape(2, 2) for e in np.eye(4)]
        slope = [(decorrelation(Z + t) - decorrelation(Z - t)) / (2 * h) for t in moves]
        norms.append(float(np.linalg.norm(slope)))
    assert f"has norm ${norms[0]:.2f}$" in text
    assert f"times shorter, ${sci(norms[1], 2)}$" in text


def test_xie_e9_selection() -> None:
    text, rho, c, smoothness = entry("errata-xie-e9"), 0.32, 0.32, 2.0
    gamma, eta = 0.5 / smoothness, min(np.sqrt(2 * smoothness), 0.5, smoothness / 2)

    def run(z: float) -> float:
        for k in range(1, 10_001):
            beta, lam = eta / k**rho, eta / k**c
            slope = -2 * z / (z * z + 1) ** 2
            s = (1 - gamma * lam) * z - gamma * slope
            z = beta * s + (1 - beta) * min(max(z, -1.0), 2.0)
        return z

    right, left = run(0.5), run(-0.5)
    assert f"start $0.5$ has led to ${right:.2f}$, where $R$ is ${1 / (2.0**2 + 1):.1f}$" in text
    assert f"start $-0.5$ to ${left:.2f}$, where $R$ is ${1 / (1.0**2 + 1):.1f}$" in text


def test_xie_e10() -> None:
    text = entry("errata-xie-e10")
    b = 0.5 / np.sqrt(np.arange(1, 101))
    product, right, printed = np.prod(1 - b), np.exp(-b.sum()), np.exp(b.sum())
    assert product < right < printed
    assert f"the product is ${sci(product)}$" in text
    assert f"the minus sign ${sci(right)}$, the printed one ${sci(printed)}$" in text
