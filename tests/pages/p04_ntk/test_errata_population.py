"""Errata of page 4, the population kernel: every number computed again, looked up in its entry."""

from __future__ import annotations

import numpy as np
import pytest
from errata_page import entry, listed, relu

VARIANCE = 0.08
EDGE = (8 * VARIANCE) ** 0.5


def dual(x: np.ndarray) -> np.ndarray:
    """Return Q(x)."""
    x = np.clip(x, -1, 1)
    return (np.sqrt(1 - x**2) + x * (np.pi - np.arccos(x))) / np.pi


def sphere_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Return inputs of length √d as rows."""
    X = np.random.default_rng(seed).standard_normal((n, d))
    return d**0.5 * X / np.linalg.norm(X, axis=1, keepdims=True)


def unit_moments(X: np.ndarray) -> np.ndarray:
    S = X @ X.T / X.shape[1]
    np.fill_diagonal(S, 1.0)
    return S


def kernels(S: np.ndarray, depth: int) -> list[np.ndarray]:
    """Return K^(0), …, K^(depth) by Definition 1."""
    found = [np.zeros_like(S)]
    for _ in range(depth):
        L = VARIANCE * found[-1] + S
        root = np.sqrt(np.diag(L))
        size = np.outer(root, root)
        cosine = L / size
        np.fill_diagonal(cosine, 1.0)
        found.append(size * dual(cosine))
    return found


def layers(m: int, X: np.ndarray, depth: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return W, U and Z^(0), …, Z^(depth) with rows as samples."""
    rng, d = np.random.default_rng(seed), X.shape[1]
    W = rng.standard_normal((m, m)) * (2 * VARIANCE / m) ** 0.5
    U = rng.standard_normal((m, d)) * (2 / d) ** 0.5
    states = [np.zeros((len(X), m))]
    for _ in range(depth):
        states.append(relu(states[-1] @ W.T + X @ U.T))
    return W, U, np.array(states)


def powers(values: list[float]) -> str:
    """Return numbers as a·10^b, as the page writes them."""
    parts = []
    for value in values:
        b = int(np.floor(np.log10(value)))
        parts.append(f"{value / 10.0**b:.1f}\\cdot10^{{{b}}}")
    return ", ".join(parts)


def test_ling2023_l6() -> None:
    text = entry("errata-ling2023-l6")
    S = unit_moments(sphere_rows(6, 10))
    K = kernels(S, 4)
    s = [sum(VARIANCE**k for k in range(depth)) for depth in range(5)]
    right, printed, off = S, S, []
    for depth in range(2, 5):
        right = (1 - 1 / s[depth]) * dual(right) + S / s[depth]
        printed = (1 - 1 / s[depth - 1]) * dual(printed) + S / s[depth - 1]
        assert np.abs(s[depth] * dual(right) - K[depth]).max() < 1e-12
        off.append(float(np.abs(s[depth] * dual(printed) - K[depth]).max()))
    assert f"${powers(off)}$" in text
    cosine = (VARIANCE * K[1] + S) / (VARIANCE + 1)
    below = (VARIANCE * K[1] + S) / (VARIANCE * K[1] + 1)
    assert f"by {np.abs(cosine - below).max():.3f}" in text


def test_ling2023_l7() -> None:
    text, n = entry("errata-ling2023-l7"), 6
    K = kernels(unit_moments(sphere_rows(n, 10)), 60)
    depths = (1, 2, 4, 8)
    gaps = [float(np.linalg.norm(K[-1] - K[depth])) for depth in depths]
    scaled = [g * (1 - VARIANCE) / VARIANCE**k for g, k in zip(gaps, depths)]
    assert all(n**0.5 <= value <= n for value in scaled)
    assert f"${powers(gaps)}$" in text
    assert f"${listed(scaled, 2)}$" in text
    assert f"$\\sqrt n={n**0.5:.2f}$" in text
    assert f"${powers([n * k**0.5 * VARIANCE ** (k / 2) for k in depths])}$" in text


def reconstruction(depth: int, *, printed: bool, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return M, h, h' and the layers of one pair, m = 200 and d = 7."""
    m, d = 200, 7
    X = sphere_rows(2, d)
    W, U, Z = layers(m, X, depth + 1, seed)
    V = np.linalg.qr(Z[1:depth].reshape(-1, m).T)[0] if depth > 1 else np.zeros((m, 0))
    p, q = (z - V @ (V.T @ z) for z in Z[depth])
    last = q if printed else q - (p @ q) / (p @ p) * p
    basis = np.column_stack([V, p / np.linalg.norm(p), last / np.linalg.norm(last)])
    root = (VARIANCE / m) ** 0.5
    M = np.hstack([W @ basis / root, d**0.5 * U])
    tails = ([np.linalg.norm(p), 0.0], [p @ q / np.linalg.norm(p), np.linalg.norm(last)])
    h, other = (
        np.concatenate([root * (V.T @ z), root * np.array(tail), x / d**0.5])
        for z, tail, x in zip(Z[depth], tails, X)
    )
    return M, h, other, Z


def test_ling2023_l8() -> None:
    text, off = entry("errata-ling2023-l8"), []
    for depth in range(1, 5):
        for printed in (True, False):
            M, h, other, Z = reconstruction(depth, printed=printed)
            target = Z[depth + 1][0] @ Z[depth + 1][1]
            gap = abs(float(relu(M @ h) @ relu(M @ other)) - target) / target
            if printed:
                off.append(gap)
            else:
                assert gap < 1e-13
                assert M.shape[1] == 2 * depth + 7
    assert f"${powers(off)}$" in text
    means = []
    for seed in range(20):
        M, _, _, Z = reconstruction(2, printed=False, seed=seed)
        along = M[:, 0] * np.sign(Z[1][0] @ np.linalg.qr(Z[1].T)[0][:, 0])
        means.append((along.mean(), along[Z[2][0] > 0].mean()))
    whole, given = np.mean(means, axis=0)
    assert f"mean {whole:.3f}" in text
    assert f"it is {given:.2f}" in text


def test_ling2023_l9() -> None:
    text, n, depths = entry("errata-ling2023-l9"), 6, (1, 2, 4, 8, 16)
    X = sphere_rows(n, 10)
    K = kernels(unit_moments(X), 16)
    for m in (100, 400):
        errors = []
        for seed in range(1, 11):
            Z = layers(m, X, 16, seed)[2]
            errors.append([float(np.linalg.norm(Z[k] @ Z[k].T / m - K[k])) for k in depths])
        assert f"$m={m}$: ${listed(list(np.mean(errors, axis=0)), 2)}$" in text
    assert f"${listed([n * EDGE**k for k in depths], 2)}$" in text


def test_ling2023_l10() -> None:
    text, t, n = entry("errata-ling2023-l10"), 0.1, 10
    ratios, depths = (10.0, 1e2, 1e4, 1e8), []
    quotients = []
    for ratio in ratios:
        depth = np.log(ratio) / np.log(1 / EDGE)
        # n² exp(-m(8σ_w²)^ℓ + ℓ²) = t, with (8σ_w²)^ℓ = (λ_*/n)²
        assert EDGE ** (2 * depth) == pytest.approx(ratio**-2)
        depths.append(float(depth))
        quotients.append(float((depth**2 + np.log(n**2 / t)) / np.log(ratio / t)))
    assert f"${listed(depths, 0)}$" in text
    assert f"${listed(quotients, 0)}$" in text
