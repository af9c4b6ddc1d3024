"""Launch and repository buttons for the place that a book is published from.

The sources name no repository, so that a fork needs no edit. On GitHub's runners the environment
says which repository this is; the pages then get a Binder button and a link to the sources. Built
anywhere else they have neither.

Cells that run inside the page (Thebe) are not offered, so its scripts are left out: the theme would
load them on every page, twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

BINDER = "https://mybinder.org"


def theme_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the theme options for the repository that the environment names, if any."""
    repository = environment.get("GITHUB_REPOSITORY")
    if not repository:
        return {"repository_url": "", "launch_buttons": {}}
    server = environment.get("GITHUB_SERVER_URL", "https://github.com")
    return {
        "repository_url": f"{server}/{repository}",
        "repository_branch": environment.get("GITHUB_REF_NAME", "main"),
        "use_repository_button": True,
        "use_issues_button": True,
        "launch_buttons": {"binderhub_url": BINDER, "notebook_interface": "jupyterlab"},
    }


def configure(app: Sphinx, config: Config) -> None:
    """Set the theme's options before the theme reads them."""
    config["html_theme_options"] = {**config.html_theme_options, **theme_options(os.environ)}


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
    app.connect("config-inited", configure, priority=100)
    app.connect("config-inited", without_thebe, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
