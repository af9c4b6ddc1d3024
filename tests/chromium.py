"""Which browser the browser tests drive, and what happens where there is none."""

from __future__ import annotations

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = f"no browser found ({', '.join(NAMES)}); browser tests need Debian's `chromium` package"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def find_browser() -> str | None:
    """Return the path of an installed browser, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def require_browser() -> str:
    """Return the path of the browser, or fail."""
    path = find_browser()
    if path is None:
        pytest.fail(MISSING)
    return path


def skip_without_browser() -> None:
    """Skip the calling test module as one where there is no browser and none is demanded."""
    if find_browser() is None and not os.environ.get("DEQBOOK_REQUIRE_BROWSER"):
        pytest.skip(MISSING, allow_module_level=True)
