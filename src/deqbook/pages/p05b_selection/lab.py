r"""Networks with a continuum of equilibria, known exactly, and the solvers of chapter 5b.

Take a unit vector v with entries of both signs, a square W with :math:`\|W\|=1` whose first left
singular vector is v and whose other singular values are below 1, some :math:`s_0>0`, and
:math:`b=(I-WW^\top)s_0`. The equilibria of :math:`T(z)=W^\top\sigma(Wz+b)` with ReLU are exactly

.. math:: \{W^\top(s_0+tv):\ s_0+tv\ge0\}=\{p+tq:\ t_{\min}\le t\le t_{\max}\},\quad
          p=W^\top s_0,\ q=W^\top v,\ \|q\|=1.

The minimiser of a convex R over this segment is a clipped number t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from deqbook.linalg import operator_norm
from deqbook.regularize import (
    L1,
    HiddenObjective,
    RankOne,
    Regulariser,
    Schedule,
    SquaredDistance,
    SquaredL2,
    Weights,
    sam,
)
from deqbook.runtime import generator, normal
from deqbook.solvers import Newton, fixed_point

Map = Callable[[Tensor], Tensor]


# --- a segment of equilibria -------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """The tied layer T and its segment of equilibria p + tq, low ≤ t ≤ high."""

    W: Tensor
    b: Tensor
    p: Tensor
    q: Tensor
    low: float
    high: float

    def T(self, z: Tensor) -> Tensor:
        """Return Wᵀσ(Wz + b), row by row."""
        return torch.relu(z @ self.W.mT + self.b) @ self.W

    def point(self, t: float | Tensor) -> Tensor:
        """Return p + tq, a row for every t."""
        return self.p + torch.as_tensor(t, dtype=self.p.dtype)[..., None] * self.q

    def coordinate(self, z: Tensor) -> Tensor:
        """Return t, the coordinate of z along the segment."""
        return (z - self.p) @ self.q

    def nearest(self, a: Tensor) -> Tensor:
        """Return the equilibrium with the least ½‖z-a‖², row by row."""
        return self.point(self.coordinate(a).clamp(self.low, self.high))

    def selected(self, R: SquaredDistance | RankOne) -> Tensor:
        """Return the equilibrium with the least R."""
        if isinstance(R, SquaredDistance):
            return self.nearest(R.a)
        t = (R.tau - self.p @ R.w) / (self.q @ R.w)
        return self.point(t.clamp(self.low, self.high))

    def plain(self, z: Tensor, steps: int = 1000) -> Tensor:
        """Return T applied ``steps`` times."""
        for _ in range(steps):
            z = self.T(z)
        return z

    @property
    def norm(self) -> float:
        """Return ‖W‖, which is 1."""
        return operator_norm(self.W)


def segment(s0: Tensor, v: Tensor, singular: Tensor, g: torch.Generator) -> Segment:
    """Build the instance; the free singular vectors of W are drawn from g."""
    if not ((s0 > 0).all() and (v < 0).any() and (v > 0).any()):
        raise ValueError("need s0 > 0 and a v with entries of both signs; else no segment is left.")
    if not (singular[0] == 1 and (singular[1:] < 1).all()):
        raise ValueError(f"singular values must be 1 and then below 1, got {singular.tolist()}.")
    m, v = len(s0), v / v.norm()
    left = torch.linalg.qr(torch.cat([v[:, None], normal(m, m - 1, g=g)], dim=1))[0]
    left[:, 0] = v  # the factorisation is free to flip its sign
    right = torch.linalg.qr(normal(m, m, g=g))[0]
    W = left * singular @ right.mT
    b = s0 - W @ (W.mT @ s0)
    low, high = -(s0 / v)[v > 0].min(), -(s0 / v)[v < 0].max()
    return Segment(W, b, s0 @ W, v @ W, float(low), float(high))


def random_segment(seed: int, m: int = 4) -> Segment:
    """Draw v with mixed signs, s₀ in (0.5, 2) and the singular values 1, 0.85 … 0.3."""
    g = generator(seed)
    v = normal(m, g=g).abs() + 0.3  # no entry near 0: the segment is not overly long
    v[1::2] *= -1
    s0 = 0.5 + 1.5 * torch.rand(m, generator=g, dtype=torch.float64)
    below = torch.linspace(0.85, 0.3, m - 1, dtype=torch.float64)
    singular = torch.cat([torch.ones(1, dtype=torch.float64), below])
    return segment(s0, v, singular, g)


def starts(case: Segment, n: int, g: torch.Generator, radius: float = 3.0) -> Tensor:
    """Draw n starts around the middle of the segment."""
    middle = case.point((case.low + case.high) / 2)
    return middle + radius * normal(n, len(case.p), g=g)


@dataclass(frozen=True)
class Task:
    """A segment of equilibria, targets, and starts from which plain iteration goes elsewhere."""

    case: Segment
    R: SquaredDistance
    z0: Tensor

    @property
    def goal(self) -> Tensor:
        """Return the equilibria nearest to the targets."""
        return self.case.nearest(self.R.a)


def task(seed: int, n: int = 3) -> Task:
    """Draw targets whose nearest equilibria are inside, and starts that plain iteration leaves far.

    Row i starts on the other side of the segment.
    """
    case, g = random_segment(seed), generator(seed + 500)
    length = case.high - case.low
    share = 0.2 + 0.1 * torch.rand(n, generator=g, dtype=torch.float64)
    side = torch.tensor([0.0, 1.0] * n, dtype=torch.float64)[:n]  # near low, near high, …
    t = case.low + length * (side + (1 - 2 * side) * share)
    other = case.low + length * (1 - side - (1 - 2 * side) * share)

    def off(scale: float) -> Tensor:
        noise = scale * normal(n, len(case.p), g=g)
        return noise - (noise @ case.q)[:, None] * case.q

    return Task(case, SquaredDistance(case.point(t) + off(0.5)), case.point(other) + off(0.2))


# --- convex functions to test with -------------------------------------------------------------


@dataclass(frozen=True)
class Quadratic:
    """R(z) = ½⟨z, Hz⟩ - ⟨h, z⟩ plus ``bend`` times Σ log cosh z_i."""

    H: Tensor
    h: Tensor
    bend: float = 0.0

    @property
    def convex(self) -> bool:
        """Whether H has no negative eigenvalue."""
        return bool(torch.linalg.eigvalsh(self.H)[0] >= -1e-12)

    @property
    def smoothness(self) -> float:
        """Return ‖H‖ + bend."""
        return operator_norm(self.H) + self.bend

    def value(self, Z: Tensor) -> Tensor:
        """Return R for every row."""
        quadratic = 0.5 * (Z @ self.H * Z).sum(-1) - Z @ self.h
        return quadratic + self.bend * torch.log(torch.cosh(Z)).sum(-1)

    def gradient(self, Z: Tensor) -> Tensor:
        """Return Hz - h + bend·tanh z."""
        return Z @ self.H - self.h + self.bend * torch.tanh(Z)


def quadratic(g: torch.Generator, m: int = 5, *, rank: int = 4, bend: float = 0.5) -> Quadratic:
    """Draw a convex function whose quadratic part is singular, plus log cosh."""
    B = normal(rank, m, g=g)
    return Quadratic(B.mT @ B, normal(m, g=g), bend)


def pairs_of_states(H: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random pairs of states, and short pairs along the eigenvectors of H, at 0 and far."""
    m = len(H)
    axes = torch.linalg.eigh(H).eigenvectors.mT
    near = torch.cat([torch.zeros_like(axes), 10 * normal(m, m, g=g)])
    x = torch.cat([normal(60, m, g=g), near])
    return x, torch.cat([normal(60, m, g=g), near + 1e-3 * torch.cat([axes, axes])])


@dataclass(frozen=True)
class Softplus:
    """R(z) = Σ log(1 + exp(-z_i)): convex and smooth, with no minimiser on [0, ∞)."""

    convex: bool = True
    smoothness: float = 0.25

    def value(self, Z: Tensor) -> Tensor:
        """Return R for every row."""
        return torch.nn.functional.softplus(-Z).sum(-1)

    def gradient(self, Z: Tensor) -> Tensor:
        """Return -1/(1 + exp(z))."""
        return -torch.sigmoid(-Z)


def firm_excess(layer: Map, H: Tensor, g: torch.Generator) -> float:
    """Return the largest ‖f(x)-f(y)‖² - ⟨f(x)-f(y), x-y⟩, over ‖x-y‖²: at most 0 for a prox."""
    x, y = pairs_of_states(H, g)
    u, v = layer(x) - layer(y), x - y
    return float(((u.square().sum(1) - (u * v).sum(1)) / v.square().sum(1)).max())


# --- regularisation by architecture ------------------------------------------------------------


def hidden(seed: int, m: int = 6, norm: float = 0.9) -> HiddenObjective:
    """Draw a tied ReLU layer T = prox_φ with ‖W‖ = norm and a positive injection.

    If no entry of the injection were positive, the equilibrium would be 0 with every R.
    """
    g = generator(seed)
    W = normal(m, m, g=g)
    return HiddenObjective(W * (norm / operator_norm(W)), 2 * normal(m, g=g).abs())


def equilibrium_of(f: Map, m: int) -> Tensor:
    """Return the fixed point of a contraction of one state."""
    return fixed_point(f, torch.zeros(1, m, dtype=torch.float64), tol=1e-13).z[0]


def envelope_minimiser(phi: HiddenObjective, R: L1 | SquaredL2) -> Tensor:
    r"""Return :math:`\arg\min M^1_\varphi+R` by L-BFGS-B; the network is not run.

    The envelope comes from a quadratic problem. For the 1-norm, z = u - v with u, v ≥ 0.
    """
    envelope, m = phi.envelope(1.0), phi.W.shape[1]

    def parts(z: np.ndarray) -> tuple[float, np.ndarray]:
        row = torch.as_tensor(z)[None]
        return float(envelope.value(row)), envelope.gradient(row)[0].numpy()

    def split(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = parts(x[:m] - x[m:])
        return value + R.weight * x.sum(), np.append(slope + R.weight, R.weight - slope)

    def smooth(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = parts(z)
        return value + R.weight * z @ z, slope + 2 * R.weight * z

    sparse = isinstance(R, L1)
    found = scipy.optimize.minimize(
        split if sparse else smooth,
        np.zeros(2 * m if sparse else m),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * (2 * m) if sparse else None,
        options={"ftol": 1e-16, "gtol": 1e-11, "maxiter": 2000, "maxfun": 5000},
    ).x
    return torch.as_tensor(found[:m] - found[m:] if sparse else found)


def sum_minimiser(phi: HiddenObjective, R: L1 | SquaredL2) -> Tensor:
    r"""Return :math:`\arg\min\varphi+R`, by quadratic programming in the code s ≥ 0, z = Wᵀs.

    For the 1-norm with one more variable per feature, :math:`e\ge|W^\top s|`, and SLSQP; for the
    square by nonnegative least squares.
    """
    W, q, weight = phi.W.numpy(), phi.q.numpy(), R.weight
    h, m = W.shape
    H = np.eye(h) - W @ W.T
    if isinstance(R, SquaredL2):
        root = np.linalg.cholesky(H + 2 * weight * W @ W.T).T
        s = scipy.optimize.nnls(root, np.linalg.solve(root.T, q))[0]
        return torch.as_tensor(W.T @ s)
    rows = np.block([[-W.T, np.eye(m)], [W.T, np.eye(m)]])
    found = scipy.optimize.minimize(
        lambda x: 0.5 * x[:h] @ H @ x[:h] - q @ x[:h] + weight * x[h:].sum(),
        np.zeros(h + m),
        jac=lambda x: np.append(H @ x[:h] - q, np.full(m, weight)),
        method="SLSQP",
        bounds=[(0.0, None)] * (h + m),
        constraints={"type": "ineq", "fun": lambda x: rows @ x, "jac": lambda x: rows},
        options={"ftol": 1e-14, "maxiter": 500},
    ).x
    return torch.as_tensor(W.T @ found[:h])


# --- the proof of the selection theorem --------------------------------------------------------


@dataclass(frozen=True)
class Recursion:
    r""":math:`a_{k+1}=(1-p_{k+1})a_k+p_{k+1}r_2k^{-t_2}` with :math:`p_k=r_1k^{-t_1}`, from a₁.

    Every inequality of the lemma is taken as equality.
    """

    r1: float
    r2: float
    start: float
    t1: float
    t2: float

    def path(self, steps: int) -> np.ndarray:
        """Return a₁, …, a_K for K = ``steps``."""
        a = [self.start]
        for k in range(1, steps):
            p = self.r1 / (k + 1) ** self.t1
            a.append((1 - p) * a[-1] + p * self.r2 / k**self.t2)
        return np.array(a)

    def bound(self, steps: int, *, sign: float = -1.0) -> float:
        r"""Return :math:`\min_je^{-\sum_{i=j+1}^Kp_i}\max(a_1,r_2)+r_2j^{-t_2}`, a bound on a_K.

        ``sign=+1`` is the exponential as printed.
        """
        i = np.arange(1, steps + 1)
        p = self.r1 / i**self.t1
        left = p.sum() - np.cumsum(p)  # Σ over j < i ≤ K, for j = 1, …, K
        with np.errstate(over="ignore"):
            bounds = np.exp(sign * left) * max(self.start, self.r2) + self.r2 / i**self.t2
        return float(bounds.min())

    def rate_constant(self) -> float:
        r"""Return C with :math:`a_k\le Ck^{-t_2}` for all k: the second half of the proof, t₁ < 1.

        From :math:`k_0` on, where :math:`t_2/k\le\tfrac12p_{k+1}`, the bound passes from k to k+1
        if :math:`C\ge2r_2`; up to there :math:`a_k\le\max(a_1,r_2)`.
        """
        k = 1
        while self.t2 / k > 0.5 * self.r1 / (k + 1) ** self.t1:  # k/(k+1)^t₁ grows: it stays true
            k += 1
        return max(2 * self.r2, max(self.start, self.r2) * k**self.t2)


@dataclass(frozen=True)
class Frozen:
    """Weights of SAM that are the same at every step: γ, β and λ."""

    gamma: float
    weight: float
    lam: float

    def beta(self, k: int) -> float:
        """Return β, whatever the step."""
        return self.weight

    def decay(self, k: int) -> float:
        """Return λ, whatever the step."""
        return self.lam

    def objections(self, R: Regulariser) -> tuple[str, ...]:
        """No theorem asks anything of them."""
        return ()


def frozen(schedule: Weights, k: int) -> Frozen:
    """Return the weights of step k of a schedule, for every step."""
    return Frozen(schedule.gamma, schedule.beta(k), schedule.decay(k))


def theorem_weights(smoothness: float, rho: float, c: float, k: int) -> Frozen:
    """Return γ, β_k and λ_k as the theorem prints them: what a schedule is compared with."""
    first = min(0.5, smoothness / 2)
    return Frozen(1 / (2 * smoothness), first * float(k) ** -rho, first * float(k) ** -c)


def frozen_point(T: Map, R: Regulariser, schedule: Weights, k: int, like: Tensor) -> Tensor:
    """Return the fixed point of step k with its weights held fixed, by Newton's method."""
    weights = frozen(schedule, k)

    def step(z: Tensor) -> Tensor:
        return sam(T, z, R, weights, 1)

    return fixed_point(step, like, solver=Newton(), tol=1e-13).z


def curvature(R: Regulariser, at: Tensor) -> Tensor:
    """Return the Hessian of R at one state, from its gradient."""
    return torch.autograd.functional.jacobian(R.gradient, at)


def frozen_bias(A: Tensor, R: Regulariser, weights: Frozen, goal: Tensor) -> Tensor:
    r"""Return :math:`\bar z_k-\bar z` of a quadratic R where :math:`T(z)=\bar z+A(z-\bar z)`.

    With :math:`\nabla R(z)=Hz-h` it solves :math:`N(\bar z_k-\bar z)=\beta\gamma(h-(H+\lambda I)
    \bar z)`, :math:`N=(1-\beta)(I-A)+\beta\gamma(H+\lambda I)`; no iteration.
    """
    eye, zero = torch.eye(len(goal), dtype=goal.dtype), torch.zeros_like(goal)
    H = curvature(R, zero) + weights.lam * eye
    pull = weights.weight * weights.gamma
    N = (1 - weights.weight) * (eye - A) + pull * H
    return torch.linalg.solve(N, pull * (-R.gradient(zero) - H @ goal))


def tracking_bounds(
    schedule: Schedule, first: float, *, fixed: float, origin: float, pull: float, steps: int
) -> np.ndarray:
    r"""Return bounds on ‖z⁽ᵏ⁾ - z̄_k‖, k = 1 … steps: the recursion of the proof, computed.

    :math:`a_k=(1-p_k)(a_{k-1}+\delta_k)` with :math:`p_k=\gamma\beta_k\lambda_k` and the drift of
    the frozen points :math:`\delta_k=(|\beta_k-\beta_{k-1}|M+\gamma|\beta_k\lambda_k-
    \beta_{k-1}\lambda_{k-1}|B_1)/p_k`, :math:`M=2B_1+\gamma\|\nabla R(0)\|+\|T(0)\|`.
    ``first`` is ‖z⁽⁰⁾ - z̄₁‖, ``fixed`` B₁, ``origin`` ‖T(0)‖, ``pull`` ‖∇R(0)‖.
    """
    gamma = schedule.gamma
    M = 2 * fixed + gamma * pull + origin
    beta = np.array([schedule.beta(k) for k in range(1, steps + 1)])
    product = beta * [schedule.decay(k) for k in range(1, steps + 1)]
    p = gamma * product
    bounds = [(1 - p[0]) * first]
    for k in range(1, steps):
        drift = abs(beta[k] - beta[k - 1]) * M + gamma * abs(product[k] - product[k - 1]) * fixed
        bounds.append((1 - p[k]) * (bounds[-1] + drift / p[k]))
    return np.array(bounds)


def tikhonov(case: Segment, a: Tensor, weight: float = 1e-7) -> Tensor:
    r"""Return :math:`\arg\min\varphi+\tfrac\epsilon2\|z-a\|^2` for a small ε, by NNLS in the code.

    As ε → 0 it tends to the equilibrium nearest to a. No segment, no iteration: a second route.
    """
    W, b = case.W.numpy(), case.b.numpy()
    H = np.eye(len(b)) - (1 - weight) * W @ W.T
    root = np.linalg.cholesky(H).T
    s = scipy.optimize.nnls(root, np.linalg.solve(root.T, b + weight * W @ a.numpy()))[0]
    return torch.as_tensor(W.T @ s)
