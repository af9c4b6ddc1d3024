"""The models against their formulas written again, and against quadratic programs."""

from __future__ import annotations

import math
from dataclasses import replace

import cvxpy
import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from deqbook.linalg import operator_norm
from deqbook.models import (
    DeepOptEq,
    EquilibriumModel,
    MonDEQ,
    OptEq,
    ReLUImplicit,
    ResidualCell,
    VanillaDEQ,
    monotone_parameters,
)
from deqbook.runtime import device, generator, normal, signs, sphere
from deqbook.solvers import Anderson, Newton, Picard
from deqbook.splitting import ForwardBackward, PeacemanRachford
from deqbook.wellposed import monotonicity

DENSE = {
    "ReLUImplicit": lambda seed, dtype: ReLUImplicit.init(12, 4, gamma=0.2, seed=seed, dtype=dtype),
    "implicit only": lambda seed, dtype: ReLUImplicit.init_implicit_only(
        12, 4, gamma=0.2, seed=seed, dtype=dtype
    ),
    "VanillaDEQ": lambda seed, dtype: VanillaDEQ.init(12, 4, seed=seed, dtype=dtype),
    "MonDEQ": lambda seed, dtype: MonDEQ.init(12, 4, seed=seed, dtype=dtype),
    "OptEq": lambda seed, dtype: OptEq.init(12, 4, k=3, seed=seed, dtype=dtype),
    "DeepOptEq": lambda seed, dtype: DeepOptEq.init_deep(
        12, 4, widths=[7, 9], k=3, alpha=0.6, seed=seed, dtype=dtype
    ),
}
every_dense = pytest.mark.parametrize("name", DENSE)


def build(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> EquilibriumModel:
    return DENSE[name](seed, dtype)


def inputs(n: int = 5, d: int = 4, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return normal(n, d, g=generator(seed), dtype=dtype)


# --- what all share --------------------------------------------------------------------------


@every_dense
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_shapes_types_and_equilibrium(name: str, dtype: torch.dtype) -> None:
    model, x = build(name, dtype=dtype), inputs(dtype=dtype)
    found = model.solve(x)
    assert found.z.shape == (5, 12)
    assert found.z.dtype == dtype
    moved = (model.cell(found.z, x) - found.z).detach().norm(dim=1)
    assert float(moved.max()) <= (1e-7 if dtype == torch.float64 else 1e-3)
    out = model(x)
    assert out.shape == ((5, 3) if "Opt" in name else (5,))
    assert torch.equal(out, model.readout(found.z, model.inject(x)))


@every_dense
def test_a_seed_is_the_model(name: str) -> None:
    one, same, other = build(name, 3), build(name, 3), build(name, 4)
    for p, q, r in zip(one.parameters(), same.parameters(), other.parameters()):
        assert torch.equal(p, q)
        assert not torch.equal(p, r) or not p.any()
    single = build(name, 3, torch.float32)  # one draw, whatever the precision
    for p, q in zip(one.parameters(), single.parameters()):
        assert torch.allclose(p.float(), q, atol=1e-6)


@every_dense
def test_solvers_and_starts_agree(name: str) -> None:
    model, x = build(name), inputs()
    z = model.solve(x, tol=1e-11).z
    for solver in (Picard(), Anderson(), Newton()):
        if name != "MonDEQ" or not isinstance(solver, Picard):
            assert torch.allclose(model.solve(x, solver=solver, tol=1e-11).z, z, atol=1e-8)
    warm = model.solve(x, z0=z, tol=1e-9)
    assert warm.steps.tolist() == [0] * 5
    far = model.solve(x, z0=z + 3, tol=1e-11)
    assert torch.allclose(far.z, z, atol=1e-8)


@every_dense
def test_backward_is_exact(name: str) -> None:
    """Against the gradient through 300 recorded iterations (damped where plain ones diverge)."""
    model, x = build(name), inputs()
    model(x, tol=1e-12, adjoint=replace(model.default_adjoint, tol=1e-12)).pow(2).sum().backward()
    found = {k: p.grad for k, p in model.named_parameters()}
    model.zero_grad()
    z = model.start(model.inject(x))
    for _ in range(300):
        z = 0.5 * z + 0.5 * model.cell(z, x)
    model.readout(z, model.inject(x)).pow(2).sum().backward()
    for key, weight in model.named_parameters():
        if weight.requires_grad:
            assert torch.allclose(found[key], weight.grad, rtol=1e-8, atol=1e-8), key
            assert float(weight.grad.norm()) > 1e-3
        else:
            assert found[key] is None


@every_dense
def test_gradients_do_not_depend_on_the_mode_or_the_start(name: str) -> None:
    model, x = build(name), inputs()
    weight = next(p for p in model.parameters() if p.requires_grad)
    train, evaluate = (
        torch.autograd.grad(model.train(mode)(x).sum(), weight)[0] for mode in (True, False)
    )
    assert torch.equal(train, evaluate)
    warm = torch.autograd.grad(model(x, model.solve(x, tol=1e-12).z).sum(), weight)[0]
    assert torch.allclose(warm, train, atol=1e-5)
    with torch.no_grad():
        assert not model(x).requires_grad
    assert not model.solve(x).z.requires_grad
    assert model(x).requires_grad


@every_dense
def test_gradients_in_single_precision(name: str) -> None:
    """Of a mean scaled down as over very many samples, too."""
    double, single = build(name), build(name, dtype=torch.float32)
    double(inputs()).sum().backward()
    for scale in (1.0, 1e-6):
        single.zero_grad()
        (scale * single(inputs(dtype=torch.float32))).sum().backward()
        for p, q in zip(double.parameters(), single.parameters()):
            if p.requires_grad:
                assert q.grad.dtype == torch.float32
                assert torch.allclose(q.grad.double() / scale, p.grad, rtol=1e-3, atol=1e-3)


def test_training_lowers_the_loss() -> None:
    model, x = build("MonDEQ"), inputs(20)
    y = torch.sin(x.sum(dim=1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        loss = (model(x) - y).pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert monotonicity(model.W.detach()) >= 0.5 - 1e-12


@every_dense
def test_bad_inputs_are_sentences(name: str) -> None:
    model = build(name)
    with pytest.raises(ValueError, match=r"x must be \(n, 4\).*got shape \(5, 3\)"):
        model.solve(inputs(d=3))
    with pytest.raises(ValueError, match=r"x must be \(n, 4\).*got shape \(4,\)"):
        model(inputs()[0])
    with pytest.raises(ValueError, match="injected input has NaN or infinite"):
        model.solve(inputs() * math.nan)
    with pytest.raises(TypeError, match=r"dtype torch.float64, got torch.float32"):
        model(inputs(dtype=torch.float32))
    with pytest.raises(TypeError, match="got ndarray"):
        model.solve(inputs().numpy())


def test_splitting_needs_an_affine_cell() -> None:
    model = build("OptEq")
    for solver in (PeacemanRachford(), ForwardBackward()):
        with pytest.raises(ValueError, match=r"needs a cell σ\(Wz \+ q\); OptEq is not"):
            model.solve(inputs(), solver=solver)


def test_randomness_is_seeded_and_on_the_cpu() -> None:
    assert torch.equal(sphere(3, 5, 7), sphere(3, 5, 7))
    assert torch.allclose(sphere(9, 5, 7, radius=2.0).norm(dim=1), torch.tensor(2.0).double())
    values = signs(1000, g=generator(0))
    assert set(values.tolist()) == {-1.0, 1.0}
    assert abs(float(values.mean())) < 0.15
    assert device().type == ("cuda" if torch.cuda.is_available() else "cpu")


# --- ReLU implicit network ---------------------------------------------------------------------


def test_relu_implicit_equals_its_formula() -> None:
    model, x = ReLUImplicit.init(30, 4, gamma=0.25, seed=2), inputs()
    W, U, a, c = (p.detach().numpy() for p in (model.W, model.U, model.a, model.c))
    for row, out in zip(x.numpy(), model(x).tolist()):
        phi = np.maximum(U @ row, 0) / math.sqrt(30)
        z = np.zeros(30)
        for _ in range(300):
            z = np.maximum(0.25 / math.sqrt(30) * W @ z + phi, 0)
        assert out == pytest.approx(a @ z + c @ phi, abs=1e-6)


def test_implicit_only_equals_the_formula_of_its_source() -> None:
    """z = relu(gamma A'z + relu(W'x)), f = b'z/sqrt(m), gamma = gamma0/sqrt(m)."""
    m, gamma0 = 30, 0.25
    model, x = ReLUImplicit.init_implicit_only(m, 4, gamma=gamma0, seed=2), inputs()
    A, W, b = model.W.detach().numpy().T, model.U.detach().numpy().T, model.a.detach().numpy()
    gamma = gamma0 / math.sqrt(m)
    for row, out in zip(x.numpy(), model(x).tolist()):
        features = np.maximum(W.T @ row, 0)
        z = np.zeros(m)
        for _ in range(300):
            z = np.maximum(gamma * A.T @ z + features, 0)
        assert out == pytest.approx(b @ z / math.sqrt(m), abs=1e-6)
    trained = {k for k, p in model.named_parameters() if p.requires_grad}
    assert trained == {"W"}
    assert not model.c.any()


def test_gao_initialisation_statistics() -> None:
    for model in (
        ReLUImplicit.init(300, 40, gamma=0.2, seed=5),
        ReLUImplicit.init_implicit_only(300, 40, gamma=0.2, seed=5),
    ):
        for weight in (model.W.detach(), model.U.detach()):
            assert abs(float(weight.mean())) < 0.04
            assert float(weight.var()) == pytest.approx(1, abs=0.05)
        assert set(model.a.tolist()) == {-1.0, 1.0}
        assert operator_norm(model.W.detach()) == pytest.approx(2 * math.sqrt(300), rel=0.05)
        phi = model.inject(sphere(50, 40, 6)).detach()
        assert float(phi.pow(2).sum(1).mean()) == pytest.approx(0.5, abs=0.05)


def test_ling_initialisation_statistics() -> None:
    model = VanillaDEQ.init(400, 50, variance=0.1, seed=5)
    W, U, a = (p.detach() for p in (model.W, model.U, model.a))
    assert 400 * float(W.var()) == pytest.approx(0.2, rel=0.03)
    assert 50 * float(U.var()) == pytest.approx(2, rel=0.05)
    assert 400 * float(a.var()) == pytest.approx(1, rel=0.25)


def test_vanilla_equals_its_formula() -> None:
    model, x = build("VanillaDEQ"), inputs()
    W, U, a = (p.detach().numpy() for p in (model.W, model.U, model.a))
    for row, out in zip(x.numpy(), model(x).tolist()):
        z = np.zeros(12)
        for _ in range(400):
            z = np.maximum(W @ z + U @ row, 0)
        assert out == pytest.approx(a @ z, abs=1e-6)


# --- monotone --------------------------------------------------------------------------------


def test_mondeq_assembles_its_matrix() -> None:
    model = MonDEQ.init(6, 3, mu=0.3, seed=1)
    A, B, W = (t.detach().numpy() for t in (model.A, model.B, model.W))
    for i in range(6):
        for j in range(6):
            expected = 0.7 * (i == j) - A[:, i] @ A[:, j] + B[i, j] - B[j, i]
            assert W[i, j] == pytest.approx(expected, abs=1e-12)
    assert monotonicity(model.W.detach()) >= 0.3 - 1e-12
    z, q = inputs(d=6), inputs(d=6, seed=9)
    assert torch.equal(model.map(q)(z), model.f(z, q, *model.weights()).detach())


def test_monotone_parameters_go_back() -> None:
    W = normal(5, 5, g=generator(3))
    mu = monotonicity(W)
    for given_mu in (mu, mu - 1.0):
        A, B = monotone_parameters(W, given_mu)
        again = (1 - given_mu) * torch.eye(5).double() - A.mT @ A + B - B.mT
        assert torch.allclose(again, W, atol=1e-12)
    with pytest.raises(ValueError, match=f"largest modulus possible is {mu:.4g}"[:-1]):
        monotone_parameters(W, mu + 0.1)


def test_mondeq_with_tanh_solves_its_equation() -> None:
    base = MonDEQ.init(8, 4, seed=2)
    model = MonDEQ(*(p.detach() for p in (base.A, base.B, base.U, base.a)), 0.5, sigma="tanh")
    x = inputs()
    z = model.solve(x, tol=1e-11).z.numpy()
    W, U = model.W.detach().numpy(), model.U.detach().numpy()
    assert np.allclose(z, np.tanh(z @ W.T + x.numpy() @ U.T), atol=1e-10)


# --- OptEq -----------------------------------------------------------------------------------


def test_opteq_equilibrium_is_a_quadratic_program() -> None:
    """z = W's with s = argmin over s >= 0 of ½s'(I - WW')s - c's: two referees."""
    model = OptEq.init(6, 4, width=8, norm=0.9, seed=4)
    x = inputs(3)
    W = model.W.detach().numpy()
    P = np.eye(8) - W @ W.T
    R = np.linalg.cholesky(P).T
    for z, c in zip(model.solve(x, tol=1e-11).z.numpy(), model.inject(x).detach().numpy()):
        s = nnls(R, np.linalg.solve(R.T, c))[0]
        assert np.allclose(z, W.T @ s, atol=1e-8)
        v = cvxpy.Variable(8, nonneg=True)
        cvxpy.Problem(cvxpy.Minimize(cvxpy.quad_form(v, cvxpy.psd_wrap(P)) / 2 - c @ v)).solve()
        assert np.allclose(z, W.T @ v.value, atol=1e-4)


def test_deep_opteq_with_one_layer_is_opteq() -> None:
    one = OptEq.init(6, 4, width=5, k=2, seed=5)
    W, U, b, V = (p.detach() for p in (one.Ws[0], one.Us[0], one.bs[0], one.V))
    deep = DeepOptEq([W], [U], [b], V)
    x, z = inputs(), inputs(d=6)
    assert torch.equal(deep.cell(z, x), one.cell(z, x))
    assert torch.equal(deep(x), one(x))


def test_deep_opteq_composes_in_order() -> None:
    model = build("DeepOptEq")
    x, z = inputs(), inputs(d=12)
    expected = z
    for W, U, b in zip(model.Ws, model.Us, model.bs):
        expected = 0.6 * torch.relu(expected @ W.mT + x @ U.mT + b) @ W + 0.4 * expected
    assert torch.allclose(model.cell(z, x), expected, atol=1e-12)
    assert [operator_norm(W.detach()) for W in model.Ws] == pytest.approx([0.7, 0.7])


def test_a_skip_connection_keeps_the_equilibria() -> None:
    plain = OptEq.init(6, 4, norm=0.9, seed=6)
    skipped = OptEq.init(6, 4, norm=0.9, alpha=0.3, seed=6)
    x = inputs()
    assert not torch.allclose(
        plain.cell(x @ plain.Us[0].mT, x), skipped.cell(x @ plain.Us[0].mT, x)
    )
    assert torch.allclose(plain.solve(x, tol=1e-11).z, skipped.solve(x, tol=1e-11).z, atol=1e-9)


# --- convolutional cell ------------------------------------------------------------------------


def images(n: int = 2) -> Tensor:
    return normal(n, 1, 6, 6, g=generator(8))


def test_residual_cell_is_finite_and_normalised() -> None:
    model = ResidualCell.init(std=0.01, channels=8, inner=8, k=3, seed=0)
    x = images()
    z = model.start(model.inject(x))
    assert z.shape == (2, 8, 6, 6)
    for _ in range(5):
        z = model.cell(z, x).detach()
        groups = z.reshape(2, 4, -1)
        assert torch.allclose(groups.mean(dim=2), torch.zeros(2, 4).double(), atol=1e-10)
        assert torch.allclose(groups.std(dim=2, correction=0), torch.ones(2, 4).double(), atol=1e-2)
    assert bool(torch.isfinite(z).all())
    assert model(x).shape == (2, 3)


def test_residual_cell_does_not_feel_the_scale_of_its_first_convolution() -> None:
    small, large = (
        ResidualCell.init(std=(s, 0.1), channels=8, inner=8, seed=0) for s in (1.0, 100.0)
    )
    z = normal(2, 8, 6, 6, g=generator(9))
    assert torch.allclose(small.cell(z, images()), large.cell(z, images()), atol=1e-3)
    louder = ResidualCell.init(std=(1.0, 1.0), channels=8, inner=8, seed=0)
    assert not torch.allclose(small.cell(z, images()), louder.cell(z, images()), atol=0.1)


def test_residual_cell_refuses_bad_sizes() -> None:
    model = ResidualCell.init(std=0.01, channels=8, inner=8, seed=0)
    with pytest.raises(
        ValueError, match=r"images \(n, 1, height, width\), got shape \(2, 3, 6, 6\)"
    ):
        model.solve(normal(2, 3, 6, 6, g=generator(0)))
    with pytest.raises(ValueError, match="groups=4 must divide both channel counts, 8 and 6"):
        ResidualCell.init(std=0.01, channels=8, inner=6, seed=0)
    parts = [p.detach() for p in (model.W1, model.W2, model.E)]
    with pytest.raises(ValueError, match=r"V must be \(k, 32\), got \(10, 31\)"):
        ResidualCell(*parts, V=model.V.detach()[:, :31])


# --- bad weights -----------------------------------------------------------------------------

W, U, A = torch.eye(3).double(), torch.ones(3, 2).double(), torch.ones(3).double()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: VanillaDEQ(W[:2], U, A), r"W must have shape \(m, m\) with m = 2, got \(2, 3\)"),
        (lambda: VanillaDEQ(W, U[:2], A), r"U must have shape \(m, d\) with m = 3, got \(2, 2\)"),
        (lambda: VanillaDEQ(W, U, W), r"a must have shape \(m\), got \(3, 3\)"),
        (lambda: VanillaDEQ(W * math.nan, U, A), "W has NaN or infinite entries"),
        (lambda: VanillaDEQ(W, U, A, sigma="swish"), "unknown activation 'swish'"),
        (lambda: ReLUImplicit(W, U, A, A, 0.0), "gamma must be positive, got 0.0"),
        (lambda: ReLUImplicit(W, U, A, A[:2], 0.1), r"c must have shape"),
        (lambda: MonDEQ(W, W, U, A, 0.0), "mu must be positive"),
        (lambda: MonDEQ(W, W * math.inf, U, A, 1.0), "B has NaN or infinite"),
        (lambda: OptEq(W, U, A, W, alpha=0.0), r"alpha must be in \(0, 1\], got 0.0"),
        (lambda: OptEq(W, U, A[:2], W), r"b1 must have shape \(h1\)"),
        (lambda: DeepOptEq([W], [U, U], [A], W), "one W, U and b per layer.*got 1, 2, 1"),
        (lambda: DeepOptEq([], [], [], W), "at least one: got 0, 0, 0"),
    ],
)
def test_bad_weights_are_sentences(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
