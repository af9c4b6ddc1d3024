r"""When training a ReLU implicit network converges linearly (gao2022, gao2023).

The network is :math:`\phi=m^{-1/2}\sigma(Ux)`, :math:`z=\sigma(\tilde\gamma Wz+\phi)`,
:math:`\hat y=a^\top z+c^\top\phi`, with inputs of length at most 1. All bounds start from

.. math:: \omega=m^{-1/2}\max(\|W(0)\|,\|U(0)\|),\quad\lambda_G\le\tfrac43\lambda_{\min}(G(0)),
          \quad G=\Phi\Phi^\top,\quad\|e(0)\|=\|\hat y(0)-y\|.

While the norms have at most doubled, :math:`\|\phi_i\|\le2\omega`, :math:`\|z_i\|\le4\omega` and
:math:`\|v_i\|\le2\|a\|\le4\sqrt m`, which bounds every gradient by a multiple of :math:`\|e\|`.
The constants here are derived in the book; those of the sources cannot be used as printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.bounds.conditions import Condition, Conditions
from deqbook.kernels import gram_parts
from deqbook.linalg import operator_norm
from deqbook.models import ReLUImplicit
from deqbook.models.closed_form import margin

__all__ = [
    "Scales",
    "descent_conditions",
    "feature_gram",
    "flow_conditions",
    "implicit_only_conditions",
    "printed_width_range",
    "scales",
]


@torch.no_grad()
def feature_gram(model: ReLUImplicit, X: Tensor) -> Tensor:
    r"""Return :math:`G=\Phi\Phi^\top=\frac1m\sigma(XU^\top)\sigma(XU^\top)^\top`, (n, n).

    >>> eye, a = torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    >>> feature_gram(ReLUImplicit(eye, eye, a, a, gamma=0.2), eye).round(decimals=6).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    phi = model.inject(X)
    return phi @ phi.mT


@dataclass(frozen=True)
class Scales:
    r"""The numbers at initialisation that the theorems are made of.

    ``gram`` is :math:`\lambda_{\min}(G(0))`, ``lambda0`` the :math:`\lambda_G` of the theorem, at
    most :math:`\frac43` of it; ``error`` is :math:`\|e(0)\|`, ``readout`` the larger
    of :math:`\|a(0)\|,\|c(0)\|`, ``x`` the norm :math:`\|X\|`, ``row`` the longest input.
    ``margin`` is the distance that W and U may both move before a unit can change side,
    :math:`\min\{\min|Ux_i|,\ \tfrac38\sqrt m\,\min|\tilde\gamma Wz_i+\phi_i|\}`.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> s = scales(ReLUImplicit(one, one, one[0], one[0], gamma=0.2), one, one[0])  # n = m = ω = 1
    >>> {name: round(beta, 6) for name, beta in s.gradients.items()}, round(s.smoothness, 6)
    ({'W': 4.0, 'U': 6.0, 'a': 4.0, 'c': 2.0}, 72.0)
    """

    n: int
    m: int
    gamma: float
    omega: float
    lambda0: float
    gram: float
    error: float
    readout: float
    x: float
    row: float
    margin: float

    @property
    def gradients(self) -> dict[str, float]:
        r"""Return :math:`\beta` with :math:`\|\nabla\mathcal L\|_F\le\beta\|e\|`, norms doubled.

        :math:`4\sqrt n,\ 6\sqrt n,\ 4\omega\sqrt n,\ 2\omega\sqrt n` for W, U, a, c.
        """
        root = math.sqrt(self.n)
        return {
            "W": 4 * root,
            "U": 6 * root,
            "a": 4 * self.omega * root,
            "c": 2 * self.omega * root,
        }

    @property
    def smoothness(self) -> float:
        r"""Bound :math:`\lambda_{\max}(H)\le(20\omega^2+52)n`, all gradients squared."""
        return sum(beta**2 for beta in self.gradients.values())

    @property
    def flow_displacements(self) -> dict[str, float]:
        r"""Bound the whole way under gradient flow, :math:`\frac2{\lambda_G}\beta\|e(0)\|`."""
        return self._displacements(2.0)

    @property
    def descent_displacements(self) -> dict[str, float]:
        r"""Bound the whole way under descent, :math:`\frac8{3\lambda_G}\beta\|e(0)\|`."""
        return self._displacements(8 / 3)

    def _displacements(self, factor: float) -> dict[str, float]:
        scale = _over(factor * self.error, self.lambda0)
        return {name: scale * beta for name, beta in self.gradients.items()}

    @property
    def remainder(self) -> float:
        r"""Return k with :math:`\|\hat y^+-\hat y+\eta He\|\le k\,\eta^2\|e\|^2` if no unit flips.

        :math:`k=(92\omega+80/\omega)\,n^{3/2}/\sqrt m`.
        """
        return (92 * self.omega + 80 / self.omega) * self.n**1.5 / math.sqrt(self.m)


def _over(a: float, b: float) -> float:
    """Return a/b, infinite when b vanishes."""
    return a / b if b > 0 else math.inf


def _omega(model: ReLUImplicit) -> float:
    W, U = model.W.detach(), model.U.detach()
    omega = max(operator_norm(W), operator_norm(U)) / math.sqrt(model.m)
    if omega == 0:
        raise ValueError(
            "ω = max(‖W(0)‖, ‖U(0)‖)/√m is 0: all weights are zero, and so is the network. Draw "
            "them, as ReLUImplicit.init does."
        )
    return omega


@torch.no_grad()
def scales(
    model: ReLUImplicit, X: Tensor, y: Tensor, *, lambda0: float | None = None, tol: float = 1e-13
) -> Scales:
    r"""Measure the network at its start; ``lambda0`` is :math:`\frac43\lambda_{\min}(G(0))`.

    Another choice, such as :math:`\lambda_{\min}(G^\infty)`, may be passed. ``X`` is (n, d), ``y``
    (n,); ``tol`` is for the equilibria. ``ValueError`` if W and U are zero.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = ReLUImplicit(one, one, one[0], one[0], gamma=0.2)  # φ = 1, z = 1.25, output 2.25
    >>> s = scales(model, one, one[0])
    >>> round(s.gram, 6), round(s.error, 6), round(s.margin, 6)
    (1.0, 1.25, 0.46875)
    """
    gram = float(torch.linalg.eigvalsh(feature_gram(model, X))[0])
    z, q = model.solve(X, tol=tol).z, model.inject(X)
    near = min(float((X @ model.U.mT).abs().min()), 3 / 8 * model.m**0.5 * margin(model, X, z))
    return Scales(
        n=X.shape[0],
        m=model.m,
        gamma=model.gamma,
        omega=_omega(model),
        lambda0=4 / 3 * gram if lambda0 is None else lambda0,
        gram=gram,
        error=float((model.readout(z, q) - y).norm()),
        readout=max(float(model.a.norm()), float(model.c.norm())),
        x=operator_norm(X),
        row=float(X.norm(dim=1).max()),
        margin=near,
    )


def _initial(s: Scales) -> tuple[Condition, ...]:
    """Return what both theorems ask for."""
    root = math.sqrt(s.m)
    width = 192 * s.omega * s.n**1.5 * _over(s.error, s.lambda0**2)
    return (
        Condition("inputs", "1 ≥ max‖xᵢ‖", 1 + 1e-12, s.row),
        Condition("read-outs", "√m ≥ ‖a(0)‖, ‖c(0)‖", root * (1 + 1e-12), s.readout),
        Condition("scale", "1/(4ω) ≥ γ", 1 / (4 * s.omega), s.gamma),
        Condition("gram", "λ_min(G(0)) ≥ ¾λ_G", s.gram * (1 + 1e-12), 0.75 * s.lambda0),
        Condition("eigenvalue", "1 ≥ λ_G > 0", 1.0 if s.lambda0 > 0 else -1.0, max(s.lambda0, 0.0)),
        Condition("width", "√m ≥ 192 ω n^{3/2} ‖e(0)‖ / λ_G²", root, width),
    )


def _constants(s: Scales) -> dict[str, float]:
    width = _over(s.omega * s.error, s.lambda0**2)
    return {
        "omega": s.omega,
        "lambda0": s.lambda0,
        "error": s.error,
        "margin": s.margin,
        "m needed": (192 * s.n**1.5 * width) ** 2,
        "m needed, by norm of X": (144 * math.sqrt(s.n) * s.x**2 * width) ** 2,
    }


def flow_conditions(
    model: ReLUImplicit, X: Tensor, y: Tensor, *, lambda0: float | None = None
) -> Conditions:
    r"""Return the conditions of gao2022, Theorem 3.1, repaired, for gradient flow.

    Then :math:`\|e(t)\|^2\le e^{-\lambda_Gt}\|e(0)\|^2`,
    :math:`\lambda_{\min}(G(t))\ge\lambda_G/2`, :math:`\|W\|,\|U\|\le2\omega\sqrt m`,
    :math:`\|a\|,\|c\|\le2\sqrt m`, and the weights stay within
    ``scales(…).flow_displacements``. The constant "m needed, by norm of X" is, for inputs of length
    1, the sharper width :math:`\sqrt m\ge144\,\omega\sqrt n\,\|X\|^2\|e(0)\|/\lambda_G^2`.
    Arguments are those of ``scales``.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = ReLUImplicit(one, one, one[0], one[0], gamma=0.2)  # the output is 2.25
    >>> flow_conditions(model, one, 2.249 * one[0], lambda0=1.0).holds
    True
    >>> print(flow_conditions(model, one, one[0], lambda0=1.0).worst)
    width: 1 < 240 (need/have 240)
    """
    s = scales(model, X, y, lambda0=lambda0)
    way = {f"way of {k}": v for k, v in s.flow_displacements.items()}
    return Conditions("gao2022, Theorem 3.1", _initial(s), s.lambda0, constants=_constants(s) | way)


def descent_conditions(
    model: ReLUImplicit, X: Tensor, y: Tensor, *, lambda0: float | None = None
) -> Conditions:
    r"""Return the conditions of a provable form of gao2022, Theorem 3.2, for gradient descent.

    Those of the flow; the step :math:`\eta\le1/((20\omega^2+52)n)`; and that no unit can change
    side, :math:`\frac{16\sqrt n}{\lambda_G}\|e(0)\|<\text{margin}`. Then
    :math:`\|e(k)\|^2\le(1-\eta\lambda_G/2)^k\|e(0)\|^2`. The last condition replaces a step of the
    source's proof that fails; it is about small errors, not about large widths.
    Arguments are those of ``scales``.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = ReLUImplicit(one, one, one[0], one[0], gamma=0.2)  # the output is 2.25
    >>> found = descent_conditions(model, one, 2.249 * one[0], lambda0=1.0)
    >>> found.holds, round(1 / found.step, 6)
    (True, 72.0)
    """
    s = scales(model, X, y, lambda0=lambda0)
    way = s.descent_displacements
    asked = (*_initial(s), Condition("margin", "margin ≥ 16√n‖e(0)‖/λ_G", s.margin, way["U"]))
    known = _constants(s) | {f"way of {k}": v for k, v in way.items()}
    known |= {"remainder": s.remainder}
    return Conditions("gao2022, Theorem 3.2", asked, s.lambda0 / 2, 1 / s.smoothness, known)


def printed_width_range(
    model: ReLUImplicit, X: Tensor, y: Tensor, *, lambda0: float | None = None
) -> tuple[float, float]:
    r"""Return the least and the largest width that the printed proof of gao2022, Lemma 3.5 needs.

    :math:`m\ge2048\,\omega^2n\|X\|^2\|e(0)\|^2/\lambda_G^3` keeps U near its start;
    :math:`m\le64\,\omega^2n\|e(0)\|^2/\lambda_G^2` makes the bound on :math:`\|a\|` true at
    :math:`t=0`. The first exceeds the second by the factor :math:`32\|X\|^2/\lambda_G`.
    Arguments are those of ``scales``.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = ReLUImplicit(one, one, one[0], one[0], gamma=0.2)
    >>> least, largest = printed_width_range(model, one, one[0], lambda0=1.0)
    >>> round(least, 6), round(largest, 6)
    (3200.0, 100.0)
    """
    s = scales(model, X, y, lambda0=lambda0)
    common = s.omega**2 * s.n * s.error**2
    return _over(2048 * common * s.x**2, s.lambda0**3), _over(64 * common, s.lambda0**2)


@torch.no_grad()
def implicit_only_conditions(
    model: ReLUImplicit,
    X: Tensor,
    y: Tensor,
    *,
    room: float = 0.1,
    lambda0: float | None = None,
    tol: float = 1e-13,
) -> Conditions:
    r"""Return conditions under which gao2023, Theorem 3.1 is proved: W trained, no unit flips.

    With :math:`q_0=\tilde\gamma\|W(0)\|`, :math:`q=q_0+\mathrm{room}\,(1-q_0)`,
    :math:`\lambda_H=\lambda_{\min}(H(0))` and
    :math:`r=\frac{2\tilde\gamma\|a\|\|\Phi\|_F\|e(0)\|}{\lambda_H(1-q)^2}`:
    :math:`q_0+\tilde\gamma r\le q<1`;
    :math:`2\tilde\gamma^2r\|a\|\|\Phi\|_F/(1-q)^3\le(1-\frac1{\sqrt2})\sqrt{\lambda_H}`;
    :math:`\tilde\gamma r\max\|\phi_i\|/(1-q)^2<\min|\tilde\gamma Wz_i+\phi_i|`. Then
    :math:`\|W(t)-W(0)\|_F\le r`, :math:`\lambda_{\min}(H(t))\ge\lambda_H/2` and
    :math:`\|e(t)\|^2\le e^{-\lambda_Ht}\|e(0)\|^2`. ``ValueError`` unless 0 < room < 1.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = ReLUImplicit(one, one, one[0], 0 * one[0], gamma=0.2, train=("W",))  # output 1.25
    >>> [implicit_only_conditions(model, one, y * one[0]).holds for y in (1.249, 1.0)]
    [True, False]
    """
    if not 0 < room < 1:
        raise ValueError(f"room must lie between 0 and 1, got {room!r}.")
    scale, a = model.scale, float(model.a.norm())
    z, q = model.solve(X, tol=tol).z, model.inject(X)
    if lambda0 is None:
        lambda0 = float(torch.linalg.eigvalsh(gram_parts(model, X, tol=tol)["W"])[0])
    rho0 = scale * operator_norm(model.W.detach())
    rho = rho0 + room * (1 - rho0)
    left = 1 - rho
    error, features = float((model.readout(z, q) - y).norm()), float(q.norm())
    r = _over(2 * scale * a * features * error, lambda0 * left**2) if left > 0 else math.inf
    moved = scale * r / left**2 if left > 0 else math.inf
    asked = (
        Condition("contraction", "1 ≥ γ̃‖W(0)‖", 1.0, rho0),
        Condition("ball", "q - q₀ ≥ γ̃r", rho - rho0, scale * r),
        Condition(
            "spectrum",
            "(1-1/√2)√λ_H ≥ 2γ̃²r‖a‖‖Φ‖_F/(1-q)³",
            (1 - math.sqrt(0.5)) * math.sqrt(max(lambda0, 0.0)),
            2 * scale * moved * a * features / left if left > 0 else math.inf,
        ),
        Condition(
            "margin",
            "min|γ̃Wz+φ| ≥ γ̃r max‖φᵢ‖/(1-q)²",
            margin(model, X, z),
            moved * float(q.norm(dim=1).max()),
        ),
    )
    known = {"lambda0": lambda0, "rho0": rho0, "rho": rho, "way of W": r, "error": error}
    return Conditions("gao2023, Theorem 3.1", asked, lambda0, constants=known)
