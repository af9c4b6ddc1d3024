"""The bound on data: sharper constants, the diagonal start, samples, label noise, stopping."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from deqbook.bounds.generalization import after_sample, explicit_bound
from deqbook.kernels import empirical_ntk
from deqbook.kernels.limits import diagonal_gap, diagonal_limit
from deqbook.pages.p03d_real_data.lab import DescentRun
from deqbook.pages.p06b_bound_on_data.lab import pictures as P
from deqbook.pages.p06b_bound_on_data.lab.bounds import (
    bounded_kernel_bound,
    fine_bound,
    from_list,
    held_out,
    listed_bound,
)
from deqbook.runtime import generator, normal, signs, sphere


@pytest.fixture(scope="module")
def start() -> P.KernelStart:
    return P.limit_start("mnist01", 60, seed=0, tests=40)


# --- sharper constants


@pytest.mark.parametrize("B", [0.0, 0.3, 1.0, 1.0001, 8.0, 33.3, 1e6])
def test_radius_is_the_first_on_the_grid(B: float) -> None:
    for ratio in (2.0, 1.1, 2 ** (1 / 32)):
        radius, share = after_sample(B, 0.05, ratio=ratio)
        j = round(math.log(radius) / math.log(ratio))
        assert radius >= B
        assert j == 0 or ratio ** (j - 1) < B
        assert share == pytest.approx(0.05 / ((j + 1) * (j + 2)))
        assert after_sample(radius, 0.05, ratio=ratio) == (radius, share)


def test_a_finer_grid_generalises_the_explicit_bound(start: P.KernelStart) -> None:
    _, B = start.interpolate()
    coarse, same = (
        fine_bound(start.H, B, delta=0.1, ratio=2.0),
        explicit_bound(start.H, B, delta=0.1),
    )
    assert coarse == same
    fine = fine_bound(start.H, B, delta=0.1)
    assert fine.complexity < coarse.complexity
    assert fine.confidence > coarse.confidence


def test_the_sharper_bound_by_hand(start: P.KernelStart) -> None:
    found = bounded_kernel_bound(60, 3.0, r=0.5, delta=0.05, ratio=2.0)
    assert found.complexity == pytest.approx(2 * 4.0 * 0.5 / math.sqrt(60))
    assert found.confidence == pytest.approx(math.sqrt(math.log(12 / 0.05) / 120))
    _, B = start.interpolate()
    assert start.sharper(B).complexity == pytest.approx(start.bound(B).complexity)  # tr H = n r²
    assert start.sharper(B).confidence < start.bound(B).confidence / 2.9


def test_a_list_of_radii_shares_delta() -> None:
    assert from_list(4.0, 0.05) == (4.0, 0.05 / 41)
    assert from_list(4.1, 0.05)[0] == pytest.approx(4 * 2 ** (1 / 8))
    K = torch.eye(60).double()
    found = listed_bound(K, 3.0, delta=0.05, radii=(2.0, 5.0))
    assert found == explicit_bound(K, 5.0, delta=0.025, fixed_in_advance=True)
    assert math.isinf(listed_bound(K, 6.0, delta=0.05, radii=(2.0, 5.0)).total)


def test_held_out_is_hoeffding() -> None:
    assert held_out(0.1, 200, delta=0.05) == pytest.approx(0.1 + math.sqrt(math.log(20) / 400))
    rng, hits = np.random.default_rng(0), 0
    for _ in range(2000):  # the true share is above the certificate with probability ≤ δ
        hits += held_out(rng.binomial(50, 0.3) / 50, 50, delta=0.2) < 0.3
    assert 0 < hits <= 0.2 * 2000


def test_errors_say_what_is_wrong(start: P.KernelStart) -> None:
    with pytest.raises(ValueError, match=r"ratio > 1, got 1\.0"):
        after_sample(2.0, 0.05, ratio=1.0)
    with pytest.raises(ValueError, match="radius must be a finite number"):
        after_sample(math.inf, 0.05)
    with pytest.raises(ValueError, match="delta must lie between 0 and 1"):
        after_sample(1.0, 1.0)
    with pytest.raises(ValueError, match="r must be positive"):
        bounded_kernel_bound(10, 1.0, r=0.0, delta=0.05)
    with pytest.raises(ValueError, match="p must be at least 1"):
        held_out(0.1, 0, delta=0.05)
    with pytest.raises(ValueError, match="needs k"):
        replace(start, diagonal=None).sharper(1.0)


# --- the diagonal start


def test_diagonal_limit_by_hand_and_by_width() -> None:
    X = sphere(5, 7, 0)
    rho = (X @ X.mT).clamp(-1, 1)
    angle = math.pi - torch.arccos(rho)
    by_hand = 0.09 * angle * ((1 - rho**2).sqrt() + rho * angle) / (2 * math.pi) ** 2
    H = diagonal_limit(X, gamma=0.3)
    assert torch.allclose(H, by_hand, atol=1e-8)
    assert torch.allclose(H.diagonal(), torch.full((5,), 0.09 / 4).double())
    assert torch.allclose(diagonal_limit(X[:2], X, gamma=0.3), H[:2])
    wide = P.DiagonalNetwork.init(400_000, 7, gamma=0.3, seed=1).kernel(X)
    assert float((wide - H).norm() / H.norm()) < 5e-3


def test_diagonal_network_is_the_network() -> None:
    X, X2 = sphere(4, 6, 2), sphere(3, 6, 3)
    net = P.DiagonalNetwork.init(30, 6, gamma=0.4, seed=0)
    model = net.model()
    assert torch.allclose(net.kernel(X), empirical_ntk(model, X, tol=1e-13), atol=1e-12)
    assert torch.allclose(net.kernel(X2, X), empirical_ntk(model, X2, X, tol=1e-13), atol=1e-12)
    made = net.start(X, X[:, 0], X2, X2[:, 0])
    assert torch.allclose(made.guess_test, model(X2, tol=1e-13).detach(), atol=1e-12)
    with pytest.raises(ValueError, match="no equilibrium"):
        replace(net, w=net.w + 100).states(X)


def test_diagonal_gap_holds_and_falls_like_a_root() -> None:
    X, seen = sphere(6, 10, 4), []
    for seed in range(40):
        net = P.DiagonalNetwork.init(1000, 10, gamma=0.4, seed=seed)
        seen.append(float((net.kernel(X) - diagonal_limit(X, gamma=0.4)).norm()))
    assert max(seen) <= diagonal_gap(6, 1000, gamma=0.4, delta=0.05)
    ratio = diagonal_gap(6, 10**8, gamma=0.4, delta=0.05) / diagonal_gap(
        6, 10**6, gamma=0.4, delta=0.05
    )
    assert 0.1 < ratio < 0.12  # a tenth, and a logarithm
    with pytest.raises(ValueError, match="Take a larger m"):
        diagonal_gap(6, 1, gamma=0.4, delta=0.05)


# --- samples, labels, losses


def test_a_sample_is_drawn_by_coins_without_repeats() -> None:
    y = torch.tensor([1.0] * 50 + [-1.0] * 50)
    counts = []
    for seed in range(200):
        place = P.draw(y, 30, generator(seed))
        assert len(set(place.tolist())) == 30
        counts.append(int((y[place] > 0).sum()))
    assert np.mean(counts) == pytest.approx(15, abs=0.7)
    # a coin: variance n/4. Without replacement from a balanced set it would be 30 % less.
    assert np.var(counts) == pytest.approx(7.5, abs=1.6)
    with pytest.raises(ValueError, match="the coin asks for"):
        P.draw(y, 150, generator(0))


def test_noise_does_not_depend_on_the_default_type() -> None:
    y = signs(200, g=generator(0))
    before = torch.get_default_dtype()
    try:
        found = []
        for kind in (torch.float32, torch.float64):
            torch.set_default_dtype(kind)
            found.append(P.noisy_labels(y, 0.4, generator(1)))
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(*found)
    assert float((found[0] != y).double().mean()) == pytest.approx(0.2, abs=0.08)


def test_one_bound_for_three_errors() -> None:
    g = generator(0)
    f, y = 2 * normal(5000, g=g), signs(5000, g=g)
    wrong, ramp, cut = P.wrong(f, y), P.ramp(f, y), P.cut(f, y)
    assert bool((wrong <= ramp).all())
    assert bool((ramp <= cut + 1e-15).all())
    assert bool((cut > ramp).any())
    assert bool((ramp > wrong).any())
    step = normal(5000, g=g)
    for loss in (P.ramp, P.cut):
        assert bool(((loss(f + step, y) - loss(f, y)).abs() <= step.abs() + 1e-12).all())
        assert float(loss(y, y).max()) == 0


def test_noisy_loss_is_the_mean_over_coins() -> None:
    g = generator(3)
    f, y = normal(20, g=g), signs(20, g=g)
    drawn = torch.stack([P.cut(f, P.noisy_labels(y, 0.6, g)) for _ in range(5000)]).mean(0)
    assert torch.allclose(drawn, P.noisy(P.cut, f, y, 0.6), atol=0.03)


def test_the_mean_squared_radius(start: P.KernelStart) -> None:
    g, small = generator(4), start.first(25)
    inverse = torch.linalg.inv(small.H)
    drawn = torch.stack([P.noisy_labels(small.y, 0.3, g) for _ in range(10_000)])
    seen = torch.einsum("ki,ij,kj->k", drawn, inverse, drawn)
    error = float(seen.std()) / 100
    mean = P.mean_squared_radius(small.H, small.y, 0.3)
    assert float(seen.mean()) == pytest.approx(mean, abs=4 * error)
    assert P.mean_squared_radius(small.H, small.y, 0.0) == pytest.approx(
        float(small.y @ inverse @ small.y)
    )


def test_the_radius_grows_and_coins_are_never_certified(start: P.KernelStart) -> None:
    radii = [start.first(n).interpolate()[1] for n in (10, 20, 40, 60)]
    assert radii == sorted(radii)
    for n in (10, 60):
        H = start.first(n).H
        square = P.mean_squared_radius(H, start.y[:n], 1.0)
        assert square / n * float(H.trace()) / n >= 1


# --- predictors


def test_two_ways_to_interpolate(start: P.KernelStart) -> None:
    f, B = start.interpolate()
    frozen = start.frozen()
    assert torch.allclose(f, start.predict(), atol=1e-9)
    assert math.sqrt(float(frozen.squared_norm(math.inf))) == pytest.approx(B)
    assert torch.allclose(start.guess_test, torch.zeros(40).double())
    shifted = replace(start, guess=start.guess + 1, guess_test=start.guess_test + 1)
    assert shifted.interpolate()[1] != pytest.approx(B)
    assert torch.allclose(shifted.centred().interpolate()[0], f)


def test_the_best_stop_is_best(start: P.KernelStart) -> None:
    frozen = start.frozen()
    stop = P.best_stop(start, frozen)
    for t in (0.1, 1.0, 10.0, 1e4):
        training = float(P.ramp(frozen.fitted(t), start.y).mean())
        price = start.sharper(math.sqrt(float(frozen.squared_norm(t)))).total
        assert stop.bound <= training + price + 1e-2  # the grid of times is not these times
    assert stop.bound <= start.sharper(start.interpolate()[1]).total + 1e-9
    assert stop.bound == pytest.approx(
        stop.training + start.sharper(math.sqrt(float(frozen.squared_norm(stop.time)))).total
    )


def test_rows_agree_with_the_start(start: P.KernelStart) -> None:
    row = P.row(start, start.frozen(), start.y, 0.0)
    f, B = start.interpolate()
    assert row.cut == pytest.approx(float(P.cut(f, start.y_test).mean()))
    assert row.bound == pytest.approx(start.bound(B).total)
    assert row.complexity == pytest.approx(2 * B * math.sqrt(float(start.H.trace())) / 60)
    assert row.expected == pytest.approx(row.complexity)
    assert row.wrong == row.clean <= row.ramp <= row.cut


def test_a_centred_run_starts_from_zero_and_follows_its_twin() -> None:
    case = DescentRun(network="gao2023", m=400, n=20, epochs=30, every=10, step=0.1, double=True)
    for centred in (False, True):
        run = P.WidthRun(case, centred)
        path = P.only_W(run, tests=20)
        f = P.tested_values(path, run)
        if centred:
            assert path.loss[0] == pytest.approx(0.5 * 20, rel=1e-5)
            assert float(f[0].abs().max()) == 0
        twin = P.frozen_twins(case, tests=20)[centred]
        assert float((f[-1] - twin).abs().mean()) < 0.2 * float((f[-1] - f[0]).abs().mean())
