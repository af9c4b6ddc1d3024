"""Pages show of their code what a reader reads, and fold the whole."""

from __future__ import annotations

import pytest
import quiet_code
from bs4 import BeautifulSoup
from built_site import require_site


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import torch\nfrom a import (\n    b,\n)\n\nz = 1", "z = 1"),
        ("z = 1\nassert z == 1, (\n    'no'\n)\nprint(z)", "z = 1\nprint(z)"),
        ("z = 1\n\nglue('z', z)\n\nprint(z)", "z = 1\n\nprint(z)"),
        ("torch.set_num_threads(1)\nuse_style()", ""),
        ("for k in range(3):\n    assert k\n    print(k)", "for k in range(3):\n    print(k)"),
        ("z = 1\nfor k in range(3):\n    assert k\nprint(z)", "z = 1\nprint(z)"),
        ("if z:\n    assert z\nelse:\n    print(z)", None),
        ("def f():\n    import torch\n    return 1", None),
        ("%matplotlib inline", None),
        ("z = 1", None),
    ],
)
def test_bookkeeping_is_taken_out(code: str, shown: str | None) -> None:
    assert quiet_code.quiet(code) == shown


@pytest.mark.book
def test_no_page_shows_imports_or_glued_numbers_and_every_cell_is_there_whole() -> None:
    seen = 0
    for path in sorted((require_site() / "chapters").glob("*.html")):
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for cell in soup.select("div.cell"):
            whole = cell.select_one("details.deq-whole")
            if whole is None:
                continue
            seen += 1
            full = whole.select_one("pre").get_text()
            shown = [p.get_text() for p in cell.select("pre") if not p.find_parent("details")]
            first = shown[0] if cell.select("div.cell_input > div > .highlight > pre") else ""
            assert not any(line.startswith(("import ", "glue(")) for line in first.splitlines())
            assert set(first.split()) <= set(full.split())
    assert seen > 100
