"""The experiments of the last page: each against a second route to the same number."""

from __future__ import annotations

import math

import pytest
import torch

from deqbook.linalg import relative
from deqbook.pages.p07b_in_use.lab import networks, robust, stability, steps
from deqbook.runtime import generator, normal, signs
from deqbook.solvers import Picard, fixed_point


def batch(n: int = 5, d: int = 6) -> torch.Tensor:
    return normal(n, d, g=generator(4))


def dense(scale: float = 0.8) -> networks.Dense:
    return networks.Dense.init(8, 6, 3, scale=scale, seed=0)


def monotone(mu: float = 0.5) -> networks.Monotone:
    return networks.Monotone.init(8, 6, 3, mu=mu, seed=0)


# Networks.


@pytest.mark.parametrize("model", [dense(), monotone()])
def test_the_jacobian_is_that_of_automatic_differentiation(model):
    q = model.inject(batch()).detach()
    z = model.solve_injected(q, tol=1e-12).z
    W = model.W.detach()
    expected = [torch.func.jacrev(lambda u, one=one: model.f(u, one, W))(u) for u, one in zip(z, q)]
    assert relative(networks.jacobians(model, z, q), torch.stack(expected)) < 1e-12


@pytest.mark.parametrize("model", [dense(), monotone()])
def test_the_newton_step_carries_the_implicit_gradient(model):
    x = batch()
    inside = [p for name, p in model.named_parameters() if name not in ("V", "c")]
    exact = torch.autograd.grad(model.state(x, tol=1e-12).pow(2).sum(), inside)
    q = model.inject(x)
    z = networks.implicit_state(model, model.solve_injected(q.detach(), tol=1e-12).z, q)
    found = torch.autograd.grad(z.pow(2).sum(), inside)
    assert all(relative(a, b) < 1e-8 for a, b in zip(found, exact))


def test_the_penalty_is_the_frobenius_norm_on_average():
    model, x = dense(), batch()
    q = model.inject(x).detach()
    z = model.solve_injected(q, tol=1e-12).z
    exact = float(networks.jacobians(model, z, q).pow(2).sum(dim=(1, 2)).mean())
    every = torch.tensor([[1.0 if k >> i & 1 else -1.0 for i in range(8)] for k in range(256)])
    probes = [networks.jacobian_penalty(model, z, q, e.double().expand(5, 8)) for e in every]
    assert abs(float(torch.stack(probes).mean().detach()) / exact - 1) < 1e-12


def test_the_penalty_pulls_the_weights_towards_a_smaller_jacobian():
    model, x = dense(), batch()
    q = model.inject(x)
    z = model.solve_injected(q.detach(), tol=1e-12).z
    loss = networks.jacobian_penalty(model, z, q, signs(5, 8, g=generator(0)))
    (slope,) = torch.autograd.grad(loss, model.W)
    assert float((slope * model.W).sum().detach()) > 0  # larger W, larger penalty


def test_a_penalty_makes_a_smaller_radius_and_the_batches_stay_the_same():
    data = networks.digits()
    runs = [stability.train(data, penalty=p, seed=0, m=16, steps=20, every=20) for p in (0.0, 10.0)]
    first, last = zip(*((run.moments[0], run.moments[-1]) for run in runs))
    assert torch.equal(first[0].radius, first[1].radius)
    assert float(last[1].frobenius.mean()) < 0.5 * float(last[0].frobenius.mean())
    assert (last[0].radius <= last[0].norm + 1e-12).all()
    assert (last[0].norm ** 2 <= last[0].frobenius + 1e-12).all()


# More steps.


def test_strings_come_with_their_parities():
    x, y = steps.strings(3, 7, generator(0))
    ones = ((x + 1) / 2).cumsum(dim=1)
    assert torch.equal(y, ones % 2)
    assert set(x.unique().tolist()) == {-1.0, 1.0}


def test_nothing_outruns_the_light_cone():
    model = steps.Line(5, seed=0)
    x, _ = steps.strings(4, 12, generator(0))
    other = x.clone()
    other[:, 0] *= -1  # site 1 changes
    for k in (1, 3, 6):
        states = [model.run(model.inject(s), k) for s in (x, other)]
        reached = (states[0] != states[1]).flatten(2).any(dim=2).any(dim=0)
        assert reached[:k].any()
        assert not reached[k + 1 :].any()  # sites i > k + 1
    assert steps.light_cone(3, 12) == (4 + 8 / 2) / 12
    assert steps.light_cone(40, 12) == 1.0


def test_an_untied_network_uses_its_layers_in_order():
    model = steps.Line(3, seed=0, layers=2)
    q = model.inject(steps.strings(2, 5, generator(0))[0])
    first = model.f(torch.zeros_like(q), q, model.W[0], model.M[0], model.b[0])
    second = model.f(first, q, model.W[1], model.M[1], model.b[1])
    assert torch.equal(model.run(q, 2), second)


def test_the_implicit_way_is_the_exact_gradient_where_the_series_has_converged():
    model = steps.Line(3, seed=0)
    model.M.data *= 0.3
    x, y = steps.strings(2, 5, generator(0))
    error = torch.nn.functional.binary_cross_entropy_with_logits
    exact = torch.autograd.grad(error(model(x, tol=1e-13), y), [model.W, model.U, model.b])
    q = model.inject(x)
    with torch.no_grad():
        z = model.run(q, 200)
    loss = error(model.readout(steps._attach(model, z, q, 200), q), y)
    found = torch.autograd.grad(loss, [model.W, model.U, model.b])
    assert all(relative(a, b) < 1e-6 for a, b in zip(found, exact))


def test_prefix_parity_is_learnt_and_carries_over_to_longer_strings():
    learner = steps.learn("random", seed=1)
    assert learner.learnt
    assert steps.accuracy(learner, 36, [72])[0] > 0.95
    half = steps.accuracy(learner, 36, [18], n=400)[0]
    assert half < steps.light_cone(18, 36) + 0.03
    starts = steps.compare_starts(learner.model, 24)
    assert float(starts.alignment.median()) > 0.95
    assert (starts.worst <= starts.correct).all()


def test_starts_that_lead_apart_are_seen():
    model = steps.Line(1, seed=0)  # z = tanh(5 relu(z)): zero, and a state near one
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.W[0, 1, 0], model.M[0, 0, 0] = 1.0, 5.0
    assert float(steps.compare_starts(model, 6).alignment.max()) < 0.5


def test_the_ideal_rule_ends_after_as_many_steps_as_sites():
    x, y = steps.strings(4, 20, generator(1))

    def rule(z):
        return -x * torch.cat([torch.ones(4, 1).double(), z[:, :-1]], dim=1)

    found = fixed_point(rule, normal(4, 20, g=generator(2)), solver=Picard())
    assert torch.equal(found.z, 1 - 2 * y)
    assert int(found.steps.max()) <= 20


# Robustness.


@pytest.fixture(scope="module")
def trained():
    data = networks.digits()
    model = robust.train_monotone(data, mu=0.8, decay=0.01, m=16, steps=60)
    rows = (model(data.x_test[:60]).argmax(dim=1) == data.y_test[:60]).nonzero()[:12, 0]
    return model, data.x_test[rows], data.y_test[rows]


def test_the_input_jacobian_is_that_of_automatic_differentiation(trained):
    model, x, _ = trained
    expected = torch.autograd.functional.jacobian(lambda s: model(s, tol=1e-12)[0], x[:1])[:, 0]
    assert relative(robust.input_jacobian(model, x[:1])[0], expected) < 1e-8


def test_the_attack_climbs_along_the_exact_gradient(trained):
    model, x, y = trained
    up, q = (y + 3) % 10, model.inject(x)
    found = robust.slope_of_difference(model, model.solve_injected(q, tol=1e-12).z, q, up, y)
    slopes = robust.input_jacobian(model, x)
    rows = torch.arange(len(x))
    assert relative(found, slopes[rows, up] - slopes[rows, y]) < 1e-8


def test_no_attack_succeeds_inside_the_certificate_and_every_hit_is_real(trained):
    model, x, y = trained
    hit = robust.attack(model, x, y, largest=3.0, rounds=6, restarts=2)
    assert hit.radius.isfinite().all()
    assert torch.allclose((hit.x - x).norm(dim=1), hit.radius)
    assert (robust.margins(model, hit.x, y).amin(dim=1) < 0).all()
    pairs = robust.certified_radius(model, x, y)
    assert (pairs < hit.radius).all()
    assert (robust.certified_radius(model, x, y, pairs=False) <= pairs * (1 + 1e-12)).all()
    assert float((hit.radius / pairs).median()) < 4  # the attack searches


def test_the_bound_is_above_every_slope(trained):
    model, x, _ = trained
    slopes = torch.linalg.matrix_norm(robust.input_jacobian(model, x), 2)
    found = robust.steepest(model, x, rounds=3)
    assert float(slopes.max()) <= found < robust.lipschitz_bound(model)


def test_the_certified_radius_of_a_linear_network_is_the_distance_to_the_boundary():
    eye = torch.eye(2).double()
    model = robust.Monotone(0 * eye, 0 * eye, eye, eye, mu=1.0)  # W = 0: z = relu(x), scores z
    x, y = torch.tensor([[3.0, 1.0]]).double(), torch.tensor([0])
    assert float(robust.certified_radius(model, x, y)) == pytest.approx(2 / math.sqrt(2))
    hit = robust.attack(model, x, y, largest=3.0, rounds=14)
    assert float(hit.radius) == pytest.approx(math.sqrt(2), rel=1e-2)
