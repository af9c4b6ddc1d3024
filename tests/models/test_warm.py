"""Warm starts: the same numbers as from the cold start, with less work, and no leaks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import MODELS
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from deqbook.implicit import IFT, JFB
from deqbook.linalg import operator_norm
from deqbook.models import (
    AffineCell,
    DeepOptEq,
    EquilibriumModel,
    OptEq,
    ReLUImplicit,
    VanillaDEQ,
    WarmStart,
)
from deqbook.models.warm import _fingerprints
from deqbook.runtime import generator, normal
from deqbook.solvers import Adaptive, Anderson, NotConverged, Picard, Solution, Solver
from deqbook.wellposed import Affine, Unstructured

TOL = 1e-11


class Mixed(AffineCell):
    """z = tanh((A + B)z + Ux), output a·z: an affine cell with two weights and no closed form."""

    def __init__(self, m: int, d: int, seed: int):
        super().__init__()
        g = generator(seed)
        A, B = normal(m, m, g=g), normal(m, m, g=g)
        self.A, self.B = (nn.Parameter(0.3 * M / operator_norm(M)) for M in (A, B))
        self.U, self.a = nn.Parameter(normal(m, d, g=g)), nn.Parameter(normal(m, g=g))

    def inject(self, x: Tensor) -> Tensor:
        return x @ self.U.mT

    def weights(self) -> tuple[Tensor, ...]:
        return self.A, self.B

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        A, B = weights
        return torch.tanh(z @ A.mT + z @ B.mT + q)

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        return z @ self.a

    def structure(self) -> Affine:
        return Affine((self.A + self.B).detach(), "tanh")


class Images(EquilibriumModel):
    """z = tanh(w * z + E * x), a convolution, with the mean of the state as output."""

    def __init__(self, seed: int):
        super().__init__()
        g = generator(seed)
        self.w = nn.Parameter(normal(2, 2, 3, 3, g=g) / 20)
        self.E = nn.Parameter(normal(2, 1, 3, 3, g=g))

    def inject(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.E, padding=1)

    def weights(self) -> tuple[Tensor, ...]:
        return (self.w,)

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        return torch.tanh(nn.functional.conv2d(z, *weights, padding=1) + q)

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        return z.mean((1, 2, 3))

    def structure(self) -> Unstructured:
        return Unstructured("a convolution")


KINDS: dict[str, Callable[[], EquilibriumModel]] = MODELS | {
    "Mixed": lambda: Mixed(6, 3, seed=1),
    "OptEq": lambda: OptEq.init(6, 3, k=2, seed=1),
    "DeepOptEq": lambda: DeepOptEq.init_deep(6, 3, widths=[5, 7], k=2, sigma="tanh", seed=1),
}


def data(n: int = 7, seed: int = 5) -> Tensor:
    return normal(n, 3, g=generator(seed))


def trained(model: EquilibriumModel) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def loss_of(out: Tensor) -> Tensor:
    return (out - 0.3).pow(2).sum()


def apart(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((s - t).norm() / t.norm().clamp(min=1e-3)) for s, t in zip(a, b))


class Products(TorchDispatchMode):
    """Counts rows that go through a product with a square matrix: work in units of one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm"):
            left, right = args[-2:]
            self.rows += left.shape[0] if right.shape[0] == right.shape[1] else 0
        return func(*args, **kwargs or {})


def step(net: nn.Module, x: Tensor, lr: float = 0.0, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """Return the output and the gradients, then take a step of gradient descent."""
    out = net(x, tol=TOL, **options)
    weights = [p for p in net.parameters() if p.requires_grad]
    grads = list(torch.autograd.grad(loss_of(out), weights, materialize_grads=True))
    with torch.no_grad():
        for p, g in zip(weights, grads):
            p -= lr * g
    return out.detach(), grads


@pytest.mark.parametrize("name", KINDS)
def test_every_step_is_that_of_the_cold_start(name: str) -> None:
    model, x = KINDS[name](), data()
    net = WarmStart(model)
    for _ in range(6):
        cold_out, cold = step(model, x)
        out, grads = step(net, x, lr=1e-3)
        assert apart([out], [cold_out]) < 1e-9
        assert apart(grads, cold) < 1e-8


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (ReLUImplicit.init(40, 3, gamma=0.3, seed=1), 0.5),
        (VanillaDEQ.init(40, 3, seed=1), 0.5),
        (OptEq.init(40, 3, k=2, seed=1), 0.8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_warm_step_is_less_work(model: EquilibriumModel, part: float) -> None:
    """Than a cold one by the same solver."""
    net, x, warm, cold = WarmStart(model), data(), Products(), Products()
    for k in range(8):
        with cold:
            step(model, x, solver=Adaptive(), adjoint=IFT(Adaptive()))
        with warm:
            step(net, x, lr=1e-5)
        if k == 3:
            warm.rows = cold.rows = 0
    assert 0 < warm.rows < part * cold.rows


@pytest.mark.parametrize("model", [VanillaDEQ.init(40, 3, seed=1), OptEq.init(40, 3, k=2, seed=1)])
def test_nothing_moves_but_the_sign_of_the_loss(model: EquilibriumModel) -> None:
    """Then both starts are the solutions: each solve takes the one evaluation that sees it.

    An affine cell needs no more. A tied layer has two products: evaluation, record and adjoint
    take two each, and its weights one.
    """
    net, x = WarmStart(model), data()
    for k in range(6):
        with Products() as counted:
            torch.autograd.grad((-1) ** k * loss_of(net(x, tol=TOL)), trained(model))
        if k > 1:
            assert counted.rows <= (7 if isinstance(model, OptEq) else 2) * len(x), k


def test_state_with_more_axes() -> None:
    model, x = Images(seed=0), normal(3, 1, 5, 5, g=generator(2))
    net = WarmStart(model)
    for _ in range(4):
        cold = step(model, x)
        warm = step(net, x, lr=1e-3)
        assert apart([warm[0], *warm[1]], [cold[0], *cold[1]]) < 1e-8


@pytest.mark.parametrize("name", ["VanillaDEQ, tanh", "Mixed", "DeepOptEq"])
def test_first_and_second_derivatives(name: str) -> None:
    model, x = KINDS[name](), data(2)
    net = WarmStart(model)
    for lr in (0.01, 0.01, 0.0):
        step(net, x, lr)
    values = [p.detach().clone().requires_grad_() for p in trained(model)]
    names = [k for k, p in net.named_parameters() if p.requires_grad]

    def output(x: Tensor, *weights: Tensor) -> Tensor:
        how = {"tol": 1e-13, "adjoint": IFT(tol=1e-13)}
        return functional_call(net, dict(zip(names, weights)), (x,), how)

    at = (x.clone().requires_grad_(), *values)
    # Another start moves the last digits.
    assert gradcheck(output, at, atol=1e-6, nondet_tol=1e-9)
    assert gradgradcheck(output, at, atol=1e-5, nondet_tol=1e-9)


def test_torch_func_sees_the_model() -> None:
    model, x = KINDS["VanillaDEQ, tanh"](), data()
    net = WarmStart(model)
    for _ in range(3):
        step(net, x, 0.01)
    weights = {k: p.detach() for k, p in net.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return loss_of(functional_call(net, weights, (x,), {"tol": TOL}))

    found = grad(loss)(weights, x)
    want = dict(zip(weights, step(model, x)[1]))
    assert apart([found[k] for k in want], list(want.values())) < 1e-8
    rows = vmap(grad(loss), in_dims=(None, 0))(weights, x[:, None])
    assert apart([rows[k].sum(0) for k in want], list(want.values())) < 1e-8
    jac = jacrev(lambda x: net(x, tol=TOL))(x)
    assert torch.allclose(jac, jacrev(lambda x: model(x, tol=TOL))(x), atol=1e-8)


@pytest.mark.parametrize("by_index", [False, True])
def test_mini_batches_find_their_samples(by_index: bool) -> None:
    """A sample's memory follows it, wherever in whichever batch it comes back."""
    model, x = VanillaDEQ.init(40, 3, seed=1), data(12)
    net, g = WarmStart(model), generator(3)
    work = []
    for k in range(6):
        batches = torch.randperm(12, generator=g).split(5)
        for rows in batches:
            shown = x[rows] + (1e-12 * k if by_index else 0.0)  # other bits, the same sample
            cold = step(model, shown)
            with Products() as counted:
                options = {"index": rows} if by_index else {}
                warm = step(net, shown, lr=1e-8, **options)
            assert apart([warm[0], *warm[1]], [cold[0], *cold[1]]) < 1e-8
            work.append(counted.rows)
    assert sum(work[-3:]) < 0.6 * sum(work[:3])


def visited(net: WarmStart, *batches: Tensor) -> tuple[Tensor, list[Tensor]]:
    for x in batches[:-1]:
        step(net, x)
    return step(net, batches[-1])


def test_who_leaves_leaves_nothing_behind() -> None:
    model, A, B, C = KINDS["VanillaDEQ, tanh"](), data(4, 1), data(4, 2), data(4, 3)
    roomy = visited(WarmStart(model, capacity=12), C, A, B)
    tight = visited(WarmStart(model, capacity=4), C, A, B)
    assert torch.equal(roomy[0], tight[0])  # B starts cold in both, to the last bit
    assert all(torch.equal(s, t) for s, t in zip(roomy[1], tight[1]))


def test_late_backward_of_one_who_left() -> None:
    """A batch lost its rows between its forward and its backward pass: it must write nowhere."""
    model, A, B = KINDS["VanillaDEQ, tanh"](), data(4, 1), data(4, 2)
    net, calm = WarmStart(model, capacity=4), WarmStart(model, capacity=4)
    late = net(A, tol=TOL)
    first, quiet = net(B, tol=TOL), (calm(A, tol=TOL), calm(B, tol=TOL))[1]
    torch.autograd.grad(loss_of(late), trained(model))
    found = torch.autograd.grad(loss_of(first), trained(model))
    want = torch.autograd.grad(loss_of(quiet), trained(model))
    assert all(torch.equal(s, t) for s, t in zip(found, want))


def test_oldest_goes_first_and_memory_is_bounded() -> None:
    net, x = WarmStart(KINDS["VanillaDEQ, tanh"](), capacity=6), data(9)
    for rows in ([0, 1, 2], [3, 4, 5], [0, 1], [6, 7]):
        step(net, x[rows], index=torch.tensor(rows))
    assert set(net._memory.slots) == {0, 1, 4, 5, 6, 7}  # 2 and 3 were used longest ago
    assert {len(t) for t in net._memory.tables.values()} == {6}


def test_equal_rows_share_a_memory() -> None:
    model, x = KINDS["VanillaDEQ, tanh"](), data(3)
    net, twice = WarmStart(model), torch.cat((x, x[:2]))
    for _ in range(3):
        cold, warm = step(model, twice), step(net, twice, lr=1e-3)
        assert apart([warm[0], *warm[1]], [cold[0], *cold[1]]) < 1e-8


def test_fingerprints_depend_on_the_row_alone() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        bits = torch.randint(0, 2, (4000, 24), generator=generator(0)).unique(dim=0).to(dtype)
        seen = _fingerprints(bits)
        assert len(set(seen.tolist())) == len(bits)  # zeros and ones are told apart
        assert torch.equal(_fingerprints(bits[17:40]), seen[17:40])


@pytest.mark.parametrize("jump", [0.5, 0.97])
def test_parameter_jump(jump: float) -> None:
    """Other weights from one step to the next, and a norm that the old bound knows nothing of."""
    g = generator(4)
    W = normal(8, 8, g=g)
    W = W / operator_norm(W)
    model = VanillaDEQ(0.05 * W, normal(8, 3, g=g), normal(8, g=g), sigma="tanh")
    net, x = WarmStart(model), data()
    for _ in range(4):
        step(net, x, 1e-3)
    with torch.no_grad():
        model.W.copy_(jump * W.mT)
        model.U.neg_()
    kept: list[Tensor] = []
    readout, model.readout = model.readout, lambda z, q: kept.append(z) or readout(z, q)
    for _ in range(3):
        out = net(x, tol=1e-4, adjoint=IFT(tol=1e-4), solver=Picard())
        z = kept[-1].detach()
        residual = (model.cell(z, x).detach() - z).norm(dim=1) / z.norm(dim=1).clamp(min=1)
        assert float(residual.max()) <= 1e-4
        grads = torch.autograd.grad(loss_of(out), trained(model))
        want = step(model, x)[1]
        assert apart(list(grads), want) < 1e-4 * 10 / (1 - jump)


def test_moved_to_another_precision() -> None:
    model, x = KINDS["VanillaDEQ, tanh"](), data()
    net = WarmStart(model)
    step(net, x, 1e-3)
    net.float()
    out = net(x.float())
    assert out.dtype == torch.float32
    assert torch.allclose(out, model(x.float()), atol=1e-4)


def test_watching_leaves_no_trace() -> None:
    model, x = KINDS["Mixed"](), data()
    net = WarmStart(model)
    with torch.no_grad():
        net(x)
    net.eval()
    assert torch.equal(net(x), model(x))
    assert not net._memory.slots
    net.train()
    net(x)
    assert len(net._memory.slots) == len(x)
    assert set(net.state_dict()) == {f"model.{k}" for k in model.state_dict()}
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert not twin._memory.slots
        assert torch.allclose(twin(x), model(x), atol=1e-7)
    net.forget()
    assert not net._memory.slots


def test_in_place_change_of_the_data_is_seen() -> None:
    model, x = KINDS["VanillaDEQ, tanh"](), data()
    net = WarmStart(model)
    net(x)
    assert len(net._memory.slots) == 7
    x += 1.0
    net(x)
    assert len(net._memory.slots) == 14


def test_approximate_gradients_stay_what_they_are() -> None:
    model, x = KINDS["VanillaDEQ, tanh"](), data()
    net = WarmStart(model)
    for _ in range(3):
        warm, cold = (step(m, x, adjoint=JFB())[1] for m in (net, model))
        assert apart(warm, cold) < 1e-8


class Shy(Solver):
    """Anderson's method, which gives up wherever the start is not the cold one."""

    def solve(self, f: Any, z0: Tensor, *, tol: float, max_steps: int, throw: bool) -> Solution:
        found = Anderson().solve(f, z0, tol=tol, max_steps=max_steps, throw=throw)
        if bool((z0 != 0).any()):
            raise NotConverged("shy", found)
        return found


@pytest.mark.parametrize("name", ["VanillaDEQ, tanh", "OptEq"])
def test_cold_start_follows_a_warm_one_that_fails(name: str) -> None:
    model, x = KINDS[name](), data()
    net = WarmStart(model)
    for _ in range(3):
        assert torch.allclose(net(x, solver=Shy(), tol=TOL), model(x, tol=TOL), atol=1e-9)


class Hasty(Solver):
    """Three plain steps, and no word about what did not converge; it notes where it began."""

    def __init__(self) -> None:
        self.starts: list[Tensor] = []

    def solve(self, f: Any, z0: Tensor, *, tol: float, max_steps: int, throw: bool) -> Solution:
        self.starts.append(z0.detach().clone())
        return Picard().solve(f, z0, tol=tol, max_steps=3, throw=False)


@pytest.mark.parametrize("name", ["VanillaDEQ, tanh", "Images"])
@pytest.mark.parametrize("forward", [True, False])
def test_what_did_not_converge_is_not_remembered(name: str, forward: bool) -> None:
    model = KINDS[name]() if name in KINDS else Images(seed=1)
    x = data() if name in KINDS else normal(5, 1, 4, 4, g=generator(3))
    hasty, patient = Hasty(), Anderson()
    solvers: tuple[Solver, Solver] = (hasty, patient) if forward else (patient, hasty)
    net, starts = WarmStart(model), []
    for _ in range(3):
        loss_of(net(x, solver=solvers[0], adjoint=IFT(solvers[1]), tol=1e-12)).backward()
        starts.append(hasty.starts[-1])
    # nothing was trained: a second visit that begins elsewhere has remembered something
    assert torch.allclose(starts[1], starts[0], atol=1e-9)
    assert torch.allclose(starts[2], starts[0], atol=1e-9)


def test_errors_name_what_is_wrong() -> None:
    model, x = KINDS["ReLUImplicit"](), data()
    with pytest.raises(TypeError, match="model must be an EquilibriumModel, got Linear"):
        WarmStart(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="capacity must be at least 1 sample, got 0"):
        WarmStart(model, capacity=0)
    with pytest.raises(ValueError, match="7 came, 6 have room"):
        WarmStart(model, capacity=6)(x)
    with pytest.raises(ValueError, match=r"index must be \(7,\), one per row; got \(3,\)"):
        WarmStart(model)(x, torch.arange(3))
    with pytest.raises(TypeError, match=r"whole numbers, one per sample; got torch.float32"):
        WarmStart(model)(x, torch.ones(7))
    with pytest.raises(ValueError, match="injected input has NaN or infinite entries"):
        WarmStart(model)(x * torch.inf)
