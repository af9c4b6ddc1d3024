"""Splitting against enumeration of active sets, quadratic programs and Newton's method."""

from __future__ import annotations

import itertools
import math

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls, root
from torch import Tensor

from deqbook.activations import relu, tanh
from deqbook.linalg import operator_norm
from deqbook.models import MonDEQ
from deqbook.runtime import generator, normal
from deqbook.solvers import Anderson, Newton, NotConverged, fixed_point
from deqbook.splitting import (
    DouglasRachford,
    ForwardBackward,
    MonotoneProblem,
    PeacemanRachford,
    forward_backward_factor,
    peaceman_rachford_factor,
    split,
)

METHODS = [ForwardBackward(), PeacemanRachford(), DouglasRachford(), PeacemanRachford(alpha=0.3)]
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)
quick = settings(derandomize=True, deadline=None, max_examples=20)


def monotone(seed: int, *, m: int = 6, n: int = 4, mu: float = 0.4, skew: float = 1.0):
    """Draw W with I - W ⪰ μI and a right-hand side."""
    g = generator(seed)
    A, B, q = normal(m, m, g=g) / math.sqrt(m), normal(m, m, g=g) / math.sqrt(m), normal(n, m, g=g)
    W = (1 - mu) * torch.eye(m, dtype=torch.float64) - A.mT @ A / 2 + skew * (B - B.mT)
    return W, 2 * q


def by_enumeration(W: Tensor, q: Tensor) -> Tensor:
    """Try every set of active units: z = (Wz + q) on it, z = 0 and Wz + q <= 0 off it."""
    M, rows = np.eye(len(W)) - W.numpy(), []
    for b in q.numpy():
        solutions = []
        for pattern in itertools.product([False, True], repeat=len(b)):
            on = np.array(pattern)
            z = np.zeros(len(b))
            if on.any():
                z[on] = np.linalg.solve(M[np.ix_(on, on)], b[on])
            if (z >= -1e-12).all() and ((b - M @ z)[~on] <= 1e-12).all():
                solutions.append(z)
        assert len(solutions) == 1, "the monotone problem has exactly one solution"
        rows.append(solutions[0])
    return torch.from_numpy(np.stack(rows))


@every_method
def test_relu_against_enumeration(method) -> None:
    for seed, m in ((0, 1), (1, 3), (2, 6), (3, 8)):
        W, q = monotone(seed, m=m)
        found = split(MonotoneProblem(W, q), method, tol=1e-11, max_steps=50_000)
        assert torch.allclose(found.z, by_enumeration(W, q), atol=1e-9)


@every_method
def test_relu_and_tanh_against_newton(method) -> None:
    for sigma in (relu, tanh):
        W, q = monotone(5, m=12, skew=0.5)
        newton = fixed_point(
            lambda z, W=W, q=q, sigma=sigma: sigma(z @ W.mT + q),
            torch.zeros_like(q),
            solver=Newton(),
            tol=1e-13,
        )
        found = split(MonotoneProblem(W, q, sigma), method, tol=1e-11, max_steps=50_000)
        assert torch.allclose(found.z, newton.z, atol=1e-9)


@every_method
def test_tanh_against_minpack(method) -> None:
    W, q = monotone(6, m=5, n=3, skew=0.4)
    w = W.numpy()
    expected = [
        root(lambda z, b=b: z - np.tanh(w @ z + b), np.zeros(5), tol=1e-13).x for b in q.numpy()
    ]
    found = split(MonotoneProblem(W, q, tanh), method, tol=1e-11, max_steps=50_000)
    assert np.allclose(found.z, expected, atol=1e-9)


@every_method
def test_symmetric_relu_problems_are_quadratic_programs(method) -> None:
    """With W = Wᵀ the equilibrium minimises ½z'Mz - q'z over z >= 0: two referees."""
    W, q = monotone(7, m=10, n=2, skew=0.0)
    W = (W + W.mT) / 2
    found = split(MonotoneProblem(W, q), method, tol=1e-11, max_steps=50_000)
    M = np.eye(10) - W.numpy()
    R = np.linalg.cholesky(M).T  # M = R'R
    for z, b in zip(found.z.numpy(), q.numpy()):
        assert np.allclose(z, nnls(R, np.linalg.solve(R.T, b))[0], atol=1e-8)
        v = cvxpy.Variable(10, nonneg=True)
        cvxpy.Problem(cvxpy.Minimize(cvxpy.quad_form(v, cvxpy.psd_wrap(M)) / 2 - b @ v)).solve()
        assert np.allclose(z, v.value, atol=1e-4)


@pytest.mark.parametrize("sigma", [relu, tanh], ids=lambda s: s.name)
def test_large_skew_parts_are_no_obstacle(sigma) -> None:
    W, q = monotone(8, m=10, skew=8.0)
    assert operator_norm(W) > 10
    found = split(MonotoneProblem(W, q, sigma), tol=1e-10, max_steps=50_000)
    newton = fixed_point(
        lambda z: sigma(z @ W.mT + q), torch.zeros_like(q), solver=Newton(), tol=1e-12
    )
    assert torch.allclose(found.z, newton.z, atol=1e-8)


# --- rates -----------------------------------------------------------------------------------


@quick
@given(st.integers(0, 10_000), st.floats(0.05, 2.0), st.floats(0.0, 3.0))
def test_factors_bound_the_contraction_of_the_iterations(seed: int, mu: float, skew: float) -> None:
    W, q = monotone(seed, m=5, n=8, mu=mu, skew=skew)
    problem = MonotoneProblem(W, q, tanh if seed % 2 else relu)
    assert problem.mu >= mu - 1e-12
    g = generator(seed + 1)
    x, y = (3 * normal(*q.shape, g=g) for _ in range(2))
    for c in (0.3, 1.0, 1.9):
        alpha = c * problem.mu / problem.L**2
        f = ForwardBackward(alpha).iteration(problem)
        bound = forward_backward_factor(alpha, problem.mu, problem.L)
        assert bound < 1
        assert float(((f(x) - f(y)).norm(dim=1) / (x - y).norm(dim=1)).max()) <= bound + 1e-12
    for c in (0.2, 1.0, 5.0):
        alpha = c / problem.L
        f = PeacemanRachford(alpha).iteration(problem)
        bound = peaceman_rachford_factor(alpha, problem.mu, problem.L)
        assert bound < 1
        assert float(((f(x) - f(y)).norm(dim=1) / (x - y).norm(dim=1)).max()) <= bound + 1e-12


def test_factors_on_instances_where_they_are_equalities() -> None:
    M = torch.tensor([[0.5, -1.0], [1.0, 0.5]], dtype=torch.float64)  # |eigenvalues| = L
    L, eye = math.sqrt(1.25), torch.eye(2, dtype=torch.float64)
    for alpha in (0.1, 0.4, 0.8):
        step = operator_norm(eye - alpha * M)
        assert forward_backward_factor(alpha, 0.5, L) == pytest.approx(step, abs=1e-12)
        cayley = operator_norm((eye - alpha * M) @ torch.linalg.inv(eye + alpha * M))
        assert peaceman_rachford_factor(alpha, 0.5, L) >= cayley - 1e-12
    # M = LI: the Cayley factor is |1 - aL|/(1 + aL), and so is the bound with mu = L
    for alpha in (0.1, 0.5, 3.0):
        expected = abs(1 - 2 * alpha) / (1 + 2 * alpha)
        assert peaceman_rachford_factor(alpha, 2.0, 2.0) == pytest.approx(expected, abs=1e-12)


def test_default_steps() -> None:
    W, q = monotone(9)
    problem = MonotoneProblem(W, q)
    assert problem.mu == pytest.approx(
        float(torch.linalg.eigvalsh(problem.M + problem.M.mT)[0]) / 2
    )
    assert ForwardBackward().step_size(problem) == pytest.approx(problem.mu / problem.L**2)
    assert PeacemanRachford().step_size(problem) == pytest.approx(1 / problem.L)
    assert PeacemanRachford(0.7).step_size(problem) == 0.7


def test_forward_backward_diverges_beyond_its_range() -> None:
    M = torch.tensor([[0.5, -1.0], [1.0, 0.5]], dtype=torch.float64)
    q = torch.full((1, 2), 5.0, dtype=torch.float64) @ M.mT
    problem = MonotoneProblem(torch.eye(2, dtype=torch.float64) - M, q)
    alpha = 2 * problem.mu / problem.L**2
    assert bool(split(problem, ForwardBackward(0.98 * alpha), max_steps=5000).converged.all())
    with pytest.raises(NotConverged, match=r"ForwardBackward with alpha=.*default step 1/L") as c:
        split(problem, ForwardBackward(1.05 * alpha), max_steps=1000)
    assert not bool(c.value.solution.converged.any())


def test_douglas_rachford_is_half_a_step_of_peaceman_rachford() -> None:
    W, q = monotone(10)
    problem, u = MonotoneProblem(W, q), normal(*q.shape, g=generator(0))
    full, half = (s(0.7).iteration(problem)(u) for s in (PeacemanRachford, DouglasRachford))
    assert torch.allclose(half, (u + full) / 2, atol=1e-12)


@every_method
def test_the_solution_is_a_fixed_point_of_every_iteration(method) -> None:
    for sigma in (relu, tanh):
        W, q = monotone(11, m=5)
        problem = MonotoneProblem(W, q, sigma)
        z = split(problem, tol=1e-13, max_steps=50_000).z
        u = method.encode(problem, z)
        assert torch.allclose(method.iteration(problem)(u), u, atol=1e-11)
        assert torch.allclose(method.read(problem, u), z, atol=1e-11)


# --- promises --------------------------------------------------------------------------------


@quick
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, -5.0, -300.0, -1e5]),
    st.sampled_from(METHODS),
    st.sampled_from([1e-4, 1e-8]),
)
def test_the_residual_of_the_equation_obeys_the_tolerance(
    seed: int, shift: float, method, tol: float
) -> None:
    """Also where units are pushed far below zero, so that u is huge and z is not."""
    W, q = monotone(seed, m=8, skew=0.5)
    q[:, 2:] += shift
    found = split(MonotoneProblem(W, q), method, tol=tol, max_steps=50_000)
    image = torch.relu(found.z @ W.mT + q)
    residual = (image - found.z).norm(dim=1) / image.norm(dim=1).clamp(min=1.0)
    assert bool(found.converged.all())
    assert float(residual.max()) <= tol
    assert torch.allclose(residual, found.residual, rtol=0, atol=1e-12)


@every_method
def test_a_warm_start_is_a_state(method) -> None:
    W, q = monotone(12)
    problem = MonotoneProblem(W, q)
    cold = split(problem, method, tol=1e-10, max_steps=50_000)
    again = split(problem, method, z0=cold.z, tol=1e-6)
    assert again.steps.tolist() == [0] * len(q)
    near = split(MonotoneProblem(W, q + 1e-6), method, z0=cold.z, max_steps=50_000)
    scratch = split(MonotoneProblem(W, q + 1e-6), method, max_steps=50_000)
    assert int(near.steps.sum()) < int(scratch.steps.sum())


@every_method
def test_any_solver_can_drive_a_splitting(method) -> None:
    W, q = monotone(13, m=20, mu=0.05)
    problem = MonotoneProblem(W, q)
    plain = split(problem, method, tol=1e-9, max_steps=100_000)
    fast = split(problem, method, solver=Anderson(), tol=1e-9, max_steps=100_000)
    assert torch.allclose(plain.z, fast.z, atol=1e-6)
    assert fast.nfe < plain.nfe
    assert fast.method == type(method).__name__


def test_float32() -> None:
    W, q = monotone(14)
    found = split(MonotoneProblem(W.float(), q.float()))
    assert found.z.dtype == torch.float32
    assert torch.allclose(found.z.double(), by_enumeration(W, q), atol=1e-4)


def test_problems_that_are_not_monotone_are_refused() -> None:
    W = torch.tensor([[2.0]], dtype=torch.float64)
    q = -torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"not strongly monotone \(mu = -1 <= 0\)"):
        split(MonotoneProblem(W, q))
    one = torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="mu = 0 <= 0"):
        split(MonotoneProblem(one, one))
    unforced = split(MonotoneProblem(one, one), max_steps=50, throw=False)
    assert not bool(unforced.converged.any())


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan])
def test_a_step_must_be_positive(alpha: float) -> None:
    W, q = monotone(15)
    with pytest.raises(ValueError, match="alpha must be positive"):
        split(MonotoneProblem(W, q), PeacemanRachford(alpha))


def test_shapes_are_checked() -> None:
    W, q = monotone(16)
    with pytest.raises(ValueError, match=r"W must be square, got shape \(5, 6\)"):
        MonotoneProblem(W[:5], q)
    with pytest.raises(ValueError, match=r"q must be \(n, 6\).*got shape \(6,\)"):
        MonotoneProblem(W, q[0])


def test_models_can_choose_their_splitting() -> None:
    model = MonDEQ.init(8, 3, mu=0.5, seed=0)
    x = normal(4, 3, g=generator(1))
    ends = [model.solve(x, solver=s, tol=1e-10).z for s in (*METHODS, Newton())]
    for end in ends[1:]:
        assert torch.allclose(end, ends[0], atol=1e-8)
