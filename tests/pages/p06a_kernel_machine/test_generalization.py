"""Complexity of kernel balls, the frozen-kernel predictor, the path kernel, and two repairs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from small_models import tanh_deq
from torch import Tensor

from deqbook.bounds import monotone, relu_implicit
from deqbook.bounds.generalization import (
    ENUMERATE,
    after_sample,
    complexity_term,
    confidence,
    explicit_bound,
    rademacher,
    sign_norms,
    trace_bound,
)
from deqbook.dynamics import LeftRegion, gradient_flow, linearised_flow
from deqbook.kernels import empirical_ntk, kernel_regression
from deqbook.kernels.frozen import freeze
from deqbook.models import DeepOptEq, MonDEQ, ReLUImplicit
from deqbook.pages.p06a_kernel_machine.lab.path_kernel import path_kernel
from deqbook.runtime import generator, normal, signs, sphere


def gram(n: int, rank: int | None = None, seed: int = 0) -> Tensor:
    F = normal(n, n if rank is None else rank, g=generator(seed))
    return F @ F.mT / n


def loop(K: Tensor) -> list[float]:
    """All values of √(εᵀKε), one by one."""
    found = []
    for e in itertools.product((-1.0, 1.0), repeat=len(K)):
        eps = torch.tensor(e, dtype=K.dtype)
        found.append(math.sqrt(max(float(eps @ K @ eps), 0.0)))
    return found


# --- Rademacher complexity -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 6, 9])
def test_all_signs_are_tried_once(n: int) -> None:
    K = gram(n)
    table = sorted(sign_norms(K).tolist())
    assert table == pytest.approx(sorted(loop(K))[::2], abs=1e-12)  # ε and -ε count once
    assert rademacher(K, 2.5).value == pytest.approx(2.5 / n * np.mean(loop(K)), rel=1e-12)


def test_complexity_of_known_kernels() -> None:
    n = 8
    assert rademacher(torch.eye(n, dtype=torch.float64), 3.0).value == pytest.approx(
        3 / math.sqrt(n), rel=1e-12
    )
    ones = torch.ones(n, n, dtype=torch.float64)  # |ε₁+…+ε_n|, a random walk
    walk = sum(math.comb(n, k) * abs(n - 2 * k) for k in range(n + 1)) / 2**n
    assert rademacher(ones).value == pytest.approx(walk / n, rel=1e-12)
    assert trace_bound(ones) == pytest.approx(1 / math.sqrt(n), rel=1e-12)


@pytest.mark.parametrize("n", [4, 12, 20])
def test_the_trace_bounds_the_complexity(n: int) -> None:
    K = gram(n, rank=3)
    exact = rademacher(K, 1.7)
    assert exact.exact
    assert exact.signs == 2**n
    assert 0.5 * trace_bound(K, 1.7) < exact.value < trace_bound(K, 1.7)
    diagonal = torch.diag(K.diagonal())
    assert rademacher(diagonal).value == pytest.approx(trace_bound(diagonal), rel=1e-12)


def test_without_its_root_the_bound_is_none() -> None:
    K = gram(6) / 100
    assert float(K.trace()) < 1
    assert rademacher(K).value > float(K.trace()) / 6


def test_drawn_signs_agree_within_their_error() -> None:
    K = gram(10)
    exact = rademacher(K).value
    off = [
        (drawn.value - exact) / drawn.error
        for drawn in (rademacher(K, draws=3000, seed=s) for s in range(20))
    ]
    assert max(abs(x) for x in off) < 4
    assert 0.5 < float(np.std(off)) < 1.7  # the standard error is one
    assert not rademacher(gram(ENUMERATE + 1), draws=50).exact
    assert rademacher(gram(ENUMERATE + 1)).signs == 10_000


def test_complexity_says_how_it_was_found() -> None:
    assert str(rademacher(gram(3))).endswith("(all 8 signs)")
    drawn = rademacher(torch.eye(3, dtype=torch.float64), draws=10)
    assert not drawn.exact  # all draws are equal, and still drawn
    assert "10 draws" in str(drawn)


def test_errors_of_the_complexity() -> None:
    with pytest.raises(ValueError, match=r"Gram matrix \(n, n\).*\(2, 3\)"):
        rademacher(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="differs from its transpose by 1"):
        trace_bound(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="diagonal entry -1"):
        sign_norms(torch.diag(torch.tensor([1.0, -1.0])))
    with pytest.raises(ValueError, match=r"differs from its transpose by nan"):
        sign_norms(torch.full((2, 2), math.nan))
    with pytest.raises(ValueError, match=r"2\^29 choices.*draws="):
        sign_norms(torch.eye(30))
    with pytest.raises(ValueError, match=r"draws must be at least 2.*got 1"):
        rademacher(gram(3), draws=1)
    with pytest.raises(ValueError, match=r"radius.*got -1"):
        rademacher(gram(3), -1.0)
    with pytest.raises(ValueError, match=r"radius.*got inf"):
        trace_bound(gram(3), math.inf)


# --- bounds --------------------------------------------------------------------------------------


def test_explicit_bound_is_the_formula() -> None:
    K, B, delta, rho, c = gram(30), 3.3, 0.02, 2.0, 1.5
    plain = explicit_bound(K, B, delta=delta, lipschitz=rho, c=c, fixed_in_advance=True)
    by_hand = 2 * rho * B / 30 * math.sqrt(float(K.trace()))
    by_hand += 3 * c * math.sqrt(math.log(2 / delta) / 60)
    assert plain.total == pytest.approx(by_hand, rel=1e-12)
    assert (plain.radius, plain.delta) == (B, delta)
    paid = explicit_bound(K, B, delta=delta, lipschitz=rho, c=c)
    assert paid.radius == 4.0
    assert paid.delta == pytest.approx(delta / 12)  # k = 2: (k+1)(k+2) = 12
    assert paid.complexity == pytest.approx(plain.complexity * 4 / 3.3, rel=1e-12)
    assert paid.confidence > plain.confidence
    assert str(plain).startswith(f"{by_hand:.4g} = ")


@pytest.mark.parametrize("B", [0.0, 0.3, 1.0, 1.0001, 2.0, 7.9, 8.0, 8.1, 1e6, 2.0**40])
def test_the_ball_after_the_sample_holds_the_function(B: float) -> None:
    radius, share = after_sample(B, 0.1)
    assert B <= radius <= 2 * max(B, 1.0)
    k = round(math.log2(radius))
    assert radius == 2.0**k
    assert share == pytest.approx(0.1 / ((k + 1) * (k + 2)))


def test_the_shares_of_the_balls_sum_to_delta() -> None:
    shares = [after_sample(2.0**k, 0.1)[1] for k in range(1000)]
    assert sum(shares) == pytest.approx(0.1 * (1 - 1 / 1001), rel=1e-12)


def test_complexity_term_is_a_linear_solve() -> None:
    K, r = gram(5) + 0.1 * torch.eye(5), normal(5, g=generator(3))
    assert complexity_term(K, r) == pytest.approx(float(r @ torch.linalg.solve(K, r)), rel=1e-10)


def test_errors_of_the_bounds() -> None:
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta must lie between 0 and 1"):
            confidence(10, delta)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        confidence(0, 0.1)
    with pytest.raises(ValueError, match="lipschitz, c and the complexity"):
        explicit_bound(gram(3), 1.0, delta=0.1, lipschitz=-1.0)
    twins = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"singular.*Drop repeated"):
        complexity_term(twins, torch.tensor([1.0, -1.0], dtype=torch.float64))


# --- the frozen kernel ---------------------------------------------------------------------------


def test_frozen_kernel_solves_its_equation() -> None:
    K, y, start = gram(5) + 0.05 * torch.eye(5), normal(5, g=generator(1)), torch.ones(5).double()
    frozen = freeze(K, y, start)
    times = [0.0, 0.3, 2.0, 40.0]
    again = linearised_flow(K.numpy(), (start - y).numpy(), times, y=y.numpy())
    assert np.allclose(frozen.fitted(times).numpy(), again.predictions, atol=1e-12)
    k, first = normal(3, 5, g=generator(2)), normal(3, g=generator(4))
    # by Simpson's rule on f' = k(y - ŷ), a route without eigenvectors or inverses
    grid = torch.linspace(0, 2, 2001, dtype=torch.float64)
    left = torch.stack([torch.linalg.matrix_exp(-K * t) @ (y - start) for t in grid])
    weights = torch.ones(2001, dtype=torch.float64)
    weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
    by_hand = first + k @ (left.mT @ weights) * (2 / 2000 / 3)
    assert torch.allclose(frozen.predict(k, first, 2.0), by_hand, atol=1e-10)
    assert torch.allclose(frozen.predict(K, start, times), frozen.fitted(times), atol=1e-12)


def test_the_end_of_time_is_kernel_regression() -> None:
    K, y, start = gram(5) + 0.05 * torch.eye(5), normal(5, g=generator(1)), torch.ones(5).double()
    frozen, k, first = freeze(K, y, start), normal(3, 5, g=generator(2)), torch.zeros(3).double()
    assert torch.allclose(frozen.fitted(math.inf), y)
    end = frozen.predict(k, first, math.inf)
    assert torch.allclose(end, kernel_regression(K, y - start, k), atol=1e-10)
    assert torch.allclose(frozen.predict(k, first, [1e9, math.inf])[0], end, atol=1e-10)
    B2 = complexity_term(K, y - start)
    norms = frozen.squared_norm([0.0, 0.1, 1.0, 10.0, math.inf])
    assert float(norms[0]) == 0
    assert bool((norms.diff() > 0).all())
    assert float(norms[-1]) == pytest.approx(B2, rel=1e-12)


def test_slow_directions_keep_their_digits() -> None:
    K = torch.diag(torch.tensor([1e-14, 1.0], dtype=torch.float64))
    frozen = freeze(K, torch.ones(2).double(), torch.zeros(2).double())
    alpha = frozen.coefficients(3.0)
    assert float(alpha[0]) == pytest.approx(3.0, rel=1e-12)  # (1-e^{-λt})/λ ≈ t
    assert float(alpha[1]) == pytest.approx(1 - math.exp(-3), rel=1e-12)


def test_a_singular_kernel_has_finite_times_only() -> None:
    twins = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([1.0, -1.0], dtype=torch.float64)
    frozen = freeze(twins, y, torch.zeros(2).double())
    assert frozen.singular
    assert torch.allclose(frozen.fitted(5.0), torch.zeros(2).double())  # nothing can be learnt
    for ask in (frozen.fitted, frozen.coefficients, frozen.squared_norm):
        with pytest.raises(ValueError, match=r"t = ∞ needs an invertible kernel.*finite time"):
            ask([1.0, math.inf])


def test_errors_of_the_frozen_kernel() -> None:
    K, y = gram(3), torch.zeros(3).double()
    with pytest.raises(ValueError, match=r"with 3 labels H must be \(3, 3\)"):
        freeze(gram(4), y, y)
    with pytest.raises(ValueError, match="differs from its transpose"):
        freeze(K + torch.tensor([[0, 1.0, 0], [0, 0, 0], [0, 0, 0]]), y, y)
    with pytest.raises(ValueError, match=r"eigenvalue -1.*positive semidefinite"):
        freeze(torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)), y, y)
    frozen = freeze(K, y, y)
    with pytest.raises(ValueError, match="times must be at least 0"):
        frozen.fitted(-1.0)
    with pytest.raises(ValueError, match=r"k must be \(p, 3\)"):
        frozen.predict(K[:, :2], y, 1.0)
    assert repr(frozen).startswith("FrozenKernel(n=3")


# --- the path kernel -----------------------------------------------------------------------------


def test_the_contributions_explain_a_smooth_run() -> None:
    model, X, points = tanh_deq(), sphere(4, 3, 0), sphere(5, 3, 1)
    y = signs(4, g=generator(2))
    runs = [
        path_kernel(model, X, y, points, np.linspace(0, 1, 11), substeps=s, tol=1e-14)
        for s in (4, 8)
    ]
    assert runs[0].defect < 1e-4
    assert 10 < runs[0].defect / runs[1].defect < 24  # order 4
    for j, t in enumerate(runs[1].times):
        moved = runs[1].point_predictions[j] - runs[1].point_predictions[0]
        assert torch.allclose(moved, runs[1].contributions[j].sum(dim=1), atol=1e-5), float(t)
    same = gradient_flow(model, X, y, np.linspace(0, 1, 11), rtol=1e-7, atol=1e-9)
    assert np.allclose(runs[1].predictions.numpy(), same.predictions, atol=1e-5)
    assert torch.allclose(runs[1].H[0], empirical_ntk(model, X, tol=1e-13), atol=1e-10)
    assert torch.allclose(runs[1].k[0], empirical_ntk(model, points, X, tol=1e-13), atol=1e-10)


def test_a_monotone_network_is_followed_too() -> None:
    model, X, y = MonDEQ.init(6, 3, seed=1), sphere(3, 3, 0), torch.zeros(3).double()
    times = np.linspace(0, 0.02, 5)
    run = path_kernel(model, X, y, X, times, tol=1e-11)
    same = gradient_flow(model, X, y, times, rtol=1e-6, atol=1e-8, method="RK45", tol=1e-11)
    assert np.allclose(run.predictions.numpy(), same.predictions, atol=1e-5)
    assert run.defect < 1e-5
    assert float(run.contributions[-1].abs().max()) > 0.05


def test_descent_is_followed_to_first_order() -> None:
    model, X, points = tanh_deq(), sphere(4, 3, 0), sphere(5, 3, 1)
    y = signs(4, g=generator(2))
    defects = [
        path_kernel(model, X, y, points, np.linspace(0, 2, 5), substeps=s, method="descent").defect
        for s in (8, 16)
    ]
    assert 1.6 < defects[0] / defects[1] < 2.5  # order 1


def test_domingos_coefficients_are_averages_that_depend_on_the_point() -> None:
    model, X, points = tanh_deq(), sphere(4, 3, 0), sphere(5, 3, 1)
    run = path_kernel(model, X, signs(4, g=generator(2)), points, np.linspace(0, 4, 41))
    a = run.coefficients
    known = ~torch.isnan(a)
    low, high = (-run.error).amin(dim=0), (-run.error).amax(dim=0)
    assert 0 < int(known.sum()) < a.numel()  # some kernels change sign: no average there
    slack = 1e-3  # of the quadrature
    assert bool(((a >= low - slack) & (a <= high + slack))[known].all())
    ratio = run.contributions[-1] / run.path[-1]
    assert float(ratio.std(dim=0).max()) > 0.01
    assert torch.allclose(run.impulse[-1], torch.trapezoid(run.error, run.times, dim=0), atol=2e-2)


def test_a_run_with_kinks_tells_its_defect() -> None:
    model = ReLUImplicit.init_implicit_only(40, 6, gamma=0.4, seed=0)
    X, points, y = sphere(4, 6, 0), sphere(3, 6, 1), signs(4, g=generator(2))
    top = float(torch.linalg.eigvalsh(empirical_ntk(model, X))[-1])
    coarse, fine = (
        path_kernel(model, X, y, points, np.linspace(0, 8 / top, 9), substeps=s, tol=1e-10)
        for s in (1, 16)
    )
    assert float(fine.flips[-1]) > 0
    assert 1e-6 < fine.defect < coarse.defect / 3
    assert "defect" in repr(fine)
    assert torch.linalg.matrix_norm(fine.H[-1] - fine.H[0], 2) == pytest.approx(
        float(fine.kernel_change[-1])
    )
    before = model.W.detach().clone()
    fine.restore(model)
    assert float((model.W.detach() - before).norm()) > 0.1
    assert torch.allclose(model(X, tol=1e-11), fine.predictions[-1], atol=1e-8)


def test_errors_of_the_path_kernel() -> None:
    model, X, y = tanh_deq(), sphere(4, 3, 0), torch.zeros(4).double()
    with pytest.raises(ValueError, match="start at 0 and increase"):
        path_kernel(model, X, y, X, [1.0, 2.0])
    with pytest.raises(ValueError, match="substeps must be at least 1, got 0"):
        path_kernel(model, X, y, X, [0.0, 1.0], substeps=0)
    with pytest.raises(ValueError, match=r"method must be one of .*'rk4'.*got 'euler'"):
        path_kernel(model, X, y, X, [0.0, 1.0], method="euler")
    deep = DeepOptEq.init_deep(5, 3, widths=(4, 4), k=1, alpha=0.7, seed=0)
    with pytest.raises(TypeError, match="no closed form of gradient and kernel for DeepOptEq"):
        path_kernel(deep, X, y, X, [0.0, 1.0])


def test_a_lost_run_carries_what_came_before() -> None:
    model = ReLUImplicit.init_implicit_only(10, 3, gamma=0.4, seed=0)
    X, y = sphere(4, 3, 0), 50 * signs(4, g=generator(2))
    with pytest.raises(LeftRegion, match="shorter steps, or a wider network") as caught:
        path_kernel(model, X, y, X, np.linspace(0, 4000, 41))
    assert len(caught.value.trajectory) >= 1
    assert caught.value.trajectory.stopped


# --- two divisions by zero, now sentences --------------------------------------------------------


def test_zero_inputs_have_no_admissible_step() -> None:
    model, X = MonDEQ.init(4, 3, seed=0), torch.zeros(3, 3).double()
    with pytest.raises(ValueError, match=r"X is zero.*not all zero"):
        monotone.descent_conditions(model, X, torch.ones(3).double(), monotone.Radii(1, 1, 1, 1))


def test_zero_weights_have_no_scale() -> None:
    zero = [torch.zeros(*shape).double() for shape in ((4, 4), (4, 3), (4,), (4,))]
    W, U, a, c = zero
    model, X, y = ReLUImplicit(W, U, a, c, 0.2), torch.eye(3).double(), torch.ones(3).double()
    for conditions in (
        relu_implicit.scales,
        relu_implicit.flow_conditions,
        relu_implicit.descent_conditions,
    ):
        with pytest.raises(ValueError, match=r"ω .* is 0: all weights are zero.*Draw them"):
            conditions(model, X, y)
