"""Each word of `cuda` that the simulator knows, by what it does."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.sandboxed.kernels.vocabulary import CUDA
from mlsys_lab.kernels.numba_language import cuda
from mlsys_lab.kernels.trace.events import ATOMIC
from mlsys_lab.kernels.trace.numba_simulator import record, run


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


def test_the_simulator_has_every_word_that_a_kernel_may_use():
    @cuda.jit
    def finds(name):
        found = cuda
        for part in name.split("."):
            found = getattr(found, part)

    for name in CUDA:
        run(finds, 1, 1, name)
