"""Proximal operators, feature regularisers and SAM, against definitions, autograd and formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deqbook.pages.p01b_monotone.lab import segment_instance
from deqbook.pages.p03c_monotone_opteq.lab import opteq as opteq_training
from deqbook.pages.p05b_selection.lab import random_segment, segment, starts
from deqbook.regularize import (
    L1,
    Decorrelation,
    HalfSquaredNorm,
    InverseNorm,
    Moreau,
    RankOne,
    Schedule,
    SquaredDistance,
    SquaredL2,
    Viscosity,
    Zero,
    append_gradient,
    append_prox,
    sam,
    select,
)
from deqbook.runtime import generator, normal

M = 6
TARGET = normal(M, g=generator(1))
W_ONE = normal(M, g=generator(2))
PROXIMAL = {
    "l1": L1(0.7),
    "square": SquaredL2(0.4),
    "distance": SquaredDistance(TARGET, 1.5),
    "half square": HalfSquaredNorm(),
    "rank one": RankOne(W_ONE, 0.3),
    "envelope": Moreau(L1(0.7), 0.5),
    "long envelope": Moreau(L1(0.9), 2.0),
}
SMOOTH = {
    "square": SquaredL2(0.4),
    "distance": SquaredDistance(TARGET, 1.5),
    "half square": HalfSquaredNorm(),
    "rank one": RankOne(W_ONE, 0.3),
    "inverse": InverseNorm(0.3),
    "decorrelation": Decorrelation(0.0),
    "decorrelation, guarded": Decorrelation(0.5),
    "envelope": Moreau(L1(0.7), 0.5),
    "zero": Zero(),
}


@pytest.mark.parametrize("step", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("name", PROXIMAL)
def test_prox_satisfies_its_variational_inequality(name: str, step: float) -> None:
    """p = prox(z) iff R(u) ≥ R(p) + ⟨z-p, u-p⟩/step for all u: near, far and on the axes."""
    R, g = PROXIMAL[name], generator(3)
    z = 2 * normal(20, M, g=g)
    p = R.prox(z, step)
    at_p = R.value(p)
    assert torch.isfinite(at_p).all()
    for scale in (1e-3, 0.1, 1.0, 10.0):
        for _ in range(20):
            u = p + scale * normal(20, M, g=g)
            for point in (u, u * (normal(20, M, g=g) > 0), R.prox(u, step)):
                room = R.value(point) - at_p - ((z - p) * (point - p)).sum(1) / step
                assert (room >= -1e-10).all()


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_agree_with_autograd(name: str) -> None:
    R = SMOOTH[name]
    Z = (2 * normal(7, M, g=generator(4))).requires_grad_()
    value = R.value(Z).sum()
    expected = torch.autograd.grad(value, Z)[0] if value.requires_grad else torch.zeros_like(Z)
    assert torch.allclose(R.gradient(Z), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", [n for n, R in SMOOTH.items() if R.smoothness < math.inf])
def test_smoothness_bounds_the_gradient_and_convex_means_monotone(name: str) -> None:
    R, g = SMOOTH[name], generator(5)
    for scale in (0.01, 0.3, 3.0):
        x, y = scale * normal(300, M, g=g), scale * normal(300, M, g=g)
        gap, move = R.gradient(x) - R.gradient(y), x - y
        assert (gap.norm(dim=1) <= R.smoothness * move.norm(dim=1) * (1 + 1e-9)).all()
        if R.convex:
            assert ((gap * move).sum(1) >= -1e-10).all()


def test_smoothness_constants_are_attained() -> None:
    """Twice the constant would pass the test above; these are exact."""
    for R, direction in (
        (SquaredL2(0.4), TARGET),
        (RankOne(W_ONE, 0.3), W_ONE),
        (InverseNorm(0.3), TARGET),
        (Moreau(L1(0.7), 0.5), TARGET),
    ):
        small = 1e-6 * direction / direction.norm()
        slope = (R.gradient(small) - R.gradient(-small)).norm() / (2 * small).norm()
        assert slope == pytest.approx(R.smoothness, rel=1e-6)


def test_l1_gives_exact_zeros() -> None:
    z = torch.tensor([0.5, -0.7, 0.71, -2.0], dtype=torch.float64)
    assert L1(0.7).prox(z).tolist() == pytest.approx([0.0, 0.0, 0.01, -1.3])
    assert (L1(0.7).prox(z) == 0).tolist() == [True, True, False, False]


def test_skip_identity_of_the_envelope() -> None:
    """prox of αM^(1-α) is α prox + (1-α) I: the reason for skip connections."""
    R, z, alpha = L1(0.9), 2 * normal(5, M, g=generator(6)), 0.3
    scaled = Moreau(R, 1 - alpha).prox(z, alpha)
    assert torch.allclose(scaled, alpha * R.prox(z) + (1 - alpha) * z, atol=1e-12)


# --- decorrelation ------------------------------------------------------------------------------


def test_decorrelation_is_the_sum_of_squared_cosines_of_columns() -> None:
    Z = normal(7, 4, g=generator(7))
    total = 0.0
    for i in range(4):
        for j in range(i):
            total += float(torch.cosine_similarity(Z[:, i], Z[:, j], dim=0)) ** 2
    assert float(Decorrelation(0.0).value(Z)) == pytest.approx(total, rel=1e-12)
    longer = Z * torch.tensor([1.0, 10.0, 0.1, 3.0], dtype=torch.float64)
    assert float(Decorrelation(0.0).value(longer)) == pytest.approx(total, rel=1e-12)


def test_decorrelation_gradient_is_tangential_and_needs_the_derivative_of_the_lengths() -> None:
    Z, R = normal(7, 4, g=generator(8)), Decorrelation(0.0)
    gradient = R.gradient(Z)
    assert (Z * gradient).sum(0).abs().max() < 1e-12
    D = torch.diag(1 / Z.norm(dim=0))
    frozen = 2 * Z @ D @ (D @ Z.mT @ Z @ D - torch.eye(4, dtype=torch.float64)) @ D
    assert float((frozen - gradient).norm() / gradient.norm()) > 0.1
    lengths = [float(R.gradient(scale * Z).norm() / gradient.norm()) for scale in (1e-2, 1e-4)]
    assert lengths == pytest.approx([1e2, 1e4])


def test_decorrelation_survives_a_dead_feature() -> None:
    Z = normal(5, 3, g=generator(9))
    Z[:, 1] = 0
    R = Decorrelation(1e-6)
    assert torch.isfinite(R.value(Z))
    assert torch.isfinite(R.gradient(Z)).all()
    assert (R.gradient(Z)[:, 1] == 0).all()


def test_decorrelation_descends() -> None:
    Z, R = normal(7, 4, g=generator(10)), Decorrelation(0.0)
    first = float(R.value(Z))
    for _ in range(200):
        Z = Z - 0.1 * R.gradient(Z)
    assert float(R.value(Z)) < 1e-4 * first


# --- architecture -------------------------------------------------------------------------------


def test_compositions_apply_T_first() -> None:
    def T(z: Tensor) -> Tensor:
        return 2 * z + 1

    z = normal(3, M, g=generator(11))
    R = SquaredDistance(TARGET, 0.5)
    assert torch.equal(append_prox(T, L1(0.7), 2.0)(z), L1(0.7).prox(T(z), 2.0))
    assert torch.allclose(append_gradient(T, R, 2.0)(z), TARGET.expand(3, M), atol=1e-12)


def test_a_gradient_layer_that_is_no_proximal_map_is_refused() -> None:
    with pytest.raises(ValueError, match=r"L_R = 3: with step 0\.5 .* check=False"):
        append_gradient(torch.relu, SquaredDistance(TARGET, 3.0), 0.5)
    with pytest.raises(ValueError, match=r"Decorrelation is not convex"):
        append_gradient(torch.relu, Decorrelation(), 0.05)
    z = normal(3, M, g=generator(12))
    forced = append_gradient(torch.relu, Decorrelation(), 0.05, check=False)(z)
    assert torch.equal(forced, z.relu() - 0.05 * Decorrelation().gradient(z.relu()))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: L1(-1.0), "weight must be finite and not negative, got -1"),
        (lambda: Moreau(L1(), 0.0), "gamma must be positive and finite, got 0"),
        (lambda: L1().prox(torch.zeros(2), -1.0), "step must be positive and finite, got -1"),
        (lambda: InverseNorm(0.0), "eps must be positive, got 0"),
        (lambda: Decorrelation(-1.0), "eps must not be negative, got -1"),
        (lambda: Decorrelation().value(torch.zeros(3)), r"\(samples, features\), got shape \(3,\)"),
        (lambda: Schedule(smoothness=math.inf), "smoothness must be positive and finite, got inf"),
        (lambda: Schedule(smoothness=0.0), "smoothness must be positive and finite, got 0"),
        (lambda: Viscosity(1.0, 2.0), "0 < convexity <= smoothness"),
    ],
)
def test_errors_name_the_problem(make, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=sentence):
        make()


# --- SAM ----------------------------------------------------------------------------------------


def test_the_schedule_by_hand() -> None:
    s = Schedule(smoothness=4.0, rho=0.5, c=0.2)
    assert (s.gamma, s.eta) == (0.125, 0.5)
    assert (s.beta(1), s.beta(4)) == (0.5, 0.25)
    assert s.decay(32) == pytest.approx(0.25)  # 32^{-1/5} = ½
    assert Schedule(smoothness=0.5).eta == 0.25  # L_R/2
    for smooth in (1e-3, 0.1, 1.0, 50.0):
        s = Schedule(smoothness=smooth)
        assert 0 < s.beta(1) <= 0.5
        assert 0 < s.decay(1) <= smooth / 2


def test_two_steps_by_hand() -> None:
    """L_R = 1: γ = η = ½, β = ½, ½·2^-ρ and λ = ½, ½·2^-c."""
    a, z0 = 4.0, 1.0
    R = SquaredDistance(torch.tensor([a], dtype=torch.float64))
    T = torch.relu  # fixes every z ≥ 0
    first = 0.5 * (0.75 * z0 - 0.5 * (z0 - a)) + 0.5 * z0
    beta, lam = 0.5 * 2**-0.5, 0.5 * 2**-0.2
    second = beta * ((1 - 0.5 * lam) * first - 0.5 * (first - a)) + (1 - beta) * first
    start = torch.tensor([[z0]], dtype=torch.float64)
    assert float(sam(T, start, R, Schedule(), 1)) == pytest.approx(first, rel=1e-12)
    assert float(sam(T, start, R, Schedule(), 2)) == pytest.approx(second, rel=1e-12)
    assert torch.equal(sam(T, start, R, Schedule(), 0), start)


def test_sam_agrees_with_the_unrolled_network_of_chapter_3() -> None:
    case = opteq_training.instance(0, steps=8)
    expected = opteq_training.unrolled(case.theta, case.X, case.net)
    centre = -case.net.pull(case.theta, torch.zeros_like(case.net.start))

    def T(Z: Tensor) -> Tensor:
        for i in (1, 2):
            Z = opteq_training.layer(case.theta, case.X, case.net, Z, i)[0]
        return Z

    found = sam(T, case.net.start, SquaredDistance(centre), Schedule(), 8)
    assert torch.allclose(found, expected, rtol=1e-13, atol=1e-12)


def test_rows_do_not_interact_and_the_trace_is_the_run() -> None:
    case, g = random_segment(3), generator(13)
    z0 = starts(case, 4, g)
    R = SquaredDistance(normal(len(case.p), g=g))
    run = select(case.T, z0, R, Schedule(), 30, record=[0, 7, 30])
    assert run.recorded == (0, 7, 30)
    assert torch.equal(run.trace[0], z0)
    assert torch.equal(run.trace[2], run.z)
    assert torch.equal(run.z, sam(case.T, z0, R, Schedule(), 30))
    assert torch.equal(run.trace[1], sam(case.T, z0, R, Schedule(), 7))
    alone = sam(case.T, z0[2], R, Schedule(), 30)
    assert torch.allclose(alone, run.z[2], atol=1e-12)
    assert torch.allclose(run.residual, (case.T(run.z) - run.z).norm(dim=1))
    assert "30 steps, residual at most" in run.status
    assert run.finite
    assert run.objections == ()


def test_gradients_flow_through_all_steps() -> None:
    case, g = random_segment(4), generator(14)
    W0, z0, R = case.W.clone(), starts(case, 3, g), InverseNorm(0.5)
    weight = normal(3, len(case.p), g=g)

    def loss(W: Tensor) -> Tensor:
        z = sam(lambda z: torch.tanh(z @ W.mT + case.b) @ W, z0, R, Schedule(8.0), 12, check=False)
        return (weight * z).sum()

    W = W0.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(W), W)
    move, h = normal(*W0.shape, g=g), 1e-6
    slope = (loss(W0 + h * move) - loss(W0 - h * move)) / (2 * h)
    assert float((gradient * move).sum()) == pytest.approx(float(slope), rel=1e-7)


def test_what_the_theorem_does_not_cover_is_refused_unless_told() -> None:
    z, R = torch.zeros(1, 2, dtype=torch.float64), HalfSquaredNorm()
    with pytest.raises(ValueError, match=r"rho \+ 2c = 1\.1 must be below 1.*check=False"):
        sam(torch.relu, z, R, Schedule(rho=0.5, c=0.3), 1)
    with pytest.raises(ValueError, match=r"rho = 0 and c = 0\.2 must be positive"):
        select(torch.relu, z, R, Schedule(rho=0.0), 1)
    with pytest.raises(ValueError, match=r"constant 3, above the smoothness 1"):
        sam(torch.relu, z, SquaredDistance(z, 3.0), Schedule(), 1)
    with pytest.raises(ValueError, match=r"Decorrelation is not convex.*constant inf"):
        sam(torch.relu, z, Decorrelation(), Schedule(), 1)
    run = select(torch.relu, z + 1, R, Schedule(rho=2.0, c=1.0), 5, check=False)
    assert run.objections == ("rho + 2c = 4 must be below 1",)
    assert "must be below 1" in run.status
    with pytest.raises(
        ValueError, match=r"record lists steps 0 to 9, but the run goes from 0 to 5"
    ):
        select(torch.relu, z, R, Schedule(), 5, record=[0, 9])
    with pytest.raises(ValueError, match="steps must not be negative, got -1"):
        sam(torch.relu, z, R, Schedule(), -1)


def test_a_run_that_overflows_says_so() -> None:
    z = torch.ones(1, 1, dtype=torch.float64)
    run = select(lambda z: z**3 + 2, z, HalfSquaredNorm(), Schedule(), 20)
    assert not run.finite
    assert "not finite after 20 steps" in run.status


@pytest.mark.parametrize("weights", [Schedule(rho=0.32, c=0.32), Viscosity()])
def test_sam_selects_where_plain_iteration_does_not(weights: Schedule | Viscosity) -> None:
    model, low, high = segment_instance()
    W, b = model.W.detach(), model.bs[0].detach()
    q = (high - low) / 4
    a = low + 3 * q + torch.tensor([0.3, -0.2, 0.1, 0.4], dtype=torch.float64)
    goal = low + ((a - low) @ q).clamp(0, 4) * q

    def T(z: Tensor) -> Tensor:
        return torch.relu(z @ W.mT + b) @ W

    z0 = 3 * normal(4, 4, g=generator(15))
    run = select(T, z0, SquaredDistance(a), weights, 3000, record=[30, 300])
    errors = [float((z - goal).norm(dim=1).max()) for z in (*run.trace, run.z)]
    assert errors[0] > 1.5 * errors[1] > 2.25 * errors[2]
    assert errors[2] < 0.08
    z = z0
    for _ in range(3000):
        z = T(z)
    assert (z - goal).norm(dim=1).max() > 0.5


def test_viscosity_with_a_distance_is_halperns_method() -> None:
    """γ = 1, so s(z) = a; β_k = min(1, 2/k); the error falls like 1/k."""
    a = torch.tensor([1.0, -2.0], dtype=torch.float64)
    plan = Viscosity()
    assert (plan.gamma, plan.modulus, plan.decay(3)) == (1.0, 0.0, 0.0)
    assert [plan.beta(k) for k in (1, 2, 8)] == [1.0, 1.0, 0.25]
    wide = Viscosity(3.0, 1.0)
    assert (wide.gamma, wide.modulus, wide.beta(8)) == (0.5, 0.5, 0.5)

    def mean(z: Tensor) -> Tensor:  # the projection on the line z₁ = z₂
        return z.mean(-1, keepdim=True).expand(z.shape)

    run = select(mean, 5 * a[None], SquaredDistance(a), plan, 1000, record=[100])
    errors = [float((z + 0.5).norm()) for z in (run.trace[0], run.z)]
    assert errors[0] / errors[1] == pytest.approx(10.0, rel=0.05)


# --- the instance -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_segment_is_the_whole_set_of_fixed_points(seed: int) -> None:
    case, g = random_segment(seed), generator(seed)
    inside = torch.linspace(case.low, case.high, 21, dtype=torch.float64)
    on = case.point(inside)
    assert (case.T(on) - on).norm(dim=1).max() < 1e-12
    assert torch.allclose(case.coordinate(on), inside, atol=1e-12)
    off = case.point(torch.tensor([case.low - 0.2, case.high + 0.2], dtype=torch.float64))
    assert (case.T(off) - off).norm(dim=1).min() > 0.01
    ends = case.plain(starts(case, 10, g))
    t = case.coordinate(ends)
    assert (ends - case.point(t)).norm(dim=1).max() < 1e-9
    assert (t >= case.low - 1e-9).all()
    assert (t <= case.high + 1e-9).all()
    assert float(t.max() - t.min()) > 0.5


def test_selected_points_minimise_over_the_segment() -> None:
    case, g = random_segment(1), generator(16)
    grid = case.point(torch.linspace(case.low, case.high, 20001, dtype=torch.float64))
    for R in (
        SquaredDistance(normal(len(case.p), g=g)),
        SquaredDistance(case.point(case.high + 1.0)),
        RankOne(normal(len(case.p), g=g), 0.2),
    ):
        best = grid[R.value(grid).argmin()]
        assert (case.selected(R) - best).norm() < 1e-3


def test_a_segment_needs_mixed_signs_and_one_unit_singular_value() -> None:
    ones, g = torch.ones(3, dtype=torch.float64), generator(0)
    with pytest.raises(ValueError, match="entries of both signs"):
        segment(ones, ones, torch.tensor([1.0, 0.5, 0.5]), g)
    with pytest.raises(ValueError, match="1 and then below 1"):
        segment(ones, torch.tensor([1.0, -1.0, 1.0]), torch.tensor([1.0, 1.0, 0.5]), g)
