"""A build writes the pages that changed, and all pages when one says something new of itself.

Sphinx writes a page again when its source changed. But a page also shows numbers and titles of
others: "Theorem 3.4" in chapter 6 is wrong once a theorem is put before it in chapter 3. So what
pages can say of each other is digested when the reading is done, and a new digest writes the whole
book again. A change in prose leaves it as it was.

What a strict build has to find in a page it finds when it reads the page or when it writes it;
`deqbook build` starts from nothing after a build that failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)


def said_of_pages(env: BuildEnvironment) -> Iterator[tuple[str, Any]]:
    """Yield all that one page may show of another."""
    data = env.domaindata
    yield "titles", sorted((page, title.pformat()) for page, title in env.titles.items())
    yield "contents", sorted(env.toctree_includes.items())
    yield "sections", sorted(env.toc_secnumbers.items())
    yield "counted", sorted(env.toc_fignumbers.items())
    labels = data["std"]["labels"]
    yield "labels", sorted((name, *map(str, place)) for name, place in labels.items())
    yield "anchors", sorted(data["std"]["anonlabels"].items())
    yield "terms", sorted(data["std"]["terms"].items())
    yield "equations", sorted(data["math"]["objects"].items())
    yield (
        "package",
        sorted((name, *map(str, place)) for name, place in data["py"]["objects"].items()),
    )
    works = data.get("cite", {}).get("citations", ())
    yield "works", sorted((work.key, work.citation_id) for work in works)
    theorems = getattr(env, "proof_list", {})
    yield (
        "theorems",
        sorted((label, sorted(map(str, one.items()))) for label, one in theorems.items()),
    )
    exercises = getattr(env, "sphinx_exercise_registry", {})
    yield (
        "exercises",
        sorted(
            (label, one["docname"], one["type"], one["node"].starttag(), one["node"][0].astext())
            for label, one in exercises.items()
        ),
    )


def written_again(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Name the pages to write beside those that were read: all, or none."""
    before: dict[str, str] = getattr(env, "deqbook_said", {})
    said = {
        name: hashlib.sha256(str(value).encode()).hexdigest() for name, value in said_of_pages(env)
    }
    env.deqbook_said = said  # type: ignore[attr-defined]
    new = [name for name in said if said[name] != before.get(name)]
    if before and new:
        logger.info("deqbook: all pages are written, for the %s changed", ", ".join(new))
    return sorted(env.found_docs) if new else []


def remove_remains(app: Sphinx, exception: Exception | None) -> None:
    """Delete pictures of earlier builds that no page shows any more."""
    folder = Path(app.outdir) / "_images"
    if exception is None and app.builder.name == "html" and folder.is_dir():
        shown = {name for _, name in app.env.images.values()}
        for path in folder.iterdir():
            if path.name not in shown:
                path.unlink()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; it looks when everything has its number."""
    app.connect("env-get-updated", written_again, priority=900)
    app.connect("build-finished", remove_remains)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
