"""`mlsys-lab check` and `mlsys-lab progress`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlsys_lab.stack.workspace import Workspace

Call = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]
HALF = "def add_one(x):\n    return x + 2\ndef twice(x):\n    return x + x\n"


@pytest.fixture
def started(call: Call, here: Path) -> Path:
    """A started lab's notebook."""
    call("start", "fake")
    return here / "07-fake" / "07-fake.ipynb"


def test_all_right_is_accepted_and_later_labs_run_on_it(call: Call, here: Path, started: Path, write: Write) -> None:
    write(started)
    code, out, err = call("check", "fake")
    assert (code, err) == (0, "")
    assert "5 of 5 points" in out and "now run on your fake" in out
    kept = Workspace(here).artifact("fake")
    assert kept is not None and "return x + 1" in kept.source and 'check("add_one")' not in kept.source
    code, out, _ = call("progress")
    assert code == 0 and "5/5" in out and "0/5" in out  # 07-fake and 08-other


def test_half_right_earns_half_and_is_not_accepted(call: Call, here: Path, started: Path, write: Write) -> None:
    write(started, HALF)
    code, out, _ = call("check", "fake")
    assert code == 1
    assert "2 of 5 points" in out and "accepted" not in out
    assert "add_one, not right yet (case: single): `y` is wrong in 1 of 1 entry" in out
    assert (
        "given:    x = [" in out and "got:" in out and "expected:" in out and "hint:     `x + 1` <b>does</b> it" in out
    )
    assert Workspace(here).artifact("fake") is None
    assert "2/5" in call("progress")[1]


def test_an_accepted_lab_stays_accepted_when_a_later_try_fails(
    call: Call, here: Path, started: Path, write: Write
) -> None:
    write(started)
    call("check", "fake")
    write(started, HALF)
    assert call("check", "fake")[0] == 1
    kept = Workspace(here).artifact("fake")
    assert kept is not None and "x + 1" in kept.source


def test_the_untouched_notebook_is_still_to_do(call: Call, started: Path) -> None:
    code, out, _ = call("check", "fake")
    assert code == 1 and "0 of 5 points" in out
    assert "still to do: add_one, twice" in out and "not right yet" not in out
    assert "add_one: not written yet: cell 3" in out and "hint" not in out


def test_what_all_checks_share_is_told_once(call: Call, started: Path, write: Write) -> None:
    write(started, "def f(:")
    code, out, _ = call("check", "fake")
    assert code == 1 and out.count("syntax error in cell 3, line 2") == 1


def test_a_forgotten_marker_is_found(call: Call, started: Path, write: Write) -> None:
    write(started)
    started.write_text(started.read_text().replace("#| export\\ndef", "def").replace('"# Fake"', '"#| export"'))
    code, _, err = call("check", "fake")
    assert code == 1 and "exports nothing" in err
    write(started, "x = 1")
    document = started.read_text().replace('check(\\"add_one\\")', "def twice(x):\\n    return x + x")
    started.write_text(document)
    code, out, _ = call("check", "fake")
    assert code == 1 and "cell 4 defines `twice`: begin it with the line `#| export`" in out


def test_importing_what_the_lab_asks_for_is_one_line(call: Call, released: Path, started: Path, write: Write) -> None:
    toml = released / "07-fake" / "lab.toml"
    toml.write_text(toml.read_text() + 'withheld = ["mlsys_lab.autograd"]\n')
    write(started, "from mlsys_lab.autograd import Value")
    code, out, err = call("check", "fake")
    assert (code, out) == (1, "")
    assert "cell 3 imports mlsys_lab.autograd, which this lab asks you to write" in err and err.count("\n") == 1


def test_importing_what_is_not_there_in_grading_is_one_line(call: Call, started: Path, write: Write) -> None:
    write(started, "from mlsys_lab.models import Transformer")
    code, out, err = call("check", "fake")
    assert (code, out) == (1, "")
    assert (
        "cell 3 imports mlsys_lab.models, which is not there where this lab is graded" in err and err.count("\n") == 1
    )


@pytest.mark.parametrize("name", ["fake", "07-fake", "7", "07-fake/", "07-fake/07-fake.ipynb"])
def test_a_lab_is_named_or_pointed_at(call: Call, started: Path, write: Write, name: str) -> None:
    write(started)
    assert call("check", name)[0] == 0


def test_it_is_found_from_inside_the_labs_folder(
    call: Call, started: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(started)
    monkeypatch.chdir(started.parent)
    for name in ("fake", ".", "07-fake.ipynb"):
        assert call("check", name)[0] == 0


def test_a_notebook_outside_a_workspace_is_checked_but_not_noted(call: Call, here: Path, write: Write) -> None:
    path = write(here / "downloads" / "copy.ipynb")
    code, out, _ = call("check", str(path))
    assert code == 0 and "not noted" in out and "accepted" not in out
    assert [p.name for p in here.rglob("*")] == ["downloads", "copy.ipynb"]


MISTAKES = {
    "faek": "unknown lab: got 'faek', expected one of 07-fake, 08-other; help: did you mean 'fake'?",
    "other": "no notebook of lab 08-other here",
    "none.ipynb": "no such notebook",
    "broken.ipynb": "broken.ipynb is damaged",
    "course.ipynb": "course.ipynb is not a notebook of this course: got no line `check = lab(…)`",
    "gone.ipynb": "gone.ipynb is not a notebook of this course: got one that checks quantum",
    "empty": "no notebook in empty",
    "two": "more than one notebook in two",
    "bare.ipynb": "bare.ipynb exports nothing",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(call: Call, here: Path, started: Path, write: Write, name: str) -> None:
    (here / "broken.ipynb").write_text('{"cells": [')
    (here / "course.ipynb").write_text('{"cells": [{"cell_type": "code", "source": "#| export\\nx = 1"}]}')
    (here / "bare.ipynb").write_text('{"cells": [{"cell_type": "code", "source": "lab(\\"fake\\")"}]}')
    write(here / "gone.ipynb", topic="quantum")
    (here / "empty").mkdir()
    write(here / "two" / "a.ipynb")
    write(here / "two" / "b.ipynb")
    code, out, err = call("check", name)
    assert (code, out) == (1, "")
    assert err.startswith(f"mlsys-lab: {MISTAKES[name]}") and err.count("\n") == 1


def test_the_notebook_of_another_lab_is_one_line(call: Call, here: Path, started: Path, write: Write) -> None:
    write(started, topic="other")
    code, _, err = call("check", "fake")
    assert code == 1 and "is not the notebook of lab 07-fake: got one that checks other" in err
    assert call("check", str(started))[0] == 0  # pointed at, it is checked as what it is
    assert "other" in Workspace(here).progress() and "fake" not in Workspace(here).progress()


def test_a_notebook_that_lost_its_check_lines_is_known_by_its_name(call: Call, started: Path) -> None:
    started.write_text('{"cells": [{"cell_type": "code", "source": "#| export\\nx = 1"}]}')
    code, out, _ = call("check", "07-fake/07-fake.ipynb")
    assert code == 1 and "still to do: add_one, twice" in out and "`add_one` is not defined" in out


def test_progress_without_a_workspace_is_one_line(call: Call, here: Path) -> None:
    code, out, err = call("progress")
    assert (code, out) == (1, "")
    assert "no workspace here; help: `mlsys-lab start LAB` makes one" in err and err.count("\n") == 1


def test_a_damaged_record_of_progress_is_one_line_and_kept(call: Call, here: Path, started: Path) -> None:
    Workspace(here).progress_path.write_text("{")
    code, _, err = call("progress")
    assert code == 1 and "is damaged" in err and "it is kept as progress-damaged-" in err and err.count("\n") == 1
    assert call("progress")[0] == 0
