"""Errata of page 3a, linear rates: every number computed again and looked up in its entry."""

from __future__ import annotations

import numpy as np
from errata_page import entry, listed, norm


def test_nguyen_e6() -> None:
    text = entry("errata-nguyen-e6")
    beta, x, y = 2.0, 1.0, 0.0  # f = x²/2, f' = x: any β ≥ 1 is a smoothness constant
    inner, square = (x - y) * (x - y), (x - y) ** 2 / beta
    assert inner > square
    assert f"says ${inner:.0f}\\le{square:.1f}$" in text
    second = -20.0  # of -10x²
    assert second <= 1 < abs(second)
    assert f"$f''={second:.0f}\\le1$" in text
    assert f"Lipschitz constant {abs(second):.0f}, not 1" in text


def test_nguyen_e7() -> None:
    text = entry("errata-nguyen-e7")
    rng = np.random.default_rng(0)
    Phi, y = rng.standard_normal((6, 10)), rng.standard_normal(6)
    G, n = Phi @ Phi.T, len(y)
    eta, w = 0.5 / norm(G), np.zeros(10)
    printed, right, bare = [], [], []
    for k in range(61):
        e = Phi @ w - y
        for found, M in ((printed, eta * G), (right, eta / n * G), (bare, G)):
            closed = -np.linalg.matrix_power(np.eye(n) - M, k) @ y
            found.append(np.linalg.norm(e - closed) / np.linalg.norm(y))
        w = w - eta / n * Phi.T @ e
    assert max(right) < 1e-12
    assert f"off by up to {max(printed):.2f} of" in text
    assert f"off by ${bare[4] / 1e4:.1f}\\cdot10^4\\,\\|y\\|$ after four steps" in text


def test_nguyen_e15() -> None:
    text, beta, kappa = entry("errata-nguyen-e15"), 1.0, 0.2
    theta, values = np.array([0.0, 1.0]), []
    for _ in range(4):
        theta = theta - np.array([1.0, 0.2]) * theta / beta
        values.append(0.5 * (theta[0] ** 2 + 0.2 * theta[1] ** 2) / 0.1)
    bounds = [[(1 - c / beta) ** t for t in range(1, 5)] for c in (2 * kappa, kappa)]
    assert f"$f_t/f_0={listed(values, 3)}$" in text
    assert f"${listed(bounds[0], 3)}$ and is violated" in text
    assert f"${listed(bounds[1], 3)}$" in text
    assert all(b < v < c for v, b, c in zip(values, *bounds))


def test_nguyen_e16a() -> None:
    text, start, minimiser = entry("errata-nguyen-e16a"), 0.0, 1.0
    printed = 0.5 * (start - minimiser) ** 2 - minimiser
    assert f"$\\mathcal L(\\theta_0)-\\theta^*={printed:.1f}$, a negative number" in text


def quadratic_path(curvature: np.ndarray, theta: np.ndarray, step: float) -> float:
    """Return the length of descent on ½Σλθ², in units of √(2𝓛_0/κ)."""
    unit = np.sqrt(np.sum(curvature * theta**2) / curvature.min())
    length = 0.0
    for _ in range(20_000):
        move = step * curvature * theta
        length, theta = length + float(np.linalg.norm(move)), theta - move
        if np.linalg.norm(move) < 1e-12:
            return length / unit
    raise AssertionError("descent did not settle")


def test_nguyen_e20() -> None:
    text = entry("errata-nguyen-e20")
    zigzag = quadratic_path(np.ones(2), np.array([1.0, 2.0]), 1.9)
    assert f"{zigzag:.0f} times as long" in text
    assert f"allows {1 / (1 - 1.9 / 2):.0f}:" in text
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(1000):
        curvature = rng.uniform(0.05, 1, 5)
        curvature[0] = 1
        worst = max(worst, quadratic_path(curvature, rng.standard_normal(5), 1.0))
    assert f"is {worst:.3f}." in text


def test_nguyen_e22() -> None:
    text, largest = entry("errata-nguyen-e22"), []
    for end in (1.0, 100.0):
        x = np.linspace(-end, end, 1_000_001)
        largest.append(float(np.abs(2 * x + 3 * np.sin(2 * x)).max()))
    assert largest[0] < 4.75
    assert "stays below 4.75 on $[-1,1]$" in text
    assert f"reaches {largest[1]:.1f} on $[-100,100]$" in text
