"""What a lab's checks are proved on: its reference, right solutions built otherwise, and mistakes of all kinds.

A folder per lab, tests/labs/TOPIC in a checkout, holds

    variants.py        MUTANTS and MISHAPS: named changes of the reference, a text that occurs once and its substitute
    alternatives/*.py  correct solutions built differently: definitions that take the place of the reference's

A mutant is a plausible mistake, and must fail the checks that it names. A mishap (unfinished code, a wrong shape, an
endless loop …) must besides be answered in certain words. An alternative must pass everything.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from mlsys_lab.checks.deciding.artifact import Artifact, export_cells, parse_notebook, read_notebook
from mlsys_lab.checks.labinfo import LabInfo
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.definitions import is_kernel


@dataclass(frozen=True)
class Variant:
    """The reference with `old`, which occurs exactly once in it, replaced by `new`.

    `fails`: the checks that must not pass. `hangs`: they fail because no answer comes; such checks get one second.
    `says`: words that the message must hold.
    """

    name: str
    old: str
    new: str
    fails: tuple[str, ...]
    hangs: bool = False
    says: str = ""


@dataclass(frozen=True)
class VariantsOf:
    """The variants of one lab: `info` is its folder in solutions/, `folder` that of its variants.

    Raises `InputError` where a file is missing, or a variant's old text is not in the reference exactly once.
    """

    info: LabInfo
    folder: Path

    @property
    def source(self) -> Path:
        """The py:percent notebook with the solutions."""
        return self.info.folder / f"{self.info.name}.py"

    @cached_property
    def module(self) -> ModuleType:
        """The module variants.py."""
        path = self.folder / "variants.py"
        if not path.is_file():
            raise InputError(
                f"no variants of {self.info.name}", expected=path, help="--variants DIR names their folder"
            )
        spec = importlib.util.spec_from_file_location(f"variants_of_{self.info.topic}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @property
    def mutants(self) -> list[Variant]:
        """Plausible mistakes, each of which must fail the checks that it names."""
        return list(self.module.MUTANTS)

    @property
    def mishaps(self) -> list[Variant]:
        """Code that is unfinished, has the wrong form, or never ends."""
        return list(self.module.MISHAPS)

    @property
    def alternatives(self) -> list[Path]:
        """Files of definitions that are right as well."""
        return sorted((self.folder / "alternatives").glob("*.py"))

    @cached_property
    def reference_notebook(self) -> dict[str, Any]:
        """The solved notebook as JSON."""
        import jupytext

        notebook: dict[str, Any] = json.loads(jupytext.writes(jupytext.read(self.source), fmt="ipynb"))
        return notebook

    @cached_property
    def reference(self) -> str:
        """The text of the solved notebook's artifact."""
        return export_cells(parse_notebook(self.reference_notebook, "reference.ipynb")).source

    def substituted(self, variant: Variant) -> str:
        """The reference's text with the variant's change."""
        if (count := self.reference.count(variant.old)) != 1:
            what = f"{self.info.name}: the old text of variant {variant.name!r} is not in the reference exactly once"
            raise InputError(what, got=f"{count} times", expected="once")
        return self.reference.replace(variant.old, variant.new)

    def with_definitions(self, path: Path) -> str:
        """The reference's text followed by an alternative's: of a name's definitions the last one counts.

        Kernels, of which there may be one of a name only, are taken out of the reference.
        """
        definitions = path.read_text(encoding="utf-8")
        names = {node.name for node in ast.parse(definitions).body if isinstance(node, ast.FunctionDef)}
        lines = self.reference.split("\n")
        for node in ast.parse(self.reference).body:
            if isinstance(node, ast.FunctionDef) and node.name in names and is_kernel(node):
                first = node.decorator_list[0].lineno
                lines[first - 1 : node.end_lineno] = [""] * ((node.end_lineno or first) - first + 1)
        return "\n".join([*lines, "# %% cell 1000", definitions])


def blank(info: LabInfo) -> Artifact:
    """The artifact of the notebook that learners get."""
    return export_cells(read_notebook(info.notebook))
