"""A class in shards: the gradebook is that of one run, and no verdict from outside is taken on trust."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.record import read_record
from mlsys_grader.grading.shards import assign_shard, merge, read_shards
from mlsys_lab.errors import InputError
from tests.grader.conftest import CHECKS, PROJECT

LAB = "01-tiny"
CLASS = ("ada", "bob", "cy", "dan", "eve", "fay", "gil")
MARKS = """
select student_id, base_cell.name, auto_score, manual_score, extra_credit, grade_cells.max_score, needs_manual_grade,
       submitted_assignment.timestamp from grade
join submitted_notebook on grade.notebook_id = submitted_notebook.id
join submitted_assignment on submitted_notebook.assignment_id = submitted_assignment.id
join grade_cells on grade.cell_id = grade_cells.id join base_cell on grade.cell_id = base_cell.id
order by 1, 2
"""


def gradebook(course):
    with closing(sqlite3.connect(course.gradebook)) as database:
        return database.execute(MARKS).fetchall()


def make(target, **variables):
    """A make target as the workflow calls it; the environment is there already."""
    settings = [f"{name}={value}" for name, value in variables.items()]
    environment = os.environ | {"PYTHONPATH": str(CHECKS)}
    command = ["make", "--old-file", ".venv/.ready", f"BIN={Path(sys.executable).parent}", target, *settings]
    return subprocess.run(command, cwd=PROJECT, env=environment, text=True, capture_output=True)


@pytest.fixture(scope="module")
def collected(tiny_labs, hand_in, tmp_path_factory):
    """A course folder with seven hand-ins: right, a check wrong, two wrong, a damaged file, none, blank, late."""
    home = tmp_path_factory.mktemp("class")
    notebooks = {
        "ada": json.dumps(hand_in()),
        "bob": json.dumps(hand_in(total="def total(x):\n    return x.sum()\n")),
        "cy": "{",
        "eve": json.dumps(hand_in(mean=None, double=None, total=None)),
        "fay": json.dumps(hand_in(double="def double(x):\n    return x\n", mean="def mean(x):\n    return 1 / 0\n")),
        "gil": json.dumps(hand_in()),
    }
    for student in CLASS:
        (home / "in" / student).mkdir(parents=True)
        if student in notebooks:
            (home / "in" / student / f"{LAB}.ipynb").write_text(notebooks[student])
    (home / "in" / "gil" / "timestamp.txt").write_text("2026-03-04 05:06:07 +0100")
    command = ["--course", str(home / "course"), "--labs", str(tiny_labs)]
    main([*command, "collect", str(home / "in"), "--lab", "tiny"])
    (home / "course" / "submitted" / "dan" / LAB).mkdir(parents=True, exist_ok=True)
    return home / "course"


@pytest.fixture(scope="module")
def shards(collected, tiny_labs, tmp_path_factory):
    """The class judged in three shards: one by the target that the workflow calls, the others by its command, here."""
    out = tmp_path_factory.mktemp("shards")
    done = make("grade-shard", LAB="tiny", LABS=tiny_labs, SHARD="1/3", IN=collected, OUT=out / "1")
    assert done.returncode == 0, done.stderr
    command = ["--labs", str(tiny_labs), "--course", str(collected), "shard", "tiny"]
    for number in (2, 3):
        assert main([*command, "--shard", f"{number}/3", "--out", str(out / str(number))]) == 0
    return [out / str(number) for number in (1, 2, 3)]


@pytest.fixture
def course(collected, tmp_path):
    shutil.copytree(collected, tmp_path / "course")
    return Course.open(tmp_path / "course")


@pytest.fixture
def copies(shards, tmp_path):
    return [Path(shutil.copytree(shard, tmp_path / f"copy-{shard.name}")) for shard in shards]


@pytest.mark.sandbox
def test_shares_merged_give_the_gradebook_of_one_run(collected, shards, course, tiny, tiny_labs, tmp_path):
    assert not (collected / "records").exists() and not (collected / "gradebook.db").exists(), "judging only reads"
    found = [path.stem for folder in shards for path in (folder / "verdicts").iterdir()]
    assert sorted(found) == sorted(CLASS) and all((folder / "verdicts").is_dir() for folder in shards)
    assert all(
        (folder / "feedback" / f"{path.stem}.html").is_file()
        for folder in shards
        for path in (folder / "verdicts").iterdir()
    )
    merged = make("grade-merge", LAB="tiny", LABS=tiny_labs, IN=course.root, FROM=" ".join(map(str, shards)))
    assert merged.returncode == 0, merged.stderr
    assert "7 entered, 0 not" in merged.stdout

    whole = Course.open(Path(shutil.copytree(collected, tmp_path / "whole")))
    assert main(["--course", str(whole.root), "--labs", str(tiny_labs), "grade", "tiny", "--time-factor", "3"]) == 0
    assert gradebook(course) == gradebook(whole) and len(gradebook(course)) == 21
    for student in CLASS:
        ours, theirs = (read_record(folder.record(student, LAB)) for folder in (course, whole))
        assert [v.earned for v in ours.verdicts] == [v.earned for v in theirs.verdicts]
        assert [(v.case, v.seed > 0) for v in ours.verdicts] == [(v.case, v.seed > 0) for v in theirs.verdicts]
        assert (ours.digest, ours.version, ours.notes, ours.entered) == (
            theirs.digest,
            theirs.version,
            theirs.notes,
            True,
        )
        assert course.feedback(student, LAB).is_file()
    merge_again = ["--labs", str(tiny_labs), "--course", str(course.root), "merge", "tiny", *map(str, shards)]
    assert main(merge_again) == 0 and gradebook(course) == gradebook(whole)


def test_a_share_of_nobody_is_there_all_the_same(collected, shards, tiny_labs, course, tiny, tmp_path):
    """Of seven students in as many shards some shard has nobody, as it often is in a small class."""
    number = next(n for n in range(1, 8) if not any(assign_shard(student, 7) == n for student in CLASS))
    command = ["--labs", str(tiny_labs), "--course", str(collected), "shard", "tiny"]
    assert main([*command, "--shard", f"{number}/7", "--out", str(tmp_path / "none")]) == 0
    files = [path for path in (tmp_path / "none").rglob("*") if path.is_file()]
    assert files and not any(path.name.startswith(".") for path in files), "or nothing would be uploaded"
    assert len(read_shards(course, tiny, [*shards, tmp_path / "none"])) == len(CLASS)
    with pytest.raises(InputError, match="no verdicts in this folder"):
        read_shards(course, tiny, [*shards, tmp_path / "nowhere"])


def test_a_students_share_depends_on_nobody_else():
    before = {student: assign_shard(student, 4) for student in CLASS}
    assert {student: assign_shard(student, 4) for student in (*CLASS, "new")} == before | {
        "new": assign_shard("new", 4)
    }
    many = [assign_shard(f"student{number}", 4) for number in range(4000)]
    assert set(many) == {1, 2, 3, 4} and all(800 < many.count(number) < 1200 for number in (1, 2, 3, 4))
    assert assign_shard("ada", 1) == 1 and assign_shard("ada", 4) == 3, "of every version of the grader"


def edited(copies, student, change):
    for folder in copies:
        path = folder / "verdicts" / f"{student}.json"
        if path.exists():
            fields = json.loads(path.read_bytes())
            change(fields)
            path.write_text(json.dumps(fields))
            return path
    raise AssertionError(student)


def on(check, **fields):
    def change(record):
        next(verdict for verdict in record["verdicts"] if verdict["check"] == check).update(fields)

    return change


SPEED = {"points": 4, "measured": True, "earned": 4.0, "why": "", "device": "cpu", "baseline": "", "suspect": ""}
LIES = {
    "more points than the check has": (on("total", points=30, earned=30), "cannot give 30 of 30"),
    "more earned than points": (on("total", earned=4), "damaged"),
    "part of the points": (on("total", earned=1.5), "cannot give 1.5 of 3"),
    "negative points": (on("total", earned=-3), "damaged"),
    "NaN": (on("total", earned=float("nan")), "damaged"),
    "marks that are text": (on("total", earned="3"), "damaged"),
    "performance points that the check has not": (on("total", performance=SPEED), "cannot give performance points"),
    "another student": (lambda record: record.update(student="ada"), "about something else"),
    "another lab": (lambda record: record.update(lab="02-tiny"), "about something else"),
    "another version": (lambda record: record.update(version="0" * 16), "another version of 01-tiny"),
    "another file": (lambda record: record.update(digest="0" * 64), "another file than the one in the course folder"),
    "no sandbox": (lambda record: record.update(sandbox="none"), "without a sandbox"),
    "no time": (lambda record: record.update(judged_at="<b>now</b>"), "has no time"),
    "a check too few": (lambda record: record["verdicts"].pop(), "other checks"),
    "a check twice": (lambda record: record["verdicts"].append(record["verdicts"][0]), "other checks"),
    "the checks in another order": (lambda record: record["verdicts"].reverse(), "other checks"),
    "a check that failed itself": (on("total", fault="boom"), "a check itself failed"),
    "a reason of many lines": (on("total", what="a\nb"), "cannot give such a reason"),
    "a reason without end": (on("total", got="a" * 3000), "cannot give such a reason"),
    "a case that there is not": (on("total", case="mine"), "cannot give this case"),
    "an unknown field": (lambda record: record.update(admin=True), "damaged"),
    "a list": (lambda record: record.update(verdicts=7), "damaged"),
}


@pytest.mark.sandbox
@pytest.mark.parametrize("name", LIES)
def test_a_verdict_that_cannot_be_stops_the_merge_before_anything_is_written(name, copies, course, tiny):
    change, message = LIES[name]
    edited(copies, "fay", change)
    with pytest.raises(InputError, match=message):
        list(merge(course, tiny, copies))
    assert not course.gradebook.exists() and not (course.root / "records").exists()


@pytest.mark.sandbox
def test_titles_hints_and_notes_are_the_courses_own(copies, course, tiny):
    edited(copies, "fay", on("double", title="<script>", hint="<script>"))
    edited(copies, "fay", lambda record: record.update(notes=["<script>"], entered=True))
    records = {record.student: record for record, _ in read_shards(course, tiny, copies)}
    verdict = records["fay"].verdicts[0]
    assert (verdict.title, verdict.hint) == ("double", "2x, entry by entry")
    assert "<script>" not in str(records["fay"].notes) and not records["fay"].entered


@pytest.mark.sandbox
def test_missing_doubled_and_unknown_students_and_odd_files_are_refused(copies, course, tiny):
    with pytest.raises(
        InputError, match=f"no verdict on some students: got .*{next((copies[0] / 'verdicts').iterdir()).stem}"
    ):
        list(merge(course, tiny, copies[1:]))
    with pytest.raises(InputError, match="two verdicts on one student"):
        list(merge(course, tiny, [*copies, copies[0]]))
    with pytest.raises(InputError, match="no verdicts in this folder"):
        list(merge(course, tiny, [*copies, course.root]))
    one = next((copies[0] / "verdicts").iterdir())
    for name, message in [
        ("zoe.json", "handed in nothing"),
        ("ada.txt", "handed in nothing"),
        ("..json", "student id"),
    ]:
        odd = one.with_name(name)
        shutil.copy(one, odd)
        with pytest.raises(InputError, match=message):
            list(merge(course, tiny, copies))
        odd.unlink()
    target = one.rename(course.root / "elsewhere.json")
    one.symlink_to(target)
    with pytest.raises(InputError, match="not a file that a shard writes"):
        list(merge(course, tiny, copies))
    assert not course.gradebook.exists()


@pytest.mark.sandbox
def test_a_file_handed_in_since_then_is_told(copies, course, tiny, hand_in):
    course.submission("ada", LAB).write_text(json.dumps(hand_in(double=None)))
    with pytest.raises(InputError, match="the verdict on ada is about another file"):
        list(merge(course, tiny, copies))


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "-1/3", "1/3/5", "a/b"])
def test_a_share_that_cannot_be_is_told(text, collected, tiny_labs, tmp_path, capsys):
    command = ["--course", str(collected), "--labs", str(tiny_labs), "shard", "tiny", "--out", str(tmp_path)]
    assert main([*command, f"--shard={text}"]) == 1
    assert "--shard cannot be that" in capsys.readouterr().err


@pytest.mark.sandbox
def test_performance_is_measured_for_shares_and_other_verdicts_pass_through(shards, collected, tiny_labs, tmp_path):
    """The tiny lab has no performance points: what the target writes can be merged, and is what it read."""
    out = tmp_path / "timed"
    done = make("grade-speed", LAB="tiny", LABS=tiny_labs, IN=collected, FROM=" ".join(map(str, shards)), OUT=out)
    assert done.returncode == 0, done.stderr
    assert f"7 verdicts in {out}" in done.stdout
    before = {path.name: path.read_bytes() for folder in shards for path in (folder / "verdicts").iterdir()}
    assert {path.name: path.read_bytes() for path in (out / "verdicts").iterdir()} == before
