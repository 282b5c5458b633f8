"""What a lab asks for is not in its sandbox, by its own name or in a module that imports it; what it needs is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_checks.sides import find_module, find_provided, find_stack
from mlsys_checks.trusted.artifact import Artifact, refuse_absent, refuse_topics, refuse_withheld
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.paths import PACKAGE
from mlsys_grader.sandbox.contents import HOME, bind_project
from mlsys_lab.stack.solved import export_solved, find_solved
from tests.labs.harness import LabUnderTest, artifact_of, labs

LABS = labs()
COUNT_TRACES = {"findings.py", "traffic.py", "report.py", "numba_simulator.py", "numba_record.py"}
"""Modules that need what counts for traced kernels, and answer nothing without it."""
each_lab = pytest.mark.parametrize("lab", LABS, ids=[lab.info.topic for lab in LABS])


def modules_inside(lab: GradedLab) -> Iterator[Path]:
    """The modules of mlsys_lab in a lab's sandbox, solved labs included."""
    for source, target in bind_project(lab):
        if source.endswith(".py") and Path(target).is_relative_to(HOME / "mlsys_lab"):
            yield Path(source)


def names_defined(source: str) -> set[str]:
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name for node in ast.parse(source).body if isinstance(node, kinds) and not node.name.startswith("_")}


def imported_at_once(file: Path) -> set[Path]:
    """The modules of the package that a module imports when it is imported itself."""
    found = set[Path]()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                path = PACKAGE.parent.joinpath(*name.split("."))
                found |= {one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()}
    return found


@each_lab
def test_nothing_that_a_lab_asks_for_is_defined_in_its_sandbox(lab: LabUnderTest) -> None:
    cells = [cell for cell in lab.reference_notebook["cells"] if cell["metadata"].get("nbgrader", {}).get("solution")]
    asked = set().union(*(names_defined("".join(cell["source"])) for cell in cells))
    assert len(asked) > 5
    for seen in (GradedLab(lab.info), replace(GradedLab(lab.info), untraced=True)):
        inside = list(modules_inside(seen))
        assert PACKAGE / "errors.py" in inside
        assert {
            file: found for file in inside if (found := names_defined(file.read_text(encoding="utf-8")) & asked)
        } == {}


@each_lab
def test_no_module_in_a_sandbox_would_work_once_a_withheld_one_was_replaced(lab: LabUnderTest) -> None:
    for seen in (GradedLab(lab.info), replace(GradedLab(lab.info), untraced=True)):
        withheld = {file for name in seen.withheld for file in find_module(name)}
        inside = set(modules_inside(seen))
        assert not inside & {*withheld, find_solved(lab.info.topic)}
        modules = inside - set(find_stack(lab.info))
        needy = {file for file in modules if any(one not in inside for one in imported_at_once(file))}
        assert {file.name for file in needy} <= (COUNT_TRACES if seen.untraced and lab.info.traced else set())


@each_lab
def test_exported_cells_of_right_solutions_import_nothing_else(lab: LabUnderTest) -> None:
    withheld = (*lab.info.withheld, *lab.info.traced)
    inside = find_provided(lab.info, withheld)
    artifacts = [artifact_of(lab.reference_notebook, "reference.ipynb")]
    artifacts += [Artifact.parse(path.name, lab.with_definitions(path)) for path in lab.alternatives]
    artifacts += [
        Artifact.parse(path.name, export_solved(path.read_text(encoding="utf-8"))) for path in find_stack(lab.info)
    ]
    for artifact in artifacts:
        refuse_withheld(artifact, withheld)
        refuse_absent(artifact, inside)
        refuse_topics(artifact, lab.info.stack)
