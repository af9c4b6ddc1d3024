"""The hidden objective against a general convex solver, autodiff and closed forms."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from deqbook.activations import Activation, identity, relu, tanh
from deqbook.pages.p01b_monotone.lab import segment_instance
from deqbook.pages.p05a_hidden_objective.lab.objective import (
    bounded_quadratic,
    minimise_in_state,
    nnls_minimum,
    unit_layer,
)
from deqbook.pages.p05b_selection.lab import random_segment
from deqbook.regularize import (
    HiddenObjective,
    NoMinimiser,
    nonnegative_qp,
    potential,
)
from deqbook.runtime import generator, normal

F64 = torch.float64
SHAPES = [(6, 6, 1.0), (4, 6, 1.0), (9, 5, 1.0), (9, 5, 2.5)]


def layer(h: int = 6, m: int = 6, tau: float = 1.0, sigma: Activation = relu, seed: int = 0):
    g = generator(seed)
    return unit_layer(g, h, m, norm=0.9 * tau**0.5, tau=tau, sigma=sigma), g


def interior_point(problem: cp.Problem) -> None:
    problem.solve(
        solver="CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13, max_iter=200
    )


def hidden(phi: HiddenObjective, s: cp.Variable) -> cp.Expression:
    """½sᵀ(I/τ - WWᵀ/τ²)s - qᵀs/τ, the objective in the code."""
    W, q = phi.W.numpy(), phi.q.numpy()
    H = np.eye(len(q)) / phi.tau - W @ W.T / phi.tau**2
    return cp.quad_form(s, cp.psd_wrap((H + H.T) / 2)) / 2 - q @ s / phi.tau


# --- potentials ---


@pytest.mark.parametrize("sigma", [relu, tanh, identity])
def test_potential_is_the_integral_and_its_conjugate(sigma) -> None:
    pot, t = potential(sigma), torch.linspace(-4, 4, 41, dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(pot.value(t).sum(), t)
    assert torch.allclose(slope, sigma(t), atol=1e-12)
    assert float(pot.value(torch.zeros(1, dtype=F64))) == pytest.approx(0, abs=1e-12)
    s = sigma(t.detach())
    assert torch.allclose(pot.value(t) + pot.conjugate(s), s * t, atol=1e-12)  # Fenchel and Young


def test_conjugates_outside_and_at_the_edge() -> None:
    s = torch.tensor([-1.5, -1.0, 0.0, 1.0, 1.5], dtype=F64)
    assert potential(relu).conjugate(s).tolist() == [np.inf, np.inf, 0.0, 0.5, 1.125]
    found = potential(tanh).conjugate(s)
    assert torch.isinf(found[[0, -1]]).all()
    assert torch.allclose(found[[1, 3]], torch.full((2,), np.log(2), dtype=F64))


def test_an_unknown_activation_is_named() -> None:
    swish = Activation("swish", torch.nn.functional.silu, torch.ones_like, relu.prox)
    with pytest.raises(ValueError, match=r"'swish'.*identity.*relu.*tanh"):
        HiddenObjective(torch.eye(2, dtype=F64), torch.zeros(2, dtype=F64), sigma=swish)


def test_an_activation_may_be_named() -> None:
    phi, _ = layer(sigma=tanh)
    named = HiddenObjective(phi.W, phi.q, sigma="tanh")
    assert named.sigma is tanh
    z = normal(3, 6, g=generator(1))
    assert torch.equal(named.layer(z), phi.layer(z))
    with pytest.raises(ValueError, match="swish"):
        HiddenObjective(phi.W, phi.q, sigma="swish")


# --- the quadratic problem ---


@pytest.mark.parametrize("seed", range(20))
def test_nonnegative_qp_satisfies_the_optimality_conditions(seed: int) -> None:
    g = generator(seed)
    A = normal(8, 8, g=g)
    H, c = A @ A.mT + 1e-3 * torch.eye(8, dtype=F64), 3 * normal(8, g=g)
    s, _ = nonnegative_qp(H, c)
    pull = H @ s - c
    assert s.min() >= 0
    assert pull.min() > -1e-9
    assert abs(float(s @ pull)) < 1e-9
    assert np.allclose(s, bounded_quadratic(H.numpy(), c.numpy(), 0), atol=1e-7)


def test_the_backup_rule_ends_a_cycle() -> None:
    """On this definite, unsymmetric matrix the plain Newton exchange runs in a circle."""
    rows = [[2.0, 2, 7, -5], [-2, 3, -4, 4], [-5, 4, 5, -8], [5, -4, 8, 1]]
    H, c = torch.tensor(rows, dtype=F64), torch.tensor([0.0, 2, -4, 1], dtype=F64)
    on, seen = c > 0, []
    for _ in range(20):
        s = torch.zeros(4, dtype=F64)
        s[on] = torch.linalg.solve(H[on][:, on], c[on])
        seen.append(tuple(on.tolist()))
        on = torch.where(on, s > 0, H @ s - c < 0)
    assert len(set(seen)) < len(seen)  # it comes back to a set without having solved the problem
    s, _ = nonnegative_qp(H, c)
    assert s.min() >= 0
    assert (H @ s - c).min() > -1e-12
    assert abs(float(s @ (H @ s - c))) < 1e-12


def test_an_indefinite_matrix_is_refused() -> None:
    H = torch.tensor([[-1.0, 0.0], [0.0, -1.0]], dtype=F64)
    with pytest.raises(RuntimeError, match=r"least eigenvalue -1\.0e\+00"):
        nonnegative_qp(H, torch.tensor([1.0, 1.0], dtype=F64), max_steps=30)


# --- φ, its prox, its envelope, its minimiser ---


@pytest.mark.parametrize(("h", "m", "tau"), SHAPES)
@pytest.mark.parametrize("sigma", [relu, tanh, identity])
def test_layer_is_the_gradient_and_phi_the_conjugate(h, m, tau, sigma) -> None:
    phi, g = layer(h, m, tau, sigma)
    z = normal(6, m, g=g).requires_grad_()
    (slope,) = torch.autograd.grad(phi.psi(z).sum(), z)
    assert torch.allclose(slope, phi.layer(z), atol=1e-12)
    z, fz = z.detach(), phi.layer(z.detach())
    conjugate = phi.value(fz) + fz.square().sum(-1) / 2
    assert torch.allclose(phi.psi(z) + conjugate, (z * fz).sum(-1), atol=1e-10)


@pytest.mark.parametrize(("h", "m", "tau"), SHAPES)
def test_phi_by_inner_minimisation_relu(h, m, tau) -> None:
    phi, g = layer(h, m, tau)
    for z in phi.layer(2 * normal(4, m, g=g)):
        s = cp.Variable(h, nonneg=True)
        cost = cp.sum_squares(s) / 2 - phi.q.numpy() @ s
        problem = cp.Problem(cp.Minimize(cost / tau), [phi.W.numpy().T @ s == tau * z.numpy()])
        interior_point(problem)
        expected = problem.value - float(z @ z) / 2
        assert float(phi.value(z)) == pytest.approx(expected, abs=1e-7)


def test_phi_by_inner_minimisation_tanh() -> None:
    phi, g = layer(9, 5, 2.0, tanh)
    for z in phi.layer(normal(3, 5, g=g)):
        s = cp.Variable(9)
        entropy = -(cp.sum(cp.entr(1 + s)) + cp.sum(cp.entr(1 - s))) / 2
        problem = cp.Problem(
            cp.Minimize((entropy - phi.q.numpy() @ s) / 2), [phi.W.numpy().T @ s == 2 * z.numpy()]
        )
        problem.solve(solver="CLARABEL")
        assert float(phi.value(z)) == pytest.approx(problem.value - float(z @ z) / 2, abs=1e-6)


def test_phi_is_infinite_where_no_code_leads() -> None:
    one = HiddenObjective(torch.eye(2, dtype=F64) / 2, torch.zeros(2, dtype=F64))
    assert torch.isinf(one.value(torch.tensor([[-1.0, 1.0]], dtype=F64))).all()
    thin = HiddenObjective(torch.tensor([[0.5, 0.0]], dtype=F64), torch.zeros(1, dtype=F64))
    values = thin.value(torch.tensor([[1.0, 0.0], [1.0, 0.1]], dtype=F64))
    assert values.tolist() == [pytest.approx(1.5), np.inf]  # s = 2: ½·4 - ½
    tall = HiddenObjective(torch.full((3, 1), 0.5, dtype=F64), torch.zeros(3, dtype=F64))
    assert torch.isinf(tall.value(torch.tensor([[-0.1]], dtype=F64))).all()
    bounded = HiddenObjective(tall.W, tall.q, sigma=tanh)
    values = bounded.value(torch.tensor([[1.4], [1.6]], dtype=F64))  # the range is (-1.5, 1.5)
    assert torch.isfinite(values[0])
    assert torch.isinf(values[1])


def test_phi_keeps_the_shape_of_its_rows() -> None:
    phi, g = layer()
    z = phi.layer(normal(2, 3, 6, g=g))
    assert phi.value(z).shape == (2, 3)
    assert phi.prox(z, 0.5).shape == (2, 3, 6)


@pytest.mark.parametrize(("h", "m", "tau"), SHAPES)
@pytest.mark.parametrize("step", [0.3, 1.0, 2.0])
def test_prox_and_envelope_against_cvxpy(h, m, tau, step) -> None:
    phi, g = layer(h, m, tau)
    z = normal(m, g=g)
    s = cp.Variable(h, nonneg=True)
    state = phi.W.numpy().T @ s / tau
    distance = cp.sum_squares(state - z.numpy()) / (2 * step)
    problem = cp.Problem(cp.Minimize(hidden(phi, s) + distance))
    interior_point(problem)
    assert np.allclose(phi.prox(z, step), state.value, atol=1e-6)
    envelope = phi.envelope(step)
    assert float(envelope.value(z)) == pytest.approx(problem.value, abs=1e-8)
    if step == 1:
        assert torch.allclose(phi.prox(z), phi.layer(z), atol=1e-13)


def test_gradient_of_the_envelope_by_differences() -> None:
    phi, g = layer(9, 5)
    z, envelope, eps = normal(5, g=g), phi.envelope(0.4), 1e-5
    moves = eps * torch.eye(5, dtype=F64)
    slope = (envelope.value(z + moves) - envelope.value(z - moves)) / (2 * eps)
    assert torch.allclose(slope, envelope.gradient(z), atol=1e-8)


@pytest.mark.parametrize(("h", "m", "tau"), SHAPES)
def test_minimiser_five_ways(h, m, tau) -> None:
    phi, _ = layer(h, m, tau, seed=3)
    found = phi.minimiser()
    assert found.status == "unique"
    assert torch.allclose(found.s @ phi.W / tau, found.z)
    assert torch.allclose(phi.layer(found.z), found.z, atol=1e-13)
    assert torch.allclose(nnls_minimum(phi), found.z, atol=1e-12)
    assert float(phi.value(found.z)) == pytest.approx(found.value, abs=1e-10)
    s = cp.Variable(h, nonneg=True)
    problem = cp.Problem(cp.Minimize(hidden(phi, s)))
    interior_point(problem)
    assert np.allclose(phi.W.numpy().T @ s.value / tau, found.z, atol=1e-6)
    assert found.value == pytest.approx(problem.value, abs=1e-9)
    if h == m:
        state = minimise_in_state(phi, torch.zeros(m, dtype=F64), 0.0)
        assert torch.allclose(state, found.z, atol=1e-6)


def test_newton_takes_few_steps_close_to_the_unit_ball() -> None:
    phi = unit_layer(generator(0), 40, 40, norm=0.999)
    found = phi.minimiser()
    assert found.steps <= 6
    assert torch.allclose(phi.layer(found.z), found.z, atol=1e-11)


def test_minimisers_on_the_unit_sphere() -> None:
    model, low, high = segment_instance()
    phi = HiddenObjective(model.W, model.bs[0])  # parameters are detached
    found = phi.minimiser()
    assert found.status == "exists"
    assert torch.allclose(phi.layer(found.z), found.z, atol=1e-12)
    assert torch.allclose(
        phi.value(torch.stack([low, (low + high) / 2, high])),
        torch.full((3,), found.value, dtype=F64),
    )
    one = torch.ones(1, 1, dtype=F64)
    with pytest.raises(NoMinimiser, match="no equilibrium"):
        HiddenObjective(one, one[0]).minimiser()
    assert float(HiddenObjective(one, -one[0]).minimiser().z) == 0.0


@pytest.mark.parametrize("m", [4, 12, 40])
def test_the_singular_problem_settles_at_rounding(m: int) -> None:
    for seed in range(8):
        case = random_segment(seed, m)
        for scale in (1e-4, 1.0, 1e4):
            phi = HiddenObjective(case.W, scale * case.b)
            found = phi.minimiser()
            assert found.status == "exists"
            assert found.steps <= 30
            gap = float((phi.layer(found.z) - found.z).norm())
            assert gap <= 1e-12 * float(phi.q.norm() + found.s.norm())


def test_a_norm_above_the_root_of_tau_is_refused_with_the_remedy() -> None:
    phi = HiddenObjective(1.5 * torch.eye(2, dtype=F64), torch.ones(2, dtype=F64))
    for call in (phi.minimiser, lambda: phi.prox(torch.zeros(2, dtype=F64))):
        with pytest.raises(ValueError, match=r"‖W‖ = 1\.5 exceeds √τ = 1.*raise tau to 2\.25"):
            call()
    assert not phi.proximal
    raised = HiddenObjective(phi.W, phi.q, 2.5).minimiser()
    assert torch.allclose(raised.z, torch.full((2,), 6.0, dtype=F64))  # z = 1.5(1.5z+1)/2.5


def test_wrong_uses_are_named() -> None:
    eye, zero = torch.eye(2, dtype=F64), torch.zeros(2, dtype=F64)
    with pytest.raises(ValueError, match=r"one row of inject"):
        HiddenObjective(eye, torch.zeros(1, 2, dtype=F64))
    with pytest.raises(ValueError, match="tau must be positive"):
        HiddenObjective(eye, zero, 0.0)
    with pytest.raises(ValueError, match="for ReLU, not tanh"):
        HiddenObjective(eye, zero, sigma=tanh).minimiser()
    with pytest.raises(ValueError, match=r"proximal step.*-1"):
        HiddenObjective(eye, zero).prox(zero, -1)
