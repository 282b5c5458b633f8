"""An engine that runs the learner's code in this process, as a notebook does: for variants written by the course.

It runs public and hidden cases and reports a hidden case's reason as it is; `call_s` is CPU time, independent of load.
The judge would need a sandboxed process per variant.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from functools import lru_cache
from io import StringIO
from types import ModuleType

import scipy.linalg
import torch
from threadpoolctl import threadpool_limits

from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed.kernel_sources import lend_sources
from mlsys_checks.sandboxed.kernels.loading import load_kernels
from mlsys_checks.sandboxed.spec import Arrays, Check, Mismatch
from mlsys_checks.trusted.artifact import Artifact, load
from mlsys_grader.engines import Result, Task
from mlsys_grader.judging.process import WALL_CLOCK_FACTOR
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.sandbox.inside.wire import WireError, require_listable

torch.set_num_threads(1)  # as the grader's workers do
assert scipy.linalg  # has its own BLAS, which must be loaded to be limited
threadpool_limits(1)
SEED = 20
"""Default seed of inputs: not the one that notebooks show."""


class InProcess:
    """Judge artifacts by the given checks; exceptions of the checks propagate."""

    def __init__(self, checks: Iterable[Check]) -> None:
        self.checks = tuple(map(_limit_to_wire, checks))

    def judge_all(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield one result per task, in order."""
        for task in tasks:
            yield Result(task.student, tuple(_verdict(check, task) for check in self.checks))


def _limit_to_wire(check: Check) -> Check:
    """A check that also fails answers that could not leave the sandbox: too many arrays, or a bad name."""

    def compare(got: Arrays, expected: Arrays) -> Mismatch | None:
        try:
            require_listable(got)
        except WireError as error:
            return Mismatch("its answer may not cross the wire", str(error), "a few arrays by name")
        return check.compare(got, expected)

    return replace(check, compare=compare)


def _verdict(check: Check, task: Task) -> Verdict:
    seed = task.seeds.get(check.name, SEED)
    module = load_for_check(check, task.artifact)
    start = time.process_time()
    report = run_check(check, module, seed=seed, hidden=True, patience=WALL_CLOCK_FACTOR)
    cpu_s = time.process_time() - start
    mismatch = report.mismatch or Mismatch("")
    return Verdict(
        check.name,
        check.title,
        check.points,
        report.points,
        what=mismatch.what,
        got=mismatch.got,
        expected=mismatch.expected,
        case=report.case.name if report.case else "",
        seed=seed,
        time_s=report.time_s,
        call_s=cpu_s,
        unfinished=report.unfinished,
    )


def load_for_check(check: Check, artifact: Artifact) -> ModuleType:
    """The module that a check runs on: only kernels if traced, plus the check's kernel sources."""
    if not check.traced:
        return load_module(artifact)
    module = load_kernels_alone(artifact)
    if check.kernel_sources:
        lend_sources(module, load_module(artifact), check.kernel_sources)
    return module


@lru_cache(maxsize=4)
def load_module(artifact: Artifact) -> ModuleType:
    """The module of an artifact, under a unique name; its output is dropped."""
    with redirect_stdout(StringIO()):
        return load(artifact, module_name=f"artifact_{abs(hash(artifact))}")


@lru_cache(maxsize=4)
def load_kernels_alone(artifact: Artifact) -> ModuleType:
    """An artifact's kernels alone, as the sandbox loads them for traced checks."""
    return load_kernels(artifact)
