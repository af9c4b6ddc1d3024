r"""The gradient at the current weights, warm-started."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deqbook.dynamics.trajectory import Trajectory
from deqbook.linalg import operator_norm
from deqbook.models.base import EquilibriumModel
from deqbook.models.gradients import Gradient, gradient
from deqbook.runtime import tensor
from deqbook.solvers import NotConverged, Solver
from deqbook.wellposed import Affine, Lipschitz, Tied

__all__ = ["LeftRegion", "LossGradient", "NoGradient", "weight_norm"]

LARGE = 300  # from this width on, one norm is cheaper by Lanczos than by SVD


class LeftRegion(RuntimeError):
    """The run left the region where the model is well posed; ``trajectory`` is what came before.

    Raised by ``gradient_descent`` and ``gradient_flow``.

    >>> from deqbook.dynamics import gradient_descent
    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> try:
    ...     gradient_descent(VanillaDEQ(one / 2, one, one[0]), one, 3 * one[0], step=1.0, epochs=9)
    ... except LeftRegion as left:
    ...     print(str(left)[:33], len(left.trajectory))
    epoch 1: no equilibrium was found 1
    """

    def __init__(self, message: str, trajectory: Trajectory):
        super().__init__(message)
        self.trajectory = trajectory

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from both arguments, so that a process pool can hand the error on."""
        return type(self), (str(self), self.trajectory)


class NoGradient(Exception):
    """Why the gradient could not be computed; training turns it into ``LeftRegion``.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> source = LossGradient(VanillaDEQ(2 * one, one, one[0]), one, one[0], None, None, None)
    >>> try:
    ...     source()  # z = relu(2z + 1) has no solution
    ... except NoGradient as reason:
    ...     print(str(reason)[:24])
    no equilibrium was found
    """


class LossGradient:
    """The loss and its gradient on a copy of the model, each solve started from the last.

    ``X`` is (n, d), ``y`` has the shape of the output; None stands for the model's own solvers and
    the usual tolerance. ``trained`` are the copy's parameters, to be changed in place.
    ``ValueError`` if the rows differ in number, data are not finite, or nothing is trained.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = VanillaDEQ(one / 2, one, one[0])  # z = v = 2 for x = 1, so the gradient in W is 4e
    >>> source = LossGradient(model, one, 3 * one[0], None, None, None)
    >>> {name: round(float(g), 6) for name, g in source().grads.items()}
    {'W': -4.0, 'U': -2.0, 'a': -2.0}
    """

    def __init__(
        self,
        model: EquilibriumModel,
        X: Tensor,
        y: Tensor,
        solver: Solver | None,
        adjoint_solver: Solver | None,
        tol: float | None,
    ):
        if tensor("y", y).shape[:1] != tensor("X", X).shape[:1]:
            raise ValueError(
                f"X must have one sample a row and y as many rows; got {tuple(X.shape)} and "
                f"{tuple(y.shape)}."
            )
        for name, t in (("X", X), ("y", y)):
            if not bool(torch.isfinite(t).all()):
                raise ValueError(f"{name} has NaN or infinite entries; check the data.")
        self.model = copy.deepcopy(model)
        self.X, self.y, self.tol = X, y, tol
        self.solver, self.adjoint_solver = solver, adjoint_solver
        self.trained = {k: p for k, p in self.model.named_parameters() if p.requires_grad}
        if not self.trained:
            raise ValueError("the model has nothing to train: no parameter requires a gradient.")
        self.last: Gradient | None = None

    def __call__(self) -> Gradient:
        """Return the loss, the error and the gradient; raise ``NoGradient`` where there is none."""
        bad = [k for k, p in self.trained.items() if not bool(torch.isfinite(p).all())]
        if bad:
            raise NoGradient(f"the weights {bad} have overflowed")
        try:
            found = gradient(
                self.model,
                self.X,
                self.y,
                last=self.last,
                solver=self.solver,
                adjoint_solver=self.adjoint_solver,
                tol=self.tol,
            )
        except NotConverged as error:
            raise NoGradient(f"no equilibrium was found ({error})") from None
        except torch.linalg.LinAlgError as error:  # of a matrix that has overflowed, say
            raise NoGradient(f"a decomposition of the weights failed ({error})") from None
        except ValueError as error:
            if "NaN or infinite" not in str(error):
                raise
            raise NoGradient("the states have overflowed") from None
        if not math.isfinite(found.loss):
            raise NoGradient(f"the loss is {found.loss}")
        self.last = found
        return found

    def cell_norm(self) -> float:
        """Return the norm of the matrix that multiplies the state (of tied layers, the largest).

        Of a cell that only knows its Lipschitz constant, that constant; NaN where nothing is known.
        """
        shape = self.model.structure()
        if isinstance(shape, Affine):
            return weight_norm(shape.W)
        if isinstance(shape, Tied):
            return max(weight_norm(W) for W in shape.Ws)
        if isinstance(shape, Lipschitz):
            return shape.constant() if callable(shape.constant) else shape.constant
        return math.nan

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the trained weights, by name."""
        return {k: p.detach().cpu().numpy().copy() for k, p in self.trained.items()}


def weight_norm(p: Tensor) -> float:
    """Return the operator norm of a matrix, the length of a vector.

    More axes are flattened into columns; infinity where an entry of a matrix is not finite.

    >>> weight_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]])), weight_norm(torch.tensor([3.0, 4.0]))
    (4.0, 5.0)
    """
    if p.ndim < 2:
        return float(p.norm())
    matrix = p.flatten(1)
    if not bool(torch.isfinite(matrix).all()):  # a product of finite weights can overflow
        return math.inf
    return operator_norm(matrix, method="lanczos" if min(matrix.shape) >= LARGE else "svd")
