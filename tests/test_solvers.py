"""Every solver against independent routes, and the driver's promises one by one."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import root
from torch import Tensor

from deqbook import solvers
from deqbook.implicit import equilibrium
from deqbook.linalg import operator_norm
from deqbook.models import VanillaDEQ
from deqbook.models.closed_form import adjoint_states
from deqbook.runtime import generator, normal
from deqbook.solvers import (
    DEFAULT,
    Adaptive,
    Anderson,
    Broyden,
    Injected,
    Newton,
    NotConverged,
    Picard,
    Solution,
    Solver,
    default_tol,
    fixed_point,
)

SOLVERS = {
    "Picard": Picard(),
    "damped Picard": Picard(damping=0.6),
    "Anderson": Anderson(),
    "damped Anderson": Anderson(memory=4, damping=0.7),
    "Adaptive": Adaptive(),
    "Adaptive, always accelerated": Adaptive(memory=3, fast=1e-6),
    "Broyden": Broyden(),
    "Broyden, short memory": Broyden(memory=3),
    "Newton": Newton(),
    "Newton-GMRES": Newton(linear="gmres"),
}
SIGMAS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda t: t,
    "tanh": torch.tanh,
    "relu": torch.relu,
}
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
quick = settings(derandomize=True, deadline=None, max_examples=15)


def problem(
    seed: int, *, n: int = 5, m: int = 12, norm: float = 0.8, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    g = generator(seed)
    W, q = normal(m, m, g=g), normal(n, m, g=g)
    return (norm * W / operator_norm(W)).to(dtype), q.to(dtype)


def cell(W: Tensor, q: Tensor, sigma: str) -> Injected:
    return Injected(lambda z, q: SIGMAS[sigma](z @ W.mT + q), q)


def reference(W: Tensor, q: Tensor, sigma: str) -> Tensor:
    """Solve without this package: densely, by MINPACK, or by very many plain iterations."""
    if sigma == "linear":
        return torch.linalg.solve(torch.eye(len(W), dtype=W.dtype) - W, q.mT).mT
    if sigma == "tanh":
        w = W.numpy()
        rows = [
            root(lambda z, b=b: z - np.tanh(w @ z + b), np.zeros(len(w)), tol=1e-13).x
            for b in q.numpy()
        ]
        return torch.from_numpy(np.stack(rows))
    z = np.zeros_like(q.numpy())
    for _ in range(2000):
        z = np.maximum(z @ W.numpy().T + q.numpy(), 0)
    return torch.from_numpy(z)


# --- the answer ------------------------------------------------------------------------------


@every_solver
@pytest.mark.parametrize("sigma", SIGMAS)
def test_every_solver_finds_the_independent_solution(solver, sigma: str) -> None:
    W, q = problem(1)
    found = fixed_point(cell(W, q, sigma), torch.zeros_like(q), solver=solver, tol=1e-11)
    assert bool(found.converged.all())
    # a residual r leaves an error of at most r/(1 - 0.8)
    assert float((found.z - reference(W, q, sigma)).norm(dim=1).max()) <= 1e-9


@quick
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 9), st.sampled_from([*SIGMAS]))
def test_solvers_agree_on_random_problems(seed: int, n: int, m: int, sigma: str) -> None:
    W, q = problem(seed, n=n, m=m, norm=0.9)
    ends = [
        fixed_point(cell(W, q, sigma), torch.zeros_like(q), solver=s, tol=1e-10).z
        for s in (Picard(), Anderson(), Adaptive(), Broyden(), Newton(), Newton("gmres"))
    ]
    for end in ends[1:]:
        assert float((end - ends[0]).norm(dim=1).max()) <= 2e-9 * max(1.0, float(ends[0].norm()))


@every_solver
def test_states_may_have_any_shape(solver) -> None:
    g = generator(4)
    kernel = normal(3, 3, 3, 3, g=g)
    kernel = 0.8 * kernel / kernel.abs().sum(dim=(1, 2, 3)).max()  # contracts in the sup norm
    x = normal(2, 3, 4, 5, g=g)

    def f(z: Tensor) -> Tensor:
        assert z.shape[1:] == (3, 4, 5)
        return torch.tanh(torch.nn.functional.conv2d(z, kernel, padding=1) + x)

    found = fixed_point(f, torch.zeros_like(x), solver=solver, tol=1e-10)
    expected = torch.zeros_like(x)
    for _ in range(120):  # 0.8^120 = 2e-12
        expected = f(expected)
    assert found.z.shape == x.shape
    assert torch.allclose(found.z, expected, atol=1e-9)


@every_solver
def test_float32_stays_float32_and_meets_its_tolerance(solver) -> None:
    W, q = problem(2, dtype=torch.float32)
    found = fixed_point(cell(W, q, "tanh"), torch.zeros_like(q), solver=solver)
    assert found.z.dtype == torch.float32
    assert bool(found.converged.all())
    assert default_tol(torch.float32) == 1e-5
    assert default_tol(torch.float64) == 1e-8
    exact = reference(W.double(), q.double(), "tanh")
    assert float((found.z - exact).norm(dim=1).max()) <= 5e-5 * float(exact.norm(dim=1).max())


def test_newton_ends_on_a_relu_map_after_finitely_many_steps() -> None:
    W, q = problem(3, m=20)
    found = fixed_point(cell(W, q, "relu"), torch.zeros_like(q), solver=Newton(), tol=1e-14)
    assert int(found.steps.max()) <= 10
    linear = fixed_point(cell(W, q, "linear"), torch.zeros_like(q), solver=Newton(), tol=1e-13)
    assert linear.steps.tolist() == [1] * 5


def test_newton_halves_a_step_that_overshoots() -> None:
    """On f(z) = z - atan(z) Newton's full step diverges from beyond 1.39."""

    def f(z: Tensor) -> Tensor:
        return z - torch.atan(z)

    start = torch.tensor([[1.0], [2.0], [20.0]], dtype=torch.float64)
    found = fixed_point(f, start, solver=Newton(), tol=1e-12, max_steps=60)
    assert float(found.z.abs().max()) <= 1e-12


# --- one sample does not feel the others ------------------------------------------------------


@every_solver
@pytest.mark.parametrize("droppable", [True, False])
def test_a_batch_is_solved_like_its_rows(solver, droppable: bool) -> None:
    W, q = problem(5, n=6)
    q = q * torch.tensor([0.0, 0.01, 0.1, 1.0, 3.0, 10.0], dtype=torch.float64)[:, None]
    f = cell(W, q, "tanh")
    together = fixed_point(f if droppable else f.__call__, torch.zeros_like(q), solver=solver)
    for i in range(6):
        alone = fixed_point(cell(W, q[i : i + 1], "tanh"), torch.zeros_like(q[:1]), solver=solver)
        assert int(alone.steps[0]) == int(together.steps[i])
        # the sums run in another order for another batch; nothing else may differ
        assert torch.allclose(alone.z[0], together.z[i], rtol=0, atol=1e-12)
        assert float(alone.residual[0]) == pytest.approx(float(together.residual[i]), abs=1e-12)
    assert len(set(together.steps.tolist())) > 1 or isinstance(solver, Newton)


def test_picard_in_a_batch_is_bit_for_bit_picard_alone() -> None:
    """An elementwise map has one order of summation, so nothing at all may differ."""
    rates = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.float64).expand(3, 4)
    f = Injected(lambda z, r: torch.cos(r * z), rates)
    together = fixed_point(f, torch.zeros(3, 4, dtype=torch.float64), solver=Picard())
    for i in range(3):
        alone = fixed_point(f.rows(torch.tensor([i])), torch.zeros(1, 4).double(), solver=Picard())
        assert torch.equal(alone.z[0], together.z[i])
        assert int(alone.steps[0]) == int(together.steps[i])


@every_solver
def test_finished_samples_are_frozen(solver) -> None:
    W, q = problem(6, n=4)
    q[0] = 0.0  # finished at the start
    start = torch.zeros_like(q)
    start[1] = fixed_point(cell(W, q, "tanh"), torch.zeros_like(q), tol=1e-6).z[1]  # finishes early
    seen: list[Tensor] = []

    def f(z: Tensor) -> Tensor:
        if not isinstance(solver, Newton):  # its products call f with traced tensors
            seen.append(z.clone())
        return torch.tanh(z @ W.mT + q)

    found = fixed_point(f, start, solver=solver)
    early, last = int(found.steps[1]), int(found.steps.max())
    assert int(found.steps[0]) == 0
    assert 0 < early < last
    assert torch.equal(found.z[0], torch.zeros_like(q[0]))
    for z in seen[early:]:
        assert torch.equal(z[:2], found.z[:2])
    short = fixed_point(f, start, solver=solver, max_steps=early, throw=False)
    assert torch.equal(short.z[:2], found.z[:2])


@dataclass
class Counted:
    """A droppable map that counts its calls and the rows they touch."""

    W: Tensor
    q: Tensor
    count: dict[str, int] = field(default_factory=lambda: {"calls": 0, "rows": 0})

    def __call__(self, z: Tensor) -> Tensor:
        self.count["calls"] += 1
        self.count["rows"] += z.shape[0]
        return torch.tanh(z @ self.W.mT + self.q)

    def rows(self, index: Tensor) -> Counted:
        return Counted(self.W, self.q[index], self.count)


@every_solver
def test_dropping_finished_samples_saves_work_and_changes_nothing(solver) -> None:
    W, q = problem(7, n=32, norm=0.95)
    q[1:] = 0.0  # one hard sample among 31 that are finished at once
    droppable, fixed = Counted(W, q), Counted(W, q)
    zero = torch.zeros_like(q)
    with_rows = fixed_point(droppable, zero, solver=solver, tol=1e-9)
    without = fixed_point(lambda z: fixed(z), zero, solver=solver, tol=1e-9)
    assert torch.allclose(with_rows.z, without.z, rtol=0, atol=1e-12)
    assert torch.equal(with_rows.steps, without.steps)
    assert torch.allclose(with_rows.trace, without.trace, rtol=1e-3, atol=1e-12)
    assert with_rows.nfe == without.nfe
    calls = droppable.count["calls"]
    assert droppable.count == {"calls": calls, "rows": 32 + calls - 1}
    assert fixed.count == {"calls": calls, "rows": 32 * calls}


@every_solver
def test_images_that_the_map_keeps_are_not_edited(solver) -> None:
    """Samples are put aside when they are dropped: in arrays of the driver's own."""
    W, q = problem(8, n=8, norm=0.9)
    q = q * torch.logspace(-8, 0, 8, dtype=torch.float64)[:, None]
    kept: list[tuple[Tensor, Tensor]] = []

    def update(z: Tensor, q: Tensor) -> Tensor:
        image = torch.tanh(z @ W.mT + q)
        if not isinstance(solver, Newton):  # its products call f with traced tensors
            kept.append((image, image.clone()))
        return image

    z0 = torch.zeros_like(q)
    found = fixed_point(Injected(update, q), z0, solver=solver)
    assert len(set(found.steps.tolist())) > 2
    assert torch.equal(z0, torch.zeros_like(q))
    assert all(torch.equal(*pair) for pair in kept)


@every_solver
def test_a_large_batch_is_measured_piece_by_piece(solver, monkeypatch: pytest.MonkeyPatch) -> None:
    W, q = problem(9, n=7)
    whole = fixed_point(cell(W, q, "relu"), torch.zeros_like(q), solver=solver)
    monkeypatch.setattr(solvers, "PIECE", 3 * q.shape[1])  # two pieces of three rows and one of one
    pieces = fixed_point(cell(W, q, "relu"), torch.zeros_like(q), solver=solver)
    assert torch.equal(pieces.trace, whole.trace)
    assert torch.equal(pieces.z, whole.z)
    monkeypatch.setattr(solvers, "PIECE", 1)  # a row that is larger than a piece is one
    assert torch.equal(fixed_point(cell(W, q, "relu"), 0 * q, solver=solver).trace, whole.trace)


# --- the books -------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Adaptive(), Broyden()])
def test_nfe_is_the_number_of_calls(solver) -> None:
    W, q = problem(8)
    f = Counted(W, q)
    found = fixed_point(f, torch.zeros_like(q), solver=solver)
    assert found.nfe == f.count["calls"] == int(found.steps.max()) + 1


def test_nfe_of_newton_counts_every_product() -> None:
    W, q = problem(8, m=12)
    f = Counted(W, q)
    found = fixed_point(f, torch.zeros_like(q), solver=Newton("gmres", inner=7))
    assert found.nfe == f.count["calls"] == 1 + int(found.steps.max()) * (1 + 7)
    dense = fixed_point(Counted(W, q), torch.zeros_like(q), solver=Newton())
    assert dense.nfe == 1 + int(dense.steps.max()) * (1 + 1 + 12)  # the pullback runs f once more


@every_solver
def test_trace_and_residual_are_what_they_say(solver) -> None:
    W, q = problem(9)
    f = cell(W, q, "tanh")
    found = fixed_point(f, torch.zeros_like(q), solver=solver)
    assert found.trace.shape == (int(found.steps.max()) + 1, 5)
    assert torch.equal(found.trace[-1], found.residual)
    image = f(found.z)
    again = (image - found.z).norm(dim=1) / image.norm(dim=1).clamp(min=1.0)
    assert torch.allclose(again, found.residual, rtol=0, atol=1e-12)
    assert float(found.residual.max()) <= 1e-8
    first = q.tanh().norm(dim=1)
    assert torch.allclose(found.trace[0], first / first.clamp(min=1.0))
    for i, steps in enumerate(found.steps.tolist()):  # not finished earlier, and constant after
        assert float(found.trace[:steps, i].min()) > 1e-8
        assert torch.equal(
            found.trace[steps:, i], found.residual[i].expand(len(found.trace) - steps)
        )
    assert f"{type(solver).__name__}: 5/5 samples converged" in repr(found)


@every_solver
def test_a_warm_start_needs_fewer_steps(solver) -> None:
    W, q = problem(10, norm=0.95)
    f = cell(W, q, "tanh")
    cold = fixed_point(f, torch.zeros_like(q), solver=solver)
    near = cold.z + 1e-6 * normal(*q.shape, g=generator(0))
    warm = fixed_point(f, near, solver=solver)
    assert int(warm.steps.sum()) < int(cold.steps.sum())
    again = fixed_point(f, cold.z, solver=solver)
    assert again.steps.tolist() == [0] * 5
    assert torch.equal(again.z, cold.z)


def test_the_start_is_not_changed_and_nothing_is_recorded() -> None:
    W, q = problem(11)
    W.requires_grad_()
    z0 = torch.ones_like(q)
    found = fixed_point(cell(W, q, "tanh"), z0)
    assert torch.equal(z0, torch.ones_like(q))
    assert not found.z.requires_grad


# --- Anderson --------------------------------------------------------------------------------


def stiff(scale: float = 1.0) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return a tanh map on (64, 200) with a symmetric W whose spectrum reaches 0.99."""
    g = generator(12)
    Q = torch.linalg.qr(normal(200, 200, g=g))[0]
    W = (Q * torch.linspace(-0.5, 0.99, 200, dtype=torch.float64)) @ Q.mT
    q = 0.1 * normal(64, 200, g=g)
    return lambda z: scale * torch.tanh((z / scale) @ W + q), torch.zeros_like(q)


def test_anderson_beats_picard_threefold_on_a_stiff_map() -> None:
    f, zero = stiff()
    picard = fixed_point(f, zero, solver=Picard(), tol=1e-10, max_steps=5000)
    anderson = fixed_point(f, zero, solver=Anderson(), tol=1e-10)
    assert 3 * anderson.nfe <= picard.nfe
    assert torch.allclose(anderson.z, picard.z, atol=1e-6)


def test_the_ridge_of_anderson_is_relative() -> None:
    """Scaling states by 1e-6 scales every Gram entry by 1e-12; an absolute ridge would rule."""
    large, zero = stiff()
    small, _ = stiff(1e-6)
    # states are below 1, so tolerances are absolute: 1e-15 here is 1e-9 there
    reference = fixed_point(large, zero, solver=Anderson(), tol=1e-9)
    scaled = fixed_point(small, zero, solver=Anderson(), tol=1e-15)
    picard = fixed_point(small, zero, solver=Picard(), tol=1e-15, max_steps=5000)
    assert scaled.nfe <= 1.2 * reference.nfe + 5
    assert 3 * scaled.nfe <= picard.nfe


def test_anderson_solves_a_linear_map_in_as_many_steps_as_dimensions() -> None:
    W, q = problem(13, m=6, norm=0.95)
    f, zero = cell(W, q, "linear"), torch.zeros_like(q)
    found = fixed_point(f, zero, solver=Anderson(), tol=1e-9)
    assert int(found.steps.max()) <= 8  # one Picard step, six differences, one to see it


def test_a_large_ridge_turns_anderson_into_picard() -> None:
    W, q = problem(14)
    f, zero = cell(W, q, "tanh"), torch.zeros_like(q)
    ridged = fixed_point(f, zero, solver=Anderson(ridge=1e12))
    assert torch.equal(ridged.steps, fixed_point(f, zero, solver=Picard()).steps)


# --- Adaptive --------------------------------------------------------------------------------


def test_adaptive_is_the_default_everywhere() -> None:
    W, q = problem(15, norm=0.4)
    f, zero = cell(W, q, "tanh"), torch.zeros_like(q)
    assert fixed_point(f, zero).method == "Adaptive" == type(DEFAULT).__name__
    assert VanillaDEQ.default_solver is DEFAULT
    one = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    with pytest.raises(NotConverged, match="the equilibrium: Adaptive did not"):
        equilibrium(lambda z, t: 0.9 * z + t, torch.zeros_like(one), one, max_steps=1)
    with pytest.raises(NotConverged, match="the adjoint states: Adaptive did not"):
        adjoint_states(torch.eye(2) / 2, torch.ones(1, 2), torch.ones(2), max_steps=1)


def test_adaptive_is_plain_where_residuals_fall_fast() -> None:
    W, q = problem(15, norm=0.4)
    f, zero = cell(W, q, "tanh"), torch.zeros_like(q)
    plain, found = (fixed_point(f, zero, solver=s, tol=1e-12) for s in (Picard(), Adaptive()))
    assert torch.equal(found.z, plain.z)
    assert torch.equal(found.trace, plain.trace)


def test_window_of_anderson_grows_as_needed_and_no_further() -> None:
    f, z = stiff()
    solver = Anderson(memory=10)
    memory = solver.start(z)
    rooms = []
    for _ in range(30):
        z, memory, _ = solver.step(f, z, f(z), memory)
        rooms.append(memory.dg.shape[1])
    assert sorted(set(rooms)) == [0, 4, 8, 10]
    gram = memory.dg @ memory.dg.mT  # updated at every step, never made anew
    assert float((memory.gram - gram).abs().max()) < 1e-9 * float(gram.abs().max())


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_adaptive_needs_hardly_more_than_anderson_on_a_stiff_map(scale: float) -> None:
    f, zero = stiff(scale)
    how = {"tol": 1e-9 * scale, "max_steps": 5000}
    picard, anderson, found = (
        fixed_point(f, zero, solver=s, **how) for s in (Picard(), Anderson(), Adaptive())
    )
    assert found.nfe <= 1.2 * anderson.nfe
    assert 3 * found.nfe <= picard.nfe
    assert torch.allclose(found.z, picard.z, atol=1e-6 * scale)


def test_adaptive_solves_a_linear_map_in_as_many_steps_as_dimensions() -> None:
    W, q = problem(13, m=6, norm=0.95)
    found = fixed_point(
        cell(W, q, "linear"), torch.zeros_like(q), solver=Adaptive(fast=1e-6), tol=1e-9
    )
    assert int(found.steps.max()) <= 8  # one plain step, six differences, one to see it


def test_adaptive_decides_for_every_sample_by_itself() -> None:
    """An easy sample beside a stiff one goes its plain way, and the stiff one its own."""
    scale = torch.tensor([[0.3], [0.98]], dtype=torch.float64)
    W = torch.diag(torch.linspace(0.1, 1.0, 40, dtype=torch.float64))
    q = normal(2, 40, g=generator(16))

    def solve(rows: list[int], solver: Solver) -> Solution:
        f = Injected(lambda z, x: x[:, :1] * (z @ W) + x[:, 1:], torch.cat((scale, q), 1)[rows])
        return fixed_point(f, torch.zeros(len(rows), 40).double(), solver=solver, max_steps=5000)

    both, plain, stiff = solve([0, 1], Adaptive()), solve([0], Picard()), solve([1], Adaptive())
    easy = int(both.steps[0])
    assert torch.equal(both.trace[: easy + 1, :1], plain.trace)
    assert torch.equal(both.steps[1:], stiff.steps)
    assert torch.allclose(both.trace[:, 1], stiff.trace[:, 0], rtol=1e-3)
    assert 5 * int(stiff.steps) < int(solve([1], Picard()).steps)


def test_window_of_adaptive_grows_as_needed_and_no_further() -> None:
    f, z = stiff()
    solver = Adaptive(memory=10)
    memory = solver.start(z)
    rooms = []
    for _ in range(30):
        fz = f(z)
        size = (fz - z).norm(dim=1)
        asks = solver.asks(size, memory)
        if asks is not None and not asks.any():
            z, memory = fz, solver.plain(z, fz, size, memory)
        else:
            z, memory, _ = solver.step(f, z, fz, memory)
        rooms.append(memory.q.shape[1])
    assert rooms[0] == 0
    assert sorted(set(rooms)) == [0, 4, 8, 10]
    gram = memory.q @ memory.q.mT  # orthonormal, up to what one pass leaves
    assert bool(memory.used.all())
    assert float((gram - torch.eye(10).double()).abs().max()) < 1e-3


def test_adaptive_leaves_out_what_adds_nothing() -> None:
    """Differences along one line: the first is kept, what is left of the others is rounding."""
    solver, v = Adaptive(fast=1e-6), normal(2, 5, g=generator(18))
    memory = solver.start(v)
    for scale in (1.0, 0.9, 0.7, 0.6):
        _, memory, _ = solver.step(lambda z: z / 3, scale * v, scale * v / 3, memory)
    assert memory.used.sum(dim=1).tolist() == [1, 1]


def test_adaptive_forgets_its_window_when_it_lies() -> None:
    """After a bad leap the next step is a plain one."""
    solver, z = Adaptive(fast=1e-6), normal(1, 5, g=generator(17))
    W = torch.diag(torch.linspace(-0.9, 0.9, 5, dtype=torch.float64))
    memory = solver.start(z)
    for _ in range(3):
        z, memory, _ = solver.step(lambda z: z @ W, z, z @ W, memory)
    far = z + 1e3
    step, memory, _ = solver.step(lambda z: z @ W, far, far @ W, memory)
    assert torch.equal(step, far @ W)
    assert not bool(memory.used.any())


# --- what has no fixed point is never called converged ----------------------------------------

SHIFTS = torch.tensor([[1.0], [0.1], [0.03], [7.0], [1e4]], dtype=torch.float64)
six = pytest.mark.parametrize(
    "solver",
    [Picard(), Anderson(), Adaptive(), Broyden(), Newton(), Newton("gmres", inner=3)],
)


@six
@pytest.mark.parametrize("sigma", ["linear", "relu"])
def test_a_shift_never_converges(solver, sigma: str) -> None:
    """z + c has no fixed point, though leaps to 1e15 make its residual small or round it away."""
    f = Injected(lambda z, c: SIGMAS[sigma](z + c), SHIFTS)
    for start in (0.0, 10.0):
        z0 = torch.full((5, 3), start, dtype=torch.float64)
        for tol in (1e-13, 1e-8, 1e-3):
            found = fixed_point(f, z0, solver=solver, tol=tol, max_steps=30, throw=False)
            assert not bool(found.converged.any()), (start, tol, found.residual)


@six
def test_a_shift_in_float32_never_converges(solver) -> None:
    shifts = torch.tensor([[1.0], [0.01]])
    found = fixed_point(
        lambda z: torch.relu(z + shifts),
        torch.zeros(2, 3),
        solver=solver,
        max_steps=60,
        throw=False,
    )
    assert not bool(found.converged.any())


@six
@pytest.mark.parametrize("tol", [1e-12, 1e-8, 1e-3])
def test_a_nonnegative_matrix_of_radius_one_or_more_never_converges(solver, tol: float) -> None:
    g = generator(15)
    W = normal(4, 5, 5, g=g).abs()
    radii = torch.tensor([1.0, 1.05, 1.5, 4.0], dtype=torch.float64)
    W = W * (radii / torch.linalg.eigvals(W).abs().amax(dim=1))[:, None, None]
    q = torch.rand(4, 5, generator=g, dtype=torch.float64) + 0.1
    found = fixed_point(
        lambda z: torch.relu(torch.einsum("nij,nj->ni", W, z) + q),
        torch.zeros_like(q),
        solver=solver,
        tol=tol,
        max_steps=100,
        throw=False,
    )
    assert not bool(found.converged.any()), found.residual


# --- errors are sentences ---------------------------------------------------------------------


def good(z: Tensor) -> Tensor:
    return 0.5 * z + 1


ZERO = torch.zeros(2, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("f", "z0", "options", "error", "sentence"),
    [
        (lambda z: z[:, :2], ZERO, {}, ValueError, r"f\(z0\) has \(2, 2\), z0 has \(2, 3\)"),
        (lambda z: None, ZERO, {}, ValueError, "f\\(z0\\) has NoneType"),
        (lambda z: z.float(), ZERO, {}, ValueError, "keep the dtype.*torch.float32.*convert"),
        (lambda z: z * math.nan, ZERO, {}, ValueError, "a weight or an input is NaN"),
        (good, ZERO, {"tol": -1e-3}, ValueError, r"tol must be in \(0, 1\), got -0.001"),
        (good, ZERO, {"tol": 0.0}, ValueError, r"tol must be in \(0, 1\)"),
        (good, ZERO, {"tol": 2.0}, ValueError, r"tol must be in \(0, 1\)"),
        (good, ZERO, {"tol": math.nan}, ValueError, r"tol must be in \(0, 1\)"),
        (good, ZERO, {"tol": 1e-17}, ValueError, "below what torch.float64 resolves"),
        (good, ZERO.float(), {"tol": 1e-8}, ValueError, "float32 resolves.*use float64"),
        (good, ZERO[0], {}, ValueError, r"got shape \(3,\); for a single state pass z0\[None\]"),
        (good, ZERO[:0], {}, ValueError, "one row per sample"),
        (good, ZERO.long(), {}, TypeError, "floating-point tensor, got dtype torch.int64"),
        (good, np.zeros((2, 3)), {}, TypeError, "floating-point tensor, got ndarray"),
        (good, ZERO + math.inf, {}, ValueError, "z0 has NaN or infinite entries"),
        (good, ZERO, {"max_steps": 0}, ValueError, "max_steps must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(f, z0, options, error, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        fixed_point(f, z0, **options)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Picard(damping=0.0), r"damping must be in \(0, 1\], got 0.0"),
        (lambda: Picard(damping=1.5), r"damping must be in \(0, 1\]"),
        (lambda: Anderson(damping=-1), "damping"),
        (lambda: Anderson(memory=0), "memory must be at least 1, got 0"),
        (lambda: Adaptive(memory=0), "memory must be at least 1, got 0"),
        (lambda: Adaptive(fast=0.0), r"fast must be in \(0, 1\], got 0.0"),
        (lambda: Broyden(memory=0), "memory must be at least 1, got 0"),
        (lambda: Newton(linear="lu"), "'dense' or 'gmres', got 'lu'"),
        (lambda: Newton(inner=0), "inner must be at least 1"),
    ],
)
def test_bad_solver_options_are_named(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_not_converged_says_what_happened_and_carries_the_state() -> None:
    def f(z: Tensor) -> Tensor:
        return 0.9 * z + torch.tensor([[1.0], [0.0]], dtype=torch.float64)

    with pytest.raises(NotConverged) as caught:
        fixed_point(f, ZERO, solver=Picard(), tol=1e-9, max_steps=20)
    message, found = str(caught.value), caught.value.solution
    assert found.converged.tolist() == [False, True]
    assert "Picard did not converge for 1 of 2 samples" in message
    assert f"worst residual {float(found.residual[0]):.2e} against tol 1.0e-09" in message
    assert "after 20 steps" in message
    assert "still falling" in message
    more = int(message.split("about ")[1].split(" more")[0])
    enough = fixed_point(f, ZERO, solver=Picard(), tol=1e-9, max_steps=1000)
    assert more == pytest.approx(int(enough.steps.max()) - 20, rel=0.3)


def test_a_runaway_and_a_stall_are_told_apart() -> None:
    with pytest.raises(NotConverged, match=r"ran away.*no fixed point.*certify"):
        fixed_point(lambda z: 3 * z + 1, ZERO, solver=Picard(), max_steps=100)
    with pytest.raises(NotConverged, match=r"stalled.*damping.*Newton.*certify"):
        fixed_point(lambda z: 1 - z, ZERO, solver=Picard(), max_steps=100)


def test_overflow_ends_a_sample_and_leaves_the_others() -> None:
    slopes = torch.tensor([[1e6], [0.5]], dtype=torch.float64)
    found = fixed_point(lambda z: slopes * z + 1, ZERO, solver=Picard(), max_steps=200, throw=False)
    assert found.converged.tolist() == [False, True]
    assert math.isinf(float(found.residual[0]))
    assert int(found.steps[0]) < 60
    assert torch.allclose(found.z[1], torch.full((3,), 2.0, dtype=torch.float64))


@every_solver
def test_without_throw_the_last_iterate_comes_back(solver) -> None:
    W, q = problem(16, m=40, norm=0.99)
    f = cell(W, q, "tanh")
    short = fixed_point(f, torch.zeros_like(q), solver=solver, tol=1e-14, max_steps=1, throw=False)
    assert not bool(short.converged.any())
    assert short.steps.tolist() == [1] * 5
    image = f(short.z)
    again = (image - short.z).norm(dim=1) / image.norm(dim=1).clamp(min=1.0)
    assert torch.allclose(short.residual, again, atol=1e-12)
    if solver == Picard():
        assert torch.equal(short.z, f(torch.zeros_like(q)))


def test_injected_drops_rows() -> None:
    f = Injected(lambda z, x: z + 10 * x, torch.arange(4.0)[:, None])
    assert f.rows(torch.tensor([1, 3]))(torch.zeros(2, 1)).flatten().tolist() == [10.0, 30.0]


def test_a_failure_can_be_handed_on_by_a_process_pool() -> None:
    z0 = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(NotConverged) as caught:
        fixed_point(lambda z: 2 * z + 1, z0, solver=Picard(), max_steps=3)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert torch.equal(again.solution.z, caught.value.solution.z)


@pytest.mark.parametrize("solver", [Anderson(), Anderson(memory=8), Adaptive()], ids=repr)
@pytest.mark.parametrize("slopes", [(-10.0,), (-8.0, -5.6, -4.8, -1.7), (-4.0, 3.0, -2.5)], ids=str)
def test_a_map_that_expands_fast_is_no_obstacle(solver: Solver, slopes: tuple[float, ...]) -> None:
    # A plain step multiplies the residual by more than ``patience``. That is the map, and no window
    # that lied: who forgets it then iterates plainly for ever.
    g, m = generator(0), 30
    Q = torch.linalg.qr(normal(m, m, g=g))[0]
    rest = torch.linspace(-0.9, 0.9, m - len(slopes), dtype=torch.float64)
    A = Q @ torch.diag(torch.cat((torch.tensor(slopes, dtype=torch.float64), rest))) @ Q.mT
    q = normal(3, m, g=g)
    found = fixed_point(lambda z: z @ A + q, torch.zeros_like(q), solver=solver, tol=1e-10)
    truth = torch.linalg.solve(torch.eye(m, dtype=torch.float64) - A, q.mT).mT
    assert torch.allclose(found.z, truth, atol=1e-8)
    assert found.nfe < 150
