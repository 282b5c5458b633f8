"""Communication between ranks: a world to run them in, collectives made of sends and receives, and what they cost."""

from mlsys_lab.comm.ledger import Finish, Ledger, Message, Post, schedule
from mlsys_lab.comm.rank import Rank, Request
from mlsys_lab.comm.trouble import DeadlockError, MessageError, RankError
from mlsys_lab.comm.world import Run, run

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
    "run",
    "schedule",
]
