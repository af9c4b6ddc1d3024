"""The closed-form gradients against autograd, differences and the Kronecker formulas."""

from __future__ import annotations

import pytest
import torch
from small_models import MODELS, skewed
from torch import Tensor

from deqbook.implicit import IFT
from deqbook.linalg import operator_norm
from deqbook.models import (
    DeepOptEq,
    EquilibriumModel,
    Feedback,
    MonDEQ,
    NormBound,
    OptEq,
    ResidualCell,
    VanillaDEQ,
    adjoint_states,
    gradient,
    margin,
)
from deqbook.runtime import generator, normal
from deqbook.solvers import Anderson, Newton, NotConverged, Picard
from deqbook.splitting import PeacemanRachford

every_model = pytest.mark.parametrize("name", MODELS)


def data(n: int = 4) -> tuple[Tensor, Tensor]:
    g = generator(2)
    return normal(n, 3, g=g), normal(n, g=g)


def error(model: EquilibriumModel, x: Tensor, y: Tensor) -> Tensor:
    solver = Newton() if isinstance(model, MonDEQ) else Anderson()
    return 0.5 * (model(x, tol=1e-13, adjoint=IFT(solver, tol=1e-14)) - y).pow(2).sum()


@every_model
def test_closed_form_is_autograd(name: str) -> None:
    model, (x, y) = MODELS[name](), data()
    found = gradient(model, x, y, tol=1e-13)
    loss = error(model, x, y)
    loss.backward()
    assert found.loss == pytest.approx(loss.item(), rel=1e-12)
    assert torch.allclose(found.error, model(x, tol=1e-13).detach() - y, atol=1e-12)
    expected = {k: p.grad for k, p in model.named_parameters() if p.requires_grad}
    assert found.grads.keys() == expected.keys()
    for key, value in expected.items():
        assert value is not None
        scale = max(1.0, float(value.abs().max()))
        assert float((found.grads[key] - value).abs().max()) <= 1e-12 * scale, key
        assert not found.grads[key].requires_grad


@every_model
def test_closed_form_is_the_slope_of_the_loss(name: str) -> None:
    model, (x, y) = MODELS[name](), data()
    z = model.solve(x, tol=1e-12).z
    assert margin(model, x, z) > 5e-4  # differences below stay on one side of every kink
    found = gradient(model, x, y, tol=1e-12)
    g = generator(4)
    for key, slope in found.grads.items():
        weight = getattr(model, key)
        direction = normal(*weight.shape, g=g)
        ends = []
        with torch.no_grad():
            for step in (1e-5, -2e-5):
                weight += step * direction
                ends.append(float(0.5 * (model(x, tol=1e-13) - y).pow(2).sum()))
            weight += 1e-5 * direction
        along = float((slope * direction).sum())
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(along, rel=1e-6, abs=1e-6), key
        assert abs(along) > 1e-4


def test_only_what_is_trained_is_returned() -> None:
    x, y = data()
    for name in ("implicit only, relu", "implicit only, tanh"):
        assert list(gradient(MODELS[name](), x, y).grads) == ["W"]
    assert set(gradient(MODELS["ReLUImplicit"](), x, y).grads) == {"W", "U", "a", "c"}
    frozen = VanillaDEQ.init(8, 3, seed=1)
    frozen.a.requires_grad_(False)
    assert set(gradient(frozen, x, y).grads) == {"W", "U"}


def test_adjoint_states_solve_the_dense_systems() -> None:
    """v_i = D_i (I - W'D_i)^{-1} a, one linear system per sample."""
    g = generator(5)
    W, a = normal(7, 7, g=g), normal(7, g=g)
    W = 0.8 * W / operator_norm(W)
    slopes = (normal(4, 7, g=g) > 0).double()
    found = adjoint_states(W, slopes, a, tol=1e-13)
    for v, row in zip(found, slopes):
        D = torch.diag(row)
        system = torch.eye(7, dtype=W.dtype) - W.mT @ D
        assert torch.allclose(v, D @ torch.linalg.solve(system, a), atol=1e-11)
    stretched = adjoint_states(6 * W, slopes, a, solver=Newton(), tol=1e-11)
    again = slopes * (a + stretched @ (6 * W))
    assert torch.allclose(stretched, again, atol=1e-8)
    with pytest.raises(NotConverged, match="the adjoint states: Picard did not converge"):
        adjoint_states(6 * W, slopes, a, solver=Picard())


class Counting(Picard):
    calls = 0

    def step(self, *args):
        type(self).calls += 1
        return super().step(*args)


def test_warm_starts_save_work_and_change_nothing() -> None:
    model, (x, y) = MODELS["VanillaDEQ, relu"](), data()

    class Forward(Counting):
        pass

    class Backward(Counting):
        pass

    options = {"solver": Forward(), "adjoint_solver": Backward(), "tol": 1e-10}
    cold = gradient(model, x, y, **options)
    work = Forward.calls, Backward.calls
    assert min(work) > 5
    with torch.no_grad():
        model.W -= 1e-7 * cold.grads["W"]
    Forward.calls = Backward.calls = 0
    warm = gradient(model, x, y, z0=cold.z, v0=cold.v, **options)
    assert 0 < Forward.calls < work[0]
    assert 0 < Backward.calls < work[1]
    fresh = gradient(model, x, y, **options)
    for key, value in fresh.grads.items():
        assert torch.allclose(warm.grads[key], value, atol=1e-7)
    Forward.calls = Backward.calls = 0
    gradient(model, x, y, z0=fresh.z, v0=fresh.v, **options)
    assert Forward.calls == Backward.calls == 0


@pytest.mark.parametrize("name", ["ReLUImplicit", "VanillaDEQ, relu", "VanillaDEQ, tanh"])
def test_the_feedback_is_a_better_start_than_the_adjoint_state(name: str) -> None:
    """When the read-out moves, the old state is off by the move; its feedback by a factor less."""
    model, (x, y) = MODELS[name](), data()

    class Adjoint(Counting):
        pass

    options = {"solver": Picard(), "adjoint_solver": Adjoint(), "tol": 1e-12}
    before = gradient(model, x, y, **options)
    shape = model.structure()
    slopes = shape.sigma.slope(before.z @ shape.W.mT + model.inject(x))
    assert torch.allclose(before.feedback.state, before.z @ shape.W.mT, atol=1e-10)
    assert torch.allclose(before.feedback.adjoint, slopes * (before.v @ shape.W), atol=1e-10)
    with torch.no_grad():
        model.a += 1e-4 * normal(*model.a.shape, g=generator(6))
    work, found = {}, {}
    for start in ("cold", "state", "feedback"):
        Adjoint.calls = 0
        how = {"cold": {}, "state": {"v0": before.v}, "feedback": {"last": before}}[start]
        found[start] = gradient(model, x, y, **how, **options)
        work[start] = Adjoint.calls
    assert work["feedback"] < work["state"] < work["cold"]
    for key, value in found["cold"].grads.items():
        assert torch.allclose(found["feedback"].grads[key], value, atol=1e-9)


def test_the_step_before_starts_both_solves_where_no_other_start_is_given() -> None:
    model, (x, y) = MODELS["VanillaDEQ, relu"](), data()

    class Either(Counting):
        pass

    options = {"solver": Either(), "adjoint_solver": Either(), "tol": 1e-10}
    before = gradient(model, x, y, **options)
    for own, repeats in (({}, True), ({"z0": 0 * before.z}, False), ({"v0": 0 * before.v}, False)):
        Either.calls = 0
        gradient(model, x, y, last=before, **own, **options)
        assert (Either.calls == 0) == repeats


@pytest.mark.parametrize("name", ["ReLUImplicit", "VanillaDEQ, relu", "VanillaDEQ, tanh"])
def test_when_the_input_weights_move_the_feedback_saves_a_product(name: str) -> None:
    """The old state is off by the move of its injection; its feedback by a factor less."""
    model, (x, y) = MODELS[name](), data()

    class Forward(Counting):
        pass

    options = {"solver": Forward(), "tol": 1e-12}
    before = gradient(model, x, y, **options)
    with torch.no_grad():
        model.U += 1e-4 * normal(*model.U.shape, g=generator(6))
    work, found = {}, {}
    for start, how in (("cold", {}), ("state", {"z0": before.z}), ("feedback", {"last": before})):
        Forward.calls = 0
        found[start] = gradient(model, x, y, **how, **options)
        # A state is multiplied by W once more, before its feedback can be improved.
        work[start] = Forward.calls + (start == "state")
    assert work["feedback"] < work["state"] < work["cold"]
    for key, value in found["cold"].grads.items():
        assert torch.allclose(found["feedback"].grads[key], value, atol=1e-9)


@every_model
def test_a_straight_line_saves_work_and_changes_nothing(name: str) -> None:
    """Gradient descent with small steps: each of its states nearly continues the two before."""
    model, (x, y) = MODELS[name](), data()

    class Either(Counting):
        pass

    mondeq = isinstance(model, MonDEQ)  # plain iteration is not for it
    options = {} if mondeq else {"solver": Either(), "adjoint_solver": Either()}
    before, last = None, gradient(model, x, y, tol=1e-12, **options)
    work = {"none": 0, "one": 0, "two": 0}
    for step in range(4):
        with torch.no_grad():
            for key, value in last.grads.items():
                getattr(model, key).sub_(1e-3 * value)
        found = {}
        for starts, how in (
            ("none", {}),
            ("one", {"last": last}),
            ("two", {"last": last, "before": before}),
        ):
            Either.calls = 0
            found[starts] = gradient(model, x, y, tol=1e-12, **how, **options)
            work[starts] += Either.calls * (step > 0)
        assert found["two"].loss == pytest.approx(found["none"].loss, rel=1e-10)
        for key, value in found["none"].grads.items():
            assert torch.allclose(found["two"].grads[key], value, atol=1e-9)
        before, last = last, found["two"]
    assert mondeq or work["two"] < work["one"] < work["none"]


def test_two_steps_before_are_continued_in_a_straight_line() -> None:
    g = generator(7)
    now, before = (Feedback(normal(3, 4, g=g), normal(3, 4, g=g)) for _ in range(2))
    ahead = now.ahead(before)
    assert torch.allclose(ahead.state - now.state, now.state - before.state)
    assert torch.allclose(ahead.adjoint - now.adjoint, now.adjoint - before.adjoint)


@pytest.mark.parametrize("sigma", ["relu", "tanh"])
def test_a_known_contraction_saves_products_and_keeps_the_tolerance(sigma: str) -> None:
    base, (x, y) = VanillaDEQ.init(8, 3, seed=1), data()
    model = VanillaDEQ(0.2 * base.W.detach(), base.U.detach(), base.a.detach(), sigma=sigma)
    shape = model.structure()
    L, q, a = operator_norm(shape.W), model.inject(x).detach(), model.a.detach()
    assert L < 0.2

    class Either(Counting):
        pass

    work = {None: 0, L: 0}
    for tol in (1e-4, 1e-5, 1e-6, 1e-7, 1e-8):
        found = {}
        for contraction in work:
            Either.calls = 0
            options = {"solver": Either(), "adjoint_solver": Either(), "tol": tol}
            found[contraction] = gradient(model, x, y, contraction=contraction, **options)
            work[contraction] += Either.calls
        z, v = found[L].z, found[L].v
        image = shape.sigma(z @ shape.W.mT + q)
        assert float((image - z).norm(dim=1).max()) <= tol * max(1, float(z.norm(dim=1).min()))
        image = shape.sigma.slope(z @ shape.W.mT + q) * (a + v @ shape.W)
        assert float((image - v).norm(dim=1).max()) <= tol * max(1, float(v.norm(dim=1).min()))
        for key, value in found[None].grads.items():
            scale = max(1.0, float(value.norm()))
            assert float((found[L].grads[key] - value).norm()) <= 50 * tol * scale, key
    assert work[L] < work[None]


def test_a_contraction_that_is_none_is_refused() -> None:
    x, y = data()
    for bad in (0.0, 1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"contraction must be in \(0, 1\).*leave it out"):
            gradient(MODELS["ReLUImplicit"](), x, y, contraction=bad)


def test_a_norm_bound_holds_along_a_path_and_is_exact_at_its_start() -> None:
    g = generator(8)
    W, step = normal(9, 9, g=g), normal(9, 9, g=g)
    bound = NormBound.at(W)
    assert bound(W) == pytest.approx(operator_norm(W), rel=1e-12)
    kept = W.clone()
    for t in (0.01, 0.1, 1.0):
        W.copy_(kept + t * step)  # as an optimiser does, in place
        assert operator_norm(W) <= bound(W) <= operator_norm(W) + 2 * t * float(step.norm())


def test_any_forward_solver_gives_the_same_gradient() -> None:
    model, (x, y) = MODELS["MonDEQ"](), data()
    split = gradient(model, x, y, solver=PeacemanRachford(), tol=1e-12)
    newton = gradient(model, x, y, solver=Newton(), adjoint_solver=Newton(), tol=1e-12)
    for key, value in split.grads.items():
        assert torch.allclose(newton.grads[key], value, atol=1e-9)


def test_a_failed_adjoint_raises() -> None:
    model, (x, y) = skewed(), data()
    with pytest.raises(NotConverged, match=r"the adjoint states: Picard did not.*residual"):
        gradient(model, x, y, adjoint_solver=Picard())


def test_margin_is_the_distance_to_a_kink() -> None:
    W, a = torch.tensor([[0.5, 0.0], [0.0, 0.0]]).double(), torch.ones(2).double()
    model = VanillaDEQ(W, torch.tensor([[1.0], [-0.25]]).double(), a)
    x = torch.ones(1, 1).double()
    z = model.solve(x, tol=1e-13).z  # (2, 0), from the pre-activations 2 and -1/4
    assert margin(model, x, z) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "model",
    [
        OptEq.init(4, 3, seed=0),
        DeepOptEq.init_deep(4, 3, widths=[3, 5], seed=0),
        ResidualCell.init(std=0.01, channels=4, inner=4, groups=2, k=1, seed=0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_other_models_are_differentiated_by_the_implicit_function_theorem(
    model: EquilibriumModel,
) -> None:
    x = data()[0] if isinstance(model, DeepOptEq) else normal(4, 1, 4, 4, g=generator(0))
    y = data()[1]
    found = gradient(model, x, y, tol=1e-12)
    loss = 0.5 * (model(x, tol=1e-12).reshape(y.shape) - y).pow(2).sum()
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    for (name, _), g in zip(model.named_parameters(), wanted):
        assert torch.allclose(found.grads[name], g, rtol=1e-8, atol=1e-11), name
    assert found.v is None
    with pytest.raises(ValueError, match=f"and {type(model).__name__} has none; leave them out"):
        gradient(model, x, y, contraction=0.5)


def test_labels_have_one_per_row() -> None:
    x, y = data()
    for bad in (y[:, None], y[:3], y.sum()):
        with pytest.raises(ValueError, match=r"y must be \(4,\), one label per row of x; got"):
            gradient(MODELS["MonDEQ"](), x, bad)


def test_adjoint_states_with_one_read_out_per_sample() -> None:
    g = generator(4)
    W = normal(30, 30, g=g)
    W = 0.8 * W / operator_norm(W)
    slopes = (normal(40, 30, g=g) > 0).double()
    a = normal(40, 30, g=g)
    found = adjoint_states(W, slopes, a, tol=1e-13)
    for row, D, read in zip(found, slopes, a):
        dense = D * torch.linalg.solve(torch.eye(30, dtype=torch.float64) - W.mT * D, read)
        assert torch.allclose(row, dense, atol=1e-11)
