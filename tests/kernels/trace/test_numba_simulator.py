"""Numba's kernels thread by thread: what each hand-worked kernel computes, and the rows that it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from types import FunctionType

import numpy as np
import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import load_numba
from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE
from mlsys_lab.kernels.trace.numba_simulator import record, run
from mlsys_lab.kernels.vocabulary import CUDA

cuda = load_numba()
from numba import float32, int32  # noqa: E402  # after the environment is set

HALF = 2


def floats(*values):
    return np.asarray(values, np.float32)


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def copy_2d(x, out):
    column, row = cuda.grid(2)
    out[row, column] = x[row, column]


@cuda.jit
def rotated(x, out):
    tile = cuda.shared.array(4, float32)
    i = cuda.threadIdx.x
    tile[i] = x[cuda.blockIdx.x * 4 + i]
    cuda.syncthreads()
    out[cuda.blockIdx.x * 4 + i] = tile[(i + 1) % 4]


def columns(trace, *names):
    return [tuple(int(row[name]) for name in names) for row in trace.accesses]


def test_rows_of_a_masked_addition():
    out = floats(0, 0, 0)
    trace = record(add, 2, 2, floats(1, 2, 3), floats(10, 20, 30), out, outputs=("out",))
    assert out.tolist() == [11, 22, 33]
    assert (trace.kernel, trace.grid, trace.block, trace.threads) == ("add", (2, 1, 1), (2, 1, 1), 2)
    assert [(one.name, one.space, one.shape, one.written) for one in trace.buffers] == [
        ("x", "global", (3,), True),
        ("y", "global", (3,), True),
        ("out", "global", (3,), False),
    ]
    assert columns(trace, "request", "kind", "buffer", "block", "thread", "phase", "offset") == [
        (0, LOAD, 0, 0, 0, 0, 0),
        (0, LOAD, 0, 0, 1, 0, 4),
        (1, LOAD, 1, 0, 0, 0, 0),
        (1, LOAD, 1, 0, 1, 0, 4),
        (2, STORE, 2, 0, 0, 0, 0),
        (2, STORE, 2, 0, 1, 0, 4),
        (3, LOAD, 0, 1, 0, 0, 8),  # thread 1 of block 1 is masked off
        (4, LOAD, 1, 1, 0, 0, 8),
        (5, STORE, 2, 1, 0, 0, 8),
    ]
    line = add.py_func.__code__.co_firstlineno + 4
    assert [(site.file, site.line, site.text) for site in trace.sites] == [(__file__, line, "out[i] = x[i] + y[i]")]


def test_every_run_is_the_same():
    x = np.arange(96, dtype=np.float32)
    first, second = (record(rotated, 24, 4, x, np.empty_like(x)) for _ in range(2))
    assert first.accesses.tobytes() == second.accesses.tobytes()
    assert first.arrivals.tobytes() == second.arrivals.tobytes()
    assert (first.buffers, first.sites) == (second.buffers, second.sites)


def test_recording_changes_no_result():
    x = np.arange(8, dtype=np.float32)
    plain, recorded = np.zeros_like(x), np.zeros_like(x)
    run(rotated, 2, 4, x, plain)
    record(rotated, 2, 4, x, recorded)
    assert plain.tolist() == recorded.tolist() == [1, 2, 3, 0, 5, 6, 7, 4]


def test_shared_memory_and_a_barrier():
    trace = record(rotated, 1, 4, floats(1, 2, 3, 4), floats(0, 0, 0, 0))
    tile = trace.buffers[2]
    assert (tile.name, tile.space, tile.shape, tile.itemsize, tile.written) == ("tile", "shared", (4,), 4, False)
    shared = trace.of(space="shared")
    assert [(row["kind"], row["thread"], row["phase"], row["offset"]) for row in shared] == [
        *((STORE, i, 0, 4 * i) for i in range(4)),
        *((LOAD, i, 1, 4 * ((i + 1) % 4)) for i in range(4)),
    ]
    assert [(row["block"], row["thread"], row["phase"]) for row in trace.arrivals] == [(0, i, 0) for i in range(4)]
    assert {trace.sites[row["site"]].text for row in trace.arrivals} == {"cuda.syncthreads()"}


def test_x_runs_fastest_over_threads_and_blocks_and_rows_are_bytes():
    x = np.arange(12, dtype=np.float64).reshape(3, 4)
    out = np.zeros_like(x)
    trace = record(copy_2d, (2, 3), (2, 1), x, out)
    assert (out == x).all()
    assert columns(trace, "block", "thread", "offset")[:8] == [
        *((0, 0, 0), (0, 1, 8), (0, 0, 0), (0, 1, 8)),
        *((1, 0, 16), (1, 1, 24), (1, 0, 16), (1, 1, 24)),
    ]
    assert trace.accesses[8]["block"] == 2 and trace.accesses[8]["offset"] == 32  # block (0, 1)
    assert trace.buffers[0].strides == (32, 8)


def test_a_warp_has_32_threads():
    n = 40
    trace = record(add, 1, n, np.ones(n, np.float32), np.ones(n, np.float32), np.ones(n, np.float32))
    _, lanes = np.unique(trace.accesses["request"], return_counts=True)
    assert lanes.tolist() == [32, 32, 32, 8, 8, 8]


def test_turns_of_a_loop_are_requests_of_their_own_in_the_order_of_time():
    @cuda.jit
    def loop(x, out):
        i = cuda.threadIdx.x
        for k in range(i + 1):
            out[i, k] = x[k]

    trace = record(loop, 1, 2, floats(1, 2), np.zeros((2, 2), np.float32))
    assert columns(trace, "request", "kind", "thread", "offset") == [
        *((0, LOAD, 0, 0), (0, LOAD, 1, 0), (1, STORE, 0, 0), (1, STORE, 1, 8)),
        *((2, LOAD, 1, 4), (3, STORE, 1, 12)),
    ]


def test_what_only_a_later_thread_does_first_stands_first():
    @cuda.jit
    def branch(x):
        i = cuda.threadIdx.x
        if i == 1:
            x[1] = 5
        x[0] = x[i]

    assert columns(record(branch, 1, 2, floats(0, 0)), "kind", "thread", "offset") == [
        (STORE, 1, 4),
        *((LOAD, 0, 0), (LOAD, 1, 4)),
        *((STORE, 0, 0), (STORE, 1, 0)),
    ]


def test_indices_outside_are_recorded_and_harm_nothing():
    @cuda.jit
    def shifted(x, out):
        i = cuda.threadIdx.x
        out[i + 1] = x[i - 1]

    guard = np.arange(4, dtype=np.float32)
    trace = record(shifted, 1, 2, guard[1:3], out := floats(7, 7))
    assert columns(trace, "kind", "offset") == [(LOAD, -4), (LOAD, 0), (STORE, 4), (STORE, 8)]
    assert guard.tolist() == [0, 1, 2, 3]
    assert out[0] == 7 and np.isnan(out[1])
    with pytest.raises(InputError, match=r"shifted stops in thread \(0, 0, 0\) of block .*: x\[-1\] is out of bounds"):
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
    assert [(one.name, one.space, one.written) for one in trace.buffers[2:]] == [
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


def test_too_much_shared_memory():
    @cuda.jit
    def large():
        cuda.shared.array((64, 64), float32)
        cuda.shared.array((64, 129), float32)

    with pytest.raises(InputError, match="large has too much shared memory: got 49408 bytes, expected at most 49152"):
        run(large, 1, 1)


def test_a_shape_that_numba_would_not_take():
    @cuda.jit
    def padded(out):
        tile = cuda.shared.array((HALF, HALF + 1), float32)
        out[0] = tile[0, 0]

    @cuda.jit(device=True)
    def as_wide_as_the_block():
        return cuda.local.array(shape=cuda.blockDim.x, dtype=float32)[0]

    @cuda.jit
    def calls(out):
        out[0] = as_wide_as_the_block()

    for kernel, inner in ((padded, padded), (calls, as_wide_as_the_block)):
        line = inner.py_func.__code__.co_firstlineno + 2
        with pytest.raises(InputError) as error:
            run(kernel, 1, 1, floats(0))
        assert str(error.value) == (
            f"{__file__}:{line}: the shape of a shared or local array has to be a constant; "
            "help: give the sum a name outside of the kernel, such as PITCH = TILE + 1"
        )


def test_shapes_that_numba_takes():
    @cuda.jit
    def constants(x, out):
        first = cuda.shared.array((HALF, 2 * 4), float32)
        second = cuda.local.array(shape=HALF, dtype=x.dtype)
        first[1, 7] = second[0] = x[0 + 1]
        out[0] = first[1, 7] + second[0]

    out = floats(0)
    run(constants, 1, 1, floats(1, 2), out)
    assert out[0] == 4


def test_atomics():
    @cuda.jit
    def counted(total, table):
        i = cuda.threadIdx.x
        cuda.atomic.add(total, 0, i)
        table[0, i] = cuda.atomic.max(table, (1, 0), i)

    total, table = np.zeros(1, np.int32), np.zeros((2, 3), np.float32)
    trace = record(counted, 1, 3, total, table)
    assert total[0] == 3 and table.tolist() == [[0, 0, 1], [2, 0, 0]]
    assert [(row["request"], row["buffer"], row["offset"]) for row in trace.of(kinds=(ATOMIC,))] == [
        *((0, 0, 0) for _ in range(3)),
        *((1, 1, 12) for _ in range(3)),
    ]


@pytest.mark.parametrize(
    "name, arguments, old, new",
    [
        ("sub", (2,), 7, 5),
        ("min", (2,), 7, 2),
        ("and_", (5,), 6, 4),
        ("or_", (5,), 6, 7),
        ("xor", (5,), 6, 3),
        ("inc", (7,), 6, 7),
        ("inc", (7,), 7, 0),
        ("dec", (7,), 6, 5),
        ("dec", (7,), 0, 7),
        ("dec", (7,), 9, 7),
        ("exch", (2,), 7, 2),
        ("cas", (7, 1), 7, 1),
        ("cas", (6, 1), 7, 7),
    ],
)
def test_each_atomic_returns_what_it_found(name, arguments, old, new):
    @cuda.jit
    def once(x, out):
        out[0] = getattr(cuda.atomic, name)(x, 0, *arguments)

    x, out = np.asarray([old], np.int32), np.zeros(1, np.int32)
    run(once, 1, 1, x, out)
    assert (out[0], x[0]) == (old, new)


def test_a_device_function_is_told_apart_by_who_calls_it():
    @cuda.jit(device=True)
    def first_of(x):
        return x[0]

    @cuda.jit
    def caller(x, y, out):
        out[0] = first_of(x) + HALF * first_of(y)

    out = floats(0)
    trace = record(caller, 1, 2, floats(1), floats(2), out)
    assert out[0] == 5
    assert columns(trace, "request", "buffer") == [(0, 0), (0, 0), (1, 1), (1, 1), (2, 2), (2, 2)]
    assert [site.text for site in trace.sites] == ["return x[0]", "out[0] = first_of(x) + HALF * first_of(y)"]


def shuffled(name, argument, mask=0xFFFFFFFF, threads=32, value=lambda i: 10 * i):
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        if mask >> i & 1:
            out[i] = getattr(cuda, name)(mask, value(i), argument)

    out = np.zeros(threads, np.float64)
    run(kernel, 1, threads, out)
    return out.tolist()


def test_shuffles():
    lanes = range(32)
    assert shuffled("shfl_sync", 5) == [50] * 32
    assert shuffled("shfl_down_sync", 16) == [10 * (i + 16 if i < 16 else i) for i in lanes]
    assert shuffled("shfl_up_sync", 1) == [10 * max(i - 1, 0) for i in lanes]
    assert shuffled("shfl_xor_sync", 3) == [10 * (i ^ 3) for i in lanes]
    assert shuffled("shfl_xor_sync", 1, mask=0b1111)[:6] == [10, 0, 30, 20, 0, 0]


def test_a_shuffle_from_a_lane_that_is_not_there_gives_no_value():
    got = shuffled("shfl_down_sync", 1, threads=4, value=float)
    assert got[:3] == [1, 2, 3] and np.isnan(got[3])


def test_votes_and_barriers_that_count():
    @cuda.jit
    def votes(out):
        i = cuda.threadIdx.x
        out[i, 0] = cuda.ballot_sync(0xFFFFFFFF, i % 2)
        out[i, 1] = cuda.any_sync(-1, i == 3)
        out[i, 2] = cuda.all_sync(-1, i < 4)
        out[i, 3] = cuda.syncthreads_count(i > 0)
        out[i, 4] = cuda.syncthreads_and(i > 0)
        out[i, 5] = cuda.syncthreads_or(i > 0)
        out[i, 6] = cuda.laneid

    out = np.zeros((34, 7), np.int64)
    run(votes, 1, 34, out)
    assert out[0].tolist() == [0xAAAAAAAA, 1, 0, 33, 0, 1, 0]
    assert out[33].tolist() == [0b10, 0, 0, 33, 0, 1, 1]


def test_bits():
    @cuda.jit
    def bits(out, x):
        out[0] = cuda.popc(x)
        out[1] = cuda.clz(x)
        out[2] = cuda.ffs(x)
        out[3] = cuda.brev(x)
        out[4] = cuda.ffs(0)
        out[5] = cuda.selp(x > 7, 1, 2)
        out[6] = cuda.fma(x, 2, 1)
        out[7] = cuda.warpsize

    out = np.zeros(8, np.int64)
    run(bits, 1, 1, out, 12)
    assert out.tolist() == [2, 28, 3, 0x30000000, 0, 1, 25, 32]


def test_a_grid_of_three_dimensions():
    @cuda.jit
    def three(out):
        x, y, z = cuda.grid(3)
        width, height, depth = cuda.gridsize(3)
        out[x, y, z] = 100 * width + 10 * height + depth

    out = np.zeros((2, 3, 4), np.int64)
    run(three, (2, 1, 2), (1, 3, 2), out)
    assert (out == 234).all()


def test_threads_that_return_before_a_barrier():
    @cuda.jit
    def early(x):
        i = cuda.threadIdx.x
        if i == 3:
            return
        cuda.syncthreads()
        x[i] = 1

    line = early.py_func.__code__.co_firstlineno + 5
    with pytest.raises(InputError) as error:
        run(early, 1, 4, floats(0, 0, 0, 0))
    assert str(error.value) == (
        f"{__file__}:{line}: not all threads of block (0, 0, 0) reach one barrier: got 3 of 4 threads at 1 barriers"
    )
    trace = record(early, 1, 4, x := floats(0, 0, 0, 0))
    assert trace.arrivals["thread"].tolist() == [0, 1, 2] and x.tolist() == [1, 1, 1, 0]


def test_threads_at_two_barriers():
    @cuda.jit
    def two():
        if cuda.threadIdx.x == 0:
            cuda.syncthreads()
        else:
            cuda.syncthreads()

    with pytest.raises(InputError, match=r"not all threads of block .* got 2 of 2 threads at 2 barriers"):
        run(two, 1, 2)
    arrivals = record(two, 1, 2).arrivals
    assert len(set(arrivals["site"].tolist())) == 2


def test_lanes_that_never_come_to_a_shuffle():
    @cuda.jit
    def alone(out):
        if cuda.threadIdx.x == 2:
            out[0] = cuda.shfl_sync(0b111, 1, 0)

    with pytest.raises(InputError, match=r":\d+: shfl_sync waits for lanes .*: got lanes \[2\] .* of mask 0x7$"):
        record(alone, 1, 3, floats(0))


def test_what_fails_in_a_thread_is_told_with_its_line():
    @cuda.jit
    def fails(x):
        if cuda.threadIdx.x == 1:
            x[0] = 1 // (cuda.blockIdx.x - 1)

    line = fails.py_func.__code__.co_firstlineno + 3
    with pytest.raises(InputError) as error:
        record(fails, 2, 2, floats(0))
    assert str(error.value) == (
        f"{__file__}:{line}: fails stops in thread (1, 0, 0) of block (1, 0, 0): "
        "ZeroDivisionError: integer division or modulo by zero"
    )


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda x: x[0:2], r"x is indexed by one integer in a kernel: got slice\(0, 2, None\)$"),
        (lambda x: x[0.5], r"x is indexed by one integer in a kernel: got 0.5$"),
        (lambda x: x[0, 0], r"x is indexed by one integer in a kernel: got 0, 0$"),
        (lambda x: list(x), r"TypeError: 'Memory' object is not iterable$"),
        (lambda x: x.sum(), r"AttributeError: 'Memory' object has no attribute 'sum'$"),
        (lambda x: cuda.nanosleep(3), r"cuda.nanosleep is not simulated$"),
    ],
)
def test_what_a_kernel_cannot_do(body, message):
    with pytest.raises(InputError, match=message):
        record(body, 1, 1, floats(1, 2))


def test_a_row_of_a_matrix_is_no_element():
    with pytest.raises(InputError, match=r"x is indexed by 2 integers in a kernel: got 1$"):
        record(lambda x: x[1], 1, 1, np.ones((2, 2), np.float32))
    with pytest.raises(InputError, match=r"x is indexed by 3 integers in a kernel: got 1, 1$"):
        record(lambda x: x[1, 1], 1, 1, np.ones((2, 2, 2), np.float32))


def test_launches_that_cannot_be():
    x = floats(1)
    for grid, block, message in [
        (0, 1, "grid of a launch: got 0, expected one to three integers"),
        (1, (1, 1, 1, 1), "block of a launch: got"),
        (1, (33, 32), "threads of a block: got 1056, expected at most 1024"),
    ]:
        with pytest.raises(InputError, match=message):
            run(add, grid, block, x, x, x)
    with pytest.raises(InputError, match="arguments of add: got 1, expected x, y, out"):
        run(add, 1, 1, x)
    with pytest.raises(InputError, match="not a kernel: got int"):
        run(3, 1, 1)
    with pytest.raises(InputError, match="add has no such output: got ou; help: did you mean 'out'"):
        record(add, 1, 1, x, x, x, outputs=("ou",))
    for bad in (np.ones((2, 2)).T, np.asarray(["a"]), np.asarray(1.0)):
        with pytest.raises(InputError, match="x must be a contiguous array of numbers: got"):
            run(add, 1, 1, bad, x, x)
    with pytest.raises(InputError, match="x cannot be looked at in the host's memory"):
        run(add, 1, 1, torch.ones(1, device="meta"), x, x)


def test_an_array_from_outside_is_refused():
    table = floats(1, 2)

    @cuda.jit
    def looks_up(out):
        out[0] = table[1]

    with pytest.raises(InputError, match="looks_up reads the array table from outside; help: pass it as an argument"):
        run(looks_up, 1, 1, floats(0))


def test_tensors_are_changed_in_place():
    out = torch.zeros(3)
    run(add, 1, 4, torch.ones(3, requires_grad=True), torch.ones(3), out)
    assert out.tolist() == [2, 2, 2]


def test_integers_are_wide_and_are_cut_where_they_are_stored():
    @cuda.jit
    def bytes_added(x, out, low):
        out[0] = (x[0] + x[1]) // 2
        low[0] = x[0] + x[1]

    out, low = np.zeros(1, np.int32), np.zeros(1, np.uint8)
    run(bytes_added, 1, 1, np.asarray([200, 100], np.uint8), out, low)
    assert (out[0], low[0]) == (150, 44)


def test_arithmetic_is_as_silent_as_a_gpu():
    @cuda.jit
    def overflows(x):
        cuda.syncthreads()
        x[0] = x[0] * x[0] / (x[0] - x[0])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(overflows, 1, 2, x := floats(3e38))
    assert np.isinf(x[0]) or np.isnan(x[0])


def test_half_precision_is_rounded_at_every_step():
    @cuda.jit
    def third(x):
        x[0] = (x[0] + x[1]) - x[0]

    x = np.asarray([2048, 1], np.float16)
    run(third, 1, 1, x)
    assert x[0] == 0


def test_the_simulator_has_every_word_that_a_kernel_may_use():
    @cuda.jit
    def finds(name):
        found = cuda
        for part in name.split("."):
            found = getattr(found, part)

    for name in CUDA:
        run(finds, 1, 1, name)


def test_numba_still_has_what_the_simulator_takes_from_it():
    """Where this fails, a new Numba has moved what `numba_functions` and `numba_grid` lean on: mend it there."""
    import numba
    from numba.np.numpy_support import as_dtype

    assert isinstance(add.py_func, FunctionType), "a kernel's Python function was under `py_func`"
    assert add.py_func.__globals__["cuda"].__name__ == "numba.cuda"
    assert isinstance(float32, numba.types.Type) and as_dtype(float32) == np.float32, (
        "as_dtype gave a type's NumPy dtype"
    )


def test_a_kernel_that_numba_would_compile_is_recorded_as_well():
    program = """
import numpy as np
from numba import cuda, float32
from mlsys_lab.kernels.trace.numba_simulator import record

@cuda.jit
def doubled(x):
    tile = cuda.shared.array(1, float32)
    tile[0] = x[0]
    cuda.syncthreads()
    x[0] = 2 * tile[0]

x = np.ones(1, np.float32)
print(type(doubled).__name__, x.dtype, len(record(doubled, 1, 1, x).accesses), x[0])
"""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["CUDADispatcher", "float32", "4", "2.0"]
