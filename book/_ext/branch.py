"""The branch `notebooks`: what Colab and Binder open.

Colab opens notebooks that lie on GitHub, and Binder makes a machine from a branch. Chapters are
text, so neither can use them as they are. A build that knows its repository therefore also writes a
small tree, which the publishing workflow pushes as the only commit of that branch
(``.ci/push-notebooks``):

    04_ntk.ipynb, 04_ntk.student.ipynb, …   the notebooks of the site
    assignments/…                           those of the course, without solutions
    wheels/…                                the package as they use it
    environment.yml, start                  how Binder makes its machine
    README.md, LICENSE, LICENSE-CONTENT

Equal sources give equal trees, and a tree that is there already is not pushed: Binder would make a
new machine for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from coursework import FOLDER as ASSIGNMENTS
from notebooks import NOTEBOOKS, WHEELS
from place import home, site_address
from sphinx.application import Sphinx
from sphinx.util import logging

#: Where the tree lies, beside the site.
FOLDER = "notebooks-branch"
#: What of the checkout goes along as it is.
COPIED = ("start", "LICENSE", "LICENSE-CONTENT")
#: How the checkout's environment asks for the package.
_CHECKOUT = re.compile(r"^(\s*- )-e \.$", re.MULTILINE)

logger = logging.getLogger(__name__)


def environment(text: str, wheel: str) -> str:
    """Return an environment that takes the package from a wheel instead of a checkout."""
    changed, count = _CHECKOUT.subn(rf"\g<1>./{wheel}", text)
    if count != 1:
        raise ValueError(f"environment.yml has {count} lines `- -e .`; exactly one is expected.")
    return changed


def title_of(notebook: Path) -> str:
    """Return the title that a notebook begins with."""
    first = json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"]
    return "".join(first).partition("\n")[0].lstrip("# ").replace("|", r"\|")


def readme(book: str, site: str, notebooks: list[Path], assignments: list[Path]) -> str:
    """Return what a visitor of the branch reads."""
    rows = [
        f"| {title_of(path)} | [notebook]({path.name}) "
        f"| [without solutions]({path.stem}.student.ipynb) |"
        for path in notebooks
        if not path.stem.endswith(".student")
    ]
    course = [
        f"| {title_of(path)} | [notebook]({ASSIGNMENTS}/{path.name}) |" for path in assignments
    ]
    if course:
        course = ["", "| assignment | |", "| --- | --- |", *course]
    online = f" Read it [online]({site})." if site else ""
    return "\n".join(
        [
            f"# {book}: notebooks",
            "",
            f"Every chapter of the book as a notebook, for Colab and Binder.{online}",
            "A build writes this branch anew; changes belong into the chapters of the main branch.",
            "",
            "| chapter | | |",
            "| --- | --- | --- |",
            *rows,
            *course,
            "",
            "Text and figures: CC BY 4.0 (`LICENSE-CONTENT`). Code: BSD 3-clause (`LICENSE`).",
            "",
        ]
    )


def write_tree(root: Path, site: Path, tree: Path, book: str, address: str) -> None:
    """Write the branch from a built site; what was in the folder before is removed."""
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(site / NOTEBOOKS, tree)
    for folder in (WHEELS, ASSIGNMENTS):
        if (site / folder).is_dir():
            shutil.copytree(site / folder, tree / folder)
    for name in COPIED:
        shutil.copy(root / name, tree / name)
    (wheel,) = (tree / WHEELS).glob("*.whl")
    wanted = (root / "environment.yml").read_text(encoding="utf-8")
    text = environment(wanted, wheel.relative_to(tree).as_posix())
    (tree / "environment.yml").write_text(text, encoding="utf-8")
    notebooks, course = sorted(tree.glob("*.ipynb")), sorted((tree / ASSIGNMENTS).glob("*.ipynb"))
    (tree / "README.md").write_text(readme(book, address, notebooks, course), encoding="utf-8")


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the branch when the notebooks are there, for a repository that is known."""
    site = Path(app.outdir)
    if exception is not None or app.builder.name != "html":
        return
    tree = site.parent / FOLDER
    shutil.rmtree(tree, ignore_errors=True)
    if not home(os.environ).public or not (site / WHEELS).is_dir():
        return
    write_tree(Path(app.srcdir), site, tree, app.config.html_title, site_address(os.environ))
    logger.info("deqbook: the branch of notebooks is in %s", tree.name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the branch at the end of a build, after the notebooks."""
    app.connect("build-finished", write, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
