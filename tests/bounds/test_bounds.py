"""The constants and conditions of the theorems against numpy, by hand, and against each other."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from deqbook.bounds import monotone, relu_implicit, vanilla
from deqbook.bounds.conditions import Conditions
from deqbook.kernels import empirical_ntk
from deqbook.models import MonDEQ, ReLUImplicit, VanillaDEQ, gradient
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Picard

INF = math.inf


def exact(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def vector(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def norm(M: Tensor) -> float:
    return float(np.linalg.norm(M.detach().numpy(), 2))


def needs(found: Conditions) -> dict[str, float]:
    return {c.name: c.need for c in found.conditions}


def haves(found: Conditions) -> dict[str, float]:
    return {c.name: c.have for c in found.conditions}


# The ReLU implicit network: four units, two inputs, everything known by hand.


def by_hand() -> tuple[ReLUImplicit, Tensor, Tensor]:
    """γ̃ = 0.1, Φ = (e₁, e₂), Z = (2e₁, 0.8e₂), ŷ = (4, 1.2), e = (3, 4); nearest kink 0.08."""
    W = exact([5, -5, 0, 0], [-1, -2.5, 0, 0], [-1, -1, 0, 0], [-2, -2, 0, 0])
    U = exact([2, -1], [-1, 2], [-1, -1], [-1, -1])
    model = ReLUImplicit(W, U, vector(1, -1, 1, -1), vector(2, 2, 0, 0), 0.2)
    return model, torch.eye(2, dtype=torch.float64), vector(1, -2.8)


def test_the_start_of_a_relu_network_by_hand() -> None:
    model, X, y = by_hand()
    assert torch.equal(relu_implicit.feature_gram(model, X), X)  # Φ has the rows e₁ and e₂
    s = relu_implicit.scales(model, X, y)
    omega = max(norm(model.W), norm(model.U)) / 2
    assert norm(model.W) > 2 * norm(model.U)  # the maximum is that of W
    expected = {
        "n": 2,
        "m": 4,
        "gamma": 0.2,
        "omega": omega,
        "lambda0": 4 / 3,
        "gram": 1.0,
        "error": 5.0,
        "readout": 2 * math.sqrt(2),
        "x": 1.0,
        "row": 1.0,
        "margin": 3 / 8 * 2 * 0.08,
    }
    assert {f.name: getattr(s, f.name) for f in fields(s)} == pytest.approx(expected, rel=1e-12)
    assert relu_implicit.scales(model, X, y, lambda0=0.5).lambda0 == 0.5
    small_inputs = relu_implicit.scales(model, 0.01 * X, y)
    assert small_inputs.margin == pytest.approx(3 / 8 * 2 * 0.0008, rel=1e-10)


def test_the_margin_sees_the_features_too() -> None:
    """|Ux| is the nearer kink once W makes the states safe: here min|Ux| = 0.01."""
    base, X, y = by_hand()
    W, U = base.W.detach().clone(), base.U.detach().clone()
    U[3, 0] = -0.01
    model = ReLUImplicit(W, U, base.a.detach(), base.c.detach(), 0.2)
    assert relu_implicit.scales(model, X, y).margin == pytest.approx(0.01, rel=1e-12)


def test_the_conditions_of_gao2022_by_hand() -> None:
    model, X, y = by_hand()
    omega = norm(model.W) / 2
    lam, e, n, root = 0.8, 5.0, 2, 2.0
    flow = relu_implicit.flow_conditions(model, X, y, lambda0=lam)
    width = 192 * omega * n**1.5 * e / lam**2
    assert haves(flow) == pytest.approx(
        {
            "inputs": 1,
            "read-outs": root,
            "scale": 1 / (4 * omega),
            "gram": 1,
            "eigenvalue": 1,
            "width": root,
        },
        rel=1e-10,
    )
    assert needs(flow) == pytest.approx(
        {
            "inputs": 1,
            "read-outs": math.sqrt(8),
            "scale": 0.2,
            "gram": 0.6,
            "eigenvalue": 0.8,
            "width": width,
        },
        rel=1e-12,
    )
    assert {c.name for c in flow.conditions if not c.holds} == {"read-outs", "scale", "width"}
    assert (flow.rate, flow.step) == (lam, INF)
    assert flow.constants["m needed"] == pytest.approx(width**2)
    sharp = 144 * omega * math.sqrt(n) * norm(X) ** 2 * e / lam**2
    assert flow.constants["m needed, by norm of X"] == pytest.approx(sharp**2)

    descent = relu_implicit.descent_conditions(model, X, y, lambda0=lam)
    assert needs(descent) == pytest.approx(
        needs(flow) | {"margin": 16 * math.sqrt(n) * e / lam}, rel=1e-12
    )
    assert descent["margin"].have == pytest.approx(0.06)
    assert descent.rate == pytest.approx(lam / 2)
    assert descent.step == pytest.approx(1 / ((20 * omega**2 + 52) * n), rel=1e-12)
    remainder = (92 * omega + 80 / omega) * n**1.5 / root
    assert descent.constants["remainder"] == pytest.approx(remainder, rel=1e-12)
    ways = {"W": 4, "U": 6, "a": 4 * omega, "c": 2 * omega}
    for name, beta in ways.items():
        unit = beta * math.sqrt(n) * e / lam
        assert flow.constants[f"way of {name}"] == pytest.approx(2 * unit, rel=1e-12)
        assert descent.constants[f"way of {name}"] == pytest.approx(8 / 3 * unit, rel=1e-12)


def test_shorter_inputs_by_hand() -> None:
    """X = diag(1, ½): the second sample has half the features and half the state."""
    model, _, y = by_hand()
    X = exact([1, 0], [0, 0.5])
    s = relu_implicit.scales(model, X, y, lambda0=0.3)
    assert (s.gram, s.x, s.row) == pytest.approx((0.25, 1.0, 1.0))
    half = relu_implicit.flow_conditions(model, X / 2, y, lambda0=0.3)
    sharp = 144 * half.constants["omega"] * math.sqrt(2) * 0.25 * half.constants["error"] / 0.09
    assert half.constants["m needed, by norm of X"] == pytest.approx(sharp**2, rel=1e-10)
    only, _, _ = implicit_only()
    found = relu_implicit.implicit_only_conditions(only, X / 2, y, room=0.3, lambda0=1e-3)
    r, rho = found.constants["way of W"], found.constants["rho"]
    assert found["margin"].need == pytest.approx(0.1 * r * 0.5 / (1 - rho) ** 2, rel=1e-10)


def test_the_displayed_width_is_that_of_the_condition() -> None:
    """A network as wide as "m needed", with the same numbers at the start, meets the condition."""
    s = relu_implicit.scales(*by_hand(), lambda0=0.8)
    needed = (192 * s.omega * s.n**1.5 * s.error / s.lambda0**2) ** 2
    for m, holds in ((math.ceil(needed), True), (math.floor(needed) - 1, False)):
        wide = {c.name: c for c in relu_implicit._initial(replace(s, m=m))}
        assert wide["width"].holds is holds


def doubled(seed: int) -> tuple[ReLUImplicit, relu_implicit.Scales, Tensor, Tensor]:
    """A network whose norms are twice those from which ω is measured, with γ at its largest."""
    m, n, d = 12, 5, 4
    X, y = sphere(n, d, seed + 10), normal(n, g=generator(seed + 20))
    base = ReLUImplicit.init(m, d, gamma=1.0, seed=seed)
    omega = max(norm(base.W), norm(base.U)) / math.sqrt(m)
    parts = [p.detach() for p in (base.W, base.U, base.a, base.c)]
    W, U, a, c = parts
    now = ReLUImplicit(
        2 * omega * math.sqrt(m) / norm(W) * W,
        2 * omega * math.sqrt(m) / norm(U) * U,
        2 * a,
        2 * c,
        1 / (4 * omega),
    )
    then = ReLUImplicit(W, U, a, c, 1 / (4 * omega))
    return now, relu_implicit.scales(then, X, y), X, y


@pytest.mark.parametrize("seed", range(4))
def test_gradients_and_kernel_stay_below_their_bounds(seed: int) -> None:
    now, s, X, y = doubled(seed)
    found = gradient(now, X, y, tol=1e-12)
    size = float(found.error.norm())
    for name, beta in s.gradients.items():
        ratio = float(found.grads[name].norm()) / (beta * size)
        assert 1e-3 < ratio <= 1, name
    top = float(torch.linalg.eigvalsh(empirical_ntk(now, X, tol=1e-12))[-1])
    assert 0.01 * s.smoothness < top <= s.smoothness
    assert s.smoothness == pytest.approx((20 * s.omega**2 + 52) * s.n, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_remainder_of_a_step(seed: int) -> None:
    r"""ŷ⁺ = ŷ - ηHe + r with ‖r‖ ≤ kη²‖e‖² while no unit changes side."""
    now, s, X, y = doubled(seed)
    found = gradient(now, X, y, tol=1e-14)
    H, e, eta = empirical_ntk(now, X, tol=1e-14), found.error, 1e-5
    new = [getattr(now, k).detach() - eta * found.grads[k] for k in ("W", "U", "a", "c")]
    after = ReLUImplicit(new[0], new[1], new[2], new[3], now.gamma)
    plain = Picard()  # its states are images of the ReLU, so units that are off are exactly 0
    on = [net.solve(X, solver=plain, tol=1e-14).z > 0 for net in (after, now)]
    assert torch.equal(*on)
    assert torch.equal(after.inject(X) > 0, now.inject(X) > 0)
    moved = (after(X, tol=1e-14) - now(X, tol=1e-14)).detach()
    rest = float((moved + eta * H @ e).norm())
    unit = eta**2 * float(e.norm()) ** 2
    assert 1e-6 * s.remainder < rest / unit <= s.remainder


def test_the_printed_widths_exclude_each_other() -> None:
    model, X, y = by_hand()
    least, most = relu_implicit.printed_width_range(model, X, y, lambda0=0.8)
    omega = norm(model.W) / 2
    assert least == pytest.approx(2048 * omega**2 * 2 * 25 / 0.8**3, rel=1e-12)
    assert least / most == pytest.approx(32 / 0.8, rel=1e-12)
    # the larger one is where the printed bound on ‖a‖ equals ‖a(0)‖ = √m
    assert math.sqrt(most) == pytest.approx(8 * omega * math.sqrt(2) / 0.8 * 5, rel=1e-12)


def test_equal_inputs_leave_nothing_to_divide_by() -> None:
    model, X, y = by_hand()
    twice = torch.stack((X[0], X[0]))
    flow = relu_implicit.flow_conditions(model, twice, y, lambda0=0.0)
    assert not flow.holds
    assert flow["eigenvalue"].ratio == flow["width"].ratio == INF
    assert flow.constants["way of W"] == flow.constants["m needed"] == INF
    assert relu_implicit.descent_conditions(model, twice, y, lambda0=0.0)["margin"].ratio == INF
    assert relu_implicit.printed_width_range(model, twice, y, lambda0=0.0) == (INF, INF)
    measured = relu_implicit.scales(model, twice, y)
    assert measured.gram == pytest.approx(0.0, abs=1e-12)
    large = relu_implicit.flow_conditions(model, X, y)  # λ_G = 4/3 > 1
    assert not large["eigenvalue"].holds
    assert large["gram"].holds


# gao2023: only W is trained.


def implicit_only() -> tuple[ReLUImplicit, Tensor, Tensor]:
    base, X, y = by_hand()
    zero = torch.zeros(4, dtype=torch.float64)
    args = (base.W.detach(), base.U.detach(), base.a.detach(), zero)
    return ReLUImplicit(*args, 0.2, train=("W",)), X, y


def test_the_conditions_of_gao2023_by_hand() -> None:
    r"""H = γ̃²(v_i·v_j)(z_i·z_j) is diagonal: z₁ = 2e₁ and z₂ = 0.8e₂ are orthogonal.

    Only unit i is active at sample i: v₁ = (1/(1-0.5))e₁ = 2e₁, v₂ = -(1/1.25)e₂ = -0.8e₂.
    """
    model, X, y = implicit_only()
    scale, rho0 = 0.1, 0.1 * norm(model.W)
    lam = scale**2 * 0.8**4
    rho = rho0 + 0.3 * (1 - rho0)
    error = math.hypot(2 - 1, -0.8 + 2.8)
    a, phi = 2.0, math.sqrt(2)
    r = 2 * scale * a * phi * error / (lam * (1 - rho) ** 2)
    found = relu_implicit.implicit_only_conditions(model, X, y, room=0.3)
    assert found.constants == pytest.approx(
        {"lambda0": lam, "rho0": rho0, "rho": rho, "way of W": r, "error": error}, rel=1e-9
    )
    assert haves(found) == pytest.approx(
        {
            "contraction": 1.0,
            "ball": 0.3 * (1 - rho0),
            "spectrum": (1 - 1 / math.sqrt(2)) * math.sqrt(lam),
            "margin": 0.08,
        },
        rel=1e-9,
    )
    assert needs(found) == pytest.approx(
        {
            "contraction": rho0,
            "ball": scale * r,
            "spectrum": 2 * scale**2 * r * a * phi / (1 - rho) ** 3,
            "margin": scale * r * 1.0 / (1 - rho) ** 2,
        },
        rel=1e-9,
    )
    assert (found.rate, found.step) == (pytest.approx(lam), INF)


def test_near_labels_satisfy_gao2023() -> None:
    model, X, _ = implicit_only()
    y = vector(2, -0.8)  # the predictions themselves
    for size, holds in ((1e-7, True), (1e-2, False)):
        found = relu_implicit.implicit_only_conditions(model, X, y + size)
        assert found.holds is holds
    other = relu_implicit.implicit_only_conditions(model, X, y + 1e-7, lambda0=1e-9)
    assert other.rate == 1e-9
    assert not other.holds


@pytest.mark.parametrize("room", [0.0, 1.0, -0.5, math.nan])
def test_room_must_leave_room(room: float) -> None:
    with pytest.raises(ValueError, match=f"room must lie between 0 and 1, got {room!r}"):
        relu_implicit.implicit_only_conditions(*implicit_only(), room=room)


def test_a_cell_that_does_not_contract_satisfies_nothing() -> None:
    base, X, y = implicit_only()
    W = base.W.detach().clone()
    W[2:, :2] *= 4  # silent units: the equilibrium stays, the norm passes 1
    args = (W, base.U.detach(), base.a.detach(), base.c.detach())
    model = ReLUImplicit(*args, 0.2, train=("W",))
    assert 0.1 * norm(W) > 1
    found = relu_implicit.implicit_only_conditions(model, X, y)
    assert found["contraction"].ratio > 1
    assert found["ball"].ratio == found["spectrum"].ratio == found["margin"].ratio == INF
    flat = relu_implicit.implicit_only_conditions(base, X, y, lambda0=0.0)
    assert flat["ball"].ratio == flat["spectrum"].ratio == INF
    assert flat["contraction"].holds


# The vanilla DEQ.


def plain() -> tuple[VanillaDEQ, Tensor, Tensor]:
    """W = ½I, U = diag(1, 2), X = I: Z = diag(2, 4), a = (0.3, 0.4), ŷ = (0.6, 1.6), e = (3, 4)."""
    eye = torch.eye(2, dtype=torch.float64)
    return VanillaDEQ(eye / 2, exact([1, 0], [0, 2]), vector(0.3, 0.4)), eye, vector(-2.4, -2.4)


def test_condition_one_by_hand() -> None:
    """δ = 0.1: ρ̄_w = 0.6, ρ̄_u = 2.1, ρ̄_a = 0.6; c_w = 7.875, c_u = 1.5, c_a = 5.25."""
    model, X, y = plain()
    s = vanilla.scales(model, X, y, 0.1)
    assert (s.w, s.u, s.a) == pytest.approx((0.6, 2.1, 0.6))
    assert (s.n, s.delta) == (2, 0.1)
    assert (s.x, s.lambda0, s.error) == pytest.approx((math.sqrt(2), 4.0, 5.0))
    assert s.gradients == pytest.approx({"W": 7.875, "U": 1.5, "a": 5.25})
    C = 7.875**2 + 1.5**2
    T = C + 5.25**2
    assert (s.implicit, s.total) == pytest.approx((C, T))
    assert s.step == pytest.approx(min(0.5, 2 * C / (T**2 * 2)))
    found = vanilla.condition_one(model, X, y, 0.1)
    assert haves(found) == pytest.approx({"ball": 1, "(7)": 4, "(8)": 8, "(9')": 4})
    assert needs(found) == pytest.approx(
        {
            "ball": 0.6,
            "(7)": 4 / 0.1 * 7.875 * math.sqrt(2) * 5,
            "(8)": 4 * (2 + math.sqrt(2)) / 0.6 * C * 2 * 5,
            "(9')": 8 * C * 2,
        }
    )
    assert (found.rate, found.step) == (pytest.approx(2.0), s.step)
    printed = vanilla.condition_one(model, X, y, 0.1, printed=True)
    assert printed["(9)"].need == pytest.approx(found["(9')"].need / 2)
    assert needs(printed)["(8)"] == needs(found)["(8)"]


def vanilla_start(**changed: float) -> vanilla.Scales:
    """ρ̄_w = 0, ρ̄_u = 3, ρ̄_a = 1: c_w = c_a = 3 and c_u = 1, so C = 10 and T = 19."""
    base = vanilla.Scales(n=1, delta=0.1, w=0.0, u=3.0, a=1.0, x=1.0, lambda0=8.0, error=1.0)
    return replace(base, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("lambda0", "step"), [(30.0, 20 / 361), (80.0, 2 / 80), (1e3, 2e-3)])
def test_the_step_is_the_smaller_of_two(lambda0: float, step: float) -> None:
    s = vanilla_start(lambda0=lambda0)
    assert (s.implicit, s.total) == (10.0, 19.0)
    assert s.step == pytest.approx(step, rel=1e-12)
    assert s.factor(step) == pytest.approx(1 - step * (lambda0 - 20) + (19 * step) ** 2)
    assert (s.factor(step) <= 1 - step * lambda0 / 2 + 1e-12) is (lambda0 >= 80)


def test_the_printed_constant_gives_no_decrease() -> None:
    """λ_Z = 4C‖X‖² and a read-out so large that the second part of (10) binds: factor 1."""
    s = vanilla_start(u=20.0, a=0.01)
    C = 0.2**2 + 0.01**2
    assert s.implicit == pytest.approx(C)
    printed, right = replace(s, lambda0=4 * C), replace(s, lambda0=8 * C)
    assert printed.step == right.step == pytest.approx(2 * C / (C + 400) ** 2)
    fall = 4 * printed.step * C  # what the first-order term brings, about 10⁻⁷ of which is noise
    assert (1 - printed.factor(printed.step)) / fall == pytest.approx(0.0, abs=1e-5)
    assert (1 - right.factor(right.step)) / fall == pytest.approx(1.0, abs=1e-5)
    wide = replace(s, lambda0=8 * C, x=2.0)
    assert wide.factor(0.5) == pytest.approx(
        1 - 0.5 * (8 * C - 8 * C) + 0.25 * (C + 400) ** 2 * 16, rel=1e-12
    )
    assert wide.step == pytest.approx(right.step / 4)


def test_a_ball_that_leaves_the_contractions() -> None:
    model, X, y = plain()
    for delta in (0.5, 0.7):
        found = vanilla.condition_one(model, X, y, delta)
        assert found["ball"].holds is (delta == 0.5)  # 1 ≥ 1 alone does not help
        assert not found.holds
        assert found["(7)"].ratio == found["(8)"].ratio == found["(9')"].ratio == INF
        assert found.step == 0.0
    for delta in (0.0, -1.0, math.nan):
        with pytest.raises(
            ValueError, match=f"delta, the radius of the balls, must be positive, got {delta!r}"
        ):
            vanilla.scales(model, X, y, delta)


def test_equal_inputs_and_the_vanilla_deq() -> None:
    model, X, y = plain()
    twice = torch.stack((X[0], X[0]))
    s = vanilla.scales(model, twice, y, 0.1)
    assert s.lambda0 == pytest.approx(0.0, abs=1e-12)
    assert replace(s, lambda0=0.0).step == 0.0
    assert not vanilla.condition_one(model, twice, y, 0.1).holds


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_a_vanilla_deq_stay_below_their_bounds(seed: int) -> None:
    model = VanillaDEQ.init(10, 4, variance=0.02, seed=seed)
    X, y = normal(5, 4, g=generator(seed + 7)), normal(5, g=generator(seed + 8))
    s = vanilla.scales(model, X, y, 1e-9)
    found = gradient(model, X, y, tol=1e-13)
    assert s.error == pytest.approx(float(found.error.norm()), rel=1e-10)
    for name, c in s.gradients.items():
        assert 1e-3 < float(found.grads[name].norm()) / (c * s.x * s.error) <= 1, name


# The monotone DEQ.


def mon(a: tuple[float, float] = (0.6, 0.8)) -> tuple[MonDEQ, Tensor, Tensor]:
    """μ = ½, A = B = 0, so W = ½I; U = X = I, Z = 2I, σ_Z = 2, ŷ = 2a = (1.2, 1.6), e = (3, 4)."""
    zero, eye = torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    return MonDEQ(zero, zero, eye, vector(*a), 0.5), eye, vector(-1.8, -2.4)


RADII = monotone.Radii(A=2.0, B=2.0, U=0.5, a=3.0)


def test_the_scales_by_hand() -> None:
    """λ̄_A = 2, λ̄_U = 1.5, λ̄_a = 4, ‖X‖_F² = 2, μ = ½."""
    s = monotone.scales(*mon(), RADII)
    assert (s.x, s.mu, s.A, s.U, s.a, s.U0) == pytest.approx((math.sqrt(2), 0.5, 2, 1.5, 4, 1))
    assert (s.lambda0, s.e0) == pytest.approx((2, 5))
    assert s.gradients == pytest.approx({"A": 96, "B": 48, "U": 8, "a": 3})
    hidden = 2 * (64 + 4 * 2.25 * 16 * 5 * 16)
    curvature = {"C1": hidden, "C2": 2 * 2.25 * 4, "C12": 2 * 2.25 * 256}
    assert {name: getattr(s, name) for name in curvature} == pytest.approx(curvature)
    assert s.speed == pytest.approx(2 * 4 * 4 * (1 + 4 * 5 * 2.25 * 4))


def test_the_conditions_of_nguyen2022_by_hand() -> None:
    model, X, y = mon()
    x, e = math.sqrt(2), 5.0
    beta = {"A": 96 / 2, "B": 48 / 2, "U": 8 / 0.5, "a": 3 / 3}  # over the radius
    flow = monotone.flow_conditions(model, X, y, RADII)
    balls = {f"{k} stays": 4 * x * e * v for k, v in beta.items()}
    features = 8 * 2 * e * 4 * 4 * (1 + 4 * 5 * 2.25 * 4)
    assert needs(flow) == pytest.approx(balls | {"features stay": features})
    assert haves(flow) == pytest.approx(dict.fromkeys(balls, 4.0) | {"features stay": 8.0})
    assert (flow.rate, flow.step) == (pytest.approx(2.0), INF)

    descent = monotone.descent_conditions(model, X, y, RADII)
    s = monotone.scales(model, X, y, RADII)
    balls = {f"{k} stays": 8 * x * e * v for k, v in beta.items()}
    features = 16 * 2 * e * 4 * 4 * (1 + 28 * 2.25 * 4)
    hidden = {"hidden weights move little": 16 * s.C1}
    assert needs(descent) == pytest.approx(balls | {"features stay": features} | hidden)
    left = dict.fromkeys(needs(descent), 4.0) | {"features stay": 8.0}  # σ_Z² and σ_Z³
    assert haves(descent) == pytest.approx(left)
    assert descent.rate == pytest.approx(1.0)
    step = 4 / (16 * (s.C1 + s.C2 + 4 / 32) ** 2)  # about 10⁻¹⁰: no absolute tolerance
    assert descent.step == pytest.approx(step, rel=1e-9, abs=0.0)
    assert descent.constants["C1"] == s.C1


@pytest.mark.parametrize("seed", range(3))
def test_the_read_out_alone_exceeds_the_printed_condition(seed: int) -> None:
    """C₂ ≥ ‖Z(0)‖_F² ≥ nσ_Z²: why σ_Z² ≥ 20(C₁ + C₂) holds for no network."""
    model = MonDEQ.init(6, 3, mu=0.4, seed=seed)
    X, y = normal(4, 3, g=generator(seed + 50)), torch.zeros(4, dtype=torch.float64)
    s = monotone.scales(model, X, y, monotone.Radii(0, 0, 0, 0))
    z = model.solve(X, tol=1e-12).z.detach().numpy()
    assert s.lambda0 == pytest.approx(np.linalg.svd(z, compute_uv=False)[-1], rel=1e-9)
    assert s.C2 >= np.linalg.norm(z) ** 2 >= 4 * s.lambda0**2


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_a_monotone_deq_stay_below_their_bounds(seed: int) -> None:
    model = MonDEQ.init(6, 3, mu=0.4, seed=seed)
    X, y = normal(4, 3, g=generator(seed + 50)), normal(4, g=generator(seed + 60))
    s = monotone.scales(model, X, y, monotone.Radii(0, 0, 0, 0))
    found = gradient(model, X, y, tol=1e-12)
    assert s.e0 == pytest.approx(float(found.error.norm()), rel=1e-9)
    for name, beta in s.gradients.items():
        assert 1e-4 < float(found.grads[name].norm()) / (s.x * beta * s.e0) <= 1, name


@pytest.mark.parametrize("factor", [4.0, 8.0])
def test_the_least_radius_of_the_read_out(factor: float) -> None:
    model, X, y = mon((0.0, 0.0))
    least = monotone.readout_radius(model, X, y, 0.5, factor=factor)
    assert least == pytest.approx(factor * math.sqrt(2) * 3 * 1.5 / (0.5 * 4))  # ‖y‖ = 3
    conditions = monotone.flow_conditions if factor == 4 else monotone.descent_conditions
    for part, holds in ((1 + 1e-9, True), (1 - 1e-9, False)):
        found = conditions(model, X, y, monotone.Radii(1.0, 1.0, 0.5, part * least))
        assert found["a stays"].holds is holds
    half = monotone.readout_radius(model, X, y / 2, 0.5, factor=factor)
    assert half == pytest.approx(least / 2)  # a(0) = 0: proportional to the labels
    assert monotone.readout_radius(model, X, y, 0.5) == pytest.approx(
        monotone.readout_radius(model, X, y, 0.5, factor=8.0)
    )


@pytest.mark.parametrize("name", ["flow_conditions", "descent_conditions"])
def test_more_samples_than_units_satisfy_nothing(name: str) -> None:
    model, X, _ = mon()
    three = torch.cat((X, exact([1, 1])))
    y = vector(1, 1, 1)
    found: Conditions = getattr(monotone, name)(model, three, y, RADII)
    assert found.constants["lambda0"] == 0.0
    assert {c.ratio for c in found.conditions} == {INF}
    assert found.rate == 0.0
    assert monotone.readout_radius(model, three, y, 0.5) == INF


def test_the_least_radius_does_not_fail_by_rounding() -> None:
    """The radius that is just enough is enough, whatever the last bit says."""
    for seed in range(200):
        model = MonDEQ.init(20, 3, mu=0.4, seed=seed)
        X, y = normal(3, 3, g=generator(seed + 50)), normal(3, g=generator(seed + 60))
        for factor, conditions in (
            (4.0, monotone.flow_conditions),
            (8.0, monotone.descent_conditions),
        ):
            least = monotone.readout_radius(model, X, y, 0.5, factor=factor)
            stays = conditions(model, X, y, monotone.Radii(1.0, 1.0, 0.5, least))["a stays"]
            assert stays.holds, (seed, factor)
            assert stays.need == pytest.approx(stays.have, rel=1e-12)
            short = monotone.Radii(1.0, 1.0, 0.5, (1 - 1e-11) * least)
            assert not conditions(model, X, y, short)["a stays"].holds


def test_networks_that_cannot_move_have_no_admissible_step() -> None:
    zero, eye = torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    y, still = vector(1.0, 1.0), monotone.Radii(1.0, 1.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"X is zero \(‖X‖_F = 0\).*not all zero"):
        monotone.descent_conditions(MonDEQ(zero, zero, eye, y, 0.5), zero, y, RADII)
    with pytest.raises(ValueError, match=r"gradient vanishes.*R_U = 0 and .*R_a = 0;.*positive"):
        monotone.descent_conditions(MonDEQ(zero, zero, zero, zero[0], 0.5), eye, y, still)
    with pytest.raises(ValueError, match=r"vanishes.*‖X‖_F = 1.4.*e-100,.*Pass larger inputs"):
        monotone.descent_conditions(MonDEQ(zero, zero, eye, y, 0.5), 1e-100 * eye, y, RADII)


def test_a_ball_without_radius_holds_nothing_that_moves() -> None:
    model, X, y = mon()
    found = monotone.flow_conditions(model, X, y, monotone.Radii(0.0, 2.0, 0.5, 3.0))
    # A = 0 has the gradient bound 0, yet 0 ÷ 0 is not taken for enough
    assert found["A stays"].ratio == INF
    assert found["B stays"].ratio < INF
    with pytest.raises(ValueError, match=r"radii must be non-negative numbers, got Radii\(A=-1"):
        monotone.Radii(-1.0, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"non-negative numbers, got Radii\(.*a=nan\)"):
        monotone.Radii(1.0, 1.0, 1.0, math.nan)


def test_smaller_labels_and_larger_mu_help() -> None:
    model, X, y = mon((0.0, 0.0))
    for conditions in (monotone.flow_conditions, monotone.descent_conditions):
        ratios = [conditions(model, X, t * y, RADII).worst.ratio for t in (1.0, 0.5, 0.25)]
        assert ratios == sorted(ratios, reverse=True)
        base = monotone.scales(model, X, y, RADII)
        for name in ("C1", "C2", "C12", "speed"):
            stiff = getattr(replace(base, mu=1.0), name)
            assert stiff < getattr(base, name)
