"""Goals of a bench command: a table of what was measured next to them, and with `--record` a record of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from mlsys_lab.benchmark import new_record

RECORDS = Path(__file__).parent / "speed"
BOOK_RECORDS = Path(__file__).parents[2] / "book" / "data" / "measurements"
"""Where records lie that a chapter quotes."""
HELP = "write the measurements to tests/bench/speed"


class Goal(NamedTuple):
    """A bound of a ratio: at least `value` (">="), at most `value` ("<="), or 1 within `value` ("+-")."""

    sign: str
    value: float

    def is_met(self, measured: float) -> bool:
        """Whether a measurement reaches the goal."""
        if self.sign == "+-":
            return abs(measured - 1) <= self.value
        return measured >= self.value if self.sign == ">=" else measured <= self.value

    def __str__(self) -> str:
        return f"1 ± {self.value:g}" if self.sign == "+-" else f"{self.sign} {self.value:g}"


def conclude(
    script: str, title: str, goals: Mapping[str, Goal], columns: Mapping[str, Mapping[str, float]], *, record: bool
) -> int:
    """Print what was measured in each column; return exit code 1 if a goal is missed."""
    table = Table("", "goal", *columns, title=title)
    met = []
    for name, goal in goals.items():
        met += [goal.is_met(one[name]) for one in columns.values()]
        cells = (f"{one[name]:.3g}{'' if goal.is_met(one[name]) else ' MISSED'}" for one in columns.values())
        table.add_row(name, str(goal), *cells)
    Console(width=120).print(table)
    if record:
        parameters = {
            name: {"goal": str(goal)} | {column: round(one[name], 4) for column, one in columns.items()}
            for name, goal in goals.items()
        }
        path = new_record(
            f"speed-{script.replace('_', '-')}",
            title,
            [sum(met) / len(met)],
            unit="fraction of goals met",
            better="higher",
            command=f"python -m tests.bench.{script} --record",
            seed=0,
            parameters=parameters,
        ).save(RECORDS)
        print(f"recorded in {path.name}", file=sys.stderr)
    return int(not all(met))
