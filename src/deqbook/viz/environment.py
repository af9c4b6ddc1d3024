"""Where the code is running: a plain script, a notebook with a kernel, or the book's build."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["STATIC_VARIABLE", "has_live_widgets", "is_static", "shell"]

STATIC_VARIABLE = "DEQBOOK_STATIC"
"""Set to 1 by the book's build: what is displayed must then work without a kernel."""


def shell() -> Any | None:
    """Return the running IPython shell, or None in a plain script or without IPython.

    >>> shell() is None  # in a plain script
    True
    """
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


def is_static() -> bool:
    """Tell whether pages for readers without a kernel are being made.

    >>> is_static() == (os.environ.get("DEQBOOK_STATIC") == "1")
    True
    """
    return os.environ.get(STATIC_VARIABLE, "") == "1"


def has_live_widgets() -> bool:
    """Tell whether a reader sits before a kernel that can answer a control.

    >>> has_live_widgets()  # in a plain script
    False
    """
    if is_static() or not hasattr(shell(), "kernel"):
        return False
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True
