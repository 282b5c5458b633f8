"""Races, worked out by hand; and against every pair of accesses."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE
from mlsys_lab.kernels.trace.races import Race, races
from mlsys_lab.kernels.trace.report import report
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.triton_language import tl, triton
from tests.kernels.trace.launches import Ask, array, shared, trace

BUFFERS = [array("x", 64), shared("s", 64), array("own", 64, space="local")]


def found(*asks: Ask) -> tuple[Race, ...]:
    return races(trace(asks, buffers=BUFFERS, grid=(4, 1, 1)))


def test_a_neighbours_value_read_without_a_barrier() -> None:
    store = Ask("s", range(32), STORE, line=8)
    load = Ask("s", range(1, 32), line=9)  # thread i reads what thread i + 1 wrote
    (race,) = found(store, load)
    assert (race.first.line, race.first_kind, race.second.line, race.second_kind) == (8, STORE, 9, LOAD)
    assert (race.elements, race.thread, race.other_thread, race.between_blocks) == (31, 1, 0, False)
    assert race.sentence == (
        "line 8 `source of line 8` and line 9 `source of line 9`: block 0 thread 1 writes element 1 of 64 of s, "
        "thread 0 reads it, with no barrier between (and so on for 31 elements)"
    )
    assert found(store, dataclasses.replace(load, phase=1)) == ()  # a barrier lies between
    assert found(store, Ask("s", range(32), line=9)) == ()  # each thread its own
    assert len(found(load, store)) == 1  # writing too early is the same race


def test_a_syncwarp_orders_the_lanes_of_a_warp_and_no_others() -> None:
    store = Ask("s", range(48), STORE, line=8)
    load = Ask("s", range(1, 48), line=9, sync=1)  # thread 31 reads what thread 32 of the next warp wrote
    (race,) = found(store, load)
    assert (race.elements, race.thread, race.other_thread) == (1, 32, 31)
    assert found(Ask("s", range(32), STORE), Ask("s", range(1, 32), sync=1)) == ()
    assert found(Ask("s", range(32), STORE), Ask("s", range(1, 32), sync=0)) != ()


def test_what_may_be_a_lock_is_named() -> None:
    def in_turn(thread: int, block: int) -> list[Ask]:
        lock = Ask("x", {thread: 9}, ATOMIC, line=1, block=block)
        return [
            lock,
            Ask("x", {thread: 5}, LOAD, line=2, block=block),
            Ask("x", {thread: 5}, STORE, line=2, block=block),
        ]

    def of_triton(*asks: Ask) -> tuple[Race, ...]:
        return races(trace(asks, buffers=BUFFERS, grid=(4, 1, 1), unit_names=("program", "lane")))

    sentences = [race.sentence for race in of_triton(*in_turn(0, 0), *in_turn(1, 0), *in_turn(0, 1))]
    assert sentences == [
        "line 2 `source of line 2`: program 0 lane 0 writes element 5 of 64 of x, lane 1 reads it, "
        "with no barrier between, unless line 1 `source of line 1` is a lock that does",
        "line 2 `source of line 2`: program 0 lane 0 writes element 5 of 64 of x, program 1 lane 0 reads it, "
        "and nothing orders them, unless line 1 `source of line 1` is a lock that does",
    ]
    (race,) = of_triton(*in_turn(0, 0), *in_turn(1, 0)[1:])  # thread 1 does not take the lock
    assert race.lock is None
    (race,) = of_triton(*(Ask("x", {thread: 5}, kind, line=3) for thread in (0, 1) for kind in (ATOMIC, LOAD, STORE)))
    assert race.lock is None  # what they race for is no lock


def test_accesses_under_one_lock_are_in_order() -> None:
    def update(thread: int, lock: int, block: int = 0) -> list[Ask]:
        return [Ask("x", {thread: 5}, kind, line=2, block=block, lock=lock) for kind in (LOAD, STORE)]

    assert found(*update(0, 1), *update(1, 1), *update(40, 1), *update(0, 1, block=1)) == ()
    for other in (0, 2):  # no lock, another lock
        kinds = {(race.first_kind, race.second_kind) for race in found(*update(0, 1), *update(1, other))}
        assert kinds == {(STORE, LOAD)}
    (race,) = found(*update(0, 1), *update(1, 1), Ask("x", {1: 5}, line=3))
    assert (race.first.line, race.thread, race.second.line, race.other_thread) == (2, 0, 3, 1)


def test_stores_of_one_equal_value_are_told_as_such() -> None:
    (race,) = found(Ask("x", [5, 5, 5], STORE, line=4, value=7))
    assert race.equal and race.sentence == (
        "line 4 `source of line 4`: block 0 thread 0 writes element 5 of 64 of x, thread 1 writes it, "
        "the same value, so the order does not matter"
    )
    assert not found(Ask("x", {0: 5}, STORE, value=7), Ask("x", {1: 5}, STORE, value=8))[0].equal
    assert not found(Ask("x", [5, 5], STORE, value=7), Ask("x", {3: 5}, value=7))[0].equal  # one reads
    assert not found(Ask("x", [5, 5], STORE))[0].equal  # nothing is known of the values


def test_lanes_of_one_request_that_store_to_one_element() -> None:
    (race,) = found(Ask("x", [5, 5, 6], STORE, line=4))
    assert (race.elements, race.thread, race.other_thread, race.place) == (1, 0, 1, "element 5 of 64")
    assert race.sentence == (
        "line 4 `source of line 4`: block 0 thread 0 writes element 5 of 64 of x, thread 1 writes it, "
        "with no barrier between"
    )


def test_blocks_are_in_no_order() -> None:
    store, load = Ask("x", [7], STORE, line=1, block=1), Ask("x", [7], line=2, block=3, phase=5)
    (race,) = found(store, load)
    assert race.between_blocks and (race.block, race.other_block) == (1, 3)
    assert race.sentence.endswith(
        "block 1 thread 0 writes element 7 of 64 of x, block 3 thread 0 reads it, and nothing orders them"
    )
    # But each has shared memory of its own.
    assert found(*(dataclasses.replace(ask, buffer="s") for ask in (store, load))) == ()


def test_atomics_race_with_plain_accesses_only() -> None:
    atomics = Ask("x", [0] * 8, ATOMIC, line=1), Ask("x", [0] * 8, ATOMIC, line=1, block=1)
    assert found(*atomics) == ()
    (race,) = found(atomics[0], Ask("x", {9: 0}, line=2))
    assert (race.first_kind, race.second_kind, race.other_thread) == (ATOMIC, LOAD, 9)
    (race,) = found(atomics[0], Ask("x", {9: 0}, STORE, line=2))
    assert (race.first.line, race.first_kind, race.second_kind) == (2, STORE, ATOMIC)


def test_the_thread_that_reads_may_be_the_one_whose_atomic_comes_first() -> None:
    (race,) = found(Ask("x", {0: 3}, ATOMIC, line=1), Ask("x", {0: 3}, line=2), Ask("x", {1: 3}, ATOMIC, line=3))
    assert (race.first.line, race.thread, race.second.line, race.other_thread) == (3, 1, 2, 0)


def test_reading_together_and_own_arrays_are_no_races() -> None:
    assert found(Ask("x", [0] * 32), Ask("x", [0] * 32, block=1)) == ()
    assert found(Ask("own", [0] * 32, STORE), Ask("own", [0] * 32)) == ()
    assert found() == ()


def test_out_of_bounds_nothing_can_be_changed() -> None:
    assert found(Ask("x", [64, 64], STORE)) == ()


def test_places_are_reported_apart_and_phases_counted() -> None:
    asks = [Ask("s", [0, 0], STORE, line=line, phase=phase) for line, phase in ((1, 0), (2, 1), (2, 2), (2, 3))]
    assert [(race.first.line, race.second.line, race.elements) for race in found(*asks)] == [(1, 1, 1), (2, 2, 3)]


def test_threads_that_race_in_global_memory_within_a_block_do_so_across_blocks_too() -> None:
    asks = [Ask("x", [0, 0], STORE, line=1, block=block) for block in (0, 1)]
    assert [race.between_blocks for race in found(*asks)] == [False, True]


ASKS = st.lists(
    st.builds(
        Ask,
        buffer=st.sampled_from(["x", "s"]),
        elements=st.dictionaries(st.sampled_from([0, 1, 31, 32, 33]), st.integers(0, 3), min_size=1),
        kind=st.sampled_from([LOAD, STORE, ATOMIC]),
        line=st.integers(1, 2),
        block=st.integers(0, 1),
        phase=st.integers(0, 1),
        sync=st.integers(0, 1),
    ),
    max_size=7,
)


@given(ASKS)
def test_against_every_pair_of_accesses(asks: list[Ask]) -> None:
    rows = [(ask, thread, element) for ask in asks for thread, element in ask.elements.items()]
    expected = set()
    for (a, thread, element), (b, other, at) in combinations(rows, 2):
        plain = STORE in (a.kind, b.kind) or {a.kind, b.kind} == {LOAD, ATOMIC}
        if a.buffer == b.buffer and element == at and plain:
            in_step = thread // 32 == other // 32 and a.sync != b.sync
            if a.block == b.block and a.phase == b.phase and thread != other and not in_step:
                expected.add((a.buffer, False, element, a.block, a.phase))
            if a.block != b.block and a.buffer == "x":
                expected.add((a.buffer, True, element, None, None))
    found_ = found(*asks)
    assert sum(race.elements for race in found_) == len(expected)
    assert {(race.buffer, race.between_blocks) for race in found_} == {key[:2] for key in expected}
    for race in found_:
        assert STORE in (race.first_kind, race.second_kind) or {race.first_kind, race.second_kind} == {LOAD, ATOMIC}
        assert race.first_kind != LOAD
        assert race.between_blocks or race.thread != race.other_thread


@given(ASKS, st.permutations(range(2)))
def test_which_block_does_what_changes_no_count(asks: list[Ask], blocks: list[int]) -> None:
    moved = [dataclasses.replace(ask, block=blocks[ask.block]) for ask in asks]
    counts = [
        sorted((race.buffer, race.between_blocks, race.elements) for race in found(*some)) for some in (asks, moved)
    ]
    total = [sum(elements for *_, elements in some) for some in counts]
    assert total[0] == total[1]


@triton.jit
def locked(x_ptr, lock_ptr, BLOCK: tl.constexpr, HOW: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if HOW == "not asked":
        tl.atomic_cas(lock_ptr, 0, 1)
    else:
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)
    if HOW != "no barrier":
        tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@pytest.mark.parametrize(("how", "number"), [("right", 0), ("no barrier", 1), ("not asked", 1)])
def test_accesses_under_a_lock_do_not_race(how: str, number: int) -> None:
    x, lock = torch.zeros(4), torch.zeros(1, dtype=torch.int32)
    seen = report(record(locked, 3, x, lock, BLOCK=4, HOW=how))
    assert len(seen.problems) == number and x.tolist() == [3, 3, 3, 3]


@triton.jit
def flags(one_ptr, own_ptr):
    tl.store(one_ptr, 1.0)
    tl.store(own_ptr, tl.program_id(0))


def test_programs_that_store_one_equal_value_do_not_race() -> None:
    seen = report(record(flags, 3, torch.zeros(1), torch.zeros(1)))
    (problem,) = seen.problems
    assert "element 0 of 1 of own_ptr" in problem and "nothing orders them" in problem
    assert seen.costs[0].startswith("one_ptr is written more than once: 12 bytes asked for where 4 would do")
