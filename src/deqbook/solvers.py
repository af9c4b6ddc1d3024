r"""Fixed points of batched maps: ``fixed_point(f, z0)`` finds ``z = f(z)`` for every row.

The problem (a map), the method (a frozen dataclass with a short ``step``) and the driver (stopping,
freezing, bookkeeping, honest errors) are three separate things. A sample's path never depends on
the other samples of its batch.

**When is a row finished?** With :math:`r=\|f(z)-z\|`, its first value :math:`r_0` at :math:`z_0`
and the unit roundoff :math:`\varepsilon`, two conditions must hold,

.. math:: r\le\mathrm{tol}\,\max(1,\|f(z)\|)\ \text{ and }\ r+\varepsilon\|f(z)\|\le
   \max(\sqrt{\mathrm{tol}}\,r_0,\ \mathrm{tol}\,\max(1,\|f(z_0)\|)).

The first alone can be fooled: ``f(z) = z + 1`` has no fixed point, yet an accelerated iterate that
leaps to :math:`10^{12}` has a relative residual of :math:`10^{-12}`, and at :math:`10^{16}` the one
is rounded away. The second sees that the residual itself never fell, or can no longer be seen.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from deqbook.linalg import gmres

__all__ = [
    "DEFAULT",
    "Adaptive",
    "Anderson",
    "Broyden",
    "Injected",
    "Iteration",
    "Newton",
    "NotConverged",
    "Picard",
    "Solution",
    "Solver",
    "check_solver",
    "default_tol",
    "fixed_point",
]

Map = Callable[[Tensor], Tensor]

PIECE = 2**18  # numbers that stay in a cache; a fresh array of a large batch costs more than a pass


@dataclass(frozen=True)
class Injected:
    """The map ``z ↦ update(z, x)`` with its injected input, able to drop finished samples.

    ``update`` works row by row; ``z`` and ``x`` have one row a sample.

    >>> f = Injected(lambda z, x: torch.relu(0.5 * z + x), torch.tensor([[1.0], [2.0]]))
    >>> fixed_point(f, torch.zeros(2, 1)).z.round(decimals=3).tolist()
    [[2.0], [4.0]]
    >>> f.rows(torch.tensor([1])).x.tolist()
    [[2.0]]
    """

    update: Callable[[Tensor, Tensor], Tensor]
    x: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """Return ``update(z, x)``."""
        return self.update(z, self.x)

    def rows(self, index: Tensor) -> Injected:
        """Return the same map for the samples ``index`` only."""
        return Injected(self.update, self.x[index])


@dataclass(frozen=True)
class Solution:
    r"""What a solver found. ``z`` is (n, …); ``converged``, ``residual`` and ``steps`` are (n,).

    ``residual`` is :math:`\|f(z)-z\|/\max(1,\|f(z)\|)` at the ``z`` returned, ``trace`` its
    history from the start on (1 + most steps, n), ``nfe`` the evaluations of ``f`` on the batch (a
    Jacobian-vector product counts as one). ``image`` is ``f(z)``, where the solver has it.

    >>> found = fixed_point(torch.cos, torch.zeros(1, 1).double(), solver=Picard())
    >>> found.method, bool(found.converged.all()), bool((found.residual <= 1e-8).all())
    ('Picard', True, True)
    >>> len(found.trace) == 1 + int(found.steps.max()) == found.nfe  # Picard evaluates once a step
    True
    """

    z: Tensor
    converged: Tensor
    residual: Tensor
    steps: Tensor
    nfe: int
    trace: Tensor
    method: str = ""
    image: Tensor | None = None

    def __repr__(self) -> str:
        n, ok = len(self.converged), int(self.converged.sum())
        return (
            f"Solution({self.method}: {ok}/{n} samples converged, worst residual "
            f"{float(self.residual.max()):.1e}, {self.nfe} evaluations)"
        )


class NotConverged(RuntimeError):
    """Raised when some sample has no certified fixed point; ``.solution`` holds the last state.

    >>> try:
    ...     fixed_point(lambda z: z + 1, torch.zeros(1, 1))
    ... except NotConverged as error:
    ...     error.solution.converged.tolist()
    [False]
    """

    def __init__(self, message: str, solution: Solution):
        super().__init__(message)
        self.solution = solution

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from both arguments, so that a process pool can hand the error on."""
        return type(self), (str(self), self.solution)


class Solver(ABC):
    """A way to find ``z = f(z)``: what ``fixed_point`` and every model take as ``solver``.

    ``any_map`` says whether it needs nothing but the map. A splitting needs to know the matrix of
    the cell, so it solves a ``MonotoneProblem`` only.

    >>> from deqbook.splitting import PeacemanRachford
    >>> [solver.any_map for solver in (Anderson(), Newton(), PeacemanRachford())]
    [True, True, False]
    """

    any_map: ClassVar[bool] = True

    @abstractmethod
    def solve(self, f: Map, z0: Tensor, *, tol: float, max_steps: int, throw: bool) -> Solution:
        """Return the fixed point of every row from the start ``z0``; see ``fixed_point``."""


class Iteration(Solver):
    """A solver that is an iteration: ``start`` makes its memory, ``step`` the next iterate.

    ``step`` returns the iterate, the memory and the evaluations it made beyond the one that the
    driver makes. The memory is a NamedTuple; its tensors have the samples as first axis. A method
    of one's own needs no more:

    >>> class Halfway(Iteration):
    ...     def start(self, z):
    ...         return ()
    ...
    ...     def step(self, f, z, fz, memory):
    ...         return (z + fz) / 2, memory, 0
    >>> fixed_point(lambda z: 2 - z, torch.zeros(1, 1), solver=Halfway()).z.tolist()
    [[1.0]]
    """

    @abstractmethod
    def start(self, z: Tensor) -> Any:
        """Return the memory before the first step; ``z`` is the start as flat rows (n, D)."""

    @abstractmethod
    def step(self, f: Map, z: Tensor, fz: Tensor, memory: Any) -> tuple[Tensor, Any, int]:
        """Return the next iterate, the new memory, and extra evaluations.

        ``z`` and its image ``fz`` are flat rows (n, D); so is what ``f`` takes and returns.
        """

    def asks(self, residual: Tensor, memory: Any) -> Tensor | None:
        r"""Return which samples, (n,), ask for ``step``; None, as here, if it is always taken.

        ``residual`` is :math:`\|f(z)-z\|`, (n,). Where no sample asks, the driver takes the image
        as the next iterate and calls ``plain``. It learns of it with the copy to the host that it
        makes anyway.
        """
        return None

    def plain(self, z: Tensor, fz: Tensor, residual: Tensor, memory: Any) -> Any:
        """Return the memory after a step z ← f(z) that the driver took for all samples."""
        return memory

    def solve(self, f: Map, z0: Tensor, *, tol: float, max_steps: int, throw: bool) -> Solution:
        """Iterate until every row is finished; stopping and bookkeeping are the driver's."""
        return _drive(self, f, z0, tol, max_steps, throw=throw)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low < value <= high:
        raise ValueError(f"{name} must be in ({low:g}, {high:g}], got {value!r}.")


class _Nothing(NamedTuple):
    pass


@dataclass(frozen=True)
class Picard(Iteration):
    r"""Damped Picard iteration :math:`z\leftarrow(1-\beta)z+\beta f(z)`, with β = ``damping``.

    ``ValueError`` unless :math:`0<\beta\le1`. Damping finds the fixed point 1 of ``2 - z``, where
    plain iteration goes 0, 2, 0, 2, … for ever:

    >>> f, z0 = lambda z: 2 - z, torch.zeros(1, 1)
    >>> bool(fixed_point(f, z0, solver=Picard(), throw=False).converged)
    False
    >>> fixed_point(f, z0, solver=Picard(damping=0.5)).z.tolist()
    [[1.0]]
    """

    damping: float = 1.0

    def __post_init__(self) -> None:
        _in_range("damping", self.damping, 0.0, 1.0)

    def start(self, z: Tensor) -> _Nothing:
        """Picard remembers nothing."""
        return _Nothing()

    def step(self, f: Map, z: Tensor, fz: Tensor, memory: _Nothing) -> tuple[Tensor, _Nothing, int]:
        """Return the averaged image."""
        return fz if self.damping == 1 else torch.lerp(z, fz, self.damping), memory, 0


class _AndersonMemory(NamedTuple):
    z: Tensor  # (n, D) previous iterate
    g: Tensor  # (n, D) previous residual
    dg: Tensor  # (n, room, D) residual differences
    de: Tensor  # (n, room, D) differences of z + βg
    gram: Tensor  # (n, k, k) inner products of dg
    used: Tensor  # (n, k) which slots of the window count
    best: Tensor  # (n,) smallest residual since the window was last emptied
    age: int = 0  # steps taken


@dataclass(frozen=True)
class Anderson(Iteration):
    r"""Anderson acceleration (type II) with window ``memory``.

    With residual :math:`g=f(z)-z` and the last differences :math:`\Delta g_j`, choose
    :math:`\gamma=\arg\min\|g-\sum_j\gamma_j\Delta g_j\|` and step to
    :math:`z+\beta g-\sum_j\gamma_j(\Delta z_j+\beta\Delta g_j)`.

    The least-squares problem is solved by normal equations whose columns are scaled to length one,
    so ``ridge`` is relative to the Gram diagonal. An absolute ridge takes over as soon as the
    residual is small and turns the method back into Picard.

    A kink can make the window lie. A sample whose residual exceeds ``patience`` times its best
    forgets its window and starts again from a Picard step. A residual that grows in that step does
    so because the map expands; it is what the window has to learn from.

    :math:`\beta\in(0,1]` is ``damping``; ``ridge`` is by default 10 units of roundoff.
    ``ValueError`` for another damping or a ``memory`` below 1. A line that expands is no obstacle:

    >>> f, z0 = lambda z: 10 - 9 * z, torch.zeros(1, 1).double()
    >>> fixed_point(f, z0, solver=Anderson()).z.round(decimals=6).tolist()
    [[1.0]]
    >>> bool(fixed_point(f, z0, solver=Picard(), throw=False).converged)
    False
    """

    memory: int = 30
    damping: float = 1.0
    ridge: float | None = None
    patience: float = 2.0

    def __post_init__(self) -> None:
        _in_range("damping", self.damping, 0.0, 1.0)
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}.")

    def start(self, z: Tensor) -> _AndersonMemory:
        """Return a window without a slot."""
        n, size = z.shape
        k = min(self.memory, size)
        return _AndersonMemory(
            z,
            torch.zeros_like(z),
            z.new_empty(n, 0, size),
            z.new_empty(n, 0, size),
            z.new_zeros(n, k, k),
            torch.zeros(n, k, dtype=torch.bool, device=z.device),
            z.new_full((n,), math.inf),
        )

    def step(
        self, f: Map, z: Tensor, fz: Tensor, memory: _AndersonMemory
    ) -> tuple[Tensor, _AndersonMemory, int]:
        """Mix the window so that the linearised residual is least."""
        g = fz - z
        dg, de, gram, used, age = memory.dg, memory.de, memory.gram, memory.used, memory.age
        size = g.norm(dim=1)
        worse = used.any(dim=1) & (size > self.patience * memory.best)
        best = torch.where(worse, size, torch.minimum(size, memory.best))
        step = z + self.damping * g
        k = min(age, used.shape[1])  # slots filled so far; the others are never read
        if k:
            dg, de = (_with_room(window, k, used.shape[1]) for window in (dg, de))
            slot = (age - 1) % used.shape[1]
            pair = torch.stack((g - memory.g, g), dim=1)
            dg[:, slot] = pair[:, 0]
            de[:, slot] = torch.add(z - memory.z, pair[:, 0], alpha=self.damping)
            # One pass over the window gives the new row of the Gram matrix and the right-hand side;
            # with the two vectors as rows it takes a third of the time.
            both = torch.bmm(pair, dg[:, :k].mT)
            gram[:, slot, :k] = both[:, 0]
            gram[:, :k, slot] = both[:, 0]
            used[:, slot] = True
            used = used & ~worse[:, None]
            gamma = self._mix(gram[:, :k, :k], used[:, :k], both[:, 1])
            step = step - torch.bmm(gamma[:, None], de[:, :k])[:, 0]
        return step, _AndersonMemory(z, g, dg, de, gram, used, best, age + 1), 0

    def _mix(self, gram: Tensor, used: Tensor, rhs: Tensor) -> Tensor:
        """Solve the scaled, ridged normal equations; slots out of use get weight zero."""
        ridge = 10 * torch.finfo(gram.dtype).eps if self.ridge is None else self.ridge
        length = gram.diagonal(dim1=1, dim2=2).sqrt()
        used = used & (length > 0)
        scale = torch.where(used, 1 / length, 0.0)
        scaled = gram * scale[:, :, None] * scale[:, None, :]
        scaled = scaled + torch.diag_embed(ridge + (~used).to(gram.dtype))
        solved, _ = torch.linalg.solve_ex(scaled, (rhs * scale)[..., None])
        return solved[..., 0] * scale


def _with_room(window: Tensor, slots: int, most: int) -> Tensor:
    """Return a window (n, room, D) with so many slots: what there is, or twice as many at a time.

    A solve that ends soon never has the others: they would be copied whenever samples are dropped.
    """
    n, room, size = window.shape
    if slots <= room:
        return window
    more = min(most, max(4, 2 * room)) - room
    return torch.cat((window, window.new_empty(n, more, size)), dim=1)


class _AdaptiveMemory(NamedTuple):
    z: Tensor  # (n, D) previous iterate
    f: Tensor  # (n, D) its image
    size: Tensor  # (n,) their distance
    best: Tensor  # (n,) smallest residual since the window was last emptied
    asks: Tensor  # (n,) which samples are accelerated
    q: Tensor  # (n, k, D) residual differences, made orthonormal
    e: Tensor  # (n, k, D) the same combinations of image differences
    used: Tensor  # (n, k) which slots of the window count
    age: int = 0  # differences stored


@dataclass(frozen=True)
class Adaptive(Iteration):
    r"""Plain iteration while residuals fall fast, and Anderson's method once they do not.

    A sample is iterated plainly, :math:`z\leftarrow f(z)`, until a step leaves more than ``fast``
    of its residual. From then on it is accelerated as by ``Anderson`` with window ``memory``. The
    least-squares problem needs no matrix here: residual differences :math:`\Delta g_j` are kept as
    orthonormal :math:`q_j`, the same combinations of image differences as :math:`e_j`, and

    .. math:: z\leftarrow f(z)-\sum_j\langle q_j,g\rangle\,e_j,\qquad g=f(z)-z .

    A difference that adds nothing to the window (to the root of roundoff) is left out. The window
    has room for as many differences as were needed so far. A sample whose residual exceeds
    ``patience`` times its best forgets its window, as in ``Anderson``.

    ``ValueError`` for ``memory`` below 1 or ``fast`` outside (0, 1].

    >>> z0 = torch.zeros(1, 1).double()
    >>> easy = lambda z: 0.5 * torch.cos(z)
    >>> fixed_point(easy, z0, solver=Adaptive()).nfe == fixed_point(easy, z0, solver=Picard()).nfe
    True
    >>> fixed_point(lambda z: 10 - 9 * z, z0, solver=Adaptive()).z.round(decimals=6).tolist()
    [[1.0]]
    """

    memory: int = 10
    fast: float = 0.6
    patience: float = 2.0

    def __post_init__(self) -> None:
        _in_range("fast", self.fast, 0.0, 1.0)
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}.")

    def start(self, z: Tensor) -> _AdaptiveMemory:
        """Return a window without a slot; any residual is an improvement."""
        n, size = z.shape
        no, none = z.new_zeros(n, dtype=torch.bool), z.new_empty(n, 0, size)
        far = z.new_full((n,), math.inf)
        used = no.new_zeros(n, min(self.memory, size))
        return _AdaptiveMemory(z, z, far, far, no, none, none, used)

    def asks(self, residual: Tensor, memory: _AdaptiveMemory) -> Tensor | None:
        """Return whose residual fell too little; once a sample has asked, every step is taken."""
        return None if memory.age else residual > self.fast * memory.size

    def plain(
        self, z: Tensor, fz: Tensor, residual: Tensor, memory: _AdaptiveMemory
    ) -> _AdaptiveMemory:
        """Remember the step, without a copy: it is the first difference if a sample asks next."""
        return memory._replace(z=z, f=fz, size=residual, best=residual)

    def step(
        self, f: Map, z: Tensor, fz: Tensor, memory: _AdaptiveMemory
    ) -> tuple[Tensor, _AdaptiveMemory, int]:
        """Return the image, corrected where the residual asks for it."""
        g = fz - z
        size = g.norm(dim=1)
        asks = size > self.fast * memory.size
        asks = asks | memory.asks
        worse = memory.used.any(dim=1) & (size > self.patience * memory.best)
        best = torch.where(worse, size, torch.minimum(size, memory.best))
        q, e, used, slot = self._room(memory)
        used = used & ~worse[:, None]
        de = fz - memory.f
        dg, step = de - (z - memory.z), fz
        least = dg.norm(dim=1, keepdim=True) * math.sqrt(10 * torch.finfo(g.dtype).eps)
        k = min(memory.age, used.shape[1])  # slots filled so far; the others are never read
        if k:
            # The two vectors as rows: as columns the same product takes three times as long.
            known = torch.bmm(torch.stack((dg, g), dim=1), q[:, :k].mT) * used[:, None, :k]
            dg = dg - torch.bmm(known[:, :1], q[:, :k])[:, 0]
            both = torch.bmm(known, e[:, :k])
            de, step = de - both[:, 0], step - both[:, 1]
        length = dg.norm(dim=1, keepdim=True)
        new = (length > least) & asks[:, None] & ~worse[:, None]
        scale = torch.where(new, 1 / length, 0.0)
        q[:, slot], e[:, slot], used[:, slot] = dg * scale, de * scale, new[:, 0]
        step = step - (q[:, slot] * g).sum(dim=1, keepdim=True) * e[:, slot]
        return step, _AdaptiveMemory(z, fz, size, best, asks, q, e, used, memory.age + 1), 0

    def _room(self, memory: _AdaptiveMemory) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return the window with a slot for one more difference: a new one, or the oldest."""
        most, age = min(self.memory, memory.q.shape[2]), memory.age
        q, e = (_with_room(w, min(age + 1, most), most) for w in (memory.q, memory.e))
        used = memory.used.clone()
        slot = age % most
        used[:, slot] = False
        return q, e, used, slot


DEFAULT: Solver = Adaptive()
"""The solver where none is named: its user need not know whether the map is easy or stiff."""


class _BroydenMemory(NamedTuple):
    z: Tensor
    g: Tensor
    u: Tensor  # (n, k, D)
    v: Tensor  # (n, k, D)
    age: int = 0


@dataclass(frozen=True)
class Broyden(Iteration):
    r"""Limited-memory "good" Broyden for :math:`g(z)=f(z)-z=0`.

    The inverse Jacobian is kept as :math:`H=-I+\sum_ju_jv_j^\top` (the first guess makes the first
    step Picard's) and updated by
    :math:`H\leftarrow H+\frac{(\Delta z-H\Delta g)(H^\top\Delta z)^\top}{\Delta z^\top H\Delta g}`.
    When the window of ``memory`` pairs is full it starts afresh. ``ValueError`` if it is below 1.

    >>> z0 = torch.zeros(1, 1).double()
    >>> by = {s: fixed_point(torch.cos, z0, solver=s) for s in (Broyden(), Picard())}
    >>> round(float(by[Broyden()].z), 3), by[Broyden()].nfe < by[Picard()].nfe
    (0.739, True)
    """

    memory: int = 30

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}.")

    def start(self, z: Tensor) -> _BroydenMemory:
        """Return H = -I."""
        n, size = z.shape
        window = z.new_zeros(n, self.memory, size)
        return _BroydenMemory(z, torch.zeros_like(z), window, window.clone())

    def step(
        self, f: Map, z: Tensor, fz: Tensor, memory: _BroydenMemory
    ) -> tuple[Tensor, _BroydenMemory, int]:
        """Update H by the last secant pair and step to z - Hg."""
        g = fz - z
        u, v, age = memory.u, memory.v, memory.age
        if age > 0:
            slot = (age - 1) % self.memory
            if slot == 0:
                u, v = torch.zeros_like(u), torch.zeros_like(v)
            dz, dg = z - memory.z, g - memory.g
            h_dg = self._apply(u, v, dg)
            ht_dz = self._apply(v, u, dz)
            denominator = (dz * h_dg).sum(dim=1, keepdim=True)
            # A vanishing denominator carries no information: leave H as it is for that sample.
            small = denominator.abs() <= 1e-12 * dz.norm(dim=1, keepdim=True) * h_dg.norm(
                dim=1, keepdim=True
            )
            safe = torch.where(small, torch.ones_like(denominator), denominator)
            u[:, slot] = torch.where(small, torch.zeros_like(dz), (dz - h_dg) / safe)
            v[:, slot] = ht_dz
        return z - self._apply(u, v, g), _BroydenMemory(z, g, u, v, memory.age + 1), 0

    @staticmethod
    def _apply(u: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """Return (-I + Σ u_j v_jᵀ) x."""
        return torch.einsum("nkd,nk->nd", u, torch.einsum("nkd,nd->nk", v, x)) - x


class _NewtonMemory(NamedTuple):
    z: Tensor
    direction: Tensor
    length: Tensor  # (n, 1)
    size: Tensor  # (n, 1) residual norm at z


@dataclass(frozen=True)
class Newton(Iteration):
    r"""Newton's method: :math:`z\leftarrow z+(I-J)^{-1}(f(z)-z)`, with step halving.

    ``linear="dense"`` forms each sample's Jacobian (exact; for small states), ``"gmres"`` never
    does: ``inner`` Jacobian-vector products solve the Newton equation approximately. At a kink any
    one-sided Jacobian serves (semismooth Newton). On a ReLU map it ends once it has found the
    right active set, but it may also cycle among wrong ones: outside a contraction nothing is
    promised. ``ValueError`` for another ``linear`` or ``inner`` below 1.

    >>> found = fixed_point(lambda z: torch.relu(0.5 * z + 1), torch.zeros(1, 1), solver=Newton())
    >>> found.z.tolist(), found.steps.tolist()
    ([[2.0]], [1])
    """

    linear: str = "dense"
    inner: int = 20

    def __post_init__(self) -> None:
        if self.linear not in ("dense", "gmres"):
            raise ValueError(f"linear must be 'dense' or 'gmres', got {self.linear!r}.")
        if self.inner < 1:
            raise ValueError(f"inner must be at least 1, got {self.inner}.")

    def start(self, z: Tensor) -> _NewtonMemory:
        """No direction yet; any residual is an improvement."""
        one = z.new_ones(z.shape[0], 1)
        return _NewtonMemory(z, torch.zeros_like(z), one, one * math.inf)

    def step(
        self, f: Map, z: Tensor, fz: Tensor, memory: _NewtonMemory
    ) -> tuple[Tensor, _NewtonMemory, int]:
        """Accept the last step if the residual fell, else halve it and try again from before."""
        g = fz - z
        size = g.norm(dim=1, keepdim=True)
        good = (size < memory.size) | (memory.length < 1e-4)
        direction, calls = self._direction(f, z, g)
        base = torch.where(good, z, memory.z)
        direction = torch.where(good, direction, memory.direction)
        length = torch.where(good, torch.ones_like(memory.length), memory.length / 2)
        kept = torch.where(good, size, memory.size)
        return base + length * direction, _NewtonMemory(base, direction, length, kept), calls

    def _direction(self, f: Map, z: Tensor, g: Tensor) -> tuple[Tensor, int]:
        if self.linear == "gmres":

            def apply(v: Tensor) -> Tensor:
                return v - torch.func.jvp(f, (z,), (v,))[1]

            return gmres(apply, g, self.inner)
        n, size = z.shape
        pullback = torch.func.vjp(f, z)[1]
        basis = torch.eye(size, dtype=z.dtype, device=z.device)[:, None, :].expand(size, n, size)
        rows = torch.func.vmap(lambda c: pullback(c)[0])(basis)  # (D, n, D): row j of each J
        system = torch.eye(size, dtype=z.dtype, device=z.device) - rows.transpose(0, 1)
        solved, _ = torch.linalg.solve_ex(system, g[..., None])
        return torch.nan_to_num(solved[..., 0], nan=0.0, posinf=0.0, neginf=0.0), size + 1


def default_tol(dtype: torch.dtype) -> float:
    """Return what a fixed point can be asked for: 1e-8 in float64, 1e-5 in float32.

    >>> default_tol(torch.float64), default_tol(torch.float32)
    (1e-08, 1e-05)
    """
    return 1e-8 if torch.finfo(dtype).eps < 1e-12 else 1e-5


@torch.no_grad()
def fixed_point(
    f: Map,
    z0: Tensor,
    *,
    solver: Solver | None = None,
    tol: float | None = None,
    max_steps: int = 500,
    throw: bool = True,
) -> Solution:
    """Solve ``z = f(z)`` for every row of ``z0`` and say how it went.

    ``f`` maps (n, …) to the same shape, row by row. ``z0`` is the start, so a warm start is just
    another ``z0``. A map with a method ``rows(index)`` (see ``Injected``) lets the driver drop
    finished samples once half of them are; otherwise they are only frozen. ``solver`` defaults to
    ``Adaptive()``, ``tol`` to 1e-8 in float64 and 1e-5 in float32. No gradient passes: for that see
    :func:`deqbook.implicit.equilibrium`.

    A sample that has not met ``tol`` in ``max_steps`` steps raises ``NotConverged``; with
    ``throw=False`` its last iterate is returned, with ``converged=False``. ``TypeError`` if ``z0``
    is not a floating-point tensor or ``solver`` not a ``Solver``. ``ValueError`` if ``z0`` is not
    (n, …) or has a NaN, if ``f`` changes shape or dtype or makes a NaN of it, if ``tol`` is below
    what the dtype resolves, or ``max_steps`` below 1.

    >>> z0 = torch.zeros(1, 1).double()
    >>> round(float(fixed_point(torch.cos, z0).z), 3)
    0.739
    >>> round(float(fixed_point(lambda z: torch.relu(0.5 * z + 1), z0, solver=Picard()).z), 3)
    2.0
    """
    solver = check_solver(DEFAULT if solver is None else solver)
    _check_start(z0, max_steps)
    tol = default_tol(z0.dtype) if tol is None else tol
    _check_tol(tol, z0.dtype)
    return solver.solve(f, z0, tol=tol, max_steps=max_steps, throw=throw)


def _drive(
    solver: Iteration, f: Map, z0: Tensor, tol: float, max_steps: int, *, throw: bool
) -> Solution:
    """Iterate, freeze what is finished, drop it once half is, and say how it went."""
    shape, n = z0.shape, z0.shape[0]

    def flat(current: Map) -> Map:
        # Methods see rows (n, D); the user's map sees its own shape.
        return lambda rows: current(rows.reshape(-1, *shape[1:])).reshape(rows.shape[0], -1)

    image = f(z0)
    _check_image(image, z0)
    nfe = 1
    z, fz = z0.reshape(n, -1), image.reshape(n, -1)
    memory: Any = solver.start(z)
    eps = torch.finfo(z.dtype).eps
    ceiling: Tensor | None = None

    # The working arrays (z, fz, active, …) may shrink to unfinished samples; ``where`` says which
    # samples they hold. A finished sample stays as it is, and is put aside only when they shrink.
    aside: tuple[Tensor, Tensor] | None = None
    residual = z.new_full((n,), math.inf)
    converged = torch.zeros(n, dtype=torch.bool, device=z.device)
    steps = torch.zeros(n, dtype=torch.long, device=z.device)
    where = torch.arange(n, device=z.device)
    active, unfinished = torch.ones(n, dtype=torch.bool, device=z.device), n
    before = torch.ones(n, dtype=torch.bool)  # active, as the host knows it
    trace: list[Tensor] = []

    for k in range(max_steps + 1):
        r, size = _distance(fz, z), fz.norm(dim=1)
        relative = r / size.clamp(min=1.0)
        if ceiling is None:
            if not bool(torch.isfinite(r).all()):
                _check_finite(image)
            ceiling = torch.maximum(math.sqrt(tol) * r, tol * size.clamp(min=1.0))
        accept = (relative <= tol) & (r + eps * size <= ceiling)
        going = active & ~accept & torch.isfinite(relative)
        asks = solver.asks(r, memory)
        # The one host synchronisation of the iteration.
        if asks is None:
            alive, accelerated = going.cpu(), True
        else:
            alive, asking = torch.stack((going, going & asks)).cpu()
            accelerated = bool(asking.any())
        if len(where) == n:
            trace.append(relative)
        else:
            trace.append(trace[-1].index_copy(0, where, relative))
        last = k == max_steps or not bool(alive.any())
        if last or int(alive.sum()) < unfinished:
            ended = (before if last else before & ~alive).nonzero()[:, 0].to(z.device)
            index = where[ended]
            converged[index], residual[index] = accept[ended], relative[ended]
            steps[index] = k
            active, before, unfinished = going, alive, int(alive.sum())
        if last:
            break
        if hasattr(f, "rows") and 2 * unfinished <= len(alive):
            keep = alive.nonzero()[:, 0].to(z.device)
            f = f.rows(keep)
            if aside is None:
                aside = z.clone(), fz.clone()
            else:
                aside[0][where], aside[1][where] = z, fz
            z, fz, where, active = z[keep], fz[keep], where[keep], active[keep]
            ceiling, r, before = ceiling[keep], r[keep], before[before]
            memory = type(memory)(*(p[keep] if isinstance(p, Tensor) else p for p in memory))
        if accelerated:
            proposal, memory, calls = solver.step(flat(f), z, fz, memory)
        else:
            proposal, memory, calls = fz, solver.plain(z, fz, r, memory), 0
        z = proposal if unfinished == len(where) else torch.where(active[:, None], proposal, z)
        fz = flat(f)(z)
        nfe += 1 + calls

    if aside is not None:
        aside[0][where], aside[1][where] = z, fz
        z, fz = aside
    elif nfe == 1:
        z = z.clone()  # never hand out the caller's own start
    residual = torch.where(torch.isfinite(residual), residual, math.inf)
    found = Solution(
        z.reshape(shape),
        converged,
        residual,
        steps,
        nfe,
        torch.nan_to_num(torch.stack(trace), nan=math.inf, posinf=math.inf),
        type(solver).__name__,
        fz.reshape(shape),
    )
    if throw and not bool(converged.all()):
        raise NotConverged(_explain(found, tol, max_steps), found)
    return found


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the distance of every two rows; of a large batch no whole difference is stored."""
    if a.numel() <= PIECE:
        return (a - b).norm(dim=1)
    rows = max(1, PIECE // a.shape[1])
    return torch.cat([(p - q).norm(dim=1) for p, q in zip(a.split(rows), b.split(rows))])


def _explain(found: Solution, tol: float, max_steps: int) -> str:
    """Say what happened and what to try, from the trace of the worst sample."""
    n, bad = len(found.converged), int((~found.converged).sum())
    worst = int(torch.where(found.converged, -1.0, found.residual.double()).argmax())
    curve = found.trace[:, worst]
    head = (
        f"{found.method} did not converge for {bad} of {n} samples: worst residual "
        f"{float(curve[-1]):.2e} against tol {tol:.1e} after {int(found.steps[worst])} steps. "
    )
    size = float(found.z[worst].norm())
    if math.isinf(float(curve[-1])) or size > 1e8:
        return head + (
            f"The state ran away (norm {size:.1e}): the map may have no fixed point. "
            "Ask deqbook.wellposed.certify(model); shrink the weights or the scale gamma."
        )
    half = float(curve[len(curve) // 2])
    if float(curve[-1]) < 0.5 * half:
        rate = (float(curve[-1]) / half) ** (1 / max(1, len(curve) - len(curve) // 2))
        more = math.ceil(math.log(tol / float(curve[-1])) / math.log(rate))
        return head + f"It was still falling: about {more} more steps (max_steps={max_steps})."
    return head + (
        "It has stalled. Try Picard(damping=0.5), Newton(), a monotone splitting "
        "(deqbook.splitting), or a tolerance the precision can reach; "
        "deqbook.wellposed.certify(model) says whether a fixed point is guaranteed."
    )


def all_finite(t: Tensor) -> bool:
    """One pass over the data where all is well: a sum is finite only if every entry is."""
    return math.isfinite(float(t.sum())) or bool(torch.isfinite(t).all())


def check_solver(solver: object) -> Solver:
    """Return a solver as it is; ``TypeError`` for what is none, a class without brackets say.

    >>> check_solver(Picard())
    Picard(damping=1.0)
    """
    if not isinstance(solver, Solver):
        made = f"; write {solver.__name__}()" if isinstance(solver, type) else ""
        raise TypeError(
            f"solver must be a Solver, Anderson() or PeacemanRachford() say, got {solver!r}{made}."
        )
    return solver


def _check_start(z0: Tensor, max_steps: int) -> None:
    if not isinstance(z0, Tensor) or not z0.is_floating_point():
        kind = f"dtype {z0.dtype}" if isinstance(z0, Tensor) else type(z0).__name__
        raise TypeError(f"z0 must be a real floating-point tensor, got {kind}.")
    if z0.ndim < 2 or z0.shape[0] == 0:
        raise ValueError(
            f"z0 must be (n, …) with one row per sample, got shape {tuple(z0.shape)}; "
            "for a single state pass z0[None]."
        )
    if not all_finite(z0):
        raise ValueError("z0 has NaN or infinite entries; start from zeros or a finite state.")
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}.")


def _check_tol(tol: float, dtype: torch.dtype) -> None:
    if not 0 < tol < 1:
        raise ValueError(f"tol must be in (0, 1), got {tol!r}.")
    least = 4 * torch.finfo(dtype).eps
    if tol < least:
        raise ValueError(
            f"tol={tol:.1e} is below what {dtype} resolves ({least:.1e}); raise tol or use float64."
        )


def _check_image(image: Tensor, z0: Tensor) -> None:
    if not isinstance(image, Tensor) or image.shape != z0.shape:
        seen = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise ValueError(
            f"the map must keep the shape: f(z0) has {seen}, z0 has {tuple(z0.shape)}."
        )
    if image.dtype != z0.dtype:
        raise ValueError(
            f"the map must keep the dtype: f(z0) has {image.dtype}, z0 has {z0.dtype}; "
            "convert the weights, the input or z0."
        )


def _check_finite(image: Tensor) -> None:
    if not all_finite(image):
        raise ValueError(
            "f(z0) has NaN or infinite entries: a weight or an input is NaN or infinite."
        )
