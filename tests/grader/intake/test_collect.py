import os
import stat
import subprocess
import zipfile

import pytest

from mlsys_grader.course.folder import Course
from mlsys_grader.intake.collect import collect, count_statuses
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
    assert dict(count_statuses(results)) == {"skipped": 4}
    assert {path for path in tmp_path.rglob("*") if "course" not in path.parts} == before
    assert course.students(LAB) == []


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
    stamp = course.submission("ada", LAB).with_name("timestamp.txt").read_text()
    assert stamp == "2026-03-04 04:06:07 UTC\n"
    assert results["bob"] in ("missing", "skipped")


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
    assert course.submission("ada", LAB).with_name("timestamp.txt").read_text() == "2026-03-04 04:06:07 UTC\n"
    assert not course.submission("bob", LAB).with_name("timestamp.txt").exists()


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
