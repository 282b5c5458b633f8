from __future__ import annotations

import _thread
import random
import threading

import numpy as np
import pytest
import torch

from mlsys_lab.comm import DeadlockError, MessageError, RankError, run
from mlsys_lab.errors import InputError, UnfinishedError
from tests.comm.programs import (
    change_what_is_sent,
    divide_by_zero,
    leave_early,
    leave_unwritten,
    pass_right,
    send_ints_for_floats,
    send_twelve_for_ten,
    send_unheard,
    spin,
)


def ones(size):
    return [torch.ones(2) for _ in range(size)]


@pytest.mark.parametrize("size", [2, 3, 9])
def test_two_runs_are_the_same_run(size):
    first, second = (run(pass_right, [torch.tensor([float(r)]) for r in range(size)]) for _ in range(2))
    assert first.results == second.results
    assert first.ledger.logs == second.ledger.logs
    assert [x.item() for x, _ in first.results] == [(r - 5) % size for r in range(size)]


def test_ranks_have_random_states_of_their_own_and_the_callers_is_left_alone():
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(7), random.seed(7), np.random.seed(7)

    def draw(rank, _):
        first = torch.rand(1).item(), random.random(), np.random.rand()
        rank.barrier()
        return (*first, torch.rand(1).item(), random.random(), np.random.rand())

    results, _ = run(draw, [None] * 3)
    assert len({number for result in results for number in result}) == 18
    torch.manual_seed(1)
    assert [torch.rand(1).item() for _ in range(2)] == [results[1][0], results[1][3]]
    torch.manual_seed(7)
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


@pytest.mark.parametrize(
    ("program", "size", "error", "text"),
    [
        (
            leave_early,
            4,
            DeadlockError,
            "rank 0 waits to send to rank 1; rank 1 waits to send to rank 2; rank 2 has ended; rank 3 waits to send to",
        ),
        (lambda rank, x: rank.send(x, 1 - rank.rank), 2, DeadlockError, "rank 0 waits to send to rank 1; rank 1 waits"),
        (leave_unwritten, 2, UnfinishedError, "^still to do: Task 1"),
        (divide_by_zero, 2, RankError, "rank 1 failed: ZeroDivisionError: division by zero"),
        (
            send_twelve_for_ten,
            2,
            MessageError,
            r"rank 0 received from rank 1 .* got float32 \(12,\), expected float32 \(10,\)",
        ),
        (send_ints_for_floats, 2, MessageError, r"got int64 \(10,\), expected float32 \(10,\)"),
        (send_unheard, 2, MessageError, "all ranks have ended, but rank 1 waits to send to rank 0"),
        (change_what_is_sent, 2, MessageError, "rank 1 changed an array while it was sending it to rank 0"),
        (spin, 2, RankError, "rank 1 has run for 0.2 s without a message: does it loop"),
        (lambda rank, x: rank.send(x, 2), 2, RankError, r"^no such rank: got 2, expected 0 to 1 \(on rank 0\)$"),
        (lambda rank, x: rank.recv(rank.rank), 2, RankError, "cannot send to itself or receive from itself"),
        (lambda rank, x: rank.isend([1.0], 1), 2, RankError, "a rank sends torch tensors: got list"),
        (lambda rank, x: rank.group([1, 1]), 2, RankError, r"names each rank once: got \[1, 1\]"),
        (lambda rank, x: rank.group([1]), 2, RankError, r"a group that it is in: got rank 0, group \[1\]"),
        (lambda rank, x: rank.group([0, 5]), 2, RankError, "no such rank: got 5"),
    ],
)
def test_errors_are_one_line_and_no_thread_is_left_running(program, size, error, text):
    before = set(threading.enumerate())
    with pytest.raises(error, match=text) as caught:
        run(program, ones(size), limit_s=0.2)
    assert "\n" not in str(caught.value)
    assert set(threading.enumerate()) == before


def test_an_interrupt_leaves_nothing_running():
    def spin_and_interrupt(rank, x):
        if rank.rank == 1:
            _thread.interrupt_main()
        spin(rank, x)

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        run(spin_and_interrupt, ones(2))
    assert set(threading.enumerate()) == before


def test_a_rank_that_never_returns_from_c_is_abandoned():
    def lose(rank, given):
        if rank.rank == 1:
            given.wait()
        rank.recv(1)

    stuck = threading.Event()
    with pytest.raises(RankError, match=r"does it loop\?; its thread cannot be stopped: restart the kernel") as caught:
        run(lose, [stuck, stuck], limit_s=0.01)
    assert caught.value.rank == 1
    stuck.set()


@pytest.mark.parametrize(
    ("inputs", "options", "text"),
    [
        ([], {}, "at least one rank"),
        ([1], {"backend": "treads"}, "unknown backend: got treads, expected threads or gloo or nccl; help: did you"),
        ([1], {"limit_s": 0}, "a limit must be positive"),
    ],
)
def test_bad_arguments(inputs, options, text):
    with pytest.raises(InputError, match=text):
        run(lambda rank, x: x, inputs, **options)


def test_an_array_that_arrives_is_the_receivers_own():
    def exchange(rank, x):
        if rank.rank == 0:
            rank.send(x, 1)
            rank.send(x.T, 1)
            return x
        first, second = rank.recv(0), rank.recv(0)
        first.zero_()
        return second

    results, _ = run(exchange, [torch.arange(6.0).reshape(2, 3)] * 2)
    assert torch.equal(results[0].T, results[1]) and results[1].is_contiguous()


def test_groups_number_their_members_from_zero_and_nest():
    def talk(rank, x):
        odd = rank.group([r for r in range(rank.size) if r % 2 == rank.rank % 2])
        pair = odd.group([odd.size - 1, 0]) if odd.rank in (0, odd.size - 1) else None
        if pair is None:
            return odd.rank, None
        pair.barrier()
        if pair.rank == 0:
            pair.send(torch.tensor(rank.rank), 1)
            return odd.rank, (pair.rank, pair.size)
        return odd.rank, pair.recv(0).item()

    results, _ = run(talk, [None] * 6)
    assert results == [(0, 4), (0, 5), (1, None), (1, None), (2, (0, 2)), (2, (0, 2))]


@pytest.mark.parametrize("size", range(1, 10))
def test_no_rank_leaves_a_barrier_before_all_have_reached_it(size):
    arrived = []

    def meet(rank, _):
        arrived.append(rank.rank)
        rank.barrier()
        return len(arrived)

    results, ledger = run(meet, [None] * size)
    assert results == [size] * size
    assert ledger.steps == (size - 1).bit_length()
    assert ledger.purpose_bytes() == ({"barrier": 0} if size > 1 else {})


def test_a_rank_that_was_kept_from_an_ended_run_is_refused() -> None:
    kept = {}

    def keep(rank, x):
        return pass_right(kept.setdefault(rank.rank, rank), x)

    inputs = [torch.zeros(2), torch.ones(2)]
    assert [got.tolist() for got, _ in run(keep, inputs).results] == [[1.0, 1.0], [0.0, 0.0]]
    with pytest.raises(MessageError, match="of a run that has ended posts a message"):
        run(keep, inputs)


def test_an_empty_array_may_change_while_it_is_sent() -> None:
    def program(rank, x):
        request = rank.isend(x, 1 - rank.rank)
        x += rank.recv(1 - rank.rank)
        request.wait()
        return x

    assert [len(got) for got in run(program, [torch.from_numpy(np.empty(0)) for _ in range(2)]).results] == [0, 0]
