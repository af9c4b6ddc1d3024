r"""The tangent kernel in closed form beside the Jacobian that it saves: time and memory.

``python benchmarks/tangent_kernel.py`` computes the tangent kernel of the ReLU implicit network of
gao2022 (d = 784, γ = 0.1) for n = 200 samples at width m = 500 in three ways, in float64 and to a
tolerance of 1e-8:

- the **closed form**, ``empirical_ntk``: two batched solves, then products of (n, m) matrices;
- the **Jacobian**, ``jacobian_ntk``: ``torch.func.jacrev`` of all outputs, then :math:`JJ^\top`.
  Every output is differentiated through the whole batch, although it depends on one sample;
- **per sample**: ``torch.func.vmap`` of ``torch.func.grad``, 20 samples at a time, then
  :math:`JJ^\top`. It does not make that mistake, and is the fairer rival.

Both rivals hold J, of :math:`n(m^2+md+2m)` numbers. Then the closed form runs alone at n = 1000,
m = 2000, in float32 (tolerance 1e-5) and float64, where J would take 45 GB in float64.

Each run is a process of its own, and they take turns. Memory is the peak of the resident set during
the call less what was resident before it (Linux). Nobody is believed: each kernel is compared with
the closed form in float64 at 1e-12, and one that is off by more than 1e-4 is marked.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from shared import clock_for, parser
from torch import Tensor

from deqbook.kernels import empirical_ntk, jacobian_ntk
from deqbook.models import ReLUImplicit
from deqbook.runtime import sphere

D, GAMMA, AGREE = 784, 0.1, 1e-4
TOL = {torch.float64: 1e-8, torch.float32: 1e-5}
REFERENCE = "closed form"
SMALL, LARGE = (200, 500), (1000, 2000)


def per_sample(model: ReLUImplicit, X: Tensor, *, tol: float) -> Tensor:
    """Return the kernel by the gradient of one sample, mapped over the samples."""
    weights = {k: p.detach() for k, p in model.named_parameters()}

    def output(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x[None],), {"tol": tol})[0]

    rows = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0), chunk_size=20)(weights, X)
    J = torch.cat([g.flatten(1) for g in rows.values()], dim=1)
    return J @ J.mT


ROUTES: dict[str, Callable[..., Tensor]] = {
    REFERENCE: empirical_ntk,
    "per sample, vmap of grad": per_sample,
    "Jacobian, jacrev": jacobian_ntk,
}


def problem(n: int, m: int, dtype: torch.dtype, seed: int) -> tuple[ReLUImplicit, Tensor]:
    model = ReLUImplicit.init(m, D, gamma=GAMMA, seed=seed, dtype=dtype)
    return model, sphere(n, D, seed, dtype=dtype)


# -- one run, in a process of its own --------------------------------------------------------------


def resident(field: str) -> float:
    """Return VmRSS or VmHWM of this process in megabytes; NaN where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [int(line.split()[1]) / 1024 for line in lines if line.startswith(field)]
    return found[0] if found else float("nan")


def run(route: str, n: int, m: int, precision: str, threads: int, seed: int, file: str) -> None:
    """Compute one kernel, write it to ``file`` and print the seconds and the megabytes."""
    torch.set_num_threads(threads)
    dtype = getattr(torch, precision)
    ROUTES[route](*problem(5, 20, dtype, seed), tol=TOL[dtype])  # loads code
    model, X = problem(n, m, dtype, seed)
    clock = clock_for(threads)
    before, start = resident("VmRSS"), clock()
    K = ROUTES[route](model, X, tol=TOL[dtype])
    seconds, peak = clock() - start, resident("VmHWM")
    torch.save(K.detach(), file)
    print(json.dumps({"seconds": seconds, "megabytes": peak - before}))


def child(*arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, "--run", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# -- the race --------------------------------------------------------------------------------------


def race(
    routes: list[str], n: int, m: int, precision: str, repeats: int, threads: int, seed: int
) -> dict[str, Any]:
    """Let every route compute the kernel in turns; compare each with the truth."""
    torch.set_num_threads(threads)
    truth = empirical_ntk(*problem(n, m, torch.float64, seed), tol=1e-12)
    rows: dict[str, dict[str, list[float]]] = {
        r: {"seconds": [], "megabytes": [], "error": []} for r in routes
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.pt"
        for _ in range(repeats):
            for route in routes:
                found = child(route, n, m, precision, threads, seed, file)
                K = torch.load(file).double()
                found["error"] = float((K - truth).norm() / truth.norm())
                for key, value in found.items():
                    rows[route][key].append(value)
    return {r: {k: statistics.median(v) for k, v in row.items()} for r, row in rows.items()}


def race_lines(result: dict[str, Any]) -> list[str]:
    base = result[REFERENCE]
    lines = [f"  {'':26}{'s':>8}{'÷ closed':>10}{'MB':>8}{'÷ closed':>10}{'error':>9}"]
    for name, row in result.items():
        time_ratio, memory_ratio = (row[k] / base[k] for k in ("seconds", "megabytes"))
        wrong = "" if row["error"] <= AGREE else "  not exact, does not count"
        lines.append(
            f"  {name:26}{row['seconds']:>8.2f}{time_ratio:>10.1f}{row['megabytes']:>8.0f}"
            f"{memory_ratio:>10.1f}{row['error']:>9.0e}{wrong}"
        )
    return lines


# -- the command -----------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    known = parser("The tangent kernel, closed form and Jacobian.")
    known.add_argument("--repeats", type=int, default=3, help="runs of each; medians count (3)")
    known.add_argument("--run", nargs=7, help="used by the script itself")
    options = known.parse_args(arguments)
    if options.run:
        route, n, m, precision, threads, seed, file = options.run
        run(route, int(n), int(m), precision, int(threads), int(seed), file)
        return 0
    if options.repeats < 1 or options.threads < 1:
        known.error("--repeats and --threads must be at least 1")
    how = (options.repeats, options.threads, options.seed)
    report: dict[str, Any] = {
        "versions": {p: version(p) for p in ("deqbook", "torch")},
        "threads": options.threads,
    }
    for (n, m), routes, precisions in (
        (SMALL, list(ROUTES), ("float64",)),
        (LARGE, [REFERENCE], ("float64", "float32")),
    ):
        for precision in precisions:
            print(f"n = {n}, d = {D}, m = {m}, {precision}, threads: {options.threads}", flush=True)
            result = race(routes, n, m, precision, *how)
            print(*race_lines(result), sep="\n", flush=True)
            report[f"n={n}, m={m}, {precision}"] = result
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
