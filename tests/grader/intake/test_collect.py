import os
import stat
import subprocess
import zipfile
from datetime import UTC, datetime

import pytest

from mlsys_grader.course.folder import Course
from mlsys_grader.intake import collect as module
from mlsys_grader.intake.collect import COMMIT, collect, count_statuses
from mlsys_grader.intake.hand_in import make_printable
from mlsys_grader.intake.submission import FILE_BYTES
from mlsys_lab.errors import InputError

LAB = "01-tiny"


@pytest.fixture
def course(tmp_path):
    return Course.open(tmp_path / "course", create=True)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "hand-ins"
    folder.mkdir()
    return folder


def put(folder, name, content="{}"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def archive(path, entries):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def taken(course):
    """Student -> text of the notebook in the course folder."""
    return {student: course.submission(student, LAB).read_text() for student in course.students(LAB)}


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
    collect(course, LAB, source)
    assert taken(course) == {"ada": "right", "bob": "right"}


def test_again_changes_nothing_and_a_new_version_replaces(course, source):
    path = put(source, "ada.ipynb", "one")
    assert dict(count_statuses(collect(course, LAB, source))) == {"new": 1}
    assert dict(count_statuses(collect(course, LAB, source))) == {"unchanged": 1}
    path.write_text("two")
    assert dict(count_statuses(collect(course, LAB, source))) == {"updated": 1}
    assert taken(course) == {"ada": "two"}


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


@pytest.mark.parametrize("written", ["2026-03-04 04:06:07.5 UTC", "2026-03-04 04:06:07", "2026-03-04T05:06:07+01:00"])
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


def test_links_in_a_folder_are_not_followed(course, source):
    (source / "mallory").mkdir()
    (source / "mallory" / "01-tiny.ipynb").symlink_to("/etc/passwd")
    assert dict(count_statuses(collect(course, LAB, source)))["skipped"] == 1
    assert not course.submission("mallory", LAB).exists()


def test_names_that_no_folder_may_have_are_made_plain_and_stay_apart(course, tmp_path):
    names = ["a b/x.ipynb", "a-b/x.ipynb", "-rf/x.ipynb", "名前/x.ipynb", "c" * 300 + "/x.ipynb"]
    collect(course, LAB, archive(tmp_path / "n.zip", {name: name[:3] for name in names}))
    assert len(course.students(LAB)) == len(names)
    assert sorted(taken(course).values()) == sorted(name[:3] for name in names)


def statuses(course, source, **options):
    return {result.student: result.status for result in collect(course, LAB, source, **options)}


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("jane doe", "jane-doe"),
        ("jane-doe", "jane doe"),
        ("Jane", "jane"),
        ("José", "Jose"),
        ("Jose\u0301", "José"),
        ("ada", "ada "),
        ("ada.", "ada"),
        ("a\u200bda", "ada"),
    ],
)
@pytest.mark.parametrize("archived", [False, True])
def test_a_name_that_reads_like_a_known_one_is_asked_about(course, tmp_path, first, later, archived):
    def hand_ins(name):
        entries = {f"{name}/01-tiny.ipynb": name}
        if archived:
            return archive(tmp_path / "in.zip", entries)
        for path, content in entries.items():
            put(tmp_path / ascii(name), path, content)
        return tmp_path / ascii(name)

    collect(course, LAB, hand_ins(first))
    (known,) = taken(course)
    (result,) = collect(course, LAB, hand_ins(later))
    assert result.status == "unclear" and taken(course) == {known: first}
    assert make_printable(first) in result.detail and f'--who "{make_printable(later)}={known}"' in result.detail
    assert statuses(course, hand_ins(later), settled={later: "another"}) == {"another": "new"}
    assert statuses(course, hand_ins(later)) == {"another": "unchanged"}, "what was settled is remembered"
    assert statuses(course, hand_ins(first)) == {known: "unchanged"}


def test_two_names_may_be_settled_as_one_student(course, source):
    put(source, "jane doe/01-tiny.ipynb", "one")
    collect(course, LAB, source)
    (source / "jane doe").rename(source / "Jane-Doe")
    put(source, "Jane-Doe/01-tiny.ipynb", "two")
    assert statuses(course, source, settled={"Jane-Doe": "jane-doe"}) == {"jane-doe": "updated"}
    course.roster.write_text("name,student,remark\nJane-Doe,jd,by hand\n")
    assert statuses(course, source) == {"jd": "new"}


def test_names_that_come_together_are_kept_apart_and_it_is_said(course, tmp_path):
    both = archive(tmp_path / "n.zip", {"jane-doe/x.ipynb": "a", "jane doe/x.ipynb": "b"})
    first, second = collect(course, LAB, both)
    assert (first.student, first.remark, second.status) == ("jane-doe", "", "new")
    assert "`jane doe` reads like `jane-doe`" in second.remark
    assert sorted(taken(course).values()) == ["a", "b"]
    assert [result.status for result in collect(course, LAB, both)] == ["unchanged", "unchanged"]


def test_a_course_from_before_there_was_a_table_of_names_goes_on(course, source):
    put(source, "Zoë.ipynb", "z")
    course.submission("Zoe", LAB).parent.mkdir(parents=True)
    assert statuses(course, source) == {"Zoe": "new"}


@pytest.mark.parametrize("text", ["", "name\nada\n", "name,student\nada,../x\n", "name,student\na,b\na,c\n", "\xff"])
def test_a_damaged_table_of_names_is_one_line(course, source, text):
    put(source, "ada.ipynb")
    course.roster.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"students\.csv"):
        collect(course, LAB, source)


def test_files_of_two_students_whose_ids_begin_alike_stay_apart(course, source):
    for name in ("jane_doe", "jane_smith", "jane_doe_01-tiny (1)", "kim_01-tiny"):
        put(source, f"{name}.ipynb", name)
    results = {result.student: result for result in collect(course, LAB, source)}
    assert taken(course) == {"jane_doe": "jane_doe_01-tiny (1)", "jane_smith": "jane_smith", "kim": "kim_01-tiny"}
    assert results["jane_doe"].remark == "took `jane_doe_01-tiny (1).ipynb`, not `jane_doe.ipynb`"


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


def test_a_checkpoint_that_was_committed_is_no_hand_in(course, source):
    put(source, "ada/.ipynb_checkpoints/01-tiny-checkpoint.ipynb", "old")
    git(source, "init", "-q", "ada")
    git(source / "ada", "add", "-f", ".")
    git(source / "ada", "commit", "-qm", "x")
    assert statuses(course, source) == {"ada": "missing"}


def test_a_zip_bomb_is_cut_off(course, tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("ada.ipynb", "w") as entry,
    ):
        for _ in range(FILE_BYTES // (1 << 20) + 20):
            entry.write(bytes(1 << 20))
    collect(course, LAB, tmp_path / "bomb.zip")
    assert course.submission("ada", LAB).stat().st_size == FILE_BYTES + 1


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


def git(folder, *arguments, **environment):
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(folder), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | environment)
    return done.stdout.strip()


def test_checkouts_count_by_their_last_commit(course, source):
    ada = put(source, "ada/work/01-tiny.ipynb", "committed")
    git(source, "init", "-q", "ada")
    git(source / "ada", "add", ".")
    git(source / "ada", "commit", "-qm", "x", GIT_COMMITTER_DATE="2026-03-04T05:06:07+01:00")
    ada.write_text("changed after the commit")
    (source / "bob").mkdir()
    git(source, "init", "-q", "bob")
    results = {r.student: r.status for r in collect(course, LAB, source)}
    assert not course.submission("bob", LAB).exists()
    assert course.submission("ada", LAB).read_text() == "committed"
    assert results["bob"] in ("missing", "skipped")


def test_penalties_go_by_when_a_commit_was_received_unless_its_own_date_is_chosen(course, source, monkeypatch):
    notebook = put(source, "ada/01-tiny.ipynb", "one")
    git(source, "init", "-q", "ada")
    git(source / "ada", "add", ".")
    git(source / "ada", "commit", "-qm", "x", GIT_COMMITTER_DATE="2026-03-04T05:06:07+01:00")

    def times(at, **options):
        monkeypatch.setattr(module, "datetime", type("Clock", (), {"now": lambda zone: at}))
        (result,) = collect(course, LAB, source, **options)
        folder = course.submission("ada", LAB).parent
        return [(folder / f"{name}.txt").read_text() for name in ("timestamp", "received", "committed")], result

    first, later = datetime(2026, 3, 5, 9, tzinfo=UTC), datetime(2026, 3, 9, tzinfo=UTC)
    received, committed = "2026-03-05 09:00:00 UTC\n", "2026-03-04 04:06:07 UTC\n"
    written, result = times(first)
    assert written == [received, received, committed]
    assert received.strip() in result.remark and committed.strip() in result.remark
    assert times(later)[0] == [received, received, committed], "collected again, received once"
    assert times(later, time=COMMIT)[0] == [committed, received, committed]
    notebook.write_text("two")
    git(source / "ada", "commit", "-qam", "y", GIT_COMMITTER_DATE="2026-03-04T05:06:08+01:00")
    assert times(later)[0][0] == "2026-03-09 00:00:00 UTC\n"


@pytest.mark.parametrize("name", ["01-tiny.ipynb", "[01]-tiny*.ipynb", ":(top)x.ipynb", "-x.ipynb"])
def test_a_checkout_with_a_damaged_notebook_or_an_odd_time_does_not_stop_the_others(course, source, name):
    for student in ("ada", "bob", "cy"):
        put(source, f"{student}/{name}", student)
        git(source, "init", "-q", student)
        git(source / student, "add", ".")
        date = "@99999999999999 +0000" if student == "bob" else "2026-03-04T05:06:07+01:00"
        git(source / student, "commit", "-qm", "x", GIT_COMMITTER_DATE=date)
    blob = git(source / "cy", "rev-parse", f"HEAD:{name}")
    packed = source / "cy" / ".git" / "objects" / blob[:2] / blob[2:]
    packed.chmod(0o644)
    packed.write_bytes(packed.read_bytes()[:-4])  # its size can still be read, its content cannot
    results = {r.student: (r.status, r.detail) for r in collect(course, LAB, source)}
    assert results["ada"][0] == results["bob"][0] == "new"
    assert results["cy"][0] == "skipped" and "git" in results["cy"][1]
    assert course.submission("ada", LAB).with_name("committed.txt").read_text() == "2026-03-04 04:06:07 UTC\n"
    assert not course.submission("bob", LAB).with_name("committed.txt").exists()
    assert course.submission("bob", LAB).with_name("timestamp.txt").exists(), "an odd date is no way round a deadline"


def test_a_checkout_cannot_make_git_run_anything(course, source, tmp_path):
    put(source, "mallory/01-tiny.ipynb", "m")
    git(source, "init", "-q", "mallory")
    git(source / "mallory", "add", ".")
    git(source / "mallory", "commit", "-qm", "x")
    mark = tmp_path / "ran"
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "diff.external", "filter.x.smudge", "core.editor"):
        git(source / "mallory", "config", key, f"touch {mark}")
    put(source, "mallory/.git/hooks/post-checkout", f"#!/bin/sh\ntouch {mark}\n").chmod(0o755)
    collect(course, LAB, source)
    assert course.submission("mallory", LAB).read_text() == "m"
    assert not mark.exists()


def said(course, source, **options):
    return {result.student: result for result in collect(course, LAB, source, **options)}


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
    [("Nov 20, 2026 1145 PM", "Nov 21, 2026 745 AM"), ("December 9, 2026 2359", "January 1, 2027 0001")],
)
def test_a_brightspace_export_takes_the_last_attempt_of_each_student(course, tmp_path, first, last):
    entries = {
        f"12-88 - Ada Lovelace - {last}/01-tiny.ipynb": "last",
        f"12-88 - Ada Lovelace - {first}/01-tiny.ipynb": "first",
        f"13-88 - Bob - {first} - 01-tiny.ipynb": "flat",
        "index.html": "",
    }
    results = said(course, archive(tmp_path / "d.zip", entries))
    assert taken(course) == {"Ada-Lovelace-12": "last", "Bob-13": "flat"}
    assert [(r.status, r.detail) for r in results.values() if not r.student] == [("aside", "`index.html`")]


def test_names_in_a_moodle_export_may_hold_underscores_and_begin_with_a_dot(course, tmp_path):
    entries = {
        ". Priya_4711_assignsubmission_file_/01-tiny.ipynb": "p",
        "O_Neil_4712_assignsubmission_file_01-tiny.ipynb": "o",
        "O_Neil_4712_assignsubmission_onlinetext_/onlinetext.html": "",
    }
    collect(course, LAB, archive(tmp_path / "m.zip", entries))
    assert taken(course) == {"Priya-4711": "p", "O_Neil-4712": "o"}


def test_checkouts_as_github_classroom_clones_them_are_named_by_the_student(course, tmp_path):
    folder = tmp_path / "tiny-lab-submissions"
    for name in ("tiny-lab-ada", "tiny-lab-bob", "cy"):
        put(folder, f"{name}/01-tiny.ipynb", name)
        git(folder, "init", "-q", name)
        git(folder / name, "add", ".")
        git(folder / name, "commit", "-qm", "x")
    assert statuses(course, folder) == {"ada": "new", "bob": "new", "cy": "new"}


def test_what_lies_beside_checkouts_and_is_none_is_told(course, source):
    for path in ("ada/01-tiny.ipynb", "bob/01-tiny.ipynb", "cy_01-tiny.ipynb", "roster.csv"):
        put(source, path)
    git(source, "init", "-q", "ada")
    git(source / "ada", "add", ".")
    git(source / "ada", "commit", "-qm", "x")
    assert statuses(course, source) == {"ada": "new", "bob": "skipped", "cy_01-tiny.ipynb": "skipped"}


@pytest.mark.parametrize(
    "names",
    [
        ("ada/01-tiny.ipynb", "bob/01-tiny.ipynb", "cy/essay.pdf"),
        ("ada_01-tiny.ipynb", "bob_01-tiny.ipynb"),
        ("Ada_4711_assignsubmission_file_/01-tiny.ipynb", "Bob_4712_assignsubmission_file_/01-tiny.ipynb"),
        ("ada_4711_1_01-tiny.ipynb", "bob_4712_2_01-tiny.ipynb"),
    ],
)
def test_a_class_within_one_folder_is_not_taken_for_one_student(course, tmp_path, names):
    whole = archive(tmp_path / "w.zip", {f"hand-ins/{name}": name for name in names})
    with pytest.raises(InputError, match=r"everything lies in one folder: got hand-ins.*--who \"hand-ins=STUDENT"):
        collect(course, LAB, whole)
    assert course.students(LAB) == []
    assert statuses(course, whole, settled={"hand-ins": "kim"}) == {"kim": "new"}
    assert statuses(course, whole) == {"kim": "unchanged"}, "it is known whose it is"


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


def unpacked(folder, entries):
    for name, content in entries.items():
        put(folder, name, content)
    return folder


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
    assert results == [("01-tiny (1).ipynb", "skipped", "it names no student"), ("ada", "new", "ada.ipynb")]


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


def test_a_time_in_what_a_platform_exports_is_the_students_own(course, source):
    put(source, "Ada_4711_assignsubmission_file_/01-tiny.ipynb")
    put(source, "Ada_4711_assignsubmission_file_/timestamp.txt", "2020-01-01 00:00:00 UTC")
    collect(course, LAB, source)
    assert course.handed_in("Ada-4711", LAB) is None


def test_a_time_that_is_yet_to_come_is_told(course, source):
    put(source, "ada/01-tiny.ipynb")
    put(source, "ada/timestamp.txt", "2199-01-01 00:00:00 UTC")
    assert "yet to come" in said(course, source)["ada"].remark


def test_a_name_that_cannot_be_printed_is_settled_as_it_was_printed(course, tmp_path):
    put(tmp_path / "1", "ada/01-tiny.ipynb")
    put(tmp_path / "2", "\u200fada/01-tiny.ipynb")
    collect(course, LAB, tmp_path / "1")
    (result,) = collect(course, LAB, tmp_path / "2")
    assert result.status == "unclear" and '--who "?ada=ada"' in result.detail
    assert statuses(course, tmp_path / "2", settled={"?ada": "ada"}) == {"ada": "unchanged"}
    assert statuses(course, tmp_path / "2") == {"ada": "unchanged"}
