"""The built site, for the tests that look at it: where it is and which pages it has."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"


def toc_pages() -> list[str]:
    """Return every page that _toc.yml names, in order."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    found: list[str] = []

    def walk(entry: object) -> None:
        if isinstance(entry, dict):
            found.extend(entry[key] for key in ("root", "file") if key in entry)
            for value in entry.values():
                walk(value)
        elif isinstance(entry, list):
            for value in entry:
                walk(value)

    walk(toc)
    return found


def require_site() -> Path:
    """Return the folder of the built site, or say how to make it."""
    if not (SITE / "index.html").is_file():
        raise FileNotFoundError(f"no built site at {SITE}; run `make book` (`make test` does).")
    return SITE
