"""The README shows the book as it is: its figure is the chapter's, its example runs."""

import re
import subprocess
import sys
from pathlib import Path

import built_site
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_figure_is_the_one_in_chapter_1():
    page = built_site.require_site() / "chapters" / "01_wellposedness.html"
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
