"""What a run leaves: saved, cut, resumed and drawn."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from small_runs import LEAN, TOL, data, gram, runaway, same, tanh_deq

from deqbook.dynamics import (
    Record,
    Trajectory,
    gradient_descent,
    linearised_flow,
)
from deqbook.solvers import Picard


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


def test_a_part_without_the_end_has_no_weights_to_restore_or_resume() -> None:
    net, (X, y) = tanh_deq(), data()
    run = gradient_descent(net, X, y, 0.01, 4)
    run[2:].restore(net)
    with pytest.raises(ValueError, match="does not reach its end"):
        run[:2].restore(net)
    with pytest.raises(ValueError, match="does not reach its end"):
        gradient_descent(net, X, y, 0.01, 2, resume=run[:2])
