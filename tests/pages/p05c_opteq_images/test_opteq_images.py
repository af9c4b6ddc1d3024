"""Deep OptEq for pictures: convolutions and their adjoints, norms, routes, training."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.signal import correlate2d

from deqbook import data
from deqbook.experiments import opteq_tables
from deqbook.implicit import IFT, Unroll
from deqbook.models import DeepOptEq
from deqbook.pages.p05c_opteq_images.lab import long_range
from deqbook.pages.p05c_opteq_images.lab import training as images
from deqbook.pages.p05c_opteq_images.lab.baselines import NeuralODE
from deqbook.pages.p05c_opteq_images.lab.long_range import Scene, pictures, reach, segment
from deqbook.pages.p05c_opteq_images.lab.networks import (
    ConvOptEq,
    DenseOptEq,
    conv,
    conv_adjoint,
    conv_matrix,
    conv_norm,
    conv_norm_bound,
)
from deqbook.pages.p05c_opteq_images.lab.training import (
    CHANNELS,
    ClassifierRun,
    residual,
    samples,
    states,
    train,
)
from deqbook.regularize import Decorrelation
from deqbook.runtime import generator, normal
from deqbook.wellposed import Tied, certify


def kernel(h: int, m: int, seed: int = 0) -> torch.Tensor:
    return normal(h, m, 3, 3, g=generator(seed))


def small(alpha: float = 0.8, norm: float = 0.7, **options: int) -> ConvOptEq:
    return ConvOptEq.init(
        4, (6, 5), channels=(8, 12), divisor=4, alpha=alpha, norm=norm, seed=3, **options
    )


# --- the convolution and its adjoint --------------------------------------------------------------


def test_the_transposed_convolution_is_the_adjoint() -> None:
    W, g = kernel(5, 3), generator(1)
    z, s = normal(2, 3, 6, 7, g=g), normal(2, 5, 6, 7, g=g)
    assert float((s * conv(z, W)).sum() - (conv_adjoint(s, W) * z).sum()) == pytest.approx(
        0, abs=1e-12
    )
    wrong = (conv(s, W.transpose(0, 1)) * z).sum()  # the kernel must be turned round as well
    assert abs(float((s * conv(z, W)).sum() - wrong)) > 1


def test_the_matrix_is_the_convolution_of_another_library() -> None:
    W, size = kernel(2, 3), (5, 4)
    z = normal(1, 3, *size, g=generator(2))
    M = conv_matrix(W, size)
    expected = np.stack(
        [
            sum(correlate2d(z[0, c], W[h, c], mode="same") for c in range(3))  # zero outside
            for h in range(2)
        ]
    )
    assert np.allclose((M @ z.flatten()).numpy(), expected.reshape(-1), atol=1e-12)
    assert torch.allclose(conv(z, W).flatten(), M @ z.flatten(), atol=1e-12)
    s = normal(1, 2, *size, g=generator(3))
    assert torch.allclose(conv_adjoint(s, W).flatten(), M.mT @ s.flatten(), atol=1e-12)


@pytest.mark.parametrize("size", [(6, 7), (1, 1), (2, 9)])
def test_norms_by_lanczos_and_by_svd_agree_below_the_torus_bound(size: tuple[int, int]) -> None:
    for seed in range(3):
        W = kernel(4, 3, seed)
        exact = float(torch.linalg.matrix_norm(conv_matrix(W, size), 2))
        assert conv_norm(W, size) == pytest.approx(exact, rel=1e-8)
        assert exact <= conv_norm_bound(W, size) * (1 + 1e-12)


def test_the_bound_is_close_on_large_pictures_and_exact_for_one_pixel_kernels() -> None:
    W = kernel(4, 3)
    assert conv_norm_bound(W, (24, 24)) < 1.02 * conv_norm(W, (24, 24))
    point = torch.zeros(4, 3, 3, 3, dtype=torch.float64)
    point[:, :, 1, 1] = W[:, :, 1, 1]
    exact = float(torch.linalg.matrix_norm(W[:, :, 1, 1], 2))
    assert conv_norm(point, (5, 5)) == pytest.approx(exact, rel=1e-8)
    assert conv_norm_bound(point, (5, 5)) == pytest.approx(exact, rel=1e-12)


def test_the_norm_grows_with_the_picture() -> None:
    W = kernel(2, 2)
    norms = [conv_norm(W, (k, k)) for k in (1, 2, 4, 8)]
    assert norms == sorted(norms)
    assert norms[-1] > 1.2 * norms[0]


def test_zero_kernels_and_huge_matrices() -> None:
    assert conv_norm(torch.zeros(2, 2, 3, 3), (4, 4)) == 0.0
    with pytest.raises(ValueError, match="use conv_norm, which never writes it out"):
        conv_matrix(kernel(64, 64), (32, 32))


# --- the convolutional model ----------------------------------------------------------------------


def test_the_cell_equals_its_dense_form() -> None:
    model = small()
    x = normal(3, 3, 6, 5, g=generator(4))
    q, z = model.inject(x), normal(3, 4, 6, 5, g=generator(5))
    flat = z.flatten(1)
    for W, part in zip(model.Ws, q.split([2, 3], dim=1), strict=True):
        M = conv_matrix(W.detach(), (6, 5))
        flat = 0.8 * torch.relu(flat @ M.mT + part.flatten(1)) @ M + 0.2 * flat
    assert torch.allclose(model.f(z, q, *model.weights()).flatten(1), flat, atol=1e-12)


def test_init_divides_channels_and_sets_norms() -> None:
    model = ConvOptEq.init(8, (16, 16), channels=CHANNELS, divisor=8, stride=2, seed=0)
    assert [W.shape[0] for W in model.Ws] == [2, 4, 8, 16, 16]
    assert model.size == (8, 8)
    assert model.norms() == pytest.approx([0.7] * 5, rel=1e-8)
    with pytest.raises(ValueError, match="divisor 5 does not divide"):
        ConvOptEq.init(8, (16, 16), channels=CHANNELS, divisor=5, seed=0)


def test_the_published_size_has_the_published_number_of_parameters() -> None:
    model = ConvOptEq.init(30, (4, 4), channels=CHANNELS, seed=0)  # any size has as many
    assert abs(sum(p.numel() for p in model.parameters()) - 199_000) < 3_000


def test_implicit_and_unrolled_gradients_agree_at_the_equilibrium() -> None:
    model = small()
    x = normal(3, 3, 6, 5, g=generator(6))
    gradients = []
    for how in ({"adjoint": IFT(), "tol": 1e-12}, {"adjoint": Unroll(150)}):
        model.zero_grad()
        model(x, **how).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for exact, long in zip(*gradients, strict=True):
        assert torch.allclose(exact, long, rtol=1e-7, atol=1e-9)


def test_projection_brings_norms_below_the_radius_and_leaves_small_layers() -> None:
    model = small(norm=3.0)
    assert min(model.norms()) > 2.9
    model.project_(1.0)
    assert max(model.norms()) <= 1.0
    assert min(model.norms()) > 0.8  # the torus bound is not far off
    before = [W.detach().clone() for W in model.Ws]
    model.project_(1.0)
    assert all(torch.allclose(W, B, rtol=1e-12) for W, B in zip(model.Ws, before, strict=True))


def test_certificates_see_the_convolutions_as_matrices() -> None:
    found = certify(small())
    assert found.kind == "contraction"
    assert found.constant == pytest.approx((0.8 * 0.49 + 0.2) ** 2, rel=1e-6)
    assert isinstance(small().structure(), Tied)
    large = ConvOptEq.init(8, (16, 16), channels=(16,), seed=0)
    assert certify(large).kind == "not certified"
    assert "norms()" in certify(large).why


def test_read_outs_pool_or_stay_with_the_pixels() -> None:
    x = normal(2, 3, 6, 5, g=generator(7))
    assert small()(x).shape == (2, 10)
    assert small(pool=0)(x).shape == (2, 10, 6, 5)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: small().inject(torch.zeros(2, 1, 6, 5)), r"\(n, 3, 6, 5\), got .*1, 6, 5"),
        (lambda: small(alpha=1.5), "alpha must be in"),
        (
            lambda: ConvOptEq(
                [kernel(2, 3)],
                [kernel(2, 4)],
                [torch.zeros(2)],
                torch.zeros(10, 3),
                kernel(4, 3),
                torch.zeros(4),
                size=(4, 4),
            ),
            r"V must be \(k, 12\) for pool = 2",
        ),
        (lambda: ClassifierRun(route="sam"), "both are 'none' or neither"),
        (
            lambda: ClassifierRun(route="sam", regulariser="inverse", implicit=True),
            "SAM is unrolled",
        ),
    ],
)
def test_wrong_arguments_are_named(call, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


# --- the dense model and its routes ---------------------------------------------------------------


def test_dense_is_deep_opteq_on_features() -> None:
    model = DenseOptEq.init_dense(6, 20, features=5, widths=(4, 7), k=3, alpha=0.6, seed=0)
    x = normal(4, 20, g=generator(1))
    body = DeepOptEq(
        [W.detach() for W in model.Ws],
        [U.detach() for U in model.Us],
        [b.detach() for b in model.bs],
        model.V.detach(),
        alpha=0.6,
    )
    features = torch.relu(x @ model.E.mT + model.e).detach()
    assert torch.allclose(model(x), body(features), atol=1e-8)
    with pytest.raises(ValueError, match=r"x must be \(n, 20\)"):
        model(normal(4, 5, g=generator(1)))


def test_routes_are_what_they_say() -> None:
    base = ClassifierRun(m=6, features=5, widths=(4, 7), steps=3, alpha=0.5)
    model = images.network(base, (20,))
    x = normal(8, 20, g=generator(2))
    q = model.inject(x)

    def T(z: torch.Tensor) -> torch.Tensor:
        return model.f(z, q, *model.weights())

    zero = torch.zeros(8, 6, dtype=torch.float64)
    assert torch.allclose(states(base, model, x), T(T(T(zero))), atol=1e-12)

    layer = replace(base, route="architecture", regulariser="l1", strength=0.1, steps=2)

    def soft(z: torch.Tensor) -> torch.Tensor:
        return z.sign() * (z.abs() - 0.1).clamp(min=0)

    assert torch.allclose(states(layer, model, x), soft(T(soft(T(zero)))), atol=1e-12)

    chosen = replace(base, route="sam", regulariser="half-square", steps=2)
    z = zero
    for k in (1, 2):  # β_k = ½k^-½, λ_k = ½k^-0.2, γ = ½
        beta, decay = 0.5 * k**-0.5, 0.5 * k**-0.2
        z = beta * ((1 - 0.5 * decay) * z - 0.5 * z) + (1 - beta) * T(z)
    assert torch.allclose(states(chosen, model, x), z, atol=1e-12)

    away = replace(base, route="architecture", regulariser="decorrelation", strength=0.05, steps=1)
    z = T(zero).detach().requires_grad_()
    (slope,) = torch.autograd.grad(Decorrelation().value(z), z)
    assert torch.allclose(states(away, model, x), z - 0.05 * slope, atol=1e-12)


def test_channels_of_pictures_are_features() -> None:
    case = ClassifierRun(
        network="conv",
        m=4,
        features=4,
        widths=(6,),
        route="architecture",
        regulariser="l1",
        strength=0.05,
        steps=2,
    )
    model = images.network(case, (3, 6, 5))
    x = normal(2, 3, 6, 5, g=generator(2))
    q = model.inject(x)
    z = model.start(q)
    for _ in range(2):
        z = model.f(z, q, *model.weights())
        z = z.sign() * (z.abs() - 0.05).clamp(min=0)
    assert torch.allclose(states(case, model, x), z, atol=1e-12)
    assert residual(case, model, x, z) > 1e-3


def test_pictures_are_standardised_by_the_training_set() -> None:
    s = samples(ClassifierRun(n_train=500, n_test=100))
    assert s.x_train.shape == (500, 192)
    colours = s.x_train.reshape(500, 3, 64)
    assert colours.mean(dim=(0, 2)).abs().max() < 1e-12
    assert (colours.std(dim=(0, 2)) - 1).abs().max() < 1e-4
    assert 0 < s.x_test.mean().abs() < 0.2


# --- training -------------------------------------------------------------------------------------

QUICK = ClassifierRun(n_train=250, n_test=125, epochs=2, steps=6)


def test_training_is_the_same_twice_and_another_seed_is_another_run() -> None:
    first, again, other = train(QUICK), train(QUICK), train(replace(QUICK, seed=1))
    assert first == again
    assert first.loss != other.loss
    assert first.loss[1] < first.loss[0]
    assert len(first.norm) == 3
    assert first.norm[0] == pytest.approx(0.7)


def test_projection_holds_during_training() -> None:
    free, held = (train(replace(QUICK, step=0.5, radius=r)) for r in (None, 0.8))
    assert max(free.norm) > 0.85
    assert max(held.norm) <= 0.8 * (1 + 1e-12)


def test_a_run_that_is_lost_says_so() -> None:
    run = train(replace(QUICK, step=1e30, clip=math.inf))
    assert "not finite" in run.stopped
    assert run.mean_abs is None


@pytest.mark.parametrize("network", ["perceptron", "ode", "augmented", "monotone"])
def test_rivals_train_and_have_no_norms(network: str) -> None:
    run = train(
        replace(QUICK, network=network, features=8, m=10, widths=(12,), n_train=125, epochs=2)
    )
    assert run.loss[1] < run.loss[0]
    assert run.norm == run.norms == ()
    assert run.residual is None


def test_the_flow_is_solved_to_fourth_order() -> None:
    x = normal(5, 3, g=generator(0))
    ends = []
    for steps in (4, 8, 64):
        flow = NeuralODE(None, 3, 6, 2, steps=steps, seed=0, dtype=torch.float64)
        with torch.no_grad():
            flow.a += 100.0  # all units active: a smooth field
            ends.append(flow.state(x))
    assert (ends[0] - ends[2]).norm() > 10 * (ends[1] - ends[2]).norm() > 0


def test_the_complete_set_goes_through_the_same_training(monkeypatch) -> None:
    asked = {}

    def made(name, **options):
        asked.update(options, name=name)
        g = generator(0)
        x = torch.rand(20, 3, 32, 32, generator=g, dtype=torch.float32)
        y = torch.arange(20) % 10
        classes = tuple("abcdefghij")
        return data.Dataset(name, x, y, x[:10], y[:10], classes, None)

    monkeypatch.setattr(images, "load_full", made)
    images._samples.cache_clear()
    full = opteq_tables.full()[-1][1]
    assert (full.route, full.regulariser) == ("architecture", "decorrelation")
    quick = replace(full, m=4, features=4, divisor=16, epochs=1, batch=10, steps=2)
    run = train(quick)
    images._samples.cache_clear()
    assert asked["name"] == "cifar10"
    assert not asked["gray"]
    assert not run.stopped
    assert len(run.norms) == 5
    assert images.update_seconds(quick, pictures=2) > 0


# --- the long-range task --------------------------------------------------------------------------


def test_marks_are_in_the_first_column_only() -> None:
    x, y = pictures(Scene(height=6, width=5), 4, generator(0))
    assert x[..., 1:].abs().max() == 0
    assert torch.equal(x[:, 0, :, 0] > 0, y[:, :, 0] == 1)
    assert torch.equal(y, y[:, :, :1].expand_as(y))
    assert torch.equal(x[:, 0, 0, 0], x[:, 0, 2, 0])


@pytest.mark.parametrize(
    "scene",
    [
        Scene("fcn", channels=(3, 3, 3), height=3, width=9),
        Scene("opteq", channels=(3, 3), steps=1, height=3, width=14),
        Scene("opteq", channels=(3,), steps=3, height=3, width=14),
    ],
)
def test_a_pixel_sees_as_far_as_reach_says(scene: Scene) -> None:
    scene = replace(scene, noise=1.0, double=True)
    model = long_range.build(scene)
    x, _ = pictures(scene, 8, generator(0))
    moved = x.clone()
    moved[:, :, :, 0] += 1.0
    before, after = (long_range.outputs(scene, model, y) for y in (x, moved))
    change = (after - before).abs().amax(dim=(0, 1, 2))
    assert int(torch.nonzero(change > 0).max()) == reach(scene)


def test_a_shallow_network_guesses_beyond_its_reach() -> None:
    run = segment(Scene("fcn", channels=(8, 8), height=3, width=7, updates=150, step=0.02))
    assert min(run.columns[:3]) > 0.95
    assert max(run.columns[3:]) < 0.75
