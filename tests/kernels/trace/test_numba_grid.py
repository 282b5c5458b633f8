"""One launch: which are refused, and one line, with its place, for what goes wrong in a thread."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_language import cuda, float32
from mlsys_lab.kernels.trace.numba_simulator import record, run
from tests.kernels.trace.numba_kernels import add, floats


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


def test_too_much_shared_memory():
    @cuda.jit
    def large():
        cuda.shared.array((64, 64), float32)
        cuda.shared.array((64, 129), float32)

    with pytest.raises(InputError, match="large has too much shared memory: got 49408 bytes, expected at most 49152"):
        run(large, 1, 1)


def test_launches_that_cannot_be():
    x = floats(1)
    for grid, block, message in [
        (0, 1, "grid of a launch: got 0, expected one to three integers"),
        (1, (1, 1, 1, 1), "block of a launch: got"),
        (1, floats(99), "block of a launch: got ndarray, expected one to three integers of at least 1"),
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
    assert [one.initialized for one in record(add, 1, 1, x, x, x, outputs="out").buffers] == [True, True, False]
    for bad in (np.ones((2, 2))[::-1], np.asarray(["a"]), np.asarray(1.0)):
        with pytest.raises(InputError, match="x must be an array of numbers with strides of whole elements"):
            run(add, 1, 1, bad, x, x)
    with pytest.raises(InputError, match="x cannot be looked at in the host's memory"):
        run(add, 1, 1, torch.ones(1, device="meta"), x, x)


def test_tensors_are_changed_in_place():
    out = torch.zeros(3)
    run(add, 1, 4, torch.ones(3, requires_grad=True), torch.ones(3), out)
    assert out.tolist() == [2, 2, 2]


def test_arithmetic_is_as_silent_as_a_gpu():
    @cuda.jit
    def overflows(x):
        cuda.syncthreads()
        x[0] = x[0] * x[0] / (x[0] - x[0])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(overflows, 1, 2, x := floats(3e38))
    assert np.isinf(x[0]) or np.isnan(x[0])
