"""A model nobody has written here: one class, and everything works with no other edit."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, jacrev

from deqbook.dynamics import Record, gradient_descent, gradient_flow
from deqbook.kernels import empirical_ntk, gram_parts, jacobian_ntk
from deqbook.linalg import operator_norm
from deqbook.models import EquilibriumModel, gradient
from deqbook.runtime import generator, normal
from deqbook.solvers import Newton, Picard
from deqbook.splitting import PeacemanRachford
from deqbook.wellposed import Lipschitz, certify


class TwoActivations(EquilibriumModel):
    """z = tanh(W softplus(Vz) + Ux + b), output Az: two activations, two outputs."""

    def __init__(self, m: int, h: int, d: int, seed: int):
        super().__init__()
        g = generator(seed)
        self.W, self.V = (nn.Parameter(normal(*s, g=g) / 5) for s in ((m, h), (h, m)))
        self.U, self.b = nn.Parameter(normal(m, d, g=g)), nn.Parameter(normal(m, g=g))
        self.A = nn.Parameter(normal(2, m, g=g) / math.sqrt(m))

    def inject(self, x: Tensor) -> Tensor:
        return x @ self.U.mT + self.b

    def weights(self) -> tuple[Tensor, ...]:
        return self.W, self.V

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        W, V = weights
        return torch.tanh(nn.functional.softplus(z @ V.mT) @ W.mT + q)

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        return z @ self.A.mT

    def structure(self) -> Lipschitz:
        W, V, U = (operator_norm(t.detach()) for t in (self.W, self.V, self.U))
        return Lipschitz(W * V, U)


@pytest.fixture
def model() -> TwoActivations:
    return TwoActivations(6, 5, 3, seed=0)


@pytest.fixture
def X() -> Tensor:
    return normal(4, 3, g=generator(1))


@pytest.fixture
def y() -> Tensor:
    return normal(4, 2, g=generator(2))


def test_it_is_short() -> None:
    assert len(inspect.getsource(TwoActivations).splitlines()) <= 30


def test_it_is_solved_by_every_solver_that_takes_any_map(model: TwoActivations, X: Tensor) -> None:
    found = model.solve(X, tol=1e-13).z
    assert torch.allclose(model.cell(found, X), found, atol=1e-12)
    for solver in (Picard(), Newton()):
        assert torch.allclose(model.solve(X, solver=solver, tol=1e-13).z, found, atol=1e-11)
    with pytest.raises(ValueError, match="PeacemanRachford needs a cell σ"):
        model.solve(X, solver=PeacemanRachford())


def test_it_is_certified_by_its_lipschitz_constant(model: TwoActivations, X: Tensor) -> None:
    certificate = certify(model)
    assert certificate.holds
    assert certificate.kind == "contraction"
    g, z = generator(3), model.solve(X).z
    cell = model.map(model.inject(X).detach())
    for _ in range(50):  # the constants are what they claim to be
        other, moved = normal(4, 6, g=g), X + 0.1 * normal(4, 3, g=g)
        gap = (cell(z) - cell(other)).norm(dim=1) / (z - other).norm(dim=1)
        assert float(gap.max()) <= certificate.constant
        ratio = (model.solve(moved).z - z).norm(dim=1) / (moved - X).norm(dim=1)
        assert float(ratio.max()) <= certificate.lipschitz
    with torch.no_grad():
        model.W.mul_(1.01 / certificate.constant)
    assert not certify(model).holds


def test_it_is_differentiable_twice(model: TwoActivations, X: Tensor) -> None:
    names = [name for name, _ in model.named_parameters()]

    def outputs(x: Tensor, *weights: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, weights)), (x,), {"tol": 1e-13})

    point = [t.detach().clone().requires_grad_() for t in (X[:2], *model.parameters())]
    assert gradcheck(outputs, point)
    assert gradgradcheck(outputs, point, atol=1e-4)


def test_its_gradient_is_that_of_autograd(model: TwoActivations, X: Tensor, y: Tensor) -> None:
    found = gradient(model, X, y, tol=1e-12)
    loss = 0.5 * (model(X, tol=1e-12) - y).pow(2).sum()
    loss.backward()
    assert found.loss == pytest.approx(loss.item(), rel=1e-10)
    for name, p in model.named_parameters():
        assert torch.allclose(found.grads[name], p.grad, rtol=1e-8, atol=1e-10)
    warm = gradient(model, X, y, last=found, tol=1e-12)
    assert torch.allclose(warm.z, found.z, atol=1e-11)


def test_it_is_trained_by_descent_and_by_flow(model: TwoActivations, X: Tensor, y: Tensor) -> None:
    H = empirical_ntk(model, X)
    edge = 2 / float(torch.linalg.eigvalsh(H)[-1])
    record = Record(gram=True)
    run = gradient_descent(model, X, y, 0.5 * edge, 40, record=record)
    assert run.loss[-1] < 0.1 * run.loss[0]
    assert (run.loss[1:] < run.loss[:-1]).all()
    flow = gradient_flow(model, X, y, [0.0, 0.1 * edge], rtol=1e-8, record=record)
    assert flow.gram_min[0] == pytest.approx(float(torch.linalg.eigvalsh(H)[0]), rel=1e-6)
    # many short steps follow the flow
    short = gradient_descent(model, X, y, 0.001 * edge, 100)
    assert abs(short.loss[-1] / flow.loss[-1] - 1) < 1e-3


def test_its_kernel_is_that_of_torch_func(model: TwoActivations, X: Tensor) -> None:
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def outputs(weights: dict[str, Tensor]) -> Tensor:
        z = torch.zeros(4, 6, dtype=torch.float64)
        q = X @ weights["U"].mT + weights["b"]
        for _ in range(200):  # the same network, unrolled: no code of the package
            z = torch.tanh(nn.functional.softplus(z @ weights["V"].mT) @ weights["W"].mT + q)
        return (z @ weights["A"].mT).flatten()

    J = jacrev(outputs)(weights)
    wanted = {name: j.flatten(1) @ j.flatten(1).mT for name, j in J.items()}
    found = gram_parts(model, X, tol=1e-13)
    assert found.keys() == wanted.keys()
    for name, K in wanted.items():
        assert torch.allclose(found[name], K, rtol=1e-8, atol=1e-10), name
    whole = torch.stack(list(wanted.values())).sum(0)
    assert torch.allclose(empirical_ntk(model, X, tol=1e-13), whole, rtol=1e-8)
    assert torch.allclose(jacobian_ntk(model, X, X[:2], tol=1e-13), whole[:, :4], rtol=1e-8)
