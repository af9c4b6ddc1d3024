"""The compact set of an unrolled OptEq and the theorems about it, by hand and on networks."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from deqbook.pages.p03c_monotone_opteq.lab import opteq_bounds as lab
from deqbook.regularize import Schedule

INF = math.inf


def test_the_frozen_bound_by_hand_and_on_a_translation() -> None:
    s = Schedule(smoothness=1.0, rho=0.5, c=0.2)  # γ = η = ½
    M = 2 * 3 + 0.5 * 2 + 5
    drift = 2**1.5 * 0.5 * M / (0.25 * 0.125) + 2**1.7 * 0.7 * 3 / (0.5 * 0.25)
    found = lab.frozen_bound(s, fixed=3.0, start=1.0, origin=5.0, pull=2.0)
    assert found == pytest.approx(3 + drift)
    assert lab.frozen_bound(s, fixed=3.0, start=1e4, origin=5.0, pull=2.0) == 3 + 1e4 + 3
    # R = ½z², T(z) = 2 - z: the fixed points 2(1-β)/(2-β+(½+λ/2)β) - all within [0, 1]
    z, largest = 4.0, 4.0
    for k in range(1, 400):
        beta = s.beta(k)
        z = beta * ((1 - s.gamma * s.decay(k)) * z - s.gamma * z) + (1 - beta) * (2 - z)
        largest = max(largest, abs(z))
    assert largest <= lab.frozen_bound(s, fixed=1.0, start=4.0, origin=2.0, pull=0.0)


def compact(**changed: object) -> lab.Compact:
    """n = 4, so √n = 2; widths 1 and 9; α = ½, ω = ½; every number below is by hand."""
    base = lab.Compact(
        n=4,
        widths=(1, 9),
        alpha=0.5,
        betas=(0.5, 0.25, 0.0),
        norm=0.5,
        inputs=2.0,
        data=3.0,
        readout=1.5,
        sigma0=0.5,
        bend=0.25,
    )
    return replace(base, **changed)  # type: ignore[arg-type]


def test_the_compact_set_by_hand() -> None:
    s = compact()
    assert (s.L, s.K, s.passes) == (2, 3, 2.25)
    assert s.modulus == pytest.approx(0.625**2)
    assert (s.unit(1), s.unit(9)) == (11.0, 13.0)  # 2·½ + 2·(3+2), 6·½ + 10
    assert s.origin == 0.25 * 24
    assert s.state == pytest.approx(min(2.25 * 6, 6 / (1 - 0.625**2)))
    assert s.layer == pytest.approx(s.state + 6)
    assert s.in_W(9) == pytest.approx(13 + 2 * (s.state + 6))
    squares = s.in_W(1) ** 2 + s.in_W(9) ** 2 + 2 * (9 + 4)
    Lam = 0.5 * 3 * math.sqrt(squares)
    assert s.state_lipschitz == pytest.approx(Lam)
    P = math.sqrt(s.layer**2 + 9 + 4) + Lam
    assert s.pre_lipschitz == pytest.approx(P)
    assert s.pattern_lipschitz == pytest.approx(0.25 * P)
    assert s.product_lipschitz == pytest.approx(0.5 * (2 * math.sqrt(2) + 2 * 0.25 * P))
    C1 = 0.5 * 3 * 2 * (2 * P + 2 * Lam + 0.25 * P**2)
    assert s.jacobian_lipschitz == pytest.approx(C1)
    assert s.output_lipschitz == pytest.approx(1.5 * C1 + Lam)
    # trained features, the regulariser and the start
    g = compact(features=0.1)
    Lam = 0.5 * 3 * math.sqrt(squares + (2 * 2 * 0.1) ** 2)
    P = math.sqrt(s.layer**2 + 9 + 4 + 0.2**2) + Lam
    assert (g.state_lipschitz, g.pre_lipschitz) == pytest.approx((Lam, P))
    assert g.jacobian_lipschitz == pytest.approx(3 * (2 * P + 2 * Lam + 0.2 + 0.25 * P**2))
    pulled = compact(gamma=0.25, pull=8.0)
    assert pulled.state == pytest.approx(min(2.25 * 6 + 0.75 * 2, 8 / (1 - 0.625**2)))
    assert pulled.in_V() == pytest.approx(2 * 0.25 * pulled.state * 1.5 * 0.75)
    assert compact(start=1e3).state == 1e3
    assert compact(norm=1.0).state == pytest.approx(2.25 * 0.5 * 24)  # no contraction: the sum


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n", (4, 9)),
        ("norm", (0.3, 0.6, 1.0)),
        ("inputs", (1.0, 2.0)),
        ("data", (1.0, 3.0)),
        ("readout", (0.5, 1.0)),
        ("sigma0", (0.0, 0.5)),
        ("bend", (0.0, 0.25)),
        ("features", (0.0, 1.0)),
        ("betas", ((0.5,), (0.5, 0.25), (0.0, 0.0, 0.0))),
        ("widths", ((1,), (1, 9), (9, 9))),
    ],
)
def test_a_larger_set_has_a_larger_constant(name: str, values: tuple[object, ...]) -> None:
    found = [compact(**{name: v}).output_lipschitz for v in values]
    assert all(a < b for a, b in pairwise(found))


def softplus(t: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, t)


@pytest.mark.parametrize("seed", range(3))
def test_the_compact_set_bounds_an_unrolled_network(seed: int) -> None:
    """States, and differences of states in random directions, against the constants."""
    rng = np.random.default_rng(seed)
    n, d, m, widths, alpha, betas = 5, 3, 4, (6, 2), 0.4, (0.5, 0.3, 0.2)
    X = rng.normal(size=(n, d))

    def draw() -> list[np.ndarray]:
        parts = [rng.normal(size=s) for h in widths for s in ((h, m), (h, d), (h,))]
        return [p / (1.01 * np.linalg.norm(p, 2)) for p in parts]

    def states(theta: list[np.ndarray]) -> list[np.ndarray]:
        z, seen = np.zeros((n, m)), []
        for beta in betas:
            new = z
            for W, U, b in (theta[:3], theta[3:]):
                new = alpha * softplus(new @ W.T + X @ U.T + b) @ W + (1 - alpha) * new
                seen.append(new)
            z = beta * 0.5 * z + (1 - beta) * new  # R = ½‖z‖², γ = ½
            seen.append(z)
        return seen

    size = lab.Compact(
        n=n,
        widths=widths,
        alpha=alpha,
        betas=betas,
        norm=1.0,
        inputs=1.0,
        data=float(np.linalg.norm(X)),
        readout=1.0,
        sigma0=math.log(2),
        bend=0.25,
        gamma=0.5,
    )
    theta = draw()
    way = [rng.normal(size=p.shape) for p in theta]
    length = math.sqrt(sum(float((p**2).sum()) for p in way))
    h = 1e-4
    here, there, back = (
        states([p + t * h / length * w for p, w in zip(theta, way, strict=True)])
        for t in (0, 1, -1)
    )
    for i, z in enumerate(here):
        last = i % (len(widths) + 1) == len(widths)
        assert np.linalg.norm(z) <= (size.state if last else size.layer)
        assert np.linalg.norm(there[i] - z) <= size.state_lipschitz * h
    second = np.linalg.norm(there[-1] - 2 * here[-1] + back[-1]) / h**2
    assert 0 < second <= size.jacobian_lipschitz


def test_the_ball_of_theorem_5_by_hand() -> None:
    """λ_H = 4, 𝓛₀ = 0.01: travel 0.2, and C = ½ may lose 0.586 over a radius of 1.17."""
    args = {"kernel_min": 4.0, "kernel_max": 9.0, "loss": 0.01, "lipschitz": 0.5}
    found = lab.pl_ball_conditions(**args, radius=0.4)
    assert found.holds
    assert found["room to travel"].need == pytest.approx(0.2)
    assert found["kernel stays"].have == pytest.approx((1 - math.sqrt(0.5)) * 2)
    assert found["kernel stays"].need == pytest.approx(0.2)
    assert found.rate == 2.0
    smooth = 3.2**2 + 0.5 * math.sqrt(0.02)
    assert found.step == pytest.approx(1 / smooth)
    assert found.constants["Jbar"] == pytest.approx(3.2)
    for radius, name in ((0.199, "room to travel"), (1.172, "kernel stays")):
        bad = lab.pl_ball_conditions(**args, radius=radius)
        assert [c.name for c in bad.conditions if not c.holds] == [name]
    # at the edge of what stays, σ_min² has lost exactly one half
    edge = found["kernel stays"].have
    assert (2 - edge) ** 2 == pytest.approx(4.0 / 2)
    for kernel_min in (0.0, -1e-18):
        flat = lab.pl_ball_conditions(**{**args, "kernel_min": kernel_min}, radius=1.0)
        assert {c.ratio for c in flat.conditions} == {INF}


@pytest.mark.parametrize("tight", [0.999, 1.001])
def test_some_radius_will_do_if_and_only_if(tight: float) -> None:
    lam, C = 2.0, 3.0
    loss = (tight * lab.RELATIVE * lam / (4 * C)) ** 2
    found = [
        lab.pl_ball_conditions(
            kernel_min=lam, kernel_max=lam, loss=loss, lipschitz=C, radius=float(rho)
        ).holds
        for rho in np.linspace(0.9, 1.1, 2001) * 4 * math.sqrt(loss / lam)
    ]
    assert any(found) is (tight < 1)


def test_what_the_source_prints_for_opteq() -> None:
    s = compact(features=0.1)
    layer = lab.printed_layer_bound(s, m=16, width=9)
    assert layer == pytest.approx(12 * 0.5 + 6 * s.state + 2 * 2 * 3)
    bare = compact(n=100, norm=0.0, inputs=0.0)  # xie2022-E12: softplus and vanishing weights
    assert (bare.state, bare.in_W(9)) == (0.0, 15.0)  # √(nn_l)|σ(0)| = 30·½
    assert lab.printed_layer_bound(bare, m=16, width=9) == 6.0  # √(mn_l)σ(0) = 12·½
    bound = lab.printed_gradient_bound(
        K=3, L=2, alpha=0.5, kappa=0.1, sigma_m=0.4, n=7, sigma_v=0.6
    )
    assert bound == pytest.approx(9 * 2 * 0.25 * 0.01 * 0.16 * 7 * 0.36)
    found = lab.printed_constants(
        s, m=16, state=2.0, kappa=0.1, sigma_m=0.4, sigma_v=0.6, loss=0.04
    )
    C_z = 12 * 0.5 + 12 + 3 * 2 * 3
    B_J = 2 * 0.5 * math.sqrt(2) * 3 * C_z
    C_D = 6.0
    C_J = (
        9 * 0.5 * math.sqrt(2) * 2 * 0.25 * C_z * 0.1 + 2 * math.sqrt(6) * 0.5 * 3 * 2 * 0.25 * C_D
    )
    assert found == pytest.approx(
        {
            "Q0": 9 * 2 * 0.25 * 0.01 * 0.16 * 4 * 0.36 / 4,
            "Q1": (C_J + B_J) * 0.2 + 2 * 0.5 * math.sqrt(2) * 3 * C_z * 0.1 * B_J * 1.5,
            "C_z": C_z,
            "C_D": C_D,
            "B_J": B_J,
            "C_J": C_J,
        }
    )
    # every printed term vanishes with α: the curvature of the read-out is forgotten
    small = lab.printed_constants(
        replace(s, alpha=1e-9), m=16, state=2.0, kappa=0.1, sigma_m=0.4, sigma_v=0.6, loss=0.04
    )
    assert small["Q1"] < 1e-6
