"""a·b in Numba: right on every shape, and how often each step goes to memory."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.matmul import cost, matmul, numba_steps, reference
from mlsys_lab.kernels.numba_launch import Recorder
from mlsys_lab.kernels.trace.banks import conflicts
from mlsys_lab.kernels.trace.barriers import divergences
from mlsys_lab.kernels.trace.events import LOAD, STORE, Trace
from mlsys_lab.kernels.trace.faults import faults
from mlsys_lab.kernels.trace.races import races
from mlsys_lab.kernels.trace.sectors import coalescing
from mlsys_lab.kernels.trace.traffic import traffic
from tests.sampling import sample

SHAPES = [(1, 1, 1), (0, 3, 2), (3, 0, 2), (2, 3, 0), (1, 65, 2), (67, 1, 9), (37, 41, 19)]
M, N, K = 64, 64, 16


def pair(m, n, k, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(11)
    shapes = ((m, k), (k, n))
    return tuple(torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_the_product(step, shape, device):
    a, b = pair(*shape, device)
    torch.testing.assert_close(matmul(a, b, step=step), reference(a, b))


@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_double_precision(step, device):
    a, b = pair(5, 17, 9, device, torch.float64)
    torch.testing.assert_close(matmul(a, b, step=step), reference(a, b))


@cache
def traced(step: str, m: int = M, n: int = N, k: int = K) -> Trace:
    recorder = Recorder()
    numba_steps.run(step, *pair(m, n, k), launch=recorder)
    return recorder.traces[0]


def block_of(step):
    """Rows and columns of c that are made from one reading of a and b."""
    return (1, 1) if step in ("naive", "coalesced") else numba_steps.TILES[step][::-1]


@pytest.mark.parametrize("shape", [(M, N, K), (37, 70, 5)])
@pytest.mark.parametrize("step", sample([*numba_steps.STEPS], 2))
def test_a_is_read_once_for_each_block_of_columns(step, shape):
    m, n, k = shape
    rows, columns = block_of(step)
    a, b, c = traffic(traced(step, *shape))
    assert (a.max_reads, a.mean_reads) == (-(-n // columns), -(-n // columns))
    assert (b.max_reads, b.mean_reads) == (-(-m // rows), -(-m // rows))
    assert (c.max_reads, c.max_writes, c.elements_written) == (0, 1, m * n)
    asked = sum(one.read.asked_bytes + one.written.asked_bytes for one in (a, b, c))
    assert asked == cost.tiled_bytes(m, n, k, rows, columns)


def test_reads_fall_with_the_tile():
    reads = {step: traffic(traced(step))[0].max_reads for step in numba_steps.STEPS}
    assert reads == {
        "naive": N,
        "coalesced": N,
        "shared_tile": N // numba_steps.TILE,
        "register_tile_1d": 1,
        "register_tile_2d": 1,
    }


@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_nothing_is_wrong_at_the_edges(step):
    trace = traced(step, 37, 70, 5)
    assert not faults(trace) and not races(trace) and not divergences(trace)


def sectors(step):
    """Sectors over the fewest possible, by array and kind."""
    return {(one.buffer, one.kind): one.taken / one.ideal for one in coalescing(traced(step))}


def test_neighbours_in_a_row_need_an_eighth_of_the_sectors():
    assert sectors("naive") == {("a", LOAD): 8, ("b", LOAD): 1, ("c", STORE): 8}
    assert sectors("coalesced") == {("a", LOAD): 1, ("b", LOAD): 1, ("c", STORE): 1}
    moved = {step: sum(one.taken for one in coalescing(traced(step))) for step in ("naive", "coalesced")}
    assert moved["naive"] > 6 * moved["coalesced"]


@pytest.mark.parametrize("step", ["shared_tile", "register_tile_1d", "register_tile_2d"])
def test_tiles_are_coalesced_and_have_no_bank_conflicts(step):
    assert set(sectors(step).values()) == {1}
    assert all(one.efficiency == 1 for one in conflicts(traced(step)))


def test_registers_take_the_load_off_shared_memory():
    """Numbers from shared memory for a multiply-add: 2, then (1 + UP) / UP, then 2·SIDE / SIDE²."""
    multiply_adds = cost.flops(M, N, K) / 2
    loads = {
        step: len(traced(step).of(space="shared", kinds=(LOAD,))) / multiply_adds
        for step in ("shared_tile", "register_tile_1d", "register_tile_2d")
    }
    up, side = numba_steps.UP, numba_steps.SIDE
    assert loads == {"shared_tile": 2, "register_tile_1d": (1 + up) / up, "register_tile_2d": 2 / side}


def test_what_is_refused():
    a, b = pair(2, 3, 4)
    with pytest.raises(InputError, match="unknown step: got 'tensor_cores'"):
        matmul(a, b, step="tensor_cores")
    with pytest.raises(InputError, match=r"dtype of a: got torch.float16, expected torch.float32 or"):
        matmul(a.half(), b.half())
    with pytest.raises(InputError, match=r"shape of b: got \(3, 3\), expected \(4, 3\)"):
        matmul(a, b[:3])
    with pytest.raises(InputError, match=r"dimensions of b: got shape \(12,\), expected 2 of them"):
        matmul(a, b.view(-1))
    with pytest.raises(InputError, match="a is not contiguous"):
        matmul(a.T, a)
