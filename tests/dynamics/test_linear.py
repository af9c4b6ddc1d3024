"""Training with a frozen kernel against the matrix exponential."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch
from small_runs import data, gram, tanh_deq

from deqbook.dynamics import (
    gradient_descent,
    linearised_descent,
    linearised_flow,
)
from deqbook.kernels import empirical_ntk


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
