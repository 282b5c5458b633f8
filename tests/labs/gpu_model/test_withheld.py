"""Lab 02 asks for counts of FLOPs and bytes, which the package has for its own kernels: none is there to be called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlsys_lab.kernels
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox.contents import bind_project
from tests.labs.harness import labs

LAB = next(lab for lab in labs() if lab.info.topic == "gpu-model")


def test_no_cost_of_a_kernel_lies_in_the_sandbox() -> None:
    kernels = Path(mlsys_lab.kernels.__file__).parent
    costs, used = list(kernels.glob("*/cost.py")), kernels / "runtime.py"
    inside = [source for source, _ in bind_project(GradedLab(LAB.info))]
    assert costs
    assert [path for path in (*costs, used) if any(path.is_relative_to(source) for source in inside)] == [used]


def test_sectors_are_counted_where_only_kernels_are() -> None:
    sectors = Path(mlsys_lab.kernels.__file__).parent / "trace" / "sectors.py"
    lab = GradedLab(LAB.info)
    for seen, is_there in ((lab, True), (replace(lab, untraced=True), False)):
        assert any(sectors.is_relative_to(source) for source, _ in bind_project(seen)) == is_there
