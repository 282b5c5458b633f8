"""Communication between ranks: a world to run them in, collectives made of sends and receives, and what they cost."""

from typing import TYPE_CHECKING

from mlsys_lab.comm.ledger import Finish, Ledger, Message, Post, schedule
from mlsys_lab.comm.trouble import DeadlockError, MessageError, RankError, SilentRankError
from mlsys_lab.lazy import lazily

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank, Request
    from mlsys_lab.comm.world import Run, run
else:
    # Who only counts messages, as a judge does, needs no torch.
    __getattr__ = lazily(__name__, {"Rank": "rank", "Request": "rank", "Run": "world", "run": "world"})


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
