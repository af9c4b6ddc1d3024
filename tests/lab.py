"""Do the notebooks look right in JupyterLab? In a real browser, with a kernel and a live slider.

``python tests/lab.py`` (or ``make lab``) makes an environment with JupyterLab, and as its kernel
one into which the first cell installs the wheel (see anywhere.py). It opens notebooks in Chromium,
reads what is shown, runs every cell, moves each slider by the arrow keys, and leaves pictures in
``_build/lab`` to look at.

A formula that did not render, a mark that Markdown left behind, a fold too few or too many, an
error or a warning below a cell, a slider that moves no picture: each is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anywhere import BOUNDS, CODE, ROOT, SITE, Environment, chosen, scripts, sha256

from deqbook.cli import browser as chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = ROOT / "_build" / "lab"
SETTINGS = {
    # All cells in the page at once, not only those in sight.
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
#: What a reader sees in the Markdown cells. Text in formulas and code is left out of `text`.
SHOWN = """() => {
  const cells = [...document.querySelectorAll(".jp-NotebookPanel .jp-MarkdownCell")];
  const found = {formulas: 0, faults: 0, folds: 0, tags: 0, quotes: 0, text: []};
  for (const cell of cells) {
    const count = (what) => cell.querySelectorAll(what).length;
    found.formulas += count("mjx-container");
    found.faults += count("mjx-merror, [data-mjx-error]");
    found.folds += count("details > summary");
    found.tags += count("mjx-labels mjx-mtd");
    found.quotes += count("blockquote");
    const shown = cell.querySelector(".jp-MarkdownOutput").cloneNode(true);
    shown.querySelectorAll("mjx-container, code, pre, style, script").forEach((e) => e.remove());
    found.text.push(shown.textContent);
  }
  return found;
}"""
#: Marks that should have become something else.
RAW = re.compile(r"\$|\\[a-zA-Z(\[{]|\*\*|\]\(|^> |<details|\{[a-z:]+\}|```", re.MULTILINE)


def raw(texts: Sequence[str]) -> list[str]:
    """Return what is left of Markdown or TeX in texts that a reader sees, with its surroundings."""
    return [
        text[max(0, m.start() - 20) : m.end() + 20] for text in texts for m in RAW.finditer(text)
    ]


def wanted(cells: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many folds, boxes and numbered equations a notebook's Markdown asks for."""
    text = CODE.sub("", "\n\n".join(c["source"] for c in cells if c["cell_type"] == "markdown"))
    return {
        "folds": text.count("<details>"),
        "quotes": len(re.findall(r"(?:^>.*\n?)+", text, re.MULTILINE)),
        "tags": text.count("\\tag{"),
    }


def faults(cells: Sequence[Mapping[str, Any]], shown: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the Markdown of a notebook as shown."""
    found = [f"not rendered: {piece!r}" for piece in raw(shown["text"])]
    if shown["faults"]:
        found.append(f"{shown['faults']} formulas with an error")
    for what, number in wanted(cells).items():
        if shown[what] != number:
            found.append(f"{shown[what]} {what} shown of {number}")
    return found


@contextlib.contextmanager
def serve(where: Environment) -> Iterator[str]:
    """Run JupyterLab from an environment of its own, and yield its address."""
    place = where.place / "lab"
    if not (place / "stamp").is_file():
        subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
        pip = [str(scripts(place) / "python"), "-m", "pip", "install", "--quiet"]
        done = subprocess.run([*pip, "jupyterlab", "jupyterlab_widgets"], capture_output=True)
        if done.returncode:
            raise RuntimeError(done.stderr.decode()[-2000:])
        (place / "stamp").touch()
    kernel = place / "share" / "kernels" / "python3"
    kernel.mkdir(parents=True, exist_ok=True)
    (kernel / "kernel.json").write_text(json.dumps(where.spec), encoding="utf-8")
    for name, content in SETTINGS.items():
        path = place / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    # Without a token, but for this machine alone, and as long as this program runs.
    command = [str(scripts(place) / "jupyter"), "lab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--IdentityProvider.token="]
    command += [f"--ServerApp.root_dir={where.place / 'site'}"]
    command += ["--KernelSpecManager.ensure_native_kernel=False"]
    own = {
        "JUPYTER_PATH": place / "share",
        "JUPYTER_CONFIG_DIR": place / "config",
        "JUPYTERLAB_SETTINGS_DIR": place / "settings",
    }
    env = {**where.env, **{name: str(folder) for name, folder in own.items()}}
    with (place / "log.txt").open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            for _ in range(120):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{address}/api", timeout=5)
                    break
                time.sleep(0.5)
            yield address
        finally:
            server.terminate()
            server.wait(30)


def look(page: Page, name: str, cells: Sequence[Mapping[str, Any]], limit: float) -> list[str]:
    """Return what is wrong with the notebook on a page; run it unless the limit is 0 seconds."""

    def picture(what: str, where: str) -> None:
        page.evaluate("what => document.querySelector(what)?.scrollIntoView()", where)
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURES / f"{name}-{what}.png")

    page.wait_for_selector(".jp-NotebookPanel .jp-MarkdownOutput h1", timeout=60_000)
    quiet(page)
    picture("1-top", ".jp-MarkdownOutput h1")
    found = faults(cells, page.evaluate(SHOWN))
    page.evaluate("document.querySelectorAll('.jp-Notebook details').forEach(d => d.open = true)")
    picture("2-box", ".jp-Notebook blockquote")
    picture("3-fold", ".jp-Notebook details")
    if not limit:
        return found
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    codes = page.locator(".jp-NotebookPanel .jp-CodeCell")
    begun = time.monotonic()
    prompts = page.locator(".jp-NotebookPanel .jp-CodeCell .jp-InputPrompt")
    idle = page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
    while True:
        marks = prompts.evaluate_all("all => all.map(e => e.textContent.trim()).filter(Boolean)")
        broken = page.locator('[data-mime-type="application/vnd.jupyter.error"]')
        if broken.count():
            return [*found, f"a cell failed: {broken.first.inner_text()[:300]}"]
        if idle.count() and all(re.fullmatch(r"\[\d+\]:", mark) for mark in marks):
            break  # the prompt of a hidden cell is empty, so the kernel has to be idle too
        if time.monotonic() - begun > limit:
            return [*found, f"not done after {limit:.0f} s: {marks}"]
        page.wait_for_timeout(500)
    seconds = time.monotonic() - begun
    quiet(page)
    said = page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').all_inner_texts()
    found += [f"on stderr: {text[:300]}" for text in said]
    picture("4-figure", ".jp-OutputArea-output img, .jp-OutputArea-output svg")
    sliders = page.locator(".jp-OutputArea .widget-slider")
    for k in range(sliders.count()):
        box = page.locator(".jp-OutputArea .widget-vbox").nth(k)
        image, handle = box.locator("img"), box.locator(".noUi-handle, .ui-slider-handle")
        before = image.get_attribute("src"), image.get_attribute("alt")
        picture(f"5-slider-{k}", ".jp-OutputArea .widget-vbox")
        handle.focus()
        for key in ("ArrowRight", "ArrowLeft"):  # one of them, where it starts at an end
            page.keyboard.press(key)
            page.wait_for_timeout(3000)
            after = image.get_attribute("src"), image.get_attribute("alt")
            if after != before:
                break
        if after[0] == before[0] or not after[1]:
            found.append(f"slider {k}: the arrow keys move no picture, or it has no alt text")
        picture(f"6-moved-{k}", ".jp-OutputArea .widget-vbox")
    print(
        f"{name}: {codes.count()} cells in {seconds:.0f} s, {sliders.count()} sliders", flush=True
    )
    if not sliders.count():
        found.append("no slider is shown")
    return found


def quiet(page: Page) -> None:
    """Wait until the number of rendered formulas no longer changes."""
    count, last = "document.querySelectorAll('mjx-container').length", -1
    while (now := page.evaluate(count)) != last:
        last = now
        page.wait_for_timeout(2000)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the kernel's interpreter")
    parser.add_argument("--bounds", choices=BOUNDS, default="pinned", help="default pinned")
    parser.add_argument("--with", dest="extra", action="append", default=[], metavar="REQUIREMENT")
    parser.add_argument("--only", action="append", help="notebooks, by their beginnings")
    parser.add_argument(
        "--limit", type=float, default=600, help="seconds for a notebook; 0: look only"
    )
    parser.add_argument("--site", type=Path, default=SITE, help="the built site")
    parser.add_argument("--keep", action="store_true", help="do not delete the environments")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Look at the notebooks asked for and return 1 if anything is wrong."""
    from playwright.sync_api import sync_playwright

    args = arguments(argv)
    paths = chosen(args.site, args.only or ["00", "02", "03a"], student=False)
    where = Environment(args.python, args.bounds, args.extra, args.site)
    (wheel,) = (args.site / "wheels").glob("*.whl")
    where.make(sha256(wheel))
    for path in paths:
        shutil.copy(path, where.place / "site" / "notebooks")
    PICTURES.mkdir(parents=True, exist_ok=True)
    wrong: dict[str, list[str]] = {}
    with serve(where) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(os.environ), args=list(chromium.FLAGS)
        )
        for path in paths:
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            page.goto(f"{address}/lab/tree/notebooks/{path.name}?reset")
            document = json.loads(path.read_text(encoding="utf-8"))
            cells = [{**c, "source": "".join(c["source"])} for c in document["cells"]]
            wrong[path.stem] = look(page, path.stem, cells, args.limit)
            page.close()
        browser.close()
    for name, found in wrong.items():
        print("\n    ".join([f"{name}: {'ok' if not found else 'FAILED'}", *found]))
    if not args.keep:
        shutil.rmtree(where.place, ignore_errors=True)
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
