"""Programs of several ranks, each with one error; used on threads and on processes."""

from __future__ import annotations

import time

import torch

from mlsys_lab.comm import Rank


def pass_right(rank: Rank, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Five hops around the ring, then a random number."""
    for _ in range(5):
        request = rank.isend(x, (rank.rank + 1) % rank.size, "hop")
        x = rank.recv((rank.rank - 1) % rank.size, like=x)
        request.wait()
    rank.barrier()
    return x, torch.rand(1).item()


def leave_early(rank: Rank, x: torch.Tensor) -> None:
    if rank.rank != 2:
        rank.send(x, (rank.rank + 1) % rank.size)


def spin(rank: Rank, x: torch.Tensor) -> None:
    if rank.rank == 1:
        while True:
            pass
    rank.recv(1)


def sleep(rank: Rank, x: torch.Tensor) -> None:
    if rank.rank == 1:
        time.sleep(3600)
    rank.recv(1)


def leave_unwritten(rank, x):
    """A lab's solution cell that is not written yet."""
    raise NotImplementedError("still to do: Task 1")


def divide_by_zero(rank: Rank, x: torch.Tensor) -> None:
    if rank.rank == 1:
        _ = 1 / 0
    rank.recv(1)


def send_twelve_for_ten(rank: Rank, x: torch.Tensor) -> None:
    if rank.rank:
        rank.send(torch.ones(12), 0)
    else:
        rank.recv(1, like=torch.ones(10))


def send_ints_for_floats(rank: Rank, x: torch.Tensor) -> None:
    if rank.rank:
        rank.send(torch.ones(10, dtype=torch.int64), 0)
    else:
        rank.recv(1, like=torch.ones(10))


def send_unheard(rank: Rank, x: torch.Tensor) -> None:
    if rank.rank:
        rank.isend(x, 0)


def change_what_is_sent(rank: Rank, x: torch.Tensor) -> None:
    if rank.rank:
        request = rank.isend(x, 0)
        x += 1
        request.wait()
    else:
        rank.recv(1)
