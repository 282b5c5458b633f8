"""Performance points on record: not measured is not lost, measuring adds them and touches nothing else."""

import csv
import io
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import timed_calls

from mlsys_grader.cli import main
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.gradebook import nbgrader_config
from mlsys_grader.gradebook.record import read_record
from mlsys_grader.grading import entries as entering
from mlsys_grader.grading.grade import Options, grade
from mlsys_grader.grading.measure import measure_pending
from mlsys_grader.grading.shards import judge_shard, measure_shard, merge
from mlsys_grader.judging import performance
from mlsys_grader.release.build import release
from mlsys_grader.reports.export import to_csv
from mlsys_grader.speed import devices as benches
from mlsys_grader.speed.rounds import MeasurementConfig
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import find_lab
from tests.grader.conftest import FIXTURES, PROJECT

pytestmark = pytest.mark.alone
LAB = "02-timed"
QUICK = MeasurementConfig(
    rounds=6, warmup=1, blocks=1, max_blocks=1, min_round_s=2 * timed_calls.CALL_S, max_calls=4, noise=100.0
)
MIX = "#| export\nimport time\nimport torch\n\n\ndef mix(x):\n    time.sleep({wait})\n    return {out}\n"
RIGHT = "torch.softmax(x @ x.T, dim=-1) @ x"
EXTRA = """
select student_id, base_cell.name, auto_score, extra_credit from grade
join submitted_notebook on grade.notebook_id = submitted_notebook.id
join submitted_assignment on submitted_notebook.assignment_id = submitted_assignment.id
join base_cell on grade.cell_id = base_cell.id
"""


@pytest.fixture(scope="module")
def timed_labs(tmp_path_factory):
    labs = tmp_path_factory.mktemp("labs")
    release(FIXTURES / "solutions" / LAB, PROJECT / "pyproject.toml").write(labs)
    return labs


@pytest.fixture(scope="module")
def timed(timed_labs):
    return GradedLab(find_lab("timed", timed_labs))


@pytest.fixture(scope="module")
def course_once(timed, timed_labs, tmp_path_factory):
    """ada is quick, ben slow, cy wrong; judged where there is no device."""
    home = tmp_path_factory.mktemp("timed")
    mixes = {
        "ada": MIX.format(wait=0.02, out=RIGHT),
        "ben": MIX.format(wait=0.1, out=RIGHT),
        "cy": MIX.format(wait=0, out="x"),
    }
    for student, source in mixes.items():
        notebook = json.loads(timed.info.notebook.read_bytes())
        for cell in notebook["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("grade_id") == "task-mix":
                cell["source"] = source
            if cell["metadata"].get("nbgrader", {}).get("grade_id") == "task-total":
                cell["source"] = "#| export\ndef total(x):\n    return (x * x).sum()\n"
        (home / student).mkdir()
        (home / student / f"{LAB}.ipynb").write_text(json.dumps(notebook))
    command = ["--course", str(home / "course"), "--labs", str(timed_labs)]
    assert main([*command, "collect", str(home), "--lab", "timed"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(performance, "has_device", lambda kind: False)
        patch.setattr(benches, "has_device", lambda kind: False)
        assert main([*command, "grade", "timed", "--time-factor", "3"]) == 0
    return Course.open(home / "course")


def records(course):
    return {student: read_record(course.record(student, LAB)) for student in course.students(LAB)}


def gradebook(course):
    with closing(sqlite3.connect(course.gradebook)) as database:
        return {row[:2]: row[2:] for row in database.execute(EXTRA)}


def rows(course, lab):
    found = [record for record in records(course).values() if record is not None]
    return {row["student"]: row for row in csv.DictReader(io.StringIO(to_csv(found, lab)))}


@pytest.mark.sandbox
def test_measuring_adds_performance_points_and_nothing_else(course_once, timed, timed_labs, capsys):
    course, before = course_once, records(course_once)

    # Without the device: not measured, which is not 0, and nothing is missing from the mark.
    speeds = {student: record.verdicts[0].performance for student, record in before.items()}
    assert (speeds["ada"].measured, speeds["ada"].earned, speeds["ada"].why) == (False, None, "no CUDA device here")
    assert (speeds["cy"].measured, speeds["cy"].earned) == (True, 0.0)
    assert all(record.verdicts[1].performance is None for record in before.values())
    assert [before[s].earned for s in ("ada", "ben", "cy")] == [3, 3, 1]
    assert {row["mix_performance"] for s, row in rows(course, timed).items() if s != "cy"} == {""}
    assert all(extra is None for _, extra in gradebook(course).values())
    page = course.feedback("ada", LAB).read_text()
    assert "not measured here: no CUDA device here" in page and "3 of 3 points<" in page

    capacity = ["--course", str(course.root), "--labs", str(timed_labs), "capacity", "timed", "--students", "10"]
    assert main(capacity) == 0
    assert "15 minutes a submission at the very most" in capsys.readouterr().out

    # With it: only this part is measured.
    outcomes = {o.student: o for o in measure_pending(course, timed, Options(), ["ada", "ben", "cy"], QUICK)}
    assert set(outcomes) == {"ada", "ben"} and not any(outcome.error for outcome in outcomes.values())
    after = records(course)
    for student, record in after.items():
        plain = [replace(verdict, performance=None) for verdict in record.verdicts]
        assert plain == [replace(verdict, performance=None) for verdict in before[student].verdicts]
        assert record.judged_at == before[student].judged_at and record.entered
    quick, slow = (after[student].verdicts[0].performance for student in ("ada", "ben"))
    assert quick.measured and slow.measured and quick.earned > 1.5 * slow.earned > 0
    assert after["ada"].earned == 3 and after["ada"].extra == quick.earned

    assert main(capacity) == 0 and quick.time_s > 0 and slow.time_s > 0
    minutes = round((quick.time_s + slow.time_s) / 2 * 10 / 60)
    said = capsys.readouterr().out
    assert "from 2 measured" in said and f"{minutes} GPU minutes for 10 students and 1 labs" in said

    entered = gradebook(course)
    assert entered["ada", "mix"] == (2, quick.earned) and entered["ben", "mix"] == (2, slow.earned)
    assert entered["cy", "mix"] == (0, None) and entered["ada", "total"] == (1, None)
    marks = rows(course, timed)
    assert marks["ada"]["mix_performance"] == f"{quick.earned:g}" and marks["cy"]["mix_performance"] == "0"
    assert (marks["ada"]["earned"], marks["ada"]["points"]) == ("3", "3")
    page = course.feedback("ada", LAB).read_text()
    assert f"3 of 3 points and {quick.earned:g} for speed" in page and "From your instructors" not in page

    # Once measured it is not measured again. Judging again does not lose it where it could not be measured anew; where
    # it can, it is open again, and what is in the gradebook stays until then.
    assert not list(measure_pending(course, timed, Options(), ["ada", "ben", "cy"], QUICK))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entering, "has_device", lambda kind: False)
        assert [o.error for o in grade(course, timed, Options(again=True, time_factor=3), ["ada"])] == [""]
    assert records(course)["ada"].verdicts[0].performance == quick
    assert [o.error for o in grade(course, timed, Options(again=True, time_factor=3), ["ada"])] == [""]
    assert not records(course)["ada"].verdicts[0].performance.measured
    assert gradebook(course)["ada", "mix"] == (2, quick.earned)


@pytest.mark.sandbox
def test_shares_are_measured_elsewhere_and_merged(course_once, timed, tmp_path):
    course = Course(tmp_path / "course")
    shutil.copytree(course_once.root / "submitted", course.root / "submitted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(performance, "has_device", lambda kind: False)
        list(judge_shard(course, timed, Options(time_factor=3), ["ada", "ben", "cy"], tmp_path / "share"))
    found = list(measure_shard(course, timed, Options(), [tmp_path / "share"], tmp_path / "timed", QUICK))
    speeds = {record.student: record.verdicts[0].performance for record in found}
    assert all(speed.measured for speed in speeds.values()) and speeds["cy"].earned == 0
    assert speeds["ada"].earned > 1.5 * speeds["ben"].earned > 0
    assert speeds["ben"].time_s > speeds["ada"].time_s > 0 == speeds["cy"].time_s

    more = json.loads((tmp_path / "timed" / "verdicts" / "ben.json").read_bytes())
    more["verdicts"][0]["performance"]["points"] = more["verdicts"][0]["performance"]["earned"] = 40
    unearned = json.loads((tmp_path / "timed" / "verdicts" / "cy.json").read_bytes())
    unearned["verdicts"][0]["performance"]["earned"] = 4
    timeless = json.loads((tmp_path / "timed" / "verdicts" / "ada.json").read_bytes())
    timeless["verdicts"][0]["performance"]["time_s"] = -1.0
    for student, lie, said in (
        ("ben", more, "performance points"),
        ("cy", unearned, "performance points"),
        ("ada", timeless, "less than no time"),
    ):
        path = Path(shutil.copytree(tmp_path / "timed", tmp_path / f"lie-{student}")) / "verdicts" / f"{student}.json"
        path.write_text(json.dumps(lie))
        with pytest.raises(InputError, match=said):
            list(merge(course, timed, [tmp_path / f"lie-{student}"]))
    assert not course.gradebook.exists()

    assert [outcome.error for outcome in merge(Course.open(course.root), timed, [tmp_path / "timed"])] == ["", "", ""]
    entered = gradebook(course)
    assert {student: entered[student, "mix"] for student in speeds} == {
        "ada": (2, speeds["ada"].earned),
        "ben": (2, speeds["ben"].earned),
        "cy": (0, None),
    }


def test_extra_credit_is_entered_after_the_marks():
    from traitlets.config import Config

    steps = nbgrader_config.configure(Config()).Autograde.autograde_preprocessors
    assert (
        steps.index("mlsys_grader.gradebook.nbgrader_plugin.ExtraCredit")
        == steps.index("nbgrader.preprocessors.SaveAutoGrades") + 1
    )
