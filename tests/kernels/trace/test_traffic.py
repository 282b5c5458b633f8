"""Traffic, worked out by hand; and what holds of any launch."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE, Buffer, Trace
from mlsys_lab.kernels.trace.traffic import (
    Flow,
    reads_each_once,
    times_read,
    times_written,
    total,
    traffic,
    writers,
    writes_each_once,
)
from tests.kernels.trace.launches import Ask, array, shared, trace


def test_a_copy_moves_what_it_must() -> None:
    asks = [
        ask
        for block in (0, 1)
        for ask in (
            Ask("x", range(32 * block, 32 * block + 32), LOAD, block=block),
            Ask("y", range(32 * block, 32 * block + 32), STORE, block=block),
        )
    ]
    x, y = traffic(trace(asks, buffers=[array("x", 64), array("y", 64, initialized=False)], grid=(2, 1, 1)))
    assert x.read == Flow(256, 256, 256, 256) and x.written == Flow(0, 0, 0, 256)
    assert y.written == Flow(256, 256, 256, 256) and y.read == Flow(0, 0, 0, 256)
    assert (x.elements, x.elements_read, x.elements_written, x.max_reads, x.mean_reads) == (64, 64, 0, 1, 1.0)
    assert (y.elements_written, y.max_writes, y.mean_writes, y.mean_reads) == (64, 1, 1.0, 0.0)
    assert x.read.ratio == x.read.sector_ratio == x.written.ratio == 1.0 and x.both.ratio == 1.0


def test_a_stencil_asks_for_each_element_three_times_and_a_cache_would_not() -> None:
    # x[i-1], x[i], x[i+1] of 30 threads: elements 0 to 31, of 32.
    asks = [Ask("x", range(shift, shift + 30), line=shift + 1) for shift in range(3)]
    (x,) = traffic(trace(asks, buffers=[array("x", 64)]))
    assert x.read == Flow(asked_bytes=3 * 30 * 4, moved_bytes=3 * 4 * 32, least_bytes=32 * 4, buffer_bytes=256)
    assert (x.read.ratio, x.read.sector_ratio) == (90 / 32, 3.0)
    assert (x.elements_read, x.max_reads, x.mean_reads) == (32, 3, 90 / 32)


def test_lanes_that_read_the_same_element_ask_for_it_each() -> None:
    (x,) = traffic(trace([Ask("x", [0] * 32)], buffers=[array("x", 8)]))
    assert x.read == Flow(asked_bytes=128, moved_bytes=32, least_bytes=4, buffer_bytes=32)
    assert x.read.ratio == 32 and x.read.sector_ratio == 1


def test_a_column_moves_eight_times_what_it_asks_for() -> None:
    (x,) = traffic(trace([Ask("x", range(0, 32 * 32, 32))], buffers=[array("x", (32, 32))]))
    assert (x.read.ratio, x.read.sector_ratio) == (1.0, 8.0)


def test_a_value_that_the_launch_wrote_need_not_be_read_back() -> None:
    asks = [Ask("y", range(8), STORE, line=1), Ask("y", range(8), line=2), Ask("y", range(8), STORE, line=3)]
    (y,) = traffic(trace(asks, buffers=[array("y", 8, initialized=False)]))
    assert y.read == Flow(32, 32, 0, 32) and y.written == Flow(64, 64, 32, 32)
    assert y.read.ratio == math.inf and y.written.ratio == 2.0 and y.both.ratio == 3.0
    (x,) = traffic(trace([asks[1], asks[0]], buffers=[array("y", 8)]))
    assert x.read.ratio == 1.0  # read before it is written: the value from before the launch


def test_an_atomic_reads_and_writes() -> None:
    asks = [Ask("sum", [0] * 32, ATOMIC), Ask("sum", [1] * 4, ATOMIC)]
    (found,) = traffic(trace(asks, buffers=[array("sum", 2)]))
    assert found.read == found.written == Flow(asked_bytes=144, moved_bytes=64, least_bytes=8, buffer_bytes=8)
    assert (found.max_reads, found.max_writes, found.mean_writes) == (32, 32, 18.0)


def test_what_lies_outside_is_moved_but_is_no_element() -> None:
    made = trace([Ask("x", {7: 7, 8: 8}), Ask("x", [-1])], buffers=[array("x", 8)])
    (x,) = traffic(made)
    assert x.read == Flow(asked_bytes=12, moved_bytes=96, least_bytes=4, buffer_bytes=32)
    assert (x.elements_read, x.max_reads) == (1, 1)
    assert times_read(made, "x").tolist() == [0] * 7 + [1]


def test_only_global_memory_counts_and_untouched_arrays_are_listed() -> None:
    asks = [Ask("s", range(32), STORE), Ask("y", range(32), STORE)]
    made = trace(asks, buffers=[shared("s", 32), array("x", 16), array("y", 32)])
    assert [one.buffer for one in traffic(made)] == ["x", "y"]
    assert traffic(made)[0].both == Flow(0, 0, 0, 128) and traffic(made)[0].both.ratio == 1.0
    assert total(made) == Flow(128, 128, 128, 384)
    assert total(trace([], buffers=[])) == Flow(0, 0, 0, 0)


def test_the_last_block_that_wrote_an_element_is_known() -> None:
    view = Buffer("view", "global", (2, 3), 4, (20, 8), initialized=True)  # every second column of 2 rows of 5
    asks = [Ask("view", [0, 2], STORE, block=4), Ask("view", [2, 9], ATOMIC, block=7), Ask("view", [5], block=8)]
    made = trace([*asks, Ask("view", [1000], STORE, block=9)], buffers=[view])
    assert writers(made, "view").tolist() == [[4, 7, -1], [-1, -1, 7]]


def test_counts_have_the_shape_of_their_array() -> None:
    view = Buffer("view", "global", (2, 3), 4, (20, 8), initialized=True)  # every second column of 2 rows of 5
    asks = [Ask("view", [0, 2, 4, 5, 7, 9]), Ask("view", [9]), Ask("view", [2], ATOMIC)]
    made = trace(asks, buffers=[view])
    assert times_read(made, "view").tolist() == [[1, 2, 1], [1, 1, 2]]
    assert times_written(made, "view").tolist() == [[0, 1, 0], [0, 0, 0]]
    row = Buffer("row", "global", (3, 2), 4, (0, 4), initialized=True)  # one row seen three times
    assert times_read(trace([Ask("row", [1])], buffers=[row]), "row").tolist() == [[0, 1]] * 3


@pytest.mark.parametrize(
    ("asks", "once"),
    [
        ([Ask("x", range(4)), Ask("x", {4: 4})], True),
        ([Ask("x", range(4))], False),  # one is missing
        ([Ask("x", range(5)), Ask("x", [2])], False),  # one twice
        ([Ask("x", range(6))], False),  # and one more
        ([Ask("x", range(4)), Ask("x", [4], ATOMIC)], True),
        ([Ask("x", range(5)), Ask("x", range(5), STORE)], True),
        ([], False),
    ],
)
def test_each_once_is_all_of_them_and_nothing_else(asks: list[Ask], once: bool) -> None:
    made = trace(asks, buffers=[array("x", 5)])
    assert reads_each_once(made, "x") is once
    other = {LOAD: STORE, STORE: LOAD, ATOMIC: ATOMIC}
    turned = trace([dataclasses.replace(ask, kind=other[ask.kind]) for ask in asks], buffers=[array("x", 5)])
    assert writes_each_once(turned, "x") is once


def test_an_empty_array_is_read_once_by_nobody() -> None:
    assert reads_each_once(trace([], buffers=[array("x", (0, 3))]), "x")


def test_an_unknown_array_is_one_line() -> None:
    made = trace([], buffers=[array("weight", 5), shared("tile", 4)])
    said = "no such array in global memory: got 'wieght', expected one of weight; help: did you mean 'weight'?"
    with pytest.raises(InputError, match=said):
        times_read(made, "wieght")
    with pytest.raises(InputError, match="got 'tile'"):
        writes_each_once(made, "tile")


ASKS = st.lists(
    st.builds(
        Ask,
        buffer=st.sampled_from(["x", "y"]),
        elements=st.lists(st.integers(0, 63), min_size=1, max_size=32),
        kind=st.sampled_from([LOAD, STORE, ATOMIC]),
        line=st.integers(1, 3),
        block=st.integers(0, 3),
    ),
    max_size=8,
)
BUFFERS = [array("x", 64), array("y", 64)]


@given(ASKS)
def test_the_least_is_the_least(asks: list[Ask]) -> None:
    for one in traffic(trace(asks, buffers=BUFFERS)):
        for flow in (one.read, one.written):
            assert flow.least_bytes <= min(flow.asked_bytes, flow.moved_bytes, flow.buffer_bytes)
            assert flow.moved_bytes <= 32 * flow.asked_bytes // 4 and flow.moved_bytes % 32 == 0
            assert flow.ratio >= 1 and flow.sector_ratio >= 1
        assert one.max_reads >= one.mean_reads and one.elements_read <= one.elements


@given(ASKS, st.permutations(range(4)))
def test_which_block_does_what_changes_nothing(asks: list[Ask], blocks: list[int]) -> None:
    moved = [dataclasses.replace(ask, block=blocks[ask.block]) for ask in asks]
    assert traffic(trace(asks, buffers=BUFFERS)) == traffic(trace(moved, buffers=BUFFERS))


def joined(one: Trace, other: Trace) -> Trace:
    """One launch after the other, as one."""
    later = other.accesses.copy()
    later["request"] += one.accesses["request"].max(initial=-1) + 1
    later["site"] += len(one.sites)
    rows = np.concatenate([one.accesses, later])
    return dataclasses.replace(one, sites=one.sites + other.sites, accesses=rows)


@given(ASKS, ASKS)
def test_two_launches_in_one_ask_for_and_move_the_sum_and_need_no_more(first: list[Ask], second: list[Ask]) -> None:
    one, other = (trace(asks, buffers=BUFFERS) for asks in (first, second))
    both = joined(one, other)
    for a, b, sum_ in zip(traffic(one), traffic(other), traffic(both), strict=True):
        for way in ("read", "written"):
            flow, parts = getattr(sum_, way), [getattr(a, way), getattr(b, way)]
            assert flow.asked_bytes == parts[0].asked_bytes + parts[1].asked_bytes
            assert flow.moved_bytes == parts[0].moved_bytes + parts[1].moved_bytes
            assert parts[0].least_bytes <= flow.least_bytes <= parts[0].least_bytes + parts[1].least_bytes
    assert (times_read(both, "x") == times_read(one, "x") + times_read(other, "x")).all()
