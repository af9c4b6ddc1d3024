"""Descent, flow and the linear picture against hand-written loops, expm and each other."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch
from torch import Tensor

from deqbook.dynamics import (
    LeftRegion,
    Record,
    Trajectory,
    flow_error,
    gradient_descent,
    gradient_flow,
    linearised_descent,
    linearised_flow,
    sweep,
)
from deqbook.dynamics.oracle import Lost, Oracle
from deqbook.implicit import IFT
from deqbook.kernels import empirical_ntk, gram_parts, jacobian_ntk
from deqbook.linalg import operator_norm
from deqbook.models import EquilibriumModel, MonDEQ, OptEq, ReLUImplicit, VanillaDEQ
from deqbook.runtime import generator, normal, progress
from deqbook.solvers import Anderson, Newton, Picard

TOL = 1e-12
LEAN = Record(norms=False, flips=False)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensor(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def data(n: int = 3) -> tuple[Tensor, Tensor]:
    g = generator(2)
    return normal(n, 3, g=g), normal(n, g=g)


def tanh_deq() -> VanillaDEQ:
    base = VanillaDEQ.init(5, 3, seed=1)
    return VanillaDEQ(*(p.detach() for p in (base.W, base.U, base.a)), sigma="tanh")


def smooth_mon() -> MonDEQ:
    base = MonDEQ.init(4, 3, seed=1)
    A, B, U, a = (p.detach() for p in (base.A, base.B, base.U, base.a))
    return MonDEQ(A, B, U, a, base.mu, sigma="tanh")


MODELS: dict[str, Callable[[], EquilibriumModel]] = {
    "ReLUImplicit": lambda: ReLUImplicit.init(8, 3, gamma=0.3, seed=1),
    "implicit only": lambda: ReLUImplicit.init_implicit_only(8, 3, gamma=0.3, seed=1),
    "VanillaDEQ": lambda: VanillaDEQ.init(8, 3, seed=1),
    "MonDEQ": lambda: MonDEQ.init(5, 3, seed=1),
    "OptEq": lambda: OptEq.init(4, 3, seed=1),
}
every_model = pytest.mark.parametrize("name", MODELS)


def by_hand(
    model: EquilibriumModel, X: Tensor, y: Tensor, step: float, epochs: int
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Descend with torch's own optimiser and autograd, from cold starts."""
    model = copy.deepcopy(model)
    solver = Newton() if isinstance(model, MonDEQ) else Anderson()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=step)
    seen = []
    for _ in range(epochs + 1):
        optimiser.zero_grad()
        out = model(X, tol=1e-13, adjoint=IFT(solver, tol=1e-13)).reshape(y.shape)
        seen.append(out.detach())
        (0.5 * (out - y).pow(2).sum()).backward()
        if len(seen) <= epochs:
            optimiser.step()
    return seen, {k: p.detach() for k, p in model.named_parameters()}


# Descent


@every_model
def test_descent_is_the_loop_written_by_hand(name: str) -> None:
    model, (X, y) = MODELS[name](), data()
    before = {k: p.detach().clone() for k, p in model.named_parameters()}
    run = gradient_descent(model, X, y, 0.03, 6, tol=1e-13)
    expected, weights = by_hand(model, X, y, 0.03, 6)
    assert run.predictions == pytest.approx(torch.stack(expected).numpy(), abs=1e-10)
    assert run.loss[-1] < run.loss[0]
    assert run.kind == "descent"
    assert run.step == 0.03
    assert run.stopped == ""
    assert list(run.gradients) == list(range(7))
    assert run.times == pytest.approx(0.03 * np.arange(7), abs=1e-15)
    # the model that was passed in is as it was; the run knows both of its ends
    assert all(torch.equal(p, before[k]) for k, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())
    trained = [k for k, p in model.named_parameters() if p.requires_grad]
    assert list(run.start) == list(run.end) == trained
    for key in trained:
        assert np.array_equal(run.start[key], before[key].numpy())
        assert run.end[key] == pytest.approx(weights[key].numpy(), abs=1e-10)
        moved = float((weights[key] - before[key]).norm())
        assert run.displacement[key][-1] == pytest.approx(moved, rel=1e-8)
        assert run.displacement[key][0] == 0
        assert moved > 1e-4
    run.restore(model)
    again = model(X, tol=1e-13).detach().reshape(y.shape)
    assert again.numpy() == pytest.approx(run.predictions[-1], abs=1e-11)


def test_what_is_recorded_is_what_the_weights_say() -> None:
    """Norms, kernels and test predictions of each epoch, from the weights of shorter runs."""
    (X, y), g = data(), generator(5)
    X2, y2 = normal(4, 3, g=g), normal(4, g=g).sign()
    record = Record(gram=True, test=(X2, y2))
    for name in ("ReLUImplicit", "VanillaDEQ", "MonDEQ"):
        model = MODELS[name]()
        run = gradient_descent(model, X, y, 0.05, 3, record=record, tol=1e-13)
        for k in (0, 3):
            gradient_descent(MODELS[name](), X, y, 0.05, k, tol=1e-13).restore(model)
            H = empirical_ntk(model, X, tol=1e-13)
            spectrum = torch.linalg.eigvalsh(H)
            assert run.gram_min is not None
            assert run.gram_max is not None
            assert run.gram_min[k] == pytest.approx(float(spectrum[0]), rel=1e-8)
            assert run.gram_max[k] == pytest.approx(float(spectrum[-1]), rel=1e-10)
            for key, K in gram_parts(model, X, tol=1e-13).items():
                least = float(torch.linalg.eigvalsh(K)[0])
                assert run.block_min[key][k] == pytest.approx(least, rel=1e-8, abs=1e-10)
            for key, p in model.named_parameters():
                size = operator_norm(p.detach()) if p.ndim == 2 else float(p.detach().norm())
                assert run.norms[key][k] == pytest.approx(size, rel=1e-10)
            cell = operator_norm(model.structure().W)
            assert run.norms["cell"][k] == pytest.approx(cell, rel=1e-10)
            out = model(X2, tol=1e-13).detach()
            assert run.test_predictions is not None
            assert run.test_predictions[k] == pytest.approx(out.numpy(), abs=1e-10)
            assert run.test_loss[k] == pytest.approx(float(0.5 * (out - y2).pow(2).sum()))
            assert run.test_error[k] == float((out.sign() != y2).double().mean())
            e = model(X, tol=1e-13).detach() - y
            assert run.error[k] == pytest.approx(e.numpy(), abs=1e-10)
            assert run.error_norm[k] == pytest.approx(float(e.norm()))
            assert run.loss[k] == pytest.approx(float(0.5 * e.pow(2).sum()))


def test_the_kernel_of_a_model_without_closed_form_is_recorded_too() -> None:
    model, (X, y) = MODELS["OptEq"](), data()
    run = gradient_descent(model, X, y, 0.05, 2, record=Record(gram=True), tol=TOL)
    run.restore(model)
    values = torch.linalg.eigvalsh(jacobian_ntk(model, X, tol=TOL))
    assert run.gram_min is not None
    assert run.gram_min[-1] == pytest.approx(float(values[0]), rel=1e-7)
    assert run.gram_max is not None
    assert run.gram_max[-1] == pytest.approx(float(values[-1]), rel=1e-7)
    assert run.norms["cell"][-1] == pytest.approx(operator_norm(model.W.detach()), rel=1e-10)


def test_labels_may_have_the_shape_of_the_outputs() -> None:
    model, (X, y) = OptEq.init(4, 3, k=2, seed=0), data()
    Y = torch.stack([y, -y], dim=1)
    record = Record(test=(X, Y))
    run = gradient_descent(model, X, Y, 0.05, 2, record=record, tol=TOL)
    assert run.predictions.shape == (3, 3, 2)
    assert run.error.shape == (3, 6)
    assert run.loss == pytest.approx(run.test_loss, rel=1e-10)
    # one label in a column is the same task as one label
    one = OptEq.init(4, 3, seed=0)
    column = gradient_descent(one, X, y[:, None], 0.05, 2, record=Record(test=(X, y)), tol=TOL)
    assert column.loss == pytest.approx(column.test_loss, rel=1e-10)


def test_flips_count_the_units_that_differ_from_the_start() -> None:
    """One unit, one sample: it is on at first and pushed off, u ← u - η a(au - y) until u < 0."""
    model = VanillaDEQ(tensor([0.0]), tensor([1.0]), tensor(1.0))
    model.a.requires_grad_(False)
    model.W.requires_grad_(False)
    run = gradient_descent(model, tensor([1.0]), tensor(-1.0), 0.3, 6, tol=TOL)
    u, path = 1.0, []
    for _ in range(7):
        path.append(u)
        u -= 0.3 * (u + 1) * (u > 0)
    assert run.predictions[:, 0] == pytest.approx([max(u, 0.0) for u in path], abs=1e-12)
    assert list(run.flips) == [float(u <= 0) for u in path]
    assert run.flips[-1] == 1


def test_features_flip_too() -> None:
    model = ReLUImplicit(tensor([0.0]), tensor([1.0]), tensor(0.0), tensor(1.0), 0.5)
    for name in "Wac":
        getattr(model, name).requires_grad_(False)
    run = gradient_descent(model, tensor([1.0]), tensor(-1.0), 0.9, 3, tol=TOL)
    assert list(run.flips) == [0, 2, 2, 2]  # the feature and the state it feeds


def test_frozen_parameters_stay() -> None:
    X, y = data()
    model = tanh_deq()
    model.U.requires_grad_(False)
    for run in (
        gradient_descent(model, X, y, 0.1, 3),
        gradient_flow(model, X, y, [0, 0.3], rtol=1e-6, atol=1e-8),
    ):
        assert set(run.end) == set(run.displacement) == {"W", "a"}
        other = tanh_deq()
        run.restore(other)
        assert torch.equal(other.U, model.U)
        assert not torch.equal(other.W, model.W)
        assert other(X).detach().numpy() == pytest.approx(run.predictions[-1], abs=1e-7)
    with pytest.raises(ValueError, match="nothing to train: no parameter requires a gradient"):
        gradient_descent(model.requires_grad_(False), X, y, 0.1, 3)


def test_descent_in_single_precision() -> None:
    (X, y), model = data(), tanh_deq()
    double = gradient_descent(model, X, y, 0.1, 5)
    single = gradient_descent(model.float(), X.float(), y.float(), 0.1, 5)
    assert single.end["W"].dtype == np.float32
    assert single.predictions.dtype == np.float64
    assert single.predictions == pytest.approx(double.predictions, abs=1e-4)
    assert not np.array_equal(single.predictions, double.predictions)
    with pytest.raises(TypeError, match="needs a float64 model"):
        gradient_flow(model, X.float(), y.float(), [0, 1])


def test_records_are_kept_every_so_often_and_at_the_end() -> None:
    (X, y), model = data(), tanh_deq()
    full = gradient_descent(model, X, y, 0.1, 7, tol=TOL)
    some = gradient_descent(model, X, y, 0.1, 7, record=Record(every=3), tol=TOL)
    assert list(some.gradients) == [0, 3, 6, 7]
    assert some.times == pytest.approx([0, 0.3, 0.6, 0.7])
    assert some.predictions == pytest.approx(full.predictions[[0, 3, 6, 7]], abs=1e-10)
    none = gradient_descent(model, X, y, 0.1, 2, record=LEAN)
    assert none.norms == {}
    assert none.flips is None
    assert none.gram_min is None


# Resuming


def test_a_resumed_run_is_the_uninterrupted_one() -> None:
    """Flips and displacements too, which look back to the very start."""
    X, y = data(4)
    record = Record(gram=True, test=(X, y))
    options = {"record": record, "tol": 1e-13}
    model = VanillaDEQ.init(8, 3, seed=1)
    whole = gradient_descent(model, X, y, 0.03, 12, **options)
    assert whole.flips is not None
    assert whole.flips[5] > 0  # else the flips below would show nothing
    first = gradient_descent(model, X, y, 0.03, 5, **options)
    joined = gradient_descent(model, X, y, 0.03, 7, resume=first, **options)
    assert len(first) == 6
    same(joined, whole, 1e-8)
    assert list(joined.gradients) == list(range(13))
    assert joined.times == pytest.approx(0.03 * np.arange(13), abs=1e-14)
    # records stay on the grid of the whole run, whatever the epoch of the interruption
    every = Record(every=3)
    first = gradient_descent(model, X, y, 0.03, 4, record=every)
    joined = gradient_descent(model, X, y, 0.03, 6, record=every, resume=first)
    assert list(joined.gradients) == [0, 3, 4, 6, 9, 10]


def same(one: Trajectory, two: Trajectory, tol: float = 0.0) -> None:
    """Compare every field."""
    for f in dataclasses.fields(Trajectory):
        a, b = getattr(one, f.name), getattr(two, f.name)
        pairs = {f.name: (a, b)}
        if isinstance(a, dict):
            assert list(a) == list(b), f.name
            pairs = {f"{f.name}/{k}": (a[k], b[k]) for k in a}
        for name, (p, q) in pairs.items():
            assert type(p) is type(q), name
            if isinstance(p, np.ndarray):
                assert p.dtype == q.dtype, name
                assert p == pytest.approx(q, rel=tol, abs=tol), name
            else:
                assert p == q, name


def test_parts_that_do_not_fit_are_refused() -> None:
    (X, y), model = data(), tanh_deq()
    run = gradient_descent(model, X, y, 0.1, 2)
    other = gradient_descent(model, X, y, 0.1, 2, record=LEAN)
    with pytest.raises(ValueError, match=r"recorded different things.*'flips'.*the same Record"):
        run.continued(other)
    with pytest.raises(ValueError, match="recorded different things"):
        gradient_descent(model, X, y, 0.1, 2, record=LEAN, resume=run)
    with pytest.raises(ValueError, match="different labels y; resume with the same data"):
        gradient_descent(model, X, -y, 0.1, 2, resume=run)
    with pytest.raises(ValueError, match="nothing to resume: the trajectory is empty"):
        gradient_descent(model, X, y, 0.1, 2, resume=run[:0])


# Leaving the region


def runaway() -> tuple[VanillaDEQ, Tensor, Tensor]:
    """Return a unit whose w grows past 1, where w z + x = z has no solution z ≥ 0."""
    return VanillaDEQ(tensor([0.5]), tensor([1.0]), tensor(1.0)), tensor([1.0]), tensor(4.0)


def test_descent_that_loses_the_equilibrium_says_where() -> None:
    model, X, y = runaway()
    with pytest.raises(LeftRegion) as caught:
        gradient_descent(model, X, y, 0.25, 5, solver=Picard())
    e0 = 1 / (1 - 0.5) - 4
    w = 0.5 - 0.25 * e0 * 2 * 2  # the gradient is e v z with v = z = 2
    assert w > 1
    message = str(caught.value)
    assert message.startswith("epoch 1: no equilibrium was found (Picard did not converge")
    assert message.endswith(f"; the norm of the cell is {w:.4g} (below 1 it contracts).")
    run = caught.value.trajectory
    assert len(run) == 1
    assert run.stopped == message
    assert run.predictions[0] == pytest.approx([2.0], abs=1e-7)
    assert np.array_equal(run.end["W"], [[0.5]])  # the last weights that were recorded
    quiet = gradient_descent(model, X, y, 0.25, 5, solver=Picard(), throw=False)
    same(quiet, run)
    assert message in repr(quiet)


def test_a_lost_run_can_be_resumed_with_a_smaller_step() -> None:
    model, X, y = runaway()
    lost = gradient_descent(model, X, y, 0.25, 5, solver=Picard(), throw=False)
    run = gradient_descent(model, X, y, 0.01, 4, resume=lost, tol=TOL)
    straight = gradient_descent(model, X, y, 0.01, 4, tol=TOL)
    assert list(run.gradients) == [0, 1, 2, 3, 4]
    assert run.stopped == ""
    assert run.predictions[1:] == pytest.approx(straight.predictions[1:], abs=1e-9)
    # at a point without equilibrium the resumed run is lost at once, and says so
    nowhere = dataclasses.replace(straight, end={**straight.end, "W": np.array([[2.0]])})
    again = gradient_descent(model, X, y, 0.01, 4, resume=nowhere, solver=Picard(), throw=False)
    assert again.stopped.startswith("epoch 4: no equilibrium was found")
    assert len(again) == 5


def test_overflow_is_told_from_a_lost_equilibrium() -> None:
    X, y = data()
    with pytest.raises(LeftRegion, match=r"^epoch 1: the weights .*overflowed; the step is too la"):
        gradient_descent(tanh_deq(), X, y, 1e308 * 10, 3)
    # finite weights whose product is not: W = … - A'A
    with pytest.raises(LeftRegion, match=r"^epoch 1: .*the norm of the cell is inf"):
        gradient_descent(MonDEQ.init(4, 3, seed=1), X, y, 1e200, 3)


def test_certified_stops_when_the_cell_stops_contracting() -> None:
    """The equilibrium of tanh exists for any w, but the certificate ends at 1."""
    model = VanillaDEQ(tensor([0.9]), tensor([1.0]), tensor(1.0), sigma="tanh")
    X, y = tensor([0.5]), tensor(2.0)
    free = gradient_descent(model, X, y, 0.2, 12)
    assert free.stopped == ""
    first = int(np.argmax(free.norms["cell"] >= 1))
    assert 0 < first < 12
    with pytest.raises(
        LeftRegion, match=rf"^epoch {first}: the cell no longer contracts"
    ) as caught:
        gradient_descent(model, X, y, 0.2, 12, certified=True)
    run = caught.value.trajectory
    assert len(run) == first + 1
    value = run.norms["cell"][-1]
    assert value >= 1 > run.norms["cell"][-2]
    assert f"the norm of the cell is {value:.4g} (below 1" in str(caught.value)
    assert run.end["W"][0, 0] == value
    with pytest.raises(ValueError, match=r"certified=True looks at norms\['cell'\]"):
        gradient_descent(model, X, y, 0.2, 12, certified=True, record=LEAN)


def test_test_data_without_equilibrium_end_the_run_in_words() -> None:
    """With w = 2 the input -1 has the equilibrium 0, the input 1 has none."""
    model = VanillaDEQ(tensor([2.0]), tensor([1.0]), tensor(1.0))
    record = Record(test=(tensor([1.0]), tensor(1.0)))
    for train in (
        lambda **o: gradient_descent(model, tensor([-1.0]), tensor(1.0), 0.1, 2, **o),
        lambda **o: gradient_flow(model, tensor([-1.0]), tensor(1.0), [0, 1], **o),
    ):
        with pytest.raises(LeftRegion, match=r"no equilibrium was found on the test data \(Picard"):
            train(record=record, solver=Picard())


def test_the_error_survives_a_process_boundary() -> None:
    model, X, y = runaway()
    with pytest.raises(LeftRegion) as caught:
        gradient_descent(model, X, y, 0.25, 5, solver=Picard())
    copied = pickle.loads(pickle.dumps(caught.value))
    assert str(copied) == str(caught.value)
    same(copied.trajectory, caught.value.trajectory)


# Gradient flow

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
    found = Oracle(model, X, y, None, None, 1e-13)()
    out = model(X, tol=1e-13, adjoint=IFT(Newton(), tol=1e-13)).reshape(y.shape)
    exact = torch.autograd.grad(0.5 * (out - y).pow(2).sum(), list(model.parameters()))
    for key, value in zip(found.grads, exact):
        assert torch.allclose(found.grads[key], value, rtol=0, atol=1e-12), key
    with pytest.raises(ValueError, match="a spy was asked"):
        Oracle(model, X, y, None, Spy(), 1e-13)()


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
    real, calls = Oracle.__call__, 0

    def failing(when: Callable[[int], bool]) -> Callable[[Oracle], object]:
        def call(oracle: Oracle) -> object:
            nonlocal calls
            calls += 1
            if when(calls):
                raise Lost("no equilibrium was found (in a test)")
            return real(oracle)

        return call

    monkeypatch.setattr(Oracle, "__call__", failing(lambda k: k in (3, 10, 40)))
    run = gradient_flow(model, X, y, [0, 0.05, 0.3], rtol=1e-6, atol=1e-8)
    assert calls > 40
    assert run.stopped == ""
    assert run.predictions == pytest.approx(calm.predictions, abs=1e-5)
    calls = 0
    monkeypatch.setattr(Oracle, "__call__", failing(lambda k: k > 60))
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
    for bad in ((X[0], y), (X, y[:2])):
        with pytest.raises(ValueError, match=r"X must be \(n, d\) and y must have n rows; got"):
            gradient_descent(model, *bad, 0.1, 1)
    with pytest.raises(ValueError, match=r"y must be \(3,\), one label per row"):
        gradient_descent(model, X, y[:, None], 0.1, 1)
    # bad data are not mistaken for a run that went astray
    with pytest.raises(ValueError, match="X has NaN or infinite entries; check the data"):
        gradient_descent(model, X / 0, y, 0.1, 1)
    with pytest.raises(ValueError, match="y has NaN or infinite entries; check the data"):
        gradient_flow(model, X, y * float("nan"), [0, 1])
    with pytest.raises(TypeError, match=r"x must be a tensor of the weights' dtype torch.float64"):
        gradient_descent(model, X.float(), y, 0.1, 1)


# The linear picture


def gram(n: int = 4) -> tuple[np.ndarray, np.ndarray]:
    g = generator(3)
    J = normal(n, 6, g=g).numpy()
    return J @ J.T, normal(n, g=g).numpy()


def test_the_linearised_flow_is_the_matrix_exponential() -> None:
    (K, e0), times = gram(), [0.0, 0.1, 1.0, 30.0]
    run = linearised_flow(K, e0, times, y=np.arange(4.0))
    expected = np.stack([scipy.linalg.expm(-t * K) @ e0 for t in times])
    assert run.error == pytest.approx(expected, abs=1e-13)
    assert run.predictions == pytest.approx(expected + np.arange(4.0), abs=1e-13)
    assert run.kind == "linearised flow"
    assert run.gram_min == pytest.approx(np.full(4, np.linalg.eigvalsh(K)[0]))
    assert run.gram_max == pytest.approx(np.full(4, np.linalg.eigvalsh(K)[-1]))
    # without labels the error is the prediction, and torch kernels are welcome
    again = linearised_flow(torch.from_numpy(K), torch.from_numpy(e0), times)
    assert again.predictions == pytest.approx(expected, abs=1e-13)


def test_slow_directions_keep_their_digits() -> None:
    """The second error starts at 0 and moves by -λt/2; 1 - exp would lose it altogether."""
    for slow in (1e-12, 1e-20):
        K = slow / 2 * np.array([[1.0, 1.0], [1.0, 1.0]])
        run = linearised_flow(K, [1.0, 0.0], [0.0, 1.0, 3.0])
        assert run.error[:, 1] == pytest.approx([0, -slow / 2, -3 * slow / 2], rel=1e-10, abs=0)
        assert run.error[0, 1] == 0


def test_linearised_descent_is_the_iteration() -> None:
    K, e0 = gram()
    for step in (0.01, 2.5 / np.linalg.eigvalsh(K)[-1]):  # the second one diverges, and must
        run = linearised_descent(K, e0, step, 8, y=np.ones(4))
        e = e0
        for k in range(9):
            assert run.error[k] == pytest.approx(e, rel=1e-12, abs=1e-13)
            e = e - step * K @ e
        assert run.kind == "linearised descent"
        assert run.step == step
        assert list(run.gradients) == list(range(9))
        assert run.times == pytest.approx(step * np.arange(9))
    assert run.loss[-1] > run.loss[0]


def test_a_wide_step_of_descent_starts_along_its_linearisation() -> None:
    """The frozen kernel of the start gives the first step up to second order in its size."""
    model, (X, y) = tanh_deq(), data()
    K = empirical_ntk(model, X, tol=1e-13).numpy()
    gaps = []
    for step in (1e-2, 1e-3):
        run = gradient_descent(model, X, y, step, 1, tol=1e-14)
        frozen = linearised_descent(K, run.error[0], step, 1, y=y)
        gaps.append(np.abs(run.predictions[1] - frozen.predictions[1]).max())
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.1)


def test_wrong_kernels_are_named() -> None:
    K, e0 = gram()
    with pytest.raises(ValueError, match=r"got \(4, 4\) and \(3,\)"):
        linearised_flow(K, e0[:3], [0, 1])
    with pytest.raises(ValueError, match=r"got \(4, 4\) and \(4, 1\)"):
        linearised_flow(K, e0[:, None], [0, 1])
    skew = K + np.triu(np.full((4, 4), 0.5), 1)
    with pytest.raises(ValueError, match=r"differs from its transpose by 5.00e-01"):
        linearised_descent(skew, e0, 0.1, 2)
    with pytest.raises(ValueError, match="K must be symmetric"):
        linearised_flow(K * np.nan, e0, [0, 1])
    for step, epochs in ((0.0, 2), (-0.1, 2), (0.1, -1)):
        with pytest.raises(ValueError, match="step must be positive, epochs not negative"):
            linearised_descent(K, e0, step, epochs)


# Trajectories


def full_run() -> Trajectory:
    model, X, y = runaway()
    record = Record(gram=True, test=(X, y))
    return gradient_descent(model, X, y, 0.06, 9, record=record, solver=Picard(), throw=False)


def test_a_trajectory_is_saved_whole_and_without_pickle(tmp_path: Path) -> None:
    path = tmp_path / "run.trajectory"  # the name is kept as it is
    run = dataclasses.replace(full_run(), stopped="epoch 3: β ≥ 1.")
    for f in dataclasses.fields(run):  # every field carries something, or the test shows nothing
        value = getattr(run, f.name)
        assert value is not None, f.name
        assert isinstance(value, float) or len(value) > 0, f.name
    run.save(path)
    with np.load(path, allow_pickle=False) as file:
        assert all(file[k].dtype.kind in "fiU" for k in file.files)
    same(Trajectory.load(path), run)
    model, (X, y) = tanh_deq(), data()
    for other in (
        linearised_flow(*gram(), [0, 1]),
        gradient_descent(model.float(), X.float(), y.float(), 0.1, 1, record=LEAN),
        run[:0],
    ):
        other.save(path)
        same(Trajectory.load(path), other)


def test_a_saved_run_can_be_resumed(tmp_path: Path) -> None:
    model, (X, y) = tanh_deq(), data()
    whole = gradient_descent(model, X, y, 0.1, 6, tol=TOL)
    gradient_descent(model, X, y, 0.1, 2, tol=TOL).save(tmp_path / "a.npz")
    first = Trajectory.load(tmp_path / "a.npz")
    same(gradient_descent(model, X, y, 0.1, 4, tol=TOL, resume=first), whole, 1e-9)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.npz"
    np.savez(path, weights=np.ones(3))
    with pytest.raises(
        ValueError, match=r"foreign.npz is not a saved trajectory: unknown entry 'w"
    ):
        Trajectory.load(path)
    np.savez(path, times=np.ones(3), y=np.ones(3))
    with pytest.raises(ValueError, match=r"\['gradients', 'kind', 'predictions'\] are missing"):
        Trajectory.load(path)
    with open(path, "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(ValueError, match="not a saved trajectory: it holds a single array"):
        Trajectory.load(path)
    full_run().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{**arrays, "y": np.array([object()])})
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Trajectory.load(path)
    path.write_bytes(pickle.dumps(full_run()))
    with pytest.raises(ValueError, match="pickle"):
        Trajectory.load(path)


def test_slices_cut_every_array_with_a_row_per_time() -> None:
    run = full_run()
    n = len(run)
    assert n >= 4
    part = run[1:-1:2]
    rows = range(1, n - 1, 2)
    assert len(part) == len(rows)
    for name in ("times", "gradients", "predictions", "gram_min", "gram_max", "flips"):
        assert np.array_equal(getattr(part, name), getattr(run, name)[list(rows)])
    assert np.array_equal(part.test_predictions, run.test_predictions[list(rows)])
    for name in ("norms", "displacement", "block_min"):
        whole, cut = getattr(run, name), getattr(part, name)
        assert list(whole) == list(cut)
        assert all(np.array_equal(cut[k], whole[k][list(rows)]) for k in whole)
    assert np.array_equal(part.loss, run.loss[list(rows)])
    assert np.array_equal(part.y, run.y)
    assert part.end == {}  # the weights belong to the last row
    assert run[1:].end is run.end
    with pytest.raises(TypeError, match=r"slice a trajectory \(t\[2:5\]\); got 3"):
        run[3]  # type: ignore[index]


def test_what_was_not_recorded_is_missed() -> None:
    run = gradient_descent(tanh_deq(), *data(), 0.1, 1)
    for name in ("test_loss", "test_error"):
        with pytest.raises(
            ValueError, match=r"no test data were recorded; pass record=Record\(tes"
        ):
            getattr(run, name)


def test_the_plot_is_the_loss_on_a_logarithmic_axis() -> None:
    run = gradient_descent(tanh_deq(), *data(), 0.1, 3)
    _, ax = plt.subplots()
    try:
        line = run.plot(ax, color="C1")
        assert np.array_equal(line.get_xdata(), run.times)
        assert np.array_equal(line.get_ydata(), run.loss)
        assert line.get_color() == "C1"
        assert (ax.get_yscale(), ax.get_xlabel()) == ("log", "time")
        line = run.plot(ax, against="gradients")
        assert np.array_equal(line.get_xdata(), [0, 1, 2, 3])
        assert ax.get_xlabel() == "gradient evaluations"
        with pytest.raises(ValueError, match="'times' or 'gradients', got 'epochs'"):
            run.plot(ax, against="epochs")
    finally:
        plt.close("all")


def test_a_trajectory_in_words() -> None:
    run = gradient_descent(tanh_deq(), *data(), 0.1, 3)
    loss = f"loss {run.loss[0]:.3g} → {run.loss[-1]:.3g}"
    assert repr(run) == f"Trajectory(descent, 4 records to t = 0.3, {loss})"


# Sweeps and progress


def one_case(seed: int) -> Trajectory:
    assert torch.get_num_threads() == 1
    X, y = data()
    return gradient_descent(VanillaDEQ.init(6, 3, seed=seed), X, y, 0.1, 3)


def lost_case(seed: int) -> Trajectory:
    model, X, y = runaway()
    return gradient_descent(model, X, y, 0.25, 2, solver=Picard())


def test_a_sweep_is_the_same_with_any_executor() -> None:
    cases = (3, 1, 2)
    torch.set_num_threads(2)
    plain = sweep(one_case, iter(cases))
    assert torch.get_num_threads() == 2  # put back
    assert list(plain) == list(cases)
    same(plain[2], one_alone(2))
    assert not np.array_equal(plain[1].predictions, plain[2].predictions)
    with ThreadPoolExecutor(2) as pool:
        threads = sweep(one_case, cases, executor=pool)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        processes = sweep(one_case, cases, executor=pool)
        with pytest.raises(LeftRegion, match=r"^epoch 1: no equilibrium was found") as caught:
            sweep(lost_case, (0,), executor=pool)
    assert len(caught.value.trajectory) == 1
    for other in (threads, processes):
        assert list(other) == list(cases)
        for case in cases:
            same(other[case], plain[case])


def one_alone(seed: int) -> Trajectory:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return one_case(seed)
    finally:
        torch.set_num_threads(threads)


def test_progress_is_for_terminals_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress("half way")
    gradient_descent(tanh_deq(), *data(), 0.1, 1)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress("half way")
    assert capsys.readouterr() == ("", "\r\x1b[Khalf way")
    run = gradient_descent(tanh_deq(), *data(), 0.1, 1)
    lines = capsys.readouterr().err.split("\r\x1b[K")
    assert lines[1:] == [f"epoch {k}/1: loss {run.loss[k]:.3e}" for k in (0, 1)] + [""]
    gradient_flow(tanh_deq(), *data(), [0, 0.1], rtol=1e-4, atol=1e-4)
    assert capsys.readouterr().err.split("\r\x1b[K")[1:] == ["t = 0.1 of 0.1", ""]


def test_a_part_without_the_end_has_no_weights_to_restore_or_resume() -> None:
    net, (X, y) = tanh_deq(), data()
    run = gradient_descent(net, X, y, 0.01, 4)
    run[2:].restore(net)
    with pytest.raises(ValueError, match="does not reach its end"):
        run[:2].restore(net)
    with pytest.raises(ValueError, match="does not reach its end"):
        gradient_descent(net, X, y, 0.01, 2, resume=run[:2])
