"""One grader at a time, and a lock that ends with its holder however that ends."""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lock import lock_course
from mlsys_lab.errors import InputError

HOLD = """
import sys
from pathlib import Path
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lock import lock_course

with lock_course(Course(Path(sys.argv[1])), "grade tiny"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def course(tmp_path):
    return Course.open(tmp_path / "course", create=True)


@pytest.fixture
def holder(course):
    """Another process that holds the course."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(course.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_told_at_once_who_holds_it(course, holder):
    with pytest.raises(InputError) as refused, lock_course(course, "collect"):
        pass
    said = str(refused.value)
    assert "\n" not in said and said.startswith("another grader works in this course folder: got `grade tiny` by ")
    assert re.search(rf"process {holder.pid}, since \d{{4}}-\d\d-\d\dT", said)


def test_a_holder_that_is_killed_leaves_nothing_to_clean_up(course, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lock_course(course, "grade tiny"):
        assert f'"pid": {os.getpid()}' in course.lock.read_text()
    assert course.lock.read_text() == ""


def test_what_the_holder_says_may_be_unreadable(course, holder):
    for content in ("", "{", "[]", "{}"):
        course.lock.write_text(content)
        with pytest.raises(InputError, match="a process that has not said who it is"), lock_course(course, "x"):
            pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_named(course, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with (
        pytest.raises(InputError, match=r"has no locks, .*keep the course folder on a local disk"),
        lock_course(course, "x"),
    ):
        pass


def test_a_link_in_the_locks_place_is_not_followed(course, tmp_path):
    course.lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="cannot write to the course folder"), lock_course(course, "x"):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_to_is_named(course, monkeypatch, number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    said = f"cannot write to the course folder .*: got {os.strerror(number)}"
    with pytest.raises(InputError, match=said), lock_course(course, "x"):
        pass


def test_a_process_that_is_forked_meanwhile_does_not_keep_it(course):
    with lock_course(course, "grade tiny"):
        ready, done = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(ready, 1)
            os._exit(0)
    with lock_course(course, "grade tiny"):
        os.write(done, b"x")
    os.waitpid(child, 0)


def commands(tmp_path):
    """Every command that writes to a course folder."""
    yield ["collect", str(tmp_path / "hand-ins"), "--lab", "tiny"]
    yield ["grade", "tiny"]
    yield ["feedback", "tiny"]
    yield ["regrade", "tiny", "--student", "ada"]


@pytest.mark.sandbox
def test_every_command_that_writes_takes_it_and_none_that_reads_waits(graded, tiny_labs, tmp_path, capsys):
    (tmp_path / "hand-ins").mkdir()
    (tmp_path / "hand-ins" / "ada.ipynb").write_text("{}")
    arguments = ["--course", str(graded.root), "--labs", str(tiny_labs)]
    with lock_course(graded, "another"):
        for command in commands(tmp_path):
            assert main([*arguments, *command]) == 1, command
            said = capsys.readouterr()
            assert said.err.startswith("mlsys-grader: another grader works in this course folder: got `another`")
            assert said.err.count("\n") == 1 and said.out == ""
        for command in (["status", "tiny"], ["export", "tiny"], ["audit", "tiny"]):
            assert main([*arguments, *command]) == 0, command
