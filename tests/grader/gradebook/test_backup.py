"""A sound copy of the gradebook before each batch, and a way back from a damaged one."""

import os
import sqlite3
import subprocess
from contextlib import closing

import pytest

from mlsys_grader.cli import main
from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.backup import KEPT, back_up, find_damage
from mlsys_grader.gradebook.record import read_record
from mlsys_lab.errors import InputError

LAB = "01-tiny"


def fill(course, value):
    with closing(sqlite3.connect(course.gradebook)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS grade (score)")
        database.execute("INSERT INTO grade VALUES (?)", (value,))
        database.commit()


def scores(path):
    with closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute("SELECT score FROM grade")]


@pytest.fixture
def course(tmp_path):
    return Course.open(tmp_path / "a course?#%", create=True)


def test_without_a_gradebook_there_is_nothing_to_copy(course):
    assert back_up(course) is None
    assert not course.backups.exists() and not course.gradebook.exists()


def test_copies_are_numbered_and_the_newest_stay(course):
    for value in range(KEPT + 3):
        fill(course, value)
        path = back_up(course)
        assert scores(path) == list(range(value + 1)) and find_damage(path) == ""
    names = sorted(path.name for path in course.backups.iterdir())
    assert [int(name[10:16]) for name in names] == list(range(4, KEPT + 4))


def test_a_clock_that_jumps_back_changes_no_order(course, monkeypatch):
    import time

    fill(course, 1)
    back_up(course)
    monkeypatch.setattr(
        "mlsys_grader.gradebook.backup.time.gmtime", lambda: time.struct_time((1999, 1, 1, 0, 0, 0, 4, 1, 0))
    )
    for value in range(KEPT):
        fill(course, value)
        newest = back_up(course)
    assert newest.name == f"gradebook-{KEPT + 1:06d}-19990101T000000Z.db"
    assert newest == max(course.backups.iterdir()) and len(list(course.backups.iterdir())) == KEPT


def test_what_another_process_is_writing_is_not_in_the_copy(course):
    fill(course, 1)
    with closing(sqlite3.connect(course.gradebook)) as writer:
        writer.execute("INSERT INTO grade VALUES (2)")
        assert scores(back_up(course)) == [1]
        writer.commit()
    assert scores(back_up(course)) == [1, 2]


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all" * 100, "half", "torn"], ids=["empty", "text", "half", "torn"]
)
def test_a_damaged_gradebook_is_one_line_that_names_the_newest_good_copy(course, content):
    fill(course, 1)
    with closing(sqlite3.connect(course.gradebook)) as database:
        database.executemany("INSERT INTO grade VALUES (?)", [("x" * 500,)] * 500)
        database.commit()
    good = back_up(course)
    bad = back_up(course)
    bad.write_bytes(b"damaged too")
    whole = course.gradebook.read_bytes()
    if content == "half":
        content = whole[: len(whole) // 2]
    elif content == "torn":
        content = whole[:8192] + os.urandom(4096) + whole[12288:]
    course.gradebook.write_bytes(content)
    with pytest.raises(InputError) as told:
        back_up(course)
    said = str(told.value)
    assert "\n" not in said and f"the gradebook {course.gradebook} is damaged: got " in said
    assert f"cp {good} {course.gradebook}, then `mlsys-grader grade" in said
    assert course.gradebook.read_bytes() == content, "it is left as it is"
    assert sorted(course.backups.iterdir()) == [good, bad]


def test_without_a_good_copy_it_says_so(course):
    course.gradebook.write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"no good backup is left; mv .*marks come back from the records"):
        back_up(course)


def test_a_folder_of_backups_that_cannot_be_made(course):
    fill(course, 1)
    course.backups.write_text("in the way")
    with pytest.raises(InputError, match="cannot back the gradebook up to"):
        back_up(course)
    assert course.backups.read_text() == "in the way"


@pytest.mark.sandbox
def test_marks_that_an_older_copy_lacks_come_back_from_the_records(graded, tiny_labs, capsys):
    """A copy from before ada was graded is put back as the error says; the next `grade` enters her."""
    arguments = ["--course", str(graded.root), "--labs", str(tiny_labs)]
    with closing(sqlite3.connect(graded.gradebook)) as database:
        before = database.execute("SELECT auto_score FROM grade ORDER BY 1").fetchall()
        database.execute("DELETE FROM submitted_assignment WHERE student_id = 'ada'")
        for table, key in (
            ("submitted_notebook", "assignment_id"),
            ("grade", "notebook_id"),
            ("comment", "notebook_id"),
        ):
            above = "submitted_assignment" if table == "submitted_notebook" else "submitted_notebook"
            database.execute(f"DELETE FROM {table} WHERE {key} NOT IN (SELECT id FROM {above})")
        database.commit()
    good = back_up(graded)
    graded.gradebook.write_bytes(graded.gradebook.read_bytes()[:5000])
    for command in ("grade", "status"):
        assert main([*arguments, command, "tiny"]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(good) in said
    way = said.split("help: ")[1].split(", then")[0]
    assert way.startswith("rm -f ") and "cp " in way
    subprocess.run(way, shell=True, check=True)
    assert main([*arguments, "grade", "tiny"]) == 0
    assert "0 judged" in capsys.readouterr().out
    with closing(sqlite3.connect(graded.gradebook)) as database:
        assert database.execute("SELECT auto_score FROM grade ORDER BY 1").fetchall() == before
    assert read_record(graded.record("ada", LAB)).entered
