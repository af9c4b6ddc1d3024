"""The link check: what counts as broken, how a DOI is asked for, and what is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deqbook.cli import build, links

NO_HOST = 'Max retries exceeded (Caused by NameResolutionError("… Name or service not known"))'


@pytest.mark.parametrize(
    ("status", "information", "verdict", "reason"),
    [
        ("working", "", links.FINE, "working"),
        ("redirected", "https://example.org/new", links.FINE, "redirected"),
        ("broken", "404 Client Error: Not Found for url: https://x", links.BROKEN, "404"),
        ("broken", "410 Client Error: Gone for url: https://x", links.BROKEN, "410"),
        ("broken", "403 Client Error: Forbidden for url: https://x", links.UNSURE, "turned away"),
        ("broken", "429 Client Error: Too Many Requests", links.UNSURE, "turned away"),
        ("broken", "503 Server Error: Service Unavailable", links.UNSURE, "server failed"),
        ("broken", NO_HOST, links.BROKEN, "no such host"),
        ("broken", "Connection reset by peer", links.UNSURE, "reset"),
        ("broken", "", links.BROKEN, "no such file"),
        ("timeout", "Read timed out.", links.UNSURE, "no answer in time"),
    ],
)
def test_only_nothing_there_is_broken(status, information, verdict, reason) -> None:
    found = links.judge(status, information)
    assert found[0] == verdict
    assert reason in found[1]


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("https://doi.org/10.1000/1", "https://doi.org/api/handles/10.1000/1"),
        ("https://doi.org/10.1/a(b)%3C1%3E", "https://doi.org/api/handles/10.1/a%28b%29%3C1%3E"),
        ("https://doi.org/api/handles/10.1000/1", None),
        ("https://arxiv.org/abs/2205.13814", None),
    ],
)
def test_a_doi_is_asked_of_doi_org(address: str, asked: str | None) -> None:
    assert links.handle_address(address) == asked


def entry(page: str, line: int, uri: str, status: str, info: str = "") -> str:
    row = {"filename": page, "lineno": line, "status": status, "code": 0, "uri": uri, "info": info}
    return json.dumps(row)


def test_the_report_names_page_line_address_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, page = tmp_path / "output.json", tmp_path / "summary.md"
    rows = [
        entry("b.md", 7, "https://doi.org/api/handles/10.1/x", "broken", "404 Client Error: gone"),
        entry("a.md", 9, "https://example.org/|", "broken", "403 Client Error: Forbidden"),
        entry("a.md", 3, "https://example.org/", "working"),
        entry("a.md", 1, "#here", "unchecked"),
    ]
    output.write_text("\n".join(rows), encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    assert build.report_links(output) == 1
    assert capsys.readouterr().out.splitlines() == [
        "  unsure: a.md:9: https://example.org/| (403: turned away)",
        "  broken: b.md:7: https://doi.org/10.1/x (404: nothing there)",
        "3 links: 1 answer, 1 could not be tried, 1 broken.",
    ]
    table = page.read_text(encoding="utf-8").splitlines()
    assert table[-2] == "| broken | `b.md` | 7 | <https://doi.org/10.1/x> | 404: nothing there |"
    output.write_text(rows[1], encoding="utf-8")
    assert build.report_links(output) == 0
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert build.report_links(output) == 0


def test_no_table_where_every_link_answers() -> None:
    assert "|" not in links.summary([links.Link("a.md", 1, "https://x", links.FINE, "working")])
