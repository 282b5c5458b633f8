"""Replies of a submission's process to the judge: arrays, or a description of the problem."""

from __future__ import annotations

from math import inf
from typing import Any

from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.spec import Arrays, Call, Mismatch
from mlsys_grader.sandbox.inside import wire

OUT_OF_MEMORY = ("MemoryError", "can't allocate memory")
"""How NumPy and torch report that the kernel refused memory."""
REFUSED_MEMORY = "a request for more that was refused"
MAX_CHARACTERS = 2000
"""Longest description of a failure that is sent."""


def describe_failure(error: BaseException) -> wire.Frame:
    """Describe an exception that is not the submission's answer."""
    return wire.Frame("broken", {"what": f"{type(error).__name__}: {error}"[:MAX_CHARACTERS]})


def answer(call: Call, module: Any, inputs: Arrays) -> wire.Frame:
    """Call the learner's code; return its answer or the problem.

    Limits here are of CPU time only. The judge enforces wall-clock time and retries: in here the machine may have stood
    still, or this rank may have waited for another.
    """
    outcome = attempt(call, module, inputs, patience=inf)
    if outcome.arrays is not None:
        return wire.Frame("answer", arrays=outcome.arrays)
    assert outcome.problem is not None
    problem = outcome.problem
    if any(sign in problem.got for sign in OUT_OF_MEMORY):
        problem = Mismatch("it needs too much memory", REFUSED_MEMORY, problem.expected)
    return describe_problem("problem", problem, outcome.unfinished)


def describe_problem(kind: str, problem: Mismatch, unfinished: bool) -> wire.Frame:
    """A problem as a frame of this kind; `unfinished`: the task has not been written."""
    return wire.Frame(
        kind,
        {
            "what": problem.what[:MAX_CHARACTERS],
            "got": problem.got[:MAX_CHARACTERS],
            "expected": problem.expected[:MAX_CHARACTERS],
            "unfinished": unfinished,
        },
    )
