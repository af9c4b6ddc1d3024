"""One list of exact versions holds what pyproject.toml asks for and environment.yml installs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[2]
#: Peers for the benchmarks; whoever runs those installs them, the book does not need them.
UNPINNED_EXTRAS = {"bench"}


def constraints() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for pin in pins:
        (spec,) = pin.specifier
        assert spec.operator == "==", f"constraints.txt: `{pin}` is not an exact version"
    return {canonicalize_name(p.name): Version(next(iter(p.specifier)).version) for p in pins}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def environment() -> tuple[dict[str, str], list[str]]:
    """Return what conda installs, by name, and the lines that it hands to pip."""
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))[
        "dependencies"
    ]
    conda = [entry for entry in dependencies if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    return {name: version for name, _, version in (c.partition("=") for c in conda)}, pip


def requirements() -> list[Requirement]:
    declared = project()
    extras = declared["optional-dependencies"]
    texts = list(declared["dependencies"])
    for extra in sorted(extras.keys() - UNPINNED_EXTRAS):
        texts += extras[extra]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda r: r.name)
def test_every_requirement_has_an_exact_version(requirement: Requirement) -> None:
    pins = constraints()
    name = canonicalize_name(requirement.name)
    assert name in pins, f"{name} of pyproject.toml has no version in constraints.txt"
    assert requirement.specifier.contains(pins[name]), f"{name} {pins[name]} is not {requirement}"


def test_package_itself_sets_lower_bounds_only() -> None:
    pinned = [d for d in project()["dependencies"] if re.search(r"==|<", d)]
    assert not pinned, f"exact versions in the package break Colab: {pinned}"


def test_versions_carry_no_local_label() -> None:
    labelled = [name for name, version in constraints().items() if version.local]
    assert not labelled, f"write these without their +label: {labelled}"
    assert "deqbook" not in constraints()


def test_conda_installs_the_same_torch() -> None:
    conda, _ = environment()
    assert Version(conda["pytorch-cpu"]) == constraints()["torch"]


def test_conda_uses_the_constraints_and_the_book_extra() -> None:
    conda, pip = environment()
    assert "-c constraints.txt" in pip
    assert "-e .[book]" in pip
    assert {"python", "pip"} <= conda.keys()
    assert project()["requires-python"] == ">=3.10"
    assert Version(conda["python"]) >= Version("3.10")
