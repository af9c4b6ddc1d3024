"""The buttons of a page: open it in Colab or on Binder, download its notebook, view its source.

All of them are made here, for the place that ``place.py`` finds in the environment. Notebooks are
files of the site, so a chapter offers them always. Colab, Binder and the source need a repository;
where none is known, these buttons are absent. Colab and Binder open the notebooks of the branch
that ``branch.py`` describes: to them a chapter's source is a text file.

Cells that run inside the page (Thebe) are not offered, so its scripts are left out: the theme would
load them on every page, twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from notebooks import CHAPTERS, notebook_path
from place import NOTEBOOKS_BRANCH, Home, home
from sphinx.application import Sphinx
from sphinx.config import Config

COLAB = "https://colab.research.google.com"
BINDER = "https://mybinder.org"
#: The theme's own group of downloads, to which the notebooks are added; its words, made plainer.
DOWNLOADS = "download-buttons"
PLAINER = {".md": "Source (.md)", ".pdf": "Print or save (.pdf)"}
_MODULE = re.compile(r"^\.\. automodule:: ([\w.]+)$", re.MULTILINE)

Button = dict[str, Any]


def link(text: str, url: str, icon: str, tooltip: str, label: str) -> Button:
    """Return a button in the form that the theme draws."""
    parts = {"url": url, "text": text, "icon": icon, "tooltip": tooltip, "label": label}
    return {"type": "link", **parts}


def is_chapter(page: str) -> bool:
    """Tell whether a page has a notebook."""
    return page.startswith(f"{CHAPTERS}/")


def elsewhere(notebook: str, at: Home) -> dict[str, str]:
    """Return where a notebook of the branch can be run; nowhere, if no repository is known."""
    if not at.public:
        return {}
    path = quote(notebook)
    return {
        "Colab": f"{COLAB}/github/{at.public}/blob/{NOTEBOOKS_BRANCH}/{path}",
        "Binder": f"{BINDER}/v2/gh/{at.public}/{NOTEBOOKS_BRANCH}?urlpath=lab/tree/{path}",
    }


def launch_buttons(page: str, at: Home) -> list[Button]:
    """Return the buttons that run a chapter elsewhere."""
    if not is_chapter(page) or not (ways := elsewhere(PurePosixPath(notebook_path(page)).name, at)):
        return []
    return [
        link(
            "Open in Colab",
            ways["Colab"],
            "_static/images/logo_colab.png",
            "Run this page on Google Colab; an account is needed",
            "launch-colab",
        ),
        link(
            "Launch Binder",
            ways["Binder"],
            "_static/images/logo_binder.svg",
            "Run this page on Binder; the start takes some minutes",
            "launch-binder",
        ),
    ]


def download_buttons(page: str, address: Callable[[str, int], str]) -> list[Button]:
    """Return the buttons for a chapter's notebooks; `address` is Sphinx's ``pathto``."""
    if not is_chapter(page):
        return []
    return [
        link(
            "Download notebook",
            address(notebook_path(page), 1),
            "fas fa-code",
            "This page as a Jupyter notebook, solutions folded",
            "download-notebook",
        ),
        link(
            "Without solutions",
            address(notebook_path(page, student=True), 1),
            "fas fa-graduation-cap",
            "The notebook without solutions, for students",
            "download-student-notebook",
        ),
    ]


def source_of(root: Path, page: str) -> str:
    """Return the file or folder, from the root, that a page's text comes from; empty if none.

    A page of the reference is made from docstrings: its source is the module that it documents, or
    the folder that holds all of them.
    """
    source = root / f"{page}.md"
    if not source.is_file():
        return ""
    files = []
    for module in _MODULE.findall(source.read_text(encoding="utf-8")):
        stem = root / "src" / module.replace(".", "/")
        files.append(stem if stem.is_dir() else stem.with_suffix(".py"))
    found = Path(os.path.commonpath(files)) if files else source
    return found.relative_to(root).as_posix()


def source_button(root: Path, page: str, at: Home) -> list[Button]:
    """Return the button that shows what a page is made from."""
    path = source_of(root, page)
    url = at.address(path, "tree" if (root / path).is_dir() else "blob") if path else ""
    if not url:
        return []
    # Markdown as it was written; else GitHub would show its own idea of a chapter.
    url += "?plain=1" if path.endswith(".md") else ""
    about = "View source: " + ("this page's text" if path.endswith(".md") else path)
    return [link("", url, "fab fa-github", about, "view-source")]


def add_buttons(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give a page its buttons, after the theme has made its own."""
    if app.builder.name != "html" or "header_buttons" not in context:
        return
    root, at, header = Path(app.srcdir), home(os.environ), context["header_buttons"]
    for group in header:
        if group.get("label") == DOWNLOADS:
            for button in group["buttons"]:
                button["text"] = PLAINER.get(button["text"], button["text"])
            group["buttons"][:0] = download_buttons(pagename, context["pathto"])
    header[:0] = source_button(root, pagename, at)
    if launches := launch_buttons(pagename, at):
        tooltip, icon = "Run this page", "fas fa-rocket"
        group = {"type": "group", "tooltip": tooltip, "icon": icon, "label": "launch-buttons"}
        header.insert(0, {**group, "buttons": launches})


def without_thebe(app: Sphinx, config: Config) -> None:
    """Disconnect what sphinx-thebe, which Jupyter Book always loads, puts into pages."""
    for event in ("env-before-read-docs", "doctree-resolved"):
        app.events.listeners[event] = [
            listener
            for listener in app.events.listeners[event]
            if not getattr(listener.handler, "__module__", "").startswith("sphinx_thebe")
        ]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("config-inited", without_thebe, priority=100)
    # The theme makes its buttons at 501.
    app.connect("html-page-context", add_buttons, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
