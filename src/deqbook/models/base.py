"""What every equilibrium model shares: inject, update, solve, read out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from deqbook.implicit import IFT, Adjoint, Batched, Bound, equilibrium
from deqbook.solvers import Anderson, Injected, Newton, Solution, Solver, all_finite, fixed_point
from deqbook.splitting import (
    ForwardBackward,
    MonotoneProblem,
    PeacemanRachford,
    split,
)
from deqbook.wellposed import Affine, Tied, Unstructured

__all__ = ["EquilibriumModel", "check_weights"]

Update = Callable[[Tensor, Tensor], Tensor]
Method = Solver | ForwardBackward | PeacemanRachford


class EquilibriumModel(nn.Module, ABC):
    """A model ``z = f(z, inject(x), *weights())``, output ``readout(z, inject(x))``.

    The input is injected once per solve, never once per iteration. ``solve`` finds the equilibrium
    and records nothing; ``model(x)`` is differentiable, exactly by default.
    """

    default_solver: ClassVar[Method] = Anderson()
    default_adjoint: ClassVar[Adjoint] = IFT()

    @abstractmethod
    def inject(self, x: Tensor) -> Tensor:
        """Return what the input contributes to every iteration."""

    @abstractmethod
    def weights(self) -> tuple[Tensor, ...]:
        """Return what the cell depends on beside the state and the injection."""

    @abstractmethod
    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return one application of the cell, as a pure function."""

    @abstractmethod
    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return the model's output from the state and the injection."""

    @abstractmethod
    def structure(self) -> Affine | Tied | Unstructured:
        """Describe the cell to ``certify``."""

    def update(self, z: Tensor, q: Tensor) -> Tensor:
        """Return one application of the cell with the model's own weights."""
        return self.f(z, q, *self.weights())

    def iteration(self) -> Update:
        """Return ``update`` with the weights assembled once, and nothing recorded."""
        weights = tuple(w.detach() for w in self.weights())
        return lambda z, q: self.f(z, q, *weights)

    def start(self, q: Tensor) -> Tensor:
        """Return the zero state for this injection."""
        return torch.zeros_like(q)

    def cell(self, z: Tensor, x: Tensor) -> Tensor:
        """Return f(z, x)."""
        return self.update(z, self.inject(x))

    @torch.no_grad()
    def solve(
        self,
        x: Tensor,
        z0: Tensor | None = None,
        *,
        solver: Method | None = None,
        tol: float | None = None,
        max_steps: int = 2000,
        throw: bool = True,
    ) -> Solution:
        """Return the equilibrium for every row of ``x``; ``z0`` is a warm start."""
        return self._find(self._injected(x), z0, solver, tol, max_steps, throw=throw)

    def _injected(self, x: Tensor) -> Tensor:
        kind = next(self.parameters()).dtype
        if not isinstance(x, Tensor) or x.dtype != kind:
            seen = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(
                f"x must be a tensor of the weights' dtype {kind}, got {seen}; convert x or the "
                "model."
            )
        return self.inject(x)

    def _find(
        self,
        q: Tensor,
        z0: Tensor | None,
        solver: Method | None,
        tol: float | None,
        max_steps: int,
        *,
        throw: bool,
    ) -> Solution:
        """Find the equilibrium of an injection, by splitting or by iteration."""
        if not all_finite(q):
            raise ValueError("the injected input has NaN or infinite entries; check x.")
        solver = self.default_solver if solver is None else solver
        if isinstance(solver, ForwardBackward | PeacemanRachford):
            shape = self.structure()
            if not isinstance(shape, Affine):
                raise ValueError(
                    f"{type(solver).__name__} needs a cell σ(Wz + q); {type(self).__name__} is not "
                    "of that form. Use a solver of deqbook.solvers."
                )
            problem = MonotoneProblem(shape.W, q, shape.sigma)
            return split(problem, solver, z0=z0, tol=tol, max_steps=max_steps, throw=throw)
        z0 = self.start(q) if z0 is None else z0
        return fixed_point(
            Injected(self.iteration(), q),
            z0,
            solver=solver,
            tol=tol,
            max_steps=max_steps,
            throw=throw,
        )

    def state(
        self,
        x: Tensor,
        z0: Tensor | None = None,
        *,
        solver: Method | None = None,
        adjoint: Adjoint | None = None,
        tol: float | None = None,
        max_steps: int = 2000,
    ) -> Tensor:
        """Return the equilibrium as a differentiable function of the input and the weights.

        ``adjoint`` is the model's own exact one by default; ``JFB()``, ``Phantom(…)`` and
        ``Unroll(…)`` are approximations. ``z0`` and ``IFT(start=…)`` are warm starts.
        """
        return self._state(self._injected(x), z0, solver, adjoint, tol, max_steps)

    def forward(
        self,
        x: Tensor,
        z0: Tensor | None = None,
        *,
        solver: Method | None = None,
        adjoint: Adjoint | None = None,
        tol: float | None = None,
        max_steps: int = 2000,
    ) -> Tensor:
        """Return the output at the equilibrium; the options are those of ``state``."""
        q = self._injected(x)
        return self.readout(self._state(q, z0, solver, adjoint, tol, max_steps), q)

    def _state(
        self,
        q: Tensor,
        z0: Tensor | None,
        solver: Method | None,
        adjoint: Adjoint | None,
        tol: float | None,
        max_steps: int,
    ) -> Tensor:
        start = self.start(q) if z0 is None else z0

        def find(cell: Bound, z: Tensor) -> Solution:
            cell = _rows(cell)
            if isinstance(cell.f, Batched):  # vmap over weights: many cells at once
                chosen = self.default_solver if solver is None else solver
                if isinstance(chosen, ForwardBackward | PeacemanRachford):
                    chosen = Newton("gmres", inner=60)
                return fixed_point(cell, z, solver=chosen, tol=tol, max_steps=max_steps)
            return self._find(cell.theta[0], z, solver, tol, max_steps, throw=True)

        return equilibrium(
            self.f,
            start,
            q,
            *self.weights(),
            solver=find,
            adjoint=self.default_adjoint if adjoint is None else adjoint,
        )


def _rows(cell: Bound) -> Bound:
    """Undo ``vmap`` over inputs: with shared weights a batch of batches is a longer batch."""
    f, (q, *weights) = cell.f, cell.theta
    depth = 0
    while isinstance(f, Batched) and all(d is None for d in f.dims[1:]):
        if f.dims[0] is None:
            q = q.unsqueeze(depth).expand(*q.shape[:depth], f.size, *q.shape[depth:])
        else:
            q = q.movedim(f.dims[0] + depth, depth)
        f, depth = f.f, depth + 1
    return cell if isinstance(f, Batched) else Bound(f, (q.flatten(0, depth), *weights))


def check_weights(**weights: tuple[Tensor, tuple[int | str, ...]]) -> dict[str, int]:
    """Check shapes and finiteness; letters name sizes that must agree. Return the sizes found."""
    sizes: dict[str, int] = {}
    for name, (tensor, shape) in weights.items():
        seen = tuple(tensor.shape)
        want = "(" + ", ".join(str(s) for s in shape) + ")"
        if len(seen) != len(shape):
            raise ValueError(f"{name} must have shape {want}, got {seen}.")
        for size, expected in zip(seen, shape):
            known = expected if isinstance(expected, int) else sizes.setdefault(expected, size)
            if size != known:
                raise ValueError(
                    f"{name} must have shape {want} with {expected} = {known}, got {seen}."
                )
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} has NaN or infinite entries.")
    return sizes


def check_input(x: Tensor, d: int) -> Tensor:
    """Check that x is (n, d)."""
    if x.ndim != 2 or x.shape[1] != d:
        raise ValueError(f"x must be (n, {d}): one sample per row; got shape {tuple(x.shape)}.")
    return x
