"""The implicit gradient against differences, dense linear algebra and its own definitions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from deqbook.implicit import (
    IFT,
    JFB,
    AtParameters,
    Batched,
    Phantom,
    Unroll,
    equilibrium,
    kept_bytes,
)
from deqbook.linalg import operator_norm
from deqbook.models import (
    DeepOptEq,
    EquilibriumModel,
    MonDEQ,
    OptEq,
    ReLUImplicit,
    ResidualCell,
    VanillaDEQ,
)
from deqbook.models.base import _rows
from deqbook.runtime import generator, normal
from deqbook.solvers import (
    Anderson,
    Broyden,
    Newton,
    NotConverged,
    Picard,
    Solution,
    fixed_point,
)

TIGHT = IFT(tol=1e-13)
DOUBLE = torch.float64


def problem(seed: int = 0, *, n: int = 2, m: int = 3, d: int = 2) -> tuple[Tensor, ...]:
    """Return W with norm 0.8, U and x."""
    g = generator(seed)
    W, U, x = normal(m, m, g=g), normal(m, d, g=g), normal(n, d, g=g)
    return 0.8 * W / operator_norm(W), U, x


def cell(z: Tensor, W: Tensor, U: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(z @ W.mT + x @ U.mT)


def solve(W: Tensor, U: Tensor, x: Tensor, **options) -> Tensor:
    zero = torch.zeros(x.shape[0], U.shape[0], dtype=x.dtype)
    return equilibrium(cell, zero, W, U, x, **{"tol": 1e-13, "adjoint": TIGHT, **options})


def loss(W: Tensor, U: Tensor, x: Tensor, **options) -> Tensor:
    return torch.sin(solve(W, U, x, **options)).pow(2).sum()


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


def differences(f: Callable[[Tensor], Tensor], t: Tensor, step: float = 1e-5) -> Tensor:
    """Return the Jacobian of f at t by central differences, f's axes first."""
    columns = []
    for i in range(t.numel()):
        e = torch.zeros_like(t).flatten()
        e[i] = step
        columns.append((f(t + e.view_as(t)) - f(t - e.view_as(t))) / (2 * step))
    return torch.stack(columns, dim=-1).reshape(*columns[0].shape, *t.shape)


def dense_jacobian(W: Tensor, U: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return dz_i/dW (n, m, m, m) and dz_i/dx_i (n, m, d), from (I - DW)^{-1}."""
    z = torch.zeros(len(x), len(W), dtype=DOUBLE)
    for _ in range(400):
        z = torch.tanh(z @ W.mT + x @ U.mT)
    by_w, by_x = [], []
    eye = torch.eye(len(W), dtype=DOUBLE)
    for row in z:
        D = torch.diag(1 - row**2)
        system = eye - D @ W
        moved = torch.einsum("ab,c->abc", D, row).reshape(len(W), -1)  # df_a/dW_bc
        by_w.append(torch.linalg.solve(system, moved).reshape(len(W), len(W), len(W)))
        by_x.append(torch.linalg.solve(system, D @ U))
    return torch.stack(by_w), torch.stack(by_x)


# --- exact: torch's own referee --------------------------------------------------------------


@pytest.mark.parametrize("solver", [Anderson(), Broyden(), Newton(), Newton("gmres"), Picard()])
def test_gradcheck_with_every_solver_on_both_sides(solver) -> None:
    def f(*theta: Tensor) -> Tensor:
        return solve(*theta, solver=solver, adjoint=IFT(solver, tol=1e-13))

    assert gradcheck(f, leaves(*problem()))


def test_gradcheck_in_both_modes_and_twice() -> None:
    theta = leaves(*problem())
    assert gradcheck(solve, theta, check_forward_ad=True)
    assert gradgradcheck(solve, theta)
    assert gradgradcheck(solve, theta, fast_mode=True, check_fwd_over_rev=True)


def conv(z: Tensor, K: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(F.conv2d(z, K, padding=1) + x)


def test_states_may_be_images() -> None:
    g = generator(2)
    K, x = 0.1 * normal(2, 2, 3, 3, g=g), normal(2, 2, 3, 4, g=g)

    def f(K: Tensor, x: Tensor) -> Tensor:
        return equilibrium(conv, torch.zeros_like(x), K, x, tol=1e-13, adjoint=TIGHT)

    assert f(K, x).shape == (2, 2, 3, 4)
    assert gradcheck(f, leaves(K, x), fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(f, leaves(K, x), fast_mode=True)


def skewed(seed: int = 3) -> MonDEQ:
    g = generator(seed)
    A, B, U, a = (normal(*s, g=g) for s in ((4, 4), (4, 4), (4, 2), (4,)))
    return MonDEQ(0.3 * A, 3 * B, U, a, 0.5)


def lifted(sigma: str) -> VanillaDEQ:
    base = VanillaDEQ.init(4, 2, seed=0)
    return VanillaDEQ(*(p.detach() for p in (base.W, base.U, base.a)), sigma=sigma)


MODELS: dict[str, Callable[[], EquilibriumModel]] = {
    "ReLUImplicit": lambda: ReLUImplicit.init(4, 2, gamma=0.3, seed=0),
    "implicit only, relu": lambda: ReLUImplicit.init_implicit_only(4, 2, gamma=0.3, seed=0),
    "implicit only, tanh": lambda: ReLUImplicit.init_implicit_only(
        4, 2, gamma=0.3, seed=0, phi="tanh"
    ),
    "VanillaDEQ, relu": lambda: lifted("relu"),
    "VanillaDEQ, tanh": lambda: lifted("tanh"),
    "MonDEQ": lambda: MonDEQ.init(4, 2, seed=1),
    "MonDEQ, large skew": skewed,
    "OptEq": lambda: OptEq.init(4, 2, norm=0.8, sigma="tanh", seed=0),
    "DeepOptEq": lambda: DeepOptEq.init_deep(4, 2, widths=[3, 5], alpha=0.6, k=2, seed=0),
    "ResidualCell": lambda: ResidualCell.init(std=0.01, channels=4, inner=4, k=2, groups=2, seed=0),
}
every_model = pytest.mark.parametrize("name", MODELS)


def inputs(name: str, n: int = 2) -> Tensor:
    return (
        normal(n, 1, 3, 3, g=generator(1)) if "Residual" in name else normal(n, 2, g=generator(5))
    )


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {k: p.detach().clone() for k, p in model.named_parameters() if p.requires_grad}


def exact(model: EquilibriumModel) -> IFT:
    return IFT(Newton() if isinstance(model, MonDEQ) else Anderson(), tol=1e-13)


def as_function(model: EquilibriumModel) -> Callable[..., Tensor]:
    """Return the model as a function of x and then its trained parameters in order."""
    names = list(trained(model))

    def f(x: Tensor, *values: Tensor) -> Tensor:
        options = {"tol": 1e-13, "adjoint": exact(model)}
        return functional_call(model, dict(zip(names, values)), (x,), options)

    return f


def kink(model: EquilibriumModel, x: Tensor) -> float:
    """Return how little moves some entry of the state onto or off zero, on one relu layer."""
    q = model.inject(x)
    z = model.solve(x, tol=1e-12).z
    pre = z @ model.structure().W.mT + q
    return float(pre.detach().abs().min())


@every_model
def test_gradcheck_of_every_model(name: str) -> None:
    model, x = MODELS[name](), inputs(name)
    if "relu" in name or name in ("ReLUImplicit", "MonDEQ"):
        assert kink(model, x) > 1e-3  # else differences would see the kink
    theta = leaves(x, *trained(model).values())
    fast = "Mon" in name or "Residual" in name  # slow to solve, or of many parameters
    assert gradcheck(as_function(model), theta, fast_mode=fast, check_forward_ad=True)
    assert gradgradcheck(as_function(model), theta, fast_mode=True)


def test_the_skewed_model_is_far_from_a_contraction() -> None:
    model = skewed()
    assert operator_norm(model.W.detach()) > 5
    with pytest.raises(NotConverged, match="Picard did not converge"):
        model(inputs("MonDEQ"), solver=Picard())
    with pytest.raises(NotConverged, match="the adjoint equation: Picard"):
        model(inputs("MonDEQ"), adjoint=IFT(Picard())).sum().backward()


def test_monotone_parameters_against_differences() -> None:
    model, x = MonDEQ.init(5, 2, seed=1), inputs("MonDEQ", 3)
    f, theta = as_function(model), trained(model)
    for i, (key, value) in enumerate(theta.items(), start=1):
        values = [x, *theta.values()]

        def moved(t: Tensor, i: int = i, values: list[Tensor] = values) -> Tensor:
            return f(*values[:i], t, *values[i + 1 :]).pow(2).sum()

        found = grad(lambda *v: f(*v).pow(2).sum(), argnums=i)(*values)
        assert torch.allclose(found, differences(moved, value), atol=1e-7), key
        assert float(found.norm()) > 0.1


# --- against dense linear algebra ------------------------------------------------------------


def test_jacobians_are_those_of_the_implicit_function_theorem() -> None:
    W, U, x = problem(1, n=3, m=4)
    by_w, by_x = dense_jacobian(W, U, x)
    for jacobian in (jacrev, jacfwd):
        assert torch.allclose(jacobian(solve)(W, U, x), by_w, atol=1e-11)
        found = jacobian(solve, argnums=2)(W, U, x)  # (n, m, n, d): a sample sees its own input
        for i in range(3):
            for j in range(3):
                expected = by_x[i] if i == j else torch.zeros_like(by_x[i])
                assert torch.allclose(found[i, :, j], expected, atol=1e-11)
    z = solve(W, U, x)
    pulled = torch.einsum("na,nabc->bc", torch.sin(2 * z), by_w)  # d sin² = sin 2z dz
    assert torch.allclose(grad(loss)(W, U, x), pulled, atol=1e-11)
    tangent = normal(4, 4, g=generator(8))
    pushed = jvp(lambda W: solve(W, U, x), (W,), (tangent,))[1]
    assert torch.allclose(pushed, torch.einsum("nabc,bc->na", by_w, tangent), atol=1e-11)


def test_hessians_by_every_composition() -> None:
    W, U, x = problem(2)
    reference = differences(lambda W: grad(loss)(W, U, x), W)
    for outer, inner in ((jacfwd, jacrev), (jacrev, jacrev), (jacrev, jacfwd)):
        assert torch.allclose(outer(inner(loss))(W, U, x), reference, atol=1e-7)
    with pytest.raises(NotImplementedError, match=r"use torch\.func\.hessian"):
        jacfwd(jacfwd(loss))(W, U, x)
    found = hessian(loss)(W, U, x).reshape(9, 9)
    assert torch.allclose(found, found.mT, atol=1e-11)


def test_the_third_derivative_of_a_scalar_equilibrium() -> None:
    """z = sz + 1 is 1/(1-s), with derivatives k!/(1-s)^(k+1)."""

    def z(s: Tensor) -> Tensor:
        zero = torch.zeros(1, 1, dtype=DOUBLE)
        return equilibrium(lambda z, s: s * z + 1, zero, s, tol=1e-13, adjoint=TIGHT).sum()

    s = torch.tensor(0.4, dtype=DOUBLE)
    derivative = z
    for k, factorial in enumerate((1, 1, 2, 6)):
        assert float(derivative(s)) == pytest.approx(factorial / 0.6 ** (k + 1), rel=1e-9)
        derivative = grad(derivative)


# --- vmap ------------------------------------------------------------------------------------


def test_per_sample_gradients_are_the_rows() -> None:
    W, U, x = problem(3, n=5, m=4)

    def one(W: Tensor, U: Tensor, row: Tensor) -> Tensor:
        return loss(W, U, row[None])

    rows = vmap(grad(one), in_dims=(None, None, 0))(W, U, x)
    assert rows.shape == (5, 4, 4)
    for row, sample in zip(rows, x):
        assert torch.allclose(row, grad(loss)(W, U, sample[None]), atol=1e-12)
    assert torch.allclose(rows.sum(0), grad(loss)(W, U, x), atol=1e-12)
    hessians = vmap(hessian(one), in_dims=(None, None, 1))(W, U, x.mT)
    assert torch.allclose(hessians.sum(0), hessian(loss)(W, U, x), atol=1e-11)


def test_vmap_over_weights_starts_and_in_other_dimensions() -> None:
    W, U, x = problem(4, n=3)
    Ws = torch.stack([W, 0.5 * W, -W, W.mT], dim=1)  # (3, 4, 3): mapped in the middle
    expected = torch.stack([grad(loss)(Ws[:, k], U, x) for k in range(4)])
    assert torch.allclose(vmap(grad(loss), in_dims=(1, None, None))(Ws, U, x), expected, atol=1e-12)
    out = vmap(grad(loss), in_dims=(1, None, None), out_dims=2)(Ws, U, x)
    assert torch.allclose(out, expected.movedim(0, 2), atol=1e-12)
    starts = normal(3, 3, 6, g=generator(0))
    found = vmap(lambda z0: equilibrium(cell, z0, W, U, x, tol=1e-13), in_dims=2)(starts)
    assert torch.allclose(found, solve(W, U, x).expand(6, 3, 3), atol=1e-12)


def test_nested_vmap() -> None:
    W, U, x = problem(5, n=4)
    Ws = torch.stack([W, 0.5 * W, -W])
    one = grad(lambda W, row: loss(W, U, row[None]))
    expected = torch.stack([torch.stack([one(w, row) for row in x]) for w in Ws])
    over = vmap(vmap(one, in_dims=(None, 0)), in_dims=(0, None))(Ws, x)
    under = vmap(vmap(one, in_dims=(0, None)), in_dims=(None, 1))(Ws, x.mT)
    assert torch.allclose(over, expected, atol=1e-12)
    assert torch.allclose(under.transpose(0, 1), expected, atol=1e-12)


@every_model
def test_per_sample_gradients_of_every_model(name: str) -> None:
    """Also in batches of batches, mapped along other axes, and over two sets of weights."""
    model, x = MODELS[name](), inputs(name, 4)
    options = {"tol": 1e-12, "adjoint": exact(model)}
    theta = trained(model)

    def total(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, theta, (x,), options).sum()

    expected = [grad(total)(theta, row[None]) for row in x]
    rows = vmap(grad(lambda t, row: total(t, row[None])), in_dims=(None, 0))(theta, x)
    pairs = torch.stack([x, x.flip(0)], dim=-1)[:, None]  # (4, 1, …, 2)
    nested = vmap(vmap(grad(total), in_dims=(None, 0)), in_dims=(None, -1))(theta, pairs)
    for key in theta:
        for i in range(4):
            assert torch.allclose(rows[key][i], expected[i][key], atol=1e-9)
            assert torch.allclose(nested[key][0, i], expected[i][key], atol=1e-9)
            assert torch.allclose(nested[key][1, i], expected[3 - i][key], atol=1e-9)
    if "skew" not in name:
        both = {k: torch.stack([t, 0.9 * t]) for k, t in theta.items()}
        mapped = vmap(grad(total), in_dims=(0, None))(both, x[:2])
        smaller = grad(total)({k: 0.9 * t for k, t in theta.items()}, x[:2])
        for key in theta:
            assert torch.allclose(mapped[key][0], expected[0][key] + expected[1][key], atol=1e-9)
            assert torch.allclose(mapped[key][1], smaller[key], atol=1e-9)


@pytest.mark.parametrize(
    ("shape", "outer", "inner"),
    [((3, 2, 5, 4), 0, 0), ((5, 2, 3, 4), 2, 1), ((5, 3, 4, 2), 1, 2), ((5, 2, 4), None, 1)],
)
def test_a_batch_of_batches_is_a_longer_batch(shape, outer: int | None, inner: int) -> None:
    """Three batches of two batches of five rows, mapped along any axes."""
    g = generator(7)
    W, z, q = normal(4, 4, g=g), normal(30, 4, g=g), normal(*shape, g=g)
    f = Batched(lambda z, q, W: z @ W + q, 2, (inner, None))
    mapped = AtParameters(Batched(f, 3, (outer, None)), (q, W))
    rows = _rows(mapped)
    assert not isinstance(rows.f, Batched)
    assert torch.allclose(rows(z), mapped(z), atol=1e-12)


# --- the size of a cotangent does not matter -------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e-3, 1e9])
def test_a_small_cotangent_is_not_taken_for_zero(scale: float) -> None:
    """A tolerance that is absolute below one would accept zero as the adjoint of a small loss."""
    W, U, x = problem(6)

    def scaled(W: Tensor) -> Tensor:
        return scale * solve(W, U, x, adjoint=IFT()).sum()

    reference = grad(lambda W: solve(W, U, x).sum())(W)
    assert torch.allclose(grad(scaled)(W) / scale, reference, atol=1e-7)
    assert torch.allclose(jacfwd(scaled)(W) / scale, reference, atol=1e-7)
    tangent = jvp(lambda W: solve(W, U, x, adjoint=IFT()), (W,), (scale * W,))[1]
    full = jvp(lambda W: solve(W, U, x), (W,), (W,))[1]
    assert torch.allclose(tangent / scale, full, atol=1e-7)


def test_samples_without_a_cotangent_get_none() -> None:
    W, U, x = leaves(*problem(6, n=3))
    solve(W, U, x)[1].sum().backward()
    assert x.grad is not None
    assert x.grad[[0, 2]].abs().max() == 0
    assert x.grad[1].abs().max() > 1e-3


def test_float32() -> None:
    theta = problem(7)
    reference = grad(loss)(*theta)
    single = [t.float() for t in theta]
    found = grad(loss)(*single, tol=None, adjoint=IFT())
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), reference, atol=1e-4)
    tiny = grad(lambda *t: 1e-7 * loss(*t, tol=None, adjoint=IFT()))(*single)
    assert torch.allclose(1e7 * tiny.double(), reference, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu() -> None:
    theta = problem(7)
    moved = [t.cuda() for t in theta]
    zero = torch.zeros(2, 3, dtype=DOUBLE, device="cuda")

    def f(*t: Tensor) -> Tensor:
        return torch.sin(equilibrium(cell, zero, *t, tol=1e-12, adjoint=TIGHT)).pow(2).sum()

    assert torch.allclose(grad(f)(*moved).cpu(), grad(loss)(*theta), atol=1e-10)


# --- memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 3, 7])
def test_the_memory_of_a_stack_of_layers_is_its_states(depth: int) -> None:
    x, w = torch.ones(50, 4), torch.ones(4, 4, requires_grad=True)

    def compute() -> Tensor:
        z = x
        for _ in range(depth):
            z = torch.tanh(z @ w)
        return z

    assert kept_bytes(compute, [x, w]) == depth * x.numel() * x.element_size()


def test_memory_is_asked_of_what_is_recorded() -> None:
    with pytest.raises(ValueError, match="needs no gradient"):
        kept_bytes(lambda: torch.ones(3).exp())


def test_a_tolerance_for_a_solver_that_is_a_function_is_refused() -> None:
    with pytest.raises(ValueError, match="give tol and max_steps to it"):
        solve(*problem(8), solver=lambda f, z: fixed_point(f, z), tol=1e-6)


def test_memory_does_not_grow_with_steps_and_does_when_unrolled() -> None:
    W, U, x = leaves(*problem(8, n=16, m=20, d=5))
    taken, saved = [], []
    for damping in (1.0, 0.1, 0.01):
        solver = Picard(damping)

        def find(f: Callable[[Tensor], Tensor], z: Tensor, solver: Picard = solver) -> Solution:
            found = fixed_point(f, z, solver=solver, tol=1e-4, max_steps=5000)
            taken.append(int(found.steps.max()))
            return found

        def run(find: Callable[..., Solution] = find) -> Tensor:
            return solve(W, U, x, solver=find, tol=None)

        saved.append(kept_bytes(run))
    assert taken[0] < 30
    assert 100 < taken[1] < 600
    assert taken[2] > 1000
    assert max(saved) <= 1.05 * min(saved)
    unrolled = [kept_bytes(lambda k=k: solve(W, U, x, adjoint=Unroll(k))) for k in (10, 100, 1000)]
    assert unrolled[0] > saved[0]
    ratio = (unrolled[2] - unrolled[1]) / (unrolled[1] - unrolled[0])
    assert ratio == pytest.approx(10, rel=0.05)


# --- what is recorded ------------------------------------------------------------------------


@pytest.mark.parametrize("adjoint", [IFT(), JFB(), Phantom(), Unroll()])
def test_nothing_is_recorded_without_grad(adjoint) -> None:
    theta = leaves(*problem(9))
    with torch.no_grad():
        assert not solve(*theta, adjoint=adjoint).requires_grad
    assert solve(*theta, adjoint=adjoint).requires_grad
    assert not solve(*problem(9), adjoint=adjoint).requires_grad


def test_what_the_cell_closes_over_is_a_constant() -> None:
    W, U, x = leaves(*problem(9))
    out = equilibrium(lambda z, W: cell(z, W, U, x), torch.zeros(2, 3, dtype=DOUBLE), W)
    out.sum().backward()
    assert W.grad is not None
    assert U.grad is None
    assert x.grad is None


@pytest.mark.parametrize(
    ("theta", "sentence"),
    [
        ((0.5,), r"theta\[0\] must be a floating-point tensor, got float; close over constants"),
        ((torch.ones(1), None), r"theta\[1\] must be a floating-point tensor, got NoneType"),
        ((torch.tensor(1),), r"theta\[0\] must be a floating-point tensor, got torch.int64"),
    ],
)
def test_bad_parameters_are_named(theta, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        equilibrium(lambda z, *t: 0.5 * z, torch.zeros(1, 1), *theta)


def test_a_cell_must_be_a_function() -> None:
    with pytest.raises(TypeError, match=r"f must be a function f\(z, \*theta\), got Tensor"):
        equilibrium(torch.ones(1), torch.zeros(1, 1))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Phantom(steps=0), "steps must be at least 1, got 0"),
        (lambda: Phantom(damping=0.0), r"damping must be in \(0, 1\], got 0.0"),
        (lambda: Phantom(damping=1.1), r"damping must be in \(0, 1\]"),
        (lambda: Unroll(0), "steps must be at least 1, got 0"),
    ],
)
def test_bad_options_are_named(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


# --- failures are never numbers --------------------------------------------------------------


def test_a_failed_forward_solve_raises() -> None:
    theta = leaves(*problem(10))
    with pytest.raises(NotConverged, match=r"the equilibrium: Adaptive did not.*residual.*1.0e-13"):
        solve(*theta, max_steps=2)
    with pytest.raises(NotConverged, match="the equilibrium"):
        solve(*theta, max_steps=2, adjoint=JFB())


def test_a_failed_adjoint_solve_raises() -> None:
    W, U, x = leaves(*problem(10))
    out = solve(W, U, x, adjoint=IFT(tol=1e-13, max_steps=2)).sum()
    sentence = r"the adjoint equation: Adaptive did not.*worst residual .* against tol 1.0e-13"
    with pytest.raises(NotConverged, match=sentence) as caught:
        out.backward()
    assert float(caught.value.solution.residual.max()) > 1e-13
    assert W.grad is U.grad is x.grad is None
    short = IFT(tol=1e-13, max_steps=2)
    with pytest.raises(NotConverged, match="the tangent equation: Adaptive"):
        jvp(lambda W: solve(W, U, x, adjoint=short), (W.detach(),), (W.detach(),))


@pytest.mark.parametrize("solver", [Anderson(), Newton(), Picard(), Broyden()])
def test_a_fold_has_no_gradient(solver) -> None:
    """At the fold of z = tanh(2z) + p, 2 sech²(2z) = 1, the state moves infinitely fast with p."""
    z = torch.atanh(torch.tensor([[0.5]], dtype=DOUBLE).sqrt()) / 2
    p = (z - torch.tanh(2 * z)).requires_grad_()

    def known(f: Callable[[Tensor], Tensor], z0: Tensor) -> Solution:
        assert float((f(z) - z).abs()) < 1e-12
        return fixed_point(f, z, tol=1e-12)

    zero = torch.zeros(1, 1, dtype=DOUBLE)
    adjoint = IFT(solver, max_steps=50)
    out = equilibrium(lambda z, p: torch.tanh(2 * z) + p, zero, p, solver=known, adjoint=adjoint)
    with pytest.raises(NotConverged, match="the adjoint equation"):
        out.sum().backward()
    assert p.grad is None


# --- warm starts -----------------------------------------------------------------------------


def test_a_warm_adjoint_saves_work_and_changes_nothing() -> None:
    W, U, x = problem(11, n=4, m=6)
    calls = 0

    class Counting(Picard):
        def step(self, *args):
            nonlocal calls
            calls += 1
            return super().step(*args)

    z = solve(W, U, x)
    J = (1 - z**2)[:, :, None] * W
    g = torch.sin(2 * z)
    v = torch.linalg.solve(torch.eye(6, dtype=DOUBLE) - J.mT, g)  # (I - Jᵀ)v = g
    gradients, work = [], []
    for start in (None, v + 1e-6, v):
        calls = 0
        ift = IFT(Counting(), tol=1e-11, start=start)
        gradients.append(grad(lambda W, ift=ift: loss(W, U, x, adjoint=ift))(W))
        work.append(calls)
    assert work[0] > work[1] > work[2] == 0
    for found in gradients[1:]:
        assert torch.allclose(found, gradients[0], atol=1e-9)
    warm = IFT(tol=1e-13, start=v)
    second = hessian(lambda W: loss(W, U, x, adjoint=warm))(W)
    assert torch.allclose(second, hessian(loss)(W, U, x), atol=1e-9)
    pair = torch.stack([x, -x])
    mapped = vmap(grad(lambda W, x: loss(W, U, x, adjoint=warm)), in_dims=(None, 0))(W, pair)
    assert torch.allclose(mapped[1], grad(loss)(W, U, -x), atol=1e-9)
    outer = grad(lambda W: vmap(lambda x: loss(W, U, x, adjoint=warm))(pair).sum())(W)
    assert torch.allclose(outer, mapped.sum(0), atol=1e-9)
    with pytest.raises(ValueError, match=r"state's shape \(4, 6\), got \(1, 6\)"):
        grad(lambda W: loss(W, U, x, adjoint=IFT(start=v[:1])))(W)


class Tell(torch.autograd.Function):
    """The identity, with a list of its backward passes."""

    @staticmethod
    def forward(ctx, t: Tensor, log: list[str], name: str) -> Tensor:
        ctx.log, ctx.name = log, name
        return t.view_as(t)

    @staticmethod
    def backward(ctx, g: Tensor):
        ctx.log.append(ctx.name)
        return g, None, None


@pytest.mark.parametrize("train", [("W",), ("U",), ("W", "U")])
def test_a_backward_pass_applies_the_cell_once_and_pulls_back_no_more_than_needed(train) -> None:
    W, U, x = problem(5, n=4, m=6)
    W.requires_grad_("W" in train)
    U.requires_grad_("U" in train)
    applied, steps, pulled = 0, 0, []

    def told(z: Tensor, W: Tensor, U: Tensor) -> Tensor:
        nonlocal applied
        applied += 1
        return cell(*(Tell.apply(t, pulled, name) for t, name in ((z, "z"), (W, "W"), (U, "U"))), x)

    class Counting(Picard):
        def step(self, *args):
            nonlocal steps
            steps += 1
            return super().step(*args)

    adjoint = IFT(Counting(), tol=1e-12)
    z = equilibrium(told, torch.zeros(4, 6, dtype=DOUBLE), W, U, tol=1e-13, adjoint=adjoint)
    weights = [t for t in (W, U) if t.requires_grad]
    applied, pulled[:] = 0, []
    found = torch.autograd.grad(torch.sin(z).sum(), weights)
    assert applied == 1
    assert pulled.count("z") == steps + 1 > 5  # one for every residual; none for the constant term
    assert sorted(set(pulled) - {"z"}) == sorted(train)
    assert len(pulled) == steps + 1 + len(train)
    z = solve(W, U, x)
    again = torch.autograd.grad(torch.sin(z).sum(), weights, create_graph=True)  # the other path
    for once, twice in zip(found, again):
        assert torch.allclose(once, twice, atol=1e-10)


def test_a_constant_cell_has_zero_gradients() -> None:
    b = normal(2, 3, g=generator(0)).requires_grad_()
    z = equilibrium(lambda z, b: torch.ones_like(z), torch.zeros(2, 3, dtype=DOUBLE), b)
    assert torch.equal(torch.autograd.grad(z.sum(), b)[0], torch.zeros_like(b))


# --- the approximations are what they say ----------------------------------------------------


def test_jfb_forgets_the_jacobian() -> None:
    W, U, x = problem(12, n=3)
    z = solve(W, U, x)
    assert torch.allclose(solve(W, U, x, adjoint=JFB()), z, atol=1e-12)
    expected = torch.einsum("na,nb->ab", torch.sin(2 * z) * (1 - z**2), z)
    found = grad(lambda W: loss(W, U, x, adjoint=JFB()))(W)
    assert torch.allclose(found, expected, atol=1e-11)
    assert not torch.allclose(found, grad(loss)(W, U, x), atol=1e-2)
    for adjoint in (JFB(), Phantom(3), Unroll(3)):  # forward mode forgets what reverse mode does
        approximate = functools.partial(loss, adjoint=adjoint)
        reverse = jacrev(approximate)(W, U, x)
        assert torch.allclose(jacfwd(approximate)(W, U, x), reverse, atol=1e-12)


def test_phantom_is_a_truncated_series_and_improves_with_steps() -> None:
    """With T = (1-β)I + βJ the adjoint state is β Σ_{k<steps} (T')^k g instead of (I-J')^{-1}g."""
    W, U, x = problem(13, n=1)
    z = solve(W, U, x)
    D = torch.diag(1 - z[0] ** 2)
    T = 0.4 * torch.eye(3, dtype=DOUBLE) + 0.6 * D @ W
    g = torch.sin(2 * z[0])
    truth, errors = grad(loss)(W, U, x), []
    for steps in (1, 2, 4, 8, 16, 32):
        v = 0.6 * sum(torch.linalg.matrix_power(T.mT, k) @ g for k in range(steps))
        found = grad(lambda W, s=steps: loss(W, U, x, adjoint=Phantom(s, 0.6)))(W)
        assert torch.allclose(found, torch.outer(D @ v, z[0]), atol=1e-11)
        errors.append(float((found - truth).norm()))
    assert all(late < early for early, late in itertools.pairwise(errors))
    assert errors[-1] < 1e-2 * errors[0]
    jfb = grad(lambda W: loss(W, U, x, adjoint=JFB()))(W)
    assert torch.allclose(grad(lambda W: loss(W, U, x, adjoint=Phantom(1, 1.0)))(W), jfb)


def test_unroll_is_a_network_of_tied_layers() -> None:
    W, U, x = problem(14)

    def layers(W: Tensor, k: int) -> Tensor:
        z = torch.zeros(2, 3, dtype=DOUBLE)
        for _ in range(k):
            z = torch.tanh(z @ W.mT + x @ U.mT)
        return z

    for k in (1, 3, 7):
        assert torch.equal(solve(W, U, x, adjoint=Unroll(k)), layers(W, k))
        found = grad(lambda W, k=k: loss(W, U, x, adjoint=Unroll(k)))(W)
        reference = differences(lambda W, k=k: torch.sin(layers(W, k)).pow(2).sum(), W)
        assert torch.allclose(found, reference, atol=1e-8)
    deep = grad(lambda W: loss(W, U, x, adjoint=Unroll(300)))(W)
    assert torch.allclose(deep, grad(loss)(W, U, x), atol=1e-10)


# --- JFB can point uphill --------------------------------------------------------------------


def test_jfb_points_uphill_for_one_parameter() -> None:
    """z1 = 0.9 z2 - t and z2 = 2t give z1 = 0.8 t; JFB sees only -t, so a descent step climbs."""
    W = torch.tensor([[0.0, 0.9], [0.0, 0.0]], dtype=DOUBLE)
    u = torch.tensor([[-1.0, 2.0]], dtype=DOUBLE)

    def error(t: Tensor, adjoint) -> Tensor:
        zero = torch.zeros(1, 2, dtype=DOUBLE)
        z = equilibrium(lambda z, t: z @ W.mT + t * u, zero, t, tol=1e-13, adjoint=adjoint)
        return 0.5 * (z[0, 0] - 1).pow(2)

    t = torch.tensor(0.0, dtype=DOUBLE)
    assert operator_norm(W) == pytest.approx(0.9)
    assert float(grad(error)(t, TIGHT)) == pytest.approx(-0.8)
    assert float(grad(error)(t, JFB())) == pytest.approx(1.0)
    for step in (1.0, 0.1, 1e-3):
        assert error(t - step * grad(error)(t, JFB()), TIGHT) > error(t, TIGHT)


UPHILL = {
    "W": [[0.0, 0.0], [0.5, 0.8]],
    "U": [[1.0, 0.0], [0.0, 1.0]],
    "a": [-1.0, 1.0],
}


def test_jfb_points_uphill_for_a_relu_network_with_all_weights_trained() -> None:
    """Two samples suffice; with one sample and ‖W‖ < 1 the inner product cannot be negative."""
    model = VanillaDEQ(*(torch.tensor(t, dtype=DOUBLE) for t in UPHILL.values()))
    x = torch.tensor([[-2.0, 2.0], [1.0, 2.0]], dtype=DOUBLE)
    y = torch.tensor([11.0, 10.5], dtype=DOUBLE)
    assert operator_norm(model.W.detach()) < 0.944
    z = torch.tensor([[0.0, 10.0], [1.0, 12.5]], dtype=DOUBLE)
    assert torch.allclose(model.solve(x, tol=1e-13).z, z, atol=1e-10)

    def error(weights: dict[str, Tensor], adjoint, rows=slice(None)) -> Tensor:
        options = {"tol": 1e-13, "adjoint": adjoint}
        out = functional_call(model, weights, (x[rows],), options)
        return 0.5 * (out - y[rows]).pow(2).sum()

    def inner(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
        return float(sum((one[k] * two[k]).sum() for k in one))

    weights = trained(model)
    true, jfb = (grad(error)(weights, a) for a in (TIGHT, JFB()))
    expected = torch.tensor([[1.5, 18.75], [5.0, 12.5]], dtype=DOUBLE)
    assert torch.allclose(true["W"], expected, atol=1e-9)
    expected = torch.tensor([[-1.0, -12.5], [1.0, 2.5]], dtype=DOUBLE)
    assert torch.allclose(jfb["W"], expected, atol=1e-9)
    assert inner(true, jfb) == pytest.approx(-154.875, abs=1e-6)
    down, up = ({k: w - 1e-4 * g[k] for k, w in weights.items()} for g in (true, jfb))
    assert error(down, TIGHT) < error(weights, TIGHT) < error(up, TIGHT)
    for rows in (slice(0, 1), slice(1, 2)):
        assert inner(*(grad(error)(weights, a, rows) for a in (TIGHT, JFB()))) > 0
