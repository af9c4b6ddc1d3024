"""Do the notebooks run where a reader runs them? Other Pythons, other versions, no checkout.

``python tests/anywhere.py`` (or ``make anywhere``) copies the notebooks and the wheel of the built
site to a folder outside the checkout and makes a virtual environment there that has ipykernel and
nothing else. The notebooks' own first cell installs the package into it. Then every notebook runs
from start to end, each in a kernel of its own, and every slider in it is moved once.

    --python PATH     an interpreter to try; repeatable
    --bounds newest   whatever pip finds;  pinned: constraints.txt;
             lowest   the lower bounds of pyproject.toml, exactly
    --with NAME==1    what is installed before, as on a rented machine; repeatable

A finished notebook is not run again, so that a run may be interrupted: results are kept in a file,
and hold as long as the notebook's code, wheel and environment are the same. The site must be built.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
RESULTS = ROOT / "_build" / "anywhere.json"
BOUNDS = ("newest", "lowest", "pinned")
#: The row of the first cell where deqbook is missing, and that of the tests.
SETUP, TESTS = "first cell", "tests"
#: Settings of this shell that a reader's kernel would not have.
FOREIGN = re.compile(
    r"PYTHON(PATH|HOME|STARTUP|WARNINGS)|VIRTUAL_ENV|DEQBOOK_|(OMP|MKL|OPENBLAS)_NUM|MPL|JUPYTER|IPY"
)
CODE = re.compile(r"^(`{3,})(?![`{]).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
LEFT_OVER = re.compile(
    r"\{[a-zA-Z][\w:-]*\}`|^[ >]*(?:`{3,}|:{3,})\{|^[ >]*\([\w:.-]+\)=|\$\$[ \t]*\([\w:-]+\)"
    r"|^[ >]*:[\w-]+:|^[ >]*: |glue:|\x1e|%s",
    re.MULTILINE,
)

#: Run after a notebook's last cell: moves its sliders, and says what it ran with. A slider counts
#: as moved if another position shows another picture.
EPILOGUE = """\
def _report():
    import gc, importlib.metadata, json, os, sys

    spent = sum(os.times()[:4])  # with the processes that it started, as far as they have ended
    import deqbook, ipywidgets

    kinds = (ipywidgets.HTML, ipywidgets.SelectionSlider)
    boxes = [o for o in gc.get_objects() if type(o) is ipywidgets.VBox and o.comm is not None]
    pairs = [box.children for box in boxes if tuple(map(type, box.children)) == kinds]
    moved = 0
    for picture, slider in pairs:
        before = picture.value
        slider.value = len(slider.options) - 1 if slider.value == 0 else 0
        moved += picture.value != before
    try:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak /= 2**20 if sys.platform == "darwin" else 2**10
    except ImportError:
        peak = 0
    names = ["torch", "numpy", "scipy", "matplotlib", "scikit-learn", "ipython", "ipywidgets"]
    found = {name: importlib.metadata.version(name) for name in names}
    print(json.dumps([len(pairs), moved, round(peak), deqbook.__file__, found, spent]))

_report()
"""


@dataclass(frozen=True)
class Row:
    """What one notebook did in one environment."""

    seconds: float
    error: str = ""  # the first line of what went wrong
    megabytes: int = 0
    stderr: tuple[str, ...] = ()  # what cells wrote there, one entry a cell
    sliders: int = 0
    moved: int = 0
    left: int = 0  # directives, roles and labels that a reader would see
    versions: Mapping[str, str] | None = None
    cpu: float = 0.0  # seconds of a processor, which a busy machine does not change much

    @property
    def ok(self) -> bool:
        """Tell whether a reader would see nothing wrong."""
        return not (self.error or self.stderr or self.left or self.moved < self.sliders)


def leftovers(texts: Iterable[str]) -> list[str]:
    """Return what the Markdown cells of a notebook have left unresolved, with its surroundings."""
    text = CODE.sub("", "\n\n".join(texts))
    return [text[max(0, m.start() - 30) : m.end() + 30] for m in LEFT_OVER.finditer(text)]


def lowest(requirement: str) -> str:
    """Return the requirement for the lowest version allowed: torch>=2.4 makes torch==2.4.*."""
    found = re.fullmatch(r"([\w.-]+)\s*>=\s*([\d.]+)", requirement.strip())
    if found is None:
        raise ValueError(f"{requirement!r} is not of the form name>=version")
    release = found[2] if "." in found[2] else f"{found[2]}.0"
    return f"{found[1]}=={release}.*"


def dependencies(pyproject: str) -> list[str]:
    """Return the package's dependencies; read by hand, since Python 3.10 has no tomllib."""
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", pyproject, re.DOTALL | re.MULTILINE)
    if listed is None:
        raise ValueError("pyproject.toml has no list of dependencies")
    return re.findall(r'^\s*"([^"]+)"', listed[1], re.MULTILINE)


def constraints(bounds: str, root: Path = ROOT) -> str:
    """Return the constraints that pip is given: none for the newest versions."""
    if bounds == "pinned":
        return (root / "constraints.txt").read_text(encoding="utf-8")
    if bounds == "lowest":
        names = dependencies((root / "pyproject.toml").read_text(encoding="utf-8"))
        return "\n".join(map(lowest, names)) + "\n"
    return ""


def clean(base: Mapping[str, str], place: Path) -> dict[str, str]:
    """Return the environment of a reader's kernel, whose settings are kept in a folder of its own.

    Pip's settings stay: where packages come from is the machine's business.
    """
    kept = {key: value for key, value in base.items() if not FOREIGN.match(key)}
    own = {"IPYTHONDIR": "ipython", "MPLCONFIGDIR": "mpl", "JUPYTER_CONFIG_DIR": "jupyter"}
    return {
        **kept,
        **{name: str(place / folder) for name, folder in own.items()},
        "PATH": os.pathsep.join([str(scripts(place)), kept.get("PATH", "")]),
        "PIP_CONSTRAINT": str(place / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONNOUSERSITE": "1",
    }


def scripts(place: Path) -> Path:
    """Return the folder of an environment's programs."""
    return place / "venv" / ("Scripts" if os.name == "nt" else "bin")


def plain(text: str) -> str:
    """Return text without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def first_line(text: str) -> str:
    """Return the first line of a message that says something."""
    return next((line.strip() for line in plain(text).splitlines() if line.strip()), "")


def stderr_of(cells: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what cells wrote to stderr, one entry a cell; pip's remarks on its sources apart."""
    said = [
        "".join(o["text"] for o in cell.get("outputs", ()) if o.get("name") == "stderr")
        for cell in cells
    ]
    said = [re.sub(r"^WARNING: Location .*\n?", "", plain(t), flags=re.MULTILINE) for t in said]
    return tuple(text.strip() for text in said if text.strip())


class Environment:
    """An interpreter and versions, in a folder that is thrown away."""

    def __init__(self, python: str, bounds: str, extra: Sequence[str], site: Path = SITE) -> None:
        ask = "import platform as p; print(p.python_version(), p.machine())"
        asked = [python, "-c", ask]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
        self.python, self.bounds, self.extra, self.site = python, bounds, tuple(extra), site
        self.name = " ".join([done.stdout.split()[0], bounds, *extra])
        folder = re.sub(r"[^\w.]+", "-", self.name)
        self.place = Path(tempfile.gettempdir()) / "deqbook-anywhere" / folder
        self.kernel = str(scripts(self.place) / "python")
        self.env = clean(os.environ, self.place)
        self.spec = {
            "argv": [self.kernel, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "Python 3",
            "language": "python",
        }

    def pip(self, *arguments: str) -> None:
        """Install into the environment."""
        command = [self.kernel, "-m", "pip", "install", "--quiet", *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True)
        if done.returncode:
            said = plain(done.stderr).strip().splitlines()
            errors = [text for text in said if text.startswith("ERROR")] or said[-1:]
            raise RuntimeError(f"pip install {' '.join(arguments)}: {' '.join(errors)}")

    def make(self, digest: str, fresh: bool = False) -> bool:
        """Make the environment, without deqbook; return False if it is there and complete."""
        stamp = self.place / "stamp"
        if not fresh and stamp.is_file() and stamp.read_text() == digest:
            return False
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        (self.place / "constraints.txt").write_text(constraints(self.bounds), encoding="utf-8")
        subprocess.run([self.python, "-m", "venv", str(self.place / "venv")], check=True)
        self.pip("ipykernel", *self.extra)
        for name in ("notebooks", "wheels"):
            shutil.copytree(self.site / name, self.place / "site" / name)
        return True

    def complete(self, digest: str) -> None:
        """Note that the first cell has done its work."""
        (self.place / "stamp").write_text(digest)

    def run(self, notebook: Any, limit: float) -> Row:
        """Run a notebook in a kernel of this environment, its sliders too."""
        import nbformat
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError

        kernels = self.place / "kernels"
        (kernels / "anywhere").mkdir(parents=True, exist_ok=True)
        (kernels / "anywhere" / "kernel.json").write_text(json.dumps(self.spec), encoding="utf-8")
        left = unresolved(notebook.cells)
        ended: dict[int, float] = {}
        own = len(notebook.cells)
        notebook.cells.append(nbformat.v4.new_code_cell(EPILOGUE))
        manager = AsyncKernelManager(
            kernel_name="anywhere",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(kernels)]),
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=None,
            resources={"metadata": {"path": str(self.place / "site" / "notebooks")}},
            on_cell_executed=lambda cell, cell_index, **_: ended.update(
                {cell_index: time.perf_counter()}
            ),
        )

        async def execute() -> None:
            quiet = subprocess.DEVNULL  # what the kernel itself logs; outputs come another way
            try:
                run = client.async_execute(env=self.env, stdout=quiet, stderr=quiet)
                await asyncio.wait_for(run, limit)
            finally:
                await manager.shutdown_kernel(now=True)

        error, report = "", [0, 0, 0, "", None, 0.0]
        started = time.perf_counter()
        try:
            asyncio.run(execute())
        except asyncio.TimeoutError:
            error = f"stopped after {limit:.0f} s"
        except CellExecutionError as failure:
            error = first_line(f"{failure.ename}: {failure.evalue}")
        except Exception as failure:  # a kernel that dies
            error = first_line(f"{type(failure).__name__}: {failure}")
        ends = [at for index, at in ended.items() if index < own]
        seconds = max(ends, default=time.perf_counter()) - started
        if not error:
            printed = "".join(o.get("text", "") for o in notebook.cells[own].outputs)
            report = json.loads(next(line for line in printed.splitlines() if line[:1] == "["))
            if not Path(report[3]).is_relative_to(self.place):
                error = f"deqbook comes from elsewhere: {report[3]}"
        sliders, moved, peak, _, versions, cpu = report
        said, seconds, cpu = stderr_of(notebook.cells), round(seconds, 1), round(cpu, 1)
        return Row(seconds, error, peak, said, sliders, moved, left, versions, cpu)

    def tests(self, jobs: int) -> Row:
        """Run the tests without book and browser against the installed package."""
        (wheel,) = (self.place / "site" / "wheels").glob("*.whl")
        try:
            self.pip(f"deqbook[book,test] @ {wheel.as_uri()}")
        except RuntimeError as error:
            return Row(0, first_line(str(error)))
        command = [self.kernel, "-m", "pytest", "-p", "no:cacheprovider", "-n", str(jobs)]
        command += ["--ignore=tests/book", "--ignore=tests/browser", "-rfE"]
        if self.bounds == "lowest":  # old packages use what newer ones, not ours, have deprecated
            command += ["-W", "ignore::DeprecationWarning"]
            command += ["-W", "ignore::PendingDeprecationWarning"]
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=self.env, capture_output=True, text=True)
        seconds = round(time.perf_counter() - started, 1)
        (self.place / "tests.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        if not done.returncode:
            return Row(seconds)
        told = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
        return Row(seconds, f"{len(told)} failed", stderr=tuple(told or [done.stdout[-2000:]]))


def table(name: str, rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield the results in one environment, and below them what was wrong."""
    yield f"== Python {name}"
    found = next((row.versions for row in rows.values() if row.versions), {})
    if found:
        yield "   " + ", ".join(f"{package} {version}" for package, version in found.items())
    for title, row in rows.items():
        yield line(title, row)
    ran = [row for title, row in rows.items() if title not in (SETUP, TESTS)]
    yield f"{sum(row.ok for row in ran)} of {len(ran)} ok, {sum(r.seconds for r in ran):.0f} s"


def line(title: str, row: Row) -> str:
    """Return the line of one notebook, and what was wrong with it."""
    size = f"{row.megabytes} MB" if row.megabytes else ""
    own = f"({row.cpu:5.1f} cpu)" if row.cpu else ""
    counts = f"sliders {row.moved}/{row.sliders}, stderr {len(row.stderr)}, left over {row.left}"
    verdict = "ok" if row.ok else "FAILED" if row.error else "flawed"
    said = [row.error, *(first_line(text) for text in dict.fromkeys(row.stderr))]
    head = f"{title:36} {row.seconds:6.1f} s {own:11} {size:>8}  {verdict:6}  {counts}"
    return "\n    ".join([head, *filter(None, said)])


def unresolved(cells: Iterable[Any]) -> int:
    """Return the number of leftovers in the Markdown of a notebook."""
    return len(leftovers(cell.source for cell in cells if cell.cell_type == "markdown"))


def code_digest(cells: Iterable[Any], package: str) -> str:
    """Return what a notebook's run depends on: its code, and the package's digest."""
    codes = [cell.source for cell in cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps([package, *codes]).encode()).hexdigest()


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Results:
    """What is known from before, in a file: by environment, by notebook, by their content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = self.read()

    def read(self) -> dict[str, dict[str, Any]]:
        """Return what the file says now."""
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}

    def get(self, name: str, title: str, digest: str) -> Row | None:
        """Return the row of a notebook that ran well, if neither it nor the wheel has changed."""
        entry = self.known.get(name, {}).get(title)
        if entry is None or entry["digest"] != digest:
            return None
        row = Row(**{**entry["row"], "stderr": tuple(entry["row"]["stderr"])})
        return row if row.ok else None

    def put(self, name: str, title: str, digest: str, row: Row) -> None:
        """Keep a row, besides those of another run at the same time."""
        self.known = self.read()
        self.known.setdefault(name, {})[title] = {"digest": digest, "row": asdict(row)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.known, indent=1), encoding="utf-8")
        new.replace(self.path)


def chosen(site: Path, only: Sequence[str], student: bool) -> list[Path]:
    """Return the notebooks whose names begin with one of `only`, with solutions or without."""
    return [
        path
        for path in sorted((site / "notebooks").glob("*.ipynb"))
        if path.name.endswith(".student.ipynb") == student
        and any(path.name.startswith(name) for name in only or [""])
    ]


def visit(where: Environment, paths: Sequence[Path], args: argparse.Namespace) -> dict[str, Row]:
    """Run notebooks in an environment, or take over what is known; print as it goes."""
    import nbformat

    results = Results(args.results)
    (wheel,) = (where.site / "wheels").glob("*.whl")
    package = sha256(wheel)
    documents = {path: nbformat.read(path, as_version=4) for path in paths}
    digests = {path: code_digest(documents[path].cells, package) for path in paths}
    rows: dict[str, Row] = {}
    for path in paths:
        if known := results.get(where.name, path.stem, digests[path]):
            rows[path.stem] = replace(known, left=unresolved(documents[path].cells))
    known = results.get(where.name, SETUP, package)
    tested = results.get(where.name, TESTS, package) if args.tests else Row(0)
    if known and tested and len(rows) == len(paths):
        return {SETUP: known, **rows, **({TESTS: tested} if args.tests else {})}

    def note(title: str, digest: str, row: Row) -> None:
        rows[title] = row
        results.put(where.name, title, digest, row)
        print(line(title, row), flush=True)

    try:
        new = where.make(package, fresh=known is None)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        return {SETUP: Row(0, first_line(str(error)))}
    if new:
        opening = nbformat.v4.new_notebook(cells=documents[paths[0]].cells[:2])
        note(SETUP, package, where.run(opening, args.setup_limit))
        if rows[SETUP].error:
            return {SETUP: rows[SETUP]}
        where.complete(package)
    else:
        rows[SETUP] = known
    for path in paths:
        if path.stem not in rows:
            note(path.stem, digests[path], where.run(documents[path], args.limit))
    if args.tests:
        note(TESTS, package, tested or where.tests(args.jobs))
    order = [SETUP, *(path.stem for path in paths), TESTS]
    return {title: rows[title] for title in order if title in rows}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", help="an interpreter; repeatable")
    parser.add_argument("--bounds", choices=BOUNDS, default="newest", help="default newest")
    parser.add_argument("--with", dest="extra", action="append", default=[], metavar="REQUIREMENT")
    parser.add_argument("--only", action="append", help="only notebooks whose name begins so")
    parser.add_argument("--student", action="store_true", help="those without solutions")
    parser.add_argument("--tests", action="store_true", help="then the tests, on the package")
    parser.add_argument("--jobs", type=int, default=1, help="processes of the tests (default 1)")
    parser.add_argument("--limit", type=float, default=600, help="seconds for a notebook")
    parser.add_argument("--setup-limit", type=float, default=3600, help="seconds to install")
    parser.add_argument("--site", type=Path, default=SITE, help="the built site")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--keep", action="store_true", help="do not delete the environments")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and return 1 if anything fails."""
    args = arguments(argv)
    paths = chosen(args.site, args.only or [], args.student)
    if not paths:
        print(f"no such notebooks in {args.site / 'notebooks'}; `make book` writes them")
        return 1
    everything: list[Row] = []
    for python in args.python or [sys.executable]:
        where = Environment(python, args.bounds, args.extra, args.site)
        rows = visit(where, paths, args)
        print("\n".join(table(where.name, rows)), flush=True)
        everything += rows.values()
        if not args.keep:
            shutil.rmtree(where.place, ignore_errors=True)
    return 0 if all(row.ok for row in everything) else 1


if __name__ == "__main__":
    sys.exit(main())
