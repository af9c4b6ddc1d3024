"""Trajectories and their principal plane; surfaces of a loss and its curvature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from deqbook.implicit import IFT, Unroll
from deqbook.landscape import (
    filter_direction,
    filter_norms,
    hessian_product,
    lanczos,
    loss_surface,
    path_ratio,
    principal_plane,
    record,
)
from deqbook.models import VanillaDEQ
from deqbook.runtime import generator, normal
from deqbook.solvers import Anderson, Picard


def halve(z: Tensor) -> Tensor:
    return 0.5 * z + 1


def test_record_keeps_every_state_in_order() -> None:
    z0 = torch.zeros(2, 3, dtype=torch.float64)
    states, found = record(halve, z0, solver=Picard(), steps=10)
    assert states.shape == (11, 2, 3)
    expected = [2 * (1 - 0.5**k) for k in range(11)]
    assert states[:, 0, 0].tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(states[-1], found.z)
    assert not bool(found.converged.any())
    assert found.trace.shape == (11, 2)


def test_record_flattens_images_and_stops_when_finished() -> None:
    z0 = torch.zeros(2, 3, 2, 2, dtype=torch.float64)
    states, found = record(halve, z0, solver=Anderson(), steps=50)
    assert states.shape == (found.nfe, 2, 12)
    assert bool(found.converged.all())
    assert found.nfe < 10


def test_the_plane_of_a_planar_cloud_is_exact() -> None:
    g = generator(0)
    axes = torch.linalg.qr(normal(7, 2, g=g))[0]
    flat = normal(20, 3, 2, g=g) * torch.tensor([3.0, 0.5]).double()
    states = flat @ axes.mT + normal(7, g=g)
    plane = principal_plane(states)
    assert plane.explained == pytest.approx(1.0, abs=1e-12)
    assert torch.allclose(plane.points @ plane.axes + plane.centre, states, atol=1e-12)
    assert torch.allclose(plane.axes @ plane.axes.mT, torch.eye(2).double(), atol=1e-12)
    assert float(plane.points[..., 0].var()) > float(plane.points[..., 1].var())


def test_the_plane_agrees_with_the_covariance() -> None:
    states = normal(30, 4, 6, g=generator(1)) * torch.arange(1.0, 7.0).double()
    plane = principal_plane(states)
    values, vectors = np.linalg.eigh(np.cov(states.reshape(-1, 6).numpy().T))
    assert plane.explained == pytest.approx(values[-2:].sum() / values.sum(), rel=1e-10)
    for axis, vector in zip(plane.axes.numpy(), vectors[:, ::-1].T):
        assert abs(axis @ vector) == pytest.approx(1.0, abs=1e-10)


def test_the_plane_needs_three_axes() -> None:
    with pytest.raises(ValueError, match=r"\(states, n, D\), got shape \(4, 3\)"):
        principal_plane(torch.zeros(4, 3))


def test_path_ratio_counts_what_follows_the_first_step() -> None:
    path = torch.tensor([[0.0, 0.0], [4.0, 0.0], [4.0, 1.0], [5.0, 1.0]]).double()
    assert path_ratio(path[:, None]) == pytest.approx(2 / 4)
    back = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]).double()
    still = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]).double()
    assert path_ratio(torch.stack([path, back, still], dim=1)) == pytest.approx(0.5)  # the median


# --- loss surfaces and curvature ------------------------------------------------------------------


def symmetric(size: int, seed: int) -> Tensor:
    M = normal(size, size, g=generator(seed))
    return M + M.mT


def test_filter_directions_have_the_norms_of_the_filters() -> None:
    g = generator(0)
    weights = {"conv": normal(3, 2, 3, 3, g=g), "bias": normal(3, g=g)}
    drawn = filter_direction(weights, generator(1))
    assert torch.allclose(
        drawn["conv"].flatten(1).norm(dim=1), weights["conv"].flatten(1).norm(dim=1)
    )
    assert not bool(drawn["bias"].any())
    larger = filter_direction({k: 5 * w for k, w in weights.items()}, generator(1))
    assert torch.allclose(larger["conv"], 5 * drawn["conv"])
    assert filter_norms(weights)["conv"].shape == (3, 2, 3, 3)


def test_a_surface_is_the_loss_on_the_plane() -> None:
    H, w = symmetric(4, 0), normal(4, g=generator(1))
    axes = tuple({"w": normal(4, g=generator(k))} for k in (2, 3))

    def loss(p: dict[str, Tensor]) -> Tensor:
        return p["w"] @ H @ p["w"]

    S = loss_surface(loss, {"w": w}, axes, [0.0, 0.5], [-1.0, 0.0, 2.0])
    assert S.shape == (2, 3)
    moved = w + 0.5 * axes[0]["w"] + 2.0 * axes[1]["w"]
    assert float(S[1, 2]) == pytest.approx(float(moved @ H @ moved))
    assert float(S[0, 1]) == pytest.approx(float(w @ H @ w))
    with pytest.raises(ValueError, match=r"must move 'w' by \(4,\), got \(3,\)"):
        loss_surface(loss, {"w": w}, ({"w": w[:3]}, {"w": w}), [0.0], [0.0])
    with pytest.raises(ValueError, match="got nothing"):
        loss_surface(loss, {"w": w}, ({}, {"w": w}), [0.0], [0.0])


def test_hessian_products_agree_with_the_dense_hessian_of_a_deq() -> None:
    model = VanillaDEQ.init(4, 3, variance=0.05, seed=0)
    model = VanillaDEQ(model.W, model.U, model.a, sigma="tanh")
    X, y = normal(5, 3, g=generator(1)), normal(5, g=generator(2))
    weights = {k: w.detach() for k, w in model.named_parameters()}
    exact = {"tol": 1e-12, "adjoint": IFT(tol=1e-12)}

    def loss(p: dict[str, Tensor]) -> Tensor:
        return 0.5 * (torch.func.functional_call(model, p, (X,), exact) - y).pow(2).sum()

    def unrolled(v: Tensor) -> Tensor:
        pieces = v.split([w.numel() for w in weights.values()])
        p = {k: t.reshape(w.shape) for (k, w), t in zip(weights.items(), pieces)}
        how = {"adjoint": Unroll(80)}
        return 0.5 * (torch.func.functional_call(model, p, (X,), how) - y).pow(2).sum()

    product, size = hessian_product(loss, weights)
    flat = torch.cat([w.flatten() for w in weights.values()])
    H = torch.func.hessian(unrolled)(flat)  # another route: 80 tied layers, no equilibrium
    u = normal(size, g=generator(3))
    assert torch.allclose(product(u), H @ u, atol=1e-8)
    scale = {k: torch.full_like(w, 2.0) for k, w in weights.items()}
    scaled, _ = hessian_product(loss, weights, scale)
    assert torch.allclose(scaled(u), 4 * (H @ u), atol=1e-8)
    found = lanczos(product, u, size)
    expected = torch.linalg.eigvalsh(H).flip(0)
    assert torch.allclose(found.values[0], expected[0], rtol=1e-8)
    assert torch.allclose(found.values[-1], expected[-1], rtol=1e-8)


def test_lanczos_values_are_within_their_error_of_an_eigenvalue() -> None:
    H = symmetric(60, 4)
    exact = torch.linalg.eigvalsh(H)
    for k in (1, 3, 10, 25):
        found = lanczos(lambda u: H @ u, normal(60, g=generator(5)), k)
        assert len(found.values) == k
        gap = (found.values[:, None] - exact).abs().min(dim=1).values
        assert bool((gap <= found.errors + 1e-10).all())
        assert float(found.values[0]) <= float(exact[-1]) + 1e-10
    assert float(found.values[0]) == pytest.approx(float(exact[-1]), rel=1e-4)


def test_lanczos_brings_no_ghosts() -> None:
    values = torch.cat([torch.linspace(0, 1, 80), torch.tensor([10.0])]).double()
    found = lanczos(lambda u: values * u, normal(81, g=generator(6)), 60)
    assert int((found.values > 9).sum()) == 1


def test_lanczos_ends_in_an_invariant_space_and_refuses_nonsense() -> None:
    found = lanczos(lambda u: 2 * u, torch.ones(5).double(), 4)
    assert found.values.tolist() == pytest.approx([2.0])
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        lanczos(lambda u: u, torch.ones(2), 0)
    with pytest.raises(ValueError, match="not zero"):
        lanczos(lambda u: u, torch.zeros(2), 1)
    with pytest.raises(ValueError, match="NaN"):
        lanczos(lambda u: u / 0, torch.ones(2), 1)
