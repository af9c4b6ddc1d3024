"""What page 3b needs beside the library: the radii of Lemma 3.4, the obstruction to (9)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from deqbook.bounds import relu_implicit, vanilla
from deqbook.models import ReLUImplicit, VanillaDEQ
from deqbook.pages.p03b_three_networks.lab import condition_nine_obstruction, lemma34_radius
from deqbook.runtime import generator, normal, sphere


def exact(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def norm(M: Tensor) -> float:
    return float(np.linalg.norm(M.detach().numpy(), 2))


def network() -> ReLUImplicit:
    """Four units on the plane; the features of the unit vectors are unit vectors."""
    U = exact([2, -1], [-1, 2], [-1, -1], [-1, -1])
    zero = torch.zeros(4, dtype=torch.float64)
    return ReLUImplicit(torch.zeros(4, 4, dtype=torch.float64), U, zero, zero, 0.2)


def test_the_radii_of_lemma_3_4() -> None:
    model = network()
    X = exact([1, 0], [1, 0], [0, 0.5])  # ‖X‖_F = 1.5, ‖X‖ = √2
    u = norm(model.U)
    radius = {
        k: lemma34_radius(model, X, lambda0=0.3, norm=k)
        for k in ("operator", "frobenius", "printed")
    }
    assert radius == pytest.approx(
        {  # √m/ω = m/‖U(0)‖ = 4/u
            "operator": 4 / u * 0.3 / (12 * 1.5**2),
            "frobenius": 4 / u * 0.3 / (12 * 1.5 * math.sqrt(2)),
            "printed": 4 / u * 0.3 / (16 * 2),
        },
        rel=1e-12,
    )
    assert radius["operator"] < radius["frobenius"]
    eye = torch.eye(2, dtype=torch.float64)
    measured = lemma34_radius(model, eye)
    assert measured == pytest.approx(4 / u * (4 / 3) / (12 * 2), rel=1e-12)
    shorter = lemma34_radius(model, exact([1, 0], [0, 0.5]))  # λ_G = ⁴⁄₃·¼, ‖X‖_F² = ⁵⁄₄
    assert shorter == pytest.approx(4 / u / 3 / (12 * 1.25), rel=1e-12)
    with pytest.raises(
        ValueError, match=r"one of \['frobenius', 'operator', 'printed'\], got 'spectral'"
    ):
        lemma34_radius(model, X, norm="spectral")


@pytest.mark.parametrize(("norm_name", "ord_"), [("operator", 2), ("frobenius", "fro")])
def test_moves_within_the_radius_keep_the_gram_matrix(norm_name: str, ord_: str | int) -> None:
    """The repaired Lemma 3.4 for random moves and for the one that scales U."""
    X = sphere(4, 6, 3)
    model = ReLUImplicit.init(40, 6, gamma=0.1, seed=2)
    gram = relu_implicit.feature_gram(model, X)
    lambda0 = 4 / 3 * float(torch.linalg.eigvalsh(gram)[0])
    radius = lemma34_radius(model, X, norm=norm_name)
    U = model.U.detach()
    assert radius <= norm(U)  # so ‖U‖ at most doubles
    g = generator(5)
    for way in (U, -U, *(normal(40, 6, g=g) for _ in range(10))):
        move = radius * way / float(torch.linalg.matrix_norm(way, ord_))
        args = (model.W.detach(), U + move, model.a.detach(), model.c.detach())
        after = ReLUImplicit(*args, 0.1)
        change = norm(relu_implicit.feature_gram(after, X) - gram)
        assert 0 < change <= lambda0 / 4


def test_zero_features_have_no_radius() -> None:
    drawn, X = ReLUImplicit.init(4, 3, gamma=0.1, seed=0), torch.eye(3).double()
    W, U, a, c = (0 * p.detach() for p in (drawn.W, drawn.U, drawn.a, drawn.c))
    with pytest.raises(ValueError, match=r"U\(0\) is zero: draw it"):
        lemma34_radius(ReLUImplicit(W, U, a, c, 0.2), X)
    with pytest.raises(ValueError, match="X is zero; the features vanish"):
        lemma34_radius(drawn, 0 * X)


@pytest.mark.parametrize("scale", [1e-3, 1.0])
@pytest.mark.parametrize("n", [1, 3])
def test_the_obstruction_follows_from_the_printed_condition(scale: float, n: int) -> None:
    base = VanillaDEQ.init(12, 4, variance=0.005, seed=1)
    model = VanillaDEQ(base.W.detach(), base.U.detach(), scale * base.a.detach())
    X, y = torch.eye(4, dtype=torch.float64)[:n], torch.zeros(n, dtype=torch.float64)
    delta = 1e-3
    bar = condition_nine_obstruction(model, X, delta)
    left = 1 - norm(model.W) - delta
    assert bar.have == pytest.approx(left**2, rel=1e-12)
    assert bar.need == pytest.approx(
        4 * n * (scale * float(base.a.detach().norm()) + delta) ** 2, rel=1e-12
    )
    nine = vanilla.condition_one(model, X, y, delta, printed=True)["(9)"]
    assert bar.holds or not nine.holds
    assert bar.ratio <= nine.ratio  # the argument gives at least this much
    assert nine.holds is (scale == 1e-3)
    beyond = condition_nine_obstruction(model, X, 1.0)
    assert (beyond.have, beyond.ratio) == (0.0, math.inf)
