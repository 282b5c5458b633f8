"""How threads of a warp wait for each other, and what that puts in order."""

from __future__ import annotations

from mlsys_lab.kernels.numba_language import cuda, float32
from mlsys_lab.kernels.trace.numba_simulator import record
from mlsys_lab.kernels.trace.races import races
from tests.kernels.trace.numba_kernels import floats


def raced(kernel, threads, out):
    return [(race.first.text, race.second.text) for race in races(record(kernel, 1, threads, out))]


def test_a_syncwarp_orders_what_the_lanes_of_a_warp_do():
    @cuda.jit
    def shifted(out):
        part = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        part[t] = t
        cuda.syncwarp()
        value = part[(t + 1) % 32]
        cuda.syncwarp()
        part[t] = value
        out[t] = part[t]

    out = floats(*[0] * 32)
    assert raced(shifted, 32, out) == []
    assert out.tolist() == [(t + 1) % 32 for t in range(32)]


def test_lanes_that_have_returned_are_not_waited_for():
    @cuda.jit
    def half(out):
        part = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        if t >= 16:
            return
        part[t] = t
        cuda.syncwarp(0xFFFF)
        out[t] = part[15 - t]

    assert raced(half, 32, floats(*[0] * 16)) == []


def test_neither_a_shuffle_nor_a_syncwarp_of_some_orders_a_warp():
    @cuda.jit
    def shuffled(out):
        t = cuda.threadIdx.x
        out[t] = t
        cuda.shfl_sync(-1, t, 0)
        out[t + 32] = out[31 - t]

    @cuda.jit
    def by_halves(out):
        t = cuda.threadIdx.x
        out[t] = t
        if t < 16:
            cuda.syncwarp(0xFFFF)
        else:
            cuda.syncwarp(0xFFFF0000)
        out[t + 32] = out[31 - t]

    for kernel in (shuffled, by_halves):
        assert raced(kernel, 32, floats(*[0] * 64)) == [("out[t] = t", "out[t + 32] = out[31 - t]")]


def test_two_warps_are_in_no_order_whatever_their_syncwarps():
    @cuda.jit
    def both(out):
        t = cuda.threadIdx.x
        out[t] = t
        cuda.syncwarp()
        out[t + 64] = out[63 - t]

    assert raced(both, 64, floats(*[0] * 128)) == [("out[t] = t", "out[t + 64] = out[63 - t]")]
