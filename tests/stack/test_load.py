"""`stack.load`: the learner's accepted code first, the course's for the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.stack import load
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.workspace import Workspace


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("mlsys_lab.fake_topic")
    exec("class Tensor: pass\ndef add(a, b): return a + b\nimport math\n_hidden = 1", module.__dict__)
    module.__all__ = ["Tensor", "add"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlsys_lab.fake_topic", module)
    return module


def _accept(root: Path, source: str) -> Workspace:
    workspace = Workspace.create(root)
    workspace.accept("fake-topic", Artifact("n.ipynb", (Cell(4, f"#| export\n{source}"),)))
    return workspace


def test_without_a_workspace_all_is_the_courses(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    layer = load("fake-topic")
    assert layer.Tensor is reference.Tensor
    assert capsys.readouterr().out == "fake-topic: the course's (no accepted artifact of yours)\n"


def test_the_learners_names_come_first_and_it_says_which(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _accept(tmp_path, "import math\nfrom os import getcwd\ndef add(a, b): return 'mine'\nEPS = 3\n_x = 1")
    (tmp_path / "02-next").mkdir()
    monkeypatch.chdir(tmp_path / "02-next")
    layer = load("fake-topic")
    assert layer.add(1, 2) == "mine" and layer.EPS == 3 and layer.Tensor is reference.Tensor
    assert layer.sources == {"Tensor": "the course's", "add": "yours", "EPS": "yours"}
    assert capsys.readouterr().out == "fake-topic: yours: EPS, add; the course's: Tensor\n"
    assert {"add", "Tensor", "EPS"} <= set(dir(layer))


def test_a_name_that_neither_has_is_an_error_that_lists_them(reference: ModuleType, tmp_path: Path) -> None:
    layer = load("fake-topic", Workspace.create(tmp_path))
    with pytest.raises(AttributeError, match="the fake-topic layer has no 'tensor'; it has Tensor, add"):
        _ = layer.tensor
    with pytest.raises(AttributeError):
        _ = layer.math


def test_accepted_code_that_no_longer_runs_gives_way_to_the_courses_and_says_where(
    reference: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load("fake-topic", _accept(tmp_path, "def add(a, b, c=1 / 0): return 'mine'")).add(1, 2) == 3
    said = capsys.readouterr().out
    assert "fake-topic: no longer runs: .mlsys-lab/artifacts/fake-topic.py: cell 4" in said and "c=1 / 0" in said


def test_a_topic_that_the_course_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such topic: got 'no-such'"):
        load("no-such", Workspace.create(tmp_path))


@pytest.mark.parametrize(
    ("topic", "package"), [("transformer-arithmetic", "flops.counts"), ("scaling-laws", "scaling")]
)
def test_a_topic_whose_lab_names_its_reference(
    topic: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType(f"mlsys_lab.{package}")
    exec("def parameters(config): return 7\ndef flops(config): return 8", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    workspace = Workspace.create(tmp_path)
    assert load(topic, workspace).parameters(None) == 7
    workspace.accept(topic, Artifact("n.ipynb", (Cell(4, "#| export\ndef flops(config): return 6 * 7"),)))
    layer = load(topic, workspace)
    assert (layer.flops(None), layer.parameters(None)) == (42, 7)
    assert capsys.readouterr().out.endswith(f"{topic}: yours: flops; the course's: parameters\n")
