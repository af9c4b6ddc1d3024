"""``deqbook reproduce``: run again what took too long for a page, and compare."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deqbook.experiments.receipts import Results
    from deqbook.pages.p05c_opteq_images.lab.long_range import Scene
    from deqbook.pages.p05c_opteq_images.lab.training import ClassifierRun

__all__ = ["add_parser", "run"]

EXPERIMENTS = ("opteq-tables",)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "reproduce",
        help="run the long experiments again",
        description="Run an experiment whose results ship with the package, and compare. Finished "
        "cases are kept in FILE.part: after an interruption the same command goes on from there.",
    )
    parser.add_argument("experiment", choices=EXPERIMENTS, help="what to run")
    parser.add_argument(
        "--full",
        action="store_true",
        help="the published size: all of CIFAR-10 (a download), 200 epochs; needs a GPU",
    )
    parser.add_argument("--only", metavar="GROUP", help="only this group of cases; see --list")
    parser.add_argument(
        "--out", type=Path, help="the result file (default: EXPERIMENT[-full][-GROUP].json)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--list", action="store_true", help="list the cases, run nothing")
    parser.add_argument("--cpu", action="store_true", help="allow --full without a GPU")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    # Imported here so that `deqbook --help` does not wait for torch.
    from deqbook.data import DataError
    from deqbook.experiments import opteq_tables
    from deqbook.experiments.receipts import ReceiptError, collect

    wanted = opteq_tables.full() if args.full else opteq_tables.miniature()
    known = list(dict.fromkeys(group for group, _ in wanted))
    if args.only is not None and args.only not in known:
        return _refuse(f"no group {args.only!r} here; there are {', '.join(known)}.")
    if args.jobs < 1:
        return _refuse("--jobs must be at least 1.")
    cases = [(g, c) for g, c in wanted if args.only in (None, g)]
    if args.list:
        for group, case in cases:
            print(f"{group:9} {case}")
        return 0
    if args.full and not _ready(args.cpu, [c for _, c in cases]):
        return 2
    command = " ".join(
        ["deqbook reproduce", args.experiment]
        + ["--full"] * args.full
        + ([f"--only {args.only}"] if args.only else [])
    )
    # A part or another size has another name: it must not replace the file of the whole.
    name = "-".join([args.experiment] + ["full"] * args.full + [args.only] * bool(args.only))
    out = args.out or Path(f"{name}.json")
    started = time.perf_counter()

    def said(text: str) -> None:
        print(f"{text}  ({time.perf_counter() - started:.0f} s)", flush=True)

    try:
        results = collect(
            out,
            command,
            [(group, opteq_tables.plain(case)) for group, case in cases],
            lambda missing: _results(missing, args.jobs),
            said=said,
        )
    except (ReceiptError, DataError, OSError) as error:
        return _refuse(str(error))
    print(f"{len(results.runs)} runs in {out}\n{results.receipt}")
    if not args.full:
        print("\n".join(_compare(results)))
    return 0


def _refuse(sentence: str) -> int:
    print(f"deqbook reproduce: {sentence}", file=sys.stderr)
    return 2


def _ready(cpu: bool, cases: Sequence[ClassifierRun | Scene]) -> bool:
    """Say how long the full size takes, from one measured update, and whether to begin."""
    import torch

    from deqbook.pages.p05c_opteq_images.lab.training import ClassifierRun, update_seconds
    from deqbook.runtime import device

    (first, *_) = [c for c in cases if isinstance(c, ClassifierRun)]
    seconds = update_seconds(first)
    hours = seconds * -(-50_000 // first.batch) * first.epochs / 3600
    days = hours * len(cases) / 24
    print(
        f"{len(cases)} cases of {first.epochs} epochs on {device().type}: one update took "
        f"{seconds:.2g} s, so about {hours:.0f} hours a case and {days:.0f} days "
        "in all on one device. Groups are independent: --only and --out let several machines share."
    )
    if not torch.cuda.is_available() and not cpu:
        print(
            "deqbook reproduce: --full needs a GPU and torch sees none; --cpu begins all the same, "
            "and without --full the miniature runs anywhere.",
            file=sys.stderr,
        )
        return False
    return True


def _results(
    missing: Sequence[tuple[str, Mapping[str, Any]]], jobs: int
) -> Iterator[tuple[int, Any]]:
    """Run cases here or in processes; yield (index, result) as they are ready."""
    if jobs == 1:
        for index, (group, case) in enumerate(missing):
            yield index, _one(group, case)
        return
    # "spawn": a forked child of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        jobs_of = {pool.submit(_one, g, c): i for i, (g, c) in enumerate(missing)}
        try:
            for job in as_completed(jobs_of):
                yield jobs_of[job], job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _one(group: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """Run one case as it is stored, on one thread: the number of threads changes last digits."""
    import torch

    from deqbook.experiments import opteq_tables

    torch.set_num_threads(1)
    return opteq_tables.plain(opteq_tables.run(opteq_tables.restore(group, case)))


def _compare(results: Results) -> list[str]:
    """Say, group by group, how far the new numbers are from those that ship."""
    from deqbook.experiments import opteq_tables
    from deqbook.experiments.receipts import ReceiptError, read

    try:
        before = read(opteq_tables.shipped())
    except ReceiptError as error:
        return [f"Not compared with the shipped results: {error}"]
    known = {str((r["group"], r["case"])): r["result"] for r in before.runs}
    worst: dict[str, float] = {}
    strange = lost = 0
    for r in results.runs:
        old = known.get(str((r["group"], r["case"])))
        if old is None:
            strange += 1
            continue
        new, stored = _scores(r["result"]), _scores(old)
        if len(new) != len(stored):  # a run that was lost ends early
            lost += 1
            continue
        gap = max((abs(a - b) for a, b in zip(new, stored)), default=0.0)
        worst[r["group"]] = max(gap, worst.get(r["group"], 0.0))
    lines = ["Largest difference of a test accuracy from the shipped file, after any epoch:"]
    lines += [f"  {group:9} {100 * gap:.2f} points" for group, gap in worst.items()]
    if lost:
        lines.append(f"  {lost} runs ended earlier or later than the stored ones: not compared.")
    if strange:
        lines.append(f"  {strange} cases are not in the shipped file.")
    return lines


def _scores(result: Mapping[str, Any]) -> list[float]:
    return result["accuracy"] if "accuracy" in result else result["columns"]
