r"""Certificates of well-posedness: why a model has an equilibrium, or that nobody knows.

A model describes itself by its *structure*; a certificate is a sufficient condition on it.

==================  ==========================================  =================================
certificate         condition                                   gives
==================  ==========================================  =================================
contraction         :math:`L_\sigma\|W\|<1`                     one equilibrium, Picard, a rate
infinity-norm       :math:`L_\sigma\|W\|_\infty<1`              the same, in the sup norm
Perron-Frobenius    :math:`L_\sigma\lambda_{pf}(|W|)<1`         the same, in a weighted sup norm
monotone            :math:`I-W\succeq\mu I`, :math:`\mu>0`      one equilibrium, by splitting
nonexpansive        tied layers, :math:`L_\sigma\|W_l\|^2\le1`  a convex set, maybe empty
==================  ==========================================  =================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from deqbook.activations import Activation, relu
from deqbook.linalg import operator_norm, perron_root, spectral_radius, symmetric_part

__all__ = [
    "Affine",
    "Certificate",
    "Structured",
    "Tied",
    "Unstructured",
    "certificates",
    "certify",
    "monotonicity",
]

T = TypeVar("T")
ROUNDING = 1e-12  # a norm within this of 1 counts as 1


@dataclass(frozen=True)
class Affine:
    r"""The structure :math:`z=\sigma(Wz+q(x))`, with a Lipschitz constant of the injection q.

    The constant may be a function: it costs an SVD, and only certificates ask for it.
    """

    W: Tensor
    sigma: Activation = relu
    input_lipschitz: float | Callable[[], float] = 1.0


@dataclass(frozen=True)
class Tied:
    r"""Layers :math:`f_l(z)=\alpha W_l^\top\sigma(W_lz+q_l)+(1-\alpha)z`, composed in order."""

    Ws: tuple[Tensor, ...]
    sigma: Activation = relu
    alpha: float = 1.0
    input_lipschitz: tuple[float, ...] | Callable[[], tuple[float, ...]] = ()


@dataclass(frozen=True)
class Unstructured:
    """A map about which no certificate is known."""

    what: str


class Structured(Protocol):
    """Anything that can say what kind of map it iterates."""

    def structure(self) -> Affine | Tied | Unstructured:
        """Return the structure that certificates look at."""


@dataclass(frozen=True)
class Certificate:
    """One sufficient condition, evaluated.

    ``holds`` says whether the condition is met, ``constant`` its number (a factor that must be
    below 1, or the modulus μ that must be above 0). ``exists`` and ``unique`` are True, False or
    None (not known). ``picard`` says whether plain iteration is guaranteed to converge, and
    ``lipschitz`` bounds the map from input to equilibrium.
    """

    kind: str
    holds: bool
    constant: float
    exists: bool | None
    unique: bool | None
    picard: bool
    lipschitz: float
    why: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"

    def _repr_html_(self) -> str:
        mark = "certified" if self.holds else "not certified"
        return f"<p><b>{mark}</b> ({self.kind}): {self.why}</p>"


def monotonicity(W: Tensor) -> float:
    r"""Return :math:`\mu=\lambda_{\min}(I-\tfrac12(W+W^\top))`, the modulus of :math:`I-W`."""
    return 1 - float(torch.linalg.eigvalsh(symmetric_part(W))[-1])


def certificates(model: Structured | Affine | Tied | Unstructured | Tensor) -> list[Certificate]:
    """Evaluate every certificate that fits the model's structure, strongest message first."""
    shape = _structure(model)
    if isinstance(shape, Affine):
        return _affine(shape)
    if isinstance(shape, Tied):
        return _tied(shape)
    why = f"no certificate is known for {shape.what}; look at the residual of every solve."
    return [Certificate("not certified", False, math.nan, None, None, False, math.inf, why)]


def certify(model: Structured | Affine | Tied | Unstructured | Tensor) -> Certificate:
    """Return the first certificate that holds, or one that says none does and how far off."""
    tried = certificates(model)
    for one in tried:
        if one.holds or one.exists is False:
            return one
    if tried[0].kind == "not certified":
        return tried[0]
    numbers = ", ".join(f"{c.kind} {c.constant:.3g}" for c in tried)
    why = f"no certificate holds ({numbers}); an equilibrium may still exist."
    return Certificate("not certified", False, math.nan, None, None, False, math.inf, why)


def _value(constant: T | Callable[[], T]) -> T:
    return constant() if callable(constant) else constant


def _structure(
    model: Structured | Affine | Tied | Unstructured | Tensor,
) -> Affine | Tied | Unstructured:
    if isinstance(model, Tensor):
        return Affine(model)
    if isinstance(model, Affine | Tied | Unstructured):
        return model
    if not hasattr(model, "structure"):
        raise TypeError(
            f"certify needs a matrix, a structure or a model with structure(), "
            f"got {type(model).__name__}."
        )
    return model.structure()


def _factor(kind: str, symbol: str, c: float, lipschitz: float, norm: str) -> Certificate:
    """Build the certificate of a contraction with factor c in the norm named."""
    holds = c < 1 - ROUNDING
    lip = lipschitz / (1 - c) if holds else math.inf
    why = f"{symbol} = {c:.4g} {'<' if holds else '>='} 1" + (
        f": one equilibrium for every input, Picard contracts in {norm}." if holds else "."
    )
    return Certificate(kind, holds, c, holds or None, holds or None, holds, lip, why)


def _affine(s: Affine) -> list[Certificate]:
    slope, q = s.sigma.lipschitz, _value(s.input_lipschitz)
    found = [
        _factor("contraction", "L_σ‖W‖", slope * operator_norm(s.W), slope * q, "‖·‖₂"),
        _factor(
            "infinity-norm",
            "L_σ‖W‖_∞",
            slope * float(torch.linalg.matrix_norm(s.W, math.inf)),
            slope * q * math.sqrt(s.W.shape[0]),
            "‖·‖_∞",
        ),
        _perron(s),
    ]
    mu = monotonicity(s.W)
    holds = mu > ROUNDING and slope <= 1
    why = f"I − W ⪰ μI with μ = {mu:.4g}" + (
        " > 0: one equilibrium for every input, found by splitting."
        if holds
        else " ≤ 0: not strongly monotone."
    )
    lipschitz = q / mu if holds else math.inf
    known = holds or None
    found.append(Certificate("monotone", holds, mu, known, known, False, lipschitz, why))
    if s.sigma.name == "relu" and bool((s.W >= 0).all()):
        rho = spectral_radius(s.W)
        if rho >= 1:
            why = (
                f"W ≥ 0 with spectral radius {rho:.4g} ≥ 1: pairing z = Wz + q with the left "
                "Perron vector shows that no q > 0 has an equilibrium "
                "(nor any q ≥ 0, q ≠ 0, if W > 0)."
            )
            found.insert(
                0, Certificate("no equilibrium", False, rho, False, None, False, math.inf, why)
            )
    return found


def _perron(s: Affine) -> Certificate:
    r"""Certify by a weighted sup norm.

    With :math:`w=(I-L_\sigma|W|)^{-1}\mathbf 1>0` the map contracts in :math:`\max_i|z_i|/w_i`.
    """
    slope = s.sigma.lipschitz
    c = slope * perron_root(s.W)
    plain = _factor("Perron-Frobenius", "L_σ λ_pf(|W|)", c, 0.0, "a weighted ‖·‖_∞")
    if not plain.holds:
        return plain
    eye = torch.eye(s.W.shape[0], dtype=s.W.dtype, device=s.W.device)
    # |Δz| ≤ (I − L_σ|W|)⁻¹ L_σ|Δq| entry by entry, so the 2-norm of that matrix bounds x ↦ z.
    inverse = torch.linalg.inv(eye - slope * s.W.abs())
    lip = slope * _value(s.input_lipschitz) * operator_norm(inverse)
    return Certificate(plain.kind, True, c, True, True, True, lip, plain.why)


def _tied(s: Tied) -> list[Certificate]:
    slope = s.sigma.lipschitz
    sizes = [operator_norm(W) for W in s.Ws]
    factors = [s.alpha * max(slope * w * w, 0.0) + 1 - s.alpha for w in sizes]
    product = math.prod(factors)
    inputs = _value(s.input_lipschitz) or (1.0,) * len(s.Ws)
    through, total = 1.0, 0.0
    for w, c, q in reversed(list(zip(sizes, factors, inputs))):
        total += through * s.alpha * slope * w * q
        through *= c
    found = [_factor("contraction", "∏(α L_σ‖W_l‖² + 1 − α)", product, total, "‖·‖₂")]
    worst = max(sizes)
    holds = slope * worst**2 <= 1 + ROUNDING
    exists = True if holds and (s.sigma.bounded or found[0].holds) else None
    why = f"max ‖W_l‖ = {worst:.4g}" + (
        " ≤ 1: every layer is averaged; the equilibria form a closed convex set, "
        + ("not empty because σ is bounded (Brouwer)." if exists else "which may be empty or many.")
        if holds
        else " > 1: the layers may expand."
    )
    unique = True if found[0].holds else None
    found.append(
        Certificate("nonexpansive", holds, worst, exists, unique, bool(exists), math.inf, why)
    )
    return found
