"""A training run that watches the Jacobian at the equilibrium, with and without the penalty."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deqbook.data import Dataset
from deqbook.pages.p07b_in_use.lab.networks import (
    Dense,
    implicit_state,
    jacobian_penalty,
    jacobians,
)
from deqbook.runtime import generator, signs
from deqbook.solvers import Picard


@dataclass(frozen=True)
class Moment:
    """What the network was like after so many training steps, on test images."""

    step: int
    radius: Tensor  # ρ(J) at the equilibrium, one number an image
    norm: Tensor  # ‖J‖
    frobenius: Tensor  # ‖J‖_F²
    settled: float  # share of images for which Picard iteration reaches the tolerance


@dataclass(frozen=True)
class Run:
    """A trained network, its history, and what its forward solves cost."""

    model: Dense
    moments: list[Moment]
    evaluations: int  # of the cell, over all training batches
    steps: int
    accuracy: float  # on all test images, after training

    @property
    def each(self) -> float:
        """Return the evaluations of the cell in one forward solve, on average."""
        return self.evaluations / self.steps


def train(
    data: Dataset,
    *,
    penalty: float,
    seed: int,
    m: int = 64,
    scale: float = 0.7,
    steps: int = 120,
    rate: float = 2e-2,
    batch: int = 64,
    every: int = 40,
    tol: float = 1e-3,
    cap: int = 60,
) -> Run:
    """Train by Adam on cross-entropy + penalty·‖J‖_F²/m, the last by one Rademacher probe a sample.

    The solver may miss the tolerance: after ``cap`` steps the state is taken as it is, as
    practitioners do. The initial network and the batches depend on the seed alone.
    """
    x, y = data.x_train, data.y_train
    model = Dense.init(m, x.shape[1], 10, scale=scale, seed=seed)
    adam = torch.optim.Adam(model.parameters(), lr=rate)
    batches, probes = generator(1000 + seed), generator(2000 + seed)
    moments, evaluations = [moment(model, data, 0, tol)], 0
    for step in range(1, steps + 1):
        rows = torch.randint(0, len(x), (batch,), generator=batches)
        q = model.inject(x[rows])
        found = model.solve_injected(q.detach(), tol=tol, max_steps=cap, throw=False)
        evaluations += found.nfe
        z = implicit_state(model, found.z, q)
        loss = nn.functional.cross_entropy(model.readout(z, q), y[rows])
        if penalty:
            eps = signs(batch, m, g=probes)
            loss = loss + penalty / m * jacobian_penalty(model, found.z, q, eps)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % every == 0:
            moments.append(moment(model, data, step, tol))
    with torch.no_grad():
        q = model.inject(data.x_test)
        z = model.solve_injected(q, tol=tol, max_steps=200, throw=False).z
        right = model.readout(z, q).argmax(dim=1) == data.y_test
    return Run(model, moments, evaluations, steps, float(right.double().mean()))


@torch.no_grad()
def moment(model: Dense, data: Dataset, step: int, tol: float, n: int = 100) -> Moment:
    """Measure the Jacobian at the equilibria of the first n test images."""
    q = model.inject(data.x_test[:n])
    found = model.solve_injected(q, tol=tol, max_steps=200, throw=False)
    picard = model.solve_injected(q, solver=Picard(), tol=tol, max_steps=200, throw=False)
    J = jacobians(model, found.z, q)
    return Moment(
        step,
        torch.linalg.eigvals(J).abs().amax(dim=1),
        torch.linalg.matrix_norm(J, 2),
        J.pow(2).sum(dim=(1, 2)),
        float(picard.converged.double().mean()),
    )
