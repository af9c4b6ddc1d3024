"""Errata of chapter 1, monotone: every number computed again and looked up in its entry."""

from __future__ import annotations

import numpy as np
import pytest
from errata_page import entry, iterate, listed, norm, relu
from scipy.optimize import brentq


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

    assert max(residual(t) for t in np.linspace(-1, 3, 21)) < 1e-12
    assert {f"{residual(t):.2f}" for t in (-1.2, 3.2)} == {"0.07"}
    assert "the residual is 0.07" in text
