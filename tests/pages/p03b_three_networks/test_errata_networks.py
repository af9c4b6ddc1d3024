"""Errata of page 3b, three networks: every number computed again and looked up in its entry."""

from __future__ import annotations

import numpy as np
import pytest
from errata_page import entry, iterate, norm, relu, state
from scipy.special import gammainc


def adjoints(W: np.ndarray, Q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return the columns D(I - WᵀD)⁻¹a at the states of ``state(W, Q)``."""
    on = (W @ state(W, Q) + Q > 0).astype(float)
    eye = np.eye(len(W))
    return np.column_stack([d * np.linalg.solve(eye - W.T * d, a) for d in on.T])


def unit_columns(rng: np.random.Generator, d: int, n: int) -> np.ndarray:
    X = rng.standard_normal((d, n))
    return X / np.linalg.norm(X, axis=0)


def limit_gram(X: np.ndarray) -> np.ndarray:
    """Return E[σ(⟨u,x_i⟩)σ(⟨u,x_j⟩)] for unit columns."""
    rho = np.clip(X.T @ X, -1, 1)
    np.fill_diagonal(rho, 1.0)
    return (np.sqrt(1 - rho**2) + rho * (np.pi - np.arccos(rho))) / (2 * np.pi)


def gao_network(m: int, n: int = 8, d: int = 30) -> tuple[np.ndarray, ...]:
    """Return W, U, a, c and unit inputs as columns."""
    rng = np.random.default_rng(0)
    X = unit_columns(rng, d, n)
    W, U = rng.standard_normal((m, m)), rng.standard_normal((m, d))
    return W, U, rng.choice([-1.0, 1.0], m), rng.choice([-1.0, 1.0], m), X


def gao_states(W: np.ndarray, U: np.ndarray, X: np.ndarray, gamma: float) -> tuple[np.ndarray, ...]:
    m = len(W)
    Phi = relu(U @ X) / m**0.5
    return state(gamma / m**0.5 * W, Phi), Phi


def hadamard(size: int) -> np.ndarray:
    H = np.ones((1, 1))
    while len(H) < size:
        H = np.block([[H, H], [H, -H]])
    return H


def test_gao2022_e3() -> None:
    text = entry("errata-gao2022-e3")
    M = np.array([[1.0, -1.0], [1.0, 1.0]])
    assert f"norm {norm(M):.2f}, its ReLU {norm(relu(M)):.2f}" in text
    n, m, lambda0 = 256, 512, 0.5 - 0.5 / np.pi
    v = (-1.0) ** np.arange(n) / n**0.5
    bent = hadamard(16).ravel()  # (-1)^{x·y}: its Walsh transform is flat
    assert np.abs(hadamard(n) @ bent) == pytest.approx(n**0.5)
    size = 1.001 * (3 * lambda0) ** 0.5
    U = size * np.vstack([hadamard(n), -hadamard(n)]) * (bent * v * n**0.5)
    omega = norm(U) / m**0.5
    R = m**0.5 * lambda0 / (16 * omega)  # ‖X‖ = 1
    move = -np.sign(U) * np.outer(np.sign(U @ v), v)
    new = U + R * move / norm(move)
    G0, G = relu(U).T @ relu(U) / m, relu(new).T @ relu(new) / m
    least = np.linalg.eigvalsh(G0)[0]
    assert least >= 0.75 * lambda0
    assert norm(new) <= 2 * omega * m**0.5
    assert f"$\\omega={omega:.3f}$" in text
    assert f"$\\lambda_G=\\tfrac12-\\tfrac1{{2\\pi}}={lambda0:.4f}$" in text
    assert f"$\\lambda_{{\\min}}(G(0))={least:.4f}\\ge{0.75 * lambda0:.4f}$" in text
    assert f"$\\|G-G(0)\\|={norm(G - G0):.3f}$" in text
    assert f"$\\lambda_G/4={lambda0 / 4:.3f}$" in text
    assert f"$\\lambda_{{\\min}}(G)={np.linalg.eigvalsh(G)[0]:.3f}$" in text
    assert f"$\\lambda_G/2={lambda0 / 2:.3f}$" in text
    assert f"$R={R:.2f}$" in text
    right = m**0.5 * lambda0 / (12 * omega * n)
    assert f"${right:.4f}$" in text
    near = U + right * move / norm(move)
    H = relu(near).T @ relu(near) / m
    assert norm(H - G0) <= lambda0 / 4
    assert f"moves $G$ by {norm(H - G0):.4f}" in text


def test_gao2022_e4_e5() -> None:
    text, m, n = entry("errata-gao2022-e4"), 200, 8
    W, U, a, c, X = gao_network(m)
    lambda0 = np.linalg.eigvalsh(limit_gram(X))[0]
    Z, Phi = gao_states(W, U, X, 0.1)
    omega, e = max(norm(W), norm(U)) / m**0.5, 0.0005 * n**0.5
    bound = 16 * omega * n**0.5 / lambda0 * e
    assert f"$\\lambda_G={lambda0:.3f}$" in text
    assert f"$\\|a(0)\\|={m**0.5:.1f}$" in text
    assert f"the printed bounds are {bound:.2f} and {bound / 2:.2f}" in text
    upper = (8 * omega * n**0.5 / lambda0 * e) ** 2
    lower = 2048 * omega**2 * n * norm(X) ** 2 * e**2 / lambda0**3
    assert np.linalg.eigvalsh(Phi.T @ Phi)[0] >= 0.75 * lambda0
    assert 4 * omega * 0.1 <= 1
    assert bound < m**0.5
    assert lower <= m
    assert f"$m\\le{upper:.2f}$ and $m\\ge{lower:.0f}$" in text
    assert lower / upper == pytest.approx(32 * norm(X) ** 2 / lambda0)
    assert f"$32\\|X\\|^2/\\lambda_G={lower / upper:.0f}$" in text
    text = entry("errata-gao2022-e5")
    error = float(np.linalg.norm(a @ Z + c @ Phi - np.array([1.0, -1.0] * 4)))
    width = (192 * omega * n**1.5 * error / lambda0**2) ** 2
    sharp = (144 * omega * n**0.5 * norm(X) ** 2 * error / lambda0**2) ** 2
    assert f"$\\|X\\|^2={norm(X) ** 2:.2f}$" in text
    for value in (width, sharp):
        power = int(np.floor(np.log10(value)))
        assert f"${value / 10**power:.1f}\\cdot10^{{{power}}}$" in text


def test_gao2022_e6() -> None:
    text, n, eta = entry("errata-gao2022-e6"), 8, 1e-4
    y, measured, first, bounds = np.array([1.0, -1.0] * 4), [], [], []
    for m in (100, 400):
        W, U, a, c, X = gao_network(m)
        scale = 0.1 / m**0.5
        Z, Phi = gao_states(W, U, X, 0.1)
        V = adjoints(scale * W, Phi, a)
        Q = (V + c[:, None]) * (U @ X > 0) / m**0.5
        e = a @ Z + c @ Phi - y
        H = scale**2 * (V.T @ V) * (Z.T @ Z) + (Q.T @ Q) * (X.T @ X)
        W1, U1 = W - eta * scale * (V * e) @ Z.T, U - eta * (Q * e) @ X.T
        a1, c1 = a - eta * Z @ e, c - eta * Phi @ e
        Z1, Phi1 = gao_states(W1, U1, X, 0.1)
        inner = (a1 @ (Z1 - Z) + c1 @ (Phi1 - Phi)) @ e
        measured.append(inner / (eta * e @ e))
        first.append(-(e @ H @ e) / (e @ e))
        size = norm(Z1 - Z) * np.linalg.norm(a1) + norm(Phi1 - Phi) * np.linalg.norm(c1)
        bounds.append(size / (eta * np.linalg.norm(e)))
    assert measured == pytest.approx(first, rel=1e-2)
    assert f"${measured[0]:.2f},\\ {measured[1]:.2f}$".replace("\\ ", " ") in text
    assert f"${bounds[0]:.1f}, {bounds[1]:.1f}$" in text
    lambda0 = np.linalg.eigvalsh(limit_gram(gao_network(100)[4]))[0]
    assert f"$\\lambda_G/2={lambda0 / 2:.2f}$" in text
    assert n == len(y)


def test_gao2022_e9() -> None:
    text = entry("errata-gao2022-e9")
    e0, values, t = np.array([1.0, 2.0]), np.array([0.5, 3.0]), 4.0
    ratio = np.sum((np.exp(-values * t) * e0) ** 2) / np.sum(e0**2)
    assert f"$\\mathcal L(4)/\\mathcal L(0)={ratio:.4f}$" in text
    assert f"$e^{{-2\\lambda t}}={np.exp(-2 * 0.5 * t):.4f}$" in text
    assert f"$e^{{-\\lambda t}}={np.exp(-0.5 * t):.4f}$" in text
    assert ratio <= np.exp(-2 * 0.5 * t)


def test_gao2023_o4() -> None:
    text, Q, a = entry("errata-gao2023-o4"), np.array([[0.5], [1.0]]), np.ones(2)
    found = []
    for eps in (1e-9, -1e-9):
        W = 0.5 * np.array([[0.0, -1 + eps], [0.0, 0.0]])
        Z, V = state(W, Q), adjoints(W, Q, a)
        found.append((Z, V, 0.25 * float(np.sum(V**2) * np.sum(Z**2))))
    (Z, V, H), (Z1, V1, H1) = found
    assert np.abs(Z - Z1).max() < 1e-8
    assert V[:, 0] == pytest.approx([1, 0.5])
    assert V1[:, 0] == pytest.approx([0, 1])
    assert "from $(1,\\tfrac12)$ to $(0,1)$" in text
    assert f"a jump of {np.linalg.norm(V - V1):.2f}" in text
    assert f"from {H:.4f} to {H1:.4f}" in text


def ling_network(m: int, n: int, d: int, variance: float, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return W, U, a and inputs of length √d as columns."""
    rng = np.random.default_rng(seed)
    X = d**0.5 * unit_columns(rng, d, n)
    W = rng.standard_normal((m, m)) * (2 * variance / m) ** 0.5
    U = rng.standard_normal((m, d)) * (2 / d) ** 0.5
    return W, U, rng.standard_normal(m) / m**0.5, X


def ling_constants(
    W: np.ndarray, U: np.ndarray, a: np.ndarray, X: np.ndarray, delta: float
) -> tuple[float, float, float, float]:
    """Return λ_Z, c_w² + c_u², ρ̄_w and ρ̄_a."""
    Z = state(W, U @ X)
    rho_w, rho_u, rho_a = norm(W) + delta, norm(U) + delta, float(np.linalg.norm(a)) + delta
    C = (rho_u * rho_a / (1 - rho_w) ** 2) ** 2 + (rho_a / (1 - rho_w)) ** 2
    return float(np.linalg.eigvalsh(Z.T @ Z)[0]), C, rho_w, rho_a


def test_ling2023_l1() -> None:
    text = entry("errata-ling2023-l1")
    for n in (1, 2, 8):
        ratios, implied = [], []
        for m in (100, 400):
            W, U, a, X = ling_network(m, n, 10, 0.02)
            lambda0, C, rho_w, rho_a = ling_constants(W, U, a, X, 0.1)
            ratios.append(4 * C * np.sum(X**2) / lambda0)
            implied.append(4 * n * rho_a**2 / (1 - rho_w) ** 2)
            assert ratios[-1] >= implied[-1] > 1
        assert f"$n={n}$: {ratios[0]:.0f} and {ratios[1]:.0f}" in text
        assert f"at least {implied[0]:.0f} and {implied[1]:.0f}" in text
    exponent = (np.log(4) - 0.75) / 2
    assert 0.31 <= exponent < 0.32
    assert "e^{-0.31m}" in text
    for m in (1, 10, 100):  # m‖a(0)‖² is chi-squared, and ‖a(0)‖ < ½
        share = float(gammainc(m / 2, m / 8))
        assert share <= np.exp(-exponent * m)
        power = int(np.floor(np.log10(share)))
        told = f"${share / 10.0**power:.1f}\\cdot10^{{{power}}}$ at $m={m}$"
        assert m == 1 or told in text


def test_ling2023_l2() -> None:
    text, n = entry("errata-ling2023-l2"), 4
    products = []
    for m in (50, 100, 200, 400):
        draws = []
        for seed in range(5):
            W, U, a, X = ling_network(m, n, 10, 0.02, seed)
            lambda0, C, _, rho_a = ling_constants(W, U, a, X, 0.1)
            need = 4 * (2 + 2**0.5) * C * np.sum(X**2) * n**0.5 / rho_a
            draws.append(need / lambda0**1.5)
        products.append(float(np.median(draws)) * m**0.5)
    assert "$" + ", ".join(f"{p / 1e4:.1f}" for p in products) + "$" in text
    assert f"$m\\approx{products[-1] ** 2 / 1e8:.0f}\\cdot10^8$" in text


def ling_gradients(
    W: np.ndarray, U: np.ndarray, a: np.ndarray, X: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, ...]:
    Z, R = state(W, U @ X), adjoints(W, U @ X, a)
    e = a @ Z - y
    return (R * e) @ Z.T, (R * e) @ X.T, Z @ e, e, Z, R


def test_ling2023_l4() -> None:
    text = entry("errata-ling2023-l4")
    measured, allowance = [], []
    for m in (100, 400):
        W, U, a, X = ling_network(m, 6, 10, 0.08)
        eta = 1e-4 / m
        gW, gU, ga, e, Z, R = ling_gradients(W, U, a, X, np.array([1.0, -1.0] * 3))
        Z1 = state(W - eta * gW, (U - eta * gU) @ X)
        value = (a - eta * ga) @ (Z1 - Z) @ e / (eta * m * (e @ e))
        H = (R.T @ R) * (Z.T @ Z + X.T @ X)
        assert value == pytest.approx(-(e @ H @ e) / (m * (e @ e)), rel=1e-2)
        measured.append(value)
        allowance.append(np.linalg.eigvalsh(Z.T @ Z)[0] / (4 * m))
    assert f"${measured[0]:.2f}, {measured[1]:.2f}$" in text
    assert f"${allowance[0]:.3f}, {allowance[1]:.3f}$" in text


def test_ling2023_l11() -> None:
    text, n, d = entry("errata-ling2023-l11"), 20, 20
    y, fixed, scaled = np.random.default_rng(1).standard_normal(n), [], []
    for m in (40, 80, 160):
        for results, eta in ((fixed, 1.5e-4), (scaled, 0.024 / m)):
            W, U, a, X = ling_network(m, n, d, 0.08)
            Z = V = np.zeros((m, n))
            for _ in range(60):
                Z = iterate(lambda z, W=W, Q=U @ X: relu(W @ z + Q), Z, 30)
                V = iterate(lambda v, W=W, a=a, D=Z > 0: D * (a[:, None] + W.T @ v), V, 30)
                e = a @ Z - y
                W, U, a = W - eta * (V * e) @ Z.T, U - eta * (V * e) @ X.T, a - eta * Z @ e
            results.append(0.5 * float(e @ e))
    assert "${:.2f}, {:.2f}, {:.2f}$ at the fixed step".format(*fixed) in text
    assert "${:.2f}, {:.2f}, {:.2f}$ with".format(*scaled) in text


def test_ling2023_l13() -> None:
    text, C, T = entry("errata-ling2023-l13"), 1.0, 10.0
    eta = 2 * C / T**2
    assert "$\\|X\\|_F=1$, $C=1$, $T=10$" in text
    for lambda0, words in ((4.0, "$\\lambda_Z=4$ the bracket is {:.2f}"), (8.0, "8$ it is {:.2f}")):
        bracket = 1 - eta * lambda0 + 2 * eta * C + (eta * T) ** 2
        assert words.format(bracket) in text
    assert 1 - eta * 8 / 2 == pytest.approx(0.92)
