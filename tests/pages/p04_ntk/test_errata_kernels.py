"""Errata of page 4, tangent kernels: every number computed again and looked up in its entry."""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest
from errata_page import entry, listed, norm, off, relu, slopes, state
from scipy.integrate import quad


def adjoints(W: np.ndarray, Q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return the columns D(I - WᵀD)⁻¹a at the states of ``state(W, Q)``."""
    on = (W @ state(W, Q) + Q > 0).astype(float)
    return np.column_stack([d * np.linalg.solve(np.eye(len(W)) - W.T * d, a) for d in on.T])


def unit_columns(rng: np.random.Generator, d: int, n: int) -> np.ndarray:
    X = rng.standard_normal((d, n))
    return X / np.linalg.norm(X, axis=0)


def limit_gram(X: np.ndarray) -> np.ndarray:
    """Return E[σ(⟨u,x_i⟩)σ(⟨u,x_j⟩)] for unit columns."""
    rho = np.clip(X.T @ X, -1, 1)
    return (np.sqrt(1 - rho**2) + rho * (np.pi - np.arccos(rho))) / (2 * np.pi)


def relu_coefficients(order: int) -> np.ndarray:
    a = np.zeros(order + 1)
    a[:2] = (2 * np.pi) ** -0.5, 0.5
    for k in range(0, order - 1, 2):
        a[k + 2] = -a[k] * (k - 1) / ((k + 1) * (k + 2)) ** 0.5
    return a


def test_gao2022_e1() -> None:
    text, rng = entry("errata-gao2022-e1"), np.random.default_rng(0)
    m, n, d, gamma = 12, 4, 3, 0.2
    X = unit_columns(rng, d, n)
    W, U = rng.standard_normal((m, m)), rng.standard_normal((m, d))
    a, c = rng.choice([-1.0, 1.0], m), rng.choice([-1.0, 1.0], m)
    scale = gamma / m**0.5

    def predict(W: np.ndarray, U: np.ndarray) -> np.ndarray:
        Phi = relu(U @ X) / m**0.5
        return a @ state(scale * W, Phi) + c @ Phi

    Phi = relu(U @ X) / m**0.5
    Z, V = state(scale * W, Phi), adjoints(scale * W, Phi, a)
    assert min(np.abs(scale * W @ Z + Phi).min(), np.abs(U @ X).min()) > 1e-4
    paths = (U @ X > 0) * (V + c[:, None])
    J_W, J_U = slopes(lambda t: predict(t, U), W), slopes(lambda t: predict(W, t), U)
    exact = J_W @ J_W.T + J_U @ J_U.T + Z.T @ Z + Phi.T @ Phi
    rest = paths.T @ paths / m * (X.T @ X) + Phi.T @ Phi
    errors = [
        off((gamma**2 * V.T @ V / m + J) * (Z.T @ Z) + rest, exact)
        for J in (np.eye(n), np.ones((n, n)))
    ]
    assert f"is {errors[0]:.2f} with $I_n$" in text
    assert errors[1] < 1e-8


def test_gao2022_e7() -> None:
    text = entry("errata-gao2022-e7")
    used = np.log(2**0.5) ** 0.5
    assert f"$\\lambda=\\sqrt{{\\log\\sqrt2}}={used:.3f}$" in text
    for size, name in ((0.65, "0.65"), (0.7, "0.7"), (used, "0.589")):
        left, right = (1 - 2 * size**2) ** -0.5, np.exp(2 * size**2)
        assert f"${left:.3f}$ and ${right:.3f}$ at $\\lambda={name}$" in text
    grid = np.linspace(1e-4, 0.707, 70000)
    holds = (1 - 2 * grid**2) ** -0.5 <= np.exp(2 * grid**2)
    edge = grid[np.argmin(holds)]
    assert holds[grid < edge].all()
    assert f"$|\\lambda|\\le{edge:.3f}$" in text
    s = np.linspace(0, 8, 400)
    tail = np.array([quad(lambda x: np.exp(-(x**2) / 2), t, 40)[0] for t in s]) / (2 * np.pi) ** 0.5
    assert (tail <= 2 * np.exp(-(s**2) / 4)).all()
    # the constant 52 of the explicit width: λ_G ≤ ½ and n ≥ 2
    assert (3 / 52) ** 0.5 + 2 * 0.5 / (52 * 2) <= 0.25


def test_gao2022_e8() -> None:
    text, least = entry("errata-gao2022-e8"), []
    for k in (1, 2, 3):
        t = np.pi * np.arange(k) / k
        half = np.stack([np.cos(t), np.sin(t)])
        least.append(np.linalg.eigvalsh(limit_gram(np.hstack([half, -half])))[0])
    assert f"is ${least[0]:.3f}$ for $k=1$, ${least[1]:.3f}$ for $k=2$" in text
    assert abs(least[2]) < 1e-12


def test_gao2022_e9b() -> None:
    text, a, rng = entry("errata-gao2022-e9b"), relu_coefficients(400), np.random.default_rng(0)
    assert f"${','.join(f'{v:.4f}' for v in a[2:9:2])}$" in text
    assert (np.sign(a[4::2]) == -np.sign(a[2:-2:2])).all()
    for k in (2, 4, 8):
        h = np.polynomial.hermite_e.HermiteE.basis(k)
        value = quad(lambda x, h=h: x * h(x) * np.exp(-(x**2) / 2), 0, 12)[0]
        assert a[k] == pytest.approx(value / (2 * np.pi * factorial(k)) ** 0.5, abs=1e-10)
    X, U = unit_columns(rng, 5, 3), rng.standard_normal((400, 5))
    S = relu(U @ X).T @ relu(U @ X)
    assert f"has norm {norm(S):.0f}, $G^\\infty$ has norm {norm(limit_gram(X)):.2f}" in text


def test_gao2022_e11() -> None:
    text = entry("errata-gao2022-e11")
    u, w = np.polynomial.laguerre.laggauss(100)
    for j in range(4):
        assert ((1 - 1j) ** (4 * j + 4)).imag == 0
        assert abs(w @ (u ** (4 * j + 3) * np.sin(u))) < 1e-9 * factorial(4 * j + 3)

    def square(x: float) -> float:
        t = x**0.25
        return float((2 * np.pi) ** 0.5 * np.exp(x**2 / 2 - 2 * t) * np.sin(t) ** 2)

    found = []
    for R in (4, 7, 10):
        value = quad(square, 0, R)[0]
        power = int(np.floor(np.log10(value)))
        exponent = f"{power}" if power < 10 else f"{{{power}}}"
        found.append(f"{value / 10**power:.0f}\\cdot10^{exponent}")
    assert f"${found[0]}$, ${found[1]}$ and ${found[2]}$" in text


def test_gao2022_e12() -> None:
    text, a = entry("errata-gao2022-e12"), relu_coefficients(1)
    gap = 0.5 - float(a @ a)
    assert gap == pytest.approx(0.25 - 0.5 / np.pi)
    assert f"={gap:.4f}$" in text
    assert f"${gap**0.5 * 0.5**0.5:.4f}$" in text


def test_gao2023_o8() -> None:
    text, least, bounds = entry("errata-gao2023-o8"), [], []
    for seed in range(3):
        rng, (m, n, d) = np.random.default_rng(seed), (100, 6, 20)
        X, W = unit_columns(rng, d, n), 0.4 / m**0.5 * rng.standard_normal((m, m))
        Phi, a = relu(rng.standard_normal((m, d)) @ X) / m**0.5, rng.choice([-1.0, 1.0], m)
        Z, V = state(W, Phi), adjoints(W, Phi, a)
        scale = 0.4**2 / m
        least.append(scale * np.linalg.eigvalsh((V.T @ V) * (Z.T @ Z))[0])
        bounds.append(scale * (V**2).sum(0).min() * np.linalg.eigvalsh(Z.T @ Z)[0])
    assert all(b <= v for b, v in zip(bounds, least))
    assert f"${listed(least, 4)}$" in text
    assert f"${listed(bounds, 4)}$" in text
    rng, (m, n, d), above = np.random.default_rng(0), (4, 3, 5), 0
    for _ in range(400):
        X, W = unit_columns(rng, d, n), 0.3 / m**0.5 * rng.standard_normal((m, m))
        Phi, a = relu(rng.standard_normal((m, d)) @ X) / m**0.5, rng.choice([-1.0, 1.0], m)
        assert norm(W) < 1
        Z, V = state(W, Phi), adjoints(W, Phi, a)
        D = (W @ Z + Phi > 0).astype(float)
        size = max(norm(np.eye(m) - on[:, None] * W) for on in D.T)  # ‖Q‖, Q block diagonal
        gap = (V.T @ V - D.T @ D / size**2) * (Z.T @ Z)
        above += np.linalg.eigvalsh(gap)[0] < -1e-9
    assert f"in {above} of 400 draws" in text


def test_gao2023_o9() -> None:
    text, rng, shares = entry("errata-gao2023-o9"), np.random.default_rng(0), []
    for m in (2, 3, 5, 8):
        dead = 0
        for _ in range(400):
            X, W = unit_columns(rng, 5, 3), 0.2 / m**0.5 * rng.standard_normal((m, m))
            Phi, a = relu(rng.standard_normal((m, 5)) @ X) / m**0.5, rng.choice([-1.0, 1.0], m)
            Z, V = state(W, Phi), adjoints(W, Phi, a)
            H = (V.T @ V) * (Z.T @ Z)
            if not Phi[:, 0].any():  # no unit fires on the first input
                assert H[0, 0] == 0
            dead += np.linalg.eigvalsh(H)[0] < 1e-12
        shares.append(dead / 400)
    assert f"${listed(shares, 2)}$" in text
