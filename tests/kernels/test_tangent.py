"""The tangent kernels against the Jacobian, by autograd and by differences."""

from __future__ import annotations

import pytest
import torch
from small_models import MODELS, skewed, tanh_deq
from torch import Tensor

from deqbook.kernels import empirical_ntk, gram_parts, jacobian_ntk, tangents
from deqbook.models import (
    DeepOptEq,
    EquilibriumModel,
    OptEq,
    ResidualCell,
    margin,
)
from deqbook.runtime import generator, normal
from deqbook.solvers import Newton

TRAINED = {
    "ReLUImplicit": {"W", "U", "a", "c"},
    "implicit only, relu": {"W"},
    "implicit only, tanh": {"W"},
    "VanillaDEQ, relu": {"W", "U", "a"},
    "VanillaDEQ, tanh": {"W", "U", "a"},
    "MonDEQ": {"A", "B", "U", "a"},
    "MonDEQ, large skew": {"A", "B", "U", "a"},
    "VanillaDEQ, bias": {"W", "U", "a", "b"},
    "MonDEQ, bias": {"A", "B", "U", "a", "b"},
}
every_model = pytest.mark.parametrize("name", MODELS)
TOL = 1e-13


def inputs() -> tuple[Tensor, Tensor]:
    g = generator(2)
    return normal(4, 3, g=g), normal(3, 3, g=g)


def differences(model: EquilibriumModel, X: Tensor, name: str, h: float = 1e-5) -> Tensor:
    """Return the Jacobian in one parameter, entry by entry, by central differences."""
    weight = getattr(model, name)
    base = model.solve(X, tol=TOL).z
    columns = []
    with torch.no_grad():
        flat = weight.view(-1)
        for i in range(flat.numel()):
            kept = float(flat[i])
            ends = []
            for side in (h, -h):
                flat[i] = kept + side
                z = model.solve(X, base, solver=Newton(), tol=TOL).z
                ends.append(model.readout(z, model.inject(X)))
            flat[i] = kept
            columns.append((ends[0] - ends[1]) / (2 * h))
    return torch.stack(columns, dim=1)


def close(found: Tensor, expected: Tensor, tol: float) -> bool:
    return bool((found - expected).abs().max() <= tol * max(1.0, float(expected.abs().max())))


@every_model
def test_the_closed_form_is_the_jacobian_squared(name: str) -> None:
    model, (X, X2) = MODELS[name](), inputs()
    for other in (None, X2):
        found = empirical_ntk(model, X, other, tol=TOL)
        assert found.shape == (4, 4 if other is None else 3)
        assert not found.requires_grad
        assert close(found, jacobian_ntk(model, X, other, tol=TOL), 1e-11)
    # a cross kernel is a block of the kernel of both samples together
    both = empirical_ntk(model, torch.cat([X, X2]), tol=TOL)
    assert close(empirical_ntk(model, X, X2, tol=TOL), both[:4, 4:], 1e-11)
    assert close(empirical_ntk(model, X2, X, tol=TOL), both[4:, :4], 1e-11)
    assert float(torch.linalg.eigvalsh(both)[0]) >= -1e-10 * float(both.trace())


@pytest.mark.parametrize("name", ["ReLUImplicit", "VanillaDEQ, tanh", "MonDEQ, large skew"])
def test_every_block_is_the_square_of_differences(name: str) -> None:
    """No automatic differentiation on this route, and each parameter on its own."""
    model, (X, X2) = MODELS[name](), inputs()
    X, X2 = X[:3], X2[:2]
    for x in (X, X2):  # the differences stay on one side of every kink
        assert name == "VanillaDEQ, tanh" or margin(model, x, model.solve(x, tol=TOL).z) > 1e-3
    blocks = gram_parts(model, X, X2, tol=TOL)
    assert set(blocks) == TRAINED[name]
    for key, K in blocks.items():
        J = differences(model, torch.cat([X, X2]), key)
        expected = J[:3] @ J[3:].mT
        assert close(K, expected, 1e-7), key
        assert float(K.abs().max()) > 1e-3, key


@every_model
def test_only_what_is_trained_is_listed(name: str) -> None:
    model, (X, _) = MODELS[name](), inputs()
    full = gram_parts(model, X, tol=TOL)
    assert set(full) == TRAINED[name]
    assert close(torch.stack(list(full.values())).sum(0), empirical_ntk(model, X, tol=TOL), 1e-12)
    if len(full) == 1:
        return
    model.a.requires_grad_(False)
    fewer = gram_parts(model, X, tol=TOL)
    assert set(fewer) == TRAINED[name] - {"a"}
    assert all(torch.equal(fewer[k], full[k]) for k in fewer)
    assert close(empirical_ntk(model, X, tol=TOL), jacobian_ntk(model, X, tol=TOL), 1e-11)


@pytest.mark.parametrize("call", [empirical_ntk, jacobian_ntk, gram_parts])
def test_a_frozen_model_has_no_kernel(call) -> None:
    model = tanh_deq().requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train: no parameter requires a gradient"):
        call(model, inputs()[0])


def test_the_tolerance_reaches_both_solves() -> None:
    model, (X, _) = MODELS["VanillaDEQ, tanh"](), inputs()
    exact = empirical_ntk(model, X, tol=TOL)
    for call in (empirical_ntk, jacobian_ntk):
        coarse = float((call(model, X, tol=1e-3) - exact).abs().max())
        assert 1e-8 < coarse < 1e-1
        assert float((call(model, X, tol=1e-9) - exact).abs().max()) < 1e-7


def test_tangents_are_the_equilibria_and_the_adjoint_states() -> None:
    model, (X, _) = skewed(), inputs()
    found = tangents(model, X, tol=TOL)
    W, eye = model.W.detach(), torch.eye(model.m, dtype=torch.float64)
    assert torch.allclose(found.z, torch.relu(found.z @ W.mT + X @ model.U.mT), atol=1e-11)
    for z, q, v in zip(found.z, found.q, found.v):
        D = torch.diag((W @ z + q > 0).double())
        dense = D @ torch.linalg.solve(eye - W.mT @ D, model.a)
        assert torch.allclose(v, dense, atol=1e-10)
    known = tangents(model, X, z=found.z + 1, v=found.v)
    assert torch.equal(known.z, found.z + 1)
    assert torch.equal(known.v, found.v)
    # a state alone is a start, not an answer
    assert torch.allclose(tangents(model, X, z=found.z + 1, tol=TOL).z, found.z, atol=1e-10)


@pytest.mark.parametrize(
    "model",
    [
        OptEq.init(4, 3, seed=0),
        OptEq.init(4, 3, k=2, alpha=0.6, sigma="tanh", seed=1),
        DeepOptEq.init_deep(4, 3, widths=[3, 5], seed=0),
        DeepOptEq.init_deep(4, 3, widths=[3, 5, 4], k=2, alpha=0.7, sigma="tanh", seed=2),
    ],
    ids=["OptEq", "OptEq, two outputs", "DeepOptEq", "DeepOptEq, two outputs"],
)
def test_tied_layers_have_a_closed_form(model: DeepOptEq) -> None:
    """Against the Jacobian, and block by block against central differences."""
    X, X2 = inputs()
    for other in (None, X2):
        found = empirical_ntk(model, X, other, tol=TOL)
        assert close(found, jacobian_ntk(model, X, other, tol=TOL), 1e-11)
    blocks = gram_parts(model, X, tol=TOL)
    assert set(blocks) == {name for name, _ in model.named_parameters()}
    for name, p in model.named_parameters():
        J = []
        with torch.no_grad():
            for i in range(p.numel()):
                kept, ends = float(p.view(-1)[i]), []
                for side in (1e-5, -1e-5):
                    p.view(-1)[i] = kept + side
                    ends.append(model(X, tol=TOL).flatten())
                p.view(-1)[i] = kept
                J.append((ends[0] - ends[1]) / 2e-5)
        expected = torch.stack(J, dim=1) @ torch.stack(J, dim=0)
        assert close(blocks[name], expected, 1e-7), name
    model.V.requires_grad_(False)
    assert "V" not in gram_parts(model, X)
    model.V.requires_grad_(True)


def test_a_cell_without_a_closed_form_goes_by_its_jacobian() -> None:
    model = ResidualCell.init(std=0.01, channels=4, inner=4, groups=2, k=1, seed=0)
    images = normal(3, 1, 4, 4, g=generator(0))
    wanted = jacobian_ntk(model, images, tol=TOL)
    assert close(empirical_ntk(model, images, tol=TOL), wanted, 1e-10)
    blocks = gram_parts(model, images, images[:2], tol=TOL)
    assert blocks.keys() == dict(model.named_parameters()).keys()
    assert close(torch.stack(list(blocks.values())).sum(0), wanted[:, :2], 1e-10)
    with pytest.raises(TypeError, match="ResidualCell has no closed form of its kernel"):
        tangents(model, images)


def test_several_outputs_stand_inside_their_sample() -> None:
    X, _ = inputs()
    model = OptEq.init(4, 3, k=2, seed=0)
    K = jacobian_ntk(model, X, tol=TOL)
    assert K.shape == (8, 8)
    for j in range(2):
        one = OptEq.init(4, 3, k=2, seed=0)
        del one.V
        one.V = torch.nn.Parameter(model.V.detach()[j : j + 1].clone())
        assert close(K[j::2, j::2], jacobian_ntk(one, X, tol=TOL), 1e-11)
