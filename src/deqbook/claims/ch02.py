"""Chapter 2, implicit gradients: the fifteen claims.

The sources state their derivatives with Kronecker products. Here those matrices are built, at tiny
sizes, and compared with two routes that know nothing of them: automatic differentiation through the
implicit solve, and central differences through an exact solver. Each measurement is a function of
the formula it tests, so that a control can spoil one factor and repeat *the same* measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from deqbook.activations import Activation
from deqbook.claims.registry import (
    Measurement,
    Trial,
    at_least,
    at_most,
    claim,
    equal,
    given,
    within,
)
from deqbook.implicit import IFT, Adjoint, Find, Unroll, equilibrium
from deqbook.linalg import operator_norm, symmetric_part
from deqbook.models import DeepOptEq, MonDEQ, ReLUImplicit, VanillaDEQ
from deqbook.models.closed_form import gradient
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Newton, Picard, fixed_point

CHAPTER = "02_implicit_gradients"
STEP = 1e-5  # of central differences: truncation and rounding are both near 1e-10
SAME = 1e-10  # two exact routes
CLOSE = 1e-6  # an exact route and central differences

Function = Callable[[Tensor], Tensor]
EXACT = IFT(solver=Newton(), tol=1e-13)


# --- the tools: vec, the commutation matrix, two independent routes ----------------------------


def vec(M: Tensor) -> Tensor:
    """Stack the columns of the last two dimensions."""
    return M.mT.flatten(-2)


def unvec(v: Tensor, like: Tensor) -> Tensor:
    """Undo ``vec``, in the last dimension, for matrices shaped as ``like``."""
    rows, columns = like.shape
    return v.reshape(*v.shape[:-1], columns, rows).mT


def eye(m: int) -> Tensor:
    """Return the identity in double precision."""
    return torch.eye(m, dtype=torch.float64)


def kron(A: Tensor, B: Tensor) -> Tensor:
    """Return A⊗B; torch.kron itself fails on some transposed arguments."""
    blocks = A[:, None, :, None] * B[None, :, None, :]
    return blocks.reshape(A.shape[0] * B.shape[0], A.shape[1] * B.shape[1])


def commutation(a: int, b: int) -> Tensor:
    r"""Return K with :math:`K\,\mathrm{vec}(M)=\mathrm{vec}(M^\top)` for every a×b matrix M."""
    labels = torch.arange(a * b).reshape(b, a).mT  # vec(labels) = 0, 1, 2, …
    return eye(a * b)[vec(labels.mT)]


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


def relative(value: Tensor, target: Tensor) -> float:
    """Return ‖value - target‖ ÷ ‖target‖, or infinity if the shapes differ."""
    if value.shape != target.shape:
        return math.inf
    return float((value - target).norm() / target.norm())


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


def diagonal(pre: Tensor) -> Tensor:
    """Return the big D of n samples, in the order of the columns of Zᵀ."""
    return torch.diag((pre > 0).double().flatten())


def _clear(*pre: Tensor) -> Measurement:
    """Measure that central differences stay on one side of every kink."""
    least = min(float(p.abs().min()) for p in pre)
    return given("least |pre-activation| ÷ step of differences", least / STEP, "≥", 10)


# --- the implicit function theorem -------------------------------------------------------------


def _tanh_branch(seed: int, norm: float = 0.9) -> Iterator[Measurement]:
    g = generator(seed)
    W = normal(6, 6, g=g)
    W, p = W * (norm / operator_norm(W)), normal(1, 6, g=g)

    def cell(z: Tensor, p: Tensor) -> Tensor:
        return torch.tanh(z @ W.mT + p)

    def branch(p: Tensor) -> Tensor:
        p = p.reshape(-1, 6)
        found = fixed_point(
            lambda z: cell(z, p), torch.zeros_like(p), solver=Newton(), tol=1e-14, throw=False
        )
        return found.z

    z = branch(p)
    in_z = eye(6) - jacobian(lambda z: cell(z, p), z)
    derivative = torch.linalg.solve(in_z, jacobian(lambda p: cell(z, p), p))
    yield given("σ_min(I - ∂_z f)", float(torch.linalg.svdvals(in_z)[-1]), "≥", 1 - norm)
    yield within(
        "(I - ∂_z f)⁻¹∂_p f vs central differences",
        relative(derivative, differences(branch, p)),
        CLOSE,
    )
    auto = jacobian(lambda p: equilibrium(cell, z, p, solver=Newton(), adjoint=EXACT, tol=1e-14), p)
    yield within("(I - ∂_z f)⁻¹∂_p f vs autograd", relative(derivative, auto), SAME)


FOLD = 0.5 * math.acosh(math.sqrt(2.0))  # where ∂_z(z - tanh 2z) = 0


def _scalar(z: Tensor) -> Tensor:
    """Return z - tanh 2z, which equals p on the branches."""
    return z - torch.tanh(2 * z)


def _fold(start: float) -> Iterator[Measurement]:
    """Count the solutions of z - tanh 2z = p ± h near ``start``, which solves it for p."""
    point = torch.tensor(start, dtype=torch.float64)
    grid = start + torch.linspace(-0.1, 0.1, 2001, dtype=torch.float64)
    for name, h in (("p - 0.01", -0.01), ("p + 0.01", 0.01)):
        side = torch.sign(_scalar(grid) - _scalar(point) - h)
        roots = int((side[1:] != side[:-1]).sum())
        yield equal(f"solutions of z - tanh 2z = {name} near z", roots, 1, 0)
    slope = float(torch.func.grad(_scalar)(point))
    yield given("|∂_z(z - tanh 2z)| at that z", abs(slope), "≥", 0.1)


@claim(
    "nguyen2022.theoremA.0.1",
    title="Where I - ∂_z f is invertible one smooth branch passes, with slope (I-∂_z f)⁻¹∂_p f",
    chapter=CHAPTER,
    ref="thm-ift",
)
def implicit_function(trial: Trial) -> Iterable[Measurement]:
    """Follow the equilibrium of a tanh cell, and the solutions of a scalar equation by a fold."""
    yield from _tanh_branch(trial.seed)
    yield from _fold(FOLD + 0.3)


@implicit_function.control("∂_z(z - tanh 2z) = 0: at the fold two solutions meet and vanish")
def at_the_fold(trial: Trial) -> Iterable[Measurement]:
    """No solution on one side of p, two on the other."""
    return [m for m in _fold(FOLD) if m.name.startswith("solutions")]


# --- ReLU implicit networks --------------------------------------------------------------------


@dataclass(frozen=True)
class _Sample:
    """A model at its equilibrium: inputs, labels, features, states, pre-activations, errors."""

    x: Tensor
    y: Tensor
    q: Tensor
    z: Tensor
    pre: Tensor
    e: Tensor


Dense = ReLUImplicit | VanillaDEQ | MonDEQ


def _at_equilibrium(model: Dense, x: Tensor, y: Tensor) -> _Sample:
    with torch.no_grad():
        q = model.inject(x)
        z, pre = exact_states(model.structure().W, q)
        return _Sample(x, y, q, z, pre, model.readout(z, q) - y)


def _autograd(model: Dense, s: _Sample) -> dict[str, Tensor]:
    """Return the gradients of ½‖ŷ-y‖² by automatic differentiation through the model."""
    names, parameters = zip(*((k, p) for k, p in model.named_parameters() if p.requires_grad))
    output = model(s.x, s.z, solver=Newton(), adjoint=EXACT, tol=1e-13)
    grads = torch.autograd.grad(0.5 * (output - s.y).pow(2).sum(), parameters)
    return dict(zip(names, grads))


def _three_routes(
    model: Dense, s: _Sample, formulas: dict[str, Tensor], losses: dict[str, Function]
) -> Iterator[Measurement]:
    """Compare the formulas with autograd, central differences and the package's closed form."""
    auto = _autograd(model, s)
    closed = gradient(model, s.x, s.y, z0=s.z, adjoint_solver=Newton(), tol=1e-13).grads
    for name, value in formulas.items():
        slopes = differences(losses[name], getattr(model, name).detach())
        slopes = unvec(slopes, value) if value.ndim == 2 else slopes
        yield within(f"∇{name}: formula vs autograd", relative(value, auto[name]), SAME)
        yield within(f"∇{name}: formula vs central differences", relative(value, slopes), CLOSE)
        yield within(
            f"∇{name}: formula vs batched closed form", relative(value, closed[name]), SAME
        )


def _squares(output: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (output - y).pow(2).sum(-1)


def _relu_partials(
    model: ReLUImplicit, x: Tensor, z: Tensor, D: Tensor, *, scaled: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], list[float]]:
    """Return ∂_z g, ∂_W g, ∂_U g of one sample in Kronecker form, and their errors."""
    W, U, scale, root = model.W.detach(), model.U.detach(), model.scale, math.sqrt(model.m)
    E = torch.diag((x @ U.mT > 0).double()[0])
    forms = (
        eye(model.m) - scale * D @ W,
        -(scale if scaled else 1.0) * kron(z, D),
        -D @ kron(x, E) / root,
    )

    def g(z: Tensor, W: Tensor, U: Tensor) -> Tensor:
        return z - torch.relu(scale * z @ W.mT + torch.relu(x @ U.mT) / root)

    exact = (
        jacobian(lambda t: g(t, W, U), z),
        jacobian(lambda t: g(z, t, U), W),
        jacobian(lambda t: g(z, W, t), U),
    )
    return forms, [relative(f, t) for f, t in zip(forms, exact)]


def _relu_gradients(
    seed: int, *, scaled: bool = True, through_state: bool = True
) -> Iterator[Measurement]:
    """Build the gradients of Lemma 2.3, sample by sample, from its partial derivatives."""
    model = ReLUImplicit.init(8, 3, gamma=0.3, seed=seed)
    W, U, a, c = (p.detach() for p in (model.W, model.U, model.a, model.c))
    x, y = sphere(4, 3, seed + 100), normal(4, g=generator(seed + 200))
    s, scale, root = _at_equilibrium(model, x, y), model.scale, math.sqrt(model.m)
    yield given("γ̃‖W‖", scale * operator_norm(W), "≤", 1.0)
    yield _clear(s.pre, x @ U.mT)
    total_W, total_U = torch.zeros_like(vec(W)), torch.zeros_like(vec(U))
    worst = [0.0, 0.0, 0.0]
    for i in range(len(x)):
        D = torch.diag((s.pre[i] > 0).double())
        (in_z, in_W, in_U), errors = _relu_partials(
            model, x[i : i + 1], s.z[i : i + 1], D, scaled=scaled
        )
        worst = [max(w, e) for w, e in zip(worst, errors)]
        adjoint = torch.linalg.solve(in_z.mT, a)
        total_W = total_W - s.e[i] * in_W.mT @ adjoint
        if through_state:
            total_U = total_U - s.e[i] * in_U.mT @ adjoint
        E = torch.diag((x[i] @ U.mT > 0).double())  # the second path: c reads out φ as well
        total_U = total_U + s.e[i] * kron(x[i : i + 1], E).mT @ c / root
    for name, value in zip(("∂_z g", "∂_W g", "∂_U g"), worst):
        yield within(f"{name}: Kronecker form vs autograd", value, SAME)

    def loss(W: Tensor, q: Tensor, a: Tensor, c: Tensor) -> Tensor:
        z = exact_states(scale * W, q)[0]
        return _squares((z * a).sum(-1) + (q * c).sum(-1), y)

    yield from _three_routes(
        model,
        s,
        {"W": unvec(total_W, W), "U": unvec(total_U, U), "a": s.z.mT @ s.e, "c": s.q.mT @ s.e},
        {
            "W": lambda t: loss(t, s.q, a, c),
            "U": lambda t: loss(W, torch.relu(x @ t.mT) / root, a, c),
            "a": lambda t: loss(W, s.q, t[:, None], c),
            "c": lambda t: loss(W, s.q, a, t[:, None]),
        },
    )


def _relu_invertible(seed: int, gamma0: float, gamma: float | None) -> Iterator[Measurement]:
    """Look at I - γ̃DW for slopes in [0, 1], at γ = γ₀√m/‖W‖ or at a γ that ignores it."""
    g = generator(seed)
    W = normal(100, 100, g=g)
    patterns = torch.rand(20, 100, generator=g, dtype=torch.float64)
    patterns[:10] = patterns[:10].round()
    patterns[0] = 1
    scale = gamma0 / operator_norm(W) if gamma is None else gamma / 10
    J = eye(100) - scale * patterns[:, :, None] * W
    least = float(torch.linalg.svdvals(J)[:, -1].min())
    yield at_least("min σ_min(I - γ̃DW) ÷ (1-γ₀)", least / (1 - gamma0), 1.0)
    values = torch.linalg.eigvals(J)
    yield at_least("min Re λ(I - γ̃DW) ÷ (1-γ₀)", float(values.real.min()) / (1 - gamma0), 1.0)


@claim(
    "gao2022.lemma2.3",
    title="ReLU network: partial derivatives, σ_min(I - γ̃DW) ≥ 1-γ₀, and the four gradients",
    chapter=CHAPTER,
    ref="lem-relu-gradients",
)
def relu_gradients(trial: Trial) -> Iterable[Measurement]:
    """Check the gradients at a tiny size, the singular values at width 100."""
    yield from _relu_gradients(trial.seed)
    yield from _relu_invertible(trial.seed, 0.5, None)
    w = normal(100, 1, g=trial.g)
    tight = 0.5 * w @ w.mT / w.pow(2).sum()  # γ̃W of rank one and norm γ₀
    yield equal(
        "σ_min where it is tight", float(torch.linalg.svdvals(eye(100) - tight)[-1]), 0.5, SAME
    )


@relu_gradients.control("the factor γ̃ dropped in ∂_W")
def unscaled_gradient(trial: Trial) -> Iterable[Measurement]:
    """The gradient in W is then √m/γ times too large."""
    names = ("∂_W", "∇W")
    return [m for m in _relu_gradients(trial.seed, scaled=False) if m.name.startswith(names)]


@relu_gradients.control("only one path: U acts through φ alone, not through the state")
def one_path(trial: Trial) -> Iterable[Measurement]:
    """The features enter the output twice."""
    found = _relu_gradients(trial.seed, through_state=False)
    return [m for m in found if m.name.startswith("∇U")]


@relu_gradients.control("γ = 1 instead of γ ≤ γ₀√m/‖W‖ ≈ 0.25")
def too_large(trial: Trial) -> Iterable[Measurement]:
    """With all units active the matrix is nearly singular."""
    return list(_relu_invertible(trial.seed, 0.5, 1.0))


@dataclass(frozen=True)
class _ImplicitOnly:
    """The network of gao2023 in its own letters and layout.

    A = Wᵀ, b = a, the states are √m times ours, J_i is our adjoint state p_i, and vec stacks the
    columns of n×m matrices.
    """

    A: Tensor
    Phi: Tensor
    b: Tensor
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
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


def _implicit_only(
    seed: int, m: int = 10, n: int = 3
) -> tuple[ReLUImplicit, Tensor, _ImplicitOnly]:
    model = ReLUImplicit.init_implicit_only(m, 4, gamma=1.0, seed=seed)
    model.gamma = 0.8 * math.sqrt(m) / operator_norm(model.W.detach())
    x = sphere(n, 4, seed + 100)
    with torch.no_grad():
        Phi = math.sqrt(m) * model.inject(x)
    A, b = model.W.detach().mT.contiguous(), model.a.detach()
    return model, x, _ImplicitOnly(A, Phi, b, model.scale)


def _implicit_only_gradient(seed: int, *, factor: bool = True) -> Iterator[Measurement]:
    model, x, net = _implicit_only(seed)
    n, m = net.shape
    Z, pre = net.states(net.A)
    yield _clear(pre / math.sqrt(m))
    y = normal(n, g=generator(seed + 200))
    e = Z @ net.b / math.sqrt(m) - y
    D, Q = net.big(pre)
    J = kron(net.b[None], eye(n)) @ torch.linalg.solve(Q, D)
    blocks = J.reshape(n, m, n)  # row i, unit r, sample j
    outside = blocks * (1 - eye(n))[:, None, :]
    yield within("entries of P across samples", float(outside.abs().max()), 1e-14)
    rows = torch.stack([blocks[i, :, i] for i in range(n)])
    yield within("rows of P vs sample by sample", relative(rows, net.adjoints(net.A, pre)), SAME)
    in_A = kron(eye(m), Z).mT @ J.mT @ e
    value = unvec(in_A * (net.scale / math.sqrt(m) if factor else 1.0), net.A)

    def loss(W: Tensor) -> Tensor:
        return _squares(net.states(W.mT)[0] @ net.b / math.sqrt(m), y)

    s = _at_equilibrium(model, x, y)
    yield from _three_routes(model, s, {"W": value.mT}, {"W": loss})
    size = net.scale / math.sqrt(m) * net.b.norm() * Z.norm() * e.norm()
    bound = size / (1 - net.scale * operator_norm(net.A))
    yield at_most("‖∇W‖_F ÷ its bound", float(value.norm() / bound), 1.0)


@claim(
    "gao2023.gradient",
    title="Only W trained: ∇W = γ̃ Pᵀdiag(e)Z, with one adjoint row p_i for each sample",
    chapter=CHAPTER,
    ref="prop-implicit-only-gradient",
)
def implicit_only_gradient(trial: Trial) -> Iterable[Measurement]:
    """Build the nm×nm matrices of the source in its own scaling of the states."""
    return _implicit_only_gradient(trial.seed)


@implicit_only_gradient.control("the factor dropped: γ̃, in the source's scaling γ̃/√m")
def factor_dropped(trial: Trial) -> Iterable[Measurement]:
    """The direction is right, the length is not."""
    found = _implicit_only_gradient(trial.seed, factor=False)
    return [m for m in found if m.name.startswith("∇W")]


def _to_the_kink(net: _ImplicitOnly) -> _ImplicitOnly:
    """Move the matrix so that one inactive unit of one sample rests 1e-8 from its kink."""
    Z, pre = net.states(net.A)
    sample, unit = divmod(int(pre.argmin()), net.shape[1])
    z, A = Z[sample], net.A.clone()
    A[:, unit] -= (pre[sample, unit] + 1e-8) * z / (net.scale * z.pow(2).sum())
    return _ImplicitOnly(A, net.Phi, net.b, net.scale)


def _adjoint_by_sample(net: _ImplicitOnly, pre: Tensor) -> Tensor:
    """Return the columns vec(dJ) of dJ_i = γ̃ D_i(I - γ̃AD_i)⁻¹ dA J_i, dA running over entries."""
    m = net.shape[1]
    D, J = (pre > 0).double(), net.adjoints(net.A, pre)
    inverse = torch.linalg.inv(eye(m) - net.scale * net.A * D[:, None, :])
    moves = unvec(eye(m * m), net.A)
    dJ = net.scale * D[:, None] * torch.einsum("nrs,kst,nt->nkr", inverse, moves, J)
    return vec(dJ.movedim(1, 0)).mT


def _adjoint_by_kronecker(net: _ImplicitOnly, pre: Tensor, *, swapped: bool) -> Tensor:
    """Return the same columns from dJᵀ = γ̃ DQ⁻ᵀ (dA⊗I_n) DQ⁻ᵀ (b⊗I_n) of the whole batch."""
    n, m = net.shape
    D, Q = net.big(pre)
    middle, B = D @ torch.linalg.inv(Q.mT), kron(net.b[:, None], eye(n))
    columns = []
    for dA in unvec(eye(m * m), net.A):
        inner = kron(eye(n), dA) if swapped else kron(dA, eye(n))
        full = (net.scale * middle @ inner @ middle @ B).reshape(m, n, n)  # unit, sample, row
        columns.append(full.diagonal(dim1=1, dim2=2).flatten())  # the rows of J's own samples
    return torch.stack(columns, dim=1)


def _adjoint_derivative(
    seed: int, *, at_kink: bool = False, swapped: bool = False
) -> Iterator[Measurement]:
    _, _, drawn = _implicit_only(seed)
    net = _to_the_kink(drawn) if at_kink else drawn
    yield given("γ̃‖W‖", net.scale * operator_norm(net.A), "≤", 1.0)
    Z, pre = net.states(net.A)
    yield _clear(pre)
    D, Q = net.big(pre)
    in_Z = net.scale * torch.linalg.solve(Q, D @ kron(eye(net.shape[1]), Z))
    slopes = differences(lambda A: vec(net.states(A)[0]), net.A)
    yield within("dZ: Kronecker form vs central differences", relative(in_Z, slopes), CLOSE)

    def cell(Z: Tensor, A: Tensor, Phi: Tensor) -> Tensor:
        return torch.relu(net.scale * Z @ A + Phi)

    def state(A: Tensor, Phi: Tensor) -> Tensor:
        return equilibrium(cell, Z, A, Phi, solver=Newton(), adjoint=EXACT, tol=1e-13)

    auto = jacobian(lambda A: state(A, net.Phi).mT, net.A)
    yield within("dZ: Kronecker form vs autograd", relative(in_Z, auto), SAME)

    in_J = _adjoint_by_sample(net, pre)
    slopes = differences(lambda A: vec(net.adjoints(A, net.states(A)[1])), net.A)
    yield within("dp: sample by sample vs central differences", relative(in_J, slopes), CLOSE)
    # J_i is the gradient of bᵀz_i in its features, so dJ is a second derivative of the equilibrium
    in_Phi = torch.func.grad(lambda Phi, A: (state(A, Phi) @ net.b).sum())
    auto = jacobian(lambda A: in_Phi(net.Phi, A).mT, net.A)
    yield within("dp: sample by sample vs autograd, twice", relative(in_J, auto), SAME)
    big = _adjoint_by_kronecker(net, pre, swapped=swapped)
    yield within("dp: Kronecker form vs autograd, twice", relative(big, auto), SAME)


@claim(
    "gao2023.lemma3.2",
    title="Derivatives of states and adjoints in W: dp_i = γ̃ D_i(I - γ̃WᵀD_i)⁻¹ dWᵀ p_i",
    chapter=CHAPTER,
    ref="lem-adjoint-derivative",
)
def adjoint_derivative(trial: Trial) -> Iterable[Measurement]:
    """Differentiate the equilibrium and its adjoint once more, with fixed pattern."""
    return _adjoint_derivative(trial.seed)


@adjoint_derivative.control("Kronecker factors in the wrong order: I_n⊗dWᵀ for dWᵀ⊗I_n")
def kronecker_swapped(trial: Trial) -> Iterable[Measurement]:
    """The source has dWᵀ alone, which fits no shape; of the two orders that fit, one is right."""
    found = _adjoint_derivative(trial.seed, swapped=True)
    return [m for m in found if m.name.startswith("dp: Kronecker")]


@adjoint_derivative.control("the pattern is not fixed: one unit rests at its kink")
def at_a_kink(trial: Trial) -> Iterable[Measurement]:
    """The adjoint jumps there and the state has two one-sided derivatives."""
    found = _adjoint_derivative(trial.seed, at_kink=True)
    return [m for m in found if m.name.endswith("central differences")]


# --- the vanilla DEQ ---------------------------------------------------------------------------


def _vanilla_gradients(seed: int, *, ordered: bool = True) -> Iterator[Measurement]:
    drawn = VanillaDEQ.init(6, 3, seed=seed)
    W, U, a = (p.detach() for p in (drawn.W, drawn.U, drawn.a))
    W = 0.8 * W / operator_norm(W)
    model = VanillaDEQ(W, U, a)
    x, y = sphere(4, 3, seed + 100, radius=math.sqrt(3)), normal(4, g=generator(seed + 200))
    s = _at_equilibrium(model, x, y)
    yield given("‖W‖", operator_norm(W), "≤", 1.0)
    yield _clear(s.pre)
    D = diagonal(s.pre)
    J = eye(24) - D @ kron(eye(4), W)
    out = kron(eye(4), a[None]) if ordered else kron(a[None], eye(4))
    R = out @ torch.linalg.solve(J, D)

    def loss(W: Tensor, q: Tensor, a: Tensor) -> Tensor:
        return _squares((exact_states(W, q)[0] * a).sum(-1), y)

    formulas = {
        "W": unvec(kron(s.z.mT, eye(6)) @ R.mT @ s.e, W),
        "U": unvec(kron(x.mT, eye(6)) @ R.mT @ s.e, U),
        "a": s.z.mT @ s.e,
    }
    losses: dict[str, Function] = {
        "W": lambda t: loss(t, s.q, a),
        "U": lambda t: loss(W, x @ t.mT, a),
        "a": lambda t: loss(W, s.q, t[:, None]),
    }
    yield from _three_routes(model, s, formulas, losses)


@claim(
    "ling2023.lemma2",
    title="Gradients of the vanilla DEQ, with the read-out I_n⊗aᵀ",
    chapter=CHAPTER,
    ref="lem-vanilla-gradients",
)
def vanilla_gradients(trial: Trial) -> Iterable[Measurement]:
    """Build (I_n⊗aᵀ)(I - D(I_n⊗W))⁻¹D of the source."""
    return _vanilla_gradients(trial.seed)


@vanilla_gradients.control("the read-out aᵀ⊗I_n, as the source orders it")
def readout_order(trial: Trial) -> Iterable[Measurement]:
    """The shape fits, the samples are mixed."""
    found = _vanilla_gradients(trial.seed, ordered=False)
    return [m for m in found if m.name.startswith(("∇W", "∇U"))]


# --- the monotone DEQ: derivatives -------------------------------------------------------------


@dataclass(frozen=True)
class _Monotone:
    """A tiny monotone DEQ at its equilibrium, and the matrices of the source."""

    model: MonDEQ
    s: _Sample

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {k: getattr(self.model, k).detach() for k in ("A", "B", "U")}

    @property
    def W(self) -> Tensor:
        return self.model.W.detach()

    @property
    def D(self) -> Tensor:
        return diagonal(self.s.pre)

    @property
    def Q(self) -> Tensor:
        return eye(self.s.z.numel()) - self.D @ kron(eye(len(self.s.z)), self.W)

    def matrix(self, A: Tensor, B: Tensor) -> Tensor:
        """Return W(A, B), also for stacks of matrices."""
        return (1 - self.model.mu) * eye(self.model.m) - A.mT @ A + B - B.mT

    def problem(self, name: str) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return the map from one parameter to (W, Ux), the others held fixed."""
        at = self.parameters

        def build(t: Tensor) -> tuple[Tensor, Tensor]:
            now = {**at, name: t}
            return self.matrix(now["A"], now["B"]), self.s.x @ now["U"].mT

        return build

    def residual(self, name: str, t: Tensor) -> Tensor:
        """Return vec g = vec(Z - σ(WZ + UX)) at the fixed state, as a function of one parameter."""
        W, q = self.problem(name)(t)
        return (self.s.z - torch.relu(self.s.z @ W.mT + q)).flatten(-2)

    def in_state(self) -> Tensor:
        """Return ∂_Z g by automatic differentiation, in the order of the columns of Zᵀ."""
        W, q = self.W, self.s.q
        full = torch.func.jacrev(lambda z: z - torch.relu(z @ W.mT + q))(self.s.z)
        return full.reshape(self.s.z.numel(), -1)

    def state(self, name: str, t: Tensor) -> Tensor:
        """Return the equilibrium, differentiable, as a function of one parameter."""
        W, q = self.problem(name)(t)
        return equilibrium(self.model.f, self.s.z, q, W, solver=Newton(), adjoint=EXACT, tol=1e-13)

    def moved(self, name: str, t: Tensor) -> Tensor:
        """Return the equilibria for a stack of values of one parameter, exactly."""
        W, q = self.problem(name)(t)
        return exact_states(W, q)[0].flatten(1)


def _monotone(seed: int, n: int, m: int = 6, d: int = 3) -> _Monotone:
    model = MonDEQ.init(m, d, mu=0.5, seed=seed)
    g = generator(seed + 100)
    return _Monotone(model, _at_equilibrium(model, normal(n, d, g=g), normal(n, g=g)))


def chain_A(A: Tensor, *, commute: bool = True) -> Tensor:
    r"""Return :math:`P_A=-(I+K)(I\otimes A^\top)`, the derivative of vec W in vec A."""
    m = len(A)
    K = commutation(m, m) if commute else torch.zeros(m * m, m * m, dtype=A.dtype)
    return -(eye(m * m) + K) @ kron(eye(m), A.mT)


def chain_B(m: int, *, commute: bool = True) -> Tensor:
    r"""Return :math:`P_B=I-K`, the derivative of vec W in vec B."""
    return eye(m * m) - commutation(m, m) if commute else eye(m * m)


def _by_parameter(
    net: _Monotone, *, commute: bool = True, ordered: bool = True
) -> dict[str, Tensor]:
    r"""Return :math:`D(Z\otimes I)P_A`, :math:`D(Z\otimes I)P_B` and :math:`D(X\otimes I)`."""
    m, z, x = net.model.m, net.s.z, net.s.x
    in_W, in_U = (net.D @ (kron(t, eye(m)) if ordered else kron(eye(m), t)) for t in (z, x))
    A = net.parameters["A"]
    return {
        "A": in_W @ chain_A(A, commute=commute),
        "B": in_W @ chain_B(m, commute=commute),
        "U": in_U,
    }


def _partials(
    seed: int, n: int, m: int, *, commute: bool = True, ordered: bool = True
) -> Iterator[Measurement]:
    """Compare the partial derivatives of g = Z - σ(WZ + UX) with autograd and differences."""
    net = _monotone(seed, n, m)
    yield _clear(net.s.pre)
    yield within("∂_Z g: Kronecker form vs autograd", relative(net.Q, net.in_state()), SAME)
    for name, value in _by_parameter(net, commute=commute, ordered=ordered).items():
        g, theta = partial(net.residual, name), net.parameters[name]
        exact, slopes = jacobian(g, theta), differences(g, theta)
        yield within(f"∂_{name} g: Kronecker form vs autograd", relative(-value, exact), SAME)
        yield within(
            f"∂_{name} g: Kronecker form vs central differences", relative(-value, slopes), CLOSE
        )


def _chain_identities(
    seed: int, *, transposed: bool = True, commute: bool = True
) -> Iterator[Measurement]:
    A = _monotone(seed, 1).parameters["A"]
    m = len(A)
    K, one = commutation(m, m), eye(m * m)
    P_A, P_B = chain_A(A, commute=commute), chain_B(m, commute=commute)
    G = A.mT @ A
    target = (one + K) @ (kron(eye(m), G) + kron(G, eye(m)))
    product = P_A @ (P_A.mT if transposed else P_A)
    yield within("P_A P_Aᵀ vs (I+K)(AᵀA⊕AᵀA)", relative(product, target), SAME)
    yield within("P_B P_Bᵀ vs 2(I-K)", relative(P_B @ P_B.mT, 2 * (one - K)), SAME)
    yield equal("‖I+K‖", operator_norm(one + K), 2, SAME)
    yield equal("‖I-K‖", operator_norm(one - K), 2, SAME)


@claim(
    "nguyen2022.lemma3.2.1",
    title="Monotone DEQ: partial derivatives of g, and the matrices P_A and P_B",
    chapter=CHAPTER,
    ref="lem-mondeq-partials",
)
def monotone_partials(trial: Trial) -> Iterable[Measurement]:
    """Build the Kronecker forms for three samples of width six."""
    yield from _partials(trial.seed, 3, 6)
    yield from _chain_identities(trial.seed)


@monotone_partials.control("P_A P_A in place of P_A P_Aᵀ, as printed")
def not_transposed(trial: Trial) -> Iterable[Measurement]:
    """P_A is not symmetric."""
    found = _chain_identities(trial.seed, transposed=False)
    return [m for m in found if m.name.startswith("P_A")]


@monotone_partials.control("no commutation matrix: the transposes in W forgotten")
def no_commutation(trial: Trial) -> Iterable[Measurement]:
    """AᵀA and B - Bᵀ hold every parameter twice."""
    yield from (
        m for m in _partials(trial.seed, 3, 6, commute=False) if m.name.startswith(("∂_A", "∂_B"))
    )
    yield from (m for m in _chain_identities(trial.seed, commute=False) if m.name.startswith("P_"))


@claim(
    "nguyen2022.lemmaC.0.1",
    title="Partial derivatives of g for a single input: ∂_W g = -D(zᵀ⊗I)",
    chapter=CHAPTER,
    ref="lem-mondeq-partials",
)
def single_partials(trial: Trial) -> Iterable[Measurement]:
    """Repeat the check with one sample, where D is m×m."""
    return _partials(trial.seed, 1, 12)


@single_partials.control("factors in the wrong order: I⊗zᵀ for zᵀ⊗I")
def single_order(trial: Trial) -> Iterable[Measurement]:
    """The gradient in W comes out transposed; A, which enters by AᵀA alone, cannot tell."""
    found = _partials(trial.seed, 1, 12, ordered=False)
    return [m for m in found if m.name.startswith(("∂_B", "∂_U"))]


def _state_derivatives(
    seed: int, *, sign: float = 1.0, ordered: bool = True
) -> Iterator[Measurement]:
    """Compare Q⁻¹D(Z⊗I)P and Q⁻¹D(X⊗I) with autograd and with differences of the equilibrium."""
    net = _monotone(seed, 3)
    yield _clear(net.s.pre)
    for name, right in _by_parameter(net, ordered=ordered).items():
        value = sign * torch.linalg.solve(net.Q, right)
        theta = net.parameters[name]
        auto = jacobian(partial(net.state, name), theta)
        slopes = differences(partial(net.moved, name), theta)
        yield within(f"∂_{name} Z: Kronecker form vs autograd", relative(value, auto), SAME)
        yield within(
            f"∂_{name} Z: Kronecker form vs central differences", relative(value, slopes), CLOSE
        )


@claim(
    "nguyen2022.lemma3.2.2",
    title="Derivatives of the equilibrium: ∂_W vec Z = Q⁻¹D(Z⊗I), then P_A and P_B",
    chapter=CHAPTER,
    ref="lem-mondeq-derivatives",
)
def monotone_derivatives(trial: Trial) -> Iterable[Measurement]:
    """Differentiate the equilibrium of three samples in A, B and U."""
    return _state_derivatives(trial.seed)


@monotone_derivatives.control("the sign of ∂g kept: -Q⁻¹D(Z⊗I)")
def sign_kept(trial: Trial) -> Iterable[Measurement]:
    """The relative error is exactly 2."""
    return [m for m in _state_derivatives(trial.seed, sign=-1.0) if m.name.startswith("∂_")]


def _total_derivative(seed: int, sign: float, *, ordered: bool = True) -> Iterator[Measurement]:
    """Check the proof: along the branch ∂_Z g ∂_θZ + ∂_θ g = 0, with autograd's ∂g."""
    net = _monotone(seed, 3)
    in_z = net.in_state()
    for name, right in _by_parameter(net, ordered=ordered).items():
        direct = jacobian(partial(net.residual, name), net.parameters[name])
        value = sign * torch.linalg.solve(net.Q, right)
        total = float((in_z @ value + direct).norm() / direct.norm())
        yield within(f"‖∂_Z g ∂_{name}Z + ∂_{name} g‖ ÷ ‖∂_{name} g‖", total, SAME)


@claim(
    "nguyen2022.lemmaC.0.2",
    title="The same derivatives from the proof: ∂_Z g ∂_θ Z + ∂_θ g = 0, so every sign is plus",
    chapter=CHAPTER,
    ref="lem-mondeq-derivatives",
)
def derivative_signs(trial: Trial) -> Iterable[Measurement]:
    """Put the formulas into the identity that defines them, and compare with differences."""
    yield from _total_derivative(trial.seed, 1.0)
    yield from _state_derivatives(trial.seed)


@derivative_signs.control("the signs of the appendix as printed: minus")
def printed_signs(trial: Trial) -> Iterable[Measurement]:
    """Both the identity and the differences are missed by a factor 2."""
    yield from _total_derivative(trial.seed, -1.0)
    yield from sign_kept(trial)


@derivative_signs.control("I⊗Z in place of Z⊗I")
def printed_order(trial: Trial) -> Iterable[Measurement]:
    """Samples and units are mixed."""
    yield from _total_derivative(trial.seed, 1.0, ordered=False)
    found = _state_derivatives(trial.seed, ordered=False)
    yield from (m for m in found if m.name.startswith("∂_"))


def _monotone_gradients(seed: int, *, ordered: bool = True) -> Iterator[Measurement]:
    net = _monotone(seed, 3)
    s, model, a = net.s, net.model, net.model.a.detach()
    yield _clear(s.pre)
    out = kron(eye(3), a[None]) if ordered else kron(a[None], eye(3))
    yield within("ŷ: (I_n⊗aᵀ)vec Z vs the model", relative(out @ s.z.flatten(), s.z @ a), SAME)
    left = s.e @ out @ torch.linalg.inv(net.Q)
    formulas = {
        k: unvec(left @ right, net.parameters[k]) for k, right in _by_parameter(net).items()
    }

    def loss(name: str, t: Tensor) -> Tensor:
        return _squares(net.moved(name, t).reshape(len(t), *s.z.shape) @ a, s.y)

    losses: dict[str, Function] = {k: partial(loss, k) for k in formulas}
    formulas["a"] = s.z.mT @ s.e
    losses["a"] = lambda t: _squares(t @ s.z.mT, s.y)
    yield from _three_routes(model, s, formulas, losses)


@claim(
    "nguyen2022.lemma3.2.3",
    title="Gradients of the monotone DEQ in A, B, U and a",
    chapter=CHAPTER,
    ref="lem-mondeq-gradients",
)
def monotone_gradients(trial: Trial) -> Iterable[Measurement]:
    """Compare eᵀ(I_n⊗aᵀ)Q⁻¹D(…) with three other routes."""
    return _monotone_gradients(trial.seed)


@monotone_gradients.control("the read-out aᵀ⊗I_n, as printed")
def printed_readout(trial: Trial) -> Iterable[Measurement]:
    """The predictions themselves are mixed up."""
    found = _monotone_gradients(trial.seed, ordered=False)
    return [m for m in found if m.name.startswith(("ŷ", "∇A", "∇B", "∇U"))]


# --- the monotone DEQ: the adjoint is bounded --------------------------------------------------


def rotation_instance(b: float = 10.0, mu: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """Return W = (1-μ)I + b·[[0, 1], [-1, 0]], with pattern and state for Ux = (1, 0)."""
    W = (1 - mu) * eye(2) + b * torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    z, pre = exact_states(W, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    return W, (pre[0] > 0).double(), z


def _random_patterns(seed: int, draws: int = 400, m: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return monotone matrices, slopes in [0, 1] (half of them 0 or 1) and moduli."""
    g = generator(seed)
    mu = 0.05 + 1.45 * torch.rand(draws, generator=g, dtype=torch.float64)
    size = 3 * torch.rand(draws, 1, 1, generator=g, dtype=torch.float64)
    A, B = size * normal(draws, m, m, g=g), size * normal(draws, m, m, g=g)
    W = (1 - mu)[:, None, None] * eye(m) - A.mT @ A / m + B - B.mT
    D = torch.rand(draws, m, generator=g, dtype=torch.float64)
    D[::2] = D[::2].round()
    return W, D, mu


def _adjoint_matrix(W: Tensor, D: Tensor, *, factor: bool = True) -> Tensor:
    """Return D(I - WᵀD)⁻¹, or the inverse without its left factor."""
    inverse = torch.linalg.inv(eye(W.shape[-1]) - W.mT * D[..., None, :])
    return D[..., None] * inverse if factor else inverse


def _vector_ratio(
    W: Tensor, D: Tensor, a: Tensor, mu: Tensor | float, *, factor: bool = True
) -> float:
    """Return the largest ‖D(I - WᵀD)⁻¹a‖ μ / ‖a‖."""
    v = (_adjoint_matrix(W, D, factor=factor) @ a[..., None])[..., 0]
    return float((v.norm(dim=-1) * mu / a.norm(dim=-1)).max())


def _adjoint_vectors(factor: bool) -> Measurement:
    W, D, _ = rotation_instance()
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return at_most(
        "rotation, b = 10: ‖v‖μ/‖a‖", _vector_ratio(W, D, a, 0.5, factor=factor), 1 + SAME
    )


def _tight_vector(mu: float, slope: float = 1.0) -> Measurement:
    """W = ½I, one unit of slope 1: the bound is attained at μ = ½."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return at_most(
        "W = ½: ‖v‖μ/‖a‖", _vector_ratio(0.5 * one, slope * one[0], one[0], mu), 1 + SAME
    )


@claim(
    "nguyen2022.lemma3.3.2",
    title="The adjoint state is bounded: ‖D(I - WᵀD)⁻¹a‖ ≤ ‖a‖/μ",
    chapter=CHAPTER,
    ref="lem-adjoint-bound",
)
def adjoint_bound(trial: Trial) -> Iterable[Measurement]:
    """Draw monotone matrices, patterns and read-outs; then the two extreme instances."""
    W, D, mu = _random_patterns(trial.seed)
    a = normal(*D.shape, g=trial.g)
    sym = eye(D.shape[1]) - symmetric_part(W)
    modulus = torch.linalg.eigvalsh(sym)[:, 0]
    yield given("least λ_min(I - sym W) - μ", float((modulus - mu).min()), "≥", -SAME)
    yield at_most("largest ‖v‖μ/‖a‖, 400 draws", _vector_ratio(W, D, a, mu), 1 + SAME)
    yield _adjoint_vectors(factor=True)
    yield _tight_vector(0.5)


@adjoint_bound.control("without the factor D on the left, as printed")
def without_pattern(trial: Trial) -> Iterable[Measurement]:
    """The rotation gives 20.1 against the bound 2."""
    yield _adjoint_vectors(factor=False)


@adjoint_bound.control("μ overstated by a factor 2")
def modulus_overstated(trial: Trial) -> Iterable[Measurement]:
    """The tight instance then violates the bound."""
    yield _tight_vector(1.0)


@adjoint_bound.control("a slope above one: σ' = 1.5")
def steep(trial: Trial) -> Iterable[Measurement]:
    """D ≤ I is what turns ⟨y, v⟩ into at least ‖y‖²."""
    yield _tight_vector(0.5, slope=1.5)


def _norm_ratios(
    W: Tensor, D: Tensor, mu: Tensor | float, name: str, *, factor: bool = True
) -> Iterator[Measurement]:
    """Measure ‖D(I - WᵀD)⁻¹‖ and its transpose, and the step of the proof."""
    M = _adjoint_matrix(W, D, factor=factor)
    norms = torch.linalg.matrix_norm(M, 2)
    yield at_most(f"{name}: ‖D(I - WᵀD)⁻¹‖ μ", float((norms * mu).max()), 1 + SAME)
    other = torch.linalg.inv(eye(W.shape[-1]) - D[..., None] * W)
    other = other * D[..., None, :] if factor else other
    norms = torch.linalg.matrix_norm(other, 2)
    yield at_most(f"{name}: ‖(I - DW)⁻¹D‖ μ", float((norms * mu).max()), 1 + SAME)


@claim(
    "nguyen2022.lemmaC.0.4",
    title="For one sample: ‖D(I - WᵀD)⁻¹‖ ≤ 1/μ and ‖(I - DW)⁻¹D‖ ≤ 1/μ",
    chapter=CHAPTER,
    ref="lem-adjoint-bound",
)
def adjoint_norm(trial: Trial) -> Iterable[Measurement]:
    """Take operator norms, and the one inequality of the proof, ⟨y, v⟩ ≥ ‖y‖² for y = Dv."""
    W, D, mu = _random_patterns(trial.seed)
    yield from _norm_ratios(W, D, mu, "400 draws")
    rotation, pattern, _ = rotation_instance()
    yield from _norm_ratios(rotation, pattern, 0.5, "rotation, b = 10")
    yield from _proof_step(W, D, trial.g)


def _proof_step(W: Tensor, D: Tensor, g: torch.Generator) -> Iterator[Measurement]:
    """Measure ⟨y, v⟩ - ‖y‖² for v = Wᵀy + a, y = Dv, relative to ‖v‖²."""
    a = normal(*D.shape, g=g)
    v = (_adjoint_matrix(W, D, factor=False) @ a[..., None])[..., 0]
    y = D * v
    gap = ((y * v).sum(-1) - y.pow(2).sum(-1)) / v.pow(2).sum(-1)
    yield at_least("least (⟨y,v⟩ - ‖y‖²)/‖v‖², y = Dv", float(gap.min()), -SAME)


@adjoint_norm.control("without the factor D: the bound as printed")
def norm_without_pattern(trial: Trial) -> Iterable[Measurement]:
    """The inverse alone grows with the rotation, not with 1/μ."""
    rotation, pattern, _ = rotation_instance()
    return list(_norm_ratios(rotation, pattern, 0.5, "rotation, b = 10", factor=False))


@adjoint_norm.control("slopes up to 2 instead of at most 1")
def steep_pattern(trial: Trial) -> Iterable[Measurement]:
    """The step of the proof fails, whatever the matrix."""
    W, D, _ = _random_patterns(trial.seed)
    return list(_proof_step(W, 2 * D, trial.g))


def _batch_bound(
    net: _Monotone, name: str, *, mu: float | None = None, factor: bool = True
) -> Iterator[Measurement]:
    """Measure ‖Q⁻¹D‖ and ‖(I_n⊗aᵀ)Q⁻¹D‖ at an equilibrium."""
    mu = net.model.mu if mu is None else mu
    a = net.model.a.detach()
    M = torch.linalg.inv(net.Q)
    M = M @ net.D if factor else M
    yield at_most(f"{name}: ‖Q⁻¹D‖ μ", operator_norm(M) * mu, 1 + SAME)
    read = kron(eye(len(net.s.z)), a[None]) @ M
    yield at_most(
        f"{name}: ‖(I_n⊗aᵀ)Q⁻¹D‖ μ/‖a‖", operator_norm(read) * mu / float(a.norm()), 1 + SAME
    )


def _small_monotone(B: Tensor, a: Tensor, x: Tensor, mu: float = 0.5) -> _Monotone:
    """Return the model with A = 0, U = I and the given skew part, at its equilibrium."""
    m = len(a)
    model = MonDEQ(torch.zeros(m, m, dtype=torch.float64), B, eye(m), a, mu)
    return _Monotone(model, _at_equilibrium(model, x, torch.zeros(len(x), dtype=torch.float64)))


def _rotating() -> _Monotone:
    """Two samples in the pattern (1, 0) of the rotation, read out along the first unit."""
    B = torch.tensor([[0.0, 10.0], [0.0, 0.0]], dtype=torch.float64)
    x = torch.tensor([[1.0, 0.0], [2.0, -1.0]], dtype=torch.float64)
    return _small_monotone(B, torch.tensor([1.0, 0.0], dtype=torch.float64), x)


def _still() -> _Monotone:
    """W = ½I with all units active attains the bound."""
    one = torch.ones(3, 2, dtype=torch.float64)
    return _small_monotone(torch.zeros(2, 2, dtype=torch.float64), one[0], one)


@claim(
    "nguyen2022.lemmaC.0.5",
    title="For a batch: ‖Q⁻¹D‖ ≤ 1/μ and ‖(I_n⊗aᵀ)Q⁻¹D‖ ≤ ‖a‖/μ",
    chapter=CHAPTER,
    ref="lem-adjoint-bound",
)
def batch_adjoint_bound(trial: Trial) -> Iterable[Measurement]:
    """Build Q at true equilibria: a random model, a rotation, and one that is tight."""
    yield from _batch_bound(_monotone(trial.seed, 5), "random")
    yield from _batch_bound(_rotating(), "rotation")
    yield from _batch_bound(_still(), "W = ½I")


@batch_adjoint_bound.control("without the factor D")
def batch_without_pattern(trial: Trial) -> Iterable[Measurement]:
    """Q⁻¹ alone is as large as the rotation."""
    return list(_batch_bound(_rotating(), "rotation", factor=False))


@batch_adjoint_bound.control("μ overstated by a factor 2")
def batch_modulus(trial: Trial) -> Iterable[Measurement]:
    """The tight instance then violates both bounds."""
    return list(_batch_bound(_still(), "W = ½I", mu=1.0))


# --- unrolled against implicit -----------------------------------------------------------------


def _soft(t: Tensor) -> Tensor:
    return 0.3 * t + 0.7 * (F.softplus(t) - math.log(2.0))


def _no_prox(p: Tensor, alpha: float) -> Tensor:
    raise NotImplementedError("this activation is only differentiated, never split.")


SOFT = Activation("0.3t + 0.7 softplus", _soft, lambda t: 0.3 + 0.7 * torch.sigmoid(t), _no_prox)


@dataclass(frozen=True)
class _Unrolled:
    """The iteration z ← β_k s(z) + (1-β_k)T(z) with s(z) = (1-γλ_k)z - γ∇R(z), R = ½⟨w,z⟩²."""

    model: DeepOptEq
    x: Tensor
    start: Tensor
    w: Tensor
    steps: int = 6
    gamma: float = 0.25

    def beta(self, k: int) -> float:
        return 0.5 / k**0.4

    def decay(self, k: int) -> float:
        return 0.5 / k**0.2

    def parameters(self) -> dict[str, Tensor]:
        lists = (("W", self.model.Ws), ("U", self.model.Us), ("b", self.model.bs))
        return {f"{k}{i + 1}": p.detach() for k, ps in lists for i, p in enumerate(ps)}

    def layers(self, now: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return (W_l, U_l x + b_l), also for a stack of values of one parameter."""
        return [
            (now[f"W{i}"], self.x @ now[f"U{i}"].mT + now[f"b{i}"].unsqueeze(-2)) for i in (1, 2)
        ]

    def selection(self, z: Tensor, k: int) -> Tensor:
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


def _unrolled(seed: int) -> _Unrolled:
    model = DeepOptEq.init_deep(5, 3, widths=[4, 4], norm=0.9, alpha=0.6, sigma=SOFT, seed=seed)
    g = generator(seed + 100)
    x, start, w = normal(3, 3, g=g), normal(3, 5, g=g), normal(5, g=g)
    return _Unrolled(model, x, start, w / w.norm())


def _recursion(run: _Unrolled, *, damped: bool = True) -> dict[str, Tensor]:
    """Propagate the Jacobians of the state by the lemma, with dense Kronecker matrices."""
    n, m = run.start.shape
    alpha, layers = run.model.alpha, run.layers(run.parameters())
    size = n * m
    total = {
        k: torch.zeros(size, p.numel(), dtype=torch.float64) for k, p in run.parameters().items()
    }
    V_R = kron(eye(n), torch.outer(run.w, run.w))  # the Hessian of R
    z = run.start
    for k in range(1, run.steps + 1):
        beta, y = run.beta(k), z
        E, source = [], []
        for W, q in layers:
            h = len(W)
            pre = y @ W.mT + q
            D = torch.diag(SOFT.slope(pre).flatten())
            back = kron(eye(n), W.mT) @ D
            E.append(alpha * back @ kron(eye(n), W) + (1 - alpha) * eye(size))
            in_W = kron(SOFT(pre), eye(m)) @ commutation(h, m)
            in_W = in_W + back @ kron(y, eye(h))
            in_U = back @ kron(run.x, eye(h))
            in_b = back @ kron(torch.ones(n, 1, dtype=torch.float64), eye(h))
            source.append({"W": alpha * in_W, "U": alpha * in_U, "b": alpha * in_b})
            y = alpha * SOFT(pre) @ W + (1 - alpha) * y
        after = [E[1], eye(size)]  # A(k, l+1)
        V = (1 - run.gamma * run.decay(k)) * eye(size) - run.gamma * V_R
        step = beta * V + (1 - beta) * E[1] @ E[0]
        weight = 1 - beta if damped else 1.0
        total = {
            name: step @ J + weight * after[int(name[1]) - 1] @ source[int(name[1]) - 1][name[0]]
            for name, J in total.items()
        }
        z = beta * run.selection(z, k) + (1 - beta) * y
    return total


def _unrolled_derivatives(seed: int, *, damped: bool = True) -> Iterator[Measurement]:
    run = _unrolled(seed)
    for name, value in _recursion(run, damped=damped).items():
        function, theta = partial(run.run, name), run.parameters()[name]
        yield within(
            f"∂z/∂{name}: recursion vs autograd", relative(value, jacobian(function, theta)), SAME
        )
        yield within(
            f"∂z/∂{name}: recursion vs central differences",
            relative(value, differences(function, theta)),
            CLOSE,
        )


@claim(
    "xie2022.lemma11",
    title="Derivatives of the unrolled iteration obey a recursion with source (1-β)A ∂f_l",
    chapter=CHAPTER,
    ref="lem-unrolled",
)
def unrolled_recursion(trial: Trial) -> Iterable[Measurement]:
    """Run six steps of a two-layer OptEq with a selection term, all matrices dense."""
    return _unrolled_derivatives(trial.seed)


@unrolled_recursion.control("the factor 1-β dropped from the source term, as printed")
def undamped_source(trial: Trial) -> Iterable[Measurement]:
    """Every derivative is off by tens of per cent."""
    return list(_unrolled_derivatives(trial.seed, damped=False))


def _stop_after(steps: int) -> Find:
    """Return a finder that iterates plainly and stops after so many steps, converged or not."""
    return lambda f, z0: fixed_point(
        f, z0, solver=Picard(), tol=1e-14, max_steps=steps, throw=False
    )


@dataclass(frozen=True)
class _Training:
    """A two-layer OptEq, its loss ½‖ŷ-y‖², and the ways to differentiate it in W_1."""

    model: DeepOptEq
    x: Tensor
    y: Tensor

    @property
    def modulus(self) -> float:
        """Return the contraction modulus of the cell that the norms certify."""
        alpha = self.model.alpha
        norms = [operator_norm(W.detach()) for W in self.model.Ws]
        return math.prod(alpha * norm**2 + 1 - alpha for norm in norms)

    def loss(self, find: Find, adjoint: Adjoint) -> Tensor:
        model = self.model
        q = model.inject(self.x)
        z = equilibrium(model.f, model.start(q), q, *model.Ws, solver=find, adjoint=adjoint)
        return 0.5 * (model.readout(z, q) - self.y).pow(2).sum()

    def gradient(self, find: Find, adjoint: Adjoint) -> Tensor:
        return torch.autograd.grad(self.loss(find, adjoint), self.model.Ws[0])[0]

    def stored(self, find: Find, adjoint: Adjoint) -> int:
        """Return the bytes that the forward pass keeps for the backward pass."""
        kept: dict[int, int] = {}

        def keep(t: Tensor) -> Tensor:
            kept[t.data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            held = self.loss(find, adjoint)
        assert held.requires_grad
        return sum(kept.values())

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


def _training(seed: int) -> _Training:
    model = DeepOptEq.init_deep(8, 4, widths=[8, 8], norm=0.95, alpha=0.45, sigma=SOFT, seed=seed)
    g = generator(seed + 100)
    return _Training(model, normal(4, 4, g=g), normal(4, 1, g=g))


def _trained_gradient(seed: int, find: Find, adjoint: Adjoint) -> Measurement:
    task = _training(seed)
    W = task.model.Ws[0].detach()
    slopes = unvec(differences(task.moved, W), W)
    return within(
        "gradient vs central differences of the equilibrium's loss",
        relative(task.gradient(find, adjoint), slopes),
        CLOSE,
    )


def _memory(seed: int, adjoint: Callable[[int], Adjoint]) -> Measurement:
    task = _training(seed)
    few, many = (task.stored(_stop_after(k), adjoint(k)) for k in (10, 40))
    return equal("bytes stored: 40 steps ÷ 10 steps", many / few, 1, 1e-9)


@claim(
    "xie2022.appendixB",
    title="Implicit gradients are exact at constant memory; unrolled ones tend to them",
    chapter=CHAPTER,
    ref="prop-unrolled-implicit",
)
def unrolled_or_implicit(trial: Trial) -> Iterable[Measurement]:
    """Compare both with central differences, count bytes, and follow two errors."""
    task, solved = _training(trial.seed), _stop_after(400)
    yield given("contraction modulus κ of the cell", task.modulus, "≤", 1.0)
    yield _trained_gradient(trial.seed, solved, EXACT)
    exact = task.gradient(solved, EXACT)
    error = {k: relative(task.gradient(solved, Unroll(k)), exact) for k in (20, 40, 200)}
    yield within("unrolled, K = 200, vs implicit", error[200], SAME)
    rate = (error[40] / error[20] / 2) ** (1 / 20)  # the error is O(Kκ^K)
    yield at_most("unrolled: (error ÷ K)^(1/K) from K = 20 to 40, ÷ κ", rate / task.modulus, 1.0)
    early = {k: relative(task.gradient(_stop_after(k), EXACT), exact) for k in (10, 30)}
    rate = (early[30] / early[10]) ** (1 / 20)  # the error is O(κ^K)
    yield at_most("implicit after K steps: the same, 10 to 30, ÷ κ", rate / task.modulus, 1.0)
    yield _memory(trial.seed, lambda k: EXACT)
    bytes_ = [task.stored(solved, Unroll(k)) for k in (10, 20, 40)]
    growth = (bytes_[2] - bytes_[1]) / (bytes_[1] - bytes_[0])
    yield equal("unrolled: bytes of steps 21 to 40 ÷ of steps 11 to 20", growth, 2, 1e-9)


@unrolled_or_implicit.control("unrolled K = 5 steps")
def five_steps(trial: Trial) -> Iterable[Measurement]:
    """The gradient of a five-step network is not that of the equilibrium."""
    yield _trained_gradient(trial.seed, _stop_after(400), Unroll(5))


@unrolled_or_implicit.control("the implicit formula at a state that has not converged: 5 steps")
def unconverged(trial: Trial) -> Iterable[Measurement]:
    """The theorem speaks of equilibria only."""
    yield _trained_gradient(trial.seed, _stop_after(5), EXACT)


@unrolled_or_implicit.control("memory of unrolling")
def unrolled_memory(trial: Trial) -> Iterable[Measurement]:
    """Every step is kept."""
    yield _memory(trial.seed, lambda k: Unroll(k))
