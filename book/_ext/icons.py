"""Of the theme's thousand icons, the dozen that the pages show.

The theme brings Font Awesome as one script of 1.5 MB (0.5 MB compressed), on every page. After the
build we look which icons the pages name, take their outlines from that script, and write a short
one in its place. It does what the other did: an ``<i class="fa-solid fa-sun">`` becomes a drawing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pydata_sphinx_theme
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

#: Where the script lies, in the theme and in the site.
SCRIPT = Path("scripts") / "fontawesome.js"
THEME = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme" / "static"
#: Icons that scripts of the theme make, which no page names.
BY_SCRIPTS = {"fa-xmark"}
#: Names of styles and sizes, which are no icons.
NO_ICON = re.compile(r"fa-(solid|regular|brands|lg|sm|xs|fw|spin|[0-9]+x?)")

_NAMED = re.compile(r'<i\s[^>]*?class="([^"]*\bfa-[^"]*)"')
_SHOW = """/* The outlines are of Font Awesome Free 6 (https://fontawesome.com), CC BY 4.0. */
(() => {
  const ICONS = %s;
  const SPACE = "http://www.w3.org/2000/svg";
  const draw = (mark) => {
    const name = [...mark.classList].find((one) => one in ICONS);
    if (!name) return;
    const [width, height, path] = ICONS[name];
    const svg = document.createElementNS(SPACE, "svg");
    for (const { name, value } of mark.attributes) svg.setAttribute(name, value);
    svg.classList.add("svg-inline--fa");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("focusable", "false");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const outline = document.createElementNS(SPACE, "path");
    outline.setAttribute("fill", "currentColor");
    outline.setAttribute("d", path);
    svg.append(outline);
    mark.replaceWith(svg);
  };
  const style = document.createElement("style");
  style.textContent =
    ".svg-inline--fa { display: inline-block; height: 1em; overflow: visible; " +
    "box-sizing: content-box; vertical-align: -0.125em; } " +
    ".svg-inline--fa.fa-lg { font-size: 1.25em; line-height: 0.05em; vertical-align: -0.2em; }";
  document.head.append(style);
  const all = () => document.querySelectorAll("i[class*='fa-']").forEach(draw);
  all();
  new MutationObserver(all).observe(document.documentElement, { childList: true, subtree: true });
})();
"""


def named(html: str) -> set[str]:
    """Return the icons that a page names.

    >>> sorted(named('<i class="fas fa-sun fa-lg" title="Light"></i>'))
    ['fa-sun']
    """
    classes = {one for found in _NAMED.findall(html) for one in found.split()}
    return {one for one in classes if one.startswith("fa-") and not NO_ICON.fullmatch(one)}


def outline(script: str, icon: str) -> tuple[int, int, str]:
    """Return width, height and path of an icon, as the theme's script has them."""
    name = re.escape(icon.removeprefix("fa-"))
    entry = r":\[(\d+),(\d+),\[[^\]]*\],\"[0-9a-f]+\",\"([^\"]+)\"\]"
    found = re.findall(rf'(?<![\w-])"?{name}"?{entry}', script)
    # An old name stands in the list of another one's names.
    found = found or re.findall(
        rf':\[(\d+),(\d+),\[[^\]]*"{name}"[^\]]*\],"[0-9a-f]+","([^"]+)"\]', script
    )
    if not found:
        raise ExtensionError(f"the theme's {SCRIPT} has no icon {icon!r}; name another one")
    width, height, path = found[-1]  # brands, then regular, then solid
    return int(width), int(height), path


def short(script: str, icons: Iterable[str]) -> str:
    """Return a script that draws these icons only."""
    table = {icon: outline(script, icon) for icon in sorted(icons)}
    return _SHOW % json.dumps(table, separators=(",", ":"))


def replace(app: Sphinx, error: Exception | None) -> None:
    """Put the short script into the site."""
    if error or app.builder.name != "html":
        return
    site = Path(app.outdir)
    icons = BY_SCRIPTS.union(*(named(page.read_text("utf-8")) for page in site.rglob("*.html")))
    whole = (THEME / SCRIPT).read_text(encoding="utf-8")
    (site / "_static" / SCRIPT).write_text(short(whole, icons), encoding="utf-8")
    (site / "_static" / SCRIPT).with_suffix(".js.map").unlink(missing_ok=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("build-finished", replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
