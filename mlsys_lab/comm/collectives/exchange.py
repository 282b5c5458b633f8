"""The all-to-all, in which every rank has something for every other; a module of its own, since lab 09 asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlsys_lab.comm.rank import Rank
from mlsys_lab.errors import InputError


def all_to_all(rank: Rank, parts: Sequence[torch.Tensor], purpose: str = "all_to_all") -> list[torch.Tensor]:
    """Send parts[i] to each rank i and return what all ranks sent here, in order of rank. Shapes may differ.

    p - 1 steps: in step k a rank sends to the k-th on its right and receives from the k-th on its left, so that no two
    senders meet at one receiver.
    """
    if len(parts) != rank.size:
        raise InputError("all_to_all needs a part for each rank", got=len(parts), expected=rank.size)
    received = [parts[rank.rank].clone()] * rank.size
    for step in range(1, rank.size):
        source = (rank.rank - step) % rank.size
        request = rank.isend(parts[(rank.rank + step) % rank.size], (rank.rank + step) % rank.size, purpose)
        received[source] = rank.recv(source)
        request.wait()
    return received
