"""``deqbook reproduce``: run the experiments behind published figures, judge them, and compare."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deqbook.experiments.declaration import Experiment
    from deqbook.experiments.engine import Outcome
    from deqbook.experiments.receipts import Results

__all__ = ["add_parser", "run", "seconds"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "reproduce",
        help="run the experiments behind published figures",
        description="Run an experiment, judge it by the rules of its declaration, and compare "
        "with the results that ship. Without a name, list the experiments. Finished cases are kept "
        "in the folder FILE.cases: after an interruption, whatever it was, the same command goes "
        "on from there. Exit status 1 if a case failed, 3 if the budget ended first.",
    )
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="what to run")
    parser.add_argument(
        "--profile",
        choices=("book", "paper"),
        default="book",
        help="book: small, minutes (default); paper: the published size, hours",
    )
    parser.add_argument("--full", action="store_true", help="the same as --profile paper")
    parser.add_argument("--only", metavar="GROUP", help="only this group of cases; see --list")
    parser.add_argument(
        "--out", type=Path, help="the result file (default: EXPERIMENT[-paper][-GROUP].json)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="run on a Dask cluster, e.g. tcp://10.0.0.1:8786; its workers need deqbook[cluster], "
        "and should see the folder of the result file",
    )
    parser.add_argument("--device", help="for torch, e.g. cuda:0 (default: the case's own choice)")
    parser.add_argument(
        "--budget",
        type=seconds,
        default=float("inf"),
        metavar="TIME",
        help="stop cleanly after so long, e.g. 90m; the file then holds what is done",
    )
    parser.add_argument(
        "--cheapest-first",
        action="store_true",
        help="not the dearest first: more cases inside a budget",
    )
    parser.add_argument(
        "--take",
        type=Path,
        metavar="FILE",
        help="take over the cases of this result file, one that ships for example, if the cheapest "
        "of them comes out again; the receipt says which were taken",
    )
    parser.add_argument("--list", action="store_true", help="list the cases, run nothing")
    parser.add_argument("--cpu", action="store_true", help="begin without a GPU what wants one")
    parser.set_defaults(run=run)


def seconds(text: str) -> float:
    """Read a time: ``90m``, ``1.5h``, ``45s``, or a number of seconds.

    >>> seconds("90m"), seconds("1.5h"), seconds("20")
    (5400.0, 5400.0, 20.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 90m, 1.5h or 45s.")
    return float(found[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[found[2]]


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    # Imported here so that `deqbook --help` does not wait for torch.
    from deqbook.data import DataError
    from deqbook.experiments.catalogue import EXPERIMENTS
    from deqbook.experiments.earlier import Earlier
    from deqbook.experiments.engine import execute
    from deqbook.experiments.places import PlaceError, chosen
    from deqbook.experiments.receipts import ReceiptError
    from deqbook.experiments.worker import NoRoom

    if args.experiment is None:
        return _overview(EXPERIMENTS)
    if args.experiment not in EXPERIMENTS:
        return _refuse(f"no experiment {args.experiment!r}; there are {', '.join(EXPERIMENTS)}.")
    experiment = EXPERIMENTS[args.experiment]
    profile = "paper" if args.full else args.profile
    if profile not in experiment.cases:
        return _refuse(f"{experiment.name} has no profile {profile!r}: {experiment.differs}")
    wanted = list(experiment.cases[profile]())
    known = list(dict.fromkeys(group for group, _ in wanted))
    if args.only is not None and args.only not in known:
        return _refuse(f"no group {args.only!r} here; there are {', '.join(known)}.")
    if args.jobs < 1:
        return _refuse("--jobs must be at least 1.")
    if args.device is not None and not _has(args.device):
        return _refuse(f"torch has no device {args.device!r} here; leave --device out for the CPU.")
    jobs = [(g, c) for g, c in wanted if args.only in (None, g)]
    if args.list:
        for group, case in jobs:
            print(f"{group:9} {case}")
        return 0
    if experiment.ready is not None and not experiment.ready(jobs, args.cpu):
        return _refuse(
            "this size needs a GPU and torch sees none; --cpu begins all the same, and "
            "--profile book runs anywhere."
        )
    # A part or another size has another name: it must not replace the file of the whole.
    name = "-".join([experiment.name] + ["paper"] * (profile == "paper") + [args.only or ""])
    out = args.out or Path(f"{name.strip('-').replace(' ', '_').replace('/', '_')}.json")
    started = time.perf_counter()

    def said(text: str) -> None:
        print(f"{text}  ({time.perf_counter() - started:.0f} s)", flush=True)

    try:
        outcome = execute(
            experiment,
            jobs,
            out,
            experiment.command(profile, args.only),
            place=chosen(args.jobs, args.scheduler),
            budget=args.budget,
            device=args.device,
            cheapest_first=args.cheapest_first,
            earlier=Earlier.of(args.take) if args.take else None,
            said=said,
        )
    except NoRoom as full:
        return _refuse(f"{full} Make room and give the same command: what is done is kept.")
    except (ReceiptError, PlaceError, DataError, OSError) as error:
        return _refuse(str(error))
    return _report(experiment, profile, out, outcome)


def _has(device: str) -> bool:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        return False
    return True


def _refuse(sentence: str) -> int:
    print(f"deqbook reproduce: {sentence}", file=sys.stderr)
    return 2


def _overview(experiments: dict[str, Experiment]) -> int:
    """List every experiment, what it consists of, and what the shipped results say."""
    from deqbook.experiments.receipts import read

    for one in experiments.values():
        print(f"{one.name}\n  {one.title}")
        for profile, cases in one.cases.items():
            print(f"  {profile:6} {len(cases())} cases: {one.sizes[profile]}")
        for profile, file in one.shipped.items():
            if file.is_file():
                results = read(file)
                words = f"{len(results.runs)} cases, verdict: {one.judge(results).word}"
                print(f"  ships  {profile}: {words}")
    return 0


def _report(experiment: Experiment, profile: str, out: Path, outcome: Outcome) -> int:
    """Print what came out and return the exit status."""
    for failure in outcome.failures:
        print(f"FAILED {failure.group} {failure.case}\n{failure.text}", file=sys.stderr)
    if outcome.failures:
        print(
            f"deqbook reproduce: {len(outcome.failures)} cases failed, so {out} was not written. "
            "What is done is kept: the same command tries the others again.",
            file=sys.stderr,
        )
        return 1
    results = outcome.results
    if results is not None:
        print(f"{len(results.runs)} runs in {out}\n{results.receipt}")
        print(experiment.judge(results))
        print("\n".join(_against_shipped(experiment, profile, results)))
    if outcome.left:
        print(
            f"The budget left {outcome.left} cases. They wait in {out}.cases: "
            "the same command goes on."
        )
        return 3
    return 0


def _against_shipped(experiment: Experiment, profile: str, results: Results) -> list[str]:
    """Say how far the new numbers are from those that ship."""
    from deqbook.experiments.earlier import differences
    from deqbook.experiments.receipts import ReceiptError, read

    if profile not in experiment.shipped:
        return ["No results of this size ship: nothing to compare with."]
    try:
        before = read(experiment.shipped[profile])
    except ReceiptError as error:
        return [f"Not compared with the shipped results: {error}"]
    return (experiment.compare or differences)(results, before)
