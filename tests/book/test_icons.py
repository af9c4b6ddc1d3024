"""The short script of icons draws all that the pages show, and no page waits for the long one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import icons
import pytest
from sphinx.errors import ExtensionError

SCRIPT = (
    'sun:[512,512,[],"f185","M1 regular"]},x={"chevron-down":[448,512,[],"f078","M2"],'
    'sun:[500,512,[9728],"f185","M3 solid"],'
    '"magnifying-glass":[512,512,[128269,"search"],"f002","M4"]'
)


def test_icons_are_found_by_name_in_their_solid_form_and_by_an_older_name() -> None:
    assert icons.outline(SCRIPT, "fa-sun") == (500, 512, "M3 solid")
    assert icons.outline(SCRIPT, "fa-chevron-down") == (448, 512, "M2")
    assert icons.outline(SCRIPT, "fa-search") == (512, 512, "M4")


def test_an_icon_that_is_not_there_stops_the_build() -> None:
    with pytest.raises(ExtensionError, match="no icon 'fa-glass'"):
        icons.outline(SCRIPT, "fa-glass")


def test_sizes_and_styles_are_no_icons() -> None:
    html = '<i class="theme-switch fa-solid fa-sun   fa-lg" data-mode="light"></i><i class="x"></i>'
    assert icons.named(html) == {"fa-sun"}


def test_the_site_has_every_icon_it_names_and_few_others(site: Path) -> None:
    script = (site / "_static" / icons.SCRIPT).read_text(encoding="utf-8")
    assert len(script) < 50_000
    table = re.search(r"const ICONS = (\{.*?\});\n", script)
    assert table is not None
    drawn = set(json.loads(table[1]))
    named = set().union(*(icons.named(page.read_text("utf-8")) for page in site.rglob("*.html")))
    assert named
    assert drawn == named | icons.BY_SCRIPTS
