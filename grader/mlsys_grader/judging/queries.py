"""Relay a submission's queries to its check's partner while the submission runs."""

from __future__ import annotations

from mlsys_checks.sandboxed.spec import Case, Check
from mlsys_grader.judging.oracle import Oracle
from mlsys_grader.judging.process import Process
from mlsys_grader.sandbox.inside import wire

MAX_QUERIES = 4096
"""Queries that one case may make."""
MAX_CHARACTERS, MAX_VALUE = 40, 2**53
"""Longest word, and largest number, of a query."""


def answer_queries(process: Process, oracle: Oracle, check: Check, case: Case, question: wire.Frame) -> wire.Frame:
    """Answer `query` and the queries after it; return the first frame that is no query.

    Raises `wire.WireError` for too many queries, a malformed query, and any query if the check has no partner.
    """
    for _ in range(MAX_QUERIES):
        what, value = question.meta.get("what"), question.meta.get("value")
        if check.partner is None:
            raise wire.WireError("a query in a case without a partner")
        if not isinstance(what, str) or len(what) > MAX_CHARACTERS or type(value) is not int or abs(value) > MAX_VALUE:
            raise wire.WireError(f"no question: {what!r:.40} {value!r:.40}")
        process.reply(oracle.reply(check, case, what, value))
        question = process.receive()
        if question.kind != "query":
            return question
    raise wire.WireError(f"more than {MAX_QUERIES:,} questions")
