"""`mlsys-grader collect`: one line for what cannot be collected, or has no place to go."""

import os
import shutil

import pytest

from tests.grader.command_line import expect_one_line, read_tree


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.zip", None, "nothing to collect: got missing.zip; help: give a folder or a zip"),
        ("broken.zip", b"PK\x03\x04 no zip", "broken.zip is not a zip archive that can be read: got File is not a zip"),
        ("empty.zip", b"PK\x05\x06" + bytes(18), "no notebook found: got empty.zip; help: mlsys-grader collect --help"),
        ("essay.txt", b"dear teacher", "essay.txt is not a zip archive that can be read"),
        ("folder", None, "no notebook found: got folder"),
    ],
)
def test_hand_ins_that_are_none_make_no_course(call, tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    elif name == "folder":
        (tmp_path / name).mkdir()
    expect_one_line(call("collect", name, "--lab", "tiny"), said)
    assert not (tmp_path / "course").exists()


@pytest.mark.parametrize(("blocked", "reason"), [("course", "File exists"), ("course/submitted", "File exists")])
def test_collecting_where_a_file_is_in_the_way(call, tmp_path, blocked, reason):
    (tmp_path / "hand-ins").mkdir()
    (tmp_path / "hand-ins" / "ada.ipynb").write_text("{}")
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("mine")
    before = read_tree(tmp_path)
    result = call("collect", "hand-ins", "--lab", "tiny")
    expect_one_line(result, f"cannot write to the course folder {tmp_path / 'course'}: got ")
    assert read_tree(tmp_path) == before


def test_a_file_in_the_way_of_a_students_folder(submitted_at, call, tmp_path):
    shutil.rmtree(submitted_at / "submitted" / "bob")
    (submitted_at / "submitted" / "bob").write_text("mine")
    expect_one_line(call("collect", "hand-ins", "--lab", "tiny"), f"cannot use {submitted_at}/submitted/bob")


def test_a_name_out_of_an_archive_commands_no_terminal(call, tmp_path):
    (tmp_path / "hand-ins" / "\x1b[2J\x9b1m").mkdir(parents=True)
    (tmp_path / "hand-ins" / "\x1b[2J\x9b1m" / "a.ipynb").symlink_to("/etc/passwd")
    (tmp_path / "hand-ins" / os.fsdecode(b"\xff.ipynb")).symlink_to("/etc/passwd")
    code, out, err = call("collect", "hand-ins", "--lab", "tiny")
    assert (code, err) == (1, ""), "somebody has to look at what was skipped"
    assert "skipped: ?[2J?1m/a.ipynb: a link, not a file\n" in out and "skipped: ?.ipynb: a link" in out
    assert out.replace("\n", "").isprintable()
