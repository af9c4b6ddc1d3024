"""What every equilibrium model shares: inject, iterate, solve, read out.

A model of your own is one class with five short methods, ``inject``, ``weights``, ``f``,
``readout`` and ``structure``. With no other edit it can be solved, certified, differentiated to any
order, trained, and asked for its tangent kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from deqbook.implicit import IFT, Adjoint, AtParameters, Batched, equilibrium
from deqbook.runtime import tensor
from deqbook.solvers import DEFAULT, Injected, Newton, Solution, Solver, all_finite, fixed_point
from deqbook.splitting import MonotoneProblem
from deqbook.wellposed import Affine, Structure

__all__ = ["EquilibriumModel", "check_input", "check_weights"]


class EquilibriumModel(nn.Module, ABC):
    r"""A model :math:`z=f(z,q(x),w)` with output ``readout(z, q)``; batches are rows.

    The input is injected once per solve, never once per iteration. ``solve`` finds the equilibrium
    and records nothing; ``model(x)`` is differentiable, exactly by default.

    A subclass registers its parameters and says five things. Here :math:`z=\cos(wz+x)`:

    >>> from deqbook.wellposed import Lipschitz
    >>> class Cosine(EquilibriumModel):
    ...     def __init__(self, w):
    ...         super().__init__()
    ...         self.w = nn.Parameter(w)
    ...     def inject(self, x):      # what the input contributes to every iteration
    ...         return x
    ...     def weights(self):        # what the cell depends on beside state and injection
    ...         return (self.w,)
    ...     def f(self, z, q, w):     # the cell, a pure function
    ...         return torch.cos(w * z + q)
    ...     def readout(self, z, q):
    ...         return z[:, 0]
    ...     def structure(self):      # what certify may know of the cell
    ...         return Lipschitz(float(self.w.detach().abs()))
    >>> model, x = Cosine(torch.tensor(1.0).double()), torch.zeros(1, 1).double()
    >>> round(model.solve(x).z.item(), 3)
    0.739
    >>> model(x).sum().backward()  # dz/dw = -z sin(z) / (1 + sin(z))
    >>> round(model.w.grad.item(), 3)
    -0.297

    Where gradient or kernel have a closed form, the class says so by inheriting from
    ``ClosedGradient`` or ``ClosedKernel`` as well, and training uses them.
    """

    default_solver: ClassVar[Solver] = DEFAULT
    default_adjoint: ClassVar[Adjoint] = IFT()

    @abstractmethod
    def inject(self, x: Tensor) -> Tensor:
        """Return q, what the input contributes to every iteration; ``x`` has a row per sample."""

    @abstractmethod
    def weights(self) -> tuple[Tensor, ...]:
        """Return what the cell depends on beside the state and the injection."""

    @abstractmethod
    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return one application of the cell, as a pure function."""

    @abstractmethod
    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return the output, (n,) or (n, k), from the state and the injection."""

    @abstractmethod
    def structure(self) -> Structure:
        """Describe the cell to ``certify``."""

    def start(self, q: Tensor) -> Tensor:
        """Return the zero state for this injection; override where it has another shape."""
        return torch.zeros_like(q)

    def cell(self, z: Tensor, x: Tensor) -> Tensor:
        """Return f(z, x) with the model's own weights."""
        return self.f(z, self.inject(x), *self.weights())

    def map(self, q: Tensor) -> Injected:
        """Return z ↦ f(z, q) for an injection: weights assembled once, nothing recorded."""
        weights = tuple(w.detach() for w in self.weights())
        return Injected(lambda z, q: self.f(z, q, *weights), q)

    @torch.no_grad()
    def solve(
        self,
        x: Tensor,
        z0: Tensor | None = None,
        *,
        solver: Solver | None = None,
        tol: float | None = None,
        max_steps: int = 2000,
        throw: bool = True,
    ) -> Solution:
        r"""Return the equilibrium for every row of ``x``; ``z0`` is a warm start.

        ``tol`` bounds the relative residual. The error can be larger: where the cell contracts by
        a factor c, by :math:`1/(1-c)`. The default is 1e-8 in float64 and 1e-5 in float32.

        ``NotConverged`` where a sample misses it in ``max_steps``, unless ``throw=False``;
        ``TypeError`` for another dtype than the weights'; ``ValueError`` for an injection that is
        not finite, and for a splitting where the cell is not :math:`\sigma(Wz+q)`.
        """
        return self.solve_injected(
            self.injected(x), z0, solver=solver, tol=tol, max_steps=max_steps, throw=throw
        )

    def injected(self, x: Tensor) -> Tensor:
        """Return ``inject(x)``; ``TypeError`` unless x is a tensor of the weights' dtype."""
        kind = next(self.parameters()).dtype
        if tensor("x", x).dtype != kind:
            raise TypeError(
                f"x must be a tensor of the weights' dtype {kind}, got {x.dtype}; convert x or the "
                "model."
            )
        return self.inject(x)

    def solve_injected(
        self,
        q: Tensor,
        z0: Tensor | None = None,
        *,
        solver: Solver | None = None,
        tol: float | None = None,
        max_steps: int = 2000,
        throw: bool = True,
    ) -> Solution:
        """Return the equilibrium of an injection: ``solve`` for those who have it already.

        Options and errors are those of ``solve``.
        """
        if not all_finite(q):
            raise ValueError("the injected input has NaN or infinite entries; check x.")
        solver = self.default_solver if solver is None else solver
        return fixed_point(
            self.map(q) if solver.any_map else self._monotone(q, solver),
            self.start(q) if z0 is None else z0,
            solver=solver,
            tol=tol,
            max_steps=max_steps,
            throw=throw,
        )

    def _monotone(self, q: Tensor, solver: Solver) -> MonotoneProblem:
        shape = self.structure()
        if not isinstance(shape, Affine):
            raise ValueError(
                f"{type(solver).__name__} needs a cell σ(Wz + q); {type(self).__name__} is not "
                "of that form. Use a solver of deqbook.solvers."
            )
        return MonotoneProblem(shape.W, q, shape.sigma)

    def state(
        self,
        x: Tensor,
        z0: Tensor | None = None,
        *,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
        tol: float | None = None,
        max_steps: int = 2000,
    ) -> Tensor:
        """Return the equilibrium as a differentiable function of the input and the weights.

        ``adjoint`` is the model's own exact one by default; ``JFB()``, ``Phantom(…)`` and
        ``Unroll(…)`` are approximations. ``tol`` is that of the state and, where ``adjoint`` names
        none, of the gradient; an ``IFT`` without a solver uses the model's. ``z0`` and
        ``IFT(start=…)`` are warm starts. The errors are those of ``solve``; the backward pass
        raises ``NotConverged`` as well.
        """
        return self._state(self.injected(x), z0, solver, adjoint, tol, max_steps)

    def forward(
        self,
        x: Tensor,
        z0: Tensor | None = None,
        *,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
        tol: float | None = None,
        max_steps: int = 2000,
    ) -> Tensor:
        """Return the output at the equilibrium; the options are those of ``state``."""
        q = self.injected(x)
        return self.readout(self._state(q, z0, solver, adjoint, tol, max_steps), q)

    def adjoint(self, adjoint: Adjoint | None = None, *, tol: float | None = None) -> Adjoint:
        """Complete an adjoint: what an ``IFT`` leaves open is the model's solver and ``tol``."""
        own = self.default_adjoint
        given = own if adjoint is None else adjoint
        if not isinstance(given, IFT):
            return given
        solver = own.solver if given.solver is None and isinstance(own, IFT) else given.solver
        return replace(given, solver=solver, tol=tol if given.tol is None else given.tol)

    def _state(
        self,
        q: Tensor,
        z0: Tensor | None,
        solver: Solver | None,
        adjoint: Adjoint | None,
        tol: float | None,
        max_steps: int,
    ) -> Tensor:
        chosen = self.default_solver if solver is None else solver

        def find(cell: AtParameters, z: Tensor) -> Solution:
            cell = _rows(cell)
            if isinstance(cell.f, Batched):  # vmap over weights: many cells at once
                general = chosen if chosen.any_map else Newton("gmres", inner=60)
                return fixed_point(cell, z, solver=general, tol=tol, max_steps=max_steps)
            return self.solve_injected(
                cell.theta[0], z, solver=chosen, tol=tol, max_steps=max_steps
            )

        return equilibrium(
            self.f,
            self.start(q) if z0 is None else z0,
            q,
            *self.weights(),
            solver=find,
            adjoint=self.adjoint(adjoint, tol=tol),
        )


def _rows(cell: AtParameters) -> AtParameters:
    """Undo ``vmap`` over inputs: with shared weights a batch of batches is a longer batch."""
    f, (q, *weights) = cell.f, cell.theta
    depth = 0
    while isinstance(f, Batched) and all(d is None for d in f.dims[1:]):
        if f.dims[0] is None:
            q = q.unsqueeze(depth).expand(*q.shape[:depth], f.size, *q.shape[depth:])
        else:
            q = q.movedim(f.dims[0] + depth, depth)
        f, depth = f.f, depth + 1
    return cell if isinstance(f, Batched) else AtParameters(f, (q.flatten(0, depth), *weights))


def check_weights(**weights: tuple[Tensor, tuple[int | str, ...]]) -> dict[str, int]:
    """Check shapes and finiteness; letters name sizes that must agree. Return the sizes found.

    Each argument is a pair, the tensor and its shape in letters and numbers. ``ValueError`` names
    the first that is wrong; ``TypeError`` for what is not a floating-point tensor.

    >>> check_weights(W=(torch.eye(3), ("m", "m")), U=(torch.ones(3, 2), ("m", "d")))
    {'m': 3, 'd': 2}
    >>> check_weights(W=(torch.ones(3, 2), ("m", "m")))
    Traceback (most recent call last):
    ValueError: W must have shape (m, m) with m = 3, got (3, 2).
    """
    sizes: dict[str, int] = {}
    for name, (given, shape) in weights.items():
        seen = tuple(tensor(name, given).shape)
        want = "(" + ", ".join(str(s) for s in shape) + ")"
        if len(seen) != len(shape):
            raise ValueError(f"{name} must have shape {want}, got {seen}.")
        for size, expected in zip(seen, shape):
            known = expected if isinstance(expected, int) else sizes.setdefault(expected, size)
            if size != known:
                raise ValueError(
                    f"{name} must have shape {want} with {expected} = {known}, got {seen}."
                )
        if not bool(torch.isfinite(given).all()):
            raise ValueError(f"{name} has NaN or infinite entries.")
    return sizes


def check_input(x: Tensor, d: int) -> Tensor:
    """Return x if it is (n, d); else ``ValueError``.

    >>> check_input(torch.ones(3), d=3)
    Traceback (most recent call last):
    ValueError: x must be (n, 3): one sample per row; got shape (3,).
    """
    if x.ndim != 2 or x.shape[1] != d:
        raise ValueError(f"x must be (n, {d}): one sample per row; got shape {tuple(x.shape)}.")
    return x
