"""What all tests share: one thread each, and how they are shared out among processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

#: Each test of this file takes a minute: it is shared out by itself, and first.
LONG = "test_chapters.py"
#: Threads of each test: one, unless portable.py tries what another number does to last digits.
THREADS = int(os.environ.get("DEQBOOK_TEST_THREADS", "1"))


#: Set where work is to be repeated that the build has done already; CI sets it.
REPEAT = "DEQBOOK_REPEAT"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests first, so that no process is left with one at the end."""
    items.sort(key=lambda item: item.path.name != LONG)
    if not os.environ.get(REPEAT):
        reason = f"the build has run this page; CI runs it twice, and so does {REPEAT}=1 make test"
        for item in items:
            if item.get_closest_marker("repeat"):
                item.add_marker(pytest.mark.skip(reason))


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    """Compute on one thread: the processes are the parallelism, and sums keep their order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(threads)


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
