"""Devices that are far away: shapes without numbers, and how often the host asks for numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from deqbook.models import DeepOptEq, EquilibriumModel, MonDEQ, OptEq, ReLUImplicit, VanillaDEQ
from deqbook.runtime import generator, normal
from deqbook.solvers import (
    Adaptive,
    Anderson,
    Broyden,
    Injected,
    Iteration,
    Newton,
    Picard,
    fixed_point,
)

ASKS = {"item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__"}
INDEXES = {"__getitem__", "__setitem__"}


class Far(Tensor):
    """A tensor whose numbers are dear: every look at them from the host is counted.

    What ``cpu()`` returns is an ordinary tensor. An index that is a mask has to be counted first,
    so it is a look, too.
    """

    looks: ClassVar[Counter[str]] = Counter()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        masked = name in INDEXES and isinstance(args[1], Far) and args[1].dtype == torch.bool
        if name in ASKS or masked:
            cls.looks[name] += 1
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found.as_subclass(Tensor) if name == "cpu" else found


def looked(run: Callable[[], Any]) -> Counter[str]:
    Far.looks.clear()
    run()
    return Counter(Far.looks)


def test_a_look_is_counted() -> None:
    far = torch.ones(3).as_subclass(Far)
    assert looked(lambda: (far + 1).sum().item()) == {"item": 1}
    assert looked(lambda: bool((far * 2 > 1).any())) == {"__bool__": 1}
    assert looked(lambda: far[far > 0]) == {"__getitem__": 1}
    assert looked(lambda: bool(far.cpu().sum() > 0)) == {"cpu": 1}
    assert not looked(lambda: torch.where(far > 0, far, 0.0)[1:].norm())


@pytest.mark.parametrize("droppable", [False, True])
@pytest.mark.parametrize("solver", [Picard(), Anderson(memory=5), Adaptive(memory=5), Broyden()])
def test_one_look_at_the_device_for_every_evaluation(solver: Iteration, droppable: bool) -> None:
    """However many samples there are, whenever they end: one copy to the host for an evaluation."""
    g = generator(3)
    scale = torch.linspace(0.1, 0.9, 12, dtype=torch.float64)[:, None]
    W = normal(20, 20, g=g)
    W = W / torch.linalg.matrix_norm(W, 2)
    given = torch.cat((scale, normal(12, 20, g=g)), 1).as_subclass(Far)
    cell = Injected(lambda z, x: torch.tanh(x[:, :1] * (z @ W) + x[:, 1:]), given)
    f = cell if droppable else lambda z: cell(z)
    z0 = torch.zeros(12, 20).double().as_subclass(Far)
    kept = []
    looks = looked(lambda: kept.append(fixed_point(f, z0, solver=solver)))
    (found,) = kept
    assert len(set(found.steps.as_subclass(Tensor).tolist())) > 3  # they do not end together
    assert looks.pop("cpu") == found.nfe
    # Before the first step the start and its image are checked, after the last one the outcome.
    assert looks.total() <= 4, looks


MODELS: dict[str, Callable[[], EquilibriumModel]] = {
    "ReLUImplicit": lambda: ReLUImplicit.init(6, 3, gamma=0.3, seed=0),
    "VanillaDEQ": lambda: VanillaDEQ.init(6, 3, seed=0),
    "MonDEQ": lambda: MonDEQ.init(6, 3, mu=0.5, seed=0),
    "OptEq": lambda: OptEq.init(6, 3, k=2, seed=0),
    "DeepOptEq": lambda: DeepOptEq.init_deep(6, 3, widths=[5, 7], k=2, sigma="tanh", seed=0),
}


@pytest.mark.parametrize("name", MODELS)
def test_cells_and_their_gradients_need_shapes_only(name: str) -> None:
    """On ``meta`` there are no numbers: a look at them, or a tensor made on the host, fails."""
    model = MODELS[name]()
    x = normal(4, 3, g=generator(1))
    want = model.readout(model.start(model.inject(x)), model.inject(x)).shape
    model, x = model.to("meta"), x.to("meta")
    q = model.inject(x)
    z = model.f(model.start(q), q, *model.weights())
    assert z.device.type == "meta"
    assert z.shape == model.start(q).shape
    out = model.readout(z, q)
    assert out.shape == want
    trained = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(out.sum(), trained, materialize_grads=True)
    assert [g.shape for g in grads] == [p.shape for p in trained]
    assert {g.device.type for g in grads} == {"meta"}


@pytest.mark.parametrize(
    "solver",
    [
        Picard(0.5),
        Anderson(memory=3),
        Adaptive(memory=3),
        Broyden(memory=3),
        Newton(),
        Newton("gmres", inner=2),
    ],
    ids=str,
)
def test_steps_of_solvers_need_shapes_only(solver: Iteration) -> None:
    W = normal(5, 5, g=generator(0)).to("meta")
    f = lambda z: torch.tanh(z @ W)  # noqa: E731
    z = torch.zeros(2, 5, dtype=torch.float64, device="meta")
    memory = solver.start(z)
    for _ in range(5):  # beyond the window
        z, memory, _ = solver.step(f, z, f(z), memory)
        assert (z.shape, z.dtype, z.device.type) == ((2, 5), torch.float64, "meta")
    kept = [t for t in memory if isinstance(t, Tensor)]
    assert {t.device.type for t in kept} <= {"meta"}
    assert all(len(t) == 2 for t in kept)
