"""Errata of page 6a: every number computed again, by NumPy alone, and looked up in its entry."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from errata_page import entry, listed, relu, state
from scipy.integrate import solve_ivp


def test_gao2023_o5() -> None:
    text = entry("errata-gao2023-o5")
    solved = solve_ivp(lambda t, u: 1 - u, (0, 3), [0.0], rtol=1e-10, atol=1e-12).y[0, -1]
    claimed = 3 * math.exp(-3)  # α e^{∫β} with α = t, β = -1
    assert f"$u\\le{claimed:.3f}$" in text
    assert f"$u={solved:.3f}$" in text
    # One unit: f = 1/(1-w/2), ∂f/∂w = f²/2, so f' = -(f⁴/4)(f-y).
    y, lambda0 = 0.9, 0.25
    flow = solve_ivp(
        lambda t, f: -(f**4) / 4 * (f - y),
        (0, 80),
        [1.0],
        rtol=1e-12,
        atol=1e-12,
        dense_output=True,
    )
    w = 0.3
    slope = (1 / (1 - (w + 1e-6) / 2) - 1 / (1 - (w - 1e-6) / 2)) / 2e-6
    assert slope == pytest.approx((1 / (1 - w / 2)) ** 2 / 2, rel=1e-8)

    def gap(t: np.ndarray) -> np.ndarray:
        return flow.sol(t)[0] - (y + (1 - y) * np.exp(-lambda0 * t))

    end = y**4 / 4
    assert f"${end / lambda0:.3f}\\,\\lambda_H$" in text
    assert end > lambda0 / 2  # the hypothesis of the repaired bound
    s = np.array([5.0, 10.0, 20.0])
    printed, half = np.exp(s) * gap(4 * s), np.exp(s / 2) * gap(4 * s)
    assert f"${printed[0]:.2f}, {printed[1]:.2f}, {printed[2]:.1f}$" in text
    assert f"${listed(list(half), 4)}$" in text
    t = np.linspace(0.01, 80, 4000)
    bound = 2 * (lambda0 - end) / lambda0 * (1 - y) * (np.exp(-t / 8) - np.exp(-t / 4))
    assert f"used to {(gap(t) / bound).max():.2f} at most" in text


@cache
def network() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return kernel, first predictions and labels of a network with m = 100, n = 6, d = 20."""
    rng, m, n, d = np.random.default_rng(0), 100, 6, 20
    W, U = rng.standard_normal((m, m)), rng.standard_normal((m, d))
    a, X = rng.choice([-1.0, 1.0], m), rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = rng.choice([-1.0, 1.0], n)
    scale, Q = 0.4 / np.sqrt(m), relu(U @ X.T) / np.sqrt(m)
    Z = state(scale * W, Q)
    on = (scale * W @ Z + Q > 0).astype(float)
    eye = np.eye(m)
    V = np.column_stack([s * np.linalg.solve(eye - scale * W.T * s, a) for s in on.T])
    return scale**2 * (V.T @ V) * (Z.T @ Z), a @ Z, y


def test_gao2023_o6() -> None:
    text = entry("errata-gao2023-o6")
    H, start, y = network()
    alpha = np.linalg.solve(H, y - start)
    assert f"$B^2={alpha @ H @ alpha:.1f}$" in text
    assert np.linalg.norm(start + H @ alpha - y) < 1e-12
    without = np.linalg.norm(H @ alpha - y)
    assert without == pytest.approx(np.linalg.norm(start), rel=1e-10)
    assert f"={without:.3f}=" in text


def test_gao2023_o10() -> None:
    text, delta = entry("errata-gao2023-o10"), 0.01
    ratios = []
    for n, lambda0 in ((10, 0.3), (100, 0.1), (1000, 0.02)):
        m = lambda0**-8 * delta**-1 * n**10
        ratios.append(n**2 * lambda0**-2 / delta * m**-0.25 * math.sqrt(n))
        repaired = n**3 * lambda0**-3 / delta * m**-0.5
        assert repaired == pytest.approx(lambda0 * n**-2 * delta**-0.5, rel=1e-9)
        edge = lambda0**2 * n**-3.0  # the least δ for which it is O(n^{-1/2})
        assert lambda0 * n**-2 * edge**-0.5 * math.sqrt(n) == pytest.approx(1, rel=1e-9)
        if n == 100:
            assert f"${repaired * math.sqrt(n):.3f}$ times" in text
    assert ratios == pytest.approx([delta**-0.75] * 3, rel=1e-9)
    assert f"${ratios[0]:.1f}$ times" in text


def test_gao2023_o13() -> None:
    text = entry("errata-gao2023-o13")
    H, start, y = network()
    B = math.sqrt((y - start) @ np.linalg.solve(H, y - start))
    tosses = [np.array(e) for e in itertools.product((-1.0, 1.0), repeat=6)]
    exact = B / 6 * np.mean([math.sqrt(e @ H @ e) for e in tosses])
    root, none = B / 6 * math.sqrt(np.trace(H)), B / 6 * np.trace(H)
    assert none < exact < root
    for value in (exact, root, none):
        assert f"${value:.4f}$" in text
    n, N, rho, radius, delta = 400, 20_000, 10, 0.64, 0.05
    table = np.zeros(N)
    table[:n] = radius / math.sqrt(n)  # the best member: equal on the atoms of the sample
    assert np.sum(table**2) == pytest.approx(radius**2)
    loss = np.clip(1 - rho * table, 0, 1)
    deviation = loss.mean() - loss[:n].mean()
    finite = 3 * math.sqrt(math.log(2 / delta) / (2 * n))
    printed, right = 2 * radius / math.sqrt(n) + finite, 2 * rho * radius / math.sqrt(n) + finite
    assert printed < deviation < right
    for value in (deviation, printed, right):
        assert f"${value:.3f}$" in text
    # no other member of the class does better: a sample of them
    rng = np.random.default_rng(0)
    for _ in range(50):
        other = table + 0.1 * radius / math.sqrt(N) * rng.standard_normal(N) * rng.integers(1, 20)
        loss = np.clip(1 - rho * other * radius / np.linalg.norm(other), 0, 1)
        assert loss.mean() - loss[:n].mean() <= deviation * (1 + 1e-12)
