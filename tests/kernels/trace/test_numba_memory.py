"""A kernel's arrays: indices outside, elements that nothing has written, what may be asked of an element."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_language import cuda, float32, int32
from mlsys_lab.kernels.trace.events import LOAD, STORE
from mlsys_lab.kernels.trace.numba_simulator import record, run
from tests.kernels.trace.numba_kernels import add, columns, floats


def test_indices_outside_are_recorded_and_harm_nothing():
    @cuda.jit
    def shifted(x, out):
        i = cuda.threadIdx.x
        out[i + 1] = x[i - 3]

    guard = np.arange(4, dtype=np.float32)
    trace = record(shifted, 1, 2, guard[1:3], out := floats(7, 7))
    assert columns(trace, "kind", "offset") == [(LOAD, -4), (LOAD, 0), (STORE, 4), (STORE, 8)]
    assert guard.tolist() == [0, 1, 2, 3]
    assert out[0] == 7 and np.isnan(out[1])
    with pytest.raises(InputError, match=r"shifted stops in thread \(0, 0, 0\) of block .*: x\[-3\] is out of bounds"):
        run(shifted, 1, 2, floats(1, 2), floats(7, 7))
    with pytest.raises(InputError, match=r"y\[2\] is out of bounds: expected within shape \(2,\)$"):
        run(add, 1, 3, floats(1, 2, 3), floats(1, 2), floats(7, 7, 7))


def test_an_index_beyond_a_row_is_in_the_next_one_as_on_the_device():
    @cuda.jit
    def beyond(x, out):
        out[0] = x[0, 2]

    out = floats(0)
    trace = record(beyond, 1, 1, np.arange(4, dtype=np.float32).reshape(2, 2), out)
    assert out[0] == 2 and trace.accesses[0]["offset"] == 8
    with pytest.raises(InputError, match=r"x\[0, 2\] is out of bounds"):
        run(beyond, 1, 1, np.ones((2, 2), np.float32), out)


def test_memory_that_nobody_has_written():
    @cuda.jit
    def unwritten(out, whole, count):
        tile = cuda.shared.array(1, float32)
        mine = cuda.local.array((1, 2), int32)
        out[0], whole[0] = tile[0], mine[0, 1]
        count[0] = count[0]

    out, whole, count = floats(0), np.zeros(1, np.int32), np.zeros(1, np.uint8)
    trace = record(unwritten, 1, 1, out, whole, count, outputs=("count",))
    assert np.isnan(out[0]) and whole[0] == 2**31 - 1 and count[0] == 255
    assert [(one.name, one.space, one.initialized) for one in trace.buffers[2:]] == [
        ("count", "global", False),
        ("tile", "shared", False),
        ("mine", "local", False),
    ]


def test_arrays_in_shared_memory_begin_at_multiples_of_16_bytes_and_are_new_in_each_block():
    @cuda.jit
    def two(out):
        first = cuda.shared.array(3, float32)
        second = cuda.shared.array((2, 2), float32)
        out[cuda.blockIdx.x] = second[1, 1]
        first[0] = second[1, 1] = 1

    out = floats(0, 0)
    trace = record(two, 2, 1, out)
    assert [(one.name, one.start) for one in trace.buffers[1:]] == [("first", 0), ("second", 16)]
    assert np.isnan(out).all()


def test_local_arrays_belong_to_one_thread():
    @cuda.jit
    def own(out):
        mine = cuda.local.array(1, float32)
        mine[0] = cuda.threadIdx.x
        cuda.syncthreads()
        out[cuda.threadIdx.x] = mine[0]

    out = floats(0, 0, 0)
    trace = record(own, 1, 3, out)
    assert out.tolist() == [0, 1, 2]
    assert [(row["thread"], row["offset"]) for row in trace.of(space="local", kinds=(STORE,))] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]


def element(body, x):
    """The element of x that a kernel's expression reads, by the record, and its value."""
    out = np.zeros(1, x.dtype)

    def kernel(x, out):
        out[0] = body(x)

    trace = record(kernel, 1, 1, x, out)
    (row,) = trace.of(buffer="x")
    return int(row["offset"]) // x.itemsize, out[0]


@pytest.mark.parametrize(
    "body, expected",
    [
        (lambda x: x[-1, 0], 8),
        (lambda x: x[1, -1], 7),
        (lambda x: x[2][3], 11),
        (lambda x: x[-2][-4], 4),
        (lambda x: x[1:, 2][0], 6),
        (lambda x: x[:, ::-1][2, 0], 11),
        (lambda x: x[1:-1][0, 1], 5),
        (lambda x: x[:, 1:3][-1][-1], 10),
        (lambda x: x[np.int64(1)][np.int64(-1)], 7),
        (lambda x: x[0, 5], 5),
    ],
)
def test_indices_below_0_and_views_are_numbas(body, expected):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert element(body, x) == (expected, expected)


def test_views_know_their_shape_and_change_the_array_that_they_are_part_of():
    @cuda.jit
    def through_views(x, out):
        row = x[1]
        row[0] = 7
        x[2][-1] = 8
        cuda.atomic.add(x[0], -2, 9)
        out[0], out[1], out[2] = row.size, x[:, 1:].shape[1], len(x[1:])

    x, out = np.zeros((3, 4), np.float32), floats(0, 0, 0)
    trace = record(through_views, 1, 1, x, out)
    assert x.tolist() == [[0, 0, 9, 0], [7, 0, 0, 0], [0, 0, 0, 8]]
    assert out.tolist() == [4, 3, 2]
    assert [row["offset"] // 4 for row in trace.of(buffer="x")] == [4, 11, 2]
    run(through_views, 1, 1, again := np.zeros((3, 4), np.float32), out)
    assert again.tolist() == x.tolist()


def test_arrays_with_gaps_are_touched_where_their_strides_say():
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    for part, (offset, value) in ((whole.T, (24 + 8, 8)), (whole[1:, ::2], (24 + 8, 14))):
        out = floats(0)

        def kernel(x, out):
            out[0] = x[2, 1] if x.shape[0] == 6 else x[1, 1]

        trace = record(kernel, 1, 1, part, out)
        assert (trace.accesses[0]["offset"], out[0]) == (offset, value)
    with pytest.raises(InputError, match="x must be an array of numbers with strides of whole elements, not below 0"):
        record(lambda x: x[0], 1, 1, floats(1, 2)[::-1])


def test_shared_memory_whose_size_a_launch_gives_is_refused():
    @cuda.jit
    def dynamic(out):
        part = cuda.shared.array(0, float32)
        out[0] = part[0]

    line = dynamic.py_func.__code__.co_firstlineno + 2
    message = f"{__file__}:{line}: dynamic stops in thread .*: cuda.shared.array\\(0, …\\) is dynamic shared memory, "
    with pytest.raises(InputError, match=message):
        record(dynamic, 1, 1, floats(0))


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda x: x[0.5], r"x is indexed by one integer in a kernel: got 0.5$"),
        (lambda x: x[0, 0], r"x is indexed by one integer in a kernel: got 0, 0$"),
        (lambda x: x.__setitem__(slice(2), 0), r"changes one element of x at a time, by one integer: got slice\(.*\)$"),
        (lambda x: cuda.atomic.add(x, None, 1), r"a kernel changes one element of x at a time, by one integer: got"),
        (lambda x: list(x), r"TypeError: 'Memory' object is not iterable$"),
        (lambda x: x.sum(), r"AttributeError: 'Memory' object has no attribute 'sum'$"),
        (lambda x: cuda.nanosleep(3), r"cuda.nanosleep is not simulated$"),
    ],
)
def test_what_a_kernel_cannot_do(body, message):
    with pytest.raises(InputError, match=message):
        record(body, 1, 1, floats(1, 2))


def test_a_row_of_a_matrix_is_no_element():
    with pytest.raises(InputError, match=r"a kernel changes one element of x at a time, by 2 integers: got 1$"):
        record(lambda x: x.__setitem__(1, 0), 1, 1, np.ones((2, 2), np.float32))
    with pytest.raises(InputError, match=r"x is indexed by 2 integers in a kernel: got 1, 1, 1$"):
        record(lambda x: x[1, 1, 1], 1, 1, np.ones((2, 2), np.float32))


def test_integers_are_wide_and_are_cut_where_they_are_stored():
    @cuda.jit
    def bytes_added(x, out, low):
        out[0] = (x[0] + x[1]) // 2
        low[0] = x[0] + x[1]

    out, low = np.zeros(1, np.int32), np.zeros(1, np.uint8)
    run(bytes_added, 1, 1, np.asarray([200, 100], np.uint8), out, low)
    assert (out[0], low[0]) == (150, 44)


def test_half_precision_is_rounded_at_every_step():
    @cuda.jit
    def third(x):
        x[0] = (x[0] + x[1]) - x[0]

    x = np.asarray([2048, 1], np.float16)
    run(third, 1, 1, x)
    assert x[0] == 0
