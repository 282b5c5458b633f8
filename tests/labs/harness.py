"""The proof that a lab's checks discriminate: machinery for any lab.

Beside this file, a folder per topic holds

    variants.py        MUTANTS and MISHAPS: named changes of the reference, a text that occurs once and its substitute
    alternatives/*.py  correct solutions built differently: definitions that take the place of the reference's

A mutant is a plausible mistake, and must fail the checks that it names. A mishap (unfinished code, a wrong shape, an
endless loop …) must besides be answered in certain words. An alternative must pass everything.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jupytext
import torch

from grader.release import release
from mlsys_lab.checks.artifact import Artifact, export_cells, load, parse_notebook
from mlsys_lab.checks.labinfo import LabInfo, read_lab
from mlsys_lab.checks.runner import Report, run_check
from mlsys_lab.checks.spec import Check, Lab

PROJECT = Path(__file__).parents[2]
torch.set_num_threads(1)  # as the grader's workers do
SEED = 20
"""Seed of the inputs: not the one that notebooks show."""


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
class LabUnderTest:
    """One lab of solutions/ and the folder of its variants."""

    info: LabInfo
    folder: Path

    @property
    def checks(self) -> Lab:
        return self.info.load_checks()

    @property
    def source(self) -> Path:
        """The py:percent notebook."""
        return self.info.folder / f"{self.info.name}.py"

    @property
    def variants(self) -> ModuleType:
        """The module variants.py."""
        spec = importlib.util.spec_from_file_location(f"variants_of_{self.info.topic}", self.folder / "variants.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @property
    def alternatives(self) -> list[Path]:
        return sorted((self.folder / "alternatives").glob("*.py"))


def labs() -> list[LabUnderTest]:
    """Every lab of solutions/; a lab without variants fails here."""
    infos = [read_lab(path.parent) for path in sorted((PROJECT / "solutions").glob("*/lab.toml"))]
    found = [LabUnderTest(info, Path(__file__).parent / info.topic.replace("-", "_")) for info in infos]
    missing = [lab.info.name for lab in found if not (lab.folder / "variants.py").is_file()]
    assert not missing, f"no proof that the checks of {missing} discriminate"
    return found


@cache
def reference_notebook(lab: LabUnderTest) -> dict[str, Any]:
    """The solved notebook as JSON."""
    notebook: dict[str, Any] = json.loads(jupytext.writes(jupytext.read(lab.source), fmt="ipynb"))
    return notebook


@cache
def released_notebook(lab: LabUnderTest) -> dict[str, Any]:
    """The notebook that learners get, as JSON."""
    files = release(lab.info.folder, PROJECT / "pyproject.toml").files
    notebook: dict[str, Any] = json.loads(files[f"{lab.info.name}.ipynb"])
    return notebook


def artifact_of(notebook: dict[str, Any], name: str) -> Artifact:
    return export_cells(parse_notebook(notebook, name))


@cache
def reference_source(lab: LabUnderTest) -> str:
    return artifact_of(reference_notebook(lab), "reference.ipynb").source


def module_of(source: str, name: str) -> ModuleType:
    """The module of an artifact's text."""
    return load(Artifact.parse(name, source), module_name=f"artifact_{abs(hash((name, source)))}")


def substituted(lab: LabUnderTest, variant: Variant) -> str:
    """The reference's text with the variant's change."""
    source = reference_source(lab)
    count = source.count(variant.old)
    assert count == 1, f"{variant.name}: its old text occurs {count} times in the reference, not once"
    return source.replace(variant.old, variant.new)


def with_definitions(lab: LabUnderTest, path: Path) -> str:
    """The reference's text followed by an alternative's: the later definition of a name is the one that counts."""
    return f"{reference_source(lab)}\n# %% cell 1000\n{path.read_text(encoding='utf-8')}"


def tried(check: Check, module: ModuleType, *, limit_s: float | None = None) -> Report:
    """Public and hidden cases of a check, with a seed that no notebook uses."""
    if limit_s is not None:
        check = replace(check, time_limit_s=limit_s)
    return run_check(check, module, seed=SEED, hidden=True)


def told(report: Report) -> str:
    """All that a report says about what is wrong."""
    if report.mismatch is None:
        return "passed"
    case = report.case.name if report.case else ""
    return f"{report.check.name} ({case}): {report.mismatch.what} | {report.mismatch.got} | {report.mismatch.expected}"
