"""Errata of page 5a, the hidden objective: every number computed again and looked up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from errata_page import entry, listed, norm, relu
from scipy.optimize import minimize, nnls

LOW = np.array([[1.0, 1.0], [0.0, 0.0]])


def rank(M: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(M, tol=1e-9 * norm(M)))


def factors(M: np.ndarray, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return B with zeros below, as printed, and B with a basis of the kernel of M below."""
    p, (k, r) = len(M), (A.shape[1], M.shape[1])
    P, sigma, Rt = np.linalg.svd(A)
    C = np.zeros((k, r))
    C[:p] = (P.T @ M) / sigma[:, None]
    kernel = np.linalg.svd(M)[2][rank(M) :][: k - p]
    full = C.copy()
    full[p : p + len(kernel)] = kernel
    return C.T @ Rt, full.T @ Rt


def test_xie_e1() -> None:
    text, rng = entry("errata-xie-e1"), np.random.default_rng(0)
    assert rank(LOW.T) == 1
    assert "of rank 1." in text
    padded, repaired = [], []
    for p, r, k, low in ((3, 4, 5, 3), (3, 3, 4, 2), (3, 4, 6, 1)):
        assert f"({p},{r},{k},{low})" in text
        M = rng.normal(size=(p, low)) @ rng.normal(size=(low, r))
        A = rng.normal(size=(p, k))
        pair = factors(M, A)
        for B in pair:
            assert np.allclose(A @ B.T, M, atol=1e-12)
        padded.append(rank(pair[0]))
        repaired.append(rank(pair[1]))
    assert f"of rank {listed(padded, 0)}," in text
    assert f"below gives {listed(repaired, 0)}." in text
    M = rng.normal(size=(3, 2)) @ rng.normal(size=(2, 4))
    A = rng.normal(size=(3, 4))
    kernel = np.linalg.svd(A)[2][3:]
    ranks = [rank(factors(M, A)[0] + rng.normal(size=(4, 1)) @ kernel) for _ in range(20)]
    assert "$(3,4,4,2)$" in text
    assert f"a rank above {max(ranks)}." in text


def test_xie_e2() -> None:
    text, b = entry("errata-xie-e2"), np.array([1.0, -1.0])
    sizes = []
    for eps in (1e-1, 1e-3, 1e-6):
        W = [np.eye(2), np.eye(2), LOW + eps * np.diag([0.0, 1.0])]
        W.append(np.linalg.inv(W[2]).T)
        assert np.allclose(W[3] @ W[2].T, np.eye(2))
        sizes.append(norm(W[3]))
        z, x = np.array([0.3, 2.0]), np.array([-0.5, 0.1])
        state = W[1].T @ relu(W[1] @ (W[0].T @ z) + b)
        out = W[3] @ (W[2].T @ relu(W[2] @ state + x))
        wanted = relu(LOW @ relu(z + b) + x)
        assert 0 < np.abs(out - wanted).max() <= 2 * eps
    assert f"is {sizes[0]:.1f}, {sizes[1]:.0f}, {sizes[2]:.0f} for" in text
    # The inner layer bends where its first input passes -1 and where its second passes 1.
    h = 1e-3
    for z, axis, bends in (((-1, 3), 0, True), ((0, 1), 1, True), ((0, 3), 0, False)):
        step = h * np.eye(2)[axis]
        values = [LOW @ relu(np.array(z) + t * step + b) for t in (-1, 0, 1)]
        assert (abs(values[0] - 2 * values[1] + values[2]).max() > 0.5 * h) == bends


def test_xie_e3() -> None:
    text, rng = entry("errata-xie-e3"), np.random.default_rng(0)
    widths = (3, 5, 4, 6, 2)
    As = [rng.normal(size=(b, a)) for a, b in pairwise(widths)]
    x = rng.normal(size=(3, 10))
    h = x
    for A in As[:-1]:
        h = relu(A @ h)
    wanted, m = As[-1] @ h, 6
    Ws = [np.linalg.qr(rng.normal(size=(m, m)))[0][:5]]
    for A in As[1:-1]:
        Ws.append(factors(A.T, Ws[-1])[1])
    V = factors(As[-1].T, Ws[-1])[0]
    z = Ws[0].T @ relu(As[0] @ x)  # what the erased state leaves: the injection alone
    for W in Ws[1:]:
        z = W.T @ relu(W @ z)
    assert np.abs(V @ z - wanted).max() < 1e-10 * np.abs(wanted).max()
    assert f"\\|W_l\\|={max(norm(W) for W in Ws):.2f}$" in text
    erased = np.zeros((5, m)).T @ relu(np.zeros((5, m)) @ rng.normal(size=(m, 10)) + As[0] @ x)
    for W in Ws[1:]:
        erased = W.T @ relu(W @ erased)
    assert np.abs(V @ erased).max() == 0.0
    assert "the output is 0 for every input" in text


def test_xie_e4() -> None:
    text, alpha = entry("errata-xie-e4"), 0.5
    curvature = 1 / (1 + (1 - alpha))  # of the envelope of ½z²: z²/(2(1+γ))
    assert curvature / 2 == pytest.approx(1 / 3)
    assert f"is ${1 / (1 + curvature):.1f}\\,z$" in text
    skip = alpha * 0.5 + (1 - alpha)
    assert 1 / (1 + alpha * curvature) == pytest.approx(skip)
    assert f"is ${skip:.2f}\\,z$" in text


def test_xie_e5() -> None:
    text = entry("errata-xie-e5")
    W, q = 0.8 * np.array([[0.0, -1.0], [1.0, 0.0]]), np.array([1.0, -2.0])
    z = np.zeros(2)
    for _ in range(500):
        z = W.T @ relu(W @ z + q)
    code = np.linalg.solve(W.T, z)

    def point(v: np.ndarray) -> str:
        return "(" + ",".join(f"{t:.2f}" if abs(t) > 1e-6 else "0" for t in v) + ")"

    assert f"$z={point(z)}$" in text
    assert f"={point(code)}$" in text

    def lowest(code_of: np.ndarray, tilt_of: np.ndarray) -> np.ndarray:
        """Minimise ½‖Sz‖² - ⟨q, Tz⟩ - ½‖z‖² over Sz ≥ 0, from several starts."""
        ends = []
        for start in np.random.default_rng(0).normal(size=(5, 2)):
            found = minimize(
                lambda u: np.sum((code_of @ u) ** 2) / 2 - q @ tilt_of @ u - u @ u / 2,
                start,
                method="SLSQP",
                constraints=[{"type": "ineq", "fun": lambda u: code_of @ u}],
                options={"ftol": 1e-14, "maxiter": 500},
            )
            ends.append((found.fun, found.x))
        return min(ends, key=lambda end: end[0])[1]

    right, wrong = np.linalg.inv(W).T, np.linalg.inv(W)
    assert np.allclose(lowest(right, right), z, atol=1e-5)
    both = lowest(wrong, wrong)
    assert np.allclose(both, -z, atol=1e-5)
    assert f"minimiser is ${point(-z)}$" in text
    assert f"only it is ${point(np.round(lowest(right, wrong), 4))}$" in text
    C = np.linalg.cholesky(np.eye(2) - W @ W.T).T
    assert np.allclose(W.T @ nnls(C, np.linalg.solve(C.T, q))[0], z)


def test_xie_e6() -> None:
    text, rng = entry("errata-xie-e6"), np.random.default_rng(0)
    z = rng.normal(size=3)
    u = z  # f = I; stationarity of ½‖u‖² - ⟨u, z/2⟩ + φ(u) at u = f(z)
    slope = z / 2 - u
    assert np.allclose(slope, -u / 2)
    assert "$\\nabla\\varphi(u)=-\\tfrac12u$" in text
    assert "-\\tfrac14\\|u\\|^2" in text
    assert norm(np.eye(3) / 2) <= 1


def test_xie_e7() -> None:
    text, a, z = entry("errata-xie-e7"), 0.5, -1.0

    def first(t: float) -> float:
        return max(t + 3, 0.0)

    def second(t: float) -> float:
        return max(t, 0.0)

    inner = a * first(z) + (1 - a) * z
    composed = a * second(inner) + (1 - a) * inner
    expanded = (1 - a) ** 2 * z + a * (1 - a) * (first(z) + second(z)) + a**2 * second(first(z))
    assert f"the composition is ${composed:.1f}$, the expansion ${expanded:.2f}$" in text
    # Linear maps: an identity. Small α: the difference is of second order.
    p, q = 0.3, 0.7
    lhs = (a * q + 1 - a) * (a * p + 1 - a)
    assert lhs == pytest.approx((1 - a) ** 2 + a * (1 - a) * (p + q) + a**2 * p * q)
    for a in (0.5, 0.1, 1e-2, 1e-3):
        for z in np.linspace(-4, 2, 25):
            inner = a * first(z) + (1 - a) * z
            composed = a * second(inner) + (1 - a) * inner
            expanded = (1 - a) ** 2 * z + a * (1 - a) * (first(z) + second(z))
            expanded += a**2 * second(first(z))
            assert abs(composed - expanded) <= 6 * a**2
