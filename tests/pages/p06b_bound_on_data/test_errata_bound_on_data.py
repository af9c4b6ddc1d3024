"""Errata of page 6b, the bound on data: every number computed again and looked up in its entry."""

from __future__ import annotations

from math import ceil, log, sqrt

import numpy as np
import pytest
from errata_page import entry, listed, relu, state


def unit_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    X = rng.standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def dense_network(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return H(0) and the labels minus the first guess, of a dense network with n = 6."""
    n, d, m, gamma = 6, 20, 200, 0.4
    X, W = unit_rows(rng, n, d), gamma / m**0.5 * rng.standard_normal((m, m))
    Phi = relu(rng.standard_normal((m, d)) @ X.T) / m**0.5
    a, y = rng.choice([-1.0, 1.0], m), rng.choice([-1.0, 1.0], n)
    Z = state(W, Phi)
    on = (W @ Z + Phi > 0).astype(float)
    V = np.column_stack([s * np.linalg.solve(np.eye(m) - W.T * s, a) for s in on.T])
    return gamma**2 / m * (V.T @ V) * (Z.T @ Z), y - a @ Z


def test_gao2023_o7() -> None:
    text = entry("errata-gao2023-o7")
    H, r = dense_network(np.random.default_rng(0))
    n = len(r)

    def terms(K: np.ndarray) -> tuple[float, float, float]:
        lam, Q = np.linalg.eigh(K)
        along = np.abs(Q.T @ r)
        printed = sqrt((along**2 / lam**2).sum() / n)
        middle = (along / lam**0.5).sum() / n**0.5
        return sqrt(r @ np.linalg.solve(K, r) / n), printed, middle

    root, printed, middle = terms(H)
    assert root <= middle
    assert f"${listed([root, printed], 2)}$" in text
    assert f"the right second form ${middle:.2f}$" in text
    root, printed, middle = terms(100 * H)
    assert printed < root <= middle
    assert f"For $100H$: ${listed([root, printed], 3)}$" in text
    lam = np.linalg.eigvalsh(H)
    assert lam.sum() == pytest.approx(np.trace(H), rel=1e-12)
    assert f"${listed([lam.sum(), np.linalg.norm(H)], 4)}$" in text
    flat = np.full(n, lam.mean())  # equal eigenvalues: 2‖r‖/√n whatever the direction
    for direction in np.random.default_rng(1).standard_normal((5, n)):
        s = direction / np.linalg.norm(direction)
        term = 2 * sqrt((s**2 / flat).sum() * flat.sum()) / n
        assert term == pytest.approx(2 / sqrt(n))


def diagonal_start(
    rng: np.random.Generator, m: int, *points: np.ndarray, gamma: float = 0.4
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return states, adjoints and first guesses of the network with diagonal W(0)."""
    d = points[0].shape[1]
    w, U, a = rng.standard_normal(m), rng.standard_normal((m, d)), rng.choice([-1.0, 1.0], m)
    loop = 1 - gamma / sqrt(m) * w
    assert loop.min() > 0
    found = []
    for X in points:
        phi = relu(X @ U.T) / sqrt(m)
        Z, V = phi / loop, a * (phi > 0) / loop
        assert np.abs(Z - relu(gamma / sqrt(m) * w * Z + phi)).max() < 1e-12
        found.append((Z, V, Z @ a))
    return found


def kernel(
    m: int, rows: tuple[np.ndarray, ...], columns: tuple[np.ndarray, ...], gamma: float = 0.4
) -> np.ndarray:
    return gamma**2 / m * (rows[1] @ columns[1].T) * (rows[0] @ columns[0].T)


def test_gao2023_o11() -> None:
    text, errors, bounds = entry("errata-gao2023-o11"), [], []
    for n in (100, 200, 400, 800):
        rng = np.random.default_rng(n)
        X, X_test = unit_rows(rng, n, n), unit_rows(rng, 400, n)
        at, off = diagonal_start(rng, 2 * n, X, X_test)
        H, k = kernel(2 * n, at, at), kernel(2 * n, off, at)
        f = off[2] - k @ np.linalg.solve(H, at[2])  # labels 0
        errors.append(float(np.minimum(np.abs(f), 1).mean()))
        bounds.append(3 * sqrt(log(n / 0.05) / (2 * n)))  # printed: log(n/δ)
    assert errors[-1] > 1.25 * bounds[-1]
    assert f"${listed(errors, 2)}$" in text
    assert f"${listed(bounds, 2)}$" in text
    rng = np.random.default_rng(0)
    X, beta = unit_rows(rng, 160, 20), rng.standard_normal(20)
    y = X @ (beta / np.linalg.norm(beta))
    (at,) = diagonal_start(rng, 1000, X)
    inverse = np.linalg.inv(kernel(1000, at, at))
    parts = [float(s @ inverse @ s) / 160 for s in (y - at[2], y, at[2])]
    assert parts[0] > 5 * parts[1]
    assert f"${listed(parts, 2)}$" in text


def test_gao2023_o14() -> None:
    text, n, delta, B = entry("errata-gao2023-o14"), 800, 0.05, 33.0

    def total(radius: float, share: float) -> float:
        return 0.5 * radius / B + 3 * sqrt(log(2 / share) / (2 * n))

    def chosen(q: float) -> float:
        j = ceil(log(B) / log(q))
        assert q ** (j - 1) < B <= q**j
        return total(q**j, delta / ((j + 1) * (j + 2)))

    values = [total(B, delta), chosen(2.0), chosen(2 ** (1 / 32))]
    assert f"${listed(values, 2)}$" in text
    shares = [1 / ((j + 1) * (j + 2)) for j in range(10_000)]
    assert sum(shares) == pytest.approx(1, abs=2e-4)
    # the other example: a feature made from the labels, on coins
    rng, n = np.random.default_rng(0), 400
    X, X_test = unit_rows(rng, n, 20), unit_rows(rng, n, 20)
    y, y_test = rng.choice([-1.0, 1.0], n), rng.choice([-1.0, 1.0], n)

    def limit(P: np.ndarray, Q: np.ndarray) -> np.ndarray:
        rho = np.clip(P @ Q.T, -1, 1)
        angle = np.pi - np.arccos(rho)
        return 0.16 * angle * (np.sqrt(1 - rho**2) + rho * angle) / (2 * np.pi) ** 2

    H, k = limit(X, X), limit(X_test, X)
    g = k @ np.linalg.solve(H, y)
    c = 100 * H[0, 0]
    H, k = H + c * np.outer(y, y), k + c * np.outer(g, y)
    alpha = np.linalg.solve(H, y)
    error = float(np.minimum(np.abs(k @ alpha - y_test), 1).mean())
    radius = max(1.0, sqrt(y @ alpha))
    bound = 2 * radius * sqrt(np.trace(H)) / n + 3 * sqrt(log(2 * 2 / delta) / (2 * n))
    assert radius == 1.0
    assert error > bound
    assert f"{bound:.2f}, and the error is {error:.2f}" in text


def one_step(m: int, *, linear: bool) -> tuple[float, float, float]:
    """Return for a step of 1e-6: units on a kink, how far Δŷ/h is from -H(0)e, how far H moves."""
    rng, n, d, gamma, h = np.random.default_rng(0), 8, 20, 0.4, 1e-6
    X = unit_rows(rng, n, d)
    w, U, a = rng.standard_normal(m), rng.standard_normal((m, d)), rng.choice([-1.0, 1.0], m)
    Phi = U @ X.T / m**0.5
    Phi = Phi if linear else relu(Phi)
    W = gamma / m**0.5 * np.diag(w)

    def look(W: np.ndarray) -> tuple[np.ndarray, ...]:
        Z = relu(Phi)
        for _ in range(200):
            Z = relu(W @ Z + Phi)
        on = (W @ Z + Phi > 0).astype(float)
        V = np.column_stack([s * np.linalg.solve(np.eye(m) - W.T * s, a) for s in on.T])
        return Z, V, a @ Z, gamma**2 / m * (V.T @ V) * (Z.T @ Z)

    Z, V, out, H = look(W)
    e = out - 1
    after = look(W - h * gamma**2 / m * (V * e) @ Z.T)
    speed = (after[2] - out) / h + H @ e
    return (
        float((W @ Z + Phi == 0).mean()),
        float(np.linalg.norm(speed) / np.linalg.norm(H @ e)),
        float(np.linalg.norm(after[3] - H) / np.linalg.norm(H)),
    )


def test_gao2023_o15() -> None:
    text = entry("errata-gao2023-o15")
    widths = (100, 300, 900)
    kinks, speeds, moves = (list(one) for one in zip(*(one_step(m, linear=False) for m in widths)))
    assert f"${listed(kinks, 2)}$" in text
    assert f"${listed(speeds, 2)}$" in text
    assert f"${listed(moves, 2)}$" in text
    assert min(moves) > 0.5
    for m in (100, 300):
        share, speed, move = one_step(m, linear=True)
        assert share == 0
        assert max(speed, move) < 1e-3
