"""The bounds inside the proofs of nguyen2022 and the printed condition, by hand and on networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from deqbook.bounds import monotone
from deqbook.models import MonDEQ
from deqbook.pages.p03c_monotone_opteq.lab import monotone_bounds as lab
from deqbook.runtime import generator, normal

INF = math.inf
RADII = monotone.Radii(A=2.0, B=2.0, U=0.5, a=3.0)


def vector(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def norm(M: Tensor) -> float:
    return float(np.linalg.norm(M.detach().numpy(), 2))


def mon(a: tuple[float, float] = (0.6, 0.8)) -> tuple[MonDEQ, Tensor, Tensor]:
    """μ = ½, A = B = 0, so W = ½I; U = X = I, Z = 2I, σ_Z = 2, ŷ = 2a = (1.2, 1.6), e = (3, 4)."""
    zero, eye = torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    return MonDEQ(zero, zero, eye, vector(*a), 0.5), eye, vector(-1.8, -2.4)


def test_the_bounds_of_the_proof_by_hand() -> None:
    """λ̄_A = 2, λ̄_U = 1.5, λ̄_a = 4, ‖X‖_F² = 2, μ = ½."""
    s = monotone.scales(*mon(), RADII)
    eta, error = 0.01, 2.0
    unit = eta * math.sqrt(2) * error
    assert lab.step_bounds(s, eta, error) == pytest.approx(
        {
            "A": 96 * unit,
            "B": 48 * unit,
            "U": 8 * unit,
            "a": 3 * unit,
            "W": unit * 4 * 1.5 * 4 * 4 * (4 + 1 + eta * 4 * 4 / 16),
        }
    )
    far = 8 / 4 * math.sqrt(2) * 5
    assert lab.displacement_bounds(s) == pytest.approx(
        {
            "A": 96 * far,
            "B": 48 * far,
            "U": 8 * far,
            "a": 3 * far,
            "W": 16 * 14 * 1.5 * 4 / (4 * 0.25) * math.sqrt(2) * 5,
        }
    )
    drift = math.sqrt(2) * (
        lab.displacement_bounds(s)["U"] / 0.5 + lab.displacement_bounds(s)["W"] * 1 / 0.25
    )
    assert lab.drift_bound(s) == pytest.approx(drift)
    assert lab.quadratic_bound(s, eta) == pytest.approx(
        (eta * (s.C1 + s.C2) + eta**2 * 4 * s.C12) ** 2
    )
    assert lab.cross_bound(s, eta) == pytest.approx(2 * (eta * s.C1 + eta**2 * 4 * s.C12))
    assert lab.driving_bound(s, eta) == pytest.approx(-eta * 4 / 2)
    hidden = (eta * s.C1 + eta**2 * 4 * s.C12) ** 2
    assert lab.quadratic_bound(s, eta, readout=False) == pytest.approx(hidden)


def test_the_printed_condition_by_hand() -> None:
    model, X, y = mon()
    x, e = math.sqrt(2), 5.0
    beta = {"A": 96 / 2, "B": 48 / 2, "U": 8 / 0.5, "a": 3 / 3}  # over the radius
    balls = {f"{k} stays": 8 * x * e * v for k, v in beta.items()}
    printed = lab.printed_descent_conditions(model, X, y, RADII)
    total = 16 + 4 * 2.25 * 16 * 4 + 4 * 2.25 * 16 + 2.25
    features = 8 * 2 * e * 4 * (1 + 6 * 2.25 * 4 + 4 * 2.25)
    hidden = {"hidden weights move little": 20 * 2 * total}
    assert {c.name: c.need for c in printed.conditions} == pytest.approx(
        balls | {"features stay": features} | hidden
    )
    left = dict.fromkeys((*balls, *hidden), 4.0) | {"features stay": 8.0}  # σ_Z² and σ_Z³
    assert {c.name: c.have for c in printed.conditions} == pytest.approx(left)
    assert printed.rate == pytest.approx(1.0)
    assert printed.step == pytest.approx(
        min(4 / 4, 1 / (2 * total), 1 / (2 * x * 2 * 1.5 * 8), 1 / (6 * (2 * 8) ** 2))
    )


def test_which_printed_step_binds() -> None:
    """The first, second and fourth bound can; the third, 1/(2‖X‖σ_ZUaA), never does.

    With u = ‖X‖λ̄_U and p = σ_Zλ̄_aλ̄_A the last three are at most 1/u², 1/(2up) and 1/(6p²).
    """
    model, X, y = mon((0.0, 0.0))
    tiny = monotone.Radii(1.0, 1.0, 1.0, 1e-9)
    printed = lab.printed_descent_conditions(model, X, y, tiny)
    assert printed.step == pytest.approx(1 / (2 * 2.0**2), rel=1e-6)
    zero, eye = torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    slow = MonDEQ(zero, zero, eye, vector(0.0, 0.0), 0.01)  # Z = 100 I, σ_Z² = 10⁴
    first = lab.printed_descent_conditions(slow, X, y, monotone.Radii(1.0, 1.0, 0.1, 1e-9))
    assert first.step == pytest.approx(4e-4, rel=1e-9)
    last = lab.printed_descent_conditions(slow, X, y, monotone.Radii(5.0, 1.0, 0.1, 2.0))
    assert last.step == pytest.approx(1 / (6 * 1e4 * (2 * 5) ** 2), rel=1e-9)


def test_for_mu_one_the_printed_condition_lacks_a_factor_two() -> None:
    zero, eye = torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    model = MonDEQ(zero, zero, eye, vector(0.6, 0.8), 1.0)
    y = vector(0.0, 0.0)
    right = monotone.descent_conditions(model, eye, y, RADII)
    printed = lab.printed_descent_conditions(model, eye, y, RADII)
    assert right["features stay"].need == pytest.approx(2 * printed["features stay"].need)
    s = monotone.scales(model, eye, y, RADII)
    assert printed["hidden weights move little"].need == pytest.approx(20 * (s.C1 + s.C2))
    for name in ("A stays", "B stays", "U stays", "a stays"):
        assert right[name].need == printed[name].need


def test_two_networks_and_their_distance() -> None:
    """One unit, W = 1-μ: z = ux/μ, so a change of u alone meets the bound with equality."""
    change = lab.state_perturbation(3.0, 0.25, dU=0.1, dW=0.0, U=2.0)
    assert change == pytest.approx(3 * 0.1 / 0.25)
    assert lab.state_perturbation(3.0, 0.25, dU=0.1, dW=0.2, U=2.0) == pytest.approx(
        3 * (0.1 / 0.25 + 0.2 * 2 / 0.0625)
    )
    out = lab.output_perturbation(3.0, 0.25, dU=0.1, dW=0.2, da=0.5, U=2.0, a=7.0)
    assert out == pytest.approx(7 * 3 * (0.4 + 6.4) + 3 * 2 / 0.25 * 0.5)
    assert lab.matrix_perturbation(2.0, dA=0.5, dB=0.25) == pytest.approx(2 + 0.25 + 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_perturbations_bound_random_networks(seed: int) -> None:
    g = generator(seed)
    X = normal(4, 3, g=g)
    one, two = (MonDEQ.init(5, 3, mu=0.6, seed=10 * seed + k) for k in (1, 2))
    z1, z2 = (m.solve(X, tol=1e-12).z.detach() for m in (one, two))
    x, dU, dW = float(X.norm()), norm(one.U - two.U), norm(one.W - two.W)
    bound = lab.state_perturbation(x, 0.6, dU=dU, dW=dW, U=norm(two.U))
    assert 0.01 * bound < float((z1 - z2).norm()) <= bound
    a1, a2 = one.a.detach(), two.a.detach()
    outputs = lab.output_perturbation(
        x,
        0.6,
        dU=dU,
        dW=dW,
        da=float((a1 - a2).norm()),
        U=norm(two.U),
        a=float(a1.norm()),
    )
    assert 1e-3 * outputs < float((z1 @ a1 - z2 @ a2).norm()) <= outputs
    moved = lab.matrix_perturbation(norm(two.A), dA=norm(one.A - two.A), dB=norm(one.B - two.B))
    assert 0.1 * moved < dW <= moved


def test_more_samples_than_units_satisfy_nothing_printed() -> None:
    model, X, _ = mon()
    three, y = torch.cat((X, torch.ones(1, 2, dtype=torch.float64))), vector(1, 1, 1)
    found = lab.printed_descent_conditions(model, three, y, RADII)
    assert {c.ratio for c in found.conditions} == {INF}
    assert (found.rate, found.constants["lambda0"]) == (0.0, 0.0)
    s = monotone.scales(model, three, y, RADII)
    assert lab.displacement_bounds(s)["W"] == lab.drift_bound(s) == INF
