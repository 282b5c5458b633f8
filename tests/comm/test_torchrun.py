"""Ranks that torchrun starts: here processes that are given its environment."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection

import pytest
import torch

from mlsys_lab.comm.collectives.all_reduce import all_reduce
from mlsys_lab.comm.errors import ConnectionLostError
from mlsys_lab.comm.torchrun import is_torchrun, join_world
from tests.ports import held_port

SIZE = 3


def add_up(rank: int, port: int, writer: Connection) -> None:
    """Sum all ranks' numbers; then rank 0 leaves, and the other ranks wait for it in vain."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    assert is_torchrun()
    said = ""
    try:
        with join_world(30.0) as world:
            total = all_reduce(world, torch.tensor([float(world.rank)])).item()
            if rank > 0:
                world.recv(0)
    except ConnectionLostError as problem:
        said = str(problem)
    writer.send((total, torch.initial_seed(), said))
    os._exit(0)


def test_ranks_communicate_and_name_a_rank_that_is_gone() -> None:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(SIZE)]
    with held_port() as port:
        processes = [
            context.Process(target=add_up, args=(rank, port, writer)) for rank, (_, writer) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        told = [reader.recv() for reader, _ in pipes]
        for process in processes:
            process.join()
    gone = [f"rank {rank} could not receive from rank 0" for rank in (1, 2)]
    assert told == [(3.0, 0, ""), (3.0, 1, gone[0]), (3.0, 2, gone[1])]


def test_a_process_started_by_hand_is_not_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert not is_torchrun()
