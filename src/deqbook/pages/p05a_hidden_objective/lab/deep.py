r"""Deep OptEqs as block problems and as wide layers, for the claims and the page of chapter 5a.

The blocks of a deep OptEq are its states in the order :math:`z_1,\dots,z_{L-1},z_0`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from deqbook.models import DeepOptEq
from deqbook.pages.p05a_hidden_objective.lab.objective import bounded_quadratic
from deqbook.regularize import HiddenObjective, nonnegative_qp
from deqbook.runtime import generator, normal


@dataclass(frozen=True)
class Deep:
    """A deep OptEq for one input, with its layers as hidden objectives."""

    model: DeepOptEq
    x: Tensor

    @cached_property
    def layers(self) -> tuple[HiddenObjective, ...]:
        """The unit layers, without skip."""
        q = self.model.inject(self.x)[0].detach()
        Ws = [W.detach() for W in self.model.Ws]
        return tuple(HiddenObjective(W, c) for W, c in zip(Ws, q.split([len(W) for W in Ws])))

    def step(self, l: int, z: Tensor) -> Tensor:  # noqa: E741
        """Return f_l(z) = α prox_l(z) + (1-α) z for layer l = 0 … L-1."""
        return self.model.alpha * self.layers[l].layer(z) + (1 - self.model.alpha) * z

    @cached_property
    def blocks(self) -> Tensor:
        r"""The states z_1, …, z_{L-1}, z_0 of the equilibrium, one row each.

        By Newton's method with :math:`J=\prod_l(\alpha W_l^\top D_lW_l+(1-\alpha)I)`, which is
        exact once the active units are right, however small α is.
        """
        alpha, eye = self.model.alpha, torch.eye(self.model.m, dtype=torch.float64)
        z = torch.zeros(self.model.m, dtype=torch.float64)
        for _ in range(100):
            J, y, rows = eye, z, []
            for l, f in enumerate(self.layers):  # noqa: E741
                slopes = f.sigma.slope(f.W @ y + f.q)
                J = (alpha * (f.W.mT * slopes) @ f.W + (1 - alpha) * eye) @ J
                y = self.step(l, y)
                rows.append(y)
            move = torch.linalg.solve(eye - J, y - z)
            z = z + move
            if float(move.norm()) <= 1e-12 * max(1.0, float(z.norm())):
                return torch.stack(rows)
        raise RuntimeError("Newton's method did not settle on a set of active units.")


def deep(
    seed: int,
    L: int,
    alpha: float,
    *,
    norms: Sequence[float] | float = 0.9,
    m: int = 5,
    h: int = 4,
) -> Deep:
    """Draw a deep OptEq with L layers of the given norms, and an input.

    The injection of the first unit of every layer is 1: were none positive, the equilibrium would
    be 0, for the deep network and for every problem that it is compared with.
    """
    sizes = [norms] * L if isinstance(norms, float) else list(norms)
    model = DeepOptEq.init_deep(m, 3, widths=[h] * L, norm=1.0, alpha=alpha, seed=seed)
    g = generator(seed + 1000)
    with torch.no_grad():
        for W, b, size in zip(model.Ws, model.bs, sizes):
            W.mul_(size)
            b.copy_(normal(h, g=g))
    x = normal(1, 3, g=g)
    with torch.no_grad():
        for U, b in zip(model.Us, model.bs):
            b[0] = 1 - U[0] @ x[0]
    return Deep(model, x)


def opposed(alpha: float, w: float = 0.1) -> Deep:
    """Return two layers of one unit that pull a single number to two ends: the bound is attained.

    Both units are on, so layer l is w²z + w q_l with w q_l = 2 and 1.
    """
    one = torch.ones(1, 1, dtype=torch.float64)
    ends = [torch.full((1,), target / w, dtype=torch.float64) for target in (2.0, 1.0)]
    model = DeepOptEq([w * one] * 2, [0 * one] * 2, ends, one, alpha=alpha)
    return Deep(model, one)


# --- block problems ----------------------------------------------------------------------------


def cyclic_shift(L: int, m: int, by: int = 1) -> Tensor:
    r"""Return P with :math:`P(z_1,\dots,z_{L-1},z_0)=(z_0,z_1,\dots,z_{L-1})`, blocks of size m.

    Or a power of it: ``by=-1`` is :math:`P^\top`, ``by=0`` the identity.
    """
    eye = torch.eye(L, dtype=torch.float64)
    return torch.kron(eye.roll(by, dims=0), torch.eye(m, dtype=torch.float64))


def _laplacian(L: int, m: int) -> Tensor:
    r"""Return :math:`I-\tfrac12(P+P^\top)`, the symmetric part of I - P."""
    P = cyclic_shift(L, m)
    return torch.eye(L * m, dtype=torch.float64) - (P + P.mT) / 2


def inclusion_residual(
    layers: Sequence[HiddenObjective], blocks: Tensor, alpha: float, *, shift: int = 1
) -> Tensor:
    r"""Return :math:`\nabla\Phi(\tilde z)+(I-P)\tilde z` for :math:`\alpha<1`, one row per block.

    :math:`\Phi(\tilde z)=\sum_l\alpha M_{\varphi_l}^{1-\alpha}(z_l)`; the envelopes come from
    quadratic problems, not from the network. ``shift`` is the power of P: 0 drops the coupling.
    """
    if not 0 < alpha < 1:
        raise ValueError(
            f"alpha must be in (0, 1), got {alpha!r}; at alpha = 1 the condition is an inclusion."
        )
    slope = torch.stack(
        [alpha * f.envelope(1 - alpha).gradient(z[None])[0] for f, z in zip(layers, blocks)]
    )
    return slope + (blocks - blocks.roll(shift, dims=0))


def block_minimiser(layers: Sequence[HiddenObjective], alpha: float) -> Tensor:
    r"""Minimise :math:`\sum_l\alpha M_{\varphi_l}^{1-\alpha}(z_l)+\tfrac12\tilde z^\top C\tilde z`.

    :math:`C=I-\tfrac12(P+P^\top)`, which for two layers makes the last term
    :math:`\tfrac12\|z_1-z_0\|^2`; the layers are ReLU with τ = 1. The states are eliminated by
    hand, :math:`\tilde z=R\tilde W^\top s` with :math:`R=\rho(\rho I+C)^{-1}`,
    :math:`\rho=\frac\alpha{1-\alpha}`, and the codes solve a quadratic problem over s ≥ 0.
    Returns one row per block.
    """
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be in (0, 1], got {alpha!r}.")
    if not all(f.sigma.name == "relu" and f.tau == 1 for f in layers):
        raise ValueError("the block problem is for ReLU layers with tau = 1.")
    L, m = len(layers), layers[0].W.shape[1]
    C, eye = _laplacian(L, m), torch.eye(L * m, dtype=torch.float64)
    B = torch.block_diag(*[f.W for f in layers])  # codes to states: z̃ = Bᵀs
    hidden = torch.eye(len(B), dtype=B.dtype) - B @ B.mT
    if alpha < 1:
        rho = alpha / (1 - alpha)
        R = rho * torch.linalg.inv(rho * eye + C)
        H = alpha * hidden + rho * B @ (eye - R) @ B.mT
    else:
        R, H = eye, hidden + B @ C @ B.mT
    least = float(torch.linalg.eigvalsh(H)[0])
    if least <= 1e-12:
        raise ValueError(
            f"the block problem is not strictly convex (least eigenvalue {least:.1e}); make some "
            "‖W_l‖ smaller."
        )
    s, _ = nonnegative_qp((H + H.mT) / 2, alpha * torch.cat([f.q for f in layers]))
    return (R @ (B.mT @ s)).reshape(L, m)


def joint_blocks(layers: Sequence[HiddenObjective], alpha: float, *, factor: bool = True) -> Tensor:
    r"""Minimise :math:`\sum_l\alpha M_{\varphi_l}^{1-\alpha}(z_l)+\tfrac12\tilde z^\top C\tilde z`.

    By BVLS, jointly in the states and the codes, nothing eliminated by hand; C as in
    ``block_minimiser``. Without ``factor`` the α before the envelopes is left out.
    """
    L, m = len(layers), layers[0].W.shape[1]
    weight = alpha if factor else 1.0
    pull = weight / (1 - alpha)
    B = scipy.linalg.block_diag(*[phi.W.numpy() for phi in layers])
    q = np.concatenate([phi.q.numpy() for phi in layers])
    Q = np.block(
        [
            [pull * np.eye(L * m) + _laplacian(L, m).numpy(), -pull * B.T],
            [-pull * B, weight * np.eye(len(B)) + (pull - weight) * B @ B.T],
        ]
    )
    x = bounded_quadratic(Q, np.concatenate([np.zeros(L * m), weight * q]), L * m)
    return torch.as_tensor(x[: L * m].reshape(L, m))


# --- deep becomes wide -------------------------------------------------------------------------


def wide(layers: Sequence[HiddenObjective]) -> HiddenObjective:
    """Return the layer with all W_l stacked and τ = L: the average of the layers."""
    W, q = torch.cat([f.W for f in layers]), torch.cat([f.q for f in layers])
    return HiddenObjective(W, q, float(len(layers)))


def joint_wide(layers: Sequence[HiddenObjective]) -> Tensor:
    r"""Return y of the minimiser of :math:`\sum_l\varphi_l(u_l)+\tfrac12\|u_l-y\|^2`, by BVLS.

    With :math:`u_l=W_l^\top s_l` the sum is
    :math:`\sum_l\tfrac12\|s_l\|^2-s_l^\top(q_l+W_ly)+\tfrac L2\|y\|^2`.
    """
    W = torch.cat([phi.W for phi in layers]).numpy()
    q = torch.cat([phi.q for phi in layers]).numpy()
    h, m = W.shape
    Q = np.block([[len(layers) * np.eye(m), -W.T], [-W, np.eye(h)]])
    return torch.as_tensor(bounded_quadratic(Q, np.concatenate([np.zeros(m), q]), m)[:m])


def deep_wide_bound(layers: Sequence[HiddenObjective], y: Tensor, alpha: float) -> float:
    r"""Return the bound on :math:`\max_l\|z_l-y\|` of the theorem.

    :math:`\alpha c\Delta/(1-\alpha cL)` with :math:`\kappa=\frac1L\sum\|W_l\|^2`,
    :math:`c=\frac{L-1}{2L(1-\kappa)}`, :math:`\Delta=\sum_l\|p_l(y)-y\|`, the layers without
    skip being :math:`p_l`; infinite from :math:`\alpha=\frac1{cL}` on.
    """
    L = len(layers)
    kappa = sum(f.excess for f in layers) / L
    c = (L - 1) / (2 * L * (1 - kappa))
    length = sum(float((f.layer(y) - y).norm()) for f in layers)
    room = 1 - alpha * c * L
    return alpha * c * length / room if room > 0 else math.inf
