"""Where this copy of the book is published: its repository, and the address of its site.

The sources name neither, so that a fork needs no edit: the environment says it, and this is the
only module that asks. On GitHub's runners it does so by itself. What is not known is empty, and
whoever wants to link there leaves the link out.

    GITHUB_REPOSITORY   owner/name
    GITHUB_REF_NAME     the branch that is built (main)
    GITHUB_SERVER_URL   https://github.com, unless a company runs its own
    DEQBOOK_SITE        the address of the site, where it is not GitHub's usual one
    DEQBOOK_SALT        the word of this year, from which the assignments draw their numbers
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

GITHUB = "https://github.com"
#: The branch of notebooks, which the publishing workflow writes.
NOTEBOOKS_BRANCH = "notebooks"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Home:
    """The repository that a book is built from; without a name it is not known."""

    repository: str = ""
    branch: str = "main"
    server: str = GITHUB

    @property
    def public(self) -> str:
        """Return owner and name where Colab and Binder can find them, on GitHub itself."""
        return self.repository if self.server == GITHUB else ""

    def address(self, path: str, kind: str = "blob") -> str:
        """Return where the repository shows a file (`blob`) or a folder (`tree`) of its own."""
        if not self.repository:
            return ""
        return f"{self.server}/{self.repository}/{kind}/{quote(self.branch)}/{quote(path)}"


def home(environment: Mapping[str, str]) -> Home:
    """Return the repository that the environment names, if it names one."""
    repository = environment.get("GITHUB_REPOSITORY", "")
    if repository and not _REPOSITORY.fullmatch(repository):
        raise ValueError(f"GITHUB_REPOSITORY is {repository!r}; it has to be owner/name, or unset.")
    return Home(
        repository,
        environment.get("GITHUB_REF_NAME") or Home.branch,
        (environment.get("GITHUB_SERVER_URL") or GITHUB).rstrip("/"),
    )


def site_address(environment: Mapping[str, str]) -> str:
    """Return the address of the published site, with its slash; empty where it is not known."""
    if given := environment.get("DEQBOOK_SITE", ""):
        if not given.startswith(("https://", "http://")):
            raise ValueError(f"DEQBOOK_SITE is {given!r}; it has to be an address, https://…")
        return given.rstrip("/") + "/"
    owner, _, name = home(environment).public.partition("/")
    if not name:
        return ""
    host = f"{owner.lower()}.github.io"
    return f"https://{host}/" if name.lower() == host else f"https://{host}/{name}/"


def salt(environment: Mapping[str, str]) -> str:
    """Return the word that the assignments on the site draw their numbers with."""
    return environment.get("DEQBOOK_SALT", "")
