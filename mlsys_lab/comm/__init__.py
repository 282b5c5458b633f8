"""Communication between ranks: launching them, collectives built from sends and receives, their cost, simulation."""

from typing import TYPE_CHECKING

from mlsys_lab.comm.errors import DeadlockError, MessageError, RankError, RankTimeoutError
from mlsys_lab.comm.ledger import Finish, Ledger, Message, Post, schedule
from mlsys_lab.lazy import lazily

if TYPE_CHECKING:
    from mlsys_lab.comm.launcher import Run, run
    from mlsys_lab.comm.rank import Rank, Request
else:
    # Code that only counts messages, such as the judge, needs no torch.
    __getattr__ = lazily(__name__, {"Rank": "rank", "Request": "rank", "Run": "launcher", "run": "launcher"})


__all__ = [
    "DeadlockError",
    "Finish",
    "Ledger",
    "Message",
    "MessageError",
    "Post",
    "Rank",
    "RankError",
    "RankTimeoutError",
    "Request",
    "Run",
    "run",
    "schedule",
]
