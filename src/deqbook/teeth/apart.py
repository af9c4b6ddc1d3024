"""Survey a claim from a process that has threads, as the workers of a cluster have.

Mutants run in forks, and the fork of a process with threads may hang, which would count as noticed.
So a worker starts an interpreter of its own: this module, which reads what to do and writes what
came of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from deqbook.teeth.survey import Found, Report, note, noted, survey

__all__ = ["survey_apart"]


def survey_apart(
    claim_id: str, known: Sequence[Found], *, sample: str, each: tuple[int, int], seed: int
) -> tuple[Report | str, list[Found]]:
    """Return the report of one claim, or why there is none, and the rows that are not ``known``."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        note(known, log)
        asked = {"claim": claim_id, "sample": sample, "each": each, "seed": seed, "log": str(log)}
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(asked),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            told = done.stderr.strip().rpartition("\n")[2]
            how = told or f"the interpreter ended with status {done.returncode}"
            return f"{claim_id}: {how}", noted(log)[len(known) :]
        report = json.loads(done.stdout)
        found = tuple(Found(**row) for row in report.pop("found"))
        return Report(found=found, **report), noted(log)[len(known) :]


PR_SET_PDEATHSIG = 1


def main() -> None:
    """Do what standard input asks for; answer on standard output."""
    if sys.platform == "linux":  # nobody waits for an answer whose worker was killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    import torch

    from deqbook.claims.registry import load_chapters

    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    load_chapters()
    try:
        (report,) = survey(
            [asked["claim"]],
            sample=asked["sample"],
            each=tuple(asked["each"]),
            seed=asked["seed"],
            log=Path(asked["log"]),
        )
    except ValueError as error:
        sys.exit(str(error))
    json.dump(asdict(report), sys.stdout)


if __name__ == "__main__":
    main()
