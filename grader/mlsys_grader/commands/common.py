"""What several commands share: the lab that was named, its records, how to judge, a bar."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mlsys_grader.commands import LabOptions
from mlsys_grader.course.files import write_atomically
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.judging.options import Options
from mlsys_grader.sandbox.backend import Backend
from mlsys_lab.cli.app import flag, option
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import find_lab

WORKERS_PER_CORE = 8
"""Most submissions at a time for each core of this machine: each holds processes, which more would only make wait."""
CLUSTER_WORKERS = 10_000


def find_chosen_lab(args: LabOptions) -> GradedLab:
    """Find the lab that a command line names; `InputError` where there is none of that name."""
    return GradedLab(find_lab(args.lab, args.labs))


def read_records(course: Course, lab: GradedLab) -> list[Record]:
    """Read the records of all students of a lab; who has none that counts is left out, and named on standard error."""
    students = course.students(lab.name)
    found = [read_record(course.record(student, lab.name)) for student in students]
    records = [record for record in found if record is not None and not record.faults]
    if not records:
        raise InputError(f"nothing of {lab.name} has been graded", help=f"mlsys-grader grade {lab.topic}")
    if left_out := sorted(set(students) - {record.student for record in records}):
        print(f"mlsys-grader: left out, not graded: {', '.join(left_out)}", file=sys.stderr)
    return records


def require_folder(path: Path | None) -> None:
    """Raise `InputError` where the folder that a file is to be written to does not exist: a name may be misspelt."""
    if path is not None and not path.parent.exists():
        raise InputError(f"cannot write {path}", got="no such folder", help=f"make {path.parent}, or correct the path")


def write_text(path: Path | None, text: str) -> None:
    """Write a file whole, or to standard output for None; `InputError` for a path that cannot be written.

    A link stays one, and a device or a pipe (/dev/stdout, say) is written to, not replaced by a file.
    """
    if path is None:
        sys.stdout.write(text)
        return
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(text.encode())
        else:
            write_atomically(path.resolve(), text.encode())
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"cannot write {path}", got=error.strerror) from None


def make_progress_bar(console: Console) -> Progress:
    """Make a bar with the number done, the time gone and the time left; it shows nothing off a terminal."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


@dataclass(kw_only=True)
class JudgingOptions(LabOptions):
    """How commands that judge do so: workers, time limits, sandbox and engine."""

    workers: Annotated[int, option("submissions at a time (0: one per core)", "N", "Judging")] = 0
    time_factor: Annotated[float, option("stretch every time limit, on a slow machine", "X", "Judging")] = 1.0
    unsafe: Annotated[
        bool, flag("--unsafe", "no sandbox: submissions may read your files and use your network", "Judging")
    ] = False
    sandbox: Annotated[
        Backend | None, option("what builds the sandbox (by default the first that works)", panel="Judging")
    ] = None
    engine: Annotated[
        Literal["local", "ray"], option("judge on this machine, or over a Ray cluster", panel="Judging")
    ] = "local"
    address: Annotated[
        str | None, option("the Ray cluster (by default one that is started on this machine)", "HOST:PORT", "Judging")
    ] = None


def check_workers(workers: int, most: int) -> None:
    """Raise `InputError` for a number of workers that no machine has a use for, or memory."""
    if not 0 <= workers <= most:
        raise InputError("--workers cannot be that", got=workers, expected=f"1 to {most:,}, or 0: one per core")


def read_judging_options(args: JudgingOptions) -> Options:
    """Read what `JudgingOptions` holds, and check it; says on standard error what --unsafe gives up."""
    from mlsys_grader.sandbox.sandbox import UNSAFE

    check_workers(args.workers, CLUSTER_WORKERS if args.engine == "ray" else WORKERS_PER_CORE * (os.cpu_count() or 1))
    if not (args.time_factor > 0 and isfinite(args.time_factor)):
        raise InputError("--time-factor cannot be that", got=args.time_factor, expected="a positive number")
    if args.address and args.engine != "ray":
        raise InputError("--address is the address of a Ray cluster", help="add --engine ray")
    if args.unsafe and args.sandbox:
        raise InputError("--unsafe is to do without a sandbox", got=f"--sandbox {args.sandbox} as well")
    if args.unsafe:
        print(UNSAFE, file=sys.stderr)
    return Options(
        args.workers, args.time_factor, args.unsafe, engine=args.engine, address=args.address, sandbox=args.sandbox
    )
