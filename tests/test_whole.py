"""`make test`: two runs of pytest that together run every test once, one exit status, and where the time went."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.times import BUDGETS_S, FIRST, PROCESSES, WHOLE_S, add_times, folder_of, read_times, summarise, turn_of
from tests.whole import status

PROJECT = Path(__file__).parents[1]


def collect(*arguments: str) -> tuple[list[str], str]:
    """The tests that a run would have, and pytest's last line on how many."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *arguments]
    lines = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if "::" in line], lines[-1]


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """All tests of the suite that need the machine to themselves, weekly ones too."""
    return collect("--part=alone", "--weekly")[0]


def test_every_test_belongs_to_one_of_the_two_runs(alone):
    both = ["tests/stack/test_artifact.py", "tests/grader/speed/test_bench.py"]
    spread, told = collect("--part=spread", "--weekly", *both)
    theirs = [name for name in alone if name.startswith(tuple(both))]
    assert spread and all(name.startswith(both[0]) for name in spread)
    assert theirs and all(name.startswith(both[1]) for name in theirs)
    assert f"{len(spread)}/{len(spread) + len(theirs)} tests collected ({len(theirs)} deselected)" in told


def test_what_is_left_to_the_weekly_run_is_in_no_other():
    file = "tests/scaling/test_bootstrap.py"
    every, weekly, both = (collect(*options, file)[0] for options in ((), ("--weekly", "-m", "weekly"), ("--weekly",)))
    assert every and weekly and sorted([*every, *weekly]) == sorted(both)


def test_every_file_with_a_test_that_stands_alone_is_read_for_the_run_of_those(alone):
    files = [file for file in (PROJECT / "tests").rglob("test_*.py") if file != Path(__file__)]
    marked = {file for file in files if "mark.alone" in file.read_text(encoding="utf-8")}
    assert {PROJECT / name.split("::")[0] for name in alone} == marked


@pytest.mark.parametrize(
    ("runs", "whole"), [([0, 0], 0), ([0, 5], 0), ([5, 0], 0), ([5, 5], 5), ([1, 0], 1), ([0, 1], 1), ([5, 2], 2)]
)
def test_one_failure_fails_the_whole_and_a_run_without_tests_does_not(runs, whole):
    assert status(runs) == whole


def test_every_folder_has_a_budget_and_all_together_stay_under_the_whole():
    folders = {folder_of(str(file.relative_to(PROJECT))) for file in (PROJECT / "tests").rglob("test_*.py")}
    assert folders == set(BUDGETS_S)
    assert sum(BUDGETS_S.values()) / PROCESSES <= WHOLE_S


def test_the_files_to_begin_with_are_there_and_come_before_the_slowest_folder():
    assert all((PROJECT / file).is_file() for file in FIRST)
    slowest = max(BUDGETS_S, key=BUDGETS_S.__getitem__)
    others = [f"tests/{slowest}/test_a.py", "tests/hardware/test_a.py"]
    assert sorted([*others[::-1], *FIRST[::-1]], key=turn_of) == [*FIRST, *others]


def report(test, time_s, when="call"):
    return pytest.TestReport(test, ("", 0, ""), {}, "passed", None, when, duration=time_s)


def test_times_are_summed_by_test_and_by_folder_beside_their_budget(tmp_path):
    slow, quick, bare = (
        "tests/stack/test_a.py::test_slow",
        "tests/stack/sub/test_b.py::test_quick",
        "tests/test_c.py::test_c",
    )
    add_times([report(slow, 5.0, "setup"), report(slow, BUDGETS_S["stack"])], tmp_path / "times")
    add_times([report(quick, 0.25), report(bare, 0.5)], tmp_path / "times")
    seconds = read_times(tmp_path / "times")
    assert seconds == {slow: BUDGETS_S["stack"] + 5, quick: 0.25, bare: 0.5}
    lines = [line.split() for line in summarise(seconds).splitlines()]
    assert lines[1] == ["stack", "2", "25", "20", "over", "its", "budget"]
    assert lines[2] == ["tests", "1", "0", f"{BUDGETS_S['tests']}"]
    assert lines[-3:] == [["25.0", "s", slow], ["0.5", "s", bare], ["0.2", "s", quick]]


def test_a_run_notes_its_times(tmp_path):
    times = tmp_path / "times"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--times={times}",
        "tests/test_errors.py",
    ]
    subprocess.run(command, cwd=PROJECT, capture_output=True, check=True)
    noted = read_times(times)
    assert len(noted) == 6 and set(map(folder_of, noted)) == {"tests"}
