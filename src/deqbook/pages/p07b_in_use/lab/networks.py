r"""Ten-class equilibrium networks, their Jacobians, and the penalty on them.

The penalty is the Hutchinson estimate of :math:`\|J\|_F^2`, with :math:`J=\partial_zf` at the
equilibrium: for a random vector of mean zero and covariance I,
:math:`\mathbb E\|J^\top\epsilon\|^2=\|J\|_F^2`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from deqbook.activations import Activation, activation
from deqbook.data import Dataset, load
from deqbook.implicit import IFT, Adjoint
from deqbook.linalg import operator_norm
from deqbook.models import EquilibriumModel
from deqbook.runtime import generator, normal
from deqbook.solvers import Anderson, Newton, Solver
from deqbook.splitting import PeacemanRachford
from deqbook.wellposed import Affine

LENGTH = 3.0  # of every image


def digits() -> Dataset:
    """Return the bundled ten digits, every image scaled to length 3."""
    data = load("mnist10")
    return replace(data, x_train=LENGTH * data.x_train, x_test=LENGTH * data.x_test)


class Classifier(EquilibriumModel):
    """z = σ(Wz + Ux + b) with the scores Vz + c, one for each class; W is the subclass's own."""

    U: Tensor
    V: Tensor
    b: Tensor
    c: Tensor
    sigma: Activation

    def inject(self, x: Tensor) -> Tensor:
        """Return Ux + b."""
        return x @ self.U.mT + self.b

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return σ(Wz + q)."""
        return self.sigma(z @ weights[0].mT + q)

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return the scores Vz + c, (n, k)."""
        return z @ self.V.mT + self.c

    def structure(self) -> Affine:
        """Describe the cell to ``certify``."""
        W = self.weights()[0].detach()
        return Affine(W, self.sigma, lambda: operator_norm(self.U.detach()))


class Dense(Classifier):
    """z = σ(Wz + Ux + b), scores Vz + c, with W free: the vanilla DEQ with k outputs."""

    default_solver: ClassVar[Solver] = Anderson(memory=6)
    default_adjoint: ClassVar[Adjoint] = IFT(solver=Anderson(memory=6))

    def __init__(self, W: Tensor, U: Tensor, V: Tensor, sigma: str | Activation = "tanh"):
        super().__init__()
        self.sigma = activation(sigma)
        self.W, self.U, self.V = (nn.Parameter(t.clone()) for t in (W, U, V))
        self.b = nn.Parameter(torch.zeros(W.shape[0], dtype=W.dtype))
        self.c = nn.Parameter(torch.zeros(V.shape[0], dtype=W.dtype))

    @classmethod
    def init(cls, m: int, d: int, k: int, *, scale: float, seed: int) -> Dense:
        """Draw W ~ N(0, scale²/m), U ~ N(0, 1/d), V ~ N(0, 1/m)."""
        g = generator(seed)
        W = scale * normal(m, m, g=g) / math.sqrt(m)
        return cls(W, normal(m, d, g=g) / math.sqrt(d), normal(k, m, g=g) / math.sqrt(m))

    def weights(self) -> tuple[Tensor, ...]:
        """Return W."""
        return (self.W,)


class Monotone(Classifier):
    """The same network with W = (1 - μ)I - AᵀA + B - Bᵀ: a monotone DEQ with k outputs."""

    default_solver: ClassVar[Solver] = PeacemanRachford()
    default_adjoint: ClassVar[Adjoint] = IFT(solver=Newton("gmres", inner=40))

    def __init__(self, A: Tensor, B: Tensor, U: Tensor, V: Tensor, mu: float):
        super().__init__()
        self.mu, self.sigma = mu, activation("relu")
        self.A, self.B, self.U, self.V = (nn.Parameter(t.clone()) for t in (A, B, U, V))
        self.b = nn.Parameter(torch.zeros(A.shape[0], dtype=A.dtype))
        self.c = nn.Parameter(torch.zeros(V.shape[0], dtype=A.dtype))

    @classmethod
    def init(cls, m: int, d: int, k: int, *, mu: float, seed: int) -> Monotone:
        """Draw A, B ~ ½N(0, 1/m), U ~ N(0, 1/d), V ~ N(0, 1/m)."""
        g = generator(seed)
        A, B = (0.5 * normal(m, m, g=g) / math.sqrt(m) for _ in range(2))
        U, V = normal(m, d, g=g) / math.sqrt(d), normal(k, m, g=g) / math.sqrt(m)
        return cls(A, B, U, V, mu)

    @property
    def W(self) -> Tensor:
        """Return (1 - μ)I - AᵀA + B - Bᵀ."""
        eye = torch.eye(self.A.shape[0], dtype=self.A.dtype)
        return (1 - self.mu) * eye - self.A.mT @ self.A + self.B - self.B.mT

    def weights(self) -> tuple[Tensor, ...]:
        """Return the assembled W."""
        return (self.W,)


def jacobian_penalty(model: EquilibriumModel, z: Tensor, q: Tensor, eps: Tensor) -> Tensor:
    r"""Return the mean over samples of :math:`\|J^\top\epsilon\|^2`, differentiable in the weights.

    ``z`` is held: the derivative sees the weights in the cell, not the move of the equilibrium.
    """
    z = z.detach().requires_grad_()
    (pulled,) = torch.autograd.grad(model.f(z, q, *model.weights()), z, eps, create_graph=True)
    return pulled.pow(2).sum(dim=1).mean()


def jacobians(model: Classifier, z: Tensor, q: Tensor) -> Tensor:
    """Return J = DW for every sample, (n, m, m): exact, for the radius and the norm."""
    W = model.weights()[0].detach()
    return model.sigma.slope(z @ W.mT + q)[:, :, None] * W


def implicit_state(model: Classifier, z: Tensor, q: Tensor) -> Tensor:
    r"""Return :math:`z+(I-J)^{-1}(f(z,q)-z)` with J held: one Newton step from ``z``.

    At an equilibrium its value is ``z`` and its derivative :math:`(I-J)^{-1}\partial_\theta f`, the
    implicit gradient. A solver that was stopped early does no harm but its own error.
    """
    z = z.detach()
    gap = model.f(z, q, *model.weights()) - z
    system = torch.eye(z.shape[1], dtype=z.dtype) - jacobians(model, z, q.detach())
    return z + torch.linalg.solve(system, gap[..., None])[..., 0]
