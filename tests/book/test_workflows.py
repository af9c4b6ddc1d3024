"""The workflows: they ask for what exists, with no more rights than they need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: The only jobs that may write, and what.
WRITERS = {
    "publish/deploy": {"pages": "write", "id-token": "write"},
    "publish/notebooks": {"contents": "write"},
    "release/release": {"contents": "write"},
}


def load(path: Path) -> dict[Any, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs() -> dict[str, dict[str, Any]]:
    return {
        f"{path.stem}/{name}": job for path in WORKFLOWS for name, job in load(path)["jobs"].items()
    }


every_job = pytest.mark.parametrize("name", jobs())


def lines(job: dict[str, Any]) -> list[str]:
    return [line.strip() for step in job["steps"] for line in step.get("run", "").splitlines()]


def test_there_are_workflows() -> None:
    assert [path.stem for path in WORKFLOWS] == ["links", "publish", "release"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_only_unless_a_job_says_more(path: Path) -> None:
    assert load(path)["permissions"] == {"contents": "read"}


@every_job
def test_rights_of_a_job(name: str) -> None:
    job = jobs()[name]
    assert job.get("permissions") == WRITERS.get(name)
    assert job["timeout-minutes"] <= 90


@every_job
def test_what_a_job_runs_exists(name: str) -> None:
    made = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for line in lines(jobs()[name]):
        if target := re.match(r"make ([\w-]+)", line):
            assert target[1] in made, f"no target {target[1]} in the Makefile"
        for script in re.findall(r"(?:^| )(\.ci/[\w.-]+)", line):
            assert (ROOT / script).is_file(), f"no {script}"
    script = "\n".join(lines(jobs()[name]))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@every_job
def test_a_job_that_sets_up_asks_for_torch_without_cuda(name: str) -> None:
    """Whatever comes later finds the environment made, with this torch."""
    making = [line for line in lines(jobs()[name]) if line.startswith(("make", ".ci/run", ".venv"))]
    assert not making or making[0] == "make setup TORCH=cpu"


@every_job
def test_actions_are_githubs_own_at_a_major_version(name: str) -> None:
    used = [step["uses"] for step in jobs()[name]["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in used)


def test_nothing_that_publishes_is_cut_short() -> None:
    for path in WORKFLOWS:
        assert "concurrency" not in load(path), "it would cancel a run with its deployment"
    stops = {
        name for name, job in jobs().items() if job.get("concurrency", {}).get("cancel-in-progress")
    }
    assert stops == {"publish/build"}
    assert jobs()["publish/deploy"]["concurrency"]["cancel-in-progress"] is False


def test_only_the_main_branch_is_published() -> None:
    for name in ("publish/deploy", "publish/notebooks"):
        condition = jobs()[name]["if"]
        assert "refs/heads/main" in condition
        assert "pull_request" in condition


def test_one_version_of_each_action_in_all_workflows() -> None:
    used = {step["uses"] for job in jobs().values() for step in job["steps"] if "uses" in step}
    names = [action.partition("@")[0] for action in used]
    assert len(names) == len(set(names)), sorted(used)


def test_no_workflow_names_a_repository() -> None:
    for path in WORKFLOWS:
        assert "github.com/" not in path.read_text(encoding="utf-8")
