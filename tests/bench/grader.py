"""What the grader promises about speed, memory and scale, against stock nbgrader on the same submissions in one run.

    python tests/bench/grader.py [--submissions N] [--json FILE] [--record]

Prints asked against measured and exits with 1 if a goal is missed; --json writes the measurement records as a list,
--record keeps them in tests/bench/measurements and brings the figures of grader/README.md up to them. With all 50
submissions it takes about a quarter of an hour, nearly all of it stock nbgrader's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[2])  # where `tests` is found; a script's own folder stands there

from rich.console import Console
from rich.table import Table

from mlsys_grader.course.lab import GradedLab
from mlsys_lab.benchmark import Record, new_record
from mlsys_lab.stack.labinfo import find_lab
from tests.bench.judging import ours, readme, stock, submissions
from tests.grader import classroom

SUBMISSIONS = 50
BARE = 5
"""Submissions on which stock nbgrader is also tried without the lab's own plots and demonstrations."""
MEMORY = 10
"""Submissions of lab 01 whose grading is looked at for memory."""
SMALL, LARGE = 100, 500
"""Classes of the tiny lab whose memory is compared."""


@dataclass(frozen=True)
class Line:
    """A record, and the bound that its median has to keep, if there is one."""

    record: Record
    asked: float | None = None

    @property
    def met(self) -> bool:
        if self.asked is None:
            return True
        return self.record.p50 >= self.asked if self.record.better == "higher" else self.record.p50 <= self.asked


def line(name: str, what: str, samples: list[float], unit: str, asked: float | None = None, notes: str = "") -> Line:
    better = "higher" if unit == "ratio" else "lower"
    command = " ".join(["python tests/bench/grader.py", *sys.argv[1:]])
    return Line(new_record(name, what, samples, unit=unit, better=better, command=command, seed=0, notes=notes), asked)


def against_stock(home: Path, count: int) -> list[Line]:
    """Throughput, first verdicts, overhead, scaling and gradebook, on the same submissions of lab 01."""
    submitted_at = submissions.build(count)
    mix = Counter(submission.mistake or "right" for submission in submitted_at)
    labs = home / "labs"
    classroom.released().write(labs)
    lab = GradedLab(find_lab(classroom.TOPIC, labs))
    contents = {submission.student: submission.content for submission in submitted_at}
    runs = {}
    for workers in (1, 2):
        course = ours.fill(home / f"ours-{workers}", lab, contents)
        runs[workers] = ours.grade(course, lab, "--workers", str(workers))
    stock_s = stock.autograde(home / "stock", submitted_at)
    bare = submitted_at[: min(BARE, count)]
    bare_s = stock.autograde(home / "bare", bare, only_code=True)
    theirs, mine = stock.marks(home / "stock" / "gradebook.db"), stock.marks(course.gradebook)
    differing = sorted(key for key in theirs.keys() | mine.keys() if theirs.get(key) != mine.get(key))
    cells = len(theirs.keys() | mine.keys())
    agreement = f"{cells - len(differing)} of {cells} grade cells have the same points"
    class_ = f"{count} submissions, {mix['right']} right, {count - mix['right']} with a mistake each"
    each = ours.judge_each(course, lab)
    overhead_ms = [1e3 * (wall_s - own_s) for wall_s, own_s in each]
    entered_ms = [1e3 * seconds for seconds in ours.enter_each(course, lab)]
    return [
        line(
            "grader-agreement",
            "grade cells that have the same points in stock nbgrader / all",
            [1 - len(differing) / cells],
            "ratio",
            1.0,
            f"{class_}; {agreement}{': not ' + str(differing[:5]) if differing else ''}",
        ),
        line(
            "grader-throughput",
            "throughput with a worker per core (2) / stock nbgrader autograde",
            [stock_s / runs[2].total_s],
            "ratio",
            15.0,
            f"{class_}; whole commands: stock {stock_s:.1f} s, ours {runs[2].total_s:.1f} s",
        ),
        line(
            "grader-throughput-serial",
            "throughput with one worker / stock nbgrader autograde",
            [stock_s / runs[1].total_s],
            "ratio",
            None,
            f"whole commands: stock {stock_s:.1f} s, ours {runs[1].total_s:.1f} s",
        ),
        line(
            "grader-throughput-bare",
            "the same, were the lab's plots and demonstrations not in the notebook",
            [bare_s / len(bare) / (runs[2].total_s / count)],
            "ratio",
            None,
            f"stock {bare_s / len(bare):.2f} s a submission over {len(bare)} with exported cells and tests only",
        ),
        line(
            "grader-first-check",
            "cold start to the first verdict on a check",
            [run.first_check_s for run in runs.values()],
            "s",
            4.0,
            "from the start of the process, files in the page cache; the first record's time less its later checks'",
        ),
        line(
            "grader-first-submission",
            "cold start to the first submission's record on disk",
            [run.first_submission_s for run in runs.values()],
            "s",
            4.0,
        ),
        line(
            "grader-overhead",
            "judge's overhead a submission",
            overhead_ms,
            "ms",
            60.0,
            "from giving a submission to the engine to having its verdicts, less the time during which the sandbox had "
            "been asked and had not answered (Verdict.call_s: loading and calls), one at a time",
        ),
        line(
            "grader-service",
            "judging one submission of lab 01, from the engine's getting it to its verdicts",
            [wall_s for wall_s, _ in each],
            "s",
        ),
        line(
            "grader-scaling",
            "seconds from first to last record, one worker / two",
            [runs[1].steady_s / runs[2].steady_s] if count > 1 else [1.0],
            "ratio",
            None,
            f"{runs[1].steady_s:.1f} s and {runs[2].steady_s:.1f} s; whole commands {runs[1].total_s:.1f} s and "
            f"{runs[2].total_s:.1f} s",
        ),
        line("grader-gradebook", "entering one student's marks of lab 01 into the gradebook", entered_ms, "ms"),
    ]


def memory(home: Path) -> list[Line]:
    """Peak memory with one worker and with two, and of a large class over a small one: that must not grow."""
    labs = home / "memory-labs"
    classroom.released().write(labs)
    lab = GradedLab(find_lab(classroom.TOPIC, labs))
    contents = {submission.student: submission.content for submission in submissions.build(MEMORY)}
    lines = []
    for workers in (1, 2):
        peak = ours.peak_memory(ours.fill(home / f"memory-{workers}", lab, contents), lab, "--workers", str(workers))
        lines.append(
            line(
                f"grader-memory-{workers}",
                f"peak private memory with {workers} worker{'s' if workers > 1 else ''}, lab 01",
                [peak.size_bytes / 1e6],
                "MB",
                None,
                f"{MEMORY} submissions; grader, gradebook's process, sandbox and what runs in it: {peak.processes} "
                "processes",
            )
        )
    tiny, content = submissions.tiny(home / "tiny-labs")
    peaks = []
    for count in (SMALL, LARGE):
        course = ours.fill(home / f"tiny-{count}", tiny, {f"student-{number:03}": content for number in range(count)})
        peaks.append(ours.peak_memory(course, tiny, "--workers", "2").size_bytes)
    growth = line(
        "grader-memory-growth",
        f"peak private memory for {LARGE} submissions / for {SMALL}",
        [peaks[1] / peaks[0]],
        "share",
        1.1,
        f"tiny lab, 2 workers: {peaks[1] / 1e6:.0f} MB and {peaks[0] / 1e6:.0f} MB",
    )
    return [*lines, growth]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the grader promises.")
    parser.add_argument("--submissions", type=int, default=SUBMISSIONS, metavar="N", help="of lab 01 (default: 50)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurement records here")
    parser.add_argument("--record", action="store_true", help="keep the records, and write them into the README")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = sys.path[0]  # the checkout that this file is in, for all that is started
    with tempfile.TemporaryDirectory() as folder:
        lines = [*against_stock(Path(folder), arguments.submissions), *memory(Path(folder))]
    table = Table("what", "asked", "measured", "p20 to p80", "unit", "met", title="grader")
    for one in lines:
        record, sign = one.record, "≥" if one.record.better == "higher" else "≤"
        spread = f"{record.p20:,.3g} to {record.p80:,.3g}" if len(record.samples) > 1 else "one run"
        asked = f"{sign} {one.asked:,.4g}" if one.asked is not None else ""
        met = "" if one.asked is None else "yes" if one.met else "NO"
        table.add_row(record.what, asked, f"{record.p50:,.3g}", spread, record.unit, met)
    console = Console()
    console.print(table)
    for one in lines:
        if one.record.notes:
            console.print(f"{one.record.name}: {one.record.notes}", highlight=False)
    if arguments.json:
        records = [json.loads(one.record.to_json()) for one in lines]
        arguments.json.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if arguments.record:
        for one in lines:
            one.record.save(readme.RECORDS)
        readme.write({one.record.name: one.record for one in lines})
    return 0 if all(one.met for one in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
