"""Coalescing, worked out by hand; and what holds of any request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE
from mlsys_lab.kernels.trace.sectors import coalescing
from tests.kernels.trace.launches import Ask, array, shared, trace


def counts(elements: object, *, itemsize: int = 4, start: int = 0) -> tuple[int, int]:
    """Sectors taken by one request, and the least."""
    buffers = [array("x", 4096, itemsize=itemsize, start=start)]
    (found,) = coalescing(trace([Ask("x", elements)], buffers=buffers))  # type: ignore[arg-type]
    return found.taken, found.ideal


@pytest.mark.parametrize(
    ("elements", "itemsize", "start", "taken", "least"),
    [
        (range(32), 4, 0, 4, 4),  # 128 bytes in a row
        (range(1, 33), 4, 0, 5, 4),  # one element further: a fifth sector
        (range(32), 4, 4, 5, 4),  # the same of a view that begins within a sector
        (range(32), 4, 32, 4, 4),
        (range(0, 64, 2), 4, 0, 8, 4),  # every second element
        (range(0, 32 * 8, 8), 4, 0, 32, 4),  # one element a sector
        (range(0, 32 * 100, 100), 4, 0, 32, 4),  # a column
        ([7] * 32, 4, 0, 1, 1),  # all lanes the same element
        (range(31, -1, -1), 4, 0, 4, 4),  # backwards
        (range(3), 4, 0, 1, 1),
        (range(32), 1, 0, 1, 1),
        (range(32), 2, 0, 2, 2),
        (range(32), 8, 0, 8, 8),
        (range(32), 16, 0, 16, 16),
        ([0, 1000], 16, 8, 2, 1),  # 16 bytes from byte 8 of a sector
        ([1], 16, 8, 2, 1),  # 16 bytes from byte 24: two sectors for one element
        ([-1], 4, 0, 1, 1),  # in front of the array
    ],
)
def test_one_request(elements: object, itemsize: int, start: int, taken: int, least: int) -> None:
    assert counts(elements, itemsize=itemsize, start=start) == (taken, least)


@pytest.mark.parametrize(
    ("elements", "taken", "least"),
    [
        ({lane: lane for lane in range(0, 32, 2)}, 4, 4),  # every second lane, where it stands
        ({lane: lane for lane in (0, 9, 31)}, 3, 3),
        ({lane: lane // 2 for lane in range(0, 32, 2)}, 2, 2),  # closed up: better than standing where it is
        ({lane: 31 - lane for lane in range(1, 32, 2)}, 4, 4),  # backwards
        ({lane: 8 * lane for lane in range(0, 32, 2)}, 16, 4),  # as scattered as with all lanes
        ({lane: 7 for lane in range(0, 32, 2)}, 1, 1),
        ({lane: 9 * (lane // 4) for lane in range(0, 32, 2)}, 8, 1),  # two lanes ask for the same bytes
    ],
)
def test_lanes_that_the_others_have_left(elements: dict[int, int], taken: int, least: int) -> None:
    assert counts(elements) == (taken, least)


def test_requests_are_summed_by_place_array_and_kind() -> None:
    asks = [
        Ask("x", range(32), line=3),
        Ask("y", range(32), STORE, line=3),
        Ask("x", range(0, 320, 10), line=3),  # 32 sectors for 4
        Ask("x", {32 + lane: 0 for lane in range(32)}, line=5, block=2),
        Ask("y", range(8), ATOMIC, line=5),
        Ask("s", range(32), line=5),
    ]
    buffers = [array("x", 400), array("y", 400), shared("s", 32)]
    found = coalescing(trace(asks, buffers=buffers, grid=(3, 1, 1), block=(64, 1, 1)))
    assert [(one.site.line, one.buffer, one.kind, one.requests, one.taken, one.ideal) for one in found] == [
        (3, "x", LOAD, 2, 36, 8),
        (3, "y", STORE, 1, 4, 4),
        (5, "x", LOAD, 1, 1, 1),
        (5, "y", ATOMIC, 1, 1, 1),
    ]
    assert found[0].efficiency == pytest.approx(8 / 36)
    worst = found[0].worst
    assert (worst.number, worst.block, worst.warp, worst.lanes, worst.taken, worst.ideal) == (2, 0, 0, 32, 32, 4)
    assert (found[2].worst.block, found[2].worst.warp) == (2, 1)


def test_without_requests_there_is_nothing_to_say() -> None:
    assert coalescing(trace([], buffers=[])) == ()
    assert coalescing(trace([Ask("s", [0])], buffers=[shared("s", 4)])) == ()


LANES = st.lists(st.integers(-20, 300), min_size=1, max_size=32)


@given(LANES, st.sampled_from([1, 2, 4, 8, 16]), st.randoms(use_true_random=False))
def test_sectors_are_those_of_the_bytes_asked_for(elements: list[int], itemsize: int, random: object) -> None:
    taken, least = counts(elements, itemsize=itemsize)
    touched = {byte for element in elements for byte in range(element * itemsize, (element + 1) * itemsize)}
    assert taken == len({byte // 32 for byte in touched})
    assert least == -(-len(touched) // 32) <= taken
    random.shuffle(elements)  # type: ignore[attr-defined]
    assert counts(elements, itemsize=itemsize) == (taken, least)
