"""The worst request, the busiest block and the busiest thread, worked out by hand."""

from __future__ import annotations

from mlsys_lab.kernels.trace.events import STORE
from mlsys_lab.kernels.trace.requests import busiest_block, busiest_thread, find_worst
from mlsys_lab.kernels.trace.sectors import coalescing
from tests.kernels.trace.launches import Ask, array, shared, trace

BUFFERS = [array("x", 400), array("y", 400), shared("s", 64)]
ASKS = [
    Ask("x", range(32), line=2),
    Ask("y", {32 + lane: 8 * lane for lane in range(16)}, STORE, line=4, block=1),  # 16 sectors for 2
    Ask("x", range(0, 64, 2), line=5),  # 8 sectors for 4
    Ask("s", {5: 0}, line=6),
    Ask("s", {5: 1}, line=6),
]
TRACE = trace(ASKS, buffers=BUFFERS, grid=(2, 1, 1), block=(64, 1, 1))


def test_the_worst_request_is_the_one_with_most_too_many() -> None:
    said = "line 4 `source of line 4`: 16 lanes of block 1 warp 1 write y in 16 sectors where 2 would do"
    assert find_worst(coalescing(TRACE), "sectors") == (14, said)
    assert find_worst([], "passes") == (0, "")


def test_the_busiest_thread_is_told_by_its_block_for_each_memory() -> None:
    assert busiest_thread(TRACE, "global") == (2, "thread 0 of block 0")
    assert busiest_thread(TRACE, "shared") == (2, "thread 5 of block 0")
    assert busiest_thread(trace([], buffers=BUFFERS), "shared")[0] == 0


def test_the_busiest_block_is_told_by_its_requests_to_each_memory() -> None:
    assert busiest_block(TRACE, "global") == (2, "the warps of block 0")
    assert busiest_block(trace(ASKS[1:2], buffers=BUFFERS), "global") == (1, "the warps of block 1")
    assert busiest_block(trace([], buffers=BUFFERS), "shared")[0] == 0
