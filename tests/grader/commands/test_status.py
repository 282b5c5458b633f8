"""`mlsys-grader status`: where each submission stands, and what to do next."""

import re
import shutil

import pytest

from tests.grader.command_line import LAB

STUDENTS = ("ada", "bob", "cy", "dee")


@pytest.mark.sandbox
def test_status_says_where_each_submission_stands(graded, call):
    code, out, err = call("status")
    assert (code, err) == (0, "")
    for student, marks in (("ada", "6 of 6"), ("bob", "3 of 6"), ("cy", "0 of 6")):
        assert re.search(rf"^{student} +graded +{marks}", out, re.MULTILINE), out
    assert "    3 graded: " in out and out.endswith("next: mlsys-grader feedback tiny --to DIR\n")
    graded.submission("ada", LAB).write_text("{}")
    (graded.root / "submitted" / "dee" / LAB).mkdir(parents=True)
    (graded.root / "submitted" / "dee" / "essay").mkdir()
    (graded.root / "submitted" / "dee" / ".ipynb_checkpoints").mkdir()
    code, out, _ = call("status")
    assert code == 0
    order = [line.split()[:2] for line in out.splitlines() if line.split()[:1] and line.split()[0] in STUDENTS]
    assert order == [["dee", "waiting"], ["ada", "changed"], ["bob", "graded"], ["cy", "graded"]]
    assert "next: mlsys-grader grade tiny\n" in out
    assert "not labs of this course: essay, in" in out
    assert call("status", "tiny")[1].splitlines() == [line for line in out.splitlines() if "essay" not in line]


def test_status_of_a_lab_that_nobody_handed_in(submitted_at, call):
    shutil.rmtree(submitted_at / "submitted")
    (submitted_at / "submitted").mkdir()
    assert call("status") == (0, "nothing has been handed in\n", "")
