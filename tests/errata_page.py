"""The errata page, for its tests: the entries, and tools to compute its numbers again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from errata import COUNTER, KINDS, SOURCES, Erratum, errata

PAGE = Path(__file__).parent.parent / "book" / "errata.md"
__all__ = ["COUNTER", "KINDS", "PAGE", "SOURCES", "Erratum", "errata"]


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


def vec(M: np.ndarray) -> np.ndarray:
    return M.reshape(-1, order="F")


def swap(a: int, b: int) -> np.ndarray:
    """Return K with K vec(M) = vec(Mᵀ) for a×b matrices."""
    return np.eye(a * b)[vec(np.arange(a * b).reshape(a, b, order="F").T)]


def state(W: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Return the columns z = σ(Wz + q), by Newton's method on the sets of active units."""
    Z = np.zeros_like(Q)
    for _ in range(50):
        on = W @ Z + Q > 0
        blocks = [
            np.linalg.solve(np.eye(len(W)) - d[:, None] * W, d * q) for d, q in zip(on.T, Q.T)
        ]
        Z, before = np.column_stack(blocks), Z
        if np.array_equal(Z, before):
            return Z
    raise AssertionError("the active sets did not settle")


def pattern(W: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Return the big diagonal D, after checking that no unit is near its kink."""
    pre = W @ state(W, Q) + Q
    assert np.abs(pre).min() > 1e-3
    return np.diag(vec((pre > 0).astype(float)))


def slopes(f: Callable[[np.ndarray], Any], M: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """Return the derivative in vec(M) by central differences, one column per entry."""
    moves = [h * e.reshape(M.shape, order="F") for e in np.eye(M.size)]
    columns = [(np.asarray(f(M + t)) - np.asarray(f(M - t))) / (2 * h) for t in moves]
    return np.stack(columns, axis=-1)


def off(value: np.ndarray, target: np.ndarray) -> float:
    """Return the relative distance."""
    return float(np.linalg.norm(value - target) / np.linalg.norm(target))
