"""What platforms export, and other archives, honest or not."""

import stat
import zipfile

import pytest

from mlsys_grader.intake.collect import collect, count_statuses
from mlsys_grader.intake.submission import MAX_FILE_BYTES
from mlsys_lab.errors import InputError
from tests.grader.intake.submitted import LAB, archive, put, said, statuses, taken


def test_a_moodle_export(course, tmp_path):
    entries = {
        "Ada Lovelace_4711_assignsubmission_file_/01-tiny.ipynb": "a",
        "Zoë Łu_4712_assignsubmission_file_01-tiny.ipynb": "z",
        "Ada Lovelace_4711_assignsubmission_onlinetext_/onlinetext.html": "<p>",
    }
    collect(course, LAB, archive(tmp_path / "m.zip", entries))
    assert taken(course) == {"Ada-Lovelace-4711": "a", "Zoe-u-4712": "z"}


def test_a_canvas_export_takes_the_last_of_several(course, tmp_path):
    entries = {
        "lovelaceada_4711_900_01-tiny.ipynb": "first",
        "lovelaceada_LATE_4711_901_01-tiny-1.ipynb": "second",
        "lovelaceada_LATE_4711_902_01-tiny-2.ipynb": "third",
    }
    collect(course, LAB, archive(tmp_path / "c.zip", entries))
    assert list(taken(course)) == ["lovelaceada-4711"]
    assert taken(course)["lovelaceada-4711"] == "third"


def test_nothing_leaves_the_course_folder(course, tmp_path):
    archive(
        tmp_path / "evil.zip",
        {"../../evil.ipynb": "x", "/abs/evil.ipynb": "x", "a\\..\\..\\evil.ipynb": "x", "..": "x"},
    )
    with zipfile.ZipFile(tmp_path / "evil.zip", "a") as file:
        link = zipfile.ZipInfo("mallory/01-tiny.ipynb")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc/passwd")
    before = {path for path in tmp_path.rglob("*") if "course" not in path.parts}
    results = collect(course, LAB, tmp_path / "evil.zip")
    assert dict(count_statuses(results)) == {"missing": 1, "skipped": 4}
    assert {path for path in tmp_path.rglob("*") if "course" not in path.parts} == before
    assert course.students(LAB) == ["mallory"]


def test_a_zip_tells_who_handed_in_nothing_that_can_be_read(course, tmp_path):
    entries = {
        "ada/essay.docx": "",
        "bob/.ipynb_checkpoints/01-tiny-checkpoint.ipynb": "",
        "Cy Dee_4711_assignsubmission_file_/notes.txt": "",
        "doeeve_4712_88_essay.pdf": "",
        "fay/": "",
        "gil/01-tiny.ipynb": "g",
        "gil/notes.txt": "",
        "__MACOSX/ada/._essay.docx": "",
    }
    told = statuses(course, archive(tmp_path / "z.zip", entries))
    assert told.pop("gil") == "new" and set(told.values()) == {"missing"}
    assert set(told) == {"ada", "bob", "Cy-Dee-4711", "doeeve-4712", "fay"}


def test_a_zip_bomb_is_cut_off(course, tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("ada.ipynb", "w") as entry,
    ):
        for _ in range(MAX_FILE_BYTES // (1 << 20) + 20):
            entry.write(bytes(1 << 20))
    collect(course, LAB, tmp_path / "bomb.zip")
    assert course.submission("ada", LAB).stat().st_size == MAX_FILE_BYTES + 1


def test_a_damaged_entry_does_not_stop_the_others(course, tmp_path):
    path = archive(tmp_path / "d.zip", {"ada.ipynb": "a" * 100, "bob.ipynb": "b" * 100})
    path.write_bytes(path.read_bytes().replace(b"a" * 100, b"x" * 100, 1))
    results = {r.student: r.status for r in collect(course, LAB, path)}
    assert results == {"ada": "skipped", "bob": "new"}


@pytest.mark.parametrize(("name", "content"), [("x.zip", "no zip"), ("y.tar", "")])
def test_what_is_no_archive_is_told(course, tmp_path, name, content):
    put(tmp_path, name, content)
    with pytest.raises(InputError, match="not a zip archive"):
        collect(course, LAB, tmp_path / name)


def test_a_blackboard_export_takes_the_last_attempt_of_each_student(course, tmp_path):
    entries = {
        "Lab%201_ada_l_attempt_2026-11-21-08-00-00_01-tiny.ipynb": "last",
        "Lab%201_ada_l_attempt_2026-11-20-09-00-00_01-tiny.ipynb": "first",
        "Lab%201_bob_attempt_2026-11-20-09-00-00.txt": "Name: Bob",
        "Lab%201_eve_attempt_2026-11-20-09-00-00_ada_l_attempt_2027-01-01-00-00-00_01-tiny.ipynb": "as ada's",
    }
    results = said(course, archive(tmp_path / "b.zip", entries))
    assert course.submission("ada_l", LAB).read_text() == "last"
    assert course.submission("eve", LAB).read_text() == "as ada's"
    assert results["bob"].status == "missing" and "only `Lab%201_bob" in results["bob"].detail


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("Nov 20, 2026 1145 PM", "Nov 21, 2026 745 AM"),
        ("Nov 20, 2026 1145\u202fAM", "Nov 20, 2026 1215\u202fPM"),
        ("December 9, 2026 2359", "January 1, 2027 0001"),
        ("30. November 2026 1545", "1. Dezember 2026 0745"),
        ("20 août 2026 1545", "2 sept. 2026 0745"),
        ("2026-11-20 1545", "2026-11-21 0745"),
    ],
)
def test_a_brightspace_export_takes_the_last_attempt_of_each_student(course, tmp_path, first, last):
    entries = {
        f"12-88 - Ada Lovelace - {last}/01-tiny.ipynb": "last",
        f"12-88 - Ada Lovelace - {first}/01-tiny.ipynb": "first",
        f"13-88 - Bob - Li 2 - {first} - 01-tiny.ipynb": "flat",
        "index.html": "",
    }
    results = said(course, archive(tmp_path / "d.zip", entries))
    assert taken(course) == {"Ada-Lovelace-12": "last", "Bob---Li-2-13": "flat"}
    assert [(r.status, r.detail) for r in results.values() if not r.student] == [("aside", "`index.html`")]


def test_names_in_a_moodle_export_may_hold_underscores_and_begin_with_a_dot(course, tmp_path):
    entries = {
        ". Priya_4711_assignsubmission_file_/01-tiny.ipynb": "p",
        "O_Neil_4712_assignsubmission_file_01-tiny.ipynb": "o",
        "O_Neil_4712_assignsubmission_onlinetext_/onlinetext.html": "",
    }
    collect(course, LAB, archive(tmp_path / "m.zip", entries))
    assert taken(course) == {"Priya-4711": "p", "O_Neil-4712": "o"}


def test_names_of_an_archive_that_does_not_say_how_they_are_written(course, tmp_path):
    """macOS writes UTF-8 without saying so; what is no UTF-8 is read as of old."""
    for name in ("José".encode(), "Jos\u00e9".encode("cp437")):
        path = archive(tmp_path / "n.zip", {"XXXXX"[: len(name)] + "/01-tiny.ipynb": "j"})
        path.write_bytes(path.read_bytes().replace(b"XXXXX"[: len(name)], name))
        results = said(course, path)
        assert list(results) == ["Jose"] and results["Jose"].status in ("new", "unchanged")


def test_of_entries_with_one_name_the_last_counts_as_for_who_unpacks_them(course, tmp_path):
    path = archive(tmp_path / "t.zip", {"ada/01-tiny.ipynb": "first"})
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as file:
        file.writestr("ada/01-tiny.ipynb", "second")
    collect(course, LAB, path)
    assert taken(course) == {"ada": "second"}


def test_a_time_in_what_a_platform_exports_is_the_students_own(course, source):
    put(source, "Ada_4711_assignsubmission_file_/01-tiny.ipynb")
    put(source, "Ada_4711_assignsubmission_file_/timestamp.txt", "2020-01-01 00:00:00 UTC")
    collect(course, LAB, source)
    assert course.submitted_at("Ada-4711", LAB) is None


def test_a_canvas_export_tells_who_handed_in_text_only(course, tmp_path):
    entries = {"doejane_4711_text.html": "<p>", "raybob_LATE_4712_link.html": "<a>", "kimcy_4713_9_01-tiny.ipynb": "c"}
    told = statuses(course, archive(tmp_path / "c.zip", entries))
    assert told == {"doejane-4711": "missing", "raybob-4712": "missing", "kimcy-4713": "new"}


def test_a_sakai_export(course, source):
    attached = "Submission attachment(s)"
    put(source, f"Lovelace, Ada(alove)/{attached}/01-tiny.ipynb", "a")
    put(source, "Lovelace, Ada(alove)/timestamp.txt", "20261120134512345")
    put(source, f"Ray, Bob(bray)/{attached}/01-tiny.ipynb", "b")
    put(source, f"Ray, Bob(bray)/{attached}/timestamp.txt", "2020-01-01 00:00:00 UTC")
    put(source, "Ray, Bob(bray)/comments.txt", "")
    put(source, f"Dee, Cy(cdee)/{attached}/Ray, Bob(bray)/{attached}/01-tiny.ipynb", "as bob's")
    put(source, "grades.csv", "")
    collect(course, LAB, source)
    assert taken(course) == {"Lovelace-Ada-alove": "a", "Ray-Bob-bray": "b", "Dee-Cy-cdee": "as bob's"}
    assert course.submitted_at("Ray-Bob-bray", LAB) is None, "the time is one that the student put there"


METADATA = """
submission_88:
  :submitters:
  - :name: Jane Doe
    :sid: ''
    :email: jane@example.org
  - :name: Bob Ray
    :email: bob@example.org
  :created_at: 2026-03-04 04:06:07.123456000 Z
  :results: []
submission_89:
  :submitters:
  - :name: Cy Dee
"""


@pytest.mark.parametrize("home", ["", "assignment_7_export/"])
def test_a_gradescope_export_names_who_handed_in(course, tmp_path, home):
    entries = {
        f"{home}submission_metadata.yml": METADATA,
        f"{home}submission_88/01-tiny.ipynb": "j",
        f"{home}submission_88/timestamp.txt": "2020-01-01 00:00:00 UTC",
        f"{home}submission_89/notes/submission_metadata.yml": METADATA,
        f"{home}submission_89/submission_88/01-tiny.ipynb": "c",
    }
    collect(course, LAB, archive(tmp_path / "g.zip", entries))
    assert taken(course) == {"jane@example.org": "j", "bob@example.org": "j", "Cy-Dee": "c"}
    assert f"{course.submitted_at('bob@example.org', LAB):%H:%M:%S}" == "04:06:07"


def test_a_students_own_metadata_name_nobody(course, source):
    put(source, "eve/submission_metadata.yml", METADATA)
    put(source, "eve/submission_88/01-tiny.ipynb", "e")
    put(source, "ada/01-tiny.ipynb", "a")
    collect(course, LAB, source)
    assert taken(course) == {"eve": "e", "ada": "a"}


@pytest.mark.parametrize("content", ["", "[", "- 1", "submission_88: 7", "submission_88: {':submitters': [1]}"])
def test_damaged_metadata_do_not_stop_anything(course, source, content):
    put(source, "submission_metadata.yml", content)
    put(source, "submission_88/01-tiny.ipynb")
    assert statuses(course, source)["submission_88"] == "new"
