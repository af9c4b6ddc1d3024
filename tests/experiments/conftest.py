"""Where the tests of experiments keep their files, and a cluster for those that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_cluster


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a result file to be; the tiny experiment notes beside it what it does."""
    monkeypatch.setenv("TINY", str(tmp_path))
    # Other processes have to find the tiny experiment.
    monkeypatch.setenv("PYTHONPATH", str(Path(tiny_cluster.__file__).parent))
    return tmp_path / "r.json"


@pytest.fixture
def cluster(out: Path) -> Iterator[tiny_cluster.TinyCluster]:
    pytest.importorskip("distributed")
    servers = tiny_cluster.TinyCluster(out.parent)
    yield servers
    servers.stop()
