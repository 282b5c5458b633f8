"""`make test`: two runs of pytest that together run every test once, and one exit status."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.whole import status

PROJECT = Path(__file__).parents[1]
FILES = ["tests/stack/test_artifact.py", "tests/hardware/test_cpu.py"]


def collected(*options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *options, *FILES]
    told = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    return [line for line in told.splitlines() if "::" in line]


def test_every_test_belongs_to_one_of_the_two_runs():
    spread, alone = collected("--part=spread"), collected("--part=alone")
    assert spread and all(name.startswith(FILES[0]) for name in spread)
    assert alone and all(name.startswith(FILES[1]) for name in alone)
    assert spread + alone == collected()


@pytest.mark.parametrize(
    ("runs", "whole"), [([0, 0], 0), ([0, 5], 0), ([5, 0], 0), ([5, 5], 5), ([1, 0], 1), ([0, 1], 1), ([5, 2], 2)]
)
def test_one_failure_fails_the_whole_and_a_run_without_tests_does_not(runs, whole):
    assert status(runs) == whole
