import json
import sqlite3

import pytest

from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.record import read_record
from mlsys_grader.grading.grade import Options, grade
from mlsys_grader.intake.collect import collect

pytestmark = pytest.mark.sandbox
LAB = "01-tiny"
OPTIONS = Options(workers=2)
EXPECTED = {"perfect": 6, "partial": 3, "blank": 0, "corrupt": 0, "nobody": 0, "slow": 5}
MARKS = """
select student_id, base_cell.name, auto_score, needs_manual_grade from grade
join submitted_notebook on grade.notebook_id = submitted_notebook.id
join submitted_assignment on submitted_notebook.assignment_id = submitted_assignment.id
join base_cell on grade.cell_id = base_cell.id order by student_id, base_cell.name
"""


@pytest.fixture
def course(tmp_path, hand_in):
    """A course folder with a small class in it."""
    source = tmp_path / "hand-ins"
    files = {
        "perfect": json.dumps(hand_in()),
        "partial": json.dumps(hand_in(total="def total(x):\n    return x.sum()\n")),
        "blank": json.dumps(hand_in(double=None, mean=None, total=None)),
        "corrupt": "{",
        "slow": json.dumps(hand_in(double="import time\ndef double(x):\n    time.sleep(60)\n")),
    }
    for student, content in files.items():
        (source / student).mkdir(parents=True)
        (source / student / f"{LAB}.ipynb").write_text(content)
    (source / "nobody").mkdir()
    course = Course.open(tmp_path / "course", create=True)
    collect(course, LAB, source)
    return course


def gradebook(course):
    """What the gradebook holds: marks per student, and every cell's row."""
    with sqlite3.connect(course.gradebook) as database:
        rows = database.execute(MARKS).fetchall()
    database.close()
    sums = {}
    for student, _, score, _ in rows:
        sums[student] = sums.get(student, 0) + score
    return sums, rows


def test_a_class_is_graded_and_a_second_run_changes_nothing(course, tiny):
    outcomes = {outcome.student: outcome for outcome in grade(course, tiny, OPTIONS)}
    assert {name: outcome.record.earned for name, outcome in outcomes.items()} == EXPECTED
    assert all(outcome.judged and not outcome.error and outcome.record.entered for outcome in outcomes.values())
    sums, rows = gradebook(course)
    assert sums == EXPECTED
    assert len(rows) == 3 * len(EXPECTED)
    assert not any(needs_manual for *_, needs_manual in rows)
    for student in EXPECTED:
        assert f"{EXPECTED[student]:g} of 6 points" in course.feedback(student, LAB).read_text()
        assert (course.root / "autograded" / student / LAB / f"{LAB}.ipynb").is_file()
    records = {student: course.record(student, LAB).read_bytes() for student in EXPECTED}
    again = list(grade(course, tiny, OPTIONS))
    assert len(again) == len(EXPECTED) and not any(outcome.judged for outcome in again)
    assert {student: course.record(student, LAB).read_bytes() for student in EXPECTED} == records
    assert gradebook(course) == (sums, rows)


def test_only_what_was_handed_in_anew_is_judged_again(course, tiny, hand_in):
    list(grade(course, tiny, OPTIONS, ["partial", "perfect"]))
    course.submission("partial", LAB).write_text(json.dumps(hand_in()))
    outcomes = {o.student: o for o in grade(course, tiny, OPTIONS, ["partial", "perfect"])}
    assert {name: outcome.judged for name, outcome in outcomes.items()} == {"partial": True, "perfect": False}
    assert gradebook(course)[0] == {"partial": 6, "perfect": 6}


def test_a_record_that_never_reached_the_gradebook_is_entered_without_judging(course, tiny, monkeypatch):
    list(grade(course, tiny, OPTIONS, ["perfect", "partial"]))
    path = course.record("partial", LAB)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"entered": False}))
    course.feedback("partial", LAB).unlink()
    monkeypatch.setattr("mlsys_grader.engines.local.judge", None)
    outcomes = list(grade(course, tiny, OPTIONS, ["perfect", "partial"]))
    assert not any(outcome.judged or outcome.error for outcome in outcomes)
    assert read_record(path).entered and course.feedback("partial", LAB).exists()
    assert gradebook(course)[0] == {"partial": 3, "perfect": 6}


def test_one_submission_that_breaks_the_grader_does_not_stop_the_others(course, tiny, monkeypatch):
    import mlsys_grader.grading.entries as module

    sanitise = module.sanitise

    def breaks(submission, lab):
        if submission.artifact and "return x.sum()\n" in submission.artifact.source:
            raise RuntimeError("an unforeseen notebook")
        return sanitise(submission, lab)

    monkeypatch.setattr(module, "sanitise", breaks)
    outcomes = {o.student: o for o in grade(course, tiny, OPTIONS, ["perfect", "partial", "corrupt"])}
    assert "an unforeseen notebook" in outcomes["partial"].error
    assert outcomes["perfect"].record.earned == 6 and outcomes["corrupt"].record.earned == 0
    assert gradebook(course)[0] == {"perfect": 6, "corrupt": 0}
