"""Small models, data and runs that the tests of training share."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from deqbook.dynamics import (
    Record,
    Trajectory,
    gradient_descent,
)
from deqbook.models import VanillaDEQ
from deqbook.runtime import generator, normal
from deqbook.solvers import Picard

TOL = 1e-12


LEAN = Record(norms=False, flips=False)


def tensor(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def data(n: int = 3) -> tuple[Tensor, Tensor]:
    g = generator(2)
    return normal(n, 3, g=g), normal(n, g=g)


def tanh_deq() -> VanillaDEQ:
    base = VanillaDEQ.init(5, 3, seed=1)
    return VanillaDEQ(*(p.detach() for p in (base.W, base.U, base.a)), sigma="tanh")


def same(one: Trajectory, two: Trajectory, tol: float = 0.0) -> None:
    """Compare every field."""
    for f in dataclasses.fields(Trajectory):
        a, b = getattr(one, f.name), getattr(two, f.name)
        pairs = {f.name: (a, b)}
        if isinstance(a, dict):
            assert list(a) == list(b), f.name
            pairs = {f"{f.name}/{k}": (a[k], b[k]) for k in a}
        for name, (p, q) in pairs.items():
            assert type(p) is type(q), name
            if isinstance(p, np.ndarray):
                assert p.dtype == q.dtype, name
                assert p == pytest.approx(q, rel=tol, abs=tol), name
            else:
                assert p == q, name


def runaway() -> tuple[VanillaDEQ, Tensor, Tensor]:
    """Return a unit whose w grows past 1, where w z + x = z has no solution z ≥ 0."""
    return VanillaDEQ(tensor([0.5]), tensor([1.0]), tensor(1.0)), tensor([1.0]), tensor(4.0)


def gram(n: int = 4) -> tuple[np.ndarray, np.ndarray]:
    g = generator(3)
    J = normal(n, 6, g=g).numpy()
    return J @ J.T, normal(n, g=g).numpy()


def one_case(seed: int) -> Trajectory:
    assert torch.get_num_threads() == 1
    X, y = data()
    return gradient_descent(VanillaDEQ.init(6, 3, seed=seed), X, y, 0.1, 3)


def lost_case(seed: int) -> Trajectory:
    model, X, y = runaway()
    return gradient_descent(model, X, y, 0.25, 2, solver=Picard())
