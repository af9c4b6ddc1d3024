"""The experiments of the page on contractions, on maps whose answers are known."""

from __future__ import annotations

import math

import pytest
import torch

from deqbook.models import VanillaDEQ
from deqbook.pages.p01a_contraction.lab import expansion, picard_states, spread, worst_stretch
from deqbook.runtime import generator

ZERO, ONE = torch.zeros(1, 1).double(), torch.ones(1, 1).double()


def test_picard_keeps_the_start_and_every_state() -> None:
    states = picard_states(lambda z: 0.5 * z + 1, ZERO, 3)
    assert states.flatten().tolist() == [0.0, 1.0, 1.5, 1.75]


def test_the_spread_of_limits() -> None:
    assert spread(lambda z: 0.5 * z + 1, ZERO, 9 * ONE) == pytest.approx(0, abs=1e-8)
    assert spread(lambda z: torch.relu(2 * z - 1), ZERO, ONE) == 1.0
    assert spread(lambda z: z + 1, ZERO, ONE, steps=50) == math.inf


def test_the_expansion_of_a_linear_map_lies_between_its_singular_values() -> None:
    like = torch.zeros(50, 2).double()
    shrink = torch.tensor([0.5, 3.0]).double()
    seen = expansion(lambda z: z * shrink, like, generator(0))
    assert 2.5 < seen <= 3.0


def test_the_worst_pair_is_stretched_by_the_norm() -> None:
    W = torch.tensor([[0.0, 4.0], [0.0, 0.0]]).double()  # radius 0, norm 4
    model = VanillaDEQ(W, torch.ones(2, 1).double(), torch.ones(2).double())
    assert worst_stretch(model.requires_grad_(False), W) == pytest.approx(4.0)
