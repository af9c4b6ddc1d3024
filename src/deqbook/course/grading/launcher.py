"""Start a kernel inside the sandbox: limits first, then another user, then IPython.

Run as a program, with one argument: a JSON object with the limits, the user and the connection. It
is the first process that student code shares an address space with, so it holds nothing but these.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

try:
    import resource
except ImportError:  # Windows has no such limits; there the grader asks for --trust
    resource = None  # type: ignore[assignment]


def confine(said: dict[str, Any]) -> None:
    """Set the limits of this process and its children, for good, and leave root."""
    if resource is not None:
        wanted = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_CPU: said["cpu"],
            resource.RLIMIT_FSIZE: said["scratch"],
            # Memory that is written to. File mappings, of which torch has gigabytes, count below.
            resource.RLIMIT_DATA: said["memory"],
            resource.RLIMIT_AS: said["memory"] + 6 * 2**30,
        }
        if said["processes"]:
            wanted[resource.RLIMIT_NPROC] = said["processes"]
        for kind, value in wanted.items():
            resource.setrlimit(kind, (value, value))
    if said.get("uid"):
        os.setgroups([])
        os.setgid(said["uid"])
        os.setuid(said["uid"])
        os.umask(0o022)


def alone(pipe: int) -> bool:
    """Say whether the process that asked for this kernel has ended already.

    Bubblewrap ends with its parent, but only from the moment on when it has asked for that. If the
    parent was killed before, nothing would ever end this kernel. The parent holds the other end of
    the pipe and writes nothing, so there is something to read only when it is gone.
    """
    ready, _, _ = select.select([pipe], [], [], 0)
    os.close(pipe)
    return bool(ready)


def main(argument: str) -> None:
    """Confine this process and become a kernel."""
    said = json.loads(argument)
    if alone(said["pipe"]):
        return
    confine(said)
    os.chdir(said["scratch_folder"])
    # Imported after confining: nothing of it has to run with more rights.
    from ipykernel.kernelapp import IPKernelApp

    app = IPKernelApp.instance()
    app.initialize(
        [
            f"--IPKernelApp.connection_file={said['connection']}",
            "--HistoryManager.enabled=False",
            "--InteractiveShell.cache_size=0",
            "--IPKernelApp.capture_fd_output=False",
        ]
    )
    app.start()


if __name__ == "__main__":
    main(sys.argv[1])
