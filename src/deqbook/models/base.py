"""What every equilibrium model shares: inject, update, solve, read out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from deqbook.solvers import Anderson, Injected, Solution, Solver, fixed_point
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
    """A model ``z = update(z, inject(x))``, output ``readout(z, inject(x))``.

    The input is injected once per solve, never once per iteration. ``model(x)`` evaluates; it does
    not record gradients (differentiating through an equilibrium is the next chapter's subject), so
    ``backward()`` on its output is an error rather than a wrong gradient.
    """

    default_solver: ClassVar[Method] = Anderson()

    @abstractmethod
    def inject(self, x: Tensor) -> Tensor:
        """Return what the input contributes to every iteration."""

    @abstractmethod
    def update(self, z: Tensor, q: Tensor) -> Tensor:
        """Return one application of the cell to the state, given the injection."""

    @abstractmethod
    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return the model's output from the state and the injection."""

    @abstractmethod
    def structure(self) -> Affine | Tied | Unstructured:
        """Describe the cell to ``certify``."""

    def iteration(self) -> Update:
        """Return ``update`` with everything that does not depend on the state precomputed."""
        return self.update

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
        solver = self.default_solver if solver is None else solver
        kind = next(self.parameters()).dtype
        if not isinstance(x, Tensor) or x.dtype != kind:
            seen = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(
                f"x must be a tensor of the weights' dtype {kind}, got {seen}; convert x or the "
                "model."
            )
        q = self.inject(x)
        if not bool(torch.isfinite(q).all()):
            raise ValueError("the injected input has NaN or infinite entries; check x.")
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

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return the output at the equilibrium."""
        return self.readout(self.solve(x).z, self.inject(x))


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
