r"""Constants for the training of an unrolled OptEq (xie2022, Lemmas 12 to 19 and Theorem 5).

The network runs K steps :math:`z^{(k)}=\beta_ks_k(z^{(k-1)})+(1-\beta_k)T(z^{(k-1)})` and reads out
:math:`Vz^{(K)}`, with :math:`T=f_L\circ\dots\circ f_1`,
:math:`f_l(z)=\alpha W_l^\top\sigma(W_lz+U_lx+b_l)+(1-\alpha)z` and
:math:`s_k(z)=(1-\gamma\lambda_k)z-\gamma\nabla R(z)`. Norms of a batch are Frobenius norms.

``Compact`` holds the bounds on the parameters and derives from them, without running the network,
how far its states, derivatives and second derivatives can go. ``pl_ball_conditions`` is the
convergence theorem that survives; ``printed_constants`` are those of the theorem as printed.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from deqbook.bounds.conditions import Condition, Conditions
from deqbook.regularize.selection import Schedule

RELATIVE = 1 - 1 / math.sqrt(2)  # σ_min may lose this share while its square loses one half


def frozen_bound(
    schedule: Schedule, *, fixed: float, start: float, origin: float, pull: float
) -> float:
    r"""Return B* ≥ ‖z⁽ᵏ⁾‖ for all k, for a T that need not contract (Lemma 12).

    ``fixed`` is B₁, a bound on the fixed points of :math:`\beta s_\lambda+(1-\beta)T` for all
    :math:`\beta\le\tfrac12`, :math:`\lambda\le L_R/2`; ``origin`` is ‖T(0)‖, ``pull`` ‖∇R(0)‖.

    .. math:: B^*=B_1+\max\Big\{\|z^{(0)}\|+B_1,\ \frac{2^{1+\rho}\rho M}{\gamma^2\beta_1^3}
        +\frac{2^{1+\rho+c}(\rho+c)B_1}{\gamma\beta_1^2}\Big\},\quad
        M=2B_1+\gamma\|\nabla R(0)\|+\|T(0)\|.
    """
    s, rho, c = schedule, schedule.rho, schedule.c
    M = 2 * fixed + s.gamma * pull + origin
    drift = 2 ** (1 + rho) * rho * M / (s.gamma**2 * s.eta**3)
    drift += 2 ** (1 + rho + c) * (rho + c) * fixed / (s.gamma * s.eta**2)
    return fixed + max(start + fixed, drift)


@dataclass(frozen=True)
class Compact:
    r"""A compact set of parameters, and what it implies for the unrolled network.

    ``norm`` ≥ ‖W_l‖ (at most 1), ``inputs`` ≥ ‖U_l‖ and ‖b_l‖, ``data`` ≥ ‖X‖_F,
    ``readout`` ≥ ‖V‖, ``start`` ≥ ‖Z⁽⁰⁾‖_F, ``pull`` = ‖∇R(0)‖_F. The activation is monotone and
    1-Lipschitz with value ``sigma0`` = |σ(0)| and \|σ''| ≤ ``bend``. ``features`` is L_g, the
    Lipschitz constant of trained features X = g(W₀), linear in W₀; 0 if they are fixed.
    """

    n: int
    widths: tuple[int, ...]
    alpha: float
    betas: tuple[float, ...]
    norm: float
    inputs: float
    data: float
    readout: float
    sigma0: float
    bend: float
    start: float = 0.0
    gamma: float = 0.0
    pull: float = 0.0
    features: float = 0.0

    @property
    def L(self) -> int:
        """Return the number of layers."""
        return len(self.widths)

    @property
    def K(self) -> int:
        """Return the number of steps."""
        return len(self.betas)

    @property
    def passes(self) -> float:
        """Return Σ(1-β_k) ≤ K: how often the parameters act."""
        return sum(1 - beta for beta in self.betas)

    @property
    def modulus(self) -> float:
        """Return the contraction modulus (αω²+1-α)^L of T."""
        return (self.alpha * self.norm**2 + 1 - self.alpha) ** self.L

    def unit(self, width: int) -> float:
        r"""Return :math:`\sqrt{nn_l}|\sigma(0)|+B(B_x+\sqrt n)\ge\|\sigma(U_lx+b_l)\|`."""
        injected = self.inputs * (self.data + math.sqrt(self.n))
        return math.sqrt(self.n * width) * self.sigma0 + injected

    @property
    def origin(self) -> float:
        r"""Return B₀ ≥ ‖f_l∘…∘f_1(0)‖ for every l: αω Σ_l unit(n_l)."""
        return self.alpha * self.norm * sum(self.unit(h) for h in self.widths)

    @property
    def state(self) -> float:
        r"""Return B* ≥ ‖Z⁽ᵏ⁾‖ (Lemma 12): the smaller of two bounds.

        :math:`\max\{\|Z^{(0)}\|,\ (B_0+\gamma\|\nabla R(0)\|)/(1-q)\}`, uniform in the number of
        steps, and :math:`\|Z^{(0)}\|+\sum_k[(1-\beta_k)B_0+\beta_k\gamma\|\nabla R(0)\|]`.
        """
        pull = self.gamma * self.pull
        summed = self.start + sum((1 - b) * self.origin + b * pull for b in self.betas)
        if self.modulus >= 1:
            return summed
        return min(summed, max(self.start, (self.origin + pull) / (1 - self.modulus)))

    @property
    def layer(self) -> float:
        """Return B* + B₀ ≥ ‖Z⁽ᵏ,ˡ⁾‖, the states between layers (Lemma 12)."""
        return self.state + self.origin

    def in_W(self, width: int) -> float:
        r"""Return C_z with ‖∂f_l/∂W_l‖ ≤ αC_z (Lemma 14): unit(n_l) + 2(B*+B₀)."""
        return self.unit(width) + 2 * self.layer

    def in_V(self) -> float:
        r"""Return the bound of Lemma 18, :math:`2\gamma B^*\|V\|\sum_k\beta_k`."""
        return 2 * self.gamma * self.state * self.readout * sum(self.betas)

    @property
    def state_lipschitz(self) -> float:
        r"""Return Λ, a Lipschitz constant of all states in the parameters (Lemma 19).

        .. math:: \Lambda=\alpha K\Big(\sum_l(C_{z,l}^2+B_x^2+n)+(LBL_g)^2\Big)^{1/2}
        """
        squares = sum(self.in_W(h) ** 2 + self.data**2 + self.n for h in self.widths)
        squares += (self.L * self.inputs * self.features) ** 2
        return self.alpha * self.K * math.sqrt(squares)

    @property
    def pre_lipschitz(self) -> float:
        r"""Return P, a Lipschitz constant of the pre-activations of every layer.

        .. math:: P=\big((B^*+B_0)^2+B_x^2+n+(BL_g)^2\big)^{1/2}+\Lambda
        """
        direct = self.layer**2 + self.data**2 + self.n + (self.inputs * self.features) ** 2
        return math.sqrt(direct) + self.state_lipschitz

    @property
    def pattern_lipschitz(self) -> float:
        """Return a Lipschitz constant of the slopes D: sup|σ''|·P."""
        return self.bend * self.pre_lipschitz

    @property
    def product_lipschitz(self) -> float:
        r"""Return a Lipschitz constant of J_L⋯J_1: :math:`\alpha(2\sqrt L+L\sup|\sigma''|P)`."""
        return self.alpha * (2 * math.sqrt(self.L) + self.L * self.pattern_lipschitz)

    @property
    def jacobian_lipschitz(self) -> float:
        r"""Return a Lipschitz constant of :math:`\partial z^{(K)}/\partial\theta` (Lemma 19).

        .. math:: C_1=\alpha KL\,(2P+2\Lambda+2L_g+\sup|\sigma''|\,P^2)
        """
        P, Lam = self.pre_lipschitz, self.state_lipschitz
        return self.alpha * self.K * self.L * (2 * (P + Lam + self.features) + self.bend * P**2)

    @property
    def output_lipschitz(self) -> float:
        r"""Return C = ‖V‖C₁ + Λ for the Jacobian of the outputs, V trained too."""
        return self.readout * self.jacobian_lipschitz + self.state_lipschitz


def pl_ball_conditions(
    *, kernel_min: float, kernel_max: float, loss: float, lipschitz: float, radius: float
) -> Conditions:
    r"""Return the conditions under which gradient descent fits the data from where it starts.

    ``kernel_min`` = λ_H and ``kernel_max`` are eigenvalues of H = JJᵀ at the start, ``loss`` is
    :math:`\mathcal L_0`, ``lipschitz`` a Lipschitz constant C of J on the ball of radius r =
    ``radius``. If :math:`4\sqrt{\mathcal L_0/\lambda_H}\le r` and
    :math:`Cr\le(1-1/\sqrt2)\sqrt{\lambda_H}`, then for
    :math:`\eta\le1/(\bar J^2+C\sqrt{2\mathcal L_0})`, :math:`\bar J=\|J_0\|+Cr`, descent stays
    in the ball and :math:`\mathcal L_t\le(1-\eta\lambda_H/2)^t\mathcal L_0`.
    """
    root = math.sqrt(max(kernel_min, 0.0))
    travel = 4 * math.sqrt(loss) / root if root > 0 else math.inf
    jacobian = math.sqrt(kernel_max) + lipschitz * radius
    smoothness = jacobian**2 + lipschitz * math.sqrt(2 * loss)
    return Conditions(
        "xie2022, Theorem 5 (repaired)",
        (
            Condition("full rank", "λ_H > 0", kernel_min, sys.float_info.min),
            Condition("room to travel", "r ≥ 4√(𝓛₀/λ_H)", radius, travel),
            Condition("kernel stays", "(1-1/√2)√λ_H ≥ Cr", RELATIVE * root, lipschitz * radius),
        ),
        rate=kernel_min / 2,
        step=1 / smoothness,
        constants={
            "lambda0": kernel_min,
            "C": lipschitz,
            "rho": radius,
            "travel": travel,
            "Jbar": jacobian,
            "beta": smoothness,
        },
    )


def printed_layer_bound(size: Compact, m: int, width: int) -> float:
    r"""Return the printed bound of Lemma 14 on ‖∂f_l/∂W_l‖ ÷ α; its root lacks the samples.

    .. math:: \sqrt{mn_l}\,\sigma(0)+6B^*+2BB_x
    """
    return math.sqrt(m * width) * size.sigma0 + 6 * size.state + 2 * size.inputs * size.data


def printed_gradient_bound(
    *, K: int, L: int, alpha: float, kappa: float, sigma_m: float, n: int, sigma_v: float
) -> float:
    r"""Return the printed lower bound of Lemma 16 on ‖∇𝓛‖² ÷ ‖e‖²: K²Lα²κ²σ_m²nσ_min(V)²."""
    return (K * alpha * kappa * sigma_m * sigma_v) ** 2 * L * n


def printed_constants(
    size: Compact,
    *,
    m: int,
    state: float,
    kappa: float,
    sigma_m: float,
    sigma_v: float,
    loss: float,
) -> dict[str, float]:
    r"""Return Q₀ and Q₁ of Theorem 5 as printed (Eq. 30), with the constants they are made of.

    ``state`` is B*, ``kappa`` ≤ σ', ``sigma_m`` the lower bound on the singular values of W_l,
    ``sigma_v`` = σ_min(V) at the start, ``loss`` = 𝓛₀. L_g is ``size.features``.
    """
    L, K, alpha, bend, g = size.L, size.K, size.alpha, size.bend, size.features
    C_z = math.sqrt(m * max(size.widths)) * size.sigma0 + 6 * state + 3 * size.inputs * size.data
    C_D = max(3 * state, size.data)
    B_J = 2 * alpha * math.sqrt(L) * K * C_z
    C_J = 9 * alpha * math.sqrt(L) * state * bend * C_z * g
    C_J += 2 * math.sqrt(3 * L) * alpha * K * state * bend * C_D
    Q_0 = printed_gradient_bound(
        K=K, L=L, alpha=alpha, kappa=kappa, sigma_m=sigma_m, n=size.n, sigma_v=sigma_v
    )
    Q_1 = (C_J + B_J) * math.sqrt(loss)
    Q_1 += 2 * alpha * math.sqrt(L) * K * C_z * g * B_J * size.readout
    return {"Q0": Q_0 / 4, "Q1": Q_1, "C_z": C_z, "C_D": C_D, "B_J": B_J, "C_J": C_J}
