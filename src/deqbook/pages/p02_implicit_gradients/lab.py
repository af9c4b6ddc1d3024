r"""Two independent routes to a derivative, and the tiny networks whose derivatives are checked.

Automatic differentiation and central differences know nothing of the formulas that the sources
write with Kronecker products; here are both, for matrices stacked by ``vec``. Then exact states,
the chain rule of monotone weights, and the instances: each holds a network at its equilibrium and
its matrices in the letters of the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from deqbook.activations import Activation
from deqbook.implicit import IFT, Adjoint, Find, equilibrium, kept_bytes
from deqbook.linalg import commutation, eye, kron, operator_norm, unvec, vec
from deqbook.models import DeepOptEq, MonDEQ, ReLUImplicit, VanillaDEQ
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Newton, Picard, fixed_point

Function = Callable[[Tensor], Tensor]
Dense = ReLUImplicit | VanillaDEQ | MonDEQ

STEP = 1e-5  # of central differences: truncation and rounding are both near 1e-10
BY_NEWTON = IFT(solver=Newton(), tol=1e-13)  # the exact gradient, up to rounding


# --- two routes to a derivative ----------------------------------------------------------------


def jacobian(function: Function, theta: Tensor) -> Tensor:
    """Return the Jacobian by automatic differentiation, one column per entry of vec(theta)."""
    full = torch.func.jacrev(lambda t: function(t).flatten())(theta)
    return vec(full) if theta.ndim == 2 else full


def differences(function: Function, theta: Tensor, step: float = STEP) -> Tensor:
    """Return the Jacobian by central differences, one column per entry of vec(theta).

    All perturbed parameters are passed at once: ``function`` maps (P, …) to (P, k) or (P,).
    """
    shape = theta.shape[::-1]
    moves = step * eye(theta.numel()).reshape(theta.numel(), *shape)
    moves = moves.mT if theta.ndim == 2 else moves
    return (function(theta + moves) - function(theta - moves)).movedim(0, -1) / (2 * step)


def difference_gradient(loss: Function, theta: Tensor) -> Tensor:
    """Return the gradient by central differences, shaped as theta."""
    slopes = differences(loss, theta)
    return unvec(slopes, theta) if theta.ndim == 2 else slopes


def newton_state(f: Callable[..., Tensor], z: Tensor, *theta: Tensor, tol: float = 1e-13) -> Tensor:
    """Return the equilibrium near z, differentiable in theta; both solves are exact to rounding."""
    return equilibrium(f, z, *theta, solver=Newton(), adjoint=BY_NEWTON, tol=tol)


def exact_states(W: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Solve z = σ(Wz + q) for ReLU exactly, by Newton's method on the sets of active units.

    W is (…, m, m) and q is (…, n, m); returns the states and the pre-activations. No package solver
    is involved, and the states are exact up to rounding.
    """
    m, matrix = q.shape[-1], W.unsqueeze(-3)
    on = q > 0
    for _ in range(100):
        z = torch.linalg.solve(eye(m) - on[..., None] * matrix, (on * q)[..., None])[..., 0]
        pre = (matrix @ z[..., None])[..., 0] + q
        if torch.equal(pre > 0, on):
            return z, pre
        on = pre > 0
    raise RuntimeError("the active sets did not settle in 100 steps.")


def clearance(*pre: Tensor) -> float:
    """Return the least |pre-activation|, in steps of central differences: the way to a kink."""
    return min(float(p.abs().min()) for p in pre) / STEP


def diagonal(pre: Tensor) -> Tensor:
    """Return the big D of n samples, in the order of the columns of Zᵀ."""
    return torch.diag((pre > 0).double().flatten())


def read_out(a: Tensor, n: int, *, ordered: bool = True) -> Tensor:
    r"""Return :math:`I_n\otimes a^\top`, for samples as columns; or :math:`a^\top\otimes I_n`."""
    return kron(eye(n), a[None]) if ordered else kron(a[None], eye(n))


def chain_A(A: Tensor, *, commute: bool = True) -> Tensor:
    r"""Return :math:`P_A=-(I+C)(I\otimes A^\top)`, the derivative of vec W in vec A."""
    m = len(A)
    C = commutation(m, m) if commute else torch.zeros(m * m, m * m, dtype=A.dtype)
    return -(eye(m * m) + C) @ kron(eye(m), A.mT)


def chain_B(m: int, *, commute: bool = True) -> Tensor:
    r"""Return :math:`P_B=I-C`, the derivative of vec W in vec B."""
    return eye(m * m) - commutation(m, m) if commute else eye(m * m)


def _soft(t: Tensor) -> Tensor:
    return 0.3 * t + 0.7 * (F.softplus(t) - math.log(2.0))


def _no_prox(p: Tensor, alpha: float) -> Tensor:
    raise NotImplementedError("this activation is only differentiated, never split.")


SOFT = Activation("0.3t + 0.7 softplus", _soft, lambda t: 0.3 + 0.7 * torch.sigmoid(t), _no_prox)


# --- a network at its equilibrium --------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A model at its equilibrium: inputs, labels, features, states, pre-activations, errors."""

    x: Tensor
    y: Tensor
    q: Tensor
    z: Tensor
    pre: Tensor
    e: Tensor


def at_equilibrium(model: Dense, x: Tensor, y: Tensor) -> Sample:
    """Return the model's exact states for inputs x, and its errors for labels y."""
    with torch.no_grad():
        q = model.inject(x)
        z, pre = exact_states(model.structure().W, q)
        return Sample(x, y, q, z, pre, model.readout(z, q) - y)


def autograd(model: Dense, s: Sample) -> dict[str, Tensor]:
    """Return the gradients of ½‖ŷ-y‖² by automatic differentiation through the model."""
    names, parameters = zip(*((k, p) for k, p in model.named_parameters() if p.requires_grad))
    output = model(s.x, s.z, solver=Newton(), adjoint=BY_NEWTON, tol=1e-13)
    grads = torch.autograd.grad(0.5 * (output - s.y).pow(2).sum(), parameters)
    return dict(zip(names, grads))


def squares(output: Tensor, y: Tensor) -> Tensor:
    """Return the loss ½‖ŷ-y‖², also for stacks of outputs."""
    return 0.5 * (output - y).pow(2).sum(-1)


# --- only the implicit layer trained -----------------------------------------------------------


@dataclass(frozen=True)
class ImplicitOnly:
    """The network of gao2023 in its own letters and layout.

    A = Wᵀ, b = a, the states are √m times ours, J_i is our adjoint state v_i, and vec stacks the
    columns of n×m matrices.
    """

    A: Tensor
    Phi: Tensor
    b: Tensor
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """The number of samples and the width."""
        n, m = self.Phi.shape
        return n, m

    def states(self, A: Tensor) -> tuple[Tensor, Tensor]:
        """Return Z and the pre-activations γ̃ZA + Φ."""
        return exact_states(self.scale * A.mT, self.Phi)

    def adjoints(self, A: Tensor, pre: Tensor) -> Tensor:
        """Return the rows J_i = D_i(I - γ̃AD_i)⁻¹b, sample by sample."""
        D = (pre > 0).double()
        M = eye(self.shape[1]) - self.scale * A.unsqueeze(-3) * D[..., None, :]
        return D * (torch.linalg.inv(M) @ self.b)

    def big(self, pre: Tensor) -> tuple[Tensor, Tensor]:
        """Return D and Q = I - γ̃D(Aᵀ⊗I_n), both nm×nm."""
        n, m = self.shape
        D = torch.diag(vec((pre > 0).double()))
        return D, eye(n * m) - self.scale * D @ kron(self.A.mT, eye(n))


def implicit_only(seed: int, m: int = 10, n: int = 3) -> tuple[ReLUImplicit, Tensor, ImplicitOnly]:
    """Return a model with γ̃‖W‖ = 0.8, its inputs, and the same network in the source's letters."""
    model = ReLUImplicit.init_implicit_only(m, 4, gamma=1.0, seed=seed)
    model.gamma = 0.8 * math.sqrt(m) / operator_norm(model.W.detach())
    x = sphere(n, 4, seed + 100)
    with torch.no_grad():
        Phi = math.sqrt(m) * model.inject(x)
    A, b = model.W.detach().mT.contiguous(), model.a.detach()
    return model, x, ImplicitOnly(A, Phi, b, model.scale)


def aligned_implicit_only(m: int = 10) -> ImplicitOnly:
    """Return one sample whose state, adjoint and matrix all point along the mean; γ̃‖W‖ = 0.8."""
    one = torch.ones(m, m, dtype=torch.float64)
    return ImplicitOnly(one, one[:1], one[0], 0.8 / m)


def to_the_kink(net: ImplicitOnly) -> ImplicitOnly:
    """Move the matrix so that one inactive unit of one sample rests 1e-8 from its kink."""
    Z, pre = net.states(net.A)
    sample, unit = divmod(int(pre.argmin()), net.shape[1])
    z, A = Z[sample], net.A.clone()
    A[:, unit] -= (pre[sample, unit] + 1e-8) * z / (net.scale * z.pow(2).sum())
    return replace(net, A=A)


# --- the monotone DEQ --------------------------------------------------------------------------


@dataclass(frozen=True)
class Monotone:
    """A tiny monotone DEQ at its equilibrium, and the matrices of the source."""

    model: MonDEQ
    s: Sample

    @property
    def parameters(self) -> dict[str, Tensor]:
        """A, B and U."""
        return {k: getattr(self.model, k).detach() for k in ("A", "B", "U")}

    @property
    def W(self) -> Tensor:
        """The matrix of the model."""
        return self.model.W.detach()

    @property
    def D(self) -> Tensor:
        """The pattern of all samples, nm×nm."""
        return diagonal(self.s.pre)

    @property
    def Q(self) -> Tensor:
        """Q = I - D(I_n⊗W), nm×nm."""
        return eye(self.s.z.numel()) - self.D @ kron(eye(len(self.s.z)), self.W)

    def matrix(self, A: Tensor, B: Tensor) -> Tensor:
        """Return W(A, B), also for stacks of matrices."""
        return (1 - self.model.mu) * eye(self.model.m) - A.mT @ A + B - B.mT

    def problem(self, name: str, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return (W, Ux) as a function of one parameter, the others held fixed."""
        now = {**self.parameters, name: t}
        return self.matrix(now["A"], now["B"]), self.s.x @ now["U"].mT

    def residual(self, name: str, t: Tensor) -> Tensor:
        """Return vec F = vec(Z - σ(WZ + UX)) at the fixed state, as a function of one parameter."""
        W, q = self.problem(name, t)
        return (self.s.z - torch.relu(self.s.z @ W.mT + q)).flatten(-2)

    def in_state(self) -> Tensor:
        """Return ∂_Z F by automatic differentiation, in the order of the columns of Zᵀ."""
        W, q = self.W, self.s.q
        full = torch.func.jacrev(lambda z: z - torch.relu(z @ W.mT + q))(self.s.z)
        return full.reshape(self.s.z.numel(), -1)

    def state(self, name: str, t: Tensor) -> Tensor:
        """Return the equilibrium, differentiable, as a function of one parameter."""
        W, q = self.problem(name, t)
        return newton_state(self.model.f, self.s.z, q, W)

    def moved(self, name: str, t: Tensor) -> Tensor:
        """Return the equilibria for a stack of values of one parameter, exactly."""
        W, q = self.problem(name, t)
        return exact_states(W, q)[0].flatten(1)


def monotone(seed: int, n: int, m: int = 6, d: int = 3) -> Monotone:
    """Return a random model with μ = ½, at its equilibrium for n random samples."""
    model = MonDEQ.init(m, d, mu=0.5, seed=seed)
    g = generator(seed + 100)
    return Monotone(model, at_equilibrium(model, normal(n, d, g=g), normal(n, g=g)))


def _small_monotone(B: Tensor, a: Tensor, x: Tensor) -> Monotone:
    """Return the model with A = 0, U = I, μ = ½ and the given skew part, at its equilibrium."""
    model = MonDEQ(torch.zeros_like(B), B, eye(len(a)), a, 0.5)
    return Monotone(model, at_equilibrium(model, x, x.new_zeros(len(x))))


def rotating() -> Monotone:
    """Return two samples in the pattern (1, 0) of the rotation, read out by the first unit."""
    B = torch.tensor([[0.0, 10.0], [0.0, 0.0]], dtype=torch.float64)
    x = torch.tensor([[1.0, 0.0], [2.0, -1.0]], dtype=torch.float64)
    return _small_monotone(B, eye(2)[0], x)


def still() -> Monotone:
    """Return three samples of W = ½I: with all units active it attains the bound."""
    one = torch.ones(3, 2, dtype=torch.float64)
    return _small_monotone(torch.zeros_like(eye(2)), one[0], one)


def rotation(b: float = 10.0, mu: float = 0.5) -> tuple[Tensor, Tensor]:
    """Return W = (1-μ)I + b·[[0, 1], [-1, 0]] and the pattern of its state for Ux = (1, 0)."""
    W = (1 - mu) * eye(2) + b * torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    _, pre = exact_states(W, eye(2)[:1])
    return W, (pre[0] > 0).double()


def random_patterns(seed: int, draws: int = 400, m: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return monotone matrices, slopes in [0, 1] (half of them 0 or 1) and moduli."""
    g = generator(seed)
    mu = 0.05 + 1.45 * torch.rand(draws, generator=g, dtype=torch.float64)
    size = 3 * torch.rand(draws, 1, 1, generator=g, dtype=torch.float64)
    A, B = size * normal(draws, m, m, g=g), size * normal(draws, m, m, g=g)
    W = (1 - mu)[:, None, None] * eye(m) - A.mT @ A / m + B - B.mT
    D = torch.rand(draws, m, generator=g, dtype=torch.float64)
    D[::2] = D[::2].round()
    return W, D, mu


# --- unrolled against implicit -----------------------------------------------------------------


@dataclass(frozen=True)
class Unrolled:
    """The iteration z ← β_k s(z) + (1-β_k)T(z) with s(z) = (1-γλ_k)z - γ∇R(z), R = ½⟨w,z⟩²."""

    model: DeepOptEq
    x: Tensor
    start: Tensor
    w: Tensor
    steps: int = 6
    gamma: float = 0.25

    def beta(self, k: int) -> float:
        """Return β_k."""
        return 0.5 / k**0.4

    def decay(self, k: int) -> float:
        """Return λ_k."""
        return 0.5 / k**0.2

    def parameters(self) -> dict[str, Tensor]:
        """Return W, U and b of both layers, as W1, W2, …."""
        lists = (("W", self.model.Ws), ("U", self.model.Us), ("b", self.model.bs))
        return {f"{k}{i + 1}": p.detach() for k, ps in lists for i, p in enumerate(ps)}

    def layers(self, now: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return (W_l, U_l x + b_l), also for a stack of values of one parameter."""
        return [
            (now[f"W{i}"], self.x @ now[f"U{i}"].mT + now[f"b{i}"].unsqueeze(-2)) for i in (1, 2)
        ]

    def selection(self, z: Tensor, k: int) -> Tensor:
        """Return s(z) of step k."""
        pull = (z @ self.w)[..., None] * self.w
        return (1 - self.gamma * self.decay(k)) * z - self.gamma * pull

    def run(self, name: str, t: Tensor) -> Tensor:
        """Return the last state as a function of one parameter (or of a stack of its values)."""
        alpha, z = self.model.alpha, self.start
        layers = self.layers({**self.parameters(), name: t})
        for k in range(1, self.steps + 1):
            y = z
            for W, q in layers:
                y = alpha * SOFT(y @ W.mT + q) @ W + (1 - alpha) * y
            z = self.beta(k) * self.selection(z, k) + (1 - self.beta(k)) * y
        return z.flatten(-2)


def unrolled(seed: int) -> Unrolled:
    """Return six steps of a random two-layer OptEq on three samples."""
    model = DeepOptEq.init_deep(5, 3, widths=[4, 4], norm=0.9, alpha=0.6, sigma=SOFT, seed=seed)
    g = generator(seed + 100)
    x, start, w = normal(3, 3, g=g), normal(3, 5, g=g), normal(5, g=g)
    return Unrolled(model, x, start, w / w.norm())


def stop_after(steps: int) -> Find:
    """Return a finder that iterates plainly and stops after so many steps, converged or not."""
    return lambda f, z0: fixed_point(
        f, z0, solver=Picard(), tol=1e-14, max_steps=steps, throw=False
    )


@dataclass(frozen=True)
class Training:
    """A two-layer OptEq, its loss ½‖ŷ-y‖², and the ways to differentiate it in W_1."""

    model: DeepOptEq
    x: Tensor
    y: Tensor

    @property
    def modulus(self) -> float:
        """The contraction modulus of the cell that the norms certify."""
        alpha = self.model.alpha
        norms = [operator_norm(W.detach()) for W in self.model.Ws]
        return math.prod(alpha * norm**2 + 1 - alpha for norm in norms)

    def loss(self, find: Find, adjoint: Adjoint) -> Tensor:
        """Return the loss, differentiable in the way that is asked for."""
        model = self.model
        q = model.inject(self.x)
        z = equilibrium(model.f, model.start(q), q, *model.Ws, solver=find, adjoint=adjoint)
        return 0.5 * (model.readout(z, q) - self.y).pow(2).sum()

    def gradient(self, find: Find, adjoint: Adjoint) -> Tensor:
        """Return the gradient in W_1."""
        return torch.autograd.grad(self.loss(find, adjoint), self.model.Ws[0])[0]

    def stored(self, find: Find, adjoint: Adjoint) -> int:
        """Return the bytes that the forward pass keeps for the backward pass."""
        return kept_bytes(lambda: self.loss(find, adjoint))

    def moved(self, first: Tensor) -> Tensor:
        """Return the loss for a stack of values of W_1, by 300 steps of plain iteration."""
        model, alpha = self.model, self.model.alpha
        with torch.no_grad():
            q = [self.x @ U.mT + b for U, b in zip(model.Us, model.bs)]
            z = self.x.new_zeros(len(first), len(self.x), model.m)
            for _ in range(300):
                for W, part in zip((first, model.Ws[1]), q):
                    z = alpha * SOFT(z @ W.mT + part) @ W + (1 - alpha) * z
            return 0.5 * (z @ model.V.mT - self.y).pow(2).sum((-1, -2))


def training(seed: int) -> Training:
    """Return a random task of four samples, for a cell that contracts."""
    model = DeepOptEq.init_deep(8, 4, widths=[8, 8], norm=0.95, alpha=0.45, sigma=SOFT, seed=seed)
    g = generator(seed + 100)
    return Training(model, normal(4, 4, g=g), normal(4, 1, g=g))
