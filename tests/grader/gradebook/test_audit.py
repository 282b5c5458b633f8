"""The audit log: whole lines, a chain that shows every change, and a torn end that is no damage."""

import errno
import json
import os

import pytest

from mlsys_grader.cli import main
from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.audit import FIRST, AuditLog, read_audit, seeds_hash
from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.judging.judge import Verdict

LAB = "01-tiny"


@pytest.fixture
def course(tmp_path):
    return Course.open(tmp_path / "course", create=True)


@pytest.fixture
def record():
    verdicts = (Verdict("double", "double", 1, 1, seed=3), Verdict("mean", "mean", 2, 0, seed=4))
    return Record("ada", LAB, "d" * 64, "v1", verdicts)


@pytest.fixture
def three(course, record):
    """A log of three lines, written in two sittings."""
    with AuditLog(course) as log:
        log.outcome("judged", record, engine="local", entered=True)
        log.outcome("judged", record, engine="local", entered=False, error="a full disk")
    with AuditLog(course) as log:
        log.write("not judged", student="bob", lab=LAB)
    return course.audit


def test_a_line_tells_who_graded_what_with_what(three):
    history = read_audit(three)
    assert (history.damage, history.torn, len(history.entries)) == ("", False, 3)
    first = history.entries[0]
    assert first["student"] == "ada" and first["digest"] == "d" * 64 and first["version"] == "v1"
    assert (first["earned"], first["points"], first["entered"], first["error"]) == (1, 3, True, "")
    assert first["seeds"] == seeds_hash({"double": 3, "mean": 4}) != seeds_hash({"double": 3, "mean": 5})
    assert first["sandbox"] == "bubblewrap" and first["engine"] == "local" and first["package"]
    assert first["user"] and first["host"] and first["previous"] == FIRST
    assert history.entries[1]["error"] == "a full disk" and history.entries[1]["entered"] is False
    assert [entry["number"] for entry in history.entries] == [1, 2, 3]


def test_no_log_is_an_empty_one(course):
    assert read_audit(course.audit).entries == []


@pytest.mark.parametrize("line", [0, 1])
def test_a_changed_line_shows(three, line):
    lines = three.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"earned": 1', b'"earned": 3')
    three.write_bytes(b"".join(lines))
    history = read_audit(three)
    assert history.damage.startswith(f"line {line + 2} does not carry the hash of the line before it")
    assert len(history.entries) == line + 1


@pytest.mark.parametrize("change", ["drop", "swap", "repeat", "garble"])
def test_a_line_dropped_moved_repeated_or_garbled_shows(three, change):
    lines = three.read_bytes().splitlines(keepends=True)
    changed = {
        "drop": [lines[0], lines[2]],
        "swap": [lines[1], lines[0], lines[2]],
        "repeat": [lines[0], lines[0], lines[1], lines[2]],
        "garble": [b"[" * 100_000 + b"\n", lines[1], lines[2]],
    }[change]
    three.write_bytes(b"".join(changed))
    assert read_audit(three).damage


def test_the_hash_of_the_last_line_tells_a_change_of_that_line_too(three):
    kept = read_audit(three).last
    three.write_bytes(three.read_bytes().replace(b'"student": "bob"', b'"student": "eve"'))
    assert read_audit(three).damage == "" and read_audit(three).last != kept


@pytest.mark.parametrize("kept", [1, 50, -1])
def test_a_line_that_a_crash_tore_is_no_damage_and_is_mended_at_the_next_append(course, three, record, kept):
    whole = three.read_bytes()
    lines = whole.splitlines(keepends=True)
    three.write_bytes(lines[0] + lines[1] + lines[2][:kept])
    history = read_audit(three)
    assert (history.damage, history.torn, len(history.entries)) == ("", True, 2)
    with AuditLog(course) as log:
        log.outcome("judged", record, engine="local", entered=True)
    history = read_audit(three)
    assert (history.damage, history.torn) == ("", False)
    assert [entry["event"] for entry in history.entries] == ["judged", "judged", "mended", "judged"]
    assert history.entries[2]["torn_bytes"] == len(lines[2][:kept])
    assert three.read_bytes().startswith(lines[0] + lines[1])


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_fails_leaves_the_log_as_it_was(course, three, monkeypatch, call):
    before = three.read_bytes()
    write = os.write

    def fail(descriptor, *data):
        if data:
            write(descriptor, data[0][:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    with AuditLog(course) as log:
        monkeypatch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space"):
            log.write("judged")
        monkeypatch.undo()
        assert three.read_bytes() == before
        log.write("judged")
    assert read_audit(three).damage == "" and len(read_audit(three).entries) == 4


@pytest.mark.sandbox
def test_a_graded_class_is_in_the_log_and_the_command_shows_it(graded, tiny_labs, capsys):
    arguments = ["--course", str(graded.root), "--labs", str(tiny_labs), "audit", "tiny"]
    entries = read_audit(graded.audit).entries
    assert sorted(entry["student"] for entry in entries) == ["ada", "bob", "cy"]
    for entry in entries:
        record = read_record(graded.record(entry["student"], LAB))
        assert (entry["earned"], entry["digest"], entry["version"]) == (record.earned, record.digest, record.version)
        assert entry["seeds"] == seeds_hash({verdict.check: verdict.seed for verdict in record.verdicts})
        assert entry["entered"] is True and entry["event"] == "judged"
        assert str(record.verdicts[0].seed) not in json.dumps(entry) or record.verdicts[0].seed == 0
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "ada: 6 of 6, entered" in said and "cy: 0 of 6, entered" in said
    assert f"the chain of 3 lines holds; hash of the last: {read_audit(graded.audit).last}" in said
    assert main([*arguments, "--student", "bob"]) == 0
    said = capsys.readouterr().out
    assert "bob: 3 of 6, entered" in said and " ada:" not in said
    content = graded.audit.read_text()
    graded.audit.write_text(content.replace('"earned": 3', '"earned": 5') + content.splitlines()[-1] + "\n")
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("mlsys-grader: the audit log does not hold together: got line ") and said.count("\n") == 1
