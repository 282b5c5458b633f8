"""x + y in Numba: every step on every shape, and what it asks of memory."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_launch import Recorder
from mlsys_lab.kernels.trace.faults import faults
from mlsys_lab.kernels.trace.races import races
from mlsys_lab.kernels.trace.sectors import coalescing
from mlsys_lab.kernels.trace.traffic import traffic
from mlsys_lab.kernels.vector_add import cost, numba_steps, reference, vector_add

SHAPES = [(0,), (1,), (31,), (127,), (129,), (1031,), (7, 13), (2, 0, 3), ()]


def pair(shape, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(shape, generator=generator).to(device, dtype) for _ in range(2))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_the_sum(step, shape, device):
    x, y = pair(shape, device)
    z = vector_add(x, y, step=step)
    assert z.shape == x.shape and torch.equal(z, reference(x, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_other_precisions(step, dtype, device):
    x, y = pair(131, device, dtype)
    assert torch.equal(vector_add(x, y, step=step), reference(x, y))


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_a_small_grid_strides_over_all(blocks):
    x, y = pair(1031)
    assert torch.equal(numba_steps.run("grid_stride", x, y, blocks=blocks), x + y)


@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_each_number_moves_once_in_whole_sectors(step):
    x, y = pair(1031)
    recorder = Recorder()
    numba_steps.run(step, x, y, blocks=2, launch=recorder)
    (trace,) = recorder.traces
    flows = traffic(trace)
    assert sum(one.both.asked_bytes for one in flows) == cost.min_bytes(1031) == 12372
    assert all(one.both.ratio == 1 for one in flows)
    assert all(one.efficiency == 1 for one in coalescing(trace))
    assert not faults(trace) and not races(trace)


def test_the_two_steps_differ_in_their_threads():
    x, y = pair(1031)
    recorder = Recorder()
    for step in numba_steps.STEPS:
        numba_steps.run(step, x, y, blocks=2, launch=recorder)
    assert [trace.grid[0] for trace in recorder.traces] == [9, 2]


def test_what_is_refused():
    x, y = pair(4)
    with pytest.raises(InputError, match="unknown step: got 'fast', expected one of naive, grid_stride"):
        vector_add(x, y, step="fast")
    with pytest.raises(InputError, match=r"dtype of x: got torch.bfloat16"):
        vector_add(x.bfloat16(), y.bfloat16())
    with pytest.raises(InputError, match=r"shape of y: got \(3,\), expected \(4,\)"):
        vector_add(x, y[:3])
    with pytest.raises(InputError, match="x is not contiguous"):
        vector_add(x[::2], y[::2])
    with pytest.raises(InputError, match="unknown language: got cobol, expected numba or cuda or triton"):
        vector_add(x, y, language="cobol")
