"""Every number on the errata page, computed again and looked up in its entry."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

PAGE = Path(__file__).parent.parent / "book" / "errata.md"
JORDAN = np.array([[0.5, 10.0], [0.0, 0.5]])
I2 = np.eye(2)


def entry(label: str) -> str:
    """Return the text of one entry, with line breaks and TeX spaces made plain."""
    pattern = rf"\({re.escape(label)}\)=\n(.*?)(?=\n\([a-z0-9-]+\)=\n|\Z)"
    found = re.search(pattern, PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"no entry {label} in {PAGE.name}"
    return re.sub(r"(\\?\s)+", " ", found.group(1))


def relu(t: np.ndarray) -> np.ndarray:
    return np.maximum(t, 0.0)


def norm(M: np.ndarray) -> float:
    return float(np.linalg.norm(M, 2))


def radius(M: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvals(M)).max())


def smallest(M: np.ndarray) -> float:
    return float(np.linalg.svd(M, compute_uv=False)[-1])


def listed(values: list[float], digits: int) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def iterate(f: Callable[[Any], Any], z: Any, steps: int) -> Any:
    for _ in range(steps):
        z = f(z)
    return z


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
