"""Saved notebooks in a process of their own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import ModuleType

import pytest

from mlsys_checks import fresh
from mlsys_checks.fresh import ChecksBrokenError, SavedReport, check_saved

RIGHT = "def add_one(x):\n    return x + 1\ndef twice(x):\n    return x + x"


def _reports(folder: Path, source: str, **options: float) -> list[SavedReport]:
    path = folder / "n.ipynb"
    cells = [{"cell_type": "code", "source": "1 / 0"}, {"cell_type": "code", "source": f"#| export\n{source}"}]
    path.write_text(json.dumps({"cells": cells}))
    return list(check_saved("fake_checks", path, **options))


def test_right_code_earns_all_and_other_cells_do_not_run(fakes: ModuleType, tmp_path: Path) -> None:
    reports = _reports(tmp_path, RIGHT)
    assert [(r.name, r.title, r.earned, r.passed) for r in reports] == [
        ("add_one", "Add one", 3.0, True),
        ("twice", "Twice", 2.0, True),
    ]


def test_each_check_stands_for_itself(fakes: ModuleType, tmp_path: Path) -> None:
    wrong, right = _reports(tmp_path, RIGHT.replace("x + 1", "x + 3"))
    assert not wrong.passed and (wrong.case, wrong.hint) == ("single", "`x + 1` <b>does</b> it")
    assert wrong.given.startswith("x = [") and wrong.given.endswith(", x")
    assert wrong.what.startswith("`y` is wrong") and wrong.got and wrong.expected
    assert right.passed and right.hint == ""


def test_code_that_does_not_load_costs_every_check_with_one_reason(fakes: ModuleType, tmp_path: Path) -> None:
    reports = _reports(tmp_path, "def f(:\n  pass")
    assert {r.what for r in reports} == {reports[0].what}
    assert "syntax error in cell 2, line 2" in reports[0].what


def test_an_unwritten_task_called_on_import_is_unfinished(fakes: ModuleType, tmp_path: Path) -> None:
    reports = _reports(tmp_path, "raise NotImplementedError")
    assert all(r.unfinished and not r.passed for r in reports)


def test_the_process_multiplies_with_one_thread_as_the_grader_does(fakes: ModuleType, tmp_path: Path) -> None:
    names = ", ".join(map(repr, fresh.ONE_THREAD))
    source = f"{RIGHT}\nimport os\nassert [os.environ[name] for name in ({names},)] == ['1', '1', '1']"
    assert all(report.passed for report in _reports(tmp_path, source))


def test_code_that_ends_the_process_costs_that_check_and_the_rest(fakes: ModuleType, tmp_path: Path) -> None:
    first, second = _reports(tmp_path, f"{RIGHT}\nimport os\ndef add_one(x): os.abort()")
    assert first.what == "it ended the process (SIGABRT)"
    assert second.what == "not tried, because add_one stopped the process"


def test_code_that_switches_the_alarm_off_is_killed_with_what_it_started(
    fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "GRACE_S", 0.5)
    pid_file = tmp_path / "pid"
    source = f"""{RIGHT}
import pathlib, signal, subprocess
def add_one(x):
    child = subprocess.Popen(["sleep", "60"])
    pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    while True:
        pass
"""
    first, second = _reports(tmp_path, source)
    assert first.what.startswith("it did not come to an end within") and not first.unfinished
    assert second.what.startswith("not tried")
    assert _gone(int(pid_file.read_text()))


def _gone(pid: int) -> bool:
    for _ in range(3000):  # a minute: a busy machine may take its time to end a process
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # killed; whoever inherited it has not collected it yet
            return True
        time.sleep(0.02)
    return False


def test_an_import_that_never_ends_is_killed(
    fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "GRACE_S", 0.1)
    source = "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"
    reports = _reports(tmp_path, source, start_limit_s=2.0)
    assert reports[0].what.startswith("it did not come to an end") and len(reports) == 2


def test_what_the_learner_prints_is_dropped_and_files_beside_are_not_imported(
    fakes: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "helper.py").write_text("x = 1\n")
    reports = _reports(tmp_path, "print('loud')\nimport helper\ndef add_one(x):\n    return helper.x + x")
    assert "No module named 'helper'" in reports[0].got
    assert "loud" not in capfd.readouterr().out


def test_the_current_folder_is_the_notebooks(fakes: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("1")
    source = RIGHT + "\nimport pathlib\nassert pathlib.Path('data.txt').exists()"
    assert all(r.passed for r in _reports(tmp_path, source))
    assert Path.cwd() != tmp_path


def test_checks_that_cannot_start_are_not_the_learners_fault(tmp_path: Path) -> None:
    with pytest.raises(ChecksBrokenError, match=r"could not be started.*No module named 'no_such_checks'"):
        list(check_saved("no_such_checks", tmp_path / "n.ipynb"))


def test_nothing_is_left_behind(fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    _reports(tmp_path, RIGHT)
    assert list(scratch.iterdir()) == []
