"""Run a check's calls on the learner's code under limits, and describe what goes wrong.

No verdict is formed here, so this is all that a grader's sandbox needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.exceptions import ProblemError, describe_not_implemented, describe_raised, describe_time_out
from mlsys_checks.sandboxed.ranks import run_on_threads
from mlsys_checks.sandboxed.spec import Arrays, Call, Check, Mismatch
from mlsys_lab.errors import UnfinishedError
from mlsys_lab.stack.artifact import ArtifactError
from mlsys_lab.stack.limits import OutOfTimeError, time_limit
from mlsys_lab.stack.loading import find_elsewhere, find_lost

DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"},
)
"""Types that may cross between the sandboxed and the trusted side."""
MAX_ARRAYS = 256
"""Arrays in one answer: a notebook allows no more than a grader can read."""


@dataclass(frozen=True)
class Attempt:
    """Result of calling the learner's code: arrays, or the problem.

    `unfinished`: the task has not been written. `peak_bytes` is None unless the check has a memory budget.
    """

    arrays: Arrays | None
    problem: Mismatch | None
    unfinished: bool
    time_s: float
    peak_bytes: int | None = None


def missing_names(check: Call | Check, artifact: Any) -> Mismatch | None:
    """The problem of an artifact that lacks a name the check uses, or None.

    Raises `ArtifactError` if it defines a kernel that may not run, or lost the cell that would define the name;
    `UnfinishedError` if that cell ran into an unwritten task.
    """
    missing = [name for name in check.uses if not hasattr(artifact, name)]
    if not missing:
        return None
    if (error := find_lost(artifact, missing)) is not None:
        raise error
    names = ", ".join(f"`{name}`" for name in missing)
    cells = sorted(set(find_elsewhere(artifact, missing).values()))
    got = f"one in cell {', '.join(map(str, cells))}, which is not exported" if cells else ""
    verb = "is" if len(missing) == 1 else "are"
    return Mismatch(f"{names} {verb} not defined", got, "a definition in a cell that begins with `#| export`")


def attempt(check: Call | Check, artifact: Any, inputs: Arrays, patience: float = 1.0) -> Attempt:
    """Call `check.run` on a copy of `inputs` under the check's time and memory limits; `patience` as in `time_limit`.

    `inputs` must be public (`mlsys_checks.trusted.verdict.public_inputs`). Only KeyboardInterrupt propagates.
    """
    try:
        problem = missing_names(check, artifact)
    except (ArtifactError, UnfinishedError) as error:
        got, expected = str(error.got or ""), str(error.expected or error.help)
        return Attempt(None, Mismatch(error.what, got, expected), isinstance(error, UnfinishedError), time_s=0.0)
    if problem is not None:
        return Attempt(None, problem, unfinished=True, time_s=0.0)
    arrays: Arrays | None = None
    unfinished, tracker = False, None
    fed = {name: array.copy() for name, array in inputs.items()}
    limit_s = check.time_limit_s * (2 if check.ranks else 1)  # a looping rank is reported by number before that
    start = time.perf_counter()
    try:
        with _memory_tracker(check) as tracker, time_limit(limit_s, patience):
            arrays = _run(check, artifact, dict(fed))
    except KeyboardInterrupt:
        raise
    except ProblemError as error:
        problem, unfinished = error.problem, error.unfinished
    except OutOfTimeError:
        problem = describe_time_out(limit_s)
    except (NotImplementedError, UnfinishedError) as error:
        problem, unfinished = describe_not_implemented(error), True
    except BaseException as error:  # a learner's code may raise anything, even SystemExit
        problem = describe_raised(error)
    time_s = time.perf_counter() - start
    peak_bytes = tracker.peak_bytes if tracker is not None else None
    if problem is None:
        problem = _find_non_array(arrays) or _find_memory_excess(check, peak_bytes) or _find_changed_input(fed, inputs)
    return Attempt(None if problem else arrays, problem, unfinished, time_s, peak_bytes)


def _run(check: Call | Check, artifact: Any, arrays: Arrays) -> Arrays:
    if not check.ranks:
        return check.run(artifact, arrays)
    return run_on_threads(attempt, check, artifact, arrays)


def _memory_tracker(check: Call | Check) -> Any:
    if check.memory_bytes is None:
        return nullcontext()
    from mlsys_lab.benchmark.memory import track_memory  # imports torch

    return nullcontext() if check.ranks else track_memory()  # each rank counts its own


def _find_changed_input(fed: Arrays, inputs: Arrays) -> Mismatch | None:
    """The problem of code that modified an input which the caller still needs."""
    for name, given in inputs.items():
        if not np.array_equal(fed[name], given, equal_nan=given.dtype.kind == "f"):
            return Mismatch(f"your code changes its input `{name}`", "other values after the call", "those of before")
    return None


def _find_memory_excess(check: Call | Check, peak_bytes: int | None) -> Mismatch | None:
    if check.memory_bytes is None or peak_bytes is None or peak_bytes <= check.memory_bytes:
        return None
    return Mismatch("it holds too much memory", f"{peak_bytes:,} bytes", f"at most {check.memory_bytes:,} bytes")


def _find_non_array(arrays: object) -> Mismatch | None:
    expected = "arrays of bool, int, uint8 or float"
    if not isinstance(arrays, Mapping):
        return Mismatch("the answer is not a set of named arrays", type(arrays).__name__, expected)
    if len(arrays) > MAX_ARRAYS:
        return Mismatch("the answer has too many parts", f"{len(arrays)} arrays", f"at most {MAX_ARRAYS}")
    for name, array in arrays.items():
        if type(array) is not np.ndarray:
            return Mismatch(f"`{name}` is not an array", type(array).__name__, expected)
        if array.dtype.name not in DTYPES:
            return Mismatch(f"`{name}` does not hold numbers", f"dtype {array.dtype.name}", expected)
    return None
