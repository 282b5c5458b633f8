"""`stack.load`: the learner's accepted code first, the solved lab's for the rest."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from mlsys_lab import stack
from mlsys_lab.errors import InputError
from mlsys_lab.stack import Layer, load, using
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.workspace import Workspace


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("mlsys_solved_tiny")
    exec("class Tensor: pass\ndef add(a, b): return a + b\nimport math\n_hidden = 1", vars(module))
    monkeypatch.setattr(stack, "load_solved", {"tiny": module}.get)
    return module


def _accept(root: Path, source: str) -> Workspace:
    workspace = Workspace.create(root)
    workspace.accept("tiny", Artifact("n.ipynb", (Cell(4, f"#| export\n{source}"),)))
    return workspace


def test_without_a_workspace_all_is_the_solved_labs(
    solved: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    layer = load("tiny")
    assert layer.Tensor is solved.Tensor
    assert capsys.readouterr().out == "tiny: the solved lab's (no accepted artifact of yours)\n"


def test_the_learners_names_come_first_and_it_says_which(
    solved: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _accept(tmp_path, "import math\nfrom os import getcwd\ndef add(a, b): return 'mine'\nEPS = 3\n_x = 1")
    (tmp_path / "02-next").mkdir()
    monkeypatch.chdir(tmp_path / "02-next")
    layer = load("tiny")
    assert layer.add(1, 2) == "mine" and layer.EPS == 3 and layer.Tensor is solved.Tensor
    assert layer.sources == {"Tensor": "the solved lab's", "add": "yours", "EPS": "yours"}
    assert capsys.readouterr().out == "tiny: yours; the solved lab's: Tensor\n"
    assert {"add", "Tensor", "EPS"} <= set(dir(layer))


def test_a_name_that_neither_has_is_an_error_that_lists_them(solved: ModuleType, tmp_path: Path) -> None:
    layer = load("tiny", Workspace.create(tmp_path))
    with pytest.raises(AttributeError, match="the tiny layer has no 'tensor'; it has Tensor, add"):
        _ = layer.tensor
    with pytest.raises(AttributeError):
        _ = layer.math


def test_where_accepted_code_no_longer_runs_the_solved_labs_takes_its_place_and_it_says_why(
    solved: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load("tiny", _accept(tmp_path, "def add(a, b, c=1 / 0): return 'mine'")).add(1, 2) == 3
    said = capsys.readouterr().out
    assert "tiny: no longer runs: .mlsys-lab/artifacts/tiny.py: cell 4" in said and "c=1 / 0" in said


def test_without_the_solved_lab_only_an_accepted_artifact_will_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stack, "load_solved", lambda topic: None)
    with pytest.raises(InputError, match=r"no such layer: got 'tiny'.*`mlsys-lab check tiny` accepts yours"):
        load("tiny", Workspace.create(tmp_path))
    assert load("tiny", _accept(tmp_path, "def add(a, b): return 'mine'")).add(1, 2) == "mine"
    assert capsys.readouterr().out == "tiny: yours\n"


def test_an_artifact_that_is_loaded_with_given_layers_runs_on_them(
    solved: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = Layer("tiny", {"add": max}, {"add": "yours"})
    with using({"tiny": given}):
        assert load("tiny") is given
        assert load("tiny", Workspace.create(tmp_path)).add(1, 2) == 3
    assert load("tiny", Workspace.create(tmp_path)).add(1, 2) == 3
    assert capsys.readouterr().out.count("no accepted artifact") == 2


def test_kernels_are_among_a_labs_names() -> None:
    """A kernel's class is that of Triton or Numba, which says that it comes from there."""
    assert {"flash_kernel", "rms_norm_kernel"} <= set(dir(load("triton")))
    assert {"matmul", "block_sum"} <= set(dir(load("cuda")))
