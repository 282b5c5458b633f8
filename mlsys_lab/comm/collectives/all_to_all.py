"""All-to-all: every rank sends an array to every other rank. In its own module, since lab 09 withholds it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlsys_lab.comm.rank import Rank
from mlsys_lab.errors import InputError


def all_to_all(rank: Rank, parts: Sequence[torch.Tensor], purpose: str = "all_to_all") -> list[torch.Tensor]:
    """Send parts[i] to each rank i; return the arrays received, in order of rank. Shapes may differ.

    p - 1 steps: in step k a rank sends to the k-th rank on its right and receives from the k-th on its left, so that no
    two ranks send to the same one.
    """
    if len(parts) != rank.size:
        raise InputError("all_to_all needs an array for each rank", got=len(parts), expected=rank.size)
    received = [parts[rank.rank].clone()] * rank.size
    for step in range(1, rank.size):
        source = (rank.rank - step) % rank.size
        request = rank.isend(parts[(rank.rank + step) % rank.size], (rank.rank + step) % rank.size, purpose)
        received[source] = rank.recv(source)
        request.wait()
    return received
