"""What is fuzzed: each target takes bytes from a hostile place, and may answer or raise what it names, nothing else."""

import contextlib
import json
import signal
import socket
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from mlsys_grader.course import notebooks
from mlsys_grader.course.folder import STUDENT, Course
from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.intake import exports, gradescope
from mlsys_grader.intake.collect import STATUSES, collect
from mlsys_grader.intake.sanitise import sanitise
from mlsys_grader.intake.submission import parse_submission
from mlsys_grader.sandbox.inside import wire
from mlsys_lab.errors import InputError

HANG_S = 20
MEMORY_BYTES = 96 << 20
LAB = "01-tiny"


class HangError(BaseException):
    """A target took more processor seconds than HANG_S."""


@contextlib.contextmanager
def watched():
    """Neither a hang nor more than MEMORY_BYTES at any time."""

    def ring(*_):
        raise HangError(f"no answer after {HANG_S} s of processor time")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)  # whoever waits instead runs into the test's own time limit
    tracemalloc.start()
    try:
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert peak_bytes < MEMORY_BYTES, f"{peak_bytes:,} bytes"


@contextlib.contextmanager
def without_worker():
    """Parsers run in this process, where they are watched, and not in the worker that bounds them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (exports, gradescope):
            patch.setattr(module, "run_bounded", lambda function, *arguments: function(*arguments))
        yield


def frames(data: bytes) -> list[wire.Frame]:
    """Read frames until the other side is gone; a frame that came through is one that could be sent."""
    ours, theirs = socket.socketpair()
    found = []
    with ours, watched():
        feeder = threading.Thread(target=_feed, args=(theirs, data))
        feeder.start()
        with contextlib.suppress(wire.WireError):
            while True:
                frame = wire.receive(ours, limits=wire.Limits(array_bytes=32 << 20), deadline=time.monotonic() + HANG_S)
                assert all(array.dtype.name in wire.DTYPES for array in frame.arrays.values())
                found.append(frame)
        ours.close()
        feeder.join()
    return found


def _feed(sock: socket.socket, data: bytes) -> None:
    with sock, contextlib.suppress(OSError):
        sock.sendall(data)


def submission(data: bytes, folder: Path, lab) -> None:
    """Read a hand-in and sanitise it: nbgrader's notebook is valid, and its graded cells are the release's own."""
    path = folder / f"{LAB}.ipynb"
    path.write_bytes(data)
    with watched():
        found = parse_submission(path, lab)
        assert (found.artifact is None) == (found.refusal is not None)
        rebuilt = json.loads(notebooks.to_bytes(sanitise(found, lab)))
    released = {
        cell["metadata"]["nbgrader"]["grade_id"]: cell
        for cell in json.loads(lab.info.notebook.read_bytes())["cells"]
        if "nbgrader" in cell["metadata"]
    }
    graded = [cell for cell in rebuilt["cells"] if "nbgrader" in cell["metadata"]]
    assert sorted(cell["metadata"]["nbgrader"]["grade_id"] for cell in graded) == sorted(released)
    for cell in rebuilt["cells"]:
        assert not cell.get("outputs")
    for cell in graded:
        fields = cell["metadata"]["nbgrader"]
        assert fields == released[fields["grade_id"]]["metadata"]["nbgrader"]
        if fields["grade"] and not fields["solution"]:
            assert "".join(cell["source"]) == "".join(released[fields["grade_id"]]["source"])


def archive(data: bytes, folder: Path) -> None:
    """Collect from an archive: whatever it holds, nothing but plain files below submitted/ comes of it."""
    path = folder / "hand-ins.zip"
    path.write_bytes(data)
    course = Course(folder / "course")
    with watched(), without_worker(), contextlib.suppress(InputError):
        for result in collect(course, LAB, path):
            assert result.status in STATUSES
            assert result.status in ("skipped", "unclear") or STUDENT.fullmatch(result.student)
            assert (result.student + result.detail + result.remark).isprintable()
    assert {entry.name for entry in folder.iterdir()} <= {"hand-ins.zip", "course"}
    for entry in folder.glob("course/submitted/**/*"):
        parts = entry.relative_to(folder / "course" / "submitted").parts
        assert len(parts) <= 3 and STUDENT.fullmatch(parts[0]) and not entry.is_symlink()
        assert entry.is_dir() or parts[1:] in ((LAB, f"{LAB}.ipynb"), (LAB, "timestamp.txt"))


def record(data: bytes, folder: Path) -> None:
    """Read a grading record: none, or one whose every number and text can be used."""
    path = folder / "ada.json"
    path.write_bytes(data)
    with watched():
        found = read_record(path)
        if found is None:
            return
        assert isinstance(found, Record) and 0 <= found.earned <= found.points
        assert all(verdict.passed or verdict.reason is not None for verdict in found.verdicts)
        assert found.holds_for(found.digest, found.version) == (not found.faults)
        found.write(path)
        assert read_record(path) == found
