"""``deqbook pdf``: the whole book as one PDF, printed from the built site by Chromium.

First the site is built, strictly; so the PDF has its numbers, and nothing is executed that the
build would not execute. Then ``book/_ext/printing.py`` prints it.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from deqbook.cli import build

#: Papers, as the printer names them.
PAPERS = {"a4": ("a4",), "letter": ("letter",), "both": ("a4", "letter")}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command ``pdf`` to the program's parser."""
    parser = subparsers.add_parser(
        "pdf",
        help="build the book and print it to _build/pdf",
        description=(
            "Build the book as HTML, print it with Chromium to _build/pdf, and let the built site "
            "offer the files. DEQBOOK_BROWSER names a browser that is not found by itself."
        ),
    )
    parser.add_argument("--root", type=Path, help="root of the book (default: as `deqbook build`)")
    parser.add_argument("--paper", choices=list(PAPERS), default="both", help="default: both")
    parser.add_argument("-v", "--verbose", action="store_true", help="show Sphinx's own output")
    parser.set_defaults(run=run, builder="html", fresh=False)


def run(args: argparse.Namespace) -> int:
    """Build, print, and return the exit status."""
    if importlib.util.find_spec("pypdf") is None:
        print(
            f"deqbook pdf: the module pypdf is not installed in {sys.prefix}; "
            'run `make pdf`, or `pip install -c constraints.txt -e ".[book]"`.',
            file=sys.stderr,
        )
        return 2
    status = build.run(args)
    if status != 0:
        return status
    root = build.find_root(args.root)
    printer = root / "book" / "_ext" / "printing.py"
    return subprocess.run([sys.executable, printer, root, *PAPERS[args.paper]]).returncode
