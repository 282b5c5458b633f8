"""How many workers a class needs, and how many minutes of a GPU, from the times that this lab's submissions took.

examples:
  mlsys-grader capacity autograd --students 1000 --count 12
  mlsys-grader capacity autograd --students 1000 --count 12 --workers 8 --hours 1

The times are those of the submissions that were graded in this course folder, on this machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mlsys_grader.commands import LabOptions
from mlsys_grader.commands.common import CLUSTER_WORKERS, check_workers, find_chosen_lab, read_records
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.gradebook.record import Record
from mlsys_lab.cli.app import option
from mlsys_lab.errors import InputError

ENTRY_S = 0.05
"""What the gradebook's process takes for a student unless told, on the slow side; `make bench` measures it."""


@dataclass(kw_only=True)
class Arguments(LabOptions):
    """The lab, the class and the machines."""

    students: Annotated[int | None, option("students (by default those of this course)", "N")] = None
    count: Annotated[int, option("labs like this one in the term", "N")] = 1
    workers: Annotated[int, option("workers (0: one per core)", "N")] = 0
    hours: Annotated[float, option("time in which all hand in before a deadline", "H")] = 1.0


def run(args: Arguments) -> int:
    """Print the work of a class, its time with N workers, the queue before a deadline, and the limits."""
    from mlsys_grader.reports.capacity import Load

    check_workers(args.workers, CLUSTER_WORKERS)
    if args.count < 1 or not (args.hours > 0 and math.isfinite(args.hours)):
        raise InputError("--count and --hours have to be positive")
    lab, course = find_chosen_lab(args), Course.open(args.course)
    records = read_records(course, lab)
    times = [sum(verdict.time_s for verdict in record.verdicts) for record in records]
    workers = args.workers or os.cpu_count() or 1
    load = Load.from_times(args.students or len(records), [time for time in times if time > 0], ENTRY_S)
    deviation_s = math.sqrt(load.variance_s2)
    print(f"a submission       {load.mean_s:.2f} s ± {deviation_s:.2f} s, from {len(records)} of {lab.name}")
    print(f"work               {load.work_s * args.count / 3600:.1f} worker hours for {args.count} labs")
    print(f"everybody at once  {load.batch_s(workers) / 60:.1f} minutes with {workers} workers")
    print(f"on the last {args.hours:g} h   {load.busy_workers(args.hours):.2f} of {workers} workers busy on average")
    if load.busy_workers(args.hours) < workers:
        print(f"                   a submission waits {load.wait_s(workers, args.hours):.2f} s for its turn on average")
    else:
        print(
            f"                   too few: the last one waits {load.last_wait_s(workers, args.hours) / 60:.1f} minutes"
        )
    if any(check.performance for check in lab.checks.checks):
        _print_gpu(lab, records, args.students or len(records), args.count)
    print(f"the gradebook      one process: more than {load.max_useful_workers} workers would wait for it")
    return 0


def _print_gpu(lab: GradedLab, records: Sequence[Record], students: int, count: int) -> None:
    """Print for how long a class holds a GPU, if everybody passes the checks that have points for speed."""
    from mlsys_grader.reports.capacity import Load
    from mlsys_grader.speed.rounds import MeasurementConfig

    held = [sum(v.performance.time_s for v in record.verdicts if v.performance) for record in records]
    held = [time_s for time_s in held if time_s > 0]
    if held:
        load, said = Load.from_times(students, held, ENTRY_S), f"from {len(held)} measured"
        deviation_s = math.sqrt(load.variance_s2)
        print(f"a GPU              {load.mean_s:.1f} s ± {deviation_s:.1f} s a submission, {said}")
    else:
        timed = sum(check.performance is not None for check in lab.checks.checks)
        load = Load.from_times(students, [timed * MeasurementConfig().max_total_s], ENTRY_S)
        print(f"a GPU              nothing measured yet: {load.mean_s / 60:.0f} minutes a submission at the very most")
    print(f"                   {load.work_s * count / 60:.0f} GPU minutes for {students} students and {count} labs")
