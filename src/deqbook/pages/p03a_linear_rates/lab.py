r"""Losses whose constants are known in closed form, descent and flow on them, and small networks.

A loss is β-smooth if its gradient is β-Lipschitz, and κ-PL if
:math:`\|\nabla\mathcal L\|^2\ge2\kappa(\mathcal L-\mathcal L^*)`. No bound is compared with a
fitted constant.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from deqbook.implicit import IFT
from deqbook.kernels import gram_of_tangents
from deqbook.linalg import operator_norm
from deqbook.models import MonDEQ, Tangents, VanillaDEQ
from deqbook.runtime import generator, normal, signs
from deqbook.solvers import Newton

TANH_CURVATURE = 4 / (3 * math.sqrt(3))  # max |tanh''|
SINE_KAPPA = 0.1755  # of x² + 3 sin²x: the least value of f'²/2f is 0.17553, at |x| = 2.2017

Function = Callable[[Tensor], Tensor]


class Objective(Protocol):
    """What descent and flow need: a value and a gradient."""

    def value(self, theta: Tensor) -> Tensor:
        """Return 𝓛(θ)."""

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ∇𝓛(θ)."""


@dataclass(frozen=True)
class Loss:
    """A function of the last axis with its smoothness β, its PL constant κ and its minimum."""

    function: Function
    beta: float = math.nan
    kappa: float = math.nan
    least: float = 0.0
    derivative: Function | None = None

    def value(self, theta: Tensor) -> Tensor:
        """Return f(θ), one number per row."""
        return self.function(theta)

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ∇f, by automatic differentiation unless it is given."""
        if self.derivative is not None:
            return self.derivative(theta)
        return torch.func.grad(lambda t: self.function(t).sum())(theta)

    def hessian(self, theta: Tensor) -> Tensor:
        """Return ∇²f, one matrix per row."""
        return torch.func.vmap(torch.func.hessian(self.function))(theta)

    def gap(self, theta: Tensor) -> Tensor:
        """Return f(θ) - min f."""
        return self.value(theta) - self.least


SQUARE = Loss(lambda t: t.pow(2).sum(-1), 2.0, 2.0)
"""½β‖θ‖² with β = κ = 2: as much curvature as β allows, in every direction."""


def frame(p: int, g: torch.Generator) -> Tensor:
    """Return a random orthogonal matrix."""
    return torch.linalg.qr(normal(p, p, g=g))[0]


def log_cosh(t: Tensor) -> Tensor:
    """Return log cosh t without overflow."""
    return torch.logaddexp(t, -t) - math.log(2.0)


def waves(seed: int, p: int = 4) -> tuple[Loss, Tensor]:
    r"""Return :math:`\sum_jc_j\cos\langle q_j,\theta\rangle` with β = max|c_j|; and q_top."""
    g = generator(seed)
    Q, c = frame(p, g), signs(p, g=g) * (0.5 + torch.rand(p, generator=g, dtype=torch.float64))
    top = int(c.abs().argmax())
    loss = Loss(
        lambda t: (c * torch.cos(t @ Q)).sum(-1), float(c.abs()[top]), least=-float(c.abs().sum())
    )
    return loss, Q[:, top]


def bowl(seed: int, *, strong: bool = True, p: int = 4) -> tuple[Loss, Tensor]:
    r"""Return :math:`\sum_j\tfrac12s_jt_j^2+c_j\log\cosh t_j`, :math:`t=Q^\top\theta`; and q_1.

    Convex with minimum 0 at 0, κ = min s_j = s_1 and β = max(s_j + c_j). Along q_1 it is the
    quadratic ½κt². Without the quadratic part (``strong=False``) it is convex, still β-smooth, and
    not strongly convex; κ then keeps the value that no longer holds.
    """
    g = generator(seed)
    Q, s = frame(p, g), 0.3 + torch.linspace(0, 1, p, dtype=torch.float64)
    c = 0.2 + torch.rand(p, generator=g, dtype=torch.float64)
    kappa, beta = float(s[0]), float((s + c)[1:].max())
    if strong:
        c[0] = 0
    else:
        s = torch.zeros_like(s)

    def function(theta: Tensor) -> Tensor:
        t = theta @ Q
        return (0.5 * s * t**2 + c * log_cosh(t)).sum(-1)

    return Loss(function, beta, kappa), Q[:, 0]


def sines(seed: int, p: int = 3) -> Loss:
    r"""Return :math:`\sum_jt_j^2+3\sin^2t_j`, t = Qᵀθ: PL and 8-smooth, not convex (f'' ≥ -4)."""
    Q = frame(p, generator(seed))
    return Loss(
        lambda t: ((t @ Q) ** 2 + 3 * torch.sin(t @ Q) ** 2).sum(-1),
        8.0,
        SINE_KAPPA,
        derivative=lambda t: (2 * t @ Q + 3 * torch.sin(2 * t @ Q)) @ Q.mT,
    )


def one_sine(amplitude: float = 3.0) -> Loss:
    """Return x² + c sin²x; for c = 3 it is PL, for c = 10 it has local minima."""
    return Loss(
        lambda t: (t**2 + amplitude * torch.sin(t) ** 2).sum(-1), 2 + 2 * amplitude, SINE_KAPPA
    )


def huber(width: float) -> Loss:
    """Return ½t² for |t| ≤ width and a straight line beyond, summed: 1-smooth, minimum 0."""

    def function(t: Tensor) -> Tensor:
        size = t.abs()
        return torch.where(size <= width, 0.5 * t**2, width * (size - width / 2)).sum(-1)

    return Loss(function, beta=1.0)


def long_slope(seed: int) -> tuple[Loss, Tensor, float]:
    """Return a function that keeps its slope for a hundred steps, a start, and ε just below."""
    width = 0.5 + 0.1 * seed
    start = torch.tensor([[100 * width]], dtype=torch.float64)
    return huber(width), start, 0.99 * width


def quartic(g: torch.Generator) -> tuple[Loss, Tensor]:
    """Return x⁴ on [-1, 1] with β = 12, and a start x_0 near 1; κ = 8x_0² holds there only."""
    start = 1 - 0.05 * torch.rand(1, generator=g, dtype=torch.float64)
    return Loss(lambda t: t.pow(4).sum(-1), 12.0, 8 * float(start) ** 2), start


@dataclass(frozen=True)
class Regression:
    """The sum loss ½‖Φw - y‖² with more features than samples: PL with κ = λ_min(ΦΦᵀ)."""

    Phi: Tensor
    y: Tensor

    @cached_property
    def gram(self) -> Tensor:
        """Return G = ΦΦᵀ."""
        return self.Phi @ self.Phi.mT

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Return eigenvalues of G, ascending, and eigenvectors in columns."""
        values, vectors = torch.linalg.eigh(self.gram)
        return values, vectors

    @property
    def interpolant(self) -> Tensor:
        """Return Φ⁺y, the interpolant of least norm."""
        return self.Phi.mT @ torch.linalg.solve(self.gram, self.y)

    def labelled(self, y: Tensor) -> Regression:
        """Return the same features with other labels."""
        return Regression(self.Phi, y)

    def loss(self) -> Loss:
        """Return the loss with β = λ_max(G) and κ = λ_min(G)."""
        values = self.spectrum[0]
        return Loss(
            lambda w: 0.5 * (w @ self.Phi.mT - self.y).pow(2).sum(-1),
            float(values[-1]),
            float(values[0]),
            derivative=lambda w: (w @ self.Phi.mT - self.y) @ self.Phi,
        )


def regression(seed: int, n: int = 6, p: int = 10) -> Regression:
    """Return Gaussian features and labels."""
    g = generator(seed + 300)
    return Regression(normal(n, p, g=g), normal(n, g=g))


def regression_limit(task: Regression, start: Tensor, times: float = 0.5) -> Tensor:
    """Return where descent with step times/λ_max ends, after (1-ηλ_min)ᵏ has reached 10⁻¹⁴."""
    values = task.spectrum[0]
    step = times / float(values[-1])
    Phi, y, w = task.Phi.numpy(), task.y.numpy(), start.numpy()
    for _ in range(steps_for(1 - 0.5 * float(values[0] / values[-1]), 1e-14, most=50_000)):
        w = w - step * ((Phi @ w - y) @ Phi)
    return torch.from_numpy(w)


@dataclass(frozen=True)
class Saturating:
    r"""The loss ½‖tanh(Φθ) - y‖²: PL on balls around 0 only, with both constants certified.

    Rows of Φ have norm at most 1, so on :math:`\|\theta\|\le R` the slopes of tanh are at least
    :math:`\operatorname{sech}^2R` and :math:`\kappa=\sigma_{\min}(\Phi)^2\operatorname{sech}^4R`.
    The Hessian is :math:`J^\top J+\sum_ie_i\nabla^2F_i`, hence
    :math:`\beta=\|\Phi\|^2(1+\tfrac4{3\sqrt3}\max|e_i|)` with :math:`|e_i|\le\tanh R+|y_i|`.
    """

    Phi: Tensor
    y: Tensor
    radius: float

    def loss(self) -> Loss:
        """Return the loss with β and κ of the ball."""
        svals = torch.linalg.svdvals(self.Phi)
        kappa = float(svals[-1]) ** 2 / math.cosh(self.radius) ** 4
        error = math.tanh(self.radius) + float(self.y.abs().max())
        beta = float(svals[0]) ** 2 * (1 + TANH_CURVATURE * error)
        return Loss(
            lambda t: 0.5 * (torch.tanh(t @ self.Phi.mT) - self.y).pow(2).sum(-1), beta, kappa
        )


def saturating(seed: int, *, n: int = 3, p: int = 8, radius: float = 0.5) -> Saturating:
    """Return an instance whose labels are so small that the ball of Theorem 2.6.3 has that radius.

    From θ = 0 the loss is ½‖y‖², and the ball needs 2√(2𝓛₀/κ) = 2‖y‖/√κ.
    """
    g = generator(seed + 400)
    Phi, u = normal(n, p, g=g), normal(n, g=g)
    Phi = Phi / Phi.norm(dim=1).max()
    kappa = Saturating(Phi, torch.zeros(n, dtype=torch.float64), radius).loss().kappa
    return Saturating(Phi, u * (0.5 * radius * math.sqrt(kappa) / u.norm()), radius)


def scattered(g: torch.Generator, p: int = 4) -> Tensor:
    """Return 200 points at distances from 0.01 to 100."""
    x = normal(200, p, g=g)
    radius = torch.logspace(-2, 2, 200, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True) * radius[:, None]


def in_ball(centre: Tensor, radius: float, count: int, g: torch.Generator) -> Tensor:
    """Return points on and in a sphere: every other one on the surface."""
    x = normal(count, len(centre), g=g)
    share = torch.rand(count, 1, generator=g, dtype=torch.float64)
    share[::2] = 1
    return centre + radius * share * x / x.norm(dim=1, keepdim=True)


@dataclass(frozen=True)
class Path:
    """Points of a descent or a flow; values, gradient norms and path lengths at them."""

    theta: Tensor
    value: Tensor
    slope: Tensor
    length: Tensor


def descent(loss: Objective, start: Tensor, step: float, steps: int) -> Path:
    """Run θ ← θ - η∇𝓛(θ); ``start`` may hold several starts in rows."""
    thetas, slopes = [start], []
    for _ in range(steps):
        g = loss.gradient(thetas[-1])
        slopes.append(g.norm(dim=-1))
        thetas.append(thetas[-1] - step * g)
    theta = torch.stack(thetas)
    moved = torch.cumsum(step * torch.stack(slopes), dim=0)
    length = torch.cat([torch.zeros_like(moved[:1]), moved])
    value = torch.stack([loss.value(t) for t in thetas])
    slopes.append(loss.gradient(thetas[-1]).norm(dim=-1))
    return Path(theta, value, torch.stack(slopes), length)


def flow(loss: Objective, start: Tensor, times: Tensor, *, rtol: float = 1e-9) -> Path:
    """Integrate θ' = -∇𝓛(θ) together with the length of the path, ℓ' = ‖∇𝓛(θ)‖."""

    def field(_: float, s: np.ndarray) -> np.ndarray:
        g = loss.gradient(torch.from_numpy(s[:-1]))
        return np.append(-g.numpy(), float(g.norm()))

    first = np.append(start.numpy(), 0.0)
    span = (0.0, float(times[-1]))
    found = solve_ivp(field, span, first, "DOP853", times.numpy(), rtol=rtol, atol=1e-3 * rtol)
    states = torch.from_numpy(found.y.T.copy())
    theta = states[:, :-1]
    value = torch.stack([loss.value(t) for t in theta])
    slope = torch.stack([loss.gradient(t).norm() for t in theta])
    return Path(theta, value, slope, states[:, -1])


def steps_for(rate: float, factor: float, most: int = 2000) -> int:
    """Return how many steps of that rate give that factor."""
    return min(most, math.ceil(math.log(factor) / math.log(rate)))


@dataclass(frozen=True)
class Network:
    """A small equilibrium model with tanh on a sample, as a function of one parameter vector.

    The states are found here by Newton's method on dense matrices: the flow asks for thousands of
    them, exact to rounding. What the package computes is compared with this at single points.
    """

    model: MonDEQ | VanillaDEQ
    X: Tensor
    y: Tensor

    @property
    def start(self) -> Tensor:
        """Return the parameters as drawn."""
        return parameters_to_vector(self.model.parameters()).detach().clone()

    def at(self, theta: Tensor) -> MonDEQ | VanillaDEQ:
        """Return the model with other parameters."""
        other = copy.deepcopy(self.model)
        vector_to_parameters(theta.clone(), other.parameters())
        return other

    def solve(self, model: MonDEQ | VanillaDEQ) -> Tangents:
        """Return the equilibria z = tanh(Wz+Ux) and the adjoints v = D(I-WᵀD)⁻¹a, in rows."""
        with torch.no_grad():
            W, q = model.matrix(), model.inject(self.X)
            eye, z = torch.eye(model.m, dtype=W.dtype), torch.zeros_like(q)
            for _ in range(60):
                s = torch.tanh(z @ W.mT + q)
                D = (1 - s**2)[:, :, None]
                gap = s - z
                if float(gap.abs().max()) < 1e-14:
                    v = D * torch.linalg.solve(eye - W.mT * D.mT, model.a[:, None])
                    return Tangents(self.X, q, z, v[..., 0])
                z = z + torch.linalg.solve(eye - D * W, gap[..., None])[..., 0]
        raise RuntimeError("Newton's method did not settle in 60 steps.")

    def predict(self, theta: Tensor) -> Tensor:
        """Return ŷ."""
        model = self.at(theta)
        found = self.solve(model)
        return model.readout(found.z, found.q).detach()

    def value(self, theta: Tensor) -> Tensor:
        """Return 𝓛 = ½‖ŷ-y‖²."""
        return 0.5 * (self.predict(theta) - self.y).pow(2).sum()

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ∇𝓛, the derivative of Σe_i(⟨v_i, Wz_i+Ux_i⟩+⟨a, z_i⟩) with e, v, z held."""
        model = self.at(theta)
        now = self.solve(model)
        e = (model.readout(now.z, now.q) - self.y).detach()
        pre = now.z @ model.matrix().mT + model.inject(self.X)
        held = (e[:, None] * now.v * pre).sum() + (e * (now.z @ model.a)).sum()
        grads = torch.autograd.grad(held, list(model.parameters()))
        return torch.cat([g.flatten() for g in grads])

    def jacobian(self, theta: Tensor) -> Tensor:
        """Return ∂ŷ/∂θ by automatic differentiation through the package, one row per sample."""
        model = self.at(theta)
        weights = list(model.parameters())
        adjoint = IFT(solver=Newton(), tol=1e-13)
        output = model(self.X, solver=Newton(), adjoint=adjoint, tol=1e-13)
        rows = [torch.autograd.grad(o, weights, retain_graph=True) for o in output]
        return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])

    def kernel(self, theta: Tensor) -> Tensor:
        """Return the tangent kernel H = (∂ŷ/∂θ)(∂ŷ/∂θ)ᵀ in the closed form of the package."""
        model = self.at(theta)
        now = self.solve(model)
        return torch.stack(list(gram_of_tangents(model, now, now).values())).sum(dim=0)


def monotone_network(seed: int) -> Network:
    """Return a smooth monotone DEQ (tanh) of width 8 on four samples."""
    drawn, g = MonDEQ.init(8, 3, mu=0.5, seed=seed), generator(seed + 500)
    model = MonDEQ(drawn.A, drawn.B, drawn.U, drawn.a, 0.5, sigma="tanh")
    return Network(model, normal(4, 3, g=g), normal(4, g=g))


def step_order(net: Network, weight: float = 1.0) -> float:
    """Return the order in η of ‖(ŷ(θ-ηw∇𝓛)-ŷ)/η + H(ŷ-y)‖: 1 if ŷ' = -H(ŷ-y) under θ' = -w∇𝓛."""
    theta = net.start
    H, e, g = net.kernel(theta), net.predict(theta) - net.y, net.gradient(theta)
    target, top = -H @ e, float(torch.linalg.eigvalsh(H)[-1])
    size = []
    for h in (1e-3 / top / 2**k for k in range(4)):
        slope = (net.predict(theta - h * weight * g) - net.y - e) / h
        size.append(float((slope - target).norm() / target.norm()))
    return math.log2(size[0] / size[-1]) / 3


def prediction_gap(net: Network, weight: float = 1.0, *, moving: bool = True) -> float:
    """Follow θ' = -w∇𝓛 beside ŷ' = -H(t)(ŷ-y) and return how far apart ŷ ends, ÷ its path.

    With ``moving=False`` the kernel is kept at its initial value.
    """
    theta, n = net.start, len(net.y)
    H, first = net.kernel(theta), net.predict(theta).numpy()
    end = 1.0 / float(torch.linalg.eigvalsh(H)[-1])

    def field(_: float, s: np.ndarray) -> np.ndarray:
        now = torch.from_numpy(s[n:])
        K = net.kernel(now) if moving else H
        moves = -(K.numpy() @ (s[:n] - net.y.numpy()))
        return np.append(moves, -weight * net.gradient(now).numpy())

    state = np.append(first, theta.numpy())
    found = solve_ivp(field, (0.0, end), state, "DOP853", rtol=1e-8, atol=1e-10).y[:, -1]
    away = net.predict(torch.from_numpy(found[n:])) - torch.from_numpy(found[:n])
    return float(away.norm() / np.linalg.norm(found[:n] - first))


@dataclass(frozen=True)
class Ball:
    r"""A ball around the initial parameters of a vanilla DEQ on which PL is certified.

    In the ball :math:`\|Z-Z_0\|\le\frac{\|[Z_0\,X]\|R}{1-\|W_0\|-R}` if σ is 1-Lipschitz.
    The kernel contains :math:`ZZ^\top`, so :math:`\lambda_{\min}(H)\ge\kappa` with
    :math:`\sqrt\kappa=\sigma_{\min}(Z_0)-\frac{\|[Z_0\,X]\|R}{1-\|W_0\|-R}`.
    """

    network: Network
    radius: float
    kappa: float


def vanilla_ball(seed: int, *, twins: bool = False) -> Ball:
    """Return a tanh DEQ with labels so near its predictions that training stays in the ball.

    The radius spends half of σ_min(Z_0), and 2‖e_0‖ = 0.9 R√κ. With ``twins`` the first two inputs
    coincide and the error separates them, with the same R, κ and ‖e_0‖ as before.
    """
    drawn, g = VanillaDEQ.init(12, 6, variance=0.02, seed=seed), generator(seed + 600)
    model = VanillaDEQ(drawn.W, drawn.U, drawn.a, sigma="tanh")
    X, u = normal(3, 6, g=g), normal(3, g=g)
    Z = model.solve(X, solver=Newton(), tol=1e-13).z
    norm, reach = operator_norm(model.W.detach()), operator_norm(torch.cat([Z, X], dim=1))
    half = float(torch.linalg.svdvals(Z)[-1]) / 2
    radius = half * (1 - norm) / (reach + half)
    error = 0.45 * radius * half * u / u.norm()
    if twins:
        X = torch.cat([X[:1], X[:1], X[2:]])
        error = 0.45 * radius * half * torch.tensor([1.0, -1.0, 0.0]).double() / math.sqrt(2)
    network = Network(model, X, error)
    y = network.predict(network.start) - error
    return Ball(Network(model, X, y), radius, half**2)


def ball_flow(ball: Ball) -> tuple[Tensor, Path]:
    """Run the flow until the certified rate has given a factor 1000; return the times too."""
    net = ball.network
    times = torch.linspace(0, math.log(1e3) / (2 * ball.kappa), 15, dtype=torch.float64)
    return times, flow(net, net.start, times, rtol=1e-7)
