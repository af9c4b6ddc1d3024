"""The explicit problems of the page on monotone operators."""

from __future__ import annotations

import pytest
import torch

from deqbook.activations import relu, tanh
from deqbook.pages.p01b_monotone.lab import (
    Kinked,
    least_averaging,
    nearly_parallel,
    random_problem,
    rotation_problem,
    rotation_shrinks,
    segment_instance,
    tied_layers,
)


def test_the_rotation_has_its_equilibrium_at_five() -> None:
    problem, z = rotation_problem(mu=0.5, b=1.0)
    assert torch.allclose(problem(z), z)
    assert z.tolist() == [[5.0, 5.0]]
    assert (problem.mu, problem.L) == (pytest.approx(0.5), pytest.approx(1.25**0.5))


@pytest.mark.parametrize("multiple", [1.9, 1.98, 2.0])
def test_four_hundred_steps_shrink_by_the_factor(multiple: float) -> None:
    # for the rotation ‖I - αM‖² = 1 - 2αμ + α²L² exactly; α = cμ/L² makes it 1 - c(2 - c)μ²/L²
    factor = (1 - multiple * (2 - multiple) * 0.2) ** 0.5
    assert rotation_shrinks(multiple) == pytest.approx(factor**400, rel=1e-6)


@pytest.mark.parametrize("sigma", [relu, tanh])
def test_a_random_problem_comes_with_its_equilibrium(sigma) -> None:
    problem, z = random_problem(3, sigma)
    assert problem.mu >= 0.5
    assert float((problem(z) - z).abs().max()) < 1e-12


def test_the_segment_solves_and_its_continuation_does_not() -> None:
    model, low, high = segment_instance()
    model.requires_grad_(False)
    t = torch.tensor([[0.0], [0.3], [1.0], [1.05], [-0.05]]).double()
    points = low + t * (high - low)
    moved = (model.cell(points, torch.zeros(5, 1).double()) - points).norm(dim=1)
    assert float(moved[:3].max()) < 1e-12
    assert float(moved[3:].min()) > 1e-2
    assert torch.linalg.matrix_norm(model.W, 2) == pytest.approx(1.0)


def test_a_tied_layer_by_hand() -> None:
    W, b = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([3.0]).double()
    T = tied_layers([W], [b], alpha=0.5)
    z = torch.tensor([[1.0, 1.0], [-9.0, 0.0]]).double()
    assert T(z).tolist() == [[3.5, 6.5], [-4.5, 0.0]]


@pytest.mark.parametrize(("scale", "least"), [(0.0, 0.5), (-0.4, 0.7), (1.0, 0.0)])
def test_the_least_averaging_of_a_multiple_of_the_identity(scale: float, least: float) -> None:
    assert least_averaging(lambda z: scale * z, 3) == pytest.approx(least, abs=1e-9)


def test_one_line_is_half_averaged() -> None:
    assert least_averaging(nearly_parallel(1, 1.0), 2) == pytest.approx(0.5, abs=1e-9)


def test_slopes_and_resolvents_of_the_absolute_value() -> None:
    f = Kinked(torch.tensor([1.0, -1.0]).double(), torch.zeros(2).double(), -3.0)
    x = torch.tensor([-3.0, -1.0, 0.0, 2.0]).double()
    assert f(x).tolist() == [3, 1, 0, 2]
    low, high = f.subdifferential(x)
    assert low.tolist() == [-float("inf"), -1, -1, 1]
    assert high.tolist() == [-1, -1, 1, 1]
    p = torch.tensor([-9.0, -2.0, 0.5, 3.0]).double()
    found, missed = f.resolvent(p)
    assert torch.allclose(found, torch.tensor([-3.0, -1.0, 0.0, 2.0]).double(), atol=1e-9)
    assert float(missed.max()) < 1e-9
    opened = Kinked(f.slopes, f.offsets, f.start, closed=False)
    assert opened.resolvent(p)[1][0] == pytest.approx(5.0)  # -9 against -3 - 1
