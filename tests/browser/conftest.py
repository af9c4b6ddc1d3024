"""A headless Chromium and a local server for the built site."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from built_site import require_site
from chromium import require_browser

from deqbook.cli.browser import FLAGS

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a headless browser."""
    path = require_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield running
        running.close()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serve files without a line on the terminal for each."""

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Serve the built site on this machine and return its address."""
    handler = partial(QuietHandler, directory=str(require_site()))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
