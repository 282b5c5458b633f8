"""Questions that a submission's process puts to a check's partner while it is at work; the judge hands them on."""

from __future__ import annotations

from mlsys_checks.sandboxed.spec import Case, Check
from mlsys_grader.judging.oracle import Oracle
from mlsys_grader.judging.process import Process
from mlsys_grader.sandbox.inside import wire

MAX_QUERIES = 4096
"""How many questions one case may put."""
MAX_CHARACTERS, MOST = 40, 2**53
"""The longest word, and the largest number, of a question."""


def answer_queries(process: Process, oracle: Oracle, check: Check, case: Case, question: wire.Frame) -> wire.Frame:
    """Answer a question of a process, and those that follow it; returns the frame that comes instead of one.

    Raises `wire.WireError` for too many questions, for what is none, and for any where the check has no partner.
    """
    for _ in range(MAX_QUERIES):
        what, value = question.meta.get("what"), question.meta.get("value")
        if check.partner is None:
            raise wire.WireError("a question where nobody answers")
        if not isinstance(what, str) or len(what) > MAX_CHARACTERS or type(value) is not int or abs(value) > MOST:
            raise wire.WireError(f"no question: {what!r:.40} {value!r:.40}")
        process.reply(oracle.reply(check, case, what, value))
        question = process.receive()
        if question.kind != "query":
            return question
    raise wire.WireError(f"more than {MAX_QUERIES:,} questions")
