"""Errata of chapter 1, contraction: every number computed again and looked up in its entry."""

from __future__ import annotations

import re

import numpy as np
import pytest
from errata_page import entry, iterate, listed, norm, radius, relu, smallest

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
