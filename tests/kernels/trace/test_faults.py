"""Accesses out of bounds and reads of nothing, worked out by hand."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE
from mlsys_lab.kernels.trace.faults import BEFORE, BEYOND, FAR_BYTES, NOWHERE, UNWRITTEN, Fault, faults
from tests.kernels.trace.launches import Ask, array, shared, trace


def found(*asks: Ask, **arrays: object) -> list[tuple[str, int, str, int, int, int]]:
    """What, line, array, threads, of how many, accesses: of each fault."""
    buffers = [array("x", 35), array("y", 35, initialized=False), shared("s", 32)]
    made = trace(asks, buffers=buffers, grid=(4, 1, 1))
    return [(f.what, f.site.line, f.buffer, f.threads, f.of_threads, f.accesses) for f in faults(made)]


def test_three_of_the_threads_of_the_last_block_write_beyond_the_end() -> None:
    # 38 threads for 35 elements.
    asks = [Ask("y", range(32), STORE, line=12), Ask("y", range(32, 38), STORE, line=12, block=1)]
    (fault,) = faults(trace(asks, buffers=[array("y", 35, initialized=False)], grid=(2, 1, 1)))
    assert (fault.what, fault.threads, fault.of_threads, fault.accesses) == (BEYOND, 3, 38, 3)
    assert (fault.kind, fault.block, fault.thread, fault.place) == (STORE, 1, 3, "element 35 of 35")
    assert fault.sentence == (
        "line 12 `source of line 12`: 3 of 38 threads write beyond the end of y "
        "(first: block 1 thread 3, element 35 of 35)"
    )


def test_before_the_start_and_beyond_the_end_are_told_apart() -> None:
    assert found(Ask("x", [-1, 0, 35, 36], line=2)) == [(BEFORE, 2, "x", 1, 4, 1), (BEYOND, 2, "x", 2, 4, 2)]


def test_an_address_that_no_index_leads_to_is_no_end_of_an_array() -> None:
    (fault,) = faults(trace([Ask("x", [0, FAR_BYTES, -FAR_BYTES], line=2)], buffers=[array("x", 35)], grid=(1, 1, 1)))
    assert (fault.what, fault.threads) == (NOWHERE, 2)
    assert fault.sentence == (
        "line 2 `source of line 2`: 2 of 3 threads read at an address that no array of the launch has "
        "(first: block 0 thread 1)"
    )


def test_a_thread_that_goes_wrong_again_counts_once() -> None:
    assert found(Ask("x", {5: 40}), Ask("x", {5: 41}), Ask("x", {6: 3})) == [(BEYOND, 1, "x", 1, 2, 2)]


def test_places_arrays_and_kinds_are_told_apart() -> None:
    asks = (Ask("x", [99], line=2), Ask("s", [99], STORE, line=2), Ask("x", [99], ATOMIC, line=1))
    assert found(*asks) == [(BEYOND, 1, "x", 1, 1, 1), (BEYOND, 2, "x", 1, 1, 1), (BEYOND, 2, "s", 1, 1, 1)]


def test_a_place_that_reads_and_writes_an_array_has_two_sets_of_threads() -> None:
    assert found(Ask("x", range(8), line=2), Ask("x", [34, 35], STORE, line=2)) == [(BEYOND, 2, "x", 1, 2, 1)]


def test_an_element_of_a_matrix_is_named_by_row_and_column() -> None:
    (fault,) = faults(trace([Ask("a", [20])], buffers=[array("a", (4, 5))]))
    assert fault.place == "element (4, 0) of (4, 5)"
    (fault,) = faults(trace([Ask("a", [-1])], buffers=[array("a", (4, 5))]))
    assert fault.place == "element (-1, 4) of (4, 5)"


def test_shared_memory_holds_nothing_until_the_block_writes_it() -> None:
    early, late = Ask("s", [3, 4], line=1), Ask("s", [3, 4], line=3)
    store = Ask("s", [4], STORE, line=2)
    assert found(early, store, late) == [(UNWRITTEN, 1, "s", 2, 2, 2), (UNWRITTEN, 3, "s", 1, 2, 1)]
    # Another block's shared memory is another memory.
    other = dataclasses.replace(late, elements=[4], block=1)
    assert found(store, other) == [(UNWRITTEN, 3, "s", 1, 1, 1)]
    assert found(store, dataclasses.replace(other, block=0)) == []


def test_an_output_in_global_memory_holds_nothing_either_and_any_block_may_write_it() -> None:
    assert found(Ask("y", [0], line=1)) == [(UNWRITTEN, 1, "y", 1, 1, 1)]
    assert found(Ask("y", [0], STORE, line=1, block=2), Ask("y", [0], line=2)) == []
    assert found(Ask("x", [0], line=1)) == []


def test_an_atomic_on_nothing_is_a_read_of_nothing_but_leaves_something() -> None:
    asks = (Ask("y", [0, 0, 0], ATOMIC, line=1), Ask("y", [0], ATOMIC, line=2), Ask("y", [0], line=3))
    assert found(*asks) == [(UNWRITTEN, 1, "y", 3, 3, 3)]


def test_the_sentence_of_a_read_of_nothing() -> None:
    (fault,) = faults(trace([Ask("s", {4: 2}, line=7, block=3)], buffers=[shared("s", 8)], grid=(4, 1, 1)))
    assert fault.sentence == (
        "line 7 `source of line 7`: 1 of 1 threads read s where nothing was written before "
        "(first: block 3 thread 4, element 2 of 8)"
    )


def test_a_store_outside_writes_nothing_inside() -> None:
    assert [what for what, *_ in found(Ask("s", [32], STORE), Ask("s", [31]))] == [BEYOND, UNWRITTEN]


def test_a_clean_launch_has_none() -> None:
    assert found() == []
    assert found(Ask("x", range(32)), Ask("s", range(32), STORE), Ask("s", range(32)), Ask("y", range(32), STORE)) == []


ASKS = st.lists(
    st.builds(
        Ask,
        buffer=st.sampled_from(["x", "s"]),
        elements=st.lists(st.integers(-2, 9), min_size=1, max_size=6),
        kind=st.sampled_from([LOAD, STORE, ATOMIC]),
        block=st.integers(0, 2),
    ),
    max_size=10,
)


@given(ASKS)
def test_against_a_plain_walk_through_the_requests(asks: list[Ask]) -> None:
    buffers = [array("x", 8, initialized=False), shared("s", 8)]
    written: set[tuple[str, int, int]] = set()
    wrong: dict[tuple[str, str, int], int] = {}
    for ask in asks:
        memory = ask.block if ask.buffer == "s" else -1
        for element in ask.elements:
            what = BEFORE if element < 0 else BEYOND if element > 7 else ""
            if not what and ask.kind != STORE and (ask.buffer, memory, element) not in written:
                what = UNWRITTEN
            if what:
                wrong[what, ask.buffer, ask.kind] = wrong.get((what, ask.buffer, ask.kind), 0) + 1
        if ask.kind != LOAD:
            written |= {(ask.buffer, memory, element) for element in ask.elements if 0 <= element < 8}
    found: tuple[Fault, ...] = faults(trace(asks, buffers=buffers, grid=(3, 1, 1)))
    assert {(one.what, one.buffer, one.kind): one.accesses for one in found} == wrong
