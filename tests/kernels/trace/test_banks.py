"""Bank conflicts, worked out by hand; and against a plain count."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.kernels.trace.banks import conflicts
from mlsys_lab.kernels.trace.events import STORE
from tests.kernels.trace.launches import Ask, array, shared, trace


def counts(elements: object, *, itemsize: int = 4, start: int = 0) -> tuple[int, int]:
    """Passes that one request takes, and the least."""
    buffers = [shared("s", 4096, itemsize=itemsize, start=start)]
    (found,) = conflicts(trace([Ask("s", elements)], buffers=buffers))  # type: ignore[arg-type]
    return found.taken, found.ideal


@pytest.mark.parametrize(
    ("elements", "itemsize", "taken", "least"),
    [
        (range(32), 4, 1, 1),  # a bank each
        (range(0, 64, 2), 4, 2, 1),  # every second word: two words in 16 banks
        (range(0, 32 * 3, 3), 4, 1, 1),  # an odd stride reaches every bank
        (range(0, 32 * 32, 32), 4, 32, 1),  # a column of a 32-wide tile
        (range(0, 32 * 33, 33), 4, 1, 1),  # the same, padded
        ([5] * 32, 4, 1, 1),  # all lanes one word
        ([0, 32] * 16, 4, 2, 1),  # two words of one bank
        ([lane // 2 for lane in range(32)], 4, 1, 1),
        (range(31, -1, -1), 4, 1, 1),
        (range(32), 1, 1, 1),  # four lanes a word
        (range(0, 64, 2), 2, 1, 1),  # a word each
        (range(0, 128, 4), 2, 2, 1),
        (range(32), 8, 2, 2),  # 256 bytes, by half-warps
        (range(0, 64, 2), 8, 4, 2),  # each half-warp reaches 16 banks twice
        (range(32), 16, 4, 4),  # 512 bytes, by quarter-warps
        (range(0, 64, 2), 16, 8, 4),
        ({0: 0, 1: 16}, 8, 2, 1),  # words 0 and 32
        ({0: 0, 16: 16}, 8, 2, 2),  # the same in two halves: a pass each
        ({0: 0, 8: 8, 31: 16}, 16, 3, 3),  # three quarters
        ({40: 3}, 4, 1, 1),  # of the second warp
        ({600: 0, 601: 16, 610: 32}, 8, 3, 2),  # lanes 24, 25 and 2 of other warps
    ],
)
def test_one_request(elements: object, itemsize: int, taken: int, least: int) -> None:
    assert counts(elements, itemsize=itemsize) == (taken, least)


def test_where_an_array_lies_decides_its_banks() -> None:
    assert counts([0, 31], start=0) == counts([0, 31], start=4) == (1, 1)
    both = [Ask("a", [0], line=1), Ask("b", [0], line=2)]
    apart = trace(both, buffers=[shared("a", 32), shared("b", 32, start=128)])
    assert [one.taken for one in conflicts(apart)] == [1, 1]  # two requests never conflict with each other


def test_stores_to_one_word_are_no_conflict_and_global_memory_has_no_banks() -> None:
    asks = [
        Ask("s", [0] * 32, STORE, line=4),
        Ask("s", range(0, 1024, 32), STORE, line=6),
        Ask("x", range(0, 1024, 32)),
    ]
    found = conflicts(trace(asks, buffers=[shared("s", (32, 32)), array("x", 1024)]))
    assert [(one.site.line, one.taken, one.ideal, one.efficiency) for one in found] == [
        (4, 1, 1, 1.0),
        (6, 32, 1, 1 / 32),
    ]
    assert conflicts(trace([], buffers=[])) == ()


@given(st.lists(st.integers(-8, 400), min_size=1, max_size=32), st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 40))
def test_passes_are_the_words_of_the_fullest_bank(elements: list[int], itemsize: int, start: int) -> None:
    start *= itemsize
    banks: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for lane, element in enumerate(elements):
        for byte in range(element * itemsize + start, (element + 1) * itemsize + start):
            part = lane // (32 * 4 // max(itemsize, 4))
            banks[part][byte // 4 % 32].add(byte // 4)
    passes = sum(max(map(len, part.values())) for part in banks.values())
    assert counts(elements, itemsize=itemsize, start=start) == (passes, len(banks))
