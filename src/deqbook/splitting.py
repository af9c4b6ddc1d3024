r"""Operator splitting for monotone equilibria.

For :math:`\sigma=\mathrm{prox}_f` the equation :math:`z=\sigma(Wz+q)` says
:math:`0\in(I-W)z-q+\partial f(z)`: a zero of the sum of a linear and a subdifferential operator.
With :math:`M=I-W\succeq\mu I`, :math:`\mu>0`, it has exactly one solution, however large W is.

Each method is a map whose fixed points encode that solution, so any iteration of
:mod:`deqbook.solvers` can drive it; plain Picard gives the textbook algorithms. A splitting is a
``Solver`` like the others: models and ``fixed_point`` take one, for a cell of this form.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from deqbook.activations import Activation, activation, relu
from deqbook.linalg import operator_norm, symmetric_part
from deqbook.runtime import tensor
from deqbook.solvers import (
    Injected,
    Map,
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
    "Splitting",
    "forward_backward_factor",
    "peaceman_rachford_factor",
    "split",
]


@dataclass(frozen=True)
class MonotoneProblem:
    r"""The inclusion :math:`0\in Mz-q+\partial f(z)` with :math:`M=I-W`, one row of q a sample.

    ``W`` is (m, m), ``q`` (n, m); ``sigma`` may be a name. Other shapes or an unknown name are a
    ``ValueError``, what is not a floating-point tensor a ``TypeError``. Here
    :math:`z=\mathrm{relu}(-3z+4)`, far from a contraction:

    >>> problem = MonotoneProblem(torch.tensor([[-3.0]]), torch.tensor([[4.0]]))
    >>> round(problem.mu, 3), round(problem.L, 3), split(problem).z.round(decimals=3).tolist()
    (4.0, 4.0, [[1.0]])
    """

    W: Tensor
    q: Tensor
    sigma: Activation = relu

    def __post_init__(self) -> None:
        tensor("W", self.W), tensor("q", self.q)
        object.__setattr__(self, "sigma", activation(self.sigma))
        m = self.W.shape[-1]
        if self.W.ndim != 2 or self.W.shape[0] != m:
            raise ValueError(f"W must be square, got shape {tuple(self.W.shape)}.")
        if self.q.ndim != 2 or self.q.shape[1] != m:
            raise ValueError(
                f"q must be (n, {m}) to go with W ({m}, {m}), got shape {tuple(self.q.shape)}."
            )

    def __call__(self, z: Tensor) -> Tensor:
        """Return σ(Wz + q): the problem is a map, and any solver finds its fixed point."""
        return self.sigma(z @ self.W.mT + self.q)

    def rows(self, index: Tensor) -> MonotoneProblem:
        """Return the same problem for the samples ``index`` only."""
        return MonotoneProblem(self.W, self.q[index], self.sigma)

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


class Splitting(Solver):
    r"""A splitting method: a step size and the map it iterates, for a ``MonotoneProblem`` only.

    Its iterate u encodes a state z, both (n, m); at the equilibrium :math:`\mathrm{read}(u)=z`.

    >>> problem = MonotoneProblem(torch.tensor([[-3.0]]), torch.tensor([[4.0]]))
    >>> method, z = PeacemanRachford(alpha=0.1), torch.tensor([[1.0]])
    >>> u = method.encode(problem, z)
    >>> torch.allclose(method.iteration(problem)(u), u), torch.allclose(method.read(problem, u), z)
    (True, True)
    """

    any_map: ClassVar[bool] = False

    def solve(self, f: Map, z0: Tensor, *, tol: float, max_steps: int, throw: bool) -> Solution:
        """Solve a monotone problem from the state ``z0``; another map is a ``ValueError``."""
        if not isinstance(f, MonotoneProblem):
            raise ValueError(
                f"{type(self).__name__} needs a cell σ(Wz + q), given as a MonotoneProblem; this "
                "map is not known to be one. Use a solver of deqbook.solvers."
            )
        return split(f, self, z0=z0, tol=tol, max_steps=max_steps, throw=throw)

    @abstractmethod
    def step_size(self, problem: MonotoneProblem) -> float:
        """Return the step used for this problem."""

    @abstractmethod
    def iteration(self, problem: MonotoneProblem) -> Injected:
        """Return the map whose fixed point encodes the equilibrium."""

    @abstractmethod
    def read(self, problem: MonotoneProblem, u: Tensor) -> Tensor:
        """Return the equilibrium encoded by the fixed point u."""

    @abstractmethod
    def encode(self, problem: MonotoneProblem, z: Tensor) -> Tensor:
        """Return the iterate that encodes the state z; at a solution it is the fixed point."""

    @abstractmethod
    def offset(self, alpha: float) -> float:
        """Return c such that u - cq is no larger than the state at the fixed point, up to L."""

    @abstractmethod
    def amplification(self, alpha: float, L: float) -> float:
        r"""Return κ with ‖z - σ(Wz+q)‖ ≤ κ · tol · max(1, ‖z‖).

        Here tol bounds the residual of the iteration relative to max(1, ‖u - cq‖).
        """


@dataclass(frozen=True)
class ForwardBackward(Splitting):
    r"""Forward-backward: :math:`z\leftarrow\mathrm{prox}_{\alpha f}(z-\alpha(Mz-q))`.

    Contracts for :math:`0<\alpha<2\mu/L^2` (open at the right end); default
    :math:`\alpha=\mu/L^2` with factor :math:`\sqrt{1-\mu^2/L^2}` (``nguyen2022.splitting``).

    >>> W, q = torch.tensor([[0.0, 2.0], [-2.0, 0.0]]), torch.tensor([[-1.0, 3.0]])
    >>> problem = MonotoneProblem(W.double(), q.double())  # mu = 1, L² = 5
    >>> split(problem, ForwardBackward()).z.round(decimals=3).tolist()
    [[1.0, 1.0]]
    >>> bool(split(problem, ForwardBackward(alpha=1.0), throw=False).converged)
    False
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
class PeacemanRachford(Splitting):
    r"""Peaceman-Rachford: compose the two reflections; resolvent of M factorised once.

    :math:`u\leftarrow R_MR_f\,u` with :math:`R_f=2\,\mathrm{prox}_{\alpha f}-I` and
    :math:`R_M=2(I+\alpha M)^{-1}(\cdot+\alpha q)-I`; then :math:`z=\mathrm{prox}_{\alpha f}(u)`.
    Converges linearly for every :math:`\alpha>0`; default :math:`\alpha=1/L`
    (``nguyen2022.splitting``). ``relax`` 1 is this method, 1/2 is Douglas-Rachford.

    >>> W, q = torch.tensor([[0.0, 2.0], [-2.0, 0.0]]), torch.tensor([[-1.0, 3.0]])
    >>> problem = MonotoneProblem(W.double(), q.double())
    >>> [split(problem, PeacemanRachford(a)).z.round(decimals=3).tolist() for a in (0.1, None, 10)]
    [[[1.0, 1.0]], [[1.0, 1.0]], [[1.0, 1.0]]]
    """

    alpha: float | None = None
    relax: float = 1.0  # 1: Peaceman-Rachford, 1/2: Douglas-Rachford

    def __post_init__(self) -> None:
        if not 0 < self.relax <= 1:
            raise ValueError(f"relax must be in (0, 1], got {self.relax!r}.")

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
    r"""Douglas-Rachford: half of a Peaceman-Rachford step. Slower, but :math:`\mu=0` is enough.

    There ``split`` promises nothing and wants ``throw=False``. M, a rotation:

    >>> W, q = torch.tensor([[1.0, 1.0], [-1.0, 1.0]]), torch.tensor([[-1.0, 0.5]])
    >>> split(MonotoneProblem(W, q), DouglasRachford(), throw=False).z.round(decimals=3).tolist()
    [[0.5, 1.0]]
    >>> bool(split(MonotoneProblem(W, q), PeacemanRachford(), throw=False).converged)
    False
    """

    relax: float = 0.5


def forward_backward_factor(alpha: float, mu: float, L: float) -> float:
    r"""Return :math:`\sqrt{1-2\alpha\mu+\alpha^2L^2}\ge\|I-\alpha M\|`.

    It bounds the factor of :class:`ForwardBackward` (``nguyen2022.proposition3``).

    >>> mu, L = 9, 25
    >>> round(forward_backward_factor(mu / L**2, mu, L), 3)  # the best step
    0.933
    """
    return max(0.0, 1 - 2 * alpha * mu + alpha**2 * L**2) ** 0.5


def peaceman_rachford_factor(alpha: float, mu: float, L: float) -> float:
    r"""Return :math:`\sqrt{1-4\alpha\mu/(1+\alpha L)^2}\ge\|(I-\alpha M)(I+\alpha M)^{-1}\|`.

    It bounds the factor of :class:`PeacemanRachford` (``nguyen2022.splitting``).

    >>> mu, L = 9, 25
    >>> round(peaceman_rachford_factor(1 / L, mu, L), 3)  # the best step
    0.8
    """
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
    r"""Solve a monotone problem by splitting (default Peaceman-Rachford, driven by Picard).

    ``tol`` bounds the residual of the equation ``z = σ(Wz + q)`` itself, not of the auxiliary
    iteration: the method's ``amplification`` converts one into the other, and the residual that is
    reported is measured at the end; ``trace`` is the auxiliary one's. ``z0`` is a state (zero by
    default), so a warm start is just another ``z0``. ``solver`` drives the iteration in place of
    Picard.

    With ``throw`` on, a sample that has not met ``tol`` in ``max_steps`` steps raises
    ``NotConverged``, and :math:`\mu\le0` is a ``ValueError``. So is a step that is not positive.

    >>> W, q = torch.tensor([[0.0, 2.0], [-2.0, 0.0]]), torch.tensor([[-1.0, 3.0]])
    >>> found = split(MonotoneProblem(W.double(), q.double()))
    >>> found.method, found.z.round(decimals=3).tolist()
    ('PeacemanRachford', [[1.0, 1.0]])
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
    image = problem(z)
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
