"""Unit layers and independent solvers that the claims and the page of chapter 5a share.

The solvers are SciPy's. They know the objective and nothing of the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.optimize
import torch
from torch import Tensor

from deqbook.activations import Activation, relu
from deqbook.linalg import operator_norm
from deqbook.regularize import HiddenObjective
from deqbook.runtime import normal
from deqbook.solvers import fixed_point

SAME = 1e-9  # two exact routes
Rows = Callable[[Tensor], Tensor]


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


def equilibrium(f: Rows, m: int) -> Tensor:
    """Return the fixed point of a map on rows, by Anderson's method from 0."""
    return fixed_point(f, torch.zeros(1, m, dtype=torch.float64), tol=1e-13, max_steps=3000).z[0]


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
    phi: HiddenObjective, linear: Tensor, weight: float, *, transposed: bool = True
) -> Tensor:
    r"""Minimise :math:`\varphi(u)+\tfrac w2\|u\|^2-\langle u,p\rangle` over the state u (SLSQP).

    For ReLU and an invertible W, with the explicit
    :math:`\varphi(u)=\tfrac1\tau(\tfrac12\|s\|^2-q^\top s)-\tfrac12\|u\|^2`,
    :math:`s=\tau W^{-\top}u\ge0`. With p = z and w = 1 this is the proximal point of z; with p = 0
    and w = 0 it is the minimiser. Without ``transposed`` :math:`W^{-1}` stands for
    :math:`W^{-\top}`.
    """
    inverse = torch.linalg.inv(phi.W)
    S = phi.tau * (inverse.mT if transposed else inverse).numpy()
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


def tanh_minimum(phi: HiddenObjective) -> Tensor:
    """Minimise φ of a tanh layer in its code, by L-BFGS-B."""
    W, q = phi.W.numpy(), phi.q.numpy()

    def cost(s: np.ndarray) -> tuple[float, np.ndarray]:
        z = s @ W / phi.tau
        entropy = ((1 + s) * np.log1p(s) + (1 - s) * np.log1p(-s)).sum() / 2
        return (entropy - q @ s) / phi.tau - z @ z / 2, (np.arctanh(s) - q - W @ z) / phi.tau

    edge = 1 - 1e-9
    options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 5000, "maxcor": 30}
    found = scipy.optimize.minimize(
        cost, 0 * q, jac=True, method="L-BFGS-B", bounds=[(-edge, edge)] * len(q), options=options
    )
    return torch.as_tensor(found.x @ W / phi.tau)


def bounded_quadratic(Q: np.ndarray, g: np.ndarray, free: int) -> np.ndarray:
    r"""Minimise :math:`\tfrac12x^\top Qx-g^\top x` over x whose entries after ``free`` are ≥ 0.

    Q is positive definite; bounded least squares (BVLS) on its Cholesky factor.
    """
    C = scipy.linalg.cholesky(Q)
    b = scipy.linalg.solve_triangular(C, g, trans="T")
    low = np.concatenate([np.full(free, -np.inf), np.zeros(len(g) - free)])
    return scipy.optimize.lsq_linear(C, b, bounds=(low, np.inf), method="bvls", tol=1e-15).x


def skip_minimum(phi: HiddenObjective, z: Tensor, alpha: float, weight: float) -> Tensor:
    r"""Return w of the minimiser of :math:`cM_\varphi^{1-\alpha}(w)+\tfrac12\|w-z\|^2`, by BVLS.

    Jointly in w and in the y of the envelope,
    :math:`M_\varphi^{1-\alpha}(w)=\min_y\varphi(y)+\tfrac1{2(1-\alpha)}\|w-y\|^2`; c is the weight.
    """
    W, q, m = phi.W.numpy(), phi.q.numpy(), len(z)
    pull = weight / (1 - alpha)
    Q = np.block(
        [
            [(1 + pull) * np.eye(m), -pull * W.T],
            [-pull * W, weight * np.eye(len(q)) + (pull - weight) * W @ W.T],
        ]
    )
    return torch.as_tensor(bounded_quadratic(Q, np.append(z.numpy(), weight * q), m)[:m])


# --- tests of what a map is --------------------------------------------------------------------


def firm_excess(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor) -> float:
    """Return the largest (‖fa - fb‖² - ⟨fa - fb, a - b⟩) ÷ ‖a - b‖² over rows; ≤ 0 for a prox."""
    move, gap = fa - fb, a - b
    return float(((move * move - move * gap).sum(-1) / gap.square().sum(-1)).max())


def polygons(count: int, m: int, g: torch.Generator) -> Tensor:
    """Return closed polygons of 8 corners: at random, and regular ones both ways round.

    A rotation by θ passes the test on every polygon of N corners as long as θ ≤ π/N.
    """
    rough = 2 * normal(count, 8, m, g=g)
    plane = torch.linalg.qr(normal(count, m, 2, g=g))[0]
    angle = torch.arange(8, dtype=torch.float64) * (math.pi / 4)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    radius = torch.rand(count, 1, 1, generator=g, dtype=torch.float64)
    regular = radius * (circle @ plane.mT)
    return torch.cat([rough, rough[:, :1] + regular, rough[:, :1] + regular.flip(1)])


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
