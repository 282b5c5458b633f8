"""`mlsys-grader export`: marks as CSV and JSON, of whom there is a verdict, wherever they are written."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import pytest

from tests.grader.command_line import LAB, expect_one_line, read_tree
from tests.grader.conftest import CHECKS, PROJECT


@pytest.mark.sandbox
def test_export_writes_files_that_say_the_same(graded, call, tmp_path):
    (tmp_path / "out").mkdir()
    assert call("export", "tiny", "--csv", "out/marks.csv", "--json", "out/verdicts.json") == (0, "", "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "marks.csv").read_text())))
    assert {row["student"]: (row["earned"], row["percent"], row["total"]) for row in rows} == {
        "ada": ("6", "100.0", "3"),
        "bob": ("3", "50.0", "0"),
        "cy": ("0", "0.0", "0"),
    }
    records = json.loads((tmp_path / "out" / "verdicts.json").read_text())
    for row, record in zip(rows, records, strict=True):
        assert row["student"] == record["student"] and row["lab"] == record["lab"] == LAB
        for verdict in record["verdicts"]:
            assert float(row[verdict["check"]]) == verdict["earned"]
    code, out, err = call("export", "tiny")
    assert (code, out, err) == (0, (tmp_path / "out" / "marks.csv").read_text(), "")


@pytest.mark.sandbox
def test_export_writes_through_pipes_and_links_and_replaces_neither(graded, call, tmp_path):
    (tmp_path / "marks.csv").write_text("of before")
    (tmp_path / "link.csv").symlink_to("marks.csv")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert call("export", "tiny", "--csv", "link.csv", "--json", "pipe") == (0, "", "")
        assert [record["student"] for record in json.loads(os.read(reader, 1 << 16))] == ["ada", "bob", "cy"]
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "marks.csv").read_text() == call("export", "tiny")[1]


@pytest.mark.sandbox
def test_who_has_no_verdict_gets_no_mark_and_is_named(graded, call):
    (graded.root / "submitted" / "dee" / LAB).mkdir(parents=True)
    path = graded.record("bob", LAB)
    record = json.loads(path.read_text())
    record["verdicts"][2]["fault"] = "check 'total' itself failed: ZeroDivisionError"
    path.write_text(json.dumps(record))
    for command in ("export", "feedback"):
        code, out, err = call(command, "tiny")
        assert (code, err) == (0, "mlsys-grader: left out, not graded: bob, dee\n")
        assert "bob" not in out and "dee" not in out
    assert re.search(r"^bob +fault ", call("status", "tiny")[1], re.MULTILINE)


@pytest.mark.parametrize("command", ["export", "feedback"])
def test_nothing_graded_yet(submitted_at, call, tmp_path, command):
    before = read_tree(tmp_path)
    arguments = ("--csv", "marks.csv") if command == "export" else ("--to", "pages")
    expect_one_line(
        call(command, "tiny", *arguments), "nothing of 01-tiny has been graded; help: mlsys-grader grade tiny"
    )
    assert read_tree(tmp_path) == before


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "tiny", "--csv", "mine/marks.csv"), "cannot write mine/marks.csv: got "),
        (("export", "tiny", "--json", "folder"), "cannot write folder: got Is a directory"),
        (
            ("export", "tiny", "--csv", "out/marks.csv"),
            "cannot write out/marks.csv: got no such folder; help: make out",
        ),
        (("export", "tiny", "--csv", "m.csv", "--json", "out/v.json"), "cannot write out/v.json: got no such folder"),
        (("report", "tiny", "--json", "out/v.json"), "cannot write out/v.json: got no such folder"),
        (
            ("capacity", "tiny", "--workers", "9" * 20),
            f"--workers cannot be that: got {'9' * 20}, expected 1 to 10,000",
        ),
        (("feedback", "tiny", "--to", "mine"), "cannot use mine: File exists"),
        (("feedback", "tiny", "--to", "mine/pages"), "cannot use mine/pages: Not a directory"),
    ],
)
def test_a_place_that_cannot_be_written_to(graded, call, tmp_path, arguments, said):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "folder").mkdir()
    before = read_tree(tmp_path)
    expect_one_line(call(*arguments), said)
    assert read_tree(tmp_path) == before


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("reader", "code", "said"), [("true", 141, ""), (">/dev/full", 1, "cannot write all of it: No sp")]
)
def test_output_that_nobody_takes(graded, tiny_labs, reader, code, said):
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "grader"), str(CHECKS)])
    start = "import sys; from mlsys_grader.cli import main; sys.exit(main())"
    mine = f"{sys.executable} -c '{start}' --course {graded.root} --labs {tiny_labs} export tiny"
    line = f"{mine} {reader}" if reader.startswith(">") else f"{mine} | {reader}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == code
    assert said in done.stderr and done.stderr.count("\n") == bool(said)
