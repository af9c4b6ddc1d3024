"""Networks of gao2023 at their start, with all that the frozen kernel needs, and flows from there.

Flows are followed by Runge-Kutta steps of fixed length; a unit that changes side inside a step
costs accuracy, and ``PathKernel.defect`` is asked for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deqbook.implicit import IFT
from deqbook.kernels import empirical_ntk
from deqbook.kernels.frozen import FrozenKernel, freeze
from deqbook.models import ReLUImplicit, margin
from deqbook.pages.p06a_kernel_machine.lab.path_kernel import PathKernel, path_kernel
from deqbook.runtime import generator, signs, sphere

TOL = 1e-13  # of the equilibria


@dataclass(frozen=True)
class NetworkStart:
    """A network before training: sample, other points, kernels and outputs (``guess``) there.

    ``values`` and ``vectors`` are the eigenvalues (rising) and eigenvectors of H.
    """

    model: ReLUImplicit
    X: Tensor
    points: Tensor
    H: Tensor
    k: Tensor
    guess: Tensor
    point_guess: Tensor
    values: Tensor
    vectors: Tensor

    @property
    def lambda0(self) -> float:
        """Return λ_min(H(0))."""
        return float(self.values[0])

    def frozen(self, y: Tensor) -> FrozenKernel:
        """Return the frozen-kernel predictor for these labels."""
        return freeze(self.H, y, self.guess)

    def run(self, y: Tensor, until: float, *, tol: float = TOL) -> PathKernel:
        """Follow the flow to ``until``/λ_H by Runge-Kutta steps, short ones first."""
        times = graded(float(self.values[-1]), until / self.lambda0)
        return path_kernel(self.model, self.X, y, self.points, times, tol=tol)

    def jacobian(self) -> Tensor:
        """Return ∂f/∂W at the sample and the points, row by row from autodiff."""
        rows = []
        for x in torch.cat([self.X, self.points]):
            out = self.model(x[None], tol=TOL, adjoint=IFT(tol=TOL))
            rows.append(torch.autograd.grad(out.sum(), self.model.W)[0].flatten())
        return torch.stack(rows)


def graded(largest: float, until: float) -> NDArray[np.float64]:
    """Return times for Runge-Kutta: steps of ½/λ_max while much moves, then of 1.5/λ_max.

    Steps beyond 2.78/λ_max are unstable; the kernel may grow by half before that happens.
    """
    early = min(4 / largest, until)
    first = np.linspace(0, early, 9)
    rest = max(math.ceil((until - early) * largest / 1.5), 0)
    return np.concatenate([first, np.linspace(early, until, rest + 1)[1:]])


@torch.no_grad()
def draw_start(
    m: int, n: int, d: int, seed: int, *, data: int, points: int, tol: float = TOL
) -> NetworkStart:
    """Draw a network (by ``seed``) and inputs on the sphere (by ``data``); look at its start."""
    model = ReLUImplicit.init_implicit_only(m, d, gamma=0.4, seed=seed)
    X, other = sphere(n, d, data + 100), sphere(points, d, data + 300)
    both = torch.cat([X, other])
    kernel, outputs = empirical_ntk(model, both, X, tol=tol), model(both, tol=tol)
    H = (kernel[:n] + kernel[:n].mT) / 2
    values, vectors = torch.linalg.eigh(H)
    return NetworkStart(model, X, other, H, kernel[n:], outputs[:n], outputs[n:], values, vectors)


@lru_cache(maxsize=8)
def short_way(seed: int) -> PathKernel:
    """Follow a flow so near its labels that no unit changes side: the integrals are smooth.

    Of some draws of the inputs the one furthest from all kinks is taken.
    """

    def room(data: int) -> float:
        both = torch.cat([sphere(3, 6, data + 100), sphere(2, 6, data + 300)])
        return margin(model, both, model.solve(both, tol=1e-9).z)

    model = ReLUImplicit.init_implicit_only(20, 6, gamma=0.4, seed=seed)
    data = max(range(10 * seed, 10 * seed + 10), key=room)
    at = draw_start(20, 3, 6, seed, data=data, points=2)
    both = torch.cat([at.X, at.points])
    z = at.model.solve(both, tol=TOL).z
    # W moves by about ‖y-ŷ(0)‖/√λ_H, a pre-activation by γ̃‖z‖ times that: keep it below the margin
    move = at.model.scale * float(z.norm(dim=1).max()) / math.sqrt(at.lambda0)
    y = at.guess + margin(at.model, both, z) / (3 * move) * signs(3, g=generator(seed + 200))
    times = np.linspace(0, 12 / float(at.values[-1]), 41)
    return path_kernel(at.model, at.X, y, both, times, tol=1e-14)


def weight_space(J: Tensor, r: Tensor, t: float) -> tuple[Tensor, float]:
    """Solve the flow of the linear model f_0 + J(θ-θ_0) in weight space, by a matrix exponential.

    The first rows of J belong to the sample. Returns how all outputs change, and the squared
    distance of the weights.
    """
    S, p = J[: len(r)], J.shape[1]
    system = torch.zeros(p + 1, p + 1, dtype=J.dtype)
    system[:p, :p], system[:p, p] = -S.mT @ S, S.mT @ r
    moved = torch.linalg.matrix_exp(system * t)[:p, p]
    return J @ moved, float(moved @ moved)


def shrinking_labels(at: NetworkStart, size: float) -> Tensor:
    """Return labels at this distance along the slowest direction, on the side where λ_min falls."""
    slow, least = at.vectors[:, 0], {}
    for side in (1.0, -1.0):
        y = at.guess + side * size * slow
        least[side] = float(torch.linalg.eigvalsh(at.run(y, 4.0, tol=1e-8).H[-1])[0])
    return at.guess + min(least, key=lambda side: least[side]) * size * slow
