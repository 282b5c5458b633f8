"""The world of a program that torchrun has started once for each rank: this process is one of them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from mlsys_lab.comm.child import ProcessEndpoint
from mlsys_lab.comm.ledger import Finish, Post
from mlsys_lab.comm.rank import Rank
from mlsys_lab.comm.seeds import seed_rank


def is_launched() -> bool:
    """Whether torchrun has started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def join_world(limit_s: float) -> Iterator[Rank]:
    """This process as a rank among those that torchrun has started, over gloo, for the body of a `with`.

    Its random states are seeded with its number. Nothing is logged, so that a run may go on for days. limit_s: how long
    it waits for another rank. DeadlockError when that is over; LostError when the connection to another is gone.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    forgotten: deque[Post | Finish] = deque(maxlen=0)
    endpoint = ProcessEndpoint(rank, size, "gloo", limit_s, forgotten, [0.0] * size)
    seed_rank(rank)
    try:
        yield Rank(endpoint)
        endpoint.close()
    finally:
        dist.destroy_process_group()
