"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: Path, text: str) -> None:
    """Write a file so that it is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
