"""A complaint: the recorded verdict is replayed with its seeds, and marks change only when told to."""

import json
import sqlite3
from contextlib import closing

import pytest

from mlsys_grader.cli import main
from mlsys_grader.gradebook.audit import read_audit
from mlsys_grader.gradebook.record import read_record

pytestmark = pytest.mark.sandbox
LAB = "01-tiny"


@pytest.fixture
def call(graded, tiny_labs, capsys):
    """Run `mlsys-grader regrade tiny ARGUMENTS`: exit code, stdout, stderr."""

    def run(*arguments):
        capsys.readouterr()
        command = ["regrade", "tiny", "--time-factor", "3", "--course", str(graded.root), "--labs", str(tiny_labs)]
        code = main([*command, *arguments])
        return code, *capsys.readouterr()

    return run


def score(course, student, check):
    with closing(sqlite3.connect(course.gradebook)) as database:
        query = """SELECT auto_score FROM grade JOIN base_cell ON cell_id = base_cell.id
        JOIN submitted_notebook ON grade.notebook_id = submitted_notebook.id
        JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
        WHERE student_id = ? AND base_cell.name = ?"""
        return database.execute(query, (student, check)).fetchall()


def alter(course, student, check, **fields):
    """Change a verdict on record, as if something had gone wrong when it was formed."""
    path = course.record(student, LAB)
    record = json.loads(path.read_text())
    for verdict in record["verdicts"]:
        if verdict["check"] == check:
            verdict.update(fields)
    path.write_text(json.dumps(record))


def test_a_replay_says_that_every_verdict_is_the_same(graded, call):
    before = graded.record("bob", LAB).read_bytes()
    code, out, err = call("--student", "bob")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "double: the same, 1 of 1",
        "mean: the same, 2 of 2",
        "total: the same, 0 of 3",
        "every verdict is the same",
    ]
    assert graded.record("bob", LAB).read_bytes() == before
    last = read_audit(graded.audit).entries[-1]
    first = next(entry for entry in read_audit(graded.audit).entries if entry["student"] == "bob")
    assert (last["event"], last["student"], last["entered"]) == ("regraded: the same", "bob", False)
    assert last["seeds"] == first["seeds"], "the recorded seeds were used"


def test_a_replay_uses_the_recorded_seeds_and_fresh_ones_differ(graded, call):
    first = next(entry for entry in read_audit(graded.audit).entries if entry["student"] == "ada")
    code, out, err = call("--student", "ada", "--fresh")
    assert code == 0 and "every verdict is the same" in out and "new secret inputs were drawn" in err
    assert read_audit(graded.audit).entries[-1]["seeds"] != first["seeds"]


def test_a_difference_is_shown_and_changes_nothing_until_it_is_applied(graded, call):
    alter(graded, "bob", "mean", earned=0.0, what="a machine that was out of order")
    changed = graded.record("bob", LAB).read_bytes()
    code, out, _ = call("--student", "bob")
    assert code == 1 and "mean: DIFFERENT: was 0, is 2 of 2\n" in out
    assert out.endswith("nothing was changed; --apply enters the new marks\n")
    assert graded.record("bob", LAB).read_bytes() == changed
    assert read_audit(graded.audit).entries[-1]["event"] == "regraded: different, not applied"
    code, out, _ = call("--student", "bob", "--apply")
    assert code == 0 and out.endswith("the new marks are entered\n")
    record = read_record(graded.record("bob", LAB))
    assert record.earned == 3 and record.entered
    assert score(graded, "bob", "mean") == [(2.0,)]
    last = read_audit(graded.audit).entries[-1]
    assert (last["event"], last["earned"], last["entered"]) == ("regraded", 3, True)
    assert read_audit(graded.audit).damaged == ()
    assert "3 of 6 points" in graded.feedback("bob", LAB).read_text()
    assert list(graded.backups.iterdir()), "the gradebook was backed up before"


def test_applying_what_is_the_same_changes_nothing(graded, call):
    before = graded.record("ada", LAB).read_bytes()
    assert call("--student", "ada", "--apply")[0] == 0
    assert graded.record("ada", LAB).read_bytes() == before


def test_a_lab_that_changed_since_is_remarked(graded, call):
    path = graded.record("ada", LAB)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "0123456789abcdef"}))
    code, _, err = call("--student", "ada")
    assert code == 0 and err.startswith(
        "mlsys-grader: the lab has changed since: judged as version 0123456789abcdef, now"
    )


@pytest.mark.parametrize(
    ("student", "said"),
    [
        ("zoe", "nothing of zoe is on record for 01-tiny; help: mlsys-grader grade tiny"),
        ("../ada", "not a student id: got '../ada'"),
        ("cy", "the submission of cy has nothing that could be judged: got the file is damaged"),
        ("bob", "bob has handed in anew since the verdict; help: mlsys-grader grade tiny judges it"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(graded, call, student, said):
    graded.submission("bob", LAB).write_text("{}")
    log = graded.audit.read_bytes()
    code, out, err = call("--student", student)
    assert (code, out) == (1, "") and err.startswith(f"mlsys-grader: {said}") and err.count("\n") == 1
    assert graded.audit.read_bytes() == log
