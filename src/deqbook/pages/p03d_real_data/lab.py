r"""Training runs on real pictures: what the page on real data and its claims share.

A ``DescentRun`` says everything about a run and a ``Trajectory`` is everything it leaves, so that
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

from deqbook.data import Dataset, Norm, load
from deqbook.dynamics import Record, Trajectory, gradient_descent
from deqbook.kernels import empirical_ntk
from deqbook.models import MonDEQ, ReLUImplicit, VanillaDEQ
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Anderson, Picard

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
class DescentRun:
    r"""One run: data, network, step, length.

    ``data`` is a bundled set or ``"sphere"`` (n uniform points on a sphere with d = n, Gaussian
    labels; no test samples). ``part`` selects the samples part·n … (part+1)·n - 1 of the set,
    ``seed`` the weights. The step is ``step`` itself (``rule="fixed"``), or ``step`` times 1/m
    (``"1/m"``), the edge :math:`2/\lambda_{\max}(H(0))` (``"edge"``) or one over the mean
    eigenvalue, :math:`n/\operatorname{tr}H(0)` (``"mean"``). ``test`` and ``norms`` say what is
    recorded besides the loss; ``double`` asks for float64.
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


def samples(case: DescentRun) -> Dataset:
    r"""Return what a run trains on: of length √d for ling2023, else of length 1."""
    norm: Norm = "sqrt_d" if case.network == "ling2023" else "unit"
    return _samples(case.data, norm, case.n, case.part, case.dtype)


@lru_cache(maxsize=16)
def _samples(name: str, norm: Norm, n: int, part: int, dtype: torch.dtype) -> Dataset:
    if name != "sphere":
        return load(name, norm=norm, n_train=n, n_test=n, part=part, dtype=dtype)
    X = sphere(n, n, 1000 + part, radius=math.sqrt(n) if norm == "sqrt_d" else 1.0, dtype=dtype)
    y = normal(n, g=generator(2000 + part), dtype=dtype)
    return Dataset(name, X, y, X[:0], y[:0], classes=(), norm=norm)


def build(case: DescentRun) -> ReLUImplicit | VanillaDEQ | MonDEQ:
    """Return the network of a case at its initialisation."""
    d = samples(case).d
    if case.network == "ling2023":
        return VanillaDEQ.init(case.m, d, seed=case.seed, dtype=case.dtype)
    if case.network == "nguyen2022":
        return MonDEQ.init(case.m, d, seed=case.seed, dtype=case.dtype)
    make = ReLUImplicit.init if case.network == "gao2022" else ReLUImplicit.init_implicit_only
    return make(case.m, d, gamma=case.gamma, seed=case.seed, dtype=case.dtype)


def kernel(case: DescentRun) -> Tensor:
    """Return the tangent kernel H(0) on the training samples."""
    return empirical_ntk(build(case), samples(case).x_train)


def edge(case: DescentRun) -> float:
    r"""Return :math:`2/\lambda_{\max}(H(0))`, beyond which the linearised descent diverges."""
    return 2 / float(torch.linalg.eigvalsh(kernel(case))[-1])


def step_of(case: DescentRun) -> float:
    """Return the step that the rule of a case gives."""
    if case.rule == "fixed":
        return case.step
    if case.rule == "1/m":
        return case.step / case.m
    if case.rule == "edge":
        return case.step * edge(case)
    return case.step * case.n / float(kernel(case).trace())


def largest_step(cases: Iterable[DescentRun], fraction: float = 0.8) -> float:
    """Return the ``step`` with which no case exceeds ``fraction`` of its own edge.

    The cases differ in width or seed and share a rule; their own ``step`` is not looked at.
    """
    unit = [replace(case, step=1.0) for case in cases]
    return fraction / max(step_of(case) / edge(case) for case in unit)


def train(case: DescentRun) -> Trajectory:
    """Run a case by full-batch gradient descent.

    A run that loses its equilibrium, or overflows, is returned with ``stopped`` set.
    """
    s = samples(case)
    monotone = case.network == "nguyen2022"  # not a contraction: splitting, not iteration
    test = (s.x_test, s.y_test) if case.test and s.n_test else None
    return gradient_descent(
        build(case),
        s.x_train,
        s.y_train,
        step_of(case),
        case.epochs,
        record=Record(every=case.every, flips=False, norms=case.norms, test=test),
        solver=None if monotone else Picard(),
        adjoint_solver=Anderson() if monotone else Picard(),
        tol=1e-6 if case.double else 1e-5,  # far below what a step changes
        throw=False,
    )
