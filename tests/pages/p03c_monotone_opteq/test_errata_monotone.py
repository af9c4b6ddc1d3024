"""Errata of page 3c, the monotone DEQ: every number computed again and looked up in its entry."""

from __future__ import annotations

import numpy as np
import pytest
from errata_page import entry, norm, smallest, state
from scipy.optimize import brentq


def balls(A: float, U: float, a: float, mu: float, radii: tuple[float, ...]) -> list[float]:
    """Return the four numbers of (3.8) and (3.16) for R_A, R_B, R_U, R_a."""
    twice = 2 * U * a / mu**2
    return [b / r for b, r in zip((twice * A, twice, a / mu, U / mu), radii)]


def monotone_step(
    parameters: tuple[np.ndarray, ...], mu: float, X: np.ndarray, y: np.ndarray, eta: float
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """Return the parameters after one step of descent, and the states and errors before it."""
    A, B, U, a = parameters
    eye = np.eye(len(A))
    W = (1 - mu) * eye - A.T @ A + B - B.T
    Z = state(W, U @ X)
    e = a @ Z - y
    on = (W @ Z + U @ X > 0).astype(float)
    V = np.column_stack([d * np.linalg.solve(eye - W.T * d, a) for d in on.T])
    G = (V * e) @ Z.T
    slopes = (-A @ (G + G.T), G - G.T, (V * e) @ X.T, Z @ e)
    return tuple(p - eta * s for p, s in zip(parameters, slopes)), Z, e


def test_nguyen_e11() -> None:
    text, rng, worst = entry("errata-nguyen-e11"), np.random.default_rng(0), 0.0
    for _ in range(1000):
        mu = rng.uniform(0.05, 1.5)
        A, B = 0.3 * rng.standard_normal((2, 6, 6))
        U, X = rng.standard_normal((6, 4)), rng.standard_normal((4, 3))
        Z = state((1 - mu) * np.eye(6) - A.T @ A + B - B.T, U @ X)
        size = (np.linalg.norm(X) * norm(U)) ** 2
        worst = max(worst, 3 * (smallest(Z) * mu) ** 2 / size)
    assert worst <= 1
    assert f"at most ${worst:.2f}$" in text
    mu, zero, y = 0.1, np.zeros((2, 2)), 1e-4 * np.array([1.0, -1.0])
    x, e0, lam = 2**0.5, norm(y[None]), 10.0
    bar_A, bar_U, bar_a = 0.1, 1.1, 0.02
    total = bar_a**2 * (1 + 4 * bar_U**2 * (1 + bar_A**2)) + bar_U**2
    needs = (
        8 * x * e0 * max(balls(bar_A, bar_U, bar_a, mu, (0.1, 0.1, 0.1, 0.02))) / lam**2,
        8 * x**2 * e0 * bar_a * (1 + (6 * bar_A**2 + 4) * bar_U**2) / lam**3,
        20 * x**2 * total / lam**2,
    )
    assert f"${needs[0]:.4f}$, ${needs[1] * 1e7:.1f}\\cdot10^{{-7}}$ and ${needs[2]:.2f}$" in text
    steps = (
        4 / lam**2,
        1 / (x**2 * total),
        0.5 / (x * lam * bar_U * bar_a * bar_A),
        1 / (6 * (lam * bar_a * bar_A) ** 2),
    )
    assert min(steps) == steps[0] == pytest.approx(0.04)
    now, losses = (zero, zero, np.eye(2), np.zeros(2)), []
    for _ in range(5):
        now, Z, e = monotone_step(now, mu, np.eye(2), y, 0.04)
        losses.append(0.5 * e @ e)
        if len(losses) == 1:
            assert smallest(Z) == pytest.approx(lam)
    factors = np.array(losses[1:]) / losses[:-1]
    assert {f"{f:.2f}" for f in factors} == {"9.00"}
    assert "multiplied by $9.00$ in each of the first four steps" in text


def test_nguyen_e12() -> None:
    text, y, R_U = entry("errata-nguyen-e12"), 0.01, 0.1
    bar_U = 1 + R_U
    R_a = 4 * y * bar_U
    assert f"$R_a={R_a:.3f}$" in text
    a = brentq(lambda a: a * (1 + a * a) ** 0.5 - y, 0, 1)  # âU = y with U² = 1 + a²
    assert f"$a={a:.4f}$" in text
    printed, right = 4 * y * R_a, 4 * y * bar_U
    assert f"printed bound is ${printed:.4f}$, the right one ${right:.3f}$" in text
    assert printed < a <= right
    one = np.ones((1, 1))
    now: tuple[np.ndarray, ...] = (0 * one, 0 * one, one, np.zeros(1))
    for _ in range(2000):  # Euler's method for the flow
        now, *_ = monotone_step(now, 1.0, one, np.array([y]), 0.01)
    assert now[3][0] == pytest.approx(a, rel=1e-4)
    assert now[0][0, 0] == now[1][0, 0] == 0


def test_nguyen_e13() -> None:
    Z = np.array([[1.0, 0, 0], [0, 2, 0]])
    assert smallest(Z) == 1
    assert np.linalg.eigvalsh(Z @ Z.T)[0] == pytest.approx(1)
    assert np.linalg.eigvalsh(Z.T @ Z)[0] == pytest.approx(0)


def test_nguyen_e14() -> None:
    text, eta, C, lam = entry("errata-nguyen-e14"), 1, 1, 2
    square = (eta * C + eta**2 * lam**2 * C) ** 2
    first = [C**2, 2 * eta**3 * lam**2 * C**2]
    printed = [sum(first) + eta**4 * lam**p * C**2 for p in (1, 2)]
    assert f"the square is {square}, the printed expansions give {printed[0]} and" in text
    assert f"{printed[1]}. And" in text
    rng = np.random.default_rng(0)
    A, B = 0.05 * rng.standard_normal((2, 4, 4))
    U = np.vstack([np.eye(3), 0.2 * np.ones(3)]) + 0.02 * rng.standard_normal((4, 3))
    a = rng.standard_normal(4)
    a, aim, X, small = a / np.linalg.norm(a), rng.standard_normal(3), np.eye(3), 1e-3
    y = a @ state(-A.T @ A + B - B.T, U) + 1e-3 * aim / np.linalg.norm(aim)
    after, Z, e = monotone_step((A, B, U, a), 1.0, X, y, small)
    _, Z1, _ = monotone_step(after, 1.0, X, y, small)
    second = abs(after[3] @ (Z1 - Z) @ e) / (0.5 * e @ e)
    bar_A, bar_U, bar_a = norm(A) + 0.2, norm(U) + 0.1, 1.1
    C1 = 3 * bar_a**2 * (1 + 4 * bar_U**2 * (1 + bar_A**2))
    inner = C1 + small * smallest(Z) ** 2 * 3 * (bar_U * bar_a * bar_A) ** 2 / 4
    assert f"${second / (2 * small * inner):.3f}$ of the bound with $2\\eta$" in text
    assert f"and {second / (small**2 * inner):.0f} times" in text


def test_nguyen_e16b() -> None:
    text, eta, lam = entry("errata-nguyen-e16b"), 0.01, 0.5
    total = eta / (1 - (1 - eta * lam**2 / 4) ** 0.5)
    assert f"is ${total:.2f}$. The bound $8/\\sigma_Z^2$ is {8 / lam**2:.0f};" in text
    assert 8 < total <= 8 / lam**2


def test_nguyen_e18() -> None:
    text = entry("errata-nguyen-e18")
    zero, U, y = np.zeros((2, 2)), np.eye(3)[:2], np.array([0, 0, 0.01])
    now, Z, e = monotone_step((zero, zero, U, np.zeros(2)), 1.0, np.eye(3), y, 1.0)
    assert np.linalg.svd(Z, compute_uv=False) == pytest.approx([1, 1])
    assert Z[:, 2] == pytest.approx([0, 0])
    assert all(np.array_equal(p, q) for p, q in zip(now, (zero, zero, U, np.zeros(2))))
    x, e0, bar_A, bar_U, bar_a = 3**0.5, norm(e[None]), 0.2, 1.1, 0.08
    needs = [4 * x * e0 * b for b in balls(bar_A, bar_U, bar_a, 1.0, (0.2, 0.2, 0.1, 0.08))]
    needs.append(8 * x**2 * e0 * bar_a * (1 + 4 * (bar_A**2 + 1) * bar_U**2))
    assert f"at most ${max(needs):.2f}$ times" in text
