"""Barriers that not all threads reach, worked out by hand."""

from __future__ import annotations

from itertools import chain

from mlsys_lab.kernels.trace.barriers import Divergence, divergences, missed
from mlsys_lab.kernels.trace.events import STORE
from tests.kernels.trace.launches import Ask, array, shared, trace

BUFFERS = [array("x", 256), array("y", 256, initialized=False), shared("s", 64)]


def found(asks: list[Ask], arrivals: list[tuple[int, int, int, int]]) -> tuple[Divergence, ...]:
    return divergences(trace(asks, buffers=BUFFERS, arrivals=arrivals, grid=(4, 1, 1)))


def at(line: int, threads: range, *, block: int = 0, phase: int = 0) -> list[tuple[int, int, int, int]]:
    return [(line, block, thread, phase) for thread in threads]


def some(threads: range, buffer: str, line: int, **where: int) -> Ask:
    return Ask(buffer, dict.fromkeys(threads, 0), line=line, **where)


def test_all_threads_reach_every_barrier() -> None:
    asks = [some(range(32), "x", 2), some(range(32), "s", 4, phase=1), some(range(1), "y", 6, phase=2, kind=STORE)]
    assert found(asks, at(3, range(32)) + at(5, range(32), phase=1)) == ()


def test_a_barrier_within_a_branch_that_half_of_the_threads_take() -> None:
    # if t < 16: s[t] = x[t]; syncthreads()      lines 2, 3
    # y[t] = s[t]                                line 4
    asks = [some(range(16), "s", 2, kind=STORE), some(range(16, 32), "y", 4), some(range(16), "y", 4, phase=1)]
    (one,) = found(asks, at(3, range(16)))
    assert (one.barrier.line, one.elsewhere.line, one.waits, one.block, one.phase) == (3, 4, False, 0, 0)
    assert (one.threads, one.thread, one.others, one.blocks) == (16, 16, 16, 1)
    assert one.sentence == (
        "line 3 `source of line 3`: 16 threads of block 0 wait here, thread 16 goes on at "
        "line 4 `source of line 4` (16 in this block, 1 block)"
    )


def test_threads_that_have_returned_hold_nobody_up() -> None:
    # if i >= n: return, and some of them have looked at x first, as all do.
    asks = [some(range(32), "x", 2), some(range(20), "s", 4, phase=1)]
    assert found(asks, at(3, range(20))) == ()
    assert found([], at(3, range(20))) == ()


def test_a_thread_that_goes_round_a_loop_without_the_barrier() -> None:
    # for k in …: s[t] = x[k]; if t < 31: syncthreads()
    asks = [some(range(32), "x", 2), some(range(31, 32), "x", 2), some(range(31), "x", 2, phase=1)]
    (one,) = found(asks, at(3, range(31)) + at(3, range(31), phase=1))
    assert (one.thread, one.others, one.phase, one.elsewhere.line) == (31, 1, 0, 2)


def test_threads_that_wait_at_two_barriers() -> None:
    (one,) = found([], at(3, range(8)) + at(6, range(8, 32)))
    assert (one.barrier.line, one.elsewhere.line, one.waits) == (3, 6, True)
    assert (one.threads, one.thread, one.others) == (8, 8, 24)
    assert "8 threads of block 0 wait here, thread 8 waits at line 6" in one.sentence


def test_blocks_are_counted_and_the_first_is_the_example() -> None:
    asks = [some(range(4, 6), "y", 5, block=block) for block in (1, 3)]
    arrivals = [arrival for block in range(4) for arrival in at(3, range(1) if block == 1 else range(4), block=block)]
    (one,) = found(asks, arrivals)
    assert (one.block, one.blocks, one.threads, one.thread, one.others) == (1, 2, 1, 4, 2)
    assert one.sentence.startswith("line 3 `source of line 3`: 1 thread of block 1 waits here, thread 4 goes on at")
    assert one.sentence.endswith("(2 in this block, 2 blocks)")


def test_a_thread_counts_where_it_goes_first() -> None:
    asks = [some(range(9, 10), "y", 7), some(range(9, 10), "y", 5)]
    assert [one.elsewhere.line for one in found(asks, at(3, range(9)))] == [7]


def test_what_threads_do_after_the_last_barrier_is_their_own_affair() -> None:
    asks = [some(range(32), "x", 2), some(range(5), "y", 8, phase=1)]
    assert found(asks, at(3, range(32))) == ()
    assert found(asks, []) == ()
    assert found([], []) == ()


def test_all_means_those_that_have_returned_too() -> None:
    def reached(*arrivals: list[tuple[int, int, int, int]]) -> bool:
        return not missed(trace([], buffers=BUFFERS, arrivals=chain(*arrivals), grid=(2, 1, 1)))

    every = at(3, range(32)), at(3, range(32), block=1), at(5, range(32), phase=1)
    assert reached() and reached(*every)  # block 1 has one barrier less, which is its own affair
    assert not reached(*every, at(5, range(31), block=1, phase=1))
    assert not reached(at(3, range(16)), at(6, range(16, 32)))
    assert not reached(at(3, range(31)), at(3, range(30, 31)))
