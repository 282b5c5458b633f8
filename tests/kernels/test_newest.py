"""The workflow that runs the kernels' tests against the newest releases: weekly, read-only, and really the newest."""

import re
import shlex
from pathlib import Path

import yaml

from tests.kernels.making import told_by_make

PROJECT = Path(__file__).parents[2]
FLOW = yaml.safe_load((PROJECT / ".github/workflows/kernels.yml").read_text())
TRIGGERS = FLOW[True]  # YAML reads `on` as a truth value


def given_to_pytest(listed: str) -> list[str]:
    """What pytest is given at the end of the target."""
    return shlex.split(re.search(r"-m pytest +(.*)", listed)[1])


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
    assert "tests/kernels" in given_to_pytest(listed)


def test_every_lab_that_asks_for_kernels_is_among_them():
    taken = given_to_pytest(told_by_make(PROJECT, "newest"))
    labs = PROJECT / "tests/labs"
    for source in (PROJECT / "solutions").glob("*/lab.toml"):
        topic = source.parent.name[3:]
        of_kernels = "mlsys_lab.kernels" in source.read_text()
        passes = f"tests/labs/test_checks_discriminate.py::test_the_reference_passes_everything[{topic}]"
        assert (passes in taken) == of_kernels
        own = {str(path.relative_to(PROJECT)) for path in labs.glob(f"{topic.replace('-', '_')}/test_*.py")}
        assert own & set(taken) == (own if of_kernels else set())
    assert "@each_lab\ndef test_the_reference_passes_everything(" in (labs / "test_checks_discriminate.py").read_text()
