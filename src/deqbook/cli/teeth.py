"""``deqbook teeth``: plant bugs and count which claims notice them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deqbook.teeth.survey import Found, Report

__all__ = ["add_parser", "run"]

LOG = Path("_build") / "teeth" / "log.jsonl"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "teeth",
        help="plant bugs and count which claims notice them",
        description="Mutation testing of the claims. For each claim, bugs are planted into the "
        "functions that run under it, one at a time, and the claim is run on a seed. An "
        "interrupted run goes on where it was.",
    )
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help="ids; none: all claims")
    parser.add_argument("--chapter", action="append", help="only this chapter; may be repeated")
    # Left open, they are those of the receipt that the counts are entered into, if there is one.
    parser.add_argument("--seed", type=int, help="the seed of the claims (default 0)")
    parser.add_argument("--sample", help="a word that the sample is drawn by (default 0)")
    parser.add_argument("--computation", type=int, metavar="N", help="bugs in code (default 12)")
    parser.add_argument("--statement", type=int, metavar="N", help="errors in bounds (default 8)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="run on a Dask cluster, a claim at a time on each worker; see deqbook verify",
    )
    parser.add_argument("--log", type=Path, default=LOG, help=f"where to go on (default {LOG})")
    parser.add_argument("--receipt", type=Path, metavar="FILE", help="enter the counts into FILE")
    parser.add_argument(
        "--reasons",
        action="store_true",
        help="plant nothing: look up the reasons of what the receipt lists again",
    )
    parser.add_argument("--quiet", action="store_true", help="counts alone, no survivors")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    if sys.version_info < (3, 11) or not hasattr(os, "fork"):
        print("deqbook teeth: needs Python 3.11 or newer, and fork (Linux).", file=sys.stderr)
        return 2
    if args.jobs < 1:
        print("deqbook teeth: --jobs must be at least 1.", file=sys.stderr)
        return 2
    # A forked child of a process with threads may hang: one thread, from the first import on.
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from deqbook.claims.registry import load_chapters
    from deqbook.cli.verify import choose
    from deqbook.experiments.places import PlaceError
    from deqbook.teeth import survey

    torch.set_num_threads(1)
    try:
        chosen = choose(load_chapters(), args.claims, args.chapter)
    except LookupError as error:
        print(f"deqbook teeth: {error}", file=sys.stderr)
        return 2
    _settle(args)
    ids = [c.id for c in chosen if c.body is not None]
    if args.reasons:
        return _reread(ids, args)
    width = max((len(i) for i in ids), default=0)
    started, kept, failed, broken = time.perf_counter(), {}, 0, False
    try:
        for claim_id, report in zip(ids, _reports(ids, args)):
            if isinstance(report, str):
                print(f"{claim_id:{width}}  {report}", flush=True)
                failed += 1
                continue
            kept[claim_id] = report.as_json()
            counts = _counts(kept[claim_id])
            print(f"{claim_id:{width}}  {counts}  {report.seconds:6.1f} s", flush=True)
            if not args.quiet:
                for f in report.survivors:
                    why = f" [{f.excuse.reason}]" if f.excuse else ""
                    print(f"    {f.kind}: {f.place}, line {f.line}: {f.change}{why}", flush=True)
    except PlaceError as error:
        _complain(f"{error} What is done is in {args.log}: the same command goes on.")
        broken = True
    total = survey.totals(kept.values())
    print(f"{len(kept)} claims: {_counts(total)}; {time.perf_counter() - started:.0f} s.")
    if args.receipt is not None:
        _enter(args.receipt, kept, args)
    return 2 if broken else 1 if failed else 0


def _reports(ids: list[str], args: argparse.Namespace) -> Iterator[Report | str]:
    """Yield the report of each claim, or why there is none: from here, or from a cluster."""
    from deqbook.teeth import survey

    how = {"sample": args.sample, "each": (args.computation, args.statement), "seed": args.seed}
    if args.scheduler is None:
        for claim_id in ids:
            try:
                yield from survey.survey([claim_id], jobs=args.jobs, log=args.log, **how)
            except ValueError as error:
                yield str(error)
        return
    from deqbook.experiments.places import Cluster
    from deqbook.experiments.serving import Steady
    from deqbook.teeth.apart import survey_apart

    known: dict[str, list[Found]] = {claim_id: [] for claim_id in ids}
    for row in survey.noted(args.log):
        known.get(row.claim, []).append(row)
    place = Steady(Cluster(args.scheduler), _complain, lambda done: survey.note(done[1], args.log))
    for report, _ in place.map(partial(survey_apart, **how), ids, known.values()):
        yield report


def _complain(text: str) -> None:
    from deqbook.runtime import progress

    progress("")
    print(f"deqbook teeth: {text}", file=sys.stderr)


def _reread(ids: list[str], args: argparse.Namespace) -> int:
    """Enter into the receipt what the excuses say now; name the bugs without a reason."""
    from deqbook.teeth import survey

    if args.receipt is None or not args.receipt.is_file():
        print("deqbook teeth: --reasons needs --receipt FILE, a file with counts.", file=sys.stderr)
        return 2
    before = json.loads(args.receipt.read_text(encoding="utf-8"))["claims"]
    kept = {i: survey.reread(i, before[i]) for i in ids if i in before}
    for claim_id, row in kept.items():
        for kind, key, reason in row["survivors"]:
            if not reason:
                print(f"{claim_id}: {kind}: {key} has no reason")
    print(f"{len(kept)} claims: {_counts(survey.totals(kept.values()))}.")
    _enter(args.receipt, kept, args)
    return 0


def _counts(row: dict[str, Any]) -> str:
    parts = []
    for kind in ("computation", "statement"):
        caught, planted, equivalent = row[kind]
        also = f" (+{equivalent} equivalent)" if equivalent else ""
        parts.append(f"{kind} {caught}/{planted}{also}")
    return ", ".join(parts)


def _settle(args: argparse.Namespace) -> None:
    """Fill in what was left open: as in the receipt, or as usual."""
    usual: dict[str, Any] = {"seed": 0, "sample": "0", "computation": 12, "statement": 8}
    if args.receipt is not None and args.receipt.is_file():
        kept = json.loads(args.receipt.read_text(encoding="utf-8"))
        usual |= {"seed": kept["seed"], "sample": kept["sample"], **kept["each"]}
    for name, value in usual.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def _enter(file: Path, kept: dict[str, Any], args: argparse.Namespace) -> None:
    """Enter the reports into a file that may hold others."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"claims": {}}
    settings = {
        "sample": args.sample,
        "seed": args.seed,
        "each": {"computation": args.computation, "statement": args.statement},
    }
    claims = dict(sorted((before["claims"] | kept).items()))
    text = json.dumps({**settings, "claims": claims}, ensure_ascii=False, indent=1)
    file.write_text(text + "\n", encoding="utf-8")
