"""The labs of solutions/ as their tests see them; `mlsys_grader.proving.variants` has what checks are proved on."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import scipy.linalg
import torch
from threadpoolctl import threadpool_limits

from mlsys_grader.proving.variants import VariantsOf
from mlsys_grader.release.build import release
from mlsys_lab.checks.deciding.artifact import Artifact, export_cells, load, parse_notebook
from mlsys_lab.checks.labinfo import read_lab
from mlsys_lab.checks.learner.spec import Check, Lab
from mlsys_lab.checks.runner import Report, run_check
from mlsys_lab.stack.artifact import ArtifactLoader
from mlsys_lab.stack.kernels import load_kernels

PROJECT = Path(__file__).parents[2]
torch.set_num_threads(1)  # as the grader's workers do
assert scipy.linalg  # brings a BLAS of its own, which has to be there to be told
threadpool_limits(1)
SEED = 20
"""Seed of the inputs: not the one that notebooks show."""


class LabUnderTest(VariantsOf):
    """One lab of solutions/ and the folder of its variants."""

    @property
    def checks(self) -> Lab:
        return self.info.load_checks()


def labs() -> list[LabUnderTest]:
    """Every lab of solutions/; a lab without variants fails here."""
    infos = [read_lab(path.parent) for path in sorted((PROJECT / "solutions").glob("*/lab.toml"))]
    found = [LabUnderTest(info, Path(__file__).parent / info.topic.replace("-", "_")) for info in infos]
    missing = [lab.info.name for lab in found if not (lab.folder / "variants.py").is_file()]
    assert not missing, f"no proof that the checks of {missing} discriminate"
    return found


@cache
def released_notebook(lab: LabUnderTest) -> dict[str, Any]:
    """The notebook that learners get, as JSON."""
    files = release(lab.info.folder, PROJECT / "pyproject.toml").files
    notebook: dict[str, Any] = json.loads(files[f"{lab.info.name}.ipynb"])
    return notebook


def artifact_of(notebook: dict[str, Any], name: str) -> Artifact:
    return export_cells(parse_notebook(notebook, name))


def module_of(source: str, name: str) -> ModuleType:
    """The module of an artifact's text."""
    return load(Artifact.parse(name, source), module_name=f"artifact_{abs(hash((name, source)))}")


@cache
def kernels_of(module: ModuleType) -> ModuleType:
    """Of a module that `module_of` made the kernels alone, as the grader's sandbox has them."""
    loader = module.__loader__
    assert isinstance(loader, ArtifactLoader)
    return load_kernels(loader.artifact)


def tried(check: Check, module: ModuleType, *, limit_s: float | None = None) -> Report:
    """Public and hidden cases of a check, with a seed that no notebook uses; of a traced check on kernels alone."""
    if check.traced:
        module = kernels_of(module)
    if limit_s is not None:
        check = replace(check, time_limit_s=limit_s)
    return run_check(check, module, seed=SEED, hidden=True)


def told(report: Report) -> str:
    """All that a report says about what is wrong."""
    if report.mismatch is None:
        return "passed"
    case = report.case.name if report.case else ""
    return f"{report.check.name} ({case}): {report.mismatch.what} | {report.mismatch.got} | {report.mismatch.expected}"
