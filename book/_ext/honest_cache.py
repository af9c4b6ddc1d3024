"""A notebook cache whose key covers everything that the outputs depend on.

jupyter-cache keys an executed notebook by its code cells alone: after an edit in an imported module
it would serve the old outputs. This extension puts a digest of the imported local modules, of the
declared data files and of the numerical libraries into the part of the metadata that jupyter-cache
does hash, just before it looks. An edit then re-executes the pages that depend on it, and no
others; an edit in the prose, a comment or a docstring re-executes none.

A page declares in its front matter what cannot be seen in its import statements::

    deqbook:
      data: [src/deqbook/data/mnist01.npz]      # relative to the root of the book
      modules: [deqbook.landscape]               # imported by a computed name

Forgetting to is an error, not a stale page: while a page executes, the kernel notes which files of
the project it reads (`witness.py`), and a file outside the key fails the build.

Sphinx reads one page after another, and a page's kernel has one thread. So before the reading
begins, the pages that will have to be executed are read by processes of their own, as many at a
time as there are processors, and only as far as to fill the cache. What such a process says is not
heard: a page that fails there, or reads undeclared files, is not in the cache, and Sphinx meets it
again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import digest
from filelock import FileLock
from jupyter_cache import get_cache
from jupyter_cache.cache.main import JupyterCacheBase
from myst_nb.core.config import NbParserConfig
from myst_nb.core.execute import ExecutionError
from myst_nb.core.execute.cache import NotebookClientCache
from myst_nb.core.read import create_nb_reader
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

logger = logging.getLogger(__name__)

FRONT_MATTER = "deqbook"
STAMP = "deqbook_digest"
REPORT = "execution.json"
#: The same numbers twice: the order of a sum depends on the number of threads, the order of a set
#: on the hash seed. One thread, because the book's matrices are small: two threads that wait for
#: each other on a busy machine took 30 times as long as one.
SAME_NUMBERS_TWICE = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
#: What every kernel gets: that, and sliders as plain HTML. A change here re-executes the book.
KERNEL_SETTINGS = {"DEQBOOK_STATIC": "1", **SAME_NUMBERS_TWICE}


class Dependencies(NamedTuple):
    """What a page depends on beside its own code: imported names and data files."""

    imports: tuple[str, ...]
    data: tuple[str, ...]


@dataclass
class HonestCache:
    """The state of one build: where things are, and what was executed."""

    root: Path
    sources: tuple[Path, ...]
    libraries: tuple[str, ...]
    scratch: Path
    env: BuildEnvironment
    keys: dict[Dependencies, str] = field(default_factory=dict)  # still good from the last build
    began: str = ""  # the sources from the outside, when the build began
    pages: dict[str, dict[str, Any]] = field(default_factory=dict)
    ahead: set[str] = field(default_factory=set)  # executed before the reading began
    alone: bool = False  # this process is there for one page, and ends after its execution

    def dependencies(self, notebook: NotebookNode, where: str) -> Dependencies:
        """Read off a notebook what it imports and what its front matter declares."""
        declared = dict(notebook.metadata.get(FRONT_MATTER) or {})
        data = tuple(map(str, declared.pop("data", None) or ()))
        imports = set(map(str, declared.pop("modules", None) or ()))
        if declared:
            raise ExtensionError(
                f"{where}: front matter `{FRONT_MATTER}:` has the unknown key(s) "
                f"{sorted(declared)}; it takes `data` and `modules`."
            )
        for cell in notebook.cells:
            if cell.cell_type == "code":
                tree = digest.parse_cell(cell.source, where)
                digest.refuse_whole_lazy_packages(tree, self.sources)
                imports |= digest.imported_names(tree)
        local = tuple(n for n in sorted(imports) if digest.module_files(n, self.sources))
        return Dependencies(local, data)

    def files(self, dependencies: Dependencies) -> set[Path]:
        """Return every file that the page's key covers."""
        modules = digest.closure(dependencies.imports, self.sources)
        return {*modules.values(), *self._data(dependencies)}

    def key(self, dependencies: Dependencies) -> str:
        """Digest everything beside the page's own code that its outputs depend on."""
        if dependencies in self.keys:
            return self.keys[dependencies]
        return digest.combine(
            digest.digest_modules(digest.closure(dependencies.imports, self.sources)),
            digest.digest_files(self._data(dependencies), self.root),
            digest.digest_environment(self.libraries, KERNEL_SETTINGS),
        )

    def outside(self) -> str:
        """Digest all that keys are made of, from the outside; while it stays, keys stay."""
        data = {path for found, _ in _known(self.env).values() for path in self._data(found)}
        return digest.combine(
            self.began,
            digest.outside(sorted(data)),
            digest.digest_environment(self.libraries, KERNEL_SETTINGS),
        )

    @property
    def _config(self) -> NbParserConfig:
        return self.env.mystnb_config  # type: ignore[attr-defined]

    def _data(self, dependencies: Dependencies) -> list[Path]:
        return [self.root / name for name in dependencies.data]

    def start(self, client: NotebookClientCache, start_client: Callable[..., None]) -> None:
        """Stand in for `NotebookClientCache.start_client`: stamp, start, check, unstamp."""
        page = self.env.docname
        original = client.notebook
        dependencies = self.stamp(original, page)
        cached = self.is_cached(original)
        if not cached:
            logger.info("deqbook: executing %s ...", page)
        executes = not cached or page in self.ahead
        self.pages[page] = {"executed": executes, "seconds": None, "read": True}
        try:
            with self.kernel_environment() as note:
                start_client(client)
                read = _lines(note)
        except ExecutionError as error:
            raise ExtensionError(f"{page} did not execute to its end; see above.") from error
        seconds = (client.exec_metadata or {}).get("runtime")
        self.pages[page] = {"executed": executes, "seconds": seconds, "read": True}
        undeclared = {Path(line) for line in read} - {p.resolve() for p in self.files(dependencies)}
        if undeclared:
            self.refuse(client, page, undeclared)
        if self.alone:
            os._exit(0)
        for notebook in (original, client.notebook):
            notebook.metadata.kernelspec.pop(STAMP, None)

    def stamp(self, notebook: NotebookNode, page: str) -> Dependencies:
        """Write a page's key where jupyter-cache looks, and return what the page depends on."""
        try:
            dependencies = self.dependencies(notebook, page)
            key = self.key(dependencies)
        except digest.DigestError as error:
            raise ExtensionError(f"{page}: {error}") from error
        _known(self.env)[page] = (dependencies, key)
        notebook.metadata.setdefault("kernelspec", {"name": "python3"})[STAMP] = key
        return dependencies

    def is_cached(self, stamped: NotebookNode) -> bool:
        """Say whether there is an execution of a notebook that bears its key."""
        try:
            get_cache(self._config.execution_cache_path).match_cache_notebook(stamped)
        except KeyError:
            return False
        return True

    def will_execute(self, page: str) -> bool:
        """Say whether a page is a notebook whose execution is not in the cache."""
        path = self.env.doc2path(page)
        text = Path(path).read_text(encoding="utf-8")
        markdown = self.env.myst_config  # type: ignore[attr-defined]
        reader = create_nb_reader(str(path), markdown, self._config, text)
        if reader is None or self._config.execution_mode != "cache":
            return False
        notebook = reader.read(text)
        self.stamp(notebook, page)
        return not self.is_cached(notebook)

    def refuse(self, client: NotebookClientCache, page: str, undeclared: set[Path]) -> None:
        """Forget an execution that read files outside its key, and fail a strict build."""
        cache = get_cache(client.nb_config.execution_cache_path)
        cache.remove_cache(cache.match_cache_notebook(client.notebook).pk)
        names = ", ".join(sorted(p.relative_to(self.root.resolve()).as_posix() for p in undeclared))
        logger.warning(
            "the page read %s, which its cache key does not cover: a later edit there would leave "
            "stale outputs. Declare it in the page's front matter, under `%s:` as `data:` (files) "
            "or `modules:` (dotted names), or import the module by name.",
            names,
            FRONT_MATTER,
            location=page,
        )

    @contextmanager
    def kernel_environment(self) -> Iterator[Path]:
        """Give kernels this checkout's source, the fixed settings and the witness; then restore.

        A private IPYTHONDIR carries the witness and keeps a reader's own start-up files out.
        """
        profile = self.scratch / "profile_default"
        (profile / "startup").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(
            Path(__file__).with_name("witness.py"), profile / "startup" / "00-witness.py"
        )
        quiet = {"IPKernelApp": {"log_level": 40}}  # errors only
        (profile / "ipython_kernel_config.json").write_text(json.dumps(quiet), encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            note = Path(folder) / "read.txt"
            path = [*map(str, self.sources), os.environ.get("PYTHONPATH", "")]
            added = KERNEL_SETTINGS | {
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                "IPYTHONDIR": str(self.scratch),
                "JUPYTER_PREFER_ENV_PATH": "1",
                "PYDEVD_DISABLE_FILE_VALIDATION": "1",
                "DEQBOOK_WITNESS": str(note),
                "DEQBOOK_WITNESS_ROOT": str(self.root),
            }
            before = {name: os.environ.get(name) for name in added}
            os.environ.update(added)
            try:
                yield note
            finally:
                for name, value in before.items():
                    if value is None:
                        del os.environ[name]
                    else:
                        os.environ[name] = value


#: The build that is running in this process; myst-nb's client has no way to be told.
_active: HonestCache | None = None


def _install() -> None:
    """Wrap myst-nb's cache client, once in a process, so that it asks the running build.

    And let one process at a time write into the cache.
    """
    start_client = NotebookClientCache.start_client
    if getattr(start_client, "honest", False):
        return

    def honest_start_client(self: NotebookClientCache) -> None:
        if _active is None:
            start_client(self)
        else:
            _active.start(self, start_client)

    honest_start_client.honest = True  # type: ignore[attr-defined]
    NotebookClientCache.start_client = honest_start_client
    write = JupyterCacheBase.cache_notebook_bundle

    def one_at_a_time(self: JupyterCacheBase, *args: Any, **options: Any) -> Any:
        # Two processes that write at once may each take the other's new entry for an old one.
        with FileLock(Path(self.path) / "writing.lock"):
            return write(self, *args, **options)

    JupyterCacheBase.cache_notebook_bundle = one_at_a_time


def _known(env: BuildEnvironment) -> dict[str, tuple[Dependencies, str]]:
    """Return what earlier builds found each page to depend on, kept with Sphinx's environment."""
    if not hasattr(env, "deqbook_dependencies"):
        env.deqbook_dependencies = {}  # type: ignore[attr-defined]
    return env.deqbook_dependencies  # type: ignore[attr-defined]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def activate(app: Sphinx) -> None:
    """Make this build the one that the notebook client asks."""
    global _active
    root = Path(app.srcdir)
    _active = HonestCache(
        root=root,
        sources=tuple(root / name for name in app.config.honest_cache_sources),
        libraries=tuple(app.config.honest_cache_libraries),
        scratch=Path(app.outdir).parent / "ipython",
        env=app.env,
    )
    missing = [str(p.relative_to(root)) for p in _active.sources if not p.is_dir()]
    if missing:
        raise ExtensionError(
            f"honest_cache_sources names {missing}, which are not folders of {root}; "
            "name the folders that hold the local packages, such as 'src'."
        )
    _active.began = digest.outside(_active.sources)


def sources_changed(env: BuildEnvironment) -> bool:
    """Say whether anything that keys are made of changed since the last build."""
    assert _active is not None  # set when the builder was initialised
    return getattr(env, "deqbook_outside", None) != _active.outside()


def note_sources(app: Sphinx, env: BuildEnvironment) -> None:
    """Keep what the sources look like from the outside, now that all pages are read."""
    assert _active is not None  # set when the builder was initialised
    env.deqbook_outside = _active.outside()  # type: ignore[attr-defined]


def outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Name the unchanged pages whose modules or data changed: Sphinx would not read them."""
    assert _active is not None  # set when the builder was initialised
    if not sources_changed(env):
        _active.keys = dict(_known(env).values())
        return []
    stale = []
    for page, (dependencies, key) in _known(env).items():
        if page in env.found_docs and page not in added | changed | removed:
            try:
                fresh = _active.key(dependencies) == key
            except digest.DigestError:
                fresh = False  # reading the page will say what is wrong
            if not fresh:
                stale.append(page)
    return stale


def execute_ahead(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Fill the cache with what the pages about to be read will ask of it, the longest first."""
    assert _active is not None  # set when the builder was initialised
    waiting = [page for page in docnames if _active.will_execute(page)]
    if len(waiting) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return
    waiting.sort(key=lambda page: Path(env.doc2path(page)).stat().st_size)
    fork = multiprocessing.get_context("fork")
    running: dict[Any, tuple[str, Any]] = {}
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            page = waiting.pop()
            logger.info("deqbook: executing %s ...", page)
            process = fork.Process(target=_execute_alone, args=(app, page))
            process.start()
            running[process.sentinel] = page, process
        for sentinel in wait(list(running)):
            page, process = running.pop(sentinel)
            process.join()
            if process.exitcode == 0:
                _active.ahead.add(page)


def _execute_alone(app: Sphinx, page: str) -> None:
    """Read a page in a process of its own, silently, until it is executed."""
    assert _active is not None
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    _active.alone = True
    _active.scratch /= page.replace("/", "-")  # two kernels must not write one profile
    app.builder.read_doc(page)
    os._exit(1)  # there was nothing to execute after all


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what is known of a page that is removed or about to be read again."""
    _known(env).pop(docname, None)


def report(app: Sphinx, exception: Exception | None) -> None:
    """Write which pages were executed, for `deqbook build` and the tests."""
    global _active
    if _active is not None:
        for page in _known(app.env):
            _active.pages.setdefault(page, {"executed": False, "seconds": None, "read": False})
        target = Path(app.outdir).parent / REPORT
        target.write_text(json.dumps(_active.pages, indent=2) + "\n", encoding="utf-8")
    _active = None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; it has to be loaded after myst-nb."""
    app.add_config_value("honest_cache_sources", ["src"], "env", [list])
    app.add_config_value(
        "honest_cache_libraries", ["torch", "numpy", "scipy", "matplotlib"], "env", [list]
    )
    app.connect("builder-inited", activate, priority=900)
    app.connect("env-get-outdated", outdated)
    app.connect("env-purge-doc", forget)
    app.connect("env-updated", note_sources)
    app.connect("env-before-read-docs", execute_ahead)
    app.connect("build-finished", report)
    _install()
    return {"parallel_read_safe": False, "parallel_write_safe": True}
