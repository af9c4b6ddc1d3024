r"""Hermite polynomials, expansions in them, and Gaussian integrals (gao2022, Appendix A).

The polynomials :math:`h_k=\mathrm{He}_k/\sqrt{k!}` are orthonormal for the Gaussian weight, and for
unit vectors :math:`\mathbb E[h_j(\langle w,x\rangle)h_k(\langle w,x'\rangle)]
=\delta_{jk}\langle x,x'\rangle^k`. An expansion of :math:`\sigma` in them is therefore an expansion
of its kernel in entrywise powers of :math:`XX^\top`.

Coefficients are written :math:`a_k` as in the source; the read-out vector, also :math:`a`, never
meets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import ndtr
from torch import Tensor

CRAMER = 1.0864350  # |h_k(x)| ≤ 1.0864… e^{x²/4} for all k and x (Cramér)

Function = Callable[[Tensor], Tensor]


def hermite(k: int, x: Tensor) -> Tensor:
    r"""Return :math:`h_0(x),\dots,h_k(x)`, stacked in front: shape ``(k + 1, *x.shape)``.

    The recursion is :math:`\sqrt{j+1}\,h_{j+1}=x\,h_j-\sqrt j\,h_{j-1}`.
    """
    h = [torch.ones_like(x), x][: _order(k) + 1]
    for j in range(1, k):
        h.append((x * h[j] - math.sqrt(j) * h[j - 1]) / math.sqrt(j + 1))
    return torch.stack(h)


def relu_coefficients(k: int) -> Tensor:
    r"""Return :math:`a_0,\dots,a_k` with :math:`a_j=\mathbb E[\sigma(t)h_j(t)]`.

    :math:`a_0=1/\sqrt{2\pi}`, :math:`a_1=\tfrac12`, no odd one after that, and for even
    :math:`j\ge2` :math:`a_j=(-1)^{j/2-1}(j-3)!!/\sqrt{2\pi j!}` (gao2022.lemmaA.7). From one even
    coefficient to the next the factor is :math:`-(j-1)/\sqrt{(j+1)(j+2)}`.
    """
    a = torch.zeros(_order(k) + 1, dtype=torch.float64)
    a[0] = 1 / math.sqrt(2 * math.pi)
    if k >= 1:
        a[1] = 0.5
    for j in range(0, k - 1, 2):
        a[j + 2] = -a[j] * (j - 1) / math.sqrt((j + 1) * (j + 2))
    return a


def _order(k: int) -> int:
    if k < 0:
        raise ValueError(f"the order must be at least 0, got {k}.")
    return k


# --- Gaussian integrals ------------------------------------------------------------------------


def density(x: float) -> float:
    """Return φ(x), the density of N(0, 1)."""
    return math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def uniform(low: float, high: float, g: torch.Generator) -> float:
    """Draw a number between two others."""
    return low + (high - low) * float(torch.rand((), generator=g, dtype=torch.float64))


@cache
def gauss(nodes: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of Gauss quadrature for the standard normal law."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.from_numpy(x), torch.from_numpy(w / w.sum())


@cache
def cube(law: str) -> tuple[Tensor, Tensor]:
    """Return nodes (N, 3) and weights of a product law with mean 0 and variance 1.

    The law is "normal" or "uniform".
    """
    x, w = gauss(10)
    if law == "uniform":
        nodes, weights = np.polynomial.legendre.leggauss(10)
        x, w = torch.from_numpy(math.sqrt(3) * nodes), torch.from_numpy(weights / 2)
    grid = torch.cartesian_prod(x, x, x)
    return grid, torch.cartesian_prod(w, w, w).prod(dim=1)


def square_integral(f: Callable[[float], float], size: float) -> float:
    """Return ∫ f² dP over [-size, size], split at the kink 0."""
    halves = [
        quad(lambda x: f(x) ** 2 * density(x), low, high, epsabs=1e-13, limit=200)[0]
        for low, high in ((-size, 0.0), (0.0, size))
    ]
    return float(sum(halves))


# --- functions and their coefficients ----------------------------------------------------------


def wave(g: torch.Generator, order: int) -> tuple[Function, Tensor]:
    """Return cos(wx+s) and its coefficients Re(i^k e^{is}) w^k e^{-w²/2}/√k!."""
    w, s = uniform(0.6, 1.4, g), uniform(0.5, 1.0, g)
    k = torch.arange(order + 1, dtype=torch.float64)
    size = torch.exp(k * math.log(w) - torch.lgamma(k + 1) / 2 - w**2 / 2)
    return lambda x: torch.cos(w * x + s), size * torch.cos(k * math.pi / 2 + s)


class Expansion(NamedTuple):
    """A function by its squared norm, its first coefficients, and a bound on the rest of Σa_k²."""

    square: float
    coefficients: Tensor
    tail: float


@dataclass(frozen=True)
class Hinge:
    r"""The function :math:`(x-b)_+`: norm, coefficients and their tail in closed form.

    :math:`a_k=\varphi(b)h_{k-2}(b)/\sqrt{k(k-1)}` for :math:`k\ge2`, by parts; with Cramér's bound
    on :math:`h_k` the squares beyond K add up to at most
    :math:`1.0864^2\varphi(b)^2e^{b^2/2}/K`.
    """

    b: float

    def coefficients(self, order: int) -> Tensor:
        """Return a_0, …, a_order."""
        k = torch.arange(2, order + 1, dtype=torch.float64)
        h = hermite(order - 2, torch.tensor(self.b, dtype=torch.float64))
        beyond, mass = float(ndtr(-self.b)), density(self.b)
        first = torch.tensor([mass - self.b * beyond, beyond], dtype=torch.float64)
        return torch.cat([first, mass * h / (k * (k - 1)).sqrt()])

    def inner(self, other: Hinge) -> float:
        """Return ⟨f,g⟩ = (B-b-b')φ(B) + (1+bb')Φ(-B), B the larger of the two."""
        top = max(self.b, other.b)
        return (top - self.b - other.b) * density(top) + (1 + self.b * other.b) * float(ndtr(-top))

    def tail(self, order: int) -> float:
        """Bound the squares of the coefficients beyond ``order``."""
        return CRAMER**2 * density(self.b) ** 2 * math.exp(self.b**2 / 2) / order

    def expansion(self, order: int) -> Expansion:
        """Return norm, coefficients and tail together."""
        return Expansion(self.inner(self), self.coefficients(order), self.tail(order))


def invisible(size: float) -> tuple[float, Tensor]:
    r"""Return ∫_0^8 f² dP and a_0, …, a_5 of f, fp = size·e^{-x^{1/4}} sin x^{1/4} for x > 0.

    The moments of fp, :math:`4\,\mathrm{Im}\,(4j+3)!\,(1-i)^{-4j-4}`, vanish, so every a_k does;
    yet ∫f² dP is infinite, and large on [0, 8] already.
    """
    powers = [(1 - 1j) ** (4 * j + 4) for j in range(6)]  # exact: Gaussian integers
    moments = [-4 * math.factorial(4 * j + 3) * p.imag / abs(p) for j, p in enumerate(powers)]
    # He_k as a polynomial, times the moments
    rows = [np.polynomial.hermite_e.herme2poly([0] * k + [1]) for k in range(6)]
    a = size * torch.tensor([float(r @ moments[: len(r)]) for r in rows], dtype=torch.float64)

    def square(x: float) -> float:
        return (size * math.exp(-(x**0.25)) * math.sin(x**0.25)) ** 2 / density(x)

    return float(quad(square, 0, 8)[0]), a
