"""Errata of chapter 2: every number computed again and looked up in its entry."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from errata_page import entry, norm, off, pattern, relu, slopes, state, swap, vec

I2 = np.eye(2)


def test_gao2023_o3() -> None:
    text, m, n = entry("errata-gao2023-o3"), 10, 4
    rng = np.random.default_rng(0)
    W, U, X = rng.standard_normal((m, m)), rng.standard_normal((m, 3)), rng.standard_normal((3, n))
    a, scale = rng.choice([-1.0, 1.0], m), 0.3 / m**0.5
    Phi = relu(U @ X / np.linalg.norm(X, axis=0))
    patterns = np.diag(pattern(scale * W, Phi)).reshape(m, n, order="F").T

    def inverse(W: np.ndarray, d: np.ndarray) -> np.ndarray:
        return d[:, None] * np.linalg.inv(np.eye(m) - scale * W.T * d)

    def adjoints(W: np.ndarray) -> np.ndarray:
        on = (scale * W @ state(scale * W, Phi) + Phi > 0).T
        return np.array([inverse(W, d) @ a for d in on.astype(float)])

    V = adjoints(W)
    units = [e.reshape(m, m, order="F") for e in np.eye(m * m)]
    right = np.stack(
        [[scale * inverse(W, d) @ dW.T @ v for d, v in zip(patterns, V)] for dW in units], axis=-1
    )
    assert off(right, slopes(adjoints, W)) < 1e-8
    # the source's layout: an n×m array, vec stacks its columns, A = Wᵀ
    D = np.diag(vec(patterns))
    Q = np.eye(n * m) - scale * D @ np.kron(W, np.eye(n))
    middle, B = D @ np.linalg.inv(Q.T), np.kron(a[:, None], np.eye(n))
    operator = np.kron((middle @ B).T, middle)
    printed = operator.T  # one row per entry of the variable, as the source defines a derivative
    assert printed.shape == ((n * m) ** 2, n * n * m)
    assert f"is ${printed.shape[0]}\\times{printed.shape[1]}$" in text
    assert f"should be ${m * m}\\times{printed.shape[1]}$" in text

    def own(big: np.ndarray) -> np.ndarray:
        """Read the n×m adjoints off vec of the (nm)×n matrix."""
        return np.einsum("rii->ir", big.reshape(n * m, n, order="F").reshape(m, n, n))

    lifted = [own(scale * operator @ vec(np.kron(dW.T, np.eye(n)))) for dW in units]
    assert off(np.stack(lifted, axis=-1), right) < 1e-12
    swapped = [own(scale * operator @ vec(np.kron(np.eye(n), dW.T))) for dW in units]
    assert f"{off(np.stack(swapped, axis=-1), right):.2f}" in text


def test_ling2023_l5() -> None:
    text, m, n, d = entry("errata-ling2023-l5"), 9, 4, 3
    rng = np.random.default_rng(0)
    W, U = 0.4 * rng.standard_normal((m, m)) / m**0.5, rng.standard_normal((m, d)) * (2 / d) ** 0.5
    a, X, y = (rng.standard_normal(size) for size in (m, (d, n), n))
    a = a / m**0.5
    Z, D = state(W, U @ X), pattern(W, U @ X)
    J, e = np.eye(m * n) - D @ np.kron(np.eye(n), W), a @ Z - y
    reference = slopes(lambda W: 0.5 * np.sum((a @ state(W, U @ X) - y) ** 2), W)

    def formula(out: np.ndarray) -> np.ndarray:
        return np.kron(Z, np.eye(m)) @ (out @ np.linalg.inv(J) @ D).T @ e

    assert off(formula(np.kron(np.eye(n), a[None])), reference) < 1e-8
    wrong = formula(np.kron(a[None], np.eye(n)))
    rows, columns = np.kron(a[:, None], np.eye(n)).shape
    assert f"${rows}\\times{columns}$ and does not fit" in text
    assert f"relative error {off(wrong, reference):.2f}" in text


def monotone() -> tuple[np.ndarray, ...]:
    """Return A, B, U, a, X, y of the instance of nguyen2022-E8 and E9."""
    m, n, d = 5, 4, 3
    rng = np.random.default_rng(0)
    A, B = (0.5 * rng.standard_normal((m, m)) / m**0.5 for _ in range(2))
    U, a = rng.standard_normal((m, d)), rng.standard_normal(m) / m**0.5
    return A, B, U, a, rng.standard_normal((d, n)), rng.standard_normal(n)


def monotone_matrix(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return 0.5 * np.eye(len(A)) - A.T @ A + B - B.T


def test_nguyen_e8_e9() -> None:
    A, B, U, a, X, y = monotone()
    m, n = len(a), len(y)
    W = monotone_matrix(A, B)
    Z, D = state(W, U @ X), pattern(W, U @ X)
    e, left = a @ Z - y, np.linalg.inv(np.eye(m * n) - D @ np.kron(np.eye(n), W)) @ D
    K, one = swap(m, m), np.eye(m * m)
    P_A, P_B = -(one + K) @ np.kron(np.eye(m), A.T), one - K
    right = {
        "A": np.kron(Z.T, np.eye(m)) @ P_A,
        "B": np.kron(Z.T, np.eye(m)) @ P_B,
        "U": np.kron(X.T, np.eye(m)),
    }
    states: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "A": lambda t: vec(state(monotone_matrix(t, B), U @ X)),
        "B": lambda t: vec(state(monotone_matrix(A, t), U @ X)),
        "U": lambda t: vec(state(W, t @ X)),
    }
    wrong, mixed = [], []
    for name, at in (("A", A), ("B", B), ("U", U)):
        reference = slopes(states[name], at)
        assert off(left @ right[name], reference) < 1e-8
        assert off(-left @ right[name], reference) == pytest.approx(2)
        gradient = e @ np.kron(np.eye(n), a[None]) @ reference
        wrong.append(off(e @ np.kron(a[None], np.eye(n)) @ left @ right[name], gradient))
        loss = slopes(
            lambda t, f=states[name]: 0.5 * np.sum((a @ f(t).reshape(n, m).T - y) ** 2), at
        )
        assert off(gradient, loss) < 1e-7
        t = Z.T if name != "U" else X.T
        chain = {"A": P_A, "B": P_B, "U": np.eye(m * len(X))}[name]
        mixed.append(off(left @ np.kron(np.eye(m), t) @ chain, reference))
    text = entry("errata-nguyen-e8")
    assert "{}, {} and {}".format(*(f"{w:.2f}" for w in wrong)) in text
    J_A = np.kron(np.eye(n), a[None]) @ left @ right["A"]
    assert (J_A.T @ J_A).shape == (25, 25)
    assert (J_A @ J_A.T).shape == (Z.T @ Z).shape == (4, 4)
    assert "$25\\times25$, $ZZ^\\top$ is $4\\times4$" in text
    text, G = entry("errata-nguyen-e9"), A.T @ A
    target = (one + K) @ (np.kron(np.eye(m), G) + np.kron(G, np.eye(m)))
    assert off(P_A @ P_A.T, target) < 1e-12
    assert f"relative error {off(P_A @ P_A, target):.2f}" in text
    assert "{}, {} and {}".format(*(f"{w:.2f}" for w in mixed)) in text


def test_nguyen_e10() -> None:
    text, D = entry("errata-nguyen-e10"), np.diag([1.0, 0.0])
    bare, right = [], []
    for b in (1.0, 10.0, 100.0):
        W = 0.5 * I2 + b * np.array([[0.0, 1.0], [-1.0, 0.0]])
        Q = np.array([[1.0], [0.0]])
        Z = state(W, Q)
        assert pytest.approx([2, 0]) == Z[:, 0]
        assert (W @ Z + Q)[:, 0] == pytest.approx([2, -2 * b])
        v = np.linalg.solve(I2 - W.T @ D, [1.0, 0.0])
        bare.append(np.linalg.norm(v))
        right.append(np.linalg.norm(D @ v))
    assert f"${bare[0]:.2f}, {bare[1]:.1f}, {bare[2]:.0f}$" in text
    assert right == pytest.approx([2, 2, 2])
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(1000):
        mu, A, B = rng.uniform(0.05, 1.5), *rng.standard_normal((2, 4, 4))
        W = (1 - mu) * np.eye(4) - A.T @ A + B - B.T
        d = rng.uniform(0, 1, 4)
        d = d.round() if rng.integers(2) else d
        worst = max(worst, mu * norm(d[:, None] * np.linalg.inv(np.eye(4) - W.T * d)))
    assert f"at most ${worst:.2f}/\\mu$" in text


def test_xie_e11() -> None:
    text, m, n, h, steps, alpha, pull = entry("errata-xie-e11"), 5, 3, 4, 6, 0.6, 0.25
    rng = np.random.default_rng(0)
    W, C, start = (rng.standard_normal(s) for s in ((h, m), (h, n), (m, n)))
    W = 0.9 * W / norm(W)

    def sigma(t: np.ndarray) -> np.ndarray:
        return 0.3 * t + 0.7 * (np.logaddexp(0, t) - np.log(2))

    def run(W: np.ndarray) -> np.ndarray:
        Z = start
        for k in range(1, steps + 1):
            beta = 0.5 / k**0.5
            layer = alpha * W.T @ sigma(W @ Z + C) + (1 - alpha) * Z
            Z = beta * (1 - pull) * Z + (1 - beta) * layer
        return vec(Z)

    def recursion(factor: bool) -> np.ndarray:
        Z, total, eye = start, np.zeros((m * n, h * m)), np.eye(n)
        for k in range(1, steps + 1):
            beta, pre = 0.5 / k**0.5, W @ Z + C
            back = np.kron(eye, W.T) * vec(0.3 + 0.7 / (1 + np.exp(-pre)))
            E = alpha * back @ np.kron(eye, W) + (1 - alpha) * np.eye(m * n)
            source = np.kron(sigma(pre).T, np.eye(m)) @ swap(h, m) + back @ np.kron(Z.T, np.eye(h))
            step = beta * (1 - pull) * np.eye(m * n) + (1 - beta) * E
            total = step @ total + (1 - beta if factor else 1.0) * alpha * source
            layer = alpha * W.T @ sigma(pre) + (1 - alpha) * Z
            Z = beta * (1 - pull) * Z + (1 - beta) * layer
        return total

    reference = slopes(run, W)
    assert off(recursion(True), reference) < 1e-8
    assert f"{100 * off(recursion(False), reference):.0f} %" in text
