"""`mlsys-grader grade`: what it refuses before anything is written, what it leaves alone, and how it stops."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from mlsys_grader.gradebook.record import read_record
from tests.grader.command_line import LAB, expect_one_line, read_tree
from tests.grader.conftest import CHECKS, PROJECT


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--student", "adda"),
            "nothing was handed in for 01-tiny by this student: got adda; help: did you mean 'ada'?",
        ),
        (
            ("--student", "ada", "--student", "zoe"),
            "by this student: got zoe; help: mlsys-grader status tiny lists all",
        ),
        (("--workers", "-1"), "--workers cannot be that: got -1, expected 1 to "),
        (("--workers", "9" * 20), f"--workers cannot be that: got {'9' * 20}, expected 1 to "),
        (("--workers", "10001", "--engine", "ray"), "--workers cannot be that: got 10001, expected 1 to 10,000, or 0"),
        (("--unsafe", "--sandbox", "podman"), "--unsafe is to do without a sandbox: got --sandbox podman as well"),
        (("--address", "10.0.0.1:6379"), "--address is the address of a Ray cluster; help: add --engine ray"),
        (("--time-factor", "0"), "--time-factor cannot be that: got 0.0, expected a positive number"),
        (("--time-factor", "nan"), "--time-factor cannot be that: got nan"),
        (("--time-factor", "inf"), "--time-factor cannot be that: got inf"),
    ],
)
def test_what_cannot_be_graded_is_told_before_anything_is_written(submitted_at, call, arguments, said):
    before = read_tree(submitted_at)
    expect_one_line(call("grade", "tiny", *arguments), said)
    assert read_tree(submitted_at) == before


def test_nothing_is_run_without_a_sandbox(submitted_at, call, monkeypatch):
    monkeypatch.setenv("PATH", "")
    before = read_tree(submitted_at)
    expect_one_line(
        call("grade", "tiny"),
        "bubblewrap is not installed; podman: it is not installed; docker: it is not installed; help: `apt",
    )
    assert read_tree(submitted_at) == before


def test_nothing_handed_in_for_the_lab(submitted_at, call):
    shutil.rmtree(submitted_at / "submitted")
    (submitted_at / "submitted").mkdir()
    said = "nothing was handed in for 01-tiny; help: mlsys-grader collect SOURCE --lab tiny"
    expect_one_line(call("grade", "tiny"), said)
    expect_one_line(call("grade", "tiny", "--student", "ada"), said)


@pytest.mark.sandbox
def test_grading_again_what_is_graded_does_nothing(graded, call):
    before = read_tree(graded.root)
    assert call("grade", "tiny") == (0, "0 judged, 3 were up to date, 0 not graded\n", "")
    assert read_tree(graded.root) == before


@pytest.mark.sandbox
def test_a_page_that_cannot_be_written_stops_no_other(graded, call):
    for student in ("ada", "cy"):
        path = graded.record(student, LAB)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"entered": False}))
    shutil.rmtree(graded.root / "feedback" / "ada")
    (graded.root / "feedback" / "ada").write_text("in the way")
    code, out, err = call("grade", "tiny")
    assert (code, err) == (1, "")
    assert "ada: not graded: " in out and "0 judged, 2 were up to date, 1 not graded" in out
    assert read_record(graded.record("cy", LAB)).entered and not read_record(graded.record("ada", LAB)).entered


@pytest.mark.sandbox
def test_an_interrupt_is_one_line(submitted_at, tiny_labs):
    code = "import sys; from mlsys_grader.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--course", str(submitted_at), "--labs", str(tiny_labs), "grade", "tiny"]
    path = os.pathsep.join([str(PROJECT), str(CHECKS)])
    with subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 240
        while not (submitted_at / "records").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does: everything that runs under the command gets it
        _, err = process.communicate(timeout=240)
    assert err == "mlsys-grader: stopped; run the same command again to go on\n"
    assert process.returncode == 130
