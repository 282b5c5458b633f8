"""Compare what ranks return and send with the expected arrays and traffic limits.

Limits are sums over the messages that a program needs, stated by each check and never taken from the course's own
collectives. A program that sends less than its limit passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.ranks import join_ranks
from mlsys_checks.sandboxed.spec import Arrays, Check, Mismatch
from mlsys_checks.sandboxed.trees import flatten, nest
from mlsys_checks.trusted.ledger import read_ledger
from mlsys_checks.trusted.ranks import close_sums, compare_ranks
from mlsys_lab.comm.ledger import Finish, Ledger, Post

LIMITS = "at most"
"""Branch of the expected values: limits on bytes, messages, message size and steps."""


def expect_ranks(parts: Sequence[Arrays], **limits: Any) -> Arrays:
    """What each rank should return, and limits.

    bytes, messages: of each rank, or one number for all. total_bytes, total_messages. largest_message: its bytes.
    steps.
    """
    return join_ranks(parts) | flatten({LIMITS: limits})


def count_bytes(array: np.ndarray) -> int:
    """Bytes of a message, as the judge counts them: the shape of an empty array carries data too, its lengths' bits."""
    return array.nbytes if array.size else sum(length.bit_length() for length in array.shape) // 8


def limits_of(expected: Arrays) -> dict[str, np.ndarray]:
    """Limits by name, as given to `expect_ranks`."""
    limits: dict[str, np.ndarray] = nest(expected)[LIMITS]
    return limits


def compare_run(
    got: Arrays, expected: Arrays, compare: Callable[[Arrays, Arrays], Mismatch | None] = close_sums
) -> Mismatch | None:
    """The first rank with a wrong answer, else the first request without a wait, else the first exceeded limit."""
    if (mismatch := compare_ranks(got, expected, compare)) is not None:
        return mismatch
    ledger = read_ledger(got)
    return find_unwaited(ledger) or find_excess(ledger, limits_of(expected))


check_ranks = partial(Check, ranks=True, compare=compare_run, time_limit_s=3.0)
"""Make a check of several ranks, which share two cores and do little computation each."""


def find_unwaited(ledger: Ledger) -> Mismatch | None:
    """The first request that its rank never waits for."""
    for rank, log in enumerate(ledger.logs):
        posts = [event for event in log if isinstance(event, Post)]
        done = {event.post for event in log if isinstance(event, Finish)}
        if open_posts := [post for number, post in enumerate(posts) if number not in done]:
            one = open_posts[0]
            call = f"isend to rank {one.peer}" if one.kind == "send" else f"irecv from rank {one.peer}"
            return Mismatch(f"rank {rank} never waits for its {call}", "no wait()", "wait() on every request")
    return None


def find_excess(ledger: Ledger, limits: dict[str, np.ndarray]) -> Mismatch | None:
    """The first limit that a run exceeds."""
    by_rank = {"bytes": (ledger.sent_bytes(), "bytes"), "messages": (ledger.sent_messages(), "messages")}
    for name, (sent, words) in by_rank.items():
        if name in limits and (mismatch := find_excess_rank(sent, limits[name], words)) is not None:
            return mismatch
    sizes = [one.size_bytes for one in ledger.messages]
    overall = {
        "total_bytes": (sum(sizes), "all ranks together send too many bytes", "bytes"),
        "total_messages": (len(sizes), "all ranks together send too many messages", "messages"),
        "largest_message": (max(sizes, default=0), "a message is too long", "bytes"),
        "steps": (ledger.steps, "too many messages wait for each other, one after the other", "steps"),
    }
    for name, (count, words, unit) in overall.items():
        if name in limits and count > limits[name]:
            return Mismatch(words, f"{count:,} {unit}", f"at most {int(limits[name]):,} {unit}")
    return None


def find_excess_rank(sent: Sequence[int], limits: np.ndarray, words: str) -> Mismatch | None:
    """The first rank that sends more than its limit."""
    most = np.broadcast_to(limits, len(sent))
    if (over := np.flatnonzero(np.array(sent) > most)).size:
        rank = int(over[0])
        return Mismatch(f"rank {rank} sends too many {words}", f"{sent[rank]:,}", f"at most {most[rank]:,}")
    return None
