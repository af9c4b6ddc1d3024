"""The order of the rooms, and what an edit reaches.

``lint-imports`` holds the contracts of ``.importlinter``; here one of each kind is broken on
purpose, in a copy, and must be noticed.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import digest
import jupytext
import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PAGES = sorted(path.name for path in (SOURCE / "deqbook" / "pages").glob("p[0-9]*"))
MODULES = sorted((SOURCE / "deqbook").rglob("*.py"))

#: Experiments that another page builds on: an edit there re-executes that page too.
SHARED_LABS = {
    "p01a_contraction": {"p01b_monotone", "p04_ntk"},
    "p01b_monotone": {"p03c_monotone_opteq", "p05a_hidden_objective"},
    "p02_implicit_gradients": {"p03c_monotone_opteq", "p04_ntk"},
    "p03a_linear_rates": {"p04_ntk"},
    "p03d_real_data": {"p06b_bound_on_data"},
    "p05b_selection": {"p05c_opteq_images"},
    "p06a_kernel_machine": {"p06b_bound_on_data"},
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
    ]
    return subprocess.run(
        [*command, "--no-cache", "--config", str(ROOT / ".importlinter")],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


def test_the_contracts_are_kept() -> None:
    done = lint(SOURCE)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "planted", "broken"),
    [
        ("solvers.py", "import deqbook.models.dense", "Dependencies point downwards"),
        ("models/dense.py", "import deqbook.pages.p01a_contraction.lab", "point downwards"),
        (
            "pages/p02_implicit_gradients/claims.py",
            "import deqbook.pages.p01a_contraction.claims",
            "No page imports another page's claims",
        ),
        (
            "pages/p03a_linear_rates/lab.py",
            "import deqbook.pages.p01a_contraction.claims",
            "A lab knows no claims",
        ),
        ("models/base.py", "import deqbook.models.opteq", "No two modules of a package"),
    ],
)
def test_a_planted_violation_is_noticed(
    tmp_path: Path, module: str, planted: str, broken: str
) -> None:
    shutil.copytree(SOURCE / "deqbook", tmp_path / "deqbook")
    file = tmp_path / "deqbook" / module
    text = file.read_text(encoding="utf-8")
    at = text.index("from __future__ import annotations\n")
    file.write_text(text[:at] + f"from __future__ import annotations\n{planted}\n" + text[at:])
    done = lint(tmp_path)
    assert done.returncode != 0
    broken_part = done.stdout.split("Broken contracts")[1]
    assert broken in " ".join(broken_part.split())


def test_no_private_name_crosses_a_module() -> None:
    crossing = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {alias.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deqbook")
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    ]
    assert not crossing, "\n".join(crossing)


def page_files(page: str) -> set[Path]:
    """Return every file that the key of a page covers, but for its data."""
    notebook = jupytext.read(ROOT / "chapters" / f"{page.removeprefix('p')}.md")
    names = {
        name
        for cell in notebook.cells
        if cell.cell_type == "code"
        for name in digest.imported_names(digest.parse_cell(cell.source))
    }
    return set(digest.closure(names, [SOURCE]).values())


@pytest.fixture(scope="module")
def reached() -> dict[str, set[Path]]:
    return {page: page_files(page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_an_edit_in_a_page_folder_re_executes_that_page_and_no_other(
    page: str, reached: dict[str, set[Path]]
) -> None:
    folder = SOURCE / "deqbook" / "pages" / page
    for path in folder.rglob("*.py"):
        pages = {name for name, files in reached.items() if path in files}
        assert page in pages, f"{path} is read by no page; delete it, or import it"
        allowed = SHARED_LABS.get(page, set()) if "claims" not in path.stem else set()
        if path.name != "__init__.py":
            assert pages - {page} <= allowed, f"{path} re-executes {sorted(pages)}"


def test_every_page_has_a_folder_and_every_folder_a_page() -> None:
    chapters = {f"p{path.stem}" for path in (ROOT / "chapters").glob("*.md")}
    assert chapters == set(PAGES)
