"""Git repositories are read as Git reads them, without Git; what cannot be read is one line."""

import os
from datetime import datetime

import pytest

from mlsys_grader.intake.collect import COMMIT, collect
from mlsys_grader.intake.repository import find_commit_time, list_notebooks, read_notebook
from tests.grader.intake.submitted import LAB, git, put, said

DAY = 86_400
PATH = "work/01-tiny.ipynb"


@pytest.fixture
def commit(source):
    """Commit a text at a path of ada's repository, a day after the last."""
    git(source, "init", "-q", "-b", "main", "ada")
    days = iter(range(1, 1000))

    def make(text, path=PATH):
        put(source / "ada", path, text)
        git(source / "ada", "add", ".")
        git(source / "ada", "commit", "-qm", "x", GIT_COMMITTER_DATE=f"@{DAY * next(days)} +0000")

    return make


def read(checkout, path=PATH):
    """Content of the notebook and day of its last commit, which are Git's own."""
    ((found, blob),) = list_notebooks(checkout)
    assert found == path and blob == git(checkout, "rev-parse", f"HEAD:{path}")
    time = datetime.fromisoformat(find_commit_time(checkout, path)).timestamp()
    assert time == int(git(checkout, "log", "-1", "--format=%ct", "HEAD", "--", path))
    return read_notebook(checkout, blob).decode(), time / DAY


LINES = [f"{number}: {number**3}\n" for number in range(2000)]


def test_loose_and_packed_objects_and_refs(source, commit):
    for number in range(20):
        commit("".join([*LINES[:number], "changed\n", *LINES[number:]]))
    commit("other", "notes.txt")
    loose = read(source / "ada")
    assert loose == ("".join([*LINES[:19], "changed\n", *LINES[19:]]), 20)
    git(source / "ada", "gc", "-q", "--aggressive")
    assert not (source / "ada" / ".git" / "refs" / "heads" / "main").exists()
    assert "chain length" in git(source / "ada", "verify-pack", "-v", str(next((source / "ada").glob(".git/**/*.idx"))))
    assert read(source / "ada") == loose
    commit("loose, on top of a pack")
    assert read(source / "ada") == ("loose, on top of a pack", 22)


def test_a_detached_head_and_the_end_of_a_shallow_clone(source, commit):
    for text in "one", "two", "three":
        commit(text)
        commit(text, "notes.txt")
    git(source / "ada", "checkout", "-q", "HEAD~2")
    assert read(source / "ada") == ("two", 3)
    git(source, "clone", "-q", "--depth", "1", f"file://{source}/ada", "shallow")
    assert read(source / "shallow") == ("two", 4)


def test_a_merge_that_took_a_notebook_did_not_change_it(source, commit):
    commit("base")
    git(source / "ada", "checkout", "-qb", "side")
    commit("side")
    git(source / "ada", "checkout", "-q", "main")
    commit("main", "notes.txt")
    git(source / "ada", "merge", "-q", "side", "-m", "merged", GIT_COMMITTER_DATE=f"@{DAY * 100} +0000")
    assert read(source / "ada") == ("side", 2)


def test_submodules_links_and_checkpoints_are_no_notebooks(source, commit):
    (source / "ada" / "link.ipynb").symlink_to("work/01-tiny.ipynb")
    put(source / "ada", ".ipynb_checkpoints/01-tiny-checkpoint.ipynb")
    commit("mine")
    head = git(source / "ada", "rev-parse", "HEAD")
    git(source / "ada", "update-index", "--add", "--cacheinfo", f"160000,{head},module.ipynb")
    git(source / "ada", "commit", "-qm", "module")
    assert read(source / "ada") == ("mine", 1)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda git_: (git_ / "HEAD").unlink(), "its folder .git holds no Git repository"),
        (lambda git_: (git_ / "HEAD").write_text("ref: refs/../../x\n"), "its repository has no commit"),
        (lambda git_: (git_ / "HEAD").write_text("f" * 40), "of its Git repository is missing"),
        (lambda git_: (git_ / "HEAD").write_text("f" * 64), "in a format that is not read; help: ask for a clone in"),
        (lambda git_: ((git_ / "HEAD").write_text("ref: refs/heads/.invalid"), (git_ / "reftable").mkdir()), "format"),
        (lambda git_: (git_ / "objects" / "info" / "alternates").write_text("x"), "its repository is not its own"),
        (lambda git_: (git_ / "refs" / "heads" / "main").unlink(), "its repository has no commit"),
        (lambda git_: os.mkfifo(git_ / "packed-refs"), None),
        (lambda git_: put(git_, "objects/pack/pack-x.idx") and put(git_, "objects/pack/pack-x.pack"), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_the_others_go_on(course, source, commit, damage, why):
    commit("mine")
    (source / "ada").rename(source / "zoe")
    git(source, "init", "-q", "bob")
    git(source, "clone", "-q", str(source / "zoe"), "ada")
    damage(source / "zoe" / ".git")
    results = said(course, source)
    assert results["ada"].status == "new"
    assert (why or "") in (results["zoe"].detail if why is None else collected(course, source, "zoe"))


def collected(course, source, student):
    return "\n".join(result.detail for result in collect(course, LAB, source) if result.student == student)


def test_a_history_that_is_too_long_to_search_leaves_the_time_of_receipt(course, source, commit, monkeypatch):
    monkeypatch.setattr("mlsys_grader.intake.repository.MAX_COMMITS", 2)
    for text in ("mine", "one", "two", "three"):
        commit(text, PATH if text == "mine" else "notes.txt")
    assert find_commit_time(source / "ada", PATH) == ""
    monkeypatch.setattr("mlsys_grader.intake.checkouts.run_bounded", lambda function, *arguments: function(*arguments))
    (result,) = collect(course, LAB, source, time=COMMIT)
    assert "committed at no time that there is" in result.remark
    assert not course.submission("ada", LAB).with_name("committed.txt").exists()
