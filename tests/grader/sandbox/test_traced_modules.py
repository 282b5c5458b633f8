"""What counts beside traced kernels is in no process that runs more of a submission than its kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import timed_checks
import tiny_checks

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.stack.labinfo import LabInfo
from tests.grader.inside import ask

HIDDEN = "mlsys_lab.kernels.trace.sectors"


def lab_of(folder, checks):
    info = LabInfo(folder / "01-lab", "lab", "lab", 1, 3, traced=(HIDDEN,), checks_module=checks.__name__)
    return GradedLab(info)


def test_calls_of_traced_checks_are_left_out_where_nothing_is_traced(tmp_path):
    lab = lab_of(tmp_path, timed_checks)
    asked = {check.run.__module__ for check in lab.checks.checks if not check.traced}
    assert set(replace(lab, untraced=True).call_modules) == asked
    assert replace(lab, untraced=True).withheld == (HIDDEN,) and lab.withheld == ()


@pytest.mark.sandbox
def test_only_processes_for_kernels_have_it(tmp_path):
    with Sandbox(lab_of(tmp_path, tiny_checks)) as sandbox:
        assert f"No module named '{HIDDEN}'" in ask(sandbox, f"import {HIDDEN}").meta["got"]
        traced = SimpleNamespace(job=partial(sandbox.job, traced=True))
        assert "it is there" in ask(traced, f"import {HIDDEN}\nraise ValueError('it is there')").meta["got"]
