"""What students get: no solution, nothing of the verifiers, and metadata that nbgrader knows."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbformat
import notebooks
import pytest
from built_site import ROOT, SITE, require_site
from course.class_of import ASSIGNMENTS, all_wrong

from deqbook.cli import main
from deqbook.course.first_cell import Wheel
from deqbook.course.grading import assignment as course
from deqbook.course.grading.release import (
    Published,
    instructors,
    nbgrader_at_work,
    published,
    released,
    secrets_of,
)

NAMES = course.names(ASSIGNMENTS)


@pytest.fixture(scope="module", params=NAMES)
def assignment(request: pytest.FixtureRequest) -> course.Assignment:
    return course.load(ASSIGNMENTS, request.param)


def secrets(assignment: course.Assignment) -> list[str]:
    found = secrets_of(
        assignment, (ASSIGNMENTS / "verify" / f"{assignment.short}.py").read_text("utf-8")
    )
    assert len(found) > 50  # else this would test nothing
    return found


def test_no_line_of_a_solution_or_verifier_is_released(assignment: course.Assignment) -> None:
    text = nbformat.writes(released(assignment, salt="2026"))
    shown = "\n".join(cell.source for cell in released(assignment).cells)
    assert not [line for line in secrets(assignment) if line in shown or line in text]
    assert "SOLUTION" not in text
    assert "Rubric" not in text
    assert "NotImplementedError" in text


def test_the_instructors_version_has_them(assignment: course.Assignment) -> None:
    text = "\n".join(cell.source for cell in instructors(assignment).cells)
    assert "BEGIN SOLUTION" in text
    assert "Rubric" in text


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("wheel")
    made = notebooks.build_wheel(ROOT, folder)
    with zipfile.ZipFile(folder / made.name) as archive:
        names = [
            name for name in archive.namelist() if name.endswith((".py", ".pyi", ".md", "METADATA"))
        ]
        return {name: archive.read(name).decode() for name in names}


def test_no_line_of_them_is_in_the_wheel(
    assignment: course.Assignment, wheel: dict[str, str]
) -> None:
    assert f"deqbook/course/{assignment.short}.py" in wheel
    assert not [
        name for name in wheel if "verify" in Path(name).parts or "wrong" in Path(name).parts
    ]
    lines = secrets(assignment)
    found = [(name, line) for name, text in wheel.items() for line in lines if line in text]
    assert not found


def test_no_line_of_them_is_in_the_site(assignment: course.Assignment) -> None:
    if not (SITE / "index.html").is_file():
        pytest.skip("no built site here; `make test` builds it first")
    lines = secrets(assignment)
    for path in require_site().rglob("*"):
        if path.suffix in (".html", ".ipynb", ".txt", ".md", ".js", ".json") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not [line for line in lines if line in text], path


def test_nbgrader_accepts_the_metadata(assignment: course.Assignment) -> None:
    notebook = released(assignment)
    with nbgrader_at_work():
        from nbgrader.preprocessors import CheckCellMetadata
        from nbgrader.utils import is_grade, is_locked

        CheckCellMetadata().preprocess(notebook, {})
        for cell in notebook.cells:
            marked = cell.metadata.get("nbgrader")
            if marked:
                assert marked["schema_version"] == 3
            if is_grade(cell) and cell.cell_type == "code":
                assert is_locked(cell)
                assert cell.metadata["editable"] is False
                assert "checksum" in marked


def test_points_and_kinds_are_as_announced(assignment: course.Assignment) -> None:
    assert sum(assignment.tests.values()) + sum(assignment.manual.values()) == 100
    text = "\n".join(cell.source for cell in released(assignment).cells)
    listed = re.findall(
        r"^\| (\d) .*? \| (implement|estimate|falsify|explain) \| (\d+) \|", text, re.M
    )
    assert 4 <= len(listed) <= 6
    assert {kind for _, kind, _ in listed} == {"implement", "estimate", "falsify", "explain"}
    assert sum(int(points) for *_, points in listed) == 100
    titles = re.findall(r"^## Task (\d)\. .*\((\d+) points\)$", text, re.MULTILINE)
    assert titles == [(number, points) for number, _, points in listed]


def test_there_are_wrong_answers_for_every_verifier(assignment: course.Assignment) -> None:
    wrong = all_wrong(assignment.short)
    assert len(wrong) >= 4
    assert {test for one in wrong for test in one.lost} == set(assignment.tests)


def test_no_solution_of_it_is_in_the_book(assignment: course.Assignment) -> None:
    """A task whose code stands in a chapter would be no task."""
    chapters = "\n".join(p.read_text("utf-8") for p in (ROOT / "chapters").glob("*.md"))
    code = [
        line
        for cell in assignment.master.cells
        if course.found(cell).get("solution") and cell.cell_type == "code"
        for line in secrets_of(assignment, "")
        if line in cell.source
    ]
    assert code
    assert not [line for line in code if line in chapters]


def test_the_salt_and_the_site_are_in_the_notebook(assignment: course.Assignment) -> None:
    where = Published("https://example.org/book/", Wheel("https://example.org/book/x.whl", "ab"))
    text = "\n".join(cell.source for cell in released(assignment, salt="2026", where=where).cells)
    assert 'SALT = "2026"' in text
    assert 'WHEEL = "https://example.org/book/x.whl"\nSHA256 = "ab"' in text
    assert '"DEQBOOK_SITE", "https://example.org/book/"' in text
    compile(text_of(released(assignment, where=where), "install"), "install", "exec")


def text_of(notebook: nbformat.NotebookNode, name: str) -> str:
    (cell,) = [cell for cell in notebook.cells if course.identity(cell) == name]
    return cell.source


def test_the_wheel_is_found_on_the_site(tmp_path: Path) -> None:
    assert published("https://example.org", None) == Published("https://example.org/")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "deqbook-1-py3-none-any.whl").write_bytes(b"x")
    found = published("https://example.org", tmp_path)
    assert found.wheel is not None
    assert found.wheel.address == "https://example.org/wheels/deqbook-1-py3-none-any.whl"
    assert found.wheel.sha256 == hashlib.sha256(b"x").hexdigest()
    assert published("", tmp_path).wheel is None
    beside = published("", tmp_path, "../").wheel
    assert beside is not None
    assert beside.address == "../wheels/deqbook-1-py3-none-any.whl"


def test_the_first_cell_installs_nothing_where_the_package_is(
    assignment: course.Assignment,
) -> None:
    source = text_of(released(assignment), "install")
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_elsewhere_the_first_cell_installs_what_is_missing_and_the_wheel(
    assignment: course.Assignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEQBOOK_SITE", "")
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: asked.append(command[5:]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    has = [SimpleNamespace(metadata={"Name": name}) for name in ("NumPy", "lazy_loader", "torch")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: has)
    where = Published("https://example.org/", Wheel("https://example.org/wheels/x.whl", "ab"))
    exec(text_of(released(assignment, where=where), "install"), {})
    assert asked[-1] == ["--no-deps", "https://example.org/wheels/x.whl#sha256=ab"]
    needs = re.findall(r"(?m)^[a-z-]+", "\n".join(command[0] for command in asked[:-1]))
    assert "scipy" in needs
    assert not {"numpy", "lazy-loader", "torch"} & set(needs)
    with pytest.raises(RuntimeError, match="does not know where it is published"):
        exec(text_of(released(assignment), "install"), {})


def test_the_command_writes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["assignments", "--root", str(ROOT), "--out", str(tmp_path), "--salt", "x y"]) == 0
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.ipynb")) == sorted(
        f"{kind}/{name}.ipynb" for kind in ("instructor", "release") for name in NAMES
    )
    assert "--site" in capsys.readouterr().out
    assert main(["assignments", "a99", "--root", str(ROOT), "--out", str(tmp_path)]) == 2
    assert "no assignment 'a99'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("marked", "says"),
    [
        ([{"grade_id": "x"}, {"grade_id": "x"}], "used twice"),
        ([{"grade_id": ""}], "empty"),
        ([{"grade_id": "test-x", "grade": True}], "no points"),
        ([{"grade_id": "x", "grade": True, "points": 1}], "must be called test-NAME"),
    ],
)
def test_a_badly_marked_master_is_refused(marked: list[dict[str, object]], says: str) -> None:
    cells = [nbformat.v4.new_code_cell("", metadata={"nbgrader": one}) for one in marked]
    with pytest.raises(course.AssignmentError, match=says):
        course.complete(nbformat.v4.new_notebook(cells=cells), "a99.md")


def test_an_assignment_without_verifiers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a77_x.md").write_text("text")
    with pytest.raises(
        course.AssignmentError, match=r"has no verifiers; they belong into .*a77\.py"
    ):
        course.load(tmp_path, "a77")
