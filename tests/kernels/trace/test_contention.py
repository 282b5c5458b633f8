"""Turns of atomics, worked out by hand."""

from __future__ import annotations

from mlsys_lab.kernels.trace.contention import contention
from mlsys_lab.kernels.trace.events import ATOMIC, STORE
from tests.kernels.trace.launches import Ask, array, shared, trace

BUFFERS = [array("x", 64), shared("s", 64)]


def test_lanes_that_update_one_element_take_turns_and_others_do_not() -> None:
    asks = [
        Ask("x", [0] * 32, ATOMIC, line=1),
        Ask("x", range(32), ATOMIC, line=2),
        Ask("s", [5] * 3 + [6] * 7 + [8] * 2, ATOMIC, line=3),
        Ask("s", {31: 6}, ATOMIC, line=3, block=1),
        Ask("s", [5] * 32, STORE, line=4),
    ]
    found = contention(trace(asks, buffers=BUFFERS, grid=(2, 1, 1)))
    assert [(one.site.line, one.buffer, one.requests, one.taken, one.ideal) for one in found] == [
        (1, "x", 1, 32, 1),
        (2, "x", 1, 1, 1),
        (3, "s", 2, 8, 2),
    ]
    assert (found[2].worst.taken, found[2].worst.lanes, found[2].worst.who) == (7, 12, "block 0 warp 0")


def test_without_atomics_there_is_none() -> None:
    assert contention(trace([Ask("x", [0, 0], STORE)], buffers=BUFFERS)) == ()
