r"""When training the vanilla DEQ by gradient descent converges linearly (ling2023, Section 3).

The network is :math:`z=\sigma(Wz+Ux)`, :math:`\hat y=a^\top z`. Around each initial parameter
lies a ball of radius :math:`\delta`; inside, :math:`\bar\rho_w=\|W(0)\|+\delta<1`,
:math:`\bar\rho_u=\|U(0)\|+\delta` and :math:`\bar\rho_a=\|a(0)\|+\delta` bound the norms, and

.. math:: c_w=\frac{\bar\rho_u\bar\rho_a}{(1-\bar\rho_w)^2},\quad
          c_u=\frac{\bar\rho_a}{1-\bar\rho_w},\quad c_a=\frac{\bar\rho_u}{1-\bar\rho_w}

bound the gradients: :math:`\|\nabla_W\mathcal L\|_F\le c_w\|X\|_F\|e\|`, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.bounds.conditions import Condition, Conditions
from deqbook.linalg import operator_norm
from deqbook.models import VanillaDEQ

__all__ = ["Scales", "condition_one", "scales"]


@dataclass(frozen=True)
class Scales:
    r"""The numbers of Condition 1: norms in the balls, :math:`\|X\|_F`, :math:`\lambda_Z`, error.

    ``w``, ``u``, ``a`` are the :math:`\bar\rho`, ``x`` is :math:`\|X\|_F`, ``lambda0`` is
    :math:`\lambda_{\min}(ZZ^\top)` at the start, ``error`` is :math:`\|e(0)\|`.

    >>> s = Scales(n=1, delta=0.1, w=0.5, u=2.0, a=1.0, x=1.0, lambda0=4.0, error=1.0)
    >>> s.gradients, s.implicit, s.total
    ({'W': 8.0, 'U': 2.0, 'a': 4.0}, 68.0, 84.0)
    >>> s.factor(s.step) < 1  # λ_Z is too small for these gradients
    False
    """

    n: int
    delta: float
    w: float
    u: float
    a: float
    x: float
    lambda0: float
    error: float

    @property
    def gradients(self) -> dict[str, float]:
        """Return c_w, c_u, c_a by the name of the parameter; infinite if the ball leaves ‖W‖<1."""
        left = 1 - self.w
        if left <= 0:
            return dict.fromkeys(("W", "U", "a"), math.inf)
        return {"W": self.u * self.a / left**2, "U": self.a / left, "a": self.u / left}

    @property
    def implicit(self) -> float:
        r"""Return :math:`C=c_w^2+c_u^2`, what the inner weights contribute."""
        return self.gradients["W"] ** 2 + self.gradients["U"] ** 2

    @property
    def total(self) -> float:
        r"""Return :math:`T=c_w^2+c_u^2+c_a^2`."""
        return self.implicit + self.gradients["a"] ** 2

    @property
    def step(self) -> float:
        r"""Return the step (10), :math:`\min\{2/\lambda_Z,\ 2C/(T^2\|X\|_F^2)\}`."""
        if not math.isfinite(self.total) or self.lambda0 <= 0:
            return 0.0
        return min(2 / self.lambda0, 2 * self.implicit / (self.total * self.x) ** 2)

    def factor(self, eta: float) -> float:
        r"""Return what one step does to the loss at most, before any use of (9) or (10).

        :math:`1-\eta\lambda_Z+2\eta C\|X\|_F^2+\eta^2T^2\|X\|_F^4`.
        """
        x2 = self.x**2
        return 1 - eta * (self.lambda0 - 2 * self.implicit * x2) + (eta * self.total * x2) ** 2


@torch.no_grad()
def scales(model: VanillaDEQ, X: Tensor, y: Tensor, delta: float, *, tol: float = 1e-13) -> Scales:
    """Measure the network at its start: ``X`` is (n, d), ``y`` (n,), ``delta`` the radius of balls.

    ``tol`` is for the equilibria. ``ValueError`` if ``delta`` is not positive or the network has a
    bias, which the theorem does not know.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> s = scales(VanillaDEQ(one / 2, one, one[0]), one, 3 * one[0], delta=0.1)  # z = 2
    >>> round(s.w, 6), round(s.lambda0, 6), round(s.error, 6)
    (0.6, 4.0, 1.0)
    """
    if not delta > 0:
        raise ValueError(f"delta, the radius of the balls, must be positive, got {delta!r}.")
    model.refuse_bias()
    z = model.solve(X, tol=tol).z
    return Scales(
        n=X.shape[0],
        delta=delta,
        w=operator_norm(model.W.detach()) + delta,
        u=operator_norm(model.U.detach()) + delta,
        a=float(model.a.norm()) + delta,
        x=float(X.norm()),
        lambda0=float(torch.linalg.eigvalsh(z @ z.mT)[0]),
        error=float((z @ model.a - y).norm()),
    )


def condition_one(
    model: VanillaDEQ, X: Tensor, y: Tensor, delta: float, *, printed: bool = False
) -> Conditions:
    r"""Return Condition 1 with (9'), or the printed (9), and the step (10) (ling2023.theorem1).

    It asks for (7) :math:`\lambda_Z\ge\frac4\delta\max(c_w,c_u,c_a)\|X\|_F\|e(0)\|`,
    (8) :math:`\lambda_Z^{3/2}\ge4(2+\sqrt2)\bar\rho_a^{-1}C\|X\|_F^2\|e(0)\|` and
    (9') :math:`\lambda_Z\ge8C\|X\|_F^2` with :math:`C=c_w^2+c_u^2`; the printed (9) has 4. Then
    :math:`\mathcal L(k)\le(1-\eta\lambda_Z/2)^k\mathcal L(0)` for :math:`\eta` up to ``step``.
    Arguments are those of ``scales``; ``printed=True`` takes (9).

    >>> one, y = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    >>> long = VanillaDEQ(0 * one, 10 * one, 0.01 * one[0])  # long features, a small read-out
    >>> condition_one(long, one, y, delta=0.1).holds
    True
    >>> condition_one(VanillaDEQ(one / 2, one, one[0]), one, y, delta=0.1).holds
    False
    """
    s = scales(model, X, y, delta)
    x2, C = s.x**2, s.implicit
    number, name = (4, "(9)") if printed else (8, "(9')")
    asked = (
        Condition("ball", "1 ≥ ‖W(0)‖ + δ", 1.0, s.w),
        Condition(
            "(7)",
            "λ_Z ≥ 4 max(c_w, c_u, c_a)‖X‖_F‖e(0)‖/δ",
            s.lambda0,
            4 / delta * max(s.gradients.values()) * s.x * s.error,
        ),
        Condition(
            "(8)",
            "λ_Z^{3/2} ≥ 4(2+√2)(c_w²+c_u²)‖X‖_F²‖e(0)‖/ρ̄_a",
            max(s.lambda0, 0.0) ** 1.5,
            4 * (2 + math.sqrt(2)) * C * x2 * s.error / s.a,
        ),
        Condition(name, f"λ_Z ≥ {number}(c_w²+c_u²)‖X‖_F²", s.lambda0, number * C * x2),
    )
    known = {"lambda0": s.lambda0, "error": s.error, "rho_w": s.w, "rho_u": s.u, "rho_a": s.a}
    known |= {f"c_{k.lower()}": v for k, v in s.gradients.items()} | {"C": C, "T": s.total}
    return Conditions("ling2023, Theorem 1", asked, s.lambda0 / 2, s.step, known)
