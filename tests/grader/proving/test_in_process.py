"""Artifacts that are judged in this process."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.trusted.artifact import Artifact, Cell
from mlsys_grader.proving.in_process import InProcess, load_module


def test_what_an_artifact_prints_as_it_is_loaded_is_not_shown(capsys):
    module = load_module(Artifact("loud.ipynb", (Cell(1, "print('loaded')\nx = 1"),)))
    assert module.x == 1 and capsys.readouterr().out == ""


@pytest.mark.parametrize("names", [["y" * 101], ["two\nlines"], [f"y{i}" for i in range(257)]])
def test_an_answer_that_could_not_leave_the_sandbox_fails_here_too(tiny, names):
    (check, *_) = InProcess([tiny.checks["double"]]).checks
    answer = dict.fromkeys(names, np.zeros(1))
    assert check.compare(answer, answer).what == "its answer may not cross the wire"
    assert check.compare({"y": np.ones(1)}, {"y": np.ones(1)}) is None
