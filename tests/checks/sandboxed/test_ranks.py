"""Checks of programs of several ranks: arrays go to each rank and come back, with what each of them posted."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from mlsys_checks.sandboxed.attempt import Attempt, attempt
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Call
from mlsys_checks.trusted.ledger import read_ledger
from mlsys_lab.errors import InputError, UnfinishedError


def call_shift(artifact, rank, arrays: Arrays) -> Arrays:
    import torch

    return {"y": artifact.shift(rank, torch.from_numpy(arrays["x"])).numpy()}


def try_shift(shift, sizes=(3, 2, 4), limit_s: float = 10.0) -> Attempt:
    """What comes of a shift round a ring whose ranks hold arrays of these sizes; limits are of processor time."""
    given = join_ranks([{"x": np.arange(size) + 10.0 * rank} for rank, size in enumerate(sizes)])
    return attempt(Call(call_shift, ("shift",), limit_s, ranks=True), SimpleNamespace(shift=shift), given, patience=100)


def shift(rank, x):
    request = rank.isend(x, (rank.rank + 1) % rank.size)
    got = rank.recv((rank.rank - 1) % rank.size)
    request.wait()
    return got


def test_arrays_of_ranks_are_joined_and_split_again() -> None:
    parts = [{"x": np.arange(3), "y": np.float64(2)}, {"x": np.arange(2)}]
    for got, given in zip(split_ranks(join_ranks(parts)), parts, strict=True):
        assert got.keys() == given.keys() and all(np.array_equal(got[name], given[name]) for name in given)


def test_a_rank_without_arrays_is_refused() -> None:
    with pytest.raises(InputError, match="each rank needs an array: got none for rank 1"):
        join_ranks([{"x": np.arange(2)}, {}])


def test_each_rank_gives_its_answer_and_the_ledger_comes_along() -> None:
    outcome = try_shift(shift)
    assert outcome.problem is None and outcome.arrays is not None
    assert [part["y"].tolist() for part in split_ranks(outcome.arrays)] == [[20, 21, 22, 23], [0, 1, 2], [10, 11]]
    ledger = read_ledger(outcome.arrays)
    assert ledger.sent_bytes() == [24, 16, 32] and ledger.sent_messages() == [1, 1, 1] and ledger.steps == 1


def test_groups_are_told_apart_in_the_ledger() -> None:
    def in_group(rank, x):
        group = rank.group(range(rank.size)[::-1])
        request = rank.isend(x, (rank.rank + 1) % rank.size)
        got = shift(group, x + 1)
        assert len(rank.recv((rank.rank - 1) % rank.size))
        request.wait()
        return got

    outcome = try_shift(in_group, sizes=(1, 1, 1))
    assert outcome.arrays is not None
    assert [part["y"].tolist() for part in split_ranks(outcome.arrays)] == [[11], [21], [1]]
    assert len(read_ledger(outcome.arrays).messages) == 6


def deadlock(rank, x):
    rank.send(x, (rank.rank + 1) % rank.size)
    return rank.recv((rank.rank - 1) % rank.size)


def raise_on_one(rank, x):
    if rank.rank == 1:
        raise ValueError("no such chunk")
    return shift(rank, x)


def change_input(rank, x):
    x += rank.rank
    return x


def leave_behind(rank, x):
    if rank.rank == 0:
        rank.isend(x, 1)
    return x


def loop(rank, x):
    while rank.rank == 2:
        pass
    return x


@pytest.mark.parametrize(
    ("program", "what", "got"),
    [
        (deadlock, "the ranks wait for each other", "rank 0 waits to send to rank 1; rank 1 waits to send to rank 2"),
        (raise_on_one, "on rank 1: ", "ValueError: no such chunk"),
        (change_input, "on rank 1: your code changes its input `x`", "other values"),
        (leave_behind, "all ranks have ended, but rank 0 waits to send to rank 1", ""),
    ],
)
def test_what_goes_wrong_is_told_with_the_rank(program, what: str, got: str) -> None:
    outcome = try_shift(program)
    assert outcome.arrays is None and not outcome.unfinished and outcome.problem is not None
    assert outcome.problem.what.startswith(what) and got in outcome.problem.got


def test_a_rank_that_loops_is_named_and_stopped() -> None:
    outcome = try_shift(loop, limit_s=0.3)
    assert outcome.problem is not None and outcome.problem.what == "on rank 2: it did not come to an end"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


def test_a_task_that_is_not_written_is_told_as_such() -> None:
    def unwritten(rank, x):
        raise UnfinishedError("still to do: Task 3")

    outcome = try_shift(unwritten)
    assert outcome.unfinished and outcome.problem is not None and "not written yet" in outcome.problem.what
