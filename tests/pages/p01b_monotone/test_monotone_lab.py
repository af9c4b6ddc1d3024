"""The explicit problems of the page on monotone operators."""

from __future__ import annotations

import pytest
import torch

from deqbook.activations import relu, tanh
from deqbook.pages.p01b_monotone.lab import (
    random_problem,
    rotation_problem,
    rotation_shrinks,
    segment_instance,
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
