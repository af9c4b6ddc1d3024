"""``deqbook build``: the book as HTML, with every warning an error.

All pages are read again each time, so that a fault in an unchanged page is not missed; what is
reused is the execution of the notebooks, whose cache covers everything they depend on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: What makes a folder the root of the book.
MARKERS = ("_config.yml", "_toc.yml", "book/_ext/honest_cache.py")
#: What of the build a reader of the terminal wants to see begins so.
PROGRESS = "deqbook: "
#: Jupyter Book's command line; it adds a traceback of its own to an error that was told already.
JUPYTER_BOOK = """
import sys
from jupyter_book.cli.main import main
try:
    main()
except RuntimeError:
    sys.exit(1)
"""


class BuildError(RuntimeError):
    """The build cannot start; the message says why and what to do."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command ``build`` to the program's parser."""
    parser = subparsers.add_parser(
        "build",
        help="build the book as HTML, strictly",
        description="Build the book as HTML. Any warning or failing notebook is an error.",
    )
    parser.add_argument(
        "--root",
        type=Path,
        help="root of the book (default: found from the working directory, else this checkout)",
    )
    parser.add_argument(
        "--builder", choices=["html", "linkcheck"], default="html", help="what to make of the pages"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show Sphinx's own output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build, report, and return the exit status: 0 when nothing warned and nothing failed."""
    try:
        require_tools()
        root = find_root(args.root)
    except BuildError as error:
        print(f"deqbook build: {error}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    report = root / "_build" / "execution.json"
    report.unlink(missing_ok=True)
    if args.builder == "html":  # what is published is this build, without remains of earlier ones
        shutil.rmtree(root / "_build" / "html", ignore_errors=True)
        shutil.rmtree(root / "_build" / "jupyter_execute", ignore_errors=True)
    status = run_jupyter_book(root, args.builder, args.verbose)
    seconds = time.perf_counter() - start
    pages = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    print("\n".join(describe(pages)))
    index = root / "_build" / "html" / "index.html"
    if status != 0:
        hint = "" if args.verbose else " (all of Sphinx's output: deqbook build --verbose)"
        print(f"deqbook build: failed after {seconds:.1f} s; the warnings above say why{hint}.")
        return 1
    result = str(index) if args.builder == "html" else "every link answers"
    print(f"Built in {seconds:.1f} s: {result}")
    return 0


def require_tools() -> None:
    """Refuse early, with the remedy, when the book's tools are not installed."""
    missing = [m for m in ("jupyter_book", "myst_nb") if importlib.util.find_spec(m) is None]
    if missing:
        raise BuildError(
            f"the modules {missing} are not installed in {sys.prefix}; "
            'run `make book`, or `pip install -c constraints.txt -e ".[book]"`.'
        )


def find_root(given: Path | None) -> Path:
    """Return the root of the book: as given, else around the working directory or this file."""
    if given is not None:
        candidates: Sequence[Path] = [given.resolve()]
    else:
        here, package = Path.cwd().resolve(), Path(__file__).resolve()
        candidates = [here, *here.parents, *package.parents]
    for folder in candidates:
        if all((folder / marker).is_file() for marker in MARKERS):
            return folder
    raise BuildError(
        f"no book at {candidates[0]} or around it (a book has {', '.join(MARKERS)}); "
        "run this in a clone of the repository, or give its folder with --root."
    )


def run_jupyter_book(root: Path, builder: str, verbose: bool) -> int:
    """Run Jupyter Book strictly; show its warnings and this book's own progress.

    It runs in a process of its own, since it edits ``sys.path`` and docutils' global tables.
    """
    command = [
        sys.executable,
        "-c",
        JUPYTER_BOOK,
        *("build", str(root), "--all", "-W", "-n", "--keep-going", "--builder", builder),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None  # asked for above
        for line in process.stdout:
            _, found, message = line.partition(PROGRESS)
            if verbose:
                print(line, end="", flush=True)
            elif found:
                print(message, end="", flush=True)
    return process.returncode


def describe(pages: dict[str, dict[str, Any]]) -> list[str]:
    """Say for each executed page what its execution cost, and how many there were in all."""
    lines = []
    for name, page in sorted(pages.items()):
        if not page["executed"]:
            what = "cached"
        elif page["seconds"] is None:
            what = "failed"
        else:
            what = f"executed in {page['seconds']:.1f} s"
        lines.append(f"  {name}: {what}")
    count = sum(page["executed"] for page in pages.values())
    return [*lines, f"{count} of {len(pages)} notebooks executed."]
