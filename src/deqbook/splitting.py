r"""Operator splitting for monotone equilibria.

For :math:`\sigma=\mathrm{prox}_f` the equation :math:`z=\sigma(Wz+q)` says
:math:`0\in(I-W)z-q+\partial f(z)`: a zero of the sum of a linear and a subdifferential operator.
With :math:`M=I-W\succeq\mu I`, :math:`\mu>0`, it has exactly one solution, however large W is.

Each method is a map whose fixed points encode that solution, so any solver of
:mod:`deqbook.solvers` can drive it; plain Picard gives the textbook algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from deqbook.activations import Activation, relu
from deqbook.linalg import operator_norm, symmetric_part
from deqbook.solvers import (
    Injected,
    NotConverged,
    Picard,
    Solution,
    Solver,
    default_tol,
    fixed_point,
)

__all__ = [
    "DouglasRachford",
    "ForwardBackward",
    "MonotoneProblem",
    "PeacemanRachford",
    "forward_backward_factor",
    "peaceman_rachford_factor",
    "split",
]


@dataclass(frozen=True)
class MonotoneProblem:
    r"""The inclusion :math:`0\in Mz-q+\partial f(z)` with :math:`M=I-W`, one row of q a sample."""

    W: Tensor
    q: Tensor
    sigma: Activation = relu

    def __post_init__(self) -> None:
        m = self.W.shape[-1]
        if self.W.ndim != 2 or self.W.shape[0] != m:
            raise ValueError(f"W must be square, got shape {tuple(self.W.shape)}.")
        if self.q.ndim != 2 or self.q.shape[1] != m:
            raise ValueError(
                f"q must be (n, {m}) to go with W ({m}, {m}), got shape {tuple(self.q.shape)}."
            )

    @property
    def M(self) -> Tensor:
        """Return I - W."""
        return torch.eye(self.W.shape[0], dtype=self.W.dtype, device=self.W.device) - self.W

    @property
    def mu(self) -> float:
        r"""Return the strong monotonicity :math:`\lambda_{\min}(\tfrac12(M+M^\top))`."""
        return float(torch.linalg.eigvalsh(symmetric_part(self.M))[0])

    @property
    def L(self) -> float:
        """Return the Lipschitz constant ‖M‖."""
        return operator_norm(self.M)


class Splitting(Protocol):
    """A splitting method: a step size and the map it iterates."""

    def step_size(self, problem: MonotoneProblem) -> float:
        """Return the step used for this problem."""

    def iteration(self, problem: MonotoneProblem) -> Injected:
        """Return the map whose fixed point encodes the equilibrium."""

    def read(self, problem: MonotoneProblem, u: Tensor) -> Tensor:
        """Return the equilibrium encoded by the fixed point u."""

    def encode(self, problem: MonotoneProblem, z: Tensor) -> Tensor:
        """Return the iterate that encodes the state z; at a solution it is the fixed point."""

    def offset(self, alpha: float) -> float:
        """Return c such that u - cq is no larger than the state at the fixed point, up to L."""

    def amplification(self, alpha: float, L: float) -> float:
        r"""Return κ with ‖z - σ(Wz+q)‖ ≤ κ · tol · max(1, ‖z‖).

        Here tol bounds the residual of the iteration relative to max(1, ‖u - cq‖).
        """


@dataclass(frozen=True)
class ForwardBackward:
    r"""Forward-backward: :math:`z\leftarrow\mathrm{prox}_{\alpha f}(z-\alpha(Mz-q))`.

    Contracts for :math:`0<\alpha<2\mu/L^2` (open at the right end); default
    :math:`\alpha=\mu/L^2` with factor :math:`\sqrt{1-\mu^2/L^2}`.
    """

    alpha: float | None = None

    def step_size(self, problem: MonotoneProblem) -> float:
        """Return α, by default μ/L²."""
        return problem.mu / problem.L**2 if self.alpha is None else self.alpha

    def iteration(self, problem: MonotoneProblem) -> Injected:
        """Return the forward-backward map."""
        alpha, M, prox = self.step_size(problem), problem.M, problem.sigma.prox
        return Injected(lambda z, q: prox(z - alpha * (z @ M.mT - q), alpha), problem.q)

    def read(self, problem: MonotoneProblem, u: Tensor) -> Tensor:
        """The iterate is the state."""
        return u

    def encode(self, problem: MonotoneProblem, z: Tensor) -> Tensor:
        """The state is the iterate."""
        return z

    def offset(self, alpha: float) -> float:
        """The iterate is as large as the state."""
        return 0.0

    def amplification(self, alpha: float, L: float) -> float:
        """The prox residual divided by its step does not grow with the step."""
        return max(1.0, 1 / alpha)


@dataclass(frozen=True)
class PeacemanRachford:
    r"""Peaceman-Rachford: compose the two reflections; resolvent of M factorised once.

    :math:`u\leftarrow R_MR_f\,u` with :math:`R_f=2\,\mathrm{prox}_{\alpha f}-I` and
    :math:`R_M=2(I+\alpha M)^{-1}(\cdot+\alpha q)-I`; then :math:`z=\mathrm{prox}_{\alpha f}(u)`.
    Converges linearly for every :math:`\alpha>0`; default :math:`\alpha=1/L`.
    """

    alpha: float | None = None
    relax: float = 1.0  # 1: Peaceman-Rachford, 1/2: Douglas-Rachford

    def step_size(self, problem: MonotoneProblem) -> float:
        """Return α, by default 1/L."""
        if self.alpha is not None:
            return self.alpha
        return 1 / problem.L if problem.L > 0 else 1.0  # M = 0: every step is the same

    def iteration(self, problem: MonotoneProblem) -> Injected:
        """Return the (relaxed) composition of reflections."""
        alpha, prox, relax = self.step_size(problem), problem.sigma.prox, self.relax
        eye = torch.eye(problem.W.shape[0], dtype=problem.W.dtype, device=problem.W.device)
        # One inverse, then every step is a single matrix product: cheaper than triangular solves.
        resolvent = torch.linalg.inv(eye + alpha * problem.M)

        def update(u: Tensor, q: Tensor) -> Tensor:
            z = prox(u, alpha)
            backward = (2 * z - u + alpha * q) @ resolvent.mT
            return u + 2 * relax * (backward - z)

        return Injected(update, problem.q)

    def read(self, problem: MonotoneProblem, u: Tensor) -> Tensor:
        """The state is the prox of the fixed point."""
        return problem.sigma.prox(u, self.step_size(problem))

    def encode(self, problem: MonotoneProblem, z: Tensor) -> Tensor:
        r"""Return :math:`z-\alpha(Mz-q)`."""
        return z - self.step_size(problem) * (z @ problem.M.mT - problem.q)

    def offset(self, alpha: float) -> float:
        r"""At the fixed point :math:`u-\alpha q=z-\alpha Mz`, while u alone may dwarf z."""
        return alpha

    def amplification(self, alpha: float, L: float) -> float:
        r"""Return :math:`(1+\alpha L)^2\max(1,1/\alpha)/(2\,\mathrm{relax})`.

        With :math:`\delta=\bar z-z` the residual of the iteration is
        :math:`2\,\mathrm{relax}\,\|\delta\|` and
        :math:`z=\mathrm{prox}_{\alpha f}(z-\alpha(Mz-q)-(I+\alpha M)\delta)`;
        the other :math:`1+\alpha L` bounds :math:`\|u-\alpha q\|/\|z\|`.
        """
        return (1 + alpha * L) ** 2 * max(1.0, 1 / alpha) / (2 * self.relax)


@dataclass(frozen=True)
class DouglasRachford(PeacemanRachford):
    """Douglas-Rachford: half of a Peaceman-Rachford step. Slower, and needs no strong convexity."""

    relax: float = 0.5


def forward_backward_factor(alpha: float, mu: float, L: float) -> float:
    r"""Return :math:`\sqrt{1-2\alpha\mu+\alpha^2L^2}\ge\|I-\alpha M\|` (Proposition 3)."""
    return max(0.0, 1 - 2 * alpha * mu + alpha**2 * L**2) ** 0.5


def peaceman_rachford_factor(alpha: float, mu: float, L: float) -> float:
    r"""Return :math:`\sqrt{1-4\alpha\mu/(1+\alpha L)^2}\ge\|(I-\alpha M)(I+\alpha M)^{-1}\|`."""
    return max(0.0, 1 - 4 * alpha * mu / (1 + alpha * L) ** 2) ** 0.5


def split(
    problem: MonotoneProblem,
    method: Splitting = PeacemanRachford(),  # noqa: B008 (frozen)
    *,
    z0: Tensor | None = None,
    solver: Solver | None = None,
    tol: float | None = None,
    max_steps: int = 5000,
    throw: bool = True,
) -> Solution:
    """Solve a monotone problem by splitting (default Peaceman-Rachford, driven by Picard).

    ``tol`` bounds the residual of the equation ``z = σ(Wz + q)`` itself, not of the auxiliary
    iteration: the method's ``amplification`` converts one into the other, and the residual that is
    reported is measured at the end. ``z0`` is a state (zero by default), so a warm start is just
    another ``z0``.
    """
    mu, L = problem.mu, problem.L
    if mu <= 0 and throw:
        raise ValueError(
            f"I - W is not strongly monotone (mu = {mu:.3g} <= 0): splitting is not guaranteed to "
            "find a solution, and there may be none. Use W = (1-mu)I - A'A + B - B' with mu > 0."
        )
    alpha = method.step_size(problem)
    if not alpha > 0:
        raise ValueError(f"the splitting step alpha must be positive, got {alpha!r}.")
    tol = default_tol(problem.W.dtype) if tol is None else tol
    inner = max(tol / method.amplification(alpha, L), 8 * torch.finfo(problem.W.dtype).eps)
    state = torch.zeros_like(problem.q) if z0 is None else z0
    c, update = method.offset(alpha), method.iteration(problem).update
    found = fixed_point(
        Injected(lambda v, q: update(v + c * q, q) - c * q, problem.q),
        method.encode(problem, state) - c * problem.q,
        solver=Picard() if solver is None else solver,
        tol=inner,
        max_steps=max_steps,
        throw=False,
    )
    z = method.read(problem, found.z + c * problem.q)
    image = problem.sigma(z @ problem.W.mT + problem.q)
    residual = (image - z).norm(dim=1) / image.norm(dim=1).clamp(min=1.0)
    done = found.converged & (residual <= tol)
    name = type(method).__name__
    found = replace(found, z=z, residual=residual, converged=done, method=name, image=image)
    if throw and not bool(done.all()):
        raise NotConverged(
            f"{name} with alpha={alpha:.3g} (mu={mu:.3g}, L={L:.3g}) left residual "
            f"{float(residual.max()):.2e} > tol {tol:.1e} for {int((~done).sum())} samples after "
            f"{int(found.steps.max())} steps. Raise max_steps, or use PeacemanRachford() with its "
            "default step 1/L.",
            found,
        )
    return found
