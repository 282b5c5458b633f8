"""Numba's kernels thread by thread: what each hand-worked kernel computes, and the rows that it leaves."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from mlsys_lab.kernels.numba_language import cuda, float32
from mlsys_lab.kernels.trace.events import LOAD, STORE
from mlsys_lab.kernels.trace.numba_simulator import record, run
from mlsys_lab.kernels.trace.races import races
from tests.kernels.trace.numba_kernels import add, columns, floats


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


def test_rows_of_a_masked_addition():
    out = floats(0, 0, 0)
    trace = record(add, 2, 2, floats(1, 2, 3), floats(10, 20, 30), out, outputs=("out",))
    assert out.tolist() == [11, 22, 33]
    assert (trace.kernel, trace.grid, trace.block, trace.threads) == ("add", (2, 1, 1), (2, 1, 1), 2)
    assert [(one.name, one.space, one.shape, one.initialized) for one in trace.buffers] == [
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
    code = add.py_func.__code__
    line = code.co_firstlineno + 4
    assert [(site.file, site.line, site.text) for site in trace.sites] == [
        (code.co_filename, line, "out[i] = x[i] + y[i]")
    ]


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
    assert (tile.name, tile.space, tile.shape, tile.itemsize, tile.initialized) == ("tile", "shared", (4,), 4, False)
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


@cuda.jit
def under_a_lock(x, y, lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    y[0] += x[cuda.threadIdx.x]
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def under_a_lock_of_two_arguments(x, y, lock):
    while cuda.atomic.compare_and_swap(lock, 0, 1) != 0:
        pass
    cuda.threadfence()
    y[0] += x[cuda.threadIdx.x]
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def for_a_block(x, y, lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence_block()
    y[0] += x[cuda.threadIdx.x]
    cuda.threadfence_block()
    cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def no_fence_when_released(x, y, lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    y[0] += x[cuda.threadIdx.x]
    cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def no_fence_when_taken(x, y, lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    y[0] += x[cuda.threadIdx.x]
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def released_by_a_store(x, y, lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    y[0] += x[cuda.threadIdx.x]
    cuda.threadfence()
    lock[0] = 0


@cuda.jit
def work_outside(x, y, lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    y[0] += x[cuda.threadIdx.x]
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)
    y[0] += 1


@pytest.mark.parametrize(
    ("kernel", "blocks", "raced"),
    (
        (under_a_lock, 2, set()),
        (under_a_lock_of_two_arguments, 2, set()),
        (for_a_block, 1, set()),
        (for_a_block, 2, {"y"}),
        (no_fence_when_released, 1, {"y"}),
        (no_fence_when_taken, 2, set()),
        (released_by_a_store, 1, {"y", "lock"}),
        (work_outside, 1, {"y"}),
    ),
)
def test_a_lock_orders_what_it_protects(kernel, blocks, raced):
    trace = record(kernel, blocks, 40, np.ones(40, np.float32), floats(0), np.zeros(1, np.int32))
    found = races(trace)
    assert {race.buffer for race in found} == raced
    assert all(race.between_blocks for race in found) or kernel is not for_a_block


@cuda.jit
def all_store(x, y):
    y[0] = 3
    y[1] = x[cuda.threadIdx.x]


def test_stores_of_one_equal_value_leave_nothing_to_chance():
    trace = record(all_store, 2, 40, floats(*range(40)), floats(0, 0))
    assert {(race.equal, race.place) for race in races(trace)} == {(True, "element 0 of 2"), (False, "element 1 of 2")}
