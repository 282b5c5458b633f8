"""The sum in Numba: right for every number of numbers, and what each step does better than the one before."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_launch import Recorder
from mlsys_lab.kernels.reduction import cost, numba_steps, reference, total
from mlsys_lab.kernels.trace.banks import conflicts
from mlsys_lab.kernels.trace.barriers import divergences
from mlsys_lab.kernels.trace.faults import faults
from mlsys_lab.kernels.trace.races import races
from mlsys_lab.kernels.trace.traffic import traffic

THREADS = numba_steps.THREADS
SIZES = [0, 1, 31, 97, THREADS, THREADS + 1, 2 * THREADS + 1, 1031]


def numbers(shape, device="cpu"):
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)).to(device)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_the_sum(step, size, device):
    x = numbers(size, device)
    found = total(x, step=step)
    assert found.shape == () and found.device == x.device
    torch.testing.assert_close(found, reference(x))


@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_sums_of_sums_and_several_dimensions(step, device):
    x = torch.ones((3, THREADS, 23), device=device)
    assert total(x, step=step).item() == 69 * THREADS


@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_double_precision(step, device):
    x = 1 + numbers(299, device).double() * 2.0**-40
    torch.testing.assert_close(total(x, step=step), reference(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_small_grid_strides_over_all(blocks):
    x = numbers(1031)
    torch.testing.assert_close(numba_steps.run("grid_stride", x, blocks=blocks), x.sum())


def traced(step, size=4 * THREADS, blocks=2):
    recorder = Recorder()
    numba_steps.run(step, numbers(size), blocks=blocks, launch=recorder)
    return recorder.traces


@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_the_numbers_are_read_once_and_nothing_is_wrong(step):
    first, *again = traced(step, 1031)
    x = traffic(first)[0]
    assert (x.buffer, x.read.asked_bytes, x.max_reads) == ("x", 1031 * 4, 1)
    for trace in [first, *again]:
        assert not faults(trace) and not races(trace) and not divergences(trace)


def passes(trace):
    return sum(one.taken for one in conflicts(trace))


def requests(trace):
    """A warp's requests to shared memory, and how many of its lanes took part on average."""
    shared = trace.of(space="shared")
    count = len(np.unique(shared["request"]))
    return count, len(shared) / count


def test_interleaved_keeps_every_warp_busy_with_few_lanes():
    many, few_lanes = requests(traced("interleaved")[0])
    few, many_lanes = requests(traced("strided")[0])
    # A level that leaves n numbers has n threads add. In "interleaved" they are spread over all warps, as long as there
    # are as many threads as warps; in "strided" they fill as few warps as they can.
    warps = numba_steps.WARPS
    left = [THREADS >> level for level in range(1, THREADS.bit_length())]
    assert many == 4 * (warps + 3 * sum(min(warps, n) for n in left) + 1)
    assert few == 4 * (warps + 3 * sum(math.ceil(n / 32) for n in left) + 1)
    assert many > 2 * few and few_lanes < many_lanes / 2


def test_strided_meets_in_few_banks_and_sequential_does_not():
    # Of 128 numbers, 32 lanes take those 4 apart: they lie in 8 banks, 4 to each.
    worst = {step: max(one.worst.taken for one in conflicts(traced(step)[0])) for step in ("strided", "sequential")}
    assert worst == {"strided": 4, "sequential": 1}
    assert requests(traced("strided")[0]) == requests(traced("sequential")[0])
    assert passes(traced("strided")[0]) > 2 * passes(traced("sequential")[0])


def test_adding_on_the_way_halves_the_blocks_and_their_shared_memory_traffic():
    one, two = traced("sequential")[0], traced("first_add")[0]
    assert (one.grid[0], two.grid[0]) == (4, 2)
    assert len(two.of(space="shared")) * 2 == len(one.of(space="shared"))


def test_shuffles_leave_one_barrier_and_one_number_a_warp():
    tree, shuffles = traced("first_add")[0], traced("warp_shuffle")[0]
    assert tree.arrivals["phase"].max() == int(math.log2(THREADS)) and shuffles.arrivals["phase"].max() == 0
    assert len(shuffles.of(space="shared")) == 2 * 2 * numba_steps.WARPS  # two blocks, each number there and back


def test_a_grid_stride_needs_one_launch_and_one_atomic_a_block():
    size = 3 * THREADS * THREADS
    x = torch.ones(size)
    recorder = Recorder()
    numba_steps.run("grid_stride", x, blocks=2, launch=recorder)
    (trace,) = recorder.traces
    assert len(trace.of(buffer="sums")) == 2
    moved = sum(one.read.asked_bytes + one.written.asked_bytes for one in traffic(trace))
    assert moved <= 1.001 * cost.min_bytes(size)


def test_what_is_refused():
    with pytest.raises(InputError, match="unknown step"):
        total(torch.ones(3), step="tree")
    with pytest.raises(InputError, match=r"dtype of x: got torch.int64, expected torch.float32 or"):
        total(torch.arange(3))
    with pytest.raises(InputError, match="x is not contiguous"):
        total(torch.ones(4)[::2])
