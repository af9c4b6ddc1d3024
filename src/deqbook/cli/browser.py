"""The browser that prints the book and shows its pages to the tests: which one, and its flags."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

#: What it may be called, and the variable that names another one.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VARIABLE = "DEQBOOK_BROWSER"
#: No sandbox: the pages are the book's own, and containers often allow none. No calls of its own.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def find(environment: Mapping[str, str]) -> str | None:
    """Return the path of the browser that the environment names, else of the first installed."""
    named = environment.get(VARIABLE)
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)


def missing(environment: Mapping[str, str]) -> str:
    """Say that there is none, and what to do."""
    if named := environment.get(VARIABLE):
        return f"{VARIABLE} names {named}, which is no program."
    return (
        f"no browser found ({', '.join(NAMES)}). Install Debian's `chromium` package or Google "
        f"Chrome, or name a browser in {VARIABLE}."
    )
