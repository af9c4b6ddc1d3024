r"""How far an input can move before a monotone network changes its mind: a proof and an attack.

For :math:`z=\sigma(Wz+Ux+b)` with :math:`I-W\succeq\mu I` the difference of two scores is Lipschitz
with constant :math:`\|V_y-V_j\|\,\|U\|/\mu`. The attack is projected gradient ascent with the exact
implicit gradient, and a bisection for the smallest ball in which it succeeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deqbook.data import Dataset
from deqbook.linalg import operator_norm
from deqbook.pages.p07b_in_use.lab.networks import Monotone, implicit_state, jacobians
from deqbook.runtime import generator, normal
from deqbook.wellposed import monotonicity


def train_monotone(
    data: Dataset,
    *,
    mu: float,
    decay: float,
    seed: int = 0,
    m: int = 40,
    steps: int = 150,
    rate: float = 1e-2,
    batch: int = 64,
) -> Monotone:
    """Train on cross-entropy + decay·(‖U‖² + ‖V‖²): the last pushes the certified constant down."""
    model = Monotone.init(m, data.x_train.shape[1], 10, mu=mu, seed=seed)
    adam, g = torch.optim.Adam(model.parameters(), lr=rate), generator(3000 + seed)
    for _ in range(steps):
        rows = torch.randint(0, len(data.x_train), (batch,), generator=g)
        q = model.inject(data.x_train[rows])
        z = implicit_state(model, model.solve_injected(q.detach(), tol=1e-5).z, q)
        loss = nn.functional.cross_entropy(model.readout(z, q), data.y_train[rows])
        if decay:
            norms = (torch.linalg.matrix_norm(M, 2) for M in (model.U, model.V))
            loss = loss + decay * sum(size**2 for size in norms)
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model.requires_grad_(False)


def lipschitz_bound(model: Monotone) -> float:
    """Return ‖V‖‖U‖/μ with the network's own modulus μ, at least the one it was built with."""
    W, U, V = model.W.detach(), model.U.detach(), model.V.detach()
    return operator_norm(V) * operator_norm(U) / monotonicity(W)


@torch.no_grad()
def margins(model: Monotone, x: Tensor, y: Tensor) -> Tensor:
    """Return by how much the score of the label exceeds each other score; infinite at the label."""
    scores = model(x, tol=1e-10)
    own = scores.gather(1, y[:, None])
    return (own - scores).scatter(1, y[:, None], math.inf)


def certified_radius(model: Monotone, x: Tensor, y: Tensor, *, pairs: bool = True) -> Tensor:
    r"""Return the radius within which no input has another label, by the Lipschitz bound.

    With ``pairs`` the least of :math:`(\hat y_y-\hat y_j)\,\mu/(\|V_y-V_j\|\|U\|)`, else the least
    margin over :math:`\sqrt2\,\|V\|\|U\|/\mu`, which is never larger.
    """
    gaps, V = margins(model, x, y), model.V.detach()
    if not pairs:
        return gaps.amin(dim=1) / (math.sqrt(2) * lipschitz_bound(model))
    apart = (V[y][:, None] - V).norm(dim=2)
    return (gaps / (apart * lipschitz_bound(model) / operator_norm(V))).amin(dim=1)


@torch.no_grad()
def input_jacobian(model: Monotone, x: Tensor) -> Tensor:
    """Return ∂ŷ/∂x = V(I - DW)⁻¹DU for each row, (n, k, d)."""
    q = model.inject(x)
    z = model.solve_injected(q, tol=1e-10).z
    on = model.sigma.slope(z @ model.W.mT + q)
    system = torch.eye(z.shape[1], dtype=z.dtype) - jacobians(model, z, q)
    return model.V @ torch.linalg.solve(system, on[:, :, None] * model.U)


def local_radius(model: Monotone, x: Tensor, y: Tensor) -> Tensor:
    """Return the same quotient with the slope *at the point* for the constant: no certificate."""
    slopes = input_jacobian(model, x)
    apart = (slopes.gather(1, y[:, None, None].expand(-1, 1, x.shape[1])) - slopes).norm(dim=2)
    return (margins(model, x, y) / apart).amin(dim=1)


@torch.no_grad()
def steepest(model: Monotone, x: Tensor, *, rounds: int = 10, seed: int = 0) -> float:
    """Search for a large ‖∂ŷ/∂x‖: the best of the rows of x, then of random moves from them.

    The slope is constant on pieces, so there is no gradient to follow; moves that raise it stay.
    The result is a lower bound of the Lipschitz constant.
    """
    norm = torch.linalg.matrix_norm(input_jacobian(model, x), 2)
    best = norm.topk(min(20, len(x))).indices
    x, norm, g = x[best], norm[best], generator(seed)
    for _ in range(rounds):
        move = normal(*x.shape, g=g)
        tried = x + x.norm(dim=1, keepdim=True) / 5 * move / move.norm(dim=1, keepdim=True)
        risen = torch.linalg.matrix_norm(input_jacobian(model, tried), 2)
        x = torch.where((risen > norm)[:, None], tried, x)
        norm = torch.maximum(norm, risen)
    return float(norm.max())


def slope_of_difference(model: Monotone, z: Tensor, q: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return ∂(ŷ_up - ŷ_down)/∂x = UᵀDv, (I - WᵀD)v = V_up - V_down, at equilibria z, (n, d)."""
    W, V = model.W, model.V
    on = model.sigma.slope(z @ W.mT + q)
    system = torch.eye(W.shape[0], dtype=W.dtype) - (on[:, :, None] * W).mT
    v = torch.linalg.solve(system, (V[up] - V[down])[..., None])[..., 0]
    return (on * v) @ model.U


@dataclass(frozen=True)
class Attack:
    """The smallest successful perturbation found for each image; infinite where none was."""

    radius: Tensor
    x: Tensor  # the image as attacked, or as it was


@torch.no_grad()
def attack(
    model: Monotone,
    x: Tensor,
    y: Tensor,
    *,
    largest: float,
    rounds: int = 8,
    restarts: int = 3,
    steps: int = 12,
) -> Attack:
    """Bisect for the smallest ball in which projected ascent finds another label.

    Every round tries the middle radius from ``restarts`` starts, the first of them the image. In
    the end each hit is pulled back towards its image as far as it remains one.
    """
    n = len(x)
    low, high = torch.zeros(n, dtype=x.dtype), torch.full((n,), largest, dtype=x.dtype)
    found, where = torch.full((n,), math.inf, dtype=x.dtype), x.clone()
    for _ in range(rounds):
        middle, won = (low + high) / 2, torch.zeros(n, dtype=torch.bool)
        for start in range(restarts):
            moved, beaten = _ascend(model, x, y, middle, steps, start)
            size = (moved - x).norm(dim=1)
            better = beaten & (size < found)
            found, won = torch.where(better, size, found), won | beaten
            where = torch.where(better[:, None], moved, where)
        high, low = torch.where(won, middle, high), torch.where(won, low, middle)
    near, far = torch.zeros(n, dtype=x.dtype), torch.ones(n, dtype=x.dtype)
    for _ in range(10):  # the last part of the way may be superfluous
        middle = (near + far) / 2
        beaten = margins(model, x + middle[:, None] * (where - x), y).amin(dim=1) < 0
        far, near = torch.where(beaten, middle, far), torch.where(beaten, near, middle)
    return Attack(far * found, x + far[:, None] * (where - x))


def _ascend(
    model: Monotone, x: Tensor, y: Tensor, radius: Tensor, steps: int, start: int
) -> tuple[Tensor, Tensor]:
    """Raise the best wrong score over the right one inside the ball; stop a row once it wins."""
    move = normal(*x.shape, g=generator(start))
    move = (0.5 if start else 0.0) * radius[:, None] * move / move.norm(dim=1, keepdim=True)
    won = torch.zeros(len(x), dtype=torch.bool)
    for k in range(steps + 1):
        q = model.inject(x + move)
        z = model.solve_injected(q, tol=1e-8).z
        scores = model.readout(z, q)
        rivals = scores.scatter(1, y[:, None], -math.inf)
        won = rivals.amax(dim=1) > scores.gather(1, y[:, None])[:, 0]
        if k == steps or bool(won.all()):
            break
        rival = rivals.argmax(dim=1)
        ascent = slope_of_difference(model, z, q, rival, y)
        ascent = ascent / ascent.norm(dim=1, keepdim=True).clamp(min=1e-12)
        tried = move + 2.5 / steps * radius[:, None] * ascent
        tried = tried * (radius / tried.norm(dim=1).clamp(min=1e-12)).clamp(max=1.0)[:, None]
        move = torch.where(won[:, None], move, tried)
    return x + move, won
