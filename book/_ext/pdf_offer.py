"""The site offers the book as PDF, when there is one and it says what the site says.

Beside each PDF lies a digest of the pages that it was printed from. After every build the digest of
the pages just written is compared with it. If they agree, the file is put into the site, and the
home page and the menu of downloads name it; otherwise they do not.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paper
import yaml
from sphinx.application import Sphinx

#: The papers, as files and readers call them.
PAPERS = {"a4": "A4", "letter": "Letter"}
FOLDER = "pdf"
#: Where the home page names the files. What stands between the two marks is written here.
PLACE = re.compile(r"(<!-- deq-pdf -->).*?(<!-- /deq-pdf -->)", re.DOTALL)
IN_MENU = re.compile(r"<!-- deq-pdf-menu -->.*?<!-- /deq-pdf-menu -->", re.DOTALL)
MENU = re.compile(r'<div class="dropdown dropdown-download-buttons">.*?(?=</ul>)', re.DOTALL)
ARTICLE = re.compile(r"<article.*</article>", re.DOTALL)
IMAGE = re.compile(r'src="(?:\.\./)*_images/([^"]+)"')
#: Beside the pages, what decides how the book looks on paper.
MAKERS = (
    "_config.yml",
    "_toc.yml",
    "book/_ext/paper.py",
    "book/_ext/printing.py",
    "book/_static/paper.css",
    "book/_static/paper.js",
)


def file(work: Path, size: str) -> Path:
    """Return the file with the book on this paper."""
    return work / f"deqbook-{size}.pdf"


def stamp(work: Path, size: str) -> Path:
    """Return the file with the digest of what it was printed from."""
    return file(work, size).with_suffix(".digest")


def is_fresh(work: Path, size: str, now: str) -> bool:
    """Say whether there is a file of this paper that was printed from what has this digest."""
    note = stamp(work, size)
    return file(work, size).is_file() and note.is_file() and note.read_text("utf-8") == now


def forget(work: Path, size: str) -> None:
    """Let no file count as printed while a new one is being written."""
    stamp(work, size).unlink(missing_ok=True)


def remember(work: Path, size: str, now: str) -> None:
    """Note what a file was printed from."""
    stamp(work, size).write_text(now, encoding="utf-8")


def digest(root: Path, site: Path) -> str:
    """Digest what the site's pages say, and what decides how that looks on paper."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    total = hashlib.sha256()
    for name in MAKERS:
        total.update((root / name).read_bytes())
    for entry in paper.entries(toc):
        html = (site / f"{entry.name}.html").read_text(encoding="utf-8")
        found = ARTICLE.search(html)
        article = PLACE.sub(r"\1\2", found[0] if found else "")
        total.update(article.encode())
        for name in IMAGE.findall(article):
            total.update((site / "_images" / name).read_bytes())
    return total.hexdigest()


def named(html: str, files: Mapping[str, str]) -> str:
    """Name these files, each with its address, on a page; with none, take the names away."""
    html = IN_MENU.sub("", html)
    links = " and ".join(f'<a href="{to}">{PAPERS[size]}</a>' for size, to in files.items())
    told = f"<p><strong>On paper.</strong> The whole book as a PDF: {links}.</p>" if files else ""
    html = PLACE.sub(rf"\g<1>{told}\2", html)
    items = "".join(
        f'<li><a href="{to}" class="btn btn-sm dropdown-item" title="Download the whole book" '
        'data-bs-placement="left" data-bs-toggle="tooltip">'
        '<span class="btn__icon-container"><i class="fas fa-book"></i></span>'
        f'<span class="btn__text-container">whole book, {PAPERS[size]}</span></a></li>'
        for size, to in files.items()
    )
    menu = f"<!-- deq-pdf-menu -->{items}<!-- /deq-pdf-menu -->" if files else ""
    return MENU.sub(lambda found: found[0] + menu, html, count=1)


def offer(root: Path, site: Path, work: Path) -> list[str]:
    """Put into the site what was printed from it, and nothing else; return which papers."""
    target = site / FOLDER
    shutil.rmtree(target, ignore_errors=True)
    now = digest(root, site) if any(file(work, size).is_file() for size in PAPERS) else ""
    fresh = [size for size in PAPERS if is_fresh(work, size, now)]
    for size in fresh:
        target.mkdir(exist_ok=True)
        shutil.copyfile(file(work, size), file(target, size))
    for page in site.rglob("*.html"):
        if page.is_relative_to(site / "_static"):
            continue
        up = "../" * (len(page.relative_to(site).parts) - 1)
        files = {size: f"{up}{FOLDER}/{file(target, size).name}" for size in fresh}
        before = page.read_text(encoding="utf-8")
        after = named(before, files)
        if after != before:
            page.write_text(after, encoding="utf-8")
    return fresh


def after_build(app: Sphinx, exception: Exception | None) -> None:
    """Offer what there is, at the end of a build that made the site."""
    if exception is None and app.builder.name == "html":
        site = Path(app.outdir)
        offer(Path(app.srcdir), site, site.parent / paper.WORK)


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen to the end of a build."""
    app.connect("build-finished", after_build, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
