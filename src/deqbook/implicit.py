r"""Differentiate the answer, not the algorithm.

``equilibrium(f, z0, *theta)`` is the solution of :math:`z=f(z,\theta)` as a differentiable
function of :math:`\theta`. By the implicit function theorem a cotangent :math:`g` of :math:`z` is
pulled back in two moves: solve the **adjoint equation**, itself an equilibrium, and pull the result
once through f,

.. math:: v=J^\top v+g,\quad J=\partial_zf(z,\theta),\qquad \bar\theta=(\partial_\theta f)^\top v .

A tangent :math:`\dot\theta` is pushed forward by the transposed pair,
:math:`\dot z=J\dot z+\partial_\theta f\,\dot\theta`.

No iterate of the forward solver is stored, so memory does not grow with its steps. The adjoint
equation is built from :math:`(z,\theta,g)` by differentiable operations and solved by the same
function, so second derivatives are exact as well: they are equilibria again.

``IFT`` is exact and the default. ``JFB``, ``Phantom`` and ``Unroll`` are approximations and are
called so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.autograd import Function

from deqbook.solvers import (
    DEFAULT,
    NotConverged,
    Solution,
    Solver,
    check_solver,
    fixed_point,
)

__all__ = [
    "IFT",
    "JFB",
    "Adjoint",
    "AtParameters",
    "Batched",
    "Find",
    "Phantom",
    "PullsBack",
    "Unroll",
    "equilibrium",
    "kept_bytes",
    "pull_back",
]

Cell = Callable[..., Tensor]


@dataclass(frozen=True)
class AtParameters:
    r"""The map :math:`z\mapsto f(z,\theta)` at plain numbers, whatever transforms are running.

    >>> AtParameters(lambda z, t: t * z, (torch.tensor(3.0),))(torch.ones(1, 2)).tolist()
    [[3.0, 3.0]]
    """

    f: Cell
    theta: tuple[Tensor, ...]

    def __call__(self, z: Tensor) -> Tensor:
        """Return ``f(z, *theta)``."""
        return self.f(z, *self.theta)


Find = Callable[[Any, Tensor], Solution]
"""A way to find the fixed point of a map from a start; raises ``NotConverged`` if it cannot."""


@runtime_checkable
class PullsBack(Protocol):
    """A ``Find`` that also knows how to pull a cotangent back, faster than ``pull_back`` does.

    ``equilibrium`` asks it where nobody differentiates the gradient again. Everywhere else, under
    ``create_graph`` or ``torch.func``, the usual rule stays.

    >>> class Half:  # finds z = z/2 + t, which is 2t, and knows that its derivative is 2
    ...     def __call__(self, f, z0):
    ...         return fixed_point(f, z0)
    ...     def pull_back(self, g, z, theta, wanted):
    ...         return (2 * g.sum(0),)
    >>> t = torch.ones(1, requires_grad=True)
    >>> z = equilibrium(lambda z, t: z / 2 + t, torch.zeros(3, 1), t, solver=Half())
    >>> z.sum().backward()
    >>> t.grad.tolist()
    [6.0]
    """

    def pull_back(
        self, g: Tensor, z: Tensor, theta: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Return the cotangents of ``theta`` for the cotangent ``g`` of z; None where unwanted."""


@dataclass(frozen=True)
class _Finder:
    """Find by ``fixed_point`` with these settings."""

    solver: Solver
    tol: float | None
    max_steps: int
    what: str = "the equilibrium"

    def __call__(self, f: Callable[[Tensor], Tensor], z0: Tensor) -> Solution:
        try:
            return fixed_point(f, z0, solver=self.solver, tol=self.tol, max_steps=self.max_steps)
        except NotConverged as error:
            raise NotConverged(f"{self.what}: {error}", error.solution) from None


@dataclass(frozen=True)
class _FindScaled(_Finder):
    """Find the fixed point of an affine map, relative to the size of its constant term.

    A tolerance of ``fixed_point`` is absolute below size one. The cotangents of a mean over many
    samples are far below it: unscaled, zero would be accepted as their adjoint state.
    """

    def __call__(self, f: Callable[[Tensor], Tensor], z0: Tensor) -> Solution:
        constant = f.constant if isinstance(f, _Affine) else f(torch.zeros_like(z0))
        size = torch.linalg.vector_norm(constant.flatten(1), dim=1)
        size = torch.where(size == 0, 1.0, size).reshape(-1, *[1] * (z0.ndim - 1))
        found = super().__call__(lambda u: f(size * u) / size, z0 / size)
        return replace(found, z=size * found.z)


@dataclass(frozen=True)
class IFT:
    """The exact gradient, by the implicit function theorem.

    ``solver``, ``tol`` and ``max_steps`` are those of the adjoint solve. Left open, the tolerance
    is that of the equilibrium and the solver ``Adaptive()``, or a model's own. ``start`` is a warm
    start (a cotangent of the same shape as the state; another shape is a ``ValueError`` of the
    backward pass). A failed adjoint solve raises ``NotConverged``.

    The state of :math:`z=tz+1` is :math:`1/(1-t)`; its derivative at 1/2 is 4, the second one 16.

    >>> def z(t):
    ...     return equilibrium(lambda z, t: t * z + 1, torch.zeros(1, 1), t, adjoint=IFT()).sum()
    >>> slope = torch.func.grad(z)
    >>> t = torch.tensor(0.5)
    >>> round(float(slope(t)), 2), round(float(torch.func.grad(slope)(t)), 2)
    (4.0, 16.0)
    """

    solver: Solver | None = None
    tol: float | None = None
    max_steps: int = 1000
    start: Tensor | None = None


@dataclass(frozen=True)
class JFB:
    r"""Jacobian-free backpropagation: pretend :math:`J=0` in the adjoint equation. Not exact.

    Of the derivative 4 of :math:`1/(1-t)` (see ``IFT``) it sees :math:`\partial_tf=z=2`.

    >>> def z(t):
    ...     return equilibrium(lambda z, t: t * z + 1, torch.zeros(1, 1), t, adjoint=JFB()).sum()
    >>> round(float(torch.func.grad(z)(torch.tensor(0.5))), 2)
    2.0
    """


@dataclass(frozen=True)
class Phantom:
    r"""Phantom gradient: differentiate ``steps`` damped steps taken at the equilibrium. Not exact.

    The steps are :math:`z\leftarrow(1-\beta)z+\beta f(z,\theta)` from the detached solution. JFB is
    one step with :math:`\beta=1`; for a contraction the error falls geometrically with the steps.
    ``ValueError`` if ``steps`` is below 1 or β = ``damping`` outside (0, 1].

    >>> def z(t, steps):
    ...     how = Phantom(steps, damping=1.0)
    ...     return equilibrium(lambda z, t: t * z + 1, torch.zeros(1, 1), t, adjoint=how).sum()
    >>> [round(float(torch.func.grad(z)(torch.tensor(0.5), k)), 2) for k in (1, 2, 3)]  # 4 - 4/2^k
    [2.0, 3.0, 3.5]
    """

    steps: int = 5
    damping: float = 0.5

    def __post_init__(self) -> None:
        _at_least_one("steps", self.steps)
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must be in (0, 1], got {self.damping!r}.")


@dataclass(frozen=True)
class Unroll:
    """Iterate ``steps`` times from ``z0`` and differentiate every step.

    Value and gradient are those of a network with that many tied layers: no equilibrium is sought.
    Memory grows with the steps. ``ValueError`` if ``steps`` is below 1.

    Three steps of :math:`tz+1` from 0 make :math:`1+t+t^2`:

    >>> def z(t):
    ...     cell, z0 = lambda z, t: t * z + 1, torch.zeros(1, 1)
    ...     return equilibrium(cell, z0, t, adjoint=Unroll(3)).sum()
    >>> float(z(torch.tensor(0.5))), float(torch.func.grad(z)(torch.tensor(0.5)))
    (1.75, 2.0)
    """

    steps: int = 20

    def __post_init__(self) -> None:
        _at_least_one("steps", self.steps)


Adjoint = IFT | JFB | Phantom | Unroll
"""A way to differentiate an equilibrium: exact (``IFT``) or not (the others)."""


def equilibrium(
    f: Cell,
    z0: Tensor,
    *theta: Tensor,
    solver: Solver | Find | None = None,
    adjoint: Adjoint = IFT(),  # noqa: B008 (frozen)
    tol: float | None = None,
    max_steps: int | None = None,
) -> Tensor:
    """Return the solution of ``z = f(z, *theta)``, differentiable in ``theta``.

    Rows of ``z0`` are samples. Everything that needs a gradient must be passed in ``theta``: under
    ``IFT`` a tensor that ``f`` closes over is a constant. ``solver`` is one of
    :mod:`deqbook.solvers`, or any callable ``(map, z0) -> Solution``. Works under
    ``torch.func.grad``, ``jacrev``, ``jacfwd``, ``hessian`` and ``vmap``, but not under two nested
    forward modes, which raise ``NotImplementedError``. ``max_steps`` is for a ``Solver``: a
    callable one has its own, and ``Unroll`` uses none.

    ``NotConverged`` if the solver finds no equilibrium. ``TypeError`` if ``f`` is no function or a
    ``theta`` no floating-point tensor; ``ValueError`` for ``tol`` beside a callable ``solver``.

    >>> t = torch.tensor([0.5], requires_grad=True)
    >>> z = equilibrium(lambda z, t: torch.relu(t * z + 1), torch.zeros(1, 1), t)  # 1 / (1 - t)
    >>> z.sum().backward()
    >>> round(z.item(), 2), round(t.grad.item(), 2)
    (2.0, 4.0)
    """
    _check_theta(f, theta)
    if isinstance(adjoint, Unroll):
        z = z0
        for _ in range(adjoint.steps):
            z = f(z, *theta)
        return z
    chosen = DEFAULT if solver is None else solver
    find: Find
    if callable(chosen) and not isinstance(chosen, type):
        if tol is not None or max_steps is not None:
            raise ValueError(
                "solver is a function: give tol and max_steps to it, not to equilibrium."
            )
        find = chosen
    else:
        find = _Finder(check_solver(chosen), tol, 1000 if max_steps is None else max_steps)
    if isinstance(adjoint, IFT):
        adjoint = replace(adjoint, tol=tol if adjoint.tol is None else adjoint.tol)
        return _Equilibrium.apply(f, (find, adjoint), z0, *theta)
    with torch.no_grad():
        z = _Equilibrium.apply(f, (find, IFT()), z0, *(t.detach() for t in theta)).detach()
    steps, beta = (1, 1.0) if isinstance(adjoint, JFB) else (adjoint.steps, adjoint.damping)
    for _ in range(steps):
        z = (1 - beta) * z + beta * f(z, *theta)
    return z


def kept_bytes(compute: Callable[[], Tensor], there: Sequence[Tensor] = ()) -> int:
    """Return how many bytes autograd keeps for the backward pass of ``compute()``.

    Each piece of memory counts once. What is ``there`` anyway, parameters and inputs, does not.
    ``ValueError`` if nothing is recorded, because the result needs no gradient.

    >>> x = torch.ones(1000, requires_grad=True)
    >>> kept_bytes(lambda: x.exp().exp().sum(), [x])
    8000
    """
    kept: dict[int, Tensor] = {}  # holding the tensors keeps an address from being used twice

    def note(saved: Tensor) -> Tensor:
        kept.setdefault(saved.untyped_storage().data_ptr(), saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        result = compute()
    if not result.requires_grad:
        raise ValueError("nothing is kept: the result needs no gradient; did a no_grad remain on?")
    known = {t.untyped_storage().data_ptr() for t in there}
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in known)


@dataclass(frozen=True)
class _Affine:
    """The map u ↦ Lu + c, which knows its constant term."""

    linear: Callable[[Tensor], Tensor]
    constant: Tensor

    def __call__(self, u: Tensor) -> Tensor:
        return self.linear(u) + self.constant


@dataclass(frozen=True)
class _AdjointMap:
    r"""The map :math:`v\mapsto J^\top v+g` as a function of :math:`(v,g,z,\theta)`."""

    f: Cell

    def __call__(self, v: Tensor, g: Tensor, z: Tensor, *theta: Tensor) -> Tensor:
        return self.bind(g, z, *theta)(v)

    def bind(self, g: Tensor, z: Tensor, *theta: Tensor) -> _Affine:
        """Linearise once; every iteration is then one backward pass, without a forward one."""
        pull = torch.func.vjp(lambda z: self.f(z, *theta), z)[1]
        return _Affine(lambda v: pull(v)[0], g)


@dataclass(frozen=True)
class _TangentMap:
    r"""The map :math:`u\mapsto Ju+w` as a function of :math:`(u,w,z,\theta)`."""

    f: Cell

    def __call__(self, u: Tensor, w: Tensor, z: Tensor, *theta: Tensor) -> Tensor:
        return self.bind(w, z, *theta)(u)

    def bind(self, w: Tensor, z: Tensor, *theta: Tensor) -> _Affine:
        """Linearise once."""
        return _Affine(_push_forward(lambda z: self.f(z, *theta), z), w)


@dataclass(frozen=True)
class Batched:
    """A map on (B, n, …) stored as (B·n, …), from a map on (n, …): how ``vmap`` is served.

    ``size`` is B, ``dims`` says for every θ which axis is the batch (None: shared).

    >>> f = Batched(lambda z, t: t * z, size=2, dims=(0,))
    >>> f(torch.ones(4, 1), torch.tensor([2.0, 3.0])).flatten().tolist()
    [2.0, 2.0, 3.0, 3.0]
    """

    f: Cell
    size: int
    dims: tuple[int | None, ...]

    def _split(self, z: Tensor) -> Tensor:
        return z.reshape(self.size, -1, *z.shape[1:])

    def __call__(self, z: Tensor, *theta: Tensor) -> Tensor:
        """Apply f to every one of the batches."""
        mapped = torch.func.vmap(self.f, in_dims=(0, *self.dims))
        return mapped(self._split(z), *theta).flatten(0, 1)


class _Equilibrium(Function):
    """Forward: find. Backward: one adjoint equilibrium and one pull-back."""

    @staticmethod
    def forward(f: Cell, how: tuple[Find, IFT], z0: Tensor, *theta: Tensor) -> Tensor:
        find, _ = how
        bound = f.bind(*theta) if hasattr(f, "bind") else AtParameters(f, theta)
        return find(bound, z0).z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.f, ctx.how, _, *theta = inputs
        ctx.save_for_backward(output, *theta)
        ctx.save_for_forward(output, *theta)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        z, *theta = ctx.saved_tensors
        f, ift = ctx.f, ctx.how[1]
        if torch.is_grad_enabled() or torch._C._functorch.get_interpreter_stack():
            how = _linear("the adjoint equation", ift)
            v = _Equilibrium.apply(_AdjointMap(f), how, _adjoint_start(ift, g), g, z, *theta)
            return None, None, None, *torch.func.vjp(lambda *t: f(z, *t), *theta)[1](v)
        # Nobody differentiates this gradient.
        wanted = ctx.needs_input_grad[3:]
        if isinstance(ctx.how[0], PullsBack):
            return None, None, None, *ctx.how[0].pull_back(g, z, theta, wanted)
        return None, None, None, *pull_back(f, z, theta, g, adjoint=ift, wanted=wanted)[1]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        _refuse_forward_over_forward()
        z, *theta = ctx.saved_tensors
        f = ctx.f
        moving = [torch.zeros_like(t) if d is None else d for t, d in zip(theta, tangents[3:])]
        w = _push_forward(lambda *t: f(z, *t), *theta)(*moving)
        how = _linear("the tangent equation", ctx.how[1])
        return _Equilibrium.apply(_TangentMap(f), how, w, w, z, *theta)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], f: Cell, how: tuple[Find, IFT], *tensors: Tensor
    ) -> tuple[Tensor, int]:
        _, _, *dims = in_dims
        (z0, *theta), (first, *rest) = tensors, dims
        size = info.batch_size
        moved = z0.expand(size, *z0.shape) if first is None else z0.movedim(first, 0)
        batched = Batched(f, size, tuple(rest))
        how = how[0], replace(how[1], start=None)  # has the shape of one call, not of all
        z = _Equilibrium.apply(batched, how, moved.flatten(0, 1), *theta)
        return z.reshape(moved.shape), 0


def pull_back(
    f: Cell,
    z: Tensor,
    theta: Sequence[Tensor],
    g: Tensor,
    *,
    adjoint: IFT = IFT(),  # noqa: B008 (frozen)
    wanted: Sequence[bool] | None = None,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    r"""Return the adjoint state :math:`v=J^\top v+g` and the cotangents of ``theta``.

    ``z`` is the equilibrium of f at ``theta``, ``g`` its cotangent, ``wanted`` says of each
    ``theta`` whether it is wanted (all by default). One record of the cell serves J and the
    parameters; nothing here can be differentiated again. ``NotConverged`` where the adjoint solve
    fails.

    >>> t, z = torch.tensor(0.5), torch.tensor([[2.0]])  # z = tz + 1
    >>> v, (slope,) = pull_back(lambda z, t: t * z + 1, z, (t,), torch.ones(1, 1))
    >>> round(v.item(), 2), round(slope.item(), 2)
    (2.0, 4.0)
    """
    wanted = [True] * len(theta) if wanted is None else wanted
    pull = _record(f, z, *theta)
    state = (True, *[False] * len(theta))
    find, _ = _linear("the adjoint equation", adjoint)
    v = find(_Affine(lambda v: pull(v, state)[0], g), _adjoint_start(adjoint, g)).z
    return v, pull(v, (False, *wanted))[1:]


def _adjoint_start(ift: IFT, g: Tensor) -> Tensor:
    start = g if ift.start is None else ift.start
    if start.shape != g.shape:
        raise ValueError(
            f"the adjoint's start must have the state's shape {tuple(g.shape)}, "
            f"got {tuple(start.shape)}."
        )
    return start


def _record(f: Cell, *at: Tensor) -> Callable[[Tensor, Sequence[bool]], tuple[Any, ...]]:
    """Apply f once; return the pull-back of a cotangent to those arguments of f that are wanted."""
    at = tuple(t.detach().requires_grad_() for t in at)
    with torch.enable_grad():
        image = f(*at)

    def pull(v: Tensor, wanted: Sequence[bool]) -> tuple[Any, ...]:
        to = [t for t, want in zip(at, wanted) if want]
        if image.requires_grad and to:
            # A solver may differentiate the pull-back in v, so it is recorded when grad mode is on.
            recorded = torch.is_grad_enabled()
            pulled = torch.autograd.grad(
                image, to, v, retain_graph=True, create_graph=recorded, materialize_grads=True
            )
        else:  # f is a constant
            pulled = tuple(torch.zeros_like(t) for t in to)
        rest = iter(pulled)
        return tuple(next(rest) if want else None for want in wanted)

    return pull


def _push_forward(f: Callable[..., Tensor], *at: Tensor) -> Callable[..., Tensor]:
    """Return the map from tangents to J·tangent, as the transpose of the pull-back.

    Two reverse passes instead of one forward pass, because torch does not nest forward mode.
    """
    linearised = torch.func.vjp(f, *at)
    out, pull = linearised[0], linearised[1]
    transposed = torch.func.vjp(lambda c: pull(c), torch.zeros_like(out))[1]
    return lambda *tangents: transposed(tangents)[0]


def _refuse_forward_over_forward() -> None:
    """Raise where torch would silently drop terms (pytorch/pytorch#197867)."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    if sum(i.key() == torch._C._functorch.TransformType.Jvp for i in stack) > 1:
        raise NotImplementedError(
            "forward mode over forward mode is wrong in torch for custom functions; for second "
            "derivatives use torch.func.hessian, or jacrev inside or outside."
        )


def _linear(what: str, ift: IFT) -> tuple[Find, IFT]:
    """Solve a linear equilibrium and differentiate it by the same rule, without the warm start."""
    solver = DEFAULT if ift.solver is None else ift.solver
    find = _FindScaled(solver, ift.tol, ift.max_steps, what)
    return find, replace(ift, start=None)


def _check_theta(f: Cell, theta: Sequence[Any]) -> None:
    if not callable(f):
        raise TypeError(f"f must be a function f(z, *theta), got {type(f).__name__}.")
    for i, t in enumerate(theta):
        if not isinstance(t, Tensor) or not t.is_floating_point():
            seen = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(
                f"theta[{i}] must be a floating-point tensor, got {seen}; close over constants."
            )


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}.")
