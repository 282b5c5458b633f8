"""The workflow that runs the kernels' tests against the newest releases: weekly, read-only, and really the newest."""

import re
from pathlib import Path

import pytest
import yaml

from tests.kernels.making import told_by_make

PROJECT = Path(__file__).parents[2]
FLOW = yaml.safe_load((PROJECT / ".github/workflows/kernels.yml").read_text())
TRIGGERS = FLOW[True]  # YAML reads `on` as a truth value


def test_it_runs_once_a_week_and_when_asked_to():
    assert set(TRIGGERS) == {"schedule", "workflow_dispatch"}
    (schedule,) = TRIGGERS["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", schedule["cron"])


def test_it_may_only_read_and_calls_the_make_target():
    assert FLOW["permissions"] == {"contents": "read"}
    (job,) = FLOW["jobs"].values()
    assert "permissions" not in job and "continue-on-error" not in job
    checkout, _, run = job["steps"]
    assert checkout["with"] == {"persist-credentials": False} and run == {"run": "make newest"}


def test_it_tries_the_oldest_python_and_a_newer_one():
    (job,) = FLOW["jobs"].values()
    oldest, newer = job["strategy"]["matrix"]["python"]
    assert f'requires-python = ">={oldest}"' in (PROJECT / "pyproject.toml").read_text()
    assert float(newer) > float(oldest)


def test_the_target_takes_no_constraints_and_runs_the_kernels_tests():
    listed = told_by_make(PROJECT, "newest")
    assert "constraint" not in listed and "--upgrade-strategy eager" in listed and "kernels" in listed
    folders = re.search(r"-m pytest +(.*)", listed)[1].split()
    assert "tests/kernels" in folders and all((PROJECT / folder).is_dir() for folder in folders)


@pytest.mark.parametrize("lab", ("gpu_model", "cuda", "triton"))
def test_the_kernels_labs_are_taken_as_soon_as_they_have_tests(lab):
    listed = told_by_make(PROJECT, "newest")
    assert (f"tests/labs/{lab}" in listed) == (PROJECT / "tests/labs" / lab).is_dir()
