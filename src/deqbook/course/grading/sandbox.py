"""A kernel in bubblewrap: no network, a read-only system, limits, and nothing left behind.

Inside are the system's programs and libraries, this Python with its packages, and the package
`deqbook`, all read-only, and two folders to write to: a scratch folder in memory, and one that
holds the kernel's sockets. The notebook of the student is not there, nor is any other file. The
client speaks to the kernel through those sockets, so the sandbox needs no network, not even a
loopback.

Limits are the kernel's own (setrlimit, set by `launcher` in the sandbox). The number of processes
is counted per user, so each sandbox has a user to itself: as root a numeric user that nobody else
has, as an ordinary user a namespace of users. What limits per process cannot hold, the memory of
all processes together and the size of the shared folder, a watch outside holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import site
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deqbook
from deqbook.course.grading.limits import Limits

#: Where the shared folder, the scratch folder and our own package are inside.
SHARED, SCRATCH, PACKAGES = "/io", "/tmp", "/opt/deqbook"
CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
#: Parts of the system that programs and libraries need; most of /etc stays outside.
SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin")
SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts", "/etc/localtime")
#: Users of root's sandboxes: far above those of people and services.
FIRST_UID, UIDS = 1_200_000, 4_000_000
#: By how much at most the clock may run ahead of a limit when the machine is busy.
PATIENCE = 5.0


class NoSandbox(RuntimeError):
    """No sandbox on this machine; the message says why and what to do."""


def require() -> str:
    """Return the path of bubblewrap, tried; refuse with the remedy where it does not work."""
    remedy = "Grading runs what students wrote; --trust runs it unprotected, with your own rights."
    found = shutil.which("bwrap")
    if found is None:
        raise NoSandbox(
            "bubblewrap (bwrap) is not installed. Install the package bubblewrap of your "
            f"distribution; it is for Linux only. {remedy}"
        )
    trial = [found, *namespaces(), "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    trial += ["--perms", "1777", "--size", "65536", "--tmpfs", "/tmp", "true"]
    tried = subprocess.run(trial, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise NoSandbox(
            f"bubblewrap is here and does not work: {tried.stderr.strip()}. Often namespaces of "
            "ordinary users are switched off (sysctl kernel.unprivileged_userns_clone, or "
            "kernel.apparmor_restrict_unprivileged_userns), or it is older than 0.7. "
            f"{remedy}"
        )
    return found


def namespaces() -> list[str]:
    """Return the options that separate a sandbox from the rest of the machine.

    Root keeps the machine's users, because a mapped user would still count as root, for whom the
    limit of processes does not hold; `launcher` changes to a user of its own.
    """
    common = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    common += [
        "--unshare-cgroup-try",
        "--die-with-parent",
        "--new-session",
        "--hostname",
        "sandbox",
    ]
    if os.getuid() == 0:
        return [*common, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*common, "--unshare-user", "--cap-drop", "ALL"]


def python_folders() -> list[Path]:
    """Return the folders that this Python and its packages are in, the checkout's root excluded."""
    wanted = [Path(sys.base_prefix), Path(sys.prefix)]
    wanted += [Path(path) for path in [*site.getsitepackages(), *sys.path] if is_packages(path)]
    wanted += [Path(sys.executable).resolve().parents[1]]
    return minimal([path for path in wanted if path.is_dir()])


def is_packages(path: str) -> bool:
    """Say whether a folder of the search path holds installed packages."""
    return Path(path).name in ("site-packages", "dist-packages")


def minimal(folders: list[Path]) -> list[Path]:
    """Return the folders that are in no other one."""
    known = sorted({folder.absolute() for folder in folders}, key=lambda one: len(one.parts))
    kept: list[Path] = []
    for folder in known:
        if not any(folder.is_relative_to(one) for one in kept):
            kept.append(folder)
    return kept


def package_folder() -> Path:
    """Return the folder of the package `deqbook`."""
    return Path(deqbook.__file__).resolve().parent


def mounts() -> list[str]:
    """Return the options that make the read-only file system."""
    options: list[str] = []
    for name in SYSTEM:
        path = Path(name)
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            options += ["--ro-bind", name, name]
    for name in SETTINGS:
        options += ["--ro-bind-try", name, name]
    for folder in python_folders():
        if not folder.is_relative_to("/usr"):
            options += [*parents(folder), "--ro-bind", str(folder), str(folder)]
    package = package_folder()
    inside = Path(PACKAGES, package.name)
    return [*options, *parents(inside), "--ro-bind", str(package), str(inside)]


def parents(folder: Path) -> list[str]:
    """Return the options that make the folders around one; by itself bubblewrap shuts them."""
    around = [str(one) for one in reversed(folder.parents) if str(one) not in ("/", SCRATCH)]
    return [word for one in around for word in ("--dir", one)]


def environment(scratch: str, packages: str) -> dict[str, str]:
    """Return all of the environment that the kernel has."""
    # A folder that a .pth file added is found here; those of this Python it finds itself.
    paths = [packages, *(path for path in sys.path if is_packages(path))]
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": scratch,
        "USER": "student",
        "LOGNAME": "student",
        "LANG": "C.UTF-8",
        "TMPDIR": scratch,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
        "MPLCONFIGDIR": f"{scratch}/.matplotlib",
        "MPLBACKEND": "agg",
        "IPYTHONDIR": f"{scratch}/.ipython",
        "JUPYTER_RUNTIME_DIR": f"{scratch}/.jupyter",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def command(bwrap: str, shared: Path, limits: Limits, orders: dict[str, Any]) -> list[str]:
    """Return the command that starts a kernel in a sandbox."""
    # The scratch folder first: this Python may lie below it, and is then mounted into it.
    options = [bwrap, *namespaces()]
    options += ["--size", str(limits.scratch), "--perms", "1777", "--tmpfs", SCRATCH]
    options += [*mounts(), "--proc", "/proc", "--dev", "/dev"]
    options += ["--size", str(2**24), "--perms", "1777", "--tmpfs", "/dev/shm"]
    options += ["--bind", str(shared), SHARED, "--remount-ro", "/dev", "--remount-ro", "/"]
    options += ["--chdir", "/", "--clearenv"]
    for name, value in environment(SCRATCH, PACKAGES).items():
        options += ["--setenv", name, value]
    return [*options, sys.executable, "-m", "deqbook.course.grading.launcher", json.dumps(orders)]


@dataclass
class Sandbox:
    """A running kernel, the folder it shares with us, and why it was stopped, if it was."""

    process: subprocess.Popen[bytes]
    shared: Path
    connection: dict[str, Any]
    limits: Limits
    stopped: str = ""
    #: When it was stopped for its memory: who had how much, by the second it was born (`uptime`).
    heavy: list[tuple[float, int]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def alive(self) -> bool:
        """Say whether the kernel still runs."""
        return self.process.poll() is None

    def stop(self, why: str = "") -> None:
        """End every process of the sandbox."""
        if why and not self.stopped:
            self.stopped = why
        if self.alive():
            # The outer process of bubblewrap takes the whole namespace of processes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def watch(self) -> None:
        """Stop the sandbox when all of it together takes too much memory or disk."""
        while not self._over.wait(0.1) and self.alive():
            if resident(self.process.pid) > self.limits.memory:
                self.heavy = births(self.process.pid)
                self.stop(f"it used more than {self.limits.memory / 2**30:.2g} GB of memory")
            elif folder_size(self.shared) > self.limits.scratch:
                self.stop("it wrote too much to disk")

    def said(self) -> str:
        """Return the last line that the kernel wrote to its own error stream."""
        path = self.shared.with_suffix(".log")
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 2000))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


class Clock:
    """The seconds that a sandbox has had, from now on.

    What passes on a busy machine is not what a notebook takes. So the time that its threads stood
    ready and had no processor does not count. It counts for no less than the processor time that
    all its processes used, or a swarm of them would only wait for each other. And a fifth of the
    time on the clock counts in any case.
    """

    def __init__(self, box: Sandbox):
        self.box, self.start = box, time.monotonic()
        self.used_before, self.waited_before = scheduled(box.process.pid)
        self.used = self.waited = 0.0

    def __call__(self) -> float:
        """Return the seconds since the start."""
        passed = time.monotonic() - self.start
        used, waited = scheduled(self.box.process.pid)
        self.used = max(self.used, used - self.used_before)  # what ended is not seen any more
        self.waited = max(self.waited, waited - self.waited_before)
        return max(self.used, passed - self.waited, passed / PATIENCE)


def scheduled(pid: int) -> tuple[float, float]:
    """Return the seconds that a process and all it started had a processor, and waited for one."""
    used, waited, tick = 0.0, 0.0, os.sysconf("SC_CLK_TCK")
    for one in children(pid):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # Behind the name, which may hold anything: user, system, and those of ended children.
            words = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            used += sum(map(int, words[11:15])) / tick
        with contextlib.suppress(OSError, IndexError, ValueError):
            for task in os.listdir(f"/proc/{one}/task"):
                text = Path(f"/proc/{one}/task/{task}/schedstat").read_text()
                waited += int(text.split()[1]) / 1e9
    return used, waited


def uptime() -> float:
    """Return the seconds since the machine was started, by which processes are dated."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def births(pid: int) -> list[tuple[float, int]]:
    """Return when a process and all that it started were born, and their memory in bytes."""
    found, tick, page = [], os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for one in children(pid):
        with contextlib.suppress(OSError, IndexError, ValueError):
            born = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[19]
            pages = Path(f"/proc/{one}/statm").read_text().split()[1]
            found.append((int(born) / tick, int(pages) * page))
    return found


def children(pid: int) -> list[int]:
    """Return a process and all that it started, as far as they are still there."""
    found, at = [pid], 0
    while at < len(found):
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{found[at]}/task"):
                text = Path(f"/proc/{found[at]}/task/{task}/children").read_text()
                found += [int(one) for one in text.split()]
        at += 1
    return found


def resident(pid: int) -> int:
    """Return the memory of a process and all that it started, in bytes; shared pages count once.

    Pages that a child shares with its parent after a fork are private in neither, so the
    proportional size is the honest one. It is slower to read, so it is read only when the simple
    sum is large.
    """
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for one in children(pid):
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * page
    if total < 2**28:
        return total
    proportional = 0
    for one in children(pid):
        with contextlib.suppress(OSError, IndexError, ValueError):
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
            proportional += int(text.partition("\nPss:")[2].split()[0]) * 1024
    return proportional or total


def folder_size(folder: Path) -> int:
    """Return the size of the files in a folder; links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def counted_apart() -> bool:
    """Say whether the processes of a namespace of users are counted by themselves (Linux 5.14)."""
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int("".join(c for c in one if c.isdigit()) or 0) for one in numbers) >= (5, 14)


def own_tasks() -> int:
    """Return how many threads this user has now."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


@contextlib.contextmanager
def kernel(limits: Limits, *, trust: bool = False) -> Iterator[Sandbox]:
    """Start a kernel, in a sandbox unless trusted, and leave nothing of it behind."""
    bwrap = "" if trust else require()
    shared = Path(tempfile.mkdtemp(prefix="deq"))
    try:
        yield from _run(bwrap, shared, limits)
    finally:
        remove(shared)
        shared.with_suffix(".log").unlink(missing_ok=True)


def _run(bwrap: str, shared: Path, limits: Limits) -> Iterator[Sandbox]:
    inside = SHARED if bwrap else str(shared)
    theirs, ours = os.pipe()  # see launcher.alone
    key = os.urandom(16).hex()
    ports = {f"{channel}_port": number for number, channel in enumerate(CHANNELS, start=1)}
    common = {"transport": "ipc", "key": key, "signature_scheme": "hmac-sha256", **ports}
    (shared / "kernel.json").write_text(json.dumps({**common, "ip": f"{inside}/k"}))
    root = bool(bwrap) and os.getuid() == 0
    uid = FIRST_UID + os.getpid() % UIDS if root else 0
    processes = limits.processes
    if not root and not counted_apart():
        processes += own_tasks()
    scratch = SCRATCH if bwrap else str(shared / "scratch")
    orders = {
        "cpu": int(3 * limits.time) + 60,
        "scratch": limits.scratch,
        "memory": limits.memory,
        "processes": processes if bwrap else 0,  # unprotected, it would count all that you run
        "uid": uid,
        "connection": f"{inside}/kernel.json",
        "scratch_folder": scratch,
        "pipe": theirs,
    }
    if root:
        os.chown(shared, uid, uid)
        os.chmod(shared / "kernel.json", 0o644)
    if bwrap:
        line, env = command(bwrap, shared, limits, orders), {}
    else:
        os.mkdir(scratch)
        line = [sys.executable, "-m", "deqbook.course.grading.launcher", json.dumps(orders)]
        env = environment(scratch, str(package_folder().parent))
    with shared.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=env,
            start_new_session=True,
            pass_fds=[theirs],
        )
    os.close(theirs)
    box = Sandbox(process, shared, {**common, "ip": f"{shared}/k"}, limits)
    watch = threading.Thread(target=box.watch, daemon=True)
    watch.start()
    try:
        yield box
    finally:
        box._over.set()
        box.stop()
        watch.join()
        os.close(ours)


def sockets_ready(box: Sandbox, seconds: float) -> bool:
    """Wait until the kernel listens on all its sockets, and they are sockets, not links."""
    paths = [f"{box.shared}/k-{number}" for number in range(1, len(CHANNELS) + 1)]
    end = time.monotonic() + seconds
    while time.monotonic() < end and box.alive():
        with contextlib.suppress(OSError):
            if all(stat.S_ISSOCK(os.lstat(path).st_mode) for path in paths):
                return True
        time.sleep(0.02)
    return False


def remove(folder: Path) -> None:
    """Remove a folder that a stranger wrote to: permissions are mended, links are not followed."""
    for path, names, _ in os.walk(folder):
        for name in [".", *names]:
            one = os.path.join(path, name)
            if not os.path.islink(one):
                with contextlib.suppress(OSError):
                    os.chmod(one, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
