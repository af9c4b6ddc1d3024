"""The book as PDF: ``python printing.py`` prints the page of `paper` with Chromium.

The browser works twice. First it sets the formulas and measures the page, which is then kept as
plain HTML (``book/_static/paper.js``); what cannot be set or does not fit stops the run. Then it
prints, and prints again once the numbers of the pages are known that the contents name.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from html import unescape
from pathlib import Path
from typing import Any

import matplotlib
import paper
import pdf_offer
import yaml
from bs4 import BeautifulSoup
from paper import Imprint, PaperError
from pypdf import PdfReader, PdfWriter
from pypdf.generic import BooleanObject, DictionaryObject, NameObject, TextStringObject

from deqbook.cli import browser as chromium

#: The oldest Chromium that sets text in the margins of a page.
OLDEST = 131
#: Margins that leave every paper the same width of text, 162 mm.
MARGINS = {"a4": "24mm 24mm 22mm", "letter": "22mm 26.95mm 20mm"}
#: The book is a file that loads others, and formulas take their time.
PRINT_FLAGS = (*chromium.FLAGS, "--allow-file-access-from-files", "--virtual-time-budget=600000")
#: Seconds that the browser may take for one thing; on two free cores it takes less than 60.
PATIENCE = 1800
#: matplotlib brings these, so the book looks the same wherever it is printed.
FONTS = {
    ("Book Text", 400, "normal"): "STIXGeneral.ttf",
    ("Book Text", 400, "italic"): "STIXGeneralItalic.ttf",
    ("Book Text", 700, "normal"): "STIXGeneralBol.ttf",
    ("Book Text", 700, "italic"): "STIXGeneralBolIta.ttf",
    ("Book Code", 400, "normal"): "DejaVuSansMono.ttf",
    ("Book Code", 700, "normal"): "DejaVuSansMono-Bold.ttf",
    ("Book Code", 400, "italic"): "DejaVuSansMono-Oblique.ttf",
    # For signs that the other two lack.
    ("Book Signs", 400, "normal"): "DejaVuSerif.ttf",
    ("Book Signs", 400, "italic"): "DejaVuSerif-Italic.ttf",
    ("Book Signs", 700, "normal"): "DejaVuSerif-Bold.ttf",
}
REPORT = re.compile(r'<script type="application/json" id="report">(.*?)</script>', re.DOTALL)
#: What the report calls a fault, and how it is told.
FAULTS = {
    "faults": "formulas that cannot be set",
    "images": "images that do not load",
    "fonts": "fonts that do not load",
    "outside": "wider than the text",
}


def find_browser(environment: Mapping[str, str]) -> str:
    """Return the browser to print with, or say what to install."""
    path = chromium.find(environment)
    if path is None:
        needed = f"Printing takes Chromium {OLDEST} or newer."
        raise PaperError(f"{chromium.missing(environment)} {needed}")
    return path


def version_of(answer: str) -> int:
    """Read the version off what a browser says of itself.

    >>> version_of("Chromium 156.0.8078.79 built on Debian")
    156
    """
    found = re.search(r"(\d+)\.\d+\.\d+", answer)
    return int(found[1]) if found else 0


def require_recent(browser: str) -> None:
    """Refuse a browser that cannot print page numbers."""
    done = subprocess.run([browser, "--version"], capture_output=True, text=True)
    if (version := version_of(done.stdout)) < OLDEST:
        raise PaperError(f"{browser} has version {version}; printing needs Chromium {OLDEST}.")


def browse(browser: str, page: Path, *flags: str) -> str:
    """Open a page in a browser with a profile of its own, and return what it writes."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *PRINT_FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE
            )
        except subprocess.TimeoutExpired as error:
            raise PaperError(f"{browser} was not done after {PATIENCE} s.") from error
    if done.returncode != 0:
        raise PaperError(f"{browser} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def font_faces(folder: Path) -> str:
    """Copy the fonts beside the page and return the rules that name them."""
    source = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    folder.mkdir(parents=True, exist_ok=True)
    rules = []
    for (family, weight, style), file in FONTS.items():
        shutil.copyfile(source / file, folder / file)
        rules.append(
            f'@font-face {{ font-family: "{family}"; font-weight: {weight}; font-style: {style}; '
            f'src: url("{folder.name}/{file}") }}\n'
        )
    return "".join(rules)


def typeset(browser: str, page: Path) -> str:
    """Return a page after its formulas are set, without scripts; refuse one with a fault."""
    tell("setting the formulas ...")
    html = browse(browser, page, "--window-size=900,1200", "--dump-dom")
    found = REPORT.search(html)
    if found is None:
        raise PaperError(f"{browser} did not come to the end of setting the page")
    complain(json.loads(found[1]))
    return html


def complain(report: Mapping[str, Any]) -> None:
    """Stop at what the browser could not set, load or fit."""
    told = [f"{text}: {one}" for name, text in FAULTS.items() for one in report[name]]
    if told:
        raise PaperError("\n  ".join([f"{len(told)} faults on the printed page", *told[:40]]))


def on_sheet(html: str, size: str) -> str:
    """Choose the paper that a page is printed on."""
    rule = f"<style>@page {{ size: {size}; margin: {MARGINS[size]} }}</style></head>"
    return html.replace("</head>", rule, 1)


def print_page(browser: str, html: str, page: Path, target: Path) -> PdfReader:
    """Print HTML, kept in the file ``page``."""
    page.write_text(html, encoding="utf-8")
    target.unlink(missing_ok=True)
    browse(
        browser,
        page,
        "--no-pdf-header-footer",
        "--generate-pdf-document-outline",
        f"--print-to-pdf={target}",
    )
    if not target.is_file():
        raise PaperError(f"{browser} printed nothing")
    return PdfReader(target)


def page_numbers(pdf: PdfReader) -> dict[str, int]:
    """Return the number of the page on which each anchor stands."""
    numbers = {}
    for name, destination in pdf.named_destinations.items():
        number = pdf.get_destination_page_number(destination)
        if number is not None:
            numbers[unescape(name.removeprefix("/"))] = number + 1
    return numbers


def name_bookmarks(writer: PdfWriter, titles: Sequence[str]) -> None:
    """Give the bookmarks, in order, these titles.

    The browser's own lack formulas, and say twice what it moved to the next page while setting it.
    """
    marks = list(_outline(writer.root_object["/Outlines"]))
    if len(marks) != len(titles):
        raise PaperError(f"{len(marks)} bookmarks for {len(titles)} headings")
    for mark, title in zip(marks, titles):
        mark[NameObject("/Title")] = TextStringObject(title)


def _outline(above: Any) -> Iterator[DictionaryObject]:
    mark = above.get("/First")
    while mark is not None:
        mark = mark.get_object()
        yield mark
        yield from _outline(mark)
        mark = mark.get("/Next")


def finish(
    pdf: PdfReader, titles: Sequence[str], imprint: Imprint, moment: datetime | None
) -> PdfWriter:
    """Add what the browser does not: author, language, and how a viewer opens the file."""
    writer = PdfWriter(clone_from=pdf)
    name_bookmarks(writer, titles)
    stamp = f"D:{moment:%Y%m%d%H%M%S}Z" if moment else None
    writer.metadata = {
        "/Title": imprint.title,
        "/Author": imprint.author,
        "/Subject": f"Version {imprint.version}. {imprint.licence}",
        "/Producer": "Chromium, pypdf",
        **({"/CreationDate": stamp, "/ModDate": stamp} if stamp else {}),
    }
    root = writer.root_object
    root[NameObject("/Lang")] = TextStringObject("en")
    root[NameObject("/PageMode")] = NameObject("/UseOutlines")
    root[NameObject("/ViewerPreferences")] = DictionaryObject(
        {NameObject("/DisplayDocTitle"): BooleanObject(True)}
    )
    return writer


def source_moment(root: Path, environment: Mapping[str, str]) -> datetime | None:
    """Return when the sources were last changed, as far as that is recorded."""
    seconds = environment.get("SOURCE_DATE_EPOCH", "")
    if not seconds and (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
        seconds = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return datetime.fromtimestamp(int(seconds), timezone.utc) if seconds else None


def imprint_of(root: Path, moment: datetime | None) -> Imprint:
    """Read off the sources what the title page says."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    package = (root / "src" / "deqbook" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'__version__ = "(.*)"', package)
    return Imprint(
        title=config["title"],
        author=config["author"],
        version=version[1] if version else "",
        date=f"{moment.day} {moment:%B %Y}" if moment else "",
        licence=(
            "Text and figures: CC BY 4.0. Code: BSD 3-clause. "
            "The bundled data sets keep the terms of their makers."
        ),
    )


def make(root: Path, sizes: Sequence[str], browser: str) -> list[Path]:
    """Print the built site on each of these papers, and let the site offer the files.

    What was printed from the same pages before is kept.
    """
    site, work = root / "_build" / paper.SITE, root / "_build" / paper.WORK
    digest = pdf_offer.digest(root, site)
    wanted = [size for size in sizes if not pdf_offer.is_fresh(work, size, digest)]
    if wanted:
        require_recent(browser)
        moment = source_moment(root, os.environ)
        imprint = imprint_of(root, moment)
        scratch = work / "work"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        tell("putting the pages together ...")
        whole = paper.assemble(root, site, imprint)
        titles = paper.headings(whole)
        html = typeset(browser, write_page(whole, scratch))

        def on(size: str) -> None:
            pdf_offer.forget(work, size)
            pdf = print_twice(browser, on_sheet(html, size), scratch / size)
            finish(pdf, titles, imprint, moment).write(pdf_offer.file(work, size))
            pdf_offer.remember(work, size, digest)

        tell(f"printing on {' and '.join(wanted)} ...")
        with ThreadPoolExecutor() as pool:
            list(pool.map(on, wanted))
    pdf_offer.offer(root, site, work)
    return [pdf_offer.file(work, size) for size in sizes]


def write_page(whole: BeautifulSoup, folder: Path) -> Path:
    """Write the page to be printed, with the images and fonts it needs."""
    paper.take_frames(whole, folder / "frames")
    fonts = font_faces(folder / "fonts")
    page = folder / "book.html"
    page.write_text(str(whole).replace("<style>", f"<style>{fonts}", 1), encoding="utf-8")
    return page


def print_twice(browser: str, html: str, place: Path) -> PdfReader:
    """Print to learn the numbers of the pages, write them into the contents, and print again."""
    page, target = place.with_suffix(".html"), place.with_suffix(".pdf")
    numbers = page_numbers(print_page(browser, html, page, target))
    pdf = print_page(browser, paper.fill(html, numbers), page, target)
    if page_numbers(pdf) != numbers:
        raise PaperError("the numbers in the contents moved the pages; paper.css gives them room")
    return pdf


def tell(message: str) -> None:
    """Say on the terminal how far it is."""
    print(f"  {message}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Print the book whose site is built; see ``deqbook pdf``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("sizes", nargs="+", choices=list(MARGINS))
    args = parser.parse_args(argv)
    logging.getLogger("pypdf").setLevel(logging.ERROR)  # counts of objects, which it mends itself
    start = time.perf_counter()
    try:
        files = make(args.root, args.sizes, find_browser(os.environ))
    except PaperError as error:
        print(f"deqbook pdf: {error}", file=sys.stderr)
        return 1
    for file in files:
        pages, size = len(PdfReader(file).pages), file.stat().st_size / 1e6
        print(f"{file}: {pages} pages, {size:.1f} MB")
    print(f"Printed in {time.perf_counter() - start:.1f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
