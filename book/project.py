"""Where things lie in this checkout, and the course's public address (from pyproject.toml, its only home)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from mlsys_lab.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
LABS = ROOT / "labs"
BUILD = ROOT / "build"
STATIC = BUILD / "book-static"
"""What a build stages for the pages: fonts, figures, and what runs cells."""
BRANCH = "main"
NOTEBOOKS = "notebooks"
"""The branch of the public repository that holds the chapters' notebooks, written with each publication of the site."""


@dataclass(frozen=True)
class Address:
    """The public repository and site.

    `repository` is a GitHub address such as https://github.com/owner/name: Colab and Binder open notebooks from there.
    """

    repository: str
    site: str

    def __post_init__(self) -> None:
        if not self.repository.startswith("https://github.com/") or self.repository.count("/") != 4:
            raise InputError(
                "[project.urls] Repository in pyproject.toml",
                got=self.repository,
                expected="https://github.com/owner/name without a slash at the end",
            )

    @property
    def slug(self) -> str:
        """Name of the GitHub repository as owner/name."""
        return self.repository.removeprefix("https://github.com/")

    def colab(self, path: str, *, branch: str = BRANCH) -> str:
        """Web address that opens the notebook at `path` (from the root of a branch) in Colab."""
        return f"https://colab.research.google.com/github/{self.slug}/blob/{branch}/{path}"

    def binder(self, path: str) -> str:
        """Web address that opens the notebook at `path` (from the repository's root) in JupyterLab on Binder."""
        return f"https://mybinder.org/v2/gh/{self.slug}/{BRANCH}?urlpath=lab/tree/{path}"


def read_address(pyproject: Path = ROOT / "pyproject.toml") -> Address:
    """Read the course's public address from pyproject.toml.

    Raises:
        InputError: pyproject.toml names no repository or no site.
    """
    urls = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {}).get("urls", {})
    missing = [name for name in ("Repository", "Site") if name not in urls]
    if missing:
        raise InputError(f"[project.urls] in {pyproject.name}", got=sorted(urls), expected=f"an entry {missing[0]}")
    return Address(repository=urls["Repository"], site=urls["Site"])
