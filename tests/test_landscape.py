"""Trajectories and their principal plane."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from deqbook.landscape import path_ratio, principal_plane, record
from deqbook.runtime import generator, normal
from deqbook.solvers import Anderson, Picard


def halve(z: Tensor) -> Tensor:
    return 0.5 * z + 1


def test_record_keeps_every_state_in_order() -> None:
    z0 = torch.zeros(2, 3, dtype=torch.float64)
    states, found = record(halve, z0, solver=Picard(), steps=10)
    assert states.shape == (11, 2, 3)
    expected = [2 * (1 - 0.5**k) for k in range(11)]
    assert states[:, 0, 0].tolist() == pytest.approx(expected, abs=1e-15)
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
