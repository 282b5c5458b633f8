"""Checkouts of a class, one Git repository for each student."""

from datetime import UTC, datetime

import pytest

from mlsys_grader.intake import collect as module
from mlsys_grader.intake.collect import COMMIT, collect
from tests.grader.intake.submitted import LAB, git, put, statuses


def test_a_checkpoint_that_was_committed_is_no_hand_in(course, source):
    put(source, "ada/.ipynb_checkpoints/01-tiny-checkpoint.ipynb", "old")
    git(source, "init", "-q", "ada")
    git(source / "ada", "add", "-f", ".")
    git(source / "ada", "commit", "-qm", "x")
    assert statuses(course, source) == {"ada": "missing"}


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
    packed.write_bytes(packed.read_bytes()[:-8])  # its size can still be read, its content cannot
    results = {r.student: (r.status, r.detail) for r in collect(course, LAB, source)}
    assert results["ada"][0] == results["bob"][0] == "new"
    assert results["cy"][0] == "skipped" and "Git repository is damaged" in results["cy"][1]
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
