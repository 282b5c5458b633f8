"""A lab as the grader sees it: lab.toml, checks, and a version that changes whenever a verdict could."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mlsys_checks import load_checks
from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.sides import SANDBOXED, TRUSTED, add_imports, find_files
from mlsys_grader.paths import INSIDE
from mlsys_lab.stack.labinfo import LabInfo


@dataclass(frozen=True)
class GradedLab:
    """One lab to grade. Tests and instructors register labs of their own with `checks` in lab.toml.

    `untraced`: the view of processes that run more of a submission than its kernels.
    """

    info: LabInfo
    untraced: bool = False

    @property
    def name(self) -> str:
        """The folder's name with its number: nbgrader's name for assignment and notebook."""
        return self.info.name

    @property
    def topic(self) -> str:
        """The lab's name without its number, as in `autograd`."""
        return self.info.topic

    @cached_property
    def checks(self) -> Lab:
        """The lab's checks, imported at first use."""
        return load_checks(self.info)

    @property
    def withheld(self) -> tuple[str, ...]:
        """Modules of mlsys_lab that are hidden from submissions."""
        return self.info.withheld + (self.info.traced if self.untraced else ())

    @property
    def call_modules(self) -> tuple[str, ...]:
        """Modules of calls that the sandbox needs."""
        asked = tuple(check for check in self.checks.checks if not (self.untraced and check.traced))
        return Lab(self.topic, asked).call_modules

    @property
    def checks_files(self) -> list[Path]:
        """Files that define the checks: a package, or one module and its modules of calls."""
        modules = (self.info.checks_module, *self.checks.call_modules)
        files = [Path(str(sys.modules[module].__file__)) for module in modules]
        return sorted(files[0].parent.rglob("*.py")) if files[0].name == "__init__.py" else files

    @property
    def foreign_path(self) -> str | None:
        """Folder to import the checks from if they are not part of the course."""
        return None if self.info.checks_module.startswith("mlsys_checks.") else str(self.checks_files[0].parent)

    @cached_property
    def verdict_files(self) -> list[Path]:
        """Files that a verdict depends on, by path.

        Both sides of the checks (`mlsys_checks.sides`) without other labs' parts, what runs next to a submission, every
        module of the course that these import, lab.toml and the released notebook.
        """
        files = [file for side in (SANDBOXED, TRUSTED) for file in find_files(side, self.info.checks_module)]
        files += sorted(INSIDE.glob("*.py"))
        folders: list[Path] = []
        if self.foreign_path is not None:
            files, folders = [*files, *self.checks_files], [Path(self.foreign_path)]
        return [*add_imports(files, folders), self.info.folder / "lab.toml", self.info.notebook]

    @cached_property
    def version(self) -> str:
        """Hash of `verdict_files`, independent of where they are installed: 16 hex digits."""
        digest = hashlib.sha256()
        for name, content in sorted((path.name, path.read_bytes()) for path in self.verdict_files):
            digest.update(f"{name} {len(content)}\n".encode() + content)
        return digest.hexdigest()[:16]
