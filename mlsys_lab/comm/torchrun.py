"""Ranks of a program that torchrun has started: this process is one of them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from mlsys_lab.comm.ledger import Finish, Post
from mlsys_lab.comm.process_endpoint import ProcessEndpoint
from mlsys_lab.comm.rank import Rank
from mlsys_lab.comm.seeds import seed_rank


def is_torchrun() -> bool:
    """Whether torchrun has started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def join_world(limit_s: float) -> Iterator[Rank]:
    """Context with this process as a rank among those that torchrun has started, over gloo.

    Seeds the random generators with the rank. Keeps no log, so that a run may take days. limit_s: how long the rank
    waits for another one. Raises DeadlockError after that, ConnectionLostError when the connection to another rank is
    gone.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    discarded: deque[Post | Finish] = deque(maxlen=0)
    endpoint = ProcessEndpoint(rank, size, "gloo", limit_s, discarded, [0.0] * size)
    seed_rank(rank)
    try:
        yield Rank(endpoint)
        endpoint.close()
    finally:
        dist.destroy_process_group()
