"""The workflow that runs bundles again: no secret, read-only, and of a pull request nothing but its bundles."""

import re
import shutil
import subprocess
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[3]
TEXT = (PROJECT / ".github/workflows/leaderboard.yml").read_text()
FLOW = yaml.safe_load(TEXT)


def test_it_holds_no_secret_and_may_only_read():
    assert "secrets" not in re.sub(r"#.*", "", TEXT) and "TOKEN" not in TEXT and "github.token" not in TEXT
    assert FLOW["permissions"] == {"contents": "read"}
    assert list(FLOW[True]) == ["pull_request"]  # YAML reads `on` as a truth value


def test_the_course_is_that_before_the_pull_request_and_of_it_only_bundles_are_there():
    (job,) = FLOW["jobs"].values()
    assert job["runs-on"] == "ubuntu-24.04" and "permissions" not in job
    course, entries = (step["with"] for step in job["steps"] if "checkout" in step.get("uses", ""))
    assert course == {"ref": "${{ github.event.pull_request.base.sha }}", "persist-credentials": False}
    assert entries == {"path": "build/entries", "sparse-checkout": "book/data/bundles", "persist-credentials": False}
    ran = [step["run"] for step in job["steps"] if "run" in step]
    assert ran == ["make allow-sandbox", "make packages", "make leaderboard IN=build/entries/book/data/bundles"]


def test_bundles_that_are_new_or_changed_are_run_again(tmp_path):
    """In a checkout whose command prints its arguments."""
    shutil.copy(PROJECT / "Makefile", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    command = tmp_path / ".venv/bin/mlsys-grader"
    command.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    command.chmod(0o755)
    for folder, files in {"book/data/bundles": "ab", "entries": "abc"}.items():
        (tmp_path / folder).mkdir(parents=True)
        for name in files:
            (tmp_path / folder / f"{name}.json").write_text(folder if name == "b" else name)
    for name in ("pyproject.toml", "constraints.txt", ".venv/.ready"):
        (tmp_path / name).touch()
    make = ["make", "--silent", "leaderboard", "IN=entries"]
    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["leaderboard", "entries/b.json", "entries/c.json"]
    for name in "bc":
        (tmp_path / f"entries/{name}.json").unlink()
    assert subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == ""
