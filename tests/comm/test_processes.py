"""Real processes over gloo. Few runs, since each takes half a second; results must equal those on threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from mlsys_lab.comm import DeadlockError, MessageError, RankError, run
from mlsys_lab.comm.process_endpoint import SHARED_BYTES
from mlsys_lab.errors import MissingToolError
from tests.comm.programs import (
    change_what_is_sent,
    divide_by_zero,
    leave_early,
    pass_right,
    send_twelve_for_ten,
    send_unheard,
    sleep,
)


def test_processes_and_threads_give_the_same_results_and_the_same_ledger():
    inputs = [torch.tensor([float(r)]) for r in range(4)]
    threads, processes = run(pass_right, inputs), run(pass_right, inputs, backend="gloo")
    assert threads.results == processes.results
    assert threads.ledger.logs == processes.ledger.logs


def test_every_dtype_and_shape_travels():
    arrays = [
        torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in (torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64)
    ] + [torch.empty(0, 4), torch.tensor(2.5), torch.arange(6.0).reshape(2, 3).T]

    def exchange(rank, _):
        if rank.rank:
            return [rank.recv(0, like=array) for array in arrays]
        for array in arrays:
            rank.send(array, 1)
        return arrays

    (sent, received), _ = run(exchange, [None, None], backend="gloo")
    for a, b in zip(sent, received, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_messages_keep_their_order_and_progress_before_they_are_waited_for():
    """Receives with and without `like` of equal shapes, complete on the sender's side before the receiver waits."""
    arrays = [torch.full((n,), float(i)) for i, n in enumerate((70_000, 70_000, 5, 70_000, 5, 5))]

    def exchange(rank, _):
        if rank.rank:
            requests = [rank.irecv(0, like=None if i in (1, 4) else array) for i, array in enumerate(arrays)]
            rank.recv(0)
            return [request.wait() for request in requests]
        for request in [rank.isend(array, 1) for array in arrays]:
            request.wait()
        rank.send(torch.ones(1), 1)
        return arrays

    (sent, received), _ = run(exchange, [None, None], backend="gloo")
    assert all(torch.equal(a, b) for a, b in zip(sent, received, strict=True))


def test_the_rest_of_an_array_may_change_while_a_part_is_sent():
    def exchange(rank, x):
        if rank.rank:
            return rank.recv(0)
        request = rank.isend(x[:50_000], 1)
        x[50_000:] += 1
        request.wait()
        return x[:50_000]

    (sent, received), _ = run(exchange, [torch.ones(100_000)] * 2, backend="gloo")
    assert torch.equal(sent, received)


def kill_rank_1(rank, x):
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    rank.recv(1)


def change_without_a_copy(rank, x):
    change_what_is_sent(rank, torch.ones(SHARED_BYTES))


@pytest.mark.parametrize(
    ("program", "size", "error", "text"),
    [
        (kill_rank_1, 3, RankError, "rank 1 died: killed by SIGKILL"),
        (lambda rank, x: os._exit(3), 1, RankError, "rank 0 died: exit status 3"),
        (divide_by_zero, 2, RankError, "rank 1 failed: ZeroDivisionError: division by zero"),
        (leave_early, 4, DeadlockError, "rank 1 could not send to rank 2; .*rank 2 has ended"),
        (send_twelve_for_ten, 2, MessageError, r"got float32 \(12,\), expected float32 \(10,\)"),
        (send_unheard, 2, MessageError, "all ranks have ended, but rank 1 waits to send to rank 0"),
        (change_what_is_sent, 2, MessageError, "rank 1 changed an array while it was sending it to rank 0"),
        (change_without_a_copy, 2, MessageError, "rank 1 changed an array while it was sending it to rank 0"),
        (lambda rank, x: rank.send(x, 2), 2, RankError, r"^no such rank: got 2, expected 0 to 1 \(on rank \d\)$"),
        (lambda rank, x: lambda: x, 1, RankError, "rank 0 failed: its result cannot leave the process"),
    ],
)
def test_errors_name_the_rank_and_no_process_is_left(program, size, error, text):
    with pytest.raises(error, match=text):
        run(program, [torch.ones(2)] * size, backend="gloo")
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        (sleep, RankError, "rank 1 has run for 3 s without a message"),
        (lambda rank, x: rank.send(x, 1 - rank.rank), DeadlockError, "rank . has waited 3 s to send to rank"),
    ],
)
def test_limits_between_processes_are_on_the_clock(program, error, text):
    with pytest.raises(error, match=text):
        run(program, [torch.ones(100_000)] * 2, backend="gloo", limit_s=3)


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="this machine has GPUs for two ranks")
def test_nccl_asks_for_a_gpu_for_each_rank():
    with pytest.raises(MissingToolError, match=r"NCCL needs a GPU for each rank: got \d for 2 ranks"):
        run(pass_right, [torch.ones(1)] * 2, backend="nccl")


@pytest.mark.gpu
def test_nccl_carries_the_same_program():
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL between ranks needs two GPUs")
    inputs = [torch.tensor([float(r)], device=f"cuda:{r}") for r in range(2)]
    assert [x.item() for x, _ in run(pass_right, inputs, backend="nccl").results] == [1.0, 0.0]


def test_no_rank_runs_before_all_have_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 is slow to connect, as on a starved machine: rank 0, with nothing to do, would be gone before."""
    connect, connected_at = dist.init_process_group, multiprocessing.RawArray("d", 1)

    def connect_slowly(*args, rank, **options):
        connect(*args, rank=rank, **options)
        if rank == 1:
            time.sleep(0.5)
            connected_at[0] = time.monotonic()

    monkeypatch.setattr(dist, "init_process_group", connect_slowly)
    started = run(lambda rank, x: time.monotonic(), [0, 0], backend="gloo").results
    assert min(started) >= connected_at[0] > 0
