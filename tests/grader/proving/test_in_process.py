"""Artifacts that are judged in this process."""

from __future__ import annotations

from mlsys_grader.proving.in_process import load_module
from mlsys_lab.checks.deciding.artifact import Artifact, Cell


def test_what_an_artifact_prints_as_it_is_loaded_is_not_shown(capsys):
    module = load_module(Artifact("loud.ipynb", (Cell(1, "print('loaded')\nx = 1"),)))
    assert module.x == 1 and capsys.readouterr().out == ""
