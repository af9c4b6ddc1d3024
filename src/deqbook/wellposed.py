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

from deqbook.activations import Activation, activation, relu
from deqbook.linalg import operator_norm, perron_root, spectral_radius, symmetric_part
from deqbook.runtime import tensor
from deqbook.typeset import formula

__all__ = [
    "Affine",
    "Certificate",
    "Lipschitz",
    "Structure",
    "Structured",
    "Tied",
    "Unstructured",
    "certificates",
    "certify",
    "monotonicity",
]

T = TypeVar("T")
ROUNDING = 1e-12  # a norm within this of 1 counts as 1, in double precision


@dataclass(frozen=True)
class Affine:
    r"""The structure :math:`z=\sigma(Wz+q(x))`, with a Lipschitz constant of the injection q.

    ``W`` is (m, m); ``sigma`` may be a name. The constant may be a function: it costs an SVD, and
    only certificates ask for it. ``TypeError`` if ``W`` is not a floating-point tensor,
    ``ValueError`` for an unknown name.

    >>> shape = Affine(torch.tensor([[0.5]]))
    >>> shape.slopes(torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [-1.0]])).tolist()
    [[1.0], [0.0]]
    >>> certify(shape).kind, certify(Affine(torch.tensor([[-3.0]]), "tanh")).kind
    ('contraction', 'monotone')
    """

    W: Tensor
    sigma: Activation = relu
    input_lipschitz: float | Callable[[], float] = 1.0

    def __post_init__(self) -> None:
        tensor("W", self.W)
        object.__setattr__(self, "sigma", activation(self.sigma))

    def preactivation(self, z: Tensor, q: Tensor) -> Tensor:
        """Return Wz + q for the rows of ``z`` and ``q``, both (n, m)."""
        return z @ self.W.mT + q

    def slopes(self, z: Tensor, q: Tensor) -> Tensor:
        r"""Return :math:`\sigma'(Wz+q)`: which units are on, and how much.

        From the pre-activation, never from the state: an accelerated solver leaves 1e-14 in units
        that are off.
        """
        return self.sigma.slope(self.preactivation(z, q))


@dataclass(frozen=True)
class Tied:
    r"""Layers :math:`f_l(z)=\tfrac\alpha\tau W_l^\top\sigma(W_lz+q_l)+(1-\alpha)z`, in order.

    Each of ``Ws`` is (h_l, m). ``alpha`` is the skip weight, ``input_lipschitz`` a constant of
    every :math:`q_l(x)`, 1 if left empty. Errors as for ``Affine``.

    >>> [certify(Tied((c * torch.eye(1).double(),))).kind for c in (0.9, 1.0)]
    ['contraction', 'nonexpansive']
    """

    Ws: tuple[Tensor, ...]
    sigma: Activation = relu
    alpha: float = 1.0
    input_lipschitz: tuple[float, ...] | Callable[[], tuple[float, ...]] = ()
    tau: float = 1.0

    def __post_init__(self) -> None:
        if not self.Ws:
            raise ValueError("Ws is empty; tied layers have at least one matrix.")
        for i, W in enumerate(self.Ws, start=1):
            tensor(f"W{i}", W)
        object.__setattr__(self, "sigma", activation(self.sigma))


@dataclass(frozen=True)
class Lipschitz:
    r"""A map with :math:`\|f(z,q)-f(z',q)\|\le c\,\|z-z'\|`; below 1 it contracts.

    ``input_lipschitz`` is a constant of :math:`x\mapsto f(z,q(x))`. Both may be functions.

    >>> one = certify(Lipschitz(0.5, input_lipschitz=3.0))
    >>> one.holds, one.lipschitz
    (True, 6.0)
    """

    constant: float | Callable[[], float]
    input_lipschitz: float | Callable[[], float] = 1.0


@dataclass(frozen=True)
class Unstructured:
    """A map about which no certificate is known; ``what`` names it in the message.

    >>> certify(Unstructured("a transformer block")).kind
    'not certified'
    """

    what: str


Structure = Affine | Tied | Lipschitz | Unstructured
"""What a model may say of its cell."""


class Structured(Protocol):
    """Anything that can say what kind of map it iterates.

    >>> class Cosine:
    ...     def structure(self):
    ...         return Lipschitz(1.0)
    >>> certify(Cosine()).holds
    False
    """

    def structure(self) -> Structure:
        """Return the structure that certificates look at."""


@dataclass(frozen=True)
class Certificate:
    """One sufficient condition, evaluated.

    ``holds`` says whether the condition is met, ``constant`` its number (a factor that must be
    below 1, or the modulus μ that must be above 0). ``exists`` and ``unique`` are True, False or
    None (not known). ``picard`` says whether plain iteration is guaranteed to converge, and
    ``lipschitz`` bounds the map from input to equilibrium. ``why`` is the sentence.

    >>> one = certify(torch.tensor([[0.5]]))
    >>> one.kind, one.holds, round(one.constant, 3), one.picard, round(one.lipschitz, 3)
    ('contraction', True, 0.5, True, 2.0)
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
        kind = "" if self.kind == mark else f" ({self.kind})"
        return f"<p><b>{mark}</b>{kind}: {formula(self.why)}</p>"


def monotonicity(W: Tensor) -> float:
    r"""Return :math:`\mu=\lambda_{\min}(I-\tfrac12(W+W^\top))`, the modulus of :math:`I-W`.

    ``W`` is (m, m). Its skew part is free:

    >>> round(monotonicity(torch.tensor([[0.0, 4.0], [-4.0, 0.0]])), 3)
    1.0
    """
    return 1 - float(torch.linalg.eigvalsh(symmetric_part(W))[-1])


def certificates(model: Structured | Structure | Tensor) -> list[Certificate]:
    """Evaluate every certificate that fits the model's structure, strongest message first.

    A matrix ``W`` stands for a ReLU cell, ``Affine(W)``. ``TypeError`` for what has no
    ``structure()``, ``ValueError`` for a matrix that is not square or not finite.

    >>> {one.kind: one.holds for one in certificates(torch.tensor([[-3.0]]))}
    {'contraction': False, 'infinity-norm': False, 'Perron-Frobenius': False, 'monotone': True}
    """
    shape = _structure(model)
    if isinstance(shape, Affine):
        return _affine(shape)
    if isinstance(shape, Tied):
        return _tied(shape)
    if isinstance(shape, Lipschitz):
        c, q = _value(shape.constant), _value(shape.input_lipschitz)
        return [_factor("contraction", "Lipschitz constant", c, q, "its norm")]
    why = f"no certificate is known for {shape.what}; look at the residual of every solve."
    return [Certificate("not certified", False, math.nan, None, None, False, math.inf, why)]


def certify(model: Structured | Structure | Tensor) -> Certificate:
    """Return the first certificate that holds, or one that says none does and how far off.

    Where an equilibrium is known to be missing (ReLU, W ≥ 0 of spectral radius at least 1, every
    injection positive), that is returned, with ``exists=False``. Takes and raises what
    ``certificates`` does. The conditions are those of ``gao2022.lemma2.2`` (contraction),
    ``nguyen2022.definition3.2.1`` (monotone) and ``xie2022.wellposed`` (tied layers).

    >>> certify(torch.tensor([[0.0, 4.0], [-4.0, 0.0]])).kind
    'monotone'
    >>> certify(torch.tensor([[2.0]])).exists  # z = relu(2z + 1) runs away
    False
    >>> certify(torch.tensor([[0.0, -2.0], [-2.0, 0.0]])).kind
    'not certified'
    """
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


def _structure(model: Structured | Structure | Tensor) -> Structure:
    if isinstance(model, Tensor):
        return Affine(model)
    if isinstance(model, Structure):
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
        if slope <= 1
        else f", but σ is no proximal map: L_σ = {slope:.4g} > 1."
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
    factors = [s.alpha * max(slope * w * w / s.tau, 0.0) + 1 - s.alpha for w in sizes]
    product = math.prod(factors)
    inputs = _value(s.input_lipschitz) or (1.0,) * len(s.Ws)
    through, total = 1.0, 0.0
    for w, c, q in reversed(list(zip(sizes, factors, inputs))):
        total += through * s.alpha / s.tau * slope * w * q
        through *= c
    over = "" if s.tau == 1 else "/τ"
    symbol = f"∏(α L_σ‖W_l‖²{over} + 1 − α)"
    found = [_factor("contraction", symbol, product, total, "‖·‖₂")]
    worst = max(sizes) / math.sqrt(s.tau)
    rounding = max(ROUNDING, 50 * torch.finfo(s.Ws[0].dtype).eps)
    holds = slope * worst**2 <= 1 + rounding
    exists = True if holds and (s.sigma.bounded or found[0].holds) else None
    why = f"max ‖W_l‖{'' if s.tau == 1 else '/√τ'} = {worst:.4g}" + (
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
