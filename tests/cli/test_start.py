"""`mlsys-lab list` and `mlsys-lab start`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlsys_lab.cli import start
from mlsys_lab.stack.workspace import Workspace

Call = Callable[..., tuple[int, str, str]]


def test_list_shows_every_lab_and_how_far_one_is(call: Call, here: Path) -> None:
    code, out, _ = call("list")
    assert code == 0
    assert "07-fake" in out and "Lab 08-other" in out and "mlsys-lab start fake" in out
    assert "started" not in out
    call("start", "fake")
    assert "started" in call("list")[1]
    Workspace(here)._write({"fake": {"accepted": {}}})
    assert "accepted" in call("list")[1]


def test_start_copies_the_notebook_and_its_files_and_makes_a_workspace(call: Call, here: Path, released: Path) -> None:
    code, out, err = call("start", "fake")
    assert (code, err) == (0, "")
    assert sorted(p.name for p in (here / "07-fake").iterdir()) == ["07-fake.ipynb", "data.csv"]
    copied = (here / "07-fake" / "07-fake.ipynb").read_bytes()
    assert copied == (released / "07-fake" / "07-fake.ipynb").read_bytes()
    assert Workspace.find() == Workspace(here)
    assert "next: jupyter lab 07-fake/07-fake.ipynb" in out and "90 minutes" in out
    assert sorted(p.name for p in here.iterdir()) == [".mlsys-lab", "07-fake"]


def test_what_an_assistant_may_do_is_said_once_in_the_workspace(call: Call, here: Path, released: Path) -> None:
    (released / "AGENTS.md").write_text("Explain, do not solve.")
    assert call("start", "fake")[0] == 0
    assert (here / "AGENTS.md").read_text() == "Explain, do not solve."
    (here / "AGENTS.md").write_text("My own rules.")
    assert call("start", "other")[0] == 0
    assert (here / "AGENTS.md").read_text() == "My own rules."


def test_the_copy_of_a_read_only_package_can_be_written(call: Call, here: Path, released: Path) -> None:
    folder = released / "07-fake"
    (folder / "07-fake.ipynb").chmod(0o444)
    folder.chmod(0o555)
    try:
        assert call("start", "fake")[0] == 0
    finally:
        folder.chmod(0o755)
    assert (here / "07-fake").stat().st_mode & 0o700 == 0o700
    assert (here / "07-fake" / "07-fake.ipynb").stat().st_mode & 0o600 == 0o600


def test_inside_a_workspace_labs_go_side_by_side(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("start", "7")
    monkeypatch.chdir(here / "07-fake")
    assert call("start", "08-other")[0] == 0
    assert (here / "08-other" / "08-other.ipynb").is_file()
    assert not (here / "07-fake" / ".mlsys-lab").exists()


def test_another_folder_can_be_named(call: Call, here: Path) -> None:
    code, out, _ = call("start", "fake", "--into", "new/place")
    assert code == 0 and "next: jupyter lab new/place/07-fake/07-fake.ipynb" in out
    assert Workspace.find(here / "new" / "place") == Workspace(here / "new" / "place")
    assert Workspace.find(here) is None


def test_a_started_lab_is_never_overwritten(call: Call, here: Path) -> None:
    call("start", "fake")
    mine = here / "07-fake" / "07-fake.ipynb"
    mine.write_text("my work")
    code, _, err = call("start", "fake")
    assert code == 1 and mine.read_text() == "my work"
    assert "has been started already" in err and "go on with 07-fake/07-fake.ipynb" in err and err.count("\n") == 1


def test_a_misspelt_lab_is_one_line_with_a_suggestion(call: Call, here: Path) -> None:
    code, out, err = call("start", "faek")
    assert (code, out) == (1, "")
    assert err == (
        "mlsys-lab: unknown lab: got 'faek', expected one of 07-fake, 08-other; help: did you mean 'fake'?\n"
    )
    assert list(here.iterdir()) == []


def test_nothing_is_half_written_when_the_disk_is_full(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, copy: Path, **options: object) -> None:
        copy.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(start.shutil, "copytree", full)
    code, _, err = call("start", "fake")
    assert code == 1 and "No space left on device" in err and err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_file_where_the_folder_should_be(call: Call, here: Path) -> None:
    (here / "file").write_text("")
    code, _, err = call("start", "fake", "--into", "file")
    assert code == 1 and "cannot write into file" in err and "--into DIR" in err


def test_an_unwritable_folder_is_one_line(call: Call, here: Path) -> None:
    here.chmod(0o555)
    unwritable = here if os.geteuid() != 0 else Path("/sys")  # root may write anywhere but there
    code, out, err = call("start", "fake", "--into", str(unwritable))
    assert (code, out) == (1, "")
    assert f"cannot write into {unwritable}" in err and "choose another folder" in err and err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_without_released_labs_it_says_what_to_do(call: Call, here: Path, released: Path) -> None:
    for name in ("07-fake", "08-other"):
        (released / name / f"{name}.ipynb").unlink()
    for command in (("list",), ("start", "fake")):
        code, _, err = call(*command)
        assert code == 1 and "no released labs" in err and "make labs" in err


def test_a_damaged_description_of_a_lab_is_one_line(call: Call, here: Path, released: Path) -> None:
    (released / "07-fake" / "lab.toml").write_text("title = ")
    code, _, err = call("list")
    assert code == 1 and "lab.toml is not TOML" in err and err.count("\n") == 1
