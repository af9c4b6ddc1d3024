"""The dense models: ReLU implicit network, vanilla DEQ, monotone DEQ."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from deqbook.activations import Activation, activation, relu
from deqbook.implicit import IFT, Adjoint
from deqbook.linalg import operator_norm, symmetric_part
from deqbook.models.base import EquilibriumModel, Method, check_input, check_weights
from deqbook.runtime import generator, normal, signs
from deqbook.solvers import Newton
from deqbook.splitting import PeacemanRachford
from deqbook.wellposed import Affine

__all__ = ["MonDEQ", "ReLUImplicit", "VanillaDEQ", "monotone_parameters"]


class ReLUImplicit(EquilibriumModel):
    r"""ReLU implicit network (gao2022; gao2023 when only W is trained).

    :math:`\phi=m^{-1/2}\varphi(Ux)`, :math:`z=\sigma(\tilde\gamma Wz+\phi)` with
    :math:`\tilde\gamma=\gamma/\sqrt m`, output :math:`a^\top z+c^\top\phi`.
    """

    def __init__(
        self,
        W: Tensor,
        U: Tensor,
        a: Tensor,
        c: Tensor,
        gamma: float,
        *,
        phi: str | Activation = relu,
        train: tuple[str, ...] = ("W", "U", "a", "c"),
    ):
        super().__init__()
        sizes = check_weights(W=(W, ("m", "m")), U=(U, ("m", "d")), a=(a, ("m",)), c=(c, ("m",)))
        if not gamma > 0:
            raise ValueError(f"gamma must be positive, got {gamma!r}.")
        self.m, self.d, self.gamma = sizes["m"], sizes["d"], float(gamma)
        self.phi = activation(phi)
        self.W, self.U = (nn.Parameter(t.clone(), k in train) for t, k in ((W, "W"), (U, "U")))
        self.a, self.c = (nn.Parameter(t.clone(), k in train) for t, k in ((a, "a"), (c, "c")))

    @classmethod
    def init(
        cls, m: int, d: int, *, gamma: float, seed: int, dtype: torch.dtype = torch.float64
    ) -> ReLUImplicit:
        """Draw W, U ~ N(0, 1) and a, c = ±1 (gao2022, Assumption 1)."""
        g = generator(seed)
        W, U = normal(m, m, g=g, dtype=dtype), normal(m, d, g=g, dtype=dtype)
        return cls(W, U, signs(m, g=g, dtype=dtype), signs(m, g=g, dtype=dtype), gamma)

    @classmethod
    def init_implicit_only(
        cls,
        m: int,
        d: int,
        *,
        gamma: float,
        seed: int,
        phi: str | Activation = relu,
        dtype: torch.dtype = torch.float64,
    ) -> ReLUImplicit:
        """Draw the network of gao2023: no feature read-out (c = 0) and only W trained.

        That source writes the transposes: its A is our Wᵀ and its W our Uᵀ.
        """
        g = generator(seed)
        W, U = normal(m, m, g=g, dtype=dtype).mT, normal(d, m, g=g, dtype=dtype).mT
        a = signs(m, g=g, dtype=dtype)
        return cls(W, U, a, torch.zeros_like(a), gamma, phi=phi, train=("W",))

    @property
    def scale(self) -> float:
        r"""Return :math:`\tilde\gamma=\gamma/\sqrt m`."""
        return self.gamma / math.sqrt(self.m)

    def inject(self, x: Tensor) -> Tensor:
        """Return the features φ."""
        return self.phi(check_input(x, self.d) @ self.U.mT) / math.sqrt(self.m)

    def weights(self) -> tuple[Tensor, ...]:
        """The cell depends on W."""
        return (self.W,)

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return σ(γ̃ W z + φ)."""
        (W,) = weights
        return torch.addmm(q, z, W.mT, alpha=self.scale).relu_()

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return a·z + c·φ."""
        return z @ self.a + q @ self.c

    def structure(self) -> Affine:
        """An affine ReLU cell with matrix γ̃W."""
        U, root = self.U.detach(), math.sqrt(self.m)
        return Affine(self.scale * self.W.detach(), relu, lambda: operator_norm(U) / root)


class _PlainCell(EquilibriumModel):
    r"""What :math:`z=\sigma(Wz+Ux)`, output :math:`a^\top z`, shares however W is made."""

    d: int
    sigma: Activation
    U: nn.Parameter
    a: nn.Parameter

    @abstractmethod
    def matrix(self) -> Tensor:
        """Return W."""

    def inject(self, x: Tensor) -> Tensor:
        """Return Ux."""
        return check_input(x, self.d) @ self.U.mT

    def weights(self) -> tuple[Tensor, ...]:
        """The cell depends on W."""
        return (self.matrix(),)

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return σ(Wz + q)."""
        (W,) = weights
        return self.sigma(torch.addmm(q, z, W.mT))

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return a·z."""
        return z @ self.a

    def structure(self) -> Affine:
        """An affine cell with matrix W."""
        U = self.U.detach()
        return Affine(self.matrix().detach(), self.sigma, lambda: operator_norm(U))


class VanillaDEQ(_PlainCell):
    r"""The DEQ of ling2023: :math:`z=\sigma(Wz+Ux)`, output :math:`a^\top z`."""

    def __init__(self, W: Tensor, U: Tensor, a: Tensor, *, sigma: str | Activation = relu):
        super().__init__()
        sizes = check_weights(W=(W, ("m", "m")), U=(U, ("m", "d")), a=(a, ("m",)))
        self.m, self.d, self.sigma = sizes["m"], sizes["d"], activation(sigma)
        self.W, self.U, self.a = (nn.Parameter(t.clone()) for t in (W, U, a))

    @classmethod
    def init(
        cls,
        m: int,
        d: int,
        *,
        variance: float = 0.08,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ) -> VanillaDEQ:
        r"""Draw W ~ N(0, 2σ_w²/m), U ~ N(0, 2/d), a ~ N(0, 1/m) (ling2023, Assumption 1).

        ``variance`` is σ_w²; the assumption asks for less than 1/8.
        """
        g = generator(seed)
        W = normal(m, m, g=g, dtype=dtype) * math.sqrt(2 * variance / m)
        U = normal(m, d, g=g, dtype=dtype) * math.sqrt(2 / d)
        return cls(W, U, normal(m, g=g, dtype=dtype) / math.sqrt(m))

    def matrix(self) -> Tensor:
        """Return W."""
        return self.W


def monotone_parameters(W: Tensor, mu: float) -> tuple[Tensor, Tensor]:
    r"""Return A, B with :math:`W=(1-\mu)I-A^\top A+B-B^\top` (nguyen2022.proposition1, converse).

    Take :math:`B=\tfrac12W` and :math:`A=S^{1/2}` with
    :math:`S=(1-\mu)I-\tfrac12(W+W^\top)\succeq0`.
    """
    eye = torch.eye(W.shape[0], dtype=W.dtype, device=W.device)
    values, vectors = torch.linalg.eigh((1 - mu) * eye - symmetric_part(W))
    if float(values[0]) < -1e-12 * max(1.0, float(values.abs().max())):
        raise ValueError(
            f"I - W is not {mu:g}-strongly monotone: the largest modulus possible is "
            f"{mu + float(values[0]):.6g}. Lower mu."
        )
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT, W / 2


class MonDEQ(_PlainCell):
    r"""Monotone DEQ (nguyen2022, Definition 3.2.1).

    :math:`z=\sigma(Wz+Ux)`, output :math:`a^\top z`, with
    :math:`W=(1-\mu)I-A^\top A+B-B^\top`, hence :math:`I-W\succeq\mu I` for all A and B.
    Solved by Peaceman-Rachford splitting; plain iteration may diverge.
    """

    default_solver: ClassVar[Method] = PeacemanRachford()
    # Not a contraction, so the adjoint is solved by GMRES (restarted if need be), not iterated.
    default_adjoint: ClassVar[Adjoint] = IFT(solver=Newton("gmres", inner=60))

    def __init__(
        self,
        A: Tensor,
        B: Tensor,
        U: Tensor,
        a: Tensor,
        mu: float,
        *,
        sigma: str | Activation = relu,
    ):
        super().__init__()
        sizes = check_weights(
            A=(A, ("m", "m")), B=(B, ("m", "m")), U=(U, ("m", "d")), a=(a, ("m",))
        )
        if not mu > 0:
            raise ValueError(f"mu must be positive (strong monotonicity), got {mu!r}.")
        self.m, self.d, self.mu, self.sigma = sizes["m"], sizes["d"], float(mu), activation(sigma)
        self.A, self.B, self.U, self.a = (nn.Parameter(t.clone()) for t in (A, B, U, a))

    @classmethod
    def init(
        cls, m: int, d: int, *, mu: float = 0.5, seed: int, dtype: torch.dtype = torch.float64
    ) -> MonDEQ:
        """Draw A, B ~ ½N(0, 1/m), U ~ N(0, 1), a ~ N(0, 1/m); the source names no distribution."""
        g = generator(seed)
        A, B = (0.5 * normal(m, m, g=g, dtype=dtype) / math.sqrt(m) for _ in range(2))
        U = normal(m, d, g=g, dtype=dtype)
        return cls(A, B, U, normal(m, g=g, dtype=dtype) / math.sqrt(m), mu)

    @property
    def W(self) -> Tensor:
        """Return (1-μ)I - AᵀA + B - Bᵀ."""
        eye = torch.eye(self.m, dtype=self.A.dtype, device=self.A.device)
        return (1 - self.mu) * eye - self.A.mT @ self.A + self.B - self.B.mT

    def matrix(self) -> Tensor:
        """Return the assembled W."""
        return self.W
