"""Assignment 7: what it gives to students is right, and its questions have answers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from deqbook.course import a07


@pytest.fixture(scope="module")
def mine() -> a07.Mine:
    return a07.instance("student-01")


def quotient(
    loss: Callable[[a07.Weights], float], weights: a07.Weights, name: str, direction: np.ndarray
) -> float:
    """Return the derivative of a loss along a direction of one weight, by differences."""
    step = 1e-5
    moved = [{**weights, name: weights[name] + s * step * direction} for s in (1, -1)]
    return (loss(moved[0]) - loss(moved[1])) / (2 * step)


@pytest.mark.parametrize("name", ["W", "U", "b", "a", "c"])
def test_the_given_gradients_are_those_of_the_loss(mine: a07.Mine, name: str) -> None:
    X, y, weights = mine.X[:20], mine.y[:20], mine.start
    direction = np.cos(np.arange(weights[name].size, dtype=float)).reshape(weights[name].shape)

    def settled(w: a07.Weights) -> float:
        Z = a07.picard(w["W"], X @ w["U"].T + w["b"], 200)
        return a07.loss_and_gradients(w, X, y, Z)[0]

    Z = a07.picard(weights["W"], X @ weights["U"].T + weights["b"], 200)
    implicit = a07.loss_and_gradients(weights, X, y, Z)[1]
    assert (implicit[name] * direction).sum() == pytest.approx(
        quotient(settled, weights, name, direction), rel=1e-6
    )
    finite = a07.unrolled_gradients(weights, X, y, 3)[1]
    assert (finite[name] * direction).sum() == pytest.approx(
        quotient(lambda w: a07.unrolled_gradients(w, X, y, 3)[0], weights, name, direction),
        rel=1e-6,
    )


def test_the_derivatives_of_the_activation() -> None:
    h, step = np.linspace(-3, 3, 13), 1e-5
    for f, slope in ((a07.sigma, a07.slope), (a07.slope, a07.bend)):
        assert np.allclose((f(h + step) - f(h - step)) / (2 * step), slope(h), atol=1e-9)


@pytest.mark.parametrize("number", range(12))
def test_every_students_numbers_pose_the_question(number: int) -> None:
    mine = a07.instance(f"student-{number:02d}")
    gaps = mine.centres[:, None] - mine.centres
    distances = np.sqrt((gaps**2).sum(axis=2)) + 9 * np.eye(a07.CLUSTERS)
    assert distances.min() > a07.APART
    assert (mine.y == 1).sum() > 40
    assert (mine.y == -1).sum() > 40
    Q = mine.X_test @ mine.start["U"].T + mine.start["b"]
    Z = a07.picard(mine.start["W"], Q, a07.ENOUGH)
    assert np.linalg.norm(a07.sigma(Z @ mine.start["W"].T + Q) - Z, axis=1).max() < a07.SETTLED
    # task 4: one equilibrium for every s that matters, since I - sR is monotone
    assert 3 * np.linalg.eigvalsh((mine.R + mine.R.T) / 2).max() < 0.5
    # task 5: somewhere on a grid there is an answer
    steps = np.array([-2.4, -0.25, 0.25, 2.4])
    found = 0
    for q in product(steps, repeat=3):
        corners = [z for z in product((-1, 1), repeat=3) if saturated(mine.C, np.array(q), z)]
        found += len(corners) > 1
    assert found


def saturated(C: np.ndarray, q: np.ndarray, z: tuple[int, ...]) -> bool:
    return bool((np.array(z) * (C @ z + q) > 1.05).all())
