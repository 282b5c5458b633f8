"""A lab as the grader sees it: its lab.toml, its checks, and a version that changes when a verdict could."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import mlsys_lab.checks
from mlsys_lab.checks.labinfo import LabInfo
from mlsys_lab.checks.spec import Lab

DECIDERS = ("artifact.py", "attempt.py", "compare.py", "limits.py", "performance.py", "spec.py", "verdict.py")
"""Modules of mlsys_lab.checks that every verdict passes through."""


@dataclass(frozen=True)
class GradedLab:
    """One lab to be graded. Tests and instructors register labs of their own by `checks` in lab.toml."""

    info: LabInfo

    @property
    def name(self) -> str:
        """The folder's name, number included: what nbgrader calls the assignment and the notebook."""
        return self.info.name

    @property
    def topic(self) -> str:
        """The name without its number."""
        return self.info.topic

    @cached_property
    def checks(self) -> Lab:
        """The lab's checks."""
        return self.info.load_checks()

    @property
    def checks_files(self) -> list[Path]:
        """The files that define the checks: all of a package, or one module and its modules of calls."""
        modules = (self.info.checks_module, *self.checks.call_modules)
        files = [Path(str(sys.modules[module].__file__)) for module in modules]
        return sorted(files[0].parent.rglob("*.py")) if files[0].name == "__init__.py" else files

    @property
    def foreign_path(self) -> str | None:
        """The folder to import the checks from when they are not part of the course package."""
        return None if self.info.checks_module.startswith("mlsys_lab.") else str(self.checks_files[0].parent)

    @cached_property
    def version(self) -> str:
        """Hash of the checks, of what decides with them, of lab.toml and of the released notebook: 16 hex digits."""
        digest = hashlib.sha256()
        shared = [Path(str(mlsys_lab.checks.__file__)).parent / name for name in DECIDERS]
        for path in (*self.checks_files, *shared, self.info.folder / "lab.toml", self.info.notebook):
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\n".encode() + content)
        return digest.hexdigest()[:16]
