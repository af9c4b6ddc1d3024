"""The experiments of page 07a: what they measure, and that the stored runs come out again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from errata_page import entry

from deqbook.experiments import loss_surfaces
from deqbook.experiments.receipts import read
from deqbook.experiments.worker import Checkpoint
from deqbook.implicit import Phantom, Unroll
from deqbook.landscape import hessian_product, lanczos
from deqbook.models import ResidualCell
from deqbook.pages.p07a_training_inside import lab
from deqbook.runtime import generator, normal


def test_separation_is_the_ratio_of_two_variances() -> None:
    features = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    y = torch.tensor([0, 0, 1, 1])
    # between: 4 · 5² = 100, inside: 4 · 1² = 4
    assert lab.separation(features, y) == pytest.approx(25.0)
    assert lab.separation(features, torch.tensor([0, 1, 0, 1])) == pytest.approx(0.04)


def test_area_and_rise_are_measured_from_the_centre() -> None:
    S = torch.tensor([[3.0, 3.0, 3.0], [3.0, 1.0, 1.5], [3.0, 3.0, 3.0]]).double()
    assert lab.area(S) == pytest.approx(2 / 9)
    assert lab.area(S, above=2.5) == 1.0
    assert lab.rise(S) == pytest.approx((7 * 2 + 0.5) / 9)


def test_a_tied_network_is_the_cell_repeated() -> None:
    model, data = lab.cell(0), lab.images("mnist10", 2, 1)[0]
    q = model.inject(data.x)
    z = torch.zeros_like(q)
    for _ in range(6):
        z = model.f(z, q, *model.weights())
    assert torch.allclose(model(data.x, **lab.options(6)), model.readout(z, q))
    assert lab.options(6)["adjoint"] == Unroll(6)
    assert isinstance(lab.options(None, phantom=True)["adjoint"], Phantom)


def test_the_capped_solver_says_nothing_and_stops() -> None:
    found = lab.Capped().solve(
        lambda z: z + 1, torch.zeros(1, 2), tol=1e-6, max_steps=3, throw=True
    )
    assert not bool(found.converged.any())
    assert int(found.steps) == 3


def test_frozen_weights_stay_and_the_others_move() -> None:
    data, model = lab.images("mnist10", 50, 1)[0], lab.cell(0)
    before = {k: w.clone() for k, w in model.named_parameters()}
    run = lab.train(model, data, depth=3, epochs=1, seed=0, frozen=("W1", "W2"))
    moved = {k for k, w in model.named_parameters() if not torch.equal(w, before[k])}
    assert moved == {"E", "V"}
    assert [s.epoch for s in run] == [0, 1]
    assert torch.equal(run[0].model.V, before["V"])  # a snapshot is a copy


def test_at_loss_takes_the_first_below_the_target_or_the_last() -> None:
    run = [lab.Snapshot(k, lab.cell(0), loss) for k, loss in enumerate((3.0, 1.9, 1.7, 1.8))]
    assert lab.at_loss(run, 1.8).epoch == 2
    assert lab.at_loss(run, 0.1).epoch == 3


def test_products_through_the_equilibrium_are_those_of_the_exact_gradient() -> None:
    product, differences, u = lab.small_hessian(3)
    truth = differences(u / u.norm())
    assert torch.allclose(product(u / u.norm()), truth, atol=1e-3 * float(truth.norm()))
    other, _, _ = lab.small_hessian(3, exact=False)
    assert float((other(u / u.norm()) - truth).norm()) > 0.1 * float(truth.norm())


def test_the_mean_curvature_of_filter_directions_is_the_relative_trace() -> None:
    model = ResidualCell.init(std=0.5, channels=2, inner=2, k=2, groups=1, seed=0)
    x, y = normal(4, 1, 4, 4, g=generator(1)), torch.tensor([0, 1, 0, 1])
    data = lab.Images(x, y)
    weights = {"V": model.V.detach()}  # convex in the read-out, so the trace is not near zero
    model.requires_grad_(False)
    loss = lab.loss_of(model, data, lab.options(3))
    scaled, size = hessian_product(loss, weights, lab.relative_scale(weights))
    H = torch.stack([scaled(e) for e in torch.eye(size, dtype=torch.float64)])
    plain, _ = hessian_product(loss, weights)
    G = torch.stack([plain(e) for e in torch.eye(size, dtype=torch.float64)])
    g = generator(2)
    drawn = [lab.filter_direction(weights, g) for _ in range(3000)]
    D = torch.stack([torch.cat([p.flatten() for p in d.values()]) for d in drawn])
    curvature = ((D @ G) * D).sum(dim=1)
    deviation = float(curvature.std()) / len(D) ** 0.5
    assert float(curvature.mean()) == pytest.approx(float(H.trace()), abs=5 * deviation)
    assert 5 * deviation < 0.3 * float(H.trace())
    found = lanczos(scaled, normal(size, g=g), size)
    assert float(found.values[0]) == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-8)


def test_the_logistic_gradient_is_no_larger_than_the_loss() -> None:
    t = torch.linspace(-20, 20, 401, dtype=torch.float64, requires_grad=True)
    loss = F.softplus(-t)
    (slope,) = torch.autograd.grad(loss.sum(), t)
    assert bool((slope.abs() <= loss * (1 + 1e-12)).all())


def test_straightness_sees_a_line_and_a_curve() -> None:
    t = torch.arange(100, dtype=torch.float64)
    slope, quality = lab.straightness(3 * torch.exp(-0.1 * t))
    assert slope == pytest.approx(-0.1)
    assert quality == pytest.approx(1.0)
    assert lab.straightness(1 / (1 + t))[1] < 0.995 < quality


# --- the file that ships --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored():
    return read(loss_surfaces.shipped())


def test_the_file_holds_both_protocols(stored) -> None:
    assert len(stored.runs) == len(loss_surfaces.jobs())
    for r in stored.runs:
        assert len(r["result"]["losses"]) == 25
        assert r["result"]["epochs"]["epoch"] == 24
        assert r["result"]["loss"]["loss"] <= lab.TARGET


def test_the_first_epochs_of_a_stored_run_come_out_again(stored) -> None:
    (before,) = stored.select("cifar10", depth=6, seed=1)
    data, _ = lab.images("cifar10small", 100, 1)
    # the schedule depends on the number of epochs, so the whole run is made
    again = lab.train(lab.cell(1, colours=3), data, depth=6, epochs=24, seed=1, batch=25)
    losses = [s.loss for s in again]
    # single precision: other processors round otherwise, and training amplifies it
    assert losses[:3] == pytest.approx(before["result"]["losses"][:3], rel=1e-2)
    assert losses[0] == pytest.approx(before["result"]["losses"][0], rel=1e-5)


def test_a_new_case_is_measured_by_both_protocols(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(lab, "GRID", (-1.0, 0.0, 1.0))
    found = loss_surfaces.run(loss_surfaces.SurfaceRun(6, 0), Checkpoint(tmp_path / "c"))
    assert found["epochs"]["epoch"] == 24
    assert found["loss"]["epoch"] < 24
    assert found["loss"]["rise"] < found["epochs"]["rise"]


def test_the_erratum_names_both_pairs() -> None:
    text = entry("errata-nguyen-e19")
    assert "$10^{-2}$ and at most 50" in text
    assert "$10^{-3}$ and 100" in text
