"""README and CONTRIBUTING say what is: the figure is the chapter's, the examples run."""

import re
import subprocess
import sys
from pathlib import Path

import built_site
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_figure_is_the_one_in_chapter_1():
    page = built_site.require_site() / "chapters" / "01a_contraction.html"
    figure = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").find(id="fig-count")
    drawn = (page.parent / figure.find("img")["src"]).read_bytes()
    kept = ROOT / "book" / "_static" / "readme-figure.svg"
    assert kept.read_bytes() == drawn, (
        f"{kept.name} is not the figure that chapter 1 draws now; copy the image of #fig-count "
        "from the built page over it"
    )


def test_the_readme_example_runs(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "contraction" in done.stdout
    assert "50/50 samples converged" in done.stdout
    assert "holds:" in done.stdout


def test_the_walks_of_contributing_run(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    model, claim = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    done = subprocess.run(
        [sys.executable, "-c", model], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    for part in ("contraction: Lipschitz constant = 0.9 < 1", "8/8 samples converged", "[8, 8]"):
        assert part in done.stdout
    # the body between the decorator and the last line of the class is all that a model takes
    assert len(model.partition("class Gated")[2].partition("\n\n\n")[0].splitlines()) <= 30
    shown = claim + "\nprint(check('gao2022.lemma2.2', seed=7))\n"
    done = subprocess.run(
        [sys.executable, "-c", shown], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("holds: A scaled random matrix")
