"""A full disk, a folder that is read-only, clocks that jump, dates that change: one line each, nothing lost."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.course.folder import Course, read_stamp
from mlsys_grader.gradebook.audit import read_audit
from mlsys_grader.gradebook.backup import find_damage
from mlsys_grader.gradebook.record import read_record
from mlsys_grader.grading.grade import Options, grade

pytestmark = pytest.mark.sandbox
LAB = "01-tiny"
ROOT = Path(__file__).parents[2]
STUDENTS = [f"s{number:02d}" for number in range(12)]


@pytest.fixture
def call(tiny_labs, capsys):
    """Run `mlsys-grader ARGUMENTS` on a course folder: exit code, stdout, stderr."""

    def run(root, *arguments):
        capsys.readouterr()
        code = main(["--course", str(root), "--labs", str(tiny_labs), *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def source(tmp_path, hand_in):
    """Twelve right submissions."""
    for student in STUDENTS:
        folder = tmp_path / "hand-ins" / student
        folder.mkdir(parents=True)
        (folder / f"{LAB}.ipynb").write_text(json.dumps(hand_in()))
    return tmp_path / "hand-ins"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes, which only root can mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("NOT RUN: only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder, left):
    """Fill a disk but for `left` bytes; gives the file that does so."""
    ballast = folder / "ballast"
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    ballast.write_bytes(bytes(max(free - left, 0)))
    return ballast


def marks(course):
    with closing(sqlite3.connect(course.gradebook)) as database:
        query = """SELECT student_id, sum(auto_score) FROM grade
        JOIN submitted_notebook ON grade.notebook_id = submitted_notebook.id
        JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id GROUP BY student_id"""
        return dict(database.execute(query).fetchall())


@pytest.mark.parametrize("left", [0, 60_000, 250_000, 450_000])
def test_a_full_disk_is_one_line_and_the_next_run_completes(small_disk, source, call, left):
    root = small_disk / "course"
    assert call(root, "collect", str(source), "--lab", "tiny")[0] == 0
    ballast = fill(small_disk, left)
    code, out, err = call(root, "grade", "tiny", "--time-factor", "3")
    assert code == 1, (out, err)
    assert "Traceback" not in out + err and err.count("\n") <= 1
    assert "No space left on device" in out + err or "disk is full" in out + err or "disk I/O error" in out + err
    course = Course(root)
    if course.audit.exists():
        assert read_audit(course.audit).damaged == ()
    before = {path.stem: read_record(path) for path in root.glob(f"records/{LAB}/*.json")}
    assert None not in before.values(), "no half-written record"
    ballast.unlink()
    code, out, err = call(root, "grade", "tiny", "--time-factor", "3")
    assert (code, err) == (0, ""), out
    assert f"{len(STUDENTS) - len(before)} judged" in out
    assert marks(course) == dict.fromkeys(STUDENTS, 6.0)
    assert find_damage(course.gradebook) == "" and read_audit(course.audit).damaged == ()
    for student in STUDENTS:
        record = read_record(course.record(student, LAB))
        assert record.entered and course.feedback(student, LAB).exists()
        assert student not in before or record.verdicts == before[student].verdicts, "nothing is judged twice"


def test_a_full_disk_while_collecting_loses_nothing_that_was_there(small_disk, source, call):
    root = small_disk / "course"
    assert call(root, "collect", str(source), "--lab", "tiny")[0] == 0
    before = {path: path.read_bytes() for path in root.glob("submitted/**/*") if path.is_file()}
    for student in STUDENTS:
        path = source / student / f"{LAB}.ipynb"
        path.write_text(path.read_text() + " ")
    ballast = fill(small_disk, 0)
    code, out, err = call(root, "collect", str(source), "--lab", "tiny")
    assert code == 1 and err.count("\n") == 1 and "No space left on device" in err, (out, err)
    after = {path: path.read_bytes() for path in root.glob("submitted/**/*") if path.is_file()}
    assert after.keys() == before.keys() and all(len(after[path]) - len(before[path]) in (0, 1) for path in before)
    ballast.unlink()
    assert call(root, "collect", str(source), "--lab", "tiny")[0] == 0


def test_a_full_disk_while_feedback_is_written(small_disk, source, call):
    root = small_disk / "course"
    call(root, "collect", str(source), "--lab", "tiny")
    assert call(root, "grade", "tiny", "--time-factor", "3", "--student", "s00")[0] == 0
    page = Course(root).feedback("s00", LAB).read_bytes()
    fill(small_disk, 0)
    code, _, err = call(root, "feedback", "tiny")
    assert code == 1 and err.count("No space left on device") == 1
    assert Course(root).feedback("s00", LAB).read_bytes() == page


def test_a_read_only_folder_is_one_line_and_can_still_be_read(graded, tmp_path, call):
    folder = tmp_path / "read-only"
    folder.mkdir()
    mounted = subprocess.run(["mount", "--bind", str(graded.root), str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("NOT RUN: only root may mount a folder read-only")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        for command in (["grade", "tiny"], ["feedback", "tiny"], ["regrade", "tiny", "--student", "ada"]):
            code, out, err = call(folder, *command)
            assert (code, out) == (1, "") and err.count("\n") == 1, command
            assert err == f"mlsys-grader: cannot write to the course folder {folder}: got Read-only file system\n"
        for command in (["status", "tiny"], ["export", "tiny"], ["audit", "tiny"]):
            assert call(folder, *command)[0] == 0, command
    finally:
        subprocess.run(["umount", str(folder)], check=True)


CLOCK = """
import datetime, time

class Jumping(datetime.datetime):
    \"\"\"Years ahead at every second call, years back at the others.\"\"\"
    calls = 0

    @classmethod
    def now(cls, tz=None):
        Jumping.calls += 1
        return super().now(tz) + datetime.timedelta(days=(-1) ** Jumping.calls * 5000)

datetime.datetime = Jumping
true = time.time
time.time = lambda: true() + (-1) ** int(time.perf_counter() * 1000) * 400_000_000
"""


def test_a_clock_that_jumps_for_and_back_changes_no_verdict(source, tiny_labs, tmp_path, hand_in, call):
    """The whole command under a wall clock that is years off and never the same way twice."""
    slow = hand_in(double="import time\ndef double(x):\n    time.sleep(60)\n")
    (source / "s00" / f"{LAB}.ipynb").write_text(json.dumps(slow))
    root = tmp_path / "course"
    assert call(root, "collect", str(source), "--lab", "tiny")[0] == 0
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent / "fixtures" / "checks")])
    code = f"{CLOCK}\nimport sys; from mlsys_grader.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--course", str(root), "--labs", str(tiny_labs), "grade", "tiny"]
    start = time.monotonic()
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - start > 2, "the limit of the slow one was waited for by a clock that does not jump"
    assert marks(Course(root)) == dict.fromkeys(STUDENTS, 6.0) | {"s00": 5.0}
    history = read_audit(Course(root).audit)
    years = {entry["time"][:4] for entry in history.entries}
    assert history.damaged == () and len(years) > 1, "the clock did jump"
    assert call(root, "grade", "tiny")[1].startswith(f"0 judged, {len(STUDENTS)} were up to date")


LATE = """
c = get_config()  # noqa: F821
c.LateSubmissionPlugin.penalty_method = "zero"
"""


def test_a_time_of_handing_in_that_changes_reaches_the_gradebook_without_judging(graded, call):
    """The same notebook, found out to be late: penalty and time are there after the next `grade`, and go again."""
    config = graded.root / "nbgrader_config.py"
    config.write_text(config.read_text() + LATE)
    due = datetime(2026, 3, 4, 12, 0)
    with closing(sqlite3.connect(graded.gradebook)) as database:
        database.execute("UPDATE assignment SET duedate = ?", (f"{due:%Y-%m-%d %H:%M:%S}.000000",))
        database.commit()
    stamp = graded.submission("ada", LAB).with_name("timestamp.txt")

    def penalty():
        with closing(sqlite3.connect(graded.gradebook)) as database:
            query = """SELECT timestamp, late_submission_penalty FROM submitted_notebook
            JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
            WHERE student_id = 'ada'"""
            return database.execute(query).fetchall()

    for text, expected in (
        ("2026-03-05 12:00:00 UTC\n", [("2026-03-05 12:00:00.000000", 6.0)]),
        ("2026-03-04 11:00:00 UTC\n", [("2026-03-04 11:00:00.000000", None)]),
        ("2026-03-04 13:00:00 +0100\n", [("2026-03-04 12:00:00.000000", None)]),
        ("2026-03-04 13:00:01 Europe/Zurich\n", [("2026-03-04 12:00:01.000000", 6.0)]),
        (None, [(None, None)]),
    ):
        stamp.write_text(text) if text else stamp.unlink()
        code, out, _ = call(graded.root, "grade", "tiny")
        assert code == 0 and out == "0 judged, 3 were up to date, 0 not graded\n"
        assert penalty() == expected, text
        before = graded.gradebook.read_bytes()
        assert call(graded.root, "grade", "tiny")[0] == 0
        assert graded.gradebook.read_bytes() == before, "and what is up to date is left alone"


@pytest.mark.parametrize(
    ("text", "stamp"),
    [
        ("2026-03-04 05:06:07 UTC", datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)),
        ("2026-03-04 05:06:07.25 +0100", datetime(2026, 3, 4, 4, 6, 7, tzinfo=UTC)),
        ("2026-07-04 05:06:07 America/Los_Angeles", datetime(2026, 7, 4, 12, 6, 7, tzinfo=UTC)),
        ("2026-03-04T05:06:07", datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)),
        ("2026-03-04 05:06:07 Nowhere/Land", None),
        ("2026-03-04 05:06:07 ../../etc", None),
        ("9999-12-31 23:59:59 -0500", None),
        ("soon", None),
        ("", None),
    ],
)
def test_times_of_handing_in(tmp_path, text, stamp):
    (tmp_path / "timestamp.txt").write_text(text)
    assert read_stamp(tmp_path / "timestamp.txt") == stamp


def test_a_gradebook_that_was_deleted_comes_back_from_the_records(graded, call):
    before = marks(graded)
    graded.gradebook.unlink()
    code, out, _ = call(graded.root, "grade", "tiny")
    assert code == 0 and out.startswith("0 judged, 3 were up to date")
    assert marks(graded) == before


def test_feedback_that_cannot_be_written_is_told_and_comes_with_the_next_run(graded, tiny):
    folder = graded.feedback("ada", LAB).parents[1]
    shutil.rmtree(folder)
    folder.write_text("in the way")
    (told,) = (one for one in grade(graded, tiny, Options(again=True, time_factor=3.0), ["ada"]))
    assert told.error.startswith("cannot write the feedback page: ") and "\n" not in told.error
    assert marks(graded)["ada"] == 6.0 and not read_record(graded.record("ada", LAB)).entered
    folder.unlink()
    (told,) = grade(graded, tiny, Options(), ["ada"])
    assert not told.error and not told.judged and graded.feedback("ada", LAB).exists()
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(told.record.judged_at) < timedelta(days=1)
