"""Run in every chapter's kernel at its start: note which of the project's files it reads.

`honest_cache` compares the note with what the chapter's cache key covers. The kernel need not have
the book's tools installed, so this file uses the standard library alone, and it leaves no name
behind in the notebook.
"""


def _watch() -> None:
    import contextlib
    import importlib.util
    import os
    import sys

    note, root = os.environ.get("DEQBOOK_WITNESS"), os.environ.get("DEQBOOK_WITNESS_ROOT")
    if not note or not root:
        return
    prefix = os.path.join(os.path.realpath(root), "")
    generated = tuple(os.path.join(prefix, name, "") for name in ("_build", ".venv", ".git"))
    seen: set[str] = set()
    writing = os.O_WRONLY | os.O_RDWR

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event != "open" or not isinstance(args[0], str | bytes):
            return
        mode, flags = args[1], args[2]
        if isinstance(mode, str):
            reads = mode.startswith("r")
        else:
            reads = not (isinstance(flags, int) and flags & writing)
        path = os.fsdecode(args[0])
        if path.endswith(".pyc"):  # a compiled module stands for its source
            with contextlib.suppress(ValueError):
                path = importlib.util.source_from_cache(path)
        path = os.path.realpath(path)
        if not reads or path in seen or not path.startswith(prefix) or path.startswith(generated):
            return
        seen.add(path)
        if os.path.isfile(path) and ".egg-info" + os.sep not in path:
            with open(note, "a", encoding="utf-8") as file:
                file.write(path + "\n")

    sys.addaudithook(hook)


_watch()
del _watch
