"""The link check asks doi.org whether a DOI exists, instead of the publisher that it leads to."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from deqbook.cli.links import handle_address


def process(app: Sphinx, uri: str) -> str | None:
    """Return the address to try in place of a DOI."""
    return handle_address(uri)


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen to the collection of links."""
    app.connect("linkcheck-process-uri", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
