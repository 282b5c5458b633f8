"""Which element a lane touched, and which rows go together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.kernels.trace.events import Buffer
from mlsys_lab.kernels.trace.rows import element_ids, group_rows, group_sizes, in_bounds
from tests.kernels.trace.launches import Ask, array, shared, trace


def test_an_offset_is_inside_if_its_last_byte_is() -> None:
    made = trace([Ask("x", [-1, 0, 4, 5]), Ask("none", [0])], buffers=[array("x", 5), array("none", 0)])
    assert in_bounds(made, made.accesses).tolist() == [False, True, True, False, False]
    across = made.accesses[:1].copy()
    across["offset"] = 17  # bytes 17 to 20 of 20
    assert in_bounds(made, across).tolist() == [False]


def test_a_strided_view_reaches_to_the_end_of_its_last_element() -> None:
    column = Buffer("column", "global", (3,), 4, (20,), initialized=True)
    made = trace([Ask("column", [0, 5, 10, 11])], buffers=[column])
    assert in_bounds(made, made.accesses).tolist() == [True, True, True, False]


def test_blocks_have_shared_arrays_of_their_own_and_threads_local_ones() -> None:
    buffers = [array("x", 4), shared("s", 4), array("mine", 2, space="local"), array("y", 4)]
    asks = [Ask(one.name, {0: 1, 1: 1}, block=block) for one in buffers for block in (0, 1)]
    made = trace(asks, buffers=buffers, grid=(2, 1, 1))
    found = element_ids(made, made.accesses).reshape(4, 2, 2)  # by array, block, thread
    assert len(set(found[0].flat)) == 1 and len(set(found[3].flat)) == 1
    assert [len(set(block)) for block in found[1].tolist()] == [1, 1] and found[1, 0, 0] != found[1, 1, 0]
    assert len(set(found[2].flat)) == 4
    assert len(set(found.flat)) == 1 + 2 + 4 + 1


KEYS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2), st.sampled_from([-(2**62), 0, 2**62])), max_size=40)


@given(KEYS, st.booleans())
def test_groups_are_those_of_a_dictionary(rows: list[tuple[int, int, int]], far: bool) -> None:
    # With the third key the product of the ranges does not fit into 64 bits.
    keys = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(3 if far else 2)]
    order, starts = group_rows(*keys)
    expected: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(zip(*keys, strict=True)):
        expected.setdefault(tuple(map(int, row)), []).append(i)
    assert [part.tolist() for part in np.split(order, starts)[1:]] == [expected[key] for key in sorted(expected)]
    assert group_sizes(starts, len(rows)).tolist() == [len(expected[key]) for key in sorted(expected)]
