r"""Training runs on real pictures: what the page on real data and its claims share.

A ``Case`` says everything about a run and a ``Trajectory`` is everything it leaves, so that
``sweep(train, cases, executor=…)`` may run them anywhere. The networks are those of Figure 1 of
gao2022, gao2023 and ling2023, at a smaller size, and the monotone DEQ of nguyen2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from deqbook import data
from deqbook.dynamics import Record, Trajectory, gradient_descent
from deqbook.kernels import empirical_ntk
from deqbook.models import MonDEQ, ReLUImplicit, VanillaDEQ
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Anderson, Picard

__all__ = [
    "SETS",
    "Case",
    "Samples",
    "build",
    "edge",
    "kernel",
    "largest_step",
    "samples",
    "step_of",
    "train",
]

SETS = {
    "mnist01": "MNIST",
    "fashion01": "Fashion-MNIST",
    "cifar01": "CIFAR-10",
    "svhn01": "SVHN",
}
"""The bundled two-class sets, and what to call them."""

Network = Literal["gao2022", "gao2023", "ling2023", "nguyen2022"]
Rule = Literal["fixed", "1/m", "edge", "mean"]


@dataclass(frozen=True)
class Case:
    r"""One run: data, network, step, length.

    ``data`` is a bundled set or ``"sphere"`` (points on the sphere of radius √d with d = n,
    Gaussian labels). ``part`` selects the samples part·n … (part+1)·n - 1 of the set, ``seed`` the
    weights. The step is ``step`` itself (``rule="fixed"``), or ``step`` times 1/m (``"1/m"``),
    the edge :math:`2/\lambda_{\max}(H(0))` (``"edge"``) or one over the mean eigenvalue,
    :math:`n/\operatorname{tr}H(0)` (``"mean"``). ``test`` and ``norms`` say what is recorded
    besides the loss; ``double`` asks for float64.
    """

    data: str = "mnist01"
    network: Network = "gao2022"
    m: int = 100
    seed: int = 0
    step: float = 0.5
    rule: Rule = "edge"
    epochs: int = 100
    every: int = 10
    n: int = 100
    part: int = 0
    gamma: float = 0.1
    test: bool = True
    norms: bool = True
    double: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the run."""
        return torch.float64 if self.double else torch.float32


@dataclass(frozen=True, eq=False)
class Samples:
    """Training samples and, where there are any, test samples."""

    X: Tensor
    y: Tensor
    X_test: Tensor | None = None
    y_test: Tensor | None = None


def samples(case: Case) -> Samples:
    r"""Return what a case trains on: of length √d for ling2023, else of length 1."""
    return _samples(case.data, case.network == "ling2023", case.n, case.part, case.dtype)


@lru_cache(maxsize=16)
def _samples(name: str, long: bool, n: int, part: int, dtype: torch.dtype) -> Samples:
    if name == "sphere":
        X = sphere(n, n, 1000 + part, radius=math.sqrt(n) if long else 1.0, dtype=dtype)
        return Samples(X, normal(n, g=generator(2000 + part), dtype=dtype))
    rows = slice(part * n, (part + 1) * n)
    whole = data.load(
        name,
        norm="sqrt_d" if long else "unit",
        n_train=rows.stop,
        n_test=rows.stop,
        dtype=dtype,
    )
    return Samples(whole.x_train[rows], whole.y_train[rows], whole.x_test[rows], whole.y_test[rows])


def build(case: Case) -> ReLUImplicit | VanillaDEQ | MonDEQ:
    """Return the network of a case at its initialisation."""
    d = samples(case).X.shape[1]
    if case.network == "ling2023":
        return VanillaDEQ.init(case.m, d, seed=case.seed, dtype=case.dtype)
    if case.network == "nguyen2022":
        return MonDEQ.init(case.m, d, seed=case.seed, dtype=case.dtype)
    make = ReLUImplicit.init if case.network == "gao2022" else ReLUImplicit.init_implicit_only
    return make(case.m, d, gamma=case.gamma, seed=case.seed, dtype=case.dtype)


def kernel(case: Case) -> Tensor:
    """Return the tangent kernel H(0) on the training samples."""
    return empirical_ntk(build(case), samples(case).X)


def edge(case: Case) -> float:
    r"""Return :math:`2/\lambda_{\max}(H(0))`, beyond which the linearised descent diverges."""
    return 2 / float(torch.linalg.eigvalsh(kernel(case))[-1])


def step_of(case: Case) -> float:
    """Return the step that the rule of a case gives."""
    if case.rule == "fixed":
        return case.step
    if case.rule == "1/m":
        return case.step / case.m
    if case.rule == "edge":
        return case.step * edge(case)
    return case.step * case.n / float(kernel(case).trace())


def largest_step(cases: Iterable[Case], fraction: float = 0.8) -> float:
    """Return the ``step`` with which no case exceeds ``fraction`` of its own edge.

    The cases differ in width or seed and share a rule; their own ``step`` is not looked at.
    """
    unit = [replace(case, step=1.0) for case in cases]
    return fraction / max(step_of(case) / edge(case) for case in unit)


def train(case: Case) -> Trajectory:
    """Run a case by full-batch gradient descent.

    A run that loses its equilibrium, or overflows, is returned with ``stopped`` set.
    """
    s = samples(case)
    monotone = case.network == "nguyen2022"  # not a contraction: splitting, not iteration
    test = None
    if case.test and s.X_test is not None and s.y_test is not None:
        test = (s.X_test, s.y_test)
    return gradient_descent(
        build(case),
        s.X,
        s.y,
        step_of(case),
        case.epochs,
        record=Record(every=case.every, flips=False, norms=case.norms, test=test),
        solver=None if monotone else Picard(),
        adjoint_solver=Anderson() if monotone else Picard(),
        tol=1e-6 if case.double else 1e-5,  # far below what a step changes
        throw=False,
    )
