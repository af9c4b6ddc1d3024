"""Fixtures for the tests of the book."""

from __future__ import annotations

from pathlib import Path

import pytest
from built_site import require_site


@pytest.fixture(scope="session")
def site() -> Path:
    """Return the built site; without one these tests fail and say how to build it."""
    return require_site()
