r"""Solvers side by side with torchdeq: one run, one machine, the same measuring stick for all.

``python benchmarks/solvers.py`` prints three tables and takes some minutes:

1. evaluations of ``f`` until every sample of the batch has met
   :math:`\|f(z)-z\|\le10^{-10}\max(1,\|f(z)\|)`, and the time relative to deqbook's Anderson; then,
   for every problem and solver of deqbook, both relative to the best solver in hindsight;
2. the spectral radius of a scaled rotation;
3. the cost of an Anderson step in units of one matrix product.

A contestant never judges itself: the map is wrapped, and the wrapper measures every point at which
it is evaluated, ends the run when the last sample has met the tolerance, and takes its own time
off the clock. A sample counts as soon as it has met it once. Times are processor times on one
thread; only their ratios are shown. Without torchdeq its rows are skipped.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from shared import circumstances, load, parser, take_threads, write_receipt
from torch import Tensor

from deqbook.dynamics import gradient_descent
from deqbook.linalg import spectral_radius
from deqbook.models import MonDEQ, ReLUImplicit
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Adaptive, Anderson, Broyden, Newton, Picard, Solver, fixed_point

try:
    from torchdeq.loss import power_method
    from torchdeq.solver import get_solver
except ImportError:
    get_solver = None

Map = Callable[..., Tensor]
Solve = Callable[[Map, Tensor], Any]

TOL = 1e-10
REFERENCE, OURS = "deqbook Anderson", "deqbook "
COMMAND = "python benchmarks/solvers.py --json FILE"


# -- the problems ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A family of maps ``f(z) = activation(z Wᵀ + q)``, one for every seed."""

    title: str
    weight: Callable[[int, torch.Generator], Tensor]
    activation: Callable[[Tensor], Tensor] = torch.tanh
    q: float = 0.1

    def make(self, seed: int, n: int = 64, m: int = 200) -> tuple[Map, Tensor]:
        """Return the map of this seed and the start ``z0 = 0``."""
        g = generator(seed)
        Wt = self.weight(m, g).T.contiguous()
        q = self.q * normal(n, m, g=g)
        return lambda z: self.activation(z @ Wt + q), torch.zeros_like(q)


def symmetric(low: float, high: float) -> Callable[[int, torch.Generator], Tensor]:
    def draw(m: int, g: torch.Generator) -> Tensor:
        basis, _ = torch.linalg.qr(normal(m, m, g=g))
        return basis * torch.linspace(low, high, m, dtype=basis.dtype) @ basis.T

    return draw


def gaussian(norm: float) -> Callable[[int, torch.Generator], Tensor]:
    def draw(m: int, g: torch.Generator) -> Tensor:
        W = normal(m, m, g=g)
        return W * norm / torch.linalg.matrix_norm(W, 2)

    return draw


STIFF = Problem("stiff: tanh, symmetric W, eigenvalues in [0, 0.99]", symmetric(0.0, 0.99))
VARIANTS = [
    Problem("both signs: tanh, symmetric W, eigenvalues in [-0.99, 0.99]", symmetric(-0.99, 0.99)),
    Problem("tanh, Gaussian W of norm 0.99", gaussian(0.99)),
    Problem("relu, Gaussian W of norm 0.95", gaussian(0.95), torch.relu),
    Problem("stiff, with q ten times larger", symmetric(0.0, 0.99), q=1.0),
]


@dataclass(frozen=True)
class Given:
    """Maps that are not of that form: ``draw(seed)`` returns one and its start."""

    title: str
    draw: Callable[[int], tuple[Map, Tensor]]

    def make(self, seed: int) -> tuple[Map, Tensor]:
        """Return the map of this seed and the start."""
        return self.draw(seed)


def convolutional_opteq(seed: int) -> tuple[Map, Tensor]:
    """Return z = Kᵀ * relu(K * z + q), a tied convolution on a torus, scaled to norm 0.98."""
    g, side = generator(seed), 12
    K, q = normal(6, 4, 3, 3, g=g), normal(16, 6, side, side, g=g)
    # On a torus the norm is that of the symbol at the worst frequency.
    symbol = torch.fft.fft2(K, s=(side, side)).permute(2, 3, 0, 1)
    K = 0.98 * K / float(torch.linalg.matrix_norm(symbol, 2).max())

    def f(flat: Tensor) -> Tensor:
        z = torch.nn.functional.pad(flat.reshape(16, 4, side, side), (1, 1, 1, 1), mode="circular")
        h = torch.relu(torch.nn.functional.conv2d(z, K) + q)
        h = torch.nn.functional.pad(h, (1, 1, 1, 1), mode="circular")
        return torch.nn.functional.conv2d(h, K.transpose(0, 1).flip(2, 3)).flatten(1)

    return f, q.new_zeros(16, 4 * side * side)


def barely_monotone(seed: int) -> tuple[Map, Tensor]:
    """Return the cell of a monotone DEQ with μ = 0.05."""
    model = MonDEQ.init(200, 20, mu=0.05, seed=seed)
    q = model.inject(sphere(64, 20, seed)).detach()
    return model.map(q), torch.zeros_like(q)


def trained_relu(seed: int) -> tuple[Map, Tensor]:
    """Return the cell of a ReLU network after a hundred steps of gradient descent."""
    model, X = ReLUImplicit.init(200, 20, gamma=0.45, seed=seed), sphere(64, 20, seed)
    y = normal(64, g=generator(seed + 1))
    run = gradient_descent(model, X, y, step=2e-3, epochs=100)
    run.restore(model)
    q = model.inject(X).detach()
    return model.map(q), torch.zeros_like(q)


OTHERS = [
    Given("tied convolution of norm 0.98, relu", convolutional_opteq),
    Given("monotone DEQ, μ = 0.05", barely_monotone),
    Given("ReLU network, trained", trained_relu),
]


# -- the measuring stick ---------------------------------------------------------------------------


class _Over(Exception):
    """Ends a run from inside the map."""


class Metered:
    """A map that counts its calls, watches the residuals and knows when the race is over."""

    def __init__(self, f: Map, limit: int):
        self.f, self.limit = f, limit
        self.calls, self.own_time = 0, 0.0
        self.best: Tensor | None = None  # (n,) smallest residual that each sample has had

    def __call__(self, z: Tensor, tau: float = 1.0) -> Tensor:
        """Return ``f(z)``; torchdeq's simple iteration hands its damping to the map."""
        image = self.f(z)
        self.calls += 1
        start = time.process_time()
        residual = (image - z).norm(dim=1) / image.norm(dim=1).clamp(min=1.0)
        residual = residual.detach().nan_to_num(nan=math.inf)
        self.best = residual if self.best is None else torch.minimum(self.best, residual)
        over = bool((self.best <= TOL).all()) or self.calls >= self.limit
        self.own_time += time.process_time() - start
        if over:
            raise _Over
        return image if tau == 1.0 else tau * image + (1 - tau) * z

    @property
    def worst(self) -> float:
        """The residual of the sample that is furthest from its fixed point."""
        return math.inf if self.best is None else float(self.best.max())


@dataclass(frozen=True)
class Contestant:
    """A named way to solve; we stop waiting at ``limit`` evaluations, and after ``seeds`` seeds."""

    name: str
    solve: Solve
    limit: int = 1500
    seeds: int = 1000

    @torch.no_grad()
    def measure(self, f: Map, z0: Tensor) -> dict[str, Any]:
        """Return the evaluations until the last sample met the tolerance (or None), and time."""
        metered, note = Metered(f, self.limit), ""
        start = time.process_time()
        try:
            self.solve(metered, z0)
            note = "gave up"
        except _Over:
            pass
        except RuntimeError as error:  # a singular system, say
            note = str(error).splitlines()[0][:60]
        seconds = time.process_time() - start - metered.own_time
        met = metered.worst <= TOL
        return {
            "evaluations": metered.calls if met else None,
            "seconds": seconds,
            "worst": metered.worst,
            "note": "" if met else note or f"not within {self.limit}",
        }


def ours(solver: Solver) -> Solve:
    return lambda f, z: fixed_point(f, z, solver=solver, tol=TOL, max_steps=5000, throw=False)


def theirs(key: str, max_iter: int = 1600, **options: Any) -> Solve:
    # A tolerance that is never met: the meter ends the race, not the library's own rule.
    return lambda f, z: get_solver(key)(f, z, max_iter=max_iter, tol=1e-300, **options)


def contestants(full: bool) -> list[Contestant]:
    """Everyone, or without the settings that the stiff problem has already ruled out."""
    rows = [
        Contestant("deqbook Picard", ours(Picard())),
        Contestant(REFERENCE, ours(Anderson())),
        Contestant("deqbook Adaptive", ours(Adaptive())),
        *(
            Contestant(f"deqbook Anderson memory={k}", ours(Anderson(memory=k)))
            for k in (10, 20, 30)
            if k != Anderson().memory
        ),
        Contestant("deqbook Broyden", ours(Broyden())),
        Contestant("deqbook Newton gmres", ours(Newton("gmres"))),
    ]
    if get_solver is None:
        return rows
    rows += [
        Contestant("torchdeq fixed_point_iter", theirs("fixed_point_iter")),
        Contestant("torchdeq anderson", theirs("anderson"), seeds=1000 if full else 1),
        Contestant("torchdeq anderson m=10 lam=1e-24", theirs("anderson", m=10, lam=1e-24)),
        Contestant("torchdeq anderson m=20 lam=1e-24", theirs("anderson", m=20, lam=1e-24)),
        Contestant("torchdeq anderson m=30 lam=1e-24", theirs("anderson", m=30, lam=1e-24)),
        Contestant("torchdeq broyden", theirs("broyden", max_iter=300), limit=300),
    ]
    if full:
        settings = [
            Contestant("torchdeq simple_fixed_point_iter", theirs("simple_fixed_point_iter")),
            Contestant("torchdeq anderson lam=1e-16", theirs("anderson", lam=1e-16)),
            Contestant("torchdeq anderson lam=1e-24", theirs("anderson", lam=1e-24)),
            Contestant(
                "torchdeq anderson m=20 lam=1e-24 tau=0.8",
                theirs("anderson", m=20, lam=1e-24, tau=0.8),
            ),
            Contestant("torchdeq broyden ls", theirs("broyden", max_iter=300, ls=True), limit=300),
            Contestant("torchdeq broyden window 30", theirs("broyden", LBFGS_thres=30), limit=100),
        ]
        rows += [replace(row, seeds=2) for row in settings]
    return rows


# -- the three benchmarks --------------------------------------------------------------------------


def race(
    problem: Problem | Given, rows: list[Contestant], seeds: range, repeats: int
) -> dict[str, list[dict[str, Any]]]:
    """Run everyone on every seed, in turns, so that a busy moment hits all alike.

    Of several runs on one seed the quickest counts: what another program takes is never negative.
    """
    runs: dict[str, list[dict[str, Any]]] = {row.name: [] for row in rows}
    for row in rows:  # warm up: some code is loaded at its first use
        row.measure(lambda z: (z + 1) / 2, torch.zeros(2, 8, dtype=torch.float64))
    for seed in seeds:
        f, z0 = problem.make(seed)
        for turn, row in product(range(repeats), rows):
            if turn and not row.name.startswith(OURS):
                continue
            if turn:
                known = runs[row.name][-1]
                known["seconds"] = min(known["seconds"], row.measure(f, z0)["seconds"])
            elif len(runs[row.name]) < row.seeds:
                runs[row.name].append({"seed": seed, **row.measure(f, z0)})
    return runs


def beside_best(
    race: dict[str, dict[str, list[dict[str, Any]]]],
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return for every problem and solver of ours: time ÷ best, evaluations ÷ best."""
    table: dict[str, dict[str, tuple[float, float]]] = {}
    for title, runs in race.items():
        done = {
            name: [sum(r[key] for r in some) for key in ("seconds", "evaluations")]
            for name, some in runs.items()
            if name.startswith(OURS) and all(r["evaluations"] for r in some)
        }
        least = [min(column) for column in zip(*done.values())]
        table[title] = {
            name: (both[0] / least[0], both[1] / least[1]) for name, both in done.items()
        }
    return table


def best_lines(table: dict[str, dict[str, tuple[float, float]]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in table.values() for name in row))
    yield "\nTime ÷ the quickest of ours, evaluations ÷ the fewest of ours, summed over the seeds"
    for title, row in table.items():
        yield f"  {title}"
        for name in names:
            shown = f"{row[name][0]:>7.2f}{row[name][1]:>7.2f}" if name in row else "      -      -"
            yield f"    {name.removeprefix(OURS):28}{shown}"


def race_lines(problem: Problem | Given, runs: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield f"\n{problem.title}"
    yield f"  {'':42}{'evaluations by seed':<26}{'÷ ref':>7}{'time ÷ ref':>12}"
    reference = runs[REFERENCE]
    for name, outcome in runs.items():
        counts = [o["evaluations"] for o in outcome]
        shown = " ".join("-" if c is None else str(c) for c in counts)
        if None in counts:
            notes = "; ".join(sorted({o["note"] for o in outcome if o["note"]}))
            worst = max(o["worst"] for o in outcome)
            yield f"  {name:42}{shown:<26}   {notes} (worst sample {worst:.0e})"
            continue
        times = statistics.median(o["seconds"] / r["seconds"] for o, r in zip(outcome, reference))
        evaluations = sum(counts) / sum(r["evaluations"] for _, r in zip(counts, reference))
        yield f"  {name:42}{shown:<26}{evaluations:>7.2f}{times:>12.2f}"


def rotations() -> dict[str, Tensor]:
    def blocks(*angles: float) -> Tensor:
        turns = [[[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]] for a in angles]
        return 0.9 * torch.block_diag(*torch.tensor(turns, dtype=torch.float64))

    return {
        "2×2, a right angle": blocks(math.pi / 2),
        "2×2, 60 degrees": blocks(math.pi / 3),
        "100×100, right angles": blocks(*[math.pi / 2] * 50),
        "100×100, 50 angles": blocks(*[math.pi * (j + 0.5) / 50 for j in range(50)]),
    }


def radii(seeds: range) -> dict[str, dict[str, list[float]]]:
    """Estimate a radius that is 0.9 by construction, from products with W only."""
    table: dict[str, dict[str, list[float]]] = {}
    for name, W in rotations().items():
        size = len(W)
        table[name] = {
            "deqbook": [spectral_radius(lambda v, W=W: W @ v, size, seed=s) for s in seeds]
        }
        if get_solver is None:
            continue
        table[name]["torchdeq"] = []
        for seed in seeds:
            with torch.random.fork_rng(), torch.enable_grad():
                torch.manual_seed(seed)  # power_method draws from the global generator
                z = torch.zeros(1, size, dtype=torch.float64, requires_grad=True)
                table[name]["torchdeq"].append(float(power_method(z @ W.T, z)[1]))
    return table


@torch.no_grad()
def overhead(n: int = 256, m: int = 500, steps: int = 30, repeats: int = 2) -> dict[str, float]:
    """Return the time per evaluation of Anderson's method in units of one product z Wᵀ."""
    g = generator(0)
    Wt, q = symmetric(-0.99, 0.99)(m, g), normal(n, m, g=g)
    calls = 0

    def affine(z: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.addmm(q, z, Wt)

    def bare(f: Map, z: Tensor) -> None:
        for _ in range(steps):
            z = f(z)

    def anderson(**options: Any) -> Solve:
        solver = Anderson(**options)
        return lambda f, z: fixed_point(
            f, z, solver=solver, tol=1e-15, max_steps=steps, throw=False
        )

    rows: dict[str, Solve] = {
        "bare product": bare,
        REFERENCE: anderson(),
    }
    rows |= {
        f"deqbook Anderson memory={k}": anderson(memory=k)
        for k in (10, 20)
        if k != Anderson().memory
    }
    if get_solver is not None:
        rows["torchdeq anderson"] = theirs("anderson", max_iter=steps)
        rows["torchdeq anderson m=10"] = theirs("anderson", max_iter=steps, m=10)
        rows["torchdeq anderson m=20"] = theirs("anderson", max_iter=steps, m=20)
    best = dict.fromkeys(rows, math.inf)
    for _, (name, solve) in product(range(repeats), rows.items()):
        calls, start = 0, time.process_time()
        solve(affine, torch.zeros_like(q))
        best[name] = min(best[name], (time.process_time() - start) / calls)
    unit = best.pop("bare product")
    return {name: seconds / unit for name, seconds in best.items()}


def grid(seeds: range) -> dict[str, list[int | None]]:
    """Search torchdeq's Anderson settings for its best on the stiff problem (several minutes)."""
    found: dict[str, list[int | None]] = {}
    for m, lam, tau in product((6, 10, 20, 30, 40), (1e-16, 1e-20, 1e-24, 0.0), (1.0, 0.8, 0.5)):
        row = Contestant("", theirs("anderson", m=m, lam=lam, tau=tau), limit=400)
        found[f"m={m} lam={lam:g} tau={tau:g}"] = [
            row.measure(*STIFF.make(seed))["evaluations"] for seed in seeds
        ]
    return found


# -- the command -----------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    options = parser("deqbook's solvers side by side with torchdeq's.")
    options.add_argument("--seeds", type=int, default=5, help="seeds of the stiff problem (5)")
    options.add_argument("--repeats", type=int, default=3, help="runs of ours on each seed (3)")
    options.add_argument("--grid", action="store_true", help="also search torchdeq's settings")
    given = options.parse_args(arguments)
    if min(given.seeds, given.repeats) < 1:
        options.error("--seeds and --repeats must be at least 1")
    if given.grid and get_solver is None:
        options.error("--grid searches torchdeq's settings, and torchdeq is not installed")
    seeds = range(given.seed, given.seed + given.seeds)
    few = seeds[:2]
    take_threads(given.threads)
    before = load()
    if get_solver is None:
        print("torchdeq is not installed: its rows are skipped (pip install 'deqbook[bench]').")

    print(f"1. Evaluations until every sample is at {TOL:.0e} (n = 64, m = 200, float64, z0 = 0).")
    print(f"   ref = {REFERENCE}; a Jacobian-vector product counts as one evaluation.")
    found = {}
    for problem in [STIFF, *VARIANTS, *OTHERS]:
        rows, some = contestants(problem is STIFF), seeds if problem is STIFF else few
        found[problem.title] = race(problem, rows, some, given.repeats)
        print(*race_lines(problem, found[problem.title]), sep="\n", flush=True)
    best = beside_best(found)
    print(*best_lines(best), sep="\n", flush=True)

    print("\n2. Spectral radius of a rotation scaled by 0.9, from products only (truth: 0.9).")
    for name, table in radii(range(5)).items():
        for library, values in table.items():
            shown = " ".join(f"{v:.6f}" for v in values)
            print(f"  {name:26}{library:10}{shown}")

    print("\n3. Time per evaluation of Anderson ÷ time of one product (n = 256, m = 500, float64).")
    cost = overhead()
    for name, ratio in cost.items():
        print(f"  {name:42}{ratio:>6.2f}")

    if given.grid:
        print("\nGrid: torchdeq anderson on the stiff problem, best first ('-': not within 400).")
        order = sorted(grid(few).items(), key=lambda item: sum(c or 10**6 for c in item[1]))
        for name, counts in order:
            print(f"  {name:32}{' '.join('-' if c is None else str(c) for c in counts)}")

    if given.json:
        where = circumstances(given.threads, before) | {"overhead": cost}
        lines = [
            {
                "group": title,
                "case": {"row": name},
                "result": {
                    "evaluations": [r["evaluations"] for r in runs],
                    "seconds": [r["seconds"] for r in runs],
                    "beside best": best[title].get(name),
                },
            }
            for title, everyone in found.items()
            for name, runs in everyone.items()
        ]
        write_receipt(given.json, COMMAND, where, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
