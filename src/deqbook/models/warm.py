r"""Warm starts that nobody has to think of: ``net = WarmStart(model)``, and train as before.

A training step moves the equilibria by little, so the solve of a sample may start where its last
one ended; and so may the adjoint solve of ``loss.backward()``. ``WarmStart`` remembers both, sample
by sample. A start changes the work, and the answer within the tolerance only.

**What is remembered** is what cannot be computed at once. For a cell :math:`z=\sigma(Wz+q)` it is
the feedback :math:`Wz`, since the new :math:`q` is known; of the adjoint equation
:math:`p=D(g+W^\top p)` it is :math:`DW^\top p`, for a cotangent g of length one. For any other cell
it is the state, and :math:`v-g` of the adjoint state. The adjoint equation is linear in g, so what
is remembered counts with the factor :math:`\langle g,g_{\mathrm{last}}\rangle`.

**Where the line leads.** With :math:`\Delta_t` the last change of a remembered vector, the next
start is :math:`h_t+\theta\Delta_t`. The factor
:math:`\theta=\langle\Delta_t,\Delta_{t-1}\rangle/\|\Delta_{t-1}\|^2`, cut to :math:`[-1,1]`, is how
much of a change was repeated the last time: near 1 in gradient descent that goes on as it did,
negative where it swings, near 0 under mini-batches.

**The product that only verifies** is spared as in :mod:`deqbook.models.gradients`, where a bound of
:math:`L_\sigma\|W\|` is below 1.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deqbook.implicit import IFT, Adjoint, AtParameters, equilibrium, pull_back
from deqbook.linalg import operator_norm
from deqbook.models.base import EquilibriumModel
from deqbook.models.closed_form import AffineCell, adjoint_states, one_application_short
from deqbook.models.gradients import NormBound
from deqbook.runtime import generator
from deqbook.solvers import (
    DEFAULT,
    Injected,
    Map,
    NotConverged,
    Solution,
    Solver,
    all_finite,
    fixed_point,
)
from deqbook.wellposed import Affine

__all__ = ["WarmStart"]

LARGE = 300  # from this width on a norm comes from Lanczos' method, with a margin
MARGIN = 1.01


class WarmStart(nn.Module):
    r"""The model itself, with solves that start where those of the same sample ended.

    ``WarmStart(model)(x)`` is ``model(x)`` to the tolerance, with the same derivatives of every
    order. It shares the model's parameters, so it takes its place in a training loop, or in a
    larger network. Options are those of ``model(x)``, without ``z0``.

    A sample is recognised by its row of ``x``, bit by bit. Where rows change from visit to visit (a
    random shift, say), give ``index``, (n,), whole numbers that name the samples. Of at most
    ``capacity`` samples five vectors as long as the state are kept, less than
    :math:`20\,m\cdot\mathrm{capacity}` bytes in float32; then the one not used for longest goes.

    In ``eval()``, under ``no_grad`` and under ``torch.func`` nothing is remembered or used. Nor is
    it in a second derivative's own solves. Memory is no part of ``state_dict``, copies or pickles.
    If a warm start fails, the cold one follows. Where a solver of one's own returns a state that
    did not converge, nothing is remembered of that sample: the next solve begins as a cold one. A
    cell with several equilibria may end in another one than from the cold start: ``certify`` says
    whether there is only one.

    ``ValueError`` for a ``capacity`` below 1 or below the batch, and for an ``index`` that is not
    (n,); ``TypeError`` for an index that is not of whole numbers, and for what is no
    ``EquilibriumModel``. Else the errors are those of the model.

    >>> from deqbook.models import VanillaDEQ
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> net = WarmStart(VanillaDEQ(one / 2, one, one[0]))  # z = relu(z/2 + x): 2 for x = 1
    >>> descent = torch.optim.SGD(net.parameters(), lr=0.01)
    >>> for _ in range(100):
    ...     descent.zero_grad()
    ...     (0.5 * (net(one) - 3).pow(2).sum()).backward()
    ...     descent.step()
    >>> round(net(one).item(), 6)
    3.0
    """

    def __init__(self, model: EquilibriumModel, capacity: int = 16384):
        super().__init__()
        if not isinstance(model, EquilibriumModel):
            raise TypeError(f"model must be an EquilibriumModel, got {type(model).__name__}.")
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1 sample, got {capacity!r}.")
        self.model, self.capacity = model, capacity
        self.forget()

    def forget(self) -> None:
        """Start anew: the next solve of every sample is a cold one."""
        self._memory = _Memory(self.capacity)
        self._kind: tuple[Any, ...] = ()
        self._seen: _Seen | None = None
        self._norm: _Norm = _Norm()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the memory out of copies and pickles."""
        return {k: v for k, v in self.__dict__.items() if k not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start with an empty memory."""
        super().__setstate__(state)
        self.forget()

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        *,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
        tol: float | None = None,
        max_steps: int = 2000,
    ) -> Tensor:
        """Return ``model(x)``; ``index`` (n,) names the samples where their rows do not."""
        model = self.model
        _check_index(index, x)
        under_transform = torch._C._functorch.get_interpreter_stack()
        if not self.training or not torch.is_grad_enabled() or under_transform:
            return model(x, solver=solver, adjoint=adjoint, tol=tol, max_steps=max_steps)
        q, chosen = model.injected(x), model.default_solver if solver is None else solver
        kind = (q.dtype, q.device, q.shape[1:])
        if kind != self._kind:  # the model was moved, or the rows are others altogether
            self.forget()
            self._kind = kind
        keys = self._keys(x, index)
        self._memory.admit(keys)
        completed = model.adjoint(adjoint, tol=tol)
        ift = completed if isinstance(completed, IFT) else IFT()
        find: _FeedbackFind | _StateFind
        if isinstance(model, AffineCell):
            shape = model.structure()
            bound = self._norm(shape)
            find = _FeedbackFind(
                model, _Visit(self._memory, keys), chosen, ift, tol, max_steps, shape, bound
            )
        else:
            find = _StateFind(model, _Visit(self._memory, keys), chosen, ift, tol, max_steps)
        z = equilibrium(
            model.f, model.start(q), q, *model.weights(), solver=find, adjoint=completed
        )
        return model.readout(z, q)

    def _keys(self, x: Tensor, index: Tensor | None) -> list[int]:
        """Return a number for every sample; of the very tensor of the last call, the same ones."""
        given, seen = x if index is None else index, self._seen
        version = 0 if given.is_inference() else given._version
        if seen is not None and seen.given() is given and seen.version == version:
            return seen.keys
        keys = (_fingerprints(x) if index is None else index).tolist()
        self._seen = _Seen(weakref.ref(given), version, keys)
        return keys


_OWN = ("_memory", "_kind", "_seen", "_norm")


class _Seen(NamedTuple):
    given: weakref.ref[Tensor]
    version: int
    keys: list[int]


def _fingerprints(x: Tensor) -> Tensor:
    """Return a number per row that depends on its bits alone, not on the rows beside it."""
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]
    bits = x.detach().flatten(1).contiguous().view(whole).long()
    bits = bits ^ (bits >> 20) ^ (bits >> 47)  # round numbers have zeros in all their lower bits
    odd = torch.randint(-(2**62), 2**62, bits.shape[1:], generator=generator(0)) * 2 + 1
    return (bits * odd.to(bits.device)).sum(1)


@dataclass
class _Norm:
    """A bound of the cell's contraction factor, asked for from the second step on."""

    asked: bool = False
    bound: NormBound | None = None

    def __call__(self, shape: Affine) -> float | None:
        """Return the bound if it is below 1."""
        if not self.asked:  # a single step would not earn back what a norm costs
            self.asked = True
            return None
        if self.bound is None:
            self.bound = _norm_at(shape.W)
        factor = self.bound(shape.W)
        if shape.sigma.lipschitz * factor >= 1 and factor > 1.1 * self.bound.norm:
            self.bound = _norm_at(shape.W)
            factor = self.bound.norm
        factor *= shape.sigma.lipschitz
        return factor if 0 < factor < 1 else None


def _norm_at(W: Tensor) -> NormBound:
    if len(W) < LARGE:
        return NormBound.at(W)
    return NormBound(W.detach().clone(), MARGIN * operator_norm(W, method="lanczos", tol=1e-3))


# -- memory ----------------------------------------------------------------------------------------


class _Memory:
    """Named tables with a row per key, zero at first; at most ``capacity`` keys."""

    def __init__(self, capacity: int):
        self.capacity, self.size = capacity, 0
        self.slots: dict[int, int] = {}  # by key, the one not used for longest first
        self.tables: dict[str, Tensor] = {}
        self.last: list[int] | None = None  # the keys that came last: a full batch is one list
        self.found: _Rows | None = None  # where the keys that were asked for last are

    def admit(self, keys: list[int]) -> None:
        """Give every key a row. Who leaves for it leaves nothing behind."""
        if self.last is keys:
            return
        distinct = dict.fromkeys(keys)
        if len(distinct) > self.capacity:
            raise ValueError(
                f"capacity must be at least the samples of a batch: {len(distinct)} came, "
                f"{self.capacity} have room."
            )
        fresh = []
        for key in distinct:
            if key in self.slots:
                self.slots[key] = self.slots.pop(key)  # used last
            else:
                fresh.append(key)
        leave = max(0, len(self.slots) + len(fresh) - self.capacity)
        free = [self.slots.pop(key) for key in list(islice(self.slots, leave))]
        for table in self.tables.values():
            table[free] = 0
        begin = len(self.slots) + len(free)
        free += range(begin, begin + len(fresh) - len(free))
        self.slots |= zip(fresh, free)
        self.size = self._grown(max([-1, *free]) + 1)
        for name, table in self.tables.items():
            if len(table) < self.size:
                more = table.new_zeros(self.size - len(table), *table.shape[1:])
                self.tables[name] = torch.cat((table, more))
        self.last, self.found = keys, None

    def _grown(self, needed: int) -> int:
        """Return the rows to have: what the first batch needs, then twice as many at a time."""
        if needed <= self.size or self.size == 0:
            return max(needed, self.size)
        return min(self.capacity, max(needed, 2 * self.size))

    def read(self, name: str, keys: list[int]) -> Tensor | None:
        """Return the rows of the keys; None as long as nothing was written."""
        table, at = self.tables.get(name), self._rows(keys)
        if table is None or at.gone:
            return None
        return table if at.whole else table.index_select(0, at.index(table))

    def write(self, keys: list[int], rows: dict[str, Tensor]) -> None:
        """Keep rows. A key that has left meanwhile is passed over; of two equal ones one counts."""
        at = self._rows(keys)
        for name, new in rows.items():
            if at.whole:
                self.tables[name] = new
                continue
            if name not in self.tables:
                self.tables[name] = new.new_zeros(self.size, *new.shape[1:])
            table = self.tables[name]
            if at.gone or at.twice:
                first = {slot: i for i, slot in reversed(list(enumerate(at.slots))) if slot >= 0}
                to, of = (
                    torch.tensor(list(i), dtype=torch.long, device=new.device)
                    for i in (first, first.values())
                )
                table[to] = new[of]
            else:
                table.index_copy_(0, at.index(table), new)

    def _rows(self, keys: list[int]) -> _Rows:
        """Return where the keys are. A step asks a dozen times, so the answer is kept."""
        if self.found is None or self.found.keys is not keys:
            self.found = _Rows(keys, [self.slots.get(key, -1) for key in keys], self.size)
        return self.found


class _Rows:
    """Where the rows of some keys are in every table; -1: a key has left."""

    def __init__(self, keys: list[int], slots: list[int], size: int):
        self.keys, self.slots, self.gone = keys, slots, -1 in slots
        self.whole = len(slots) == size and slots == list(range(size))
        self.twice = len(set(slots)) < len(slots)
        self._index: Tensor | None = None

    def index(self, table: Tensor) -> Tensor:
        """Return the slots as a tensor where the tables are."""
        if self._index is None:
            self._index = torch.tensor(self.slots, device=table.device)
        return self._index


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products of the rows, (n, 1)."""
    return torch.linalg.vecdot(a, b)[:, None]  # bmm of rows takes six times as long


@dataclass(frozen=True)
class _Visit:
    """What the memory holds of the samples of one batch."""

    memory: _Memory
    keys: list[int]

    def direction(self, g: Tensor) -> Tensor | None:
        """Return how much of each row of g, of length one, was there the last time, (n, 1)."""
        last = self.memory.read("cotangent", self.keys)
        return None if last is None else _dot(g, last)

    def ahead(self, name: str) -> Tensor | None:
        """Return where the line leads: the last row, and of its last change what will repeat."""
        last, change, trust = (self.memory.read(name + k, self.keys) for k in _LINE)
        if last is None or change is None or trust is None:
            return None
        return torch.addcmul(last, change, trust)

    def keep(
        self,
        name: str,
        new: Tensor,
        settled: Tensor | None,
        factor: Tensor | None = None,
        **more: Tensor,
    ) -> None:
        """Remember new rows. ``factor`` says what the old ones have to be multiplied by.

        Rows that are not ``settled``, (n,), are forgotten instead: a start from them would carry
        the error of one visit into the next.
        """
        last, before = (self.memory.read(name + k, self.keys) for k in _LINE[:2])
        trust = new.new_zeros(len(new), 1)
        if last is None or before is None:
            change = new
        else:
            old = last if factor is None else factor * last
            change = new - old
            before = before if factor is None else factor * before
            length = _dot(before, before)
            trust = torch.where(length > 0, _dot(change, before) / length, trust).clamp(-1, 1)
        rows = dict(zip((name + k for k in _LINE), (new, change, trust))) | more
        if settled is not None and not bool(settled.all()):
            rows = {k: torch.where(settled[:, None], row, 0) for k, row in rows.items()}
        self.memory.write(self.keys, rows)


_LINE = (" last", " change", " trust")


# -- two ways to find, and to pull back ------------------------------------------------------------


@dataclass
class _FeedbackFind:
    """The equilibria of a cell σ(Wz + q) by their feedback, and the adjoint states by theirs."""

    model: AffineCell
    visit: _Visit
    solver: Solver
    adjoint: IFT
    tol: float | None
    max_steps: int
    shape: Affine
    contraction: float | None
    slopes: Tensor = field(init=False)

    def __call__(self, cell: AtParameters, z0: Tensor) -> Solution:
        """Return the equilibrium; ``image`` is none, since the state is one application ahead."""
        q, ahead = cell.theta[0], self.visit.ahead("state")
        if not all_finite(q):
            raise ValueError("the injected input has NaN or infinite entries; check x.")
        if ahead is None:
            found, h = self._solve(q, torch.zeros_like(q))
        else:
            try:
                found, h = self._solve(q, ahead)
            except NotConverged:
                found, h = self._solve(q, torch.zeros_like(q))
        sigma = self.shape.sigma
        z = sigma(q + h)
        self.slopes = sigma.slope(q + h) if sigma.slope_at is None else sigma.slope_at(z)
        self.visit.keep("state", h, found.converged)
        return replace(found, z=z, image=None)

    def _solve(self, q: Tensor, h: Tensor) -> tuple[Solution, Tensor]:
        W, sigma, steps = self.shape.W, self.shape.sigma, self.max_steps
        if not self.solver.any_map:
            found = self.model.solve_injected(
                q, sigma(q + h), solver=self.solver, tol=self.tol, max_steps=steps
            )
            return found, found.z @ W.mT
        tol = one_application_short(self.tol, self.contraction, q.dtype)
        feedback = Injected(lambda h, q: sigma(q + h) @ W.mT, q)
        found = fixed_point(feedback, h, solver=self.solver, tol=tol, max_steps=steps)
        assert found.image is not None
        return found, found.image

    def pull_back(
        self, g: Tensor, z: Tensor, theta: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Solve p = D(g + Wᵀp) for cotangents of length one, from where the last one ended."""
        size, unit = _unit(g)
        direct, settled = self.slopes * unit, _Settled(self.adjoint.solver)
        ahead, factor = self.visit.ahead("adjoint"), self.visit.direction(unit)
        if ahead is None or factor is None:
            p = self._adjoint(unit, direct, settled)
        else:
            try:
                p = self._adjoint(unit, torch.addcmul(direct, ahead, factor), settled)
            except NotConverged:
                p = self._adjoint(unit, direct, settled)
        self.visit.keep("adjoint", p - direct, settled.rows, factor, cotangent=unit)
        p = p * size
        q, *weights = theta
        pulled = (
            self.model.pull_to_weights(p, z, q, tuple(weights))
            if any(wanted[1:])
            else [None] * len(weights)
        )
        return tuple(t if want else None for t, want in zip((p, *pulled), wanted))

    def _adjoint(self, unit: Tensor, start: Tensor, solver: Solver) -> Tensor:
        return adjoint_states(
            self.shape.W,
            self.slopes,
            unit,
            v0=start,
            solver=solver,
            tol=self.adjoint.tol,
            contraction=self.contraction,
            max_steps=self.adjoint.max_steps,
        )


@dataclass(frozen=True)
class _StateFind:
    """The equilibria and the adjoint states of any cell, started where the last ones ended."""

    model: EquilibriumModel
    visit: _Visit
    solver: Solver
    adjoint: IFT
    tol: float | None
    max_steps: int

    def __call__(self, cell: AtParameters, z0: Tensor) -> Solution:
        """Return the equilibrium."""
        ahead = self.visit.ahead("state")
        how: dict[str, Any] = {"solver": self.solver, "tol": self.tol, "max_steps": self.max_steps}
        q = cell.theta[0]
        if ahead is None:
            found = self.model.solve_injected(q, z0, **how)
        else:
            try:
                found = self.model.solve_injected(q, z0 + ahead.reshape(z0.shape), **how)
            except NotConverged:
                found = self.model.solve_injected(q, z0, **how)
        self.visit.keep("state", (found.z - z0).flatten(1), found.converged)
        return found

    def pull_back(
        self, g: Tensor, z: Tensor, theta: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Solve v = Jᵀv + g for cotangents of length one, from where the last one ended."""
        size, unit = _unit(g.flatten(1))
        ahead, factor = self.visit.ahead("adjoint"), self.visit.direction(unit)
        settled = _Settled(self.adjoint.solver)
        f, cold = self.model.f, replace(self.adjoint, solver=settled)
        if ahead is None or factor is None:
            v, pulled = pull_back(f, z, theta, g, adjoint=cold, wanted=wanted)
        else:
            start = torch.addcmul(unit, ahead, factor).mul_(size).reshape(g.shape)
            try:
                warm = replace(cold, start=start)
                v, pulled = pull_back(f, z, theta, g, adjoint=warm, wanted=wanted)
            except NotConverged:
                v, pulled = pull_back(f, z, theta, g, adjoint=cold, wanted=wanted)
        h = v.flatten(1) / size - unit
        self.visit.keep("adjoint", h, settled.rows, factor, cotangent=unit)
        return pulled


class _Settled(Solver):
    """A solver that notes whose equation it solved: one with a cap may return what did not settle.

    ``rows`` (n,) is None before the first solve.
    """

    def __init__(self, solver: Solver | None):
        self.solver: Solver = DEFAULT if solver is None else solver
        self.rows: Tensor | None = None

    def solve(self, f: Map, z0: Tensor, *, tol: float, max_steps: int, throw: bool) -> Solution:
        """Solve as the solver does."""
        found = self.solver.solve(f, z0, tol=tol, max_steps=max_steps, throw=throw)
        self.rows = found.converged
        return found


def _unit(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lengths of the rows, (n, 1), and the rows made one long; zero stays zero."""
    size = torch.linalg.vector_norm(g, dim=1, keepdim=True)
    size = torch.where(size == 0, 1.0, size)
    return size, g / size


def _check_index(index: Tensor | None, x: Tensor) -> None:
    if index is None:
        return
    if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
        seen = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"index must be a tensor of whole numbers, one per sample; got {seen}.")
    if index.shape != x.shape[:1]:
        raise ValueError(f"index must be ({x.shape[0]},), one per row; got {tuple(index.shape)}.")
