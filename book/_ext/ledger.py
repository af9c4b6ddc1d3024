"""The ledger page: every claim of the book with the evidence of the run that checked it.

Before a build reads its pages, ``deqbook verify`` runs for each chapter whose claims, or anything
they import, changed since its last run; a claim that fails, or a control that does not break it,
fails the build. The directive ``{ledger}`` sets the results as tables.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import digest
from docutils import nodes
from honest_cache import SAME_NUMBERS_TWICE
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

logger = logging.getLogger(__name__)

CHAPTERS = "chapters"
CLAIMS = "deqbook.claims"
SEEDS = 5
HEADINGS = ("Claim", "Source", "Slack", "Control", "Seconds", "Status")
STATUS = {
    "holds": "✓ holds",
    "uncheckable": "not checkable",
    "fails": "✗ fails",
    "unbroken": "✗ control holds",
}


def claims_module(chapter: str) -> str:
    """Name the module with a chapter's claims: ``01_wellposedness`` has ``deqbook.claims.ch01``."""
    return f"{CLAIMS}.ch{chapter.partition('_')[0]}"


def chapters_with_claims(chapters: Iterable[str], source: Path) -> list[str]:
    """Return the chapters that have a claims module; refuse a module that has no chapter."""
    folder = source.joinpath(*CLAIMS.split("."))
    modules = {f"{CLAIMS}.{path.stem}" for path in folder.glob("ch[0-9]*.py")}
    found = [chapter for chapter in sorted(chapters) if claims_module(chapter) in modules]
    orphans = modules - {claims_module(chapter) for chapter in found}
    if orphans:
        raise ExtensionError(
            f"{sorted(orphans)} belong to no chapter of _toc.yml, so the ledger would miss their "
            f"claims; add the chapter, or name the module after it (ch01 for 01_...)."
        )
    return found


def evidence_digest(chapter: str, source: Path, libraries: Iterable[str]) -> str:
    """Digest what a chapter's evidence depends on: the claims, all they import, and the data.

    Which data files the claims read is not declared anywhere, so all files that lie in an imported
    package count.
    """
    modules = digest.closure([claims_module(chapter)], [source])
    packages = [path.parent for path in modules.values() if path.name == "__init__.py"]
    data = [
        path
        for folder in packages
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in {".py", ".pyc", ".md", ".typed"}
    ]
    return digest.combine(
        digest.digest_modules(modules),
        digest.digest_files(data, source),
        digest.digest_environment(libraries, SAME_NUMBERS_TWICE),
        f"seeds={SEEDS}",
    )


def verify(chapters: Sequence[str], source: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """Run ``deqbook verify`` once for all these chapters, with this checkout's source.

    Return the evidence of every chapter whose claims all stand, and what is wrong with the others.
    """
    named = [word for chapter in chapters for word in ("--chapter", chapter)]
    command = ["verify", *named, "--seeds", str(SEEDS), "--json"]
    path = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-m", "deqbook", *command],
        env=os.environ | SAME_NUMBERS_TWICE | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    failed = f"`deqbook {' '.join(command)}` exited with status {done.returncode}"
    try:
        evidence = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise ExtensionError(
            f"{failed} and printed no JSON:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        ) from error
    rows = {name: [c for c in evidence["claims"] if c["chapter"] == name] for name in chapters}
    missing = [name for name, claims in rows.items() if not claims]
    if missing:
        raise ExtensionError(f"{failed} and said nothing of {', '.join(missing)}.")
    complaints = _complaints(evidence["claims"])
    if done.returncode != 0 and not complaints:
        raise ExtensionError(f"{failed}, though every claim stands:\n{done.stderr[-4000:]}")
    good = {
        name: {**evidence, "claims": claims}
        for name, claims in rows.items()
        if not _complaints(claims)
    }
    return good, "\n".join([f"{failed}:", *complaints]) if complaints else ""


def _complaints(claims: Iterable[dict[str, Any]]) -> list[str]:
    """Say, for each claim that is not in order, what happened."""
    bad = [c for c in claims if c["status"] not in {"holds", "uncheckable"}]
    return [f"  {c['id']} ({c['source']}): {c['status']}. {c.get('reason', '')}" for c in bad]


def collect(
    chapters: Iterable[str], source: Path, cache: Path, libraries: Sequence[str]
) -> dict[str, Path]:
    """Return the file with each chapter's evidence, running what is missing or out of date.

    All of that runs at once: the processes start and the packages load a single time, and no
    processor waits for the end of a chapter.
    """
    files = {
        chapter: cache / f"{chapter}-{evidence_digest(chapter, source, libraries)}.json"
        for chapter in chapters
    }
    missing = [chapter for chapter, file in files.items() if not file.is_file()]
    if missing:
        logger.info("deqbook: verifying %s over %d seeds ...", ", ".join(missing), SEEDS)
        evidence, complaint = verify(missing, source)
        cache.mkdir(parents=True, exist_ok=True)
        for chapter, found in evidence.items():
            files[chapter].write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        if complaint:
            raise ExtensionError(complaint)
    return files


def summary(claims: Sequence[dict[str, Any]]) -> str:
    """Say in a sentence how many claims there are and how they fare."""
    count = Counter(claim["status"] for claim in claims)
    controls = [control for claim in claims for control in claim["controls"]]
    broken = sum(control["breaks"] for control in controls)
    parts = [f"{count['holds']} hold"]
    if count["uncheckable"]:
        parts.append(f"{count['uncheckable']} no finite experiment can check")
    seconds = sum(claim["seconds"] for claim in claims)
    return (
        f"{len(claims)} claim{'s' * (len(claims) != 1)}: {', '.join(parts)}. "
        f"{broken} of {len(controls)} controls break as they must. {seconds:.1f} s."
    )


def row(claim: dict[str, Any]) -> list[nodes.Node]:
    """Set one claim as the cells of a table row."""
    title: nodes.Node = nodes.Text(claim["title"])
    if claim["ref"]:
        title = ledger_link("", title, label=claim["ref"], claim=claim["id"])
    status = nodes.inline("", STATUS[claim["status"]], classes=[f"deq-{claim['status']}"])
    cells: list[list[nodes.Node]] = [
        [title, nodes.Text(" "), nodes.literal("", claim["id"], classes=["deq-claim-id"])],
        [nodes.Text(claim["source"])],
        [nodes.Text(_number(claim["slack"]))],
        [nodes.Text(_controls(claim["controls"]))],
        [nodes.Text(f"{claim['seconds']:.1f}")],
        [status, *([nodes.Text(f": {claim['reason']}")] if claim["status"] != "holds" else [])],
    ]
    return [nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells]


def _number(value: float | None) -> str:
    """Write a slack; there is none where nothing is measured, and no end to it at a bound of ∞."""
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.3g}"


def _controls(controls: Sequence[dict[str, Any]]) -> str:
    """Name the hypotheses that the controls break."""
    return "; ".join(control["broken"] for control in controls) or "–"


def table(claims: Sequence[dict[str, Any]], title: str) -> nodes.Node:
    """Set claims as a table that scrolls by itself where the page is too narrow for it."""
    body = nodes.tbody("", *(nodes.row("", *row(claim)) for claim in claims))
    head = nodes.thead(
        "", nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in HEADINGS))
    )
    columns = [nodes.colspec(colwidth=1) for _ in HEADINGS]
    group = nodes.tgroup("", *columns, head, body, cols=len(HEADINGS))
    grid = nodes.table("", group, classes=["colwidths-auto", "deq-ledger"])
    return scroll_region("", grid, label=f"Claims of {title}")


class scroll_region(nodes.General, nodes.Element):
    """A box that scrolls sideways by itself, also from the keyboard."""


def open_region(translator: Any, node: scroll_region) -> None:
    """Write the box's opening tag."""
    label = {"tabindex": "0", "role": "region", "aria-label": node["label"]}
    translator.body.append(translator.starttag(node, "div", CLASS="deq-scroll", **label))


def close_region(translator: Any, node: scroll_region) -> None:
    """Write the box's closing tag."""
    translator.body.append("</div>\n")


class ledger_link(nodes.inline):
    """A claim's title, to become a link to the label of its statement."""


class LedgerLinks(SphinxPostTransform):
    """Turn claim titles into links once all labels of the book are known."""

    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        """Replace every placeholder of the page."""
        for node in list(self.document.findall(ledger_link)):
            place = find_label(self.env, node["label"])
            if place is None:
                logger.warning(
                    "claim %s points to the label %r, which no page defines; correct its `ref`.",
                    node["claim"],
                    node["label"],
                    location=self.env.docname,
                )
                node.replace_self(node.children)
            else:
                builder = self.app.builder
                link = make_refnode(builder, self.env.docname, *place, list(node.children))
                node.replace_self(link)


def find_label(env: BuildEnvironment, label: str) -> tuple[str, str] | None:
    """Return page and anchor of a label: of a theorem or proof, or of anything else."""
    proof = getattr(env, "proof_list", {}).get(label)
    if proof is not None:
        return proof["docname"], label
    anchors: dict[str, tuple[str, str]] = env.get_domain("std").anonlabels  # type: ignore[attr-defined]
    return anchors.get(label)


class Ledger(SphinxDirective):
    """``{ledger}``: the claims of every chapter, with totals."""

    def run(self) -> list[nodes.Node]:
        """Set the evidence that was collected when the build began."""
        files: dict[str, Path] = self.env.deqbook_ledger  # type: ignore[attr-defined]
        self.env.deqbook_ledger_pages.add(self.env.docname)  # type: ignore[attr-defined]
        if not files:
            return [nodes.paragraph("", "No chapter has claims yet.")]
        found = {name: json.loads(f.read_text(encoding="utf-8")) for name, f in files.items()}
        everything = [claim for evidence in found.values() for claim in evidence["claims"]]
        total = f"Each claim is checked with {SEEDS} seeds. In the whole book, "
        result: list[nodes.Node] = [nodes.paragraph("", total + summary(everything))]
        for chapter, evidence in found.items():
            page = f"{CHAPTERS}/{chapter}"
            heading = nodes.rubric("", "", _page_link(page, self.env.docname))
            result += [
                heading,
                nodes.paragraph("", summary(evidence["claims"])),
                table(evidence["claims"], chapter),
            ]
        return result


def _page_link(page: str, from_page: str) -> nodes.Node:
    """Link to a page under its own title."""
    return pending_xref(
        "",
        nodes.inline("", page),
        refdomain="std",
        reftype="doc",
        reftarget=f"/{page}",
        refexplicit=False,
        refwarn=True,
        refdoc=from_page,
    )


def prepare(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Collect the evidence before pages are read; name the ledger pages if it changed."""
    source = Path(app.srcdir) / app.config.honest_cache_sources[0]
    prefix = f"{CHAPTERS}/"
    chapters = [d.removeprefix(prefix) for d in env.found_docs if d.startswith(prefix)]
    before = getattr(env, "deqbook_ledger", {})
    try:
        env.deqbook_ledger = collect(  # type: ignore[attr-defined]
            chapters_with_claims(chapters, source),
            source,
            Path(app.outdir).parent / "ledger",
            app.config.honest_cache_libraries,
        )
    except digest.DigestError as error:
        raise ExtensionError(f"ledger: {error}") from error
    if not hasattr(env, "deqbook_ledger_pages"):
        env.deqbook_ledger_pages = set()  # type: ignore[attr-defined]
    changed_evidence = before != env.deqbook_ledger  # type: ignore[attr-defined]
    return sorted(env.deqbook_ledger_pages & env.found_docs) if changed_evidence else []  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; it shares the settings of `honest_cache`."""
    app.setup_extension("honest_cache")
    app.add_directive("ledger", Ledger)
    app.add_node(scroll_region, html=(open_region, close_region))
    app.add_post_transform(LedgerLinks)
    app.connect("env-get-outdated", prepare)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
