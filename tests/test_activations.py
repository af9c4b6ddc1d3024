"""Activations as proximal maps: the tanh prox against a bracketing root finder."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar

from deqbook.activations import ACTIVATIONS, Activation, activation, identity, relu, tanh

quick = settings(derandomize=True, deadline=None, max_examples=100)
points = st.floats(-60, 60, allow_nan=False)
positive = st.floats(1e-3, 1e3)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tanh_prox_by_bracketing(p: float, alpha: float) -> float:
    """Find t = artanh z with z + alpha (artanh z - z) = p."""
    reach = abs(p) / min(1.0, alpha) + 1

    def excess(t: float) -> float:
        return (1 - alpha) * math.tanh(t) + alpha * t - p

    return math.tanh(brentq(excess, -reach, reach, xtol=1e-15, rtol=1e-15, maxiter=500))


@quick
@given(points, positive)
def test_prox_of_tanh_is_the_root_of_its_equation(p: float, alpha: float) -> None:
    found = float(tanh.prox(tensor(p), alpha)[0])
    # near p = 0 with a small alpha the root is conditioned like 1, so one tolerance serves
    assert found == pytest.approx(tanh_prox_by_bracketing(p, alpha), abs=1e-11)


def test_prox_of_tanh_minimises_its_objective() -> None:
    """Ask for argmin f(z) + (z-p)^2/(2 alpha) with f' = artanh z - z, without any equation."""

    def f(z: float) -> float:
        return z * math.atanh(z) + 0.5 * math.log1p(-z * z) - z * z / 2

    for p in (-3.0, -0.4, 0.0, 0.7, 2.5):
        for alpha in (0.2, 1.0, 4.0):
            best = minimize_scalar(
                lambda z, p=p, alpha=alpha: alpha * f(z) + (z - p) ** 2 / 2,
                bounds=(-1 + 1e-12, 1 - 1e-12),
                method="bounded",
                options={"xatol": 1e-12},
            ).x
            assert float(tanh.prox(tensor(p), alpha)[0]) == pytest.approx(best, abs=1e-6)


def test_prox_of_tanh_in_one_batch_equals_one_by_one() -> None:
    p = torch.linspace(-9, 9, 37, dtype=torch.float64)
    for alpha in (0.05, 0.5, 1.0, 3.0):
        alone = torch.cat([tanh.prox(v[None], alpha) for v in p])
        assert torch.allclose(tanh.prox(p, alpha), alone, atol=1e-12)
        assert torch.equal(tanh.prox(-p, alpha), -tanh.prox(p, alpha))


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_prox_with_step_one_is_the_activation(name: str) -> None:
    sigma = activation(name)
    p = torch.linspace(-30, 30, 601, dtype=torch.float64)
    assert torch.allclose(sigma.prox(p, 1.0), sigma(p), atol=1e-12)
    assert torch.allclose(sigma.prox(p.float(), 1.0), sigma(p.float()), atol=1e-6)


@quick
@given(points, positive)
def test_prox_of_relu_does_not_feel_the_step_and_tanh_does(p: float, alpha: float) -> None:
    assert float(relu.prox(tensor(p), alpha)[0]) == max(p, 0.0)
    if 0.1 < abs(p) < 3 and not 0.5 < alpha < 2:
        assert abs(float(tanh.prox(tensor(p), alpha)[0]) - math.tanh(p)) > 1e-4


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_prox_is_firmly_nonexpansive(name: str) -> None:
    """The defining property of a prox: (Tx - Ty)(x - y) >= (Tx - Ty)^2."""
    sigma = activation(name)
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    for alpha in (0.1, 1.0, 7.0):
        t = sigma.prox(x, alpha)
        dt, dx = t[:, None] - t, x[:, None] - x
        assert float((dt * dx - dt**2).min()) >= -1e-12


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_slope_is_the_derivative_and_obeys_the_lipschitz_constant(name: str) -> None:
    sigma = activation(name)
    t = torch.linspace(-3, 3, 60, dtype=torch.float64)  # an even count: 0, the kink, is not on it
    h = 1e-6
    numeric = (sigma(t + h) - sigma(t - h)) / (2 * h)
    assert np.allclose(sigma.slope(t), numeric, atol=1e-8)
    assert float(sigma.slope(t).max()) <= sigma.lipschitz
    assert float(sigma.slope(t).min()) >= 0


def test_slope_of_relu_is_zero_at_the_kink() -> None:
    assert float(relu.slope(tensor(0.0))[0]) == 0.0


def test_only_tanh_is_bounded() -> None:
    far = tensor(1e6)
    for sigma in ACTIVATIONS.values():
        assert sigma.bounded == (float(sigma(far)[0]) < 10)


def test_activation_by_name_or_itself() -> None:
    assert activation("relu") is relu
    mine = Activation("mine", torch.relu, relu.slope, relu.prox)
    assert activation(mine) is mine
    assert torch.equal(identity(tensor(-2.0, 3.0)), tensor(-2.0, 3.0))
    with pytest.raises(ValueError, match=r"unknown activation 'gelu'.*'identity', 'relu', 'tanh'"):
        activation("gelu")
