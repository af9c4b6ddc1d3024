r"""How time and memory grow: solve, training step and tangent kernel, side by side with torchdeq.

``python benchmarks/growth.py`` takes a few minutes on one core. The network is a vanilla DEQ,
:math:`z=\tanh(Wz+Ux)`, float64, W symmetric with eigenvalues spread evenly over :math:`[-c,c]`.
One quantity varies at a time, the others stay where they are:

- **n** samples and **m**, the width;
- **digits**, :math:`-\log_{10}` of the tolerance;
- **1/(1 - c)**, the distance from the edge of contraction.

The slope is that of the logarithm of the cost against the logarithm of the quantity, by least
squares. The sweep is repeated with other seeds, everybody in turns at every point; the interval is
that of Student's t for the mean of the slopes. Every result of the peer is compared with ours.

What is timed: ``solve`` finds the equilibria, ``step`` the loss and all its gradients as a user
writes them (``model(x)``, ``backward``), ``kernel`` the tangent kernel, for which the peer has
nothing. The peer's Anderson has the window 10 and a ridge below the square of any residual, its
best settings in ``solvers.py``; exact gradients by ``hook_ift``, which saves it a product.

Memory is the peak of the resident set less what was resident before, in a process of its own whose
allocator gives large arrays back at once (Linux).

``--large`` measures a training step and a kernel of the ReLU implicit network at n = 10 000,
m = 4000 in float32. What they need is told beforehand: the peak at a quarter of both sizes, times
sixteen.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from shared import (
    circumstances,
    clock_for,
    load,
    parser,
    take_threads,
    write_receipt,
)
from torch import Tensor

from deqbook.implicit import IFT
from deqbook.kernels import empirical_ntk
from deqbook.models import ReLUImplicit, VanillaDEQ, WarmStart
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Anderson, Picard, Solver

try:
    from torchdeq import get_deq
    from torchdeq.solver import register_solver
    from torchdeq.solver.anderson import anderson_solver

    register_solver("anderson_fine", partial(anderson_solver, m=10, lam=1e-24))
except ImportError:
    get_deq = None

Task = Callable[[], Tensor]

COMMAND = "python benchmarks/growth.py [--large] --json FILE"
D = 50
BASE = {"n": 200, "m": 200, "digits": 6.0, "edge": 10.0}
SWEEPS: dict[str, tuple[float, ...]] = {
    "n": (100, 200, 400, 800),
    "m": (100, 200, 400, 800),
    "digits": (2, 3, 4, 6, 8, 10),
    "edge": (5, 10, 20, 40, 80),
}
MEMORY = {"n": (500, 1000, 2000), "m": (200, 400, 800)}
LARGE = (10_000, 4000)
SMALL = 4  # how much smaller both sizes are from which the large ones are told beforehand


# -- the tasks -------------------------------------------------------------------------------------


def network(n: int, m: int, edge: float, seed: int) -> tuple[VanillaDEQ, Tensor, Tensor]:
    """Return a vanilla DEQ with eigenvalues of W in ±(1 - 1/edge), inputs and labels."""
    g, c = generator(seed), 1 - 1 / edge
    basis, _ = torch.linalg.qr(normal(m, m, g=g))
    W = basis * torch.linspace(-c, c, m, dtype=basis.dtype) @ basis.mT
    # A small injection: where tanh is bent, the cell contracts by less than c.
    model = VanillaDEQ(W, 0.03 * normal(m, D, g=g), normal(m, g=g) / math.sqrt(m), sigma="tanh")
    return model, sphere(n, D, seed), normal(n, g=g)


def ours(
    model: VanillaDEQ, x: Tensor, y: Tensor, tol: float, solver: Solver | None
) -> dict[str, Task]:
    how: dict[str, Any] = {"tol": tol}
    if solver is not None:
        how |= {"solver": solver, "adjoint": IFT(solver, tol)}

    def solve() -> Tensor:
        return model.solve(x, solver=solver, tol=tol).z

    def step() -> Tensor:
        loss = 0.5 * (model(x, **how) - y).pow(2).sum()
        return torch.autograd.grad(loss, list(model.parameters()))[0]

    return {"solve": solve, "step": step}


def theirs(
    model: VanillaDEQ, x: Tensor, y: Tensor, tol: float, solver: str, most: int
) -> dict[str, Task]:
    how = {"f_stop_mode": "rel", "b_stop_mode": "rel", "f_max_iter": most, "b_max_iter": most}
    deq = get_deq(f_solver=solver, b_solver=solver, f_tol=tol, b_tol=tol, hook_ift=True, **how)

    def state() -> Tensor:
        q = model.inject(x)
        f = lambda z: torch.tanh(torch.addmm(q, z, model.W.mT))  # noqa: E731
        return deq(f, torch.zeros_like(q))[0][-1]

    def solve() -> Tensor:
        deq.eval()
        with torch.no_grad():
            return state()

    def step() -> Tensor:
        deq.train()
        loss = 0.5 * (state() @ model.a - y).pow(2).sum()
        return torch.autograd.grad(loss, list(model.parameters()))[0]

    return {"solve": solve, "step": step}


def tasks(n: int, m: int, digits: float, edge: float, seed: int) -> dict[tuple[str, str], Task]:
    """Return everyone's tasks at one point of a sweep, by library and by what is computed."""
    model, x, y = network(int(n), int(m), edge, seed)
    tol = 10.0**-digits
    rows = {
        "deqbook Anderson": ours(model, x, y, tol, Anderson()),
        "deqbook Picard": ours(model, x, y, tol, Picard()),
        "deqbook Adaptive": ours(model, x, y, tol, None),  # what one gets without asking
    }
    rows["deqbook Adaptive"]["kernel"] = lambda: empirical_ntk(model, x, tol=tol)
    if get_deq is not None:
        # It keeps its record as long as its limit, so that is no higher than plain iteration needs.
        most = math.ceil(3 * edge * digits)
        rows["torchdeq Anderson"] = theirs(model, x, y, tol, "anderson_fine", most)
        rows["torchdeq Picard"] = theirs(model, x, y, tol, "fixed_point_iter", most)
    return {(who, what): task for who, some in rows.items() for what, task in some.items()}


# -- slopes ----------------------------------------------------------------------------------------


def slope(x: list[float], y: list[float]) -> float:
    """Return the slope of log y against log x by least squares.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    u, v = ([math.log(t) for t in s] for s in (x, y))
    mean_u, mean_v = statistics.fmean(u), statistics.fmean(v)
    return sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v)) / sum(
        (a - mean_u) ** 2 for a in u
    )


def interval(slopes: list[float]) -> list[float]:
    """Return the mean of some slopes between the ends of its 95 % interval."""
    mean = statistics.fmean(slopes)
    if len(slopes) < 2:
        return [mean, mean, mean]
    wide = stats.t.ppf(0.975, len(slopes) - 1) * statistics.stdev(slopes) / math.sqrt(len(slopes))
    return [mean - wide, mean, mean + wide]


def sweep(name: str, repeats: int, seed: int, clock: Callable[[], float]) -> list[dict[str, Any]]:
    """Time everyone at every value, repeat by repeat; return a row for each with its slope."""
    times: dict[tuple[str, str], list[list[float]]] = {}
    apart: dict[tuple[str, str], float] = {}
    for repeat in range(repeats):
        for value in SWEEPS[name]:
            point = BASE | {name: value}
            truth: dict[str, Tensor] = {}
            for key, task in tasks(**point, seed=seed + repeat).items():
                start = clock()
                found = task()
                seconds = clock() - start
                rows = times.setdefault(key, [[] for _ in range(repeats)])
                rows[repeat].append(seconds)
                known = truth.setdefault(key[1], found)
                error = float((found - known).norm() / known.norm()) / 10 ** -point["digits"]
                apart[key] = max(apart.get(key, 0.0), error)
    return [
        {
            "group": f"time against {name}",
            "case": {"who": who, "what": what},
            "result": {
                "values": list(SWEEPS[name]),
                "seconds": [statistics.median(s) for s in zip(*rows)],
                "slope": interval([slope(list(SWEEPS[name]), s) for s in rows]),
                # The largest distance from our result, in units of the tolerance.
                "apart": apart[who, what],
            },
        }
        for (who, what), rows in times.items()
    ]


def lines_of(rows: list[dict[str, Any]], unit: str) -> list[str]:
    shown = []
    for row in rows:
        case, result = row["case"], row["result"]
        low, middle, high = result["slope"]
        numbers = " ".join(f"{t:.3g}" for t in result[unit])
        away = f"  {result['apart']:.0f} tol apart" if result.get("apart", 0) > 100 else ""
        shown.append(
            f"  {case['what']:7}{case['who']:20}slope {middle:6.2f} ({low:.2f} to {high:.2f})   "
            f"{numbers}{away}"
        )
    return shown


# -- memory, in processes of their own -------------------------------------------------------------


def resident(field: str) -> float:
    """Return VmRSS or VmHWM of this process in megabytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    (found,) = [int(line.split()[1]) / 1024 for line in status if line.startswith(field)]
    return found


def peak(task: Callable[[], Any]) -> float:
    """Return by how many megabytes the resident set grew at most during a task."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    result = task()
    grown = resident("VmHWM") - before
    del result
    return grown


def child(*arguments: object) -> Any:
    """Run a part of this file in a process whose large arrays are mapped and unmapped."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    allocator = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | allocator
    )
    if done.returncode:
        raise RuntimeError(f"{arguments} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def memory_of(name: str, value: int, seed: int) -> dict[str, float]:
    """Return the peaks of everyone's tasks at one point."""
    for task in tasks(20, 20, 3.0, 2.0, seed).values():  # loads code
        task()
    point = BASE | {"n": 1000, "m": 400, "digits": 3.0} | {name: value}
    return {" ".join(key): peak(task) for key, task in tasks(**point, seed=seed).items()}


def memory_sweep(name: str, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Measure peaks at every value, repeat by repeat."""
    found = [[child(name, v, seed + r) for v in MEMORY[name]] for r in range(repeats)]
    rows = []
    for key in found[0][0]:
        who, what = key.rsplit(" ", 1)
        curves = [[at[key] for at in repeat] for repeat in found]
        rows.append(
            {
                "group": f"memory against {name}",
                "case": {"who": who, "what": what},
                "result": {
                    "values": list(MEMORY[name]),
                    "megabytes": [statistics.median(s) for s in zip(*curves)],
                    "slope": interval([slope(list(MEMORY[name]), c) for c in curves]),
                },
            }
        )
    return rows


# -- large -----------------------------------------------------------------------------------------


def large_tasks(n: int, m: int, seed: int) -> dict[str, Callable[[], Any]]:
    """Return a solve, a second training step with ``WarmStart`` and a kernel, in float32."""
    model = ReLUImplicit.init(m, D, gamma=0.1, seed=seed, dtype=torch.float32)
    x, y = sphere(n, D, seed, dtype=torch.float32), torch.zeros(n)
    net = WarmStart(model)

    def step() -> None:
        for _ in range(2):  # the second one has a past
            (0.5 * (net(x, solver=Picard(), adjoint=IFT(Picard())) - y).pow(2).sum()).backward()
            model.zero_grad()

    return {
        "solve": lambda: model.solve(x, solver=Picard()).z,
        "step": step,
        "kernel": lambda: empirical_ntk(model, x),
    }


def large_of(n: int, m: int, seed: int, what: str) -> dict[str, float]:
    clock = clock_for(1)
    for task in large_tasks(20, 10, seed).values():
        task()
    task = large_tasks(n, m, seed)[what]
    start = clock()
    grown = peak(task)
    return {"megabytes": grown, "seconds": clock() - start}


def told_beforehand(what: str, seed: int) -> float:
    """Return the megabytes that the large size will take, from a smaller one.

    All arrays that count are (n, m), (m, m) or (n, n): their peak grows like the square of both.
    """
    n, m = LARGE
    told = SMALL**2 * child("large", n // SMALL, m // SMALL, seed, what)["megabytes"]
    arrays = told * 2**20 / (4 * n * m)
    print(f"  {what}: {told:.0f} MB told beforehand, as {arrays:.1f} arrays (n, m)", flush=True)
    return told


def large(seed: int) -> list[dict[str, Any]]:
    rows = []
    for what in ("solve", "step", "kernel"):
        told = told_beforehand(what, seed)
        if told > 10_000:
            print(f"  {what}: not run, more than 10 GB")
            continue
        found = child("large", *LARGE, seed, what)
        print(
            f"  {what}: {found['megabytes']:.0f} MB measured, {found['seconds']:.0f} s", flush=True
        )
        rows.append(
            {
                "group": "large",
                "case": {"n": LARGE[0], "m": LARGE[1], "what": what},
                "result": {"told": told, **found},
            }
        )
    return rows


# -- the command -----------------------------------------------------------------------------------


def run_child(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    name, *rest = arguments
    if name == "large":
        n, m, seed, what = rest
        print(json.dumps(large_of(int(n), int(m), int(seed), what)))
    else:
        print(json.dumps(memory_of(name, int(rest[0]), int(rest[1]))))
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parser("How time and memory grow, side by side with torchdeq.")
    options.add_argument("--repeats", type=int, default=5, help="sweeps, each of another seed (5)")
    options.add_argument("--large", action="store_true", help="n = 10 000, m = 4000, nothing else")
    options.add_argument("--child", nargs="+", help="used by the script itself")
    given = options.parse_args(arguments)
    if given.child:
        return run_child(given.child)
    if given.repeats < 2:
        options.error("--repeats must be at least 2: an interval comes from repeats")
    take_threads(given.threads)
    before, clock, rows = load(), clock_for(given.threads), []
    if get_deq is None:
        print("torchdeq is not installed: its rows are skipped (pip install 'deqbook[bench]').")
    if given.large:
        print(f"n = {LARGE[0]}, m = {LARGE[1]}, float32")
        rows = large(given.seed)
        if given.json:
            where = circumstances(given.threads, before)
            write_receipt(given.json, COMMAND, where, rows, part="large")
        return 0
    for task in tasks(20, 20, 3.0, 2.0, given.seed).values():  # loads code
        task()
    for name in SWEEPS:
        held = ", ".join(f"{k} = {v:g}" for k, v in BASE.items() if k != name)
        print(f"seconds against {name} = {' '.join(f'{v:g}' for v in SWEEPS[name])} ({held})")
        found = sweep(name, given.repeats, given.seed, clock)
        print(*lines_of(found, "seconds"), sep="\n", flush=True)
        rows += found
    for name in MEMORY:
        print(f"megabytes against {name} = {' '.join(map(str, MEMORY[name]))}")
        found = memory_sweep(name, 2, given.seed)
        print(*lines_of(found, "megabytes"), sep="\n", flush=True)
        rows += found
    if given.json:
        where = circumstances(given.threads, before) | {"base": BASE, "repeats": given.repeats}
        write_receipt(given.json, COMMAND, where, rows, part="sweeps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
