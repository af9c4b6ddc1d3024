"""What happens to the browser tests where there is no browser."""

from __future__ import annotations

import os

import pytest

from deqbook.cli import browser


def require_browser() -> str:
    """Return the path of the browser, or fail."""
    path = browser.find(os.environ)
    if path is None:
        pytest.fail(browser.missing(os.environ))
    return path


def skip_without_browser() -> None:
    """Skip the calling test module as one where there is no browser and none is demanded."""
    if browser.find(os.environ) is None and not os.environ.get("DEQBOOK_REQUIRE_BROWSER"):
        pytest.skip(browser.missing(os.environ), allow_module_level=True)
