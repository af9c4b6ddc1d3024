"""Make a release's files, and try them: `make dist`.

    python .ci/dist.py          wheel and source archive into _build/dist, installed and tried
    python .ci/dist.py notes    what the change log says about this version
    python .ci/dist.py tag v1   refuse a tag that is not this version

Equal sources give equal files, byte for byte: times, owners and order are fixed. Each file is
installed into an environment of its own, outside the checkout. What the package needs is taken from
the running environment, so that nothing is fetched.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "_build" / "dist"
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import notebooks  # noqa: E402  (the site's wheel and the release's are one file)

#: What a source archive is made from.
SOURCES = (
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "LICENSE-CONTENT",
)
HOOK = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
TRY = """
import pathlib, sys, deqbook
from deqbook.data import load
place = pathlib.Path(deqbook.__file__).resolve()
assert place.is_relative_to(pathlib.Path(sys.prefix).resolve()), place
assert load("mnist01", n_train=5).x_train.shape == (5, 784)
"""


def version() -> str:
    """Return the version that pyproject.toml states."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'^version = "(.+)"$', text, re.MULTILINE)[0]


def notes(of: str) -> str:
    """Return the section of the change log about one version, without its heading."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(of)} \(.*\)\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if section is None:
        raise SystemExit(f"CHANGELOG.md has no section `## {of} (date)`.")
    return section[1].strip()


def steady(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an archive's entry without what differs between machines."""
    member.mtime, member.uid, member.gid = int(notebooks.EPOCH), 0, 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    member.pax_headers = {}
    return member


def repack(archive: Path) -> None:
    """Rewrite a .tar.gz so that its bytes depend on the contents alone."""
    plain = io.BytesIO()
    with (
        tarfile.open(archive) as old,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda entry: entry.name):
            new.addfile(steady(member), old.extractfile(member) if member.isfile() else None)
    with archive.open("wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        packed.write(plain.getvalue())


def build_sdist(root: Path, folder: Path) -> Path:
    """Build the source archive from a copy, so that nothing is left in the checkout."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "package"
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")
        shutil.copytree(root / "src", copy / "src", ignore=unwanted)
        for name in SOURCES:
            shutil.copy(root / name, copy / name)
        extra = [name for name in SOURCES if name not in ("pyproject.toml", "README.md")]
        (copy / "MANIFEST.in").write_text(f"include {' '.join(extra)}\n", encoding="utf-8")
        command = [sys.executable, "-c", HOOK, str(folder.resolve())]
        subprocess.run(command, cwd=copy, check=True, capture_output=True, text=True)
    (archive,) = folder.glob("*.tar.gz")
    repack(archive)
    return archive


def try_out(path: Path) -> None:
    """Install one file into a new environment, away from the checkout, and use it."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "environment"
        venv.create(home, with_pip=True)
        bin_ = home / ("Scripts" if os.name == "nt" else "bin")
        library = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
        # Only the folder is borrowed: what makes a checkout importable there, a .pth, is not read.
        (library / "borrowed.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

        def run(*command: str | Path) -> str:
            done = subprocess.run(command, cwd=scratch, env=clean, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{path.name}: {command[-1]}\n{done.stdout}{done.stderr}")
            return done.stdout

        options = [
            "--quiet",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            "--ignore-installed",
        ]
        run(bin_ / "python", "-m", "pip", "install", *options, path)
        stated = run(bin_ / "deqbook", "--version").strip()
        if stated != f"deqbook {version()}":
            raise SystemExit(f"{path.name} says {stated!r}, pyproject.toml {version()}.")
        run(bin_ / "python", "-c", TRY)
        run(bin_ / "deqbook", "verify", "gao2022.lemma2.2")


def main(arguments: list[str]) -> None:
    """Do what the command line asks for."""
    if arguments == ["notes"]:
        print(notes(version()))
    elif arguments[:1] == ["tag"]:
        if arguments[1:] != [f"v{version()}"]:
            raise SystemExit(f"the tag is {arguments[1:]}, the version {version()}.")
    else:
        shutil.rmtree(DIST, ignore_errors=True)
        wheel = DIST / notebooks.build_wheel(ROOT, DIST).name
        for path in (wheel, build_sdist(ROOT, DIST)):
            try_out(path)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB, sha256 {digest}")


if __name__ == "__main__":
    main(sys.argv[1:])
