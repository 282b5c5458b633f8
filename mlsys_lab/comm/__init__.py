"""Communication between ranks: a world to run them in, collectives made of sends and receives, and what they cost."""

from importlib import import_module
from typing import TYPE_CHECKING

from mlsys_lab.comm.ledger import Finish, Ledger, Message, Post, schedule
from mlsys_lab.comm.trouble import DeadlockError, MessageError, RankError, SilentRankError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank, Request
    from mlsys_lab.comm.world import Run, run
else:
    # What loads torch is imported when it is first asked for: who only counts messages, as a judge does, needs none.
    HOMES = {"Rank": "rank", "Request": "rank", "Run": "world", "run": "world"}

    def __getattr__(name: str) -> object:
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)


__all__ = [
    "DeadlockError",
    "Finish",
    "Ledger",
    "Message",
    "MessageError",
    "Post",
    "Rank",
    "RankError",
    "Request",
    "Run",
    "SilentRankError",
    "run",
    "schedule",
]
