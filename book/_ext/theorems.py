"""Small repairs to what sphinx-proof and sphinx-exercise put on a page.

A proof with ``:class: dropdown`` becomes a plain HTML disclosure, which needs no script and answers
to the keyboard: sphinx-proof writes no title for sphinx-togglebutton to put its button on, and the
page would stop with an error. The anchors that both packages repeat for every theorem, proof and
exercise are dropped, since an anchor has to be unique on its page. A box that has an anchor of its
own offers it as a link, as headings do. And an exercise tells its level without a second pair of
brackets.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx_proof.nodes import proof_node

REPEATED_IDS = {"proof", "proof-content", "exercise-content", "solution-content"}
LEAD = "Proof. "
PACKAGES = ("sphinx_proof", "sphinx_exercise")
LEVEL = re.compile(r" \((easy|medium|hard|open)\)(\)?)$")


class folded_proof(nodes.General, nodes.Element):
    """A proof, or what its ``summary`` says, that opens when a reader asks for it."""


class Repairs(SphinxPostTransform):
    """Fold proofs and drop repeated anchors, just before a page is written."""

    default_priority = 900

    def run(self, **kwargs: Any) -> None:
        """Repair one page."""
        for proof in list(self.document.findall(proof_node)):
            if "dropdown" in proof[0]["classes"]:
                proof.replace_self(folded_proof("", *without_lead(proof[0])))
        for box in self.document.findall(is_box):
            title = box.next_node(nodes.title, descend=True)
            if title is not None:
                tidy(title)
            if title is not None and title.parent is box and box["ids"]:
                title += nodes.raw("", permalink(box["ids"][0]), format="html")
        for element in self.document.findall(nodes.Element):
            ids = element.get("ids", [])
            if REPEATED_IDS.intersection(ids) and isinstance(
                element, nodes.section | nodes.admonition
            ):
                element["ids"] = [name for name in ids if name not in REPEATED_IDS]


def is_box(node: nodes.Node) -> bool:
    """Tell whether this is a theorem, an exercise, or another box of the two packages."""
    return isinstance(node, nodes.Admonition) and type(node).__module__.startswith(PACKAGES)


def tidy(title: nodes.Element) -> None:
    """Write the title of an exercise or a solution: its level after a dot, no underlined space."""
    for text in list(title.findall(nodes.Text)):
        told = LEVEL.sub(r" · \1\2", text)
        link = text.parent
        if isinstance(link, nodes.reference) and link[0] is text and told.startswith(" "):
            told = told.lstrip()
            link.parent.insert(link.parent.index(link), nodes.Text(" "))
        text.parent.replace(text, nodes.Text(told))


def permalink(anchor: str) -> str:
    """Return the link that a box shows where it is pointed at."""
    return f'<a class="headerlink" href="#{anchor}" title="Link to this place">#</a>'


def without_lead(proof: nodes.Element) -> list[nodes.Node]:
    """Return a proof's content without the word that its summary says already."""
    text = next(iter(proof.findall(nodes.Text)), None)
    if text is not None and text.startswith(LEAD):
        text.parent.replace(text, nodes.Text(text.removeprefix(LEAD)))
    return list(proof.children)


def open_folded(translator: Any, node: folded_proof) -> None:
    """Write the opening tags."""
    kind, summary = node.get("kind", "deq-proof"), node.get("summary", "Proof")
    translator.body.append(f'<details class="{kind}"><summary>{summary}</summary>\n')


def close_folded(translator: Any, node: folded_proof) -> None:
    """Write the closing tag."""
    translator.body.append("</details>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_node(folded_proof, html=(open_folded, close_folded))
    app.add_post_transform(Repairs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
