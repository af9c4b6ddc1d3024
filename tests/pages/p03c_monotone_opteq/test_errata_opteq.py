"""Errata of page 3c, OptEq: every number computed again and looked up in its entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from errata_page import entry, norm, slopes


def soft(t: np.ndarray) -> np.ndarray:
    return 0.3 * t + 0.7 * (np.logaddexp(0, t) - np.log(2))


class UnrolledLayer:
    """K plain steps of one OptEq layer and a read-out: the network of xie2022-E13 to E15."""

    def __init__(self, X: Any, Z: Any, alpha: float, steps: int) -> None:
        self.X, self.Z, self.alpha, self.steps = np.array(X), np.array(Z), alpha, steps

    def states(self, theta: list[np.ndarray]) -> list[np.ndarray]:
        (W, U, b, _), found = theta, [self.Z]
        for _ in range(self.steps):
            new = soft(found[-1] @ W.T + self.X @ U.T + b) @ W
            found.append(self.alpha * new + (1 - self.alpha) * found[-1])
        return found

    def outputs(self, theta: list[np.ndarray]) -> np.ndarray:
        return (self.states(theta)[-1] @ theta[3].T)[:, 0]

    def jacobian(self, theta: list[np.ndarray]) -> np.ndarray:
        def block(i: int) -> np.ndarray:
            return slopes(lambda t: self.outputs([*theta[:i], t, *theta[i + 1 :]]), theta[i])

        return np.hstack([block(i) for i in range(4)])

    def descend(self, theta: list[np.ndarray], y: np.ndarray, step: float, count: int) -> Any:
        losses = []
        for _ in range(count):
            e = self.outputs(theta) - y
            losses.append(0.5 * e @ e)
            move = np.split(e @ self.jacobian(theta), np.cumsum([t.size for t in theta])[:-1])
            theta = [t - step * g.reshape(t.shape, order="F") for t, g in zip(theta, move)]
        return losses


THREE_QUARTERS = [0.75 * np.eye(2), np.eye(2), np.zeros(2), np.array([[0.6, 0.8]])]


def sci(value: float, digits: int = 1) -> str:
    """Write a number as TeX does: 3.8\\cdot10^{2}."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}\\cdot10^{{{int(exponent)}}}"


def test_xie_e12() -> None:
    text, n, h, m = entry("errata-xie-e12"), 1000, 2, 2
    zero = np.zeros((h, m))

    def layer(W: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, np.zeros((n, m)) @ W.T) @ W

    derivative = norm(slopes(lambda W: layer(W).reshape(-1), zero))
    assert derivative == pytest.approx(np.sqrt(n * h) * np.log(2))
    assert f"${derivative:.1f}\\,\\alpha$" in text
    assert f"${np.sqrt(m * h) * np.log(2):.2f}\\,\\alpha$" in text


def test_xie_e13() -> None:
    text, alpha, K = entry("errata-xie-e13"), 0.1, 10
    assert f"is ${0.25 * 0.5 + 0.5 * 0.9:.3f}$" in text
    assert f"${sum(0.9**j for j in range(K)):.2f}$ against 10" in text
    assert f"${1 + 0.9**2:.2f}$ against 2" in text
    printed = K**2 * alpha**2 * 0.3**2 * 0.75**2 * 2 * norm(THREE_QUARTERS[3]) ** 2
    assert f"is ${printed:.3f}$ for" in text
    equal = UnrolledLayer([[1.0, 0.0], [1.0, 0.0]], np.zeros((2, 2)), alpha, K)
    assert np.abs(np.array([0.1, -0.1]) @ equal.jacobian(THREE_QUARTERS)).max() < 1e-12
    close = UnrolledLayer([[1.0, 0.0], [1.0, 0.1]], np.zeros((2, 2)), alpha, K)
    J = close.jacobian(THREE_QUARTERS)
    least = np.linalg.eigvalsh(J @ J.T)[0]
    assert f"$\\lambda_{{\\min}}(H)={least:.4f}$" in text
    assert least < printed


def test_xie_e14() -> None:
    text, alpha, K = entry("errata-xie-e14"), 0.1, 10
    for n, delta in ((2, 0.1), (1000, 1e-5)):
        net = UnrolledLayer(np.tile([[1.0, 0.0]], (n, 1)), np.zeros((n, 2)), alpha, K)
        e = delta * np.resize([1.0, -1.0], n)
        y = net.outputs(THREE_QUARTERS) - e
        losses = net.descend(THREE_QUARTERS, y, 1.0, 4)
        assert losses == pytest.approx([0.5 * n * delta**2] * 4, rel=1e-6)
    assert "$0.01$ for $n=2$" in text
    assert "$5\\cdot10^{-8}$ for $n=1000$, $\\delta=10^{-5}$" in text
    state = max(np.linalg.norm(Z) for Z in net.states(THREE_QUARTERS))
    size, cap, error = np.sqrt(n), 1.5, delta * np.sqrt(n)
    C_z = 6 * state + 3 * cap * cap * size
    Q_0 = 0.25 * K**2 * alpha**2 * 0.3**2 * 0.5**2 * n
    scale = 2 / Q_0 * error
    moved = scale * alpha * K * C_z * cap
    assert f"${moved:.3f}\\le\\tfrac14$" in text
    assert moved <= 0.25
    assert scale * alpha * K * cap * size * cap <= 1 / 3  # U
    assert scale * alpha * K * size * cap <= 1 / 3  # b
    assert scale * alpha * K * cap * cap <= cap * size / 3  # the features, with L_g = 1
    assert scale * 3 * K * state <= 0.5  # V


def test_xie_e15() -> None:
    text, alpha, K, state, cap, bend = entry("errata-xie-e15"), 1e-3, 2, 1.5, 1.5, 0.175
    theta = [np.diag([0.75, 0.7]), np.array([[0.1], [0.0]]), np.zeros(2), THREE_QUARTERS[3]]
    net = UnrolledLayer([[1.0]], [[1.0, 1.0]], alpha, K)
    assert max(np.linalg.norm(Z) for Z in net.states(theta)) <= state
    kernel = float(np.sum(net.jacobian(theta) ** 2))
    assert f"is ${kernel:.3f}$" in text
    B = cap * 0.1
    C_z, C_D = 6 * state + 3 * B * cap, max(3 * state, cap)
    B_J = 2 * alpha * K * C_z
    C_J = 9 * alpha * state * bend * C_z + 2 * np.sqrt(3) * alpha * K * state * bend * C_D
    Q_0 = 0.25 * K**2 * alpha**2 * 0.3**2 * (0.7 - 0.25) ** 2

    def losses(error: float) -> tuple[float, list[float]]:
        Q_1 = (C_J + B_J) * error / np.sqrt(2) + 2 * alpha * K * C_z * B_J * cap
        step = 0.99 / Q_1
        assert step < 1 / Q_0
        return Q_1, net.descend(theta, net.outputs(theta) - error, step, 3)

    Q_1, large = losses(0.1)
    assert f"$Q_1={Q_1:.4f}$" in text
    assert f"${sci(large[0])}$ to ${sci(large[1])}$" in text
    assert large[2] > 1e12
    small = losses(3e-10)[1]
    assert ", ".join(f"${sci(x)}$" for x in small) in text
    scale = 2 / Q_0 * 3e-10
    assert scale * alpha * K * C_z * cap <= 0.25  # W
    assert scale * alpha * K * cap * cap <= min(1 / 3, B / 3)  # U
    assert scale * alpha * K * cap <= min(1 / 3, B / 3)  # b
    assert scale * alpha * K * B * cap <= cap / 3  # the features
    assert scale * 3 * K * state <= 0.5  # V
