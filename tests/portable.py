"""Does everything hold on another processor? Tests, claims and pages, under simulated ones.

``python tests/portable.py`` (or ``make portable``) runs the tests without book and browser, every
claim on one seed, and every page, once for each profile: a level of instructions (`lowest`, `avx2`,
`native`) and a number of threads. Sums then come in another order and last digits change. Nothing
may fail; what moves by more than a millionth is listed, and that alone is no failure.

A processor can only be made to look smaller, so the levels are those at or below this machine's.
Pages are run from their text, with this checkout's source, and leave no trace in the build.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: A relative difference above this is told; a page prints fewer digits.
TOLD = 1e-6
#: From the lowest up. For each the settings that hold torch (MKL, ATen, oneDNN) and the OpenBLAS
#: of numpy and scipy back.
LEVELS: dict[str, dict[str, str]] = {
    "lowest": {
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
    "avx2": {
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "native": {},
}
NUMPY_OFF = "NPY_DISABLE_CPU_FEATURES"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "DEQBOOK_TEST_THREADS")
#: The tests where an iteration stops, a sign decides or two solvers are compared: what a change of
#: the last digits reaches first, and quick enough for every change of the project.
QUICK = (
    "tests/test_solvers.py",
    "tests/test_splitting.py",
    "tests/test_implicit.py",
    "tests/test_wellposed.py",
    "tests/test_linalg.py",
    "tests/regularize",
    "tests/models",
)
NUMBER = re.compile(r"[-+−]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

POWER = re.compile(r"(?:([\d.]+)·)?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
LOWERED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


@dataclass(frozen=True)
class Profile:
    """A simulated processor and a number of threads."""

    level: str
    threads: int

    def __str__(self) -> str:
        return f"{self.level}, {self.threads} thread{'s' * (self.threads > 1)}"


@dataclass(frozen=True)
class Outcome:
    """What a part did under a profile: what failed, and the values it found, by place."""

    failures: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    scales: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    counted: str = ""
    seconds: float = 0.0


def levels_here(machine: str, capability: str) -> list[str]:
    """Return the levels that a machine can simulate, itself last; `capability` is torch's word."""
    if machine.lower() not in {"x86_64", "amd64"}:
        return ["native"]
    return ["lowest", *["avx2"] * (capability.upper() == "AVX512"), "native"]


def numpy_off(level: str, found: Iterable[str]) -> list[str]:
    """Return which of the dispatched features that numpy found it must not use at a level."""
    large = re.compile(r"AVX512|X86_V4")
    return [f for f in found if level == "lowest" or (level == "avx2" and large.match(f))]


def environment(
    profile: Profile, found: Iterable[str], base: Mapping[str, str], source: Path
) -> dict[str, str]:
    """Return the environment of a process that is to run under a profile."""
    ours = {key for settings in LEVELS.values() for key in settings} | {NUMPY_OFF}
    kept = {key: value for key, value in base.items() if key not in ours}
    off = numpy_off(profile.level, found)
    return {
        **kept,
        **LEVELS[profile.level],
        **({NUMPY_OFF: " ".join(off)} if off else {}),
        **{name: str(profile.threads) for name in THREADS},
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(source),
    }


def differences(
    before: Outcome, after: Outcome, told: float = TOLD
) -> list[tuple[str, float, float, float]]:
    """Return (place, largest relative difference, old, new) wherever it exceeds `told`.

    It is relative to the larger of the two values and of their scale: for a quantity that is to be
    zero up to a tolerance, the tolerance; for one with a bound, the bound. Two runs with other
    places or counts differ infinitely.
    """
    found = []
    for place in [*before.values, *(p for p in after.values if p not in before.values)]:
        old, new = before.values.get(place), after.values.get(place)
        if old is None or new is None or len(old) != len(new):
            found.append((place, math.inf, math.nan, math.nan))
            continue
        scales = before.scales.get(place, (0.0,) * len(old))
        worst = max(
            ((relative(a, b, s), a, b) for a, b, s in zip(old, new, scales)), default=(0.0, 0, 0)
        )
        if worst[0] > told:
            found.append((place, *worst))
    return sorted(found, key=lambda row: -row[1])


def relative(a: float, b: float, scale: float = 0.0) -> float:
    """Return |a - b| relative to the largest of |a|, |b| and `scale`; equal values are 0 apart."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), scale)


def failed_tests(output: str) -> list[str]:
    """Return the short summary's lines of pytest that tell of a failure."""
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def claim_values(document: Mapping[str, Any]) -> Outcome:
    """Read the output of ``deqbook verify --json``: what failed, and every value and bound."""
    failures, values, scales = [], {}, {}
    for claim in document["claims"]:
        if claim["status"] not in {"holds", "uncheckable"}:
            failures.append(f"{claim['id']}: {claim['status']}. {claim['reason'] or ''}".rstrip())
        numbers = [
            (float.fromhex(text), scale(m))
            for run in claim["runs"]
            for m in run["measurements"]
            for text in m["hex"]
        ]
        values[claim["id"]] = tuple(v for v, _ in numbers)
        scales[claim["id"]] = tuple(s for _, s in numbers)
    return Outcome(tuple(failures), values, scales, f"{len(values)} claims")


def scale(measurement: Mapping[str, Any]) -> float:
    """Return what a measured value is held against: the size of its bound, or its tolerance."""
    bound = abs(float.fromhex(measurement["hex"][1]))
    return max(measurement["tol"] or 0.0, bound if math.isfinite(bound) else 0.0)


def printed_numbers(text: str) -> tuple[float, ...]:
    """Return the numbers in a text, in order; 3·10⁻⁸ is one."""
    text = POWER.sub(lambda m: f"{m[1] or 1}e{m[2].translate(LOWERED)}", text)
    return tuple(float(n.replace("−", "-")) for n in NUMBER.findall(text))


def page_values(name: str, notebook: Any) -> dict[str, tuple[float, ...]]:
    """Return what each cell of an executed page prints or hands to the prose, as numbers."""
    values = {}
    for index, cell in enumerate(c for c in notebook.cells if c.cell_type == "code"):
        if "wall-clock" in cell.metadata.get("tags", []):
            continue  # the one thing that no two runs share
        for output in cell.outputs:
            glued = output.get("metadata", {}).get("scrapbook", {}).get("name", "")
            data = output.get("data", {})
            text = output.get("text") or next(
                (t for kind, t in data.items() if kind.endswith("text/plain")), ""
            )
            if numbers := printed_numbers(text):
                place = f"{name}, cell {index}" + (f", {glued}" if glued else "")
                values[place] = values.get(place, ()) + numbers
    return values


def run_tests(env: Mapping[str, str], jobs: int, *, paths: Sequence[str] = ()) -> Outcome:
    """Run the tests without book and browser, or only those of some paths."""
    chosen = paths or ("--ignore=tests/book", "--ignore=tests/browser")
    command = [sys.executable, "-m", "pytest", "-n", str(jobs), "-p", "no:cacheprovider", "-rfE"]
    command += chosen
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    failures = failed_tests(done.stdout)
    if done.returncode and not failures:
        failures = [f"pytest exited with status {done.returncode}: {done.stdout[-2000:]}"]
    counted = re.findall(r"\d+ passed", done.stdout)
    return Outcome(tuple(failures), counted=counted[-1] if counted else "")


def run_claims(env: Mapping[str, str], jobs: int) -> Outcome:
    """Verify every claim on one seed."""
    command = ["verify", "--seeds", "1", "--json", "--jobs", str(jobs)]
    done = subprocess.run(
        [sys.executable, "-m", "deqbook", *command],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    try:
        return claim_values(json.loads(done.stdout))
    except json.JSONDecodeError:
        return Outcome((f"deqbook verify printed no JSON: {done.stderr[-2000:]}",))


def run_pages(env: Mapping[str, str], jobs: int, *, pages: Sequence[Path] = ()) -> Outcome:
    """Run pages, each in a kernel of its own."""
    chosen = pages or sorted((ROOT / "chapters").glob("*.md"))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        results = list(pool.map(partial(run_page, dict(env)), chosen))
    return Outcome(
        tuple(error for error, _ in results if error),
        {place: numbers for _, values in results for place, numbers in values.items()},
        counted=f"{len(chosen)} pages",
    )


def run_page(env: Mapping[str, str], path: Path) -> tuple[str, dict[str, tuple[float, ...]]]:
    """Run a page; return what went wrong, if anything, and its numbers."""
    import jupytext
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = jupytext.read(path)
    client = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(ROOT)}})
    try:
        client.execute(env={**env, "DEQBOOK_STATIC": "1"})
    except CellExecutionError as error:
        return f"{path.stem}: {error.ename}: {error.evalue}\n{error}", {}
    return "", page_values(path.stem, notebook)


PARTS: dict[str, Callable[..., Outcome]] = {
    "tests": run_tests,
    "claims": run_claims,
    "pages": run_pages,
}


def this_machine() -> tuple[list[str], list[str]]:
    """Return the levels that can be simulated here, and numpy's dispatched features in use."""
    import numpy as np
    import torch

    core = getattr(np, "_core", None) or np.core  # numpy 2, numpy 1
    umath = core._multiarray_umath
    found = [f for f in umath.__cpu_dispatch__ if umath.__cpu_features__.get(f)]
    return levels_here(platform.machine(), torch.backends.cpu.get_cpu_capability()), found


def table(results: Mapping[tuple[Profile, str], Outcome]) -> Iterator[str]:
    """Yield the results: a line for each profile and part, and below it what failed."""
    for (profile, part), outcome in results.items():
        verdict = f"{len(outcome.failures)} FAILED" if outcome.failures else "holds"
        yield f"{profile!s:18} {part:7} {verdict:9} {outcome.counted:12} {outcome.seconds:6.0f} s"
        for failure in outcome.failures:
            yield "    " + failure.replace("\n", "\n    ")


def comparison(results: Mapping[tuple[Profile, str], Outcome]) -> Iterator[str]:
    """Yield what differs from the first profile's values, part by part."""
    first: dict[str, Profile] = {}
    for (profile, part), outcome in results.items():
        reference = first.setdefault(part, profile)
        if reference == profile or not outcome.values:
            continue
        rows = differences(results[reference, part], outcome)
        yield f"{part}, {profile} against {reference}: {len(rows)} of {len(outcome.values)} differ"
        for place, gap, old, new in rows:
            yield f"    {gap:8.1e}  {place}: {old:.6g} → {new:.6g}"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="only this; repeatable"
    )
    parser.add_argument(
        "--level", action="append", choices=list(LEVELS), help="only this; repeatable"
    )
    parser.add_argument("--threads", action="append", type=int, help="default 1 and 2; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread (default 2)")
    parser.add_argument("--page", action="append", help="only pages whose name begins so")
    parser.add_argument("--quick", action="store_true", help="the tests that digits can reach")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and return 1 if anything fails."""
    args = arguments(argv)
    here, found = this_machine()
    wanted = args.level or ["native", *(level for level in here if level != "native")]
    if unknown := [level for level in wanted if level not in here]:
        print(f"left out, not to be simulated on this machine: {', '.join(unknown)}")
    profiles = [
        Profile(level, n) for n in args.threads or (1, 2) for level in wanted if level in here
    ]
    pages = [
        path
        for path in sorted((ROOT / "chapters").glob("*.md"))
        if any(path.name.startswith(name) for name in args.page or [""])
    ]
    options: dict[str, dict[str, Any]] = {
        "tests": {"paths": QUICK if args.quick else ()},
        "pages": {"pages": pages},
    }
    results: dict[tuple[Profile, str], Outcome] = {}
    for part in args.part or list(PARTS):
        for profile in profiles:
            env = environment(profile, found, os.environ, ROOT / "src")
            started = time.perf_counter()
            done = PARTS[part](env, max(1, args.jobs // profile.threads), **options.get(part, {}))
            seconds = time.perf_counter() - started
            outcome = Outcome(done.failures, done.values, done.scales, done.counted, seconds)
            results[profile, part] = outcome
            print("\n".join(table({(profile, part): outcome})), flush=True)
    print("\n".join(comparison(results)))
    return 1 if any(outcome.failures for outcome in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
