"""Chapter 2, implicit gradients: fifteen claims of the sources, two of the book.

The sources state their derivatives with Kronecker products. Here those matrices are built, at tiny
sizes, and compared with two routes that know nothing of them: automatic differentiation through the
implicit solve, and central differences through an exact solver. Each factor of a formula that a
control spoils is a keyword, so that *the same* measurement is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from deqbook.claims import (
    Evidence,
    Measurement,
    at_least,
    at_most,
    chapter,
    checks,
    equal,
    given,
    headline,
    within,
)
from deqbook.implicit import JFB, Adjoint, Find, Unroll, equilibrium
from deqbook.linalg import (
    commutation,
    eye,
    kron,
    operator_norm,
    relative,
    symmetric_part,
    unvec,
    vec,
)
from deqbook.models import ReLUImplicit, VanillaDEQ, gradient
from deqbook.pages.p02_implicit_gradients import lab
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Map, Newton, Picard, Solution, fixed_point

claim = chapter("02_implicit_gradients")

SAME = 1e-10  # between two exact routes
CLOSE = 1e-6  # between an exact route and central differences
ROUNDING = 1e-10  # by which a bound that is attained may be exceeded


def _same(name: str, value: Tensor, target: Tensor) -> Measurement:
    return within(name, relative(value, target), SAME)


def _close(name: str, value: Tensor, slopes: Tensor) -> Measurement:
    return within(f"{name} vs central differences", relative(value, slopes), CLOSE)


def _two_routes(name: str, value: Tensor, auto: Tensor, slopes: Tensor) -> Iterator[Measurement]:
    yield _same(f"{name} vs autograd", value, auto)
    yield _close(name, value, slopes)


def _three_routes(
    model: lab.Dense,
    s: lab.Sample,
    formulas: Mapping[str, Tensor],
    losses: Mapping[str, lab.Function],
) -> Iterator[Measurement]:
    auto = lab.autograd(model, s)
    closed = gradient(model, s.x, s.y, z0=s.z, adjoint_solver=Newton(), tol=1e-13).grads
    for name, value in formulas.items():
        slopes = lab.difference_gradient(losses[name], getattr(model, name).detach())
        yield from _two_routes(f"∇{name}: formula", value, auto[name], slopes)
        yield _same(f"∇{name}: formula vs batched closed form", value, closed[name])


def _clear(*pre: Tensor) -> Measurement:
    # central differences must stay on one side of every kink
    return given("least |pre-activation| ÷ step of differences", lab.clearance(*pre), "≥", 10)


# --- the implicit function theorem -------------------------------------------------------------


def _tanh_branch(trial):
    norm = 0.9
    W = normal(6, 6, g=trial.g)
    W, p = W * (norm / operator_norm(W)), normal(1, 6, g=trial.g)

    def cell(z: Tensor, p: Tensor) -> Tensor:
        return torch.tanh(z @ W.mT + p)

    def branch(p: Tensor) -> Tensor:
        p = p.reshape(-1, 6)
        start = torch.zeros_like(p)
        return fixed_point(lambda z: cell(z, p), start, solver=Newton(), tol=1e-14, throw=False).z

    z = branch(p)
    in_z = eye(6) - lab.jacobian(lambda z: cell(z, p), z)
    derivative = torch.linalg.solve(in_z, lab.jacobian(lambda p: cell(z, p), p))
    yield given("σ_min(I - ∂_z f)", float(torch.linalg.svdvals(in_z)[-1]), "≥", 1 - norm)
    yield _close("(I - ∂_z f)⁻¹∂_p f", derivative, lab.differences(branch, p))
    auto = lab.jacobian(lambda p: lab.newton_state(cell, z, p, tol=1e-14), p)
    yield _same("(I - ∂_z f)⁻¹∂_p f vs autograd", derivative, auto)


FOLD = 0.5 * math.acosh(math.sqrt(2.0))  # where ∂_z(z - tanh 2z) = 0


def _scalar(z: Tensor) -> Tensor:
    return z - torch.tanh(2 * z)  # equals p on the branches


def _fold(trial, *, at=FOLD + 0.3):
    point = torch.tensor(at, dtype=torch.float64)
    grid = at + torch.linspace(-0.1, 0.1, 2001, dtype=torch.float64)
    for name, h in (("p - 0.01", -0.01), ("p + 0.01", 0.01)):
        side = torch.sign(_scalar(grid) - _scalar(point) - h)
        roots = int((side[1:] != side[:-1]).sum())
        yield equal(f"solutions of z - tanh 2z = {name} near z", roots, 1, 0)
    slope = float(torch.func.grad(_scalar)(point))
    yield given("|∂_z(z - tanh 2z)| at that z", abs(slope), "≥", 0.1)


@claim(
    "nguyen2022.theoremA.0.1",
    "Where I - ∂_z f is invertible one smooth branch passes, with slope (I-∂_z f)⁻¹∂_p f",
    "thm-ift",
)
def implicit_function(trial):
    yield from _tanh_branch(trial)
    yield from _fold(trial)


implicit_function.breaks(
    "∂_z(z - tanh 2z) = 0: at the fold two solutions meet and vanish",
    "solutions",
    part=_fold,
    at=FOLD,
)


# --- the adjoint equation ----------------------------------------------------------------------


def _plainly(J: Tensor, g: Tensor) -> Solution:
    """Iterate v ← Jᵀv + g to three digits."""
    return fixed_point(
        lambda v: v @ J + g, g, solver=Picard(), tol=1e-3, max_steps=200, throw=False
    )


def _adjoint_rate(trial, *, kappa=0.9):
    w = torch.nn.functional.normalize(normal(6, g=trial.g), dim=0)
    drawn = normal(6, 6, g=trial.g)
    for name, J in (("random", drawn / operator_norm(drawn)), ("J = κwwᵀ", torch.outer(w, w))):
        J = kappa * J
        g = normal(1, 6, g=trial.g) if name == "random" else w[None]
        v = torch.linalg.solve(eye(6) - J.mT, g[0])[None]
        found = _plainly(J, g)
        left = float((found.z - v).norm() / (g - v).norm()) / 0.9 ** int(found.steps.max())
        yield headline(at_most(f"{name}: error of v ÷ κ^k", left, 1 + 1e-6))
    yield equal("J = κwwᵀ: attained", left, 1.0, 1e-6)


def _displaced(by: float) -> Find:
    """Return a solver whose answer is off by a given length."""

    def find(f: Map, z0: Tensor) -> Solution:
        found = fixed_point(f, z0, solver=Picard(), tol=1e-13, max_steps=2000, throw=False)
        return replace(found, z=found.z - by / math.sqrt(found.z.numel()))

    return find


def _off(trial, *, kink=False):
    errors = []
    for by in (0.0, 1e-4, 1e-3):
        if kink:  # z = σ(z/2 + θ), whose state is 2e-9 from the kink

            def cell(z: Tensor, theta: Tensor) -> Tensor:
                return torch.relu(0.5 * z + theta)

            theta = torch.full((1, 1), 1e-9, dtype=torch.float64, requires_grad=True)
            start = torch.zeros(1, 1, dtype=torch.float64)
            z = equilibrium(cell, start, theta, solver=_displaced(by), adjoint=lab.BY_NEWTON)
            errors.append(torch.autograd.grad(z.sum(), theta)[0])
        else:
            errors.append(lab.training(trial.seed).gradient(_displaced(by), lab.BY_NEWTON))
    exact, small, large = errors
    ratio = float((large - exact).norm() / (small - exact).norm())
    yield equal("error of the gradient: forward solve off by 1e-3 ÷ by 1e-4", ratio, 10, 0.5)


@claim(
    "book.prop-adjoint",
    "The adjoint is found with factor κ; a solve that is off by δ costs O(δ)",
    "prop-adjoint",
)
def adjoint_equation(trial):
    yield from _adjoint_rate(trial)
    # the worst direction of an error of v is the top singular vector of ∂_θ f
    M = normal(6, 9, g=trial.g)
    worst = torch.linalg.svd(M)[0][:, 0]
    errors = torch.cat([normal(200, 6, g=trial.g), worst[None]])
    ratios = (errors @ M).norm(dim=1) / (operator_norm(M) * errors.norm(dim=1))
    yield headline(
        at_most("error of the gradient ÷ ‖∂_θf‖‖error of v‖", ratios.max(), 1 + ROUNDING)
    )
    task = lab.training(trial.seed)
    slopes = lab.difference_gradient(task.moved, task.model.Ws[0].detach())
    yield _close("∇𝓛 in W_1", task.gradient(_displaced(0.0), lab.BY_NEWTON), slopes)
    yield from _off(trial)


adjoint_equation.breaks("‖J‖ = 1.02", "J = κwwᵀ", part=_adjoint_rate, kappa=1.02)
adjoint_equation.breaks("derivatives not Lipschitz: a unit rests at its kink", part=_off, kink=True)


def _cheap_and_true(J: Tensor, M: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ⟨g, z⟩ in θ by JFB and exactly, for the cell Jz + Mθ."""
    theta = torch.zeros(1, M.shape[1], dtype=M.dtype, requires_grad=True)
    start = torch.zeros(1, len(J), dtype=M.dtype)

    def by(adjoint: Adjoint) -> Tensor:
        z = equilibrium(lambda z, t: z @ J.mT + t @ M.mT, start, theta, adjoint=adjoint)
        return torch.autograd.grad((z * g).sum(), theta)[0]

    return by(JFB()), by(lab.BY_NEWTON)


def _jfb(trial, *, share=0.98, chi=3.0):
    size, columns = 5, 8
    Q, R = (torch.linalg.qr(normal(k, k, g=trial.g))[0] for k in (size, columns))
    values = torch.linspace(1.0, 3.0, size, dtype=torch.float64)
    M = (Q * values) @ R[:size]
    A, limit = M @ M.mT, 2 * chi / (1 + chi**2)
    kappa = share * limit
    # random J and g
    J = normal(300, size, size, g=trial.g)
    J = kappa * J / torch.linalg.matrix_norm(J, 2)[:, None, None]
    g = normal(300, size, g=trial.g)
    v = torch.linalg.solve(eye(size) - J.mT, g)
    inner, scale = ((g @ A) * v).sum(dim=1), v.norm(dim=1) * (v @ A).norm(dim=1)
    least = float((inner / scale).min())
    yield at_least("random: ⟨JFB, true⟩ ÷ ‖v‖‖∂_θf ∂_θfᵀv‖", least, limit - kappa)
    # the worst: v mixes the two extreme directions, and Jᵀv opposes it as far as it can
    v = 3 * Q[:, 0] + Q[:, -1]
    worst = kappa * torch.outer(v, A @ v) / (v.norm() * (A @ v).norm())
    cheap, true = _cheap_and_true(worst, M, v - v @ worst)
    left = float((cheap * true).sum()) / float(v.norm() * (A @ v).norm())
    yield headline(at_least("worst: the same", left, limit - kappa - 1e-9))
    yield equal("worst: attained", left, limit - kappa, 1e-9)
    yield at_least("worst: ⟨JFB, true⟩", float((cheap * true).sum()), 0.0)


def _one_parameter(trial, *, columns=2):
    R = 0.9 * torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    g = torch.tensor([1.0, 2.0], dtype=torch.float64)
    cheap, true = _cheap_and_true(R, eye(2)[:, :columns], g)
    yield at_least("rotation of the page: ⟨JFB, true⟩", float((cheap * true).sum()), 0.0)


@claim(
    "book.prop-jfb",
    "JFB descends if κ < 2χ/(1+χ²), with χ the condition number of ∂_θf",
    "prop-jfb",
)
def when_jfb_descends(trial):
    yield from _jfb(trial)
    yield from _one_parameter(trial)


when_jfb_descends.breaks("κ two per cent above 2χ/(1+χ²)", "worst: ⟨", part=_jfb, share=1.02)
when_jfb_descends.breaks("χ understated: 2.5 for 3", "worst: the same", part=_jfb, chi=2.5)
when_jfb_descends.breaks("not of full row rank: one parameter", part=_one_parameter, columns=1)


# --- ReLU implicit networks --------------------------------------------------------------------


def _relu_partials(model: ReLUImplicit, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ∂_z F, ∂_W F and ∂_U F of one sample, F = z - f, by automatic differentiation."""
    W, U = model.W.detach(), model.U.detach()

    def F(z: Tensor, W: Tensor, U: Tensor) -> Tensor:
        q = torch.relu(x @ U.mT) / math.sqrt(model.m)
        return z - torch.relu(model.scale * z @ W.mT + q)

    return (
        lab.jacobian(lambda t: F(t, W, U), z),
        lab.jacobian(lambda t: F(z, t, U), W),
        lab.jacobian(lambda t: F(z, W, t), U),
    )


def _relu_formulas(trial, *, scaled=True, through_state=True):
    model = ReLUImplicit.init(8, 3, gamma=0.3, seed=trial.seed)
    W, U, a, c = (p.detach() for p in (model.W, model.U, model.a, model.c))
    x, y = sphere(4, 3, trial.seed + 100), normal(4, g=generator(trial.seed + 200))
    s, scale, root = lab.at_equilibrium(model, x, y), model.scale, math.sqrt(model.m)
    yield given("γ̃‖W‖", scale * operator_norm(W), "≤", 1.0)
    yield _clear(s.pre, x @ U.mT)
    in_W, in_U, errors = torch.zeros_like(vec(W)), torch.zeros_like(vec(U)), []
    for xi, zi, pre, features, e in zip(x[:, None], s.z[:, None], s.pre, x @ U.mT, s.e):
        D, E = (torch.diag((t > 0).double()) for t in (pre, features))
        F_z = eye(model.m) - scale * D @ W
        F_W = -(scale if scaled else 1.0) * kron(zi, D)
        F_U = -D @ kron(xi, E) / root
        exact = _relu_partials(model, xi, zi)
        errors.append([relative(form, t) for form, t in zip((F_z, F_W, F_U), exact)])
        adjoint = torch.linalg.solve(F_z.mT, a)
        in_W = in_W - e * F_W.mT @ adjoint
        if through_state:
            in_U = in_U - e * F_U.mT @ adjoint
        in_U = in_U + e * kron(xi, E).mT @ c / root  # the second path: c reads out φ as well
    for name, values in zip(("∂_z F", "∂_W F", "∂_U F"), zip(*errors)):
        yield within(f"{name}: Kronecker form vs autograd", max(values), SAME)

    def loss(W: Tensor, q: Tensor, a: Tensor, c: Tensor) -> Tensor:
        z = lab.exact_states(scale * W, q)[0]
        return lab.squares((z * a).sum(-1) + (q * c).sum(-1), y)

    yield from _three_routes(
        model,
        s,
        {"W": unvec(in_W, W), "U": unvec(in_U, U), "a": s.z.mT @ s.e, "c": s.q.mT @ s.e},
        {
            "W": lambda t: loss(t, s.q, a, c),
            "U": lambda t: loss(W, torch.relu(x @ t.mT) / root, a, c),
            "a": lambda t: loss(W, s.q, t[:, None], c),
            "c": lambda t: loss(W, s.q, a, t[:, None]),
        },
    )


def _relu_invertible(trial, *, gamma=None):
    gamma0, g = 0.5, generator(trial.seed)
    W = normal(100, 100, g=g)
    slopes = torch.rand(20, 100, generator=g, dtype=torch.float64)
    slopes[:10] = slopes[:10].round()
    slopes[0] = 1  # all units active: the worst at a large γ
    scale = gamma0 / operator_norm(W) if gamma is None else gamma / 10
    J = eye(100) - scale * slopes[:, :, None] * W
    least = float(torch.linalg.svdvals(J)[:, -1].min())
    yield headline(at_least("min σ_min(I - γ̃DW) ÷ (1-γ₀)", least / (1 - gamma0), 1.0))
    values = torch.linalg.eigvals(J)
    yield at_least("min Re λ(I - γ̃DW) ÷ (1-γ₀)", float(values.real.min()) / (1 - gamma0), 1.0)


@claim(
    "gao2022.lemma2.3",
    "ReLU network: partial derivatives, σ_min(I - γ̃DW) ≥ 1-γ₀, and the four gradients",
    "lem-relu-gradients",
)
def relu_gradients(trial):
    yield from _relu_formulas(trial)
    yield from _relu_invertible(trial)
    w = normal(100, 1, g=trial.g)
    tight = 0.5 * w @ w.mT / w.pow(2).sum()  # γ̃W of rank one and norm γ₀
    least = float(torch.linalg.svdvals(eye(100) - tight)[-1]) / 0.5
    yield headline(at_least("W = wwᵀ: σ_min(I - γ̃W) ÷ (1-γ₀)", least, 1 - ROUNDING))
    yield equal("W = wwᵀ: attained", least, 1.0, ROUNDING)


relu_gradients.breaks("the factor γ̃ dropped in ∂_W", "∂_W", "∇W", part=_relu_formulas, scaled=False)
relu_gradients.breaks(
    "only one path: U acts through φ alone, not through the state",
    "∇U",
    part=_relu_formulas,
    through_state=False,
)
relu_gradients.breaks("γ = 1 instead of γ ≤ γ₀√m/‖W‖ ≈ 0.25", part=_relu_invertible, gamma=1.0)


def _implicit_only_value(net: lab.ImplicitOnly, e: Tensor, *, factor: bool = True) -> Tensor:
    """Return the gradient in A from the Kronecker form of the whole batch."""
    n, m = net.shape
    Z, pre = net.states(net.A)
    D, Q = net.big(pre)
    J = kron(net.b[None], eye(n)) @ torch.linalg.solve(Q, D)
    in_A = kron(eye(m), Z).mT @ J.mT @ e
    return unvec(in_A * (net.scale / math.sqrt(m) if factor else 1.0), net.A)


def _size(net: lab.ImplicitOnly, value: Tensor, e: Tensor) -> float:
    """Return ‖∇W‖_F ÷ (γ̃/√m)‖b‖‖Z‖‖e‖/(1-γ̃‖W‖)."""
    Z, _ = net.states(net.A)
    size = net.scale / math.sqrt(net.shape[1]) * net.b.norm() * Z.norm() * e.norm()
    return float(value.norm() / size) * (1 - net.scale * operator_norm(net.A))


@claim(
    "gao2023.gradient",
    "Only W trained: ∇W = γ̃ Vᵀdiag(e)Z, with one adjoint state v_i for each sample",
    "prop-implicit-only-gradient",
)
def implicit_only_gradient(trial, *, factor=True):
    model, x, net = lab.implicit_only(trial.seed)
    n, m = net.shape
    Z, pre = net.states(net.A)
    yield _clear(pre / math.sqrt(m))
    y = normal(n, g=generator(trial.seed + 200))
    e = Z @ net.b / math.sqrt(m) - y
    yield given("γ̃‖W‖", net.scale * operator_norm(net.A), "≤", 1.0)
    D, Q = net.big(pre)
    J = kron(net.b[None], eye(n)) @ torch.linalg.solve(Q, D)
    blocks = J.reshape(n, m, n)  # row i, unit r, sample j
    outside = blocks * (1 - eye(n))[:, None, :]
    yield within("entries of V across samples", float(outside.abs().max()), 1e-12)
    rows = torch.stack([blocks[i, :, i] for i in range(n)])
    yield _same("rows of V vs sample by sample", rows, net.adjoints(net.A, pre))
    value = _implicit_only_value(net, e, factor=factor)

    def loss(W: Tensor) -> Tensor:
        return lab.squares(net.states(W.mT)[0] @ net.b / math.sqrt(m), y)

    yield from _three_routes(model, lab.at_equilibrium(model, x, y), {"W": value.mT}, {"W": loss})
    yield headline(at_most("‖∇W‖_F ÷ its bound", _size(net, value, e), 1.0))
    aligned, one = lab.aligned_implicit_only(), torch.ones(1, dtype=torch.float64)
    top = _size(aligned, _implicit_only_value(aligned, one, factor=factor), one)
    yield headline(at_most("aligned: ‖∇W‖_F ÷ its bound", top, 1 + ROUNDING))
    yield equal("aligned: attained", top, 1.0, ROUNDING)


implicit_only_gradient.breaks(
    "the factor dropped: γ̃, in the source's scaling γ̃/√m", "∇W", factor=False
)


def _adjoint_by_sample(net: lab.ImplicitOnly, pre: Tensor) -> Tensor:
    """Return the columns vec(dJ) of dJ_i = γ̃ D_i(I - γ̃AD_i)⁻¹ dA J_i, dA running over entries."""
    m = net.shape[1]
    D, J = (pre > 0).double(), net.adjoints(net.A, pre)
    inverse = torch.linalg.inv(eye(m) - net.scale * net.A * D[:, None, :])
    moves = unvec(eye(m * m), net.A)
    dJ = net.scale * D[:, None] * torch.einsum("nrs,kst,nt->nkr", inverse, moves, J)
    return vec(dJ.movedim(1, 0)).mT


def _adjoint_by_kronecker(net: lab.ImplicitOnly, pre: Tensor, *, ordered: bool) -> Tensor:
    """Return the same columns from dJᵀ = γ̃ DQ⁻ᵀ (dA⊗I_n) DQ⁻ᵀ (b⊗I_n) of the whole batch."""
    n, m = net.shape
    D, Q = net.big(pre)
    middle, B = D @ torch.linalg.inv(Q.mT), kron(net.b[:, None], eye(n))
    columns = []
    for dA in unvec(eye(m * m), net.A):
        inner = kron(dA, eye(n)) if ordered else kron(eye(n), dA)
        full = (net.scale * middle @ inner @ middle @ B).reshape(m, n, n)  # unit, sample, row
        columns.append(full.diagonal(dim1=1, dim2=2).flatten())  # the rows of J's own samples
    return torch.stack(columns, dim=1)


@claim(
    "gao2023.lemma3.2",
    "Derivatives of states and adjoints in W: dv_i = γ̃ D_i(I - γ̃WᵀD_i)⁻¹ dWᵀ v_i",
    "lem-adjoint-derivative",
)
def adjoint_derivative(trial, *, ordered=True, at_kink=False):
    _, _, net = lab.implicit_only(trial.seed)
    net = lab.to_the_kink(net) if at_kink else net
    yield given("γ̃‖W‖", net.scale * operator_norm(net.A), "≤", 1.0)
    Z, pre = net.states(net.A)
    yield _clear(pre)
    D, Q = net.big(pre)
    in_Z = net.scale * torch.linalg.solve(Q, D @ kron(eye(net.shape[1]), Z))
    slopes = lab.differences(lambda A: vec(net.states(A)[0]), net.A)
    yield _close("dZ: Kronecker form", in_Z, slopes)

    def state(A: Tensor, Phi: Tensor) -> Tensor:
        return lab.newton_state(lambda Z, A, Phi: torch.relu(net.scale * Z @ A + Phi), Z, A, Phi)

    auto = lab.jacobian(lambda A: state(A, net.Phi).mT, net.A)
    yield _same("dZ: Kronecker form vs autograd", in_Z, auto)
    in_J = _adjoint_by_sample(net, pre)
    slopes = lab.differences(lambda A: vec(net.adjoints(A, net.states(A)[1])), net.A)
    yield _close("dv: sample by sample", in_J, slopes)
    # J_i is the gradient of bᵀz_i in its features, so dJ is a second derivative of the equilibrium
    in_Phi = torch.func.grad(lambda Phi, A: (state(A, Phi) @ net.b).sum())
    auto = lab.jacobian(lambda A: in_Phi(net.Phi, A).mT, net.A)
    yield _same("dv: sample by sample vs autograd, twice", in_J, auto)
    big = _adjoint_by_kronecker(net, pre, ordered=ordered)
    yield _same("dv: Kronecker form vs autograd, twice", big, auto)


# the source has dWᵀ alone, which fits no shape; of the two orders that fit, one is right
adjoint_derivative.breaks(
    "Kronecker factors in the wrong order: I_n⊗dWᵀ for dWᵀ⊗I_n", "dv: Kronecker", ordered=False
)
adjoint_derivative.breaks(
    "the pattern is not fixed: one unit rests at its kink",
    "dZ: Kronecker form vs central differences",
    "dv: sample by sample vs central differences",
    at_kink=True,
)


# --- the vanilla DEQ ---------------------------------------------------------------------------


@claim(
    "ling2023.lemma2",
    "Gradients of the vanilla DEQ, with the read-out I_n⊗aᵀ",
    "lem-vanilla-gradients",
)
def vanilla_gradients(trial, *, ordered=True):
    drawn = VanillaDEQ.init(6, 3, seed=trial.seed)
    W, U, a = (p.detach() for p in (drawn.W, drawn.U, drawn.a))
    W = 0.8 * W / operator_norm(W)
    model = VanillaDEQ(W, U, a)
    x = sphere(4, 3, trial.seed + 100, radius=math.sqrt(3))
    y = normal(4, g=generator(trial.seed + 200))
    s = lab.at_equilibrium(model, x, y)
    yield given("‖W‖", operator_norm(W), "≤", 1.0)
    yield _clear(s.pre)
    D = lab.diagonal(s.pre)
    J = eye(24) - D @ kron(eye(4), W)
    R = lab.read_out(a, 4, ordered=ordered) @ torch.linalg.solve(J, D)

    def loss(W: Tensor, q: Tensor, a: Tensor) -> Tensor:
        return lab.squares((lab.exact_states(W, q)[0] * a).sum(-1), y)

    yield from _three_routes(
        model,
        s,
        {
            "W": unvec(kron(s.z.mT, eye(6)) @ R.mT @ s.e, W),
            "U": unvec(kron(x.mT, eye(6)) @ R.mT @ s.e, U),
            "a": s.z.mT @ s.e,
        },
        {
            "W": lambda t: loss(t, s.q, a),
            "U": lambda t: loss(W, x @ t.mT, a),
            "a": lambda t: loss(W, s.q, t[:, None]),
        },
    )


# the shape fits, but the samples are mixed
vanilla_gradients.breaks("the read-out aᵀ⊗I_n, as the source orders it", "∇W", "∇U", ordered=False)


# --- the monotone DEQ: derivatives -------------------------------------------------------------


def _by_parameter(
    net: lab.Monotone, *, commute: bool = True, ordered: bool = True
) -> dict[str, Tensor]:
    """Return D(Z⊗I)P_A, D(Z⊗I)P_B and D(X⊗I)."""
    m, z, x = net.model.m, net.s.z, net.s.x
    in_W, in_U = (net.D @ (kron(t, eye(m)) if ordered else kron(eye(m), t)) for t in (z, x))
    return {
        "A": in_W @ lab.chain_A(net.parameters["A"], commute=commute),
        "B": in_W @ lab.chain_B(m, commute=commute),
        "U": in_U,
    }


def _partials(
    net: lab.Monotone, *, commute: bool = True, ordered: bool = True
) -> Iterator[Measurement]:
    yield _clear(net.s.pre)
    built = net.matrix(net.parameters["A"], net.parameters["B"])
    yield _same("W(A, B) vs the model's", built, net.W)
    yield _same("∂_Z F: Kronecker form vs autograd", net.Q, net.in_state())
    for name, value in _by_parameter(net, commute=commute, ordered=ordered).items():
        F, theta = partial(net.residual, name), net.parameters[name]
        auto, slopes = lab.jacobian(F, theta), lab.differences(F, theta)
        yield from _two_routes(f"∂_{name} F: Kronecker form", -value, auto, slopes)


def _chain_identities(trial, *, transposed=True, commute=True):
    A = lab.monotone(trial.seed, 1).parameters["A"]
    m = len(A)
    C, one = commutation(m, m), eye(m * m)
    P_A, P_B = lab.chain_A(A, commute=commute), lab.chain_B(m, commute=commute)
    G = A.mT @ A
    target = (one + C) @ (kron(eye(m), G) + kron(G, eye(m)))
    yield _same("P_A P_Aᵀ vs (I+C)(AᵀA⊗I + I⊗AᵀA)", P_A @ (P_A.mT if transposed else P_A), target)
    yield _same("P_B P_Bᵀ vs 2(I-C)", P_B @ P_B.mT, 2 * (one - C))
    yield equal("‖I+C‖", operator_norm(one + C), 2, SAME)
    yield equal("‖I-C‖", operator_norm(one - C), 2, SAME)


@claim(
    "nguyen2022.lemma3.2.1",
    "Monotone DEQ: partial derivatives of F = z - f, and the matrices P_A and P_B",
    "lem-mondeq-partials",
)
def monotone_partials(trial, *, commute=True):
    yield from _partials(lab.monotone(trial.seed, 3), commute=commute)
    yield from _chain_identities(trial, commute=commute)


monotone_partials.breaks(
    "P_A P_A in place of P_A P_Aᵀ, as printed",
    "P_A",
    part=_chain_identities,
    shown={"P_A P_Aᵀ": "P_A P_A"},
    transposed=False,
)
monotone_partials.breaks(
    "no commutation matrix: the transposes in W forgotten", "∂_A", "∂_B", "P_", commute=False
)


@claim(
    "nguyen2022.lemmaC.0.1",
    "Partial derivatives of F = z - f for a single input: ∂_W F = -D(zᵀ⊗I)",
    "lem-mondeq-partials",
)
def single_partials(trial, *, ordered=True):
    yield from _partials(lab.monotone(trial.seed, 1, 12), ordered=ordered)


# the gradient in W comes out transposed; A, which enters by AᵀA alone, cannot tell
single_partials.breaks("factors in the wrong order: I⊗zᵀ for zᵀ⊗I", "∂_B", "∂_U", ordered=False)


def _state_derivatives(trial, *, sign=1.0, ordered=True):
    net = lab.monotone(trial.seed, 3)
    yield _clear(net.s.pre)
    for name, right in _by_parameter(net, ordered=ordered).items():
        value, theta = sign * torch.linalg.solve(net.Q, right), net.parameters[name]
        auto = lab.jacobian(partial(net.state, name), theta)
        slopes = lab.differences(partial(net.moved, name), theta)
        yield from _two_routes(f"∂_{name} Z: Kronecker form", value, auto, slopes)


@claim(
    "nguyen2022.lemma3.2.2",
    "Derivatives of the equilibrium: ∂_W vec Z = Q⁻¹D(Z⊗I), then P_A and P_B",
    "lem-mondeq-derivatives",
)
def monotone_derivatives(trial, *, sign=1.0):
    yield from _state_derivatives(trial, sign=sign)


monotone_derivatives.breaks("the sign of ∂F kept: -Q⁻¹D(Z⊗I)", "∂_", sign=-1.0)


def _total_derivative(trial, *, sign=1.0, ordered=True):
    # the proof: along the branch ∂_Z F ∂_θZ + ∂_θ F = 0, here with autograd's ∂F
    net = lab.monotone(trial.seed, 3)
    in_z = net.in_state()
    for name, right in _by_parameter(net, ordered=ordered).items():
        direct = lab.jacobian(partial(net.residual, name), net.parameters[name])
        value = sign * torch.linalg.solve(net.Q, right)
        total = float((in_z @ value + direct).norm() / direct.norm())
        yield within(f"‖∂_Z F ∂_{name}Z + ∂_{name} F‖ ÷ ‖∂_{name} F‖", total, SAME)


@claim(
    "nguyen2022.lemmaC.0.2",
    "The same derivatives from the proof: ∂_Z F ∂_θ Z + ∂_θ F = 0, so every sign is plus",
    "lem-mondeq-derivatives",
)
def derivative_signs(trial, *, sign=1.0, ordered=True):
    yield from _total_derivative(trial, sign=sign, ordered=ordered)
    yield from _state_derivatives(trial, sign=sign, ordered=ordered)


derivative_signs.breaks("the signs of the appendix as printed: minus", "‖∂_", "∂_", sign=-1.0)
derivative_signs.breaks("I⊗Z in place of Z⊗I", "‖∂_", "∂_", ordered=False)


@claim(
    "nguyen2022.lemma3.2.3",
    "Gradients of the monotone DEQ in A, B, U and a",
    "lem-mondeq-gradients",
)
def monotone_gradients(trial, *, ordered=True):
    net = lab.monotone(trial.seed, 3)
    s, a = net.s, net.model.a.detach()
    yield _clear(s.pre)
    out = lab.read_out(a, 3, ordered=ordered)
    yield _same("ŷ: (I_n⊗aᵀ)vec Z vs the model", out @ s.z.flatten(), s.z @ a)
    left = s.e @ out @ torch.linalg.inv(net.Q)
    formulas = {
        k: unvec(left @ right, net.parameters[k]) for k, right in _by_parameter(net).items()
    }

    def loss(name: str, t: Tensor) -> Tensor:
        return lab.squares(net.moved(name, t).reshape(len(t), *s.z.shape) @ a, s.y)

    losses: dict[str, lab.Function] = {k: partial(loss, k) for k in formulas}
    formulas["a"] = s.z.mT @ s.e
    losses["a"] = lambda t: lab.squares(t @ s.z.mT, s.y)
    yield from _three_routes(net.model, s, formulas, losses)


monotone_gradients.breaks(
    "the read-out aᵀ⊗I_n, as printed",
    "ŷ",
    "∇A",
    "∇B",
    "∇U",
    shown={"I_n⊗aᵀ": "aᵀ⊗I_n"},
    ordered=False,
)


# --- the monotone DEQ: the adjoint is bounded --------------------------------------------------


def _adjoint_matrix(W: Tensor, D: Tensor, *, factor: bool = True) -> Tensor:
    """Return D(I - WᵀD)⁻¹, or the inverse without its left factor."""
    inverse = torch.linalg.inv(eye(W.shape[-1]) - W.mT * D[..., None, :])
    return D[..., None] * inverse if factor else inverse


def _monotone(name: str, W: Tensor, mu: Tensor | float) -> Iterator[Measurement]:
    """Measure the hypothesis I - W ⪰ μI with μ > 0: a negative μ makes every bound true."""
    modulus = torch.linalg.eigvalsh(eye(W.shape[-1]) - symmetric_part(W))[..., 0]
    yield given(f"{name}: least λ_min(I - sym W) - μ", (modulus - mu).min(), "≥", -ROUNDING)
    yield given(f"{name}: least μ", float(torch.as_tensor(mu).min()), "≥", 0.01)


def _adjoint_size(
    name: str, W: Tensor, D: Tensor, a: Tensor, mu: Tensor | float, *, factor: bool = True
) -> Measurement:
    v = (_adjoint_matrix(W, D, factor=factor) @ a[..., None])[..., 0]
    return at_most(name, float((v.norm(dim=-1) * mu / a.norm(dim=-1)).max()), 1 + ROUNDING)


@claim(
    "nguyen2022.lemma3.3.2",
    "The adjoint state is bounded: ‖D(I - WᵀD)⁻¹a‖ ≤ ‖a‖/μ",
    "lem-adjoint-bound",
)
def adjoint_bound(trial, *, factor=True, overstated=1.0, slope=1.0):
    W, D, mu = lab.random_patterns(trial.seed)
    a = normal(*D.shape, g=trial.g)
    yield from _monotone("400 draws", W, mu)
    yield _adjoint_size("largest ‖v_i‖μ/‖a‖, 400 draws", W, D, a, mu)
    W, D = lab.rotation()
    yield from _monotone("rotation, b = 10", W, 0.5)
    yield _adjoint_size("rotation, b = 10: ‖v_i‖μ/‖a‖", W, D, eye(2)[0], 0.5, factor=factor)
    net = lab.monotone(trial.seed, 3)
    at = gradient(net.model, net.s.x, net.s.y, z0=net.s.z, adjoint_solver=Newton(), tol=1e-13)
    read, pattern = net.model.a.detach(), (net.s.pre > 0).double()
    assert at.v is not None  # the model has a closed form
    formula = (_adjoint_matrix(net.W, pattern) @ read[:, None])[..., 0]
    yield _same("v_i: formula vs the package", formula, at.v)
    one = eye(1)  # W = ½ and one unit of slope 1 attain the bound
    yield _adjoint_size("W = ½: ‖v_i‖μ/‖a‖", 0.5 * one, slope * one[0], one[0], overstated * 0.5)


adjoint_bound.breaks("without the factor D on the left, as printed", "rotation", factor=False)
adjoint_bound.breaks("μ overstated by a factor 2", "W = ½", overstated=2.0)
adjoint_bound.breaks("a slope above one: σ' = 1.5", "W = ½", slope=1.5)


def _adjoint_norms(
    name: str, W: Tensor, D: Tensor, mu: Tensor | float, *, factor: bool = True
) -> Iterator[Measurement]:
    yield from _monotone(name, W, mu)
    norms = torch.linalg.matrix_norm(_adjoint_matrix(W, D, factor=factor), 2)
    yield at_most(f"{name}: ‖D(I - WᵀD)⁻¹‖ μ", float((norms * mu).max()), 1 + ROUNDING)
    other = torch.linalg.inv(eye(W.shape[-1]) - D[..., None] * W)
    norms = torch.linalg.matrix_norm(other * D[..., None, :] if factor else other, 2)
    yield at_most(f"{name}: ‖(I - DW)⁻¹D‖ μ", float((norms * mu).max()), 1 + ROUNDING)


@claim(
    "nguyen2022.lemmaC.0.4",
    "For one sample: ‖D(I - WᵀD)⁻¹‖ ≤ 1/μ and ‖(I - DW)⁻¹D‖ ≤ 1/μ",
    "lem-adjoint-bound",
)
def adjoint_norm(trial, *, factor=True, steepest=1.0):
    W, D, mu = lab.random_patterns(trial.seed)
    D = steepest * D
    yield from _adjoint_norms("400 draws", W, D, mu)
    yield from _adjoint_norms("rotation, b = 10", *lab.rotation(), 0.5, factor=factor)
    a = normal(*D.shape, g=trial.g)  # the step of the proof: v = Wᵀy + a, y = Dv
    v = (_adjoint_matrix(W, D, factor=False) @ a[..., None])[..., 0]
    y = D * v
    gap = ((y * v).sum(-1) - y.pow(2).sum(-1)) / v.pow(2).sum(-1)
    yield at_least("least (⟨y,v⟩ - ‖y‖²)/‖v‖², y = Dv", float(gap.min()), -ROUNDING)


adjoint_norm.breaks(
    "without the factor D: the bound as printed",
    "rotation",
    shown={"D(I - WᵀD)⁻¹": "(I - WᵀD)⁻¹", "(I - DW)⁻¹D": "(I - DW)⁻¹"},
    factor=False,
)
adjoint_norm.breaks("slopes up to 2 instead of at most 1", "least", steepest=2.0)


@claim(
    "nguyen2022.lemmaC.0.5",
    "For a batch: ‖Q⁻¹D‖ ≤ 1/μ and ‖(I_n⊗aᵀ)Q⁻¹D‖ ≤ ‖a‖/μ",
    "lem-adjoint-bound",
)
def batch_adjoint_bound(trial, *, factor=True, overstated=1.0):
    nets = {
        "random": lab.monotone(trial.seed, 5),
        "rotation": lab.rotating(),
        "W = ½I": lab.still(),
    }
    for name, net in nets.items():
        mu, a = overstated * net.model.mu, net.model.a.detach()
        M = torch.linalg.inv(net.Q)
        M = M @ net.D if factor else M
        yield at_most(f"{name}: ‖Q⁻¹D‖ μ", operator_norm(M) * mu, 1 + ROUNDING)
        size = operator_norm(lab.read_out(a, len(net.s.z)) @ M) * mu / float(a.norm())
        yield at_most(f"{name}: ‖(I_n⊗aᵀ)Q⁻¹D‖ μ/‖a‖", size, 1 + ROUNDING)


batch_adjoint_bound.breaks("without the factor D", "rotation", shown={"Q⁻¹D": "Q⁻¹"}, factor=False)
batch_adjoint_bound.breaks("μ overstated by a factor 2", "W = ½I", overstated=2.0)


# --- unrolled against implicit -----------------------------------------------------------------


def _recursion(run: lab.Unrolled, *, damped: bool = True) -> dict[str, Tensor]:
    """Propagate the Jacobians of the state by the lemma, with dense Kronecker matrices."""
    n, m = run.start.shape
    alpha, layers = run.model.alpha, run.layers(run.parameters())
    size, ones = n * m, torch.ones(n, 1, dtype=torch.float64)
    total = {k: run.start.new_zeros(size, p.numel()) for k, p in run.parameters().items()}
    V_R = kron(eye(n), torch.outer(run.w, run.w))  # the Hessian of R
    z = run.start
    for k in range(1, run.steps + 1):
        beta, y = run.beta(k), z
        E, source = [], []
        for W, q in layers:
            h = len(W)
            pre = y @ W.mT + q
            back = kron(eye(n), W.mT) @ torch.diag(lab.SOFT.slope(pre).flatten())
            E.append(alpha * back @ kron(eye(n), W) + (1 - alpha) * eye(size))
            outer = kron(lab.SOFT(pre), eye(m)) @ commutation(h, m)
            source.append(
                {
                    "W": alpha * (outer + back @ kron(y, eye(h))),
                    "U": alpha * (back @ kron(run.x, eye(h))),
                    "b": alpha * (back @ kron(ones, eye(h))),
                }
            )
            y = alpha * lab.SOFT(pre) @ W + (1 - alpha) * y
        after = [E[1], eye(size)]  # A(k, l+1)
        V = (1 - run.gamma * run.decay(k)) * eye(size) - run.gamma * V_R
        step = beta * V + (1 - beta) * E[1] @ E[0]
        weight = 1 - beta if damped else 1.0
        for name, J in total.items():
            kind, layer = name[0], int(name[1]) - 1
            total[name] = step @ J + weight * after[layer] @ source[layer][kind]
        z = beta * run.selection(z, k) + (1 - beta) * y
    return total


@claim(
    "xie2022.lemma11",
    "Derivatives of the unrolled iteration obey a recursion with source (1-β)A ∂f_l",
    "lem-unrolled",
)
def unrolled_recursion(trial, *, damped=True):
    run = lab.unrolled(trial.seed)
    for name, value in _recursion(run, damped=damped).items():
        last, theta = partial(run.run, name), run.parameters()[name]
        auto, slopes = lab.jacobian(last, theta), lab.differences(last, theta)
        yield from _two_routes(f"∂z/∂{name}: recursion", value, auto, slopes)


unrolled_recursion.breaks("the factor 1-β dropped from the source term, as printed", damped=False)


def _trained_gradient(trial, *, steps=400, adjoint=lab.BY_NEWTON):
    task = lab.training(trial.seed)
    slopes = lab.difference_gradient(task.moved, task.model.Ws[0].detach())
    error = relative(task.gradient(lab.stop_after(steps), adjoint), slopes)
    yield within("gradient vs central differences of the equilibrium's loss", error, CLOSE)


def _memory(trial, *, adjoint=lambda k: lab.BY_NEWTON):
    task = lab.training(trial.seed)
    few, many = (task.stored(lab.stop_after(k), adjoint(k)) for k in (10, 40))
    yield equal("bytes stored: 40 steps ÷ 10 steps", many / few, 1, 1e-9)


def _geometric(trial, *, power=1):
    # z = wz + 1 from zero: the derivative of w^K/(1-w) is what K steps miss, so Kκ^K is attained
    w = torch.full((1,), 0.9, dtype=torch.float64, requires_grad=True)
    start = torch.zeros(1, 1, dtype=torch.float64)
    for K in (20, 80):
        z = equilibrium(lambda z, w: w * z + 1, start, w, adjoint=Unroll(K))
        missed = 100 - float(torch.autograd.grad(z.sum(), w)[0])
        error = K**power * 0.9 ** (K - 1) / 0.1 + 0.9**K / 0.01
        yield equal(f"z = 0.9z + 1, K = {K}: error ÷ its formula", missed / error, 1.0, 1e-9)


@claim(
    "xie2022.appendixB",
    "Implicit gradients are exact at constant memory; unrolled ones tend to them",
    "prop-unrolled-implicit",
)
def unrolled_or_implicit(trial):
    task, solved = lab.training(trial.seed), lab.stop_after(400)
    yield given("contraction modulus κ of the cell", task.modulus, "≤", 1.0)
    yield from _trained_gradient(trial)
    exact = task.gradient(solved, lab.BY_NEWTON)
    error = {k: relative(task.gradient(solved, Unroll(k)), exact) for k in (20, 40, 200)}
    yield within("unrolled, K = 200, vs implicit", error[200], SAME)
    rate = (error[40] / error[20] / 2) ** (1 / 20)  # the error is O(Kκ^K)
    yield headline(
        at_most("unrolled: (error ÷ K)^(1/K) from K = 20 to 40, ÷ κ", rate / task.modulus, 1.0)
    )
    yield from _geometric(trial)
    early = {k: relative(task.gradient(lab.stop_after(k), lab.BY_NEWTON), exact) for k in (10, 30)}
    rate = (early[30] / early[10]) ** (1 / 20)  # the error is O(κ^K)
    yield at_most("implicit after K steps: the same, 10 to 30, ÷ κ", rate / task.modulus, 1.0)
    yield from _memory(trial)
    bytes_ = [task.stored(solved, Unroll(k)) for k in (10, 20, 40)]
    growth = (bytes_[2] - bytes_[1]) / (bytes_[1] - bytes_[0])
    yield equal("unrolled: bytes of steps 21 to 40 ÷ of steps 11 to 20", growth, 2, 1e-9)


unrolled_or_implicit.breaks("the factor K forgotten in Kκ^K", part=_geometric, power=0)
unrolled_or_implicit.breaks("unrolled K = 5 steps", part=_trained_gradient, adjoint=Unroll(5))
unrolled_or_implicit.breaks(
    "the implicit formula at a state that has not converged: 5 steps",
    part=_trained_gradient,
    steps=5,
)
unrolled_or_implicit.breaks("memory of unrolling", part=_memory, adjoint=Unroll)

check = checks(claim)


# --- several panels in one cell ----------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Folded:
    """The panels of several claims."""

    panels: tuple[Evidence, ...]

    def __repr__(self) -> str:
        return "\n".join(map(str, self.panels))

    def _repr_html_(self) -> str:
        return "".join(e._repr_html_() for e in self.panels)


def folded(*claim_ids: str, seed: int = 0) -> Folded:
    """Check these claims and show their panels; one that does not hold is an error."""
    panels = tuple(check(claim_id, seed=seed) for claim_id in claim_ids)
    for e in panels:
        if e.status != "holds":
            raise AssertionError(str(e))
    return Folded(panels)
