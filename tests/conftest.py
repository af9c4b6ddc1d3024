"""How the tests are shared out among processes (``pytest -n 2``)."""

from __future__ import annotations

from typing import Any

import pytest

#: Each test of this file takes a minute: it is shared out by itself, and first.
LONG = "test_chapters.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests first, so that no process is left with one at the end."""
    items.sort(key=lambda item: item.path.name != LONG)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep every other file in one process, since its tests share what they compute and build."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return nodeid if path.endswith(LONG) else path

    config.option.loadscopereorder = False  # the order of collection is the right one
    return ByFile(config, log)
