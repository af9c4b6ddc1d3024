r"""One training step side by side with torchdeq and optimistix: the loss and all its gradients.

``python benchmarks/training_step.py`` trains the ReLU implicit network of gao2022 (n = 1000,
d = 784, m = 1000, γ = 0.1, float32) by gradient descent and takes some minutes. After a few
steps, which are not like those that follow, the race begins. At every step each contestant computes
the loss :math:`\tfrac12\|\hat y-y\|^2` and the gradients of W, U, a and c at the same weights, to a
tolerance of 1e-6. The contestants take turns, so a busy moment hits all alike. Medians over the
steps are shown; for the ratio to the reference, which is taken step by step, the quartiles as well.

The norm of W is known (0.2): an iterate is good enough when the *next* one is sure to meet the
tolerance, by the contraction. Everyone who iterates plainly and returns that next one is told to
stop there, which saves the product that would only verify.

Everyone starts from the best guess of the equilibrium that the steps before allow,
:math:`\sigma(Q+2H_t-H_{t-1})` with :math:`H=ZW^\top`. It is made for them, off the clock. Deqbook's
closed form makes its own, on the clock, and alone is able to start its adjoint equation so, too.

Nobody is believed: after the race the gradients are compared with the closed form in float64 at
1e-10, and a contestant that is off by more than 1e-4 is marked and does not count. That is done at
a few steps that lie apart, and the best of them counts: among a million units there is often one so
close to its kink that single precision puts it on the other side, and then everybody is off.

By **mini-batches** of 128 with Adam the race begins with the first step, when nobody has a past.
Everyone starts from the feedback that each sample had at its last visit, an epoch ago. It is
handed to the peers off the clock; WarmStart and the closed form look it up on the clock. Times are
those of all steps together. Gradients are compared at every step. There, too, a unit close to its
kink may be on the other side, which costs everyone some steps; whoever is off by more than 1e-4 at
more steps than the closed form, by a tenth of all, does not count.

The **floor** is the time of the matrix products that plain iteration cannot avoid: X Uᵀ once, one
product for every evaluation of the cell and of the adjoint map (each from its warm start; finished
samples do not count), and one for each of the gradients of W and U. Everybody has the same number
of threads. Without torchdeq or optimistix their rows are skipped.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from shared import (
    Clock,
    circumstances,
    clock_for,
    installed,
    load,
    parser,
    take_threads,
    write_receipt,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from deqbook.implicit import IFT
from deqbook.models import Feedback, Gradient, NormBound, ReLUImplicit, WarmStart, gradient
from deqbook.runtime import generator, normal
from deqbook.solvers import Anderson, Injected, Picard, Solver, fixed_point

try:
    from torchdeq import get_deq
except ImportError:
    get_deq = None

Grads = dict[str, Tensor]
Step = Callable[[Tensor], tuple[float, Grads]]

TOL, AGREE = 1e-6, 1e-4
RATE = 5e-3  # about the largest step of gradient descent that is stable here
NAMES = ("W", "U", "a", "c")
REFERENCE = "deqbook closed form, Picard"
SETTLE = 40  # steps before the race: in the first ones the errors that fall fastest still move
WARM_UP = 2  # steps in which code is loaded and compiled and a past to go by is made; not timed
CHECKS, BETWEEN = 7, 3  # how often gradients are compared with the truth, and steps in between
COMMAND = "python benchmarks/training_step.py --json FILE"
BATCH, MANY, EPOCHS, ADAM = 128, 1024, 3, 1e-3  # mini-batches: sizes, epochs, Adam's step
FEWER = 0.1  # of the steps by mini-batches at which a row may be off where the reference is not
BLIND = 1  # forward steps for the solver of torchdeq that has no stopping rule: as many as needed


# -- the problem -----------------------------------------------------------------------------------


@dataclass
class Problem:
    """Unit-norm inputs, Gaussian labels, and one model that all contestants share."""

    n: int = 1000
    d: int = 784
    m: int = 1000
    gamma: float = 0.1
    seed: int = 0
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)
    model: ReLUImplicit = field(init=False)
    bound: NormBound = field(init=False)
    past: tuple[Feedback, ...] = ()  # of the last two steps

    def __post_init__(self) -> None:
        """Draw the data and the weights."""
        g = generator(self.seed)
        x = normal(self.n, self.d, g=g)
        self.x = (x / x.norm(dim=1, keepdim=True)).float()
        self.y = normal(self.n, g=g).float()
        self.model = ReLUImplicit.init(
            self.m, self.d, gamma=self.gamma, seed=self.seed, dtype=torch.float32
        )
        self.bound = NormBound.at(self.model.W)

    def contraction(self) -> float:
        """Return a bound of the norm of the matrix that multiplies the state."""
        return self.model.scale * self.bound(self.model.W)

    @property
    def start(self) -> Feedback | None:
        """Return the best guess of the next feedback."""
        if len(self.past) < 2:
            return self.past[-1] if self.past else None
        before, last = self.past
        return last.ahead(before)

    def guess(self) -> Tensor:
        """Return where everyone starts at the weights of the moment."""
        q, start = self.model.inject(self.x).detach(), self.start
        return torch.relu(q if start is None else q + start.state)

    def truth(self) -> tuple[float, Grads]:
        """Return the loss and its gradients at the weights of the moment, in float64 at 1e-10."""
        W, U, a, c = (getattr(self.model, k).detach().double() for k in NAMES)
        exact = ReLUImplicit(W, U, a, c, self.gamma)
        found = gradient(exact, self.x.double(), self.y.double(), tol=1e-10)
        return found.loss, dict(found.grads)

    @torch.no_grad()
    def descend(self, grads: Grads, feedback: Feedback) -> None:
        """Take one step of gradient descent."""
        for name, grad in grads.items():
            getattr(self.model, name).sub_(RATE * grad)
        self.past = (*self.past[-1:], feedback)

    def settle(self, steps: int) -> None:
        """Train without a race."""
        for _ in range(steps):
            found = gradient(self.model, self.x, self.y, z0=self.guess(), solver=Picard(), tol=TOL)
            assert found.feedback is not None
            self.descend(dict(found.grads), found.feedback)


def disagreement(grads: Grads, truth: Grads) -> float:
    """Return the largest relative error of a parameter's gradient."""
    return max(float((grads[k].double() - t).norm() / t.norm()) for k, t in truth.items())


# -- the contestants -------------------------------------------------------------------------------


def closed_form(problem: Problem, solver: Solver) -> Step:
    how: dict[str, Any] = {"solver": solver, "adjoint_solver": solver, "tol": TOL}
    before = last = None

    def step(z0: Tensor) -> tuple[float, Grads]:  # makes its own guess
        nonlocal before, last
        how["contraction"] = problem.contraction()
        now = gradient(problem.model, problem.x, problem.y, last=last, before=before, **how)
        before, last = last, now
        return now.loss, dict(now.grads)

    return step


def collect(problem: Problem, output: Tensor) -> tuple[float, Grads]:
    loss = 0.5 * (output - problem.y).pow(2).sum()
    weights = [getattr(problem.model, k) for k in NAMES]
    return float(loss.detach()), dict(zip(NAMES, torch.autograd.grad(loss, weights)))


def plain(problem: Problem) -> Step:
    """The step of someone who read no further: no start, the default solver."""
    return lambda z0: collect(problem, problem.model(problem.x, tol=TOL))


def autograd(problem: Problem, solver: Solver) -> Step:
    how = {"solver": solver, "tol": TOL, "adjoint": IFT(solver, TOL)}
    return lambda z0: collect(problem, problem.model(problem.x, z0, **how))


def warm(problem: Problem, solver: Solver | None) -> Step:
    net = WarmStart(problem.model)  # makes its own guess, on the clock
    how = {"tol": TOL} if solver is None else {"solver": solver, "tol": TOL, "adjoint": IFT(solver)}
    return lambda z0: collect(problem, net(problem.x, **how))


def cell(problem: Problem) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the features and the map, recorded by autograd: what a user of a library writes."""
    model = problem.model
    q = model.inject(problem.x)
    return q, lambda z: torch.relu(torch.addmm(q, z, model.W.mT, alpha=model.scale))


def unrolled(problem: Problem, steps: int) -> Step:
    def step(z0: Tensor) -> tuple[float, Grads]:
        q, f = cell(problem)
        z = z0
        for _ in range(steps):
            z = f(z)
        return collect(problem, problem.model.readout(z, q))

    return step


def torchdeq(problem: Problem, solver: str, **options: Any) -> Step:
    # It returns the image of the last iterate, so it may stop early, as the contraction allows.
    # The state has norm below 1, so the absolute criterion is the easier one; a cotangent is large,
    # and in float32 only the relative one can be met.
    settings = {
        "f_solver": solver,
        "b_solver": solver,
        "f_tol": TOL / problem.contraction(),
        "b_tol": TOL / problem.contraction(),
        "f_stop_mode": "abs",
        "b_stop_mode": "rel",
        "f_max_iter": 100,
        "b_max_iter": 100,
    }
    deq = get_deq(**settings | options)

    def step(z0: Tensor) -> tuple[float, Grads]:
        q, f = cell(problem)
        return collect(problem, problem.model.readout(deq(f, z0)[0][-1], q))

    return step


def optimistix(problem: Problem, restart: int) -> Step:
    import jax
    import jax.numpy as jnp
    import lineax
    import optimistix as optx

    scale, root = problem.model.scale, math.sqrt(problem.m)
    # The default linear solver would form a matrix of (nm)² entries, BiCGStab breaks down here, and
    # GMRES always completes its cycle: the default of 20 steps takes eight times as long.
    solver = lineax.GMRES(rtol=10 * TOL, atol=10 * TOL, restart=restart)
    adjoint = optx.ImplicitAdjoint(linear_solver=solver)
    picard = optx.FixedPointIteration(rtol=TOL, atol=TOL)

    def f(z: Any, theta: Any) -> Any:
        q, W = theta
        return jax.nn.relu(q + scale * (z @ W.T))

    def loss(theta: Any, x: Any, y: Any, z0: Any) -> Any:
        q = jax.nn.relu(x @ theta["U"].T) / root
        z = optx.fixed_point(f, picard, z0, (q, theta["W"]), adjoint=adjoint, max_steps=200).value
        return 0.5 * jnp.sum((z @ theta["a"] + q @ theta["c"] - y) ** 2)

    both = jax.jit(jax.value_and_grad(loss))

    def step(z0: Tensor) -> tuple[float, Grads]:
        theta = {k: jnp.asarray(getattr(problem.model, k).detach().numpy()) for k in NAMES}
        given = (jnp.asarray(t.numpy()) for t in (problem.x, problem.y, z0))
        value, grads = jax.block_until_ready(both(theta, *given))
        return float(value), {k: torch.from_dlpack(g) for k, g in grads.items()}

    return step


def contestants(problem: Problem, jax_too: bool) -> dict[str, Step]:
    rows = {
        REFERENCE: closed_form(problem, Picard()),
        "deqbook closed form, Anderson": closed_form(problem, Anderson()),
        "deqbook autograd, WarmStart, Picard": warm(problem, Picard()),
        "deqbook autograd, WarmStart": warm(problem, None),
        "deqbook autograd, plain": plain(problem),
        "deqbook autograd, Picard": autograd(problem, Picard()),
        "deqbook autograd, Anderson": autograd(problem, Anderson()),
    }
    if get_deq is not None:
        rows |= {
            "torchdeq fixed_point_iter": torchdeq(problem, "fixed_point_iter", ift=True),
            "torchdeq fixed_point_iter, hook": torchdeq(problem, "fixed_point_iter", hook_ift=True),
            "torchdeq anderson, hook": torchdeq(problem, "anderson", hook_ift=True),
            # The simple one cannot serve backward: it hands a damping to a map without one.
            f"torchdeq simple, {BLIND} step, hook": torchdeq(
                problem,
                "simple_fixed_point_iter",
                b_solver="fixed_point_iter",
                hook_ift=True,
                f_max_iter=BLIND,
            ),
        }
    if jax_too:
        rows["optimistix, GMRES(2) adjoint"] = optimistix(problem, 2)
    return rows | {f"unrolled, {k} steps": unrolled(problem, k) for k in (4, 12)}


# -- the floor -------------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """Counts the matrix products of torch, in units of one product (n, m) by (m, m)."""

    def __init__(self, problem: Problem):
        super().__init__()
        self.unit, self.total = len(problem.x) * problem.m**2, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Add up mm and addmm; a product of a matrix and a vector is not worth counting."""
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm"):
            left, right = args[-2:]
            self.total += left.shape[0] * left.shape[1] * right.shape[1] / self.unit
        return func(*args, **kwargs or {})


def evaluations(problem: Problem, z0: Tensor) -> tuple[tuple[float, float], Feedback]:
    """Return how many products with W plain iteration needs, forward and adjoint; the feedback.

    Both start as deqbook's closed form does. A sample needs its products until the next iterate is
    sure to meet the tolerance, and no longer.
    """
    model, q, a = problem.model, problem.model.inject(problem.x).detach(), problem.model.a.detach()
    W = model.scale * model.W.detach()
    how = {"solver": Picard(), "tol": TOL / problem.contraction()}
    state = fixed_point(model.map(q), z0, **how)
    h = state.image @ W.mT
    D = (q + h > 0).float()
    start = D * a if problem.start is None else D * a + problem.start.adjoint
    adjoint = fixed_point(Injected(lambda v, D: D * (a + v @ W), D), start, **how)
    forward, backward = (float((s.steps + 1.0).mean()) for s in (state, adjoint))
    return (forward, backward), Feedback(h, adjoint.image - D * a)


def products(problem: Problem) -> dict[str, Callable[[], Tensor]]:
    """Return the five products, each with the layout that the step has."""
    W, U, x = problem.model.W.detach(), problem.model.U.detach(), problem.x
    z, v = (normal(problem.n, problem.m, g=generator(k)).float() for k in (1, 2))
    out, wide, flat = torch.empty_like(z), torch.empty_like(W), torch.empty_like(U)
    return {
        "XUᵀ": lambda: torch.mm(x, U.mT, out=out),
        "ZWᵀ": lambda: torch.mm(z, W.mT, out=out),
        "VW": lambda: torch.mm(v, W, out=out),
        "VᵀZ": lambda: torch.mm(v.mT, z, out=wide),
        "VᵀX": lambda: torch.mm(v.mT, x, out=flat),
    }


# -- the race --------------------------------------------------------------------------------------


def race(problem: Problem, rows: dict[str, Step], steps: int, clock: Clock) -> dict[str, Any]:
    """Let everyone take every training step, in turns. The last ones are checked, not timed."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    single: dict[str, list[float]] = {name: [] for name in products(problem)}
    counts: list[tuple[float, float]] = []

    def timed(run: Callable[[], Any], log: list[float]) -> Any:
        start = clock()
        result = run()
        log.append(clock() - start)
        return result

    wake = products(problem)["ZWᵀ"]
    problem.settle(SETTLE)
    for _ in range(WARM_UP + steps):
        z0 = problem.guess()
        for name, step in rows.items():
            time.sleep(0.02)  # let the threads of the one before go to sleep,
            wake()  # and let ours get up: in training a step follows on a step
            _, grads = timed(partial(step, z0), times[name])
            if name == REFERENCE:
                descent = grads
        for name, gemm in products(problem).items():
            gemm()
            timed(gemm, single[name])
        count, feedback = evaluations(problem, z0)
        counts.append(count)
        problem.descend(descent, feedback)
    work: dict[str, float] = {}
    errors: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(CHECKS):
        z0 = problem.guess()
        loss, truth = problem.truth()
        for name, step in rows.items():
            with Products(problem) as counter:
                _, grads = step(z0)
            errors[name].append(disagreement(grads, truth))
            if "optimistix" not in name:  # its products are not torch's
                work.setdefault(name, counter.total)
        problem.descend(truth, evaluations(problem, z0)[1])
        for _ in range(BETWEEN):  # whoever remembers must see these, too
            z0 = problem.guess()
            for name in rows:
                if "closed form" in name or "WarmStart" in name:
                    _, grads = rows[name](z0)
            problem.descend(grads, evaluations(problem, z0)[1])
    one = {name: statistics.median(t[WARM_UP:]) for name, t in single.items()}
    forward, adjoint = (statistics.fmean(c) for c in zip(*counts[WARM_UP:]))
    floor = one["XUᵀ"] + forward * one["ZWᵀ"] + adjoint * one["VW"] + one["VᵀZ"] + one["VᵀX"]
    error = {name: min(e) for name, e in errors.items()}
    return {
        "loss": loss,
        "milliseconds": {name: 1e3 * statistics.median(t[WARM_UP:]) for name, t in times.items()},
        "ratio": {
            name: quartiles(t[WARM_UP:], times[REFERENCE][WARM_UP:]) for name, t in times.items()
        },
        "error": error,
        "counts": {name: e <= AGREE for name, e in error.items()},
        "products": work,
        "product_milliseconds": {name: 1e3 * t for name, t in one.items()},
        "evaluations": {"forward": forward, "adjoint": adjoint},
        "floor_milliseconds": 1e3 * floor,
    }


def quartiles(times: list[float], base: list[float]) -> list[float]:
    """Return the three quartiles of the ratio, step by step."""
    ratios = [t / b for t, b in zip(times, base)]
    return statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else 3 * ratios


def race_lines(result: dict[str, Any]) -> list[str]:
    floor = result["floor_milliseconds"]
    lines = [
        f"  {'':36}{'ms':>5}{'÷ ref (quartiles)':>20}{'÷ floor':>9}{'products':>10}{'error':>8}"
    ]
    for name, ms in result["milliseconds"].items():
        work = f"{result['products'][name]:.1f}" if name in result["products"] else "-"
        error = result["error"][name]
        wrong = "" if result["counts"][name] else "  not exact, does not count"
        low, middle, high = result["ratio"][name]
        ratios = f"{middle:>8.2f} ({low:.2f}-{high:.2f}){ms / floor:>8.2f}"
        lines.append(f"  {name:36}{ms:>5.0f}{ratios}{work:>10}{error:>8.0e}{wrong}")
    k = result["evaluations"]
    lines.append(
        f"  floor {floor:.0f} ms: XUᵀ, {k['forward']:.1f} ZWᵀ, {k['adjoint']:.1f} VW, VᵀZ and VᵀX; "
        + ", ".join(f"{name} {ms:.1f} ms" for name, ms in result["product_milliseconds"].items())
    )
    return lines


# -- mini-batches ----------------------------------------------------------------------------------


@dataclass
class MiniBatches(Problem):
    """The same network; ``x`` and ``y`` are those of the batch, ``everyone`` holds them all."""

    n: int = MANY
    everyone: tuple[Tensor, Tensor] = field(init=False)
    rows: Tensor = field(init=False)
    kept: Feedback = field(init=False)  # of every sample, zero before its first visit

    def __post_init__(self) -> None:
        """Draw, and begin with the first samples."""
        super().__post_init__()
        self.everyone, nothing = (self.x, self.y), self.x.new_zeros(self.n, self.m)
        self.kept = Feedback(nothing, nothing.clone())
        self.turn_to(torch.arange(BATCH))

    def turn_to(self, rows: Tensor) -> None:
        """Make these samples the batch."""
        self.rows, (x, y) = rows, self.everyone
        self.x, self.y = x[rows], y[rows]

    @property
    def start(self) -> Feedback:
        """Return the feedback of the batch's samples as they were visited last."""
        return Feedback(self.kept.state[self.rows], self.kept.adjoint[self.rows])

    def keep(self, feedback: Feedback) -> None:
        """Remember the feedback of the batch's samples."""
        self.kept.state[self.rows], self.kept.adjoint[self.rows] = feedback.state, feedback.adjoint


def closed_form_by_batches(problem: MiniBatches) -> Step:
    how: dict[str, Any] = {"solver": Picard(), "adjoint_solver": Picard(), "tol": TOL}

    def step(z0: Tensor) -> tuple[float, Grads]:  # looks its own start up
        last = Gradient(0.0, problem.y, {}, z0, feedback=problem.start)
        how["contraction"] = problem.contraction()
        now = gradient(problem.model, problem.x, problem.y, last=last, **how)
        assert now.feedback is not None
        problem.keep(now.feedback)
        return now.loss, dict(now.grads)

    return step


def mini_contestants(problem: MiniBatches, jax_too: bool) -> dict[str, Step]:
    rows = {
        "deqbook autograd, WarmStart, Picard": warm(problem, Picard()),
        "deqbook autograd, WarmStart": warm(problem, None),
        "deqbook autograd, plain": plain(problem),
        "deqbook autograd, Picard": autograd(problem, Picard()),
    }
    if get_deq is not None:
        iterate = {"b_solver": "fixed_point_iter", "hook_ift": True}
        rows |= {
            "torchdeq fixed_point_iter": torchdeq(problem, "fixed_point_iter", ift=True),
            "torchdeq fixed_point_iter, hook": torchdeq(problem, "fixed_point_iter", hook_ift=True),
            "torchdeq anderson, hook": torchdeq(problem, "anderson", hook_ift=True),
        } | {
            f"torchdeq simple, {k} steps, hook": torchdeq(
                problem, "simple_fixed_point_iter", f_max_iter=k, **iterate
            )
            for k in (3, 4, 5)
        }
    if jax_too:
        rows["optimistix, GMRES(2) adjoint"] = optimistix(problem, 2)
    rows |= {f"unrolled, {k} steps": unrolled(problem, k) for k in (4, 6, 12)}
    # The reference comes last: it renews the feedback that the starts of the others are made of.
    return rows | {REFERENCE: closed_form_by_batches(problem)}


def training(
    problem: MiniBatches, rows: dict[str, Step], clock: Clock, seed: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Train for some epochs; return the seconds of every step, and the errors."""
    adam = torch.optim.Adam(problem.model.parameters(), lr=ADAM)
    times: dict[str, list[float]] = {name: [] for name in rows}
    errors: dict[str, list[float]] = {name: [] for name in rows}
    wake = products(problem)["ZWᵀ"]
    names = [name for name in rows if name != REFERENCE]
    g = generator(seed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(problem.n, generator=g).split(BATCH):
            problem.turn_to(batch)
            z0 = problem.guess()
            truth = problem.truth()[1]
            names = [*names[1:], names[0]]  # nobody always follows on the same
            for name in [*names, REFERENCE]:
                wake()
                start = clock()
                _, grads = rows[name](z0)
                times[name].append(clock() - start)
                errors[name].append(disagreement(grads, truth))
            for name, grad in grads.items():
                getattr(problem.model, name).grad = grad
            adam.step()
    return times, errors


def mini_race(seeds: range, jax_too: bool, clock: Clock) -> dict[str, Any]:
    """Let everyone take every step of several trainings; compare all gradients with the truth."""
    totals: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    for seed in seeds:
        practice, problem = MiniBatches(seed=seed), MiniBatches(seed=seed)
        for step in mini_contestants(practice, False).values():  # loads code
            step(practice.guess())
        rows = mini_contestants(problem, jax_too)
        for name, step in rows.items():
            if "optimistix" in name:  # compiles; there is nothing that it could remember
                step(problem.guess())
        times, found = training(problem, rows, clock, seed)
        for name, steps in times.items():
            errors.setdefault(name, []).extend(found[name])
            totals.setdefault(name, []).append(1e3 * statistics.fmean(steps))
            ratios.setdefault(name, []).append(sum(steps) / sum(times[REFERENCE]))
    within = {name: sum(e <= AGREE for e in all_) / len(all_) for name, all_ in errors.items()}
    return {
        "products": mini_products(seeds[0]),
        "milliseconds": {name: statistics.median(t) for name, t in totals.items()},
        "ratio": {name: quartiles(r, [1.0] * len(r)) for name, r in ratios.items()},
        "error": {name: statistics.median(e) for name, e in errors.items()},
        "within": within,
        "counts": {name: share >= within[REFERENCE] - FEWER for name, share in within.items()},
    }


def mini_products(seed: int) -> dict[str, float]:
    """Return the matrix products a step of the first training, which is repeated for that."""
    problem = MiniBatches(seed=seed)
    with Products(problem) as counter:  # as a clock
        counts, _ = training(problem, mini_contestants(problem, False), lambda: counter.total, seed)
    return {name: statistics.fmean(steps) for name, steps in counts.items()}


def mini_lines(result: dict[str, Any]) -> list[str]:
    lines = [
        f"  {'':36}{'ms a step':>10}{'÷ ref (quartiles)':>20}{'products':>10}"
        f"{'error':>8}{'within':>8}"
    ]
    for name, ms in sorted(result["milliseconds"].items(), key=lambda item: item[1]):
        low, middle, high = result["ratio"][name]
        error, within = result["error"][name], result["within"][name]
        wrong = "" if result["counts"][name] else "  not exact, does not count"
        work = f"{result['products'][name]:.1f}" if name in result["products"] else "-"
        ratios = f"{middle:>8.2f} ({low:.2f}-{high:.2f})"
        lines.append(f"  {name:36}{ms:>10.1f}{ratios}{work:>10}{error:>8.0e}{within:>8.0%}{wrong}")
    return lines


# -- the command -----------------------------------------------------------------------------------


def runs_of(group: str, result: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    """Return a line for each row of a race, as a receipt has it."""
    return [
        {
            "group": group,
            "case": {"row": row},
            "result": {k: result[k][row] for k in names if row in result[k]},
        }
        for row in result["milliseconds"]
    ]


def main(arguments: list[str] | None = None) -> int:
    options = parser("A training step side by side with two peers.")
    options.add_argument("--steps", type=int, default=21, help="steps of the full batch (21)")
    options.add_argument("--only", choices=("full", "mini"), help="one of the two races")
    options.add_argument("--rounds", type=int, default=5, help="trainings by mini-batches (5)")
    given = options.parse_args(arguments)
    if min(given.steps, given.threads, given.rounds) < 1:
        options.error("--steps, --rounds and --threads must be at least 1")
    take_threads(given.threads)
    before = load()
    jax_too = all(installed(p) for p in ("jax", "optimistix"))
    if get_deq is None:
        print("torchdeq is not installed: its rows are skipped (pip install 'deqbook[bench]').")
    if not jax_too:
        print("optimistix is not installed: its rows are skipped (pip install 'deqbook[bench]').")

    clock = clock_for(given.threads)

    def keep(part: str, result: dict[str, Any], more: dict[str, Any], *names: str) -> None:
        if given.json:
            where = circumstances(given.threads, before) | more
            rows = runs_of(part, result, "milliseconds", "ratio", "error", "counts", *names)
            write_receipt(given.json, COMMAND, where, rows, part=part)

    if given.only != "mini":
        problem = Problem(seed=given.seed)
        print(
            f"One training step: n = {problem.n}, d = {problem.d}, m = {problem.m}, float32, "
            f"tolerance {TOL:.0e}, threads: {given.threads}, load {before}; "
            f"median of {given.steps} steps."
        )
        full = race(problem, contestants(problem, jax_too), given.steps, clock)
        print(*race_lines(full), sep="\n", flush=True)
        more = {k: full[k] for k in ("floor_milliseconds", "evaluations")}
        keep("full batch", full, more, "products")
    if given.only != "full":
        print(
            f"\nMini-batches of {BATCH} with Adam, {EPOCHS} epochs of {MANY} samples from the "
            f"first step on; the time of all steps together, median of {given.rounds} trainings."
        )
        seeds = range(given.seed, given.seed + given.rounds)
        mini = mini_race(seeds, jax_too, clock)
        print(*mini_lines(mini), sep="\n")
        keep("mini-batches", mini, {}, "within", "products")
    return 0


if __name__ == "__main__":
    sys.exit(main())
