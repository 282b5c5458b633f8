"""Checks of multi-rank programs: arrays of each rank by name, and what each rank posted.

`run(artifact, rank, arrays)` of such a check is called once per rank with that rank's arrays. In a notebook ranks are
threads that take turns; the grader gives each its own process, and routes and counts their messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsys_checks.sandboxed.exceptions import ProblemError, describe_time_out
from mlsys_checks.sandboxed.spec import Arrays, Call, Check, Mismatch, Reveal
from mlsys_checks.sandboxed.trees import flatten, nest
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm import Rank  # imports torch
    from mlsys_lab.comm.ledger import Log

DEFERRED = "deferred"
"""Name of a rank's input array that the rank can only reveal element by element."""
LOGS, MARKS = "logs", "marks"
KINDS = ("send", "recv", "finish")
"""Kinds of log events, by the number in the first column."""


def join_ranks(
    parts: Sequence[Arrays], logs: Sequence[Log] = (), marks: Sequence[Sequence[tuple[int, int]]] = ()
) -> Arrays:
    """Join the arrays of rank 0, 1, … and what each rank posted into one set of arrays.

    `marks` are each rank's calls of `reveal`: the element, and the number of posts made before. Raises InputError for a
    rank without arrays, and for a name that contains the path separator.
    """
    if empty := [str(rank) for rank, part in enumerate(parts) if not part]:
        raise InputError("each rank needs an array", got=f"none for rank {', '.join(empty)}")
    tree: dict[str, Any] = {str(rank): part for rank, part in enumerate(parts)}
    if logs:
        tree[LOGS] = {str(rank): log for rank, log in enumerate(encode_logs(logs))}
    if any(marks):
        tree[MARKS] = {str(rank): np.array(one, dtype=np.int64).reshape(-1, 2) for rank, one in enumerate(marks)}
    return flatten(tree)


def split_ranks(arrays: Arrays) -> list[Arrays]:
    """Inverse of `join_ranks`: the arrays of rank 0, 1, …; names that belong to no rank are dropped."""
    tree = nest(arrays)
    size = sum(name.isdecimal() for name in tree)
    return [tree[str(rank)] for rank in range(size)]


def encode_logs(logs: Sequence[Log]) -> list[np.ndarray]:
    """Encode each rank's log as int64 [events, 4]: kind (see `KINDS`), peer or post number, bytes, channel.

    Channels are numbered by first appearance.
    """
    from mlsys_lab.comm.ledger import Finish

    channels: dict[str, int] = {}
    encoded = []
    for log in logs:
        rows = []
        for event in log:
            if isinstance(event, Finish):
                rows.append((KINDS.index("finish"), event.post, 0, 0))
            else:
                channel = channels.setdefault(event.channel, len(channels))
                rows.append((KINDS.index(event.kind), event.peer, event.size_bytes, channel))
        encoded.append(np.array(rows, dtype=np.int64).reshape(-1, 4))
    return encoded


def split_deferred(part: Arrays) -> tuple[Arrays, list[float] | None]:
    """Split a rank's inputs into those available at the start and the deferred ones, None if there are none."""
    later = part[DEFERRED].tolist() if DEFERRED in part else None
    return {name: array for name, array in part.items() if name != DEFERRED}, later


def bind_rank(check: Call | Check, rank: Rank, reveal: Reveal | None = None) -> Call:
    """Bind a check's call to one rank, which gets the check's memory budget for itself."""
    handed = (rank,) if reveal is None else (rank, reveal)
    return Call(
        lambda artifact, arrays: check.run(artifact, *handed, arrays),
        check.uses,
        check.time_limit_s,
        check.memory_bytes,
    )


def name_rank(problem: Mismatch, rank: int) -> Mismatch:
    """Prefix a problem with its rank."""
    return Mismatch(f"on rank {rank}: {problem.what}", problem.got, problem.expected, is_form=problem.is_form)


def describe_deadlock(waits: str) -> Mismatch:
    """Describe a deadlock; `waits` says what each rank waits for."""
    return Mismatch("the ranks wait for each other, and none can go on", waits, "a receive for each send, in time")


def run_on_threads(attempt: Callable[..., Any], check: Call | Check, artifact: Any, arrays: Arrays) -> Arrays:
    """`attempt` a check with one thread per rank of `arrays`; join their answers and logs.

    Raises `ProblemError` if a rank fails or all are deadlocked, and `MessageError` for a message that is never
    received.
    """
    from mlsys_lab.comm import DeadlockError, RankError, RankTimeoutError, run

    parts = split_ranks(arrays)
    marks: list[list[tuple[int, int]]] = [[] for _ in parts]

    def program(rank: Rank, part: Arrays) -> Arrays:
        given, later = split_deferred(part)

        def reveal(i: int) -> float:
            assert later is not None
            marks[rank.rank].append((i, rank._endpoint.num_posts))
            return later[i]

        outcome = attempt(bind_rank(check, rank, None if later is None else reveal), artifact, given)
        if outcome.problem is not None:
            raise ProblemError(name_rank(outcome.problem, rank.rank), outcome.unfinished)
        answer: Arrays | None = outcome.arrays
        assert answer is not None
        return answer

    try:
        results, ledger = run(program, parts, limit_s=check.time_limit_s)
    except DeadlockError as error:
        raise ProblemError(describe_deadlock(str(error))) from None
    except RankTimeoutError as error:
        raise ProblemError(name_rank(describe_time_out(check.time_limit_s), error.rank)) from None
    except RankError as error:
        cause = error.__cause__
        raise cause if isinstance(cause, ProblemError) else ProblemError(Mismatch(error.what)) from None
    return join_ranks(results, ledger.logs, marks)
