r"""The sequential averaging method (SAM): iterate to a *chosen* equilibrium (xie2022, Theorem 4).

A nonexpansive T may have many fixed points. Plain iteration returns one that depends on the start.
SAM mixes a small step that lowers a regulariser R into every application of T,

.. math:: z^{(k)}=\beta_k\,s_k(z^{(k-1)})+(1-\beta_k)\,T(z^{(k-1)}),\qquad
          s_k(z)=(1-\gamma\lambda_k)z-\gamma\nabla R(z),

with :math:`\beta_k\to0` so slowly that the pull is never exhausted. The limit is the fixed point of
T with the least R, whatever the start. :class:`Schedule` holds the weights of the theorem (R convex
and smooth), :class:`Viscosity` those of the older method without decay (R strongly convex).

``sam`` returns the state and is differentiable (unrolled); ``select`` also keeps a trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deqbook.regularize.features import Regulariser

__all__ = ["Schedule", "Selection", "Viscosity", "Weights", "sam", "select"]

Map = Callable[[Tensor], Tensor]


class Weights(Protocol):
    """The numbers of the iteration: γ, β_k and λ_k, and what a theorem asks of them.

    >>> weights: Weights = Viscosity()
    >>> weights.gamma, weights.beta(4), weights.decay(4)
    (1.0, 0.5, 0.0)
    """

    @property
    def gamma(self) -> float:
        """Return the step γ along -∇R."""
        ...

    def beta(self, k: int) -> float:
        """Return β_k, the weight of the selection step; k counts from 1."""
        ...

    def decay(self, k: int) -> float:
        """Return λ_k, the weight of the decay towards 0."""
        ...

    def objections(self, R: Regulariser) -> tuple[str, ...]:
        """Return the hypotheses of the convergence theorem that fail, in words."""
        ...


@dataclass(frozen=True)
class Schedule:
    r"""The weights of the modified sequential averaging method.

    :math:`\beta_k=\beta_1k^{-\rho}`, :math:`\lambda_k=\beta_1k^{-c}`, :math:`\gamma=1/(2L_R)` and
    :math:`\beta_1=\min(\sqrt{2L_R},\tfrac12,\tfrac{L_R}2)` for a regulariser whose gradient is
    :math:`L_R`-Lipschitz; :math:`\rho,c>0` and :math:`\rho+2c<1`. ``smoothness`` is :math:`L_R`;
    unless it is positive and finite, ``ValueError``. Other exponents are an objection only.

    >>> from deqbook.regularize import HalfSquaredNorm
    >>> Schedule().gamma, Schedule().beta(4), Schedule().decay(1)
    (0.5, 0.25, 0.5)
    >>> Schedule(c=0.3).objections(HalfSquaredNorm())
    ('rho + 2c = 1.1 must be below 1',)
    """

    smoothness: float = 1.0
    rho: float = 0.5
    c: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.smoothness < math.inf:
            raise ValueError(
                f"smoothness must be positive and finite, got {self.smoothness!r}: it sets the "
                "step 1/(2L_R). For a regulariser without a Lipschitz gradient choose a number."
            )

    @property
    def gamma(self) -> float:
        """Return γ = 1/(2L_R); a step 1/L_R along -∇R would minimise ½L_R‖z-a‖² at once."""
        return 0.5 / self.smoothness

    @property
    def eta(self) -> float:
        """Return β_1, the factor of both sequences."""
        return min(math.sqrt(2 * self.smoothness), 0.5, self.smoothness / 2)

    def beta(self, k: int) -> float:
        """Return β_k, at most one half."""
        return self.eta / k**self.rho

    def decay(self, k: int) -> float:
        """Return λ_k."""
        return self.eta / k**self.c

    def objections(self, R: Regulariser) -> tuple[str, ...]:
        """Return the hypotheses of Theorem 4 on R and on the weights that fail."""
        found = _smooth_convex(R, self.smoothness)
        if not (self.rho > 0 and self.c > 0):
            found.append(f"rho = {self.rho:g} and c = {self.c:g} must be positive")
        if not self.rho + 2 * self.c < 1:
            found.append(f"rho + 2c = {self.rho + 2 * self.c:g} must be below 1")
        return tuple(found)


@dataclass(frozen=True)
class Viscosity:
    r"""The weights of plain SAM, for a :math:`\kappa`-strongly convex R: no decay is needed.

    With :math:`\gamma=2/(L_R+\kappa)` the step s is a contraction with modulus
    :math:`q=(L_R-\kappa)/(L_R+\kappa)`, and :math:`\beta_k=\min\{1,2/((1-q)k)\}`. For
    :math:`R=\tfrac12\|z-a\|^2` this is Halpern's method, :math:`s(z)=a`. ``smoothness`` is
    :math:`L_R`, ``convexity`` κ; ``ValueError`` unless :math:`0<\kappa\le L_R<\infty`.

    >>> v = Viscosity(smoothness=3.0, convexity=1.0)
    >>> v.gamma, v.modulus, v.beta(8)
    (0.5, 0.5, 0.5)
    """

    smoothness: float = 1.0
    convexity: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.convexity <= self.smoothness < math.inf:
            raise ValueError(
                f"need 0 < convexity <= smoothness < inf, got {self.convexity!r} and "
                f"{self.smoothness!r}; a merely convex R goes with Schedule."
            )

    @property
    def modulus(self) -> float:
        """Return q, the Lipschitz constant of the selection step."""
        return (self.smoothness - self.convexity) / (self.smoothness + self.convexity)

    @property
    def gamma(self) -> float:
        """Return 2/(L_R + κ)."""
        return 2 / (self.smoothness + self.convexity)

    def beta(self, k: int) -> float:
        """Return β_k."""
        return min(1.0, 2 / ((1 - self.modulus) * k))

    def decay(self, k: int) -> float:
        """Return 0."""
        return 0.0

    def objections(self, R: Regulariser) -> tuple[str, ...]:
        """Return what can be told from R; that it is strongly convex is for the caller to know."""
        return tuple(_smooth_convex(R, self.smoothness))


def _smooth_convex(R: Regulariser, smoothness: float) -> list[str]:
    found = []
    if not R.convex:
        found.append(f"{type(R).__name__} is not convex")
    if not R.smoothness <= smoothness * (1 + 1e-12):
        found.append(
            f"the gradient of R has Lipschitz constant {R.smoothness:g}, above the "
            f"smoothness {smoothness:g} of the schedule"
        )
    return found


@dataclass(frozen=True)
class Selection:
    """What SAM did: where it stopped, what it passed, and what a theorem says about it.

    ``residual`` is ‖T(z)-z‖ for every row at the end. It goes to 0 like β_k, so it tells how far
    the run is from an equilibrium; nothing computable here tells how far from the *selected* one.
    ``trace`` holds the states after the steps ``recorded`` (step 0 is the start).

    >>> from deqbook.regularize import HalfSquaredNorm
    >>> found = select(lambda z: z, torch.ones(1, 2), HalfSquaredNorm(), Viscosity(), 3)
    >>> found.status
    '3 steps, residual at most 0 (the schedule is that of the theorem)'
    """

    z: Tensor
    residual: Tensor
    steps: int
    recorded: tuple[int, ...]
    trace: Tensor
    objections: tuple[str, ...]

    @property
    def finite(self) -> bool:
        """Whether every entry of the last state is finite."""
        return bool(torch.isfinite(self.z).all())

    @property
    def status(self) -> str:
        """Say in one sentence what was reached."""
        worst = float(self.residual.max())
        if not self.finite:
            return f"not finite after {self.steps} steps"
        covered = "; ".join(self.objections) or "the schedule is that of the theorem"
        return f"{self.steps} steps, residual at most {worst:.2g} ({covered})"


def sam(
    T: Map, z0: Tensor, R: Regulariser, schedule: Weights, steps: int, *, check: bool = True
) -> Tensor:
    """Return the state after ``steps`` steps of SAM; gradients flow through all of them.

    T maps a batch of rows to a batch of rows (or one state to one state) and should be
    nonexpansive; ``z0`` is the start, (n, m) or (m,). A schedule or a regulariser that Theorem 4
    does not cover is refused (``ValueError``, as for negative ``steps``); ``check=False`` runs it
    all the same, as the experiments with F_D do.

    >>> from deqbook.regularize import SquaredDistance
    >>> T = lambda z: z * torch.tensor([1.0, 0.0])  # its fixed points are the first axis
    >>> near = SquaredDistance(torch.tensor([1.0, 1.0]))
    >>> sam(T, torch.tensor([5.0, 5.0]), near, Viscosity(), 1000).round(decimals=2).tolist()
    [1.0, 0.0]
    """
    _admit(R, schedule, steps, check)
    z = z0
    for z in _iterates(T, z0, R, schedule, steps):  # noqa: B007  the last one is the answer
        pass
    return z


def select(
    T: Map,
    z0: Tensor,
    R: Regulariser,
    schedule: Weights,
    steps: int,
    *,
    record: Sequence[int] = (),
    check: bool = True,
) -> Selection:
    """Run SAM as ``sam`` does and return the state with its trace, residual and status.

    ``record`` lists the steps to keep, from 0 to ``steps``; another is a ``ValueError``. With
    ``check=False`` what the theorem does not cover stands in ``objections``.

    >>> from deqbook.regularize import HalfSquaredNorm
    >>> z0 = torch.tensor([[5.0, 5.0]])
    >>> found = select(lambda z: z, z0, HalfSquaredNorm(), Viscosity(), 10, record=[0, 10])
    >>> found.trace.tolist()  # every state is fixed: the shortest is chosen
    [[[5.0, 5.0]], [[0.0, 0.0]]]
    """
    _admit(R, schedule, steps, check)
    wanted = sorted(set(record))
    if wanted and not 0 <= wanted[0] <= wanted[-1] <= steps:
        raise ValueError(
            f"record lists steps {wanted[0]} to {wanted[-1]}, but the run goes from 0 to {steps}."
        )
    keep, z = set(wanted), z0
    states = [z0] if 0 in keep else []
    for k, z in enumerate(_iterates(T, z0, R, schedule, steps), start=1):
        if k in keep:
            states.append(z)
    trace = torch.stack(states) if states else z0.new_empty(0, *z0.shape)
    residual = (T(z) - z).norm(dim=-1)
    return Selection(z, residual, steps, tuple(wanted), trace, schedule.objections(R))


def _admit(R: Regulariser, schedule: Weights, steps: int, check: bool) -> None:
    if steps < 0:
        raise ValueError(f"steps must not be negative, got {steps}.")
    found = schedule.objections(R) if check else ()
    if found:
        raise ValueError(
            f"the convergence theorem does not cover this run: {'; '.join(found)}. "
            "Change the schedule, or pass check=False to run it without the guarantee."
        )


def _iterates(T: Map, z: Tensor, R: Regulariser, schedule: Weights, steps: int) -> Iterator[Tensor]:
    gamma = schedule.gamma
    for k in range(1, steps + 1):
        beta, decay = schedule.beta(k), schedule.decay(k)
        s = (1 - gamma * decay) * z - gamma * R.gradient(z)
        z = beta * s + (1 - beta) * T(z)
        yield z
