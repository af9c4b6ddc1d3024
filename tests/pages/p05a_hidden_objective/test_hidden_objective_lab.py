"""The lab of page 5a: deep networks against a convex solver, feed-forward networks rebuilt."""

from __future__ import annotations

from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
import torch

from deqbook.linalg import operator_norm
from deqbook.models import DeepOptEq
from deqbook.pages.p05a_hidden_objective.lab.deep import (
    block_minimiser,
    cyclic_shift,
    deep,
    inclusion_residual,
    joint_wide,
    wide,
)
from deqbook.pages.p05a_hidden_objective.lab.feedforward import (
    factor,
    feedforward_outputs,
    from_feedforward,
    unit_weights,
    unit_width,
)
from deqbook.pages.p05a_hidden_objective.lab.objective import cyclic_sums, firm_excess
from deqbook.regularize import HiddenObjective
from deqbook.runtime import generator, normal

F64 = torch.float64


# --- what a map is ---


def test_cyclic_sums_tell_a_gradient_from_a_rotation() -> None:
    angle = torch.arange(8, dtype=F64) * (np.pi / 4)
    loop = torch.stack([angle.cos(), angle.sin()], dim=1)[None]
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F64)
    assert float(cyclic_sums(loop, loop)) == pytest.approx(-8 * (1 - np.cos(np.pi / 4)))
    assert float(cyclic_sums(loop, loop @ turn)) == pytest.approx(8 * np.sin(np.pi / 4))
    a, b = loop[0], loop[0].roll(1, dims=0)
    assert firm_excess(a, b, a, b) == pytest.approx(0)
    assert firm_excess(a, b, a @ turn, b @ turn) == pytest.approx(1)


@pytest.mark.parametrize("corners", [3, 4, 5, 6, 8, 12])
def test_a_rotation_fails_on_regular_polygons_walked_its_way_only(corners: int) -> None:
    theta = 0.7  # π/θ = 4.5: up to four corners every polygon passes
    angle = torch.arange(corners, dtype=F64) * (2 * np.pi / corners)
    loop = torch.stack([angle.cos(), angle.sin()], dim=1)[None]
    c, s = np.cos(theta), np.sin(theta)
    turn = torch.tensor([[c, -s], [s, c]], dtype=F64)
    along, against = (float(cyclic_sums(x, x @ turn.mT)) for x in (loop, loop.flip(1)))
    assert (along > 1e-9) == (corners > np.pi / theta)
    assert against < 0


# --- deep networks ---


def test_the_shift_moves_the_last_block_to_the_front() -> None:
    P = cyclic_shift(3, 2)
    moved = P @ torch.tensor([1.0, 1, 2, 2, 0, 0], dtype=F64)
    assert moved.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(cyclic_shift(3, 2, -1), P.mT)
    assert torch.equal(cyclic_shift(3, 2, 0), torch.eye(6, dtype=F64))


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_two_layers_against_cvxpy(alpha: float) -> None:
    net = deep(1, 2, alpha)
    m = net.model.m
    z1, z0 = cp.Variable(m), cp.Variable(m)
    cost, rules = cp.sum_squares(z1 - z0) / 2, []
    for phi, z in zip(net.layers, (z1, z0)):
        W, q = phi.W.numpy(), phi.q.numpy()
        s = cp.Variable(len(q), nonneg=True)
        hidden = cp.quad_form(s, cp.psd_wrap(np.eye(len(q)) - W @ W.T)) / 2 - q @ s
        cost += alpha * hidden
        if alpha < 1:
            cost += alpha * cp.sum_squares(z - W.T @ s) / (2 * (1 - alpha))
        else:
            rules.append(z == W.T @ s)
    cp.Problem(cp.Minimize(cost), rules).solve(
        solver="CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13, max_iter=200
    )
    found = block_minimiser(net.layers, alpha)
    assert np.allclose(found, [z1.value, z0.value], atol=1e-6)
    assert torch.allclose(found, net.blocks, atol=1e-11)


def test_three_layers_satisfy_the_inclusion_but_not_the_symmetric_problem() -> None:
    net = deep(0, 3, 0.5)
    assert float(inclusion_residual(net.layers, net.blocks, 0.5).norm()) < 1e-12
    flipped = inclusion_residual(net.layers, net.blocks, 0.5, shift=-1)
    assert float(flipped.norm()) > 0.1
    assert float((block_minimiser(net.layers, 0.5) - net.blocks).norm()) > 0.05


def test_the_wide_problem_against_its_joint_form() -> None:
    layers = deep(0, 3, 1.0, norms=(1.0, 1.0, 0.8)).layers
    y = wide(layers).minimiser().z
    assert torch.allclose(y, joint_wide(layers), atol=1e-12)
    assert torch.allclose(y, sum(f.layer(y) for f in layers) / 3, atol=1e-13)


def test_block_problems_refuse_what_they_cannot_solve() -> None:
    net = deep(0, 2, 0.5)
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\), got 1.0"):
        inclusion_residual(net.layers, net.blocks, 1.0)
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\], got 0"):
        block_minimiser(net.layers, 0.0)
    eye = HiddenObjective(torch.eye(2, dtype=F64), torch.zeros(2, dtype=F64))
    with pytest.raises(ValueError, match="not strictly convex"):
        block_minimiser([eye, eye], 0.5)
    with pytest.raises(ValueError, match="ReLU layers with tau = 1"):
        block_minimiser([HiddenObjective(eye.W, eye.q, 2.0)] * 2, 0.5)


# --- feed-forward networks ---


def low_rank(p: int, r: int, rank: int, g: torch.Generator) -> torch.Tensor:
    return normal(p, rank, g=g) @ normal(rank, r, g=g)


CASES = [
    (p, r, min(rank, p, r), spare)
    for p in (1, 3, 4)
    for r in (1, 3, 5)
    for rank in (0, 1, 3)
    for spare in (-1, 0, 2)
    if r - min(rank, p, r) + spare >= 0  # else A, which has p + r - rank + spare columns, is thin
]


@pytest.mark.parametrize(("p", "r", "rank", "spare"), CASES)
def test_factor_exists_exactly_when_there_is_room(p, r, rank, spare) -> None:
    g, k = generator(10 * p + r), p + r - rank + spare
    M, A = low_rank(p, r, rank, g), normal(p, k, g=g)
    if spare < 0:
        with pytest.raises(ValueError, match=rf"rank of B is at most {rank + k - p}"):
            factor(M, A)
    B = factor(M, A, full_rank=False)
    assert torch.allclose(A @ B.mT, M, atol=1e-11)
    assert int(torch.linalg.matrix_rank(B)) == min(r, rank + k - p)


def test_factor_names_what_is_wrong() -> None:
    g = generator(0)
    with pytest.raises(ValueError, match=r"\(3, 4\) but has rank 2"):
        factor(normal(3, 2, g=g), low_rank(3, 4, 2, g))
    with pytest.raises(ValueError, match="same p"):
        factor(normal(3, 2, g=g), normal(2, 4, g=g))


def test_unit_weights_multiply_to_the_given_matrices() -> None:
    g = generator(0)
    Ms = [normal(6, 4, g=g), low_rank(5, 6, 1, g), normal(7, 5, g=g)]
    assert unit_width(Ms) == 10
    chain = unit_weights(Ms, normal(4, 10, g=g))
    for M, (before, after) in zip(Ms, pairwise(chain)):
        assert torch.allclose(after @ before.mT, M, atol=1e-11)


def network(widths, seed, rank=None):
    g = generator(seed)
    As = [normal(r, p, g=g) for p, r in pairwise(widths)]
    if rank is not None:
        As[1] = low_rank(*As[1].shape, rank, g)
    return As, [normal(r, g=g) for r in widths[1:-1]], normal(7, widths[0], g=g)


@pytest.mark.parametrize("widths", [(3, 5, 2), (3, 5, 4, 6, 2), (4, 20, 30, 10, 3)])
@pytest.mark.parametrize(("sigma", "ball"), [("relu", False), ("relu", True), ("tanh", False)])
def test_rebuilt_networks_have_the_same_outputs(widths, sigma, ball) -> None:
    As, bs, x = network(widths, 1)
    model = from_feedforward(As, bs, sigma=sigma, unit_ball=ball)
    y = feedforward_outputs(x, As, bs, sigma=sigma)
    with torch.no_grad():
        assert torch.allclose(model(x), y, atol=1e-10 * float(y.norm()))
    found = model.solve(x, normal(7, model.m, g=generator(5)))
    assert int(found.steps.max()) == 1
    norms = [operator_norm(W.detach()) for W in model.Ws]
    assert norms[0] == 0.0
    assert (max(norms) <= 1 + 1e-12) == (ball or len(widths) == 3)


def test_a_layer_of_rank_one_needs_a_wider_state() -> None:
    As, bs, x = network((3, 5, 4, 2), 2, rank=1)
    model = from_feedforward(As, bs)
    assert model.m == 5 + 4 - 1
    with torch.no_grad():
        assert torch.allclose(model(x), feedforward_outputs(x, As, bs), atol=1e-10)
    with pytest.raises(ValueError, match="m = 7 is too small; these weights need 8"):
        from_feedforward(As, bs, m=7)
    ball = from_feedforward(As, bs, unit_ball=True)
    assert max(operator_norm(W.detach()) for W in ball.Ws) <= 1 + 1e-12


def test_feedforward_refusals() -> None:
    As, bs, _ = network((3, 5, 4, 2), 2)
    with pytest.raises(ValueError, match="got 3 and 1"):
        from_feedforward(As, bs[:1])
    with pytest.raises(ValueError, match="tanh does not"):
        from_feedforward(As, bs, sigma="tanh", unit_ball=True)


def test_an_input_injected_into_the_erasing_layer_is_lost() -> None:
    eye, zero = torch.eye(3, dtype=F64), torch.zeros(3, dtype=F64)
    model = DeepOptEq([0 * eye, eye], [eye, 0 * eye], [zero, zero], eye)
    x = normal(4, 3, g=generator(0))
    with torch.no_grad():
        assert float(model(x).abs().max()) == 0.0
