"""Submissions for the tests of the course: right ones, wrong ones, hostile ones."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from deqbook.course.grading.assignment import Assignment, identity, read_module
from deqbook.course.grading.release import instructors, released
from deqbook.course.grading.sandbox import NoSandbox, package_folder, require
from deqbook.course.grading.verdict import Wrong

ROOT = Path(__file__).resolve().parents[2]
ASSIGNMENTS = ROOT / "assignments"
#: Set where a missing sandbox is a failure; CI sets it.
REQUIRE = "DEQBOOK_REQUIRE_SANDBOX"


def need_sandbox() -> None:
    """Skip without a sandbox, or fail where one is demanded."""
    try:
        require()
    except NoSandbox as error:
        if os.environ.get(REQUIRE):
            raise
        pytest.skip(f"no sandbox: {error}")


def all_wrong(short: str) -> tuple[Wrong, ...]:
    """Return the wrong answers to an assignment."""
    return read_module(ASSIGNMENTS / "wrong" / f"{short}.py").WRONG


def packed(wrong: tuple[Wrong, ...]) -> list[list[Wrong]]:
    """Put wrong answers together that do not touch each other: fewer notebooks to run."""
    groups: list[list[Wrong]] = []
    for one in wrong:
        for group in groups:
            cells = {cell for other in group for cell in other.cells}
            tests = {test for other in group for test in other.lost}
            if not cells & one.cells.keys() and not tests & one.lost.keys():
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def together(group: list[Wrong], what: str) -> dict[str, Any]:
    """Return the cells, or the losses, of all that are in a group."""
    return {key: value for one in group for key, value in getattr(one, what).items()}


def own_answers(short: str) -> dict[str, tuple[str, ...]]:
    """Return the cells whose answers are the student's own, and the names that they give."""
    return read_module(ASSIGNMENTS / "wrong" / f"{short}.py").OWN


def copied(assignment: Assignment, student: str) -> NotebookNode:
    """Return a student's work with the results written as numbers."""
    space: dict[str, Any] = {}
    notebook = solved(assignment, student)
    for cell in notebook.cells:
        if cell.cell_type == "code" and identity(cell) not in {*assignment.tests, "install"}:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(cell.source, space)
    sources = {
        cell: "\n".join(f"{name} = {written(space[name])}" for name in names)
        for cell, names in own_answers(assignment.short).items()
    }
    return with_cells(notebook, **sources)


def written(value: Any) -> str:
    """Return a result as a student would type it."""
    if isinstance(value, tuple):
        return f"({', '.join(written(one) for one in value)},)"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {written(one)}' for key, one in value.items())}}}"
    return repr(value.tolist() if hasattr(value, "tolist") else value)


def solved(
    assignment: Assignment, student: str, text: str = "Four numbers and a reason."
) -> NotebookNode:
    """Return the solution as a student would hand it in."""
    notebook = instructors(assignment)
    for cell in notebook.cells:
        if identity(cell) == "student":
            cell["source"] = f'STUDENT = "{student}"\nSALT = ""'
        if identity(cell) in assignment.manual:
            cell["source"] = text
    return notebook


def with_cells(notebook: NotebookNode, **sources: str) -> NotebookNode:
    """Return a copy in which some cells have other sources."""
    made = copy.deepcopy(notebook)
    for cell in made.cells:
        if identity(cell) in sources:
            cell["source"] = sources[identity(cell)]
    return made


def with_first(notebook: NotebookNode, source: str) -> NotebookNode:
    """Return a copy with one more cell before the first answer."""
    made = copy.deepcopy(notebook)
    at = next(n for n, cell in enumerate(made.cells) if identity(cell) == "numbers") + 1
    made.cells.insert(at, nbformat.v4.new_code_cell(source))
    return made


def with_last(notebook: NotebookNode, source: str) -> NotebookNode:
    made = copy.deepcopy(notebook)
    made.cells.append(nbformat.v4.new_code_cell(source))
    return made


def without(notebook: NotebookNode, *names: str) -> NotebookNode:
    """Return a copy without some cells."""
    made = copy.deepcopy(notebook)
    made.cells = [cell for cell in made.cells if identity(cell) not in names]
    return made


@dataclass(frozen=True)
class Case:
    """A submission, the points it must get, and a pattern of what is said about it."""

    name: str
    notebook: NotebookNode | bytes
    points: float
    says: str = ""
    never: str = ""  # what nothing may say

    def write(self, folder: Path, assignment: str) -> Path:
        path = folder / self.name / f"{assignment}.ipynb"
        path.parent.mkdir(parents=True)
        if isinstance(self.notebook, bytes):
            path.write_bytes(self.notebook)
        else:
            nbformat.write(self.notebook, path)
        return path


#: What hostile notebooks run before their first answer, and what must be said about it.
EXTRA = {
    "endless": ("while True:\n    pass", "ran longer than"),
    "deaf": (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass",
        "ran longer than",
    ),
    "forkbomb": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "ran longer than",
    ),
    "memory": ("hog = []\nwhile True:\n    hog.append(bytearray(10**7))", "MemoryError|of memory"),
    "swarm": (
        "import os, time\nfor _ in range(12):\n    if os.fork() == 0:\n"
        "        b = os.urandom(150 * 10**6)\n        time.sleep(60)\ntime.sleep(5)",
        "of memory|ran longer than",
    ),
    "late": (
        # Memory that is taken when other cells run, or the judge asks: they are not to blame.
        "import os, time\nfor wait in (0.2, 0.7, 1.2):\n    if os.fork() == 0:\n"
        "        time.sleep(wait)\n        b = os.urandom(400 * 10**6)\n        time.sleep(60)",
        "",
    ),
    "exit": ("import sys\nsys.exit(3)", "SystemExit"),
    "killed": ("import os\nos.kill(os.getpid(), 9)", "the kernel ended itself"),
    "flood": ("while True:\n    print('x' * 10_000)", "Cell number"),
    "daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        while True:\n            time.sleep(1)\n    os._exit(0)",
        "",
    ),
}
#: What tries to get out; it raises AssertionError if it succeeds. Paths and a port are filled in.
ESCAPES = {
    "reader": """
import os
for path in {paths!r}:
    assert not os.path.exists(path), 'seen ' + path
for folder in ('/home', '/var', '/srv', '/mnt'):
    assert not os.path.isdir(folder), 'seen ' + folder
assert not os.path.exists('/etc/passwd')
assert set(os.listdir(os.path.expanduser('~'))) <= set(os.listdir('/tmp'))
for pid in filter(str.isdigit, os.listdir('/proc')):
    told = open(f'/proc/{{pid}}/cmdline').read()
    assert 'pytest' not in told, told
""",
    "writer": """
import os, sys, deqbook
places = ['/usr/x', '/x', '/dev/x', '/etc/x', sys.prefix + '/x', deqbook.__file__, os.__file__]
for path in places + {paths!r}:
    try:
        open(path, 'w').write('x')
    except OSError:
        continue
    raise AssertionError('wrote ' + path)
""",
    "network": """
import socket
for place in [('127.0.0.1', {port}), ('192.0.2.1', 80)]:
    try:
        socket.create_connection(place, 1)
    except OSError:
        continue
    raise AssertionError('connected')
try:
    socket.getaddrinfo('example.org', 80)
    raise AssertionError('resolved')
except OSError:
    pass
""",
}
FORGED = """
from deqbook.course import a01, checks
import numpy
checks.Checker.__call__ = lambda *a: print('✓')
check = a01.check = lambda *a: print('✓')
numpy.allclose = lambda *a, **k: True
numpy.linalg.norm = lambda *a, **k: 0.0
"""
MUTE = "get_ipython().display_pub.publish = lambda *a, **k: print('full points')"
EVIL = """
class Evil:
    def __array__(self, *a, **k):
        raise SystemExit
    def __reduce__(self):
        import os
        return os._exit, (1,)
z_own = Evil()
"""
SHOWN = "from IPython.display import HTML, display\ndisplay(HTML('<script>alert(3)</script>'))"
TEXT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
HOSTILE = [*EXTRA, *ESCAPES, "overwritten", "deleted", "patched", "mute", "points", "metadata"]
HOSTILE += ["json", "deep", "text", "missing", "syntax", "large", "evil", "suicide", "script"]


def hostile(assignment: Assignment, seen: list[Path], port: int) -> list[Case]:
    """Return what a grader may meet. ``seen`` must stay unseen and unwritten, ``port`` unasked."""
    blank = released(assignment)
    full = sum(assignment.tests.values())

    def base(name: str) -> NotebookNode:
        return solved(assignment, name)

    cases = [
        Case(name, with_first(base(name), code), full, says) for name, (code, says) in EXTRA.items()
    ]
    for name, code in ESCAPES.items():
        filled = code.format(paths=[str(path) for path in seen], port=port)
        cases.append(Case(name, with_first(base(name), filled), full, never="AssertionError"))
    passed = dict.fromkeys(assignment.tests, "print('passed')\n100")
    points = copy.deepcopy(blank)
    for cell in points.cells:
        if identity(cell) in assignment.tests:
            cell.metadata["nbgrader"].update(points=1000, grade=False, locked=False)
    spoilt = base("metadata")
    for number, cell in enumerate(spoilt.cells):
        if not identity(cell):
            cell.metadata["nbgrader"] = ["a", 7, None, "text"][number % 4]
    unreadable = "no notebook that can be read"
    dying = "def pivot(W, q):\n    import os\n    os._exit(1)"
    return [
        *cases,
        Case("overwritten", with_cells(blank, **passed), 0, "not written yet"),
        Case("deleted", without(base("deleted"), *assignment.tests), full),
        Case("patched", with_first(blank, FORGED), 0, "not written yet"),
        Case("mute", with_last(base("mute"), MUTE), 0, "gave no answer"),
        Case("points", points, 0, "not written yet"),
        Case("metadata", spoilt, full),
        Case("json", b'{"cells": [', 0, unreadable),
        Case("deep", b"[" * 200_000, 0, unreadable),
        Case("text", b"\xff\xfe not a notebook", 0, unreadable),
        Case(
            "missing",
            without(base("missing"), "pivot", "numbers", "student"),
            full - 20,
            "There is no `pivot`",
        ),
        Case(
            "syntax",
            with_cells(base("syntax"), many="q_many = = 1"),
            full - 10,
            "There is no `q_many`",
        ),
        Case(
            "large",
            with_cells(base("large"), state="z_own = np.zeros(10**7)"),
            full - 8,
            "cannot be marked",
        ),
        Case("evil", with_cells(base("evil"), state=EVIL), full - 8, "cannot be marked"),
        Case(
            "suicide",
            with_cells(base("suicide"), pivot=dying),
            full - 20,
            "the kernel ended itself",
        ),
        Case("script", with_first(with_cells(base("script"), explain=TEXT), SHOWN), full),
    ]


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file below a folder; of folders and links, that they are there.

    The time of a folder changes when another test, elsewhere, compiles a module into it. A file
    that a process still writes may be gone before one has looked at it.
    """
    found = {}
    for path in folder.rglob("*"):
        if "__pycache__" in path.parts or path.name.endswith(".new"):
            continue
        with contextlib.suppress(FileNotFoundError):
            seen = path.lstat()
            plain = stat.S_ISREG(seen.st_mode)
            size_and_time = (seen.st_size, seen.st_mtime_ns) if plain else (0, 0)
            found[path.relative_to(folder).as_posix()] = size_and_time
    return found


def results(out: Path, assignment: str) -> dict[str, Any]:
    """Return the stored results, by their files' names."""
    folder = out / "results" / assignment
    return {
        path.stem: json.loads(json.loads(path.read_text(encoding="utf-8"))["result"])
        for path in folder.glob("*.json")
    }


def leftovers(seconds: float = 60) -> list[str]:
    """Return the processes of sandboxes that are still there when so much time has passed."""
    end = time.monotonic() + seconds
    while (found := sandboxed()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def sandboxed() -> list[str]:
    """Return the processes of sandboxes that are there now, and are of this copy of the package.

    Somebody else may grade, or test another copy, on the same machine at the same time.
    """
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        line = lineage(int(pid))
        if not line or not any(b"deqbook.course.grading." in word for word in line[0]):
            continue
        boxes = [words for words in line if b"--ro-bind" in words]
        if boxes:
            ours = any(os.fsencode(package_folder()) in words for words in boxes)
        else:  # a process that grades, or a kernel without a sandbox
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/cwd") != os.getcwd():
                    continue
            ours = True
        if ours:
            found.append(f"{pid} {line[0]!r}"[:300])
    return found


def lineage(pid: int) -> list[list[bytes]]:
    """Return the command of a process, and those of its parents, as far as they are still there."""
    found: list[list[bytes]] = []
    with contextlib.suppress(OSError, IndexError, ValueError):
        while pid > 1:
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found
