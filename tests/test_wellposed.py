"""Certificates on matrices with known constants, and Lipschitz bounds on real solutions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deqbook.activations import Activation, relu, tanh
from deqbook.linalg import operator_norm
from deqbook.models import DeepOptEq, MonDEQ, OptEq, ReLUImplicit, ResidualCell, VanillaDEQ
from deqbook.runtime import generator, normal
from deqbook.solvers import Picard, fixed_point
from deqbook.splitting import MonotoneProblem, split
from deqbook.wellposed import (
    Affine,
    Certificate,
    Tied,
    Unstructured,
    certificates,
    certify,
    monotonicity,
)

quick = settings(derandomize=True, deadline=None, max_examples=20)
EYE = torch.eye(2, dtype=torch.float64)


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def named(model, kind: str) -> Certificate:
    (one,) = [c for c in certificates(model) if c.kind == kind]
    return one


TRIANGULAR = matrix([0.5, 10.0], [0.0, 0.5])  # radius 0.5, norm 10
HADAMARD = 0.6 * matrix([1.0, 1.0], [1.0, -1.0])  # norm 0.85, |W| has radius 1.2
SKEW = matrix([0.0, -3.0], [3.0, 0.0])  # norm 3, I - W is 1-strongly monotone
WIDE = matrix([0.45, 0.45], [-0.45, 0.45])  # sup norm 0.9, 2-norm 0.64
ROW = matrix([0.9, 0.0], [0.9, 0.0])  # sup norm 0.9, 2-norm 1.27


@pytest.mark.parametrize(
    ("W", "kind", "constant", "holds"),
    [
        (TRIANGULAR, "contraction", 5 + math.sqrt(25.25), False),
        (TRIANGULAR, "infinity-norm", 10.5, False),
        (TRIANGULAR, "Perron-Frobenius", 0.5, True),
        (TRIANGULAR, "monotone", 1 - 5.5, False),
        (HADAMARD, "contraction", 0.6 * math.sqrt(2), True),
        (HADAMARD, "infinity-norm", 1.2, False),
        (HADAMARD, "Perron-Frobenius", 1.2, False),
        (HADAMARD, "monotone", 1 - 0.6 * math.sqrt(2), True),
        (SKEW, "contraction", 3.0, False),
        (SKEW, "Perron-Frobenius", 3.0, False),
        (SKEW, "monotone", 1.0, True),
        (WIDE, "infinity-norm", 0.9, True),
        (WIDE, "contraction", 0.45 * math.sqrt(2), True),
        (ROW, "infinity-norm", 0.9, True),
        (ROW, "contraction", 0.9 * math.sqrt(2), False),
        (EYE, "contraction", 1.0, False),
        (EYE, "monotone", 0.0, False),
        (-5 * EYE, "monotone", 6.0, True),
    ],
)
def test_constants_of_hand_made_matrices(W, kind: str, constant: float, holds: bool) -> None:
    one = named(W, kind)
    assert one.constant == pytest.approx(constant, abs=1e-6)
    assert one.holds is holds
    assert one.exists is (True if holds else None)
    assert one.unique is (True if holds else None)
    assert one.picard is (holds and kind != "monotone")
    assert math.isfinite(one.lipschitz) is holds
    assert f"{one.constant:.4g}" in str(one)


def test_certify_takes_the_first_that_holds() -> None:
    assert certify(TRIANGULAR).kind == "Perron-Frobenius"
    assert certify(HADAMARD).kind == "contraction"
    assert certify(SKEW).kind == "monotone"
    assert certify(ROW).kind == "infinity-norm"
    nothing = certify(matrix([3.0, -2.0], [2.0, 3.0]))
    assert (nothing.kind, nothing.holds, nothing.exists) == ("not certified", False, None)
    for part in ("contraction 3.61", "Perron-Frobenius 5", "monotone -2", "may still exist"):
        assert part in nothing.why


def test_no_equilibrium_is_a_certificate_too() -> None:
    W = matrix([1.0, 0.5], [0.5, 1.0])
    one = certify(W)
    assert (one.kind, one.exists, one.holds, one.picard) == ("no equilibrium", False, False, False)
    assert one.constant == pytest.approx(1.5)
    q = torch.full((1, 2), 0.1, dtype=torch.float64)
    found = fixed_point(lambda z: torch.relu(z @ W.mT + q), 0 * q, throw=False)
    assert not bool(found.converged.any())
    # neither a negative entry nor another activation allows the conclusion
    assert certify(matrix([1.0, -0.5], [0.5, 1.0])).exists is None
    assert certify(Affine(W, tanh)).exists is None
    assert certify(0.6 * W).holds


def test_perron_frobenius_and_the_norm_do_not_imply_each_other() -> None:
    assert named(TRIANGULAR, "Perron-Frobenius").holds
    assert not named(TRIANGULAR, "contraction").holds
    assert named(HADAMARD, "contraction").holds
    assert not named(HADAMARD, "Perron-Frobenius").holds
    q = normal(3, 2, g=generator(0))
    found = fixed_point(
        lambda z: torch.relu(z @ TRIANGULAR.mT + q), 0 * q, solver=Picard(), max_steps=200
    )
    assert bool(found.converged.all())


def test_a_steep_activation_counts() -> None:
    steep = Activation("steep", lambda t: 3 * t, lambda t: 3 + 0 * t, lambda p, _a: p, 3.0)
    one = Affine(0.5 * EYE, steep)
    assert named(one, "contraction").constant == pytest.approx(1.5)
    assert not named(one, "monotone").holds  # not a prox: the theorem does not apply
    assert named(Affine(0.2 * EYE, steep, 2.0), "contraction").lipschitz == pytest.approx(15)


def test_monotonicity_is_the_least_quotient() -> None:
    W = normal(5, 5, g=generator(1))
    v = normal(20_000, 5, g=generator(2))
    quotient = ((v @ (torch.eye(5).double() - W).mT) * v).sum(1) / v.pow(2).sum(1)
    assert monotonicity(W) <= float(quotient.min())
    assert monotonicity(W) == pytest.approx(float(quotient.min()), abs=0.1)


# --- the bound from input to equilibrium -------------------------------------------------------


def equilibria(s: Affine, q: Tensor) -> Tensor:
    """Solve tightly: by plain iteration, or by splitting when only monotonicity is known."""
    z = torch.zeros_like(q)
    for _ in range(600):
        z = s.sigma(z @ s.W.mT + q)
    if float((s.sigma(z @ s.W.mT + q) - z).norm()) <= 1e-11:
        return z
    return split(MonotoneProblem(s.W, q, s.sigma), tol=1e-12, max_steps=100_000).z


def drawn(kind: str, seed: int, m: int, size: float) -> Tensor:
    g = generator(seed)
    W = normal(m, m, g=g)
    if kind == "contraction":
        return size * W / operator_norm(W)
    if kind == "infinity-norm":
        return size * W / W.abs().sum(dim=1, keepdim=True)
    if kind == "Perron-Frobenius":
        return torch.triu(3 * W, diagonal=1) + size * torch.eye(m, dtype=torch.float64)
    return size * torch.eye(m, dtype=torch.float64) - W.mT @ W / m + (W - W.mT) / 2


@quick
@given(
    st.sampled_from(["contraction", "infinity-norm", "Perron-Frobenius", "monotone"]),
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.floats(0.05, 0.8),
    st.sampled_from([relu, tanh]),
)
def test_lipschitz_bounds_are_bounds(
    kind: str, seed: int, m: int, size: float, sigma: Activation
) -> None:
    s = Affine(drawn(kind, seed, m, size), sigma)
    one = named(s, kind)
    assert one.holds
    g = generator(seed + 1)
    q = 2 * normal(20, m, g=g)
    for step in (1.0, 1e-3):
        other = q + step * normal(20, m, g=g)
        moved = (equilibria(s, q) - equilibria(s, other)).norm(dim=1)
        assert float((moved / (q - other).norm(dim=1)).max()) <= one.lipschitz * (1 + 1e-6)


@pytest.mark.parametrize(
    ("W", "kind", "expected"),
    [
        (0.75 * EYE, "contraction", 4.0),
        (-2.0 * EYE, "monotone", 1 / 3),
        (matrix([0.5, 0.4], [0.0, 0.5]), "Perron-Frobenius", None),
    ],
)
def test_lipschitz_bounds_are_attained(W, kind: str, expected: float | None) -> None:
    """With all units on, z = (I - W)^-1 q, whose norm is the bound."""
    exact = operator_norm(torch.linalg.inv(EYE - W))
    one = named(Affine(W, relu, 2.0), kind)
    assert one.lipschitz == pytest.approx(2 * exact, rel=1e-9)
    if expected is not None:
        assert exact == pytest.approx(expected)
    direction = torch.linalg.svd(torch.linalg.inv(EYE - W))[2][:1].abs()
    q = torch.full((1, 2), 50.0, dtype=torch.float64)
    moved = equilibria(Affine(W), q + direction) - equilibria(Affine(W), q)
    assert float(moved.norm()) == pytest.approx(exact, rel=1e-6)


def test_lipschitz_bound_of_the_sup_norm_pays_for_the_dimension() -> None:
    assert named(ROW, "infinity-norm").lipschitz == pytest.approx(math.sqrt(2) / 0.1)


# --- tied layers -----------------------------------------------------------------------------


@quick
@given(st.integers(0, 10_000), st.integers(1, 3), st.floats(0.2, 1.0), st.floats(0.1, 0.95))
def test_tied_layers_contract_and_move_as_certified(
    seed: int, layers: int, alpha: float, norm: float
) -> None:
    model = DeepOptEq.init_deep(5, 3, widths=[4] * layers, norm=norm, alpha=alpha, seed=seed)
    one = certify(model)
    assert one.kind == "contraction"
    assert one.constant == pytest.approx((alpha * norm**2 + 1 - alpha) ** layers)
    g = generator(seed)
    x, y, z, w = (normal(10, k, g=g) for k in (3, 3, 5, 5))
    with torch.no_grad():
        moved = (model.cell(z, x) - model.cell(w, x)).norm(dim=1)
        assert float((moved / (z - w).norm(dim=1)).max()) <= one.constant + 1e-12
    moved = (model.solve(x, tol=1e-11).z - model.solve(y, tol=1e-11).z).norm(dim=1)
    assert float((moved / (x - y).norm(dim=1)).max()) <= one.lipschitz * (1 + 1e-6)


def test_the_tied_bound_is_attained() -> None:
    """With W = cI and all units on, z = cq/(1 - c²), whatever the skip weight."""
    c = 0.8
    for alpha in (1.0, 0.3):
        model = OptEq(c * EYE, EYE, 0 * EYE[0], EYE, alpha=alpha)
        assert certify(model).lipschitz == pytest.approx(c / (1 - c * c))
    z = model.solve(torch.ones(1, 2, dtype=torch.float64), tol=1e-12).z
    assert torch.allclose(z, torch.full_like(z, c / (1 - c * c)), atol=1e-9)


def test_nonexpansive_layers() -> None:
    """At norm one the equilibria form a convex set: not empty for tanh, unknown for ReLU."""
    one = torch.ones(1, 1, dtype=torch.float64)
    free = named(Tied((one,), relu), "nonexpansive")
    assert (free.holds, free.exists, free.unique, free.picard) == (True, None, None, False)
    bounded = certify(Tied((one,), tanh))
    assert (bounded.kind, bounded.exists, bounded.unique) == ("nonexpansive", True, None)
    assert bounded.picard
    assert "Brouwer" in bounded.why
    large = certify(Tied((2 * one,), relu))
    assert (large.kind, large.holds) == ("not certified", False)
    assert named(Tied((one, 0.5 * one), relu), "contraction").holds


# --- models ----------------------------------------------------------------------------------


def test_models_are_certified_by_their_own_theorem() -> None:
    relu_net = ReLUImplicit.init(50, 4, gamma=0.3, seed=0)
    one = certify(relu_net)
    assert one.kind == "contraction"
    assert one.constant == pytest.approx(
        0.3 * operator_norm(relu_net.W.detach()) / math.sqrt(50), rel=1e-9
    )
    assert certify(VanillaDEQ.init(100, 4, seed=0)).kind == "contraction"
    drawn = MonDEQ.init(20, 4, mu=0.5, seed=0)
    A, B, U, a = (p.detach() for p in (drawn.A, drawn.B, drawn.U, drawn.a))
    one = certify(MonDEQ(A, 6 * B, U, a, 0.5))
    assert one.kind == "monotone"
    assert one.constant >= 0.5 - 1e-12
    assert one.lipschitz <= operator_norm(U) / 0.5 + 1e-9
    assert certify(OptEq.init(6, 3, norm=0.9, seed=0)).constant == pytest.approx(0.81)


def test_a_cell_without_structure_is_not_certified() -> None:
    one = certify(ResidualCell.init(std=0.01, seed=0))
    assert (one.kind, one.holds, one.exists, one.unique) == ("not certified", False, None, None)
    assert "convolutional residual cell" in one.why
    assert math.isinf(certify(Unstructured("a mystery")).lipschitz)


@pytest.mark.parametrize("model", [3.0, "W", None, [[1.0]]])
def test_other_things_are_refused(model) -> None:
    with pytest.raises(TypeError, match=rf"got {type(model).__name__}"):
        certify(model)


def test_bad_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        certify(matrix([math.nan]))
    with pytest.raises(ValueError, match="square"):
        certify(torch.ones(2, 3, dtype=torch.float64))


def test_a_certificate_shows_itself() -> None:
    assert "<b>certified</b> (contraction)" in certify(HADAMARD)._repr_html_()
    assert "<b>not certified</b>" in certify(Unstructured("it"))._repr_html_()
