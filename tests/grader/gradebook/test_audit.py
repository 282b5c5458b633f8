"""The audit log: whole lines, damage named by its line, and a torn end that is no damage."""

import errno
import json
import os

import pytest

from mlsys_grader.cli import main
from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.audit import AuditLog, hash_seeds, read_audit
from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.judging.verdict import Verdict

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
        log.write_outcome("judged", record, engine="local", entered=True)
        log.write_outcome("judged", record, engine="local", entered=False, error="a full disk")
    with AuditLog(course) as log:
        log.write("not judged", student="bob", lab=LAB)
    return course.audit


def test_a_line_tells_who_graded_what_with_what(three):
    history = read_audit(three)
    assert (history.damaged, history.torn, len(history.entries)) == ((), False, 3)
    first = history.entries[0]
    assert first["student"] == "ada" and first["digest"] == "d" * 64 and first["version"] == "v1"
    assert (first["earned"], first["points"], first["entered"], first["error"]) == (1, 3, True, "")
    assert first["seeds"] == hash_seeds({"double": 3, "mean": 4}) != hash_seeds({"double": 3, "mean": 5})
    assert first["sandbox"] == "bubblewrap" and first["engine"] == "local" and first["package"]
    assert first["user"] and first["host"]
    assert history.entries[1]["error"] == "a full disk" and history.entries[1]["entered"] is False
    assert first["time"] and [entry["event"] for entry in history.entries] == ["judged", "judged", "not judged"]


def test_no_log_is_an_empty_one(course):
    assert read_audit(course.audit).entries == []


@pytest.mark.parametrize("garbled", [b"", b"{", b"[" * 100_000, b"[]", b"7", b"\xff\xfe"])
def test_a_line_that_is_not_json_is_named_by_its_number_and_the_others_are_read(three, garbled):
    lines = three.read_bytes().splitlines()
    three.write_bytes(b"\n".join([lines[0], garbled, lines[2], garbled, b""]))
    history = read_audit(three)
    assert history.damaged == (2, 4) and not history.torn
    assert [entry["student"] for entry in history.entries] == ["ada", "bob"]


@pytest.mark.parametrize("kept", [1, 50, -1])
def test_a_line_that_a_crash_tore_is_no_damage_and_is_mended_at_the_next_append(course, three, record, kept):
    whole = three.read_bytes()
    lines = whole.splitlines(keepends=True)
    three.write_bytes(lines[0] + lines[1] + lines[2][:kept])
    history = read_audit(three)
    assert (history.damaged, history.torn, len(history.entries)) == ((), True, 2)
    with AuditLog(course) as log:
        log.write_outcome("judged", record, engine="local", entered=True)
    history = read_audit(three)
    assert (history.damaged, history.torn) == ((), False)
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
    assert read_audit(three).damaged == () and len(read_audit(three).entries) == 4


@pytest.mark.sandbox
def test_a_graded_class_is_in_the_log_and_the_command_shows_it(graded, tiny_labs, capsys):
    arguments = ["--course", str(graded.root), "--labs", str(tiny_labs), "audit", "tiny"]
    entries = read_audit(graded.audit).entries
    assert sorted(entry["student"] for entry in entries) == ["ada", "bob", "cy"]
    for entry in entries:
        record = read_record(graded.record(entry["student"], LAB))
        assert (entry["earned"], entry["digest"], entry["version"]) == (record.earned, record.digest, record.version)
        assert entry["seeds"] == hash_seeds({verdict.check: verdict.seed for verdict in record.verdicts})
        assert entry["entered"] is True and entry["event"] == "judged"
        assert str(record.verdicts[0].seed) not in json.dumps(entry) or record.verdicts[0].seed == 0
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "ada: 6 of 6, entered" in said and "cy: 0 of 6, entered" in said
    assert said.endswith(f"3 of the 3 entries in {graded.audit}\n")
    assert main([*arguments, "--student", "bob"]) == 0
    said = capsys.readouterr().out
    assert "bob: 3 of 6, entered" in said and " ada:" not in said
    assert said.endswith(f"1 of the 3 entries in {graded.audit}\n")
    lines = graded.audit.read_text().splitlines()
    graded.audit.write_text("\n".join([lines[0], '{"lab": "01-tiny"}', "{", lines[2], '{"torn']))
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out.count("entered") == 3 and "?@? ? ?: ? of ?, not entered" in out and "torn by a crash" in out
    assert err.startswith("mlsys-grader: the audit log has lines that are not JSON objects: got line 3; ")
    assert err.count("\n") == 1
