"""The experiments of the page on contractions, on maps whose answers are known."""

from __future__ import annotations

import math

import pytest
import torch

from deqbook.models import VanillaDEQ
from deqbook.pages.p01a_contraction.lab import (
    aligned,
    equilibria,
    picard_states,
    spread,
    worst_stretch,
)

ZERO, ONE = torch.zeros(1, 1).double(), torch.ones(1, 1).double()


def test_picard_keeps_the_start_and_every_state() -> None:
    states = picard_states(lambda z: 0.5 * z + 1, ZERO, 3)
    assert states.flatten().tolist() == [0.0, 1.0, 1.5, 1.75]


def test_the_spread_of_limits() -> None:
    assert spread(lambda z: 0.5 * z + 1, ZERO, 9 * ONE) == pytest.approx(0, abs=1e-8)
    assert spread(lambda z: torch.relu(2 * z - 1), ZERO, ONE) == 1.0
    assert spread(lambda z: z + 1, ZERO, ONE, steps=50) == math.inf


def test_the_worst_pair_is_stretched_by_the_norm() -> None:
    W = torch.tensor([[0.0, 4.0], [0.0, 0.0]]).double()  # radius 0, norm 4
    model = VanillaDEQ(W, torch.ones(2, 1).double(), torch.ones(2).double())
    assert worst_stretch(model.requires_grad_(False), W) == pytest.approx(4.0)


def test_the_aligned_network_is_a_scalar_in_disguise() -> None:
    model, x = aligned(0.45)  # c = 2, so the scalar is z = 0.9z + 3/√m
    assert torch.allclose(model.solve(x).z, torch.full((1, 16), 7.5).double())
    assert torch.linalg.matrix_norm(model.W, 2) == pytest.approx(8.0)


def test_all_equilibria_are_found_and_nothing_else() -> None:
    W = torch.tensor([[2.0, -4.0], [1.0, -2.0]]).double()
    (found,) = equilibria(W, torch.tensor([[-1.0, -10.0]]).double())
    assert sorted(found.round(decimals=9).tolist()) == [[0, 0], [1, 0], [37, 9]]
    assert [len(z) for z in equilibria(2 * ONE, torch.cat([ONE, -ONE]))] == [0, 2]
