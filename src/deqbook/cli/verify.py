"""``deqbook verify``: run the claims and print the ledger."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deqbook import __version__

if TYPE_CHECKING:
    from deqbook.claims.registry import Claim, Verdict

__all__ = ["add_parser", "choose", "run", "seeds"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "verify",
        help="run every claim and its controls",
        description="Run claims over several seeds. Exit status 1 if a claim fails or a control "
        "does not break.",
    )
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help="ids, e.g. gao2022.lemma2.2")
    parser.add_argument(
        "--chapter",
        action="append",
        help="only this chapter, e.g. 01a_contraction; may be repeated",
    )
    parser.add_argument(
        "--seeds",
        type=seeds,
        default=range(5),
        metavar="N | A-B,…",
        help="how many, from 0 on (default 5), or which: 0-4,100-104",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="run on a Dask cluster, e.g. tcp://10.0.0.1:8786; its workers need deqbook[cluster]",
    )
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="an earlier --json output: list every value that differs from it by a bit",
    )
    parser.add_argument("--list", action="store_true", help="list the claims, run nothing")
    parser.set_defaults(run=run)


def seeds(text: str) -> list[int]:
    """Read seeds: a number of them, ``5``, or ranges and single ones, ``0-4,100-104`` or ``7,``.

    >>> seeds("3"), seeds("0-1,100-102"), seeds("7,")
    ([0, 1, 2], [0, 1, 100, 101, 102], [7])
    """
    try:
        if text.isdecimal():
            found = list(range(int(text)))
        else:
            ends = [part.partition("-") for part in text.split(",") if part]
            found = [s for a, dash, b in ends for s in range(int(a), int(b if dash else a) + 1)]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(
            f"{text!r} names no seeds, or one twice; write 5 for 0…4, or 0-4,100-104."
        )
    return found


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    # Imported here so that `deqbook --help` does not wait for torch.
    from deqbook.claims.registry import load_chapters, verify
    from deqbook.experiments.places import PlaceError
    from deqbook.experiments.places import chosen as place
    from deqbook.experiments.serving import Steady
    from deqbook.runtime import progress

    registry = load_chapters()
    try:
        chosen = choose(registry, args.claims, args.chapter)
    except LookupError as error:
        print(f"deqbook verify: {error}", file=sys.stderr)
        return 2
    if args.list:
        return _print_list(chosen, as_json=args.json)
    if args.jobs < 1:
        print("deqbook verify: --jobs must be at least 1.", file=sys.stderr)
        return 2
    started = time.perf_counter()
    verdicts: list[Verdict] = []
    broken = False
    ids = [c.id for c in chosen]
    workers = min(args.jobs, len(ids) * len(args.seeds))
    alone = workers == 1 and args.scheduler is None
    executor = None if alone else Steady(place(workers, args.scheduler), _complain)
    try:
        for verdict in verify(ids, seeds=args.seeds, executor=executor):
            verdicts.append(verdict)
            progress(f"{len(verdicts)}/{len(ids)} {verdict.claim.id}: {verdict.status}")
    except PlaceError as error:
        broken = True
        _complain(f"{error} {len(verdicts)} of {len(ids)} claims are done.")
    finally:
        progress("")
    seconds = time.perf_counter() - started
    rows = [v.as_json() for v in verdicts]
    if args.against is not None:
        lines = differences(json.loads(args.against.read_text(encoding="utf-8"))["claims"], rows)
        print("\n".join([*lines, f"{len(lines)} differences from {args.against.name}."]))
        return 2 if broken else 1 if lines else 0
    if args.json:
        document = {"version": __version__, "seeds": list(args.seeds), "seconds": round(seconds, 1)}
        print(json.dumps({**document, "claims": rows}, ensure_ascii=False, indent=1))
    else:
        _print_ledger(verdicts, len(args.seeds), seconds)
    if broken:
        return 2
    return 0 if all(v.ok for v in verdicts) else 1


def _complain(text: str) -> None:
    from deqbook.runtime import progress

    progress("")
    print(f"deqbook verify: {text}", file=sys.stderr)


def differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """List what differs between two runs, bit by bit: values, bounds, verdicts, names, controls.

    Claims and seeds that one of the two did not run are left out.
    """
    known = {claim["id"]: claim for claim in before}
    found: list[str] = []
    for claim in after:
        earlier = {run["seed"]: run for run in known.get(claim["id"], {"runs": []})["runs"]}
        for run in claim["runs"]:
            if run["seed"] in earlier:
                where = f"{claim['id']}, seed {run['seed']}"
                found += _between(where, earlier[run["seed"]], run)
    return found


def _between(where: str, a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    if a["status"] != b["status"]:
        yield f"{where}: {a['status']} → {b['status']}"
    parts = [("", a["measurements"], b["measurements"])]
    controls = {c["broken"]: c["measurements"] for c in a["controls"]}
    if list(controls) != [c["broken"] for c in b["controls"]]:
        yield f"{where}: other controls"
    parts += [
        (f", control {c['broken']!r}", controls[c["broken"]], c["measurements"])
        for c in b["controls"]
        if c["broken"] in controls
    ]
    for part, old, new in parts:
        if [m["name"] for m in old] != [m["name"] for m in new]:
            yield f"{where}{part}: other measurements"
            continue
        for m, n in zip(old, new):
            if m["hex"] != n["hex"] or m["tol"] != n["tol"] or m["relation"] != n["relation"]:
                yield f"{where}{part}: {m['name']}: {m['hex']} → {n['hex']}"


def choose(registry: dict[str, Claim], ids: list[str], chapters: list[str] | None) -> list[Claim]:
    """Return the claims named, or all, of these chapters; ``LookupError`` if there is none."""
    unknown = [i for i in ids if i not in registry]
    if unknown:
        raise LookupError(f"no such claim: {', '.join(unknown)}. See deqbook verify --list.")
    chosen = [registry[i] for i in ids] if ids else list(registry.values())
    if chapters is not None:
        known = sorted({c.chapter for c in registry.values()})
        for chapter in chapters:
            if chapter not in known:
                raise LookupError(f"no chapter {chapter!r} has claims; known: {', '.join(known)}.")
        chosen = [c for c in chosen if c.chapter in chapters]
    if not chosen:
        raise LookupError("nothing to verify: no claim is both named and in that chapter.")
    return chosen


def _print_list(claims: list[Claim], *, as_json: bool) -> int:
    if as_json:
        keys = ("id", "title", "source", "chapter", "ref")
        print(json.dumps([{k: getattr(c, k) for k in keys} for c in claims], ensure_ascii=False))
        return 0
    width = max(len(c.id) for c in claims)
    for c in claims:
        print(f"{c.id:{width}}  {c.chapter}  {c.title}")
    return 0


def _standing(verdict: Verdict) -> str:
    return verdict.claim.standing if verdict.ok else verdict.status


def _print_ledger(verdicts: list[Verdict], seeds: int, seconds: float) -> None:
    width = max((len(v.claim.id) for v in verdicts), default=0)
    for v in verdicts:
        broken = sum(c.breaks for e in v.evidence for c in e.controls)
        total = sum(len(e.controls) for e in v.evidence)
        slack = f"{v.slack:9.3g}" if v.status != "uncheckable" else "        –"
        print(
            f"{v.claim.id:{width}}  {_standing(v):14} slack {slack}"
            f"  controls broken {broken}/{total}  {v.seconds:6.1f} s  {v.claim.title}"
        )
        if not v.ok:
            for e in v.evidence:
                if e.status != "holds":
                    print("    " + str(e).replace("\n", "\n    "))
    good = sum(v.ok for v in verdicts)
    print(f"{good} of {len(verdicts)} claims stand on {seeds} seeds, {seconds:.1f} s.")
