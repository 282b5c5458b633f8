"""The whole suite in two runs of pytest: `python -m tests.whole [pytest's arguments]`, as `make test` does.

The first spreads the tests over processes of one thread each, file by file. The second runs, one after the other, those
that need the machine to themselves. Both take the same arguments. At the end stands where the time went.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.times import read_times, summarise

PROCESSES = min(4, 1 + (os.cpu_count() or 1))
"""One more than there are cores, since tests wait for what they start; about 2 GB each."""
SPREAD = ["--part=spread", f"--numprocesses={PROCESSES}", "--dist=loadfile", "--no-loadscope-reorder"]
ALONE = ["--part=alone"]


def run(arguments: list[str], **environment: str) -> int:
    """One run of pytest; returns its exit status.

    Whatever the environment says, bytecode is kept: else each of a thousand processes compiles what it imports anew.
    """
    command = [sys.executable, "-m", "pytest", *arguments]
    keeping = {"PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(command, env=os.environ | keeping | environment, check=False).returncode


def status(runs: list[int]) -> int:
    """The first failure; a run that found nothing to do is one only if all did."""
    failed = [code for code in runs if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)]
    return failed[0] if failed else min(runs)


def main(given: list[str]) -> int:
    """Both runs, then seconds by folder; returns the exit status of the whole."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.jsonl"
        times.touch()
        noted = [f"--times={times}", *given]
        code = status([run([*SPREAD, *noted], OMP_NUM_THREADS="1"), run([*ALONE, *noted])])
        print(f"\n{summarise(read_times(times))}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
