"""Chapters count from zero.

Sphinx counts the entries of a numbered table of contents from one. This book begins with a
chapter 0, which a reader may skip. So one is taken off every first number, after the sections are
numbered and before figures, theorems and equations are numbered after them.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector

number_figures = TocTreeCollector.assign_figure_numbers


def number_from_zero(self: TocTreeCollector, env: BuildEnvironment) -> list[str]:
    """Take one off each chapter's number, then number what is counted within chapters."""
    for page, numbers in env.toc_secnumbers.items():
        env.toc_secnumbers[page] = {
            anchor: (number[0] - 1, *number[1:]) if number else number
            for anchor, number in numbers.items()
        }
        for node in [*env.tocs[page].findall(nodes.reference), env.titles[page]]:
            if number := node.get("secnumber"):
                node["secnumber"] = [number[0] - 1, *number[1:]]
    return number_figures(self, env)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    TocTreeCollector.assign_figure_numbers = number_from_zero  # type: ignore[method-assign]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
