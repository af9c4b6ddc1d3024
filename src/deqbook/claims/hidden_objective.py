"""Layers, deep networks and independent solvers that the claims and the page of chapter 5a share.

The solvers are SciPy's. They know the objective and nothing of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.optimize
import torch
from torch import Tensor

from deqbook.activations import Activation, relu
from deqbook.linalg import operator_norm
from deqbook.models import DeepOptEq
from deqbook.regularize import HiddenObjective
from deqbook.runtime import generator, normal

__all__ = [
    "SAME",
    "Deep",
    "bounded_quadratic",
    "conditioned_layer",
    "cyclic_sums",
    "deep",
    "firm_excess",
    "joint_blocks",
    "joint_wide",
    "minimise_in_state",
    "nnls_minimum",
    "off",
    "subgradient_violation",
    "unit_layer",
    "wide",
]


SAME = 1e-9  # two exact routes


def off(value: Tensor, target: Tensor) -> float:
    """Return ‖value - target‖ ÷ max(1, ‖target‖)."""
    return float((value - target).norm() / target.norm().clamp(min=1.0))


def unit_layer(
    g: torch.Generator,
    h: int = 6,
    m: int = 6,
    *,
    norm: float = 0.9,
    tau: float = 1.0,
    sigma: Activation = relu,
) -> HiddenObjective:
    """Draw a unit layer with standard normal q and W, rescaled to ‖W‖ = norm."""
    W = normal(h, m, g=g)
    return HiddenObjective(W * (norm / operator_norm(W)), normal(h, g=g), tau, sigma)


def conditioned_layer(g: torch.Generator, m: int = 6) -> HiddenObjective:
    """Draw a square ReLU layer with singular values from 0.9 to 0.3, for solvers that use W⁻¹."""
    left, right = (torch.linalg.qr(normal(m, m, g=g))[0] for _ in range(2))
    values = torch.linspace(0.9, 0.3, m, dtype=torch.float64)
    return HiddenObjective(left @ torch.diag(values) @ right, normal(m, g=g))


# --- independent solvers -----------------------------------------------------------------------


def nnls_minimum(phi: HiddenObjective) -> Tensor:
    r"""Minimise φ of a ReLU layer by nonnegative least squares on a Cholesky factor.

    :math:`\tfrac12s^\top Hs-q^\top s=\tfrac12\|Cs-C^{-\top}q\|^2+\text{const}` with
    :math:`H=I-\tfrac1\tau WW^\top=C^\top C`.
    """
    W, q = phi.W.numpy(), phi.q.numpy()
    C = scipy.linalg.cholesky(np.eye(len(q)) - W @ W.T / phi.tau)
    s, _ = scipy.optimize.nnls(C, scipy.linalg.solve_triangular(C, q, trans="T"))
    return torch.as_tensor(s @ W / phi.tau)


def minimise_in_state(
    phi: HiddenObjective, linear: Tensor, weight: float, inverse: Tensor | None = None
) -> Tensor:
    r"""Minimise :math:`\varphi(u)+\tfrac w2\|u\|^2-\langle u,p\rangle` over the state u (SLSQP).

    For ReLU and an invertible W, with the explicit
    :math:`\varphi(u)=\tfrac1\tau(\tfrac12\|s\|^2-q^\top s)-\tfrac12\|u\|^2`,
    :math:`s=\tau W^{-\top}u\ge0`. With p = z and w = 1 this is the proximal point of z; with p = 0
    and w = 0 it is the minimiser. ``inverse`` replaces :math:`W^{-\top}`.
    """
    S = phi.tau * (torch.linalg.inv(phi.W).mT if inverse is None else inverse).numpy()
    q, p = phi.q.numpy(), linear.numpy()

    def value(u: np.ndarray) -> float:
        s = S @ u
        return (s @ s / 2 - q @ s) / phi.tau + (weight - 1) * (u @ u) / 2 - u @ p

    def slope(u: np.ndarray) -> np.ndarray:
        return S.T @ (S @ u - q) / phi.tau + (weight - 1) * u - p

    found = scipy.optimize.minimize(
        value,
        np.zeros(len(p)),
        jac=slope,
        method="SLSQP",
        constraints=[{"type": "ineq", "fun": lambda u: S @ u, "jac": lambda u: S}],
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return torch.as_tensor(found.x)


def bounded_quadratic(Q: np.ndarray, g: np.ndarray, free: int) -> np.ndarray:
    r"""Minimise :math:`\tfrac12x^\top Qx-g^\top x` over x whose entries after ``free`` are ≥ 0.

    Q is positive definite; bounded least squares (BVLS) on its Cholesky factor.
    """
    C = scipy.linalg.cholesky(Q)
    b = scipy.linalg.solve_triangular(C, g, trans="T")
    low = np.concatenate([np.full(free, -np.inf), np.zeros(len(g) - free)])
    return scipy.optimize.lsq_linear(C, b, bounds=(low, np.inf), method="bvls", tol=1e-15).x


def joint_blocks(
    layers: Sequence[HiddenObjective], alpha: float, coupling: np.ndarray, *, factor: bool = True
) -> Tensor:
    r"""Minimise :math:`\sum_l\alpha M_{\varphi_l}^{1-\alpha}(z_l)+\tfrac12\tilde z^\top C\tilde z`.

    By BVLS, jointly in the states and the codes, nothing eliminated by hand. ``coupling`` is C.
    Without ``factor`` the α before the envelopes is left out.
    """
    L, m = len(layers), layers[0].W.shape[1]
    weight = alpha if factor else 1.0
    pull = weight / (1 - alpha)
    B = scipy.linalg.block_diag(*[phi.W.numpy() for phi in layers])
    q = np.concatenate([phi.q.numpy() for phi in layers])
    Q = np.block(
        [
            [pull * np.eye(L * m) + coupling, -pull * B.T],
            [-pull * B, weight * np.eye(len(B)) + (pull - weight) * B @ B.T],
        ]
    )
    x = bounded_quadratic(Q, np.concatenate([np.zeros(L * m), weight * q]), L * m)
    return torch.as_tensor(x[: L * m].reshape(L, m))


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


# --- tests of what a map is --------------------------------------------------------------------


def firm_excess(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor) -> float:
    """Return the largest (‖fa - fb‖² - ⟨fa - fb, a - b⟩) ÷ ‖a - b‖² over rows; ≤ 0 for a prox."""
    move, gap = fa - fb, a - b
    return float(((move * move - move * gap).sum(-1) / gap.square().sum(-1)).max())


def cyclic_sums(x: Tensor, fx: Tensor) -> Tensor:
    """Return Σ_i ⟨x_{i+1} - x_i, f(x_i)⟩ for each closed polygon x (count, corners, m).

    Never positive if f is the gradient of a convex function.
    """
    return ((x.roll(-1, dims=1) - x) * fx).sum((1, 2))


def subgradient_violation(
    value_x: Tensor, value_u: Tensor, x: Tensor, u: Tensor, slope: Tensor
) -> float:
    """Return the largest φ(x) + ⟨g, u - x⟩ - φ(u) over rows; ≤ 0 if g is a subgradient at x."""
    return float((value_x + (slope * (u - x)).sum(-1) - value_u).max())


# --- deep networks -----------------------------------------------------------------------------


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
    """Draw a deep OptEq with L layers of the given norms, and an input."""
    sizes = [norms] * L if isinstance(norms, float) else list(norms)
    model = DeepOptEq.init_deep(m, 3, widths=[h] * L, norm=1.0, alpha=alpha, seed=seed)
    g = generator(seed + 1000)
    with torch.no_grad():
        for W, b, size in zip(model.Ws, model.bs, sizes):
            W.mul_(size)
            b.copy_(normal(h, g=g))
    return Deep(model, normal(1, 3, g=g))


def wide(layers: Sequence[HiddenObjective]) -> HiddenObjective:
    """Return the layer with all W_l stacked and τ = L: the average of the layers."""
    W, q = torch.cat([f.W for f in layers]), torch.cat([f.q for f in layers])
    return HiddenObjective(W, q, float(len(layers)))
