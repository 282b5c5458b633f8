"""The trusted side's view of what ranks posted: bytes, messages and latency steps follow from it."""

from __future__ import annotations

from mlsys_checks.sandboxed.ranks import KINDS, LOGS
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.trees import nest
from mlsys_lab.comm.ledger import Finish, Ledger, Post


def read_ledger(got: Arrays) -> Ledger:
    """The ledger of a run, from the arrays of `join_ranks`; without purposes, channels as numbers."""
    logs = nest(got)[LOGS]
    return Ledger([[_read_event(*row) for row in logs[str(rank)].tolist()] for rank in range(len(logs))])


def _read_event(kind: int, number: int, size_bytes: int, channel: int) -> Post | Finish:
    match KINDS[kind]:
        case "finish":
            return Finish(number)
        case "send":
            return Post("send", number, size_bytes, channel=str(channel))
        case _:
            return Post("recv", number, channel=str(channel))
