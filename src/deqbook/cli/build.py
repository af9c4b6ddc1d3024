"""``deqbook build``: the book as HTML, with every warning an error.

A build goes on from the last one that succeeded: it reads the pages that changed, and writes what
then looks different (`book/_ext/incremental.py`). After a failed build, or when anything changed
that shapes all pages, it starts from nothing, so that a fault in an unchanged page is not missed.
The execution of notebooks is reused in either case; its cache covers everything they depend on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from deqbook.cli import links

#: What makes a folder the root of the book.
MARKERS = ("_config.yml", "_toc.yml", "book/_ext/honest_cache.py")
#: What shapes every page: folders and files whose change starts a build from nothing.
SHAPING = (
    "_config.yml",
    "_toc.yml",
    "book/_ext",
    "book/_static",
    "book/references.bib",
)
#: The place of publication is read from these.
PLACE = (
    "GITHUB_REPOSITORY",
    "GITHUB_SERVER_URL",
    "GITHUB_REF_NAME",
    "DEQBOOK_SITE",
    "DEQBOOK_SALT",
)
#: Holds the fingerprint of what the built site was shaped by; it is there only after success.
COMPLETE = "complete.txt"
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
    parser.add_argument(
        "--fresh", action="store_true", help="read and write every page, whatever was built before"
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
    complete, shape = root / "_build" / COMPLETE, fingerprint(root, os.environ)
    fresh = args.fresh or args.builder != "html" or not goes_on(complete, shape)
    complete.unlink(missing_ok=True)
    if args.builder == "html" and fresh:  # without remains of earlier builds
        for name in ("html", "jupyter_execute"):
            shutil.rmtree(root / "_build" / name, ignore_errors=True)
        (root / "_build" / "notebooks.pickle").unlink(missing_ok=True)
    status = run_jupyter_book(root, args.builder, args.verbose, fresh)
    seconds = time.perf_counter() - start
    if status == 0 and args.builder == "html":
        complete.write_text(shape, encoding="utf-8")
    pages = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    print("\n".join(describe(pages)))
    # Jupyter Book puts it there, whatever is built.
    found = root / "_build" / "html" / "output.json"
    if args.builder == "linkcheck" and found.is_file():
        status = report_links(found.replace(root / "_build" / "links.json"))
        found.with_suffix(".txt").unlink(missing_ok=True)
    index = root / "_build" / "html" / "index.html"
    if status != 0:
        hint = "" if args.verbose else " (all of Sphinx's output: deqbook build --verbose)"
        print(f"deqbook build: failed after {seconds:.1f} s; the warnings above say why{hint}.")
        return 1
    result = str(index) if args.builder == "html" else "no link is broken"
    print(f"Built in {seconds:.1f} s: {result}")
    return 0


def fingerprint(root: Path, environment: Mapping[str, str]) -> str:
    """Digest what shapes all pages: settings, extensions, styles, tools, the place."""
    tools = sorted(f"{tool.name} {tool.version}" for tool in metadata.distributions())
    found = hashlib.sha256("\n".join([platform.python_version(), *tools]).encode())
    for name in SHAPING:
        path = root / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix != ".pyc":
                found.update(file.relative_to(root).as_posix().encode())
                found.update(file.read_bytes())
    for name in PLACE:
        found.update(f"{name}={environment.get(name)}".encode())
    return found.hexdigest()


def goes_on(complete: Path, shape: str) -> bool:
    """Say whether there is a finished build of the same shape to go on from."""
    site = complete.with_name("html") / "index.html"
    return site.is_file() and complete.is_file() and complete.read_text(encoding="utf-8") == shape


def report_links(output: Path) -> int:
    """Print what the link check found, also for a workflow's summary; 1 if a link is broken."""
    found = links.read(output)
    print("\n".join(links.describe(found)))
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(page, "a", encoding="utf-8") as summary:
            summary.write(links.summary(found))
    return int(any(link.verdict == links.BROKEN for link in found))


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


def run_jupyter_book(root: Path, builder: str, verbose: bool, fresh: bool) -> int:
    """Run Jupyter Book strictly; show its warnings and this book's own progress.

    It runs in a process of its own, since it edits ``sys.path`` and docutils' global tables.
    In a link check a warning is a link that did not answer, which `links` judges.
    """
    strict = ["-W", "-n"] if builder == "html" else []
    command = [
        sys.executable,
        "-c",
        JUPYTER_BOOK,
        *("build", str(root), *strict, "--keep-going", "--builder", builder),
        *(["--all"] if fresh else []),
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
