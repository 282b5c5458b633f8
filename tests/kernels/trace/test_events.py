"""What a trace holds: where an element lies, and what its threads are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE, Buffer, Site
from tests.kernels.trace.launches import Ask, array, shared, trace


def test_an_array_ends_with_its_last_element() -> None:
    assert array("x", (4, 5)).size_bytes == 80 and array("x", (4, 5)).elements == 20
    assert array("x", (4, 0)).size_bytes == array("x", (4, 0)).elements == 0
    assert Buffer("x", "global", (), 4, (), initialized=True).size_bytes == 4
    assert Buffer("column", "global", (3,), 4, (20,), initialized=True).size_bytes == 44
    assert Buffer("again", "global", (8, 3), 4, (0, 4), initialized=True).size_bytes == 12


@pytest.mark.parametrize(
    ("buffer", "offset", "place"),
    [
        (array("x", 35), 140, "element 35 of 35"),
        (array("x", 35), -4, "element -1 of 35"),
        (array("x", (4, 5)), 28, "element (1, 2) of (4, 5)"),
        (array("x", (2, 3, 4)), 4 * 23, "element (1, 2, 3) of (2, 3, 4)"),
        (Buffer("turned", "global", (5, 4), 4, (4, 20), initialized=True), 28, "element (2, 1) of (5, 4)"),
        (Buffer("again", "global", (8, 3), 4, (0, 4), initialized=True), 8, "element (0, 2) of (8, 3)"),
        (Buffer("one", "global", (), 4, (), initialized=True), 4, "byte 4 of 4"),
    ],
)
def test_an_offset_is_told_as_an_element(buffer: Buffer, offset: int, place: str) -> None:
    assert buffer.describe(offset) == place


def test_threads_and_blocks_go_by_their_indices() -> None:
    flat = trace([], buffers=[], grid=(9, 1, 1), block=(64, 1, 1))
    assert (
        flat.describe_actor(7, 33) == "block 7 thread 33"
        and flat.describe_actor(7) == "block 7"
        and flat.describe_actor(thread=3) == "thread 3"
    )
    square = trace([], buffers=[], grid=(3, 2, 1), block=(4, 2, 3))
    assert square.describe_actor(4, 13) == "block (1, 1) thread (1, 1, 1)"
    tall = trace([], buffers=[], grid=(1, 5, 1), block=(1, 1, 8))
    assert tall.describe_actor(4, 6) == "block (0, 4) thread (0, 0, 6)"
    assert replace(flat, unit_names=("program", "lane")).describe_actor(1, 2) == "program 1 lane 2"
    assert (flat.threads, square.threads) == (64, 24)


def test_a_place_reads_as_its_line_and_comes_before_the_lines_below_it() -> None:
    assert str(Site("k.py", 12, "y[i] = x[i]")) == "line 12 `y[i] = x[i]`"
    assert Site("k.py", 9, "b") < Site("k.py", 12, "a") < Site("l.py", 1, "a")


def test_accesses_are_chosen_by_space_array_and_kind() -> None:
    asks = [Ask("x", [0]), Ask("s", [0, 1], STORE), Ask("y", [0] * 3, ATOMIC)]
    made = trace(asks, buffers=[array("x", 1), array("y", 1), shared("s", 2)])
    chosen = [
        made.of(),
        made.of(space="global"),
        made.of(buffer="s"),
        made.of(space="global", buffer="s"),
        made.of(kinds=(LOAD, ATOMIC)),
    ]
    assert [len(rows) for rows in chosen] == [6, 4, 2, 0, 4]
    with pytest.raises(InputError, match="by_hand has no such array: got tile"):
        made.of(buffer="tile")
