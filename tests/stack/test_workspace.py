"""The learner's workspace: found from below, written whole, and mended when damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.workspace import Workspace, write_atomic

ARTIFACT = Artifact("01-autograd.ipynb", (Cell(3, "#| export\nx = 1"),))


def test_it_is_found_from_any_folder_inside(tmp_path: Path) -> None:
    inside = tmp_path / "01-autograd" / "deep"
    inside.mkdir(parents=True)
    assert Workspace.find(inside) is None
    made = Workspace.create(tmp_path)
    assert Workspace.find(inside) == made == Workspace.find(tmp_path)


def test_the_nearest_one_counts(tmp_path: Path) -> None:
    Workspace.create(tmp_path)
    inner = Workspace.create(tmp_path / "a")
    (tmp_path / "a" / "b").mkdir()
    assert Workspace.find(tmp_path / "a" / "b") == inner


def test_points_are_noted_check_by_check(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path)
    assert workspace.progress() == {}
    workspace.record("autograd", {"a": 3.0})
    workspace.record("autograd", {"b": 0.0})
    workspace.record("autograd", {"a": 0.0})
    workspace.record("cuda", {"a": 1.0})
    noted = {topic: {n: c["points"] for n, c in lab["checks"].items()} for topic, lab in workspace.progress().items()}
    assert noted == {"autograd": {"a": 0.0, "b": 0.0}, "cuda": {"a": 1.0}}


def test_an_accepted_artifact_is_kept_and_read_back(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path)
    assert workspace.artifact("autograd") is None
    workspace.record("autograd", {"a": 3.0})
    workspace.accept("autograd", ARTIFACT, "0123456789ab")
    kept = workspace.artifact("autograd")
    assert kept is not None and kept.source == ARTIFACT.source
    assert workspace.progress()["autograd"]["accepted"]["notebook"] == "01-autograd.ipynb"
    assert workspace.progress()["autograd"]["accepted"]["version"] == "0123456789ab"
    assert workspace.progress()["autograd"]["checks"]["a"]["points"] == 3.0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xff",
        b"[]",
        b'{"format": 2, "labs": {}}',
        b'{"format": 1}',
        b'{"format": 1, "labs": {"a": 7}}',
        b'{"format": 1, "labs": {"a": {"checks": {"c": {}}}}}',
        b'{"format": 1, "labs": {"a": {"accepted": 1}}}',
    ],
)
def test_a_damaged_record_is_set_aside_and_said_once(tmp_path: Path, content: bytes) -> None:
    workspace = Workspace.create(tmp_path)
    workspace.progress_path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        workspace.progress()
    assert "is damaged" in str(caught.value) and "\n" not in str(caught.value)
    (kept,) = workspace.progress_path.parent.glob("progress-damaged-*.json")
    assert kept.read_bytes() == content and kept.name in str(caught.value)
    assert workspace.progress() == {}
    workspace.record("autograd", {"a": 1.0})
    assert json.loads(workspace.progress_path.read_text())["labs"]["autograd"]["checks"]["a"]["points"] == 1.0


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.json"
    write_atomic(path, "old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make a workspace in"):
        Workspace.create(tmp_path / "file")
    with pytest.raises(InputError, match="cannot write"):
        write_atomic(tmp_path / "file" / "x.json", "")


def test_an_artifact_that_is_no_text(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path)
    workspace.accept("autograd", ARTIFACT)
    workspace.artifact_path("autograd").write_bytes(b"\xff")
    with pytest.raises(InputError, match="delete it and accept the lab again"):
        workspace.artifact("autograd")
