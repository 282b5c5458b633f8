"""Folders of hand-ins: which notebook is taken, when it came, and what is said of the rest."""

import pytest

from mlsys_grader.intake import collect as module
from mlsys_grader.intake import exports
from mlsys_grader.intake.collect import collect, count_statuses
from mlsys_grader.intake.exports import find_in_folder
from mlsys_lab.errors import InputError
from tests.grader.intake.submitted import LAB, archive, put, said, statuses, taken, unpacked


def test_a_folder_in_any_usual_shape(course, source):
    put(source, "ada/01-tiny/01-tiny.ipynb", "a")
    put(source, "bob/whatever.ipynb", "b")
    put(source, "cy.ipynb", "c")
    put(source, "dee_01-tiny.ipynb", "d")
    put(source, "ada/.ipynb_checkpoints/01-tiny-checkpoint.ipynb", "old")
    put(source, "bob/data.csv", "not taken")
    collect(course, LAB, source)
    assert taken(course) == {"ada": "a", "bob": "b", "cy": "c", "dee": "d"}


def test_who_hands_in_nothing_is_there_too(course, source):
    put(source, "eve/essay.docx")
    results = collect(course, LAB, source)
    assert [(r.student, r.status) for r in results] == [("eve", "missing")]
    assert course.students(LAB) == ["eve"]


def test_the_labs_own_notebook_goes_before_others(course, source):
    put(source, "ada/01-tiny.ipynb", "right")
    put(source, "ada/zz-scratch.ipynb", "wrong")
    put(source, "bob/01-tiny (1).ipynb", "right")
    put(source, "bob/zz-scratch.ipynb", "wrong")
    put(source, "cy/01-tiny.ipynb", "wrong")
    put(source, "cy/01-tiny(1).ipynb", "right")
    collect(course, LAB, source)
    assert taken(course) == {"ada": "right", "bob": "right", "cy": "right"}


def test_again_changes_nothing_and_a_new_version_replaces(course, source):
    path = put(source, "ada.ipynb", "one")
    assert dict(count_statuses(collect(course, LAB, source))) == {"new": 1}
    assert dict(count_statuses(collect(course, LAB, source))) == {"unchanged": 1}
    path.write_text("two")
    assert dict(count_statuses(collect(course, LAB, source))) == {"updated": 1}
    assert taken(course) == {"ada": "two"}


def test_a_notebook_of_another_lab_replaces_none(course, source):
    path = put(source, "ada.ipynb", 'check = lab(\\"tiny\\")')
    collect(course, LAB, source)
    path.write_text('check = lab(\\"gpu-model\\")')
    (result,) = collect(course, LAB, source)
    assert (result.status, result.detail) == (
        "skipped",
        "ada.ipynb is a notebook of gpu-model; what was handed in before stays",
    )
    assert taken(course) == {"ada": 'check = lab(\\"tiny\\")'}
    path.write_text('import tiny; check = lab(\\"tiny\\"); other = lab(\\"gpu-model\\")')
    assert dict(count_statuses(collect(course, LAB, source))) == {"updated": 1}


def test_the_time_goes_with_the_notebook_it_belongs_to(course, source):
    path = put(source, "ada/01-tiny.ipynb", "one")
    stamp = put(source, "ada/timestamp.txt", "2026-03-04 05:06:07 +0100")
    collect(course, LAB, source)
    kept = course.submission("ada", LAB).with_name("timestamp.txt")
    assert kept.read_text() == "2026-03-04 04:06:07 UTC\n"
    stamp.unlink()
    collect(course, LAB, source)
    assert kept.exists(), "the same notebook, this time without a time"
    path.write_text("two")
    collect(course, LAB, source)
    assert not kept.exists(), "another notebook must not pass for one handed in then"


@pytest.mark.parametrize(
    "written",
    ["2026-03-04 04:06:07.5 UTC", "2026-03-04 04:06:07", "2026-03-04T05:06:07+01:00", "2026-03-04 04:06:07 Z"],
)
def test_times_as_nbgrader_and_others_write_them(course, source, written):
    put(source, "ada/01-tiny.ipynb")
    put(source, "ada/timestamp.txt", written)
    collect(course, LAB, source)
    assert course.submission("ada", LAB).with_name("timestamp.txt").read_text() == "2026-03-04 04:06:07 UTC\n"


@pytest.mark.parametrize("written", ["", "yesterday", "0001-01-01T00:00:00+10:00", "\ud800"])
def test_a_time_that_is_none_is_left_out(course, source, written):
    put(source, "ada/01-tiny.ipynb")
    (source / "ada" / "timestamp.txt").write_bytes(written.encode(errors="surrogatepass"))
    assert dict(count_statuses(collect(course, LAB, source))) == {"new": 1}
    assert not course.submission("ada", LAB).with_name("timestamp.txt").exists()
    (result,) = collect(course, LAB, source)
    assert ("no time that can be read, so no penalty" in result.remark) == bool(written)


def test_links_in_a_folder_are_not_followed(course, source):
    (source / "mallory").mkdir()
    (source / "mallory" / "01-tiny.ipynb").symlink_to("/etc/passwd")
    assert dict(count_statuses(collect(course, LAB, source)))["skipped"] == 1
    assert not course.submission("mallory", LAB).exists()


def test_which_of_several_notebooks_was_taken_is_said(course, source):
    for path in (
        "01-tiny.ipynb",
        "old/01-tiny.ipynb",
        "scratch.ipynb",
        "old/.ipynb_checkpoints/01-tiny-checkpoint.ipynb",
    ):
        put(source, f"ada/{path}", path)
    (result,) = collect(course, LAB, source)
    assert taken(course) == {"ada": "01-tiny.ipynb"}
    assert result.remark == "took `ada/01-tiny.ipynb`, not `ada/scratch.ipynb`, `ada/old/01-tiny.ipynb`"


@pytest.mark.parametrize("name", ["01-tiny.IPYNB", "01-tiny.ipynb.txt", "01-tiny.ipynb.json", "01-Tiny.Ipynb.TXT"])
def test_a_notebook_under_an_ending_that_a_browser_gave_it(course, source, name):
    put(source, f"ada/{name}", "a")
    put(source, f"bob_{name.lower()}", "b")
    collect(course, LAB, source)
    assert taken(course) == {"ada": "a", "bob": "b"}


def test_what_was_handed_in_instead_of_a_notebook_is_named(course, tmp_path):
    entries = {"ada/hw.zip": "PK", "ada/x.pdf": "", "bob/01-tiny.ipynb": "b", "cy_01-tiny.zip": "PK"}
    for source in (archive(tmp_path / "o.zip", entries), unpacked(tmp_path / "o", entries)):
        results = said(course, source)
        assert results["ada"].detail == "no notebook, only `hw.zip`, `x.pdf`"
        assert (results[""].status, results[""].detail) == ("aside", "`cy_01-tiny.zip`")


def test_a_name_that_begins_with_a_dot_is_told_unless_a_program_gave_it(course, source):
    for path in (
        ".ada/01-tiny.ipynb",
        ".Trash-0/01-tiny.ipynb",
        ".ipynb_checkpoints/01-tiny.ipynb",
        "bob/01-tiny.ipynb",
    ):
        put(source, path)
    results = [(r.student, r.status) for r in collect(course, LAB, source)]
    assert results == [(".ada/01-tiny.ipynb", "skipped"), ("bob", "new")]


def test_a_notebook_that_names_nobody_makes_no_student_of_its_lab(course, source):
    put(source, "01-tiny (1).ipynb")
    put(source, "ada.ipynb")
    results = [(r.student, r.status, r.detail) for r in collect(course, LAB, source)]
    nobodys = "it names no student: call it STUDENT_01-tiny.ipynb"
    assert results == [("01-tiny (1).ipynb", "skipped", nobodys), ("ada", "new", "ada.ipynb")]


@pytest.mark.parametrize("name", ["Jane Doe - 01-tiny.ipynb", "Jane Doe_01-tiny (1).ipynb", "Jane Doe-01-tiny.ipynb"])
def test_the_lab_behind_a_name_is_no_part_of_it(course, source, name):
    put(source, name)
    put(source, "Copy of 01-tiny.ipynb")
    assert statuses(course, source) == {"Jane-Doe": "new", "Copy of 01-tiny.ipynb": "skipped"}


def test_a_folder_named_after_the_lab_is_no_student(course, source):
    for path in ("01-tiny/ada/01-tiny.ipynb", "01-tiny/bob/01-tiny.ipynb", "02-other/ada/02-other.ipynb"):
        put(source, path)
    with pytest.raises(InputError, match=r"named after the lab, not after a student: got 01-tiny.* collect `01-tiny`"):
        collect(course, LAB, source)
    assert statuses(course, source / LAB) == {"ada": "new", "bob": "new"}


@pytest.mark.parametrize("names", [("Jane - 01-tiny", "Bob - 01-tiny"), ("jane", "bob")])
def test_a_class_in_one_folder_is_not_taken_for_one_student(course, source, names):
    for name in names:
        put(source, f"Lab 1/{name}.ipynb", '{"source": "check = lab(\\"tiny\\")"}')
    with pytest.raises(InputError, match="everything lies in one folder: got Lab 1"):
        collect(course, LAB, source)
    assert len(statuses(course, source / "Lab 1")) == 2


def test_what_there_is_instead_of_notebooks_is_named(course, source):
    with pytest.raises(InputError, match=r"which holds `ada\.zip`"):
        collect(course, LAB, put(source, "ada.zip").parent)
    with pytest.raises(InputError, match="help: give the folder that it lies in"):
        collect(course, LAB, put(source, "ada.ipynb"))


def test_of_notebooks_that_are_called_anything_the_labs_is_taken(course, source):
    put(source, "ada/zz.ipynb", "{}")
    put(source, "ada/my answer.ipynb", '{"source": "check = lab(\\"tiny\\")"}')
    collect(course, LAB, source)
    assert "tiny" in taken(course)["ada"]


def test_what_was_handed_in_earlier_does_not_replace_what_came_later(course, tmp_path):
    at = {day: f"2026-03-{day:02} 00:00:00 UTC" for day in (4, 5, 6)}
    for day, status in ((5, "new"), (4, "unchanged"), (6, "updated")):
        entries = {"ada/01-tiny.ipynb": str(day), "ada/timestamp.txt": at[day]}
        source = archive(tmp_path / "z.zip", entries) if day == 5 else unpacked(tmp_path / str(day), entries)
        result = said(course, source)["ada"]
        assert result.status == status
        assert ("before what is there" in result.remark) == (day == 4)
    assert taken(course) == {"ada": "6"}


def test_a_time_that_is_yet_to_come_is_told(course, source):
    put(source, "ada/01-tiny.ipynb")
    put(source, "ada/timestamp.txt", "2199-01-01 00:00:00 UTC")
    assert "yet to come" in said(course, source)["ada"].remark


@pytest.mark.parametrize("swapped", ["work/01-tiny.ipynb", "work"])
def test_a_link_that_comes_between_look_and_open_hands_in_no_neighbours_file(source, swapped):
    """Each name on the way is opened in the folder above it, and none of them may be a link."""
    put(source, "ada/01-tiny.ipynb", "ada's")
    put(source, "mallory/work/01-tiny.ipynb", "mallory's")
    found = {entry.student: entry for entry in find_in_folder(source, LAB).notebooks}
    assert found["mallory"].read() == b"mallory's"
    path = source / "mallory" / swapped
    path.rename(source / "mallory" / "away")
    path.symlink_to(source / "ada" / ("01-tiny.ipynb" if path.suffix else ""))
    with pytest.raises(InputError, match="a link, not a file"):
        found["mallory"].read()
    assert found["ada"].read() == b"ada's"


def test_who_hands_in_without_end_costs_one_line(course, source, monkeypatch):
    monkeypatch.setattr(module, "MAX_NOTEBOOKS", 3)
    monkeypatch.setattr(exports, "MAX_ENTRIES", 5)
    for number in range(4):
        put(source, f"ada/{number}.ipynb")
    for number in range(6):
        put(source, f"bob/{number}.txt")
    put(source, "cy/x.ipynb")
    put(source, "/".join(["dee", *"x" * 120, "x.ipynb"]))
    results = [(r.student, r.status, r.detail) for r in collect(course, LAB, source) if r.status != "missing"]
    assert results == [
        ("bob", "skipped", "it holds more than 5 files and folders"),
        ("dee", "skipped", "it holds more than 5 files and folders"),
        ("ada", "skipped", "more than 3 notebooks: 4"),
        ("cy", "new", "x.ipynb"),
    ]
    assert taken_by(course) == ["cy"]


def taken_by(course):
    return [student for student in course.students(LAB) if course.submission(student, LAB).exists()]


def test_a_copys_number_that_no_counter_reaches_is_none(course, source):
    put(source, "ada/01-tiny-2.ipynb", "two")
    put(source, f"ada/01-tiny-{'9' * 200}.ipynb", "many")
    collect(course, LAB, source)
    assert taken(course) == {"ada": "two"}
