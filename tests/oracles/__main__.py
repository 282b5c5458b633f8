"""Runs the tests of published figures and prints the score: `python -m tests.oracles`."""

from __future__ import annotations

import sys
from collections import defaultdict

import pytest
from rich.console import Console
from rich.table import Table

from tests.oracles.catalogue import HERE, IN_A_NAME, STATES, oracles


class Score:
    """A plugin that notes, for each oracle, whether every test that names it passed."""

    def __init__(self) -> None:
        self.passed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A figure holds when its tests ran and none of their phases failed or was skipped."""
        if "test_score.py" not in report.nodeid and (report.when == "call" or not report.passed):
            name = report.nodeid.rpartition("::")[2].upper().replace("_", " ")
            for oracle in IN_A_NAME.findall(name):
                self.passed[oracle] = self.passed.get(oracle, True) and report.passed


def table(passed: dict[str, bool]) -> Table:
    """By topic: figures that the package, a page or nobody computes, left to a later topic, failing, all."""
    columns = (*STATES, "failing")
    rows: dict[str, list[int]] = defaultdict(lambda: [0] * len(columns))
    for oracle in oracles().values():
        held = oracle.owner or passed.get(oracle.id, False)
        rows[oracle.topic][columns.index(oracle.state if held else "failing")] += 1
    made = Table("topic", *columns, "total")
    for column in made.columns[1:]:
        column.justify = "right"
    for topic, counts in rows.items():
        made.add_row(topic, *map(str, counts), str(sum(counts)))
    sums = [sum(column) for column in zip(*rows.values(), strict=True)]
    made.add_section()
    made.add_row("all", *map(str, sums), str(sum(sums)))
    return made


def main() -> int:
    """Exit status of the tests."""
    score = Score()
    status = pytest.main(["-q", "--no-header", str(HERE)], plugins=[score])
    Console().print(table(score.passed))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
