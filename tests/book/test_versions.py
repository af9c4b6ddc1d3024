"""One list of exact versions holds what pyproject.toml asks for; environment.yml asks for the same.

What the package and the pages import is asked for by the package itself.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import digest
import jupytext
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[2]


def constraints() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for pin in pins:
        (spec,) = pin.specifier
        assert spec.operator == "==", f"constraints.txt: `{pin}` is not an exact version"
    return {canonicalize_name(p.name): Version(next(iter(p.specifier)).version) for p in pins}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


#: What conda-forge calls otherwise.
ELSEWHERE = {"pytorch-cpu": "torch", "matplotlib-base": "matplotlib"}


def environment() -> tuple[list[Requirement], list[str]]:
    """Return what conda installs, under the names of Python, and the lines that it hands to pip."""
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    dependencies = yaml.safe_load(text)["dependencies"]
    conda = [
        Requirement(entry) for entry in dependencies if isinstance(entry, str) and ">=" in entry
    ]
    for entry in conda:
        entry.name = ELSEWHERE.get(entry.name, entry.name)
    (pip,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    return conda, pip


def requirements() -> list[Requirement]:
    declared = project()
    extras = declared["optional-dependencies"]
    texts = list(declared["dependencies"])
    for extra in sorted(extras):
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


def test_conda_asks_for_what_the_package_asks_for() -> None:
    declared = project()
    texts = [*declared["dependencies"], *declared["optional-dependencies"]["book"]]
    asked = {Requirement(text).name: Requirement(text).specifier for text in texts}
    conda, _ = environment()
    assert {entry.name for entry in conda} >= {"torch", "numpy", "scipy", "scikit-learn"}
    for entry in conda:
        assert entry.specifier == asked[entry.name], f"{entry}, but pyproject.toml {asked}"
        assert entry.specifier.contains(constraints()[canonicalize_name(entry.name)])


def test_conda_hands_pip_the_package_alone() -> None:
    """With exact versions pip would replace conda's torch by its own, CUDA libraries included."""
    _, pip = environment()
    assert pip == ["-e ."]


def test_conda_installs_a_python_that_the_package_takes() -> None:
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    (python,) = re.findall(r"^  - python=(.+)$", text, re.MULTILINE)
    assert SpecifierSet(project()["requires-python"]).contains(python)
    assert "  - pip\n" in text


def third_party(names: frozenset[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in names}
    return {top for top in tops - {"deqbook"} if top not in sys.stdlib_module_names}


def imported_by(path: Path) -> set[str]:
    """Return the modules of others that a source file or a page imports, anywhere in it."""
    if path.suffix == ".py":
        trees = [digest.parse_cell(path.read_text(encoding="utf-8"), path.name)]
    else:
        cells = [c for c in jupytext.read(path).cells if c.cell_type == "code"]
        trees = [digest.parse_cell(cell.source, path.name) for cell in cells]
    package = ".".join(path.relative_to(ROOT / "src").parts[:-1]) if path.suffix == ".py" else ""
    return set().union(*(third_party(digest.imported_names(tree, package)) for tree in trees))


def test_what_is_imported_is_seen() -> None:
    page = ROOT / "chapters" / "04_ntk.md"
    assert {"sklearn", "torch", "numpy"} <= imported_by(page)
    assert "PIL" in imported_by(ROOT / "src" / "deqbook" / "viz" / "slider.py")


def test_what_package_and_pages_import_is_asked_for() -> None:
    declared = {canonicalize_name(Requirement(d).name) for d in project()["dependencies"]}
    rooms = {"course/grading": "course", "experiments": "cluster"}  # which extra may serve where
    asked = {
        ROOT / "src" / "deqbook" / room: declared
        | {canonicalize_name(Requirement(d).name) for d in project()["optional-dependencies"][name]}
        for room, name in rooms.items()
    }
    providers = packages_distributions()
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "chapters").glob("*.md")]
    missing = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources
        for module in imported_by(path)
        if not next((all_ for room, all_ in asked.items() if path.is_relative_to(room)), declared)
        & {canonicalize_name(d) for d in providers.get(module, [module])}
    }
    assert not missing, "not in [project.dependencies] of pyproject.toml: " + "; ".join(
        sorted(missing)
    )
