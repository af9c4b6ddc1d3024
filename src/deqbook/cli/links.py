"""What a link check found: which links are broken, where they stand, and which could not be tried.

Publishers turn robots away, servers have bad days. So only an answer that means "there is nothing
here" counts as broken; a refusal or a silence is listed, and does not fail the check. Whether a DOI
exists is asked of doi.org itself, not of the publisher behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

#: Where a DOI leads a reader, and where doi.org says whether it exists: 200 if so, 404 if not.
DOI, HANDLES = "https://doi.org/", "https://doi.org/api/handles/"
BROKEN, UNSURE, FINE = "broken", "unsure", "fine"
#: Statuses of Sphinx that are not about a failure.
_GOOD = {"working", "redirected", "ignored", "local"}
_STATUS = re.compile(r"^(\d{3}) (?:Client|Server) Error")
#: How the libraries below Sphinx say that a host does not exist.
_NO_HOST = re.compile(r"NameResolutionError|Name or service not known|getaddrinfo failed", re.I)
_GONE = {404, 410}


@dataclass(frozen=True)
class Link:
    """One link of one page, and what came of trying it."""

    page: str
    line: int
    address: str
    verdict: str
    reason: str


def handle_address(address: str) -> str | None:
    """Return where to ask whether a DOI exists; None for any other address."""
    if not address.startswith(DOI) or address.startswith(HANDLES):
        return None
    return HANDLES + quote(unquote(address.removeprefix(DOI)), safe="/")


def judge(status: str, information: str) -> tuple[str, str]:
    """Return the verdict on a link, with the reason, from what Sphinx noted about it."""
    if status in _GOOD:
        return FINE, status
    if status == "timeout":
        return UNSURE, "no answer in time"
    answer = _STATUS.match(information)
    if answer is None:
        known = _NO_HOST.search(information)
        if known:
            return BROKEN, "no such host"
        return (UNSURE, information) if information else (BROKEN, "no such file")
    code = int(answer[1])
    if code in _GONE:
        return BROKEN, f"{code}: nothing there"
    return UNSURE, f"{code}: turned away" if code < 500 else f"{code}: the server failed"


def read(output: Path) -> list[Link]:
    """Return what the check wrote down, one line of JSON for each link."""
    links = []
    for line in output.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["status"] == "unchecked":  # a place on a page, which the strict build has checked
            continue
        verdict, reason = judge(entry["status"], entry["info"])
        address = entry["uri"]
        if address.startswith(HANDLES):
            address = DOI + address.removeprefix(HANDLES)
        links.append(Link(entry["filename"], entry["lineno"], address, verdict, reason))
    return sorted(links, key=lambda link: (link.page, link.line, link.address))


def describe(links: Iterable[Link]) -> list[str]:
    """Say which links are broken or could not be tried, page by page, and how many there are."""
    counts = dict.fromkeys((FINE, UNSURE, BROKEN), 0)
    lines = []
    for link in links:
        counts[link.verdict] += 1
        if link.verdict != FINE:
            place = f"{link.page}:{link.line}"
            lines.append(f"  {link.verdict}: {place}: {link.address} ({link.reason})")
    total = sum(counts.values())
    return [
        *lines,
        f"{total} links: {counts[FINE]} answer, {counts[UNSURE]} could not be tried, "
        f"{counts[BROKEN]} broken.",
    ]


def summary(links: Iterable[Link]) -> str:
    """Return the same as a Markdown table, for the summary page of a workflow."""
    found = list(links)
    rows = [
        f"| {link.verdict} | `{link.page}` | {link.line} | <{link.address}> "
        f"| {link.reason.replace('|', ' ')[:200]} |"
        for verdict in (BROKEN, UNSURE)
        for link in found
        if link.verdict == verdict
    ]
    head = ["| | page | line | address | reason |", "| --- | --- | ---: | --- | --- |"]
    return (
        "\n".join(["## Links", "", describe(found)[-1], "", *(head + rows if rows else [])]) + "\n"
    )
