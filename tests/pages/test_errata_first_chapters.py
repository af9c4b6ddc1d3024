"""Errata of chapters 1 and 2: every number computed again and looked up in its entry."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from errata_page import (
    entry,
    iterate,
    listed,
    norm,
    off,
    pattern,
    radius,
    relu,
    slopes,
    smallest,
    state,
    swap,
    vec,
)
from scipy.optimize import brentq

JORDAN = np.array([[0.5, 10.0], [0.0, 0.5]])
I2 = np.eye(2)


def test_gao2022_e2() -> None:
    text, m = entry("errata-gao2022-e2"), 200
    draws = [np.random.default_rng(seed).standard_normal((m, m)) for seed in range(3)]
    assert listed([radius(W) / m**0.5 for W in draws], 2) in text
    assert listed([norm(W) / m**0.5 for W in draws], 2) in text
    rng = np.random.default_rng(0)
    W = rng.standard_normal((m, m))
    scaled = 0.5 * W / norm(W)
    matrices = [np.eye(m) - rng.integers(0, 2, m)[:, None] * scaled for _ in range(50)]
    spectra = [np.linalg.eigvals(M) for M in matrices]
    assert all(np.abs(s.imag).max() > 1e-9 for s in spectra)
    assert min(s.real.min() for s in spectra) >= 0.5
    assert f"${min(map(smallest, matrices)):.2f}\\ge0.5$" in text


def test_gao2023_o1() -> None:
    text = entry("errata-gao2023-o1")
    radii, steps, entries, shrunk = [], [], [], []
    for m in (16, 64, 256):
        rng = np.random.default_rng(0)
        W = np.abs(rng.standard_normal((m, m)))
        U, x = rng.standard_normal((m, 20)), rng.standard_normal(20)
        scaled, phi = 0.4 / m**0.5 * W, relu(U @ x / np.linalg.norm(x))
        z, count = np.zeros(m), 0
        while np.linalg.norm(z) < 1e12:
            z, count = relu(scaled @ z + phi), count + 1
        radii.append(radius(scaled))
        steps.append(count)
        entries.append(np.linalg.solve(np.eye(m) - scaled, phi).min())
        shrunk.append(norm(scaled) / m**0.5)
    assert listed(radii, 2) in text
    assert "{}, {} and {} steps".format(*steps) in text
    assert "$-{:.1f}, -{:.2f}, -{:.2f}$".format(*(-e for e in entries)) in text
    assert listed(shrunk, 2) in text
    assert 9.5 < (0.798 * 0.4) ** -2 < 10.5


def test_gao2023_o2() -> None:
    text, m = entry("errata-gao2023-o2"), 400
    W = np.random.default_rng(0).standard_normal((m, m))
    top = 1e-2 * np.linalg.svd(W)[2][0]
    factors = []
    for gamma in (0.45, 0.55, 0.8):

        def f(z: np.ndarray, scale: float = gamma / m**0.5) -> np.ndarray:
            return relu(scale * W @ z + 100.0)

        moved = np.linalg.norm(f(top) - f(0 * top)) / np.linalg.norm(top)
        assert moved == pytest.approx(gamma * norm(W) / m**0.5)
        factors.append(moved)
    assert listed(factors, 2) in text


def test_ling2023_l3() -> None:
    text = entry("errata-ling2023-l3")
    edge, wider = [], []
    for m, draws in ((50, 1000), (100, 400), (200, 200), (400, 60)):
        rng = np.random.default_rng(0)
        ratios = np.array([norm(rng.standard_normal((m, m))) / (2 * m**0.5) for _ in range(draws)])
        edge.append((ratios <= 1).mean())
        wider.append((ratios <= 1.05).mean())
    printed = [float(v) for v in re.findall(r"0\.8\d(?=[, ])", text.split("**Shown by**")[1])]
    assert printed == pytest.approx(edge, abs=0.0051)
    assert f"{wider[0]:.3f}, 1, 1, 1" in text
    assert wider[1:] == [1, 1, 1]


def test_ling2023_l12() -> None:
    text, ones = entry("errata-ling2023-l12"), np.ones(2)
    assert f"norm is {norm(JORDAN):.2f} but $\\rho={radius(JORDAN):.1f}$" in text
    limit = iterate(lambda z: relu(JORDAN @ z + ones), 0 * ones, 400)
    assert limit == pytest.approx(np.linalg.solve(I2 - JORDAN, ones))
    assert "$(42,2)=(I-W)^{-1}\\phi$" in text
    assert limit == pytest.approx([42, 2])
    full = np.full((2, 2), 0.6)
    assert radius(full) == pytest.approx(1.2)
    assert np.linalg.solve(I2 - full, ones) == pytest.approx([-5, -5])
    assert norm(iterate(lambda z: relu(full @ z + ones), 0 * ones, 200)[None]) > 1e15
    swap, drive = np.array([[0.0, 0.5], [0.5, 0.0]]), np.array([1.0, -0.2])
    z = iterate(lambda z: relu(swap @ z + drive), 0 * drive, 200)
    assert z == pytest.approx([1.2, 0.4])
    assert np.linalg.solve(I2 - swap, relu(drive)) == pytest.approx([4 / 3, 2 / 3])
    assert "$(1.2,0.4)$, the formula gives $(1.33,0.67)$" in text


def test_nguyen_e1_e2() -> None:
    text = entry("errata-nguyen-e1")
    assert f"$\\|J\\|={norm(JORDAN):.2f}$, $\\rho(J)={radius(JORDAN):.1f}$" in text
    text = entry("errata-nguyen-e2")
    assert f"$\\sigma_{{\\min}}(I-J)={smallest(I2 - JORDAN):.3f}$" in text
    turn = 0.9 * np.array([[0.0, -1.0], [1.0, 0.0]])
    assert f"${smallest(I2 - turn):.2f}$ against ${1 - radius(turn):.1f}$" in text
    for J in (JORDAN, turn):
        assert abs(np.linalg.det(I2 - J)) >= (1 - radius(J)) ** 2 - 1e-12
    assert np.linalg.det(I2 - JORDAN) == pytest.approx(0.25)
    assert "$0.25=0.25$" in text


def test_nguyen_e3() -> None:
    roots = [brentq(lambda t, p=p: t - 0.5 / t**0.5 - p, 1e-9, 50, xtol=1e-14) for p in (-5, 0, 5)]
    assert f"$t={listed(roots, 5)}$" in entry("errata-nguyen-e3")


def test_nguyen_e5() -> None:
    text = entry("errata-nguyen-e5")
    M, z0 = np.array([[0.5, -1.0], [1.0, 0.5]]), np.array([5.0, 5.0])
    start, L2 = np.array([0.5, 0.0]), norm(M) ** 2
    assert pytest.approx(1.25) == L2
    for factor, words in ((1.98, "is ${}$"), (2.0, "still ${}$"), (2.02, "and ${}$")):
        alpha = factor * 0.5 / L2
        z = iterate(lambda z, a=alpha: relu(z - a * (M @ (z - z0))), z0 + start, 400)
        assert words.format(f"{np.linalg.norm(z - z0):.2f}") in text


def test_nguyen_e17() -> None:
    text = entry("errata-nguyen-e17")

    def f(z: float) -> float:
        return 0.5 * float(np.tanh(z)) + 1.0

    assert f"fixed point ${iterate(f, 0.0, 200):.3f}$" in text
    wrong = iterate(lambda z: f(z) - z, 0.0, 400)
    assert f"gives ${wrong:.3f}$, where $f(z)={f(wrong):.3f}=2z$" in text
    assert f(wrong) == pytest.approx(2 * wrong)


def test_xie_e19() -> None:
    text = entry("errata-xie-e19")
    assert iterate(lambda z: max(z + 1, 0), 0, 100) == 100
    assert f"{iterate(lambda z: np.logaddexp(0, z), 0.0, 10_000):.2f} after $10^4$ steps" in text
    v, s0 = 0.5 * np.array([1.0, -1, 1, -1]), np.array([1.0, 2, 0.5, 1.5])
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(np.column_stack([v, rng.standard_normal((4, 3))]))[0]
    Q[:, 0] = v  # qr may flip the sign
    W = Q @ np.diag([1, 0.8, 0.6, 0.3]) @ np.linalg.qr(rng.standard_normal((4, 4)))[0].T
    injected = (np.eye(4) - W @ W.T) @ s0

    def residual(t: float) -> float:
        z = W.T @ (s0 + t * v)
        return float(np.linalg.norm(W.T @ relu(W @ z + injected) - z))

    assert max(residual(t) for t in np.linspace(-1, 3, 21)) < 1e-14
    assert {f"{residual(t):.2f}" for t in (-1.2, 3.2)} == {"0.07"}
    assert "the residual is 0.07" in text


# --- chapter 2 ---------------------------------------------------------------------------------


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
    assert f"${operator.shape[0]}\\times{operator.shape[1]}$" in text
    assert f"${operator.shape[0]}\\times{m * m}$" in text

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
    """Return A, B, U, a, X, y of the instance of E8 and E9."""
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
    assert off(P_A @ P_A.T, target) < 1e-14
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
