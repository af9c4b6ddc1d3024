"""Bugs that a claim once did not notice, or well might not: each is planted and must be noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomllib

from deqbook.teeth import bench, planting

BUGS = [
    pytest.param(bug, claim_id, id=f"{claim_id}: {bug['name']}")
    for file in sorted((Path(__file__).parent / "planted").glob("*.toml"))
    for bug in tomllib.loads(file.read_text(encoding="utf-8"))["bug"]
    for claim_id in bug["claims"]
]


@pytest.mark.parametrize(("bug", "claim_id"), BUGS)
def test_a_planted_bug_is_noticed(bug: dict[str, Any], claim_id: str) -> None:
    def planted() -> dict[str, Any]:
        planting.edit(bug["module"], bug["old"], bug["new"])
        return bench.judge(claim_id, seed=0)

    (outcome,) = bench.run([bench.Task(bug["name"], planted, 60)], jobs=1)
    assert outcome.result["noticed"] not in ("", "ended without a word"), bug["name"]
