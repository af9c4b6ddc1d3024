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
def look_at(model: ReLUImplicit, X: Tensor, points: Tensor, *, tol: float = TOL) -> NetworkStart:
    """Return kernels and outputs of a network before training, on a sample and at points."""
    n, both = len(X), torch.cat([X, points])
    kernel, outputs = empirical_ntk(model, both, X, tol=tol), model(both, tol=tol)
    H = (kernel[:n] + kernel[:n].mT) / 2
    values, vectors = torch.linalg.eigh(H)
    return NetworkStart(model, X, points, H, kernel[n:], outputs[:n], outputs[n:], values, vectors)


def draw_start(
    m: int, n: int, d: int, seed: int, *, data: int, points: int, tol: float = TOL
) -> NetworkStart:
    """Draw a network (by ``seed``) and inputs on the sphere (by ``data``); look at its start."""
    model = ReLUImplicit.init_implicit_only(m, d, gamma=0.4, seed=seed)
    return look_at(model, sphere(n, d, data + 100), sphere(points, d, data + 300), tol=tol)


@dataclass(frozen=True)
class Coupling:
    r"""Network and frozen machine side by side: gaps at the recorded times, and the bounds.

    ``on`` (T,) is :math:`\|f_t(X)-\hat f_t(X)\|` and ``on_bound`` (T,) the right side of the
    coupling theorem; ``off`` (T, p) is :math:`|f_t(x)-\hat f_t(x)|`, ``off_parts`` (2, p) the
    parts of its bound with :math:`\Delta_x` and with :math:`\Delta`, and ``without`` (T, p) the
    gap to the machine without :math:`f_0`. ``least`` is the least
    :math:`\lambda_{\min}(H(s))/\lambda_H` on the way.
    """

    run: PathKernel
    on: Tensor
    on_bound: Tensor
    off: Tensor
    off_parts: Tensor
    without: Tensor
    least: float

    @property
    def off_bound(self) -> Tensor:
        """Return the bound off the sample, one number per point."""
        return self.off_parts.sum(dim=0)


def couple(at: NetworkStart, y: Tensor, run: PathKernel) -> Coupling:
    """Lay a run from a start beside its frozen machine (gao2023.lemma4.3, gao2023.lemma4.4)."""
    frozen, e0, times = at.frozen(y), float((y - at.guess).norm()), at.lambda0 * run.times
    change = float(run.kernel_change.max()) / at.lambda0
    on_bound = 2 * change * e0 * (torch.exp(-times / 2) - torch.exp(-times))
    own = (run.k - run.k[0]).norm(dim=2).amax(dim=0)
    off, without = (
        (run.point_predictions - frozen.predict(at.k, base, run.times)).abs()
        for base in (at.point_guess, torch.zeros_like(at.point_guess))
    )
    return Coupling(
        run,
        (run.predictions - frozen.fitted(run.times)).norm(dim=1),
        on_bound,
        off,
        2 * e0 / at.lambda0 * torch.stack([own, at.k.norm(dim=1) * change]),
        without,
        float(torch.linalg.eigvalsh(run.H)[:, 0].min()) / at.lambda0,
    )


@lru_cache(maxsize=8)
def switching(seed: int, switched: int = 9) -> Coupling:
    r"""Follow a network whose kernel jumps at once: an extremal case of the coupling theorem.

    One sample, one other input, linear features, W(0) = 0. Ten units are on at the sample; nine
    more (``switched``) are on by a hair, and the first moment of the flow switches them off: H
    falls to 10/19. At
    the other input five of the ten are on, and the other five are off by a hair and switch on. So
    the error falls at little more than half the rate, and both integrals of the proof have one
    sign. Sizes are drawn by the seed.
    """
    g, hair, m = generator(seed + 900), 1e-6, 10 + switched
    size = 0.5 + torch.rand(10, generator=g, dtype=torch.float64)
    here = torch.cat([size, torch.full((switched,), hair, dtype=torch.float64)])
    there = torch.cat([size[:5], torch.full((5,), -hair), torch.full((switched,), -1.0)]).double()
    a = torch.ones(m, dtype=torch.float64)
    a[5:10] = -1  # these grow at the other input when the output is too large
    U = math.sqrt(m) * torch.stack([here, there], dim=1)
    zero = torch.zeros(m, m, dtype=torch.float64)
    model = ReLUImplicit(zero, U, a, 0 * a, 0.4, phi="identity", train=("W",))
    X = torch.eye(2, dtype=torch.float64)
    at = look_at(model, X[:1], X[1:])
    y = at.guess - 0.05
    end = 12 / at.lambda0
    times = np.concatenate([[0.0], np.geomspace(1e-5 * end, 0.02 * end, 25)])
    times = np.concatenate([times, np.linspace(0.02 * end, end, 40)[1:]])
    return couple(at, y, path_kernel(model, at.X, y, at.points, times, tol=1e-13))


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
