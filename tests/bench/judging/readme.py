"""The section "How it scales" of grader/README.md, worked out from the measurement records."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, pstdev

from mlsys_grader.reports.capacity import Load
from mlsys_lab.benchmark import Record

README = Path(__file__).parents[3] / "grader" / "README.md"
RECORDS = Path(__file__).parents[1] / "measurements"
BEGIN, END = "<!-- from tests/bench/measurements: begin -->", "<!-- end -->"
STUDENTS, LABS, HOURS = 1000, 12, 1.0
WORKERS = (1, 2, 8, 32)


def section(records: Mapping[str, Record]) -> str:
    """The section's text between its two marks."""
    service, entry = records["grader-service"], records["grader-gradebook"]
    load = Load.from_times(STUDENTS, service.samples, fmean(entry.samples) / 1e3)
    one, two = (records[f"grader-memory-{workers}"].p50 for workers in (1, 2))
    rows = [
        ("one submission of lab 01, judged", f"{load.mean_s:.2f} s ± {pstdev(service.samples):.2f} s"),
        ("of it the judge's own, beyond the submission's run time", f"{records['grader-overhead'].p50:.0f} ms"),
        ("one student's marks into the gradebook", f"{load.entry_s * 1e3:.0f} ms"),
        ("cold start to the first verdict on a check", f"{records['grader-first-check'].p50:.1f} s"),
        ("cold start to the first submission's record", f"{records['grader-first-submission'].p50:.1f} s"),
        ("two workers against one, first to last record", f"{records['grader-scaling'].p50:.2f} ×"),
        ("stock `nbgrader autograde`, with 2 workers", f"{records['grader-throughput'].p50:.1f} × faster"),
        ("stock `nbgrader autograde`, with 1 worker", f"{records['grader-throughput-serial'].p50:.1f} × faster"),
        ("private memory at the peak, 1 and 2 workers", f"{one:.0f} MB and {two:.0f} MB"),
        ("the same, 500 submissions against 100", f"{records['grader-memory-growth'].p50:.2f} ×"),
    ]
    rate = f"{STUDENTS:,} / {3600 * HOURS:.0f} s"
    parts = [
        _prose(
            f"One run of `python tests/bench/grader.py --record` on {service.device}, {service.taken[:10]}.",
            "Definitions and samples are in `tests/bench/measurements/`. Absolute times are that machine's:",
            "`make bench` prints yours.",
        ),
        _table(("measured", ""), rows),
        _prose(
            f"**{STUDENTS:,} students × {LABS} labs** that take as long as lab 01: work = submissions × service time",
            f"= {STUDENTS * LABS:,} × {load.mean_s:.2f} s = {load.work_s * LABS / 3600:.1f} worker hours a term. One",
            f"lab of {STUDENTS:,}, judged all at once after its deadline, or as they come in the last hour before it:",
        ),
        _table(
            ("workers", "all at once", "busy in the last hour", "mean wait for a worker then"),
            [_row(load, workers) for workers in WORKERS],
        ),
        _prose(
            f"The hour is a matter of queues. Little's law: {rate} × {load.mean_s:.2f} s =",
            f"{load.busy_workers(HOURS):.2f} workers are busy on average;",
            "with fewer the line grows until the deadline. With more, the mean wait is that of M/G/c by Allen and",
            "Cunneen: C(c, a) · E[S] / (c − a) · (1 + Var[S] / E[S]²) / 2, with a",
            "the workers that are busy and C Erlang's probability that all are (`reports/capacity.py`; its test",
            "holds it against a simulation). `mlsys-grader capacity LAB --students 1000 --workers 8` works this",
            "out from the times that your own class took.",
        ),
        _prose(
            f"The gradebook is the serial part (Amdahl): one process, {load.entry_s * 1e3:.0f} ms a student, beside",
            f"the judging. {STUDENTS:,} students take it {STUDENTS * load.entry_s / 60:.1f} minutes however many",
            f"workers there are, and more than {load.max_useful_workers} would wait for it. A worker more takes",
            f"{max(two - one, 1):.0f} MB more on this machine; on a cluster each has a sandbox of its own, which is",
            f"the {one:.0f} MB of one worker, less the gradebook's process.",
        ),
    ]
    return "\n\n".join(parts)


def split(text: str) -> tuple[str, str, str]:
    """The README before the section, the section, and the rest."""
    before, _, rest = text.partition(f"{BEGIN}\n")
    inside, _, after = rest.partition(f"\n{END}")
    return before, inside, after


def write(records: Mapping[str, Record]) -> None:
    """Put the section's figures into the README."""
    before, _, after = split(README.read_text(encoding="utf-8"))
    README.write_text(f"{before}{BEGIN}\n{section(records)}\n{END}{after}", encoding="utf-8")


def _row(load: Load, workers: int) -> tuple[str, ...]:
    busy = load.busy_workers(HOURS)
    if busy >= workers:
        wait = f"the line grows: {load.last_wait_s(workers, HOURS) / 60:.0f} minutes for the last"
    else:
        wait_s = load.wait_s(workers, HOURS)
        wait = f"{wait_s:.2f} s" if wait_s >= 0.01 else "under 0.01 s"
    return str(workers), f"{load.batch_s(workers) / 60:.1f} minutes", f"{min(busy / workers, 1):.0%}", wait


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def _prose(*pieces: str) -> str:
    return textwrap.fill(" ".join(pieces), 115, break_long_words=False, break_on_hyphens=False)
