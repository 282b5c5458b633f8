"""The whole suite in two runs of pytest: `python -m tests.whole [pytest's arguments]`, as `make test` does.

The first spreads the tests over processes of one thread each, file by file. The second runs, one after the other, those
that need the machine to themselves. Both take the same arguments.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROCESSES = min(4, os.cpu_count() or 1)  # about 2 GB each
SPREAD = ["--part=spread", f"--numprocesses={PROCESSES}", "--dist=loadfile", "--no-loadscope-reorder"]
ALONE = ["--part=alone"]


def run(arguments: list[str], **environment: str) -> int:
    """One run of pytest; returns its exit status."""
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, env=os.environ | environment, check=False).returncode


def status(runs: list[int]) -> int:
    """The first failure; a run that found nothing to do is one only if all did."""
    failed = [code for code in runs if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)]
    return failed[0] if failed else min(runs)


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(status([run([*SPREAD, *given], OMP_NUM_THREADS="1"), run([*ALONE, *given])]))
