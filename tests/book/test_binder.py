"""What Binder runs, as far as it can be tried without Binder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@pytest.mark.parametrize("script", ["start", "postBuild", ".ci/run", ".ci/push-notebooks"])
def test_a_script_is_a_script(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK), f"chmod +x {script}"
    assert path.read_bytes().startswith(b"#!/")
    subprocess.run(["bash", "-n", path], check=True)


def test_binder_looks_at_the_top() -> None:
    """A folder of this name would hide environment.yml, start and postBuild from Binder."""
    assert not [name for name in ("binder", ".binder") if (ROOT / name).exists()]


def test_jupyter_starts_with_one_thread() -> None:
    code = f"import os, sys; print([os.environ.get(n) for n in {THREADS}], sys.argv[1:])"
    clean = {name: value for name, value in os.environ.items() if name not in THREADS}
    command = [ROOT / "start", sys.executable, "-c", code, "lab", "--port=1 2"]
    done = subprocess.run(command, env=clean, check=True, capture_output=True, text=True)
    assert done.stdout == "['1', '1', '1'] ['lab', '--port=1 2']\n"


def test_a_chapter_opens_as_a_notebook(tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    if not (tools / "jupytext-config").is_file():
        pytest.skip("jupytext is not installed beside this Python")
    kept = {"HOME": str(tmp_path), "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([ROOT / "postBuild"], env=kept, cwd=tmp_path, check=True, capture_output=True)
    (settings,) = tmp_path.rglob("*.json")
    assert settings.is_relative_to(tmp_path / ".jupyter")
    viewers = json.loads(settings.read_text())["@jupyterlab/docmanager-extension:plugin"]
    assert viewers["defaultViewers"]["markdown"] == "Jupytext Notebook"
