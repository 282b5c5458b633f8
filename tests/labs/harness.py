"""The labs of solutions/ with their variants, for the tests of this folder."""

from __future__ import annotations

import json
import linecache
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mlsys_checks import load_checks
from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.artifact import Artifact, export_cells, parse_notebook
from mlsys_grader.proving import in_process
from mlsys_grader.proving.variants import VariantsOf
from mlsys_grader.release.build import release
from mlsys_lab.stack.labinfo import read_lab
from mlsys_lab.stack.loading import ArtifactLoader

PROJECT = Path(__file__).parents[2]


class LabUnderTest(VariantsOf):
    """One lab of solutions/ and the folder of its variants."""

    def __repr__(self) -> str:
        return f"LabUnderTest({self.info.name})"

    @property
    def checks(self) -> Lab:
        return load_checks(self.info)


def labs() -> list[LabUnderTest]:
    """Every lab of solutions/; a lab without variants fails here."""
    infos = [read_lab(path.parent) for path in sorted((PROJECT / "solutions").glob("*/lab.toml"))]
    found = [LabUnderTest(info, Path(__file__).parent / info.topic.replace("-", "_")) for info in infos]
    missing = [lab.info.name for lab in found if not (lab.folder / "variants.diff").is_file()]
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
    return in_process.load_module(Artifact.parse(name, source))


def kernels_of(module: ModuleType) -> ModuleType:
    """Of a module that `module_of` made the kernels alone, as the grader's sandbox has them."""
    loader = module.__loader__
    assert isinstance(loader, ArtifactLoader)
    return in_process.load_kernels_alone(loader.artifact)


def live_names(source: str) -> dict[str, Any]:
    """What a notebook defines that has run an artifact's text, as one cell that Python's tools find the lines of."""
    file = f"<cell {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "__main__", "In": ["", source]}
    exec(compile(source, file, "exec", dont_inherit=True), names)
    return names
