"""What a submission's process tells the judge: its arrays, or in words what stood in the way."""

from __future__ import annotations

from math import inf
from typing import Any

from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.spec import Arrays, Call, Mismatch
from mlsys_grader.sandbox.inside import wire

OUT_OF_MEMORY = ("MemoryError", "can't allocate memory")
"""How NumPy and torch say that the kernel refused them memory."""
REFUSED_MEMORY = "a request for more that was refused"
TEXT = 2000
"""Longest text about a failure that is worth sending, in characters."""


def describe_failure(error: BaseException) -> wire.Frame:
    """Describe to the judge an exception that is not the submission's answer."""
    return wire.Frame("broken", {"what": f"{type(error).__name__}: {error}"[:TEXT]})


def answer(call: Call, module: Any, inputs: Arrays) -> wire.Frame:
    """Call the learner's code: its answer, or the trouble that stood in its way.

    In here a limit is of processor time alone. By the clock the judge ends a call, and asks once more: what has passed
    in here may be time in which the machine stood still, or in which this rank waited for another.
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
    """A problem in a frame of this kind; `unfinished` tells a task that has not been written."""
    return wire.Frame(
        kind,
        {
            "what": problem.what[:TEXT],
            "got": problem.got[:TEXT],
            "expected": problem.expected[:TEXT],
            "unfinished": unfinished,
        },
    )
