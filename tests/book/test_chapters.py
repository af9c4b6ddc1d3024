"""Run every chapter again, as a stranger would: the same numbers, within the memory budget."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import built_site
import jupytext
import nbformat
import pytest
from jupyter_cache import get_cache
from nbclient import NotebookClient
from portable import printed_numbers

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = [page for page in built_site.toc_pages() if page.startswith("chapters/")]
MEMORY_GB = 1.5
WIDEST_CODE = 79
#: A measured number below this is a rounding error, and no two processors share it.
LEAST = 1e-11

PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any) -> list[Any]:
    """Return what a cell prints, in one piece, and what it displays; no counts and no ids."""
    streams = [o.text for o in cell.outputs if o.output_type == "stream"]
    return ["".join(streams)] + [dict(o.data) for o in cell.outputs if o.output_type != "stream"]


def executed(sources: list[str]) -> list[Any]:
    """Return the code cells as the build ran them, outputs included, from its cache."""
    cache = get_cache(ROOT / "_build" / ".jupyter_cache")
    for record in sorted(cache.list_cache_records(), key=lambda r: r.accessed, reverse=True):
        cells = code_cells(cache.get_cache_bundle(record.pk).nb)
        if [cell.source for cell in cells] == sources:
            return cells
    raise LookupError("the build's cache has no run of this text; run `make book` again")


@pytest.mark.book
@pytest.mark.repeat
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_second_run_gives_the_same_outputs_within_memory(chapter, monkeypatch):
    built_site.require_site()
    again = jupytext.read(ROOT / f"{chapter}.md")
    before = executed([cell.source for cell in code_cells(again)])
    again.cells.append(nbformat.v4.new_code_cell(PEAK))
    monkeypatch.setenv("DEQBOOK_STATIC", "1")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src")]))
    NotebookClient(again, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()

    *cells, last = code_cells(again)
    for old, new in zip(before, cells):
        if "wall-clock" in new.metadata.get("tags", []):
            continue  # the one thing that no two runs share
        assert shown(new) == shown(old), f"other output from:\n{new.source}"
    peak = int(last.outputs[0].text) / 1024**2
    assert peak <= MEMORY_GB, f"{chapter} took {peak:.2f} GB; the budget is {MEMORY_GB} GB"


def glued_rounding(cells: list[Any]) -> dict[str, str]:
    """Return the numbers below LEAST that cells hand to the prose, by name."""
    found = {}
    for output in (o for cell in cells for o in cell.outputs if o.output_type == "display_data"):
        name = output.metadata.get("scrapbook", {}).get("name")
        text = output.data.get("application/papermill.record/text/plain", "")
        if name and len(text) < 20 and any(0 < abs(x) < LEAST for x in printed_numbers(text)):
            found[name] = text
    return found


@pytest.mark.book
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_prose_shows_no_rounding_error(chapter):
    built_site.require_site()
    page = jupytext.read(ROOT / f"{chapter}.md")
    found = glued_rounding(executed([cell.source for cell in code_cells(page)]))
    assert not found, f"another processor prints others; say `to rounding` in words: {found}"


def test_a_rounding_error_in_the_prose_is_seen():
    def cell(name: str, text: str) -> Any:
        made = nbformat.v4.new_output(
            "display_data",
            {"application/papermill.record/text/plain": text},
            metadata={"scrapbook": {"name": name}},
        )
        return nbformat.v4.new_code_cell(outputs=[made])

    cells = [cell("a", "3.1e-16"), cell("b", "'7·10⁻¹⁴'"), cell("c", "0.0"), cell("d", "'10⁻⁹'")]
    assert glued_rounding(cells).keys() == {"a", "b"}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_code_fits_the_page(chapter):
    long = [
        line
        for cell in code_cells(jupytext.read(ROOT / f"{chapter}.md"))
        for line in cell.source.splitlines()
        if len(line) > WIDEST_CODE
    ]
    assert not long, "\n".join([f"wider than {WIDEST_CODE} columns:", *long])


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_page_uses_what_it_imports(chapter, tmp_path):
    cells = code_cells(jupytext.read(ROOT / f"{chapter}.md"))
    source = tmp_path / "page.py"
    source.write_text("\n".join(cell.source for cell in cells), encoding="utf-8")
    command = ["ruff", "check", "--isolated", "--no-cache", "--select", "F401,F811,F821", source]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
