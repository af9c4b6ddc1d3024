"""The ledger page: every claim of the book with the evidence of the run that checked it.

Before a build reads its pages, ``deqbook verify`` runs for each chapter whose claims, or anything
they import, changed since its last run; a claim that fails, or a control that does not break it,
fails the build. The directive ``{ledger}`` writes the results as Markdown tables.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import digest
from docutils import nodes
from honest_cache import SAME_NUMBERS_TWICE, sources_changed
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.roles import XRefRole
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import explicit_title_re

from deqbook.typeset import formula

logger = logging.getLogger(__name__)

CHAPTERS = "chapters"
PAGES = "deqbook.pages"
#: How the label of a figure begins; all other labels that claims point to are of statements.
FIGURES = "fig-"
SEEDS = 5
HEADINGS = ("Claim", "Source", "Slack", "Control", "Teeth", "Seconds", "Status")
#: What `deqbook teeth` found, beside the pages; a test tells when it is out of date.
TEETH = Path("book") / "teeth.json"
#: A bar within a cell.
BAR = r"\|"
#: What a reason looks like, and which columns are words with formulas among them.
REASON = "deq-reason"
WORDS = (HEADINGS.index("Claim"), HEADINGS.index("Control"), HEADINGS.index("Status"))
STATUS = {
    "holds": "✓ holds",
    "partly": "partly",
    "not reproduced": "not reproduced at this size",
    "quoted": "✓ quoted, not proved here",
    "definition": "✓ definition",
    "not checkable": "not checkable",
    "fails": "✗ fails",
    "unbroken": "✗ control holds",
}

#: How claims of a kind are counted: one of them, several of them.
COUNTED = {
    "holds": ("holds", "hold"),
    "definition": ("is a definition", "are definitions"),
    "quoted": ("is quoted and not proved here", "are quoted and not proved here"),
    "partly": ("comes out in part", "come out in part"),
    "not reproduced": ("is not reproduced at this size", "are not reproduced at this size"),
    "not checkable": ("no finite experiment can check", "no finite experiment can check"),
}


def claims_module(chapter: str) -> str:
    """Name the module with a page's claims, ``deqbook.pages.p01a_contraction.claims`` say."""
    return f"{PAGES}.p{chapter}.claims"


def chapters_with_claims(chapters: Iterable[str], source: Path) -> list[str]:
    """Return the chapters that have claims; refuse a folder of claims that has no chapter."""
    folder = source.joinpath(*PAGES.split("."))
    modules = {
        f"{PAGES}.{page.name}.claims"
        for page in folder.glob("p[0-9]*")
        if (page / "claims.py").is_file() or (page / "claims" / "__init__.py").is_file()
    }
    found = [chapter for chapter in sorted(chapters) if claims_module(chapter) in modules]
    orphans = modules - {claims_module(chapter) for chapter in found}
    if orphans:
        raise ExtensionError(
            f"{sorted(orphans)} belong to no chapter of _toc.yml, so the ledger would miss their "
            f"claims; add the chapter, or name the folder after it (p01_x for 01_x)."
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
        if path.is_file() and path.suffix not in {".py", ".pyi", ".pyc", ".md", ".typed"}
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
    # The runs behind the evidence, every seed's values to the last bit, are large and not shown.
    found = [{k: v for k, v in c.items() if k != "runs"} for c in evidence["claims"]]
    rows = {name: [c for c in found if c["chapter"] == name] for name in chapters}
    missing = [name for name, claims in rows.items() if not claims]
    if missing:
        raise ExtensionError(f"{failed} and said nothing of {', '.join(missing)}.")
    complaints = _complaints(found)
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
    count = Counter(map(standing, claims))
    controls = [control for claim in claims for control in claim["controls"]]
    broken = sum(control["breaks"] for control in controls)
    parts = [
        f"{count[name]} {one if count[name] == 1 else more}"
        for name, (one, more) in COUNTED.items()
        if count[name]
    ]
    seconds = sum(claim["seconds"] for claim in claims)
    return (
        f"{len(claims)} claim{'s' * (len(claims) != 1)}: {', '.join(parts)}. "
        f"{broken} of {len(controls)} controls break as they must. {seconds:.1f} s."
    )


def standing(claim: dict[str, Any]) -> str:
    """Say what the run shows of the statement; "fails" or "unbroken" if it is not in order."""
    status: str = claim["status"]
    return claim["standing"] if status in {"holds", "uncheckable"} else status


def teeth(counts: dict[str, Any] | None) -> str:
    """Write how many planted bugs a claim noticed: in what is computed, in what is stated.

    >>> teeth({"computation": [11, 12, 0], "statement": [5, 8, 1]})
    '11/12, 5/8'
    """
    if counts is None:
        return "–"
    pairs = [counts[kind] for kind in ("computation", "statement")]
    return ", ".join(f"{caught}/{planted}" if planted else "–" for caught, planted, _ in pairs)


def bitten(claims: Iterable[dict[str, Any]], found: dict[str, Any]) -> str:
    """Say how many planted bugs the claims noticed, all together; "" if none were planted."""
    rows = [found[claim["id"]] for claim in claims if claim["id"] in found]
    if not rows:
        return ""
    words = {"computation": "what is computed", "statement": "what is stated"}
    parts = []
    for kind, where in words.items():
        caught, planted = (sum(row[kind][k] for row in rows) for k in (0, 1))
        share = f" ({caught / planted:.0%})" if planted else ""
        parts.append(f"{caught} of {planted} bugs in {where}{share}")
    return f" Of bugs planted on purpose, {' and '.join(parts)} are noticed."


WHERE = {"computation": "computed", "statement": "stated"}


def unnoticed(claims: Iterable[dict[str, Any]], found: dict[str, Any]) -> str:
    """List, folded, the planted bugs that the claims did not notice, each with its reason."""
    rows = [
        (claim["id"], *survivor)
        for claim in claims
        for survivor in found.get(claim["id"], {}).get("survivors", ())
    ]
    if not rows:
        return ""
    count = f"{len(rows)} planted bug{'s' * (len(rows) != 1)}"
    return "\n".join(
        [
            f'<details class="deq-unnoticed"><summary>{count} not noticed, and why</summary>\n',
            *(_survivor(*one) for one in rows),
            "\n</details>\n",
        ]
    )


def _survivor(claim: str, kind: str, key: str, reason: str) -> str:
    """Write one bug: the claim, the function, what stood there and what was put there, and why.

    >>> _survivor("a.b", "statement", "deqbook.linalg:f: factor: a → a * 2", "loose")
    '- `a.b` stated in `linalg:f` – `a` → `a * 2` – loose.'
    """
    place, _, change = key.split(": ", 2)
    before, _, after = change.partition(" → ")
    after, _, copy = after.partition(" (") if re.search(r" \(\d+\)$", after) else (after, "", "")
    short = place.removeprefix("deqbook.").removeprefix("pages.")
    which = f" occurrence {copy.rstrip(')')}" if copy else ""
    why = literally(reason.rstrip(".")) or "no reason is given"
    # Dashes: no mark can begin a line after a long piece of code.
    return f"- `{claim}` {WHERE[kind]} in `{short}` – `{before}` → `{after}`{which} – {why}."


def row(claim: dict[str, Any], found: dict[str, Any] | None = None) -> str:
    """Write one claim as a row of a table."""
    name = standing(claim)
    status = f"[{STATUS[name]}]{{.deq-{name.replace(' ', '-')}}}"
    reason = ""
    if claim["reason"]:
        reason = f"[:]{{.deq-colon}} [{literally(claim['reason'])}]{{.{REASON}}}"
    cells = (
        f"{_title(claim)} `{claim['id']}`{{.deq-claim-id}}",
        literally(claim["source"]),
        _number(claim["slack"]),
        literally(_controls(claim["controls"])),
        teeth((found or {}).get(claim["id"])),
        f"{claim['seconds']:.1f}",
        status + reason,
    )
    return _row(cells)


def literally(text: str) -> str:
    """Write text so that Markdown shows it as it is."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))


def _title(claim: dict[str, Any]) -> str:
    """Write a claim's title, as a link if it has a place in the book."""
    if not claim["ref"]:
        return literally(claim["title"])
    title = " ".join(claim["title"].split())
    # A role takes its text as it is, up to as many backticks as it began with.
    ticks = "`" * (1 + max(map(len, re.findall("`+", title)), default=0))
    return f"{{claim}}{ticks} {title} <{claim['ref']}>{ticks}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _number(value: float | None) -> str:
    """Write a slack; there is none where nothing is measured, and no end to it at a bound of ∞."""
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.3g}"


def _controls(controls: Sequence[dict[str, Any]]) -> str:
    """Name the hypotheses that the controls break."""
    return "; ".join(control["broken"] for control in controls) or "–"


def table(claims: Sequence[dict[str, Any]], title: str, found: dict[str, Any]) -> str:
    """Write a table of claims, in a box that scrolls by itself, also from the keyboard."""
    label = html.escape(f"Claims of {title}")
    return "\n".join(
        [
            f'<div class="deq-scroll" tabindex="0" role="region" aria-label="{label}">\n',
            "{.deq-ledger}",
            _row(HEADINGS),
            _row("-" * len(HEADINGS)),
            *(row(claim, found) for claim in claims),
            "\n</div>\n",
        ]
    )


def typeset(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Set the formulas in a ledger's words: claims are written as a terminal can show them.

    That is done when the links are made, since a link to a figure keeps the words of its text only.
    """
    for table in doctree.findall(nodes.table):
        if "deq-ledger" not in table["classes"]:
            continue
        for body in table.findall(nodes.tbody):
            for line in body.findall(nodes.row):
                for cell in (line[k] for k in WORDS):
                    for text in list(cell.findall(nodes.Text)):
                        if not isinstance(text.parent, nodes.literal):
                            text.parent.replace(text, formula_nodes(formula(text.astext())))


def anchor(claim: str) -> str:
    """Return where the ledger page has a claim.

    >>> anchor("gao2022.lemmaA.5")
    'claim-gao2022-lemmaA-5'
    """
    return f"claim-{re.sub(r'[^0-9A-Za-z]+', '-', claim)}"


@cache
def claim_ids(files: tuple[Path, ...]) -> frozenset[str]:
    """Return the names of all claims in these files of evidence."""
    texts = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return frozenset(claim["id"] for evidence in texts for claim in evidence["claims"])


def link(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Give each row of a ledger its anchor, and let a claim's name elsewhere lead to it."""
    pages: set[str] = getattr(app.env, "deqbook_ledger_pages", set())
    known = claim_ids(tuple(getattr(app.env, "deqbook_ledger", {}).values()))
    if not pages or (docname not in pages and app.builder.format != "html"):
        return
    here = docname in pages
    there = "" if here else app.builder.get_relative_uri(docname, min(pages))
    for name in list(doctree.findall(nodes.literal)):
        inside = isinstance(name.parent, nodes.reference | nodes.title)
        if here and "deq-claim-id" in name["classes"]:
            name["ids"].append(anchor(name.astext()))
        elif name.astext() in known and not inside:
            target = f"{there}#{anchor(name.astext())}"
            name.replace_self(nodes.reference("", "", name.deepcopy(), refuri=target))


#: How a page writes what :func:`deqbook.typeset.formula` returns.
TAGS: dict[str, type[nodes.TextElement]] = {
    "i": nodes.emphasis,
    "sub": nodes.subscript,
    "sup": nodes.superscript,
    "code": nodes.literal,
}


def formula_nodes(text: str) -> list[nodes.Node]:
    """Return a formula in HTML as nodes of a page, which other writers understand, too.

    >>> [node.astext() for node in formula_nodes("<i>σ</i><sub><i>w</i></sub> &lt; 1")]
    ['σ', 'w', ' < 1']
    """
    root = nodes.inline()
    open_now: list[nodes.Element] = [root]
    for tag, words in re.findall(r"<(/?\w+)>|([^<]+)", text):
        if words:
            open_now[-1] += nodes.Text(html.unescape(words))
        elif tag.startswith("/"):
            open_now.pop()
        else:
            inner = TAGS[tag]()
            open_now[-1] += inner
            open_now.append(inner)
    return list(root.children)


class ClaimLink(XRefRole):
    """``{claim}`title <label>```: a link to a statement or a figure; the title may hold a ``<``."""

    explicit_title_re = explicit_title_re  # unlike that of `XRefRole`, up to the last ``<``

    def process_link(
        self, env: BuildEnvironment, refnode: nodes.Element, explicit: bool, title: str, target: str
    ) -> tuple[str, str]:
        """Say which role looks for the label; it warns of a label that no page defines."""
        refnode["refdomain"] = "std" if target.startswith(FIGURES) else "prf"
        refnode["reftype"] = "ref"
        return title.strip(), target


class Ledger(SphinxDirective):
    """``{ledger}``: the claims of every chapter, with totals."""

    def run(self) -> list[nodes.Node]:
        """Set the evidence that was collected when the build began."""
        files: dict[str, Path] = self.env.deqbook_ledger  # type: ignore[attr-defined]
        self.env.deqbook_ledger_pages.add(self.env.docname)  # type: ignore[attr-defined]
        if not files:
            return self.parse_text_to_nodes("No chapter has claims yet.")
        found = {name: json.loads(f.read_text(encoding="utf-8")) for name, f in files.items()}
        everything = [claim for evidence in found.values() for claim in evidence["claims"]]
        planted = Path(self.env.srcdir) / TEETH
        self.env.note_dependency(str(planted))
        kept = json.loads(planted.read_text(encoding="utf-8"))["claims"] if planted.exists() else {}
        text = [
            f"Each claim is checked with {SEEDS} seeds. In the whole book, "
            f"{summary(everything)}{bitten(everything, kept)}"
        ]
        for chapter, evidence in found.items():
            text += [
                f":::{{rubric}} {{doc}}`/{CHAPTERS}/{chapter}`\n:::",
                summary(evidence["claims"]),
                table(evidence["claims"], chapter, kept),
                unnoticed(evidence["claims"], kept),
            ]
        return self.parse_text_to_nodes("\n\n".join(filter(None, text)))


def prepare(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Collect the evidence before pages are read; name the ledger pages if it changed."""
    source = Path(app.srcdir) / app.config.honest_cache_sources[0]
    prefix = f"{CHAPTERS}/"
    chapters = [d.removeprefix(prefix) for d in env.found_docs if d.startswith(prefix)]
    before: dict[str, Path] = getattr(env, "deqbook_ledger", {})
    if not sources_changed(env) and before and all(f.is_file() for f in before.values()):
        return []
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
    app.add_role("claim", ClaimLink(innernodeclass=nodes.inline, warn_dangling=True))
    app.connect("env-get-outdated", prepare)
    app.connect("doctree-resolved", typeset)
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
