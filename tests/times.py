"""Where the suite's time goes: seconds of test time by folder beside a budget, and the slowest tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

BUDGETS_S = {
    "autograd": 30,
    "benchmark": 10,
    "book": 110,
    "capstone": 35,
    "checks": 30,
    "cli": 140,
    "comm": 40,
    "configs": 5,
    "diffusion": 40,
    "e2e": 600,
    "efficiency": 45,
    "flops": 20,
    "grader": 772,
    "hardware": 10,
    "inference": 260,
    "kernels": 245,
    "labs": 218,
    "models": 15,
    "oracles": 180,
    "parallel": 75,
    "scaling": 80,
    "stack": 20,
    "tests": 50,
    "widgets": 210,
}
"""Seconds of test time that a folder may take on two quiet cores shared by three processes; `tests` has the files that
lie in no folder. All together stay under `WHOLE_S` of wall time. Over budget is said, and fails nothing: no test
depends on how fast a machine is."""
PROCESSES, WHOLE_S = 3, 18 * 60
FIRST = (
    "tests/e2e/test_site.py",  # builds the site: whoever else wants it meanwhile would wait for it, a core idle
    "tests/labs/test_checks_discriminate.py",
    "tests/labs/test_notebooks.py",
    "tests/e2e/test_learner_journey.py",
)
"""Files to begin with where tests are spread: a file is the work of one process, and a long one would end alone."""
SLOWEST = 20


def folder_of(test: str) -> str:
    """The folder of `tests/` that a test (`tests/labs/test_a.py::test_b`) is budgeted with."""
    parts = Path(test.split("::")[0]).parts
    return parts[1] if len(parts) > 2 else "tests"


def turn_of(file: str) -> tuple[int, int]:
    """A key to sort the files by whose tests are spread: `FIRST`, then those of the folder with the largest budget."""
    return FIRST.index(file) if file in FIRST else len(FIRST), -BUDGETS_S.get(folder_of(file), 0)


def add_times(reports: Iterable[pytest.TestReport], file: Path) -> None:
    """Append one line of JSON for each phase of each test: the test and its seconds."""
    with file.open("a", encoding="utf-8") as out:
        for report in reports:
            out.write(json.dumps([report.nodeid, report.duration]) + "\n")


def read_times(file: Path) -> Counter[str]:
    """Seconds by test, all of its phases and all that its fixtures took for the first to ask for them."""
    seconds: Counter[str] = Counter()
    for line in file.read_text(encoding="utf-8").splitlines():
        test, time_s = json.loads(line)
        seconds[test] += time_s
    return seconds


def summarise(seconds: Mapping[str, float]) -> str:
    """Lines to print: each folder's tests and seconds beside its budget, then the slowest tests."""
    tests = Counter(map(folder_of, seconds))
    taken: Counter[str] = Counter()
    for test, time_s in seconds.items():
        taken[folder_of(test)] += time_s
    lines = [f"{'folder':12} {'tests':>6} {'seconds':>8} {'budget':>7}"]
    for folder, time_s in taken.most_common():
        budget = BUDGETS_S.get(folder, 0)
        over = "  over its budget" if time_s > budget else ""
        lines.append(f"{folder:12} {tests[folder]:6} {time_s:8.0f} {budget:7}{over}")
    lines.append(f"{'all':12} {tests.total():6} {taken.total():8.0f} {sum(BUDGETS_S.values()):7}")
    slowest = sorted(seconds.items(), key=lambda pair: -pair[1])[:SLOWEST]
    return "\n".join([*lines, "", f"the slowest {len(slowest)}", *(f"{s:8.1f} s  {test}" for test, s in slowest)])
