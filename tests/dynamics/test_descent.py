"""Gradient descent against the loop written by hand, and what it records."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from small_runs import LEAN, TOL, data, runaway, same, tanh_deq, tensor
from torch import Tensor

from deqbook.dynamics import (
    LeftRegion,
    Record,
    gradient_descent,
    gradient_flow,
)
from deqbook.implicit import IFT
from deqbook.kernels import empirical_ntk, gram_parts, jacobian_ntk
from deqbook.linalg import operator_norm
from deqbook.models import EquilibriumModel, MonDEQ, OptEq, ReLUImplicit, VanillaDEQ
from deqbook.runtime import generator, normal, progress
from deqbook.solvers import Anderson, Newton, Picard

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
    assert run.times == pytest.approx(0.03 * np.arange(7), abs=1e-12)
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
    assert joined.times == pytest.approx(0.03 * np.arange(13), abs=1e-12)
    # records stay on the grid of the whole run, whatever the epoch of the interruption
    every = Record(every=3)
    first = gradient_descent(model, X, y, 0.03, 4, record=every)
    joined = gradient_descent(model, X, y, 0.03, 6, record=every, resume=first)
    assert list(joined.gradients) == [0, 3, 4, 6, 9, 10]


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
