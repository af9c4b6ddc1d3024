"""The command line: parses, calls, prints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deqbook import __version__
from deqbook.cli import assignments, build, grade, pdf, reproduce, teeth, verify

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``deqbook`` and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="deqbook", description="The theory of deep equilibrium models, executed."
    )
    parser.add_argument("--version", action="version", version=f"deqbook {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (verify, teeth, build, pdf, reproduce, assignments, grade):
        module.add_parser(commands)
    args = parser.parse_args(argv)
    return int(args.run(args))
