"""Gradient flow against another integrator, and where it slides."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch
from small_runs import LEAN, TOL, data, tanh_deq, tensor
from torch import Tensor

from deqbook.dynamics import (
    LeftRegion,
    Record,
    Trajectory,
    flow_error,
    gradient_descent,
    gradient_flow,
)
from deqbook.dynamics.loss_gradient import LossGradient, NoGradient
from deqbook.implicit import IFT
from deqbook.kernels import empirical_ntk
from deqbook.linalg import operator_norm
from deqbook.models import EquilibriumModel, MonDEQ, OptEq, VanillaDEQ
from deqbook.runtime import generator, normal
from deqbook.solvers import Newton, Picard


def smooth_mon() -> MonDEQ:
    base = MonDEQ.init(4, 3, seed=1)
    A, B, U, a = (p.detach() for p in (base.A, base.B, base.U, base.a))
    return MonDEQ(A, B, U, a, base.mu, sigma="tanh")


TIMES = np.linspace(0.0, 0.5, 3)


@cache
def tanh_flow() -> Trajectory:
    return gradient_flow(tanh_deq(), *data(), TIMES, record=Record(gram=True))


def kernel_flow(model: EquilibriumModel, X: Tensor, y: Tensor, rtol: float) -> np.ndarray:
    """Integrate the weights by LSODA with gradients from autograd: another route altogether."""
    model = copy.deepcopy(model)
    names = [k for k, p in model.named_parameters() if p.requires_grad]
    shapes = [getattr(model, k).shape for k in names]

    def put(theta: np.ndarray) -> None:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(theta), model.parameters())

    def velocity(_: float, theta: np.ndarray) -> np.ndarray:
        put(theta)
        out = model(X, tol=1e-13, adjoint=IFT(Newton(), tol=1e-13), solver=Newton())
        grads = torch.autograd.grad(0.5 * (out - y).pow(2).sum(), list(model.parameters()))
        return -torch.cat([g.flatten() for g in grads]).numpy()

    assert sum(s.numel() for s in shapes) == sum(p.numel() for p in model.parameters())
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()
    found = scipy.integrate.solve_ivp(
        velocity, (0, TIMES[-1]), start, "LSODA", TIMES, rtol=rtol, atol=rtol
    )
    seen = []
    for theta in found.y.T:
        put(np.ascontiguousarray(theta))
        seen.append(model(X, solver=Newton(), tol=1e-13).detach().numpy())
    return np.stack(seen)


def test_the_flow_is_that_of_another_integrator() -> None:
    run = tanh_flow()
    assert run.kind == "flow"
    assert list(run.times) == list(TIMES)
    assert (np.diff(run.gradients) > 0).all()
    assert run.loss[-1] < 0.5 * run.loss[0]
    assert run.predictions == pytest.approx(kernel_flow(tanh_deq(), *data(), 1e-10), abs=1e-7)


def test_the_flow_of_a_monotone_network_is_that_of_another_integrator() -> None:
    model, (X, y) = smooth_mon(), data()
    options = {"solver": Newton(), "adjoint_solver": Newton()}
    run = gradient_flow(model, X, y, TIMES, rtol=1e-8, atol=1e-10, **options)
    assert set(run.end) == {"A", "B", "U", "a"}
    assert run.predictions == pytest.approx(kernel_flow(model, X, y, 1e-9), abs=1e-6)
    assert run.loss[-1] < 0.5 * run.loss[0]


def test_the_default_tolerance_reaches_eight_digits() -> None:
    model, (X, y) = tanh_deq(), data()
    run = tanh_flow()
    tight = gradient_flow(model, X, y, TIMES, rtol=1e-11, atol=1e-13, tol=1e-14, record=LEAN)
    gap = float(np.abs(run.predictions - tight.predictions).max())
    assert gap <= 1e-8
    error = flow_error(model, X, y, TIMES, rtol=1e-5, atol=1e-7)
    coarse = gradient_flow(model, X, y, TIMES, rtol=1e-5, atol=1e-7, record=LEAN)
    truth = float(np.abs(coarse.predictions - tight.predictions).max())
    assert truth > 100 * gap
    assert 0.5 * truth < error < 2 * truth


def test_descent_approaches_the_flow_at_first_order() -> None:
    model, (X, y) = tanh_deq(), data()
    flow = tanh_flow().predictions[2]
    ends, steps = [], np.array([1 / 40, 1 / 80, 1 / 160, 1 / 320])
    for h in steps:
        epochs = round(TIMES[2] / h)
        assert epochs * h == pytest.approx(TIMES[2])
        record = Record(every=epochs, norms=False, flips=False)
        ends.append(gradient_descent(model, X, y, h, epochs, record=record, tol=TOL))
    at = np.stack([run.predictions[-1] for run in ends])
    gaps = np.abs(at - flow).max(axis=1)
    slope = np.polyfit(np.log(steps), np.log(gaps), 1)[0]
    assert abs(slope - 1) < 0.1
    # Richardson: each extrapolation gains an order in the step
    for power in (2, 4, 8):
        at = (power * at[1:] - at[:-1]) / (power - 1)
    assert np.abs(at[0] - flow).max() < 1e-3 * gaps[-1]
    assert gaps[-1] > 1e-5


def test_predictions_move_by_the_kernel() -> None:
    """The speed of the predictions is -He, by backward differences along the recorded flow."""
    h = 0.005
    times = np.concatenate([[0.0], 0.4 + h * np.arange(-4, 1)])
    newton = {"solver": Newton(), "adjoint_solver": Newton()}
    for model, way in ((tanh_deq(), {}), (smooth_mon(), newton)):
        X, y = data()
        run = gradient_flow(model, X, y, times, record=Record(gram=True), **way)
        speed = np.array([3, -16, 36, -48, 25]) @ run.predictions[1:] / (12 * h)
        run.restore(model)
        H = empirical_ntk(model, X, tol=1e-13).numpy()
        assert speed == pytest.approx(-H @ run.error[-1], abs=1e-6)
        assert np.abs(speed).max() > 0.01
        assert run.gram_min is not None
        assert run.gram_min[-1] == pytest.approx(np.linalg.eigvalsh(H)[0], rel=1e-8)


def test_the_ends_of_a_flow() -> None:
    model, (X, _) = tanh_deq(), data()
    run = tanh_flow()
    for key, p in model.named_parameters():
        assert np.array_equal(run.start[key], p.detach().numpy())  # the model has not moved
    run.restore(model)
    assert model(X, tol=1e-13).detach().numpy() == pytest.approx(run.predictions[-1], abs=1e-11)
    for key in run.end:
        moved = np.linalg.norm(run.end[key] - run.start[key])
        assert run.displacement[key][-1] == pytest.approx(moved, rel=1e-12)


def test_a_model_without_closed_form_has_a_flow_as_exact() -> None:
    """The tolerance reaches the adjoint solve too, which autograd would leave at its default."""
    (X, y), g = data(), generator(7)
    W = normal(3, 3, g=g)
    W = 0.9 * W / operator_norm(W)
    model = OptEq(W, normal(3, 3, g=g), normal(3, g=g), normal(1, 3, g=g), sigma="tanh")
    found = LossGradient(model, X, y, None, None, 1e-13)()
    out = model(X, tol=1e-13, adjoint=IFT(Newton(), tol=1e-13)).reshape(y.shape)
    exact = torch.autograd.grad(0.5 * (out - y).pow(2).sum(), list(model.parameters()))
    for key, value in zip(found.grads, exact):
        assert torch.allclose(found.grads[key], value, rtol=0, atol=1e-12), key
    with pytest.raises(ValueError, match="a spy was asked"):
        LossGradient(model, X, y, None, Spy(), 1e-13)()


class Spy(Picard):
    def step(self, *args):
        raise ValueError("a spy was asked")


def sliding() -> tuple[VanillaDEQ, Tensor, Tensor]:
    """Return one unit that the second sample pushes across the kink of the first, which resists."""
    model = VanillaDEQ(tensor([0.0]), tensor([0.9, 1.0]), tensor(1.0))
    model.W.requires_grad_(False)
    return model, tensor([1.0, -1.0], [1.0, 0.0]), tensor(-5.0, 2.0)


def test_sliding_along_a_kink_is_noticed() -> None:
    model, X, y = sliding()
    calls = 0

    class Counting(Picard):
        def start(self, z):
            nonlocal calls
            calls += 1
            return super().start(z)

    options = {"solver": Counting(), "adjoint_solver": Picard()}
    with pytest.raises(LeftRegion, match="slides along a kink of the activation; loosen") as caught:
        gradient_flow(model, X, y, [0.0, 0.05, 0.5], **options)
    assert calls < 4000
    run = caught.value.trajectory
    assert list(run.times) == [0.0, 0.05]
    assert str(caught.value).startswith("after t = 0.05: the steps have shrunk to ")
    # what is on file is the last record, not a trial step of the integrator
    run.restore(model)
    assert model(X).detach().numpy() == pytest.approx(run.predictions[-1], abs=1e-7)
    model, X, y = sliding()
    loose = gradient_flow(model, X, y, [0.0, 0.25, 0.5], method="RK45", rtol=1e-3, **options)
    assert loose.times[-1] == 0.5
    # Clarke's solution: once U x₁ = 0 the weights move along the kink only
    theta, h = np.array([0.9, 1.0, 1.0]), 1e-4
    for _ in range(5000):
        pull = 2.0 - theta[2] * theta[0]
        along = np.array([0.5, 0.5]) if theta[0] >= theta[1] else np.array([1.0, 0.0])
        theta = theta + h * pull * np.array([*(theta[2] * along), theta[0]])
    expected = theta[2] * theta[0]
    assert loose.predictions[-1] == pytest.approx([0.0, expected], abs=0.05)


def test_a_trial_step_that_leaves_the_region_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few failures cost a shorter step, not the run; a lasting one ends it, with its reason."""
    model, (X, y) = tanh_deq(), data()
    calm = gradient_flow(model, X, y, [0, 0.05, 0.3], rtol=1e-6, atol=1e-8)
    real, calls = LossGradient.__call__, 0

    def failing(when: Callable[[int], bool]) -> Callable[[LossGradient], object]:
        def call(source: LossGradient) -> object:
            nonlocal calls
            calls += 1
            if when(calls):
                raise NoGradient("no equilibrium was found (in a test)")
            return real(source)

        return call

    monkeypatch.setattr(LossGradient, "__call__", failing(lambda k: k in (3, 10, 40)))
    run = gradient_flow(model, X, y, [0, 0.05, 0.3], rtol=1e-6, atol=1e-8)
    assert calls > 40
    assert run.stopped == ""
    assert run.predictions == pytest.approx(calm.predictions, abs=1e-5)
    calls = 0
    monkeypatch.setattr(LossGradient, "__call__", failing(lambda k: k > 60))
    with pytest.raises(LeftRegion, match=r"^after t = .*: no equilibrium was found \(in a test\)."):
        gradient_flow(model, X, y, [0, 0.1, 10], rtol=1e-6, atol=1e-8)
    assert 60 < calls < 100


def test_a_flow_that_is_lost_keeps_what_came_before() -> None:
    model = VanillaDEQ(tensor([2.0]), tensor([1.0]), tensor(1.0))
    args = model, tensor([1.0]), tensor(1.0), [0, 1]
    with pytest.raises(LeftRegion, match=r"^after t = 0: no equilibrium was found \(Picard did"):
        gradient_flow(*args, solver=Picard())
    run = gradient_flow(*args, solver=Picard(), throw=False)
    assert len(run) == 0
    assert run.stopped.startswith("after t = 0")
    assert "no records, empty; stopped: after t = 0" in repr(run)


@pytest.mark.parametrize("times", [[0], [0.1, 1], [0, 1, 1], [0, 2, 1], [0, np.nan], [0, np.inf]])
def test_times_of_a_flow_start_at_zero_and_increase(times: list[float]) -> None:
    with pytest.raises(ValueError, match="times must start at 0 and increase, with at least two"):
        gradient_flow(tanh_deq(), *data(), times)


def test_wrong_calls_are_named() -> None:
    model, (X, y) = tanh_deq(), data()
    with pytest.raises(ValueError, match=r"one of \['DOP853', 'RK45'\], got 'Euler'"):
        gradient_flow(model, X, y, [0, 1], method="Euler")
    for step in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"step must be positive, got {step}"):
            gradient_descent(model, X, y, step, 1)
    with pytest.raises(ValueError, match="epochs must not be negative, got -1"):
        gradient_descent(model, X, y, 0.1, -1)
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        Record(every=0)
    with pytest.raises(ValueError, match=r"x must be \(n, 3\): one sample per row"):
        gradient_descent(model, X[0], y, 0.1, 1)
    with pytest.raises(ValueError, match="X must have one sample a row and y as many rows; got"):
        gradient_descent(model, X, y[:2], 0.1, 1)
    with pytest.raises(TypeError, match="X must be a floating-point tensor, got ndarray; write"):
        gradient_descent(model, X.numpy(), y, 0.1, 1)
    with pytest.raises(ValueError, match=r"y must be \(3,\), one label per row"):
        gradient_descent(model, X, y[:, None], 0.1, 1)
    # bad data are not mistaken for a run that went astray
    with pytest.raises(ValueError, match="X has NaN or infinite entries; check the data"):
        gradient_descent(model, X / 0, y, 0.1, 1)
    with pytest.raises(ValueError, match="y has NaN or infinite entries; check the data"):
        gradient_flow(model, X, y * float("nan"), [0, 1])
    with pytest.raises(TypeError, match=r"x must be a tensor of the weights' dtype torch.float64"):
        gradient_descent(model, X.float(), y, 0.1, 1)
